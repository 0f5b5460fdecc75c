//! The routes of other dialects.

use serde_json::{Value, json};

use super::{Ask, World, examples};

fn id_of(made: &Value, n: usize) -> String {
    made[n]["id"].as_str().unwrap_or_else(|| panic!("{made}")).to_owned()
}

impl World {
    /// Those that are ready are claimed and, if the call is answered, begun.
    async fn start_hooks(&self, answered: bool) -> usize {
        let request = comeback_engine::LeaseRequest::new("default", "hooks");
        let claimed = self.app.engine.claim_hooks(request).await.expect("claimed");
        for it in claimed.iter().filter(|_| answered) {
            self.app.engine.hook_started("default", it.lease).await.expect("started");
        }
        claimed.len()
    }

    async fn bad_with(&self, operation: &str, part: &str, body: Value) -> String {
        self.bad(operation, Ask { part, body: Some(body.to_string()), ..Ask::default() }).await
    }
}

pub async fn batches(world: &World) {
    for example in examples("createBatch") {
        world.post("createBatch", "", example).await;
    }
    world.start_hooks(true).await;
    let made = world.post("createBatch", "", json!([
        {"id": "a", "name": "A", "kind": "batch.a", "metadata": {"tenant": "acme", "n": 1}, "expected_count": 9, "priority": 7,
            "retry": {"max_retries": 2, "retry_on": ["explicit"]}},
        {"id": "b", "name": "B", "kind": "batch.b", "dependencies": [{"id": "a", "condition": "on_failure"}]},
    ])).await;
    let (a, b) = (id_of(&made, 0), id_of(&made, 1));
    let batch = made[0]["batch_id"].as_str().expect("an id").to_owned();
    let again = json!({"id": "c", "name": "C", "kind": "batch.a", "metadata": {"tenant": "acme"},
        "dedupe_strategy": [{"status": "Pending", "kind": "batch.a", "fields": ["tenant"]}]});
    let nothing = world.ask("createBatch", Ask { body: Some(again.to_string()), ..Ask::default() }).await;
    assert_eq!(nothing.status.as_u16(), 204);
    assert_eq!(world.bad_with("countBatchTask", &a, json!({"new_success": 1})).await, "wrong-state");
    assert_eq!(world.bad_with("updateBatchTask", &a, json!({"new_success": 1})).await, "wrong-state");
    assert_eq!(world.bad_with("updateBatchTask", &a, json!({"status": "Success"})).await, "lease-lost");
    world.start_hooks(true).await;
    world.post("countBatchTask", &a, json!({"new_success": 2, "new_failures": 1})).await;
    let stop = json!({"kind": "Webhook", "params": {"url": "https://etl.example.com/stop", "verb": "Post"}});
    world.post("updateBatchTask", &a, json!({"on_cancel": stop})).await;
    let old = Ask { part: &a, query: "run=7", body: Some(json!({"new_success": 1}).to_string()), ..Ask::default() };
    assert_eq!(world.bad("countBatchTask", old).await, "lease-lost");
    for operation in ["getBatchTask"] {
        world.get(operation, &a).await;
    }
    world.post("updateBatchTask", &a, json!({"status": "Failure", "failure_reason": "no"})).await;
    world.get("getBatchTask", &a).await;
    assert_eq!(world.bad_with("resumeBatchTask", &b, json!({})).await, "wrong-state");
    world.post("pauseBatchTask", &b, json!({})).await;
    world.post("resumeBatchTask", &b, json!({})).await;
    for query in ["", "status=RetryPending", "kind=batch.*", "name=A", "page=1&page_size=2", "page_size=1000"] {
        world.find("listBatchTasks", query).await;
    }
    let found = world.find("listBatchTasks", &format!("batch_id={batch}&kind=batch.a")).await;
    assert_eq!(found.as_array().map(Vec::len), Some(1));
    world.find("listBatches", "page_size=2").await;
    world.get("getBatch", &batch).await;
    world.get("getBatchGraph", &batch).await;
    world.get("cancelBatchTask", &b).await;
    for operation in ["cancelBatchTask", "pauseBatchTask"] {
        assert_eq!(world.bad(operation, Ask { part: &b, ..Ask::default() }).await, "wrong-state", "{operation}");
    }
    assert_eq!(world.bad_with("updateBatchTask", &b, json!({"status": "Success"})).await, "task-canceled");
    world.get("stopBatch", &batch).await;
    world.get("stopBatch", &batch).await;
    batch_rules(world).await;
}

