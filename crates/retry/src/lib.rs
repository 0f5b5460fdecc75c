#![doc = include_str!("../README.md")]
#![deny(missing_docs)]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used))]

pub mod decide;

pub mod backoff;
pub mod explain;
pub mod failure;
pub mod fingerprint;
pub mod guard;
mod lang;
mod pattern;
pub mod policy;
pub mod reason;
pub mod task;
pub mod window;

pub use explain::{forecast, lint};
pub use guard::{budget, dependency};
pub use lang::{dialect, expression, id, invalid, mask, time};
pub use task::{event, idempotency, transition};

use lang::words;

pub use decide::{End, Outcome, Reporter, Snapshot, decide};
pub use event::{AttemptOutcome, Event, EventKind, Record};
pub use failure::{Class, Failure, RetryAfter, Trigger};
pub use id::{ExecutionId, TaskId};
pub use idempotency::{ActKey, Idempotency};
pub use invalid::{Fault, Invalid};
pub use policy::{Dialect, Jitter, Policy, PolicyLimits};
pub use reason::{Decision, Reason, Verdict};
pub use task::{Counters, Executor, HOOK_QUEUE, Hold, Lane, Lease, Priority, RetryKind, State, Tally, Task, Unwritten};
pub use time::{Millis, Timestamp};
pub use transition::{Rejection, Transition, TransitionKind};
pub use uuid::Uuid;
