//! Panics in a library: one decision or one loop panics, and everything else goes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use comeback_core::{Failure, Millis, Record, State, Task, TaskId, Trigger};
use comeback_store::{Claimed, Loop, SqliteOptions, SqliteStore, StoreError};

use crate::{
    CommandError, Engine, EngineConfig, LeaseRequest, Report, ReportEnd, Submit, SystemClock, TaskSpec, Watcher,
    Watching,
};

/// Every decision on a task of this kind panics.
pub(super) const PANICS: &str = "panics-in-its-verdict";

async fn engine(config: EngineConfig) -> Engine {
    let store = Arc::new(SqliteStore::open(&SqliteOptions::in_memory()).unwrap());
    Engine::start(store, SystemClock::new(), config).await.unwrap()
}

async fn submit(engine: &Engine, spec: TaskSpec) -> TaskId {
    engine.submit(Submit::one("default", spec)).await.unwrap().tasks[0].id
}

async fn until(engine: &Engine, task: TaskId, state: State) {
    let begun = Instant::now();
    loop {
        let stored = engine.store().load(&[task]).await.unwrap().remove(0).unwrap();
        if stored.task.state == state {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?} and not {state:?}", stored.task.state);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// C3: two such reports used to end all reports of everybody.
#[tokio::test]
async fn a_verdict_that_panics_leaves_the_other_reports_answered() {
    let engine = engine(EngineConfig::default()).await;
    for round in 0..4 {
        for kind in ["good", PANICS, "good"] {
            submit(&engine, TaskSpec::new(kind)).await;
        }
        let leased = engine.lease(LeaseRequest { limit: 10, ..LeaseRequest::new("default", "w") }).await.unwrap();
        assert_eq!(leased.len(), 3, "{round}");
        let failed = || ReportEnd::Failed(Failure::new(Trigger::Error, "x"));
        let reports = leased.iter().map(|it| Report { lease: it.lease, end: failed() }).collect();
        let answers = engine.report(reports).await.unwrap();
        for (task, answer) in leased.iter().zip(answers) {
            match task.kind == PANICS {
                true => {
                    assert!(matches!(answer, Err(CommandError::Store(StoreError::Corrupt(_)))), "{round}: {answer:?}")
                }
                false => assert!(answer.is_ok(), "{round}: {answer:?}"),
            }
        }
    }
    assert_eq!(engine.stalled(), []);
    engine.close().await;
}

/// C4: one such task used to end the loop for everybody.
#[tokio::test]
async fn a_verdict_that_panics_does_not_end_a_loop() {
    let engine = engine(EngineConfig::default()).await;
    let spec = |kind: &str| TaskSpec { timeout: Some(Millis(100)), ..TaskSpec::new(kind) };
    let poison = submit(&engine, spec(PANICS)).await;
    let leased = engine.lease(LeaseRequest::new("default", "w")).await.unwrap();
    assert_eq!(leased.len(), 1);
    tokio::time::sleep(Duration::from_millis(400)).await;
    let good = submit(&engine, spec("good")).await;
    assert_eq!(engine.lease(LeaseRequest::new("default", "w")).await.unwrap().len(), 1);
    until(&engine, good, State::Failed).await;
    until(&engine, poison, State::Running).await;
    engine.close().await;
}

/// Panics at the end of an attempt, this many times.
struct Breaks(AtomicU32);

impl Watcher for Breaks {
    fn started(&self, _: &Claimed) {}

    fn ended(&self, task: &Task, _: &Record) {
        let left = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        assert!(task.lane.kind != "breaks" || left.is_err(), "on purpose");
    }
}

/// C4: a loop that panics is started again, and `stalled` does not name it for that.
#[tokio::test]
async fn a_loop_that_panics_is_started_again() {
    let watching = Watching::by(Arc::new(Breaks(AtomicU32::new(2))));
    let engine = engine(EngineConfig { watching, ..EngineConfig::default() }).await;
    let names = engine.config().background.names();
    for name in Loop::ALL.iter().filter(|name| engine.config().is_driven(**name)) {
        assert!(names.contains(&format!("loop/{name}")), "{name} is supervised: {names:?}");
    }
    for _ in 0..4 {
        let spec = TaskSpec { timeout: Some(Millis(50)), ..TaskSpec::new("breaks") };
        let task = submit(&engine, spec).await;
        assert_eq!(engine.lease(LeaseRequest::new("default", "w")).await.unwrap().len(), 1);
        until(&engine, task, State::Failed).await;
    }
    assert_eq!(engine.stalled(), []);
    engine.close().await;
}

/// H15: after `close` the database file alone is complete.
#[tokio::test]
async fn a_file_is_whole_without_its_log_after_close() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    let engine = Engine::open_sqlite(&path).await.unwrap();
    for _ in 0..50 {
        submit(&engine, TaskSpec::new("k")).await;
    }
    let another = engine.clone();
    another.close().await;
    submit(&engine, TaskSpec::new("k")).await;
    engine.close().await;
    let copy = folder.path().join("copy.db");
    std::fs::copy(&path, &copy).unwrap();
    let log = folder.path().join("a.db-wal");
    assert!(log.metadata().map_or(0, |it| it.len()) == 0, "the log is empty or gone");
    let connection = rusqlite::Connection::open(&copy).unwrap();
    let tasks: i64 = connection.query_row("select count(*) from task", (), |row| row.get(0)).unwrap();
    assert_eq!(tasks, 51);
    // And the file is free.
    Engine::open_sqlite(&path).await.unwrap().close().await;
}
