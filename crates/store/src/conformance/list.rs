//! Asking for tasks by what they are.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeSet;
use std::sync::Arc;

use super::cases;
use super::world::World;
use crate::ListQuery;
use crate::*;
use comeback_core::filter::{Filter, Sort, fingerprint_to_hex};
use comeback_core::transition::{self, Actor};
use comeback_core::*;
use serde_json::json;

/// One task in each state.
struct Zoo {
    pending: TaskId,
    delayed: TaskId,
    running: TaskId,
    retrying: TaskId,
    paused: TaskId,
    succeeded: TaskId,
    recovered: TaskId,
    failed: TaskId,
    dead: TaskId,
    canceled: TaskId,
}

async fn zoo(w: &World) -> Zoo {
    let policy = json!({"strategy": "fixed", "delay": "10m", "max_retries": 1});
    let running = w.running(w.retrying_task("run.task", policy.clone())).await.stored.task.id;
    let claimed = w.running(w.retrying_task("retry.task", policy)).await;
    w.fail(&claimed.stored).await;
    let retrying = claimed.stored.task.id;
    let claimed = w.running(w.new_task("ok.task")).await;
    w.succeed(&claimed.stored).await;
    let succeeded = claimed.stored.task.id;
    let claimed = w.running(w.retrying_task("ok.task", json!({"strategy": "immediate"}))).await;
    w.fail(&claimed.stored).await;
    w.promote().await;
    let again = w.claim(1).await.remove(0);
    w.succeed(&again.stored).await;
    let recovered = claimed.stored.task.id;
    let claimed = w.running(w.new_task("bad.task")).await;
    let fault = Failure { class: Some(Class::Final), ..Failure::new(Trigger::Error, "Validation of VAT failed") };
    w.end(&claimed.stored, End::Failed(fault)).await;
    let failed = claimed.stored.task.id;
    let claimed = w.running(w.retrying_task("bad.task", json!({"max_retries": 0}))).await;
    w.fail(&claimed.stored).await;
    let dead = claimed.stored.task.id;
    let canceled = w.submit_many("other", 1).await[0];
    w.cancel(canceled).await;
    let paused = w.submit_many("other", 1).await[0];
    let task = w.load(paused).await.task;
    w.apply(transition::pause(&task, &Actor::default(), w.now()).unwrap()).await;
    let delayed = w.submit(vec![w.delayed_task("late.task", 60_000)]).await[0];
    let pending = w.submit_many("new.task", 1).await[0];
    Zoo { pending, delayed, running, retrying, paused, succeeded, recovered, failed, dead, canceled }
}

async fn check(w: &World, filter: &str, expected: &[TaskId]) {
    let found: BTreeSet<TaskId> = w.list(filter).await.into_iter().collect();
    assert_eq!(found, expected.iter().copied().collect(), "{filter}");
}

