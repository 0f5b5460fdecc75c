//! The server's edge under attack: one namespace or one address takes all it can get, and its neighbour still works.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{Server, file, text};

fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(server.url.trim_start_matches("http://")).expect("a connection");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit");
    stream.set_write_timeout(Some(Duration::from_secs(20))).expect("a limit");
    stream
}

/// The head of a request of the namespace `red` that announces a body of so many bytes.
fn head(path: &str, length: usize) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncomeback-namespace: red\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n\r\n"
    )
}

/// Whether a keep-alive connection answers a request; what it answered.
fn ask(stream: &mut TcpStream, request: &str) -> Option<String> {
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = Vec::new();
    let mut piece = [0; 4096];
    loop {
        let read = stream.read(&mut piece).ok().filter(|read| *read > 0)?;
        answer.extend_from_slice(&piece[..read]);
        let so_far = text(&answer);
        let Some((head, body)) = so_far.split_once("\r\n\r\n") else { continue };
        let length =
            head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ").map(str::to_owned));
        if body.len() >= length.and_then(|length| length.trim().parse::<usize>().ok()).unwrap_or(0) {
            return Some(so_far);
        }
    }
}

async fn works(server: &Server, namespace: &str) {
    let client = server.client().in_namespace(Some(namespace.to_owned()));
    client.submit(&json!({"kind": "k"})).await.expect("submitted");
    let leased = client.lease(&json!({"worker": "w", "limit": 1, "wait": 5})).await.expect("leased");
    let lease = &leased["leases"][0];
    let beat =
        client.heartbeat(&[lease["lease"].as_str().expect("a token").to_owned()], 60).await.expect("a heartbeat");
    assert!(beat["leases"][0]["expires_at"].is_string(), "{beat}");
    let done = crate::harness::report(&client, lease, json!({"outcome": "succeeded"})).await;
    assert_eq!(done["state"], "succeeded", "{done}");
}

/// H1, H2: eight unfinished reports, eight unfinished submits and a hundred padded long polls of RED, in a server with little memory
/// for bodies. BLUE submits, leases, keeps and reports.
#[tokio::test]
async fn bodies_of_one_namespace_refuse_nobody_else() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(&file(folder.path()), &["--limit", "body_bytes=2097152,large_body=262144"]);
    let mut held = Vec::new();
    for path in ["/api/v1/leases/report", "/api/v1/tasks"] {
        for _ in 0..8 {
            let mut slow = connect(&server);
            slow.write_all(head(path, 256 << 10).as_bytes()).expect("the head");
            // Refused ones are closed while they send.
            let _ = slow.write_all(&vec![b' '; (256 << 10) - 1]);
            held.push(slow);
        }
    }
    let asking = json!({"worker": "w", "queues": ["none"], "wait": "20s"}).to_string();
    for _ in 0..100 {
        let mut poll = connect(&server);
        let padded = format!("{asking}{}", " ".repeat(60 << 10));
        poll.write_all(head("/api/v1/leases", padded.len()).as_bytes()).expect("the head");
        let _ = poll.write_all(padded.as_bytes());
        held.push(poll);
    }
    for _ in 0..10 {
        works(&server, "blue").await;
    }
    let metrics = server.http().get(format!("{}/metrics", server.url)).send().await.expect("an answer");
    let metrics = metrics.text().await.expect("text");
    let refused = |line: &str| metrics.lines().find_map(|it| it.strip_prefix(line)).is_some_and(|it| it.trim() != "0");
    assert!(refused("comeback_quota_refusals_total{quota=\"report_bytes\"}"), "{metrics}");
    assert!(refused("comeback_http_requests_refused_total{class=\"vital\"}"));
}

/// H14: as many connections without a key as the server allows, and more. A connection with a good key stays, and a new one gets in.
#[tokio::test]
async fn connections_without_a_key_keep_nobody_out() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(&file(folder.path()), &["--limit", "connections=40,connections_per_address=36"]);
    let made = server.client().post("/api/v1/keys", &json!({"role": "admin", "namespace": "*"})).await.expect("made");
    let key = made["key"].as_str().expect("a key").to_owned();
    let good = format!("GET /api/v1/stats HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\n\r\n");
    let mut blue = connect(&server);
    assert!(ask(&mut blue, &good).expect("an answer").starts_with("HTTP/1.1 200"));
    let mut flood: Vec<TcpStream> = Vec::new();
    let mut answered = 0;
    for n in 0..120 {
        let mut one = connect(&server);
        one.set_read_timeout(Some(Duration::from_secs(2))).expect("a limit");
        answered += usize::from(ask(&mut one, "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").is_some());
        flood.push(one);
        // Some say nothing at all.
        if n % 3 == 0 {
            flood.push(connect(&server));
        }
        if n % 10 == 0 {
            assert!(ask(&mut blue, &good).expect("it stays open").starts_with("HTTP/1.1 200"), "after {n}");
            let mut new = connect(&server);
            assert!(ask(&mut new, &good).expect("it gets in").starts_with("HTTP/1.1 200"), "after {n}");
        }
    }
    assert!(answered >= 100, "accepting never stalls: {answered} of 120 were answered");
    let client = server.client().with_key(Some(key));
    client.submit(&json!({"kind": "k"})).await.expect("submitted");
}

