//! Dependencies: what they allow is heeded and counted with the lease itself.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;

use comeback_core::admission::Rule;
use comeback_core::dependency::{Ended, How, Seen, Settings};
use comeback_core::transition::Actor;
use comeback_core::*;
use serde_json::{Value, json};

use super::{World, cases};
use crate::*;
use crate::{AuditQuery, Dependency};

impl World {
    /// A dependency with its rule, as the engine makes it.
    pub async fn depend(&self, name: &str, settings: Value) -> Dependency {
        let settings = Settings::parse(&settings).unwrap();
        let new = Dependency::new("default", name, settings, self.now());
        self.store.put_rule("default", &Rule::guarding(name), None, self.now()).await.unwrap();
        self.settle_rules().await;
        assert!(self.store.put_dependency(&new, None, self.now()).await.unwrap());
        self.dependency(name).await
    }

    pub async fn dependency(&self, name: &str) -> Dependency {
        self.store.dependency("default", name).await.unwrap().expect("it is there")
    }

    /// Runs of it have ended like this.
    pub async fn seen(&self, name: &str, how: How, n: usize) {
        let mut it = self.dependency(name).await;
        let ended =
            Ended { started_at: self.now(), at: self.now(), how, is_retry: false, not_before: None, allowed: None };
        it.standing.observe(&it.settings, &Seen { ended: vec![ended; n] }, self.now());
        assert!(self.store.put_dependency(&it, None, self.now()).await.unwrap());
    }

    pub fn depending(&self, kind: &str, on: &str) -> NewTask {
        let mut new = self.new_task(kind);
        new.task.lane = Arc::new(Lane { dependency: Some(on.into()), ..(*new.task.lane).clone() });
        new
    }

    fn call(&self, url: &str) -> NewTask {
        let mut new = self.new_task("call");
        new.task.lane = Arc::new(Lane { executor: Executor::Http, ..(*new.task.lane).clone() });
        new.body.executor = Some(json!({"url": url}).to_string());
        new
    }
}

fn ids(claimed: &[Claimed]) -> Vec<TaskId> {
    claimed.iter().map(|it| it.stored.task.id).collect()
}