cases! { "list";
    fn states_and_families_find_their_tasks(w) {
        let z = zoo(&w).await;
        check(&w, "state:pending", &[z.pending]).await;
        check(&w, "state:waiting", &[z.delayed]).await;
        check(&w, "state:running", &[z.running]).await;
        check(&w, "state:retry_pending", &[z.retrying]).await;
        check(&w, "state:paused", &[z.paused]).await;
        check(&w, "state:succeeded", &[z.succeeded, z.recovered]).await;
        check(&w, "state:failed", &[z.failed]).await;
        check(&w, "state:dead", &[z.dead]).await;
        check(&w, "state:cancelled", &[z.canceled]).await;
        check(&w, "state:skipped", &[]).await;
        check(&w, "state:failure", &[z.failed, z.dead]).await;
        check(&w, "state:active", &[z.running]).await;
        check(&w, "state:error", &[z.retrying, z.failed, z.dead]).await;
        check(&w, "state:open", &[z.pending, z.delayed, z.running, z.retrying, z.paused]).await;
        check(&w, "state:terminal", &[z.succeeded, z.recovered, z.failed, z.dead, z.canceled]).await;
        check(&w, "state:queued", &[z.pending, z.delayed]).await;
        check(&w, "state:retrying", &[z.retrying]).await;
        check(&w, "state:held", &[z.paused]).await;
        check(&w, "state:recovered", &[z.recovered]).await;
        check(&w, "state:dead,pending", &[z.dead, z.pending]).await;
    }

    fn terms_are_joined_and_negated(w) {
        let z = zoo(&w).await;
        check(&w, "state:failure -state:dead", &[z.failed]).await;
        check(&w, "state:open -state:pending,waiting -kind:other", &[z.running, z.retrying]).await;
        check(&w, "kind:ok.task state:recovered", &[z.recovered]).await;
        check(&w, "kind:ok.task state:open", &[]).await;
        check(&w, "-state:open,terminal", &[]).await;
    }

    fn kinds_queues_and_their_beginnings(w) {
        let z = zoo(&w).await;
        check(&w, "kind:bad.task", &[z.failed, z.dead]).await;
        check(&w, "kind:r*", &[z.running, z.retrying]).await;
        check(&w, "kind:new.task,late.task", &[z.pending, z.delayed]).await;
        check(&w, "kind:nothing", &[]).await;
        check(&w, "queue:default kind:new.task", &[z.pending]).await;
        check(&w, "queue:elsewhere", &[]).await;
        check(&w, "-kind:*", &[]).await;
    }

    fn a_wildcard_is_not_a_pattern_language(w) {
        let mut new = w.new_task("a%b");
        new.body.name = Some("100% _sure_".into());
        let id = w.submit(vec![new, w.new_task("axb")]).await[0];
        check(&w, "kind:a%b", &[id]).await;
        check(&w, "kind:a%*", &[id]).await;
        check(&w, "name:\"100% _sure_\"", &[id]).await;
        check(&w, "name:100%*", &[id]).await;
        check(&w, "name:1__%*", &[]).await;
    }

    fn bodies_are_searched_by_field(w) {
        let mut new = w.new_task("a");
        new.body.key = Some("import".into());
        new.body.name = Some("Import data".into());
        w.fund("acme", 10).await;
        (new.task.metered, new.body.account, new.body.cost) = (true, Some("acme".into()), Some(1));
        new.body.external_id = Some("42".into());
        new.body.labels = [("tenant".to_owned(), "acme".to_owned()), ("a.b\"c".to_owned(), "x".to_owned())].into();
        let lane = Lane { dependency: Some("psp".into()), ..(*new.task.lane).clone() };
        new.task.lane = Arc::new(lane);
        new.task.priority = 7;
        let id = w.submit(vec![new, w.new_task("b")]).await[0];
        for filter in ["key:import", "name:\"Import data\"", "name:Import*", "account:acme", "external_id:42",
            "label.tenant:acme", "label.tenant:zzz,acme", "label.a.b\"c\":x", "dependency:psp", "priority:7", "priority:>=7", "priority:>6"] {
            if filter.contains('"') && filter.starts_with("label.a") {
                continue;
            }
            check(&w, filter, &[id]).await;
        }
        for filter in ["key:IMPORT", "label.tenant:acm", "label.other:acme", "dependency:other", "priority:<0", "account:a"] {
            check(&w, filter, &[]).await;
        }
    }

    fn label_names_are_only_names(w) {
        let mut new = w.new_task("a");
        new.body.labels = [("x') or 1=1 --".to_owned(), "v".to_owned())].into();
        w.submit(vec![new]).await;
        let filter = Filter::default().and(comeback_core::filter::Test::Text {
            field: comeback_core::filter::TextField::Label("x') or 1=1 --".into()),
            any: vec![comeback_core::filter::Pattern { text: "w".into(), prefix: false }],
        });
        assert!(w.list_with(ListQuery { filter, ..w.query("") }).await.is_empty());
    }

    fn classes_fingerprints_workers_and_counters(w) {
        let z = zoo(&w).await;
        check(&w, "class:final", &[z.failed]).await;
        check(&w, "class:retryable", &[z.retrying, z.dead]).await;
        let print = w.load(z.dead).await.task.fingerprint.unwrap();
        check(&w, &format!("fingerprint:{}", fingerprint_to_hex(print)), &[z.dead]).await;
        check(&w, "attempt:>=1", &[z.retrying, z.recovered]).await;
        check(&w, "attempt:0 state:failure", &[z.failed, z.dead]).await;
        check(&w, "lost:>0", &[]).await;
        check(&w, "worker:w1", &[z.running, z.succeeded, z.recovered, z.failed, z.dead]).await;
        check(&w, "worker:w2", &[]).await;
    }

    fn times_are_compared_with_now(w) {
        let z = zoo(&w).await;
        check(&w, "due:<5m", &[z.delayed]).await;
        check(&w, "due:<1h", &[z.delayed, z.retrying]).await;
        check(&w, "due:>5m", &[z.retrying]).await;
        w.pass(7_200_000);
        let young = w.submit_many("young", 1).await[0];
        check(&w, "age:<1h", &[young]).await;
        check(&w, "age:>1h kind:young", &[]).await;
        check(&w, "submitted:<1h", &[young]).await;
        check(&w, "updated:<1h", &[young]).await;
    }

    fn words_search_the_id_the_name_and_the_last_error(w) {
        let z = zoo(&w).await;
        check(&w, "vat", &[z.failed]).await;
        check(&w, "\"validation of\"", &[z.failed]).await;
        check(&w, "boom state:dead", &[z.dead]).await;
        let text = z.pending.to_string();
        check(&w, &text, &[z.pending]).await;
        check(&w, &text.to_uppercase(), &[z.pending]).await;
        check(&w, &z.pending.short(), &[z.pending]).await;
        check(&w, "%", &[]).await;
        // What was said is searched, not how it is stored.
        check(&w, "message", &[]).await;
        check(&w, "trigger", &[]).await;
    }

    fn an_execution_finds_its_tasks(w) {
        let (id, tasks) = w.execution(&["a", "b"], &["a>b"]).await;
        let lone = w.submit_many("x", 1).await[0];
        check(&w, &format!("execution:{id}"), &[tasks["a"], tasks["b"]]).await;
        check(&w, &format!("execution:{lone}"), &[lone]).await;
        check(&w, &format!("execution:{id},{lone}"), &[tasks["a"], tasks["b"], lone]).await;
    }

    fn verdicts_are_shown_and_found(w) {
        let mut judged = Vec::new();
        for result in [r#"{"verdict": "needs_review"}"#, r#"{"verdict": "failed", "n": 1}"#, r#"{"verdict": 7}"#, "[1]", "\"x\""] {
            let claimed = w.running(w.new_task("run")).await;
            w.end(&claimed.stored, End::Succeeded { result: Some(result.into()) }).await;
            judged.push(claimed.stored.task.id);
        }
        let silent = w.running(w.new_task("run")).await;
        w.succeed(&silent.stored).await;
        let open = w.submit_many("run", 1).await[0];
        check(&w, "verdict:needs_review", &judged[..1]).await;
        check(&w, "verdict:needs_review,failed", &judged[..2]).await;
        check(&w, "state:succeeded -verdict:needs_review,failed", &[judged[2], judged[3], judged[4], silent.stored.task.id]).await;
        check(&w, "-verdict:failed -state:succeeded", &[open]).await;
        let found = w.store.list("default", &w.query("verdict:failed")).await.unwrap().items;
        assert_eq!(found[0].verdict.as_deref(), Some("failed"));
    }

    fn a_list_shows_the_last_error_and_no_payload(w) {
        let mut new = w.retrying_task("a", json!({}));
        new.body.payload = Some("\"secret\"".into());
        new.body.labels.insert("k".into(), "v".into());
        new.body.name = Some("N".into());
        let claimed = w.running(new).await;
        w.fail(&claimed.stored).await;
        let listing = w.store.list("default", &w.query("")).await.unwrap();
        let item = &listing.items[0];
        assert_eq!((item.last_error.as_deref(), item.name.as_deref(), item.labels["k"].as_str()), (Some("boom"), Some("N"), "v"));
        assert_eq!(item.stored, w.load(claimed.stored.task.id).await);
    }

    fn lists_of_different_namespaces_do_not_meet(w) {
        let mut other = w.new_task("a");
        other.task.lane = Arc::new(Lane { namespace: "other".into(), ..(*other.task.lane).clone() });
        let id = w.submit(vec![other]).await[0];
        assert!(w.list("").await.is_empty());
        assert!(w.list(&format!("execution:{id}")).await.is_empty());
        let listing = w.store.list("other", &w.query("")).await.unwrap();
        assert_eq!(listing.items.len(), 1);
        assert!(w.store.list("nowhere", &w.query("")).await.unwrap().items.is_empty());
    }

    /// Every page, in every order: all of them, each once, sorted.
    fn pages_cover_everything_once_in_every_order(w) {
        for n in 0..40_u64 {
            let mut new = if n % 4 == 0 { w.delayed_task("a", 1_000 + n * 37 % 500) } else { w.new_task("a") };
            new.task.priority = i16::try_from(n * 5 % 7).unwrap();
            w.submit(vec![new]).await;
            w.pass(n % 3);
        }
        let claimed = w.claim(10).await;
        for (n, it) in claimed.iter().enumerate() {
            w.pass(3);
            if n % 2 == 0 { w.succeed(&it.stored).await } else { w.fail(&it.stored).await };
        }
        for sort in Sort::ALL {
            let mut query = ListQuery { sort: *sort, limit: 7, ..w.query("") };
            let mut seen = Vec::new();
            loop {
                let listing = w.store.list("default", &query).await.unwrap();
                assert!(listing.items.len() <= 7);
                seen.extend(listing.items.iter().map(|item| item.stored.task.clone()));
                match listing.next {
                    None => break,
                    Some(next) => query.after = Some(next.to_string().parse().unwrap()),
                }
            }
            assert_eq!(seen.len(), 40, "{sort}");
            assert_eq!(seen.iter().map(|task| task.id).collect::<BTreeSet<_>>().len(), 40, "{sort}");
            let sorted = seen.is_sorted_by(|a, b| match sort {
                Sort::SubmittedDesc => a.id > b.id,
                Sort::Submitted => a.id < b.id,
                Sort::Due => a.due().unwrap_or(Timestamp::MAX) <= b.due().unwrap_or(Timestamp::MAX),
                Sort::Updated => a.updated_at >= b.updated_at,
                Sort::Priority => a.priority >= b.priority,
            });
            assert!(sorted, "{sort}");
        }
    }

    fn a_page_is_stable_while_tasks_are_added(w) {
        let first = w.submit_many("a", 10).await;
        let query = ListQuery { limit: 5, ..w.query("") };
        let page = w.store.list("default", &query).await.unwrap();
        w.pass(1);
        w.submit_many("a", 10).await;
        let rest = w.list_with(ListQuery { after: page.next, limit: 100, ..w.query("") }).await;
        let mut expected: Vec<TaskId> = first[..5].to_vec();
        expected.reverse();
        assert_eq!(rest, expected);
    }

    fn the_last_page_says_that_it_is_the_last(w) {
        w.submit_many("a", 5).await;
        let page = w.store.list("default", &ListQuery { limit: 5, ..w.query("") }).await.unwrap();
        assert_eq!((page.items.len(), page.next), (5, None));
        let page = w.store.list("default", &ListQuery { limit: 4, ..w.query("") }).await.unwrap();
        assert!(page.next.is_some());
        let none: Vec<Listed> = w.store.list("default", &w.query("kind:none")).await.unwrap().items;
        assert!(none.is_empty());
    }
}
