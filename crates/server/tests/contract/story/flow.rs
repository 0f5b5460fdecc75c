//! Workflows and their executions.

use serde_json::{Value, json};

use super::{Ask, World, examples};

const YAML: &str = "\
name: two steps
input: {file: a.csv}
retry: {strategy: fixed, delay: 1h, max_retries: 1}
defaults: {queue: flow, retry: 3}
steps:
  extract:
    payload: {file: '{{ input.file }}'}
  load:
    needs: [extract]
    if: steps.extract.result.parts | length > 0
    foreach: '{{ steps.extract.result.parts }}'
    payload: '{{ item }}'
output: {loaded: '{{ steps.load.result }}'}
";

fn yaml(text: &str) -> Ask<'_> {
    let headers = vec![("content-type", "application/yaml".to_owned())];
    Ask { part: "etl%2Ftwo", body: Some(text.to_owned()), headers, ..Ask::default() }
}

async fn work(world: &World, result: Value) -> Value {
    let leased = world.post("leaseTasks", "", json!({"worker": "w", "queues": ["flow"], "limit": 10})).await;
    let reports: Vec<Value> = leased["leases"]
        .as_array()
        .expect("leases")
        .iter()
        .map(|it| json!({"lease": it["lease"], "outcome": "succeeded", "result": result}))
        .collect();
    world.post("reportRuns", "", json!({"reports": reports})).await;
    world.post("advanceClock", "", json!({"by": "1s"})).await;
    leased
}

