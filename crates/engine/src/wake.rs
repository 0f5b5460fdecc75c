//! Waiting workers, and who of them is notified of new work. Notifications are an optimisation: a waiting worker also polls now and
//! then.
//!
//! Requests for the same work are of one sort, known by a fingerprint. An index leads from a lane to the sorts that want it, so that
//! a commit looks at those alone, however many others wait and however many names they gave.
//!
//! Over 500 lines: the queue of waiting workers and its tests belong together.

use std::cmp::Reverse;
use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, HashSet};
use std::hash::{BuildHasher, Hash};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::time::Duration;

use comeback_core::{Executor, Lane, Timestamp};
use comeback_store::{ClaimRequest, Loop};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// Workers that wait for work.
#[derive(Default)]
pub struct Wake {
    queue: Mutex<Queue>,
    /// Random keys, so that callers cannot choose names that collide.
    hashers: [RandomState; 2],
}

#[derive(Default)]
struct Queue {
    /// Number of the next waiter, and of the next turn of a sort.
    next: u64,
    sorts: HashMap<u128, Sort>,
    /// The sorts that want a queue or a kind.
    index: HashMap<u64, Sorts>,
    namespaces: HashMap<Arc<str>, Namespace>,
    /// Waiters that are workers.
    workers: usize,
    /// Sorts that were looked at, for tests.
    #[cfg(test)]
    looked_at: usize,
}

/// Waiters for the same work.
struct Sort {
    wanted: Arc<Wanted>,
    /// By number, so that the first one waits longest.
    waiting: BTreeMap<u64, Arc<Waiter>>,
    /// Waiters that can take more notifications.
    open: BTreeSet<u64>,
    /// Its turn within its namespace.
    turn: u64,
}

/// Sorts under one key of the index: one, as a rule.
enum Sorts {
    One(u128),
    Many(HashSet<u128>),
}

impl Sorts {
    fn add(&mut self, sort: u128) {
        match self {
            Sorts::One(only) if *only == sort => {}
            Sorts::One(only) => *self = Sorts::Many(HashSet::from([*only, sort])),
            Sorts::Many(all) => {
                all.insert(sort);
            }
        }
    }

    /// Whether none is left.
    fn remove(&mut self, sort: u128) -> bool {
        match self {
            Sorts::One(only) => *only == sort,
            Sorts::Many(all) => {
                all.remove(&sort);
                all.is_empty()
            }
        }
    }