async fn batch_rules(world: &World) {
    let matcher = json!({"status": "Running", "kind": "batch.ruled", "fields": ["tenant"]});
    let rules = json!([
        {"type": "Concurency", "max_concurency": 1, "matcher": matcher},
        {"type": "Capacity", "max_capacity": 10, "matcher": matcher},
    ]);
    let task = |id: &str| json!({"id": id, "name": id, "kind": "batch.ruled", "metadata": {"tenant": "a"}, "expected_count": 3, "rules": rules});
    let made = world.post("createBatch", "", json!([task("a"), task("b")])).await;
    let (a, b) = (id_of(&made, 0), id_of(&made, 1));
    let batch = made[0]["batch_id"].as_str().expect("an id").to_owned();
    world.start_hooks(true).await;
    let statuses =
        [&world.get("getBatchTask", &a).await, &world.get("getBatchTask", &b).await].map(|it| it["status"].clone());
    assert_eq!(statuses, ["Running", "Pending"], "one of the two at once");
    let shown = world.get("getBatchTask", &b).await;
    assert_eq!(shown["rules"].as_array().map(Vec::len), Some(2), "{shown}");
    for example in examples("setBatchRules") {
        world.post("setBatchRules", &batch, example).await;
    }
    let freed = world.post("setBatchRules", &batch, json!({"kind": "batch.ruled", "rules": []})).await;
    assert_eq!(freed["updated_count"], 2);
    world.start_hooks(true).await;
    assert_eq!(world.get("getBatchTask", &b).await["status"], "Running");
    let nobody = "00000000-0000-7000-8000-000000000000";
    assert_eq!(world.bad_with("setBatchRules", nobody, json!({"kind": "k", "rules": []})).await, "not-found");
    world.get("stopBatch", &batch).await;
}

pub async fn queue(world: &World) {
    // What others left in the queue goes first.
    while world.post("leaseJob", "", json!({"worker_id": "w"})).await["status"] == "ok" {}
    for example in examples("enqueueJob") {
        world.post("enqueueJob", "", example).await;
    }
    let job = world.post("leaseJob", "", json!({"worker_id": "w", "lease_seconds": 30})).await["job"].clone();
    let id = job["queue_id"].as_str().expect("an id");
    let by = |worker: &str| json!({"worker_id": worker});
    world.post("keepJob", id, by("w")).await;
    for operation in ["keepJob", "completeJob", "failJob"] {
        assert_eq!(world.bad_with(operation, id, by("x")).await, "lease-lost", "{operation}");
    }
    let told = |kind: &str, worker: &str| json!({"event_type": kind, "execution_id": job["execution_id"], "worker_id": worker});
    assert_eq!(world.bad_with("emitEvent", "", told("action_started", "x")).await, "lease-lost");
    world.post("emitEvent", "", told("action_started", "w")).await;
    world
        .post(
            "failJob",
            id,
            json!({"worker_id": "w", "error": {"status": 503}, "retry": true, "retry_delay_seconds": 60}),
        )
        .await;
    world.post("advanceClock", "", json!({"by": "2s"})).await;
    let job = world.post("leaseJob", "", json!({"worker_id": "w"})).await["job"].clone();
    world.post("completeJob", id, json!({"lease": job["lease"], "result": {"rows": 3}})).await;
    acknowledged(world).await;
    for query in ["", "status=completed", "status=retry", "worker_id=w&limit=1"] {
        world.find("listJobs", query).await;
    }
    world.find("countJobs", "status=completed").await;
    let mut after = String::new();
    loop {
        let page = world.find("listSeedEvents", &format!("limit=500{after}")).await;
        let Some(next) = page["next_cursor"].as_str().filter(|_| page["items"] != json!([])) else { break };
        after = format!("&after={next}");
    }
    world.find("listEvents", "names=seed&types=step_retry").await;
    for operation in ["completeJob", "failJob", "ackJob", "nackJob", "emitEvent"] {
        let entry = world.post("enqueueJob", "", json!({"node_id": "gone", "max_attempts": 2})).await;
        let id = entry["queue_id"].as_str().expect("an id").to_owned();
        let job = world.post("leaseJob", "", by("w")).await["job"].clone();
        world.post("cancelTask", &id, json!({})).await;
        let mut late = json!({"lease": job["lease"]});
        match operation {
            "emitEvent" => (late["event_type"], late["queue_id"]) = ("action_completed".into(), id.clone().into()),
            "ackJob" | "nackJob" => late["queue_id"] = id.clone().into(),
            _ => {}
        }
        assert_eq!(world.bad_with(operation, &id, late.clone()).await, "task-canceled", "{operation}");
        let beat = world.post("keepJob", &id, json!({"lease": job["lease"]})).await;
        assert_eq!(beat["cancel_requested"], true);
    }
}

