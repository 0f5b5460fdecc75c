//! Storing verdicts.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use super::cases;
use super::world::World;
use crate::*;
use comeback_core::transition::{self, Actor};
use comeback_core::*;
use serde_json::json;

async fn dead(w: &World) -> Stored {
    let claimed = w.running(w.retrying_task("a", json!({"max_retries": 0}))).await;
    assert_eq!(w.fail(&claimed.stored).await, Applied::Done);
    w.load(claimed.stored.task.id).await
}

cases! { "apply";
    fn success_ends_a_task_and_keeps_its_result(w) {
        let claimed = w.running(w.new_task("a")).await;
        w.pass(40);
        assert_eq!(w.succeed(&claimed.stored).await, Applied::Done);
        let id = claimed.stored.task.id;
        let view = w.store.task("default", id).await.unwrap().unwrap();
        assert_eq!((view.stored.task.state, view.stored.task.ended_at), (State::Succeeded, Some(w.now())));
        assert_eq!(view.result.as_deref(), Some("{\"ok\":true}"));
        assert_eq!(w.kinds(id).await, ["task.created", "task.ready", "attempt.started", "attempt.succeeded", "task.succeeded"]);
        w.check_log(id).await;
    }

    fn a_retry_keeps_its_error_its_verdict_and_its_time(w) {
        let claimed = w.running(w.retrying_task("a", json!({"initial_delay": "10s", "max_retries": 3}))).await;
        w.fail(&claimed.stored).await;
        let id = claimed.stored.task.id;
        let view = w.store.task("default", id).await.unwrap().unwrap();
        let task = &view.stored.task;
        assert_eq!((task.state, task.counters.attempt), (State::RetryPending, 1));
        assert_eq!(task.next_retry_at, Some(w.now() + Millis(10_000)));
        assert_eq!((task.lease.clone(), task.class), (None, Some(Class::Retryable)));
        let record = view.last_decision.unwrap();
        assert_eq!(record.failure.unwrap().message, "boom");
        assert_eq!(record.decision.unwrap().next_retry_at, task.next_retry_at);
        w.check_log(id).await;
    }

    /// What comes back from a store is what went in, for any task the core can make.
    fn a_task_is_read_back_as_it_was_written(w) {
        let claimed = w.running(w.retrying_task("a", json!({"max_retries": 5, "rules": [
            {"match": {"status": 418}, "then": "final"}, {"match": {"class": "retryable"}, "then": "retry"}]}))).await;
        let mut snapshot = w.snapshot(&claimed.stored);
        snapshot.guard.holds.push(Hold { until: w.now() + Millis(99_000), reason: "gate psp".into() });
        let outcome = Outcome { reporter: Reporter::Lease(1), end: End::Failed(Failure::new(Trigger::Error, "x")) };
        let change = decide::decide(&snapshot, &outcome, w.now()).unwrap();
        let expected = change.after().clone();
        assert_eq!(w.apply(change).await, Applied::Done);
        assert_eq!(w.load(expected.id).await.task, expected);
        assert_eq!(expected.rule_counts, [0, 1]);
    }

    /// What a hook has counted is kept with its verdict.
    fn a_hooks_tally_is_written_with_its_end(w) {
        for finish in [End::Succeeded { result: None }, End::Failed(Failure::new(Trigger::Error, "x"))] {
            let mut new = w.retrying_task("hook", json!({"initial_delay": "1h"}));
            new.task.lane = std::sync::Arc::new(Lane { executor: Executor::Hook, ..(*new.task.lane).clone() });
            w.submit(vec![new]).await;
            let request = ClaimRequest { executor: Executor::Hook, ..w.request(1) };
            let claimed = w.claim_with(request).await.remove(0);
            w.apply(transition::hook_started(&claimed.stored.task, Millis(1_000), w.now()).unwrap()).await;
            let mut running = w.load(claimed.stored.task.id).await;
            running.task.tally = Tally { expected: Some(9), success: 2, failures: 1 };
            let change = w.decide(&running, finish);
            let expected = change.after().clone();
            assert_eq!(w.apply(change).await, Applied::Done);
            assert_eq!(w.load(expected.id).await.task, expected);
            w.check_log(expected.id).await;
        }
    }

    /// R-I19: in one change a task may be opened again and come to another end.
    fn another_end_of_a_task_that_was_over_is_kept(w) {
        let claimed = w.running(w.new_task("a")).await;
        w.fail(&claimed.stored).await;
        let before = w.load(claimed.stored.task.id).await.task;
        w.pass(1_000);
        let mut record = Record::about(&before, w.now());
        record.events = vec![EventKind::TaskReopened, EventKind::TaskCanceled];
        record.data = Some(json!({"cycle": 0}));
        let mut after = before.clone();
        (after.state, after.reason) = (State::Canceled, Some(Reason::Canceled));
        (after.version, after.seq, after.updated_at) = (before.version + 2, before.seq + 2, w.now());
        after.ended_at = Some(w.now());
        let write = Write { expected_version: before.version, from: before.state, after: after.clone() };
        let commit = Commit { writes: vec![write], records: vec![record], ..Commit::default() };
        assert_eq!(w.apply(commit.clone()).await, Applied::Done);
        assert_eq!(w.load(after.id).await.task, after);
        assert_eq!(w.apply(commit).await, Applied::Stale);
    }

    fn a_verdict_on_old_facts_is_stale_and_changes_nothing(w) {
        let claimed = w.running(w.retrying_task("a", json!({}))).await;
        let id = claimed.stored.task.id;
        let success = w.decide(&claimed.stored, End::Succeeded { result: None });
        let failure = w.decide(&claimed.stored, End::Failed(Failure::new(Trigger::Error, "x")));
        assert_eq!(w.apply(success).await, Applied::Done);
        let before = (w.load(id).await, w.records(id).await);
        assert_eq!(w.apply(failure).await, Applied::Stale);
        assert_eq!((w.load(id).await, w.records(id).await), before);
    }

    fn the_same_verdict_twice_is_stored_once(w) {
        let claimed = w.running(w.retrying_task("a", json!({}))).await;
        let change = w.decide(&claimed.stored, End::Failed(Failure::new(Trigger::Error, "x")));
        assert_eq!(w.apply(change.clone()).await, Applied::Done);
        assert_eq!(w.apply(change).await, Applied::Stale);
        assert_eq!(w.records(claimed.stored.task.id).await.len(), 2);
    }

    fn the_same_verdict_twice_in_one_call_is_stored_once(w) {
        let claimed = w.running(w.retrying_task("a", json!({}))).await;
        let change = w.decide(&claimed.stored, End::Failed(Failure::new(Trigger::Error, "x")));
        let commits = [Commit::from(change.clone()), Commit::from(change)];
        assert_eq!(w.store.apply(&commits, None, w.now()).await.unwrap(), [Applied::Done, Applied::Stale]);
        assert_eq!(w.records(claimed.stored.task.id).await.len(), 2);
    }

    fn a_stale_verdict_does_not_disturb_its_neighbours(w) {
        w.submit_many("a", 5).await;
        let claimed = w.claim(5).await;
        w.succeed(&claimed[2].stored).await;
        let commits: Vec<Commit> =
            claimed.iter().map(|it| w.decide(&it.stored, End::Succeeded { result: None }).into()).collect();
        let answers = w.store.apply(&commits, None, w.now()).await.unwrap();
        assert_eq!(answers, [Applied::Done, Applied::Done, Applied::Stale, Applied::Done, Applied::Done]);
    }

    fn success_failure_and_cancel_mix_in_one_call(w) {
        let tasks = (0..6).map(|_| w.retrying_task("a", json!({"max_retries": 1}))).collect();
        w.submit(tasks).await;
        let claimed = w.claim(6).await;
        let commits: Vec<Commit> = claimed.iter().enumerate().map(|(n, it)| match n % 3 {
            0 => w.decide(&it.stored, End::Succeeded { result: None }).into(),
            1 => w.decide(&it.stored, End::Failed(Failure::new(Trigger::Error, "x"))).into(),
            _ => transition::cancel(&it.stored.task, Reason::Canceled, &Actor::default(), w.now()).unwrap().into(),
        }).collect();
        assert_eq!(w.store.apply(&commits, None, w.now()).await.unwrap(), [Applied::Done; 6]);
        for (n, it) in claimed.iter().enumerate() {
            let expected = [State::Succeeded, State::RetryPending, State::Canceled][n % 3];
            assert_eq!(w.state(it.stored.task.id).await, expected);
            w.check_log(it.stored.task.id).await;
        }
    }

    /// R-I5: of two that report the same run, one wins and the other changes nothing.
    fn of_two_verdicts_at_once_exactly_one_is_stored(w) {
        for _ in 0..20 {
            let claimed = w.running(w.retrying_task("a", json!({"strategy": "fixed", "delay": "1h"}))).await;
            let good = w.decide(&claimed.stored, End::Succeeded { result: None });
            let bad = w.decide(&claimed.stored, End::Failed(Failure::new(Trigger::Error, "x")));
            let (a, b) = tokio::join!(w.apply(good), w.apply(bad));
            assert_eq!([a, b].iter().filter(|it| **it == Applied::Done).count(), 1, "{a:?} {b:?}");
            w.check_log(claimed.stored.task.id).await;
        }
    }

    fn of_many_verdicts_at_once_exactly_one_is_stored(w) {
        let claimed = w.running(w.new_task("a")).await;
        let mut speakers = tokio::task::JoinSet::new();
        for _ in 0..12 {
            let (w, stored) = (w.clone(), claimed.stored.clone());
            speakers.spawn(async move { w.succeed(&stored).await });
        }
        let done = speakers.join_all().await.into_iter().filter(|it| *it == Applied::Done).count();
        assert_eq!(done, 1);
        assert_eq!(w.records(claimed.stored.task.id).await.len(), 2);
    }

    /// I-11: cancel against a retry decision.
    fn cancel_and_retry_cannot_both_win(w) {
        for _ in 0..10 {
            let claimed = w.running(w.retrying_task("a", json!({"strategy": "fixed", "delay": "1h"}))).await;
            let id = claimed.stored.task.id;
            let cancel = transition::cancel(&claimed.stored.task, Reason::Canceled, &Actor::default(), w.now()).unwrap();
            let retry = w.decide(&claimed.stored, End::Failed(Failure::new(Trigger::Error, "x")));
            let (a, b) = tokio::join!(w.apply(cancel), w.apply(retry));
            assert_eq!([a, b].iter().filter(|it| **it == Applied::Done).count(), 1);
            assert_eq!(w.state(id).await == State::Canceled, a == Applied::Done);
        }
    }

    fn a_task_that_does_not_exist_is_stale(w) {
        let claimed = w.running(w.new_task("a")).await;
        let mut ghost = claimed.stored.clone();
        ghost.task.id = w.id();
        assert_eq!(w.succeed(&ghost).await, Applied::Stale);
        assert!(w.store.load(&[ghost.task.id]).await.unwrap()[0].is_none());
        assert!(w.records(ghost.task.id).await.is_empty());
    }

    fn a_dead_task_is_kept_with_its_reason(w) {
        let stored = dead(&w).await;
        assert_eq!((stored.task.state, stored.task.reason), (State::Dead, Some(Reason::Attempts)));
        assert_eq!(w.kinds(stored.task.id).await[3..], ["attempt.failed", "task.retry_exhausted", "task.failed"]);
        w.check_log(stored.task.id).await;
    }

    /// T19: out of the dead, with the whole history kept.
    fn a_manual_retry_brings_a_dead_task_back(w) {
        let stored = dead(&w).await;
        let act = Actor { by: Some("ana".into()), note: Some("again".into()), ..Actor::default() };
        w.pass(1_000);
        let change = transition::manual_retry(&stored.task, false, &act, w.now()).unwrap();
        let expected = change.after().clone();
        assert_eq!(w.apply(change).await, Applied::Done);
        assert_eq!(w.load(stored.task.id).await.task, expected);
        let claimed = w.claim(1).await.remove(0);
        assert_eq!((claimed.stored.task.run, claimed.stored.task.cycle), (2, 1));
        assert_eq!(claimed.stored.policy, stored.policy);
        w.succeed(&claimed.stored).await;
        w.check_log(stored.task.id).await;
    }

    fn of_two_manual_retries_one_wins(w) {
        let stored = dead(&w).await;
        let change = transition::manual_retry(&stored.task, false, &Actor::default(), w.now()).unwrap();
        let (a, b) = tokio::join!(w.apply(change.clone()), w.apply(change));
        assert_eq!([a, b].iter().filter(|it| **it == Applied::Done).count(), 1);
        assert_eq!(w.claim(10).await.len(), 1);
    }

    fn a_manual_retry_needs_its_dedupe_key_back(w) {
        let mut new = w.retrying_task("a", json!({"max_retries": 0}));
        new.body.dedupe_key = Some("d".into());
        let claimed = w.running(new).await;
        w.fail(&claimed.stored).await;
        let id = claimed.stored.task.id;
        let mut other = w.new_task("b");
        other.body.dedupe_key = Some("d".into());
        let other = w.submit(vec![other]).await[0];
        let before = w.load(id).await;
        let change = transition::manual_retry(&before.task, false, &Actor::default(), w.now()).unwrap();
        assert_eq!(w.apply(change.clone()).await, Applied::KeyTaken);
        assert_eq!(w.load(id).await, before, "nothing changed");
        w.cancel(other).await;
        assert_eq!(w.apply(change).await, Applied::Done);
        assert_eq!(w.state(id).await, State::Pending);
        w.check_log(id).await;
    }

    fn a_late_result_is_noted_on_a_canceled_task(w) {
        let claimed = w.running(w.new_task("a")).await;
        let id = claimed.stored.task.id;
        w.cancel(id).await;
        let canceled = w.load(id).await.task;
        let change = transition::late_result(&canceled, 1, AttemptOutcome::Succeeded, w.now()).unwrap();
        assert_eq!(w.apply(change.clone()).await, Applied::Done);
        assert_eq!(w.apply(change).await, Applied::Stale);
        assert_eq!(w.state(id).await, State::Canceled);
        assert_eq!(w.kinds(id).await.last(), Some(&"task.late_result"));
        w.check_log(id).await;
    }

    fn pause_and_resume_keep_the_due_time(w) {
        let claimed = w.running(w.retrying_task("a", json!({"initial_delay": "10s"}))).await;
        w.fail(&claimed.stored).await;
        let id = claimed.stored.task.id;
        let due = w.load(id).await.task.next_retry_at;
        let task = w.load(id).await.task;
        w.apply(transition::pause(&task, &Actor::default(), w.now()).unwrap()).await;
        w.pass(60_000);
        assert_eq!(w.promote().await.count, 0, "a paused task is never promoted");
        let task = w.load(id).await.task;
        assert_eq!((task.state, task.next_retry_at), (State::Paused, due));
        w.apply(transition::resume(&task, &Actor::default(), w.now()).unwrap()).await;
        assert_eq!(w.load(id).await.task.next_retry_at, due);
        assert_eq!(w.promote().await.count, 1);
        w.check_log(id).await;
    }

    fn a_paused_run_can_still_succeed(w) {
        let claimed = w.running(w.new_task("a")).await;
        let id = claimed.stored.task.id;
        w.apply(transition::pause(&claimed.stored.task, &Actor::default(), w.now()).unwrap()).await;
        let paused = w.load(id).await;
        assert_eq!(paused.task.lease.as_ref().map(|lease| lease.number), Some(1));
        assert_eq!(w.succeed(&paused).await, Applied::Done);
        assert_eq!(w.state(id).await, State::Succeeded);
        w.check_log(id).await;
    }

    fn a_rescheduled_task_waits_for_its_new_time(w) {
        let id = w.submit_many("a", 1).await[0];
        let task = w.load(id).await.task;
        w.apply(transition::reschedule(&task, w.now() + Millis(5_000), &Actor::default(), w.now()).unwrap()).await;
        assert!(w.claim(1).await.is_empty());
        assert_eq!(w.promote().await.count, 0);
        w.pass(5_000);
        assert_eq!(w.promote().await.count, 1);
        assert_eq!(w.claim(1).await.len(), 1);
        w.check_log(id).await;
    }

    fn a_thousand_verdicts_go_in_with_one_call(w) {
        let tasks = (0..1_000).map(|_| w.new_task("a")).collect();
        w.submit_one(w.submission(tasks)).await;
        let claimed = w.claim(1_000).await;
        let commits: Vec<Commit> =
            claimed.iter().map(|it| w.decide(&it.stored, End::Succeeded { result: None }).into()).collect();
        assert!(w.store.apply(&commits, None, w.now()).await.unwrap().iter().all(|it| *it == Applied::Done));
        assert_eq!(w.store.counts("default", w.now()).await.unwrap().by_state, [(State::Succeeded, 1_000)].into());
    }

    /// R-I16: what a paused loop decided is refused in the same transaction.
    fn work_of_a_paused_loop_is_refused(w) {
        let claimed = w.running(w.retrying_task("a", json!({}))).await;
        let lost: Commit = w.decide(&claimed.stored, End::Lost(Trigger::LeaseExpired)).into();
        let pause = Pause { until: w.now() + Millis(60_000), note: None, by: None, at: w.now() };
        w.store.set_pause(Loop::Reap, Some(pause), None, w.now()).await.unwrap();
        let apply = |name| w.store.apply(std::slice::from_ref(&lost), name, w.now());
        assert_eq!(apply(Some(Loop::Reap)).await.unwrap(), [Applied::Paused]);
        assert_eq!(w.state(claimed.stored.task.id).await, State::Running);
        w.pass(60_000);
        assert_eq!(apply(Some(Loop::Reap)).await.unwrap(), [Applied::Done]);
    }

    fn a_long_error_and_result_are_kept(w) {
        let claimed = w.running(w.retrying_task("a", json!({}))).await;
        let message = "é".repeat(30_000);
        let failure = Failure { stack: Some("s".repeat(60_000)), ..Failure::new(Trigger::Error, message.clone()) };
        w.end(&claimed.stored, End::Failed(failure.clone())).await;
        let view = w.store.task("default", claimed.stored.task.id).await.unwrap().unwrap();
        assert_eq!(view.last_failure.unwrap().failure, Some(failure));
    }
}
