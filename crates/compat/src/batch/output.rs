//! Tasks and batches as clients of the dialect `task` read them.

use std::collections::BTreeMap;

use comeback_core::admission::Rule;
use comeback_core::failure::Matcher;
use comeback_core::policy::Strategy;
use comeback_core::{Edge, Executor, Policy, State, Task, Trigger, When};
use comeback_engine::store::{ExecutionView, Listed, TaskView};
use comeback_server::route::instant;
use serde_json::{Value, json};

use super::input::TRIGGERS;
use super::{actions, input, rules as carried};
use comeback_server::route::schema::*;

/// Statuses with the states they stand for.
const WORDS: [(&str, &str, &[State]); 10] = [
    ("Waiting", "waiting", &[State::Waiting]),
    ("Pending", "pending", &[State::Pending]),
    ("Claimed", "claimed", &[State::Claimed]),
    ("Running", "running", &[State::Running]),
    ("RetryPending", "retry_pending", &[State::RetryPending]),
    ("Paused", "paused", &[State::Paused]),
    ("Success", "success", &[State::Succeeded]),
    ("Failure", "failure", &[State::Failed, State::Dead]),
    ("Canceled", "canceled", &[State::Canceled]),
    ("Skipped", "skipped", &[State::Skipped]),
];

/// Statuses of tasks.
pub fn statuses() -> [&'static str; 10] {
    WORDS.map(|(shown, _, _)| shown)
}

fn word(state: State) -> (&'static str, &'static str) {
    let found = WORDS.iter().find(|(_, _, states)| states.contains(&state));
    found.map_or(("Waiting", "waiting"), |(shown, counted, _)| (*shown, *counted))
}

/// The status for a state.
pub fn status(state: State) -> &'static str {
    word(state).0
}

/// By any of its spellings.
pub fn states(status: &str) -> Option<&'static [State]> {
    let found = WORDS
        .iter()
        .find(|(shown, counted, _)| status.eq_ignore_ascii_case(shown) || status.eq_ignore_ascii_case(counted));
    found.map(|(_, _, states)| *states)
}

/// Fields of a task both in a list and alone.
fn common(task: &Task, name: Option<&str>) -> Value {
    json!({
        "id": task.id.to_string(),
        "name": name.unwrap_or(&task.lane.kind),
        "kind": task.lane.kind,
        "status": status(task.state),
        "created_at": task.submitted_at.to_rfc3339(),
        "started_at": instant(task.started_at),
        "ended_at": instant(task.ended_at),
        "success": task.tally.success,
        "failures": task.tally.failures,
        "expected_count": task.tally.expected,
        "batch_id": task.execution.map(|id| id.to_string()),
        "dead_end_barrier": task.dead_end_barrier,
        "priority": task.priority,
        "attempt": task.counters.attempt,
        "next_retry_at": instant(task.next_retry_at),
    })
}

/// A task in a list.
pub fn basic(listed: &Listed) -> Value {
    common(&listed.stored.task, listed.name.as_deref())
}

/// `rules` are those of the namespace: a task carries some of them.
pub fn whole(view: &TaskView, rules: &[Rule]) -> Value {
    let task = &view.stored.task;
    let mut shown = common(task, view.body.name.as_deref());
    let failure = view.last_failure.as_ref().and_then(|record| record.failure.as_ref());
    let told = matches!(task.state, State::RetryPending | State::Failed | State::Dead | State::Paused);
    let reason = failure.filter(|_| told).map(|failure| failure.message.as_str());
    let reason = reason.or_else(|| task.reason.filter(|_| task.state.is_failure()).map(|reason| reason.word()));
    let payload = view.body.payload.as_deref();
    let more = json!({
        "timeout": task.timeout.map(|span| span.0.div_ceil(1_000)),
        "rules": rules.iter().filter(|rule| view.body.rules.contains(&rule.name)).map(carried::shown).collect::<Vec<_>>(),
        "metadata": payload.and_then(|text| serde_json::from_str::<Value>(text).ok()).unwrap_or_else(|| json!({})),
        "actions": if task.lane.executor == Executor::Hook { actions::shown(&view.body) } else { Vec::new() },
        "last_updated": task.updated_at.to_rfc3339(),
        "failure_reason": reason,
        "retry": view.stored.policy.as_deref().and_then(retry),
    });
    if let (Value::Object(into), Value::Object(more)) = (&mut shown, more) {
        into.extend(more);
    }
    shown
}

