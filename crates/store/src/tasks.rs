//! Tasks on their way: created, leased, reported on, promoted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use async_trait::async_trait;
use comeback_core::filter::Filter;
use comeback_core::{
    Audit, Commit, Edge, Execution, ExecutionId, Executor, Idempotency, Lane, Millis, NamePatterns, Policy, State,
    Task, TaskId, Timestamp,
};
use serde::{Deserialize, Serialize};

use crate::accounts::Unfunded;
use crate::{Loop, StoreError};

/// The writes of a task's life, from its submission to its end.
#[async_trait]
pub trait TaskStore: Send + Sync {
    /// Creates tasks. Each submission is all or nothing; its idempotency key and its dedupe keys are honoured.
    async fn submit(&self, submissions: &[Submission], now: Timestamp) -> Result<Vec<Submitted>, StoreError>;

    /// Leases pending tasks (T6): highest priority first, then the oldest, then by id, over all lanes a request names.
    /// A task is given to one request only. The lease, the start of the run and its event are one transaction.
    async fn claim(&self, requests: &[ClaimRequest], now: Timestamp) -> Result<Vec<Vec<Claimed>>, StoreError>;

    /// Stores verdicts. Each commit is guarded by the versions it names: if one of them has moved on, nothing of that
    /// commit is written and it is reported as stale. Work of a loop that is paused is refused in the same transaction.
    async fn apply(
        &self,
        commits: &[Commit],
        on_behalf_of: Option<Loop>,
        now: Timestamp,
    ) -> Result<Vec<Applied>, StoreError>;

    /// Like `apply` for one commit (or for nothing but the key), under a key that is good for one use. The key is written in
    /// the same transaction, and only if the commit was.
    async fn apply_once(
        &self,
        namespace: &str,
        key: &Idempotency,
        commit: Option<&Commit>,
        now: Timestamp,
    ) -> Result<Applied, StoreError>;

    /// Like `apply` for one commit that also makes tasks: in the execution it is about, or lone ones. Their rows are written in
    /// the same transaction; the creation of those that join the execution is told by the commit's own records.
    async fn apply_spawning(
        &self,
        commit: &Commit,
        spawn: &Submission,
        behalf: Behalf<'_>,
        now: Timestamp,
    ) -> Result<Applied, StoreError>;

    /// Extends leases that are still held, and with them the inactivity limit of the run.
    async fn heartbeat(&self, beats: &[Beat], now: Timestamp) -> Result<Vec<BeatAnswer>, StoreError>;

    /// The clock was set ahead: leases that ran out in between are held after it for as long as they had left before it, and the runs
    /// under them may go on as long. Done twice it does no more than once. Answers how many those were.
    async fn extend_leases(&self, from: Timestamp, to: Timestamp) -> Result<u64, StoreError>;

    /// Adds to what active tasks have counted, all or nothing; a sign of life too. Each task is named once. Answers which of them were
    /// active.
    async fn count(&self, counts: &[Count], now: Timestamp) -> Result<Vec<bool>, StoreError>;

    /// Makes due tasks pending (T14, T26), the longest overdue first; nothing while that loop is paused.
    async fn promote(&self, what: Promote, now: Timestamp, limit: u32) -> Result<Promoted, StoreError>;

    /// Changes labels, priority or policy of a task. False if its labels are no longer those that the change names, or if it has ended
    /// and its priority cannot change. Another policy begins to count its rules anew.
    async fn describe(
        &self,
        id: TaskId,
        change: &Description,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<bool, StoreError>;
}

/// A request to create tasks, all of them or none.
#[derive(Clone, Debug, Default)]
pub struct Submission {
    /// The namespace it belongs to.
    pub namespace: String,
    /// Its tasks.
    pub tasks: Vec<NewTask>,
    /// Present when the tasks form one execution (model A17).
    pub execution: Option<NewExecution>,
    /// Edges between its tasks.
    pub edges: Vec<Edge>,
    /// The key under which the same request is answered again.
    pub idempotency: Option<Idempotency>,
    /// No task is created if one of these finds one. Of two such requests at the same moment, the second finds what the first
    /// has made.
    pub unless: Vec<Filter>,
}

impl Submission {
    /// The kinds that its questions and its tasks are about.
    pub(crate) fn kinds_asked_about(&self) -> BTreeSet<&str> {
        let asked = self.unless.iter().flat_map(Filter::kinds);
        asked.chain(self.tasks.iter().map(|new| new.task.lane.kind.as_str())).collect()
    }

