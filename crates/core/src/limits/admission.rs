//! Admission: how many tasks of one sort may run at the same moment, and how much they may weigh together.
//!
//! A rule says which tasks it is about, and what all of them that run may come to. Where it is kept `per` something, each value
//! has a limit of its own. Which limits a task falls under is worked out once and kept with it; what is running is counted when
//! somebody wants to start one more. Who waits for a retry runs nothing and is not counted (model I-9).
//!
//! Over 500 lines: rules, keys and the admission of a batch are one calculation.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::dependency::Allowance;
use crate::invalid::Invalid;
use crate::task::{Executor, Lane, State, Tally};
use crate::time::Timestamp;

pub use crate::task::limit::{GUARD, Key, Limit, Part};

/// Labels in `match` and `per`, at most.
pub const MOST_LABELS: usize = 16;
/// The highest limit.
pub const MOST: u32 = 1_000_000_000;

/// A rule on how many matching tasks may run at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Its name.
    pub name: String,
    /// The tasks it is about.
    #[serde(default, rename = "match", skip_serializing_if = "Matcher::is_empty")]
    pub matcher: Matcher,
    /// Labels: one limit for each combination of their values. A task that lacks one of them is not counted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub per: Vec<String>,
    /// The limit.
    #[serde(flatten)]
    pub bound: Bound,
    /// Fair share: among tasks of one priority, the value of `per` with the fewest running goes first.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fair: bool,
    /// Binds only the tasks that name it; it counts whatever it matches.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub carried: bool,
}

/// The limit on all that run: their number, or the work they still have to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Bound {
    /// A limit on their number.
    #[serde(rename = "max_running")]
    Running(u32),
    /// A limit on their weight.
    #[serde(rename = "capacity")]
    Capacity(u32),
}

/// Which tasks a rule is about; what is not said matches anything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Matcher {
    /// The queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// The kind of task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Labels with their values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The dependency.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dependency: Option<String>,
}

impl Matcher {
    fn is_empty(&self) -> bool {
        *self == Matcher::default()
    }

    /// The labels are asked for only where the rest fits.
    fn fits(&self, lane: &Lane, labels: &BTreeMap<String, String>, hosts: &[&str]) -> bool {
        let depends_on = |name: &String| match &lane.dependency {
            Some(dependency) => dependency == name,
            None => hosts.contains(&name.as_str()),
        };
        self.queue.as_ref().is_none_or(|queue| *queue == lane.queue)
            && self.kind.as_ref().is_none_or(|kind| *kind == lane.kind)
            && self.dependency.as_ref().is_none_or(depends_on)
            && self.labels.iter().all(|(name, value)| labels.get(name) == Some(value))
    }
}

impl Rule {
    /// The rule that puts all tasks with a dependency under its guards; what it allows is said by its standing.
    pub fn guarding(dependency: &str) -> Rule {
        Rule {
            name: format!("{GUARD}{dependency}"),
            matcher: Matcher { dependency: Some(dependency.to_owned()), ..Matcher::default() },
            per: Vec::new(),
            bound: Bound::Running(MOST),
            fair: false,
            carried: false,
        }
    }

    /// Whether it stands for a dependency.
    pub fn is_guard(&self) -> bool {
        self.name.starts_with(GUARD)
    }

    /// Its faults.
    pub fn check(&self) -> Invalid {
        let mut faults = Invalid::default();
        let (path, most) = match self.bound {
            Bound::Running(most) => ("max_running", most),
            Bound::Capacity(most) => ("capacity", most),
        };
        if most > MOST {
            faults.push(path, format!("may be {MOST} at most"));
        }
        for (path, count) in [("per", self.per.len()), ("match.labels", self.matcher.labels.len())] {
            if count > MOST_LABELS {
                faults.push(path, format!("may name {MOST_LABELS} labels at most"));
            }
        }
        if self.fair && (self.per.is_empty() || self.carried) {
            faults.push("fair", "is between the values of labels: name them in `per`");
        }
        if self.per.iter().collect::<BTreeSet<_>>().len() < self.per.len() {
            faults.push("per", "names a label twice");
        }
        faults
    }

