//! Executors of the server.

use std::time::{Duration, Instant};

use comeback_client::Error;
use serde_json::json;

use crate::harness::{Server, file, submit_one, until_over};

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
