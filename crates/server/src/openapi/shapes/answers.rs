//! Schemas of responses.

use comeback_core::{AttemptOutcome, AuditAction, EventKind, Reason, RetryKind, State, Trigger, Verdict};
use serde_json::{Value, json};

use super::words;
use crate::openapi::schema::*;

/// Schemas of this module, by name.
pub fn all() -> Vec<(&'static str, Value)> {
    let maybe = |name: &str| nullable(named(name));
    let problem_of_lease = |names: &[&str]| object([("lease", text()), ("problem", one_of(names))]);
    vec![
        ("State", like(words!(State), json!(["retry_pending"]))),
        ("Reason", like(words!(Reason), json!(["retry"]))),
        ("EventType", like(words!(EventKind), json!(["task.retry_scheduled"]))),
        ("Submitted", submitted()),
        ("Task", task()),
        ("TaskLine", task_line()),
        ("Failure", failure()),
        ("Decision", decision()),
        ("Counters", counters()),
        (
            "Attempt",
            object([
                ("number", about(count(), "Attempt number within the cycle, from 1.")),
                ("run", count()),
                ("cycle", count()),
                ("retry_kind", retry_kind()),
                ("payload_version", about(count(), "Version of the payload it ran with, from 1.")),
                ("worker", nullable(text())),
                ("started_at", maybe("Instant")),
                ("ended_at", instant()),
                ("duration_ms", nullable(count())),
                ("outcome", words!(AttemptOutcome)),
                ("error", maybe("Failure")),
                ("decision", maybe("Decision")),
                (
                    "counted",
                    about(
                        nullable(object([
                            ("expected_count", nullable(count())),
                            ("success", count()),
                            ("failures", count()),
                        ])),
                        "Progress counters of a hook at the end of the run.",
                    ),
                ),
                ("result", anything()),
            ]),
        ),
        (
            "Difference",
            object([
                ("path", about(text(), "Path of the field, such as `card.number`.")),
                ("before", anything()),
                ("after", anything()),
            ]),
        ),
        (
            "PayloadVersion",
            object([
                ("version", count()),
                ("payload", anything()),
                ("in_use", flag()),
                ("edited_at", maybe("Instant")),
                ("edited_by", nullable(text())),
                ("last_run", about(nullable(count()), "The last run that used it, if it was replaced.")),
                ("diff", list(named("Difference"))),
            ]),
        ),
        ("LogEvent", object(event_fields())),
        ("SeedEventType", word(&crate::wire::event::playbook_event_names())),
        ("Event", event_of_feed()),
        (
            "Why",
            object([
                ("task_id", id()),
                ("state", named("State")),
                ("text", text()),
                ("decision", maybe("Decision")),
                ("error", maybe("Failure")),
            ]),
        ),
        ("Forecast", object([("attempts", list(object(coming())))].into_iter().chain(end_of_forecast()))),
        (
            "Simulation",
            object(end_of_forecast().into_iter().chain([
                ("attempts", list(simulated_attempt())),
                ("policy", policy_or_none()),
                ("words", list(text())),
                ("now", instant()),
            ])),
        ),
        (
            "BoundPolicy",
            object([
                ("kind", text()),
                ("dialect", named("Dialect")),
                ("policy", policy_or_none()),
                ("words", list(text())),
            ]),
        ),
        ("Rule", rule()),
        (
            "Leases",
            partial(
                &["leases"],
                [("leases", list(lease())), ("draining", about(flag(), "Whether the worker is drained."))],
            ),
        ),
        (
            "Heartbeats",
            object([(
                "leases",
                list(any_of([
                    object([("lease", text()), ("expires_at", maybe("Instant")), ("cancel_requested", flag())]),
                    problem_of_lease(&["LeaseLost"]),
                ])),
            )]),
        ),
        (
            "Reports",
            object([(
                "reports",
                list(any_of([
                    object([
                        ("lease", text()),
                        ("task_id", id()),
                        ("state", named("State")),
                        ("attempt", count()),
                        ("next_retry_at", maybe("Instant")),
                        ("reason", maybe("Reason")),
                    ]),
                    problem_of_lease(&["LeaseLost", "TaskCanceled", "Conflict", "ValidationFailed", "Unavailable"]),
                ])),
            )]),
        ),
        ("Key", object(key_fields())),
        ("NewKey", new_key()),
        ("ActLine", act()),
        ("Account", account()),
        (
            "Loop",
            object([
                ("name", text()),
                ("period_ms", about(nullable(count()), "Poll period; null for a loop that runs on request only.")),
                ("looked_at", about(maybe("Instant"), "Last run on the responding instance.")),
                (
                    "moved_total",
                    about(nullable(count()), "Tasks moved on that instance; for admins of all namespaces only."),
                ),
                (
                    "failed_total",
                    about(nullable(count()), "Failures on that instance; for admins of all namespaces only."),
                ),
                ("paused", flag()),
                ("resumes_at", about(maybe("Instant"), "Null if it lasts until resumed.")),
                ("note", nullable(text())),
                ("by", nullable(text())),
            ]),
        ),
    ]
}

