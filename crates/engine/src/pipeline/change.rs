//! Requested changes of tasks and their outcomes.

use std::sync::Arc;

use comeback_core::operation::{Action, Mark, UndoSnapshot};
use comeback_core::payload::NewPayload;
use comeback_core::transition::Actor;
use comeback_core::{AuditAction, Edge, Millis, Outcome, Reason, Rejection, State, Task, TaskId, Timestamp};
use comeback_store::{NewTask, StoreError, Stored, Unfunded, Used};

use crate::CommandError;

/// A requested state change.
#[derive(Clone, Debug)]
pub(crate) enum TaskChange {
    /// Ends the current run, or reports how it ended.
    End(Outcome),
    /// Ends a task whose deadline has passed.
    Expire,
    Cancel(Actor),
    Pause(Actor),
    Resume(Actor),
    Reschedule {
        to: Timestamp,
        act: Actor,
    },
    Snooze {
        by: Millis,
        act: Actor,
    },
    /// Clears the hold; audited on the dependency.
    ClearHold(Actor),
    /// A manual retry.
    Retry {
        keep_counters: bool,
        at: Option<Timestamp>,
        edit: Option<Edit>,
        act: Actor,
    },
    /// Undoes the step of a bulk operation if the task has not moved since.
    Undo {
        action: Action,
        was: Box<UndoSnapshot>,
        act: Actor,
    },
    /// The start call of a hook was answered.
    HookStarted {
        lease_number: u32,
    },
    Gate(Gate),
}

/// A new payload and the version that it replaces.
#[derive(Clone, Debug)]
pub(crate) struct Edit {
    pub edited: u32,
    pub payload: Arc<str>,
}

/// Result of evaluating the gate of a task.
#[derive(Clone, Debug)]
pub(crate) enum Gate {
    Open,
    Skip,
    Fail(String),
    /// Adds these tasks before the task itself.
    Spawn {
        tasks: Vec<NewTask>,
        edges: Vec<Edge>,
    },
}

impl TaskChange {
    /// Actor and note; `None` for changes by workers and loops.
    pub(crate) fn act(&self) -> Option<&Actor> {
        match self {
            TaskChange::Cancel(act)
            | TaskChange::Pause(act)
            | TaskChange::Resume(act)
            | TaskChange::ClearHold(act)
            | TaskChange::Reschedule { act, .. }
            | TaskChange::Snooze { act, .. }
            | TaskChange::Retry { act, .. }
            | TaskChange::Undo { act, .. } => Some(act),
            TaskChange::End(_) | TaskChange::Expire | TaskChange::HookStarted { .. } | TaskChange::Gate(_) => None,
        }
    }

    /// The payload row that is written with it.
    pub(super) fn edited_payload(&self, after: &Task, now: Timestamp) -> Option<NewPayload> {
        let TaskChange::Retry { edit: Some(Edit { edited, payload }), act, .. } = self else { return None };
        let (edited, last_run, payload, by) = (*edited, after.run, payload.clone(), act.by.clone());
        Some(NewPayload { task: after.id, edited, last_run, payload, at: now, by })
    }

    /// The step of the bulk operation that it is part of.
    pub(super) fn operation_step(&self, before: &Task) -> Option<Mark> {
        let operation = self.act()?.operation?;
        let was = (!matches!(self, TaskChange::Undo { .. })).then(|| UndoSnapshot::of(before));
        Some(Mark { operation, task: before.id, was })
    }

    /// The audited action and its actor; `None` if it leaves no audit entry.
    pub(super) fn audit_action(&self) -> Option<(AuditAction, &Actor)> {
        let action = match self {
            TaskChange::Cancel(_) => AuditAction::TaskCancel,
            TaskChange::Pause(_) => AuditAction::TaskPause,
            TaskChange::Resume(_) => AuditAction::TaskResume,
            TaskChange::Reschedule { .. } => AuditAction::TaskReschedule,
            TaskChange::Snooze { .. } => AuditAction::TaskSnooze,
            TaskChange::Retry { .. } => AuditAction::TaskRetry,
            TaskChange::Undo { action, .. } => match action {
                Action::Retry => AuditAction::TaskRetryUndo,
                Action::Cancel => return None,
                Action::Pause => AuditAction::TaskResume,
                Action::Resume => AuditAction::TaskPause,
                Action::Reschedule => AuditAction::TaskReschedule,
            },
            TaskChange::ClearHold(_)
            | TaskChange::End(_)
            | TaskChange::Expire
            | TaskChange::HookStarted { .. }
            | TaskChange::Gate(_) => return None,
        };
        Some((action, self.act()?))
    }
}

/// A change, the task it is about, and the snapshot it is planned on.
pub(crate) struct ChangeRequest {
    pub task: TaskId,
    pub change: TaskChange,
    basis: Basis,
}

