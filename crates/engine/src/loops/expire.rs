//! Expire: ends tasks whose deadline has passed (T15, T27).

use async_trait::async_trait;
use comeback_core::Timestamp;
use comeback_store::{Due, Loop, NextDue, StoreError, panic_point};

use super::reap::end_all;
use super::{BATCH, BackgroundLoop, Progress};
use crate::Core;
use crate::pipeline::TaskChange;

/// The loop.
pub struct ExpireLoop;

#[async_trait]
impl BackgroundLoop for ExpireLoop {
    fn name(&self) -> Loop {
        Loop::Expire
    }

    fn next_due(&self, next: &NextDue) -> Option<Timestamp> {
        next.deadline
    }

    async fn tick(&self, core: &Core, _due_by: Timestamp) -> Result<Progress, StoreError> {
        panic_point!("loop-expire");
        let due = core.store.due(Due::Deadlines, core.clock.now(), BATCH).await?;
        end_all(core, due, Loop::Expire, |_| TaskChange::Expire).await
    }
}
