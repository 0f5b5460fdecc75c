//! The HTTP server: requests become engine commands, results become JSON. Wire formats and status codes live here;
//! rules about tasks do not.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used))]

mod answer;
pub mod auth;
mod auth_failures;
mod catalog;
mod connections;
mod count_cache;
mod drained;
mod heavy;
mod idempotency;
mod keys;
mod kind_policies;
mod limiter;
mod mask;
mod memory;
pub mod openapi;
mod page;
mod problem;
pub mod route;
mod route_set;
mod routes;
mod serve;
mod streams;
mod token;
mod ui;
mod wire;
mod workers;
mod write_timeout;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::Extensions;
use comeback_core::{Dialect, Invalid, Millis, Policy, Quota, Timestamp};
use comeback_engine::executors::Executors;
use comeback_engine::store::{Finished, Heartbeat, InstanceRow, PutIf, Store, StoreError, panic_point};
use comeback_engine::{Engine, LeaseRef, VirtualClock};
use ipnet::IpNet;
use parking_lot::{Mutex, RwLock};

pub use limiter::{ClassLimits, LimiterOptions, RequestClass};
pub use problem::Problem;
pub use route_set::{ErrorFormat, RouteSet};
pub use routes::clock::start as start_virtual_clock;
pub use routes::{Route, table};
pub use serve::{ServeOptions, serve};

use auth::Keys;
use auth_failures::AuthFailures;
use catalog::Catalog;
use connections::Connections;
use count_cache::CountCache;
use drained::DrainedWorkers;
use idempotency::KeyedActs;
use kind_policies::KindPolicies;
use limiter::Limiter;
use route_set::Interface;
use streams::Streams;
use token::Tokens;
use wire::task::PolicyCache;
use workers::Workers;

/// State shared by all routes.
pub struct App {
    pub engine: Engine,
    pub keys: Keys,
    pub instance: String,
    started_at: Timestamp,
    /// The virtual clock, if time is advanced by API.
    pub clock: Option<Arc<VirtualClock>>,
    executors: Option<Executors>,
    tokens: Tokens,
    policies: Arc<PolicyCache>,
    kind_policies: Arc<KindPolicies>,
    catalog: Arc<Catalog>,
    workers: Workers,
    drained: DrainedWorkers,
    /// Proxies whose `X-Forwarded-For` is trusted.
    trusted_proxies: Vec<IpNet>,
    limiter: Limiter,
    count_cache: CountCache,
    /// Called after each request.
    pub(crate) requests: Option<RequestObserver>,
    /// Requests refused because a quota of their namespace was exceeded.
    quota_refusals: QuotaRefusals,
    /// Open event streams and the reader they share.
    streams: Arc<Streams>,
    /// Acts in progress under an idempotency key.
    keyed_acts: Arc<KeyedActs>,
    auth_failures: AuthFailures,
    connections: Arc<Connections>,
    /// Error of the last heartbeat write; `None` if it succeeded.
    write_error: RwLock<Option<String>>,
    draining: AtomicBool,
    interface: Interface,
    /// State of added routes, one value of each type.
    route_state: Mutex<Extensions>,
}

/// Number of requests refused by each quota.
#[derive(Default)]
pub(crate) struct QuotaRefusals([AtomicU64; Quota::ALL.len()]);

