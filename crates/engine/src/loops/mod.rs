//! What happens by itself: a file for each loop, and one way to drive them all.
//!
//! A loop sleeps towards the next instant it knows of and is woken by an earlier one. It looks at the store when its time has come,
//! and now and then in any case. None of them remembers anything that a restart would miss.

mod expire;
mod flow;
mod guards;
mod operations;
mod promote;
pub(crate) mod prune;
pub mod reap;
mod repair;
mod rules;
mod schedule;
mod stats;
mod time;
mod timeout;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use comeback_core::{Millis, Timestamp};
use comeback_store::{Finished, Heartbeat, Loop, NextDue, Running as Current, StoreError, panic_point};

use crate::alerts::look;
use crate::subscriptions::follow;
use crate::wake::Alarm;
use crate::{Core, Engine};

/// What a tick did, and whether there is more of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    pub moved: u32,
    pub more: bool,
}

impl Progress {
    /// Both together.
    fn and(self, other: Progress) -> Progress {
        Progress { moved: self.moved + other.moved, more: self.more || other.more }
    }
}

/// Tasks looked at in one go.
pub(crate) const BATCH: u32 = 1_000;

impl Core {
    pub(crate) async fn tick(&self, name: Loop) -> Result<Progress, StoreError> {
        self.tick_after(name, Millis::ZERO).await
    }

    /// What has been due for so long.
    async fn tick_after(&self, name: Loop, grace: Millis) -> Result<Progress, StoreError> {
        let began = Instant::now();
        let ticked = self.work_off(name, grace).await;
        self.tallies.ticked(name, began, ticked.as_ref().ok().map(|progress| progress.moved));
        ticked
    }

    async fn work_off(&self, name: Loop, grace: Millis) -> Result<Progress, StoreError> {
        let due_by = self.clock.now() - grace;
        match name {
            Loop::Retries => {
                panic_point!("loop-retries");
                promote::tick(self, comeback_store::Promote::Retries, due_by).await
            }
            Loop::Starts => {
                panic_point!("loop-starts");
                promote::tick(self, comeback_store::Promote::Starts, due_by).await
            }
            Loop::Reap | Loop::Timeout if due_by.0 < self.losses_from.load(Ordering::Relaxed) => {
                Ok(Progress::default())
            }
            Loop::Reap => {
                panic_point!("loop-reap");
                reap::tick(self).await
            }
            Loop::Timeout => {
                panic_point!("loop-timeout");
                timeout::tick(self).await
            }
            Loop::Expire => {
                panic_point!("loop-expire");
                expire::tick(self).await
            }
            Loop::Flow => {
                panic_point!("loop-flow");
                flow::tick(self).await
            }
            Loop::Prune => {
                panic_point!("loop-prune");
                prune::tick(self).await
            }
            Loop::Schedule => {
                panic_point!("loop-schedule");
                schedule::tick(self).await
            }
            Loop::Operations => {
                panic_point!("loop-operations");
                operations::tick(self).await
            }
            Loop::Tell => {
                panic_point!("loop-subscriptions");
                follow::tick(self).await
            }
            Loop::Alerts => {
                panic_point!("loop-alerts");
                look::tick(self).await
            }
            Loop::Repair => {
                panic_point!("loop-repair");
                repair::tick(self).await
            }
            Loop::Dispatch | Loop::Hooks => Ok(Progress::default()),
        }
    }

    fn alarm_of(&self, name: Loop) -> Option<&Alarm> {
        Some(match name {
            Loop::Retries => &self.alarms.retries,
            Loop::Starts => &self.alarms.starts,
            Loop::Reap => &self.alarms.leases,
            Loop::Timeout => &self.alarms.timeouts,
            Loop::Expire => &self.alarms.deadlines,
            Loop::Flow => &self.alarms.flow,
            Loop::Schedule => &self.alarms.schedules,
            Loop::Operations => &self.alarms.operations,
            Loop::Tell => &self.alarms.tell,
            Loop::Alerts => &self.alarms.alerts,
            Loop::Prune | Loop::Dispatch | Loop::Hooks | Loop::Repair => return None,
        })
    }

