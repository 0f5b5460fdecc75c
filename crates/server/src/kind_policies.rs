//! Policies bound to kinds. The index of kinds is cached and refreshed from the database; policy texts are loaded when
//! a task needs them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use comeback_engine::store::{ChangeNumber, Store, StoreError};
use parking_lot::{Mutex, RwLock};

/// The text of a policy and its dialect.
#[derive(Debug, PartialEq)]
pub struct GivenPolicy {
    pub body: String,
    pub dialect: String,
}

/// Policies of a request, by kind.
pub type PoliciesOfKinds = BTreeMap<String, Arc<GivenPolicy>>;

/// Size of the cache of policy texts, in bytes; it is cleared when it is full.
const MOST_BYTES: usize = 8 << 20;

/// Kinds with a policy by namespace, each with the number of its last change.
type KindsByNamespace = HashMap<String, HashMap<String, i64>>;

/// This instance's cache of the policies bound to kinds.
#[derive(Default)]
pub struct KindPolicies {
    known: RwLock<PolicyIndex>,
    /// Serializes refreshes: an older read must not replace a newer one.
    reading: tokio::sync::Mutex<()>,
    texts: Mutex<PolicyTexts>,
}

#[derive(Default)]
struct PolicyIndex {
    number: i64,
    index: KindsByNamespace,
}

#[derive(Default)]
struct PolicyTexts {
    bytes: usize,
    /// Each with the change number that it was read at.
    known: HashMap<(String, String), (i64, Arc<GivenPolicy>)>,
}

impl KindPolicies {
    /// Reads the index of kinds if it changed.
    pub async fn refresh(&self, store: &dyn Store) -> Result<(), StoreError> {
        let number = store.change_numbers().await?.policies;
        self.follow(store, number).await
    }

    /// Reads the names changed since the last read.
    pub async fn follow(&self, store: &dyn Store, number: ChangeNumber) -> Result<(), StoreError> {
        if self.known.read().number == number.last {
            return Ok(());
        }
        let _reading = self.reading.lock().await;
        let known = self.known.read().number;
        if known == number.last {
            return Ok(());
        }
        // A smaller number means that the database was restored.
        let whole = known < number.removed || known > number.last;
        let names = store.kind_policy_names(if whole { 0 } else { known }).await?;
        let mut known = self.known.write();
        if whole {
            known.index.clear();
        }
        for it in names {
            known.index.entry(it.namespace).or_default().insert(it.kind, it.change);
        }
        known.number = number.last;
        Ok(())
    }

    /// The kinds of a namespace that have a policy.
    pub fn kinds(&self, namespace: &str) -> Vec<String> {
        let known = self.known.read();
        let mut kinds: Vec<String> = known.index.get(namespace).into_iter().flat_map(HashMap::keys).cloned().collect();
        kinds.sort_unstable();
        kinds
    }

    /// Policies of those of the given kinds that have one.
    pub async fn of_kinds<'a>(
        &self,
        store: &dyn Store,
        namespace: &str,
        kinds: impl IntoIterator<Item = &'a str>,
    ) -> Result<PoliciesOfKinds, StoreError> {
        let mut found = PoliciesOfKinds::new();
        let mut missing = BTreeMap::new();
        {
            let known = self.known.read();
            let Some(index) = known.index.get(namespace).filter(|index| !index.is_empty()) else { return Ok(found) };
            let texts = self.texts.lock();
            for kind in kinds {
                let Some((kind, change)) = index.get_key_value(kind) else { continue };
                match texts.known.get(&(namespace.to_owned(), kind.clone())) {
                    Some((read_at, policy)) if read_at == change => drop(found.insert(kind.clone(), policy.clone())),
                    _ => drop(missing.insert(kind.clone(), *change)),
                }
            }
        }
        if missing.is_empty() {
            return Ok(found);
        }
        let asked: Vec<String> = missing.keys().cloned().collect();
        for row in store.kind_policies(namespace, &asked).await? {
            let policy = Arc::new(GivenPolicy { body: row.body, dialect: row.dialect });
            if let Some(change) = missing.get(&row.kind) {
                self.texts.lock().keep((row.namespace, row.kind.clone()), *change, policy.clone());
            }
            found.insert(row.kind, policy);
        }
        Ok(found)
    }
}

impl PolicyTexts {
    fn keep(&mut self, name: (String, String), change: i64, policy: Arc<GivenPolicy>) {
        let size = policy.body.len();
        if size > MOST_BYTES / 8 {
            return;
        }
        if self.bytes + size > MOST_BYTES {
            *self = PolicyTexts::default();
        }
        self.bytes += size;
        if let Some((_, old)) = self.known.insert(name, (change, policy)) {
            self.bytes -= old.body.len();
        }
    }
}
