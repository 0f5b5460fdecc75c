//! Lanes, namespaces and policies by their numbers: small tables that only grow, so what was read once stays true.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Weak};

use comeback_core::admission::{Limit, Rule};
use comeback_core::{Lane, Policy, dialect};
use parking_lot::{Mutex, RwLock};
use sha2::{Digest, Sha256};

use crate::StoreError;
use crate::row::corrupt;
use crate::rules::{RuleBook, limits_from_json, limits_to_json};
use crate::types::{ClaimRequest, Submission};

#[derive(Default)]
pub struct Dictionary {
    inner: RwLock<Inner>,
    /// Policies that callers hold and use again and again: their text need not be made each time.
    texts: Mutex<HashMap<usize, (Weak<Policy>, i32)>>,
    rules: RwLock<Arc<RuleBook>>,
    /// How often a lane was left alone because a rule had no room.
    pub held: AtomicU64,
    /// The same because of a dependency.
    pub held_back: AtomicU64,
}

/// More than this are not remembered by where they are.
const MOST_HELD: usize = 1_024;

/// What submissions speak of that has no number yet.
#[derive(Default)]
pub struct News {
    pub namespaces: Vec<String>,
    pub lanes: Vec<Arc<Lane>>,
    pub policies: Vec<PolicyText>,
}

#[derive(Default)]
struct Inner {
    namespaces: HashMap<String, i32>,
    namespace_names: HashMap<i32, Arc<str>>,
    /// Without those that have limits.
    lanes: HashMap<Arc<Lane>, i32>,
    ruled: BTreeMap<i32, Arc<Lane>>,
    ruled_numbers: HashMap<Arc<Lane>, i32>,
    ruled_namespaces: HashSet<String>,
    lanes_by_id: HashMap<i32, (Arc<Lane>, i32)>,
    policies: HashMap<[u8; 32], i32>,
    policies_by_id: HashMap<i32, Arc<Policy>>,
    /// What a newer build has written and this one cannot read.
    strange_lanes: BTreeSet<i32>,
    strange_policies: BTreeSet<i32>,
}

/// How the limits of a lane are known before it has a number.
pub struct LimitsText {
    pub body: String,
    pub digest: [u8; 32],
}

impl LimitsText {
    pub fn of(lane: &Lane) -> LimitsText {
        let body = limits_to_json(&lane.limits);
        let digest = Sha256::digest(body.as_bytes()).into();
        LimitsText { body, digest }
    }
}

/// How a policy is known before it has a number.
pub struct PolicyText {
    pub body: String,
    pub digest: [u8; 32],
}

impl PolicyText {
    pub fn of(policy: &Policy) -> PolicyText {
        let body = policy.to_json().to_string();
        let digest = Sha256::digest(body.as_bytes()).into();
        PolicyText { body, digest }
    }
}

/// Lanes grouped by their namespace, so many of each at most; those that cannot be read are left out.
pub fn by_namespace(dictionary: &Dictionary, lanes: &[i32], most: u32) -> Vec<Vec<i32>> {
    let mut groups: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for lane in lanes.iter().filter(|lane| dictionary.lane(**lane).is_some()) {
        if let Some(namespace) = dictionary.lane_namespace(*lane) {
            let group = groups.entry(namespace).or_default();
            if group.len() < most as usize {
                group.push(*lane);
            }
        }
    }
    groups.into_values().collect()
}

impl Dictionary {
    pub fn namespace(&self, name: &str) -> Option<i32> {
        self.inner.read().namespaces.get(name).copied()
    }

    pub fn namespace_count(&self) -> usize {
        self.inner.read().namespaces.len()
    }

    pub fn namespace_name(&self, id: i32) -> Option<Arc<str>> {
        self.inner.read().namespace_names.get(&id).cloned()
    }

    pub fn learn_namespace(&self, id: i32, name: &str) {
        let mut inner = self.inner.write();
        inner.namespaces.insert(name.to_owned(), id);
        inner.namespace_names.insert(id, name.into());
    }

    pub fn lane_id(&self, lane: &Arc<Lane>) -> Option<i32> {
        let inner = self.inner.read();
        let numbers = if lane.limits.is_empty() { &inner.lanes } else { &inner.ruled_numbers };
        numbers.get(lane).copied()
    }

    pub fn lane(&self, id: i32) -> Option<Arc<Lane>> {
        self.inner.read().lanes_by_id.get(&id).map(|(lane, _)| lane.clone())
    }

    pub fn lane_namespace(&self, id: i32) -> Option<i32> {
        self.inner.read().lanes_by_id.get(&id).map(|(_, namespace)| *namespace)
    }

