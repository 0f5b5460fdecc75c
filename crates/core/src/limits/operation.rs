//! Bulk operations: one act on many tasks, in a fixed order, each task once. Here is what is asked for, how far it has come, what
//! comes next, and when it stops; the acts themselves are those of single tasks.
//!
//! Over 500 lines: the actions of a bulk operation, their checks and their undo are one table.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::id::TaskId;
use crate::invalid::Invalid;
use crate::task::{State, Task};
use crate::time::{Millis, Timestamp};
use crate::transition::Actor;
use crate::words::words;

pub use crate::task::undo::UndoSnapshot;

words! {
    /// The action on each task.
    pub enum Action {
        Retry = 0 "retry",
        Cancel = 1 "cancel",
        Pause = 2 "pause",
        Resume = 3 "resume",
        Reschedule = 4 "reschedule",
    }
}

words! {
    /// The state of a bulk operation.
    pub enum OperationState {
        Running = 0 "running",
        /// Every task was dealt with.
        Done = 1 "done",
        /// By a person; what was not done stays undone.
        Aborted = 2 "aborted",
        /// By its own condition.
        Stopped = 3 "stopped",
        Undoing = 4 "undoing",
        Undone = 5 "undone",
    }
}

impl OperationState {
    /// Whether there is something left to do for whoever works it off.
    pub const fn is_open(self) -> bool {
        matches!(self, OperationState::Running | OperationState::Undoing)
    }
}

words! {
    /// Why a task is left as it is.
    pub enum Exclusion {
        WrongState = 0 "wrong_state",
        NoCredits = 1 "no_credits",
        DeadlinePassed = 2 "deadline_passed",
        /// There is none of that id, or it is not the caller's; nobody is told which.
        NotFound = 3 "not_found",
        /// Another open task holds its dedupe key.
        KeyTaken = 4 "key_taken",
        /// Somebody else changed it all the time.
        Conflict = 5 "conflict",
        /// The stored data about it contradicts itself.
        Damaged = 6 "damaged",
        /// It has run since, so there is nothing to take back.
        Started = 7 "started",
        /// Something else has happened to it since.
        Changed = 8 "changed",
        /// The action on it cannot be undone.
        Definitive = 9 "definitive",
    }
}

impl Exclusion {
    /// Why an operation on a task is not undone.
    pub fn of_undo(was: &UndoSnapshot, task: &Task) -> Exclusion {
        if was.has_run_since(task) { Exclusion::Started } else { Exclusion::Changed }
    }
}

/// The longest an operation may smear what it does, or wait between waves.
pub const MOST_SPREAD: Millis = Millis::from_days(30);
/// The longest pause between waves.
pub const MOST_PAUSE: Millis = Millis::from_days(1);
/// As many as one operation may touch.
pub const MOST_TASKS: u32 = 1_000_000;
/// Ids that are named for each reason.
const SAMPLE: usize = 5;

/// The request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The action on each task.
    pub action: Action,
    /// As it was written; it was asked once, when the operation began.
    pub filter: Option<String>,
    /// Whether a retry keeps the counters.
    #[serde(default)]
    pub keep_counters: bool,
    /// Over which the retries are smeared.
    pub spread: Option<Millis>,
    /// The waves, if it goes in waves.
    pub waves: Option<Waves>,
    /// Whereto the due times are moved.
    pub to: Option<Timestamp>,
    /// The actor.
    pub by: Option<String>,
    /// A note for the audit log.
    pub note: Option<String>,
    /// The name of the actor's API key.
    pub key: Option<String>,
    /// The id of that key.
    #[serde(default)]
    pub key_id: Option<String>,
    /// The id of the request.
    pub request: Option<String>,
}

/// A few first, and the next ones when it is known what came of those.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Waves {
    /// The first wave.
    pub canary: u32,
    /// Of every later one; without it each is twice the one before.
    pub size: Option<u32>,
    /// Between a wave and the next, at least.
    #[serde(default)]
    pub pause: Millis,
    /// When to stop.
    pub stop_if: Option<StopIf>,
}

