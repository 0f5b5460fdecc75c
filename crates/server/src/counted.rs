//! How many tasks there are in each state. To count them takes as long as there are tasks, so that what took long is told again for a
//! while, and for a while more while it is counted anew: whoever asks often costs a twentieth of one core at most and waits once.
//! Small databases are counted each time.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use comeback_core::Timestamp;
use comeback_engine::store::{Counts, Interactive, Running, Store, StoreError, interactive};
use parking_lot::Mutex;

/// Fewer than these are counted each time.
const MANY: u64 = 50_000;
/// For so many times as long as it took, it is told again.
const AGAIN: u32 = 20;
const LONGEST: Duration = Duration::from_secs(60);

#[derive(Default)]
pub struct Counted {
    slots: Mutex<HashMap<String, Arc<Slot>>>,
}

/// What is known of one namespace.
#[derive(Default)]
struct Slot {
    kept: Mutex<Option<Kept>>,
    /// Held by the one who counts.
    turn: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Clone)]
struct Kept {
    counts: Arc<Counts>,
    /// Until then nobody counts.
    fresh_until: Instant,
    /// Until then it is told while somebody counts.
    good_until: Instant,
}

impl Counted {
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
                    // Where it fails the next one counts, and is told why not.
                    let _ = match reads {
                        Some(reads) => interactive(reads, count).await,
                        None => count.await,
                    };
                    drop(turn);
                });
            }
            return Ok(kept.counts);
        }
        // Those who ask while somebody counts wait for that one.
        let _turn = slot.turn.lock().await;
        match slot.good() {
            Some(kept) => Ok(kept.counts),
            None => slot.count(&**store, namespace, now).await,
        }
    }
}

impl Slot {
    fn good(&self) -> Option<Kept> {
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
        *self.kept.lock() = Some(Kept { counts: counts.clone(), fresh_until: done + fresh, good_until: done + good });
        Ok(counts)
    }
}
