//! A task as it is now: its state, its counters, its lease and its times. Nothing here changes it; `transition` does.
//!
//! Over 500 lines: the task and the small types that its fields consist of.

pub mod event;
pub mod idempotency;
pub mod limit;
pub mod transition;
pub mod undo;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::decide::Reporter;
use crate::failure::Class;
use crate::id::{ExecutionId, TaskId};
use crate::reason::Reason;
use crate::time::{Millis, Timestamp};
use crate::words::words;
use limit::Limit;

words! {
    /// The eleven states (model §3.1). The last five are terminal.
    pub enum State {
        Waiting = 0 "waiting",
        Pending = 1 "pending",
        Claimed = 2 "claimed",
        Running = 3 "running",
        RetryPending = 4 "retry_pending",
        Paused = 5 "paused",
        Succeeded = 6 "succeeded",
        Failed = 7 "failed",
        Dead = 8 "dead",
        Canceled = 9 "canceled",
        Skipped = 10 "skipped",
    }
}

impl State {
    /// Whether the task has ended.
    pub const fn is_terminal(self) -> bool {
        matches!(self, State::Succeeded | State::Failed | State::Dead | State::Canceled | State::Skipped)
    }

    /// Whether the task has not ended.
    pub const fn is_open(self) -> bool {
        !self.is_terminal()
    }

    /// Somebody holds it: claimed by a hook's caller or running.
    pub const fn is_active(self) -> bool {
        matches!(self, State::Claimed | State::Running)
    }

    /// Ended without success in a way that its children and its execution see as a failure.
    pub const fn is_failure(self) -> bool {
        matches!(self, State::Failed | State::Dead | State::Canceled)
    }

    /// A state, or a family of states, as filters name them (model §2.2). Both spellings of canceled are read.
    pub fn family(word: &str) -> Option<&'static [State]> {
        use State::*;
        Some(match word.trim().to_ascii_lowercase().as_str() {
            "open" => &[Waiting, Pending, Claimed, Running, RetryPending, Paused],
            "terminal" => &[Succeeded, Failed, Dead, Canceled, Skipped],
            "failure" => &[Failed, Dead],
            "active" => &[Claimed, Running],
            "error" => &[RetryPending, Failed, Dead],
            "waiting" => &[Waiting],
            "pending" => &[Pending],
            "claimed" => &[Claimed],
            "running" => &[Running],
            "retry_pending" | "retrypending" => &[RetryPending],
            "paused" => &[Paused],
            "succeeded" => &[Succeeded],
            "failed" => &[Failed],
            "dead" => &[Dead],
            "canceled" | "cancelled" => &[Canceled],
            "skipped" => &[Skipped],
            _ => return None,
        })
    }
}

words! {
    /// The executor that runs a task once it is leased.
    pub enum Executor {
        Worker = 0 "worker",
        Http = 1 "http",
        Hook = 2 "hook",
        Command = 3 "command",
        Timer = 4 "timer",
        /// No executor: it stands for other tasks, the iterations of a loop or a whole execution.
        Flow = 5 "flow",
    }
}

impl Executor {
    /// Whether a lease only claims its tasks, and the run begins when something has answered.
    pub const fn is_claimed_first(self) -> bool {
        matches!(self, Executor::Hook | Executor::Flow)
    }
}

/// Where a task waits to be leased: all tasks of one lane are interchangeable for a claim but for their order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lane {
    /// The namespace.
    pub namespace: String,
    /// The queue.
    pub queue: String,
    /// The kind of task.
    pub kind: String,
    /// Which sort of executor runs it.
    pub executor: Executor,
    /// The outside thing the task depends on (model A5).
    pub dependency: Option<String>,
    /// Whether its tasks belong to executions of several tasks, whose log is shared.
    pub shared: bool,
    /// Limits that its tasks fall under before they may start; empty for most.
    pub limits: Vec<Limit>,
}

/// The queue of calls that tell others of a task.
pub const HOOK_QUEUE: &str = "hooks";

impl Lane {
    /// The same without any rule.
    pub fn unruled(&self) -> Lane {
        Lane { limits: Vec::new(), ..self.clone() }
    }

    /// Whether both are the same but for rules.
    pub fn is_beside(&self, other: &Lane) -> bool {
        let same = |lane: &Lane| (lane.executor, lane.shared);
        same(self) == same(other)
            && self.namespace == other.namespace
            && self.queue == other.queue
            && self.kind == other.kind
            && self.dependency == other.dependency
    }

