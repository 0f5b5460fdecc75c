//! What is done under a key is done once.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;

use super::cases;
use super::world::World;
use crate::*;
use comeback_core::transition::{self, Actor};
use comeback_core::*;
use serde_json::json;
use uuid::Uuid;

fn key(name: &str, digest: u8) -> Idempotency {
    Idempotency { scope: "POST /tasks/{id}/cancel".into(), key: name.into(), digest: [digest; 32] }
}

async fn cancel(w: &World, id: TaskId, key: &Idempotency) -> Applied {
    let change = transition::cancel(&w.load(id).await.task, Reason::Canceled, &Actor::default(), w.now()).unwrap();
    w.store.apply_once("default", key, Some(&change.into()), w.now()).await.unwrap()
}

/// A line of the audit under a key, and the answer that is kept with it.
fn line(w: &World, number: u128, key: Idempotency, answer: serde_json::Value) -> Audit {
    let once = Some(Arc::new(ActKey { namespace: "default".into(), key }));
    let act = Actor { once, ..Actor::default() };
    Audit::new(Uuid::from_u128(number), w.now(), AuditAction::LoopPause, "reap", &act).answered(answer)
}

async fn lines(w: &World) -> usize {
    w.store.audit(&AuditQuery { limit: 100, ..AuditQuery::default() }).await.unwrap().len()
}

