//! Every way to end has an answer to "why": by the table, by the reasons, and with the error that goes with it.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::common::*;

use comeback_core::reason::{Decision, Verdict};
use comeback_core::transition::{self, Actor, TransitionKind};
use comeback_core::*;
use serde_json::{Value, json};

/// Reasons that are no end: the task goes on, or waits for a person.
const GOES_ON: [Reason; 7] = [
    Reason::Retry,
    Reason::RateLimited,
    Reason::Snoozed,
    Reason::Released,
    Reason::LostRetry,
    Reason::Parked,
    Reason::ManualRetry,
];

const LINES: [TransitionKind; 28] = [
    TransitionKind::T1,
    TransitionKind::T2,
    TransitionKind::T3,
    TransitionKind::T4,
    TransitionKind::T5,
    TransitionKind::T6,
    TransitionKind::T7,
    TransitionKind::T8,
    TransitionKind::T9,
    TransitionKind::T10,
    TransitionKind::T11,
    TransitionKind::T12,
    TransitionKind::T13,
    TransitionKind::T14,
    TransitionKind::T15,
    TransitionKind::T16,
    TransitionKind::T17,
    TransitionKind::T18,
    TransitionKind::T19,
    TransitionKind::T20,
    TransitionKind::T22,
    TransitionKind::T23,
    TransitionKind::T24,
    TransitionKind::T25,
    TransitionKind::T26,
    TransitionKind::T27,
    TransitionKind::T28,
    TransitionKind::T29,
];

fn failed(policy: Value, failure: Failure) -> Transition {
    end(&running(Some(native(policy))), End::Failed(failure), T0)
}

fn lost(policy: Value) -> Transition {
    let snapshot = running(Some(native(policy)));
    let late = T0 + Millis::from_secs(3_600);
    let outcome = Outcome { reporter: Reporter::Server, end: End::Lost(Trigger::LeaseExpired) };
    comeback_core::decide::decide(&snapshot, &outcome, late).expect("it is lost")
}

/// One way to end for each reason, and for each line of the table that leads to an end.
fn ways() -> Vec<Transition> {
    let waiting = Task { state: State::Waiting, needs_left: 1, ..pending(None).task };
    let mut with_deadline = pending(None).task;
    with_deadline.expires_at = Some(T0 + Millis::from_secs(10));
    let late = T0 + Millis::from_secs(20);
    let act = Actor::default();
    let cancel = |reason| transition::cancel(&pending(None).task, reason, &act, T0).expect("canceled");
    let once = |policy: Value, failure: Failure| {
        let snapshot = running(Some(native(policy)));
        let retried = after(&snapshot, &end(&snapshot, End::Failed(failure), T0));
        come_back(&retried)
    };
    let mut reclassified = running(Some(native(json!({}))));
    let group = fingerprint::fingerprint(&reclassified.task.lane.kind, &error("x"));
    reclassified.guard.reclassified = Some(Arc::new([(group, Class::Final)].into_iter().collect()));
    let (second, now) = once(
        json!({"max_retries": 9, "rules": [{"match": {"status": "503"}, "then": "retry", "max": 1}]}),
        status(503),
    );
    let by_rule = end(&second, End::Failed(status(503)), now);
    let waits = failed(json!({"strategy": "fixed", "delay": "1h"}), error("x"));
    let retrying = Task { expires_at: Some(T0 + Millis::from_secs(10)), ..waits.after().clone() };
    let throttled = Failure { retry_after: Some(RetryAfter::Span(Millis(1))), ..status(429) };
    let dead = failed(json!({"max_retries": 0}), error("x"));
    let again = transition::manual_retry(dead.after(), false, &act, T0).expect("retried");
    let undo = |was: &Transition| {
        let again = transition::manual_retry(was.after(), false, &act, T0).expect("retried");
        transition::undo_retry(again.after(), &operation::UndoSnapshot::of(was.after()), &act, T0).expect("put back")
    };
    let refused = end(&running(None), End::Failed(error("x")), T0);
    vec![
        end(&running(None), End::Succeeded { result: None }, T0),
        transition::skip(&waiting, T0).expect("skipped"),
        transition::skip_by_condition(&waiting, T0).expect("skipped"),
        transition::fail_at_gate(&waiting, "`steps.a.result.nope` is not there", T0).expect("failed"),
        transition::fail_upstream(&waiting, error("task one, which it needs, is failed"), T0).expect("failed"),
        transition::expire(&with_deadline, false, late).expect("expired"),
        transition::expire(&retrying, false, late).expect("expired"),
        cancel(Reason::Canceled),
        cancel(Reason::DeadEnd),
        cancel(Reason::ExecutionCanceled),
        cancel(Reason::FailFast),
        failed(json!({}), class(Class::Final)),
        failed(json!({}), Failure::of_rounds("1 of 3 rounds failed: load[1]")),
        failed(json!({"stop_when": "true"}), error("x")),
        failed(json!({"ignore": ["Io"]}), Failure { error_type: Some("Io".into()), ..error("x") }),
        failed(json!({"retry_on": ["503"]}), error("x")),
        failed(json!({"retry_when": "false"}), error("x")),
        failed(json!({"rules": [{"match": {"status": "503"}, "then": "final"}]}), status(503)),
        end(&reclassified, End::Failed(error("x")), T0),
        by_rule,
        failed(json!({"strategy": "fixed", "delay": "1h", "max_elapsed": "1m"}), error("x")),
        failed(json!({"max_throttles": 0}), throttled),
        end(&running(Some(native(json!({"max_snoozes": 0})))), End::Snoozed { delay: Millis(1) }, T0),
        lost(json!({"on_lost": "fail"})),
        lost(json!({"max_lost": 0})),
        undo(&dead),
        undo(&refused),
        again,
        refused,
        dead,
    ]
    .into_iter()
    .filter(|change| change.is_end() || change.line() == TransitionKind::T29)
    .collect()
}

