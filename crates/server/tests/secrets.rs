//! Secrets stay where they belong: what calls are made with is shown in no view, numbers are of one's own namespace, and cursors tell
//! nothing of others.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::http::{Method, Request, StatusCode};
use comeback_server::App;
use comeback_server::auth::{Need, NewKey, Role};
use futures_util::StreamExt;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::place::{Place, routes};

struct House {
    app: Arc<App>,
    admin: String,
}

impl House {
    async fn new(place: &Place) -> House {
        let mut house = House { app: place.app.clone(), admin: String::new() };
        house.admin = house.key(Role::Admin, "*").await;
        house
    }

    async fn key(&self, role: Role, namespace: &str) -> String {
        let new = NewKey { name: None, role, namespace: namespace.into(), valid_for: None };
        let (keys, store) = (&self.app.keys, self.app.engine.store());
        keys.create(&**store, new, &Default::default(), self.app.engine.now()).await.expect("a key").1
    }

    async fn send(
        &self,
        method: &str,
        path: &str,
        key: &str,
        namespace: Option<&str>,
        body: &str,
    ) -> (StatusCode, Bytes) {
        let kind = if body.starts_with("name:") { "application/yaml" } else { "application/json" };
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", kind)
            .header("authorization", format!("Bearer {key}"));
        if let Some(namespace) = namespace {
            request = request.header("comeback-namespace", namespace);
        }
        let request = request.body(Body::from(body.to_owned())).expect("a request");
        let answer = self.app.router().oneshot(request).await.expect("an answer");
        let (head, body) = answer.into_parts();
        if head.headers.get("content-type").is_some_and(|kind| kind == "text/event-stream") {
            // A stream has no end: what comes within a moment is enough.
            let mut frames = body.into_data_stream();
            let mut seen = Vec::new();
            while let Ok(Some(Ok(frame))) = tokio::time::timeout(Duration::from_millis(300), frames.next()).await {
                seen.extend_from_slice(&frame);
            }
            return (head.status, seen.into());
        }
        (head.status, to_bytes(body, 64 << 20).await.expect("a body"))
    }

    /// As the admin of all, in the namespace `mine`.
    async fn act(&self, method: &str, path: &str, body: impl ToString) -> Value {
        let (status, bytes) = self.send(method, path, &self.admin, Some("mine"), &body.to_string()).await;
        assert!(status.is_success(), "{method} {path}: {status} {bytes:?}");
        serde_json::from_slice(&bytes).unwrap_or_default()
    }

    async fn get(&self, path: &str, key: &str) -> Value {
        let (status, bytes) = self.send("GET", path, key, None, "").await;
        assert!(status.is_success(), "GET {path}: {status} {bytes:?}");
        serde_json::from_slice(&bytes).unwrap_or_default()
    }

    async fn metrics(&self, key: &str) -> String {
        let (_, bytes) = self.send("GET", "/metrics", key, None, "").await;
        String::from_utf8(bytes.to_vec()).expect("text")
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("a text: {value}")).to_owned()
}

fn headers() -> Value {
    json!({"Authorization": "Bearer CANARY-1", "x-auth-token": "CANARY-2", "X-Api-Key": "CANARY-3", "Cookie": "CANARY-4",
        "x-my-secret": "CANARY-5", "x-session-id": "CANARY-6", "x-signature": "CANARY-7", "x-passwd": "CANARY-8",
        "x-credential": "CANARY-9", "x-colour": "blue", "idempotency-key": "visible"})
}

fn call(n: u32) -> Value {
    json!({"url": format!("https://example.test/{n}?api_key=CANARY-q&a=b"), "headers": headers()})
}

