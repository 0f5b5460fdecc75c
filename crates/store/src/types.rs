//! What goes into a store and what comes out: plain data, the same for both databases.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use comeback_core::filter::Filter;
pub use comeback_core::{ActKey, Idempotency};
use comeback_core::{
    Edge, Event, Execution, ExecutionId, Executor, Lane, Millis, NamePatterns, Policy, Record, State, Task, TaskId,
    Timestamp,
};

use serde::{Deserialize, Serialize};

use crate::StoreError;
use crate::accounts::Unfunded;
use crate::page::{FeedCursor, ListCursor};
use crate::row::corrupt;

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

/// An execution's place among those that begin each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tree {
    /// The execution that all of it began with; it may be this one.
    pub root: ExecutionId,
    /// How many executions are above this one.
    pub depth: u32,
    /// How many tasks the root and all executions below it have.
    pub tasks: u64,
    /// Whether the root has not ended yet.
    pub is_open: bool,
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

/// The name of a process, for as long as this is kept.
pub struct HeldName {
    /// What processes of this name that are no longer there had leased, so many at most. Nothing where one of them lives.
    pub left: Vec<TaskId>,
    pub(crate) _kept: Box<dyn Send + Sync>,
}

impl HeldName {
    pub const MOST_LEFT: u32 = 10_000;
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

/// When a fact may be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutIf<'a> {
    Always,
    Absent,
    /// Nobody has changed it since it was this.
    Is(&'a str),
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

/// A stretch of the way that follows a change of rules.
#[derive(Clone, Debug, PartialEq)]
pub struct Settled {
    /// Whose rules these are.
    pub generation: i64,
    /// Where there may be work now.
    pub lanes: Vec<Arc<Lane>>,
    pub is_done: bool,
}

/// Lanes that were deleted in one go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forgotten {
    pub lanes: u64,
    /// There are lanes that were not looked at.
    pub more: bool,
}

/// What was forgotten in one go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    pub tasks: u64,
    /// The limit was reached somewhere: tasks, the feed or keys.
    pub more: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    Leases,
    Timeouts,
    Deadlines,
    /// Tasks whose needs are met and that stand at their gate, whatever the time.
    Gates,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NextDue {
    pub retry: Option<Timestamp>,
    pub start: Option<Timestamp>,
    pub lease: Option<Timestamp>,
    pub timeout: Option<Timestamp>,
    pub deadline: Option<Timestamp>,
    /// Since when somebody has stood at a gate.
    pub gate: Option<Timestamp>,
    pub schedule: Option<Timestamp>,
    pub operation: Option<Timestamp>,
    /// Alerts that are only to be looked at whenever something happens are due since the beginning of time, and not told here.
    pub alert: Option<Timestamp>,
}

impl NextDue {
    pub fn earliest(&self) -> Option<Timestamp> {
        let tasks = [self.retry, self.start, self.lease, self.timeout, self.deadline, self.gate];
        tasks.into_iter().chain([self.schedule, self.operation, self.alert]).flatten().min()
    }
}

/// How many are due before an instant, overdue ones included, by what waits for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DueBefore {
    pub retries: u64,
    pub starts: u64,
    pub leases: u64,
    pub timeouts: u64,
    pub deadlines: u64,
    pub schedules: u64,
    /// Ready for somebody to take them, whenever that is.
    pub ready: u64,
    /// Of the retries and the first starts, those whose deadline comes before that instant.
    pub late_retries: u64,
    pub late_starts: u64,
}

impl DueBefore {
    pub(crate) const QUERY: &'static str = "select
           (select count(*) from task_open where state = 4 and hold = 0 and due < $1),
           (select count(*) from task_open where state = 0 and hold = 0 and due is not null and due < $1),
           (select count(*) from task_open where lease_expires is not null and lease_expires < $1),
           (select count(*) from task_open where timeout_at is not null and timeout_at < $1),
           (select count(*) from task_open where expires_at is not null
             and (state in (0, 1, 4) or (hard_deadline = 1 and state in (2, 3))) and expires_at < $1),
           (select count(*) from schedule where due is not null and due < $1),
           (select count(*) from task_open where state = 1 and hold = 0),
           (select count(*) from task_open where state = 4 and hold = 0 and due < $1 and expires_at <= $1),
           (select count(*) from task_open where state = 0 and hold = 0 and due is not null and due < $1
             and expires_at <= $1)";

    pub(crate) fn read(counts: [i64; 9]) -> DueBefore {
        let [retries, starts, leases, timeouts, deadlines, schedules, ready, late_retries, late_starts] =
            counts.map(i64::cast_unsigned);
        DueBefore { retries, starts, leases, timeouts, deadlines, schedules, ready, late_retries, late_starts }
    }
}

