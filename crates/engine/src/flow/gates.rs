//! Gates: a condition that holds or not, a list to go over.

use std::collections::{BTreeMap, HashMap};

use comeback_core::{
    Edge, ExecutionId, Executor, Invalid, Lane, Millis, OnUnmet, Quota, QuotaExceeded, Task, TaskId, Timestamp, When,
    expression, workflow,
};
use comeback_store::{Behalf, Body, Loop, NewTask, StoreError, Stored, TaskView};
use serde_json::{Value, json};

use super::calls::cancel_below_ended;
use super::turns::{TURN, by_namespace, in_turns};
use super::{Foreach, Round, Step};
use crate::Core;
use crate::loops::Progress;
use crate::pipeline::{ChangeRequest, Gate, TaskChange, count_changed};

/// How many rounds a loop may have.
const MOST_ROUNDS: usize = 10_000;

pub(crate) async fn tick(core: &Core) -> Result<Progress, StoreError> {
    let due = core.store.gates(TURN).await?;
    in_turns(by_namespace(due, |stored| &stored.task.lane.namespace), |due| async move {
        let mut requests = Vec::with_capacity(due.len());
        let mut spawned = Spawned::new();
        for stored in due {
            comeback_store::Running::turn();
            comeback_store::panic_point!("flow-gate");
            let Some(gate) = look(core, &stored, &mut spawned).await? else { continue };
            requests.push(ChangeRequest::exact(stored, TaskChange::Gate(gate)));
        }
        Ok(count_changed(&core.apply_changes(requests, Behalf::Loop(Loop::Flow)).await?) as usize)
    })
    .await
}

/// Rounds that this turn makes and that are not stored yet, by the root of their execution.
type Spawned = HashMap<ExecutionId, u64>;

/// Evaluates a gate; `None` if the execution was canceled because its root has ended.
async fn look(core: &Core, stored: &Stored, spawned: &mut Spawned) -> Result<Option<Gate>, StoreError> {
    let task = &stored.task;
    let namespace = &task.lane.namespace;
    let view = core.store.task(namespace, task.id).await?;
    let Some((execution, view)) = task.execution.zip(view) else { return Ok(Some(Gate::Open)) };
    let Some(step) = view.body.step.as_deref().and_then(Step::read) else { return Ok(Some(Gate::Open)) };
    let Some(scene) = core.template_context(namespace, execution, &step.sees).await? else {
        return Ok(Some(Gate::Open));
    };
    let mut context = match scene.context(&step.before_rounds()) {
        Ok(context) => context,
        Err(faults) => return Ok(Some(Gate::Fail(format!("what it speaks of could not be worked out: {faults}")))),
    };
    context["attempt"] = task.attempt_number().into();
    match &step.condition {
        None => {}
        Some(condition) => match expression::holds(condition, &context) {
            Ok(true) => {}
            Ok(false) => return Ok(Some(Gate::Skip)),
            Err(error) => return Ok(Some(Gate::Fail(format!("its condition could not be worked out: {error}")))),
        },
    }
    let Some(foreach) = &step.foreach else { return Ok(Some(Gate::Open)) };
    // Reopened after its rounds were made: they are there, and it waits for them.
    let rounds_before = view.needs.iter().map(|edge| edge.from).collect::<Vec<_>>();
    let known = core.store.steps(execution, comeback_store::StepsOf::Tasks(&rounds_before), 0).await?;
    let name = view.body.key.as_deref().unwrap_or_default();
    let is_round = |key: &str| key.strip_prefix(name).is_some_and(|rest| rest.starts_with('['));
    if known.iter().filter_map(|it| it.key.as_deref()).any(is_round) {
        return Ok(Some(Gate::Open));
    }
    let items = match items(foreach, &context) {
        Ok(items) => items,
        Err(message) => return Ok(Some(Gate::Fail(message))),
    };
    let Some(tree) = core.store.tree(execution).await? else { return Ok(Some(Gate::Open)) };
    if !tree.is_open {
        cancel_below_ended(core, namespace, execution).await?;
        return Ok(None);
    }
    let most = core.config.quotas.get(Quota::TasksPerRoot);
    let more = spawned.entry(tree.root).or_default();
    if tree.tasks + *more + items.len() as u64 > most {
        let refused = QuotaExceeded { quota: Quota::TasksPerRoot, namespace: namespace.clone(), most };
        return Ok(Some(Gate::Fail(refused.to_string())));
    }
    *more += items.len() as u64;
    Ok(Some(match named(core, &view.body, foreach, items, context).await {
        Ok(items) => rounds(core, execution, stored, &view, &step, foreach, items),
        Err(faults) => Gate::Fail(format!("what each round is called could not be worked out: {faults}")),
    }))
}

/// An item, with the name and the labels of its round.
type Item = (Value, Option<String>, BTreeMap<String, String>);

