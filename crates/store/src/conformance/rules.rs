//! Admission rules: who may start is decided with the lease itself.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeMap;
use std::sync::Arc;

use super::cases;
use super::world::World;
use crate::*;
use comeback_core::admission::{Key, Rule};
use comeback_core::transition::{self, Actor};
use comeback_core::*;
use serde_json::{Value, json};

impl World {
    /// Puts a rule and waits until all tasks are where they belong.
    pub async fn rule(&self, text: Value) {
        let rule: Rule = serde_json::from_value(text).unwrap();
        assert!(self.store.put_rule("default", &rule, None, self.now()).await.unwrap().is_some(), "it is new");
        self.settle_rules().await;
    }

    pub async fn settle_rules(&self) {
        while !self.store.settle_rules().await.unwrap().is_done {}
    }

    async fn running_under(&self, rule: &str) -> Vec<(String, u64)> {
        let used = self.store.in_use("default").await.unwrap();
        used.into_iter()
            .filter(|(key, _)| key.rule == rule)
            .map(|(key, used)| (key.to_string(), used.running))
            .collect()
    }
}

fn labelled(mut new: NewTask, labels: &[(&str, &str)]) -> NewTask {
    new.body.labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    new
}

fn expecting(mut new: NewTask, expected: u32) -> NewTask {
    new.task.tally.expected = Some(expected);
    new
}

fn ids(claimed: &[Claimed]) -> Vec<TaskId> {
    claimed.iter().map(|it| it.stored.task.id).collect()
}

fn retrying() -> Value {
    json!({"strategy": "fixed", "delay": "10s", "max_retries": 9})
}

