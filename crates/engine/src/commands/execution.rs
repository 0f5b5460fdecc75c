//! Cancel, pause, resume and retry a whole execution.

use std::time::Instant;

use comeback_core::audit;
use comeback_core::execution::ExecutionRejection;
use comeback_core::transition::Actor;
use comeback_core::{
    Audit, AuditAction, Commit, Execution, ExecutionId, ExecutionState, Invalid, Reason, Timestamp, Working,
};
use comeback_store::{Applied, Behalf, Subject, Submission, Used};
use serde_json::json;

use crate::flow::above::{Above, Over};
use crate::flow::{Start, Started};
use crate::pipeline::open_graph;
use crate::{ActorRequest, CommandError, Core, Engine, Query};

impl Engine {
    /// E6: everything in it that is open is canceled.
    pub async fn cancel_execution(
        &self,
        namespace: &str,
        id: ExecutionId,
        request: impl Into<ActorRequest>,
    ) -> Result<ExecutionState, CommandError> {
        cancel_execution(&self.core, namespace, id, request.into(), Some(AuditAction::ExecutionCancel)).await
    }

    /// E5: nothing of it is leased or promoted until it is resumed; what runs may end.
    pub async fn pause_execution(
        &self,
        namespace: &str,
        id: ExecutionId,
        request: impl Into<ActorRequest>,
    ) -> Result<ExecutionState, CommandError> {
        self.set_execution_paused(namespace, id, request.into(), AuditAction::ExecutionPause, Execution::pause).await
    }

    /// Resumes a paused execution.
    pub async fn resume_execution(
        &self,
        namespace: &str,
        id: ExecutionId,
        request: impl Into<ActorRequest>,
    ) -> Result<ExecutionState, CommandError> {
        self.set_execution_paused(namespace, id, request.into(), AuditAction::ExecutionResume, Execution::resume).await
    }

    async fn set_execution_paused(
        &self,
        namespace: &str,
        id: ExecutionId,
        request: ActorRequest,
        did: AuditAction,
        change: Pausing,
    ) -> Result<ExecutionState, CommandError> {
        self.core.change_execution(namespace, id, &request, Some(did), Change::Paused(change)).await
    }

    /// E7: every task that failed is tried again, and what was given up because of them goes on. Results are kept.
    pub async fn retry_execution(
        &self,
        namespace: &str,
        id: ExecutionId,
        request: impl Into<ActorRequest>,
    ) -> Result<ExecutionState, CommandError> {
        let request = request.into();
        self.core.change_execution(namespace, id, &request, Some(AuditAction::ExecutionRetry), Change::Retry).await
    }

