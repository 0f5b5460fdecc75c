//! The routes of batches and their tasks.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::extract::{Extension, Path, RawQuery, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{delete, get, patch, post, put};
use bytes::Bytes;
use comeback_core::admission::Rule;
use comeback_core::filter::{Filter, Pattern, Sort, StateTest, Test, TextField};
use comeback_core::transition::Act;
use comeback_core::{ExecutionId, Failure, Invalid, Speaker, State as TaskState, TaskId, Trigger};
use comeback_engine::store::{Count, ExecutionQuery, Idempotency, ListQuery, Listed, Used};
use comeback_engine::{CommandError, ExecutionSpec, ReportEnd, Settle, Submit};
use serde_json::{Value, json};
use uuid::Uuid;

use super::input::{self, Batch, CountersIn, Planned, RulesIn, TaskIn, UpdateIn};
use super::{dedupe, output};
use crate::App;
use crate::auth::{Caller, Need};
use crate::compat::Shape;
use crate::idempotency::IdempotencyKey;
use crate::openapi::{Doc, Param, schema};
use crate::problem::Problem;
use crate::routes::admin::NothingIn;
use crate::routes::{Line, Query, header_text, large, line, task_id};
use crate::wire;

pub fn lines() -> Vec<Line> {
    let at = |method, path, need, summary, answer| line(method, path, need, summary, answer).shape(Shape::Batch);
    let task = || schema::named("WholeBatchTask");
    let about_one = |id| Doc::new(id).problems(&["not-found"]);
    let act = |id| about_one(id).answers(task()).problems(&["wrong-state", "conflict"]);
    vec![
        large(at(Method::POST, "/task", Need::Submit, "Make a batch of tasks", post(create))).doc(create_doc()),
        at(Method::GET, "/task", Need::Read, "List tasks in this dialect", get(list)).doc(
            Doc::new("listBatchTasks").query(LIST_PARAMETERS).answers(schema::list(schema::named("BasicBatchTask"))),
        ),
        at(Method::GET, "/task/{id}", Need::Read, "Everything about a task in this dialect", get(show))
            .doc(about_one("getBatchTask").answers(task())),
        at(Method::PATCH, "/task/{id}", Need::Submit, "Say how a task ended, or how far it has come", patch(update))
            .doc(update_doc()),
        at(Method::PUT, "/task/{id}", Need::Submit, "Count what was done", put(count)).doc(count_doc()),
        at(Method::DELETE, "/task/{id}", Need::Operate, "Cancel a task", delete(cancel)).doc(act("cancelBatchTask")),
        at(Method::PATCH, "/task/pause/{id}", Need::Operate, "Pause a task", patch(pause))
            .doc(act("pauseBatchTask").takes::<NothingIn>()),
        at(Method::PATCH, "/task/resume/{id}", Need::Operate, "Resume a task where it was", patch(resume))
            .doc(act("resumeBatchTask").takes::<NothingIn>()),
        at(Method::GET, "/batches", Need::Read, "List batches, the newest first", get(batches))
            .doc(Doc::new("listBatches").query(PAGE_PARAMETERS).answers(schema::list(schema::named("BatchSummary")))),
        at(Method::GET, "/batch/{id}", Need::Read, "How far a batch has come", get(progress))
            .doc(about_one("getBatch").answers(schema::named("BatchProgress"))),
        at(Method::DELETE, "/batch/{id}", Need::Operate, "Stop a batch", delete(stop)).doc(
            about_one("stopBatch")
                .about("Everything in it that is open is canceled for good, retries that were to come too.")
                .answers(schema::named("StoppedBatch"))
                .problems(&["conflict"]),
        ),
        at(Method::PATCH, "/batch/{id}/rules", Need::Operate, "Give the open tasks of a kind other rules", patch(rules))
            .doc(
                about_one("setBatchRules")
                    .needs::<RulesIn>()
                    .example(json!({"kind": "etl", "rules": [
                        {"type": "Concurency", "max_concurency": 2, "matcher": {"status": "Running", "kind": "etl", "fields": []}},
                    ]}))
                    .answers(schema::object([
                        ("batch_id", schema::id()),
                        ("kind", schema::text()),
                        ("updated_count", schema::count()),
                    ])),
            ),
        at(Method::GET, "/dag/{id}", Need::Read, "A batch as a graph", get(graph))
            .doc(about_one("getBatchGraph").answers(schema::named("BatchGraph"))),
    ]
}

