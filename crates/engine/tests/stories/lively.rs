//! The engine with its own loops, on the real clock.

use std::collections::HashSet;
use std::time::Duration;

use crate::stories;
use crate::world::*;
use comeback_core::{Millis, State, TaskId};
use comeback_engine::store::Idempotency;
use comeback_engine::{Engine, EngineConfig, LeaseRequest, Moment, Report, Submit, SystemClock, TaskSpec};
use serde_json::json;

async fn work(engine: Engine, name: &str, fail_first: bool) -> Vec<TaskId> {
    let mut done = Vec::new();
    let ask = LeaseRequest { wait: Duration::from_secs(2), limit: 5, ..LeaseRequest::new("default", name) };
    loop {
        let leased = engine.lease(ask.clone()).await.unwrap();
        if leased.is_empty() {
            return done;
        }
        let reports = leased
            .iter()
            .map(|it| Report {
                lease: it.lease,
                end: if fail_first && it.attempt_number == 1 { failed("first") } else { succeeded() },
            })
            .collect();
        for answer in engine.report(reports).await.unwrap() {
            let answer = answer.unwrap();
            if answer.state == State::Succeeded {
                done.push(answer.task);
            }
        }
    }
}

stories! {
    fn a_retry_comes_back_by_itself(place) {
        let engine = place.live_engine().await;
        let id = submit(&engine, spec("a", json!({"strategy": "fixed", "delay": "150ms"}))).await;
        let done = work(engine.clone(), "w", true).await;
        assert_eq!(done, [id]);
        let events = engine.events("default", id, 0, 100).await.unwrap();
        let scheduled = events.iter().find(|event| event.kind == comeback_core::EventKind::TaskRetryScheduled).unwrap();
        let started = events.iter().rfind(|event| event.kind == comeback_core::EventKind::AttemptStarted).unwrap();
        assert!(started.at.since(scheduled.at) >= Millis(150), "never early");
    }

    fn who_waits_is_woken_by_a_submit(place) {
        let engine = place.live_engine().await;
        let waiting = {
            let engine = engine.clone();
            tokio::spawn(async move {
                let ask = LeaseRequest { wait: Duration::from_secs(20), ..LeaseRequest::new("default", "w") };
                engine.lease(ask).await.unwrap()
            })
        };
        tokio::task::yield_now().await;
        let id = submit(&engine, TaskSpec::new("a")).await;
        let leased = waiting.await.unwrap();
        assert_eq!(leased[0].lease.task, id);
    }

    fn a_delayed_start_starts_by_itself(place) {
        let engine = place.live_engine().await;
        let delayed = TaskSpec { start: Some(Moment::After(Millis(200))), ..TaskSpec::new("a") };
        let id = submit(&engine, delayed).await;
        assert_eq!(work(engine, "w", false).await, [id]);
    }

    /// Two instances share the work, nothing is done twice, everything is done.
    fn two_instances_share_the_work(place) {
        let (one, two) = (place.live_engine().await, place.live_engine().await);
        let tasks = (0..300).map(|_| spec("a", json!({"strategy": "fixed", "delay": "50ms"}))).collect();
        let submit = Submit { namespace: "default".into(), tasks, ..Submit::default() };
        let ids: HashSet<TaskId> = one.submit(submit).await.unwrap().tasks.iter().map(|task| task.id).collect();
        let (a, b, c) = tokio::join!(
            work(one.clone(), "a", true),
            work(two.clone(), "b", true),
            work(two.clone(), "c", true),
        );
        let all: Vec<TaskId> = [a, b, c].concat();
        assert_eq!(all.len(), 300);
        assert_eq!(all.into_iter().collect::<HashSet<_>>(), ids);
    }

    /// Work that one instance takes in wakes a worker that waits at another.
    fn a_worker_at_another_instance_is_woken(place) {
        let (one, two) = (place.live_engine().await, place.live_engine().await);
        let waiting = tokio::spawn(async move {
            let ask = LeaseRequest { wait: Duration::from_secs(20), ..LeaseRequest::new("default", "w") };
            two.lease(ask).await.unwrap()
        });
        let id = submit(&one, TaskSpec::new("brand-new-kind")).await;
        assert_eq!(waiting.await.unwrap()[0].lease.task, id);
    }

    /// A dead worker's task comes back within its lease and two seconds (R-I6).
    fn a_dead_workers_task_is_given_to_another(place) {
        let engine = place.live_engine().await;
        let id = submit(&engine, spec("a", json!({"strategy": "immediate"}))).await;
        let short = LeaseRequest { lease: Millis(300), ..LeaseRequest::new("default", "dies") };
        assert_eq!(engine.lease(short).await.unwrap().len(), 1);
        let ask = LeaseRequest { wait: Duration::from_secs(20), ..LeaseRequest::new("default", "lives") };
        let leased = engine.lease(ask).await.unwrap();
        assert_eq!((leased[0].lease.task, leased[0].lease.number), (id, 2));
    }

    /// Fifty callers at once, each with one task: combined, and each with its own answer.
    fn many_callers_are_served_together(place) {
        let engine = place.live_engine().await;
        let mut callers = tokio::task::JoinSet::new();
        for n in 0..50 {
            let engine = engine.clone();
            callers.spawn(async move { submit(&engine, TaskSpec::new(format!("kind-{}", n % 5))).await });
        }
        let ids: HashSet<TaskId> = callers.join_all().await.into_iter().collect();
        assert_eq!(ids.len(), 50);
        assert_eq!(work(engine, "w", false).await.len(), 50);
    }

    /// What is old goes as fast as it can, not one batch every half minute: also where nothing but keys is left to forget.
    fn retention_keeps_up(place) {
        let quiet = place.live_engine().await;
        let mut callers = tokio::task::JoinSet::new();
        for n in 0..2_100 {
            let engine = quiet.clone();
            let key = Idempotency { scope: "submit".into(), key: format!("k{n}"), digest: [1; 32] };
            let submit = Submit { idempotency: Some(key), ..Submit::one("default", TaskSpec::new("a")) };
            callers.spawn(async move { engine.submit(submit).await.map(|_| ()) });
        }
        for submitted in callers.join_all().await {
            submitted.unwrap();
        }
        let config = EngineConfig { retention: Some(Millis(1)), ..EngineConfig::default() };
        let forgets = Engine::start(place.store().await, SystemClock::new(), config).await.unwrap();
        let began = std::time::Instant::now();
        for n in 0..2_100 {
            let key = Idempotency { scope: "submit".into(), key: format!("k{n}"), digest: [1; 32] };
            while forgets.is_done("default", &key).await.unwrap() {
                assert!(began.elapsed() < Duration::from_secs(20), "key {n} is still there");
                tokio::task::yield_now().await;
            }
        }
    }

    fn a_closed_engine_lets_go_of_its_database(place) {
        for _ in 0..3 {
            let engine = place.live_engine().await;
            submit(&engine, TaskSpec::new("a")).await;
            engine.close().await;
            place.forget();
        }
        let engine = place.live_engine().await;
        assert_eq!(lease(&engine, 10).await.len(), 3);
    }
}