    /// When there is something to do next, as the store knows it.
    async fn next(&self, name: Loop) -> Result<Option<Timestamp>, StoreError> {
        if name == Loop::Prune {
            return Ok(None);
        }
        Ok(next_of(name, &self.store.next_due().await?))
    }

    /// Makes a loop look at once.
    pub(crate) fn ring(&self, name: Loop) {
        if let Some(alarm) = self.alarm_of(name) {
            alarm.at(Timestamp(i64::MIN));
        }
    }
}

fn next_of(name: Loop, next: &NextDue) -> Option<Timestamp> {
    match name {
        Loop::Retries => next.retry,
        Loop::Starts => next.start,
        Loop::Reap => next.lease,
        Loop::Timeout => next.timeout,
        Loop::Expire => next.deadline,
        Loop::Flow => next.gate,
        Loop::Schedule => next.schedule,
        Loop::Operations => next.operation,
        Loop::Alerts => next.alert,
        Loop::Prune | Loop::Tell | Loop::Dispatch | Loop::Hooks | Loop::Repair => None,
    }
}

/// Whether a loop has nothing to do before the next instant that the store knows of.
fn has_a_time(name: Loop) -> bool {
    !matches!(name, Loop::Flow | Loop::Tell | Loop::Alerts | Loop::Prune | Loop::Repair)
}

/// Loops in the background. They end with this.
#[derive(Default)]
pub struct Running {
    tasks: parking_lot::Mutex<Vec<tokio::task::JoinHandle<()>>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        for task in self.tasks.get_mut() {
            task.abort();
        }
    }
}

impl Running {
    /// Stops them, and returns when none of them holds anything any more.
    pub(crate) async fn stop(&self) {
        let tasks = std::mem::take(&mut *self.tasks.lock());
        for task in tasks {
            task.abort();
            let _ = task.await;
        }
    }

    pub(crate) fn start(core: &Arc<Core>) -> Running {
        core.flow_pace.start();
        let (config, background) = (&core.config, &core.config.background);
        let mut tasks = Vec::new();
        for name in Loop::ALL.iter().copied().filter(|name| config.is_driven(*name)) {
            let (core, period) = (Arc::downgrade(core), real(config.period(name).unwrap_or(config.safety_interval)));
            tasks.push(background.spawn(format!("loop/{name}"), period, move |beat| drive(core.clone(), name, beat)));
        }
        let mut keep = |name: &str, period: Duration, start: fn(Weak<Core>, Arc<Heartbeat>) -> Keeping| {
            let core = Arc::downgrade(core);
            tasks.push(background.spawn(format!("loop/{name}"), period, move |beat| start(core.clone(), beat)));
        };
        let usual = real(config.safety_interval);
        keep("clock", real(time::EVERY), |core, beat| Box::pin(time::keep(core, beat)));
        keep("rules", usual, |core, beat| Box::pin(rules::keep(core, beat)));
        keep("dependencies", usual, |core, beat| Box::pin(guards::keep(core, beat)));
        keep("stats", usual, |core, beat| Box::pin(stats::keep(core, beat)));
        keep("waiters", LOOK, |core, beat| Box::pin(look_now_and_then(core, beat)));
        Running { tasks: tasks.into() }
    }
}

/// A loop that has no name of its own in the store.
type Keeping = std::pin::Pin<Box<dyn Future<Output = Finished> + Send>>;

/// How often those who wait for work look by themselves.
const LOOK: Duration = Duration::from_millis(500);

/// Whether a loop has turned although it got an error: it has where the store answers, and has not where it does not.
fn is_answered(error: &StoreError) -> bool {
    !matches!(error, StoreError::Unavailable(_) | StoreError::Unknown(_))
}

/// One loop, for ever: sleep, look, work until there is no more, find out what is next.
async fn drive(core: Weak<Core>, name: Loop, beat: Arc<Heartbeat>) -> Finished {
    let mut troubled = false;
    let mut told = promote::Told::default();
    loop {
        let Some(core) = core.upgrade() else { return Finished };
        let outcome = run_until_done(&core, name, &mut told).await;
        let rest = match outcome {
            Ok(next) => {
                troubled = false;
                beat.turn();
                // Nobody knows when a time comes that is moved by hand.
                if !core.clock.is_real() {
                    beat.idle();
                }
                wait(&core, name, next).await;
                if !core.clock.is_real() {
                    beat.turn();
                }
                continue;
            }
            Err(error) => {
                if !troubled {
                    tracing::warn!(%name, %error, "a loop cannot reach the store; it tries again");
                }
                troubled = true;
                if is_answered(&error) {
                    beat.turn();
                }
                Duration::from_millis(500)
            }
        };
        drop(core);
        tokio::time::sleep(rest).await;
    }
}

