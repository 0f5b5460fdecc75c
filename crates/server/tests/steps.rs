//! What is kept of a step's task, and what it is known by.

use axum::http::Method;
use serde_json::{Value, json};

use crate::place::world::{World, everywhere, text};

async fn put(world: &World, retries: u32) {
    let retry = json!({"strategy": "fixed", "delay": "10s", "max_retries": retries});
    let step = json!({"kind": "price", "name": "Price an order", "foreach": [5, 6], "payload": {"order": "{{ item }}"}, "retry": retry});
    world.good(Method::PUT, "/api/v1/workflows/orders", Some(json!({"steps": {"price": step}}))).await;
}

async fn lease(world: &World) -> Value {
    world.post("/api/v1/leases", json!({"worker": "w", "limit": 1})).await["leases"][0].clone()
}

async fn report(world: &World, lease: &Value, mut report: Value) {
    report["lease"] = lease["lease"].clone();
    world.post("/api/v1/leases/report", json!({"reports": [report]})).await;
}

/// F0-4, X4-10, X4-12: label, type, input, output, configuration, error, count and details of its attempts; a round of a loop is known
/// by its execution, its step and its number; a newer version of the workflow changes nothing of it.
#[tokio::test]
async fn a_step_keeps_all_there_is_to_know_of_it() {
    everywhere(async |world| {
        put(world, 3).await;
        let started = world.post("/api/v1/executions", json!({"workflow": "orders"})).await;
        world.pass(0).await;
        put(world, 0).await;
        let leased = lease(world).await;
        assert_eq!(leased["task"]["payload"], json!({"order": 5}));
        let error = json!({"type": "HttpError", "code": "E7", "status": 503, "message": "away", "stack": "at line 7"});
        report(world, &leased, json!({"outcome": "failed", "error": error})).await;
        world.pass(10).await;
        let again = lease(world).await;
        assert_eq!(again["task"]["id"], leased["task"]["id"], "older work goes first");
        report(world, &again, json!({"outcome": "succeeded", "result": {"price": 500}})).await;
        let id = text(&leased["task"]["id"]);
        let task = world.get(&format!("/api/v1/tasks/{id}")).await;
        assert_eq!(
            (&task["key"], &task["name"], &task["kind"], &task["execution_id"]),
            (&json!("price[0]"), &json!("Price an order"), &json!("price"), &started["execution_id"])
        );
        assert_eq!((&task["state"], &task["result"]), (&json!("succeeded"), &json!({"price": 500})));
        assert_eq!(
            (&task["attempt"], &task["total_attempts"], &task["max_retries"]),
            (&json!(1), &json!(2), &json!(3))
        );
        let failure = &task["last_error"];
        for (field, value) in
            [("type", json!("HttpError")), ("code", json!("E7")), ("status", json!(503)), ("stack", json!("at line 7"))]
        {
            assert_eq!(failure[field], value, "{field}");
        }
        let attempts = world.get(&format!("/api/v1/tasks/{id}/attempts")).await;
        let told: Vec<(&str, &str)> = attempts["items"]
            .as_array()
            .expect("attempts")
            .iter()
            .map(|it| (text(&it["outcome"]), text(&it["ended_at"])))
            .collect();
        assert_eq!(told, [("failed", world.at(0).as_str()), ("succeeded", world.at(10).as_str())]);
        assert_eq!(attempts["items"][0]["error"]["message"], "away");
        let other = lease(world).await;
        let other = world.get(&format!("/api/v1/tasks/{}", text(&other["task"]["id"]))).await;
        assert_eq!((&other["key"], &other["execution_id"]), (&json!("price[1]"), &started["execution_id"]));
        let execution = world.get(&format!("/api/v1/executions/{}", text(&started["execution_id"]))).await;
        assert_eq!((&execution["version"], &execution["workflow"]), (&json!(1), &json!("orders")));
    })
    .await;
}

/// F0-3: the words of a workflow engine for the states of executions, shown and read.
#[tokio::test]
async fn an_execution_has_the_status_of_a_workflow_engine_too() {
    everywhere(async |world| {
        put(world, 0).await;
        let started = world.post("/api/v1/executions", json!({"workflow": "orders"})).await;
        let id = text(&started["execution_id"]).to_owned();
        let address = format!("/api/v1/executions/{id}");
        let status = async |read: &str| {
            let found = world.get(&format!("/api/v1/executions?state={read}")).await;
            assert_eq!(found["items"][0]["id"], json!(id), "{read}");
            assert_eq!(found["items"][0]["status"], world.get(&address).await["status"]);
            text(&found["items"][0]["status"]).to_owned()
        };
        assert_eq!(status("WAITING").await, "WAITING");
        world.pass(0).await;
        let leased = lease(world).await;
        assert_eq!(status("RUNNING").await, "RUNNING");
        world.post(&format!("{address}/pause"), json!({})).await;
        assert_eq!(status("PAUSED").await, "PAUSED");
        world.post(&format!("{address}/resume"), json!({})).await;
        assert_eq!(status("RESUMING").await, "RUNNING");
        report(world, &leased, json!({"outcome": "failed", "error": "no"})).await;
        report(world, &lease(world).await, json!({"outcome": "succeeded"})).await;
        world.pass(0).await;
        assert_eq!(status("FAILED").await, "FAILED");
        world.post(&format!("{address}/retry"), json!({})).await;
        world.pass(0).await;
        report(world, &lease(world).await, json!({"outcome": "succeeded"})).await;
        world.pass(0).await;
        assert_eq!(status("COMPLETED").await, "COMPLETED");
        let other = world.post("/api/v1/executions", json!({"workflow": "orders"})).await;
        let other = text(&other["execution_id"]).to_owned();
        world.post(&format!("/api/v1/executions/{other}/cancel"), json!({})).await;
        let canceled = world.get("/api/v1/executions?state=CANCELLED").await;
        assert_eq!(
            (&canceled["items"][0]["id"], &canceled["items"][0]["status"]),
            (&json!(other), &json!("CANCELLED"))
        );
    })
    .await;
}