const WORKFLOW: &str = "name: canary
input: {headers: {authorization: CANARY-w0}}
steps:
  # authorization: CANARY-comment
  a:
    http:
      url: https://example.test/?token=CANARY-w1
      headers:
        Authorization: Bearer CANARY-w2
        x-api-key: \"CANARY-w3\"
  b:
    hook: {start: {url: https://example.test/b, headers: {x-token: 'CANARY-w4'}}}
  c:
    executor: {type: command, run: [x], env: {API_TOKEN: CANARY-w5}}
";

/// Plants a canary wherever a header can stand; answers everything that can stand in a path.
async fn plant(house: &House) -> BTreeSet<String> {
    let mut parts: BTreeSet<String> =
        ["k", "mine", "canary", "reap", "s1", "s2", "ops", "1", "2", "a", "w", "watch", "stripe"]
            .map(str::to_owned)
            .into();
    let hook = |start: Value| json!({"type": "hook", "start": start});
    let mut http = call(1);
    http["type"] = "http".into();
    let hooks = json!({"success": [call(2)], "failure": [call(3)], "retry": [call(4)], "cancel": [call(5)]});
    let command = json!({"type": "command", "run": ["x"], "env": {"STRIPE_KEY": "CANARY-e", "COLOUR": "blue"}});
    for task in [
        json!({"kind": "k", "executor": http, "hooks": hooks, "delay": "1h"}),
        json!({"kind": "k", "executor": hook(call(6)), "delay": "1h"}),
        json!({"kind": "k", "executor": hook(json!([call(7), call(8)])), "delay": "1h"}),
        json!({"kind": "k", "executor": command, "delay": "1h"}),
        json!({"kind": "k", "payload": {"headers": headers(), "list": [{"headers": [{"name": "Cookie", "value": "CANARY-p"}]}]}}),
    ] {
        parts.insert(text(&house.act("POST", "/api/v1/tasks", task).await["tasks"][0]["id"]));
    }
    // A worker that fails with what it was given, and is retried by hand with another payload.
    let leased = house.act("POST", "/api/v1/leases", json!({"worker": "w"})).await;
    assert!(leased.to_string().contains("CANARY-1"), "a worker is given the task as it is: {leased}");
    let id = text(&leased["leases"][0]["task"]["id"]);
    let error = json!({"message": "GET https://ana:CANARY-u@example.test/?token=CANARY-m failed", "class": "final",
        "stack": "{\"headers\": {\"authorization\": \"CANARY-s\"}}"});
    let report = json!({"lease": leased["leases"][0]["lease"], "outcome": "failed", "error": error});
    house.act("POST", "/api/v1/leases/report", json!({"reports": [report]})).await;
    let patch = json!({"headers": {"authorization": "CANARY-patch", "x-token": null}});
    house.act("POST", &format!("/api/v1/tasks/{id}/retry"), json!({"payload_patch": patch})).await;
    let leased = house.act("POST", "/api/v1/leases", json!({"worker": "w"})).await;
    let result = json!({"status": 200, "body": {"headers": {"Authorization": "Bearer CANARY-r"}}, "log": "{\"headers\":{\"cookie\":\"CANARY-l\"}}"});
    let report = json!({"lease": leased["leases"][0]["lease"], "outcome": "succeeded", "result": result});
    house.act("POST", "/api/v1/leases/report", json!({"reports": [report]})).await;
    // The dialect of batches.
    let action = |n: u32| {
        let params =
            json!({"url": format!("https://example.test/{n}?key=CANARY-b"), "verb": "Post", "headers": headers()});
        json!({"kind": "Webhook", "params": params})
    };
    let batch = json!([{"id": "import", "name": "import", "kind": "k", "timeout": 60, "on_start": action(1),
        "on_success": [action(2)], "on_failure": [action(3)]}]);
    let made = house.act("POST", "/task", batch).await;
    for id in made.as_array().into_iter().flatten().chain([&made]).filter_map(|it| it["id"].as_str()) {
        parts.insert(id.to_owned());
    }
    let listed = house.act("GET", "/task", "").await;
    for it in listed.as_array().or(listed["items"].as_array()).into_iter().flatten() {
        parts.extend(["id", "batch_id"].iter().filter_map(|name| it[*name].as_str()).map(str::to_owned));
    }
    // Workflows, their executions, and schedules.
    house.act("PUT", "/api/v1/workflows/canary", WORKFLOW).await;
    house.act("PUT", "/api/v1/workflows/canary", WORKFLOW.replace("-w2", "-w22").replace("x-token", "x-token2")).await;
    let input = json!({"headers": {"authorization": "CANARY-i"}});
    let begun = house.act("POST", "/api/v1/executions", json!({"workflow": "canary", "input": input})).await;
    let execution = begun["id"].as_str().or(begun["execution_id"].as_str()).expect("an id").to_owned();
    let shown = house.act("GET", &format!("/api/v1/executions/{execution}"), "").await;
    parts.extend(shown["tasks"].as_array().into_iter().flatten().filter_map(|it| it["id"].as_str()).map(str::to_owned));
    parts.insert(execution);
    let mut task = json!({"kind": "k", "hooks": {"success": [call(9)]}});
    task["executor"] = http.clone();
    house.act("PUT", "/api/v1/schedules/s1", json!({"every": "1h", "task": task})).await;
    house.act("PUT", "/api/v1/schedules/s1", json!({"every": "2h", "task": task})).await;
    house.act("PUT", "/api/v1/schedules/s2", json!({"every": "1h", "workflow": "canary", "input": input})).await;
    house.act("POST", "/api/v1/schedules/s1/trigger", json!({})).await;
    // Subscriptions and their deliveries; an operation; an alert.
    let own = json!({"x-api-key": "CANARY-sub", "x-colour": "blue"});
    let subscription = json!({"url": "https://example.test/?token=CANARY-t", "headers": own, "types": ["task.*"]});
    house.act("PUT", "/api/v1/subscriptions/ops", subscription).await;
    house.act("POST", "/api/v1/subscriptions/ops/test", json!({})).await;
    house.act("PUT", "/api/v1/alerts/watch", json!({"types": ["task.failed"], "threshold": 1, "window": "5m"})).await;
    let cancel = json!({"action": "cancel", "filter": "kind:k state:open", "dry_run": false, "note": "https://x.test/?token=CANARY-n"});
    let operation = house.act("POST", "/api/v1/tasks/bulk", cancel).await;
    parts.extend(operation["id"].as_str().map(str::to_owned));
    house.app.engine.tick().await.expect("a tick");
    house.app.engine.tick().await.expect("a tick");
    let everything = house.act("GET", "/api/v1/tasks?limit=500", "").await;
    for it in everything["items"].as_array().expect("tasks") {
        parts.extend(
            ["id", "fingerprint", "execution_id"].iter().filter_map(|name| it[*name].as_str()).map(str::to_owned),
        );
    }
    parts
}

/// H12: whoever may look sees no secret of a call, at any address there is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_view_shows_the_secrets_of_calls() {
    for place in Place::all().await {
        let house = House::new(&place).await;
        let parts = plant(&house).await;
        let viewer = house.key(Role::Viewer, "mine").await;
        // What a viewer may not look at is looked at by somebody who may.
        let admin = house.key(Role::Admin, "mine").await;
        let (mut asked, mut good, mut answered) = (0, 0, BTreeSet::new());
        for route in routes().iter().filter(|route| route.method == Method::GET) {
            if route.need == Need::AdministerAll {
                continue;
            }
            let key = if Role::Viewer.may(route.need) { &viewer } else { &admin };
            let mut addresses = vec![route.path.to_owned()];
            while addresses.first().is_some_and(|it| it.contains('{')) {
                let name = addresses[0]
                    .split_once('{')
                    .and_then(|(_, rest)| rest.split_once('}'))
                    .expect("a name")
                    .0
                    .to_owned();
                let hole = format!("{{{name}}}");
                let fitting = |part: &&String| if name == "version" { part.len() == 1 } else { true };
                addresses = addresses
                    .iter()
                    .flat_map(|it| parts.iter().filter(fitting).map(|part| it.replacen(&hole, part, 1)))
                    .collect();
            }
            for address in addresses {
                let (status, bytes) = house.send("GET", &address, key, None, "").await;
                asked += 1;
                let shown = String::from_utf8_lossy(&bytes);
                assert!(!shown.contains("CANARY"), "{} {address}: {shown}", place.word);
                if status.is_success() {
                    good += 1;
                    answered.insert(route.path);
                }
            }
        }
        assert!(good > 100, "{good} of {asked} addresses were answered");
        for path in [
            "/api/v1/tasks/{id}",
            "/task/{id}",
            "/api/v1/schedules/{name}",
            "/api/v1/workflows/{path}/diff",
            "/api/v1/workflows/{path}/versions/{version}",
            "/api/v1/executions/{id}",
            "/api/v1/subscriptions/{id}",
            "/api/v1/admin/audit",
            "/api/v1/events",
            "/api/v1/events/stream",
            "/api/v1/tasks/{id}/attempts",
            "/api/v1/tasks/{id}/payloads",
            "/batch/{id}",
            "/dag/{id}",
            "/api/v1/subscriptions/{id}/deliveries",
        ] {
            assert!(answered.contains(path), "{path} was answered: {answered:?}");
        }
        // What was masked is there under its name, and what is no secret is shown.
        let shown = house.get("/api/v1/schedules/s1", &viewer).await;
        assert_eq!(shown["task"]["executor"]["headers"]["x-auth-token"], "***", "{shown}");
        assert_eq!(shown["task"]["executor"]["headers"]["x-colour"], "blue");
        assert_eq!(shown["task"]["executor"]["headers"]["idempotency-key"], "visible");
        assert_eq!(shown["task"]["executor"]["url"], "https://example.test/1?api_key=***&a=b");
        let source = text(&house.get("/api/v1/workflows/canary/versions/1", &viewer).await["source"]);
        assert!(source.contains("Authorization: \"***\"") && source.starts_with("name: canary"), "{source}");
        // Who may put another has the text as it is.
        let operator = house.key(Role::Operator, "mine").await;
        let own = house.get("/api/v1/workflows/canary/versions/1", &operator).await;
        assert_eq!(own["source"], WORKFLOW);
        assert!(!own["workflow"].to_string().contains("CANARY"), "{own}");
        // The call is made with the true value: it is what is stored.
        let kept = house.app.engine.schedule("mine", "s1").await.expect("a schedule");
        assert!(format!("{kept:?}").contains("CANARY-2"));
        place.leave().await;
    }
}

/// A client that sends back what it was shown does not overwrite a secret with a mask.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mask_that_is_sent_back_is_refused_by_name() {
    for place in Place::all().await {
        let house = House::new(&place).await;
        let http = json!({"type": "http", "url": "https://example.test/", "headers": headers()});
        house.act("PUT", "/api/v1/schedules/s1", json!({"every": "1h", "task": {"kind": "k", "executor": http}})).await;
        house.act("PUT", "/api/v1/workflows/canary", WORKFLOW).await;
        let subscription = json!({"url": "https://example.test/", "headers": {"x-api-key": "CANARY-sub"}});
        house.act("PUT", "/api/v1/subscriptions/ops", &subscription).await;
        let (operator, viewer) = (house.key(Role::Operator, "mine").await, house.key(Role::Viewer, "mine").await);
        let task = house.get("/api/v1/schedules/s1", &operator).await["task"].clone();
        let source = text(&house.get("/api/v1/workflows/canary", &viewer).await["source"]);
        let headers = house.get("/api/v1/subscriptions/ops", &operator).await["headers"].clone();
        let made = house
            .act("POST", "/api/v1/tasks", json!({"kind": "p", "payload": {"headers": {"authorization": "CANARY"}}}))
            .await;
        let id = text(&made["tasks"][0]["id"]);
        let leased = house.act("POST", "/api/v1/leases", json!({"worker": "w"})).await;
        let report = json!({"lease": leased["leases"][0]["lease"], "outcome": "failed", "error": {"message": "x", "class": "final"}});
        house.act("POST", "/api/v1/leases/report", json!({"reports": [report]})).await;
        let payload = house.get(&format!("/api/v1/tasks/{id}"), &operator).await["payload"].clone();
        assert_eq!(payload, json!({"headers": {"authorization": "***"}}));
        for (method, path, body, fault) in [
            (
                "PUT",
                "/api/v1/schedules/s1".to_owned(),
                json!({"every": "3h", "task": task}).to_string(),
                "task.executor.headers.",
            ),
            ("POST", "/api/v1/tasks".into(), task.to_string(), "executor.headers."),
            ("PUT", "/api/v1/workflows/canary".into(), source, "headers."),
            (
                "PUT",
                "/api/v1/subscriptions/ops".into(),
                json!({"url": "https://example.test/", "headers": headers}).to_string(),
                "headers.x-api-key",
            ),
            (
                "PUT",
                "/api/v1/subscriptions/ops".into(),
                json!({"url": "https://example.test/?token=***"}).to_string(),
                "url",
            ),
            (
                "POST",
                format!("/api/v1/tasks/{id}/retry"),
                json!({"payload_patch": payload}).to_string(),
                "payload_patch.headers.authorization",
            ),
        ] {
            let (status, bytes) = house.send(method, &path, &operator, None, &body).await;
            let problem = String::from_utf8_lossy(&bytes);
            assert_eq!(status, StatusCode::BAD_REQUEST, "{method} {path}: {problem}");
            assert!(problem.contains(fault), "{method} {path}: {problem}");
        }
        let kept = house.app.engine.schedule("mine", "s1").await.expect("a schedule");
        assert!(format!("{kept:?}").contains("CANARY-2"), "it is as it was");
        place.leave().await;
    }
}

