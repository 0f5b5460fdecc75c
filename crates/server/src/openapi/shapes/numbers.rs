//! Schemas of retry statistics and error groups.

use comeback_core::error_group::GroupStatus;
use comeback_core::stats::{Dimension, Origin};
use comeback_core::{Class, Trigger};
use serde_json::{Value, json};

use super::super::schema::{about, count, instant, list, named, nullable, object, text, word};
use super::words;
use crate::routes::errors::{ACTIONS, CLASSES};

/// Schemas of this module, by name.
pub fn all() -> Vec<(&'static str, Value)> {
    vec![
        ("StatsBy", words!(Dimension)),
        ("StatsOrigin", words!(Origin)),
        ("ErrorState", words!(GroupStatus)),
        ("ErrorAction", word(&ACTIONS)),
        ("ErrorClass", word(&CLASSES)),
        ("Rate", rate()),
        ("RetrySums", object(sums())),
        ("RetryPoint", object(point())),
        ("RetryStats", stats()),
        ("ErrorGroup", object(group())),
        ("ErrorGroupDetail", detail()),
    ]
}

fn number() -> Value {
    json!({"type": "number"})
}

fn rate() -> Value {
    object([
        ("rate", about(nullable(number()), "Null if there was none.")),
        ("n", about(count(), "Sample size.")),
        ("low", about(nullable(number()), "95 % confidence interval.")),
        ("high", nullable(number())),
    ])
}

fn sums() -> Vec<(&'static str, Value)> {
    let recovery = object([
        ("n", count()),
        ("mean_ms", nullable(count())),
        ("p50_ms", about(nullable(count()), "Read from buckets: up to 19 % too long, never too short.")),
        ("p90_ms", nullable(count())),
        ("p95_ms", nullable(count())),
        ("p99_ms", nullable(count())),
        ("buckets", list(object([("up_to_ms", count()), ("count", count())]))),
    ]);
    vec![
        ("attempts", about(count(), "Attempts that succeeded, failed, were lost or were rate-limited.")),
        ("succeeded", count()),
        ("failed", count()),
        ("lost", count()),
        ("throttled", count()),
        ("snoozed", count()),
        ("released", count()),
        ("canceled", count()),
        ("success", about(named("Rate"), "Share among those that succeeded, failed or were lost.")),
        ("first_failures", about(count(), "First attempts that failed.")),
        ("recovered", about(count(), "Retries that succeeded: the useful ones.")),
        ("retries", count()),
        ("wasted", about(count(), "Retries that failed or were lost.")),
        ("useful", about(named("Rate"), "Share of useful retries.")),
        ("retried", about(count(), "Failures after which a retry was scheduled.")),
        ("gave_up", about(count(), "Tasks that ran out of retries or of time.")),
        ("refused", about(count(), "Tasks with a final error.")),
        ("parked", about(count(), "Tasks parked for a person.")),
        ("mean_delay_ms", about(nullable(count()), "Average delay of retries.")),
        ("run_ms", about(count(), "Total duration of attempts.")),
        ("wasted_ms", count()),
        ("cost", about(count(), "Total cost of retried tasks, once per retry.")),
        ("wasted_cost", count()),
        ("time_to_recover", about(recovery, "Time from the first failure of a task to its success.")),
    ]
}

fn point() -> Vec<(&'static str, Value)> {
    let mut fields = vec![("at", instant())];
    let counts = ["attempts", "succeeded", "failed", "first_failures", "recovered", "wasted", "given_up", "cost"];
    fields.extend(counts.map(|name| (name, count())));
    fields
}

fn stats() -> Value {
    let mut item = vec![("value", about(nullable(text()), "Null if it has none."))];
    item.extend(sums());
    item.push(("series", nullable(list(named("RetryPoint")))));
    object([
        ("now", instant()),
        ("namespace", text()),
        ("since", instant()),
        ("until", instant()),
        ("by", named("StatsBy")),
        ("bucket_ms", nullable(count())),
        ("total", named("RetrySums")),
        (
            "series",
            about(nullable(list(named("RetryPoint"))), "Series of all items together; empty buckets are left out."),
        ),
        ("items", list(object(item))),
    ])
}

fn group() -> Vec<(&'static str, Value)> {
    let sample = object([
        ("at", instant()),
        ("task_id", named("Id")),
        ("run", count()),
        ("message", text()),
        ("stack", nullable(text())),
    ]);
    vec![
        ("fingerprint", text()),
        ("state", named("ErrorState")),
        ("state_since", nullable(instant())),
        ("ignored_until", nullable(instant())),
        ("reclassified", about(nullable(words!(Class)), "Class assigned by a person.")),
        ("note", nullable(text())),
        ("by", nullable(text())),
        ("kind", text()),
        ("title", about(text(), "The message without its variable parts.")),
        ("trigger", nullable(words!(Trigger))),
        ("type", nullable(text())),
        ("code", nullable(text())),
        ("status", nullable(count())),
        ("class", about(nullable(words!(Class)), "Class of the last error.")),
        ("count", about(count(), "Attempts that failed with this error.")),
        ("recovered", about(count(), "Tasks that recovered from it.")),
        ("open", about(count(), "Open tasks whose last run failed with this error.")),
        ("helped", about(named("Rate"), "Retries of the last day after this error that succeeded.")),
        ("first_seen", instant()),
        ("last_seen", instant()),
        ("sample", about(sample, "The last of them.")),
        ("filter", about(text(), "Filter that finds its tasks.")),
        ("series", about(list(count()), "Errors per hour of the last day, oldest first.")),
    ]
}

fn detail() -> Value {
    let mut item = vec![("value", nullable(text()))];
    item.extend(sums());
    item.push(("series", nullable(list(named("RetryPoint")))));
    let mut fields = group();
    fields.extend([
        ("since", instant()),
        ("until", instant()),
        ("total", named("RetrySums")),
        ("by_attempt", list(object(item))),
        ("history", list(named("RetryPoint"))),
    ]);
    object(fields)
}
