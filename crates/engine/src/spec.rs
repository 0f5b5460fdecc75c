//! Specifications of tasks and executions, and their checks. An unsupported field is refused by name, never ignored.
//!
//! Over 500 lines: specifications, their checks and the plan of a submission share private helpers.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use comeback_core::filter::Filter;
use comeback_core::policy::DeadlineKind;
use comeback_core::{
    Edge, Execution, ExecutionId, Executor, Invalid, Lane, Millis, OnUnmet, Policy, State, Task, TaskId, Timestamp,
    When, expression,
};
use comeback_store::{Below, Body, Idempotency, NewExecution, NewTask, Origin, Submission};

use crate::Limits;
use crate::config::{Available, EngineConfig};
use crate::executors::command::Process;
use crate::executors::{HttpCall, Kind, NO_CATEGORY};
use crate::flow::Step;
use crate::hooks;
use crate::ids::Ids;

/// A text that is known to be JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Json(Arc<str>);

impl Json {
    /// Checks and keeps a JSON text.
    pub fn parse(text: &str) -> Result<Json, serde_json::Error> {
        serde_json::from_str::<&serde_json::value::RawValue>(text).map(|raw| Json(raw.get().into()))
    }

    /// The text.
    pub fn text(&self) -> &Arc<str> {
        &self.0
    }
}

impl From<serde_json::Value> for Json {
    fn from(value: serde_json::Value) -> Json {
        Json(value.to_string().into())
    }
}

impl From<Box<serde_json::value::RawValue>> for Json {
    fn from(raw: Box<serde_json::value::RawValue>) -> Json {
        Json(raw.get().into())
    }
}

/// When something is to happen: after a while, or at an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// After this span.
    After(Millis),
    /// At this time.
    At(Timestamp),
}

impl Moment {
    /// The time, counted from now.
    pub fn from(self, now: Timestamp) -> Timestamp {
        match self {
            Moment::After(span) => now + span,
            Moment::At(at) => at,
        }
    }
}

/// One task as a caller asks for it. Only the kind is needed.
#[derive(Clone, Debug, Default)]
pub struct TaskSpec {
    /// Key in the execution, by which others need it.
    pub key: Option<String>,
    /// Name for people.
    pub name: Option<String>,
    /// Kind, by which workers choose it.
    pub kind: String,
    /// Queue; `None` means `default`.
    pub queue: Option<String>,
    /// Priority; higher goes first.
    pub priority: i32,
    /// Payload for the worker.
    pub payload: Option<Json>,
    /// Executor.
    pub executor: ExecutorSpec,
    /// Tasks that must end before.
    pub needs: Vec<Need>,
    /// Retry policy.
    pub retry: Option<Arc<Policy>>,
    /// Longest time without a sign of life.
    pub timeout: Option<Millis>,
    /// Longest time of one attempt.
    pub attempt_deadline: Option<Millis>,
    /// Time after which it expires.
    pub deadline: Option<Moment>,
    /// Earliest start.
    pub start: Option<Moment>,
    /// Dependency that may hold it.
    pub dependency: Option<String>,
    /// Account that pays for it.
    pub account: Option<String>,
    /// Credits per run.
    pub cost: Option<u32>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Admission rules that it brings along, by name.
    pub rules: Vec<String>,
    /// Key that only one open task may have.
    pub dedupe_key: Option<String>,
    /// Id in another system.
    pub external_id: Option<String>,
    /// Calls on its events.
    pub hooks: Option<Json>,
    /// Trace context.
    pub traceparent: Option<String>,
    /// Whether the cancelling of dead ends stops at this task.
    pub dead_end_barrier: bool,
    /// The workflow step, if it is one.
    pub step: Option<Step>,
    /// Time of the first request if it was before now; it orders the queue.
    pub submitted_at: Option<Timestamp>,
    /// How much a hook is expected to count.
    pub expected: Option<u32>,
}

impl TaskSpec {
    /// A task of this kind with default settings.
    pub fn new(kind: impl Into<String>) -> TaskSpec {
        TaskSpec { kind: kind.into(), ..TaskSpec::default() }
    }

    /// Sets the payload.
    pub fn payload(mut self, payload: serde_json::Value) -> TaskSpec {
        self.payload = Some(payload.into());
        self
    }

