//! Lanes, namespaces and policies by their numbers.
//!
//! Lanes are indexed by namespace, executor and queue: a claim looks at the lanes of its own namespace and queues only, and never
//! at those of others. Lanes with limits hang below the same lane without limits, their base.
//!
//! # Numbers that are forgotten
//!
//! Lanes without a task and policies that no task uses are deleted (`Store::forget_unused`). Whoever stores a task with a number
//! from here must be sure that the number is still good. That is what the generation in `rule_state` is for:
//!
//! - A submit reads its rules, and with them a generation G, before it looks up any number, and the database refuses it unless G is
//!   still the generation within the transaction that stores it. On PostgreSQL that read holds a lock on `rule_state` until the end
//!   of the transaction; on SQLite there is one writer.
//! - Who forgets takes that lock exclusively, deletes only lanes that no task is in, and raises the generation in the same
//!   transaction. So every submit is either committed before the look at the tasks, and its lanes stay, or is refused.
//! - A process that sees a higher generation first drops the numbers that were forgotten ([`Dictionary::forget`]) and only then
//!   makes the new generation known ([`Dictionary::learn_rules`]). So a submit that reads the new generation finds no old number.
//! - What is learnt is remembered only if nothing was forgotten since it was read ([`Dictionary::learn`] with the generation of
//!   that moment), so an answer that comes late does not bring an old number back.
//! - The highest number of each table is never deleted, so no number is given twice.

mod index;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use comeback_core::admission::{Key, Limit, Rule};
use comeback_core::{Executor, Lane, Policy, Quota, QuotaExceeded, Quotas};
use parking_lot::RwLock;
use sha2::{Digest, Sha256};

use crate::policies::Policies;
pub use crate::policies::PolicyText;
use crate::rules::{RuleBook, limits_to_json};
use crate::{ClaimRequest, Submission};
use index::Index;
pub use index::Learning;

#[derive(Default)]
pub struct Dictionary {
    index: RwLock<Index>,
    pub policies: Policies,
    rules: RwLock<Arc<RuleBook>>,
    quotas: RwLock<Quotas>,
    /// Grows with every lane that is learnt.
    version: AtomicU64,
    /// How often a lane was left alone because a rule had no room.
    pub held: AtomicU64,
    /// The same because of a dependency.
    pub held_back: AtomicU64,
}