/// The same in other words.
async fn acknowledged(world: &World) {
    let entry =
        world.post("enqueueJob", "", json!({"node_id": "n", "retry": {"max_attempts": 2, "initial_delay": 1}})).await;
    let by = |worker: &str| json!({"queue_id": entry["queue_id"], "worker_id": worker});
    let reserve = async || world.post("reserveJob", "", json!({"worker_id": "w"})).await;
    assert_eq!(reserve().await["job"]["queue_id"], entry["queue_id"]);
    for operation in ["ackJob", "nackJob"] {
        assert_eq!(world.bad_with(operation, "", by("x")).await, "lease-lost", "{operation}");
    }
    world.post("nackJob", "", by("w")).await;
    world.post("advanceClock", "", json!({"by": "2s"})).await;
    reserve().await;
    world.post("ackJob", "", by("w")).await;
    world.post("reapExpiredJobs", "", json!({})).await;
}

pub async fn schedules(world: &World) {
    for operation in ["listRetrySchedules", "listSchedules"] {
        for query in [
            "",
            "status=all",
            "status=failed",
            "status=completed",
            "status=retrying",
            "status=cancelled",
            "due_within=24h",
            "status=pending&limit=1",
        ] {
            let page = world.find(operation, query).await;
            if let Some(first) = page["items"].get(0) {
                let target = first["target_id"].as_str().expect("an id");
                assert!(!world.find(operation, &format!("target_id={target}")).await["items"].is_null());
            }
        }
    }
    for operation in ["getRetrySuccessRate", "getSuccessRate"] {
        world.get(operation, "").await;
    }
}

pub async fn jobs(world: &World) {
    for operation in ["retryJob", "retryScreenshot"] {
        let failed = world.submit(json!({"kind": "job", "priority": 9})).await;
        world.report(json!({"outcome": "failed", "error": "no"})).await;
        for example in examples(operation) {
            world.post(operation, &failed, example).await;
        }
        assert_eq!(
            world.bad(operation, Ask { part: &failed, ..Ask::default() }).await,
            "wrong-state",
            "it waits already"
        );
        let token = world.lease().await;
        assert_eq!(
            world.bad(operation, Ask { part: &failed, ..Ask::default() }).await,
            "conflict",
            "somebody is at it"
        );
        world.post("reportRuns", "", json!({"reports": [{"lease": token, "outcome": "succeeded"}]})).await;
        let held = world.submit(json!({"kind": "job", "priority": 9, "dedupe_key": operation})).await;
        world.report(json!({"outcome": "failed", "error": "no"})).await;
        world.submit(json!({"kind": "job", "queue": "acts", "dedupe_key": operation})).await;
        assert_eq!(world.bad(operation, Ask { part: &held, ..Ask::default() }).await, "dedupe-key-taken");
    }
}

/// Under one key another request is refused.
pub async fn repetitions(world: &World) {
    let mut failed = Vec::new();
    for _ in 0..2 {
        failed.push(world.submit(json!({"kind": "again", "priority": 9})).await);
        world.report(json!({"outcome": "failed", "error": "no"})).await;
    }
    let by = |who: &str| json!({"requestedBy": who});
    let job = |node: &str| json!({"node_id": node, "available_at": "2030-01-01T00:00:00Z"});
    let task = |id: &str| json!({"id": id, "name": id, "kind": "batch.once"});
    let acts = [
        ("createBatch", String::new(), task("x"), task("y")),
        ("enqueueJob", String::new(), job("x"), job("y")),
        ("retryJob", failed[0].clone(), by("x"), by("y")),
        ("retryScreenshot", failed[1].clone(), by("x"), by("y")),
    ];
    for (operation, part, first, other) in acts {
        let keyed = |body: &Value| {
            let headers = vec![("idempotency-key", format!("{operation} once"))];
            Ask { part: &part, body: Some(body.to_string()), headers, ..Ask::default() }
        };
        let made = world.good(operation, keyed(&first)).await;
        assert_eq!(world.good(operation, keyed(&first)).await, made);
        assert_eq!(world.bad(operation, keyed(&other)).await, "idempotency-mismatch", "{operation}");
    }
}
