//! API keys: scopes, addresses, rotation, the warning before they end, names and quotas; and what else became rows.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::{Method, Request};
use comeback_core::{Millis, Quotas, Timestamp};
use comeback_engine::store::{SqliteOptions, SqliteStore, Store};
use comeback_engine::{Engine, EngineConfig, VirtualClock};
use comeback_server::auth::{NewKey, Peer, Role};
use comeback_server::{App, AppOptions};
use serde_json::{Value, json};

use crate::place::{Answer, Place, send};

/// A caller with a key.
struct Caller<'a> {
    app: &'a Arc<App>,
    key: String,
    from: Option<IpAddr>,
}

impl<'a> Caller<'a> {
    async fn new(app: &'a Arc<App>, role: Role, namespace: &str, name: Option<&str>) -> Caller<'a> {
        let new = NewKey { name: name.map(str::to_owned), role, namespace: namespace.into(), valid_for: None };
        let made = app.keys.create(&**app.engine.store(), new, &Default::default(), app.engine.now()).await;
        Caller { app, key: made.expect("a key").1, from: None }
    }

    fn with(app: &'a Arc<App>, made: &Value) -> Caller<'a> {
        Caller { app, key: made["key"].as_str().unwrap_or_else(|| panic!("{made}")).to_owned(), from: None }
    }

    async fn ask(&self, method: Method, path: &str, body: Value) -> Answer {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("authorization", format!("Bearer {}", self.key))
            .header("content-type", "application/json");
        let body = if body.is_null() { Body::empty() } else { Body::from(body.to_string()) };
        let mut request = request.body(body).expect("a request");
        if let Some(address) = self.from {
            request.extensions_mut().insert(Peer(address));
        }
        send(&self.app.router(), request).await
    }

    async fn post(&self, path: &str, body: Value) -> (u16, Value) {
        let answer = self.ask(Method::POST, &format!("/api/v1{path}"), body).await;
        (answer.status.as_u16(), answer.json())
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        let answer = self.ask(Method::GET, &format!("/api/v1{path}"), Value::Null).await;
        (answer.status.as_u16(), answer.json())
    }

    async fn made(&self, body: Value) -> Value {
        let (status, made) = self.post("/keys", body).await;
        assert_eq!(status, 201, "{made}");
        made
    }
}

fn kinds(leased: &Value) -> Vec<&str> {
    let mut kinds: Vec<&str> = leased["leases"]
        .as_array()
        .unwrap_or_else(|| panic!("{leased}"))
        .iter()
        .filter_map(|it| it["task"]["kind"].as_str().or(it["kind"].as_str()))
        .collect();
    kinds.sort_unstable();
    kinds
}

#[tokio::test]
async fn a_key_limited_to_queues_and_kinds_leases_and_submits_nothing_else() {
    for place in Place::all().await {
        let admin = Caller::new(&place.app, Role::Admin, "*", None).await;
        let all = json!({"tasks": [
            {"kind": "mail.send"}, {"kind": "mail.read"}, {"kind": "pay"}, {"kind": "pay", "queue": "billing"},
        ]});
        assert_eq!(admin.post("/tasks", all).await.0, 201);
        let worker = admin.made(json!({"role": "worker", "kinds": ["mail.*"], "queues": ["default"]})).await;
        assert_eq!((&worker["kinds"], &worker["queues"]), (&json!(["mail.*"]), &json!(["default"])));
        let worker = Caller::with(&place.app, &worker);
        let (status, problem) = worker.post("/leases", json!({"worker": "w", "queues": ["billing"]})).await;
        assert_eq!(status, 403, "{problem}");
        assert!(problem["detail"].as_str().expect("words").contains("`billing`"), "{problem}");
        assert_eq!(worker.post("/leases", json!({"worker": "w", "kinds": ["pay"]})).await.0, 403);
        let (_, leased) = worker.post("/leases", json!({"worker": "w"})).await;
        assert_eq!(kinds(&leased), ["mail.read", "mail.send"], "{}: {leased}", place.word);
        let reports: Vec<Value> = leased["leases"]
            .as_array()
            .expect("leases")
            .iter()
            .map(|it| json!({"lease": it["lease"], "outcome": "succeeded"}))
            .collect();
        assert_eq!(worker.post("/leases/report", json!({"reports": reports})).await.0, 200);
        for path in ["/tasks", "/stats", "/keys", "/me"] {
            assert_eq!(worker.get(path).await.0, 403, "{path}");
        }
        let exact = Caller::with(&place.app, &admin.made(json!({"role": "worker", "queues": ["billing"]})).await);
        let (_, leased) = exact.post("/leases", json!({"worker": "w"})).await;
        assert_eq!(kinds(&leased), ["pay"], "without queues it is narrowed to those of the key");
        let wide = Caller::with(&place.app, &admin.made(json!({"role": "worker", "queues": ["b*"]})).await);
        assert_eq!(wide.post("/leases", json!({"worker": "w"})).await.0, 403, "it must name them");
        assert_eq!(wide.post("/leases", json!({"worker": "w", "queues": ["billing"]})).await.0, 200);

        let submitter = admin.made(json!({"role": "submitter", "kinds": ["mail.send"], "queues": ["mail-*"]})).await;
        let submitter = Caller::with(&place.app, &submitter);
        let (status, sent) = submitter.post("/tasks", json!({"kind": "mail.send", "queue": "mail-1"})).await;
        assert_eq!(status, 201, "{sent}");
        let own = sent["tasks"][0]["id"].as_str().expect("an id").to_owned();
        let cases = [
            json!({"kind": "mail.send"}),
            json!({"kind": "pay", "queue": "mail-1"}),
            json!({"tasks": [{"kind": "mail.send", "queue": "mail-1"}, {"kind": "pay", "queue": "mail-1"}]}),
        ];
        for body in cases {
            assert_eq!(submitter.post("/tasks", body.clone()).await.0, 403, "{body}");
        }
        assert_eq!(submitter.get(&format!("/tasks/{own}")).await.0, 200);
        let (_, foreign) = admin.post("/tasks", json!({"kind": "pay"})).await;
        let foreign = foreign["tasks"][0]["id"].as_str().expect("an id");
        assert_eq!(submitter.get(&format!("/tasks/{foreign}")).await.0, 404, "what it is not good for is not there");
        for path in ["/tasks", "/stats", "/events", "/policies", &format!("/tasks/{own}/events")] {
            assert_eq!(submitter.get(path).await.0, 403, "{path}");
        }
        assert_eq!(submitter.get("/me").await.0, 200);
        assert_eq!(submitter.post("/executions", json!({"workflow": "w"})).await.0, 403);
        let (status, problem) = admin.post("/keys", json!({"role": "viewer", "queues": ["a"]})).await;
        assert_eq!((status, &problem["errors"][0]["path"]), (400, &json!("queues")));
        place.leave().await;
    }
}

#[tokio::test]
async fn a_rotated_key_stays_good_until_its_overlap_ends() {
    for place in Place::all().await {
        let (admin, clock) =
            (Caller::new(&place.app, Role::Admin, "*", None).await, place.app.clock.clone().expect("one"));
        let asked = json!({"role": "viewer", "name": "dash", "namespace": "red", "expires_in": "90d",
            "allowed_addresses": ["127.0.0.1"]});
        let first = admin.made(asked).await;
        let old = Caller { from: "127.0.0.1".parse().ok(), ..Caller::with(&place.app, &first) };
        let path = format!("/keys/{}/rotate", first["id"].as_str().expect("an id"));
        let (status, second) = admin.post(&path, json!({"overlap": "1h"})).await;
        assert_eq!(status, 201, "{second}");
        for same in ["name", "role", "namespace", "allowed_addresses"] {
            assert_eq!(second[same], first[same], "{same}");
        }
        assert_eq!(second["replaces"], first["id"]);
        let at = |days: u64| (place.app.engine.now() + Millis::from_days(days)).to_rfc3339();
        assert_eq!(second["expires_at"], at(90), "as long as the first");
        let new = Caller { from: "127.0.0.1".parse().ok(), ..Caller::with(&place.app, &second) };
        assert_eq!((old.get("/me").await.0, new.get("/me").await.0), (200, 200), "both are good");
        let (_, listed) = admin.get("/keys").await;
        let ids: Vec<&Value> = listed["items"].as_array().expect("keys").iter().map(|it| &it["id"]).collect();
        assert!(ids.contains(&&first["id"]) && ids.contains(&&second["id"]), "{listed}");
        assert_eq!(admin.post(&path, json!({})).await.0, 400, "a key is rotated once");
        clock.advance(Millis::from_secs(3_601));
        assert_eq!((old.get("/me").await.0, new.get("/me").await.0), (401, 200));
        let path = format!("/keys/{}/rotate", second["id"].as_str().expect("an id"));
        let (_, third) = admin.post(&path, json!({"overlap": "0s", "expires_in": "1d"})).await;
        assert_eq!((new.get("/me").await.0, &third["expires_at"]), (401, &json!(at(1))), "{third}");
        let foreign = Caller::new(&place.app, Role::Admin, "blue", None).await;
        let path = format!("/keys/{}/rotate", third["id"].as_str().expect("an id"));
        assert_eq!(foreign.post(&path, json!({})).await.0, 404, "not a key of its namespace");
        let (_, acts) = admin.get("/admin/audit?act=key.rotate&all=true").await;
        assert_eq!(acts["items"].as_array().map(Vec::len), Some(2), "{acts}");
        assert!(!acts.to_string().contains(third["key"].as_str().expect("a secret")));
        place.leave().await;
    }
}

#[tokio::test]
async fn a_key_is_good_from_its_networks_only() {
    for place in Place::all().await {
        let admin = Caller::new(&place.app, Role::Admin, "*", None).await;
        let made = admin
            .made(json!({"role": "viewer", "allowed_addresses": ["10.0.0.0/8", "2001:db8::/32", "192.0.2.7"]}))
            .await;
        let from = |address: Option<&str>| Caller {
            from: address.map(|text| text.parse().expect("an address")),
            ..Caller::with(&place.app, &made)
        };
        for (address, expected) in [
            (Some("10.1.2.3"), 200),
            (Some("2001:db8::1"), 200),
            (Some("192.0.2.7"), 200),
            (Some("::ffff:10.1.2.3"), 200),
            (Some("11.0.0.1"), 403),
            (Some("192.0.2.8"), 403),
            (Some("::1"), 403),
            (None, 403),
        ] {
            assert_eq!(from(address).get("/me").await.0, expected, "{address:?}");
        }
        let metrics = admin.ask(Method::GET, "/metrics", Value::Null).await;
        let metrics = String::from_utf8(metrics.bytes.to_vec()).expect("text");
        assert!(metrics.contains("comeback_key_address_refusals_total 4"), "{metrics}");
        for bad in ["10.0.0.0/33", "here", ""] {
            let (status, problem) = admin.post("/keys", json!({"role": "viewer", "allowed_addresses": [bad]})).await;
            assert_eq!((status, &problem["errors"][0]["path"]), (400, &json!("allowed_addresses[0]")), "{problem}");
        }
        place.leave().await;
    }
}

#[tokio::test]
async fn a_key_that_ends_soon_is_told_of() {
    let place = Place::sqlite().await;
    let clock = place.app.clock.clone().expect("a clock");
    let admin = Caller::new(&place.app, Role::Admin, "*", None).await;
    let made = admin.made(json!({"role": "viewer", "expires_in": "15d"})).await;
    let viewer = Caller::with(&place.app, &made);
    let expires = async || {
        let answer = viewer.ask(Method::GET, "/api/v1/me", Value::Null).await;
        answer.headers.get("comeback-key-expires").map(|value| value.to_str().expect("text").to_owned())
    };
    let soon = async || {
        let (_, listed) = admin.get("/keys").await;
        let metrics = admin.ask(Method::GET, "/metrics", Value::Null).await;
        let metrics = String::from_utf8(metrics.bytes.to_vec()).expect("text");
        let marked = listed["items"].as_array().expect("keys").iter().filter(|it| it["expires_soon"] == true).count();
        (marked, metrics.contains("comeback_keys_expiring 1\n"))
    };
    assert_eq!((expires().await, soon().await), (None, (0, false)));
    clock.advance(Millis::from_days(2));
    assert_eq!(expires().await.as_deref(), made["expires_at"].as_str());
    assert_eq!(soon().await, (1, true));
    let (status, _) = admin.post(&format!("/keys/{}/rotate", made["id"].as_str().expect("an id")), json!({})).await;
    assert_eq!(status, 201);
    assert!(!soon().await.1 || soon().await.0 == 1, "what was rotated is not counted");
    clock.advance(Millis::from_days(20));
    assert_eq!(viewer.get("/me").await.0, 401);
}

/// M4: an admin of one namespace cannot act under the name of somebody else's key.
#[tokio::test]
async fn names_of_keys_are_unique_and_the_audit_tells_ids() {
    for place in Place::all().await {
        let root = Caller::new(&place.app, Role::Admin, "*", Some("root")).await;
        let red = Caller::new(&place.app, Role::Admin, "red", Some("red-admin")).await;
        let unnamed = root.made(json!({"role": "admin", "namespace": "*"})).await;
        let taken = async |name: &Value| {
            let (status, problem) = red.post("/keys", json!({"role": "viewer", "name": name})).await;
            (status, problem["type"].as_str().unwrap_or_default().to_owned())
        };
        assert_eq!(taken(&json!("root")).await, (409, "name-taken".into()));
        assert_eq!(taken(&json!("red-admin")).await, (409, "name-taken".into()));
        assert_eq!(taken(&unnamed["id"]).await.0, 400, "a name that looks like an id");
        let made = red.made(json!({"role": "viewer", "name": "dash"})).await;
        let blue = Caller::new(&place.app, Role::Admin, "blue", None).await;
        blue.made(json!({"role": "viewer", "name": "dash"})).await;
        let (_, acts) = red.get("/admin/audit?act=key.create").await;
        let is_it = |act: &&Value| act["subject"] == made["id"];
        let act = acts["items"].as_array().expect("acts").iter().find(is_it).expect("it was written down");
        let id = red.key.split('_').nth(1).expect("an id");
        assert_eq!(
            (&act["subject"], &act["key"], &act["key_id"]),
            (&made["id"], &json!("red-admin"), &json!(id)),
            "{act}"
        );
        let (_, by_id) = red.get(&format!("/admin/audit?actor={id}")).await;
        assert_eq!(by_id["items"].as_array().map(Vec::len), Some(1));
        place.leave().await;
    }
}

/// M9: notes, names and hosts of the whole server are for those who administer all of it.
#[tokio::test]
async fn loops_and_instances_tell_an_admin_of_one_namespace_nothing_of_the_house() {
    let place = Place::sqlite().await;
    let root = Caller::new(&place.app, Role::Admin, "*", Some("root")).await;
    let blue = Caller::new(&place.app, Role::Admin, "blue", None).await;
    root.post("/admin/loops/prune/pause", json!({"note": "HOUSE-NOTE"})).await;
    let (_, loops) = blue.get("/admin/loops").await;
    assert!(!loops.to_string().contains("HOUSE-NOTE") && !loops.to_string().contains("root"), "{loops}");
    let paused = loops["items"].as_array().expect("loops").iter().find(|it| it["name"] == "prune").expect("it");
    assert_eq!((&paused["paused"], &paused["moved_total"]), (&json!(true), &Value::Null));
    assert!(root.get("/admin/loops").await.1.to_string().contains("HOUSE-NOTE"));
    let since = Instant::now();
    while root.get("/admin/instances").await.1["items"].as_array().is_none_or(Vec::is_empty) {
        assert!(since.elapsed() < Duration::from_secs(20));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let (_, instances) = blue.get("/admin/instances").await;
    assert_eq!(instances["items"][0]["self"], true);
    assert_ne!(instances["items"][0]["id"], "test");
    assert_eq!(root.get("/admin/instances").await.1["items"][0]["id"], "test");
}

async fn instance(name: &str, store: Arc<dyn Store>, quotas: &str) -> Arc<App> {
    let clock = VirtualClock::new(Timestamp(1_800_000_000_000));
    let mut all = Quotas::default();
    for (name, value) in quotas.split(',').filter_map(|it| it.split_once('=')) {
        all.set(name, value).expect("a quota");
    }
    let config = EngineConfig { quotas: all, ..EngineConfig::default() };
    let engine = Engine::without_loops(store, clock.clone(), config).await.expect("an engine");
    let options = AppOptions { instance: name.into(), clock: Some(clock), ..AppOptions::default() };
    App::new(engine, options).await.expect("an app")
}

fn memory() -> Arc<dyn Store> {
    Arc::new(SqliteStore::open(&SqliteOptions::in_memory()).expect("a store"))
}

#[tokio::test]
async fn keys_policies_and_workers_have_quotas_by_namespace() {
    let app = instance("one", memory(), "keys=3,named_policies=2,workers=2").await;
    let root = Caller::new(&app, Role::Admin, "*", None).await;
    let red = Caller::new(&app, Role::Admin, "red", None).await;
    let blue = Caller::new(&app, Role::Admin, "blue", None).await;
    let refused = |(status, problem): (u16, Value)| {
        (status == 429).then(|| problem["quota"].as_str().unwrap_or_default().to_owned())
    };
    for _ in 0..2 {
        red.made(json!({"role": "viewer"})).await;
    }
    assert_eq!(refused(red.post("/keys", json!({"role": "viewer"})).await).as_deref(), Some("keys"));
    blue.made(json!({"role": "viewer"})).await;

    let bind = async |who: &Caller<'_>, kind: &str| {
        let answer = who.ask(Method::PUT, &format!("/api/v1/policies/{kind}"), json!({"policy": 3})).await;
        (answer.status.as_u16(), answer.json())
    };
    for kind in ["a", "b", "a"] {
        assert_eq!(bind(&red, kind).await.0, 200);
    }
    assert_eq!(refused(bind(&red, "c").await).as_deref(), Some("named_policies"));
    assert_eq!(bind(&blue, "c").await.0, 200);

    assert_eq!(red.post("/tasks", json!({"kind": "k"})).await.0, 201);
    let ask = |worker: &str| json!({"worker": worker, "limit": 1});
    let (_, leased) = red.post("/leases", ask("w1")).await;
    assert_eq!(red.post("/leases", ask("w2")).await.0, 200);
    assert_eq!(refused(red.post("/leases", ask("w3")).await).as_deref(), Some("workers"));
    assert_eq!(red.post("/leases", ask("w1")).await.0, 200, "those that are known go on");
    assert_eq!(blue.post("/leases", ask("w3")).await.0, 200);
    let lease = &leased["leases"][0]["lease"];
    assert_eq!(red.post("/leases/heartbeat", json!({"leases": [lease]})).await.0, 200);
    let report = json!({"reports": [{"lease": lease, "outcome": "succeeded"}]});
    assert_eq!(red.post("/leases/report", report).await.1["reports"][0]["state"], "succeeded");
    let metrics = root.ask(Method::GET, "/metrics", Value::Null).await;
    let metrics = String::from_utf8(metrics.bytes.to_vec()).expect("text");
    for quota in ["keys", "named_policies", "workers"] {
        assert!(metrics.contains(&format!("comeback_quota_refusals_total{{quota=\"{quota}\"}} 1")), "{metrics}");
    }
}

/// H6 in small numbers: names of kinds cost nothing, and a neighbour's list is whole.
#[tokio::test]
async fn many_workers_with_many_kinds_leave_the_list_of_a_neighbour_alone() {
    for place in Place::all().await {
        let red = Caller::new(&place.app, Role::Admin, "red", None).await;
        let blue = Caller::new(&place.app, Role::Admin, "blue", None).await;
        blue.post("/leases", json!({"worker": "mine", "kinds": ["k"]})).await;
        let kinds: Vec<String> = (0..1_000).map(|n| format!("a-long-name-of-a-kind-{n}")).collect();
        for n in 0..30 {
            let (status, problem) = red.post("/leases", json!({"worker": format!("w{n}"), "kinds": kinds})).await;
            assert_eq!(status, 200, "{problem}");
        }
        let (_, listed) = blue.get("/admin/workers").await;
        let names: Vec<&str> =
            listed["items"].as_array().expect("workers").iter().filter_map(|it| it["name"].as_str()).collect();
        assert_eq!(names, ["mine"], "{}", place.word);
        let (_, listed) = red.get("/admin/workers").await;
        let items = listed["items"].as_array().expect("workers");
        assert_eq!(items.len(), 30);
        assert_eq!((items[0]["kinds"].as_array().map(Vec::len), &items[0]["more_kinds"]), (Some(20), &json!(980)));
        place.leave().await;
    }
}

/// Two instances on one database: what one changes the other follows within a second.
#[tokio::test]
async fn keys_and_policies_are_followed_by_every_instance() {
    let store = memory();
    let (one, other) = (instance("one", store.clone(), "").await, instance("other", store, "").await);
    let root = Caller::new(&one, Role::Admin, "*", None).await;
    let made = root.made(json!({"role": "operator"})).await;
    let there = Caller::with(&other, &made);
    let until = async |wanted: u16| {
        let since = Instant::now();
        while there.get("/me").await.0 != wanted {
            assert!(since.elapsed() < Duration::from_secs(10), "{wanted}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    until(200).await;
    let policy = async || there.get("/policies/k").await.0;
    assert_eq!(policy().await, 404);
    let bound = root.ask(Method::PUT, "/api/v1/policies/k", json!({"policy": 3})).await;
    assert_eq!(bound.status.as_u16(), 200);
    let follow = async |wanted: u16| {
        let since = Instant::now();
        while policy().await != wanted {
            assert!(since.elapsed() < Duration::from_secs(10), "{wanted}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    follow(200).await;
    let (_, sent) = there.post("/tasks", json!({"kind": "k"})).await;
    let id = sent["tasks"][0]["id"].as_str().expect("an id");
    assert_eq!(there.get(&format!("/tasks/{id}")).await.1["retry"]["max_retries"], 2, "the policy of its kind counts");
    let removed = root.ask(Method::DELETE, "/api/v1/policies/k", Value::Null).await;
    assert_eq!(removed.status.as_u16(), 204);
    follow(404).await;
    let id = made["id"].as_str().expect("an id");
    let revoked = root.ask(Method::DELETE, &format!("/api/v1/keys/{id}"), Value::Null).await;
    assert_eq!(revoked.status.as_u16(), 204);
    until(401).await;
}
