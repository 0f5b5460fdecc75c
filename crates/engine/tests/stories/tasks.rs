//! Tasks from submit to their end.

use crate::stories;
use crate::world::*;
use comeback_core::transition::Actor;
use comeback_core::{AuditAction, Counters, EventKind, Millis, OnUnmet, Reason, State, When};
use comeback_engine::store::{AuditQuery, BeatAnswer, Idempotency, Loop, StoreError, Subject};
use comeback_engine::{
    ActorRequest, CommandError, ExecutionSpec, Heartbeat, LeaseRef, ManualRetry, Moment, Need, Report, ReportEnd,
    Submit, TaskSpec,
};
use serde_json::json;

fn linked(edges: &[(&str, &str)], keys: &[&str], retry: serde_json::Value) -> Submit {
    let tasks = keys
        .iter()
        .map(|key| TaskSpec {
            key: Some((*key).to_owned()),
            needs: edges
                .iter()
                .filter(|(_, to)| to == key)
                .map(|(from, _)| Need { task: (*from).to_owned(), when: When::Success, on_unmet: OnUnmet::Skip })
                .collect(),
            ..spec("step", retry.clone())
        })
        .collect();
    Submit { namespace: "default".into(), tasks, execution: Some(ExecutionSpec::default()), ..Submit::default() }
}