/// Headers of the connection and of ours cannot be given.
#[tokio::test]
async fn headers_that_are_not_the_callers_are_refused_by_name() {
    let place = Place::sqlite().await;
    let house = House::new(&place).await;
    for name in [
        "host",
        "Content-Length",
        "transfer-encoding",
        "connection",
        "TE",
        "upgrade",
        "Comeback-Task",
        "comeback-handle",
    ] {
        let http = json!({"type": "http", "url": "https://example.test/", "headers": {name: "x"}});
        let hook = json!({"type": "hook", "start": {"url": "https://example.test/", "headers": {name: "x"}}});
        let told = json!({"success": [{"url": "https://example.test/", "headers": {name: "x"}}]});
        for (body, path) in [
            (json!({"kind": "k", "executor": http}), format!("executor.headers.{name}")),
            (json!({"kind": "k", "executor": hook}), format!("executor.start.headers.{name}")),
            (json!({"kind": "k", "hooks": told}), format!("hooks.success[0].headers.{name}")),
        ] {
            let (status, bytes) =
                house.send("POST", "/api/v1/tasks", &house.admin, Some("mine"), &body.to_string()).await;
            assert_eq!(status, StatusCode::BAD_REQUEST, "{body}");
            assert!(String::from_utf8_lossy(&bytes).contains(&path), "{body}: {bytes:?}");
        }
    }
    let own = json!({"type": "http", "url": "https://example.test/", "headers": {"idempotency-key": "order-7"}});
    house.act("POST", "/api/v1/tasks", json!({"kind": "k", "executor": own})).await;
    place.leave().await;
}

