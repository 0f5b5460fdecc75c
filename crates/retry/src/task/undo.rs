//! Snapshot of a task before a manual retry, for undoing it.

use serde::{Deserialize, Serialize};

use crate::failure::Class;
use crate::reason::Reason;
use crate::task::{Counters, Hold, State, Task};
use crate::time::{Millis, Timestamp};

/// A task before an operation came, as far as it can be put back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UndoSnapshot {
    /// The state.
    pub state: State,
    /// The version.
    pub version: u32,
    /// The cycle.
    pub cycle: u32,
    /// The run.
    pub run: u32,
    /// The number of the last lease.
    pub lease_number: u32,
    /// The counters.
    #[serde(default)]
    pub counters: Counters,
    /// How often each rule was applied.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rule_counts: Vec<u32>,
    /// Why it had ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// The class of its last failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<Class>,
    /// The error group of its last failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<i64>,
    /// When its retry was due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_retry_at: Option<Timestamp>,
    /// When it was to start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_at: Option<Timestamp>,
    /// Its hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<Hold>,
    /// Its deadline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// How long after its beginning the deadline was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifetime: Option<Millis>,
    /// The first failure of the cycle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_failed_at: Option<Timestamp>,
    /// When its run started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// When it had ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
    /// Whether it was parked.
    #[serde(default)]
    pub parked: bool,
}

impl UndoSnapshot {
    /// A snapshot of a task.
    pub fn of(task: &Task) -> UndoSnapshot {
        UndoSnapshot {
            state: task.state,
            version: task.version,
            cycle: task.cycle,
            run: task.run,
            lease_number: task.lease_number,
            counters: task.counters,
            rule_counts: task.rule_counts.clone(),
            reason: task.reason,
            class: task.class,
            fingerprint: task.fingerprint,
            next_retry_at: task.next_retry_at,
            start_at: task.start_at,
            hold: task.hold.clone(),
            expires_at: task.expires_at,
            lifetime: task.lifetime,
            first_failed_at: task.first_failed_at,
            started_at: task.started_at,
            ended_at: task.ended_at,
            parked: task.parked,
        }
    }

    /// Whether the task still waits for the retry that was asked for, and nothing else has happened.
    pub fn may_come_back(&self, task: &Task) -> bool {
        let waits = matches!(task.state, State::Pending | State::RetryPending);
        let untouched = task.run == self.run && task.lease_number == self.lease_number;
        waits && untouched && task.cycle == self.cycle + 1 && !self.state.is_active()
    }

    /// Whether the operation was the last that changed the task.
    pub fn is_one_behind(&self, task: &Task) -> bool {
        task.version == self.version + 1
    }

    pub(crate) fn restore(&self, task: &mut Task) {
        task.cycle = self.cycle;
        task.counters = self.counters;
        task.rule_counts.clone_from(&self.rule_counts);
        task.reason = self.reason;
        task.class = self.class;
        task.fingerprint = self.fingerprint;
        task.next_retry_at = self.next_retry_at;
        task.hold.clone_from(&self.hold);
        task.expires_at = self.expires_at;
        task.lifetime = self.lifetime;
        task.first_failed_at = self.first_failed_at;
        task.started_at = self.started_at;
        task.ended_at = self.ended_at;
    }

    /// Whether the task was started after the snapshot, so that there is nothing to undo.
    pub fn has_run_since(&self, task: &Task) -> bool {
        task.run > self.run || task.state.is_active()
    }
}
