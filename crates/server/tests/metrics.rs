//! What Prometheus reads, after a little of everything has happened.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::http::Request;
use comeback_core::{Millis, Timestamp};
use comeback_engine::store::{SqliteOptions, SqliteStore};
use comeback_engine::{Engine, EngineConfig, VirtualClock};
use comeback_server::{App, AppOptions};
use serde_json::{Value, json};
use tower::ServiceExt;

struct World {
    app: Arc<App>,
    clock: Arc<VirtualClock>,
}

impl World {
    async fn new() -> World {
        let store = Arc::new(SqliteStore::open(&SqliteOptions::in_memory()).expect("a store"));
        let clock = VirtualClock::new(Timestamp(1_700_000_000_000));
        let engine = Engine::without_loops(store, clock.clone(), EngineConfig::default()).await.expect("an engine");
        let options = AppOptions { instance: "one".into(), clock: Some(clock.clone()), ..AppOptions::default() };
        World { app: App::new(engine, options).await.expect("an app"), clock }
    }

    async fn ask(&self, method: &str, path: &str, body: Value) -> String {
        let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
        let body = if body.is_null() { Body::empty() } else { Body::from(body.to_string()) };
        let answer = self.app.router().oneshot(request.body(body).expect("a request")).await.expect("an answer");
        assert!(answer.status().is_success(), "{method} {path}: {}", answer.status());
        let bytes = to_bytes(answer.into_body(), 1 << 20).await.expect("a body");
        String::from_utf8(bytes.to_vec()).expect("text")
    }

    async fn post(&self, path: &str, body: Value) -> Value {
        serde_json::from_str(&self.ask("POST", &format!("/api/v1{path}"), body).await).expect("JSON")
    }

    async fn run(&self, report: Value) -> String {
        let leased = self.post("/leases", json!({"worker": "w"})).await;
        let mut report = report;
        report["lease"] = leased["leases"][0]["lease"].clone();
        self.post("/leases/report", json!({"reports": [report]})).await;
        leased["leases"][0]["task"]["id"].as_str().expect("an id").to_owned()
    }

    async fn pass(&self, ms: u64) {
        use comeback_engine::Clock;
        self.clock.set(self.clock.now() + Millis(ms));
        self.app.engine.tick().await.expect("a tick");
    }

    async fn metrics(&self) -> BTreeMap<String, f64> {
        let page = self.ask("GET", "/metrics", Value::Null).await;
        let line =
            |line: &str| line.rsplit_once(' ').map(|(name, value)| (name.to_owned(), value.parse().expect(line)));
        page.lines().filter(|line| !line.starts_with('#')).filter_map(line).collect()
    }
}

/// F1-19, S0-70 to S0-75, S1-33, S1-61 to S1-63, S2-88 to S2-92, S2-97, S2-98.
#[tokio::test]
async fn everything_that_happened_is_counted() {
    let w = World::new().await;
    let failed = json!({"outcome": "failed", "error": {"message": "x"}});
    let fixed = json!({"strategy": "fixed", "delay": "10s", "max_retries": 1});
    // One that recovers, one that runs out of retries and is retried by hand, one that is final, one that is lost, one to come.
    w.post("/tasks", json!({"kind": "k", "retry": fixed})).await;
    w.run(failed.clone()).await;
    assert_eq!(w.metrics().await["comeback_retries_pending"], 1.0);
    w.pass(10_000).await;
    w.run(json!({"outcome": "succeeded"})).await;
    w.post("/tasks", json!({"kind": "k", "retry": fixed})).await;
    w.run(failed.clone()).await;
    w.pass(10_000).await;
    let dead = w.run(failed.clone()).await;
    w.post(&format!("/tasks/{dead}/retry"), json!({})).await;
    w.run(json!({"outcome": "succeeded"})).await;
    w.post("/tasks", json!({"kind": "k"})).await;
    w.run(json!({"outcome": "failed", "error": {"class": "final", "message": "no"}})).await;
    w.post("/tasks", json!({"kind": "k", "retry": fixed})).await;
    w.post("/leases", json!({"worker": "w", "lease": "5s"})).await;
    w.pass(6_000).await;
    w.post("/tasks", json!({"kind": "k", "delay": "1h"})).await;
    let canceled = w.post("/tasks", json!({"kind": "k", "delay": "1h"})).await;
    w.post(&format!("/tasks/{}/cancel", canceled["tasks"][0]["id"].as_str().expect("an id")), json!({})).await;
    w.post("/admin/loops/reap/pause", json!({"duration": "1h"})).await;
    let found = w.metrics().await;
    let expected = [
        ("comeback_tasks_created_total", 6.0),
        ("comeback_tasks_completed_total{outcome=\"succeeded\",kind=\"k\"}", 2.0),
        ("comeback_tasks_completed_total{outcome=\"dead\",kind=\"k\"}", 1.0),
        ("comeback_tasks_completed_total{outcome=\"failed\",kind=\"k\"}", 1.0),
        ("comeback_tasks_cancelled_total", 1.0),
        ("comeback_attempts_started_total", 7.0),
        ("comeback_tasks_retried_total{kind=\"automatic\"}", 3.0),
        ("comeback_tasks_retried_total{kind=\"manual\"}", 1.0),
        ("comeback_retries_due_total", 2.0),
        ("comeback_retries_exhausted_total", 1.0),
        ("comeback_tasks_non_retryable_total", 1.0),
        ("comeback_tasks_stuck_recovered_total", 1.0),
        ("comeback_retries_by_strategy_total{strategy=\"fixed\"}", 3.0),
        ("comeback_retry_delay_seconds_sum", 30.0),
        ("comeback_retry_delay_seconds_count", 3.0),
        ("comeback_attempts_total{outcome=\"succeeded\",attempt=\"1\"}", 1.0),
        ("comeback_attempts_total{outcome=\"succeeded\",attempt=\"2\"}", 1.0),
        ("comeback_attempts_total{outcome=\"failed\",attempt=\"1\"}", 3.0),
        ("comeback_attempts_total{outcome=\"failed\",attempt=\"2\"}", 1.0),
        ("comeback_queue_size{queue=\"delayed\"}", 2.0),
        ("comeback_loop_paused{loop=\"reap\"}", 1.0),
        ("comeback_loop_paused{loop=\"retries\"}", 0.0),
        ("comeback_http_requests_refused_total{class=\"vital\"}", 0.0),
    ];
    for (name, value) in expected {
        assert_eq!(found.get(name), Some(&value), "{name}: {found:#?}");
    }
}

