//! Counts what this process has stored, for those who watch it. Nothing is decided by these numbers.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use comeback_core::{AttemptOutcome, Commit, EventKind, Trigger};
use parking_lot::Mutex;

/// Attempts from this one on are counted together.
pub const LAST_ATTEMPT: usize = 10;

#[derive(Default)]
pub struct Tallies {
    events: Mutex<BTreeMap<EventKind, u64>>,
    by_strategy: Mutex<BTreeMap<String, u64>>,
    succeeded_at: [AtomicU64; LAST_ATTEMPT],
    failed_at: [AtomicU64; LAST_ATTEMPT],
    timed_out: AtomicU64,
    delay_ms: AtomicU64,
    delays: AtomicU64,
}

/// The numbers at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tally {
    pub events: BTreeMap<EventKind, u64>,
    pub retries_by_strategy: BTreeMap<String, u64>,
    /// By attempt number, from 1.
    pub succeeded_at: Vec<u64>,
    pub failed_at: Vec<u64>,
    pub timed_out: u64,
    /// Of all retries that were scheduled, together.
    pub delay_ms: u64,
    pub delays: u64,
}

impl Tallies {
    pub fn add(&self, kind: EventKind, count: u64) {
        if count > 0 {
            *self.events.lock().entry(kind).or_default() += count;
        }
    }

    /// What a commit tells. Starts and due times are counted where they happen.
    pub fn count(&self, commit: &Commit) {
        let elsewhere = [EventKind::TaskReady, EventKind::TaskRetryDue, EventKind::AttemptStarted];
        for record in &commit.records {
            for kind in record.events.iter().filter(|kind| !elsewhere.contains(kind)) {
                self.add(*kind, 1);
            }
            let Some(outcome) = record.outcome else { continue };
            let before = record.decision.as_ref().map_or(record.attempt, |decision| decision.before.attempt);
            let place = (before as usize).min(LAST_ATTEMPT - 1);
            match outcome {
                AttemptOutcome::Succeeded => self.succeeded_at[place].fetch_add(1, Ordering::Relaxed),
                AttemptOutcome::Failed => self.failed_at[place].fetch_add(1, Ordering::Relaxed),
                _ => 0,
            };
            if record.failure.as_ref().is_some_and(|failure| failure.trigger == Trigger::Timeout) {
                self.timed_out.fetch_add(1, Ordering::Relaxed);
            }
            if let Some(delay) = record.decision.as_ref().and_then(|decision| decision.delay.as_ref()) {
                *self.by_strategy.lock().entry(delay.strategy.clone()).or_default() += 1;
                self.delay_ms.fetch_add(delay.total_ms, Ordering::Relaxed);
                self.delays.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    pub fn now(&self) -> Tally {
        let all = |numbers: &[AtomicU64]| numbers.iter().map(|it| it.load(Ordering::Relaxed)).collect();
        Tally {
            events: self.events.lock().clone(),
            retries_by_strategy: self.by_strategy.lock().clone(),
            succeeded_at: all(&self.succeeded_at),
            failed_at: all(&self.failed_at),
            timed_out: self.timed_out.load(Ordering::Relaxed),
            delay_ms: self.delay_ms.load(Ordering::Relaxed),
            delays: self.delays.load(Ordering::Relaxed),
        }
    }
}
