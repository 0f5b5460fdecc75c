//! Servers that are killed: nothing acknowledged is lost, nothing is made twice.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use comeback_client::{Outcome, Worker};
use serde_json::{Value, json};

use crate::harness::{Server, file};
use crate::postgres::Database;

/// One submit under a key of its own; nothing when nobody answered.
async fn submit_with_key(http: &reqwest::Client, url: &str, key: &str) -> Option<String> {
    let request = http.post(format!("{url}/api/v1/tasks")).header("idempotency-key", key);
    let response = request.json(&json!({"kind": "k", "retry": 5})).send().await.ok()?;
    assert_eq!(response.status(), 201, "{key}");
    let answer: Value = response.json().await.ok()?;
    answer["tasks"][0]["id"].as_str().map(str::to_owned)
}

/// Live tasks in one file, at most: then everything is looked at, and the kills go on with a new one.
const MOST_TASKS: usize = 100_000;

/// R-I1, R-I9: kill -9 under load, again and again. Nothing acknowledged is lost, and a request that is sent again under its key
/// creates nothing twice. `make chaos` runs many more rounds.
#[tokio::test]
async fn what_was_acknowledged_is_there_after_every_kill() {
    let kills: u64 = std::env::var("COMEBACK_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(100);
    let (mut starts, mut done, mut tasks, mut files) = (Vec::new(), 0, 0, 0);
    let began = Instant::now();
    while done < kills {
        let folder = tempfile::tempdir().expect("a folder");
        let mut life = FileLife { db: file(folder.path()), known: BTreeMap::new(), unheard: Vec::new() };
        while done < kills && life.known.len() < MOST_TASKS {
            starts.push(life.round(done).await);
            done += 1;
            if done % 500 == 0 {
                let (now, seconds) = (life.known.len(), began.elapsed().as_secs());
                eprintln!("kills: {done} of {kills} after {seconds} s, {now} tasks in file {}", files + 1);
            }
        }
        tasks += life.check_all().await;
        files += 1;
    }
    assert!(tasks as u64 > kills, "{tasks} were acknowledged");
    starts.sort_unstable();
    let (middle, most) = (starts[starts.len() / 2], starts[starts.len() * 99 / 100]);
    println!(
        "{kills} kills, {tasks} tasks in {files} files; ready after p50 {middle} ms, p99 {most} ms (the goal is 500 ms)"
    );
}

/// A database that outlives its servers, and what its clients were told.
struct FileLife {
    db: String,
    known: BTreeMap<String, String>,
    /// Keys of requests that nobody answered.
    unheard: Vec<String>,
}

impl FileLife {
    /// One server: started, asked, killed. Answers the milliseconds until it was ready.
    async fn round(&mut self, round: u64) -> u128 {
        if round % 10 == 9 {
            // One that does not even get to serve.
            let mut child = Server::command(&self.db, "127.0.0.1:0").spawn().expect("the binary starts");
            tokio::time::sleep(Duration::from_millis(round * 7 % 40)).await;
            child.kill().expect("killed");
            child.wait().expect("gone");
        }
        let (server, ready) = self.start_and_ask_again().await;
        let (http, url) = (server.http(), server.url.clone());
        let mut senders = tokio::task::JoinSet::new();
        for sender in 0..8 {
            let (http, url) = (http.clone(), url.clone());
            senders.spawn(async move {
                let mut acknowledged = Vec::new();
                for n in 0.. {
                    let key = format!("{round}-{sender}-{n}");
                    match submit_with_key(&http, &url, &key).await {
                        Some(id) => acknowledged.push((key, id)),
                        None => return (acknowledged, key),
                    }
                }
                unreachable!("it ends with the server")
            });
        }
        tokio::time::sleep(Duration::from_millis(20 + round * 37 % 100)).await;
        server.kill();
        while let Some(joined) = senders.join_next().await {
            let (acknowledged, last) = joined.expect("a sender");
            self.known.extend(acknowledged);
            self.unheard.push(last);
        }
        ready
    }

    /// Repeats requests without an answer. Returns also the milliseconds until the server was ready.
    async fn start_and_ask_again(&mut self) -> (Server, u128) {
        let begun = Instant::now();
        let server = Server::start(&self.db, &["--no-executors"]);
        let ready = begun.elapsed().as_millis();
        assert!(
            self.known.is_empty() || server.lines.iter().any(|line| line.contains("resumed")),
            "{:?}",
            server.lines
        );
        let (http, url) = (server.http(), server.url.clone());
        for key in self.unheard.drain(..) {
            let id = submit_with_key(&http, &url, &key).await.expect("nobody kills it now");
            let first = self.known.entry(key.clone()).or_insert_with(|| id.clone());
            assert_eq!(*first, id, "{key} was created twice");
        }
        (server, ready)
    }

    /// Answers how many tasks there are.
    async fn check_all(&mut self) -> usize {
        let (server, _) = self.start_and_ask_again().await;
        let client = server.client();
        let mut found = BTreeSet::new();
        let mut cursor = String::new();
        loop {
            let page = client.get(&format!("/api/v1/tasks?sort=submitted&limit=500{cursor}")).await.expect("a page");
            found.extend(
                page["items"].as_array().expect("items").iter().map(|it| it["id"].as_str().expect("an id").to_owned()),
            );
            let Some(next) = page["next_cursor"].as_str() else { break };
            cursor = format!("&cursor={next}");
        }
        let acknowledged: BTreeSet<String> = self.known.values().cloned().collect();
        let lost: Vec<&String> = acknowledged.difference(&found).collect();
        assert!(lost.is_empty(), "{} are gone: {lost:?}", lost.len());
        assert_eq!(found.len(), self.known.len(), "every task has one key and every key one task");
        for id in found.iter().step_by(found.len().div_ceil(50)) {
            let events = client.get(&format!("/api/v1/tasks/{id}/events")).await.expect("a log");
            let seqs: Vec<u64> =
                events["items"].as_array().expect("items").iter().filter_map(|it| it["seq"].as_u64()).collect();
            assert_eq!(seqs, (1..=seqs.len() as u64).collect::<Vec<_>>(), "gap-free: {events}");
        }
        server.kill();
        let connection = rusqlite::Connection::open(&self.db).expect("the file opens");
        let said: String = connection.query_row("pragma integrity_check", [], |row| row.get(0)).expect("checked");
        assert_eq!(said, "ok");
        found.len()
    }
}

/// Three servers on one PostgreSQL, workers on all of them, and a server that is killed in the middle.
#[tokio::test]
async fn three_servers_share_one_database_and_one_may_die() {
    let database = Database::create().await;
    let mut servers: Vec<Server> = (0..3).map(|_| Server::start(&database.url, &[])).collect();
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let mut workers = tokio::task::JoinSet::new();
    for (n, server) in servers.iter().enumerate().flat_map(|(n, server)| [(2 * n, server), (2 * n + 1, server)]) {
        let mut stopped = stopped.clone();
        let worker = Worker::new(server.client(), format!("w{n}")).concurrency(4).lease(Duration::from_secs(3)).handle(
            "flaky",
            |task| async move {
                tokio::time::sleep(Duration::from_millis(5)).await;
                if task.attempt_number == 1 {
                    Outcome::failed("not yet")
                } else {
                    Outcome::succeeded(json!(task.attempt))
                }
            },
        );
        workers.spawn(worker.run(async move {
            let _ = stopped.wait_for(|stopped| *stopped).await;
        }));
    }
    let mut ids = Vec::new();
    for round in 0..30 {
        let client = servers[round % 2].client();
        let tasks: Vec<Value> = (0..10)
            .map(|_| json!({"kind": "flaky", "retry": {"strategy": "fixed", "delay": "200ms", "max_retries": 5}}))
            .collect();
        let answer = client.submit(&json!({"tasks": tasks})).await.expect("submitted");
        ids.extend(
            answer["tasks"].as_array().expect("tasks").iter().map(|it| it["id"].as_str().expect("an id").to_owned()),
        );
        if round == 15 {
            servers.remove(2).kill();
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let client = servers[0].client();
    let begun = Instant::now();
    loop {
        let stats = client.get("/api/v1/stats").await.expect("stats");
        if stats["by_state"]["succeeded"] == 300 {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{stats}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // Everybody is seen from everywhere, once they have said that they live.
    loop {
        let seen = servers[1].client().get("/api/v1/admin/workers").await.expect("workers");
        let all = servers[1].client().get("/api/v1/admin/instances").await.expect("instances");
        let items = seen["items"].as_array().expect("items");
        let instances: std::collections::BTreeSet<&str> =
            items.iter().filter_map(|it| it["instance"].as_str()).collect();
        if instances.len() >= 2 && items.len() >= 4 && all["items"].as_array().is_some_and(|all| all.len() == 3) {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{seen} {all}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    for id in &ids {
        let task = servers[1].client().task(id).await.expect("every one is there");
        assert_eq!(task["state"], "succeeded", "{task}");
        let events = client.get(&format!("/api/v1/tasks/{id}/events?limit=500")).await.expect("a log");
        let seqs: Vec<u64> =
            events["items"].as_array().expect("items").iter().filter_map(|it| it["seq"].as_u64()).collect();
        assert_eq!(seqs, (1..=seqs.len() as u64).collect::<Vec<_>>(), "gap-free: {events}");
    }
    let _ = stop.send(true);
    workers.abort_all();
    drop(servers);
    database.drop().await;
}
