//! Turns: everybody who follows the feed is looked at, and no namespace keeps the others waiting.

use std::collections::HashMap;
use std::collections::btree_map::BTreeMap;

use comeback_store::{Resource, ResourceKind, StoreError};
use parking_lot::Mutex;

use crate::Core;
use crate::loops::BATCH;

/// Every follower of a sort that is neither paused nor disabled.
pub(crate) async fn active(core: &Core, sort: ResourceKind) -> Result<Vec<Resource>, StoreError> {
    let mut rows: Vec<Resource> = Vec::new();
    loop {
        let after = rows.last().map(|row| (row.namespace.as_str(), row.name.as_str()));
        let page = core.store.active_followers(sort, after, BATCH).await?;
        let is_last = page.len() < BATCH as usize;
        rows.extend(page);
        if is_last {
            return Ok(rows);
        }
    }
}

/// The row that was served last in each namespace. It may be lost at any moment.
#[derive(Default)]
pub(crate) struct Turns(Mutex<HashMap<String, String>>);

impl Turns {
    /// The first of every namespace, then the second of each, and so on; in a namespace first those behind the one that was looked at
    /// last. The rows come by namespace and name.
    pub fn in_turn(&self, rows: Vec<Resource>) -> Vec<Resource> {
        let mut last = self.0.lock();
        let mut by_namespace: BTreeMap<String, Vec<Resource>> = BTreeMap::new();
        for row in rows {
            by_namespace.entry(row.namespace.clone()).or_default().push(row);
        }
        last.retain(|namespace, _| by_namespace.contains_key(namespace));
        for (namespace, rows) in &mut by_namespace {
            if let Some(name) = last.get(namespace) {
                let behind = rows.partition_point(|row| row.name <= *name) % rows.len().max(1);
                rows.rotate_left(behind);
            }
        }
        let mut queues: Vec<_> = by_namespace.into_values().map(Vec::into_iter).collect();
        let mut ordered = Vec::new();
        while !queues.is_empty() {
            queues.retain_mut(|queue| {
                let next = queue.next();
                let is_there = next.is_some();
                ordered.extend(next);
                is_there
            });
        }
        ordered
    }

    /// These were looked at.
    pub fn took(&self, rows: &[Resource]) {
        let mut last = self.0.lock();
        for row in rows {
            last.insert(row.namespace.clone(), row.name.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use comeback_core::Timestamp;

    use super::*;

    fn follower(namespace: &str, name: &str) -> Resource {
        Resource {
            sort: ResourceKind::Subscriptions,
            namespace: namespace.into(),
            name: name.into(),
            version: 1,
            due: Some(Timestamp(0)),
            body: String::new(),
            standing: String::new(),
            created_at: Timestamp(0),
            updated_at: Timestamp(0),
        }
    }

    #[test]
    fn namespaces_take_turns_and_so_do_those_within_one() {
        let turns = Turns::default();
        let all = || ["a1", "a2", "a3", "b1", "c1", "c2"].map(|it| follower(&it[..1], it)).to_vec();
        let names = |rows: &[Resource]| rows.iter().map(|row| row.name.clone()).collect::<Vec<_>>();
        let first = turns.in_turn(all());
        assert_eq!(names(&first), ["a1", "b1", "c1", "a2", "c2", "a3"]);
        turns.took(&first[..4]);
        assert_eq!(names(&turns.in_turn(all())), ["a3", "b1", "c2", "a1", "c1", "a2"]);
        turns.took(&[follower("a", "a3"), follower("b", "b1")]);
        assert_eq!(names(&turns.in_turn(all()))[..3], ["a1", "b1", "c2"]);
        assert_eq!(turns.in_turn(Vec::new()).len(), 0);
    }
}
