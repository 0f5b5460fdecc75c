//! Every route, for every role, in every namespace: generated from the table that the router itself is made of.

use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use comeback_engine::store::{SqliteOptions, SqliteStore};
use comeback_engine::{Engine, EngineConfig, SystemClock};
use comeback_server::auth::{Need, NewKey, Role};
use comeback_server::{App, Route};
use serde_json::Value;
use tower::ServiceExt;

use crate::place::{options, routes};

async fn app() -> Arc<App> {
    let store = Arc::new(SqliteStore::open(&SqliteOptions::in_memory()).expect("a store"));
    let engine = Engine::without_loops(store, SystemClock::new(), EngineConfig::default()).await.expect("an engine");
    App::new(engine, options()).await.expect("an app")
}

async fn key(app: &App, role: Role, namespace: &str) -> String {
    let new = NewKey { name: None, role, namespace: namespace.into(), valid_for: None };
    app.keys.create(&**app.engine.store(), new, &Default::default(), app.engine.now()).await.expect("a key").1
}

async fn revoke(app: &App, id: &str) -> bool {
    app.keys
        .revoke(&**app.engine.store(), id, |_| true, &Default::default(), app.engine.now())
        .await
        .expect("an answer")
}

fn request(method: &str, path: &str, key: &str, body: &str) -> Request<Body> {
    Request::builder()
        .method(method)
        .uri(format!("/api/v1{path}"))
        .header("content-type", "application/json")
        .header("authorization", format!("Bearer {key}"))
        .body(Body::from(body.to_owned()))
        .expect("a request")
}

async fn send(app: &Arc<App>, request: Request<Body>) -> (StatusCode, Value) {
    let answer = app.router().oneshot(request).await.expect("an answer");
    let status = answer.status();
    let bytes = to_bytes(answer.into_body(), 1 << 20).await.expect("a body");
    (status, serde_json::from_slice(&bytes).unwrap_or_default())
}

async fn status(app: &Arc<App>, route: &Route, key: Option<&str>, namespace: Option<&str>) -> StatusCode {
    let path = route
        .path
        .replace("{id}", "00000000-0000-7000-8000-000000000000")
        .replace("{name}", "reap")
        .replace("{kind}", "k")
        .replace("{path}", "w")
        .replace("{version}", "1");
    let mut request =
        Request::builder().method(route.method.clone()).uri(path).header("content-type", "application/json");
    if let Some(key) = key {
        request = request.header("authorization", format!("Bearer {key}"));
    }
    if let Some(namespace) = namespace {
        request = request.header("comeback-namespace", namespace);
    }
    let request = request.body(Body::from("{}")).expect("a request");
    // Only the head of the answer is looked at: a stream has no end.
    app.router().oneshot(request).await.expect("an answer").status()
}

#[tokio::test]
async fn every_route_asks_for_the_role_in_its_line() {
    let app = app().await;
    let admin = key(&app, Role::Admin, "*").await;
    for (role, namespace) in Role::ALL.iter().flat_map(|role| [(role, "*"), (role, "default")]) {
        let own = key(&app, *role, namespace).await;
        for route in routes() {
            let answer = status(&app, route, Some(&own), None).await;
            let refused = answer == StatusCode::FORBIDDEN;
            let may = role.may(route.need) && (namespace == "*" || route.need != Need::AdministerAll);
            let case = format!("{} {} for {role:?} of {namespace}: {answer}", route.method, route.path);
            assert_eq!(refused, !may, "{case}");
            assert_ne!(answer, StatusCode::UNAUTHORIZED, "{case}");
            // On a busy machine a loop may be late, and `/readyz` says so.
            assert!(!answer.is_server_error() || route.need == Need::Nothing, "{case}");
        }
    }
    for route in routes() {
        let is_open = route.need == Need::Nothing;
        for wrong in
            [None, Some("nonsense"), Some("cbk_0_0"), Some("cbk_000000000000_x"), Some(&admin[..admin.len() - 1])]
        {
            let answer = status(&app, route, wrong, None).await;
            assert_eq!(
                answer == StatusCode::UNAUTHORIZED,
                !is_open,
                "{} {} with {wrong:?}: {answer}",
                route.method,
                route.path
            );
        }
    }
}

#[tokio::test]
async fn a_key_is_good_for_its_own_namespace_only() {
    let app = app().await;
    key(&app, Role::Admin, "*").await;
    let own = key(&app, Role::Admin, "mine").await;
    let anywhere = key(&app, Role::Admin, "*").await;
    for route in routes().iter().filter(|route| route.need != Need::Nothing) {
        assert_eq!(status(&app, route, Some(&own), Some("other")).await, StatusCode::FORBIDDEN, "{}", route.path);
        let at_home = status(&app, route, Some(&own), Some("mine")).await;
        assert_eq!(at_home == StatusCode::FORBIDDEN, route.need == Need::AdministerAll, "{}", route.path);
        assert_ne!(status(&app, route, Some(&anywhere), Some("other")).await, StatusCode::FORBIDDEN, "{}", route.path);
    }
}

