//! Knows what should happen to a task, and nothing about how anything happens.
//!
//! There is no clock, no randomness, no database, no network and no async here. Time is an argument, chance is a hash,
//! and every function gives the same answer to the same question.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used))]

mod words;

pub mod account;
pub mod admission;
pub mod alert;
pub mod audit;
pub mod backoff;
pub mod backtest;
pub mod budget;
pub mod decide;
pub mod dependency;
pub mod dialect;
pub mod error_group;
pub mod event;
pub mod execution;
pub mod explain;
pub mod expression;
pub mod failure;
pub mod filter;
pub mod fingerprint;
pub mod forecast;
pub mod graph;
pub mod guard;
pub mod id;
pub mod idempotency;
pub mod invalid;
pub mod lint;
pub mod mask;
pub mod operation;
mod pattern;
pub mod payload;
pub mod policy;
pub mod quota;
pub mod reason;
pub mod repair;
pub mod replay;
pub mod schedule;
pub mod scope;
pub mod spreadsheet;
pub mod standing;
pub mod stats;
pub mod subscription;
pub mod task;
pub mod time;
pub mod transition;
pub mod window;
pub mod workflow;

pub use audit::{Audit, Did};
pub use decide::{End, Outcome, Snapshot, Speaker, decide};
pub use event::{AttemptOutcome, Event, EventKind, Record};
pub use execution::{Execution, ExecutionState};
pub use failure::{Class, Failure, RetryAfter, Trigger};
pub use graph::{Commit, Edge, ExecutionWrite, OnUnmet, When, Working, Write};
pub use id::{ExecutionId, TaskId};
pub use idempotency::{ActKey, Idempotency};
pub use invalid::{Fault, Invalid};
pub use policy::{Dialect, Jitter, Policy, PolicyLimits};
pub use quota::{Quota, QuotaExceeded, Quotas};
pub use reason::{Decision, Reason, Verdict};
pub use scope::NamePatterns;
pub use task::{Counters, Executor, HOOK_QUEUE, Hold, Lane, Lease, Priority, RetryKind, State, Tally, Task, Unwritten};
pub use time::{Millis, Timestamp};
pub use transition::{Line, Rejection, Transition};
