//! Counters of one namespace, and sums over several.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use comeback_core::{AttemptOutcome, Commit, EventKind, Executor, Reason, Record, State, Task, Trigger};
use comeback_store::Promote;
use parking_lot::Mutex;

use super::times::Times;
use super::{
    CallTally, KindTally, LAST_ATTEMPT, MOST_KINDS, MOST_SHOWN, OTHER, Tally, Took, add, between_us, read, trigger_of,
};

#[derive(Default)]
pub(super) struct KindCounters {
    /// In the order of `ENDS`: how long after their start tasks ended so.
    ended: [Times; ENDS.len()],
    pub waited: Times,
}

impl KindCounters {
    fn now(&self, kind: &str) -> KindTally {
        let ended = ENDS.iter().zip(&self.ended).map(|(state, times)| (*state, times.now()));
        let ended = ended.filter(|(_, took)| took.count() > 0).collect();
        KindTally { kind: kind.to_owned(), ended, waited: self.waited.now() }
    }
}

/// Calls that tell others of a task, by what they tell of.
#[derive(Default)]
pub(super) struct CallCounters {
    took: Times,
    succeeded: AtomicU64,
    failed: AtomicU64,
    pub spared: AtomicU64,
}

impl CallCounters {
    fn now(&self, trigger: &str) -> CallTally {
        CallTally {
            trigger: trigger.to_owned(),
            took: self.took.now(),
            succeeded: read(&self.succeeded),
            failed: read(&self.failed),
            spared: read(&self.spared),
        }
    }
}

/// Counts of one namespace.
#[derive(Default)]
pub(super) struct Tenant {
    events: Mutex<BTreeMap<EventKind, u64>>,
    by_strategy: Mutex<BTreeMap<String, u64>>,
    succeeded_at: [AtomicU64; LAST_ATTEMPT],
    failed_at: [AtomicU64; LAST_ATTEMPT],
    retried_at: [AtomicU64; LAST_ATTEMPT],
    timed_out: AtomicU64,
    delay_ms: AtomicU64,
    delays: AtomicU64,
    moves: Mutex<BTreeMap<(State, State), u64>>,
    kinds: Mutex<BTreeMap<String, Arc<KindCounters>>>,
    propagated: Mutex<BTreeMap<State, u64>>,
    pub with_needs: AtomicU64,
    unblocked: AtomicU64,
    failed_by_need: AtomicU64,
    dead_ends: AtomicU64,
    calls: Mutex<BTreeMap<&'static str, Arc<CallCounters>>>,
    pub made_already: AtomicU64,
    pub starting: AtomicU64,
    pub telling: AtomicU64,
}

impl Tenant {
    pub fn add(&self, kind: EventKind, count: u64) {
        if count > 0 {
            *self.events.lock().entry(kind).or_default() += count;
        }
    }

    /// Counts due tasks.
    pub fn due(&self, what: Promote, count: u64) {
        if count == 0 {
            return;
        }
        match what {
            Promote::Retries => {
                tracing::debug!(count, "retries are due");
                self.add(EventKind::TaskRetryDue, count);
                self.moved(State::RetryPending, State::Pending, count);
            }
            Promote::Starts => {
                tracing::debug!(count, "first starts are due");
                self.moved(State::Waiting, State::Pending, count);
            }
        }
    }

    pub fn moved(&self, from: State, to: State, count: u64) {
        if count > 0 {
            *self.moves.lock().entry((from, to)).or_default() += count;
        }
    }

    pub fn kind(&self, name: &str) -> Arc<KindCounters> {
        let mut kinds = self.kinds.lock();
        if let Some(known) = kinds.get(name) {
            return known.clone();
        }
        let name = if kinds.len() < MOST_KINDS { name } else { OTHER };
        kinds.entry(name.to_owned()).or_default().clone()
    }

    pub fn calls(&self, trigger: &str) -> Arc<CallCounters> {
        let known = super::TRIGGERS.iter().find(|it| **it == trigger).copied().unwrap_or(OTHER);
        self.calls.lock().entry(known).or_default().clone()
    }

