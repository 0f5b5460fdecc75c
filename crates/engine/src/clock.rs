//! The only place that asks what time it is. A clock never goes back.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use comeback_core::{Millis, Timestamp};
use tokio::sync::watch;

/// A sleep that any clock can give.
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The source of time of an engine.
pub trait Clock: Send + Sync {
    fn now(&self) -> Timestamp;

    /// Returns when `now` has reached `until`.
    fn sleep_until(&self, until: Timestamp) -> Sleep;

    /// Takes over how far the store's clock is ahead of the process's (model A3). Clocks of their own ignore it.
    fn follow(&self, _offset_millis: i64) {}

    /// Where following would take this clock at once, when that is more than a correction (R-I21).
    fn step(&self, _offset_millis: i64) -> Option<Step> {
        None
    }

    /// How much real time a span of this clock takes, for waits that callers asked for in real time.
    fn is_real(&self) -> bool {
        true
    }
}

/// A jump of the store's clock. A jump back is not followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Time before the jump.
    pub from: Timestamp,
    /// Time after the jump.
    pub to: Timestamp,
}

/// A larger difference is a jump.
const STEP: i64 = 2_000;

/// A clock that is behind by less than this is waited for.
const EVENED_OUT: i64 = 1_000;

/// The machine's clock, read once and continued by the boot-time clock, which cannot be set and runs while the machine sleeps.
///
/// A clock that is set ahead is followed, by `follow`, which the loops call. One that is set back is not: time would stand
/// still for as long, and with it every retry and every lease. Small differences are evened out either way.
pub struct SystemClock {
    anchor_wall: i64,
    anchor: i64,
    offset: AtomicI64,
    last: AtomicI64,
}

impl SystemClock {
    /// The clock of the machine.
    pub fn new() -> Arc<SystemClock> {
        Arc::new(SystemClock {
            anchor_wall: wall_millis(),
            anchor: awake_and_asleep(),
            offset: AtomicI64::new(0),
            last: AtomicI64::new(i64::MIN),
        })
    }

    /// The store's clock against the wall as it is now; ours runs on its own since the anchor.
    fn follow_wall(&self, wall: i64, offset_millis: i64) {
        let wanted = wall + offset_millis - self.local();
        let not_asked_yet = self.last.load(Ordering::Relaxed) == i64::MIN;
        if not_asked_yet || wanted > self.offset.load(Ordering::Relaxed) - EVENED_OUT {
            self.offset.store(wanted, Ordering::Relaxed);
        }
    }

    fn local(&self) -> i64 {
        self.anchor_wall + (awake_and_asleep() - self.anchor)
    }

    fn step_to(&self, wall: i64, offset_millis: i64) -> Option<Step> {
        let from = self.local() + self.offset.load(Ordering::Relaxed);
        let to = wall + offset_millis;
        ((to - from).abs() > STEP).then_some(Step { from: Timestamp(from), to: Timestamp(to) })
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        let now = self.local() + self.offset.load(Ordering::Relaxed);
        Timestamp(self.last.fetch_max(now, Ordering::Relaxed).max(now))
    }

    fn sleep_until(&self, until: Timestamp) -> Sleep {
        let left = until.since(self.now());
        Box::pin(tokio::time::sleep(Duration::from_millis(left.0.min(86_400_000))))
    }

    fn follow(&self, offset_millis: i64) {
        self.follow_wall(wall_millis(), offset_millis);
    }

    fn step(&self, offset_millis: i64) -> Option<Step> {
        self.step_to(wall_millis(), offset_millis)
    }
}

/// A clock that stands still until it is moved.
pub struct VirtualClock {
    now: watch::Sender<Timestamp>,
}

impl VirtualClock {
    /// A clock that stands at this time.
    pub fn new(start: Timestamp) -> Arc<VirtualClock> {
        Arc::new(VirtualClock { now: watch::Sender::new(start) })
    }

    /// Moves ahead; an instant that has passed changes nothing.
    pub fn set(&self, to: Timestamp) {
        self.now.send_if_modified(|now| {
            let ahead = to > *now;
            *now = (*now).max(to);
            ahead
        });
    }

