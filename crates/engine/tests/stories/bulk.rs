//! One act on many tasks: tried out, done once each, spread, in waves, stopped and taken back; whoever dies, and whoever else works.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use comeback_core::operation::{Action, Exclusion, OperationState, Plan, StopIf, Waves};
use comeback_core::{AuditAction, Event, EventKind, Millis, OnUnmet, State, TaskId, When};
use comeback_engine::store::{AccountChange, AuditQuery, Idempotency, Loop, Operation};
use comeback_engine::{
    Bulk, CommandError, Engine, LeaseRequest, ManualRetry, Moment, Need, OperationView, Report, Selection, Submit,
    TaskSpec,
};
use serde_json::json;
use uuid::Uuid;

use crate::kills::{Death, Life, live};
use crate::stories;
use crate::world::*;

fn all(action: Action, filter: &str) -> Bulk {
    let plan = Plan { by: Some("ana".into()), note: Some("the bank is back".into()), ..Plan::new(action) };
    Bulk { plan, which: Selection::Filter(filter.into()), once: None }
}

fn with(bulk: Bulk, change: impl FnOnce(&mut Plan)) -> Bulk {
    let mut bulk = bulk;
    change(&mut bulk.plan);
    bulk
}

/// Tasks that have failed for good, oldest first.
async fn failures(engine: &Engine, namespace: &str, count: usize) -> Vec<TaskId> {
    let spec = || spec("a", json!({"max_retries": 0}));
    let tasks = (0..count).map(|_| spec()).collect();
    let submit = Submit { namespace: namespace.into(), tasks, ..Submit::default() };
    let mut ids: Vec<TaskId> = engine.submit(submit).await.unwrap().tasks.iter().map(|task| task.id).collect();
    for _ in (0..count).step_by(1_000) {
        let request = LeaseRequest { limit: 1_000, ..LeaseRequest::new(namespace, "w") };
        let leased = engine.lease(request).await.unwrap();
        let reports = leased.iter().map(|it| Report { lease: it.lease, end: failed("refused") }).collect();
        assert!(engine.report(reports).await.unwrap().iter().all(Result::is_ok));
    }
    ids.sort_unstable();
    ids
}

async fn run(engine: &Engine, bulk: Bulk) -> OperationView {
    let started = engine.start_bulk("default", bulk).await.unwrap();
    engine.tick().await.unwrap();
    engine.operation("default", started.row.id).await.unwrap()
}

async fn cycles(engine: &Engine, ids: &[TaskId]) -> Vec<u32> {
    let found = engine.store().load(ids).await.unwrap();
    found.into_iter().map(|stored| stored.expect("it is there").task.cycle).collect()
}

async fn states(engine: &Engine, ids: &[TaskId]) -> BTreeSet<State> {
    let found = engine.store().load(ids).await.unwrap();
    found.into_iter().map(|stored| stored.expect("it is there").task.state).collect()
}

async fn events(engine: &Engine, id: TaskId) -> Vec<Event> {
    engine.events("default", id, 0, 100).await.unwrap()
}

/// Leases so many and ends each as it is said.
async fn work(engine: &Engine, ends: &[bool]) {
    for good in ends {
        let leased = lease_one(engine).await;
        let end = if *good { succeeded() } else { failed("refused again") };
        report(engine, &leased, end).await.unwrap();
    }
}