/// H11: streams that nobody reads hold a few kilobytes each, and are closed after a while.
#[tokio::test]
async fn unread_streams_hold_little_and_are_closed() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(
        &file(folder.path()),
        &["--limit", "write_timeout=2s", "--quota", "streams=60", "--quota", "stream_bytes=1048576"],
    );
    let client = server.client().in_namespace(Some("red".into()));
    // Some 25 MB of events: more than the operating system keeps for a connection.
    for _ in 0..20 {
        let tasks: Vec<Value> = (0..20).map(|_| json!({"kind": "k", "retry": {"max_retries": 0}})).collect();
        client.submit(&json!({"tasks": tasks})).await.expect("submitted");
        let leased = client.lease(&json!({"worker": "w", "limit": 20})).await.expect("leased");
        let error = json!({"type": "T", "message": "m".repeat(60_000)});
        let report = |lease: &Value| json!({"lease": lease["lease"], "outcome": "failed", "error": error});
        let reports: Vec<Value> = leased["leases"].as_array().expect("leases").iter().map(report).collect();
        client.report(&reports).await.expect("reported");
    }
    let before = resident(&server);
    let unread: Vec<TcpStream> = (0..60)
        .map(|_| {
            let mut stream = connect(&server);
            let ask = "GET /api/v1/events/stream HTTP/1.1\r\nhost: localhost\r\ncomeback-namespace: red\r\n\r\n";
            stream.write_all(ask.as_bytes()).expect("asked");
            stream
        })
        .collect();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let url = format!("{}/api/v1/events/stream", server.url);
    let more = server.http().get(&url).header("comeback-namespace", "red").send().await.expect("an answer");
    assert_eq!(more.status(), 429, "the quota");
    let blue = server.http().get(&url).header("comeback-namespace", "blue").send().await.expect("an answer");
    assert_eq!(blue.status(), 200, "of blue nobody has taken any");
    let grown = resident(&server).saturating_sub(before);
    assert!(grown < 200 << 10, "60 unread streams took {grown} KiB");
    // Those that took nothing for two seconds are gone, and others get in.
    let begun = Instant::now();
    loop {
        let again = server.http().get(&url).header("comeback-namespace", "red").send().await.expect("an answer");
        if again.status() == 200 {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "unread streams stay for ever");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    drop(unread);
}

/// KiB of memory that the server has.
fn resident(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.child.id())).expect("its status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("its memory");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// H10: four hundred keyed acts of RED whose senders have gone. BLUE's keyed act does not wait for them.
#[tokio::test]
async fn keyed_acts_of_one_namespace_do_not_hold_up_another() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(&file(folder.path()), &[]);
    let body = json!({"type": "order.paid", "data": "x".repeat(200_000)}).to_string();
    for n in 0..400 {
        let mut gone = connect(&server);
        let head = format!(
            "POST /api/v1/events HTTP/1.1\r\nhost: localhost\r\ncomeback-namespace: red\r\nidempotency-key: red-{n}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        gone.write_all(head.as_bytes()).expect("the head");
        gone.write_all(body.as_bytes()).expect("the body");
    }
    let begun = Instant::now();
    let blue = server.http().post(format!("{}/api/v1/events", server.url)).header("comeback-namespace", "blue");
    let blue =
        blue.header("idempotency-key", "blue").json(&json!({"type": "order.paid"})).send().await.expect("an answer");
    assert_eq!(blue.status(), 200);
    assert!(begun.elapsed() < Duration::from_secs(5), "it waited {:?}", begun.elapsed());
    assert!(resident(&server) < 400 << 10, "{} KiB", resident(&server));
}

/// H5: long polls with a thousand kinds each. They cost a submit of somebody else nothing that grows with their number.
#[tokio::test]
async fn long_polls_with_many_kinds_do_not_slow_a_neighbour() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(&file(folder.path()), &[]);
    let mut held = Vec::new();
    for n in 0..200 {
        let kinds: Vec<String> = (0..1_000).map(|kind| format!("kind-{n}-{kind}")).collect();
        let body = json!({"worker": format!("w{n}"), "queues": ["default"], "kinds": kinds, "wait": "30s"}).to_string();
        let mut poll = connect(&server);
        poll.write_all(head("/api/v1/leases", body.len()).as_bytes()).expect("the head");
        poll.write_all(body.as_bytes()).expect("the body");
        held.push(poll);
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let begun = Instant::now();
    for _ in 0..20 {
        works(&server, "blue").await;
    }
    println!("20 rounds beside 200 polls of 1,000 kinds: {:?}", begun.elapsed());
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
}

/// Guessing keys gets slower and slower; a good key from the same address is answered at once.
#[tokio::test]
async fn failed_logins_are_slowed_and_counted() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(&file(folder.path()), &[]);
    let made = server.client().post("/api/v1/keys", &json!({"role": "admin", "namespace": "*"})).await.expect("made");
    let good = server.client().with_key(made["key"].as_str().map(str::to_owned));
    let mut last = Duration::ZERO;
    for n in 0..20 {
        let begun = Instant::now();
        let guess =
            server.http().get(format!("{}/api/v1/tasks", server.url)).bearer_auth(format!("cbk_{n:012x}_guess"));
        assert_eq!(guess.send().await.expect("an answer").status(), 401);
        last = begun.elapsed();
    }
    assert!(last >= Duration::from_millis(900), "the twentieth was answered after {last:?}");
    let begun = Instant::now();
    good.get("/api/v1/tasks").await.expect("a list");
    assert!(begun.elapsed() < Duration::from_millis(900), "a good key waited {:?}", begun.elapsed());
    let metrics =
        server.http().get(format!("{}/metrics", server.url)).bearer_auth(made["key"].as_str().expect("a key"));
    let metrics = metrics.send().await.expect("an answer").text().await.expect("text");
    assert!(metrics.contains("comeback_auth_failures_total{reason=\"bad_key\"} 20"), "{metrics}");
}
