//! A server without a socket, on either database, that is asked by the names of its operations. It has the routes of the binary.

pub mod world;

use std::sync::{Arc, LazyLock};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, Method, Request, StatusCode};
use comeback_core::{Quotas, Timestamp};
use comeback_engine::secrets::Keyring;
use comeback_engine::store::{PostgresOptions, PostgresStore, SqliteOptions, SqliteStore, Store};
use comeback_engine::{Available, Engine, EngineConfig, VirtualClock};
use comeback_server::{App, AppOptions, LimiterOptions, Route, openapi, table};
use comeback_store::conformance::postgres::Database;
use serde_json::Value;
use tower::ServiceExt;

pub const START: Timestamp = Timestamp(1_800_000_000_000);

pub struct Place {
    pub word: &'static str,
    pub app: Arc<App>,
    database: Option<Database>,
    _folder: Option<tempfile::TempDir>,
}

impl Place {
    /// SQLite; and PostgreSQL where a cluster is at hand.
    pub async fn all() -> Vec<Place> {
        let mut all = vec![Place::sqlite().await];
        if std::env::var("COMEBACK_TEST_POSTGRES").is_ok() {
            let database = Database::migrated().await;
            let options =
                PostgresOptions { require_durability: false, warm_up: false, ..PostgresOptions::new(database.url()) };
            let store = Arc::new(PostgresStore::open(&options).await.expect("the store opens"));
            all.push(Place {
                word: "postgres",
                app: app(store, LimiterOptions::default()).await,
                database: Some(database),
                _folder: None,
            });
        }
        all
    }

    pub async fn sqlite() -> Place {
        let folder = tempfile::tempdir().expect("a folder");
        let options = SqliteOptions::file(folder.path().join("comeback.db"));
        let store = Arc::new(SqliteStore::open(&options).expect("the store opens"));
        Place {
            word: "sqlite",
            app: app(store, LimiterOptions::default()).await,
            database: None,
            _folder: Some(folder),
        }
    }

    pub async fn leave(self) {
        drop(self.app);
        if let Some(database) = self.database {
            database.drop().await;
        }
    }
}

/// One instance, whose time is moved by hand.
pub async fn app(store: Arc<dyn Store>, gate: LimiterOptions) -> Arc<App> {
    let mut quotas = Quotas::default();
    for (name, value) in [("named_policies", "20"), ("secrets", "5")] {
        quotas.set(name, value).expect("a number");
    }
    app_with(store, gate, quotas).await
}

/// The same with other quotas.
pub async fn app_with(store: Arc<dyn Store>, gate: LimiterOptions, quotas: Quotas) -> Arc<App> {
    let clock = VirtualClock::new(START);
    let executors = Available { http: true, command: true, timer: true };
    let secret_keys = Keyring::read(&"11".repeat(32)).expect("a key");
    let config = EngineConfig { instance: "test".into(), executors, quotas, secret_keys, ..EngineConfig::default() };
    let engine = Engine::without_loops(store, clock.clone(), config).await.expect("an engine");
    let options = AppOptions { instance: "test".into(), clock: Some(clock), limiter: gate, ..options() };
    App::new(engine, options).await.expect("an app")
}

/// The options of a server with every route of the binary.
pub fn options() -> AppOptions {
    AppOptions { added_routes: vec![comeback_compat::routes()], ..AppOptions::default() }
}

/// The document of such a server, made once.
pub fn document() -> &'static Value {
    static DOCUMENT: LazyLock<Value> = LazyLock::new(|| openapi::document(&[comeback_compat::routes()]));
    &DOCUMENT
}

/// All routes, made once.
pub fn routes() -> &'static [Route] {
    static ROUTES: LazyLock<Vec<Route>> = LazyLock::new(|| table(&[comeback_compat::routes()]));
    &ROUTES
}

/// The route of an operation.
pub fn route(operation: &str) -> &'static Route {
    let named = |route: &&Route| route.doc.as_ref().is_some_and(|doc| doc.id == operation);
    routes().iter().find(named).unwrap_or_else(|| panic!("no operation is called {operation}"))
}

#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub bytes: Bytes,
}

#[allow(dead_code, reason = "not every test looks at answers so closely")]
impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes).unwrap_or_else(|error| panic!("{error}: {:?}", self.bytes))
    }

    /// Whether it tells what went wrong in the words of another dialect.
    pub fn is_foreign(&self) -> bool {
        self.headers.contains_key("comeback-problem")
    }

    /// The word of the problem, in whatever shape it is told.
    pub fn problem(&self) -> Option<String> {
        if let Some(word) = self.headers.get("comeback-problem") {
            return word.to_str().ok().map(str::to_owned);
        }
        serde_json::from_slice::<Value>(&self.bytes).ok()?["type"].as_str().map(str::to_owned)
    }

    /// Everything that is wrong, by path, in whatever shape it is told.
    pub fn faults(&self) -> Vec<(String, String)> {
        let mut body = self.json();
        if let Some(nested) = body.pointer_mut("/error/details").map(Value::take) {
            body["errors"] = nested;
        }
        let line = |line: &Value| {
            let line = line.as_str().expect("a text");
            let (path, message) = line.split_once(": ").unwrap_or(("", line));
            (path.to_owned(), message.to_owned())
        };
        match (&body["errors"], &body["details"], &body["message"]) {
            (Value::Array(faults), _, _) => {
                let text = |fault: &Value, name: &str| fault[name].as_str().unwrap_or_default().to_owned();
                faults.iter().map(|fault| (text(fault, "path"), text(fault, "message"))).collect()
            }
            (_, Value::Array(lines), _) => lines.iter().map(line).collect(),
            (_, _, message @ Value::String(_)) => vec![line(message)],
            _ => Vec::new(),
        }
    }
}

pub fn request(method: &Method, address: &str) -> axum::http::request::Builder {
    Request::builder().method(method.clone()).uri(address)
}

/// Sends it; a stream is read only as far as its head.
pub async fn send(router: &Router, request: Request<Body>) -> Answer {
    let response = router.clone().oneshot(request).await.expect("an answer");
    let (head, body) = response.into_parts();
    let is_stream = head.headers.get("content-type").is_some_and(|kind| kind == "text/event-stream");
    let bytes = match is_stream {
        true => Bytes::new(),
        false => axum::body::to_bytes(body, 64 << 20).await.expect("a body"),
    };
    Answer { status: head.status, headers: head.headers, bytes }
}
