//! Executions on the wire: input and JSON.

use std::collections::BTreeMap;

use comeback_core::{Edge, ExecutionState, Failure, State, Timestamp, Trigger, explain};
use comeback_engine::store::{ExecutionView, Graph, Origin, StepView, TaskView};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::instant;
use crate::openapi::schema_types;

/// A new execution of a workflow.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewRun)]
pub struct StartIn {
    /// Path of the workflow in the catalog.
    #[schema(value_type = schema_types::NameSchema)]
    pub workflow: String,
    /// Version of the workflow; default: the newest.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 2147483647)]
    pub version: Option<u32>,
    /// Input, merged over the defaults of the workflow.
    #[serde(default)]
    #[schema(value_type = schema_types::JsonSchema, required = false)]
    pub input: Option<Value>,
    #[serde(default)]
    #[schema(value_type = Option<schema_types::NameSchema>)]
    pub name: Option<String>,
    #[serde(default)]
    #[schema(value_type = schema_types::LabelsSchema)]
    pub labels: BTreeMap<String, String>,
    #[serde(default)]
    #[schema(value_type = Option<schema_types::NameSchema>)]
    pub external_id: Option<String>,
    /// Retry policy of the execution as a whole, in place of the workflow's.
    #[serde(default)]
    #[schema(value_type = schema_types::RetryPolicySchema, required = false)]
    pub retry: Option<Box<RawValue>>,
    /// Dialect of `retry`.
    #[serde(default)]
    #[schema(value_type = Option<schema_types::DialectSchema>)]
    pub dialect: Option<String>,
}

/// State names of a workflow engine.
pub const STATUSES: [&str; 6] = ["WAITING", "RUNNING", "PAUSED", "COMPLETED", "FAILED", "CANCELLED"];

fn status(state: ExecutionState) -> &'static str {
    match state {
        ExecutionState::Pending => "WAITING",
        ExecutionState::Running => "RUNNING",
        ExecutionState::Paused => "PAUSED",
        ExecutionState::Succeeded => "COMPLETED",
        ExecutionState::Failed => "FAILED",
        ExecutionState::Canceled => "CANCELLED",
    }
}

/// Parses a state or a status name of a workflow engine; resuming counts as running.
pub fn read_state(word: &str) -> Option<ExecutionState> {
    let theirs = |it: &&ExecutionState| status(**it) == word;
    match word {
        "cancelled" => Some(ExecutionState::Canceled),
        "RESUMING" => Some(ExecutionState::Running),
        _ => ExecutionState::from_word(word).or_else(|| ExecutionState::ALL.iter().find(theirs).copied()),
    }
}

/// JSON of an execution in a list.
pub fn head(view: &ExecutionView) -> Value {
    let it = &view.execution;
    let (workflow, version) = view.origin.workflow.clone().unzip();
    let (task, run) = view.origin.parent.unzip();
    let firing = view.origin.firing.as_ref();
    json!({
        "id": it.id.to_string(),
        "name": view.name,
        "state": it.state.word(),
        "status": status(it.state),
        "retrying": is_retrying(view),
        "workflow": workflow,
        "version": version,
        "labels": view.labels,
        "external_id": view.external_id,
        "task_id": task.map(|id| id.to_string()),
        "run": run,
        "retry_of": view.origin.retry_of.map(|id| id.to_string()),
        "root_id": view.origin.retry_root.map(|id| id.to_string()),
        "retry_number": view.origin.retry_number,
        "trigger": trigger(&view.origin),
        "schedule": firing.map(|firing| firing.schedule.as_str()),
        "scheduled_at": instant(firing.map(|firing| firing.at)),
        "total": it.total,
        "open": it.open,
        "counts": view.counts.iter().map(|(state, count)| (state.word(), count)).collect::<BTreeMap<_, _>>(),
        "created_at": it.created_at.to_rfc3339(),
        "started_at": instant(it.started_at),
        "ended_at": instant(it.ended_at),
        "duration_ms": duration(it.started_at, it.ended_at),
        "updated_at": it.updated_at.to_rfc3339(),
    })
}

/// Trigger of the execution (model §2.1). A retry by policy keeps the trigger (E8); see `retry_of`.
fn trigger(origin: &Origin) -> &'static str {
    match (&origin.firing, origin.parent, origin.retry_of) {
        (Some(firing), ..) => firing.by.word(),
        (None, Some(_), _) => "call",
        (None, None, Some(_)) => "retry",
        (None, None, None) => "api",
    }
}

fn duration(from: Option<Timestamp>, to: Option<Timestamp>) -> Option<u64> {
    from.zip(to).map(|(from, to)| to.since(from).0)
}

