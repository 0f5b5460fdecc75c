//! Who looks after tasks by hand: what they do is written down with what it did.

use std::sync::Arc;

use comeback_core::admission::Rule;
use comeback_core::budget::Budget;
use comeback_core::transition::Actor;
use comeback_core::{Audit, AuditAction, Millis, Reporter, State, TaskId};
use comeback_engine::store::{AccountChange, AuditQuery, Loop};
use comeback_engine::{CommandError, Describe, Engine, Leased, ManualRetry, Moment, Submit, TaskSpec};
use serde_json::{Value, json};

use crate::stories;
use crate::world::*;

fn ana() -> Actor {
    Actor {
        by: Some("ana".into()),
        note: Some("the bank is back".into()),
        key: Some("ops".into()),
        key_id: Some("0123".into()),
        request: Some("r-1".into()),
        ..Actor::default()
    }
}

async fn acts(engine: &Engine) -> Vec<Audit> {
    let mut acts = engine.audit(&AuditQuery { limit: 1_000, ..AuditQuery::default() }).await.unwrap();
    acts.reverse();
    acts
}

async fn deeds(engine: &Engine) -> Vec<AuditAction> {
    acts(engine).await.iter().map(|it| it.did).collect()
}

fn retry_of(act: Actor) -> ManualRetry {
    ManualRetry { request: act.into(), ..ManualRetry::default() }
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
    /// What it was told to wait for stays; the next verdict is by the new policy, whose rules count anew, and so it is forecast.
    fn a_task_that_waits_is_given_another_policy(place) {
        let engine = place.engine().await;
        let id = submit(&engine, spec("a", json!("fixed(7d, 3 retries)"))).await;
        report(&engine, &lease_one(&engine).await, failed("x")).await.unwrap();
        let due = engine.task("default", id).await.unwrap().stored.task.next_retry_at;
        let give = async |retry: Option<Value>| {
            let retry = Some(retry.map(|value| Arc::new(policy(value))));
            let wanted = Describe { retry, ..Describe::default() };
            engine.describe("default", id, Reporter::Anyone, &wanted, &ana()).await.unwrap();
        };
        give(Some(json!("fixed(10s, 2 retries)"))).await;
        give(Some(json!("fixed(10s, 2 retries)"))).await;
        assert_eq!(deeds(&engine).await, [AuditAction::TaskDescribe], "the second changed nothing");
        let told = acts(&engine).await.remove(0);
        assert_eq!(told.before.unwrap()["retry"]["max_retries"], 3);
        assert_eq!(told.after.unwrap()["retry"]["max_retries"], 2);
        assert_eq!(engine.task("default", id).await.unwrap().stored.task.next_retry_at, due);
        let coming = engine.forecast("default", id, 10).await.unwrap();
        assert_eq!(coming.attempts.len(), 2, "{coming:?}");
        place.pass(7 * 24 * 3_600_000);
        engine.tick().await.unwrap();
        report(&engine, &lease_one(&engine).await, failed("x")).await.unwrap();
        let task = engine.task("default", id).await.unwrap().stored.task;
        assert_eq!(task.next_retry_at, Some(place.now() + Millis(10_000)));
        place.pass(10_000);
        engine.tick().await.unwrap();
        report(&engine, &lease_one(&engine).await, failed("x")).await.unwrap();
        assert_eq!(state(&engine, id).await, State::Dead);
        // One that is over begins with it when somebody retries it.
        give(None).await;
        engine.retry("default", id, retry_of(ana())).await.unwrap();
        report(&engine, &lease_one(&engine).await, failed("x")).await.unwrap();
        assert_eq!(state(&engine, id).await, State::Failed, "nothing is retried without a policy");
    }

    /// A rule that was used up may be used again, and what a task took over when it was made cannot be changed so.
    fn another_policy_counts_its_rules_anew_and_leaves_deadlines_alone(place) {
        let engine = place.engine().await;
        let once = |delay: &str| {
            let rule = json!({"match": {"message": "x"}, "then": "retry", "max": 1});
            json!({"strategy": "fixed", "delay": delay, "max_retries": 9, "rules": [rule]})
        };
        let give = async |id: TaskId, value: Value| {
            let wanted = Describe { retry: Some(Some(Arc::new(policy(value)))), ..Describe::default() };
            engine.describe("default", id, Reporter::Anyone, &wanted, &ana()).await
        };
        let id = submit(&engine, spec("a", once("10s"))).await;
        report(&engine, &lease_one(&engine).await, failed("x")).await.unwrap();
        give(id, once("20s")).await.unwrap();
        place.pass(10_000);
        engine.tick().await.unwrap();
        report(&engine, &lease_one(&engine).await, failed("x")).await.unwrap();
        assert_eq!(state(&engine, id).await, State::RetryPending, "the rule of the new policy was not used yet");
        for (name, value) in [
            ("retry.timeout", json!({"max_retries": 3, "timeout": "5s"})),
            ("retry.expires_at", json!({"max_retries": 3, "expires_at": "2099-01-01T00:00:00Z"})),
            ("retry.deadline", json!({"max_retries": 3, "deadline": "hard"})),
        ] {
            let refused = give(id, value).await.expect_err("it was submitted without");
            let CommandError::Invalid(faults) = refused else { panic!("{refused}") };
            assert_eq!(faults.faults[0].path, name);
        }
        let limited = submit(&engine, spec("b", json!({"max_retries": 3, "timeout": "5s"}))).await;
        give(limited, json!({"max_retries": 5, "timeout": "5s"})).await.unwrap();
    }

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
            (AuditAction::TaskRetry, "dead", "pending"),
            (AuditAction::TaskPause, "pending", "paused"),
            (AuditAction::TaskResume, "paused", "pending"),
            (AuditAction::TaskSnooze, "pending", "retry_pending"),
            (AuditAction::TaskReschedule, "retry_pending", "retry_pending"),
            (AuditAction::TaskCancel, "retry_pending", "canceled"),
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
            AuditAction::ExecutionPause,
            AuditAction::ExecutionResume,
            AuditAction::ExecutionCancel,
            AuditAction::LoopPause,
            AuditAction::LoopResume,
            AuditAction::RulePut,
            AuditAction::RuleDelete,
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
        assert_eq!(deeds(&engine).await, [AuditAction::TaskRetry]);
    }

    /// S2-70: a task whose credits are reserved is retried by its policy although its account is empty.
    fn retries_of_a_policy_are_paid_by_what_was_reserved(place) {
        let engine = place.engine().await;
        fund(&engine, "acme", 2).await;
        let paid = TaskSpec { account: Some("acme".into()), ..spec("video", json!({"strategy": "immediate", "max_retries": 2})) };
        let id = submit(&engine, paid.clone()).await;
        let refused = engine.submit(Submit::one("default", paid)).await;
        assert!(matches!(refused, Err(CommandError::InsufficientCredits { required: 2, available: 0 })), "{refused:?}");
        for _ in 0..2 {
            let leased = lease_one(&engine).await;
            report(&engine, &leased, failed("x")).await.unwrap();
            engine.tick().await.unwrap();
            assert_eq!(credits(&engine).await, (2, 2, 0));
        }
        let leased = lease_one(&engine).await;
        report(&engine, &leased, succeeded()).await.unwrap();
        assert_eq!(state(&engine, id).await, State::Succeeded);
        assert_eq!(credits(&engine).await, (0, 0, 2));
    }

    /// S2-25, S2-68, X2-12: a task that is over reserves anew; of two who retry different tasks with credits for one, one is told.
    fn two_manual_retries_and_credits_for_one(place) {
        let (one, two) = (place.engine().await, place.engine().await);
        fund(&one, "acme", 4).await;
        let mut ids = Vec::new();
        for _ in 0..2 {
            let paid = TaskSpec { account: Some("acme".into()), ..spec("video", json!({"max_retries": 0})) };
            ids.push(submit(&one, paid).await);
            let leased = lease_one(&one).await;
            report(&one, &leased, failed("x")).await.unwrap();
        }
        for _ in 0..8 {
            fund(&one, "acme", 2).await;
            let (a, b) = tokio::join!(
                one.retry("default", ids[0], ManualRetry::default()),
                two.retry("default", ids[1], ManualRetry::default())
            );
            assert_eq!(usize::from(a.is_ok()) + usize::from(b.is_ok()), 1, "{a:?} {b:?}");
            let refused = if a.is_ok() { b.err() } else { a.err() };
            let expected = matches!(refused, Some(CommandError::InsufficientCredits { required: 2, available: 0 }));
            assert!(expected, "{refused:?}");
            assert_eq!(credits(&one).await, (2, 2, 0));
            let leased = lease_one(&one).await;
            report(&one, &leased, failed("x")).await.unwrap();
            assert_eq!(credits(&one).await, (2, 0, 0), "it did not succeed, so it cost nothing");
        }
    }

    /// S2-129: the accounts of an organisation share its budget, whoever reports, and whichever of their own is free.
    fn an_organisation_pays_for_the_retries_of_its_accounts_together(place) {
        let (one, two) = (place.engine().await, place.engine().await);
        let put = async |name: &str, change: AccountChange| one.put_account("default", name, change, &nobody()).await;
        let member = |organisation: &str| AccountChange { organisation: Some(Some(organisation.into())), ..AccountChange::default() };
        for name in ["eu", "us"] {
            fund(&one, name, 100).await;
        }
        let lonely = put("eu", member("acme")).await.unwrap_err();
        assert!(lonely.to_string().contains("there is no account `acme`"), "{lonely}");
        let budget = Some(Budget { retries_per_day: Some(3), ..Budget::default() });
        put("acme", AccountChange { budget, ..AccountChange::default() }).await.unwrap();
        let itself = put("acme", member("acme")).await.unwrap_err();
        assert!(itself.to_string().contains("must be another account"), "{itself}");
        for name in ["eu", "us"] {
            put(name, member("acme")).await.unwrap();
        }
        let mut ids = Vec::new();
        for n in 0..8 {
            let account = Some(if n % 2 == 0 { "eu" } else { "us" }.to_owned());
            ids.push(submit(&one, TaskSpec { account, ..spec("mail", json!({"strategy": "fixed", "delay": "1s"})) }).await);
        }
        let leased = lease(&one, 8).await;
        let (first, second) = leased.split_at(4);
        let end = |engine: Engine, leased: Vec<Leased>| async move {
            for it in leased {
                report(&engine, &it, failed("x")).await.unwrap();
            }
        };
        tokio::join!(end(one.clone(), first.to_vec()), end(two.clone(), second.to_vec()));
        let mut days = Vec::new();
        for id in &ids {
            let hold = one.task("default", *id).await.unwrap().stored.task.hold;
            assert!(hold.as_ref().is_none_or(|hold| hold.reason.contains("account acme")), "{hold:?}");
            days.push(hold.map_or(0, |hold| hold.until.0 / 86_400_000 - place.now().0 / 86_400_000));
        }
        days.sort_unstable();
        assert_eq!(days, [0, 0, 0, 1, 1, 1, 2, 2]);
        let alone = AccountChange { organisation: Some(None), ..AccountChange::default() };
        assert_eq!(put("eu", alone).await.unwrap().terms.organisation, None);
        assert_eq!(put("us", AccountChange::default()).await.unwrap().terms.organisation.as_deref(), Some("acme"));
    }

    /// S2-119, S2-129: what is over the budget of a day waits for the next, costs no attempt and is not dropped.
    fn retries_over_the_budget_wait_for_the_next_day(place) {
        let (one, two) = (place.engine().await, place.engine().await);
        fund(&one, "acme", 100).await;
        let budget = Some(Budget { retries_per_day: Some(3), ..Budget::default() });
        let change = AccountChange { budget, ..AccountChange::default() };
        one.put_account("default", "acme", change, &nobody()).await.unwrap();
        let paid = || TaskSpec { account: Some("acme".into()), ..spec("mail", json!({"strategy": "fixed", "delay": "1s"})) };
        let mut ids = Vec::new();
        for _ in 0..8 {
            ids.push(submit(&one, paid()).await);
        }
        let leased = lease(&one, 8).await;
        let (first, second) = leased.split_at(4);
        let end = |engine: Engine, leased: Vec<Leased>| async move {
            for it in leased {
                report(&engine, &it, failed("x")).await.unwrap();
            }
        };
        tokio::join!(end(one.clone(), first.to_vec()), end(two.clone(), second.to_vec()));
        let (mut today, mut held) = (0, Vec::new());
        for id in &ids {
            let task = one.task("default", *id).await.unwrap().stored.task;
            assert_eq!((task.state, task.counters.attempt), (State::RetryPending, 1));
            match task.hold {
                None => today += 1,
                Some(hold) => held.push(hold),
            }
        }
        assert_eq!(today, 3, "as many as a day has, whoever reported");
        assert!(held.iter().all(|hold| hold.reason.contains("account acme")), "{held:?}");
        let mut days: Vec<i64> = held.iter().map(|hold| hold.until.0 / 86_400_000 - place.now().0 / 86_400_000).collect();
        days.sort_unstable();
        assert_eq!(days, [1, 1, 1, 2, 2]);
        // Who retries by hand pays with credits and waits for nobody; the retries of the new cycle are booked like any.
        let held_one = async |id: &TaskId| one.task("default", *id).await.unwrap().stored.task.hold.is_some();
        let mut by_hand = ids[0];
        for id in &ids {
            if held_one(id).await {
                by_hand = *id;
            }
        }
        one.retry("default", by_hand, ManualRetry::default()).await.unwrap();
        let retried = one.task("default", by_hand).await.unwrap().stored.task;
        assert_eq!((retried.state, &retried.hold), (State::Pending, &None));
        let again = lease_one(&one).await;
        assert_eq!(again.lease.task, by_hand);
        report(&one, &again, failed("x")).await.unwrap();
        let hold = one.task("default", by_hand).await.unwrap().stored.task.hold.expect("today is full");
        assert!(hold.reason.contains("account acme"), "{hold:?}");
        place.pass(1_000);
        one.tick().await.unwrap();
        assert_eq!(lease(&one, 8).await.len(), 3);
        place.clock.set(held.iter().map(|hold| hold.until).max().unwrap());
        one.tick().await.unwrap();
        assert!(lease(&one, 8).await.len() >= 5, "nothing is dropped");
    }

    fn a_cost_is_the_tasks_own_or_that_of_its_kind(place) {
        let engine = place.engine().await;
        fund(&engine, "acme", 100).await;
        let paid = |kind: &str, cost: Option<u32>| TaskSpec { account: Some("acme".into()), cost, ..TaskSpec::new(kind) };
        for (task, cost) in [(paid("video", None), 2), (paid("video", Some(7)), 7), (paid("mail", None), 1)] {
            let id = submit(&engine, task).await;
            assert_eq!(engine.task("default", id).await.unwrap().body.cost, Some(cost));
        }
        assert_eq!(credits(&engine).await, (100, 10, 0));
        let unknown = TaskSpec { account: Some("nobody".into()), ..TaskSpec::new("mail") };
        let refused = engine.submit(Submit::one("default", unknown)).await;
        assert!(matches!(&refused, Err(CommandError::Invalid(invalid)) if invalid.faults[0].path == "account"), "{refused:?}");
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

async fn fund(engine: &Engine, account: &str, credits: i64) {
    let costs = Some([("video".to_owned(), 2)].into());
    let change = AccountChange { set: Some(credits), costs, ..AccountChange::default() };
    engine.put_account("default", account, change, &nobody()).await.expect("it is taken");
}

async fn credits(engine: &Engine) -> (i64, i64, i64) {
    let credits = engine.account("default", "acme").await.expect("it is there").credits;
    (credits.held, credits.reserved, credits.spent)
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
