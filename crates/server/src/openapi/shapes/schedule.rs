//! Schedules.

use comeback_core::schedule::{CatchUp, Overlap};
use serde_json::{Value, json};

use super::words;
use crate::openapi::schema::*;

pub fn all() -> Vec<(&'static str, Value)> {
    let maybe = || nullable(instant());
    let error = object([("scheduled_at", instant()), ("at", instant()), ("message", text())]);
    let run = object([
        ("scheduled_at", about(instant(), "The instant; by hand, when it was asked for.")),
        ("started_at", instant()),
        ("trigger", word(&["cron", "manual"])),
        ("execution_id", nullable(id())),
        ("task_id", about(nullable(id()), "A single task, or the one that stands for the execution.")),
    ]);
    let schedule = object([
        ("name", text()),
        (
            "state",
            about(
                word(&["initialized", "active", "paused", "stopped", "error"]),
                "`error` where nothing could be started at the last instant, `stopped` where none is to come.",
            ),
        ),
        ("cron", nullable(text())),
        ("every_ms", nullable(count())),
        ("time_zone", text()),
        ("start_at", maybe()),
        ("end_at", maybe()),
        ("workflow", nullable(text())),
        ("version", nullable(count())),
        ("input", anything()),
        ("labels", map(text())),
        ("task", about(nullable(json!({"type": "object"})), "As it was given.")),
        ("catch_up", named("CatchUp")),
        ("catch_up_limit", count()),
        ("overlap", named("Overlap")),
        ("paused", flag()),
        ("note", nullable(text())),
        ("next", about(list(instant()), "The next instants, five at most.")),
        ("last_run", nullable(named("ScheduleRun"))),
        ("last_manual_run", nullable(named("ScheduleRun"))),
        ("last_error", nullable(error)),
        ("fired", count()),
        ("missed", about(count(), "Instants that passed unseen and were not made up for.")),
        ("skipped", about(count(), "Instants at which the run before was still open.")),
        ("failed", about(count(), "Instants at which nothing could be started.")),
        ("created_at", instant()),
        ("updated_at", instant()),
    ]);
    vec![("CatchUp", words!(CatchUp)), ("Overlap", words!(Overlap)), ("ScheduleRun", run), ("Schedule", schedule)]
}