    /// Whether its tasks are calls of hooks: those that start a task, and those that tell of one.
    pub fn is_call(&self) -> bool {
        self.executor == Executor::Hook || self.executor == Executor::Http && self.queue == HOOK_QUEUE
    }

    /// Whether every step of its tasks is a row of history at once. A lone task that a worker leases carries its small
    /// events to the next row in place of that; a shared log and a hook's claim cannot wait.
    pub fn writes_each_step(&self) -> bool {
        self.shared || self.executor.is_claimed_first()
    }
}

impl Default for Lane {
    fn default() -> Self {
        Lane {
            namespace: "default".into(),
            queue: "default".into(),
            kind: String::new(),
            executor: Executor::Worker,
            dependency: None,
            shared: false,
            limits: Vec::new(),
        }
    }
}

/// Four counters, never one (model A2). Each has its own limit in the policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct Counters {
    /// Retries scheduled after failures and timeouts in this cycle; 0 on the first run.
    #[serde(skip_serializing_if = "is_zero")]
    pub attempt: u32,
    /// Runs lost to infrastructure.
    #[serde(skip_serializing_if = "is_zero")]
    pub lost: u32,
    /// Rate-limited waits.
    #[serde(skip_serializing_if = "is_zero")]
    pub throttled: u32,
    /// Voluntary postponements.
    #[serde(skip_serializing_if = "is_zero")]
    pub snoozed: u32,
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// The expiring right to run a task once. `number` only grows: it says who may speak.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The number of the lease.
    pub number: u32,
    /// The worker that holds it.
    pub worker: Arc<str>,
    /// When it was granted.
    pub acquired_at: Timestamp,
    /// Absent once a hook's start call was answered: such work is bounded by its timeout, not by a lease.
    pub expires_at: Option<Timestamp>,
}

/// A hold beside a task's own due time (model A5): it never costs an attempt and never moves `next_retry_at`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    /// When it ends.
    pub until: Timestamp,
    /// The name of the hold.
    pub reason: String,
}

/// Events that happened but are not written yet: they go into the next row of the task's history.
///
/// A lone task's `ready`, `retry_due` and `attempt.started` cost no row of their own; until the next row carries
/// them they are read from the task itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Unwritten {
    /// When the task became ready.
    pub ready: Option<Timestamp>,
    /// When its retry became due.
    pub retry_due: Option<Timestamp>,
    /// Whether its attempt started.
    pub started: bool,
}

impl Unwritten {
    /// How many events these are.
    pub fn count(self) -> u32 {
        u32::from(self.ready.is_some()) + u32::from(self.retry_due.is_some()) + u32::from(self.started)
    }
}

/// Counts that a hook task has reported so far; they survive retries unless the policy resets them (X1-5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Tally {
    /// How many are expected, if known.
    pub expected: Option<u32>,
    /// Successes so far.
    pub success: u32,
    /// Failures so far.
    pub failures: u32,
}

