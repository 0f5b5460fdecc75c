//! Back-tests: recorded failures played again under another policy.
//!
//! Each life is played again through `decide` itself, at the times that the other policy would have chosen. What the world answered is
//! taken from the record: an attempt succeeds from the instant on at which one did succeed, and fails before it as the recorded
//! attempt before it failed. About everything else the record is silent; that is counted as unknown, not guessed, and what is still to
//! come is left open.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::decide::{End, Snapshot};
use crate::error_group::{ErrorSignature, Reclassified};
use crate::event::{AttemptOutcome, EventKind, Record};
use crate::failure::{Failure, Trigger};
use crate::fingerprint::fingerprint;
use crate::forecast::{Coming, Forecast, RunTimes, play};
use crate::guard::GuardView;
use crate::id::TaskId;
use crate::policy::{Policy, PolicyLimits};
use crate::stats::bucket;
use crate::task::{Lane, State, Task};
use crate::time::{Millis, Timestamp};

/// A task that went wrong at least once, as far as it was recorded.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskHistory {
    id: TaskId,
    lane: Arc<Lane>,
    ending: RunEnd,
    /// When it is over whatever the policy says.
    expires_at: Option<Timestamp>,
    /// The cost of each of its retries.
    cost: u32,
    /// The runs that came to an end of their own, oldest first, from the first that went wrong.
    runs: Vec<Run>,
}

#[derive(Clone, Debug, PartialEq)]
struct Run {
    due_at: Timestamp,
    ended_at: Timestamp,
    cycle: u32,
    /// The failure; `None` where it succeeded.
    trouble: Option<FailedRun>,
}

#[derive(Clone, Debug, PartialEq)]
struct FailedRun {
    outcome: AttemptOutcome,
    failure: Failure,
}

impl FailedRun {
    fn end(&self) -> End {
        match (self.outcome, self.failure.trigger) {
            (AttemptOutcome::Lost, trigger) if trigger.is_loss() => End::Lost(trigger),
            (AttemptOutcome::Lost, _) => End::Lost(Trigger::LeaseExpired),
            _ => End::Failed(self.failure.clone()),
        }
    }
}

/// A retry that came this much after its time came at its time: somebody had to notice it and to take it.
const AT_ITS_TIME: Millis = Millis::from_secs(10);

impl TaskHistory {
    /// From the records of a task, oldest first; nothing where no run of it went wrong.
    pub fn of(task: &Task, cost: u32, records: &[Record]) -> Option<TaskHistory> {
        let mut runs: Vec<Run> = Vec::new();
        let (mut planned, mut became_ready, mut given_back) = (None, None, None);
        for record in records {
            let Some(outcome) = record.outcome else {
                let is_ready = |kind: &EventKind| matches!(kind, EventKind::TaskReady | EventKind::TaskRetryDue);
                became_ready = record.events.iter().any(is_ready).then_some(record.at).or(became_ready);
                continue;
            };
            let ready_at = record.ready_at.or(became_ready.take()).or(record.started_at).unwrap_or(record.at);
            let in_time = planned.filter(|at| ready_at.since(*at) <= AT_ITS_TIME);
            let due_at = given_back.take().unwrap_or(in_time.map_or(ready_at, |at| ready_at.min(at)));
            if outcome == AttemptOutcome::Released {
                given_back = Some(due_at);
                continue;
            }
            planned = record.decision.as_ref().and_then(|decision| decision.next_retry_at);
            let trouble = match outcome {
                AttemptOutcome::Succeeded => None,
                AttemptOutcome::Failed | AttemptOutcome::Lost | AttemptOutcome::Throttled => {
                    let failure = record.failure.clone().unwrap_or_default();
                    Some(FailedRun { outcome, failure: Failure { stack: None, ..failure } })
                }
                // Neither good nor bad: the world was not asked.
                AttemptOutcome::Released | AttemptOutcome::Snoozed | AttemptOutcome::Canceled => continue,
            };
            if runs.is_empty() && trouble.is_none() {
                return None;
            }
            runs.push(Run { due_at, ended_at: record.at, cycle: record.cycle, trouble });
        }
        let ending = match task.state {
            State::Succeeded => RunEnd::Recovered,
            state if state.is_terminal() || task.parked => RunEnd::GaveUp,
            _ => RunEnd::Open,
        };
        // A retry by hand may have moved the deadline; no policy could have reckoned with that.
        let expires_at = task.lifetime.map(|span| task.submitted_at + span).or(task.expires_at);
        (!runs.is_empty()).then(|| TaskHistory { id: task.id, lane: task.lane.clone(), ending, expires_at, cost, runs })
    }

