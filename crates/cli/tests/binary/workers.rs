//! Workers: the client's own, and one that hangs up.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use comeback_client::{Outcome, Worker};
use serde_json::{Value, json};

use crate::harness::{Server, file, lease_one, report, submit_one, until_over};

#[tokio::test]
async fn a_worker_of_the_sdk_works_off_a_queue_and_stops_cleanly() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(&file(folder.path()), &[]);
    let client = server.client();
    let tasks: Vec<Value> = (0..50)
        .map(|n| json!({"kind": "flaky", "payload": n, "retry": {"strategy": "fixed", "delay": "100ms", "max_retries": 3}}))
        .collect();
    client.submit(&json!({"tasks": tasks})).await.expect("submitted");
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let worker = Worker::new(client.clone(), "w").concurrency(8).handle("flaky", |task| async move {
        if task.attempt_number == 1 && task.payload.as_u64().unwrap_or(0) % 2 == 0 {
            return Outcome::failed("the first try never works");
        }
        Outcome::succeeded(json!({"attempt": task.attempt_number}))
    });
    let working = tokio::spawn(worker.run(async {
        let _ = stopped.await;
    }));
    let begun = Instant::now();
    loop {
        let stats = client.get("/api/v1/stats").await.expect("stats");
        if stats["by_state"]["succeeded"] == 50 {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "{stats}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    stop.send(()).expect("it listens");
    working.await.expect("no panic").expect("it worked");
    let recovered = client.get("/api/v1/tasks?q=state:recovered&limit=500").await.expect("a list");
    assert_eq!(recovered["items"].as_array().expect("items").len(), 25);
}

/// A worker that hangs up while it waits must not take a task with it.
#[tokio::test]
async fn a_worker_that_hung_up_takes_nothing_with_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(&file(folder.path()), &[]);
    let client = server.client();
    for _ in 0..5 {
        let impatient = server.http().post(format!("{}/api/v1/leases", server.url));
        let impatient = impatient.timeout(Duration::from_millis(100)).json(&json!({"worker": "gone", "wait": 20}));
        assert!(impatient.send().await.is_err(), "it hangs up");
        let id = submit_one(&client, json!({"kind": "k"})).await;
        let begun = Instant::now();
        let lease = lease_one(&client).await;
        assert_eq!((&lease["task"]["id"], &lease["task"]["attempt_number"]), (&json!(id), &json!(1)));
        assert!(begun.elapsed() < Duration::from_secs(5));
        report(&client, &lease, json!({"outcome": "succeeded"})).await;
        let task = client.task(&id).await.expect("shown");
        assert_eq!((&task["state"], &task["lost_count"]), (&json!("succeeded"), &json!(0)));
    }
}

/// Reports too large for one request are split; one too large for any request is reported as a failure.
#[tokio::test]
async fn reports_that_are_refused_are_told_otherwise() {
    const TOGETHER: usize = 10;
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(&file(folder.path()), &["--limit", "large_body=3000"]);
    let client = server.client();
    let bytes = |n: usize| if n == 0 { 5_000 } else { 600 };
    for n in 0..TOGETHER {
        submit_one(&client, json!({"kind": "k", "payload": bytes(n), "retry": {"max_retries": 0}})).await;
    }
    let together = Arc::new(tokio::sync::Barrier::new(TOGETHER));
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let worker = Worker::new(client.clone(), "w").concurrency(TOGETHER).handle("k", move |task| {
        let together = together.clone();
        async move {
            together.wait().await;
            Outcome::succeeded(json!("x".repeat(task.payload.as_u64().unwrap_or(0) as usize)))
        }
    });
    let working = tokio::spawn(worker.run(async {
        let _ = stopped.await;
    }));
    let begun = Instant::now();
    loop {
        let stats = client.get("/api/v1/stats").await.expect("stats");
        if stats["open"] == 0 {
            assert_eq!(
                (&stats["by_state"]["succeeded"], &stats["by_state"]["failed"]),
                (&json!(9), &json!(1)),
                "{stats}"
            );
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "{stats}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    stop.send(()).expect("it listens");
    working.await.expect("no panic").expect("it worked");
}

/// A lease is kept alive until the server has heard how its run ended.
#[tokio::test]
async fn a_report_that_waits_keeps_its_lease() {
    let folder = tempfile::tempdir().expect("a folder");
    let db = file(folder.path());
    let server = Server::start(&db, &[]);
    let (client, address) = (server.client(), server.url.trim_start_matches("http://").to_owned());
    let id = submit_one(&client, json!({"kind": "k", "retry": {"max_retries": 0}})).await;
    let (begun, has_begun) = tokio::sync::oneshot::channel::<()>();
    let begun = Mutex::new(Some(begun));
    let away = Arc::new(tokio::sync::Notify::new());
    let is_away = away.clone();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let worker = Worker::new(client.clone(), "w").lease(Duration::from_secs(7)).handle("k", move |_| {
        let (begun, is_away) = (begun.lock().expect("a lock").take(), is_away.clone());
        async move {
            begun.map(|begun| begun.send(()));
            is_away.notified().await;
            Outcome::succeeded(json!(null))
        }
    });
    let working = tokio::spawn(worker.run(async {
        let _ = stopped.await;
    }));
    has_begun.await.expect("it begins");
    // The tries after 0, 1 and 3 seconds are heard by nobody. By the next one, after 8, the lease would have run out.
    server.kill();
    away.notify_one();
    tokio::time::sleep(Duration::from_millis(3_200)).await;
    let server = Server::from(Server::command(&db, &address)).expect("it serves again");
    let task = until_over(&server.client(), &id).await;
    assert_eq!((&task["state"], &task["lost_count"]), (&json!("succeeded"), &json!(0)), "{task}");
    stop.send(()).expect("it listens");
    working.await.expect("no panic").expect("it worked");
}
