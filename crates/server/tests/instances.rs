//! Who is there: instances and the workers that ask them, as every instance tells it.

use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::http::Request;
use comeback_core::{Millis, Timestamp};
use comeback_engine::store::{SqliteOptions, SqliteStore, Store};
use comeback_engine::{Engine, EngineConfig, VirtualClock};
use comeback_server::{App, AppOptions, start_virtual_clock};
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::place::Place;

async fn instance(name: &str, store: Arc<dyn Store>, clock: Arc<VirtualClock>) -> Arc<App> {
    let engine = Engine::without_loops(store, clock.clone(), EngineConfig::default()).await.expect("an engine");
    let options = AppOptions { instance: name.into(), clock: Some(clock), ..AppOptions::default() };
    App::new(engine, options).await.expect("an app")
}

async fn send(app: &Arc<App>, method: &str, path: &str, body: Value) -> (u16, Value) {
    let request =
        Request::builder().method(method).uri(format!("/api/v1{path}")).header("content-type", "application/json");
    let body = if body.is_null() { Body::empty() } else { Body::from(body.to_string()) };
    let answer = app.router().oneshot(request.body(body).expect("a request")).await.expect("an answer");
    let status = answer.status().as_u16();
    let bytes = to_bytes(answer.into_body(), 1 << 20).await.expect("a body");
    (status, serde_json::from_slice(&bytes).expect("JSON"))
}

async fn names(app: &Arc<App>, path: &str, field: &str) -> Vec<String> {
    let (_, page) = send(app, "GET", path, Value::Null).await;
    page["items"].as_array().expect("items").iter().map(|it| it[field].as_str().expect("a name").to_owned()).collect()
}

