//! Batches: the dialect of a task server that calls its workers and waits for their answers.

use axum::http::{Method, StatusCode};
use comeback_core::{Failure, Trigger};
use serde_json::{Value, json};

use crate::place::world::{World, everywhere, text};

/// The sample body, as it stands; with a task behind it that waits for the first.
fn sample() -> Value {
    json!([
      {
        "id": "import",
        "name": "Import Data",
        "kind": "etl",
        "timeout": 120,
        "retry": {
          "max_retries": 3,
          "initial_delay_secs": 10,
          "backoff_multiplier": 2.0,
          "max_delay_secs": 120
        },
        "on_start": {"kind": "Webhook", "params": {"url": "https://etl/import", "verb": "Post"}}
      }
    ])
}

fn with_child(mut batch: Value, dependency: Value) -> Value {
    let child = json!({"id": "child", "name": "Child", "kind": "etl", "dependencies": [dependency]});
    batch.as_array_mut().expect("a list").push(child);
    batch
}

async fn status(world: &World, id: &str) -> Value {
    world.get(&format!("/task/{id}")).await["status"].clone()
}

/// S1-3 to S1-8, S1-64, S1-65, S1-75, F1-1, F1-3: the sample body, and what is answered.
#[tokio::test]
async fn the_sample_batch_is_taken_as_it_stands() {
    everywhere(async |world| {
        let answer = world.ask(Method::POST, "/task", Some(sample())).await;
        assert_eq!(answer.status, StatusCode::CREATED, "{:?}", answer.bytes);
        let made = answer.json();
        let batch = answer.headers["x-batch-id"].to_str().expect("an id");
        let basic = &made[0];
        assert_eq!(
            (&basic["name"], &basic["kind"], &basic["status"]),
            (&json!("Import Data"), &json!("etl"), &json!("Pending"))
        );
        assert_eq!((&basic["attempt"], &basic["batch_id"]), (&json!(0), &json!(batch)));
        assert_eq!(basic["created_at"], world.at(0));
        let whole = world.get(&format!("/task/{}", text(&basic["id"]))).await;
        assert_eq!(
            whole["retry"],
            json!({"max_retries": 3, "initial_delay_secs": 10, "backoff_multiplier": 2.0,
            "max_delay_secs": 120, "retry_on": null})
        );
        assert_eq!(
            (&whole["timeout"], &whole["next_retry_at"], &whole["metadata"]),
            (&json!(120), &Value::Null, &json!({}))
        );
        assert_eq!(
            whole["actions"],
            json!([{"kind": "Webhook", "trigger": "Start", "condition": null,
            "params": {"url": "https://etl/import", "verb": "Post", "headers": {}}}])
        );
        let native = world.get(&format!("/api/v1/tasks/{}", text(&basic["id"]))).await;
        assert_eq!(
            native["executor"],
            json!({"type": "hook", "handle": "task",
            "start": {"method": "POST", "url": "https://etl/import", "headers": {}}})
        );
        assert_eq!((&native["key"], &native["execution_id"]), (&json!("import"), &json!(batch)));
        // One task alone is a batch too, and what it leaves out has the dialect's values.
        let one = json!({"id": "a", "name": "A", "kind": "k", "retry": {"max_retries": 1}});
        let one = world.post("/task", one).await[0].clone();
        let one = world.get(&format!("/task/{}", text(&one["id"]))).await;
        assert_eq!(
            one["retry"],
            json!({"max_retries": 1, "initial_delay_secs": 5, "backoff_multiplier": 2.0,
            "max_delay_secs": 300, "retry_on": null})
        );
        assert_eq!((&one["timeout"], &one["actions"]), (&json!(60), &json!([])));
    })
    .await;
}