fn create_doc() -> Doc {
    let call = |url: &str| json!({"kind": "Webhook", "params": {"url": url, "verb": "Post"}});
    let retry = json!({"max_retries": 3, "initial_delay_secs": 10, "backoff_multiplier": 2.0, "max_delay_secs": 120});
    let import = json!({"id": "import", "name": "Import Data", "kind": "etl", "timeout": 120, "retry": retry,
        "on_start": call("https://etl.example.com/import")});
    let report = json!({"id": "report", "name": "Report", "kind": "etl",
        "dependencies": [{"id": "import", "requires_success": true}]});
    let batch = json!([import, report]);
    Doc::new("createBatch")
        .about(
            "A list of tasks, or one: all of them are taken or none, and they make one execution, whose id is in the header \
             `X-Batch-ID`. Where all of them were there already (`dedupe_strategy`), the answer is 204.",
        )
        .needs::<TaskIn>()
        .needs::<Batch>()
        .example(import)
        .example(batch)
        .once()
        .header(Param::new("traceparent", "Kept with the tasks and passed on (W3C Trace Context).", || {
            schema::named("Name")
        }))
        .creates(schema::list(schema::named("BasicBatchTask")))
        .or_nothing("Every task was there already.")
}

fn update_doc() -> Doc {
    Doc::new("updateBatchTask")
        .about(
            "Accepted while the task is claimed or running. What names the run or the attempt that it was called for is refused \
             when that is over.",
        )
        .query(FENCES)
        .needs::<UpdateIn>()
        .example(json!({"status": "Success", "new_success": 10}))
        .example(json!({"status": "Failure", "failure_reason": "the source is away"}))
        .example(json!({"on_cancel": {"kind": "Webhook", "params": {"url": "https://etl.example.com/stop", "verb": "Post"}}}))
        .answers(schema::named("WholeBatchTask"))
        .problems(&["not-found", "lease-lost", "task-canceled", "wrong-state", "conflict"])
}

fn count_doc() -> Doc {
    let counted = schema::object([
        ("success", schema::count()),
        ("failures", schema::count()),
        ("expected_count", schema::nullable(schema::count())),
    ]);
    let doc = Doc::new("countBatchTask")
        .about("Added to what was counted before, retries or not. A sign of life.")
        .query(FENCES)
        .needs::<CountersIn>()
        .example(json!({"new_success": 5, "new_failures": 2}))
        .answers(counted)
        .problems(&["not-found", "lease-lost", "wrong-state"]);
    Doc { status: 202, ..doc }
}

type Shared = State<Arc<App>>;

async fn create(
    State(app): Shared,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    idempotency: IdempotencyKey,
    body: Bytes,
) -> Result<Response, Problem> {
    let config = app.engine.config();
    let limits = (&config.limits, &config.policy_limits);
    let traceparent = header_text(&headers, "traceparent")?;
    let mut faults = Invalid::default();
    let mut earlier = BTreeSet::new();
    let mut planned: Vec<Planned> = Vec::new();
    for (i, task) in input::read(&body)?.into_iter().enumerate() {
        let (at, id) = (format!("tasks[{i}]"), task.id.clone());
        let mut part = Invalid::default();
        planned.push(task.plan(&earlier, limits, &mut part));
        if !earlier.insert(id.clone()) {
            part.push("id", format!("`{id}` is the id of an earlier task"));
        }
        faults.absorb(&at, part);
    }
    faults.or(())?;
    let idempotency = idempotency.with_body(&app, &body)?;
    let asked = Asked { planned, idempotency, traceparent };
    for _ in 0..ROUNDS {
        if let Some(answer) = make(&app, &caller, &asked).await? {
            return Ok(answer);
        }
    }
    Err(Problem::unavailable("others make tasks like these all the time"))
}

/// How often a batch looks whether its tasks are there already when others are faster.
const ROUNDS: usize = 8;

/// A batch as it was asked for.
struct Asked {
    planned: Vec<Planned>,
    idempotency: Option<Idempotency>,
    traceparent: Option<String>,
}

