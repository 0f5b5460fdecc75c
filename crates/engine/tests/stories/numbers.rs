//! Statistics and what people say of errors: counted once whoever dies, and heeded from then on.

use std::sync::Arc;
use std::time::{Duration, Instant};

use comeback_core::error_group::{GroupStatus, TriageAction};
use comeback_core::stats::{Dimension, Measure, Sums};
use comeback_core::transition::Actor;
use comeback_core::{Class, Failure, Millis, State, TaskId, Timestamp, Trigger};
use comeback_engine::store::{ActKey, GroupQuery, Idempotency, Loop, SumsQuery};
use comeback_engine::{Clock, CommandError, Engine, EngineConfig, ManualRetry, RepairAction, ReportEnd};
use serde_json::json;

use crate::kills::{Death, Life, live};
use crate::stories;
use crate::world::*;

async fn totals(engine: &Engine) -> Result<Sums, CommandError> {
    let (since, until) = (Timestamp(0), Timestamp::MAX);
    let query = SumsQuery { by: Dimension::Attempt, since, until, bucket: None, only: Vec::new() };
    let mut sums = Sums::default();
    for line in engine.sums("default", &query).await? {
        sums.add_code(line.code, line.sum);
    }
    Ok(sums)
}

/// One task that comes back and one that does not.
async fn a_little(place: &Place, engine: &Engine) -> TaskId {
    for ends_well in [true, false] {
        let id = submit(engine, spec("pay", json!({"strategy": "fixed", "delay": "10s", "max_retries": 1}))).await;
        let leased = lease_one(engine).await;
        report(engine, &leased, failed("order 1 refused")).await.unwrap();
        place.clock.advance(Millis(10_000));
        engine.tick().await.unwrap();
        let again = lease_one(engine).await;
        let end = if ends_well { succeeded() } else { failed("order 2 refused") };
        report(engine, &again, end).await.unwrap();
        if !ends_well {
            return id;
        }
    }
    unreachable!("the last one does not end well")
}

async fn only_group(engine: &Engine) -> comeback_core::error_group::Group {
    let mut groups = engine.error_groups("default", &GroupQuery { after: None, limit: 10 }).await.unwrap();
    assert_eq!(groups.len(), 1, "{groups:?}");
    groups.remove(0)
}

fn ana() -> Actor {
    Actor { by: Some("ana".into()), ..Actor::default() }
}

