//! Executions: start, list, show, and act on as a whole.

use axum::extract::{Extension, Path, RawQuery, State};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post};
use bytes::Bytes;
use comeback_core::{Edge, ExecutionId, ExecutionState, Invalid, Reason, Task, TaskId, When};
use comeback_engine::ActorRequest;
use comeback_engine::flow::{Start, Started};
use comeback_engine::store::{ExecutionQuery, Graph, GraphTask, StepsOf, Subject, TaskView};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;
use uuid::Uuid;

use super::tasks::{LogRange, page_of_events};
use super::workflows::is_path;
use super::{AppState, CURSOR, LIMIT, Line, Query, line};
use crate::App;
use crate::auth::{Caller, Need};
use crate::idempotency::IdempotencyKey;
use crate::openapi::{Doc, Param, schema, schema_types};
use crate::problem::Problem;
use crate::wire::execution::{self as shape, StartIn};
use crate::wire::task::read_dialect;
use crate::wire::{self, Page};

/// Routes of this module.
pub fn lines() -> Vec<Line> {
    let one = "/api/v1/executions/{id}";
    let whole = || schema::named("Execution");
    let act = |id| {
        let answer = schema::object([("execution", schema::named("ExecutionLine"))]);
        Doc::new(id).takes::<ExecutionActIn>().once().answers(answer).problems(&[
            "not-found",
            "wrong-state",
            "conflict",
        ])
    };
    let started = schema::named("Started");
    vec![
        line(Method::POST, "/api/v1/executions", Need::Submit, "Execute a workflow", post(start)).doc(
            Doc::new("startExecution")
                .needs::<StartIn>()
                .example(json!({"workflow": "nightly", "input": {"file": "a.csv"}, "labels": {"tenant": "acme"}}))
                .once()
                .creates(started)
                .problems(&["not-found", "wrong-state"]),
        ),
        line(Method::GET, "/api/v1/executions", Need::Read, "List executions, newest first", get(list))
            .doc(Doc::new("listExecutions").query(LIST).answers(schema::page(schema::named("ExecutionLine")))),
        line(Method::GET, one, Need::Read, "Get an execution with its tasks and edges", get(show))
            .doc(Doc::new("getExecution").answers(whole()).problems(&["not-found"])),
        line(Method::GET, "/api/v1/executions/{id}/events", Need::Read, "List the events of an execution", get(events))
            .doc(
                Doc::new("listExecutionEvents")
                    .query(&[LIMIT, CURSOR])
                    .answers(schema::page(schema::named("LogEvent")))
                    .problems(&["not-found"]),
            ),
        line(
            Method::GET,
            "/api/v1/executions/{id}/context",
            Need::Read,
            "Get the context of an execution",
            get(context),
        )
        .doc(
            Doc::new("getExecutionContext")
                .about(
                    "The template context of its steps: the input, the results of the steps, and the path taken so \
                     far.",
                )
                .answers(schema::named("ExecutionContext"))
                .problems(&["not-found"]),
        ),
        line(Method::POST, "/api/v1/executions/{id}/cancel", Need::Operate, "Cancel", post(cancel))
            .doc(act("cancelExecution")),
        line(Method::POST, "/api/v1/executions/{id}/pause", Need::Operate, "Pause", post(pause))
            .doc(act("pauseExecution")),
        line(Method::POST, "/api/v1/executions/{id}/resume", Need::Operate, "Resume", post(resume))
            .doc(act("resumeExecution")),
        line(Method::POST, "/api/v1/executions/{id}/retry", Need::Operate, "Retry an execution", post(retry)).doc(
            Doc::new("retryExecution")
                .about(
                    "`failed`: retries the failed tasks; tasks skipped because of them run. `start`: starts a new \
                     execution of the same version with the same input.",
                )
                .takes::<ExecutionRetryIn>()
                .example(json!({"from": "failed"}))
                .once()
                .answers(schema::object([("execution", schema::named("ExecutionLine"))]))
                .problems(&["not-found", "wrong-state", "conflict"]),
        ),
    ]
}

const LIST: &[Param] = &[
    Param::new("state", "Comma-separated states or statuses.", schema::text),
    Param::new("workflow", "The path of a workflow.", schema::text),
    Param::new("schedule", "The name of the schedule that started them.", schema::text),
    Param::new("task_id", "Their parent task.", schema::text),
    LIMIT,
    CURSOR,
];

