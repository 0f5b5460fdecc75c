//! Tasks: submit, look at, and act on.

use std::sync::Arc;

use axum::extract::{Extension, Path, RawQuery, State};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post};
use bytes::Bytes;
use comeback_core::filter::{Filter, Sort};
use comeback_core::{Invalid, Record, Speaker, Timestamp};
use comeback_engine::store::{ListCursor, ListQuery, Subject};
use comeback_engine::{Deed, ManualRetry, Moment, ReportEnd, Settle, Submit, SubmitAnswer};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::{LABELS, Line, Query, large, line, task_id};
use crate::App;
use crate::auth::{Caller, Need};
use crate::once::Once;
use crate::problem::Problem;
use crate::wire::task::{self as shape, Context, ManyIn, TaskIn};
use crate::wire::{self, Instant, Page, Span, event, lease::ErrorIn};

pub fn lines() -> Vec<Line> {
    let at = |method, path, need, summary, answer| line(method, path, need, summary, answer);
    vec![
        large(at(Method::POST, "/api/v1/tasks", Need::Submit, "Submit one task or many", post(submit))),
        at(Method::GET, "/api/v1/tasks", Need::Read, "List tasks by a filter", get(list)),
        at(Method::GET, "/api/v1/tasks/{id}", Need::Read, "Everything about a task", get(show)),
        at(Method::PATCH, "/api/v1/tasks/{id}", Need::Submit, "Settle a hook's task", axum::routing::patch(settle)),
        at(Method::GET, "/api/v1/tasks/{id}/attempts", Need::Read, "Every run and how it ended", get(attempts)),
        at(Method::GET, "/api/v1/tasks/{id}/events", Need::Read, "The log of a task", get(events)),
        at(Method::GET, "/api/v1/tasks/{id}/why", Need::Read, "The last verdict, in words and as data", get(why)),
        at(Method::GET, "/api/v1/tasks/{id}/forecast", Need::Read, "The attempts still to come", get(forecast)),
        at(Method::POST, "/api/v1/tasks/{id}/retry", Need::Operate, "Retry by hand", post(retry)),
        at(Method::POST, "/api/v1/tasks/{id}/cancel", Need::Operate, "Cancel", post(cancel)),
        at(Method::POST, "/api/v1/tasks/{id}/pause", Need::Operate, "Pause", post(pause)),
        at(Method::POST, "/api/v1/tasks/{id}/resume", Need::Operate, "Resume", post(resume)),
        at(Method::POST, "/api/v1/tasks/{id}/snooze", Need::Operate, "Move the due time by a span", post(reschedule)),
        at(Method::POST, "/api/v1/tasks/{id}/reschedule", Need::Operate, "Move the due time", post(reschedule)),
    ]
}

type Shared = State<Arc<App>>;

async fn submit(
    State(app): Shared,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    once: Once,
    body: Bytes,
) -> Result<Response, Problem> {
    let (tasks, execution, is_many) = read_tasks(&body)?;
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let limits = &app.engine.config().policy_limits;
    let bound = app.bound.look(|bound| bound.get(&caller.namespace).cloned()).unwrap_or_default();
    let context = Context { policies: &app.policies, limits, traceparent: header("traceparent"), bound };
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
    let keys: Vec<Option<String>> = specs.iter().map(|spec| spec.key.clone()).collect();
    let idempotency = once.of(&app, &body)?;
    let request =
        Submit { namespace: caller.namespace, tasks: specs, execution: execution.map(Into::into), idempotency };
    let answer = app.engine.submit(request).await?;
    Ok((StatusCode::CREATED, Json(answered(&answer, &keys))).into_response())
}

/// One task, or many under `tasks`.
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
        let many: ManyIn = wire::read(body)?;
        return Ok((many.tasks, many.execution, true));
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

const LIST_PARAMETERS: &[&str] = &[
    "q",
    "state",
    "kind",
    "queue",
    "execution_id",
    "dependency",
    "error_class",
    "fingerprint",
    "due_before",
    "sort",
    "limit",
    "cursor",
    LABELS,
];

async fn list(
    State(app): Shared,
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
        return Err(Invalid::one("cursor", "is of a list that was sorted otherwise").into());
    }
    let request = ListQuery { filter, sort, limit: query.limit()?, after, now };
    let listing = app.engine.store().list(&caller.namespace, &request).await?;
    let items = listing.items.iter().map(shape::line).collect();
    Ok(Json(Page { items, next_cursor: shape::next_cursor(listing.next) }))
}