/// The value of a named secret is in no answer, and only an operator puts or deletes one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_named_secret_is_put_by_an_operator_and_shown_to_nobody() {
    for place in Place::all().await {
        let house = House::new(&place).await;
        let operator = house.key(Role::Operator, "mine").await;
        let body = json!({"value": "sk_live_CANARY"}).to_string();
        for role in [Role::Viewer, Role::Submitter, Role::Worker] {
            let key = house.key(role, "mine").await;
            let (status, _) = house.send("PUT", "/api/v1/secrets/stripe", &key, None, &body).await;
            assert_eq!(status, StatusCode::FORBIDDEN, "{role:?}");
        }
        let (status, made) = house.send("PUT", "/api/v1/secrets/stripe", &operator, None, &body).await;
        assert_eq!(status, StatusCode::CREATED, "{made:?}");
        let (status, again) = house.send("PUT", "/api/v1/secrets/stripe", &operator, None, &body).await;
        assert_eq!(status, StatusCode::OK, "{again:?}");
        let (viewer, admin) = (house.key(Role::Viewer, "mine").await, house.key(Role::Admin, "mine").await);
        let bearer = json!({"secret": "stripe", "prefix": "Bearer "});
        let http = json!({"type": "http", "url": "https://example.test/", "headers": {"authorization": bearer}});
        let task = house.act("POST", "/api/v1/tasks", json!({"kind": "k", "executor": http})).await;
        let shown = house.get(&format!("/api/v1/tasks/{}", text(&task["tasks"][0]["id"])), &viewer).await;
        assert_eq!(shown["executor"]["headers"]["authorization"], bearer, "the name is no secret");
        for path in ["/api/v1/secrets", "/api/v1/secrets/stripe", "/api/v1/admin/audit", "/api/v1/tasks"] {
            assert!(!house.get(path, &admin).await.to_string().contains("CANARY"), "{path}");
        }
        let audit = house.get("/api/v1/admin/audit?act=secret", &admin).await;
        assert_eq!(audit["items"].as_array().map(Vec::len), Some(2), "{audit}");
        // Another namespace has none of it.
        let other = house.key(Role::Admin, "other").await;
        assert_eq!(house.get("/api/v1/secrets", &other).await["items"], json!([]));
        assert_eq!(house.send("GET", "/api/v1/secrets/stripe", &other, None, "").await.0, StatusCode::NOT_FOUND);
        assert_eq!(house.send("DELETE", "/api/v1/secrets/stripe", &other, None, "").await.0, StatusCode::NOT_FOUND);
        for bad in [
            json!({"value": ""}),
            json!({"value": 1}),
            json!({"value": "***"}),
            json!({"value": "x".repeat(20_000)}),
            json!({}),
        ] {
            let (status, bytes) = house.send("PUT", "/api/v1/secrets/stripe", &operator, None, &bad.to_string()).await;
            assert_eq!(status, StatusCode::BAD_REQUEST, "{bytes:?}");
        }
        assert_eq!(house.send("DELETE", "/api/v1/secrets/stripe", &operator, None, "").await.0, StatusCode::NO_CONTENT);
        place.leave().await;
    }
}

