//! Every route at its best, and every problem, on both databases: each answer is held against the document.

mod flow;
mod operations;
mod schedules;
mod secrets;
mod subscriptions;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::http::Method;
use comeback_core::Millis;
use comeback_engine::store::ApiKey;
use comeback_engine::{LeaseRequest, Submit, TaskSpec, VirtualClock};
use comeback_server::auth::{self, Need, NewKey, Role};
use comeback_server::{App, ClassLimits, LimiterOptions};
use futures_util::future::{join, join_all};
use serde_json::{Value, json};

use super::judge::Judge;
use crate::place::{self, Answer, Place, request, route, routes, send};

mod compat;

struct World {
    app: Arc<App>,
    router: Router,
    clock: Arc<VirtualClock>,
    judge: Judge,
}

/// An address, a body, and a key.
#[derive(Default, Clone)]
struct Ask<'a> {
    part: &'a str,
    query: &'a str,
    body: Option<String>,
    headers: Vec<(&'a str, String)>,
}

impl World {
    async fn ask(&self, operation: &str, ask: Ask<'_>) -> Answer {
        let route = route(operation);
        let mut address = route.path.to_owned();
        for name in ["{id}", "{name}", "{kind}", "{path}", "{fingerprint}"] {
            address = address.replace(name, ask.part);
        }
        address = address.replace("{version}", "1");
        if !ask.query.is_empty() {
            address = format!("{address}?{}", ask.query);
        }
        let mut builder = request(&route.method, &address);
        if ask.body.is_some() && !ask.headers.iter().any(|(name, _)| *name == "content-type") {
            builder = builder.header("content-type", "application/json");
        }
        for (name, value) in &ask.headers {
            builder = builder.header(*name, value);
        }
        if let Some(body) =
            &ask.body.as_ref().filter(|_| !ask.headers.iter().any(|(name, _)| *name == "content-length"))
        {
            builder = builder.header("content-length", body.len());
        }
        let body = ask.body.map_or_else(Body::empty, Body::from);
        let answer = send(&self.router, builder.body(body).expect("a request")).await;
        self.judge.check(route, &answer);
        answer
    }

    async fn good(&self, operation: &str, ask: Ask<'_>) -> Value {
        let answer = self.ask(operation, ask).await;
        assert!(answer.status.is_success(), "{operation}: {} {:?}", answer.status, answer.bytes);
        if answer.headers.get("content-type").is_some_and(|kind| kind == "application/json") {
            return answer.json();
        }
        Value::Null
    }

    async fn get(&self, operation: &str, part: &str) -> Value {
        self.good(operation, Ask { part, ..Ask::default() }).await
    }

    async fn find(&self, operation: &str, query: &str) -> Value {
        self.good(operation, Ask { query, ..Ask::default() }).await
    }

    async fn post(&self, operation: &str, part: &str, body: Value) -> Value {
        self.good(operation, Ask { part, body: Some(body.to_string()), ..Ask::default() }).await
    }

    /// The word of the problem that it is answered with.
    async fn bad(&self, operation: &str, ask: Ask<'_>) -> String {
        let answer = self.ask(operation, ask).await;
        assert!(answer.status.is_client_error() || answer.status.is_server_error(), "{operation}: {}", answer.status);
        answer.problem().expect("a problem")
    }

    async fn submit(&self, task: Value) -> String {
        self.post("submitTasks", "", task).await["tasks"][0]["id"].as_str().expect("an id").to_owned()
    }

    async fn lease(&self) -> String {
        let leased = self.post("leaseTasks", "", json!({"worker": "w"})).await;
        leased["leases"][0]["lease"].as_str().unwrap_or_else(|| panic!("{leased}")).to_owned()
    }

    async fn report(&self, mut report: Value) -> Value {
        let token = self.lease().await;
        report["lease"] = token.into();
        self.post("reportRuns", "", json!({"reports": [report]})).await["reports"][0].clone()
    }

    fn pass(&self, ms: u64) {
        self.clock.advance(Millis(ms));
    }
}

