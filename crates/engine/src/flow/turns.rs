//! Turns: what the loop `flow` does of one namespace before it looks at all of them again.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use comeback_store::StoreError;
use futures_util::future::join_all;
use parking_lot::Mutex;

use crate::loops::Progress;

/// Tasks of one namespace in one turn, so that a namespace with much to do never keeps another one waiting for long.
pub const TURN: u32 = 25;

/// Groups items by namespace, in order.
pub fn by_namespace<T>(all: Vec<T>, namespace: impl Fn(&T) -> &String) -> impl Iterator<Item = Vec<T>> {
    let mut groups: BTreeMap<String, Vec<T>> = BTreeMap::new();
    for it in all {
        match groups.get_mut(namespace(&it)) {
            Some(group) => group.push(it),
            None => {
                groups.insert(namespace(&it).clone(), vec![it]);
            }
        }
    }
    groups.into_values()
}

/// Works off the turns of all namespaces side by side. There is more of it when one of them had a full turn.
pub async fn in_turns<T, F>(
    turns: impl Iterator<Item = Vec<T>>,
    work: impl Fn(Vec<T>) -> F,
) -> Result<Progress, StoreError>
where
    F: Future<Output = Result<usize, StoreError>>,
{
    let mut progress = Progress::default();
    let work = turns.map(|turn| {
        progress.more |= turn.len() >= TURN as usize;
        work(turn)
    });
    let work: Vec<F> = work.collect();
    for moved in join_all(work).await {
        progress.moved += u32::try_from(moved?).unwrap_or(u32::MAX);
    }
    Ok(progress)
}

/// How often the loop looks through all open calls. That takes longer the more of them there are, so it rests in proportion.
#[derive(Default)]
pub struct Pace {
    /// Off if the caller drives the loops.
    is_on: AtomicBool,
    not_before: Mutex<Option<Instant>>,
}

/// A look that is quicker than this costs nothing worth resting for.
const QUICK: Duration = Duration::from_millis(20);
/// The rest after a look, as a multiple of the time it took, and at most.
const REST: u32 = 5;
const LONGEST_REST: Duration = Duration::from_secs(1);

impl Pace {
    pub fn start(&self) {
        self.is_on.store(true, Ordering::Relaxed);
    }

    pub fn is_due(&self) -> bool {
        self.not_before.lock().is_none_or(|at| Instant::now() >= at)
    }

    /// A look took so long.
    pub fn took(&self, span: Duration) {
        let rests = self.is_on.load(Ordering::Relaxed) && span > QUICK;
        *self.not_before.lock() = rests.then(|| Instant::now() + (span * REST).min(LONGEST_REST));
    }
}