/// The snapshot that a change is planned on. The version protects every write.
enum Basis {
    /// No snapshot: load the task.
    Unloaded,
    /// Loaded by the current call.
    Loaded(Stored),
    /// Snapshot is from the cache or an earlier read: use it to write, never to reject.
    Cached(Stored),
    /// Change this version or none: a task that has moved may no longer be due.
    Exact(Stored),
}

impl ChangeRequest {
    /// Loads the task before the decision.
    pub(crate) fn of(task: TaskId, change: TaskChange) -> ChangeRequest {
        ChangeRequest { task, change, basis: Basis::Unloaded }
    }

    /// Plans on a snapshot that may be old; loads the task again if the change is rejected or the version is stale.
    pub(crate) fn cached(stored: Stored, change: TaskChange) -> ChangeRequest {
        ChangeRequest { task: stored.task.id, change, basis: Basis::Cached(stored) }
    }

    /// Changes exactly this version; a stale version is the outcome [`ChangeOutcome::Stale`].
    pub(crate) fn exact(stored: Stored, change: TaskChange) -> ChangeRequest {
        ChangeRequest { task: stored.task.id, change, basis: Basis::Exact(stored) }
    }

    /// The snapshot; `None` if the task is not loaded or does not exist.
    pub(crate) fn stored(&self) -> Option<&Stored> {
        match &self.basis {
            Basis::Unloaded => None,
            Basis::Loaded(stored) | Basis::Cached(stored) | Basis::Exact(stored) => Some(stored),
        }
    }

    pub(super) fn is_cached(&self) -> bool {
        matches!(self.basis, Basis::Cached(_))
    }

    pub(super) fn is_exact(&self) -> bool {
        matches!(self.basis, Basis::Exact(_))
    }

    pub(super) fn loaded(self, stored: Option<Stored>) -> ChangeRequest {
        ChangeRequest { basis: stored.map_or(Basis::Unloaded, Basis::Loaded), ..self }
    }

    pub(super) fn without_snapshot(self) -> ChangeRequest {
        ChangeRequest { basis: Basis::Unloaded, ..self }
    }
}

/// Outcome of a [`ChangeRequest`].
#[derive(Debug)]
pub(crate) enum ChangeOutcome {
    Changed(Changed),
    Rejected(Rejection),
    NotFound,
    /// The version changed meanwhile, and the request must not or could not be tried again.
    Stale,
    /// Another open task holds the dedupe key.
    KeyTaken,
    /// The loop on whose behalf it was requested is paused.
    Paused,
    /// Its idempotency key was used before.
    Used(Used),
    Unfunded(Unfunded),
    /// The stored rows are inconsistent, or the decision panicked. Other requests are not affected.
    Corrupt(String),
}

impl From<ChangeOutcome> for Result<Changed, CommandError> {
    fn from(outcome: ChangeOutcome) -> Self {
        Err(match outcome {
            ChangeOutcome::Changed(changed) => return Ok(changed),
            ChangeOutcome::Rejected(rejection) => rejection.into(),
            ChangeOutcome::NotFound => CommandError::NotFound("task"),
            ChangeOutcome::KeyTaken => CommandError::KeyTaken,
            ChangeOutcome::Used(_) => CommandError::IdempotencyMismatch,
            ChangeOutcome::Unfunded(short) => short.into(),
            ChangeOutcome::Stale | ChangeOutcome::Paused => CommandError::Conflict,
            ChangeOutcome::Corrupt(detail) => StoreError::Corrupt(detail).into(),
        })
    }
}

/// Number of requests that changed a task.
pub(crate) fn count_changed(outcomes: &[ChangeOutcome]) -> u32 {
    let changed = outcomes.iter().filter(|outcome| matches!(outcome, ChangeOutcome::Changed(_))).count();
    u32::try_from(changed).unwrap_or(u32::MAX)
}

/// A task after a change that was stored.
#[derive(Clone, Debug, PartialEq)]
pub struct Changed {
    /// The task.
    pub task: TaskId,
    /// Its state after the change.
    pub state: State,
    /// Retries scheduled in this cycle.
    pub attempt: u32,
    /// The run.
    pub run: u32,
    /// When it is retried, if it is.
    pub next_retry_at: Option<Timestamp>,
    /// Reason of the decision, or the reason stored with the task.
    pub reason: Option<Reason>,
    /// Whether the same report was stored before; this is the answer to the first one.
    pub repeated: bool,
}

impl Changed {
    pub(crate) fn of(task: &Task, reason: Option<Reason>) -> Changed {
        Changed {
            task: task.id,
            state: task.state,
            attempt: task.counters.attempt,
            run: task.run,
            next_retry_at: task.next_retry_at,
            reason: reason.or(task.reason),
            repeated: false,
        }
    }
}
