//! Subscriptions.

use serde_json::{Value, json};

use super::{Ask, World, examples};

pub async fn subscriptions(world: &World) {
    for example in examples("createSubscription") {
        let made = world.post("createSubscription", "", example.clone()).await;
        assert!(made["secret"].as_str().is_some_and(|secret| secret.starts_with("whsec_")), "{made}");
        let id = made["id"].as_str().expect("an id");
        let shown = world.get("getSubscription", id).await;
        assert_eq!((&shown["secret"], &shown["state"]), (&Value::Null, &json!("active")), "{shown}");
        let again = json!({"id": id, "url": example["url"]});
        let ask = Ask { body: Some(again.to_string()), ..Ask::default() };
        assert_eq!(world.bad("createSubscription", ask).await, "name-taken");
    }
    for example in examples("putSubscription") {
        let ask = || Ask { part: "billing", body: Some(example.to_string()), ..Ask::default() };
        assert!(world.good("putSubscription", ask()).await["secret"].is_string());
        assert_eq!(world.good("putSubscription", ask()).await["secret"], Value::Null, "it is not told twice");
    }
    let page = world.find("listSubscriptions", "limit=1").await;
    let next = page["next_cursor"].as_str().expect("there is more").to_owned();
    world.find("listSubscriptions", &format!("cursor={next}")).await;
    assert!(!page.to_string().contains("whsec_"));

    let rotated = world.post("rotateSubscription", "ops", json!({})).await;
    assert_eq!(rotated["secrets"], 2);
    let test = world.post("testSubscription", "ops", json!({})).await;
    let found = world.get("listDeliveries", "ops").await;
    assert_eq!(
        (&found["items"][0]["task_id"], &found["items"][0]["type"]),
        (&test["task_id"], &json!("subscription.test"))
    );
    for example in examples("redeliver") {
        assert_eq!(world.post("redeliver", "ops", example).await["tasks"], json!([]), "nothing was given up");
    }
    let event = found["items"][0]["event"].clone();
    assert_eq!(
        world.post("redeliver", "ops", json!({"event": event})).await["tasks"].as_array().map(Vec::len),
        Some(1)
    );

    let keyed = |part: &'static str, body: Value| Ask {
        part,
        body: Some(body.to_string()),
        headers: vec![("idempotency-key", "told".to_owned())],
        ..Ask::default()
    };
    let new = |url: &str| keyed("", json!({"url": url}));
    let made = world.good("createSubscription", new("https://example.test/a")).await;
    let again = world.good("createSubscription", new("https://example.test/a")).await;
    assert_eq!((&again["id"], &again["secret"]), (&made["id"], &Value::Null));
    assert_eq!(world.bad("createSubscription", new("https://example.test/b")).await, "idempotency-mismatch");
    for (operation, first, other) in [
        ("rotateSubscription", json!({}), json!({"secret": null})),
        ("testSubscription", json!({}), Value::Null),
        ("redeliver", json!({"within": "1h"}), json!({"within": "2h"})),
    ] {
        world.good(operation, keyed("ops", first.clone())).await;
        world.good(operation, keyed("ops", first)).await;
        let other = match other {
            Value::Null => Ask { body: Some("{ }".into()), ..keyed("ops", json!({})) },
            other => keyed("ops", other),
        };
        assert_eq!(world.bad(operation, other).await, "idempotency-mismatch", "{operation}");
    }
    for it in world.find("listSubscriptions", "").await["items"].as_array().expect("subscriptions") {
        world.get("deleteSubscription", it["id"].as_str().expect("an id")).await;
    }
}

pub async fn alerts(world: &World) {
    world
        .post("createSubscription", "", json!({"id": "pager", "url": "https://example.test/p", "types": ["alert.*"]}))
        .await;
    for example in examples("putAlert") {
        let ask = || Ask { part: "much", body: Some(example.to_string()), ..Ask::default() };
        world.good("putAlert", ask()).await;
        assert_eq!(world.good("putAlert", ask()).await["state"], "quiet");
    }
    let body = json!({"types": ["task.created"], "threshold": 2, "window": "10s", "tell": ["pager"], "note": "n"});
    world.good("putAlert", Ask { part: "busy", body: Some(body.to_string()), ..Ask::default() }).await;
    for _ in 0..2 {
        world.submit(json!({"kind": "k", "queue": "alarming"})).await;
    }
    world.post("advanceClock", "", json!({"by": "1s"})).await;
    let firing = world.get("getAlert", "busy").await;
    assert_eq!((&firing["state"], &firing["last"]["type"]), (&json!("firing"), &json!("alert.fired")), "{firing}");
    world.post("advanceClock", "", json!({"by": "15s"})).await;
    assert_eq!(world.get("getAlert", "busy").await["state"], "quiet");
    assert_eq!(world.get("listDeliveries", "pager").await["items"].as_array().map(Vec::len), Some(2));
    let page = world.find("listAlerts", "limit=1").await;
    let next = page["next_cursor"].as_str().expect("there is more").to_owned();
    world.find("listAlerts", &format!("cursor={next}")).await;
    let test = world.post("backtestAlert", "", json!({"name": "busy", "within": "1h"})).await;
    assert!(test["fired"].as_u64() >= Some(1), "{test}");
    for example in examples("backtestAlert") {
        world.post("backtestAlert", "", example).await;
    }
    for name in ["busy", "much"] {
        world.get("deleteAlert", name).await;
    }
    world.get("deleteSubscription", "pager").await;
    // Nothing of this is left for those who come after, nor what came back because time passed.
    loop {
        let all = json!({"worker": "w", "queues": ["alarming", "default"], "limit": 100});
        let leased = world.post("leaseTasks", "", all).await;
        let report = |it: &Value| json!({"lease": it["lease"], "outcome": "succeeded"});
        let reports: Vec<Value> = leased["leases"].as_array().expect("leases").iter().map(report).collect();
        if reports.is_empty() {
            return;
        }
        world.post("reportRuns", "", json!({"reports": reports})).await;
    }
}
