//! Small things that all instances share, kept as one text each in the database and read again twice a second.

use std::collections::BTreeMap;

use comeback_core::Audit;
use comeback_engine::store::{PutIf, Store, StoreError};
use parking_lot::RwLock;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// How often a change is tried on a value that others change too.
const ROUNDS: usize = 50;

/// A value under a name in the database, with a copy here.
pub struct Shared<T> {
    name: &'static str,
    known: RwLock<T>,
}

impl<T: Clone + Default + Serialize + DeserializeOwned> Shared<T> {
    pub fn new(name: &'static str) -> Shared<T> {
        Shared { name, known: RwLock::new(T::default()) }
    }

    pub async fn refresh(&self, store: &dyn Store) -> Result<(), StoreError> {
        self.read(store).await.map(drop)
    }

    /// The value, and the text it was read from: the copy here may be another one by the time somebody looks at it.
    async fn read(&self, store: &dyn Store) -> Result<(T, Option<String>), StoreError> {
        let text = store.meta(self.name).await?;
        let broken = |error: serde_json::Error| StoreError::Corrupt(format!("{}: {error}", self.name));
        let value: T = match &text {
            None => T::default(),
            Some(text) => serde_json::from_str(text).map_err(broken)?,
        };
        *self.known.write() = value.clone();
        Ok((value, text))
    }

    pub fn get(&self) -> T {
        self.known.read().clone()
    }

    pub fn look<R>(&self, look: impl FnOnce(&T) -> R) -> R {
        look(&self.known.read())
    }

    /// Reads it afresh, changes it and writes it, again if somebody else was faster.
    pub async fn change<R>(&self, store: &dyn Store, change: impl FnMut(&mut T) -> R) -> Result<R, StoreError> {
        self.change_noted(store, change, |_| None).await
    }

    /// The same for what somebody does: what is to be written down about it is written with it.
    pub async fn change_noted<R>(
        &self,
        store: &dyn Store,
        mut change: impl FnMut(&mut T) -> R,
        noted: impl Fn(&R) -> Option<Audit>,
    ) -> Result<R, StoreError> {
        for _ in 0..ROUNDS {
            let (mut value, known) = self.read(store).await?;
            let answer = change(&mut value);
            let text = serde_json::to_string(&value).map_err(|error| StoreError::Refused(error.to_string()))?;
            let when = known.as_deref().map_or(PutIf::Absent, PutIf::Is);
            let noted = noted(&answer);
            let put =
                async || Ok::<_, StoreError>(store.put_meta(self.name, &text, when, noted.as_ref()).await? == text);
            if known.as_ref() == Some(&text) || put().await? {
                *self.known.write() = value;
                return Ok(answer);
            }
        }
        Err(StoreError::Unavailable(format!("too many change {} at the same time", self.name)))
    }
}

/// An instance, and when it last said that it lives.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Instance {
    pub started_at: i64,
    pub seen_at: i64,
    pub version: String,
    /// The workers that ask it for work, the latest first.
    #[serde(default)]
    pub workers: Vec<Seen>,
}

/// Instances that were silent for so long are no longer listed.
const GONE: i64 = 60_000;

impl Instance {
    pub fn is_gone(&self, now: comeback_core::Timestamp) -> bool {
        self.seen_at <= now.0 - GONE
    }
}

pub type Instances = BTreeMap<String, Instance>;

/// Policies by namespace and kind, as they were given: their text and their dialect.
pub type Bound = BTreeMap<String, BTreeMap<String, (String, String)>>;

/// Why a worker is given nothing more.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Drain {
    pub at: i64,
    pub by: Option<String>,
    pub note: Option<String>,
}

/// Workers that are given nothing more, by namespace and name.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Drained(BTreeMap<String, BTreeMap<String, Drain>>);

impl Drained {
    /// So many in one namespace. What comes and goes under ever new names is forgotten after a week.
    pub const MOST: usize = 1_000;
    const KEPT: i64 = 7 * 86_400_000;

    pub fn of(&self, namespace: &str) -> impl Iterator<Item = (&String, &Drain)> {
        self.0.get(namespace).into_iter().flatten()
    }

    pub fn get(&self, namespace: &str, worker: &str) -> Option<&Drain> {
        self.0.get(namespace)?.get(worker)
    }

    /// Nothing when there are too many; else how it is drained, and whether that is new.
    pub fn add(
        &mut self,
        namespace: &str,
        worker: &str,
        drain: &Drain,
        is_here: impl Fn(&str) -> bool,
    ) -> Option<(Drain, bool)> {
        let workers = self.0.entry(namespace.to_owned()).or_default();
        if let Some(known) = workers.get(worker) {
            return Some((known.clone(), false));
        }
        workers.retain(|name, it| it.at > drain.at - Drained::KEPT || is_here(name));
        if workers.len() >= Drained::MOST {
            return None;
        }
        workers.insert(worker.to_owned(), drain.clone());
        Some((drain.clone(), true))
    }

