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

    /// A retry with an edited payload keeps the old one, and every attempt says which one it used.
    fn a_payload_is_edited_for_a_retry(place) {
        let engine = place.engine().await;
        let id = dead(&engine).await;
        let patch = |value: Value| ManualRetry { payload_patch: Some(value.into()), ..retry_of(ana()) };
        let edited = engine.retry("default", id, patch(json!({"sum": 2, "to": null}))).await.unwrap().edited.unwrap();
        let told: Vec<(&str, Option<&Value>, Option<&Value>)> =
            edited.differences.iter().map(|it| (it.path.as_str(), it.before.as_ref(), it.after.as_ref())).collect();
        assert_eq!(told, [("to", Some(&json!("bob")), None), ("sum", Some(&json!(1)), Some(&json!(2)))]);
        let leased = lease_one(&engine).await;
        assert_eq!(leased.payload.as_deref(), Some(r#"{"sum":2}"#));
        report(&engine, &leased, failed("y")).await.unwrap();
        let nothing = engine.retry("default", id, patch(json!({"sum": 2}))).await.unwrap();
        assert!(nothing.edited.is_none(), "an edit that changes nothing is none");
        let leased = lease_one(&engine).await;
        report(&engine, &leased, succeeded()).await.unwrap();
        let (old, in_use) = engine.payloads("default", id).await.unwrap();
        assert_eq!((old.len(), in_use.as_deref()), (1, Some(r#"{"sum":2}"#)));
        assert_eq!(old[0].payload.as_deref(), Some(r#"{"to":"bob","sum":1}"#));
        assert_eq!(old[0].replaced_by.as_deref(), Some("ana"));
        let used = [1, 2, 3].map(|run| comeback_core::payload::version_of_run(&old, run));
        assert_eq!(used, [1, 2, 2]);
        let acts = acts(&engine).await;
        let version = |value: &Option<Value>| value.as_ref().unwrap()["payload_version"].clone();
        assert_eq!((version(&acts[0].before), version(&acts[0].after)), (json!(1), json!(2)));
        assert_eq!(version(&acts[1].after), Value::Null);
    }

    /// Two who edit at the same moment: one payload, one version, one retry.
    fn two_edits_at_once(place) {
        let (one, two) = (place.engine().await, place.engine().await);
        for _ in 0..8 {
            let id = dead(&one).await;
            let patch = |by: &str| ManualRetry { payload_patch: Some(json!({"by": by}).into()), ..ManualRetry::default() };
            let (a, b) = tokio::join!(one.retry("default", id, patch("one")), two.retry("default", id, patch("two")));
            assert_eq!(usize::from(a.is_ok()) + usize::from(b.is_ok()), 1, "{:?} {:?}", a.err(), b.err());
            let winner = if a.is_ok() { "one" } else { "two" };
            let leased = lease_one(&one).await;
            let payload: Value = serde_json::from_str(leased.payload.as_deref().unwrap()).unwrap();
            assert_eq!(payload, json!({"to": "bob", "sum": 1, "by": winner}));
            assert_eq!(one.payloads("default", id).await.unwrap().0.len(), 1);
            report(&one, &leased, succeeded()).await.unwrap();
        }
    }

    /// In an execution the edit is stored with all that follows from the retry.
    fn a_payload_is_edited_inside_an_execution(place) {
        let engine = place.engine().await;
        let first = TaskSpec { key: Some("first".into()), ..spec("a", json!({"max_retries": 0})).payload(json!({"n": 1})) };
        let tasks = vec![first, TaskSpec::new("b")];
        let submit = Submit { namespace: "default".into(), tasks, execution: Some(Default::default()), ..Submit::default() };
        let id = engine.submit(submit).await.unwrap().tasks[0].id;
        for leased in lease(&engine, 5).await {
            let end = if leased.lease.task == id { failed("x") } else { succeeded() };
            report(&engine, &leased, end).await.unwrap();
        }
        let patch = ManualRetry { payload_patch: Some(json!({"n": 2}).into()), ..retry_of(ana()) };
        engine.retry("default", id, patch).await.unwrap();
        let leased = lease_one(&engine).await;
        assert_eq!((leased.lease.task, leased.payload.as_deref()), (id, Some(r#"{"n":2}"#)));
        assert_eq!(deeds(&engine).await, [Did::TaskRetry]);
    }

    /// S2-20: what is in another namespace cannot be retried, nor even found.
    fn only_the_owner_retries(place) {
        let engine = place.engine().await;
        let id = dead(&engine).await;
        let refused = engine.retry("other", id, ManualRetry::default()).await;
        assert!(matches!(refused, Err(CommandError::NotFound("task"))));
        assert_eq!(state(&engine, id).await, State::Dead);
        assert_eq!(deeds(&engine).await, []);
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
