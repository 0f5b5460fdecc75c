//! Tasks: submit, list, show and act on.
//!
//! Over 500 lines: all handlers of one resource, each a few lines.

use std::collections::BTreeMap;

use axum::extract::{Extension, Path, RawQuery, State};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post};
use bytes::Bytes;
use comeback_core::filter::{Filter, Sort};
use comeback_core::payload::OldPayload;
use comeback_core::transition::Actor;
use comeback_core::{Invalid, Record, Reporter, State as Ended, TaskId, Timestamp};
use comeback_engine::store::{Count, ListCursor, ListQuery, Subject};
use comeback_engine::{
    ActorRequest, CompleteCallback, Describe, Json as Text, ManualRetry, Moment, ReportEnd, Submit, SubmitAnswer,
};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::policies::read_policy;
use super::{AppState, CURSOR, LABELS, LIMIT, Line, Query, header_text, large, line, task_id};
use crate::auth::{Caller, Need};
use crate::idempotency::IdempotencyKey;
use crate::openapi::{Doc, Param, schema, schema_types};
use crate::page::{ListPage, LogPage};
use crate::problem::Problem;
use crate::wire::task::{self as shape, SubmitContext, TaskIn, TasksIn};
use crate::wire::{self, DurationIn, Instant, Object, Page, Raw, lease::ErrorIn};
use crate::{App, mask};

/// Routes of this module.
pub fn lines() -> Vec<Line> {
    let at = |method, path, need, summary, answer| line(method, path, need, summary, answer);
    let page_of = |name: &str| schema::page(schema::named(name));
    let about_one = |id| Doc::new(id).problems(&["not-found"]);
    vec![
        large(at(Method::POST, "/api/v1/tasks", Need::Submit, "Submit one task or a batch", post(submit)))
            .doc(submit_doc()),
        at(Method::GET, "/api/v1/tasks", Need::Read, "List tasks by a filter", get(list))
            .doc(Doc::new("listTasks").query(LIST_PARAMETERS).answers(page_of("TaskLine"))),
        at(Method::GET, "/api/v1/tasks/{id}", Need::Read, "Get a task", get(show))
            .doc(about_one("getTask").answers(schema::named("Task"))),
        at(
            Method::PATCH,
            "/api/v1/tasks/{id}",
            Need::Submit,
            "Complete a hook's task, report its progress, or change labels, priority and policy",
            axum::routing::patch(settle),
        )
        .doc(settle_doc()),
        at(Method::GET, "/api/v1/tasks/{id}/attempts", Need::Read, "List the attempts of a task", get(attempts))
            .doc(about_one("listAttempts").query(ATTEMPT_PARAMETERS).answers(page_of("Attempt"))),
        at(Method::GET, "/api/v1/tasks/{id}/payloads", Need::Read, "List the versions of a payload", get(payloads))
            .doc(about_one("listPayloads").answers(page_of("PayloadVersion"))),
        at(Method::GET, "/api/v1/tasks/{id}/events", Need::Read, "List the events of a task", get(events))
            .doc(about_one("listTaskEvents").query(PAGE_PARAMETERS).answers(page_of("LogEvent"))),
        at(Method::GET, "/api/v1/tasks/{id}/why", Need::Read, "Explain the last decision", get(why))
            .doc(about_one("explainTask").answers(schema::named("Why"))),
        at(Method::GET, "/api/v1/tasks/{id}/forecast", Need::Read, "Forecast the attempts to come", get(forecast))
            .doc(about_one("forecastTask").query(&[LIMIT]).answers(schema::named("Forecast"))),
        at(Method::POST, "/api/v1/tasks/{id}/retry", Need::Operate, "Retry a task", post(retry)).doc(retry_doc()),
        at(Method::POST, "/api/v1/tasks/{id}/cancel", Need::Operate, "Cancel", post(cancel)).doc(
            act_doc::<TaskActIn>("cancelTask")
                .about("Final: no new attempt starts, whatever is decided at the same time."),
        ),
        at(Method::POST, "/api/v1/tasks/{id}/pause", Need::Operate, "Pause", post(pause))
            .doc(act_doc::<TaskActIn>("pauseTask")),
        at(Method::POST, "/api/v1/tasks/{id}/resume", Need::Operate, "Resume", post(resume))
            .doc(act_doc::<TaskActIn>("resumeTask")),
        at(Method::POST, "/api/v1/tasks/{id}/snooze", Need::Operate, "Snooze a task", post(reschedule))
            .doc(act_doc::<MoveIn>("snoozeTask").example(json!({"delay": "10m", "note": "the bank is closed"}))),
        at(Method::POST, "/api/v1/tasks/{id}/reschedule", Need::Operate, "Reschedule a task", post(reschedule))
            .doc(act_doc::<MoveIn>("rescheduleTask").example(json!({"at": "2030-01-31T09:00:00Z"}))),
    ]
}