    /// Moves the clock forward.
    pub fn advance(&self, by: Millis) {
        self.set(self.now() + by);
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Timestamp {
        *self.now.borrow()
    }

    fn sleep_until(&self, until: Timestamp) -> Sleep {
        let mut now = self.now.subscribe();
        Box::pin(async move {
            // Ends early only if the clock itself is gone.
            let _ = now.wait_for(|now| *now >= until).await;
        })
    }

    fn is_real(&self) -> bool {
        false
    }
}

/// The machine's clock, made faster: for demonstrations, in which a minute may take a second.
pub struct ScaledClock {
    start: Timestamp,
    factor: f64,
    anchor: Instant,
}

impl ScaledClock {
    /// A clock that starts at this time and runs this many times as fast.
    pub fn new(start: Timestamp, factor: f64) -> Arc<ScaledClock> {
        Arc::new(ScaledClock { start, factor: factor.max(0.001), anchor: Instant::now() })
    }
}

impl Clock for ScaledClock {
    fn now(&self) -> Timestamp {
        self.start + Millis::from_f64(self.anchor.elapsed().as_secs_f64() * 1_000.0 * self.factor)
    }

    fn sleep_until(&self, until: Timestamp) -> Sleep {
        let left = until.since(self.now()).as_f64() / self.factor;
        Box::pin(tokio::time::sleep(Duration::from_secs_f64((left / 1_000.0).min(86_400.0))))
    }
}

/// The time of the machine.
pub fn wall_now() -> Timestamp {
    Timestamp(wall_millis())
}

/// Milliseconds since the machine started, those included in which it slept.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn awake_and_asleep() -> i64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    now.tv_sec * 1_000 + now.tv_nsec / 1_000_000
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn awake_and_asleep() -> i64 {
    static START: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
    i64::try_from(START.elapsed().as_millis()).unwrap_or(i64::MAX)
}

fn wall_millis() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_clock_never_goes_back() {
        let clock = SystemClock::new();
        let before = clock.now();
        clock.follow(-1_000_000);
        assert!(clock.now() >= before);
        clock.follow(5_000);
        assert!(clock.now() >= before + Millis(4_900));
    }

    /// R-I21.
    #[test]
    fn a_clock_that_is_set_back_does_not_stop_the_time() {
        let clock = SystemClock::new();
        clock.now();
        clock.follow_wall(clock.local() - 3_600_000, 0);
        assert_eq!(clock.offset.load(Ordering::Relaxed), 0, "it runs on at its own pace");
        clock.follow_wall(clock.local() - 500, 0);
        assert!(clock.offset.load(Ordering::Relaxed) < 0, "a little is evened out");
    }

    /// R-I21: what is evened out is no step, in either direction.
    #[test]
    fn a_clock_that_somebody_set_is_noticed() {
        let clock = SystemClock::new();
        let off_by = |millis: i64| clock.step_to(clock.local() + millis, 0).map(|step| step.to.0 - step.from.0);
        assert_eq!(off_by(1_500), None);
        assert_eq!(off_by(-1_500), None);
        for days in [14, -14] {
            let set = days * 86_400_000;
            let step = off_by(set).unwrap();
            assert!((step - set).abs() < 100, "{step}");
        }
    }

    #[test]
    fn the_first_clock_that_is_followed_is_followed_back_too() {
        let clock = SystemClock::new();
        clock.follow(-60_000);
        assert!(clock.now().0 < wall_millis() - 50_000);
    }

    #[tokio::test]
    async fn a_virtual_sleep_ends_when_the_clock_is_moved() {
        let clock = VirtualClock::new(Timestamp(1_000));
        let sleeper = tokio::spawn(clock.sleep_until(Timestamp(5_000)));
        clock.advance(Millis(3_999));
        tokio::task::yield_now().await;
        assert!(!sleeper.is_finished());
        clock.advance(Millis(1));
        sleeper.await.unwrap();
        clock.set(Timestamp(0));
        assert_eq!(clock.now(), Timestamp(5_000));
    }

    #[tokio::test]
    async fn a_scaled_clock_runs_faster() {
        let clock = ScaledClock::new(Timestamp(0), 1_000.0);
        clock.sleep_until(Timestamp(5_000)).await;
        assert!(clock.now() >= Timestamp(5_000));
    }
}
