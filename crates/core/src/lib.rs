//! The pure rules of Comeback: retries (re-exported from `comeback-retry`), executions, workflows, schedules, limits and statistics.
//!
//! There is no clock, no randomness, no database, no network and no async here. Time is an argument, jitter is a hash,
//! and every function gives the same answer to the same question.

#![deny(missing_docs)]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used))]

// The heart is a crate of its own, `comeback-retry`: what a failure means, and when its task is tried again.
// The module and the function:
pub use comeback_retry::decide;
pub use comeback_retry::{backoff, failure, fingerprint, guard, policy, reason, window};
pub use comeback_retry::{budget, dependency};
pub use comeback_retry::{dialect, expression, id, invalid, mask, time};
pub use comeback_retry::{event, idempotency, task, transition};
pub use comeback_retry::{explain, forecast, lint};

pub mod flow;
pub mod history;
pub mod lang;
pub mod limits;
pub mod observe;

pub use flow::{execution, graph, schedule, standing, workflow};
pub use history::{audit, backtest, payload, repair, replay};
pub use lang::{filter, scope, spreadsheet};
pub use limits::{account, admission, operation, quota};
pub use observe::{alert, error_group, stats, subscription};

mod words {
    pub(crate) use comeback_retry::words;
}

pub use audit::{Audit, AuditAction};
pub use decide::{End, Outcome, Reporter, Snapshot};
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
pub use transition::{Rejection, Transition, TransitionKind};
