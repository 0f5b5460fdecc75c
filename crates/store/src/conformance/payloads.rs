//! Payloads that are edited: old versions are kept, and of two edits of one version one is stored.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use comeback_core::payload::{NewPayload, OldPayload, version_of_run};
use comeback_core::transition::{self, Actor};
use comeback_core::*;

use super::{World, cases};
use crate::*;

/// A task with a payload whose only run failed.
async fn dead(w: &World) -> TaskId {
    let mut new = w.new_task("k");
    new.body.payload = Some(r#"{"a":1}"#.into());
    let claimed = w.running(new).await;
    w.fail(&claimed.stored).await;
    claimed.stored.task.id
}

fn edit(task: &Task, edited: u32, payload: &str, now: Timestamp) -> NewPayload {
    NewPayload { task: task.id, edited, last_run: task.run, payload: payload.into(), at: now, by: Some("ana".into()) }
}

async fn retry_with(w: &World, id: TaskId, edited: u32, payload: &str) -> Applied {
    let task = w.load(id).await.task;
    let mut commit: Commit = transition::manual_retry(&task, false, &Actor::default(), w.now()).unwrap().into();
    commit.payloads.push(edit(&task, edited, payload, w.now()));
    w.apply(commit).await
}

async fn payload(w: &World, id: TaskId) -> (String, u32) {
    let view = w.store.task("default", id).await.unwrap().unwrap();
    (view.body.payload.unwrap().to_string(), view.payload_version)
}

cases! { "payloads";
    fn an_edited_payload_is_leased_and_the_old_one_kept(w) {
        let id = dead(&w).await;
        assert_eq!(payload(&w, id).await, (r#"{"a":1}"#.into(), 1));
        assert_eq!(w.store.old_payloads(id).await.unwrap(), []);
        assert_eq!(retry_with(&w, id, 1, r#"{"a":2}"#).await, Applied::Done);
        assert_eq!(payload(&w, id).await, (r#"{"a":2}"#.into(), 2));
        let claimed = w.claim(1).await.remove(0);
        assert_eq!(claimed.payload.as_deref(), Some(r#"{"a":2}"#));
        let old = w.store.old_payloads(id).await.unwrap();
        let first = OldPayload {
            version: 1,
            payload: Some(r#"{"a":1}"#.into()),
            last_run: 1,
            replaced_at: w.now(),
            replaced_by: Some("ana".into()),
        };
        assert_eq!(old, [first]);
        assert_eq!([1, claimed.stored.task.run].map(|run| version_of_run(&old, run)), [1, 2]);
    }

    /// The version of the task is not enough: who edits says which payload that was.
    fn an_edit_of_a_version_that_is_gone_is_not_stored(w) {
        let id = dead(&w).await;
        assert_eq!(retry_with(&w, id, 1, r#"{"a":2}"#).await, Applied::Done);
        let claimed = w.claim(1).await.remove(0);
        w.fail(&claimed.stored).await;
        let before = w.load(id).await.task;
        assert_eq!(retry_with(&w, id, 1, r#"{"a":3}"#).await, Applied::Stale);
        assert_eq!(w.load(id).await.task, before, "nothing of it was written");
        assert_eq!(payload(&w, id).await, (r#"{"a":2}"#.into(), 2));
        assert_eq!(retry_with(&w, id, 2, r#"{"a":3}"#).await, Applied::Done);
        assert_eq!(payload(&w, id).await, (r#"{"a":3}"#.into(), 3));
    }

    fn an_edit_whose_task_has_moved_on_is_not_stored(w) {
        let id = dead(&w).await;
        let task = w.load(id).await.task;
        let mut late: Commit = transition::manual_retry(&task, false, &Actor::default(), w.now()).unwrap().into();
        late.payloads.push(edit(&task, 1, r#"{"a":9}"#, w.now()));
        let first = transition::manual_retry(&task, false, &Actor::default(), w.now()).unwrap();
        assert_eq!(w.apply(first).await, Applied::Done);
        assert_eq!(w.apply(late).await, Applied::Stale);
        assert_eq!(payload(&w, id).await, (r#"{"a":1}"#.into(), 1));
    }

    fn of_many_edits_at_once_one_is_stored(w) {
        for _ in 0..5 {
            let id = dead(&w).await;
            let task = w.load(id).await.task;
            let mut callers = tokio::task::JoinSet::new();
            for n in 0..4 {
                let mut commit: Commit =
                    transition::manual_retry(&task, false, &Actor::default(), w.now()).unwrap().into();
                commit.payloads.push(edit(&task, 1, &format!(r#"{{"by":{n}}}"#), w.now()));
                let w = w.clone();
                callers.spawn(async move { w.apply(commit).await });
            }
            let done = callers.join_all().await.iter().filter(|applied| **applied == Applied::Done).count();
            assert_eq!((done, w.store.old_payloads(id).await.unwrap().len()), (1, 1));
            let claimed = w.claim(1).await.remove(0);
            w.succeed(&claimed.stored).await;
        }
    }

    fn what_is_forgotten_is_forgotten_with_its_payloads(w) {
        let id = dead(&w).await;
        retry_with(&w, id, 1, r#"{"a":2}"#).await;
        let claimed = w.claim(1).await.remove(0);
        w.succeed(&claimed.stored).await;
        w.pass(1_000);
        assert_eq!(w.store.prune(w.now(), 100).await.unwrap().tasks, 1);
        assert_eq!(w.store.old_payloads(id).await.unwrap(), []);
    }
}
