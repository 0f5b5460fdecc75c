//! `Idempotency-Key` on every request that acts: the same again changes nothing, another body is refused.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use comeback_engine::store::{AuditQuery, SqliteOptions, SqliteStore, StoreError};
use comeback_engine::{Engine, EngineConfig, SystemClock, VirtualClock};
use comeback_server::auth::{self, NewKey, Role};
use comeback_server::{App, AppOptions, LimiterOptions};
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::between::{Between, Hand};
use crate::place::{self, Place};

struct Door {
    app: Arc<App>,
}

impl Door {
    async fn new(clock: Option<Arc<VirtualClock>>) -> Door {
        let store = Arc::new(SqliteStore::open(&SqliteOptions::in_memory()).expect("a store"));
        let config = EngineConfig::default();
        let engine = match &clock {
            Some(clock) => Engine::without_loops(store, clock.clone(), config).await,
            None => Engine::without_loops(store, SystemClock::new(), config).await,
        };
        Door {
            app: App::new(engine.expect("an engine"), AppOptions { clock, ..AppOptions::default() })
                .await
                .expect("an app"),
        }
    }

    async fn send(&self, method: &str, path: &str, key: Option<&str>, body: &Value) -> (StatusCode, Value) {
        let mut request =
            Request::builder().method(method).uri(format!("/api/v1{path}")).header("content-type", "application/json");
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        let request = request.body(Body::from(body.to_string())).expect("a request");
        let answer = self.app.router().oneshot(request).await.expect("an answer");
        let status = answer.status();
        let bytes = to_bytes(answer.into_body(), 1 << 20).await.expect("a body");
        (status, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
    }

    async fn task(&self) -> String {
        let (status, answer) = self.send("POST", "/tasks", None, &json!({"kind": "k", "delay": "1h"})).await;
        assert_eq!(status, StatusCode::CREATED, "{answer}");
        answer["tasks"][0]["id"].as_str().expect("an id").to_owned()
    }
}

#[tokio::test]
async fn acts_on_a_task_are_done_once() {
    let door = Door::new(None).await;
    let (one, other) = (door.task().await, door.task().await);
    let cancel = format!("/tasks/{one}/cancel");
    let note = json!({"note": "not needed"});
    let first = door.send("POST", &cancel, Some("k"), &note).await;
    assert_eq!((first.0, &first.1["task"]["state"]), (StatusCode::OK, &json!("canceled")), "{}", first.1);
    assert_eq!(door.send("POST", &cancel, Some("k"), &note).await, first);
    let refused = door.send("POST", &cancel, None, &note).await;
    assert_eq!((refused.0, &refused.1["error"]), (StatusCode::BAD_REQUEST, &json!("VALIDATION_ERROR")));
    let mismatch = door.send("POST", &cancel, Some("k"), &json!({"note": "other"})).await;
    assert_eq!((mismatch.0, &mismatch.1["error"]), (StatusCode::CONFLICT, &json!("IDEMPOTENCY_MISMATCH")));
    let elsewhere = door.send("POST", &format!("/tasks/{other}/cancel"), Some("k"), &note).await;
    assert_eq!((elsewhere.0, &elsewhere.1["error"]), (StatusCode::CONFLICT, &json!("IDEMPOTENCY_MISMATCH")));
    let another_route = door.send("POST", &format!("/tasks/{other}/pause"), Some("k"), &note).await;
    assert_eq!(another_route.1["task"]["state"], "paused", "keys of different routes do not meet");
    let again = door.send("POST", &format!("/tasks/{other}/pause"), Some("k"), &note).await;
    assert_eq!(again, another_route);
    let bad = door.send("POST", &cancel, Some(&"k".repeat(300)), &note).await;
    assert_eq!((bad.0, &bad.1["errors"][0]["path"]), (StatusCode::BAD_REQUEST, &json!("idempotency_key")));
}

#[tokio::test]
async fn a_loop_that_was_resumed_is_not_paused_by_an_old_request() {
    let door = Door::new(None).await;
    let pause = json!({"duration": "30m", "types": ["STUCK_JOBS"], "note": "deploy"});
    let paused = |answer: &Value| {
        let items = answer["items"].as_array().expect("loops");
        items.iter().filter(|it| it["paused"] == true).map(|it| it["name"].clone()).collect::<Vec<_>>()
    };
    let first = door.send("POST", "/admin/retry-scheduler/pause", Some("k"), &pause).await;
    assert_eq!((first.0, paused(&first.1)), (StatusCode::OK, vec![json!("reap")]), "S2-types: {}", first.1);
    let resumed = door.send("POST", "/admin/retry-scheduler/resume", None, &json!({})).await;
    assert_eq!((resumed.0, paused(&resumed.1)), (StatusCode::OK, vec![]));
    let again = door.send("POST", "/admin/retry-scheduler/pause", Some("k"), &pause).await;
    assert_eq!((again.0, paused(&again.1)), (StatusCode::OK, vec![]));
    let (status, problem) = door.send("POST", "/admin/retry-scheduler/pause", None, &json!({"types": ["NAPS"]})).await;
    assert_eq!((status, &problem["errors"][0]["path"]), (StatusCode::BAD_REQUEST, &json!("types[0]")));
}

#[tokio::test]
async fn a_key_is_made_once_and_its_secret_shown_once() {
    let door = Door::new(None).await;
    let (_, first) = door.send("POST", "/keys", Some("k"), &json!({"role": "admin"})).await;
    let secret = first["key"].as_str().expect("a secret").to_owned();
    assert!(secret.starts_with(&format!("cbk_{}_", first["id"].as_str().expect("an id"))));
    let again = Request::post("/api/v1/keys")
        .header("content-type", "application/json")
        .header("authorization", format!("Bearer {secret}"))
        .header("idempotency-key", "k")
        .body(Body::from(json!({"role": "admin"}).to_string()))
        .expect("a request");
    let answer = door.app.router().oneshot(again).await.expect("an answer");
    assert_eq!(answer.status(), StatusCode::CREATED);
    let shown: Value =
        serde_json::from_slice(&to_bytes(answer.into_body(), 1 << 20).await.expect("a body")).expect("JSON");
    assert_eq!((&shown["id"], &shown["key"]), (&first["id"], &Value::Null));
    assert_eq!(door.app.keys.all().len(), 1);
}

/// M1: a key is never replaced, also when the record of the request that made it was pruned.
#[tokio::test]
async fn a_key_is_not_replaced_when_the_record_of_its_request_is_gone() {
    let clock = VirtualClock::new(comeback_core::Timestamp(1_700_000_000_000));
    let door = Door::new(Some(clock.clone())).await;
    let (_, first) = door.send("POST", "/keys", Some("provision"), &json!({"role": "admin"})).await;
    let secret = first["key"].as_str().expect("a secret").to_owned();
    assert_eq!(first["id"].as_str().map(str::len), Some(32), "M2: 128 bits");
    clock.advance(comeback_core::Millis::from_days(3));
    while door.app.engine.store().prune(door.app.engine.now(), 1_000).await.expect("pruned").more {}
    let again = async |key: &str| {
        let request = Request::post("/api/v1/keys")
            .header("content-type", "application/json")
            .header("authorization", format!("Bearer {secret}"))
            .header("idempotency-key", key);
        let request = request.body(Body::from(json!({"role": "admin"}).to_string())).expect("a request");
        let answer = door.app.router().oneshot(request).await.expect("an answer");
        let status = answer.status();
        let bytes = to_bytes(answer.into_body(), 1 << 20).await.expect("a body");
        (status, serde_json::from_slice::<Value>(&bytes).expect("JSON"))
    };
    for _ in 0..2 {
        let (status, problem) = again("provision").await;
        assert_eq!((status, &problem["type"]), (StatusCode::CONFLICT, &json!("key-exists")), "{problem}");
        assert_eq!(problem["id"], first["id"]);
    }
    assert_eq!(again("another").await.0, StatusCode::CREATED, "the first secret is still good");
    assert_eq!(door.app.keys.all().len(), 2);
}

/// A key that the version before made, with the shorter id, is found by the request that made it.
#[tokio::test]
async fn a_key_with_an_id_of_the_version_before_is_not_made_twice() {
    let door = Door::new(None).await;
    let store = &**door.app.engine.store();
    let new = || NewKey { name: None, role: Role::Admin, namespace: "*".into(), valid_for: None };
    let id = auth::key_id(Some(("default", "*", "k"))).expect("an id");
    let (terms, act, now) = (auth::KeyLimits::default, Default::default(), door.app.engine.now());
    let made = door.app.keys.create_as(store, id[..12].into(), new(), terms(), 9, &act, now).await.expect("made");
    assert!(matches!(made, auth::KeyResult::Key(..)));
    let again = door.app.keys.create_as(store, id, new(), terms(), 9, &act, now).await.expect("an answer");
    assert!(matches!(again, auth::KeyResult::Exists(it) if it.len() == 12));
}

/// Loses the answer of one of the next writes; the write itself happens.
#[derive(Default)]
struct LosesAnswers(AtomicU64);

#[async_trait]
impl Hand for LosesAnswers {
    async fn before(&self, _: bool) -> Result<u64, StoreError> {
        Ok(0)
    }

