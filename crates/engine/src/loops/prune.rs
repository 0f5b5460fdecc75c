//! Prune: what is over and old is forgotten, a little at a time.

use comeback_store::{Loop, StoreError};

use super::{BATCH, Progress};
use crate::{Core, Query};

pub async fn tick(core: &Core) -> Result<Progress, StoreError> {
    let Some(retention) = core.config.retention else { return Ok(Progress::default()) };
    let now = core.clock.now();
    let paused = core.store.pauses().await?;
    if paused.iter().any(|(name, pause)| *name == Loop::Prune && pause.until > now) {
        return Ok(Progress::default());
    }
    // What is forgotten was counted before.
    core.fold_all().await?;
    let pruned = core.tallies.asked(Query::Prune, core.store.prune(now - retention, BATCH)).await?;
    core.tallies.pruned(pruned.tasks);
    Ok(Progress { moved: u32::try_from(pruned.tasks).unwrap_or(u32::MAX), more: pruned.more })
}
