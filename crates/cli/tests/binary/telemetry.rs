//! Log lines and spans.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{Server, file, lease_one, report, submit_one, until};

/// A collector of spans: takes what is posted, whole, and says yes.
fn collector() -> (String, Receiver<(String, Value)>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let (told, heard) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let told = told.clone();
            std::thread::spawn(move || {
                let mut stream = stream;
                let mut bytes = Vec::new();
                let mut piece = [0; 16384];
                loop {
                    let read = stream.read(&mut piece).unwrap_or(0);
                    if read == 0 {
                        return;
                    }
                    bytes.extend_from_slice(&piece[..read]);
                    let text = String::from_utf8_lossy(&bytes).into_owned();
                    let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
                    if let Ok(body) = serde_json::from_str::<Value>(body) {
                        let _ = told.send((head.to_owned(), body));
                        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}");
                        bytes.clear();
                    }
                }
            });
        }
    });
    (url, heard)
}

/// One that fails once, one that is final; then the server is stopped and everything it said is there.
async fn live_a_little(server: &mut Server) -> String {
    let client = server.client();
    let traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let submit = server.http().post(format!("{}/api/v1/tasks", server.url)).header("traceparent", traceparent);
    let retry = json!({"strategy": "fixed", "delay": "50ms", "max_retries": 3});
    let answer: Value =
        submit.json(&json!({"kind": "pay", "retry": retry})).send().await.expect("sent").json().await.expect("JSON");
    let id = answer["tasks"][0]["id"].as_str().expect("an id").to_owned();
    let first = lease_one(&client).await;
    report(&client, &first, json!({"outcome": "failed", "error": {"type": "Busy", "status": 503, "message": "busy"}}))
        .await;
    let second = lease_one(&client).await;
    report(&client, &second, json!({"outcome": "succeeded"})).await;
    submit_one(&client, json!({"kind": "hopeless", "retry": 3})).await;
    let hopeless = lease_one(&client).await;
    report(&client, &hopeless, json!({"outcome": "failed", "error": {"class": "final", "message": "no"}})).await;
    let stopped = Command::new("kill").args(["-TERM", &server.child.id().to_string()]).status().expect("kill");
    assert!(stopped.success() && server.child.wait().expect("it ends").success());
    id
}

/// S2: a line says whether it was the initial attempt or a retry. S0-53: how many are due is told.
#[tokio::test]
async fn the_log_tells_first_tries_from_retries() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("log");
    let mut command = Server::command(&file(folder.path()), "127.0.0.1:0");
    command.args(["--log-format", "json"]).env("RUST_LOG", "info,comeback::attempt=debug,comeback_engine=debug");
    command.stderr(Stdio::from(std::fs::File::create(&log).expect("a file")));
    let mut server = Server::from(command).expect("the binary serves");
    let id = live_a_little(&mut server).await;
    let log = std::fs::read_to_string(&log).expect("a log");
    let lines: Vec<Value> = log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let about = |kind: &str| -> Vec<(String, bool)> {
        let own = lines.iter().map(|line| &line["fields"]).filter(|fields| fields["kind"] == kind);
        own.map(|it| (it["message"].as_str().unwrap_or_default().to_owned(), it["retry"] == true)).collect()
    };
    let expected = [
        ("initial attempt started", false),
        ("initial attempt failed: retry scheduled", false),
        ("retry 1 started", true),
        ("retry 1 succeeded", true),
    ];
    assert_eq!(about("pay"), expected.map(|(text, retry)| (text.to_owned(), retry)), "{log}");
    assert_eq!(about("hopeless")[1].0, "initial attempt failed: no retry");
    let due: u64 = lines
        .iter()
        .filter(|it| it["fields"]["message"] == "retries are due")
        .filter_map(|it| it["fields"]["count"].as_u64())
        .sum();
    assert_eq!(due, 1, "S0-53: {log}");
    let failed = lines.iter().find(|line| line["fields"]["outcome"] == "failed").expect("a failure");
    assert_eq!((&failed["fields"]["task"], &failed["fields"]["error"]), (&json!(id), &json!("busy")));
    assert!(failed["fields"]["next_retry_at"].is_string(), "{failed}");
    assert_eq!((&failed["fields"]["attempt"], &failed["fields"]["delay_ms"]), (&json!(1), &json!(50)), "{failed}");
}

