//! Repairs by hand and the levels they reach: what stands for an execution that is mended takes it up again, what the failed steps of
//! an execution stand for is mended with it, and all of that is one commit.

use std::collections::BTreeMap;
use std::time::Instant;

use comeback_core::graph::Halt;
use comeback_core::standing::{self, Stands};
use comeback_core::transition::{self, Actor};
use comeback_core::{
    Audit, AuditAction, Commit, ExecutionId, ExecutionState, Executor, Millis, State, Task, TaskId, Timestamp,
    Transition, Working, audit,
};
use comeback_store::{
    Applied, Behalf, CallEnd, ExecutionQuery, ExecutionView, Idempotency, StoreError, Stored, Submission, Used,
};
use futures_util::future::BoxFuture;
use serde_json::json;

use super::calls::{LEASE, hear_now};
use super::start::Begin;
use crate::flow::Started;
use crate::pipeline::{ChangeRequest, TaskChange, open_graph};
use crate::{CommandError, Core, Query};

/// An execution that is over and is to go on, as it is in the store.
pub(crate) struct Over {
    pub id: ExecutionId,
    pub state: ExecutionState,
    pub parent: Option<(TaskId, u32)>,
    /// Where not it goes on, but another one in its place that is still to begin: how long that may take.
    pub to_begin: Option<Millis>,
}

