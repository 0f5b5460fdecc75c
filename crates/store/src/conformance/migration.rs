//! Rows that an older build has written, and what becomes of them after a migration (S1-90).
#![allow(clippy::unwrap_used, clippy::expect_used)]

use comeback_core::{TaskId, Timestamp};
use serde_json::json;

use super::World;
use crate::types::Applied;

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
