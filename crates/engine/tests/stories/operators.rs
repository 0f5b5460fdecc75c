//! Who looks after tasks by hand: what they do is written down with what it did.

use comeback_core::admission::Rule;
use comeback_core::transition::Act;
use comeback_core::{Audit, Did, Millis, State, TaskId};
use comeback_engine::store::{AuditQuery, Loop};
use comeback_engine::{CommandError, Engine, ManualRetry, Moment, Submit, TaskSpec};
use serde_json::{Value, json};

use crate::stories;
use crate::world::*;

fn ana() -> Act {
    Act {
        by: Some("ana".into()),
        note: Some("the bank is back".into()),
        key: Some("ops".into()),
        request: Some("r-1".into()),
    }
}

async fn acts(engine: &Engine) -> Vec<Audit> {
    let mut acts = engine.audit(&AuditQuery { limit: 1_000, ..AuditQuery::default() }).await.unwrap();
    acts.reverse();
    acts
}

async fn deeds(engine: &Engine) -> Vec<Did> {
    acts(engine).await.iter().map(|it| it.did).collect()
}

fn retry_of(act: Act) -> ManualRetry {
    ManualRetry { deed: act.into(), ..ManualRetry::default() }
}

/// A task without a retry left.
async fn dead(engine: &Engine) -> TaskId {
    let id = submit(engine, spec("a", json!({"max_retries": 0})).payload(json!({"to": "bob", "sum": 1}))).await;
    let leased = lease_one(engine).await;
    assert_eq!(leased.lease.task, id);
    report(engine, &leased, failed("x")).await.unwrap();
    id
}

