//! Tasks on their way: created, leased, reported on, promoted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use async_trait::async_trait;
use comeback_core::filter::Filter;
use comeback_core::{
    Audit, Commit, Edge, Execution, ExecutionId, Executor, Lane, Millis, NamePatterns, Policy, State, Task, TaskId,
    Timestamp,
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
    async fn outlast(&self, from: Timestamp, to: Timestamp) -> Result<u64, StoreError>;

    /// Adds to what active tasks have counted, all or nothing; a sign of life too. Each task is named once. Answers which of them were
    /// active.
    async fn count(&self, counts: &[Count], now: Timestamp) -> Result<Vec<bool>, StoreError>;

    /// Makes due tasks pending (T14, T26), the longest overdue first; nothing while that loop is paused.
    async fn promote(&self, what: Promote, now: Timestamp, limit: u32) -> Result<Promoted, StoreError>;

    /// What a task is labelled with, how urgent it is and how it is retried, in place of what was said before. Nothing where its labels
    /// are no longer those that the change names, or where it has ended and cannot be more urgent. Another policy begins to count its
    /// rules anew.
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
    pub namespace: String,
    pub tasks: Vec<NewTask>,
    /// Present when the tasks form one execution (model A17).
    pub execution: Option<NewExecution>,
    pub edges: Vec<Edge>,
    pub idempotency: Option<Idempotency>,
    /// Nothing is made where one of these finds a task. Of two who ask that at the same moment, the second finds what the first
    /// has made.
    pub unless: Vec<Filter>,
}

impl Submission {
    /// The kinds that its questions and its tasks are about.
    pub(crate) fn kinds_asked_about(&self) -> BTreeSet<&str> {
        let asked = self.unless.iter().flat_map(Filter::kinds);
        asked.chain(self.tasks.iter().map(|new| new.task.lane.kind.as_str())).collect()
    }

    pub fn in_namespace(namespace: &str) -> Submission {
        Submission { namespace: namespace.to_owned(), ..Submission::default() }
    }
}

/// A task as it will first be: its present, and the body that never changes.
#[derive(Clone, Debug)]
pub struct NewTask {
    pub task: Task,
    pub policy: Option<Arc<Policy>>,
    pub body: Body,
}

/// What is written once about a task.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Body {
    pub key: Option<String>,
    pub name: Option<String>,
    /// JSON text, stored as it came.
    pub payload: Option<Arc<str>>,
    pub labels: BTreeMap<String, String>,
    /// The executor's settings and the hooks, as JSON text.
    pub executor: Option<String>,
    pub hooks: Option<String>,
    /// What makes it a step of a workflow, as JSON text.
    pub step: Option<String>,
    pub account: Option<String>,
    pub cost: Option<u32>,
    pub dedupe_key: Option<String>,
    pub external_id: Option<String>,
    pub traceparent: Option<String>,
    pub hard_deadline: bool,
    /// Admission rules by name that bind it beside those that bind all alike.
    pub rules: Vec<String>,
}

#[derive(Clone, Debug)]
pub struct NewExecution {
    pub execution: Execution,
    pub name: Option<String>,
    pub labels: BTreeMap<String, String>,
    pub external_id: Option<String>,
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
    pub retry_number: u32,
    /// The schedule that started it.
    pub firing: Option<Firing>,
}

/// An instant of a schedule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Firing {
    pub schedule: String,
    pub at: Timestamp,
    pub by: FiredBy,
}

/// Who let a schedule fire.
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

/// Who asks for the same thing again gets the same answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Idempotency {
    /// Keys of different routes do not meet.
    pub scope: String,
    pub key: String,
    /// Of the request: the same key with another request is a mistake.
    pub digest: [u8; 32],
}

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

#[derive(Clone, Debug, PartialEq)]
pub struct SubmittedTask {
    pub id: TaskId,
    pub state: State,
    /// An open task with the same dedupe key was there already; this is its id.
    pub duplicate: bool,
}

/// Who asks for work, and which.
#[derive(Clone, Debug, PartialEq)]
pub struct ClaimRequest {
    pub namespace: String,
    pub queues: Vec<String>,
    /// From all queues of the namespace, whatever `queues` says: for executors of the server itself.
    pub any_queue: bool,
    /// None means any.
    pub kinds: Vec<String>,
    pub executor: Executor,
    pub worker: Arc<str>,
    pub limit: u32,
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
    pub task: Task,
    pub policy_id: Option<i32>,
    pub policy: Option<Arc<Policy>>,
    pub hard_deadline: bool,
}

/// What is said of a task otherwise than before.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Description {
    /// As they were, and as they are from now on.
    pub labels: Option<(BTreeMap<String, String>, BTreeMap<String, String>)>,
    pub priority: Option<i16>,
    /// The policy from the next verdict on, or that there is none.
    pub retry: Option<Option<Arc<Policy>>>,
}

/// A task that was just leased, with what its worker needs.
#[derive(Clone, Debug, PartialEq)]
pub struct Claimed {
    pub stored: Stored,
    pub key: Option<String>,
    pub name: Option<String>,
    pub payload: Option<Arc<str>>,
    pub labels: BTreeMap<String, String>,
    pub executor: Option<String>,
    pub step: Option<String>,
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

/// Who stands behind a change.
#[derive(Clone, Copy, Debug)]
pub enum Behalf<'a> {
    Caller,
    /// Nothing happens while it is paused.
    Loop(Loop),
    /// In a namespace, and once.
    Key(&'a str, &'a Idempotency),
}

/// What an idempotency key was used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Used {
    /// For the same request: it was done, and need not be done again.
    ForThis,
    ForAnother,
}

impl Used {
    pub fn by(digest: &[u8], key: &Idempotency) -> Used {
        if digest == key.digest { Used::ForThis } else { Used::ForAnother }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Beat {
    pub task: TaskId,
    pub lease_number: u32,
    pub extend: Millis,
    pub progress: Option<Arc<str>>,
}

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

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Promoted {
    pub count: u32,
    /// Where there is work now.
    pub lanes: Vec<Arc<Lane>>,
}

/// What somebody at work on a hook's task has counted since they last told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    pub task: TaskId,
    pub success: u32,
    pub failures: u32,
    /// In place of what was expected before.
    pub expected: Option<u32>,
}
