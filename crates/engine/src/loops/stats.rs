//! Statistics: aggregates the feed into sums, at a fraction of the processor. One instance does it at a time. The classes that operators
//! gave to error groups on other instances are loaded here too.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use comeback_store::{Finished, Heartbeat, Running, panic_point};

use super::{BATCH, is_answered, real};
use crate::Core;

/// Idle factor: sleep 9 times the busy time.
const IDLE_FACTOR: u32 = 9;
/// Turns between two compactions of old sums.
const COMPACT_EVERY: u32 = 60;

pub async fn run(core: Weak<Core>, beat: Arc<Heartbeat>) -> Finished {
    let mut turn = 0_u32;
    let mut learned = Instant::now();
    loop {
        let Some(held) = core.upgrade() else { return Finished };
        panic_point!("loop-stats");
        // However large the backlog is.
        if learned.elapsed() >= real(held.config.safety_interval) && held.learn_classes().await.is_ok() {
            learned = Instant::now();
        }
        let taken = take_turn(&held, turn).await;
        let is_answered = taken.as_ref().err().is_none_or(is_answered);
        let rest = match taken {
            Ok(rest) => rest,
            Err(error) => {
                tracing::debug!(%error, "cannot aggregate statistics; retrying");
                None
            }
        };
        let rest = rest.unwrap_or_else(|| {
            turn = turn.wrapping_add(1);
            real(held.config.safety_interval)
        });
        drop(held);
        // The pause after a long turn may be longer than a period.
        if is_answered {
            beat.idle();
        }
        tokio::time::sleep(rest).await;
        if is_answered {
            beat.turn();
        }
    }
}

/// The pause before the next batch; `None` if the backlog is empty.
async fn take_turn(core: &Core, turn: u32) -> Result<Option<Duration>, comeback_store::StoreError> {
    let began = Instant::now();
    if core.fold_next().await? {
        return Ok(Some(began.elapsed() * IDLE_FACTOR));
    }
    if turn.is_multiple_of(COMPACT_EVERY) {
        let most = u32::try_from(core.config.limits.error_groups).unwrap_or(u32::MAX);
        while core.store.compact_stats(core.clock.now(), BATCH, most).await? {
            Running::turn();
        }
    }
    Ok(None)
}
