//! A place to run stories in: a database that outlives engines, and engines that come and go.

use std::sync::Arc;

use comeback_core::transition::Actor;
use comeback_core::{Dialect, Failure, Millis, Policy, PolicyLimits, State, TaskId, Timestamp, Trigger, dialect};
use comeback_engine::store::conformance::postgres::{Database, ForeignTransaction};
use comeback_engine::store::{PostgresOptions, PostgresStore, SqliteOptions, SqliteStore, Store};
use comeback_engine::{
    Changed, Clock, CommandError, Engine, EngineConfig, LeaseRequest, Leased, Report, ReportEnd, Submit, SystemClock,
    TaskSpec, VirtualClock,
};
use parking_lot::Mutex;
use serde_json::Value;

pub const START: Timestamp = Timestamp(1_800_000_000_000);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    Sqlite,
    Postgres,
}

impl Backend {
    pub fn word(self) -> &'static str {
        match self {
            Backend::Sqlite => "sqlite",
            Backend::Postgres => "postgres",
        }
    }
}

#[derive(Clone)]
pub struct Place {
    pub backend: Backend,
    pub clock: Arc<VirtualClock>,
    folder: Arc<tempfile::TempDir>,
    database: Arc<Mutex<Option<Database>>>,
    /// One process has one SQLite store, however many engines share it.
    shared: Arc<Mutex<Option<Arc<dyn Store>>>>,
    /// Another program of the cluster holds a write transaction open all the while. No story may notice.
    _foreign: Option<Arc<ForeignTransaction>>,
}

impl Place {
    pub async fn new(backend: Backend) -> Place {
        let database = match backend {
            Backend::Sqlite => None,
            Backend::Postgres => Some(Database::migrated().await),
        };
        let foreign = match backend {
            Backend::Sqlite => None,
            Backend::Postgres => Some(Arc::new(ForeignTransaction::begin().await)),
        };
        Place {
            backend,
            _foreign: foreign,
            clock: VirtualClock::new(START),
            folder: Arc::new(tempfile::tempdir().expect("a folder")),
            database: Arc::new(Mutex::new(database)),
            shared: Arc::default(),
        }
    }

    pub async fn leave(self) {
        self.shared.lock().take();
        let database = self.database.lock().take();
        if let Some(database) = database {
            database.drop().await;
        }
    }

    pub fn url(&self) -> String {
        self.database.lock().as_ref().map(Database::url).expect("a story for PostgreSQL")
    }

    /// The store of a new instance. On PostgreSQL each has its own connections; a SQLite file has one owner.
    pub async fn store(&self) -> Arc<dyn Store> {
        match self.backend {
            Backend::Postgres => {
                let options =
                    PostgresOptions { require_durability: false, warm_up: false, ..PostgresOptions::new(self.url()) };
                Arc::new(PostgresStore::open(&options).await.expect("the store opens"))
            }
            Backend::Sqlite => {
                let mut shared = self.shared.lock();
                let store = shared.get_or_insert_with(|| {
                    let path = self.folder.path().join("story.db");
                    Arc::new(SqliteStore::open(&SqliteOptions::file(path)).expect("the store opens"))
                });
                store.clone()
            }
        }
    }

    /// Does something to the database that no engine would do.
    pub async fn damage(&self, sql: &str) {
        match self.backend {
            Backend::Sqlite => {
                let connection = rusqlite::Connection::open(self.folder.path().join("story.db")).expect("opens");
                connection.execute_batch(sql).expect("damaged");
            }
            Backend::Postgres => {
                let database = self.database.lock().take().expect("a story for PostgreSQL");
                let client = database.connect().await;
                client.batch_execute(&format!("set search_path = comeback; {sql}")).await.expect("damaged");
                self.database.lock().replace(database);
            }
        }
    }

    /// An id as its database writes it.
    pub fn literal(&self, id: TaskId) -> String {
        match self.backend {
            Backend::Sqlite => format!("x'{}'", id.0.simple()),
            Backend::Postgres => format!("'{}'::uuid", id.0),
        }
    }

    /// Everything in memory is forgotten, as when all processes end.
    pub fn forget(&self) {
        self.shared.lock().take();
    }

    /// An instance whose loops run when told to, on the place's clock.
    pub async fn engine(&self) -> Engine {
        let config = EngineConfig { instance: "test".into(), ..EngineConfig::default() };
        Engine::without_loops(self.store().await, self.clock.clone(), config).await.expect("an engine")
    }

    /// An instance as in life: its loops run, on the real clock.
    pub async fn live_engine(&self) -> Engine {
        let config = EngineConfig { instance: "live".into(), ..EngineConfig::default() };
        Engine::start(self.store().await, SystemClock::new(), config).await.expect("an engine")
    }

    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub fn pass(&self, ms: u64) {
        self.clock.advance(Millis(ms));
    }
}

pub fn policy(value: Value) -> Policy {
    let read = dialect::parse(&value, Dialect::Native, &PolicyLimits::default());
    read.unwrap_or_else(|fault| panic!("{value}: {fault}")).expect("a policy")
}

pub fn spec(kind: &str, retry: Value) -> TaskSpec {
    TaskSpec::new(kind).retry(policy(retry))
}

pub async fn submit(engine: &Engine, spec: TaskSpec) -> TaskId {
    engine.submit(Submit::one("default", spec)).await.expect("it is taken").tasks[0].id
}

pub async fn lease(engine: &Engine, limit: u32) -> Vec<Leased> {
    let request = LeaseRequest { limit, ..LeaseRequest::new("default", "w") };
    engine.lease(request).await.expect("leases")
}

pub async fn lease_one(engine: &Engine) -> Leased {
    let mut leased = lease(engine, 1).await;
    assert_eq!(leased.len(), 1, "one task is ready");
    leased.remove(0)
}

pub async fn report(engine: &Engine, leased: &Leased, end: ReportEnd) -> Result<Changed, CommandError> {
    engine.report(vec![Report { lease: leased.lease, end }]).await.expect("reports").remove(0)
}

pub fn failed(message: &str) -> ReportEnd {
    ReportEnd::Failed(Failure::new(Trigger::Error, message))
}

pub fn succeeded() -> ReportEnd {
    ReportEnd::Succeeded { result: Some(serde_json::json!({"ok": true}).into()) }
}

pub async fn state(engine: &Engine, id: TaskId) -> State {
    engine.task("default", id).await.expect("the task exists").stored.task.state
}

pub fn nobody() -> Actor {
    Actor::default()
}

/// Moves the clock to the next instant at which something is due, and lets the loops work.
pub async fn on_to_the_next(place: &Place, engine: &Engine) -> bool {
    let Some(next) = engine.next_instant().await.expect("reads") else { return false };
    place.clock.set(next);
    engine.tick().await.expect("the loops work");
    true
}
