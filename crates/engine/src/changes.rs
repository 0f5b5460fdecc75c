//! Changes of dependencies as events. Dependencies are no tasks and have no position in the feed, so a reader keeps a counter per
//! dependency.

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

/// Position of a reader: the number of its last change, per dependency.
pub type DependencyCursor = BTreeMap<String, u64>;

/// One change, and its number among all of its dependency.
#[derive(Clone, Debug, PartialEq)]
pub struct DependencyChange {
    /// Name of the dependency.
    pub dependency: String,
    /// Number of the change, counted per dependency.
    pub number: u64,
    /// The change.
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

/// The changes after this cursor and the new cursor. Of a dependency that is not in the cursor, the changes since an instant.
pub(crate) fn changes_since(
    all: &[Dependency],
    heard: &DependencyCursor,
    since: Timestamp,
) -> (Vec<DependencyChange>, DependencyCursor) {
    let mut now_heard = DependencyCursor::new();
    let mut changes = Vec::new();
    for it in all {
        let ever = it.standing.changes_ever();
        now_heard.insert(it.name.clone(), ever);
        // A dependency that was deleted and created again counts from the start.
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
    /// Changes of the dependencies of a namespace after this cursor, oldest first. Advances the cursor.
    pub async fn changes_of_dependencies(
        &self,
        namespace: &str,
        heard: &mut DependencyCursor,
        since: Timestamp,
    ) -> Result<Vec<DependencyChange>, StoreError> {
        let all = self.core.all_dependencies(namespace).await?;
        let (changes, now_heard) = changes_since(&all, heard, since);
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
        let look = |it: &Dependency, heard: &DependencyCursor| changes_since(std::slice::from_ref(it), heard, at(20));
        let (changes, heard) = look(&it, &DependencyCursor::new());
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
