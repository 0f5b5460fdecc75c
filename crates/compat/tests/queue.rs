//! The queue of a playbook engine: the timeline of three attempts, as its workers see it and as its events tell it.

use std::time::{Duration, Instant};

use axum::http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::place::world::{World, everywhere, text};

const WORKER: &str = "worker-1";

/// A step with three attempts and delays of 1 and 2 seconds.
async fn enqueue(world: &World, retry: Value) -> (String, String) {
    let job = json!({"node_id": "fetch", "node_name": "Fetch", "node_type": "http",
        "action": {"url": "https://example.com"}, "context": {"page": 1}, "retry": retry});
    let entry = world.post("/api/queue/enqueue", job).await;
    (text(&entry["queue_id"]).to_owned(), text(&entry["execution_id"]).to_owned())
}

fn three() -> Value {
    json!({"max_attempts": 3, "initial_delay": 1.0, "backoff_multiplier": 2.0, "max_delay": 60.0, "jitter": false})
}

async fn lease(world: &World) -> Value {
    world.post("/api/queue/lease", json!({"worker_id": WORKER, "lease_seconds": 60})).await
}

async fn fail(world: &World, id: &str) -> Value {
    let error = json!({"status": 503, "message": "Service Unavailable"});
    world.post(&format!("/api/queue/{id}/fail"), json!({"worker_id": WORKER, "error": error})).await
}

async fn row(world: &World, execution: &str) -> Value {
    world.get(&format!("/api/queue?execution_id={execution}")).await["items"][0].clone()
}

/// State and attempts of the queue entry.
async fn standing(world: &World, execution: &str) -> (String, u64) {
    let row = row(world, execution).await;
    (text(&row["status"]).to_owned(), row["attempts"].as_u64().expect("a number"))
}

fn is(status: &str, attempts: u64) -> (String, u64) {
    (status.to_owned(), attempts)
}

