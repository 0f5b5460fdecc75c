//! The decision, step by step (model §3.2): each row is a policy, a failure, and the verdict with its reason.

use comeback_core::guard::GuardView;
use comeback_core::*;
use comeback_core::{decide, explain, transition};
use serde_json::{Value, json};

use crate::common::{self, *};

struct Expect {
    state: State,
    reason: Reason,
    matched: Option<&'static str>,
}

fn check(policy: Value, failure: Failure, expect: Expect) {
    let snapshot = running(common::policy(Dialect::Native, &policy));
    let change = end(&snapshot, End::Failed(failure.clone()), T0);
    let decision = change.record().decision.clone().expect("a bad end is decided");
    let context = format!("{policy} on {failure:?}: {decision:?}");
    assert_eq!(change.after().state, expect.state, "{context}");
    assert_eq!(decision.reason, expect.reason, "{context}");
    assert_eq!(decision.matched.as_deref(), expect.matched, "{context}");
    assert_eq!(change.record().failure.as_ref(), Some(&failure), "the error is kept (I-20)");
    assert!(!explain::verdict(change.record()).is_empty());
}

const fn retried(matched: Option<&'static str>) -> Expect {
    Expect { state: State::RetryPending, reason: Reason::Retry, matched }
}

const fn refused(reason: Reason, matched: Option<&'static str>) -> Expect {
    Expect { state: State::Failed, reason, matched }
}

const fn exhausted(reason: Reason) -> Expect {
    Expect { state: State::Dead, reason, matched: None }
}

#[test]
fn without_a_policy_a_failure_is_the_end() {
    check(json!(null), error("x"), refused(Reason::NoPolicy, None)); // S1-2, S1-18, X4-6
    check(json!({"enabled": false}), error("x"), refused(Reason::NoPolicy, None)); // S0-39
}

#[test]
fn the_class_decides_first() {
    check(json!({}), class(Class::Final), refused(Reason::Final, None)); // S3-6
    check(json!({}), class(Class::Retryable), retried(None)); // S3-7
    check(json!({}), class(Class::RateLimited), retried(None)); // S3-24
    check(json!({}), status(404), refused(Reason::Final, None)); // D-11
    check(json!({}), status(503), retried(None));
    check(json!({"default_class": "final"}), error("?"), refused(Reason::Final, None)); // X2-15
    check(json!({"override_final": true}), class(Class::Final), retried(None)); // D-10
    check(json!({}), Failure::new(Trigger::Timeout, "slow"), retried(None)); // D-12
}

#[test]
fn specific_beats_general() {
    let workflow = json!({"retryOn": ["5xx", "408", "429"], "ignoreExceptions": ["4xx"]});
    check(workflow.clone(), status(500), retried(Some("retry_on[0] \"5xx\""))); // S0-65
    check(workflow.clone(), status(408), retried(Some("retry_on[1] \"408\""))); // X0-11
    check(workflow.clone(), status(429), retried(Some("retry_on[2] \"429\"")));
    check(workflow, status(422), refused(Reason::Final, None)); // S0-66
    check(json!({"ignore": ["5xx"]}), status(500), refused(Reason::Ignored, Some("ignore[0] \"5xx\"")));
    check(
        json!({"retry_on": ["5xx"], "ignore": ["503"]}),
        status(503),
        refused(Reason::Ignored, Some("ignore[0] \"503\"")),
    );
    check(json!({"retry_on": ["503"], "ignore": ["5xx"]}), status(503), retried(Some("retry_on[0] \"503\"")));
    check(
        json!({"retry_on": ["5xx"], "ignore": ["5xx"]}),
        status(503),
        refused(Reason::Ignored, Some("ignore[0] \"5xx\"")),
    );
    check(json!({"retry_on": ["404"]}), status(404), retried(Some("retry_on[0] \"404\"")));
    check(
        json!({"retry_on": ["404"]}),
        Failure { status: Some(404), ..class(Class::Final) },
        refused(Reason::Final, None),
    );
    check(json!({"retry_on": ["timeout"]}), error("x"), refused(Reason::NotListed, None)); // S1-20
    check(
        json!({"retry_on": ["timeout"]}),
        Failure::new(Trigger::Timeout, ""),
        retried(Some("retry_on[0] \"timeout\"")),
    );
    check(
        json!({"retry_on": ["rate_limited"]}),
        class(Class::RateLimited),
        retried(Some("retry_on[0] \"rate_limited\"")),
    );
    let named = Failure { error_type: Some("java.net.SocketTimeoutException".into()), ..error("") };
    check(
        json!({"ignore": ["java.net.SocketTimeoutException"]}),
        named,
        refused(Reason::Ignored, Some("ignore[0] \"java.net.SocketTimeoutException\"")),
    );
}

