//! Retry schedules: the table of a workflow engine, as a view over tasks.

use axum::http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::place::world::{World, everywhere, text};

/// A step of a workflow, with its configuration as it stands in a node.
async fn submit(world: &World, key: &str, retry: Value) -> String {
    let task = json!({"kind": "api-call", "key": key, "queue": key, "payload": {"user": 7}, "retry": retry, "dialect": "workflow"});
    text(&world.post("/api/v1/tasks", task).await["tasks"][0]["id"]).to_owned()
}

/// The sample of exponential retries, and the one of a custom schedule, as they stand.
fn exponential() -> Value {
    json!({"enabled": true, "strategy": "exponential_backoff", "maxAttempts": 5, "initialDelaySeconds": 60, "multiplier": 2.0,
        "maxDelaySeconds": 3600, "retryOn": ["5xx", "408", "429"], "ignoreExceptions": ["4xx"]})
}

fn custom() -> Value {
    json!({"enabled": true, "strategy": "custom", "maxAttempts": 2, "customSchedule": {"attempts": [
        {"attempt": 1, "delayDays": 7}, {"attempt": 2, "delayDays": 14}]}})
}

async fn lease(world: &World, key: &str) -> String {
    let leased = world.post("/api/v1/leases", json!({"worker": "instance-1", "queues": [key]})).await;
    text(&leased["leases"][0]["lease"]).to_owned()
}

async fn end(world: &World, lease: &str, outcome: &str) {
    let report = json!({"lease": lease, "outcome": outcome, "error": {"status": 503, "message": "away"}});
    let mut report = report;
    if outcome == "succeeded" {
        report.as_object_mut().expect("fields").remove("error");
    }
    world.post("/api/v1/leases/report", json!({"reports": [report]})).await;
}

async fn fail(world: &World, key: &str) {
    let lease = lease(world, key).await;
    end(world, &lease, "failed").await;
}

async fn list(world: &World, query: &str) -> Vec<Value> {
    let page = world.get(&format!("/retry-schedules?{query}")).await;
    assert_eq!(page, world.get(&format!("/api/v1/retry-schedules?{query}")).await, "both ways lead to the same");
    page["items"].as_array().expect("rows").clone()
}

fn names(rows: &[Value]) -> Vec<&str> {
    rows.iter().map(|row| text(&row["node_id"])).collect()
}

/// S0-7 to S0-29: all fields of a row, from the first failure to the end.
#[tokio::test]
async fn a_row_has_the_fields_of_the_table() {
    everywhere(async |world| {
        let id = submit(world, "call", exponential()).await;
        assert!(list(world, "").await.is_empty(), "S0-39: nothing has failed");
        world.pass(1).await;
        fail(world, "call").await;
        let row = list(world, "").await.remove(0);
        let native = world.get(&format!("/api/v1/tasks/{id}")).await;
        let expected = json!({
            "id": format!("{id}:0"), "retry_type": "node_execution", "target_id": id, "execution_id": native["execution_id"],
            "node_id": "call", "retry_strategy": "exponential_backoff", "max_attempts": 5, "current_attempt": 1,
            "initial_delay_seconds": 60, "delay_seconds": null, "multiplier": 2.0, "max_delay_seconds": 3600,
            "custom_schedule": null, "scheduled_at": world.at(61), "last_retried_at": world.at(1), "expires_at": null,
            "status": "scheduled", "locked_by": null, "locked_at": null,
            "retry_context": {"inputData": {"user": 7}, "nodeConfig": null},
            "error_history": [{"attempt": 1, "timestamp": world.at(1), "error": "away"}],
            "created_at": world.at(1), "updated_at": world.at(1), "version": row["version"],
        });
        assert_eq!(row, expected);
        world.pass(60).await;
        let token = lease(world, "call").await;
        let running = list(world, "status=retrying").await.remove(0);
        assert_eq!((&running["status"], &running["locked_by"], &running["locked_at"]),
            (&json!("retrying"), &json!("instance-1"), &json!(world.at(61))));
        assert!(running["version"].as_u64() > row["version"].as_u64(), "S0-55");
        end(world, &token, "succeeded").await;
        let done = list(world, "status=completed").await.remove(0);
        assert_eq!((&done["status"], &done["current_attempt"], &done["locked_by"], &done["last_retried_at"]),
            (&json!("completed"), &json!(1), &Value::Null, &json!(world.at(61))), "S0-58, X0-5");
    })
    .await;
}

