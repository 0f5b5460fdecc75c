//! What was done from outside is written with the act, and stays.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use comeback_core::admission::Rule;
use comeback_core::transition::{self, Actor};
use comeback_core::*;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{World, cases};
use crate::AuditQuery;
use crate::*;

const SHELF: Collection<'_> = Collection { namespace: "default", shelf: "workflow" };

fn entry(w: &World, number: u128, did: AuditAction, subject: &str) -> Audit {
    let act = Actor {
        by: Some("ana".into()),
        note: Some("why".into()),
        key: Some("ops".into()),
        key_id: Some("0123".into()),
        request: Some("r1".into()),
        ..Actor::default()
    };
    Audit::new(Uuid::from_u128(number), w.now(), did, subject, &act).within("default")
}

async fn found(w: &World, query: AuditQuery) -> Vec<Audit> {
    w.store.audit(&AuditQuery { limit: 100, ..query }).await.unwrap()
}

async fn ids(w: &World, query: AuditQuery) -> Vec<u128> {
    found(w, query).await.iter().map(|it| it.id.as_u128()).collect()
}

fn rule(most: u32) -> Rule {
    serde_json::from_value(json!({"name": "r", "max_running": most})).unwrap()
}

fn schedule(w: &World, version: u32) -> Resource {
    Resource {
        sort: ResourceKind::Schedules,
        namespace: "default".into(),
        name: "s".into(),
        version,
        due: None,
        body: json!({"body": version}).to_string(),
        standing: "{}".into(),
        created_at: w.now(),
        updated_at: w.now(),
    }
}

