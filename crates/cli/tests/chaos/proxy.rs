//! Something between the callers and a server that does not tell the truth.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Router;
use axum::body::{Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};
use serde_json::{Value, json};
use uuid::Uuid;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Lie {
    /// Answers for the server, which never hears of it: as if it acknowledged before it commits.
    AcknowledgeSubmits,
    AcknowledgeReports,
    /// Repeats what it was given once.
    SendTwice,
    /// Asks for other delays than its caller.
    OtherPolicy,
}

struct Proxy {
    server: String,
    lie: Lie,
    http: reqwest::Client,
    count: AtomicU64,
}

/// One in so many.
const OFTEN: u64 = 6;

/// Listens for a server, and answers where.
pub async fn start(server: String, lie: Lie) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("an address");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    comeback_client::Client::new(server.clone()).expect("an address");
    let proxy = Proxy { server, lie, http: reqwest::Client::new(), count: AtomicU64::new(0) };
    let app = Router::new().fallback(pass).with_state(Arc::new(proxy));
    tokio::spawn(async move { axum::serve(listener, app).await });
    url
}

async fn pass(State(proxy): State<Arc<Proxy>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = to_bytes(body, usize::MAX).await.unwrap_or_default();
    let chosen = proxy.count.fetch_add(1, Ordering::Relaxed) % OFTEN == 0;
    let path = parts.uri.path_and_query().map_or("", |path| path.as_str());
    let forward = |body: Bytes| {
        let mut headers = parts.headers.clone();
        headers.remove("content-length");
        proxy.http.request(parts.method.clone(), format!("{}{path}", proxy.server)).headers(headers).body(body).send()
    };
    let body = match (proxy.lie, path) {
        (Lie::AcknowledgeSubmits, "/api/v1/tasks") if chosen => return invent_tasks(&body),
        (Lie::AcknowledgeReports, "/api/v1/leases/report") if chosen => return invent_reports(&body),
        (Lie::SendTwice, "/api/v1/tasks") if chosen => {
            let _ = forward(body.clone()).await;
            body
        }
        (Lie::OtherPolicy, "/api/v1/tasks") => slower(&body),
        _ => body,
    };
    match forward(body).await {
        Ok(response) => {
            let status = response.status();
            let kind = response.headers().get("content-type").cloned();
            let text = response.bytes().await.unwrap_or_default();
            let mut response = (status, text).into_response();
            if let Some(kind) = kind {
                response.headers_mut().insert("content-type", kind);
            }
            response
        }
        Err(error) => (StatusCode::BAD_GATEWAY, Json(json!({"detail": error.to_string()}))).into_response(),
    }
}

fn invent_tasks(body: &Bytes) -> Response {
    let asked: Value = serde_json::from_slice(body).unwrap_or_default();
    let count = asked["tasks"].as_array().map_or(1, Vec::len);
    let tasks: Vec<Value> =
        (0..count).map(|_| json!({"id": Uuid::now_v7().to_string(), "state": "pending", "duplicate": false})).collect();
    (StatusCode::CREATED, Json(json!({"tasks": tasks}))).into_response()
}

fn invent_reports(body: &Bytes) -> Response {
    let asked: Value = serde_json::from_slice(body).unwrap_or_default();
    let said = &asked["reports"][0];
    let state = if said["outcome"] == "succeeded" { "succeeded" } else { "retry_pending" };
    Json(json!({"reports": [{"lease": said["lease"], "state": state}]})).into_response()
}

/// Every policy waits three times as long.
fn slower(body: &Bytes) -> Bytes {
    fn change(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    match (name.as_str(), value.as_str().and_then(|text| text.strip_suffix("ms")?.parse::<u64>().ok()))
                    {
                        ("initial_delay" | "max_delay", Some(ms)) => *value = format!("{}ms", ms * 3).into(),
                        _ => change(value),
                    }
                }
            }
            Value::Array(items) => items.iter_mut().for_each(change),
            _ => {}
        }
    }
    let mut asked: Value = serde_json::from_slice(body).unwrap_or_default();
    change(&mut asked);
    asked.to_string().into()
}
