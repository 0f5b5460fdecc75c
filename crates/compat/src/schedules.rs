//! Retry schedules, as a workflow engine keeps them in a table: here they are a view over tasks (dialect `workflow`).
//!
//! A task is one row for each of its cycles. A list shows the present ones; all rows of one task are made of its log.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{Extension, RawQuery, State};
use axum::http::Method;
use axum::response::Json;
use axum::routing::get;
use comeback_core::filter::{Compare, Filter, NumberField, Sort, StateTest, Test, TimeField};
use comeback_core::policy::Strategy;
use comeback_core::{
    EventKind, ExecutionId, Executor, Failure, Invalid, Millis, Policy, Record, State as TaskState, TaskId, Timestamp,
};
use comeback_engine::CommandError;
use comeback_engine::store::{ExecutionQuery, ListCursor, ListQuery, Subject, TaskView};
use comeback_server::route::{
    CURSOR, Caller, Doc, Line, ListPage, MOST_PAGE_BYTES, Need, Page, Param, Query, instant, line, schema,
};
use comeback_server::{App, Problem};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::errors;

/// Lines of the route table.
pub fn lines() -> Vec<Line> {
    let list_at = |path, id| {
        let doc = Doc::new(id)
            .about(
                "Open ones come by their due time, all others newest first. `pending` and `scheduled` mean the same. With `target_id`, \
                 every cycle of one task is a row, the present one last.",
            )
            .query(PARAMETERS)
            .answers(schema::page(schema::named("RetrySchedule")))
            .problems(&["not-found"]);
        line(Method::GET, path, Need::Read, "Retries that wait, run or are over", get(list)).doc(doc)
    };
    let rate_at = |path, id| {
        let doc = Doc::new(id)
            .about("Over the present cycle of every task that was retried or waits for it.")
            .answers(schema::named("RetrySuccessRate"));
        line(Method::GET, path, Need::Read, "How many retries led to success", get(success_rate)).doc(doc)
    };
    vec![
        list_at("/retry-schedules", "listRetrySchedules").errors(&errors::WORKFLOW),
        list_at("/api/v1/retry-schedules", "listSchedules"),
        rate_at("/retry-schedules/success-rate", "getRetrySuccessRate").errors(&errors::WORKFLOW),
        rate_at("/api/v1/retry-schedules/success-rate", "getSuccessRate"),
    ]
}

const STATUSES: [&str; 6] = ["pending", "scheduled", "retrying", "completed", "failed", "cancelled"];
const MOST: u32 = 100;

const PARAMETERS: &[Param] = &[
    Param::new("status", "`scheduled` where nothing is said; `all` for whatever was retried.", status_words),
    Param::new("due_within", "Only what is due in this span, as in `24h`.", || schema::named("Duration")),
    Param::new("execution_id", "Only of this execution.", schema::id),
    Param::new("target_id", "All cycles of this task, or of the one that stands for this execution.", schema::id),
    Param::new("limit", "How many at most; 50 where nothing is said.", || schema::between(1, MOST as i64)),
    CURSOR,
];

fn status_words() -> Value {
    schema::word(&[&STATUSES[..], &["all"]].concat())
}

