//! Operations: works off bulk operations, a batch at a time. Whichever instance comes first takes one.

use async_trait::async_trait;
use comeback_core::Timestamp;
use comeback_store::{Loop, NextDue, Running, StoreError, panic_point};

use super::{BackgroundLoop, Progress};
use crate::Core;

/// Operations of one tick, so that a long one does not hold up the others.
const AT_ONCE: u32 = 8;

/// The loop.
pub struct OperationsLoop;

#[async_trait]
impl BackgroundLoop for OperationsLoop {
    fn name(&self) -> Loop {
        Loop::Operations
    }

    fn next_due(&self, next: &NextDue) -> Option<Timestamp> {
        next.operation
    }

    async fn tick(&self, core: &Core, _due_by: Timestamp) -> Result<Progress, StoreError> {
        panic_point!("loop-operations");
        // The store checks the pause with every commit; this saves the work.
        if core.is_paused(Loop::Operations).await? {
            return Ok(Progress::default());
        }
        let mut moved = 0;
        for operation in core.store.due_operations(core.clock.now(), AT_ONCE).await? {
            moved += core.go_on_with(operation).await?;
            Running::turn();
        }
        Ok(Progress { moved, more: moved > 0 })
    }
}
