//! Workers that lease from this instance. Each is one row, written when it is new and then at most twice a minute.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use comeback_core::{Millis, Quota, QuotaExceeded, Quotas, Timestamp};
use comeback_engine::store::{Store, StoreError, WorkerRow, WorkerSeen};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

/// Workers not seen for this long are removed.
pub const REMEMBERED: Millis = Millis::from_secs(3_600);
/// Minimum time between writes of a worker row, in milliseconds.
const REWRITTEN: i64 = 30_000;
/// Maximum number of rows per write.
const BATCH: usize = 1_000;
/// Maximum number of queue or kind names stored per worker, and their total size in bytes.
const NAMES: usize = 20;
const NAME_BYTES: usize = 1_024;
/// Maximum number of workers in a list: the most recently seen.
pub const LISTED: usize = 1_000;

/// Queues and kinds that a worker asks for, truncated.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkerRequest {
    pub queues: Vec<String>,
    pub kinds: Vec<String>,
    /// Number of queues left out.
    pub more_queues: u64,
    /// Number of kinds left out.
    pub more_kinds: u64,
}

impl WorkerRequest {
    fn of(queues: &[String], kinds: &[String]) -> WorkerRequest {
        let (queues, more_queues) = shortened(queues);
        let (kinds, more_kinds) = shortened(kinds);
        WorkerRequest { queues, kinds, more_queues, more_kinds }
    }
}

fn shortened(names: &[String]) -> (Vec<String>, u64) {
    let mut bytes = 0;
    let fits = |name: &&String| {
        bytes += name.len();
        bytes <= NAME_BYTES
    };
    let kept: Vec<String> = names.iter().take(NAMES).take_while(fits).cloned().collect();
    let more = (names.len() - kept.len()) as u64;
    (kept, more)
}

/// A worker seen by this instance.
struct LocalWorker {
    at: i64,
    /// Time of the last write.
    written_at: Option<i64>,
    /// Hash of its queues and kinds, to detect changes.
    fingerprint: u64,
    /// Queues and kinds not written yet.
    asks: Option<WorkerRequest>,
    /// Leases not written yet.
    leased: u64,
}

impl LocalWorker {
    fn is_due(&self, now: i64) -> bool {
        self.written_at.is_none_or(|written| self.at > written && now - written >= REWRITTEN)
    }
}

#[derive(Default)]
struct LocalWorkers {
    /// By namespace and name.
    own: HashMap<String, HashMap<String, LocalWorker>>,
    /// Workers per namespace on all instances at the last count, and new ones here since.
    counted: HashMap<String, u64>,
    new: HashMap<String, u64>,
}

/// The workers of this instance.
#[derive(Default)]
pub struct Workers {
    seen: Mutex<LocalWorkers>,
}

impl Workers {
    /// Records a lease request of a worker. A new name beyond the quota of its namespace is refused, unless the
    /// database has it (`is_known`).
    pub fn saw(
        &self,
        namespace: &str,
        name: &str,
        asked: (&[String], &[String]),
        quotas: &Quotas,
        is_known: bool,
        now: Timestamp,
    ) -> Result<(), QuotaExceeded> {
        let mut hasher = DefaultHasher::new();
        asked.hash(&mut hasher);
        let fingerprint = hasher.finish();
        let mut seen = self.seen.lock();
        if let Some(it) = seen.own.get_mut(namespace).and_then(|workers| workers.get_mut(name)) {
            it.at = now.0;
            if it.fingerprint != fingerprint {
                it.fingerprint = fingerprint;
                it.asks = Some(WorkerRequest::of(asked.0, asked.1));
            }
            return Ok(());
        }
        if !is_known {
            let here = seen.own.get(namespace).map_or(0, HashMap::len) as u64;
            let new = seen.new.get(namespace).copied().unwrap_or(0);
            let counted = seen.counted.get(namespace).copied().unwrap_or(0) + new;
            quotas.check(Quota::Workers, namespace, here.max(counted))?;
            *seen.new.entry(namespace.to_owned()).or_default() += 1;
        }
        let asks = Some(WorkerRequest::of(asked.0, asked.1));
        let own = LocalWorker { at: now.0, written_at: None, fingerprint, asks, leased: 0 };
        seen.own.entry(namespace.to_owned()).or_default().insert(name.to_owned(), own);
        Ok(())
    }