stories! {
    /// R-S24: each act leaves exactly one row, with who, why, and what it was before and after.
    fn every_act_on_a_task_is_written_down_once(place) {
        let engine = place.engine().await;
        let id = dead(&engine).await;
        engine.retry("default", id, retry_of(ana())).await.unwrap();
        engine.pause("default", id, ana()).await.unwrap();
        engine.resume("default", id, ana()).await.unwrap();
        engine.snooze("default", id, Millis(60_000), ana()).await.unwrap();
        engine.reschedule("default", id, place.now() + Millis(90_000), ana()).await.unwrap();
        engine.cancel("default", id, ana()).await.unwrap();
        engine.cancel("default", id, ana()).await.expect_err("it is over");
        let acts = acts(&engine).await;
        let expected = [
            (Did::TaskRetry, "dead", "pending"),
            (Did::TaskPause, "pending", "paused"),
            (Did::TaskResume, "paused", "pending"),
            (Did::TaskSnooze, "pending", "retry_pending"),
            (Did::TaskReschedule, "retry_pending", "retry_pending"),
            (Did::TaskCancel, "retry_pending", "canceled"),
        ];
        let state = |value: &Option<Value>| value.as_ref().unwrap()["state"].as_str().unwrap().to_owned();
        let told: Vec<_> = acts.iter().map(|it| (it.did, state(&it.before), state(&it.after))).collect();
        let expected: Vec<_> = expected.map(|(did, from, to)| (did, from.to_owned(), to.to_owned())).into();
        assert_eq!(told, expected);
        for it in &acts {
            assert_eq!((it.subject.clone(), it.namespace.as_deref()), (id.to_string(), Some("default")));
            let said = [&it.actor, &it.note, &it.key, &it.request].map(|text| text.as_deref().unwrap());
            assert_eq!(said, ["ana", "the bank is back", "ops", "r-1"]);
        }
    }

    fn acts_on_everything_else_are_written_down_too(place) {
        let engine = place.engine().await;
        let answer = engine.submit(Submit {
            namespace: "default".into(),
            tasks: vec![TaskSpec::new("a"), TaskSpec::new("a")],
            execution: Some(Default::default()),
            ..Submit::default()
        }).await.unwrap();
        let execution = answer.execution.unwrap();
        engine.pause_execution("default", execution, ana()).await.unwrap();
        engine.resume_execution("default", execution, ana()).await.unwrap();
        engine.cancel_execution("default", execution, ana()).await.unwrap();
        engine.pause_loop(Loop::Reap, None, ana()).await.unwrap();
        engine.resume_loop(Loop::Reap, ana()).await.unwrap();
        let rule: Rule = serde_json::from_value(json!({"name": "r", "max_running": 5})).unwrap();
        engine.put_rule("default", rule, &ana()).await.unwrap();
        engine.delete_rule("default", "r", &ana()).await.unwrap();
        engine.delete_rule("default", "r", &ana()).await.expect_err("it is gone");
        assert_eq!(deeds(&engine).await, [
            Did::ExecutionPause,
            Did::ExecutionResume,
            Did::ExecutionCancel,
            Did::LoopPause,
            Did::LoopResume,
            Did::RulePut,
            Did::RuleDelete,
        ]);
        let acts = acts(&engine).await;
        assert_eq!(acts[2].after.as_ref().unwrap()["state"], "canceled");
        assert_eq!(acts[3].namespace, None, "a loop is nobody's alone");
        assert_eq!(acts[6].before, Some(json!({"name": "r", "max_running": 5})), "as it was when it went");
    }

    /// Submits, leases, reports, losses and deadlines are the task's own history.
    fn what_nobody_did_by_hand_is_no_act(place) {
        let engine = place.engine().await;
        let timed = TaskSpec { deadline: Some(Moment::After(Millis(5_000))), ..TaskSpec::new("a") };
        submit(&engine, timed).await;
        dead_of_losses(&place, &engine).await;
        place.pass(100_000);
        engine.tick().await.unwrap();
        assert_eq!(deeds(&engine).await, []);
    }

    /// Of those who act at the same moment one wins, and only that one is written down.
    fn who_loses_a_race_is_not_written_down(place) {
        let (one, two) = (place.engine().await, place.engine().await);
        for round in 1..=8 {
            let id = dead(&one).await;
            let (a, b) = tokio::join!(
                one.retry("default", id, retry_of(ana())),
                two.retry("default", id, retry_of(ana()))
            );
            assert_eq!(usize::from(a.is_ok()) + usize::from(b.is_ok()), 1, "{:?} {:?}", a.err(), b.err());
            assert_eq!(deeds(&one).await.len(), round);
            let leased = lease_one(&one).await;
            report(&one, &leased, succeeded()).await.unwrap();
        }
    }

    /// S2-24, T19 against T18: a task that is canceled stays so, and the retry is told.
    fn a_manual_retry_against_a_cancel(place) {
        let (one, two) = (place.engine().await, place.engine().await);
        for _ in 0..12 {
            let id = submit(&one, spec("a", json!({"strategy": "fixed", "delay": "1h"}))).await;
            let leased = lease_one(&one).await;
            report(&one, &leased, failed("x")).await.unwrap();
            let (retried, canceled) = tokio::join!(
                one.retry("default", id, ManualRetry::default()),
                two.cancel("default", id, nobody())
            );
            canceled.expect("whatever came first, it is canceled in the end");
            if let Err(error) = retried {
                assert!(matches!(error, CommandError::WrongState { state: State::Canceled, .. }), "{error}");
            }
            assert_eq!(state(&one, id).await, State::Canceled);
            assert!(lease(&two, 5).await.is_empty(), "nothing of it runs");
        }
    }

    /// S2-21, T19 against T20: a stuck run is given up once, by a person or by the reaper.
    fn a_manual_retry_of_stuck_work_against_the_reaper(place) {
        let (one, two) = (place.engine().await, place.engine().await);
        for _ in 0..12 {
            let id = submit(&one, spec("a", json!({"strategy": "immediate", "max_retries": 5}))).await;
            let first = lease_one(&one).await;
            place.pass(60_001);
            let (retried, ticked) = tokio::join!(one.retry("default", id, ManualRetry::default()), two.tick());
            ticked.unwrap();
            match retried {
                Ok(_) | Err(CommandError::WrongState { state: State::Pending, .. }) => {}
                Err(error) => panic!("{error}"),
            }
            two.tick().await.unwrap();
            let again = lease(&two, 5).await;
            assert_eq!(again.len(), 1, "one run, whoever gave up the other");
            assert!(report(&one, &first, succeeded()).await.is_err(), "the run that was given up says nothing any more");
            report(&two, &again[0], succeeded()).await.unwrap();
        }
    }
}

async fn dead_of_losses(place: &Place, engine: &Engine) {
    let id = submit(engine, spec("b", json!({"strategy": "immediate", "max_lost": 1}))).await;
    for _ in 0..3 {
        lease(engine, 5).await;
        place.pass(61_000);
        engine.tick().await.unwrap();
    }
    assert!(state(engine, id).await.is_terminal());
}
