//! Schedules.

use serde_json::{Value, json};

use super::{Ask, World, examples};

pub async fn schedules(world: &World) {
    for operation in ["getSchedule", "deleteSchedule", "pauseSchedule", "resumeSchedule", "triggerSchedule"] {
        assert_eq!(world.bad(operation, Ask { part: "none", ..Ask::default() }).await, "not-found", "{operation}");
    }
    for example in examples("createSchedule") {
        let made = world.post("createSchedule", "", example).await;
        assert_eq!(made["state"], "initialized", "{made}");
        let again = Some(json!({"name": made["name"], "every": 60, "task": {"kind": "k"}}).to_string());
        assert_eq!(world.bad("createSchedule", Ask { body: again, ..Ask::default() }).await, "name-taken");
        assert_eq!(made["next"].as_array().map(Vec::len), Some(5));
    }
    for example in examples("putSchedule") {
        let body = Some(example.to_string());
        world.good("putSchedule", Ask { part: "reports%2Fnightly", body: body.clone(), ..Ask::default() }).await;
        let again = world.good("putSchedule", Ask { part: "reports%2Fnightly", body, ..Ask::default() }).await;
        assert_eq!((&again["name"], &again["time_zone"]), (&json!("reports/nightly"), &json!("Europe/Berlin")));
    }
    let page = world.find("listCronSchedules", "limit=1").await;
    let next = page["next_cursor"].as_str().expect("there is more").replace('/', "%2F");
    world.find("listCronSchedules", &format!("cursor={next}")).await;

    // What it starts is a task in a queue of its own; both ways lead to one.
    let spec = json!({"name": "often", "every": "2s", "task": {"kind": "tick", "queue": "cron", "payload": "{{ scheduled_at }}"}});
    let view = world.post("createSchedule", "", spec).await;
    world.post("advanceClock", "", json!({"by": "2s"})).await;
    let leased = world.post("leaseTasks", "", json!({"worker": "w", "queues": ["cron"], "limit": 10})).await;
    assert_eq!(leased["leases"][0]["task"]["payload"], view["next"][0], "{leased}");
    succeed(world, &leased).await;
    let shown = world.get("getSchedule", "often").await;
    assert_eq!(
        (&shown["state"], &shown["fired"], &shown["last_run"]["task_id"]),
        (&json!("active"), &json!(1), &leased["leases"][0]["task"]["id"])
    );
    let triggered = world.post("triggerSchedule", "often", json!({})).await;
    assert_eq!(triggered["trigger"], "manual");
    assert_eq!(
        world.get("getTask", triggered["task_id"].as_str().expect("a task")).await["labels"]["schedule"],
        "often"
    );

    // A workflow knows its instant.
    let steps = json!({"steps": {"go": {"queue": "cron", "payload": {"at": "{{ execution.scheduled_at }}"}}}});
    world.good("putWorkflow", Ask { part: "timed", body: Some(steps.to_string()), ..Ask::default() }).await;
    let spec = json!({"name": "flow", "cron": "* * * * * *", "workflow": "timed", "labels": {"tenant": "acme"},
        "start_at": "2020-01-01T00:00:00Z", "end_at": "2099-01-01T00:00:00Z", "note": "n"});
    world.post("createSchedule", "", spec).await;
    world.post("advanceClock", "", json!({"by": "1s"})).await;
    let found = world.find("listExecutions", "schedule=flow").await;
    let execution = &found["items"][0];
    assert_eq!((&execution["trigger"], &execution["labels"]["tenant"]), (&json!("cron"), &json!("acme")), "{found}");
    let whole = world.get("getExecution", execution["id"].as_str().expect("an id")).await;
    assert_eq!(whole["scheduled_at"], execution["scheduled_at"]);
    world.get("cancelExecution", execution["id"].as_str().expect("an id")).await;

    by_events(world).await;

    // One that can start nothing says so. Its task was good when it was put, and is so no longer.
    let torn = json!({"name": "torn", "every": "1h", "task": {"kind": "k", "queue": "cron",
        "payload": "{{ 1 // (0 if trigger == 'manual' else 1) }}"}});
    world.post("createSchedule", "", torn).await;
    assert_eq!(world.bad("triggerSchedule", Ask { part: "torn", ..Ask::default() }).await, "validation-failed");

    let paused = world.post("pauseSchedule", "often", json!({"note": "holidays"})).await;
    assert_eq!(
        (&paused["state"], &paused["note"], &paused["next"]),
        (&json!("paused"), &json!("holidays"), &json!([]))
    );
    assert_eq!(world.post("resumeSchedule", "often", json!({})).await["paused"], false);

    under_a_key(world).await;
    let ended = json!({"every": "1h", "end_at": "2020-01-01T00:00:00Z", "start_at": "2019-01-01T00:00:00Z", "task": {"kind": "k"}});
    let ask = Ask { part: "over", body: Some(ended.to_string()), ..Ask::default() };
    assert_eq!(world.good("putSchedule", ask).await["state"], "stopped");
    let all = world.find("listCronSchedules", "").await;
    for it in all["items"].as_array().expect("schedules") {
        let name = it["name"].as_str().expect("a name").replace('/', "%2F");
        world.good("deleteSchedule", Ask { part: &name, ..Ask::default() }).await;
    }
    // Nothing of this is left for those who come after.
    let kinds = json!(["tick", "go", "check", "k"]);
    let all = json!({"worker": "w", "queues": ["cron", "default"], "kinds": kinds, "limit": 100});
    while succeed(world, &world.post("leaseTasks", "", all.clone()).await).await > 0 {}
}

