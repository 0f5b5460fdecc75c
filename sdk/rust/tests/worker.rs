//! A worker against a server that says what a test wants it to say.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use comeback_client::{Client, Outcome, Worker};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Answers the requests for leases one after the other, and the last answer again; keeps every report.
#[derive(Clone)]
struct FakeServer {
    leases: Arc<Mutex<Vec<Value>>>,
    reports: Arc<Mutex<Vec<Value>>>,
}

impl FakeServer {
    async fn start(leases: Vec<Value>) -> (FakeServer, Client) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = FakeServer { leases: Arc::new(Mutex::new(leases)), reports: Arc::default() };
        let answers = server.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answers.clone().serve(stream));
            }
        });
        (server, Client::new(format!("http://{address}")).unwrap())
    }

    async fn serve(self, stream: TcpStream) {
        let mut stream = BufReader::new(stream);
        while let Some((path, body)) = request(&mut stream).await {
            let answer = self.answer(&path, &body).to_string();
            let head = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
                answer.len()
            );
            if stream.write_all(format!("{head}{answer}").as_bytes()).await.is_err() {
                return;
            }
        }
    }

    fn answer(&self, path: &str, body: &Value) -> Value {
        match path {
            "/api/v1/leases" => {
                let mut leases = self.leases.lock().unwrap();
                if leases.len() > 1 { leases.remove(0) } else { leases[0].clone() }
            }
            "/api/v1/leases/report" => {
                let told = body["reports"].as_array().unwrap().clone();
                let heard: Vec<Value> =
                    told.iter().map(|it| json!({"lease": it["lease"], "state": "pending"})).collect();
                self.reports.lock().unwrap().extend(told);
                json!({"reports": heard})
            }
            _ => json!({"leases": []}),
        }
    }

    async fn reported(&self, count: usize) {
        while self.reports.lock().unwrap().len() < count {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

async fn request(stream: &mut BufReader<TcpStream>) -> Option<(String, Value)> {
    let (mut path, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await.ok().filter(|read| *read > 0)?;
        let line = line.trim_end().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if path.is_empty() {
            path = line.split(' ').nth(1)?.to_owned();
        } else if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    Some((path, serde_json::from_slice(&body).unwrap_or_default()))
}

fn lease(token: &str, kind: &str) -> Value {
    json!({"lease": token, "task": {"id": "1", "kind": kind, "attempt": 0, "attempt_number": 1, "is_retry": false}})
}

#[tokio::test]
async fn a_lease_whose_kind_has_no_handler_is_released() {
    let given = json!({"leases": [lease("stray", "other"), lease("own", "k")]});
    let nothing = json!({"leases": [], "draining": true});
    let (server, client) = FakeServer::start(vec![given, nothing]).await;
    let worker = Worker::new(client, "w").handle("k", |_| async { Outcome::succeeded(Value::Null) }).concurrency(1);
    tokio::time::timeout(PATIENCE, worker.run(server.reported(2))).await.expect("both are reported").unwrap();
    let mut reports: Vec<(String, String)> = server.reports.lock().unwrap().iter().map(words).collect();
    reports.sort();
    assert_eq!(reports, [("own".into(), "succeeded".into()), ("stray".into(), "released".into())]);
}

fn words(report: &Value) -> (String, String) {
    let text = |name: &str| report[name].as_str().unwrap_or_default().to_owned();
    (text("lease"), text("outcome"))
}

#[tokio::test]
async fn a_worker_stops_by_itself_when_it_is_drained() {
    let answers = vec![json!({"leases": [lease("last", "k")]}), json!({"leases": [], "draining": true})];
    let (server, client) = FakeServer::start(answers).await;
    let worker = Worker::new(client, "w").handle("k", |_| async { Outcome::succeeded(Value::Null) });
    let ended = tokio::time::timeout(PATIENCE, worker.stop_when_drained().run(pending())).await;
    ended.expect("it ends").unwrap();
    assert_eq!(server.reports.lock().unwrap().len(), 1, "what it had is reported");
}
