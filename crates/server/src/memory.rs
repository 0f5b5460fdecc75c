//! Memory budget for request bodies, in total and per namespace.

use std::collections::HashMap;
use std::sync::Arc;

use comeback_core::{Quota, QuotaExceeded, Quotas};
use parking_lot::Mutex;

use crate::problem::Problem;

/// A namespace below this size may use the reserve.
const SMALL: u64 = 1 << 20;

/// Memory budget for bodies, in bytes. One namespace gets its quota, and at most half of the total. An eighth is
/// reserved for namespaces that hold little, so that several large senders together do not keep out a heartbeat.
pub struct MemoryBudget {
    quota: Quota,
    total: u64,
    most: u64,
    held: Mutex<Usage>,
}

#[derive(Default)]
struct Usage {
    all: u64,
    by: HashMap<Arc<str>, u64>,
}

/// Memory of one body, released on drop.
pub struct MemoryPermit {
    budget: Arc<MemoryBudget>,
    namespace: Arc<str>,
    bytes: u64,
}

impl MemoryBudget {
    /// A budget of `total` bytes with a quota per namespace.
    pub fn new(quota: Quota, total: u64, quotas: &Quotas) -> Arc<MemoryBudget> {
        let most = quotas.get(quota).min(total / 2).max(1);
        Arc::new(MemoryBudget { quota, total, most, held: Mutex::default() })
    }

    /// Takes bytes for a namespace. Refused with the name of the quota if the namespace holds its maximum.
    pub fn take(self: &Arc<MemoryBudget>, namespace: &str, bytes: u64) -> Result<MemoryPermit, Problem> {
        let mut held = self.held.lock();
        let name = match held.by.get_key_value(namespace) {
            Some((name, _)) => name.clone(),
            None => Arc::from(namespace),
        };
        self.add(&mut held, &name, bytes)?;
        Ok(MemoryPermit { budget: self.clone(), namespace: name, bytes })
    }

    /// Takes bytes beyond the limits: for responses to completed writes.
    pub fn take_anyway(self: &Arc<MemoryBudget>, namespace: &str, bytes: u64) -> MemoryPermit {
        let mut held = self.held.lock();
        let name: Arc<str> = Arc::from(namespace);
        held.all += bytes;
        *held.by.entry(name.clone()).or_default() += bytes;
        drop(held);
        MemoryPermit { budget: self.clone(), namespace: name, bytes }
    }

    fn add(&self, held: &mut Usage, namespace: &Arc<str>, bytes: u64) -> Result<(), Problem> {
        let mine = held.by.get(namespace).copied().unwrap_or(0).saturating_add(bytes);
        if mine > self.most {
            let (quota, most) = (self.quota, self.most);
            return Err(QuotaExceeded { quota, namespace: namespace.to_string(), most }.into());
        }
        let reserve = if mine <= SMALL.min(self.total / 8) { 0 } else { self.total / 8 };
        if held.all.saturating_add(bytes) > self.total.saturating_sub(reserve) {
            return Err(Problem::overloaded("too many large requests are being read"));
        }
        held.all += bytes;
        held.by.insert(namespace.clone(), mine);
        Ok(())
    }

    fn give_back(&self, namespace: &Arc<str>, bytes: u64) {
        let mut held = self.held.lock();
        held.all = held.all.saturating_sub(bytes);
        if let Some(mine) = held.by.get_mut(namespace) {
            *mine = mine.saturating_sub(bytes);
            if *mine == 0 {
                held.by.remove(namespace);
            }
        }
    }
}

impl MemoryPermit {
    /// Grows to `bytes`.
    pub fn grow_to(&mut self, bytes: u64) -> Result<(), Problem> {
        if bytes > self.bytes {
            self.budget.add(&mut self.budget.held.lock(), &self.namespace, bytes - self.bytes)?;
            self.bytes = bytes;
        }
        Ok(())
    }

    /// Shrinks to `bytes`.
    pub fn shrink_to(&mut self, bytes: u64) {
        if bytes < self.bytes {
            self.budget.give_back(&self.namespace, self.bytes - bytes);
            self.bytes = bytes;
        }
    }
}

impl std::fmt::Debug for MemoryPermit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Memory({} of {})", self.bytes, self.namespace)
    }
}

impl Drop for MemoryPermit {
    fn drop(&mut self) {
        self.budget.give_back(&self.namespace, self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(total: u64, quota: u64) -> Arc<MemoryBudget> {
        let mut quotas = Quotas::default();
        quotas.set("body_bytes", &quota.to_string()).expect("a number");
        MemoryBudget::new(Quota::BodyBytes, total, &quotas)
    }

    #[test]
    fn one_namespace_never_has_more_than_half() {
        let budget = budget(16 << 20, 1 << 40);
        let mut red = budget.take("red", 6 << 20).expect("its part");
        let refused = red.grow_to(9 << 20).expect_err("more than half");
        assert_eq!((refused.status.as_u16(), refused.quota), (429, Some(Quota::BodyBytes)));
        assert!(budget.take("blue", 6 << 20).is_ok());
        red.shrink_to(1);
        assert!(budget.take("red", 7 << 20).is_ok());
        drop(red);
        assert!(budget.held.lock().by.is_empty() && budget.held.lock().all == 0);
    }

    #[test]
    fn answers_of_what_was_done_are_never_refused_and_still_count() {
        let budget = budget(16 << 20, 1 << 20);
        let answer = budget.take_anyway("red", 9 << 20);
        assert!(budget.take("red", 1).is_err());
        assert!(budget.take("blue", 1 << 20).is_ok());
        drop(answer);
        assert!(budget.take("red", 1 << 20).is_ok());
    }

    #[test]
    fn small_bodies_get_in_when_several_namespaces_have_taken_the_rest() {
        let budget = budget(16 << 20, 7 << 20);
        let held = [budget.take("red", 7 << 20).expect("its part"), budget.take("pink", 7 << 20).expect("its part")];
        assert_eq!(budget.take("blue", 2 << 20).expect_err("no room").status.as_u16(), 503);
        assert!(budget.take("blue", 1 << 20).is_ok(), "the reserve is for small ones");
        drop(held);
    }
}