#[tokio::test]
async fn a_key_that_was_revoked_or_has_expired_opens_nothing() {
    let app = app().await;
    key(&app, Role::Admin, "*").await;
    let new =
        NewKey { name: None, role: Role::Admin, namespace: "*".into(), valid_for: Some(comeback_core::Millis(0)) };
    let (_, expired) =
        app.keys.create(&**app.engine.store(), new, &Default::default(), app.engine.now()).await.expect("a key");
    let new = NewKey { name: None, role: Role::Admin, namespace: "*".into(), valid_for: None };
    let (revoked, secret) =
        app.keys.create(&**app.engine.store(), new, &Default::default(), app.engine.now()).await.expect("a key");
    let stats = routes().iter().find(|route| route.path == "/api/v1/stats").expect("a route");
    assert_eq!(status(&app, stats, Some(&expired), None).await, StatusCode::UNAUTHORIZED);
    assert_eq!(status(&app, stats, Some(&secret), None).await, StatusCode::OK);
    assert!(revoke(&app, &revoked.id).await);
    assert_eq!(status(&app, stats, Some(&secret), None).await, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn no_route_is_there_twice() {
    let mut seen: Vec<String> = routes().iter().map(|route| format!("{} {}", route.method, route.path)).collect();
    let count = seen.len();
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), count);
}