    /// Sets the retry policy.
    pub fn retry(mut self, policy: Policy) -> TaskSpec {
        self.retry = Some(Arc::new(policy));
        self
    }
}

/// Executor of a task with its settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ExecutorSpec {
    /// A worker that leases it.
    #[default]
    Worker,
    /// An HTTP call of the server.
    Http(Json),
    /// A call that starts work elsewhere; a callback ends it.
    Hook(Json),
    /// A command on the server.
    Command(Json),
    /// A timer: it ends when its time has come.
    Timer,
}

impl ExecutorSpec {
    /// The executor without its settings.
    pub fn executor(&self) -> Executor {
        match self {
            ExecutorSpec::Worker => Executor::Worker,
            ExecutorSpec::Http(_) => Executor::Http,
            ExecutorSpec::Hook(_) => Executor::Hook,
            ExecutorSpec::Command(_) => Executor::Command,
            ExecutorSpec::Timer => Executor::Timer,
        }
    }

    fn settings(&self) -> Option<&Json> {
        match self {
            ExecutorSpec::Http(settings) | ExecutorSpec::Hook(settings) | ExecutorSpec::Command(settings) => {
                Some(settings)
            }
            ExecutorSpec::Worker | ExecutorSpec::Timer => None,
        }
    }
}

/// A task that must have ended before, by its key in the same request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Need {
    /// Key of the other task.
    pub task: String,
    /// End that meets the need.
    pub when: When,
    /// Consequence if it cannot be met any more.
    pub on_unmet: OnUnmet,
}

/// Settings of an execution.
#[derive(Clone, Debug, Default)]
pub struct ExecutionSpec {
    /// Name for people.
    pub name: Option<String>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Id in another system.
    pub external_id: Option<String>,
    /// Whether the first failure cancels all open tasks.
    pub fail_fast: bool,
    /// Whether tasks whose children are all over are canceled.
    pub dead_end_cancel: bool,
    /// A name that was given away before.
    pub id: Option<ExecutionId>,
    /// Origin of the execution.
    pub origin: Origin,
    /// Its place below the execution that all of it began with.
    pub below: Option<Below>,
}

impl ExecutionSpec {
    fn check(&self, limits: &Limits, faults: &mut Invalid) {
        for (path, text) in [("execution.name", &self.name), ("execution.external_id", &self.external_id)] {
            if let Some(text) = text {
                limits.check_name(path, text, faults);
            }
        }
        limits.check_labels("execution.", &self.labels, faults);
    }
}

/// A request to create tasks.
#[derive(Clone, Debug, Default)]
pub struct Submit {
    /// The namespace.
    pub namespace: String,
    /// The tasks.
    pub tasks: Vec<TaskSpec>,
    /// The execution, if the tasks form one.
    pub execution: Option<ExecutionSpec>,
    /// Idempotency key.
    pub idempotency: Option<Idempotency>,
    /// Conflicts if one of these finds a task; nothing is created then.
    pub unless: Vec<Filter>,
}

impl Submit {
    /// A submission of one lone task.
    pub fn one(namespace: impl Into<String>, task: TaskSpec) -> Submit {
        Submit { namespace: namespace.into(), tasks: vec![task], ..Submit::default() }
    }

    /// Checks everything and makes the rows; or names every fault and makes nothing.
    pub(crate) fn plan(&self, config: &EngineConfig, ids: &Ids, now: Timestamp) -> Result<Submission, Invalid> {
        let mut faults = Invalid::default();
        for (i, spec) in self.tasks.iter().enumerate() {
            let at = path(i, self.tasks.len());
            for (field, given) in [("account", spec.account.is_some()), ("cost", spec.cost.is_some())] {
                if given {
                    faults.push(format!("{at}{field}"), "is available for tasks that are submitted, and for no others");
                }
            }
        }
        self.plan_with(config, ids, now, faults)
    }

    /// The same for tasks whose price is known.
    pub(crate) fn plan_metered(&self, config: &EngineConfig, ids: &Ids, now: Timestamp) -> Result<Submission, Invalid> {
        self.plan_with(config, ids, now, Invalid::default())
    }

