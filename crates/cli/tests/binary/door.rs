//! Authentication, admission and connection limits.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use comeback_client::Error;
use serde_json::{Value, json};

use crate::harness::{Server, file, text};

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

/// Silent and slow connections are closed.
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

/// A body that drips in holds nobody up and is not waited for.
#[test]
fn a_slow_body_is_given_up() {
    use std::io::{Read, Write};
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(&file(folder.path()), &["--limit", "body_timeout=300ms"]);
    let mut slow = std::net::TcpStream::connect(server.url.trim_start_matches("http://")).expect("a connection");
    slow.write_all(b"POST /api/v1/tasks HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 12\r\n\r\n{")
        .expect("the beginning");
    slow.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit");
    let mut answer = [0; 12];
    slow.read_exact(&mut answer).expect("an answer");
    assert_eq!(text(&answer), "HTTP/1.1 408");
}

/// Many more readers and submitters than there are places: those are turned away with a word when to come back, and every report
/// and heartbeat is taken.
#[tokio::test]
async fn reports_get_in_when_lists_and_submits_do_not() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(&file(folder.path()), &["--limit", "reads=1,writes=1"]);
    let client = server.client();
    let tasks: Vec<Value> = (0..2_000).map(|_| json!({"kind": "k", "payload": "x".repeat(500)})).collect();
    client.submit(&json!({"tasks": tasks})).await.expect("submitted");
    let leased = client.lease(&json!({"worker": "w", "limit": 20})).await.expect("leased");
    let leases: Vec<Value> = leased["leases"].as_array().expect("leases").clone();
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let mut crowd = tokio::task::JoinSet::new();
    for n in 0..40 {
        let (http, url, stopped) = (server.http(), server.url.clone(), stopped.clone());
        crowd.spawn(async move {
            let mut turned_away = 0;
            while !*stopped.borrow() {
                let request = match n % 2 {
                    0 => http.get(format!("{url}/api/v1/tasks?q=nowhere&limit=500")),
                    _ => http.post(format!("{url}/api/v1/tasks")).json(&json!({"kind": "other"})),
                };
                let answer = request.send().await.expect("an answer");
                match answer.status().as_u16() {
                    200 | 201 => {}
                    429 | 503 => {
                        assert_eq!(answer.headers()["retry-after"], "1");
                        let problem: Value = answer.json().await.expect("a problem");
                        assert!(["OVERLOADED", "QUOTA_EXCEEDED"].contains(&problem["error"].as_str().expect("a word")));
                        turned_away += 1;
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                    other => panic!("{other}"),
                }
            }
            turned_away
        });
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let begun = Instant::now();
    for lease in &leases {
        let beat =
            client.heartbeat(&[lease["lease"].as_str().expect("a token").to_owned()], 60).await.expect("a heartbeat");
        assert!(beat["leases"][0]["expires_at"].is_string(), "{beat}");
        let done = crate::harness::report(&client, lease, json!({"outcome": "succeeded"})).await;
        assert_eq!(done["state"], "succeeded", "{done}");
    }
    println!("{} heartbeats and reports in the crowd: {:?}", leases.len(), begun.elapsed());
    let _ = stop.send(true);
    let turned_away: u32 = crowd.join_all().await.into_iter().sum();
    assert!(turned_away > 0, "nobody was turned away: the crowd was too small to say anything");
}

/// S0-62.
#[tokio::test]
async fn an_instance_has_the_name_it_was_given_or_its_hosts() {
    let folder = tempfile::tempdir().expect("a folder");
    let name = async |given: Option<&str>| {
        let mut command = Server::command(&file(folder.path()), "127.0.0.1:0");
        command.env_remove("INSTANCE_ID");
        if let Some(given) = given {
            command.env("INSTANCE_ID", given);
        }
        let server = Server::from(command).expect("the binary serves");
        let all = server.client().get("/api/v1/admin/instances").await.expect("instances");
        let own = all["items"].as_array().expect("items").iter().find(|it| it["self"] == true).cloned();
        (own.expect("itself")["id"].as_str().expect("a name").to_owned(), server.child.id())
    };
    assert_eq!(name(Some("kitchen")).await.0, "kitchen");
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").expect("a host");
    let (own, process) = name(None).await;
    assert_eq!(own, format!("{}-{process}", host.trim()));
}

/// A11: limits by their `RETRY_` variables, beside those that are said by an option; and what has a slip
/// in its name is told of.
#[tokio::test]
async fn limits_are_obeyed_by_their_retry_variables() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("log");
    let slip = format!("COMEBACK_{}", "LISTN");
    let start = |variables: &[(&str, &str)], more: &[&str]| {
        let mut command = Server::command(&file(folder.path()), "127.0.0.1:0");
        command.args(more).envs(variables.iter().copied());
        command.stderr(Stdio::from(std::fs::File::create(&log).expect("a file")));
        Server::from(command)
    };
    let server = start(
        &[
            ("RETRY_MAX_RETRIES_LIMIT", "2"),
            ("RETRY_MAX_DELAY_LIMIT", "60"),
            ("RETRY_MAX_SCHEDULE_LIMIT", "2d"),
            ("RETRY_LOOP_INTERVAL_MS", "250"),
            ("RETRY_MAX_RETRY_LIMIT", "1"),
            (slip.as_str(), "secret"),
            ("COMEBACK_TEST_ANYTHING", "1"),
        ],
        &["--limit", "max_retries=5,max_delay=30s"],
    );
    let server = server.expect("the binary serves");
    let submitted = async |path: &str, body: Value| {
        let sent = server.http().post(format!("{}{path}", server.url)).json(&body).send().await.expect("an answer");
        (sent.status().as_u16(), sent.text().await.expect("a text"))
    };
    let retry = async |retry: Value| submitted("/api/v1/tasks", json!({"kind": "k", "retry": retry})).await;
    let (status, said) = retry(json!({"max_retries": 3})).await;
    assert!(status == 400 && said.contains("retry.max_retries"), "{said}");
    assert_eq!(retry(json!({"max_retries": 2})).await.0, 201);
    assert_eq!(retry(json!({"max_retries": 2, "max_delay": "31s"})).await.0, 400, "the option is tighter");
    assert_eq!(retry(json!({"strategy": "fixed", "delay": "3d", "max_retries": 1})).await.0, 400);
    assert_eq!(retry(json!({"strategy": "fixed", "delay": "2d", "max_retries": 1})).await.0, 201);
    let seed = async |retries: u32| {
        let retry = json!({"max_retries": retries, "initial_delay_secs": 1, "max_delay_secs": 20});
        let start = json!({"kind": "Webhook", "params": {"url": "https://example.com/", "verb": "Post"}});
        let task = json!([{"id": "a", "name": "a", "kind": "k", "retry": retry, "on_start": start}]);
        submitted("/task", task).await
    };
    assert_eq!((seed(3).await.0, seed(2).await.0), (400, 201), "{:?}", seed(3).await);
    let loops = server.client().get("/api/v1/admin/loops").await.expect("loops");
    let retries = loops["items"].as_array().expect("loops").iter().find(|it| it["name"] == "retries").expect("it");
    assert_eq!(retries["period_ms"], 250, "{loops}");
    server.kill();
    let said = std::fs::read_to_string(&log).expect("a log");
    let warned: Vec<&str> = said.lines().filter(|line| line.contains("environment variable")).collect();
    assert_eq!(warned.len(), 2, "{said}");
    assert!(warned[0].contains(&slip) && warned[1].contains("RETRY_MAX_RETRY_LIMIT\""), "{said}");
    assert!(!said.contains("secret"), "what it is set to is nobody's business: {said}");
    for (name, value) in [
        ("RETRY_MAX_RETRIES_LIMIT", "many"),
        ("RETRY_MAX_RETRIES_LIMIT", "5000"),
        ("RETRY_MAX_DELAY_LIMIT", "soon"),
        ("RETRY_LOOP_INTERVAL_MS", "1s"),
    ] {
        assert!(start(&[(name, value)], &[]).is_err(), "{name}={value}");
        let said = std::fs::read_to_string(&log).expect("what it said");
        assert!(said.contains(name), "{said}");
    }
}
