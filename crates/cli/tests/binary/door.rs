//! Who is let in, and for how long.

use std::process::Command;
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
