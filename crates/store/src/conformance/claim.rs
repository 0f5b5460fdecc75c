//! Leasing.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::HashSet;
use std::sync::Arc;

use super::cases;
use super::world::{T0, World};
use crate::*;
use comeback_core::transition;
use comeback_core::*;
use serde_json::json;

fn in_lane(w: &World, change: impl Fn(&mut Lane)) -> NewTask {
    let mut new = w.new_task("a");
    let mut lane = (*new.task.lane).clone();
    change(&mut lane);
    new.task.lane = Arc::new(lane);
    new
}

fn ids(claimed: &[Claimed]) -> Vec<TaskId> {
    claimed.iter().map(|it| it.stored.task.id).collect()
}

cases! { "claim";
    fn a_leased_task_runs_at_once(w) {
        let id = w.submit_many("a", 1).await[0];
        w.pass(1_500);
        let claimed = w.claim(10).await;
        assert_eq!(ids(&claimed), [id]);
        let task = w.load(id).await.task;
        assert_eq!((task.state, task.run, task.lease_number, task.counters.attempt), (State::Running, 1, 1, 0));
        let lease = task.lease.clone().unwrap();
        assert_eq!((&*lease.worker, lease.acquired_at, lease.expires_at), ("w1", w.now(), Some(w.now() + Millis(60_000))));
        assert_eq!(task.started_at, Some(w.now()));
        w.check_log(id).await;
    }

    /// The database and the core must agree on what a lease is, to the last column.
    fn a_lease_is_what_the_core_says_it_is(w) {
        let mut new = w.retrying_task("a", json!({"max_retries": 3}));
        new.task.timeout = Some(Millis(30_000));
        new.task.attempt_deadline = Some(Millis(20_000));
        new.task.priority = -5;
        let id = w.submit(vec![new]).await[0];
        for _ in 0..2 {
            let before = w.load(id).await.task;
            w.pass(777);
            let claimed = w.claim(1).await.remove(0);
            let expected = transition::lease(&before, "w1", Millis::from_secs(60), w.now()).unwrap().after;
            assert_eq!(claimed.stored.task, expected);
            assert_eq!(w.load(id).await.task, expected);
            w.fail(&claimed.stored).await;
            w.go_to(w.load(id).await.task.due().unwrap());
            w.promote().await;
        }
    }

    /// A command may have asked the clock before another one changed the task.
    fn a_tasks_own_time_never_goes_back(w) {
        let early = w.now();
        w.pass(5_000);
        let id = w.submit(vec![w.retrying_task("a", json!({"strategy": "immediate"}))]).await[0];
        for _ in 0..2 {
            let before = w.load(id).await.task;
            let claimed = w.store.claim(&[w.request(1)], early).await.unwrap().remove(0).remove(0);
            let expected = transition::lease(&before, "w1", Millis::from_secs(60), early).unwrap().after;
            assert_eq!(claimed.stored.task, expected);
            assert_eq!(w.load(id).await.task, expected);
            assert_eq!(expected.started_at, Some(before.updated_at));
            w.fail(&claimed.stored).await;
            let before = w.load(id).await.task;
            assert_eq!(w.store.promote(Promote::Retries, w.now(), 10).await.unwrap().count, 1);
            assert_eq!(w.load(id).await.task, transition::promote(&before, w.now()).unwrap().after);
        }
        w.check_log(id).await;
    }

    fn the_worker_gets_what_it_needs(w) {
        let mut new = w.retrying_task("mail", json!({}));
        new.body.payload = Some("{\"to\":\"x\"}".into());
        new.body.labels.insert("tenant".into(), "acme".into());
        new.body.name = Some("Mail".into());
        new.body.key = Some("k".into());
        new.body.traceparent = Some("00-x".into());
        let claimed = w.running(new.clone()).await;
        assert_eq!(claimed.payload, new.body.payload);
        assert_eq!(claimed.labels, new.body.labels);
        assert_eq!((claimed.name, claimed.key, claimed.traceparent), (new.body.name, new.body.key, new.body.traceparent));
        assert_eq!(claimed.stored.policy, new.policy);
    }

    fn nothing_ready_gives_nothing(w) {
        assert!(w.claim(10).await.is_empty());
        assert!(w.store.claim(&[], w.now()).await.unwrap().is_empty());
    }

    fn no_more_than_the_limit(w) {
        w.submit_many("a", 10).await;
        assert_eq!(w.claim(3).await.len(), 3);
        assert_eq!(w.claim(100).await.len(), 7);
        assert!(w.claim(100).await.is_empty());
    }

    fn a_limit_of_zero_gives_nothing(w) {
        w.submit_many("a", 1).await;
        assert!(w.claim(0).await.is_empty());
        assert_eq!(w.claim(1).await.len(), 1);
    }

    /// S3-37, I-17: priority first, then the oldest submission, then the id.
    fn the_order_is_priority_then_submission_then_id(w) {
        let mut expected = Vec::new();
        for (priority, later) in [(0, 200), (5, 300), (0, 100), (-5, 0), (5, 100), (0, 100)] {
            let mut new = w.new_task("a");
            new.task.priority = priority;
            new.task.submitted_at = T0 + Millis(later);
            expected.push((-priority, new.task.submitted_at, new.task.id));
            w.submit(vec![new]).await;
        }
        expected.sort();
        let expected: Vec<TaskId> = expected.into_iter().map(|(_, _, id)| id).collect();
        assert_eq!(ids(&w.claim(10).await), expected);
    }

    /// S3-33 to S3-37: an old retry goes before newer work, one that is not due is left out.
    fn a_due_retry_competes_by_its_first_submission(w) {
        let old = w.running(w.retrying_task("a", json!({"initial_delay": "10s"}))).await;
        w.pass(1_000);
        let waiting = w.running(w.retrying_task("a", json!({"initial_delay": "1h"}))).await;
        w.fail(&old.stored).await;
        w.fail(&waiting.stored).await;
        w.pass(1_000);
        let new = w.submit_many("a", 2).await;
        w.pass(20_000);
        w.promote().await;
        assert_eq!(ids(&w.claim(10).await), [old.stored.task.id, new[0], new[1]]);
    }

    fn the_order_holds_over_many_lanes(w) {
        let mut expected = Vec::new();
        for n in 0..60_u64 {
            let mut new = in_lane(&w, |lane| {
                lane.kind = format!("kind-{}", n % 7);
                lane.queue = if n % 2 == 0 { "default".into() } else { "other".into() };
            });
            new.task.priority = i16::try_from(n * 7 % 5).unwrap();
            new.task.submitted_at = T0 + Millis(n * 13 % 17);
            expected.push((-new.task.priority, new.task.submitted_at, new.task.id));
            w.submit(vec![new]).await;
        }
        expected.sort();
        let expected: Vec<TaskId> = expected.into_iter().map(|(_, _, id)| id).collect();
        let request = ClaimRequest { queues: vec!["default".into(), "other".into()], ..w.request(7) };
        let mut got = Vec::new();
        loop {
            let claimed = w.claim_with(request.clone()).await;
            if claimed.is_empty() {
                break;
            }
            assert!(claimed.len() <= 7);
            got.extend(ids(&claimed));
        }
        assert_eq!(got, expected);
    }

    fn a_full_lane_does_not_hide_a_better_task_in_another(w) {
        for _ in 0..200 {
            w.submit(vec![in_lane(&w, |lane| lane.kind = "many".into())]).await;
        }
        let mut urgent = in_lane(&w, |lane| lane.kind = "few".into());
        urgent.task.priority = 9;
        let urgent = w.submit(vec![urgent]).await[0];
        assert_eq!(w.claim(5).await[0].stored.task.id, urgent);
    }

    fn a_worker_gets_only_its_queues(w) {
        w.submit(vec![in_lane(&w, |lane| lane.queue = "a".into()), in_lane(&w, |lane| lane.queue = "b".into())]).await;
        let of = |queues: &[&str]| ClaimRequest { queues: queues.iter().map(|q| (*q).to_owned()).collect(), ..w.request(10) };
        assert!(w.claim_with(of(&["c"])).await.is_empty());
        assert!(w.claim_with(of(&[])).await.is_empty());
        let claimed = w.claim_with(of(&["b"])).await;
        assert_eq!(claimed.iter().map(|it| it.stored.task.lane.queue.as_str()).collect::<Vec<_>>(), ["b"]);
    }

    fn a_worker_gets_only_its_kinds(w) {
        w.submit(vec![w.new_task("a"), w.new_task("b"), w.new_task("c")]).await;
        let request = ClaimRequest { kinds: vec!["a".into(), "c".into()], ..w.request(10) };
        let kinds: Vec<String> = w.claim_with(request).await.iter().map(|it| it.stored.task.lane.kind.clone()).collect();
        assert_eq!(kinds, ["a", "c"]);
    }

    fn a_worker_gets_only_its_namespace(w) {
        w.submit(vec![in_lane(&w, |lane| lane.namespace = "other".into())]).await;
        assert!(w.claim(10).await.is_empty());
        assert_eq!(w.claim_with(ClaimRequest { namespace: "other".into(), ..w.request(10) }).await.len(), 1);
    }

    fn a_worker_gets_only_tasks_for_workers(w) {
        let mut http = in_lane(&w, |lane| lane.executor = Executor::Http);
        http.body.executor = Some("{\"url\":\"x\"}".into());
        w.submit(vec![http]).await;
        assert!(w.claim(10).await.is_empty());
        let claimed = w.claim_with(ClaimRequest { executor: Executor::Http, ..w.request(10) }).await;
        assert_eq!(claimed.len(), 1);
        assert_eq!(claimed[0].executor.as_deref(), Some("{\"url\":\"x\"}"));
    }

    fn a_queue_name_is_only_a_name(w) {
        let odd = "a' or 1=1; -- %_\"\u{202e}\0";
        let odd = odd.replace('\0', "");
        w.submit(vec![in_lane(&w, |lane| lane.queue = odd.clone()), w.new_task("a")]).await;
        let claimed = w.claim_with(ClaimRequest { queues: vec![odd.clone()], ..w.request(10) }).await;
        assert_eq!(claimed.len(), 1);
        assert_eq!(claimed[0].stored.task.lane.queue, odd);
    }

    fn several_requests_of_one_call_never_share_a_task(w) {
        w.submit_many("a", 10).await;
        let requests: Vec<ClaimRequest> = (0..4)
            .map(|n| ClaimRequest { worker: format!("w{n}").as_str().into(), ..w.request(3) })
            .collect();
        let answers = w.store.claim(&requests, w.now()).await.unwrap();
        assert_eq!(answers.iter().map(Vec::len).collect::<Vec<_>>(), [3, 3, 3, 1]);
        let all: HashSet<TaskId> = answers.iter().flat_map(|claimed| ids(claimed)).collect();
        assert_eq!(all.len(), 10);
        assert_eq!(&*answers[2][0].stored.task.lease.as_ref().unwrap().worker, "w2");
    }

    /// I-4, R-I4: many claimers, each task once.
    fn many_claimers_never_share_a_task(w) {
        w.submit_many("a", 400).await;
        let mut claimers = tokio::task::JoinSet::new();
        for n in 0..8 {
            let w = w.clone();
            claimers.spawn(async move {
                let mut mine = Vec::new();
                let mut empty = 0;
                while empty < 3 {
                    let request = ClaimRequest { worker: format!("w{n}").as_str().into(), ..w.request(7) };
                    let claimed = w.claim_with(request).await;
                    empty = if claimed.is_empty() { empty + 1 } else { 0 };
                    mine.extend(ids(&claimed));
                }
                mine
            });
        }
        let all: Vec<TaskId> = claimers.join_all().await.into_iter().flatten().collect();
        assert_eq!(all.len(), 400);
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), 400);
    }

    fn many_claimers_over_many_lanes_never_share_a_task(w) {
        let tasks = (0..300).map(|n| in_lane(&w, |lane| lane.kind = format!("k{}", n % 12))).collect();
        w.submit(tasks).await;
        let mut claimers = tokio::task::JoinSet::new();
        for _ in 0..6 {
            let w = w.clone();
            claimers.spawn(async move {
                let mut mine = Vec::new();
                let mut empty = 0;
                while empty < 5 {
                    let claimed = w.claim(9).await;
                    empty = if claimed.is_empty() { empty + 1 } else { 0 };
                    mine.extend(ids(&claimed));
                }
                mine
            });
        }
        let all: Vec<TaskId> = claimers.join_all().await.into_iter().flatten().collect();
        assert_eq!(all.len(), 300);
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), 300);
    }

    fn a_paused_task_is_not_given(w) {
        let id = w.submit_many("a", 1).await[0];
        let task = w.load(id).await.task;
        w.apply(transition::pause(&task, &transition::Actor::default(), w.now()).unwrap()).await;
        assert!(w.claim(10).await.is_empty());
    }

    /// R-I14: a deadline that has passed is kept even before anybody has looked at it.
    fn what_is_past_its_deadline_is_not_given(w) {
        let mut late = w.new_task("a");
        late.task.expires_at = Some(w.now() + Millis(1_000));
        let mut in_time = w.new_task("b");
        in_time.task.expires_at = Some(w.now() + Millis(5_000));
        let ids_in = w.submit(vec![late, in_time]).await;
        w.pass(1_000);
        assert_eq!(ids(&w.claim(10).await), [ids_in[1]]);
        let (_, tasks) = {
            let (mut submission, id, tasks) = w.new_execution(&["x", "y"], &[]);
            submission.tasks[0].task.expires_at = Some(w.now() + Millis(1_000));
            w.submit_one(submission).await;
            (id, tasks)
        };
        w.pass(1_000);
        assert_eq!(ids(&w.claim(10).await), [tasks["y"]]);
    }

    /// A command may have asked the clock before another one changed the task: by the task's own time it is over.
    fn what_is_past_its_deadline_by_its_own_time_is_left_out(w) {
        let early = w.now();
        w.pass(5_000);
        let (mut submission, _, tasks) = w.new_execution(&["late", "x"], &[]);
        submission.tasks[0].task.expires_at = Some(early + Millis(4_000));
        w.submit_one(submission).await;
        let claimed = w.store.claim(&[w.request(10)], early).await.unwrap().remove(0);
        assert_eq!(ids(&claimed), [tasks["x"]]);
        assert_eq!(w.state(tasks["late"]).await, State::Pending);
    }

    /// Those who lose a race for one task find another while there is one.
    fn nobody_goes_empty_beside_ready_work(w) {
        let names: Vec<String> = (0..30).map(|n| format!("t{n:02}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        w.execution(&names, &[]).await;
        for round in 0..5 {
            let mut claimers = tokio::task::JoinSet::new();
            for _ in 0..6 {
                let w = w.clone();
                claimers.spawn(async move { w.claim(1).await.len() });
            }
            let given = claimers.join_all().await;
            assert_eq!(given, [1; 6], "in round {round}");
        }
    }

    fn what_waits_for_its_retry_is_not_given(w) {
        let claimed = w.running(w.retrying_task("a", json!({"initial_delay": "5s"}))).await;
        w.fail(&claimed.stored).await;
        w.pass(60_000);
        assert!(w.claim(10).await.is_empty(), "due, but not promoted");
    }

    /// T6, A1: a hook is claimed first; its start is not yet an attempt.
    fn a_hook_is_claimed_not_started(w) {
        w.submit(vec![in_lane(&w, |lane| lane.executor = Executor::Hook)]).await;
        let claimed = w.claim_with(ClaimRequest { executor: Executor::Hook, ..w.request(1) }).await.remove(0);
        let id = claimed.stored.task.id;
        let task = w.load(id).await.task;
        assert_eq!(task, claimed.stored.task);
        assert_eq!((task.state, task.run, task.lease_number), (State::Claimed, 0, 1));
        assert_eq!(w.kinds(id).await, ["task.created", "task.ready", "task.claimed"]);
        w.check_log(id).await;
    }

    fn the_second_lease_has_the_next_number(w) {
        let first = w.running(w.retrying_task("a", json!({"strategy": "immediate"}))).await;
        w.fail(&first.stored).await;
        w.promote().await;
        let second = w.claim(1).await.remove(0);
        assert_eq!((second.stored.task.lease_number, second.stored.task.run, second.stored.task.counters.attempt), (2, 2, 1));
    }

    fn a_released_task_can_be_leased_again(w) {
        let first = w.running(w.new_task("a")).await;
        assert_eq!(w.end(&first.stored, End::Released).await, Applied::Done);
        let second = w.claim(1).await.remove(0);
        assert_eq!((second.stored.task.lease_number, second.stored.task.counters.attempt), (2, 0));
        w.check_log(second.stored.task.id).await;
    }

    fn leasing_beside_a_large_future_gives_only_what_is_ready(w) {
        let far: Vec<NewTask> = (0..3_000).map(|_| w.delayed_task("a", 1_209_600_000)).collect();
        w.submit_one(w.submission(far)).await;
        let ready = w.submit_many("a", 5).await;
        assert_eq!(ids(&w.claim(100).await), ready);
    }
}