/// A part of an execution, for the graph to work on.
#[derive(Clone, Debug)]
pub struct Graph {
    pub execution: Execution,
    pub tasks: Vec<GraphTask>,
}

#[derive(Clone, Debug)]
pub struct GraphTask {
    pub stored: Stored,
    /// Its edges both ways, where it was asked for itself and not as a neighbour.
    pub edges: Option<TaskEdges>,
}

#[derive(Clone, Debug, Default)]
pub struct TaskEdges {
    pub out: Vec<Edge>,
    pub into: Vec<Edge>,
}

/// A step of an execution as others see it.
#[derive(Clone, Debug, PartialEq)]
pub struct StepView {
    pub task: TaskId,
    pub key: Option<String>,
    pub state: State,
    pub step: Option<String>,
    /// JSON text, of one that succeeded. Left out where the results of all steps that were asked for are too large.
    pub result: Option<Arc<str>>,
    /// How large its result is.
    pub result_bytes: u64,
}

/// Which steps.
#[derive(Clone, Debug)]
pub enum StepsOf<'a> {
    Keys(&'a [String]),
    Tasks(&'a [TaskId]),
}

/// The same, to be taken along.
#[derive(Clone, Debug)]
pub(crate) enum OwnedSteps {
    Keys(Vec<String>),
    Tasks(Vec<TaskId>),
}

impl StepsOf<'_> {
    pub(crate) fn owned(&self) -> OwnedSteps {
        match self {
            StepsOf::Keys(keys) => OwnedSteps::Keys(keys.to_vec()),
            StepsOf::Tasks(tasks) => OwnedSteps::Tasks(tasks.to_vec()),
        }
    }
}

/// A task that stands for an execution, and how that execution ended.
#[derive(Clone, Debug, PartialEq)]
pub struct CallEnd {
    pub task: Stored,
    pub execution: ExecutionId,
    pub state: comeback_core::ExecutionState,
}

/// Executions to list, newest first.
#[derive(Clone, Debug, Default)]
pub struct ExecutionQuery {
    /// None means any.
    pub states: Vec<comeback_core::ExecutionState>,
    pub workflow: Option<String>,
    pub parent: Option<TaskId>,
    /// Those that a schedule started.
    pub schedule: Option<String>,
    /// Behind this one.
    pub after: Option<ExecutionId>,
    /// And so many more.
    pub skip: u32,
    pub limit: u32,
}

/// A text under a name, with versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    pub namespace: String,
    pub name: String,
    pub version: u32,
    pub body: String,
    pub at: Timestamp,
}

/// What goes on by itself. Each sort has a table of its own, so names of different sorts do not meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Following {
    /// Instants that come.
    Schedules,
    /// The feed, for somebody outside.
    Subscriptions,
    /// The feed, until there is too much of something.
    Alerts,
}

impl Following {
    pub const ALL: [Following; 3] = [Following::Schedules, Following::Subscriptions, Following::Alerts];

    pub(crate) const fn table(self) -> &'static str {
        match self {
            Following::Schedules => "schedule",
            Following::Subscriptions => "subscription",
            Following::Alerts => "alert",
        }
    }
}

/// What goes on by itself: what was asked for and how far it has come, both as JSON text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Follower {
    pub sort: Following,
    pub namespace: String,
    pub name: String,
    /// Counts the changes of the row.
    pub version: u32,
    /// When it is to be looked at; nothing while it is paused, or when it is over.
    pub due: Option<Timestamp>,
    pub body: String,
    pub standing: String,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

/// Where documents stand: names on different shelves do not meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shelf<'a> {
    pub namespace: &'a str,
    pub shelf: &'a str,
}

/// Everything about one task.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskView {
    pub stored: Stored,
    pub body: Body,
    pub result: Option<Arc<str>>,
    /// The last record that told of a bad end.
    pub last_failure: Option<Record>,
    /// The last record that holds a verdict.
    pub last_decision: Option<Record>,
    pub progress: Option<String>,
    pub needs: Vec<Edge>,
    /// Which version of its payload is in use, from 1.
    pub payload_version: u32,
}

/// One line of a list.
#[derive(Clone, Debug, PartialEq)]
pub struct Listed {
    pub stored: Stored,
    pub key: Option<String>,
    pub name: Option<String>,
    pub labels: BTreeMap<String, String>,
    pub external_id: Option<String>,
    pub last_error: Option<String>,
    /// What it judged, where it succeeded and judged.
    pub verdict: Option<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Listing {
    pub items: Vec<Listed>,
    pub next: Option<ListCursor>,
}

/// Whose history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    Task(TaskId),
    /// Everything that happened inside.
    Execution(ExecutionId),
}