    pub fn remove(&mut self, namespace: &str, worker: &str) -> Option<Drain> {
        let workers = self.0.get_mut(namespace)?;
        let removed = workers.remove(worker);
        if workers.is_empty() {
            self.0.remove(namespace);
        }
        removed
    }
}

/// A worker that has asked for work.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Seen {
    pub namespace: String,
    pub name: String,
    pub at: i64,
    pub queues: Vec<String>,
    pub kinds: Vec<String>,
    pub leased: u64,
}

/// Workers by namespace and name. Those who have not been seen for an hour are forgotten.
#[derive(Default)]
pub struct Workers {
    seen: parking_lot::Mutex<BTreeMap<(String, String), Seen>>,
}

const REMEMBERED: i64 = 3_600_000;
const MOST: usize = 10_000;
const TOLD: usize = 1_000;

impl Workers {
    pub fn saw(&self, namespace: &str, name: &str, queues: &[String], kinds: &[String], leased: u64, now: i64) {
        let mut seen = self.seen.lock();
        let is_new = !seen.contains_key(&(namespace.to_owned(), name.to_owned()));
        if seen.len() >= MOST && is_new {
            seen.retain(|_, it| it.at > now - REMEMBERED);
            // Names that nobody uses twice must not fill the memory: those who have been silent longest go, a tenth at a time.
            if seen.len() >= MOST {
                let mut times: Vec<i64> = seen.values().map(|it| it.at).collect();
                times.sort_unstable();
                let (oldest, mut most) = (times[MOST / 10], MOST / 10);
                seen.retain(|_, it| {
                    let goes = it.at <= oldest && most > 0;
                    most -= usize::from(goes);
                    !goes
                });
            }
        }
        let (of, called) = (namespace.to_owned(), name.to_owned());
        let fresh = || Seen { namespace: of, name: called, at: now, queues: Vec::new(), kinds: Vec::new(), leased: 0 };
        let it = seen.entry((namespace.to_owned(), name.to_owned())).or_insert_with(fresh);
        it.at = now;
        it.queues = queues.to_vec();
        it.kinds = kinds.to_vec();
        it.leased += leased;
    }

    /// The latest first; no more than are worth telling to others.
    pub fn latest(&self, now: i64) -> Vec<Seen> {
        let seen = self.seen.lock();
        let mut own: Vec<Seen> = seen.values().filter(|it| it.at > now - REMEMBERED).cloned().collect();
        own.sort_by_key(|it| std::cmp::Reverse(it.at));
        own.truncate(TOLD);
        own
    }
}

#[cfg(test)]
mod tests {
    use comeback_engine::store::{SqliteOptions, SqliteStore};

    use super::*;

    #[test]
    fn workers_that_never_come_back_do_not_fill_the_memory() {
        let workers = Workers::default();
        for n in 0..(MOST as i64 * 2) {
            workers.saw("default", &format!("w{n}"), &[], &[], 1, n / 100);
        }
        let seen = workers.seen.lock();
        assert!(seen.len() <= MOST, "{}", seen.len());
        assert!(seen.contains_key(&("default".into(), format!("w{}", MOST * 2 - 1))), "the latest are kept");
    }

    #[test]
    fn workers_that_were_drained_and_never_come_back_are_forgotten() {
        let mut drained = Drained::default();
        let at = |at: i64| Drain { at, by: None, note: None };
        for n in 0..Drained::MOST {
            assert!(drained.add("default", &format!("w{n}"), &at(0), |_| false).is_some());
        }
        assert_eq!(drained.add("default", "one more", &at(1), |_| false), None);
        assert_eq!(drained.add("other", "one more", &at(1), |_| false), Some((at(1), true)), "a namespace of its own");
        assert_eq!(drained.add("default", "w7", &at(1), |_| false), Some((at(0), false)), "it is so already");
        let later = Drained::KEPT + 1;
        assert_eq!(drained.add("default", "new", &at(later), |name| name == "w7"), Some((at(later), true)));
        assert_eq!(drained.of("default").map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["new", "w7"]);
    }

    /// Knows whether it was read from the database or is a copy of what was read.
    #[derive(Default, serde::Serialize, serde::Deserialize)]
    struct List {
        items: Vec<u32>,
        #[serde(skip)]
        is_copy: bool,
    }

    impl Clone for List {
        fn clone(&self) -> List {
            List { items: self.items.clone(), is_copy: true }
        }
    }

    /// Whoever read earlier and is slower may put an old copy in place at any moment.
    #[tokio::test]
    async fn a_change_builds_on_what_it_read_and_not_on_a_copy() {
        let store = SqliteStore::open(&SqliteOptions::in_memory()).expect("a store");
        let shared = Shared::<List>::new("list");
        for n in 0..3 {
            let change = |list: &mut List| {
                assert!(!list.is_copy);
                list.items.push(n);
            };
            shared.change(&store, change).await.expect("written");
        }
        assert_eq!(shared.get().items, [0, 1, 2]);
    }
}
