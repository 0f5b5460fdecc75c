use serde_json::{Value, json};

use super::parse;
use crate::policy::{Dialect, Jitter, OnExhausted, OnLost, Policy, PolicyLimits, Strategy};
use crate::time::Millis;

fn read(dialect: Dialect, value: Value) -> Option<Policy> {
    parse(&value, dialect, &PolicyLimits::default()).unwrap_or_else(|faults| panic!("{value}: {faults}"))
}

fn native(value: Value) -> Policy {
    read(Dialect::Native, value).expect("a policy")
}

/// Which fields are named as wrong.
fn faults(dialect: Dialect, value: Value) -> Vec<String> {
    match parse(&value, dialect, &PolicyLimits::default()) {
        Ok(policy) => panic!("{value} was read as {policy:?}"),
        Err(invalid) => invalid.faults.into_iter().map(|fault| fault.path).collect(),
    }
}

/// Every spelling of a field gives the same policy.
fn same(dialect: Dialect, spellings: &[Value]) {
    let first = read(dialect, spellings[0].clone());
    for other in &spellings[1..] {
        assert_eq!(read(dialect, other.clone()), first, "{other}");
    }
}

#[test]
fn absence_and_shorthands() {
    for nothing in [json!(null), json!(false), json!(0), json!({"enabled": false, "max_retries": 3})] {
        assert_eq!(read(Dialect::Native, nothing), None);
    }
    assert_eq!(read(Dialect::Native, json!(true)), Some(Policy::preset(Dialect::Step)));
    assert_eq!(read(Dialect::Native, json!(6)).expect("a policy").max_retries, 5);
    assert_eq!(read(Dialect::Native, json!(1)).expect("a policy").max_retries, 0);
    assert_eq!(read(Dialect::Run, json!(true)), Some(Policy::preset(Dialect::Run)));
    for preset in [Dialect::Workflow, Dialect::Task, Dialect::Job, Dialect::Run, Dialect::Step] {
        assert_eq!(native(json!({"preset": preset.word()})), Policy::preset(preset));
    }
}

#[test]
fn every_alias_of_a_field_means_the_same() {
    same(
        Dialect::Native,
        &[
            json!({"initial_delay": "10s"}),
            json!({"initial_delay": 10}),
            json!({"initialDelay": "PT10S"}),
            json!({"initial_delay_secs": 10}),
            json!({"initial_delay_seconds": 10}),
            json!({"initialDelaySeconds": 10}),
            json!({"initial_delay_ms": 10_000}),
            json!({"initial_backoff": "10s"}),
            json!({"initial_backoff_secs": 10}),
            json!({"waitDuration": 10_000}),
            json!({"delay": "10s"}),
            json!({"initial-delay": "10s"}),
        ],
    );
    same(
        Dialect::Native,
        &[
            json!({"strategy": "fixed", "delay": "5m"}),
            json!({"strategy": "fixed_delay", "delay_seconds": 300}),
            json!({"retry_strategy": "FIXED", "delaySeconds": 300}),
            json!({"backoffStrategy": "FIXED", "initial_delay": "5m"}),
            json!({"exponentialBackoff": false, "waitDuration": 300_000}),
        ],
    );
    same(
        Dialect::Native,
        &[
            json!({"strategy": "exponential", "multiplier": 3, "max_delay": "1h"}),
            json!({"strategy": "EXPONENTIAL", "backoff_multiplier": 3, "max_delay_secs": 3600}),
            json!({"strategy": "exponential_backoff", "backoffMultiplier": 3.0, "maxDelaySeconds": 3600}),
            json!({"exponentialBackoff": true, "multiplier": 3, "max_backoff": "1h"}),
            json!({"backoff": "exponential", "multiplier": 3, "max_backoff_secs": 3600}),
        ],
    );
    same(
        Dialect::Native,
        &[
            json!({"schedule": ["7d", "14d"]}),
            json!({"schedule": [{"attempt": 1, "delay": "7d"}, {"attempt": 2, "delay": "14d"}]}),
            json!({"strategy": "custom", "custom_schedule": {"attempts": [{"delay_days": 7}, {"delay_days": 14}]}}),
            json!({"customSchedule": {"attempts": [{"delayDays": 6, "delayHours": 23, "delayMinutes": 59, "delaySeconds": 60}, {"delayDays": 14}]}}),
        ],
    );
    same(
        Dialect::Native,
        &[
            json!({"ignore": ["4xx"]}),
            json!({"ignoreExceptions": ["4xx"]}),
            json!({"ignore_exceptions": "4xx"}),
            json!({"non_retryable": ["4xx"]}),
        ],
    );
    same(Dialect::Native, &[json!({"retry_on": ["5xx", 429]}), json!({"retryOn": ["5xx", "429"]})]);
    same(Dialect::Native, &[json!({"jitter": true}), json!({"jitter": "proportional"})]);
    same(Dialect::Native, &[json!({"jitter": false}), json!({"jitter": "none"}), json!({})]);
    same(
        Dialect::Step,
        &[
            json!({"retry_when": "status >= 500"}),
            json!({"retryWhen": "{{ status >= 500 }}"}),
            json!({"when": "status >= 500"}),
        ],
    );
}

