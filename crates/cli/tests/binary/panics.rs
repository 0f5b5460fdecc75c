//! A panic at every one of its points, under load: the process is gone with one line that names the place, a supervisor starts it
//! again, nothing that was acknowledged is lost, and what comes back works.
//!
//! Needs the feature `panic-points`. `COMEBACK_PANICS=all` (`make panics`) tries every point; without it some of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use comeback_client::Client;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::harness::{Server, file, submit_one, text, until_over};
use crate::postgres::Database;

/// The names of all points, by looking at the sources.
fn points() -> BTreeSet<String> {
    fn look(folder: &Path, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()) {
            if entry.is_dir() {
                look(&entry, found);
            } else if entry.extension().is_some_and(|it| it == "rs") {
                let source = std::fs::read_to_string(&entry).expect("a source");
                let names = source.split("panic_point!(\"").skip(1).filter_map(|rest| rest.split('"').next());
                found.extend(names.map(str::to_owned));
            }
        }
    }
    let mut found = Vec::new();
    for name in ["store", "engine", "server"] {
        look(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name).join("src"), &mut found);
    }
    let distinct: BTreeSet<String> = found.iter().cloned().collect();
    assert_eq!(distinct.len(), found.len(), "every name stands for one place");
    distinct
}

#[test]
fn there_are_fifty_points_and_more() {
    let points = points();
    let on_sqlite = points.iter().filter(|name| !name.starts_with("postgres-")).count();
    assert!(on_sqlite >= 50, "{on_sqlite}: {points:?}");
}

/// What clients were told, whatever became of the servers.
#[derive(Default)]
struct Told {
    /// Tasks by the key under which they were submitted.
    tasks: Mutex<BTreeMap<String, String>>,
    /// Keys of requests that nobody answered.
    unheard: Mutex<Vec<String>>,
    /// Tasks whose success was taken.
    succeeded: Mutex<BTreeSet<String>>,
}

/// A database, a server on it at a time, and clients that outlive them.
struct World {
    db: String,
    told: Arc<Told>,
    sink: String,
    keys: AtomicU64,
}

const OUTER: &str = "\
steps:
  first: {queue: flow, payload: 1}
  many:
    needs: [first]
    if: steps.first.state == 'succeeded'
    foreach: [1, 2]
    queue: flow
  inner:
    needs: [first]
    workflow: {path: inner}
";

impl World {
    fn command(&self, stderr: File) -> Command {
        let mut command = Server::command(&self.db, "127.0.0.1:0");
        command.args(["--allow-commands", "--allow-private-networks", "--retention", "1d"]);
        command.args(["--look-every", "repair=1s"]).stderr(stderr);
        command
    }

    /// Answers the milliseconds until it was ready, too.
    fn start(&self, folder: &Path) -> (Server, u128) {
        let begun = Instant::now();
        let stderr = File::create(folder.join("stderr")).expect("a file");
        let server = Server::from(self.command(stderr)).expect("it serves again");
        (server, begun.elapsed().as_millis())
    }

    async fn submit_under(&self, client: &reqwest::Client, url: &str, key: &str) -> Option<String> {
        let request = client.post(format!("{url}/api/v1/tasks")).header("idempotency-key", key);
        let task = json!({"kind": "k", "retry": {"strategy": "fixed", "delay": "50ms", "max_retries": 20}});
        let response = request.json(&task).send().await.ok()?;
        if response.status() != 201 {
            return None;
        }
        let answer: Value = response.json().await.ok()?;
        answer["tasks"][0]["id"].as_str().map(str::to_owned)
    }

    /// What was not answered is asked again: it is there once.
    async fn ask_again(&self, server: &Server) {
        let unheard = std::mem::take(&mut *self.told.unheard.lock());
        for key in unheard {
            let id = self.submit_under(&server.http(), &server.url, &key).await.expect("nobody panics now");
            let mut tasks = self.told.tasks.lock();
            assert_eq!(*tasks.entry(key.clone()).or_insert_with(|| id.clone()), id, "{key} was made twice");
        }
    }

