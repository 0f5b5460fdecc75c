//! Cancel, pause, resume and retry a whole execution.

use comeback_core::execution::ExecutionRejection;
use comeback_core::transition::Act;
use comeback_core::{Commit, Execution, ExecutionId, ExecutionState, Reason, Timestamp, Working};
use comeback_store::{Applied, Subject};

use crate::road::open_graph;
use crate::{CommandError, Core, Engine};

/// How often a change of a whole execution is tried on facts that moved.
const ROUNDS: usize = 8;

impl Engine {
    /// E6: everything in it that is open is canceled.
    pub async fn cancel_execution(
        &self,
        namespace: &str,
        id: ExecutionId,
        act: Act,
    ) -> Result<ExecutionState, CommandError> {
        cancel_execution(&self.core, namespace, id, act).await
    }

    /// E5: nothing of it is leased or promoted until it is resumed; what runs may end.
    pub async fn pause_execution(
        &self,
        namespace: &str,
        id: ExecutionId,
        act: Act,
    ) -> Result<ExecutionState, CommandError> {
        self.set_execution_paused(namespace, id, act, Execution::pause).await
    }

    pub async fn resume_execution(
        &self,
        namespace: &str,
        id: ExecutionId,
        act: Act,
    ) -> Result<ExecutionState, CommandError> {
        self.set_execution_paused(namespace, id, act, Execution::resume).await
    }

    async fn set_execution_paused(
        &self,
        namespace: &str,
        id: ExecutionId,
        act: Act,
        change: fn(&Execution, Timestamp) -> Result<Execution, ExecutionRejection>,
    ) -> Result<ExecutionState, CommandError> {
        self.change_execution(namespace, id, &act, |working, now| {
            let after = change(working.execution(), now).map_err(CommandError::WrongExecutionState)?;
            working.set_paused(after, &act, now);
            Ok(())
        })
        .await
    }

    /// E7: every task that failed is tried again, and what was given up because of them goes on. Results are kept.
    pub async fn retry_execution(
        &self,
        namespace: &str,
        id: ExecutionId,
        act: Act,
    ) -> Result<ExecutionState, CommandError> {
        self.change_execution(namespace, id, &act, |working, now| {
            working.execution().may_be_retried().map_err(CommandError::WrongExecutionState)?;
            working.retry_failed(&act, now).map_err(|_| CommandError::Conflict)
        })
        .await
    }

    async fn change_execution(
        &self,
        namespace: &str,
        id: ExecutionId,
        act: &Act,
        change: impl Fn(&mut Working, Timestamp) -> Result<(), CommandError>,
    ) -> Result<ExecutionState, CommandError> {
        self.core.change_execution(namespace, id, act, change).await
    }

    /// The log of an execution, from an event on.
    pub async fn execution_events(
        &self,
        namespace: &str,
        id: ExecutionId,
        after: u32,
        limit: u32,
    ) -> Result<Vec<comeback_core::Event>, CommandError> {
        if self.core.store.execution(namespace, id).await?.is_none() {
            return Err(CommandError::NotFound("execution"));
        }
        let records = self.core.store.history(Subject::Execution(id), after, limit).await?;
        Ok(records.iter().flat_map(comeback_core::Record::expand).filter(|event| event.seq > after).collect())
    }
}

/// E6, on behalf of whoever.
pub(crate) async fn cancel_execution(
    core: &Core,
    namespace: &str,
    id: ExecutionId,
    act: Act,
) -> Result<ExecutionState, CommandError> {
    core.change_execution(namespace, id, &act, |working, now| {
        working.execution().may_be_canceled().map_err(CommandError::WrongExecutionState)?;
        working.cancel(Reason::ExecutionCanceled, &act, now).map_err(|_| CommandError::Conflict)
    })
    .await
}

impl Core {
    pub(crate) async fn change_execution(
        &self,
        namespace: &str,
        id: ExecutionId,
        act: &Act,
        change: impl Fn(&mut Working, Timestamp) -> Result<(), CommandError>,
    ) -> Result<ExecutionState, CommandError> {
        self.config.limits.check_act(act)?;
        for _ in 0..ROUNDS {
            let graph = self.store.graph(id, None).await?;
            let Some(graph) = graph.filter(|graph| &*graph.execution.namespace == namespace) else {
                return Err(CommandError::NotFound("execution"));
            };
            let now = self.clock.now();
            let (mut working, _) = open_graph(graph);
            change(&mut working, now)?;
            let state = working.execution().state;
            let commit: Commit = working.into_commit();
            match self.store.apply(std::slice::from_ref(&commit), None, now).await?.first() {
                Some(Applied::Done) => {
                    self.tell(&commit);
                    return Ok(state);
                }
                Some(Applied::KeyTaken) => return Err(CommandError::KeyTaken),
                _ => {}
            }
        }
        Err(CommandError::Conflict)
    }
}