    fn iter(&self) -> impl Iterator<Item = u128> {
        let (one, many) = match self {
            Sorts::One(only) => (Some(*only), None),
            Sorts::Many(all) => (None, Some(all.iter().copied())),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }
}

/// The sorts of one namespace, by turn.
#[derive(Default)]
struct Namespace {
    waiters: usize,
    turns: BTreeMap<u64, u128>,
}

/// A claim request, prepared once for as long as it waits.
pub struct Wanted {
    fingerprint: u128,
    namespace: Arc<str>,
    executor: Executor,
    without_calls: bool,
    /// Under which keys of the index it is found.
    keys: Vec<u64>,
    /// Keys of its queues, where the index leads to it by kind.
    queues: Option<HashSet<u64>>,
    names: usize,
    limit: u32,
}

/// Part of an index key beside namespace and executor.
#[derive(Hash)]
enum Part<'a> {
    Anything,
    Queue(&'a str),
    Kind(&'a str),
}

/// The alarms of the loops: when each of them must look next, as far as this instance knows.
#[derive(Default)]
pub struct Alarms([Alarm; Loop::ALL.len()]);

impl Alarms {
    /// The alarm of one loop.
    pub fn of(&self, name: Loop) -> &Alarm {
        &self.0[name as usize]
    }
}

struct Waiter {
    limit: u32,
    /// How much work it was told of. Only changed under the lock of the queue.
    told_of: AtomicU32,
    notify: Notify,
}

impl Waiter {
    /// Notifies it of as much as it can take, and returns how much that was.
    fn tell(&self, count: u32) -> u32 {
        let before = self.told_of.load(Ordering::Relaxed);
        let taken = self.limit.saturating_sub(before).min(count);
        if taken > 0 {
            self.told_of.store(before + taken, Ordering::Relaxed);
        }
        if before == 0 && taken > 0 {
            self.notify.notify_one();
        }
        taken
    }

    fn is_full(&self) -> bool {
        self.told_of.load(Ordering::Relaxed) >= self.limit
    }
}

impl Sort {
    /// Tells one of its waiters, and answers how much work that one takes.
    fn tell(&mut self, number: u64, count: u32) -> u32 {
        let Some(waiter) = self.waiting.get(&number) else { return 0 };
        let taken = waiter.tell(count);
        if waiter.is_full() {
            self.open.remove(&number);
        }
        taken
    }
}

/// A slot in the queue of waiting workers. Dropping an unconsumed notification forwards it.
pub struct WaitSlot {
    number: u64,
    wanted: Arc<Wanted>,
    waiter: Arc<Waiter>,
    wake: Arc<Wake>,
    heard: bool,
}

/// How often a request looks for itself while it waits.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
const LOOK_AGAIN_AT_LAST: Duration = Duration::from_secs(10);
/// Waiters of one namespace, and names of one request, with which that often is not too often.
const FEW_WAITERS: usize = 64;
const FEW_NAMES: usize = 100;
/// Sorts of one namespace that look at once, and the names they have together.
const LOOKS: usize = 256;
const LOOKED_UP: usize = LOOKS * FEW_NAMES;

impl Wake {
    fn key(&self, namespace: &str, executor: Executor, part: &Part<'_>) -> u64 {
        self.hashers[0].hash_one((namespace, executor, part))
    }

    /// Prepares what a request wants. The names are looked at here, once, and not under the lock.
    pub fn prepare(&self, request: &ClaimRequest) -> Arc<Wanted> {
        let sorted = |names: &[String]| {
            let mut names: Vec<String> = names.to_vec();
            names.sort_unstable();
            names.dedup();
            names
        };
        let (queues, kinds) = (sorted(&request.queues), sorted(&request.kinds));
        let (namespace, executor) = (request.namespace.as_str(), request.executor);
        let whole = (namespace, executor, request.without_calls, &queues, &kinds);
        let [high, low] = [0, 1].map(|n: usize| u128::from(self.hashers[n].hash_one(whole)));
        let key = |part: Part<'_>| self.key(namespace, executor, &part);
        let anywhere = namespace == ClaimRequest::ANY_NAMESPACE;
        let by_queue: Vec<u64> = queues.iter().map(|queue| key(Part::Queue(queue))).collect();
        let by_kind: Vec<u64> = kinds.iter().map(|kind| key(Part::Kind(kind))).collect();
        let (keys, queues) = match (anywhere, kinds.is_empty()) {
            (true, true) => (vec![key(Part::Anything)], None),
            (true, false) => (by_kind, None),
            (false, true) => (by_queue, None),
            (false, false) => (by_kind, Some(by_queue.into_iter().collect())),
        };
        Arc::new(Wanted {
            fingerprint: high << 64 | low,
            namespace: namespace.into(),
            executor,
            without_calls: request.without_calls,
            keys,
            queues,
            names: request.queues.len() + request.kinds.len(),
            limit: request.limit.max(1),
        })
    }

    /// Registers before looking, so that nothing that happens in between is missed.
    pub fn wait_for(self: &Arc<Self>, wanted: &Arc<Wanted>) -> WaitSlot {
        let waiter = Arc::new(Waiter { limit: wanted.limit, told_of: AtomicU32::new(0), notify: Notify::new() });
        let number = self.queue.lock().add(wanted, &waiter);
        WaitSlot { number, wanted: wanted.clone(), waiter, wake: self.clone(), heard: false }
    }

    /// There are `count` tasks more in this lane: as many waiters are told as it takes to lease them, those first who wait longest.
    pub fn work(&self, lane: &Lane, count: u32) {
        let any = ClaimRequest::ANY_NAMESPACE;
        let own = |part: Part<'_>| self.key(&lane.namespace, lane.executor, &part);
        let queue_key = own(Part::Queue(&lane.queue));
        let keys = [
            queue_key,
            own(Part::Kind(&lane.kind)),
            self.key(any, lane.executor, &Part::Anything),
            self.key(any, lane.executor, &Part::Kind(&lane.kind)),
        ];
        let mut queue = self.queue.lock();
        let queue = &mut *queue;
        let mut next = BinaryHeap::new();
        for sort in keys.iter().filter_map(|key| queue.index.get(key)).flat_map(Sorts::iter) {
            #[cfg(test)]
            {
                queue.looked_at += 1;
            }
            let Some(it) = queue.sorts.get(&sort) else { continue };
            let is_wanted = it.wanted.queues.as_ref().is_none_or(|queues| queues.contains(&queue_key));
            if is_wanted
                && !(it.wanted.without_calls && lane.is_call())
                && let Some(first) = it.open.first()
            {
                next.push(Reverse((*first, sort)));
            }
        }
        let mut left = count;
        while let (Some(Reverse((number, sort))), true) = (next.pop(), left > 0) {
            let Some(it) = queue.sorts.get_mut(&sort) else { continue };
            left -= it.tell(number, left);
            if let Some(following) = it.open.range(number + 1..).next() {
                next.push(Reverse((*following, sort)));
            }
        }
    }

    /// Everybody should look.
    pub fn everybody(&self) {
        for sort in self.queue.lock().sorts.values_mut() {
            for number in sort.open.clone() {
                sort.tell(number, 1);
            }
        }
    }

    /// Whether a worker waits.
    pub fn has_workers(&self) -> bool {
        self.queue.lock().workers > 0
    }

    /// Somebody should look, of each sort of waiter the one who waits longest. Where a namespace has very many sorts, some of them
    /// now and the others the next times.
    pub fn look(&self) {
        let mut queue = self.queue.lock();
        let namespaces: Vec<Arc<str>> = queue.namespaces.keys().cloned().collect();
        for namespace in namespaces {
            queue.look_in(&namespace);
        }
    }

    /// The same in one namespace, and of those who take work from all of them.
    pub fn look_in(&self, namespace: &str) {
        let mut queue = self.queue.lock();
        queue.look_in(namespace);
        queue.look_in(ClaimRequest::ANY_NAMESPACE);
    }
}

/// Entries that a map may have room for, however few it holds.
const KEPT_ROOM: usize = 4_096;

/// Shrinks a map that was much larger than it is.
fn give_back<K: Eq + std::hash::Hash, V>(map: &mut HashMap<K, V>) {
    if map.capacity() > KEPT_ROOM.max(map.len() * 8) {
        map.shrink_to(map.len() * 2);
    }
}

impl Queue {
    fn add(&mut self, wanted: &Arc<Wanted>, waiter: &Arc<Waiter>) -> u64 {
        let number = self.next;
        self.next += 1;
        let sort = wanted.fingerprint;
        let namespace = self.namespaces.entry(wanted.namespace.clone()).or_default();
        namespace.waiters += 1;
        self.workers += usize::from(wanted.executor == Executor::Worker);
        let it = self.sorts.entry(sort).or_insert_with(|| {
            for key in &wanted.keys {
                self.index.entry(*key).and_modify(|sorts| sorts.add(sort)).or_insert(Sorts::One(sort));
            }
            namespace.turns.insert(number, sort);
            Sort { wanted: wanted.clone(), waiting: BTreeMap::new(), open: BTreeSet::new(), turn: number }
        });
        it.waiting.insert(number, waiter.clone());
        it.open.insert(number);
        number
    }

    fn remove(&mut self, number: u64, wanted: &Wanted) {
        let sort = wanted.fingerprint;
        let Some(it) = self.sorts.get_mut(&sort) else { return };
        it.waiting.remove(&number);
        it.open.remove(&number);
        self.workers -= usize::from(wanted.executor == Executor::Worker);
        let (is_last, turn) = (it.waiting.is_empty(), it.turn);
        if is_last {
            for key in &wanted.keys {
                if self.index.get_mut(key).is_some_and(|sorts| sorts.remove(sort)) {
                    self.index.remove(key);
                }
            }
            self.sorts.remove(&sort);
            give_back(&mut self.index);
            give_back(&mut self.sorts);
        }
        if let Some(namespace) = self.namespaces.get_mut(&wanted.namespace) {
            namespace.waiters -= 1;
            if is_last {
                namespace.turns.remove(&turn);
            }
            if namespace.waiters == 0 {
                self.namespaces.remove(&wanted.namespace);
            }
        }
    }

    fn look_in(&mut self, namespace: &str) {
        let Some(all) = self.namespaces.get_mut(namespace) else { return };
        let mut names = 0;
        for _ in 0..all.turns.len().min(LOOKS) {
            let Some((_, sort)) = all.turns.pop_first() else { break };
            let Some(it) = self.sorts.get_mut(&sort) else { continue };
            if let Some(first) = it.waiting.keys().next().copied() {
                it.tell(first, 1);
            }
            it.turn = self.next;
            self.next += 1;
            all.turns.insert(it.turn, sort);
            names += it.wanted.names;
            if names >= LOOKED_UP {
                break;
            }
        }
    }
}

impl WaitSlot {
    /// Waits for the word, and leaves the queue with it: who wants to wait again takes a new place before looking.
    pub async fn told(mut self) {
        self.waiter.notify.notified().await;
        self.heard = true;
    }

    /// After how long a request that was not told of anything looks for itself: rarely where it has many names, or where its namespace
    /// has many that wait.
    pub fn look_again(&self) -> Duration {
        let queue = self.wake.queue.lock();
        let waiters = queue.namespaces.get(&self.wanted.namespace).map_or(0, |namespace| namespace.waiters);
        let times = (waiters / FEW_WAITERS).max(1).saturating_mul((self.wanted.names / FEW_NAMES).max(1));
        LOOK_AGAIN.saturating_mul(u32::try_from(times).unwrap_or(u32::MAX)).min(LOOK_AGAIN_AT_LAST)
    }
}

impl Drop for WaitSlot {
    fn drop(&mut self) {
        let mut queue = self.wake.queue.lock();
        queue.remove(self.number, &self.wanted);
        let mut unheard = if self.heard { 0 } else { self.waiter.told_of.load(Ordering::Relaxed) };
        let Some(like) = queue.sorts.get_mut(&self.wanted.fingerprint) else { return };
        while unheard > 0
            && let Some(next) = like.open.first().copied()
        {
            unheard -= like.tell(next, unheard);
        }
    }
}

/// An instant that loops sleep towards; an earlier one wakes them.
pub struct Alarm {
    at: AtomicI64,
    /// The next due time that this instance knows.
    soonest: AtomicI64,
    changed: Notify,
}

impl Default for Alarm {
    fn default() -> Self {
        let never = || AtomicI64::new(i64::MAX);
        Alarm { at: never(), soonest: never(), changed: Notify::new() }
    }
}

impl Alarm {
    /// Sets the alarm if it is earlier.
    pub fn at(&self, at: Timestamp) {
        self.soonest.fetch_min(at.0, Ordering::AcqRel);
        if at.0 < self.at.fetch_min(at.0, Ordering::AcqRel) {
            self.changed.notify_one();
        }
    }

    /// Clears the alarm; the caller is about to query the next due time.
    pub fn clear(&self) {
        self.at.store(i64::MAX, Ordering::Release);
    }

    /// Sets the next due time that the store knows. An alarm in between may be lost: this only saves queries.
    pub fn found(&self, next: Option<Timestamp>) {
        self.soonest.store(next.map_or(i64::MAX, |at| at.0), Ordering::Release);
    }

    /// Whether something may be due.
    pub fn may_be_due(&self, now: Timestamp) -> bool {
        self.soonest.load(Ordering::Acquire) <= now.0
    }

    pub fn next(&self) -> Timestamp {
        Timestamp(self.at.load(Ordering::Acquire))
    }

    pub async fn earlier(&self) {
        self.changed.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use comeback_core::Millis;

    fn request(queue: &str, limit: u32) -> ClaimRequest {
        ClaimRequest {
            namespace: "default".into(),
            queues: vec![queue.into()],
            any_queue: false,
            kinds: vec![],
            executor: Executor::Worker,
            worker: "w".into(),
            limit,
            lease: Millis(1),
            due: false,
            without_calls: false,
            only_kinds: None,
        }
    }

    fn lane(queue: &str) -> Lane {
        Lane { queue: queue.into(), kind: "k".into(), ..Lane::default() }
    }

    impl Wake {
        fn wait(self: &Arc<Self>, request: &ClaimRequest) -> WaitSlot {
            self.wait_for(&self.prepare(request))
        }
    }

    fn is_told(place: &WaitSlot) -> bool {
        place.waiter.told_of.load(Ordering::SeqCst) > 0
    }

    #[test]
    fn as_many_are_told_as_there_is_work_for() {
        let wake = Arc::new(Wake::default());
        let places: Vec<WaitSlot> = (0..4).map(|_| wake.wait(&request("a", 2))).collect();
        let other = wake.wait(&request("b", 2));
        wake.work(&lane("a"), 3);
        assert_eq!(places.iter().map(is_told).collect::<Vec<_>>(), [true, true, false, false]);
        assert!(!is_told(&other));
    }

    #[test]
    fn names_that_nobody_waits_for_any_more_take_no_room() {
        let wake = Arc::new(Wake::default());
        let kinds = |n: usize| (0..1_000).map(|i| format!("{n}-{i}")).collect();
        let places: Vec<WaitSlot> =
            (0..50).map(|n| wake.wait(&ClaimRequest { kinds: kinds(n), ..request("a", 1) })).collect();
        assert!(wake.queue.lock().index.capacity() >= 50_000);
        drop(places);
        let queue = wake.queue.lock();
        assert!(queue.index.capacity() <= KEPT_ROOM && queue.sorts.capacity() <= KEPT_ROOM);
    }

    #[test]
    fn work_that_comes_one_by_one_is_told_to_one_after_the_other() {
        let wake = Arc::new(Wake::default());
        let places: Vec<WaitSlot> = (0..4).map(|_| wake.wait(&request("a", 1))).collect();
        for _ in 0..3 {
            wake.work(&lane("a"), 1);
        }
        assert_eq!(places.iter().map(is_told).collect::<Vec<_>>(), [true, true, true, false]);
    }

    #[test]
    fn an_unheard_word_goes_to_one_who_wants_the_same() {
        let wake = Arc::new(Wake::default());
        let first = wake.wait(&request("a", 1));
        let other = wake.wait(&ClaimRequest { namespace: "other".into(), ..request("a", 1) });
        let same = wake.wait(&request("a", 1));
        wake.work(&lane("a"), 1);
        drop(first);
        assert!(is_told(&same) && !is_told(&other));
    }

    #[tokio::test]
    async fn who_leaves_with_a_word_unheard_passes_it_on() {
        let wake = Arc::new(Wake::default());
        let (first, second) = (wake.wait(&request("a", 1)), wake.wait(&request("a", 1)));
        wake.work(&lane("a"), 1);
        drop(first);
        assert!(is_told(&second));
        let third = wake.wait(&request("a", 1));
        second.told().await;
        assert!(!is_told(&third));
    }

    #[tokio::test]
    async fn a_word_that_came_before_the_wait_is_heard() {
        let wake = Arc::new(Wake::default());
        let place = wake.wait(&request("a", 1));
        wake.work(&lane("a"), 1);
        place.told().await;
    }

    #[test]
    fn one_of_each_sort_looks() {
        let wake = Arc::new(Wake::default());
        let places = [wake.wait(&request("a", 1)), wake.wait(&request("a", 1)), wake.wait(&request("b", 1))];
        wake.look();
        assert_eq!(places.iter().map(is_told).collect::<Vec<_>>(), [true, false, true]);
    }

    fn many_kinds(namespace: &str, n: usize) -> ClaimRequest {
        let kinds = (0..1_000).map(|kind| format!("kind-{n}-{kind}")).collect();
        ClaimRequest { namespace: namespace.into(), kinds, ..request("a", 1) }
    }

    /// H5: 500 long polls with 1,000 kinds each made every submit compare a million names.
    #[test]
    fn waiters_of_other_namespaces_and_kinds_are_not_looked_at() {
        let wake = Arc::new(Wake::default());
        let red: Vec<WaitSlot> = (0..100).map(|n| wake.wait(&many_kinds("red", n))).collect();
        let blue = wake.wait(&request("a", 1));
        let looked_at = || std::mem::take(&mut wake.queue.lock().looked_at);
        wake.work(&lane("a"), 1);
        assert!(is_told(&blue));
        assert_eq!(looked_at(), 1, "the one that wants it");
        wake.work(&Lane { namespace: "red".into(), kind: "kind-7-999".into(), ..lane("a") }, 1);
        assert_eq!(looked_at(), 1);
        assert_eq!(red.iter().map(is_told).filter(|told| *told).count(), 1);
        assert!(is_told(&red[7]));
        wake.work(&Lane { namespace: "red".into(), kind: "kind-8-999".into(), ..lane("b") }, 1);
        assert!(!is_told(&red[8]), "its kind in another queue");
        drop((red, blue));
        let queue = wake.queue.lock();
        assert!(queue.sorts.is_empty() && queue.index.is_empty() && queue.namespaces.is_empty() && queue.workers == 0);
    }

    #[test]
    fn the_order_and_the_number_of_names_make_no_other_sort() {
        let wake = Arc::new(Wake::default());
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let first = wake.wait(&ClaimRequest { kinds: names(&["x", "y"]), ..request("a", 1) });
        let same = wake.wait(&ClaimRequest { kinds: names(&["y", "x", "y"]), ..request("a", 1) });
        let other = wake.wait(&ClaimRequest { kinds: names(&["x"]), ..request("a", 1) });
        wake.look();
        assert_eq!([&first, &same, &other].map(is_told), [true, false, true]);
    }

    #[test]
    fn whoever_waits_longest_is_told_first_of_whatever_sort() {
        let wake = Arc::new(Wake::default());
        let kind = |kind: &str| ClaimRequest { kinds: vec![kind.into()], ..request("a", 1) };
        let places = [
            wake.wait(&kind("k")),
            wake.wait(&request("a", 1)),
            wake.wait(&ClaimRequest {
                namespace: ClaimRequest::ANY_NAMESPACE.into(),
                queues: vec![],
                ..request("a", 1)
            }),
            wake.wait(&kind("other")),
            wake.wait(&kind("k")),
        ];
        let mut told = Vec::new();
        for _ in 0..4 {
            wake.work(&lane("a"), 1);
            told.push(places.iter().map(is_told).filter(|told| *told).count());
        }
        assert_eq!(told, [1, 2, 3, 4]);
        assert_eq!(places.each_ref().map(is_told), [true, true, true, false, true]);
    }

    #[test]
    fn a_namespace_with_very_many_names_looks_by_turns() {
        let wake = Arc::new(Wake::default());
        let red: Vec<WaitSlot> = (0..100).map(|n| wake.wait(&many_kinds("red", n))).collect();
        let blue = wake.wait(&request("a", 1));
        wake.look();
        let told = || red.iter().map(is_told).filter(|told| *told).count();
        assert!(is_told(&blue));
        assert_eq!(told(), 26, "as many as have that many names together");
        for _ in 0..4 {
            wake.look();
        }
        assert_eq!(told(), 100, "all had their turn");
        assert_eq!(blue.look_again(), LOOK_AGAIN);
        assert_eq!(red[0].look_again(), LOOK_AGAIN * 10);
    }
}
