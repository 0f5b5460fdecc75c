//! Rules: a change of rules moves tasks. Whoever changed them does it at once; where that broke off, somebody else goes on.

use std::sync::{Arc, Weak};

use comeback_store::{Finished, Heartbeat, panic_point};

use super::{is_answered, real};
use crate::Core;

pub async fn keep(core: Weak<Core>, beat: Arc<Heartbeat>) -> Finished {
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
                    tracing::debug!(%error, "tasks could not be put under their rules; somebody tries again");
                }
            }
            Err(error) => tracing::debug!(%error, "the rules could not be read"),
        }
        let rest = real(held.config.safety_interval);
        drop(held);
        tokio::time::sleep(rest).await;
    }
}