/// S1-76, S1-79, X1-1: two runs time out, the third is told to have succeeded; the child waits all along (S1-83).
#[tokio::test]
async fn timeouts_are_retried_until_somebody_says_success() {
    everywhere(async |world| {
        let mut batch = sample();
        batch[0]["timeout"] = 30.into();
        let made = world.post("/task", with_child(batch, json!({"id": "import", "requires_success": true}))).await;
        let (import, child) = (text(&made[0]["id"]).to_owned(), text(&made[1]["id"]).to_owned());
        let address = format!("/task/{import}");
        let mut now = 0;
        for (attempt, delay) in [(1, 10), (2, 20)] {
            assert_eq!(status(world, &import).await, "Pending");
            let calls = world.call().await;
            assert_eq!(status(world, &import).await, "Claimed");
            world.app.engine.hook_started("default", calls[0]).await.expect("started");
            assert_eq!(status(world, &import).await, "Running");
            world.pass(30).await;
            now += 30;
            let waiting = world.get(&address).await;
            assert_eq!((&waiting["status"], &waiting["attempt"]), (&json!("RetryPending"), &json!(attempt)));
            assert_eq!(waiting["next_retry_at"], world.at(now + delay));
            let started = json!(world.at(now - 30));
            assert_eq!((&waiting["started_at"], &waiting["ended_at"]), (&started, &Value::Null));
            assert_eq!(status(world, &child).await, "Waiting");
            world.pass(delay - 1).await;
            assert_eq!(status(world, &import).await, "RetryPending", "S1-17: not before its time");
            world.pass(1).await;
            now += delay;
            let again = world.get(&address).await;
            assert_eq!((&again["last_updated"], &again["started_at"]), (&json!(world.at(now)), &Value::Null), "S1-39");
        }
        assert_eq!(world.start().await, 1);
        let done = world.patch(&address, json!({"status": "Success"})).await;
        assert_eq!(
            (&done["status"], &done["attempt"], &done["next_retry_at"]),
            (&json!("Success"), &json!(2), &Value::Null)
        );
        assert_eq!(status(world, &child).await, "Pending");
        // The same again changes nothing, another end is refused.
        assert_eq!(world.patch(&address, json!({"status": "Success"})).await, done);
        let other = json!({"status": "Failure", "failure_reason": "too late"});
        let (code, body) = world.refused(Method::PATCH, &address, other).await;
        assert_eq!((code, &body["current_status"]), (StatusCode::CONFLICT, &json!("Success")), "{body}");
    })
    .await;
}

/// S1-26 to S1-29, S1-80, S1-81: failed calls and explicit failures go through the same decision, and the end reaches the children.
#[tokio::test]
async fn failures_are_retried_and_their_end_reaches_the_children() {
    everywhere(async |world| {
        let mut batch = sample();
        batch[0]["retry"]["max_retries"] = 2.into();
        let made = world.post("/task", with_child(batch, json!({"id": "import", "requires_success": true}))).await;
        let (import, child) = (text(&made[0]["id"]).to_owned(), text(&made[1]["id"]).to_owned());
        let call = world.call().await[0];
        let away = Failure { status: Some(502), ..Failure::new(Trigger::Error, "bad gateway") };
        world.app.engine.hook_failed("default", call, away).await.expect("decided");
        let waiting = world.get(&format!("/task/{import}")).await;
        assert_eq!((&waiting["status"], &waiting["failure_reason"]), (&json!("RetryPending"), &json!("bad gateway")));
        world.pass(10).await;
        assert_eq!(world.get(&format!("/task/{import}")).await["failure_reason"], Value::Null, "S1-38");
        world.start().await;
        let failure = json!({"status": "Failure", "failure_reason": "no rows"});
        let waiting = world.patch(&format!("/task/{import}"), failure.clone()).await;
        assert_eq!((&waiting["status"], &waiting["attempt"]), (&json!("RetryPending"), &json!(2)));
        assert_eq!(waiting["next_retry_at"], world.at(30));
        assert_eq!(status(world, &child).await, "Waiting", "S1-28, S1-50");
        world.pass(20).await;
        world.start().await;
        let over = world.patch(&format!("/task/{import}"), failure).await;
        assert_eq!((&over["status"], &over["failure_reason"]), (&json!("Failure"), &json!("no rows")));
        assert_eq!(status(world, &child).await, "Failure", "a child that requires success fails with it");
        let batch = world.get(&format!("/batch/{}", text(&made[0]["batch_id"]))).await;
        assert_eq!(batch["status_counts"]["failure"], 2);
    })
    .await;
}