    /// How it relates to a task: one that names it among those it `carries` is bound by it.
    fn limit(
        &self,
        lane: &Lane,
        labels: &BTreeMap<String, String>,
        carries: &[String],
        hosts: &[&str],
    ) -> Option<Limit> {
        let is_bound = !self.carried || carries.contains(&self.name);
        let fits = self.matcher.fits(lane, labels, hosts);
        let carries_it = self.carried && is_bound;
        if !fits && !carries_it {
            return None;
        }
        let per: Vec<Option<String>> = self.per.iter().map(|name| labels.get(name).cloned()).collect();
        let counts = fits && per.iter().all(Option::is_some);
        let part = match (counts, is_bound) {
            (true, true) => Part::Full,
            (true, false) => Part::Counted,
            (false, true) if self.carried => Part::Bound,
            (false, _) => return None,
        };
        Some(Limit { key: Key { rule: self.name.clone(), per }, part })
    }
}

/// All that a task falls under, in one order. One that only stands for others runs nothing: under a rule it would keep out the
/// very tasks that it waits for. A call depends on its host, by any of the names in `hosts`, unless it says what it depends on.
pub fn limits(
    rules: &[Rule],
    lane: &Lane,
    labels: &BTreeMap<String, String>,
    carries: &[String],
    hosts: &[&str],
) -> Vec<Limit> {
    if lane.executor == Executor::Flow {
        return Vec::new();
    }
    let mut limits: Vec<Limit> = rules.iter().filter_map(|rule| rule.limit(lane, labels, carries, hosts)).collect();
    limits.sort_unstable();
    limits
}

/// The names of the host in an address: with its port, where it has one, and without.
pub fn hosts(url: &str) -> Vec<&str> {
    let Some((_, rest)) = url.split_once("://") else { return Vec::new() };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let whole = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let bare = match whole.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => whole,
    };
    let mut names = vec![whole, bare];
    names.dedup();
    names.retain(|name| !name.is_empty());
    names
}

/// The weight of a task: the work it still has to do, or one where it does not say (X1-5).
pub fn weight(tally: &Tally) -> u64 {
    tally
        .expected
        .map_or(1, |expected| u64::from(expected.saturating_sub(tally.success.saturating_add(tally.failures))))
}

/// Whether a task in this state is counted.
pub const fn is_counted(state: State) -> bool {
    state.is_active()
}

/// The running total of one key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// Running tasks.
    pub running: u64,
    /// Their weight.
    pub weight: u64,
}

impl std::ops::AddAssign for Used {
    fn add_assign(&mut self, other: Used) {
        self.running += other.running;
        self.weight += other.weight;
    }
}

/// Why a task may not start now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The counter that is full.
    pub key: Key,
    /// Why.
    pub why: Why,
}

/// Why a counter has no room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// The number is reached.
    Full {
        /// Running tasks.
        running: u64,
        /// The limit.
        most: u32,
    },
    /// The weight is reached.
    NoRoom {
        /// The weight of all that run.
        used: u64,
        /// The weight of this task.
        weight: u64,
        /// The limit.
        capacity: u32,
    },
    /// It alone is more than there may ever be.
    TooLarge {
        /// The weight of this task.
        weight: u64,
        /// The limit.
        capacity: u32,
    },
    /// It lacks a label that the rule is kept per.
    Lacks {
        /// The label.
        label: String,
    },
    /// Its dependency allows no more.
    Held(String),
}

impl Refusal {
    /// Whether it is about this one task and not about all that wait behind it.
    pub fn is_about_the_task(&self) -> bool {
        matches!(self.why, Why::TooLarge { .. })
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Why::Held(words) = &self.why {
            return f.write_str(words);
        }
        match self.key.dependency() {
            Some(dependency) => write!(f, "held by concurrency {dependency}: ")?,
            None => write!(f, "rule {}: ", self.key)?,
        }
        match &self.why {
            Why::Held(_) => Ok(()),
            Why::Full { running, most } => write!(f, "{running} of {most} running"),
            Why::NoRoom { used, weight, capacity } => write!(f, "{used} of {capacity} used, and it needs {weight}"),
            Why::TooLarge { weight, capacity } => {
                write!(f, "it needs {weight}, and there is {capacity}: it never starts")
            }
            Why::Lacks { label } => write!(f, "it has no label {label}, so it never starts"),
        }
    }
}

