//! Statistics: what happened is added to the sums, soon but never at the cost of what happens. One instance at a time does it,
//! whichever is quicker. What people said of errors elsewhere is learned in the same turn.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use comeback_store::{Finished, Heartbeat, Running, panic_point};

use super::{BATCH, is_answered, real};
use crate::Core;

/// Of the time that adding took, so many times over is left to others.
const REST: u32 = 9;
/// Turns between two looks at what is old.
const TIDY: u32 = 60;

pub async fn keep(core: Weak<Core>, beat: Arc<Heartbeat>) -> Finished {
    let mut turn = 0_u32;
    let mut learned = Instant::now();
    loop {
        let Some(held) = core.upgrade() else { return Finished };
        panic_point!("loop-stats");
        // However much there is to add.
        if learned.elapsed() >= real(held.config.safety_interval) && held.learn_classes().await.is_ok() {
            learned = Instant::now();
        }
        let taken = take_turn(&held, turn).await;
        let is_answered = taken.as_ref().err().is_none_or(is_answered);
        let rest = match taken {
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
        // Who has worked for long rests for longer.
        if is_answered {
            beat.idle();
        }
        tokio::time::sleep(rest).await;
        if is_answered {
            beat.turn();
        }
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
        while core.store.tidy_sums(core.clock.now(), BATCH, most).await? {
            Running::turn();
        }
    }
    Ok(None)
}