/// D-1: what the maximum counts is the dialect's to say.
#[test]
fn the_maximum_counts_what_its_dialect_counts() {
    let retries = |dialect, value| read(dialect, value).expect("a policy").max_retries;
    assert_eq!(retries(Dialect::Native, json!({"max_attempts": 6})), 5);
    assert_eq!(retries(Dialect::Native, json!({"max_retries": 5})), 5);
    assert_eq!(retries(Dialect::Native, json!({"max_retries": 5, "maxAttempts": 6})), 5);
    assert_eq!(retries(Dialect::Workflow, json!({"maxAttempts": 5})), 5);
    assert_eq!(
        retries(Dialect::Workflow, json!({"strategy": "exponential_backoff"})),
        3,
        "S0-13: when nothing is said"
    );
    assert_eq!(retries(Dialect::Task, json!({"max_retries": 5})), 5);
    assert_eq!(retries(Dialect::Job, json!({"maxRetries": 5})), 5);
    assert_eq!(retries(Dialect::Run, json!({"max_attempts": 6})), 5);
    assert_eq!(retries(Dialect::Step, json!({"max_attempts": 6})), 5);
    assert_eq!(retries(Dialect::Native, json!({"dialect": "workflow", "maxAttempts": 5})), 5);
}

/// S0-15, S0-34, X0-19, F0-16: what a document of the dialect `workflow` means by the delays it gives and leaves out.
#[test]
fn the_dialect_workflow_has_delays_of_its_own() {
    let delays = |dialect, value: Value| {
        let policy = read(dialect, value).expect("a policy");
        let draw = crate::backoff::Draw {
            task: crate::TaskId(uuid::Uuid::nil()),
            cycle: 0,
            stream: crate::backoff::Stream::Retry,
        };
        [0, 1, 2].map(|n| crate::backoff::delay(&policy.backoff, n, draw, &PolicyLimits::default()).total_ms / 1_000)
    };
    let workflow = |value| delays(Dialect::Workflow, value);
    assert_eq!(workflow(json!({"strategy": "fixed_delay", "delaySeconds": 60, "initialDelaySeconds": 0})), [60; 3]);
    assert_eq!(workflow(json!({"strategy": "fixed_delay", "delaySeconds": 60, "initialDelaySeconds": 5})), [5, 60, 60]);
    assert_eq!(workflow(json!({"strategy": "fixed_delay", "initialDelaySeconds": 0})), [300; 3]);
    assert_eq!(workflow(json!({"strategy": "fixed_delay"})), [300; 3]);
    assert_eq!(workflow(json!({"strategy": "custom", "customSchedule": {"attempts": []}})), [86_400; 3]);
    assert_eq!(workflow(json!({"strategy": "custom"})), [86_400; 3]);
    assert_eq!(workflow(json!({"strategy": "exponential_backoff"})), [60, 120, 240]);
    assert_eq!(workflow(json!({"strategy": "immediate", "initialDelaySeconds": 7})), [7, 0, 0]);
    assert_eq!(workflow(json!({"strategy": "immediate"})), [0; 3]);
    let native = |value| delays(Dialect::Native, value);
    assert_eq!(native(json!({"strategy": "fixed", "delay": 60, "initial_delay": 0})), [0, 60, 60]);
}

