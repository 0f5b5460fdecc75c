//! Time: follows the store's clock, so that all instances agree on what time it is (model A3).

use std::sync::Weak;

use comeback_core::Millis;

use super::real;
use crate::Core;

const EVERY: Millis = Millis::from_secs(5);

pub async fn keep(core: Weak<Core>) {
    loop {
        tokio::time::sleep(real(EVERY)).await;
        let Some(core) = core.upgrade() else { return };
        match core.store.clock_offset().await {
            Ok(offset) => core.clock.follow(offset.unwrap_or(0)),
            // The clock runs on by itself; the loops tell that the store is away.
            Err(error) => tracing::debug!(%error, "the store's clock could not be read"),
        }
    }
}