async fn list(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    RawQuery(query): RawQuery,
) -> Result<Json<Page<Value>>, Problem> {
    let query = Query::read(query.as_deref(), PARAMETERS)?;
    let limit = match query.parse::<u32>("limit")? {
        None => 50,
        Some(limit) if (1..=MOST).contains(&limit) => limit,
        Some(_) => return Err(Invalid::one("limit", format!("must be between 1 and {MOST}")).into()),
    };
    if let Some(target) = query.parse::<Uuid>("target_id")? {
        let view = target_of(&app, &caller.namespace, target).await?;
        let mut items = rows_of(&view, &log_of(&app, &view, false, &mut MessageBudget::default()).await?);
        for row in &mut items {
            name_execution(&app, &view, row).await?;
        }
        return Ok(Json(Page { items, next_cursor: None }));
    }
    let now = app.engine.now();
    let (filter, sort) = filter(&query, now)?;
    let after: Option<ListCursor> = query.parse("cursor")?;
    if after.is_some_and(|cursor| cursor.sort != sort) {
        return Err(Invalid::one("cursor", "is of a list that was sorted otherwise").into());
    }
    let mut page = ListPage::new(limit, after);
    let mut request = ListQuery { filter, sort, limit: 0, after, now };
    while let Some((limit, after)) = page.wants() {
        (request.limit, request.after) = (limit, after);
        page.add(app.engine.store().list(&caller.namespace, &request).await?);
    }
    let found = page.into_listing();
    let mut items = Vec::with_capacity(found.items.len());
    let mut budget = MessageBudget::default();
    for item in &found.items {
        if let Some(view) = app.engine.store().task(&caller.namespace, item.stored.task.id).await? {
            let log = log_of(&app, &view, true, &mut budget).await?;
            let mut row = present(&view, &log.iter().collect::<Vec<_>>());
            name_execution(&app, &view, &mut row).await?;
            items.push(row);
        }
    }
    Ok(Json(Page { items, next_cursor: found.next.map(|cursor| cursor.to_string()) }))
}

fn filter(query: &Query, now: Timestamp) -> Result<(Filter, Sort), Problem> {
    let is = |states: &[TaskState]| Test::State(states.iter().copied().map(StateTest::Is).collect());
    let retried = || Test::Number { field: NumberField::Attempt, compare: Compare::Greater, value: 0 };
    let none = Filter::default();
    let (mut filter, sort) = match query.text("status").unwrap_or("scheduled") {
        "pending" | "scheduled" => (none.and(is(&[TaskState::RetryPending])), Sort::Due),
        "retrying" => (none.and(is(&[TaskState::Claimed, TaskState::Running])).and(retried()), Sort::Updated),
        "completed" => (none.and(is(&[TaskState::Succeeded])).and(retried()), Sort::Updated),
        "failed" => (none.and(is(&[TaskState::Dead])), Sort::Updated),
        "cancelled" => (none.and(is(&[TaskState::Canceled])).and(retried()), Sort::Updated),
        "all" => (none.and(retried()), Sort::Updated),
        _ => return Err(Invalid::one("status", format!("must be one of {}, all", STATUSES.join(", "))).into()),
    };
    if let Some(text) = query.text("due_within") {
        let span = Millis::parse(text).map_err(|error| Invalid::one("due_within", error))?;
        filter = filter.and(Test::Time { field: TimeField::Due, compare: Compare::LessOrEqual, at: now + span });
    }
    if let Some(id) = query.parse::<Uuid>("execution_id")? {
        filter = filter.and(Test::Execution(vec![id]));
    }
    Ok((filter, sort))
}

/// Records that are read at a time: each may have a result of many kilobytes, which is not kept.
const STRETCH: u32 = 64;
/// Bytes of a message once the messages of a page are longer than a page may be.
const SHORT_MESSAGE: usize = 200;

/// Bytes that messages of a page may still have; further ones are shortened.
struct MessageBudget(usize);

impl Default for MessageBudget {
    fn default() -> Self {
        MessageBudget(MOST_PAGE_BYTES)
    }
}

impl MessageBudget {
    /// The record with only the parts that a row needs.
    fn lean(&mut self, record: Record) -> Record {
        let failure = record.failure.map(|failure| {
            let mut message = failure.message;
            match self.0.checked_sub(message.len()) {
                Some(left) => self.0 = left,
                None => message.truncate(message.floor_char_boundary(SHORT_MESSAGE)),
            }
            Failure { message, ..Failure::default() }
        });
        Record { result: None, data: None, failure, ..record }
    }
}