/// F1-19, S1-61, S1-62: every number that the dialects name is there under its name.
#[tokio::test]
async fn every_number_has_its_name() {
    const NAMES: &str = "tasks_created_total tasks_completed_total tasks_cancelled_total tasks_timed_out_total
        task_status_transitions_total tasks_by_status running_tasks_by_kind tasks_with_dependencies_total
        dependency_propagations_total tasks_unblocked_total tasks_failed_by_dependency_total
        tasks_canceled_dead_end_total webhook_executions_total webhook_attempts_total webhook_duration_seconds
        webhook_idempotent_skips_total webhook_idempotent_conflicts_total webhooks_in_flight
        tasks_blocked_by_concurrency_total task_duration_seconds task_wait_seconds worker_loop_iterations_total
        worker_loop_duration_seconds tasks_processed_per_loop db_query_duration_seconds slow_queries_total
        tasks_db_save_failures_total batch_update_failures_total retention_tasks_cleaned_total
        retention_cleanup_runs_total retention_cleanup_duration_seconds task_retry_total task_retry_exhausted_total";
    let w = World::new().await;
    let page = w.ask("GET", "/metrics", Value::Null).await;
    let missing: Vec<&str> =
        NAMES.split_whitespace().filter(|name| !page.contains(&format!("# TYPE comeback_{name} "))).collect();
    assert_eq!(missing, Vec::<&str>::new());
}

/// F1-19: neighbours, kinds, times, loops and queries.
#[tokio::test]
async fn what_happens_between_tasks_is_counted_too() {
    let w = World::new().await;
    let need = |on_unmet: &str| json!([{"task": "a", "on_unmet": on_unmet}]);
    let tasks = json!([{"key": "a", "kind": "k"}, {"key": "b", "kind": "k", "needs": need("fail")},
        {"key": "c", "kind": "k", "needs": need("skip")}]);
    w.post("/tasks", json!({"execution": {}, "tasks": tasks})).await;
    w.pass(2_000).await;
    w.run(json!({"outcome": "failed", "error": {"class": "final", "message": "no"}})).await;
    w.post("/tasks", json!({"execution": {}, "tasks": tasks})).await;
    w.run(json!({"outcome": "succeeded"})).await;
    w.post("/tasks", json!({"kind": "lone"})).await;
    w.pass(2_000).await;
    w.post("/leases", json!({"worker": "w", "kinds": ["lone"]})).await;
    let found = w.metrics().await;
    let expected = [
        ("comeback_tasks_with_dependencies_total", 4.0),
        ("comeback_dependency_propagations_total{parent_outcome=\"failed\"}", 2.0),
        ("comeback_dependency_propagations_total{parent_outcome=\"succeeded\"}", 2.0),
        ("comeback_tasks_unblocked_total", 2.0),
        ("comeback_tasks_failed_by_dependency_total", 1.0),
        ("comeback_tasks_completed_total{outcome=\"failed\",kind=\"k\"}", 2.0),
        ("comeback_tasks_completed_total{outcome=\"skipped\",kind=\"k\"}", 1.0),
        ("comeback_task_status_transitions_total{from_status=\"waiting\",to_status=\"pending\"}", 2.0),
        ("comeback_task_status_transitions_total{from_status=\"pending\",to_status=\"running\"}", 3.0),
        ("comeback_task_status_transitions_total{from_status=\"running\",to_status=\"succeeded\"}", 1.0),
        ("comeback_running_tasks_by_kind{kind=\"lone\"}", 1.0),
        ("comeback_task_wait_seconds_sum{kind=\"lone\"}", 2.0),
        ("comeback_task_wait_seconds_bucket{kind=\"lone\",le=\"2.5\"}", 1.0),
        ("comeback_task_wait_seconds_bucket{kind=\"lone\",le=\"0.5\"}", 0.0),
        ("comeback_db_query_duration_seconds_count{query=\"submit\"}", 3.0),
        ("comeback_tasks_db_save_failures_total", 0.0),
    ];
    for (name, value) in expected {
        assert_eq!(found.get(name), Some(&value), "{name}: {found:#?}");
    }
    assert!(found["comeback_worker_loop_iterations_total{loop=\"retries\"}"] >= 2.0);
}