/// S2-94, S2-95, S2-96: who asked for a retry by hand, that the one which waited is superseded, and how much was stuck.
#[tokio::test]
async fn the_log_tells_of_retries_by_hand_and_of_stuck_work() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("log");
    let mut command = Server::command(&file(folder.path()), "127.0.0.1:0");
    command.args(["--log-format", "json", "--clock", "virtual", "--look-every", "retries=2s,repair=1h"]);
    command.env("RUST_LOG", "info");
    command.stderr(Stdio::from(std::fs::File::create(&log).expect("a file")));
    let server = Server::from(command).expect("the binary serves");
    let client = server.client();
    let retry = json!({"strategy": "fixed", "delay": "1h", "max_retries": 3});
    let id = submit_one(&client, json!({"kind": "pay", "retry": retry})).await;
    let first = lease_one(&client).await;
    report(&client, &first, json!({"outcome": "failed", "error": {"message": "busy"}})).await;
    client.post(&format!("/api/v1/jobs/{id}/retry"), &json!({"requestedBy": "ann"})).await.expect("retried");
    lease_one(&client).await;
    client.post("/api/v1/clock/advance", &json!({"by": "10m"})).await.expect("advanced");
    until(&client, &id, |task| task["state"] == "retry_pending").await;
    // S2-52, S2-97, F2-6: how often each loop looks, when it did, and what it did.
    let loops = client.get("/api/v1/admin/loops").await.expect("loops");
    let of = |name: &str| loops["items"].as_array().expect("loops").iter().find(|it| it["name"] == name).expect("it");
    let periods = ["retries", "reap", "repair", "hooks"].map(|name| of(name)["period_ms"].as_u64());
    assert_eq!(periods, [Some(2_000), Some(1_000), Some(3_600_000), None], "{loops}");
    assert!(of("reap")["looked_at"].is_string() && of("reap")["moved_total"] == 1, "{loops}");
    drop(server);
    let log = std::fs::read_to_string(&log).expect("a log");
    let lines: Vec<Value> = log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let said = |message: &str| {
        let found = lines.iter().find(|line| line["fields"]["message"] == message);
        found.unwrap_or_else(|| panic!("nobody said `{message}`: {log}")).clone()
    };
    let asked = said("manual retry requested");
    assert_eq!((&asked["fields"]["task"], &asked["fields"]["by"]), (&json!(id), &json!("ann")));
    assert!(said("scheduled retry superseded by manual retry")["fields"]["due"].is_string());
    let stuck = said("recovered expired leases");
    assert_eq!((&stuck["level"], &stuck["fields"]["found"]), (&json!("WARN"), &json!(1)));
}

#[tokio::test]
async fn spans_of_attempts_join_the_trace_they_were_submitted_under() {
    let (url, heard) = collector();
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = Server::command(&file(folder.path()), "127.0.0.1:0");
    command.env("RUST_LOG", "warn").env("INSTANCE_ID", "one");
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", &url).env("OTEL_EXPORTER_OTLP_HEADERS", "x-token=secret");
    let mut server = Server::from(command).expect("the binary serves");
    let id = live_a_little(&mut server).await;
    let mut spans = Vec::new();
    while let Ok((head, body)) = heard.recv_timeout(Duration::from_secs(1)) {
        assert!(head.starts_with("POST /v1/traces") && head.contains("x-token: secret"), "{head}");
        let resource = body["resourceSpans"][0]["resource"]["attributes"].to_string();
        assert!(resource.contains("service.instance.id") && resource.contains("\"one\""), "{resource}");
        spans.extend(body["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().expect("spans").clone());
    }
    let named = |name: &str| spans.iter().filter(|span| span["name"] == name).cloned().collect::<Vec<_>>();
    let paid = named("attempt pay");
    assert_eq!(paid.len(), 2, "{spans:?}");
    for span in &paid {
        assert_eq!(span["traceId"], "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(span["parentSpanId"], "b7ad6b7169203331");
        let number = |name: &str| span[name].as_str().and_then(|text| text.parse::<u64>().ok()).expect("a time");
        assert!(number("startTimeUnixNano") <= number("endTimeUnixNano"));
        assert!(span["attributes"].to_string().contains(&id));
    }
    assert_ne!(paid[0]["spanId"], paid[1]["spanId"]);
    assert_eq!((&paid[0]["status"]["code"], &paid[1]["status"]["code"]), (&json!(2), &Value::Null));
    assert_eq!(named("attempt hopeless").len(), 1, "without a trace of its own it has the task's");
    assert!(!named("POST /api/v1/tasks").is_empty() && !named("POST /api/v1/leases/report").is_empty());
}
