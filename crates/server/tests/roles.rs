//! Every route, for every role, in every namespace: generated from the table that the router itself is made of.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use comeback_engine::store::{SqliteOptions, SqliteStore};
use comeback_engine::{Engine, EngineConfig, SystemClock};
use comeback_server::auth::{Need, NewKey, Role};
use comeback_server::{App, AppOptions, Route, table};
use tower::ServiceExt;

async fn app() -> Arc<App> {
    let store = Arc::new(SqliteStore::open(&SqliteOptions::in_memory()).expect("a store"));
    let engine = Engine::without_loops(store, SystemClock::new(), EngineConfig::default()).await.expect("an engine");
    App::new(engine, AppOptions::default()).await.expect("an app")
}

async fn key(app: &App, role: Role, namespace: &str) -> String {
    let new = NewKey { name: None, role, namespace: namespace.into(), valid_for: None };
    app.keys.create(&**app.engine.store(), new, app.engine.now()).await.expect("a key").1
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
    for role in Role::ALL {
        let own = key(&app, *role, "default").await;
        for route in table() {
            let answer = status(&app, &route, Some(&own), None).await;
            let refused = answer == StatusCode::FORBIDDEN;
            assert_eq!(refused, !role.may(route.need), "{} {} for {role:?}: {answer}", route.method, route.path);
            assert_ne!(answer, StatusCode::UNAUTHORIZED, "{} {}", route.method, route.path);
            assert!(!answer.is_server_error(), "{} {} for {role:?}: {answer}", route.method, route.path);
        }
    }
    for route in table() {
        let is_open = route.need == Need::Nothing;
        for wrong in
            [None, Some("nonsense"), Some("cbk_0_0"), Some("cbk_000000000000_x"), Some(&admin[..admin.len() - 1])]
        {
            let answer = status(&app, &route, wrong, None).await;
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
    for route in table().into_iter().filter(|route| route.need != Need::Nothing) {
        assert_eq!(status(&app, &route, Some(&own), Some("other")).await, StatusCode::FORBIDDEN, "{}", route.path);
        assert_ne!(status(&app, &route, Some(&own), Some("mine")).await, StatusCode::FORBIDDEN, "{}", route.path);
        assert_ne!(status(&app, &route, Some(&anywhere), Some("other")).await, StatusCode::FORBIDDEN, "{}", route.path);
    }
}

#[tokio::test]
async fn a_key_that_was_revoked_or_has_expired_opens_nothing() {
    let app = app().await;
    key(&app, Role::Admin, "*").await;
    let new =
        NewKey { name: None, role: Role::Admin, namespace: "*".into(), valid_for: Some(comeback_core::Millis(0)) };
    let (_, expired) = app.keys.create(&**app.engine.store(), new, app.engine.now()).await.expect("a key");
    let new = NewKey { name: None, role: Role::Admin, namespace: "*".into(), valid_for: None };
    let (revoked, secret) = app.keys.create(&**app.engine.store(), new, app.engine.now()).await.expect("a key");
    let stats = table().into_iter().find(|route| route.path == "/api/v1/stats").expect("a route");
    assert_eq!(status(&app, &stats, Some(&expired), None).await, StatusCode::UNAUTHORIZED);
    assert_eq!(status(&app, &stats, Some(&secret), None).await, StatusCode::OK);
    assert!(app.keys.revoke(&**app.engine.store(), &revoked.id, app.engine.now()).await.expect("revoked"));
    assert_eq!(status(&app, &stats, Some(&secret), None).await, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn no_route_is_there_twice() {
    let mut seen: Vec<String> = table().iter().map(|route| format!("{} {}", route.method, route.path)).collect();
    let count = seen.len();
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), count);
}
