//! Whoever asks why something ended is answered, however it ended.

use axum::http::Method;
use serde_json::{Value, json};

use crate::place::world::{World, everywhere, text};

async fn put(world: &World, name: &str, document: Value) {
    world.good(Method::PUT, &format!("/api/v1/workflows/{name}"), Some(document)).await;
}

async fn start(world: &World, name: &str) -> String {
    let started = world.post("/api/v1/executions", json!({"workflow": name})).await;
    world.pass(0).await;
    text(&started["execution_id"]).to_owned()
}

/// Leases whatever there is of a kind, and ends each.
async fn finish(world: &World, kind: &str, report: Value) {
    let leased =
        world.post("/api/v1/leases", json!({"worker": "w", "kinds": [kind], "limit": 10, "lease": "60s"})).await;
    for lease in leased["leases"].as_array().expect("leases") {
        let mut report = report.clone();
        report["lease"] = lease["lease"].clone();
        world.post("/api/v1/leases/report", json!({"reports": [report]})).await;
    }
    for _ in 0..3 {
        world.pass(0).await;
    }
}

async fn task(world: &World, kind: &str) -> Value {
    let found = world.get(&format!("/api/v1/tasks?kind={kind}")).await;
    world.get(&format!("/api/v1/tasks/{}", text(&found["items"][0]["id"]))).await
}

async fn why(world: &World, kind: &str) -> Value {
    let id = task(world, kind).await["id"].clone();
    world.get(&format!("/api/v1/tasks/{}/why", text(&id))).await
}

fn failed() -> Value {
    json!({"outcome": "failed", "error": {"type": "Io", "message": "boom"}})
}

