//! Rules: moves tasks to the lanes of changed rules. The caller of the change does it at once; this loop finishes what was interrupted.

use std::sync::{Arc, Weak};

use comeback_store::{Finished, Heartbeat, panic_point};

use super::{is_answered, real};
use crate::Core;

pub async fn run(core: Weak<Core>, beat: Arc<Heartbeat>) -> Finished {
    loop {
        let Some(held) = core.upgrade() else { return Finished };
        panic_point!("loop-rules");
        let settled = held.store.settle_rules().await;
        if settled.as_ref().err().is_none_or(is_answered) {
            beat.turn();
        }
        match settled {
            Ok(settled) if settled.is_done => {}
            Ok(_) => {
                if let Err(error) = held.settle_rules().await {
                    tracing::debug!(%error, "cannot move tasks to the lanes of changed rules; retrying");
                }
            }
            Err(error) => tracing::debug!(%error, "cannot read rules; retrying"),
        }
        let rest = real(held.config.safety_interval);
        drop(held);
        tokio::time::sleep(rest).await;
    }
}
