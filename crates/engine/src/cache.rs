//! Snapshots of the tasks that were leased here: a report about one need not read it first. The version guards the write, so an old
//! snapshot costs a second read and never a wrong verdict.

use std::collections::HashMap;

use comeback_core::{Millis, TaskId, Timestamp};
use comeback_store::Stored;
use parking_lot::Mutex;

/// Snapshots that no report has asked for are dropped after this time, or twice this time.
const KEPT_FOR: Millis = Millis::from_secs(60);

/// The snapshots, in two generations.
pub struct Cache {
    generations: Mutex<Generations>,
    most: usize,
}

/// When the young are many, or some time has passed, they become the old, and the old of before are dropped.
#[derive(Default)]
struct Generations {
    young: HashMap<TaskId, Box<Stored>>,
    old: HashMap<TaskId, Box<Stored>>,
    began: Option<Timestamp>,
}

impl Cache {
    /// A cache of at most so many snapshots.
    pub fn new(most: usize) -> Cache {
        Cache { generations: Mutex::default(), most: most.max(2) }
    }

    /// Adds snapshots of tasks that were leased just now.
    pub fn put(&self, tasks: impl IntoIterator<Item = Stored>, now: Timestamp) {
        let mut it = self.generations.lock();
        for stored in tasks {
            it.young.insert(stored.task.id, Box::new(stored));
        }
        let began = *it.began.get_or_insert(now);
        if it.young.len() > self.most / 2 || now.since(began) >= KEPT_FOR {
            it.old = std::mem::take(&mut it.young);
            it.began = Some(now);
        }
    }

    /// Takes a snapshot out: a report ends the lease, so it is of no use afterwards.
    pub fn take(&self, id: TaskId, lease_number: u32) -> Option<Stored> {
        let mut it = self.generations.lock();
        let found = it.young.remove(&id).or_else(|| it.old.remove(&id))?;
        (found.task.lease_number == lease_number).then_some(*found)
    }
}
