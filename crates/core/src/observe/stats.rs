//! The contribution of an attempt's end to the statistics. Sums are kept by cell and by quarter of an hour; they can be added in any
//! order and in any stretches, and come to the same.

mod recovery;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error_group::GroupDelta;
use crate::event::{AttemptOutcome, EventKind};
use crate::failure::{Class, Failure};
use crate::fingerprint::{Fnv, fingerprint};
use crate::id::TaskId;
use crate::reason::{Decision, Verdict};
use crate::task::{Lane, RetryKind};
use crate::time::{Millis, Timestamp};
use crate::words::words;

pub use recovery::RECOVERY;

/// How fine the sums are kept at first.
pub const QUARTER: Millis = Millis::from_secs(900);
/// Attempts beyond this are counted together.
pub const MOST_ATTEMPTS: u32 = 100;

words! {
    /// A measure that is summed up in a cell.
    pub enum Measure {
        Succeeded = 1 "succeeded",
        Failed = 2 "failed",
        Lost = 3 "lost",
        Throttled = 4 "throttled",
        Snoozed = 5 "snoozed",
        Released = 6 "released",
        Canceled = 7 "canceled",
        /// First runs that ended badly.
        FirstFailed = 10 "first_failures",
        /// Retries that succeeded.
        Recovered = 11 "recovered",
        /// Retries that ended badly.
        Wasted = 12 "wasted",
        /// Ends after which a retry was scheduled, and how long those wait all together.
        Retried = 13 "retried",
        DelayMs = 14 "delay_ms",
        /// Tasks that ran out of something, were not to be retried, or were left to a person.
        GaveUp = 15 "gave_up",
        Refused = 16 "refused",
        Parked = 17 "parked",
        /// How long attempts ran, and those among them that were wasted.
        RunMs = 20 "run_ms",
        WastedMs = 21 "wasted_ms",
        /// The cost of retries, and of those among them that were wasted.
        Cost = 22 "cost",
        WastedCost = 23 "wasted_cost",
        /// From the first bad end to the success, all together.
        RecoveryMs = 24 "recovery_ms",
    }
}

words! {
    /// A dimension of attempts.
    pub enum Dimension {
        Attempt = 0 "attempt",
        Class = 1 "class",
        Strategy = 2 "strategy",
        Dependency = 3 "dependency",
        Kind = 4 "kind",
        Queue = 5 "queue",
        Fingerprint = 6 "fingerprint",
        Origin = 7 "origin",
    }
}

words! {
    /// The origin of an attempt.
    pub enum Origin {
        First = 0 "first",
        Automatic = 1 "automatic",
        Manual = 2 "manual",
    }
}

/// The common facts of attempts that are counted together. Where a success has no error of its own, it has the one that it overcame.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cell {
    /// The kind of task.
    pub kind: String,
    /// The queue.
    pub queue: String,
    /// Empty where there is none.
    pub dependency: String,
    /// Of the policy; `none` where there is no policy.
    pub strategy: String,
    /// The class.
    pub class: Option<Class>,
    /// The error group.
    pub fingerprint: Option<i64>,
    /// From 1.
    pub attempt: u32,
    /// The origin of the attempt.
    pub origin: Origin,
}

impl Cell {
    /// The same for ever, for everybody.
    pub fn number(&self, namespace: &str) -> i64 {
        let mut hash = Fnv::default();
        for text in [namespace, &self.kind, &self.queue, &self.dependency, &self.strategy, self.origin.word()] {
            hash.part(text);
        }
        hash.part(self.class.map_or("", Class::word));
        hash.part(&self.fingerprint.map(|number| number.to_string()).unwrap_or_default());
        hash.part(&self.attempt.to_string());
        hash.number()
    }
}

/// Sums of one cell, by the numbers of what is summed up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    by_code: BTreeMap<i16, u64>,
}

impl Sums {
    /// Adds to a measure.
    pub fn add(&mut self, what: Measure, value: u64) {
        self.add_code(what.code(), value);
    }

    /// By the number that a row holds.
    pub fn add_code(&mut self, code: i16, value: u64) {
        if value > 0 {
            let sum = self.by_code.entry(code).or_default();
            *sum = sum.saturating_add(value);
        }
    }

    /// Adds all measures of another cell.
    pub fn merge(&mut self, other: &Sums) {
        for (code, value) in other.codes() {
            self.add_code(code, value);
        }
    }

    /// Measures by their stored numbers.
    pub fn codes(&self) -> impl Iterator<Item = (i16, u64)> {
        self.by_code.iter().map(|(code, value)| (*code, *value))
    }

    /// The sum of a measure.
    pub fn get(&self, what: Measure) -> u64 {
        self.by_code.get(&what.code()).copied().unwrap_or(0)
    }

    /// Attempts that came to an end of their own: what was given back or postponed is neither good nor bad.
    pub fn attempts(&self) -> u64 {
        [Measure::Succeeded, Measure::Failed, Measure::Lost, Measure::Throttled]
            .iter()
            .map(|what| self.get(*what))
            .sum()
    }

