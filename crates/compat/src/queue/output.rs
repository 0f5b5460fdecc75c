//! Jobs and events as workers of a playbook engine read them.

use comeback_core::{Event, EventKind, ExecutionId, Policy, Record, State, Task, Timestamp};
use comeback_engine::flow::Step;
use comeback_engine::store::{FeedEvent, Listed, TaskView};
use comeback_server::route::{instant, playbook_event_name};
use serde_json::{Value, json};

use super::status::PlaybookStatus;
use comeback_server::route::schema::*;

const WORDS: [(&str, &[State]); 7] = [
    ("queued", &[State::Waiting, State::Pending, State::RetryPending]),
    ("leased", &[State::Claimed, State::Running]),
    ("completed", &[State::Succeeded]),
    ("dead", &[State::Failed, State::Dead]),
    ("paused", &[State::Paused]),
    ("cancelled", &[State::Canceled]),
    ("skipped", &[State::Skipped]),
];

/// Statuses of jobs.
pub fn statuses() -> [&'static str; 7] {
    WORDS.map(|(word, _)| word)
}

/// The status for a state.
pub fn status(state: State) -> &'static str {
    WORDS.iter().find(|(_, states)| states.contains(&state)).map_or("queued", |(word, _)| word)
}

/// States with this status, a synonym of it, or `retry` for waiting retries.
pub fn states(word: &str) -> Option<&'static [State]> {
    if word == "retry" {
        return Some(&[State::RetryPending]);
    }
    let own = WORDS.iter().find(|(status, _)| *status == word).map(|(_, states)| *states);
    own.or_else(|| PlaybookStatus::read(word).map(PlaybookStatus::states))
}

/// Failed executions so far: the last one is counted too where it was the end.
pub fn attempts(state: State, attempt: u32) -> u32 {
    attempt + u32::from(matches!(state, State::Failed | State::Dead))
}

fn max_attempts(policy: Option<&Policy>) -> u32 {
    policy.map_or(1, |policy| policy.max_retries.saturating_add(1))
}

fn row(task: &Task, policy: Option<&Policy>, key: Option<&str>, name: Option<&str>) -> Value {
    let available = task.next_retry_at.or(task.start_at).unwrap_or(task.submitted_at);
    json!({
        "queue_id": task.id.to_string(),
        "execution_id": task.execution.unwrap_or(task.id.implicit_execution()).to_string(),
        "node_id": key,
        "node_name": name,
        "node_type": task.lane.kind,
        "status": status(task.state),
        "priority": task.priority,
        "attempts": attempts(task.state, task.counters.attempt),
        "max_attempts": max_attempts(policy),
        "available_at": available.to_rfc3339(),
        "lease_until": instant(task.lease.as_ref().and_then(|lease| lease.expires_at)),
        "worker_id": task.lease.as_ref().map(|lease| &lease.worker),
        "created_at": task.submitted_at.to_rfc3339(),
        "updated_at": task.updated_at.to_rfc3339(),
    })
}

/// A job in a list.
pub fn listed(it: &Listed) -> Value {
    row(&it.stored.task, it.stored.policy.as_deref(), it.key.as_deref(), it.name.as_deref())
}

/// A job with what its worker needs. What was enqueued otherwise is all of it context.
pub fn job(view: &TaskView) -> Value {
    let (stored, body) = (&view.stored, &view.body);
    let mut shown = row(&stored.task, stored.policy.as_deref(), body.key.as_deref(), body.name.as_deref());
    let payload = body.payload.as_deref().and_then(|text| serde_json::from_str::<Value>(text).ok());
    let is_ours =
        |it: &Value| it.as_object().is_some_and(|fields| fields.keys().all(|key| key == "action" || key == "context"));
    let (action, context) = match payload {
        Some(it) if is_ours(&it) => (it["action"].clone(), it["context"].clone()),
        other => (Value::Null, other.unwrap_or_default()),
    };
    shown["action"] = action;
    shown["context"] = context;
    shown
}

/// The acknowledgement of a report.
pub fn ack(task: &Task) -> Value {
    json!({
        "status": "ok",
        "queue_id": task.id.to_string(),
        "queue_status": status(task.state),
        "attempts": attempts(task.state, task.counters.attempt),
        "available_at": instant(task.next_retry_at),
    })
}

/// An event with the step that it is about, how the attempt ended that it tells of, and the execution that called its own.
pub fn event(
    it: &FeedEvent,
    id: String,
    about: Option<&TaskView>,
    ended: Option<&Record>,
    parent: Option<ExecutionId>,
) -> Value {
    let happened = &it.event;
    let name = playbook_event_name(happened.kind).unwrap_or_default();
    let failure = ended.and_then(|record| record.failure.as_ref());
    let result = ended.and_then(|record| record.result.as_deref());
    let took = ended.and_then(|record| record.started_at.map(|start| record.at.since(start)));
    json!({
        "event_id": id,
        "event_type": name,
        "execution_id": happened.execution.to_string(),
        "parent_execution_id": parent.map(|id| id.to_string()),
        "queue_id": happened.task.map(|id| id.to_string()),
        "node_id": about.and_then(|view| view.body.key.as_deref()),
        "node_name": about.and_then(|view| view.body.name.as_deref()),
        "node_type": about.map(|view| &view.stored.task.lane.kind),
        "status": PlaybookStatus::of(happened.kind).word(),
        "timestamp": happened.at.to_rfc3339(),
        "duration": took.map(|span| span.0 as f64 / 1e3),
        "loop": about.and_then(round),
        "worker_id": happened.data.get("worker"),
        "context": context(happened, about.and_then(|view| view.stored.policy.as_deref())),
        "result": result.and_then(|text| serde_json::from_str::<Value>(text).ok()),
        "error": failure.map(|failure| &failure.message),
        "stack_trace": failure.and_then(|failure| failure.stack.as_ref()),
        "meta": {"seq": happened.seq, "run": happened.run, "type": happened.kind.word()},
    })
}

