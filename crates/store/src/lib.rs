//! Remembers: one trait, two databases, one meaning.
//!
//! All SQL of the product is in this crate, and no opinion: what should happen is decided in `comeback-core` and comes here
//! as a `Commit`, which is stored whole or not at all. There is no clock; every command is told what time it is.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used))]

mod accounts;
mod audit;
pub mod background;
mod check;
mod column;
mod control;
mod counts;
mod dependencies;
mod dictionary;
mod documents;
mod due;
mod epoch;
mod error_groups;
mod events;
mod executions;
mod feed;
mod forget;
mod instances;
mod interactive;
mod lanes;
mod operations;
mod page;
pub mod panic_points;
mod place;
mod policies;
mod queries;
mod query;
mod ready;
mod resources;
mod retention;
mod row;
mod rules;
mod schema;
mod secrets;
mod shared;
mod sql;
mod stats;
mod tasks;

pub mod postgres;
pub mod sqlite;

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;

pub use accounts::{Account, AccountChange, AccountStore, Closed, Unfunded};
pub use audit::{AuditQuery, AuditStore};
pub use background::{Background, Finished, Heartbeat, Registered, Running, Stalled};
pub use check::{CheckProgress, CheckReport, Finding, Part};
pub use comeback_core::{ActKey, Idempotency};
pub use control::*;
pub use counts::*;
pub use dependencies::{Dependency, DependencyStore};
pub use documents::*;
pub use due::*;
pub use epoch::begin_epoch;
pub use error_groups::*;
pub use executions::*;
pub use feed::*;
pub use instances::*;
pub use interactive::{Interactive, interactive};
pub use lanes::*;
pub use operations::{Operation, OperationStep, OperationStore, Started};
pub use page::{FeedCursor, ListCursor};
pub use place::Place;
pub use postgres::{PostgresOptions, PostgresStore};
pub use queries::*;
pub use resources::*;
pub use retention::*;
pub use rules::{RuleStore, Settled};
pub use schema::{SCHEMA_VERSION, SchemaState};
pub use secrets::*;
pub use shared::*;
pub use sqlite::{BackupProgress, SqliteOptions, SqliteStore};
pub use stats::{GroupQuery, StatsBatch, StatsStore, SumLine, SumsQuery};
pub use tasks::*;

/// A database that remembers tasks.
///
/// Every method takes and answers many at once; one bad item never fails its neighbours. The meaning of each method is written down
/// case by case in `conformance`, which both implementations run. An `audit` that comes with a write is stored with it, in one
/// transaction, and only if something was written.
///
/// A retry needs two of these: [`TaskStore`] writes, [`DueQueries`] says when.
pub trait Store:
    AccountStore
    + AuditStore
    + ControlStore
    + CountQueries
    + DependencyStore
    + DocumentStore
    + DueQueries
    + ErrorGroupStore
    + EventLog
    + ExecutionQueries
    + InstanceStore
    + LaneStore
    + OperationStore
    + ResourceStore
    + Retention
    + RuleStore
    + SecretStore
    + SharedStore
    + StatsStore
    + TaskQueries
    + TaskStore
{
}

impl<T> Store for T where
    T: AccountStore
        + AuditStore
        + ControlStore
        + CountQueries
        + DependencyStore
        + DocumentStore
        + DueQueries
        + ErrorGroupStore
        + EventLog
        + ExecutionQueries
        + InstanceStore
        + LaneStore
        + OperationStore
        + ResourceStore
        + Retention
        + RuleStore
        + SecretStore
        + SharedStore
        + StatsStore
        + TaskQueries
        + TaskStore
{
}

/// Why a store could not do what it was asked.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// The write was not done; trying again may help.
    #[error("the database is not available: {0}")]
    Unavailable(String),
    /// A commit may or may not have happened. PostgreSQL is asked again on a new connection; a SQLite file accepts nothing more
    /// until a restart has looked.
    #[error("the outcome of a commit is unknown: {0}")]
    Unknown(String),
    #[error("another process has this database open: {0}")]
    Locked(String),
    #[error("{0}")]
    Schema(String),
    /// The database contradicts itself.
    #[error("the database holds what it should not: {0}")]
    Corrupt(String),
    #[error("the statement was refused: {0}")]
    Refused(String),
    /// An interactive read took longer than it may and was interrupted.
    #[error("the search took longer than {} and was stopped; narrow the filter", comeback_core::Millis(u64::try_from(.0.as_millis()).unwrap_or(u64::MAX)))]
    SearchTimeout(std::time::Duration),
    /// The write was not done: the namespace is at a quota.
    #[error(transparent)]
    QuotaExceeded(#[from] comeback_core::QuotaExceeded),
    /// The write was not done: the idempotency key of the act was used before.
    #[error("the idempotency key was used before")]
    KeyUsed(Used),
}
