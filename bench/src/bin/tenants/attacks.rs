//! RED: every attack by which one tenant could take the server away from the others. Each goes on until its time is over.
//!
//! Over 500 lines: one short function for each attack.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::server::Keys;

/// All attacks, in the order in which they are done.
pub const NAMES: &[&str] = &[
    "expressions",
    "patterns",
    "half-bodies",
    "padded-polls",
    "tarpit-calls",
    "searches",
    "many-names",
    "worker-names",
    "new-kinds",
    "http-queues",
    "keyed-acts",
    "unread-streams",
    "metric-kinds",
    "connections",
    "recursion",
    "gathered-results",
    "large-pages",
    "rule-keys",
    "new-keys",
    "large-policies",
    "subscriptions",
];

/// Words of RED's tasks, for the searches.
const WORDS: [&str; 8] = ["alpha", "bravo", "charlie", "delta", "echo", "foxtrot", "golf", "hotel"];

/// Context of every attack.
struct Red {
    keys: Keys,
    client: reqwest::Client,
    until: Instant,
    /// Makes names that were not there before.
    next: AtomicU64,
}

/// The tasks that the searches look through.
pub async fn prepare(keys: &Keys, tasks: usize) -> Result<()> {
    let red = red(keys.clone(), Duration::from_secs(600))?;
    for start in (0..tasks).step_by(10_000) {
        let many: Vec<Value> = (start..tasks.min(start + 10_000))
            .map(|n| {
                let words: Vec<&str> = (0..6).map(|i| WORDS[(n / (i + 1)) % WORDS.len()]).collect();
                json!({"kind": "backlog", "queue": "backlog", "delay": "14d", "labels": {"note": words.join(" ")},
                    "payload": {"text": words.join("-"), "n": n}})
            })
            .collect();
        let (status, text) = red.send("POST", "tasks", &keys.red_submitter, Some(json!({"tasks": many}))).await?;
        anyhow::ensure!(status == 201 || status == 200, "{status}: {text}");
    }
    Ok(())
}

/// Does the attacks side by side until the time is over.
pub async fn run(names: &[String], keys: Keys, time: Duration) {
    let Ok(red) = red(keys, time) else { return };
    let all: Vec<_> = names.iter().map(|name| tokio::spawn(attack(red.clone(), name.clone()))).collect();
    let _ = tokio::time::timeout(time, async {
        for one in all {
            let _ = one.await;
        }
    })
    .await;
}

fn red(keys: Keys, time: Duration) -> Result<Arc<Red>> {
    let client = reqwest::Client::builder().timeout(Duration::from_secs(60)).build().context("a client")?;
    // Another process must not make the same names.
    let first = u64::from(std::process::id()) << 32;
    Ok(Arc::new(Red { keys, client, until: Instant::now() + time, next: AtomicU64::new(first) }))
}

impl Red {
    fn goes_on(&self) -> bool {
        Instant::now() < self.until
    }

    fn name(&self, prefix: &str) -> String {
        format!("{prefix}-{:x}", self.next.fetch_add(1, Ordering::Relaxed))
    }

    async fn send(&self, method: &str, path: &str, key: &str, body: Option<Value>) -> Result<(u16, String)> {
        let url = format!("http://{}/api/v1/{path}", self.keys.address);
        let request = self.client.request(method.parse()?, url).bearer_auth(key);
        let request = match body {
            Some(body) => request.json(&body),
            None => request,
        };
        let answer = request.send().await?;
        let status = answer.status().as_u16();
        Ok((status, answer.text().await?))
    }

