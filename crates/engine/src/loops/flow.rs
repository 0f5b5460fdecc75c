//! Flow: gates are looked at, loops and calls are taken up, and the ends of executions are heard.

use std::time::Instant;

use comeback_store::{Loop, StoreError};

use super::Progress;
use crate::Core;
use crate::flow::{calls, gates};

pub async fn tick(core: &Core) -> Result<Progress, StoreError> {
    // Claims know no loop that could be paused: it is asked here, and again where something is stored.
    if super::is_paused(core, Loop::Flow, core.clock.now()).await? {
        return Ok(Progress::default());
    }
    let mut whole = gates::tick(core).await?.and(calls::take_up(core).await?);
    if core.flow_pace.is_due() {
        let began = Instant::now();
        let (ends, orphans) = (calls::ends(core).await?, calls::orphans(core).await?);
        core.flow_pace.took(began.elapsed());
        whole = whole.and(calls::hear(core, ends).await?).and(calls::leave_no_orphans(core, orphans).await?);
    }
    Ok(whole)
}
