//! Crashes and stops of a server: a log that cannot be written, a clean stop, a lock file that was removed.

use std::fs::File;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use comeback_client::Client;
use serde_json::{Value, json};

use crate::harness::{Server, file, lease_one, report, submit_one, text, until};

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port").port()
}

/// A server whose output nobody can read.
struct Blind {
    child: Child,
    client: Client,
}

impl Drop for Blind {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Blind {
    async fn start(db: &str, stdout: Stdio, stderr: Stdio) -> Blind {
        let port = free_port();
        let mut command = Server::command(db, &format!("127.0.0.1:{port}"));
        command.env("RUST_LOG", "debug").stdout(stdout).stderr(stderr);
        let mut child = command.spawn().expect("the binary starts");
        // Whoever was to read is gone.
        drop(child.stdout.take());
        let client = Client::new(format!("http://127.0.0.1:{port}")).expect("an address");
        let begun = Instant::now();
        while client.get("/readyz").await.is_err() {
            assert!(child.try_wait().expect("asked").is_none(), "it ended before it served");
            assert!(begun.elapsed() < Duration::from_secs(20), "it is not ready");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Blind { child, client }
    }
}

fn terminate(child: &Child) {
    let told = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().expect("kill runs");
    assert!(told.success());
}

async fn ended(child: &mut Child) -> std::process::ExitStatus {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("asked") {
            return status;
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "it does not end");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// C5: failed attempts are logged, and a log that could not be written used to break reports, lanes and loops.
async fn works(server: &mut Blind, failures: usize) {
    let client = server.client.clone();
    for n in 0..failures {
        submit_one(&client, json!({"kind": "k"})).await;
        let lease = lease_one(&client).await;
        let answer = report(&client, &lease, json!({"outcome": "failed", "error": {"message": "x".repeat(150)}})).await;
        assert_eq!(answer["state"], "failed", "{n}: {answer}");
    }
    // Loops go on: a delayed start, a timeout, a lost lease.
    let delayed = submit_one(&client, json!({"kind": "later", "queue": "q", "delay": "300ms"})).await;
    until(&client, &delayed, |task| task["state"] == "pending").await;
    for task in [json!({"kind": "slow", "timeout": "200ms"}), json!({"kind": "lost"})] {
        let id = submit_one(&client, task).await;
        let asked = json!({"worker": "w", "limit": 1, "wait": 10, "lease": "1s"});
        client.lease(&asked).await.expect("leased");
        until(&client, &id, |task| !["claimed", "running"].contains(&task["state"].as_str().unwrap_or_default())).await;
    }
    client.get("/readyz").await.expect("ready");
    terminate(&server.child);
    assert_eq!(ended(&mut server.child).await.code(), Some(0), "a clean end");
}

#[tokio::test]
async fn a_log_whose_reader_is_gone_fails_no_request() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut server = Blind::start(&file(folder.path()), Stdio::piped(), Stdio::piped()).await;
    drop(server.child.stderr.take());
    works(&mut server, 20).await;
}

#[tokio::test]
async fn a_log_on_a_full_disk_fails_no_request() {
    let folder = tempfile::tempdir().expect("a folder");
    let full = || Stdio::from(File::options().write(true).open("/dev/full").expect("a full device"));
    let mut server = Blind::start(&file(folder.path()), full(), full()).await;
    works(&mut server, 20).await;
}

/// A pipe that nobody empties holds 64 KiB; who waited for it waited for ever.
#[tokio::test]
async fn a_log_that_nobody_reads_holds_up_no_request() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut server = Blind::start(&file(folder.path()), Stdio::null(), Stdio::piped()).await;
    let unread = server.child.stderr.take();
    works(&mut server, 300).await;
    drop(unread);
}

/// H15: the file used to be empty after a clean stop, and everything was in its log.
#[tokio::test]
async fn a_file_is_whole_without_its_log_after_a_clean_stop() {
    let folder = tempfile::tempdir().expect("a folder");
    let db = file(folder.path());
    let mut server = Server::start(&db, &[]);
    let client = server.client();
    for _ in 0..20 {
        let tasks: Vec<Value> = (0..50).map(|n| json!({"kind": "k", "payload": n})).collect();
        client.submit(&json!({"tasks": tasks})).await.expect("submitted");
    }
    // Whoever still waits or follows is no reason to leave something in the log.
    let stream = server.http().get(format!("{}/api/v1/events/stream", server.url)).send().await.expect("a stream");
    let poll = tokio::spawn({
        let client = client.clone();
        async move { client.lease(&json!({"worker": "w", "queues": ["none"], "wait": 30})).await }
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    terminate(&server.child);
    assert_eq!(ended(&mut server.child).await.code(), Some(0));
    drop((stream, poll));
    let log = std::fs::metadata(format!("{db}-wal")).map_or(0, |it| it.len());
    assert_eq!(log, 0, "the log is empty or gone");
    let copy = folder.path().join("copy.db");
    std::fs::copy(&db, &copy).expect("copied");
    let connection = rusqlite::Connection::open(&copy).expect("opens");
    let count = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, i64>(0)).expect("counted");
    assert_eq!(count("select count(*) from task"), 1_000);
    let said: String = connection.query_row("pragma integrity_check", [], |row| row.get(0)).expect("checked");
    assert_eq!(said, "ok");
    drop(connection);
    let checked = Command::new(env!("CARGO_BIN_EXE_comeback")).args(["db", "check", "--db"]).arg(&copy).output();
    let checked = checked.expect("the binary runs");
    assert!(checked.status.success(), "{}", text(&checked.stdout));
}

/// To remove the lock file used to let a second server open the database.
#[tokio::test]
async fn a_second_server_is_refused_although_somebody_removed_the_lock_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let db = file(folder.path());
    let server = Server::start(&db, &[]);
    for round in 0..3 {
        let id = submit_one(&server.client(), json!({"kind": "k"})).await;
        std::fs::remove_file(format!("{db}.lock")).expect("removed");
        let second = Server::command(&db, "127.0.0.1:0").stderr(Stdio::piped()).output().expect("the binary runs");
        let said = text(&second.stderr);
        assert!(!second.status.success() && said.contains("another comeback process has it open"), "{round}: {said}");
        // A reader beside it neither is refused nor takes SQLite's own locks away.
        let checked = Command::new(env!("CARGO_BIN_EXE_comeback")).args(["db", "check", "--db", &db]).output();
        assert!(checked.expect("the binary runs").status.success());
        server.client().task(&id).await.expect("it is there");
    }
    server.kill();
    let again = Server::start(&db, &[]);
    let listed = again.client().get("/api/v1/tasks").await.expect("a page");
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(3), "a lock ends with its process");
}