/// A policy in this dialect; nothing where it is one that the dialect has no words for.
fn retry(policy: &Policy) -> Option<Value> {
    let (initial, multiplier) = match &policy.backoff.strategy {
        Strategy::Exponential { initial, multiplier } => (*initial, *multiplier),
        Strategy::Fixed { delay, first: None } => (*delay, 1.0),
        _ => return None,
    };
    let seconds =
        |ms: u64| -> Value { if ms.is_multiple_of(1_000) { (ms / 1_000).into() } else { (ms as f64 / 1e3).into() } };
    let trigger = |matcher: &Matcher| match matcher {
        Matcher::Trigger(Trigger::StartFailed) => "webhook_failure".to_owned(),
        other => other.to_string(),
    };
    Some(json!({
        "max_retries": policy.max_retries,
        "initial_delay_secs": seconds(initial.0),
        "backoff_multiplier": multiplier,
        "max_delay_secs": policy.backoff.max_delay.map(|cap| seconds(cap.0)),
        "retry_on": policy.retry_on.as_ref().map(|list| list.iter().map(trigger).collect::<Vec<_>>()),
    }))
}

fn counts(by_state: &BTreeMap<State, u64>) -> Value {
    let mut shown: serde_json::Map<String, Value> =
        WORDS.iter().map(|(_, counted, _)| ((*counted).to_owned(), 0.into())).collect();
    for (state, count) in by_state {
        let entry = shown.entry(word(*state).1).or_insert_with(|| 0.into());
        *entry = (entry.as_u64().unwrap_or(0) + count).into();
    }
    shown.into()
}

/// One line of the list of batches.
pub fn summary(view: &ExecutionView) -> Value {
    json!({
        "batch_id": view.execution.id.to_string(),
        "total_tasks": view.execution.total,
        "first_created_at": view.execution.created_at.to_rfc3339(),
        "latest_updated_at": view.changed_at.to_rfc3339(),
        "status_counts": counts(&view.counts),
        "kinds": view.kinds,
    })
}

/// Progress of a batch.
pub fn batch(view: &ExecutionView) -> Value {
    json!({
        "batch_id": view.execution.id.to_string(),
        "total_tasks": view.execution.total,
        "total_success": view.counted.success,
        "total_failures": view.counted.failures,
        "total_expected": view.counted.expected,
        "status_counts": counts(&view.counts),
    })
}

/// Tasks that were canceled, by their former state, and those that had ended before.
pub fn stopped(id: &str, canceled: &[State], over: usize) -> Value {
    let mut shown = json!({"batch_id": id, "already_terminal": over});
    for state in [State::Waiting, State::Pending, State::Claimed, State::Running, State::RetryPending, State::Paused] {
        let count = canceled.iter().filter(|it| **it == state).count();
        shown[format!("canceled_{}", state.word())] = count.into();
    }
    shown
}

/// A dependency between two tasks.
pub fn link(edge: &Edge) -> Value {
    let condition = match edge.when {
        When::Success => "on_success",
        When::Failure => "on_failure",
        When::Always => "always",
    };
    json!({
        "parent_id": edge.from.to_string(),
        "child_id": edge.to.to_string(),
        "requires_success": edge.when == When::Success,
        "condition": condition,
    })
}

