//! Health: whether the process lives, and whether an answer could be kept.

use std::sync::Arc;

use axum::extract::State;
use axum::http::Method;
use axum::response::Json;
use axum::routing::get;
use serde_json::{Value, json};

use super::{Line, line};
use crate::App;
use crate::auth::Need;
use crate::problem::Problem;

pub fn lines() -> Vec<Line> {
    vec![
        line(Method::GET, "/livez", Need::Nothing, "Whether the process answers", get(live)),
        line(Method::GET, "/healthz", Need::Nothing, "Whether the process answers", get(live)),
        line(Method::GET, "/readyz", Need::Nothing, "Whether work can be taken and kept", get(ready)),
        line(Method::GET, "/openapi.json", Need::Nothing, "This interface, as OpenAPI 3.1", get(openapi)),
    ]
}

async fn live() -> Json<Value> {
    Json(json!({"status": "ok"}))
}

async fn ready(State(app): State<Arc<App>>) -> Result<Json<Value>, Problem> {
    if app.is_draining() {
        return Err(Problem::unavailable("the server is shutting down"));
    }
    // A write, because a store that can only be read could not keep what it acknowledges.
    let at = app.engine.now().to_rfc3339();
    app.engine.store().put_meta("ready", &at, false).await?;
    Ok(Json(json!({"status": "ready", "instance": app.instance, "now": at})))
}

async fn openapi() -> Json<Value> {
    let mut paths = serde_json::Map::new();
    for route in super::table() {
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        let parameters: Vec<Value> = route
            .path
            .split('/')
            .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
            .map(|name| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}}))
            .collect();
        path[route.method.as_str().to_ascii_lowercase()] = json!({
            "summary": route.summary,
            "parameters": parameters,
            "x-role": route.need,
            "responses": {
                "default": {"description": "an answer, or a problem (RFC 9457)"},
            },
        });
    }
    Json(json!({
        "openapi": "3.1.0",
        "info": {"title": "Comeback", "version": env!("CARGO_PKG_VERSION")},
        "paths": paths,
    }))
}
