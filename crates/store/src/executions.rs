//! Executions: their graphs, steps and calls of each other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use async_trait::async_trait;
use comeback_core::{Edge, Execution, ExecutionId, Lane, State, TaskId, Timestamp};

use crate::{Origin, StoreError, Stored};

/// Reads of executions. Every method sees one moment.
#[async_trait]
pub trait ExecutionQueries: Send + Sync {
    /// An execution with some of its tasks and their direct neighbours, or with all of them.
    async fn graph(&self, id: ExecutionId, around: Option<&[TaskId]>) -> Result<Option<Graph>, StoreError>;

    /// One execution with everything that is known of it.
    async fn execution(&self, namespace: &str, id: ExecutionId) -> Result<Option<ExecutionView>, StoreError>;

    /// Executions, newest first.
    async fn executions(&self, namespace: &str, query: &ExecutionQuery) -> Result<Vec<ExecutionView>, StoreError>;

    /// Steps of an execution with their results, as far as they have one. Where all results together have more than `most_bytes`, they
    /// are left out, and only their sizes are told.
    async fn steps(
        &self,
        execution: ExecutionId,
        which: StepsOf<'_>,
        most_bytes: u64,
    ) -> Result<Vec<StepView>, StoreError>;

    /// The place of an execution below its root.
    async fn tree(&self, execution: ExecutionId) -> Result<Option<Tree>, StoreError>;

    /// Tasks that wait at a gate whose needs are met: so many of each namespace at most.
    async fn gates(&self, per_namespace: u32) -> Result<Vec<Stored>, StoreError>;

    /// Tasks that stand for executions which are over, while the tasks still run: so many of each namespace at most.
    async fn call_ends(&self, per_namespace: u32) -> Result<Vec<CallEnd>, StoreError>;

    /// Open executions whose task is over or has gone on to another run, or whose root is over: so many of each
    /// namespace at most.
    async fn orphans(&self, per_namespace: u32) -> Result<Vec<(String, ExecutionId)>, StoreError>;
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

/// A part of an execution, for the graph to work on.
#[derive(Clone, Debug)]
pub struct Graph {
    /// The execution.
    pub execution: Execution,
    /// The tasks that were asked for, with their neighbours.
    pub tasks: Vec<GraphTask>,
}

/// A task of an execution with its edges.
#[derive(Clone, Debug)]
pub struct GraphTask {
    /// The task as it is stored.
    pub stored: Stored,
    /// Its edges both ways, where it was asked for itself and not as a neighbour.
    pub edges: Option<TaskEdges>,
}

/// The edges of a task.
#[derive(Clone, Debug, Default)]
pub struct TaskEdges {
    /// Edges to other tasks.
    pub out: Vec<Edge>,
    /// Edges from other tasks.
    pub into: Vec<Edge>,
}

/// A step of an execution as others see it.
#[derive(Clone, Debug, PartialEq)]
pub struct StepView {
    /// The task.
    pub task: TaskId,
    /// The key of the step.
    pub key: Option<String>,
    /// Its state.
    pub state: State,
    /// The settings of the step, as JSON text.
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
    /// The task that stands for the execution.
    pub task: Stored,
    /// The execution.
    pub execution: ExecutionId,
    /// How the execution ended.
    pub state: comeback_core::ExecutionState,
}

/// Executions to list, newest first.
#[derive(Clone, Debug, Default)]
pub struct ExecutionQuery {
    /// None means any.
    pub states: Vec<comeback_core::ExecutionState>,
    /// Started from this workflow.
    pub workflow: Option<String>,
    /// Started by this task.
    pub parent: Option<TaskId>,
    /// Started by this schedule.
    pub schedule: Option<String>,
    /// Behind this one.
    pub after: Option<ExecutionId>,
    /// And so many more.
    pub skip: u32,
    /// At most this many.
    pub limit: u32,
}

/// An execution with everything that is known of it.
#[derive(Clone, Debug, PartialEq)]
pub struct ExecutionView {
    /// The execution.
    pub execution: Execution,
    /// Its name.
    pub name: Option<String>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// An id that its owner gave it.
    pub external_id: Option<String>,
    /// Its origin.
    pub origin: Origin,
    /// How many of its tasks are in each state.
    pub counts: BTreeMap<State, u64>,
    /// The kinds of its tasks.
    pub kinds: BTreeSet<String>,
    /// When one of its tasks last changed.
    pub changed_at: Timestamp,
    /// Progress of its tasks, summed up.
    pub counted: Counted,
}

/// Progress of all tasks of an execution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Successes.
    pub success: u64,
    /// Failures.
    pub failures: u64,
    /// None if one of them does not say what it expects.
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
