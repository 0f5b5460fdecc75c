//! Routes of the queue.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{Extension, Path, RawQuery, State};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post};
use bytes::Bytes;
use comeback_core::filter::{Filter, Pattern, Sort, StateTest, Test, TextField};
use comeback_core::{Dialect, Invalid, Millis, TaskId};
use comeback_engine::store::{BeatAnswer, ListCursor, ListQuery, Loop};
use comeback_engine::{
    CommandError, ExecutionSpec, Heartbeat, Json as JsonText, LeaseRequest, Moment, ReportEnd, Submit, TaskSpec,
};
use comeback_server::route::{
    CURSOR, Caller, Doc, ErrorIn, IdempotencyKey, Instant, LIMIT, Line, ListPage, Need, NothingIn, Page, Param, Query,
    Raw, lease_now, line, read_body, schema, schema_types, task_id,
};
use comeback_server::{App, Problem};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use utoipa::ToSchema;
use uuid::Uuid;

use super::holder::Holder;
use super::leased_by::LeasedBy;
use super::output;

/// Lines of the route table.
pub fn lines() -> Vec<Line> {
    let ends = |id| Doc::new(id).answers(schema::named("QueueAck")).problems(&["not-found", "lease-lost"]);
    let page = schema::page(schema::named("QueueRow"));
    vec![
        line(Method::POST, "/api/queue/enqueue", Need::Submit, "Put a job into the queue", post(enqueue)).doc(
            Doc::new("enqueueJob")
                .about("Each is an execution of its own. Steps that follow each other are a workflow.")
                .needs::<EnqueueIn>()
                .example(json!({"node_id": "fetch", "node_type": "http", "action": {"url": "https://example.com"},
                    "retry": {"max_attempts": 3, "initial_delay": 1.0, "backoff_multiplier": 2.0, "jitter": false}}))
                .once()
                .creates(schema::named("QueueEntry")),
        ),
        line(Method::POST, "/api/queue/lease", Need::Work, "Lease the best job there is", post(lease)).leases().doc(
            Doc::new("leaseJob")
                .needs::<LeaseIn>()
                .example(json!({"worker_id": "worker-1", "lease_seconds": 60}))
                .answers(schema::named("QueueLease")),
        ),
        line(Method::POST, "/api/queue/{id}/complete", Need::Work, "Say that a job succeeded", post(complete)).doc(
            ends("completeJob")
                .needs::<CompleteIn>()
                .example(json!({"worker_id": "worker-1", "result": {"rows": 3}}))
                .problems(&["task-canceled", "conflict"]),
        ),
        line(Method::POST, "/api/queue/{id}/fail", Need::Work, "Say that a job failed", post(fail)).doc(
            ends("failJob")
                .about("Whether and when it is tried again is the policy's to say, whatever `retry` says.")
                .needs::<FailIn>()
                .example(json!({"worker_id": "worker-1", "error": {"status": 503, "message": "Service Unavailable"}}))
                .problems(&["task-canceled", "conflict"]),
        ),
        line(Method::POST, "/api/queue/{id}/heartbeat", Need::Work, "Keep a job", post(heartbeat)).doc(
            ends("keepJob")
                .needs::<HeartbeatIn>()
                .example(json!({"worker_id": "worker-1", "extend_seconds": 60}))
                .answers(schema::named("QueueBeat")),
        ),
        line(Method::POST, "/api/queue/reserve", Need::Work, "Lease the best job there is", post(lease)).doc(
            Doc::new("reserveJob")
                .about("Another word for `lease`.")
                .needs::<LeaseIn>()
                .example(json!({"worker_id": "worker-1", "lease_seconds": 60}))
                .answers(schema::named("QueueLease")),
        ),
        line(Method::POST, "/api/queue/ack", Need::Work, "Say that a job succeeded", post(ack)).doc(
            ends("ackJob")
                .about("Another word for `complete`.")
                .needs::<AckIn>()
                .example(json!({"queue_id": "01a1df6f-0287-7000-8004-c3db98790bca", "worker_id": "worker-1"}))
                .problems(&["task-canceled", "conflict"]),
        ),
        line(Method::POST, "/api/queue/nack", Need::Work, "Say that a job failed", post(nack)).doc(
            ends("nackJob")
                .about("Another word for `fail`: whether and when it is tried again is the policy's to say.")
                .needs::<NackIn>()
                .example(json!({"queue_id": "01a1df6f-0287-7000-8004-c3db98790bca", "worker_id": "worker-1"}))
                .problems(&["task-canceled", "conflict"]),
        ),
        line(Method::POST, "/api/queue/reap-expired", Need::AdministerAll, "Take back what has expired", post(reap))
            .doc(
                Doc::new("reapExpiredJobs")
                    .about("The reap loop does so by itself; this is for those who do not want to wait.")
                    .takes::<NothingIn>()
                    .answers(schema::object([("status", schema::text()), ("reclaimed", schema::count())])),
            ),
        line(Method::GET, "/api/queue", Need::Read, "List jobs, the newest first", get(list))
            .doc(Doc::new("listJobs").query(PARAMETERS).answers(page)),
        line(Method::GET, "/api/queue/size", Need::Read, "How many jobs wait", get(size))
            .doc(Doc::new("countJobs").query(SIZE_PARAMETERS).answers(schema::named("QueueSize"))),
    ]
}

