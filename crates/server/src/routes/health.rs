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
        line(Method::GET, "/docs", Need::Nothing, "This interface, as a page", get(docs)),
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
    // A store that can only be read could not keep what it acknowledges. It is written to every few seconds anyway; whoever
    // asks here writes nothing.
    if let Some(trouble) = app.trouble.read().clone() {
        return Err(Problem::unavailable(trouble));
    }
    app.engine.store().meta("lease_key").await?;
    Ok(Json(json!({"status": "ready", "instance": app.instance, "now": app.engine.now().to_rfc3339()})))
}

/// A page without anything from elsewhere.
async fn docs() -> axum::response::Response {
    use axum::response::IntoResponse;
    let rows: String = super::table()
        .iter()
        .map(|route| {
            let need = serde_json::to_value(route.need).unwrap_or_default();
            let need = need.as_str().unwrap_or_default().to_owned();
            format!(
                "<tr><td>{}</td><td><code>{}</code></td><td>{}</td><td>{need}</td></tr>",
                route.method, route.path, route.summary
            )
        })
        .collect();
    let page = format!(
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>\
         <title>Comeback API</title><style>:root{{color-scheme:light dark}}body{{font:14px/20px system-ui;margin:2rem;\
         max-width:60rem}}td,th{{text-align:left;padding:.3rem .8rem .3rem 0;vertical-align:top}}code{{font:13px monospace}}\
         </style><h1>Comeback API</h1><p>JSON in and out. The same as <a href=/openapi.json>OpenAPI</a>.</p>\
         <table><tr><th>Method<th>Path<th>Does<th>Needs</tr>{rows}</table></html>"
    );
    let safe = "default-src 'none'; style-src 'unsafe-inline'";
    ([("content-type", "text/html; charset=utf-8"), ("content-security-policy", safe)], page).into_response()
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
