//! Schemas of retry policies: every accepted spelling, and the canonical form.

use comeback_core::{Jitter, Trigger, policy};
use serde_json::{Map, Value, json};

use super::words;
use crate::openapi::schema::*;

/// Schemas of this module, by name.
pub fn all() -> Vec<(&'static str, Value)> {
    vec![
        ("RetryPolicy", any_form()),
        ("RetryPolicyFields", fields()),
        ("RetryRule", rule()),
        ("RetryWindow", window()),
        ("RetryDelays", schedule()),
        ("Matchers", matchers()),
        ("Policy", told()),
        ("PolicyRule", told_rule()),
        ("PolicyWindow", told_window()),
    ]
}

fn any_form() -> Value {
    let short = json!({"type": "string", "pattern": r"^\s*[a-zA-Z]+\s*\(.*\)\s*$",
        "examples": ["exp(60s, x2, max 1h, 5 retries)", "fixed(5m, 3 retries)", "immediate(3 retries)", "schedule(7d, 14d)"]});
    let mut schema = any_of([
        named("RetryPolicyFields"),
        about(short, "The short form, where the dialect is native."),
        about(between(0, 1_001), "Total number of attempts; 0 means no retry."),
        about(flag(), "`true` for the preset of the dialect, `false` for no retry."),
        json!({"type": "null"}),
    ]);
    schema["description"] = "When and how often a task is retried.".into();
    schema
}

/// Accepted spellings of a field besides the documented one: other words, units and cases.
const ALIASES: &[&str] = &[
    "retry_strategy",
    "backoff_strategy",
    "backoff",
    "exponential_backoff",
    "custom_schedule",
    "wait_duration",
    "backoff_multiplier",
    "ignore_exceptions",
    "non_retryable",
    "when",
];
/// Variants of a duration field with the unit in the name.
const SPANS: &[&str] = &[
    "initial_delay",
    "initial_backoff",
    "delay",
    "max_delay",
    "max_backoff",
    "max_elapsed",
    "timeout",
    "max_retry_after",
];

fn backoff_fields() -> Vec<(&'static str, Value)> {
    let strategies = ["exponential", "fixed", "linear", "immediate", "schedule"];
    let more = ["fixed_delay", "linear_backoff", "exponential_backoff", "backoff", "custom"];
    vec![
        ("strategy", word(&[&strategies[..], &more[..]].concat())),
        ("initial_delay", about(named("Duration"), "Delay before the first retry.")),
        ("delay", about(named("Duration"), "Delay of a fixed strategy, step of a linear one.")),
        ("multiplier", json!({"type": "number", "minimum": 1})),
        ("max_delay", named("Duration")),
        ("schedule", named("RetryDelays")),
        ("jitter", any_of([words!(Jitter), flag()])),
    ]
}

fn fields() -> Value {
    let mut all = vec![
        ("max_retries", about(between(0, 1_000), "Retries beyond the first run.")),
        ("max_attempts", about(count(), "Total number of attempts; in the dialect `workflow`, retries.")),
    ];
    all.extend(backoff_fields());
    all.extend([
        ("retry_on", about(named("Matchers"), "Only what matches is retried.")),
        ("ignore", about(named("Matchers"), "What matches is never retried.")),
        ("retry_when", expression("status >= 500")),
        ("stop_when", expression("attempt > 3 and class == 'retryable'")),
        ("on_expression_error", words!(policy::OnExpressionError)),
        (
            "rules",
            json!({"type": "array", "maxItems": 100, "items": named("RetryRule"),
            "description": "The first that matches decides."}),
        ),
        (
            "windows",
            json!({"type": "array", "maxItems": 50, "items": named("RetryWindow"),
            "description": "Times without retries."}),
        ),
        ("max_elapsed", about(named("Duration"), "From the first failure to the last retry.")),
        ("expires_at", named("Instant")),
        ("timeout", about(named("Duration"), "Timeout of one run.")),
        ("respect_retry_after", flag()),
        ("max_retry_after", named("Duration")),
        ("max_throttles", count()),
        ("on_lost", words!(policy::OnLost)),
        ("max_lost", count()),
        ("max_snoozes", count()),
        ("default_class", named("Class")),
        ("override_final", flag()),
        ("on_exhausted", words!(policy::OnExhausted)),
        ("last_try", flag()),
        ("deadline", words!(policy::DeadlineKind)),
        ("reset_counters_on_retry", flag()),
        ("preset", named("Dialect")),
        ("dialect", named("Dialect")),
        ("enabled", flag()),
        ("job_type", about(text(), "Only in the dialect `job`, where it has no effect.")),
    ]);
    let mut schema = open_to_spellings(all, ALIASES, SPANS);
    let told = "Field names may be in snake, camel and kebab case. Durations may carry their unit in the name, as \
         in `initial_delay_ms` or `max_delay_secs`. Two fields that disagree are refused.";
    schema["description"] = told.into();
    schema
}