/// The rules of a namespace and what runs under them: it says who may start, and counts who did.
#[derive(Clone, Debug, Default)]
pub struct Admission {
    rules: HashMap<String, (Bound, Vec<String>)>,
    /// The rules that are fair.
    fair: BTreeSet<String>,
    used: HashMap<Key, Used>,
    guards: HashMap<String, Guard>,
}

/// The allowance of a dependency, and how many of it have been taken here.
#[derive(Clone, Debug)]
struct Guard {
    allowance: Allowance,
    taken: u32,
}

impl Admission {
    /// Counts under these rules; nothing is running yet.
    pub fn new<'a>(rules: impl IntoIterator<Item = &'a Rule>) -> Admission {
        let mut admission = Admission::default();
        for rule in rules {
            admission.rules.insert(rule.name.clone(), (rule.bound, rule.per.clone()));
            if rule.fair {
                admission.fair.insert(rule.name.clone());
            }
        }
        admission
    }

    /// Sets the allowance of a dependency at this moment. One without an allowance is unlimited.
    pub fn guard(&mut self, dependency: &str, allowance: Allowance) {
        self.guards.insert(dependency.to_owned(), Guard { allowance, taken: 0 });
    }

    /// Until when a dependency holds, where it does and that is known.
    pub fn held_until(&self, key: &Key) -> Option<Timestamp> {
        self.guards.get(key.dependency()?)?.allowance.holder?.1
    }

    /// How many were taken of each dependency.
    pub fn taken(&self) -> impl Iterator<Item = (&str, u32)> {
        self.guards.iter().map(|(name, guard)| (name.as_str(), guard.taken))
    }

    /// Whether a rule has a say in who goes first.
    pub fn is_fair(&self) -> bool {
        !self.fair.is_empty()
    }

    /// How many run of those a lane has to share with; nothing where nobody has to be fair to it.
    pub fn share(&self, limits: &[Limit]) -> Option<u64> {
        let fair = limits.iter().filter(|limit| limit.counts() && self.fair.contains(&limit.key.rule));
        fair.map(|limit| self.used(&limit.key).running).max()
    }

    /// Whether a limit can keep anybody out.
    pub fn is_bounded(&self, key: &Key) -> bool {
        key.dependency().is_some() || self.rules.get(&key.rule).is_some_and(|(bound, _)| *bound != Bound::Running(MOST))
    }

    /// So much runs in a lane with these limits.
    pub fn count(&mut self, limits: &[Limit], used: Used) {
        for limit in limits.iter().filter(|limit| limit.counts()) {
            *self.used.entry(limit.key.clone()).or_default() += used;
        }
    }

    /// The running total of a key.
    pub fn used(&self, key: &Key) -> Used {
        self.used.get(key).copied().unwrap_or_default()
    }

    /// Sets running totals.
    pub fn set_used(&mut self, used: Vec<(Key, Used)>) {
        self.used = used.into_iter().collect();
    }

    /// All that is counted, in one order.
    pub fn into_used(self) -> Vec<(Key, Used)> {
        let mut used: Vec<(Key, Used)> = self.used.into_iter().collect();
        used.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        used
    }

    /// A rule that is gone binds nobody.
    pub fn may_start(&self, limits: &[Limit], weight: u64) -> Result<(), Refusal> {
        limits.iter().filter(|limit| limit.binds()).try_for_each(|limit| match self.refusal(&limit.key, weight) {
            Some(why) => Err(Refusal { key: limit.key.clone(), why }),
            None => Ok(()),
        })
    }

    fn refusal(&self, key: &Key, weight: u64) -> Option<Why> {
        let (bound, per) = self.rules.get(&key.rule)?;
        if let Some((_, label)) = key.per.iter().zip(per).find(|(value, _)| value.is_none()) {
            return Some(Why::Lacks { label: label.clone() });
        }
        let used = self.used(key);
        if let Some((dependency, guard)) = key.dependency().and_then(|name| Some((name, self.guards.get(name)?))) {
            let Guard { allowance, taken } = guard;
            if allowance.starts.is_some_and(|starts| starts <= *taken) {
                return Some(Why::Held(allowance.words(dependency).unwrap_or_default()));
            }
            let full = allowance.running.filter(|most| used.running >= u64::from(*most));
            return full.map(|most| Why::Full { running: used.running, most });
        }
        match *bound {
            Bound::Running(most) if used.running >= u64::from(most) => Some(Why::Full { running: used.running, most }),
            Bound::Capacity(capacity) if weight > u64::from(capacity) => Some(Why::TooLarge { weight, capacity }),
            Bound::Capacity(capacity) if used.weight + weight > u64::from(capacity) => {
                Some(Why::NoRoom { used: used.weight, weight, capacity })
            }
            Bound::Running(_) | Bound::Capacity(_) => None,
        }
    }

    /// How many more may start in a lane at most, whatever they weigh.
    pub fn room(&self, limits: &[Limit]) -> u32 {
        let of = |limit: &Limit| match self.rules.get(&limit.key.rule) {
            _ if self.may_start(std::slice::from_ref(limit), 0).is_err() => 0,
            Some(_) if limit.key.dependency().is_some() => self.room_of_guard(&limit.key),
            Some((Bound::Running(most), _)) => {
                most.saturating_sub(u32::try_from(self.used(&limit.key).running).unwrap_or(u32::MAX))
            }
            Some((Bound::Capacity(_), _)) | None => u32::MAX,
        };
        limits.iter().filter(|limit| limit.binds()).map(of).min().unwrap_or(u32::MAX)
    }

    fn room_of_guard(&self, key: &Key) -> u32 {
        let Some(Guard { allowance, taken }) = key.dependency().and_then(|name| self.guards.get(name)) else {
            return u32::MAX;
        };
        let running = u32::try_from(self.used(key).running).unwrap_or(u32::MAX);
        let starts = allowance.starts.map_or(u32::MAX, |starts| starts.saturating_sub(*taken));
        starts.min(allowance.running.map_or(u32::MAX, |most| most.saturating_sub(running)))
    }

    /// Whether what a task weighs has a say in this lane.
    pub fn weighs(&self, limits: &[Limit]) -> bool {
        let is_capacity = |limit: &&Limit| matches!(self.rules.get(&limit.key.rule), Some((Bound::Capacity(_), _)));
        limits.iter().filter(|limit| limit.binds()).any(|limit| is_capacity(&limit))
    }

    /// Admits candidates that may start, in their order, each counted as it is taken. Behind one that must wait, all of its
    /// lane wait, so that small ones never keep a large one out; other lanes go on. A lane in `cut` has more than it gave: behind
    /// its last nothing is taken, because something better may be there.
    pub fn choose(&mut self, candidates: &[Candidate<'_>], cut: &BTreeSet<i32>, most: usize) -> Vec<usize> {
        if self.is_fair() {
            return self.choose_fairly(candidates, cut, most);
        }
        let mut last: HashMap<i32, usize> = HashMap::new();
        for (index, candidate) in candidates.iter().enumerate().filter(|(_, it)| cut.contains(&it.lane)) {
            last.insert(candidate.lane, index);
        }
        let mut waiting: BTreeSet<i32> = BTreeSet::new();
        let mut chosen = Vec::new();
        for (index, candidate) in candidates.iter().enumerate() {
            if chosen.len() >= most {
                break;
            }
            if waiting.contains(&candidate.lane) {
                continue;
            }
            match self.may_start(candidate.limits, candidate.weight) {
                Ok(()) => {
                    self.take(candidate);
                    chosen.push(index);
                }
                Err(refusal) if refusal.is_about_the_task() => {}
                Err(_) => {
                    waiting.insert(candidate.lane);
                    continue;
                }
            }
            if !chosen.is_empty() && last.get(&candidate.lane) == Some(&index) {
                break;
            }
        }
        chosen
    }
}