/// X0-11: whatever the policy lists by itself, a name or a trigger, is closer than the built-in map of statuses.
#[test]
fn a_listed_name_beats_the_built_in_map() {
    let refused_start = Failure { trigger: Trigger::StartFailed, ..status(404) };
    let matched = Some("retry_on[0] \"start_failed\"");
    check(json!({"retry_on": ["webhook_failure"]}), refused_start.clone(), retried(matched)); // S1-26
    check(json!({}), refused_start.clone(), refused(Reason::Final, None));
    check(json!({"retry_on": ["timeout"]}), refused_start.clone(), refused(Reason::Final, None));
    check(json!({"retry_on": ["final"]}), status(404), refused(Reason::Final, None));
    let stated = Failure { class: Some(Class::Final), ..refused_start };
    check(json!({"retry_on": ["webhook_failure"]}), stated, refused(Reason::Final, None)); // D-10
    let named = Failure { error_type: Some("IoError".into()), ..status(404) };
    check(json!({"retry_on": ["IoError"]}), named.clone(), retried(Some("retry_on[0] \"IoError\"")));
    check(
        json!({"retry_on": ["IoError"], "ignore": ["4xx"]}),
        named,
        refused(Reason::Ignored, Some("ignore[0] \"4xx\"")),
    );
}

/// D-10: with `override_final` the failure is retried as what it then is; a list may call it by either name.
#[test]
fn an_overridden_class_is_on_the_list_under_both_names() {
    for name in ["retryable", "final"] {
        let policy = json!({"override_final": true, "retry_on": [name]});
        let change = end(&running(Some(native(policy))), End::Failed(class(Class::Final)), T0);
        assert_eq!(change.after().state, State::RetryPending, "{name}");
    }
    let policy = json!({"override_final": true, "retry_on": ["timeout"]});
    check(policy, class(Class::Final), refused(Reason::NotListed, None));
    let policy = json!({"override_final": true, "ignore": ["retryable"]});
    check(policy, class(Class::Final), refused(Reason::Ignored, Some("ignore[0] \"retryable\"")));
}

/// A11, I-13, X1-12: a server's limit that was tightened later stands over the policy, and the reason says so.
#[test]
fn a_tightened_server_limit_clamps_and_says_so() {
    let with = |policy: Value, limits| Snapshot { limits, ..running(Some(native(policy))) };
    let decided = |snapshot: &Snapshot, now| {
        let change = end(snapshot, End::Failed(error("x")), now);
        let decision = change.record().decision.clone().expect("decided");
        (change, decision)
    };
    let few = PolicyLimits { max_retries: 1, ..PolicyLimits::default() };
    let snapshot = with(json!({"max_retries": 5}), few);
    let (first, decision) = decided(&snapshot, T0);
    assert_eq!((decision.max_retries, decision.notes), (Some(1), Vec::new()));
    let (second, now) = come_back(&after(&snapshot, &first));
    let (change, decision) = decided(&second, now);
    assert_eq!((change.after().state, change.after().reason), (State::Dead, Some(Reason::Attempts)));
    assert_eq!(decision.notes, ["the server's limit of 1 stands over the policy's 5 retries"]);
    let short = PolicyLimits { max_delay: Millis::from_secs(3), ..PolicyLimits::default() };
    let (change, decision) = decided(&with(json!({}), short), T0);
    assert_eq!(change.after().next_retry_at, Some(T0 + Millis::from_secs(3)));
    assert_eq!(decision.notes, ["the server allows delays of 3s at most"]);
    let own = json!({"max_delay": "2s"});
    assert_eq!(decided(&with(own, short), T0).1.notes, Vec::<String>::new(), "the policy's own cap is shorter");
}

/// X1-5: what a hook counted adds up over its attempts, unless the policy has each begin at nothing.
#[test]
fn counters_survive_a_retry_unless_the_policy_resets_them() {
    for (policy, success, failures) in [(json!({}), 2, 1), (json!({"reset_counters_on_retry": true}), 0, 0)] {
        let mut snapshot = running(Some(native(policy.clone())));
        snapshot.task.tally = task::Tally { expected: Some(9), success: 2, failures: 1 };
        let change = end(&snapshot, End::Failed(error("x")), T0);
        assert_eq!(change.after().tally, task::Tally { expected: Some(9), success, failures }, "{policy}");
        let over = end(&snapshot, End::Failed(class(Class::Final)), T0);
        assert_eq!(over.after().tally.success, 2, "{policy}: an end keeps what was counted");
        let told = json!({"counted": {"expected": 9, "success": 2, "failures": 1}});
        assert_eq!(change.record().data, Some(told), "{policy}: an attempt tells what was counted");
    }
}

