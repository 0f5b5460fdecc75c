//! Speaks: HTTP to commands, answers to JSON. Wire shapes and status codes live here; a rule about tasks does not.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used))]

pub mod auth;
mod catalog;
mod compat;
mod counted;
mod gate;
mod once;
pub mod openapi;
mod problem;
mod routes;
mod serve;
mod shared;
mod token;
mod ui;
mod wire;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use comeback_core::Quota;
use comeback_engine::executors::Executors;
use comeback_engine::store::{PutIf, Store, StoreError};
use comeback_engine::{Engine, VirtualClock};
use parking_lot::RwLock;
use tokio::sync::Semaphore;

pub use compat::Shape;
pub use gate::{Class, GateOptions, Room};
pub use problem::Problem;
pub use routes::clock::META as VIRTUAL_CLOCK;
pub use routes::{Route, table};
pub use serve::{ServeOptions, serve};

use auth::Keys;
use catalog::Catalog;
use gate::Gate;
use shared::{Bound, Drained, Instance, Instances, Shared, Workers};
use token::Tokens;
use wire::task::Policies;

/// Readers of the stream of events, at once.
const STREAMS: usize = 1_000;

/// What every route shares.
pub struct App {
    pub engine: Engine,
    pub keys: Keys,
    pub instance: String,
    /// Present on a server whose time is moved by hand.
    pub clock: Option<Arc<VirtualClock>>,
    executors: Option<Executors>,
    tokens: Tokens,
    policies: Arc<Policies>,
    bound: Arc<Shared<Bound>>,
    catalog: Arc<Catalog>,
    instances: Shared<Instances>,
    workers: Workers,
    drained: Shared<Drained>,
    gate: Gate,
    counted: counted::Counted,
    /// Who is told of requests.
    pub(crate) requests: Option<Listener>,
    /// Requests that were refused because a namespace's quota was used up.
    quota_refusals: QuotaRefusals,
    /// How many more streams of events may be open.
    streams: Arc<Semaphore>,
    /// Acts under a key that are not about a task, one after the other.
    keyed_acts: tokio::sync::Mutex<()>,
    /// Why the last write that was tried failed; nothing when it did not.
    trouble: RwLock<Option<String>>,
    draining: AtomicBool,
}

/// How often each quota refused a request.
#[derive(Default)]
pub(crate) struct QuotaRefusals([AtomicU64; Quota::ALL.len()]);