/// S0-19, S0-35: the custom schedule as it was given, and its fortnight.
#[tokio::test]
async fn a_custom_schedule_is_shown_as_it_was_given() {
    everywhere(async |world| {
        submit(world, "far", custom()).await;
        fail(world, "far").await;
        let day = 24 * 60 * 60;
        let row = list(world, "").await.remove(0);
        assert_eq!(
            row["custom_schedule"],
            json!({"attempts": [{"attempt": 1, "delay_days": 7}, {"attempt": 2, "delay_days": 14}]})
        );
        assert_eq!((&row["retry_strategy"], &row["scheduled_at"]), (&json!("custom"), &json!(world.at(7 * day))));
        assert!(list(world, "due_within=24h").await.is_empty());
        world.pass(6 * day).await;
        assert_eq!(list(world, "due_within=24h").await.len(), 1, "S0-77");
    })
    .await;
}

/// S0-76 to S0-80: the four questions.
#[tokio::test]
async fn the_four_questions_are_answered() {
    everywhere(async |world| {
        let rate = async || world.get("/retry-schedules/success-rate").await;
        assert_eq!(rate().await, json!({"successful": 0, "failed": 0, "total": 0, "success_rate": null}), "S0-80");
        let fixed =
            |seconds: u64, max: u32| json!({"strategy": "fixed_delay", "maxAttempts": max, "delaySeconds": seconds});
        for (key, seconds) in [("later", 90_000), ("soon", 600), ("sooner", 300)] {
            submit(world, key, fixed(seconds, 3)).await;
            fail(world, key).await;
        }
        assert_eq!(names(&list(world, "").await), ["sooner", "soon", "later"], "S0-76: by due time");
        assert_eq!(names(&list(world, "status=pending&due_within=24h").await), ["sooner", "soon"], "S0-77");
        for key in ["first", "second"] {
            submit(world, key, fixed(1, 1)).await;
            fail(world, key).await;
            world.pass(1).await;
            fail(world, key).await;
        }
        let exhausted = list(world, "status=failed").await;
        assert_eq!(names(&exhausted), ["second", "first"], "S0-78: the newest first");
        assert_eq!(
            exhausted[0]["error_history"].as_array().map(Vec::len),
            Some(2),
            "X0-4: the last error is there too"
        );
        submit(world, "well", fixed(1, 1)).await;
        fail(world, "well").await;
        world.pass(1).await;
        let token = lease(world, "well").await;
        end(world, &token, "succeeded").await;
        submit(world, "plain", fixed(1, 1)).await;
        let token = lease(world, "plain").await;
        end(world, &token, "succeeded").await;
        // Three wait, two ran out, one came back; one never failed and is none of them.
        assert_eq!(rate().await, json!({"successful": 1, "failed": 2, "total": 6, "success_rate": 16.67}), "S0-79");
        assert_eq!(rate().await, world.get("/api/v1/retry-schedules/success-rate").await);
        let page = world.get("/retry-schedules?limit=2").await;
        let next = world.get(&format!("/retry-schedules?limit=2&cursor={}", text(&page["next_cursor"]))).await;
        assert_eq!(names(next["items"].as_array().expect("rows")), ["later"]);
    })
    .await;
}

/// X0-20, §3.4: a cancel and a manual retry end a schedule; every cycle is a row.
#[tokio::test]
async fn every_cycle_of_a_task_is_a_row() {
    everywhere(async |world| {
        let id = submit(world, "call", exponential()).await;
        fail(world, "call").await;
        world.pass(5).await;
        world.post(&format!("/api/v1/tasks/{id}/retry"), json!({})).await;
        fail(world, "call").await;
        let rows = list(world, &format!("target_id={id}")).await;
        let told: Vec<(&str, &str)> = rows.iter().map(|row| (text(&row["id"]), text(&row["status"]))).collect();
        let (first, second) = (format!("{id}:0"), format!("{id}:1"));
        assert_eq!(told, [(first.as_str(), "cancelled"), (second.as_str(), "scheduled")]);
        assert_eq!(rows[0]["error_history"].as_array().map(Vec::len), Some(1));
        assert_eq!(rows[0]["scheduled_at"], world.at(60));
        world.post(&format!("/api/v1/tasks/{id}/cancel"), json!({})).await;
        let rows = list(world, "status=cancelled").await;
        assert_eq!((rows.len(), &rows[0]["id"]), (1, &json!(second)));
    })
    .await;
}