fn submit_doc() -> Doc {
    let one = json!({"kind": "email.send", "payload": {"to": "a@example.com"}, "labels": {"tenant": "acme"},
        "retry": {"strategy": "exponential", "initial_delay": "10s", "max_delay": "2m", "max_retries": 3}});
    let linked = json!({"tasks": [
        {"kind": "extract", "key": "extract", "retry": "exp(60s, x2, max 1h, 5 retries)"},
        {"kind": "load", "key": "load", "needs": ["extract"], "timeout": "30s"},
        {"kind": "tell", "needs": [{"task": "load", "when": "failure", "on_unmet": "skip"}]},
    ], "execution": {"name": "nightly"}});
    let first = "$response.body#/tasks/0/id";
    Doc::new("submitTasks")
        .about(
            "One task as an object, or a batch in `tasks`: all are accepted or none. Tasks connected by `needs` form \
             one execution.",
        )
        .needs::<TaskIn>()
        .needs::<TasksIn>()
        .example(one)
        .example(linked)
        .once()
        .problems(&["insufficient-credits"])
        .header(Param::new("traceparent", "Stored with the tasks and propagated (W3C Trace Context).", name))
        .creates(schema::named("Submitted"))
        .leads("getTask", "id", first)
        .leads("listAttempts", "id", first)
        .leads("explainTask", "id", first)
        .leads("forecastTask", "id", first)
        .leads("cancelTask", "id", first)
        .leads("pauseTask", "id", first)
        .leads("resumeTask", "id", first)
        .leads("retryTask", "id", first)
        .leads("snoozeTask", "id", first)
        .leads("settleTask", "id", first)
}

fn name() -> Value {
    schema::named("Name")
}

fn act_doc<T: ToSchema>(id: &'static str) -> Doc {
    let answer = schema::object([("task", schema::named("Task"))]);
    Doc::new(id).takes::<T>().once().answers(answer).problems(&["not-found", "wrong-state", "conflict"])
}

fn retry_doc() -> Doc {
    let edited = schema::object([("version", schema::count()), ("diff", schema::list(schema::named("Difference")))]);
    let answer = schema::object([
        ("task", schema::named("Task")),
        ("message", schema::text()),
        ("queue_position", schema::nullable(schema::count())),
        ("payload", schema::about(schema::nullable(edited), "Changes to the payload, if it was edited.")),
    ]);
    act_doc::<TaskRetryIn>("retryTask")
        .example(json!({"payload_patch": {"card": {"number": "4242"}, "coupon": null}, "note": "a typo"}))
        .example(json!({"note": "the bank is back", "requested_by": "ops"}))
        .answers(answer)
        .problems(&["dedupe-key-taken", "insufficient-credits"])
}

fn settle_doc() -> Doc {
    Doc::new("settleTask")
        .about(
            "For tasks of the executor `hook`. Name the `run` or the `attempt` that was started; a completed one is \
             refused. Counts are added to the previous ones, and count as a heartbeat. Labels and a policy may be \
             changed on any task, a priority on any open one. A policy requires an operator key and applies from the \
             next failure, or from the next retry of a completed task; due time, timeout and deadline stay unchanged.",
        )
        .needs::<SettleIn>()
        .example(json!({"status": "failed", "run": 1, "error": {"status": 503, "message": "Service Unavailable"}}))
        .example(json!({"run": 1, "expected_count": 200, "success": 40}))
        .example(json!({"labels": {"tenant": "acme", "draft": null}, "priority": 5}))
        .example(json!({"retry": "exp(60s, x2, max 1h, 5 retries)"}))
        .answers(schema::object([("task", schema::named("Task"))]))
        .problems(&["not-found", "lease-lost", "task-canceled", "wrong-state", "conflict"])
}