    /// How many attempts were tries: one that was told to wait did not try.
    pub fn tries(&self) -> u64 {
        self.attempts() - self.get(Measure::Throttled)
    }

    /// How many of the tries succeeded.
    pub fn success(&self) -> Rate {
        Rate { hits: self.get(Measure::Succeeded), of: self.tries() }
    }

    /// The mean delay of a retry.
    pub fn mean_delay(&self) -> Option<Millis> {
        self.get(Measure::DelayMs).checked_div(self.get(Measure::Retried)).map(Millis)
    }
}

/// A share that knows of how many it is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Hits.
    pub hits: u64,
    /// All.
    pub of: u64,
}

impl Rate {
    /// Hits by all; `None` if there are none.
    pub fn share(self) -> Option<f64> {
        (self.of > 0).then(|| self.hits as f64 / self.of as f64)
    }

    /// Where the true share lies with 95 % confidence, after Wilson.
    pub fn interval(self) -> Option<(f64, f64)> {
        let share = self.share()?;
        let (n, z) = (self.of as f64, 1.96_f64);
        let middle = share + z * z / (2.0 * n);
        let half = z * (share * (1.0 - share) / n + z * z / (4.0 * n * n)).sqrt();
        let whole = 1.0 + z * z / n;
        Some((((middle - half) / whole).max(0.0), ((middle + half) / whole).min(1.0)))
    }
}

/// A row of history as far as the statistics are concerned, and what is known of its task beside it.
#[derive(Clone, Debug)]
pub struct Fact {
    /// The namespace.
    pub namespace: Arc<str>,
    /// The task.
    pub task: TaskId,
    /// Its lane.
    pub lane: Arc<Lane>,
    /// How its policy waits, where it has one.
    pub strategy: Option<&'static str>,
    /// Its cost.
    pub cost: u32,
    /// The events of the row.
    pub events: Vec<EventKind>,
    /// When the row was written.
    pub at: Timestamp,
    /// When the attempt started.
    pub started_at: Option<Timestamp>,
    /// The cycle.
    pub cycle: u32,
    /// The run.
    pub run: u32,
    /// Retries scheduled in this cycle.
    pub attempt: u32,
    /// How the attempt ended.
    pub outcome: Option<AttemptOutcome>,
    /// The failure.
    pub failure: Option<Failure>,
    /// The decision.
    pub decision: Option<Decision>,
    /// The failure before, where there was one and it was asked for.
    pub trouble: Option<EarlierFailure>,
}

/// The bad ends that a task had before something.
#[derive(Clone, Debug, PartialEq)]
pub struct EarlierFailure {
    /// The first of them.
    pub since: Timestamp,
    /// The last failure.
    pub failure: Failure,
    /// Its class.
    pub class: Option<Class>,
}

impl Fact {
    /// Whether a row of history adds anything at all.
    pub fn counts(events: &[EventKind], outcome: Option<AttemptOutcome>) -> bool {
        outcome.is_some() || gives_up(events)
    }

    /// Whether what went wrong before must be known to say what it adds.
    pub fn looks_back(run: u32, events: &[EventKind], outcome: Option<AttemptOutcome>) -> bool {
        match outcome {
            Some(AttemptOutcome::Succeeded) => run > 1,
            Some(AttemptOutcome::Failed | AttemptOutcome::Lost | AttemptOutcome::Throttled) => false,
            _ => run > 0 && gives_up(events),
        }
    }

    fn is_bad(&self) -> bool {
        matches!(self.outcome, Some(AttemptOutcome::Failed | AttemptOutcome::Lost | AttemptOutcome::Throttled))
    }

    fn attempt_number(&self) -> u32 {
        let before = self.decision.as_ref().map_or(self.attempt, |decision| decision.before.attempt);
        before.saturating_add(1).min(MOST_ATTEMPTS)
    }

    /// Nobody's retry, unless something went wrong before.
    fn origin(&self) -> Origin {
        match RetryKind::of(self.cycle, self.attempt_number()) {
            Some(RetryKind::Automatic) => Origin::Automatic,
            Some(RetryKind::Manual) => Origin::Manual,
            None => {
                let before = self.decision.as_ref().map(|decision| decision.before).unwrap_or_default();
                let again = before.lost > 0 || before.throttled > 0 || self.trouble.is_some();
                if again { Origin::Automatic } else { Origin::First }
            }
        }
    }

    /// Which error it is about: its own, or the one before it.
    fn error(&self) -> (Option<Class>, Option<&Failure>) {
        let own = self.failure.as_ref().filter(|_| self.is_bad());
        match (own, &self.trouble) {
            (Some(failure), _) => (self.decision.as_ref().and_then(|decision| decision.class), Some(failure)),
            (None, Some(trouble)) => (trouble.class, Some(&trouble.failure)),
            (None, None) => (None, None),
        }
    }

    fn cell(&self) -> Cell {
        let (class, failure) = self.error();
        Cell {
            kind: self.lane.kind.clone(),
            queue: self.lane.queue.clone(),
            dependency: self.lane.dependency.clone().unwrap_or_default(),
            strategy: self.strategy.unwrap_or("none").to_owned(),
            class,
            fingerprint: failure.map(|failure| fingerprint(&self.lane.kind, failure)),
            attempt: self.attempt_number(),
            origin: self.origin(),
        }
    }