impl Admission {
    /// One has started.
    fn take(&mut self, candidate: &Candidate<'_>) {
        self.count(candidate.limits, Used { running: 1, weight: candidate.weight });
        for name in candidate.limits.iter().filter_map(|limit| limit.key.dependency()) {
            if let Some(guard) = self.guards.get_mut(name) {
                guard.taken += 1;
            }
        }
    }

    /// The same where a rule is fair: of the best of each lane, the highest priority goes first, then who runs least, then the
    /// order they came in. Those without a share are one party more, counted from here on.
    fn choose_fairly(&mut self, candidates: &[Candidate<'_>], cut: &BTreeSet<i32>, most: usize) -> Vec<usize> {
        let mut lanes: BTreeMap<i32, std::collections::VecDeque<usize>> = BTreeMap::new();
        for (index, candidate) in candidates.iter().enumerate() {
            lanes.entry(candidate.lane).or_default().push_back(index);
        }
        let (mut chosen, mut without) = (Vec::new(), 0);
        while chosen.len() < most {
            let rank = |index: usize| {
                let it = &candidates[index];
                (it.rank, self.share(it.limits).unwrap_or(without), index)
            };
            let best = lanes.iter().filter_map(|(lane, left)| Some((rank(*left.front()?), *lane))).min();
            let Some(((_, _, index), lane)) = best else { break };
            let candidate = &candidates[index];
            match self.may_start(candidate.limits, candidate.weight) {
                Ok(()) => {
                    without += u64::from(self.share(candidate.limits).is_none());
                    self.take(candidate);
                    chosen.push(index);
                }
                Err(refusal) if refusal.is_about_the_task() => {}
                Err(_) => {
                    lanes.remove(&lane);
                    continue;
                }
            }
            let is_empty = lanes.get_mut(&lane).is_none_or(|left| {
                left.pop_front();
                left.is_empty()
            });
            if is_empty && cut.contains(&lane) && !chosen.is_empty() {
                break;
            }
        }
        chosen
    }
}

/// Somebody who could start.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// The number of its lane.
    pub lane: i32,
    /// By its priority: lower goes first.
    pub rank: i16,
    /// The limits it falls under.
    pub limits: &'a [Limit],
    /// Its weight.
    pub weight: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn rule(text: Value) -> Rule {
        serde_json::from_value(text).unwrap()
    }

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn lane(kind: &str) -> Lane {
        Lane { kind: kind.into(), ..Lane::default() }
    }

