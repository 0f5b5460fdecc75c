//! Workflows, what starts them, and everything that is kept of that.

use axum::http::Method;
use comeback_server::LimiterOptions;
use serde_json::{Value, json};

use crate::place;
use crate::place::world::{World, everywhere, text};

async fn put(world: &World, path: &str, document: Value) {
    world.good(Method::PUT, &format!("/api/v1/workflows/{path}"), Some(document)).await;
}

async fn fail(world: &World, kind: &str) {
    let leased = world.post("/api/v1/leases", json!({"worker": "w", "kinds": [kind], "limit": 1})).await;
    let error = json!({"type": "HttpError", "status": 503, "message": "away"});
    let report = json!({"lease": leased["leases"][0]["lease"], "outcome": "failed", "error": error});
    world.post("/api/v1/leases/report", json!({"reports": [report]})).await;
}

fn item<'a>(page: &'a Value, field: &str, value: &str) -> &'a Value {
    let all = page["items"].as_array().unwrap_or_else(|| panic!("{page}"));
    all.iter().find(|it| it[field] == value).unwrap_or_else(|| panic!("no {value} in {page}"))
}

/// F0-1, F0-2: whatever happened, another instance finds it: nothing is in memory.
#[tokio::test]
async fn everything_around_a_workflow_is_a_record() {
    everywhere(async |world| {
        let steps = json!({
            "fetch": {"kind": "fetch", "payload": {"order": "{{ input.order }}"}},
            "rest": {"kind": "rest", "delay": "1h"},
        });
        put(world, "orders", json!({"name": "Orders", "labels": {"team": "shop"}, "steps": steps})).await;
        let policy = json!({"policy": {"strategy": "fixed", "delay": "10m", "max_retries": 1}});
        world.good(Method::PUT, "/api/v1/policies/fetch", Some(policy)).await;
        let schedule = |when: &str, value: &str| json!({"name": when, when: value, "workflow": "orders"});
        world.post("/api/v1/schedules", schedule("cron", "0 3 * * *")).await;
        world.post("/api/v1/schedules", schedule("event", "order.paid")).await;
        let event = json!({"type": "order.paid", "id": "o-42", "data": {"order": 42}});
        let told = world.post("/api/v1/events", event).await;
        let id = text(&told["schedules"][0]["execution_id"]).to_owned();
        fail(world, "fetch").await;

        let app = place::app(world.app.engine.store().clone(), LimiterOptions::default()).await;
        let other = World::new(app);
        assert_eq!(item(&other.get("/api/v1/workflows").await, "path", "orders")["state"], "active");
        let triggers = other.get("/api/v1/schedules").await;
        assert_eq!(item(&triggers, "name", "cron")["cron"], "0 3 * * *");
        assert_eq!(item(&triggers, "name", "event")["fired"], 1);
        let actions = other.get("/api/v1/policies").await;
        assert_eq!(item(&actions, "kind", "fetch")["policy"]["strategy"], "fixed", "{actions}");
        let execution = other.get(&format!("/api/v1/executions/{id}")).await;
        let kept = ["workflow", "version", "trigger", "schedule", "state", "name", "input", "labels", "error"];
        assert_eq!(
            kept.map(|field| execution[field].clone()),
            [
                json!("orders"),
                json!(1),
                json!("event"),
                json!("event"),
                json!("running"),
                json!("Orders"),
                json!({"order": 42}),
                json!({"team": "shop"}),
                Value::Null,
            ],
            "{execution}"
        );
        let tasks = other.get(&format!("/api/v1/tasks?execution_id={id}")).await;
        assert_eq!(item(&tasks, "key", "fetch")["state"], "retry_pending");
        let retries = other.get("/api/v1/retry-schedules").await;
        assert_eq!(item(&retries, "node_id", "fetch")["scheduled_at"], json!(other.at(600)), "{retries}");
        let waits = other.get(&format!("/api/v1/tasks?execution_id={id}&state=waiting")).await;
        assert_eq!(item(&waits, "key", "rest")["start_at"], json!(other.at(3_600)), "{waits}");
        let days = other.get("/api/v1/stats/retries?by=kind&bucket=24h&within=7d").await;
        assert_eq!(item(&days, "value", "fetch")["attempts"], 1, "{days}");
        assert_eq!(days["series"][0]["at"], "2027-01-15T00:00:00.000Z", "one for each day: {days}");

        // It fails for good: the error is kept with it, and how long it took.
        other.pass(3_600).await;
        fail(&other, "fetch").await;
        let rest = other.post("/api/v1/leases", json!({"worker": "w", "kinds": ["rest"]})).await;
        let report = json!({"lease": rest["leases"][0]["lease"], "outcome": "succeeded"});
        other.post("/api/v1/leases/report", json!({"reports": [report]})).await;
        let execution = other.get(&format!("/api/v1/executions/{id}")).await;
        let failure = &execution["error"]["failure"];
        assert_eq!((&execution["error"]["key"], &failure["message"]), (&json!("fetch"), &json!("away")), "{execution}");
        assert_eq!((&execution["state"], &execution["duration_ms"]), (&json!("failed"), &json!(3_600_000)));
        let log = other.get(&format!("/api/v1/executions/{id}/events?limit=500")).await;
        let types: Vec<&str> = log["items"].as_array().expect("events").iter().map(|it| text(&it["type"])).collect();
        assert_eq!((types[0], types[types.len() - 1]), ("execution.created", "execution.failed"), "{types:?}");
        let context = other.get(&format!("/api/v1/executions/{id}/context")).await;
        assert_eq!(context["path"], json!(["fetch", "rest"]));
    })
    .await;
}