fn execution_id(text: &str) -> Result<ExecutionId, Problem> {
    Uuid::try_parse(text).map(ExecutionId).map_err(|_| Problem::not_found("execution"))
}

async fn start(
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    idempotency: IdempotencyKey,
    body: Bytes,
) -> Result<Response, Problem> {
    let given: StartIn = wire::read(&body)?;
    let retry = match &given.retry {
        None => None,
        Some(text) => {
            let dialect = read_dialect(given.dialect.as_deref())?;
            let limits = &app.engine.config().policy_limits;
            let read = app.policies.read(text.get(), dialect, limits);
            Some(read.map_err(|faults| faults.under("retry"))?)
        }
    };
    if given.version.is_some_and(|version| version == 0 || i32::try_from(version).is_err()) {
        return Err(Invalid::one("version", "must be a version: 1 or more").into());
    }
    is_path(&given.workflow).map_err(|_| Problem::not_found("workflow"))?;
    let start = Start {
        namespace: caller.namespace.clone(),
        workflow: given.workflow,
        version: given.version,
        input: given.input,
        name: given.name,
        labels: given.labels,
        external_id: given.external_id,
        retry,
        retry_of: None,
        firing: None,
        idempotency: idempotency.with_body(&app, &body)?,
    };
    let started = app.engine.start_workflow(start).await?;
    Ok((StatusCode::CREATED, Json(shown(&app, &caller, &started).await?)).into_response())
}

async fn shown(app: &App, caller: &Caller, started: &Started) -> Result<Value, Problem> {
    let view = app.engine.store().execution(&caller.namespace, started.execution).await?;
    let state = view.map_or(ExecutionState::Pending, |view| view.execution.state);
    Ok(json!({
        "execution_id": started.execution.to_string(),
        "workflow": started.workflow,
        "version": started.version,
        "state": state.word(),
        "task_id": started.task.map(|id| id.to_string()),
    }))
}

