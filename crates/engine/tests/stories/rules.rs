//! Admission rules as callers meet them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use comeback_core::State;
use comeback_core::admission::Rule;
use comeback_engine::store::{ListQuery, Store};
use comeback_engine::{Engine, LeaseRequest, TaskSpec};
use serde_json::{Value, json};

use crate::stories;
use crate::world::*;

pub async fn put(engine: &Engine, text: Value) {
    let rule: Rule = serde_json::from_value(text).expect("a rule");
    engine.put_rule("default", rule, &nobody()).await.expect("it is taken");
}

async fn blocked(engine: &Engine, id: comeback_core::TaskId) -> Option<String> {
    let task = engine.task("default", id).await.expect("the task exists").stored.task;
    engine.held_by_rule(&task).await.expect("reads").map(|by| by.words)
}

async fn open_tasks(engine: &Engine) -> usize {
    let filter = comeback_core::filter::Filter::parse("state:open", engine.now()).expect("a filter");
    let query =
        ListQuery { filter, sort: comeback_core::filter::Sort::Submitted, limit: 500, after: None, now: engine.now() };
    engine.store().list("default", &query).await.expect("lists").items.len()
}

stories! {
    /// S1-87: who waits for a retry frees its place, and the next one starts.
    fn a_waiting_retry_frees_its_place(place) {
        let engine = place.engine().await;
        put(&engine, json!({"name": "psp", "match": {"kind": "charge"}, "max_running": 1})).await;
        let retried = submit(&engine, spec("charge", json!({"strategy": "fixed", "delay": "30s"}))).await;
        let next = submit(&engine, TaskSpec::new("charge")).await;
        let first = lease(&engine, 10).await;
        assert_eq!(first.len(), 1);
        assert_eq!(blocked(&engine, next).await.as_deref(), Some("rule psp: 1 of 1 running"));
        report(&engine, &first[0], failed("x")).await.unwrap();
        assert_eq!((state(&engine, retried).await, blocked(&engine, next).await), (State::RetryPending, None));
        let second = lease_one(&engine).await;
        assert_eq!(second.lease.task, next);
        place.pass(30_000);
        engine.tick().await.unwrap();
        assert_eq!(state(&engine, retried).await, State::Pending);
        assert!(lease(&engine, 10).await.is_empty(), "it gets no place before there is one");
        report(&engine, &second, succeeded()).await.unwrap();
        assert_eq!(lease_one(&engine).await.lease.task, retried);
    }

    /// Two engines, six workers that wait, tasks that fail twice and come back: never more at once than allowed, on any of them.
    fn a_rule_holds_in_a_storm_of_retries(place) {
        const TASKS: u64 = 60;
        let (one, two) = (place.live_engine().await, place.live_engine().await);
        put(&one, json!({"name": "r", "per": ["tenant"], "max_running": 2})).await;
        for n in 0..TASKS {
            let retry = json!({"strategy": "fixed", "delay": "20ms", "max_retries": 5});
            let labels = [("tenant".to_owned(), format!("t{}", n % 2))].into();
            submit(&one, TaskSpec { labels, ..spec("a", retry) }).await;
        }
        let running = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let (most, done) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let mut workers = Vec::new();
        for n in 0..6 {
            let engine = if n % 2 == 0 { one.clone() } else { two.clone() };
            let (running, most, done) = (running.clone(), most.clone(), done.clone());
            workers.push(tokio::spawn(async move {
                while done.load(Ordering::SeqCst) < TASKS {
                    let wait = Duration::from_millis(300);
                    let request = LeaseRequest { limit: 3, wait, ..LeaseRequest::new("default", format!("w{n}")) };
                    let leased = engine.lease(request).await.expect("leases");
                    let of = |leased: &comeback_engine::Leased| usize::from(leased.labels["tenant"] == "t1");
                    for it in &leased {
                        most.fetch_max(running[of(it)].fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    }
                    tokio::task::yield_now().await;
                    for it in &leased {
                        running[of(it)].fetch_sub(1, Ordering::SeqCst);
                        let end = if it.run < 3 { failed("again") } else { succeeded() };
                        report(&engine, it, end).await.expect("it is heard");
                        done.fetch_add(u64::from(it.run >= 3), Ordering::SeqCst);
                    }
                }
            }));
        }
        for worker in workers {
            worker.await.expect("no panic");
        }
        let most = most.load(Ordering::SeqCst);
        assert!((1..=2).contains(&most), "{most} of one tenant ran at once");
        assert_eq!(open_tasks(&one).await, 0);
    }

    /// Whoever waits is told when a place is free, on another instance too, and when a rule is raised or goes.
    fn who_waits_is_told_of_a_free_place(place) {
        let (one, two) = (place.live_engine().await, place.live_engine().await);
        put(&one, json!({"name": "r", "max_running": 1})).await;
        for _ in 0..4 {
            submit(&one, TaskSpec::new("a")).await;
        }
        let first = lease_one(&one).await;
        let wait = |engine: &Engine| {
            let engine = engine.clone();
            let request = LeaseRequest { limit: 1, wait: Duration::from_secs(20), ..LeaseRequest::new("default", "v") };
            tokio::spawn(async move { engine.lease(request).await.expect("leases") })
        };
        let waiting = wait(&two);
        report(&one, &first, succeeded()).await.unwrap();
        assert_eq!(waiting.await.unwrap().len(), 1, "a place was freed elsewhere");
        let waiting = wait(&two);
        put(&one, json!({"name": "r", "max_running": 2})).await;
        assert_eq!(waiting.await.unwrap().len(), 1, "the rule was raised");
        let waiting = wait(&two);
        one.delete_rule("default", "r", &nobody()).await.unwrap();
        assert_eq!(waiting.await.unwrap().len(), 1, "the rule is gone");
    }

    /// A process that ended between changing a rule and moving the tasks leaves the rest to the next.
    fn a_change_that_broke_off_is_finished_by_another(place) {
        let store: Arc<dyn Store> = place.store().await;
        let engine = place.engine().await;
        for _ in 0..3 {
            submit(&engine, TaskSpec::new("a")).await;
        }
        let rule: Rule = serde_json::from_value(json!({"name": "r", "max_running": 1})).unwrap();
        store.put_rule("default", &rule, None, place.now()).await.unwrap();
        drop(engine);
        let live = place.live_engine().await;
        while !live.store().settle_rules().await.unwrap().is_done {}
        assert_eq!(lease(&live, 10).await.len(), 1);
    }

    fn a_rule_that_says_too_much_is_refused(place) {
        let engine = place.engine().await;
        let long = "x".repeat(1_000);
        for (text, path) in [
            (json!({"name": "", "max_running": 1}), "name"),
            (json!({"name": "~x", "max_running": 1}), "name"),
            (json!({"name": "r", "max_running": 2_000_000_000}), "max_running"),
            (json!({"name": "r", "capacity": 2_000_000_000}), "capacity"),
            (json!({"name": "r", "per": ["a", "a"], "max_running": 1}), "per"),
            (json!({"name": "r", "match": {"kind": long}, "max_running": 1}), "match.kind"),
        ] {
            let rule: Rule = serde_json::from_value(text.clone()).unwrap();
            let refused = engine.put_rule("default", rule, &nobody()).await.expect_err("refused");
            let comeback_engine::CommandError::Invalid(faults) = refused else { panic!("{refused}") };
            assert_eq!(faults.faults[0].path, path, "{text}");
        }
        assert!(engine.rules("default").await.unwrap().is_empty());
    }
}
