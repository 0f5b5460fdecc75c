//! Flow: gates are looked at, loops and calls are taken up, and the ends of executions are heard.

use comeback_store::{Loop, StoreError};

use super::Progress;
use crate::Core;
use crate::flow::{calls, gates};

pub async fn tick(core: &Core) -> Result<Progress, StoreError> {
    // Claims know no loop that could be paused: it is asked here, and again where something is stored.
    if super::is_paused(core, Loop::Flow, core.clock.now()).await? {
        return Ok(Progress::default());
    }
    let mut whole = Progress::default();
    for part in [
        gates::tick(core).await?,
        calls::take_up(core).await?,
        calls::hear(core).await?,
        calls::leave_no_orphans(core).await?,
    ] {
        whole.moved += part.moved;
        whole.more |= part.more;
    }
    Ok(whole)
}
