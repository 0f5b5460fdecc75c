//! What was done, by whom: every act leaves one line, and nobody reads those of others.

use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use comeback_core::{Millis, Timestamp};
use comeback_engine::store::{SqliteOptions, SqliteStore};
use comeback_engine::{Engine, EngineConfig, VirtualClock};
use comeback_server::auth::{NewKey, Role};
use comeback_server::{App, AppOptions};
use serde_json::{Value, json};
use tower::ServiceExt;

struct House {
    app: Arc<App>,
    clock: Arc<VirtualClock>,
    admin: String,
}

impl House {
    async fn new() -> House {
        let store = Arc::new(SqliteStore::open(&SqliteOptions::in_memory()).expect("a store"));
        let clock = VirtualClock::new(Timestamp(1_800_000_000_000));
        let engine = Engine::without_loops(store, clock.clone(), EngineConfig::default()).await.expect("an engine");
        let app =
            App::new(engine, AppOptions { clock: Some(clock.clone()), ..AppOptions::default() }).await.expect("an app");
        let mut house = House { app, clock, admin: String::new() };
        house.admin = house.key("boss", Role::Admin, "*").await;
        house
    }

    async fn key(&self, name: &str, role: Role, namespace: &str) -> String {
        let new = NewKey { name: Some(name.into()), role, namespace: namespace.into(), valid_for: None };
        let store = &**self.app.engine.store();
        self.app.keys.create(store, new, &Default::default(), self.app.engine.now()).await.expect("a key").1
    }

    async fn ask(&self, key: &str, method: &str, path: &str, body: Value) -> (StatusCode, String) {
        let request = Request::builder()
            .method(method)
            .uri(format!("/api/v1{path}"))
            .header("content-type", "application/json")
            .header("x-request-id", "r-77")
            .header("authorization", format!("Bearer {key}"));
        let body = if body.is_null() { Body::empty() } else { Body::from(body.to_string()) };
        let answer = self.app.router().oneshot(request.body(body).expect("a request")).await.expect("an answer");
        let status = answer.status();
        let bytes = to_bytes(answer.into_body(), 16 << 20).await.expect("a body");
        (status, String::from_utf8(bytes.to_vec()).expect("text"))
    }

    async fn done(&self, method: &str, path: &str, body: Value) -> Value {
        let (status, text) = self.ask(&self.admin, method, path, body).await;
        assert!(status.is_success(), "{method} {path}: {status} {text}");
        serde_json::from_str(&text).unwrap_or_default()
    }

    /// Newest first.
    async fn acts(&self, query: &str) -> Vec<Value> {
        let page = self.done("GET", &format!("/admin/audit?{query}"), Value::Null).await;
        page["items"].as_array().expect("a page").clone()
    }

    async fn submit(&self) -> String {
        let made = self.done("POST", "/tasks", json!({"kind": "k", "payload": {"n": 1}})).await;
        made["tasks"][0]["id"].as_str().expect("an id").to_owned()
    }

    async fn dead(&self) -> String {
        let id = self.submit().await;
        let leased = self.done("POST", "/leases", json!({"worker": "w"})).await;
        let report = json!({"lease": leased["leases"][0]["lease"], "outcome": "failed", "error": "no"});
        self.done("POST", "/leases/report", json!({"reports": [report]})).await;
        id
    }
}

