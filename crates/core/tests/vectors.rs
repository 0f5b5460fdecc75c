//! The shared vectors: what every dialect's policy does, run through the decision itself.

use comeback_core::{Class, Dialect, Failure, Millis, State};
use serde_json::Value;

use crate::common;

fn vectors() -> Vec<Value> {
    serde_json::from_str(include_str!("vectors.json")).expect("the vectors are JSON")
}

#[test]
fn every_vector_holds() {
    for vector in vectors() {
        let name = vector["name"].as_str().expect("a name");
        let dialect = vector["dialect"].as_str().and_then(Dialect::from_word).expect("a dialect");
        let policy = common::policy(dialect, &vector["policy"]);
        let (delays, last) = common::delays(policy, &common::error("boom"));
        let seconds: Vec<f64> = delays.iter().map(|delay| delay.as_f64() / 1e3).collect();
        assert_eq!(delays.len() as u64 + 1, vector["executions"].as_u64().expect("a count"), "{name}: {seconds:?}");
        assert_eq!(u64::from(last.task.run), vector["executions"].as_u64().expect("a count"), "{name}");
        assert_eq!(last.task.state, State::Dead, "{name}");
        if let Some(exact) = vector["delays"].as_array() {
            let exact: Vec<f64> = exact.iter().filter_map(Value::as_f64).collect();
            assert_eq!(seconds, exact, "{name}");
        }
        for (band, delay) in vector["bands"].as_array().into_iter().flatten().zip(&seconds) {
            let low = band[0].as_f64().expect("a bound");
            let high = band[1].as_f64().expect("a bound");
            assert!(low <= *delay && *delay < high, "{name}: {delay} in [{low}, {high})");
        }
    }
}

/// S3-23, D-13: the service says when, and no attempt is spent.
#[test]
fn a_rate_limited_run_waits_as_asked_and_keeps_its_attempt() {
    use comeback_core::{End, RetryAfter};
    let mut snapshot = common::running(common::policy(Dialect::Run, &Value::Bool(true)));
    let mut now = common::T0;
    for _ in 0..2 {
        let change = common::end(&snapshot, End::Failed(common::error("network")), now);
        (snapshot, now) = common::come_back(&common::after(&snapshot, &change));
    }
    assert_eq!(snapshot.task.counters.attempt, 2);
    let limited = Failure {
        class: Some(Class::RateLimited),
        retry_after: Some(RetryAfter::Span(Millis::from_secs(300))),
        ..common::error("slow down")
    };
    let change = common::end(&snapshot, End::Failed(limited), now);
    let task = change.after();
    assert_eq!(task.next_retry_at, Some(now + Millis::from_secs(300)));
    assert_eq!((task.counters.attempt, task.counters.throttled), (2, 1));
}
