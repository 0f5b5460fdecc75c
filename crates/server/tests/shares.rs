//! What one namespace can take from the others: not more than its share of body memory, streams and keyed acts. And what every answer
//! has in common.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, BodyDataStream};
use axum::http::Request;
use comeback_core::Quotas;
use comeback_engine::store::Store;
use comeback_server::auth::Need;
use comeback_server::{App, LimiterOptions};
use futures_util::StreamExt;
use futures_util::future::join_all;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::place::{self, Answer, Place, routes};

fn quotas(given: &[(&str, u64)]) -> Quotas {
    let mut quotas = Quotas::default();
    for (name, value) in given {
        quotas.set(name, &value.to_string()).expect("a quota");
    }
    quotas
}

fn post(namespace: &str, path: &str, body: String) -> Request<Body> {
    Request::post(path)
        .header("comeback-namespace", namespace)
        .header("content-type", "application/json")
        .body(Body::from(body))
        .expect("a request")
}

fn get(namespace: &str, path: &str) -> Request<Body> {
    Request::get(path).header("comeback-namespace", namespace).body(Body::empty()).expect("a request")
}

async fn send(router: &Router, request: Request<Body>) -> Answer {
    place::send(router, request).await
}

async fn metric(router: &Router, line: &str) -> u64 {
    let answer = send(router, get("blue", "/metrics")).await;
    let text = String::from_utf8(answer.bytes.to_vec()).expect("text");
    let value = text.lines().find_map(|it| it.strip_prefix(line)).unwrap_or_else(|| panic!("no {line}"));
    value.trim().parse().expect("a number")
}

/// The stores of both databases, each with its place so that it lives long enough.
async fn stores() -> Vec<(Place, Arc<dyn Store>)> {
    Place::all().await.into_iter().map(|place| (place.app.engine.store().clone(), place)).map(|(a, b)| (b, a)).collect()
}

async fn app(store: &Arc<dyn Store>, gate: LimiterOptions, given: &[(&str, u64)]) -> Arc<App> {
    place::app_with(store.clone(), gate, quotas(given)).await
}

/// H2: long polls kept the memory of their bodies, so that padded ones refused every submit of all namespaces.
#[tokio::test]
async fn padded_long_polls_hold_no_memory_while_they_wait() {
    for (place, store) in stores().await {
        let gate = LimiterOptions { body_bytes: 1 << 20, ..LimiterOptions::default() };
        let app = app(&store, gate, &[]).await;
        let router = app.router();
        let asking = json!({"worker": "w", "queues": ["none"], "wait": "10s"}).to_string();
        let padded = format!("{asking}{}", " ".repeat(100 << 10));
        // Five of them fit at once; the others come again until those are parsed.
        let poll = |router: Router, padded: String| async move {
            loop {
                let answer = router.clone().oneshot(post("red", "/api/v1/leases", padded.clone())).await;
                match answer.expect("an answer").status().as_u16() {
                    429 => tokio::time::sleep(Duration::from_millis(10)).await,
                    status => return status,
                }
            }
        };
        let polls: Vec<_> = (0..30).map(|_| tokio::spawn(poll(router.clone(), padded.clone()))).collect();
        let all_wait = async {
            while metric(&router, "comeback_http_requests_in_progress{class=\"lease\"}").await < 30 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        assert!(tokio::time::timeout(Duration::from_secs(8), all_wait).await.is_ok(), "{}", place.word);
        for namespace in ["blue", "red"] {
            let task = json!({"kind": "k", "payload": "x".repeat(200 << 10)}).to_string();
            let answer = send(&router, post(namespace, "/api/v1/tasks", task)).await;
            assert_eq!(answer.status, 201, "{namespace}: {:?}", answer.problem());
        }
        for poll in polls {
            assert_eq!(poll.await.expect("no panic"), 200, "it waited");
        }
        drop(app);
        place.leave().await;
    }
}

/// H1: what one namespace has not finished to send refused everybody.
#[tokio::test]
async fn unfinished_bodies_count_for_their_namespace_alone() {
    for (place, store) in stores().await {
        let gate = LimiterOptions { body_bytes: 1 << 20, large_body: 128 << 10, ..LimiterOptions::default() };
        let app = app(&store, gate, &[]).await;
        let router = app.router();
        let unfinished = |path: &'static str| {
            let first = futures_util::stream::iter([Ok::<_, std::io::Error>(vec![b' '; (128 << 10) - 1])]);
            let body = Body::from_stream(first.chain(futures_util::stream::pending()));
            let request =
                Request::post(path).header("comeback-namespace", "red").header("transfer-encoding", "chunked");
            let request = request.header("content-type", "application/json").body(body).expect("a request");
            tokio::spawn(router.clone().oneshot(request))
        };
        let slow: Vec<_> =
            (0..8).flat_map(|_| [unfinished("/api/v1/leases/report"), unfinished("/api/v1/tasks")]).collect();
        tokio::time::sleep(Duration::from_millis(200)).await;
        let refused = metric(&router, "comeback_http_requests_refused_total{class=\"vital\"}").await;
        assert!(refused >= 4, "half of eight fit into its half: {refused}");
        assert!(metric(&router, "comeback_quota_refusals_total{quota=\"report_bytes\"}").await >= 4);
        assert!(metric(&router, "comeback_quota_refusals_total{quota=\"body_bytes\"}").await >= 4);
        for _ in 0..5 {
            let submitted = send(&router, post("blue", "/api/v1/tasks", json!({"kind": "k"}).to_string())).await;
            assert_eq!(submitted.status, 201);
            let leased = send(&router, post("blue", "/api/v1/leases", json!({"worker": "w"}).to_string())).await.json();
            let lease = leased["leases"][0]["lease"].clone();
            let beat =
                send(&router, post("blue", "/api/v1/leases/heartbeat", json!({"leases": [lease]}).to_string())).await;
            assert_eq!(beat.status, 200, "{}", place.word);
            // As large as a report may be here.
            let report = json!({"reports": [{"lease": lease, "outcome": "succeeded"}]}).to_string();
            let report = format!("{report}{}", " ".repeat((128 << 10) - report.len()));
            assert_eq!(send(&router, post("blue", "/api/v1/leases/report", report)).await.status, 200);
        }
        slow.iter().for_each(tokio::task::JoinHandle::abort);
        drop(app);
        place.leave().await;
    }
}

