//! The database from outside: backups under load, restored and checked, on both databases.

use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use comeback_client::{Client, Outcome, Worker};
use serde_json::{Value, json};

use crate::harness::{Server, file, text};
use crate::postgres::Database;

fn comeback(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_comeback")).args(args).output().expect("the binary runs")
}

/// Submits and works until it is told to stop; answers what was acknowledged, and when the slowest answer came.
struct Load {
    stop: Arc<AtomicBool>,
    senders: tokio::task::JoinSet<(Vec<String>, Duration)>,
    end: tokio::sync::watch::Sender<bool>,
    worker: tokio::task::JoinHandle<Result<(), comeback_client::Error>>,
}

impl Load {
    fn start(client: &Client) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let mut senders = tokio::task::JoinSet::new();
        for _ in 0..4 {
            let (client, stop) = (client.clone(), stop.clone());
            senders.spawn(async move {
                let (mut ids, mut slowest) = (Vec::new(), Duration::ZERO);
                while !stop.load(Ordering::SeqCst) {
                    let begun = Instant::now();
                    let tasks: Vec<Value> =
                        (0..20).map(|_| json!({"kind": "k", "retry": "fixed(100ms, 5 retries)"})).collect();
                    let answer = client.submit(&json!({"tasks": tasks})).await.expect("submitted");
                    slowest = slowest.max(begun.elapsed());
                    ids.extend(answer["tasks"].as_array().into_iter().flatten().map(|it| it["id"].to_string()));
                }
                (ids, slowest)
            });
        }
        let (end, mut ended) = tokio::sync::watch::channel(false);
        let worker = Worker::new(client.clone(), "w").concurrency(16).handle("k", |task| async move {
            if task.attempt_number == 1 { Outcome::failed("not yet") } else { Outcome::succeeded(json!(null)) }
        });
        let worker = tokio::spawn(worker.run(async move {
            let _ = ended.wait_for(|end| *end).await;
        }));
        Load { stop, senders, end, worker }
    }

    async fn stop(self) -> (usize, Duration) {
        self.stop.store(true, Ordering::SeqCst);
        let all = self.senders.join_all().await;
        self.end.send(true).expect("it listens");
        self.worker.await.expect("no panic").expect("it worked");
        (all.iter().map(|(ids, _)| ids.len()).sum(), all.iter().map(|(_, slowest)| *slowest).max().unwrap_or_default())
    }
}

async fn total(client: &Client) -> u64 {
    client.get("/api/v1/stats").await.expect("stats")["total"].as_u64().unwrap_or(0)
}

async fn until_busy(client: &Client) {
    let begun = Instant::now();
    while total(client).await < 500 {
        assert!(begun.elapsed() < Duration::from_secs(30), "nothing is submitted");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A backup that is made beside a busy server is whole: it opens, it holds together, and it goes on from there.
#[tokio::test]
async fn a_file_is_backed_up_under_load_and_restored() {
    let folder = tempfile::tempdir().expect("a folder");
    let (db, copy) = (file(folder.path()), folder.path().join("copy.db").to_string_lossy().into_owned());
    let server = Server::start(&db, &[]);
    let client = server.client();
    let load = Load::start(&client);
    until_busy(&client).await;
    let before = total(&client).await;
    let made = tokio::task::spawn_blocking({
        let (db, copy) = (db.clone(), copy.clone());
        move || comeback(&["db", "backup", "--db", &db, "--to", &copy])
    });
    let made = made.await.expect("it ran");
    assert!(made.status.success(), "{}", text(&made.stderr));
    let beside = tokio::task::spawn_blocking(move || comeback(&["db", "check", "--db", &db])).await.expect("it ran");
    assert!(beside.status.success(), "beside the server: {}{}", text(&beside.stdout), text(&beside.stderr));
    let (submitted, slowest) = load.stop().await;
    println!("{submitted} submitted, the slowest answer after {slowest:?}");
    let checked = comeback(&["db", "check", "--db", &copy]);
    assert!(checked.status.success(), "{}{}", text(&checked.stdout), text(&checked.stderr));
    let restored = Server::start(&copy, &[]);
    let there = total(&restored.client()).await;
    assert!(there >= before, "{there} of at least {before} are in the backup");
    assert!(restored.lines.iter().any(|line| line.contains("resumed")), "{:?}", restored.lines);
}

/// The same on PostgreSQL, by its own tools.
#[tokio::test]
async fn postgres_is_backed_up_under_load_and_restored() {
    let folder = tempfile::tempdir().expect("a folder");
    let (database, other) = (Database::create().await, Database::create().await);
    let dry = comeback(&["db", "migrate", "--db", &database.url, "--dry-run"]);
    assert!(text(&dry.stdout).contains("would migrate from schema 0 to"), "{}{}", text(&dry.stdout), text(&dry.stderr));
    let done = comeback(&["db", "migrate", "--db", &database.url]);
    assert!(text(&done.stdout).contains("migrated from schema 0 to"), "{}{}", text(&done.stdout), text(&done.stderr));
    let again = comeback(&["db", "migrate", "--db", &database.url]);
    assert!(text(&again.stdout).contains("nothing to do"), "{}", text(&again.stdout));
    let server = Server::start(&database.url, &[]);
    let client = server.client();
    let load = Load::start(&client);
    until_busy(&client).await;
    let before = total(&client).await;
    let dump = folder.path().join("backup.dump").to_string_lossy().into_owned();
    let made = tokio::task::spawn_blocking({
        let (url, dump) = (database.url.clone(), dump.clone());
        move || comeback(&["db", "backup", "--db", &url, "--to", &dump])
    });
    let made = made.await.expect("it ran");
    assert!(made.status.success(), "{}", text(&made.stderr));
    let beside = tokio::task::spawn_blocking({
        let url = database.url.clone();
        move || comeback(&["db", "check", "--db", &url])
    });
    let beside = beside.await.expect("it ran");
    assert!(beside.status.success(), "beside the server: {}{}", text(&beside.stdout), text(&beside.stderr));
    let again = comeback(&["db", "backup", "--db", &database.url, "--to", &dump]);
    assert_eq!(again.status.code(), Some(2), "it replaces nothing");
    load.stop().await;
    let restored =
        Command::new("pg_restore").args(["--no-owner", "--dbname", &other.url, &dump]).output().expect("pg_restore");
    assert!(restored.status.success(), "{}", text(&restored.stderr));
    for url in [&database.url, &other.url] {
        let checked = comeback(&["db", "check", "--db", url]);
        assert!(checked.status.success(), "{}{}", text(&checked.stdout), text(&checked.stderr));
    }
    let doctor = comeback(&["doctor", "--db", &other.url, "--server", &server.url]);
    let said = text(&doctor.stdout);
    for words in ["✓ database", "✓ postgres", "✓ durability", "✓ connections", "✓ vacuum"] {
        assert!(said.contains(words), "{words} is missing:\n{said}");
    }
    let second = Server::start(&other.url, &[]);
    let there = total(&second.client()).await;
    assert!(there >= before, "{there} of at least {before} are in the backup");
    drop((server, second));
    database.drop().await;
    other.drop().await;
}