stories! {
    /// The same questions as the act itself, asked of every task; nothing is changed.
    fn a_dry_run_says_what_would_be_done_and_what_not(place) {
        let engine = place.engine().await;
        let change = AccountChange { set: Some(3), ..AccountChange::default() };
        engine.put_account("default", "acme", change, &nobody()).await.unwrap();
        let dead = failures(&engine, "default", 3).await;
        let paid = TaskSpec { account: Some("acme".into()), cost: Some(2), ..spec("a", json!({"max_retries": 0})) };
        let mut costly = Vec::new();
        for _ in 0..2 {
            costly.push(submit(&engine, paid.clone()).await);
            work(&engine, &[false]).await;
        }
        let pending = submit(&engine, TaskSpec::new("a")).await;
        let there = engine.preview("default", &all(Action::Retry, "kind:a")).await.unwrap();
        assert_eq!((there.total, there.eligible, there.cost), (6, 4, 2), "{there:?}");
        assert_eq!(there.sample, [dead[0], dead[1], dead[2], costly[0]]);
        let why: Vec<_> = there.excluded.iter().map(|it| (it.why, it.state, it.sample.clone())).collect();
        let expected = [
            (Exclusion::NoCredits, None, vec![costly[1]]),
            (Exclusion::WrongState, Some(State::Pending), vec![pending]),
        ];
        assert_eq!(why, expected);
        let nobody_s = TaskId(Uuid::from_u128(7));
        let other = failures(&engine, "other", 1).await[0];
        let named = Bulk { which: Selection::Ids(vec![dead[0], nobody_s, other, dead[0]]), ..all(Action::Retry, "") };
        let there = engine.preview("default", &named).await.unwrap();
        assert_eq!((there.total, there.eligible, there.excluded[0].why, there.excluded[0].count), (3, 1, Exclusion::NotFound, 2));
        let late = TaskSpec { deadline: Some(Moment::After(Millis(60_000))), start: Some(Moment::After(Millis(10_000))), ..TaskSpec::new("b") };
        submit(&engine, late).await;
        let to = Some(place.now() + Millis(90_000));
        let there = engine.preview("default", &with(all(Action::Reschedule, "kind:b"), |plan| plan.to = to)).await.unwrap();
        assert_eq!((there.eligible, there.excluded[0].why), (0, Exclusion::DeadlinePassed));
        assert_eq!(cycles(&engine, &dead).await, [0, 0, 0]);
        assert!(engine.operations("default", None, 9).await.unwrap().is_empty());
    }

    /// Each once, through the pipeline; what comes later is not touched, and the operation is named wherever somebody looks.
    fn an_operation_retries_each_once_and_nothing_that_comes_later(place) {
        let engine = place.engine().await;
        let ids = failures(&engine, "default", 250).await;
        let started = engine.start_bulk("default", all(Action::Retry, "state:dead,failed")).await.unwrap();
        assert_eq!((started.row.total, started.row.done, started.row.state), (250, 0, OperationState::Running));
        let later = failures(&engine, "default", 1).await[0];
        engine.tick().await.unwrap();
        let over = engine.operation("default", started.row.id).await.unwrap();
        assert_eq!((over.row.state, over.row.done, over.standing.excluded.len()), (OperationState::Done, 250, 0));
        assert_eq!(cycles(&engine, &ids).await, [1; 250]);
        assert!(state(&engine, later).await.is_terminal());
        let told = events(&engine, ids[7]).await;
        let retried = told.iter().find(|it| it.kind == EventKind::TaskManualRetry).unwrap();
        let said = ["operation", "by", "note"].map(|name| retried.data[name].as_str().unwrap().to_owned());
        assert_eq!(said, [started.row.id.to_string(), "ana".into(), "the bank is back".into()]);
        let acts = engine.audit(&AuditQuery { limit: 1_000, ..AuditQuery::default() }).await.unwrap();
        let of_tasks: Vec<_> = acts.iter().filter(|act| act.did == AuditAction::TaskRetry).collect();
        assert_eq!(of_tasks.len(), 250);
        assert_eq!(of_tasks[0].after.as_ref().unwrap()["operation"], started.row.id.to_string());
        assert_eq!(acts.iter().filter(|act| act.did == AuditAction::OperationStart).count(), 1);
        place.pass(60_000);
        engine.tick().await.unwrap();
        assert_eq!(cycles(&engine, &ids).await, [1; 250]);
    }

    fn the_same_key_begins_one_operation(place) {
        let engine = place.engine().await;
        let ids = failures(&engine, "default", 2).await;
        let key = Idempotency { scope: "bulk".into(), key: "k".into(), digest: [1; 32] };
        let bulk = Bulk { once: Some(key.clone()), ..all(Action::Retry, "kind:a") };
        let first = engine.start_bulk("default", bulk.clone()).await.unwrap();
        let again = engine.start_bulk("default", bulk.clone()).await.unwrap();
        assert_eq!(first.row.id, again.row.id);
        let other = Bulk { once: Some(Idempotency { digest: [2; 32], ..key }), ..bulk };
        assert!(matches!(engine.start_bulk("default", other).await, Err(CommandError::IdempotencyMismatch)));
        engine.tick().await.unwrap();
        assert_eq!(cycles(&engine, &ids).await, [1, 1]);
    }

    /// The other verbs, and the reasons for which tasks are left alone.
    fn every_verb_can_be_done_to_many(place) {
        let engine = place.engine().await;
        for _ in 0..3 {
            submit(&engine, TaskSpec { start: Some(Moment::After(Millis(3_600_000))), ..TaskSpec::new("a") }).await;
        }
        let ready = submit(&engine, TaskSpec::new("b")).await;
        let paused = run(&engine, all(Action::Pause, "kind:a,b")).await;
        assert_eq!((paused.row.state, paused.row.done), (OperationState::Done, 4));
        let resumed = run(&engine, all(Action::Resume, "kind:a")).await;
        assert_eq!(resumed.row.done, 3);
        let to = place.now() + Millis(60_000);
        let moved = run(&engine, with(all(Action::Reschedule, ""), |plan| plan.to = Some(to))).await;
        assert_eq!(moved.row.done, 3);
        let left: Vec<_> = moved.standing.excluded.iter().map(|it| (it.why, it.state, it.sample.clone())).collect();
        assert_eq!(left, [(Exclusion::WrongState, Some(State::Paused), vec![ready])]);
        place.pass(60_000);
        engine.tick().await.unwrap();
        let canceled = run(&engine, all(Action::Cancel, "")).await;
        assert_eq!(canceled.row.done, 4);
        let id = canceled.row.id;
        let refused = engine.undo_operation("default", id, &nobody()).await.expect_err("a cancel is for good");
        assert!(matches!(refused, CommandError::WrongOperationState { state: OperationState::Done, .. }), "{refused}");
        engine.abort_operation("default", id, &nobody()).await.expect_err("it is over");
        engine.operation("other", id).await.expect_err("it is somebody's");
    }

    /// `spread: "10m"`: in order, evenly, whoever works it off and whenever.
    fn a_spread_smears_retries_evenly(place) {
        let engine = place.engine().await;
        let ids = failures(&engine, "default", 120).await;
        let began = place.now();
        let view = run(&engine, with(all(Action::Retry, ""), |plan| plan.spread = Some(Millis(600_000)))).await;
        assert_eq!(view.row.done, 120);
        let found = engine.store().load(&ids).await.unwrap();
        let due: Vec<u64> = found
            .iter()
            .flatten()
            .map(|stored| stored.task.next_retry_at.map_or(0, |at| at.since(began).0))
            .collect();
        let expected: Vec<u64> = (0..120).map(|place| place * 5_000).collect();
        assert_eq!(due, expected);
        assert_eq!(state(&engine, ids[0]).await, State::Pending, "the first is due at once");
        place.pass(5_000);
        engine.tick().await.unwrap();
        assert_eq!(state(&engine, ids[1]).await, State::Pending);
        assert_eq!(state(&engine, ids[2]).await, State::RetryPending);
    }

    /// A canary that does well lets the next wave go, twice as large; one that fails the same way too often stops it all.
    fn waves_wait_for_what_came_of_the_last(place) {
        let engine = place.engine().await;
        let ids = failures(&engine, "default", 40).await;
        let stop_if = Some(StopIf { failed_over: 0.2, same_fingerprint: true });
        let waves = Waves { canary: 4, size: None, pause: Millis(30_000), stop_if };
        let view = run(&engine, with(all(Action::Retry, ""), |plan| plan.waves = Some(waves))).await;
        let id = view.row.id;
        let done = async || {
            engine.tick().await.unwrap();
            let view = engine.operation("default", id).await.unwrap();
            (view.row.done, view.row.state)
        };
        assert_eq!(done().await, (4, OperationState::Running), "the canary only");
        place.pass(40_000);
        assert_eq!(done().await, (4, OperationState::Running), "nobody knows what came of it");
        work(&engine, &[true, true, true, true]).await;
        place.pass(1_000);
        assert_eq!(done().await, (12, OperationState::Running), "and eight more");
        work(&engine, &[true, true, false, true, true, true, true, true]).await;
        place.pass(1_000);
        assert_eq!(done().await, (12, OperationState::Running), "they wait for the pause");
        place.pass(30_000);
        assert_eq!(done().await, (28, OperationState::Running), "one in eight may fail");
        work(&engine, &[true, false, false, false, false]).await;
        place.pass(31_000);
        assert_eq!(done().await, (28, OperationState::Stopped), "a quarter is too many, whatever comes of the rest");
        let view = engine.operation("default", id).await.unwrap();
        let told: Vec<_> = view.standing.waves.iter().map(|it| (it.tasks, it.succeeded, it.alike)).collect();
        assert_eq!(told, [(4, 4, 0), (8, 7, 1), (16, 1, 4)]);
        assert!(view.standing.waves[2].fingerprint.is_some());
        let untouched = states(&engine, &ids[28..]).await;
        assert!(untouched.iter().all(|state| state.is_terminal()), "{untouched:?}");
    }

    /// Undo: what has not started is what it was, and the rest is named.
    fn undo_takes_back_what_has_not_started(place) {
        let engine = place.engine().await;
        let ids = failures(&engine, "default", 5).await;
        let before = engine.store().load(&ids).await.unwrap();
        let view = run(&engine, all(Action::Retry, "")).await;
        let started = lease_one(&engine).await.lease.task;
        engine.cancel("default", ids[3], nobody()).await.unwrap();
        let undoing = engine.undo_operation("default", view.row.id, &nobody()).await.unwrap();
        assert_eq!(undoing.row.state, OperationState::Undoing);
        engine.undo_operation("default", view.row.id, &nobody()).await.expect_err("once");
        place.pass(1_000);
        engine.tick().await.unwrap();
        let over = engine.operation("default", view.row.id).await.unwrap();
        assert_eq!((over.row.state, over.row.done, over.row.undone), (OperationState::Undone, 5, 3));
        let kept: Vec<_> = over.standing.undo.unwrap().kept.iter().map(|it| (it.why, it.sample.clone())).collect();
        assert_eq!(started, ids[0]);
        assert_eq!(kept, [(Exclusion::Started, vec![ids[0]]), (Exclusion::Changed, vec![ids[3]])]);
        for place in [1, 2, 4] {
            let was = before[place].as_ref().unwrap().task.clone();
            let is = engine.store().load(&[ids[place]]).await.unwrap().remove(0).unwrap().task;
            let moved = (is.version, is.seq, is.updated_at);
            assert_eq!(is, comeback_core::Task { version: moved.0, seq: moved.1, updated_at: moved.2, ..was });
            assert_eq!(events(&engine, ids[place]).await.last().unwrap().kind, EventKind::TaskRetryUndone);
        }
        // It is as it was, so it can be tried again.
        engine.retry("default", ids[1], ManualRetry::default()).await.unwrap();
        assert_eq!(cycles(&engine, &ids[1..2]).await, [1]);
    }

    /// A retry that waited for its time waits for it again; a pause is resumed.
    fn undo_restores_what_waited(place) {
        let engine = place.engine().await;
        let id = submit(&engine, spec("a", json!({"strategy": "fixed", "delay": "1h", "max_retries": 3}))).await;
        work(&engine, &[false]).await;
        let due = engine.task("default", id).await.unwrap().stored.task.next_retry_at;
        let spread = run(&engine, with(all(Action::Retry, ""), |plan| plan.spread = Some(Millis(60_000)))).await;
        assert_eq!(state(&engine, id).await, State::Pending);
        engine.undo_operation("default", spread.row.id, &nobody()).await.unwrap();
        engine.tick().await.unwrap();
        let task = engine.task("default", id).await.unwrap().stored.task;
        assert_eq!((task.state, task.next_retry_at, task.counters.attempt, task.cycle), (State::RetryPending, due, 1, 0));
        let paused = run(&engine, all(Action::Pause, "")).await;
        assert_eq!(state(&engine, id).await, State::Paused);
        engine.undo_operation("default", paused.row.id, &nobody()).await.unwrap();
        engine.tick().await.unwrap();
        assert_eq!(state(&engine, id).await, State::RetryPending);
        assert_eq!(engine.task("default", id).await.unwrap().stored.task.next_retry_at, due);
    }

    /// A retry inside an execution opens it again; taking it back ends it as it had ended.
    fn undo_reaches_into_executions(place) {
        let engine = place.engine().await;
        let once = || spec("a", json!({"max_retries": 0}));
        let need = Need { task: "first".into(), when: When::Success, on_unmet: OnUnmet::Skip };
        let first = TaskSpec { key: Some("first".into()), ..once() };
        let second = TaskSpec { key: Some("second".into()), needs: vec![need], ..once() };
        let submit = Submit { namespace: "default".into(), tasks: vec![first, second], ..Submit::default() };
        let answer = engine.submit(submit).await.unwrap();
        let (execution, ids) = (answer.execution.unwrap(), [answer.tasks[0].id, answer.tasks[1].id]);
        work(&engine, &[false]).await;
        let ended = states(&engine, &ids).await;
        let view = run(&engine, all(Action::Retry, "state:dead")).await;
        assert_eq!(view.row.done, 1);
        assert_eq!(states(&engine, &ids).await, BTreeSet::from([State::Pending, State::Waiting]));
        engine.undo_operation("default", view.row.id, &nobody()).await.unwrap();
        engine.tick().await.unwrap();
        assert_eq!(states(&engine, &ids).await, ended);
        let over = engine.store().execution("default", execution).await.unwrap().unwrap().execution;
        assert_eq!((over.state.word(), over.open, over.unhandled), ("failed", 0, 1));
    }

    /// Two instances and somebody who aborts: each task once, and nothing after the abort was acknowledged.
    fn two_instances_and_an_abort(place) {
        let (one, two) = (place.engine().await, place.engine().await);
        let ids = failures(&one, "default", 3_000).await;
        let view = one.start_bulk("default", all(Action::Retry, "")).await.unwrap();
        let turns = |engine: Engine| async move {
            for _ in 0..3 {
                engine.tick_loop(Loop::Operations).await.unwrap();
            }
        };
        let (a, b) = (tokio::spawn(turns(one.clone())), tokio::spawn(turns(two.clone())));
        while one.operation("default", view.row.id).await.unwrap().row.done == 0 {
            tokio::task::yield_now().await;
        }
        let aborted = two.abort_operation("default", view.row.id, &nobody()).await.unwrap();
        assert_eq!(aborted.row.state, OperationState::Aborted);
        let retried = |cycles: Vec<u32>| (cycles.iter().sum::<u32>(), cycles.into_iter().max());
        let at_once = retried(cycles(&one, &ids).await);
        a.await.unwrap();
        b.await.unwrap();
        assert_eq!(retried(cycles(&one, &ids).await), at_once, "nothing came after the abort");
        assert_eq!(at_once.0, aborted.row.done, "what it says is what was done");
        assert_eq!(at_once.1, Some(1));
        let rest = run(&two, all(Action::Retry, "state:dead,failed")).await;
        assert_eq!(rest.row.done + aborted.row.done, 3_000);
        assert_eq!(cycles(&one, &ids).await, vec![1; 3_000]);
    }

    /// I-14: kill -9 before and after every commit of an operation and of its undoing; another one goes on, and each task is
    /// touched once. On PostgreSQL every third, unless `COMEBACK_EVERY_COMMIT` is set.
    fn whoever_dies_at_whichever_commit_of_an_operation_another_goes_on(place) {
        let truth = place.store().await;
        let unharmed = Arc::new(Life::default());
        assert_eq!(whole(&place, &truth, "unharmed", &unharmed).await, (0, 150, 150));
        let commits = unharmed.commits.lock().clone();
        assert!(commits.len() > 8, "{commits:?}");
        let all = std::env::var_os("COMEBACK_EVERY_COMMIT").is_some() || place.backend == Backend::Sqlite;
        for number in commits.into_iter().step_by(if all { 1 } else { 3 }) {
            for death in [Death::Before(number), Death::After(number)] {
                let namespace = format!("{death:?}").to_lowercase().replace(['(', ')'], "-");
                let mortal = Arc::new(Life { ends: Some(death), ..Life::default() });
                assert_eq!(whole(&place, &truth, &namespace, &mortal).await, (1, 150, 150), "{death:?}");
            }
        }
    }

    /// 100,000 tasks and somebody beside it who works: how long a claim takes, alone and beside it. In a build for tests fewer, unless
    /// `COMEBACK_FULL_SIZE` is set.
    fn an_operation_leaves_room_for_those_who_work(place) {
        let engine = place.engine().await;
        let count = if std::env::var_os("COMEBACK_FULL_SIZE").is_some() { 100_000 } else { 2_000 };
        for _ in (0..count).step_by(4_000) {
            failures(&engine, "default", count.min(4_000)).await;
        }
        let alone = claims(&engine, 100).await;
        let view = engine.start_bulk("default", all(Action::Retry, "state:dead,failed kind:a")).await.unwrap();
        let began = Instant::now();
        let beside = {
            let engine = engine.clone();
            tokio::spawn(async move { while engine.tick_loop(Loop::Operations).await.unwrap().moved > 0 {} })
        };
        let mut times = Vec::new();
        while !beside.is_finished() {
            times.extend(claims(&engine, 20).await);
        }
        beside.await.unwrap();
        let took = began.elapsed();
        let over = engine.operation("default", view.row.id).await.unwrap();
        assert_eq!(over.row.done as usize, count);
        let (alone, beside) = (median_and_p99(alone), median_and_p99(times));
        println!("{}: {count} tasks retried in {took:.1?}; a claim takes {alone:.1?} alone and {beside:.1?} beside it (median, p99)", place.backend.word());
        assert!(beside.1 < Duration::from_secs(1), "{beside:?}");
    }
}

