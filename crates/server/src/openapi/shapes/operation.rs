//! Bulk operations.

use comeback_core::State;
use comeback_core::operation::{Action, Exclusion, OperationState};
use serde_json::{Value, json};

use super::words;
use crate::openapi::schema::*;

/// Schemas of this module, by name.
pub fn all() -> Vec<(&'static str, Value)> {
    let number = || json!({"type": "number"});
    let states: Vec<&str> = OperationState::ALL.iter().map(|it| it.word()).chain(["dry_run"]).collect();
    let excluded = object([
        ("reason", words!(Exclusion)),
        ("state", about(nullable(words!(State)), "State of the tasks, if that is the reason.")),
        ("count", count()),
        ("sample", about(list(id()), "Examples, at most five.")),
    ]);
    let stop_if = object([("failed_over", number()), ("same_fingerprint", flag())]);
    let waves = object([
        ("canary", count()),
        ("size", about(nullable(count()), "Size of every later wave; null if waves double.")),
        ("pause_ms", count()),
        ("stop_if", nullable(stop_if)),
    ]);
    let wave = object([
        ("number", about(count(), "The canary is number 0.")),
        ("tasks", count()),
        ("sent_at", about(nullable(instant()), "When its last task was processed.")),
    ]);
    let wave_end = object([
        ("number", count()),
        ("tasks", count()),
        ("succeeded", count()),
        ("failed", count()),
        ("alike", about(count(), "Failures of the most frequent error group.")),
        ("fingerprint", about(nullable(text()), "Fingerprint of that group.")),
    ]);
    let operation = object([
        ("id", about(nullable(id()), "Null for a dry run.")),
        ("action", named("BulkAction")),
        ("state", word(&states)),
        ("filter", nullable(text())),
        ("matched", about(count(), "Tasks selected.")),
        ("eligible", about(count(), "Tasks not excluded, as far as checked.")),
        ("excluded", list(named("Excluded"))),
        ("sample", about(list(id()), "Dry run: examples of eligible tasks.")),
        ("cost", about(nullable(count()), "Dry run: credits that would be reserved.")),
        ("done", about(count(), "Tasks changed.")),
        ("left", count()),
        ("undone", about(count(), "Tasks reverted.")),
        ("kept", about(list(named("Excluded")), "Changes that could not be reverted.")),
        ("spread_ms", nullable(count())),
        ("waves", nullable(waves)),
        ("wave", about(nullable(wave), "Current wave.")),
        ("waves_done", list(wave_end)),
        ("requested_by", nullable(text())),
        ("note", nullable(text())),
        ("created_at", instant()),
        ("updated_at", instant()),
        ("ended_at", nullable(instant())),
    ]);
    vec![("BulkAction", words!(Action)), ("Excluded", excluded), ("Operation", operation)]
}