impl QuotaRefusals {
    /// Counts a refusal.
    pub fn count(&self, quota: Quota) {
        self.0[quota as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Number of refusals by quota.
    pub fn all(&self) -> impl Iterator<Item = (Quota, u64)> {
        Quota::ALL.iter().map(|quota| (*quota, self.0[*quota as usize].load(Ordering::Relaxed)))
    }
}

/// Options of a server.
#[derive(Default)]
pub struct AppOptions {
    /// Name of this process in the list of instances.
    pub instance: String,
    /// The virtual clock, if time is advanced by API.
    pub clock: Option<Arc<VirtualClock>>,
    /// Executors of tasks that the server runs itself.
    pub executors: Option<Executors>,
    pub limiter: LimiterOptions,
    /// Called after each request.
    pub requests: Option<RequestObserver>,
    /// Proxies whose `X-Forwarded-For` is trusted.
    pub trusted_proxies: Vec<IpNet>,
    /// Routes beside the server's own, such as those of other systems.
    pub added_routes: Vec<RouteSet>,
}

/// Callback that gets the record of each request.
pub type RequestObserver = Arc<dyn Fn(&RequestRecord<'_>) + Send + Sync>;

/// Record of a completed request, for logs and traces.
pub struct RequestRecord<'a> {
    pub id: &'a str,
    pub method: &'a str,
    /// Route pattern, without ids.
    pub route: &'a str,
    pub status: u16,
    pub began: std::time::SystemTime,
    pub took: Duration,
    pub traceparent: Option<&'a str>,
}

impl App {
    /// Loads the shared state and starts the background loops of the server.
    pub async fn new(engine: Engine, options: AppOptions) -> Result<Arc<App>, StoreError> {
        let AppOptions { instance, clock, executors, limiter, requests, trusted_proxies, added_routes } = options;
        let keys = Keys::default();
        keys.refresh(&**engine.store()).await?;
        let tokens = Tokens::new(lease_key(&**engine.store()).await?, &engine.store().epoch().await?);
        let kind_policies = Arc::new(KindPolicies::default());
        kind_policies.refresh(&**engine.store()).await?;
        let drained = DrainedWorkers::default();
        drained.refresh(&**engine.store()).await?;
        let workers = Workers::default();
        workers.recount(&**engine.store(), engine.now()).await?;
        let policies = Arc::new(PolicyCache::default());
        let catalog = Arc::new(Catalog::new(&engine, policies.clone(), kind_policies.clone()));
        engine.read_workflows_with(catalog.clone());
        let quotas = engine.config().quotas.clone();
        let streams = Streams::new(engine.clone(), &quotas);
        let app = App {
            started_at: engine.now(),
            engine,
            keys,
            instance,
            clock,
            executors,
            tokens,
            policies,
            kind_policies,
            catalog,
            workers,
            drained,
            trusted_proxies,
            limiter: Limiter::new(limiter, &quotas),
            count_cache: CountCache::default(),
            requests,
            quota_refusals: QuotaRefusals::default(),
            streams,
            keyed_acts: KeyedActs::new(&quotas),
            auth_failures: AuthFailures::default(),
            connections: Arc::default(),
            write_error: RwLock::default(),
            draining: AtomicBool::new(false),
            interface: Interface::new(added_routes),
            route_state: Mutex::default(),
        };
        let app = Arc::new(app);
        // A server that reports ready is listed among the instances.
        app.send_heartbeat().await;
        let (background, weak) = (&app.engine.config().background, Arc::downgrade(&app));
        let weak_app = weak.clone();
        background.spawn("server/shared", REFRESH_EVERY, move |beat| refresh_loop(weak_app.clone(), beat));
        background.spawn("server/instance", HEARTBEAT_EVERY, move |beat| heartbeat_loop(weak.clone(), beat));
        Ok(app)
    }

    /// The router of all routes.
    pub fn router(self: &Arc<App>) -> Router {
        routes::router(self)
    }

    /// The state of this type that added routes keep in this process; its default at first.
    pub fn route_state<T: Default + Send + Sync + 'static>(&self) -> Arc<T> {
        self.route_state.lock().get_or_insert_with(Arc::<T>::default).clone()
    }

    /// The token by which a worker names its lease.
    pub fn lease_token(&self, lease: LeaseRef, namespace: &str) -> String {
        self.tokens.seal(lease, namespace)
    }

    /// The lease that a token names. `None` if the token is forged or belongs to another namespace or epoch.
    pub fn lease_of(&self, token: &str, namespace: &str) -> Option<LeaseRef> {
        self.tokens.open(token, namespace)
    }

    /// Reads a retry policy in one dialect. `None` if it says that nothing is retried.
    pub fn read_policy(&self, text: &str, dialect: Dialect) -> Result<Option<Arc<Policy>>, Invalid> {
        self.policies.read(text, dialect, &self.engine.config().policy_limits)
    }

    /// Waits until the executors are idle, at most five seconds of real time.
    async fn executors_settled(&self) {
        let Some(executors) = &self.executors else { return };
        // A notified executor needs a moment to lease its task.
        tokio::time::sleep(Duration::from_millis(20)).await;
        for _ in 0..500 {
            if executors.busy() == 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Starts draining: the server is no longer ready, and long polls end.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::SeqCst);
    }

    /// Whether the server is draining.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }
}

/// Period of the refresh of cluster-wide settings.
const REFRESH_EVERY: Duration = Duration::from_millis(500);

/// Refreshes keys, policies, drained workers and the virtual clock, so that changes of other instances apply within a
/// second. While nothing changes, only the change numbers are read.
async fn refresh_loop(app: std::sync::Weak<App>, beat: Arc<Heartbeat>) -> Finished {
    loop {
        tokio::time::sleep(REFRESH_EVERY).await;
        let Some(app) = app.upgrade() else { return Finished };
        panic_point!("server-shared");
        let store = &**app.engine.store();
        let heard = async {
            let numbers = store.change_numbers().await?;
            app.keys.follow(store, numbers.keys).await?;
            routes::clock::follow(&app).await?;
            if app.tokens.enter(&store.epoch().await?) {
                tracing::warn!("database epoch changed (restore): older lease tokens are refused");
            }
            app.drained.follow(store, numbers.drained).await?;
            app.kind_policies.follow(store, numbers.policies).await
        };
        let heard = heard.await;
        if !matches!(heard, Err(StoreError::Unavailable(_) | StoreError::Unknown(_))) {
            beat.turn();
        }
        if let Err(error) = heard {
            tracing::debug!(%error, "cannot refresh cluster settings");
        }
    }
}

/// Instances without a heartbeat for this long are not listed.
const INSTANCE_TIMEOUT: Millis = Millis::from_secs(60);
/// Period of the instance heartbeat, which also writes worker rows.
const HEARTBEAT_EVERY: Duration = Duration::from_secs(5);
/// Period of the removal of workers not seen for an hour.
const CLEANUP_EVERY: Duration = Duration::from_secs(60);
/// Period of the log warning about keys that expire soon.
const KEY_WARNING_EVERY: Duration = Duration::from_secs(86_400);

async fn heartbeat_loop(app: std::sync::Weak<App>, beat: Arc<Heartbeat>) -> Finished {
    let (mut cleaned_up, mut warned): (Option<Instant>, Option<Instant>) = (None, None);
    let is_due = |last: Option<Instant>, period: Duration| last.is_none_or(|last| last.elapsed() >= period);
    let mut is_first = true;
    loop {
        let Some(app) = app.upgrade() else { return Finished };
        panic_point!("server-instance");
        if !std::mem::take(&mut is_first) {
            app.send_heartbeat().await;
        }
        let now = app.engine.now();
        if is_due(cleaned_up, CLEANUP_EVERY) {
            cleaned_up = Some(Instant::now());
            if let Err(error) = app.engine.store().forget_workers(now - workers::REMEMBERED).await {
                tracing::debug!(%error, "cannot remove old workers");
            }
        }
        if is_due(warned, KEY_WARNING_EVERY) && app.warn_of_ending_keys(now) {
            warned = Some(Instant::now());
        }
        // A failed write is reported by `/readyz`.
        beat.turn();
        drop(app);
        tokio::time::sleep(HEARTBEAT_EVERY).await;
    }
}

/// Maximum number of key ids in one log line.
const LOGGED_KEYS: usize = 10;

impl App {
    /// Writes the heartbeat; `/readyz` reports the error if it fails.
    async fn send_heartbeat(&self) {
        let said = self.write_heartbeat(self.engine.now()).await;
        if let (Err(error), false) = (&said, self.is_draining()) {
            tracing::warn!(%error, "the database is read-only or unavailable");
        }
        *self.write_error.write() = said.err().map(|error| error.to_string());
    }