/// S2-62 to S2-67, S2-18: the dialect `job` sorts by the kind of the exception, with no class stated.
#[test]
fn the_job_preset_knows_what_is_not_worth_a_retry() {
    let decided = |kind: &str| {
        let failure = Failure { error_type: Some(kind.into()), ..error("") };
        let change = end(&running(Some(native(json!({"preset": "job"})))), End::Failed(failure), T0);
        change.record().decision.as_ref().map(|decision| decision.reason)
    };
    for kind in ["java.net.SocketTimeoutException", "java.net.ConnectException", "java.io.IOException", "Unheard"] {
        assert_eq!(decided(kind), Some(Reason::Retry), "{kind}");
    }
    for kind in [
        "java.lang.IllegalArgumentException",
        "IllegalArgumentException",
        "java.lang.SecurityException",
        "java.lang.IllegalStateException",
        "InsufficientCreditsException",
    ] {
        assert_eq!(decided(kind), Some(Reason::Ignored), "{kind}");
    }
    let coded = Failure { code: Some("INSUFFICIENT_CREDITS".into()), ..error("") };
    let change = end(&running(Some(native(json!({"preset": "job"})))), End::Failed(coded), T0);
    assert_eq!(change.after().reason, Some(Reason::Ignored));
}

#[test]
fn expressions_allow_and_stop() {
    check(json!({"retry_when": "status >= 500"}), status(503), retried(Some("retry_when"))); // S4-10
    check(json!({"retry_when": "status == 503"}), status(502), refused(Reason::RetryWhen, None));
    check(json!({"stop_when": "'gone' in error"}), error("it is gone"), refused(Reason::StopWhen, Some("stop_when"))); // X4-3
    check(json!({"stop_when": "'gone' in error"}), error("busy"), retried(None));
    check(json!({"stop_when": "true", "retry_when": "true"}), error("x"), refused(Reason::StopWhen, Some("stop_when")));
    check(json!({"retry_when": "attempt > 1"}), error("x"), refused(Reason::RetryWhen, None));
}

/// An expression that fails is told, and closed unless the policy is open about it.
#[test]
fn a_failing_expression_is_recorded_and_fails_closed() {
    for (policy, state) in [
        (json!({"retry_when": "result.x.y == 1"}), State::Failed),
        (json!({"stop_when": "result.x.y == 1"}), State::Failed),
        (json!({"retry_when": "result.x.y == 1", "on_expression_error": "open"}), State::RetryPending),
        (json!({"stop_when": "result.x.y == 1", "on_expression_error": "open"}), State::RetryPending),
    ] {
        let change = end(&running(Some(native(policy.clone()))), End::Failed(error("x")), T0);
        let decision = change.record().decision.clone().expect("decided");
        assert_eq!(change.after().state, state, "{policy}");
        assert!(decision.notes.iter().any(|note| note.contains("could not be evaluated")), "{decision:?}");
    }
}

#[test]
fn rules_go_first_and_the_first_match_wins() {
    let policy = json!({"max_retries": 9, "retry_when": "false", "rules": [
        {"match": {"status": 503}, "then": "retry", "delay": "30s", "max": 2},
        {"match": {"class": "final"}, "then": "retry"},
        {"match": {"message": "quota"}, "then": "snooze", "delay": "1h"},
        {"match": {"type": "Poison"}, "then": "park"},
        {"match": {"code": "E7", "when": "attempt >= 1"}, "then": "final"},
    ]});
    check(
        policy.clone(),
        status(503),
        Expect { state: State::RetryPending, reason: Reason::Retry, matched: Some("rules[0]") },
    );
    check(
        policy.clone(),
        class(Class::Final),
        Expect { state: State::RetryPending, reason: Reason::Retry, matched: Some("rules[1]") },
    );
    check(
        policy.clone(),
        error("over quota"),
        Expect { state: State::RetryPending, reason: Reason::Rule, matched: Some("rules[2]") },
    );
    let poison = Failure { error_type: Some("Poison".into()), ..error("") };
    check(policy.clone(), poison, Expect { state: State::Paused, reason: Reason::Parked, matched: Some("rules[3]") });
    let coded = Failure { code: Some("E7".into()), ..error("") };
    check(policy.clone(), coded, Expect { state: State::Failed, reason: Reason::Rule, matched: Some("rules[4]") });
    check(policy.clone(), error("anything else"), refused(Reason::RetryWhen, None));

    // A rate-limited repeat costs no attempt, but it is the rule's all the same.
    let limited = Failure { retry_after: Some(RetryAfter::Span(Millis::from_secs(1))), ..status(503) };
    let mut snapshot = running(Some(native(policy.clone())));
    let mut now = T0;
    for used in 1..=2 {
        let change = end(&snapshot, End::Failed(limited.clone()), now);
        assert_eq!((change.after().counters.throttled, &*change.after().rule_counts), (used, &[used][..]));
        (snapshot, now) = come_back(&after(&snapshot, &change));
    }
    let last = end(&snapshot, End::Failed(limited), now);
    assert_eq!((last.after().state, last.after().reason), (State::Dead, Some(Reason::Attempts)));

    // Each rule counts for itself, and its own limit ends the task.
    let mut snapshot = running(Some(native(policy)));
    let mut now = T0;
    for expected in [30, 30] {
        let change = end(&snapshot, End::Failed(status(503)), now);
        assert_eq!(change.after().next_retry_at, Some(now + Millis::from_secs(expected)));
        (snapshot, now) = come_back(&after(&snapshot, &change));
    }
    let last = end(&snapshot, End::Failed(status(503)), now);
    assert_eq!((last.after().state, last.after().reason), (State::Dead, Some(Reason::Attempts)));
    assert_eq!(last.after().counters.attempt, 2);
}

