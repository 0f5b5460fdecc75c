//! One namespace cannot take from another what both share: calls, turns of the loop `flow`, readers; and nothing grows without end.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use comeback_core::filter::{Filter, Sort};
use comeback_core::transition::Actor;
use comeback_core::{ExecutionId, ExecutionState, Millis, Quotas, State, TaskId};
use comeback_engine::executors::{EgressPolicy, ExecutorOptions, Executors};
use comeback_engine::flow::Start;
use comeback_engine::store::{ExecutionQuery, Interactive, ListQuery, Listed, Loop, StepsOf, StoreError, interactive};
use comeback_engine::{Available, Engine, EngineConfig, ExecutorSpec, Limits, ReportEnd, Submit, TaskSpec};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::plain::{self, Plain, put, put_in};
use crate::stories;
use crate::world::{Place, lease, report, spec, state};

async fn engine(place: &Place, quotas: &[(&str, &str)], limits: Limits) -> Engine {
    let mut all = Quotas::default();
    for (name, value) in quotas {
        all.set(name, value).expect("a quota");
    }
    let executors = Available { http: true, command: false, timer: true };
    let config = EngineConfig { instance: "test".into(), quotas: all, limits, executors, ..EngineConfig::default() };
    let engine = Engine::without_loops(place.store().await, place.clock.clone(), config).await.expect("an engine");
    engine.read_workflows_with(Arc::new(Plain));
    engine
}

async fn executions(engine: &Engine, namespace: &str) -> Vec<(ExecutionId, ExecutionState)> {
    let query = ExecutionQuery { limit: 10_000, ..ExecutionQuery::default() };
    let found = engine.store().executions(namespace, &query).await.expect("executions");
    found.iter().map(|it| (it.execution.id, it.execution.state)).collect()
}

async fn tasks(engine: &Engine, namespace: &str, filter: &str) -> Vec<Listed> {
    let filter = Filter::parse(filter, engine.now()).expect("a filter");
    let query = ListQuery { filter, sort: Sort::Submitted, limit: 10_000, after: None, now: engine.now() };
    engine.store().list(namespace, &query).await.expect("a list").items
}

async fn execution_state(engine: &Engine, id: ExecutionId) -> ExecutionState {
    engine.store().execution("default", id).await.expect("the store").expect("an execution").execution.state
}

async fn start_in(engine: &Engine, namespace: &str, workflow: &str) -> ExecutionId {
    let start = Start { namespace: namespace.into(), workflow: workflow.into(), ..Start::default() };
    engine.start_workflow(start).await.expect("it starts").execution
}

/// Answers nothing, or everything at once; counts who came.
async fn listen(answers: bool) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/", listener.local_addr().expect("an address"));
    let count = Arc::new(AtomicUsize::new(0));
    let seen = count.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let seen = seen.clone();
            tokio::spawn(async move {
                let mut buffer = [0; 4_096];
                if stream.read(&mut buffer).await.is_err() {
                    return;
                }
                seen.fetch_add(1, Ordering::Relaxed);
                if answers {
                    let _ =
                        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").await;
                } else {
                    while stream.read(&mut buffer).await.is_ok_and(|read| read > 0) {}
                }
            });
        }
    });
    (url, count)
}

fn executors(engine: &Engine, concurrency: usize) -> Executors {
    let reach = EgressPolicy { everywhere: true, networks: Vec::new() };
    engine.start_executors(ExecutorOptions { reach, concurrency, ..ExecutorOptions::default() }).expect("executors")
}

fn call(url: &str) -> TaskSpec {
    let executor = ExecutorSpec::Http(json!({"type": "http", "url": url}).into());
    TaskSpec { executor, timeout: Some(Millis::from_secs(3_600)), ..spec("call", json!({"max_retries": 0})) }
}

