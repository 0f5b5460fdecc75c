//! Alerts.

use comeback_core::subscription::AlertEvent;
use serde_json::{Value, json};

use super::words;
use crate::openapi::schema::*;

/// Schemas of this module, by name.
pub fn all() -> Vec<(&'static str, Value)> {
    let maybe = || nullable(instant());
    let number = || json!({"type": "number", "minimum": 0, "maximum": 1});
    let change = object([
        ("type", words!(AlertEvent)),
        ("at", instant()),
        ("count", about(count(), "Number of events when it fired.")),
        ("of", about(count(), "Number of events that the share is measured against.")),
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
        ("count", about(count(), "Number of events within the window at the last update.")),
        ("fired", about(count(), "Number of times it has fired since its definition last changed.")),
        ("last", nullable(named("AlertChange"))),
        ("created_at", instant()),
        ("updated_at", instant()),
    ]);
    let backtest = object([
        ("from", instant()),
        ("to", instant()),
        ("fired", about(count(), "Number of times it would have fired.")),
        ("changes", list(named("AlertChange"))),
        ("events", about(count(), "Number of events scanned.")),
        ("complete", flag()),
    ]);
    vec![("AlertChange", change), ("Alert", alert), ("AlertBacktestAnswer", backtest)]
}
