//! Long times, in moments.

use crate::stories;
use crate::world::*;
use comeback_core::{EventKind, Millis, State, Timestamp};
use comeback_engine::Engine;
use serde_json::json;

/// Runs a task that always fails to its end, forgetting everything and starting anew every so often.
async fn live_through(
    place: &crate::world::Place,
    mut engine: Engine,
    id: comeback_core::TaskId,
    restart_every: usize,
) -> Vec<Timestamp> {
    let mut runs = Vec::new();
    while state(&engine, id).await.is_open() {
        for leased in lease(&engine, 10).await {
            runs.push(place.now());
            report(&engine, &leased, failed("still down")).await.unwrap();
        }
        on_to_the_next(place, &engine).await;
        if runs.len() % restart_every == 0 {
            engine.close().await;
            place.forget();
            engine = place.engine().await;
        }
    }
    engine.close().await;
    place.forget();
    runs
}

stories! {
    /// S0-35, S0-3: a week, then two weeks, with a restart in between each.
    fn seven_days_and_fourteen_days_with_restarts(place) {
        let engine = place.engine().await;
        let id = submit(&engine, spec("kyc", json!({"schedule": ["7d", "14d"]}))).await;
        let start = place.now();
        let runs = live_through(&place, engine, id, 1).await;
        assert_eq!(runs, [start, start + Millis::from_days(7), start + Millis::from_days(21)]);
        let engine = place.engine().await;
        assert_eq!(state(&engine, id).await, State::Dead);
        assert!(engine.why("default", id).await.unwrap().text.contains("all 2 retries are used up"));
    }

    /// R-I12: two years of one try a day, restarted every fifty days, exactly as the policy says.
    fn two_years_of_daily_tries_with_restarts(place) {
        let engine = place.engine().await;
        let policy_value = json!({"strategy": "fixed", "delay": "1d", "max_retries": 730, "jitter": "equal"});
        let id = submit(&engine, spec("poll", policy_value)).await;
        let start = place.now();
        let runs = live_through(&place, engine, id, 50).await;
        assert_eq!(runs.len(), 731);
        let engine = place.engine().await;
        let stored = engine.task("default", id).await.unwrap().stored;
        let backoff = stored.policy.unwrap().backoff.clone();
        let mut expected = start;
        for (n, run) in (0_u32..).zip(&runs) {
            assert_eq!(*run, expected, "run {n}");
            let draw = comeback_core::backoff::Draw { task: id, cycle: 0, stream: comeback_core::backoff::Stream::Retry };
            let delay = comeback_core::backoff::delay(&backoff, n, draw, &Default::default());
            assert!((Millis::from_days(1).0 / 2..=Millis::from_days(1).0).contains(&delay.total_ms));
            expected = expected + delay.total();
        }
        assert_eq!(stored.task.run, 731);
        let mut count = 0;
        let mut after = 0;
        loop {
            let events = engine.events("default", id, after, 500).await.unwrap();
            let Some(last) = events.last() else { break };
            count += events.iter().filter(|event| event.kind == EventKind::AttemptFailed).count();
            after = last.seq;
        }
        assert_eq!(count, 731, "every attempt is kept");
    }

    /// A thousand retries with an exponent that would overflow anything.
    fn a_thousand_retries_capped(place) {
        let engine = place.engine().await;
        let id = submit(&engine, spec("a", json!({"max_retries": 1000, "initial_delay": "1s", "multiplier": 1e300, "max_delay": "1h"}))).await;
        let runs = live_through(&place, engine, id, 400).await;
        assert_eq!(runs.len(), 1_001);
        assert_eq!(runs[1_000].since(runs[999]), Millis::from_secs(3_600));
    }
}