#[test]
fn every_way_to_end_says_why() {
    let (mut reasons, mut lines) = (BTreeSet::new(), BTreeSet::new());
    for change in ways() {
        let (task, record) = (change.after(), change.record());
        let reason = task.reason.unwrap_or_else(|| panic!("{:?} gives no reason", change.line()));
        reasons.insert(reason);
        lines.insert((format!("{:?}", change.line()), task.state));
        let last = record.decision.is_some().then_some(record);
        let why = explain::standing(task, last);
        assert!(!why.contains("nothing was decided") && !why.contains("it was not to be"), "{reason}: {why}");
        if matches!(task.state, State::Failed | State::Dead) && change.line() != TransitionKind::T29 {
            assert_eq!(record.decision.as_ref().map(|it| it.reason), Some(reason), "{:?}", change.line());
            assert!(record.failure.is_some() || task.class.is_some(), "{reason} says nothing of what was wrong");
        }
    }
    let ends: BTreeSet<Reason> = Reason::ALL.iter().copied().filter(|reason| !GOES_ON.contains(reason)).collect();
    assert_eq!(reasons, ends, "each reason that ends a task is among the ways");
    let mut possible = BTreeSet::new();
    for line in LINES.into_iter().filter(|line| *line != TransitionKind::T28) {
        for to in State::ALL.iter().copied().filter(|state| state.is_terminal()) {
            if State::ALL.iter().any(|from| line.allows(*from, to)) {
                possible.insert((format!("{line:?}"), to));
            }
        }
    }
    assert_eq!(lines, possible, "each line that leads to an end is among the ways");
}

/// What was stored before verdicts without a run were kept has an answer too.
#[test]
fn an_end_without_its_verdict_says_why_as_well() {
    for change in ways() {
        let task = change.after();
        let why = explain::standing(task, None);
        assert!(!why.contains("nothing was decided") && !why.contains("it was not to be"), "{:?}: {why}", task.reason);
    }
}

#[test]
fn the_words_for_ends_without_a_run_say_what_was_wrong() {
    let said = |reason: Reason, state: State| {
        let ways = ways();
        let is_it = |change: &&Transition| {
            change.after().reason == Some(reason)
                && change.after().state == state
                && change.line() != TransitionKind::T29
        };
        let change = ways.iter().find(is_it).expect("is among the ways");
        explain::standing(change.after(), Some(change.record()))
    };
    let why = said(Reason::Expression, State::Failed);
    assert!(why.contains("`steps.a.result.nope` is not there"), "{why}");
    let why = said(Reason::UpstreamFailed, State::Failed);
    assert!(why.contains("task one, which it needs, is failed"), "{why}");
    let why = said(Reason::Expired, State::Dead);
    assert!(why.contains("passed before it was started") && why.contains("its deadline has passed"), "{why}");
    let why = said(Reason::Attempts, State::Dead);
    assert!(why.contains("rules[0] allows 1 retry and no more") && !why.contains("9 retries"), "{why}");
}

/// T15: the error of the last run stays the last error; the verdict is that of the deadline.
#[test]
fn a_deadline_that_passes_before_a_retry_keeps_the_error_of_the_last_run() {
    let waits = failed(json!({"strategy": "fixed", "delay": "1h"}), error("boom"));
    let task = Task { expires_at: Some(T0 + Millis::from_secs(10)), ..waits.after().clone() };
    let change = transition::expire(&task, false, T0 + Millis::from_secs(20)).expect("expired");
    assert_eq!(change.record().failure, None);
    let why = explain::standing(change.after(), Some(change.record()));
    assert_eq!(why, "it waited; given up because its deadline has passed");
}

/// M3: `retryable` is what the policy said, not only what the class is.
#[test]
fn what_the_policy_refused_may_not_be_retried() {
    let refused = |policy, failure| failed(policy, failure).after().may_be_retried();
    assert!(!refused(json!({"ignore": ["Io"]}), Failure { error_type: Some("Io".into()), ..error("x") }));
    assert!(!refused(json!({"retry_on": ["503"]}), error("x")));
    assert!(!refused(json!({"stop_when": "true"}), error("x")));
    assert!(!refused(json!({"retry_when": "false"}), error("x")));
    assert!(!refused(json!({"rules": [{"match": {"status": "503"}, "then": "final"}]}), status(503)));
    assert!(!refused(json!({}), class(Class::Final)));
    assert!(refused(json!({}), error("x")), "it waits for its retry");
    assert!(
        refused(json!({"max_retries": 0}), error("x")),
        "there were no retries left, and the error is as good as any"
    );
    assert!(end(&running(None), End::Failed(error("x")), T0).after().may_be_retried(), "no policy has said anything");
    assert!(pending(None).task.may_be_retried());
}

/// What is stored was written before there were maxima of rules in verdicts.
#[test]
fn verdicts_from_before_are_read() {
    let old = Decision::without_policy(Verdict::Exhaust, Reason::Attempts, Counters::default(), T0);
    let text = serde_json::to_string(&old).expect("written");
    assert!(!text.contains("rule_max"), "{text}");
    assert_eq!(serde_json::from_str::<Decision>(&text).expect("read"), old);
}
