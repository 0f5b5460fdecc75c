//! Promote: retries and first starts whose time has come become pending.

use std::sync::atomic::Ordering;

use comeback_core::{Millis, Timestamp};
use comeback_store::{Promote, StoreError};

use super::{BATCH, Progress};
use crate::{Core, Query};

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

/// What workers have been told of and may take. Most often one of them has it in its hands and the next is due the next time we look;
/// what stays where it is, because its deadline has passed say, is looked at less and less often.
pub struct Told {
    /// Of all that is due up to then.
    up_to: Timestamp,
    waits_for: Option<Timestamp>,
    rest: Millis,
    until: Timestamp,
}

impl Default for Told {
    fn default() -> Told {
        let never = Timestamp(i64::MIN);
        Told { up_to: never, waits_for: None, rest: Millis::ZERO, until: never }
    }
}

impl Told {
    /// Whether it is no longer left to the workers.
    pub fn is_over(&self, due: Timestamp, now: Timestamp) -> bool {
        self.waits_for != Some(due) || now >= self.until
    }

    /// Until when something is left to them that was left to them before.
    pub fn patience(&mut self, due: Timestamp, now: Timestamp, grace: Millis, most: Millis) -> Timestamp {
        if !self.is_over(due, now) {
            return self.until;
        }
        let rest = if self.waits_for == Some(due) { self.rest } else { Millis::ZERO };
        self.rest = Millis(rest.0.saturating_mul(2)).max(grace).min(most);
        self.waits_for = Some(due);
        now + self.rest
    }

    /// Leaves what is due to the workers, and tells them each time that more of it is. Answers when to look again.
    pub async fn leave(&mut self, core: &Core, due: Timestamp, until: Timestamp) -> Result<Timestamp, StoreError> {
        if self.waits_for.replace(due) != Some(due) {
            self.rest = Millis::ZERO;
        }
        self.until = until;
        let now = core.clock.now();
        let mut coming = core.store.retry_after(self.up_to.min(now)).await?;
        if coming.is_some_and(|coming| coming <= now) {
            self.up_to = now;
            core.wake.look();
            coming = core.store.retry_after(now).await?;
        }
        Ok(coming.map_or(until, |coming| coming.min(until)))
    }
}

pub async fn tick(core: &Core, what: Promote, due_by: Timestamp) -> Result<Progress, StoreError> {
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