    /// Parties that share: each gets its turn, whoever came first and however many wait behind it.
    #[test]
    fn who_runs_least_goes_first() {
        let rules = [rule(json!({"name": "t", "per": ["tenant"], "max_running": MOST, "fair": true}))];
        let of = |tenant: &str| limits(&rules, &lane("k"), &labels(&[("tenant", tenant)]), &[], &[]);
        let (a, b) = (of("a"), of("b"));
        let party = |lane: i32| match lane {
            1 => a.as_slice(),
            2 => b.as_slice(),
            _ => &[],
        };
        let chosen = |running: u64, lanes: &[(i32, i16)], most: usize| {
            let mut admission = Admission::new(&rules);
            admission.count(&a, Used { running, weight: running });
            let candidates: Vec<_> = lanes
                .iter()
                .map(|(lane, rank)| Candidate { lane: *lane, rank: *rank, limits: party(*lane), weight: 1 })
                .collect();
            admission.choose(&candidates, &BTreeSet::new(), most)
        };
        // All of a are older.
        let all = [(1, 0), (1, 0), (1, 0), (1, 0), (2, 0), (2, 0)];
        assert_eq!(chosen(0, &all, 4), [0, 4, 1, 5], "turn by turn");
        assert_eq!(chosen(2, &all, 3), [4, 5, 0], "b has some to catch up");
        assert_eq!(chosen(9, &all, 6), [4, 5, 0, 1, 2, 3], "nobody waits for nothing");
        assert_eq!(chosen(9, &[(1, -5), (2, 0)], 1), [0], "priority comes first");
        assert_eq!(
            chosen(0, &[(3, 0), (3, 0), (1, 0), (2, 0)], 4),
            [0, 2, 3, 1],
            "those without a label are a party too"
        );
        assert_eq!(chosen(0, &[(3, 0), (3, 0), (3, 0)], 2), [0, 1], "and among themselves as ever");
        assert!(!rule(json!({"name": "t", "max_running": 5, "fair": true})).check().is_empty());
    }

