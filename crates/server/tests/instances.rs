//! Who is there: instances and the workers that ask them, as every instance tells it.

use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::http::Request;
use comeback_core::{Millis, Timestamp};
use comeback_engine::store::{SqliteOptions, SqliteStore, Store};
use comeback_engine::{Engine, EngineConfig, VirtualClock};
use comeback_server::{App, AppOptions};
use serde_json::{Value, json};
use tower::ServiceExt;

async fn instance(name: &str, store: Arc<dyn Store>, clock: Arc<VirtualClock>) -> Arc<App> {
    let engine = Engine::without_loops(store, clock.clone(), EngineConfig::default()).await.expect("an engine");
    let options = AppOptions { instance: name.into(), clock: Some(clock), ..AppOptions::default() };
    App::new(engine, options).await.expect("an app")
}

async fn send(app: &Arc<App>, method: &str, path: &str, body: Value) -> (u16, Value) {
    let request =
        Request::builder().method(method).uri(format!("/api/v1{path}")).header("content-type", "application/json");
    let body = if body.is_null() { Body::empty() } else { Body::from(body.to_string()) };
    let answer = app.router().oneshot(request.body(body).expect("a request")).await.expect("an answer");
    let status = answer.status().as_u16();
    let bytes = to_bytes(answer.into_body(), 1 << 20).await.expect("a body");
    (status, serde_json::from_slice(&bytes).expect("JSON"))
}

async fn names(app: &Arc<App>, path: &str, field: &str) -> Vec<String> {
    let (_, page) = send(app, "GET", path, Value::Null).await;
    page["items"].as_array().expect("items").iter().map(|it| it[field].as_str().expect("a name").to_owned()).collect()
}

/// F4-9, S2-113: they are seen from everywhere as long as they say that they live, and no longer.
#[tokio::test]
async fn whoever_is_silent_is_gone() {
    let store = Arc::new(SqliteStore::open(&SqliteOptions::in_memory()).expect("a store"));
    let clock = VirtualClock::new(Timestamp(1_800_000_000_000));
    let other = instance("other", store.clone(), clock.clone()).await;
    send(&other, "POST", "/leases", json!({"worker": "theirs"})).await;
    // The next sign of life tells of the worker too.
    let one = instance("one", store, clock.clone()).await;
    send(&one, "POST", "/leases", json!({"worker": "ours"})).await;
    let soon = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while names(&one, "/admin/workers", "name").await != ["ours", "theirs"] {
        assert!(std::time::Instant::now() < soon, "{:?}", names(&one, "/admin/workers", "name").await);
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert_eq!(names(&one, "/admin/instances", "id").await, ["one", "other"]);
    drop(other);
    clock.advance(Millis::from_secs(61));
    assert_eq!(names(&one, "/admin/instances", "id").await, ["one"]);
    assert_eq!(names(&one, "/admin/workers", "name").await, ["ours"]);
}

/// S2-113: every loop by its name; what the contract names and does not run here is refused and not feigned.
#[tokio::test]
async fn loops_are_listed_and_none_is_feigned() {
    let store = Arc::new(SqliteStore::open(&SqliteOptions::in_memory()).expect("a store"));
    let app = instance("one", store, VirtualClock::new(Timestamp(1_800_000_000_000))).await;
    let listed = names(&app, "/admin/loops", "name").await;
    let expected = ["retries", "starts", "reap", "timeout", "expire", "flow", "prune", "schedule", "dispatch", "hooks"];
    assert_eq!(listed, expected);
    let (status, problem) = send(&app, "POST", "/admin/retry-scheduler/pause", json!({"types": ["FAILED_JOBS"]})).await;
    assert_eq!((status, &problem["errors"][0]["path"]), (400, &json!("types[0]")), "{problem}");
    assert!(problem["detail"].as_str().is_some_and(|text| text.contains("FAILED_JOBS")), "{problem}");
}

/// While dispatch is paused nobody gets work, and whoever waits for it gets it when somebody resumes.
#[tokio::test]
async fn nobody_gets_work_while_dispatch_is_paused() {
    let store = Arc::new(SqliteStore::open(&SqliteOptions::in_memory()).expect("a store"));
    let app = instance("one", store, VirtualClock::new(Timestamp(1_800_000_000_000))).await;
    send(&app, "POST", "/tasks", json!({"kind": "k"})).await;
    send(&app, "POST", "/admin/loops/dispatch/pause", json!({"duration": "1h", "note": "deploy"})).await;
    let (_, leased) = send(&app, "POST", "/leases", json!({"worker": "w"})).await;
    assert_eq!(leased["leases"], json!([]));
    let ask = json!({"worker": "w", "wait": "20s"});
    let resumed = async {
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        send(&app, "POST", "/admin/loops/dispatch/resume", json!({})).await
    };
    let ((_, leased), _) = tokio::join!(send(&app, "POST", "/leases", ask), resumed);
    assert_eq!(leased["leases"].as_array().map(Vec::len), Some(1), "{leased}");
}

/// As many as the contract says where nothing is said.
#[tokio::test]
async fn ten_are_leased_where_nobody_says_how_many() {
    let store = Arc::new(SqliteStore::open(&SqliteOptions::in_memory()).expect("a store"));
    let app = instance("one", store, VirtualClock::new(Timestamp(1_800_000_000_000))).await;
    let tasks: Vec<Value> = (0..12).map(|_| json!({"kind": "k"})).collect();
    send(&app, "POST", "/tasks", json!({"tasks": tasks})).await;
    let (_, leased) = send(&app, "POST", "/leases", json!({"worker": "w"})).await;
    assert_eq!(leased["leases"].as_array().expect("leases").len(), 10);
}
