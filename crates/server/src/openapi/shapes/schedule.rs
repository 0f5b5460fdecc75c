//! Schedules.

use comeback_core::schedule::{CatchUp, Overlap};
use serde_json::{Value, json};

use super::words;
use crate::openapi::schema::*;

/// Schemas of this module, by name.
pub fn all() -> Vec<(&'static str, Value)> {
    let maybe = || nullable(instant());
    let error = object([("scheduled_at", instant()), ("at", instant()), ("message", text())]);
    let run = object([
        ("scheduled_at", about(instant(), "The scheduled time; for a manual run, the time of the request.")),
        ("started_at", instant()),
        ("trigger", word(&["cron", "manual", "event"])),
        ("execution_id", nullable(id())),
        ("task_id", about(nullable(id()), "The task, or the parent task of the execution.")),
    ]);
    let schedule = object([
        ("name", text()),
        (
            "state",
            about(
                word(&["initialized", "active", "paused", "stopped", "error"]),
                "`error` if the last run could not be started, `stopped` if no run is to come. It follows its \
                 workflow: `paused` if that is paused, `stopped` if that is inactive.",
            ),
        ),
        ("cron", nullable(text())),
        ("every_ms", nullable(count())),
        ("event", about(nullable(text()), "Event type that triggers it, in place of times.")),
        ("time_zone", text()),
        ("start_at", maybe()),
        ("end_at", maybe()),
        ("workflow", nullable(text())),
        ("version", nullable(count())),
        ("input", anything()),
        ("labels", map(text())),
        ("task", about(nullable(json!({"type": "object"})), "As given in the request.")),
        ("catch_up", named("CatchUp")),
        ("catch_up_limit", count()),
        ("overlap", named("Overlap")),
        ("paused", flag()),
        ("note", nullable(text())),
        ("next", about(list(instant()), "The next runs, at most five.")),
        ("last_run", nullable(named("ScheduleRun"))),
        ("last_manual_run", nullable(named("ScheduleRun"))),
        ("last_error", nullable(error)),
        ("fired", count()),
        ("missed", about(count(), "Missed runs that were not caught up.")),
        ("skipped", about(count(), "Runs skipped because the previous one was still open.")),
        ("failed", about(count(), "Runs that could not be started.")),
        ("created_at", instant()),
        ("updated_at", instant()),
    ]);
    let came = object([
        ("schedule", text()),
        (
            "outcome",
            about(
                word(&["started", "repeated", "skipped", "failed"]),
                "`repeated`: the same event was sent before and started this run. `skipped`: the previous run is \
                 still open.",
            ),
        ),
        ("execution_id", nullable(id())),
        ("task_id", nullable(id())),
        ("message", about(nullable(text()), "Why it failed.")),
    ]);
    let told = object([("type", text()), ("id", nullable(text())), ("schedules", list(came))]);
    vec![
        ("CatchUp", words!(CatchUp)),
        ("Overlap", words!(Overlap)),
        ("ScheduleRun", run),
        ("Schedule", schedule),
        ("ToldEvent", told),
    ]
}
