//! Settle: somebody who was called by a hook says how its run ended, and counts as it goes.

use std::sync::Arc;

use comeback_core::{End, Executor, Failure, Invalid, Outcome, Speaker, TaskId, Trigger};

use super::lease::Leased;
use crate::road::{Changed, Met, Verb, Wish};
use crate::{CommandError, Engine, LeaseRequest, ReportEnd};

/// The end of a hook's run, with the run or the attempt it is about.
#[derive(Clone, Debug)]
pub struct Settle {
    pub namespace: String,
    pub task: TaskId,
    /// What the caller was started for. A callback of an old kind names nothing.
    pub fence: Speaker,
    pub end: ReportEnd,
}

impl Engine {
    /// A stale run or attempt is refused and changes nothing.
    pub async fn settle(&self, settle: Settle) -> Result<Changed, CommandError> {
        if let Speaker::Lease(_) | Speaker::Server = settle.fence {
            return Err(Invalid::one("run", "a callback names its run or its attempt").into());
        }
        let end = match settle.end {
            ReportEnd::Succeeded { result } => End::Succeeded { result: result.map(|json| Arc::clone(json.text())) },
            ReportEnd::Failed(failure) => End::Failed(Failure { trigger: Trigger::Explicit, ..failure }),
            ReportEnd::Snoozed { delay } => End::Snoozed { delay },
            ReportEnd::Released => return Err(Invalid::one("status", "a hook's run cannot be given back").into()),
        };
        let verb = Verb::End(Outcome { speaker: settle.fence, end });
        self.change_one(&settle.namespace, settle.task, verb).await
    }

    /// Claims hook tasks for the calls that start them (T6). They are `claimed` until the call was answered.
    pub async fn claim_hooks(&self, mut request: LeaseRequest) -> Result<Vec<Leased>, CommandError> {
        request.executor = Executor::Hook;
        self.lease(request).await
    }

    /// The start call was answered: the run has begun (T7).
    pub async fn hook_started(&self, namespace: &str, task: TaskId) -> Result<Changed, CommandError> {
        self.change_one(namespace, task, Verb::HookStarted).await
    }

    /// The start call failed: the attempt is over, and the policy decides.
    pub async fn hook_failed(&self, namespace: &str, task: TaskId, failure: Failure) -> Result<Changed, CommandError> {
        let failure = Failure { trigger: Trigger::StartFailed, ..failure };
        let outcome = Outcome { speaker: Speaker::Server, end: End::Failed(failure) };
        self.change_one(namespace, task, Verb::End(outcome)).await
    }

    /// One change of one task of a namespace, through the group commit.
    pub(crate) async fn change_one(&self, namespace: &str, task: TaskId, verb: Verb) -> Result<Changed, CommandError> {
        let seen = self.core.store.load(&[task]).await?.into_iter().next().flatten();
        let seen = seen.filter(|stored| stored.task.lane.namespace == namespace);
        let Some(seen) = seen else { return Err(CommandError::NotFound("task")) };
        let wishes = vec![Wish { task, verb, seen: Some(seen), remembered: true }];
        let met = self.combiners.wishes.ask(wishes).await.ok_or(CommandError::ShuttingDown)??;
        match met.into_iter().next().unwrap_or(Met::Stale) {
            Met::Changed(changed) => Ok(changed),
            Met::Rejected(rejection) => Err(rejection.into()),
            Met::NotFound => Err(CommandError::NotFound("task")),
            Met::KeyTaken => Err(CommandError::KeyTaken),
            Met::Stale | Met::Paused => Err(CommandError::Conflict),
        }
    }
}