    /// Row of this instance.
    pub(crate) fn own_row(&self, now: Timestamp) -> InstanceRow {
        let (id, version) = (self.instance.clone(), env!("CARGO_PKG_VERSION").to_owned());
        InstanceRow { id, version, started_at: self.started_at, seen_at: now }
    }

    /// Writes the row of this instance and the workers that are due.
    async fn write_heartbeat(&self, now: Timestamp) -> Result<(), StoreError> {
        let store = &**self.engine.store();
        store.put_instance(&self.own_row(now), now - INSTANCE_TIMEOUT).await?;
        self.workers.write(store, &self.instance, now).await?;
        Ok(())
    }

    /// Logs the keys that expire within two weeks. False if there are none.
    fn warn_of_ending_keys(&self, now: Timestamp) -> bool {
        let mut ending = self.keys.ending(None, now);
        ending.sort_by_key(|key| key.expires_at);
        let Some(first) = ending.first().and_then(|key| key.expires_at) else { return false };
        let ids: Vec<&str> = ending.iter().take(LOGGED_KEYS).map(|key| key.id.as_str()).collect();
        let (count, first) = (ending.len(), Timestamp(first).to_rfc3339());
        tracing::warn!(keys = count, first, ids = ids.join(" "), "API keys expire within 14 days");
        true
    }
}

/// Secret of the lease tokens, created once per database: tokens must be valid on every instance and after restarts.
/// The epoch invalidates them after a restore.
async fn lease_key(store: &dyn Store) -> Result<[u8; 32], StoreError> {
    let mut fresh = [0_u8; 32];
    getrandom::fill(&mut fresh).map_err(|error| StoreError::Unavailable(format!("no randomness: {error}")))?;
    let stands = store.put_meta("lease_key", &keys::hex(&fresh), PutIf::Absent, None).await?;
    let mut key = [0_u8; 32];
    for (i, byte) in key.iter_mut().enumerate() {
        let digits = stands.get(2 * i..2 * i + 2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        *byte = digits.ok_or_else(|| StoreError::Corrupt("the key of the lease tokens".into()))?;
    }
    Ok(key)
}
