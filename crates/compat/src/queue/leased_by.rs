//! Keys that leased jobs in this dialect, so that no other key ends a job by the name of its worker alone.

use std::collections::HashMap;

use comeback_core::TaskId;
use comeback_engine::LeaseRef;
use parking_lot::Mutex;

/// Leases that are remembered; the older half is dropped beyond that.
const MOST: usize = 100_000;

/// The keys behind the leases that this process gave away since it was started.
#[derive(Default)]
pub struct LeasedBy(Mutex<Known>);

#[derive(Default)]
struct Known {
    recent: HashMap<(TaskId, u32), String>,
    older: HashMap<(TaskId, u32), String>,
}

impl LeasedBy {
    /// Records the key that a lease was given to.
    pub fn note(&self, lease: LeaseRef, key: String) {
        let mut known = self.0.lock();
        if known.recent.len() >= MOST / 2 {
            known.older = std::mem::take(&mut known.recent);
        }
        known.recent.insert((lease.task, lease.number), key);
    }

    /// Whether the lease was given to this key.
    pub fn is(&self, lease: LeaseRef, key: &str) -> bool {
        let (known, at) = (self.0.lock(), (lease.task, lease.number));
        known.recent.get(&at).or_else(|| known.older.get(&at)).is_some_and(|by| by == key)
    }
}
