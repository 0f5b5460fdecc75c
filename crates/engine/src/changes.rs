//! What became of dependencies, as it is told: they are no tasks and have no place in the feed, so whoever follows counts what it has
//! heard of each.

use std::collections::BTreeMap;

use comeback_core::Timestamp;
use comeback_core::dependency::Told;
use comeback_core::subscription::Message;
use comeback_store::{Dependency, StoreError};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::{Core, Engine};

/// In one namespace.
const MOST: u32 = 1_000;

/// How many changes of each dependency somebody has heard of.
pub type Heard = BTreeMap<String, u64>;

/// One change, and its number among all of its dependency.
#[derive(Clone, Debug, PartialEq)]
pub struct DependencyChange {
    pub dependency: String,
    pub number: u64,
    pub what: Told,
}

impl DependencyChange {
    /// As it is told to those who follow.
    pub fn told(&self, namespace: &str) -> Value {
        self.message(namespace).data
    }

    pub(crate) fn message(&self, namespace: &str) -> Message {
        let digest = Sha256::digest(format!("{namespace}/{}", self.dependency).as_bytes());
        let name: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        Message::of_change(&format!("dep_{name}-{}", self.number), namespace, &self.dependency, &self.what)
    }
}

/// Those that `heard` does not know of, and what it knows then. Of a dependency that it never heard of, those since an instant.
pub(crate) fn unheard(all: &[Dependency], heard: &Heard, since: Timestamp) -> (Vec<DependencyChange>, Heard) {
    let mut now_heard = Heard::new();
    let mut changes = Vec::new();
    for it in all {
        let ever = it.standing.changes_ever();
        now_heard.insert(it.name.clone(), ever);
        // One that was deleted and made anew begins to count anew.
        let known = heard.get(&it.name).copied().filter(|known| *known <= ever);
        let is_new = |(number, told): &(u64, &Told)| match known {
            Some(known) => *number > known,
            None => told.at >= since,
        };
        let changed =
            |(number, told): (u64, &Told)| DependencyChange { dependency: it.name.clone(), number, what: told.clone() };
        changes.extend(it.standing.numbered().filter(is_new).map(changed));
    }
    changes.sort_by_key(|it| it.what.at);
    (changes, now_heard)
}

impl Core {
    pub(crate) async fn all_dependencies(&self, namespace: &str) -> Result<Vec<Dependency>, StoreError> {
        self.store.dependencies(namespace, "", MOST).await
    }
}

impl Engine {
    /// What became of the dependencies of a namespace that one has not heard of yet, oldest first; it has heard of it then.
    pub async fn changes_of_dependencies(
        &self,
        namespace: &str,
        heard: &mut Heard,
        since: Timestamp,
    ) -> Result<Vec<DependencyChange>, StoreError> {
        let all = self.core.all_dependencies(namespace).await?;
        let (changes, now_heard) = unheard(&all, heard, since);
        *heard = now_heard;
        Ok(changes)
    }
}

#[cfg(test)]
mod tests {
    use comeback_core::dependency::Settings;

    use super::*;

    #[test]
    fn each_change_is_heard_once_and_those_from_before_are_not() {
        let at = |ms: i64| Timestamp(ms);
        let mut it = Dependency::new("n", "psp", Settings::default(), at(0));
        it.standing.open_by_hand(None, "first", at(10));
        let words = |changes: &[DependencyChange]| changes.iter().map(|it| it.what.why.clone()).collect::<Vec<_>>();
        let look = |it: &Dependency, heard: &Heard| unheard(std::slice::from_ref(it), heard, at(20));
        let (changes, heard) = look(&it, &Heard::new());
        assert!(changes.is_empty(), "it was before: {changes:?}");
        it.standing.close_by_hand(None, "second", at(30));
        let (changes, heard) = look(&it, &heard);
        assert_eq!(words(&changes), ["second"]);
        assert!(look(&it, &heard).0.is_empty(), "once");
        for n in 0..60 {
            it.standing.open_by_hand(None, &format!("again {n}"), at(40 + n));
        }
        let (changes, heard) = look(&it, &heard);
        assert_eq!(changes.last().map(|it| (it.number, it.what.why.as_str())), Some((62, "again 59")));
        assert_eq!(changes.len(), 50, "as many as are remembered");
        let ids: std::collections::BTreeSet<String> = changes.iter().map(|it| it.message("n").id).collect();
        assert!(ids.len() == 50 && ids.iter().all(|id| !id.contains('.')), "each has an id of its own");
        let mut anew = Dependency::new("n", "psp", Settings::default(), at(200));
        anew.standing.open_by_hand(None, "anew", at(200));
        assert_eq!(words(&look(&anew, &heard).0), ["anew"]);
    }
}