/// The nearer word wins: step, workflow, kind, server; and whose word it is is told.
#[tokio::test]
async fn whose_word_a_policy_is_is_told() {
    everywhere(async |world| {
        let policy = json!({"policy": {"strategy": "fixed", "delay": "5m", "max_retries": 4}});
        world.good(Method::PUT, "/api/v1/policies/known", Some(policy)).await;
        put(
            world,
            "own",
            json!({"defaults": {"retry": 3}, "steps": {
                "mine": {"kind": "known", "retry": 5}, "ours": {"kind": "known", "queue": "q"},
            }}),
        )
        .await;
        put(world, "bare", json!({"steps": {"kinds": {"kind": "known"}, "nobodys": {"kind": "other"}}})).await;
        let steps =
            async |path: &str| world.get(&format!("/api/v1/workflows/{path}")).await["workflow"]["steps"].clone();
        let own = steps("own").await;
        let origin = |step: &Value, field: &str| step["origins"][field].clone();
        assert_eq!((origin(&own[0], "retry"), own[0]["retry"].clone()), (json!("step"), json!(5)));
        assert_eq!((origin(&own[1], "retry"), own[1]["retry"].clone()), (json!("workflow"), json!(3)));
        assert_eq!((origin(&own[1], "queue"), own[1]["given"]["priority"].clone()), (json!("step"), json!(0)));
        let bare = steps("bare").await;
        assert_eq!(origin(&bare[0], "retry"), "kind");
        assert_eq!(bare[0]["given"]["retry"]["max_retries"], 4, "{bare}");
        assert_eq!((origin(&bare[1], "retry"), &bare[1]["given"]["retry"]), (json!("server"), &json!(false)));
        assert_eq!((origin(&bare[1], "queue"), &bare[1]["given"]["queue"]), (json!("server"), &json!("default")));
        // And so it comes.
        let started = world.post("/api/v1/executions", json!({"workflow": "bare"})).await;
        let tasks = world.get(&format!("/api/v1/tasks?execution_id={}", text(&started["execution_id"]))).await;
        assert_eq!(item(&tasks, "key", "kinds")["max_retries"], 4);
        assert_eq!(item(&tasks, "key", "nobodys")["max_retries"], Value::Null);
    })
    .await;
}

