//! What is true of a file: one process, no newer schema, and nothing acknowledged lost when the process is killed.

use std::collections::HashSet;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use comeback_core::{End, State, TaskId};
use comeback_store::conformance::{World, migration};
use comeback_store::{Applied, DueQueries, SqliteOptions, SqliteStore, StoreError, TaskQueries};

fn open(path: &Path) -> Result<SqliteStore, StoreError> {
    SqliteStore::open(&SqliteOptions::file(path))
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

/// Runs one test of this file again in a process of its own.
fn in_another_process(test: &str, path: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", &format!("file::{test}"), "--nocapture"]).env("COMEBACK_CHILD_FILE", path);
    command
}

fn child_file() -> Option<std::path::PathBuf> {
    std::env::var_os("COMEBACK_CHILD_FILE").map(Into::into)
}

#[test]
fn a_second_process_is_told_that_the_file_is_in_use() {
    if let Some(path) = child_file() {
        match open(&path) {
            Err(error) => println!("refused: {error}"),
            Ok(_) => println!("opened"),
        }
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a.db");
    let _store = open(&path).expect("the first opens");
    let output = in_another_process("a_second_process_is_told_that_the_file_is_in_use", &path).output().expect("runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("is in use by another comeback process"), "{said}");
    assert!(said.contains("PostgreSQL"), "it says what to do: {said}");
}

#[test]
fn the_file_is_free_again_when_its_store_is_gone() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a.db");
    for _ in 0..3 {
        drop(open(&path).expect("opens again"));
    }
}

#[test]
fn a_newer_schema_is_refused_in_words() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a.db");
    drop(open(&path).expect("opens"));
    let connection = rusqlite::Connection::open(&path).expect("opens");
    connection
        .execute_batch("update refinery_schema_history set version = 99 where version = (select max(version) from refinery_schema_history)")
        .expect("a newer number");
    drop(connection);
    let Err(error) = open(&path) else { panic!("a newer schema was opened") };
    let said = error.to_string();
    assert!(said.contains("schema 99") && said.contains("upgrade comeback"), "{said}");
}

#[test]
fn a_file_that_is_not_a_database_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a.db");
    std::fs::write(&path, "this is a letter, not a database. ".repeat(500)).expect("written");
    assert!(matches!(open(&path), Err(StoreError::Corrupt(_))));
}

#[test]
fn what_was_stored_is_there_after_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a.db");
    let id = runtime().block_on(async {
        let w = World::new(Arc::new(open(&path).expect("opens")));
        let claimed = w.running(w.retrying_task("a", serde_json::json!({"max_retries": 3}))).await;
        assert_eq!(w.fail(&claimed.stored).await, Applied::Done);
        claimed.stored.task.id
    });
    runtime().block_on(async {
        let w = World::new(Arc::new(open(&path).expect("opens again")));
        assert_eq!(w.state(id).await, State::RetryPending);
        w.check_log(id).await;
    });
}

/// A file as an older schema would hold it: the rows of the newest, as far as that one has columns for them.
fn older_copy(newest: &Path, older: &Path, version: i32) {
    let connection = rusqlite::Connection::open(older).expect("opens");
    for number in 1..=version {
        connection.execute_batch(&migration::sql("sqlite", number)).expect("it runs");
    }
    connection.execute("attach ?1 as newest", [newest.to_string_lossy()]).expect("attached");
    let texts = |sql: &str| -> Vec<String> {
        let mut statement = connection.prepare(sql).expect("prepared");
        let rows = statement.query_map((), |row| row.get(0)).expect("rows");
        rows.collect::<Result<_, _>>().expect("texts")
    };
    let history = texts("select sql from newest.sqlite_master where name = 'refinery_schema_history'").remove(0);
    connection.execute_batch(&history).expect("a history");
    let filled = format!(
        "insert into refinery_schema_history select * from newest.refinery_schema_history where version <= {version}"
    );
    connection.execute_batch(&filled).expect("filled");
    for table in texts(
        "select name from main.sqlite_master where type = 'table' and name not like 'sqlite%' and name not like 'refinery%'",
    ) {
        let columns = texts(&format!("select name from pragma_table_info('{table}')")).join(", ");
        let copy = format!("insert or replace into main.{table} ({columns}) select {columns} from newest.{table}");
        connection.execute_batch(&copy).unwrap_or_else(|error| panic!("{table}: {error}"));
    }
}