/// Nothing if somebody has made a task like one of these since we looked.
async fn make(app: &App, caller: &Caller, asked: &Asked) -> Result<Option<Response>, Problem> {
    let Asked { planned, idempotency, traceparent } = asked;
    // Who asks again under a key asks about its own tasks, not whether there are others like them.
    let again = match idempotency {
        Some(key) => app.engine.store().used(&caller.namespace, key).await? == Some(Used::ForThis),
        None => false,
    };
    let questions: Vec<Vec<Filter>> =
        planned.iter().map(|it| if again { Vec::new() } else { it.dedupe.clone() }).collect();
    let skipped = dedupe::skipped(app, &caller.namespace, &questions).await?;
    let gone: BTreeSet<String> = skipped.iter().filter_map(|place| planned[*place].spec.key.clone()).collect();
    let kept: Vec<(usize, &Planned)> =
        planned.iter().enumerate().filter(|(place, _)| !skipped.contains(place)).collect();
    if kept.is_empty() {
        return Ok(Some(StatusCode::NO_CONTENT.into_response()));
    }
    let mut carried: Vec<Rule> = Vec::new();
    for rule in kept.iter().flat_map(|(_, it)| &it.rules) {
        if !carried.contains(rule) {
            carried.push(rule.clone());
        }
    }
    if !carried.is_empty() {
        app.engine.carried_rules(&caller.namespace, carried.clone()).await?;
    }
    let unless = kept.iter().flat_map(|(place, _)| questions[*place].clone()).collect();
    let places: Vec<usize> = kept.iter().map(|(place, _)| *place).collect();
    let task = |it: &Planned| {
        let mut spec = it.spec.clone();
        // Somebody like it is there: nobody has to wait for one that was not made.
        spec.needs.retain(|need| !gone.contains(&need.task));
        spec.traceparent = traceparent.clone();
        spec.rules = it.rules.iter().map(|rule| rule.name.clone()).collect();
        spec
    };
    let request = Submit {
        namespace: caller.namespace.clone(),
        tasks: kept.into_iter().map(|(_, it)| task(it)).collect(),
        execution: Some(ExecutionSpec { dead_end_cancel: true, ..ExecutionSpec::default() }),
        idempotency: idempotency.clone(),
        unless,
    };
    let answer = match app.engine.submit(request).await {
        Err(CommandError::Conflict) => return Ok(None),
        answer => answer.map_err(|error| in_this_dialect(error, &places))?,
    };
    // Rules that nobody was under may have been removed until the tasks were there.
    if !carried.is_empty()
        && let Err(error) = app.engine.carried_rules(&caller.namespace, carried).await
    {
        tracing::warn!(%error, "the rules of a batch could not be looked at again");
    }
    let batch = answer.execution.ok_or_else(|| Problem::unavailable("the batch was not answered"))?;
    let made: Vec<Value> = all_of(app, &caller.namespace, batch).await?.iter().map(output::basic).collect();
    let mut response = (StatusCode::CREATED, Json(made)).into_response();
    if let Ok(id) = HeaderValue::from_str(&batch.to_string()) {
        response.headers_mut().insert("x-batch-id", id);
    }
    Ok(Some(response))
}

/// What the engine has to say is said by the names that fields have here, and by the places that tasks had in the request.
fn in_this_dialect(error: CommandError, places: &[usize]) -> Problem {
    const FIELDS: [(&str, &str); 4] =
        [("key", "id"), ("expected", "expected_count"), ("needs", "dependencies"), ("hooks", "on_success")];
    let CommandError::Invalid(mut invalid) = error else { return error.into() };
    for fault in &mut invalid.faults {
        // A task that is alone is named by its fields only.
        let numbered = fault.path.strip_prefix("tasks[").and_then(|rest| rest.split_once("]."));
        let (place, field) = match numbered {
            Some((place, field)) => (place.parse().unwrap_or(0), field),
            None if places.len() == 1 => (0, fault.path.as_str()),
            None => continue,
        };
        let end = field.find(['[', '.']).unwrap_or(field.len());
        let (name, rest) = field.split_at(end);
        let name = FIELDS.iter().find(|(native, _)| *native == name).map_or(name, |(_, here)| here);
        fault.path = format!("tasks[{}].{name}{rest}", places.get(place).unwrap_or(&place));
    }
    invalid.into()
}