    /// Counts leases granted to a worker.
    pub fn leased(&self, namespace: &str, name: &str, count: usize, now: Timestamp) {
        let mut seen = self.seen.lock();
        if let Some(it) = seen.own.get_mut(namespace).and_then(|workers| workers.get_mut(name)) {
            it.at = now.0;
            it.leased += count as u64;
        }
    }

    /// A batch of workers that are due to be written.
    fn due(&self, now: i64) -> Vec<WorkerSeen> {
        let seen = self.seen.lock();
        let all = seen.own.iter().flat_map(|(namespace, workers)| workers.iter().map(move |it| (namespace, it)));
        all.filter(|(_, (_, it))| it.is_due(now))
            .take(BATCH)
            .map(|(namespace, (name, it))| WorkerSeen {
                namespace: namespace.clone(),
                name: name.clone(),
                seen_at: Timestamp(it.at),
                leased: it.leased,
                asks: it.asks.as_ref().and_then(|asks| serde_json::to_string(asks).ok()),
            })
            .collect()
    }

    fn written(&self, rows: &[WorkerSeen], now: i64) {
        let mut seen = self.seen.lock();
        for row in rows {
            let Some(it) = seen.own.get_mut(&row.namespace).and_then(|own| own.get_mut(&row.name)) else { continue };
            it.written_at = Some(now.max(row.seen_at.0));
            it.leased = it.leased.saturating_sub(row.leased);
            let is_same = |asks: &WorkerRequest| serde_json::to_string(asks).ok() == row.asks;
            if it.asks.as_ref().is_some_and(is_same) {
                it.asks = None;
            }
        }
    }

    /// Writes due rows, and drops workers not seen for an hour. Returns the number of rows written.
    pub async fn write(&self, store: &dyn Store, instance: &str, now: Timestamp) -> Result<u64, StoreError> {
        self.forget(now);
        let mut count = 0;
        loop {
            let rows = self.due(now.0);
            if rows.is_empty() {
                break;
            }
            store.put_workers(instance, &rows).await?;
            self.written(&rows, now.0);
            count += rows.len() as u64;
        }
        let is_new = !self.seen.lock().new.is_empty();
        if is_new {
            self.recount(store, now).await?;
        }
        Ok(count)
    }

    /// Recounts the workers of all instances.
    pub async fn recount(&self, store: &dyn Store, now: Timestamp) -> Result<(), StoreError> {
        let counts = store.worker_counts(now - REMEMBERED).await?;
        let mut seen = self.seen.lock();
        seen.counted = counts.into_iter().collect();
        seen.new.clear();
        Ok(())
    }

    fn forget(&self, now: Timestamp) {
        let oldest = (now - REMEMBERED).0;
        let mut seen = self.seen.lock();
        seen.own.retain(|_, workers| {
            workers.retain(|_, it| it.at > oldest);
            if workers.capacity() > 2 * workers.len() + 64 {
                workers.shrink_to_fit();
            }
            !workers.is_empty()
        });
    }

    /// Workers of a namespace on all running instances, by name, including unwritten updates.
    pub fn listed(
        &self,
        namespace: &str,
        instance: &str,
        rows: Vec<WorkerRow>,
        runs: impl Fn(&str) -> bool,
        now: Timestamp,
    ) -> Result<Vec<WorkerListing>, StoreError> {
        let oldest = (now - REMEMBERED).0;
        let mut listed: HashMap<String, WorkerListing> = HashMap::new();
        for row in rows.into_iter().filter(|row| row.instance == instance || runs(&row.instance)) {
            let broken = |error: serde_json::Error| StoreError::Corrupt(format!("worker {}: {error}", row.name));
            let asks = serde_json::from_str(&row.asks).map_err(broken)?;
            let it =
                WorkerListing { asks, at: row.seen_at, leased: row.leased, instance: row.instance, name: row.name };
            listed.insert(it.name.clone(), it);
        }
        let seen = self.seen.lock();
        for (name, own) in seen.own.get(namespace).into_iter().flatten().filter(|(_, own)| own.at > oldest) {
            let it = listed.entry(name.clone()).or_insert_with(|| WorkerListing {
                name: name.clone(),
                instance: instance.to_owned(),
                at: Timestamp(own.at),
                leased: 0,
                asks: WorkerRequest::default(),
            });
            it.leased += own.leased;
            if own.at >= it.at.0 {
                it.at = Timestamp(own.at);
                it.instance = instance.to_owned();
                if let Some(asks) = &own.asks {
                    it.asks = asks.clone();
                }
            }
        }
        drop(seen);
        let mut listed: Vec<WorkerListing> = listed.into_values().collect();
        listed.sort_by(|a, b| (b.at, &a.name).cmp(&(a.at, &b.name)));
        listed.truncate(LISTED);
        listed.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(listed)
    }
}

