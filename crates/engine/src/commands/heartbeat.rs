//! Heartbeat: a worker says that it is still at it.

use comeback_core::{Invalid, Millis};
use comeback_store::{Beat, BeatAnswer};

use super::lease::LeaseRef;
use crate::{CommandError, Engine, Json};

#[derive(Clone, Debug)]
pub struct Heartbeat {
    pub lease: LeaseRef,
    /// The lease then ends this long from now.
    pub extend: Millis,
    pub progress: Option<Json>,
}

impl Engine {
    /// Each heartbeat is answered for itself.
    pub async fn heartbeat(&self, beats: &[Heartbeat]) -> Result<Vec<BeatAnswer>, CommandError> {
        let core = &self.core;
        let longest = core.config.limits.longest_lease;
        if beats.iter().any(|beat| beat.extend > longest || beat.extend == Millis::ZERO) {
            return Err(Invalid::one("extend", format!("must be more than nothing and {longest} at most")).into());
        }
        let most = core.config.limits.result_bytes;
        if beats.iter().any(|beat| beat.progress.as_ref().is_some_and(|json| json.text().len() > most)) {
            return Err(Invalid::one("progress", format!("may have {most} bytes at most")).into());
        }
        let beats: Vec<Beat> = beats
            .iter()
            .map(|beat| Beat {
                task: beat.lease.task,
                lease_number: beat.lease.number,
                extend: beat.extend,
                progress: beat.progress.as_ref().map(|json| json.text().clone()),
            })
            .collect();
        Ok(core.store.heartbeat(&beats, core.clock.now()).await?)
    }
}