fn median_and_p99(mut times: Vec<Duration>) -> (Duration, Duration) {
    times.sort_unstable();
    let at = |part: usize| times[(times.len() * part / 100).min(times.len() - 1)];
    (at(50), at(99))
}

/// How long submit, lease and report of a task of its own take, one after the other.
async fn claims(engine: &Engine, count: usize) -> Vec<Duration> {
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        engine
            .submit(Submit::one("default", TaskSpec { queue: Some("beside".into()), ..TaskSpec::new("c") }))
            .await
            .unwrap();
        let began = Instant::now();
        let request = LeaseRequest { queues: vec!["beside".into()], ..LeaseRequest::new("default", "w") };
        let leased = engine.lease(request).await.unwrap().remove(0);
        times.push(began.elapsed());
        report(engine, &leased, succeeded()).await.unwrap();
    }
    times
}

/// Starts an operation, works it off and takes it back, with a new engine whenever one has died. Answers the deaths, how many tasks
/// were changed, and how many were changed back.
async fn whole(
    place: &Place,
    truth: &Arc<dyn comeback_engine::store::Store>,
    namespace: &str,
    life: &Arc<Life>,
) -> (u32, u32, u32) {
    let safe = live(place, truth, &Arc::default()).await;
    let ids = failures(&safe, namespace, 150).await;
    let mut engine = live(place, truth, life).await;
    let mut life = life.clone();
    let mut deaths = 0;
    let key = Idempotency { scope: "bulk".into(), key: "once".into(), digest: [7; 32] };
    let bulk = Bulk { once: Some(key), ..all(Action::Retry, "") };
    macro_rules! alive {
        ($said:expr) => {
            loop {
                match $said {
                    Ok(said) => break said,
                    Err(error) => {
                        assert!(life.is_over(), "nobody died, and yet: {error}");
                        deaths += 1;
                        life = Arc::default();
                        engine = live(place, truth, &life).await;
                    }
                }
            }
        };
    }
    let id = alive!(engine.start_bulk(namespace, bulk.clone()).await).row.id;
    let mut until = async |goal: OperationState| loop {
        alive!(engine.tick_loop(Loop::Operations).await);
        let row: Operation = safe.operation(namespace, id).await.unwrap().row;
        if row.state == goal {
            let undo = goal == OperationState::Done;
            if undo {
                let said = alive!(match engine.undo_operation(namespace, id, &nobody()).await {
                    // The one who died had done it.
                    Err(CommandError::WrongOperationState { .. }) => safe.operation(namespace, id).await,
                    said => said,
                });
                assert_eq!(said.row.state, OperationState::Undoing);
            }
            break row;
        }
        // Whoever died held it for a while.
        if let Some(due) = row.due.filter(|due| *due > place.now()) {
            place.clock.set(due);
        }
    };
    let done = until(OperationState::Done).await;
    let undone = until(OperationState::Undone).await;
    let found = safe.store().load(&ids).await.unwrap();
    for task in found.into_iter().map(|stored| stored.unwrap().task) {
        // Created, ready, started, failed, dead: five and the retry, its readiness, and its end.
        assert_eq!((task.cycle, task.state.is_terminal()), (0, true), "{namespace}");
        let told = safe.events(namespace, task.id, 0, 100).await.unwrap();
        let count = |kind| told.iter().filter(|event| event.kind == kind).count();
        assert_eq!((count(EventKind::TaskManualRetry), count(EventKind::TaskRetryUndone)), (1, 1), "{namespace}");
    }
    (deaths, done.done, undone.undone)
}