/// H10: keyed acts waited for each other whatever their keys, and counted nowhere once their senders had gone.
#[tokio::test]
async fn keyed_acts_whose_senders_have_gone_are_done_and_counted() {
    for (place, store) in stores().await {
        let app = app(&store, LimiterOptions::default(), &[("keyed_acts", 2)]).await;
        let router = app.router();
        let keyed = |namespace: &str, key: String| {
            let mut request = post(namespace, "/api/v1/events", json!({"type": "order.paid"}).to_string());
            request.headers_mut().insert("idempotency-key", key.parse().expect("a key"));
            request
        };
        // Senders that go as soon as their act has begun.
        for n in 0..50 {
            let sent = router.clone().oneshot(keyed("red", format!("gone-{n}")));
            let _ = tokio::time::timeout(Duration::from_millis(1), sent).await;
        }
        let answers = join_all((0..20).map(|n| send(&router, keyed("blue", format!("k-{n}"))))).await;
        assert!(answers.iter().all(|answer| answer.status == 200), "{}: they wait for their turn", place.word);
        for _ in 0..100 {
            if metric(&router, "comeback_http_requests_in_progress{class=\"write\"}").await == 0 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(metric(&router, "comeback_http_requests_in_progress{class=\"write\"}").await, 0);
        drop(app);
        place.leave().await;
    }
}

async fn stream(router: &Router, namespace: &str, after: &str) -> Result<BodyDataStream, Answer> {
    let path = format!("/api/v1/events/stream{after}");
    let response = router.clone().oneshot(get(namespace, &path)).await.expect("an answer");
    if response.status() == 200 {
        return Ok(response.into_body().into_data_stream());
    }
    let (head, body) = response.into_parts();
    let bytes = axum::body::to_bytes(body, 1 << 20).await.expect("a body");
    Err(Answer { status: head.status, headers: head.headers, bytes })
}

/// Reads a stream until it has told of so many events.
async fn told(stream: &mut BodyDataStream, count: usize) -> Vec<Value> {
    let (mut text, mut events) = (String::new(), Vec::new());
    while events.len() < count {
        let piece = tokio::time::timeout(Duration::from_secs(20), stream.next()).await;
        let piece = piece.unwrap_or_else(|_| panic!("{} of {count} events came", events.len()));
        text.push_str(std::str::from_utf8(&piece.expect("it goes on").expect("it is sent")).expect("text"));
        while let Some((block, rest)) = text.split_once("\n\n") {
            let data = block.lines().find_map(|line| line.strip_prefix("data: "));
            events.extend(data.map(|data| serde_json::from_str(data).expect("JSON")));
            text = rest.to_owned();
        }
    }
    events
}

/// H11: a thousand streams of one namespace were all there were.
#[tokio::test]
async fn streams_have_a_quota_per_namespace() {
    for (place, store) in stores().await {
        let app = app(&store, LimiterOptions::default(), &[("streams", 3)]).await;
        let router = app.router();
        let mut red = Vec::new();
        for _ in 0..3 {
            red.push(stream(&router, "red", "?after=latest").await.expect("its quota"));
        }
        let refused = stream(&router, "red", "").await.expect_err("more than its quota");
        assert_eq!((refused.status.as_u16(), refused.json()["quota"].as_str()), (429, Some("streams")));
        let mut blue = stream(&router, "blue", "?after=latest").await.expect("blue has its own");
        // Everybody hears of their own, and idle streams are woken.
        tokio::time::sleep(Duration::from_millis(400)).await;
        for namespace in ["red", "blue"] {
            send(&router, post(namespace, "/api/v1/tasks", json!({"kind": namespace}).to_string())).await;
        }
        assert_eq!(told(&mut blue, 1).await[0]["namespace"], "blue");
        for one in &mut red {
            assert_eq!(told(one, 1).await[0]["namespace"], "red");
        }
        drop(red);
        let is_free = async || stream(&router, "red", "").await.is_ok();
        let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
        while !is_free().await {
            assert!(tokio::time::Instant::now() < deadline, "a stream that was closed is free again");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        drop((blue, app));
        place.leave().await;
    }
}

/// H11: a stream kept hundreds of whole events. Now it keeps a few kilobytes, and still tells every event once and in order.
#[tokio::test]
async fn a_stream_that_may_hold_little_tells_everything_in_order() {
    for (place, store) in stores().await {
        let app = app(&store, LimiterOptions::default(), &[("stream_bytes", 9_000), ("streams", 2)]).await;
        let router = app.router();
        for n in 0..40 {
            let cancel = json!({"note": format!("{n} {}", "x".repeat(900))}).to_string();
            let made = send(&router, post("red", "/api/v1/tasks", json!({"kind": "k"}).to_string())).await.json();
            let id = made["tasks"][0]["id"].as_str().expect("an id").to_owned();
            send(&router, post("red", &format!("/api/v1/tasks/{id}/cancel"), cancel)).await;
            // Others' events lie between.
            send(&router, post("green", "/api/v1/tasks", json!({"kind": "k"}).to_string())).await;
        }
        let mut one = stream(&router, "red", "").await.expect("a stream");
        let events = told(&mut one, 80).await;
        let ids: std::collections::BTreeSet<&str> = events.iter().filter_map(|it| it["id"].as_str()).collect();
        assert_eq!(ids.len(), 80, "{}: each once", place.word);
        assert!(events.iter().all(|event| event["namespace"] == "red"));
        // An idle stream goes on behind what others did meanwhile.
        tokio::time::sleep(Duration::from_millis(400)).await;
        for n in 0..30 {
            send(&router, post("green", "/api/v1/tasks", json!({"kind": format!("g{n}")}).to_string())).await;
        }
        tokio::time::sleep(Duration::from_millis(400)).await;
        send(&router, post("red", "/api/v1/tasks", json!({"kind": "last"}).to_string())).await;
        assert_eq!(told(&mut one, 1).await[0]["namespace"], "red");
        drop((one, app));
        place.leave().await;
    }
}

/// The most bytes of a page, and a little for what is around its items.
const PAGE: usize = (2 << 20) + (64 << 10);

/// All items of a list, page by page, none of which is too large.
async fn pages(router: &Router, path: &str) -> Vec<Value> {
    let (mut items, mut cursor) = (Vec::new(), String::new());
    loop {
        let answer = send(router, get("red", &format!("{path}&limit=500{cursor}"))).await;
        assert_eq!(answer.status, 200, "{path}: {:?}", answer.problem());
        assert!(answer.bytes.len() <= PAGE, "{path}: a page of {} bytes", answer.bytes.len());
        let page = answer.json();
        let found = page["items"].as_array().expect("items").clone();
        let is_last = page["next_cursor"].is_null() || found.is_empty();
        items.extend(found);
        if is_last {
            return items;
        }
        cursor = format!("&cursor={}", page["next_cursor"].as_str().expect("a cursor"));
        if path.starts_with("/api/v1/events") {
            cursor = cursor.replace("&cursor=", "&after=");
        }
    }
}

/// M10: a page of 300 attempts had 30 MB.
#[tokio::test]
async fn pages_are_bounded_in_bytes() {
    for (place, store) in stores().await {
        let app = app(&store, LimiterOptions::default(), &[]).await;
        let router = app.router();
        let failed = json!({"type": "T", "message": "m".repeat(60_000)});
        let made =
            send(&router, post("red", "/api/v1/tasks", json!({"kind": "k", "retry": {"max_retries": 0}}).to_string()));
        let id = made.await.json()["tasks"][0]["id"].as_str().expect("an id").to_owned();
        let rounds = 110;
        for round in 0..rounds {
            let leased =
                send(&router, post("red", "/api/v1/leases", json!({"worker": "w", "limit": 1}).to_string())).await;
            let lease = leased.json()["leases"][0]["lease"].clone();
            assert!(lease.is_string(), "round {round}");
            let report = json!({"reports": [{"lease": lease, "outcome": "failed", "error": failed}]});
            let reported = send(&router, post("red", "/api/v1/leases/report", report.to_string())).await;
            assert_eq!(reported.status, 200);
            if round + 1 < rounds {
                let again = send(&router, post("red", &format!("/api/v1/tasks/{id}/retry"), "{}".into())).await;
                assert_eq!(again.status, 200, "{:?}", String::from_utf8_lossy(&again.bytes));
            }
        }
        for newest in ["?newest=false", "?newest=true"] {
            let attempts = pages(&router, &format!("/api/v1/tasks/{id}/attempts{newest}")).await;
            assert_eq!(attempts.len(), rounds, "{} {newest}: every attempt once", place.word);
        }
        let events = pages(&router, &format!("/api/v1/tasks/{id}/events?")).await;
        let seqs: std::collections::BTreeSet<u64> = events.iter().filter_map(|it| it["seq"].as_u64()).collect();
        assert_eq!(seqs.len(), events.len(), "every event once");
        let told = pages(&router, "/api/v1/events?names=native").await;
        assert!(!told.is_empty());
        // Lists of tasks with large errors.
        let tasks: Vec<Value> = (0..150).map(|_| json!({"kind": "k", "retry": {"max_retries": 0}})).collect();
        send(&router, post("red", "/api/v1/tasks", json!({"tasks": tasks}).to_string())).await;
        for _ in 0..3 {
            let leased =
                send(&router, post("red", "/api/v1/leases", json!({"worker": "w", "limit": 50}).to_string())).await;
            let leases = leased.json()["leases"].as_array().expect("leases").clone();
            let report = |lease: &Value| json!({"lease": lease["lease"], "outcome": "failed", "error": failed});
            let reports: Vec<Value> = leases.iter().map(report).collect();
            send(&router, post("red", "/api/v1/leases/report", json!({"reports": reports}).to_string())).await;
        }
        assert_eq!(pages(&router, "/api/v1/tasks?sort=-submitted").await.len(), 151, "{}", place.word);
        drop(app);
        place.leave().await;
    }
}

/// Answers of the API are not kept by anybody on the way, and nobody guesses what they are.
#[tokio::test]
async fn every_answer_forbids_caching_and_sniffing() {
    let place = Place::sqlite().await;
    let router = place.app.router();
    for route in routes() {
        let path =
            route.path.replace("{id}", "x").replace("{name}", "x").replace("{*path}", "x").replace("{path}", "x");
        let request = place::request(&route.method, &path).header("content-type", "application/json");
        let answer = send(&router, request.body(Body::empty()).expect("a request")).await;
        let header = |name: &str| answer.headers.get(name).and_then(|value| value.to_str().ok());
        assert_eq!(header("cache-control"), Some("no-store"), "{} {path}", route.method);
        assert_eq!(header("x-content-type-options"), Some("nosniff"), "{} {path}", route.method);
    }
    let missing = send(&router, get("default", "/api/v1/nowhere")).await;
    assert_eq!(missing.headers["cache-control"], "no-store");
}

/// Behind a proxy that rewrites the host, a server without keys was open to everybody.
#[tokio::test]
async fn without_keys_nobody_is_answered_through_a_proxy() {
    let place = Place::sqlite().await;
    let router = place.app.router();
    for header in ["forwarded", "via", "x-forwarded-for", "x-forwarded-host", "X-Forwarded-Proto"] {
        let request = Request::get("/api/v1/tasks").header("host", "localhost").header(header, "203.0.113.9");
        let answer = send(&router, request.body(Body::empty()).expect("a request")).await;
        assert_eq!(answer.status, 403, "{header}");
        assert!(answer.json()["detail"].as_str().expect("words").contains("create a key"), "{header}");
    }
    assert_eq!(metric(&router, "comeback_auth_failures_total{reason=\"forbidden\"}").await, 5);
    for route in routes().iter().filter(|route| route.need == Need::Nothing) {
        let request = place::request(&route.method, route.path).header("x-forwarded-for", "203.0.113.9");
        let answer = send(&router, request.body(Body::empty()).expect("a request")).await;
        assert_ne!(answer.status, 403, "{}: health is open", route.path);
    }
}
