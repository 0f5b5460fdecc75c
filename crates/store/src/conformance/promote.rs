//! Retries and starts whose time has come.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use super::cases;
use super::world::World;
use crate::types::*;
use comeback_core::transition;
use comeback_core::*;
use serde_json::json;

async fn retrying(w: &World, delay_ms: u64) -> TaskId {
    let claimed =
        w.running(w.retrying_task("a", json!({"strategy": "fixed", "delay_ms": delay_ms, "max_retries": 9}))).await;
    w.fail(&claimed.stored).await;
    claimed.stored.task.id
}

async fn starts(w: &World) -> Promoted {
    w.store.promote(Promote::Starts, w.now(), 1_000).await.unwrap()
}

cases! { "promote";
    /// R-I10: never early, not by a millisecond.
    fn nothing_is_promoted_early(w) {
        let id = retrying(&w, 5_000).await;
        w.pass(4_999);
        assert_eq!(w.promote().await.count, 0);
        assert_eq!(w.state(id).await, State::RetryPending);
        w.pass(1);
        let promoted = w.promote().await;
        assert_eq!((promoted.count, promoted.lanes[0].kind.as_str()), (1, "a"));
        assert_eq!(w.state(id).await, State::Pending);
        w.check_log(id).await;
    }

    fn a_promotion_is_what_the_core_says_it_is(w) {
        let id = retrying(&w, 5_000).await;
        let before = w.load(id).await.task;
        w.pass(6_000);
        w.promote().await;
        assert_eq!(w.load(id).await.task, transition::promote(&before, w.now()).unwrap().after);
        let delayed = w.submit(vec![w.delayed_task("b", 1_000)]).await[0];
        let before = w.load(delayed).await.task;
        w.pass(1_500);
        starts(&w).await;
        assert_eq!(w.load(delayed).await.task, transition::promote(&before, w.now()).unwrap().after);
    }

    fn what_was_promoted_is_not_promoted_again(w) {
        retrying(&w, 0).await;
        assert_eq!(w.promote().await.count, 1);
        assert_eq!(w.promote().await.count, 0);
    }

    fn a_promotion_keeps_counters_and_submission(w) {
        let id = retrying(&w, 1_000).await;
        let before = w.load(id).await.task;
        w.pass(1_000);
        w.promote().await;
        let after = w.load(id).await.task;
        assert_eq!((after.counters, after.submitted_at, after.cycle), (before.counters, before.submitted_at, before.cycle));
        assert_eq!((after.next_retry_at, after.started_at), (None, None));
    }

    fn the_longest_overdue_go_first(w) {
        let late = retrying(&w, 3_000).await;
        let early = retrying(&w, 1_000).await;
        w.pass(5_000);
        let promoted = w.store.promote(Promote::Retries, w.now(), 1).await.unwrap();
        assert_eq!(promoted.count, 1);
        assert_eq!((w.state(early).await, w.state(late).await), (State::Pending, State::RetryPending));
    }

    fn delayed_starts_become_ready(w) {
        let id = w.submit(vec![w.delayed_task("a", 5_000)]).await[0];
        w.pass(4_999);
        assert_eq!(starts(&w).await.count, 0);
        w.pass(1);
        assert_eq!(starts(&w).await.count, 1);
        assert_eq!(w.kinds(id).await, ["task.created", "task.ready"]);
        assert_eq!(w.claim(1).await.len(), 1);
        w.check_log(id).await;
    }

    fn retries_and_starts_are_promoted_apart(w) {
        let retry = retrying(&w, 1_000).await;
        let start = w.submit(vec![w.delayed_task("a", 1_000)]).await[0];
        w.pass(1_000);
        w.promote().await;
        assert_eq!((w.state(retry).await, w.state(start).await), (State::Pending, State::Waiting));
        starts(&w).await;
        assert_eq!(w.state(start).await, State::Pending);
    }

    /// R-I16, S2-115: paused means paused, whoever asks.
    fn a_paused_loop_promotes_nothing(w) {
        retrying(&w, 1_000).await;
        w.submit(vec![w.delayed_task("a", 1_000)]).await;
        w.pass(1_000);
        let pause = Pause { until: w.now() + Millis(30_000), note: Some("deploy".into()), by: Some("ana".into()), at: w.now() };
        w.store.set_pause(Loop::Retries, Some(pause), None, w.now()).await.unwrap();
        assert_eq!(w.promote().await.count, 0);
        assert_eq!(starts(&w).await.count, 1, "the other loop goes on");
        w.pass(29_999);
        assert_eq!(w.promote().await.count, 0);
        w.pass(1);
        assert_eq!(w.promote().await.count, 1, "it resumes by itself");
    }

    fn resuming_a_loop_lifts_the_pause(w) {
        retrying(&w, 0).await;
        let pause = Pause { until: Timestamp::MAX, note: None, by: None, at: w.now() };
        w.store.set_pause(Loop::Retries, Some(pause), None, w.now()).await.unwrap();
        assert_eq!(w.promote().await.count, 0);
        w.store.set_pause(Loop::Retries, None, None, w.now()).await.unwrap();
        assert_eq!(w.promote().await.count, 1);
    }

    fn a_held_task_waits_for_the_end_of_its_hold(w) {
        let claimed = w.running(w.retrying_task("a", json!({"initial_delay": "1s"}))).await;
        w.fail_held(&claimed.stored, 9_000).await;
        w.pass(8_999);
        assert_eq!(w.promote().await.count, 0);
        w.pass(1);
        assert_eq!(w.promote().await.count, 1);
        assert_eq!(w.load(claimed.stored.task.id).await.task.hold, None);
    }

    fn what_is_past_its_deadline_is_not_promoted(w) {
        let mut new = w.retrying_task("a", json!({"strategy": "fixed", "delay": "1s"}));
        new.task.expires_at = Some(w.now() + Millis(5_000));
        let claimed = w.running(new).await;
        w.fail(&claimed.stored).await;
        w.pass(5_000);
        assert_eq!(w.promote().await.count, 0);
        assert_eq!(w.store.due(Due::Deadlines, w.now(), 10).await.unwrap().len(), 1);
    }

    /// S0-5, S0-68: two instances find the same due retry, one moves it.
    fn many_promoters_move_each_task_once(w) {
        let tasks = (0..200).map(|_| w.retrying_task("a", json!({"strategy": "immediate", "max_retries": 9}))).collect();
        let ids = w.submit(tasks).await;
        let claimed = w.claim(200).await;
        let commits: Vec<Commit> = claimed.iter().map(|it| w.decide(&it.stored, End::Failed(Failure::new(Trigger::Error, "x"))).into()).collect();
        w.store.apply(&commits, None, w.now()).await.unwrap();
        let mut promoters = tokio::task::JoinSet::new();
        for _ in 0..6 {
            let w = w.clone();
            promoters.spawn(async move {
                let mut mine = 0;
                for _ in 0..10 {
                    mine += w.store.promote(Promote::Retries, w.now(), 30).await.unwrap().count;
                }
                mine
            });
        }
        assert_eq!(promoters.join_all().await.into_iter().sum::<u32>(), 200);
        for id in ids.iter().take(20) {
            w.check_log(*id).await;
        }
        assert_eq!(w.claim(500).await.len(), 200);
    }

    fn the_next_time_of_each_sort_is_known(w) {
        assert_eq!(w.store.next_due().await.unwrap(), NextDue::default());
        let t0 = w.now();
        retrying(&w, 50_000).await;
        w.submit(vec![w.delayed_task("a", 40_000)]).await;
        let mut timed = w.new_task("b");
        timed.task.timeout = Some(Millis(30_000));
        timed.task.expires_at = Some(t0 + Millis(100_000));
        w.running(timed).await;
        let mut deadline = w.new_task("c");
        deadline.task.expires_at = Some(t0 + Millis(90_000));
        w.submit(vec![deadline]).await;
        let next = w.store.next_due().await.unwrap();
        assert_eq!(next, NextDue {
            retry: Some(t0 + Millis(50_000)),
            start: Some(t0 + Millis(40_000)),
            lease: Some(t0 + Millis(60_000)),
            timeout: Some(t0 + Millis(30_000)),
            deadline: Some(t0 + Millis(90_000)),
            gate: None,
            schedule: None,
            operation: None,
            alert: None,
        });
        assert_eq!(next.earliest(), Some(t0 + Millis(30_000)));
    }

    fn the_next_retry_after_an_instant_is_known(w) {
        let t0 = w.now();
        let after = async |ms: u64| w.store.retry_after(t0 + Millis(ms)).await.unwrap();
        assert_eq!(after(0).await, None);
        for ms in [5_000, 7_000] {
            retrying(&w, ms).await;
        }
        assert_eq!(after(0).await, Some(t0 + Millis(5_000)));
        assert_eq!(after(5_000).await, Some(t0 + Millis(7_000)), "what is due then is not after it");
        assert_eq!(after(7_000).await, None);
    }

    fn a_due_time_years_away_is_kept(w) {
        let id = w.submit(vec![w.delayed_task("a", 86_400_000 * 365 * 2)]).await[0];
        w.pass(86_400_000 * 365 * 2 - 1);
        assert_eq!(starts(&w).await.count, 0);
        w.pass(1);
        assert_eq!(starts(&w).await.count, 1);
        assert_eq!(w.state(id).await, State::Pending);
    }
}