/// The log of a task, however long it is: of all cycles, or of the present one.
async fn log_of(app: &App, view: &TaskView, present: bool, budget: &mut MessageBudget) -> Result<Vec<Record>, Problem> {
    let task = &view.stored.task;
    let (mut log, mut after) = (Vec::new(), 0);
    loop {
        let found = app.engine.store().history(Subject::Task(task.id), after, STRETCH).await?;
        let on = found.last().filter(|_| found.len() >= STRETCH as usize).map(Record::last_seq);
        let wanted = found.into_iter().filter(|record| !present || record.cycle == task.cycle);
        log.extend(wanted.map(|record| budget.lean(record)));
        match on {
            Some(last) => after = last,
            None => return Ok(log),
        }
    }
}

/// The task that is retried: this one, or the one that stands for this execution.
async fn target_of(app: &App, namespace: &str, id: Uuid) -> Result<TaskView, Problem> {
    match app.engine.task(namespace, TaskId(id)).await {
        Err(CommandError::NotFound(what)) => {
            let execution = app.engine.store().execution(namespace, ExecutionId(id)).await?;
            let (task, _) =
                execution.and_then(|view| view.origin.parent).ok_or(Problem::from(CommandError::NotFound(what)))?;
            Ok(app.engine.task(namespace, task).await?)
        }
        found => Ok(found?),
    }
}

/// A task that stands for an execution is not what is retried there: the execution is.
async fn name_execution(app: &App, view: &TaskView, row: &mut Value) -> Result<(), Problem> {
    let task = &view.stored.task;
    if task.lane.executor != Executor::Flow || task.execution.is_some() {
        return Ok(());
    }
    let newest = ExecutionQuery { parent: Some(task.id), limit: 1, ..ExecutionQuery::default() };
    let Some(last) = app.engine.store().executions(&task.lane.namespace, &newest).await?.pop() else { return Ok(()) };
    let (workflow, version) = last.origin.workflow.unzip();
    row["retry_type"] = "execution".into();
    row["target_id"] = last.execution.id.to_string().into();
    row["execution_id"] = row["target_id"].clone();
    let input = last.origin.input.as_deref().and_then(|text| serde_json::from_str::<Value>(text).ok());
    row["retry_context"] = json!({"inputData": input, "nodeConfig": {"workflow": workflow, "version": version}});
    Ok(())
}

/// A row for every cycle in which something was to be retried.
fn rows_of(view: &TaskView, log: &[Record]) -> Vec<Value> {
    let mut by_cycle: BTreeMap<u32, Vec<&Record>> = BTreeMap::new();
    for record in log {
        // The record of a manual retry tells of the end of the cycle before.
        let ends_one = record.events.contains(&EventKind::TaskManualRetry) && record.cycle > 0;
        by_cycle.entry(record.cycle - u32::from(ends_one)).or_default().push(record);
    }
    let now = view.stored.task.cycle;
    let is_retry = |record: &&Record| {
        let events = &record.events;
        events.contains(&EventKind::TaskRetryScheduled) || events.contains(&EventKind::TaskThrottled)
    };
    let told = by_cycle.iter().filter(|(_, records)| records.iter().any(&is_retry));
    told.map(|(cycle, records)| if *cycle == now { present(view, records) } else { past(view, *cycle, records) })
        .collect()
}

fn status(state: TaskState) -> &'static str {
    match state {
        TaskState::Claimed | TaskState::Running => "retrying",
        TaskState::Succeeded => "completed",
        TaskState::Failed | TaskState::Dead => "failed",
        TaskState::Canceled | TaskState::Skipped => "cancelled",
        TaskState::Waiting | TaskState::Pending | TaskState::RetryPending | TaskState::Paused => "scheduled",
    }
}