    fn plan_with(
        &self,
        config: &EngineConfig,
        ids: &Ids,
        now: Timestamp,
        mut faults: Invalid,
    ) -> Result<Submission, Invalid> {
        let limits = &config.limits;
        limits.check_namespace(&self.namespace, &mut faults);
        if self.tasks.len() > limits.tasks_per_submit {
            faults.push("tasks", format!("at most {} tasks go into one request", limits.tasks_per_submit));
            return Err(faults);
        }
        if let Some(idempotency) = &self.idempotency {
            limits.check_name("idempotency_key", &idempotency.key, &mut faults);
        }
        if let Some(execution) = &self.execution {
            execution.check(limits, &mut faults);
            if self.tasks.is_empty() {
                faults.push("tasks", "an execution needs at least one task");
            }
        }
        for (i, spec) in self.tasks.iter().enumerate() {
            let at = path(i, self.tasks.len());
            spec.check(&at, config, &mut faults);
            if config.kinds.that_runs(&self.namespace, spec).is_some() {
                Kind::check(spec, &at, limits, &mut faults);
            }
        }
        let by_key = self.by_key(&mut faults);
        let linked = self.execution.is_some() || self.tasks.iter().any(|spec| !spec.needs.is_empty());
        if !linked {
            let task = |spec: &TaskSpec| spec.task(&self.namespace, spec.id(ids, now), None, config, now);
            let tasks = self.tasks.iter().map(task).collect();
            let idempotency = self.idempotency.clone();
            return faults.or(()).map(|()| Submission {
                namespace: self.namespace.clone(),
                tasks,
                idempotency,
                unless: self.unless.clone(),
                ..Submission::default()
            });
        }
        self.plan_execution(config, ids, now, &by_key, faults)
    }

    /// The tasks by their own names, which are unique in a request.
    fn by_key(&self, faults: &mut Invalid) -> HashMap<&str, usize> {
        let mut by_key = HashMap::new();
        for (i, spec) in self.tasks.iter().enumerate() {
            let Some(key) = &spec.key else { continue };
            match by_key.entry(key.as_str()) {
                Entry::Vacant(free) => drop(free.insert(i)),
                Entry::Occupied(first) => {
                    let at = format!("{}key", path(i, self.tasks.len()));
                    faults.push(at, format!("`{key}` is the key of an earlier task: tasks[{}]", first.get()));
                }
            }
        }
        by_key
    }

    fn plan_execution(
        &self,
        config: &EngineConfig,
        ids: &Ids,
        now: Timestamp,
        by_key: &HashMap<&str, usize>,
        mut faults: Invalid,
    ) -> Result<Submission, Invalid> {
        let count = self.tasks.len();
        let given = self.execution.as_ref().and_then(|spec| spec.id);
        let execution_id = given.unwrap_or_else(|| ids.execution(now));
        let task_ids: Vec<TaskId> = self.tasks.iter().map(|spec| spec.id(ids, now)).collect();
        for (i, spec) in self.tasks.iter().enumerate() {
            if spec.dedupe_key.is_some() {
                faults
                    .push(format!("{}dedupe_key", path(i, count)), "is for lone tasks, not for tasks of an execution");
            }
        }
        let mut edges = Vec::new();
        let mut linked: HashSet<(usize, usize)> = HashSet::new();
        for (i, spec) in self.tasks.iter().enumerate() {
            for (n, need) in spec.needs.iter().enumerate() {
                let at = format!("{}needs[{n}].task", path(i, count));
                match by_key.get(need.task.as_str()) {
                    None => faults.push(at, format!("`{}` is no task of this request", need.task)),
                    Some(from) if *from == i => faults.push(at, "a task cannot need itself"),
                    Some(from) => {
                        let edge =
                            Edge { from: task_ids[*from], to: task_ids[i], when: need.when, on_unmet: need.on_unmet };
                        if !linked.insert((*from, i)) {
                            faults.push(at, format!("`{}` is needed twice", need.task));
                        }
                        edges.push((*from, i, edge));
                    }
                }
            }
        }
        if faults.is_empty()
            && let Some(cycle) = find_cycle(count, edges.iter().map(|(from, to, _)| (*from, *to)))
        {
            let name = |i: usize| self.tasks[i].key.clone().unwrap_or_else(|| format!("tasks[{i}]"));
            let words: Vec<String> = cycle.into_iter().map(name).collect();
            faults.push("tasks", format!("the needs go round in a circle: {}", words.join(" → ")));
        }
        faults.or(())?;
        Ok(self.rows(config, execution_id, &task_ids, edges, now))
    }

