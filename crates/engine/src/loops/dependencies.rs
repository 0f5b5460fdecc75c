//! Dependencies: writes the observations of dependencies, and wakes workers when time opens one.

use std::sync::{Arc, Weak};
use std::time::Duration;

use comeback_core::Timestamp;
use comeback_store::{Finished, Heartbeat, StoreError, panic_point};

use super::{is_answered, real};
use crate::Core;

/// Observations are gathered for this long, and waiting workers are woken this often.
const GATHER: Duration = Duration::from_millis(100);
/// The shortest pause between two ticks.
const BREATH: Duration = Duration::from_millis(5);

/// When there is work next, as far as it is known.
struct Next {
    /// Whether a dependency is due already.
    soon: bool,
    at: Option<Timestamp>,
}

pub async fn run(core: Weak<Core>, beat: Arc<Heartbeat>) -> Finished {
    let Some(bell) = core.upgrade().map(|core| core.dependencies.bell.clone()) else { return Finished };
    loop {
        let Some(held) = core.upgrade() else { return Finished };
        panic_point!("loop-dependencies");
        let looked = look(&held).await;
        if looked.as_ref().err().is_none_or(is_answered) {
            beat.turn();
        }
        let next = looked.unwrap_or_else(|error| {
            tracing::debug!(%error, "cannot update dependencies; retrying");
            Next { soon: false, at: None }
        });
        let rest = if next.soon { GATHER } else { real(held.config.safety_interval) };
        let due = held.clock.sleep_until(next.at.unwrap_or(Timestamp::MAX));
        drop(held);
        tokio::time::sleep(BREATH).await;
        tokio::select! {
            () = tokio::time::sleep(rest) => {}
            () = due => {}
            // More observations come soon.
            () = bell.notified() => tokio::time::sleep(GATHER).await,
        }
    }
}

async fn look(core: &Core) -> Result<Next, StoreError> {
    core.look_at_dependencies().await?;
    let now = core.clock.now();
    let soon = !core.store.due_dependencies(now, 1).await?.is_empty();
    Ok(Next { soon, at: core.store.next_dependency(now).await? })
}