fn examples(operation: &str) -> Vec<Value> {
    route(operation).doc.as_ref().expect("a description").examples.clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_answer_is_as_the_document_says() {
    for place in Place::all().await {
        let clock = place.app.clock.clone().expect("time is moved by hand");
        let world = World { app: place.app.clone(), router: place.app.router(), clock, judge: Judge::new() };
        doors(&world).await;

        tasks(&world).await;

        workers(&world).await;

        acts(&world).await;

        hooks(&world).await;

        flow::flow(&world).await;
        schedules::schedules(&world).await;
        compat::batches(&world).await;
        compat::queue(&world).await;
        compat::schedules(&world).await;
        compat::jobs(&world).await;

        policies(&world).await;

        rules(&world).await;

        accounts(&world).await;
        subscriptions::subscriptions(&world).await;
        subscriptions::alerts(&world).await;
        secrets::secrets(&world).await;

        dependencies(&world).await;
        operations::operations(&world).await;

        numbers(&world).await;

        administration(&world).await;

        contradictions(&world).await;

        readable_problems(&world).await;

        repetitions(&world).await;
        race(&world).await;
        crowds(&world).await;

        keys_and_roles(&world).await;

        let key = breakdowns(&world).await;

        let rare = [
            "internal",
            "unavailable",
            "conflict",
            "overloaded",
            "quota-exceeded",
            "too-many-requests",
            "too-slow",
            "search-timeout",
        ];
        let unseen: Vec<_> =
            world.judge.unseen().into_iter().filter(|(_, what)| !rare.contains(&what.as_str())).collect();
        assert!(unseen.is_empty(), "{}: told, and never answered: {unseen:?}", place.word);
        every_problem_was_seen(&world, &key).await;
        drop(world);
        place.leave().await;
    }
}

async fn doors(world: &World) {
    for operation in
        ["getLive", "getHealth", "getReady", "getHealthToo", "getReadyToo", "getDocs", "getOpenApi", "getMetrics"]
    {
        world.get(operation, "").await;
    }
}

/// A policy in which every field says something.
fn rich_policy() -> Value {
    json!({
        "max_retries": 5, "strategy": "linear", "initial_delay": "1s", "delay": "2s", "max_delay": "1m", "jitter": "full",
        "retry_on": ["5xx", 429, "timeout"], "ignore": ["E1"], "retry_when": "status != 501", "stop_when": "status == 502",
        "on_expression_error": "open", "max_elapsed": "1d", "expires_at": "2030-01-01T00:00:00Z", "timeout": "1h",
        "respect_retry_after": false, "max_retry_after": "1h", "max_throttles": 3, "on_lost": "count", "max_lost": 2,
        "max_snoozes": 4, "default_class": "final", "override_final": true, "on_exhausted": "park", "last_try": true,
        "deadline": "hard", "reset_counters_on_retry": true,
        "rules": [
            {"match": {"on": ["503"], "class": "retryable", "trigger": "error", "type": "T", "code": "C", "message": "x.*",
                "when": "attempt > 1"}, "then": "retry", "max": 2, "strategy": "fixed", "delay": "5s"},
            {"match": {"code": 7}, "then": "snooze", "delay": "1m"},
        ],
        "windows": [
            {"days": ["sat", "sun"], "from": "00:00", "to": "06:00", "tz": "Europe/Berlin"},
            {"from": "2029-01-01T00:00:00Z", "to": "2029-01-02T00:00:00Z"},
        ],
    })
}

async fn tasks(world: &World) {
    for example in examples("submitTasks") {
        world.post("submitTasks", "", example).await;
    }
    for (word, number) in [("high", 100), ("normal", 0), ("low", -100)] {
        let id = world.submit(json!({"kind": "k", "queue": "words", "priority": word})).await;
        assert_eq!(world.get("getTask", &id).await["priority"], number, "S2-133");
    }
    let whole = json!({
        "kind": "k", "key": "a", "name": "A task", "queue": "side", "priority": -5, "payload": {"x": [1, null]},
        "executor": {"type": "worker"}, "retry": rich_policy(), "timeout": 30, "attempt_deadline": "PT1H",
        "deadline": "2029-01-01T00:00:00Z", "delay": "1.5h", "labels": {"tenant": "acme"}, "dedupe_key": "one",
        "external_id": "42", "dead_end_barrier": true,
    });
    let headers = vec![("idempotency-key", "first".to_owned()), ("traceparent", "00-1-2-01".to_owned())];
    let ask = Ask { body: Some(whole.to_string()), headers, ..Ask::default() };
    let made = world.good("submitTasks", ask.clone()).await;
    assert_eq!(made, world.good("submitTasks", ask).await, "the same key answers the same");
    let duplicate = world.post("submitTasks", "", json!({"kind": "k", "dedupe_key": "one"})).await;
    assert_eq!(duplicate["tasks"][0]["duplicate"], true);
    let id = made["tasks"][0]["id"].as_str().expect("an id");
    for operation in ["getTask", "listAttempts", "listTaskEvents", "explainTask", "forecastTask"] {
        world.get(operation, id).await;
    }
    for strategy in [
        json!("immediate(2 retries)"),
        json!({"strategy": "immediate", "initial_delay": "1s"}),
        json!({"strategy": "fixed", "delay": "1s", "initial_delay": "2s"}),
        json!({"schedule": [{"attempt": 1, "delay_days": 1}, {"attempt": 3, "delay": "2d"}]}),
        json!(true),
        json!(4),
        json!(false),
    ] {
        let id = world.submit(json!({"kind": "k", "queue": "side", "retry": strategy})).await;
        world.get("getTask", &id).await;
    }
    for query in [
        "",
        "limit=2",
        "q=state:open%20kind:k",
        "state=open,dead",
        "kind=em*",
        "queue=side",
        "error_class=final",
        "execution_id=00000000-0000-7000-8000-000000000000",
        "dependency=psp",
        "fingerprint=0123456789abcdef",
        "due_before=2h",
        "due_before=2030-01-01T00:00:00Z",
        "label.tenant=acme",
        "sort=submitted",
        "sort=due",
        "sort=updated",
        "sort=priority",
        "sort=-submitted",
    ] {
        world.find("listTasks", query).await;
    }
    let first = world.find("listTasks", "limit=2").await;
    let next = format!("limit=2&cursor={}", first["next_cursor"].as_str().expect("there is more"));
    assert_ne!(world.find("listTasks", &next).await["items"], first["items"]);
}

async fn workers(world: &World) {
    let task = |name: &str| json!({"kind": "work", "key": name, "retry": {"initial_delay": "1s", "max_retries": 2}});
    // What the examples left in the queue goes first.
    while let Some(lease) = {
        let leased = world.post("leaseTasks", "", json!({"worker": "w", "limit": 100})).await;
        leased["leases"].as_array().filter(|all| !all.is_empty()).cloned()
    } {
        let reports: Vec<Value> =
            lease.iter().map(|it| json!({"lease": it["lease"], "outcome": "succeeded", "result": {"n": 1}})).collect();
        world.post("reportRuns", "", json!({"reports": reports})).await;
    }
    let id = world.submit(task("a")).await;
    let token = world.lease().await;
    world.get("getTask", &id).await;
    let beat = json!({"leases": [token, "nonsense"], "extend": "2m", "progress": {"done": 1}});
    let kept = world.post("keepLeases", "", beat).await;
    assert_eq!(kept["leases"][1]["problem"]["error"], "LEASE_LOST");
    let error = json!({"class": "retryable", "type": "Io", "code": 7, "status": 503, "message": "away", "stack": "s",
        "result": {"a": 1}});
    let failed = json!({"lease": token, "outcome": "failed", "error": error});
    let reports = json!({"reports": [failed, {"lease": "nonsense", "outcome": "released"}, {"lease": token, "outcome": "snoozed"}]});
    let told = world.post("reportRuns", "", reports).await;
    assert_eq!(told["reports"][0]["state"], "retry_pending");
    assert_eq!(told["reports"][1]["problem"]["error"], "LEASE_LOST");
    assert_eq!(told["reports"][2]["problem"]["error"], "VALIDATION_ERROR");
    for operation in ["getTask", "listAttempts", "listTaskEvents", "explainTask", "forecastTask"] {
        world.get(operation, &id).await;
    }
    world.post("advanceClock", "", json!({"by": "10s"})).await;
    let late = json!({"status": 429, "retry_after": "120", "message": "later"});
    world.report(json!({"outcome": "failed", "error": late})).await;
    world.get("listAttempts", &id).await;
    world.post("advanceClock", "", json!({"to": "next"})).await;
    let date = json!({"status": 503, "retry_after": "Wed, 21 Oct 2037 07:28:00 GMT"});
    world.report(json!({"outcome": "failed", "error": date})).await;
    assert!(world.get("getTask", &id).await["last_error"]["retry_after_at"].is_string());
    let snoozed = world.submit(task("b")).await;
    world.report(json!({"outcome": "snoozed", "delay": "1m"})).await;
    world.get("explainTask", &snoozed).await;
    world.get("listTaskEvents", &snoozed).await;
    world.submit(task("c")).await;
    world.report(json!({"outcome": "released"})).await;
    let done = world.report(json!({"outcome": "succeeded", "result": [1, {"a": "ü"}]})).await;
    let done = done["task_id"].as_str().expect("an id");
    world.get("getTask", done).await;
    world.get("listAttempts", done).await;
    let canceled = world.submit(task("d")).await;
    let token = world.lease().await;
    world.post("cancelTask", &canceled, json!({"note": "n"})).await;
    let beat = world.post("keepLeases", "", json!({"leases": [token]})).await;
    assert_eq!(beat["leases"][0]["cancel_requested"], true);
    let told = world.post("reportRuns", "", json!({"reports": [{"lease": token, "outcome": "succeeded"}]})).await;
    assert_eq!(told["reports"][0]["problem"]["error"], "TASK_CANCELED");
    let page = world.find("listEvents", "limit=5").await;
    let next = format!("after={}&types=task.created,task.failed", page["next_cursor"].as_str().expect("there is more"));
    world.find("listEvents", &next).await;
    world.find("followEvents", &format!("task_id={done}")).await;
    world.get("listWorkers", "").await;
}

async fn acts(world: &World) {
    let id = world.submit(json!({"kind": "acted", "queue": "acts", "delay": "1h"})).await;
    world.post("snoozeTask", &id, json!({"delay": "2h", "note": "n", "requested_by": "me"})).await;
    world.post("rescheduleTask", &id, json!({"at": "2028-01-01T00:00:00Z"})).await;
    world.post("pauseTask", &id, json!({})).await;
    assert_eq!(world.bad("retryTask", Ask { part: &id, ..Ask::default() }).await, "wrong-state");
    world.post("resumeTask", &id, json!({})).await;
    assert_eq!(world.bad("resumeTask", Ask { part: &id, ..Ask::default() }).await, "wrong-state");
    // A body may be left out.
    world.good("cancelTask", Ask { part: &id, ..Ask::default() }).await;
    for operation in ["cancelTask", "pauseTask"] {
        assert_eq!(world.bad(operation, Ask { part: &id, ..Ask::default() }).await, "wrong-state", "{operation}");
    }
    for operation in ["snoozeTask", "rescheduleTask"] {
        let body = Some(json!({"delay": 1}).to_string());
        assert_eq!(world.bad(operation, Ask { part: &id, body, ..Ask::default() }).await, "wrong-state", "{operation}");
    }
    let id = world.submit(json!({"kind": "failing", "dedupe_key": "held"})).await;
    world.report(json!({"outcome": "failed", "error": "no"})).await;
    world.submit(json!({"kind": "failing", "queue": "acts", "dedupe_key": "held"})).await;
    assert_eq!(world.bad("retryTask", Ask { part: &id, ..Ask::default() }).await, "dedupe-key-taken");
    let id = world.submit(json!({"kind": "failing"})).await;
    world.report(json!({"outcome": "failed", "error": {"message": "no"}})).await;
    world.post("retryTask", &id, json!({"note": "again", "requested_by": "me", "keep_counters": true})).await;
    world.get("listTaskEvents", &id).await;
    world.report(json!({"outcome": "failed", "error": "again"})).await;
    world.post("retryTask", &id, json!({"payload_patch": {"n": 2}})).await;
    world.report(json!({"outcome": "succeeded"})).await;
    world.get("listAttempts", &id).await;
    let versions = world.get("listPayloads", &id).await;
    assert_eq!(versions["items"].as_array().map(Vec::len), Some(2), "{versions}");
}

async fn hooks(world: &World) {
    let start = |n: u32| {
        let app = world.app.clone();
        async move {
            let request = LeaseRequest { limit: n, ..LeaseRequest::new("default", "hooks") };
            let claimed = app.engine.claim_hooks(request).await.expect("claimed");
            for it in &claimed {
                app.engine.hook_started("default", it.lease).await.expect("started");
            }
            assert_eq!(claimed.len(), n as usize);
        }
    };
    let hook = json!({"kind": "hook", "executor": {"type": "hook"}, "retry": {"initial_delay": "1s"}});
    let id = world.submit(hook.clone()).await;
    start(1).await;
    let settle = |body: Value| Some(body.to_string());
    let stale = settle(json!({"status": "succeeded", "run": 7}));
    assert_eq!(world.bad("settleTask", Ask { part: &id, body: stale, ..Ask::default() }).await, "lease-lost");
    let nothing = settle(json!({"run": 1}));
    assert_eq!(world.bad("settleTask", Ask { part: &id, body: nothing, ..Ask::default() }).await, "validation-failed");
    world.post("settleTask", &id, json!({"run": 1, "expected_count": 9, "success": 2})).await;
    let stale = settle(json!({"success": 1, "run": 7}));
    assert_eq!(world.bad("settleTask", Ask { part: &id, body: stale, ..Ask::default() }).await, "lease-lost");
    let counted = &world.post("settleTask", &id, json!({"success": 3, "failures": 1})).await["task"];
    assert_eq!([&counted["expected_count"], &counted["success"], &counted["failures"]], [9, 5, 1]);
    let failed = json!({"status": "failed", "attempt": 0, "error": {"status": 500, "message": "m"}});
    world.post("settleTask", &id, failed).await;
    let over = settle(json!({"success": 1}));
    assert_eq!(world.bad("settleTask", Ask { part: &id, body: over, ..Ask::default() }).await, "wrong-state");
    described(world, &id).await;
    let canceled = world.submit(hook).await;
    start(1).await;
    world.post("cancelTask", &canceled, json!({})).await;
    let late = settle(json!({"status": "succeeded", "run": 1, "result": {}}));
    assert_eq!(world.bad("settleTask", Ask { part: &canceled, body: late, ..Ask::default() }).await, "task-canceled");
}

/// Labels and priority, of any task.
async fn described(world: &World, hook: &str) {
    let task =
        &world.post("settleTask", hook, json!({"labels": {"tenant": "acme", "n": "1"}, "priority": 7})).await["task"];
    assert_eq!((&task["labels"], &task["priority"]), (&json!({"tenant": "acme", "n": "1"}), &json!(7)));
    let stale = Some(json!({"labels": {"tenant": "b"}, "run": 99}).to_string());
    assert_eq!(world.bad("settleTask", Ask { part: hook, body: stale, ..Ask::default() }).await, "lease-lost");
    let task = &world.post("settleTask", hook, json!({"labels": {"n": null}})).await["task"];
    assert_eq!(task["labels"], json!({"tenant": "acme"}));
    let plain = world.submit(json!({"kind": "described"})).await;
    let given = world.post("settleTask", &plain, json!({"retry": {"maxAttempts": 4}, "dialect": "workflow"})).await;
    assert_eq!(given["task"]["retry"]["max_retries"], 4, "{given}");
    world.post("settleTask", &plain, json!({"labels": {"a": "b"}, "priority": -3})).await;
    let long = Some(json!({"labels": {"a": "b".repeat(300)}}).to_string());
    assert_eq!(world.bad("settleTask", Ask { part: &plain, body: long, ..Ask::default() }).await, "validation-failed");
    world.post("cancelTask", &plain, json!({})).await;
    let over = Some(json!({"priority": 1}).to_string());
    assert_eq!(world.bad("settleTask", Ask { part: &plain, body: over, ..Ask::default() }).await, "wrong-state");
    let lines = world.find("listActs", "act=task.describe").await;
    assert_eq!(lines["items"][0]["before"]["priority"], 0, "{lines}");
}

async fn policies(world: &World) {
    for operation in ["simulatePolicy", "backtestPolicy", "bindPolicy"] {
        for example in examples(operation) {
            world.post(operation, "email.send", example).await;
        }
    }
    world.post("bindPolicy", "rich", json!({"policy": rich_policy(), "dialect": "native"})).await;
    world.post("bindPolicy", "none", json!({"policy": false, "dialect": "job"})).await;
    world.post("simulatePolicy", "", json!({"policy": rich_policy(), "limit": 3, "error": "message"})).await;
    world.get("listPolicies", "").await;
    world.get("getPolicy", "rich").await;
    world.get("unbindPolicy", "rich").await;
    assert_eq!(world.bad("getPolicy", Ask { part: "rich", ..Ask::default() }).await, "not-found");
}

async fn rules(world: &World) {
    for example in examples("putRule") {
        world.post("putRule", "payments", example).await;
    }
    world.post("putRule", "ruled", json!({"match": {"kind": "ruled"}, "per": ["tenant"], "max_running": 1})).await;
    let runs = world.submit(json!({"kind": "ruled", "labels": {"tenant": "a"}, "priority": 9, "expected": 3})).await;
    let held = world.submit(json!({"kind": "ruled", "labels": {"tenant": "a"}, "priority": 9})).await;
    world.lease().await;
    let shown = world.get("getTask", &held).await;
    assert_eq!(shown["blocked"], "rule ruled (a): 1 of 1 running", "{shown}");
    let listed = world.get("listRules", "").await;
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(2), "{listed}");
    let one = world.get("getRule", "ruled").await;
    assert_eq!(one["used"], json!([{"per": ["a"], "running": 1, "weight": 3}]));
    for id in [&held, &runs] {
        world.post("cancelTask", id, json!({})).await;
    }
    for name in ["payments", "ruled"] {
        world.get("deleteRule", name).await;
        assert_eq!(world.bad("getRule", Ask { part: name, ..Ask::default() }).await, "not-found");
        assert_eq!(world.bad("deleteRule", Ask { part: name, ..Ask::default() }).await, "not-found");
    }
}