    fn rows(
        &self,
        config: &EngineConfig,
        id: ExecutionId,
        task_ids: &[TaskId],
        edges: Vec<(usize, usize, Edge)>,
        now: Timestamp,
    ) -> Submission {
        let mut tasks: Vec<NewTask> = self
            .tasks
            .iter()
            .zip(task_ids)
            .map(|(spec, task_id)| spec.task(&self.namespace, *task_id, Some(id), config, now))
            .collect();
        for (from, to, _) in &edges {
            tasks[*from].task.children_left += 1;
            tasks[*to].task.needs_left += 1;
            tasks[*to].task.state = State::Waiting;
        }
        let spec = self.execution.clone().unwrap_or_default();
        let total = u32::try_from(tasks.len()).unwrap_or(u32::MAX);
        let execution = Execution {
            fail_fast: spec.fail_fast,
            dead_end_cancel: spec.dead_end_cancel,
            parent: spec.origin.parent,
            ..Execution::new(id, self.namespace.as_str().into(), total, now)
        };
        Submission {
            namespace: self.namespace.clone(),
            tasks,
            execution: Some(NewExecution {
                execution,
                name: spec.name,
                labels: spec.labels,
                external_id: spec.external_id,
                origin: spec.origin,
                below: spec.below,
            }),
            edges: edges.into_iter().map(|(_, _, edge)| edge).collect(),
            idempotency: self.idempotency.clone(),
            unless: self.unless.clone(),
        }
    }
}

/// A lone task is named by its fields, one of many by its place.
fn path(index: usize, count: usize) -> String {
    if count == 1 { String::new() } else { format!("tasks[{index}].") }
}

impl TaskSpec {
    fn check(&self, at: &str, config: &EngineConfig, faults: &mut Invalid) {
        let limits = &config.limits;
        let mut name = |field: &str, text: &str| limits.check_name(&format!("{at}{field}"), text, faults);
        name("kind", &self.kind);
        let optional = [
            ("key", &self.key),
            ("name", &self.name),
            ("queue", &self.queue),
            ("dependency", &self.dependency),
            ("dedupe_key", &self.dedupe_key),
            ("external_id", &self.external_id),
            ("traceparent", &self.traceparent),
        ];
        for (field, text) in optional {
            if let Some(text) = text {
                name(field, text);
            }
        }
        if let Some(fault) = priority_fault(self.priority) {
            faults.push(format!("{at}priority"), fault);
        }
        if self.payload.as_ref().is_some_and(|json| json.text().len() > limits.payload_bytes) {
            faults.push(format!("{at}payload"), format!("may have {} bytes at most", limits.payload_bytes));
        }
        limits.check_labels(at, &self.labels, faults);
        if self.needs.len() > limits.needs_per_task {
            faults.push(format!("{at}needs"), format!("at most {} needs are allowed", limits.needs_per_task));
        }
        let year = Millis::from_days(3_660);
        let spans = [
            ("timeout", self.timeout),
            ("attempt_deadline", self.attempt_deadline),
            ("deadline", moment_span(self.deadline)),
            ("delay", moment_span(self.start)),
        ];
        for (field, span) in spans {
            match span {
                Some(span) if span > year => faults.push(format!("{at}{field}"), format!("may be {year} at most")),
                Some(Millis(0)) if field != "delay" => faults.push(format!("{at}{field}"), "may not be zero"),
                _ => {}
            }
        }
        if let Some(Err(invalid)) = self.retry.as_ref().map(|policy| policy.check(&config.policy_limits)) {
            for fault in invalid.faults {
                faults.push(format!("{at}retry.{}", fault.path), fault.message);
            }
        }
        if self.expected.is_some_and(|expected| expected > i32::MAX.cast_unsigned()) {
            faults.push(format!("{at}expected"), format!("may be {} at most", i32::MAX));
        }
        self.refuse_what_is_not_built(at, config, faults);
    }

    fn refuse_what_is_not_built(&self, at: &str, config: &EngineConfig, faults: &mut Invalid) {
        if let Some(Err(part)) = self.hooks.as_ref().map(hooks::check) {
            faults.absorb(&format!("{at}hooks"), part);
        }
        self.check_executor(at, config.executors, faults);
    }