/// F4-9, S2-113: they are seen from everywhere as long as they say that they live, and no longer.
#[tokio::test]
async fn whoever_is_silent_is_gone() {
    let store = Arc::new(SqliteStore::open(&SqliteOptions::in_memory()).expect("a store"));
    let clock = VirtualClock::new(Timestamp(1_800_000_000_000));
    let other = instance("other", store.clone(), clock.clone()).await;
    send(&other, "POST", "/leases", json!({"worker": "theirs"})).await;
    // The next sign of life tells of the worker too.
    let one = instance("one", store, clock.clone()).await;
    send(&one, "POST", "/leases", json!({"worker": "ours"})).await;
    let soon = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while names(&one, "/admin/workers", "name").await != ["ours", "theirs"] {
        assert!(std::time::Instant::now() < soon, "{:?}", names(&one, "/admin/workers", "name").await);
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert_eq!(names(&one, "/admin/instances", "id").await, ["one", "other"]);
    drop(other);
    clock.advance(Millis::from_secs(61));
    assert_eq!(names(&one, "/admin/instances", "id").await, ["one"]);
    assert_eq!(names(&one, "/admin/workers", "name").await, ["ours"]);
}

/// It ends what it has; no instance gives it more, before and after a restart, until somebody takes that back.
#[tokio::test]
async fn a_drained_worker_keeps_what_it_has_and_is_given_nothing_more() {
    let store = Arc::new(SqliteStore::open(&SqliteOptions::in_memory()).expect("a store"));
    let clock = VirtualClock::new(Timestamp(1_800_000_000_000));
    let one = instance("one", store.clone(), clock.clone()).await;
    let tasks = json!({"tasks": [{"kind": "k"}, {"kind": "k"}, {"kind": "k"}]});
    send(&one, "POST", "/tasks", tasks).await;
    let ask = |worker: &str| json!({"worker": worker, "limit": 1});
    let (_, first) = send(&one, "POST", "/leases", ask("w")).await;
    assert_eq!((first["leases"].as_array().map(Vec::len), &first["draining"]), (Some(1), &Value::Null));

    let (status, drained) = send(&one, "POST", "/admin/workers/w/drain", json!({"note": "new machine"})).await;
    let since = "2027-01-15T08:00:00.000Z";
    let told =
        json!({"name": "w", "draining": true, "draining_since": since, "drained_by": null, "note": "new machine"});
    assert_eq!((status, &drained), (200, &told));
    clock.advance(Millis::from_secs(1));
    let (_, again) = send(&one, "POST", "/admin/workers/w/drain", json!({})).await;
    assert_eq!(again, told, "it is so already");
    let nothing = json!({"leases": [], "draining": true});
    assert_eq!(send(&one, "POST", "/leases", ask("w")).await, (200, nothing.clone()));
    assert_eq!(send(&one, "POST", "/leases", json!({"worker": "w", "limit": 0})).await.0, 400, "and refused as before");

    let other = instance("other", store.clone(), clock.clone()).await;
    assert_eq!(send(&other, "POST", "/leases", ask("w")).await, (200, nothing));
    let (_, theirs) = send(&other, "POST", "/leases", ask("v")).await;
    assert_eq!(theirs["leases"].as_array().map(Vec::len), Some(1), "others go on");
    let report = json!({"reports": [{"lease": first["leases"][0]["lease"], "outcome": "succeeded"}]});
    let (_, reported) = send(&other, "POST", "/leases/report", report).await;
    assert_eq!(reported["reports"][0]["state"], "succeeded", "{reported}");

    let (_, undrained) = send(&other, "POST", "/admin/workers/w/undrain", json!({})).await;
    assert_eq!(undrained["draining"], false);
    let (_, listed) = send(&one, "GET", "/admin/workers", Value::Null).await;
    assert_eq!(listed["items"].as_array().expect("workers").iter().filter(|it| it["draining"] == true).count(), 0);
    let (_, last) = send(&one, "POST", "/leases", ask("w")).await;
    assert_eq!(last["leases"].as_array().map(Vec::len), Some(1), "{last}");

    send(&one, "POST", "/admin/workers/w/drain", json!({})).await;
    clock.advance(Millis::from_secs(3_660));
    let (_, listed) = send(&one, "GET", "/admin/workers", Value::Null).await;
    let gone: Vec<_> = listed["items"].as_array().expect("workers").iter().collect();
    assert_eq!(gone.len(), 1, "whoever is drained is listed until that is taken back: {listed}");
    assert_eq!(
        (&gone[0]["name"], &gone[0]["draining"], &gone[0]["instance"]),
        (&"w".into(), &true.into(), &Value::Null)
    );
    assert_eq!(send(&one, "POST", "/admin/workers/w/undrain", json!({})).await.0, 200);
    for verb in ["drain", "undrain"] {
        let (status, problem) = send(&one, "POST", &format!("/admin/workers/w/{verb}"), json!({})).await;
        assert_eq!((status, &problem["type"]), (404, &"not-found".into()), "nobody is called so any more: {problem}");
    }
    let (_, audit) = send(&one, "GET", "/admin/audit?act=worker", Value::Null).await;
    let did: Vec<_> = audit["items"].as_array().expect("acts").iter().map(|it| (&it["act"], &it["subject"])).collect();
    let act = |action: &str, subject: &str| (Value::from(action), Value::from(subject));
    let expected = ["worker.undrain", "worker.drain", "worker.undrain", "worker.drain"].map(|it| act(it, "w"));
    assert_eq!(did, expected.each_ref().map(|(action, subject)| (action, subject)));
    for (body, field) in [(json!({"note": 1}), "note"), (json!({"why": ""}), "why")] {
        let (status, problem) = send(&one, "POST", "/admin/workers/w/drain", body).await;
        assert_eq!((status, &problem["errors"][0]["path"]), (400, &field.into()), "{problem}");
    }
}

/// L8: from the first start on, and through restarts. Real time passes in between, and does not count.
#[tokio::test]
async fn instances_share_a_time_that_is_moved_by_hand() {
    for place in Place::all().await {
        let store = place.app.engine.store().clone();
        let began = Timestamp(1_900_000_000_000);
        let start = async |name: &str, told: Option<Timestamp>, hours: u64| {
            let real = began + Millis::from_secs(hours * 3_600);
            let at = start_virtual_clock(&*store, told, real).await.expect("a time");
            instance(name, store.clone(), VirtualClock::new(at)).await
        };
        let now = async |app: &Arc<App>| {
            let (_, clock) = send(app, "GET", "/clock", Value::Null).await;
            Timestamp::parse_rfc3339(clock["now"].as_str().expect("an instant")).expect("an instant").since(began).0
        };
        let one = start("one", None, 0).await;
        let two = start("two", None, 1).await;
        assert_eq!((now(&one).await, now(&two).await), (0, 0), "{}", place.word);
        send(&one, "POST", "/clock/advance", json!({"by": "1s"})).await;
        assert_eq!((now(&one).await, now(&two).await), (1_000, 1_000), "{}", place.word);
        send(&two, "POST", "/clock/advance", json!({"by": "1s"})).await;
        assert_eq!((now(&one).await, now(&two).await), (2_000, 2_000), "{}", place.word);
        drop(two);
        let two = start("two", None, 24).await;
        assert_eq!(now(&two).await, 2_000, "{}: a restart does not move it", place.word);
        let early = start("early", Some(Timestamp(0)), 24).await;
        assert_eq!(now(&early).await, 2_000, "{}: nor back", place.word);
        let late = start("late", Some(began + Millis(9_000)), 24).await;
        assert_eq!((now(&late).await, now(&one).await), (9_000, 9_000), "{}", place.word);
        drop((one, two, early, late, store));
        place.leave().await;
    }
}

/// S2-113, S2-116: every loop by its name, and every sort of work by the name that job schedulers have for it.
#[tokio::test]
async fn loops_are_listed_and_paused_by_the_sort_of_their_work() {
    let store = Arc::new(SqliteStore::open(&SqliteOptions::in_memory()).expect("a store"));
    let app = instance("one", store, VirtualClock::new(Timestamp(1_800_000_000_000))).await;
    let listed = names(&app, "/admin/loops", "name").await;
    let driven =
        ["retries", "starts", "reap", "timeout", "expire", "flow", "prune", "schedule", "subscriptions", "alerts"];
    assert_eq!(listed, [&driven[..], &["dispatch", "hooks", "repair", "operations"]].concat());
    let types = json!({"types": ["STUCK_JOBS", "FAILED_JOBS"], "duration": "30m"});
    let (status, paused) = send(&app, "POST", "/admin/retry-scheduler/pause", types).await;
    assert_eq!(status, 200, "{paused}");
    let names: Vec<&str> = paused["items"]
        .as_array()
        .expect("loops")
        .iter()
        .filter(|it| it["paused"] == true && it["resumes_at"] == "2027-01-15T08:30:00.000Z")
        .filter_map(|it| it["name"].as_str())
        .collect();
    assert_eq!(names, ["reap", "repair"]);
    let (status, problem) = send(&app, "POST", "/admin/retry-scheduler/pause", json!({"types": ["ODD_JOBS"]})).await;
    assert_eq!((status, &problem["errors"][0]["path"]), (400, &json!("types[0]")), "{problem}");
}

/// F2-9: what is stuck is listed with why, and processed with what became of each and why.
#[tokio::test]
async fn what_is_stuck_is_processed_and_each_is_told_of() {
    let store = Arc::new(SqliteStore::open(&SqliteOptions::in_memory()).expect("a store"));
    let clock = VirtualClock::new(Timestamp(1_800_000_000_000));
    let app = instance("one", store, clock.clone()).await;
    let id = |made: &Value| made["tasks"][0]["id"].as_str().expect("an id").to_owned();
    let retried = id(&send(&app, "POST", "/tasks", json!({"kind": "again", "retry": 3})).await.1);
    let failed = id(&send(&app, "POST", "/tasks", json!({"kind": "once"})).await.1);
    send(&app, "POST", "/leases", json!({"worker": "w", "limit": 2, "lease": "10s"})).await;
    clock.advance(Millis::from_secs(11));
    let (_, stuck) = send(&app, "GET", "/admin/tasks/stuck", Value::Null).await;
    assert_eq!(stuck["items"][0]["reason"], "lease_expired", "{stuck}");
    let (status, same) = send(&app, "POST", "/admin/tasks/stuck", json!({})).await;
    assert_eq!((status, &same), (200, &stuck), "X2-9: the same list");
    let (_, still) = send(&app, "GET", "/admin/tasks/stuck", Value::Null).await;
    assert_eq!(still, stuck, "X2-9: and nothing was started by it");
    send(&app, "POST", "/admin/loops/reap/pause", json!({})).await;
    let (_, done) = send(&app, "POST", "/admin/tasks/process-stuck", json!({})).await;
    let counts = ["processed", "retried", "failed", "skipped"].map(|name| done[name].as_u64());
    assert_eq!(counts, [Some(2), Some(1), Some(1), Some(0)], "{done}");
    let of = |id: &str| done["tasks"].as_array().expect("tasks").iter().find(|it| it["task_id"] == *id).expect("it");
    assert_eq!((&of(&retried)["action"], &of(&retried)["reason"]), (&json!("RETRIED"), &json!("lost_retry")));
    assert_eq!((&of(&failed)["action"], &of(&failed)["reason"]), (&json!("MARKED_FAILED"), &json!("on_lost_fail")));
    let (_, nothing) = send(&app, "GET", "/admin/tasks/stuck", Value::Null).await;
    assert_eq!(nothing["items"], json!([]));
}

/// Before a loop is paused one can see what that would delay, and what of that would be too late.
#[tokio::test]
async fn what_a_pause_would_delay_is_told_before_it_begins() {
    let store = Arc::new(SqliteStore::open(&SqliteOptions::in_memory()).expect("a store"));
    let app = instance("one", store, VirtualClock::new(Timestamp(1_800_000_000_000))).await;
    for (delay, deadline) in [("5m", "1h"), ("10m", "20m"), ("2h", "3h")] {
        send(&app, "POST", "/tasks", json!({"kind": "k", "delay": delay, "deadline": deadline})).await;
    }
    let (_, told) = send(&app, "GET", "/admin/loops/promote/preview?duration=30m", Value::Null).await;
    assert_eq!(told["until"], "2027-01-15T08:30:00.000Z", "{told}");
    assert_eq!(told["loops"][1], json!({"name": "starts", "delayed": 2, "past_deadline": 1}));
    assert_eq!(told["loops"][0], json!({"name": "retries", "delayed": 0, "past_deadline": 0}));
    let (_, all) = send(&app, "GET", "/admin/loops/starts/preview", Value::Null).await;
    assert_eq!((&all["until"], &all["loops"][0]["delayed"]), (&Value::Null, &json!(3)));
    let (status, _) = send(&app, "GET", "/admin/loops/starts/preview?duration=soon", Value::Null).await;
    assert_eq!(status, 400);
    let (_, loops) = send(&app, "GET", "/admin/loops", Value::Null).await;
    assert!(loops["items"].as_array().expect("loops").iter().all(|it| it["paused"] == false), "nothing was paused");
}

/// While dispatch is paused nobody gets work, and whoever waits for it gets it when somebody resumes.
#[tokio::test]
async fn nobody_gets_work_while_dispatch_is_paused() {
    let store = Arc::new(SqliteStore::open(&SqliteOptions::in_memory()).expect("a store"));
    let app = instance("one", store, VirtualClock::new(Timestamp(1_800_000_000_000))).await;
    send(&app, "POST", "/tasks", json!({"kind": "k"})).await;
    send(&app, "POST", "/admin/loops/dispatch/pause", json!({"duration": "1h", "note": "deploy"})).await;
    let (_, leased) = send(&app, "POST", "/leases", json!({"worker": "w"})).await;
    assert_eq!(leased["leases"], json!([]));
    let ask = json!({"worker": "w", "wait": "20s"});
    let resumed = async {
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        send(&app, "POST", "/admin/loops/dispatch/resume", json!({})).await
    };
    let ((_, leased), _) = tokio::join!(send(&app, "POST", "/leases", ask), resumed);
    assert_eq!(leased["leases"].as_array().map(Vec::len), Some(1), "{leased}");
}

/// As many as the contract says where nothing is said.
#[tokio::test]
async fn ten_are_leased_where_nobody_says_how_many() {
    let store = Arc::new(SqliteStore::open(&SqliteOptions::in_memory()).expect("a store"));
    let app = instance("one", store, VirtualClock::new(Timestamp(1_800_000_000_000))).await;
    let tasks: Vec<Value> = (0..12).map(|_| json!({"kind": "k"})).collect();
    send(&app, "POST", "/tasks", json!({"tasks": tasks})).await;
    let (_, leased) = send(&app, "POST", "/leases", json!({"worker": "w"})).await;
    assert_eq!(leased["leases"].as_array().expect("leases").len(), 10);
}