cases! { "once";
    fn an_act_uses_its_key_in_its_own_transaction(w) {
        let answer = json!({"n": 1});
        let pause = Pause { until: Timestamp::MAX, note: None, by: None, at: w.now() };
        let first = line(&w, 1, key("k", 1), answer.clone());
        w.store.set_pause(Loop::Reap, Some(pause), Some(&first), w.now()).await.unwrap();
        assert_eq!(w.store.used("default", &key("k", 1)).await.unwrap(), Some(Used::ForThis));
        assert_eq!(w.store.kept_answer("default", &key("k", 1)).await.unwrap(), Some(answer.clone()));
        assert_eq!(w.store.kept_answer("other", &key("k", 1)).await.unwrap(), None);
        for (number, digest, used) in [(2, 1, Used::ForThis), (3, 2, Used::ForAnother)] {
            let again = line(&w, number, key("k", digest), json!({"n": number}));
            for refused in [
                w.store.set_pause(Loop::Reap, None, Some(&again), w.now()).await,
                w.store.put_audit(&again).await,
            ] {
                assert!(matches!(refused, Err(StoreError::KeyUsed(by)) if by == used), "{refused:?}");
            }
        }
        assert_eq!(w.store.pauses().await.unwrap().len(), 1, "nothing was done again");
        assert_eq!(lines(&w).await, 1);
        assert_eq!(w.store.kept_answer("default", &key("k", 1)).await.unwrap(), Some(answer));
        w.store.put_audit(&line(&w, 4, key("l", 1), json!([]))).await.unwrap();
        assert_eq!((lines(&w).await, w.store.kept_answer("default", &key("l", 1)).await.unwrap()), (2, Some(json!([]))));
    }

    fn an_act_that_wrote_nothing_leaves_its_key_free(w) {
        let shelf = Collection { namespace: "default", shelf: "workflow" };
        let entry = line(&w, 1, key("k", 1), json!({}));
        assert!(!w.store.put_document(shelf, "a", 7, "text", Some(&entry), w.now()).await.unwrap());
        assert_eq!(w.store.used("default", &key("k", 1)).await.unwrap(), None);
        assert!(w.store.put_document(shelf, "a", 0, "text", Some(&entry), w.now()).await.unwrap());
        let next = Audit { id: Uuid::from_u128(2), ..entry };
        let next = w.store.put_document(shelf, "a", 1, "other", Some(&next), w.now()).await;
        assert!(matches!(next, Err(StoreError::KeyUsed(Used::ForThis))));
        assert_eq!(w.store.versions(shelf, "a", 9).await.unwrap().len(), 1);
    }

    fn a_key_is_used_with_what_it_stands_for(w) {
        let id = w.submit_many("a", 1).await[0];
        assert_eq!(w.store.used("default", &key("k", 1)).await.unwrap(), None);
        assert_eq!(cancel(&w, id, &key("k", 1)).await, Applied::Done);
        assert_eq!(w.state(id).await, State::Canceled);
        assert_eq!(w.store.used("default", &key("k", 1)).await.unwrap(), Some(Used::ForThis));
        assert_eq!(w.store.used("default", &key("k", 2)).await.unwrap(), Some(Used::ForAnother));
        assert_eq!(w.store.used("other", &key("k", 1)).await.unwrap(), None);
        w.check_log(id).await;
    }

    fn a_used_key_changes_nothing_more(w) {
        let ids = w.submit_many("a", 2).await;
        assert_eq!(cancel(&w, ids[0], &key("k", 1)).await, Applied::Done);
        assert_eq!(cancel(&w, ids[1], &key("k", 1)).await, Applied::Used(Used::ForThis));
        assert_eq!(cancel(&w, ids[1], &key("k", 2)).await, Applied::Used(Used::ForAnother));
        assert_eq!(w.state(ids[1]).await, State::Pending);
        assert_eq!(w.kinds(ids[1]).await, ["task.created", "task.ready"]);
    }

    fn what_was_not_written_leaves_its_key_free(w) {
        let id = w.submit_many("a", 1).await[0];
        let old = w.load(id).await.task;
        w.claim(1).await;
        let change = transition::pause(&old, &Actor::default(), w.now()).unwrap();
        assert_eq!(w.store.apply_once("default", &key("k", 1), Some(&change.into()), w.now()).await.unwrap(), Applied::Stale);
        assert_eq!(w.store.used("default", &key("k", 1)).await.unwrap(), None);
        assert_eq!(cancel(&w, id, &key("k", 1)).await, Applied::Done);
    }

    fn a_whole_execution_is_changed_under_a_key(w) {
        let (execution, _) = w.execution(&["a", "b"], &["a>b"]).await;
        for expected in [Applied::Done, Applied::Used(Used::ForThis)] {
            let mut working = w.working(execution).await;
            if expected == Applied::Done {
                working.cancel(Reason::ExecutionCanceled, &Actor::default(), w.now()).unwrap();
            }
            let commit = working.into_commit();
            assert_eq!(w.store.apply_once("default", &key("k", 1), Some(&commit), w.now()).await.unwrap(), expected);
        }
        assert_eq!(w.store.execution("default", execution).await.unwrap().unwrap().execution.state, ExecutionState::Canceled);
    }

    fn a_key_may_stand_for_something_outside(w) {
        assert_eq!(w.store.apply_once("new", &key("k", 1), None, w.now()).await.unwrap(), Applied::Done);
        assert_eq!(w.store.apply_once("new", &key("k", 1), None, w.now()).await.unwrap(), Applied::Used(Used::ForThis));
        assert_eq!(w.store.apply_once("new", &key("k", 2), None, w.now()).await.unwrap(), Applied::Used(Used::ForAnother));
    }

    /// However many come at the same moment.
    fn one_of_many_uses_the_key(w) {
        let ids = w.submit_many("a", 8).await;
        let mut callers = tokio::task::JoinSet::new();
        for id in ids.clone() {
            let w = w.clone();
            callers.spawn(async move { cancel(&w, id, &key("k", 1)).await });
        }
        let answers = callers.join_all().await;
        assert_eq!(answers.iter().filter(|it| **it == Applied::Done).count(), 1, "{answers:?}");
        assert_eq!(answers.iter().filter(|it| **it == Applied::Used(Used::ForThis)).count(), 7, "{answers:?}");
        let mut canceled = 0;
        for id in ids {
            canceled += usize::from(w.state(id).await == State::Canceled);
        }
        assert_eq!(canceled, 1);
    }

    fn keys_are_forgotten_with_what_is_old(w) {
        assert_eq!(w.store.apply_once("default", &key("k", 1), None, w.now()).await.unwrap(), Applied::Done);
        w.store.prune(w.now() + Millis(1), 100).await.unwrap();
        assert_eq!(w.store.used("default", &key("k", 1)).await.unwrap(), None);
    }
}