    /// The error it began with.
    fn error(&self) -> Option<&Failure> {
        self.runs.first()?.trouble.as_ref().map(|trouble| &trouble.failure)
    }

    fn success(&self) -> Option<&Run> {
        self.runs.iter().find(|run| run.trouble.is_none())
    }

    /// The last instant at which it is known to have failed, before it succeeded.
    fn last_trouble(&self) -> Timestamp {
        let bad = self.runs.iter().take_while(|run| run.trouble.is_some()).last();
        bad.map_or(Timestamp::MAX, |run| run.due_at)
    }

    fn began(&self) -> Timestamp {
        self.runs.first().map_or(Timestamp::MAX, |run| run.due_at)
    }

    fn first_failed_at(&self) -> Timestamp {
        self.runs.first().map_or(Timestamp::MAX, |run| run.ended_at)
    }

    /// How an attempt at an instant ends, and how long after it.
    fn answer(&self, at: Timestamp) -> Option<(Millis, End)> {
        let took = |run: &Run| run.ended_at.since(run.due_at);
        if let Some(run) = self.success().filter(|run| at >= run.due_at) {
            return Some((took(run), End::Succeeded { result: None }));
        }
        let before = self.runs.iter().take_while(|run| run.trouble.is_some() && run.due_at <= at).last();
        let run = before.or(self.runs.first())?;
        Some((took(run), run.trouble.as_ref()?.end()))
    }

    fn as_recorded(&self) -> ReplayedRuns {
        let told_to_wait = |run: &Run| run.trouble.as_ref().is_some_and(|it| it.outcome == AttemptOutcome::Throttled);
        let retries = self.runs.iter().skip(1).map(|run| Retry { at: run.due_at, told_to_wait: told_to_wait(run) });
        let recovered_at = self.success().map(|run| run.ended_at).filter(|_| self.ending == RunEnd::Recovered);
        ReplayedRuns { retries: retries.collect(), recovered_at, ending: self.ending, is_cut: false }
    }

    fn by_hand(&self) -> bool {
        self.ending == RunEnd::Recovered && self.success().is_some_and(|run| run.cycle > 0)
    }

    fn under(&self, terms: &Terms, range: Range, goes_on: &dyn Fn() -> bool) -> ReplayedRuns {
        let mut task = Task::new(self.id, self.lane.clone(), self.began());
        task.expires_at = self.expires_at;
        let guard = GuardView { reclassified: terms.reclassified.clone(), ..GuardView::default() };
        let snapshot = Snapshot { task, policy: terms.policy.clone(), policy_id: None, limits: terms.limits, guard };
        let is_open = Cell::new(false);
        let world = |_, at| {
            let answer = self.answer(at).filter(|_| goes_on())?;
            // What is healthy is taken to stay so; how an attempt would fail that is still to come nobody knows.
            is_open.set(at > range.until && !matches!(answer.1, End::Succeeded { .. }));
            (!is_open.get()).then_some(answer)
        };
        let played = play(&snapshot, world, RunTimes::default(), self.began(), MOST_ATTEMPTS);
        ReplayedRuns::of(&played, is_open.get())
    }
}

/// Attempts of one life that are played.
const MOST_ATTEMPTS: usize = 1_000;