    fn sums(&self) -> Sums {
        use AttemptOutcome::*;
        let mut sums = Sums::default();
        if let Some(outcome) = self.outcome {
            sums.add(Measure::from_outcome(outcome), 1);
            let ran = self.started_at.map_or(Millis::ZERO, |started| self.at.since(started));
            sums.add(Measure::RunMs, ran.0);
            let is_retry = self.origin() != Origin::First;
            let is_wasted = is_retry && matches!(outcome, Failed | Lost);
            if self.is_bad() && self.run <= 1 {
                sums.add(Measure::FirstFailed, 1);
            }
            if is_wasted {
                sums.add(Measure::Wasted, 1);
                sums.add(Measure::WastedMs, ran.0);
                sums.add(Measure::WastedCost, self.cost.into());
            }
            if is_retry && matches!(outcome, Succeeded | Failed | Lost) {
                sums.add(Measure::Cost, self.cost.into());
            }
            if let (Succeeded, true) = (outcome, is_retry) {
                sums.add(Measure::Recovered, 1);
                let took = self.trouble.as_ref().map(|trouble| self.at.since(trouble.since));
                if let Some(took) = took {
                    sums.add(Measure::RecoveryMs, took.0);
                    sums.add_recovery(took);
                }
            }
        }
        let verdict = self.decision.as_ref().map(|decision| decision.verdict);
        match verdict {
            Some(Verdict::Retry) => {
                sums.add(Measure::Retried, 1);
                let delay = self.decision.as_ref().and_then(|decision| decision.delay.as_ref());
                sums.add(Measure::DelayMs, delay.map_or(0, |delay| delay.total_ms));
            }
            Some(Verdict::Exhaust) => sums.add(Measure::GaveUp, 1),
            Some(Verdict::Refuse) => sums.add(Measure::Refused, 1),
            Some(Verdict::Park) => sums.add(Measure::Parked, 1),
            _ if gives_up(&self.events) => sums.add(Measure::GaveUp, 1),
            _ => {}
        }
        sums
    }

    fn news(&self) -> Option<(i64, GroupDelta)> {
        let (class, failure) = self.error();
        let failure = failure?;
        let mut news = GroupDelta {
            recovered: u64::from(self.outcome == Some(AttemptOutcome::Succeeded)),
            ..GroupDelta::default()
        };
        if self.is_bad() {
            news.see(self.task, self.run, self.at, &self.lane.kind, failure, class);
        }
        Some((fingerprint(&self.lane.kind, failure), news))
    }
}

/// Its deadline came while it waited.
fn gives_up(events: &[EventKind]) -> bool {
    events.iter().any(|kind| matches!(kind, EventKind::TaskRetryExhausted | EventKind::TaskExpired))
}

impl Measure {
    fn from_outcome(outcome: AttemptOutcome) -> Measure {
        match outcome {
            AttemptOutcome::Succeeded => Measure::Succeeded,
            AttemptOutcome::Failed => Measure::Failed,
            AttemptOutcome::Lost => Measure::Lost,
            AttemptOutcome::Throttled => Measure::Throttled,
            AttemptOutcome::Snoozed => Measure::Snoozed,
            AttemptOutcome::Released => Measure::Released,
            AttemptOutcome::Canceled => Measure::Canceled,
        }
    }
}

/// The start of the part of time that an instant is in.
pub fn bucket(at: Timestamp, span: Millis) -> Timestamp {
    let span = i64::try_from(span.0).unwrap_or(i64::MAX).max(1);
    Timestamp(at.0.div_euclid(span).saturating_mul(span))
}

/// The changes that a batch of history makes to sums and to error groups.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fold {
    /// Sums by namespace, quarter of an hour and cell.
    pub sums: BTreeMap<(Arc<str>, Timestamp, Cell), Sums>,
    /// Changes of error groups, by namespace and fingerprint.
    pub groups: BTreeMap<(Arc<str>, i64), GroupDelta>,
}

impl Fold {
    /// Adds one row of history.
    pub fn add(&mut self, fact: &Fact) {
        let place = (fact.namespace.clone(), bucket(fact.at, QUARTER), fact.cell());
        self.sums.entry(place).or_default().merge(&fact.sums());
        if let Some((number, news)) = fact.news() {
            self.groups.entry((fact.namespace.clone(), number)).or_default().merge(news);
        }
    }

    /// Adds many rows of history.
    pub fn of<'a>(facts: impl IntoIterator<Item = &'a Fact>) -> Fold {
        let mut fold = Fold::default();
        facts.into_iter().for_each(|fact| fold.add(fact));
        fold
    }

    /// As if both stretches had been one.
    pub fn merge(&mut self, later: Fold) {
        for (place, sums) in later.sums {
            self.sums.entry(place).or_default().merge(&sums);
        }
        for (place, news) in later.groups {
            self.groups.entry(place).or_default().merge(news);
        }
    }

    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.sums.is_empty() && self.groups.is_empty()
    }
}

#[cfg(test)]
mod tests;
