//! Rows that an older build has written, and what becomes of them after a migration (S1-90).
#![allow(clippy::unwrap_used, clippy::expect_used)]

use comeback_core::{TaskId, Timestamp};
use serde_json::json;

use super::World;
use crate::Applied;
use crate::Store;

/// One row of every sort that a migration might touch.
pub async fn rows(w: &World) -> Vec<TaskId> {
    let retries = json!({"strategy": "fixed", "delay": "10s", "max_retries": 3});
    let succeeded = w.running(w.new_task("a")).await.stored;
    w.succeed(&succeeded).await;
    let waiting = w.running(w.retrying_task("b", retries)).await.stored;
    w.fail(&waiting).await;
    let dead = w.running(w.new_task("c")).await.stored;
    w.fail(&dead).await;
    let running = w.running(w.new_task("d")).await.stored;
    let mut ids = [succeeded, waiting, dead, running].map(|it| it.task.id).to_vec();
    ids.extend(w.submit(vec![w.new_task("e"), w.delayed_task("f", 5_000)]).await);
    ids.extend(w.execution(&["x", "y"], &["x>y"]).await.1.into_values());
    ids
}

/// What is seen of all of them, and what becomes of them next.
pub async fn told(w: &World, ids: &[TaskId], began: Timestamp) -> Vec<String> {
    w.go_to(began);
    let mut told = Vec::new();
    for id in ids {
        told.push(format!("{:?}", w.store.task("default", *id).await.expect("read")));
        told.push(format!("{:?}", w.events(*id).await));
    }
    w.pass(10_000);
    let promoted = w.promote().await;
    told.push(format!("{promoted:?}"));
    for claimed in w.claim(10).await {
        told.push(format!("{:?} {:?}", claimed.stored, claimed.labels));
        if claimed.stored.task.execution.is_none() {
            assert_eq!(w.succeed(&claimed.stored).await, Applied::Done);
        }
    }
    for id in ids {
        told.push(w.state(*id).await.to_string());
        w.check_log(*id).await;
    }
    told
}

/// The text of a migration, by its number; empty where there is none of that number.
pub fn sql(database: &str, number: i32) -> String {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations").join(database);
    let mut files = std::fs::read_dir(folder).expect("the migrations").flatten().map(|it| it.path());
    let is_it = |path: &std::path::PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&format!("V{number}__")))
    };
    files.find(is_it).map_or_else(String::new, |path| std::fs::read_to_string(path).expect("it is read"))
}

/// Keys, policies, drained workers and instances as the versions up to schema 11 kept them: one text each in `meta`.
pub const DOCUMENTS: [(&str, &str); 4] = [
    (
        "api_keys",
        r#"[{"id":"0123456789ab","name":"ops","role":"admin","namespace":"*","hash":"h1","created_at":5,"expires_at":null,"revoked_at":null},
            {"id":"ba9876543210","name":null,"role":"worker","namespace":"red","hash":"h2","created_at":6,"expires_at":9,"revoked_at":8}]"#,
    ),
    (
        "policies",
        r#"{"red":{"mail":["{\"max_retries\":3}","native"],"pay \u00e4":["false","workflow"]},"blue":{"mail":["7","native"]}}"#,
    ),
    ("drained_workers", r#"{"red":{"w":{"at":7,"by":"ana","note":null}}}"#),
    ("instances", r#"{"one":{"started_at":1,"seen_at":2,"version":"0"}}"#),
];

/// They are rows now, as they were.
pub async fn check_documents(store: &dyn Store) {
    let keys = store.list_keys(None).await.expect("read");
    let told: Vec<_> =
        keys.iter().map(|it| (it.id.as_str(), it.namespace.as_str(), it.name.as_deref(), it.hash.as_str())).collect();
    assert_eq!(told, [("0123456789ab", "*", Some("ops"), "h1"), ("ba9876543210", "red", None, "h2")]);
    assert_eq!(
        (keys[1].expires_at, keys[1].revoked_at, keys[1].role.as_str()),
        (Some(Timestamp(9)), Some(Timestamp(8)), "worker")
    );
    assert_eq!(store.api_keys(0).await.expect("read").len(), 2, "who follows reads them");
    let names = store.kind_policy_names(0).await.expect("read");
    assert_eq!(names.len(), 3);
    let kinds = ["mail".to_owned(), "pay \u{e4}".to_owned()];
    let mut policies = store.kind_policies("red", &kinds).await.expect("read");
    policies.sort_by(|a, b| a.kind.cmp(&b.kind));
    let told: Vec<_> = policies.iter().map(|it| (it.kind.as_str(), it.body.as_str(), it.dialect.as_str())).collect();
    assert_eq!(told, [("mail", r#"{"max_retries":3}"#, "native"), ("pay \u{e4}", "false", "workflow")]);
    let drained = store.drained_workers().await.expect("read");
    assert_eq!(
        (drained.len(), drained[0].name.as_str(), drained[0].by.as_deref(), drained[0].at),
        (1, "w", Some("ana"), Timestamp(7))
    );
    let left = store.meta("api_keys").await.expect("read").expect("a word");
    assert!(
        serde_json::from_str::<serde_json::Value>(&left).is_err(),
        "the version before takes it for no empty list: {left}"
    );
    assert_eq!(store.meta("instances").await.expect("read"), None);
}