    /// The same whose outcome does not matter. Who is refused comes again at once, but not in a loop that only burns this process.
    async fn try_to(&self, method: &str, path: &str, key: &str, body: Option<Value>) {
        if self.send(method, path, key, body).await.map_or(true, |(status, _)| status >= 400) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Many at once, each again and again.
    async fn together<F>(self: &Arc<Red>, many: usize, what: impl Fn(Arc<Red>, usize) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let all: Vec<_> = (0..many).map(|n| tokio::spawn(what(self.clone(), n))).collect();
        for one in all {
            let _ = one.await;
        }
    }

    /// A request whose head is sent and whose body is not, or not whole.
    async fn half(&self, path: &str, key: &str, length: usize, sent: usize) -> Result<TcpStream> {
        let mut stream = TcpStream::connect(&self.keys.address).await?;
        let head = format!(
            "POST /api/v1/{path} HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n",
            self.keys.address
        );
        stream.write_all(head.as_bytes()).await?;
        let piece = vec![b' '; 64 << 10];
        let mut left = sent;
        while left > 0 {
            let now = left.min(piece.len());
            stream.write_all(&piece[..now]).await?;
            left -= now;
        }
        Ok(stream)
    }
}

async fn attack(red: Arc<Red>, name: String) {
    match name.as_str() {
        "expressions" => expressions(red).await,
        "patterns" => patterns(red).await,
        "half-bodies" => half_bodies(red).await,
        "padded-polls" => padded_polls(red).await,
        "tarpit-calls" => tarpit_calls(red).await,
        "searches" => searches(red).await,
        "many-names" => many_names(red).await,
        "worker-names" => worker_names(red).await,
        "new-kinds" => new_kinds(red).await,
        "http-queues" => http_queues(red).await,
        "keyed-acts" => keyed_acts(red).await,
        "unread-streams" => unread_streams(red).await,
        "metric-kinds" => metric_kinds(red).await,
        "connections" => connections(red).await,
        "recursion" => recursion(red).await,
        "gathered-results" => gathered_results(red).await,
        "large-pages" => large_pages(red).await,
        "rule-keys" => rule_keys(red).await,
        "new-keys" => new_keys(red).await,
        "large-policies" => large_policies(red).await,
        "subscriptions" => subscriptions(red).await,
        other => eprintln!("tenants: no attack called {other}"),
    }
}

const BOMBS: [&str; 10] = [
    "'x'|indent(200000000000000)",
    "'%99999999999999d'|format(1)",
    "'x'|indent(9223372036854775808)",
    "[1]|slice(1000000000000)",
    "[1]|batch(1000000000000, 1)",
    "{'a':1}|tojson(indent=200000000000000)",
    "'x'|replace('x','xxxxxxxxxxxxxxxx')|replace('x','xxxxxxxxxxxxxxxx')|replace('x','xxxxxxxxxxxxxxxx')|replace('x','xxxxxxxxxxxxxxxx')|replace('x','xxxxxxxxxxxxxxxx')|replace('x','xxxxxxxxxxxxxxxx')|replace('x','xxxxxxxxxxxxxxxx')|replace('x','xxxxxxxxxxxxxxxx')",
    "'x' * 100000000",
    "('x' * 100000) ~ ('x' * 1000000) ~ ('x' * 10000000)",
    "(('xxxxxxxxxx' * 1000) * 1000) * 1000",
];

/// C1 to C4: read, stored, and taken by the loop of timeouts.
async fn expressions(red: Arc<Red>) {
    red.together(4, |red, n| async move {
        let worker = json!({"worker": format!("red-{n}"), "queues": ["bombs"], "limit": 10});
        while red.goes_on() {
            for bomb in BOMBS {
                let policy = json!({"retry_when": bomb});
                red.try_to("POST", "policies/simulate", &red.keys.red_viewer, Some(json!({"policy": policy}))).await;
                let task = json!({"kind": "bomb", "queue": "bombs", "timeout": "1s", "retry": policy});
                red.try_to("POST", "tasks", &red.keys.red_submitter, Some(task)).await;
            }
            red.try_to("POST", "leases", &red.keys.red_worker, Some(worker.clone())).await;
        }
    })
    .await;
}

/// C6.
async fn patterns(red: Arc<Red>) {
    red.together(4, |red, _| async move {
        while red.goes_on() {
            let rule = |n: usize| json!({"match": {"message": format!("(?:\\w{{5}})x{n}")}, "action": "fail"});
            let rules: Vec<Value> = (0..15_000).map(rule).collect();
            let policy = json!({"strategy": "fixed", "delay": "1s", "max_retries": 1, "rules": rules});
            red.try_to("POST", "policies/simulate", &red.keys.red_viewer, Some(json!({"policy": policy}))).await;
            let tasks: Vec<Value> = (0..20)
                .map(|_| {
                    let rules: Vec<Value> = (0..100)
                        .map(|_| json!({"match": {"message": format!("(?:\\w{{5}}){}", red.name("x"))}, "action": "fail"}))
                        .collect();
                    json!({"kind": "patterns", "queue": "never", "retry": {"strategy": "fixed", "delay": "1s", "max_retries": 1, "rules": rules}})
                })
                .collect();
            red.try_to("POST", "tasks", &red.keys.red_submitter, Some(json!({"tasks": tasks}))).await;
        }
    })
    .await;
}

/// H1.
async fn half_bodies(red: Arc<Red>) {
    red.together(12, |red, n| async move {
        while red.goes_on() {
            let path = if n.is_multiple_of(2) { "leases/report" } else { "tasks" };
            let key = if n.is_multiple_of(2) { red.keys.red_worker.clone() } else { red.keys.red_submitter.clone() };
            let whole = 32 << 20;
            if let Ok(mut stream) = red.half(path, &key, whole, whole - 1).await {
                let mut byte = [0];
                let _ = tokio::time::timeout(Duration::from_secs(25), stream.read(&mut byte)).await;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
}

/// H2.
async fn padded_polls(red: Arc<Red>) {
    red.together(324, |red, n| async move {
        while red.goes_on() {
            let ask = json!({"worker": format!("padded-{n}"), "queues": ["nothing"], "wait": "30s"}).to_string();
            let padded = format!("{ask}{}", " ".repeat((800 << 10) - ask.len()));
            let url = format!("http://{}/api/v1/leases", red.keys.address);
            let sent =
                red.client.post(url).bearer_auth(&red.keys.red_worker).header("content-type", "application/json");
            let _ = sent.body(padded).send().await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

/// H3: a service that takes calls and never answers.
async fn tarpit_calls(red: Arc<Red>) {
    let Ok(listener) = TcpListener::bind("127.0.0.1:0").await else { return };
    let Ok(address) = listener.local_addr() else { return };
    tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            held.push(stream);
        }
    });
    let tasks: Vec<Value> = (0..400)
        .map(|_| {
            json!({"kind": "tarpit", "queue": "tarpit", "timeout": "1h",
                "executor": {"type": "http", "url": format!("http://{address}/"), "method": "POST"}})
        })
        .collect();
    red.try_to("POST", "tasks", &red.keys.red_submitter, Some(json!({"tasks": tasks}))).await;
    while red.goes_on() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// H4.
async fn searches(red: Arc<Red>) {
    red.together(24, |red, n| async move {
        while red.goes_on() {
            let words: Vec<String> = (0..48).map(|i| format!("{}{}", WORDS[(n + i) % WORDS.len()], i)).collect();
            let path = format!("tasks?q={}&limit=50", words.join("+"));
            red.try_to("GET", &path, &red.keys.red_viewer, None).await;
            let path = format!("tasks?q={}&limit=50", words[..6].join("+"));
            red.try_to("GET", &path, &red.keys.red_viewer, None).await;
        }
    })
    .await;
}

/// H5.
async fn many_names(red: Arc<Red>) {
    red.together(500, |red, n| async move {
        let kinds: Vec<String> = (0..1_000).map(|i| format!("kind-{n}-{i}-{}", "x".repeat(20))).collect();
        let ask = json!({"worker": format!("names-{n}"), "queues": ["nothing"], "kinds": kinds, "wait": "30s"});
        while red.goes_on() {
            red.try_to("POST", "leases", &red.keys.red_worker, Some(ask.clone())).await;
        }
    })
    .await;
}

/// H6.
async fn worker_names(red: Arc<Red>) {
    red.together(8, |red, _| async move {
        let kinds: Vec<String> = (0..1_000).map(|i| format!("{}-{i}", "k".repeat(240))).collect();
        while red.goes_on() {
            let ask = json!({"worker": red.name("worker"), "queues": ["nothing"], "kinds": kinds});
            red.try_to("POST", "leases", &red.keys.red_worker, Some(ask)).await;
        }
    })
    .await;
}

/// H7 and H9.
async fn new_kinds(red: Arc<Red>) {
    for n in 0..4 {
        let red = red.clone();
        tokio::spawn(async move {
            let ask = json!({"worker": format!("kinds-{n}"), "wait": "5s", "limit": 10});
            while red.goes_on() {
                red.try_to("POST", "leases", &red.keys.red_worker, Some(ask.clone())).await;
            }
        });
    }
    red.together(6, |red, _| async move {
        while red.goes_on() {
            let tasks: Vec<Value> = (0..10_000).map(|_| json!({"kind": red.name("kind"), "delay": "1d"})).collect();
            red.try_to("POST", "tasks", &red.keys.red_submitter, Some(json!({"tasks": tasks}))).await;
        }
    })
    .await;
}

/// H8.
async fn http_queues(red: Arc<Red>) {
    red.together(2, |red, _| async move {
        while red.goes_on() {
            let task = || {
                json!({"kind": "call", "queue": red.name("queue"), "delay": "1d",
                    "executor": {"type": "http", "url": "http://127.0.0.1:9/", "method": "POST"}})
            };
            let tasks: Vec<Value> = (0..5_000).map(|_| task()).collect();
            red.try_to("POST", "tasks", &red.keys.red_submitter, Some(json!({"tasks": tasks}))).await;
        }
    })
    .await;
}

/// H10: the sender is gone as soon as it has sent.
async fn keyed_acts(red: Arc<Red>) {
    red.together(32, |red, _| async move {
        while red.goes_on() {
            let body = json!({"type": "red.event", "id": red.name("event"), "data": {"text": "x".repeat(200 << 10)}}).to_string();
            let head = format!(
                "POST /api/v1/events HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {}\r\nidempotency-key: {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
                red.keys.address, red.keys.red_submitter, red.name("key"), body.len()
            );
            if let Ok(mut stream) = TcpStream::connect(&red.keys.address).await {
                let _ = stream.write_all(head.as_bytes()).await;
                let _ = stream.write_all(body.as_bytes()).await;
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    })
    .await;
}

/// H11: streams that nobody reads, while much happens.
async fn unread_streams(red: Arc<Red>) {
    let writer = red.clone();
    tokio::spawn(async move {
        while writer.goes_on() {
            let task =
                json!({"kind": "stream", "queue": "never", "delay": "1d", "payload": {"text": "x".repeat(10 << 10)}});
            let tasks: Vec<&Value> = (0..10).map(|_| &task).collect();
            writer.try_to("POST", "tasks", &writer.keys.red_submitter, Some(json!({"tasks": tasks}))).await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    red.together(1_000, |red, _| async move {
        while red.goes_on() {
            let head = format!(
                "GET /api/v1/events/stream HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {}\r\n\r\n",
                red.keys.address, red.keys.red_viewer
            );
            if let Ok(mut stream) = TcpStream::connect(&red.keys.address).await {
                let _ = stream.write_all(head.as_bytes()).await;
                let _ = tokio::time::timeout(Duration::from_secs(20), std::future::pending::<()>()).await;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    })
    .await;
}

/// H13.
async fn metric_kinds(red: Arc<Red>) {
    let writer = red.clone();
    tokio::spawn(async move {
        while writer.goes_on() {
            let tasks: Vec<Value> = (0..1_000).map(|_| json!({"kind": writer.name("hook.kind")})).collect();
            writer.try_to("POST", "tasks", &writer.keys.red_submitter, Some(json!({"tasks": tasks}))).await;
        }
    });
    red.together(2, |red, _| async move {
        while red.goes_on() {
            let url = format!("http://{}/metrics", red.keys.address);
            if let Ok(answer) = red.client.get(url).bearer_auth(&red.keys.red_viewer).send().await {
                let _ = answer.bytes().await;
            }
            let ask = json!({"worker": "metrics", "limit": 1_000});
            red.try_to("POST", "leases", &red.keys.red_worker, Some(ask)).await;
        }
    })
    .await;
}

/// H14: connections without a key, each asking every six seconds.
async fn connections(red: Arc<Red>) {
    red.together(10_100, |red, n| async move {
        tokio::time::sleep(Duration::from_micros(200 * n as u64)).await;
        while red.goes_on() {
            if let Ok(mut stream) = TcpStream::connect(&red.keys.address).await {
                let ask = format!("GET /healthz HTTP/1.1\r\nhost: {}\r\n\r\n", red.keys.address);
                let mut answer = [0; 1_024];
                while red.goes_on() {
                    if stream.write_all(ask.as_bytes()).await.is_err() {
                        break;
                    }
                    match tokio::time::timeout(Duration::from_secs(10), stream.read(&mut answer)).await {
                        Ok(Ok(1..)) => tokio::time::sleep(Duration::from_secs(6)).await,
                        _ => break,
                    }
                }
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    })
    .await;
}

/// M5.
async fn recursion(red: Arc<Red>) {
    let bomb = json!({"name": "bomb", "steps": {"a": {"workflow": {"path": "bomb"}, "foreach": {"in": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], "as": "n", "mode": "parallel"}}}});
    red.try_to("PUT", "workflows/bomb", &red.keys.red_operator, Some(bomb)).await;
    while red.goes_on() {
        red.try_to("POST", "executions", &red.keys.red_submitter, Some(json!({"workflow": "bomb"}))).await;
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
}

/// M6.
async fn gathered_results(red: Arc<Red>) {
    let items: Vec<usize> = (0..1_000).collect();
    let gather = json!({"name": "gather", "steps": {"a": {"kind": "gather", "queue": "gather", "foreach": {"in": items, "as": "n", "mode": "parallel"}}}});
    red.try_to("PUT", "workflows/gather", &red.keys.red_operator, Some(gather)).await;
    red.try_to("POST", "executions", &red.keys.red_submitter, Some(json!({"workflow": "gather"}))).await;
    let result = json!({"text": "x".repeat(200 << 10)});
    red.together(4, |red, n| {
        let result = result.clone();
        async move {
            let ask = json!({"worker": format!("gather-{n}"), "queues": ["gather"], "limit": 5, "wait": "2s"});
            while red.goes_on() {
                let Ok((_, text)) = red.send("POST", "leases", &red.keys.red_worker, Some(ask.clone())).await else {
                    continue;
                };
                let answer: Value = serde_json::from_str(&text).unwrap_or_default();
                let leases = answer["leases"].as_array().cloned().unwrap_or_default();
                if leases.is_empty() {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
                let report = |it: &Value| json!({"lease": it["lease"], "outcome": "succeeded", "result": result});
                let reports: Vec<Value> = leases.iter().map(report).collect();
                red.try_to("POST", "leases/report", &red.keys.red_worker, Some(json!({"reports": reports}))).await;
            }
        }
    })
    .await;
}

/// M10: one task with many long errors, whose attempts are read by many.
async fn large_pages(red: Arc<Red>) {
    let retry = json!({"strategy": "immediate", "max_retries": 300});
    let task = json!({"kind": "pages", "queue": "pages", "retry": retry});
    let Ok((_, text)) = red.send("POST", "tasks", &red.keys.red_submitter, Some(task)).await else { return };
    let answer: Value = serde_json::from_str(&text).unwrap_or_default();
    let Some(id) = answer["id"].as_str().or(answer["tasks"][0]["id"].as_str()).map(str::to_owned) else { return };
    let worker = red.clone();
    tokio::spawn(async move {
        let ask = json!({"worker": "pages", "queues": ["pages"], "limit": 1, "wait": "1s"});
        for _ in 0..300 {
            let Ok((_, text)) = worker.send("POST", "leases", &worker.keys.red_worker, Some(ask.clone())).await else {
                break;
            };
            let answer: Value = serde_json::from_str(&text).unwrap_or_default();
            let error = json!({"message": "x".repeat(32 << 10), "stack": "y".repeat(16 << 10)});
            let report = json!({"lease": answer["leases"][0]["lease"], "outcome": "failed", "error": error});
            worker.try_to("POST", "leases/report", &worker.keys.red_worker, Some(json!({"reports": [report]}))).await;
        }
    });
    red.together(32, |red, _| {
        let path = format!("tasks/{id}/attempts?limit=500");
        async move {
            while red.goes_on() {
                red.try_to("GET", &path, &red.keys.red_viewer, None).await;
            }
        }
    })
    .await;
}

/// M13.
async fn rule_keys(red: Arc<Red>) {
    let rule = json!({"match": {"queue": USERS}, "per": ["user"], "max_running": 1});
    red.try_to("PUT", "rules/users", &red.keys.red_operator, Some(rule)).await;
    let worker = red.clone();
    tokio::spawn(async move {
        let ask = json!({"worker": "users", "queues": [USERS], "limit": 10, "wait": "1s"});
        while worker.goes_on() {
            worker.try_to("POST", "leases", &worker.keys.red_worker, Some(ask.clone())).await;
        }
    });
    // Many small requests, so that what is felt is the number of keys and not the size of a transaction.
    red.together(4, |red, _| async move {
        while red.goes_on() {
            let user = || json!({"kind": "u", "queue": USERS, "labels": {"user": red.name("user")}});
            let tasks: Vec<Value> = (0..50).map(|_| user()).collect();
            red.try_to("POST", "tasks", &red.keys.red_submitter, Some(json!({"tasks": tasks}))).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

/// The queue of the tasks that each have a key of their own.
const USERS: &str = "users";

/// An operator's clean-up after the attacks: cancels the tasks with the many keys. The rest of RED's work stays.
pub async fn clean_up(keys: &Keys) -> Result<()> {
    let red = red(keys.clone(), Duration::from_secs(600))?;
    let cancel = json!({"action": "cancel", "filter": format!("queue:{USERS}")});
    let (status, text) = red.send("POST", "tasks/bulk", &keys.red_operator, Some(cancel)).await?;
    anyhow::ensure!(status < 300, "{status}: {text}");
    let id = serde_json::from_str::<Value>(&text)?["id"].as_str().context("an operation")?.to_owned();
    while red.goes_on() {
        let (_, text) = red.send("GET", &format!("operations/{id}"), &keys.red_viewer, None).await?;
        if serde_json::from_str::<Value>(&text)?["state"] != "running" {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    anyhow::bail!("RED's tasks were not canceled within ten minutes")
}

/// H6, keys.
async fn new_keys(red: Arc<Red>) {
    red.together(4, |red, _| async move {
        while red.goes_on() {
            let body = json!({"role": "viewer", "name": red.name("key")});
            red.try_to("POST", "keys", &red.keys.red_admin, Some(body)).await;
        }
    })
    .await;
}

/// H6, named policies.
async fn large_policies(red: Arc<Red>) {
    red.together(2, |red, _| async move {
        while red.goes_on() {
            let schedule: Vec<String> = (0..900).map(|n| format!("{}s", n + 1)).collect();
            let body = json!({"strategy": "schedule", "schedule": schedule, "stop_when": format!("message == '{}'", "x".repeat(15 << 10))});
            let path = format!("policies/{}", red.name("policy"));
            red.try_to("PUT", &path, &red.keys.red_operator, Some(body)).await;
        }
    })
    .await;
}

/// M7.
async fn subscriptions(red: Arc<Red>) {
    red.together(4, |red, _| async move {
        while red.goes_on() {
            let body = json!({"id": red.name("sub"), "url": "http://127.0.0.1:9/", "types": ["task.failed"]});
            red.try_to("POST", "subscriptions", &red.keys.red_operator, Some(body)).await;
        }
    })
    .await;
}