/// Schemas of the answers.
pub fn schemas() -> Vec<(&'static str, Value)> {
    let conditions = ["always", "on_success", "on_failure"];
    vec![
        ("BatchStatus", like(word_of(&statuses()), json!(["RetryPending"]))),
        ("BatchEnd", word_of(&["Success", "Failure"])),
        ("BatchCondition", word_of(&conditions)),
        ("BatchTrigger", word_of(&TRIGGERS)),
        ("BatchVerb", word_of(&["Get", "Post", "Put", "Patch", "Delete"])),
        ("BatchActionKind", word_of(&["Webhook"])),
        ("BatchKind", json!({"type": "string", "minLength": 1, "maxLength": 100, "pattern": input::NAME})),
        ("Metadata", about(json!({"type": "object"}), "Any object of 64 KiB at most.")),
        ("BatchRunning", word_of(&["Running"])),
        ("BasicBatchTask", object(common_shape())),
        ("WholeBatchTask", whole_shape()),
        ("BatchStatusCounts", object(WORDS.map(|(_, counted, _)| (counted, count())))),
        (
            "BatchSummary",
            object([
                ("batch_id", id()),
                ("total_tasks", count()),
                ("first_created_at", instant_shape()),
                ("latest_updated_at", instant_shape()),
                ("status_counts", named("BatchStatusCounts")),
                ("kinds", list(text())),
            ]),
        ),
        (
            "BatchProgress",
            object([
                ("batch_id", id()),
                ("total_tasks", count()),
                ("total_success", count()),
                ("total_failures", count()),
                ("total_expected", about(nullable(count()), "Nothing when one task does not say what it expects.")),
                ("status_counts", named("BatchStatusCounts")),
            ]),
        ),
        (
            "StoppedBatch",
            object([
                ("batch_id", id()),
                ("canceled_waiting", count()),
                ("canceled_pending", count()),
                ("canceled_claimed", count()),
                ("canceled_running", count()),
                ("canceled_retry_pending", count()),
                ("canceled_paused", count()),
                ("already_terminal", count()),
            ]),
        ),
        (
            "BatchGraph",
            object([
                ("tasks", list(named("BasicBatchTask"))),
                (
                    "links",
                    list(object([
                        ("parent_id", id()),
                        ("child_id", id()),
                        ("requires_success", flag()),
                        ("condition", named("BatchCondition")),
                    ])),
                ),
            ]),
        ),
    ]
}

fn word_of(words: &[&str]) -> Value {
    comeback_server::route::schema::word(words)
}

fn instant_shape() -> Value {
    named("Instant")
}

fn common_shape() -> Vec<(&'static str, Value)> {
    vec![
        ("id", id()),
        ("name", text()),
        ("kind", text()),
        ("status", named("BatchStatus")),
        ("created_at", instant_shape()),
        ("started_at", nullable(instant_shape())),
        ("ended_at", nullable(instant_shape())),
        ("success", count()),
        ("failures", count()),
        ("expected_count", nullable(count())),
        ("batch_id", nullable(id())),
        ("dead_end_barrier", flag()),
        ("priority", between(-1_000, 1_000)),
        ("attempt", about(count(), "Retries so far: 0 on the first run.")),
        ("next_retry_at", nullable(instant_shape())),
    ]
}

fn whole_shape() -> Value {
    let seconds = || json!({"type": "number", "minimum": 0});
    let retry = object([
        ("max_retries", count()),
        ("initial_delay_secs", seconds()),
        ("backoff_multiplier", json!({"type": "number", "minimum": 1})),
        ("max_delay_secs", nullable(seconds())),
        ("retry_on", nullable(list(text()))),
    ]);
    let params = partial(
        &["url", "verb"],
        [("url", anything()), ("verb", named("BatchVerb")), ("body", anything()), ("headers", named("Headers"))],
    );
    let action = object([
        ("kind", named("BatchActionKind")),
        ("trigger", word_of(&["Start", "End", "Cancel"])),
        ("condition", nullable(named("BatchEnd"))),
        ("params", params),
    ]);
    let more = [
        ("timeout", about(nullable(count()), "In seconds.")),
        ("rules", list(named("BatchRule"))),
        ("metadata", anything()),
        ("actions", list(action)),
        ("last_updated", instant_shape()),
        ("failure_reason", nullable(text())),
        ("retry", about(nullable(retry), "Nothing where there is none, or none that this dialect has words for.")),
    ];
    object(common_shape().into_iter().chain(more))
}
