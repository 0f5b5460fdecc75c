//! The engine: one file per command, one file per background loop.
//!
//! The engine reads the clock, calls the store and wakes waiting workers. The next state of a task is decided in
//! `comeback-core`, and `comeback-store` stores it. There is no SQL here and no HTTP server.
//!
//! ```no_run
//! # async fn demo() -> Result<(), Box<dyn std::error::Error>> {
//! use comeback_engine::{Engine, Submit, TaskSpec};
//! let engine = Engine::open_sqlite("comeback.db").await?;
//! engine.submit(Submit::one("default", TaskSpec::new("hello"))).await?;
//! # Ok(()) }
//! ```

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used))]

pub mod alerts;
mod budgets;
mod cache;
mod changes;
mod classes;
mod combine;
mod commands;
mod config;
mod cursors;
mod dependencies;
pub mod executors;
pub mod flow;
pub mod hooks;
mod ids;
mod limits;
mod loops;
mod operations;
mod pipeline;
pub mod schedules;
pub mod secrets;
mod shares;
mod spec;
pub mod subscriptions;
mod tally;
mod wake;
mod watch;

pub mod clock;

use std::path::Path;
use std::sync::Arc;

use comeback_core::{Invalid, Rejection, State};
use comeback_store::{Background, SqliteOptions, SqliteStore, Stalled, Store, StoreError, Unfunded};

pub use changes::{DependencyChange, DependencyCursor};
pub use clock::{Clock, ScaledClock, Step, SystemClock, VirtualClock};
pub use comeback_core::{Failure, Policy, Trigger};
pub use comeback_store as store;
pub use comeback_store::background;
pub use commands::backtest::{BacktestResult, Cohort, MOST_LIVES, USUAL_LIVES};
pub use commands::bulk::{Bulk, OperationView, Preview, Selection};
pub use commands::callback::CompleteCallback;
pub use commands::change::{ActorRequest, DoneBefore};
pub use commands::cleanup::Cleanup;
pub use commands::dependencies::{DependencyCommand, DependencyView};
pub use commands::describe::Describe;
pub use commands::heartbeat::Heartbeat;
pub use commands::lease::{LeaseRef, LeaseRequest, Leased};
pub use commands::loops::Preview as PausePreview;
pub use commands::report::{Report, ReportEnd};
pub use commands::retry::{Edited, ManualRetry, Retried};
pub use commands::rules::{CARRIED, HeldBy, RuleView, may_be_held};
pub use commands::secret::Reencrypted;
pub use commands::stuck::{RepairAction, RepairResult, lost_by};
pub use commands::submit::SubmitAnswer;
pub use commands::subscription::{Redeliver, Redelivered};
pub use commands::why::Why;
pub use config::{Available, EngineConfig};
pub use cursors::Cursors;
pub use limits::Limits;
pub use pipeline::Changed;
pub use shares::{Share, Shares};
pub use spec::{ExecutionSpec, ExecutorSpec, Json, Moment, Need, Submit, TaskSpec};
pub use tally::{BOUNDS_MS, CallTally, KindTally, LoopTally, Query, QueryTally, Tally, Took};
pub use watch::{Watcher, Watching};

/// State that every part of the engine shares.
pub(crate) struct Core {
    pub store: Arc<dyn Store>,
    pub clock: Arc<dyn Clock>,
    pub config: EngineConfig,
    pub ids: ids::Ids,
    pub wake: Arc<wake::Wake>,
    pub alarms: wake::Alarms,
    pub cache: cache::Cache,
    pub tallies: tally::Tallies,
    pub dependencies: dependencies::DependencyTracker,
    pub classes: classes::Classes,
    /// Time of the last claim, by this instance's clock.
    pub asked_at: std::sync::atomic::AtomicI64,
    /// Until then no run is declared lost or timed out (`loops/time.rs`).
    pub losses_from: std::sync::atomic::AtomicI64,
    /// Positions of the readers of the feed.
    pub feed_positions: subscriptions::follow::FeedPositions,
    pub alert_counts: alerts::look::CountCache,
    /// How often open calls are looked through.
    pub flow_pace: flow::Pace,
    /// Places in the feed as callers see them.
    pub cursors: Cursors,
    /// Times of the last search for unused lanes and policies.
    pub last_cleanup: loops::prune::LastCleanup,
    /// The reader of workflows, if there is one.
    pub workflows: std::sync::OnceLock<Arc<dyn flow::Workflows>>,
}