async fn until<F: Future<Output = bool>>(what: &str, holds: impl Fn() -> F) {
    let give_up = Instant::now() + Duration::from_secs(30);
    while !holds().await {
        assert!(Instant::now() < give_up, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

stories! {
    /// M5.
    fn a_workflow_that_calls_itself_ends_at_the_depth_it_may_have(place) {
        let engine = engine(&place, &[("workflow_depth", "3")], Limits::default()).await;
        put(&engine, "bomb", json!({"steps": {"a": {"call": "bomb", "retry": {"max_retries": 3, "delay": "1s"}}}})).await;
        let root = plain::start(&engine, "bomb", json!({})).await.expect("it starts").execution;
        engine.tick().await.expect("the loops work");
        for _ in 0..5 {
            place.pass(60_000);
            engine.tick().await.expect("the loops work");
        }
        assert_eq!(execution_state(&engine, root).await, ExecutionState::Failed);
        let all = executions(&engine, "default").await;
        assert_eq!(all.len(), 4, "the root and three below it, and none of them again: {all:?}");
        for task in tasks(&engine, "default", "state:failed").await {
            let error = task.last_error.expect("an error");
            assert!(error.contains("the quota `workflow_depth`"), "{error}");
        }
    }

    /// M5.
    fn a_root_has_so_many_tasks_and_no_more(place) {
        let engine = engine(&place, &[("tasks_per_root", "60")], Limits::default()).await;
        put(&engine, "bomb", json!({"steps": {"a": {"foreach": [1, 2, 3, 4], "call": "bomb"}}})).await;
        let root = plain::start(&engine, "bomb", json!({})).await.expect("it starts").execution;
        engine.tick().await.expect("the loops work");
        assert_eq!(execution_state(&engine, root).await, ExecutionState::Failed);
        let all = tasks(&engine, "default", "").await;
        assert!((40..=60).contains(&all.len()), "{} tasks", all.len());
        assert_eq!(engine.store().tree(root).await.expect("the store").expect("a tree").tasks, all.len() as u64);
        let failed = tasks(&engine, "default", "state:failed tasks_per_root").await;
        assert!(!failed.is_empty(), "the quota is named");
        assert!(tasks(&engine, "default", "").await.iter().all(|it| !it.stored.task.state.is_open()));
    }

    /// M5.
    fn after_its_root_is_canceled_nothing_begins_below_it(place) {
        let engine = engine(&place, &[], Limits::default()).await;
        put(&engine, "bomb", json!({"steps": {"a": {"foreach": [1, 2, 3], "call": "bomb"}, "w": {}}})).await;
        let root = plain::start(&engine, "bomb", json!({})).await.expect("it starts").execution;
        for _ in 0..6 {
            engine.tick_loop(Loop::Flow).await.expect("the loop works");
        }
        let before = tasks(&engine, "default", "").await.len();
        assert!(before > 20, "{before}");
        engine.cancel_execution("default", root, Actor::default()).await.expect("canceled");
        engine.tick().await.expect("the loops work");
        assert_eq!(tasks(&engine, "default", "").await.len(), before, "nothing new was made");
        let all = executions(&engine, "default").await;
        assert!(all.iter().all(|(_, state)| *state == ExecutionState::Canceled), "{all:?}");
    }

    /// M5.
    fn a_namespace_with_much_to_begin_leaves_the_others_their_turn(place) {
        let engine = engine(&place, &[], Limits::default()).await;
        let items: Vec<u32> = (0..300).collect();
        put_in(&engine, "red", "bomb", json!({"steps": {"a": {"foreach": items, "call": "leaf"}}})).await;
        put_in(&engine, "red", "leaf", json!({"steps": {"w": {"if": "true"}}})).await;
        put_in(&engine, "blue", "outer", json!({"steps": {"a": {"call": "inner"}}})).await;
        put_in(&engine, "blue", "inner", json!({"steps": {"w": {"if": "true"}}})).await;
        start_in(&engine, "red", "bomb").await;
        engine.tick_loop(Loop::Flow).await.expect("the loop works");
        start_in(&engine, "blue", "outer").await;
        let progress = engine.tick_loop(Loop::Flow).await.expect("the loop works");
        assert!(progress.more && progress.moved < 300, "{progress:?}");
        assert_eq!(executions(&engine, "blue").await.len(), 2, "blue's call has begun");
        engine.tick_loop(Loop::Flow).await.expect("the loop works");
        assert_eq!(tasks(&engine, "blue", "kind:w state:pending").await.len(), 1, "and its gate is open");
        assert!(executions(&engine, "red").await.len() < 300);
        engine.tick().await.expect("the loops work");
        assert_eq!(executions(&engine, "red").await.len(), 301, "red comes to its end too");
    }

    /// M6.
    fn a_loop_whose_results_are_too_large_together_fails_by_name(place) {
        let engine = engine(&place, &[], Limits { result_bytes: 2_000, ..Limits::default() }).await;
        let items: Vec<u32> = (0..30).collect();
        put(&engine, "gather", json!({"steps": {"each": {"foreach": items}, "after": {"needs": ["each"]}}})).await;
        let root = plain::start(&engine, "gather", json!({})).await.expect("it starts").execution;
        loop {
            engine.tick().await.expect("the loops work");
            let leased = lease(&engine, 100).await;
            if leased.is_empty() {
                break;
            }
            for it in leased {
                let result = Some(json!("x".repeat(100)).into());
                report(&engine, &it, ReportEnd::Succeeded { result }).await.expect("reported");
            }
        }
        assert_eq!(execution_state(&engine, root).await, ExecutionState::Failed);
        let failed = tasks(&engine, "default", "state:failed").await;
        let error = failed[0].last_error.clone().expect("an error");
        assert!(failed.len() == 1 && error.contains("result_bytes") && error.contains("30 rounds"), "{error}");
        // Sizes are told without the results.
        let keys: Vec<String> = (0..30).map(|n| format!("each[{n}]")).collect();
        let steps = engine.store().steps(root, StepsOf::Keys(&keys), 500).await.expect("steps");
        assert!(steps.iter().all(|step| step.result.is_none() && step.result_bytes == 102));
        let few = engine.store().steps(root, StepsOf::Keys(&keys[..4]), 500).await.expect("steps");
        assert!(few.iter().all(|step| step.result.is_some()));
    }

    /// M6: what a text sees.
    fn a_step_that_names_more_than_fits_fails_by_name(place) {
        let engine = engine(&place, &[], Limits::default()).await;
        let mut steps: serde_json::Map<String, Value> = (0..70).map(|n| (format!("s{n}"), json!({}))).collect();
        let needs: Vec<String> = steps.keys().cloned().collect();
        let named: Vec<String> = needs.iter().map(|name| format!("{{{{ steps.{name}.result | length }}}}")).collect();
        steps.insert("all".into(), json!({"needs": needs, "payload": named}));
        put(&engine, "large", json!({"steps": steps})).await;
        let root = plain::start(&engine, "large", json!({})).await.expect("it starts").execution;
        for it in lease(&engine, 100).await {
            let result = Some(json!("x".repeat(250_000)).into());
            report(&engine, &it, ReportEnd::Succeeded { result }).await.expect("reported");
        }
        engine.tick().await.expect("the loops work");
        assert!(lease(&engine, 100).await.is_empty());
        assert_eq!(execution_state(&engine, root).await, ExecutionState::Failed);
        let failed = tasks(&engine, "default", "state:failed").await;
        let error = failed[0].last_error.clone().expect("an error");
        assert!(error.contains("bytes together"), "{error}");
    }

    /// H3.
    fn calls_that_are_never_answered_hold_the_quota_of_their_namespace_only(place) {
        let engine = engine(&place, &[("calls", "3"), ("deliveries", "3")], Limits::default()).await;
        let ((tarpit, stuck), (fine, answered)) = (listen(false).await, listen(true).await);
        let _executors = executors(&engine, 8);
        let many = (0..40).map(|_| call(&tarpit)).collect();
        engine.submit(Submit { tasks: many, ..Submit::one("red", call(&tarpit)) }).await.expect("red submits");
        until("red's quota is used", || async { stuck.load(Ordering::Relaxed) >= 3 }).await;
        for n in 0..20 {
            let blue = engine.submit(Submit::one("blue", call(&fine))).await.expect("blue submits").tasks[0].id;
            let began = Instant::now();
            until("blue's call is made", || async {
                let found = engine.task("blue", blue).await.expect("a task");
                found.stored.task.state == State::Succeeded
            })
            .await;
            assert!(began.elapsed() < Duration::from_secs(10), "call {n} took {:?}", began.elapsed());
        }
        assert_eq!(answered.load(Ordering::Relaxed), 20);
        assert_eq!(stuck.load(Ordering::Relaxed), 3, "red holds its quota");
        let running = tasks(&engine, "red", "state:running").await.len();
        assert_eq!(running, 3, "and nothing is leased that nobody runs");
        // Deliveries have slots of their own: red's own end calls go out while its calls are stuck.
        let hooks = Some(json!({"success": [{"url": fine}]}).into());
        let told = engine.submit(Submit::one("red", TaskSpec { hooks, ..spec("told", json!({"max_retries": 0})) })).await;
        told.expect("red submits");
        let request = comeback_engine::LeaseRequest::new("red", "w");
        let leased = engine.lease(request).await.expect("a lease").remove(0);
        report(&engine, &leased, ReportEnd::Succeeded { result: None }).await.expect("reported");
        until("the end call is made", || async { answered.load(Ordering::Relaxed) == 21 }).await;
    }

    /// H3.
    fn a_call_is_cut_at_the_longest_time_that_the_server_allows(place) {
        let limits = Limits { longest_call: Millis(300), ..Limits::default() };
        let engine = engine(&place, &[], limits).await;
        let (tarpit, _) = listen(false).await;
        let _executors = executors(&engine, 4);
        let id: TaskId = engine.submit(Submit::one("default", call(&tarpit))).await.expect("submitted").tasks[0].id;
        until("it is cut", || async { !state(&engine, id).await.is_open() }).await;
        let found = tasks(&engine, "default", "").await;
        let error = found[0].last_error.clone().expect("an error");
        assert!(error.contains("longest_call") && error.contains("hook"), "{error}");
    }

    /// H4.
    fn slow_searches_end_at_their_deadline_and_keep_nobody_waiting(place) {
        let engine = engine(&place, &[], Limits::default()).await;
        for _ in 0..3 {
            let many = (0..10_000).map(|n| TaskSpec { name: Some(format!("a task with a name of its own {n}")), ..TaskSpec::new("k") });
            let many = Submit { tasks: many.collect(), ..Submit::one("red", TaskSpec::new("k")) };
            engine.submit(many).await.expect("submitted");
        }
        let store = engine.store().clone();
        let words: Vec<String> = (0..15).map(|n| format!("-nothing{n}")).collect();
        let filter = format!("{} nowhere", words.join(" "));
        let query = ListQuery {
            filter: Filter::parse(&filter, engine.now()).expect("a filter"),
            sort: Sort::Submitted,
            limit: 10,
            after: None,
            now: engine.now(),
        };
        let reads = |namespace: &str, timeout: u64| Interactive {
            namespace: namespace.into(),
            timeout: Duration::from_millis(timeout),
            searches: 1,
        };
        let began = Instant::now();
        store.list("red", &query).await.expect("the engine's own has no deadline");
        let whole = began.elapsed();
        // The deadline.
        let began = Instant::now();
        let late = interactive(reads("red", 5), store.list("red", &query)).await;
        assert!(matches!(late, Err(StoreError::SearchTimeout(_))), "{late:?}");
        assert!(began.elapsed() < whole.max(Duration::from_secs(1)), "{:?} of {whole:?}", began.elapsed());
        // Many of red at once: the engine reads beside them, and so does blue.
        let searches: Vec<_> = (0..20)
            .map(|_| {
                let (store, query, reads) = (store.clone(), query.clone(), reads("red", 60_000));
                tokio::spawn(async move {
                    loop {
                        let _ = interactive(reads.clone(), store.list("red", &query)).await;
                    }
                })
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(100)).await;
        let slowest = whole.max(Duration::from_millis(500));
        for _ in 0..10 {
            let began = Instant::now();
            store.next_due().await.expect("a loop's read");
            store.meta("lease_key").await.expect("what /readyz reads");
            assert!(began.elapsed() < slowest, "{:?}", began.elapsed());
            let began = Instant::now();
            interactive(reads("blue", 5_000), store.executions("blue", &ExecutionQuery::default())).await.expect("a search");
            interactive(reads("red", 5_000), store.task("red", TaskId(uuid::Uuid::nil()))).await.expect("one task");
            assert!(began.elapsed() < slowest, "{:?}", began.elapsed());
        }
        // Callers that have gone leave nothing running.
        for search in &searches {
            search.abort();
        }
        let began = Instant::now();
        interactive(reads("red", 5_000), store.executions("red", &ExecutionQuery::default())).await.expect("a search");
        assert!(began.elapsed() < slowest, "{:?}", began.elapsed());
    }
}
