//! Schedule: what is due is started, each instant once.

use comeback_store::{Following, Loop, Running, StoreError};

use super::{BATCH, Progress};
use crate::Core;

pub async fn tick(core: &Core) -> Result<Progress, StoreError> {
    let now = core.clock.now();
    // The store holds what a pause forbids; this spares the work.
    if super::is_paused(core, Loop::Schedule, now).await? {
        return Ok(Progress::default());
    }
    let due = core.store.due_followers(Following::Schedules, now, BATCH).await?;
    let mut progress = Progress { moved: 0, more: due.len() >= BATCH as usize };
    for row in due {
        progress.moved += core.fire_due(row, now).await?;
        Running::turn();
    }
    Ok(progress)
}
