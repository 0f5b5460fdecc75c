//! Tasks over HTTP: what is answered, and what is refused.

use comeback_client::Error;
use serde_json::{Value, json};

use crate::harness::{Server, file, lease_one, report, submit_one};

#[tokio::test]
async fn a_task_fails_comes_back_and_tells_why() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(&file(folder.path()), &[]);
    let client = server.client();
    let task = json!({"kind": "hello", "payload": {"n": 1}, "retry": {"strategy": "fixed", "delay": "200ms", "max_retries": 3}});
    let submitted = client.submit(&task).await.expect("submitted");
    let id = submitted["tasks"][0]["id"].as_str().expect("an id").to_owned();
    assert_eq!(submitted["tasks"][0]["state"], "pending");

    let lease = lease_one(&client).await;
    assert_eq!((&lease["task"]["id"], &lease["task"]["payload"]["n"]), (&json!(id), &json!(1)));
    let failed =
        report(&client, &lease, json!({"outcome": "failed", "error": {"status": 503, "message": "boom"}})).await;
    assert_eq!((&failed["state"], &failed["attempt"]), (&json!("retry_pending"), &json!(1)));
    assert!(failed["next_retry_at"].is_string());
    let again = report(&client, &lease, json!({"outcome": "succeeded"})).await;
    assert_eq!(again["problem"]["error"], "LEASE_LOST", "another word about a run that is over");

    let why = client.get(&format!("/api/v1/tasks/{id}/why")).await.expect("why");
    assert!(why["text"].as_str().expect("words").contains("503"), "{why}");
    let forecast = client.get(&format!("/api/v1/tasks/{id}/forecast")).await.expect("a forecast");
    assert!(!forecast["attempts"].as_array().expect("attempts").is_empty());

    let lease = lease_one(&client).await;
    assert_eq!((&lease["task"]["attempt_number"], &lease["task"]["is_retry"]), (&json!(2), &json!(true)));
    let done = report(&client, &lease, json!({"outcome": "succeeded", "result": {"ok": true}})).await;
    assert_eq!(done["state"], "succeeded");
    let shown = client.task(&id).await.expect("shown");
    assert_eq!(
        (&shown["state"], &shown["result"]["ok"], &shown["total_attempts"]),
        (&json!("succeeded"), &json!(true), &json!(2))
    );
    let attempts = client.get(&format!("/api/v1/tasks/{id}/attempts")).await.expect("attempts");
    let outcomes: Vec<&Value> = attempts["items"].as_array().expect("items").iter().map(|it| &it["outcome"]).collect();
    assert_eq!(outcomes, ["failed", "succeeded"]);
    let events = client.get(&format!("/api/v1/events?task_id={id}")).await.expect("events");
    let kinds: Vec<&str> =
        events["items"].as_array().expect("items").iter().filter_map(|it| it["type"].as_str()).collect();
    assert!(kinds.contains(&"task.retry_scheduled") && kinds.contains(&"task.succeeded"), "{kinds:?}");
    let seqs: Vec<u64> =
        events["items"].as_array().expect("items").iter().filter_map(|it| it["seq"].as_u64()).collect();
    assert_eq!(seqs, (1..=seqs.len() as u64).collect::<Vec<_>>(), "gap-free");
    let metrics =
        server.http().get(format!("{}/metrics", server.url)).send().await.expect("sent").text().await.expect("text");
    for line in [
        "comeback_tasks_created_total 1",
        "comeback_tasks_retried_total{kind=\"automatic\"} 1",
        "comeback_tasks_completed_total{outcome=\"succeeded\",kind=\"hello\"} 1",
        "comeback_attempts_total{outcome=\"succeeded\",attempt=\"2\"} 1",
        "comeback_tasks_by_status{namespace=\"default\",status=\"succeeded\"} 1",
    ] {
        assert!(metrics.lines().any(|it| it == line), "{line} is missing:\n{metrics}");
    }
}

