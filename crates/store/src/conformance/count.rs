//! What hooks count while they run.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use super::cases;
use super::world::World;
use crate::*;
use comeback_core::*;
use serde_json::json;

async fn count(w: &World, task: TaskId, success: u32, failures: u32, expected: Option<u32>) -> bool {
    w.store.count(&[Count { task, success, failures, expected }], w.now()).await.unwrap()[0]
}

cases! { "count";
    /// S1-40, F1-18: counts add up, and what is expected is replaced.
    fn counts_add_up_while_a_task_runs(w) {
        let mut new = w.new_task("a");
        new.task.tally.expected = Some(10);
        let id = w.running(new).await.stored.task.id;
        assert_eq!(w.load(id).await.task.tally, task::Tally { expected: Some(10), success: 0, failures: 0 });
        assert!(count(&w, id, 3, 1, None).await);
        assert!(count(&w, id, 2, 0, Some(7)).await);
        assert_eq!(w.load(id).await.task.tally, task::Tally { expected: Some(7), success: 5, failures: 1 });
        let most = i32::MAX.cast_unsigned();
        assert!(count(&w, id, most, most, None).await);
        assert_eq!(w.load(id).await.task.tally, task::Tally { expected: Some(7), success: most, failures: most });
    }

    fn what_several_tasks_counted_is_written_together(w) {
        let mut ids = Vec::new();
        for _ in 0..3 {
            ids.push(w.running(w.new_task("a")).await.stored.task.id);
        }
        let waiting = w.submit(vec![w.new_task("a")]).await[0];
        let of = |task: &TaskId, n: u32| Count { task: *task, success: n, failures: 0, expected: None };
        let counts = [of(&ids[2], 3), of(&waiting, 9), of(&ids[0], 1), of(&ids[1], 2)];
        assert_eq!(w.store.count(&counts, w.now()).await.unwrap(), [true, false, true, true]);
        for (n, id) in (1..).zip(&ids) {
            assert_eq!(w.load(*id).await.task.tally.success, n);
        }
    }

    /// A14: a count is a sign of life.
    fn a_count_moves_the_inactivity_limit(w) {
        let mut new = w.new_task("a");
        new.task.timeout = Some(Millis(10_000));
        new.task.attempt_deadline = Some(Millis(15_000));
        let (id, start) = (w.running(new).await.stored.task.id, w.now());
        for (after, limit) in [(4_000, 14_000), (4_000, 15_000)] {
            w.pass(after);
            count(&w, id, 1, 0, None).await;
            assert_eq!(w.load(id).await.task.timeout_at, Some(start + Millis(limit)));
        }
    }

    fn what_does_not_run_counts_nothing(w) {
        let id = w.submit(vec![w.new_task("a")]).await[0];
        assert!(!count(&w, id, 1, 1, None).await);
        assert!(!count(&w, w.id(), 1, 1, None).await, "nobody");
        let claimed = w.claim(1).await.remove(0);
        w.succeed(&claimed.stored).await;
        assert!(!count(&w, id, 1, 1, None).await);
        assert_eq!(w.load(id).await.task.tally, task::Tally::default());
    }

    /// S0-79: who waits for a retry, was retried or ran out of them, by state; nobody else.
    fn retried_tasks_are_counted_by_state(w) {
        assert!(w.store.retried("default").await.unwrap().by_state.is_empty());
        for (policy, kind) in [(json!({}), "again"), (json!({"max_retries": 0}), "out")] {
            let claimed = w.running(w.retrying_task(kind, policy)).await;
            let failed = w.decide(&claimed.stored, End::Failed(Failure::new(Trigger::Error, "no")));
            assert_eq!(w.apply(failed).await, Applied::Done);
        }
        let plain = w.running(w.new_task("plain")).await;
        w.succeed(&plain.stored).await;
        w.submit(vec![w.new_task("plain")]).await;
        let counts = w.store.retried("default").await.unwrap().by_state;
        assert_eq!(counts, [(State::RetryPending, 1), (State::Dead, 1)].into());
    }

    /// F1-17: executions with what their tasks are and have counted, the newest first.
    fn executions_are_listed_with_what_is_in_them(w) {
        let mut all = Vec::new();
        for _ in 0..3 {
            all.push(w.execution(&["a", "b"], &["a>b"]).await);
            w.pass(1_000);
        }
        let page = |after, skip, limit| ExecutionQuery { after, skip, limit, ..ExecutionQuery::default() };
        let ids = async |page: ExecutionQuery| -> Vec<ExecutionId> {
            let views = w.store.executions("default", &page).await.unwrap();
            views.iter().map(|view| view.execution.id).collect()
        };
        let newest: Vec<ExecutionId> = all.iter().rev().map(|(id, _)| *id).collect();
        assert_eq!(ids(page(None, 0, 10)).await, newest);
        assert_eq!(ids(page(None, 1, 1)).await, newest[1..2]);
        assert_eq!(ids(page(Some(newest[0]), 0, 10)).await, newest[1..]);
        assert!(w.store.executions("elsewhere", &page(None, 0, 10)).await.unwrap().is_empty());
        let claimed = w.claim(1).await.remove(0);
        let task = claimed.stored.task.id;
        count(&w, task, 3, 2, Some(9)).await;
        let view = w.store.execution("default", all[0].0).await.unwrap().unwrap();
        assert_eq!(view.counts, [(State::Running, 1), (State::Waiting, 1)].into());
        assert_eq!(view.counted, Counted { success: 3, failures: 2, expected: None }, "one does not say what it expects");
        assert_eq!(view.changed_at, w.now());
        assert_eq!(view.kinds.len(), w.store.graph(all[0].0, None).await.unwrap().unwrap().tasks.iter()
            .map(|it| it.stored.task.lane.kind.clone()).collect::<std::collections::BTreeSet<_>>().len());
    }
}