    pub fn learn_lane(&self, id: i32, namespace: i32, lane: Lane) -> Arc<Lane> {
        let mut inner = self.inner.write();
        if let Some((known, _)) = inner.lanes_by_id.get(&id) {
            return known.clone();
        }
        let lane = Arc::new(lane);
        inner.lanes.insert(lane.clone(), id);
        inner.lanes_by_id.insert(id, (lane.clone(), namespace));
        lane
    }

    /// A lane with limits, by the number of the same without; whether that is known.
    pub fn learn_ruled_lane(&self, id: i32, unruled: i32, limits: &str) -> bool {
        let mut inner = self.inner.write();
        if inner.ruled.contains_key(&id) || inner.strange_lanes.contains(&id) {
            return true;
        }
        let (Some((lane, namespace)), Some(limits)) =
            (inner.lanes_by_id.get(&unruled).cloned(), limits_from_json(limits))
        else {
            inner.strange_lanes.insert(id);
            return false;
        };
        let lane = Arc::new(Lane { limits, ..(*lane).clone() });
        inner.ruled_numbers.insert(lane.clone(), id);
        inner.ruled_namespaces.insert(lane.namespace.clone());
        inner.ruled.insert(id, lane.clone());
        inner.lanes_by_id.insert(id, (lane, namespace));
        true
    }

    pub fn last_ruled_lane(&self) -> Option<i32> {
        self.inner.read().ruled.last_key_value().map(|(id, _)| *id)
    }

    /// Whether anything in this namespace may fall under a rule.
    pub fn is_ruled(&self, namespace: &str) -> bool {
        self.inner.read().ruled_namespaces.contains(namespace) || !self.rules.read().of(namespace).is_empty()
    }

    pub fn rules(&self) -> Arc<RuleBook> {
        self.rules.read().clone()
    }

    /// Whatever was known before.
    pub fn set_rules(&self, book: RuleBook) {
        *self.rules.write() = Arc::new(book);
    }

    /// Later ones stay.
    pub fn learn_rules(&self, book: RuleBook) -> Arc<RuleBook> {
        let mut rules = self.rules.write();
        if book.generation >= rules.generation {
            *rules = Arc::new(book);
        }
        rules.clone()
    }