    fn check_executor(&self, at: &str, available: Available, faults: &mut Invalid) {
        let (is_there, read) = match &self.executor {
            ExecutorSpec::Worker => (true, Ok(())),
            ExecutorSpec::Hook(settings) if self.is_to_be_worked_out(settings) => (true, Ok(())),
            ExecutorSpec::Hook(settings) => (true, hooks::check_start(settings)),
            ExecutorSpec::Timer => (available.timer, Ok(())),
            // What is still to be worked out is read when it is run.
            ExecutorSpec::Http(settings) if self.is_to_be_worked_out(settings) => (available.http, Ok(())),
            ExecutorSpec::Command(settings) if self.is_to_be_worked_out(settings) => (available.command, Ok(())),
            ExecutorSpec::Http(settings) => (available.http, HttpCall::checked(settings.text()).map(|_| ())),
            ExecutorSpec::Command(settings) => (available.command, Process::read(settings.text()).map(|_| ())),
        };
        if !is_there {
            let word = self.executor.executor();
            let message = match self.executor {
                ExecutorSpec::Command(_) => {
                    "a server runs commands only when it was started with --allow-commands".into()
                }
                _ => format!("`{word}` is not available here"),
            };
            faults.push(format!("{at}executor.type"), message);
        } else if let Err(part) = read {
            faults.absorb(&format!("{at}executor"), part);
        }
    }

    fn is_to_be_worked_out(&self, settings: &Json) -> bool {
        self.step.is_some() && expression::is_template(settings.text())
    }

    /// A task that stands for an execution has the executor `flow`.
    fn executor(&self) -> Executor {
        match &self.step {
            Some(step) if step.stands_for_others() => Executor::Flow,
            _ => self.executor.executor(),
        }
    }

    /// Time of the submission, also in the id, so that lists by id are lists by submission.
    fn submitted(&self, now: Timestamp) -> Timestamp {
        self.submitted_at.unwrap_or(now).clamp(Timestamp(0), now)
    }

    fn id(&self, ids: &Ids, now: Timestamp) -> TaskId {
        match self.submitted(now) {
            past if past < now => ids.earlier_task(past),
            _ => ids.task(now),
        }
    }

    /// The rows of a lone task that the engine itself submits.
    pub(crate) fn lone(&self, namespace: &str, config: &EngineConfig, id: TaskId, now: Timestamp) -> NewTask {
        self.task(namespace, id, None, config, now)
    }

    /// The rows of this task, without regard to its needs.
    fn task(
        &self,
        namespace: &str,
        id: TaskId,
        execution: Option<ExecutionId>,
        config: &EngineConfig,
        now: Timestamp,
    ) -> NewTask {
        let kind = config.kinds.that_runs(namespace, self);
        let queue = kind.map_or(NO_CATEGORY, |_| Kind::queue(self));
        let lane = Lane {
            namespace: namespace.to_owned(),
            queue: self.queue.clone().unwrap_or_else(|| queue.into()),
            kind: self.kind.clone(),
            executor: self.executor(),
            dependency: self.dependency.clone(),
            shared: execution.is_some(),
            limits: Vec::new(),
        };
        let mut task = Task::new(id, Arc::new(lane), self.submitted(now));
        task.execution = execution;
        task.priority = i16::try_from(self.priority).unwrap_or(0);
        // A loop takes as long as its rounds do, which have limits of their own.
        if self.step.as_ref().is_none_or(|step| step.foreach.is_none()) {
            task.timeout = self.timeout.or(self.retry.as_ref().and_then(|policy| policy.timeout));
            task.attempt_deadline = self.attempt_deadline.or(kind.and_then(|kind| kind.timeout));
        }
        let policy_ends = self.retry.as_ref().and_then(|policy| policy.expires_at);
        task.expires_at = self.deadline.map(|moment| moment.from(now)).into_iter().chain(policy_ends).min();
        task.dead_end_barrier = self.dead_end_barrier;
        task.gated = self.step.as_ref().is_some_and(Step::has_gate);
        task.hooked = self.hooks.is_some();
        task.metered = self.account.is_some();
        task.tally.expected = self.expected;
        task.start_at = self.start.map(|moment| moment.from(now)).filter(|at| *at > now);
        task.state = if task.start_at.is_some() || task.gated { State::Waiting } else { State::Pending };
        if execution.is_none() {
            task.seq = if task.start_at.is_some() { 1 } else { 2 };
        }
        NewTask {
            policy: self.retry.clone(),
            body: Body {
                key: self.key.clone(),
                name: self.name.clone(),
                payload: self.payload.as_ref().map(|json| json.text().clone()),
                labels: self.labels.clone(),
                rules: self.rules.clone(),
                executor: self.executor.settings().map(|json| json.text().to_string()),
                hooks: self.hooks.as_ref().map(|json| json.text().to_string()),
                step: self.step.as_ref().map(Step::text),
                account: self.account.clone(),
                cost: self.cost,
                dedupe_key: self.dedupe_key.clone(),
                external_id: self.external_id.clone(),
                traceparent: self.traceparent.clone(),
                hard_deadline: self.retry.as_ref().is_some_and(|policy| policy.deadline == DeadlineKind::Hard),
            },
            task,
        }
    }
}