/// Snapshots of leased tasks in memory. A report about a task without one reads the task first.
const MOST_SNAPSHOTS: usize = 16_384;

/// The engine. Cheap to clone; its loops stop when the last clone is gone.
#[derive(Clone)]
pub struct Engine {
    pub(crate) core: Arc<Core>,
    combiners: Arc<commands::Combiners>,
    loops: Arc<loops::Running>,
}

impl Engine {
    /// An engine on a SQLite file, with its loops running on the system's clock.
    pub async fn open_sqlite(path: impl AsRef<Path>) -> Result<Engine, StoreError> {
        let store = SqliteStore::open(&SqliteOptions::file(path))?;
        Engine::start(Arc::new(store), SystemClock::new(), EngineConfig::default()).await
    }

    /// An engine with its loops running.
    pub async fn start(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        config: EngineConfig,
    ) -> Result<Engine, StoreError> {
        let mut engine = Engine::without_loops(store, clock, config).await?;
        engine.loops = Arc::new(loops::Running::start(&engine.core));
        Ok(engine)
    }

    /// An engine whose loops only run when `tick` is called: for simulations and for time that is moved by hand.
    pub async fn without_loops(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        config: EngineConfig,
    ) -> Result<Engine, StoreError> {
        clock.follow(store.clock_offset().await?.unwrap_or(0));
        store.set_quotas(&config.quotas);
        let cursors = Cursors::open(&*store).await?;
        let core = Arc::new(Core {
            store,
            clock,
            ids: ids::Ids::new(config.id_seed),
            config,
            wake: Arc::default(),
            alarms: wake::Alarms::default(),
            cache: cache::Cache::new(MOST_SNAPSHOTS),
            tallies: tally::Tallies::default(),
            dependencies: dependencies::DependencyTracker::default(),
            classes: classes::Classes::default(),
            asked_at: std::sync::atomic::AtomicI64::new(i64::MIN),
            losses_from: std::sync::atomic::AtomicI64::new(i64::MIN),
            feed_positions: subscriptions::follow::FeedPositions::default(),
            last_cleanup: loops::prune::LastCleanup::default(),
            alert_counts: alerts::look::CountCache::default(),
            flow_pace: flow::Pace::default(),
            cursors,
            workflows: std::sync::OnceLock::new(),
        });
        core.learn_classes().await?;
        let combiners = Arc::new(commands::Combiners::start(&core));
        Ok(Engine { core, combiners, loops: Arc::default() })
    }

    /// Shuts down in order: stops the loops, answers open requests, and closes the store if it is not shared. Only the last
    /// clone can do it; on another one this has no effect.
    pub async fn close(self) {
        let Engine { core, combiners, loops } = self;
        if let Ok(loops) = Arc::try_unwrap(loops) {
            loops.stop().await;
        }
        if let Ok(combiners) = Arc::try_unwrap(combiners) {
            combiners.close().await;
        }
        if let Some(core) = Arc::into_inner(core)
            && Arc::strong_count(&core.store) == 1
        {
            core.store.close().await;
        }
    }

    /// Stops the loops even if there are other clones: for a process that is about to close its store.
    pub async fn stop_loops(&self) {
        self.loops.stop().await;
    }

    /// Background tasks that have not turned for ten of their periods, or have ended: of the engine and of its store.
    pub fn stalled(&self) -> Vec<Stalled> {
        let mut stalled = self.core.config.background.stalled();
        stalled.extend(self.core.store.background().map(Background::stalled).unwrap_or_default());
        stalled
    }