/// S1-90: whatever a migration adds, tasks that were there before go on as if they had been written today.
#[test]
fn a_migration_changes_nothing_about_the_rows_that_exist() {
    let folder = tempfile::tempdir().expect("a folder");
    let newest = folder.path().join("newest.db");
    let (ids, began) = runtime().block_on(async {
        let w = World::new(Arc::new(open(&newest).expect("opens")));
        (migration::rows(&w).await, w.now())
    });
    let told = |path: &Path| {
        runtime().block_on(async {
            let w = World::new(Arc::new(open(path).expect("opens")));
            migration::told(&w, &ids, began).await
        })
    };
    let copies: Vec<_> = (1..=comeback_store::SCHEMA_VERSION)
        .map(|version| {
            let path = folder.path().join(format!("{version}.db"));
            older_copy(&newest, &path, version);
            (version, path)
        })
        .collect();
    let expected = told(&newest);
    for (version, path) in copies {
        assert_eq!(told(&path), expected, "from schema {version}");
        runtime().block_on(async {
            comeback_store::conformance::holds_together(&comeback_store::Place::File(path)).await;
        });
    }
}

/// R-I1, R-I2: killed at any moment, the file holds everything that was acknowledged and nothing by halves.
#[test]
fn nothing_acknowledged_is_lost_when_the_process_is_killed() {
    if let Some(path) = child_file() {
        work_until_killed(&path);
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a.db");
    let mut submitted: HashSet<TaskId> = HashSet::new();
    let mut succeeded: HashSet<TaskId> = HashSet::new();
    for round in 0..12_u64 {
        let mut child = in_another_process("nothing_acknowledged_is_lost_when_the_process_is_killed", &path)
            .env("COMEBACK_CHILD_ROUND", round.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a child");
        let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        let kill_after = 40 + round * 37 % 200;
        for (count, line) in (0_u64..).zip(lines) {
            let Ok(line) = line else { break };
            let read = |word: &str| line.strip_prefix(word).and_then(|text| text.parse::<TaskId>().ok());
            submitted.extend(read("submitted "));
            succeeded.extend(read("succeeded "));
            if count == kill_after {
                child.kill().expect("killed");
            }
        }
        child.wait().expect("gone");
        runtime().block_on(check_file(&path, &submitted, &succeeded));
    }
    assert!(submitted.len() > 200 && succeeded.len() > 50, "{} {}", submitted.len(), succeeded.len());
}

fn work_until_killed(path: &Path) {
    let round: u64 = std::env::var("COMEBACK_CHILD_ROUND").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    runtime().block_on(async {
        let w = World::new(Arc::new(open(path).expect("opens")));
        w.pass(1_000_000 * (round + 1));
        let mut workers = tokio::task::JoinSet::new();
        for _ in 0..4 {
            let w = w.clone();
            workers.spawn(async move {
                loop {
                    for id in w.submit_many("a", 3).await {
                        println!("submitted {id}");
                    }
                    for claimed in w.claim(2).await {
                        if w.succeed(&claimed.stored).await == Applied::Done {
                            println!("succeeded {}", claimed.stored.task.id);
                        }
                    }
                }
            });
        }
        workers.join_all().await;
    });
}

async fn check_file(path: &Path, submitted: &HashSet<TaskId>, succeeded: &HashSet<TaskId>) {
    let store = Arc::new(open(path).expect("opens after a kill"));
    let w = World::new(store.clone());
    let ids: Vec<TaskId> = submitted.iter().copied().collect();
    for (id, stored) in ids.iter().zip(store.load(&ids).await.expect("loads")) {
        let stored = stored.unwrap_or_else(|| panic!("{id} was acknowledged and is not there"));
        if succeeded.contains(id) {
            assert_eq!(stored.task.state, State::Succeeded, "{id} was acknowledged as succeeded");
        }
    }
    for id in ids.iter().take(60) {
        w.check_log(*id).await;
    }
    // Whoever held a lease is gone; its tasks are given back as the engine would.
    for stored in store.due(comeback_store::Due::Leases, comeback_core::Timestamp::MAX, 10_000).await.expect("reads") {
        w.end(&stored, End::Released).await;
    }
}

/// Keys, policies and drained workers of schema 11 are kept when they become rows.
#[test]
fn what_was_one_text_each_becomes_rows() {
    let folder = tempfile::tempdir().expect("a folder");
    let (newest, old) = (folder.path().join("newest.db"), folder.path().join("old.db"));
    drop(open(&newest).expect("opens"));
    older_copy(&newest, &old, 11);
    let connection = rusqlite::Connection::open(&old).expect("opens");
    for (key, value) in migration::DOCUMENTS {
        connection.execute("insert into meta (key, value) values (?1, ?2)", [key, value]).expect("written");
    }
    drop(connection);
    runtime().block_on(async { migration::check_documents(&open(&old).expect("it is migrated")).await });
}