/// The cycle that a task is in.
fn present(view: &TaskView, records: &[&Record]) -> Value {
    let task = &view.stored.task;
    let mut row = common(view, task.cycle, records);
    row["current_attempt"] = task.counters.attempt.into();
    row["scheduled_at"] = json!(instant(task.next_retry_at.or_else(|| last_due(records))));
    row["status"] = status(task.state).into();
    row["locked_by"] = json!(task.lease.as_ref().map(|lease| &lease.worker));
    row["locked_at"] = json!(instant(task.lease.as_ref().map(|lease| lease.acquired_at)));
    row["updated_at"] = task.updated_at.to_rfc3339().into();
    row
}

/// A cycle that a manual retry has ended: what it had left was given up, unless it had come to its end by itself.
fn past(view: &TaskView, cycle: u32, records: &[&Record]) -> Value {
    let mut row = common(view, cycle, records);
    let exhausted = records.iter().any(|record| record.events.contains(&EventKind::TaskRetryExhausted));
    let failed = records.iter().any(|record| record.events.contains(&EventKind::TaskFailed));
    let attempts = records.iter().filter_map(|record| record.decision.as_ref()).map(|it| it.after.attempt);
    row["current_attempt"] = attempts.max().unwrap_or(0).into();
    row["scheduled_at"] = json!(instant(last_due(records)));
    row["status"] = if exhausted || failed { "failed" } else { "cancelled" }.into();
    row["updated_at"] = json!(instant(records.last().map(|record| record.at)));
    row
}

fn last_due(records: &[&Record]) -> Option<Timestamp> {
    records.iter().rev().find_map(|record| record.decision.as_ref()?.next_retry_at)
}

fn common(view: &TaskView, cycle: u32, records: &[&Record]) -> Value {
    let task = &view.stored.task;
    let ends: Vec<&&Record> = records.iter().filter(|record| record.outcome.is_some()).collect();
    let errors = ends.iter().filter_map(|record| Some((record, record.failure.as_ref()?)));
    let errors: Vec<Value> = errors
        .enumerate()
        .map(|(n, (record, failure))| {
            json!({"attempt": n + 1, "timestamp": record.at.to_rfc3339(), "error": failure.message})
        })
        .collect();
    let read = |text: Option<&str>| text.and_then(|text| serde_json::from_str::<Value>(text).ok());
    let first = ends.first().map_or(task.submitted_at, |record| record.at);
    let mut row = json!({
        "id": format!("{}:{cycle}", task.id),
        "retry_type": "node_execution",
        "target_id": task.id.to_string(),
        "execution_id": task.execution.unwrap_or(task.id.implicit_execution()).to_string(),
        "node_id": view.body.key,
        "current_attempt": 0,
        "scheduled_at": null,
        "last_retried_at": instant(ends.last().map(|record| record.at)),
        "expires_at": instant(task.expires_at),
        "status": "scheduled",
        "locked_by": null,
        "locked_at": null,
        "retry_context": {
            "inputData": read(view.body.payload.as_deref()),
            "nodeConfig": read(view.body.executor.as_deref()),
        },
        "error_history": errors,
        "created_at": first.to_rfc3339(),
        "updated_at": null,
        "version": task.version,
    });
    if let (Value::Object(into), Value::Object(more)) = (&mut row, configuration(view.stored.policy.as_deref())) {
        into.extend(more);
    }
    row
}