pub async fn flow(world: &World) {
    world.get("getWorkflowSchema", "").await;
    assert_eq!(world.bad("getWorkflow", Ask { part: "none", ..Ask::default() }).await, "not-found");
    for operation in ["listWorkflowVersions", "getWorkflowVersion", "diffWorkflow"] {
        assert_eq!(world.bad(operation, Ask { part: "none", ..Ask::default() }).await, "not-found", "{operation}");
    }
    for example in examples("putWorkflow") {
        let body = Some(example.to_string());
        world.good("putWorkflow", Ask { part: "nightly", body, ..Ask::default() }).await;
    }
    let made = world.good("putWorkflow", yaml(YAML)).await;
    assert_eq!((&made["version"], &made["created"]), (&json!(1), &json!(true)));
    assert_eq!(world.good("putWorkflow", yaml(YAML)).await["created"], false);
    let other = YAML.replace("two steps", "still two steps");
    assert_eq!(world.good("putWorkflow", yaml(&other)).await["version"], 2);
    let wrong = world.ask("putWorkflow", yaml("steps:\n  a: {needs: [b]}\n  b: {needs: [a]}\n")).await;
    let wrong = wrong.json();
    assert!(wrong["errors"][0]["line"].is_u64() && wrong["errors"][0]["snippet"].is_string(), "{wrong}");
    assert!(wrong["errors"][0]["message"].as_str().is_some_and(|text| text.contains("a → b → a")), "{wrong}");

    let shown = world.get("getWorkflow", "etl%2Ftwo").await;
    assert_eq!((&shown["path"], &shown["version"]), (&json!("etl/two"), &json!(2)));
    assert_eq!(shown["workflow"]["steps"][0]["origins"]["queue"], "workflow");
    assert_eq!(world.get("getWorkflowVersion", "etl%2Ftwo").await["version"], 1);
    assert_eq!(world.get("listWorkflowVersions", "etl%2Ftwo").await["items"][0]["version"], 2);
    let difference = world.get("diffWorkflow", "etl%2Ftwo").await;
    assert_eq!(difference["differences"][0]["path"], "name");
    let page = world.find("listWorkflows", "limit=1").await;
    let next = format!("cursor={}", page["next_cursor"].as_str().expect("there is more").replace('/', "%2F"));
    world.find("listWorkflows", &next).await;

    let missing = Some(json!({"workflow": "none"}).to_string());
    assert_eq!(world.bad("startExecution", Ask { body: missing, ..Ask::default() }).await, "not-found");
    for example in examples("startExecution") {
        let started = world.post("startExecution", "", example).await;
        world.get("cancelExecution", started["execution_id"].as_str().expect("an id")).await;
    }
    let started = world
        .post("startExecution", "", json!({"workflow": "etl/two", "version": 2, "input": {"file": "b.csv"}, "name": "mine",
            "labels": {"tenant": "acme"}, "external_id": "x", "retry": {"strategy": "fixed", "delay": "1h", "max_retries": 1}}))
        .await;
    let id = started["execution_id"].as_str().expect("an id").to_owned();
    let supervisor = started["task_id"].as_str().expect("a task stands for it").to_owned();
    world.get("getTask", &supervisor).await;
    world.post("advanceClock", "", json!({"by": "1s"})).await;
    let leased = work(world, json!({"parts": [1, 2]})).await;
    assert_eq!(leased["leases"][0]["task"]["payload"], json!({"file": "b.csv"}));
    world.get("getExecution", &id).await;
    let rounds = work(world, json!("done")).await;
    assert_eq!(rounds["leases"].as_array().map(Vec::len), Some(2), "{rounds}");
    let whole = world.get("getExecution", &id).await;
    assert_eq!(
        (&whole["state"], &whole["output"]),
        (&json!("succeeded"), &json!({"loaded": ["done", "done"]})),
        "{whole}"
    );
    assert_eq!(whole["edges"].as_array().map(Vec::len), Some(3));
    assert_eq!(world.get("getTask", &supervisor).await["state"], "succeeded");
    world.find("listExecutions", "state=succeeded,failed&workflow=etl%2Ftwo&limit=5").await;
    assert_eq!(world.find("listExecutions", &format!("task_id={supervisor}")).await["items"][0]["id"], id.as_str());
    let first = world.find("listExecutions", "limit=1").await;
    world.find("listExecutions", &format!("cursor={}", first["next_cursor"].as_str().expect("there is more"))).await;

    let none = "00000000-0000-7000-8000-000000000000";
    assert_eq!(world.bad("getExecution", Ask { part: none, ..Ask::default() }).await, "not-found");
    for operation in ["cancelExecution", "pauseExecution", "resumeExecution", "retryExecution"] {
        assert_eq!(world.bad(operation, Ask { part: none, ..Ask::default() }).await, "not-found", "{operation}");
        assert_eq!(world.bad(operation, Ask { part: &id, ..Ask::default() }).await, "wrong-state", "{operation}");
    }
    let again = world.post("retryExecution", &id, json!({"from": "start", "note": "n", "requested_by": "me"})).await;
    assert_eq!((&again["execution"]["retry_of"], &again["execution"]["version"]), (&json!(id), &json!(2)));
    let again = again["execution"]["id"].as_str().expect("an id").to_owned();
    let paused = world.post("pauseExecution", &again, json!({"note": "n", "requested_by": "me"})).await;
    assert_eq!(paused["execution"]["state"], "paused");
    world.post("resumeExecution", &again, json!({})).await;
    for _ in 0..2 {
        let headers = vec![("idempotency-key", "cancel-it".to_owned())];
        let ask = Ask { part: &again, headers, ..Ask::default() };
        assert_eq!(world.good("cancelExecution", ask).await["execution"]["state"], "canceled");
    }
    let log = world.good("listExecutionEvents", Ask { part: &id, query: "limit=2", ..Ask::default() }).await;
    assert_eq!(log["items"][0]["type"], "execution.created", "{log}");
    let next = format!("cursor={}", log["next_cursor"].as_str().expect("there is more"));
    let rest = world.good("listExecutionEvents", Ask { part: &id, query: &next, ..Ask::default() }).await;
    assert!(rest["items"][0]["seq"].as_u64() > log["items"][0]["seq"].as_u64(), "{rest}");
    let context = world.get("getExecutionContext", &id).await;
    assert_eq!((&context["input"], &context["path"][0]), (&json!({"file": "b.csv"}), &json!("extract")), "{context}");
    assert_eq!(context["steps"]["load"]["result"], json!(["done", "done"]));
    assert_eq!((&whole["trigger"], &whole["error"]), (&json!("call"), &Value::Null));
    assert!(whole["duration_ms"].is_u64());
    under_a_key(world, &again).await;
    switches(world).await;
    playbook(world).await;
    let lone = world.submit(json!({"kind": "alone", "queue": "flow", "payload": {"a": 1}})).await;
    assert_eq!(world.get("getExecution", &lone).await["state"], "pending");
    work(world, json!(1)).await;
    assert_eq!(world.get("getExecution", &lone).await["state"], "succeeded");

    let linked = json!({"tasks": [{"kind": "a", "queue": "flow"}], "execution": {}});
    let made = world.post("submitTasks", "", linked).await;
    let made = made["execution_id"].as_str().expect("an execution");
    let leased = world.post("leaseTasks", "", json!({"worker": "w", "queues": ["flow"]})).await;
    let failed = json!({"lease": leased["leases"][0]["lease"], "outcome": "failed", "error": "no"});
    world.post("reportRuns", "", json!({"reports": [failed]})).await;
    let error = world.get("getExecution", made).await["error"].clone();
    assert_eq!(error["failure"]["message"], "no", "{error}");
    assert_eq!(world.post("retryExecution", made, json!({"from": "failed"})).await["execution"]["state"], "running");
    work(world, json!(1)).await;
}