/// S1-20, S1-9: what is not listed is not retried, by the names of this dialect.
#[tokio::test]
async fn only_the_listed_triggers_are_retried() {
    everywhere(async |world| {
        for (listed, expected) in [("timeout", "Failure"), ("webhook_failure", "Failure"), ("explicit", "RetryPending")]
        {
            let retry = json!({"max_retries": 1, "retry_on": [listed]});
            let made = world.post("/task", json!({"id": "a", "name": "A", "kind": "k", "retry": retry})).await;
            let address = format!("/task/{}", text(&made[0]["id"]));
            world.start().await;
            let after = world.patch(&address, json!({"status": "Failure", "failure_reason": "x"})).await;
            assert_eq!(after["status"], expected, "{listed}");
            assert_eq!(after["retry"]["retry_on"], json!([listed]));
        }
    })
    .await;
}

/// X1-6: a callback of an earlier run changes nothing; one that names none is heard while the task is claimed or running.
#[tokio::test]
async fn late_callbacks_are_refused() {
    everywhere(async |world| {
        let mut batch = sample();
        batch[0]["timeout"] = 30.into();
        let made = world.post("/task", batch).await;
        let address = format!("/task/{}", text(&made[0]["id"]));
        let success = || json!({"status": "Success"});
        let refused = async |address: &str| {
            let (code, body) = world.refused(Method::PATCH, address, success()).await;
            (code.as_u16(), body["current_status"].clone())
        };
        assert_eq!(refused(&address).await, (409, json!("Pending")), "nobody was called");
        world.start().await;
        world.pass(30).await;
        assert_eq!(refused(&address).await, (409, json!("RetryPending")));
        world.pass(10).await;
        world.start().await;
        for old in ["run=1", "attempt=0", "run=3"] {
            assert_eq!(refused(&format!("{address}?{old}")).await, (409, json!("Running")), "{old}");
        }
        let (code, body) = world.refused(Method::PATCH, &address, json!({"status": "Failure"})).await;
        assert_eq!(code, StatusCode::BAD_REQUEST, "F1-10: a failure needs a reason: {body}");
        let (code, _) = world.refused(Method::PATCH, &address, json!({"status": "Paused"})).await;
        assert_eq!(code, StatusCode::BAD_REQUEST, "F1-10: only ends are told");
        let done = world.patch(&format!("{address}?run=2"), success()).await;
        assert_eq!(done["status"], "Success");
    })
    .await;
}

/// F1-10: the callee may be quicker than the answer to its call.
#[tokio::test]
async fn a_callback_may_come_before_its_call_is_answered() {
    everywhere(async |world| {
        let made = world.post("/task", sample()).await;
        let address = format!("/task/{}", text(&made[0]["id"]));
        assert_eq!(world.call().await.len(), 1);
        assert_eq!(world.patch(&address, json!({"status": "Success"})).await["status"], "Success");
    })
    .await;
}