/// The policy in the columns of that table.
fn configuration(policy: Option<&Policy>) -> Value {
    let seconds = |span: Millis| -> Value {
        if span.0.is_multiple_of(1_000) { (span.0 / 1_000).into() } else { (span.0 as f64 / 1e3).into() }
    };
    let mut row = json!({
        "retry_strategy": "immediate", "max_attempts": policy.map_or(0, |policy| policy.max_retries),
        "initial_delay_seconds": 0, "delay_seconds": null, "multiplier": 2.0, "max_delay_seconds": null,
        "custom_schedule": null,
    });
    let Some(policy) = policy else { return row };
    row["max_delay_seconds"] = policy.backoff.max_delay.map_or(Value::Null, seconds);
    match &policy.backoff.strategy {
        Strategy::Immediate { first } => row["initial_delay_seconds"] = seconds(first.unwrap_or_default()),
        Strategy::Exponential { initial, multiplier } => {
            row["retry_strategy"] = "exponential_backoff".into();
            row["initial_delay_seconds"] = seconds(*initial);
            row["multiplier"] = ((multiplier * 100.0).round() / 100.0).into();
        }
        Strategy::Fixed { delay, first } => {
            row["retry_strategy"] = "fixed_delay".into();
            row["initial_delay_seconds"] = seconds(first.unwrap_or(*delay));
            row["delay_seconds"] = seconds(*delay);
        }
        Strategy::Linear { initial, step } => {
            row["retry_strategy"] = "linear".into();
            row["initial_delay_seconds"] = seconds(*initial);
            row["delay_seconds"] = seconds(*step);
        }
        Strategy::Schedule(entries) => {
            let entry = |it: &comeback_core::policy::ScheduleEntry| match it.delay.0 % 86_400_000 {
                0 => json!({"attempt": it.retry, "delay_days": it.delay.0 / 86_400_000}),
                _ => json!({"attempt": it.retry, "delay_seconds": seconds(it.delay)}),
            };
            row["retry_strategy"] = "custom".into();
            row["custom_schedule"] = json!({"attempts": entries.iter().map(entry).collect::<Vec<_>>()});
        }
    }
    row
}

async fn success_rate(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<Value>, Problem> {
    let counts = app.engine.store().retried(&caller.namespace).await?.by_state;
    let of = |state: TaskState| counts.get(&state).copied().unwrap_or(0);
    let (successful, failed, total) = (of(TaskState::Succeeded), of(TaskState::Dead), counts.values().sum::<u64>());
    let percent = (total > 0).then(|| (successful as f64 * 10_000.0 / total as f64).round() / 100.0);
    Ok(Json(json!({"successful": successful, "failed": failed, "total": total, "success_rate": percent})))
}

/// Schemas of the answers.
pub fn schemas() -> Vec<(&'static str, Value)> {
    use comeback_server::route::schema::*;
    let at = || named("Instant");
    let seconds = || json!({"type": "number", "minimum": 0});
    let entry = partial(&["attempt"], [("attempt", count()), ("delay_days", count()), ("delay_seconds", seconds())]);
    let schedule = object([
        ("id", text()),
        ("retry_type", word(&["node_execution", "execution"])),
        ("target_id", id()),
        ("execution_id", id()),
        ("node_id", nullable(text())),
        ("retry_strategy", word(&["immediate", "exponential_backoff", "fixed_delay", "linear", "custom"])),
        ("max_attempts", about(count(), "Retries, without the first run.")),
        ("current_attempt", count()),
        ("initial_delay_seconds", seconds()),
        ("delay_seconds", nullable(seconds())),
        ("multiplier", json!({"type": "number", "minimum": 1})),
        ("max_delay_seconds", nullable(seconds())),
        ("custom_schedule", nullable(object([("attempts", list(entry))]))),
        ("scheduled_at", about(nullable(at()), "When the retry is due, or the last one was.")),
        ("last_retried_at", about(nullable(at()), "When the last attempt ended.")),
        ("expires_at", nullable(at())),
        ("status", word(&STATUSES)),
        ("locked_by", nullable(text())),
        ("locked_at", nullable(at())),
        ("retry_context", object([("inputData", anything()), ("nodeConfig", anything())])),
        ("error_history", list(object([("attempt", count()), ("timestamp", at()), ("error", text())]))),
        ("created_at", at()),
        ("updated_at", at()),
        ("version", count()),
    ]);
    let percent = json!({"type": ["number", "null"], "minimum": 0, "maximum": 100});
    let rate = object([
        ("successful", count()),
        ("failed", count()),
        ("total", count()),
        ("success_rate", about(percent, "In percent, with two decimals; nothing of nothing.")),
    ]);
    vec![("RetrySchedule", schedule), ("RetrySuccessRate", rate)]
}
