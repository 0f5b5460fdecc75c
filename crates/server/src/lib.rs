//! Speaks: HTTP to commands, answers to JSON. Wire shapes and status codes live here; a rule about tasks does not.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used))]

mod answer;
pub mod auth;
mod auth_failures;
mod catalog;
mod connections;
mod counted;
mod drained;
mod gate;
mod heavy;
mod keys;
mod kind_policies;
mod mask;
mod memory;
mod once;
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

pub use gate::{Class, GateOptions, Room};
pub use problem::Problem;
pub use route_set::{ErrorFormat, RouteSet};
pub use routes::clock::start as start_virtual_clock;
pub use routes::{Route, table};
pub use serve::{ServeOptions, serve};

use auth::Keys;
use auth_failures::AuthFailures;
use catalog::Catalog;
use connections::Connections;
use drained::DrainedWorkers;
use gate::Gate;
use kind_policies::KindPolicies;
use once::KeyedActs;
use route_set::Interface;
use streams::Streams;
use token::Tokens;
use wire::task::Policies;
use workers::Workers;

/// What every route shares.
pub struct App {
    pub engine: Engine,
    pub keys: Keys,
    pub instance: String,
    started_at: Timestamp,
    /// Present on a server whose time is moved by hand.
    pub clock: Option<Arc<VirtualClock>>,
    executors: Option<Executors>,
    tokens: Tokens,
    policies: Arc<Policies>,
    kind_policies: Arc<KindPolicies>,
    catalog: Arc<Catalog>,
    workers: Workers,
    drained: DrainedWorkers,
    /// Proxies whose `X-Forwarded-For` is believed.
    trusted_proxies: Vec<IpNet>,
    gate: Gate,
    counted: counted::Counted,
    /// Who is told of requests.
    pub(crate) requests: Option<Listener>,
    /// Requests that were refused because a namespace's quota was used up.
    quota_refusals: QuotaRefusals,
    /// Event streams that are open, and what they share.
    streams: Arc<Streams>,
    /// Acts under an idempotency key that are in progress.
    keyed_acts: Arc<KeyedActs>,
    auth_failures: AuthFailures,
    connections: Arc<Connections>,
    /// Why the last write that was tried failed; nothing when it did not.
    trouble: RwLock<Option<String>>,
    draining: AtomicBool,
    interface: Interface,
    /// State of added routes, one value of each type.
    route_state: Mutex<Extensions>,
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
    /// Proxies whose `X-Forwarded-For` is believed.
    pub trusted_proxies: Vec<IpNet>,
    /// Routes beside the server's own, such as those of other systems.
    pub added_routes: Vec<RouteSet>,
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
        let AppOptions { instance, clock, executors, gate, requests, trusted_proxies, added_routes } = options;
        let keys = Keys::default();
        keys.refresh(&**engine.store()).await?;
        let tokens = Tokens::new(lease_key(&**engine.store()).await?, &engine.store().epoch().await?);
        let kind_policies = Arc::new(KindPolicies::default());
        kind_policies.refresh(&**engine.store()).await?;
        let drained = DrainedWorkers::default();
        drained.refresh(&**engine.store()).await?;
        let workers = Workers::default();
        workers.recount(&**engine.store(), engine.now()).await?;
        let policies = Arc::new(Policies::default());
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
            gate: Gate::new(gate, &quotas),
            counted: counted::Counted::default(),
            requests,
            quota_refusals: QuotaRefusals::default(),
            streams,
            keyed_acts: KeyedActs::new(&quotas),
            auth_failures: AuthFailures::default(),
            connections: Arc::default(),
            trouble: RwLock::default(),
            draining: AtomicBool::new(false),
            interface: Interface::new(added_routes),
            route_state: Mutex::default(),
        };
        let app = Arc::new(app);
        // Whoever is told that it is ready finds it among the instances.
        app.say_and_remember().await;
        let (background, weak) = (&app.engine.config().background, Arc::downgrade(&app));
        let follows = weak.clone();
        background.spawn("server/shared", FOLLOW, move |beat| follow(follows.clone(), beat));
        background.spawn("server/instance", SAY, move |beat| say_that_it_lives(weak.clone(), beat));
        Ok(app)
    }

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

/// How often what instances share is read again.
const FOLLOW: Duration = Duration::from_millis(500);