fn moment_span(moment: Option<Moment>) -> Option<Millis> {
    match moment {
        Some(Moment::After(span)) => Some(span),
        _ => None,
    }
}

/// A way round, if there is one: the first task stands at both ends.
fn find_cycle(count: usize, edges: impl Iterator<Item = (usize, usize)>) -> Option<Vec<usize>> {
    let mut out: Vec<Vec<usize>> = vec![Vec::new(); count];
    let mut into = vec![0_u32; count];
    for (from, to) in edges {
        out[from].push(to);
        into[to] += 1;
    }
    let mut free: Vec<usize> = (0..count).filter(|i| into[*i] == 0).collect();
    let mut left = count;
    while let Some(i) = free.pop() {
        left -= 1;
        for to in &out[i] {
            into[*to] -= 1;
            if into[*to] == 0 {
                free.push(*to);
            }
        }
    }
    if left == 0 {
        return None;
    }
    // Everything that is not free has a parent that is not free either: walking up must come round.
    let mut parent = vec![usize::MAX; count];
    for (from, children) in out.iter().enumerate().filter(|(from, _)| into[*from] > 0) {
        for to in children.iter().filter(|to| into[**to] > 0) {
            parent[*to] = from;
        }
    }
    let mut at = (0..count).find(|i| into[*i] > 0)?;
    let mut path: Vec<usize> = Vec::new();
    while !path.contains(&at) {
        path.push(at);
        at = parent[at];
    }
    let start = path.iter().position(|i| *i == at)?;
    let mut cycle: Vec<usize> = path[start..].to_vec();
    cycle.reverse();
    cycle.push(cycle[0]);
    Some(cycle)
}