/// F0-12: refusals of the routes that a workflow engine has.
#[tokio::test]
async fn refusals_are_nested() {
    everywhere(async |world| {
        let (code, body) = world.refused(Method::GET, "/retry-schedules?status=asleep", json!({})).await;
        let error = &body["error"];
        assert_eq!((code, &error["code"]), (StatusCode::BAD_REQUEST, &json!("VALIDATION_ERROR")));
        assert_eq!(error["details"][0]["path"], "status");
        assert!(!text(&error["message"]).is_empty() && !text(&error["request_id"]).is_empty(), "{body}");
        let nobody = format!("/retry-schedules?target_id={}", uuid::Uuid::nil());
        let (code, body) = world.refused(Method::GET, &nobody, json!({})).await;
        assert_eq!((code, &body["error"]["code"]), (StatusCode::NOT_FOUND, &json!("NOT_FOUND")));
        let (_, native) = world.refused(Method::GET, "/api/v1/retry-schedules?status=asleep", json!({})).await;
        assert!(
            native["error"].is_string() && native["type"].is_string(),
            "native routes keep their own shape: {native}"
        );
    })
    .await;
}

/// S0-8, S0-48 to S0-50, E8, E9: an execution with a policy of its own is a row too, from its first failure to its end.
#[tokio::test]
async fn an_execution_that_is_tried_again_is_a_row() {
    everywhere(async |world| {
        let document =
            json!({"retry": {"strategy": "fixed", "delay": "1h", "max_retries": 1}, "steps": {"a": {"payload": 1}}});
        world.good(Method::PUT, "/api/v1/workflows/whole", Some(document)).await;
        let started = world.post("/api/v1/executions", json!({"workflow": "whole", "input": {"user": 7}})).await;
        let first = text(&started["execution_id"]).to_owned();
        world.pass(0).await;
        fail(world, "default").await;
        world.pass(0).await;
        let row = list(world, "").await.remove(0);
        assert_eq!(
            (&row["retry_type"], &row["target_id"], &row["execution_id"]),
            (&json!("execution"), &json!(first), &json!(first))
        );
        assert_eq!(
            (&row["retry_strategy"], &row["scheduled_at"], &row["current_attempt"]),
            (&json!("fixed_delay"), &json!(world.at(3_600)), &json!(1))
        );
        assert_eq!(
            row["retry_context"],
            json!({"inputData": {"user": 7}, "nodeConfig": {"workflow": "whole", "version": 1}})
        );
        assert_eq!(row["error_history"].as_array().map(Vec::len), Some(1));
        assert_eq!(list(world, &format!("target_id={first}")).await, std::slice::from_ref(&row));
        world.pass(3_600).await;
        let running = list(world, "status=retrying").await.remove(0);
        assert_ne!(running["target_id"], json!(first), "it is another execution that runs now");
        fail(world, "default").await;
        world.pass(0).await;
        let over = list(world, "status=failed").await.remove(0);
        assert_eq!(
            (&over["retry_type"], &over["target_id"], &over["id"]),
            (&json!("execution"), &running["target_id"], &row["id"])
        );
    })
    .await;
}

/// I-20: the final error is there however many were before it, and a cycle that ended is told from the present one.
#[tokio::test]
async fn a_row_knows_more_than_a_thousand_runs() {
    everywhere(async |world| {
        let task = json!({"kind": "k", "queue": "long", "retry": {"strategy": "immediate", "max_retries": 1_000}});
        let id = text(&world.post("/api/v1/tasks", task).await["tasks"][0]["id"]).to_owned();
        for n in 0..=1_000 {
            let lease = lease(world, "long").await;
            let report = json!({"lease": lease, "outcome": "failed", "error": {"message": format!("e{n}")}});
            world.post("/api/v1/leases/report", json!({"reports": [report]})).await;
        }
        for query in ["status=failed".to_owned(), format!("target_id={id}")] {
            let rows = list(world, &query).await;
            let errors = rows[0]["error_history"].as_array().expect("errors");
            assert_eq!((rows.len(), errors.len()), (1, 1_001), "{query}");
            assert_eq!((&errors[1_000]["error"], &errors[1_000]["attempt"]), (&json!("e1000"), &json!(1_001)));
            assert_eq!((&rows[0]["status"], &rows[0]["current_attempt"]), (&json!("failed"), &json!(1_000)));
        }
        world.post(&format!("/api/v1/tasks/{id}/retry"), json!({})).await;
        fail(world, "long").await;
        let rows = list(world, &format!("target_id={id}")).await;
        let told: Vec<&str> = rows.iter().map(|row| text(&row["status"])).collect();
        assert_eq!(told, ["failed", "scheduled"]);
        assert_eq!(rows[1]["error_history"].as_array().map(Vec::len), Some(1), "{}", rows[1]);
    })
    .await;
}