/// What a person said of errors that look the same stands above what the policy thinks of them, and of those only.
#[test]
fn what_a_person_said_of_an_error_goes_before_the_policy() {
    let policy = json!({"max_retries": 1, "ignore": ["404"], "rules": [{"match": {"status": 500}, "then": "retry"}]});
    let decided = |class: Class, failure: Failure| {
        let mut snapshot = running(Some(native(policy.clone())));
        let group = comeback_core::fingerprint::fingerprint(&snapshot.task.lane.kind, &failure);
        snapshot.guard.reclassified = Some(std::sync::Arc::new([(group, class)].into()));
        let other = end(&snapshot, End::Failed(error("something else")), T0);
        assert_eq!(other.after().reason, None, "others are not concerned: {:?}", other.record().decision);
        let change = end(&snapshot, End::Failed(failure), T0);
        let matched = change.record().decision.as_ref().and_then(|decision| decision.matched.clone());
        assert_eq!(matched, Some(format!("errors[{}]", comeback_core::filter::fingerprint_to_hex(group))));
        change
    };
    let final_now = decided(Class::Final, status(500));
    assert_eq!((final_now.after().state, final_now.after().reason), (State::Failed, Some(Reason::Reclassified)));
    assert_eq!(final_now.after().class, Some(Class::Final));
    let retried = decided(Class::Retryable, status(404));
    assert_eq!((retried.after().state, retried.after().counters.attempt), (State::RetryPending, 1));
    let limited = Failure { retry_after: Some(RetryAfter::Span(Millis::from_secs(9))), ..status(404) };
    let waits = decided(Class::RateLimited, limited);
    assert_eq!((waits.after().counters.throttled, waits.after().counters.attempt), (1, 0));
}

#[test]
fn retry_after_is_honoured_uncounted_and_bounded() {
    let limited =
        |secs| Failure { retry_after: Some(RetryAfter::Span(Millis::from_secs(secs))), ..class(Class::RateLimited) };
    // Longer than any backoff cap (X3-2), clamped only by max_retry_after.
    let snapshot = running(Some(native(json!({"max_delay": "1m"}))));
    let change = end(&snapshot, End::Failed(limited(600)), T0);
    assert_eq!(change.after().next_retry_at, Some(T0 + Millis::from_secs(600)));
    assert_eq!(change.after().counters, Counters { throttled: 1, ..Counters::default() });
    let change = end(&snapshot, End::Failed(limited(999_999)), T0);
    assert_eq!(change.after().next_retry_at, Some(T0 + Millis::from_days(1)));
    assert!(change.record().decision.as_ref().is_some_and(|it| it.notes[0].contains("clamped")));
    // As a date; 429 and 503 with the header are rate limited by themselves.
    let dated =
        Failure { status: Some(503), retry_after: Some(RetryAfter::At(T0 + Millis::from_secs(90))), ..error("") };
    assert_eq!(end(&snapshot, End::Failed(dated), T0).after().next_retry_at, Some(T0 + Millis::from_secs(90)));
    // A plain failure that names a time is never tried earlier (A4), but it counts.
    let retryable = Failure { class: Some(Class::Retryable), ..limited(60) };
    let change = end(&snapshot, End::Failed(retryable), T0);
    assert_eq!(change.after().next_retry_at, Some(T0 + Millis::from_secs(60)));
    assert_eq!(change.after().counters.attempt, 1);
    let retryable = Failure { class: Some(Class::Retryable), ..limited(999_999) };
    let decision = end(&snapshot, End::Failed(retryable), T0).record().decision.clone().expect("decided");
    assert_eq!(decision.notes.len(), 1, "told once: {:?}", decision.notes);
    // Not respected: as if it had not been said.
    let deaf = running(Some(native(json!({"respect_retry_after": false}))));
    let change = end(&deaf, End::Failed(limited(600)), T0);
    assert_eq!((change.after().next_retry_at, change.after().counters.attempt), (Some(T0 + Millis::from_secs(5)), 1));
    // Throttled for ever is not for ever (X3-1).
    let mut snapshot = running(Some(native(json!({"max_throttles": 2}))));
    let mut now = T0;
    for _ in 0..2 {
        let change = end(&snapshot, End::Failed(limited(1)), now);
        (snapshot, now) = come_back(&after(&snapshot, &change));
    }
    let change = end(&snapshot, End::Failed(limited(1)), now);
    assert_eq!((change.after().state, change.after().reason), (State::Dead, Some(Reason::ThrottledOut)));
}

