//! Work that does not go on by itself: runs that are lost, and tasks that failed and could be retried. Both are repaired by the
//! pipeline that every change takes.

use comeback_core::decide::Snapshot;
use comeback_core::filter::{Filter, Sort};
use comeback_core::repair::{Repair, repair};
use comeback_core::transition::Act;
use comeback_core::{State, Task, TaskId, Trigger};
use comeback_store::{Behalf, Due, ListQuery, StoreError, Stored};

use crate::loops::reap;
use crate::pipeline::{ChangeOutcome, ChangeRequest, TaskChange};
use crate::{CommandError, Core, Engine};

/// What became of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Retried,
    MarkedFailed,
    Skipped,
}

impl Action {
    pub const ALL: [Action; 3] = [Action::Retried, Action::MarkedFailed, Action::Skipped];

    pub fn word(self) -> &'static str {
        match self {
            Action::Retried => "RETRIED",
            Action::MarkedFailed => "MARKED_FAILED",
            Action::Skipped => "SKIPPED",
        }
    }
}

/// A task, what became of it, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct PutRight {
    pub task: TaskId,
    pub namespace: String,
    pub kind: String,
    pub action: Action,
    pub reason: String,
}

impl PutRight {
    fn of(stored: &Stored, action: Action, reason: impl Into<String>) -> PutRight {
        let (task, lane) = (stored.task.id, &stored.task.lane);
        PutRight { task, namespace: lane.namespace.clone(), kind: lane.kind.clone(), action, reason: reason.into() }
    }
}

/// What became of a wish that was to bring a task on.
fn put_right(stored: &Stored, outcome: &ChangeOutcome) -> PutRight {
    let (action, reason) = match outcome {
        ChangeOutcome::Changed(changed) => {
            let reason = changed.reason.map_or("retry", |reason| reason.word()).to_owned();
            match changed.state {
                State::RetryPending | State::Pending => (Action::Retried, reason),
                State::Failed | State::Dead => (Action::MarkedFailed, reason),
                state => (Action::Skipped, state.word().to_owned()),
            }
        }
        ChangeOutcome::Paused => (Action::Skipped, "the loop is paused".into()),
        ChangeOutcome::Rejected(rejection) => (Action::Skipped, rejection.to_string()),
        ChangeOutcome::NotFound => (Action::Skipped, "it is gone".into()),
        ChangeOutcome::Unfunded(_) => (Action::Skipped, "its account has too little".into()),
        ChangeOutcome::Stale | ChangeOutcome::KeyTaken | ChangeOutcome::Used(_) => {
            (Action::Skipped, "somebody else was quicker".into())
        }
        ChangeOutcome::Corrupt(detail) => (Action::Skipped, detail.clone()),
    };
    PutRight::of(stored, action, reason)
}

/// By what a run whose lease has run out was lost.
pub fn lost_by(task: &Task) -> Trigger {
    reap::trigger(task)
}

impl Engine {
    /// Gives up the runs that are lost, at once, also while the loop that does it is paused. Whether there are more.
    pub async fn process_stuck(&self, limit: u32) -> Result<(Vec<PutRight>, bool), CommandError> {
        let due = self.core.store.due(Due::Leases, self.now(), limit).await?;
        let more = due.len() >= limit as usize;
        let end = |stored: &Stored| ChangeRequest::exact(stored.clone(), reap::lost(stored));
        let outcomes = self.core.apply_changes(due.iter().map(end).collect(), Behalf::Caller).await?;
        Ok((due.iter().zip(&outcomes).map(|(stored, outcome)| put_right(stored, outcome)).collect(), more))
    }

    /// Looks for tasks that failed with an error that is retryable today, takes the verdict on each again, and retries those that would
    /// be retried now, also while the loop `repair` is paused; with `dry_run` it only tells which. Each is guarded by its version like
    /// any other act.
    pub async fn process_failed(
        &self,
        namespace: &str,
        limit: u32,
        dry_run: bool,
        act: &Act,
    ) -> Result<Vec<PutRight>, CommandError> {
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
        act: &Act,
        behalf: Behalf<'_>,
    ) -> Result<Vec<PutRight>, StoreError> {
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
                Repair::Skip => done.push(PutRight::of(&stored, Action::Skipped, "no run of its own failed")),
                Repair::Stay(reason) => done.push(PutRight::of(&stored, Action::MarkedFailed, reason.word())),
                Repair::Retry if dry_run => done.push(PutRight::of(&stored, Action::Retried, "retry")),
                Repair::Retry => {
                    let change = TaskChange::Retry { keep_counters: true, at: None, edit: None, act: act.clone() };
                    let request = ChangeRequest::exact(stored.clone(), change);
                    let outcomes = self.apply_changes(vec![request], behalf).await?;
                    done.extend(outcomes.first().map(|outcome| put_right(&stored, outcome)));
                }
            }
        }
        Ok(done)
    }
}
