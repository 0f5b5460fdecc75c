//! Forgetting what is over and old, and nothing else.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use super::cases;
use crate::*;
use comeback_core::transition::{self, Actor};
use comeback_core::*;
use serde_json::json;

cases! { "prune";
    fn what_ended_before_is_gone_with_its_history(w) {
        let claimed = w.running(w.new_task("a")).await;
        w.succeed(&claimed.stored).await;
        let id = claimed.stored.task.id;
        w.pass(1_000);
        assert_eq!(w.store.prune(w.now(), 100).await.unwrap().tasks, 1);
        assert!(w.store.load(&[id]).await.unwrap()[0].is_none());
        assert!(w.records(id).await.is_empty());
        assert!(w.list("").await.is_empty());
        assert!(w.store.feed(None, 100).await.unwrap().events.is_empty());
    }

    fn what_ended_later_stays(w) {
        let claimed = w.running(w.new_task("a")).await;
        w.pass(1_000);
        w.succeed(&claimed.stored).await;
        assert_eq!(w.store.prune(w.now(), 100).await.unwrap().tasks, 0);
        assert_eq!(w.state(claimed.stored.task.id).await, State::Succeeded);
        w.check_log(claimed.stored.task.id).await;
    }

    /// Open work is never touched, however old it is.
    fn open_work_is_never_touched(w) {
        let policy = json!({"strategy": "fixed", "delay": "300d", "max_retries": 3});
        let running = w.running(w.retrying_task("a", policy.clone())).await.stored.task.id;
        let claimed = w.running(w.retrying_task("a", policy)).await;
        w.fail(&claimed.stored).await;
        let delayed = w.submit(vec![w.delayed_task("a", 86_400_000 * 300)]).await[0];
        let pending = w.submit_many("a", 1).await[0];
        let paused = w.submit_many("a", 1).await[0];
        let task = w.load(paused).await.task;
        w.apply(transition::pause(&task, &Actor::default(), w.now()).unwrap()).await;
        w.pass(86_400_000 * 200);
        assert_eq!(w.store.prune(w.now(), 1_000).await.unwrap().tasks, 0);
        for id in [running, claimed.stored.task.id, delayed, pending, paused] {
            w.check_log(id).await;
        }
    }

    fn no_more_than_the_limit_at_a_time(w) {
        w.submit_many("a", 10).await;
        for it in w.claim(10).await {
            w.succeed(&it.stored).await;
        }
        w.pass(1);
        assert_eq!(w.store.prune(w.now(), 4).await.unwrap().tasks, 4);
        assert_eq!(w.store.prune(w.now(), 4).await.unwrap().tasks, 4);
        assert_eq!(w.store.prune(w.now(), 4).await.unwrap().tasks, 2);
        assert_eq!(w.store.prune(w.now(), 4).await.unwrap().tasks, 0);
    }

    fn what_would_go_is_counted_beforehand(w) {
        w.submit_many("a", 3).await;
        assert_eq!(w.store.prunable(w.now()).await.unwrap(), 0, "it is open");
        for it in w.claim(10).await {
            w.succeed(&it.stored).await;
        }
        assert_eq!(w.store.prunable(w.now()).await.unwrap(), 0, "what ended now did not end before");
        w.pass(1);
        w.execution(&["x", "y"], &["x>y"]).await;
        assert_eq!(w.store.prunable(w.now()).await.unwrap(), 3, "an execution that is open is not over");
        assert_eq!(w.store.prune(w.now(), 100).await.unwrap().tasks, 3);
        assert_eq!(w.store.prunable(w.now()).await.unwrap(), 0);
    }

    /// A finished task of an execution that goes on is still part of its story.
    fn an_execution_goes_as_a_whole_or_not_at_all(w) {
        let (id, tasks) = w.execution(&["a", "b"], &["a>b"]).await;
        w.claim(1).await;
        w.settle_in(id, tasks["a"], End::Succeeded { result: None }).await;
        w.pass(1_000);
        assert_eq!(w.store.prune(w.now(), 100).await.unwrap().tasks, 0);
        assert_eq!(w.state(tasks["a"]).await, State::Succeeded);
        w.claim(1).await;
        w.settle_in(id, tasks["b"], End::Succeeded { result: None }).await;
        w.pass(1);
        assert_eq!(w.store.prune(w.now(), 100).await.unwrap().tasks, 2);
        assert!(w.store.execution("default", id).await.unwrap().is_none());
        assert!(w.execution_log(id).await.is_empty());
        assert!(w.store.load(&[tasks["a"], tasks["b"]]).await.unwrap().iter().all(Option::is_none));
    }

    /// What is small goes as fast as lone tasks do, and whoever prunes is told whether there is more.
    fn small_executions_are_counted_by_their_tasks(w) {
        for _ in 0..9 {
            let (id, tasks) = w.execution(&["a", "b"], &[]).await;
            w.claim(2).await;
            w.settle_in(id, tasks["a"], End::Succeeded { result: None }).await;
            w.settle_in(id, tasks["b"], End::Succeeded { result: None }).await;
        }
        w.pass(1_000);
        assert_eq!(w.store.prune(w.now(), 10).await.unwrap(), Pruned { tasks: 10, more: true });
        assert_eq!(w.store.prune(w.now(), 1).await.unwrap(), Pruned { tasks: 2, more: true }, "one at least, and whole");
        assert_eq!(w.store.prune(w.now(), 1_000).await.unwrap(), Pruned { tasks: 6, more: false });
    }

    fn whoever_forgets_keys_or_the_feed_is_told_whether_there_is_more(w) {
        for key in ["a", "b", "c"] {
            let key = Some(Idempotency { scope: "s".into(), key: key.into(), digest: [1; 32] });
            w.submit_one(Submission { idempotency: key, ..w.submission(vec![w.new_task("a")]) }).await;
        }
        w.pass(1_000);
        assert_eq!(w.store.prune(w.now(), 2).await.unwrap(), Pruned { tasks: 0, more: true });
        assert_eq!(w.store.prune(w.now(), 2).await.unwrap(), Pruned { tasks: 0, more: false });
    }

    fn the_keys_of_what_was_asked_long_ago_are_forgotten(w) {
        let key = Some(Idempotency { scope: "s".into(), key: "k".into(), digest: [1; 32] });
        w.submit_one(Submission { idempotency: key.clone(), ..w.submission(vec![w.new_task("a")]) }).await;
        w.pass(1_000);
        w.store.prune(w.now(), 100).await.unwrap();
        let again = w.submit_one(Submission { idempotency: key, ..w.submission(vec![w.new_task("a")]) }).await;
        assert!(matches!(again, Submitted::Created(_)));
    }

    fn a_retried_task_is_judged_by_its_last_end(w) {
        let claimed = w.running(w.retrying_task("a", json!({"max_retries": 0}))).await;
        w.fail(&claimed.stored).await;
        let id = claimed.stored.task.id;
        w.pass(1_000);
        let limit = w.now();
        let dead = w.load(id).await.task;
        w.apply(transition::manual_retry(&dead, false, &Actor::default(), w.now()).unwrap()).await;
        assert_eq!(w.store.prune(limit, 100).await.unwrap().tasks, 0, "it is open again");
        let claimed = w.claim(1).await.remove(0);
        w.pass(1_000);
        w.succeed(&claimed.stored).await;
        assert_eq!(w.store.prune(limit, 100).await.unwrap().tasks, 0);
        w.check_log(id).await;
    }
}