/// The present of one task.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    /// The id.
    pub id: TaskId,
    /// Absent for a lone task, which is its own implicit execution (model A17).
    pub execution: Option<ExecutionId>,
    /// Where it waits to be leased.
    pub lane: Arc<Lane>,
    /// Higher goes first.
    pub priority: i16,
    /// Decides the order among equals and never moves (model I-17).
    pub submitted_at: Timestamp,

    /// The state.
    pub state: State,
    /// Grows by one with every change: a write that expects another version changes nothing.
    pub version: u32,
    /// How many events this task's own log holds (lone tasks; otherwise the execution counts).
    pub seq: u32,
    /// Events that the next record carries.
    pub unwritten: Unwritten,

    /// The four counters of this cycle.
    pub counters: Counters,
    /// How often each rule of the policy was applied in this cycle; empty when none was.
    pub rule_counts: Vec<u32>,
    /// Manual retries so far.
    pub cycle: u32,
    /// How often the task was started in its life (model A12).
    pub run: u32,
    /// The number of the last lease that was granted.
    pub lease_number: u32,
    /// The lease, while one is held.
    pub lease: Option<Lease>,

    /// When it may start for the first time, where that is not at once.
    pub start_at: Option<Timestamp>,
    /// When its retry is due.
    pub next_retry_at: Option<Timestamp>,
    /// A hold beyond the due time.
    pub hold: Option<Hold>,
    /// Inactivity limit of one run, and the absolute limit of one run.
    pub timeout: Option<Millis>,
    /// The absolute limit of one run.
    pub attempt_deadline: Option<Millis>,
    /// When the present run is over unless it shows activity.
    pub timeout_at: Option<Timestamp>,
    /// When the whole task is over.
    pub expires_at: Option<Timestamp>,
    /// How long after its beginning that was at first, where a later cycle may have moved it.
    pub lifetime: Option<Millis>,
    /// The first failure of this cycle.
    pub first_failed_at: Option<Timestamp>,
    /// When the present run started.
    pub started_at: Option<Timestamp>,
    /// When the task ended.
    pub ended_at: Option<Timestamp>,
    /// The last change.
    pub updated_at: Timestamp,

    /// The state that resuming leads back to.
    pub paused_from: Option<State>,
    /// Paused by a policy for a person to look at; resuming starts a new cycle.
    pub parked: bool,
    /// Its execution is paused: it stays in its state and is not offered.
    pub execution_paused: bool,
    /// Why it ended, or why it waits for a person.
    pub reason: Option<Reason>,
    /// The class of the last failure.
    pub class: Option<Class>,
    /// The error group of the last failure.
    pub fingerprint: Option<i64>,
    /// Progress that a hook reported.
    pub tally: Tally,

    /// Edges into this task that are not met yet.
    pub needs_left: u32,
    /// Children that are not terminal yet.
    pub children_left: u32,
    /// Dead-end cancelling may take this task but climbs no further.
    pub dead_end_barrier: bool,
    /// Something must be worked out when its needs are met, before it may start: a condition, or what a loop goes over.
    pub gated: bool,
    /// Somebody wants to be called when it ends.
    pub hooked: bool,
    /// It costs somebody something.
    pub metered: bool,
}

words! {
    /// Priorities that have a name; any number between them will do as well.
    pub enum Priority {
        High = 100 "high",
        Normal = 0 "normal",
        Low = -100 "low",
    }
}

words! {
    /// Whether the server or a person asked for a retry. A first attempt is neither.
    pub enum RetryKind {
        Automatic = 0 "automatic",
        Manual = 1 "manual",
    }
}

impl RetryKind {
    /// Of an attempt, by the cycle it is in and its number there: a new cycle is begun by hand only.
    pub fn of(cycle: u32, attempt_number: u32) -> Option<RetryKind> {
        match (cycle, attempt_number) {
            (_, 2..) => Some(RetryKind::Automatic),
            (1.., _) => Some(RetryKind::Manual),
            (0, _) => None,
        }
    }
}

impl Task {
    /// A lone task of the flow stands for executions of a workflow, each of its runs for one (E8).
    pub fn stands_for_executions(&self) -> bool {
        self.execution.is_none() && self.lane.executor == Executor::Flow
    }

    /// Whether it failed by itself, and not because of what it needs or stands for.
    pub fn failed_itself(&self) -> bool {
        matches!(self.state, State::Failed | State::Dead)
            && !matches!(self.reason, Some(Reason::UpstreamFailed | Reason::Rounds))
    }

    /// A task as it is created: everything zero, `submitted_at` now.
    pub fn new(id: TaskId, lane: Arc<Lane>, now: Timestamp) -> Task {
        Task {
            id,
            execution: None,
            lane,
            priority: 0,
            submitted_at: now,
            state: State::Pending,
            version: 1,
            seq: 0,
            unwritten: Unwritten::default(),
            counters: Counters::default(),
            rule_counts: Vec::new(),
            cycle: 0,
            run: 0,
            lease_number: 0,
            lease: None,
            start_at: None,
            next_retry_at: None,
            hold: None,
            timeout: None,
            attempt_deadline: None,
            timeout_at: None,
            expires_at: None,
            lifetime: None,
            first_failed_at: None,
            started_at: None,
            ended_at: None,
            updated_at: now,
            paused_from: None,
            parked: false,
            execution_paused: false,
            reason: None,
            class: None,
            fingerprint: None,
            tally: Tally::default(),
            needs_left: 0,
            children_left: 0,
            dead_end_barrier: false,
            gated: false,
            hooked: false,
            metered: false,
        }
    }