    /// An empty submission to a namespace.
    pub fn in_namespace(namespace: &str) -> Submission {
        Submission { namespace: namespace.to_owned(), ..Submission::default() }
    }
}

/// A task as it will first be: its present, and the body that never changes.
#[derive(Clone, Debug)]
pub struct NewTask {
    /// The task as it begins.
    pub task: Task,
    /// Its retry policy.
    pub policy: Option<Arc<Policy>>,
    /// The part that never changes.
    pub body: Body,
}

/// The part of a task that is written once.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Body {
    /// Its key within the execution.
    pub key: Option<String>,
    /// Its name.
    pub name: Option<String>,
    /// JSON text, stored as it came.
    pub payload: Option<Arc<str>>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// The executor's settings and the hooks, as JSON text.
    pub executor: Option<String>,
    /// Its hooks, as JSON text.
    pub hooks: Option<String>,
    /// Its step of a workflow, as JSON text.
    pub step: Option<String>,
    /// The account that pays for it.
    pub account: Option<String>,
    /// Its price in credits.
    pub cost: Option<u32>,
    /// Only one open task has this key.
    pub dedupe_key: Option<String>,
    /// An id that its owner gave it.
    pub external_id: Option<String>,
    /// The W3C trace context it came with.
    pub traceparent: Option<String>,
    /// Whether its deadline ends runs that have begun.
    pub hard_deadline: bool,
    /// Admission rules by name that bind it beside those that bind all alike.
    pub rules: Vec<String>,
}

/// An execution as it will first be.
#[derive(Clone, Debug)]
pub struct NewExecution {
    /// The execution as it begins.
    pub execution: Execution,
    /// Its name.
    pub name: Option<String>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// An id that its owner gave it.
    pub external_id: Option<String>,
    /// Its origin.
    pub origin: Origin,
    /// Its place below the execution that all of it began with; nothing for that one itself.
    pub below: Option<Below>,
}

/// The place of an execution that a step of another one began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Below {
    /// The execution that all of it began with.
    pub root: ExecutionId,
    /// How many executions are above this one.
    pub depth: u32,
    /// How many tasks the root and all executions below it may have (the quota `tasks_per_root`).
    pub most_tasks: u64,
}

/// Where an execution came from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Origin {
    /// The path and version of a workflow.
    pub workflow: Option<(String, u32)>,
    /// JSON text.
    pub input: Option<Arc<str>>,
    /// A task that stands for it, and the run of that task that it is.
    pub parent: Option<(TaskId, u32)>,
    /// The one that is done again from its start, by hand or by its policy.
    pub retry_of: Option<ExecutionId>,
    /// The first of those that were done again one after the other, and which retry of that it is, from 1.
    pub retry_root: Option<ExecutionId>,
    /// Counted from 1.
    pub retry_number: u32,
    /// The schedule that started it.
    pub firing: Option<Firing>,
}

/// An instant of a schedule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Firing {
    /// The name of the schedule.
    pub schedule: String,
    /// The instant it stands for.
    pub at: Timestamp,
    /// The trigger.
    pub by: FiredBy,
}

/// The trigger of a firing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FiredBy {
    /// Its time came.
    Cron = 0,
    /// Somebody asked for it.
    Manual = 1,
    /// An event was told that it waits for.
    Event = 2,
}

