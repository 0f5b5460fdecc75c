//! Counts what this process has stored, for those who watch it. Nothing is decided by these numbers.

mod times;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Instant;

use comeback_core::{AttemptOutcome, Commit, EventKind, Executor, Reason, Record, State, Task, Timestamp, Trigger};
use comeback_store::{Claimed, Loop, Promote, Running, StoreError, Submission};
use parking_lot::Mutex;

use times::Times;
pub use times::{BOUNDS_MS, Took};

/// Attempts from this one on are counted together.
pub const LAST_ATTEMPT: usize = 10;
/// Kinds beyond these are counted together: names are for everybody to invent, and each is kept until this process ends.
const MOST_KINDS: usize = 200;
const OTHER_KINDS: &str = "other";
/// Statements that take longer are told apart.
const SLOW_US: u64 = 500_000;

/// What the engine asks of the store again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Query {
    Submit,
    Claim,
    Apply,
    Heartbeat,
    Count,
    Promote,
    Prune,
    Load,
}

impl Query {
    pub const ALL: [Query; 8] = [
        Query::Submit,
        Query::Claim,
        Query::Apply,
        Query::Heartbeat,
        Query::Count,
        Query::Promote,
        Query::Prune,
        Query::Load,
    ];

    pub fn word(self) -> &'static str {
        match self {
            Query::Submit => "submit",
            Query::Claim => "claim",
            Query::Apply => "apply",
            Query::Heartbeat => "heartbeat",
            Query::Count => "count",
            Query::Promote => "promote",
            Query::Prune => "prune",
            Query::Load => "load",
        }
    }
}

#[derive(Default)]
struct Asked {
    took: Times,
    slow: AtomicU64,
    failed: AtomicU64,
}

#[derive(Default)]
struct OfKind {
    /// In the order of `ENDS`: how long after their start tasks ended so.
    ended: [Times; ENDS.len()],
    waited: Times,
}

const ENDS: [State; 5] = [State::Succeeded, State::Failed, State::Dead, State::Canceled, State::Skipped];

impl OfKind {
    fn now(&self, kind: &str) -> KindTally {
        let ended = ENDS.iter().zip(&self.ended).map(|(state, times)| (*state, times.now()));
        let ended = ended.filter(|(_, took)| took.count() > 0).collect();
        KindTally { kind: kind.to_owned(), ended, waited: self.waited.now() }
    }
}

#[derive(Default)]
struct OfLoop {
    took: Times,
    moved: AtomicU64,
    failed: AtomicU64,
    /// In milliseconds; 0 where it never did.
    looked_at: AtomicI64,
}

/// Calls that tell others of a task, by what they tell of.
#[derive(Default)]
struct OfCalls {
    took: Times,
    succeeded: AtomicU64,
    failed: AtomicU64,
    spared: AtomicU64,
}