/// H13: a key that is for one namespace sees its own kinds and numbers, and a page has an end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_are_of_ones_own_namespace_and_bounded() {
    let place = Place::sqlite().await;
    let house = House::new(&place).await;
    let (blue, red) = (house.key(Role::Viewer, "blue").await, house.key(Role::Viewer, "red").await);
    let run = async |namespace: &str, kinds: Vec<String>| {
        let post = async |path: &str, body: Value| {
            let (status, bytes) = house.send("POST", path, &house.admin, Some(namespace), &body.to_string()).await;
            assert!(status.is_success(), "{path}: {bytes:?}");
            serde_json::from_slice::<Value>(&bytes).expect("JSON")
        };
        let tasks: Vec<Value> = kinds.iter().map(|kind| json!({"kind": kind})).collect();
        post("/api/v1/tasks", json!({"tasks": tasks})).await;
        // One claim looks at so many lanes at once.
        let mut reported = 0;
        while reported < kinds.len() {
            let leased = post("/api/v1/leases", json!({"worker": "w", "limit": 5000})).await;
            let leases = leased["leases"].as_array().expect("leases");
            assert!(!leases.is_empty(), "{reported} of {}", kinds.len());
            reported += leases.len();
            let reports: Vec<Value> =
                leases.iter().map(|it| json!({"lease": it["lease"], "outcome": "succeeded"})).collect();
            post("/api/v1/leases/report", json!({"reports": reports})).await;
        }
    };
    // RED comes first and invents names, of the sort that calls have too.
    run("red", (0..300).map(|n| format!("red.merger-{n}")).collect()).await;
    run("red", (0..300).map(|n| format!("hook.red-{n}")).collect()).await;
    run("blue", vec!["blue.bill".into()]).await;
    let own = house.metrics(&blue).await;
    let foreign = |line: &&str| line.contains("red.") || line.contains("red-") || line.contains("\"red\"");
    assert_eq!(own.lines().find(foreign), None);
    assert!(own.contains("comeback_tasks_completed_total{outcome=\"succeeded\",kind=\"blue.bill\"} 1\n"), "{own}");
    assert!(
        own.contains("comeback_tasks_created_total 1\n") && own.contains("comeback_attempts_started_total 1\n"),
        "{own}"
    );
    for hidden in
        ["http_requests_in_progress", "db_query_duration_seconds", "worker_loop_iterations_total", "instance="]
    {
        assert!(!own.contains(hidden), "{hidden} tells of everybody");
    }
    let of_red = house.metrics(&red).await;
    assert!(of_red.contains("comeback_tasks_created_total 600\n"), "{of_red}");
    assert!(of_red.contains("kind=\"other\"") && !of_red.contains("blue"), "the kinds beyond 200 are one");
    assert!(of_red.lines().count() < 8_000, "{} lines", of_red.lines().count());
    let all = house.metrics(&house.admin).await;
    assert!(all.contains("comeback_tasks_created_total 601\n"), "a key for all sees the sum");
    assert!(all.contains("kind=\"blue.bill\"") && all.contains("kind=\"red.merger-0\""));
    assert!(all.contains("comeback_http_requests_in_progress") && all.contains("instance=\"test\""));
    place.leave().await;
}