#[test]
fn losses_have_their_own_counter_and_limit() {
    let lose = |snapshot: &Snapshot, now| {
        let outcome = Outcome { reporter: Reporter::Server, end: End::Lost(Trigger::LeaseExpired) };
        decide::decide(snapshot, &outcome, now).expect("the server may speak")
    };
    // A2: the default with a policy repeats, uncounted, three times; the fourth is a poison pill.
    let mut snapshot = running(Some(native(json!({}))));
    let lease = Millis::from_secs(60);
    let mut now = T0 + lease;
    for n in 0..3_u64 {
        let change = lose(&snapshot, now);
        assert_eq!(change.after().counters, Counters { lost: n as u32 + 1, ..Counters::default() });
        assert_eq!(change.after().next_retry_at, Some(now + Millis::from_secs(5 << n)));
        let (again, leased_at) = come_back(&after(&snapshot, &change));
        (snapshot, now) = (again, leased_at + lease);
    }
    let change = lose(&snapshot, now);
    assert_eq!((change.after().state, change.after().reason), (State::Dead, Some(Reason::Lost)));
    assert_eq!(change.record().events.last(), Some(&EventKind::TaskFailed));

    let first = |policy: Value| lose(&running(common::policy(Dialect::Native, &policy)), T0 + lease);
    assert_eq!(first(json!(null)).after().state, State::Failed);
    assert_eq!(first(json!({"on_lost": "fail"})).after().reason, Some(Reason::OnLostFail));
    let counted = first(json!({"on_lost": "count"}));
    assert_eq!((counted.after().counters.attempt, counted.after().state), (1, State::RetryPending));
    let parked = first(json!({"on_lost": "park"}));
    assert_eq!((parked.after().state, parked.after().parked), (State::Paused, true));
    assert_eq!(first(json!({"on_lost": "count", "max_retries": 0})).after().reason, Some(Reason::Attempts));
}

/// X1-10, I-15: a claim that was never sent costs nothing; after that it may have had effects.
#[test]
fn a_claim_that_was_never_sent_is_simply_given_back() {
    let mut hook = pending(Some(native(json!({}))));
    hook.task.lane = std::sync::Arc::new(Lane { executor: Executor::Hook, ..(*hook.task.lane).clone() });
    let claimed = lease(&hook, T0);
    assert_eq!((claimed.task.state, claimed.task.run), (State::Claimed, 0));
    let lost = Outcome { reporter: Reporter::Server, end: End::Lost(Trigger::LeaseExpired) };
    let late = T0 + Millis::from_secs(60);
    let change = decide::decide(&claimed, &lost, late).expect("given back");
    assert_eq!((change.after().state, change.after().counters), (State::Pending, Counters::default()));
    let sent = Snapshot { task: transition::hook_sending(&claimed.task, T0).expect("claimed"), ..claimed.clone() };
    let change = decide::decide(&sent, &lost, late).expect("lost");
    assert_eq!((change.after().state, change.after().counters.lost), (State::RetryPending, 1));
    // F1-10: the callee may answer before the start call returned.
    let early = Outcome { reporter: Reporter::Run(1), end: End::Succeeded { result: None } };
    let change = decide::decide(&sent, &early, T0).expect("accepted");
    assert_eq!((change.after().state, change.after().run), (State::Succeeded, 1));
}

#[test]
fn the_deadline_wins_and_a_last_try_comes_just_before() {
    let with = |policy: Value, expires: Option<u64>| {
        let mut snapshot = running(Some(native(policy)));
        snapshot.task.expires_at = expires.map(|secs| T0 + Millis::from_secs(secs));
        snapshot
    };
    let fail = |snapshot: &Snapshot, at| end(snapshot, End::Failed(error("x")), at);
    assert_eq!(fail(&with(json!({}), Some(4)), T0).after().reason, Some(Reason::Expired)); // X0-8
    assert_eq!(fail(&with(json!({}), Some(6)), T0).after().state, State::RetryPending);
    assert_eq!(fail(&with(json!({"max_elapsed": "4s"}), None), T0).after().reason, Some(Reason::Expired));
    let expiry = (T0 + Millis::from_secs(4)).to_rfc3339();
    assert_eq!(fail(&with(json!({"expires_at": expiry}), None), T0).after().reason, Some(Reason::Expired));
    let last = with(json!({"last_try": true}), Some(4));
    let change = fail(&last, T0);
    assert_eq!(change.after().next_retry_at, Some(T0 + Millis::from_secs(3)));
    let (again, now) = come_back(&after(&last, &change));
    assert_eq!(fail(&again, now).after().reason, Some(Reason::Expired), "one last try, not a last second of them");
    // max_elapsed counts from the first failure, not from the last.
    let mut patient = with(json!({"max_elapsed": "30s", "max_retries": 9}), None);
    let mut now = T0;
    let mut runs = 1;
    loop {
        let change = fail(&patient, now);
        if change.is_end() {
            assert_eq!(change.after().reason, Some(Reason::Expired));
            break;
        }
        (patient, now) = come_back(&after(&patient, &change));
        runs += 1;
    }
    assert_eq!(runs, 3, "5 s and 10 s fit into 30 s, 20 s more do not");
}