/// The grammar of `q`, and a parameter for what is asked most.
pub fn read_filter(query: &Query, now: Timestamp) -> Result<Filter, Problem> {
    let mut text = query.text("q").unwrap_or_default().to_owned();
    let quoted = |value: &str| {
        let plain = value.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.,*:".contains(&byte));
        if plain { value.to_owned() } else { format!("\"{}\"", value.replace('"', "")) }
    };
    let terms = [
        ("state", "state"),
        ("kind", "kind"),
        ("queue", "queue"),
        ("execution_id", "execution"),
        ("dependency", "dependency"),
        ("error_class", "class"),
        ("fingerprint", "fingerprint"),
    ];
    for (parameter, field) in terms {
        if let Some(value) = query.text(parameter) {
            text.push_str(&format!(" {field}:{}", quoted(value)));
        }
    }
    if let Some(value) = query.text("due_before") {
        text.push_str(&format!(" due:<{}", quoted(value)));
    }
    for (label, value) in query.labels() {
        text.push_str(&format!(" {label}:{}", quoted(value)));
    }
    Filter::parse(text.trim(), now)
        .map_err(|error| Problem::from(Invalid::one("q", &error.message)).with("position", error.position))
}

async fn show(
    State(app): Shared,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Json<Value>, Problem> {
    let view = app.engine.task(&caller.namespace, task_id(&id)?).await?;
    Ok(Json(shape::whole(&view)))
}

async fn attempts(
    State(app): Shared,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Json<Page<Value>>, Problem> {
    let (records, _, next_cursor) = history(&app, &caller, &id, query).await?;
    Ok(Json(Page { items: records.iter().filter_map(shape::attempt).collect(), next_cursor }))
}

async fn events(
    State(app): Shared,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Json<Page<Value>>, Problem> {
    let (records, after, next_cursor) = history(&app, &caller, &id, query).await?;
    let told = records.iter().flat_map(Record::expand).filter(|event| event.seq > after);
    Ok(Json(Page { items: told.map(|it| event::of_log(&it)).collect(), next_cursor }))
}

/// A page of what is written about a task: the records, the number after which they begin, and where to go on.
async fn history(
    app: &App,
    caller: &Caller,
    id: &str,
    query: Option<String>,
) -> Result<(Vec<Record>, u32, Option<String>), Problem> {
    let query = Query::read(query.as_deref(), &["limit", "cursor"])?;
    let id = task_id(id)?;
    app.engine.task(&caller.namespace, id).await?;
    let after = query.parse::<u32>("cursor")?.unwrap_or(0);
    let limit = query.limit()?;
    let records = app.engine.store().history(Subject::Task(id), after, limit).await?;
    let full = records.len() >= limit as usize;
    let next_cursor = records.last().filter(|_| full).map(|record| record.last_seq().to_string());
    Ok((records, after, next_cursor))
}

async fn why(
    State(app): Shared,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Json<Value>, Problem> {
    let why = app.engine.why(&caller.namespace, task_id(&id)?).await?;
    let record = why.view.last_decision.as_ref();
    Ok(Json(json!({
        "task_id": why.view.stored.task.id.to_string(),
        "state": why.view.stored.task.state.word(),
        "text": why.text,
        "decision": record.and_then(|record| record.decision.as_ref()),
        "error": record.and_then(|record| record.failure.as_ref()),
    })))
}

async fn forecast(
    State(app): Shared,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, Problem> {
    let query = Query::read(query.as_deref(), &["limit"])?;
    let at_most = query.limit()? as usize;
    let forecast = app.engine.forecast(&caller.namespace, task_id(&id)?, at_most).await?;
    Ok(Json(shape::forecast(&forecast)))
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ActIn {
    #[serde(default)]
    note: Option<String>,
    #[serde(default)]
    requested_by: Option<String>,
    #[serde(default)]
    keep_counters: bool,
    #[serde(default)]
    delay: Option<Span>,
    #[serde(default)]
    at: Option<Instant>,
}

impl ActIn {
    /// Fields that the act does not have are refused by name, as all unknown ones are.
    fn read(body: &Bytes, may: &[&str]) -> Result<ActIn, Problem> {
        let act: ActIn = wire::read(body)?;
        let given = [("keep_counters", act.keep_counters), ("delay", act.delay.is_some()), ("at", act.at.is_some())];
        let mut faults = Invalid::default();
        for (name, _) in given.iter().filter(|(name, is_given)| *is_given && !may.contains(name)) {
            faults.push(*name, "is no field here");
        }
        faults.or(act).map_err(Problem::from)
    }

    fn moment(&self) -> Result<Moment, Problem> {
        match (self.delay, self.at) {
            (Some(Span(span)), None) => Ok(Moment::After(span)),
            (None, Some(Instant(at))) => Ok(Moment::At(at)),
            _ => Err(Invalid::one("delay", "give either `delay` or `at`").into()),
        }
    }
}

async fn shown_after(app: &App, caller: &Caller, id: comeback_core::TaskId) -> Result<Value, Problem> {
    Ok(shape::whole(&app.engine.task(&caller.namespace, id).await?))
}

/// What is asked for, by whom, and whether under a key.
fn deed(app: &App, caller: &Caller, act: ActIn, once: Once, body: &Bytes) -> Result<Deed, Problem> {
    Ok(Deed { act: caller.act(act.requested_by, act.note), once: once.of(app, body)? })
}

async fn retry(
    State(app): Shared,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    once: Once,
    body: Bytes,
) -> Result<Json<Value>, Problem> {
    let id = task_id(&id)?;
    let act = ActIn::read(&body, &["keep_counters"])?;
    let keep_counters = act.keep_counters;
    let request = ManualRetry { keep_counters, deed: deed(&app, &caller, act, once, &body)? };
    let retried = app.engine.retry(&caller.namespace, id, request).await?;
    Ok(Json(json!({
        "task": shown_after(&app, &caller, id).await?,
        "message": "the task is retried in a new cycle",
        "queue_position": retried.queue_position,
    })))
}

macro_rules! acts {
    ($($verb:ident),+) => {
        $(async fn $verb(
            State(app): Shared,
            Extension(caller): Extension<Caller>,
            Path(id): Path<String>,
            once: Once,
            body: Bytes,
        ) -> Result<Json<Value>, Problem> {
            let id = task_id(&id)?;
            let act = ActIn::read(&body, &[])?;
            let deed = deed(&app, &caller, act, once, &body)?;
            app.engine.$verb(&caller.namespace, id, deed).await?;
            Ok(Json(json!({"task": shown_after(&app, &caller, id).await?})))
        })+
    };
}

acts!(cancel, pause, resume);

async fn reschedule(
    State(app): Shared,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    once: Once,
    body: Bytes,
) -> Result<Json<Value>, Problem> {
    let id = task_id(&id)?;
    let given = ActIn::read(&body, &["delay", "at"])?;
    let moment = given.moment()?;
    let deed = deed(&app, &caller, given, once, &body)?;
    match moment {
        Moment::After(span) => app.engine.snooze(&caller.namespace, id, span, deed).await?,
        Moment::At(at) => app.engine.reschedule(&caller.namespace, id, at, deed).await?,
    };
    Ok(Json(json!({"task": shown_after(&app, &caller, id).await?})))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SettleIn {
    status: String,
    #[serde(default)]
    attempt: Option<u32>,
    #[serde(default)]
    run: Option<u32>,
    #[serde(default)]
    result: Option<Box<RawValue>>,
    #[serde(default)]
    error: Option<ErrorIn>,
}

async fn settle(
    State(app): Shared,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    body: Bytes,
) -> Result<Json<Value>, Problem> {
    let id = task_id(&id)?;
    let given: SettleIn = wire::read(&body)?;
    let mut faults = Invalid::default();
    let end = match given.status.as_str() {
        "succeeded" => ReportEnd::Succeeded { result: given.result.map(Into::into) },
        "failed" => {
            let error = given.error.unwrap_or(ErrorIn::Message(String::new()));
            ReportEnd::Failed(error.failure(&mut faults))
        }
        _ => return Err(Invalid::one("status", "must be one of succeeded, failed").into()),
    };
    faults.or(())?;
    let fence = match (given.run, given.attempt) {
        (Some(run), _) => Speaker::Run(run),
        (None, Some(attempt)) => Speaker::Attempt(attempt),
        (None, None) => Speaker::Anyone,
    };
    app.engine.settle(Settle { namespace: caller.namespace.clone(), task: id, fence, end }).await?;
    Ok(Json(json!({"task": shown_after(&app, &caller, id).await?})))
}
