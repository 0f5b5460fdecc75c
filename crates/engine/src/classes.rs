//! Classes that operators gave to error groups, cached in this process. A decision uses them; if there are none, nothing is
//! looked up.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use comeback_core::Lane;
use comeback_core::error_group::Reclassified;
use comeback_store::StoreError;
use parking_lot::RwLock;

use crate::Core;

#[derive(Default)]
pub(crate) struct Classes {
    any: AtomicBool,
    by_namespace: RwLock<HashMap<String, Reclassified>>,
}

impl Classes {
    /// Classes for the tasks of a lane.
    pub fn of(&self, lane: &Lane) -> Option<Reclassified> {
        if !self.any.load(Ordering::Relaxed) {
            return None;
        }
        self.by_namespace.read().get(&lane.namespace).cloned()
    }
}

impl Core {
    /// Looks what was said since, here or at another instance.
    pub(crate) async fn learn_classes(&self) -> Result<(), StoreError> {
        let found = self.store.reclassified().await?;
        self.classes.any.store(!found.is_empty(), Ordering::Relaxed);
        *self.classes.by_namespace.write() = found.into_iter().map(|(name, map)| (name, Arc::new(map))).collect();
        Ok(())
    }
}