type Shared = State<Arc<App>>;

/// A job. Its node is the caller's name for it.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewJob)]
struct EnqueueIn {
    #[schema(value_type = schema_types::NameSchema)]
    node_id: String,
    #[serde(default)]
    #[schema(value_type = Option<schema_types::NameSchema>)]
    node_name: Option<String>,
    /// The kind of the task; `step` where nothing is said.
    #[serde(default)]
    #[schema(value_type = Option<schema_types::NameSchema>)]
    node_type: Option<String>,
    /// What is to be done, for whoever does it.
    #[serde(default)]
    #[schema(value_type = schema_types::JsonSchema, required = false)]
    action: Option<Raw>,
    #[serde(default)]
    #[schema(value_type = schema_types::JsonSchema, required = false)]
    context: Option<Raw>,
    #[serde(default)]
    #[schema(minimum = -1000, maximum = 1000)]
    priority: i32,
    /// Not before this.
    #[serde(default)]
    available_at: Option<Instant>,
    /// The first one included. Give either this or `retry`.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 1001)]
    max_attempts: Option<u32>,
    /// In the dialect `step`; nothing is retried where nothing is said.
    #[serde(default)]
    #[schema(value_type = schema_types::RetryPolicySchema, required = false)]
    retry: Option<Box<RawValue>>,
}

async fn enqueue(
    State(app): Shared,
    Extension(caller): Extension<Caller>,
    once: IdempotencyKey,
    body: Bytes,
) -> Result<Response, Problem> {
    let given: EnqueueIn = read_body(&body)?;
    let retry = match (&given.retry, given.max_attempts) {
        (Some(_), Some(_)) => return Err(Invalid::one("max_attempts", "give either `max_attempts` or `retry`").into()),
        (Some(raw), None) => Some(("retry", raw.get().to_owned())),
        (None, Some(0)) => return Err(Invalid::one("max_attempts", "must be 1 or more").into()),
        (None, Some(most)) => Some(("max_attempts", most.to_string())),
        (None, None) => None,
    };
    let retry = match retry {
        None => None,
        Some((at, text)) => app.read_policy(&text, Dialect::Step).map_err(|part| part.under(at))?,
    };
    let part = |raw: &Option<Raw>| raw.as_ref().map_or("null", |raw| raw.0.get()).to_owned();
    let payload = format!("{{\"action\":{},\"context\":{}}}", part(&given.action), part(&given.context));
    let spec = TaskSpec {
        key: Some(given.node_id),
        name: given.node_name,
        priority: given.priority,
        payload: Some(JsonText::parse(&payload).map_err(|error| Invalid::one("action", error))?),
        retry,
        start: given.available_at.map(|Instant(at)| Moment::At(at)),
        ..TaskSpec::new(given.node_type.unwrap_or_else(|| "step".into()))
    };
    let idempotency = once.with_body(&app, &body)?;
    let execution = Some(ExecutionSpec::default());
    let submit = Submit { namespace: caller.namespace, tasks: vec![spec], execution, idempotency, ..Submit::default() };
    let answer = app.engine.submit(submit).await.map_err(in_this_dialect)?;
    let (Some(task), Some(execution)) = (answer.tasks.first(), answer.execution) else {
        return Err(Problem::unavailable("the job was not answered"));
    };
    let entry = json!({"status": "ok", "queue_id": task.id.to_string(), "execution_id": execution.to_string()});
    Ok((StatusCode::CREATED, Json(entry)).into_response())
}