impl FiredBy {
    /// Its word in the API.
    pub const fn word(self) -> &'static str {
        match self {
            FiredBy::Cron => "cron",
            FiredBy::Manual => "manual",
            FiredBy::Event => "event",
        }
    }

    /// The number that rows hold.
    pub(crate) const fn code(self) -> i16 {
        self as i16
    }

    pub(crate) fn from_code(code: i16) -> FiredBy {
        let of = [FiredBy::Manual, FiredBy::Event].into_iter().find(|by| by.code() == code);
        of.unwrap_or(FiredBy::Cron)
    }
}

impl Firing {
    /// From the columns of an execution.
    pub(crate) fn from_row(by: Option<i16>, schedule: Option<String>, at: Option<i64>) -> Option<Firing> {
        Some(Firing { schedule: schedule?, at: Timestamp(at?), by: FiredBy::from_code(by?) })
    }
}

/// The answer to a submission.
#[derive(Clone, Debug, PartialEq)]
pub enum Submitted {
    Created(Vec<SubmittedTask>),
    /// This was asked before; the first answer again.
    Repeated {
        execution: Option<ExecutionId>,
        tasks: Vec<SubmittedTask>,
    },
    /// The key was used for another request.
    Mismatch,
    /// Somebody else has made what this was to be made in the absence of.
    Overtaken,
    /// Its account has too little.
    Unfunded(Unfunded),
    /// The root of the execution has ended: nothing begins below it any more.
    RootEnded,
    /// The root has all the tasks below it that it may have.
    RootFull,
}

/// A task that a submission created or found.
#[derive(Clone, Debug, PartialEq)]
pub struct SubmittedTask {
    /// Its id, or that of its duplicate.
    pub id: TaskId,
    /// Its state now.
    pub state: State,
    /// An open task with the same dedupe key was there already; this is its id.
    pub duplicate: bool,
}

/// A request of a worker for work.
#[derive(Clone, Debug, PartialEq)]
pub struct ClaimRequest {
    /// The namespace to take from.
    pub namespace: String,
    /// The queues to take from.
    pub queues: Vec<String>,
    /// From all queues of the namespace, whatever `queues` says: for executors of the server itself.
    pub any_queue: bool,
    /// None means any.
    pub kinds: Vec<String>,
    /// The executor that asks.
    pub executor: Executor,
    /// The name of the worker.
    pub worker: Arc<str>,
    /// At most this many.
    pub limit: u32,
    /// How long each lease lasts.
    pub lease: Millis,
    /// Also retries whose time has come and that nobody has promoted yet: both steps are one then. Where each step is a row of
    /// history they wait for their promotion.
    pub due: bool,
    /// Calls of hooks are left out, because they are paused.
    pub without_calls: bool,
    /// Beside `kinds`: patterns of kinds that an API key is limited to.
    pub only_kinds: Option<Arc<NamePatterns>>,
}

impl ClaimRequest {
    /// Stands for all of them where somebody waits for work; a claim names one.
    pub const ANY_NAMESPACE: &'static str = "*";

    /// Whether tasks of a lane are asked for.
    pub fn wants(&self, lane: &Lane) -> bool {
        let anywhere = self.namespace == Self::ANY_NAMESPACE;
        lane.executor == self.executor
            && (anywhere || lane.namespace == self.namespace && (self.any_queue || self.queues.contains(&lane.queue)))
            && (self.kinds.is_empty() || self.kinds.contains(&lane.kind))
            && !(self.without_calls && lane.is_call())
            && self.only_kinds.as_ref().is_none_or(|patterns| patterns.allows(&lane.kind))
    }

    /// Whether calls of hooks are among what is asked for.
    pub(crate) fn may_call(&self) -> bool {
        matches!(self.executor, Executor::Hook | Executor::Http)
    }

    /// Whether both would be offered the same tasks.
    pub fn is_like(&self, other: &ClaimRequest) -> bool {
        self.namespace == other.namespace
            && self.executor == other.executor
            && self.any_queue == other.any_queue
            && self.queues == other.queues
            && self.kinds == other.kinds
            && self.without_calls == other.without_calls
            && self.only_kinds == other.only_kinds
    }
}