    /// Counts a commit. Starts and due times are counted where they happen.
    pub fn count(&self, commit: &Commit) {
        let elsewhere = [EventKind::TaskReady, EventKind::TaskRetryDue, EventKind::AttemptStarted];
        for record in &commit.records {
            for kind in record.events.iter().filter(|kind| !elsewhere.contains(kind)) {
                self.add(*kind, 1);
            }
            self.count_run(record);
        }
        let cause = commit.writes.first().map(|write| (write.after.id, write.after.state));
        for write in &commit.writes {
            let task = &write.after;
            if write.from != task.state {
                self.moved(write.from, task.state, 1);
            }
            if write.from.is_open() && task.state.is_terminal() {
                self.count_end(task, &commit.records);
            }
            self.count_call(task, &commit.records);
            // What comes first in a commit is what happened; the rest follows from it.
            if let Some((_, end)) = cause.filter(|(cause, end)| *cause != task.id && end.is_terminal()) {
                *self.propagated.lock().entry(end).or_default() += 1;
                if write.from == State::Waiting && task.state == State::Pending {
                    add(&self.unblocked, 1);
                }
            }
        }
    }

    fn count_run(&self, record: &Record) {
        let Some(outcome) = record.outcome else { return };
        let before = record.decision.as_ref().map_or(record.attempt, |decision| decision.before.attempt);
        let place = (before as usize).min(LAST_ATTEMPT - 1);
        match outcome {
            AttemptOutcome::Succeeded => add(&self.succeeded_at[place], 1),
            AttemptOutcome::Failed => add(&self.failed_at[place], 1),
            _ => {}
        }
        if record.failure.as_ref().is_some_and(|failure| failure.trigger == Trigger::Timeout) {
            add(&self.timed_out, 1);
        }
        if record.events.contains(&EventKind::TaskRetryScheduled) {
            add(&self.retried_at[place], 1);
        }
        if let Some(delay) = record.decision.as_ref().and_then(|decision| decision.delay.as_ref()) {
            *self.by_strategy.lock().entry(delay.strategy.clone()).or_default() += 1;
            add(&self.delay_ms, delay.total_ms);
            add(&self.delays, 1);
        }
    }

    fn count_end(&self, task: &Task, records: &[Record]) {
        let kind = self.kind(&task.lane.kind);
        let took = run_of(task, records).map_or(0, took_us);
        if let Some(place) = ENDS.iter().position(|end| *end == task.state) {
            kind.ended[place].add_us(took);
        }
        match task.reason {
            Some(Reason::UpstreamFailed | Reason::UpstreamUnmet) if task.state == State::Failed => {
                add(&self.failed_by_need, 1);
            }
            Some(Reason::DeadEnd) => add(&self.dead_ends, 1),
            _ => {}
        }
    }

    /// Of the calls that tell of a task each is a task of its own.
    fn count_call(&self, task: &Task, records: &[Record]) {
        let Some(trigger) = trigger_of(&task.lane.kind).filter(|_| task.lane.executor == Executor::Http) else {
            return;
        };
        let Some(record) = run_of(task, records) else { return };
        self.called(trigger, took_us(record), record.outcome == Some(AttemptOutcome::Succeeded));
    }

    /// A call was answered.
    pub fn called(&self, trigger: &str, us: u64, well: bool) {
        let calls = self.calls(trigger);
        calls.took.add_us(us);
        add(if well { &calls.succeeded } else { &calls.failed }, 1);
    }
}

/// Counts of several namespaces together.
#[derive(Default)]
pub(super) struct Sum {
    tally: Tally,
    kinds: BTreeMap<String, KindTally>,
    calls: BTreeMap<&'static str, CallTally>,
}