/// A rule that names a delay and no curve means that delay every time, in whatever unit.
#[test]
fn a_rules_delay_is_fixed_in_every_unit() {
    let strategy = |rule: Value| {
        let policy = native(json!({"rules": [rule]}));
        policy.rules[0].backoff.as_ref().map(|own| own.strategy.clone())
    };
    let fixed = Some(Strategy::Fixed { delay: Millis::from_secs(30), first: None });
    for (name, value) in [
        ("delay", json!("30s")),
        ("delay", json!(30)),
        ("delay_secs", json!(30)),
        ("delaySeconds", json!(30)),
        ("delay_ms", json!(30_000)),
    ] {
        assert_eq!(strategy(json!({"then": "retry", name: value})), fixed, "{name}");
    }
    let grows = Some(Strategy::Exponential { initial: Millis::from_secs(30), multiplier: 3.0 });
    assert_eq!(strategy(json!({"then": "retry", "delay_secs": 30, "multiplier": 3})), grows);
    assert_eq!(strategy(json!({"then": "retry", "initial_delay_secs": 30, "backoffMultiplier": 3})), grows);
    assert_eq!(strategy(json!({"then": "retry", "max": 3})), None);
}

#[test]
fn every_other_field_is_read() {
    let policy = native(json!({
        "max_elapsed": "14d", "expires_at": "2030-01-01T00:00:00Z", "timeout": 30, "respect_retry_after": false,
        "max_retry_after": "1h", "max_throttles": 7, "on_lost": "park", "max_lost": 1, "max_snoozes": 2,
        "default_class": "final", "override_final": true, "on_exhausted": "park", "last_try": true,
        "deadline": "hard", "reset_counters_on_retry": true, "on_expression_error": "open",
        "windows": [{"days": ["Monday", "tue"], "from": "09:00", "to": "17:00", "tz": "Europe/Berlin"},
                    {"from": "2030-01-01T00:00:00Z", "to": "2030-01-02T00:00:00Z"}],
        "rules": [{"match": {"status": [503, "5xx"], "class": "retryable", "trigger": "timeout", "type": "Io",
                             "code": 7, "message": "^boom", "when": "attempt < 3"},
                   "then": "retry", "delay": "30s", "max": 2},
                  {"match": {"on": "404"}, "then": "final"},
                  {"then": "snooze", "delay": "1h"}],
    }));
    assert_eq!(policy.max_elapsed, Some(Millis::from_days(14)));
    assert_eq!(policy.timeout, Some(Millis::from_secs(30)));
    assert_eq!((policy.on_lost, policy.max_lost, policy.on_exhausted), (OnLost::Park, 1, OnExhausted::Park));
    assert_eq!((policy.windows.len(), policy.rules.len()), (2, 3));
    assert!(matches!(
        policy.rules[0].backoff.as_ref().map(|own| &own.strategy),
        Some(Strategy::Fixed { delay, .. }) if *delay == Millis::from_secs(30)
    ));
    assert!(policy.last_try && policy.override_final && !policy.respect_retry_after);
}