    /// Whether its last error may be tried again, as far as its class and its policy have said.
    pub fn may_be_retried(&self) -> bool {
        use Reason::*;
        let refused = matches!(
            self.reason,
            Some(
                Final
                    | StopWhen
                    | Ignored
                    | NotListed
                    | RetryWhen
                    | Rule
                    | Reclassified
                    | OnLostFail
                    | Expression
                    | UpstreamFailed
            )
        );
        self.class != Some(Class::Final) && !(self.state == State::Failed && refused)
    }

    /// Whether its needs are met and its gate is to be looked at.
    pub fn is_at_its_gate(&self) -> bool {
        self.gated && self.state == State::Waiting && self.needs_left == 0 && !self.execution_paused
    }

    /// When a change of this task happens. A command may have asked the clock a moment before another one changed the task;
    /// a task's own time never goes back.
    pub fn time(&self, now: Timestamp) -> Timestamp {
        now.max(self.updated_at)
    }

    /// The attempt's number for people and expressions: 1 on the first run (model A12).
    pub fn attempt_number(&self) -> u32 {
        self.counters.attempt + 1
    }

    /// The number of the run that lasts. Who is claimed begins it with the call that is being made.
    pub fn present_run(&self) -> u32 {
        self.run + u32::from(self.paused_from.unwrap_or(self.state) == State::Claimed)
    }

    /// Whether somebody who names a run or an attempt speaks of the one that lasts.
    pub fn is_meant_by(&self, reporter: Reporter) -> bool {
        match reporter {
            Reporter::Run(number) => number == self.present_run(),
            // After a loss the same attempt runs again: then only the run tells them apart.
            Reporter::Attempt(number) => number == self.counters.attempt && self.present_run() == self.attempt_number(),
            Reporter::Lease(number) => self.lease.as_ref().is_some_and(|lease| lease.number == number),
            Reporter::Anyone | Reporter::Server => true,
        }
    }

    /// The run that somebody speaks of: one that is named by its number may be over, any other is the one that lasts.
    pub fn run_meant_by(&self, reporter: Reporter) -> Option<u32> {
        let present = self.present_run();
        match reporter {
            Reporter::Run(number) => (number <= present).then_some(number),
            _ => (self.state.is_active() && self.is_meant_by(reporter)).then_some(present),
        }
    }

    /// When the timer must look at this task: its own due time, or the end of a hold where that is later.
    pub fn due(&self) -> Option<Timestamp> {
        let own = match self.state {
            State::RetryPending => self.next_retry_at,
            State::Waiting if self.needs_left == 0 && !self.gated => self.start_at,
            _ => None,
        };
        own.map(|at| self.hold.as_ref().map_or(at, |hold| at.max(hold.until)))
    }

    /// A hold is never shown to last longer than the task itself (model 3.2, step 16): then it is over, held or not.
    pub fn held_no_longer_than(&self, until: Timestamp) -> Timestamp {
        self.expires_at.map_or(until, |deadline| until.min(deadline))
    }

    /// The invariants a task must satisfy whenever it is stored (model §3.5, I-1 and I-2 among them).
    /// The answer names the first that is broken.
    pub fn broken_invariant(&self) -> Option<&'static str> {
        let waits_for_retry = self.state == State::RetryPending
            || (self.state == State::Paused && self.paused_from == Some(State::RetryPending));
        if self.next_retry_at.is_some() != waits_for_retry {
            return Some("next_retry_at is set exactly while a retry is pending (I-1)");
        }
        let may_hold_lease =
            self.state.is_active() || (self.state == State::Paused && self.paused_from.is_some_and(State::is_active));
        if self.lease.is_some() && !may_hold_lease {
            return Some("only an active task holds a lease (I-2)");
        }
        if self.state.is_active() && self.lease.is_none() {
            return Some("an active task holds a lease (I-2)");
        }
        if self.lease.as_ref().is_some_and(|lease| lease.number != self.lease_number) {
            return Some("the live lease is the last one granted (I-4)");
        }
        if (self.state == State::Paused) != self.paused_from.is_some() {
            return Some("paused_from is set exactly while paused");
        }
        if self.state.is_terminal() != self.ended_at.is_some() {
            return Some("ended_at is set exactly when terminal");
        }
        if self.unwritten.started && self.lease.is_none() {
            return Some("an unwritten start belongs to a live lease");
        }
        if self.unwritten.count() > self.seq && self.execution.is_none() {
            return Some("unwritten events are counted in seq");
        }
        None
    }
}
