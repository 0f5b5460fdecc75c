//! Health checks: liveness and readiness.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{Method, header};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;
use serde_json::{Value, json};

use super::{Line, line};
use crate::App;
use crate::auth::Need;
use crate::openapi::{Doc, schema};
use crate::problem::Problem;

/// Routes of this module.
pub fn lines() -> Vec<Line> {
    let at = |path, summary, answer| line(Method::GET, path, Need::Nothing, summary, answer);
    let alive = || schema::object([("status", schema::constant("ok"))]);
    let ready_shape = schema::object([
        ("status", schema::constant("ready")),
        ("instance", schema::text()),
        ("now", schema::instant()),
    ]);
    let whole = json!({"type": "object"});
    vec![
        at("/livez", "Liveness check", get(live)).doc(Doc::new("getLive").answers(alive())),
        at("/healthz", "Liveness check", get(live)).doc(Doc::new("getHealth").answers(alive())),
        at("/readyz", "Readiness check", get(ready))
            .doc(Doc::new("getReady").answers(ready_shape.clone()).problems(&["unavailable", "internal"])),
        // The names that clients of the dialect `task` know.
        at("/health", "Liveness check", get(live)).doc(Doc::new("getHealthToo").answers(alive())),
        at("/ready", "Readiness check", get(ready))
            .doc(Doc::new("getReadyToo").answers(ready_shape).problems(&["unavailable", "internal"])),
        at("/docs", "API reference as a page", get(docs)).doc(Doc::new("getDocs").answers_text("text/html")),
        at("/openapi.json", "API reference as OpenAPI 3.1", get(openapi)).doc(Doc::new("getOpenApi").answers(whole)),
    ]
}

async fn live() -> Json<Value> {
    Json(json!({"status": "ok"}))
}

/// Timeout of the database check of one row.
const PATIENCE: Duration = Duration::from_secs(2);

/// Readiness. The route is public, so the response has a reason code only; details are in the log.
async fn ready(State(app): State<Arc<App>>) -> Result<Json<Value>, Problem> {
    if app.is_draining() {
        return Err(Problem::unavailable("the server is shutting down").with("reason", "shutting_down"));
    }
    let stalled: Vec<String> = app.engine.stalled().into_iter().map(|it| it.name).collect();
    let named = |problem: Problem| match stalled.is_empty() {
        true => problem,
        false => problem.with("stalled", stalled.clone()),
    };
    database_works(&app).await.map_err(named)?;
    if !stalled.is_empty() {
        let detail = format!("background loops are stalled: {}", stalled.join(", "));
        return Err(named(Problem::unavailable(detail).with("reason", "stalled")));
    }
    Ok(Json(json!({"status": "ready", "instance": app.instance, "now": app.engine.now().to_rfc3339()})))
}

async fn database_works(app: &App) -> Result<(), Problem> {
    // A store that can only be read could not keep what it acknowledges. It is written to every few seconds anyway; whoever
    // asks here writes nothing.
    if let Some(trouble) = app.write_error.read().clone() {
        let detail = "the database is read-only or unavailable";
        return Err(Problem::unavailable(detail).with("reason", "database_not_writable").because(trouble));
    }
    match tokio::time::timeout(PATIENCE, app.engine.store().meta("lease_key")).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => {
            let detail = "the database is unreachable";
            let problem = Problem::unavailable(detail).with("reason", "database_unreachable");
            return Err(problem.because(error.to_string()));
        }
        Err(_) => {
            let detail = format!("the database did not answer within {} s", PATIENCE.as_secs());
            return Err(Problem::unavailable(detail).with("reason", "database_slow"));
        }
    }
    Ok(())
}

/// A page without anything from elsewhere.
async fn docs(State(app): State<Arc<App>>) -> Response {
    let page = app.interface.page();
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, page.content_security_policy.as_str()),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (headers, page.text.clone()).into_response()
}

async fn openapi(State(app): State<Arc<App>>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], app.interface.document())
}