/// R-S24: each acting route leaves exactly one row, with the key, the request and what changed.
#[tokio::test]
async fn every_act_leaves_one_line() {
    let house = House::new().await;
    let (dead, task) = (house.dead().await, house.submit().await);
    let linked = json!({"tasks": [{"kind": "a"}, {"kind": "a"}], "execution": {}});
    let execution = house.done("POST", "/tasks", linked).await["execution_id"].as_str().expect("an id").to_owned();
    let viewer = house.done("POST", "/keys", json!({"role": "viewer"})).await["id"].as_str().expect("an id").to_owned();
    let group =
        house.done("GET", "/errors", Value::Null).await["items"][0]["fingerprint"].as_str().expect("one").to_owned();
    let schedule = json!({"cron": "0 0 * * *", "task": {"kind": "nightly"}});
    let acts = [
        ("POST", format!("/tasks/{task}/pause"), json!({"note": "wait", "requested_by": "ana"}), "task.pause"),
        ("POST", format!("/tasks/{task}/resume"), json!({}), "task.resume"),
        ("POST", format!("/tasks/{task}/snooze"), json!({"delay": "1m"}), "task.snooze"),
        ("POST", format!("/tasks/{task}/reschedule"), json!({"delay": "1m"}), "task.snooze"),
        ("POST", format!("/tasks/{task}/cancel"), json!({}), "task.cancel"),
        ("POST", format!("/tasks/{dead}/retry"), json!({"payload_patch": {"n": 2}}), "task.retry"),
        ("POST", format!("/executions/{execution}/pause"), json!({}), "execution.pause"),
        ("POST", format!("/executions/{execution}/resume"), json!({}), "execution.resume"),
        ("POST", format!("/executions/{execution}/cancel"), json!({}), "execution.cancel"),
        ("POST", "/admin/loops/reap/pause".into(), json!({"note": "deploy"}), "loop.pause"),
        ("POST", "/admin/loops/reap/resume".into(), json!({}), "loop.resume"),
        ("POST", "/admin/tasks/process-stuck".into(), json!({}), "stuck.process"),
        ("POST", "/admin/tasks/process-failed".into(), json!({"note": "after the mend"}), "failed.process"),
        ("POST", "/clock/advance".into(), json!({"by": "1s"}), "clock.advance"),
        ("PUT", "/rules/r".into(), json!({"max_running": 5}), "rule.put"),
        ("DELETE", "/rules/r".into(), Value::Null, "rule.delete"),
        ("PUT", "/schedules/s".into(), schedule.clone(), "schedule.put"),
        ("POST", "/schedules/s/pause".into(), json!({"note": "holidays"}), "schedule.pause"),
        ("POST", "/schedules/s/resume".into(), json!({}), "schedule.resume"),
        ("POST", "/schedules/s/trigger".into(), json!({}), "schedule.trigger"),
        ("DELETE", "/schedules/s".into(), Value::Null, "schedule.delete"),
        ("PUT", "/workflows/w".into(), json!({"name": "w", "steps": [{"name": "a", "kind": "a"}]}), "workflow.put"),
        ("PUT", "/policies/k".into(), json!({"policy": 3}), "policy.bind"),
        ("DELETE", "/policies/k".into(), Value::Null, "policy.unbind"),
        ("PUT", "/accounts/acme".into(), json!({"credits": 5}), "account.put"),
        ("DELETE", "/accounts/acme".into(), Value::Null, "account.delete"),
        ("PUT", "/dependencies/psp".into(), json!({"breaker": {}}), "dependency.put"),
        ("POST", "/dependencies/psp/open".into(), json!({"for": "1h", "note": "they move"}), "dependency.open"),
        ("POST", "/dependencies/psp/healthy".into(), json!({}), "dependency.healthy"),
        ("POST", "/dependencies/psp/close".into(), json!({}), "dependency.close"),
        (
            "POST",
            "/dependencies/psp/maintenance".into(),
            json!({"to": "2100-01-01T00:00:00Z"}),
            "dependency.maintenance",
        ),
        ("DELETE", "/dependencies/psp".into(), Value::Null, "dependency.delete"),
        ("POST", format!("/errors/{group}"), json!({"action": "resolve"}), "error.resolve"),
        ("POST", format!("/errors/{group}"), json!({"action": "ignore"}), "error.ignore"),
        ("POST", format!("/errors/{group}"), json!({"action": "open"}), "error.open"),
        ("POST", format!("/errors/{group}"), json!({"action": "classify", "class": "final"}), "error.classify"),
        ("POST", format!("/errors/{group}"), json!({"action": "note", "note": "seen"}), "error.note"),
        ("POST", "/keys".into(), json!({"role": "viewer", "name": "reader"}), "key.create"),
        ("DELETE", format!("/keys/{viewer}"), Value::Null, "key.revoke"),
    ];
    for (method, path, body, act) in acts {
        let before = house.acts("all=true&limit=500").await;
        // What is done within one millisecond is in no order.
        house.clock.advance(Millis(1));
        house.done(method, &path, body).await;
        let after = house.acts("all=true&limit=500").await;
        assert_eq!(after.len(), before.len() + 1, "{method} {path}");
        let line = &after[0];
        assert_eq!((&line["act"], &line["key"]), (&json!(act), &json!("boss")), "{method} {path}");
        assert_eq!(line["request_id"], "r-77", "{method} {path}");
        assert!(!line.to_string().contains("cbk_"), "no secret is written down");
    }
    let pause = &house.acts("act=task.pause").await[0];
    assert_eq!((&pause["actor"], &pause["note"], &pause["subject"]), (&json!("ana"), &json!("wait"), &json!(task)));
    assert_eq!((&pause["before"]["state"], &pause["after"]["state"]), (&json!("pending"), &json!("paused")));
    let retry = &house.acts("act=task.retry").await[0];
    assert_eq!((&retry["before"]["payload_version"], &retry["after"]["payload_version"]), (&json!(1), &json!(2)));
}

#[tokio::test]
async fn what_was_refused_leaves_none() {
    let house = House::new().await;
    let id = house.submit().await;
    let before = house.acts("limit=500").await.len();
    let operator = house.key("op", Role::Viewer, "default").await;
    for (key, path) in [(&operator, format!("/tasks/{id}/cancel")), (&house.admin, format!("/tasks/{id}/retry"))] {
        let (status, _) = house.ask(key, "POST", &path, json!({})).await;
        assert!(status.is_client_error());
    }
    let made = house.acts("act=key.create").await.len();
    assert_eq!(house.acts("limit=500").await.len(), before + 1, "the key of the viewer");
    assert_eq!(made, 2);
}