/// Keys, policies, drained workers and a time that another instance has changed are heard of within a second. While nothing changes
/// only the numbers of the last changes are read.
async fn follow(app: std::sync::Weak<App>, beat: Arc<Heartbeat>) -> Finished {
    loop {
        tokio::time::sleep(FOLLOW).await;
        let Some(app) = app.upgrade() else { return Finished };
        panic_point!("server-shared");
        let store = &**app.engine.store();
        let heard = async {
            let numbers = store.change_numbers().await?;
            app.keys.follow(store, numbers.keys).await?;
            routes::clock::follow(&app).await?;
            if app.tokens.enter(&store.epoch().await?) {
                tracing::warn!("a new epoch of the database has begun: lease tokens from before are refused");
            }
            app.drained.follow(store, numbers.drained).await?;
            app.kind_policies.follow(store, numbers.policies).await
        };
        let heard = heard.await;
        if !matches!(heard, Err(StoreError::Unavailable(_) | StoreError::Unknown(_))) {
            beat.turn();
        }
        if let Err(error) = heard {
            tracing::debug!(%error, "what instances share could not be read again");
        }
    }
}

/// Instances that were silent for so long are no longer listed.
const GONE: Millis = Millis::from_secs(60);
/// How often an instance says that it runs, and writes the workers that are due.
const SAY: Duration = Duration::from_secs(5);
/// How often rows of workers that were not seen for an hour are removed.
const FORGET: Duration = Duration::from_secs(60);
/// How often the log tells of keys that end soon.
const DAY: Duration = Duration::from_secs(86_400);

async fn say_that_it_lives(app: std::sync::Weak<App>, beat: Arc<Heartbeat>) -> Finished {
    let (mut forgot, mut warned): (Option<Instant>, Option<Instant>) = (None, None);
    let is_due = |last: Option<Instant>, period: Duration| last.is_none_or(|last| last.elapsed() >= period);
    let mut is_first = true;
    loop {
        let Some(app) = app.upgrade() else { return Finished };
        panic_point!("server-instance");
        if !std::mem::take(&mut is_first) {
            app.say_and_remember().await;
        }
        let now = app.engine.now();
        if is_due(forgot, FORGET) {
            forgot = Some(Instant::now());
            if let Err(error) = app.engine.store().forget_workers(now - workers::REMEMBERED).await {
                tracing::debug!(%error, "old workers could not be removed");
            }
        }
        if is_due(warned, DAY) && app.warn_of_ending_keys(now) {
            warned = Some(Instant::now());
        }
        // A write that fails has its own word in `/readyz`.
        beat.turn();
        drop(app);
        tokio::time::sleep(SAY).await;
    }
}

/// Keys that one line of the log names.
const NAMED: usize = 10;

impl App {
    /// Says that it runs; `/readyz` tells why it could not.
    async fn say_and_remember(&self) {
        let said = self.say(self.engine.now()).await;
        if let (Err(error), false) = (&said, self.is_draining()) {
            tracing::warn!(%error, "the database takes no writes");
        }
        *self.trouble.write() = said.err().map(|error| error.to_string());
    }

    /// This instance, among those that run.
    pub(crate) fn own_row(&self, now: Timestamp) -> InstanceRow {
        let (id, version) = (self.instance.clone(), env!("CARGO_PKG_VERSION").to_owned());
        InstanceRow { id, version, started_at: self.started_at, seen_at: now }
    }

    /// Writes that this instance runs, and the workers that are due.
    async fn say(&self, now: Timestamp) -> Result<(), StoreError> {
        let store = &**self.engine.store();
        store.put_instance(&self.own_row(now), now - GONE).await?;
        self.workers.write(store, &self.instance, now).await?;
        Ok(())
    }

    /// Logs the keys that end within two weeks. False where there are none.
    fn warn_of_ending_keys(&self, now: Timestamp) -> bool {
        let mut ending = self.keys.ending(None, now);
        ending.sort_by_key(|key| key.expires_at);
        let Some(first) = ending.first().and_then(|key| key.expires_at) else { return false };
        let ids: Vec<&str> = ending.iter().take(NAMED).map(|key| key.id.as_str()).collect();
        let (count, first) = (ending.len(), Timestamp(first).to_rfc3339());
        tracing::warn!(keys = count, first, ids = ids.join(" "), "API keys expire within 14 days");
        true
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