/// Reports what was leased, and answers how many that were.
async fn succeed(world: &World, leased: &Value) -> usize {
    let report = |it: &Value| json!({"lease": it["lease"], "outcome": "succeeded"});
    let reports: Vec<Value> = leased["leases"].as_array().expect("leases").iter().map(report).collect();
    if !reports.is_empty() {
        world.post("reportRuns", "", json!({"reports": reports})).await;
    }
    reports.len()
}

/// The same key for another request is refused, and the same request is done once.
async fn under_a_key(world: &World) {
    let keyed = |part: &'static str, body: Value| Ask {
        part,
        body: Some(body.to_string()),
        headers: vec![("idempotency-key", "cron".to_owned())],
        ..Ask::default()
    };
    let new = |kind: &str| keyed("", json!({"name": "once", "every": "1h", "task": {"kind": kind}}));
    let made = world.good("createSchedule", new("k")).await;
    assert_eq!(world.good("createSchedule", new("k")).await["created_at"], made["created_at"]);
    assert_eq!(world.bad("createSchedule", new("other")).await, "idempotency-mismatch");
    let first = world.good("triggerSchedule", keyed("once", json!({}))).await;
    assert_eq!(world.good("triggerSchedule", keyed("once", json!({}))).await, first);
    let other = Ask { body: Some("{ }".into()), ..keyed("once", json!({})) };
    assert_eq!(world.bad("triggerSchedule", other).await, "idempotency-mismatch");
    for operation in ["pauseSchedule", "resumeSchedule"] {
        world.good(operation, keyed("once", json!({"note": "a"}))).await;
        assert_eq!(world.bad(operation, keyed("once", json!({"note": "b"}))).await, "idempotency-mismatch");
    }
}

/// Whoever tells of an event hears what it came to.
async fn by_events(world: &World) {
    let spec = json!({"name": "paid", "event": "order.*", "task": {"kind": "go", "queue": "cron",
        "payload": {"order": "{{ event.data.order }}"}}});
    let made = world.post("createSchedule", "", spec).await;
    assert_eq!((&made["event"], &made["next"], &made["state"]), (&json!("order.*"), &json!([]), &json!("initialized")));
    for example in examples("tellEvent") {
        let told = world.post("tellEvent", "", example.clone()).await;
        let came = &told["schedules"][0];
        assert_eq!((&came["schedule"], &came["outcome"]), (&json!("paid"), &json!("started")), "{told}");
        let task = world.get("getTask", came["task_id"].as_str().expect("a task")).await;
        assert_eq!(task["payload"], json!({"order": 42}));
        let again = world.post("tellEvent", "", example).await;
        let came_again = &again["schedules"][0];
        assert_eq!((&came_again["outcome"], &came_again["task_id"]), (&json!("repeated"), &came["task_id"]), "{again}");
    }
    let failed = world.post("tellEvent", "", json!({"type": "order.lost", "timestamp": "2030-01-01T00:00:00Z"})).await;
    assert_eq!(failed["schedules"][0]["outcome"], "failed", "{failed}");
    let keyed = || Ask {
        body: Some(json!({"type": "order.paid", "data": {"order": 7}}).to_string()),
        headers: vec![("idempotency-key", "an event".to_owned())],
        ..Ask::default()
    };
    let first = world.good("tellEvent", keyed()).await;
    let again = world.good("tellEvent", keyed()).await;
    assert_eq!(
        (&again["id"], &again["schedules"][0]["task_id"]),
        (&json!("an event"), &first["schedules"][0]["task_id"])
    );
    let steps = json!({"steps": {"go": {"queue": "cron"}}});
    world.good("putWorkflow", Ask { part: "heard", body: Some(steps.to_string()), ..Ask::default() }).await;
    let flow = json!({"name": "heard", "event": "flow.begins", "workflow": "heard", "overlap": "skip"});
    world.post("createSchedule", "", flow).await;
    let begun = world.post("tellEvent", "", json!({"type": "flow.begins"})).await["schedules"][0].clone();
    let id = begun["execution_id"].as_str().expect("an execution");
    assert_eq!(world.get("getExecution", id).await["trigger"], "event");
    let skipped = world.post("tellEvent", "", json!({"type": "flow.begins"})).await;
    assert_eq!(skipped["schedules"][0]["outcome"], "skipped");
    world.post("pauseWorkflow", "heard", json!({})).await;
    assert_eq!(world.get("getSchedule", "heard").await["state"], "paused");
    assert_eq!(world.bad("triggerSchedule", Ask { part: "heard", ..Ask::default() }).await, "wrong-state");
    world.get("cancelExecution", id).await;
}