    /// Everything at once, until the server is gone. No answer is a failure here: the server may go at any moment.
    async fn load(self: &Arc<Self>, url: &str, point: &str, gone: &Arc<AtomicBool>) {
        let mut clients = tokio::task::JoinSet::new();
        // The first of them sets up what both need.
        let client = Client::new(url.to_owned()).expect("an address");
        let http = reqwest::Client::builder().timeout(Duration::from_secs(5)).build().expect("a client");
        for _ in 0..3 {
            let (world, http, url, gone) = (self.clone(), http.clone(), url.to_owned(), gone.clone());
            clients.spawn(async move {
                while !gone.load(Ordering::SeqCst) {
                    let key = format!("key-{}", world.keys.fetch_add(1, Ordering::SeqCst));
                    match world.submit_under(&http, &url, &key).await {
                        Some(id) => drop(world.told.tasks.lock().insert(key, id)),
                        None => world.told.unheard.lock().push(key),
                    }
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            });
        }
        for n in 0..2 {
            let (told, client, gone) = (self.told.clone(), client.clone(), gone.clone());
            clients.spawn(async move { work(&told, &client, &gone, n).await });
        }
        let (world, client, gone, point) = (self.clone(), client.clone(), gone.clone(), point.to_owned());
        let url = url.to_owned();
        clients.spawn(async move { world.everything_else(&client, &http, &url, &point, &gone).await });
        while clients.join_next().await.is_some_and(|joined| joined.map(|()| true).expect("a client")) {}
    }

    /// What the other points need to be passed.
    async fn everything_else(
        &self,
        client: &Client,
        http: &reqwest::Client,
        url: &str,
        point: &str,
        gone: &AtomicBool,
    ) {
        let _ = client.put_yaml("/api/v1/workflows/inner", "steps:\n  only: {queue: flow}\n").await;
        let _ = client.put_yaml("/api/v1/workflows/outer", OUTER).await;
        let often = json!({"every": "1s", "task": {"kind": "tick", "queue": "cron"}});
        let _ = client.put("/api/v1/schedules/often", &often).await;
        let all = json!({"url": self.sink, "types": ["task.*", "attempt.*"], "filter": "kind:told"});
        let _ = client.put("/api/v1/subscriptions/all", &all).await;
        let much = json!({"types": ["attempt.failed"], "threshold": 3, "window": "1m"});
        let _ = client.put("/api/v1/alerts/much", &much).await;
        let stream = http.get(format!("{url}/api/v1/events/stream")).timeout(Duration::from_secs(60)).send();
        let stream = tokio::spawn(stream);
        let mut round = 0;
        while !gone.load(Ordering::SeqCst) {
            round += 1;
            let tasks = json!({"tasks": [
                {"kind": "told", "executor": {"type": "http", "url": self.sink}},
                {"kind": "hooked", "executor": {"type": "hook", "start": {"url": self.sink}}, "timeout": "1s"},
                {"kind": "timer", "executor": {"type": "timer"}, "delay": "50ms"},
                {"kind": "process", "executor": {"type": "command", "run": ["sleep", "0.7"]}},
                {"kind": "late", "queue": "nobody", "deadline": "200ms"},
                {"kind": "slow", "queue": "lazy", "timeout": "150ms"},
                {"kind": "lost", "queue": "lazy"},
            ]});
            let _ = client.submit(&tasks).await;
            let _ = client.lease(&json!({"worker": "lazy", "queues": ["lazy"], "limit": 10, "lease": "1s"})).await;
            let _ = client.post("/api/v1/executions", &json!({"workflow": "outer"})).await;
            let bulk = json!({"action": "cancel", "filter": "kind:late"});
            let _ = client.post("/api/v1/tasks/bulk", &bulk).await;
            let event = http.post(format!("{url}/api/v1/events")).header("idempotency-key", format!("{point}-{round}"));
            let _ = event.json(&json!({"type": "something.happened"})).send().await;
            if point == "sqlite-checkpoint" {
                let big = json!({"kind": "big", "queue": "nobody", "payload": "x".repeat(200_000)});
                let _ = client.submit(&json!({"tasks": vec![big; 20]})).await;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        stream.abort();
    }

    /// One point: the server passes it, is gone, and is back. Answers how long it took to be ready again.
    async fn panics_at(self: &Arc<Self>, point: &str, folder: &Path) -> u128 {
        let begun = Instant::now();
        let path = folder.join("stderr-of-the-panic");
        let mut command = self.command(File::create(&path).expect("a file"));
        command.env("COMEBACK_PANIC_AT", format!("{point}:1")).stdout(Stdio::piped());
        let gone = Arc::new(AtomicBool::new(false));
        let status = match Server::from(command) {
            // It was passed before the server served.
            Err(_) => None,
            Ok(mut server) => {
                let load = {
                    let (world, url, point, gone) = (self.clone(), server.url.clone(), point.to_owned(), gone.clone());
                    tokio::spawn(async move { world.load(&url, &point, &gone).await })
                };
                let status = loop {
                    if let Some(status) = server.child.try_wait().expect("asked") {
                        break status;
                    }
                    assert!(begun.elapsed() < Duration::from_secs(60), "{point} was not passed");
                    assert!(!load.is_finished(), "{point}: the load ended");
                    tokio::time::sleep(Duration::from_millis(2)).await;
                };
                gone.store(true, Ordering::SeqCst);
                load.await.expect("the load ends");
                Some(status)
            }
        };
        assert!(status.is_none_or(|status| status.signal() == Some(6)), "{point}: {status:?}");
        let said = std::fs::read_to_string(&path).expect("its log");
        let lines: Vec<&str> = said.lines().filter(|line| line.contains("comeback::panic")).collect();
        assert_eq!(lines.len(), 1, "{point}: one line tells of it: {said}");
        assert!(lines[0].contains(&format!("panic point {point}")), "{}", lines[0]);
        assert!(lines[0].contains("place=crates/") && lines[0].contains("thread="), "{}", lines[0]);
        let is_thread = point.starts_with("sqlite-writer") || point == "sqlite-checkpoint";
        let by_writer = ["sqlite-submit", "sqlite-claim", "sqlite-apply", "sqlite-apply-spawning", "sqlite-prune"];
        if !is_thread && !by_writer.contains(&point) && point != "server-accept" && point != "sqlite-read" {
            assert!(lines[0].contains("running="), "{point}: the request or the task is named: {}", lines[0]);
        }
        let (server, ready) = self.start(folder);
        self.ask_again(&server).await;
        self.is_no_zombie(&server, point).await;
        drop(server);
        ready
    }

    /// It answers, and it works.
    async fn is_no_zombie(&self, server: &Server, point: &str) {
        let client = server.client();
        client.get("/readyz").await.unwrap_or_else(|error| panic!("{point}: {error}"));
        let queue = format!("after-{point}");
        let task = json!({"kind": "k", "queue": queue, "delay": "50ms", "retry": "fixed(50ms, 2 retries)"});
        let id = submit_one(&client, task).await;
        for outcome in ["failed", "succeeded"] {
            let asked = json!({"worker": "w", "queues": [queue], "limit": 1, "wait": 10});
            let leased = client.lease(&asked).await.expect("leased");
            let lease = leased["leases"][0]["lease"].clone();
            assert!(lease.is_string(), "{point}: {leased}");
            let ended = json!({"lease": lease, "outcome": outcome, "error": {"message": "x"}});
            let ended = if outcome == "failed" { ended } else { json!({"lease": lease, "outcome": outcome}) };
            client.report(&[ended]).await.expect("reported");
        }
        assert_eq!(until_over(&client, &id).await["state"], "succeeded", "{point}");
    }

    async fn check_all(&self, folder: &Path) -> (usize, usize) {
        let (server, _) = self.start(folder);
        self.ask_again(&server).await;
        let client = server.client();
        let (tasks, succeeded) = (self.told.tasks.lock().clone(), self.told.succeeded.lock().clone());
        let acknowledged: BTreeSet<&String> = tasks.values().chain(&succeeded).collect();
        for id in &acknowledged {
            let task = client.task(id).await.unwrap_or_else(|error| panic!("{id} was acknowledged: {error}"));
            if succeeded.contains(*id) {
                assert_eq!(task["state"], "succeeded", "its success was acknowledged: {task}");
            }
        }
        drop(server);
        let checked = Command::new(env!("CARGO_BIN_EXE_comeback"))
            .args(["db", "check", "--db", &self.db])
            .output()
            .expect("runs");
        assert!(checked.status.success(), "{}{}", text(&checked.stdout), text(&checked.stderr));
        (tasks.len(), succeeded.len())
    }
}

/// A worker: it shows signs of life, fails first attempts, and succeeds with the others.
async fn work(told: &Told, client: &Client, gone: &AtomicBool, n: usize) {
    while !gone.load(Ordering::SeqCst) {
        let asked = json!({"worker": format!("w{n}"), "queues": ["default", "flow", "cron"], "limit": 5, "wait": 1});
        let Ok(leased) = client.lease(&asked).await else {
            tokio::time::sleep(Duration::from_millis(5)).await;
            continue;
        };
        let leases = leased["leases"].as_array().cloned().unwrap_or_default();
        let tokens: Vec<String> = leases.iter().filter_map(|it| it["lease"].as_str().map(str::to_owned)).collect();
        if tokens.is_empty() {
            continue;
        }
        let _ = client.heartbeat(&tokens, 30).await;
        let ends: Vec<Value> = leases
            .iter()
            .map(|it| match it["task"]["attempt_number"].as_u64() == Some(1) && it["task"]["kind"] == "k" {
                true => json!({"lease": it["lease"], "outcome": "failed", "error": {"message": "not yet"}}),
                false => json!({"lease": it["lease"], "outcome": "succeeded"}),
            })
            .collect();
        let Ok(answer) = client.report(&ends).await else { continue };
        for (lease, answer) in leases.iter().zip(answer["reports"].as_array().into_iter().flatten()) {
            if answer["state"] == "succeeded"
                && let Some(id) = lease["task"]["id"].as_str()
            {
                told.succeeded.lock().insert(id.to_owned());
            }
        }
    }
}

async fn sink() -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move { axum::serve(listener, axum::Router::new().fallback(|| async { "ok" })).await });
    format!("http://{address}/")
}

/// Those to try: all of them, or some.
fn chosen(all: Vec<String>) -> Vec<String> {
    match std::env::var("COMEBACK_PANICS").as_deref() {
        Ok("all") => all,
        Ok(names) => names.split(',').map(str::to_owned).filter(|name| all.contains(name)).collect(),
        Err(_) => all.into_iter().step_by(8).collect(),
    }
}

async fn every_point(db: String, points: Vec<String>) {
    let folder = tempfile::tempdir().expect("a folder");
    let is_file = !db.starts_with("postgres");
    let world = Arc::new(World { db, told: Arc::default(), sink: sink().await, keys: AtomicU64::new(0) });
    let is_release = env!("CARGO_BIN_EXE_comeback").contains("/release/");
    let mut ready = Vec::new();
    for point in &points {
        let begun = Instant::now();
        let took = world.panics_at(point, folder.path()).await;
        println!("{point:<36} back after {took} ms, {} ms in all", begun.elapsed().as_millis());
        // A server on PostgreSQL connects first, and to two cores that the database shares with it.
        let most = match (is_release, is_file) {
            (true, true) => 500,
            (true, false) => 1_500,
            (false, _) => 10_000,
        };
        assert!(took <= most, "{point}: back after {took} ms");
        ready.push(took);
    }
    let (tasks, succeeded) = world.check_all(folder.path()).await;
    assert!(tasks > points.len() / 2 && (points.len() < 5 || succeeded > 0), "{tasks} submits, {succeeded} successes");
    ready.sort_unstable();
    if let (Some(middle), Some(most)) = (ready.get(ready.len() / 2), ready.last()) {
        println!(
            "{} panics, {tasks} tasks and {succeeded} successes acknowledged, none lost; back after p50 {middle} ms, at most {most} ms",
            points.len()
        );
    }
}

#[cfg_attr(not(feature = "panic-points"), ignore = "needs the feature panic-points")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_panic_at_any_point_the_server_is_back_and_nothing_is_lost() {
    let folder = tempfile::tempdir().expect("a folder");
    let on_sqlite = points().into_iter().filter(|name| !name.starts_with("postgres-")).collect();
    every_point(file(folder.path()), chosen(on_sqlite)).await;
}

