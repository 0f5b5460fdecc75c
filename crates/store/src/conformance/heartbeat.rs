//! Heartbeats, and what happens to runs that have none.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use super::cases;
use super::world::World;
use crate::*;
use comeback_core::transition::{self, Actor};
use comeback_core::*;
use serde_json::json;

async fn beat(w: &World, task: TaskId, lease_number: u32, extend: u64) -> BeatAnswer {
    let beat = Beat { task, lease_number, extend: Millis(extend), progress: None };
    w.store.heartbeat(&[beat], w.now()).await.unwrap()[0]
}

cases! { "heartbeat";
    fn a_heartbeat_extends_the_lease_from_now(w) {
        let claimed = w.running(w.new_task("a")).await;
        let id = claimed.stored.task.id;
        w.pass(50_000);
        assert_eq!(beat(&w, id, 1, 60_000).await, BeatAnswer::Extended(w.now() + Millis(60_000)));
        assert_eq!(w.load(id).await.task.lease.unwrap().expires_at, Some(w.now() + Millis(60_000)));
        w.pass(50_000);
        assert!(w.store.due(Due::Leases, w.now(), 10).await.unwrap().is_empty());
    }

    fn a_heartbeat_may_also_shorten_the_lease(w) {
        let claimed = w.running(w.new_task("a")).await;
        let id = claimed.stored.task.id;
        beat(&w, id, 1, 1_000).await;
        w.pass(1_000);
        assert_eq!(w.store.due(Due::Leases, w.now(), 10).await.unwrap().len(), 1);
    }

    fn another_lease_number_is_lost(w) {
        let claimed = w.running(w.new_task("a")).await;
        let id = claimed.stored.task.id;
        for number in [0, 2, 99] {
            assert_eq!(beat(&w, id, number, 60_000).await, BeatAnswer::Lost);
        }
        assert_eq!(w.load(id).await, claimed.stored, "nothing changed");
    }

    /// R-I21: the clock was set ahead by two weeks.
    fn a_lease_outlasts_a_step_of_the_clock(w) {
        let mut new = w.new_task("a");
        new.task.timeout = Some(Millis(40_000));
        let held = w.running(new).await.stored.task;
        let long = w.running(w.new_task("b")).await.stored.task.id;
        beat(&w, long, 1, 20 * 86_400_000).await;
        let gone = w.running(w.new_task("c")).await.stored.task.id;
        beat(&w, gone, 1, 10).await;
        w.pass(20_000);
        let (from, step) = (w.now(), 14 * 86_400_000);
        let stays = w.load(long).await;
        for first in [1, 0] {
            assert_eq!(w.store.extend_leases(from, from + Millis(step)).await.unwrap(), first, "once is enough");
        }
        w.pass(step);
        let after = w.load(held.id).await.task;
        assert_eq!(after.lease.as_ref().unwrap().expires_at, Some(w.now() + Millis(40_000)), "as long as it had left");
        assert_eq!(after.timeout_at, Some(w.now() + Millis(20_000)), "and so has the run");
        assert_eq!(w.load(long).await, stays, "it has time enough");
        let due = w.store.due(Due::Leases, w.now(), 10).await.unwrap();
        assert_eq!(due.iter().map(|stored| stored.task.id).collect::<Vec<_>>(), [gone]);
        assert!(matches!(beat(&w, held.id, 1, 60_000).await, BeatAnswer::Extended(_)));
    }

    /// R-I5: an expired lease cannot be brought back.
    fn an_expired_lease_is_lost_even_before_it_is_reaped(w) {
        let claimed = w.running(w.new_task("a")).await;
        let id = claimed.stored.task.id;
        w.pass(60_000);
        assert_eq!(beat(&w, id, 1, 60_000).await, BeatAnswer::Lost);
        assert_eq!(w.store.due(Due::Leases, w.now(), 10).await.unwrap().len(), 1);
    }

    fn an_unknown_task_is_lost(w) {
        let id = w.id();
        assert_eq!(beat(&w, id, 1, 60_000).await, BeatAnswer::Lost);
    }

    fn a_finished_task_is_lost(w) {
        let claimed = w.running(w.new_task("a")).await;
        w.succeed(&claimed.stored).await;
        assert_eq!(beat(&w, claimed.stored.task.id, 1, 60_000).await, BeatAnswer::Lost);
    }

    /// R-I17: the holder learns of a cancel at its next heartbeat.
    fn a_canceled_task_tells_its_worker_to_stop(w) {
        let claimed = w.running(w.new_task("a")).await;
        w.cancel(claimed.stored.task.id).await;
        assert_eq!(beat(&w, claimed.stored.task.id, 1, 60_000).await, BeatAnswer::Canceled);
    }

    fn one_bad_heartbeat_does_not_disturb_the_others(w) {
        w.submit_many("a", 3).await;
        let claimed = w.claim(3).await;
        let beats: Vec<Beat> = claimed.iter().zip([1, 7, 1]).map(|(it, lease_number)| Beat {
            task: it.stored.task.id, lease_number, extend: Millis(90_000), progress: None,
        }).collect();
        let extended = BeatAnswer::Extended(w.now() + Millis(90_000));
        assert_eq!(w.store.heartbeat(&beats, w.now()).await.unwrap(), [extended, BeatAnswer::Lost, extended]);
        assert!(w.store.heartbeat(&[], w.now()).await.unwrap().is_empty());
    }

    /// A14: activity moves the inactivity limit, never past the absolute one.
    fn a_heartbeat_moves_the_inactivity_limit(w) {
        let mut new = w.new_task("a");
        new.task.timeout = Some(Millis(10_000));
        new.task.attempt_deadline = Some(Millis(25_000));
        let claimed = w.running(new).await;
        let (id, start) = (claimed.stored.task.id, w.now());
        w.pass(8_000);
        beat(&w, id, 1, 60_000).await;
        assert_eq!(w.load(id).await.task.timeout_at, Some(start + Millis(18_000)));
        w.pass(9_000);
        beat(&w, id, 1, 60_000).await;
        assert_eq!(w.load(id).await.task.timeout_at, Some(start + Millis(25_000)));
    }

    /// A14: while a run is paused nobody expects a sign of life, but its absolute limit stands. As the core has it.
    fn a_heartbeat_of_a_paused_run_leaves_only_the_absolute_limit(w) {
        for (timeout, deadline) in [(Some(10_000), Some(25_000)), (Some(10_000), None), (None, Some(25_000))] {
            let mut new = w.new_task("a");
            new.task.timeout = timeout.map(Millis);
            new.task.attempt_deadline = deadline.map(Millis);
            let claimed = w.running(new).await;
            let (id, start) = (claimed.stored.task.id, w.now());
            w.apply(transition::pause(&claimed.stored.task, &Actor::default(), w.now()).unwrap()).await;
            w.pass(8_000);
            assert!(matches!(beat(&w, id, 1, 60_000).await, BeatAnswer::Extended(_)));
            let task = w.load(id).await.task;
            assert_eq!(task.timeout_at, deadline.map(|span| start + Millis(span)));
            assert_eq!(task.timeout_at, transition::run_limit(&task, w.now()));
        }
    }

    fn progress_is_kept_until_the_next(w) {
        let claimed = w.running(w.new_task("a")).await;
        let id = claimed.stored.task.id;
        for (progress, shown) in [(Some("{\"done\":3}"), "{\"done\":3}"), (None, "{\"done\":3}"), (Some("{\"done\":4}"), "{\"done\":4}")] {
            let beat = Beat { task: id, lease_number: 1, extend: Millis(60_000), progress: progress.map(Into::into) };
            w.store.heartbeat(&[beat], w.now()).await.unwrap();
            assert_eq!(w.store.task("default", id).await.unwrap().unwrap().progress.as_deref(), Some(shown));
        }
    }

    /// A reaper that looked before the heartbeat must not win after it.
    fn a_heartbeat_makes_an_older_verdict_stale(w) {
        let claimed = w.running(w.retrying_task("a", json!({}))).await;
        let lost = w.decide(&claimed.stored, End::Lost(Trigger::LeaseExpired));
        beat(&w, claimed.stored.task.id, 1, 60_000).await;
        assert_eq!(w.apply(lost).await, Applied::Stale);
        assert_eq!(w.state(claimed.stored.task.id).await, State::Running);
    }

    fn expired_leases_are_found_the_oldest_first(w) {
        for _ in 0..3 {
            w.running(w.retrying_task("a", json!({}))).await;
            w.pass(1_000);
        }
        w.pass(57_000);
        let due = w.store.due(Due::Leases, w.now(), 10).await.unwrap();
        assert_eq!(due.len(), 1, "the first has just run out");
        w.pass(10_000);
        let due = w.store.due(Due::Leases, w.now(), 2).await.unwrap();
        assert_eq!(due.len(), 2);
        assert!(due[0].task.lease.as_ref().unwrap().expires_at < due[1].task.lease.as_ref().unwrap().expires_at);
    }

    fn an_expired_lease_of_a_paused_run_is_found_too(w) {
        let claimed = w.running(w.retrying_task("a", json!({}))).await;
        w.apply(transition::pause(&claimed.stored.task, &Actor::default(), w.now()).unwrap()).await;
        w.pass(60_000);
        let due = w.store.due(Due::Leases, w.now(), 10).await.unwrap();
        assert_eq!(due.len(), 1);
        let outcome = Outcome { reporter: Reporter::Server, end: End::Lost(Trigger::LeaseExpired) };
        let change = decide::decide(&w.snapshot(&due[0]), &outcome, w.now()).unwrap();
        assert_eq!(w.apply(change).await, Applied::Done);
        let task = w.load(claimed.stored.task.id).await.task;
        assert_eq!((task.state, task.paused_from, task.counters.lost), (State::Paused, Some(State::RetryPending), 1));
        w.check_log(task.id).await;
    }

    fn run_limits_are_found_when_they_pass(w) {
        let mut new = w.new_task("a");
        new.task.timeout = Some(Millis(5_000));
        w.running(new).await;
        w.pass(4_999);
        assert!(w.store.due(Due::Timeouts, w.now(), 10).await.unwrap().is_empty());
        w.pass(1);
        assert_eq!(w.store.due(Due::Timeouts, w.now(), 10).await.unwrap().len(), 1);
    }

    /// T27: who is spared by a passing deadline.
    fn deadlines_are_found_by_state(w) {
        let with_deadline = |hard: bool| {
            let mut new = w.retrying_task("a", json!({"strategy": "fixed", "delay": "1s"}));
            new.task.expires_at = Some(w.now() + Millis(10_000));
            new.body.hard_deadline = hard;
            new
        };
        let soft = w.running(with_deadline(false)).await.stored.task.id;
        let hard = w.running(with_deadline(true)).await.stored.task.id;
        let retrying = w.running(with_deadline(false)).await;
        w.fail(&retrying.stored).await;
        let pending = w.submit(vec![with_deadline(false)]).await[0];
        let paused = w.submit(vec![with_deadline(false)]).await[0];
        let task = w.load(paused).await.task;
        w.apply(transition::pause(&task, &Actor::default(), w.now()).unwrap()).await;
        let mut waiting = w.delayed_task("a", 90_000);
        waiting.task.expires_at = Some(w.now() + Millis(10_000));
        let waiting = w.submit(vec![waiting]).await[0];
        assert!(w.store.due(Due::Deadlines, w.now(), 10).await.unwrap().is_empty());
        w.pass(10_000);
        let mut found: Vec<TaskId> =
            w.store.due(Due::Deadlines, w.now(), 10).await.unwrap().iter().map(|it| it.task.id).collect();
        found.sort();
        let mut expected = vec![hard, retrying.stored.task.id, pending, waiting];
        expected.sort();
        assert_eq!(found, expected);
        assert_eq!(w.state(soft).await, State::Running);
    }
}