/// Makes every field nullable and adds patterns for its other spellings.
fn open_to_spellings(fields: Vec<(&'static str, Value)>, aliases: &[&str], spans: &[&str]) -> Value {
    let mut spellings: Vec<String> = Vec::new();
    let units = ["", "_secs", "_seconds", "_ms"];
    let names = fields.iter().map(|(name, _)| *name).chain(aliases.iter().copied());
    spellings.extend(names.filter(|name| !spans.contains(name)).map(spelled));
    spellings.extend(spans.iter().flat_map(|name| units.iter().map(move |unit| spelled(&format!("{name}{unit}")))));
    let properties: Map<String, Value> =
        fields.into_iter().map(|(name, schema)| (name.to_owned(), nullable(schema))).collect();
    // Some readers take no key that is longer than a thousand characters.
    let patterns: Map<String, Value> =
        spellings.chunks(12).map(|some| (format!("^(?:{})$", some.join("|")), json!({}))).collect();
    json!({
        "type": "object",
        "properties": properties,
        "patternProperties": patterns,
        "additionalProperties": false,
    })
}

/// Pattern of all cases of a field: `max_retries`, `maxRetries`, `max-retries`, `MaxRetries`.
fn spelled(name: &str) -> String {
    let either = |letter: char| format!("[{letter}{}]", letter.to_ascii_uppercase());
    let mut pattern = String::new();
    for (n, part) in name.split('_').enumerate() {
        let first = part.chars().next().unwrap_or_default();
        if n == 0 {
            pattern.push_str(&either(first));
        } else {
            pattern.push_str(&format!("(?:[_-]{}|{})", either(first), first.to_ascii_uppercase()));
        }
        pattern.push_str(&part[first.len_utf8()..]);
    }
    pattern
}

fn expression(example: &str) -> Value {
    any_of([like(json!({"type": "string", "maxLength": 16_384}), json!([example])), flag()])
}

fn matchers() -> Value {
    let one = any_of([json!({"type": "string", "minLength": 1, "maxLength": 200}), json!({"type": "number"})]);
    let many = json!({"type": "array", "maxItems": 200, "items": one.clone()});
    let mut schema = like(any_of([one, many]), json!([["5xx", 429, "timeout", "rate_limited", "ECONNRESET"]]));
    schema["description"] = "Statuses, classes of statuses, triggers, classes of errors, codes or types.".into();
    schema
}

fn schedule() -> Value {
    let mut entry = open_to_spellings(
        vec![
            ("attempt", between(1, i64::from(u32::MAX))),
            ("delay", named("Duration")),
            ("delay_days", json!({"type": "number", "minimum": 0})),
            ("delay_hours", json!({"type": "number", "minimum": 0})),
            ("delay_minutes", json!({"type": "number", "minimum": 0})),
        ],
        &[],
        &["delay"],
    );
    entry["description"] = "The parts of a delay are added up.".into();
    let entries = json!({"type": "array", "maxItems": 1_000, "items": any_of([named("Duration"), entry])});
    let wrapped = json!({"type": "object", "required": ["attempts"], "properties": {"attempts": entries.clone()}});
    like(any_of([entries, wrapped]), json!([["7d", "14d"]]))
}

fn rule() -> Value {
    let code = any_of([text(), json!({"type": "number"})]);
    let matching = open_to_spellings(
        vec![
            ("on", named("Matchers")),
            ("class", named("Class")),
            ("trigger", words!(Trigger)),
            ("type", text()),
            ("code", code),
            ("message", about(json!({"type": "string", "maxLength": 1_000}), "A regular expression.")),
            ("when", expression("status == 423")),
        ],
        &["status", "any", "error_type"],
        &[],
    );
    let mut fields = vec![
        ("match", matching),
        ("then", words!(policy::Then)),
        ("max", about(count(), "Maximum number of applications in one cycle.")),
    ];
    fields.extend(backoff_fields());
    let mut schema = open_to_spellings(fields, &ALIASES[..7], &SPANS[..5]);
    schema["required"] = json!(["then"]);
    schema["description"] = "All given conditions must match. A strategy here replaces the policy's.".into();
    schema
}

fn window() -> Value {
    let mut schema = open_to_spellings(
        vec![
            ("from", like(text(), json!(["22:00"]))),
            ("to", like(text(), json!(["06:00"]))),
            ("days", like(list(text()), json!([["sat", "sun"]]))),
            ("tz", like(text(), json!(["Europe/Berlin"]))),
        ],
        &["start", "end", "timezone"],
        &[],
    );
    schema["description"] = "Every week between two times of day, or once between two instants.".into();
    schema
}

fn told_backoff() -> Vec<(&'static str, Value)> {
    let entry = object([("attempt", count()), ("delay_ms", count())]);
    vec![
        ("strategy", word(&["immediate", "fixed", "linear", "exponential", "schedule"])),
        ("initial_delay_ms", count()),
        ("delay_ms", count()),
        ("multiplier", json!({"type": "number", "minimum": 1})),
        ("schedule", list(entry)),
        ("max_delay_ms", count()),
        ("jitter", words!(Jitter)),
    ]
}

/// The form that `Policy::to_json` writes.
fn told() -> Value {
    let mut fields = vec![("max_retries", count())];
    fields.extend(told_backoff());
    fields.extend([
        ("retry_on", list(text())),
        ("ignore", list(text())),
        ("retry_when", text()),
        ("stop_when", text()),
        ("on_expression_error", words!(policy::OnExpressionError)),
        ("rules", list(named("PolicyRule"))),
        ("windows", list(named("PolicyWindow"))),
        ("max_elapsed_ms", count()),
        ("expires_at", instant()),
        ("timeout_ms", count()),
        ("respect_retry_after", flag()),
        ("max_retry_after_ms", count()),
        ("max_throttles", count()),
        ("on_lost", words!(policy::OnLost)),
        ("max_lost", count()),
        ("max_snoozes", count()),
        ("default_class", named("Class")),
        ("override_final", flag()),
        ("on_exhausted", words!(policy::OnExhausted)),
        ("last_try", flag()),
        ("deadline", words!(policy::DeadlineKind)),
        ("reset_counters_on_retry", flag()),
    ]);
    let told = "A policy in canonical form; defaults are left out. It is valid as input.";
    about(partial(&["max_retries", "strategy", "jitter"], fields), told)
}

fn told_rule() -> Value {
    let matching = partial(
        &[],
        [
            ("on", list(text())),
            ("class", named("Class")),
            ("trigger", words!(Trigger)),
            ("type", text()),
            ("code", text()),
            ("message", text()),
            ("when", text()),
        ],
    );
    let mut fields = vec![("match", matching), ("then", words!(policy::Then)), ("max", count())];
    fields.extend(told_backoff());
    partial(&["match", "then"], fields)
}

fn told_window() -> Value {
    let weekly = [("days", list(text())), ("from", text()), ("to", text()), ("tz", text())];
    any_of([object(weekly), object([("from", instant()), ("to", instant())])])
}

#[cfg(test)]
mod tests {
    use comeback_core::{Dialect, PolicyLimits, dialect};

    use super::*;

    fn unknown(field: &str) -> bool {
        let read = dialect::parse(&json!({field: {}}), Dialect::Job, &PolicyLimits::default());
        read.is_err_and(|faults| faults.faults.iter().any(|it| it.message.contains("not a field known")))
    }

    #[test]
    fn every_field_that_is_told_is_read_and_no_other() {
        let schema = fields();
        let told = schema["properties"].as_object().expect("fields").keys().map(String::as_str);
        for name in told.chain(ALIASES.iter().copied()) {
            assert!(!unknown(name), "{name}");
        }
        for name in SPANS {
            for unit in ["", "_secs", "_seconds", "_ms"] {
                assert!(!unknown(&format!("{name}{unit}")), "{name}{unit}");
            }
        }
        assert!(!unknown("maxRetries") && !unknown("max-retries") && !unknown("MaxRetries"));
        assert!(unknown("max_retry") && unknown("maxretries"));
    }

    #[test]
    fn spellings_are_told_apart() {
        assert_eq!(spelled("max_retries"), "[mM]ax(?:[_-][rR]|R)etries");
        assert_eq!(spelled("on"), "[oO]n");
    }
}
