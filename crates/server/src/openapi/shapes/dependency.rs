//! Dependencies: what is asked of them, and how they stand.

use comeback_core::dependency::Change;
use serde_json::{Value, json};

use crate::openapi::schema::{about, count, flag, instant, list, named, nullable, object, partial, text, word};

/// Nothing of it must be said, and `null` says nothing.
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
        ("max", span("The longest Retry-After that is believed. 1h where nothing is said.")),
        ("spread", span("Those who waited come back over so long a time. 10s where nothing is said.")),
    ]);
    let breaker = settings_of([
        (
            "failures",
            starts(
                "It opens at so many failures within the window, at once where so many fail in a row: 10 where nothing is said.",
            ),
        ),
        ("ratio", number(0.01, 1.0, "If they are this part of all that ended: 0.5 where nothing is said.")),
        ("window", span("10s where nothing is said.")),
        ("open", span("How long until the first canaries: 2s. A quarter longer each time while they fail.")),
        ("max_open", span("How long at most: 15s where nothing is said.")),
        ("canaries", starts("How many are let through to see: 1 where nothing is said.")),
        ("first_wave", starts("How many follow first: 5 where nothing is said. Each wave is twice the one before.")),
        ("wave", span("How long a wave lasts: 1s where nothing is said.")),
    ]);
    let budget = settings_of([
        ("percent", number(0.0, 1_000.0, "Retries at most so many percent of first attempts: 20.")),
        ("floor", number(0.1, 1_000_000.0, "And so many a second in any case: 1.")),
    ]);
    let concurrency = settings_of([
        ("min", starts("1 where nothing is said.")),
        ("max", starts("100 where nothing is said.")),
        (
            "target",
            span("Slower answers are a sign of too much: half of the time they may take where nothing is said."),
        ),
    ]);
    let calendar = settings_of([
        (
            "windows",
            about(
                json!({"type": "array", "maxItems": 50, "items": named("RetryWindow")}),
                "Times at which nothing starts.",
            ),
        ),
        ("holidays", list(about(text(), "A day, such as 2026-12-25."))),
        ("time_zone", about(text(), "Of the holidays; UTC where nothing is said.")),
    ]);
    vec![
        ("DependencyGate", about(gate, "One Retry-After holds everybody.")),
        ("DependencyBreaker", about(breaker, "Holds everybody while most of what is tried fails.")),
        ("DependencyBudget", about(budget, "Spreads retries out when they are too many beside first attempts.")),
        (
            "DependencyConcurrency",
            about(concurrency, "How many run at once: fewer on errors and slow answers, and back."),
        ),
        ("DependencyCalendar", about(calendar, "Closes at times that are known beforehand.")),
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
                ("trips", about(count(), "How often it opened without closing in between.")),
                ("by_hand", flag()),
            ]),
        ),
        ("gate_until", nullable(instant())),
        ("blocked", about(nullable(text()), "What keeps all that need it from starting.")),
        ("held_until", nullable(instant())),
        ("running", count()),
        ("max_running", about(nullable(count()), "How many may run at once, as it is found out.")),
        ("succeeded", about(count(), "Of what ended within the window.")),
        ("failed", about(count(), "Of what ended within the window.")),
        ("latency_ms", about(nullable(count()), "How long a run took, on the whole.")),
        ("maintenance", list(object([("from", instant()), ("to", instant()), ("note", nullable(text()))]))),
        ("changes", list(object([("at", instant()), ("what", word(&changes)), ("why", text())]))),
        ("created_at", instant()),
        ("updated_at", instant()),
    ])
}

pub fn all() -> Vec<(&'static str, Value)> {
    parts().into_iter().chain([("DependencySettings", settings()), ("Dependency", dependency())]).collect()
}