async fn accounts(world: &World) {
    for example in examples("putAccount") {
        world.good("putAccount", Ask { part: "acme", body: Some(example.to_string()), ..Ask::default() }).await;
    }
    let id = world.submit(json!({"kind": "screenshot", "account": "acme"})).await;
    assert_eq!(world.get("getAccount", "acme").await["reserved"], 2);
    assert_eq!(world.get("getTask", &id).await["cost"], 2);
    assert_eq!(world.bad("deleteAccount", Ask { part: "acme", ..Ask::default() }).await, "account-in-use");
    world.report(json!({"outcome": "failed", "error": "no"})).await;
    let poor = Some(json!({"credits": 1}).to_string());
    world.good("putAccount", Ask { part: "acme", body: poor, ..Ask::default() }).await;
    for operation in ["retryTask", "retryJob", "retryScreenshot"] {
        assert_eq!(
            world.bad(operation, Ask { part: &id, ..Ask::default() }).await,
            "insufficient-credits",
            "{operation}"
        );
    }
    let dear = Some(json!({"kind": "k", "account": "acme", "cost": 2}).to_string());
    assert_eq!(world.bad("submitTasks", Ask { body: dear, ..Ask::default() }).await, "insufficient-credits");
    assert_eq!(world.find("listAccounts", "limit=1").await["items"][0]["available"], 1);
    world.get("deleteAccount", "acme").await;
}

