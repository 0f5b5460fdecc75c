//! Bulk operations: rows that are moved by whoever works them off, and marks that come with the changes they stand for.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use comeback_core::filter::Filter;
use comeback_core::operation::{Mark, OperationState, UndoSnapshot};
use comeback_core::transition::{self, Actor};
use comeback_core::*;
use uuid::Uuid;

use super::{World, cases};
use crate::operations::*;
use crate::*;

fn about(w: &World, total: u32) -> Operation {
    Operation {
        id: w.id().0,
        namespace: "default".into(),
        version: 1,
        state: OperationState::Running,
        total,
        done: 0,
        undone: 0,
        due: Some(w.now()),
        body: r#"{"a":1}"#.into(),
        standing: "{}".into(),
        created_at: w.now(),
        updated_at: w.now(),
        ended_at: None,
    }
}

async fn start(w: &World, ids: &[TaskId]) -> Operation {
    let operation = about(w, u32::try_from(ids.len()).unwrap());
    let started = w.store.start_operation(&operation, ids, None, None, w.now()).await.unwrap();
    assert_eq!(started, Started::New);
    operation
}

async fn get(w: &World, id: Uuid) -> Operation {
    w.store.operation("default", id).await.unwrap().expect("it is there")
}

async fn put(w: &World, operation: &Operation) -> Applied {
    w.store.put_operation(operation, Some(Loop::Operations), None, w.now()).await.unwrap()
}

async fn failed(w: &World, kind: &str) -> TaskId {
    let claimed = w.running(w.new_task(kind)).await;
    assert_eq!(w.fail(&claimed.stored).await, Applied::Done);
    claimed.stored.task.id
}

/// A retry as an operation makes it.
async fn retry(w: &World, operation: Uuid, task: TaskId) -> Commit {
    let before = w.load(task).await.task;
    let mut commit: Commit = transition::manual_retry(&before, false, &Actor::default(), w.now()).unwrap().into();
    commit.marks.push(Mark { operation, task, was: Some(UndoSnapshot::of(&before)) });
    commit
}

async fn apply(w: &World, commits: &[Commit]) -> Vec<Applied> {
    w.store.apply(commits, Some(Loop::Operations), w.now()).await.unwrap()
}