/// The engine's error with the field names of this dialect.
fn in_this_dialect(error: CommandError) -> Problem {
    let CommandError::Invalid(mut invalid) = error else { return error.into() };
    for fault in &mut invalid.faults {
        let here = match fault.path.as_str() {
            "key" => "node_id",
            "name" => "node_name",
            "kind" => "node_type",
            "payload" => "context",
            _ => continue,
        };
        fault.path = here.into();
    }
    invalid.into()
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = JobLeaseRequest)]
struct LeaseIn {
    #[schema(value_type = schema_types::NameSchema)]
    worker_id: String,
    #[serde(default = "a_minute")]
    #[schema(minimum = 1, maximum = 3600)]
    lease_seconds: u32,
}

fn a_minute() -> u32 {
    60
}

async fn lease(State(app): Shared, Extension(caller): Extension<Caller>, body: Bytes) -> Result<Json<Value>, Problem> {
    let given: LeaseIn = read_body(&body)?;
    if !(1..=3_600).contains(&given.lease_seconds) {
        return Err(Invalid::one("lease_seconds", "must be between 1 and 3600").into());
    }
    let (namespace, key) = (caller.namespace.clone(), caller.id.clone());
    let request = LeaseRequest {
        limit: 1,
        lease: Millis::from_secs(given.lease_seconds.into()),
        ..LeaseRequest::new(namespace.clone(), given.worker_id)
    };
    let leased = lease_now(&app, &caller, request).await.map_err(worker_id)?;
    let Some(leased) = leased.first() else { return Ok(Json(json!({"status": "empty", "job": null}))) };
    if let Some(key) = key {
        app.route_state::<LeasedBy>().note(leased.lease, key);
    }
    let mut job = output::job(&app.engine.task(&namespace, leased.lease.task).await?);
    job["lease"] = app.lease_token(leased.lease, &namespace).into();
    Ok(Json(json!({"status": "ok", "job": job})))
}

/// The problem with `worker_id` in place of its native name `worker`.
fn worker_id(problem: Problem) -> Problem {
    let is_worker = problem.member("errors").is_some_and(|faults| faults[0]["path"] == "worker");
    if is_worker { Invalid::one("worker_id", problem.detail.trim_start_matches("worker: ")).into() } else { problem }
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = JobSuccess)]
struct CompleteIn {
    #[serde(default)]
    #[schema(value_type = Option<schema_types::NameSchema>)]
    worker_id: Option<String>,
    #[serde(default)]
    lease: Option<String>,
    #[serde(default)]
    #[schema(value_type = schema_types::JsonSchema, required = false)]
    result: Option<Raw>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = JobAck)]
struct AckIn {
    #[schema(value_type = schema_types::IdSchema)]
    queue_id: Uuid,
    #[serde(default)]
    #[schema(value_type = Option<schema_types::NameSchema>)]
    worker_id: Option<String>,
    #[serde(default)]
    lease: Option<String>,
    #[serde(default)]
    #[schema(value_type = schema_types::JsonSchema, required = false)]
    result: Option<Raw>,
}

