//! Promote: retries and first starts whose time has come become pending.

use comeback_store::{Promote, StoreError};

use super::{BATCH, Progress};
use crate::Core;

pub async fn tick(core: &Core, what: Promote) -> Result<Progress, StoreError> {
    let promoted = core.store.promote(what, core.clock.now(), BATCH).await?;
    if what == Promote::Retries {
        core.tallies.add(comeback_core::EventKind::TaskRetryDue, u64::from(promoted.count));
    }
    for lane in &promoted.lanes {
        core.wake.work(lane, promoted.count);
    }
    if promoted.count > 0 {
        core.store.notify();
    }
    Ok(Progress { moved: promoted.count, more: promoted.count >= BATCH })
}
