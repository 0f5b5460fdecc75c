//! Work that does not go on by itself: runs that are lost, and tasks that failed and could be retried. Both are repaired by the
//! pipeline that every change takes.

use comeback_core::decide::Snapshot;
use comeback_core::filter::{Filter, Sort};
use comeback_core::repair::{Repair, repair};
use comeback_core::transition::Actor;
use comeback_core::{State, Task, TaskId, Trigger};
use comeback_store::{Behalf, Due, ListQuery, StoreError, Stored};

use crate::loops::reap;
use crate::pipeline::{ChangeOutcome, ChangeRequest, TaskChange};
use crate::{CommandError, Core, Engine};

/// Result for one task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RepairAction {
    /// It is retried.
    Retried,
    /// It has failed for good.
    MarkedFailed,
    /// It was left alone.
    Skipped,
}

impl RepairAction {
    /// All of them.
    pub const ALL: [RepairAction; 3] = [RepairAction::Retried, RepairAction::MarkedFailed, RepairAction::Skipped];

    /// Its wire word.
    pub fn word(self) -> &'static str {
        match self {
            RepairAction::Retried => "RETRIED",
            RepairAction::MarkedFailed => "MARKED_FAILED",
            RepairAction::Skipped => "SKIPPED",
        }
    }
}

/// A task, the result for it, and the reason.
#[derive(Clone, Debug, PartialEq)]
pub struct RepairResult {
    /// The task.
    pub task: TaskId,
    /// Its namespace.
    pub namespace: String,
    /// Its kind.
    pub kind: String,
    /// Result.
    pub action: RepairAction,
    /// Reason in words.
    pub reason: String,
}

impl RepairResult {
    fn of(stored: &Stored, action: RepairAction, reason: impl Into<String>) -> RepairResult {
        let (task, lane) = (stored.task.id, &stored.task.lane);
        RepairResult { task, namespace: lane.namespace.clone(), kind: lane.kind.clone(), action, reason: reason.into() }
    }
}

/// The result of a change that was meant to bring a task on.
fn repair_result(stored: &Stored, outcome: &ChangeOutcome) -> RepairResult {
    let (action, reason) = match outcome {
        ChangeOutcome::Changed(changed) => {
            let reason = changed.reason.map_or("retry", |reason| reason.word()).to_owned();
            match changed.state {
                State::RetryPending | State::Pending => (RepairAction::Retried, reason),
                State::Failed | State::Dead => (RepairAction::MarkedFailed, reason),
                state => (RepairAction::Skipped, state.word().to_owned()),
            }
        }
        ChangeOutcome::Paused => (RepairAction::Skipped, "the loop is paused".into()),
        ChangeOutcome::Rejected(rejection) => (RepairAction::Skipped, rejection.to_string()),
        ChangeOutcome::NotFound => (RepairAction::Skipped, "it is gone".into()),
        ChangeOutcome::Unfunded(_) => (RepairAction::Skipped, "its account has too little".into()),
        ChangeOutcome::Stale | ChangeOutcome::KeyTaken | ChangeOutcome::Used(_) => {
            (RepairAction::Skipped, "somebody else was quicker".into())
        }
        ChangeOutcome::Corrupt(detail) => (RepairAction::Skipped, detail.clone()),
    };
    RepairResult::of(stored, action, reason)
}

/// The trigger of a failure by an expired lease.
pub fn lost_by(task: &Task) -> Trigger {
    reap::trigger(task)
}

impl Engine {
    /// Ends lost runs at once, also while the loop `reap` is paused. The flag tells whether there are more.
    pub async fn process_stuck(&self, limit: u32) -> Result<(Vec<RepairResult>, bool), CommandError> {
        let due = self.core.store.due(Due::Leases, self.now(), limit).await?;
        let more = due.len() >= limit as usize;
        let end = |stored: &Stored| ChangeRequest::exact(stored.clone(), reap::lost(stored));
        let outcomes = self.core.apply_changes(due.iter().map(end).collect(), Behalf::Caller).await?;
        Ok((due.iter().zip(&outcomes).map(|(stored, outcome)| repair_result(stored, outcome)).collect(), more))
    }

    /// Looks for tasks that failed with an error that is retryable today, takes the verdict on each again, and retries those that would
    /// be retried now, also while the loop `repair` is paused; with `dry_run` it only tells which. Each is guarded by its version like
    /// any other act.
    pub async fn process_failed(
        &self,
        namespace: &str,
        limit: u32,
        dry_run: bool,
        act: &Actor,
    ) -> Result<Vec<RepairResult>, CommandError> {
        self.core.config.limits.check_act(act)?;
        Ok(self.core.repair_failed(namespace, limit, dry_run, act, Behalf::Caller).await?)
    }
}

impl Core {
    pub(crate) async fn repair_failed(
        &self,
        namespace: &str,
        limit: u32,
        dry_run: bool,
        act: &Actor,
        behalf: Behalf<'_>,
    ) -> Result<Vec<RepairResult>, StoreError> {
        let now = self.clock.now();
        let filter = Filter::parse("state:failure", now).map_err(|error| StoreError::Refused(error.message))?;
        let query = ListQuery { filter, sort: Sort::SubmittedDesc, limit, after: None, now };
        let mut done = Vec::new();
        for listed in self.store.list(namespace, &query).await?.items {
            let stored = listed.stored;
            let last = self.store.task(namespace, stored.task.id).await?.and_then(|view| view.last_failure);
            let mut snapshot: Snapshot = self.snapshot(&stored);
            snapshot.guard.reclassified = self.classes.of(&stored.task.lane);
            match repair(&snapshot, last.as_ref(), now) {
                Repair::Skip => done.push(RepairResult::of(&stored, RepairAction::Skipped, "no run of its own failed")),
                Repair::Stay(reason) => done.push(RepairResult::of(&stored, RepairAction::MarkedFailed, reason.word())),
                Repair::Retry if dry_run => done.push(RepairResult::of(&stored, RepairAction::Retried, "retry")),
                Repair::Retry => {
                    let act = act.part(&stored.task.id.to_string());
                    let change = TaskChange::Retry { keep_counters: true, at: None, edit: None, act };
                    let request = ChangeRequest::exact(stored.clone(), change);
                    let outcomes = match self.apply_changes(vec![request], behalf).await {
                        Err(StoreError::KeyUsed(used)) => vec![ChangeOutcome::Used(used)],
                        outcomes => outcomes?,
                    };
                    done.extend(outcomes.first().map(|outcome| repair_result(&stored, outcome)));
                }
            }
        }
        Ok(done)
    }
}