/// The condition that stops an operation after a wave.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct StopIf {
    /// The part of a wave, from 0 to 1, that may fail.
    pub failed_over: f64,
    /// Only those count that fail in the same way as most do.
    #[serde(default)]
    pub same_fingerprint: bool,
}

impl Plan {
    /// A plan without options.
    pub fn new(action: Action) -> Plan {
        Plan {
            action,
            filter: None,
            keep_counters: false,
            spread: None,
            waves: None,
            to: None,
            by: None,
            note: None,
            key: None,
            key_id: None,
            request: None,
        }
    }

    /// Faults of the plan, by field.
    pub fn check(&self) -> Invalid {
        let mut faults = Invalid::default();
        let retries = self.action == Action::Retry;
        let moves = self.action == Action::Reschedule;
        if self.keep_counters && !retries {
            faults.push("keep_counters", "belongs to `retry`");
        }
        if self.to.is_some() != moves {
            faults.push(
                "at",
                if moves { "is missing: `at` or `delay` says where to" } else { "belongs to `reschedule`" },
            );
        }
        if let Some(spread) = self.spread {
            if !retries && !moves {
                faults.push("spread", "belongs to `retry` and `reschedule`");
            }
            if spread > MOST_SPREAD {
                faults.push("spread", format!("may be {MOST_SPREAD} at most"));
            }
        }
        if let Some(waves) = &self.waves {
            if !retries {
                faults.push("waves", "belongs to `retry`");
            }
            if self.spread.is_some() {
                faults.push("waves", "and `spread` do not go together");
            }
            faults.absorb("waves", waves.check());
        }
        faults
    }

    /// When the task at a place is due, where that is not at once. The places share the span evenly, whoever works them off.
    pub fn due(&self, place: u32, total: u32, began_at: Timestamp) -> Option<Timestamp> {
        let from = self.to.unwrap_or(began_at);
        match self.spread {
            Some(span) => Some(from + share(span, place, total)),
            None => self.to,
        }
    }

    /// Whether there is no time left for what is asked: it would come after the task's deadline.
    pub fn is_too_late(&self, task: &Task, to: Option<Timestamp>, now: Timestamp) -> bool {
        let Some(deadline) = task.expires_at else { return false };
        match self.action {
            Action::Reschedule => to.is_some_and(|to| to > deadline),
            Action::Resume => deadline <= now && !task.parked && task.paused_from.is_some_and(|from| !from.is_active()),
            Action::Retry | Action::Cancel | Action::Pause => false,
        }
    }

    /// The actor of each change.
    pub fn act(&self, operation: Uuid) -> Actor {
        let (by, note, key, request) = (self.by.clone(), self.note.clone(), self.key.clone(), self.request.clone());
        Actor { by, note, key, key_id: self.key_id.clone(), request, operation: Some(operation), once: None }
    }
}

fn share(span: Millis, place: u32, total: u32) -> Millis {
    let share = u128::from(span.0) * u128::from(place) / u128::from(total.max(1));
    Millis(u64::try_from(share).unwrap_or(span.0))
}

impl Waves {
    fn check(&self) -> Invalid {
        let mut faults = Invalid::default();
        if self.canary == 0 {
            faults.push("canary", "must be 1 at least");
        }
        if self.size == Some(0) {
            faults.push("size", "must be 1 at least");
        }
        if self.pause > MOST_PAUSE {
            faults.push("pause", format!("may be {MOST_PAUSE} at most"));
        }
        if self.stop_if.is_some_and(|stop| !(0.0..=1.0).contains(&stop.failed_over)) {
            faults.push("stop_if.failed_over", "must be from 0 to 1");
        }
        faults
    }

    /// How many are in a wave, the canary being number 0.
    pub fn size_of(&self, number: u32) -> u32 {
        match (number, self.size) {
            (0, _) => self.canary,
            (_, Some(size)) => size,
            (_, None) => self.canary.saturating_mul(2_u32.saturating_pow(number)),
        }
    }
}

/// How far an operation has come.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Standing {
    /// The first place that was not dealt with.
    pub next: u32,
    /// Tasks that were left alone, by reason.
    pub excluded: Vec<Excluded>,
    /// The present wave.
    pub wave: Option<Wave>,
    /// The waves that are over.
    pub waves: Vec<WaveEnd>,
    /// Taking back what was done.
    pub undo: Option<Undoing>,
}