/// F1-18, S1-40, S1-48, X1-5: counts add up over retries and keep a run alive.
#[tokio::test]
async fn counters_add_up_over_retries_and_are_a_sign_of_life() {
    everywhere(async |world| {
        let mut batch = sample();
        (batch[0]["timeout"], batch[0]["expected_count"]) = (30.into(), 100.into());
        let made = world.post("/task", batch).await;
        let address = format!("/task/{}", text(&made[0]["id"]));
        assert_eq!(made[0]["expected_count"], 100);
        world.start().await;
        for _ in 0..2 {
            world.pass(25).await;
            let answer = world.ask(Method::PUT, &address, Some(json!({"new_success": 5, "new_failures": 1}))).await;
            assert_eq!(answer.status, StatusCode::ACCEPTED, "{:?}", answer.bytes);
        }
        let running = world.get(&address).await;
        assert_eq!(
            (&running["status"], &running["success"], &running["failures"]),
            (&json!("Running"), &json!(10), &json!(2))
        );
        world.pass(30).await;
        assert_eq!(status(world, text(&made[0]["id"])).await, "RetryPending");
        world.pass(10).await;
        world.start().await;
        let done = world.patch(&address, json!({"status": "Success", "new_success": 88, "expected_count": 98})).await;
        assert_eq!((&done["success"], &done["failures"], &done["expected_count"]), (&json!(98), &json!(2), &json!(98)));
        let attempts = world.get(&format!("/api/v1/tasks/{}/attempts", text(&made[0]["id"]))).await;
        let counted = |n: usize| attempts["items"][n]["counted"].clone();
        assert_eq!(counted(0), json!({"expected_count": 100, "success": 10, "failures": 2}), "X1-5");
        assert_eq!(counted(1)["success"], 98);
        let progress = world.get(&format!("/batch/{}", text(&made[0]["batch_id"]))).await;
        assert_eq!(progress["total_expected"], 98);
        let (code, _) = world.refused(Method::PUT, &address, json!({"new_success": 1})).await;
        assert_eq!(code, StatusCode::BAD_REQUEST, "it is over");
    })
    .await;
}

/// S1-51, S1-52, S1-82, S1-88, S1-89, X1-4: cancel and pause while a retry waits; resuming waits on for the same time.
#[tokio::test]
async fn a_waiting_retry_is_paused_resumed_and_canceled() {
    everywhere(async |world| {
        let made = world.post("/task", with_child(sample(), json!({"id": "import", "requires_success": true}))).await;
        let id = text(&made[0]["id"]).to_owned();
        world.start().await;
        world.patch(&format!("/task/{id}"), json!({"status": "Failure", "failure_reason": "x"})).await;
        let paused = world.patch(&format!("/task/pause/{id}"), json!({})).await;
        assert_eq!((&paused["status"], &paused["next_retry_at"]), (&json!("Paused"), &json!(world.at(10))));
        let resumed = world.patch(&format!("/task/resume/{id}"), json!({})).await;
        assert_eq!((&resumed["status"], &resumed["next_retry_at"]), (&json!("RetryPending"), &json!(world.at(10))));
        let canceled = world.good(Method::DELETE, &format!("/task/{id}"), None).await;
        assert_eq!((&canceled["status"], &canceled["next_retry_at"]), (&json!("Canceled"), &Value::Null));
        world.pass(1_000).await;
        assert_eq!((status(world, &id).await, world.start().await), (json!("Canceled"), 0));
        assert_eq!(status(world, text(&made[1]["id"])).await, "Failure");
    })
    .await;
}