/// A workflow is switched off and on, brought back, and brought in from before.
async fn switches(world: &World) {
    for example in examples("pauseWorkflow") {
        let paused = world.post("pauseWorkflow", "nightly", example).await;
        assert_eq!((&paused["state"], paused["since"].is_string()), (&json!("paused"), true), "{paused}");
    }
    let start = || Ask { body: Some(json!({"workflow": "nightly"}).to_string()), ..Ask::default() };
    assert_eq!(world.bad("startExecution", start()).await, "wrong-state");
    assert_eq!(world.get("getWorkflow", "nightly").await["standing"]["note"], "the warehouse moves");
    world.post("resumeWorkflow", "nightly", json!({})).await;
    for example in examples("deactivateWorkflow") {
        assert_eq!(world.post("deactivateWorkflow", "nightly", example).await["state"], "inactive");
    }
    for operation in ["pauseWorkflow", "resumeWorkflow"] {
        assert_eq!(world.bad(operation, Ask { part: "nightly", ..Ask::default() }).await, "wrong-state");
    }
    let listed = world.find("listWorkflows", "").await;
    let states: Vec<_> =
        listed["items"].as_array().expect("workflows").iter().map(|it| (&it["path"], &it["state"])).collect();
    assert!(states.contains(&(&json!("nightly"), &json!("inactive"))), "{listed}");
    assert!(states.contains(&(&json!("etl/two"), &json!("active"))), "{listed}");
    for example in examples("activateWorkflow") {
        assert_eq!(world.post("activateWorkflow", "nightly", example).await["state"], "active");
    }
    for (operation, part) in [
        ("activateWorkflow", "nightly"),
        ("deactivateWorkflow", "spare"),
        ("pauseWorkflow", "nightly"),
        ("resumeWorkflow", "nightly"),
    ] {
        if part == "spare" {
            let body = Some(json!({"steps": {"a": {}}}).to_string());
            world.good("putWorkflow", Ask { part, body, ..Ask::default() }).await;
        }
        let keyed = |note: &str| Ask {
            part,
            body: Some(json!({"note": note}).to_string()),
            headers: vec![("idempotency-key", format!("{operation} once"))],
            ..Ask::default()
        };
        let first = world.good(operation, keyed("a")).await;
        assert_eq!(world.good(operation, keyed("a")).await, first, "{operation}");
        assert_eq!(world.bad(operation, keyed("b")).await, "idempotency-mismatch", "{operation}");
    }
    for example in examples("rollbackWorkflow") {
        let back = world.post("rollbackWorkflow", "etl%2Ftwo", example).await;
        assert_eq!((&back["version"], &back["created"]), (&json!(3), &json!(true)), "{back}");
    }
    assert_eq!(world.post("rollbackWorkflow", "etl%2Ftwo", json!({"version": 3})).await["created"], false);
    assert_eq!(world.get("getWorkflow", "etl%2Ftwo").await["source"], YAML);
    let keyed = |version: u32| Ask {
        part: "etl%2Ftwo",
        body: Some(json!({"version": version}).to_string()),
        headers: vec![("idempotency-key", "rollback once".to_owned())],
        ..Ask::default()
    };
    world.good("rollbackWorkflow", keyed(3)).await;
    world.good("rollbackWorkflow", keyed(3)).await;
    assert_eq!(world.bad("rollbackWorkflow", keyed(2)).await, "idempotency-mismatch");
    let none = Some(json!({"version": 99}).to_string());
    assert_eq!(
        world.bad("rollbackWorkflow", Ask { part: "etl%2Ftwo", body: none, ..Ask::default() }).await,
        "not-found"
    );

    // X0-14: what has an unknown strategy is refused, and what comes from before is put right with a warning.
    let old = "steps:\n  a:\n    dialect: workflow\n    retry: {strategy: fibonacci, maxAttempts: 2}\n";
    let ask = |query| Ask { part: "old", query, ..yaml(old) };
    assert_eq!(world.bad("putWorkflow", ask("")).await, "validation-failed");
    let put = world.good("putWorkflow", ask("import=true")).await;
    let warning = &put["warnings"][0];
    assert_eq!((&warning["path"], &warning["line"]), (&json!("steps.a.retry.strategy"), &json!(4)), "{put}");
    assert_eq!(world.get("getWorkflow", "old").await["workflow"]["steps"][0]["retry"]["strategy"], "immediate");
    let acts = world.find("listActs", "act=workflow.put&limit=1").await;
    assert_eq!(acts["items"][0]["after"]["warnings"][0]["path"], warning["path"], "{acts}");
}

