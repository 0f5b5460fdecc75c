//! Repair: retries failed tasks that the policy would retry today. It ticks only if a period is configured; otherwise on request.

use async_trait::async_trait;
use comeback_core::Timestamp;
use comeback_core::transition::Actor;
use comeback_store::{Behalf, Loop, Running, StoreError, panic_point};

use super::{BackgroundLoop, Cadence, Progress};
use crate::Core;
use crate::commands::stuck::RepairAction;

/// Failed tasks of a namespace that are examined in one tick, the newest.
const EXAMINED: u32 = 100;

/// The loop.
pub struct RepairLoop;

#[async_trait]
impl BackgroundLoop for RepairLoop {
    fn name(&self) -> Loop {
        Loop::Repair
    }

    fn cadence(&self) -> Cadence {
        Cadence::Period
    }

    async fn tick(&self, core: &Core, _due_by: Timestamp) -> Result<Progress, StoreError> {
        panic_point!("loop-repair");
        let namespaces = core.store.lane_namespaces(None).await?;
        let act = Actor { by: Some("comeback".into()), ..Actor::default() };
        let mut moved = 0;
        for namespace in namespaces {
            let done = core.repair_failed(&namespace, EXAMINED, false, &act, Behalf::Loop(Loop::Repair)).await?;
            Running::turn();
            moved += done.iter().filter(|it| it.action == RepairAction::Retried).count();
        }
        Ok(Progress { moved: u32::try_from(moved).unwrap_or(u32::MAX), more: false })
    }
}