fn account() -> Value {
    let integer = || json!({"type": "integer"});
    object([
        ("name", text()),
        ("credits", about(integer(), "Balance, reserved credits included.")),
        ("reserved", about(integer(), "Credits reserved for open tasks.")),
        ("available", about(integer(), "Credits not reserved; negative if credits were withdrawn.")),
        ("spent", about(integer(), "Credits spent so far.")),
        ("costs", map(count())),
        (
            "budget",
            object([
                ("retries_per_day", nullable(count())),
                ("retries_per_month", nullable(count())),
                ("retry_cost_per_month", nullable(count())),
            ]),
        ),
        ("organisation", about(nullable(text()), "Parent account, whose retry budget is charged as well.")),
        ("created_at", instant()),
        ("updated_at", instant()),
    ])
}

fn retry_kind() -> Value {
    about(nullable(words!(RetryKind)), "Origin of the retry: a policy or a person. Null for a first attempt.")
}

fn act() -> Value {
    object([
        ("id", id()),
        ("at", instant()),
        ("namespace", about(nullable(text()), "Null if it concerns all namespaces.")),
        ("act", words!(AuditAction)),
        ("subject", about(text(), "Id or name of the object.")),
        ("actor", about(nullable(text()), "Actor: the name in the request, else the name of the key.")),
        ("key", about(nullable(text()), "Name of the API key, or its id if it has no name.")),
        ("key_id", about(nullable(text()), "Id of the API key. Names may be reused, ids never are.")),
        ("note", nullable(text())),
        ("request_id", about(nullable(text()), "Id of the request.")),
        ("before", anything()),
        ("after", anything()),
    ])
}

fn one_of(names: &[&str]) -> Value {
    match names {
        [only] => named(only),
        _ => json!({"oneOf": names.iter().map(|name| named(name)).collect::<Vec<_>>()}),
    }
}

/// A policy, or `false` for no retry.
pub fn policy_or_none() -> Value {
    about(any_of([named("Policy"), constant(false)]), "`false` means no retry.")
}

fn rule() -> Value {
    let matched = object([("queue", nullable(text())), ("kind", nullable(text())), ("labels", map(text()))]);
    let used = object([
        ("per", about(list(nullable(text())), "Values of the labels in `per`, in their order.")),
        ("running", count()),
        ("weight", about(count(), "Total weight of the running tasks.")),
    ]);
    object([
        ("name", text()),
        ("match", matched),
        ("per", list(text())),
        ("max_running", nullable(count())),
        ("capacity", nullable(count())),
        ("fair", about(flag(), "Fair share: the value of `per` with the fewest running tasks goes first.")),
        ("used", about(list(used), "Usage by value; only values with running tasks.")),
    ])
}

fn submitted() -> Value {
    let task = object([
        ("id", id()),
        ("key", nullable(text())),
        ("state", named("State")),
        ("execution_id", id()),
        ("duplicate", about(flag(), "An open task with the same dedupe key exists; this is its id.")),
    ]);
    partial(&["tasks"], [("tasks", list(task)), ("execution_id", id())])
}