/// The same key for another request is refused, whatever the request is.
async fn under_a_key(world: &World, over: &str) {
    let keyed = |part: &'static str, body: Value| Ask {
        part,
        body: Some(body.to_string()),
        headers: vec![("idempotency-key", "flow".to_owned())],
        ..Ask::default()
    };
    let input = |n: u32| keyed("", json!({"workflow": "nightly", "input": {"n": n}}));
    let started = world.good("startExecution", input(1)).await;
    assert_eq!(world.good("startExecution", input(1)).await["execution_id"], started["execution_id"]);
    assert_eq!(world.bad("startExecution", input(2)).await, "idempotency-mismatch");
    let id = started["execution_id"].as_str().expect("an id");
    for operation in ["pauseExecution", "resumeExecution", "cancelExecution"] {
        let ask = |note: &str| Ask { part: id, ..keyed("", json!({"note": note})) };
        world.good(operation, ask("one")).await;
        assert_eq!(world.bad(operation, ask("another")).await, "idempotency-mismatch", "{operation}");
    }
    let again = |note: &str| Ask { part: over, ..keyed("", json!({"from": "start", "note": note})) };
    let made = world.good("retryExecution", again("one")).await;
    assert_eq!(world.bad("retryExecution", again("another")).await, "idempotency-mismatch");
    world.get("cancelExecution", made["execution"]["id"].as_str().expect("an id")).await;
}

const PLAYBOOK: &str = "\
apiVersion: noetl.io/v1
kind: Playbook
metadata: {name: weather, path: examples/weather}
workload: {city: Oslo}
workflow:
- step: start
  next: fetch
- step: fetch
  type: python
  args: {city: '{{ workload.city }}'}
  vars: {degrees: '{{ result.temperature }}'}
  retry: {max_attempts: 3, initial_delay: 1, jitter: false}
  next:
  - {when: '{{ fetch.temperature > 20 }}', then: [{step: hot}], else: [{step: cold}]}
- step: hot
  type: python
  args: {degrees: '{{ vars.degrees }}', city: '{{ workload.city }}'}
- step: cold
  type: python
";

/// S4-39, S4-45..50: a playbook as it is, its names and its ways.
async fn playbook(world: &World) {
    let headers = vec![("content-type", "application/yaml".to_owned())];
    let ask = Ask { part: "examples%2Fweather", body: Some(PLAYBOOK.into()), headers, ..Ask::default() };
    world.good("putWorkflow", ask).await;
    let started = world.post("startExecution", "", json!({"workflow": "examples/weather"})).await;
    let id = started["execution_id"].as_str().expect("an id").to_owned();
    let lease = async || world.post("leaseTasks", "", json!({"worker": "w", "limit": 1})).await["leases"][0].clone();
    let report = async |lease: &Value, outcome: Value| {
        let mut report = outcome;
        report["lease"] = lease["lease"].clone();
        world.post("reportRuns", "", json!({"reports": [report]})).await
    };
    let first = lease().await;
    assert_eq!(first["task"]["payload"]["args"], json!({"city": "Oslo"}), "{first}");
    report(&first, json!({"outcome": "failed", "error": {"status": 503}})).await;
    world.post("advanceClock", "", json!({"by": "1s"})).await;
    let again = lease().await;
    assert_eq!((&again["task"]["key"], &again["task"]["attempt"]), (&json!("fetch"), &json!(1)), "{again}");
    report(&again, json!({"outcome": "succeeded", "result": {"temperature": 25}})).await;
    world.post("advanceClock", "", json!({"by": "1s"})).await;
    let hot = lease().await;
    assert_eq!(hot["task"]["payload"]["args"], json!({"degrees": 25, "city": "Oslo"}), "{hot}");
    report(&hot, json!({"outcome": "succeeded"})).await;
    world.post("advanceClock", "", json!({"by": "1s"})).await;
    let whole = world.get("getExecution", &id).await;
    let state = |key: &str| {
        let tasks = whole["tasks"].as_array().expect("tasks").iter();
        tasks.filter(|it| it["key"] == key).map(|it| it["state"].as_str().unwrap_or("?").to_owned()).collect::<String>()
    };
    assert_eq!((state("hot").as_str(), state("cold").as_str()), ("succeeded", "skipped"), "{whole}");
    assert_eq!(whole["state"], "succeeded");
}
