//! Flow: evaluates gates, starts loops and calls of workflows, and ends the calls whose execution has ended.

use std::time::Instant;

use async_trait::async_trait;
use comeback_core::Timestamp;
use comeback_store::{Loop, NextDue, StoreError, panic_point};

use super::{BackgroundLoop, Cadence, Progress};
use crate::Core;
use crate::flow::{calls, gates};

/// The loop.
pub struct FlowLoop;

#[async_trait]
impl BackgroundLoop for FlowLoop {
    fn name(&self) -> Loop {
        Loop::Flow
    }

    fn cadence(&self) -> Cadence {
        Cadence::WakeUp
    }

    fn next_due(&self, next: &NextDue) -> Option<Timestamp> {
        next.gate
    }

    async fn tick(&self, core: &Core, _due_by: Timestamp) -> Result<Progress, StoreError> {
        panic_point!("loop-flow");
        // A claim does not check the pause of a loop, so it is checked here, and again by every commit.
        if core.is_paused(Loop::Flow).await? {
            return Ok(Progress::default());
        }
        let mut whole = gates::tick(core).await?.and(calls::take_up(core).await?);
        if core.flow_pace.is_due() {
            let started = Instant::now();
            let (ends, orphans) = (calls::ends(core).await?, calls::orphans(core).await?);
            core.flow_pace.took(started.elapsed());
            whole = whole.and(calls::hear(core, ends).await?).and(calls::leave_no_orphans(core, orphans).await?);
        }
        Ok(whole)
    }
}
