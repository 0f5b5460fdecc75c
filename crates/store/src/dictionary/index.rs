//! The lanes that are known, so that each question is one look-up.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::AtomicI32;

use comeback_core::admission::{Key, Limit};
use comeback_core::{Executor, Lane};

use super::Walk;
use crate::ClaimRequest;
use crate::rules::{RULED_FROM, limits_from_json};

#[derive(Default)]
pub struct Index {
    pub namespaces: HashMap<String, i32>,
    pub namespace_names: HashMap<i32, Arc<str>>,
    pub numbers: HashMap<Arc<Lane>, i32>,
    pub by_id: HashMap<i32, Known>,
    by_namespace: HashMap<String, OfNamespace>,
    /// The lanes with limits below each lane without.
    below: HashMap<i32, BTreeSet<i32>>,
    /// Where each step is a row of history.
    pub slow: BTreeSet<i32>,
    /// Written by a newer build, and unreadable for this one.
    pub strange: BTreeSet<i32>,
    pub highest: i32,
    pub highest_limited: i32,
    /// Up to which generation forgotten numbers were dropped.
    pub forgotten: i64,
    /// For whoever looks in all namespaces.
    everywhere: Turns,
}

pub struct Known {
    pub lane: Arc<Lane>,
    pub namespace: i32,
    /// The same without limits.
    pub base: i32,
}

#[derive(Default)]
struct OfNamespace {
    /// Lanes without limits, by executor and queue.
    queues: HashMap<Executor, HashMap<String, BTreeMap<i32, Arc<Lane>>>>,
    plain: usize,
    limited: BTreeSet<i32>,
    keys: HashMap<Key, Sharing>,
    turns: Turns,
}

#[derive(Default)]
struct Turns {
    plain: AtomicI32,
    limited: AtomicI32,
}

impl Turns {
    fn of(&self, walk: Walk) -> &AtomicI32 {
        match walk {
            Walk::Plain => &self.plain,
            Walk::Limited => &self.limited,
        }
    }
}

/// The lanes that count under one key.
#[derive(Default)]
struct Sharing {
    lanes: Vec<i32>,
    /// With how many of them are below each.
    bases: Vec<(i32, usize)>,
}

/// Lanes may be added while nobody looks.
pub struct Learning<'a>(pub(super) &'a mut Index);

impl Learning<'_> {
    pub fn namespace(&mut self, id: i32, name: &str) {
        self.0.add_namespace(id, name);
    }

    pub fn lane(&mut self, id: i32, namespace: i32, lane: Lane) {
        self.0.add_lane(id, namespace, lane);
    }

    /// A lane with limits, by the number of the same without; whether that is known and its limits can be read.
    pub fn limited_lane(&mut self, id: i32, base: i32, limits: &str) -> bool {
        self.0.add_limited(id, base, limits)
    }

    /// One that only a newer build can read. Whether this is news.
    pub fn strange_lane(&mut self, id: i32) -> bool {
        self.0.strange.insert(id)
    }

    /// All lanes of its sort up to this one were read.
    pub fn is_complete_up_to(&mut self, id: i32) {
        let highest = if id < RULED_FROM { &mut self.0.highest } else { &mut self.0.highest_limited };
        *highest = id.max(*highest);
    }

    pub fn has_seen(&self, id: i32) -> bool {
        self.0.by_id.contains_key(&id) || self.0.strange.contains(&id)
    }
}

impl Index {
    pub fn add_namespace(&mut self, id: i32, name: &str) {
        if self.namespaces.get(name) != Some(&id) {
            self.namespaces.insert(name.to_owned(), id);
            self.namespace_names.insert(id, name.into());
        }
    }

    fn add_lane(&mut self, id: i32, namespace: i32, lane: Lane) {
        if self.by_id.contains_key(&id) {
            return;
        }
        let lane = Arc::new(lane);
        let of = self.by_namespace.entry(lane.namespace.clone()).or_default();
        of.plain += 1;
        let queues = of.queues.entry(lane.executor).or_default();
        queues.entry(lane.queue.clone()).or_default().insert(id, lane.clone());
        self.insert(id, namespace, id, lane);
    }

    fn add_limited(&mut self, id: i32, base: i32, limits: &str) -> bool {
        if self.by_id.contains_key(&id) || self.strange.contains(&id) {
            return true;
        }
        let (Some(known), Some(limits)) = (self.by_id.get(&base), limits_from_json(limits)) else {
            self.strange.insert(id);
            return false;
        };
        let (namespace, lane) = (known.namespace, Arc::new(Lane { limits, ..(*known.lane).clone() }));
        let of = self.by_namespace.entry(lane.namespace.clone()).or_default();
        of.limited.insert(id);
        for key in distinct_keys(&lane) {
            let sharing = match of.keys.get_mut(key) {
                Some(sharing) => sharing,
                None => of.keys.entry(key.clone()).or_default(),
            };
            sharing.lanes.push(id);
            match sharing.bases.iter_mut().find(|(of, _)| *of == base) {
                Some((_, count)) => *count += 1,
                None => sharing.bases.push((base, 1)),
            }
        }
        self.below.entry(base).or_default().insert(id);
        self.insert(id, namespace, base, lane);
        true
    }