impl OfCalls {
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

#[derive(Default)]
pub struct Tallies {
    events: Mutex<BTreeMap<EventKind, u64>>,
    by_strategy: Mutex<BTreeMap<String, u64>>,
    succeeded_at: [AtomicU64; LAST_ATTEMPT],
    failed_at: [AtomicU64; LAST_ATTEMPT],
    retried_at: [AtomicU64; LAST_ATTEMPT],
    timed_out: AtomicU64,
    delay_ms: AtomicU64,
    delays: AtomicU64,
    moves: Mutex<BTreeMap<(State, State), u64>>,
    kinds: Mutex<BTreeMap<String, Arc<OfKind>>>,
    propagated: Mutex<BTreeMap<State, u64>>,
    with_needs: AtomicU64,
    unblocked: AtomicU64,
    failed_by_need: AtomicU64,
    dead_ends: AtomicU64,
    calls: Mutex<BTreeMap<String, Arc<OfCalls>>>,
    made_already: AtomicU64,
    starting: AtomicU64,
    telling: AtomicU64,
    loops: [OfLoop; Loop::ALL.len()],
    pruned: AtomicU64,
    queries: [Asked; Query::ALL.len()],
}

/// The numbers at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tally {
    pub events: BTreeMap<EventKind, u64>,
    pub retries_by_strategy: BTreeMap<String, u64>,
    /// By attempt number, from 1.
    pub succeeded_at: Vec<u64>,
    pub failed_at: Vec<u64>,
    /// Retries that were scheduled after it.
    pub retried_at: Vec<u64>,
    pub timed_out: u64,
    /// Of all retries that were scheduled, together.
    pub delay_ms: u64,
    pub delays: u64,
    pub moves: BTreeMap<(State, State), u64>,
    pub kinds: Vec<KindTally>,
    /// Neighbours that the end of a task moved, by that end.
    pub propagated: BTreeMap<State, u64>,
    /// Tasks that were submitted with needs.
    pub with_needs: u64,
    pub unblocked: u64,
    pub failed_by_need: u64,
    pub dead_ends: u64,
    pub calls: Vec<CallTally>,
    /// Late calls that somebody else had just made.
    pub calls_made_already: u64,
    /// Start calls that wait for their answer.
    pub starting: u64,
    /// Calls that tell of a task and wait for theirs.
    pub telling: u64,
    pub loops: Vec<LoopTally>,
    pub pruned: u64,
    pub queries: Vec<QueryTally>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct KindTally {
    pub kind: String,
    pub ended: BTreeMap<State, Took>,
    pub waited: Took,
}

#[derive(Clone, Debug, PartialEq)]
pub struct CallTally {
    /// Start, end, cancel or retry.
    pub trigger: String,
    pub took: Took,
    pub succeeded: u64,
    pub failed: u64,
    /// Calls that were not made again, because they were made.
    pub spared: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct LoopTally {
    pub name: Loop,
    pub took: Took,
    pub moved: u64,
    pub failed: u64,
    /// When it last looked whether there is anything to do, here.
    pub looked_at: Option<Timestamp>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct QueryTally {
    pub query: Query,
    pub took: Took,
    pub slow: u64,
    pub failed: u64,
}

fn add(counter: &AtomicU64, count: u64) {
    if count > 0 {
        counter.fetch_add(count, Ordering::Relaxed);
    }
}

fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

fn between_us(from: comeback_core::Timestamp, to: comeback_core::Timestamp) -> u64 {
    to.since(from).0.saturating_mul(1_000)
}

impl Tallies {
    pub fn add(&self, kind: EventKind, count: u64) {
        if count > 0 {
            *self.events.lock().entry(kind).or_default() += count;
        }
    }

    pub fn submitted(&self, batch: &[Submission], created: u64) {
        self.add(EventKind::TaskCreated, created);
        let edges = batch.iter().flat_map(|submission| &submission.edges);
        let mut needing: Vec<_> = edges.map(|edge| edge.to).collect();
        needing.sort_unstable();
        needing.dedup();
        add(&self.with_needs, needing.len() as u64);
    }

    pub fn claimed<'a>(&self, claimed: impl Iterator<Item = &'a Claimed>) {
        let (mut started, mut promoted) = (0, 0);
        for it in claimed {
            let task = &it.stored.task;
            started += 1;
            promoted += u64::from(it.promoted);
            if let (Some(since), Some(at)) = (ready_since(task), task.lease.as_ref().map(|_| task.updated_at)) {
                self.kind(&task.lane.kind).waited.add_us(between_us(since, at));
            }
        }
        self.add(EventKind::AttemptStarted, started);
        self.moved(State::Pending, State::Running, started);
        self.due(Promote::Retries, promoted);
    }

    /// The time of so many has come.
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

    fn kind(&self, name: &str) -> Arc<OfKind> {
        let mut kinds = self.kinds.lock();
        if let Some(known) = kinds.get(name) {
            return known.clone();
        }
        let name = if kinds.len() < MOST_KINDS { name } else { OTHER_KINDS };
        kinds.entry(name.to_owned()).or_default().clone()
    }

    fn calls(&self, trigger: &str) -> Arc<OfCalls> {
        self.calls.lock().entry(trigger.to_owned()).or_default().clone()
    }

    /// What a commit tells. Starts and due times are counted where they happen.
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

    /// A start call, with how many wait for their answer at the same time.
    pub async fn starting<T, E>(&self, call: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        let waiting = Waiting::new(&self.starting);
        let began = Instant::now();
        let answer = call.await;
        drop(waiting);
        self.called("start", micros(began), answer.is_ok());
        answer
    }

    /// A call of an executor, which may be one that tells of a task. How it ends is counted with the task that it is.
    pub async fn telling<T>(&self, kind: &str, call: impl Future<Output = T>) -> T {
        let _waiting = trigger_of(kind).map(|_| Waiting::new(&self.telling));
        call.await
    }

    /// A call is not made again, because it was made already; perhaps by somebody else at this moment.
    pub fn spared(&self, trigger: &str, at_this_moment: bool) {
        add(&self.calls(trigger).spared, 1);
        add(&self.made_already, u64::from(at_this_moment));
    }

    fn of_loop(&self, name: Loop) -> Option<&OfLoop> {
        Loop::ALL.iter().position(|it| *it == name).map(|place| &self.loops[place])
    }

    pub fn looked(&self, name: Loop, now: Timestamp) {
        if let Some(of) = self.of_loop(name) {
            of.looked_at.store(now.0, Ordering::Relaxed);
        }
    }

    pub fn ticked(&self, name: Loop, began: Instant, moved: Option<u32>) {
        let Some(of) = self.of_loop(name) else { return };
        of.took.add_us(micros(began));
        match moved {
            Some(moved) => add(&of.moved, u64::from(moved)),
            None => add(&of.failed, 1),
        }
    }

    pub fn pruned(&self, tasks: u64) {
        add(&self.pruned, tasks);
    }

    /// A statement, with how long it takes.
    pub async fn asked<T>(
        &self,
        query: Query,
        answer: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let began = Instant::now();
        let answer = answer.await;
        let asked = &self.queries[query as usize];
        let us = micros(began);
        asked.took.add_us(us);
        add(&asked.slow, u64::from(us > SLOW_US));
        add(&asked.failed, u64::from(answer.is_err()));
        // A background task that works for long shows with every answer that it gets on.
        if answer.is_ok() {
            Running::turn();
        }
        answer
    }

    pub fn now(&self) -> Tally {
        let all = |numbers: &[AtomicU64]| numbers.iter().map(read).collect();
        let kinds = self.kinds.lock().iter().map(|(kind, of)| of.now(kind)).collect();
        let calls = self.calls.lock().iter().map(|(trigger, of)| of.now(trigger)).collect();
        let of_loop = |(name, of): (&Loop, &OfLoop)| LoopTally {
            name: *name,
            took: of.took.now(),
            moved: read(&of.moved),
            failed: read(&of.failed),
            looked_at: Some(Timestamp(of.looked_at.load(Ordering::Relaxed))).filter(|at| at.0 != 0),
        };
        let of_query = |(query, of): (&Query, &Asked)| QueryTally {
            query: *query,
            took: of.took.now(),
            slow: read(&of.slow),
            failed: read(&of.failed),
        };
        Tally {
            events: self.events.lock().clone(),
            retries_by_strategy: self.by_strategy.lock().clone(),
            succeeded_at: all(&self.succeeded_at),
            failed_at: all(&self.failed_at),
            retried_at: all(&self.retried_at),
            timed_out: read(&self.timed_out),
            delay_ms: read(&self.delay_ms),
            delays: read(&self.delays),
            moves: self.moves.lock().clone(),
            kinds,
            propagated: self.propagated.lock().clone(),
            with_needs: read(&self.with_needs),
            unblocked: read(&self.unblocked),
            failed_by_need: read(&self.failed_by_need),
            dead_ends: read(&self.dead_ends),
            calls,
            calls_made_already: read(&self.made_already),
            starting: read(&self.starting),
            telling: read(&self.telling),
            loops: Loop::ALL.iter().zip(&self.loops).map(of_loop).collect(),
            pruned: read(&self.pruned),
            queries: Query::ALL.iter().zip(&self.queries).map(of_query).collect(),
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

/// What the tasks of a kind tell of, where they are such calls.
fn trigger_of(kind: &str) -> Option<&str> {
    kind.strip_prefix("hook.")
}

fn micros(began: Instant) -> u64 {
    u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX)
}

/// Since when a task that starts could have started, where that is known.
fn ready_since(task: &Task) -> Option<comeback_core::Timestamp> {
    let told = task.unwritten.retry_due.or(task.unwritten.ready);
    let first = task.execution.is_none() && task.run <= 1;
    told.or_else(|| first.then(|| task.start_at.unwrap_or(task.submitted_at).max(task.submitted_at)))
}

/// One of those that wait, as long as it does.
struct Waiting<'a>(&'a AtomicU64);

impl<'a> Waiting<'a> {
    fn new(count: &'a AtomicU64) -> Waiting<'a> {
        count.fetch_add(1, Ordering::Relaxed);
        Waiting(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