async fn dependencies(world: &World) {
    for example in examples("putDependency") {
        world.good("putDependency", Ask { part: "psp", body: Some(example.to_string()), ..Ask::default() }).await;
    }
    let id = world.submit(json!({"kind": "needs.psp", "dependency": "psp"})).await;
    world.post("cancelTask", &id, json!({})).await;
    for operation in ["openDependency", "closeDependency", "announceMaintenance"] {
        for example in examples(operation) {
            world.post(operation, "psp", example).await;
        }
        assert_eq!(
            world
                .bad(
                    operation,
                    Ask { part: "nobody", body: Some(examples(operation)[0].to_string()), ..Ask::default() }
                )
                .await,
            "not-found"
        );
    }
    let well = world.post("dependencyIsHealthy", "psp", json!({})).await;
    assert_eq!(well["changes"][0]["what"], "healthy", "{well}");
    assert_eq!(world.bad("dependencyIsHealthy", Ask { part: "nobody", ..Ask::default() }).await, "not-found");
    assert_eq!(world.find("listDependencies", "limit=1").await["items"][0]["name"], "psp");
    assert_eq!(world.get("getDependency", "psp").await["breaker"]["state"], "closed");
    world.get("deleteDependency", "psp").await;
    for operation in ["getDependency", "deleteDependency"] {
        assert_eq!(world.bad(operation, Ask { part: "psp", ..Ask::default() }).await, "not-found");
    }
}