    /// A fair rule still heeds the allowance of a dependency.
    #[test]
    fn a_fair_choice_takes_no_more_than_a_dependency_allows() {
        let fair = rule(json!({"name": "t", "per": ["tenant"], "max_running": MOST, "fair": true}));
        let rules = [fair, Rule::guarding("psp")];
        let lane = Lane { dependency: Some("psp".into()), ..lane("k") };
        let of = |tenant: &str| limits(&rules, &lane, &labels(&[("tenant", tenant)]), &[], &[]);
        let (a, b) = (of("a"), of("b"));
        let candidate = |lane: i32, limits| Candidate { lane, rank: 0, limits, weight: 1 };
        let candidates = [candidate(1, a.as_slice()), candidate(1, a.as_slice()), candidate(2, b.as_slice())];
        let mut admission = Admission::new(&rules);
        admission.guard("psp", Allowance { starts: Some(2), ..Allowance::ANY });
        assert_eq!(admission.choose(&candidates, &BTreeSet::new(), 10), [0, 2]);
        assert_eq!(admission.taken().collect::<Vec<_>>(), [("psp", 2)]);
    }

    #[test]
    fn a_rule_is_read_and_written_the_same() {
        for text in [
            json!({"name": "a", "max_running": 5}),
            json!({"name": "b", "match": {"kind": "k", "labels": {"x": "y"}}, "per": ["tenant"], "capacity": 10}),
            json!({"name": "~c", "max_running": 1, "carried": true}),
        ] {
            assert_eq!(serde_json::to_value(rule(text.clone())).unwrap(), text);
        }
        assert!(serde_json::from_value::<Rule>(json!({"name": "a"})).is_err(), "a rule needs a limit");
    }

