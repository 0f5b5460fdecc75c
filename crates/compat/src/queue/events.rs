//! Events of a playbook engine, sent by workers and listed.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use axum::extract::{Extension, RawQuery, State};
use axum::http::Method;
use axum::response::Json;
use axum::routing::{get, post};
use bytes::Bytes;
use comeback_core::filter::{Filter, Pattern, Sort, Test, TextField};
use comeback_core::{ExecutionId, Failure, Invalid, Record, TaskId};
use comeback_engine::ReportEnd;
use comeback_engine::store::{FeedEvent, ListQuery, Subject, TaskView};
use comeback_server::route::{
    Caller, Doc, ErrorIn, EventFilter, LIMIT, Line, Need, Page, Param, Query, Raw, line, read_body, read_events,
    schema, schema_types,
};
use comeback_server::{App, Problem};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;
use uuid::Uuid;

use super::holder::Holder;
use super::output;
use super::status::PlaybookStatus;
use crate::dialect_schemas;

/// Events that a worker may send. The server records all others itself.
pub const TYPES: [&str; 4] = ["action_started", "action_completed", "action_error", "action_failed"];

/// Lines of the route table.
pub fn lines() -> Vec<Line> {
    vec![
        line(Method::POST, "/api/events", Need::Work, "Tell how an action goes", post(emit)).doc(
            Doc::new("emitEvent")
                .about(
                    "An action that was completed or has failed ends the run, as `completeJob` and `failJob` do: one of them is \
                     enough. That it was started is known since it was leased.",
                )
                .needs::<EmitIn>()
                .example(json!({"event_type": "action_error", "queue_id": "01a1df6f-0287-7000-8004-c3db98790bca",
                    "worker_id": "worker-1", "error": {"status": 503, "message": "Service Unavailable"}}))
                .answers(schema::named("QueueAck"))
                .problems(&["not-found", "lease-lost", "task-canceled", "conflict"]),
        ),
        line(Method::GET, "/api/events", Need::Read, "A page of what happened, by these names", get(list)).doc(
            Doc::new("listSeedEvents").query(PARAMETERS).answers(schema::page(schema::named("SeedEvent"))),
        ),
    ]
}

const PARAMETERS: &[Param] = &[
    Param::new("after", "Where to go on: an `event_id`, `next_cursor` of a page, or `latest`.", schema::text),
    Param::new("types", "Only these, with commas between them, as in `step_retry,step_failed_terminal`.", schema::text),
    Param::new(
        "status",
        "Only those with which something stands so: STARTED, PENDING, FAILED, COMPLETED, or another word for it such as `success`, \
         `error` or `queued`.",
        schema::text,
    ),
    Param::new("execution_id", "Only of this execution.", schema::id),
    Param::new("task_id", "Only of this job.", schema::id),
    LIMIT,
];

/// Name the job by its id, or by its execution and its node.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = EmittedEvent)]
struct EmitIn {
    #[schema(value_type = dialect_schemas::EmittedType)]
    event_type: String,
    #[serde(default)]
    #[schema(value_type = Option<schema_types::IdSchema>)]
    queue_id: Option<Uuid>,
    #[serde(default)]
    #[schema(value_type = Option<schema_types::IdSchema>)]
    execution_id: Option<Uuid>,
    #[serde(default)]
    #[schema(value_type = Option<schema_types::NameSchema>)]
    node_id: Option<String>,
    #[serde(default)]
    #[schema(value_type = Option<schema_types::NameSchema>)]
    worker_id: Option<String>,
    #[serde(default)]
    lease: Option<String>,
    #[serde(default)]
    #[schema(value_type = schema_types::JsonSchema, required = false)]
    result: Option<Raw>,
    #[serde(default)]
    error: Option<ErrorIn>,
    #[serde(default)]
    stack_trace: Option<String>,
    /// As the type says, in whichever words; it may be left out.
    #[serde(default)]
    #[schema(value_type = Option<schema_types::NameSchema>)]
    status: Option<String>,
}