/// An admin of one namespace is no admin of the house, and cannot make itself one.
#[tokio::test]
async fn an_admin_of_one_namespace_governs_its_keys_only() {
    let app = app().await;
    key(&app, Role::Admin, "*").await;
    let foreign = key(&app, Role::Worker, "other").await;
    let mine = key(&app, Role::Admin, "mine").await;
    for namespace in ["*", "other", "default"] {
        let body = format!(r#"{{"role": "admin", "namespace": "{namespace}"}}"#);
        let (status, problem) = send(&app, request("POST", "/keys", &mine, &body)).await;
        assert_eq!(status, StatusCode::FORBIDDEN, "{namespace}: {problem}");
    }
    let (status, made) = send(&app, request("POST", "/keys", &mine, r#"{"role": "worker"}"#)).await;
    assert_eq!((status, &made["namespace"]), (StatusCode::CREATED, &"mine".into()), "{made}");
    let (_, listed) = send(&app, request("GET", "/keys", &mine, "")).await;
    let seen: Vec<&Value> = listed["items"].as_array().expect("keys").iter().map(|key| &key["namespace"]).collect();
    assert_eq!(seen, ["mine", "mine"], "{listed}");
    let id = |secret: &str| secret.split('_').nth(1).expect("an id").to_owned();
    let (status, _) = send(&app, request("DELETE", &format!("/keys/{}", id(&foreign)), &mine, "")).await;
    assert_eq!(status, StatusCode::NOT_FOUND, "what is not theirs is not there");
    let own = made["id"].as_str().expect("an id");
    let (status, _) = send(&app, request("DELETE", &format!("/keys/{own}"), &mine, "")).await;
    assert_eq!(status, StatusCode::NO_CONTENT);
}

#[tokio::test]
async fn the_first_key_is_an_admins_for_all_namespaces() {
    let app = app().await;
    for body in [r#"{"role": "viewer"}"#, r#"{"role": "admin", "namespace": "mine"}"#] {
        assert_eq!(send(&app, request("POST", "/keys", "none", body)).await.0, StatusCode::BAD_REQUEST, "{body}");
    }
    let (status, first) = send(&app, request("POST", "/keys", "none", r#"{"role": "admin"}"#)).await;
    assert_eq!((status, &first["namespace"]), (StatusCode::CREATED, &"*".into()));
    let secret = first["key"].as_str().expect("a secret");
    let (_, worker) = send(&app, request("POST", "/keys", secret, r#"{"role": "worker"}"#)).await;
    assert_eq!(worker["namespace"], "default");
}

/// A server without keys trusts this machine, not the pages that a browser on it has open.
#[tokio::test]
async fn a_page_of_another_site_changes_nothing() {
    let app = app().await;
    let paused = async || app.engine.paused_loops().await.expect("loops").len();
    let post = |headers: &[(&str, &str)]| {
        let mut request = Request::post("/api/v1/admin/loops/reap/pause")
            .header("host", "localhost:7330")
            .header("content-length", 0);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(Body::empty()).expect("a request")
    };
    for strange in [
        &[("origin", "https://evil.example")][..],
        &[("origin", "null")],
        &[("sec-fetch-site", "cross-site")],
        &[("sec-fetch-site", "same-site")],
    ] {
        let (status, problem) = send(&app, post(strange)).await;
        assert_eq!((status, &problem["error"]), (StatusCode::FORBIDDEN, &"FORBIDDEN".into()), "{strange:?}");
        assert_eq!(paused().await, 0, "{strange:?}");
    }
    let (status, _) = send(&app, post(&[("origin", "http://localhost:7330"), ("sec-fetch-site", "same-origin")])).await;
    assert_eq!((status, paused().await), (StatusCode::OK, 1));
}

/// Long answers end with the key that they were begun with.
#[tokio::test]
async fn a_stream_and_a_long_poll_end_when_their_key_does() {
    let app = app().await;
    let admin = key(&app, Role::Admin, "*").await;
    let made = async |role| {
        let new = NewKey { name: None, role, namespace: "default".into(), valid_for: None };
        app.keys.create(&**app.engine.store(), new, &Default::default(), app.engine.now()).await.expect("a key")
    };
    let ((viewer, reads), (worker, works)) = (made(Role::Viewer).await, made(Role::Worker).await);
    let stream = app.router().oneshot(request("GET", "/events/stream", &reads, "")).await.expect("an answer");
    assert_eq!(stream.status(), StatusCode::OK);
    let reading = tokio::spawn(to_bytes(stream.into_body(), 1 << 20));
    let here = app.clone();
    let ask = request("POST", "/leases", &works, r#"{"worker": "w", "wait": "60s"}"#);
    let waiting = tokio::spawn(async move { send(&here, ask).await });
    let begun = std::time::Instant::now();
    loop {
        let ask = Request::get("/metrics").header("authorization", format!("Bearer {admin}"));
        let page = app.router().oneshot(ask.body(Body::empty()).expect("a request")).await.expect("an answer");
        let page = to_bytes(page.into_body(), 1 << 20).await.expect("a page");
        if String::from_utf8_lossy(&page).contains("http_requests_in_progress{class=\"lease\"} 1") {
            break;
        }
    }
    assert!(revoke(&app, &viewer.id).await && revoke(&app, &worker.id).await);
    let soon = std::time::Duration::from_secs(10);
    let (status, problem) = tokio::time::timeout(soon, waiting).await.expect("it ends").expect("an answer");
    assert_eq!((status, &problem["error"]), (StatusCode::UNAUTHORIZED, &"UNAUTHORIZED".into()));
    tokio::time::timeout(soon, reading).await.expect("it ends").expect("a task").expect("a body");
    assert!(begun.elapsed() < soon, "within a second or so, not when the poll is over");
}

/// What needs no key takes no body: a stranger who sends one slowly is answered at once, and takes no memory from the others.
#[tokio::test]
async fn strangers_are_answered_without_being_listened_to() {
    let app = app().await;
    for route in routes().iter().filter(|route| route.need == Need::Nothing) {
        let body = Body::from_stream(futures_util::stream::pending::<Result<axum::body::Bytes, std::io::Error>>());
        let request = Request::builder().method(route.method.clone()).uri(route.path).body(body).expect("a request");
        let answer = tokio::time::timeout(std::time::Duration::from_secs(5), app.router().oneshot(request)).await;
        answer.unwrap_or_else(|_| panic!("{} waits for a body", route.path)).expect("an answer");
    }
}

/// What a policy decides is an operator's business, though labels and priorities are whoever submits'.
#[tokio::test]
async fn another_policy_is_an_operators_to_give() {
    let app = app().await;
    let (submitter, operator) =
        (key(&app, Role::Submitter, "default").await, key(&app, Role::Operator, "default").await);
    let (_, made) = send(&app, request("POST", "/tasks", &submitter, r#"{"kind": "k"}"#)).await;
    let at = format!("/tasks/{}", made["tasks"][0]["id"].as_str().expect("an id"));
    let policy = r#"{"retry": "fixed(1m, 3 retries)"}"#;
    let (refused, _) = send(&app, request("PATCH", &at, &submitter, policy)).await;
    assert_eq!(refused, StatusCode::FORBIDDEN);
    let (labelled, _) = send(&app, request("PATCH", &at, &submitter, r#"{"labels": {"a": "b"}}"#)).await;
    assert_eq!(labelled, StatusCode::OK);
    let (given, task) = send(&app, request("PATCH", &at, &operator, policy)).await;
    assert_eq!((given, &task["task"]["retry"]["max_retries"]), (StatusCode::OK, &3.into()));
}
