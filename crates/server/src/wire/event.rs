//! Events, as they are told to those who follow.

use comeback_core::Event;
use comeback_engine::store::FeedEvent;
use serde_json::{Value, json};

pub fn of_feed(it: &FeedEvent) -> Value {
    let mut shown = of_log(&it.event);
    shown["id"] = it.cursor.to_string().into();
    shown["namespace"] = it.namespace.as_str().into();
    shown
}

pub fn of_log(event: &Event) -> Value {
    json!({
        "type": event.kind.word(),
        "at": event.at.to_rfc3339(),
        "execution_id": event.execution.to_string(),
        "task_id": event.task.map(|id| id.to_string()),
        "seq": event.seq,
        "run": event.run,
        "attempt": event.attempt,
        "data": event.data,
    })
}
