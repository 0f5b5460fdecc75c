//! Tasks that belong together.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use super::cases;
use super::world::World;
use crate::*;
use comeback_core::transition::{self, Actor};
use comeback_core::*;
use serde_json::json;

fn dense(log: &[Event]) {
    let numbers: Vec<u32> = log.iter().map(|event| event.seq).collect();
    assert!(numbers.iter().zip(1..).all(|(seq, expected)| *seq == expected), "R-I18: {numbers:?}");
}

async fn succeed(w: &World, id: ExecutionId, task: TaskId) -> Applied {
    w.settle_in(id, task, End::Succeeded { result: None }).await
}

cases! { "execution";
    fn a_chain_runs_one_after_the_other(w) {
        let (id, tasks) = w.execution(&["a", "b", "c"], &["a>b", "b>c"]).await;
        for name in ["a", "b", "c"] {
            let claimed = w.claim(10).await;
            assert_eq!(claimed.len(), 1);
            assert_eq!(claimed[0].stored.task.id, tasks[name]);
            assert_eq!(succeed(&w, id, tasks[name]).await, Applied::Done);
        }
        let view = w.store.execution("default", id).await.unwrap().unwrap();
        assert_eq!((view.execution.state, view.execution.open), (ExecutionState::Succeeded, 0));
        assert_eq!(view.counts, [(State::Succeeded, 3)].into());
        dense(&w.execution_log(id).await);
        for task in tasks.values() {
            w.check_log(*task).await;
        }
    }

    /// E2: the first lease starts the execution, in the same transaction.
    fn the_first_lease_starts_the_execution(w) {
        let (id, _) = w.execution(&["a", "b"], &[]).await;
        w.claim(1).await;
        let view = w.store.execution("default", id).await.unwrap().unwrap();
        assert_eq!((view.execution.state, view.execution.started_at), (ExecutionState::Running, Some(w.now())));
        w.claim(1).await;
        let log = w.execution_log(id).await;
        let starts = log.iter().filter(|event| event.kind == EventKind::ExecutionStarted).count();
        assert_eq!(starts, 1);
        dense(&log);
    }

    fn a_lease_inside_an_execution_is_written_at_once(w) {
        let (id, tasks) = w.execution(&["a"], &[]).await;
        w.claim(1).await;
        assert_eq!(w.execution_log(id).await.last().unwrap().kind, EventKind::AttemptStarted);
        assert_eq!(w.load(tasks["a"]).await.task.unwritten, Unwritten::default());
        w.check_log(tasks["a"]).await;
    }

    fn the_end_of_a_parent_and_the_start_of_its_child_are_one_commit(w) {
        let (id, tasks) = w.execution(&["a", "b"], &["a>b"]).await;
        w.claim(1).await;
        succeed(&w, id, tasks["a"]).await;
        assert_eq!((w.state(tasks["a"]).await, w.state(tasks["b"]).await), (State::Succeeded, State::Pending));
        let log = w.execution_log(id).await;
        let kinds: Vec<&str> = log.iter().map(|event| event.kind.word()).collect();
        assert_eq!(kinds[4..], ["execution.started", "attempt.started", "attempt.succeeded", "task.succeeded", "task.ready"]);
        dense(&log);
    }

    /// R-I2: one stale row, and nothing of the commit is written.
    fn a_commit_with_one_stale_row_writes_nothing(w) {
        let (id, tasks) = w.execution(&["a", "b"], &["a>b"]).await;
        w.claim(1).await;
        let mut working = w.working(id).await;
        let stored = w.load(tasks["a"]).await;
        working.apply(w.decide(&stored, End::Succeeded { result: None }), w.now()).unwrap();
        let commit = working.into_commit();
        let beat = Beat { task: tasks["a"], lease_number: 1, extend: Millis(90_000), progress: None };
        w.store.heartbeat(&[beat], w.now()).await.unwrap();
        let before = (w.load(tasks["a"]).await, w.load(tasks["b"]).await, w.execution_log(id).await);
        assert_eq!(w.apply(commit).await, Applied::Stale);
        assert_eq!((w.load(tasks["a"]).await, w.load(tasks["b"]).await, w.execution_log(id).await), before);
    }

    fn a_commit_on_an_old_execution_is_stale(w) {
        let (id, tasks) = w.execution(&["a", "b", "c"], &["a>c", "b>c"]).await;
        w.claim(2).await;
        let (mut one, mut two) = (w.working(id).await, w.working(id).await);
        for (working, name) in [(&mut one, "a"), (&mut two, "b")] {
            let stored = w.load(tasks[name]).await;
            working.apply(w.decide(&stored, End::Succeeded { result: None }), w.now()).unwrap();
        }
        assert_eq!(w.apply(one.into_commit()).await, Applied::Done);
        assert_eq!(w.apply(two.into_commit()).await, Applied::Stale, "c's count would be wrong");
        succeed(&w, id, tasks["b"]).await;
        assert_eq!(w.state(tasks["c"]).await, State::Pending);
    }

    /// Two parents end at the same moment on different instances: the join is neither lost nor doubled.
    fn parents_that_end_together_free_their_child_once(w) {
        for _ in 0..5 {
            let (id, tasks) = w.execution(&["a", "b", "c"], &["a>c", "b>c"]).await;
            w.claim(2).await;
            let settle = |name: &str| {
                let (w, task) = (w.clone(), tasks[name]);
                async move {
                    while succeed(&w, id, task).await == Applied::Stale {}
                }
            };
            tokio::join!(settle("a"), settle("b"));
            let claimed = w.claim(10).await;
            assert_eq!(claimed.len(), 1);
            assert_eq!(claimed[0].stored.task.id, tasks["c"]);
            dense(&w.execution_log(id).await);
            succeed(&w, id, tasks["c"]).await;
        }
    }

    /// I-3, S1-46: the child of a retrying parent waits.
    fn a_retry_moves_no_neighbour(w) {
        let (mut submission, id, tasks) = w.new_execution(&["a", "b"], &["a>b"]);
        submission.tasks[0].policy = w.retrying_task("x", json!({"initial_delay": "5s"})).policy;
        w.submit_one(submission).await;
        w.claim(1).await;
        let before = w.load(tasks["b"]).await;
        w.settle_in(id, tasks["a"], End::Failed(Failure::new(Trigger::Error, "x"))).await;
        assert_eq!(w.state(tasks["a"]).await, State::RetryPending);
        assert_eq!(w.load(tasks["b"]).await, before);
        w.pass(5_000);
        assert_eq!(w.promote().await.count, 1);
        dense(&w.execution_log(id).await);
        assert_eq!(w.execution_log(id).await.last().unwrap().kind, EventKind::TaskRetryDue);
        w.claim(1).await;
        succeed(&w, id, tasks["a"]).await;
        assert_eq!(w.state(tasks["b"]).await, State::Pending);
        w.check_log(tasks["a"]).await;
    }

    /// E5: the tasks keep their states and are not offered.
    fn a_paused_execution_is_neither_leased_nor_promoted(w) {
        let (mut submission, id, tasks) = w.new_execution(&["a", "b"], &[]);
        submission.tasks[0].policy = w.retrying_task("x", json!({"initial_delay": "1s"})).policy;
        w.submit_one(submission).await;
        let first = w.claim(1).await.remove(0).stored.task.id;
        assert_eq!(first, tasks["a"]);
        w.settle_in(id, first, End::Failed(Failure::new(Trigger::Error, "x"))).await;
        let mut working = w.working(id).await;
        let paused = working.execution().pause(w.now()).unwrap();
        working.set_paused(paused, &Actor::default(), w.now());
        assert_eq!(w.apply(working.into_commit()).await, Applied::Done);
        w.pass(10_000);
        assert_eq!(w.promote().await.count, 0);
        assert!(w.claim(10).await.is_empty());
        assert_eq!((w.state(tasks["a"]).await, w.state(tasks["b"]).await), (State::RetryPending, State::Pending));
        let mut working = w.working(id).await;
        let resumed = working.execution().resume(w.now()).unwrap();
        working.set_paused(resumed, &Actor::default(), w.now());
        w.apply(working.into_commit()).await;
        assert_eq!(w.promote().await.count, 1);
        assert_eq!(w.claim(10).await.len(), 2);
        dense(&w.execution_log(id).await);
    }

    fn canceling_an_execution_ends_everything(w) {
        let (id, tasks) = w.execution(&["a", "b", "c"], &["a>b"]).await;
        w.claim(1).await;
        let mut working = w.working(id).await;
        working.cancel(Reason::ExecutionCanceled, &Actor { by: Some("ana".into()), ..Actor::default() }, w.now()).unwrap();
        assert_eq!(w.apply(working.into_commit()).await, Applied::Done);
        for task in tasks.values() {
            assert_eq!(w.state(*task).await, State::Canceled);
        }
        let view = w.store.execution("default", id).await.unwrap().unwrap();
        assert_eq!(view.execution.state, ExecutionState::Canceled);
        assert!(w.claim(10).await.is_empty());
        dense(&w.execution_log(id).await);
    }

    /// E7: out of a failed execution, with what waited for it.
    fn a_failed_execution_is_reopened_by_a_manual_retry(w) {
        let (id, tasks) = w.execution(&["a", "b"], &["a>b"]).await;
        w.claim(1).await;
        w.settle_in(id, tasks["a"], End::Failed(Failure::new(Trigger::Error, "x"))).await;
        assert_eq!(w.state(tasks["b"]).await, State::Skipped);
        let mut working = w.working(id).await;
        let failed = w.load(tasks["a"]).await.task;
        let retried = transition::manual_retry(&failed, false, &Actor::default(), w.now()).unwrap();
        working.reopen(retried, w.now()).unwrap();
        assert_eq!(w.apply(working.into_commit()).await, Applied::Done);
        assert_eq!((w.state(tasks["a"]).await, w.state(tasks["b"]).await), (State::Pending, State::Waiting));
        w.claim(1).await;
        succeed(&w, id, tasks["a"]).await;
        w.claim(1).await;
        succeed(&w, id, tasks["b"]).await;
        let view = w.store.execution("default", id).await.unwrap().unwrap();
        assert_eq!(view.execution.state, ExecutionState::Succeeded);
        dense(&w.execution_log(id).await);
        for task in tasks.values() {
            w.check_log(*task).await;
        }
    }

    /// What never ran waits for its own time when it comes back; a person who asks for it by hand has waited enough.
    fn a_task_that_comes_back_still_has_its_start(w) {
        let (mut submission, id, tasks) = w.new_execution(&["a", "b"], &["a>b"]);
        let start = w.now() + Millis(3_600_000);
        submission.tasks[1].task.start_at = Some(start);
        w.submit_one(submission).await;
        w.claim(1).await;
        w.settle_in(id, tasks["a"], End::Failed(Failure::new(Trigger::Error, "x"))).await;
        assert_eq!(w.state(tasks["b"]).await, State::Skipped);
        w.pass(1_000);
        let mut working = w.working(id).await;
        let failed = w.load(tasks["a"]).await.task;
        let retried = transition::manual_retry(&failed, false, &Actor::default(), w.now()).unwrap();
        working.reopen(retried, w.now()).unwrap();
        assert_eq!(w.apply(working.into_commit()).await, Applied::Done);
        w.claim(1).await;
        succeed(&w, id, tasks["a"]).await;
        let b = w.load(tasks["b"]).await.task;
        assert_eq!((b.state, b.start_at, b.due()), (State::Waiting, Some(start), Some(start)));
        let mut late = w.delayed_task("late", 3_600_000);
        late.task.expires_at = Some(w.now() + Millis(1_000));
        let late = w.submit(vec![late]).await[0];
        w.pass(1_000);
        w.apply(transition::expire(&w.load(late).await.task, false, w.now()).unwrap()).await;
        let retried = transition::manual_retry(&w.load(late).await.task, false, &Actor::default(), w.now()).unwrap();
        w.apply(retried).await;
        let task = w.load(late).await.task;
        assert_eq!((task.state, task.start_at), (State::Pending, None));
    }

    fn a_deadline_that_is_renewed_again_has_its_first_span(w) {
        let mut new = w.new_task("a");
        new.task.expires_at = Some(w.now() + Millis(60_000));
        let id = w.submit(vec![new]).await[0];
        for _ in 0..3 {
            w.pass(1_000_000);
            w.apply(transition::expire(&w.load(id).await.task, false, w.now()).unwrap()).await;
            let dead = w.load(id).await.task;
            w.apply(transition::manual_retry(&dead, false, &Actor::default(), w.now()).unwrap()).await;
            assert_eq!(w.load(id).await.task.expires_at, Some(w.now() + Millis(60_000)));
        }
    }

    fn a_part_of_a_graph_comes_with_its_neighbours(w) {
        let (id, tasks) = w.execution(&["a", "b", "c", "d", "e"], &["a>b", "b>c", "c>d", "b*e"]).await;
        let graph = w.store.graph(id, Some(&[tasks["b"]])).await.unwrap().unwrap();
        let mut found: Vec<TaskId> = graph.tasks.iter().map(|it| it.stored.task.id).collect();
        found.sort();
        let mut expected = vec![tasks["a"], tasks["b"], tasks["c"], tasks["e"]];
        expected.sort();
        assert_eq!(found, expected);
        let b = graph.tasks.iter().find(|it| it.stored.task.id == tasks["b"]).unwrap();
        let edges = b.edges.as_ref().unwrap();
        assert_eq!((edges.into.len(), edges.out.len()), (1, 2), "with all its edges");
        assert_eq!(w.store.graph(id, None).await.unwrap().unwrap().tasks.len(), 5);
        assert!(w.store.graph(ExecutionId(w.id().0), None).await.unwrap().is_none());
    }

    fn a_graph_holds_what_is_over_too(w) {
        let (id, tasks) = w.execution(&["a", "b"], &["a>b"]).await;
        w.claim(1).await;
        succeed(&w, id, tasks["a"]).await;
        let graph = w.store.graph(id, Some(&[tasks["b"]])).await.unwrap().unwrap();
        let states: std::collections::BTreeMap<TaskId, State> =
            graph.tasks.iter().map(|it| (it.stored.task.id, it.stored.task.state)).collect();
        assert_eq!(states, [(tasks["a"], State::Succeeded), (tasks["b"], State::Pending)].into());
    }

    fn a_wide_execution_is_claimed_by_many_without_a_gap(w) {
        let names: Vec<String> = (0..60).map(|n| format!("t{n:02}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let (id, tasks) = w.execution(&names, &[]).await;
        let mut workers = tokio::task::JoinSet::new();
        for _ in 0..4 {
            let w = w.clone();
            workers.spawn(async move {
                let mut empty = 0;
                while empty < 5 {
                    let claimed = w.claim(7).await;
                    empty = if claimed.is_empty() { empty + 1 } else { 0 };
                    for it in claimed {
                        while succeed(&w, id, it.stored.task.id).await == Applied::Stale {}
                    }
                }
            });
        }
        workers.join_all().await;
        let log = w.execution_log(id).await;
        dense(&log);
        assert_eq!(log.len(), 1 + 60 * 2 + 1 + 60 * 3 + 1);
        let view = w.store.execution("default", id).await.unwrap().unwrap();
        assert_eq!((view.execution.state, view.counts[&State::Succeeded]), (ExecutionState::Succeeded, 60));
        assert_eq!(tasks.len(), 60);
    }

    fn a_lone_task_is_its_own_execution(w) {
        let claimed = w.running(w.new_task("a")).await;
        w.succeed(&claimed.stored).await;
        let log = w.execution_log(claimed.stored.task.id.implicit_execution()).await;
        assert_eq!(log.len(), 5);
        dense(&log);
        assert!(w.store.execution("default", claimed.stored.task.id.implicit_execution()).await.unwrap().is_none());
    }
}