/// F0-7: a step of every sort in one workflow: a condition with a way on either side, a loop, a delay, a wait for word from
/// outside, a merge, and a step that only works something out.
#[tokio::test]
async fn steps_of_every_sort_make_one_workflow() {
    everywhere(async |world| {
        put(world, "sorts", json!({
            "steps": {
                "look": {"kind": "look"},
                "large": {"kind": "way", "needs": ["look"], "if": "steps.look.result.total > 100"},
                "small": {"kind": "way", "needs": ["look"], "if": "steps.look.result.total <= 100"},
                "each": {"kind": "each", "needs": ["look"], "foreach": "{{ steps.look.result.parts }}", "payload": "{{ item }}"},
                "later": {"kind": "later", "delay": "1h", "output": {"hours": "{{ 60 // 60 }}"}},
                "word": {"kind": "word", "hook": {"url": "https://example.test/start"}},
                "sum": {"kind": "sum", "needs": [
                    {"step": "large", "when": "always"}, {"step": "small", "when": "always"}, "each", "later", "word",
                ], "payload": {"parts": "{{ steps.each.result }}", "word": "{{ steps.word.result.said }}", "hours": "{{ steps.later.result.hours }}"}},
            },
            "output": {"way": "{{ steps.large.state }} {{ steps.small.state }}"},
        }))
        .await;
        let started = world.post("/api/v1/executions", json!({"workflow": "sorts"})).await;
        let address = format!("/api/v1/executions/{}", text(&started["execution_id"]));
        let work = async |kind: &str, result: Value| {
            let leased = world.post("/api/v1/leases", json!({"worker": "w", "kinds": [kind]})).await["leases"].clone();
            let report = |it: &Value| json!({"lease": it["lease"], "outcome": "succeeded", "result": result});
            let reports: Vec<Value> = leased.as_array().expect("leases").iter().map(report).collect();
            world.post("/api/v1/leases/report", json!({"reports": reports})).await;
            world.pass(0).await;
            leased
        };
        work("look", json!({"total": 150, "parts": [1, 2]})).await;
        assert_eq!(work("way", json!(1)).await.as_array().map(Vec::len), Some(1), "one way or the other");
        assert_eq!(work("each", json!("done")).await.as_array().map(Vec::len), Some(2));
        assert_eq!(world.start().await, 1, "it is called, and its word is waited for");
        let tasks = world.get(&format!("/api/v1/tasks?execution_id={}", text(&started["execution_id"]))).await;
        let word = text(&item(&tasks, "key", "word")["id"]).to_owned();
        world.patch(&format!("/api/v1/tasks/{word}"), json!({"status": "succeeded", "result": {"said": "yes"}})).await;
        assert_eq!(work("later", json!(1)).await, json!([]), "its time has not come");
        world.pass(3_600).await;
        work("later", json!(1)).await;
        let sum = work("sum", json!(1)).await;
        assert_eq!(sum[0]["task"]["payload"], json!({"parts": ["done", "done"], "word": "yes", "hours": 1}), "{sum}");
        let whole = world.get(&address).await;
        assert_eq!((&whole["state"], &whole["output"]["way"]), (&json!("succeeded"), &json!("succeeded skipped")), "{whole}");
    })
    .await;
}