/// A4, X3-2, X2-16: not even the last try comes before it is wanted or when it is closed.
#[test]
fn a_last_try_keeps_away_as_asked_and_out_of_closed_windows() {
    // T0 is 2027-01-15T08:00:00Z; the deadline is 10:00.
    let hours = |n: u64| Millis::from_secs(n * 3_600);
    let next = |policy: Value, after: Option<Millis>, now| {
        let mut snapshot = running(Some(native(policy)));
        snapshot.task.lease.as_mut().expect("leased").expires_at = None;
        snapshot.task.expires_at = Some(T0 + hours(2));
        let failure = Failure { retry_after: after.map(RetryAfter::Span), ..class(Class::RateLimited) };
        let change = end(&snapshot, End::Failed(failure), now);
        assert_eq!(change.after().next_retry_at.is_none(), change.after().reason == Some(Reason::Expired));
        change.after().next_retry_at
    };
    let slow = |extra: Value| {
        let mut policy = json!({"last_try": true, "strategy": "fixed", "delay": "1d"});
        policy.as_object_mut().expect("an object").extend(extra.as_object().expect("an object").clone());
        policy
    };
    let second = Millis::from_secs(1);
    assert_eq!(next(slow(json!({})), None, T0), Some(T0 + hours(2) - second));
    assert_eq!(next(slow(json!({})), Some(hours(3)), T0), None, "wanted back after the deadline");
    assert_eq!(next(slow(json!({})), Some(hours(1)), T0), Some(T0 + hours(1)), "wanted back in time");
    let closed = slow(json!({"windows": [{"from": "09:00", "to": "12:00"}]}));
    let before = T0 + hours(1) - Millis(1);
    assert_eq!(next(closed.clone(), None, T0), Some(before), "the last instant that is open");
    assert_eq!(next(closed.clone(), None, before), None, "that was the last try");
    let shut = slow(json!({"windows": [{"from": "07:00", "to": "12:00"}]}));
    assert_eq!(next(shut, None, T0), None, "closed until after the deadline");
}

#[test]
fn windows_move_the_time_and_guards_hold_beside_it() {
    // T0 is 2027-01-15T08:00:00Z, a Friday.
    let closed = json!({"windows": [{"from": "08:00", "to": "17:00"}]});
    let snapshot = running(Some(native(closed)));
    let change = end(&snapshot, End::Failed(error("x")), T0);
    let decision = change.record().decision.clone().expect("decided");
    assert_eq!(change.after().next_retry_at, Some(T0 + Millis::from_secs(9 * 3_600)));
    assert_eq!(decision.delay.expect("a delay").window_ms, (9 * 3_600 - 5) * 1_000);
    assert_eq!(change.after().counters.attempt, 1, "X2-16");

    let mut held = running(Some(native(json!({}))));
    let until = T0 + Millis::from_secs(120);
    held.guard = GuardView { holds: vec![Hold { until, reason: "gate psp".into() }], ..GuardView::default() };
    let change = end(&held, End::Failed(error("x")), T0);
    assert_eq!(change.after().next_retry_at, Some(T0 + Millis::from_secs(5)), "its own time is kept (A5)");
    assert_eq!(change.after().due(), Some(until));
    held.task.expires_at = Some(T0 + Millis::from_secs(60));
    let change = end(&held, End::Failed(error("x")), T0);
    assert_eq!(change.after().due(), Some(T0 + Millis::from_secs(60)), "a hold is clamped to the deadline");
}

#[test]
fn exhaustion_is_dead_or_parked_and_refusal_comes_before_it() {
    check(json!({"max_retries": 0}), error("x"), exhausted(Reason::Attempts));
    check(json!({"max_retries": 0}), class(Class::Final), refused(Reason::Final, None)); // X4-2, X4-7
    let parked =
        end(&running(Some(native(json!({"max_retries": 0, "on_exhausted": "park"})))), End::Failed(error("x")), T0);
    assert_eq!((parked.after().state, parked.after().parked), (State::Paused, true));
    let resumed = transition::resume(parked.after(), &transition::Actor::default(), T0).expect("resumes");
    assert_eq!((resumed.after().state, resumed.after().cycle), (State::Pending, 1));
    assert_eq!(resumed.after().counters, Counters::default());
}

#[test]
fn snooze_and_release_cost_no_attempt() {
    let snapshot = running(Some(native(json!({"max_snoozes": 1}))));
    let change = end(&snapshot, End::Snoozed { delay: Millis::from_secs(90) }, T0);
    assert_eq!(change.after().next_retry_at, Some(T0 + Millis::from_secs(90)));
    assert_eq!(change.after().counters, Counters { snoozed: 1, ..Counters::default() });
    let (again, now) = come_back(&after(&snapshot, &change));
    let over = end(&again, End::Snoozed { delay: Millis::ZERO }, now);
    assert_eq!((over.after().state, over.after().reason), (State::Dead, Some(Reason::SnoozedOut)));
    let decision = over.record().decision.as_ref().expect("decided");
    assert_eq!((decision.class, decision.trigger), (None, None), "nothing failed");
    let released = end(&snapshot, End::Released, T0);
    assert_eq!((released.after().state, released.after().counters), (State::Pending, Counters::default()));
    let no_policy = end(&running(None), End::Snoozed { delay: Millis::from_secs(1) }, T0);
    assert_eq!(no_policy.after().state, State::RetryPending);
}