/// Fields that task lists and single tasks share.
fn common() -> Vec<(&'static str, Value)> {
    let lease = object([("worker", text()), ("expires_at", nullable(instant()))]);
    vec![
        ("id", id()),
        ("kind", text()),
        ("queue", text()),
        ("state", named("State")),
        ("priority", between(-1_000, 1_000)),
        ("execution_id", id()),
        ("attempt", about(count(), "Retries counted in this cycle.")),
        ("attempt_number", about(count(), "Current attempt, from 1.")),
        ("max_retries", nullable(count())),
        ("cycle", count()),
        ("retry_kind", retry_kind()),
        ("total_attempts", about(count(), "Runs in all cycles, counted or not.")),
        ("lost_count", count()),
        ("throttle_count", count()),
        ("snooze_count", count()),
        ("start_at", nullable(instant())),
        ("next_retry_at", nullable(instant())),
        ("held_until", nullable(instant())),
        ("blocked", about(nullable(text()), "Why it is held, besides its due time.")),
        ("reason", nullable(named("Reason"))),
        ("lease", nullable(lease)),
        ("error_class", nullable(named("Class"))),
        (
            "retryable",
            about(flag(), "Whether its last error is retryable, by its class and the policy; true if there was none."),
        ),
        (
            "fingerprint",
            about(
                like(json!({"type": ["string", "null"], "pattern": "^[0-9a-f]{16}$"}), json!(["8c3a90f1d2b47e65"])),
                "Similar errors have the same fingerprint.",
            ),
        ),
        ("deadline_at", nullable(instant())),
        ("submitted_at", instant()),
        ("started_at", nullable(instant())),
        ("ended_at", nullable(instant())),
        ("updated_at", instant()),
        ("key", nullable(text())),
        ("name", nullable(text())),
        ("labels", map(text())),
        ("external_id", nullable(text())),
        ("verdict", about(nullable(text()), "Verdict in its result, such as `passed`, `needs_review` or `failed`.")),
    ]
}

fn task() -> Value {
    let need = object([("task", id()), ("when", named("When")), ("on_unmet", named("OnUnmet"))]);
    let more = [
        ("payload", anything()),
        ("payload_version", about(count(), "Version of the payload, from 1.")),
        ("account", about(nullable(text()), "Account that pays for it.")),
        ("cost", nullable(count())),
        ("result", anything()),
        ("progress", anything()),
        ("expected_count", about(nullable(count()), "Total number of items of a hook's task, as reported.")),
        ("success", about(count(), "Items done, over all attempts.")),
        ("failures", count()),
        ("executor", json!({"type": "object", "required": ["type"], "properties": {"type": text()}})),
        ("retry", nullable(named("Policy"))),
        ("timeout_ms", nullable(count())),
        ("attempt_deadline_ms", nullable(count())),
        ("dedupe_key", nullable(text())),
        ("traceparent", nullable(text())),
        ("last_error", nullable(named("Failure"))),
        ("needs", list(need)),
    ];
    object(common().into_iter().chain(more))
}

fn task_line() -> Value {
    let error = nullable(object([("message", text())]));
    about(object(common().into_iter().chain([("last_error", error)])), "A task in a list.")
}

fn failure() -> Value {
    partial(
        &["trigger"],
        [
            ("trigger", words!(Trigger)),
            ("class", named("Class")),
            ("type", text()),
            ("code", text()),
            ("status", between(100, 599)),
            ("message", text()),
            ("stack", text()),
            ("retry_after_ms", count()),
            ("retry_after_at", instant()),
            ("retry_after_ignored", about(text(), "The value that could not be parsed.")),
            ("result", anything()),
        ],
    )
}

fn counters() -> Value {
    let fields = ["attempt", "lost", "throttled", "snoozed"].map(|name| (name, count()));
    about(partial(&[], fields), "Counters; zeros are left out.")
}

