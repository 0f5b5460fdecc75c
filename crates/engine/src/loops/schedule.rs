//! Schedule: starts what is scheduled, each instant once.

use async_trait::async_trait;
use comeback_core::Timestamp;
use comeback_store::{Loop, NextDue, ResourceKind, Running, StoreError, panic_point};

use super::{BATCH, BackgroundLoop, Progress};
use crate::Core;

/// The loop.
pub struct ScheduleLoop;

#[async_trait]
impl BackgroundLoop for ScheduleLoop {
    fn name(&self) -> Loop {
        Loop::Schedule
    }

    fn next_due(&self, next: &NextDue) -> Option<Timestamp> {
        next.schedule
    }

    async fn tick(&self, core: &Core, _due_by: Timestamp) -> Result<Progress, StoreError> {
        panic_point!("loop-schedule");
        // The store checks the pause with every commit; this saves the work.
        if core.is_paused(Loop::Schedule).await? {
            return Ok(Progress::default());
        }
        let now = core.clock.now();
        let due = core.store.due_followers(ResourceKind::Schedules, now, BATCH).await?;
        let mut progress = Progress { moved: 0, more: due.len() >= BATCH as usize };
        for row in due {
            progress.moved += core.fire_due(row, now).await?;
            Running::turn();
        }
        Ok(progress)
    }
}