#[test]
fn conflicts_and_unknown_fields_are_named() {
    let check = |value: Value, paths: &[&str]| assert_eq!(faults(Dialect::Native, value.clone()), paths, "{value}");
    check(json!({"max_retries": 3, "max_attempts": 3}), &["max_retries"]);
    check(json!({"maxRetries": 3, "max_retries": 4}), &["max_retries"]);
    check(json!({"initial_delay": "5s", "initial_delay_secs": 6}), &["initial_delay"]);
    check(json!({"strategy": "fixed", "exponentialBackoff": true, "delay": 5}), &["exponentialBackoff"]);
    check(json!({"max_retriess": 3}), &["max_retriess"]);
    check(json!({"strategy": "sometimes"}), &["strategy"]);
    check(json!({"jitter": "some"}), &["jitter"]);
    check(json!({"max_attempts": 0}), &["max_attempts"]);
    check(json!({"max_retries": -1}), &["max_retries"]);
    check(json!({"max_retries": 1.5}), &["max_retries"]);
    check(json!({"max_retries": 4294967296_u64}), &["max_retries"]);
    check(json!({"multiplier": 0.5}), &["multiplier"]);
    check(json!({"multiplier": "two"}), &["multiplier"]);
    check(json!({"initial_delay": -1}), &["initial_delay"]);
    check(json!({"initial_delay": "soon"}), &["initial_delay"]);
    check(json!({"retry_on": []}), &["retry_on"]);
    check(json!({"retry_on": ["9xx"]}), &["retry_on"]);
    check(json!({"retry_when": "statuss"}), &["retry_when"]);
    check(json!({"rules": [{"match": {"colour": "red"}, "then": "retry"}]}), &["rules[0].match.colour"]);
    check(json!({"rules": [{"match": {}}]}), &["rules[0].then"]);
    check(json!({"rules": [{"then": "snooze"}]}), &["rules[0].delay"]);
    check(json!({"rules": [{"match": {"message": "("}, "then": "final"}]}), &["rules[0].match.message"]);
    check(json!({"windows": [{"from": "9", "to": "17:00"}]}), &["windows[0].from"]);
    check(json!({"windows": [{"from": "09:00", "to": "17:00", "tz": "Mars/Base"}]}), &["windows[0].tz"]);
    check(json!({"windows": [{"from": "00:00", "to": "00:00"}]}), &["windows"]);
    check(json!({"windows": [{"from": "2026-11-18T00:00:00Z", "to": "2999-01-01T00:00:00Z"}]}), &["windows[0].to"]);
    check(json!({"schedule": []}), &["schedule"]);
    check(json!({"schedule": ["7d", "soon"]}), &["schedule[1]"]);
    check(json!({"schedule": [{"attempt": 2, "delay": 1}, {"attempt": 2, "delay": 1}]}), &["schedule[1].attempt"]);
    check(json!({"schedule": {"attempts": [{"attempt": 0, "delay": 1}]}}), &["schedule[0].attempt"]);
    check(json!({"on_lost": "shrug"}), &["on_lost"]);
    check(json!({"timeout": 0}), &["timeout"]);
    check(json!({"preset": "grand"}), &["preset"]);
    check(json!("exp"), &[""]);
    check(json!([1]), &[""]);
    check(json!(-3), &[""]);
    check(json!(2.5), &[""]);
    assert_eq!(faults(Dialect::Task, json!({"dialect": "run"})), ["dialect"]);
}

/// A field that the strategy does not use is refused by the name it was given, not dropped.
#[test]
fn fields_that_contradict_the_strategy_are_refused_by_name() {
    let check = |value: Value, paths: &[&str]| assert_eq!(faults(Dialect::Native, value.clone()), paths, "{value}");
    check(json!({"strategy": "fixed", "schedule": ["1s", "9s"]}), &["schedule"]);
    check(json!({"strategy": "exponential", "customSchedule": ["1s"]}), &["customSchedule"]);
    check(json!({"strategy": "fixed", "delay": 5, "backoff_multiplier": 2}), &["backoff_multiplier"]);
    check(json!({"strategy": "linear", "multiplier": 2}), &["multiplier"]);
    check(json!({"strategy": "immediate", "multiplier": 2, "delay_secs": 3}), &["multiplier", "delay_secs"]);
    check(
        json!({"strategy": "schedule", "schedule": ["1s"], "initial_delay": 5, "delay": 6}),
        &["initial_delay", "delay"],
    );
    check(json!({"schedule": ["1s"], "multiplier": 3}), &["multiplier"]);
    check(
        json!({"rules": [{"then": "retry", "strategy": "fixed", "delay": 5, "multiplier": 2}]}),
        &["rules[0].multiplier"],
    );
    // What every strategy has a use for, and what says the same.
    for fine in [
        json!({"strategy": "fixed", "delay": "10s", "initial_delay": "1s", "max_delay": "5s", "jitter": "full"}),
        json!({"strategy": "immediate", "delay": 0, "initial_delay": "1s", "max_delay": "1m"}),
        json!({"strategy": "exponential", "delay": "10s", "multiplier": 3}),
        json!({"strategy": "linear", "initial_delay": "1s", "delay": "2s"}),
        json!({"schedule": ["7d", "14d"], "max_retries": 5}),
        json!({"strategy": "fixed", "delay": 5, "schedule": null, "multiplier": null}),
    ] {
        native(fine);
    }
    // Rows of the dialect `workflow` have all columns, used or not.
    let row = json!({"retry_strategy": "fixed_delay", "max_attempts": 3, "initial_delay_seconds": 0, "delay_seconds": 300,
        "multiplier": 2.0, "max_delay_seconds": null, "custom_schedule": null});
    assert!(read(Dialect::Workflow, row).is_some());
}

