//! Knows what should happen to a task, and nothing about how anything happens.
//!
//! There is no clock, no randomness, no database, no network and no async here. Time is an argument, chance is a hash,
//! and every function gives the same answer to the same question.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used))]

// The heart: what a failure means, and when its task is tried again.
pub mod retry;
// What it is decided about, and what a decision changes.
pub mod task;
// The same in sentences, ahead of time and in hindsight.
pub mod explain;

pub mod flow;
pub mod lang;
pub mod limits;
pub mod observe;

pub use explain::{backtest, forecast, lint};
pub use flow::{schedule, workflow};
pub use lang::{dialect, expression, filter, id, invalid, mask, scope, spreadsheet, time};
pub use limits::{account, admission, dependency, operation, quota};
pub use observe::{alert, error_group, fingerprint, stats, subscription};
pub use retry::{backoff, budget, decide, failure, guard, policy, reason, window};
pub use task::{audit, event, execution, graph, payload, repair, replay, standing, transition};

use lang::words;
use retry::pattern;

pub use audit::{Audit, Did};
pub use decide::{End, Outcome, Snapshot, Speaker, decide};
pub use event::{AttemptOutcome, Event, EventKind, Record};
pub use execution::{Execution, ExecutionState};
pub use failure::{Class, Failure, RetryAfter, Trigger};
pub use graph::{Commit, Edge, ExecutionWrite, OnUnmet, When, Working, Write};
pub use id::{ExecutionId, TaskId};
pub use invalid::{Fault, Invalid};
pub use policy::{Dialect, Jitter, Policy, PolicyLimits};
pub use quota::{Quota, QuotaExceeded, Quotas};
pub use reason::{Decision, Reason, Verdict};
pub use scope::NamePatterns;
pub use task::{Counters, Executor, HOOK_QUEUE, Hold, Lane, Lease, Priority, RetryKind, State, Tally, Task, Unwritten};
pub use time::{Millis, Timestamp};
pub use transition::{Line, Rejection, Transition};
