//! What workers report and what is shown of tasks that are held, as callers see it.

use axum::body::Body;
use axum::http::{Request, StatusCode};
use serde_json::{Value, json};

use crate::place::{self, Place};

async fn ask(place: &Place, method: &str, path: &str, body: &Value) -> (StatusCode, Value) {
    let request = Request::builder().method(method).uri(format!("/api/v1{path}"));
    let body = if body.is_null() { Body::empty() } else { Body::from(body.to_string()) };
    let request = request.header("content-type", "application/json").body(body).expect("a request");
    let answer = place::send(&place.app.router(), request).await;
    (answer.status, serde_json::from_slice(&answer.bytes).unwrap_or_default())
}

async fn done(place: &Place, method: &str, path: &str, body: Value) -> Value {
    let (status, answer) = ask(place, method, path, &body).await;
    assert!(status.is_success(), "{} {method} {path}: {status} {answer}", place.word);
    answer
}

async fn submitted(place: &Place, task: Value) -> String {
    done(place, "POST", "/tasks", task).await["tasks"][0]["id"].as_str().expect("an id").to_owned()
}

/// A worker hands on the header that it was given: what nobody can read is ignored and told, and its run is not lost.
#[tokio::test]
async fn a_retry_after_that_cannot_be_read_loses_no_report() {
    for place in Place::all().await {
        for given in [json!("soon"), json!("Mon, 21 Oct 2037 07:28:00 GMT"), json!(-5), json!("")] {
            let retry = json!({"strategy": "fixed", "delay": "10s", "max_retries": 3});
            let id = submitted(&place, json!({"kind": "k", "retry": retry})).await;
            let leased = done(&place, "POST", "/leases", json!({"worker": "w"})).await;
            let error = json!({"status": 500, "message": "no", "retry_after": given});
            let report = json!({"lease": leased["leases"][0]["lease"], "outcome": "failed", "error": error});
            let answer = done(&place, "POST", "/leases/report", json!({"reports": [report]})).await;
            assert_eq!(answer["reports"][0]["state"], "retry_pending", "{}: {answer}", place.word);
            let task = done(&place, "GET", &format!("/tasks/{id}"), Value::Null).await;
            let text = given.as_str().map_or_else(|| given.to_string(), str::to_owned);
            assert_eq!(task["last_error"]["retry_after_ignored"], text);
            let why = done(&place, "GET", &format!("/tasks/{id}/why"), Value::Null).await;
            let note = format!("retry_after `{text}` cannot be read and was ignored");
            assert!(why.to_string().contains(&note), "{}: {why}", place.word);
        }
        // What is no time at all is a fault of the worker.
        let id = submitted(&place, json!({"kind": "other", "queue": "other"})).await;
        let leased = done(&place, "POST", "/leases", json!({"worker": "w", "queues": ["other"]})).await;
        let error = json!({"message": "no", "retry_after": {"in": 5}});
        let report = json!({"lease": leased["leases"][0]["lease"], "outcome": "failed", "error": error});
        let answer = ask(&place, "POST", "/leases/report", &json!({"reports": [report]})).await.1;
        assert!(answer.to_string().contains("retry_after"), "{answer}");
        assert_eq!(done(&place, "GET", &format!("/tasks/{id}"), Value::Null).await["state"], "running");
        place.leave().await;
    }
}

/// Model 3.2, step 16: no later than its deadline, in the view and in the list, and before its own time has come too.
#[tokio::test]
async fn what_is_held_is_shown_until_its_deadline_at_most() {
    for place in Place::all().await {
        done(&place, "PUT", "/dependencies/psp", json!({"breaker": {}})).await;
        let now = place.app.engine.now();
        let id = submitted(&place, json!({"kind": "k", "dependency": "psp", "deadline": "30m"})).await;
        done(&place, "POST", "/dependencies/psp/open", json!({"for": "1h"})).await;
        let deadline = (now + comeback_core::Millis::from_secs(1_800)).to_rfc3339();
        let shown = done(&place, "GET", &format!("/tasks/{id}"), Value::Null).await;
        assert_eq!(shown["held_until"], deadline, "{}: {shown}", place.word);
        let listed = done(&place, "GET", "/tasks", Value::Null).await;
        assert_eq!(listed["items"][0]["held_until"], deadline);
        let forecast = done(&place, "GET", &format!("/tasks/{id}/forecast"), Value::Null).await;
        assert_eq!((&forecast["attempts"], &forecast["gives_up_at"]), (&json!([]), &json!(deadline)), "{forecast}");
        place.leave().await;
    }
}

/// Model A11: nothing is put off for longer than a year.
#[tokio::test]
async fn what_closes_for_longer_than_a_year_is_refused_by_name() {
    for place in Place::all().await {
        let window = json!([{"from": "2026-11-18T00:00:00Z", "to": "2999-01-01T00:00:00Z"}]);
        let table = [
            ("PUT", "/dependencies/psp", json!({"calendar": {"windows": window}}), "calendar.windows[0].to"),
            ("POST", "/tasks", json!({"kind": "k", "retry": {"windows": window}}), "retry.windows[0].to"),
        ];
        for (method, path, body, field) in table {
            let (status, problem) = ask(&place, method, path, &body).await;
            assert!(status.is_client_error(), "{}: {status} {problem}", place.word);
            assert!(problem["errors"].to_string().contains(field), "{}: {problem}", place.word);
        }
        // Maintenance is announced by a person, who can end it.
        done(&place, "PUT", "/dependencies/psp", json!({})).await;
        done(&place, "POST", "/dependencies/psp/maintenance", json!({"to": "2999-01-01T00:00:00Z"})).await;
        place.leave().await;
    }
}