impl QuotaRefusals {
    pub fn count(&self, quota: Quota) {
        self.0[quota as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub fn all(&self) -> impl Iterator<Item = (Quota, u64)> {
        Quota::ALL.iter().map(|quota| (*quota, self.0[*quota as usize].load(Ordering::Relaxed)))
    }
}

/// What a server is told when it starts.
#[derive(Default)]
pub struct AppOptions {
    /// Names this process in the list of instances.
    pub instance: String,
    /// Present on a server whose time is moved by hand.
    pub clock: Option<Arc<VirtualClock>>,
    /// What the server does itself.
    pub executors: Option<Executors>,
    pub gate: GateOptions,
    /// Who is told of requests that were answered.
    pub requests: Option<Listener>,
}

/// Is told of requests.
pub type Listener = Arc<dyn Fn(&Asked<'_>) + Send + Sync>;

/// A request that was answered.
pub struct Asked<'a> {
    pub id: &'a str,
    pub method: &'a str,
    /// As the route stands in the table, without ids.
    pub route: &'a str,
    pub status: u16,
    pub began: std::time::SystemTime,
    pub took: Duration,
    pub traceparent: Option<&'a str>,
}

impl App {
    pub async fn new(engine: Engine, options: AppOptions) -> Result<Arc<App>, StoreError> {
        let AppOptions { instance, clock, executors, gate, requests } = options;
        let keys = Keys::default();
        keys.refresh(&**engine.store()).await?;
        let tokens = Tokens::new(lease_key(&**engine.store()).await?, &engine.store().epoch().await?);
        let bound = Arc::new(Shared::new("policies"));
        bound.refresh(&**engine.store()).await?;
        let drained = Shared::new("drained_workers");
        drained.refresh(&**engine.store()).await?;
        let policies = Arc::new(Policies::default());
        let catalog = Arc::new(Catalog::new(&engine, policies.clone(), bound.clone()));
        engine.read_workflows_with(catalog.clone());
        let app = App {
            engine,
            keys,
            instance,
            clock,
            executors,
            tokens,
            policies,
            bound,
            catalog,
            instances: Shared::new("instances"),
            workers: Workers::default(),
            drained,
            gate: Gate::new(gate),
            counted: counted::Counted::default(),
            requests,
            quota_refusals: QuotaRefusals::default(),
            streams: Arc::new(Semaphore::new(STREAMS)),
            keyed_acts: tokio::sync::Mutex::default(),
            trouble: RwLock::default(),
            draining: AtomicBool::new(false),
        };
        let app = Arc::new(app);
        tokio::spawn(follow(Arc::downgrade(&app)));
        tokio::spawn(say_that_it_lives(Arc::downgrade(&app)));
        Ok(app)
    }

    pub fn router(self: &Arc<App>) -> Router {
        routes::router(self)
    }

    /// Waits until what the server does itself has come to an end, or for five seconds of real time.
    async fn executors_settled(&self) {
        let Some(executors) = &self.executors else { return };
        // Whoever was told of work needs a moment to take it.
        tokio::time::sleep(Duration::from_millis(20)).await;
        for _ in 0..500 {
            if executors.busy() == 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// From now on it is not ready for more, and long polls end.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::SeqCst);
    }

    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }
}

/// Keys, policies, drained workers and a time that another instance has changed are heard of within a second.
async fn follow(app: std::sync::Weak<App>) {
    loop {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let Some(app) = app.upgrade() else { return };
        let store = &**app.engine.store();
        let heard = async {
            app.keys.refresh(store).await?;
            routes::clock::follow(&app).await?;
            if app.tokens.enter(&store.epoch().await?) {
                tracing::warn!("a new epoch of the database has begun: lease tokens from before are refused");
            }
            app.drained.refresh(store).await?;
            app.bound.refresh(store).await
        };
        if let Err(error) = heard.await {
            tracing::debug!(%error, "what instances share could not be read again");
        }
    }
}

async fn say_that_it_lives(app: std::sync::Weak<App>) {
    let mut started_at = None;
    loop {
        let Some(app) = app.upgrade() else { return };
        let now = app.engine.now();
        let started_at = *started_at.get_or_insert(now.0);
        let workers = app.workers.latest(now.0);
        let own = Instance { started_at, seen_at: now.0, version: env!("CARGO_PKG_VERSION").into(), workers };
        let said = app
            .instances
            .change(&**app.engine.store(), |all| {
                all.retain(|_, it| !it.is_gone(now));
                all.insert(app.instance.clone(), own.clone());
            })
            .await;
        if let (Err(error), false) = (&said, app.is_draining()) {
            tracing::warn!(%error, "the database takes no writes");
        }
        *app.trouble.write() = said.err().map(|error| error.to_string());
        drop(app);
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
}

/// Made once per database: a token must be good at every instance and after every restart. What makes it void after a restore is the
/// epoch.
async fn lease_key(store: &dyn Store) -> Result<[u8; 32], StoreError> {
    let mut fresh = [0_u8; 32];
    getrandom::fill(&mut fresh).map_err(|error| StoreError::Unavailable(format!("no randomness: {error}")))?;
    let text: String = fresh.iter().map(|byte| format!("{byte:02x}")).collect();
    let stands = store.put_meta("lease_key", &text, PutIf::Absent, None).await?;
    let mut key = [0_u8; 32];
    for (i, byte) in key.iter_mut().enumerate() {
        let digits = stands.get(2 * i..2 * i + 2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        *byte = digits.ok_or_else(|| StoreError::Corrupt("the key of the lease tokens".into()))?;
    }
    Ok(key)
}