    fn insert(&mut self, id: i32, namespace: i32, base: i32, lane: Arc<Lane>) {
        if lane.writes_each_step() {
            self.slow.insert(id);
        }
        self.numbers.insert(lane.clone(), id);
        self.by_id.insert(id, Known { lane, namespace, base });
    }

    /// Lanes with limits go before those without: nothing is left hanging.
    pub fn remove(&mut self, ids: &[i32]) {
        let mut keys: HashMap<(String, Key), HashSet<i32>> = HashMap::new();
        let mut ids: Vec<i32> = ids.to_vec();
        ids.sort_unstable_by(|a, b| b.cmp(a));
        for id in ids {
            self.strange.remove(&id);
            let Some(Known { lane, base, .. }) = self.by_id.remove(&id) else { continue };
            if self.numbers.get(&lane) == Some(&id) {
                self.numbers.remove(&lane);
            }
            self.slow.remove(&id);
            let Some(of) = self.by_namespace.get_mut(&lane.namespace) else { continue };
            if base == id {
                of.plain = of.plain.saturating_sub(1);
                let queues = of.queues.entry(lane.executor).or_default();
                if let Some(lanes) = queues.get_mut(&lane.queue) {
                    lanes.remove(&id);
                    if lanes.is_empty() {
                        queues.remove(&lane.queue);
                    }
                }
                if queues.is_empty() {
                    of.queues.remove(&lane.executor);
                }
                self.below.remove(&id);
                continue;
            }
            of.limited.remove(&id);
            if let Some(below) = self.below.get_mut(&base) {
                below.remove(&id);
                if below.is_empty() {
                    self.below.remove(&base);
                }
            }
            for key in distinct_keys(&lane) {
                keys.entry((lane.namespace.clone(), key.clone())).or_default().insert(id);
                let Some(sharing) = of.keys.get_mut(key) else { continue };
                if let Some(place) = sharing.bases.iter().position(|(of, _)| *of == base) {
                    sharing.bases[place].1 -= 1;
                    if sharing.bases[place].1 == 0 {
                        sharing.bases.swap_remove(place);
                    }
                }
            }
        }
        for ((namespace, key), gone) in keys {
            let Some(of) = self.by_namespace.get_mut(&namespace) else { continue };
            if let Some(sharing) = of.keys.get_mut(&key) {
                sharing.lanes.retain(|id| !gone.contains(id));
                if sharing.lanes.is_empty() {
                    of.keys.remove(&key);
                }
            }
        }
    }

    /// Without all lanes; the highest numbers stay, and so do namespaces.
    pub fn clear(&mut self) {
        let ids: Vec<i32> = self.by_id.keys().chain(&self.strange).copied().collect();
        self.remove(&ids);
        (self.highest, self.highest_limited) = (0, 0);
    }

    pub fn plain_in(&self, namespace: &str) -> usize {
        self.by_namespace.get(namespace).map_or(0, |of| of.plain)
    }

    pub fn limited_in(&self, namespace: &str) -> usize {
        self.by_namespace.get(namespace).map_or(0, |of| of.limited.len())
    }

    pub fn lane_namespaces(&self, executor: Option<Executor>) -> Vec<String> {
        let has_some = |of: &OfNamespace| match executor {
            Some(executor) => of.queues.contains_key(&executor),
            None => !of.queues.is_empty(),
        };
        let mut names: Vec<String> =
            self.by_namespace.iter().filter(|(_, of)| has_some(of)).map(|(name, _)| name.clone()).collect();
        names.sort_unstable();
        names
    }

    pub fn turn(&self, namespace: &str, walk: Walk) -> &AtomicI32 {
        self.by_namespace.get(namespace).map_or(&self.everywhere, |of| &of.turns).of(walk)
    }

