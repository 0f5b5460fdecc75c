//! Two hands on one task. Each race is run many times, with two instances that know nothing of each other.
//!
//! | the race | its story |
//! |---|---|
//! | two instances claim one due retry | `two_instances_claim_one_due_retry` |
//! | cancel and a retry decision | `cancel_against_a_retry_decision` |
//! | a manual retry and a promotion (T19, T14) | `a_manual_retry_against_a_promotion`, `two_manual_retries_at_once` |
//! | settling with a stale token | `an_old_callback_against_the_one_that_counts` |
//! | the end of a lease and a late success | `a_late_success_against_the_reaper`, `a_heartbeat_against_the_reaper` |
//! | a pause and a promotion | `pause_against_a_promotion`, `a_loop_is_paused_while_another_instance_promotes` |
//! | an execution is stopped during a promotion | `an_execution_is_stopped_while_it_is_promoted` |
//! | the policy is used up while the task is paused | `a_policy_is_used_up_while_the_task_is_paused` |
//! | its deadline passes while it is paused | `a_deadline_passes_while_the_task_is_paused` |
//! | a worker dies before and after the start | `hooks::a_claim_that_was_never_sent_is_given_back`, `hooks::a_claim_whose_call_was_sent_counts_as_lost`, `tasks::a_lost_worker_is_noticed_and_its_task_runs_again`, and the kills at every commit in `kills` |
//! | a task is settled twice | `the_same_report_at_two_instances`, `success_against_failure_of_one_run`, `two_callbacks_of_one_run` |
//! | a start call is delivered twice | `two_instances_deliver_one_start_call` |
//! | the clock jumps between instances | `instances_whose_clocks_disagree` |
//! | credits, edits, cancels and stuck work against manual retries | `operators` |

use crate::hooks::{claim, hook, settle};
use crate::stories;
use crate::world::*;
use comeback_core::{Counters, Millis, Reason, Reporter, State, TaskId};
use comeback_engine::store::Loop;
use comeback_engine::{CommandError, Engine, EngineConfig, LeaseRequest, ManualRetry, TaskSpec, VirtualClock};
use serde_json::json;

const ROUNDS: usize = 12;

/// A task that has failed once and whose retry is due.
async fn due_retry(place: &crate::world::Place, engine: &Engine) -> TaskId {
    let id = submit(engine, spec("a", json!({"strategy": "fixed", "delay": "1s", "max_retries": 9}))).await;
    let leased = lease_one(engine).await;
    assert_eq!(leased.lease.task, id);
    report(engine, &leased, failed("x")).await.unwrap();
    place.pass(1_000);
    id
}

async fn settle_all(engine: &Engine) {
    for leased in lease(engine, 100).await {
        report(engine, &leased, succeeded()).await.unwrap();
    }
}

