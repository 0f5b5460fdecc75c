//! Bulk operations.

use serde_json::{Value, json};

use super::{Ask, World, examples};

pub async fn operations(world: &World) {
    for operation in ["getOperation", "abortOperation", "undoOperation"] {
        let part = "01a1df6f-0287-7000-8004-c3db98790bca";
        assert_eq!(world.bad(operation, Ask { part, ..Ask::default() }).await, "not-found", "{operation}");
    }
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(world.submit(json!({"kind": "bulk"})).await);
        world.report(json!({"outcome": "failed", "error": "refused"})).await;
    }
    for mut example in examples("bulkTasks") {
        example["filter"] = "kind:bulk state:failed".into();
        example["dry_run"] = true.into();
        let tried = world.post("bulkTasks", "", example).await;
        assert_eq!((&tried["state"], &tried["eligible"], &tried["id"]), (&json!("dry_run"), &json!(3), &Value::Null));
    }
    let all = json!({"action": "retry", "ids": ids, "spread": "10m", "requested_by": "ana"});
    let headers = vec![("idempotency-key", "bulk".to_owned())];
    let ask = || Ask { body: Some(all.to_string()), headers: headers.clone(), ..Ask::default() };
    let begun = world.good("bulkTasks", ask()).await;
    assert_eq!(world.good("bulkTasks", ask()).await["id"], begun["id"], "the same key, the same operation");
    let other = Ask { body: Some(json!({"action": "pause", "ids": ids}).to_string()), ..ask() };
    assert_eq!(world.bad("bulkTasks", other).await, "idempotency-mismatch");
    let id = begun["id"].as_str().expect("an id");
    world.post("advanceClock", "", json!({"by": "1s"})).await;
    let over = world.get("getOperation", id).await;
    assert_eq!((&over["state"], &over["done"], &over["left"]), (&json!("done"), &json!(3), &json!(0)), "{over}");
    let told = world.get("listTaskEvents", &ids[0]).await;
    let retried = told["items"].as_array().expect("items").iter().find(|it| it["type"] == "task.manual_retry");
    assert_eq!(retried.expect("it was retried")["data"]["operation"], id);
    assert_eq!(world.bad("abortOperation", Ask { part: id, ..Ask::default() }).await, "wrong-state");
    twice(world, "undoOperation", id).await;
    world.post("advanceClock", "", json!({"by": "1s"})).await;
    let undone = world.get("getOperation", id).await;
    assert_eq!((&undone["state"], &undone["undone"]), (&json!("undone"), &json!(3)), "{undone}");
    assert_eq!(world.get("getTask", &ids[2]).await["state"], "failed");
    assert_eq!(world.bad("undoOperation", Ask { part: id, ..Ask::default() }).await, "wrong-state");
    let waves = json!({"action": "retry", "filter": "kind:bulk", "waves": {"canary": 1, "size": 1, "pause": "30s",
        "stop_if": {"failed_over": 0.5}}});
    let begun = world.post("bulkTasks", "", waves).await;
    world.post("advanceClock", "", json!({"by": "1s"})).await;
    let id = begun["id"].as_str().expect("an id");
    assert_eq!(world.get("getOperation", id).await["wave"]["number"], 0);
    world.report(json!({"outcome": "failed", "error": "refused"})).await;
    world.post("advanceClock", "", json!({"by": "2s"})).await;
    let stopped = world.get("getOperation", id).await;
    assert_eq!((&stopped["state"], &stopped["waves_done"][0]["failed"]), (&json!("stopped"), &json!(1)), "{stopped}");
    let begun = world.post("bulkTasks", "", json!({"action": "cancel", "filter": "kind:nothing"})).await;
    twice(world, "abortOperation", begun["id"].as_str().expect("an id")).await;
    let page = world.find("listOperations", "limit=1").await;
    assert_eq!(page["items"][0]["state"], "aborted");
    world.find("listOperations", &format!("cursor={}", page["next_cursor"].as_str().expect("more"))).await;
}

/// Under one key, and then with other words.
async fn twice(world: &World, operation: &str, part: &str) {
    let keyed = |note: &str| {
        let headers = vec![("idempotency-key", format!("{operation} once"))];
        Ask { part, body: Some(json!({"note": note}).to_string()), headers, ..Ask::default() }
    };
    world.good(operation, keyed("too early")).await;
    world.good(operation, keyed("too early")).await;
    assert_eq!(world.bad(operation, keyed("too late")).await, "idempotency-mismatch", "{operation}");
}