/// Everybody may ask; what the database says of itself is for the log.
#[tokio::test]
async fn who_asks_whether_it_is_ready_is_not_told_what_the_database_says() {
    let database = crate::postgres::Database::create().await;
    let server = Server::start(&database.url, &["--no-executors"]);
    let answer = server.http().get(format!("{}/readyz", server.url)).send().await.expect("an answer");
    assert_eq!(answer.status(), 200);
    database.drop().await;
    let begun = Instant::now();
    let problem: Value = loop {
        let answer = server.http().get(format!("{}/readyz", server.url)).send().await.expect("an answer");
        if answer.status() == 503 {
            break answer.json().await.expect("a problem");
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "it is ready without a database");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    let reason = problem["reason"].as_str().expect("a code");
    assert!(["database_unreachable", "database_not_writable", "database_slow"].contains(&reason), "{problem}");
    let said = problem.to_string();
    assert!(!said.contains("does not exist") && !said.contains("connect"), "{said}");
    let url = format!("{}/api/v1/tasks", server.url);
    let refused = server.http().post(url).json(&json!({"kind": "k"})).send().await.expect("an answer");
    assert_eq!(refused.status(), 503);
    let said = refused.text().await.expect("a text");
    assert!(!said.contains("does not exist") && !said.contains("connect"), "{said}");
    // Loops that get no answer are named.
    let begun = Instant::now();
    loop {
        let answer = server.http().get(format!("{}/readyz", server.url)).send().await.expect("an answer");
        let problem: Value = answer.json().await.expect("a problem");
        let stalled = problem["stalled"].as_array().cloned().unwrap_or_default();
        if stalled.contains(&json!("loop/retries")) {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(40), "{problem}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