#[tokio::test]
async fn nobody_reads_the_acts_of_others() {
    let house = House::new().await;
    let id = house.submit().await;
    house.done("POST", &format!("/tasks/{id}/cancel"), json!({})).await;
    house.done("POST", "/admin/loops/reap/pause", json!({})).await;
    let [own, other] = [("own", "default"), ("other", "other")];
    let own = house.key(own.0, Role::Admin, own.1).await;
    let other = house.key(other.0, Role::Admin, other.1).await;
    let words = async |key: &str, query: &str| -> Vec<String> {
        let (status, text) = house.ask(key, "GET", &format!("/admin/audit?{query}"), Value::Null).await;
        assert_eq!(status, StatusCode::OK, "{text}");
        let page: Value = serde_json::from_str(&text).expect("JSON");
        page["items"].as_array().expect("a page").iter().map(|it| it["act"].as_str().expect("a word").into()).collect()
    };
    assert_eq!(words(&own, "").await, ["key.create", "task.cancel"]);
    assert_eq!(words(&other, "").await, ["key.create"]);
    assert_eq!(words(&house.admin, "act=loop,task").await, ["loop.pause", "task.cancel"]);
    let operator = house.key("op", Role::Operator, "default").await;
    for path in ["/admin/audit", "/admin/audit/export.csv", "/admin/audit/export.ndjson"] {
        let (status, _) = house.ask(&own, "GET", &format!("{path}?all=true"), Value::Null).await;
        assert_eq!(status, StatusCode::FORBIDDEN, "{path}");
        let (status, _) = house.ask(&operator, "GET", path, Value::Null).await;
        assert_eq!(status, StatusCode::FORBIDDEN, "{path} is for admins");
    }
}

/// More than one stretch of the database; the order and the number are those of the pages.
#[tokio::test]
async fn an_export_holds_what_the_pages_hold() {
    let house = House::new().await;
    let id = house.submit().await;
    for n in 0..310 {
        let note = format!("round {n}, \"quoted\"");
        house.done("POST", &format!("/tasks/{id}/pause"), json!({"note": note})).await;
        house.done("POST", &format!("/tasks/{id}/resume"), json!({})).await;
    }
    let mut paged = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = house.done("GET", &format!("/admin/audit?act=task&limit=200{cursor}"), Value::Null).await;
        paged.extend(page["items"].as_array().expect("a page").clone());
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(paged.len(), 620);
    let (_, lines) = house.ask(&house.admin, "GET", "/admin/audit/export.ndjson?act=task", Value::Null).await;
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(lines, paged);
    let (_, csv) = house.ask(&house.admin, "GET", "/admin/audit/export.csv?act=task.pause", Value::Null).await;
    let rows: Vec<&str> = csv.split_terminator("\r\n").collect();
    assert_eq!((rows.len(), rows[0].split(',').next()), (311, Some("id")));
    assert!(rows[1].contains(r#""round 309, ""quoted"""#), "{}", rows[1]);
}

/// S2-1, S2-7, S2-76: a policy's retries are automatic, a person's manual, and a first attempt is neither.
#[tokio::test]
async fn automatic_and_manual_retries_are_told_apart() {
    let house = House::new().await;
    let made =
        house.done("POST", "/tasks", json!({"kind": "k", "retry": {"strategy": "immediate", "max_retries": 1}})).await;
    let id = made["tasks"][0]["id"].as_str().expect("an id").to_owned();
    let kind = async || house.done("GET", &format!("/tasks/{id}"), Value::Null).await["retry_kind"].clone();
    let fail = async || {
        let leased = house.done("POST", "/leases", json!({"worker": "w"})).await;
        let report = json!({"lease": leased["leases"][0]["lease"], "outcome": "failed", "error": "no"});
        house.done("POST", "/leases/report", json!({"reports": [report]})).await;
    };
    assert_eq!(kind().await, Value::Null);
    fail().await;
    assert_eq!(kind().await, "automatic");
    fail().await;
    house.done("POST", &format!("/tasks/{id}/retry"), json!({})).await;
    assert_eq!(kind().await, "manual");
    fail().await;
    let attempts = house.done("GET", &format!("/tasks/{id}/attempts"), Value::Null).await;
    let kinds: Vec<&Value> = attempts["items"].as_array().expect("a page").iter().map(|it| &it["retry_kind"]).collect();
    assert_eq!(kinds, [&Value::Null, &json!("automatic"), &json!("manual")]);
    // From the newest back, page by page.
    let newest = house.done("GET", &format!("/tasks/{id}/attempts?newest=true&limit=2"), Value::Null).await;
    assert_eq!((&newest["items"][0]["run"], &newest["items"][1]["run"]), (&json!(3), &json!(2)));
    let cursor = newest["next_cursor"].as_str().expect("there is more");
    let rest = format!("/tasks/{id}/attempts?newest=true&limit=2&cursor={cursor}");
    let rest = house.done("GET", &rest, Value::Null).await;
    assert_eq!((&rest["items"][0]["run"], &rest["next_cursor"]), (&json!(1), &Value::Null));
}