/// S1-53, X1-13, F1-16, F1-17: stopping a batch counts everybody by what they were.
#[tokio::test]
async fn a_stopped_batch_says_who_was_stopped() {
    everywhere(async |world| {
        let task = |id: &str, more: Value| {
            let mut task = json!({"id": id, "name": id, "kind": "k", "priority": 0});
            task.as_object_mut().expect("fields").extend(more.as_object().expect("fields").clone());
            task
        };
        let retry = json!({"retry": {"max_retries": 1}, "priority": 3});
        let made = world
            .post(
                "/task",
                json!([
                    task("done", json!({"priority": 5})),
                    task("again", retry),
                    task("runs", json!({"priority": 2})),
                    task("ready", json!({})),
                    task("rests", json!({})),
                    task("waits", json!({"dependencies": [{"id": "ready", "requires_success": false}]})),
                ]),
            )
            .await;
        let id = |n: usize| text(&made[n]["id"]).to_owned();
        let request =
            comeback_engine::LeaseRequest { limit: 3, ..comeback_engine::LeaseRequest::new("default", "hooks") };
        for it in world.app.engine.claim_hooks(request).await.expect("claimed") {
            world.app.engine.hook_started("default", it.lease).await.expect("started");
        }
        world.patch(&format!("/task/{}", id(0)), json!({"status": "Success"})).await;
        world.patch(&format!("/task/{}", id(1)), json!({"status": "Failure", "failure_reason": "x"})).await;
        world.patch(&format!("/task/pause/{}", id(4)), json!({})).await;
        let batch = text(&made[0]["batch_id"]).to_owned();
        let counts = &world.get(&format!("/batch/{batch}")).await["status_counts"];
        assert_eq!(
            *counts,
            json!({"waiting": 1, "pending": 1, "claimed": 0, "running": 1, "retry_pending": 1, "paused": 1,
            "success": 1, "failure": 0, "canceled": 0, "skipped": 0})
        );
        let stopped = world.good(Method::DELETE, &format!("/batch/{batch}"), None).await;
        let expected = json!({"batch_id": batch, "canceled_waiting": 1, "canceled_pending": 1, "canceled_claimed": 0,
            "canceled_running": 1, "canceled_retry_pending": 1, "canceled_paused": 1, "already_terminal": 1});
        assert_eq!(stopped, expected);
        let again = world.good(Method::DELETE, &format!("/batch/{batch}"), None).await;
        assert_eq!(again["already_terminal"], 6);
        let listed = world.get("/batches").await;
        assert_eq!((&listed[0]["batch_id"], &listed[0]["kinds"]), (&json!(batch), &json!(["k"])));
        assert_eq!(listed[0]["status_counts"]["canceled"], 5);
    })
    .await;
}

/// S1-57 to S1-60, F1-15, F1-20: lists, filters, pages and the graph.
#[tokio::test]
async fn tasks_are_found_and_a_batch_is_drawn() {
    everywhere(async |world| {
        let made = world.post("/task", with_child(sample(), json!({"id": "import", "condition": "always"}))).await;
        world.start().await;
        let import = text(&made[0]["id"]).to_owned();
        world.patch(&format!("/task/{import}"), json!({"status": "Failure", "failure_reason": "x"})).await;
        let graph = world.get(&format!("/dag/{}", text(&made[0]["batch_id"]))).await;
        assert_eq!(
            graph["links"],
            json!([{"parent_id": import, "child_id": made[1]["id"], "requires_success": false,
            "condition": "always"}])
        );
        let node = &graph["tasks"][0];
        assert_eq!(
            (&node["status"], &node["attempt"], &node["next_retry_at"]),
            (&json!("RetryPending"), &json!(1), &json!(world.at(10)))
        );
        let many: Vec<Value> =
            (0..60).map(|n| json!({"id": format!("t{n}"), "name": format!("Many {n}"), "kind": "many"})).collect();
        let many = world.post("/task", json!(many)).await;
        let count = async |query: &str| world.get(&format!("/task?{query}")).await.as_array().expect("a list").len();
        assert_eq!(count("status=RetryPending").await, 1);
        assert_eq!(count("status=retry_pending&kind=etl").await, 1);
        assert_eq!(count("kind=many").await, 50);
        assert_eq!(count("kind=many&page=1").await, 10);
        assert_eq!(count("kind=many&page_size=1000").await, 60);
        assert_eq!(count("kind=many&page=7").await, 0);
        assert_eq!(count("name=Many*&page_size=100").await, 60);
        assert_eq!(count(&format!("batch_id={}", text(&made[0]["batch_id"]))).await, 2);
        let second = world.get("/task?kind=many&page=1&page_size=7").await;
        assert_eq!(second[0]["id"], many[60 - 8]["id"], "the newest first");
        let (code, body) = world.refused(Method::GET, "/task?status=Sleeping", json!({})).await;
        assert_eq!(code, StatusCode::BAD_REQUEST);
        assert!(text(&body["details"][0]).starts_with("status: "), "{body}");
    })
    .await;
}

