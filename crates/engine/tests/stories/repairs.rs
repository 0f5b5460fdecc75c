//! Repairs by hand: they come before every retry above them, and nothing that was done is done twice.

use comeback_core::transition::Actor;
use comeback_core::{ExecutionId, ExecutionState, State, TaskId};
use comeback_engine::flow::Started;
use comeback_engine::store::{AuditQuery, ExecutionQuery, ExecutionView, StepsOf};
use comeback_engine::{ActorRequest, CommandError, Engine, ManualRetry};
use serde_json::{Value, json};

use crate::flow::{engine, key, start, state, states, with, work};
use crate::plain::put;
use crate::stories;
use crate::world::{Place, failed};

const HOUR: u64 = 3_600_000;

fn ana() -> Actor {
    Actor { by: Some("ana".into()), ..Actor::default() }
}

fn in_an_hour(max_retries: u32) -> Value {
    json!({"strategy": "fixed", "delay": "1h", "max_retries": max_retries})
}

async fn step(engine: &Engine, execution: ExecutionId, key: &str) -> TaskId {
    let keys = [key.to_owned()];
    engine.store().steps(execution, StepsOf::Keys(&keys), 0).await.unwrap()[0].task
}

/// Every execution of a workflow, the oldest first.
async fn executions(engine: &Engine, workflow: &str) -> Vec<ExecutionView> {
    let query = ExecutionQuery { workflow: Some(workflow.into()), limit: 50, ..Default::default() };
    let mut found = engine.store().executions("default", &query).await.unwrap();
    found.reverse();
    found
}

async fn task_state(engine: &Engine, id: TaskId) -> State {
    engine.task("default", id).await.unwrap().stored.task.state
}

/// One step succeeds, the next fails, and the execution waits for its retry in an hour.
async fn half_done(engine: &Engine) -> Started {
    let document = json!({"retry": in_an_hour(2), "steps": {"one": {}, "two": {"needs": ["one"]}}});
    put(engine, "w", document).await;
    let started = start(engine, "w", json!({})).await;
    assert_eq!(work(engine, |it| if key(it) == "two" { failed("no") } else { with(json!(1)) }).await, ["one", "two"]);
    assert_eq!(task_state(engine, started.task.unwrap()).await, State::RetryPending);
    started
}

/// A step calls a workflow of two steps, of which the second fails.
async fn half_done_inside(engine: &Engine, retry: Value) -> (Started, ExecutionId) {
    let inner = json!({"output": "{{ steps.two.result }}", "steps": {"one": {}, "two": {"needs": ["one"]}}});
    put(engine, "inner", inner).await;
    put(
        engine,
        "outer",
        json!({"retry": retry, "steps": {
            "call": {"call": "inner", "retry": retry},
            "after": {"needs": ["call"], "payload": "{{ steps.call.result.output }}"},
        }}),
    )
    .await;
    let started = start(engine, "outer", json!({})).await;
    assert_eq!(work(engine, |it| if key(it) == "two" { failed("no") } else { with(json!(1)) }).await, ["one", "two"]);
    let inner = executions(engine, "inner").await;
    (started, inner[0].execution.id)
}

/// Whatever was to come by itself has its time, and nothing comes.
async fn nothing_more(place: &Place, engine: &Engine) {
    for _ in 0..5 {
        place.pass(HOUR);
        assert_eq!(work(engine, |_| with(json!(9))).await, Vec::<String>::new());
    }
}