stories! {
    fn two_instances_claim_one_due_retry(place) {
        let (one, two) = (place.engine().await, place.engine().await);
        for _ in 0..ROUNDS {
            let id = due_retry(&place, &one).await;
            let (a, b) = tokio::join!(one.tick(), two.tick());
            assert_eq!(a.unwrap() + b.unwrap(), 1, "promoted once");
            let (a, b) = tokio::join!(lease(&one, 5), lease(&two, 5));
            assert_eq!(a.len() + b.len(), 1, "leased once");
            let winner = if a.is_empty() { b } else { a };
            assert_eq!(winner[0].lease.task, id);
            report(&one, &winner[0], succeeded()).await.unwrap();
        }
    }

    fn cancel_against_a_retry_decision(place) {
        let (one, two) = (place.engine().await, place.engine().await);
        for _ in 0..ROUNDS {
            let id = submit(&one, spec("a", json!({"strategy": "fixed", "delay": "1h"}))).await;
            let leased = lease_one(&one).await;
            let (canceled, reported) = tokio::join!(two.cancel("default", id, nobody()), report(&one, &leased, failed("x")));
            canceled.expect("cancel wins in the end, whatever came first (I-11)");
            if let Err(error) = reported {
                assert!(matches!(error, CommandError::TaskCanceled), "{error}");
            }
            assert_eq!(state(&one, id).await, State::Canceled);
        }
    }

    fn a_manual_retry_against_a_promotion(place) {
        let (one, two) = (place.engine().await, place.engine().await);
        for _ in 0..ROUNDS {
            let id = due_retry(&place, &one).await;
            let (retried, ticked) = tokio::join!(one.retry("default", id, ManualRetry::default()), two.tick());
            ticked.unwrap();
            match retried {
                Ok(_) => {}
                Err(CommandError::WrongState { state: State::Pending, .. }) => {}
                Err(error) => panic!("{error}"),
            }
            let leased = lease(&two, 5).await;
            assert_eq!(leased.len(), 1, "it runs once, whoever won");
            report(&two, &leased[0], succeeded()).await.unwrap();
        }
    }

    fn two_manual_retries_at_once(place) {
        let (one, two) = (place.engine().await, place.engine().await);
        for _ in 0..ROUNDS {
            let id = submit(&one, spec("a", json!({"max_retries": 0}))).await;
            let leased = lease_one(&one).await;
            report(&one, &leased, failed("x")).await.unwrap();
            let (a, b) = tokio::join!(
                one.retry("default", id, ManualRetry::default()),
                two.retry("default", id, ManualRetry::default())
            );
            let won = usize::from(a.is_ok()) + usize::from(b.is_ok());
            assert_eq!(won, 1, "one wins, the other is told: {:?} {:?}", a.err(), b.err());
            assert_eq!(engine_cycle(&one, id).await, 1);
            settle_all(&one).await;
        }
    }

    fn a_late_success_against_the_reaper(place) {
        let (one, two) = (place.engine().await, place.engine().await);
        for _ in 0..ROUNDS {
            let id = submit(&one, spec("a", json!({"strategy": "immediate"}))).await;
            let leased = lease_one(&one).await;
            place.pass(60_000);
            let (reported, ticked) = tokio::join!(report(&one, &leased, succeeded()), two.tick());
            ticked.unwrap();
            assert!(matches!(reported, Err(CommandError::LeaseLost)), "an expired lease says nothing");
            one.tick().await.unwrap();
            let again = lease_one(&two).await;
            assert_eq!((again.lease.task, again.lease.number), (id, 2));
            report(&two, &again, succeeded()).await.unwrap();
        }
    }

    fn pause_against_a_promotion(place) {
        let (one, two) = (place.engine().await, place.engine().await);
        for _ in 0..ROUNDS {
            let id = due_retry(&place, &one).await;
            let (paused, ticked) = tokio::join!(one.pause("default", id, nobody()), two.tick());
            ticked.unwrap();
            paused.expect("pending or retry_pending, it can be paused");
            two.tick().await.unwrap();
            assert_eq!(state(&one, id).await, State::Paused);
            assert!(lease(&two, 5).await.is_empty(), "after the pause nothing is leased (R-I16)");
            one.resume("default", id, nobody()).await.unwrap();
            one.tick().await.unwrap();
            settle_all(&one).await;
        }
    }

    fn a_loop_is_paused_while_another_instance_promotes(place) {
        let (one, two) = (place.engine().await, place.engine().await);
        for _ in 0..ROUNDS {
            let id = due_retry(&place, &one).await;
            let (paused, ticked) = tokio::join!(one.pause_loop(Loop::Retries, None, nobody()), two.tick());
            paused.unwrap();
            let before = ticked.unwrap();
            // Whatever happened, happened before the pause was acknowledged.
            let at_pause = state(&one, id).await;
            assert_eq!(at_pause == State::Pending, before == 1);
            two.tick().await.unwrap();
            assert_eq!(state(&one, id).await, at_pause);
            one.resume_loop(Loop::Retries, nobody()).await.unwrap();
            one.tick().await.unwrap();
            settle_all(&one).await;
        }
    }

    /// Many instances report into one execution at once, task by task: whoever loses a race looks again, and nobody is sent away.
    fn no_report_on_a_wide_execution_is_given_up(place) {
        let mut engines = Vec::new();
        for _ in 0..6 {
            engines.push(place.engine().await);
        }
        let tasks = (0..60).map(|_| TaskSpec::new("step")).collect();
        let wide = comeback_engine::Submit { namespace: "default".into(), tasks, execution: Some(Default::default()), ..Default::default() };
        engines[0].submit(wide).await.unwrap();
        let mut leased = lease(&engines[0], 60).await;
        let mut workers = tokio::task::JoinSet::new();
        for engine in engines {
            let share = leased.split_off(leased.len() - 10);
            workers.spawn(async move {
                for it in share {
                    report(&engine, &it, succeeded()).await.expect("nobody is sent away");
                }
            });
        }
        workers.join_all().await;
    }

    fn an_execution_is_stopped_while_it_is_promoted(place) {
        let (one, two) = (place.engine().await, place.engine().await);
        for _ in 0..ROUNDS / 2 {
            let tasks = (0..4).map(|_| spec("a", json!({"strategy": "fixed", "delay": "1s"}))).collect();
            let submit = comeback_engine::Submit { namespace: "default".into(), tasks, execution: Some(Default::default()), ..Default::default() };
            let answer = one.submit(submit).await.unwrap();
            for leased in lease(&one, 10).await {
                report(&one, &leased, failed("x")).await.unwrap();
            }
            place.pass(1_000);
            let (stopped, ticked) = tokio::join!(one.cancel_execution("default", answer.execution.unwrap(), nobody()), two.tick());
            stopped.unwrap();
            ticked.unwrap();
            two.tick().await.unwrap();
            for task in &answer.tasks {
                assert_eq!(state(&two, task.id).await, State::Canceled);
            }
            assert!(lease(&two, 10).await.is_empty());
            let events = one.execution_events("default", answer.execution.unwrap(), 0, 1_000).await.unwrap();
            assert!(events.iter().zip(1..).all(|(event, seq)| event.seq == seq));
        }
    }

    fn a_policy_is_used_up_while_the_task_is_paused(place) {
        let engine = place.engine().await;
        let id = submit(&engine, spec("a", json!({"max_retries": 0}))).await;
        let leased = lease_one(&engine).await;
        engine.pause("default", id, nobody()).await.unwrap();
        let answer = report(&engine, &leased, failed("x")).await.unwrap();
        assert_eq!((answer.state, answer.reason), (State::Dead, Some(Reason::Attempts)));
    }

    fn a_deadline_passes_while_the_task_is_paused(place) {
        let engine = place.engine().await;
        let timed = TaskSpec { deadline: Some(comeback_engine::Moment::After(Millis(5_000))), ..TaskSpec::new("a") };
        let id = submit(&engine, timed).await;
        engine.pause("default", id, nobody()).await.unwrap();
        place.pass(9_000);
        engine.tick().await.unwrap();
        assert_eq!(state(&engine, id).await, State::Paused, "it is told at resume (T27)");
        engine.resume("default", id, nobody()).await.unwrap();
        assert_eq!(state(&engine, id).await, State::Dead);
    }

    fn a_heartbeat_against_the_reaper(place) {
        let (one, two) = (place.engine().await, place.engine().await);
        for _ in 0..ROUNDS {
            let id = submit(&one, spec("a", json!({"strategy": "immediate"}))).await;
            let leased = lease_one(&one).await;
            place.pass(59_999);
            let beat = comeback_engine::Heartbeat { lease: leased.lease, extend: Millis(60_000), progress: None };
            let beats = [beat];
            let (beaten, ticked) = tokio::join!(one.heartbeat(&beats), two.tick());
            beaten.unwrap();
            ticked.unwrap();
            place.pass(1);
            two.tick().await.unwrap();
            assert_eq!(state(&one, id).await, State::Running, "it was extended in time");
            report(&one, &leased, succeeded()).await.unwrap();
        }
    }

    fn the_same_report_at_two_instances(place) {
        let (one, two) = (place.engine().await, place.engine().await);
        for _ in 0..ROUNDS {
            let id = submit(&one, spec("a", json!({"strategy": "fixed", "delay": "1h", "max_retries": 9}))).await;
            let leased = lease_one(&one).await;
            let (a, b) = tokio::join!(report(&one, &leased, failed("x")), report(&two, &leased, failed("x")));
            let (a, b) = (a.unwrap(), b.unwrap());
            assert_eq!([a.repeated, b.repeated].iter().filter(|it| **it).count(), 1, "one of them is an echo");
            assert_eq!(a.next_retry_at, b.next_retry_at);
            let counters = one.task("default", id).await.unwrap().stored.task.counters;
            assert_eq!(counters, Counters { attempt: 1, ..Counters::default() }, "counted once");
        }
    }

    fn success_against_failure_of_one_run(place) {
        let (one, two) = (place.engine().await, place.engine().await);
        for _ in 0..ROUNDS {
            submit(&one, spec("a", json!({"strategy": "fixed", "delay": "1h"}))).await;
            let leased = lease_one(&one).await;
            let (good, bad) = tokio::join!(report(&one, &leased, succeeded()), report(&two, &leased, failed("x")));
            assert_eq!(usize::from(good.is_ok()) + usize::from(bad.is_ok()), 1);
        }
    }

    /// X1-6: the run before may say what it likes at the very moment at which this one ends.
    fn an_old_callback_against_the_one_that_counts(place) {
        let (one, two) = (place.engine().await, place.engine().await);
        for _ in 0..ROUNDS {
            let id = hook(&one, json!({"strategy": "immediate"}), Some(5_000)).await;
            for _ in 0..2 {
                let call = claim(&one).await;
                one.hook_started("default", call).await.unwrap();
                if call.number == 1 {
                    place.pass(5_000);
                    one.tick().await.unwrap();
                }
            }
            let (old, new) = tokio::join!(
                settle(&one, id, Reporter::Run(1), failed("too late")),
                settle(&two, id, Reporter::Run(2), succeeded()),
            );
            assert!(old.is_err(), "{old:?}");
            assert_eq!(new.unwrap(), State::Succeeded);
        }
    }

    fn two_callbacks_of_one_run(place) {
        let (one, two) = (place.engine().await, place.engine().await);
        for _ in 0..ROUNDS {
            let id = hook(&one, json!({"strategy": "fixed", "delay": "1h"}), None).await;
            let call = claim(&one).await;
            one.hook_started("default", call).await.unwrap();
            let (good, bad) = tokio::join!(
                settle(&one, id, Reporter::Run(1), succeeded()),
                settle(&two, id, Reporter::Run(1), failed("x")),
            );
            assert_eq!(usize::from(good.is_ok()) + usize::from(bad.is_ok()), 1, "{good:?} {bad:?}");
            let ended = if good.is_ok() { State::Succeeded } else { State::RetryPending };
            assert_eq!(state(&one, id).await, ended);
        }
    }

    /// Both look for start calls to make, and both answers come back: one call is made, and it is started once.
    fn two_instances_deliver_one_start_call(place) {
        let (one, two) = (place.engine().await, place.engine().await);
        for _ in 0..ROUNDS {
            let id = hook(&one, json!({}), None).await;
            let ask = |engine: Engine| async move { engine.claim_hooks(LeaseRequest::new("default", "hooks")).await.unwrap() };
            let (a, b) = tokio::join!(ask(one.clone()), ask(two.clone()));
            assert_eq!(a.len() + b.len(), 1, "claimed once");
            let call = a.first().or(b.first()).expect("one of them").lease;
            let (first, second) = tokio::join!(one.hook_started("default", call), two.hook_started("default", call));
            assert!(first.is_ok() || second.is_ok(), "{first:?} {second:?}");
            assert_eq!(state(&one, id).await, State::Running);
            let starts = one.events("default", id, 0, 100).await.unwrap();
            let starts = starts.iter().filter(|it| it.kind == comeback_core::EventKind::AttemptStarted).count();
            assert_eq!(starts, 1, "and started once");
            settle(&two, id, Reporter::Run(1), succeeded()).await.unwrap();
        }
    }

    /// One instance is an hour ahead, then an hour behind: nothing runs twice, and nothing is lost.
    fn instances_whose_clocks_disagree(place) {
        let one = place.engine().await;
        for round in 0..ROUNDS {
            let hour = Millis::from_secs(3_600);
            let other = VirtualClock::new(if round % 2 == 0 { place.now() + hour } else { place.now() - hour });
            let two = Engine::without_loops(place.store().await, other, EngineConfig::default()).await.unwrap();
            let id = due_retry(&place, &one).await;
            let (a, b) = tokio::join!(one.tick(), two.tick());
            a.unwrap();
            b.unwrap();
            one.tick().await.unwrap();
            let (a, b) = tokio::join!(lease(&one, 5), lease(&two, 5));
            assert_eq!(a.len() + b.len(), 1, "leased once");
            let (reporter, winner) = if a.is_empty() { (&two, &b[0]) } else { (&one, &a[0]) };
            assert_eq!(winner.lease.task, id);
            report(reporter, winner, succeeded()).await.unwrap();
            let records = one.events("default", id, 0, 100).await.unwrap();
            assert!(records.is_sorted_by_key(|it| it.at), "its own time does not go back: {records:?}");
            assert_eq!(state(&one, id).await, State::Succeeded);
        }
    }
}

async fn engine_cycle(engine: &Engine, id: TaskId) -> u32 {
    engine.task("default", id).await.unwrap().stored.task.cycle
}
