//! Operations: whoever comes first works a bulk operation off, a stretch at a time.

use comeback_store::{Loop, Running, StoreError};

use super::Progress;
use crate::Core;

/// Operations that are gone on with in one turn, so that a long one leaves room for the others.
const AT_ONCE: u32 = 8;

pub async fn tick(core: &Core) -> Result<Progress, StoreError> {
    let now = core.clock.now();
    // The store holds what a pause forbids; this spares the work.
    if super::is_paused(core, Loop::Operations, now).await? {
        return Ok(Progress::default());
    }
    let mut moved = 0;
    for operation in core.store.due_operations(now, AT_ONCE).await? {
        moved += core.go_on_with(operation).await?;
        Running::turn();
    }
    Ok(Progress { moved, more: moved > 0 })
}