/// The candidate that is tried in place of the past.
#[derive(Clone, Debug)]
pub struct Terms {
    /// The policy; `None`: never retried.
    pub policy: Option<Arc<Policy>>,
    /// The server's limits for policies.
    pub limits: PolicyLimits,
    /// Classes that people gave to errors; they stand above any policy.
    pub reclassified: Option<Reclassified>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RunEnd {
    Recovered,
    /// Over without success, or left to a person.
    GaveUp,
    /// Not over yet.
    Open,
}

/// How a life went from its first failure on.
#[derive(Clone, Debug, PartialEq)]
struct ReplayedRuns {
    retries: Vec<Retry>,
    recovered_at: Option<Timestamp>,
    ending: RunEnd,
    /// It would go on, and was not played to its end.
    is_cut: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Retry {
    /// When it was due: when it began depends on who was there to take it.
    at: Timestamp,
    told_to_wait: bool,
}

impl ReplayedRuns {
    /// `is_open`: the last attempt is still to come.
    fn of(played: &Forecast, is_open: bool) -> ReplayedRuns {
        let ending = match played.then {
            Some((State::Succeeded, _)) => RunEnd::Recovered,
            Some(_) => RunEnd::GaveUp,
            None => RunEnd::Open,
        };
        let recovered_at = played.gives_up_at.filter(|_| ending == RunEnd::Recovered);
        let begun = played.attempts.len().saturating_sub(usize::from(is_open));
        let retry = |coming: &Coming| {
            let outcome = coming.verdict.as_ref().and_then(|record| record.outcome);
            Retry { at: coming.at, told_to_wait: outcome == Some(AttemptOutcome::Throttled) }
        };
        let retries = played.attempts.iter().take(begun).skip(1).map(retry).collect();
        ReplayedRuns { retries, recovered_at, ending, is_cut: ending == RunEnd::Open && !is_open }
    }

    fn recovered(&self) -> bool {
        self.ending == RunEnd::Recovered
    }

    /// One that was told to wait did not try (as in `stats`).
    fn tries(&self) -> u64 {
        self.retries.iter().filter(|retry| !retry.told_to_wait).count() as u64
    }
}

/// The totals of all tasks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PolicyResult {
    /// Tasks that recovered.
    pub recovered: u64,
    /// Tasks that were given up.
    pub gave_up: u64,
    /// Tasks that are still open.
    pub open: u64,
    /// Retries.
    pub retries: u64,
    /// Retries that failed; one that was told to wait did not try.
    pub wasted: u64,
    /// The cost of the retries.
    pub cost: u64,
    /// From the first failure to the success: of half of those that recovered, and of 19 in 20.
    pub recovery_p50: Option<Millis>,
    /// From the first failure to the success, of 19 in 20.
    pub recovery_p95: Option<Millis>,
    /// Retries that were due within one minute, at most.
    pub peak_per_minute: u64,
    /// By the number of the attempt, from 2: how many there were, and how many of them succeeded.
    pub attempts: BTreeMap<u32, (u64, u64)>,
    /// Retries within the range, by the time at which they were due.
    pub load: BTreeMap<Timestamp, u64>,
    took: Vec<Millis>,
    by_minute: BTreeMap<Timestamp, u64>,
}

const MINUTE: Millis = Millis::from_secs(60);

impl PolicyResult {
    fn add(&mut self, life: &TaskHistory, course: &ReplayedRuns, range: Range) {
        match course.ending {
            RunEnd::Recovered => self.recovered += 1,
            RunEnd::GaveUp => self.gave_up += 1,
            RunEnd::Open => self.open += 1,
        }
        let tries = course.tries();
        self.retries += course.retries.len() as u64;
        self.wasted += tries.saturating_sub(u64::from(course.recovered()));
        self.cost += tries * u64::from(life.cost);
        self.took.extend(course.recovered_at.map(|at| at.since(life.first_failed_at())));
        for (number, retry) in (2..).zip(&course.retries) {
            *self.by_minute.entry(bucket(retry.at, MINUTE)).or_default() += 1;
            if (range.since..=range.until).contains(&retry.at) {
                *self.load.entry(bucket(retry.at, range.fine)).or_default() += 1;
            }
            let (tried, succeeded) = self.attempts.entry(number).or_default();
            *tried += 1;
            *succeeded += u64::from(course.recovered() && number as usize == course.retries.len() + 1);
        }
    }