/// A stretch of the feed.
#[derive(Clone, Debug, PartialEq)]
pub struct Feed {
    pub events: Vec<FeedEvent>,
    /// Where to go on; the same as before when there is nothing new.
    pub next: Option<FeedCursor>,
}

/// A named secret as it is kept. Its value is encrypted; only a process that has the key `key_id` can read it.
#[derive(Clone, PartialEq, Eq)]
pub struct SealedSecret {
    pub namespace: String,
    pub name: String,
    /// Counts changes of the row.
    pub version: u32,
    /// Names the key that it was encrypted with.
    pub key_id: String,
    /// Nonce, ciphertext and tag.
    pub sealed: Vec<u8>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub updated_by: Option<String>,
}

impl std::fmt::Debug for SealedSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SealedSecret({}/{} version {} key {})", self.namespace, self.name, self.version, self.key_id)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct FeedEvent {
    pub cursor: FeedCursor,
    pub namespace: String,
    pub event: Event,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ExecutionView {
    pub execution: Execution,
    pub name: Option<String>,
    pub labels: BTreeMap<String, String>,
    pub external_id: Option<String>,
    pub origin: Origin,
    /// How many of its tasks are in each state.
    pub counts: BTreeMap<State, u64>,
    pub kinds: BTreeSet<String>,
    /// When one of its tasks last changed.
    pub changed_at: Timestamp,
    pub counted: Counted,
}

/// What the tasks of an execution have counted, all together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    pub success: u64,
    pub failures: u64,
    /// Nothing when one of them does not say what it expects.
    pub expected: Option<u64>,
}

/// Of the tasks of an execution that have a state and a lane in common: how many, when the last of them changed, and what they
/// have counted; how many of them say what they expect.
pub(crate) struct ExecutionPart {
    pub state: i16,
    pub lane: i32,
    pub tasks: i64,
    pub changed_at: i64,
    pub success: i64,
    pub failures: i64,
    pub expected: i64,
    pub expecting: i64,
}

impl ExecutionPart {
    pub(crate) const COLUMNS: &'static str =
        "o.state, t.lane, count(*), max(o.updated_at), cast(sum(o.success) as bigint),
         cast(sum(o.failures) as bigint), cast(coalesce(sum(o.expected), 0) as bigint), count(o.expected)";

    /// Both halves of the tasks of execution number one, by state and lane.
    pub(crate) fn query(mark: &str) -> String {
        let half = |table: &str| {
            let columns = Self::COLUMNS;
            format!(
                "select {columns} from task t join {table} o on o.id = t.id where t.execution_id = {mark} group by 1, 2"
            )
        };
        format!("{} union all {}", half("task_open"), half("task_done"))
    }
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

impl ExecutionView {
    /// With what is known of its tasks still to come.
    pub(crate) fn new(
        execution: Execution,
        name: Option<String>,
        labels: BTreeMap<String, String>,
        external_id: Option<String>,
        origin: Origin,
    ) -> ExecutionView {
        ExecutionView {
            changed_at: execution.updated_at,
            execution,
            name,
            labels,
            external_id,
            origin,
            counts: BTreeMap::new(),
            kinds: BTreeSet::new(),
            counted: Counted { expected: Some(0), ..Counted::default() },
        }
    }

