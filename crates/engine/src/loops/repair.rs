//! Repair: failed work that could be retried today is put right, so often as its period says. Without one only when somebody asks.

use comeback_core::transition::Act;
use comeback_store::{Loop, Running, StoreError};

use super::Progress;
use crate::Core;
use crate::commands::stuck::Action;
use crate::road::Behind;

/// Failed tasks of a namespace that are looked at in one go, the newest.
const LOOKED_AT: u32 = 100;

pub async fn tick(core: &Core) -> Result<Progress, StoreError> {
    let namespaces = core.store.lane_namespaces(None).await?;
    let act = Act { by: Some("comeback".into()), ..Act::default() };
    let mut moved = 0;
    for namespace in namespaces {
        let done = core.put_failed_right(&namespace, LOOKED_AT, false, &act, Behind::Loop(Loop::Repair)).await?;
        Running::turn();
        moved += done.iter().filter(|it| it.action == Action::Retried).count();
    }
    Ok(Progress { moved: u32::try_from(moved).unwrap_or(u32::MAX), more: false })
}
