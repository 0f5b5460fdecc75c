//! Drained workers: those that are given nothing more, on every instance within a second.

use std::collections::{BTreeMap, HashMap};

use comeback_core::Millis;
use comeback_engine::store::{ChangeNumber, DrainedWorker, Store, StoreError};
use parking_lot::RwLock;

/// Drained workers in one namespace at most.
pub const MOST: u64 = 1_000;
/// Where a namespace has as many as it may have, names that nobody uses any more are forgotten after a week.
pub const KEPT: Millis = Millis::from_days(7);

/// Drained workers, as this instance knows them.
#[derive(Default)]
pub struct DrainedWorkers {
    known: RwLock<Known>,
    /// One reads at a time: what was read earlier must not be put in place of what was read later.
    reading: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Known {
    number: i64,
    workers: HashMap<String, BTreeMap<String, DrainedWorker>>,
}

impl DrainedWorkers {
    pub async fn refresh(&self, store: &dyn Store) -> Result<(), StoreError> {
        let number = store.change_numbers().await?.drained;
        self.follow(store, number).await
    }

    /// Reads them again where something has changed.
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
        *self.known.write() = Known { number: number.last, workers };
        Ok(())
    }

    /// Those of a namespace, by name.
    pub fn of(&self, namespace: &str) -> BTreeMap<String, DrainedWorker> {
        self.known.read().workers.get(namespace).cloned().unwrap_or_default()
    }

    pub fn get(&self, namespace: &str, worker: &str) -> Option<DrainedWorker> {
        self.known.read().workers.get(namespace)?.get(worker).cloned()
    }

    pub fn contains(&self, namespace: &str, worker: &str) -> bool {
        self.known.read().workers.get(namespace).is_some_and(|workers| workers.contains_key(worker))
    }
}