/// Faults of the whole and faults of its parts are told together, each once.
#[test]
fn every_fault_of_a_policy_is_told_at_once() {
    let check = |dialect, value: Value, paths: &[&str]| assert_eq!(faults(dialect, value.clone()), paths, "{value}");
    check(
        Dialect::Native,
        json!({"retry_on": [], "on_lost": "shrug", "colour": 1}),
        &["on_lost", "retry_on", "colour"],
    );
    check(Dialect::Native, json!({"retry_on": [], "max_retries": 1001}), &["max_retries", "retry_on"]);
    check(Dialect::Native, json!({"retry_on": [], "schedule": ["soon"]}), &["schedule[0]", "retry_on"]);
    check(Dialect::Native, json!({"retry_on": [], "multiplier": 0.5}), &["multiplier", "retry_on"]);
    check(Dialect::Task, json!({"max_retries": 11, "retry_on": []}), &["max_retries", "retry_on"]);
    check(
        Dialect::Run,
        json!({"initial_backoff_secs": 99_999_999, "retry_on": []}),
        &["initial_backoff_secs", "retry_on"],
    );
    assert_eq!(read(Dialect::Native, json!({"enabled": false, "retry_on": []})), None, "it is never used");
}

/// S1-69 to S1-73: the dialect `task` bounds its own policies, whatever the server allows.
#[test]
fn the_dialect_task_keeps_its_own_bounds() {
    let check = |value: Value, paths: &[&str]| assert_eq!(faults(Dialect::Task, value.clone()), paths, "{value}");
    check(json!({"max_retries": 0}), &["max_retries"]);
    check(json!({"max_retries": 11}), &["max_retries"]);
    check(json!({"max_retries": 3, "initial_delay_secs": 0}), &["initial_delay_secs"]);
    check(json!({"max_retries": 3, "backoff_multiplier": 0.9}), &["backoff_multiplier"]);
    check(json!({"max_retries": 3, "max_delay_secs": 3601}), &["max_delay_secs"]);
    check(json!({"max_retries": 3, "initial_delay_secs": 20, "max_delay_secs": 10}), &["initial_delay_secs"]);
    check(json!({"max_retries": 3, "retry_on": []}), &["retry_on"]);
    check(json!(1), &["max_retries"]);
    check(json!(50), &["max_retries"]);
    assert_eq!(read(Dialect::Task, json!(4)).expect("a policy").max_retries, 3);
    // Whatever the strategy: no delay is shorter than a second or longer than an hour.
    check(json!({"strategy": "immediate"}), &["strategy"]);
    check(json!({"strategy": "fixed", "delay": "500ms"}), &["delay_secs"]);
    check(json!({"strategy": "fixed", "delay": "2h"}), &["delay_secs"]);
    check(json!({"strategy": "fixed", "delay": "1m", "initial_delay": 0}), &["initial_delay_secs"]);
    check(json!({"strategy": "linear", "initial_delay": 0, "delay": 5}), &["initial_delay_secs"]);
    check(json!({"schedule": ["1s", "2h"], "max_retries": 2}), &["schedule[1]"]);
    check(json!({"rules": [{"then": "retry", "delay": 0}]}), &["rules[0].delay_secs"]);
    let uncapped = read(Dialect::Task, json!({"preset": "workflow", "max_retries": 9})).expect("a policy");
    assert_eq!(uncapped.backoff.max_delay, Some(Millis::from_secs(3_600)));
    assert!(
        read(Dialect::Task, json!({"max_retries": 3, "retry_on": ["timeout", "webhook_failure", "explicit"]}))
            .is_some()
    );
}

