//! Cancel, pause, resume, snooze, reschedule: what a person or a program does to a task from outside.

use comeback_core::{Invalid, Millis, TaskId, Timestamp};

use super::change::ActorRequest;
use crate::pipeline::{Changed, TaskChange};
use crate::{CommandError, Engine};

/// The furthest a task may be moved away by hand.
const FURTHEST: Millis = Millis::from_days(3_660);

impl Engine {
    /// Definitive: no new attempt, whatever was decided at the same moment (model I-11).
    pub async fn cancel(
        &self,
        namespace: &str,
        task: TaskId,
        request: impl Into<ActorRequest>,
    ) -> Result<Changed, CommandError> {
        let ActorRequest { act, once } = request.into();
        self.change_by_hand(namespace, task, TaskChange::Cancel(act), once).await
    }

    /// Pauses a task until it is resumed.
    pub async fn pause(
        &self,
        namespace: &str,
        task: TaskId,
        request: impl Into<ActorRequest>,
    ) -> Result<Changed, CommandError> {
        let ActorRequest { act, once } = request.into();
        self.change_by_hand(namespace, task, TaskChange::Pause(act), once).await
    }

    /// Resumes a paused task.
    pub async fn resume(
        &self,
        namespace: &str,
        task: TaskId,
        request: impl Into<ActorRequest>,
    ) -> Result<Changed, CommandError> {
        let ActorRequest { act, once } = request.into();
        self.change_by_hand(namespace, task, TaskChange::Resume(act), once).await
    }

    /// Moves the due time by a span from now.
    pub async fn snooze(
        &self,
        namespace: &str,
        task: TaskId,
        by: Millis,
        request: impl Into<ActorRequest>,
    ) -> Result<Changed, CommandError> {
        if by > FURTHEST {
            return Err(Invalid::one("delay", format!("may be {FURTHEST} at most")).into());
        }
        let ActorRequest { act, once } = request.into();
        self.change_by_hand(namespace, task, TaskChange::Snooze { by, act }, once).await
    }

    /// Moves the due time to an instant.
    pub async fn reschedule(
        &self,
        namespace: &str,
        task: TaskId,
        to: Timestamp,
        request: impl Into<ActorRequest>,
    ) -> Result<Changed, CommandError> {
        if to.since(self.now()) > FURTHEST {
            return Err(Invalid::one("at", format!("may be {FURTHEST} away at most")).into());
        }
        let ActorRequest { act, once } = request.into();
        self.change_by_hand(namespace, task, TaskChange::Reschedule { to, act }, once).await
    }
}
