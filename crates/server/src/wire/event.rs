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

/// The name of an event in a playbook engine (dialect `step`). `None` if it has no such event.
pub fn playbook_event_name(kind: EventKind) -> Option<&'static str> {
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

/// All event names of a playbook engine.
pub fn playbook_event_names() -> Vec<&'static str> {
    let mut names: Vec<&str> = EventKind::ALL.iter().filter_map(|kind| playbook_event_name(*kind)).collect();
    names.dedup();
    names
}

/// Event kinds with this native or playbook name; none if it is no name of an event.
pub fn kinds(word: &str) -> Vec<EventKind> {
    let named = |kind: &EventKind| kind.word() == word || playbook_event_name(*kind) == Some(word);
    EventKind::ALL.iter().copied().filter(named).collect()
}
