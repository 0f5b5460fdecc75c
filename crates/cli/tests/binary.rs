//! Through the real binary: a server is started, spoken to over HTTP and by its own command line, killed, and started again.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use comeback_client::{Client, Error, Outcome, Worker};
use serde_json::{Value, json};

struct Server {
    child: Child,
    url: String,
    lines: Vec<String>,
}

impl Server {
    fn start(db: &str, more: &[&str]) -> Server {
        let mut child = Command::new(env!("CARGO_BIN_EXE_comeback"))
            .args(["serve", "--listen", "127.0.0.1:0", "--db", db])
            .args(more)
            .env("RUST_LOG", "warn")
            .stdout(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let mut lines = Vec::new();
        let mut reader = BufReader::new(child.stdout.take().expect("its output"));
        loop {
            let mut line = String::new();
            assert!(reader.read_line(&mut line).expect("a line") > 0, "it ended before it served: {lines:?}");
            let last = line.trim_start().starts_with("resumed") || line.trim_start().starts_with("ready");
            lines.push(line);
            if last {
                break;
            }
        }
        let api = lines.iter().find_map(|line| line.trim().strip_prefix("API")).expect("an address").trim().to_owned();
        std::thread::spawn(move || std::io::copy(&mut reader, &mut std::io::sink()));
        Server { child, url: api.trim_end_matches("/api/v1").to_owned(), lines }
    }

    fn client(&self) -> Client {
        Client::new(self.url.clone()).expect("an address")
    }

    /// For what the client would never send.
    fn http(&self) -> reqwest::Client {
        self.client();
        reqwest::Client::new()
    }

    fn cli(&self, args: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_comeback"))
            .args(args)
            .env("COMEBACK_SERVER", &self.url)
            .output()
            .expect("the binary runs")
    }

    fn kill(mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("gone");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn file(folder: &Path) -> String {
    folder.join("comeback.db").to_string_lossy().into_owned()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

async fn lease_one(client: &Client) -> Value {
    let leased = client.lease(&json!({"worker": "w", "wait": 10})).await.expect("leased");
    leased["leases"][0].clone()
}

async fn report(client: &Client, lease: &Value, mut report: Value) -> Value {
    report["lease"] = lease["lease"].clone();
    client.report(&[report]).await.expect("reported")["reports"][0].clone()
}

#[tokio::test]
async fn a_task_fails_comes_back_and_tells_why() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(&file(folder.path()), &[]);
    let client = server.client();
    let task = json!({"kind": "hello", "payload": {"n": 1}, "retry": {"strategy": "fixed", "delay": "200ms", "max_retries": 3}});
    let submitted = client.submit(&task).await.expect("submitted");
    let id = submitted["tasks"][0]["id"].as_str().expect("an id").to_owned();
    assert_eq!(submitted["tasks"][0]["state"], "pending");

    let lease = lease_one(&client).await;
    assert_eq!((&lease["task"]["id"], &lease["task"]["payload"]["n"]), (&json!(id), &json!(1)));
    let failed =
        report(&client, &lease, json!({"outcome": "failed", "error": {"status": 503, "message": "boom"}})).await;
    assert_eq!((&failed["state"], &failed["attempt"]), (&json!("retry_pending"), &json!(1)));
    assert!(failed["next_retry_at"].is_string());
    let again = report(&client, &lease, json!({"outcome": "succeeded"})).await;
    assert_eq!(again["problem"]["error"], "LEASE_LOST", "another word about a run that is over");

    let why = client.get(&format!("/api/v1/tasks/{id}/why")).await.expect("why");
    assert!(why["text"].as_str().expect("words").contains("503"), "{why}");
    let forecast = client.get(&format!("/api/v1/tasks/{id}/forecast")).await.expect("a forecast");
    assert!(!forecast["attempts"].as_array().expect("attempts").is_empty());

    let lease = lease_one(&client).await;
    assert_eq!((&lease["task"]["attempt_number"], &lease["task"]["is_retry"]), (&json!(2), &json!(true)));
    let done = report(&client, &lease, json!({"outcome": "succeeded", "result": {"ok": true}})).await;
    assert_eq!(done["state"], "succeeded");
    let shown = client.task(&id).await.expect("shown");
    assert_eq!(
        (&shown["state"], &shown["result"]["ok"], &shown["total_attempts"]),
        (&json!("succeeded"), &json!(true), &json!(2))
    );
    let attempts = client.get(&format!("/api/v1/tasks/{id}/attempts")).await.expect("attempts");
    let outcomes: Vec<&Value> = attempts["items"].as_array().expect("items").iter().map(|it| &it["outcome"]).collect();
    assert_eq!(outcomes, ["failed", "succeeded"]);
    let events = client.get(&format!("/api/v1/events?task_id={id}")).await.expect("events");
    let kinds: Vec<&str> =
        events["items"].as_array().expect("items").iter().filter_map(|it| it["type"].as_str()).collect();
    assert!(kinds.contains(&"task.retry_scheduled") && kinds.contains(&"task.succeeded"), "{kinds:?}");
    let seqs: Vec<u64> =
        events["items"].as_array().expect("items").iter().filter_map(|it| it["seq"].as_u64()).collect();
    assert_eq!(seqs, (1..=seqs.len() as u64).collect::<Vec<_>>(), "gap-free");
    let metrics =
        server.http().get(format!("{}/metrics", server.url)).send().await.expect("sent").text().await.expect("text");
    for line in [
        "comeback_tasks_created_total 1",
        "comeback_tasks_retried_total{kind=\"automatic\"} 1",
        "comeback_tasks_completed_total{outcome=\"succeeded\"} 1",
        "comeback_attempts_total{outcome=\"succeeded\",attempt=\"2\"} 1",
        "comeback_tasks_by_status{namespace=\"default\",status=\"succeeded\"} 1",
    ] {
        assert!(metrics.lines().any(|it| it == line), "{line} is missing:\n{metrics}");
    }
}

#[tokio::test]
async fn bad_requests_are_answered_with_precise_problems() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(&file(folder.path()), &[]);
    let client = server.client();
    let cases = [
        (json!({}), "VALIDATION_FAILED", "kind"),
        (json!({"kind": ""}), "VALIDATION_FAILED", "kind"),
        (json!({"kind": "k", "colour": "red"}), "VALIDATION_FAILED", "colour"),
        (json!({"kind": "k", "retry": {"max_retries": -1}}), "VALIDATION_FAILED", "retry"),
        (json!({"kind": "k", "retry": {"strategy": "sometimes"}}), "VALIDATION_FAILED", "retry.strategy"),
        (json!({"kind": "k", "retry": "exp(5)"}), "VALIDATION_FAILED", "retry"),
        (json!({"kind": "k", "delay": "soon"}), "VALIDATION_FAILED", "delay"),
        (json!({"kind": "k", "executor": {"type": "magic"}}), "VALIDATION_FAILED", "executor.type"),
        (json!({"kind": "k", "hooks": {}}), "VALIDATION_FAILED", "hooks"),
        (json!({"tasks": [{"kind": "k"}, {"kind": 7}]}), "VALIDATION_FAILED", "tasks[1].kind"),
        (json!({"tasks": [{"kind": "k", "key": "a", "needs": ["b"]}]}), "VALIDATION_FAILED", "needs"),
        (json!([]), "VALIDATION_FAILED", ""),
    ];
    for (body, code, path) in cases {
        let Err(Error::Refused(problem)) = client.submit(&body).await else { panic!("{body} was taken") };
        assert_eq!((problem.status, problem.error.as_str()), (400, code), "{body}: {}", problem.detail);
        assert!(problem.detail.contains(path), "{body}: {}", problem.detail);
        assert!(!problem.instance.is_empty());
    }
    let stats = client.get("/api/v1/stats").await.expect("stats");
    assert_eq!(stats["total"], 0, "nothing was written");
    for (path, status) in [
        ("/api/v1/tasks/nonsense", 404),
        ("/api/v1/tasks/00000000-0000-7000-8000-000000000000", 404),
        ("/api/v1/nothing", 404),
        ("/api/v1/tasks?q=state:nonsense", 400),
        ("/api/v1/tasks?limit=0", 400),
        ("/api/v1/tasks?cursor=x", 400),
        ("/api/v1/tasks?colour=red", 400),
        ("/api/v1/tasks?q=%zz", 400),
        ("/api/v1/events?types=nonsense", 400),
        ("/api/v1/upcoming?within=soon", 400),
    ] {
        let Err(Error::Refused(problem)) = client.get(path).await else { panic!("{path} was answered") };
        assert_eq!(problem.status, status, "{path}: {}", problem.detail);
    }
    let http = server.http();
    let form = http.post(format!("{}/api/v1/tasks", server.url)).body("kind=k").send().await.expect("sent");
    assert_eq!(form.status(), 415, "what a page could send unasked is not read");
    let other_host = http.get(format!("{}/api/v1/stats", server.url)).header("host", "evil.example");
    assert_eq!(other_host.send().await.expect("sent").status(), 403);
    let wrong_method = http.delete(format!("{}/api/v1/tasks", server.url)).send().await.expect("sent");
    assert_eq!(wrong_method.status(), 405);
    assert_eq!(wrong_method.headers()["content-type"], "application/problem+json");
}

#[tokio::test]
async fn the_same_idempotency_key_creates_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(&file(folder.path()), &[]);
    let http = server.http();
    let send = |body: &'static str| {
        let request = http.post(format!("{}/api/v1/tasks", server.url)).header("content-type", "application/json");
        async move { request.header("idempotency-key", "one").body(body).send().await.expect("sent") }
    };
    let first: Value = send(r#"{"kind":"k"}"#).await.json().await.expect("json");
    let second: Value = send(r#"{"kind":"k"}"#).await.json().await.expect("json");
    assert_eq!(first, second);
    let other = send(r#"{"kind":"other"}"#).await;
    assert_eq!(other.status(), 409);
    assert_eq!(other.json::<Value>().await.expect("json")["error"], "IDEMPOTENCY_MISMATCH");
}

/// One submit under a key of its own; nothing when nobody answered.
async fn submit_with_key(http: &reqwest::Client, url: &str, key: &str) -> Option<String> {
    let request = http.post(format!("{url}/api/v1/tasks")).header("idempotency-key", key);
    let response = request.json(&json!({"kind": "k", "retry": 5})).send().await.ok()?;
    assert_eq!(response.status(), 201, "{key}");
    let answer: Value = response.json().await.ok()?;
    answer["tasks"][0]["id"].as_str().map(str::to_owned)
}

/// R-I1, R-I9: kill -9 under load, again and again. Nothing acknowledged is lost, and a request that is sent again under its key
/// creates nothing twice. `make chaos` runs many more rounds.
#[tokio::test]
async fn what_was_acknowledged_is_there_after_every_kill() {
    let kills: u64 = std::env::var("COMEBACK_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(100);
    let folder = tempfile::tempdir().expect("a folder");
    let db = file(folder.path());
    let mut known: std::collections::BTreeMap<String, String> = std::collections::BTreeMap::new();
    let mut unheard: Vec<String> = Vec::new();
    let mut starts = Vec::new();
    for round in 0..=kills {
        let begun = Instant::now();
        let server = Server::start(&db, &["--no-executors"]);
        starts.push(begun.elapsed().as_millis());
        assert!(known.is_empty() || server.lines.iter().any(|line| line.contains("resumed")), "{:?}", server.lines);
        let (http, url) = (server.http(), server.url.clone());
        for key in unheard.drain(..) {
            let id = submit_with_key(&http, &url, &key).await.expect("nobody kills it now");
            let first = known.entry(key.clone()).or_insert_with(|| id.clone());
            assert_eq!(*first, id, "{key} was created twice");
        }
        if round == kills {
            break;
        }
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
            known.extend(acknowledged);
            unheard.push(last);
        }
    }
    assert!(known.len() as u64 > kills, "{} were acknowledged", known.len());
    starts.sort_unstable();
    println!(
        "{} kills, {} tasks; ready after p50 {} ms, p99 {} ms",
        kills,
        known.len(),
        starts[starts.len() / 2],
        starts[starts.len() * 99 / 100]
    );
    let server = Server::start(&db, &["--no-executors"]);
    let client = server.client();
    let mut found = std::collections::BTreeSet::new();
    let mut cursor = String::new();
    loop {
        let page = client.get(&format!("/api/v1/tasks?sort=submitted&limit=500{cursor}")).await.expect("a page");
        found.extend(
            page["items"].as_array().expect("items").iter().map(|it| it["id"].as_str().expect("an id").to_owned()),
        );
        let Some(next) = page["next_cursor"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    let acknowledged: std::collections::BTreeSet<String> = known.into_values().collect();
    let lost: Vec<&String> = acknowledged.difference(&found).collect();
    assert!(lost.is_empty(), "{} are gone: {lost:?}", lost.len());
    assert_eq!(found.len(), acknowledged.len(), "every task has one key and every key one task");
    for id in found.iter().step_by(found.len().div_ceil(50)) {
        let events = client.get(&format!("/api/v1/tasks/{id}/events")).await.expect("a log");
        let seqs: Vec<u64> =
            events["items"].as_array().expect("items").iter().filter_map(|it| it["seq"].as_u64()).collect();
        assert_eq!(seqs, (1..=seqs.len() as u64).collect::<Vec<_>>(), "gap-free: {events}");
    }
}

#[tokio::test]
async fn two_weeks_pass_in_a_moment_on_a_virtual_clock() {
    let folder = tempfile::tempdir().expect("a folder");
    let db = file(folder.path());
    let server = Server::start(&db, &["--clock", "virtual"]);
    let client = server.client();
    client.submit(&json!({"kind": "kyc", "retry": {"schedule": ["7d", "14d"]}})).await.expect("submitted");
    let mut before = client.get("/api/v1/clock").await.expect("a clock")["now"].clone();
    for _ in 0..2 {
        let lease = lease_one(&client).await;
        let failed = report(&client, &lease, json!({"outcome": "failed", "error": "not yet"})).await;
        assert_eq!(failed["state"], "retry_pending");
        let moved = client.post("/api/v1/clock/advance", &json!({"to": "next"})).await.expect("moved");
        assert!(moved["now"].as_str() > before.as_str());
        before = moved["now"].clone();
    }
    let lease = lease_one(&client).await;
    assert_eq!(lease["task"]["attempt_number"], 3);
    server.kill();
    let server = Server::start(&db, &["--clock", "virtual"]);
    let after = server.client().get("/api/v1/clock").await.expect("a clock")["now"].clone();
    assert!(after.as_str() >= before.as_str(), "a restart never goes back");
    let real = Server::start(&folder.path().join("real.db").to_string_lossy(), &[]);
    let refused = real.client().post("/api/v1/clock/advance", &json!({"by": "1d"})).await;
    assert!(matches!(refused, Err(Error::Refused(problem)) if problem.status == 400));
}

#[tokio::test]
async fn keys_open_and_close_the_door() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(&file(folder.path()), &[]);
    let open = server.client();
    assert!(
        matches!(open.post("/api/v1/keys", &json!({"role": "viewer"})).await, Err(Error::Refused(_))),
        "an admin's first"
    );
    let make = |role: &str| json!({"role": role, "namespace": "default"});
    let admin = open.post("/api/v1/keys", &json!({"role": "admin", "namespace": "*"})).await.expect("made");
    let with = |key: &Value| server.client().with_key(key["key"].as_str().map(str::to_owned));
    let admin = with(&admin);
    let Err(Error::Refused(problem)) = open.get("/api/v1/stats").await else { panic!("nobody asked for a key") };
    assert_eq!(problem.status, 401);
    let worker = with(&admin.post("/api/v1/keys", &make("worker")).await.expect("made"));
    let viewer_key = admin.post("/api/v1/keys", &make("viewer")).await.expect("made");
    let viewer = with(&viewer_key);
    let submitter = with(&admin.post("/api/v1/keys", &make("submitter")).await.expect("made"));
    let status = |answer: Result<Value, Error>| {
        answer.err().and_then(|error| error.problem().map(|it| it.status)).unwrap_or(200)
    };
    let task = json!({"kind": "k"});
    assert_eq!(status(submitter.submit(&task).await), 200);
    assert_eq!(status(viewer.submit(&task).await), 403);
    assert_eq!(status(worker.submit(&task).await), 403);
    assert_eq!(status(viewer.get("/api/v1/tasks").await), 200);
    assert_eq!(status(worker.get("/api/v1/tasks").await), 403);
    assert_eq!(status(worker.lease(&json!({"worker": "w"})).await), 200);
    assert_eq!(status(submitter.lease(&json!({"worker": "w"})).await), 403);
    assert_eq!(status(viewer.get("/api/v1/keys").await), 403);
    let elsewhere = viewer.clone().in_namespace(Some("other".into()));
    assert_eq!(status(elsewhere.get("/api/v1/tasks").await), 403);
    let id = viewer_key["id"].as_str().expect("an id");
    admin.delete(&format!("/api/v1/keys/{id}")).await.expect("revoked");
    assert_eq!(status(viewer.get("/api/v1/tasks").await), 401);
}

#[test]
fn a_server_without_keys_does_not_listen_outside() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = Command::new(env!("CARGO_BIN_EXE_comeback"))
        .args(["serve", "--listen", "0.0.0.0:0", "--db", &file(folder.path())])
        .output()
        .expect("it runs");
    assert_eq!(output.status.code(), Some(4));
    let said = text(&output.stderr);
    assert!(said.starts_with("error:") && said.contains("why:") && said.contains("do:"), "{said}");
}

#[test]
fn the_command_line_says_what_happens() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(&file(folder.path()), &[]);
    let enqueued = server.cli(&["enqueue", "hello", "--data", "{\"a\": 1}", "--retry", "exp(1s, x2, 3 retries)"]);
    assert!(enqueued.status.success(), "{}", text(&enqueued.stderr));
    let id = text(&enqueued.stdout).split_whitespace().next().expect("an id").to_owned();
    let short = &id[id.len() - 8..];
    let listed = server.cli(&["task", "list", "state:pending"]);
    assert!(
        text(&listed.stdout).contains(short) && text(&listed.stdout).contains("○ pending"),
        "{}",
        text(&listed.stdout)
    );
    let why = server.cli(&["task", "why", short]);
    assert!(text(&why.stdout).contains("nothing was decided"), "{}{}", text(&why.stdout), text(&why.stderr));
    assert!(server.cli(&["task", "cancel", short]).status.success());
    let again = server.cli(&["task", "cancel", short]);
    assert_eq!(again.status.code(), Some(2), "{}", text(&again.stderr));
    assert_eq!(server.cli(&["task", "get", "ffffffff"]).status.code(), Some(3));
    let stats: Value = serde_json::from_str(&text(&server.cli(&["stats", "--json"]).stdout)).expect("json");
    assert_eq!(stats["by_state"]["canceled"], 1);
    let explained = server.cli(&["policy", "explain", "exp(60s, x2, max 1h, 5 retries)"]);
    assert!(text(&explained.stdout).contains("6 executions"), "{}", text(&explained.stdout));
    let simulated = server.cli(&["policy", "simulate", "schedule(7d, 14d)"]);
    assert!(text(&simulated.stdout).contains("after 21d"), "{}", text(&simulated.stdout));
    assert_eq!(server.cli(&["policy", "explain", "often(1s)"]).status.code(), Some(2));
    let paused = server.cli(&["loop", "pause", "reap", "--for", "10m", "--note", "looking"]);
    assert!(text(&paused.stdout).contains("⏸ paused, resumes in"), "{}", text(&paused.stdout));
    assert_eq!(server.cli(&["status"]).status.code(), Some(8), "a paused loop wants attention");
    let nobody = Command::new(env!("CARGO_BIN_EXE_comeback"))
        .args(["task", "list", "--server", "http://127.0.0.1:1"])
        .output()
        .expect("it runs");
    assert_eq!(nobody.status.code(), Some(7));
    let said = text(&nobody.stderr);
    assert!(said.contains("error: cannot reach") && said.contains("do:  comeback serve"), "{said}");
}

#[test]
fn a_command_is_run_until_it_succeeds() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(&file(folder.path()), &[]);
    let run =
        server.cli(&["run", "--retry", "fixed(200ms, 5 retries)", "--", "sh", "-c", "test $COMEBACK_ATTEMPT -ge 3"]);
    let said = text(&run.stderr);
    assert_eq!(run.status.code(), Some(0), "{said}");
    assert!(
        said.contains("attempt 1/6  exit 1") && said.contains("attempt 3/6  ok") && said.contains("recovered"),
        "{said}"
    );
    let run = server.cli(&["run", "--retry", "immediate(2 retries)", "--", "false"]);
    assert_eq!(run.status.code(), Some(10), "{}", text(&run.stderr));
    let run = server.cli(&["run", "--", "no-such-command-anywhere"]);
    assert_eq!(run.status.code(), Some(10), "{}", text(&run.stderr));
}

#[tokio::test]
async fn a_worker_of_the_sdk_works_off_a_queue_and_stops_cleanly() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(&file(folder.path()), &[]);
    let client = server.client();
    let tasks: Vec<Value> = (0..50)
        .map(|n| json!({"kind": "flaky", "payload": n, "retry": {"strategy": "fixed", "delay": "100ms", "max_retries": 3}}))
        .collect();
    client.submit(&json!({"tasks": tasks})).await.expect("submitted");
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let worker = Worker::new(client.clone(), "w").concurrency(8).handle("flaky", |task| async move {
        if task.attempt_number == 1 && task.payload.as_u64().unwrap_or(0) % 2 == 0 {
            return Outcome::failed("the first try never works");
        }
        Outcome::succeeded(json!({"attempt": task.attempt_number}))
    });
    let working = tokio::spawn(worker.run(async {
        let _ = stopped.await;
    }));
    let begun = Instant::now();
    loop {
        let stats = client.get("/api/v1/stats").await.expect("stats");
        if stats["by_state"]["succeeded"] == 50 {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "{stats}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    stop.send(()).expect("it listens");
    working.await.expect("no panic").expect("it worked");
    let recovered = client.get("/api/v1/tasks?q=state:recovered&limit=500").await.expect("a list");
    assert_eq!(recovered["items"].as_array().expect("items").len(), 25);
}

/// Three servers on one PostgreSQL, workers on all of them, and a server that is killed in the middle.
#[tokio::test]
async fn three_servers_share_one_database_and_one_may_die() {
    let Ok(cluster) = std::env::var("COMEBACK_TEST_POSTGRES_DURABLE") else {
        panic!("this test needs a PostgreSQL that flushes: run it by scripts/test");
    };
    let name = format!("three_{}", std::process::id());
    let (admin, connection) = tokio_postgres::connect(&cluster, tokio_postgres::NoTls).await.expect("a connection");
    tokio::spawn(connection);
    admin.batch_execute(&format!("create database {name}")).await.expect("a database");
    let url = cluster.rsplit_once('/').map(|(server, _)| format!("{server}/{name}")).expect("a URL");
    let mut servers: Vec<Server> = (0..3).map(|_| Server::start(&url, &[])).collect();
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
    admin.batch_execute(&format!("drop database {name} with (force)")).await.expect("dropped");
}

/// Answers one request after the other as it is told, and remembers what it was asked.
fn answering(answers: Vec<&'static str>) -> (String, std::sync::mpsc::Receiver<String>) {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let (asked, heard) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for answer in answers {
            let Ok((mut stream, _)) = listener.accept() else { return };
            let mut request = vec![0; 8192];
            let read = stream.read(&mut request).unwrap_or(0);
            let _ = asked.send(String::from_utf8_lossy(&request[..read]).into_owned());
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    (url, heard)
}

async fn until_over(client: &Client, id: &str) -> Value {
    let begun = Instant::now();
    loop {
        let task = client.task(id).await.expect("shown");
        if !task["ended_at"].is_null() {
            return task;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "{task}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn submit_one(client: &Client, task: Value) -> String {
    let answer = client.submit(&task).await.expect("submitted");
    answer["tasks"][0]["id"].as_str().expect("an id").to_owned()
}

#[tokio::test]
async fn the_server_makes_calls_itself_and_heeds_what_it_is_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(&file(folder.path()), &["--allow-private-networks"]);
    let client = server.client();
    let (url, heard) = answering(vec![
        "HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-length: 4\r\nconnection: close\r\n\r\nbusy",
        "HTTP/1.1 500 Oops\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 11\r\nconnection: close\r\n\r\n{\"ok\":true}",
    ]);
    let begun = Instant::now();
    let task = json!({"kind": "call", "payload": {"n": 7}, "retry": {"strategy": "fixed", "delay": "50ms", "max_retries": 3},
        "executor": {"type": "http", "method": "POST", "url": format!("{url}/hook")}});
    let done = until_over(&client, &submit_one(&client, task).await).await;
    assert_eq!((&done["state"], &done["result"]["body"]["ok"]), (&json!("succeeded"), &json!(true)), "{done}");
    assert_eq!((&done["attempt"], &done["throttle_count"]), (&json!(1), &json!(1)), "a Retry-After is not counted");
    assert!(begun.elapsed() >= Duration::from_secs(1), "it was asked to stay away for a second");
    let asked: Vec<String> = heard.try_iter().collect();
    assert_eq!(asked.len(), 3);
    assert!(asked[0].starts_with("POST /hook") && asked[0].contains("{\"n\":7}"), "{}", asked[0]);
    let key = |request: &str| request.lines().find(|line| line.starts_with("idempotency-key")).map(str::to_owned);
    assert!(key(&asked[0]).is_some() && key(&asked[0]) == key(&asked[2]), "the other side can tell a repetition");
    // Nobody listens any more.
    let task = json!({"kind": "call", "executor": {"type": "http", "url": url}, "retry": {"strategy": "immediate", "max_retries": 1}});
    let dead = until_over(&client, &submit_one(&client, task).await).await;
    assert_eq!((&dead["state"], &dead["last_error"]["type"]), (&json!("dead"), &json!("connect")), "{dead}");
}

#[tokio::test]
async fn calls_into_private_networks_and_commands_need_leave() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(&file(folder.path()), &[]);
    let client = server.client();
    for url in [
        "http://127.0.0.1:9/",
        "http://localhost:9/",
        "http://[::1]:9/",
        "http://169.254.169.254/latest",
        "http://2130706433/",
    ] {
        let task = json!({"kind": "call", "executor": {"type": "http", "url": url}, "retry": 5});
        let failed = until_over(&client, &submit_one(&client, task).await).await;
        assert_eq!(
            (&failed["state"], &failed["last_error"]["type"]),
            (&json!("failed"), &json!("blocked")),
            "{url}: {failed}"
        );
    }
    let command = json!({"kind": "c", "executor": {"type": "command", "run": ["true"]}});
    let Err(Error::Refused(problem)) = client.submit(&command).await else { panic!("a command was taken") };
    assert!(problem.detail.contains("--allow-commands"), "{}", problem.detail);
    let timer = json!({"kind": "t", "executor": {"type": "timer"}, "delay": "300ms"});
    let rung = until_over(&client, &submit_one(&client, timer).await).await;
    assert_eq!(rung["state"], "succeeded");
    drop(server);
    let server = Server::start(&file(folder.path()), &["--allow-commands"]);
    let client = server.client();
    let script = "test $COMEBACK_ATTEMPT = 2 || exit 1; echo \"{\\\"payload\\\": $COMEBACK_PAYLOAD}\"";
    let task = json!({"kind": "c", "payload": [1], "executor": {"type": "command", "run": ["sh", "-c", script]},
        "retry": {"strategy": "fixed", "delay": "100ms", "max_retries": 2}});
    let done = until_over(&client, &submit_one(&client, task).await).await;
    assert_eq!((&done["state"], &done["result"]["payload"]), (&json!("succeeded"), &json!([1])), "{done}");
}

#[test]
fn the_demo_shows_tasks_that_come_back() {
    let begun = Instant::now();
    let output = Command::new(env!("CARGO_BIN_EXE_comeback"))
        .args(["demo", "--listen", "127.0.0.1:0", "--seconds", "12"])
        .output()
        .expect("it runs");
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(begun.elapsed() < Duration::from_secs(60));
    let (said, summary) = (text(&output.stdout), text(&output.stderr));
    for word in [
        "→ retry in",
        "503 Service Unavailable",
        "429 Too Many Requests",
        "(not counted)",
        "vat_id is missing → failed, no retry",
        "◎ payments.charge",
    ] {
        assert!(said.contains(word), "{word} is missing:\n{said}");
    }
    let recovered: u32 = summary
        .split("recovered ")
        .nth(1)
        .and_then(|rest| rest.split_whitespace().next())
        .and_then(|n| n.parse().ok())
        .unwrap_or(0);
    assert!(recovered >= 2, "{summary}");
}

#[tokio::test]
async fn a_policy_of_a_kind_is_used_where_a_task_says_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(&file(folder.path()), &["--instance", "one"]);
    let client = server.client();
    let put = |kind: &str, body: Value| {
        let request = server.http().put(format!("{}/api/v1/policies/{kind}", server.url)).json(&body);
        async move { request.send().await.expect("sent").status().as_u16() }
    };
    assert_eq!(put("mail", json!({"policy": "exp(60s, x2, 7 retries)"})).await, 200);
    assert_eq!(put("mail2", json!({"policy": {"strategy": "sometimes"}})).await, 400);
    let id = submit_one(&client, json!({"kind": "mail"})).await;
    assert_eq!(client.task(&id).await.expect("shown")["max_retries"], 7);
    let own = submit_one(&client, json!({"kind": "mail", "retry": 2})).await;
    assert_eq!(client.task(&own).await.expect("shown")["max_retries"], 1);
    let other = submit_one(&client, json!({"kind": "other"})).await;
    assert!(client.task(&other).await.expect("shown")["retry"].is_null());
    client.delete("/api/v1/policies/mail").await.expect("gone");
    assert!(matches!(client.get("/api/v1/policies/mail").await, Err(Error::Refused(problem)) if problem.status == 404));
    lease_one(&client).await;
    let workers = client.get("/api/v1/admin/workers").await.expect("workers");
    assert_eq!((&workers["items"][0]["name"], &workers["items"][0]["leased_total"]), (&json!("w"), &json!(1)));
    let instances = client.get("/api/v1/admin/instances").await.expect("instances");
    assert_eq!(instances["items"][0]["id"], "one");
    let docs =
        server.http().get(format!("{}/docs", server.url)).send().await.expect("sent").text().await.expect("text");
    assert!(docs.contains("/api/v1/leases/report"));
}

/// Who says nothing is not waited for, and who says it slowly is not either.
#[test]
fn a_silent_connection_is_closed_and_a_stop_is_clean() {
    use std::io::{Read, Write};
    let folder = tempfile::tempdir().expect("a folder");
    let mut server = Server::start(&file(folder.path()), &[]);
    let address = server.url.trim_start_matches("http://").to_owned();
    let mut silent = std::net::TcpStream::connect(&address).expect("a connection");
    silent.write_all(b"GET /livez HTTP/1.1\r\nhost: lo").expect("half a request");
    silent.set_read_timeout(Some(Duration::from_secs(30))).expect("a limit");
    let begun = Instant::now();
    let mut rest = Vec::new();
    let _ = silent.read_to_end(&mut rest);
    assert!(begun.elapsed() < Duration::from_secs(25), "it was waited for");
    let stopped = Command::new("kill").args(["-TERM", &server.child.id().to_string()]).status().expect("kill");
    assert!(stopped.success());
    let code = server.child.wait().expect("it ends");
    assert!(code.success(), "{code}");
}

/// A worker that hangs up while it waits must not take a task with it.
#[tokio::test]
async fn a_worker_that_hung_up_takes_nothing_with_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(&file(folder.path()), &[]);
    let client = server.client();
    for _ in 0..5 {
        let impatient = server.http().post(format!("{}/api/v1/leases", server.url));
        let impatient = impatient.timeout(Duration::from_millis(100)).json(&json!({"worker": "gone", "wait": 20}));
        assert!(impatient.send().await.is_err(), "it hangs up");
        let id = submit_one(&client, json!({"kind": "k"})).await;
        let begun = Instant::now();
        let lease = lease_one(&client).await;
        assert_eq!((&lease["task"]["id"], &lease["task"]["attempt_number"]), (&json!(id), &json!(1)));
        assert!(begun.elapsed() < Duration::from_secs(5));
        report(&client, &lease, json!({"outcome": "succeeded"})).await;
        let task = client.task(&id).await.expect("shown");
        assert_eq!((&task["state"], &task["lost_count"]), (&json!("succeeded"), &json!(0)));
    }
}