    /// The lanes with limits that have a key in common with these, themselves included.
    pub fn sharing<'a>(&self, limits: impl Iterator<Item = &'a Limit>) -> Vec<(i32, Arc<Lane>)> {
        let keys: HashSet<&comeback_core::admission::Key> = limits.map(|limit| &limit.key).collect();
        let inner = self.inner.read();
        let shares = |lane: &Lane| lane.limits.iter().any(|limit| keys.contains(&limit.key));
        inner.ruled.iter().filter(|(_, lane)| shares(lane)).map(|(id, lane)| (*id, lane.clone())).collect()
    }

    /// The lanes whose tasks are under a dependency.
    pub fn under(&self, namespace: &str, dependency: &str) -> Vec<i32> {
        let named = |lane: &Lane| lane.limits.iter().any(|limit| limit.key.dependency() == Some(dependency));
        let inner = self.inner.read();
        let ruled = inner.ruled.iter().filter(|(_, lane)| lane.namespace == namespace && named(lane));
        ruled.map(|(id, _)| *id).collect()
    }

    pub fn is_guarded(&self, namespace: &str, dependency: &str) -> bool {
        let is_it = |rule: &Rule| rule.is_guard() && rule.matcher.dependency.as_deref() == Some(dependency);
        self.rules.read().of(namespace).iter().any(is_it)
    }

    /// Where somebody may start when one of this lane no longer runs. One that was leased before a rule came says nothing of it.
    pub fn freed_by(&self, lane: &Lane) -> Vec<Arc<Lane>> {
        if !self.is_ruled(&lane.namespace) {
            return Vec::new();
        }
        let sharing = match lane.limits.as_slice() {
            [] => self.lanes_where(|it| !it.limits.is_empty() && it.is_beside(lane)),
            limits => self.sharing(limits.iter()),
        };
        let mut distinct: Vec<Arc<Lane>> = Vec::new();
        for (_, lane) in sharing {
            if !distinct.iter().any(|other| other.is_beside(&lane)) {
                distinct.push(lane);
            }
        }
        distinct
    }

    /// The lanes without limits that a request may be served from.
    pub fn lanes_for(&self, request: &ClaimRequest) -> Vec<(i32, Arc<Lane>)> {
        let inner = self.inner.read();
        let wanted = inner.lanes.iter().filter(|(lane, _)| request.wants(lane));
        let mut lanes: Vec<_> = wanted.map(|(lane, id)| (*id, lane.clone())).collect();
        lanes.sort_unstable_by_key(|(id, _)| *id);
        lanes
    }

    /// All lanes that are wanted, with limits or without.
    pub fn lanes_where(&self, wanted: impl Fn(&Lane) -> bool) -> Vec<(i32, Arc<Lane>)> {
        let inner = self.inner.read();
        let mut lanes: Vec<_> = inner.lanes_by_id.iter().filter(|(_, (lane, _))| wanted(lane)).collect();
        lanes.sort_unstable_by_key(|(id, _)| **id);
        lanes.into_iter().map(|(id, (lane, _))| (*id, lane.clone())).collect()
    }

    /// Of those without limits that were seen, whether they could be read or not.
    pub fn lane_count(&self) -> usize {
        let inner = self.inner.read();
        inner.lanes.len() + inner.strange_lanes.range(..crate::rules::RULED_FROM).count()
    }

    /// Lanes whose tasks are left to a newer build.
    pub fn strange_lanes(&self) -> Vec<i32> {
        self.inner.read().strange_lanes.iter().copied().collect()
    }

    /// Whether this is news.
    pub fn note_strange_lane(&self, id: i32) -> bool {
        self.inner.write().strange_lanes.insert(id)
    }

    pub fn note_strange_policy(&self, id: i32) -> bool {
        self.inner.write().strange_policies.insert(id)
    }

    /// Whether it was seen, readable or not.
    pub fn has_seen_lane(&self, id: i32) -> bool {
        let inner = self.inner.read();
        inner.lanes_by_id.contains_key(&id) || inner.strange_lanes.contains(&id)
    }

    pub fn has_seen_policy(&self, id: i32) -> bool {
        let inner = self.inner.read();
        inner.policies_by_id.contains_key(&id) || inner.strange_policies.contains(&id)
    }

    pub fn policy_id(&self, policy: &Arc<Policy>) -> Option<i32> {
        let place = Arc::as_ptr(policy) as usize;
        if let Some((held, id)) = self.texts.lock().get(&place)
            && std::ptr::eq(held.as_ptr(), Arc::as_ptr(policy))
            && held.strong_count() > 0
        {
            return Some(*id);
        }
        let id = self.inner.read().policies.get(&PolicyText::of(policy).digest).copied()?;
        let mut held = self.texts.lock();
        if held.len() >= MOST_HELD {
            held.retain(|_, (policy, _)| policy.strong_count() > 0);
        }
        if held.len() < MOST_HELD {
            held.insert(place, (Arc::downgrade(policy), id));
        }
        Some(id)
    }

    /// What must be given a number before these can be stored; nothing when all of it has one.
    pub fn news(&self, submissions: &[Submission]) -> Option<News> {
        let mut news = News::default();
        for submission in submissions {
            if self.namespace(&submission.namespace).is_none() {
                news.namespaces.push(submission.namespace.clone());
            }
            for new in &submission.tasks {
                if self.lane_id(&new.task.lane).is_none() && !news.lanes.contains(&new.task.lane) {
                    news.lanes.push(new.task.lane.clone());
                }
                if let Some(policy) = &new.policy
                    && self.policy_id(policy).is_none()
                {
                    let text = PolicyText::of(policy);
                    if news.policies.iter().all(|other| other.digest != text.digest) {
                        news.policies.push(text);
                    }
                }
            }
        }
        let is_known = news.namespaces.is_empty() && news.lanes.is_empty() && news.policies.is_empty();
        news.namespaces.extend(news.lanes.iter().map(|lane| lane.namespace.clone()));
        (!is_known).then_some(news)
    }

    /// The same for a policy alone.
    pub fn news_of(&self, policy: &Arc<Policy>) -> Option<News> {
        let is_new = self.policy_id(policy).is_none();
        is_new.then(|| News { policies: vec![PolicyText::of(policy)], ..News::default() })
    }

    pub fn policy(&self, id: i32) -> Option<Arc<Policy>> {
        self.inner.read().policies_by_id.get(&id).cloned()
    }

    pub fn learn_policy(&self, id: i32, body: &str) -> Result<Arc<Policy>, StoreError> {
        let policy = Arc::new(dialect::parse_stored(body).map_err(|fault| corrupt(format!("policy {id}: {fault}")))?);
        let digest = Sha256::digest(body.as_bytes()).into();
        let mut inner = self.inner.write();
        inner.policies.insert(digest, id);
        Ok(inner.policies_by_id.entry(id).or_insert(policy).clone())
    }
}