    /// A new execution of the same version of the same workflow, with the same input. What stood for one that is over stands for the
    /// new one.
    pub async fn restart_execution(
        &self,
        namespace: &str,
        id: ExecutionId,
        request: impl Into<ActorRequest>,
    ) -> Result<Started, CommandError> {
        let ActorRequest { act, once } = request.into();
        self.core.config.limits.check_act(&act)?;
        let view = self.core.store.execution(namespace, id).await?.ok_or(CommandError::NotFound("execution"))?;
        if let Some(started) = self.core.begin_in_place(namespace, id, &act, once.as_ref()).await? {
            return Ok(started);
        }
        let Some((workflow, version)) = view.origin.workflow else {
            return Err(
                Invalid::one("from", "it came from no workflow, so it can only be retried from `failed`").into()
            );
        };
        let input = view.origin.input.as_deref().and_then(|text| serde_json::from_str(text).ok());
        let start = Start {
            namespace: namespace.to_owned(),
            workflow,
            version: Some(version),
            input,
            name: view.name,
            labels: view.labels,
            external_id: view.external_id,
            // Nothing stands for it any more, or that one goes on as well.
            retry: Some(None),
            retry_of: Some(id),
            firing: view.origin.firing,
            idempotency: once,
        };
        let again = self.core.is_again(&start).await?;
        let started = self.start_workflow(start).await?;
        if again {
            return Ok(started);
        }
        let after = json!({"execution_id": started.execution.to_string()});
        let entry = self.entry(AuditAction::ExecutionRestart, id.to_string(), &act).within(namespace);
        self.note(&entry.changed(None, Some(after))).await?;
        Ok(started)
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

/// E6, for a caller or for the engine. Audited if a caller asks for it.
pub(crate) async fn cancel_execution(
    core: &Core,
    namespace: &str,
    id: ExecutionId,
    request: ActorRequest,
    did: Option<AuditAction>,
) -> Result<ExecutionState, CommandError> {
    core.change_execution(namespace, id, &request, did, Change::Cancel).await
}

type Pausing = fn(&Execution, Timestamp) -> Result<Execution, ExecutionRejection>;

/// A change of a whole execution.
#[derive(Clone, Copy)]
pub(crate) enum Change {
    Cancel,
    Paused(Pausing),
    Retry,
}

impl Core {
    /// Under a key it is done once: who comes again is told how it stands now.
    pub(crate) async fn change_execution(
        &self,
        namespace: &str,
        id: ExecutionId,
        request: &ActorRequest,
        did: Option<AuditAction>,
        change: Change,
    ) -> Result<ExecutionState, CommandError> {
        self.config.limits.check_act(&request.act)?;
        let started = Instant::now();
        let mut attempts = 0;
        // Its tasks end one after the other; between two of them there is room.
        while self.should_retry(attempts, started).await {
            attempts += 1;
            let graph = self.store.graph(id, None).await?;
            let Some(graph) = graph.filter(|graph| &*graph.execution.namespace == namespace) else {
                return Err(CommandError::NotFound("execution"));
            };
            let as_it_is = graph.execution.state;
            if let Some(key) = &request.once
                && let Some(used) = self.store.used(namespace, key).await?
            {
                return as_used(used, as_it_is);
            }
            let now = self.clock.now();
            let (mut working, _) = open_graph(graph);
            let before = audit::execution_facts(working.execution());
            let more = self.changed(&mut working, change, &request.act, now).await?;
            let (state, after) = (working.execution().state, audit::execution_facts(working.execution()));
            let mut commit: Commit = working.into_commit();
            commit.join(more);
            commit.audit.extend(did.map(|did| {
                let entry = Audit::new(self.ids.act(now), now, did, id.to_string(), &request.act).within(namespace);
                entry.changed(Some(before), Some(after))
            }));
            let calls = self.calls_of(&commit, now).await?.unwrap_or_else(|| Submission::in_namespace(namespace));
            let behalf = request.once.as_ref().map_or(Behalf::Caller, |key| Behalf::Key(namespace, key));
            let applied = self.store.apply_spawning(&commit, &calls, behalf, now);
            match self.tallies.asked(Query::Apply, applied).await? {
                Applied::Done => {
                    self.notify_committed(&commit);
                    self.notify_submitted(std::slice::from_ref(&calls));
                    self.registered_meanwhile(&commit).await;
                    return Ok(state);
                }
                Applied::KeyTaken => return Err(CommandError::KeyTaken),
                Applied::Used(used) => return as_used(used, as_it_is),
                Applied::Unfunded(short) => return Err(short.into()),
                Applied::Stale | Applied::Paused => {}
            }
        }
        Err(CommandError::Conflict)
    }

    /// Changes the whole; the answer is what that means for executions above and below.
    async fn changed(
        &self,
        working: &mut Working,
        change: Change,
        act: &Actor,
        now: Timestamp,
    ) -> Result<Commit, CommandError> {
        let refused = CommandError::WrongExecutionState;
        let was = working.execution().clone();
        match change {
            Change::Cancel => {
                was.may_be_canceled().map_err(refused)?;
                working.cancel(Reason::ExecutionCanceled, act, now).map_err(|_| CommandError::Conflict)?;
                Ok(Commit::default())
            }
            Change::Paused(change) => {
                working.set_paused(change(&was, now).map_err(refused)?, act, now);
                Ok(Commit::default())
            }
            Change::Retry => {
                was.may_be_retried().map_err(refused)?;
                let (mut commit, calls) = self.below_failed(working, act, now).await?;
                working.retry_failed(calls, act, now).map_err(|_| CommandError::Conflict)?;
                if !working.execution().state.is_terminal() {
                    let over = Over { id: was.id, state: was.state, parent: was.parent, to_begin: None };
                    match self.above(over, act, now).await? {
                        Above::Refused(verb) => return Err(refused(ExecutionRejection { state: was.state, verb })),
                        Above::With(more, parent) => {
                            working.set_parent(parent);
                            commit.join(more);
                        }
                    }
                }
                Ok(commit)
            }
        }
    }
}

fn as_used(used: Used, state: ExecutionState) -> Result<ExecutionState, CommandError> {
    match used {
        Used::ForThis => Ok(state),
        Used::ForAnother => Err(CommandError::IdempotencyMismatch),
    }
}
