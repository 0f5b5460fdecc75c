//! Bulk operations.

use comeback_core::State;
use comeback_core::operation::{Action, Exclusion, OperationState};
use serde_json::{Value, json};

use super::words;
use crate::openapi::schema::*;

pub fn all() -> Vec<(&'static str, Value)> {
    let number = || json!({"type": "number"});
    let states: Vec<&str> = OperationState::ALL.iter().map(|it| it.word()).chain(["dry_run"]).collect();
    let excluded = object([
        ("reason", words!(Exclusion)),
        ("state", about(nullable(words!(State)), "In which they were, where that is the reason.")),
        ("count", count()),
        ("sample", about(list(id()), "The first of them, five at most.")),
    ]);
    let stop_if = object([("failed_over", number()), ("same_fingerprint", flag())]);
    let waves = object([
        ("canary", count()),
        ("size", about(nullable(count()), "Of every later one; nothing where each is twice the one before.")),
        ("pause_ms", count()),
        ("stop_if", nullable(stop_if)),
    ]);
    let wave = object([
        ("number", about(count(), "The canary is number 0.")),
        ("tasks", count()),
        ("sent_at", about(nullable(instant()), "When the last of it was dealt with.")),
    ]);
    let wave_end = object([
        ("number", count()),
        ("tasks", count()),
        ("succeeded", count()),
        ("failed", count()),
        ("alike", about(count(), "Of the failures, those that are alike and most.")),
        ("fingerprint", about(nullable(text()), "Of those.")),
    ]);
    let operation = object([
        ("id", about(nullable(id()), "Nothing where it is only tried out.")),
        ("action", named("BulkAction")),
        ("state", word(&states)),
        ("filter", nullable(text())),
        ("matched", about(count(), "Tasks it is about.")),
        ("eligible", about(count(), "Those that were not excluded, as far as they were looked at.")),
        ("excluded", list(named("Excluded"))),
        ("sample", about(list(id()), "Of a dry run: the first of those that are eligible.")),
        ("cost", about(nullable(count()), "Of a dry run: the credits that would be reserved.")),
        ("done", about(count(), "Tasks that were changed, each once.")),
        ("left", count()),
        ("undone", about(count(), "Tasks that were changed back.")),
        ("kept", about(list(named("Excluded")), "What could not be taken back.")),
        ("spread_ms", nullable(count())),
        ("waves", nullable(waves)),
        ("wave", about(nullable(wave), "The one under way.")),
        ("waves_done", list(wave_end)),
        ("requested_by", nullable(text())),
        ("note", nullable(text())),
        ("created_at", instant()),
        ("updated_at", instant()),
        ("ended_at", nullable(instant())),
    ]);
    vec![("BulkAction", words!(Action)), ("Excluded", excluded), ("Operation", operation)]
}