/// M9: cursors and back-tests tell nothing of what others have written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cursors_and_back_tests_count_nobody_else() {
    for place in Place::all().await {
        let house = House::new(&place).await;
        let blue = house.key(Role::Submitter, "blue").await;
        let post = async |key: &str, namespace: Option<&str>, path: &str, body: Value| {
            let (status, bytes) = house.send("POST", path, key, namespace, &body.to_string()).await;
            assert!(status.is_success(), "{path}: {bytes:?}");
            serde_json::from_slice::<Value>(&bytes).expect("JSON")
        };
        for _ in 0..7 {
            post(&house.admin, Some("red"), "/api/v1/tasks", json!({"kind": "k"})).await;
        }
        let alert = json!({"alert": {"types": ["task.failed"], "threshold": 1, "window": "5m"}});
        assert_eq!(post(&blue, None, "/api/v1/alerts/backtest", alert.clone()).await["events"], 0);
        let red = house.key(Role::Viewer, "red").await;
        let counted = post(&red, None, "/api/v1/alerts/backtest", alert).await["events"].as_u64().expect("a number");
        assert!(counted >= 7, "{counted}");
        let before = text(&house.get("/api/v1/events?after=latest", &blue).await["next_cursor"]);
        assert!(before.len() > 30 && !before.starts_with('f'), "{before}");
        let task = post(&blue, None, "/api/v1/tasks", json!({"kind": "k"})).await;
        let page = house.get(&format!("/api/v1/events?after={before}"), &blue).await;
        let events = page["items"].as_array().expect("events");
        assert!(!events.is_empty() && events.iter().all(|it| it["task_id"] == task["tasks"][0]["id"]), "{page}");
        // The same place is the same text, and each event is one's own place to go on from.
        assert_eq!(house.get(&format!("/api/v1/events?after={before}"), &blue).await["items"], page["items"]);
        let rest = house.get(&format!("/api/v1/events?after={}", text(&events[0]["id"])), &blue).await;
        assert_eq!(rest["items"].as_array().map(Vec::len), Some(events.len() - 1));
        // A cursor from before this was so, in the clear.
        let end = house.app.engine.store().feed_end().await.expect("the store");
        assert_eq!(house.get(&format!("/api/v1/events?after={end}"), &blue).await["items"], json!([]));
        // One of another namespace is none.
        let (status, _) = house.send("GET", &format!("/api/v1/events?after={before}"), &red, None, "").await;
        assert_eq!(status, StatusCode::BAD_REQUEST);
        place.leave().await;
    }
}

