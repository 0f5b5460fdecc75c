//! Makes it happen: one file per command, one file per loop.
//!
//! The engine asks the clock, calls the store and wakes whoever waits. What should happen to a task is decided in
//! `comeback-core`; how it is remembered is `comeback-store`'s. There is no SQL here and no HTTP.
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
pub mod executors;
pub mod flow;
mod guards;
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

pub use changes::{DependencyChange, Heard};
pub use clock::{Clock, ScaledClock, Step, SystemClock, VirtualClock};
pub use comeback_core::{Failure, Policy, Trigger};
pub use comeback_store as store;
pub use comeback_store::background;
pub use commands::backtest::{Cohort, MOST_LIVES, Tested, USUAL_LIVES};
pub use commands::bulk::{Bulk, OperationView, Preview, Which};
pub use commands::change::Deed;
pub use commands::cleanup::Cleanup;
pub use commands::dependencies::{DependencyView, Turn};
pub use commands::describe::Describe;
pub use commands::heartbeat::Heartbeat;
pub use commands::lease::{LeaseRef, LeaseRequest, Leased};
pub use commands::loops::Preview as PausePreview;
pub use commands::report::{Report, ReportEnd};
pub use commands::retry::{Edited, ManualRetry, Retried};
pub use commands::rules::{CARRIED, HeldBy, RuleView, may_be_held};
pub use commands::secret::Reencrypted;
pub use commands::settle::Settle;
pub use commands::stuck::{Action, PutRight, lost_by};
pub use commands::submit::SubmitAnswer;
pub use commands::subscription::{Again, Redelivered};
pub use commands::why::Why;
pub use config::{Available, EngineConfig};
pub use cursors::Cursors;
pub use limits::Limits;
pub use pipeline::Changed;
pub use shares::{Share, Shares};
pub use spec::{ExecutionSpec, ExecutorSpec, Json, Moment, Need, Submit, TaskSpec};
pub use tally::{BOUNDS_MS, CallTally, KindTally, LoopTally, Query, QueryTally, Tally, Took};
pub use watch::{Watcher, Watching};

/// What every part of the engine shares.
pub(crate) struct Core {
    pub store: Arc<dyn Store>,
    pub clock: Arc<dyn Clock>,
    pub config: EngineConfig,
    pub ids: ids::Ids,
    pub wake: Arc<wake::Wake>,
    pub alarms: wake::Alarms,
    pub cache: cache::Cache,
    pub tallies: tally::Tallies,
    pub guards: guards::Guards,
    pub classes: classes::Classes,
    /// When somebody last asked for work, by this instance's clock.
    pub asked_at: std::sync::atomic::AtomicI64,
    /// Until then nobody is declared lost or out of time (`loops/time.rs`).
    pub losses_from: std::sync::atomic::AtomicI64,
    /// How far those who follow the feed have looked.
    pub looked: subscriptions::follow::Looked,
    pub counted: alerts::look::Counted,
    /// How often open calls are looked through.
    pub flow_pace: flow::Pace,
    /// Places in the feed as callers see them.
    pub cursors: Cursors,
    /// Times of the last search for unused lanes and policies.
    pub last_cleanup: loops::prune::LastCleanup,
    /// Who reads workflows, if anybody does.
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
            guards: guards::Guards::default(),
            classes: classes::Classes::default(),
            asked_at: std::sync::atomic::AtomicI64::new(i64::MIN),
            losses_from: std::sync::atomic::AtomicI64::new(i64::MIN),
            looked: subscriptions::follow::Looked::default(),
            last_cleanup: loops::prune::LastCleanup::default(),
            counted: alerts::look::Counted::default(),
            flow_pace: flow::Pace::default(),
            cursors,
            workflows: std::sync::OnceLock::new(),
        });
        core.learn_classes().await?;
        let combiners = Arc::new(commands::Combiners::start(&core));
        Ok(Engine { core, combiners, loops: Arc::default() })
    }

    /// Ends in order: the loops stop, what was asked is answered, and the store is closed where nobody else has it. Only the last
    /// clone can do it; from another one this changes nothing.
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

    /// Stops the loops, whoever else still has a clone: for a process that is about to close its store.
    pub async fn stop_loops(&self) {
        self.loops.stop().await;
    }

    /// Background tasks that have not turned for ten of their periods, or have ended: of the engine and of its store.
    pub fn stalled(&self) -> Vec<Stalled> {
        let mut stalled = self.core.config.background.stalled();
        stalled.extend(self.core.store.background().map(Background::stalled).unwrap_or_default());
        stalled
    }

    pub fn store(&self) -> &Arc<dyn Store> {
        &self.core.store
    }

    /// What this process has stored since it started.
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

    pub fn now(&self) -> comeback_core::Timestamp {
        self.core.clock.now()
    }

    pub fn config(&self) -> &EngineConfig {
        &self.core.config
    }

    /// What a person's reads run under: `store::interactive(engine.interactive(namespace), …)` keeps them from the engine's connections.
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
    #[error("there is no such {0}")]
    NotFound(&'static str),
    #[error("a task that is {state} cannot be {verb}")]
    WrongState { state: State, verb: &'static str },
    #[error("{0}")]
    WrongExecutionState(comeback_core::execution::ExecutionRejection),
    /// Nothing begins below an execution that has ended.
    #[error("the execution {0}, which all of this began with, has ended")]
    RootEnded(comeback_core::ExecutionId),
    #[error("the lease is no longer held")]
    LeaseLost,
    #[error("the task was canceled")]
    TaskCanceled,
    /// Somebody else changed the same thing at the same moment; look again.
    #[error("the task was changed by somebody else at the same moment")]
    Conflict,
    #[error("the idempotency key was used for another request")]
    IdempotencyMismatch,
    #[error("there is a {0} of that name already")]
    NameTaken(&'static str),
    #[error("an open task holds the same dedupe key")]
    KeyTaken,
    #[error("this takes {required} credits, and {available} are available")]
    InsufficientCredits { required: i64, available: i64 },
    #[error("a workflow that is {state} cannot be {verb}")]
    WrongWorkflowState { state: comeback_core::workflow::WorkflowState, verb: &'static str },
    #[error("an operation that is {state} cannot be {verb}")]
    WrongOperationState { state: comeback_core::operation::OperationState, verb: &'static str },
    #[error("its open tasks have reserved {0} credits")]
    AccountInUse(i64),
    /// The namespace has all it may have of something; others are not affected.
    #[error(transparent)]
    QuotaExceeded(#[from] comeback_core::QuotaExceeded),
    #[error(transparent)]
    Store(#[from] StoreError),
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
