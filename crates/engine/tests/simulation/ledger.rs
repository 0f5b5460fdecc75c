//! What the actors were told, in the order in which they were told it.

use std::collections::{BTreeMap, BTreeSet};

use comeback_core::{State, TaskId, Timestamp};
use comeback_engine::LeaseRef;
use comeback_engine::store::Loop;

#[derive(Default)]
pub struct Ledger {
    step: u64,
    /// Tasks whose creation was acknowledged.
    pub submitted: BTreeSet<TaskId>,
    /// Which tasks an idempotency key has answered.
    pub keys: BTreeMap<u64, BTreeSet<TaskId>>,
    /// Leases that were given: when the worker got it, by step, and until when it was to last.
    pub leases: BTreeMap<(TaskId, u32), GivenLease>,
    /// Cancels that were acknowledged, by step.
    pub canceled: BTreeMap<TaskId, u64>,
    /// Pauses of loops: from the acknowledgement until their end.
    pub pauses: Vec<PausedLoop>,
    /// Pauses and resumes that are under way, by loop, and how many there ever were.
    pub turning: BTreeMap<Loop, (u32, u64)>,
    /// Ends that were acknowledged as terminal.
    pub ended: BTreeMap<TaskId, State>,
    /// Tasks for which a manual retry was ever asked for, whether it was answered or not.
    pub revived: BTreeSet<TaskId>,
    pub counts: Counts,
}

#[derive(Clone, Debug)]
pub struct GivenLease {
    pub worker: u64,
    pub asked_at_step: u64,
    pub granted_at: Timestamp,
    /// Until when it may last, counting heartbeats without an answer.
    pub expires_at: Timestamp,
    /// Until when the worker was told that it lasts.
    pub promised_until: Timestamp,
    /// Set when a report about it was accepted.
    pub accepted: Option<&'static str>,
    /// Set when a report about it went off without an answer: it may have been taken.
    pub unheard: bool,
}

#[derive(Clone, Debug)]
pub struct PausedLoop {
    pub name: Loop,
    pub from: Timestamp,
    pub until: Timestamp,
}

/// What a run was worth: a run in which nothing happened proves nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub accepted: u64,
    pub refused: u64,
    pub failed_calls: u64,
    pub stale_reports_refused: u64,
}

impl Ledger {
    pub fn step(&mut self) -> u64 {
        self.step += 1;
        self.step
    }

    pub fn lease_of(&mut self, lease: LeaseRef) -> Option<&mut GivenLease> {
        self.leases.get_mut(&(lease.task, lease.number))
    }
}