stories! {
    fn retrying_an_execution_from_what_failed_supersedes_its_retry(place) {
        let engine = engine(&place).await;
        let started = half_done(&engine).await;
        let task = started.task.unwrap();
        place.pass(100_000);
        engine.retry_execution("default", started.execution, ana()).await.unwrap();
        let standing = engine.task("default", task).await.unwrap().stored.task;
        assert_eq!((standing.state, standing.next_retry_at, standing.cycle), (State::Running, None, 1));
        let why = engine.why("default", task).await.unwrap().text;
        assert!(why.starts_with(&format!("ana mended execution {}, which it stands for, in place of the retry at ", started.execution)), "{why}");
        assert_eq!(work(&engine, |_| with(json!(2))).await, ["two"]);
        assert_eq!(state(&engine, started.execution).await, ExecutionState::Succeeded);
        assert_eq!(task_state(&engine, task).await, State::Succeeded);
        nothing_more(&place, &engine).await;
        assert_eq!(executions(&engine, "w").await.len(), 1);
        let why = engine.why("default", task).await.unwrap().text;
        assert!(why.starts_with("run 2 succeeded; before that, ana mended execution "), "{why}");
        let acts = engine.audit(&AuditQuery { subject: Some(task.to_string()), limit: 10, ..AuditQuery::default() }).await.unwrap();
        let acts: Vec<_> = acts.iter().map(|it| (it.did.word(), it.actor.as_deref())).collect();
        assert_eq!(acts, [("task.take_up", Some("ana"))]);
    }

    fn retrying_a_task_supersedes_the_retry_of_its_execution(place) {
        let engine = engine(&place).await;
        let started = half_done(&engine).await;
        let two = step(&engine, started.execution, "two").await;
        engine.retry("default", two, ManualRetry { request: ana().into(), ..ManualRetry::default() }).await.unwrap();
        assert_eq!(task_state(&engine, started.task.unwrap()).await, State::Running);
        assert_eq!(work(&engine, |_| with(json!(2))).await, ["two"]);
        assert_eq!(task_state(&engine, started.task.unwrap()).await, State::Succeeded);
        nothing_more(&place, &engine).await;
        assert_eq!(executions(&engine, "w").await.len(), 1);
        let subject = started.task.map(|id| id.to_string());
        let acts = engine.audit(&AuditQuery { subject, limit: 10, ..AuditQuery::default() }).await.unwrap();
        let acts: Vec<_> = acts.iter().map(|it| (it.did.word(), it.actor.as_deref())).collect();
        assert_eq!(acts, [("task.take_up", Some("ana"))], "the audit names the task that was reached above");
    }

    fn a_repair_that_fails_again_leads_to_a_retry_of_a_new_cycle(place) {
        let engine = engine(&place).await;
        let started = half_done(&engine).await;
        engine.retry_execution("default", started.execution, ana()).await.unwrap();
        assert_eq!(work(&engine, |_| failed("still")).await, ["two"]);
        let standing = engine.task("default", started.task.unwrap()).await.unwrap().stored.task;
        assert_eq!((standing.state, standing.counters.attempt, standing.run), (State::RetryPending, 1, 2));
        place.pass(HOUR);
        assert_eq!(work(&engine, |_| with(json!(1))).await, ["one", "two"]);
        assert_eq!(task_state(&engine, started.task.unwrap()).await, State::Succeeded);
        let all = executions(&engine, "w").await;
        assert_eq!(all[1].origin.retry_of, Some(started.execution));
        assert_eq!(all.iter().map(|it| it.execution.parent.map(|it| it.1)).collect::<Vec<_>>(), [Some(2), Some(3)]);
    }

    /// The loop may be slower than the person.
    fn a_repair_comes_before_the_failure_was_heard(place) {
        let engine = engine(&place).await;
        put(&engine, "w", json!({"retry": in_an_hour(2), "steps": {"one": {}}})).await;
        let started = start(&engine, "w", json!({})).await;
        let leased = crate::world::lease(&engine, 1).await;
        crate::world::report(&engine, &leased[0], failed("no")).await.unwrap();
        assert_eq!(task_state(&engine, started.task.unwrap()).await, State::Running);
        engine.retry_execution("default", started.execution, ana()).await.unwrap();
        assert_eq!(work(&engine, |_| with(json!(2))).await, ["one"]);
        assert_eq!(task_state(&engine, started.task.unwrap()).await, State::Succeeded);
        nothing_more(&place, &engine).await;
    }

    fn beginning_from_the_start_supersedes_the_retry(place) {
        let engine = engine(&place).await;
        let started = half_done(&engine).await;
        let task = started.task.unwrap();
        let again = engine.restart_execution("default", started.execution, ana()).await.unwrap();
        assert_eq!((again.task, task_state(&engine, task).await), (Some(task), State::Running));
        let why = engine.why("default", task).await.unwrap().text;
        assert!(why.starts_with(&format!("ana began anew execution {}", started.execution)), "{why}");
        assert_eq!(work(&engine, |_| with(json!(2))).await, ["one", "two"]);
        assert_eq!(state(&engine, again.execution).await, ExecutionState::Succeeded);
        assert_eq!(task_state(&engine, task).await, State::Succeeded);
        nothing_more(&place, &engine).await;
        let all = executions(&engine, "w").await;
        let links: Vec<_> = all.iter().map(|it| (it.origin.retry_of, it.origin.retry_root, it.origin.retry_number)).collect();
        assert_eq!(links, [(None, None, 0), (Some(started.execution), Some(started.execution), 1)]);
    }

    fn beginning_from_the_start_under_a_key_happens_once(place) {
        let engine = engine(&place).await;
        let started = half_done(&engine).await;
        let key = |digest| comeback_engine::store::Idempotency { scope: "retry".into(), key: "k".into(), digest: [digest; 32] };
        let again = |digest| ActorRequest { act: ana(), once: Some(key(digest)) };
        let first = engine.restart_execution("default", started.execution, again(1)).await.unwrap();
        let second = engine.restart_execution("default", started.execution, again(1)).await.unwrap();
        assert_eq!((second.execution, second.repeated), (first.execution, true));
        let other = engine.restart_execution("default", started.execution, again(2)).await;
        assert!(matches!(other, Err(CommandError::IdempotencyMismatch)), "{other:?}");
        assert_eq!(executions(&engine, "w").await.len(), 2);
    }

    fn a_restart_of_what_is_over_well_is_an_execution_of_its_own(place) {
        let engine = engine(&place).await;
        let started = half_done(&engine).await;
        engine.retry_execution("default", started.execution, ana()).await.unwrap();
        work(&engine, |_| with(json!(2))).await;
        let again = engine.restart_execution("default", started.execution, ana()).await.unwrap();
        assert_eq!(again.task, None, "what stood for it has succeeded");
        assert_eq!(work(&engine, |_| with(json!(2))).await, ["one", "two"]);
        assert_eq!(state(&engine, again.execution).await, ExecutionState::Succeeded);
    }

    fn an_inner_execution_that_is_mended_ends_the_step_that_waits_for_its_retry(place) {
        let engine = engine(&place).await;
        let (started, inner) = half_done_inside(&engine, in_an_hour(2)).await;
        assert_eq!(states(&engine, started.execution, &["call"]).await, [State::RetryPending]);
        engine.retry_execution("default", inner, ana()).await.unwrap();
        assert_eq!(states(&engine, started.execution, &["call"]).await, [State::Running]);
        assert_eq!(work(&engine, |_| with(json!(7))).await, ["two", "after"]);
        assert_eq!(state(&engine, started.execution).await, ExecutionState::Succeeded);
        nothing_more(&place, &engine).await;
        assert_eq!((executions(&engine, "inner").await.len(), executions(&engine, "outer").await.len()), (1, 1));
    }

    /// Every level has given up or waits: the repair of a task at the bottom reaches all of them.
    fn a_repair_reaches_through_every_level_above(place) {
        let engine = engine(&place).await;
        put(&engine, "inner", json!({"steps": {"one": {}, "two": {"needs": ["one"]}}})).await;
        put(&engine, "middle", json!({"steps": {"call": {"call": "inner"}, "then": {"needs": ["call"]}}})).await;
        put(&engine, "outer", json!({"retry": in_an_hour(1), "steps": {"call": {"call": "middle"}, "last": {"needs": ["call"]}}})).await;
        let started = start(&engine, "outer", json!({})).await;
        assert_eq!(work(&engine, |it| if key(it) == "two" { failed("no") } else { with(json!(1)) }).await, ["one", "two"]);
        assert_eq!(states(&engine, started.execution, &["call", "last"]).await, [State::Failed, State::Skipped]);
        assert_eq!(task_state(&engine, started.task.unwrap()).await, State::RetryPending);
        let inner = executions(&engine, "inner").await[0].execution.id;
        let two = step(&engine, inner, "two").await;
        engine.retry("default", two, ManualRetry { request: ana().into(), ..ManualRetry::default() }).await.unwrap();
        assert_eq!(states(&engine, started.execution, &["call", "last"]).await, [State::Running, State::Waiting]);
        assert_eq!(task_state(&engine, started.task.unwrap()).await, State::Running);
        assert_eq!(work(&engine, |_| with(json!(1))).await, ["two", "then", "last"]);
        assert_eq!(task_state(&engine, started.task.unwrap()).await, State::Succeeded);
        nothing_more(&place, &engine).await;
        for workflow in ["inner", "middle", "outer"] {
            let all = executions(&engine, workflow).await;
            assert_eq!(all.iter().map(|it| it.execution.state).collect::<Vec<_>>(), [ExecutionState::Succeeded], "{workflow}");
        }
    }

    /// The other way: what failed inside is tried again, and what was done there is kept.
    fn retrying_an_outer_execution_from_what_failed_mends_the_inner_one(place) {
        let engine = engine(&place).await;
        put(&engine, "inner", json!({"steps": {"one": {}, "two": {"needs": ["one"]}}})).await;
        put(&engine, "outer", json!({"steps": {"call": {"call": "inner"}, "after": {"needs": ["call"]}}})).await;
        let started = start(&engine, "outer", json!({})).await;
        work(&engine, |it| if key(it) == "two" { failed("no") } else { with(json!(1)) }).await;
        assert_eq!(state(&engine, started.execution).await, ExecutionState::Failed);
        engine.retry_execution("default", started.execution, ana()).await.unwrap();
        assert_eq!(work(&engine, |_| with(json!(1))).await, ["two", "after"]);
        assert_eq!(state(&engine, started.execution).await, ExecutionState::Succeeded);
        assert_eq!(executions(&engine, "inner").await.len(), 1);
    }

    fn an_inner_execution_that_is_begun_anew_ends_the_step_above(place) {
        let engine = engine(&place).await;
        let (started, inner) = half_done_inside(&engine, json!({"max_retries": 0})).await;
        assert_eq!(state(&engine, started.execution).await, ExecutionState::Failed);
        engine.restart_execution("default", inner, ana()).await.unwrap();
        assert_eq!(work(&engine, |_| with(json!(7))).await, ["one", "two", "after"]);
        assert_eq!(state(&engine, started.execution).await, ExecutionState::Succeeded);
        nothing_more(&place, &engine).await;
        assert_eq!(executions(&engine, "inner").await.len(), 2);
    }

    /// Nobody waits for it any more, or another one does it.
    fn what_was_replaced_or_canceled_above_is_not_mended(place) {
        let engine = engine(&place).await;
        let started = half_done(&engine).await;
        place.pass(HOUR);
        assert_eq!(work(&engine, |it| if key(it) == "two" { failed("no") } else { with(json!(1)) }).await, ["one", "two"]);
        let refused = engine.retry_execution("default", started.execution, ana()).await.unwrap_err().to_string();
        assert_eq!(refused, "an execution that is failed cannot be retried: another execution was begun in its place");
        let two = step(&engine, started.execution, "two").await;
        let refused = engine.retry("default", two, ManualRetry::default()).await.unwrap_err().to_string();
        assert_eq!(refused, "a task that is failed cannot be retried: another execution was begun in its place");

        let (outer, inner) = half_done_inside(&engine, in_an_hour(2)).await;
        engine.cancel_execution("default", outer.execution, ana()).await.unwrap();
        let refused = engine.retry_execution("default", inner, ana()).await.unwrap_err().to_string();
        assert_eq!(refused, "an execution that is failed cannot be retried: the step that stood for the execution was canceled");
    }

    /// Whoever cancels the retry of an execution may still mend it: it goes on by itself.
    fn an_execution_whose_retry_was_canceled_is_mended_by_itself(place) {
        let engine = engine(&place).await;
        let started = half_done(&engine).await;
        engine.cancel("default", started.task.unwrap(), ana()).await.unwrap();
        engine.retry_execution("default", started.execution, ana()).await.unwrap();
        assert_eq!(work(&engine, |_| with(json!(1))).await, ["two"]);
        assert_eq!(state(&engine, started.execution).await, ExecutionState::Succeeded);
        nothing_more(&place, &engine).await;
    }

    fn a_repair_leaves_what_stands_for_it_paused(place) {
        let engine = engine(&place).await;
        let started = half_done(&engine).await;
        let task = started.task.unwrap();
        engine.pause("default", task, ana()).await.unwrap();
        engine.retry_execution("default", started.execution, ana()).await.unwrap();
        let standing = engine.task("default", task).await.unwrap().stored.task;
        assert_eq!((standing.state, standing.paused_from), (State::Paused, Some(State::Running)));
        assert_eq!(work(&engine, |_| with(json!(1))).await, ["two"]);
        assert_eq!(task_state(&engine, task).await, State::Succeeded);
        nothing_more(&place, &engine).await;
    }

    /// The moment when the retry is due: one of both wins, and `one` runs again only where the loop did.
    fn a_repair_against_the_retry_that_is_due(place) {
        let (one, two) = (engine(&place).await, engine(&place).await);
        let started = half_done(&one).await;
        place.pass(HOUR);
        let (repaired, ticked) = tokio::join!(one.retry_execution("default", started.execution, ana()), two.tick());
        ticked.unwrap();
        let order = work(&two, |_| with(json!(1))).await;
        let all = executions(&one, "w").await.len();
        match repaired {
            Ok(_) => assert_eq!((order, all), (vec!["two".to_owned()], 1)),
            Err(_) => assert_eq!((order, all), (vec!["one".to_owned(), "two".to_owned()], 2)),
        }
        assert_eq!(task_state(&one, started.task.unwrap()).await, State::Succeeded);
        nothing_more(&place, &one).await;
    }

    fn a_loop_is_mended_by_a_retry_of_its_item_of_itself_or_of_the_whole(place) {
        let engine = engine(&place).await;
        put(&engine, "loop", json!({"steps": {"load": {"foreach": [1, 2, 3]}, "after": {"needs": ["load"]}}})).await;
        for way in ["load[1]", "load", "whole"] {
            let started = start(&engine, "loop", json!({})).await;
            work(&engine, |it| if key(it) == "load[1]" { failed("no") } else { with(json!(1)) }).await;
            assert_eq!(states(&engine, started.execution, &["load", "after"]).await, [State::Failed, State::Skipped]);
            if way == "whole" {
                engine.retry_execution("default", started.execution, ana()).await.unwrap();
            } else {
                let id = step(&engine, started.execution, way).await;
                engine.retry("default", id, ManualRetry::default()).await.unwrap();
            }
            assert_eq!(states(&engine, started.execution, &["load[1]", "load", "after"]).await, [State::Pending, State::Waiting, State::Waiting], "{way}");
            assert_eq!(work(&engine, |_| with(json!(1))).await, ["load[1]", "after"], "{way}");
            assert_eq!(state(&engine, started.execution).await, ExecutionState::Succeeded, "{way}");
        }
    }

    fn a_loop_of_which_another_item_failed_too_waits_for_both(place) {
        let engine = engine(&place).await;
        put(&engine, "loop", json!({"steps": {"load": {"foreach": [1, 2, 3], "sequential": true}, "after": {"needs": ["load"]}}})).await;
        let started = start(&engine, "loop", json!({})).await;
        work(&engine, |it| if key(it) == "load[1]" { failed("no") } else { with(json!(1)) }).await;
        let item = step(&engine, started.execution, "load[1]").await;
        engine.retry("default", item, ManualRetry::default()).await.unwrap();
        assert_eq!(work(&engine, |it| if key(it) == "load[2]" { failed("no") } else { with(json!(1)) }).await, ["load[1]", "load[2]"]);
        assert_eq!(states(&engine, started.execution, &["load", "after"]).await, [State::Failed, State::Skipped]);
        let load = step(&engine, started.execution, "load").await;
        engine.retry("default", load, ManualRetry::default()).await.unwrap();
        assert_eq!(work(&engine, |_| with(json!(1))).await, ["load[2]", "after"]);
        assert_eq!(state(&engine, started.execution).await, ExecutionState::Succeeded);
    }

    /// A round stands for an execution: who mends that mends the loop.
    fn a_loop_of_executions_is_mended_from_inside(place) {
        let engine = engine(&place).await;
        put(&engine, "inner", json!({"steps": {"one": {"payload": "{{ input.n }}"}, "two": {"needs": ["one"]}}})).await;
        put(&engine, "outer", json!({"steps": {
            "calls": {"foreach": [1, 2], "call": "inner", "with": {"n": "{{ item }}"}, "retry": in_an_hour(0)},
            "after": {"needs": ["calls"]},
        }})).await;
        let started = start(&engine, "outer", json!({})).await;
        work(&engine, |it| if key(it) == "two" { failed("no") } else { with(json!(1)) }).await;
        assert_eq!(states(&engine, started.execution, &["calls", "after"]).await, [State::Failed, State::Skipped]);
        for inner in executions(&engine, "inner").await {
            engine.retry_execution("default", inner.execution.id, ana()).await.unwrap();
        }
        assert_eq!(work(&engine, |_| with(json!(1))).await, ["two", "two", "after"]);
        assert_eq!(state(&engine, started.execution).await, ExecutionState::Succeeded);
        assert_eq!(executions(&engine, "inner").await.len(), 2);
    }

    /// E8.
    fn a_retry_of_an_execution_names_the_one_before_and_the_first(place) {
        let engine = engine(&place).await;
        put(&engine, "w", json!({"retry": in_an_hour(2), "steps": {"a": {}}})).await;
        let first = start(&engine, "w", json!({})).await.execution;
        for _ in 0..3 {
            work(&engine, |_| failed("no")).await;
            place.pass(HOUR);
        }
        let all = executions(&engine, "w").await;
        let links: Vec<_> = all.iter().map(|it| (it.origin.retry_of, it.origin.retry_root, it.origin.retry_number)).collect();
        let second = all[1].execution.id;
        assert_eq!(links, [(None, None, 0), (Some(first), Some(first), 1), (Some(second), Some(first), 2)]);
    }

    fn a_retry_that_is_refused_says_what_its_execution_came_to(place) {
        let engine = engine(&place).await;
        put(&engine, "w", json!({"steps": {"a": {}, "b": {}, "mend": {"needs": ["a"], "when": "failure"}}})).await;
        let why = async |canceled: bool| {
            let started = start(&engine, "w", json!({})).await;
            let leased = crate::world::lease(&engine, 1).await;
            crate::world::report(&engine, &leased[0], failed("no")).await.unwrap();
            if canceled {
                engine.cancel_execution("default", started.execution, ana()).await.unwrap();
            } else {
                work(&engine, |_| with(json!(1))).await;
            }
            let a = step(&engine, started.execution, "a").await;
            engine.retry("default", a, ManualRetry::default()).await.unwrap_err().to_string()
        };
        assert_eq!(why(true).await, "a task that is failed cannot be retried: its execution was canceled");
        assert_eq!(why(false).await, "a task that is failed cannot be retried: its execution has succeeded, since its failure was dealt with");
    }
}
