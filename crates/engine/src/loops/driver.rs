//! Drives the loops: sleeps until there is work, ticks until there is none, asks the store for the next due time.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use comeback_core::{Millis, Timestamp};
use comeback_store::{Finished, Heartbeat, Loop, Running as Current, StoreError};

use super::promote::LeftToWorkers;
use super::{BackgroundLoop, Cadence, Progress, dependencies, is_answered, loop_of, real, rules, stats, time, waiters};
use crate::Core;

/// The pause after an error of the store.
const RETRY_AFTER: Duration = Duration::from_millis(500);

/// The background tasks of an engine. They end when this is dropped.
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

/// The future of a background task without a name in the store.
type Service = std::pin::Pin<Box<dyn Future<Output = Finished> + Send>>;

impl Running {
    /// Stops all tasks and returns when they have released everything.
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
        let driven = Loop::ALL.iter().copied().filter(|name| config.is_driven(*name));
        for it in driven.filter_map(loop_of) {
            let (core, name) = (Arc::downgrade(core), it.name());
            let period = real(config.period(name).unwrap_or(config.safety_interval));
            tasks.push(background.spawn(format!("loop/{name}"), period, move |beat| drive(core.clone(), it, beat)));
        }
        let mut spawn = |name: &str, period: Duration, start: fn(Weak<Core>, Arc<Heartbeat>) -> Service| {
            let core = Arc::downgrade(core);
            tasks.push(background.spawn(format!("loop/{name}"), period, move |beat| start(core.clone(), beat)));
        };
        let usual = real(config.safety_interval);
        spawn("clock", real(time::EVERY), |core, beat| Box::pin(time::run(core, beat)));
        spawn("rules", usual, |core, beat| Box::pin(rules::run(core, beat)));
        spawn("dependencies", usual, |core, beat| Box::pin(dependencies::run(core, beat)));
        spawn("stats", usual, |core, beat| Box::pin(stats::run(core, beat)));
        spawn("waiters", waiters::EVERY, |core, beat| Box::pin(waiters::run(core, beat)));
        Running { tasks: tasks.into() }
    }
}

/// Runs one loop until the engine is gone.
async fn drive(core: Weak<Core>, it: &'static dyn BackgroundLoop, beat: Arc<Heartbeat>) -> Finished {
    let mut is_failing = false;
    let mut left = LeftToWorkers::default();
    loop {
        let Some(core) = core.upgrade() else { return Finished };
        match run_until_done(&core, it, &mut left).await {
            Ok(next) => {
                is_failing = false;
                beat.turn();
                // Virtual time may stand still for as long as a test likes.
                if !core.clock.is_real() {
                    beat.idle();
                }
                wait(&core, it.name(), next).await;
                if !core.clock.is_real() {
                    beat.turn();
                }
                continue;
            }
            Err(error) => {
                if !is_failing {
                    tracing::warn!(name = %it.name(), %error, "background loop failed; retrying");
                }
                is_failing = true;
                if is_answered(&error) {
                    beat.turn();
                }
            }
        }
        drop(core);
        tokio::time::sleep(RETRY_AFTER).await;
    }
}

/// The next due time of a loop; `None` without a query if it has none.
async fn next_due(core: &Core, it: &dyn BackgroundLoop) -> Result<Option<Timestamp>, StoreError> {
    if it.cadence() == Cadence::Period {
        return Ok(None);
    }
    Ok(it.next_due(&core.store.next_due().await?))
}

/// Ticks while there is work and returns when to look again.
async fn run_until_done(
    core: &Core,
    it: &dyn BackgroundLoop,
    left: &mut LeftToWorkers,
) -> Result<Timestamp, StoreError> {
    let (name, cadence) = (it.name(), it.cadence());
    loop {
        core.alarms.of(name).clear();
        let grace = it.grace(core);
        let due_by = core.clock.now() - grace;
        core.tallies.looked(name, core.clock.now());
        // Reads are free; a tick takes the single writer.
        let mut next = next_due(core, it).await?;
        let mut progress = Progress::default();
        let is_due = next.is_some_and(|next| next <= due_by && left.is_over(next, core.clock.now()));
        if is_due || cadence != Cadence::DueTime {
            let started = Instant::now();
            progress = core.tick_after(it, grace).await?;
            Current::turn();
            let rest = it.rest_after(started.elapsed());
            if core.clock.is_real() && rest > Duration::ZERO {
                tokio::time::sleep(rest).await;
            }
            // A periodic loop also deletes rows that `moved` does not count.
            if progress.more && (progress.moved > 0 || cadence == Cadence::Period) {
                continue;
            }
            next = next_due(core, it).await?;
        }
        let now = core.clock.now();
        let period = core.config.period(name).unwrap_or(core.config.safety_interval);
        let safety = now + period;
        if cadence == Cadence::Period {
            return Ok(safety);
        }
        core.alarms.of(name).found(next);
        match next {
            Some(next) if next <= now && next + grace > now => {
                return Ok(left.leave(core, next, next + grace).await?.min(safety));
            }
            // It became due during the tick.
            Some(next) if next <= now && (next > due_by || progress.moved > 0) => {}
            // A worker is taking it at this moment, or it is still left to them.
            Some(next) if next <= now && grace > Millis::ZERO && !core.is_paused(name).await? => {
                let until = left.patience(next, now, grace, period);
                return Ok(left.leave(core, next, until).await?.min(safety));
            }
            // It was due before the tick and did not move: a pause holds it.
            Some(next) if next <= now => return Ok(safety),
            Some(next) => return Ok(next.min(safety)),
            None => return Ok(safety),
        }
    }
}

/// Sleeps until then, or until the alarm of the loop is set to something earlier.
async fn wait(core: &Core, name: Loop, mut until: Timestamp) {
    let alarm = core.alarms.of(name);
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use comeback_core::{Dialect, PolicyLimits, dialect};
    use comeback_store::{SqliteOptions, SqliteStore};

    use super::super::promote;
    use super::*;
    use crate::{Clock, Engine, EngineConfig, LeaseRequest, Moment, Report, ReportEnd, Submit, TaskSpec, VirtualClock};

    /// No worker may take a retry past its deadline while deadlines are paused.
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
        engine.pause_loop(Loop::Expire, None, comeback_core::transition::Actor::default()).await.unwrap();
        clock.advance(Millis(2_000));
        let mut left = LeftToWorkers::default();
        let mut rests = Vec::new();
        for _ in 0..12 {
            // Workers ask all the time.
            engine.core.asked_at.store(clock.now().0, Ordering::Relaxed);
            let next = run_until_done(&engine.core, &promote::RetriesLoop, &mut left).await.unwrap();
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
