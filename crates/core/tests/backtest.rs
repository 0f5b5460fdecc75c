//! Recorded failures under another policy: what is known, what is not, and that the same policy changes nothing.

use std::sync::Arc;

use comeback_core::backtest::{Backtest, PolicyResult, Range, TaskHistory, Terms};
use comeback_core::decide;
use comeback_core::transition::{self, Actor};
use comeback_core::*;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::common::*;
use crate::properties::any_policy;

const HOUR: Millis = Millis::from_secs(3_600);
const LATE: Timestamp = Timestamp(T0.0 + 400 * 86_400_000);

/// A task that fails whenever it is tried before an instant, each time after two seconds; with what was written down.
fn lived(n: u128, policy: Option<Policy>, healthy_from: Timestamp) -> (Snapshot, Vec<Record>) {
    let mut snapshot = pending(policy);
    snapshot.task.id = id(n);
    let mut records = Vec::new();
    snapshot = lease(&snapshot, T0);
    let mut now = T0;
    loop {
        let fails = now < healthy_from;
        now = now + Millis::from_secs(2);
        let ended = if fails { End::Failed(status(503)) } else { End::Succeeded { result: None } };
        let change = end(&snapshot, ended, now);
        records.push(change.record().clone());
        snapshot = after(&snapshot, &change);
        if snapshot.task.due().is_none() {
            return (snapshot, records);
        }
        (snapshot, now) = come_back(&snapshot);
    }
}

fn life(n: u128, policy: &Value, healthy_from: Timestamp) -> Option<TaskHistory> {
    let (snapshot, records) = lived(n, Some(native(policy.clone())), healthy_from);
    TaskHistory::of(&snapshot.task, 3, &records)
}

fn lives(policy: &Value, healthy_after_minutes: &[u64]) -> Vec<TaskHistory> {
    let healthy = |minutes: &u64| T0 + Millis::from_secs(minutes * 60);
    (1..).zip(healthy_after_minutes).filter_map(|(n, minutes)| life(n, policy, healthy(minutes))).collect()
}

fn terms(policy: Value) -> Terms {
    let policy = policy_of(&policy);
    Terms { policy, limits: PolicyLimits::default(), reclassified: None }
}

fn policy_of(value: &Value) -> Option<Arc<Policy>> {
    policy(Dialect::Native, value).map(Arc::new)
}

fn test(lives: &[TaskHistory], policy: Value) -> Backtest {
    played(lives, policy, LATE)
}

fn played(lives: &[TaskHistory], policy: Value, until: Timestamp) -> Backtest {
    let (terms, range) = (terms(policy), Range { since: T0, until, fine: HOUR });
    let mut test = Backtest::default();
    lives.iter().for_each(|life| test.add(life, &terms, range, &|| true));
    test.finish();
    test
}

fn lives_of(healthy_after_minutes: &[u64]) -> Vec<TaskHistory> {
    lives(&json!(FIVE_MINUTES), healthy_after_minutes)
}

#[track_caller]
fn check(arm: &PolicyResult, recovered: u64, gave_up: u64, retries: u64) {
    assert_eq!((arm.recovered, arm.gave_up, arm.open, arm.retries), (recovered, gave_up, 0, retries), "{arm:?}");
}

const FIVE_MINUTES: &str = "fixed(5m, 4 retries)";

#[test]
fn a_policy_that_gives_up_earlier_loses_what_came_back_later() {
    // Healthy after 3, 8 and 18 minutes: back with the first, the second and the fourth retry.
    let lives = lives_of(&[3, 8, 18]);
    let test = test(&lives, json!("fixed(5m, 2 retries)"));
    check(&test.recorded, 3, 0, 1 + 2 + 4);
    check(&test.candidate, 2, 1, 1 + 2 + 2);
    assert_eq!(test.lost, [id(3)]);
    assert_eq!((test.unknown, test.won.len()), (0, 0));
    assert_eq!((test.recorded.wasted, test.candidate.wasted), (4, 3));
    assert_eq!((test.recorded.cost, test.candidate.cost), (21, 15));
    let (tried, succeeded) = test.recorded.attempts[&2];
    assert_eq!((tried, succeeded), (3, 1));
}

#[test]
fn never_retrying_saves_all_retries_and_loses_all_that_came_back() {
    let lives = lives_of(&[3, 8, 9_999]);
    let test = test(&lives, json!(false));
    check(&test.recorded, 2, 1, 1 + 2 + 4);
    check(&test.candidate, 0, 3, 0);
    assert_eq!(test.lost, [id(1), id(2)]);
    assert_eq!(test.candidate.peak_per_minute, 0);
    assert_eq!(test.candidate.recovery_p50, None);
}