stories! {
    /// S4-31 to S4-39: two failures, two delays, success, and the whole story in the log.
    fn a_task_fails_twice_and_comes_back(place) {
        let engine = place.engine().await;
        let id = submit(&engine, spec("pay", json!({"max_attempts": 3, "initial_delay": 1}))).await;
        for delay in [1_000, 2_000] {
            let leased = lease_one(&engine).await;
            let answer = report(&engine, &leased, failed("503")).await.unwrap();
            assert_eq!((answer.state, answer.next_retry_at), (State::RetryPending, Some(place.now() + Millis(delay))));
            place.pass(delay - 1);
            engine.tick().await.unwrap();
            assert!(lease(&engine, 1).await.is_empty(), "not a millisecond early");
            place.pass(1);
            engine.tick().await.unwrap();
        }
        let leased = lease_one(&engine).await;
        assert_eq!((leased.attempt_number, leased.is_retry, leased.run), (3, true, 3));
        let answer = report(&engine, &leased, succeeded()).await.unwrap();
        assert_eq!((answer.state, answer.attempt), (State::Succeeded, 2));
        let events = engine.events("default", id, 0, 100).await.unwrap();
        assert_eq!(events.len(), 13);
        assert_eq!(events.last().unwrap().kind, EventKind::TaskSucceeded);
    }

    fn a_batch_of_reports_is_answered_one_by_one(place) {
        let engine = place.engine().await;
        for _ in 0..4 {
            submit(&engine, spec("a", json!({}))).await;
        }
        let leased = lease(&engine, 4).await;
        report(&engine, &leased[1], succeeded()).await.unwrap();
        let reports = leased.iter().map(|it| Report { lease: it.lease, end: failed("x") }).collect();
        let answers = engine.report(reports).await.unwrap();
        let words: Vec<&str> = answers.iter().map(|answer| match answer {
            Ok(_) => "ok",
            Err(CommandError::LeaseLost) => "lost",
            Err(_) => "other",
        }).collect();
        assert_eq!(words, ["ok", "lost", "ok", "ok"]);
    }

    /// R-I5: the same word again is answered again, another word is refused.
    fn a_repeated_report_gets_the_same_answer(place) {
        let engine = place.engine().await;
        submit(&engine, spec("a", json!({"initial_delay": "5s"}))).await;
        let leased = lease_one(&engine).await;
        let first = report(&engine, &leased, failed("boom")).await.unwrap();
        let again = report(&engine, &leased, failed("boom")).await.unwrap();
        assert!(again.repeated && !first.repeated);
        assert_eq!((again.state, again.next_retry_at, again.attempt), (first.state, first.next_retry_at, first.attempt));
        assert!(matches!(report(&engine, &leased, succeeded()).await, Err(CommandError::LeaseLost)));
        assert!(matches!(report(&engine, &leased, failed("another")).await, Err(CommandError::LeaseLost)));
        let restarted = place.engine().await;
        assert!(report(&restarted, &leased, failed("boom")).await.unwrap().repeated, "whoever is asked");
    }

    fn a_report_for_no_lease_is_refused(place) {
        let engine = place.engine().await;
        let id = submit(&engine, TaskSpec::new("a")).await;
        for number in [0, 1, 99] {
            let reports = vec![Report { lease: LeaseRef { task: id, number }, end: succeeded() }];
            assert!(matches!(engine.report(reports).await.unwrap()[0], Err(CommandError::LeaseLost)));
        }
        assert_eq!(state(&engine, id).await, State::Pending);
    }

    fn a_lost_worker_is_noticed_and_its_task_runs_again(place) {
        let engine = place.engine().await;
        let id = submit(&engine, spec("a", json!({"initial_delay": "1s"}))).await;
        let first = lease_one(&engine).await;
        place.pass(59_999);
        engine.tick().await.unwrap();
        assert_eq!(state(&engine, id).await, State::Running);
        place.pass(1);
        engine.tick().await.unwrap();
        let task = engine.task("default", id).await.unwrap().stored.task;
        assert_eq!((task.state, task.counters), (State::RetryPending, Counters { lost: 1, ..Counters::default() }));
        assert!(matches!(report(&engine, &first, succeeded()).await, Err(CommandError::LeaseLost)));
        place.pass(1_000);
        engine.tick().await.unwrap();
        let second = lease_one(&engine).await;
        assert_eq!((second.attempt_number, second.run, second.lease.number), (1, 2, 2));
        report(&engine, &second, succeeded()).await.unwrap();
        assert_eq!(state(&engine, id).await, State::Succeeded);
    }

    fn heartbeats_keep_a_lease_and_hear_of_a_cancel(place) {
        let engine = place.engine().await;
        let id = submit(&engine, spec("a", json!({}))).await;
        let leased = lease_one(&engine).await;
        let beat = Heartbeat { lease: leased.lease, extend: Millis(60_000), progress: Some(json!({"done": 5}).into()) };
        for _ in 0..5 {
            place.pass(40_000);
            engine.tick().await.unwrap();
            let answer = engine.heartbeat(std::slice::from_ref(&beat)).await.unwrap()[0];
            assert_eq!(answer, BeatAnswer::Extended(place.now() + Millis(60_000)));
        }
        engine.cancel("default", id, nobody()).await.unwrap();
        assert_eq!(engine.heartbeat(&[beat]).await.unwrap(), [BeatAnswer::Canceled]);
        assert!(matches!(report(&engine, &leased, succeeded()).await, Err(CommandError::TaskCanceled)));
        let events = engine.events("default", id, 0, 100).await.unwrap();
        assert_eq!(events.last().unwrap().kind, EventKind::TaskLateResult, "T28");
    }

    fn a_silent_run_times_out_and_an_active_one_does_not(place) {
        let engine = place.engine().await;
        let timed = TaskSpec { timeout: Some(Millis(10_000)), ..spec("a", json!({"initial_delay": "1s"})) };
        let (silent, active) = (submit(&engine, timed.clone()).await, submit(&engine, timed).await);
        let leased = lease(&engine, 2).await;
        let beat = Heartbeat { lease: leased[1].lease, extend: Millis(60_000), progress: None };
        place.pass(6_000);
        engine.heartbeat(&[beat]).await.unwrap();
        place.pass(4_000);
        engine.tick().await.unwrap();
        assert_eq!((state(&engine, silent).await, state(&engine, active).await), (State::RetryPending, State::Running));
        let why = engine.why("default", silent).await.unwrap().text;
        assert!(why.contains("no sign of life for 10s") && why.contains("retry 1 of 3"), "{why}");
    }

    /// A14: the deadline of the whole task, in every state it can meet.
    fn a_deadline_ends_what_waits(place) {
        let engine = place.engine().await;
        let due = |kind: &str| TaskSpec { deadline: Some(Moment::After(Millis(30_000))), ..spec(kind, json!({"strategy": "fixed", "delay": "20s"})) };
        let retrying = submit(&engine, due("a")).await;
        let leased = lease_one(&engine).await;
        report(&engine, &leased, failed("x")).await.unwrap();
        let pending = submit(&engine, due("b")).await;
        place.pass(20_000);
        engine.tick().await.unwrap();
        let (again, _) = (lease_one(&engine).await, ());
        assert_eq!(again.lease.task, retrying);
        place.pass(10_000);
        engine.tick().await.unwrap();
        assert_eq!(state(&engine, pending).await, State::Dead);
        assert_eq!(state(&engine, retrying).await, State::Running, "a run under way may end");
        let answer = report(&engine, &again, failed("x")).await.unwrap();
        assert_eq!((answer.state, answer.reason), (State::Dead, Some(Reason::Expired)));
    }

    fn a_manual_retry_supersedes_the_scheduled_one(place) {
        let engine = place.engine().await;
        let id = submit(&engine, spec("a", json!({"initial_delay": "25s"}))).await;
        let leased = lease_one(&engine).await;
        report(&engine, &leased, failed("x")).await.unwrap();
        place.pass(15_000);
        let retried = engine.retry("default", id, ManualRetry::default()).await.unwrap();
        assert_eq!((retried.changed.state, retried.queue_position), (State::Pending, Some(1)));
        let again = lease_one(&engine).await;
        assert_eq!((again.attempt, again.run), (0, 2));
        report(&engine, &again, succeeded()).await.unwrap();
        place.pass(60_000);
        engine.tick().await.unwrap();
        assert!(lease(&engine, 1).await.is_empty(), "S2-61: no second processing");
        let error = engine.retry("default", id, ManualRetry::default()).await.unwrap_err();
        assert!(matches!(error, CommandError::WrongState { state: State::Succeeded, .. }), "{error}");
    }

    fn pause_snooze_and_reschedule_move_no_counter(place) {
        let engine = place.engine().await;
        let id = submit(&engine, spec("a", json!({"initial_delay": "10s"}))).await;
        let leased = lease_one(&engine).await;
        report(&engine, &leased, failed("x")).await.unwrap();
        engine.pause("default", id, nobody()).await.unwrap();
        place.pass(60_000);
        engine.tick().await.unwrap();
        assert_eq!(state(&engine, id).await, State::Paused);
        engine.resume("default", id, nobody()).await.unwrap();
        assert_eq!(state(&engine, id).await, State::RetryPending, "S1-89");
        engine.snooze("default", id, Millis(5_000), nobody()).await.unwrap();
        engine.reschedule("default", id, place.now() + Millis(9_000), nobody()).await.unwrap();
        place.pass(8_999);
        engine.tick().await.unwrap();
        assert_eq!(state(&engine, id).await, State::RetryPending);
        place.pass(1);
        engine.tick().await.unwrap();
        assert_eq!(lease_one(&engine).await.attempt, 1);
    }

    fn an_idempotent_submit_answers_the_first_ids(place) {
        let engine = place.engine().await;
        let ask = |digest: u8| Submit {
            idempotency: Some(Idempotency { scope: "tasks".into(), key: "k".into(), digest: [digest; 32] }),
            ..Submit::one("default", TaskSpec::new("a"))
        };
        let first = engine.submit(ask(1)).await.unwrap();
        let again = place.engine().await.submit(ask(1)).await.unwrap();
        assert_eq!((again.tasks.clone(), again.repeated), (first.tasks.clone(), true));
        assert!(matches!(engine.submit(ask(2)).await, Err(CommandError::IdempotencyMismatch)));
        assert_eq!(lease(&engine, 10).await.len(), 1);
    }

    /// A retry by hand under a key, sent again after the task failed once more: the second changes nothing.
    fn an_act_under_a_key_is_done_once(place) {
        let engine = place.engine().await;
        let id = submit(&engine, spec("a", json!({"max_retries": 0}))).await;
        let key = |digest: u8| Idempotency { scope: "retry".into(), key: "k".into(), digest: [digest; 32] };
        let retry = |digest: u8| ManualRetry { request: ActorRequest { act: nobody(), once: Some(key(digest)) }, ..Default::default() };
        report(&engine, &lease_one(&engine).await, failed("x")).await.unwrap();
        let first = engine.retry("default", id, retry(1)).await.unwrap();
        assert_eq!(first.changed.state, State::Pending);
        let again = place.engine().await.retry("default", id, retry(1)).await.unwrap();
        assert_eq!(again.changed.state, State::Pending);
        report(&engine, &lease_one(&engine).await, failed("y")).await.unwrap();
        let late = engine.retry("default", id, retry(1)).await.unwrap();
        assert_eq!(late.changed.state, State::Dead, "what the first one led to, untouched");
        assert!(matches!(engine.retry("default", id, retry(2)).await, Err(CommandError::IdempotencyMismatch)));
        let events = engine.store().history(Subject::Task(id), 0, 100).await.unwrap();
        let kinds: Vec<_> = events.iter().flat_map(comeback_core::Record::expand).map(|event| event.kind).collect();
        assert_eq!(kinds.iter().filter(|kind| **kind == EventKind::TaskManualRetry).count(), 1, "{kinds:?}");
    }

    /// Twenty at the same moment under one key: one act, and everybody hears the same.
    fn the_same_act_from_many_is_one(place) {
        let engine = place.engine().await;
        let id = submit(&engine, TaskSpec::new("a")).await;
        let mut callers = tokio::task::JoinSet::new();
        for _ in 0..20 {
            let engine = engine.clone();
            let once = Some(Idempotency { scope: "cancel".into(), key: "k".into(), digest: [1; 32] });
            callers.spawn(async move { engine.cancel("default", id, ActorRequest { act: nobody(), once }).await });
        }
        for answer in callers.join_all().await {
            assert_eq!(answer.unwrap().state, State::Canceled);
        }
        assert!(matches!(engine.cancel("default", id, nobody()).await, Err(CommandError::WrongState { .. })));
    }

    fn a_chain_with_a_retry_in_the_middle(place) {
        let engine = place.engine().await;
        let answer = engine.submit(linked(&[("a", "b"), ("b", "c")], &["a", "b", "c"], json!({"initial_delay": "5s"}))).await.unwrap();
        let execution = answer.execution.unwrap();
        let a = lease_one(&engine).await;
        report(&engine, &a, succeeded()).await.unwrap();
        let b = lease_one(&engine).await;
        report(&engine, &b, failed("x")).await.unwrap();
        assert_eq!(state(&engine, answer.tasks[2].id).await, State::Waiting, "S1-46");
        assert!(lease(&engine, 10).await.is_empty());
        place.pass(5_000);
        engine.tick().await.unwrap();
        let b = lease_one(&engine).await;
        report(&engine, &b, succeeded()).await.unwrap();
        let c = lease_one(&engine).await;
        report(&engine, &c, succeeded()).await.unwrap();
        let view = engine.store().execution("default", execution).await.unwrap().unwrap();
        assert_eq!(view.execution.state, comeback_core::ExecutionState::Succeeded);
        let events = engine.execution_events("default", execution, 0, 1_000).await.unwrap();
        assert!(events.iter().zip(1..).all(|(event, seq)| event.seq == seq));
    }

    fn an_execution_is_paused_canceled_and_retried_as_a_whole(place) {
        let engine = place.engine().await;
        let answer = engine.submit(linked(&[("a", "b")], &["a", "b"], json!({"max_retries": 0}))).await.unwrap();
        let id = answer.execution.unwrap();
        engine.pause_execution("default", id, nobody()).await.unwrap();
        assert!(lease(&engine, 10).await.is_empty());
        assert!(matches!(engine.pause_execution("default", id, nobody()).await, Err(CommandError::WrongExecutionState(_))));
        engine.resume_execution("default", id, nobody()).await.unwrap();
        let a = lease_one(&engine).await;
        report(&engine, &a, failed("x")).await.unwrap();
        assert_eq!(state(&engine, answer.tasks[1].id).await, State::Skipped);
        engine.retry_execution("default", id, nobody()).await.unwrap();
        for _ in 0..2 {
            let leased = lease_one(&engine).await;
            report(&engine, &leased, succeeded()).await.unwrap();
        }
        assert!(engine.cancel_execution("default", id, nobody()).await.is_err(), "it is over");
        let other = engine.submit(linked(&[], &["x", "y"], json!({}))).await.unwrap();
        engine.cancel_execution("default", other.execution.unwrap(), nobody()).await.unwrap();
        assert_eq!(state(&engine, other.tasks[1].id).await, State::Canceled);
        let nothing = engine.cancel_execution("other", id, nobody()).await;
        assert!(matches!(nothing, Err(CommandError::NotFound("execution"))));
    }

    /// F4-10: it is told as an event, nothing of it is given out any more, and who works on it hears of it.
    fn a_canceled_execution_is_told_and_its_workers_hear_of_it(place) {
        let engine = place.engine().await;
        let answer = engine.submit(linked(&[("a", "c")], &["a", "b", "c"], json!({}))).await.unwrap();
        let id = answer.execution.unwrap();
        let leased = lease_one(&engine).await;
        engine.cancel_execution("default", id, nobody()).await.unwrap();
        let told = engine.store().history(Subject::Execution(id), 0, 100).await.unwrap();
        assert!(told.iter().any(|record| record.events.contains(&EventKind::ExecutionCanceled)));
        assert!(lease(&engine, 10).await.is_empty(), "nobody begins with what is canceled");
        let beat = Heartbeat { lease: leased.lease, extend: Millis(60_000), progress: None };
        assert_eq!(engine.heartbeat(&[beat]).await.unwrap(), [BeatAnswer::Canceled]);
        assert!(matches!(report(&engine, &leased, succeeded()).await, Err(CommandError::TaskCanceled)));
    }

    /// X1-11: a pass is bounded, and passes follow until nothing is due.
    fn whatever_is_due_is_promoted_pass_by_pass(place) {
        let engine = place.engine().await;
        let tasks: Vec<TaskSpec> = (0..2_500).map(|_| spec("a", json!({"strategy": "fixed", "delay": "1s"}))).collect();
        engine.submit(Submit { tasks, ..linked(&[], &[], json!({})) }).await.unwrap();
        for _ in 0..5 {
            let leased = lease(&engine, 500).await;
            let reports = leased.iter().map(|it| Report { lease: it.lease, end: failed("x") }).collect();
            engine.report(reports).await.unwrap();
        }
        place.pass(1_000);
        let first = engine.tick_loop(Loop::Retries).await.unwrap();
        assert_eq!((first.moved, first.more), (1_000, true));
        assert_eq!(engine.tick().await.unwrap(), 1_500);
    }

    /// A manual retry of one task inside a failed execution opens it again (E7).
    fn a_retried_task_opens_its_execution_again(place) {
        let engine = place.engine().await;
        let answer = engine.submit(linked(&[("a", "b")], &["a", "b"], json!({"max_retries": 0}))).await.unwrap();
        let a = lease_one(&engine).await;
        report(&engine, &a, failed("x")).await.unwrap();
        engine.retry("default", answer.tasks[0].id, ManualRetry::default()).await.unwrap();
        assert_eq!(state(&engine, answer.tasks[1].id).await, State::Waiting);
        for _ in 0..2 {
            let leased = lease_one(&engine).await;
            report(&engine, &leased, succeeded()).await.unwrap();
        }
        assert_eq!(state(&engine, answer.tasks[1].id).await, State::Succeeded);
    }

    /// What contradicts itself is told to who asks for it; the others of the same batch go on, and so do the loops.
    fn one_damaged_execution_does_not_hold_up_the_others(place) {
        let engine = place.engine().await;
        let broken = engine.submit(linked(&[("a", "b")], &["a", "b"], json!({}))).await.unwrap();
        let whole = engine.submit(linked(&[("a", "b")], &["a", "b"], json!({}))).await.unwrap();
        let leased = lease(&engine, 10).await;
        assert_eq!(leased.len(), 2);
        let child = place.literal(broken.tasks[1].id);
        place.damage(&format!("delete from task where id = {child}; delete from task_open where id = {child}")).await;
        let reports = leased.iter().map(|it| Report { lease: it.lease, end: succeeded() }).collect();
        let answers = engine.report(reports).await.unwrap();
        assert!(matches!(answers[0], Err(CommandError::Store(StoreError::Corrupt(_)))), "{answers:?}");
        assert!(answers[1].is_ok(), "{answers:?}");
        assert_eq!(state(&engine, whole.tasks[1].id).await, State::Pending);
        let canceled = engine.cancel("default", broken.tasks[0].id, nobody()).await;
        assert!(matches!(canceled, Err(CommandError::Store(_))), "{canceled:?}");
        let other = lease_one(&engine).await;
        place.pass(3_600_000);
        engine.tick().await.unwrap();
        assert_eq!(state(&engine, other.lease.task).await, State::RetryPending, "its lease was lost, as it should");
    }

    /// A fan of reports of one execution in one call, whatever their order.
    fn a_fan_in_of_two_hundred_is_settled_in_one_call(place) {
        let engine = place.engine().await;
        let keys: Vec<String> = (0..200).map(|n| format!("p{n}")).collect();
        let mut names: Vec<&str> = keys.iter().map(String::as_str).collect();
        let edges: Vec<(&str, &str)> = names.iter().map(|key| (*key, "join")).collect();
        names.push("join");
        let answer = engine.submit(linked(&edges, &names, json!({}))).await.unwrap();
        let leased = lease(&engine, 500).await;
        assert_eq!(leased.len(), 200);
        let reports = leased.iter().map(|it| Report { lease: it.lease, end: succeeded() }).collect();
        assert!(engine.report(reports).await.unwrap().iter().all(Result::is_ok));
        let join = lease_one(&engine).await;
        assert_eq!(join.lease.task, answer.tasks[200].id);
    }

    fn snoozed_and_released_runs_cost_no_attempt(place) {
        let engine = place.engine().await;
        let id = submit(&engine, spec("a", json!({}))).await;
        let leased = lease_one(&engine).await;
        let answer = report(&engine, &leased, ReportEnd::Snoozed { delay: Millis(7_000) }).await.unwrap();
        assert_eq!((answer.state, answer.attempt), (State::RetryPending, 0));
        place.pass(7_000);
        engine.tick().await.unwrap();
        let leased = lease_one(&engine).await;
        report(&engine, &leased, ReportEnd::Released).await.unwrap();
        let leased = lease_one(&engine).await;
        assert_eq!((leased.attempt, leased.run), (0, 3));
        report(&engine, &leased, succeeded()).await.unwrap();
        let counters = engine.task("default", id).await.unwrap().stored.task.counters;
        assert_eq!(counters, Counters { snoozed: 1, ..Counters::default() });
    }

    fn the_forecast_agrees_with_what_happens(place) {
        let engine = place.engine().await;
        let id = submit(&engine, spec("a", json!({"max_retries": 4, "initial_delay": "10s", "jitter": "full"}))).await;
        let leased = lease_one(&engine).await;
        report(&engine, &leased, failed("x")).await.unwrap();
        let forecast = engine.forecast("default", id, 100).await.unwrap();
        assert_eq!(forecast.attempts.len(), 4);
        for coming in &forecast.attempts {
            assert!(on_to_the_next(&place, &engine).await);
            assert_eq!(place.now(), coming.at);
            let leased = lease_one(&engine).await;
            assert_eq!(leased.run, coming.number);
            report(&engine, &leased, failed("x")).await.unwrap();
        }
        assert_eq!(forecast.gives_up_at, Some(place.now()));
        assert_eq!(state(&engine, id).await, State::Dead);
    }

    /// S2-115 to S2-117: durable, on every instance, and it resumes itself.
    fn a_paused_loop_stays_paused_across_restarts_and_instances(place) {
        let engine = place.engine().await;
        let id = submit(&engine, spec("a", json!({"initial_delay": "1s"}))).await;
        let leased = lease_one(&engine).await;
        report(&engine, &leased, failed("x")).await.unwrap();
        let act = Actor { by: Some("ana".into()), note: Some("deploy".into()), ..Actor::default() };
        engine.pause_loop(Loop::Retries, Some(Millis(60_000)), act).await.unwrap();
        place.pass(30_000);
        engine.close().await;
        place.forget();
        let (one, two) = (place.engine().await, place.engine().await);
        for engine in [&one, &two] {
            engine.tick().await.unwrap();
            assert_eq!(engine.paused_loops().await.unwrap().len(), 1);
        }
        assert_eq!(state(&one, id).await, State::RetryPending);
        place.pass(30_000);
        two.tick().await.unwrap();
        assert_eq!(state(&one, id).await, State::Pending);
        assert!(one.paused_loops().await.unwrap().is_empty());
    }

    fn what_is_old_is_pruned_and_open_work_is_not(place) {
        let engine = place.engine().await;
        submit(&engine, TaskSpec::new("a")).await;
        let leased = lease_one(&engine).await;
        report(&engine, &leased, succeeded()).await.unwrap();
        let open = submit(&engine, TaskSpec::new("b")).await;
        place.pass(86_400_000 * 40);
        assert_eq!(engine.tick_loop(Loop::Prune).await.unwrap().moved, 0, "nothing is forgotten unless asked");
        let config = comeback_engine::EngineConfig { retention: Some(Millis::from_days(30)), ..Default::default() };
        let pruning = comeback_engine::Engine::without_loops(place.store().await, place.clock.clone(), config).await.unwrap();
        assert_eq!(pruning.tick_loop(Loop::Prune).await.unwrap().moved, 1);
        assert_eq!(state(&engine, open).await, State::Pending);
    }

    /// F3-10: by hand, looked at first, and written down.
    fn what_is_old_is_forgotten_when_somebody_asks(place) {
        let engine = place.engine().await;
        for kind in ["old", "young"] {
            submit(&engine, TaskSpec::new(kind)).await;
            let leased = lease_one(&engine).await;
            report(&engine, &leased, succeeded()).await.unwrap();
            place.pass(86_400_000 * 20);
        }
        let open = submit(&engine, TaskSpec::new("open")).await;
        let month = Millis::from_days(30);
        assert_eq!(engine.preview_cleanup(month).await.unwrap().tasks, 1);
        let done = engine.cleanup(month, &Actor { note: Some("room".into()), ..Actor::default() }).await.unwrap();
        assert_eq!((done.tasks, done.more, done.before), (1, false, place.now() - month));
        assert_eq!(engine.preview_cleanup(month).await.unwrap().tasks, 0);
        assert_eq!(engine.preview_cleanup(Millis::from_days(1)).await.unwrap().tasks, 1, "the young one is there");
        assert_eq!(state(&engine, open).await, State::Pending);
        assert!(engine.preview_cleanup(Millis::from_secs(86_399)).await.is_err(), "keys may still be asked about");
        let acts = engine.audit(&AuditQuery { limit: 9, ..AuditQuery::default() }).await.unwrap();
        assert_eq!((acts[0].did, acts[0].note.as_deref()), (AuditAction::Cleanup, Some("room")));
    }
}