    pub fn lanes_for(&self, request: &ClaimRequest) -> Vec<(i32, Arc<Lane>)> {
        let anywhere = request.namespace == ClaimRequest::ANY_NAMESPACE;
        let kinds: HashSet<&str> = request.kinds.iter().map(String::as_str).collect();
        let is_wanted = |lane: &Lane| {
            (kinds.is_empty() || kinds.contains(lane.kind.as_str()))
                && !(request.without_calls && lane.is_call())
                && request.only_kinds.as_ref().is_none_or(|patterns| patterns.allows(&lane.kind))
        };
        let mut found = Vec::new();
        let mut take = |lanes: &BTreeMap<i32, Arc<Lane>>| {
            found.extend(lanes.iter().filter(|(_, lane)| is_wanted(lane)).map(|(id, lane)| (*id, lane.clone())));
        };
        if anywhere {
            let queues = self.by_namespace.values().filter_map(|of| of.queues.get(&request.executor));
            queues.flat_map(HashMap::values).for_each(&mut take);
        } else if let Some(queues) =
            self.by_namespace.get(&request.namespace).and_then(|of| of.queues.get(&request.executor))
        {
            if request.any_queue {
                queues.values().for_each(&mut take);
            } else {
                request.queues.iter().filter_map(|name| queues.get(name)).for_each(&mut take);
            }
        }
        if found.len() > 1 {
            found.sort_unstable_by_key(|(id, _)| *id);
            // A queue may be named twice.
            found.dedup_by_key(|(id, _)| *id);
        }
        found
    }

    pub fn limited_below(&self, bases: &[(i32, Arc<Lane>)]) -> Vec<i32> {
        let mut found: Vec<i32> = bases.iter().filter_map(|(id, _)| self.below.get(id)).flatten().copied().collect();
        found.sort_unstable();
        found
    }

    pub fn limited_lanes(&self, namespace: &str, wanted: impl Fn(&Lane) -> bool) -> Vec<i32> {
        let Some(of) = self.by_namespace.get(namespace) else { return Vec::new() };
        let is_wanted = |id: &&i32| self.by_id.get(id).is_some_and(|known| wanted(&known.lane));
        of.limited.iter().filter(is_wanted).copied().collect()
    }

    pub fn lanes_in(&self, namespace: &str, wanted: impl Fn(&Lane) -> bool) -> Vec<i32> {
        let Some(of) = self.by_namespace.get(namespace) else { return Vec::new() };
        let plain = of.queues.values().flat_map(HashMap::values).flatten();
        let mut found: Vec<i32> = plain.filter(|(_, lane)| wanted(lane)).map(|(id, _)| *id).collect();
        found.sort_unstable();
        found.extend(self.limited_lanes(namespace, wanted));
        found
    }

    pub fn lanes_of(&self, executor: Executor) -> Vec<i32> {
        let queues = self.by_namespace.values().filter_map(|of| of.queues.get(&executor));
        let mut found: Vec<i32> = queues.flat_map(HashMap::values).flat_map(BTreeMap::keys).copied().collect();
        let below: Vec<i32> = found.iter().filter_map(|id| self.below.get(id)).flatten().copied().collect();
        found.extend(below);
        found.sort_unstable();
        found
    }

    pub fn lanes_under(&self, namespace: &str, key: &Key) -> Vec<i32> {
        let sharing = self.by_namespace.get(namespace).and_then(|of| of.keys.get(key));
        sharing.map(|sharing| sharing.lanes.clone()).unwrap_or_default()
    }

    pub fn sharing<'a>(
        &self,
        namespace: &str,
        limits: impl Iterator<Item = &'a Limit>,
        most: usize,
    ) -> Option<Vec<i32>> {
        let Some(of) = self.by_namespace.get(namespace) else { return Some(Vec::new()) };
        let keys: HashSet<&Key> = limits.map(|limit| &limit.key).collect();
        let mut found = BTreeSet::new();
        for sharing in keys.into_iter().filter_map(|key| of.keys.get(key)) {
            if sharing.lanes.len() > most {
                return None;
            }
            found.extend(&sharing.lanes);
            if found.len() > most {
                return None;
            }
        }
        Some(found.into_iter().collect())
    }

    pub fn freed_by(&self, lane: &Lane) -> Vec<Arc<Lane>> {
        let mut bases = BTreeSet::new();
        if lane.limits.is_empty() {
            bases.extend(self.numbers.get(lane).filter(|id| self.below.contains_key(id)));
        } else if let Some(of) = self.by_namespace.get(&lane.namespace) {
            let sharing = distinct_keys(lane).filter_map(|key| of.keys.get(key));
            bases.extend(sharing.flat_map(|sharing| &sharing.bases).map(|(id, _)| *id));
        }
        bases.iter().filter_map(|id| self.by_id.get(id)).map(|known| known.lane.clone()).collect()
    }
}

/// A rule may say two things of a lane.
fn distinct_keys(lane: &Lane) -> impl Iterator<Item = &Key> {
    let limits = &lane.limits;
    limits.iter().enumerate().filter(|(n, it)| limits[..*n].iter().all(|e| e.key != it.key)).map(|(_, it)| &it.key)
}
