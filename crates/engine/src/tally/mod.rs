//! Counts what this process has stored, for those who watch it. Nothing is decided by these numbers.

mod tenant;
mod times;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Instant;

use comeback_core::{Commit, EventKind, Lane, State, Task, Timestamp};
use comeback_store::{Claimed, Loop, Promote, Running, StoreError, Submission};
use parking_lot::RwLock;

use tenant::{Sum, Tenant};
use times::Times;
pub use times::{BOUNDS_MS, Took};

/// Attempts from this one on are counted together.
pub const LAST_ATTEMPT: usize = 10;
/// Kinds of one namespace beyond these are counted together: names are for everybody to invent, and each is kept until this process
/// ends.
const MOST_KINDS: usize = 200;
/// Kinds that a page of all namespaces tells apart; the rest of them is summed up.
const MOST_SHOWN: usize = 1_000;
/// Namespaces beyond these are counted together.
const MOST_NAMESPACES: usize = 10_000;
const OTHER: &str = "other";
/// Triggers of calls.
const TRIGGERS: [&str; 6] = ["start", "end", "retry", "cancel", "success", "failure"];
/// Statements that take longer are told apart.
const SLOW_US: u64 = 500_000;

/// Frequent queries of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Query {
    /// Submissions.
    Submit,
    /// Claims.
    Claim,
    /// Commits.
    Apply,
    /// Heartbeats.
    Heartbeat,
    /// Progress.
    Count,
    /// Promotions.
    Promote,
    /// Deletions of old tasks.
    Prune,
    /// Loads of tasks.
    Load,
}

impl Query {
    /// All of them.
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

    /// Its wire word.
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
struct QueryCounters {
    took: Times,
    slow: AtomicU64,
    failed: AtomicU64,
}

#[derive(Default)]
struct LoopCounters {
    took: Times,
    moved: AtomicU64,
    failed: AtomicU64,
    /// In milliseconds; 0 where it never did.
    looked_at: AtomicI64,
}

/// Counts by namespace, and those of the process itself.
#[derive(Default)]
pub struct Tallies {
    tenants: RwLock<HashMap<String, Arc<Tenant>>>,
    /// Counters of no single namespace, or of namespaces beyond the limit.
    house: Arc<Tenant>,
    loops: [LoopCounters; Loop::ALL.len()],
    pruned: AtomicU64,
    queries: [QueryCounters; Query::ALL.len()],
}

/// The numbers at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tally {
    /// Events by type.
    pub events: BTreeMap<EventKind, u64>,
    /// Scheduled retries by strategy.
    pub retries_by_strategy: BTreeMap<String, u64>,
    /// By attempt number, from 1.
    pub succeeded_at: Vec<u64>,
    /// Failures by attempt.
    pub failed_at: Vec<u64>,
    /// Retries that were scheduled after it.
    pub retried_at: Vec<u64>,
    /// Runs that timed out.
    pub timed_out: u64,
    /// Of all retries that were scheduled, together.
    pub delay_ms: u64,
    /// Delays of retries.
    pub delays: u64,
    /// Transitions by states.
    pub moves: BTreeMap<(State, State), u64>,
    /// Counters by kind.
    pub kinds: Vec<KindTally>,
    /// Neighbours that the end of a task moved, by that end.
    pub propagated: BTreeMap<State, u64>,
    /// Tasks that were submitted with needs.
    pub with_needs: u64,
    /// Tasks whose needs were met.
    pub unblocked: u64,
    /// Tasks that failed because of a need.
    pub failed_by_need: u64,
    /// Tasks that were canceled as dead ends.
    pub dead_ends: u64,
    /// Calls by trigger.
    pub calls: Vec<CallTally>,
    /// Late calls that another instance had just made.
    pub calls_made_already: u64,
    /// Start calls that wait for their answer.
    pub starting: u64,
    /// Calls that tell of a task and wait for theirs.
    pub telling: u64,
    /// Background loops.
    pub loops: Vec<LoopTally>,
    /// Deleted tasks.
    pub pruned: u64,
    /// Queries of the store.
    pub queries: Vec<QueryTally>,
}

/// Counters of one kind.
#[derive(Clone, Debug, PartialEq)]
pub struct KindTally {
    /// The kind.
    pub kind: String,
    /// Durations by final state.
    pub ended: BTreeMap<State, Took>,
    /// Waiting times.
    pub waited: Took,
}

/// Counters of the calls of one trigger.
#[derive(Clone, Debug, PartialEq)]
pub struct CallTally {
    /// Start, end, cancel or retry.
    pub trigger: String,
    /// Durations.
    pub took: Took,
    /// Successes.
    pub succeeded: u64,
    /// Failures.
    pub failed: u64,
    /// Calls that were not made again, because they were made.
    pub spared: u64,
}

/// Counters of one loop.
#[derive(Clone, Debug, PartialEq)]
pub struct LoopTally {
    /// The loop.
    pub name: Loop,
    /// Durations.
    pub took: Took,
    /// Rows that it moved.
    pub moved: u64,
    /// Failures.
    pub failed: u64,
    /// When it last looked whether there is anything to do, here.
    pub looked_at: Option<Timestamp>,
}

/// Counters of one query.
#[derive(Clone, Debug, PartialEq)]
pub struct QueryTally {
    /// The query.
    pub query: Query,
    /// Durations.
    pub took: Took,
    /// Slow ones.
    pub slow: u64,
    /// Failures.
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
    /// The counts of a namespace.
    fn of(&self, namespace: &str) -> Arc<Tenant> {
        if let Some(known) = self.tenants.read().get(namespace) {
            return known.clone();
        }
        let mut tenants = self.tenants.write();
        if tenants.len() >= MOST_NAMESPACES && !tenants.contains_key(namespace) {
            return self.house.clone();
        }
        tenants.entry(namespace.to_owned()).or_default().clone()
    }