#[tokio::test]
async fn bad_requests_are_answered_with_precise_problems() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(&file(folder.path()), &[]);
    let client = server.client();
    let cases = [
        (json!({}), "VALIDATION_ERROR", "kind"),
        (json!({"kind": ""}), "VALIDATION_ERROR", "kind"),
        (json!({"kind": "k", "colour": "red"}), "VALIDATION_ERROR", "colour"),
        (json!({"kind": "k", "retry": {"max_retries": -1}}), "VALIDATION_ERROR", "retry"),
        (json!({"kind": "k", "retry": {"strategy": "sometimes"}}), "VALIDATION_ERROR", "retry.strategy"),
        (json!({"kind": "k", "retry": "exp(5)"}), "VALIDATION_ERROR", "retry"),
        (json!({"kind": "k", "delay": "soon"}), "VALIDATION_ERROR", "delay"),
        (json!({"kind": "k", "executor": {"type": "magic"}}), "VALIDATION_ERROR", "executor.type"),
        (json!({"kind": "k", "hooks": {"end": []}}), "VALIDATION_ERROR", "hooks.end"),
        (json!({"tasks": [{"kind": "k"}, {"kind": 7}]}), "VALIDATION_ERROR", "tasks[1].kind"),
        (json!({"tasks": [{"kind": "k", "key": "a", "needs": ["b"]}]}), "VALIDATION_ERROR", "needs"),
        (json!([]), "VALIDATION_ERROR", ""),
    ];
    for (body, code, path) in cases {
        let Err(Error::Refused(problem)) = client.submit(&body).await else { panic!("{body} was taken") };
        assert_eq!((problem.status, problem.error.as_str()), (400, code), "{body}: {}", problem.detail);
        assert!(problem.detail.contains(path), "{body}: {}", problem.detail);
        assert!(!problem.instance.is_empty());
    }
    let stats = client.get("/api/v1/stats").await.expect("stats");
    assert_eq!(stats["total"], 0, "nothing was written");
    for (path, status) in [
        ("/api/v1/tasks/nonsense", 404),
        ("/api/v1/tasks/00000000-0000-7000-8000-000000000000", 404),
        ("/api/v1/nothing", 404),
        ("/api/v1/tasks?q=state:nonsense", 400),
        ("/api/v1/tasks?limit=0", 400),
        ("/api/v1/tasks?cursor=x", 400),
        ("/api/v1/tasks?colour=red", 400),
        ("/api/v1/tasks?q=%zz", 400),
        ("/api/v1/events?types=nonsense", 400),
        ("/api/v1/upcoming?within=soon", 400),
    ] {
        let Err(Error::Refused(problem)) = client.get(path).await else { panic!("{path} was answered") };
        assert_eq!(problem.status, status, "{path}: {}", problem.detail);
    }
    let http = server.http();
    let form = http.post(format!("{}/api/v1/tasks", server.url)).body("kind=k").send().await.expect("sent");
    assert_eq!(form.status(), 415, "what a page could send unasked is not read");
    let other_host = http.get(format!("{}/api/v1/stats", server.url)).header("host", "evil.example");
    assert_eq!(other_host.send().await.expect("sent").status(), 403);
    let wrong_method = http.delete(format!("{}/api/v1/tasks", server.url)).send().await.expect("sent");
    assert_eq!(wrong_method.status(), 405);
    assert_eq!(wrong_method.headers()["content-type"], "application/problem+json");
}

