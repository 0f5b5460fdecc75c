//! Slots: how many runs go on at once, for all namespaces together and for each of them.
//!
//! A namespace that is alone gets its quota. The more is taken the less each further namespace gets, so that slots are left for those
//! that have none yet: a namespace may take another slot as long as it holds less than a fixed part of what is free (dynamic thresholds,
//! as switches share their buffers). The part is chosen so that one alone comes to rest at exactly its quota.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

pub struct Slots {
    total: usize,
    quota: usize,
    held: Mutex<Held>,
    /// Told whenever a slot is free again.
    pub freed: Arc<Notify>,
}

#[derive(Default)]
struct Held {
    all: usize,
    by_namespace: HashMap<Arc<str>, usize>,
}

/// A slot that is free again when this is dropped.
pub struct Slot {
    slots: Arc<Slots>,
    namespace: Arc<str>,
}

impl Slots {
    /// Slots in all, and the most of them for one namespace.
    pub fn new(total: usize, quota: usize, freed: Arc<Notify>) -> Arc<Slots> {
        Arc::new(Slots { total, quota: quota.clamp(1, total), held: Mutex::default(), freed })
    }

    /// How many more slots a namespace may take now.
    pub fn room(&self, namespace: &str) -> usize {
        let held = self.held.lock();
        let own = held.by_namespace.get(namespace).copied().unwrap_or(0);
        let free = self.total.saturating_sub(held.all);
        (0..free).take_while(|more| self.may_take(own + more, free - more)).count()
    }

    fn may_take(&self, own: usize, free: usize) -> bool {
        own == 0 || own * (self.total - self.quota) < self.quota * free
    }

    /// Takes one. There is room for as many as [`Slots::room`] said.
    pub fn take(self: &Arc<Slots>, namespace: &str) -> Slot {
        let mut held = self.held.lock();
        held.all += 1;
        let name =
            held.by_namespace.get_key_value(namespace).map_or_else(|| namespace.into(), |(name, _)| name.clone());
        *held.by_namespace.entry(Arc::clone(&name)).or_default() += 1;
        Slot { slots: self.clone(), namespace: name }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut held = self.slots.held.lock();
        held.all -= 1;
        if let Some(own) = held.by_namespace.get_mut(&self.namespace) {
            *own -= 1;
            if *own == 0 {
                held.by_namespace.remove(&self.namespace);
            }
        }
        drop(held);
        self.slots.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(slots: &Arc<Slots>, namespace: &str) -> Vec<Slot> {
        (0..slots.room(namespace)).map(|_| slots.take(namespace)).collect()
    }

    #[test]
    fn one_namespace_gets_its_quota_and_no_more() {
        let slots = Slots::new(64, 22, Arc::default());
        let red = fill(&slots, "red");
        assert_eq!((red.len(), slots.room("red")), (22, 0));
        assert!(slots.room("blue") >= 10);
        drop(red);
        assert_eq!(slots.room("red"), 22);
        assert!(slots.held.lock().by_namespace.is_empty());
    }

    #[test]
    fn namespaces_that_want_all_leave_slots_for_others() {
        let slots = Slots::new(64, 22, Arc::default());
        let mut held = Vec::new();
        for n in 0..8 {
            let name = format!("red{n}");
            assert!(slots.room(&name) >= 1, "namespace {n}");
            held.push(fill(&slots, &name));
        }
    }

    #[test]
    fn a_quota_of_everything_is_no_limit() {
        let slots = Slots::new(8, 100, Arc::default());
        let red = fill(&slots, "red");
        assert_eq!((red.len(), slots.room("blue")), (8, 0));
    }
}