fn decision() -> Value {
    let delay = partial(
        &["strategy", "n", "base_ms", "total_ms"],
        [
            ("strategy", text()),
            ("n", count()),
            ("base_ms", count()),
            ("capped_ms", count()),
            ("jitter_ms", json!({"type": "integer"})),
            ("retry_after_ms", count()),
            ("window_ms", count()),
            ("total_ms", count()),
        ],
    );
    let fields = [
        ("verdict", words!(Verdict)),
        ("reason", named("Reason")),
        ("at", instant()),
        ("by", text()),
        ("class", named("Class")),
        ("trigger", words!(Trigger)),
        ("matched", about(text(), "The matching part of the policy.")),
        ("policy", json!({"type": "integer"})),
        ("max_retries", count()),
        ("rule_max", about(count(), "Limit of the matching rule, if it was exhausted.")),
        ("delay", about(delay, "Steps of the delay computation.")),
        ("before", named("Counters")),
        ("after", named("Counters")),
        ("next_retry_at", instant()),
        ("held_until", instant()),
        ("held_by", text()),
        ("notes", list(text())),
    ];
    about(
        partial(&["verdict", "reason", "at", "before", "after"], fields),
        "A decision with everything that led to it.",
    )
}

fn event_fields() -> Vec<(&'static str, Value)> {
    vec![
        ("type", named("EventType")),
        ("at", instant()),
        ("execution_id", id()),
        ("task_id", nullable(id())),
        ("seq", about(count(), "Without gaps within an execution, from 1.")),
        ("run", count()),
        ("attempt", count()),
        ("data", json!({"type": "object"})),
    ]
}

/// Event types by the requested naming.
fn event_of_feed() -> Value {
    let mut schema = object([("id", text()), ("namespace", text())].into_iter().chain(event_fields()));
    schema["properties"]["type"] = any_of([named("EventType"), named("SeedEventType")]);
    schema
}

fn coming() -> Vec<(&'static str, Value)> {
    vec![("number", count()), ("at", instant()), ("earliest", instant()), ("latest", instant())]
}

/// An attempt of a forecast, with the verdict after it if the assumed failure leads to one.
fn simulated_attempt() -> Value {
    let verdict = [("decision", nullable(named("Decision"))), ("verdict", nullable(words!(Verdict))), ("text", text())];
    partial(&["number", "at", "earliest", "latest"], coming().into_iter().chain(verdict))
}

fn end_of_forecast() -> Vec<(&'static str, Value)> {
    let then = object([("state", named("State")), ("reason", named("Reason"))]);
    vec![
        ("gives_up_at", about(nullable(instant()), "Null if more attempts follow than were requested.")),
        ("then", nullable(then)),
    ]
}

fn lease() -> Value {
    let task = object([
        ("id", id()),
        ("key", nullable(text())),
        ("name", nullable(text())),
        ("kind", text()),
        ("queue", text()),
        ("payload", anything()),
        ("labels", map(text())),
        ("attempt", count()),
        ("attempt_number", count()),
        ("run", count()),
        ("is_retry", flag()),
        ("traceparent", nullable(text())),
    ]);
    object([
        ("lease", about(text(), "Opaque token of the lease; it authorizes reports about this run.")),
        ("expires_at", nullable(instant())),
        ("task", task),
    ])
}

fn new_key() -> Value {
    let mut schema = object(key_fields());
    schema["properties"]["key"] = about(text(), "Shown once; a repeated request does not show it again.");
    schema
}

fn key_fields() -> Vec<(&'static str, Value)> {
    vec![
        ("id", text()),
        ("name", nullable(text())),
        ("role", named("Role")),
        ("namespace", text()),
        ("created_at", instant()),
        ("expires_at", nullable(instant())),
        ("revoked_at", nullable(instant())),
        ("queues", about(list(text()), "Queues it is limited to, exact or with a `*` at the end; empty means all.")),
        ("kinds", about(list(text()), "The kinds it is limited to, in the same way.")),
        ("allowed_addresses", about(list(text()), "Networks it may be used from; empty means all.")),
        ("replaces", about(nullable(text()), "The key that this one replaces.")),
        ("replaced_by", about(nullable(text()), "The key that replaced this one.")),
        ("expires_soon", about(flag(), "Whether it expires within 14 days.")),
    ]
}