async fn ack(State(app): Shared, Extension(caller): Extension<Caller>, body: Bytes) -> Result<Json<Value>, Problem> {
    let AckIn { queue_id, worker_id, lease, result } = read_body(&body)?;
    succeeded(&app, &caller, TaskId(queue_id), CompleteIn { worker_id, lease, result }).await
}

async fn complete(
    State(app): Shared,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    body: Bytes,
) -> Result<Json<Value>, Problem> {
    succeeded(&app, &caller, task_id(&id)?, read_body(&body)?).await
}

async fn succeeded(app: &App, caller: &Caller, id: TaskId, given: CompleteIn) -> Result<Json<Value>, Problem> {
    let end = ReportEnd::Succeeded { result: given.result.map(|raw| raw.0.into()) };
    let holder = Holder::new(app, caller, &given.worker_id, &given.lease)?;
    holder.end(app, &caller.namespace, id, end).await.map(Json)
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = JobFailure)]
struct FailIn {
    #[serde(default)]
    #[schema(value_type = Option<schema_types::NameSchema>)]
    worker_id: Option<String>,
    #[serde(default)]
    lease: Option<String>,
    #[serde(default)]
    error: Option<ErrorIn>,
    /// Read and not heeded: the policy decides.
    #[serde(default, rename = "retry")]
    _retry: Option<bool>,
    /// Read and not heeded: the policy decides.
    #[serde(default, rename = "retry_delay_seconds")]
    _retry_delay_seconds: Option<u32>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = JobNack)]
struct NackIn {
    #[schema(value_type = schema_types::IdSchema)]
    queue_id: Uuid,
    #[serde(default)]
    #[schema(value_type = Option<schema_types::NameSchema>)]
    worker_id: Option<String>,
    #[serde(default)]
    lease: Option<String>,
    #[serde(default)]
    error: Option<ErrorIn>,
    /// Read and not heeded: the policy decides.
    #[serde(default, rename = "retry_delay_seconds")]
    _retry_delay_seconds: Option<u32>,
}

async fn nack(State(app): Shared, Extension(caller): Extension<Caller>, body: Bytes) -> Result<Json<Value>, Problem> {
    let NackIn { queue_id, worker_id, lease, error, .. } = read_body(&body)?;
    failed(
        &app,
        &caller,
        TaskId(queue_id),
        FailIn { worker_id, lease, error, _retry: None, _retry_delay_seconds: None },
    )
    .await
}

async fn fail(
    State(app): Shared,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    body: Bytes,
) -> Result<Json<Value>, Problem> {
    failed(&app, &caller, task_id(&id)?, read_body(&body)?).await
}

async fn failed(app: &App, caller: &Caller, id: TaskId, given: FailIn) -> Result<Json<Value>, Problem> {
    let mut faults = Invalid::default();
    let failure = given.error.unwrap_or_else(ErrorIn::unsaid).reported(&mut faults);
    faults.or(())?;
    let holder = Holder::new(app, caller, &given.worker_id, &given.lease)?;
    holder.end(app, &caller.namespace, id, ReportEnd::Failed(failure)).await.map(Json)
}

async fn reap(State(app): Shared, body: Bytes) -> Result<Json<Value>, Problem> {
    let NothingIn {} = read_body(&body)?;
    let progress = app.engine.tick_loop(Loop::Reap).await.map_err(Problem::from)?;
    Ok(Json(json!({"status": "ok", "reclaimed": progress.moved})))
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = JobHeartbeat)]
struct HeartbeatIn {
    #[serde(default)]
    #[schema(value_type = Option<schema_types::NameSchema>)]
    worker_id: Option<String>,
    #[serde(default)]
    lease: Option<String>,
    #[serde(default = "a_minute")]
    #[schema(minimum = 1, maximum = 3600)]
    extend_seconds: u32,
}