    pub(crate) fn add(&mut self, part: &ExecutionPart, lane: Option<&Lane>) {
        let count = |number: i64| u64::try_from(number).unwrap_or(0);
        if let Some(state) = State::from_code(part.state) {
            *self.counts.entry(state).or_default() += count(part.tasks);
        }
        self.kinds.extend(lane.map(|lane| lane.kind.clone()));
        self.changed_at = self.changed_at.max(Timestamp(part.changed_at));
        self.counted.success += count(part.success);
        self.counted.failures += count(part.failures);
        let all_expect = part.expecting == part.tasks;
        self.counted.expected = self.counted.expected.filter(|_| all_expect).map(|sum| sum + count(part.expected));
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counts {
    pub by_state: BTreeMap<State, u64>,
    /// Those of them that are kept from running: paused, held by a guard, or their execution is paused.
    pub held: BTreeMap<State, u64>,
    /// Those that run, by their kind.
    pub running: BTreeMap<String, u64>,
}

impl Counts {
    /// So many of a lane are in a state, and so many of those are held.
    pub(crate) fn add(&mut self, lane: Option<&Lane>, state: i16, count: i64, held: i64) -> Result<(), StoreError> {
        let state = State::from_code(state).ok_or_else(|| corrupt(format!("state {state}")))?;
        *self.by_state.entry(state).or_default() += count.cast_unsigned();
        if held > 0 {
            *self.held.entry(state).or_default() += held.cast_unsigned();
        }
        if let Some(lane) = lane.filter(|_| state == State::Running) {
            *self.running.entry(lane.kind.clone()).or_default() += count.cast_unsigned();
        }
        Ok(())
    }

    /// Of which tasks: of all, or of those that have to do with retries.
    pub(crate) const ALL: &'static str = "true";
    pub(crate) const RETRIED: &'static str = "(attempt > 0 or state in (4, 8))";
}

/// Everything that is open, by what it waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenWork {
    pub running: u64,
    pub pending: u64,
    /// Whose time has come.
    pub retries: Overdue,
    pub starts: Overdue,
    /// Retries and first starts whose time is still to come, and when the first of them is.
    pub scheduled: u64,
    pub next: Option<Timestamp>,
    /// For other tasks.
    pub waiting: u64,
    /// By hand or by a policy, or because their execution is.
    pub paused: u64,
}

/// How many, and how long ago the time of the first of them came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overdue {
    pub count: u64,
    pub late: Millis,
}

impl Overdue {
    fn add(&mut self, count: u64, late: Millis) {
        self.count += count;
        self.late = self.late.max(late);
    }
}

impl OpenWork {
    /// One row per state and hold: how many, how many with a time that is to come, how many with one that has come, and the
    /// first of each.
    pub(crate) const QUERY: &'static str = "select state, hold, count(*), count(case when due > $1 then 1 end),
           count(case when due <= $1 then 1 end), min(case when due > $1 then due end), min(case when due <= $1 then due end)
         from task_open group by state, hold";

    pub(crate) fn add(&mut self, row: OpenWorkRow, now: Timestamp) {
        let OpenWorkRow { state, hold, all, to_come, come, next, first } = row;
        let count = |number: i64| u64::try_from(number).unwrap_or(0);
        if hold != 0 || state == State::Paused.code() {
            self.paused += count(all);
            return;
        }
        let late = first.map_or(Millis::ZERO, |first| now.since(Timestamp(first)));
        match State::from_code(state) {
            Some(State::Pending) => self.pending += count(all),
            Some(State::Claimed | State::Running) => self.running += count(all),
            Some(State::RetryPending) => self.retries.add(count(come), late),
            Some(_) => {
                self.starts.add(count(come), late);
                self.waiting += count(all - to_come - come);
            }
            None => {}
        }
        self.scheduled += count(to_come);
        self.next = [self.next, next.map(Timestamp)].into_iter().flatten().min();
    }
}

pub(crate) struct OpenWorkRow {
    pub state: i16,
    pub hold: i16,
    pub all: i64,
    pub to_come: i64,
    pub come: i64,
    pub next: Option<i64>,
    pub first: Option<i64>,
}

macro_rules! loops {
    ($($(#[$doc:meta])* $name:ident $word:literal),+ $(,)?) => {
        /// The background loops, each of which can be paused by its name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Loop { $($(#[$doc])* $name),+ }

        impl Loop {
            pub const ALL: &'static [Loop] = &[$(Loop::$name),+];

            pub const fn word(self) -> &'static str {
                match self { $(Loop::$name => $word),+ }
            }

            pub fn from_word(word: &str) -> Option<Loop> {
                Loop::ALL.iter().copied().find(|it| it.word() == word)
            }
        }
    };
}

loops! {
    /// Makes due retries pending.
    Retries "retries",
    /// Makes due first starts pending.
    Starts "starts",
    /// Gives up on runs whose lease has run out.
    Reap "reap",
    /// Ends runs that exceed their own limits.
    Timeout "timeout",
    /// Ends tasks whose deadline has passed.
    Expire "expire",
    /// Works out what stands at gates, and hears how called executions ended.
    Flow "flow",
    /// Deletes what is over and old.
    Prune "prune",
    /// Starts what is scheduled.
    Schedule "schedule",
    /// Makes deliveries of what subscriptions want to hear of.
    Tell "subscriptions",
    /// Fires and resolves alerts.
    Alerts "alerts",
    /// Hands out work, to workers and to the executors of the servers.
    Dispatch "dispatch",
    /// Hands out the calls of hooks.
    Hooks "hooks",
    /// Retries what failed and could be retried, when somebody asks for it.
    Repair "repair",
    /// Works off bulk operations.
    Operations "operations",
}

impl Loop {
    /// Whether it has no turns of its own: it happens whenever somebody asks for work.
    pub fn is_asked_for(self) -> bool {
        matches!(self, Loop::Dispatch | Loop::Hooks | Loop::Repair)
    }
}

impl std::fmt::Display for Loop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.word())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pause {
    pub until: Timestamp,
    pub note: Option<String>,
    pub by: Option<String>,
    pub at: Timestamp,
}