cases! { "rules";
    /// A rule that is fair lets each value of its label have its turn, however many wait behind one of them.
    fn who_runs_least_goes_first(w) {
        w.rule(json!({"name": "t", "per": ["tenant"], "max_running": 1_000_000_000, "fair": true})).await;
        let of = |tenant| labelled(w.new_task("a"), &[("tenant", tenant)]);
        let many = w.submit((0..9).map(|_| of("many")).collect()).await;
        w.pass(1);
        let few = w.submit(vec![of("few"), of("few")]).await;
        let mut both = ids(&w.claim(4).await);
        both.sort_unstable();
        assert_eq!(both, [many[0], many[1], few[0], few[1]], "two each");
        assert_eq!(ids(&w.claim(1).await), [many[2]], "nobody waits for nothing");
        let mut urgent = of("many");
        urgent.task.priority = 1;
        let urgent = w.submit(vec![urgent, of("new")]).await;
        assert_eq!(ids(&w.claim(1).await), [urgent[0]], "priority comes first");
        assert_eq!(ids(&w.claim(1).await), [urgent[1]], "then who runs least");
    }

    fn no_more_run_than_a_rule_allows(w) {
        w.rule(json!({"name": "r", "match": {"kind": "a"}, "max_running": 2})).await;
        let tasks = w.submit_many("a", 5).await;
        let other = w.submit_many("b", 1).await[0];
        let first = w.claim(10).await;
        assert_eq!(ids(&first), [tasks[0], tasks[1], other], "in one order, and others are not held up");
        assert_eq!(w.claim(10).await.len(), 0);
        assert_eq!(w.running_under("r").await, [("r".to_owned(), 2)]);
        w.succeed(&first[0].stored).await;
        let next = w.claim(10).await;
        assert_eq!(ids(&next), [tasks[2]]);
        w.check_log(tasks[2]).await;
        w.cancel(tasks[2]).await;
        assert_eq!(ids(&w.claim(1).await), [tasks[3]], "a cancel frees its place too");
    }

    /// A limit holds over all who ask at one moment; each gets no more than it wants, and under its own name.
    fn those_who_ask_together_share_what_a_rule_allows(w) {
        w.rule(json!({"name": "r", "match": {"kind": "a"}, "max_running": 5})).await;
        let tasks = w.submit_many("a", 9).await;
        let ask = |(worker, limit): (&str, u32)| ClaimRequest { worker: worker.into(), ..w.request(limit) };
        let asks = [("w1", 2), ("w2", 2), ("w3", 3), ("w4", 1)].map(ask);
        let given = w.store.claim(&asks, w.now()).await.unwrap();
        assert_eq!(given.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2, 1, 0]);
        assert_eq!(given.iter().flat_map(|it| ids(it)).collect::<Vec<_>>(), tasks[..5], "the first get the best");
        for (ask, given) in asks.iter().zip(&given) {
            for it in given {
                let lease = w.load(it.stored.task.id).await.task.lease.unwrap();
                assert_eq!(lease.worker, ask.worker);
                w.check_log(it.stored.task.id).await;
            }
        }
    }

    fn what_a_schedule_starts_falls_under_the_rules(w) {
        w.rule(json!({"name": "r", "match": {"kind": "a"}, "max_running": 1})).await;
        let schedule = Resource {
            sort: ResourceKind::Schedules,
            namespace: "default".into(),
            name: "s".into(),
            version: 0,
            due: None,
            body: "{}".into(),
            standing: "{}".into(),
            created_at: w.now(),
            updated_at: w.now(),
        };
        let start = w.submission(vec![w.new_task("a"), w.new_task("a")]);
        assert_eq!(w.store.put_follower(&schedule, Some(&start), None, None, w.now()).await.unwrap(), Applied::Done);
        assert_eq!(w.claim(10).await.len(), 1);
    }

    /// The database and the core agree on what a lease is, under a rule too.
    fn a_lease_under_a_rule_is_what_the_core_says_it_is(w) {
        w.rule(json!({"name": "r", "max_running": 1})).await;
        let mut new = w.retrying_task("a", retrying());
        new.task.timeout = Some(Millis(30_000));
        let id = w.submit(vec![new]).await[0];
        let before = w.load(id).await.task;
        w.pass(777);
        let claimed = w.claim(1).await.remove(0);
        assert_eq!(claimed.stored.task, transition::lease(&before, "w1", Millis::from_secs(60), w.now()).unwrap().after);
        assert_eq!(w.load(id).await.task, claimed.stored.task);
        assert_eq!(claimed.stored.task.lane.limits.len(), 1, "its lane says what it falls under");
        w.check_log(id).await;
    }

    /// S1-56, S1-87, model I-9: who waits for a retry holds no place, and gets one again like everybody else.
    fn who_waits_for_a_retry_holds_no_place(w) {
        w.rule(json!({"name": "r", "max_running": 1})).await;
        let tasks = w.submit(vec![w.retrying_task("a", retrying()), w.retrying_task("a", retrying())]).await;
        let first = w.claim(10).await;
        assert_eq!(ids(&first), [tasks[0]]);
        w.fail(&first[0].stored).await;
        assert_eq!(w.running_under("r").await, []);
        let second = w.claim(10).await;
        assert_eq!(ids(&second), [tasks[1]]);
        w.pass(10_000);
        let due = ClaimRequest { due: true, ..w.request(10) };
        assert_eq!(w.claim_with(due.clone()).await.len(), 0, "a retry that is due is not leased past the rule");
        assert_eq!(w.promote().await.count, 1);
        assert_eq!(w.claim_with(due).await.len(), 0);
        w.succeed(&second[0].stored).await;
        assert_eq!(ids(&w.claim(10).await), [tasks[0]]);
        w.check_log(tasks[0]).await;
    }

    fn a_rule_may_have_a_limit_for_each_value_of_a_label(w) {
        w.rule(json!({"name": "r", "per": ["tenant"], "max_running": 1})).await;
        let of = |tenant: &str| labelled(w.new_task("a"), &[("tenant", tenant)]);
        let tasks = w.submit(vec![of("a"), of("a"), of("b"), of("b"), w.new_task("a"), w.new_task("a")]).await;
        let claimed = w.claim(10).await;
        assert_eq!(ids(&claimed), [tasks[0], tasks[2], tasks[4], tasks[5]], "who has no tenant has no limit");
        assert_eq!(w.running_under("r").await, [("r (a)".to_owned(), 1), ("r (b)".to_owned(), 1)]);
        w.succeed(&claimed[1].stored).await;
        assert_eq!(ids(&w.claim(10).await), [tasks[3]]);
    }

    fn one_place_is_shared_by_kinds_and_queues(w) {
        w.rule(json!({"name": "r", "match": {"labels": {"db": "main"}}, "max_running": 1})).await;
        let on = |kind: &str| labelled(w.new_task(kind), &[("db", "main")]);
        let mut elsewhere = on("c");
        elsewhere.task.lane = Arc::new(Lane { queue: "other".into(), ..(*elsewhere.task.lane).clone() });
        let tasks = w.submit(vec![on("a"), on("b"), elsewhere]).await;
        let claimed = w.claim(10).await;
        assert_eq!(ids(&claimed), [tasks[0]]);
        let other = ClaimRequest { queues: vec!["other".into()], ..w.request(10) };
        assert_eq!(w.claim_with(other.clone()).await.len(), 0);
        w.succeed(&claimed[0].stored).await;
        assert_eq!(ids(&w.claim_with(other).await), [tasks[2]]);
        assert_eq!(w.claim(10).await.len(), 0);
    }

    /// Dialect `task`: what is still to be done by all that run, and by one more, is within the capacity.
    fn a_capacity_is_what_they_still_have_to_do(w) {
        w.rule(json!({"name": "c", "capacity": 10})).await;
        let of = |n: u32| expecting(w.new_task("a"), n);
        let tasks = w.submit(vec![of(11), of(6), of(5), of(1), w.new_task("a")]).await;
        assert_eq!(ids(&w.claim(1).await), [tasks[1]], "one that is larger than all there is holds up nobody");
        assert_eq!(w.claim(10).await.len(), 0, "the third waits for room, and nobody goes past it");
        let count = Count { task: tasks[1], success: 1, failures: 0, expected: None };
        assert_eq!(w.store.count(&[count], w.now()).await.unwrap(), [true]);
        assert_eq!(w.store.in_use("default").await.unwrap()[0].1.weight, 5);
        assert_eq!(ids(&w.claim(10).await), [tasks[2]], "what is done weighs nothing");
        w.succeed(&w.load(tasks[1]).await).await;
        assert_eq!(ids(&w.claim(10).await), [tasks[3], tasks[4]], "who does not say weighs one");
        assert_eq!(w.state(tasks[0]).await, State::Pending, "it never starts");
    }

    fn a_rule_binds_what_was_there_before_it(w) {
        let tasks = w.submit_many("a", 4).await;
        let running = w.claim(2).await;
        w.rule(json!({"name": "r", "match": {"kind": "a"}, "max_running": 3})).await;
        assert_eq!(w.running_under("r").await, [("r".to_owned(), 2)], "what runs is counted");
        assert_eq!(ids(&w.claim(10).await), [tasks[2]]);
        assert_eq!(w.succeed(&running[0].stored).await, Applied::Done, "who was leased before may speak");
        assert_eq!(ids(&w.claim(10).await), [tasks[3]]);
        for id in tasks {
            w.check_log(id).await;
        }
    }

    fn a_rule_is_raised_and_lowered_while_tasks_run(w) {
        w.rule(json!({"name": "r", "max_running": 1})).await;
        w.submit_many("a", 9).await;
        let mut running = w.claim(10).await;
        w.rule(json!({"name": "r", "max_running": 3})).await;
        running.extend(w.claim(10).await);
        assert_eq!(running.len(), 3);
        w.rule(json!({"name": "r", "max_running": 2})).await;
        assert_eq!(w.running_under("r").await, [("r".to_owned(), 3)], "nothing is taken from those who run");
        w.succeed(&running[0].stored).await;
        assert_eq!(w.claim(10).await.len(), 0);
        w.succeed(&running[1].stored).await;
        assert_eq!(w.claim(10).await.len(), 1);
        w.rule(json!({"name": "r", "max_running": 0})).await;
        w.succeed(&running[2].stored).await;
        assert_eq!(w.claim(10).await.len(), 0, "none at all");
    }

    fn a_rule_that_is_gone_binds_nobody(w) {
        w.rule(json!({"name": "r", "max_running": 0})).await;
        w.submit_many("a", 3).await;
        assert_eq!(w.claim(10).await.len(), 0);
        assert!(w.store.delete_rule("default", "r", None).await.unwrap().is_some());
        w.settle_rules().await;
        assert_eq!(w.claim(1).await.len(), 1);
        assert_eq!(w.submit_many("a", 1).await.len(), 1);
        assert_eq!(w.claim(10).await.len(), 3);
        assert_eq!(w.store.delete_rule("default", "r", None).await.unwrap(), None);
        assert_eq!(w.store.rules("default").await.unwrap(), []);
        assert_eq!(w.store.in_use("default").await.unwrap(), []);
    }

    fn a_rule_that_stands_there_is_no_change(w) {
        let rule: Rule = serde_json::from_value(json!({"name": "r", "max_running": 1})).unwrap();
        let first = w.store.put_rule("default", &rule, None, w.now()).await.unwrap();
        assert_eq!(first, Some(1));
        assert_eq!(w.store.put_rule("default", &rule, None, w.now()).await.unwrap(), None);
        assert_eq!(w.store.rules("default").await.unwrap(), std::slice::from_ref(&rule));
        assert_eq!(w.store.rules("other").await.unwrap(), []);
        assert_eq!(w.store.put_rule("other", &rule, None, w.now()).await.unwrap(), Some(2), "namespaces do not meet");
    }

    /// A hundred thousand that must wait are one lane, and not looked at.
    fn many_that_wait_hold_up_nobody(w) {
        w.rule(json!({"name": "r", "match": {"kind": "a"}, "max_running": 1})).await;
        let mut blocked = w.submit_many("a", 3_000).await;
        let free = w.submit_many("b", 10).await;
        assert_eq!(ids(&w.claim(1).await), [blocked.remove(0)]);
        assert_eq!(ids(&w.claim(20).await), free);
    }

    fn the_order_is_kept_over_lanes_with_rules_and_without(w) {
        w.rule(json!({"name": "r", "match": {"kind": "a"}, "max_running": 100})).await;
        let mut expected = Vec::new();
        for _ in 0..8 {
            expected.extend(w.submit_many("a", 2).await);
            expected.extend(w.submit_many("b", 1).await);
            w.pass(1);
        }
        let mut last = w.new_task("b");
        last.task.priority = 5;
        expected.insert(0, w.submit(vec![last]).await[0]);
        let mut claimed = Vec::new();
        for limit in [1, 3, 10, 100] {
            claimed.extend(ids(&w.claim(limit).await));
        }
        assert_eq!(claimed, expected);
    }

    fn tasks_of_an_execution_and_hooks_fall_under_rules_too(w) {
        w.rule(json!({"name": "r", "max_running": 1})).await;
        let (id, tasks) = w.execution(&["a", "b"], &[]).await;
        let mut hook = w.new_task("hook");
        hook.task.lane = Arc::new(Lane { executor: Executor::Hook, ..(*hook.task.lane).clone() });
        let hook = w.submit(vec![hook]).await[0];
        let first = w.claim(10).await;
        assert_eq!(first.len(), 1);
        let for_hooks = ClaimRequest { executor: Executor::Hook, ..w.request(10) };
        assert_eq!(w.claim_with(for_hooks.clone()).await.len(), 0);
        let first = first[0].stored.task.id;
        assert_eq!(w.settle_in(id, first, End::Succeeded { result: None }).await, Applied::Done);
        let claimed = w.claim_with(for_hooks).await;
        assert_eq!((ids(&claimed), claimed[0].stored.task.state), (vec![hook], State::Claimed), "claimed is counted too");
        assert_eq!(w.claim(10).await.len(), 0);
        for task in tasks.values().chain([&hook]) {
            w.check_log(*task).await;
        }
    }

    fn a_pause_frees_a_place(w) {
        w.rule(json!({"name": "r", "max_running": 1})).await;
        let tasks = w.submit_many("a", 2).await;
        w.claim(1).await;
        let paused = transition::pause(&w.load(tasks[0]).await.task, &Actor::default(), w.now()).unwrap();
        assert_eq!(w.apply(paused).await, Applied::Done);
        assert_eq!(ids(&w.claim(10).await), [tasks[1]]);
    }

    /// Its run was never taken from it, so it may be one more than the limit; but nobody else starts until there is room.
    fn who_is_resumed_in_its_run_holds_its_place_again(w) {
        w.rule(json!({"name": "r", "max_running": 1})).await;
        let tasks = w.submit_many("a", 3).await;
        w.claim(1).await;
        let paused = transition::pause(&w.load(tasks[0]).await.task, &Actor::default(), w.now()).unwrap();
        w.apply(paused).await;
        let second = w.claim(10).await;
        let resumed = transition::resume(&w.load(tasks[0]).await.task, &Actor::default(), w.now()).unwrap();
        assert_eq!(resumed.after().state, State::Running, "its lease is alive");
        assert_eq!(w.apply(resumed).await, Applied::Done);
        assert_eq!(w.running_under("r").await, [("r".to_owned(), 2)]);
        w.succeed(&second[0].stored).await;
        assert_eq!(w.claim(10).await.len(), 0, "the one that was resumed is all that may run");
        let first = w.load(tasks[0]).await;
        w.succeed(&first).await;
        assert_eq!(ids(&w.claim(10).await), [tasks[2]]);
    }

    /// Dialect `task`: a rule that a task brings along counts all that it matches and binds those that carry it.
    fn a_rule_that_is_carried_binds_who_carries_it(w) {
        w.rule(json!({"name": "~r", "match": {"kind": "a"}, "per": ["t"], "max_running": 1, "carried": true})).await;
        let of = |labels: &[(&str, &str)], carries: bool| {
            let mut new = labelled(w.new_task("a"), labels);
            new.body.rules = if carries { vec!["~r".into()] } else { Vec::new() };
            new
        };
        let tasks = w.submit(vec![of(&[("t", "x")], false), of(&[("t", "x")], false), of(&[("t", "x")], true)]).await;
        let lacking = w.submit(vec![of(&[], true), of(&[("t", "y")], true)]).await;
        let claimed = w.claim(10).await;
        assert_eq!(ids(&claimed), [tasks[0], tasks[1], lacking[1]], "who lacks the label never starts");
        w.succeed(&claimed[0].stored).await;
        assert_eq!(w.claim(10).await.len(), 0, "one still runs that is counted");
        w.succeed(&claimed[1].stored).await;
        assert_eq!(ids(&w.claim(10).await), [tasks[2]]);
        assert_eq!(w.store.task("default", tasks[2]).await.unwrap().unwrap().body.rules, ["~r"]);
    }

    fn rules_that_nobody_is_under_any_more_can_be_removed(w) {
        let names = ["~r".to_owned(), "~s".to_owned()];
        w.rule(json!({"name": "~r", "match": {"kind": "a"}, "max_running": 1, "carried": true})).await;
        w.rule(json!({"name": "~s", "match": {"kind": "a"}, "max_running": 1, "carried": true})).await;
        let mut new = w.new_task("a");
        new.body.rules = vec!["~r".into()];
        w.submit(vec![new]).await;
        assert!(w.store.delete_unused_rules("default", &names).await.unwrap().is_some());
        assert_eq!(w.store.delete_unused_rules("default", &names).await.unwrap(), None, "tasks are not settled yet");
        w.settle_rules().await;
        let left = |rules: Vec<Rule>| rules.into_iter().map(|rule| rule.name).collect::<Vec<_>>();
        assert_eq!(left(w.store.rules("default").await.unwrap()), ["~r"]);
        let claimed = w.claim(1).await;
        assert_eq!(w.store.delete_unused_rules("default", &names).await.unwrap(), None);
        w.succeed(&claimed[0].stored).await;
        assert!(w.store.delete_unused_rules("default", &names).await.unwrap().is_some());
        w.settle_rules().await;
        assert_eq!(left(w.store.rules("default").await.unwrap()), Vec::<String>::new());
    }

    fn the_tasks_of_an_execution_may_be_given_other_rules(w) {
        w.rule(json!({"name": "~r", "match": {"kind": "step"}, "max_running": 0, "carried": true})).await;
        let (id, _) = w.execution(&["a", "b"], &[]).await;
        assert_eq!(w.claim(1).await.len(), 1);
        let carried = ["~r".to_owned()];
        assert_eq!(w.store.attach_rules(id, "other", &carried).await.unwrap(), 0);
        assert_eq!(w.store.attach_rules(id, "step", &carried).await.unwrap(), 2);
        assert_eq!(w.claim(10).await.len(), 0);
        assert_eq!(w.store.attach_rules(id, "step", &[]).await.unwrap(), 2);
        assert_eq!(w.claim(10).await.len(), 1);
    }

    fn what_is_opened_again_falls_under_the_rules_of_now(w) {
        let ended = w.running(w.new_task("a")).await;
        w.fail(&ended.stored).await;
        w.rule(json!({"name": "r", "match": {"labels": {"x": "y"}}, "max_running": 0})).await;
        w.rule(json!({"name": "s", "match": {"kind": "a"}, "max_running": 0})).await;
        let task = w.load(ended.stored.task.id).await.task;
        let again = transition::manual_retry(&task, true, &Actor::default(), w.now()).unwrap();
        assert_eq!(w.apply(again).await, Applied::Done);
        assert_eq!(w.state(task.id).await, State::Pending);
        assert_eq!(w.claim(10).await.len(), 0);
        w.rule(json!({"name": "s", "match": {"kind": "a"}, "max_running": 1})).await;
        assert_eq!(w.claim(10).await.len(), 1);
        w.check_log(task.id).await;
    }

    fn rules_and_what_is_under_them_outlive_a_look_at_all_open_tasks(w) {
        w.submit_many("a", 4_500).await;
        let rule: Rule = serde_json::from_value(json!({"name": "r", "max_running": 2})).unwrap();
        let generation = w.store.put_rule("default", &rule, None, w.now()).await.unwrap().unwrap();
        let mut stretches = 0;
        loop {
            let settled = w.store.settle_rules().await.unwrap();
            assert_eq!(settled.generation, generation);
            if settled.is_done {
                break;
            }
            stretches += 1;
        }
        assert_eq!(stretches, 3, "a stretch at a time");
        assert_eq!(w.claim(10).await.len(), 2);
        let again: BTreeMap<Key, _> = w.store.in_use("default").await.unwrap().into_iter().collect();
        assert_eq!(again.len(), 1);
    }
}
