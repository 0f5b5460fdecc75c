use proptest::prelude::*;
use uuid::Uuid;

use super::*;
use crate::failure::Trigger;
use crate::reason::{DelayParts, Reason};
use crate::task::Counters;

const T0: Timestamp = Timestamp(1_800_000_000_000);

fn fact(outcome: AttemptOutcome) -> Fact {
    Fact {
        namespace: "default".into(),
        task: TaskId(Uuid::from_u128(1)),
        lane: Arc::new(Lane { kind: "pay".into(), dependency: Some("psp".into()), ..Lane::default() }),
        strategy: Some("exponential"),
        cost: 3,
        events: Vec::new(),
        at: T0 + Millis(500),
        started_at: Some(T0),
        cycle: 0,
        run: 1,
        attempt: 0,
        outcome: Some(outcome),
        failure: None,
        decision: None,
        trouble: None,
    }
}

fn failed(attempt: u32, verdict: Verdict) -> Fact {
    let before = Counters { attempt, ..Counters::default() };
    let decision = Decision {
        verdict,
        reason: Reason::Retry,
        at: T0,
        by: None,
        class: Some(Class::Retryable),
        trigger: Some(Trigger::Error),
        matched: None,
        policy: None,
        max_retries: None,
        rule_max: None,
        delay: Some(DelayParts { total_ms: 1_000, ..DelayParts::default() }),
        before,
        after: before,
        next_retry_at: None,
        held_until: None,
        held_by: None,
        notes: Vec::new(),
    };
    Fact {
        run: attempt + 1,
        attempt,
        failure: Some(Failure::new(Trigger::Error, format!("order {attempt} refused"))),
        decision: Some(decision),
        ..fact(AttemptOutcome::Failed)
    }
}

fn recovered(attempt: u32, after: u64) -> Fact {
    let trouble = EarlierFailure {
        since: T0 + Millis(500) - Millis(after),
        failure: Failure::new(Trigger::Error, "order 9 refused"),
        class: Some(Class::Retryable),
    };
    Fact { run: attempt + 1, attempt, trouble: Some(trouble), ..fact(AttemptOutcome::Succeeded) }
}

fn told(fact: &Fact) -> Vec<(&'static str, u64)> {
    let words = |(code, value)| Measure::from_code(code).map(|what| (what.word(), value));
    fact.sums().codes().filter_map(words).collect()
}