#[test]
fn only_the_live_lease_may_speak() {
    let snapshot = running(Some(native(json!({}))));
    let say = |reporter, now| {
        decide::decide(&snapshot, &Outcome { reporter, end: End::Succeeded { result: None } }, now)
            .map(|it| it.after().state)
    };
    let lost = Err(Rejection::LeaseLost);
    assert_eq!(say(Reporter::Lease(1), T0), Ok(State::Succeeded));
    assert_eq!(say(Reporter::Lease(0), T0), lost);
    assert_eq!(say(Reporter::Lease(2), T0), lost);
    assert_eq!(say(Reporter::Lease(1), T0 + Millis::from_secs(60)), lost, "an expired lease says nothing (R-I5)");
    assert_eq!(say(Reporter::Run(1), T0), Ok(State::Succeeded));
    assert_eq!(say(Reporter::Run(2), T0), lost);
    assert_eq!(say(Reporter::Attempt(0), T0), Ok(State::Succeeded));
    assert_eq!(say(Reporter::Attempt(1), T0), lost);
    let waiting = pending(None);
    for reporter in [Reporter::Lease(0), Reporter::Run(0), Reporter::Anyone] {
        let outcome = Outcome { reporter, end: End::Released };
        assert_eq!(decide::decide(&waiting, &outcome, T0), Err(Rejection::LeaseLost));
    }
    let canceled =
        transition::cancel(&snapshot.task, Reason::Canceled, &transition::Actor::default(), T0).expect("open");
    let gone = after(&snapshot, &canceled);
    let outcome = Outcome { reporter: Reporter::Lease(1), end: End::Released };
    assert_eq!(decide::decide(&gone, &outcome, T0), Err(Rejection::TaskCanceled));
}

/// A process that begins anew says of the leases of its name that they are lost; of one that somebody else has by now it cannot.
#[test]
fn a_lease_may_say_of_itself_that_it_is_lost() {
    let snapshot = running(Some(native(json!({"on_lost": "retry"}))));
    let lost = |number| {
        let outcome = Outcome { reporter: Reporter::Lease(number), end: End::Lost(Trigger::LeaseExpired) };
        decide::decide(&snapshot, &outcome, T0)
    };
    let change = lost(1).expect("its own");
    assert_eq!((change.after().state, change.after().counters.lost), (State::RetryPending, 1));
    let failure = change.record().failure.as_ref().expect("a failure");
    assert!(failure.message.ends_with("was started again and does not know of it"), "{}", failure.message);
    assert_eq!(lost(2).err(), Some(Rejection::LeaseLost));
    let early = Outcome { reporter: Reporter::Server, end: End::Lost(Trigger::LeaseExpired) };
    assert_eq!(decide::decide(&snapshot, &early, T0).err(), Some(Rejection::NotDue), "a loop has to wait for its end");
}

/// What cannot be read is left out, and the verdict says so.
#[test]
fn a_retry_after_that_cannot_be_read_is_noted() {
    let snapshot = running(Some(native(json!({"strategy": "fixed", "delay": "10s"}))));
    let given = Failure { retry_after_ignored: Some("soon".into()), ..Failure::new(Trigger::Error, "no") };
    let change = end(&snapshot, End::Failed(given), T0);
    let decision = change.record().decision.as_ref().expect("decided");
    assert_eq!(decision.next_retry_at, Some(T0 + Millis::from_secs(10)));
    assert_eq!(decision.notes, ["retry_after `soon` cannot be read and was ignored"]);
}

/// X1-6, A12: an attempt's number names one run only until the two part.
#[test]
fn an_attempt_speaks_only_while_it_names_one_run() {
    let speaks = |snapshot: &Snapshot, attempt, now| {
        let outcome = Outcome { reporter: Reporter::Attempt(attempt), end: End::Succeeded { result: None } };
        decide::decide(snapshot, &outcome, now).is_ok()
    };
    let first = running(Some(native(json!({}))));
    let limited = Failure { retry_after: Some(RetryAfter::Span(Millis::from_secs(1))), ..class(Class::RateLimited) };
    let lost = Outcome { reporter: Reporter::Server, end: End::Lost(Trigger::LeaseExpired) };
    let expired = T0 + Millis::from_secs(60);
    let failed = end(&first, End::Failed(error("x")), T0);
    let partings = [
        ("throttle", end(&first, End::Failed(limited), T0)),
        ("snooze", end(&first, End::Snoozed { delay: Millis::from_secs(1) }, T0)),
        ("loss", decide::decide(&first, &lost, expired).expect("lost")),
        ("manual retry", transition::manual_retry(failed.after(), false, &transition::Actor::default(), T0).unwrap()),
    ];
    for (what, change) in partings {
        let later = after(&first, &change);
        let (second, now) =
            if later.task.state == State::Pending { (lease(&later, T0), T0) } else { come_back(&later) };
        assert_eq!((second.task.counters.attempt, second.task.run), (0, 2), "{what}");
        assert!(!speaks(&second, 0, now), "{what}: the first run's callback is stale");
        let (third, now) = come_back(&after(&second, &end(&second, End::Failed(error("x")), now)));
        assert!(!speaks(&third, 0, now) && !speaks(&third, 1, now), "{what}: parted for good");
        let by_run = Outcome { reporter: Reporter::Run(3), end: End::Succeeded { result: None } };
        assert!(decide::decide(&third, &by_run, now).is_ok(), "{what}: its run still does");
    }
    let (second, now) = come_back(&after(&first, &failed));
    assert!(speaks(&second, 1, now) && !speaks(&second, 0, now), "a counted retry keeps them together");
}

