//! Workers that ask this instance for work. Each is one row in the database, written when it is new and then at most twice a minute.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use comeback_core::{Millis, Quota, QuotaExceeded, Quotas, Timestamp};
use comeback_engine::store::{Store, StoreError, WorkerRow, WorkerSeen};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

/// Workers that were not seen for so long are forgotten.
pub const REMEMBERED: Millis = Millis::from_secs(3_600);
/// A worker that is known is written again after this time at the earliest.
const REWRITTEN: i64 = 30_000;
/// Rows in one write at most.
const BATCH: usize = 1_000;
/// Names of queues, or of kinds, that are kept of one worker, and how many bytes they may have together.
const NAMES: usize = 20;
const NAME_BYTES: usize = 1_024;
/// Workers of a namespace that a list shows: those that were seen last.
pub const LISTED: usize = 1_000;

/// What a worker asks for, shortened.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Asks {
    pub queues: Vec<String>,
    pub kinds: Vec<String>,
    /// How many more queues it names.
    pub more_queues: u64,
    /// How many more kinds it names.
    pub more_kinds: u64,
}

impl Asks {
    fn of(queues: &[String], kinds: &[String]) -> Asks {
        let (queues, more_queues) = shortened(queues);
        let (kinds, more_kinds) = shortened(kinds);
        Asks { queues, kinds, more_queues, more_kinds }
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

/// A worker that asks this instance.
struct Own {
    at: i64,
    /// When it was written last.
    written_at: Option<i64>,
    /// Of what it asks for, to see that it is the same.
    fingerprint: u64,
    /// What it asks for, as long as it is not written.
    asks: Option<Asks>,
    /// What it has leased and is not written.
    leased: u64,
}

impl Own {
    fn is_due(&self, now: i64) -> bool {
        self.written_at.is_none_or(|written| self.at > written && now - written >= REWRITTEN)
    }
}

#[derive(Default)]
struct Seen {
    /// By namespace and name.
    own: HashMap<String, HashMap<String, Own>>,
    /// How many each namespace had on all instances when they were counted last, and how many are new here since.
    counted: HashMap<String, u64>,
    new: HashMap<String, u64>,
}

/// The workers that ask this instance.
#[derive(Default)]
pub struct Workers {
    seen: Mutex<Seen>,
}

impl Workers {
    /// A worker asks for work. A new name beyond the quota of its namespace is refused, unless the database has it (`is_known`).
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
                it.asks = Some(Asks::of(asked.0, asked.1));
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
        let asks = Some(Asks::of(asked.0, asked.1));
        let own = Own { at: now.0, written_at: None, fingerprint, asks, leased: 0 };
        seen.own.entry(namespace.to_owned()).or_default().insert(name.to_owned(), own);
        Ok(())
    }

    /// It was given tasks.
    pub fn leased(&self, namespace: &str, name: &str, count: usize, now: Timestamp) {
        let mut seen = self.seen.lock();
        if let Some(it) = seen.own.get_mut(namespace).and_then(|workers| workers.get_mut(name)) {
            it.at = now.0;
            it.leased += count as u64;
        }
    }

    /// Some of those that are due to be written.
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
            let is_same = |asks: &Asks| serde_json::to_string(asks).ok() == row.asks;
            if it.asks.as_ref().is_some_and(is_same) {
                it.asks = None;
            }
        }
    }

    /// Writes those that are due, and forgets those that were not seen for an hour. Answers how many rows were written.
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

    /// Counts the workers of all instances again.
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

    /// Those of a namespace on all instances that run, by name, with what is not written yet.
    pub fn listed(
        &self,
        namespace: &str,
        instance: &str,
        rows: Vec<WorkerRow>,
        runs: impl Fn(&str) -> bool,
        now: Timestamp,
    ) -> Result<Vec<Listed>, StoreError> {
        let oldest = (now - REMEMBERED).0;
        let mut listed: HashMap<String, Listed> = HashMap::new();
        for row in rows.into_iter().filter(|row| row.instance == instance || runs(&row.instance)) {
            let broken = |error: serde_json::Error| StoreError::Corrupt(format!("worker {}: {error}", row.name));
            let asks = serde_json::from_str(&row.asks).map_err(broken)?;
            let it = Listed { asks, at: row.seen_at, leased: row.leased, instance: row.instance, name: row.name };
            listed.insert(it.name.clone(), it);
        }
        let seen = self.seen.lock();
        for (name, own) in seen.own.get(namespace).into_iter().flatten().filter(|(_, own)| own.at > oldest) {
            let it = listed.entry(name.clone()).or_insert_with(|| Listed {
                name: name.clone(),
                instance: instance.to_owned(),
                at: Timestamp(own.at),
                leased: 0,
                asks: Asks::default(),
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
        let mut listed: Vec<Listed> = listed.into_values().collect();
        listed.sort_by(|a, b| (b.at, &a.name).cmp(&(a.at, &b.name)));
        listed.truncate(LISTED);
        listed.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(listed)
    }
}

/// A worker in a list.
#[derive(Clone, Debug)]
pub struct Listed {
    pub name: String,
    /// The instance that it asked last.
    pub instance: String,
    pub at: Timestamp,
    pub leased: u64,
    pub asks: Asks,
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
        let asks: Asks = serde_json::from_str(&rows[0].asks).expect("JSON");
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