/// The progress of an undo.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Undoing {
    /// The first place that was not dealt with.
    pub next: u32,
    /// Tasks that could not be undone.
    pub kept: Vec<Excluded>,
}

/// Tasks that are left alone for the same reason.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Excluded {
    /// The reason.
    pub why: Exclusion,
    /// In which they were, where that is the reason.
    pub state: Option<State>,
    /// How many.
    pub count: u32,
    /// The first of them.
    pub sample: Vec<TaskId>,
}

/// The wave that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wave {
    /// The number of the wave, from 0.
    pub number: u32,
    /// Its first place, and the first behind it.
    pub from: u32,
    /// The first place behind it.
    pub to: u32,
    /// When the last of it was dealt with.
    pub sent_at: Option<Timestamp>,
}

/// The result of a wave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaveEnd {
    /// The number of the wave, from 0.
    pub number: u32,
    /// Its tasks.
    pub tasks: u32,
    /// Tasks that succeeded.
    pub succeeded: u32,
    /// Tasks that failed.
    pub failed: u32,
    /// Of the failures, those that are alike and most.
    pub alike: u32,
    /// The error group of the failures that are alike.
    pub fingerprint: Option<i64>,
}

/// The next step of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Deal with these places.
    Work {
        /// The first place.
        from: u32,
        /// The first place behind them.
        to: u32,
    },
    /// Look what became of these.
    Watch(Wave),
    /// No task is left.
    Over,
}

impl Standing {
    /// The beginning of an operation on so many tasks.
    pub fn new(plan: &Plan, total: u32) -> Standing {
        let wave = |waves: &Waves| Wave { number: 0, from: 0, to: waves.canary.min(total), sent_at: None };
        Standing { wave: plan.waves.as_ref().map(wave), ..Standing::default() }
    }

    /// The next step.
    pub fn what_next(&self, total: u32) -> Next {
        let to = self.wave.map_or(total, |wave| wave.to);
        match self.wave {
            _ if self.next >= total => Next::Over,
            Some(wave) if self.next >= wave.to => Next::Watch(wave),
            _ => Next::Work { from: self.next, to },
        }
    }

    /// The wave that is under way is over, and the next one begins.
    pub fn next_wave(&mut self, waves: &Waves, ended: WaveEnd, total: u32) {
        let Some(wave) = self.wave else { return };
        let number = wave.number + 1;
        let to = wave.to.saturating_add(waves.size_of(number)).min(total);
        self.waves.push(ended);
        self.wave = Some(Wave { number, from: wave.to, to, sent_at: None });
    }
}

/// Counts one that is left alone.
pub fn exclude(list: &mut Vec<Excluded>, why: Exclusion, state: Option<State>, task: TaskId) {
    let place = list.iter().position(|it| it.why == why && it.state == state);
    let place = place.unwrap_or_else(|| {
        list.push(Excluded { why, state, count: 0, sample: Vec::new() });
        list.len() - 1
    });
    if let Some(it) = list.get_mut(place) {
        it.count += 1;
        if it.sample.len() < SAMPLE {
            it.sample.push(task);
        }
    }
}

/// The state of a task since an operation retried it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// It succeeded.
    Succeeded,
    /// At a try at least, whether its policy goes on or not.
    Failed(Option<i64>),
    /// It has not ended yet.
    NotYet,
    /// Somebody else has taken it elsewhere.
    Gone,
}

impl Seen {
    /// The state of a task beside its snapshot.
    pub fn of(task: &Task, was: &UndoSnapshot) -> Seen {
        match task.state {
            _ if task.cycle != was.cycle + 1 => Seen::Gone,
            State::Succeeded => Seen::Succeeded,
            State::Canceled | State::Skipped => Seen::Gone,
            // A new cycle begins without an error.
            _ if task.class.is_some() || task.state.is_terminal() => Seen::Failed(task.fingerprint),
            _ => Seen::NotYet,
        }
    }
}

/// The judgement of a wave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judged {
    /// The result of some is not known yet.
    Wait,
    /// The next wave may follow.
    Go(WaveEnd),
    /// The operation stops.
    Stop(WaveEnd),
}