/// A task as it is stored, with its policy.
#[derive(Clone, Debug, PartialEq)]
pub struct Stored {
    /// The task.
    pub task: Task,
    /// The number of its policy.
    pub policy_id: Option<i32>,
    /// Its retry policy.
    pub policy: Option<Arc<Policy>>,
    /// Whether its deadline ends runs that have begun.
    pub hard_deadline: bool,
}

/// Attributes of a task to change.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Description {
    /// As they were, and as they are from now on.
    pub labels: Option<(BTreeMap<String, String>, BTreeMap<String, String>)>,
    /// The new priority.
    pub priority: Option<i16>,
    /// The policy from the next verdict on, or that there is none.
    pub retry: Option<Option<Arc<Policy>>>,
}

/// A task that was just leased, with what its worker needs.
#[derive(Clone, Debug, PartialEq)]
pub struct Claimed {
    /// The task as it is stored.
    pub stored: Stored,
    /// Its key within the execution.
    pub key: Option<String>,
    /// Its name.
    pub name: Option<String>,
    /// Its payload, as JSON text.
    pub payload: Option<Arc<str>>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// The settings of its executor, as JSON text.
    pub executor: Option<String>,
    /// Its step of a workflow, as JSON text.
    pub step: Option<String>,
    /// The W3C trace context it came with.
    pub traceparent: Option<String>,
    /// Its retry was due, and became ready in the same step.
    pub promoted: bool,
}

impl Claimed {
    /// Highest priority, then the oldest, then by id (model I-17).
    pub fn place(&self) -> (i16, Timestamp, TaskId) {
        let task = &self.stored.task;
        (-task.priority, task.submitted_at, task.id)
    }
}

/// The answer to a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    Done,
    /// The facts moved on; nothing was written.
    Stale,
    /// The loop on whose behalf this was is paused; nothing was written.
    Paused,
    /// A dedupe key that the commit needs is held by another open task.
    KeyTaken,
    /// Its idempotency key was used before; nothing was written.
    Used(Used),
    /// An account has too little for it; nothing was written.
    Unfunded(Unfunded),
}

/// On whose behalf a write happens.
#[derive(Clone, Copy, Debug)]
pub enum Behalf<'a> {
    Caller,
    /// A loop; refused while it is paused.
    Loop(Loop),
    /// In a namespace, and once.
    Key(&'a str, &'a Idempotency),
}

/// The earlier use of an idempotency key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Used {
    /// For the same request: it was done, and need not be done again.
    ForThis,
    ForAnother,
}

impl Used {
    /// Compares the digest that was stored with the one of a request.
    pub fn by(digest: &[u8], key: &Idempotency) -> Used {
        if digest == key.digest { Used::ForThis } else { Used::ForAnother }
    }
}

/// A heartbeat of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Beat {
    /// The task.
    pub task: TaskId,
    /// The number of the lease.
    pub lease_number: u32,
    /// How long the lease lasts from now on.
    pub extend: Millis,
    /// The progress it reports, as JSON text.
    pub progress: Option<Arc<str>>,
}

/// The answer to a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BeatAnswer {
    Extended(Timestamp),
    /// The task was canceled: its worker should stop.
    Canceled,
    Lost,
}

/// Which due tasks: retries, or first starts. They are paused apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promote {
    Retries,
    Starts,
}

/// Tasks that became ready.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Promoted {
    /// How many tasks became ready.
    pub count: u32,
    /// Where there is work now.
    pub lanes: Vec<Arc<Lane>>,
}

/// Progress of a hook's task since the last report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// The task.
    pub task: TaskId,
    /// Successes since the last report.
    pub success: u32,
    /// Failures since the last report.
    pub failures: u32,
    /// In place of what was expected before.
    pub expected: Option<u32>,
}