#[cfg_attr(not(feature = "panic-points"), ignore = "needs the feature panic-points")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_panic_at_a_point_of_postgres_the_server_is_back_and_nothing_is_lost() {
    let database = Database::create().await;
    let all: Vec<String> = points().into_iter().filter(|name| !name.starts_with("sqlite-")).collect();
    let points = match std::env::var("COMEBACK_PANICS") {
        Ok(_) => chosen(all),
        Err(_) => all.into_iter().filter(|name| name.starts_with("postgres-submit")).collect(),
    };
    every_point(database.url.clone(), points).await;
    database.drop().await;
}

/// The same without the end of the process: as a library meets it, a loop that panics is started again.
#[cfg_attr(not(feature = "panic-points"), ignore = "needs the feature panic-points")]
#[tokio::test]
async fn a_loop_that_panics_in_a_process_that_lives_on_is_started_again() {
    let folder = tempfile::tempdir().expect("a folder");
    for point in ["loop-timeout", "combiner-after-batch", "sqlite-writer-before-transaction"] {
        let mut command = Server::command(&file(folder.path()), "127.0.0.1:0");
        command
            .env("COMEBACK_PANIC_AT", format!("{point}:4"))
            .env("COMEBACK_TEST_PANICS", "unwind")
            .stderr(Stdio::null());
        let server = Server::from(command).expect("it serves");
        let client = server.client();
        for n in 0..8 {
            let Ok(answer) = client.submit(&json!({"kind": "k", "timeout": "50ms"})).await else { continue };
            let id = answer["tasks"][0]["id"].as_str().expect("an id").to_owned();
            let _ = client.lease(&json!({"worker": "w", "limit": 10, "wait": 1})).await;
            if n >= 4 {
                let begun = Instant::now();
                while client.task(&id).await.is_ok_and(|task| task["ended_at"].is_null()) {
                    assert!(begun.elapsed() < Duration::from_secs(30), "{point}: the loop does not go on");
                    let _ = client.lease(&json!({"worker": "w", "limit": 10})).await;
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
        client.get("/readyz").await.unwrap_or_else(|error| panic!("{point}: {error}"));
    }
}