    /// The store.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.core.store
    }

    /// Counters of this process since it started.
    pub fn tally(&self) -> Tally {
        self.core.tallies.now()
    }

    /// The same of one namespace, without what belongs to the process.
    pub fn tally_of(&self, namespace: &str) -> Tally {
        self.core.tallies.now_of(namespace)
    }

    /// Places in the feed as callers see them.
    pub fn cursors(&self) -> &Cursors {
        &self.core.cursors
    }

    /// The time of the engine's clock.
    pub fn now(&self) -> comeback_core::Timestamp {
        self.core.clock.now()
    }

    /// The configuration.
    pub fn config(&self) -> &EngineConfig {
        &self.core.config
    }

    /// Limits of interactive reads: `store::interactive(engine.interactive(namespace), …)` keeps them off the engine's connections.
    pub fn interactive(&self, namespace: &str) -> comeback_store::Interactive {
        let EngineConfig { limits, quotas, .. } = &self.core.config;
        comeback_store::Interactive {
            namespace: namespace.into(),
            timeout: std::time::Duration::from_millis(limits.search_timeout.0),
            searches: quotas.get(comeback_core::Quota::Searches),
        }
    }
}

/// Why a command did not happen. Named by what the caller can do.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// Correct the request; nothing was written.
    #[error("{0}")]
    Invalid(#[from] Invalid),
    /// There is no such thing in this namespace.
    #[error("there is no such {0}")]
    NotFound(&'static str),
    /// The task is in a state that forbids it.
    #[error("a task that is {state} cannot be {verb}")]
    WrongState { state: State, verb: &'static str },
    /// The execution is in a state that forbids it.
    #[error("{0}")]
    WrongExecutionState(comeback_core::execution::ExecutionRejection),
    /// No execution starts below one that has ended.
    #[error("the execution {0}, which all of this began with, has ended")]
    RootEnded(comeback_core::ExecutionId),
    /// The lease has expired or was replaced.
    #[error("the lease is no longer held")]
    LeaseLost,
    /// The task was canceled.
    #[error("the task was canceled")]
    TaskCanceled,
    /// Another caller changed the same row at the same time; try again.
    #[error("the task was changed by somebody else at the same moment")]
    Conflict,
    /// The key belongs to another request.
    #[error("the idempotency key was used for another request")]
    IdempotencyMismatch,
    /// The name is taken.
    #[error("there is a {0} of that name already")]
    NameTaken(&'static str),
    /// An open task holds the dedupe key.
    #[error("an open task holds the same dedupe key")]
    KeyTaken,
    /// The account has too few credits.
    #[error("this takes {required} credits, and {available} are available")]
    InsufficientCredits { required: i64, available: i64 },
    /// The workflow is in a state that forbids it.
    #[error("a workflow that is {state} cannot be {verb}")]
    WrongWorkflowState { state: comeback_core::workflow::WorkflowState, verb: &'static str },
    /// The operation is in a state that forbids it.
    #[error("an operation that is {state} cannot be {verb}")]
    WrongOperationState { state: comeback_core::operation::OperationState, verb: &'static str },
    /// Open tasks have reserved credits of the account.
    #[error("its open tasks have reserved {0} credits")]
    AccountInUse(i64),
    /// The namespace has all it may have of something; others are not affected.
    #[error(transparent)]
    QuotaExceeded(#[from] comeback_core::QuotaExceeded),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The engine is shutting down.
    #[error("the engine is shutting down")]
    ShuttingDown,
}

impl From<Unfunded> for CommandError {
    fn from(Unfunded { required, available }: Unfunded) -> Self {
        CommandError::InsufficientCredits { required, available }
    }
}

impl From<Rejection> for CommandError {
    fn from(rejection: Rejection) -> Self {
        match rejection {
            // Only the loops are told so, and they look again.
            Rejection::NotDue => CommandError::Conflict,
            Rejection::LeaseLost => CommandError::LeaseLost,
            Rejection::TaskCanceled => CommandError::TaskCanceled,
            Rejection::WrongState { state, verb } => CommandError::WrongState { state, verb },
        }
    }
}
