//! Schemas of small inputs and of executors.

use comeback_core::{Class, Dialect, OnUnmet, When};
use comeback_engine::store::Loop;
use serde_json::{Value, json};

use super::words;
use crate::auth::Role;
use crate::openapi::schema::*;
use crate::routes::admin::TYPES;

/// Pattern of a duration: numbers with units, plain seconds, or ISO 8601.
const DURATION: &str = r"^ *(?:N|(?:N *(?:ms|s|secs?|m|mins?|h|hrs?|d|days?|w|weeks?) *)+|[pP](?:(?:N[dDwW])+(?:[tT](?:N[hHmMsS])+)?|[tT](?:N[hHmMsS])+)) *$";
const NUMBER: &str = r"(?:\d+\.?\d*|\.\d+)";

/// Same rule as `Limits::check_name`, in characters.
const NAME: &str = r"^[^\u0000-\u001f\u007f-\u009f]+$";

/// Schemas of this module, by name.
pub fn all() -> Vec<(&'static str, Value)> {
    let written = json!({"type": "string", "pattern": DURATION.replace('N', NUMBER)});
    let duration = any_of([json!({"type": "number", "minimum": 0}), written]);
    let loops: Vec<&str> = Loop::ALL.iter().map(|it| it.word()).collect();
    vec![
        ("Id", like(json!({"type": "string", "format": "uuid"}), json!(["01a1df6f-0287-7000-8004-c3db98790bca"]))),
        (
            "Instant",
            about(
                like(json!({"type": "string", "format": "date-time"}), json!(["2026-11-15T13:39:18.932Z"])),
                "RFC 3339, told in UTC with milliseconds.",
            ),
        ),
        (
            "Duration",
            about(
                like(duration, json!(["90s", 5, "1h30m", "250ms", "14d", "PT5M"])),
                "Seconds as a number, a duration such as `90s`, or ISO 8601.",
            ),
        ),
        ("Moment", about(any_of([named("Duration"), named("Instant")]), "A duration from now, or an instant.")),
        ("Name", json!({"type": "string", "minLength": 1, "maxLength": 255, "pattern": NAME})),
        ("Note", json!({"type": "string", "maxLength": 4096, "pattern": r"^[^\u0000]*$"})),
        (
            "Labels",
            json!({"type": "object", "maxProperties": 32, "propertyNames": {"minLength": 1, "maxLength": 256},
                "additionalProperties": {"type": "string", "maxLength": 256, "pattern": r"^[^\u0000]*$"},
                "description": "At most 32, each with at most 256 bytes in name and value."}),
        ),
        ("Json", about(anything(), "Any JSON value.")),
        ("LoopName", word(&[&loops[..], &["promote"]].concat())),
        ("Dialect", about(words!(Dialect), "Dialect of a policy. It is never guessed.")),
        (
            "RetryAfter",
            about(
                any_of([json!({"type": "number"}), text()]),
                "As the header: seconds or a date; or a duration such as `90s`. An unreadable value in a worker's \
                 report is ignored, with a note in the decision.",
            ),
        ),
        ("Priority", any_of([between(-1_000, 1_000), words!(comeback_core::Priority)])),
        ("Class", words!(Class)),
        ("When", words!(When)),
        ("OnUnmet", words!(OnUnmet)),
        ("Role", words!(Role)),
        ("Outcome", word(&["succeeded", "failed", "snoozed", "released"])),
        ("WorkType", word(&TYPES)),
        ("SettleStatus", word(&["succeeded", "failed"])),
        ("Need", about(any_of([text(), named("NeedFields")]), "A key, or an object with a condition.")),
        ("Error", about(any_of([text(), named("ErrorFields")]), "A message, or an object with details.")),
        (
            "SecretReference",
            about(
                partial(&["secret"], [("secret", text()), ("prefix", text())]),
                "A named secret: its value, after the prefix, is inserted when the call is made.",
            ),
        ),
        ("Headers", map(any_of([text(), named("SecretReference")]))),
        (
            "SigningSecret",
            any_of([
                json!({"type": "string", "maxLength": 120}),
                about(object([("secret", text())]), "A named secret used for signing."),
            ]),
        ),
        (
            "Secret",
            object([
                ("name", text()),
                ("created_at", instant()),
                ("updated_at", instant()),
                ("updated_by", nullable(text())),
                ("key_id", about(text(), "Id of the encryption key.")),
            ]),
        ),
        ("Executor", executor()),
        ("Call", partial(&["url"], call())),
        ("Hooks", partial(&[], ["success", "failure", "retry", "cancel"].map(|name| (name, calls())))),
        ("Classify", classify()),
        ("Expect", any_of([status_pattern(), list(status_pattern())])),
    ]
}

/// Schema of an HTTP call made by the server.
fn call() -> [(&'static str, Value); 5] {
    [
        ("method", word(&["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"])),
        ("url", like(json!({"type": "string", "format": "uri"}), json!(["https://example.com/charge"]))),
        ("headers", named("Headers")),
        ("body", anything()),
        ("expect", nullable(named("Expect"))),
    ]
}

fn calls() -> Value {
    json!({"type": "array", "maxItems": 20, "items": named("Call")})
}

/// Schema of the executor of a task.
fn executor() -> Value {
    let simple = |name: &str, told: &str| about(object([("type", constant(name))]), told);
    let http = partial(&["type", "url"], [("type", constant("http"))].into_iter().chain(call()));
    let command = partial(
        &["type", "run"],
        [
            ("type", constant("command")),
            ("run", json!({"type": "array", "minItems": 1, "items": text()})),
            ("env", named("Headers")),
            ("cwd", nullable(text())),
            ("classify", nullable(named("Classify"))),
        ],
    );
    let hook = partial(
        &["type"],
        [
            ("type", constant("hook")),
            (
                "start",
                about(
                    nullable(any_of([
                        named("Call"),
                        json!({"type": "array", "minItems": 1, "maxItems": 20, "items": named("Call")}),
                    ])),
                    "Starts a run and passes the callback URL. If one of several calls fails, the run fails. A call \
                     in `cancel` of the response is made when the run is canceled or repeated.",
                ),
            ),
            ("handle", nullable(word(&["task"]))),
        ],
    );
    json!({"oneOf": [
        simple("worker", "Leased by a worker: the default."),
        about(http, "The server makes the call itself."),
        about(hook, "Started by a call, completed by the callback `settleTask`."),
        about(command, "A process on the server; requires `--allow-commands`."),
        simple("timer", "Succeeds when it is due."),
    ]})
}

/// Schema of the classification of a failed command.
fn classify() -> Value {
    let meaning =
        || [("class", named("Class")), ("retry_after", nullable(named("Duration"))), ("code", nullable(text()))];
    let codes = json!({"pattern": "^(signal|[1-9][0-9]{0,2}(-[1-9][0-9]{0,2})?)$"});
    let of_code = any_of([named("Class"), partial(&["class"], meaning())]);
    let pattern = ("pattern", about(text(), "A regular expression for standard error."));
    about(
        partial(
            &[],
            [
                ("exit_codes", json!({"type": "object", "propertyNames": codes, "additionalProperties": of_code})),
                ("stderr", list(partial(&["pattern", "class"], std::iter::once(pattern).chain(meaning())))),
            ],
        ),
        "Classification of a failed command: JSON on its output first, then the first matching pattern, then the exit \
         code.",
    )
}

fn status_pattern() -> Value {
    like(json!({"type": "string"}), json!(["2xx", "204"]))
}