async fn list(
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, Problem> {
    let query = Query::read(query.as_deref(), LIST)?;
    let limit = query.limit()?;
    let mut states = Vec::new();
    for word in query.text("state").into_iter().flat_map(|text| text.split(',')) {
        let names = || ExecutionState::ALL.iter().map(|it| it.word()).collect::<Vec<_>>().join(", ");
        let known = shape::read_state(word);
        states.push(known.ok_or_else(|| Invalid::one("state", format!("must be one of {}", names())))?);
    }
    let id = |name: &str| -> Result<Option<Uuid>, Problem> {
        let read = |text: &str| Uuid::try_parse(text).map_err(|_| Invalid::one(name, "is not a valid id").into());
        query.text(name).map(read).transpose()
    };
    let asked = ExecutionQuery {
        states,
        workflow: query.text("workflow").map(str::to_owned),
        parent: id("task_id")?.map(TaskId),
        schedule: query.text("schedule").map(str::to_owned),
        after: id("cursor")?.map(ExecutionId),
        skip: 0,
        limit,
    };
    let found = app.engine.store().executions(&caller.namespace, &asked).await?;
    Ok(Json(json!(Page::of(&found, limit, |it| it.execution.id.to_string(), shape::head))))
}

async fn show(
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Json<Value>, Problem> {
    let id = execution_id(&id)?;
    let store = app.engine.store();
    let Some(view) = store.execution(&caller.namespace, id).await? else {
        let lone = store.task(&caller.namespace, TaskId(id.0)).await?;
        let lone = lone.filter(|view| view.stored.task.execution.is_none());
        return lone.map(|view| Json(shape::of_lone(&view))).ok_or_else(|| Problem::not_found("execution"));
    };
    let graph = store.graph(id, None).await?.ok_or_else(|| Problem::not_found("execution"))?;
    let ids: Vec<TaskId> = graph.tasks.iter().map(|it| it.stored.task.id).collect();
    let steps = store.steps(id, StepsOf::Tasks(&ids), 0).await?;
    let over = view.execution.state == ExecutionState::Succeeded;
    let output = if over { app.engine.execution_output(&caller.namespace, id).await? } else { Value::Null };
    let failed = match view.execution.state {
        ExecutionState::Failed => first_failure(&app, &caller, &graph).await?,
        _ => None,
    };
    Ok(Json(shape::whole(&view, &graph, &steps, output, failed.as_ref())))
}

/// The root-cause task: the first that failed by itself and whose failure no other task handles.
async fn first_failure(app: &App, caller: &Caller, graph: &Graph) -> Result<Option<TaskView>, Problem> {
    let is_awaited = |it: &GraphTask| {
        let state = it.stored.task.state;
        let is_met = |edge: &Edge| edge.when != When::Success && edge.is_met_by(state);
        it.edges.as_ref().is_some_and(|edges| edges.out.iter().any(is_met))
    };
    let tasks = graph.tasks.iter().filter(|it| !is_awaited(it)).map(|it| &it.stored.task);
    let for_another =
        |task: &Task| matches!(task.reason, Some(Reason::UpstreamFailed | Reason::FailFast | Reason::DeadEnd));
    let bad = tasks.filter(|task| task.state.is_failure());
    let first = bad.min_by_key(|task| (for_another(task), task.ended_at, task.id));
    let Some(first) = first else { return Ok(None) };
    Ok(app.engine.store().task(&caller.namespace, first.id).await?)
}

async fn context(
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Json<Value>, Problem> {
    Ok(Json(app.engine.execution_context(&caller.namespace, execution_id(&id)?).await?))
}

async fn events(
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Json<Page<Value>>, Problem> {
    let range = LogRange::read(&Query::read(query.as_deref(), &[LIMIT, CURSOR])?)?;
    let id = execution_id(&id)?;
    let store = app.engine.store();
    if store.execution(&caller.namespace, id).await?.is_none() {
        return Err(Problem::not_found("execution"));
    }
    page_of_events(&app, Subject::Execution(id), range).await.map(Json)
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ExecutionAct)]
struct ExecutionActIn {
    #[serde(default)]
    #[schema(value_type = Option<schema_types::NoteSchema>)]
    note: Option<String>,
    #[serde(default)]
    #[schema(value_type = Option<schema_types::NameSchema>)]
    requested_by: Option<String>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ExecutionRetry)]
struct ExecutionRetryIn {
    #[serde(default)]
    #[schema(value_type = Option<schema_types::NoteSchema>)]
    note: Option<String>,
    #[serde(default)]
    #[schema(value_type = Option<schema_types::NameSchema>)]
    requested_by: Option<String>,
    /// Default: `failed`.
    #[serde(default)]
    #[schema(value_type = Option<schema_types::RetryFromSchema>)]
    from: Option<String>,
}

async fn line_of(app: &App, caller: &Caller, id: ExecutionId) -> Result<Json<Value>, Problem> {
    let view = app.engine.store().execution(&caller.namespace, id).await?;
    let view = view.ok_or_else(|| Problem::not_found("execution"))?;
    Ok(Json(json!({"execution": shape::head(&view)})))
}

macro_rules! acts {
    ($($verb:ident $command:ident),+) => {
        $(async fn $verb(
            State(app): AppState,
            Extension(caller): Extension<Caller>,
            Path(id): Path<String>,
            idempotency: IdempotencyKey,
            body: Bytes,
        ) -> Result<Json<Value>, Problem> {
            let id = execution_id(&id)?;
            let given: ExecutionActIn = wire::read(&body)?;
            let deed = ActorRequest { act: caller.act(given.requested_by, given.note), once: idempotency.with_body(&app, &body)? };
            app.engine.$command(&caller.namespace, id, deed).await?;
            line_of(&app, &caller, id).await
        })+
    };
}

acts!(cancel cancel_execution, pause pause_execution, resume resume_execution);

async fn retry(
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    idempotency: IdempotencyKey,
    body: Bytes,
) -> Result<Json<Value>, Problem> {
    let id = execution_id(&id)?;
    let given: ExecutionRetryIn = wire::read(&body)?;
    let act = caller.act(given.requested_by, given.note);
    let key = idempotency.with_body(&app, &body)?;
    match given.from.as_deref() {
        None | Some("failed") => {
            app.engine.retry_execution(&caller.namespace, id, ActorRequest { act, once: key }).await?;
            line_of(&app, &caller, id).await
        }
        Some("start") => {
            let started = app.engine.restart_execution(&caller.namespace, id, ActorRequest { act, once: key }).await?;
            line_of(&app, &caller, started.execution).await
        }
        Some(_) => Err(Invalid::one("from", "must be one of failed, start").into()),
    }
}
