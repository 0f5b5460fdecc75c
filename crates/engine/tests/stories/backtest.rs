//! What another policy would have made of what was recorded, as it is read from both databases.

use std::sync::Arc;

use comeback_core::filter::Filter;
use comeback_core::{Millis, TaskId};
use comeback_engine::{BacktestResult, Cohort, Engine, ManualRetry};
use serde_json::{Value, json};

use crate::stories;
use crate::world::*;

const MINUTE: u64 = 60_000;

/// A task that fails until so many minutes have passed since it was submitted.
async fn live(place: &Place, engine: &Engine, kind: &str, healthy_after: u64) -> TaskId {
    let id = submit(engine, spec(kind, json!(WAS))).await;
    let born = place.now();
    loop {
        let leased = lease_one(engine).await;
        let is_healthy = place.now().since(born) >= Millis(healthy_after * MINUTE);
        report(engine, &leased, if is_healthy { succeeded() } else { failed("refused") }).await.unwrap();
        if state(engine, id).await.is_terminal() {
            return id;
        }
        place.pass(5 * MINUTE);
        engine.tick().await.unwrap();
    }
}

const WAS: &str = "fixed(5m, 4 retries)";

async fn tested(place: &Place, engine: &Engine, filter: &str, most: u32, is: Value) -> BacktestResult {
    let filter = Filter::parse(filter, place.now()).unwrap();
    let is = if is == json!(false) { None } else { Some(Arc::new(policy(is))) };
    engine.backtest("default", &Cohort { filter, within: Millis::from_days(7), most }, is).await.unwrap()
}

stories! {
    /// The same policy brings about what happened, one that is less patient loses what came late, and none loses all.
    fn policies_are_tried_on_what_was_recorded(place) {
        let engine = place.engine().await;
        for healthy_after in [0, 4, 8, 18, 999] {
            live(&place, &engine, "pay", healthy_after).await;
        }
        live(&place, &engine, "other", 4).await;
        let same = tested(&place, &engine, "kind:pay", 100, json!(WAS)).await;
        assert!(same.complete);
        assert_eq!(same.test.tasks, 4, "one of them never failed");
        for arm in [&same.test.recorded, &same.test.candidate] {
            assert_eq!((arm.recovered, arm.gave_up, arm.retries, arm.wasted), (3, 1, 1 + 2 + 4 + 4, 8), "{arm:?}");
        }
        assert_eq!((same.test.unknown, same.test.lost.len()), (0, 0));
        let less = tested(&place, &engine, "kind:pay", 100, json!("fixed(5m, 2 retries)")).await.test;
        assert_eq!((less.candidate.recovered, less.candidate.retries, less.lost.len()), (2, 1 + 2 + 2 + 2, 1));
        let none = tested(&place, &engine, "", 100, json!(false)).await.test;
        assert_eq!((none.tasks, none.candidate.retries, none.lost.len(), none.errors.len()), (5, 0, 4, 2));
    }

    /// Of more than are asked for those that changed last are played, and that is said.
    fn of_many_those_that_changed_last_are_played(place) {
        let engine = place.engine().await;
        let mut last = None;
        for _ in 0..4 {
            last = Some(live(&place, &engine, "pay", 4).await);
        }
        let few = tested(&place, &engine, "", 1, json!(false)).await;
        assert!(!few.complete);
        assert_eq!((few.test.tasks, few.test.lost), (1, last.into_iter().collect()));
        assert!(tested(&place, &engine, "", 4, json!(false)).await.complete);
        place.pass(8 * 24 * 60 * MINUTE);
        assert_eq!(tested(&place, &engine, "", 4, json!(false)).await.test.tasks, 0, "that is too long ago");
    }

    /// What a person had to bring back is told apart, and won by a policy that would have tried by then.
    fn what_came_back_by_hand_is_told_apart(place) {
        let engine = place.engine().await;
        let id = live(&place, &engine, "pay", 999).await;
        place.pass(60 * MINUTE);
        engine.retry("default", id, ManualRetry::default()).await.unwrap();
        let leased = lease_one(&engine).await;
        report(&engine, &leased, succeeded()).await.unwrap();
        let longer = tested(&place, &engine, "", 10, json!({"schedule": ["5m", "3h"]})).await.test;
        assert_eq!((longer.by_hand, longer.won, longer.candidate.retries), (1, vec![id], 2));
    }
}
