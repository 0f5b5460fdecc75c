//! Lanes and policies: how many a namespace may have, that claims find work among many of them, and that they are forgotten.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::sync::Arc;

use super::cases;
use super::world::World;
use crate::StoreError;
use crate::*;
use comeback_core::*;
use serde_json::{Value, json};

impl World {
    pub fn quota(&self, name: &str, value: u64) {
        let mut quotas = Quotas::default();
        quotas.set(name, &value.to_string()).unwrap();
        self.store.set_quotas(&quotas);
    }

    pub fn task_of(&self, namespace: &str, queue: &str, kind: &str) -> NewTask {
        let mut new = self.new_task(kind);
        new.task.lane = Arc::new(Lane { namespace: namespace.into(), queue: queue.into(), ..(*new.task.lane).clone() });
        new
    }

    /// The quota that refuses these tasks as one submission.
    async fn refusal(&self, tasks: Vec<NewTask>) -> Quota {
        match self.store.submit(&[self.submission(tasks)], self.now()).await {
            Err(StoreError::QuotaExceeded(refused)) => refused.quota,
            other => panic!("{other:?}"),
        }
    }

    /// Ends all that is ready and prunes it.
    async fn end_and_prune_all(&self) {
        loop {
            let claimed = self.claim(100).await;
            if claimed.is_empty() {
                break;
            }
            for it in claimed {
                assert_eq!(self.succeed(&it.stored).await, Applied::Done);
            }
        }
        self.pass(1_000);
        while self.store.prune(self.now(), 1_000).await.unwrap().more {}
    }

    /// What is empty now and after a while.
    pub async fn forget(&self) -> u64 {
        let mut forgotten = 0;
        for _ in 0..2 {
            loop {
                let round = self.store.forget_unused(self.now()).await.unwrap();
                forgotten += round.lanes;
                if !round.more {
                    break;
                }
            }
            self.pass(30_000);
        }
        forgotten
    }
}

fn of_user(mut new: NewTask, user: &str) -> NewTask {
    new.body.labels.insert("user".into(), user.into());
    new
}

fn policy(n: usize) -> Value {
    json!({"strategy": "fixed", "delay": format!("{}ms", n + 1), "max_retries": 9})
}

fn kinds(claimed: &[Claimed]) -> Vec<String> {
    claimed.iter().map(|it| it.stored.task.lane.kind.clone()).collect()
}

