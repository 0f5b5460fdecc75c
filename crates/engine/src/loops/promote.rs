//! Promote: makes due retries and first starts pending.

use std::sync::atomic::Ordering;

use async_trait::async_trait;
use comeback_core::{Millis, Timestamp};
use comeback_store::{Loop, NextDue, Promote, StoreError, panic_point};

use super::{BATCH, BackgroundLoop, Progress};
use crate::{Core, Query};

/// The loop of due retries.
pub struct RetriesLoop;

/// The loop of due first starts.
pub struct StartsLoop;

#[async_trait]
impl BackgroundLoop for RetriesLoop {
    fn name(&self) -> Loop {
        Loop::Retries
    }

    fn next_due(&self, next: &NextDue) -> Option<Timestamp> {
        next.retry
    }

    fn grace(&self, core: &Core) -> Millis {
        let asked_lately = Timestamp(core.asked_at.load(Ordering::Relaxed)) + LATELY > core.clock.now();
        if asked_lately || core.wake.has_workers() { GRACE } else { Millis::ZERO }
    }

    async fn tick(&self, core: &Core, due_by: Timestamp) -> Result<Progress, StoreError> {
        panic_point!("loop-retries");
        promote(core, Promote::Retries, due_by).await
    }
}

#[async_trait]
impl BackgroundLoop for StartsLoop {
    fn name(&self) -> Loop {
        Loop::Starts
    }

    fn next_due(&self, next: &NextDue) -> Option<Timestamp> {
        next.start
    }

    async fn tick(&self, core: &Core, due_by: Timestamp) -> Result<Progress, StoreError> {
        panic_point!("loop-starts");
        promote(core, Promote::Starts, due_by).await
    }
}

/// How long due retries are left to workers that are waiting: they take them in one step, promotion and lease. The rest is promoted this
/// much later, so that it is shown as ready. A shorter time would take the writer from workers that are a little late.
pub(super) const GRACE: Millis = Millis(25);
/// A worker that asked within this time will ask again soon.
const LATELY: Millis = Millis(20);

/// Due retries that are left to the workers. Most often a worker has taken one by the next look. A retry that stays, because its deadline
/// has passed for instance, is looked at less and less often.
pub struct LeftToWorkers {
    /// Workers were woken for all that was due up to then.
    woken_up_to: Timestamp,
    waits_for: Option<Timestamp>,
    rest: Millis,
    until: Timestamp,
}

impl Default for LeftToWorkers {
    fn default() -> LeftToWorkers {
        let never = Timestamp(i64::MIN);
        LeftToWorkers { woken_up_to: never, waits_for: None, rest: Millis::ZERO, until: never }
    }
}

impl LeftToWorkers {
    /// Whether what is due then is no longer left to the workers.
    pub fn is_over(&self, due: Timestamp, now: Timestamp) -> bool {
        self.waits_for != Some(due) || now >= self.until
    }

    /// The time until which a retry is left to them that was left to them before.
    pub fn patience(&mut self, due: Timestamp, now: Timestamp, grace: Millis, most: Millis) -> Timestamp {
        if !self.is_over(due, now) {
            return self.until;
        }
        let rest = if self.waits_for == Some(due) { self.rest } else { Millis::ZERO };
        self.rest = Millis(rest.0.saturating_mul(2)).max(grace).min(most);
        self.waits_for = Some(due);
        now + self.rest
    }

    /// Leaves due retries to the workers and wakes them each time that more are due. Returns when to look again.
    pub async fn leave(&mut self, core: &Core, due: Timestamp, until: Timestamp) -> Result<Timestamp, StoreError> {
        if self.waits_for.replace(due) != Some(due) {
            self.rest = Millis::ZERO;
        }
        self.until = until;
        let now = core.clock.now();
        let mut coming = core.store.retry_after(self.woken_up_to.min(now)).await?;
        if coming.is_some_and(|coming| coming <= now) {
            self.woken_up_to = now;
            core.wake.look();
            coming = core.store.retry_after(now).await?;
        }
        Ok(coming.map_or(until, |coming| coming.min(until)))
    }
}

async fn promote(core: &Core, what: Promote, due_by: Timestamp) -> Result<Progress, StoreError> {
    let promoted = core.tallies.asked(Query::Promote, core.store.promote(what, due_by, BATCH)).await?;
    core.tallies.due(what, promoted.count.into(), &promoted.lanes);
    for lane in &promoted.lanes {
        core.wake.work(lane, promoted.count);
    }
    if promoted.count > 0 {
        core.store.notify();
    }
    Ok(Progress { moved: promoted.count, more: promoted.count >= BATCH })
}
