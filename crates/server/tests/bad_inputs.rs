//! Requests that cannot be accepted: each is answered with what is wrong and where, and nothing is changed by any of them.

mod by_hand;
mod from_schemas;

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, Method};
use comeback_engine::store::{ChangeNumbers, FeedCursor};
use comeback_server::auth::{NewKey, Role};
use comeback_server::{App, Route};
use serde_json::{Value, json};

use crate::place::{Answer, Place, request, route, send};

/// A request that is wrong, and what its answer must say.
#[derive(Clone, Debug)]
pub struct Bad {
    pub method: Method,
    pub address: String,
    pub headers: Vec<(&'static str, HeaderValue)>,
    pub body: Bytes,
    /// The word of the problem, where only one is right.
    pub problem: Option<&'static str>,
    /// What the path of a fault begins with.
    pub path: Option<String>,
}

/// What stands for the parts of a path.
pub const TASK: &str = "00000000-0000-7000-8000-000000000000";

impl Bad {
    pub fn new(operation: &str) -> Bad {
        let Route { method, path, .. } = route(operation).clone();
        let address = path.replace("{id}", TASK).replace("{name}", "reap").replace("{kind}", "k");
        let address =
            address.replace("{path}", "w").replace("{version}", "1").replace("{fingerprint}", "00000000000000ff");
        Bad { method, address, headers: Vec::new(), body: Bytes::new(), problem: None, path: None }
    }

    pub fn at(method: Method, address: &str) -> Bad {
        let address = address.to_owned();
        Bad { method, address, headers: Vec::new(), body: Bytes::new(), problem: None, path: None }
    }

    pub fn raw(self, body: impl Into<Bytes>) -> Bad {
        self.header("content-type", "application/json").bytes(body)
    }

    pub fn bytes(self, body: impl Into<Bytes>) -> Bad {
        Bad { body: body.into(), ..self }
    }

    pub fn json(self, body: Value) -> Bad {
        self.raw(body.to_string())
    }

    pub fn part(mut self, part: &str) -> Bad {
        self.address = self.address.replace(TASK, part).replace("/reap/", &format!("/{part}/"));
        self.address = self.address.replace("/workflows/w", &format!("/workflows/{part}"));
        self.address = self.address.replace("/schedules/reap", &format!("/schedules/{part}"));
        if let Some(before) = self.address.strip_suffix("reap").filter(|it| {
            ["/rules/", "/accounts/", "/dependencies/", "/alerts/", "/secrets/"].iter().any(|end| it.ends_with(end))
        }) {
            self.address = format!("{before}{part}");
        }
        self.address = self.address.replace("/errors/00000000000000ff", &format!("/errors/{part}"));
        if self.address.ends_with("/policies/k") {
            self.address = format!("/api/v1/policies/{part}");
        }
        self
    }

    /// What no address may hold is written with a percent sign.
    pub fn query(mut self, query: &str) -> Bad {
        let escaped = |byte: u8| match byte {
            b' ' | b'"' | b'<' | b'>' | 0x7f.. => format!("%{byte:02x}"),
            _ => char::from(byte).to_string(),
        };
        self.address = format!("{}?{}", self.address, query.bytes().map(escaped).collect::<String>());
        self
    }

    pub fn header(mut self, name: &'static str, value: impl AsRef<[u8]>) -> Bad {
        self.headers.push((name, HeaderValue::from_bytes(value.as_ref()).expect("a header")));
        self
    }

    /// It is refused for this field.
    pub fn names(self, path: impl Into<String>) -> Bad {
        Bad { path: Some(path.into()), ..self.is("validation-failed") }
    }

    pub fn is(self, problem: &'static str) -> Bad {
        Bad { problem: Some(problem), ..self }
    }

