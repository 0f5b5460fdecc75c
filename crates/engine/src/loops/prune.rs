//! Prune: deletes tasks that ended before the retention, a batch at a time, and lanes and policies without tasks.

use std::sync::atomic::{AtomicI64, Ordering};

use async_trait::async_trait;
use comeback_core::{Millis, Timestamp};
use comeback_store::{Loop, StoreError, panic_point};

use super::{BATCH, BackgroundLoop, Cadence, Progress};
use crate::{Core, Query};

/// How often unused lanes and unused policies are searched.
const LANES_EVERY: Millis = Millis::from_secs(30);
const POLICIES_EVERY: Millis = Millis::from_secs(3_600);
/// Below this number of policies the search through all tasks is skipped.
const FEW_POLICIES: u64 = 1_000;
/// Batches of lanes in one tick.
const PARTS: usize = 50;

/// Times of the last search for unused lanes and policies.
pub struct LastCleanup {
    lanes: AtomicI64,
    policies: AtomicI64,
}

impl Default for LastCleanup {
    fn default() -> Self {
        LastCleanup { lanes: AtomicI64::new(i64::MIN), policies: AtomicI64::new(i64::MIN) }
    }
}

impl LastCleanup {
    /// Whether the period has passed; records the time if so. The first time is one period after the start.
    fn is_due(last: &AtomicI64, every: Millis, now: Timestamp) -> bool {
        let before = last.load(Ordering::Relaxed);
        let is_due = before != i64::MIN && Timestamp(before) + every <= now;
        if is_due || before == i64::MIN {
            last.store(now.0, Ordering::Relaxed);
        }
        is_due
    }
}

/// The loop.
pub struct PruneLoop;

#[async_trait]
impl BackgroundLoop for PruneLoop {
    fn name(&self) -> Loop {
        Loop::Prune
    }

    fn cadence(&self) -> Cadence {
        Cadence::Period
    }

    async fn tick(&self, core: &Core, _due_by: Timestamp) -> Result<Progress, StoreError> {
        panic_point!("loop-prune");
        if core.is_paused(Loop::Prune).await? {
            return Ok(Progress::default());
        }
        let now = core.clock.now();
        core.delete_unused(now).await?;
        let Some(retention) = core.config.retention else { return Ok(Progress::default()) };
        // Statistics first: deleted tasks can no longer be counted.
        core.fold_all().await?;
        let pruned = core.tallies.asked(Query::Prune, core.store.prune(now - retention, BATCH)).await?;
        core.tallies.pruned(pruned.tasks);
        Ok(Progress { moved: u32::try_from(pruned.tasks).unwrap_or(u32::MAX), more: pruned.more })
    }
}

impl Core {
    /// Deletes lanes and policies without tasks, each once per its period.
    async fn delete_unused(&self, now: Timestamp) -> Result<(), StoreError> {
        if LastCleanup::is_due(&self.last_cleanup.lanes, LANES_EVERY, now) {
            let mut lanes = 0;
            for _ in 0..PARTS {
                let forgotten = self.store.forget_unused(now).await?;
                lanes += forgotten.lanes;
                if !forgotten.more {
                    break;
                }
            }
            if lanes > 0 {
                tracing::debug!(lanes, "deleted lanes without tasks");
            }
        }
        if LastCleanup::is_due(&self.last_cleanup.policies, POLICIES_EVERY, now) {
            let policies = self.store.forget_policies(FEW_POLICIES, now).await?;
            if policies > 0 {
                tracing::debug!(policies, "deleted policies without tasks");
            }
        }
        Ok(())
    }
}
