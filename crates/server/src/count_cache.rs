//! Cached task counts by state. Counting takes time proportional to the number of tasks, so a slow count is reused for
//! a while and refreshed in the background: frequent requests cost at most a twentieth of one core. Small namespaces
//! are counted each time.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use comeback_core::Timestamp;
use comeback_engine::store::{Counts, Interactive, Running, Store, StoreError, interactive};
use parking_lot::Mutex;

/// Namespaces with fewer tasks are not cached.
const MANY: u64 = 50_000;
/// A count is fresh for this many times the duration it took.
const AGAIN: u32 = 20;
const LONGEST: Duration = Duration::from_secs(60);

/// Cached task counts by namespace.
#[derive(Default)]
pub struct CountCache {
    slots: Mutex<HashMap<String, Arc<NamespaceCounts>>>,
}

/// Cache entry of one namespace.
#[derive(Default)]
struct NamespaceCounts {
    kept: Mutex<Option<CachedCounts>>,
    /// Held while a count runs.
    turn: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Clone)]
struct CachedCounts {
    counts: Arc<Counts>,
    /// Until then the counts are returned without a refresh.
    fresh_until: Instant,
    /// Until then the counts are returned while a refresh runs.
    good_until: Instant,
}

impl CountCache {
    /// Counts of a namespace, from the cache if they are fresh.
    pub async fn of(&self, store: &Arc<dyn Store>, namespace: &str, now: Timestamp) -> Result<Arc<Counts>, StoreError> {
        let slot = self.slots.lock().entry(namespace.to_owned()).or_default().clone();
        if let Some(kept) = slot.good() {
            if kept.fresh_until <= Instant::now()
                && let Ok(turn) = slot.turn.clone().try_lock_owned()
            {
                let (store, namespace) = (store.clone(), namespace.to_owned());
                let reads = Interactive::current();
                Running::spawn(async move {
                    let count = slot.count(&*store, &namespace, now);
                    // If the refresh fails, the next caller counts and gets the error.
                    let _ = match reads {
                        Some(reads) => interactive(reads, count).await,
                        None => count.await,
                    };
                    drop(turn);
                });
            }
            return Ok(kept.counts);
        }
        // Concurrent callers wait for the count in progress.
        let _turn = slot.turn.lock().await;
        match slot.good() {
            Some(kept) => Ok(kept.counts),
            None => slot.count(&**store, namespace, now).await,
        }
    }
}

impl NamespaceCounts {
    fn good(&self) -> Option<CachedCounts> {
        self.kept.lock().clone().filter(|kept| Instant::now() < kept.good_until)
    }

    async fn count(&self, store: &dyn Store, namespace: &str, now: Timestamp) -> Result<Arc<Counts>, StoreError> {
        let began = Instant::now();
        let counts = Arc::new(store.counts(namespace, now).await?);
        let done = Instant::now();
        let is_small = counts.by_state.values().sum::<u64>() < MANY;
        let (fresh, good) = if is_small {
            (Duration::ZERO, Duration::ZERO)
        } else {
            (((done - began) * AGAIN).min(LONGEST), LONGEST * 2)
        };
        *self.kept.lock() =
            Some(CachedCounts { counts: counts.clone(), fresh_until: done + fresh, good_until: done + good });
        Ok(counts)
    }
}