/// S1-69 to S1-74, F1-21, F1-22: every fault of every task, by its place; nothing is made.
#[tokio::test]
async fn a_batch_with_faults_is_refused_with_all_of_them() {
    everywhere(async |world| {
        let task = |id: &str, field: &str, value: Value| {
            let mut task = json!({"id": id, "name": "N", "kind": "k"});
            task[field] = value;
            task
        };
        let retry = |more: Value| {
            let mut retry = json!({"max_retries": 3});
            retry.as_object_mut().expect("fields").extend(more.as_object().expect("fields").clone());
            retry
        };
        let batch = json!([
            task("a", "retry", retry(json!({"max_retries": 11}))),
            task("b", "retry", retry(json!({"initial_delay_secs": 0}))),
            task("c", "retry", retry(json!({"backoff_multiplier": 0.5}))),
            task("d", "retry", retry(json!({"initial_delay_secs": 20, "max_delay_secs": 10}))),
            task("e", "retry", retry(json!({"max_delay_secs": 3601}))),
            task("f", "retry", retry(json!({"retry_on": []}))),
            task("g", "retry", retry(json!({"retry_on": ["sunshine"]}))),
            task("h", "timeout", json!(86_401)),
            task("h", "priority", json!(0)),
            task("i", "dependencies", json!([{"id": "z"}, {"id": "i"}, {"id": "k"}])),
            task("j", "kind", json!("k".repeat(101))),
            task("k", "on_start", json!({"kind": "Webhook", "params": {"url": "ftp://x", "verb": "Shout"}})),
            task("l", "retry", retry(json!({"max_retries": 0}))),
            task("m", "metadata", json!({"x": "y".repeat(70_000)})),
            task(
                "n",
                "rules",
                json!([{"type": "Capacity", "max_capacity": 5, "matcher": {"status": "Pending", "kind": "k"}}])
            ),
            task("o", "dedupe_strategy", json!([{"status": "Running", "kind": "k", "fields": ["tenant"]}])),
        ]);
        let (code, body) = world.refused(Method::POST, "/task", batch).await;
        assert_eq!(
            (code, &body["error"], &body["batch_id"]),
            (StatusCode::BAD_REQUEST, &json!("VALIDATION_FAILED"), &Value::Null)
        );
        let details: Vec<&str> = body["details"].as_array().expect("details").iter().map(text).collect();
        let paths: Vec<&str> = details.iter().map(|line| line.split(": ").next().expect("a path")).collect();
        let expected = [
            "tasks[0].retry.max_retries",
            "tasks[1].retry.initial_delay_secs",
            "tasks[2].retry.backoff_multiplier",
            "tasks[3].retry.initial_delay_secs",
            "tasks[4].retry.max_delay_secs",
            "tasks[5].retry.retry_on",
            "tasks[6].retry.retry_on[0]",
            "tasks[7].timeout",
            "tasks[8].id",
            "tasks[9].dependencies[0].id",
            "tasks[9].dependencies[1].id",
            "tasks[9].dependencies[2].id",
            "tasks[10].kind",
            "tasks[11].on_start.params.verb",
            "tasks[11].on_start.params.url",
            "tasks[12].retry.max_retries",
            "tasks[13].metadata",
            "tasks[14].rules[0].matcher.status",
            "tasks[14].rules[0]",
            "tasks[15].dedupe_strategy[0].fields[0]",
        ];
        assert_eq!(paths, expected, "{details:#?}");
        let unknown =
            json!([{"id": "a", "name": "A", "kind": "k"}, {"id": "b", "name": "B", "kind": "k", "colour": "red"}]);
        let (_, body) = world.refused(Method::POST, "/task", unknown).await;
        assert!(text(&body["details"][0]).starts_with("tasks[1].colour: unknown field"), "{body}");
        // What the engine says about a task is told by the names that it has here.
        let (_, body) = world.refused(Method::POST, "/task", json!({"id": "", "name": "A", "kind": "k"})).await;
        assert_eq!(body["details"], json!(["tasks[0].id: may not be empty"]));
        assert_eq!(world.get("/batches").await, json!([]));
    })
    .await;
}