    #[test]
    fn a_rule_is_about_what_it_matches_and_has_a_limit_per_value() {
        let rules =
            [rule(json!({"name": "r", "match": {"kind": "k", "labels": {"x": "y"}}, "per": ["t"], "max_running": 1}))];
        let of = |kind: &str, pairs: &[(&str, &str)]| limits(&rules, &lane(kind), &labels(pairs), &[], &[]);
        let found = of("k", &[("x", "y"), ("t", "acme")]);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].key.to_string(), found[0].part), ("r (acme)".to_owned(), Part::Full));
        assert_ne!(found, of("k", &[("x", "y"), ("t", "other")]));
        assert_eq!(of("other", &[("x", "y"), ("t", "acme")]), []);
        assert_eq!(of("k", &[("x", "z"), ("t", "acme")]), []);
        assert_eq!(of("k", &[("x", "y")]), [], "without the label there is no limit");
    }

    #[test]
    fn a_carried_rule_counts_what_it_matches_and_binds_who_names_it() {
        let rules =
            [rule(json!({"name": "~r", "match": {"kind": "k"}, "per": ["t"], "max_running": 1, "carried": true}))];
        let named = ["~r".to_owned()];
        let part = |kind: &str, pairs: &[(&str, &str)], carries: &[String]| {
            limits(&rules, &lane(kind), &labels(pairs), carries, &[]).first().map(|limit| limit.part)
        };
        assert_eq!(part("k", &[("t", "a")], &[]), Some(Part::Counted));
        assert_eq!(part("k", &[("t", "a")], &named), Some(Part::Full));
        assert_eq!(part("other", &[("t", "a")], &named), Some(Part::Bound));
        assert_eq!(part("other", &[("t", "a")], &[]), None);
        let lacking = limits(&rules, &lane("k"), &labels(&[]), &named, &[]);
        let refused = Admission::new(&rules).may_start(&lacking, 1).unwrap_err();
        assert_eq!(refused.to_string(), "rule ~r (?): it has no label t, so it never starts");
    }

    #[test]
    fn who_may_not_start_is_told_the_rule_and_its_numbers() {
        let rules = [rule(json!({"name": "r", "max_running": 2})), rule(json!({"name": "c", "capacity": 10}))];
        let all = limits(&rules, &lane("k"), &labels(&[]), &[], &[]);
        let mut admission = Admission::new(&rules);
        assert_eq!((admission.may_start(&all, 10), admission.room(&all)), (Ok(()), 2));
        assert_eq!(
            admission.may_start(&all, 11).unwrap_err().to_string(),
            "rule c: it needs 11, and there is 10: it never starts"
        );
        admission.count(&all, Used { running: 1, weight: 4 });
        assert_eq!(admission.room(&all), 1);
        assert_eq!(admission.may_start(&all, 7).unwrap_err().to_string(), "rule c: 4 of 10 used, and it needs 7");
        admission.count(&all, Used { running: 1, weight: 0 });
        assert_eq!(admission.may_start(&all, 1).unwrap_err().to_string(), "rule r: 2 of 2 running");
        assert_eq!(admission.room(&all), 0);
        assert_eq!(Admission::new(&[]).may_start(&all, 11), Ok(()), "a rule that is gone binds nobody");
    }

    #[test]
    fn behind_one_that_waits_its_lane_waits_and_others_go_on() {
        let rules = [rule(json!({"name": "c", "match": {"kind": "k"}, "capacity": 10}))];
        let bound = limits(&rules, &lane("k"), &labels(&[]), &[], &[]);
        let candidate =
            |lane: i32, weight: u64| Candidate { lane, rank: 0, limits: if lane == 1 { &bound } else { &[] }, weight };
        let mut admission = Admission::new(&rules);
        let candidates = [candidate(1, 6), candidate(1, 50), candidate(1, 5), candidate(1, 1), candidate(2, 9)];
        assert_eq!(admission.choose(&candidates, &BTreeSet::new(), 10), [0, 4], "one that never fits is passed over");
        let mut admission = Admission::new(&rules);
        assert_eq!(admission.choose(&candidates, &BTreeSet::from([1]), 1), [0]);
        let free = [candidate(2, 1), candidate(3, 1), candidate(2, 1)];
        assert_eq!(
            Admission::new(&rules).choose(&free, &BTreeSet::from([3]), 3),
            [0, 1],
            "lane 3 may have a better one"
        );
    }

    proptest! {
        /// However candidates come, what was chosen keeps every limit.
        #[test]
        fn what_is_chosen_keeps_every_limit(
            most in 0u32..5, capacity in 0u32..20, tasks in prop::collection::vec((0i32..4, 0u64..8), 0..40),
        ) {
            let rules = [
                rule(json!({"name": "r", "per": ["t"], "max_running": most})),
                rule(json!({"name": "c", "capacity": capacity})),
            ];
            let tenants: Vec<Vec<Limit>> =
                (0..4).map(|n| limits(&rules, &lane("k"), &labels(&[("t", &n.to_string())]), &[], &[])).collect();
            let candidates: Vec<Candidate<'_>> = tasks
                .iter()
                .map(|(lane, weight)| Candidate { lane: *lane, rank: 0, limits: &tenants[*lane as usize], weight: *weight })
                .collect();
            let chosen = Admission::new(&rules).choose(&candidates, &BTreeSet::new(), 100);
            prop_assert!(chosen.is_sorted());
            prop_assert!(chosen.iter().map(|i| candidates[*i].weight).sum::<u64>() <= u64::from(capacity));
            for lane in 0..4 {
                prop_assert!(chosen.iter().filter(|i| candidates[**i].lane == lane).count() <= most as usize);
            }
            for lane in 0..4 {
                let first = (0..candidates.len()).find(|i| candidates[*i].lane == lane);
                if let Some(first) = first && most > 0 && chosen.is_empty() {
                    prop_assert!(candidates[first].weight > u64::from(capacity), "somebody could have started");
                }
            }
        }
    }
}
