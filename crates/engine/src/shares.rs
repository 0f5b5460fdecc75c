//! Counts what each namespace holds of something at this moment, and refuses what is beyond its quota.

use std::collections::HashMap;
use std::sync::Arc;

use comeback_core::quota::{Quota, QuotaExceeded, Quotas};
use parking_lot::Mutex;

/// The holders of one quota. What is held is counted as long as its [`Share`] lives.
pub struct Shares {
    quota: Quota,
    most: u64,
    held: Mutex<HashMap<Arc<str>, u64>>,
}

/// A part of a quota that is free again when this is dropped.
pub struct Share {
    shares: Arc<Shares>,
    namespace: Arc<str>,
    amount: u64,
}

impl Shares {
    /// Shares of a quota, as it is configured.
    pub fn of(quota: Quota, quotas: &Quotas) -> Arc<Shares> {
        Arc::new(Shares { quota, most: quotas.get(quota), held: Mutex::default() })
    }

    /// Takes an amount for a namespace, or refuses by the quota's name.
    pub fn take(self: &Arc<Shares>, namespace: &str, amount: u64) -> Result<Share, QuotaExceeded> {
        let mut held = self.held.lock();
        let (name, has) = match held.get_key_value(namespace) {
            Some((name, has)) => (name.clone(), *has),
            None => (Arc::from(namespace), 0),
        };
        if has.saturating_add(amount) > self.most {
            return Err(QuotaExceeded { quota: self.quota, namespace: namespace.to_owned(), most: self.most });
        }
        held.insert(name.clone(), has + amount);
        Ok(Share { shares: self.clone(), namespace: name, amount })
    }

    /// Share that a namespace holds now.
    pub fn held_by(&self, namespace: &str) -> u64 {
        self.held.lock().get(namespace).copied().unwrap_or(0)
    }
}

impl Share {
    /// Takes more, or refuses and keeps what there is.
    pub fn grow(&mut self, amount: u64) -> Result<(), QuotaExceeded> {
        let mut more = self.shares.take(&self.namespace, amount)?;
        self.amount += std::mem::take(&mut more.amount);
        Ok(())
    }

    /// Gives a part back.
    pub fn shrink(&mut self, amount: u64) {
        let amount = amount.min(self.amount);
        self.amount -= amount;
        self.give_back(amount);
    }

    fn give_back(&self, amount: u64) {
        let mut held = self.shares.held.lock();
        if let Some(has) = held.get_mut(&self.namespace) {
            *has = has.saturating_sub(amount);
            if *has == 0 {
                held.remove(&self.namespace);
            }
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.give_back(self.amount);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_gets_its_quota_and_leaves_the_others_alone() {
        let mut quotas = Quotas::default();
        quotas.set("streams", "3").expect("a number");
        let shares = Shares::of(Quota::Streams, &quotas);
        let mut red = shares.take("red", 2).expect("two of three");
        assert_eq!(shares.take("red", 2).err().expect("four of three").quota, Quota::Streams);
        red.grow(1).expect("three of three");
        assert!(red.grow(1).is_err());
        let blue = shares.take("blue", 3).expect("its own");
        red.shrink(2);
        assert_eq!((shares.held_by("red"), shares.held_by("blue")), (1, 3));
        drop((red, blue));
        assert!(shares.held.lock().is_empty(), "nobody who holds nothing is remembered");
    }
}
