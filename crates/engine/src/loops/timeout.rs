//! Timeout: fails runs that were idle for too long or ran for too long.

use async_trait::async_trait;
use comeback_core::{End, Failure, Outcome, Reporter, Timestamp, Trigger};
use comeback_store::{Due, Loop, NextDue, StoreError, Stored, panic_point};

use super::reap::{end_all, losses_are_suspended};
use super::{BATCH, BackgroundLoop, Progress};
use crate::Core;
use crate::pipeline::TaskChange;

/// The loop.
pub struct TimeoutLoop;

#[async_trait]
impl BackgroundLoop for TimeoutLoop {
    fn name(&self) -> Loop {
        Loop::Timeout
    }

    fn next_due(&self, next: &NextDue) -> Option<Timestamp> {
        next.timeout
    }

    async fn tick(&self, core: &Core, due_by: Timestamp) -> Result<Progress, StoreError> {
        if losses_are_suspended(core, due_by) {
            return Ok(Progress::default());
        }
        panic_point!("loop-timeout");
        let due = core.store.due(Due::Timeouts, core.clock.now(), BATCH).await?;
        end_all(core, due, Loop::Timeout, timed_out).await
    }
}

fn timed_out(stored: &Stored) -> TaskChange {
    let task = &stored.task;
    let absolute = task.attempt_deadline.zip(task.started_at).map(|(span, start)| start + span);
    let message = match (task.timeout, absolute) {
        (_, Some(limit)) if task.timeout_at == Some(limit) => {
            format!("the run took longer than {}", task.attempt_deadline.unwrap_or_default())
        }
        (Some(timeout), _) => format!("no sign of life for {timeout}"),
        (None, _) => "the run took too long".to_owned(),
    };
    let failure = Failure::new(Trigger::Timeout, message);
    TaskChange::End(Outcome { reporter: Reporter::Server, end: End::Failed(failure) })
}