#[test]
fn what_the_record_does_not_tell_is_unknown_and_not_guessed() {
    // Failed at 5 minutes, succeeded at 10: whether it would have at 7 nobody knows.
    let between = test(&lives_of(&[8]), json!("fixed(7m, 1 retries)"));
    check(&between.candidate, 0, 1, 1);
    assert_eq!((between.unknown, between.lost.len()), (1, 0));
    // Never succeeded, and nobody tried after 20 minutes.
    let beyond = test(&lives_of(&[9_999]), json!("fixed(5m, 9 retries)"));
    check(&beyond.candidate, 0, 1, 9);
    assert_eq!(beyond.unknown, 1);
}

/// Retried by hand at an instant, and healthy then.
fn brought_back(over: &Snapshot, mut records: Vec<Record>, at: Timestamp) -> TaskHistory {
    let retried = transition::manual_retry(&over.task, false, &Actor::default(), at).expect("can be retried");
    records.push(retried.record().clone());
    let again = lease(&after(over, &retried), at);
    let change = end(&again, End::Succeeded { result: None }, at + Millis::from_secs(1));
    records.push(change.record().clone());
    TaskHistory::of(change.after(), 1, &records).expect("it failed")
}

#[test]
fn what_came_back_by_hand_is_won_by_a_policy_that_would_have_gone_on() {
    let (snapshot, records) = lived(1, Some(native(json!("fixed(5m, 1 retries)"))), LATE);
    let day = T0 + Millis::from_days(1);
    let life = brought_back(&snapshot, records, day);
    let test = test(&[life], json!({"schedule": ["1h", "2d"]}));
    check(&test.recorded, 1, 0, 2);
    check(&test.candidate, 1, 0, 2);
    assert_eq!((test.by_hand, test.won), (1, vec![id(1)]));
}

#[test]
fn jitter_takes_the_peak_off() {
    let lives = lives(&json!("fixed(60m, 1 retries)"), &[30; 60]);
    let spread = test(&lives, json!({"strategy": "fixed", "delay": "60m", "max_retries": 3, "jitter": "full"}));
    assert_eq!(spread.recorded.peak_per_minute, 60);
    assert!(spread.candidate.peak_per_minute < 12, "{}", spread.candidate.peak_per_minute);
    assert_eq!(spread.recorded.load.values().sum::<u64>(), 60);
    assert_eq!(spread.errors.len(), 1);
    assert_eq!(spread.errors.values().next().map(|it| (it.tasks, it.face.status)), Some((60, Some(503))));
}

#[test]
fn what_would_come_after_now_has_not_happened() {
    let lives = lives_of(&[9_999]);
    let soon = played(&lives, json!("fixed(1h, 5 retries)"), T0 + Millis::from_secs(2 * 3_600 + 60));
    assert_eq!((soon.candidate.open, soon.candidate.retries), (1, 2));
    // But what is known to be healthy would come back, later than it did.
    let healthy = lives_of(&[3]);
    let later = played(&healthy, json!("fixed(1d, 1 retries)"), T0 + HOUR);
    assert_eq!((later.candidate.recovered, later.candidate.recovery_p50), (1, Some(Millis::from_secs(86_400 + 2))));
}

/// One run after another, each ended as told, and leased again when it is due.
fn ended(lane: Lane, policy: Value, ends: &[(u64, End)]) -> TaskHistory {
    let mut snapshot = pending(Some(native(policy)));
    snapshot.task.lane = Arc::new(Lane { kind: "test".into(), ..lane });
    let (mut records, mut now) = (Vec::new(), T0);
    snapshot = lease(&snapshot, now);
    for (after_seconds, how) in ends {
        if snapshot.task.state == State::Claimed {
            let sent = transition::hook_sending(&snapshot.task, now).expect("can be sent");
            let started = transition::hook_started(&sent, Millis::from_days(1), now).expect("can start");
            snapshot = after(&snapshot, &started);
        }
        now = now + Millis::from_secs(*after_seconds);
        let outcome = Outcome { reporter: Reporter::Anyone, end: how.clone() };
        let change = decide::decide(&snapshot, &outcome, now).expect("may speak");
        records.push(change.record().clone());
        snapshot = after(&snapshot, &change);
        match snapshot.task.state {
            State::Pending => snapshot = lease(&snapshot, now),
            State::RetryPending => (snapshot, now) = come_back(&snapshot),
            _ => break,
        }
    }
    TaskHistory::of(&snapshot.task, 3, &records).expect("it failed")
}