async fn submit(
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    idempotency: IdempotencyKey,
    body: Bytes,
) -> Result<Response, Problem> {
    let (tasks, execution, is_many) = read_tasks(&body)?;
    comeback_engine::store::panic_point!("server-submit");
    let limits = &app.engine.config().policy_limits;
    let of_policies = tasks.iter().filter_map(TaskIn::kind_of_policy);
    let bound = app.kind_policies.of_kinds(&**app.engine.store(), &caller.namespace, of_policies).await?;
    let traceparent = header_text(&headers, "traceparent")?;
    let (kinds, namespace) = (&app.engine.config().kinds, caller.namespace.as_str());
    let context = SubmitContext { policies: &app.policies, limits, traceparent, bound, kinds, namespace };
    let mut faults = Invalid::default();
    let count = tasks.len();
    let specs: Vec<_> = tasks
        .into_iter()
        .enumerate()
        .map(|(i, task)| {
            let at = if count == 1 && !is_many { String::new() } else { format!("tasks[{i}]") };
            task.spec(&at, &context, &mut faults)
        })
        .collect();
    faults.or(())?;
    for spec in caller.scope().into_iter().flat_map(|_| &specs) {
        caller.check_scope(spec.queue.as_deref().unwrap_or("default"), &spec.kind)?;
    }
    let keys: Vec<Option<String>> = specs.iter().map(|spec| spec.key.clone()).collect();
    let idempotency = idempotency.with_body(&app, &body)?;
    let request = Submit {
        namespace: caller.namespace,
        tasks: specs,
        execution: execution.map(Into::into),
        idempotency,
        ..Submit::default()
    };
    let answer = app.engine.submit(request).await?;
    Ok((StatusCode::CREATED, Json(answered(&answer, &keys))).into_response())
}

/// Reads one task, or many under `tasks`.
fn read_tasks(body: &Bytes) -> Result<(Vec<TaskIn>, Option<shape::ExecutionIn>, bool), Problem> {
    #[derive(Deserialize)]
    struct Probe {
        #[serde(default)]
        tasks: Option<IgnoredAny>,
        #[serde(default)]
        execution: Option<IgnoredAny>,
    }
    let probe: Probe = wire::read(body)?;
    if probe.tasks.is_some() || probe.execution.is_some() {
        let many: TasksIn = wire::read(body)?;
        let tasks = many.tasks.into_iter().map(|Object(task)| task).collect();
        return Ok((tasks, many.execution.map(|Object(execution)| execution), true));
    }
    Ok((vec![wire::read(body)?], None, false))
}

fn answered(answer: &SubmitAnswer, keys: &[Option<String>]) -> Value {
    let tasks: Vec<Value> = answer
        .tasks
        .iter()
        .enumerate()
        .map(|(i, task)| shape::submitted(task, keys.get(i).and_then(Option::as_deref), answer.execution))
        .collect();
    let mut shown = json!({"tasks": tasks});
    if let Some(execution) = answer.execution {
        shown["execution_id"] = execution.to_string().into();
    }
    shown
}

const LIST_PARAMETERS: &[Param] = &[
    Param::new(
        "q",
        "A filter, such as `state:retrying queue:mail attempt:>=3 due:<1h \"connection refused\"`.",
        schema::text,
    ),
    Param::new("state", "Comma-separated states, families of states or aliases.", schema::text),
    Param::new("kind", "A kind, or a prefix followed by `*`.", schema::text),
    Param::new("queue", "A queue, or a prefix followed by `*`.", schema::text),
    Param::new("execution_id", "Tasks of this execution.", schema::id),
    Param::new("dependency", "Tasks with this dependency.", schema::text),
    Param::new("error_class", "Tasks whose last error has this class.", || schema::named("Class")),
    Param::new("fingerprint", "Tasks whose last error has this fingerprint.", fingerprint),
    Param::new("due_before", "Due before an instant, or within a duration from now.", || schema::named("Moment")),
    Param::new("sort", "Sort order; default: newest first.", sorts),
    LIMIT,
    CURSOR,
    Param::new(LABELS, "Tasks whose label has this value, as in `label.tenant=acme`.", labels),
];
const PAGE_PARAMETERS: &[Param] = &[LIMIT, CURSOR];
const ATTEMPT_PARAMETERS: &[Param] =
    &[LIMIT, CURSOR, Param::new("newest", "Newest first; default: oldest first.", schema::flag)];

