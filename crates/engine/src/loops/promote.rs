//! Promote: retries and first starts whose time has come become pending.

use std::sync::atomic::Ordering;

use comeback_core::{Millis, Timestamp};
use comeback_store::{Promote, StoreError};

use super::{BATCH, Progress};
use crate::Core;

/// Workers who are at hand take what is due themselves, promotion and lease in one step. What they leave is promoted this much
/// later, so that everybody sees it as ready. Sooner would take the writer's turns from workers who are a little behind.
pub(super) const GRACE: Millis = Millis(25);
/// Who asked for work so lately will ask again soon.
const LATELY: Millis = Millis(20);

/// How long retries are left to the workers.
pub fn grace(core: &Core) -> Millis {
    let lately = Timestamp(core.asked_at.load(Ordering::Relaxed)) + LATELY > core.clock.now();
    if lately || core.wake.has_workers() { GRACE } else { Millis::ZERO }
}

pub async fn tick(core: &Core, what: Promote, due_by: Timestamp) -> Result<Progress, StoreError> {
    let promoted = core.store.promote(what, due_by, BATCH).await?;
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
