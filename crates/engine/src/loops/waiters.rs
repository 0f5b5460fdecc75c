//! Waiters: workers that wait look for work now and then, and when another instance says that there is some.

use std::sync::{Arc, Weak};
use std::time::Duration;

use comeback_store::{Finished, Heartbeat, Loop, panic_point};

use crate::Core;

/// How often waiting workers look by themselves.
pub(super) const EVERY: Duration = Duration::from_millis(500);

pub async fn run(core: Weak<Core>, beat: Arc<Heartbeat>) -> Finished {
    let Some(mut hints) = core.upgrade().map(|core| core.store.wakes()) else { return Finished };
    loop {
        let hinted = tokio::time::timeout(EVERY, hints.changed()).await;
        let Some(core) = core.upgrade() else { return Finished };
        beat.turn();
        panic_point!("loop-waiters");
        core.wake.look();
        core.wake_loop(Loop::Flow);
        core.wake_loop(Loop::Tell);
        core.wake_loop(Loop::Alerts);
        if let Ok(Err(_)) = hinted {
            tokio::time::sleep(EVERY).await;
        }
    }
}