    fn told(&self) -> String {
        let body = String::from_utf8_lossy(&self.body[..self.body.len().min(300)]);
        format!("{} {} {:?} {body}", self.method, self.address.chars().take(200).collect::<String>(), self.headers)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_inputs_are_refused_by_name_and_change_nothing() {
    let all: Vec<Bad> = [from_schemas::all(), by_hand::all()].into_iter().flatten().collect();
    let distinct: BTreeSet<String> = all.iter().map(|bad| format!("{bad:?}")).collect();
    assert!(distinct.len() >= 500, "only {} different ones", distinct.len());
    let (count, all) = (all.len(), Arc::new(all));
    for place in Place::all().await {
        let world = Arc::new(World::new(&place.app).await);
        let before = world.dump().await;
        let mut last = world.last_change(None).await;
        let mut faults = Vec::new();
        for start in (0..count).step_by(GROUP) {
            let group = start..count.min(start + GROUP);
            let halves = [0, 1].map(|half| {
                let (world, all, group) = (world.clone(), all.clone(), group.clone());
                tokio::spawn(async move { world.judge(all[group].iter().skip(half).step_by(2)).await })
            });
            for half in halves {
                faults.extend(half.await.expect("all are asked"));
            }
            let now = world.last_change(last.0).await;
            if now != last {
                let told: Vec<String> = all[group].iter().map(Bad::told).collect();
                faults.push(format!("something was changed by one of\n    {}", told.join("\n    ")));
                last = now;
            }
        }
        assert!(faults.is_empty(), "{}, {} of {count}:\n{}", place.word, faults.len(), faults.join("\n"));
        assert_eq!(before, world.dump().await, "{}", place.word);
        drop(world);
        place.leave().await;
    }
}

/// As many are sent before it is looked whether one of them changed something.
const GROUP: usize = 50;

/// A problem with all its members, that names what it must.
fn judge(bad: &Bad, answer: &Answer) -> Result<(), String> {
    if !answer.status.is_client_error() {
        return Err("it was not refused".into());
    }
    let body: Value = serde_json::from_slice(&answer.bytes).map_err(|error| error.to_string())?;
    if !answer.is_foreign() {
        if answer.headers.get("content-type").is_none_or(|kind| kind != "application/problem+json") {
            return Err("the answer is not a problem".into());
        }
        for member in ["type", "title", "detail", "instance"] {
            if body[member].as_str().is_none_or(str::is_empty) {
                return Err(format!("`{member}` is missing"));
            }
        }
        if body["status"] != answer.status.as_u16() {
            return Err("`status` is another".into());
        }
    }
    // A workflow engine's is nested.
    let code = body.pointer("/error/code").unwrap_or(&body["error"]);
    if code.as_str().is_none_or(str::is_empty) {
        return Err("`error` is missing".into());
    }
    let word = answer.problem().ok_or("it has no word")?;
    if bad.problem.is_some_and(|problem| word != problem) {
        return Err(format!("it should be {:?}", bad.problem));
    }
    if word == "validation-failed" {
        let faults = answer.faults();
        let named = |(path, _): &(String, String)| bad.path.as_deref().is_none_or(|wanted| path.starts_with(wanted));
        if faults.is_empty() {
            return Err("no fault is told".into());
        }
        if !faults.iter().any(named) {
            return Err(format!("`{}` is not named", bad.path.as_deref().unwrap_or_default()));
        }
        if faults.iter().any(|(_, message)| message.is_empty()) {
            return Err("a fault says nothing".into());
        }
    }
    Ok(())
}

/// A server with something in it: tasks in several states, keys, policies, a pause.
struct World {
    app: Arc<App>,
    router: Router,
    key: String,
}

impl World {
    async fn new(app: &Arc<App>) -> World {
        let new = NewKey { name: Some("admin".into()), role: Role::Admin, namespace: "*".into(), valid_for: None };
        let (_, key) =
            app.keys.create(&**app.engine.store(), new, &Default::default(), app.engine.now()).await.expect("a key");
        let world = World { app: app.clone(), router: app.router(), key };
        let good = async |operation: &str, body: Value| {
            let answer = world.send(&Bad::new(operation).json(body)).await;
            assert!(answer.status.is_success(), "{operation}: {:?}", answer.bytes);
            answer.json()
        };
        good(
            "submitTasks",
            json!({"tasks": [
                {"kind": "a", "priority": 3, "retry": {"initial_delay": "1h"}}, {"kind": "b", "priority": 2},
                {"kind": "c", "priority": 1}, {"kind": "d", "delay": "1h", "dedupe_key": "d"},
                {"kind": "e", "payload": {"x": 1}, "labels": {"l": "v"}},
            ]}),
        )
        .await;
        good("submitTasks", json!({"tasks": [{"kind": "x", "key": "x"}, {"kind": "y", "needs": ["x"]}]})).await;
        let leased = good("leaseTasks", json!({"worker": "w", "limit": 3})).await;
        let token = |n: usize| leased["leases"][n]["lease"].clone();
        good(
            "reportRuns",
            json!({"reports": [
                {"lease": token(0), "outcome": "failed", "error": "no"}, {"lease": token(1), "outcome": "succeeded"},
            ]}),
        )
        .await;
        good("bindPolicy", json!({"policy": "fixed(5m, 3 retries)"})).await;
        good("pauseLoop", json!({"note": "n"})).await;
        world
    }

    async fn send(&self, bad: &Bad) -> Answer {
        let mut builder = request(&bad.method, &bad.address);
        if !bad.body.is_empty() {
            builder = builder.header("content-length", bad.body.len());
        }
        for (name, value) in &bad.headers {
            builder = builder.header(*name, value);
        }
        if !bad.headers.iter().any(|(name, _)| *name == "authorization") {
            builder = builder.header("authorization", format!("Bearer {}", self.key));
        }
        send(&self.router, builder.body(Body::from(bad.body.clone())).expect("a request")).await
    }

    async fn judge(&self, bad: impl Iterator<Item = &Bad>) -> Vec<String> {
        let mut faults = Vec::new();
        for bad in bad {
            let answer = self.send(bad).await;
            if let Err(why) = judge(bad, &answer) {
                let body = String::from_utf8_lossy(&answer.bytes);
                faults.push(format!("{why}\n    {}\n    {} {body}", bad.told(), answer.status));
            }
        }
        faults
    }

    async fn get(&self, address: &str) -> Value {
        self.send(&Bad::at(Method::GET, address)).await.json()
    }

    /// Moves with everything that is stored.
    async fn last_change(&self, mut last: Option<FeedCursor>) -> (Option<FeedCursor>, ChangeNumbers, usize) {
        let store = self.app.engine.store();
        loop {
            let feed = store.feed(last, 500).await.expect("read");
            if feed.next == last {
                break;
            }
            last = feed.next;
        }
        let pauses = self.app.engine.paused_loops().await.expect("read").len();
        (last, store.change_numbers().await.expect("read"), pauses)
    }

    /// All that there is to be seen.
    async fn dump(&self) -> Value {
        let list = self.get("/api/v1/tasks?limit=500").await;
        let mut tasks = Vec::new();
        for item in list["items"].as_array().expect("tasks") {
            let id = item["id"].as_str().expect("an id");
            let task = self.get(&format!("/api/v1/tasks/{id}")).await;
            tasks.push(json!([task, self.get(&format!("/api/v1/tasks/{id}/events?limit=500")).await]));
        }
        assert_eq!(tasks.len(), 7);
        let mut all = json!({"list": list, "tasks": tasks});
        for name in ["keys", "policies", "schedules", "admin/loops", "stats", "clock"] {
            all[name] = self.get(&format!("/api/v1/{name}")).await;
        }
        all
    }
}