    /// Counts events of a namespace.
    pub fn add(&self, namespace: &str, kind: EventKind, count: u64) {
        if count > 0 {
            self.of(namespace).add(kind, count);
        }
    }

    /// Submissions that were stored, each with how many tasks it made.
    pub fn submitted<'a>(&self, stored: impl Iterator<Item = (&'a Submission, u64)>) {
        for (submission, created) in stored {
            let tenant = self.of(&submission.namespace);
            tenant.add(EventKind::TaskCreated, created);
            if !submission.edges.is_empty() {
                let needing: BTreeSet<_> = submission.edges.iter().map(|edge| edge.to).collect();
                add(&tenant.with_needs, needing.len() as u64);
            }
        }
    }

    pub fn claimed<'a>(&self, claimed: impl Iterator<Item = &'a Claimed>) {
        let mut of: Option<(&str, Arc<Tenant>, u64, u64)> = None;
        let done = |of: Option<(&str, Arc<Tenant>, u64, u64)>| {
            if let Some((_, tenant, started, promoted)) = of {
                tenant.add(EventKind::AttemptStarted, started);
                tenant.moved(State::Pending, State::Running, started);
                tenant.due(Promote::Retries, promoted);
            }
        };
        // Those of one request come one after the other.
        for it in claimed {
            let task = &it.stored.task;
            let namespace = task.lane.namespace.as_str();
            if of.as_ref().is_none_or(|(known, ..)| *known != namespace) {
                done(of.take());
                of = Some((namespace, self.of(namespace), 0, 0));
            }
            let Some((_, tenant, started, promoted)) = &mut of else { continue };
            *started += 1;
            *promoted += u64::from(it.promoted);
            if let (Some(since), Some(at)) = (ready_since(task), task.lease.as_ref().map(|_| task.updated_at)) {
                tenant.kind(&task.lane.kind).waited.add_us(between_us(since, at));
            }
        }
        done(of);
    }

    /// Counts due tasks of these lanes.
    pub fn due(&self, what: Promote, count: u64, lanes: &[Arc<Lane>]) {
        let mut namespaces = lanes.iter().map(|lane| lane.namespace.as_str());
        let only = namespaces.next().filter(|first| namespaces.all(|other| other == *first));
        only.map_or_else(|| self.house.clone(), |namespace| self.of(namespace)).due(what, count);
    }

    /// Counts a commit. Starts and due times are counted where they happen.
    pub fn count(&self, commit: &Commit) {
        let namespace = commit.writes.first().map(|write| write.after.lane.namespace.as_str());
        namespace.map_or_else(|| self.house.clone(), |namespace| self.of(namespace)).count(commit);
    }

    /// A start call, with how many wait for their answer at the same time.
    pub async fn starting<T, E>(&self, namespace: &str, call: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        let tenant = self.of(namespace);
        let waiting = Waiting::new(&tenant.starting);
        let began = Instant::now();
        let answer = call.await;
        drop(waiting);
        tenant.called("start", micros(began), answer.is_ok());
        answer
    }

    /// A call of an executor, which may be one that tells of a task. How it ends is counted with the task that it is.
    pub async fn telling<T>(&self, namespace: &str, kind: &str, call: impl Future<Output = T>) -> T {
        let tenant = trigger_of(kind).map(|_| self.of(namespace));
        let _waiting = tenant.as_ref().map(|tenant| Waiting::new(&tenant.telling));
        call.await
    }

    /// Counts a call that was made already, perhaps by another instance at this moment.
    pub fn spared(&self, namespace: &str, trigger: &str, at_this_moment: bool) {
        let tenant = self.of(namespace);
        add(&tenant.calls(trigger).spared, 1);
        add(&tenant.made_already, u64::from(at_this_moment));
    }

    fn of_loop(&self, name: Loop) -> Option<&LoopCounters> {
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

    /// Everything, all namespaces together.
    pub fn now(&self) -> Tally {
        let of_loop = |(name, of): (&Loop, &LoopCounters)| LoopTally {
            name: *name,
            took: of.took.now(),
            moved: read(&of.moved),
            failed: read(&of.failed),
            looked_at: Some(Timestamp(of.looked_at.load(Ordering::Relaxed))).filter(|at| at.0 != 0),
        };
        let of_query = |(query, of): (&Query, &QueryCounters)| QueryTally {
            query: *query,
            took: of.took.now(),
            slow: read(&of.slow),
            failed: read(&of.failed),
        };
        let mut sum = Sum::default();
        sum.add(&self.house);
        let tenants: Vec<Arc<Tenant>> = self.tenants.read().values().cloned().collect();
        tenants.iter().for_each(|tenant| sum.add(tenant));
        Tally {
            loops: Loop::ALL.iter().zip(&self.loops).map(of_loop).collect(),
            pruned: read(&self.pruned),
            queries: Query::ALL.iter().zip(&self.queries).map(of_query).collect(),
            ..sum.into_tally()
        }
    }

    /// Counters of one namespace, without those of the process.
    pub fn now_of(&self, namespace: &str) -> Tally {
        let mut sum = Sum::default();
        if let Some(tenant) = self.tenants.read().get(namespace) {
            sum.add(tenant);
        }
        sum.into_tally()
    }
}

/// Trigger of the calls that tasks of this kind are. Names that callers invent count as one.
fn trigger_of(kind: &str) -> Option<&'static str> {
    let trigger = kind.strip_prefix("hook.")?;
    Some(TRIGGERS.iter().find(|it| **it == trigger).unwrap_or(&OTHER))
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
