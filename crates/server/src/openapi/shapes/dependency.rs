//! Schemas of dependencies: settings and state.

use comeback_core::dependency::Change;
use serde_json::{Value, json};

use crate::openapi::schema::{about, count, flag, instant, list, named, nullable, object, partial, text, word};

/// An object whose fields are optional and nullable.
fn settings_of<'a>(fields: impl IntoIterator<Item = (&'a str, Value)>) -> Value {
    partial(&[], fields.into_iter().map(|(name, schema)| (name, nullable(schema))))
}

fn span(about_it: &str) -> Value {
    about(named("Duration"), about_it)
}

fn number(least: f64, most: f64, about_it: &str) -> Value {
    about(json!({"type": "number", "minimum": least, "maximum": most}), about_it)
}

fn starts(about_it: &str) -> Value {
    about(json!({"type": "integer", "minimum": 1, "maximum": 1_000_000}), about_it)
}

fn parts() -> Vec<(&'static str, Value)> {
    let gate = settings_of([
        ("max", span("Maximum accepted Retry-After; default: 1h.")),
        ("spread", span("Time over which the waiting tasks are released; default: 10s.")),
    ]);
    let breaker = settings_of([
        (
            "failures",
            starts(
                "Failures within the window that open the breaker; as many in a row open it immediately; default: 10.",
            ),
        ),
        ("ratio", number(0.01, 1.0, "Minimum share of failures among all runs that ended; default: 0.5.")),
        ("window", span("Default: 10s.")),
        ("open", span("Time until the first canaries; a quarter longer each time they fail; default: 2s.")),
        ("max_open", span("Maximum time until the next canaries; default: 15s.")),
        ("canaries", starts("Number of canaries; default: 1.")),
        ("first_wave", starts("Size of the first wave, doubled for each further one; default: 5.")),
        ("wave", span("Duration of a wave; default: 1s.")),
    ]);
    let budget = settings_of([
        ("percent", number(0.0, 1_000.0, "Maximum retries as a percentage of first attempts; default: 20.")),
        ("floor", number(0.1, 1_000_000.0, "Retries per second that are always allowed; default: 1.")),
    ]);
    let concurrency = settings_of([
        ("min", starts("Default: 1.")),
        ("max", starts("Default: 100.")),
        ("target", span("Latency that counts as overload; default: half of the timeout.")),
    ]);
    let calendar = settings_of([
        (
            "windows",
            about(
                json!({"type": "array", "maxItems": 50, "items": named("RetryWindow")}),
                "Times at which no task starts.",
            ),
        ),
        ("holidays", list(about(text(), "A day, such as 2026-12-25."))),
        ("time_zone", about(text(), "Time zone of the holidays; default: UTC.")),
    ]);
    vec![
        ("DependencyGate", about(gate, "One Retry-After holds all tasks.")),
        ("DependencyBreaker", about(breaker, "Circuit breaker: holds all tasks while most runs fail.")),
        (
            "DependencyBudget",
            about(budget, "Retry budget: delays retries when there are too many compared with first attempts."),
        ),
        (
            "DependencyConcurrency",
            about(concurrency, "Adaptive concurrency limit: lowered on errors and slow responses."),
        ),
        ("DependencyCalendar", about(calendar, "Calendar: closes at known times.")),
    ]
}

fn settings() -> Value {
    let parts = [
        ("gate", named("DependencyGate")),
        ("breaker", named("DependencyBreaker")),
        ("budget", named("DependencyBudget")),
        ("concurrency", named("DependencyConcurrency")),
        ("calendar", named("DependencyCalendar")),
    ];
    settings_of(parts)
}

fn dependency() -> Value {
    let changes: Vec<&str> = Change::ALL.iter().map(|it| it.word()).collect();
    object([
        ("name", text()),
        ("settings", named("DependencySettings")),
        (
            "breaker",
            object([
                ("state", word(&["closed", "open", "half_open", "recovering"])),
                ("since", nullable(instant())),
                ("trips", about(count(), "Number of times it opened without closing in between.")),
                ("by_hand", flag()),
            ]),
        ),
        ("gate_until", nullable(instant())),
        ("blocked", about(nullable(text()), "Why tasks of this dependency are held.")),
        ("held_until", nullable(instant())),
        ("running", count()),
        ("max_running", about(nullable(count()), "Current concurrency limit.")),
        ("succeeded", about(count(), "Successful runs within the window.")),
        ("failed", about(count(), "Failed runs within the window.")),
        ("latency_ms", about(nullable(count()), "Average duration of a run.")),
        ("maintenance", list(object([("from", instant()), ("to", instant()), ("note", nullable(text()))]))),
        ("changes", list(object([("at", instant()), ("what", word(&changes)), ("why", text())]))),
        ("created_at", instant()),
        ("updated_at", instant()),
    ])
}

/// Schemas of this module, by name.
pub fn all() -> Vec<(&'static str, Value)> {
    parts().into_iter().chain([("DependencySettings", settings()), ("Dependency", dependency())]).collect()
}