/// A worker in a list.
#[derive(Clone, Debug)]
pub struct WorkerListing {
    pub name: String,
    /// The instance it leased from last.
    pub instance: String,
    pub at: Timestamp,
    pub leased: u64,
    pub asks: WorkerRequest,
}

#[cfg(test)]
mod tests {
    use comeback_engine::store::{SharedStore, SqliteOptions, SqliteStore};

    use super::*;

    fn names(count: usize) -> Vec<String> {
        (0..count).map(|n| format!("k{n}")).collect()
    }

    /// H6: a worker's row is written once and then at most twice a minute, whatever it asks for.
    #[tokio::test]
    async fn workers_are_written_once_and_then_at_most_twice_a_minute() {
        let store = SqliteStore::open(&SqliteOptions::in_memory()).expect("a store");
        let (workers, quotas, kinds) = (Workers::default(), Quotas::default(), names(1_000));
        let ask = |at: i64| {
            for n in 0..1_000 {
                let asked = (&["q".to_owned()][..], &kinds[..]);
                workers.saw("red", &format!("w{n}"), asked, &quotas, false, Timestamp(at)).expect("within the quota");
                workers.leased("red", &format!("w{n}"), 1, Timestamp(at));
            }
        };
        let start = 1_800_000_000_000;
        ask(start);
        let write = async |at: i64| workers.write(&store, "one", Timestamp(at)).await.expect("written");
        assert_eq!(write(start).await, 1_000);
        assert_eq!(write(start + 5_000).await, 0, "nothing is written when nobody asks");
        for second in 1..=20 {
            ask(start + second * 1_000);
            assert_eq!(write(start + second * 1_000).await, 0);
        }
        assert_eq!(write(start + 30_000).await, 1_000);
        for second in 31..=600 {
            assert_eq!(write(start + second * 1_000).await, 0, "and nothing after that");
        }
        let rows = store.workers("red", Timestamp(0), 10_000).await.expect("rows");
        assert_eq!(rows.len(), 1_000);
        assert!(rows.iter().all(|row| row.leased == 21 && row.asks.len() < 2 * NAME_BYTES), "{:?}", rows[0]);
        let asks: WorkerRequest = serde_json::from_str(&rows[0].asks).expect("JSON");
        assert_eq!((asks.kinds.len(), asks.more_kinds, asks.queues.len(), asks.more_queues), (NAMES, 980, 1, 0));
        assert_eq!(write(start + 2 * 3_600_000).await, 0);
        assert!(workers.seen.lock().own.is_empty(), "those that were not seen for an hour are forgotten");
    }

    #[tokio::test]
    async fn a_namespace_has_as_many_workers_as_its_quota_and_takes_none_of_its_neighbours() {
        let store = SqliteStore::open(&SqliteOptions::in_memory()).expect("a store");
        let mut quotas = Quotas::default();
        quotas.set("workers", "3").expect("a number");
        let (one, other) = (Workers::default(), Workers::default());
        let now = Timestamp(1_800_000_000_000);
        let saw = |workers: &Workers, namespace: &str, name: &str| {
            workers.saw(namespace, name, (&[], &[]), &quotas, false, now).is_ok()
        };
        assert!(saw(&one, "red", "a") && saw(&one, "red", "b"));
        one.write(&store, "one", now).await.expect("written");
        other.recount(&store, now).await.expect("counted");
        assert!(saw(&other, "red", "c"), "the third");
        assert!(!saw(&other, "red", "d"), "the quota is for all instances together");
        assert!(saw(&other, "blue", "d"));
        assert!(saw(&one, "red", "a"), "those that are known go on");
        assert!(other.saw("red", "a", (&[], &[]), &quotas, true, now).is_ok(), "on every instance");
    }
}