/// Whether another wave may follow. Too many failures are too many, whatever becomes of the rest.
pub fn judge(wave: Wave, stop_if: Option<&StopIf>, seen: &[Seen]) -> Judged {
    let mut ways: BTreeMap<Option<i64>, u32> = BTreeMap::new();
    let (mut succeeded, mut failed, mut not_yet) = (0, 0, 0);
    for it in seen {
        match it {
            Seen::Succeeded => succeeded += 1,
            Seen::Failed(fingerprint) => {
                failed += 1;
                *ways.entry(*fingerprint).or_default() += 1;
            }
            Seen::NotYet => not_yet += 1,
            Seen::Gone => {}
        }
    }
    let most = ways.iter().max_by_key(|(fingerprint, count)| (**count, std::cmp::Reverse(**fingerprint)));
    let (fingerprint, alike) = most.map_or((None, 0), |(fingerprint, count)| (*fingerprint, *count));
    let tasks = u32::try_from(seen.len()).unwrap_or(u32::MAX);
    let end = WaveEnd { number: wave.number, tasks, succeeded, failed, alike, fingerprint };
    let too_many = |stop: &StopIf| {
        let counted = if stop.same_fingerprint { alike } else { failed };
        f64::from(counted) > stop.failed_over * f64::from(tasks)
    };
    match stop_if {
        Some(stop) if too_many(stop) => Judged::Stop(end),
        _ if not_yet > 0 => Judged::Wait,
        _ => Judged::Go(end),
    }
}

/// A step of an operation, stored with the change it makes: a task is changed and marked, or neither.
#[derive(Clone, Debug, PartialEq)]
pub struct Mark {
    /// The operation.
    pub operation: Uuid,
    /// The task.
    pub task: TaskId,
    /// As it was before; nothing where the step is taken back.
    pub was: Option<UndoSnapshot>,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const T0: Timestamp = Timestamp(1_000_000);

    fn spread(span: u64) -> Plan {
        Plan { spread: Some(Millis(span)), ..Plan::new(Action::Retry) }
    }

    fn waves(canary: u32, size: Option<u32>) -> Waves {
        Waves { canary, size, pause: Millis::ZERO, stop_if: None }
    }

    #[test]
    fn what_does_not_go_together_is_refused() {
        let paths = |plan: Plan| plan.check().faults.into_iter().map(|fault| fault.path).collect::<Vec<_>>();
        let new = Plan::new;
        assert!(paths(new(Action::Retry)).is_empty());
        assert_eq!(paths(new(Action::Reschedule)), ["at"]);
        assert_eq!(paths(Plan { to: Some(T0), ..new(Action::Cancel) }), ["at"]);
        assert_eq!(paths(Plan { keep_counters: true, ..new(Action::Pause) }), ["keep_counters"]);
        assert_eq!(paths(Plan { spread: Some(Millis(1)), ..new(Action::Cancel) }), ["spread"]);
        assert_eq!(paths(spread(MOST_SPREAD.0 + 1)), ["spread"]);
        assert_eq!(paths(Plan { waves: Some(waves(1, None)), ..spread(5) }), ["waves"]);
        assert_eq!(paths(Plan { waves: Some(waves(1, None)), ..new(Action::Pause) }), ["waves"]);
        let stop_if = Some(StopIf { failed_over: 1.5, same_fingerprint: false });
        let bad = Waves { canary: 0, size: Some(0), pause: MOST_PAUSE + Millis(1), stop_if };
        let all = ["waves.canary", "waves.size", "waves.pause", "waves.stop_if.failed_over"];
        assert_eq!(paths(Plan { waves: Some(bad), ..new(Action::Retry) }), all);
    }

    #[test]
    fn waves_double_or_are_of_one_size() {
        let sizes = |waves: Waves| (0..4).map(|number| waves.size_of(number)).collect::<Vec<_>>();
        assert_eq!(sizes(waves(10, None)), [10, 20, 40, 80]);
        assert_eq!(sizes(waves(10, Some(25))), [10, 25, 25, 25]);
        assert_eq!(waves(u32::MAX, None).size_of(40), u32::MAX);
    }