async fn numbers(world: &World) {
    world.get("getStats", "").await;
    let by = ["attempt", "class", "strategy", "dependency", "kind", "queue", "fingerprint", "origin"];
    for (word, bucket) in by.iter().zip(["", "&bucket=1h"].iter().cycle()) {
        let query = format!("by={word}&within=30d{bucket}");
        let told = world.find("getRetryStats", &query).await;
        assert!(told["total"]["failed"].as_u64() > Some(0), "{query}: {told}");
        let sum: u64 = told["items"].as_array().into_iter().flatten().filter_map(|it| it["failed"].as_u64()).sum();
        assert_eq!(told["total"]["failed"], sum, "{query}");
    }
    for bad in ["by=mood", "within=1d&since=2027-01-15T08:00:00Z", "bucket=7m", "bucket=0s", "bucket=15m&within=900d"] {
        assert_eq!(
            world.bad("getRetryStats", Ask { query: bad, ..Ask::default() }).await,
            "validation-failed",
            "{bad}"
        );
    }
    errors(world).await;
    let soon = world.find("getUpcoming", "within=14d&bucket=1h").await;
    assert!(soon["total"].as_u64() > Some(0), "{soon}");
    world.get("getClock", "").await;
    world.get("getMetrics", "").await;
}

async fn errors(world: &World) {
    let listed = world.find("listErrors", "limit=1").await;
    let (group, next) = (listed["items"][0].clone(), listed["next_cursor"].as_str().expect("more").to_owned());
    let other = world.find("listErrors", &format!("limit=1&cursor={next}")).await;
    assert_ne!(other["items"][0]["fingerprint"], group["fingerprint"]);
    let name = group["fingerprint"].as_str().expect("a name").to_owned();
    let found = world.find("listTasks", &format!("fingerprint={name}")).await;
    assert!(found["items"].as_array().is_some_and(|items| !items.is_empty()), "{found}");
    for example in examples("changeError") {
        world.post("changeError", &name, example).await;
    }
    assert_eq!(world.find("listErrors", "state=open").await["items"][0]["fingerprint"], group["fingerprint"]);
    assert_eq!(world.find("listErrors", "state=resolved,ignored").await["items"], json!([]));
    let detail = world.get("getError", &name).await;
    assert_eq!((&detail["note"], &detail["reclassified"]), (&json!("asked the bank"), &Value::Null));
    assert!(detail["by_attempt"][0]["failed"].as_u64() > Some(0), "{detail}");
    for query in ["state=gone", "class=worse", "cursor=x"] {
        assert_eq!(world.bad("listErrors", Ask { query, ..Ask::default() }).await, "validation-failed", "{query}");
    }
    for body in [
        json!({"action": "forget"}),
        json!({"action": "classify"}),
        json!({"action": "classify", "class": "odd"}),
        json!({"action": "resolve", "for": "1h"}),
        json!({"action": "note"}),
    ] {
        let ask = Ask { part: &name, body: Some(body.to_string()), ..Ask::default() };
        assert_eq!(world.bad("changeError", ask).await, "validation-failed", "{body}");
    }
    for part in ["00000000000000ff", "what"] {
        assert_eq!(world.bad("getError", Ask { part, ..Ask::default() }).await, "not-found");
        let body = Some(json!({"action": "open"}).to_string());
        assert_eq!(world.bad("changeError", Ask { part, body, ..Ask::default() }).await, "not-found");
    }
}

