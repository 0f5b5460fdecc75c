//! A server without the routes of other systems.

use axum::body::Body;
use axum::http::{Method, StatusCode};
use comeback_engine::store::{SqliteOptions, SqliteStore};
use comeback_engine::{Engine, EngineConfig, SystemClock};
use comeback_server::{App, AppOptions, openapi, table};
use serde_json::Value;

use crate::place::{Answer, request, routes, send};

#[tokio::test]
async fn a_server_without_added_routes_has_only_its_own() {
    let own = table(&[]);
    let added: Vec<_> = routes().iter().filter(|route| !own.iter().any(|it| it.path == route.path)).collect();
    assert!(added.len() > 20, "{}", added.len());
    let store = std::sync::Arc::new(SqliteStore::open(&SqliteOptions::in_memory()).expect("a store"));
    let engine = Engine::without_loops(store, SystemClock::new(), EngineConfig::default()).await.expect("an engine");
    let router = App::new(engine, AppOptions::default()).await.expect("an app").router();
    for route in added {
        let path = route.path.replace("{id}", "00000000-0000-7000-8000-000000000000");
        let json = request(&route.method, &path).header("content-type", "application/json");
        let Answer { status, .. } = send(&router, json.body(Body::from("{}")).expect("a request")).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{} {path}", route.method);
    }
    let shown = send(&router, request(&Method::GET, "/openapi.json").body(Body::empty()).expect("a request")).await;
    let document = openapi::document(&[]);
    assert_eq!(shown.json(), document);
    assert_eq!(document["paths"].as_object().map(|paths| paths.contains_key("/task")), Some(false));
    every_reference_leads_somewhere(&document, &document);
}

fn every_reference_leads_somewhere(value: &Value, document: &Value) {
    match value {
        Value::Object(fields) => {
            if let Some(path) = fields.get("$ref").and_then(Value::as_str) {
                let found = document.pointer(path.trim_start_matches('#'));
                assert!(found.is_some_and(|it| *it != serde_json::json!({"default": ""})), "{path} leads nowhere");
            }
            fields.values().for_each(|field| every_reference_leads_somewhere(field, document));
        }
        Value::Array(items) => items.iter().for_each(|item| every_reference_leads_somewhere(item, document)),
        _ => {}
    }
}
