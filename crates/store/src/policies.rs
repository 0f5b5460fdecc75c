//! Policies by their numbers, as far as this process has met them. What is stored is never read whole: a policy is parsed when
//! the first task that uses it is read, and the parsed ones are kept in a bounded cache.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use comeback_core::{Policy, dialect};
use parking_lot::{Mutex, RwLock};
use sha2::{Digest, Sha256};

use crate::StoreError;
use crate::row::corrupt;

/// Parsed policies that are kept, and bytes of their texts.
const MOST_PARSED: usize = 10_000;
const MOST_BYTES: usize = 32 << 20;
/// More policies than this are not remembered by where they are in memory.
const MOST_HELD: usize = 1_024;

/// How a policy is known before it has a number.
#[derive(Clone)]
pub struct PolicyText {
    pub body: String,
    pub digest: [u8; 32],
}

impl PolicyText {
    pub fn of(policy: &Policy) -> PolicyText {
        let body = policy.to_json().to_string();
        let digest = Sha256::digest(body.as_bytes()).into();
        PolicyText { body, digest }
    }
}

/// Numbers of policies that new tasks may use, and parsed policies of tasks that were read.
#[derive(Default)]
pub struct Policies {
    /// Only what was given a number by `learn` while the present rules were in force: a number in here is never forgotten by the
    /// database without this process being told first.
    numbers: RwLock<HashMap<[u8; 32], i32>>,
    /// Policies that callers hold and use again and again: their text need not be made each time.
    held: Mutex<HashMap<usize, (Weak<Policy>, i32)>>,
    parsed: RwLock<Parsed>,
    /// Written by a newer build, and unreadable for this one.
    strange: RwLock<BTreeSet<i32>>,
    uses: AtomicU64,
}

#[derive(Default)]
struct Parsed {
    by_id: HashMap<i32, Entry>,
    bytes: usize,
}

struct Entry {
    policy: Arc<Policy>,
    bytes: usize,
    used: AtomicU64,
}

impl Policies {
    /// The number of a policy, for a new task.
    pub fn number(&self, policy: &Arc<Policy>) -> Option<i32> {
        let place = Arc::as_ptr(policy) as usize;
        if let Some((held, id)) = self.held.lock().get(&place)
            && std::ptr::eq(held.as_ptr(), Arc::as_ptr(policy))
            && held.strong_count() > 0
        {
            return Some(*id);
        }
        let digest = PolicyText::of(policy).digest;
        // Both locks, so that a number that is forgotten at this moment does not come back.
        let mut held = self.held.lock();
        let id = self.numbers.read().get(&digest).copied()?;
        if held.len() >= MOST_HELD {
            held.retain(|_, (policy, _)| policy.strong_count() > 0);
        }
        if held.len() < MOST_HELD {
            held.insert(place, (Arc::downgrade(policy), id));
        }
        Some(id)
    }

    pub fn learn_number(&self, id: i32, digest: [u8; 32]) {
        self.numbers.write().insert(digest, id);
    }

    /// New tasks must not use these numbers any more.
    pub fn forget(&self, ids: &BTreeSet<i32>) {
        if ids.is_empty() {
            return;
        }
        let mut held = self.held.lock();
        self.numbers.write().retain(|_, id| !ids.contains(id));
        held.retain(|_, (_, id)| !ids.contains(id));
    }

    /// Forgets all numbers, because it is not known which of them are still good.
    pub fn forget_all(&self) {
        let mut held = self.held.lock();
        self.numbers.write().clear();
        held.clear();
    }

    /// A parsed policy, if it is in the cache.
    pub fn get(&self, id: i32) -> Option<Arc<Policy>> {
        let parsed = self.parsed.read();
        let entry = parsed.by_id.get(&id)?;
        entry.used.store(self.uses.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        Some(entry.policy.clone())
    }

    /// Parses the text of a stored policy and keeps it in the cache.
    pub fn parse(&self, id: i32, body: &str) -> Result<Arc<Policy>, StoreError> {
        if let Some(known) = self.get(id) {
            return Ok(known);
        }
        let policy = Arc::new(dialect::parse_stored(body).map_err(|fault| corrupt(format!("policy {id}: {fault}")))?);
        let used = AtomicU64::new(self.uses.fetch_add(1, Ordering::Relaxed));
        let mut parsed = self.parsed.write();
        let entry = Entry { policy: policy.clone(), bytes: body.len(), used };
        parsed.bytes += body.len();
        if let Some(old) = parsed.by_id.insert(id, entry) {
            parsed.bytes -= old.bytes;
        }
        if parsed.by_id.len() > MOST_PARSED || parsed.bytes > MOST_BYTES {
            parsed.make_room();
        }
        Ok(policy)
    }

    pub fn note_strange(&self, id: i32) -> bool {
        self.strange.write().insert(id)
    }

    pub fn is_strange(&self, id: i32) -> bool {
        self.strange.read().contains(&id)
    }

    #[cfg(test)]
    fn parsed_count(&self) -> usize {
        self.parsed.read().by_id.len()
    }
}

impl Parsed {
    /// Drops those that were not used for longest, until half of the cache is free. Whoever holds one keeps it.
    fn make_room(&mut self) {
        let mut order: Vec<(u64, i32)> =
            self.by_id.iter().map(|(id, entry)| (entry.used.load(Ordering::Relaxed), *id)).collect();
        order.sort_unstable();
        for (_, id) in order {
            if self.by_id.len() <= MOST_PARSED / 2 && self.bytes <= MOST_BYTES / 2 {
                break;
            }
            if let Some(entry) = self.by_id.remove(&id) {
                self.bytes -= entry.bytes;
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use comeback_core::{Dialect, PolicyLimits};
    use serde_json::json;

    use super::*;

    fn policy() -> Policy {
        let given = json!({"strategy": "fixed", "delay": "1s", "max_retries": 3});
        dialect::parse(&given, Dialect::Native, &PolicyLimits::default()).unwrap().unwrap()
    }

    #[test]
    fn the_cache_of_parsed_policies_is_bounded() {
        let policies = Policies::default();
        let body = PolicyText::of(&policy()).body;
        let first = policies.parse(0, &body).unwrap();
        for id in 1..=25_000 {
            policies.parse(id, &body).unwrap();
            assert!(policies.get(0).is_some(), "what is used again and again stays");
        }
        assert!(policies.parsed_count() <= MOST_PARSED);
        assert!(policies.get(1).is_none());
        assert_eq!(*first, *policies.get(0).unwrap());
    }

    #[test]
    fn a_number_that_was_forgotten_is_not_offered_again() {
        let policies = Policies::default();
        let policy = Arc::new(policy());
        assert_eq!(policies.number(&policy), None);
        policies.learn_number(7, PolicyText::of(&policy).digest);
        assert_eq!(policies.number(&policy), Some(7));
        assert_eq!(policies.number(&policy), Some(7), "from where it is in memory");
        policies.forget(&BTreeSet::from([7]));
        assert_eq!(policies.number(&policy), None);
    }
}
