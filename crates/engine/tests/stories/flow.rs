//! Workflows: conditions, loops, executions inside executions, and executions that are tried again.

use std::collections::BTreeMap;
use std::sync::Arc;

use comeback_core::transition::Actor;
use comeback_core::{ExecutionId, ExecutionState, State};
use comeback_engine::flow::{Start, Started};
use comeback_engine::store::{ExecutionQuery, StepsOf};
use comeback_engine::{Engine, Leased, ReportEnd};
use serde_json::{Value, json};

use crate::plain::{self, Plain, put};
use crate::stories;
use crate::world::{Place, failed, lease, report};

pub async fn engine(place: &Place) -> Engine {
    let engine = place.engine().await;
    engine.read_workflows_with(Arc::new(Plain));
    engine
}

pub async fn start(engine: &Engine, name: &str, input: Value) -> Started {
    let started = plain::start(engine, name, input).await.expect("it starts");
    engine.tick().await.unwrap();
    started
}

pub fn with(result: Value) -> ReportEnd {
    ReportEnd::Succeeded { result: Some(result.into()) }
}

pub fn payload(leased: &Leased) -> Value {
    leased.payload.as_deref().map_or(Value::Null, |text| serde_json::from_str(text).unwrap())
}

pub fn key(leased: &Leased) -> &str {
    leased.key.as_deref().unwrap_or_default()
}

/// Works off what there is; `end` says how each step ends. The answer is the order in which they ran.
pub async fn work(engine: &Engine, end: impl Fn(&Leased) -> ReportEnd) -> Vec<String> {
    let mut order = Vec::new();
    loop {
        engine.tick().await.unwrap();
        let leased = lease(engine, 100).await;
        if leased.is_empty() {
            return order;
        }
        for it in leased {
            order.push(key(&it).to_owned());
            report(engine, &it, end(&it)).await.unwrap();
        }
    }
}

pub async fn state(engine: &Engine, id: ExecutionId) -> ExecutionState {
    engine.store().execution("default", id).await.unwrap().unwrap().execution.state
}

pub async fn states(engine: &Engine, id: ExecutionId, keys: &[&str]) -> Vec<State> {
    let keys: Vec<String> = keys.iter().map(|key| (*key).to_owned()).collect();
    let found = engine.store().steps(id, StepsOf::Keys(&keys), u64::MAX).await.unwrap();
    let by_key: BTreeMap<String, State> = found.into_iter().filter_map(|it| Some((it.key?, it.state))).collect();
    keys.iter().map(|key| by_key[key]).collect()
}

