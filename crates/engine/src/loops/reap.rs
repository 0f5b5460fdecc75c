//! Reap: a run whose lease has run out is lost, and takes the same road as any other bad end.

use comeback_core::{End, Executor, Outcome, Speaker, Task, Trigger};
use comeback_store::{Due, Loop, StoreError, Stored};

use super::{BATCH, Progress};
use crate::Core;
use crate::road::{Behind, Met, Verb, Wish};

pub async fn tick(core: &Core) -> Result<Progress, StoreError> {
    let due = core.store.due(Due::Leases, core.clock.now(), BATCH).await?;
    let found = due.len();
    let progress = end_all(core, due, Loop::Reap, verb).await?;
    if progress.moved > 0 {
        tracing::warn!(found, recovered = progress.moved, "stuck work was found");
    }
    Ok(progress)
}

/// How a run ends whose lease has run out.
pub fn verb(stored: &Stored) -> Verb {
    Verb::End(Outcome { speaker: Speaker::Server, end: End::Lost(trigger(&stored.task)) })
}

pub fn trigger(task: &Task) -> Trigger {
    match task.lane.executor {
        // A hook that was started has no lease to renew: it went silent.
        Executor::Hook if task.run > 0 && task.started_at.is_some() => Trigger::Stuck,
        _ => Trigger::LeaseExpired,
    }
}

/// Takes each of these tasks down the road, on behalf of a loop.
pub async fn end_all(
    core: &Core,
    due: Vec<Stored>,
    name: Loop,
    verb: impl Fn(&Stored) -> Verb,
) -> Result<Progress, StoreError> {
    let more = due.len() >= BATCH as usize;
    if due.is_empty() {
        return Ok(Progress::default());
    }
    let wishes = due
        .into_iter()
        .map(|stored| Wish { task: stored.task.id, verb: verb(&stored), seen: Some(stored), remembered: false })
        .collect();
    let met = core.fulfil(wishes, Behind::Loop(name)).await?;
    let moved = met.iter().filter(|met| matches!(met, Met::Changed(_))).count();
    Ok(Progress { moved: u32::try_from(moved).unwrap_or(u32::MAX), more })
}