impl Sum {
    pub fn add(&mut self, tenant: &Tenant) {
        let tally = &mut self.tally;
        merge(&mut tally.events, &tenant.events.lock());
        merge(&mut tally.retries_by_strategy, &tenant.by_strategy.lock());
        merge(&mut tally.moves, &tenant.moves.lock());
        merge(&mut tally.propagated, &tenant.propagated.lock());
        for (sum, of) in [
            (&mut tally.succeeded_at, &tenant.succeeded_at),
            (&mut tally.failed_at, &tenant.failed_at),
            (&mut tally.retried_at, &tenant.retried_at),
        ] {
            sum.resize(LAST_ATTEMPT, 0);
            sum.iter_mut().zip(of).for_each(|(sum, of)| *sum += read(of));
        }
        for (sum, of) in [
            (&mut tally.timed_out, &tenant.timed_out),
            (&mut tally.delay_ms, &tenant.delay_ms),
            (&mut tally.delays, &tenant.delays),
            (&mut tally.with_needs, &tenant.with_needs),
            (&mut tally.unblocked, &tenant.unblocked),
            (&mut tally.failed_by_need, &tenant.failed_by_need),
            (&mut tally.dead_ends, &tenant.dead_ends),
            (&mut tally.calls_made_already, &tenant.made_already),
            (&mut tally.starting, &tenant.starting),
            (&mut tally.telling, &tenant.telling),
        ] {
            *sum += read(of);
        }
        let kinds: Vec<KindTally> = tenant.kinds.lock().iter().map(|(kind, of)| of.now(kind)).collect();
        kinds.into_iter().for_each(|kind| add_kind(&mut self.kinds, kind));
        let calls: Vec<_> = tenant.calls.lock().iter().map(|(trigger, of)| (*trigger, of.now(trigger))).collect();
        for (trigger, call) in calls {
            match self.calls.get_mut(trigger) {
                None => drop(self.calls.insert(trigger, call)),
                Some(sum) => {
                    sum.took.add(&call.took);
                    sum.succeeded += call.succeeded;
                    sum.failed += call.failed;
                    sum.spared += call.spared;
                }
            }
        }
    }

    /// Kinds beyond those that a page tells apart are summed up, the rarest first.
    pub fn into_tally(self) -> Tally {
        let Sum { mut tally, kinds, calls } = self;
        let mut kinds: Vec<KindTally> = kinds.into_values().collect();
        if kinds.len() > MOST_SHOWN {
            kinds.sort_by_key(|it| (it.kind == OTHER, std::cmp::Reverse(it.waited.count())));
            let mut few: BTreeMap<String, KindTally> = BTreeMap::new();
            for (n, mut kind) in kinds.into_iter().enumerate() {
                if n + 1 >= MOST_SHOWN {
                    kind.kind = OTHER.to_owned();
                }
                add_kind(&mut few, kind);
            }
            kinds = few.into_values().collect();
        }
        tally.kinds = kinds;
        tally.calls = calls.into_values().collect();
        for attempts in [&mut tally.succeeded_at, &mut tally.failed_at, &mut tally.retried_at] {
            attempts.resize(LAST_ATTEMPT, 0);
        }
        tally
    }
}

fn merge<K: Ord + Clone>(sum: &mut BTreeMap<K, u64>, of: &BTreeMap<K, u64>) {
    for (key, count) in of {
        *sum.entry(key.clone()).or_default() += count;
    }
}

fn add_kind(sum: &mut BTreeMap<String, KindTally>, kind: KindTally) {
    match sum.get_mut(&kind.kind) {
        None => drop(sum.insert(kind.kind.clone(), kind)),
        Some(known) => {
            known.waited.add(&kind.waited);
            for (state, took) in kind.ended {
                known.ended.entry(state).or_insert_with(Took::default).add(&took);
            }
        }
    }
}

/// The record of how a run of this task ended.
fn run_of<'a>(task: &Task, records: &'a [Record]) -> Option<&'a Record> {
    records.iter().find(|record| record.subject == task.id.0 && record.outcome.is_some())
}

fn took_us(record: &Record) -> u64 {
    record.started_at.map_or(0, |started| between_us(started, record.at))
}

const ENDS: [State; 5] = [State::Succeeded, State::Failed, State::Dead, State::Canceled, State::Skipped];