/// Everything that can end a task, and then one question for each.
#[tokio::test]
async fn why_has_an_answer_for_every_way_to_end() {
    everywhere(async |world| {
        // At a gate, with a parent, because of a parent, by a condition.
        put(
            world,
            "gate",
            json!({"steps": {"one": {"kind": "one"},
            "bad": {"kind": "bad", "needs": ["one"], "if": "steps.one.result.nope"},
            "no": {"kind": "no", "needs": ["one"], "if": "false"}}}),
        )
        .await;
        let gate = start(world, "gate").await;
        finish(world, "one", json!({"outcome": "succeeded", "result": {}})).await;
        put(
            world,
            "parent",
            json!({"steps": {"p1": {"kind": "p1"},
            "p2": {"kind": "p2", "needs": [{"step": "p1", "on_unmet": "fail"}]},
            "p3": {"kind": "p3", "needs": [{"step": "p2", "on_unmet": "fail"}]},
            "p4": {"kind": "p4", "needs": ["p1"]}}}),
        )
        .await;
        let parent = start(world, "parent").await;
        finish(world, "p1", failed()).await;
        // With the first failure, with the execution, with nothing left to work for.
        put(world, "fast", json!({"fail_fast": true, "steps": {"f0": {"kind": "f0"}, "f1": {"kind": "f1"}}})).await;
        let fast = start(world, "fast").await;
        finish(world, "f1", failed()).await;
        put(world, "gone", json!({"steps": {"g1": {"kind": "g1"}}})).await;
        let gone = start(world, "gone").await;
        world.post(&format!("/api/v1/executions/{gone}/cancel"), json!({})).await;
        put(
            world,
            "dead",
            json!({"dead_end_cancel": true, "steps": {"d1": {"kind": "d1"}, "d2": {"kind": "d2", "needs": ["d1"]}}}),
        )
        .await;
        start(world, "dead").await;
        let leaf = text(&task(world, "d2").await["id"]).to_owned();
        world.post(&format!("/api/v1/tasks/{leaf}/cancel"), json!({})).await;
        // A step that was canceled by hand is what its execution failed of.
        put(world, "hand", json!({"steps": {"h1": {"kind": "h1"}}})).await;
        let hand = start(world, "hand").await;
        let by_hand = text(&task(world, "h1").await["id"]).to_owned();
        world.post(&format!("/api/v1/tasks/{by_hand}/cancel"), json!({})).await;
        // Lone tasks, by their policies.
        let fixed = |more: Value| {
            let mut policy = json!({"strategy": "fixed", "delay": "1s", "max_retries": 9});
            policy.as_object_mut().expect("fields").extend(more.as_object().cloned().unwrap_or_default());
            policy
        };
        for (kind, retry) in [
            ("none", json!(false)),
            ("ignored", fixed(json!({"ignore": ["Io"]}))),
            ("unlisted", fixed(json!({"retry_on": ["503"]}))),
            ("stopped", fixed(json!({"stop_when": "true"}))),
            ("unwanted", fixed(json!({"retry_when": "false"}))),
            ("ruled", fixed(json!({"rules": [{"match": {"type": "Io"}, "then": "final"}]}))),
            ("used", fixed(json!({"max_retries": 0}))),
            ("patience", fixed(json!({"delay": "1h", "max_elapsed": "1m"}))),
            ("spent", fixed(json!({"rules": [{"match": {"type": "Io"}, "then": "retry", "max": 2}]}))),
        ] {
            world.post("/api/v1/tasks", json!({"kind": kind, "retry": retry})).await;
            finish(world, kind, failed()).await;
        }
        for _ in 0..2 {
            world.pass(2).await;
            finish(world, "spent", failed()).await;
        }
        let final_error = json!({"outcome": "failed", "error": {"class": "final", "message": "boom"}});
        world.post("/api/v1/tasks", json!({"kind": "final", "retry": 3})).await;
        finish(world, "final", final_error).await;
        let limited = json!({"outcome": "failed", "error": {"status": 429, "message": "boom", "retry_after": 1}});
        world.post("/api/v1/tasks", json!({"kind": "throttled", "retry": fixed(json!({"max_throttles": 0}))})).await;
        finish(world, "throttled", limited).await;
        world.post("/api/v1/tasks", json!({"kind": "snoozed", "retry": fixed(json!({"max_snoozes": 0}))})).await;
        finish(world, "snoozed", json!({"outcome": "snoozed", "delay": "1s"})).await;
        // By time: before the first run, before a retry, without a sign of life.
        world.post("/api/v1/tasks", json!({"kind": "late", "deadline": "30s"})).await;
        let slow = fixed(json!({"delay": "1h", "max_elapsed": null}));
        world.post("/api/v1/tasks", json!({"kind": "waits", "retry": slow})).await;
        finish(world, "waits", failed()).await;
        let waits = text(&task(world, "waits").await["id"]).to_owned();
        world.post(&format!("/api/v1/tasks/{waits}/cancel"), json!({})).await;
        for (kind, retry) in [("lost", fixed(json!({"on_lost": "fail"}))), ("losses", fixed(json!({"max_lost": 0})))] {
            world.post("/api/v1/tasks", json!({"kind": kind, "retry": retry})).await;
            world.post("/api/v1/leases", json!({"worker": "w", "kinds": [kind], "lease": "10s"})).await;
        }
        world.pass(61).await;
        world.pass(0).await;

        let mut seen = 0;
        let all = world.get("/api/v1/tasks?limit=500").await;
        for line in all["items"].as_array().expect("tasks") {
            let (id, kind, state) = (text(&line["id"]), text(&line["kind"]), text(&line["state"]));
            assert!(["succeeded", "failed", "dead", "canceled", "skipped"].contains(&state), "{kind} is {state}");
            let why = world.get(&format!("/api/v1/tasks/{id}/why")).await;
            assert!(!text(&why["text"]).contains("nothing was decided"), "{kind}: {why}");
            if ["failed", "dead"].contains(&state) {
                let shown = world.get(&format!("/api/v1/tasks/{id}")).await;
                assert_eq!(why["decision"]["reason"], shown["reason"], "{kind}: {why}");
                for error in [&why["error"], &shown["last_error"], &line["last_error"]] {
                    assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{kind}: {error}");
                }
                seen += 1;
            }
        }
        assert_eq!(seen, 20, "of those that failed");

        let said = async |kind: &str| text(&why(world, kind).await["text"]).to_owned();
        let bad = said("bad").await;
        assert!(bad.contains("steps.one.result.nope"), "{bad}");
        let (child, grandchild, skipped) = (said("p2").await, said("p3").await, said("p4").await);
        assert!(child.contains("boom") && child.contains("`p1` is failed"), "{child}");
        assert!(grandchild.contains("boom") && grandchild.contains("`p2` is failed"), "{grandchild}");
        assert!(skipped.contains("`p1` is failed"), "{skipped}");
        let late = said("late").await;
        assert!(late.contains("passed before it was started"), "{late}");
        let spent = said("spent").await;
        assert!(spent.contains("rules[0] allows 2 retries and no more") && !spent.contains('9'), "{spent}");
        for (id, key, words) in
            [(&gate, "bad", "nope"), (&parent, "p1", "boom"), (&fast, "f1", "boom"), (&hand, "h1", "canceled")]
        {
            let error = world.get(&format!("/api/v1/executions/{id}")).await["error"].clone();
            assert_eq!(error["key"], key, "{error}");
            assert!(text(&error["failure"]["message"]).contains(words), "{error}");
        }
    })
    .await;
}

/// Dialect `job`: an error that the policy never retries is not retryable, whatever its class.
#[tokio::test]
async fn retryable_says_what_the_policy_said() {
    everywhere(async |world| {
        world.post("/api/v1/tasks", json!({"kind": "job", "dialect": "job", "retry": true})).await;
        let error = json!({"type": "IllegalArgumentException", "message": "no"});
        finish(world, "job", json!({"outcome": "failed", "error": error})).await;
        let job = task(world, "job").await;
        assert_eq!(
            (&job["state"], &job["reason"], &job["retryable"]),
            (&json!("failed"), &json!("ignored"), &json!(false))
        );
        world.post("/api/v1/tasks", json!({"kind": "other", "dialect": "job", "retry": true})).await;
        finish(world, "other", json!({"outcome": "failed", "error": {"type": "IOException", "message": "no"}})).await;
        assert_eq!(task(world, "other").await["retryable"], json!(true));
    })
    .await;
}