/// The fault of a priority, if it has one.
pub(crate) fn priority_fault(priority: i32) -> Option<&'static str> {
    (!(-1_000..=1_000).contains(&priority)).then_some("must be between -1000 and 1000")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const NOW: Timestamp = Timestamp(1_800_000_000_000);

    fn plan(submit: &Submit) -> Result<Submission, Vec<String>> {
        submit.plan(&EngineConfig::default(), &Ids::new(Some(1)), NOW).map_err(|invalid| {
            invalid.faults.into_iter().map(|fault| format!("{}: {}", fault.path, fault.message)).collect()
        })
    }

    fn faults(task: TaskSpec) -> Vec<String> {
        plan(&Submit::one("default", task))
            .expect_err("it is wrong")
            .into_iter()
            .map(|fault| fault.split(':').next().unwrap_or_default().to_owned())
            .collect()
    }

    fn chain(edges: &[(&str, &str)], keys: &[&str]) -> Submit {
        let tasks = keys
            .iter()
            .map(|key| TaskSpec {
                key: Some((*key).to_owned()),
                needs: edges
                    .iter()
                    .filter(|(_, to)| to == key)
                    .map(|(from, _)| Need { task: (*from).to_owned(), when: When::Success, on_unmet: OnUnmet::Skip })
                    .collect(),
                ..TaskSpec::new("k")
            })
            .collect();
        Submit { namespace: "default".into(), tasks, ..Submit::default() }
    }

    #[test]
    fn every_fault_is_named_by_its_path() {
        assert_eq!(faults(TaskSpec::default()), ["kind"]);
        assert_eq!(faults(TaskSpec::new("a\nb")), ["kind"]);
        assert_eq!(faults(TaskSpec { priority: 1_001, ..TaskSpec::new("k") }), ["priority"]);
        assert_eq!(faults(TaskSpec { queue: Some(String::new()), ..TaskSpec::new("k") }), ["queue"]);
        assert_eq!(faults(TaskSpec::new("k").payload(json!("x".repeat(300_000)))), ["payload"]);
        assert_eq!(faults(TaskSpec { timeout: Some(Millis(0)), ..TaskSpec::new("k") }), ["timeout"]);
        let labels = (0..40).map(|n| (n.to_string(), String::new())).collect();
        assert_eq!(faults(TaskSpec { labels, ..TaskSpec::new("k") }), ["labels"]);
        let many = Submit {
            namespace: "default".into(),
            tasks: vec![TaskSpec::new("k"), TaskSpec::default()],
            ..Submit::default()
        };
        assert_eq!(plan(&many).unwrap_err(), ["tasks[1].kind: may not be empty"]);
    }

    #[test]
    fn what_is_not_built_is_refused_by_name() {
        let spec = TaskSpec {
            account: Some("acme".into()),
            cost: Some(1),
            hooks: Some(json!({"end": [], "success": [{"url": "ftp://x"}]}).into()),
            executor: ExecutorSpec::Http(json!({}).into()),
            ..TaskSpec::new("k")
        };
        assert_eq!(faults(spec), ["account", "cost", "hooks.end", "hooks.success[0].url", "executor.type"]);
    }

    #[test]
    fn needs_are_checked_and_a_circle_is_spelled_out() {
        let fails = |submit: &Submit| plan(submit).unwrap_err().join("; ");
        assert!(fails(&chain(&[("x", "a")], &["a"])).contains("`x` is no task of this request"));
        assert!(fails(&chain(&[("a", "a")], &["a"])).contains("a task cannot need itself"));
        assert!(fails(&chain(&[("a", "b")], &["a", "b", "a"])).contains("`a` is the key of an earlier task"));
        assert!(
            fails(&chain(&[], &["a", "b", "a"])).contains("tasks[2].key: `a` is the key of an earlier task: tasks[0]")
        );
        let circle = fails(&chain(&[("a", "b"), ("b", "c"), ("c", "a"), ("a", "d")], &["a", "b", "c", "d"]));
        assert!(
            circle.contains("a → b → c → a") || circle.contains("b → c → a → b") || circle.contains("c → a → b → c"),
            "{circle}"
        );
    }

    #[test]
    fn linked_tasks_make_one_execution_and_others_none() {
        let linked = plan(&chain(&[("a", "b")], &["a", "b"])).unwrap();
        let execution = linked.execution.expect("an execution");
        assert_eq!(execution.execution.total, 2);
        assert!(linked.tasks.iter().all(|new| new.task.execution == Some(execution.execution.id)));
        assert_eq!(linked.tasks[1].task.state, State::Waiting);
        let lone = plan(&chain(&[], &["a", "b"])).unwrap();
        assert!(lone.execution.is_none() && lone.tasks.iter().all(|new| new.task.execution.is_none()));
        let asked = Submit { execution: Some(ExecutionSpec::default()), ..chain(&[], &["a"]) };
        assert!(plan(&asked).unwrap().execution.is_some());
    }

    #[test]
    fn ten_thousand_tasks_in_a_chain_are_planned_quickly() {
        let keys: Vec<String> = (0..10_000).map(|n| n.to_string()).collect();
        let tasks = (0..10_000)
            .map(|n| TaskSpec {
                key: Some(keys[n].clone()),
                needs: (n > 0)
                    .then(|| Need { task: keys[n - 1].clone(), when: When::Success, on_unmet: OnUnmet::Skip })
                    .into_iter()
                    .collect(),
                ..TaskSpec::new("k")
            })
            .collect();
        let submission = plan(&Submit { namespace: "default".into(), tasks, ..Submit::default() }).unwrap();
        assert_eq!(submission.edges.len(), 9_999);
    }

    #[test]
    fn only_json_is_json() {
        assert!(Json::parse("{\"a\": 1}").is_ok());
        for text in ["", "{", "nul", "{\"a\":1}x", "\u{0}"] {
            assert!(Json::parse(text).is_err(), "{text}");
        }
    }
}
