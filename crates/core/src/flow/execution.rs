//! An execution: tasks that belong together. Its state is a function of its tasks' states only (model I-16, E1–E9).

use std::sync::Arc;

use crate::id::{ExecutionId, TaskId};
use crate::time::Timestamp;
use crate::transition::Rejection;
use crate::words::words;

words! {
    /// The state of an execution.
    pub enum ExecutionState {
        Pending = 0 "pending",
        Running = 1 "running",
        Paused = 2 "paused",
        Succeeded = 3 "succeeded",
        Failed = 4 "failed",
        Canceled = 5 "canceled",
    }
}

impl ExecutionState {
    /// Whether the execution has ended.
    pub const fn is_terminal(self) -> bool {
        matches!(self, ExecutionState::Succeeded | ExecutionState::Failed | ExecutionState::Canceled)
    }
}

/// The present of one explicit execution. The counts are a cache of its tasks' states, moved in the same commit.
#[derive(Clone, Debug, PartialEq)]
pub struct Execution {
    /// The id.
    pub id: ExecutionId,
    /// The namespace.
    pub namespace: Arc<str>,
    /// The task that stands for it, and the run of that task that it is.
    pub parent: Option<(TaskId, u32)>,
    /// The state.
    pub state: ExecutionState,
    /// Grows by one with every change.
    pub version: u32,
    /// Tasks in all, tasks that are not over, and failures that no edge handled.
    pub total: u32,
    /// Tasks that are not over.
    pub open: u32,
    /// Failures that no edge handled.
    pub unhandled: u32,
    /// The first unhandled failure ends everything.
    pub fail_fast: bool,
    /// Cancel what can no longer lead anywhere (F1-12).
    pub dead_end_cancel: bool,
    /// When it was created.
    pub created_at: Timestamp,
    /// When its first task started.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// The last change.
    pub updated_at: Timestamp,
}

impl Execution {
    /// A new execution of so many tasks.
    pub fn new(id: ExecutionId, namespace: Arc<str>, total: u32, now: Timestamp) -> Execution {
        Execution {
            id,
            namespace,
            parent: None,
            state: ExecutionState::Pending,
            version: 1,
            total,
            open: total,
            unhandled: 0,
            fail_fast: false,
            dead_end_cancel: false,
            created_at: now,
            started_at: None,
            ended_at: None,
            updated_at: now,
        }
    }

    /// The end of the execution by its counts once the last task is over (E3, E4); `None` while one is open.
    pub fn verdict(&self) -> Option<ExecutionState> {
        (self.open == 0).then_some(if self.unhandled == 0 { ExecutionState::Succeeded } else { ExecutionState::Failed })
    }

    /// E5: nothing of it is leased or promoted until it is resumed.
    pub fn pause(&self, now: Timestamp) -> Result<Execution, ExecutionRejection> {
        match self.state {
            ExecutionState::Pending | ExecutionState::Running => Ok(self.moved(ExecutionState::Paused, now)),
            _ => Err(self.rejects("paused")),
        }
    }

    /// Resumes a paused execution.
    pub fn resume(&self, now: Timestamp) -> Result<Execution, ExecutionRejection> {
        match self.state {
            ExecutionState::Paused => Ok(self.moved(self.unpaused(), now)),
            _ => Err(self.rejects("resumed")),
        }
    }

    /// E6: what is over stays as it ended.
    pub fn may_be_canceled(&self) -> Result<(), ExecutionRejection> {
        if self.state.is_terminal() { Err(self.rejects("canceled")) } else { Ok(()) }
    }

    /// E7: only what failed is tried again.
    pub fn may_be_retried(&self) -> Result<(), ExecutionRejection> {
        if self.state == ExecutionState::Failed { Ok(()) } else { Err(self.rejects("retried")) }
    }

    fn rejects(&self, verb: &'static str) -> ExecutionRejection {
        ExecutionRejection { state: self.state, verb }
    }

    /// E7: a task inside is tried again, so the whole is not over after all.
    pub fn reopen(&self, now: Timestamp) -> Result<Execution, ExecutionRejection> {
        match self.state {
            ExecutionState::Failed => Ok(Execution { ended_at: None, ..self.moved(ExecutionState::Running, now) }),
            _ => Err(self.rejects("reopened")),
        }
    }

    pub(crate) fn moved(&self, state: ExecutionState, now: Timestamp) -> Execution {
        let mut after = self.clone();
        after.state = state;
        after.version += 1;
        after.updated_at = now;
        if state.is_terminal() {
            after.ended_at = Some(now);
        }
        if state == ExecutionState::Running {
            after.started_at = after.started_at.or(Some(now));
        }
        after
    }

    fn unpaused(&self) -> ExecutionState {
        if self.started_at.is_some() { ExecutionState::Running } else { ExecutionState::Pending }
    }
}

/// The state does not allow the action.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an execution that is {state} cannot be {verb}")]
pub struct ExecutionRejection {
    /// The state.
    pub state: ExecutionState,
    /// The participle of the action.
    pub verb: &'static str,
}

impl From<Rejection> for ExecutionRejection {
    fn from(_: Rejection) -> Self {
        ExecutionRejection { state: ExecutionState::Running, verb: "changed" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    fn execution(state: ExecutionState) -> Execution {
        let id = ExecutionId(Uuid::from_u128(9));
        Execution { state, ..Execution::new(id, "default".into(), 2, Timestamp(0)) }
    }

    #[test]
    fn only_open_executions_pause_and_only_paused_ones_resume() {
        use ExecutionState::*;
        for state in ExecutionState::ALL {
            let it = execution(*state);
            assert_eq!(it.pause(Timestamp(1)).is_ok(), matches!(state, Pending | Running), "{state}");
            assert_eq!(it.resume(Timestamp(1)).is_ok(), *state == Paused, "{state}");
            assert_eq!(it.reopen(Timestamp(1)).is_ok(), *state == Failed, "{state}");
        }
        let never_started = execution(Pending).pause(Timestamp(1)).unwrap().resume(Timestamp(2)).unwrap();
        assert_eq!(never_started.state, Pending);
        let started = Execution { started_at: Some(Timestamp(0)), ..execution(Running) };
        assert_eq!(started.pause(Timestamp(1)).unwrap().resume(Timestamp(2)).unwrap().state, Running);
    }

    #[test]
    fn the_verdict_waits_for_the_last_task() {
        let with = |open, unhandled| Execution { open, unhandled, ..execution(ExecutionState::Running) };
        assert_eq!(with(1, 1).verdict(), None);
        assert_eq!(with(0, 0).verdict(), Some(ExecutionState::Succeeded));
        assert_eq!(with(0, 1).verdict(), Some(ExecutionState::Failed));
    }
}