async fn administration(world: &World) {
    world.get("getMe", "").await;
    world.get("listLoops", "").await;
    for example in examples("pauseLoop") {
        world.post("pauseLoop", "promote", example).await;
    }
    world.post("pauseLoop", "reap", json!({})).await;
    world.get("listLoops", "").await;
    for name in ["promote", "reap"] {
        world.post("resumeLoop", name, json!({})).await;
    }
    let instances = world.get("listInstances", "").await;
    assert_eq!(instances["items"].as_array().map(Vec::len), Some(1), "{instances}");
    world.submit(json!({"kind": "lost"})).await;
    world.lease().await;
    for example in examples("drainWorker") {
        world.post("drainWorker", "w", example).await;
    }
    world.post("leaseTasks", "", json!({"worker": "w"})).await;
    world.get("listWorkers", "").await;
    world.get("getWorkerStatus", "").await;
    world.post("undrainWorker", "w", json!({})).await;
    world.pass(120_000);
    let stuck = world.get("listStuckTasks", "").await;
    assert_eq!(world.post("listStuckTasksByPost", "", json!({})).await, stuck, "X2-9");
    assert_eq!(world.get("listStuckJobs", "").await, stuck);
    assert_eq!(world.post("listStuckJobsByPost", "", json!({})).await, stuck);
    assert_eq!(stuck["items"].as_array().map(Vec::len), Some(1), "{stuck}");
    let reaped = world.post("reapStuckTasks", "", json!({})).await;
    assert_eq!((&reaped["processed"], &reaped["tasks"][0]["action"]), (&json!(1), &json!("MARKED_FAILED")));
    assert_eq!(world.post("reapStuckJobs", "", json!({})).await["processed"], 0);
    for example in examples("repairFailedTasks") {
        world.post("repairFailedTasks", "", example).await;
    }
    for example in examples("cleanUp") {
        assert_eq!(world.post("cleanUp", "", example).await["dry_run"], true);
    }
    let forgotten = world.post("cleanUp", "", json!({"older_than": "3650d", "note": "room"})).await;
    assert_eq!((&forgotten["tasks"], &forgotten["more"]), (&json!(0), &json!(false)));
    let soon = Some(json!({"older_than": "1h"}).to_string());
    assert_eq!(world.bad("cleanUp", Ask { body: soon, ..Ask::default() }).await, "validation-failed");
    world.good("previewPause", Ask { part: "promote", query: "duration=30m", ..Ask::default() }).await;
    world.get("previewPause", "dispatch").await;
    let bad = Ask { part: "reap", query: "duration=soon", ..Ask::default() };
    assert_eq!(world.bad("previewPause", bad).await, "validation-failed");
    let acts = world.find("listActs", "act=loop,stuck&limit=2&all=true&since=2020-01-01T00:00:00Z").await;
    assert_eq!(acts["items"][0]["act"], "stuck.process");
    world.find("listActs", &format!("cursor={}", acts["next_cursor"].as_str().expect("more"))).await;
    world.find("exportActs", "actor=me").await;
    world.find("exportActsAsCsv", "until=2100-01-01T00:00:00Z").await;
}

/// Requests that contradict something that is there.
async fn contradictions(world: &World) {
    let keyed = |kind: &str| Ask {
        body: Some(json!({"kind": kind, "queue": "acts"}).to_string()),
        headers: vec![("idempotency-key", "again".to_owned())],
        ..Ask::default()
    };
    world.good("submitTasks", keyed("a")).await;
    assert_eq!(world.bad("submitTasks", keyed("b")).await, "idempotency-mismatch");
    let nobody = "00000000-0000-7000-8000-000000000000";
    for route in routes() {
        let doc = route.doc.as_ref().expect("a description");
        if doc.problems.contains(&"not-found") {
            let body = match doc.id {
                "updateBatchTask" => Some(json!({"status": "Success"}).to_string()),
                "completeJob" | "failJob" | "keepJob" => Some(json!({"worker_id": "w"}).to_string()),
                "ackJob" | "nackJob" => Some(json!({"queue_id": nobody, "worker_id": "w"}).to_string()),
                "emitEvent" => Some(json!({"event_type": "action_started", "queue_id": nobody}).to_string()),
                "countBatchTask" => Some(json!({"new_success": 1}).to_string()),
                "setBatchRules" => Some(json!({"kind": "k", "rules": []}).to_string()),
                "settleTask" => Some(json!({"status": "succeeded"}).to_string()),
                "snoozeTask" | "rescheduleTask" => Some(json!({"delay": 1}).to_string()),
                "backtestAlert" => Some(json!({"name": nobody}).to_string()),
                "redeliver" => Some(json!({"within": "1h"}).to_string()),
                "rollbackWorkflow" => Some(json!({"version": 1}).to_string()),
                "startExecution" => Some(json!({"workflow": nobody}).to_string()),
                "changeError" => Some(json!({"action": "open"}).to_string()),
                _ => None,
            };
            let query = if doc.id.ends_with("Schedules") { format!("target_id={nobody}") } else { String::new() };
            assert_eq!(
                world.bad(doc.id, Ask { part: nobody, query: &query, body, ..Ask::default() }).await,
                "not-found",
                "{}",
                doc.id
            );
        }
    }
}

/// What follows from a route's line alone.
async fn readable_problems(world: &World) {
    for route in routes() {
        let doc = route.doc.as_ref().expect("a description");
        let much = (route.most_bytes(&LimiterOptions::default()) + 1).to_string();
        let headers = vec![("content-length", much), ("content-type", "application/json".into())];
        let large = Ask { part: "x", body: Some("{".into()), headers, ..Ask::default() };
        assert_eq!(world.bad(doc.id, large).await, "too-large", "{}", doc.id);
        if route.need == Need::Nothing {
            continue;
        }
        let ask = |query: &'static str| Ask { part: "x", query, ..Ask::default() };
        assert_eq!(world.bad(doc.id, ask("x=%zz")).await, "bad-request", "{}", doc.id);
        assert_eq!(world.bad(doc.id, ask("nonsense=1")).await, "validation-failed", "{}", doc.id);
        if doc.body.is_empty() {
            continue;
        }
        let part = if route.path.contains("{name}") { "reap" } else { "00000000-0000-7000-8000-000000000000" };
        let with = |body: String| Ask { part, body: Some(body), ..Ask::default() };
        // A workflow is read as YAML, which says for itself what it cannot read.
        let unread = if doc.id == "putWorkflow" { "validation-failed" } else { "bad-request" };
        assert_eq!(world.bad(doc.id, with("{".into())).await, unread, "{}", doc.id);
        assert_eq!(
            world.bad(doc.id, with(json!({"nonsense": 1}).to_string())).await,
            "validation-failed",
            "{}",
            doc.id
        );
        let plain = Ask { headers: vec![("content-type", "text/plain".into())], ..with("{}".into()) };
        assert_eq!(world.bad(doc.id, plain).await, "unsupported-media-type", "{}", doc.id);
    }
}