/// Works off what is due and answers when to look again.
async fn run_until_done(core: &Core, name: Loop, told: &mut promote::Told) -> Result<Timestamp, StoreError> {
    loop {
        if let Some(alarm) = core.alarm_of(name) {
            alarm.clear();
        }
        let grace = if name == Loop::Retries { promote::grace(core) } else { Millis::ZERO };
        let looked_at = core.clock.now() - grace;
        core.tallies.looked(name, core.clock.now());
        // To look costs nothing, and to work takes a turn of whoever writes.
        let mut next = core.next(name).await?;
        let mut progress = Progress::default();
        if next.is_some_and(|next| next <= looked_at && told.is_over(next, core.clock.now())) || !has_a_time(name) {
            let began = std::time::Instant::now();
            progress = core.tick_after(name, grace).await?;
            Current::turn();
            if core.clock.is_real() && matches!(name, Loop::Tell | Loop::Alerts) {
                tokio::time::sleep(rest_after(began.elapsed())).await;
            }
            // What is pruned beside tasks is not counted, and when there is more of it some of it went.
            if progress.more && (progress.moved > 0 || name == Loop::Prune) {
                continue;
            }
            next = core.next(name).await?;
        }
        let now = core.clock.now();
        let period = core.config.period(name).unwrap_or(core.config.safety_interval);
        let safety = now + period;
        if matches!(name, Loop::Prune | Loop::Repair) {
            return Ok(safety);
        }
        if let Some(alarm) = core.alarm_of(name) {
            alarm.found(next);
        }
        match next {
            Some(next) if next <= now && next + grace > now => {
                return Ok(told.leave(core, next, next + grace).await?.min(safety));
            }
            // It came due while we looked at the others.
            Some(next) if next <= now && (next > looked_at || progress.moved > 0) => {}
            // A worker holds it in its hands at this moment, or it was left for us by now.
            Some(next) if next <= now && grace > Millis::ZERO && !is_paused(core, name, now).await? => {
                let patience = told.patience(next, now, grace, period);
                return Ok(told.leave(core, next, patience).await?.min(safety));
            }
            // It was due when we looked and did not move: a pause holds it up. We look again now and then.
            Some(next) if next <= now => return Ok(safety),
            Some(next) => return Ok(next.min(safety)),
            None => return Ok(safety),
        }
    }
}

/// How long a loop over everybody who follows the feed rests after a turn. Thousands of followers, of whatever namespace, take a fifth of a
/// processor at most; few of them are never made to wait.
fn rest_after(took: Duration) -> Duration {
    match took < Duration::from_millis(5) {
        true => Duration::ZERO,
        false => (took * 4).min(Duration::from_millis(500)),
    }
}

pub(crate) async fn is_paused(core: &Core, name: Loop, now: Timestamp) -> Result<bool, StoreError> {
    Ok(core.store.pauses().await?.iter().any(|(paused, pause)| *paused == name && pause.until > now))
}

async fn wait(core: &Core, name: Loop, until: Timestamp) {
    let Some(alarm) = core.alarm_of(name) else {
        return core.clock.sleep_until(until).await;
    };
    let mut until = until;
    loop {
        until = until.min(alarm.next());
        if until <= core.clock.now() {
            return;
        }
        tokio::select! {
            biased;
            () = alarm.earlier() => {}
            () = core.clock.sleep_until(until) => return,
        }
    }
}