async fn heartbeat(
    State(app): Shared,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    body: Bytes,
) -> Result<Json<Value>, Problem> {
    let id = task_id(&id)?;
    let given: HeartbeatIn = read_body(&body)?;
    if !(1..=3_600).contains(&given.extend_seconds) {
        return Err(Invalid::one("extend_seconds", "must be between 1 and 3600").into());
    }
    let holder = Holder::new(&app, &caller, &given.worker_id, &given.lease)?;
    let lease = holder.held(&app, &caller.namespace, id).await?;
    let beat = Heartbeat { lease, extend: Millis::from_secs(given.extend_seconds.into()), progress: None };
    match app.engine.heartbeat(&[beat]).await?.first() {
        Some(BeatAnswer::Extended(until)) => Ok(Json(output::leased_until(Some(*until)))),
        Some(BeatAnswer::Canceled) => Ok(Json(output::leased_until(None))),
        Some(BeatAnswer::Lost) | None => Err(CommandError::LeaseLost.into()),
    }
}

const PARAMETERS: &[Param] = &[
    Param::new("status", "A status; `done`, `retry` and many other words are read too.", schema::text),
    Param::new("execution_id", "Jobs of this execution.", schema::id),
    Param::new("worker_id", "Jobs that this worker has or had.", schema::text),
    LIMIT,
    CURSOR,
];
const SIZE_PARAMETERS: &[Param] =
    &[Param::new("status", "Of which to count; `queued` where nothing is said.", || schema::named("QueueStatus"))];

fn states(word: &str) -> Result<&'static [comeback_core::State], Problem> {
    let found = output::states(word);
    found.ok_or_else(|| Invalid::one("status", format!("must be one of {}", output::statuses().join(", "))).into())
}

async fn list(
    State(app): Shared,
    Extension(caller): Extension<Caller>,
    RawQuery(query): RawQuery,
) -> Result<Json<Page<Value>>, Problem> {
    let query = Query::read(query.as_deref(), PARAMETERS)?;
    let mut filter = Filter::default();
    if let Some(word) = query.text("status") {
        filter = filter.and(Test::State(states(word)?.iter().copied().map(StateTest::Is).collect()));
    }
    if let Some(id) = query.parse::<Uuid>("execution_id")? {
        filter = filter.and(Test::Execution(vec![id]));
    }
    if let Some(worker) = query.text("worker_id") {
        let any = vec![Pattern { text: worker.to_owned(), prefix: false }];
        filter = filter.and(Test::Text { field: TextField::Worker, any });
    }
    let after: Option<ListCursor> = query.parse("cursor")?;
    let sort = Sort::SubmittedDesc;
    if after.is_some_and(|cursor| cursor.sort != sort) {
        return Err(Invalid::one("cursor", "is of another list").into());
    }
    let now = app.engine.now();
    let mut page = ListPage::new(query.limit()?, after);
    let mut request = ListQuery { filter, sort, limit: 0, after, now };
    while let Some((limit, after)) = page.wants() {
        (request.limit, request.after) = (limit, after);
        page.add(app.engine.store().list(&caller.namespace, &request).await?);
    }
    let found = page.into_listing();
    let next_cursor = found.next.map(|cursor| cursor.to_string());
    Ok(Json(Page { items: found.items.iter().map(output::listed).collect(), next_cursor }))
}

async fn size(
    State(app): Shared,
    Extension(caller): Extension<Caller>,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, Problem> {
    let query = Query::read(query.as_deref(), SIZE_PARAMETERS)?;
    let wanted = query.text("status").unwrap_or("queued");
    states(wanted)?;
    let counts = app.engine.store().counts(&caller.namespace, app.engine.now()).await?;
    let mut by_status: BTreeMap<&str, u64> = output::statuses().into_iter().map(|word| (word, 0)).collect();
    for (state, count) in &counts.by_state {
        *by_status.entry(output::status(*state)).or_default() += count;
    }
    let of_wanted = states(wanted)?.iter().map(|state| counts.by_state.get(state).copied().unwrap_or(0));
    Ok(Json(json!({"status": "ok", "count": of_wanted.sum::<u64>(), "by_status": by_status})))
}