cases! { "dependencies";
    fn a_dependency_is_stored_by_its_version_and_what_was_done_is_written(w) {
        assert_eq!(w.store.dependency("default", "psp").await.unwrap(), None);
        let settings = Settings::parse(&json!({"breaker": {}, "gate": {}})).unwrap();
        let new = Dependency::new("default", "psp", settings, w.now());
        let entry = |w: &World, did: AuditAction| Audit::new(w.id().0, w.now(), did, "psp".to_owned(), &Actor::default()).within("default");
        assert!(w.store.put_dependency(&new, Some(&entry(&w, AuditAction::DependencyPut)), w.now()).await.unwrap());
        assert!(!w.store.put_dependency(&new, Some(&entry(&w, AuditAction::DependencyPut)), w.now()).await.unwrap(), "it is there");
        let mut it = w.dependency("psp").await;
        assert_eq!((it.version, &it.settings, it.created_at), (1, &new.settings, w.now()));
        let stale = it.clone();
        it.standing.open_by_hand(None, "by hand", w.now());
        w.pass(1_000);
        assert!(w.store.put_dependency(&it, None, w.now()).await.unwrap());
        assert!(!w.store.put_dependency(&stale, None, w.now()).await.unwrap(), "somebody else was faster");
        let now = w.dependency("psp").await;
        assert_eq!((now.version, &now.standing, now.updated_at), (2, &it.standing, w.now()));
        assert_eq!(w.store.dependencies("default", "", 10).await.unwrap(), [now]);
        assert_eq!(w.store.dependencies("default", "psp", 10).await.unwrap(), []);
        assert_eq!(w.store.dependencies("other", "", 10).await.unwrap(), []);
        assert!(w.store.delete_dependency("default", "psp", Some(&entry(&w, AuditAction::DependencyDelete))).await.unwrap());
        assert!(!w.store.delete_dependency("default", "psp", None).await.unwrap());
        let query = AuditQuery { namespace: Some("default".into()), limit: 10, ..AuditQuery::default() };
        let did: Vec<&str> = w.store.audit(&query).await.unwrap().iter().map(|it| it.did.word()).collect();
        assert_eq!(did, ["dependency.delete", "dependency.put"]);
    }

    /// Announced work and the deadlines that it moves are one commit: who was too slow has done neither.
    fn announced_work_moves_deadlines_with_it_or_not_at_all(w) {
        let mut it = w.depend("psp", json!({"gate": {}})).await;
        let with = |minutes: u64| {
            let mut new = w.depending("pay", "psp");
            new.task.expires_at = Some(w.now() + Millis::from_secs(minutes * 60));
            new
        };
        let tasks = w.submit(vec![with(5), with(30)]).await;
        let (stale, from, by) = (it.clone(), w.now() + Millis::from_secs(600), Millis::from_secs(3_600));
        it.standing.open_by_hand(None, "by hand", w.now());
        assert!(w.store.put_dependency(&it, None, w.now()).await.unwrap());
        let deadlines = async || [w.load(tasks[0]).await.task.expires_at, w.load(tasks[1]).await.task.expires_at];
        let before = deadlines().await;
        assert!(!w.store.announce(&stale, Some((from, by)), None, w.now()).await.unwrap());
        assert_eq!(deadlines().await, before);
        let it = w.dependency("psp").await;
        assert!(w.store.announce(&it, Some((from, by)), None, w.now()).await.unwrap());
        assert_eq!(deadlines().await, [before[0], before[1].map(|at| at + by)], "only those behind its beginning");
    }

    /// Open, nobody; then one canary, however often is asked; then waves. Others know nothing of it.
    fn an_open_breaker_lets_canaries_through_and_nobody_else(w) {
        w.depend("psp", json!({"breaker": {"failures": 5, "open": "5s", "canaries": 2, "first_wave": 4, "wave": "1s"}})).await;
        let tasks = w.submit((0..20).map(|_| w.depending("pay", "psp")).collect()).await;
        let first = w.claim(2).await;
        assert_eq!(ids(&first), tasks[..2], "closed, it is like any other");
        w.seen("psp", How::Failed, 5).await;
        let other = w.submit_many("other", 1).await;
        assert_eq!(ids(&w.claim(10).await), other, "only what needs it is held");
        w.pass(4_999);
        assert_eq!(w.claim(10).await, []);
        w.pass(1);
        assert_eq!(ids(&w.claim(10).await), tasks[2..4], "the oldest");
        assert_eq!(w.dependency("psp").await.standing.phase.word(), "half_open");
        assert_eq!(w.claim(10).await, []);
        w.seen("psp", How::Answered, 1).await;
        assert_eq!(w.dependency("psp").await.standing.phase.word(), "recovering");
        let mut wave = ids(&w.claim(10).await);
        assert_eq!(wave, tasks[4..5]);
        for _ in 0..9 {
            w.pass(100);
            wave.extend(ids(&w.claim(10).await));
        }
        assert_eq!(wave, tasks[4..8], "oldest first, spread out");
        w.check_log(tasks[4]).await;
    }

    /// What is held waits where it is: no attempt is counted, and nothing is written.
    fn who_is_held_is_not_touched(w) {
        w.depend("psp", json!({"breaker": {"failures": 1}})).await;
        let id = w.submit(vec![w.depending("pay", "psp")]).await[0];
        w.seen("psp", How::Failed, 1).await;
        let before = w.load(id).await;
        w.pass(1_000);
        assert_eq!(w.list("state:held").await, [id], "it is among what is held");
        assert_eq!(w.store.counts("default", w.now()).await.unwrap().held, [(State::Pending, 1)].into());
        assert_eq!(w.list("state:held dependency:psp").await, [id]);
        assert_eq!(w.list("state:held dependency:other").await, []);
        assert_eq!(w.claim(10).await, []);
        assert_eq!(w.load(id).await, before);
    }

    fn no_more_run_at_once_than_a_dependency_bears(w) {
        w.depend("psp", json!({"concurrency": {"min": 1, "max": 2}})).await;
        let tasks = w.submit((0..5).map(|_| w.depending("pay", "psp")).collect()).await;
        let first = w.claim(10).await;
        assert_eq!(ids(&first), tasks[..2]);
        assert_eq!(w.claim(10).await, []);
        w.seen("psp", How::Failed, 9).await;
        w.succeed(&first[0].stored).await;
        assert_eq!(w.claim(10).await, [], "it has become one");
        w.succeed(&first[1].stored).await;
        assert_eq!(ids(&w.claim(10).await), tasks[2..3]);
    }

    /// An HTTP task depends on its host unless it says otherwise: those that come, and those that were there before.
    fn a_call_depends_on_its_host(w) {
        let before = w.submit(vec![w.call("https://api.example/a"), w.call("https://other.example/a")]).await;
        w.depend("api.example", json!({"breaker": {"failures": 1}})).await;
        w.depend("local:81", json!({"breaker": {"failures": 1}})).await;
        w.seen("api.example", How::Failed, 1).await;
        w.seen("local:81", How::Failed, 1).await;
        let after = w.submit(vec![
            w.call("https://user@api.example:8443/b?c#d"), w.call("http://local:81/"), w.call("http://local:82/"),
        ]).await;
        let calls = ClaimRequest { executor: Executor::Http, ..w.request(10) };
        assert_eq!(ids(&w.claim_with(calls.clone()).await), [before[1], after[2]]);
        assert_eq!(w.load(before[0]).await.task.lane.limits[0].key.dependency(), Some("api.example"));
        assert!(w.store.delete_dependency("default", "local:81", None).await.unwrap());
        w.store.delete_rule("default", &Rule::guarding("local:81").name, None).await.unwrap();
        w.settle_rules().await;
        assert_eq!(ids(&w.claim_with(calls).await), [after[1]], "a dependency that is gone holds nobody");
    }

    /// A rule whose dependency is not there, or not there yet, holds nobody.
    fn a_rule_without_its_dependency_holds_nobody(w) {
        w.store.put_rule("default", &Rule::guarding("psp"), None, w.now()).await.unwrap();
        w.settle_rules().await;
        let tasks = w.submit(vec![w.depending("pay", "psp")]).await;
        assert_eq!(ids(&w.claim(10).await), tasks);
    }

    /// Who is ready waits for it, whoever asks and for what; nobody else does.
    fn it_is_known_whether_anybody_waits(w) {
        w.depend("psp", json!({"breaker": {"failures": 1}})).await;
        let waits = async |name: &str| w.store.is_waited_for("default", name).await.unwrap();
        w.submit_many("other", 1).await;
        assert!(!waits("psp").await);
        let id = w.submit(vec![w.depending("pay", "psp")]).await[0];
        assert!(waits("psp").await && !waits("api").await);
        assert!(!w.store.is_waited_for("elsewhere", "psp").await.unwrap());
        let claimed = w.claim(10).await;
        assert!(ids(&claimed).contains(&id) && !waits("psp").await, "it runs");
    }

    /// The only one of its name hears what was left behind; one beside which another lives hears nothing.
    fn a_name_is_held_until_it_is_dropped(w) {
        let tasks = w.submit_many("call", 2).await;
        let by = |worker: &str| ClaimRequest { worker: worker.into(), ..w.request(1) };
        w.claim_with(by("p/http")).await;
        w.claim_with(by("worker")).await;
        let one = w.store.hold_name("p").await.unwrap();
        assert_eq!(one.left, tasks[..1]);
        assert_eq!(w.store.hold_name("p").await.unwrap().left, []);
        drop(one);
        assert_eq!(w.store.hold_name("p").await.unwrap().left, tasks[..1], "both are gone");
    }

    fn it_is_known_when_time_changes_something(w) {
        w.depend("psp", json!({"breaker": {"failures": 1, "open": "5s"}})).await;
        assert_eq!(w.store.next_dependency(w.now()).await.unwrap(), None);
        w.seen("psp", How::Failed, 1).await;
        let due = w.now() + Millis(5_000);
        assert_eq!(w.store.next_dependency(w.now()).await.unwrap(), Some(due));
        assert_eq!(w.store.due_dependencies(due - Millis(1), 10).await.unwrap(), []);
        let names: Vec<String> = w.store.due_dependencies(due, 10).await.unwrap().into_iter().map(|it| it.name).collect();
        assert_eq!(names, ["psp"]);
    }

    /// Many ask at the same moment, and no more go than are allowed.
    fn canaries_are_counted_however_many_ask_at_once(w) {
        w.depend("psp", json!({"breaker": {"failures": 1, "open": "1s", "canaries": 3}})).await;
        w.submit((0..40).map(|_| w.depending("pay", "psp")).collect()).await;
        w.seen("psp", How::Failed, 1).await;
        w.pass(1_000);
        let now = w.now();
        let ask = |n: u32| {
            let (store, request) = (w.store.clone(), w.request(1 + n % 3));
            tokio::spawn(async move { store.claim(&[request], now).await.unwrap().remove(0).len() })
        };
        let asked: Vec<_> = (0..16).map(ask).collect();
        let mut started = 0;
        for it in asked {
            started += it.await.unwrap();
        }
        assert_eq!(started, 3);
    }
}
