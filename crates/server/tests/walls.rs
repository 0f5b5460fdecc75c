//! What one namespace hears of another: nothing. What a caller hears of the server's secrets and mistakes: nothing, and the log
//! has it all.

use std::fmt::Write;
use std::sync::{Arc, Mutex};

use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use comeback_core::{Millis, Timestamp};
use comeback_engine::store::{SqliteOptions, SqliteStore, WorkerSeen};
use comeback_engine::{Available, Engine, EngineConfig, VirtualClock};
use comeback_server::auth::{NewKey, Role};
use comeback_server::{App, AppOptions};
use serde_json::{Value, json};
use tower::ServiceExt;

struct House {
    app: Arc<App>,
    clock: Arc<VirtualClock>,
    everywhere: String,
}

impl House {
    async fn new() -> House {
        let store = Arc::new(SqliteStore::open(&SqliteOptions::in_memory()).expect("a store"));
        let clock = VirtualClock::new(Timestamp(1_800_000_000_000));
        let executors = Available { http: true, command: true, timer: true };
        let config = EngineConfig { executors, ..EngineConfig::default() };
        let engine = Engine::without_loops(store, clock.clone(), config).await.expect("an engine");
        let app = App::new(engine, AppOptions { clock: Some(clock.clone()), ..AppOptions::default() }).await;
        let mut house = House { app: app.expect("an app"), clock, everywhere: String::new() };
        house.everywhere = house.key(Role::Admin, "*").await;
        house
    }

    async fn key(&self, role: Role, namespace: &str) -> String {
        let new = NewKey { name: None, role, namespace: namespace.into(), valid_for: None };
        self.app
            .keys
            .create(&**self.app.engine.store(), new, &Default::default(), self.app.engine.now())
            .await
            .expect("a key")
            .1
    }

    async fn text(&self, method: &str, path: &str, key: &str, namespace: Option<&str>, body: Value) -> String {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", "application/json")
            .header("authorization", format!("Bearer {key}"));
        if let Some(namespace) = namespace {
            request = request.header("comeback-namespace", namespace);
        }
        let body = if body.is_null() { Body::empty() } else { Body::from(body.to_string()) };
        let answer = self.app.router().oneshot(request.body(body).expect("a request")).await.expect("an answer");
        assert!(answer.status().is_success(), "{method} {path}: {}", answer.status());
        let bytes = to_bytes(answer.into_body(), 16 << 20).await.expect("a body");
        String::from_utf8(bytes.to_vec()).expect("text")
    }

    /// As the admin of all, in one namespace.
    async fn post(&self, namespace: &str, path: &str, body: Value) -> Value {
        let path = format!("/api/v1{path}");
        serde_json::from_str(&self.text("POST", &path, &self.everywhere, Some(namespace), body).await).expect("JSON")
    }

    async fn get(&self, path: &str, key: &str) -> Value {
        let path = format!("/api/v1{path}");
        serde_json::from_str(&self.text("GET", &path, key, None, Value::Null).await).expect("JSON")
    }
}

#[tokio::test]
async fn what_is_next_elsewhere_is_nobodys_business() {
    let house = House::new().await;
    let mine = house.key(Role::Viewer, "mine").await;
    house.post("other", "/tasks", json!({"kind": "k", "delay": "1m"})).await;
    let next = house.get("/stats", &mine).await["next"].clone();
    assert_eq!(next, json!({"retry": null, "start": null}));
    house.post("mine", "/tasks", json!({"kind": "k", "delay": "1h"})).await;
    house.post("mine", "/tasks", json!({"kind": "r", "retry": {"strategy": "fixed", "delay": "2h"}})).await;
    let leased = house.post("mine", "/leases", json!({"worker": "w"})).await;
    let report = json!({"lease": leased["leases"][0]["lease"], "outcome": "failed", "error": {"message": "x"}});
    house.post("mine", "/leases/report", json!({"reports": [report]})).await;
    let next = house.get("/stats", &mine).await["next"].clone();
    let at = |hours: u64| (house.app.engine.now() + Millis::from_secs(hours * 3600)).to_rfc3339();
    assert_eq!(next, json!({"retry": at(2), "start": at(1)}));
}