#[test]
fn a_run_that_was_told_to_wait_is_neither_wasted_nor_paid_for() {
    let limited = Failure { retry_after: Some(RetryAfter::Span(Millis(60_000))), ..status(429) };
    let (told, fine) = (End::Failed(limited), End::Succeeded { result: None });
    let life = ended(Lane::default(), json!("fixed(5m, 2 retries)"), &[(1, told.clone()), (1, told), (1, fine)]);
    let same = test(&[life], json!("fixed(5m, 2 retries)"));
    for arm in [&same.recorded, &same.candidate] {
        assert_eq!((arm.recovered, arm.retries, arm.wasted, arm.cost), (1, 2, 0, 3), "{arm:?}");
    }
}

#[test]
fn what_was_lost_counts_as_the_policy_says_and_what_was_given_back_does_not() {
    let hook = Lane { executor: Executor::Hook, ..Lane::default() };
    for lane in [Lane::default(), hook] {
        let lost = End::Lost(Trigger::LeaseExpired);
        let fine = End::Succeeded { result: None };
        let ends = [(90, lost), (1, End::Released), (1, fine)];
        let life = ended(lane.clone(), json!({"strategy": "fixed", "delay": "5m", "max_retries": 2}), &ends);
        let same = test(std::slice::from_ref(&life), json!({"strategy": "fixed", "delay": "5m", "max_retries": 2}));
        check(&same.recorded, 1, 0, 1);
        check(&same.candidate, 1, 0, 1);
        check(&test(std::slice::from_ref(&life), json!(false)).candidate, 0, 1, 0);
        let strict = json!({"strategy": "fixed", "delay": "5m", "max_retries": 2, "on_lost": "fail"});
        assert_eq!(test(&[life], strict).lost, [TaskId(pending(None).task.id.0)], "{lane:?}");
    }
}

#[test]
fn a_deadline_that_a_person_renewed_was_not_there_before() {
    let (snapshot, records) = lived(1, Some(native(json!("fixed(5m, 1 retries)"))), LATE);
    let mut over = snapshot.clone();
    over.task.expires_at = Some(T0 + HOUR);
    let day = T0 + Millis::from_days(1);
    let life = brought_back(&over, records, day);
    let patient = test(&[life], json!("fixed(30m, 99 retries)"));
    assert_eq!((patient.candidate.gave_up, patient.won.len()), (1, 0), "its hour was over");
}

#[test]
fn what_is_not_played_to_its_end_is_not_known() {
    let lives = lives_of(&[9_999]);
    let mut cut = Backtest::default();
    let range = Range { since: T0, until: LATE, fine: HOUR };
    cut.add(&lives[0], &terms(json!("fixed(1s, 9 retries)")), range, &|| false);
    assert_eq!((cut.unknown, cut.candidate.open, cut.candidate.gave_up), (1, 1, 0));
}

#[test]
fn a_life_without_trouble_is_none() {
    assert_eq!(life(1, &json!(FIVE_MINUTES), T0), None);
    let (snapshot, _) = lived(1, None, LATE);
    assert_eq!(TaskHistory::of(&snapshot.task, 1, &[]), None);
}

proptest! {
    /// The one thing that can be checked without knowing the world: what happened.
    #[test]
    fn the_same_policy_brings_about_what_happened(policy in any_policy(), minutes in prop::collection::vec(0..90_u64, 1..6)) {
        let lives = lives(&policy, &minutes);
        let test = test(&lives, policy);
        let known = |arm: &PolicyResult| {
            let counts = (arm.recovered, arm.gave_up, arm.open, arm.retries, arm.wasted, arm.cost);
            (counts, arm.recovery_p50, arm.peak_per_minute, arm.attempts.clone(), arm.load.clone())
        };
        prop_assert_eq!(known(&test.recorded), known(&test.candidate));
        prop_assert_eq!((test.unknown, test.lost.len(), test.won.len()), (0, 0, 0));
    }

    /// Never more than the policy allows, never a recovery that was not one, and everybody is somewhere.
    #[test]
    fn another_policy_keeps_its_own_limits(was in any_policy(), is in any_policy(), minutes in prop::collection::vec(0..90_u64, 1..6)) {
        let lives = lives(&was, &minutes);
        let most = is["max_retries"].as_u64().unwrap_or(0);
        let test = test(&lives, is);
        let arm = &test.candidate;
        prop_assert!(arm.retries <= most * test.tasks, "{:?}", arm);
        prop_assert!(arm.recovered <= test.recorded.recovered);
        prop_assert_eq!(arm.recovered + arm.gave_up + arm.open, test.tasks);
        prop_assert_eq!(arm.wasted + arm.recovered, arm.retries);
    }
}
