//! Who waits for work, and who is told when there is some. Telling is an optimisation: whoever waits is also woken now and
//! then to look for itself.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};

use comeback_core::{Executor, Lane, Timestamp};
use comeback_store::ClaimRequest;
use parking_lot::Mutex;
use tokio::sync::Notify;

#[derive(Default)]
pub struct Wake {
    waiting: Mutex<VecDeque<Arc<Waiter>>>,
}

/// When each loop must look next, as far as this instance knows.
#[derive(Default)]
pub struct Alarms {
    pub retries: Alarm,
    pub starts: Alarm,
    pub leases: Alarm,
    pub timeouts: Alarm,
    pub deadlines: Alarm,
    /// Has no time of its own: it is rung when there is something.
    pub flow: Alarm,
    pub schedules: Alarm,
    pub operations: Alarm,
    /// The same: rung when something happened that somebody outside may want to hear of.
    pub tell: Alarm,
    pub alerts: Alarm,
}

struct Waiter {
    request: ClaimRequest,
    /// How much work it was told of. Only changed under the lock of the queue.
    told_of: AtomicU32,
    notify: Notify,
}

impl Waiter {
    /// Tells it of as much as it can still take, and answers how much that was.
    fn tell(&self, count: u32) -> u32 {
        let before = self.told_of.load(Ordering::Relaxed);
        let taken = self.request.limit.max(1).saturating_sub(before).min(count);
        if taken > 0 {
            self.told_of.store(before + taken, Ordering::Relaxed);
        }
        if before == 0 && taken > 0 {
            self.notify.notify_one();
        }
        taken
    }
}

/// A place in the queue of those who wait. Whoever leaves it with a word unheard passes the word on.
pub struct Place {
    waiter: Arc<Waiter>,
    wake: Arc<Wake>,
    heard: bool,
}

impl Wake {
    /// Registers before looking, so that nothing that happens in between is missed.
    pub fn wait_for(self: &Arc<Self>, request: &ClaimRequest) -> Place {
        let waiter = Arc::new(Waiter { request: request.clone(), told_of: AtomicU32::new(0), notify: Notify::new() });
        self.waiting.lock().push_back(waiter.clone());
        Place { waiter, wake: self.clone(), heard: false }
    }

    /// There are `count` tasks more in this lane: as many waiters are told as it takes to lease them.
    pub fn work(&self, lane: &Lane, count: u32) {
        let mut left = count;
        let waiting = self.waiting.lock();
        for waiter in waiting.iter().filter(|waiter| waiter.request.wants(lane)) {
            left -= waiter.tell(left);
            if left == 0 {
                break;
            }
        }
    }

    /// Everybody should look.
    pub fn everybody(&self) {
        for waiter in self.waiting.lock().iter() {
            waiter.tell(1);
        }
    }

    /// Whether a worker waits.
    pub fn has_workers(&self) -> bool {
        self.waiting.lock().iter().any(|waiter| waiter.request.executor == Executor::Worker)
    }

    /// Somebody should look, of each sort of waiter the one who waits longest.
    pub fn look(&self) {
        let waiting = self.waiting.lock();
        let mut seen: Vec<&Waiter> = Vec::new();
        for waiter in waiting.iter() {
            if !seen.iter().any(|other| other.request.is_like(&waiter.request)) {
                seen.push(waiter);
                waiter.tell(1);
            }
        }
    }
}

impl Place {
    /// Waits for the word, and leaves the queue with it: who wants to wait again takes a new place before looking.
    pub async fn told(mut self) {
        self.waiter.notify.notified().await;
        self.heard = true;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut waiting = self.wake.waiting.lock();
        waiting.retain(|waiter| !Arc::ptr_eq(waiter, &self.waiter));
        let mut unheard = if self.heard { 0 } else { self.waiter.told_of.load(Ordering::Relaxed) };
        for next in waiting.iter().filter(|next| next.request.is_like(&self.waiter.request)) {
            unheard -= next.tell(unheard);
            if unheard == 0 {
                break;
            }
        }
    }
}

/// An instant that loops sleep towards; an earlier one wakes them.
pub struct Alarm {
    at: AtomicI64,
    /// Nothing is due before this, as far as this instance knows.
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
    /// Something will be due then.
    pub fn at(&self, at: Timestamp) {
        self.soonest.fetch_min(at.0, Ordering::AcqRel);
        if at.0 < self.at.fetch_min(at.0, Ordering::AcqRel) {
            self.changed.notify_one();
        }
    }

    /// What was known is forgotten: whoever calls this is about to look up what is next.
    pub fn clear(&self) {
        self.at.store(i64::MAX, Ordering::Release);
    }

    /// What the store says is next. A word that comes in between may be lost: this only saves looking.
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
        }
    }

    fn lane(queue: &str) -> Lane {
        Lane { queue: queue.into(), kind: "k".into(), ..Lane::default() }
    }

    fn is_told(place: &Place) -> bool {
        place.waiter.told_of.load(Ordering::SeqCst) > 0
    }

    #[test]
    fn as_many_are_told_as_there_is_work_for() {
        let wake = Arc::new(Wake::default());
        let places: Vec<Place> = (0..4).map(|_| wake.wait_for(&request("a", 2))).collect();
        let other = wake.wait_for(&request("b", 2));
        wake.work(&lane("a"), 3);
        assert_eq!(places.iter().map(is_told).collect::<Vec<_>>(), [true, true, false, false]);
        assert!(!is_told(&other));
    }

    #[test]
    fn work_that_comes_one_by_one_is_told_to_one_after_the_other() {
        let wake = Arc::new(Wake::default());
        let places: Vec<Place> = (0..4).map(|_| wake.wait_for(&request("a", 1))).collect();
        for _ in 0..3 {
            wake.work(&lane("a"), 1);
        }
        assert_eq!(places.iter().map(is_told).collect::<Vec<_>>(), [true, true, true, false]);
    }

    #[test]
    fn an_unheard_word_goes_to_one_who_wants_the_same() {
        let wake = Arc::new(Wake::default());
        let first = wake.wait_for(&request("a", 1));
        let other = wake.wait_for(&ClaimRequest { namespace: "other".into(), ..request("a", 1) });
        let same = wake.wait_for(&request("a", 1));
        wake.work(&lane("a"), 1);
        drop(first);
        assert!(is_told(&same) && !is_told(&other));
    }

    #[tokio::test]
    async fn who_leaves_with_a_word_unheard_passes_it_on() {
        let wake = Arc::new(Wake::default());
        let (first, second) = (wake.wait_for(&request("a", 1)), wake.wait_for(&request("a", 1)));
        wake.work(&lane("a"), 1);
        drop(first);
        assert!(is_told(&second));
        let third = wake.wait_for(&request("a", 1));
        second.told().await;
        assert!(!is_told(&third));
    }

    #[tokio::test]
    async fn a_word_that_came_before_the_wait_is_heard() {
        let wake = Arc::new(Wake::default());
        let place = wake.wait_for(&request("a", 1));
        wake.work(&lane("a"), 1);
        place.told().await;
    }

    #[test]
    fn one_of_each_sort_looks() {
        let wake = Arc::new(Wake::default());
        let places =
            [wake.wait_for(&request("a", 1)), wake.wait_for(&request("a", 1)), wake.wait_for(&request("b", 1))];
        wake.look();
        assert_eq!(places.iter().map(is_told).collect::<Vec<_>>(), [true, false, true]);
    }
}