stories! {
    fn a_step_sees_the_input_and_what_others_left(place) {
        let engine = engine(&place).await;
        let document = json!({"input": {"unit": "EUR"}, "steps": {
            "load": {"payload": {"file": "{{ input.file }}", "try": "{{ attempt }}"}, "output": {"rows": "{{ result.n + 1 }}"}},
            "tell": {"needs": ["load"], "payload": {"text": "{{ steps.load.result.rows }} in {{ input.unit }}"}},
        }});
        put(&engine, "etl", document).await;
        let started = start(&engine, "etl", json!({"file": "a.csv"})).await;
        assert_eq!((started.version, started.task), (1, None));
        let leased = lease(&engine, 10).await;
        assert_eq!(payload(&leased[0]), json!({"file": "a.csv", "try": 1}));
        report(&engine, &leased[0], with(json!({"n": 41}))).await.unwrap();
        let leased = lease(&engine, 10).await;
        assert_eq!(payload(&leased[0]), json!({"text": "42 in EUR"}));
        report(&engine, &leased[0], with(json!(null))).await.unwrap();
        assert_eq!(state(&engine, started.execution).await, ExecutionState::Succeeded);
    }

    fn a_template_that_cannot_be_worked_out_fails_its_step_for_good(place) {
        let engine = engine(&place).await;
        put(&engine, "bad", json!({"steps": {"a": {"payload": "{{ input.nothing.at.all }}", "retry": {"max_retries": 5}}}})).await;
        let started = start(&engine, "bad", json!({})).await;
        assert!(lease(&engine, 10).await.is_empty());
        assert_eq!(states(&engine, started.execution, &["a"]).await, [State::Failed]);
        assert_eq!(state(&engine, started.execution).await, ExecutionState::Failed);
    }

    fn a_condition_that_does_not_hold_skips_its_step_and_what_needs_it(place) {
        let engine = engine(&place).await;
        let document = json!({"steps": {
            "count": {},
            "mail": {"needs": ["count"], "if": "steps.count.result.rows > 10"},
            "after": {"needs": ["mail"]},
            "first": {"if": "input.first"},
        }});
        put(&engine, "maybe", document).await;
        let few = start(&engine, "maybe", json!({"first": false})).await;
        let order = work(&engine, |_| with(json!({"rows": 3}))).await;
        assert_eq!(order, ["count"]);
        let skipped = State::Skipped;
        assert_eq!(states(&engine, few.execution, &["mail", "after", "first"]).await, [skipped, skipped, skipped]);
        assert_eq!(state(&engine, few.execution).await, ExecutionState::Succeeded);
        let many = start(&engine, "maybe", json!({"first": true})).await;
        let order = work(&engine, |_| with(json!({"rows": 11}))).await;
        assert_eq!(order, ["count", "first", "mail", "after"]);
        assert_eq!(state(&engine, many.execution).await, ExecutionState::Succeeded);
    }

    fn a_condition_with_a_mistake_in_it_fails_its_step(place) {
        let engine = engine(&place).await;
        put(&engine, "wrong", json!({"steps": {"a": {"if": "input.x.y > 1"}}})).await;
        let started = start(&engine, "wrong", json!({})).await;
        assert_eq!(states(&engine, started.execution, &["a"]).await, [State::Failed]);
        assert_eq!(state(&engine, started.execution).await, ExecutionState::Failed);
    }

    fn a_loop_goes_over_a_list_and_leaves_a_list(place) {
        let engine = engine(&place).await;
        let document = json!({"steps": {
            "list": {},
            "each": {"needs": ["list"], "foreach": "steps.list.result", "payload": {"n": "{{ item }}", "at": "{{ index }}"}},
            "sum": {"needs": ["each"], "payload": "{{ steps.each.result | sum }}"},
        }});
        put(&engine, "loop", document).await;
        let started = start(&engine, "loop", json!({})).await;
        let leased = lease(&engine, 10).await;
        report(&engine, &leased[0], with(json!([1, 2, 3]))).await.unwrap();
        engine.tick().await.unwrap();
        let rounds = lease(&engine, 10).await;
        assert_eq!(rounds.iter().map(key).collect::<Vec<_>>(), ["each[0]", "each[1]", "each[2]"]);
        assert_eq!(payload(&rounds[2]), json!({"n": 3, "at": 2}));
        for it in &rounds {
            let n = payload(it)["n"].as_i64().unwrap();
            report(&engine, it, with(json!(n * 10))).await.unwrap();
        }
        engine.tick().await.unwrap();
        let leased = lease(&engine, 10).await;
        assert_eq!(payload(&leased[0]), json!(60));
        report(&engine, &leased[0], with(json!(null))).await.unwrap();
        assert_eq!(state(&engine, started.execution).await, ExecutionState::Succeeded);
        assert_eq!(engine.store().execution("default", started.execution).await.unwrap().unwrap().execution.total, 6);
    }

    fn a_loop_over_nothing_succeeds(place) {
        let engine = engine(&place).await;
        put(&engine, "none", json!({"steps": {"each": {"foreach": []}, "after": {"needs": ["each"]}}})).await;
        let started = start(&engine, "none", json!({})).await;
        assert_eq!(work(&engine, |_| with(json!(1))).await, ["after"]);
        assert_eq!(state(&engine, started.execution).await, ExecutionState::Succeeded);
    }

    fn a_loop_never_runs_more_rounds_at_once_than_it_may(place) {
        let engine = engine(&place).await;
        put(&engine, "few", json!({"steps": {"each": {"foreach": [1, 2, 3, 4, 5], "limit": 2}}})).await;
        let started = start(&engine, "few", json!({})).await;
        let mut seen = 0;
        loop {
            engine.tick().await.unwrap();
            let leased = lease(&engine, 10).await;
            assert!(leased.len() <= 2);
            if leased.is_empty() {
                break;
            }
            seen += leased.len();
            for it in &leased {
                report(&engine, it, with(json!(null))).await.unwrap();
            }
        }
        assert_eq!(seen, 5);
        assert_eq!(state(&engine, started.execution).await, ExecutionState::Succeeded);
    }

    fn a_sequence_stops_at_its_first_failure_and_goes_on_when_that_is_retried(place) {
        let engine = engine(&place).await;
        put(&engine, "row", json!({"steps": {"each": {"foreach": ["a", "b", "c"], "sequential": true}}})).await;
        let started = start(&engine, "row", json!({})).await;
        let order = work(&engine, |it| if key(it) == "each[1]" { failed("no") } else { with(json!(key(it))) }).await;
        assert_eq!(order, ["each[0]", "each[1]"]);
        assert_eq!(states(&engine, started.execution, &["each[2]", "each"]).await, [State::Skipped, State::Failed]);
        assert_eq!(state(&engine, started.execution).await, ExecutionState::Failed);
        engine.retry_execution("default", started.execution, Actor::default()).await.unwrap();
        assert_eq!(work(&engine, |it| with(json!(key(it)))).await, ["each[1]", "each[2]"]);
        assert_eq!(state(&engine, started.execution).await, ExecutionState::Succeeded);
    }

    /// S1-85, model I-3: while a round waits for its retry nothing behind it moves.
    fn a_round_that_is_retried_holds_up_the_step_and_nothing_else(place) {
        let engine = engine(&place).await;
        let document = json!({"steps": {
            "each": {"foreach": [1, 2], "retry": {"strategy": "fixed", "delay": "10s", "max_retries": 2}},
            "after": {"needs": ["each"]},
        }});
        put(&engine, "again", document).await;
        let started = start(&engine, "again", json!({})).await;
        work(&engine, |it| if key(it) == "each[0]" { failed("no") } else { with(json!(2)) }).await;
        let waiting = State::Waiting;
        let now = states(&engine, started.execution, &["each[0]", "each[1]", "each", "after"]).await;
        assert_eq!(now, [State::RetryPending, State::Succeeded, waiting, waiting]);
        place.pass(10_000);
        assert_eq!(work(&engine, |_| with(json!(1))).await, ["each[0]", "after"]);
        assert_eq!(state(&engine, started.execution).await, ExecutionState::Succeeded);
    }

    fn what_a_loop_goes_over_must_be_a_list(place) {
        let engine = engine(&place).await;
        put(&engine, "odd", json!({"steps": {"each": {"foreach": "input.n"}}})).await;
        let started = start(&engine, "odd", json!({"n": 5})).await;
        assert_eq!(states(&engine, started.execution, &["each"]).await, [State::Failed]);
    }

    fn a_step_stands_for_an_execution_of_another_workflow(place) {
        let engine = engine(&place).await;
        put(&engine, "inner", json!({"input": {"by": 2}, "output": {"twice": "{{ steps.double.result }}"}, "steps": {
            "double": {"payload": "{{ input.n * input.by }}"},
        }})).await;
        put(&engine, "outer", json!({"steps": {
            "call": {"call": "inner", "with": {"n": "{{ input.start }}"}},
            "tell": {"needs": ["call"], "payload": "{{ steps.call.result.output.twice }}"},
        }})).await;
        let started = start(&engine, "outer", json!({"start": 21})).await;
        let leased = lease(&engine, 10).await;
        assert_eq!((key(&leased[0]), payload(&leased[0])), ("double", json!(42)));
        assert_eq!(states(&engine, started.execution, &["call", "tell"]).await, [State::Running, State::Waiting]);
        report(&engine, &leased[0], with(payload(&leased[0]))).await.unwrap();
        engine.tick().await.unwrap();
        let leased = lease(&engine, 10).await;
        assert_eq!((key(&leased[0]), payload(&leased[0])), ("tell", json!(42)));
        report(&engine, &leased[0], with(json!(null))).await.unwrap();
        assert_eq!(state(&engine, started.execution).await, ExecutionState::Succeeded);
        let inner = engine.store().executions("default", &ExecutionQuery { workflow: Some("inner".into()), limit: 5, ..Default::default() }).await.unwrap();
        assert_eq!(inner.len(), 1);
        assert!(inner[0].origin.parent.is_some());
    }

    fn a_loop_of_executions_leaves_what_each_came_to(place) {
        let engine = engine(&place).await;
        put(&engine, "inner", json!({"output": "{{ input.n }}", "steps": {"a": {}}})).await;
        put(&engine, "outer", json!({"steps": {
            "calls": {"foreach": [1, 2], "call": "inner", "with": {"n": "{{ item }}"}},
            "tell": {"needs": ["calls"], "payload": "{{ steps.calls.result[1].output }}"},
        }})).await;
        let started = start(&engine, "outer", json!({})).await;
        assert_eq!(work(&engine, |it| with(payload(it))).await, ["a", "a", "tell"]);
        assert_eq!(state(&engine, started.execution).await, ExecutionState::Succeeded);
    }

    /// An execution inside fails: the step that stands for it is retried with a new one, by its own policy.
    fn a_call_that_fails_is_tried_again_with_a_new_execution(place) {
        let engine = engine(&place).await;
        put(&engine, "inner", json!({"steps": {"a": {}}})).await;
        put(&engine, "outer", json!({"steps": {
            "call": {"call": "inner", "retry": {"strategy": "fixed", "delay": "1m", "max_retries": 1}},
        }})).await;
        let started = start(&engine, "outer", json!({})).await;
        work(&engine, |_| failed("no")).await;
        assert_eq!(states(&engine, started.execution, &["call"]).await, [State::RetryPending]);
        place.pass(60_000);
        assert_eq!(work(&engine, |_| with(json!(1))).await, ["a"]);
        assert_eq!(state(&engine, started.execution).await, ExecutionState::Succeeded);
    }

    fn who_cancels_the_outside_cancels_the_inside(place) {
        let engine = engine(&place).await;
        put(&engine, "inner", json!({"steps": {"a": {}}})).await;
        put(&engine, "outer", json!({"steps": {"call": {"call": "inner"}}})).await;
        let started = start(&engine, "outer", json!({})).await;
        engine.cancel_execution("default", started.execution, Actor::default()).await.unwrap();
        engine.tick().await.unwrap();
        let query = ExecutionQuery { workflow: Some("inner".into()), limit: 5, ..Default::default() };
        let inner = engine.store().executions("default", &query).await.unwrap();
        assert_eq!(inner[0].execution.state, ExecutionState::Canceled);
        assert!(lease(&engine, 10).await.is_empty());
    }

    /// S0-48..50, E8 and E9.
    fn an_execution_with_a_policy_is_tried_again_as_a_new_one(place) {
        let engine = engine(&place).await;
        let document = json!({"retry": {"strategy": "fixed", "delay": "7d", "max_retries": 2}, "steps": {"a": {"payload": "{{ input.n }}"}}});
        put(&engine, "whole", document).await;
        let started = start(&engine, "whole", json!({"n": 5})).await;
        let task = started.task.expect("a task stands for it");
        work(&engine, |_| failed("no")).await;
        assert_eq!(state(&engine, started.execution).await, ExecutionState::Failed);
        let waiting = engine.task("default", task).await.unwrap().stored.task;
        assert_eq!((waiting.state, waiting.counters.attempt), (State::RetryPending, 1));
        assert_eq!(waiting.next_retry_at, Some(place.now() + comeback_core::Millis::from_days(7)));
        // A new version does not change what is under way.
        put(&engine, "whole", json!({"steps": {"other": {}}})).await;
        place.pass(7 * 86_400_000);
        engine.tick().await.unwrap();
        let leased = lease(&engine, 10).await;
        assert_eq!((key(&leased[0]), payload(&leased[0])), ("a", json!(5)));
        report(&engine, &leased[0], with(json!(1))).await.unwrap();
        engine.tick().await.unwrap();
        assert_eq!(engine.task("default", task).await.unwrap().stored.task.state, State::Succeeded);
        let query = ExecutionQuery { parent: Some(task), limit: 5, ..Default::default() };
        let all = engine.store().executions("default", &query).await.unwrap();
        let shown: Vec<_> = all.iter().map(|it| (it.execution.state, it.origin.parent.map(|it| it.1))).collect();
        assert_eq!(shown, [(ExecutionState::Succeeded, Some(2)), (ExecutionState::Failed, Some(1))]);
        assert_eq!(all[1].execution.id, started.execution);
    }

    fn an_execution_that_runs_out_of_retries_is_dead(place) {
        let engine = engine(&place).await;
        put(&engine, "whole", json!({"retry": {"strategy": "immediate", "max_retries": 2}, "steps": {"a": {}}})).await;
        let started = start(&engine, "whole", json!({})).await;
        assert_eq!(work(&engine, |_| failed("no")).await.len(), 3);
        assert_eq!(engine.task("default", started.task.unwrap()).await.unwrap().stored.task.state, State::Dead);
    }

    /// F0-2, F0-11: the way it went, and what each step left.
    fn the_context_of_an_execution_is_what_its_steps_left(place) {
        let engine = engine(&place).await;
        put(&engine, "flow", json!({"steps": {
            "b": {},
            "a": {"needs": ["b"], "output": {"twice": "{{ result * 2 }}"}},
            "c": {"needs": ["a"]},
        }})).await;
        let started = start(&engine, "flow", json!({"n": 5})).await;
        for result in [1, 2] {
            place.pass(1_000);
            let leased = lease(&engine, 1).await;
            report(&engine, &leased[0], with(json!(result))).await.unwrap();
        }
        let context = engine.execution_context("default", started.execution).await.unwrap();
        assert_eq!((&context["input"], &context["path"], &context["more"]), (&json!({"n": 5}), &json!(["b", "a"]), &json!(false)));
        let steps = json!({
            "a": {"state": "succeeded", "result": {"twice": 4}},
            "b": {"state": "succeeded", "result": 1},
            "c": {"state": "pending"},
        });
        assert_eq!(context["steps"], steps);
        assert_eq!((&context["execution"]["workflow"], &context["execution"]["version"]), (&json!("flow"), &json!(1)));
        assert!(engine.execution_context("other", started.execution).await.is_err(), "it is another namespace's");
    }

    /// E8 and E9, for those who follow.
    fn retries_of_executions_are_told_in_the_feed(place) {
        let engine = engine(&place).await;
        put(&engine, "whole", json!({"retry": {"strategy": "fixed", "delay": "1h", "max_retries": 1}, "steps": {"a": {}}})).await;
        let started = start(&engine, "whole", json!({})).await;
        work(&engine, |_| failed("no")).await;
        let due = place.now() + comeback_core::Millis::from_secs(3_600);
        place.pass(3_600_000);
        work(&engine, |_| failed("no")).await;
        // A step that is tried again is no execution that is.
        put(&engine, "steps", json!({"steps": {"a": {"retry": {"strategy": "immediate", "max_retries": 1}}}})).await;
        start(&engine, "steps", json!({})).await;
        work(&engine, |_| failed("no")).await;
        let feed = engine.store().feed(None, 1_000).await.unwrap().events;
        let told: Vec<_> = feed.iter().filter(|it| it.event.kind.word().starts_with("execution.retry")).collect();
        let kinds: Vec<_> = told.iter().map(|it| (it.event.kind.word(), it.event.task)).collect();
        assert_eq!(kinds, [("execution.retry_scheduled", started.task), ("execution.retry_exhausted", started.task)]);
        assert_eq!(told[0].event.data["next_retry_at"], json!(due.to_rfc3339()));
        assert_eq!(told[0].event.data["last_error"], json!(format!("execution {} failed: `a`: no", started.execution)));
        assert_eq!(told[1].event.data["reason"], json!("attempts"));
    }

    /// I-14: nothing of it is in memory.
    fn another_instance_goes_on_where_the_first_stopped(place) {
        let first = engine(&place).await;
        put(&first, "inner", json!({"steps": {"a": {}}})).await;
        put(&first, "outer", json!({"steps": {
            "list": {},
            "calls": {"needs": ["list"], "foreach": "steps.list.result", "call": "inner"},
        }})).await;
        let started = start(&first, "outer", json!({})).await;
        let leased = lease(&first, 10).await;
        report(&first, &leased[0], with(json!([1, 2]))).await.unwrap();
        first.close().await;
        place.forget();
        let second = engine(&place).await;
        assert_eq!(work(&second, |_| with(json!(1))).await, ["a", "a"]);
        assert_eq!(state(&second, started.execution).await, ExecutionState::Succeeded);
    }

    fn two_instances_make_the_rounds_of_a_loop_once(place) {
        let (one, two) = (engine(&place).await, engine(&place).await);
        put(&one, "loop", json!({"steps": {"each": {"foreach": [1, 2, 3]}}})).await;
        let start = Start { namespace: "default".into(), workflow: "loop".into(), ..Start::default() };
        let started = one.start_workflow(start).await.unwrap();
        let (a, b) = tokio::join!(one.tick(), two.tick());
        a.unwrap();
        b.unwrap();
        let view = one.store().execution("default", started.execution).await.unwrap().unwrap();
        assert_eq!((view.execution.total, view.execution.open), (4, 4));
        assert_eq!(work(&two, |_| with(json!(1))).await.len(), 3);
        assert_eq!(state(&two, started.execution).await, ExecutionState::Succeeded);
    }

    fn a_start_under_a_key_happens_once(place) {
        let engine = engine(&place).await;
        put(&engine, "w", json!({"retry": {"strategy": "fixed", "delay": "1s", "max_retries": 1}, "steps": {"a": {}}})).await;
        let key = comeback_engine::store::Idempotency { scope: "executions".into(), key: "k".into(), digest: [1; 32] };
        let start = Start { namespace: "default".into(), workflow: "w".into(), idempotency: Some(key), ..Start::default() };
        let first = engine.start_workflow(start.clone()).await.unwrap();
        let again = engine.start_workflow(start).await.unwrap();
        assert_eq!((again.execution, again.task, again.repeated), (first.execution, first.task, true));
        assert_eq!(engine.store().executions("default", &ExecutionQuery { limit: 9, ..Default::default() }).await.unwrap().len(), 1);
    }

    /// "Chains of 1,000 and fan-outs of 5,000 work": each end looks at its own edges only.
    fn a_fan_out_of_thousands_is_worked_off(place) {
        let engine = engine(&place).await;
        let count = 5_000;
        let items: Vec<u32> = (0..count).collect();
        put(&engine, "wide", json!({"steps": {"each": {"foreach": items}, "after": {"needs": ["each"]}}})).await;
        let started = start(&engine, "wide", json!({})).await;
        let mut ran = 0;
        while ran < count {
            let leased = lease(&engine, 1_000).await;
            assert!(!leased.is_empty());
            ran += leased.len() as u32;
            let reports = leased.iter().map(|it| comeback_engine::Report { lease: it.lease, end: with(json!(1)) }).collect();
            for answer in engine.report(reports).await.unwrap() {
                answer.unwrap();
            }
        }
        assert_eq!(work(&engine, |_| with(json!(1))).await, ["after"]);
        assert_eq!(state(&engine, started.execution).await, ExecutionState::Succeeded);
    }
}
