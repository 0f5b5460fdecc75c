//! Reap: ends runs whose lease has expired as lost, through the same pipeline as any other failure.

use std::sync::atomic::Ordering;

use async_trait::async_trait;
use comeback_core::{End, Executor, Outcome, Reporter, Task, Timestamp, Trigger};
use comeback_store::{Behalf, Due, Loop, NextDue, StoreError, Stored, panic_point};

use super::{BATCH, BackgroundLoop, Progress};
use crate::Core;
use crate::pipeline::{ChangeRequest, TaskChange, count_changed};

/// The loop.
pub struct ReapLoop;

#[async_trait]
impl BackgroundLoop for ReapLoop {
    fn name(&self) -> Loop {
        Loop::Reap
    }

    fn next_due(&self, next: &NextDue) -> Option<Timestamp> {
        next.lease
    }

    async fn tick(&self, core: &Core, due_by: Timestamp) -> Result<Progress, StoreError> {
        if losses_are_suspended(core, due_by) {
            return Ok(Progress::default());
        }
        panic_point!("loop-reap");
        let due = core.store.due(Due::Leases, core.clock.now(), BATCH).await?;
        let found = due.len();
        let progress = end_all(core, due, Loop::Reap, lost).await?;
        if progress.moved > 0 {
            tracing::warn!(found, recovered = progress.moved, "recovered expired leases");
        }
        Ok(progress)
    }
}

/// Whether no run may be declared lost or timed out because the clock jumped forward (`time.rs`).
pub(super) fn losses_are_suspended(core: &Core, due_by: Timestamp) -> bool {
    due_by.0 < core.losses_from.load(Ordering::Relaxed)
}

/// The end of a run whose lease has expired.
pub fn lost(stored: &Stored) -> TaskChange {
    TaskChange::End(Outcome { reporter: Reporter::Server, end: End::Lost(trigger(&stored.task)) })
}

/// The trigger of a failure by an expired lease.
pub fn trigger(task: &Task) -> Trigger {
    match task.lane.executor {
        // A started hook has no lease to renew: it went silent.
        Executor::Hook if task.run > 0 && task.started_at.is_some() => Trigger::Stuck,
        _ => Trigger::LeaseExpired,
    }
}

/// Applies a change to each of these tasks, on behalf of a loop.
pub async fn end_all(
    core: &Core,
    due: Vec<Stored>,
    name: Loop,
    change: impl Fn(&Stored) -> TaskChange + Send,
) -> Result<Progress, StoreError> {
    let more = due.len() >= BATCH as usize;
    if due.is_empty() {
        return Ok(Progress::default());
    }
    let end = |stored: Stored| {
        let change = change(&stored);
        ChangeRequest::exact(stored, change)
    };
    let requests = due.into_iter().map(end).collect();
    let outcomes = core.apply_changes(requests, Behalf::Loop(name)).await?;
    Ok(Progress { moved: count_changed(&outcomes), more })
}
