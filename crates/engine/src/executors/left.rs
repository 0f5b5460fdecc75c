//! Recovers the leases of an earlier process of the same name: calls, claims and commands that nobody does any more. They are taken up at
//! once and not when their leases run out. That takes the path of every lost run, in the name of the lease itself: whoever has leased
//! one of them meanwhile is not disturbed.

use comeback_core::{End, Executor, Outcome, Reporter, State, Task, Trigger};
use comeback_store::{Behalf, HeldName, StoreError};

use super::Kinds;
use crate::Engine;
use crate::pipeline::{ChangeRequest, TaskChange, count_changed};

/// Tasks that are taken up in one go.
const BATCH: usize = 500;

impl Engine {
    /// Holds the name of this process, and takes up what was left. Without it, that waits for the end of its leases.
    pub(super) async fn begin(&self) -> Option<HeldName> {
        match self.take_up().await {
            Ok(held) => Some(held),
            Err(error) => {
                tracing::warn!(%error, "cannot recover leases of an earlier process of this name; they expire by themselves");
                None
            }
        }
    }

    async fn take_up(&self) -> Result<HeldName, StoreError> {
        let held = self.core.store.hold_name(&self.core.config.instance).await?;
        let mut recovered = 0;
        for ids in held.left.chunks(BATCH) {
            let left = self.core.store.load(ids).await?.into_iter().flatten();
            let requests = left.filter(|it| is_own(&it.task, &self.core.config.kinds)).map(|it| {
                let outcome =
                    Outcome { reporter: Reporter::Lease(it.task.lease_number), end: End::Lost(Trigger::LeaseExpired) };
                ChangeRequest::cached(it, TaskChange::End(outcome))
            });
            recovered += count_changed(&self.core.apply_changes(requests.collect(), Behalf::Caller).await?);
        }
        if recovered > 0 {
            tracing::info!(tasks = recovered, "recovered leases of an earlier process of this name");
        }
        Ok(held)
    }
}

/// Whether an executor of the server had it in its hands. A hook that was started runs elsewhere.
fn is_own(task: &Task, kinds: &Kinds) -> bool {
    match task.lane.executor {
        Executor::Http | Executor::Command | Executor::Timer => true,
        Executor::Hook => task.state == State::Claimed,
        Executor::Worker => task.lease.as_ref().is_some_and(|lease| {
            let part = lease.worker.rsplit_once('/').map(|(_, part)| part);
            let is_it = |kind: &str| kind == task.lane.kind && part == Some(kind);
            kinds.iter().any(|kind| kind.namespace == task.lane.namespace && is_it(&kind.name))
        }),
        Executor::Flow => false,
    }
}