/// What the loops of another instance do comes in its time.
async fn until<F: Future<Output = bool>>(holds: impl Fn() -> F) {
    let patience = Instant::now() + Duration::from_secs(20);
    while !holds().await {
        assert!(Instant::now() < patience, "it never came to that");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

stories! {
    /// The sums and the place up to which they were added change together: whoever dies before or after that, or comes second, leaves
    /// them as they should be.
    fn sums_are_what_happened_whoever_dies(place) {
        let truth = place.store().await;
        let mut expected = 0;
        for n in 0..3 {
            for death in [Death::Before(n), Death::After(n)] {
                a_little(&place, &place.engine().await).await;
                expected += 1;
                let mortal = live(&place, &truth, &Arc::new(Life::ending(death))).await;
                let died = totals(&mortal).await.is_err();
                // There is one write where everything can be read at once.
                assert!(died || n > 0, "{death:?}");
                let second = place.engine().await;
                let sums = totals(&second).await.unwrap();
                let told = |what: Measure| sums.get(what) / expected;
                assert_eq!(sums.attempts(), expected * 4, "{death:?}: {sums:?}");
                assert_eq!((told(Measure::Recovered), told(Measure::Wasted), told(Measure::FirstFailed)), (1, 1, 2));
                assert_eq!(sums.recoveries(), expected);
            }
        }
    }

    /// What is forgotten was counted before.
    fn what_is_pruned_stays_in_the_sums(place) {
        let config = EngineConfig { retention: Some(Millis(1_000)), ..EngineConfig::default() };
        let engine = Engine::without_loops(place.store().await, place.clock.clone(), config).await.unwrap();
        let id = a_little(&place, &engine).await;
        place.clock.advance(Millis(60_000));
        engine.tick_loop(Loop::Prune).await.unwrap();
        assert!(engine.store().load(&[id]).await.unwrap()[0].is_none());
        assert_eq!(totals(&engine).await.unwrap().attempts(), 4);
        let group = only_group(&engine).await;
        assert_eq!((group.count, group.recovered), (3, 1));
    }

    /// A person's word on an error is heeded from then on, by those who are there and by those who come, until it is taken back.
    fn what_a_person_said_of_an_error_is_heeded_from_then_on(place) {
        let engine = place.engine().await;
        a_little(&place, &engine).await;
        let group = only_group(&engine).await.fingerprint;
        let fails = async |engine: &Engine, message: &str| {
            let id = submit(engine, spec("pay", json!({"strategy": "fixed", "delay": "10s", "max_retries": 1}))).await;
            let leased = lease_one(engine).await;
            report(engine, &leased, failed(message)).await.unwrap();
            let stored = engine.store().load(&[id]).await.unwrap().remove(0).unwrap();
            (id, stored.task.state)
        };
        engine.change_error_group("default", group, &TriageAction::Reclassify(Some(Class::Final)), &ana()).await.unwrap();
        let (id, state) = fails(&engine, "order 9 refused").await;
        assert_eq!(state, State::Failed);
        let why = engine.why("default", id).await.unwrap();
        assert!(format!("{why:?}").contains("somebody said that such errors are final"), "{why:?}");
        assert_eq!(fails(&engine, "something else").await.1, State::RetryPending, "others are not concerned");
        let newcomer = place.engine().await;
        assert_eq!(fails(&newcomer, "order 10 refused").await.1, State::Failed);
        newcomer.change_error_group("default", group, &TriageAction::Reclassify(None), &ana()).await.unwrap();
        assert_eq!(fails(&newcomer, "order 11 refused").await.1, State::RetryPending);
    }

    /// S2-35 to S2-39: what failed and would be retried today is retried, through the same pipeline as every manual retry; the rest stays,
    /// and each is told of.
    fn what_is_said_of_errors_is_heard_by_other_instances(place) {
        let (one, two) = (place.live_engine().await, place.live_engine().await);
        let not_found = Failure { status: Some(404), ..Failure::new(Trigger::Error, "no such order") };
        let verdict = async |engine: &Engine| {
            let id = submit(engine, spec("pay", json!({"strategy": "fixed", "delay": "1h", "max_retries": 1}))).await;
            report(engine, &lease_one(engine).await, ReportEnd::Failed(not_found.clone())).await.unwrap();
            state(engine, id).await
        };
        assert_eq!((verdict(&one).await, verdict(&two).await), (State::Failed, State::Failed));
        let group = comeback_core::fingerprint::fingerprint("pay", &not_found);
        one.error_group("default", group).await.unwrap();
        one.change_error_group("default", group, &TriageAction::Reclassify(Some(Class::Retryable)), &ana()).await.unwrap();
        let said = Instant::now();
        assert_eq!(verdict(&one).await, State::RetryPending);
        until(|| async { verdict(&two).await == State::RetryPending }).await;
        println!("{}: heard by another instance after {:?}", place.backend.word(), said.elapsed());
    }

    fn failed_work_that_could_be_retried_is_put_right(place) {
        let engine = place.engine().await;
        let fails = async |kind: &str, failure: Failure, retries: u32| {
            let id = submit(&engine, spec(kind, json!({"strategy": "fixed", "delay": "10s", "max_retries": retries}))).await;
            report(&engine, &lease_one(&engine).await, ReportEnd::Failed(failure)).await.unwrap();
            id
        };
        let not_found = Failure { status: Some(404), ..Failure::new(Trigger::Error, "no such order") };
        let curable = fails("pay", not_found.clone(), 1).await;
        let used_up = fails("mail", Failure::new(Trigger::Error, "x"), 0).await;
        let canceled = submit(&engine, spec("pay", json!({}))).await;
        engine.cancel("default", canceled, ana()).await.unwrap();
        let word = async |dry_run| {
            let done = engine.process_failed("default", 100, dry_run, &ana()).await.unwrap();
            let of = |id| done.iter().find(|it| it.task == id).map(|it| (it.action, it.reason.clone()));
            (of(curable), of(used_up), of(canceled))
        };
        let stays = |reason: &str| Some((RepairAction::MarkedFailed, reason.to_owned()));
        assert_eq!(word(false).await, (stays("final"), stays("attempts"), None));
        let group = comeback_core::fingerprint::fingerprint("pay", &not_found);
        until(|| async { engine.error_group("default", group).await.is_ok() }).await;
        engine.change_error_group("default", group, &TriageAction::Reclassify(Some(Class::Retryable)), &ana()).await.unwrap();
        let (told, ..) = word(true).await;
        assert_eq!(told.map(|(action, _)| action), Some(RepairAction::Retried));
        assert_eq!(state(&engine, curable).await, State::Failed, "so far it was only asked");
        engine.pause_loop(Loop::Repair, None, ana()).await.unwrap();
        assert_eq!(engine.tick_loop(Loop::Repair).await.unwrap().moved, 0, "not by itself while that is paused");
        engine.resume_loop(Loop::Repair, ana()).await.unwrap();
        let (asked, by_itself) = tokio::join!(word(false), engine.tick_loop(Loop::Repair));
        let asked = u32::from(asked.0.is_some_and(|(action, _)| action == RepairAction::Retried));
        assert_eq!(asked + by_itself.unwrap().moved, 1, "of two who do it at once, one does it");
        assert_eq!(state(&engine, curable).await, State::Pending);
        assert_eq!(state(&engine, used_up).await, State::Dead);
    }

    fn failed_work_is_put_right_by_hand_while_the_loop_is_paused(place) {
        let engine = place.engine().await;
        let id = submit(&engine, spec("pay", json!({"strategy": "fixed", "delay": "10s", "max_retries": 1}))).await;
        let not_found = Failure { status: Some(404), ..Failure::new(Trigger::Error, "no such order") };
        report(&engine, &lease_one(&engine).await, ReportEnd::Failed(not_found.clone())).await.unwrap();
        let group = comeback_core::fingerprint::fingerprint("pay", &not_found);
        until(|| async { engine.error_group("default", group).await.is_ok() }).await;
        engine.change_error_group("default", group, &TriageAction::Reclassify(Some(Class::Retryable)), &ana()).await.unwrap();
        engine.pause_loop(Loop::Repair, None, ana()).await.unwrap();
        let done = engine.process_failed("default", 100, false, &ana()).await.unwrap();
        assert_eq!(done.iter().map(|it| (it.task, it.action)).collect::<Vec<_>>(), [(id, RepairAction::Retried)]);
        assert_eq!(state(&engine, id).await, State::Pending);
    }

    /// F2: a request that broke off is finished by its repetition, which retries nothing that was retried already.
    fn failed_work_is_put_right_once_under_a_key(place) {
        let engine = place.engine().await;
        let id = submit(&engine, spec("pay", json!({"strategy": "fixed", "delay": "10s", "max_retries": 5}))).await;
        let not_found = Failure { status: Some(404), ..Failure::new(Trigger::Error, "no such order") };
        let group = comeback_core::fingerprint::fingerprint("pay", &not_found);
        let reclassify = async |class: Option<Class>| {
            until(|| async { engine.error_group("default", group).await.is_ok() }).await;
            engine.change_error_group("default", group, &TriageAction::Reclassify(class), &ana()).await.unwrap();
        };
        let put_right = async |key: &str| {
            let key = Idempotency { scope: "POST /process-failed".into(), key: key.into(), digest: [1; 32] };
            let once = Some(Arc::new(ActKey { namespace: "default".into(), key }));
            let done = engine.process_failed("default", 100, false, &Actor { once, ..ana() }).await.unwrap();
            done.iter().map(|it| it.action).collect::<Vec<_>>()
        };
        for expected in [RepairAction::Retried, RepairAction::Skipped] {
            report(&engine, &lease_one(&engine).await, ReportEnd::Failed(not_found.clone())).await.unwrap();
            assert_eq!(state(&engine, id).await, State::Failed);
            reclassify(Some(Class::Retryable)).await;
            assert_eq!(put_right("k").await, [expected]);
            reclassify(None).await;
        }
        assert_eq!(state(&engine, id).await, State::Failed);
        reclassify(Some(Class::Retryable)).await;
        assert_eq!(put_right("another").await, [RepairAction::Retried]);
    }

    fn lost_work_is_put_right_by_hand_while_the_loop_is_paused(place) {
        let engine = place.engine().await;
        engine.pause_loop(Loop::Reap, None, ana()).await.unwrap();
        let again = submit(&engine, spec("pay", json!({"strategy": "fixed", "delay": "10s", "max_retries": 1}))).await;
        lease_one(&engine).await;
        place.clock.advance(Millis::from_days(1));
        assert_eq!(engine.tick_loop(Loop::Reap).await.unwrap().moved, 0);
        assert_eq!(state(&engine, again).await, State::Running, "not by itself");
        let (done, more) = engine.process_stuck(100).await.unwrap();
        assert_eq!((done.iter().map(|it| (it.task, it.action)).collect::<Vec<_>>(), more), (vec![(again, RepairAction::Retried)], false));
        assert_eq!(state(&engine, again).await, State::RetryPending);
    }

    fn a_manual_retry_is_told_apart_and_a_resolved_group_regresses(place) {
        let engine = place.engine().await;
        let id = a_little(&place, &engine).await;
        until(|| async { totals(&engine).await.unwrap().get(Measure::GaveUp) == 1 }).await;
        let group = only_group(&engine).await;
        place.clock.advance(Millis(1));
        let resolved = engine.change_error_group("default", group.fingerprint, &TriageAction::Resolve, &ana()).await.unwrap();
        assert_eq!(resolved.word.standing, GroupStatus::Resolved);
        place.clock.advance(Millis(1_000));
        engine.retry("default", id, ManualRetry { request: ana().into(), ..ManualRetry::default() }).await.unwrap();
        report(&engine, &lease_one(&engine).await, failed("order 3 refused")).await.unwrap();
        until(|| async { only_group(&engine).await.count == 4 }).await;
        assert_eq!(only_group(&engine).await.word.standing, GroupStatus::Regressed);
        let query = SumsQuery {
            by: Dimension::Origin,
            since: Timestamp(0),
            until: place.clock.now() + Millis(1),
            bucket: None,
            only: Vec::new(),
        };
        let lines = engine.sums("default", &query).await.unwrap();
        let manual: Vec<_> = lines.iter().filter(|line| line.value == "manual").collect();
        assert!(manual.iter().any(|line| line.code == Measure::Wasted.code() && line.sum == 1), "{manual:?}");
    }
}
