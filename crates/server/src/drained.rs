//! Drained workers get no new leases, on every instance within a second.

use std::collections::{BTreeMap, HashMap};

use comeback_core::Millis;
use comeback_engine::store::{ChangeNumber, DrainedWorker, Store, StoreError};
use parking_lot::RwLock;

/// Maximum number of drained workers per namespace.
pub const MOST: u64 = 1_000;
/// At the maximum, names unused for this long are removed.
pub const KEPT: Millis = Millis::from_days(7);

/// This instance's cache of the drained workers.
#[derive(Default)]
pub struct DrainedWorkers {
    known: RwLock<DrainedCache>,
    /// Serializes refreshes: an older read must not replace a newer one.
    reading: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct DrainedCache {
    number: i64,
    workers: HashMap<String, BTreeMap<String, DrainedWorker>>,
}

impl DrainedWorkers {
    /// Reloads the drained workers if they changed.
    pub async fn refresh(&self, store: &dyn Store) -> Result<(), StoreError> {
        let number = store.change_numbers().await?.drained;
        self.follow(store, number).await
    }

    /// Reloads the drained workers if they changed.
    pub async fn follow(&self, store: &dyn Store, number: ChangeNumber) -> Result<(), StoreError> {
        if self.known.read().number == number.last {
            return Ok(());
        }
        let _reading = self.reading.lock().await;
        let rows = store.drained_workers().await?;
        let mut workers: HashMap<String, BTreeMap<String, DrainedWorker>> = HashMap::new();
        for row in rows {
            workers.entry(row.namespace.clone()).or_default().insert(row.name.clone(), row);
        }
        *self.known.write() = DrainedCache { number: number.last, workers };
        Ok(())
    }

    /// The drained workers of a namespace, by name.
    pub fn of(&self, namespace: &str) -> BTreeMap<String, DrainedWorker> {
        self.known.read().workers.get(namespace).cloned().unwrap_or_default()
    }

    /// A drained worker by name.
    pub fn get(&self, namespace: &str, worker: &str) -> Option<DrainedWorker> {
        self.known.read().workers.get(namespace)?.get(worker).cloned()
    }

    /// Whether a worker is drained.
    pub fn contains(&self, namespace: &str, worker: &str) -> bool {
        self.known.read().workers.get(namespace).is_some_and(|workers| workers.contains_key(worker))
    }
}
