//! The future as it will be, and policies in words.

use comeback_core::explain;
use comeback_core::forecast::{RunTimes, forecast};
use comeback_core::transition;
use comeback_core::*;
use serde_json::json;

use crate::common::{self, *};

#[test]
fn the_forecast_is_what_then_happens() {
    for policy in [
        json!({"max_retries": 6, "initial_delay": "1m", "jitter": "full"}),
        json!({"max_retries": 30, "initial_delay": "2s", "jitter": "decorrelated", "max_delay": "1h"}),
        json!({"schedule": ["7d", "14d"], "jitter": "equal"}),
        json!({"max_retries": 9, "initial_delay": "1m", "max_elapsed": "20m", "last_try": true}),
        json!({"max_retries": 9, "windows": [{"from": "08:00", "to": "17:00"}]}),
    ] {
        let mut snapshot = running(Some(native(policy.clone())));
        let change = end(&snapshot, End::Failed(error("x")), T0);
        snapshot = after(&snapshot, &change);
        let told = forecast(&snapshot, &error("x"), RunTimes::default(), T0, 1_000);
        let mut happened = Vec::new();
        let last = loop {
            let (next, now) = come_back(&snapshot);
            happened.push((next.task.run, now));
            let change = end(&next, End::Failed(error("x")), now);
            if change.is_end() {
                break (now, change.after().state, change.after().reason);
            }
            snapshot = after(&next, &change);
        };
        let times: Vec<(u32, Timestamp)> = told.attempts.iter().map(|coming| (coming.number, coming.at)).collect();
        assert_eq!(times, happened, "{policy}");
        assert_eq!(told.gives_up_at, Some(last.0), "{policy}");
        assert_eq!(told.then, Some((last.1, last.2.expect("a reason"))), "{policy}");
    }
}

/// What happened after the last verdict is said before it.
#[test]
fn why_tells_what_happened_last() {
    let snapshot = running(Some(native(json!({"strategy": "fixed", "delay": "1m", "max_retries": 3}))));
    assert_eq!(explain::standing(&pending(None).task, None), "it is pending and nothing was decided about it yet");
    let change = end(&snapshot, End::Failed(error("boom")), T0);
    let record = change.record().clone();
    let failed = after(&snapshot, &change);
    assert_eq!(explain::standing(&failed.task, Some(&record)), explain::verdict(&record));
    let (again, now) = come_back(&failed);
    let over = after(&again, &end(&again, End::Succeeded { result: None }, now));
    let said = explain::standing(&over.task, Some(&record));
    assert!(said.starts_with("run 2 succeeded; before that, run 1: boom; retry 1 of 3"), "{said}");
    let act = transition::Actor::default();
    let canceled = transition::cancel(&failed.task, Reason::Canceled, &act, T0).expect("can be canceled");
    let said = explain::standing(canceled.after(), Some(&record));
    assert!(said.starts_with("somebody canceled it; before that, run 1: boom"), "{said}");
    let retried = transition::manual_retry(&failed.task, false, &act, T0).expect("can be retried");
    let said = explain::standing(retried.after(), Some(&record));
    assert!(said.starts_with("somebody asked for another try; before that"), "{said}");
}

#[test]
fn times_widen_by_how_long_runs_took() {
    let snapshot = running(Some(native(json!({"strategy": "fixed", "delay": "1m", "max_retries": 3}))));
    let runs = RunTimes { shortest: Millis(100), longest: Millis(2_000) };
    let told = forecast(&snapshot, &error("x"), runs, T0, 10);
    let widths: Vec<u64> = told.attempts.iter().map(|coming| coming.latest.since(coming.earliest).0).collect();
    assert_eq!(widths, [0, 1_900, 3_800]);
}

#[test]
fn what_is_over_or_paused_has_no_future() {
    let snapshot = running(None);
    let done = after(&snapshot, &end(&snapshot, End::Succeeded { result: None }, T0));
    let told = forecast(&done, &error("x"), RunTimes::default(), T0, 10);
    assert_eq!((told.attempts.len(), told.then), (0, Some((State::Succeeded, Reason::Succeeded))));
    let told = forecast(&pending(None), &error("x"), RunTimes::default(), T0, 10);
    assert_eq!((told.attempts.len(), told.then), (1, Some((State::Failed, Reason::NoPolicy))));
    let many = forecast(&pending(Some(native(json!({"max_retries": 1000})))), &error("x"), RunTimes::default(), T0, 5);
    assert_eq!((many.attempts.len(), many.gives_up_at), (5, None));
}

#[test]
fn a_policy_is_explained_in_words() {
    let words = |dialect, value| explain::policy(common::policy(dialect, &value).as_ref());
    assert_eq!(words(Dialect::Workflow, json!({"maxAttempts": 5}))[0], "6 executions: 1 first try + 5 retries");
    assert_eq!(words(Dialect::Native, json!(1))[0], "1 execution: 1 first try, no retries");
    assert_eq!(words(Dialect::Native, json!(2))[0], "2 executions: 1 first try + 1 retry");
    assert_eq!(words(Dialect::Native, json!(false))[0], "1 execution: 1 first try, no retries");
    let run = words(Dialect::Run, json!(true));
    assert_eq!(run[1], "exponential x2: waits 1m, 2m, 4m, 8m, 16m, 32m, 1h; 2h 3m in all");
    let all =
        words(Dialect::Native, json!({"retry_on": ["5xx", 429], "jitter": "full", "on_lost": "count"})).join(". ");
    for part in ["retries only on 5xx, 429", "between nothing and all of it", "a lost run counts as a failure"] {
        assert!(all.contains(part), "{all}");
    }
}

#[test]
fn a_verdict_is_told_in_one_sentence() {
    let said = |policy: serde_json::Value, failure: Failure| {
        let snapshot = running(common::policy(Dialect::Native, &policy));
        explain::verdict(end(&snapshot, End::Failed(failure), T0).record())
    };
    assert_eq!(
        said(
            json!({"retry_on": ["5xx"], "max_retries": 5, "initial_delay": "1m"}),
            Failure { status: Some(503), ..error("Service Unavailable") }
        ),
        "run 1: HTTP 503 Service Unavailable; retry 1 of 5 (class retryable), retry_on[0] \"5xx\" matched, in 1m at 2027-01-15T08:01:00.000Z"
    );
    let twice = Failure { status: Some(503), ..error("503 Service Unavailable") };
    assert!(said(json!({}), twice).starts_with("run 1: HTTP 503 Service Unavailable; "));
    assert_eq!(
        said(
            json!({}),
            Failure { class: Some(Class::Final), error_type: Some("ValidationError".into()), ..error("vat_id") }
        ),
        "run 1: ValidationError vat_id; not retried because the error is final (class final)"
    );
    assert_eq!(
        said(json!({"max_retries": 0}), error("boom")),
        "run 1: boom; given up because all 0 retries are used up (class retryable)"
    );
}