cases! { "audit";
    fn an_act_is_read_back_as_it_was_written(w) {
        let full = entry(&w, 1, AuditAction::TaskRetry, "t").changed(Some(json!({"state": "dead"})), Some(json!({"state": "pending"})));
        let bare = Audit::new(Uuid::from_u128(2), w.now(), AuditAction::LoopPause, "reap", &Actor::default());
        w.store.put_audit(&full).await.unwrap();
        w.store.put_audit(&bare).await.unwrap();
        assert_eq!(found(&w, AuditQuery::default()).await, [bare, full], "the newest first");
    }

    fn an_act_is_written_with_the_verdict_it_made(w) {
        let id = w.submit_many("k", 1).await[0];
        let task = w.load(id).await.task;
        let mut commit: Commit = transition::cancel(&task, Reason::Canceled, &Actor::default(), w.now()).unwrap().into();
        commit.audit.push(entry(&w, 1, AuditAction::TaskCancel, &id.to_string()));
        assert_eq!(w.store.apply(&[commit.clone()], None, w.now()).await.unwrap(), [Applied::Done]);
        commit.audit[0].id = Uuid::from_u128(2);
        assert_eq!(w.store.apply(&[commit], None, w.now()).await.unwrap(), [Applied::Stale]);
        assert_eq!(ids(&w, AuditQuery::default()).await, [1], "what was not done is not written");
    }

    fn of_many_verdicts_only_those_that_were_stored_are_written_down(w) {
        let mut commits: Vec<Commit> = Vec::new();
        for n in 1..=6_u128 {
            let id = w.submit_many("k", 1).await[0];
            let task = w.load(id).await.task;
            if n % 2 == 0 {
                w.apply(transition::pause(&task, &Actor::default(), w.now()).unwrap()).await;
            }
            let mut commit: Commit = transition::cancel(&task, Reason::Canceled, &Actor::default(), w.now()).unwrap().into();
            commit.audit.push(entry(&w, n, AuditAction::TaskCancel, &id.to_string()));
            commits.push(commit);
        }
        w.store.apply(&commits, None, w.now()).await.unwrap();
        assert_eq!(ids(&w, AuditQuery::default()).await, [5, 3, 1]);
    }

    fn an_act_under_a_key_is_written_once(w) {
        let id = w.submit_many("k", 1).await[0];
        let task = w.load(id).await.task;
        let key = Idempotency { scope: "POST /x".into(), key: "k".into(), digest: [1; 32] };
        let mut commit: Commit = transition::pause(&task, &Actor::default(), w.now()).unwrap().into();
        commit.audit.push(entry(&w, 1, AuditAction::TaskPause, &id.to_string()));
        assert_eq!(w.store.apply_once("default", &key, Some(&commit), w.now()).await.unwrap(), Applied::Done);
        commit.audit[0].id = Uuid::from_u128(2);
        let again = w.store.apply_once("default", &key, Some(&commit), w.now()).await.unwrap();
        assert_eq!(again, Applied::Used(Used::ForThis));
        assert_eq!(ids(&w, AuditQuery::default()).await, [1]);
    }

    fn a_pause_of_a_loop_is_written_with_what_was_before(w) {
        let pause = Pause { until: w.now() + Millis(60_000), note: Some("deploy".into()), by: Some("ana".into()), at: w.now() };
        let first = entry(&w, 1, AuditAction::LoopPause, "reap");
        w.store.set_pause(Loop::Reap, Some(pause.clone()), Some(&first), w.now()).await.unwrap();
        w.store.set_pause(Loop::Reap, None, Some(&entry(&w, 2, AuditAction::LoopResume, "reap")), w.now()).await.unwrap();
        let acts = found(&w, AuditQuery::default()).await;
        assert_eq!(acts[1], first, "nothing was before");
        assert_eq!(acts[0].before, Some(json!({"until": pause.until.to_rfc3339(), "note": "deploy", "by": "ana"})));
    }

    fn a_rule_is_written_down_when_it_changes(w) {
        let put = async |n: u128, most: u32| {
            w.store.put_rule("default", &rule(most), Some(&entry(&w, n, AuditAction::RulePut, "r")), w.now()).await.unwrap();
        };
        put(1, 5).await;
        put(2, 5).await;
        put(3, 6).await;
        let gone = entry(&w, 4, AuditAction::RuleDelete, "r");
        w.store.delete_rule("default", "r", Some(&gone)).await.unwrap();
        w.store.delete_rule("default", "r", Some(&Audit { id: Uuid::from_u128(5), ..gone })).await.unwrap();
        let acts = found(&w, AuditQuery::default()).await;
        let most = |value: &Option<Value>| value.as_ref().map(|rule| rule["max_running"].clone());
        let told: Vec<(u128, Option<Value>)> = acts.iter().map(|it| (it.id.as_u128(), most(&it.before))).collect();
        assert_eq!(told, [(4, Some(json!(6))), (3, Some(json!(5))), (1, None)], "what changed nothing is no act");
    }

    fn schedules_documents_and_facts_are_written_down_if_they_were_stored(w) {
        let by = |n: u128, did: AuditAction| entry(&w, n, did, "s");
        let put = async |n: u128, version: u32| {
            let entry = by(n, AuditAction::SchedulePut);
            w.store.put_follower(&schedule(&w, version), None, None, Some(&entry), w.now()).await.unwrap()
        };
        assert_eq!(put(1, 0).await, Applied::Done);
        assert_eq!(put(2, 0).await, Applied::Stale);
        assert!(w.store.delete_follower(ResourceKind::Schedules, "default", "s", Some(&by(3, AuditAction::ScheduleDelete))).await.unwrap());
        assert!(!w.store.delete_follower(ResourceKind::Schedules, "default", "s", Some(&by(4, AuditAction::ScheduleDelete))).await.unwrap());
        assert!(w.store.put_document(SHELF, "d", 0, "one", Some(&by(5, AuditAction::WorkflowPut)), w.now()).await.unwrap());
        assert!(!w.store.put_document(SHELF, "d", 0, "two", Some(&by(6, AuditAction::WorkflowPut)), w.now()).await.unwrap());
        w.store.put_meta("m", "1", PutIf::Absent, Some(&by(7, AuditAction::KeyCreate))).await.unwrap();
        w.store.put_meta("m", "2", PutIf::Is("0"), Some(&by(8, AuditAction::KeyCreate))).await.unwrap();
        w.store.put_meta("m", "2", PutIf::Is("1"), Some(&by(9, AuditAction::KeyCreate))).await.unwrap();
        assert_eq!(ids(&w, AuditQuery::default()).await, [9, 7, 5, 3, 1]);
        let deleted = &found(&w, AuditQuery { did: vec![AuditAction::ScheduleDelete], ..AuditQuery::default() }).await[0];
        assert_eq!(deleted.before, Some(json!({"body": 0})));
    }

    fn acts_are_found_by_who_what_and_when(w) {
        let start = w.now();
        for n in 1..=4 {
            let by = if n % 2 == 0 { "bob" } else { "ana" };
            let act = entry(&w, n, if n < 3 { AuditAction::TaskPause } else { AuditAction::TaskRetry }, &format!("t{n}"));
            w.store.put_audit(&Audit { actor: Some(by.into()), ..act }).await.unwrap();
            w.pass(1_000);
        }
        let any = AuditQuery::default;
        assert_eq!(ids(&w, AuditQuery { actor: Some("bob".into()), ..any() }).await, [4, 2]);
        assert_eq!(ids(&w, AuditQuery { actor: Some("ops".into()), ..any() }).await, [4, 3, 2, 1], "by their key");
        assert_eq!(ids(&w, AuditQuery { did: vec![AuditAction::TaskRetry], ..any() }).await, [4, 3]);
        assert_eq!(ids(&w, AuditQuery { subject: Some("t2".into()), ..any() }).await, [2]);
        let (since, until) = (Some(start + Millis(1_000)), Some(start + Millis(3_000)));
        assert_eq!(ids(&w, AuditQuery { since, until, ..any() }).await, [3, 2]);
        let both = AuditQuery { actor: Some("ana".into()), did: vec![AuditAction::TaskRetry], since, ..any() };
        assert_eq!(ids(&w, both).await, [3]);
    }

    fn pages_of_acts_cover_everything_once(w) {
        for n in 1..=7 {
            w.store.put_audit(&entry(&w, n, AuditAction::TaskPause, "t")).await.unwrap();
        }
        let (mut seen, mut after) = (Vec::new(), None);
        loop {
            let page = w.store.audit(&AuditQuery { after, limit: 3, ..AuditQuery::default() }).await.unwrap();
            seen.extend(page.iter().map(|it| it.id.as_u128()));
            after = page.last().map(|last| last.id);
            if page.len() < 3 {
                break;
            }
        }
        assert_eq!(seen, [7, 6, 5, 4, 3, 2, 1]);
    }

    fn namespaces_see_their_own_acts(w) {
        let house = Audit::new(Uuid::from_u128(1), w.now(), AuditAction::LoopPause, "reap", &Actor::default());
        w.store.put_audit(&house).await.unwrap();
        w.store.put_audit(&entry(&w, 2, AuditAction::TaskPause, "t")).await.unwrap();
        w.store.put_audit(&entry(&w, 3, AuditAction::TaskPause, "t").within("other")).await.unwrap();
        let of = |house: bool| AuditQuery { namespace: Some("default".into()), house, ..AuditQuery::default() };
        assert_eq!(ids(&w, of(false)).await, [2]);
        assert_eq!(ids(&w, of(true)).await, [2, 1], "and what concerns all of them");
        assert_eq!(ids(&w, AuditQuery::default()).await, [3, 2, 1]);
    }
}