/// Lanes and policies of submissions that have no number yet.
#[derive(Clone, Default)]
pub struct NewEntries {
    pub namespaces: Vec<String>,
    pub lanes: Vec<Arc<Lane>>,
    /// With the namespace that brings each.
    pub policies: Vec<(String, PolicyText)>,
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

/// Which of two walks through ready lanes goes on: that through lanes without limits, or that through lanes with limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Walk {
    Plain,
    Limited,
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
        self.index.read().namespaces.get(name).copied()
    }

    pub fn namespace_count(&self) -> usize {
        self.index.read().namespaces.len()
    }

    pub fn namespace_name(&self, id: i32) -> Option<Arc<str>> {
        self.index.read().namespace_names.get(&id).cloned()
    }

    pub fn learn_namespace(&self, id: i32, name: &str) {
        self.index.write().add_namespace(id, name);
    }

    /// The namespaces that have lanes, of an executor or of any.
    pub fn lane_namespaces(&self, executor: Option<Executor>) -> Vec<String> {
        self.index.read().lane_namespaces(executor)
    }

    pub fn lane_id(&self, lane: &Arc<Lane>) -> Option<i32> {
        self.index.read().numbers.get(lane).copied()
    }

    pub fn lane(&self, id: i32) -> Option<Arc<Lane>> {
        self.index.read().by_id.get(&id).map(|known| known.lane.clone())
    }

    pub fn lane_namespace(&self, id: i32) -> Option<i32> {
        self.index.read().by_id.get(&id).map(|known| known.namespace)
    }

    /// The number of the same lane without limits: what ended tasks and the bodies of tasks refer to.
    pub fn base(&self, id: i32) -> i32 {
        if id < crate::rules::RULED_FROM {
            return id;
        }
        self.index.read().by_id.get(&id).map_or(id, |known| known.base)
    }

    /// The same of a lane that a task was read with. Its own number may have been forgotten since, because the task is no longer
    /// in it; what is written by this is the base alone.
    pub fn base_id(&self, lane: &Arc<Lane>) -> Option<i32> {
        let index = self.index.read();
        match index.numbers.get(lane) {
            Some(id) if *id >= crate::rules::RULED_FROM => index.by_id.get(id).map(|known| known.base),
            Some(id) => Some(*id),
            None if lane.limits.is_empty() => None,
            None => index.numbers.get(&lane.unruled()).copied(),
        }
    }

    /// Adds what was read while `generation` was in force, unless something was forgotten since. Whether it was added.
    pub fn learn(&self, generation: i64, add: impl FnOnce(&mut Learning<'_>)) -> bool {
        let mut index = self.index.write();
        if generation < index.forgotten {
            return false;
        }
        add(&mut Learning(&mut index));
        self.version.fetch_add(1, Ordering::Release);
        true
    }

    /// Drops lanes and numbers of policies that the database has forgotten up to a generation.
    pub fn forget(&self, generation: i64, lanes: &[i32], policies: &BTreeSet<i32>) {
        let mut index = self.index.write();
        index.forgotten = index.forgotten.max(generation);
        index.remove(lanes);
        drop(index);
        self.policies.forget(policies);
    }

    /// Puts lanes that were read while `generation` was in force in place of all that were known: it is not known which of those
    /// were forgotten.
    pub fn replace(&self, generation: i64, add: impl FnOnce(&mut Learning<'_>)) {
        let mut index = self.index.write();
        index.forgotten = index.forgotten.max(generation);
        index.clear();
        add(&mut Learning(&mut index));
        drop(index);
        self.policies.forget_all();
        self.version.fetch_add(1, Ordering::Release);
    }

    /// The generation up to which forgotten numbers were dropped.
    pub fn forgotten(&self) -> i64 {
        self.index.read().forgotten
    }

    /// Changes whenever a lane is learnt.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// The highest numbers of lanes that were seen: of those without limits, and of those with.
    pub fn highest_lanes(&self) -> (i32, i32) {
        let index = self.index.read();
        (index.highest, index.highest_limited)
    }

    /// Whether anything in this namespace may fall under a rule.
    pub fn is_ruled(&self, namespace: &str) -> bool {
        self.index.read().limited_in(namespace) > 0 || !self.rules.read().of(namespace).is_empty()
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

    /// The lanes with limits that have a key in common with these, themselves included. Nothing where they are more than `most`:
    /// then it is cheaper to count all that runs under limits.
    pub fn sharing<'a>(
        &self,
        namespace: &str,
        limits: impl Iterator<Item = &'a Limit>,
        most: usize,
    ) -> Option<Vec<i32>> {
        self.index.read().sharing(namespace, limits, most)
    }

    /// The lanes that count under a key.
    pub fn lanes_under(&self, namespace: &str, key: &Key) -> Vec<i32> {
        self.index.read().lanes_under(namespace, key)
    }

    /// The lanes whose tasks are under a dependency.
    pub fn under(&self, namespace: &str, dependency: &str) -> Vec<i32> {
        let named = |lane: &Lane| lane.limits.iter().any(|limit| limit.key.dependency() == Some(dependency));
        self.limited_lanes(namespace, named)
    }

    /// The lanes with limits of a namespace that are wanted.
    pub fn limited_lanes(&self, namespace: &str, wanted: impl Fn(&Lane) -> bool) -> Vec<i32> {
        self.index.read().limited_lanes(namespace, wanted)
    }

    pub fn is_guarded(&self, namespace: &str, dependency: &str) -> bool {
        let is_it = |rule: &Rule| rule.is_guard() && rule.matcher.dependency.as_deref() == Some(dependency);
        self.rules.read().of(namespace).iter().any(is_it)
    }

    /// Where somebody may start when one of this lane no longer runs: lanes without limits below which others wait under the same
    /// rules. One that was leased before a rule came says nothing of it.
    pub fn freed_by(&self, lane: &Lane) -> Vec<Arc<Lane>> {
        if !self.is_ruled(&lane.namespace) {
            return Vec::new();
        }
        self.index.read().freed_by(lane)
    }

    /// The lanes without limits that a request may be served from, by their numbers.
    pub fn lanes_for(&self, request: &ClaimRequest) -> Vec<(i32, Arc<Lane>)> {
        self.index.read().lanes_for(request)
    }

    /// The numbers of the lanes with limits below these, in order.
    pub fn limited_below(&self, bases: &[(i32, Arc<Lane>)]) -> Vec<i32> {
        self.index.read().limited_below(bases)
    }

    /// All lanes of a namespace that are wanted, with limits or without.
    pub fn lanes_in(&self, namespace: &str, wanted: impl Fn(&Lane) -> bool) -> Vec<i32> {
        self.index.read().lanes_in(namespace, wanted)
    }

    /// All lanes of an executor in all namespaces, with limits or without.
    pub fn lanes_of(&self, executor: Executor) -> Vec<i32> {
        self.index.read().lanes_of(executor)
    }

    /// The lanes where each step is a row of history.
    pub fn slow_lanes(&self) -> Vec<i32> {
        self.index.read().slow.iter().copied().collect()
    }

    /// Where the next walk through the ready lanes of a namespace begins, if the last one did not come to the end.
    pub fn turn(&self, namespace: &str, walk: Walk) -> i32 {
        self.index.read().turn(namespace, walk).load(Ordering::Relaxed)
    }

    pub fn set_turn(&self, namespace: &str, walk: Walk, last: i32) {
        self.index.read().turn(namespace, walk).store(last, Ordering::Relaxed);
    }

    /// Lanes whose tasks are left to a newer build.
    pub fn strange_lanes(&self) -> Vec<i32> {
        self.index.read().strange.iter().copied().collect()
    }

    /// Whether it was seen, readable or not.
    pub fn has_seen_lane(&self, id: i32) -> bool {
        let index = self.index.read();
        index.by_id.contains_key(&id) || index.strange.contains(&id)
    }

    pub fn policy_id(&self, policy: &Arc<Policy>) -> Option<i32> {
        self.policies.number(policy)
    }

    pub fn set_quotas(&self, quotas: &Quotas) {
        *self.quotas.write() = quotas.clone();
    }

    /// Refuses news that would give a namespace more lanes than it may have.
    pub fn check_lanes(&self, news: &NewEntries) -> Result<(), QuotaExceeded> {
        let mut plain: HashMap<&str, HashSet<Lane>> = HashMap::new();
        let mut limited: HashMap<&str, u64> = HashMap::new();
        let index = self.index.read();
        for lane in &news.lanes {
            let base = lane.unruled();
            if !index.numbers.contains_key(&base) {
                plain.entry(&lane.namespace).or_default().insert(base);
            }
            if !lane.limits.is_empty() && !index.numbers.contains_key(lane) {
                *limited.entry(&lane.namespace).or_default() += 1;
            }
        }
        let quotas = self.quotas.read();
        for (namespace, new) in plain {
            let used = index.plain_in(namespace) as u64 + new.len() as u64;
            quotas.check(Quota::Lanes, namespace, used.saturating_sub(1))?;
        }
        for (namespace, new) in limited {
            let used = index.limited_in(namespace) as u64 + new;
            quotas.check(Quota::RuleKeys, namespace, used.saturating_sub(1))?;
        }
        Ok(())
    }

    /// Refuses so many policies of a namespace, were they all stored.
    pub fn check_policies(&self, namespace: &str, count: u64) -> Result<(), QuotaExceeded> {
        self.quotas.read().check(Quota::Policies, namespace, count.saturating_sub(1))
    }

    /// Lanes and policies that need a number before these can be stored; None if all have one.
    pub fn news(&self, submissions: &[Submission]) -> Option<NewEntries> {
        let mut news = NewEntries::default();
        let mut lanes: HashSet<Arc<Lane>> = HashSet::new();
        let mut digests: HashSet<[u8; 32]> = HashSet::new();
        let mut met: HashSet<usize> = HashSet::new();
        for submission in submissions {
            if self.namespace(&submission.namespace).is_none() {
                news.namespaces.push(submission.namespace.clone());
            }
            for new in &submission.tasks {
                if self.lane_id(&new.task.lane).is_none() && lanes.insert(new.task.lane.clone()) {
                    news.lanes.push(new.task.lane.clone());
                }
                if let Some(policy) = &new.policy
                    && !met.contains(&(Arc::as_ptr(policy) as usize))
                    && self.policy_id(policy).is_none()
                {
                    met.insert(Arc::as_ptr(policy) as usize);
                    let text = PolicyText::of(policy);
                    if digests.insert(text.digest) {
                        news.policies.push((submission.namespace.clone(), text));
                    }
                }
            }
        }
        let is_known = news.namespaces.is_empty() && news.lanes.is_empty() && news.policies.is_empty();
        news.namespaces.extend(news.lanes.iter().map(|lane| lane.namespace.clone()));
        news.namespaces.sort_unstable();
        news.namespaces.dedup();
        (!is_known).then_some(news)
    }

    /// The same for a policy alone.
    pub fn news_of(&self, namespace: &str, policy: &Arc<Policy>) -> Option<NewEntries> {
        let is_new = self.policy_id(policy).is_none();
        let policies = || vec![(namespace.to_owned(), PolicyText::of(policy))];
        is_new.then(|| NewEntries { policies: policies(), ..NewEntries::default() })
    }

    /// The same for lanes alone.
    pub fn news_of_lanes(&self, lanes: &[Arc<Lane>]) -> Option<NewEntries> {
        let mut met: HashSet<&Arc<Lane>> = HashSet::new();
        let lanes: Vec<Arc<Lane>> =
            lanes.iter().filter(|lane| self.lane_id(lane).is_none() && met.insert(*lane)).cloned().collect();
        let mut namespaces: Vec<String> = lanes.iter().map(|lane| lane.namespace.clone()).collect();
        namespaces.sort_unstable();
        namespaces.dedup();
        (!lanes.is_empty()).then(|| NewEntries { namespaces, lanes, ..NewEntries::default() })
    }
}