/// Which round of a loop a step is.
fn round(about: &TaskView) -> Option<Value> {
    let step: Step = serde_json::from_str(about.body.step.as_deref()?).ok()?;
    step.round.map(|round| json!({"index": round.index, "item": round.item}))
}

/// The numbers that such an event carries there.
fn context(happened: &Event, policy: Option<&Policy>) -> Value {
    let data = &happened.data;
    let number = |name: &str| data[name].as_u64().unwrap_or(0);
    let max = data["max"].as_u64().map_or(max_attempts(policy).into(), |max| max + 1);
    match happened.kind {
        EventKind::AttemptStarted => json!({"attempt": number("attempt_number"), "is_retry": data["is_retry"]}),
        EventKind::AttemptSucceeded => json!({"attempt": happened.attempt + 1}),
        EventKind::AttemptFailed => json!({
            "attempt": happened.attempt + 1,
            "status_code": data["status"],
            "error_class": data["class"],
            "trigger": data["trigger"],
        }),
        EventKind::TaskRetryScheduled | EventKind::TaskThrottled => json!({
            "attempt": number("attempt"),
            "max_attempts": max,
            "delay_seconds": number("delay_ms") as f64 / 1e3,
            "last_error": data["last_error"],
            "available_at": data["next_retry_at"],
        }),
        EventKind::TaskRetryExhausted => json!({
            "attempts": number("attempt") + 1,
            "max_attempts": max,
            "final_error": data["last_error"],
        }),
        EventKind::TaskFailed => {
            let native = data["reason"].as_str().unwrap_or_default();
            let reason = match native {
                "attempts" | "expired" | "lost" | "throttled_out" | "snoozed_out" => "retries_exhausted",
                "upstream_failed" | "upstream_unmet" => "upstream_failed",
                _ => "not_retryable",
            };
            json!({"reason": reason, "detail": native})
        }
        _ => json!({}),
    }
}

/// Whether the event ends an attempt.
pub fn ends_attempt(happened: &Event) -> bool {
    matches!(happened.kind, EventKind::AttemptSucceeded | EventKind::AttemptFailed)
}

/// The answer to a heartbeat. `None` if the job is to be canceled.
pub fn leased_until(at: Option<Timestamp>) -> Value {
    json!({"status": "ok", "lease_until": instant(at), "cancel_requested": at.is_none()})
}

fn row_shape() -> Vec<(&'static str, Value)> {
    vec![
        ("queue_id", id()),
        ("execution_id", id()),
        ("node_id", nullable(text())),
        ("node_name", nullable(text())),
        ("node_type", text()),
        ("status", named("QueueStatus")),
        ("priority", between(-1_000, 1_000)),
        ("attempts", about(count(), "Executions that failed so far.")),
        ("max_attempts", about(count(), "The first one included.")),
        ("available_at", instant_shape()),
        ("lease_until", nullable(instant_shape())),
        ("worker_id", nullable(text())),
        ("created_at", instant_shape()),
        ("updated_at", instant_shape()),
    ]
}

fn instant_shape() -> Value {
    named("Instant")
}

/// Schemas of the answers.
pub fn schemas() -> Vec<(&'static str, Value)> {
    let ok = || constant("ok");
    let own = [("action", anything()), ("context", anything())];
    let job = object(row_shape().into_iter().chain(own).chain([(
        "lease",
        about(text(), "Opaque: names this run when it ends. The name of the worker does too, while it holds the job."),
    )]));
    vec![
        ("QueueStatus", word(&statuses())),
        ("QueueRow", object(row_shape())),
        ("QueueJob", job),
        (
            "QueueLease",
            any_of([
                object([("status", ok()), ("job", named("QueueJob"))]),
                object([("status", constant("empty")), ("job", json!({"type": "null"}))]),
            ]),
        ),
        (
            "QueueAck",
            object([
                ("status", ok()),
                ("queue_id", id()),
                ("queue_status", named("QueueStatus")),
                ("attempts", count()),
                ("available_at", nullable(instant_shape())),
            ]),
        ),
        ("QueueEntry", object([("status", ok()), ("queue_id", id()), ("execution_id", id())])),
        (
            "QueueBeat",
            object([("status", ok()), ("lease_until", nullable(instant_shape())), ("cancel_requested", flag())]),
        ),
        ("QueueSize", object([("status", ok()), ("count", count()), ("by_status", map(count()))])),
        (
            "SeedEvent",
            object([
                ("event_id", text()),
                ("event_type", named("SeedEventType")),
                ("execution_id", id()),
                ("parent_execution_id", about(nullable(id()), "The execution whose step called this one.")),
                ("queue_id", nullable(id())),
                ("node_id", nullable(text())),
                ("node_name", nullable(text())),
                ("node_type", nullable(text())),
                ("status", word(&PlaybookStatus::all())),
                ("timestamp", instant_shape()),
                ("duration", about(json!({"type": ["number", "null"], "minimum": 0}), "In seconds.")),
                (
                    "loop",
                    about(
                        nullable(object([("index", count()), ("item", anything())])),
                        "Which round of a loop the step is, counted from 0.",
                    ),
                ),
                ("worker_id", nullable(text())),
                ("context", about(json!({"type": "object"}), "Attempts, delays and reasons.")),
                ("result", anything()),
                ("error", nullable(text())),
                ("stack_trace", nullable(text())),
                ("meta", object([("seq", count()), ("run", count()), ("type", named("EventType"))])),
            ]),
        ),
        ("EmittedType", word(&super::events::TYPES)),
    ]
}