#[tokio::test]
async fn the_same_idempotency_key_creates_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(&file(folder.path()), &[]);
    let http = server.http();
    let send = |body: &'static str| {
        let request = http.post(format!("{}/api/v1/tasks", server.url)).header("content-type", "application/json");
        async move { request.header("idempotency-key", "one").body(body).send().await.expect("sent") }
    };
    let first: Value = send(r#"{"kind":"k"}"#).await.json().await.expect("json");
    let second: Value = send(r#"{"kind":"k"}"#).await.json().await.expect("json");
    assert_eq!(first, second);
    let other = send(r#"{"kind":"other"}"#).await;
    assert_eq!(other.status(), 409);
    assert_eq!(other.json::<Value>().await.expect("json")["error"], "IDEMPOTENCY_MISMATCH");
}

#[tokio::test]
async fn two_weeks_pass_in_a_moment_on_a_virtual_clock() {
    let folder = tempfile::tempdir().expect("a folder");
    let db = file(folder.path());
    let server = Server::start(&db, &["--clock", "virtual"]);
    let client = server.client();
    client.submit(&json!({"kind": "kyc", "retry": {"schedule": ["7d", "14d"]}})).await.expect("submitted");
    let mut before = client.get("/api/v1/clock").await.expect("a clock")["now"].clone();
    for _ in 0..2 {
        let lease = lease_one(&client).await;
        let failed = report(&client, &lease, json!({"outcome": "failed", "error": "not yet"})).await;
        assert_eq!(failed["state"], "retry_pending");
        let moved = client.post("/api/v1/clock/advance", &json!({"to": "next"})).await.expect("moved");
        assert!(moved["now"].as_str() > before.as_str());
        before = moved["now"].clone();
    }
    let lease = lease_one(&client).await;
    assert_eq!(lease["task"]["attempt_number"], 3);
    server.kill();
    let server = Server::start(&db, &["--clock", "virtual"]);
    let after = server.client().get("/api/v1/clock").await.expect("a clock")["now"].clone();
    assert_eq!(after, before, "a restart does not move it");
    server.kill();
    let server = Server::start(&db, &["--clock", "virtual@2001-01-01T00:00:00Z"]);
    let after = server.client().get("/api/v1/clock").await.expect("a clock")["now"].clone();
    assert_eq!(after, before, "nor back");
    server.kill();
    let server = Server::start(&db, &["--clock", "virtual@2101-01-01T00:00:00Z"]);
    let after = server.client().get("/api/v1/clock").await.expect("a clock")["now"].clone();
    assert_eq!(after, "2101-01-01T00:00:00.000Z", "where it is told to start");
    let real = Server::start(&folder.path().join("real.db").to_string_lossy(), &[]);
    let refused = real.client().post("/api/v1/clock/advance", &json!({"by": "1d"})).await;
    assert!(matches!(refused, Err(Error::Refused(problem)) if problem.status == 400));
}

#[tokio::test]
async fn a_policy_of_a_kind_is_used_where_a_task_says_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(&file(folder.path()), &["--instance", "one"]);
    let client = server.client();
    let put = |kind: &str, body: Value| {
        let request = server.http().put(format!("{}/api/v1/policies/{kind}", server.url)).json(&body);
        async move { request.send().await.expect("sent").status().as_u16() }
    };
    assert_eq!(put("mail", json!({"policy": "exp(60s, x2, 7 retries)"})).await, 200);
    assert_eq!(put("mail2", json!({"policy": {"strategy": "sometimes"}})).await, 400);
    let id = submit_one(&client, json!({"kind": "mail"})).await;
    assert_eq!(client.task(&id).await.expect("shown")["max_retries"], 7);
    let own = submit_one(&client, json!({"kind": "mail", "retry": 2})).await;
    assert_eq!(client.task(&own).await.expect("shown")["max_retries"], 1);
    let other = submit_one(&client, json!({"kind": "other"})).await;
    assert!(client.task(&other).await.expect("shown")["retry"].is_null());
    client.delete("/api/v1/policies/mail").await.expect("gone");
    assert!(matches!(client.get("/api/v1/policies/mail").await, Err(Error::Refused(problem)) if problem.status == 404));
    lease_one(&client).await;
    let workers = client.get("/api/v1/admin/workers").await.expect("workers");
    assert_eq!((&workers["items"][0]["name"], &workers["items"][0]["leased_total"]), (&json!("w"), &json!(1)));
    let instances = client.get("/api/v1/admin/instances").await.expect("instances");
    assert_eq!(instances["items"][0]["id"], "one");
    let docs =
        server.http().get(format!("{}/docs", server.url)).send().await.expect("sent").text().await.expect("text");
    assert!(docs.contains("/api/v1/leases/report"));
}
