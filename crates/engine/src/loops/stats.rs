//! Statistics: what happened is added to the sums, soon but never at the cost of what happens. One instance at a time does it,
//! whichever is quicker. What people said of errors elsewhere is learned in the same turn.

use std::sync::Weak;
use std::time::{Duration, Instant};

use super::{BATCH, real};
use crate::Core;

/// Of the time that adding took, so many times over is left to others.
const REST: u32 = 9;
/// Turns between two looks at what is old.
const TIDY: u32 = 60;

pub async fn keep(core: Weak<Core>) {
    let mut turn = 0_u32;
    let mut learned = Instant::now();
    loop {
        let Some(held) = core.upgrade() else { return };
        // However much there is to add.
        if learned.elapsed() >= real(held.config.safety_interval) && held.learn_classes().await.is_ok() {
            learned = Instant::now();
        }
        let rest = match take_turn(&held, turn).await {
            Ok(rest) => rest,
            Err(error) => {
                tracing::debug!(%error, "the statistics could not be added to; somebody tries again");
                None
            }
        };
        let rest = rest.unwrap_or_else(|| {
            turn = turn.wrapping_add(1);
            real(held.config.safety_interval)
        });
        drop(held);
        tokio::time::sleep(rest).await;
    }
}

/// A short rest where there is more to add, and nothing where the turn is over.
async fn take_turn(core: &Core, turn: u32) -> Result<Option<Duration>, comeback_store::StoreError> {
    let began = Instant::now();
    if core.fold_next().await? {
        return Ok(Some(began.elapsed() * REST));
    }
    if turn.is_multiple_of(TIDY) {
        let most = u32::try_from(core.config.limits.error_groups).unwrap_or(u32::MAX);
        while core.store.tidy_sums(core.clock.now(), BATCH, most).await? {}
    }
    Ok(None)
}