/// Effect of a repair on the levels above.
pub(crate) enum Above {
    /// This is stored with it, and this stands for it from then on.
    With(Commit, Option<(TaskId, u32)>),
    /// The verb of a rejection.
    Refused(&'static str),
}

/// Effect of a repair on the levels below: rows to store with it, and the tasks that continue with their executions.
type Below = (Commit, BTreeMap<TaskId, Transition>);

impl Core {
    /// The standing task of an execution continues with it; if that reopens the execution above, so does the standing task of that one.
    pub(crate) fn above<'a>(
        &'a self,
        over: Over,
        act: &'a Actor,
        now: Timestamp,
    ) -> BoxFuture<'a, Result<Above, StoreError>> {
        Box::pin(async move {
            let Some((id, run)) = over.parent else { return Ok(Above::With(Commit::default(), None)) };
            let mut found = self.stored(id).await?;
            if let Some(stored) = found.take_if(|it| standing::stands(Some(&it.task), run) == Stands::Unaware) {
                hear_now(self, CallEnd { task: stored, execution: over.id, state: over.state }).await?;
                found = self.stored(id).await?;
            }
            match standing::stands(found.as_ref().map(|stored| &stored.task), run) {
                Stands::RetryOptions => {}
                Stands::Nobody => return Ok(Above::With(Commit::default(), None)),
                // It moved at the same moment.
                Stands::Unaware => return Ok(Above::Refused(standing::REPLACED)),
                Stands::Refuses(why) => return Ok(Above::Refused(why)),
            }
            let Some(Stored { task, .. }) = found else { return Ok(Above::Refused(standing::REPLACED)) };
            if self.has_begun_again(&task).await? {
                return Ok(Above::Refused(standing::REPLACED));
            }
            let Some(outer) = task.execution else {
                let Ok((change, noted)) = self.taken_up(&task, &over, act, now) else {
                    return Ok(Above::Refused(standing::REPLACED));
                };
                let parent = (id, change.after().present_run());
                return Ok(Above::With(Commit { audit: vec![noted], ..change.into() }, Some(parent)));
            };
            let Some(graph) = self.store.graph(outer, None).await? else {
                return Ok(Above::With(Commit::default(), None));
            };
            let (mut working, _) = open_graph(graph);
            let was = working.execution().clone();
            if let Err(why) = standing::above(was.state) {
                return Ok(Above::Refused(why));
            }
            let is_the_same = |it: &&Task| it.version == task.version;
            let Some(Ok((change, noted))) =
                working.task(id).filter(is_the_same).map(|task| self.taken_up(task, &over, act, now))
            else {
                return Ok(Above::Refused(standing::REPLACED));
            };
            let parent = (id, change.after().present_run());
            match working.take_up(change, act, now) {
                Ok(()) => {}
                Err(Halt::Rejected(_)) => return Ok(Above::Refused(standing::GATHERED)),
                Err(Halt::Missing(_)) => return Err(StoreError::Corrupt(format!("execution {outer} is not whole"))),
            }
            let mut commit = Commit { audit: vec![noted], ..Commit::default() };
            if was.state.is_terminal() {
                let over = Over { id: was.id, state: was.state, parent: was.parent, to_begin: None };
                match self.above(over, act, now).await? {
                    Above::Refused(why) => return Ok(Above::Refused(why)),
                    Above::With(more, parent) => {
                        working.set_parent(parent);
                        commit.join(more);
                    }
                }
            }
            commit.join(working.into_commit());
            Ok(Above::With(commit, Some(parent)))
        })
    }

    /// The executions that the failed calls of an execution stand for are mended with it: what they came to is kept.
    pub(crate) fn below_failed<'a>(
        &'a self,
        working: &'a Working,
        act: &'a Actor,
        now: Timestamp,
    ) -> BoxFuture<'a, Result<Below, StoreError>> {
        Box::pin(async move {
            let (mut commit, mut taken_up) = (Commit::default(), BTreeMap::new());
            for task in working.calls_to_retry() {
                let Some(last) = self.last_of(task).await? else { continue };
                let it = &last.execution;
                if it.state != ExecutionState::Failed || it.parent != Some((task.id, task.run)) {
                    continue;
                }
                let Some(graph) = self.store.graph(it.id, None).await? else { continue };
                let (mut inner, _) = open_graph(graph);
                let (deeper, calls) = self.below_failed(&inner, act, now).await?;
                let mended = inner.retry_failed(calls, act, now);
                if mended.is_err() || inner.execution().state.is_terminal() {
                    continue;
                }
                let over = Over { id: it.id, state: it.state, parent: it.parent, to_begin: None };
                let Ok((change, noted)) = self.taken_up(task, &over, act, now) else { continue };
                inner.set_parent(Some((task.id, change.after().present_run())));
                commit.audit.push(noted);
                commit.join(deeper);
                commit.join(inner.into_commit());
                taken_up.insert(task.id, change);
            }
            Ok((commit, taken_up))
        })
    }

    /// T30, and what is written down of it.
    fn taken_up(
        &self,
        task: &Task,
        over: &Over,
        act: &Actor,
        now: Timestamp,
    ) -> Result<(Transition, Audit), comeback_core::Rejection> {
        let worker = self.config.instance.as_str().into();
        let change = transition::take_up(task, over.id, over.to_begin, &worker, act, now)?;
        let (was, mut is) = (audit::task_facts(task), audit::task_facts(change.after()));
        is["mended"] = over.id.to_string().into();
        let noted = Audit::new(self.ids.act(now), now, AuditAction::TaskTakeUp, task.id.to_string(), act);
        Ok((change, noted.within(&task.lane.namespace).changed(Some(was), Some(is))))
    }

    /// Whether its next execution exists although the task does not know it yet: the instance that started it has died.
    async fn has_begun_again(&self, task: &Task) -> Result<bool, StoreError> {
        if task.paused_from.unwrap_or(task.state) != State::Pending {
            return Ok(false);
        }
        let last = self.last_of(task).await?;
        Ok(last.and_then(|last| last.execution.parent).is_some_and(|(_, run)| run > task.run))
    }

    /// The last execution that a task stood for.
    pub(crate) async fn last_of(&self, task: &Task) -> Result<Option<ExecutionView>, StoreError> {
        debug_assert_eq!(task.lane.executor, Executor::Flow);
        let query = ExecutionQuery { parent: Some(task.id), limit: 1, ..ExecutionQuery::default() };
        Ok(self.store.executions(&task.lane.namespace, &query).await?.pop())
    }

    async fn stored(&self, id: TaskId) -> Result<Option<Stored>, StoreError> {
        Ok(self.store.load(&[id]).await?.into_iter().next().flatten())
    }

    /// Another execution in the place of one that is over, begun by the task that stands for it; nothing where none does any more.
    pub(crate) async fn begin_in_place(
        &self,
        namespace: &str,
        id: ExecutionId,
        act: &Actor,
        once: Option<&Idempotency>,
    ) -> Result<Option<Started>, CommandError> {
        let started = Instant::now();
        let mut attempts = 0;
        while self.should_retry(attempts, started).await {
            attempts += 1;
            let Some(view) = self.store.execution(namespace, id).await? else { return Ok(None) };
            let Some((workflow, version)) = view.origin.workflow.clone() else { return Ok(None) };
            let Some((stood, _)) = view.execution.parent.filter(|_| view.execution.state.is_terminal()) else {
                return Ok(None);
            };
            let answer = |execution: ExecutionId, repeated: bool| {
                let workflow = workflow.clone();
                Ok(Some(Started { execution, workflow, version, task: Some(stood), repeated }))
            };
            if let Some(key) = once {
                match self.store.used(namespace, key).await? {
                    None => {}
                    Some(Used::ForAnother) => return Err(CommandError::IdempotencyMismatch),
                    Some(Used::ForThis) => {
                        let query = ExecutionQuery { parent: Some(stood), limit: 100, ..ExecutionQuery::default() };
                        let made = self.store.executions(namespace, &query).await?;
                        if let Some(made) = made.into_iter().rfind(|it| it.origin.retry_of == Some(id)) {
                            return answer(made.execution.id, true);
                        }
                        // Claimed for it and not begun yet, or begun as an execution of its own.
                        let task = self.stored(stood).await?.map(|stored| stored.task);
                        let is_to_begin =
                            task.is_some_and(|task| matches!(task.state, State::Claimed | State::Pending));
                        return if is_to_begin { Err(CommandError::Conflict) } else { Ok(None) };
                    }
                }
            }
            let now = self.clock.now();
            let it = &view.execution;
            let over = Over { id, state: it.state, parent: it.parent, to_begin: Some(LEASE) };
            let Above::With(mut commit, Some(parent)) = self.above(over, act, now).await? else { return Ok(None) };
            let new = self.ids.execution(now);
            let after = json!({"execution_id": new.to_string(), "task_id": stood.to_string(), "run": parent.1});
            let noted = Audit::new(self.ids.act(now), now, AuditAction::ExecutionRestart, id.to_string(), act);
            commit.audit.push(noted.within(namespace).changed(None, Some(after)));
            let calls = self.calls_of(&commit, now).await?.unwrap_or_else(|| Submission::in_namespace(namespace));
            let behalf = once.map_or(Behalf::Caller, |key| Behalf::Key(namespace, key));
            let applied = self.store.apply_spawning(&commit, &calls, behalf, now);
            match self.tallies.asked(Query::Apply, applied).await? {
                Applied::Done => {
                    self.notify_committed(&commit);
                    self.notify_submitted(std::slice::from_ref(&calls));
                    self.registered_meanwhile(&commit).await;
                    return answer(self.begin_claimed(namespace, view, new, parent).await?, false);
                }
                Applied::KeyTaken => return Err(CommandError::KeyTaken),
                Applied::Unfunded(short) => return Err(short.into()),
                Applied::Used(_) | Applied::Stale | Applied::Paused => {}
            }
        }
        Err(CommandError::Conflict)
    }

    /// The task is claimed for it: whatever happens to us here, the loop `flow` begins it when the claim has run out.
    async fn begin_claimed(
        &self,
        namespace: &str,
        before: ExecutionView,
        new: ExecutionId,
        parent: (TaskId, u32),
    ) -> Result<ExecutionId, CommandError> {
        let Some(stored) = self.stored(parent.0).await? else { return Err(CommandError::Conflict) };
        let below = match stored.task.execution {
            Some(outer) => Some(self.below(namespace, outer).await?),
            None => None,
        };
        let (workflow, version) = before.origin.workflow.unzip();
        let input = before.origin.input.as_deref().and_then(|text| serde_json::from_str(text).ok());
        let begin = Begin {
            id: Some(new),
            parent: Some(parent),
            below,
            retry_of: Some(before.execution.id),
            name: before.name,
            labels: before.labels,
            external_id: before.external_id,
            firing: before.origin.firing,
            ..Begin::new(namespace.to_owned(), workflow.unwrap_or_default(), version, input)
        };
        let (execution, _) = self.begin_execution(begin).await?;
        let change = TaskChange::HookStarted { lease_number: stored.task.lease_number };
        self.apply_changes(vec![ChangeRequest::cached(stored, change)], Behalf::Caller).await?;
        Ok(execution)
    }
}
