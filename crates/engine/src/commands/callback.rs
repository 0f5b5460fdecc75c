//! Callback: completes the run of a hook.

use comeback_core::{End, Executor, Failure, Invalid, Outcome, Reporter, TaskId, Trigger};

use super::lease::{LeaseRef, Leased};
use crate::pipeline::{Changed, TaskChange};
use crate::{CommandError, Engine, LeaseRequest, ReportEnd};

/// The end of a hook's run, with the run or the attempt it is about.
#[derive(Clone, Debug)]
pub struct CompleteCallback {
    /// Namespace of the task.
    pub namespace: String,
    /// The task.
    pub task: TaskId,
    /// The run or attempt that it is about. An old callback names none.
    pub fence: Reporter,
    /// How the run ended.
    pub end: ReportEnd,
}

impl Engine {
    /// A stale run or attempt is refused and changes nothing.
    pub async fn complete_callback(&self, callback: CompleteCallback) -> Result<Changed, CommandError> {
        if let Reporter::Lease(_) | Reporter::Server = callback.fence {
            return Err(Invalid::one("run", "a callback names its run or its attempt").into());
        }
        let end = match self.core.config.limits.check_end(&callback.end)? {
            End::Failed(failure) => End::Failed(Failure { trigger: Trigger::Explicit, ..failure }),
            End::Released => return Err(Invalid::one("status", "a hook's run cannot be given back").into()),
            end => end,
        };
        let seen = self.find(&callback.namespace, callback.task).await?;
        if seen.task.lane.executor != Executor::Hook {
            return Err(Invalid::one("run", "a worker's run ends by its lease, not by a callback").into());
        }
        self.change_seen(seen, TaskChange::End(Outcome { reporter: callback.fence, end })).await
    }

    /// Claims hook tasks for the calls that start them (T6). They are `claimed` until the call was answered.
    pub async fn claim_hooks(&self, mut request: LeaseRequest) -> Result<Vec<Leased>, CommandError> {
        request.executor = Executor::Hook;
        self.lease(request).await
    }

    /// The start call was answered: the run has begun (T7). An answer for a claim that was given up is refused.
    pub async fn hook_started(&self, namespace: &str, claim: LeaseRef) -> Result<Changed, CommandError> {
        self.change_one(namespace, claim.task, TaskChange::HookStarted { lease_number: claim.number }).await
    }

    /// The start call failed: the attempt is over, and the policy decides.
    pub async fn hook_failed(
        &self,
        namespace: &str,
        claim: LeaseRef,
        failure: Failure,
    ) -> Result<Changed, CommandError> {
        let failure = self.core.config.limits.checked(&Failure { trigger: Trigger::StartFailed, ..failure });
        let outcome = Outcome { reporter: Reporter::Lease(claim.number), end: End::Failed(failure) };
        self.change_one(namespace, claim.task, TaskChange::End(outcome)).await
    }
}
