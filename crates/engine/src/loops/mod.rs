//! Background loops: one file each, and one driver for all.
//!
//! A [`BackgroundLoop`] sleeps until its next due time and is woken by an earlier one. It asks the store when its time has come, and at
//! least once per period. No loop has state that a restart would lose.

mod alerts;
mod dependencies;
mod driver;
mod expire;
mod flow;
mod operations;
mod promote;
pub(crate) mod prune;
pub mod reap;
mod repair;
mod rules;
mod schedule;
mod stats;
mod subscriptions;
mod time;
mod timeout;
mod waiters;

use std::time::{Duration, Instant};

use async_trait::async_trait;
use comeback_core::{Millis, Timestamp};
use comeback_store::{Loop, NextDue, StoreError};

pub use driver::Running;

use crate::{Core, Engine};

/// Result of one tick: how many rows moved, and whether more are due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Rows that moved.
    pub moved: u32,
    /// Whether more are due.
    pub more: bool,
}

impl Progress {
    /// The sum of two results.
    fn and(self, other: Progress) -> Progress {
        Progress { moved: self.moved + other.moved, more: self.more || other.more }
    }
}

/// Tasks of one tick.
pub(crate) const BATCH: u32 = 1_000;

/// The trigger of the ticks of a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cadence {
    /// The next due time that the store knows. There is nothing to do before it.
    DueTime,
    /// Every wake-up and every period: its work has no due time, or not only one.
    WakeUp,
    /// Its period only; it is never woken.
    Period,
}

/// One background loop. It has a name in the store, under which it can be paused.
#[async_trait]
trait BackgroundLoop: Sync {
    /// The name under which it is paused and counted.
    fn name(&self) -> Loop;

    /// The trigger of its ticks.
    fn cadence(&self) -> Cadence {
        Cadence::DueTime
    }

    /// When there is work next, as the store knows it.
    fn next_due(&self, _next: &NextDue) -> Option<Timestamp> {
        None
    }

    /// How long due work is left to workers that are waiting.
    fn grace(&self, _core: &Core) -> Millis {
        Millis::ZERO
    }

    /// The pause after a tick that took this long.
    fn rest_after(&self, _took: Duration) -> Duration {
        Duration::ZERO
    }

    /// Does the work that was due by then, one batch.
    async fn tick(&self, core: &Core, due_by: Timestamp) -> Result<Progress, StoreError>;
}

/// The loop of this name; `None` for work that callers do themselves.
fn loop_of(name: Loop) -> Option<&'static dyn BackgroundLoop> {
    Some(match name {
        Loop::Retries => &promote::RetriesLoop,
        Loop::Starts => &promote::StartsLoop,
        Loop::Reap => &reap::ReapLoop,
        Loop::Timeout => &timeout::TimeoutLoop,
        Loop::Expire => &expire::ExpireLoop,
        Loop::Flow => &flow::FlowLoop,
        Loop::Prune => &prune::PruneLoop,
        Loop::Schedule => &schedule::ScheduleLoop,
        Loop::Operations => &operations::OperationsLoop,
        Loop::Tell => &subscriptions::SubscriptionsLoop,
        Loop::Alerts => &alerts::AlertsLoop,
        Loop::Repair => &repair::RepairLoop,
        Loop::Dispatch | Loop::Hooks => return None,
    })
}

impl Core {
    /// One tick of one loop.
    pub(crate) async fn tick(&self, name: Loop) -> Result<Progress, StoreError> {
        match loop_of(name) {
            Some(it) => self.tick_after(it, Millis::ZERO).await,
            None => Ok(Progress::default()),
        }
    }

    /// One tick over the work that has been due for this long.
    async fn tick_after(&self, it: &dyn BackgroundLoop, grace: Millis) -> Result<Progress, StoreError> {
        let started = Instant::now();
        let ticked = it.tick(self, self.clock.now() - grace).await;
        self.tallies.ticked(it.name(), started, ticked.as_ref().ok().map(|progress| progress.moved));
        ticked
    }

    /// Wakes a loop, unless only its period makes it tick.
    pub(crate) fn wake_loop(&self, name: Loop) {
        if loop_of(name).is_some_and(|it| it.cadence() != Cadence::Period) {
            self.alarms.of(name).at(Timestamp(i64::MIN));
        }
    }

    /// Whether a loop is paused now.
    pub(crate) async fn is_paused(&self, name: Loop) -> Result<bool, StoreError> {
        let now = self.clock.now();
        Ok(self.store.pauses().await?.iter().any(|(paused, pause)| *paused == name && pause.until > now))
    }
}

/// The pause after a tick of a loop that reads the feed for every follower: such loops take a fifth of a processor at most, however many
/// followers there are, and a short tick has none.
fn rest_of_feed_reader(took: Duration) -> Duration {
    match took < Duration::from_millis(5) {
        true => Duration::ZERO,
        false => (took * 4).min(Duration::from_millis(500)),
    }
}

/// Whether the store answered with this error; otherwise it is unavailable and the loop makes no progress.
fn is_answered(error: &StoreError) -> bool {
    !matches!(error, StoreError::Unavailable(_) | StoreError::Unknown(_))
}

/// A span as real time.
pub(crate) fn real(span: Millis) -> Duration {
    Duration::from_millis(span.0)
}

impl Engine {
    /// Ticks every loop until none has work left at this instant. For engines without loops of their own.
    pub async fn tick(&self) -> Result<u32, StoreError> {
        let mut moved = 0;
        loop {
            let mut now_moved = 0;
            for name in Loop::ALL.iter().filter(|name| **name != Loop::Prune && !name.is_asked_for()) {
                now_moved += self.core.tick(*name).await?.moved;
            }
            now_moved += self.core.look_at_dependencies().await?;
            moved += now_moved;
            if now_moved == 0 {
                return Ok(moved);
            }
        }
    }

    /// One tick of one loop.
    pub async fn tick_loop(&self, name: Loop) -> Result<Progress, StoreError> {
        self.core.tick(name).await
    }

    /// The next instant after now at which a loop will have work.
    pub async fn next_instant(&self) -> Result<Option<Timestamp>, StoreError> {
        let now = self.now();
        let next = self.core.store.next_due().await?;
        let pauses = self.core.store.pauses().await?;
        let is_paused = |name: Loop| pauses.iter().any(|(paused, pause)| *paused == name && pause.until > now);
        let loops = Loop::ALL.iter().filter(|name| !is_paused(**name)).filter_map(|name| loop_of(*name));
        let dues = loops.filter_map(|it| it.next_due(&next));
        let ends = pauses.iter().map(|(_, pause)| pause.until).filter(|until| *until != Timestamp::MAX);
        let dependencies = self.core.store.next_dependency(now).await?;
        Ok(dues.chain(ends).chain(dependencies).filter(|at| *at > now).min())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_over_many_followers_rests_four_times_as_long_as_it_worked() {
        let ms = Duration::from_millis;
        let table = [(0, 0), (4, 0), (5, 20), (50, 200), (125, 500), (9_000, 500)];
        for (took, rest) in table {
            assert_eq!(rest_of_feed_reader(ms(took)), ms(rest), "{took} ms");
        }
    }

    #[test]
    fn every_loop_answers_to_its_name() {
        for name in Loop::ALL {
            assert!(loop_of(*name).is_none_or(|it| it.name() == *name), "{name}");
        }
    }
}