    async fn after(&self, _: u64, changed: bool) -> Result<(), StoreError> {
        let left = self.0.load(Ordering::SeqCst);
        if changed && left > 0 {
            self.0.store(left - 1, Ordering::SeqCst);
        }
        if changed && left == 1 { Err(StoreError::Unavailable("the answer was lost".into())) } else { Ok(()) }
    }
}

/// Acts of every shape, and how many lines of the audit each leaves.
const ACTS: [(&str, &str, usize); 10] = [
    ("/schedules/often/trigger", "{}", 1),
    ("/schedules/often/pause", r#"{"note": "n"}"#, 1),
    ("/schedules/often/resume", r#"{"note": "n"}"#, 1),
    ("/subscriptions/ops/test", "{}", 1),
    ("/subscriptions/ops/rotate", "{}", 1),
    ("/subscriptions/ops/redeliver", r#"{"within": "1h"}"#, 1),
    ("/clock/advance", r#"{"by": "1h"}"#, 1),
    ("/admin/retry-scheduler/pause", r#"{"types": ["STUCK_JOBS", "TIMEOUTS"]}"#, 2),
    ("/admin/cleanup", r#"{"older_than": "30d"}"#, 1),
    ("/admin/tasks/process-failed", "{}", 1),
];

/// What those acts are about.
async fn furnish(door: &Door) {
    let schedule = json!({"name": "often", "every": "1000h", "task": {"kind": "made"}});
    assert_eq!(door.send("POST", "/schedules", None, &schedule).await.0, StatusCode::CREATED);
    let subscription = json!({"id": "ops", "url": "https://example.test/a", "types": ["alert.*"]});
    assert_eq!(door.send("POST", "/subscriptions", None, &subscription).await.0, StatusCode::CREATED);
}

async fn audit_lines(door: &Door) -> usize {
    let query = AuditQuery { limit: 10_000, ..AuditQuery::default() };
    door.app.engine.audit(&query).await.expect("acts").len()
}

/// How many steps a request made, and a secret, are in the first answer only; what its loops did, each instance says for itself.
fn told_again(mut answer: Value) -> Value {
    answer["steps"] = Value::Null;
    answer["secret"] = Value::Null;
    for item in answer.get_mut("items").and_then(Value::as_array_mut).into_iter().flatten() {
        for own in ["looked_at", "moved_total", "failed_total"] {
            item[own] = Value::Null;
        }
    }
    answer
}

/// F2: an act whose answer was lost anywhere on the way is finished by its repetition, which may come to another instance.
#[tokio::test]
async fn an_act_that_broke_off_is_finished_and_not_done_again() {
    for place in Place::all().await {
        let hand = Arc::new(LosesAnswers::default());
        let store = Between { truth: place.app.engine.store().clone(), hand: hand.clone() };
        let breaks_off = Door { app: place::app(Arc::new(store), LimiterOptions::default()).await };
        let other = Door { app: place.app.clone() };
        furnish(&other).await;
        for (path, body, lines) in ACTS {
            let body: Value = serde_json::from_str(body).expect("JSON");
            for lost in 1..=4 {
                let (at, before) = (format!("{} {path} {lost}", place.word), audit_lines(&other).await);
                hand.0.store(lost, Ordering::SeqCst);
                let first = breaks_off.send("POST", path, Some(&at), &body).await;
                hand.0.store(0, Ordering::SeqCst);
                let second = other.send("POST", path, Some(&at), &body).await;
                assert!(second.0.is_success(), "{at}: {second:?}");
                assert_eq!(audit_lines(&other).await - before, lines, "{at}");
                let third = breaks_off.send("POST", path, Some(&at), &body).await;
                assert_eq!((third.0, told_again(third.1)), (second.0, told_again(second.1.clone())), "{at}");
                if first.0.is_success() {
                    assert_eq!((first.0, told_again(first.1)), (second.0, told_again(second.1)), "{at}");
                }
                assert_eq!(audit_lines(&other).await - before, lines, "{at}");
            }
        }
        drop((breaks_off, other));
        place.leave().await;
    }
}

/// F2: the key is taken in the transaction of the act, whichever instance comes first.
#[tokio::test]
async fn an_act_is_done_once_by_two_instances_at_the_same_moment() {
    for place in Place::all().await {
        let one = Door { app: place.app.clone() };
        let two = Door { app: place::app(place.app.engine.store().clone(), LimiterOptions::default()).await };
        furnish(&one).await;
        for (path, body, lines) in ACTS {
            let body: Value = serde_json::from_str(body).expect("JSON");
            for n in 0..4 {
                let (at, before) = (format!("{} {path} {n}", place.word), audit_lines(&one).await);
                let (first, second) =
                    tokio::join!(one.send("POST", path, Some(&at), &body), two.send("POST", path, Some(&at), &body));
                assert!(first.0.is_success(), "{at}: {first:?}");
                assert_eq!((first.0, told_again(first.1)), (second.0, told_again(second.1)), "{at}");
                assert_eq!(audit_lines(&one).await - before, lines, "{at}");
            }
        }
        drop((one, two));
        place.leave().await;
    }
}

/// F2: the answer is stored with the key, so that a repetition is told what came of itself and not of a later request.
#[tokio::test]
async fn a_repetition_is_answered_by_what_its_own_request_made() {
    for place in Place::all().await {
        let door = Door { app: place.app.clone() };
        furnish(&door).await;
        for path in ["/schedules/often/trigger", "/subscriptions/ops/test"] {
            let first = door.send("POST", path, Some("first"), &json!({})).await;
            let later = door.send("POST", path, Some("later"), &json!({})).await;
            assert_eq!((first.0, later.0), (StatusCode::CREATED, StatusCode::CREATED), "{} {path}", place.word);
            assert_ne!(first.1, later.1, "{path}");
            assert_eq!(door.send("POST", path, Some("first"), &json!({})).await, first, "{} {path}", place.word);
        }
        drop(door);
        place.leave().await;
    }
}

/// What was begun is done and remembered although nobody waits for the answer.
#[tokio::test]
async fn a_caller_who_hangs_up_does_not_cut_an_act() {
    let clock = VirtualClock::new(comeback_core::Timestamp(1_700_000_000_000));
    let door = Door::new(Some(clock)).await;
    for hour in 1..=50 {
        let task = json!({"kind": "k", "delay": format!("{hour}h")});
        assert_eq!(door.send("POST", "/tasks", None, &task).await.0, StatusCode::CREATED);
    }
    let start = door.app.engine.now();
    let target = start + comeback_core::Millis::from_secs(50 * 3600);
    let body = json!({"by": "50h"});
    let moves = async {
        while door.app.engine.now() == start {
            tokio::task::yield_now().await;
        }
    };
    // The first step is made, then nobody listens any more.
    tokio::select! {
        answer = door.send("POST", "/clock/advance", Some("k"), &body) => panic!("it takes longer than that: {answer:?}"),
        () = moves => {}
    }
    let soon = tokio::time::Instant::now() + std::time::Duration::from_secs(20);
    while door.app.engine.now() < target && tokio::time::Instant::now() < soon {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert_eq!(door.app.engine.now(), target);
    let (_, again) = door.send("POST", "/clock/advance", Some("k"), &body).await;
    assert_eq!(again, json!({"now": target.to_rfc3339(), "steps": 0}));
}

/// Every step is written down before it is made, and other instances go along.
#[tokio::test]
async fn time_is_shared_and_never_goes_back() {
    let start = comeback_core::Timestamp(1_700_000_000_000);
    let store = Arc::new(SqliteStore::open(&SqliteOptions::in_memory()).expect("a store"));
    let mut doors = Vec::new();
    for _ in 0..2 {
        let clock = VirtualClock::new(start);
        let engine = Engine::without_loops(store.clone(), clock.clone(), EngineConfig::default()).await;
        let options = AppOptions { clock: Some(clock), ..AppOptions::default() };
        doors.push(Door { app: App::new(engine.expect("an engine"), options).await.expect("an app") });
    }
    let at = |hours: u64| (start + comeback_core::Millis::from_secs(hours * 3600)).to_rfc3339();
    let (_, moved) = doors[0].send("POST", "/clock/advance", None, &json!({"by": "5h"})).await;
    assert_eq!(moved["now"], at(5));
    let (_, moved) = doors[1].send("POST", "/clock/advance", None, &json!({"by": "1h"})).await;
    assert_eq!(moved["now"], at(6), "an hour after where the first has got to");
    let soon = tokio::time::Instant::now() + std::time::Duration::from_secs(20);
    while doors[0].app.engine.now().to_rfc3339() != at(6) {
        assert!(tokio::time::Instant::now() < soon, "the first follows by itself");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn time_is_moved_once() {
    let door = Door::new(Some(VirtualClock::new(comeback_core::Timestamp(1_700_000_000_000)))).await;
    let (_, first) = door.send("POST", "/clock/advance", Some("k"), &json!({"by": "1h"})).await;
    let (_, again) = door.send("POST", "/clock/advance", Some("k"), &json!({"by": "1h"})).await;
    assert_eq!(first["now"], again["now"]);
}

/// The contract's simulation: failures one after the other, each with its verdict.
#[tokio::test]
async fn a_policy_is_played_through_with_the_failures_one_gives() {
    let door = Door::new(None).await;
    let ask = json!({
        "policy": {"strategy": "fixed", "delay": "10s", "max_retries": 5},
        "failures": [{"after": "2s", "status": 503}, {"status": 429, "retry_after": 60}, {"class": "final"}],
        "seed": 7,
    });
    let (status, answer) = door.send("POST", "/policies/simulate", None, &ask).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    let attempts = answer["attempts"].as_array().expect("attempts");
    let verdicts: Vec<&Value> = attempts.iter().map(|it| &it["verdict"]).collect();
    assert_eq!(verdicts, ["retry", "throttle", "refuse"], "{answer}");
    let at = |n: usize| attempts[n]["at"].as_str().and_then(|text| comeback_core::Timestamp::parse_rfc3339(text).ok());
    let gap = |n: usize| at(n + 1).zip(at(n)).map(|(later, sooner)| later.0 - sooner.0);
    assert_eq!((gap(0), gap(1)), (Some(12_000), Some(60_000)));
    assert_eq!(answer["then"]["state"], "failed");
    let bad = json!({"policy": 3, "failures": [{"clas": "final"}]});
    let (status, problem) = door.send("POST", "/policies/simulate", None, &bad).await;
    assert_eq!(
        (status, &problem["errors"][0]["path"]),
        (StatusCode::BAD_REQUEST, &json!("failures[0].clas")),
        "{problem}"
    );
}