cases! { "operations";
    fn what_is_started_is_found(w) {
        let ids: Vec<TaskId> = (0..2_345).map(|_| w.id()).collect();
        let operation = start(&w, &ids).await;
        assert_eq!(get(&w, operation.id).await, operation);
        assert_eq!(w.store.operation("other", operation.id).await.unwrap(), None, "it is somebody's");
        assert_eq!(w.store.due_operations(w.now(), 9).await.unwrap(), std::slice::from_ref(&operation));
        assert_eq!(w.store.next_due().await.unwrap().operation, Some(w.now()));
        for (from, to) in [(0, 0), (0, 3), (998, 1_002), (1_000, 2_000), (2_340, 2_345), (0, 2_345), (2_345, 2_345)] {
            let found = w.store.operation_ids(operation.id, from, to).await.unwrap();
            assert_eq!(found, ids[from as usize..to as usize], "{from} to {to}");
        }
        let second = start(&w, &ids[..1]).await;
        let page = |before| w.store.operations("default", before, 1);
        assert_eq!(page(None).await.unwrap()[0].id, second.id, "newest first");
        assert_eq!(page(Some(second.id)).await.unwrap()[0].id, operation.id);
        assert!(page(Some(operation.id)).await.unwrap().is_empty());
        for mut over in [operation, second] {
            (over.state, over.due, over.ended_at) = (OperationState::Aborted, None, Some(w.now()));
            assert_eq!(put(&w, &over).await, Applied::Done);
        }
        assert_eq!(w.store.next_due().await.unwrap().operation, None);
    }

    fn of_two_who_go_on_with_it_one_does(w) {
        let operation = start(&w, &[]).await;
        w.pass(5);
        let moved = Operation { due: Some(w.now() + Millis(9)), standing: r#"{"next":1}"#.into(), ..operation.clone() };
        assert_eq!(put(&w, &moved).await, Applied::Done);
        assert_eq!(put(&w, &moved).await, Applied::Stale, "the version has moved");
        let found = get(&w, operation.id).await;
        assert_eq!(found, Operation { version: 2, updated_at: w.now(), ..moved });
        let pause = Pause { until: Timestamp::MAX, note: None, by: None, at: w.now() };
        w.store.set_pause(Loop::Operations, Some(pause), None, w.now()).await.unwrap();
        assert_eq!(put(&w, &found).await, Applied::Paused);
        assert_eq!(w.store.put_operation(&found, None, None, w.now()).await.unwrap(), Applied::Done, "a person may");
    }

    fn the_same_key_starts_it_once(w) {
        let key = Idempotency { scope: "bulk".into(), key: "k".into(), digest: [1; 32] };
        let (first, second) = (about(&w, 0), about(&w, 0));
        let begin = |operation: Operation, key: Idempotency| {
            let (store, now) = (w.store.clone(), w.now());
            async move { store.start_operation(&operation, &[], Some(&key), None, now).await.unwrap() }
        };
        assert_eq!(begin(first.clone(), key.clone()).await, Started::New);
        assert_eq!(begin(second.clone(), key.clone()).await, Started::Repeated(first.id));
        assert_eq!(begin(second.clone(), Idempotency { digest: [2; 32], ..key }).await, Started::Mismatch);
        assert_eq!(w.store.operation("default", second.id).await.unwrap(), None);
    }

    /// A step and the change that it stands for are one, and are taken once.
    fn a_step_is_taken_once(w) {
        let (a, b) = (failed(&w, "a").await, failed(&w, "b").await);
        let operation = start(&w, &[a, b]).await;
        let first = retry(&w, operation.id, a).await;
        assert_eq!(apply(&w, std::slice::from_ref(&first)).await, [Applied::Done]);
        let both = [first.clone(), retry(&w, operation.id, b).await];
        assert_eq!(apply(&w, &both).await, [Applied::Used(Used::ForThis), Applied::Done], "one bad item fails no other");
        let marks = w.store.marks(operation.id, &[a, b, w.id()]).await.unwrap();
        assert_eq!(marks.len(), 2);
        let was: UndoSnapshot = serde_json::from_str(&marks[&a].was).unwrap();
        assert_eq!((was.state, was.cycle, marks[&a].undone), (State::Failed, 0, false));
        assert_eq!((w.load(a).await.task.cycle, w.load(b).await.task.cycle), (1, 1));
        // Whoever dies before it is noted down has done it all the same.
        let over = Operation { state: OperationState::Done, due: None, ended_at: Some(w.now()), ..operation.clone() };
        assert_eq!(put(&w, &over).await, Applied::Done);
        assert_eq!(get(&w, operation.id).await.done, 2);
    }

    /// What is stale leaves no mark behind.
    fn a_step_that_is_not_written_is_not_taken(w) {
        let (a, b) = (failed(&w, "a").await, failed(&w, "b").await);
        let operation = start(&w, &[a, b]).await;
        let (late, fine) = (retry(&w, operation.id, a).await, retry(&w, operation.id, b).await);
        let by_hand = transition::manual_retry(&w.load(a).await.task, false, &Actor::default(), w.now()).unwrap();
        assert_eq!(w.apply(by_hand).await, Applied::Done);
        assert_eq!(apply(&w, &[late, fine]).await, [Applied::Stale, Applied::Done]);
        let marks = w.store.marks(operation.id, &[a, b]).await.unwrap();
        assert_eq!(marks.keys().collect::<Vec<_>>(), [&b]);
    }

    /// An abort that was acknowledged is final: nothing of the operation is still under way anywhere.
    fn an_abort_is_final(w) {
        let a = failed(&w, "a").await;
        let operation = start(&w, &[a]).await;
        let commit = retry(&w, operation.id, a).await;
        let over = Operation { state: OperationState::Aborted, due: None, ended_at: Some(w.now()), ..operation.clone() };
        assert_eq!(put(&w, &over).await, Applied::Done);
        assert_eq!(apply(&w, &[commit]).await, [Applied::Paused]);
        assert_eq!(w.state(a).await, State::Failed);
        assert_eq!(w.store.marks(operation.id, &[a]).await.unwrap().len(), 0);
    }

    /// T29: a retry that nobody has started is taken back, once, with all that it was.
    fn a_step_is_taken_back_once(w) {
        let a = failed(&w, "a").await;
        let before = w.load(a).await.task;
        let operation = start(&w, &[a]).await;
        let done = retry(&w, operation.id, a).await;
        assert_eq!(apply(&w, &[done]).await, [Applied::Done]);
        let back = || async {
            let (task, marks) = (w.load(a).await.task, w.store.marks(operation.id, &[a]).await.unwrap());
            let was: UndoSnapshot = serde_json::from_str(&marks[&a].was).unwrap();
            let mut commit: Commit = transition::undo_retry(&task, &was, &Actor::default(), w.now()).unwrap().into();
            commit.marks.push(Mark { operation: operation.id, task: a, was: None });
            commit
        };
        let commit = back().await;
        assert_eq!(apply(&w, std::slice::from_ref(&commit)).await, [Applied::Paused], "nobody has asked for that yet");
        let undoing = Operation { state: OperationState::Undoing, done: 1, ..operation.clone() };
        assert_eq!(put(&w, &undoing).await, Applied::Done);
        w.pass(1_000);
        assert_eq!(apply(&w, std::slice::from_ref(&commit)).await, [Applied::Done]);
        assert_eq!(apply(&w, &[commit]).await, [Applied::Used(Used::ForThis)]);
        let after = w.load(a).await.task;
        let moved = Task { version: after.version, seq: after.seq, updated_at: after.updated_at, ..before };
        assert_eq!(after, moved);
        let over =
            Operation { version: 2, state: OperationState::Undone, due: None, ended_at: Some(w.now()), ..undoing };
        assert_eq!(put(&w, &over).await, Applied::Done);
        let found = get(&w, operation.id).await;
        assert_eq!((found.done, found.undone), (1, 1));
    }

    /// A filter is asked at one moment, over tasks that are open and tasks that are over.
    fn a_filter_finds_ids(w) {
        let over = failed(&w, "a").await;
        let open = w.submit(vec![w.new_task("a"), w.new_task("b")]).await;
        let found = |text: &'static str, most: u32| {
            let (store, now) = (w.store.clone(), w.now());
            async move { store.matching("default", &Filter::parse(text, now).unwrap(), now, most).await.unwrap() }
        };
        assert_eq!(found("kind:a", 9).await, [over, open[0]], "oldest first");
        assert_eq!(found("state:failed", 9).await, [over]);
        assert_eq!(found("", 2).await, [over, open[0]]);
        assert_eq!(w.store.matching("nowhere", &Filter::default(), w.now(), 9).await.unwrap(), []);
    }

    fn what_is_over_and_old_is_forgotten(w) {
        let a = failed(&w, "a").await;
        let (operation, other) = (start(&w, &[a]).await, start(&w, &[a]).await);
        let commit = retry(&w, operation.id, a).await;
        assert_eq!(apply(&w, &[commit]).await, [Applied::Done]);
        let over = Operation { state: OperationState::Done, due: None, ended_at: Some(w.now()), ..operation.clone() };
        assert_eq!(put(&w, &over).await, Applied::Done);
        w.pass(1_000);
        while w.store.prune(w.now(), 1).await.unwrap().more {}
        assert_eq!(w.store.operation("default", operation.id).await.unwrap(), None);
        assert_eq!(w.store.marks(operation.id, &[a]).await.unwrap().len(), 0);
        assert_eq!(get(&w, other.id).await.state, OperationState::Running, "what is under way stays");
    }
}