async fn emit(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    body: Bytes,
) -> Result<Json<Value>, Problem> {
    let given: EmitIn = read_body(&body)?;
    if !TYPES.contains(&given.event_type.as_str()) {
        return Err(Invalid::one("event_type", format!("must be one of {}", TYPES.join(", "))).into());
    }
    if let Some(word) = &given.status {
        let fits = match given.event_type.as_str() {
            "action_started" => [PlaybookStatus::Started, PlaybookStatus::Running],
            "action_completed" => [PlaybookStatus::Completed; 2],
            _ => [PlaybookStatus::Failed; 2],
        };
        if !fits.contains(&known(word)?) {
            let message = format!("`{word}` is not how something stands with {}", given.event_type);
            return Err(Invalid::one("status", message).into());
        }
    }
    let mut faults = Invalid::default();
    let failure = given.error.unwrap_or_else(ErrorIn::unsaid).reported(&mut faults);
    if let Some(node) = &given.node_id {
        app.engine.config().limits.check_name("node_id", node, &mut faults);
    }
    faults.or(())?;
    let holder = Holder::new(&app, &caller, &given.worker_id, &given.lease)?;
    let id = find(&app, &caller.namespace, given.queue_id, given.execution_id, given.node_id.as_deref()).await?;
    let end = match given.event_type.as_str() {
        "action_started" => {
            holder.held(&app, &caller.namespace, id).await?;
            return Ok(Json(output::ack(&app.engine.task(&caller.namespace, id).await?.stored.task)));
        }
        "action_completed" => ReportEnd::Succeeded { result: given.result.map(|raw| raw.0.into()) },
        _ => ReportEnd::Failed(Failure { stack: failure.stack.clone().or(given.stack_trace), ..failure }),
    };
    holder.end(&app, &caller.namespace, id, end).await.map(Json)
}

/// The job that an event is about.
async fn find(
    app: &App,
    namespace: &str,
    id: Option<Uuid>,
    execution: Option<Uuid>,
    node: Option<&str>,
) -> Result<TaskId, Problem> {
    let execution = match (id, execution) {
        (Some(id), _) => return Ok(TaskId(id)),
        (None, Some(execution)) => execution,
        (None, None) => return Err(Invalid::one("queue_id", "name the job, or its execution and its node").into()),
    };
    let mut filter = Filter::default().and(Test::Execution(vec![execution]));
    if let Some(node) = node {
        let any = vec![Pattern { text: node.to_owned(), prefix: false }];
        filter = filter.and(Test::Text { field: TextField::Key, any });
    }
    let query = ListQuery { filter, sort: Sort::Submitted, limit: 2, after: None, now: app.engine.now() };
    let found = app.engine.store().list(namespace, &query).await?;
    match found.items.as_slice() {
        [] => Err(Problem::not_found("job")),
        [only] => Ok(only.stored.task.id),
        _ => Err(Invalid::one("node_id", "the execution has several jobs: name one").into()),
    }
}

async fn list(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    RawQuery(query): RawQuery,
) -> Result<Json<Page<Value>>, Problem> {
    let query = Query::read(query.as_deref(), PARAMETERS)?;
    let mut wanted = EventFilter::read(&query, caller.namespace.clone())?.playbook_names();
    if let Some(word) = query.text("status") {
        wanted = wanted.only(&known(word)?.kinds());
    }
    let (found, next_cursor) = read_events(&app, &query, &wanted).await?;
    let mut about: HashMap<TaskId, Option<TaskView>> = HashMap::new();
    let mut parents: HashMap<ExecutionId, Option<ExecutionId>> = HashMap::new();
    let mut items = Vec::with_capacity(found.len());
    for it in &found {
        if let Some(id) = it.event.task.filter(|id| !about.contains_key(id)) {
            about.insert(id, app.engine.store().task(&caller.namespace, id).await?);
        }
        let execution = it.event.execution;
        if let Entry::Vacant(unknown) = parents.entry(execution) {
            unknown.insert(caller_of(&app, &caller.namespace, execution).await?);
        }
        let view = it.event.task.and_then(|id| about.get(&id)).and_then(Option::as_ref);
        let parent = parents.get(&execution).copied().flatten();
        let id = app.engine.cursors().show(&caller.namespace, it.cursor);
        items.push(output::event(it, id, view, ended(&app, it).await?.as_ref(), parent));
    }
    Ok(Json(Page { items, next_cursor }))
}

/// The execution whose step stands for another one.
async fn caller_of(app: &App, namespace: &str, execution: ExecutionId) -> Result<Option<ExecutionId>, Problem> {
    let store = app.engine.store();
    let view = store.execution(namespace, execution).await?;
    let Some((task, _)) = view.and_then(|view| view.origin.parent) else { return Ok(None) };
    Ok(store.task(namespace, task).await?.and_then(|view| view.stored.task.execution))
}

fn known(word: &str) -> Result<PlaybookStatus, Problem> {
    let unknown = || Invalid::one("status", format!("must be one of {}", PlaybookStatus::all().join(", ")));
    Ok(PlaybookStatus::read(word).ok_or_else(unknown)?)
}

/// The record of the attempt that an event ends.
async fn ended(app: &App, it: &FeedEvent) -> Result<Option<Record>, Problem> {
    let Some(task) = it.event.task.filter(|_| output::ends_attempt(&it.event)) else { return Ok(None) };
    let records = app.engine.store().history(Subject::Task(task), it.event.seq.saturating_sub(1), 1).await?;
    Ok(records.into_iter().next())
}
