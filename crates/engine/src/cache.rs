//! Tasks that were leased here, as they were then: a report about one need not ask the store first. The version guards the
//! write, so an old snapshot costs a second look and never a wrong verdict.

use std::collections::HashMap;

use comeback_core::TaskId;
use comeback_store::Stored;
use parking_lot::Mutex;

pub struct Cache {
    generations: Mutex<Generations>,
    most: usize,
}

/// When the young are many they become the old, and the old of before are forgotten.
#[derive(Default)]
struct Generations {
    young: HashMap<TaskId, Stored>,
    old: HashMap<TaskId, Stored>,
}

impl Cache {
    pub fn new(most: usize) -> Cache {
        Cache { generations: Mutex::default(), most: most.max(2) }
    }

    pub fn put(&self, tasks: impl IntoIterator<Item = Stored>) {
        let mut it = self.generations.lock();
        for stored in tasks {
            it.young.insert(stored.task.id, stored);
        }
        if it.young.len() > self.most / 2 {
            it.old = std::mem::take(&mut it.young);
        }
    }

    /// Takes a snapshot out: the report that takes it makes it stale.
    pub fn take(&self, id: TaskId, lease_number: u32) -> Option<Stored> {
        let mut it = self.generations.lock();
        let found = it.young.remove(&id).or_else(|| it.old.remove(&id))?;
        (found.task.lease_number == lease_number).then_some(found)
    }
}
