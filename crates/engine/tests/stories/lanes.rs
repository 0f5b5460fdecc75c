//! Lanes: executors find work among many queues, a namespace that has too many is refused alone, and what is unused is forgotten.

use std::time::{Duration, Instant};

use crate::stories;
use crate::world::*;
use comeback_core::{Millis, Quota, Quotas, State};
use comeback_engine::executors::ExecutorOptions;
use comeback_engine::store::{Loop, StoreError};
use comeback_engine::{Available, CommandError, Engine, EngineConfig, ExecutorSpec, ReportEnd, Submit, TaskSpec};
use serde_json::json;

async fn engine(place: &Place, lanes: u64) -> Engine {
    let mut quotas = Quotas::default();
    quotas.set("lanes", &lanes.to_string()).expect("a quota");
    let executors = Available { timer: true, ..Available::default() };
    let config = EngineConfig { quotas, executors, retention: Some(Millis::from_days(1)), ..EngineConfig::default() };
    Engine::without_loops(place.store().await, place.clock.clone(), config).await.expect("an engine")
}

fn refused_by(answer: Result<comeback_engine::SubmitAnswer, CommandError>) -> Option<Quota> {
    match answer {
        Ok(_) => None,
        Err(CommandError::Store(StoreError::QuotaExceeded(refused)) | CommandError::QuotaExceeded(refused)) => {
            Some(refused.quota)
        }
        Err(error) => panic!("{error:?}"),
    }
}

stories! {
    fn an_executor_finds_work_in_hundreds_of_queues_and_serves_namespaces_in_turn(place) {
        let engine = engine(&place, 10_000).await;
        let timer = |queue: String| TaskSpec {
            queue: Some(queue),
            executor: ExecutorSpec::Timer,
            ..spec("t", json!({"max_retries": 0}))
        };
        for n in 0..300 {
            engine.submit(Submit::one("red", timer(format!("q{n}")))).await.expect("stored");
        }
        engine.submit(Submit::one("blue", timer("q".into()))).await.expect("stored");
        let _executors = engine.start_executors(ExecutorOptions::default()).expect("executors");
        let give_up = Instant::now() + Duration::from_secs(60);
        loop {
            let mut over = 0;
            for namespace in ["red", "blue"] {
                let counts = engine.store().counts(namespace, place.now()).await.expect("counts");
                over += counts.by_state.get(&State::Succeeded).copied().unwrap_or(0);
            }
            if over == 301 {
                break;
            }
            assert!(Instant::now() < give_up, "{over} of 301");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Submits that arrive together are stored together: who is refused takes no neighbour along.
    fn a_namespace_beyond_its_quota_is_refused_alone(place) {
        let engine = engine(&place, 3).await;
        let mut submits = Vec::new();
        for n in 0..40 {
            let (engine, is_red) = (engine.clone(), n % 2 == 0);
            let task = spec(&if is_red { format!("k{n}") } else { "work".into() }, json!({"max_retries": 0}));
            let submit = Submit::one(if is_red { "red" } else { "blue" }, task);
            submits.push(tokio::spawn(async move { (is_red, refused_by(engine.submit(submit).await)) }));
        }
        let (mut red, mut blue) = (Vec::new(), Vec::new());
        for submit in submits {
            let (is_red, refused) = submit.await.expect("no panic");
            if is_red { red.push(refused) } else { blue.push(refused) }
        }
        assert!(blue.iter().all(Option::is_none), "{blue:?}");
        assert_eq!(red.iter().filter(|it| it.is_none()).count(), 3);
        assert!(red.iter().flatten().all(|quota| *quota == Quota::Lanes));
    }

    fn unused_lanes_are_forgotten_by_the_loops(place) {
        let engine = engine(&place, 2).await;
        let make = |kind: &str| Submit::one("default", spec(kind, json!({"max_retries": 0})));
        for kind in ["a", "b"] {
            assert_eq!(refused_by(engine.submit(make(kind)).await), None);
        }
        assert_eq!(refused_by(engine.submit(make("c")).await), Some(Quota::Lanes));
        engine.tick_loop(Loop::Prune).await.expect("the loop works");
        for leased in lease(&engine, 10).await {
            report(&engine, &leased, ReportEnd::Succeeded { result: None }).await.expect("stored");
        }
        place.pass(2 * 86_400_000);
        for _ in 0..4 {
            engine.tick_loop(Loop::Prune).await.expect("the loop works");
            place.pass(31_000);
        }
        assert_eq!(refused_by(engine.submit(make("c")).await), None);
    }
}