#[test]
fn every_end_adds_what_it_means() {
    let check = |fact: Fact, origin: Origin, sums: &[(&'static str, u64)]| {
        assert_eq!((fact.origin(), told(&fact)), (origin, sums.to_vec()), "{fact:#?}");
    };
    check(fact(AttemptOutcome::Succeeded), Origin::First, &[("succeeded", 1), ("run_ms", 500)]);
    check(
        failed(0, Verdict::Retry),
        Origin::First,
        &[("failed", 1), ("first_failures", 1), ("retried", 1), ("delay_ms", 1_000), ("run_ms", 500)],
    );
    check(
        failed(2, Verdict::Exhaust),
        Origin::Automatic,
        &[
            ("failed", 1),
            ("wasted", 1),
            ("gave_up", 1),
            ("run_ms", 500),
            ("wasted_ms", 500),
            ("cost", 3),
            ("wasted_cost", 3),
        ],
    );
    check(
        failed(0, Verdict::Refuse),
        Origin::First,
        &[("failed", 1), ("first_failures", 1), ("refused", 1), ("run_ms", 500)],
    );
    check(
        recovered(1, 4_000),
        Origin::Automatic,
        &[("succeeded", 1), ("recovered", 1), ("run_ms", 500), ("cost", 3), ("recovery_ms", 4_000)],
    );
    let by_hand = Fact { cycle: 1, run: 4, attempt: 0, ..recovered(0, 9_000) };
    check(
        by_hand,
        Origin::Manual,
        &[("succeeded", 1), ("recovered", 1), ("run_ms", 500), ("cost", 3), ("recovery_ms", 9_000)],
    );
    check(Fact { run: 3, ..fact(AttemptOutcome::Released) }, Origin::First, &[("released", 1), ("run_ms", 500)]);
    let throttled = Fact { outcome: Some(AttemptOutcome::Throttled), ..failed(0, Verdict::Throttle) };
    check(throttled, Origin::First, &[("throttled", 1), ("first_failures", 1), ("run_ms", 500)]);
    let expired = Fact { outcome: None, events: vec![EventKind::TaskRetryExhausted], ..recovered(2, 1) };
    check(expired, Origin::Automatic, &[("gave_up", 1)]);
}

/// A success is counted beside the error that it overcame, so that a group knows how often trying again helped.
#[test]
fn a_recovery_is_in_the_cell_of_its_error() {
    let (bad, good) = (failed(1, Verdict::Retry).cell(), recovered(1, 9).cell());
    assert_eq!(bad, good);
    assert_eq!((bad.attempt, bad.dependency.as_str(), bad.strategy.as_str()), (2, "psp", "exponential"));
    assert_ne!(bad.number("default"), bad.number("other"));
    assert_ne!(bad.number("default"), Cell { attempt: 3, ..bad.clone() }.number("default"));
    assert_eq!(fact(AttemptOutcome::Succeeded).cell().fingerprint, None);
}

#[test]
fn a_share_says_of_how_many_and_how_sure() {
    let rate = Rate { hits: 84, of: 100 };
    let (low, high) = rate.interval().unwrap();
    assert!((low - 0.756).abs() < 0.002 && (high - 0.899).abs() < 0.002, "{low} {high}");
    assert_eq!(Rate { hits: 0, of: 0 }.share(), None);
    let (low, high) = Rate { hits: 0, of: 61 }.interval().unwrap();
    assert!(low == 0.0 && high < 0.07, "{low} {high}");
}

#[test]
fn quarters_begin_where_they_should() {
    assert_eq!(bucket(Timestamp(900_000 * 7 + 1), QUARTER), Timestamp(900_000 * 7));
    assert_eq!(bucket(Timestamp(900_000 * 7), QUARTER), Timestamp(900_000 * 7));
    assert_eq!(bucket(Timestamp(-1), QUARTER), Timestamp(-900_000));
}

fn any_fact() -> impl Strategy<Value = Fact> {
    let verdicts = prop::sample::select(vec![Verdict::Retry, Verdict::Exhaust, Verdict::Refuse, Verdict::Park]);
    let bad = (0..5_u32, verdicts).prop_map(|(attempt, verdict)| failed(attempt, verdict));
    let good = (1..5_u32, 0..9_000_000_u64).prop_map(|(attempt, after)| recovered(attempt, after));
    let plain = prop::sample::select(AttemptOutcome::ALL).prop_map(fact);
    (prop_oneof![bad, good, plain], 0..9_000_000_u64, 0..3_u128).prop_map(|(fact, later, task)| Fact {
        at: fact.at + Millis(later),
        task: TaskId(Uuid::from_u128(task)),
        ..fact
    })
}

proptest! {
    /// However the past is cut into stretches, it comes to the same.
    #[test]
    fn folding_in_any_stretches_gives_the_same_sums(
        facts in prop::collection::vec(any_fact(), 0..60),
        cuts in prop::collection::vec(0..60_usize, 0..6),
    ) {
        let whole = Fold::of(&facts);
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(facts.len())).chain([0, facts.len()]).collect();
        cuts.sort_unstable();
        let mut parts = Fold::default();
        for pair in cuts.windows(2) {
            parts.merge(Fold::of(&facts[pair[0]..pair[1]]));
        }
        prop_assert_eq!(&whole, &parts);
        let all = whole.sums.values().fold(Sums::default(), |mut all, sums| { all.merge(sums); all });
        let ended = facts.iter().filter(|fact| fact.outcome == Some(AttemptOutcome::Succeeded)).count();
        prop_assert_eq!(all.get(Measure::Succeeded), ended as u64);
        let retries = facts.iter().filter(|fact| fact.origin() != Origin::First && fact.outcome.is_some());
        let useful = retries.filter(|fact| matches!(fact.outcome, Some(AttemptOutcome::Succeeded | AttemptOutcome::Failed)));
        prop_assert_eq!(all.get(Measure::Recovered) + all.get(Measure::Wasted), useful.count() as u64);
    }
}