async fn named(
    core: &Core,
    body: &Body,
    foreach: &Foreach,
    items: Vec<Value>,
    mut context: Value,
) -> Result<Vec<Item>, Invalid> {
    let shown = json!({"name": body.name, "labels": body.labels});
    if !workflow::names_a_round(&shown, &foreach.name) {
        return Ok(items.into_iter().map(|item| (item, body.name.clone(), body.labels.clone())).collect());
    }
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let mut all = Vec::with_capacity(items.len());
    for (index, item) in (0_u32..).zip(items) {
        comeback_store::Running::turn();
        tokio::task::yield_now().await;
        let round = Round { of: String::new(), index, name: foreach.name.clone(), item };
        round.name_in(&mut context);
        let filled = expression::render(&shown, &context)?;
        let name = body.name.as_ref().map(|_| text(&filled["name"]));
        let labels = filled["labels"].as_object().into_iter().flatten();
        let labels = labels.map(|(key, value)| (key.clone(), text(value))).collect();
        let mut faults = Invalid::default();
        core.config.limits.check_labels("", &labels, &mut faults);
        if let Some(name) = &name {
            core.config.limits.check_name("name", name, &mut faults);
        }
        all.push(faults.or((round.item, name, labels))?);
    }
    Ok(all)
}

fn items(foreach: &Foreach, context: &Value) -> Result<Vec<Value>, String> {
    let value = match &foreach.items {
        Value::String(text) => expression::eval(text, context),
        list => expression::render(list, context).map_err(|faults| faults.to_string()),
    };
    match value.map_err(|error| format!("what it goes over could not be worked out: {error}"))? {
        Value::Array(items) if items.len() > MOST_ROUNDS => {
            Err(format!("it would go over {} items, and {MOST_ROUNDS} are the most", items.len()))
        }
        Value::Array(items) => Ok(items),
        Value::Object(fields) => {
            Ok(fields.into_iter().map(|(key, value)| serde_json::json!({"key": key, "value": value})).collect())
        }
        other => Err(format!("what it goes over is no list: {}", shortened(&other))),
    }
}

fn shortened(value: &Value) -> String {
    let text = value.to_string();
    text.chars().take(80).collect()
}

/// A task for each item, and edges: to the step itself, and among them where not all may run at the same time.
fn rounds(
    core: &Core,
    execution: ExecutionId,
    stored: &Stored,
    view: &TaskView,
    step: &Step,
    foreach: &Foreach,
    items: Vec<Item>,
) -> Gate {
    let now = core.clock.now();
    let parent = stored.task.id;
    let name = view.body.key.clone().unwrap_or_default();
    let tasks: Vec<NewTask> = (0_u32..)
        .zip(items)
        .map(|(index, (item, title, labels))| {
            let round = Round { of: name.clone(), index, name: foreach.name.clone(), item };
            let mut new = round_task(core.ids.task(now), execution, stored, view, step, foreach, round, now);
            (new.body.name, new.body.labels) = (title, labels);
            new
        })
        .collect();
    let edge = |from: TaskId, to: TaskId, when: When| Edge { from, to, when, on_unmet: OnUnmet::Skip };
    let ids: Vec<TaskId> = tasks.iter().map(|new| new.task.id).collect();
    let mut edges: Vec<Edge> = ids.iter().map(|id| edge(*id, parent, When::Always)).collect();
    let (apart, when) = match (foreach.sequential, foreach.limit) {
        (true, _) => (1, When::Success),
        (false, Some(limit)) => (limit.max(1) as usize, When::Always),
        (false, None) => (usize::MAX, When::Always),
    };
    edges.extend(ids.iter().zip(ids.iter().skip(apart.min(ids.len()))).map(|(from, to)| edge(*from, *to, when)));
    Gate::Spawn { tasks, edges }
}

#[allow(clippy::too_many_arguments)]
fn round_task(
    id: TaskId,
    execution: ExecutionId,
    stored: &Stored,
    view: &TaskView,
    step: &Step,
    foreach: &Foreach,
    round: Round,
    now: Timestamp,
) -> NewTask {
    let each = &foreach.each;
    let executor = Executor::from_word(&each.executor).unwrap_or(Executor::Worker);
    let lane = Lane { executor, ..(*stored.task.lane).clone() };
    let mut task = Task::new(id, lane.into(), now);
    task.execution = Some(execution);
    task.priority = stored.task.priority;
    let by_policy = || stored.policy.as_ref().and_then(|policy| policy.timeout);
    task.timeout = each.timeout_ms.map(Millis).or_else(by_policy);
    task.attempt_deadline = each.attempt_deadline_ms.map(Millis);
    let own = Step {
        condition: None,
        foreach: None,
        output: step.output_of_each().cloned(),
        call: each.call.clone(),
        vars: serde_json::Map::new(),
        locals: step.locals.clone(),
        sees: step.sees.clone(),
        bare_names: step.bare_names,
        round: Some(round.clone()),
    };
    NewTask {
        policy: stored.policy.clone(),
        body: Body {
            key: Some(format!("{}[{}]", round.of, round.index)),
            payload: view.body.payload.clone(),
            executor: view.body.executor.clone(),
            step: Some(own.text()),
            traceparent: view.body.traceparent.clone(),
            ..Body::default()
        },
        task,
    }
}
