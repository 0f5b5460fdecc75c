//! Speaks: HTTP to commands, answers to JSON. Wire shapes and status codes live here; a rule about tasks does not.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used))]

pub mod auth;
pub mod openapi;
mod problem;
mod routes;
mod serve;
mod shared;
mod token;
mod wire;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use comeback_engine::executors::Executors;
use comeback_engine::store::{Store, StoreError};
use comeback_engine::{Engine, VirtualClock};
use parking_lot::RwLock;

pub use problem::Problem;
pub use routes::clock::META as VIRTUAL_CLOCK;
pub use routes::{Route, table};
pub use serve::{ServeOptions, serve};

use auth::Keys;
use shared::{Bound, Instance, Instances, Shared, Workers};
use token::Tokens;
use wire::task::Policies;

/// What every route shares.
pub struct App {
    pub engine: Engine,
    pub keys: Keys,
    pub instance: String,
    /// Present on a server whose time is moved by hand.
    pub clock: Option<Arc<VirtualClock>>,
    executors: Option<Executors>,
    tokens: Tokens,
    policies: Policies,
    bound: Shared<Bound>,
    instances: Shared<Instances>,
    workers: Workers,
    /// Why the last write that was tried failed; nothing when it did not.
    trouble: RwLock<Option<String>>,
    draining: AtomicBool,
}

impl App {
    pub async fn new(
        engine: Engine,
        instance: impl Into<String>,
        clock: Option<Arc<VirtualClock>>,
        executors: Option<Executors>,
    ) -> Result<Arc<App>, StoreError> {
        let keys = Keys::default();
        keys.refresh(&**engine.store()).await?;
        let tokens = Tokens::new(lease_key(&**engine.store()).await?);
        let bound = Shared::new("policies");
        bound.refresh(&**engine.store()).await?;
        let app = App {
            engine,
            keys,
            instance: instance.into(),
            clock,
            executors,
            tokens,
            policies: Policies::default(),
            bound,
            instances: Shared::new("instances"),
            workers: Workers::default(),
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

/// Keys and policies that another instance has changed are heard of within a second.
async fn follow(app: std::sync::Weak<App>) {
    loop {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let Some(app) = app.upgrade() else { return };
        let store = &**app.engine.store();
        let heard = async {
            app.keys.refresh(store).await?;
            app.bound.refresh(store).await
        };
        if let Err(error) = heard.await {
            tracing::debug!(%error, "what instances share could not be read again");
        }
    }
}

/// Instances that were silent for so long are no longer listed.
const GONE: i64 = 60_000;

async fn say_that_it_lives(app: std::sync::Weak<App>) {
    let mut started_at = None;
    loop {
        let Some(app) = app.upgrade() else { return };
        let now = app.engine.now().0;
        let started_at = *started_at.get_or_insert(now);
        let own = Instance { started_at, seen_at: now, version: env!("CARGO_PKG_VERSION").into() };
        let said = app
            .instances
            .change(&**app.engine.store(), |all| {
                all.retain(|_, it| it.seen_at > now - GONE);
                all.insert(app.instance.clone(), own);
            })
            .await;
        if let Err(error) = &said {
            tracing::warn!(%error, "the database takes no writes");
        }
        *app.trouble.write() = said.err().map(|error| error.to_string());
        drop(app);
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
}

/// Made once per database: a token must be good at every instance and after every restart.
async fn lease_key(store: &dyn Store) -> Result<[u8; 32], StoreError> {
    let mut fresh = [0_u8; 32];
    getrandom::fill(&mut fresh).map_err(|error| StoreError::Unavailable(format!("no randomness: {error}")))?;
    let text: String = fresh.iter().map(|byte| format!("{byte:02x}")).collect();
    let stands = store.put_meta("lease_key", &text, true).await?;
    let mut key = [0_u8; 32];
    for (i, byte) in key.iter_mut().enumerate() {
        let digits = stands.get(2 * i..2 * i + 2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        *byte = digits.ok_or_else(|| StoreError::Corrupt("the key of the lease tokens".into()))?;
    }
    Ok(key)
}