#[tokio::test]
async fn numbers_are_of_ones_own_namespace() {
    let house = House::new().await;
    let mine = house.key(Role::Viewer, "mine").await;
    for namespace in ["mine", "other", "other"] {
        house.post(namespace, "/tasks", json!({"kind": "k"})).await;
    }
    let own = house.text("GET", "/metrics", &mine, None, Value::Null).await;
    assert!(own.contains("tasks_by_status{namespace=\"mine\",status=\"pending\"} 1"), "{own}");
    assert!(own.contains("queue_size{queue=\"main\"} 1\n"), "{own}");
    assert!(!own.contains("namespace=\"other\""), "{own}");
    let all = house.text("GET", "/metrics", &house.everywhere, None, Value::Null).await;
    assert!(all.contains("{namespace=\"other\",status=\"pending\"} 2"), "{all}");
    assert!(all.contains("queue_size{queue=\"main\"} 3\n"), "{all}");
}

/// However many of others come first.
#[tokio::test]
async fn what_is_stuck_is_found_behind_what_is_stuck_elsewhere() {
    let house = House::new().await;
    let mine = house.key(Role::Viewer, "mine").await;
    let tasks: Vec<Value> = (0..600).map(|_| json!({"kind": "k"})).collect();
    house.post("other", "/tasks", json!({"tasks": tasks})).await;
    let leased = house.post("other", "/leases", json!({"worker": "w", "limit": 600, "lease": "1s"})).await;
    assert_eq!(leased["leases"].as_array().expect("leases").len(), 600);
    house.post("mine", "/tasks", json!({"kind": "k"})).await;
    house.post("mine", "/leases", json!({"worker": "w", "lease": "2s"})).await;
    house.clock.advance(Millis::from_secs(3));
    let stuck = house.get("/admin/tasks/stuck", &mine).await;
    assert_eq!(stuck["items"].as_array().expect("items").len(), 1, "{stuck}");
}

/// R-S19.
#[tokio::test]
async fn the_secrets_of_a_call_are_not_shown() {
    let house = House::new().await;
    let headers = json!({"Authorization": "Bearer secret", "X-Api-Key": "secret", "Cookie": "secret",
        "proxy-authorization": "secret", "x-colour": "blue"});
    let executor = json!({"type": "http", "url": "https://example.test/", "headers": headers});
    let made = house.post("mine", "/tasks", json!({"kind": "k", "executor": executor})).await;
    let id = made["tasks"][0]["id"].as_str().expect("an id");
    let mine = house.key(Role::Viewer, "mine").await;
    for path in [format!("/tasks/{id}"), "/tasks".to_owned()] {
        let shown = house.get(&path, &mine).await;
        assert!(!shown.to_string().contains("secret"), "{shown}");
    }
    let shown = house.get(&format!("/tasks/{id}"), &mine).await;
    assert_eq!(shown["executor"]["headers"]["x-colour"], "blue");
    assert_eq!(shown["executor"]["headers"]["Authorization"], "***");
}

/// Keeps every line of the log.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<String>>);

impl tracing::field::Visit for Log {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        let _ = write!(self.0.lock().expect("the log"), "{field}={value:?} ");
    }
}

impl tracing::Subscriber for Log {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut self.clone());
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

/// Who is told `instance` finds the line of the log that says why.
#[tokio::test]
async fn a_mistake_is_in_the_log_under_the_name_of_its_request() {
    let house = House::new().await;
    let log = Log::default();
    let _guard = tracing::subscriber::set_default(log.clone());
    let broken = WorkerSeen {
        namespace: "default".into(),
        name: "w".into(),
        seen_at: house.app.engine.now(),
        leased: 0,
        asks: Some("no JSON at all".into()),
    };
    house.app.engine.store().put_workers("", &[broken]).await.expect("written");
    let request = Request::get("/api/v1/admin/workers")
        .header("authorization", format!("Bearer {}", house.everywhere))
        .header("x-request-id", "the-one-that-failed")
        .body(Body::empty());
    let answer = house.app.router().oneshot(request.expect("a request")).await.expect("an answer");
    assert_eq!(answer.status(), StatusCode::INTERNAL_SERVER_ERROR);
    let told = to_bytes(answer.into_body(), 1 << 20).await.expect("a body");
    let told: Value = serde_json::from_slice(&told).expect("a problem");
    assert_eq!(told["instance"], "the-one-that-failed");
    assert!(!told.to_string().contains("worker w:"), "{told}");
    let log = log.0.lock().expect("the log").clone();
    assert!(log.contains("the-one-that-failed") && log.contains("worker w:"), "{log}");
}