/// A loop that looked before a heartbeat must not win after it.
#[test]
fn the_server_says_only_what_is_so() {
    let second = Millis::from_secs(1);
    let mut timed = pending(Some(native(json!({}))));
    timed.task.timeout = Some(Millis::from_secs(30));
    let run = lease(&timed, T0);
    let say = |end: End, now| {
        decide::decide(&run, &Outcome { reporter: Reporter::Server, end }, now).map(|change| change.after().state)
    };
    let idle = || End::Failed(Failure::new(Trigger::Timeout, "idle"));
    let (timeout, expiry) = (T0 + Millis::from_secs(30), T0 + Millis::from_secs(60));
    assert_eq!(say(idle(), timeout - second), Err(Rejection::NotDue));
    assert_eq!(say(idle(), timeout), Ok(State::RetryPending));
    for trigger in [Trigger::LeaseExpired, Trigger::Stuck] {
        assert_eq!(say(End::Lost(trigger), expiry - second), Err(Rejection::NotDue));
        assert_eq!(say(End::Lost(trigger), expiry), Ok(State::RetryPending));
    }
    let boundless = running(None);
    let outcome = Outcome { reporter: Reporter::Server, end: idle() };
    assert_eq!(decide::decide(&boundless, &outcome, expiry), Err(Rejection::NotDue), "it has no timeout");
    let mine = Outcome { reporter: Reporter::Lease(1), end: idle() };
    assert!(decide::decide(&run, &mine, T0).is_ok(), "a worker may report a timeout of its own");
    assert_eq!(transition::expire(&run.task, true, T0), Err(Rejection::NotDue));
}

/// Model §3.1, notes: a run under way when its task is paused may still end.
#[test]
fn a_paused_run_may_still_end() {
    let snapshot = running(Some(native(json!({"max_retries": 1}))));
    let paused = transition::pause(&snapshot.task, &transition::Actor::default(), T0).expect("pauses");
    let paused = after(&snapshot, &paused);
    assert_eq!(end(&paused, End::Succeeded { result: None }, T0).after().state, State::Succeeded);
    let failed = end(&paused, End::Failed(error("x")), T0);
    assert_eq!((failed.after().state, failed.after().paused_from), (State::Paused, Some(State::RetryPending)));
    let resumed = transition::resume(failed.after(), &transition::Actor::default(), T0).expect("resumes");
    assert_eq!(resumed.after().state, State::RetryPending, "S1-89");
    assert_eq!(resumed.after().next_retry_at, Some(T0 + Millis::from_secs(5)));
    assert_eq!(end(&paused, End::Failed(class(Class::Final)), T0).after().state, State::Failed);
    assert_eq!(end(&paused, End::Released, T0).after().paused_from, Some(State::Pending));
}

#[test]
fn the_reason_holds_everything_that_led_to_it() {
    let snapshot =
        running(Some(native(json!({"initial_delay": "10s", "max_delay": "15s", "jitter": "full", "max_retries": 5}))));
    let first = end(&snapshot, End::Failed(status(503)), T0);
    let (second, now) = come_back(&after(&snapshot, &first));
    let decision = end(&second, End::Failed(status(503)), now).record().decision.clone().expect("decided");
    let delay = decision.delay.clone().expect("a delay");
    assert_eq!(
        (delay.strategy.as_str(), delay.n, delay.base_ms, delay.capped_ms),
        ("exponential", 1, 20_000, Some(15_000))
    );
    assert_eq!(delay.jitter_ms, delay.total_ms as i64 - 15_000);
    assert_eq!((decision.before.attempt, decision.after.attempt), (1, 2));
    assert_eq!((decision.policy, decision.max_retries), (Some(7), Some(5)));
    assert_eq!(decision.next_retry_at, Some(now + delay.total()));
    let text = serde_json::to_string(&decision).expect("serialises");
    assert_eq!(serde_json::from_str::<Decision>(&text).expect("reads back"), decision);
}