/// All tasks of an execution, in the order in which they were asked for.
async fn all_of(app: &App, namespace: &str, id: ExecutionId) -> Result<Vec<Listed>, Problem> {
    let filter = Filter::default().and(Test::Execution(vec![id.0]));
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let now = app.engine.now();
        let query = ListQuery { filter: filter.clone(), sort: Sort::Submitted, limit: 500, after, now };
        let page = app.engine.store().list(namespace, &query).await?;
        all.extend(page.items);
        after = page.next;
        if after.is_none() {
            return Ok(all);
        }
    }
}

const PAGE: Param = Param::new("page", "Which page, from 0.", || schema::between(0, MOST_SKIPPED as i64));
const PAGE_SIZE: Param =
    Param::new("page_size", "How many at most; 50 where nothing is said, 100 where more is asked for.", page_size);
const PAGE_PARAMETERS: &[Param] = &[PAGE, PAGE_SIZE];
const LIST_PARAMETERS: &[Param] = &[
    Param::new("status", "A status.", || schema::named("BatchStatus")),
    Param::new("kind", "A kind, or the beginning of one with a star.", schema::text),
    Param::new("name", "A name, or the beginning of one with a star.", schema::text),
    Param::new("batch_id", "Tasks of this batch.", schema::id),
    PAGE,
    PAGE_SIZE,
];
const FENCES: &[Param] = &[
    Param::new("run", "The run that it was called for.", schema::count),
    Param::new("attempt", "The attempt that it was called for.", schema::count),
];
/// Further than this nobody turns pages.
const MOST_SKIPPED: u32 = 10_000;

fn page_size() -> Value {
    json!({"type": "integer", "minimum": 1})
}

/// How many are left out before the page, and how many are on it.
fn page(query: &Query) -> Result<(u32, u32), Problem> {
    let size = match query.parse::<u32>("page_size")? {
        Some(0) => return Err(Invalid::one("page_size", "must be 1 or more").into()),
        size => size.unwrap_or(50).min(100),
    };
    let skip = query.parse::<u32>("page")?.unwrap_or(0).saturating_mul(size);
    if skip > MOST_SKIPPED {
        return Err(Invalid::one(
            "page",
            format!("only the first {MOST_SKIPPED} are listed; say more of what you look for"),
        )
        .into());
    }
    Ok((skip, size))
}

async fn list(
    State(app): Shared,
    Extension(caller): Extension<Caller>,
    RawQuery(query): RawQuery,
) -> Result<Json<Vec<Value>>, Problem> {
    let query = Query::read(query.as_deref(), LIST_PARAMETERS)?;
    let (skip, size) = page(&query)?;
    let mut filter = Filter::default();
    if let Some(word) = query.text("status") {
        let states = output::states(word)
            .ok_or_else(|| Invalid::one("status", format!("must be one of {}", output::statuses().join(", "))))?;
        filter = filter.and(Test::State(states.iter().copied().map(StateTest::Is).collect()));
    }
    for (name, field) in [("kind", TextField::Kind), ("name", TextField::Name)] {
        if let Some(text) = query.text(name) {
            let pattern = match text.strip_suffix('*') {
                Some(start) => Pattern { text: start.to_owned(), prefix: true },
                None => Pattern { text: text.to_owned(), prefix: false },
            };
            filter = filter.and(Test::Text { field, any: vec![pattern] });
        }
    }
    if let Some(id) = query.parse::<Uuid>("batch_id")? {
        filter = filter.and(Test::Execution(vec![id]));
    }
    let (mut left, mut after) = (skip, None);
    loop {
        let limit = if left > 0 { left.min(500) } else { size };
        let now = app.engine.now();
        let request = ListQuery { filter: filter.clone(), sort: Sort::SubmittedDesc, limit, after, now };
        let found = app.engine.store().list(&caller.namespace, &request).await?;
        if left == 0 {
            return Ok(Json(found.items.iter().map(output::basic).collect()));
        }
        left = left.saturating_sub(limit);
        after = found.next;
        if after.is_none() {
            return Ok(Json(Vec::new()));
        }
    }
}

async fn shown(app: &App, caller: &Caller, id: TaskId) -> Result<Json<Value>, Problem> {
    let view = app.engine.task(&caller.namespace, id).await?;
    let rules = match view.body.rules.is_empty() {
        true => Vec::new(),
        false => app.engine.store().rules(&caller.namespace).await?,
    };
    Ok(Json(output::whole(&view, &rules)))
}