/// Schema of a fingerprint.
pub fn fingerprint() -> Value {
    json!({"type": "string", "pattern": "^[0-9a-fA-F]{16}$"})
}

fn sorts() -> Value {
    schema::word(&Sort::ALL.iter().map(|sort| sort.word()).collect::<Vec<_>>())
}

fn labels() -> Value {
    json!({"type": "object", "propertyNames": {"pattern": "^label\\..+"}, "additionalProperties": {"type": "string"}})
}

async fn list(
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    RawQuery(query): RawQuery,
) -> Result<Json<Page<Value>>, Problem> {
    let query = Query::read(query.as_deref(), LIST_PARAMETERS)?;
    let now = app.engine.now();
    let filter = read_filter(&query, now)?;
    let sort = match query.text("sort") {
        None => Sort::SubmittedDesc,
        Some(word) => Sort::from_word(word)
            .ok_or_else(|| Invalid::one("sort", "must be one of submitted, -submitted, due, updated, priority"))?,
    };
    let after: Option<ListCursor> = query.parse("cursor")?;
    if after.is_some_and(|cursor| cursor.sort != sort) {
        return Err(Invalid::one("cursor", "is of a list with another sort order").into());
    }
    let mut page = ListPage::new(query.limit()?, after);
    let mut request = ListQuery { filter, sort, limit: 0, after, now };
    while let Some((limit, after)) = page.wants() {
        (request.limit, request.after) = (limit, after);
        page.add(app.engine.store().list(&caller.namespace, &request).await?);
    }
    let listing = page.into_listing();
    let mut items: Vec<Value> = listing.items.iter().map(shape::line).collect();
    let held = app.engine.held_by_rules(&caller.namespace, listing.items.iter().map(|it| &it.stored.task)).await?;
    items.iter_mut().zip(held).for_each(|(item, by)| shape::say_held(item, by));
    Ok(Json(Page { items, next_cursor: shape::next_cursor(listing.next) }))
}

/// Reads the filter: `q`, and parameters for the most common fields, whose values are taken literally.
pub fn read_filter(query: &Query, now: Timestamp) -> Result<Filter, Problem> {
    let mut filter = filter_from("q", query.text("q").unwrap_or_default(), now)?;
    let named = [
        ("state", "state"),
        ("kind", "kind"),
        ("queue", "queue"),
        ("execution_id", "execution"),
        ("dependency", "dependency"),
        ("error_class", "class"),
        ("fingerprint", "fingerprint"),
    ];
    let named = named.into_iter().filter_map(|(name, field)| Some((name, field, query.text(name)?.to_owned())));
    let due = query.text("due_before").map(|value| ("due_before", "due", format!("<{value}")));
    let labels = query.labels().map(|(label, value)| (label, label, value.to_owned()));
    for (name, field, value) in named.chain(due).chain(labels) {
        filter = filter.and_field(field, &value, now).map_err(|error| Invalid::one(name, error.message))?;
    }
    Ok(filter)
}

/// Parses a filter. The problem carries the position of the fault.
pub fn filter_from(at: &str, text: &str, now: Timestamp) -> Result<Filter, Problem> {
    Filter::parse(text, now)
        .map_err(|error| Problem::from(Invalid::one(at, &error.message)).with("position", error.position))
}

