//! Whether a server says that it is ready: not while a background task does not turn, and by a code that tells nothing else.

use std::time::Duration;

use axum::body::Body;
use axum::http::{Method, StatusCode};
use serde_json::json;

use crate::place::{Answer, Place, request, send};

async fn get(place: &Place, path: &str) -> Answer {
    let host = request(&Method::GET, path).header("host", "localhost");
    send(&place.app.router(), host.body(Body::empty()).expect("a request")).await
}

/// C4: a loop that was dead left `/readyz` green.
#[tokio::test]
async fn a_background_task_that_is_dead_is_named() {
    for place in Place::all().await {
        let ready = get(&place, "/readyz").await;
        assert_eq!(ready.status, StatusCode::OK, "{}", place.word);
        let background = place.app.engine.config().background.clone();
        let names = background.names();
        for name in ["combiner/submits", "combiner/reports-0", "combiner/reports-1", "server/shared", "server/instance"]
        {
            assert!(names.iter().any(|it| it == name), "{name} is supervised: {names:?}");
        }
        let own = place.app.engine.store().background().expect("a store has some").names();
        let expected = if place.word == "sqlite" { "sqlite/writer" } else { "postgres/listener" };
        assert!(own.iter().any(|it| it == expected), "{own:?}");
        background.register("loop/test", Duration::from_secs(1)).dead();
        for path in ["/readyz", "/ready"] {
            let answer = get(&place, path).await;
            assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{}", place.word);
            let problem = answer.json();
            assert_eq!((&problem["reason"], &problem["stalled"]), (&json!("stalled"), &json!(["loop/test"])));
        }
        assert_eq!(get(&place, "/livez").await.status, StatusCode::OK, "the process answers");
        place.leave().await;
    }
}

/// Whoever is told that a server is ready finds it among the instances, at once.
#[tokio::test]
async fn an_instance_that_is_ready_is_listed() {
    for place in Place::all().await {
        assert_eq!(get(&place, "/readyz").await.status, StatusCode::OK, "{}", place.word);
        let rows = place.app.engine.store().instances().await.expect("rows");
        assert_eq!(rows.iter().map(|row| row.id.as_str()).collect::<Vec<_>>(), ["test"], "{}", place.word);
        let ours = get(&place, "/api/v1/admin/instances").await.json();
        assert_eq!((&ours["items"][0]["id"], &ours["items"][0]["self"]), (&json!("test"), &json!(true)), "{ours}");
        place.leave().await;
    }
}
