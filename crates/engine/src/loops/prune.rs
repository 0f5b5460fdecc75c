//! Prune: what is over and old is forgotten, a little at a time, and so are lanes and policies that no task refers to any more.

use std::sync::atomic::{AtomicI64, Ordering};

use comeback_core::{Millis, Timestamp};
use comeback_store::{Loop, StoreError};

use super::{BATCH, Progress};
use crate::{Core, Query};

/// How often lanes without tasks are looked for, and policies that no task uses.
const LANES_EVERY: Millis = Millis::from_secs(30);
const POLICIES_EVERY: Millis = Millis::from_secs(3_600);
/// Fewer policies are not worth the look at all tasks.
const FEW_POLICIES: u64 = 1_000;
/// Parts of the lanes that one turn looks at.
const PARTS: usize = 50;

/// When unused lanes and policies were last looked for.
pub struct Forgetting {
    lanes: AtomicI64,
    policies: AtomicI64,
}

impl Default for Forgetting {
    fn default() -> Self {
        Forgetting { lanes: AtomicI64::new(i64::MIN), policies: AtomicI64::new(i64::MIN) }
    }
}

impl Forgetting {
    /// Whether it is time, and takes note that it was done. The first time is one period after the start.
    fn is_due(last: &AtomicI64, every: Millis, now: Timestamp) -> bool {
        let before = last.load(Ordering::Relaxed);
        let is_due = before != i64::MIN && Timestamp(before) + every <= now;
        if is_due || before == i64::MIN {
            last.store(now.0, Ordering::Relaxed);
        }
        is_due
    }
}

pub async fn tick(core: &Core) -> Result<Progress, StoreError> {
    let now = core.clock.now();
    let paused = core.store.pauses().await?;
    if paused.iter().any(|(name, pause)| *name == Loop::Prune && pause.until > now) {
        return Ok(Progress::default());
    }
    core.forget_unused(now).await?;
    let Some(retention) = core.config.retention else { return Ok(Progress::default()) };
    // What is forgotten was counted before.
    core.fold_all().await?;
    let pruned = core.tallies.asked(Query::Prune, core.store.prune(now - retention, BATCH)).await?;
    core.tallies.pruned(pruned.tasks);
    Ok(Progress { moved: u32::try_from(pruned.tasks).unwrap_or(u32::MAX), more: pruned.more })
}

impl Core {
    /// Lanes without tasks, and policies that no task uses, when it is time to look for them.
    async fn forget_unused(&self, now: Timestamp) -> Result<(), StoreError> {
        if Forgetting::is_due(&self.forgetting.lanes, LANES_EVERY, now) {
            let mut lanes = 0;
            for _ in 0..PARTS {
                let forgotten = self.store.forget_unused(now).await?;
                lanes += forgotten.lanes;
                if !forgotten.more {
                    break;
                }
            }
            if lanes > 0 {
                tracing::debug!(lanes, "lanes without tasks were deleted");
            }
        }
        if Forgetting::is_due(&self.forgetting.policies, POLICIES_EVERY, now) {
            let policies = self.store.forget_policies(FEW_POLICIES, now).await?;
            if policies > 0 {
                tracing::debug!(policies, "policies that no task uses were deleted");
            }
        }
        Ok(())
    }
}
