//! Events on the wire.

use comeback_core::EventKind;
use comeback_engine::Cursors;
use comeback_engine::store::FeedEvent;
use serde_json::Value;

/// JSON of an event of the feed.
pub fn of_feed(it: &FeedEvent, cursors: &Cursors) -> Value {
    let mut shown = it.event.told();
    shown["id"] = cursors.show(&it.namespace, it.cursor).into();
    shown["namespace"] = it.namespace.as_str().into();
    shown
}

/// Name of an event type in a playbook engine; `None` if it has none.
pub fn seed_name(kind: EventKind) -> Option<&'static str> {
    Some(match kind {
        EventKind::ExecutionStarted => "execution_started",
        EventKind::ExecutionSucceeded => "execution_completed",
        EventKind::ExecutionFailed => "execution_failed",
        EventKind::ExecutionCanceled => "execution.cancelled",
        EventKind::TaskReady => "step_started",
        EventKind::AttemptStarted => "action_started",
        EventKind::AttemptSucceeded => "action_completed",
        EventKind::AttemptFailed => "action_error",
        EventKind::TaskRetryScheduled | EventKind::TaskThrottled => "step_retry",
        EventKind::TaskRetryExhausted => "step_retry_exhausted",
        EventKind::TaskFailed => "step_failed_terminal",
        EventKind::TaskSucceeded => "step_completed",
        _ => return None,
    })
}

/// All names of a playbook engine.
pub fn seed_names() -> Vec<&'static str> {
    let mut names: Vec<&str> = EventKind::ALL.iter().filter_map(|kind| seed_name(*kind)).collect();
    names.dedup();
    names
}

/// Event types of a name in either naming; empty if there is none.
pub fn kinds(word: &str) -> Vec<EventKind> {
    let named = |kind: &EventKind| kind.word() == word || seed_name(*kind) == Some(word);
    EventKind::ALL.iter().copied().filter(named).collect()
}