    #[test]
    fn a_wave_is_judged_by_what_came_of_it() {
        use Seen::*;
        let word = |stop_if: Option<StopIf>, seen: &[Seen]| {
            let wave = Wave { number: 1, from: 0, to: 5, sent_at: None };
            match judge(wave, stop_if.as_ref(), seen) {
                Judged::Wait => "wait",
                Judged::Go(_) => "go",
                Judged::Stop(_) => "stop",
            }
        };
        let over = |failed_over, same_fingerprint| Some(StopIf { failed_over, same_fingerprint });
        let two_ways = [Failed(Some(1)), Failed(Some(2)), Succeeded, Succeeded, Succeeded];
        for (stop_if, seen, expected) in [
            (None, vec![Failed(None), Failed(None)], "go"),
            (None, vec![Succeeded, NotYet], "wait"),
            (over(0.2, false), vec![], "go"),
            (over(0.2, false), vec![Succeeded, Gone], "go"),
            (over(0.2, false), two_ways.to_vec(), "stop"),
            // A fifth of them fails the same way, which is not over 20 %.
            (over(0.2, true), two_ways.to_vec(), "go"),
            (over(0.2, true), vec![Failed(Some(1)), Failed(Some(1)), Succeeded, NotYet, NotYet], "stop"),
            (over(0.2, true), vec![Failed(Some(1)), Succeeded, NotYet, NotYet, NotYet], "wait"),
            (over(0.0, true), vec![Failed(None), NotYet], "stop"),
            (over(1.0, false), vec![Failed(None), Failed(None)], "go"),
        ] {
            assert_eq!(word(stop_if, &seen), expected, "{stop_if:?} {seen:?}");
        }
    }

    #[test]
    fn reasons_are_counted_and_the_first_tasks_named() {
        let mut list = Vec::new();
        let id = |n: u128| TaskId(Uuid::from_u128(n));
        for n in 0..9 {
            exclude(&mut list, Exclusion::WrongState, Some(State::Running), id(n));
        }
        exclude(&mut list, Exclusion::WrongState, Some(State::Succeeded), id(20));
        exclude(&mut list, Exclusion::NotFound, None, id(30));
        assert_eq!(list.iter().map(|it| it.count).collect::<Vec<_>>(), [9, 1, 1]);
        assert_eq!(list[0].sample, (0..5).map(id).collect::<Vec<_>>());
    }

    proptest! {
        /// In order, inside the span, and no two of them further apart than their share, whatever the numbers.
        #[test]
        fn a_spread_is_even(span in 0..MOST_SPREAD.0, total in 1..5_000_u32) {
            let plan = spread(span);
            let at = |place| plan.due(place, total, T0).map(|at| at.since(T0).0).unwrap_or_default();
            prop_assert_eq!(at(0), 0);
            for place in 1..total {
                let step = at(place) - at(place - 1);
                prop_assert!(step >= span / u64::from(total) && step <= span / u64::from(total) + 1);
            }
            prop_assert!(at(total - 1) <= span);
        }

        /// Every place is dealt with once, in order, in waves that join without a gap.
        #[test]
        fn waves_cover_every_place_once(canary in 1..50_u32, size in prop::option::of(1..90_u32), total in 0..2_000_u32) {
            let plan = Plan { waves: Some(waves(canary, size)), ..Plan::new(Action::Retry) };
            let mut standing = Standing::new(&plan, total);
            let mut dealt = 0;
            loop {
                match standing.what_next(total) {
                    Next::Over => break,
                    Next::Work { from, to } => {
                        prop_assert_eq!(from, dealt);
                        prop_assert!(to > from && to <= total);
                        let at = standing.wave.unwrap();
                        prop_assert!(to - at.from <= waves(canary, size).size_of(at.number));
                        standing.next = to;
                        dealt = to;
                    }
                    Next::Watch(wave) => {
                        prop_assert_eq!(wave.to, dealt);
                        let Judged::Go(end) = judge(wave, None, &[]) else { panic!("nothing holds it") };
                        standing.next_wave(&waves(canary, size), end, total);
                    }
                }
            }
            prop_assert_eq!(dealt, total);
        }
    }
}