/// What happened until an event of this name, each with its time, its name and its context. On a busy PostgreSQL the feed is a moment
/// late.
async fn timeline(world: &World, execution: &str, last: &str) -> Vec<(String, String, Value)> {
    let begun = Instant::now();
    loop {
        let page = world.get(&format!("/api/events?execution_id={execution}&limit=100")).await;
        let items = page["items"].as_array().expect("events");
        if items.last().is_some_and(|it| it["event_type"] == last) {
            let told = |it: &Value| {
                (text(&it["timestamp"]).to_owned(), text(&it["event_type"]).to_owned(), it["context"].clone())
            };
            return items.iter().map(told).collect();
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "{last} never came: {page}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn expected(world: &World, events: &[(u64, &str, Value)]) -> Vec<(String, String, Value)> {
    events.iter().map(|(at, name, context)| (world.at(*at), (*name).to_owned(), context.clone())).collect()
}

/// The timeline until the third attempt runs (S4-31 to S4-37): what is in the queue at each instant, and the events so far.
async fn two_failures(world: &World, id: &str, execution: &str) -> Vec<(u64, &'static str, Value)> {
    let leased = lease(world).await["job"].clone();
    assert_eq!((&leased["queue_id"], &leased["attempts"], &leased["max_attempts"]), (&json!(id), &json!(0), &json!(3)));
    assert_eq!((&leased["node_id"], &leased["action"]), (&json!("fetch"), &json!({"url": "https://example.com"})));
    assert_eq!(standing(world, execution).await, is("leased", 0), "S4-31");
    world.pass(1).await;
    let ack = fail(world, id).await;
    assert_eq!(
        (&ack["queue_status"], &ack["attempts"], &ack["available_at"]),
        (&json!("queued"), &json!(1), &json!(world.at(2))),
        "S4-33"
    );
    assert_eq!(lease(world).await["status"], "empty", "S4-34: not before its time");
    assert_eq!(row(world, execution).await["available_at"], world.at(2));
    world.pass(1).await;
    assert_eq!(lease(world).await["job"]["attempts"], 1, "S4-17");
    assert_eq!(standing(world, execution).await, is("leased", 1), "S4-35");
    world.pass(1).await;
    fail(world, id).await;
    assert_eq!(standing(world, execution).await, is("queued", 2), "S4-36");
    assert_eq!(row(world, execution).await["available_at"], world.at(5));
    world.pass(1).await;
    assert_eq!(lease(world).await["status"], "empty");
    world.pass(1).await;
    assert_eq!(lease(world).await["job"]["attempts"], 2, "S4-37");
    world.pass(1).await;
    let error =
        |attempt: u32| json!({"attempt": attempt, "status_code": 503, "error_class": "retryable", "trigger": "error"});
    let retry = |attempt: u32, delay: f64, at: u64| {
        json!({"attempt": attempt, "max_attempts": 3, "delay_seconds": delay,
        "last_error": "Service Unavailable", "available_at": world.at(at)})
    };
    let started = |attempt: u32| json!({"attempt": attempt, "is_retry": attempt > 1});
    vec![
        (0, "step_started", json!({})),
        (0, "execution_started", json!({})),
        (0, "action_started", started(1)),
        (1, "action_error", error(1)),
        (1, "step_retry", retry(1, 1.0, 2)),
        (2, "action_started", started(2)),
        (3, "action_error", error(2)),
        (3, "step_retry", retry(2, 2.0, 5)),
        (5, "action_started", started(3)),
    ]
}

/// S4-31 to S4-39, S4-57: three attempts, and success.
#[tokio::test]
async fn the_timeline_of_three_attempts_ends_in_success() {
    everywhere(async |world| {
        let (id, execution) = enqueue(world, three()).await;
        let mut events = two_failures(world, &id, &execution).await;
        let done = json!({"worker_id": WORKER, "result": {"rows": 3}});
        world.post(&format!("/api/queue/{id}/complete"), done).await;
        assert_eq!(standing(world, &execution).await, is("completed", 2), "S4-38");
        events.extend([
            (6, "action_completed", json!({"attempt": 3})),
            (6, "step_completed", json!({})),
            (6, "execution_completed", json!({})),
        ]);
        assert_eq!(timeline(world, &execution, "execution_completed").await, expected(world, &events));
        let page =
            world.get(&format!("/api/events?execution_id={execution}&types=action_completed,action_error")).await;
        let shown = &page["items"][2];
        assert_eq!(
            (&shown["result"], &shown["duration"], &shown["worker_id"], &shown["status"]),
            (&json!({"rows": 3}), &json!(1.0), &json!(WORKER), &json!("COMPLETED"))
        );
        assert_eq!(
            (&page["items"][0]["error"], &page["items"][0]["node_id"]),
            (&json!("Service Unavailable"), &json!("fetch"))
        );
        // F4-7: by how something stands, in whichever words.
        let of_status = async |word: &str| {
            let page = world.get(&format!("/api/events?execution_id={execution}&status={word}")).await;
            let items = page["items"].as_array().expect("events").clone();
            items.iter().map(|it| text(&it["event_type"]).to_owned()).collect::<Vec<_>>()
        };
        let completed = ["action_completed", "step_completed", "execution_completed"];
        assert_eq!(of_status("success").await, completed);
        assert_eq!(of_status("COMPLETED").await, completed);
        assert_eq!(of_status("queued").await, ["step_retry", "step_retry"]);
        assert_eq!(of_status("error").await, ["action_error", "action_error"]);
        assert!(of_status("suspended").await.is_empty());
        let nothing = world.get(&format!("/api/events?execution_id={execution}&status=error&types=step_retry")).await;
        assert_eq!(nothing["items"], json!([]));
        assert_eq!((&shown["parent_execution_id"], &shown["loop"]), (&Value::Null, &Value::Null));
        let native = world.get(&format!("/api/v1/events?execution_id={execution}&names=seed&types=step_retry")).await;
        let types: Vec<&str> = native["items"].as_array().expect("events").iter().map(|it| text(&it["type"])).collect();
        assert_eq!(types, ["step_retry", "step_retry"]);
    })
    .await;
}

/// S4-40 to S4-44: the third attempt fails too.
#[tokio::test]
async fn the_timeline_of_three_attempts_ends_in_exhaustion() {
    everywhere(async |world| {
        let (id, execution) = enqueue(world, three()).await;
        let mut events = two_failures(world, &id, &execution).await;
        let ack = fail(world, &id).await;
        assert_eq!((&ack["queue_status"], &ack["attempts"]), (&json!("dead"), &json!(3)), "S4-41");
        assert_eq!(standing(world, &execution).await, is("dead", 3));
        let error = json!({"attempt": 3, "status_code": 503, "error_class": "retryable", "trigger": "error"});
        let exhausted = json!({"attempts": 3, "max_attempts": 3, "final_error": "Service Unavailable"});
        events.extend([
            (6, "action_error", error),
            (6, "step_retry_exhausted", exhausted),
            (6, "step_failed_terminal", json!({"reason": "retries_exhausted", "detail": "attempts"})),
            (6, "execution_failed", json!({})),
        ]);
        assert_eq!(timeline(world, &execution, "execution_failed").await, expected(world, &events), "S4-44");
    })
    .await;
}

/// X4-6, X4-7: what was not to be retried is not said to have run out.
#[tokio::test]
async fn a_refusal_is_told_as_one() {
    everywhere(async |world| {
        let with = async |retry: Value, status: u16| {
            let (id, execution) = enqueue(world, retry).await;
            lease(world).await;
            let error = json!({"status": status, "message": "no"});
            world.post(&format!("/api/queue/{id}/fail"), json!({"worker_id": WORKER, "error": error})).await;
            let told = timeline(world, &execution, "execution_failed").await;
            told[3..].iter().map(|(_, name, context)| format!("{name} {}", context["detail"])).collect::<Vec<_>>()
        };
        let refused = |why: &str| {
            [
                "action_error null".to_owned(),
                format!("step_failed_terminal \"{why}\""),
                "execution_failed null".to_owned(),
            ]
        };
        assert_eq!(with(Value::Null, 503).await, refused("no_policy"));
        assert_eq!(with(three(), 400).await, refused("final"));
        let mut picky = three();
        picky["stop_when"] = "{{ status_code == 503 }}".into();
        assert_eq!(with(picky, 503).await, refused("stop_when"));
    })
    .await;
}

/// S4-4, S4-21, S4-23, X4-9: an event that an action failed is the input of the decision, once.
#[tokio::test]
async fn an_emitted_error_is_decided_once() {
    everywhere(async |world| {
        let (id, execution) = enqueue(world, three()).await;
        let job = lease(world).await["job"].clone();
        let told = |kind: &str| {
            json!({"event_type": kind, "execution_id": execution, "node_id": "fetch", "lease": job["lease"],
            "error": {"status": 503, "message": "Service Unavailable"}})
        };
        assert_eq!(world.post("/api/events", told("action_started")).await["queue_status"], "leased");
        let first = world.post("/api/events", told("action_error")).await;
        assert_eq!((&first["queue_status"], &first["attempts"]), (&json!("queued"), &json!(1)));
        // The worker's own call after its event is the same report again, and takes nothing from the retry.
        let again =
            json!({"lease": job["lease"], "error": "Service Unavailable", "retry": false, "retry_delay_seconds": 60});
        assert_eq!(world.post(&format!("/api/queue/{id}/fail"), again).await, first);
        let names: Vec<String> =
            timeline(world, &execution, "step_retry").await.into_iter().map(|(_, name, _)| name).collect();
        assert_eq!(names[3..], ["action_error", "step_retry"]);
        world.pass(1).await;
        let job = lease(world).await["job"].clone();
        let late = json!({"lease": job["lease"], "event_type": "action_completed", "queue_id": id});
        assert_eq!(world.post("/api/events", late).await["queue_status"], "completed");
        let (code, problem) =
            world.refused(Method::POST, "/api/events", json!({"event_type": "step_retry", "queue_id": id})).await;
        assert_eq!((code, &problem["errors"][0]["path"]), (StatusCode::BAD_REQUEST, &json!("event_type")));
    })
    .await;
}

/// F4-6, X4-9: who does not have a job says nothing about it; who has it may keep it.
#[tokio::test]
async fn only_the_holder_speaks_about_a_job() {
    everywhere(async |world| {
        let (id, execution) = enqueue(world, three()).await;
        let complete = format!("/api/queue/{id}/complete");
        let first = lease(world).await["job"].clone();
        assert_eq!(first["lease_until"], world.at(60));
        let beat = json!({"worker_id": WORKER, "extend_seconds": 90});
        assert_eq!(world.post(&format!("/api/queue/{id}/heartbeat"), beat).await["lease_until"], world.at(90));
        for stranger in [json!({"worker_id": "worker-2"}), json!({"lease": "nonsense"})] {
            let (code, problem) = world.refused(Method::POST, &complete, stranger).await;
            assert_eq!((code, &problem["error"]), (StatusCode::CONFLICT, &json!("LEASE_LOST")));
        }
        let (code, _) = world.refused(Method::POST, &complete, json!({})).await;
        assert_eq!(code, StatusCode::BAD_REQUEST, "nobody in particular");
        // A lost worker's retry is leased by another: the first one is too late.
        world.pass(90).await;
        assert_eq!(standing(world, &execution).await, is("queued", 0), "a loss is no failure");
        world.pass(1).await;
        world.post("/api/queue/lease", json!({"worker_id": "worker-2"})).await;
        for late in [json!({"worker_id": WORKER}), json!({"lease": first["lease"]})] {
            let (code, _) = world.refused(Method::POST, &complete, late).await;
            assert_eq!(code, StatusCode::CONFLICT);
        }
        world.post(&complete, json!({"worker_id": "worker-2"})).await;
        let done = world.get("/api/queue?status=done").await;
        assert_eq!(
            (&done, &done["items"][0]["status"]),
            (&world.get("/api/queue?status=completed").await, &json!("completed")),
            "X4-11"
        );
        let size = world.get("/api/queue/size").await;
        assert_eq!((&size["count"], &size["by_status"]["completed"]), (&json!(0), &json!(1)));
    })
    .await;
}

/// F4-6: the other words for the same: reserve, ack and nack, each by its holder alone; and what has expired is taken back.
#[tokio::test]
async fn jobs_are_reserved_and_acknowledged() {
    everywhere(async |world| {
        let (id, execution) = enqueue(world, three()).await;
        let reserve = async |worker: &str| world.post("/api/queue/reserve", json!({"worker_id": worker})).await;
        assert_eq!(reserve(WORKER).await["job"]["queue_id"], json!(id));
        for (word, status) in [("ack", StatusCode::CONFLICT), ("nack", StatusCode::CONFLICT)] {
            let stranger = json!({"queue_id": id, "worker_id": "worker-2"});
            let (code, _) = world.refused(Method::POST, &format!("/api/queue/{word}"), stranger).await;
            assert_eq!(code, status);
        }
        let back = world.post("/api/queue/nack", json!({"queue_id": id, "worker_id": WORKER})).await;
        assert_eq!((&back["queue_status"], &back["attempts"]), (&json!("queued"), &json!(1)), "a failure counts");
        world.pass(1).await;
        reserve("worker-2").await;
        let reaped = world.post("/api/queue/reap-expired", json!({})).await;
        assert_eq!(reaped, json!({"status": "ok", "reclaimed": 0}), "it has not expired");
        world.post("/api/queue/ack", json!({"queue_id": id, "worker_id": "worker-2", "result": {"rows": 1}})).await;
        assert_eq!(standing(world, &execution).await.0, "completed");
    })
    .await;
}

/// S4-51, S4-52, F4-11: shorthands of this dialect.
#[tokio::test]
async fn shorthands_of_retry_are_read() {
    everywhere(async |world| {
        for (job, attempts) in [
            (json!({"retry": true}), 3),
            (json!({"retry": 5}), 5),
            (json!({"retry": 1}), 1),
            (json!({"retry": false}), 1),
            (json!({"max_attempts": 4}), 4),
            (json!({}), 1),
        ] {
            let mut job = job;
            job["node_id"] = "n".into();
            let entry = world.post("/api/queue/enqueue", job.clone()).await;
            let row = row(world, text(&entry["execution_id"])).await;
            assert_eq!(row["max_attempts"], attempts, "{job}");
        }
    })
    .await;
}

/// F4-7: which round of a loop a step is, and which execution called the one it is in.
#[tokio::test]
async fn an_event_knows_its_loop_and_who_called_its_execution() {
    everywhere(async |world| {
        let put = async |path: &str, steps: Value| {
            world.good(Method::PUT, &format!("/api/v1/workflows/{path}"), Some(json!({"steps": steps}))).await
        };
        put("inner", json!({"each": {"kind": "each", "foreach": ["x", "y"], "payload": "{{ item }}"}})).await;
        put("outer", json!({"call": {"workflow": "inner"}})).await;
        let outer = world.post("/api/v1/executions", json!({"workflow": "outer"})).await["execution_id"].clone();
        world.pass(0).await;
        let leased = world.post("/api/v1/leases", json!({"worker": WORKER, "kinds": ["each"]})).await;
        let queue_id = &leased["leases"][0]["task"]["id"];
        let inner = world.get(&format!("/api/v1/tasks/{}", text(queue_id))).await["execution_id"].clone();
        let (begun, address) = (Instant::now(), format!("/api/events?execution_id={}&types=action_started", text(&inner)));
        // On PostgreSQL a reader stops before what others are about to write.
        let told = loop {
            let page = world.get(&address).await;
            let told = page["items"].as_array().expect("events").clone();
            if told.len() == 2 {
                break told;
            }
            assert!(begun.elapsed() < Duration::from_secs(30), "{page}");
            tokio::task::yield_now().await;
        };
        for (n, event) in told.iter().enumerate() {
            let item = ["x", "y"][n];
            assert_eq!(event["loop"], json!({"index": n, "item": item}), "{event}");
            assert_eq!((&event["parent_execution_id"], &event["execution_id"]), (&outer, &inner));
        }
        let end = |kind: &str, status: &str| json!({"event_type": kind, "queue_id": queue_id, "worker_id": WORKER, "status": status});
        let contradiction = world.refused(Method::POST, "/api/events", end("action_completed", "error")).await;
        assert_eq!(contradiction.0, StatusCode::BAD_REQUEST);
        assert_eq!(world.refused(Method::POST, "/api/events", end("action_completed", "nonsense")).await.0, StatusCode::BAD_REQUEST);
        world.post("/api/events", end("action_completed", "done")).await;
        let task = world.get(&format!("/api/v1/tasks/{}", text(queue_id))).await;
        assert_eq!(task["state"], "succeeded");
        for word in ["success", "COMPLETED", "finished"] {
            let found = world.get(&format!("/api/queue?status={word}")).await;
            assert_eq!(found["items"][0]["queue_id"], *queue_id, "{word}: {found}");
        }
    })
    .await;
}
