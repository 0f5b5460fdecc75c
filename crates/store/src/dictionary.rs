//! Lanes, namespaces and policies by their numbers: small tables that only grow, so what was read once stays true.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Weak};

use comeback_core::{Lane, Policy, dialect};
use parking_lot::{Mutex, RwLock};
use sha2::{Digest, Sha256};

use crate::StoreError;
use crate::row::corrupt;
use crate::types::{ClaimRequest, Submission};

#[derive(Default)]
pub struct Dictionary {
    inner: RwLock<Inner>,
    /// Policies that callers hold and use again and again: their text need not be made each time.
    held: Mutex<HashMap<usize, (Weak<Policy>, i32)>>,
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
    lanes: HashMap<Arc<Lane>, i32>,
    lanes_by_id: HashMap<i32, (Arc<Lane>, i32)>,
    policies: HashMap<[u8; 32], i32>,
    policies_by_id: HashMap<i32, Arc<Policy>>,
    /// What a newer build has written and this one cannot read.
    strange_lanes: BTreeSet<i32>,
    strange_policies: BTreeSet<i32>,
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

impl Dictionary {
    pub fn namespace(&self, name: &str) -> Option<i32> {
        self.inner.read().namespaces.get(name).copied()
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
        self.inner.read().lanes.get(lane).copied()
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

    /// The lanes a request may be served from, in no particular order.
    pub fn lanes_for(&self, request: &ClaimRequest) -> Vec<(i32, Arc<Lane>)> {
        self.lanes_where(|lane| request.wants(lane))
    }

    pub fn lanes_where(&self, wanted: impl Fn(&Lane) -> bool) -> Vec<(i32, Arc<Lane>)> {
        let inner = self.inner.read();
        let mut lanes: Vec<_> =
            inner.lanes.iter().filter(|(lane, _)| wanted(lane)).map(|(lane, id)| (*id, lane.clone())).collect();
        lanes.sort_unstable_by_key(|(id, _)| *id);
        lanes
    }

    /// Of those that were seen, whether they could be read or not.
    pub fn lane_count(&self) -> usize {
        let inner = self.inner.read();
        inner.lanes.len() + inner.strange_lanes.len()
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
        if let Some((held, id)) = self.held.lock().get(&place)
            && std::ptr::eq(held.as_ptr(), Arc::as_ptr(policy))
            && held.strong_count() > 0
        {
            return Some(*id);
        }
        let id = self.inner.read().policies.get(&PolicyText::of(policy).digest).copied()?;
        let mut held = self.held.lock();
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