async fn show(
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Json<Value>, Problem> {
    let id = task_id(&id)?;
    if caller.scope().is_some() {
        let view = app.engine.task(&caller.namespace, id).await?;
        let lane = &view.stored.task.lane;
        caller.check_scope(&lane.queue, &lane.kind).map_err(|_| Problem::not_found("task"))?;
    }
    shown_after(&app, &caller, id).await.map(Json)
}

async fn attempts(
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Json<Page<Value>>, Problem> {
    let query = Query::read(query.as_deref(), ATTEMPT_PARAMETERS)?;
    let (newest, range) = (query.parse("newest")?.unwrap_or(false), LogRange::read(&query)?);
    let id = task_id(&id)?;
    app.engine.task(&caller.namespace, id).await?;
    let old = app.engine.store().old_payloads(id).await?;
    if newest {
        return newest_runs(&app, id, range, &old).await.map(Json);
    }
    let told = |record: &Record| shape::attempt(record, &old).map(|it| (record.last_seq(), it)).into_iter().collect();
    page_of_log(&app, Subject::Task(id), range, told).await.map(Json)
}

async fn payloads(
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Json<Page<Value>>, Problem> {
    let (old, in_use) = app.engine.payloads(&caller.namespace, task_id(&id)?).await?;
    Ok(Json(Page { items: shape::payloads(&old, in_use.as_deref()), next_cursor: None }))
}

async fn events(
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Json<Page<Value>>, Problem> {
    let range = LogRange::read(&Query::read(query.as_deref(), PAGE_PARAMETERS)?)?;
    let id = task_id(&id)?;
    app.engine.task(&caller.namespace, id).await?;
    page_of_events(&app, Subject::Task(id), range).await.map(Json)
}

/// Range of a log: cursor and limit.
pub struct LogRange {
    cursor: Option<u32>,
    limit: u32,
}

impl LogRange {
    /// Reads the range from the query.
    pub fn read(query: &Query) -> Result<LogRange, Problem> {
        Ok(LogRange { cursor: query.parse("cursor")?, limit: query.limit()? })
    }
}

/// A page of events of a log. A record expands to several events, and a page may end between them.
pub async fn page_of_events(app: &App, subject: Subject, range: LogRange) -> Result<Page<Value>, Problem> {
    let after = range.cursor.unwrap_or(0);
    let told = |record: &Record| {
        record.expand().iter().filter(|event| event.seq > after).map(|event| (event.seq, event.told())).collect()
    };
    page_of_log(app, subject, range, told).await
}

/// A page of a log; `told` gives the items of a record with their positions.
async fn page_of_log(
    app: &App,
    subject: Subject,
    LogRange { cursor, limit }: LogRange,
    told: impl Fn(&Record) -> Vec<(u32, Value)>,
) -> Result<Page<Value>, Problem> {
    let mut page = LogPage::new(limit);
    let mut on = Some(cursor.unwrap_or(0));
    while let Some(after) = on {
        let found = app.engine.store().history(subject, after, page.wants()).await?;
        on = page.add(&found, Record::last_seq, &told);
    }
    Ok(page.into_page())
}

/// A page of completed runs, newest first.
async fn newest_runs(
    app: &App,
    id: TaskId,
    LogRange { cursor, limit }: LogRange,
    old: &[OldPayload],
) -> Result<Page<Value>, Problem> {
    let told = |record: &Record| shape::attempt(record, old).map(|it| (record.seq, it)).into_iter().collect();
    let mut page = LogPage::new(limit);
    let mut on = Some(cursor.unwrap_or(u32::MAX));
    while let Some(before) = on {
        let found = app.engine.store().runs_before(id, before, page.wants()).await?;
        on = page.add(&found, |record| record.seq, told);
    }
    Ok(page.into_page())
}

async fn why(
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Json<Value>, Problem> {
    let why = app.engine.why(&caller.namespace, task_id(&id)?).await?;
    let record = why.view.last_decision.as_ref();
    let failure = record.and_then(|record| record.failure.as_ref());
    let is_bad = matches!(why.view.stored.task.state, Ended::Failed | Ended::Dead);
    let last = why.view.last_failure.as_ref().filter(|_| is_bad).and_then(|record| record.failure.as_ref());
    Ok(Json(json!({
        "task_id": why.view.stored.task.id.to_string(),
        "state": why.view.stored.task.state.word(),
        "text": why.text,
        "decision": record.and_then(|record| record.decision.as_ref()).map(wire::decision),
        "error": failure.or(last).map(wire::failure),
    })))
}

async fn forecast(
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, Problem> {
    let query = Query::read(query.as_deref(), &[LIMIT])?;
    let at_most = query.limit()? as usize;
    let forecast = app.engine.forecast(&caller.namespace, task_id(&id)?, at_most).await?;
    Ok(Json(shape::forecast(&forecast)))
}

/// Actor and note of an act.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Act)]
struct TaskActIn {
    #[serde(default)]
    #[schema(value_type = Option<schema_types::NoteSchema>)]
    note: Option<String>,
    /// Name of the actor; default: the name of the key.
    #[serde(default)]
    #[schema(value_type = Option<schema_types::NameSchema>)]
    requested_by: Option<String>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Retry)]
struct TaskRetryIn {
    #[serde(default)]
    #[schema(value_type = Option<schema_types::NoteSchema>)]
    note: Option<String>,
    #[serde(default)]
    #[schema(value_type = Option<schema_types::NameSchema>)]
    requested_by: Option<String>,
    /// Keep the retry counters instead of starting a new cycle.
    #[serde(default)]
    keep_counters: bool,
    /// Changes to the payload as a JSON merge patch (RFC 7396): `null` removes a field. The old payload is kept.
    #[serde(default)]
    #[schema(value_type = schema_types::JsonSchema, required = false)]
    payload_patch: Option<Raw>,
}

/// Give either `delay` or `at`.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Move)]
struct MoveIn {
    #[serde(default)]
    #[schema(value_type = Option<schema_types::NoteSchema>)]
    note: Option<String>,
    #[serde(default)]
    #[schema(value_type = Option<schema_types::NameSchema>)]
    requested_by: Option<String>,
    #[serde(default)]
    delay: Option<DurationIn>,
    #[serde(default)]
    at: Option<Instant>,
}

impl MoveIn {
    fn moment(&self) -> Result<Moment, Problem> {
        match (self.delay, self.at) {
            (Some(DurationIn(span)), None) => Ok(Moment::After(span)),
            (None, Some(Instant(at))) => Ok(Moment::At(at)),
            _ => Err(Invalid::one("delay", "give either `delay` or `at`").into()),
        }
    }
}

async fn shown_after(app: &App, caller: &Caller, id: comeback_core::TaskId) -> Result<Value, Problem> {
    let view = app.engine.task(&caller.namespace, id).await?;
    let mut shown = shape::whole(&view);
    shape::say_held(&mut shown, app.engine.held_by_rule(&view.stored.task).await?);
    Ok(shown)
}

/// An act with its actor and idempotency key.
fn keyed_act(app: &App, act: Actor, idempotency: IdempotencyKey, body: &Bytes) -> Result<ActorRequest, Problem> {
    Ok(ActorRequest { act, once: idempotency.with_body(app, body)? })
}

async fn retry(
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    idempotency: IdempotencyKey,
    body: Bytes,
) -> Result<Json<Value>, Problem> {
    let id = task_id(&id)?;
    let act: TaskRetryIn = wire::read(&body)?;
    let deed = keyed_act(&app, caller.act(act.requested_by, act.note), idempotency, &body)?;
    if let Some(patch) = &act.payload_patch {
        let patch: Value = serde_json::from_str(patch.0.get()).unwrap_or_default();
        mask::refuse_sent_back("payload_patch", &patch)?;
    }
    let request = ManualRetry {
        keep_counters: act.keep_counters,
        payload_patch: act.payload_patch.map(|raw| Text::from(raw.0)),
        request: deed,
    };
    let retried = app.engine.retry(&caller.namespace, id, request).await?;
    Ok(Json(json!({
        "task": shown_after(&app, &caller, id).await?,
        "message": "the task is retried in a new cycle",
        "queue_position": retried.queue_position,
        "payload": retried.edited.map(|it| json!({"version": it.version, "diff": it.differences})),
    })))
}

macro_rules! acts {
    ($($verb:ident),+) => {
        $(async fn $verb(
            State(app): AppState,
            Extension(caller): Extension<Caller>,
            Path(id): Path<String>,
            idempotency: IdempotencyKey,
            body: Bytes,
        ) -> Result<Json<Value>, Problem> {
            let id = task_id(&id)?;
            let act: TaskActIn = wire::read(&body)?;
            let deed = keyed_act(&app, caller.act(act.requested_by, act.note), idempotency, &body)?;
            app.engine.$verb(&caller.namespace, id, deed).await?;
            Ok(Json(json!({"task": shown_after(&app, &caller, id).await?})))
        })+
    };
}

acts!(cancel, pause, resume);

async fn reschedule(
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    idempotency: IdempotencyKey,
    body: Bytes,
) -> Result<Json<Value>, Problem> {
    let id = task_id(&id)?;
    let given: MoveIn = wire::read(&body)?;
    let moment = given.moment()?;
    let deed = keyed_act(&app, caller.act(given.requested_by, given.note), idempotency, &body)?;
    match moment {
        Moment::After(span) => app.engine.snooze(&caller.namespace, id, span, deed).await?,
        Moment::At(at) => app.engine.reschedule(&caller.namespace, id, at, deed).await?,
    };
    Ok(Json(json!({"task": shown_after(&app, &caller, id).await?})))
}

/// Result or progress of a hook's run, or changes to a task.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Settle)]
struct SettleIn {
    /// Outcome of the run; leave out to report progress only.
    #[serde(default)]
    #[schema(value_type = Option<schema_types::SettleStatusSchema>)]
    status: Option<String>,
    /// Attempt number from the start call.
    #[serde(default)]
    attempt: Option<u32>,
    /// Run number from the start call; preferred over `attempt`, since it never repeats.
    #[serde(default)]
    run: Option<u32>,
    #[serde(default)]
    #[schema(value_type = schema_types::JsonSchema, required = false)]
    result: Option<Raw>,
    #[serde(default)]
    error: Option<ErrorIn>,
    /// Total number of items to process; replaces the previous value.
    #[serde(default)]
    #[schema(maximum = 2147483647)]
    expected_count: Option<u32>,
    /// Items succeeded since the last report.
    #[serde(default)]
    #[schema(maximum = 2147483647)]
    success: Option<u32>,
    /// Items failed since the last report.
    #[serde(default)]
    #[schema(maximum = 2147483647)]
    failures: Option<u32>,
    /// Labels to set, or to remove with `null`. Other labels stay.
    #[serde(default)]
    labels: BTreeMap<String, Option<String>>,
    /// Priority: higher ones are leased first.
    #[serde(default)]
    priority: Option<i16>,
    /// Retry policy from the next failure on.
    #[serde(default)]
    #[schema(value_type = schema_types::RetryPolicySchema, required = false)]
    retry: Option<Value>,
    /// Dialect of `retry`.
    #[serde(default)]
    #[schema(value_type = Option<schema_types::DialectSchema>)]
    dialect: Option<String>,
}

impl SettleIn {
    fn end(&mut self) -> Result<Option<ReportEnd>, Invalid> {
        let Some(status) = &self.status else { return Ok(None) };
        let mut faults = Invalid::default();
        let end = match status.as_str() {
            "succeeded" => ReportEnd::Succeeded { result: self.result.take().map(|raw| raw.0.into()) },
            "failed" => ReportEnd::Failed(self.error.take().unwrap_or_else(ErrorIn::unsaid).failure(&mut faults)),
            _ => return Err(Invalid::one("status", "must be one of succeeded, failed")),
        };
        faults.or(Some(end))
    }

    fn counted(&self, task: TaskId) -> Option<Count> {
        let anything = [self.expected_count, self.success, self.failures].iter().any(Option::is_some);
        let (success, failures) = (self.success.unwrap_or_default(), self.failures.unwrap_or_default());
        anything.then_some(Count { task, success, failures, expected: self.expected_count })
    }

    /// The fence of a report: run, attempt or none.
    fn fence(&self) -> Reporter {
        match (self.run, self.attempt) {
            (Some(run), _) => Reporter::Run(run),
            (None, Some(attempt)) => Reporter::Attempt(attempt),
            (None, None) => Reporter::Anyone,
        }
    }
}

async fn settle(
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    body: Bytes,
) -> Result<Json<Value>, Problem> {
    let id = task_id(&id)?;
    let mut given: SettleIn = wire::read(&body)?;
    let (end, counted, fence) = (given.end()?, given.counted(id), given.fence());
    let retry = match &given.retry {
        Some(_) if !caller.role.may(Need::Operate) => {
            return Err(Problem::forbidden("changing the retry policy needs the role operator"));
        }
        Some(policy) => Some(read_policy(&app, "retry", policy, given.dialect.as_deref())?),
        None if given.dialect.is_some() => return Err(Invalid::one("dialect", "is only allowed with `retry`").into()),
        None => None,
    };
    let described = Describe { labels: given.labels, priority: given.priority, retry };
    if end.is_none() && counted.is_none() && described.is_nothing() {
        let what = "give `status`, counts, `labels`, `priority` or `retry`";
        return Err(Invalid::one("status", what).into());
    }
    // First, so that the whole request is refused if the run is over already.
    if !described.is_nothing() {
        app.engine.describe(&caller.namespace, id, fence, &described, &caller.act(None, None)).await?;
    }
    if let Some(count) = counted {
        app.engine.count(&caller.namespace, count, fence).await?;
    }
    if let Some(end) = end {
        app.engine
            .complete_callback(CompleteCallback { namespace: caller.namespace.clone(), task: id, fence, end })
            .await?;
    }
    Ok(Json(json!({"task": shown_after(&app, &caller, id).await?})))
}