/// E8: each names the one before and the first, and keeps what started that.
#[tokio::test]
async fn a_retry_of_an_execution_is_linked_and_keeps_what_started_it() {
    everywhere(async |world| {
        let retry = json!({"strategy": "fixed", "delay": "5m", "max_retries": 2});
        put(world, "w", json!({"retry": retry, "steps": {"a": {"kind": "a"}}})).await;
        world.post("/api/v1/schedules", json!({"name": "paid", "event": "order.paid", "workflow": "w"})).await;
        for (began, trigger) in [("event", "event"), ("api", "call")] {
            if began == "event" {
                world.post("/api/v1/events", json!({"type": "order.paid", "id": "o-1"})).await;
            } else {
                world.post("/api/v1/executions", json!({"workflow": "w"})).await;
            }
            for _ in 0..2 {
                world.pass(0).await;
                fail(world, "a").await;
                world.pass(0).await;
                world.pass(300).await;
            }
            let found = world.get("/api/v1/executions?workflow=w&limit=3").await;
            let [third, second, first] = [0, 1, 2].map(|n| found["items"][n].clone());
            let links = ["retry_of", "root_id", "retry_number", "trigger"];
            let of = |it: &Value| links.map(|name| it[name].clone());
            let id = |it: &Value| it["id"].clone();
            assert_eq!(of(&first), [Value::Null, Value::Null, json!(0), json!(trigger)], "{found}");
            assert_eq!(of(&second), [id(&first), id(&first), json!(1), json!(trigger)], "{found}");
            assert_eq!(of(&third), [id(&second), id(&first), json!(2), json!(trigger)], "{found}");
            let task = world.get(&format!("/api/v1/tasks/{}", text(&third["task_id"]))).await;
            assert!(task["last_error"].to_string().contains("failed: `a`: away"), "{task}");
            let leased = world.post("/api/v1/leases", json!({"worker": "w", "kinds": ["a"], "limit": 1})).await;
            let report = json!({"lease": leased["leases"][0]["lease"], "outcome": "succeeded"});
            world.post("/api/v1/leases/report", json!({"reports": [report]})).await;
            world.pass(0).await;
        }
    })
    .await;
}

/// One transaction through all levels, over HTTP: nothing runs twice, and a refusal says why.
#[tokio::test]
async fn a_repair_by_hand_supersedes_the_retry_of_the_execution() {
    everywhere(async |world| {
        let retry = json!({"strategy": "fixed", "delay": "300s", "max_retries": 2});
        put(
            world,
            "w",
            json!({"retry": retry, "steps": {"one": {"kind": "k1"}, "two": {"kind": "k2", "needs": ["one"]}}}),
        )
        .await;
        let succeed = async |kind: &str| {
            let leased = world.post("/api/v1/leases", json!({"worker": "w", "kinds": [kind], "limit": 1})).await;
            let report = json!({"lease": leased["leases"][0]["lease"], "outcome": "succeeded"});
            world.post("/api/v1/leases/report", json!({"reports": [report]})).await;
            world.pass(0).await;
        };
        for from in ["failed", "start"] {
            let started = world.post("/api/v1/executions", json!({"workflow": "w"})).await;
            let (id, task) = (text(&started["execution_id"]).to_owned(), text(&started["task_id"]).to_owned());
            world.pass(0).await;
            succeed("k1").await;
            fail(world, "k2").await;
            world.pass(100).await;
            let body = json!({"from": from, "requested_by": "ana"});
            let again = world.post(&format!("/api/v1/executions/{id}/retry"), body).await;
            let why = world.get(&format!("/api/v1/tasks/{task}/why")).await;
            assert!(text(&why["text"]).starts_with("ana "), "{why}");
            world.pass(0).await;
            if from == "start" {
                succeed("k1").await;
            }
            succeed("k2").await;
            let again = text(&again["execution"]["id"]).to_owned();
            assert_eq!(world.get(&format!("/api/v1/executions/{again}")).await["state"], "succeeded");
            assert_eq!(world.get(&format!("/api/v1/tasks/{task}")).await["state"], "succeeded");
            for _ in 0..4 {
                world.pass(300).await;
            }
            let nothing = world.post("/api/v1/leases", json!({"worker": "w", "limit": 9})).await;
            assert_eq!(nothing["leases"], json!([]), "{from}");
            if from == "start" {
                let (_, refused) = world
                    .refused(Method::POST, &format!("/api/v1/executions/{id}/retry"), json!({"from": "failed"}))
                    .await;
                assert!(
                    text(&refused["detail"]).ends_with("cannot be retried: another execution was begun in its place"),
                    "{refused}"
                );
            }
        }
    })
    .await;
}