/// F1-22: each condition is met by its own ends; what can no longer be met is skipped, or fails where success was required.
#[tokio::test]
async fn dependencies_ask_for_an_end_of_their_own() {
    everywhere(async |world| {
        let child =
            |id: &str, dependency: Value| json!({"id": id, "name": id, "kind": "k", "dependencies": [dependency]});
        for (status, expected) in [
            ("Success", ["Pending", "Skipped", "Pending", "Pending", "Pending"]),
            ("Failure", ["Skipped", "Pending", "Pending", "Failure", "Pending"]),
        ] {
            let made = world
                .post(
                    "/task",
                    json!([
                        {"id": "parent", "name": "Parent", "kind": "k", "priority": 9},
                        child("well", json!({"id": "parent", "condition": "on_success"})),
                        child("badly", json!({"id": "parent", "condition": "on_failure"})),
                        child("anyhow", json!({"id": "parent", "condition": "always"})),
                        child("required", json!({"id": "parent", "requires_success": true})),
                        child("after", json!({"id": "parent", "requires_success": false})),
                    ]),
                )
                .await;
            assert_eq!(world.start().await, 1);
            let end = json!({"status": status, "failure_reason": "x"});
            world.patch(&format!("/task/{}", text(&made[0]["id"])), end).await;
            for (n, expected) in expected.into_iter().enumerate() {
                let child = &made[n + 1];
                assert_eq!(self::status(world, text(&child["id"])).await, expected, "{} after {status}", child["name"]);
            }
            world.good(Method::DELETE, &format!("/batch/{}", text(&made[0]["batch_id"])), None).await;
        }
    })
    .await;
}

/// F1-14: what is there already is not made again; where nothing is left, nothing is answered.
#[tokio::test]
async fn tasks_that_are_there_already_are_not_made_again() {
    everywhere(async |world| {
        let task = |id: &str, tenant: &str| {
            json!({"id": id, "name": id, "kind": "sync", "metadata": {"tenant": tenant, "n": 7},
            "dedupe_strategy": [{"status": "Running", "kind": "sync", "fields": ["tenant", "n"]},
                                {"status": "Pending", "kind": "sync", "fields": ["tenant", "n"]}]})
        };
        world.post("/task", task("a", "acme")).await;
        let answer = world.ask(Method::POST, "/task", Some(json!([task("b", "acme")]))).await;
        assert_eq!((answer.status, answer.bytes.len()), (StatusCode::NO_CONTENT, 0));
        let behind = json!({"id": "c", "name": "c", "kind": "sync", "dependencies": [{"id": "b"}]});
        let made = world.post("/task", json!([task("b", "acme"), task("d", "other"), behind])).await;
        let names: Vec<&str> = made.as_array().expect("a list").iter().map(|it| text(&it["name"])).collect();
        assert_eq!(names, ["d", "c"]);
        assert_eq!(made[1]["status"], "Pending", "nobody waits for what was not made");
        let (_, body) = world.refused(Method::POST, "/task", json!([task("b", "acme"), task("", "else")])).await;
        assert_eq!(
            body["details"],
            json!(["tasks[1].id: may not be empty", "tasks[1].name: may not be empty"]),
            "by their place in the request"
        );
        let native = world.get("/api/v1/tasks?label.tenant=acme").await;
        assert_eq!(native["items"].as_array().map(Vec::len), Some(1));
    })
    .await;
}