cases! { "lanes";
    fn a_namespace_has_no_more_lanes_than_its_quota_allows(w) {
        w.quota("lanes", 4);
        w.submit(["a", "b", "c"].map(|kind| w.new_task(kind)).into()).await;
        // One is known and two are new: one too many, and none of them is stored.
        assert_eq!(w.refusal(["a", "d", "e"].map(|kind| w.new_task(kind)).into()).await, Quota::Lanes);
        assert_eq!(w.list("").await.len(), 3);
        w.submit(vec![w.new_task("a"), w.new_task("d")]).await;
        assert_eq!(w.refusal(vec![w.task_of("default", "other", "a")]).await, Quota::Lanes);
        w.submit_many("d", 2).await;
        let blue = w.task_of("blue", "default", "x");
        w.submit(vec![blue]).await;
        assert_eq!(w.claim(100).await.len(), 7);
    }

    fn a_request_of_ten_thousand_kinds_beyond_the_quota_stores_nothing(w) {
        w.quota("lanes", 9_999);
        let tasks: Vec<NewTask> = (0..10_000).map(|n| w.new_task(&format!("k{n}"))).collect();
        assert_eq!(w.refusal(tasks).await, Quota::Lanes);
        assert!(w.list("").await.is_empty());
        assert!(w.store.lane_namespaces(None).await.unwrap().is_empty());
    }

    fn a_namespace_has_no_more_policies_than_its_quota_allows(w) {
        w.quota("policies", 3);
        let with = |n| w.retrying_task("a", policy(n));
        w.submit(vec![with(0), with(1), with(1)]).await;
        assert_eq!(w.refusal(vec![with(1), with(2), with(3)]).await, Quota::Policies);
        assert_eq!(w.list("").await.len(), 3);
        w.submit(vec![with(2)]).await;
        assert_eq!(w.refusal(vec![with(3)]).await, Quota::Policies);
        w.submit(vec![with(0), with(2)]).await;
        // What others brought is not counted, and they have a quota of their own.
        let blue = |n| NewTask { policy: with(n).policy, ..w.task_of("blue", "default", "a") };
        w.submit((0..6).map(blue).collect()).await;
        assert_eq!(w.refusal(vec![blue(6)]).await, Quota::Policies);
        for it in w.claim(100).await {
            assert!(it.stored.policy.is_some());
        }
    }

    fn a_namespace_has_no_more_values_under_rules_than_its_quota_allows(w) {
        w.rule(json!({"name": "u", "per": ["user"], "max_running": 1})).await;
        w.quota("rule_keys", 3);
        let of = |user: &str| of_user(w.new_task("a"), user);
        w.submit(vec![of("1"), of("2"), of("3"), of("3")]).await;
        assert_eq!(w.refusal(vec![of("1"), of("4")]).await, Quota::RuleKeys);
        w.submit(vec![of("2")]).await;
        let claimed = w.claim(100).await;
        assert_eq!(claimed.len(), 3, "one of each");
        // Values without open tasks are free again, while what is over is still there.
        for it in &claimed {
            assert_eq!(w.succeed(&it.stored).await, Applied::Done);
        }
        for it in w.claim(100).await {
            assert_eq!(w.succeed(&it.stored).await, Applied::Done);
        }
        assert_eq!(w.forget().await, 2, "the last number stays");
        assert_eq!(w.refusal(vec![of("4"), of("5"), of("6")]).await, Quota::RuleKeys);
        w.submit(vec![of("4"), of("1")]).await;
        assert_eq!(w.claim(100).await.len(), 2);
        assert_eq!(w.list("kind:a").await.len(), 7);
        for it in claimed {
            w.check_log(it.stored.task.id).await;
        }
    }

    fn a_lane_is_forgotten_with_its_last_task(w) {
        w.quota("lanes", 3);
        let ids = w.submit(["a", "b", "c"].map(|kind| w.new_task(kind)).into()).await;
        assert_eq!(w.forget().await, 0, "there are tasks in all of them");
        for it in w.claim(2).await {
            w.succeed(&it.stored).await;
        }
        assert_eq!(w.forget().await, 0, "what is over is in them too");
        w.pass(1_000);
        assert_eq!(w.store.prune(w.now(), 100).await.unwrap().tasks, 2);
        assert_eq!(w.forget().await, 2);
        assert_eq!(w.refusal(["a", "d", "e"].map(|kind| w.new_task(kind)).into()).await, Quota::Lanes);
        // The same lanes get new numbers when they are needed again.
        w.submit(["a", "d"].map(|kind| w.new_task(kind)).into()).await;
        assert_eq!(w.state(ids[2]).await, State::Pending);
        assert_eq!(kinds(&w.claim(100).await), ["c", "a", "d"]);
    }

    /// What is empty for a moment only keeps its number.
    fn a_lane_that_is_used_again_is_not_forgotten(w) {
        w.submit(["a", "b"].map(|kind| w.new_task(kind)).into()).await;
        w.end_and_prune_all().await;
        assert_eq!(w.store.forget_unused(w.now()).await.unwrap().lanes, 0);
        w.pass(10_000);
        w.submit_many("a", 1).await;
        w.pass(10_000);
        assert_eq!(w.store.forget_unused(w.now()).await.unwrap().lanes, 0);
        w.pass(10_000);
        assert_eq!(w.store.forget_unused(w.now()).await.unwrap().lanes, 0);
        assert_eq!(w.claim(100).await.len(), 1);
    }

    fn submits_into_lanes_that_are_forgotten_at_the_same_time_are_all_found(w) {
        for round in 0..4 {
            w.submit((0..20).map(|n| w.new_task(&format!("k{n}"))).collect()).await;
            w.end_and_prune_all().await;
            let ripe = async {
                w.forget().await;
            };
            let submits = async {
                for n in 0..20 {
                    w.submit_many(&format!("k{n}"), 1).await;
                    let claimed = w.claim(10).await;
                    assert_eq!(claimed.len(), 1, "round {round}, kind {n}");
                    assert_eq!(w.succeed(&claimed[0].stored).await, Applied::Done);
                }
            };
            tokio::join!(ripe, submits);
        }
    }

    fn policies_are_forgotten_when_no_task_uses_them(w) {
        let with = |n| w.retrying_task("a", policy(n));
        w.submit(vec![with(0), with(1)]).await;
        assert_eq!(w.store.forget_policies(0, w.now()).await.unwrap(), 0);
        w.end_and_prune_all().await;
        let stays = w.submit(vec![with(2)]).await[0];
        assert_eq!(w.store.forget_policies(1_000, w.now()).await.unwrap(), 0, "they are few");
        assert_eq!(w.store.forget_policies(0, w.now()).await.unwrap(), 2);
        assert_eq!(w.store.forget_policies(0, w.now()).await.unwrap(), 0);
        w.submit(vec![with(0), with(2)]).await;
        let claimed = w.claim(100).await;
        assert_eq!(claimed[0].stored.task.id, stays);
        let used: Vec<_> = claimed.iter().map(|it| it.stored.policy.clone().unwrap()).collect();
        assert_eq!(used, [2, 0, 2].map(|n| with(n).policy.unwrap()));
    }

    fn claims_over_many_lanes_take_turns_until_all_are_served(w) {
        let ids = w.submit((0..700).map(|n| w.new_task(&format!("k{n}"))).collect()).await;
        let mut given = BTreeSet::new();
        for _ in 0..7 {
            for it in w.claim(100).await {
                assert!(given.insert(it.stored.task.id), "given twice");
            }
        }
        assert_eq!(given, ids.into_iter().collect());
        assert!(w.claim(100).await.is_empty());
        let late = w.submit_many("k423", 1).await[0];
        let claimed = w.claim(100).await;
        assert_eq!(claimed.iter().map(|it| it.stored.task.id).collect::<Vec<_>>(), [late], "the one of them that is ready");
    }

    /// The order holds as long as no more lanes have something ready than a claim looks at.
    fn the_best_of_many_lanes_goes_first_when_few_are_ready(w) {
        w.submit((0..400).map(|n| w.new_task(&format!("k{n}"))).collect()).await;
        w.end_and_prune_all().await;
        let urgent = |kind: &str, priority| {
            let mut new = w.new_task(kind);
            new.task.priority = priority;
            new
        };
        w.submit(vec![urgent("k3", 0), urgent("k399", 5), urgent("k200", 9), urgent("k7", 5)]).await;
        assert_eq!(kinds(&w.claim(3).await), ["k200", "k399", "k7"]);
        assert_eq!(kinds(&w.claim(3).await), ["k3"]);
    }

    fn lanes_of_others_between_ones_own_do_no_harm(w) {
        let mut tasks = Vec::new();
        for n in 0..400 {
            tasks.push(w.task_of("red", "default", &format!("k{n}")));
            tasks.push(w.new_task(&format!("k{n}")));
        }
        w.submit(tasks).await;
        let mut given = 0;
        for _ in 0..8 {
            let claimed = w.claim(50).await;
            assert!(claimed.iter().all(|it| it.stored.task.lane.namespace == "default"));
            given += claimed.len();
        }
        assert_eq!(given, 400);
        w.submit(vec![w.new_task("k0"), w.new_task("k399")]).await;
        assert_eq!(w.claim(50).await.len(), 2, "though four hundred of others are ready");
        assert_eq!(w.claim_with(ClaimRequest { namespace: "red".into(), ..w.request(100) }).await.len(), 100);
    }

    fn a_claim_may_ask_for_all_queues_of_a_namespace(w) {
        w.submit((0..5).map(|n| w.task_of("default", &format!("q{n}"), "a")).collect()).await;
        w.submit(vec![w.task_of("red", "q0", "a")]).await;
        let request = ClaimRequest { queues: Vec::new(), ..w.request(100) };
        assert!(w.claim_with(request.clone()).await.is_empty());
        assert_eq!(w.claim_with(ClaimRequest { any_queue: true, ..request }).await.len(), 5);
        assert_eq!(w.store.lane_namespaces(Some(Executor::Worker)).await.unwrap(), ["default", "red"]);
        assert!(w.store.lane_namespaces(Some(Executor::Http)).await.unwrap().is_empty());
    }

    /// A rule counts for each of many users, and a claim finds those that have room behind hundreds that have none.
    fn users_with_room_are_found_behind_many_without(w) {
        w.rule(json!({"name": "u", "per": ["user"], "max_running": 1})).await;
        w.rule(json!({"name": "all", "max_running": 1_000})).await;
        let of = |n: usize| of_user(w.new_task("a"), &format!("u{n}"));
        w.submit((0..600).map(of).collect()).await;
        let mut running = Vec::new();
        // A claim takes from so many values at once.
        for _ in 0..12 {
            running.extend(w.claim(100).await);
        }
        assert_eq!(running.len(), 600);
        w.submit((0..600).map(of).collect()).await;
        assert!(w.claim(100).await.is_empty(), "each of them has one that runs");
        let free = of(600);
        let id = w.submit(vec![free]).await[0];
        assert_eq!(w.claim(100).await.iter().map(|it| it.stored.task.id).collect::<Vec<_>>(), [id]);
        assert_eq!(w.succeed(&running[345].stored).await, Applied::Done);
        assert_eq!(w.claim(100).await.len(), 1);
        let used = w.store.in_use("default").await.unwrap();
        assert_eq!(used.iter().find(|(key, _)| key.rule == "all").unwrap().1.running, 601);
    }

    fn the_limit_of_a_rule_over_many_lanes_is_kept(w) {
        w.rule(json!({"name": "all", "max_running": 7})).await;
        w.submit((0..600).map(|n| of_user(w.new_task(&format!("k{n}")), "x")).collect()).await;
        let claimed = w.claim(100).await;
        assert_eq!(claimed.len(), 7);
        assert!(w.claim(100).await.is_empty());
        assert_eq!(w.store.freed_by(&claimed[0].stored.task.lane).len(), 600);
        w.succeed(&claimed[0].stored).await;
        assert_eq!(w.claim(100).await.len(), 1);
    }
}
