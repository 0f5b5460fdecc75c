//! Heartbeat: a worker says that it is still at it.

use comeback_core::{Invalid, Millis};
use comeback_store::{Beat, BeatAnswer};

use super::lease::LeaseRef;
use crate::{CommandError, Engine, Json, Limits, Query};

/// Extends a lease.
#[derive(Clone, Debug)]
pub struct Heartbeat {
    /// The lease.
    pub lease: LeaseRef,
    /// The lease then ends this long from now.
    pub extend: Millis,
    /// Progress to store with it.
    pub progress: Option<Json>,
}

impl Limits {
    /// Whether a heartbeat may ask for this, whatever lease it is about.
    pub fn check_beat(&self, extend: Millis, progress: Option<&Json>) -> Result<(), Invalid> {
        let (longest, most) = (self.longest_lease, self.result_bytes);
        if extend > longest || extend == Millis::ZERO {
            return Err(Invalid::one("extend", format!("must be more than nothing and {longest} at most")));
        }
        if progress.is_some_and(|json| json.text().len() > most) {
            return Err(Invalid::one("progress", format!("may have {most} bytes at most")));
        }
        Ok(())
    }
}

impl Engine {
    /// Each heartbeat is answered for itself.
    pub async fn heartbeat(&self, beats: &[Heartbeat]) -> Result<Vec<BeatAnswer>, CommandError> {
        let core = &self.core;
        for beat in beats {
            core.config.limits.check_beat(beat.extend, beat.progress.as_ref())?;
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
        Ok(core.tallies.asked(Query::Heartbeat, core.store.heartbeat(&beats, core.clock.now())).await?)
    }
}