/// Under one key another request is refused.
async fn repetitions(world: &World) {
    let task = world.submit(json!({"kind": "again", "queue": "acts", "delay": "1h"})).await;
    let failed = world.submit(json!({"kind": "again"})).await;
    world.report(json!({"outcome": "failed", "error": "no"})).await;
    let (first, other) = (r#"{"note": "a"}"#, r#"{"note": "b"}"#);
    let acts = [
        ("snoozeTask", task.as_str(), r#"{"delay": "2h"}"#, r#"{"delay": "3h"}"#),
        ("rescheduleTask", task.as_str(), r#"{"delay": "2h"}"#, r#"{"delay": "3h"}"#),
        ("pauseTask", task.as_str(), first, other),
        ("resumeTask", task.as_str(), first, other),
        ("cancelTask", task.as_str(), first, other),
        ("retryTask", failed.as_str(), first, other),
        ("pauseLoop", "reap", first, other),
        ("resumeLoop", "reap", "{}", "{ }"),
        ("pauseWork", "", first, other),
        ("resumeWork", "", first, other),
        ("drainWorker", "w", first, other),
        ("undrainWorker", "w", first, other),
        ("reapStuckTasks", "", "{}", "{ }"),
        ("reapStuckJobs", "", "{}", "{ }"),
        ("repairFailedTasks", "", first, other),
        ("cleanUp", "", r#"{"older_than": "3650d"}"#, r#"{"older_than": "3651d"}"#),
        ("tellEvent", "", r#"{"type": "nobody.waits"}"#, r#"{"type": "nobody.waits.for-this"}"#),
        ("advanceClock", "", r#"{"by": 1}"#, r#"{"by": 2}"#),
    ];
    for (operation, part, first, other) in acts {
        let keyed = |body: &str| {
            let headers = vec![("idempotency-key", format!("{operation} once"))];
            Ask { part, body: Some(body.to_owned()), headers, ..Ask::default() }
        };
        world.good(operation, keyed(first)).await;
        world.good(operation, keyed(first)).await;
        assert_eq!(world.bad(operation, keyed(other)).await, "idempotency-mismatch", "{operation}");
    }
    compat::repetitions(world).await;
    for example in examples("pauseWork") {
        world.post("pauseWork", "", example).await;
    }
    world.post("resumeWork", "", json!({})).await;
}

/// Doors that are narrow: one that nobody fits through, one for a single guest, and one that does not wait.
async fn crowds(world: &World) {
    let none = ClassLimits { permits: 0, queue: 0, timeout: Duration::ZERO };
    let one = ClassLimits { permits: 1, queue: 1, timeout: Duration::ZERO };
    let gate =
        LimiterOptions { look: none, lease: one, body_timeout: Duration::from_millis(1), ..LimiterOptions::default() };
    let app = place::app(world.app.engine.store().clone(), gate).await;
    let narrow = World { router: app.router(), clock: app.clock.clone().expect("a clock"), app, judge: Judge::new() };
    assert_eq!(narrow.bad("getStats", Ask::default()).await, "overloaded");
    let lease =
        Ask { body: Some(json!({"worker": "w", "queues": ["none"], "wait": "200ms"}).to_string()), ..Ask::default() };
    let both = join(narrow.ask("leaseTasks", lease.clone()), narrow.ask("leaseTasks", lease)).await;
    assert_eq!((both.0.status.as_u16(), both.1.status.as_u16()), (200, 429));
    assert_eq!(both.1.problem().as_deref(), Some("quota-exceeded"));
    let route = route("submitTasks");
    let endless = Body::from_stream(futures_util::stream::pending::<Result<&str, std::io::Error>>());
    let answer = send(&narrow.router, request(&route.method, route.path).body(endless).expect("a request")).await;
    narrow.judge.check(route, &answer);
    world.judge.seen.lock().extend(narrow.judge.seen.into_inner());
}

/// Of many that move the same task at the same moment, some are too slow too often. A large request keeps the store busy, so that
/// they meet.
async fn race(world: &World) {
    let id = world.submit(json!({"kind": "raced", "delay": "1h"})).await;
    let begun = Instant::now();
    while !world.judge.seen.lock().iter().any(|(_, _, problem)| problem == "conflict") {
        assert!(begun.elapsed() < Duration::from_secs(30), "nobody was too slow");
        let body = Some(json!({"delay": "2h"}).to_string());
        let ask = Ask { part: &id, body, ..Ask::default() };
        let tasks = (0..3_000).map(|_| TaskSpec { queue: Some("crowd".into()), ..TaskSpec::new("crowd") }).collect();
        let crowd = Submit { namespace: "crowd".into(), tasks, ..Submit::default() };
        let snoozes = join_all((0..20).map(|_| world.ask("snoozeTask", ask.clone())));
        join(world.app.engine.submit(crowd), snoozes).await.0.expect("taken");
    }
}

impl World {
    fn clock_now(&self) -> comeback_core::Timestamp {
        self.app.engine.now()
    }
}

/// From the first key on, every route asks for one, and for the right one.
async fn keys_and_roles(world: &World) {
    let stranger = Ask { headers: vec![("host", "evil.example".into())], part: "x", ..Ask::default() };
    for route in routes().iter().filter(|route| route.need != Need::Nothing) {
        let id = route.doc.as_ref().expect("a description").id;
        assert_eq!(world.bad(id, stranger.clone()).await, "forbidden", "{id}");
    }
    let mut admin = String::new();
    for example in examples("createKey") {
        admin = world.post("createKey", "", example).await["key"].as_str().expect("a secret").to_owned();
    }
    let with = |key: &str| vec![("authorization", format!("Bearer {key}"))];
    let listed = world.good("listKeys", Ask { headers: with(&admin), ..Ask::default() }).await;
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(1));
    for (body, problem) in [("viewer", None), ("viewer", None), ("worker", Some("idempotency-mismatch"))] {
        let body = Some(json!({"role": body}).to_string());
        let headers = with(&admin).into_iter().chain([("idempotency-key", "one key".to_owned())]).collect();
        let ask = Ask { body, headers, ..Ask::default() };
        match problem {
            None => drop(world.good("createKey", ask).await),
            Some(problem) => assert_eq!(world.bad("createKey", ask).await, problem),
        }
    }
    let body = Some(json!({"role": "viewer"}).to_string());
    let viewer = world.good("createKey", Ask { body, headers: with(&admin), ..Ask::default() }).await;
    let id = viewer["id"].as_str().expect("an id").to_owned();
    for example in examples("rotateKey") {
        let body = Some(example.to_string());
        world.good("rotateKey", Ask { part: &id, body, headers: with(&admin), ..Ask::default() }).await;
    }
    let body = Some("{}".to_owned());
    let again = Ask { part: &id, body, headers: with(&admin), ..Ask::default() };
    assert_eq!(world.bad("rotateKey", again).await, "validation-failed", "once");
    world.good("revokeKey", Ask { part: &id, headers: with(&admin), ..Ask::default() }).await;
    let store = &**world.app.engine.store();
    let before = auth::key_id(Some(("default", "default", "long ago"))).expect("an id");
    let new = NewKey { name: None, role: Role::Viewer, namespace: "default".into(), valid_for: None };
    let (act, now) = (Default::default(), world.clock_now());
    let made = world.app.keys.create_as(store, before, new, auth::KeyLimits::default(), 9_999, &act, now).await;
    assert!(matches!(made.expect("a key"), auth::KeyResult::Key(..)));
    let body = Some(json!({"role": "viewer"}).to_string());
    let headers: Vec<_> = with(&admin).into_iter().chain([("idempotency-key", "long ago".to_owned())]).collect();
    assert_eq!(world.bad("createKey", Ask { body, headers, ..Ask::default() }).await, "key-exists");
    let body = Some(json!({"role": "viewer"}).to_string());
    let second = world.good("createKey", Ask { body, headers: with(&admin), ..Ask::default() }).await;
    let second = second["id"].as_str().expect("an id").to_owned();
    let before = auth::key_id(Some(("default", &second, "long ago"))).expect("an id");
    let new = NewKey { name: None, role: Role::Viewer, namespace: "default".into(), valid_for: None };
    let made = world.app.keys.create_as(store, before, new, auth::KeyLimits::default(), 9_999, &act, now).await;
    assert!(matches!(made.expect("a key"), auth::KeyResult::Key(..)));
    let rotation = |key: &str, overlap: &str| {
        let headers = with(&admin).into_iter().chain([("idempotency-key", key.to_owned())]).collect();
        Ask { part: &second, body: Some(json!({"overlap": overlap}).to_string()), headers, ..Ask::default() }
    };
    assert_eq!(world.bad("rotateKey", rotation("long ago", "1h")).await, "key-exists");
    world.good("rotateKey", rotation("now", "1h")).await;
    assert_eq!(world.bad("rotateKey", rotation("now", "2h")).await, "idempotency-mismatch");
    let (mut n, mut refused) = (0, String::new());
    while refused.is_empty() && n < 30 {
        let body = Some(json!({"policy": 3}).to_string());
        let ask = Ask { part: &format!("kind-{n}"), body, headers: with(&admin), ..Ask::default() };
        let answer = world.ask("bindPolicy", ask).await;
        refused = answer.problem().unwrap_or_default();
        n += 1;
    }
    assert_eq!(refused, "quota-exceeded");
    let named = || Some(json!({"role": "viewer", "name": "ops"}).to_string());
    let ask = Ask { body: named(), headers: with(&admin), ..Ask::default() };
    assert_eq!(world.bad("createKey", ask).await, "name-taken", "a key for all namespaces has it");
    for route in routes().iter().filter(|route| route.need != Need::Nothing) {
        let doc = route.doc.as_ref().expect("a description");
        assert_eq!(world.bad(doc.id, Ask { part: "x", ..Ask::default() }).await, "unauthorized", "{}", doc.id);
        let role = if Role::Worker.may(route.need) { Role::Viewer } else { Role::Worker };
        let new = NewKey { name: None, role, namespace: "default".into(), valid_for: None };
        let (_, secret) = world
            .app
            .keys
            .create(&**world.app.engine.store(), new, &Default::default(), world.clock_now())
            .await
            .expect("a key");
        let ask = Ask { part: "x", headers: with(&secret), ..Ask::default() };
        assert_eq!(world.bad(doc.id, ask).await, "forbidden", "{}", doc.id);
    }
}

/// What no request can be blamed for. Leaves a key behind.
async fn breakdowns(world: &World) -> String {
    let store = world.app.engine.store().clone();
    let new = NewKey { name: None, role: Role::Admin, namespace: "*".into(), valid_for: None };
    let (_, secret) = world.app.keys.create(&*store, new, &Default::default(), world.clock_now()).await.expect("a key");
    let broken = ApiKey {
        id: "broken".into(),
        namespace: "*".into(),
        name: None,
        role: "no longer a role".into(),
        hash: String::new(),
        terms: "{}".into(),
        created_at: world.clock_now(),
        expires_at: None,
        revoked_at: None,
        replaced_by: None,
    };
    store.create_key(&broken, 9_999, None, world.clock_now()).await.expect("written");
    let headers = vec![("authorization", format!("Bearer {secret}"))];
    assert_eq!(world.bad("listKeys", Ask { headers, ..Ask::default() }).await, "internal");
    world.app.drain();
    assert_eq!(world.bad("getReady", Ask::default()).await, "unavailable");
    secret
}

async fn every_problem_was_seen(world: &World, key: &str) {
    let wrong = request(&Method::DELETE, "/api/v1/tasks").header("authorization", format!("Bearer {key}"));
    let answer = send(&world.router, wrong.body(Body::empty()).expect("a request")).await;
    assert_eq!(answer.headers["allow"], "POST,GET,HEAD");
    world.judge.fits(&json!({"$ref": "#/components/schemas/MethodNotAllowed"}), &answer.json(), "a wrong method");
    let mut seen: BTreeSet<String> = world.judge.seen.lock().iter().map(|(_, _, problem)| problem.clone()).collect();
    // It takes a thousand connections that fail to authenticate; `auth_failures` has a test of it.
    seen.insert("too-many-requests".into());
    seen.insert(answer.json()["type"].as_str().expect("a problem").to_owned());
    seen.remove("");
    let page = include_str!("../../../../docs/problems.md");
    let told: BTreeSet<String> = page.lines().filter_map(|line| line.strip_prefix("## ")).map(str::to_owned).collect();
    // It takes a database of many tasks; `slow_searches` in the stories of the engine leads to it.
    let told: BTreeSet<String> = told.into_iter().filter(|slug| slug != "search-timeout").collect();
    assert_eq!(seen, told, "every problem has a request that leads to it");
}