async fn rules(
    State(app): Shared,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    body: Bytes,
) -> Result<Json<Value>, Problem> {
    let id = batch_id(&id)?;
    let given: RulesIn = wire::read(&body)?;
    let mut faults = Invalid::default();
    let limits = &app.engine.config().limits;
    limits.check_name("kind", &given.kind, &mut faults);
    let rules = super::rules::read(given.rules, limits, &mut faults);
    faults.or(())?;
    let changed = app.engine.carry_rules(&caller.namespace, id, &given.kind, rules, &caller.act(None, None)).await?;
    Ok(Json(json!({"batch_id": id.to_string(), "kind": given.kind, "updated_count": changed})))
}

async fn show(
    State(app): Shared,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Json<Value>, Problem> {
    shown(&app, &caller, task_id(&id)?).await
}

/// By what right somebody speaks about a run.
fn fence(query: &Query) -> Result<Speaker, Problem> {
    Ok(match (query.parse("run")?, query.parse("attempt")?) {
        (Some(run), _) => Speaker::Run(run),
        (None, Some(attempt)) => Speaker::Attempt(attempt),
        (None, None) => Speaker::Anyone,
    })
}

async fn update(
    State(app): Shared,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
    body: Bytes,
) -> Result<Json<Value>, Problem> {
    let fence = fence(&Query::read(query.as_deref(), FENCES)?)?;
    let id = task_id(&id)?;
    let given: UpdateIn = wire::read(&body)?;
    let end = match (given.status.as_deref(), &given.failure_reason) {
        (None, _) => None,
        (Some("Success"), _) => Some((TaskState::Succeeded, ReportEnd::Succeeded { result: None })),
        (Some("Failure"), Some(reason)) if !reason.is_empty() => {
            Some((TaskState::Failed, ReportEnd::Failed(Failure::new(Trigger::Explicit, reason))))
        }
        (Some("Failure"), _) => return Err(Invalid::one("failure_reason", "a failure needs a reason").into()),
        (Some(_), _) => return Err(Invalid::one("status", "must be one of Success, Failure").into()),
    };
    let count = Count {
        task: id,
        success: given.new_success.unwrap_or_default(),
        failures: given.new_failures.unwrap_or_default(),
        expected: given.expected_count,
    };
    let counts = count.success > 0 || count.failures > 0 || count.expected.is_some();
    let registers = given.on_cancel.is_some();
    if let Some(action) = given.on_cancel {
        let mut faults = Invalid::default();
        let call = action.call("on_cancel", &mut faults);
        faults.or(())?;
        app.engine.register_cancel(&caller.namespace, id, fence, call).await?;
    }
    let Some((state, end)) = end else {
        if registers && !counts {
            return shown(&app, &caller, id).await;
        }
        if !counts {
            return Err(Invalid::one("status", "say how it ended, or what was counted").into());
        }
        add(&app, &caller, count, fence).await?;
        return shown(&app, &caller, id).await;
    };
    if counts {
        add(&app, &caller, count, fence).await?;
    }
    let settle = Settle { namespace: caller.namespace.clone(), task: id, fence, end };
    match app.engine.settle(settle).await {
        Ok(_) => {}
        // Who says again what was said is right.
        Err(CommandError::LeaseLost) if is_so(&app, &caller, id, state).await? => {}
        Err(error @ (CommandError::LeaseLost | CommandError::TaskCanceled)) => {
            let now = app.engine.task(&caller.namespace, id).await?.stored.task.state;
            return Err(Problem::from(error).with("current_status", output::status(now)));
        }
        Err(error) => return Err(error.into()),
    }
    shown(&app, &caller, id).await
}

async fn is_so(app: &App, caller: &Caller, id: TaskId, state: TaskState) -> Result<bool, Problem> {
    let now = app.engine.task(&caller.namespace, id).await?.stored.task.state;
    Ok(now.is_terminal() && output::status(now) == output::status(state))
}

async fn add(app: &App, caller: &Caller, count: Count, fence: Speaker) -> Result<(), Problem> {
    app.engine.count(&caller.namespace, count, fence).await.map_err(|error| match error {
        CommandError::WrongState { state, .. } => Problem::from(error).with("current_status", output::status(state)),
        error => error.into(),
    })
}

async fn count(
    State(app): Shared,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
    body: Bytes,
) -> Result<Response, Problem> {
    let fence = fence(&Query::read(query.as_deref(), FENCES)?)?;
    let id = task_id(&id)?;
    let given: CountersIn = wire::read(&body)?;
    let (success, failures) = (given.new_success.unwrap_or_default(), given.new_failures.unwrap_or_default());
    if success == 0 && failures == 0 {
        return Err(Invalid::one("new_success", "one of the two must be more than nothing").into());
    }
    add(&app, &caller, Count { task: id, success, failures, expected: None }, fence).await?;
    let tally = app.engine.task(&caller.namespace, id).await?.stored.task.tally;
    let counted = json!({"success": tally.success, "failures": tally.failures, "expected_count": tally.expected});
    Ok((StatusCode::ACCEPTED, Json(counted)).into_response())
}

async fn cancel(
    State(app): Shared,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Json<Value>, Problem> {
    let id = task_id(&id)?;
    app.engine.cancel(&caller.namespace, id, caller.act(None, None)).await?;
    shown(&app, &caller, id).await
}

macro_rules! acts {
    ($($verb:ident),+) => {
        $(async fn $verb(
            State(app): Shared,
            Extension(caller): Extension<Caller>,
            Path(id): Path<String>,
            body: Bytes,
        ) -> Result<Json<Value>, Problem> {
            let NothingIn {} = wire::read(&body)?;
            let id = task_id(&id)?;
            app.engine.$verb(&caller.namespace, id, caller.act(None, None)).await?;
            shown(&app, &caller, id).await
        })+
    };
}

acts!(pause, resume);

async fn batches(
    State(app): Shared,
    Extension(caller): Extension<Caller>,
    RawQuery(query): RawQuery,
) -> Result<Json<Vec<Value>>, Problem> {
    let query = Query::read(query.as_deref(), PAGE_PARAMETERS)?;
    let (skip, limit) = page(&query)?;
    let found = app
        .engine
        .store()
        .executions(&caller.namespace, &ExecutionQuery { skip, limit, ..ExecutionQuery::default() })
        .await?;
    Ok(Json(found.iter().map(output::summary).collect()))
}

fn batch_id(text: &str) -> Result<ExecutionId, Problem> {
    Uuid::try_parse(text).map(ExecutionId).map_err(|_| Problem::not_found("batch"))
}

async fn progress(
    State(app): Shared,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Json<Value>, Problem> {
    let found = app.engine.store().execution(&caller.namespace, batch_id(&id)?).await?;
    Ok(Json(output::batch(&found.ok_or_else(|| Problem::not_found("batch"))?)))
}

async fn stop(
    State(app): Shared,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Json<Value>, Problem> {
    let id = batch_id(&id)?;
    if app.engine.store().execution(&caller.namespace, id).await?.is_none() {
        return Err(Problem::not_found("batch"));
    }
    let before = all_of(&app, &caller.namespace, id).await?;
    let act = Act { note: Some("Batch stopped".into()), ..caller.act(None, None) };
    match app.engine.cancel_execution(&caller.namespace, id, act).await {
        // Nothing in it was open.
        Ok(_) | Err(CommandError::WrongExecutionState(_)) => {}
        Err(error) => return Err(error.into()),
    }
    let after = all_of(&app, &caller.namespace, id).await?;
    let states = before.iter().zip(&after).map(|(before, after)| (before.stored.task.state, after.stored.task.state));
    let canceled: Vec<TaskState> = states
        .filter(|(before, after)| before.is_open() && *after == TaskState::Canceled)
        .map(|(before, _)| before)
        .collect();
    Ok(Json(output::stopped(&id.to_string(), &canceled, after.len() - canceled.len())))
}

async fn graph(
    State(app): Shared,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Json<Value>, Problem> {
    let id = batch_id(&id)?;
    let found = app.engine.store().graph(id, None).await?;
    let found = found.filter(|graph| *graph.execution.namespace == caller.namespace);
    let graph = found.ok_or_else(|| Problem::not_found("batch"))?;
    let tasks: Vec<Value> = all_of(&app, &caller.namespace, id).await?.iter().map(output::basic).collect();
    let out = graph.tasks.iter().filter_map(|task| task.edges.as_ref()).flat_map(|edges| &edges.out);
    let links: Vec<Value> = out.map(output::link).collect();
    Ok(Json(json!({"tasks": tasks, "links": links})))
}
