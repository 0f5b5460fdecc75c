//! Retrying jobs by hand, as a metered service's clients do.

use axum::http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::place::world::{World, everywhere, text};

async fn submit(world: &World, name: &str) -> String {
    let job = json!({"kind": "screenshot", "external_id": name, "retry": true, "dialect": "job"});
    text(&world.post("/api/v1/tasks", job).await["tasks"][0]["id"]).to_owned()
}

async fn lease(world: &World) -> Value {
    world.post("/api/v1/leases", json!({"worker": "w"})).await["leases"][0]["lease"].clone()
}

async fn fail(world: &World, class: &str) {
    let error = json!({"class": class, "message": "SocketTimeoutException"});
    let report = json!({"lease": lease(world).await, "outcome": "failed", "error": error});
    world.post("/api/v1/leases/report", json!({"reports": [report]})).await;
}

/// S2-83, S2-84, S2-61, X2-2: the body and the answer; a retry that waits is superseded.
#[tokio::test]
async fn a_job_is_retried_by_hand() {
    everywhere(async |world| {
        let id = submit(world, "job_1234567890").await;
        fail(world, "retryable").await;
        world.pass(2).await;
        let retryable = async || world.get(&format!("/api/v1/tasks/{id}")).await["retryable"].clone();
        assert_eq!(retryable().await, true, "S2-6");
        let by = json!({"requestedBy": "user123"});
        let answer = world.post("/api/v1/screenshots/job_1234567890/retry", by.clone()).await;
        assert_eq!((&answer["jobId"], &answer["queuePosition"]), (&json!("job_1234567890"), &json!(1)));
        assert_eq!(answer["message"], "Job queued for manual retry");
        let task = world.get(&format!("/api/v1/tasks/{id}")).await;
        assert_eq!(
            (&task["state"], &task["cycle"], &task["next_retry_at"]),
            (&json!("pending"), &json!(1), &Value::Null)
        );
        let log = world.get(&format!("/api/v1/tasks/{id}/events")).await;
        let act = log["items"]
            .as_array()
            .expect("events")
            .iter()
            .find(|it| it["type"] == "task.manual_retry")
            .expect("an act");
        assert_eq!(
            (&act["data"]["by"], &act["data"]["note"]),
            (&json!("user123"), &json!("requested by user123")),
            "S2-28"
        );
        fail(world, "final").await;
        assert_eq!(retryable().await, false, "S2-75");
        let answer = world.post(&format!("/api/v1/jobs/{id}/retry"), by).await;
        assert_eq!(answer["jobId"], id);
    })
    .await;
}

/// S2-85, S2-87: refusals, flat and in that dialect's codes.
#[tokio::test]
async fn refusals_are_flat() {
    everywhere(async |world| {
        let id = submit(world, "job_1").await;
        let address = format!("/api/v1/jobs/{id}/retry");
        let refused = async |address: &str, body: Value| {
            let (code, body) = world.refused(Method::POST, address, body).await;
            let fields: Vec<&str> = body.as_object().expect("fields").keys().map(String::as_str).collect();
            assert_eq!(fields, ["error", "message"]);
            (code, text(&body["error"]).to_owned(), text(&body["message"]).to_owned())
        };
        let told = |code, word: &str, message: &str| (code, word.to_owned(), message.to_owned());
        let not_failed = "Job must be in FAILED status or stuck (>30 min processing)";
        let wrong = told(StatusCode::BAD_REQUEST, "VALIDATION_ERROR", not_failed);
        assert_eq!(refused(&address, json!({})).await, wrong, "it waits for its first run");
        let (code, word, message) = refused(&address, json!({"colour": "red"})).await;
        assert_eq!((code, word), (wrong.0, wrong.1.clone()));
        assert!(message.contains("colour"), "{message}");
        let token = lease(world).await;
        let processed = "Job is currently being processed by another worker";
        let busy = told(StatusCode::CONFLICT, "CONCURRENT_MODIFICATION", processed);
        assert_eq!(refused(&address, json!({})).await, busy, "somebody is at it");
        world.post("/api/v1/leases/report", json!({"reports": [{"lease": token, "outcome": "succeeded"}]})).await;
        assert_eq!(refused(&address, json!({})).await, wrong, "it succeeded");
        let nobody = refused("/api/v1/screenshots/job_2/retry", json!({})).await;
        assert_eq!((nobody.0, nobody.1.as_str()), (StatusCode::NOT_FOUND, "NOT_FOUND"));
    })
    .await;
}

/// S2-25, S2-68, S2-69, S2-86: a retry by hand needs the credits that its type costs; the answer has both numbers.
#[tokio::test]
async fn a_retry_needs_credits() {
    everywhere(async |world| {
        let put = async |body: Value| world.good(Method::PUT, "/api/v1/accounts/acme", Some(body)).await;
        put(json!({"credits": 5, "costs": {"screenshot": 3}})).await;
        let job = json!({"kind": "screenshot", "external_id": "job_9", "account": "acme"});
        world.post("/api/v1/tasks", job).await;
        fail(world, "final").await;
        put(json!({"credits": 1})).await;
        let (code, body) = world.refused(Method::POST, "/api/v1/jobs/job_9/retry", json!({})).await;
        assert_eq!((code, &body["error"]), (StatusCode::PAYMENT_REQUIRED, &json!("INSUFFICIENT_CREDITS")));
        assert_eq!((&body["requiredCredits"], &body["availableCredits"]), (&json!(3), &json!(1)));
        put(json!({"add": 2})).await;
        world.post("/api/v1/jobs/job_9/retry", json!({})).await;
        let report = json!({"lease": lease(world).await, "outcome": "succeeded"});
        world.post("/api/v1/leases/report", json!({"reports": [report]})).await;
        let account = world.get("/api/v1/accounts/acme").await;
        assert_eq!((&account["credits"], &account["reserved"], &account["spent"]), (&json!(0), &json!(0), &json!(3)));
    })
    .await;
}

/// The debug commands of that service, as they stand: two of them are POSTs without a body.
#[tokio::test]
async fn the_debug_commands_are_answered() {
    everywhere(async |world| {
        submit(world, "job_3").await;
        lease(world).await;
        world.app.clock.as_ref().expect("time is moved by hand").advance(comeback_core::Millis::from_secs(600));
        let native = world.get("/api/v1/admin/tasks/stuck").await;
        let stuck = world.good(Method::POST, "/api/v1/admin/jobs/stuck", None).await;
        assert_eq!((&stuck, stuck["items"].as_array().map(Vec::len)), (&native, Some(1)), "{stuck}");
        assert_eq!(world.get("/api/v1/admin/jobs/stuck").await, native);
        let status = world.get("/api/v1/admin/workers/status").await;
        assert_eq!((&status["items"][0]["name"], &status["scheduler"]["running"]), (&json!("w"), &json!(true)));
        let done = world.good(Method::POST, "/api/v1/admin/jobs/process-stuck", None).await;
        assert_eq!((&done["processed"], &done["tasks"][0]["action"]), (&json!(1), &json!("RETRIED")), "{done}");
        world.post("/api/v1/admin/retry-scheduler/pause", json!({"types": ["RETRIES"]})).await;
        assert_eq!(world.get("/api/v1/admin/workers/status").await["scheduler"]["running"], false);
    })
    .await;
}