/// Whether the execution runs and all its open tasks wait for a retry.
fn is_retrying(view: &ExecutionView) -> bool {
    let open: u64 = view.counts.iter().filter(|(state, _)| state.is_open()).map(|(_, count)| count).sum();
    let waiting = view.counts.get(&State::RetryPending).copied().unwrap_or(0);
    view.execution.state == ExecutionState::Running && waiting > 0 && waiting == open
}

/// JSON of an execution: input, output, tasks and edges, and the root-cause task if it failed.
pub fn whole(
    view: &ExecutionView,
    graph: &Graph,
    steps: &[StepView],
    output: Value,
    failed: Option<&TaskView>,
) -> Value {
    let mut shown = head(view);
    let text = |text: &str| serde_json::from_str::<Value>(text).unwrap_or(Value::Null);
    shown["input"] = view.origin.input.as_deref().map_or(Value::Null, text);
    shown["output"] = output;
    shown["error"] = failed.map_or(Value::Null, error);
    let keys: BTreeMap<_, _> = steps.iter().map(|it| (it.task, it)).collect();
    let tasks: Vec<Value> = graph
        .tasks
        .iter()
        .map(|it| {
            let task = &it.stored.task;
            json!({
                "id": task.id.to_string(),
                "key": keys.get(&task.id).and_then(|step| step.key.clone()),
                "kind": task.lane.kind,
                "state": task.state.word(),
                "attempt": task.counters.attempt,
                "next_retry_at": instant(task.next_retry_at),
                "reason": task.reason.map(|reason| reason.word()),
                "started_at": instant(task.started_at),
                "ended_at": instant(task.ended_at),
            })
        })
        .collect();
    shown["tasks"] = tasks.into();
    let edges = graph.tasks.iter().filter_map(|it| it.edges.as_ref()).flat_map(|edges| &edges.out);
    shown["edges"] = edges.map(edge).collect::<Vec<_>>().into();
    shown
}

fn error(failed: &TaskView) -> Value {
    let failure = failed.last_failure.as_ref().and_then(|record| record.failure.clone());
    // A canceled task may never have failed.
    let failure = failure.unwrap_or_else(|| {
        let text = explain::standing(&failed.stored.task, failed.last_decision.as_ref());
        Failure::new(Trigger::Canceled, text)
    });
    json!({
        "task_id": failed.stored.task.id.to_string(),
        "key": failed.body.key,
        "failure": super::failure(&failure),
    })
}

fn edge(edge: &Edge) -> Value {
    json!({
        "from": edge.from.to_string(), "to": edge.to.to_string(), "when": edge.when.word(),
        "on_unmet": edge.on_unmet.word(),
    })
}

/// A single task is its own execution (model A17).
pub fn of_lone(view: &TaskView) -> Value {
    let task = &view.stored.task;
    let state = match task.state {
        State::Waiting | State::Pending if task.run == 0 => ExecutionState::Pending,
        State::Paused => ExecutionState::Paused,
        State::Succeeded | State::Skipped => ExecutionState::Succeeded,
        State::Failed | State::Dead => ExecutionState::Failed,
        State::Canceled => ExecutionState::Canceled,
        _ => ExecutionState::Running,
    };
    let payload = view.body.payload.as_deref().and_then(|text| serde_json::from_str::<Value>(text).ok());
    let result = view.result.as_deref().and_then(|text| serde_json::from_str::<Value>(text).ok());
    let counts: Map<String, Value> = [(task.state.word().to_owned(), json!(1))].into_iter().collect();
    json!({
        "id": task.id.to_string(),
        "name": view.body.name,
        "state": state.word(),
        "status": status(state),
        "retrying": task.state == State::RetryPending,
        "workflow": null,
        "version": null,
        "labels": view.body.labels,
        "external_id": view.body.external_id,
        "task_id": null,
        "run": null,
        "retry_of": null,
        "root_id": null,
        "retry_number": 0,
        "trigger": "api",
        "schedule": null,
        "scheduled_at": null,
        "total": 1,
        "open": u32::from(task.state.is_open()),
        "counts": counts,
        "created_at": task.submitted_at.to_rfc3339(),
        "started_at": instant(task.started_at),
        "ended_at": instant(task.ended_at),
        "duration_ms": duration(task.started_at, task.ended_at),
        "updated_at": task.updated_at.to_rfc3339(),
        "input": payload,
        "output": result,
        "error": if task.state.is_failure() { error(view) } else { Value::Null },
        "tasks": [{
            "id": task.id.to_string(), "key": view.body.key, "kind": task.lane.kind, "state": task.state.word(),
            "attempt": task.counters.attempt, "next_retry_at": instant(task.next_retry_at),
            "reason": task.reason.map(|reason| reason.word()), "started_at": instant(task.started_at),
            "ended_at": instant(task.ended_at),
        }],
        "edges": [],
    })
}
