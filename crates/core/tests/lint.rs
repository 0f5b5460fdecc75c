//! Policies that are allowed and seldom meant: what is said about each, and that good ones are left alone.

use comeback_core::lint::lint;
use comeback_core::*;
use serde_json::{Value, json};

use crate::common::*;

fn codes(policy: Option<&Policy>) -> Vec<&'static str> {
    lint(policy, &PolicyLimits::default(), T0).iter().map(|advice| advice.code).collect()
}

#[test]
fn each_suspicion_has_its_code() {
    let nights = json!({"from": "20:00", "to": "08:00"});
    let cases: Vec<(Value, &[&str])> = vec![
        // Nothing to say.
        (json!({"max_retries": 3}), &[]),
        (json!("exp(60s, x2, max 1h, 8 retries, jitter full)"), &[]),
        (json!("schedule(7d, 14d)"), &[]),
        (json!({"schedule": ["7d", "14d"], "jitter": "equal"}), &[]),
        (json!({"max_retries": 4, "max_elapsed": "1h", "last_try": true, "deadline": "hard"}), &[]),
        (
            json!({"max_retries": 3, "rules": [
                {"match": {"on": ["429"]}, "then": "retry", "max": 2},
                {"match": {"on": ["4xx"]}, "then": "final"},
            ]}),
            &[],
        ),
        // One suspicion each.
        (json!({"max_retries": 0}), &["no-retries"]),
        (json!("exp(60s, x2, 5 retries)"), &["no-jitter"]),
        (json!("immediate(3 retries)"), &["over-at-once"]),
        (json!("fixed(2s, 1 retries)"), &["over-at-once"]),
        (json!("fixed(30d, 4 retries)"), &["goes-on-for-long"]),
        (json!("exp(60s, x2, 4 retries, within 5m)"), &["beyond-deadline"]),
        (json!({"max_retries": 3, "expires_at": "2027-01-15T08:00:12Z"}), &["beyond-deadline"]),
        (json!({"max_retries": 3, "expires_at": "2020-01-01T00:00:00Z"}), &["deadline-passed"]),
        (json!({"max_retries": 3, "max_elapsed": "10m", "timeout": "10m"}), &["timeout-outlasts-deadline"]),
        (json!({"max_retries": 3, "last_try": true}), &["last-try-without-deadline"]),
        (json!({"max_retries": 3, "deadline": "hard"}), &["hard-without-deadline"]),
        (json!("exp(60s, x1, 3 retries)"), &["multiplier-one"]),
        (json!("exp(60s, x2, max 1h, 3 retries)"), &["cap-never-reached"]),
        (json!("exp(10m, x2, max 5m, 3 retries)"), &["cap-always-reached"]),
        (json!({"schedule": ["1m", "5m", "1h"], "max_retries": 2}), &["schedule-unused"]),
        (json!({"schedule": ["1h", "5m"]}), &["schedule-falls"]),
        (json!({"schedule": ["7d", "14d"], "jitter": "full"}), &["schedule-blurred"]),
        (
            json!({"max_retries": 3, "windows": [{"from": "2020-01-01T00:00:00Z", "to": "2020-01-02T00:00:00Z"}]}),
            &["window-passed"],
        ),
        (json!({"max_retries": 3, "max_elapsed": "12h", "windows": [nights]}), &["window-outlasts-deadline"]),
        (
            json!({"max_retries": 3, "rules": [{"match": {}, "then": "retry"}, {"match": {"on": ["4xx"]}, "then": "final"}]}),
            &["rule-never-asked"],
        ),
        (json!({"max_retries": 3, "rules": [{"match": {"on": ["4xx"]}, "then": "retry", "max": 0}]}), &["rule-spent"]),
        (json!({"max_retries": 3, "respect_retry_after": false}), &["retry-after-ignored"]),
        (json!({"max_retries": 3, "override_final": true}), &["final-overridden"]),
        (json!({"max_retries": 3, "default_class": "final"}), &["unknown-is-final"]),
        (json!({"max_retries": 3, "retry_on": ["5xx"], "ignore": ["5xx"]}), &["listed-and-ignored"]),
        // Several at once.
        (json!("immediate(20 retries)"), &["over-at-once"]),
        (
            json!("exp(1s, x1, max 1m, 9 retries)"),
            &["over-at-once", "no-jitter", "multiplier-one", "cap-never-reached"],
        ),
    ];
    for (policy, expected) in cases {
        assert_eq!(codes(Some(&native(policy.clone()))), expected, "{policy}");
    }
    assert_eq!(codes(None), ["no-retries"]);
}

/// The dialects' own defaults are what they are; lint says no more about them than this.
#[test]
fn the_presets_are_suspected_of_little() {
    for dialect in Dialect::ALL {
        let expected: &[&str] = match dialect {
            Dialect::Run => &["no-jitter"],
            Dialect::Task => &["cap-never-reached"],
            Dialect::Step => &["over-at-once", "cap-never-reached"],
            _ => &[],
        };
        assert_eq!(codes(Some(&Policy::preset(*dialect))), expected, "{dialect}");
    }
}

#[test]
fn the_words_carry_the_numbers() {
    let policy = native(json!("exp(60s, x2, max 1h, 9 retries, within 10m)"));
    let said = lint(Some(&policy), &PolicyLimits::default(), T0);
    let first = &said[0];
    assert_eq!(first.what, "6 of 9 retries come after max_elapsed 10m and never run");
    assert_eq!(first.instead, "3 retries, shorter delays or a later deadline");
}

/// What lint says about the deadline is what then happens.
#[test]
fn as_many_retries_are_lost_as_lint_says() {
    for within in ["5s", "1m", "10m", "1h", "3h"] {
        let policy = native(json!(format!("exp(60s, x2, 9 retries, within {within})")));
        let mut snapshot = running(Some(policy.clone()));
        let mut retries = 0;
        loop {
            let change = end(&snapshot, End::Failed(error("x")), snapshot.task.updated_at);
            if change.is_end() {
                break;
            }
            retries += 1;
            (snapshot, _) = come_back(&after(&snapshot, &change));
        }
        let said = lint(Some(&policy), &PolicyLimits::default(), T0);
        let words = format!("{} of 9 retries come after", 9 - retries);
        assert!(said.iter().any(|advice| advice.what.starts_with(&words)), "{within}: {retries} {said:?}");
    }
}