    fn finish(&mut self) {
        self.took.sort_unstable();
        let at = |share: f64| {
            let place = (self.took.len() as f64 * share).ceil() as usize;
            self.took.get(place.saturating_sub(1)).copied()
        };
        (self.recovery_p50, self.recovery_p95) = (at(0.5), at(0.95));
        self.peak_per_minute = self.by_minute.values().copied().max().unwrap_or(0);
    }
}

/// Lives that began with the same error.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OfError {
    /// The common facts of the error.
    pub face: ErrorSignature,
    /// Tasks.
    pub tasks: u64,
    /// The recorded past.
    pub recorded: PolicyResult,
    /// The candidate.
    pub candidate: PolicyResult,
    /// Tasks whose end under the candidate is unknown.
    pub unknown: u64,
}

impl OfError {
    fn of(face: ErrorSignature) -> OfError {
        OfError { face, ..OfError::default() }
    }
}

/// How a policy compares with what happened.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Backtest {
    /// Tasks.
    pub tasks: u64,
    /// The recorded past.
    pub recorded: PolicyResult,
    /// The candidate.
    pub candidate: PolicyResult,
    /// Tasks that recovered only because a person retried them.
    pub by_hand: u64,
    /// Tasks that the candidate is not known to recover, and that it would try at times about which the record is silent.
    pub unknown: u64,
    /// Tasks that recovered, and that the candidate would have given up before.
    pub lost: Vec<TaskId>,
    /// Tasks that recovered by a manual retry only, or not at all, and that the candidate would have recovered by itself.
    pub won: Vec<TaskId>,
    /// By the fingerprint of the first error.
    pub errors: BTreeMap<i64, OfError>,
}

/// The period: how far back the load over time is shown, up to when, and how fine.
#[derive(Clone, Copy, Debug)]
pub struct Range {
    /// Start.
    pub since: Timestamp,
    /// End.
    pub until: Timestamp,
    /// The length of one bar.
    pub fine: Millis,
}

impl Backtest {
    /// Plays a life again, as far as the record says how, and as long as it `goes_on`.
    pub fn add(&mut self, life: &TaskHistory, terms: &Terms, range: Range, goes_on: &dyn Fn() -> bool) {
        let Some(error) = life.error() else { return };
        let (recorded, candidate) = (life.as_recorded(), life.under(terms, range, goes_on));
        let beyond = |retry: &Retry| retry.at > life.last_trouble();
        let is_unknown = !candidate.recovered() && (candidate.is_cut || candidate.retries.iter().any(beyond));
        self.tasks += 1;
        self.by_hand += u64::from(life.by_hand());
        self.unknown += u64::from(is_unknown);
        let came_back = recorded.recovered() && !life.by_hand();
        match candidate.ending {
            RunEnd::Recovered if !came_back => self.won.push(life.id),
            RunEnd::GaveUp if came_back && !is_unknown => self.lost.push(life.id),
            _ => {}
        }
        self.recorded.add(life, &recorded, range);
        self.candidate.add(life, &candidate, range);
        let kind = &life.lane.kind;
        let of_error =
            self.errors.entry(fingerprint(kind, error)).or_insert_with(|| OfError::of(ErrorSignature::of(kind, error)));
        of_error.tasks += 1;
        of_error.unknown += u64::from(is_unknown);
        of_error.recorded.add(life, &recorded, range);
        of_error.candidate.add(life, &candidate, range);
    }

    /// The report, when all are added.
    pub fn finish(&mut self) {
        let of_errors = self.errors.values_mut().flat_map(|it| [&mut it.recorded, &mut it.candidate]);
        of_errors.chain([&mut self.recorded, &mut self.candidate]).for_each(PolicyResult::finish);
    }
}
