//! What retrying came to, and error groups.

use comeback_core::error_group::GroupStatus;
use comeback_core::stats::{Dimension, Origin};
use comeback_core::{Class, Trigger};
use serde_json::{Value, json};

use super::super::schema::{about, count, instant, list, named, nullable, object, text, word};
use super::words;
use crate::routes::errors::{ACTIONS, CLASSES};

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
        ("rate", about(nullable(number()), "Nothing where there was none.")),
        ("n", about(count(), "Of how many.")),
        ("low", about(nullable(number()), "Where the true rate lies with 95 % confidence.")),
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
        ("attempts", about(count(), "That succeeded, failed, were lost or were told to wait.")),
        ("succeeded", count()),
        ("failed", count()),
        ("lost", count()),
        ("throttled", count()),
        ("snoozed", count()),
        ("released", count()),
        ("canceled", count()),
        ("success", about(named("Rate"), "Of those that succeeded, failed or were lost.")),
        ("first_failures", about(count(), "First runs of tasks that ended badly.")),
        ("recovered", about(count(), "Retries that succeeded: the useful ones.")),
        ("retries", count()),
        ("wasted", about(count(), "Retries that failed or were lost.")),
        ("useful", about(named("Rate"), "Of the retries, how many were useful.")),
        ("retried", about(count(), "Bad ends after which a retry was scheduled.")),
        ("gave_up", about(count(), "Tasks that ran out of retries or of time.")),
        ("refused", about(count(), "Tasks that were not to be retried.")),
        ("parked", about(count(), "Tasks that were left to a person.")),
        ("mean_delay_ms", about(nullable(count()), "How long retries had to wait.")),
        ("run_ms", about(count(), "How long attempts ran, all together.")),
        ("wasted_ms", count()),
        ("cost", about(count(), "What the tasks of retries cost, once per retry.")),
        ("wasted_cost", count()),
        ("time_to_recover", about(recovery, "From the first bad end of a task to its success.")),
    ]
}

fn point() -> Vec<(&'static str, Value)> {
    let mut fields = vec![("at", instant())];
    let counts = ["attempts", "succeeded", "failed", "first_failures", "recovered", "wasted", "given_up", "cost"];
    fields.extend(counts.map(|name| (name, count())));
    fields
}

fn stats() -> Value {
    let mut item = vec![("value", about(nullable(text()), "Nothing where it has none."))];
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
            about(
                nullable(list(named("RetryPoint"))),
                "Of all together; parts in which nothing happened are left out.",
            ),
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
        ("reclassified", about(nullable(words!(Class)), "What a person said that such errors are.")),
        ("note", nullable(text())),
        ("by", nullable(text())),
        ("kind", text()),
        ("title", about(text(), "The message without what varies.")),
        ("trigger", nullable(words!(Trigger))),
        ("type", nullable(text())),
        ("code", nullable(text())),
        ("status", nullable(count())),
        ("class", about(nullable(words!(Class)), "What the last of them was taken for.")),
        ("count", about(count(), "Attempts that ended so.")),
        ("recovered", about(count(), "Tasks that came back from it.")),
        ("open", about(count(), "Open tasks that ended so the last time they ran.")),
        ("helped", about(named("Rate"), "Retries of the last day that succeeded after it.")),
        ("first_seen", instant()),
        ("last_seen", instant()),
        ("sample", about(sample, "The last of them.")),
        ("filter", about(text(), "How its tasks are found.")),
        ("series", about(list(count()), "How many there were in each hour of the last day, oldest first.")),
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