/// T14: the fields of the last run are cleared on the way to pending, not before.
#[tokio::test]
async fn the_start_of_a_run_is_told_until_its_retry_is_due() {
    everywhere(async |world| {
        let retry = json!({"strategy": "fixed", "delay": "10s", "max_retries": 1});
        world.post("/api/v1/tasks", json!({"kind": "lone", "retry": retry})).await;
        put(world, "step", json!({"steps": {"one": {"kind": "step", "retry": retry}}})).await;
        start(world, "step").await;
        for kind in ["lone", "step"] {
            finish(world, kind, failed()).await;
        }
        for kind in ["lone", "step"] {
            let waits = task(world, kind).await;
            assert_eq!(
                (&waits["state"], &waits["started_at"]),
                (&json!("retry_pending"), &json!(world.at(0))),
                "{kind}"
            );
        }
        world.pass(10).await;
        for kind in ["lone", "step"] {
            let due = task(world, kind).await;
            assert_eq!((&due["state"], &due["started_at"]), (&json!("pending"), &Value::Null), "{kind}");
        }
    })
    .await;
}

/// Fields that contradict the strategy, and all faults at once, by the names they were written under.
#[tokio::test]
async fn a_policy_that_contradicts_itself_is_refused_by_name() {
    everywhere(async |world| {
        let refused = async |retry: Value| {
            let (status, problem) =
                world.refused(Method::POST, "/api/v1/tasks", json!({"kind": "k", "retry": retry})).await;
            assert_eq!(status, 400, "{problem}");
            let errors = problem["errors"].as_array().expect("errors").clone();
            errors.iter().map(|error| text(&error["path"]).to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(refused(json!({"strategy": "fixed", "schedule": ["1s", "9s"]})).await, ["retry.schedule"]);
        assert_eq!(refused(json!({"retry_on": [], "multiplier": 0.5})).await, ["retry.multiplier", "retry.retry_on"]);
    })
    .await;
}

/// Dialect `workflow`: its nodes load as they are, with their retries.
#[tokio::test]
async fn a_node_document_loads_as_a_step() {
    everywhere(async |world| {
        let retry = json!({"enabled": true, "strategy": "exponential_backoff", "maxAttempts": 5, "initialDelaySeconds": 60,
            "multiplier": 2.0, "maxDelaySeconds": 3600, "retryOn": ["5xx", "408", "429"], "ignoreExceptions": ["4xx"]});
        let call = json!({"nodeId": "api-call-1", "type": "action", "subType": "api-call",
            "config": {"url": "https://api.example.com/users", "method": "POST", "retry": retry}});
        let work = json!({"nodeId": "sum", "type": "action", "subType": "sum", "config": {"column": "price", "retry": retry}});
        put(world, "one", call.clone()).await;
        put(world, "nodes", json!({"steps": [call, work]})).await;
        let shown = world.get("/api/v1/workflows/one").await;
        assert_eq!(shown["workflow"]["steps"][0]["name"], "api-call-1", "{shown}");
        let id = start(world, "nodes").await;
        let leased = world.post("/api/v1/leases", json!({"worker": "w", "kinds": ["sum"]})).await;
        assert_eq!(leased["leases"][0]["task"]["payload"], json!({"column": "price"}));
        let tasks = world.get(&format!("/api/v1/tasks?execution_id={id}")).await;
        for line in tasks["items"].as_array().expect("tasks") {
            let task = world.get(&format!("/api/v1/tasks/{}", text(&line["id"]))).await;
            let policy = &task["retry"];
            assert_eq!((&policy["max_retries"], &policy["strategy"]), (&json!(5), &json!("exponential")), "{task}");
            let kind = if task["key"] == "sum" { "worker" } else { "http" };
            assert_eq!(task["executor"]["type"], kind);
        }
    })
    .await;
}

/// Whoever waits for an execution is told which of its steps failed, and of what.
#[tokio::test]
async fn a_call_that_failed_names_the_step_that_did() {
    everywhere(async |world| {
        put(world, "inner", json!({"steps": {"one": {"kind": "one"}, "two": {"kind": "two", "needs": [{"step": "one", "on_unmet": "fail"}]}}}))
            .await;
        put(world, "outer", json!({"steps": {"call": {"kind": "call", "workflow": "inner"}}})).await;
        let id = start(world, "outer").await;
        for _ in 0..3 {
            world.pass(0).await;
        }
        finish(world, "one", failed()).await;
        let execution = world.get(&format!("/api/v1/executions/{id}")).await;
        let message = text(&execution["error"]["failure"]["message"]);
        assert!(message.ends_with("failed: `one`: boom"), "{message}");
    })
    .await;
}