/// Model A11: natively a thousand retries and a year; the server may tighten, never widen.
#[test]
fn limits_are_enforced_when_a_policy_is_made() {
    assert_eq!(native(json!({"max_retries": 1000})).max_retries, 1_000);
    assert_eq!(faults(Dialect::Native, json!({"max_retries": 1001})), ["max_retries"]);
    assert_eq!(faults(Dialect::Native, json!({"max_delay": "367d"})), ["max_delay"]);
    assert_eq!(faults(Dialect::Native, json!({"strategy": "fixed", "delay": "367d"})), ["delay"]);
    let tight =
        PolicyLimits { max_retries: 10, max_delay: Millis::from_secs(3_600), max_schedule: Millis::from_days(90) };
    let paths = |value: Value| -> Vec<String> {
        let invalid = parse(&value, Dialect::Native, &tight).expect_err("too much");
        invalid.faults.into_iter().map(|fault| fault.path).collect()
    };
    assert_eq!(paths(json!({"max_retries": 11, "initial_delay": "2h"})), ["max_retries", "initial_delay"]);
    assert_eq!(paths(json!({"schedule": ["7d", "91d"]})), ["schedule[1]"]);
    assert!(parse(&json!({"schedule": ["7d", "89d"]}), Dialect::Native, &tight).is_ok());
}

#[test]
fn what_is_stored_is_read_back_as_it_was() {
    let rich = native(json!({
        "strategy": "linear", "initial_delay": "250ms", "delay": "2s", "max_delay": "1m", "jitter": "decorrelated",
        "max_retries": 40, "retry_on": ["5xx", 429, "timeout", "IoError"], "ignore": ["final"],
        "retry_when": "attempt < 9", "stop_when": "'gone' in error", "on_lost": "count", "last_try": true,
        "windows": [{"days": ["sat"], "from": "22:00", "to": "06:30", "tz": "America/New_York"}],
        "rules": [{"match": {"status": 503}, "then": "retry", "strategy": "fixed", "delay": "9s", "max": 4},
                  {"match": {"message": "no\\s+route"}, "then": "park"},
                  {"then": "snooze", "delay": "1h", "max": 2}],
    }));
    let schedule = native(json!({"schedule": ["7d", "14d"], "max_retries": 5, "jitter": "equal"}));
    let presets = Dialect::ALL.iter().map(|dialect| Policy::preset(*dialect));
    for policy in presets.chain([rich, schedule]) {
        let text = policy.to_json().to_string();
        assert_eq!(super::parse_stored(&text).as_ref(), Ok(&policy), "{text}");
    }
}

#[test]
fn jitter_words_are_the_documented_ones() {
    for (word, jitter) in [
        ("none", Jitter::None),
        ("proportional", Jitter::Proportional),
        ("full", Jitter::Full),
        ("equal", Jitter::Equal),
        ("decorrelated", Jitter::Decorrelated),
    ] {
        assert_eq!(native(json!({"jitter": word})).backoff.jitter, jitter);
    }
}

#[test]
fn a_policy_is_parsed_from_its_short_form_and_from_json() {
    let short: Policy = "exp(5s, x2, 8 retries)".parse().unwrap();
    assert_eq!(short, Policy::exponential(Millis::from_secs(5), 8));
    let long: Policy = r#" {"strategy": "fixed", "delay": "5m", "max_retries": 3}"#.parse().unwrap();
    assert_eq!(long, Policy::fixed(Millis::from_secs(300), 3));
    assert_eq!("fixed(5m, 3 retries)".parse(), Ok(long));
    for wrong in ["", "5", "exp(5s", "{", r#"{"enabled": false}"#, r#"{"stategy": "fixed"}"#, "true"] {
        assert!(wrong.parse::<Policy>().is_err(), "{wrong}");
    }
}
