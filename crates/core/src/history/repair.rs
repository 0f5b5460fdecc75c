//! Failed work that could be retried. A verdict is taken once, so there should be none: unless a person said since then of such errors
//! that they are retryable, or a limit of the server's that had cut it short was raised. Then the same verdict, taken on the same facts
//! today, is another.

use std::sync::Arc;

use crate::decide::{End, Outcome, Reporter, Snapshot, decide};
use crate::event::{AttemptOutcome, Record};
use crate::reason::Reason;
use crate::task::{Lease, State};
use crate::time::Timestamp;

/// The proposed treatment of a task that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repair {
    /// It would be retried today.
    Retry,
    /// It would end the same way, for this reason.
    Stay(Reason),
    /// There is no verdict to take again: it did not fail by a run of its own.
    Skip,
}

/// Takes the verdict on the last run of a task again.
pub fn repair(snapshot: &Snapshot, last: Option<&Record>, now: Timestamp) -> Repair {
    let task = &snapshot.task;
    let failed = last.filter(|record| record.outcome == Some(AttemptOutcome::Failed) && record.run == task.run);
    let Some((failure, decision)) = failed.and_then(|record| record.failure.as_ref().zip(record.decision.as_ref()))
    else {
        return Repair::Skip;
    };
    if !matches!(task.state, State::Failed | State::Dead) {
        return Repair::Skip;
    }
    // As it was when it was decided about.
    let mut before = snapshot.clone();
    before.task.state = State::Running;
    before.task.counters = decision.before;
    before.task.ended_at = None;
    before.task.reason = None;
    let worker: Arc<str> = "repair".into();
    let number = task.lease_number;
    before.task.lease = Some(Lease { number, worker, acquired_at: now, expires_at: None });
    let outcome = Outcome { reporter: Reporter::Lease(number), end: End::Failed(failure.clone()) };
    match decide(&before, &outcome, now) {
        Ok(change) if change.after().state == State::RetryPending => Repair::Retry,
        Ok(change) => Repair::Stay(change.after().reason.unwrap_or(Reason::Final)),
        Err(_) => Repair::Skip,
    }
}
