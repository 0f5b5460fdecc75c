//! Reading what is there, and what is not.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;

use super::cases;
use crate::{OpenWork, Overdue};
use comeback_core::transition::Actor;
use comeback_core::*;
use serde_json::json;

cases! { "read";
    fn tasks_are_loaded_in_the_order_asked_for(w) {
        let mut ids = w.submit_many("a", 5).await;
        ids.reverse();
        ids.insert(2, w.id());
        let loaded = w.store.load(&ids).await.unwrap();
        let found: Vec<Option<TaskId>> = loaded.iter().map(|it| it.as_ref().map(|stored| stored.task.id)).collect();
        let expected: Vec<Option<TaskId>> = ids.iter().enumerate().map(|(n, id)| (n != 2).then_some(*id)).collect();
        assert_eq!(found, expected);
        assert!(w.store.load(&[]).await.unwrap().is_empty());
    }

    fn the_same_task_may_be_asked_for_twice(w) {
        let id = w.submit_many("a", 1).await[0];
        assert_eq!(w.store.load(&[id, id]).await.unwrap().iter().flatten().count(), 2);
    }

    fn open_and_finished_tasks_load_alike(w) {
        let first = w.running(w.new_task("a")).await;
        w.succeed(&first.stored).await;
        let second = w.submit_many("a", 1).await[0];
        let loaded = w.store.load(&[first.stored.task.id, second]).await.unwrap();
        let states: Vec<State> = loaded.iter().flatten().map(|it| it.task.state).collect();
        assert_eq!(states, [State::Succeeded, State::Pending]);
    }

    fn a_finished_task_keeps_what_it_was(w) {
        let mut new = w.retrying_task("a", json!({"max_retries": 0}));
        new.task.priority = 4;
        new.task.timeout = Some(Millis(5_000));
        new.task.attempt_deadline = Some(Millis(6_000));
        let claimed = w.running(new.clone()).await;
        w.pass(10);
        let change = w.decide(&claimed.stored, End::Failed(Failure::new(Trigger::Error, "x")));
        let expected = change.after().clone();
        w.apply(change).await;
        let stored = w.load(new.task.id).await;
        assert_eq!(stored.task, expected);
        assert_eq!(stored.policy, new.policy);
    }

    /// R-I23: another namespace's task does not exist.
    fn a_task_of_another_namespace_is_not_there(w) {
        let mut new = w.new_task("a");
        new.task.lane = Arc::new(Lane { namespace: "other".into(), ..(*new.task.lane).clone() });
        let id = w.submit(vec![new]).await[0];
        assert!(w.store.task("default", id).await.unwrap().is_none());
        assert!(w.store.task("other", id).await.unwrap().is_some());
        assert!(w.store.task("nowhere", id).await.unwrap().is_none());
    }

    fn an_execution_of_another_namespace_is_not_there(w) {
        let (id, _) = w.execution(&["a"], &[]).await;
        assert!(w.store.execution("default", id).await.unwrap().is_some());
        assert!(w.store.execution("other", id).await.unwrap().is_none());
    }

    fn a_view_has_the_needs_of_a_task(w) {
        let (_, tasks) = w.execution(&["a", "b"], &["a!b"]).await;
        let view = w.store.task("default", tasks["b"]).await.unwrap().unwrap();
        assert_eq!(view.needs, [Edge { from: tasks["a"], to: tasks["b"], when: When::Failure, on_unmet: OnUnmet::Skip }]);
        assert_eq!(view.body.key.as_deref(), Some("b"));
    }

    fn a_view_tells_the_last_failure_and_the_last_verdict(w) {
        let mut stored = w.running(w.retrying_task("a", json!({"strategy": "immediate", "max_retries": 3}))).await.stored;
        for n in 1..=2 {
            let failure = Failure::new(Trigger::Error, format!("boom {n}"));
            w.end(&stored, End::Failed(failure)).await;
            w.promote().await;
            stored = w.claim(1).await.remove(0).stored;
        }
        w.succeed(&stored).await;
        let view = w.store.task("default", stored.task.id).await.unwrap().unwrap();
        assert_eq!(view.last_failure.unwrap().failure.unwrap().message, "boom 2");
        assert_eq!(view.last_decision.unwrap().decision.unwrap().after.attempt, 2);
        assert_eq!(view.stored.task.counters.attempt, 2, "D-21: kept after success");
        assert!(view.result.is_some());
    }

    fn counts_are_by_state_and_namespace(w) {
        w.submit_many("a", 3).await;
        let claimed = w.running({
            let mut new = w.new_task("a");
            new.task.priority = 9;
            new
        }).await;
        w.succeed(&claimed.stored).await;
        let mut other = w.new_task("a");
        other.task.lane = Arc::new(Lane { namespace: "other".into(), ..(*other.task.lane).clone() });
        w.submit(vec![other]).await;
        let counts = w.store.counts("default", w.now()).await.unwrap().by_state;
        assert_eq!(counts, [(State::Pending, 3), (State::Succeeded, 1)].into());
        assert_eq!(w.store.counts("other", w.now()).await.unwrap().by_state, [(State::Pending, 1)].into());
        assert!(w.store.counts("nowhere", w.now()).await.unwrap().by_state.is_empty());
    }

    fn what_is_held_is_counted_apart(w) {
        let again = |priority: i16| {
            let mut new = w.retrying_task("b", json!({"strategy": "fixed", "delay": "1m", "max_retries": 3}));
            new.task.priority = priority;
            w.running(new)
        };
        w.fail(&again(0).await.stored).await;
        w.submit_many("a", 2).await;
        assert!(w.store.counts("default", w.now()).await.unwrap().held.is_empty());
        let paused = w.load(w.submit(vec![w.new_task("c")]).await[0]).await.task;
        w.apply(transition::pause(&paused, &Actor::default(), w.now()).unwrap()).await;
        w.fail_held(&again(9).await.stored, 99_000).await;
        let counts = w.store.counts("default", w.now()).await.unwrap();
        assert_eq!(counts.held, [(State::Paused, 1), (State::RetryPending, 1)].into());
        assert_eq!(counts.by_state, [(State::Pending, 2), (State::Paused, 1), (State::RetryPending, 2)].into());
    }

    fn open_work_is_told_by_what_it_waits_for(w) {
        assert_eq!(w.store.open_work(w.now()).await.unwrap(), OpenWork::default());
        w.running(w.new_task("running")).await;
        let retrying = w.running(w.retrying_task("a", json!({"strategy": "fixed", "delay": "1m", "max_retries": 3}))).await;
        w.fail(&retrying.stored).await;
        w.submit_many("pending", 2).await;
        let mut elsewhere = w.delayed_task("later", 90_000);
        elsewhere.task.lane = Arc::new(Lane { namespace: "other".into(), ..(*elsewhere.task.lane).clone() });
        w.submit(vec![elsewhere, w.delayed_task("soon", 30_000)]).await;
        w.execution(&["a", "b"], &["a>b"]).await;
        let first = OpenWork {
            running: 1, pending: 3, scheduled: 3, next: Some(w.now() + Millis(30_000)), waiting: 1, ..OpenWork::default()
        };
        assert_eq!(w.store.open_work(w.now()).await.unwrap(), first);
        w.pass(68_000);
        let later = OpenWork {
            retries: Overdue { count: 1, late: Millis(8_000) }, starts: Overdue { count: 1, late: Millis(38_000) }, scheduled: 1,
            next: Some(w.now() + Millis(22_000)), ..first
        };
        assert_eq!(w.store.open_work(w.now()).await.unwrap(), later);
        let paused = transition::pause(&w.load(retrying.stored.task.id).await.task, &Actor::default(), w.now()).unwrap();
        w.apply(paused).await;
        let now = w.store.open_work(w.now()).await.unwrap();
        assert_eq!((now.retries.count, now.paused), (0, 1));
    }

    /// R-I24: what was acknowledged is seen by the next read.
    fn a_read_sees_what_was_acknowledged_before_it(w) {
        for _ in 0..30 {
            let claimed = w.running(w.new_task("a")).await;
            assert_eq!(w.state(claimed.stored.task.id).await, State::Running);
            w.succeed(&claimed.stored).await;
            assert_eq!(w.state(claimed.stored.task.id).await, State::Succeeded);
        }
    }
}
