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
}

/// Under one key another request is refused.
pub async fn repetitions(world: &World) {
    let acts = [(
        "createBatch",
        String::new(),
        json!({"id": "x", "name": "X", "kind": "batch.once"}),
        json!({"id": "y", "name": "Y", "kind": "batch.once"}),
    )];
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