/// In the dialect of queues a worker is named by everybody; a run is ended by the key that leased it, or by its lease.
#[tokio::test]
async fn a_key_does_not_end_the_run_of_another_by_naming_its_worker() {
    let place = Place::sqlite().await;
    let house = House::new(&place).await;
    let (mine, theirs) = (house.key(Role::Worker, "mine").await, house.key(Role::Worker, "mine").await);
    for _ in 0..3 {
        house.act("POST", "/api/queue/enqueue", json!({"node_id": "a"})).await;
    }
    let lease = async |key: &str| {
        let (_, bytes) = house.send("POST", "/api/queue/lease", key, None, r#"{"worker_id": "worker-1"}"#).await;
        serde_json::from_slice::<Value>(&bytes).expect("JSON")["job"].clone()
    };
    let end = async |key: &str, job: &Value, body: Value| {
        let path = format!("/api/queue/{}/complete", text(&job["queue_id"]));
        house.send("POST", &path, key, None, &body.to_string()).await.0
    };
    let job = lease(&mine).await;
    assert_eq!(end(&theirs, &job, json!({"worker_id": "worker-1"})).await, StatusCode::CONFLICT);
    assert_eq!(end(&mine, &job, json!({"worker_id": "worker-1"})).await, StatusCode::OK);
    let job = lease(&mine).await;
    assert_eq!(end(&theirs, &job, json!({"lease": job["lease"]})).await, StatusCode::OK, "who has the lease may");
    // One that was leased natively is not the dialect's to end by a name.
    let (_, bytes) = house.send("POST", "/api/v1/leases", &mine, None, r#"{"worker": "worker-2"}"#).await;
    let leased: Value = serde_json::from_slice(&bytes).expect("JSON");
    let job = json!({"queue_id": leased["leases"][0]["task"]["id"]});
    assert_eq!(end(&theirs, &job, json!({"worker_id": "worker-2"})).await, StatusCode::CONFLICT);
    place.leave().await;
}
