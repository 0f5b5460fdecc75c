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
        ("trigger", word(&["cron", "manual", "event"])),
        ("execution_id", nullable(id())),
        ("task_id", about(nullable(id()), "A single task, or the one that stands for the execution.")),
    ]);
    let schedule = object([
        ("name", text()),
        (
            "state",
            about(
                word(&["initialized", "active", "paused", "stopped", "error"]),
                "`error` where nothing could be started at the last instant, `stopped` where none is to come. It follows its \
                 workflow: where that is paused it is `paused`, where that is inactive it is `stopped`.",
            ),
        ),
        ("cron", nullable(text())),
        ("every_ms", nullable(count())),
        ("event", about(nullable(text()), "The type of the events that let it fire, in place of instants.")),
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
    let came = object([
        ("schedule", text()),
        (
            "outcome",
            about(
                word(&["started", "repeated", "skipped", "failed"]),
                "`repeated`: the same event was told before, and this was started then. `skipped`: what the one before it \
                 started is still open.",
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
