//! What is said of a task otherwise than before.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeMap;
use std::sync::Arc;

use comeback_core::*;
use serde_json::json;

use super::{World, cases};
use crate::*;

fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

async fn describe(w: &World, id: TaskId, change: Description) -> bool {
    w.store.describe(id, &change, None, w.now()).await.unwrap()
}

async fn submitted(w: &World, kind: &str) -> TaskId {
    w.submit(vec![w.new_task(kind)]).await.remove(0)
}

cases! { "describe";
    fn a_task_that_becomes_urgent_is_leased_first(w) {
        let first = submitted(&w, "a").await;
        let second = submitted(&w, "a").await;
        assert!(describe(&w, second, Description { priority: Some(7), ..Description::default() }).await);
        assert_eq!(w.load(second).await.task.priority, 7);
        let leased: Vec<TaskId> = w.claim(2).await.iter().map(|claimed| claimed.stored.task.id).collect();
        assert_eq!(leased, [second, first]);
    }

    fn labels_are_replaced_only_as_they_were_seen(w) {
        let id = submitted(&w, "a").await;
        let to = |before, after| Description { labels: Some((before, after)), ..Description::default() };
        let (none, acme, both) = (labels(&[]), labels(&[("tenant", "acme")]), labels(&[("tenant", "acme"), ("x", "y")]));
        assert!(describe(&w, id, to(none.clone(), acme.clone())).await);
        assert!(!describe(&w, id, to(none.clone(), both.clone())).await, "somebody else was first");
        assert!(describe(&w, id, to(acme, both.clone())).await);
        assert_eq!(w.store.task("default", id).await.unwrap().unwrap().body.labels, both);
        assert!(describe(&w, id, to(both, none.clone())).await);
        assert_eq!(w.store.task("default", id).await.unwrap().unwrap().body.labels, none);
    }

    fn what_has_ended_may_be_labelled_and_is_urgent_no_more(w) {
        let claimed = w.running(w.new_task("a")).await;
        w.fail(&claimed.stored).await;
        let id = claimed.stored.task.id;
        let label = Some((labels(&[]), labels(&[("seen", "yes")])));
        let urgent = Description { priority: Some(1), labels: label.clone(), ..Description::default() };
        assert!(!describe(&w, id, urgent).await);
        assert_eq!(w.store.task("default", id).await.unwrap().unwrap().body.labels, labels(&[]), "nothing was written");
        assert!(describe(&w, id, Description { labels: label, ..Description::default() }).await);
    }

    /// Open or over, it has the policy that it was given last, in whichever way it is read.
    fn a_task_is_given_another_policy(w) {
        let claimed = w.running(w.new_task("a")).await;
        let id = claimed.stored.task.id;
        let with = |retry: Option<Arc<Policy>>| Description { retry: Some(retry), ..Description::default() };
        let wanted = |value: serde_json::Value| dialect::parse(&value, Dialect::Native, &PolicyLimits::default()).unwrap().map(Arc::new);
        let (often, seldom) = (wanted(json!("fixed(7s, 9 retries)")), wanted(json!("fixed(7d, 1 retries)")));
        assert!(describe(&w, id, with(often.clone())).await);
        let open = w.load(id).await;
        assert_eq!((open.policy, open.task.version), (often, claimed.stored.task.version + 1));
        assert_eq!(w.store.task("default", id).await.unwrap().unwrap().stored.policy, wanted(json!("fixed(7s, 9 retries)")));
        assert!(describe(&w, id, with(None)).await);
        assert_eq!(w.load(id).await.policy, None);
        w.fail(&w.load(id).await).await;
        assert!(w.load(id).await.task.state.is_terminal());
        assert!(describe(&w, id, with(seldom.clone())).await);
        assert_eq!(w.load(id).await.policy, seldom);
        assert!(!describe(&w, TaskId(uuid::Uuid::nil()), with(seldom)).await, "nobody is nobody's task");
    }

    /// A rule counts by label: who gets another one counts elsewhere.
    fn a_task_with_another_label_is_under_another_limit(w) {
        w.rule(json!({"name": "one each", "per": ["tenant"], "max_running": 1})).await;
        for _ in 0..2 {
            let mut new = w.new_task("a");
            new.body.labels = labels(&[("tenant", "acme")]);
            w.submit(vec![new]).await;
        }
        let first = w.claim(2).await;
        assert_eq!(first.len(), 1);
        assert!(w.claim(2).await.is_empty());
        let waiting = w.store.list("default", &w.query("state:pending")).await.unwrap().items[0].stored.task.id;
        let change = Some((labels(&[("tenant", "acme")]), labels(&[("tenant", "blue")])));
        assert!(describe(&w, waiting, Description { labels: change, ..Description::default() }).await);
        assert_eq!(w.claim(2).await.len(), 1);
    }
}
