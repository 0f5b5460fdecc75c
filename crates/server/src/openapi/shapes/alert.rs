//! Alerts.

use comeback_core::subscription::AlertEvent;
use serde_json::{Value, json};

use super::words;
use crate::openapi::schema::*;

pub fn all() -> Vec<(&'static str, Value)> {
    let maybe = || nullable(instant());
    let number = || json!({"type": "number", "minimum": 0, "maximum": 1});
    let change = object([
        ("type", words!(AlertEvent)),
        ("at", instant()),
        ("count", about(count(), "How many there were then.")),
        ("of", about(count(), "With what was counted beside them.")),
    ]);
    let alert = object([
        ("name", text()),
        ("state", word(&["quiet", "firing", "paused"])),
        ("types", list(text())),
        ("filter", nullable(text())),
        ("threshold", count()),
        ("window_ms", count()),
        ("share", nullable(number())),
        ("of", nullable(list(text()))),
        ("tell", list(text())),
        ("paused", flag()),
        ("note", nullable(text())),
        ("firing_since", maybe()),
        ("count", about(count(), "How many were within the window when it was last written down.")),
        ("fired", about(count(), "How often it has fired since it counts so.")),
        ("last", nullable(named("AlertChange"))),
        ("created_at", instant()),
        ("updated_at", instant()),
    ]);
    let backtest = object([
        ("from", instant()),
        ("to", instant()),
        ("fired", about(count(), "How often it would have fired.")),
        ("changes", list(named("AlertChange"))),
        ("events", about(count(), "Events of all sorts that were looked at.")),
        ("complete", flag()),
    ]);
    vec![("AlertChange", change), ("Alert", alert), ("AlertBacktestAnswer", backtest)]
}