/// Those who wait for work look now and then, and whenever another instance says that there is some.
async fn look_now_and_then(core: Weak<Core>, beat: Arc<Heartbeat>) -> Finished {
    let Some(mut hints) = core.upgrade().map(|core| core.store.wakes()) else { return Finished };
    loop {
        let hinted = tokio::time::timeout(LOOK, hints.changed()).await;
        let Some(core) = core.upgrade() else { return Finished };
        beat.turn();
        panic_point!("loop-waiters");
        core.wake.look();
        core.ring(Loop::Flow);
        core.ring(Loop::Tell);
        core.ring(Loop::Alerts);
        if let Ok(Err(_)) = hinted {
            tokio::time::sleep(LOOK).await;
        }
    }
}

impl Engine {
    /// Runs every loop once over, until none has anything left to do at this instant. For engines without loops of their own.
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

    /// The next instant after now at which a loop will have something to do.
    pub async fn next_instant(&self) -> Result<Option<Timestamp>, StoreError> {
        let now = self.now();
        let next = self.core.store.next_due().await?;
        let pauses = self.core.store.pauses().await?;
        let is_paused = |name: Loop| pauses.iter().any(|(paused, pause)| *paused == name && pause.until > now);
        let dues = Loop::ALL.iter().filter(|name| !is_paused(**name)).filter_map(|name| next_of(*name, &next));
        let ends = pauses.iter().map(|(_, pause)| pause.until).filter(|until| *until != Timestamp::MAX);
        let lets = self.core.store.next_dependency(now).await?;
        Ok(dues.chain(ends).chain(lets).filter(|at| *at > now).min())
    }
}

/// A span as real time.
pub(crate) fn real(span: Millis) -> Duration {
    Duration::from_millis(span.0)
}

#[cfg(test)]
mod tests {
    use comeback_core::{Dialect, PolicyLimits, dialect};
    use comeback_store::{SqliteOptions, SqliteStore};

    use super::*;
    use crate::{Clock, EngineConfig, LeaseRequest, Moment, Report, ReportEnd, Submit, TaskSpec, VirtualClock};

    #[test]
    fn a_loop_over_many_followers_rests_four_times_as_long_as_it_worked() {
        let ms = Duration::from_millis;
        let table = [(0, 0), (4, 0), (5, 20), (50, 200), (125, 500), (9_000, 500)];
        for (took, rest) in table {
            assert_eq!(rest_after(ms(took)), ms(rest), "{took} ms");
        }
    }

    /// A retry past its deadline is nobody's while deadlines are paused.
    #[tokio::test]
    async fn a_retry_that_nobody_may_take_does_not_keep_its_loop_awake() {
        let clock = VirtualClock::new(Timestamp(1_800_000_000_000));
        let store = Arc::new(SqliteStore::open(&SqliteOptions::in_memory()).unwrap());
        let engine = Engine::without_loops(store, clock.clone(), EngineConfig::default()).await.unwrap();
        let policy = serde_json::json!({"strategy": "fixed", "delay": "1s", "max_retries": 9});
        let policy = dialect::parse(&policy, Dialect::Native, &PolicyLimits::default()).unwrap().unwrap();
        let spec = TaskSpec { deadline: Some(Moment::After(Millis(1_500))), ..TaskSpec::new("a").retry(policy) };
        engine.submit(Submit::one("default", spec)).await.unwrap();
        let lease = engine.lease(LeaseRequest::new("default", "w")).await.unwrap()[0].lease;
        let end = ReportEnd::Failed(comeback_core::Failure::new(comeback_core::Trigger::Error, "x"));
        engine.report(vec![Report { lease, end }]).await.unwrap().remove(0).unwrap();
        engine.pause_loop(Loop::Expire, None, comeback_core::transition::Act::default()).await.unwrap();
        clock.advance(Millis(2_000));
        let mut told = promote::Told::default();
        let mut rests = Vec::new();
        for _ in 0..12 {
            // Workers ask all the time.
            engine.core.asked_at.store(clock.now().0, Ordering::Relaxed);
            let next = run_until_done(&engine.core, Loop::Retries, &mut told).await.unwrap();
            rests.push(next.since(clock.now()));
            clock.set(next);
        }
        assert_eq!(rests[0], promote::GRACE, "at first it may be in somebody's hands");
        assert_eq!(
            *rests.last().unwrap(),
            engine.core.config.safety_interval,
            "S1-68, the look that is taken in any case: {rests:?}"
        );
    }
}
