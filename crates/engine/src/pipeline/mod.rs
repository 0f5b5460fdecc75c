//! The one path of every change of a task: load, decide, propagate through the graph, apply, and start again if a version is stale.
//!
//! A worker's report, a timeout, a lost lease, a passed deadline and an operator's command differ only in their [`TaskChange`].
//!
//! | file | contains |
//! |---|---|
//! | `change.rs` | the requested change, its request and its outcome |
//! | `plan.rs` | decides requests and makes one commit per lone task or execution |
//! | `commit.rs` | applies the commits and handles the answers of the store |
//! | `notify.rs` | after a commit: wakes workers, sets alarms, wakes the readers of the feed |

mod change;
mod commit;
mod notify;
mod plan;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use comeback_core::{ExecutionId, TaskId};
use comeback_store::{Behalf, StoreError, Stored};

pub use change::Changed;
pub(crate) use change::{ChangeOutcome, ChangeRequest, Edit, Gate, TaskChange, count_changed};
pub(crate) use plan::open_graph;

use crate::{Core, Query};
use plan::Plan;

/// Attempts without a pause, and how long further ones go on with pauses. In a wide execution many requests conflict, and a report that is
/// given up is lost work.
const QUICK_ATTEMPTS: u32 = 4;
const RETRY_FOR: Duration = Duration::from_secs(5);
/// The limit on virtual time, which does not pass during a pause.
const MOST_ATTEMPTS: u32 = 64;

/// A request with its place in the batch.
type Indexed = (usize, ChangeRequest);

impl Core {
    /// Applies each request for itself; the outcomes have the order of the requests.
    pub(crate) async fn apply_changes(
        &self,
        requests: Vec<ChangeRequest>,
        behalf: Behalf<'_>,
    ) -> Result<Vec<ChangeOutcome>, StoreError> {
        let mut outcomes: Vec<Option<ChangeOutcome>> = (0..requests.len()).map(|_| None).collect();
        let mut left: Vec<Indexed> = requests.into_iter().enumerate().collect();
        let started = Instant::now();
        let mut attempts = 0;
        while !left.is_empty() && self.should_retry(attempts, started).await {
            left = self.attempt_once(left, behalf, &mut outcomes).await?;
            attempts += 1;
        }
        self.flush_observations().await;
        Ok(outcomes.into_iter().map(|outcome| outcome.unwrap_or(ChangeOutcome::Stale)).collect())
    }

    /// Whether to try again on stale versions: a few times at once, then after pauses that grow.
    pub(crate) async fn should_retry(&self, attempts: u32, started: Instant) -> bool {
        if attempts < QUICK_ATTEMPTS {
            return true;
        }
        if !self.clock.is_real() {
            tokio::task::yield_now().await;
            return attempts < MOST_ATTEMPTS;
        }
        tokio::time::sleep(Duration::from_millis(1 << (attempts - QUICK_ATTEMPTS).min(6))).await;
        started.elapsed() < RETRY_FOR
    }

    /// Loads, decides and applies once. Returns the requests that met a stale version.
    async fn attempt_once(
        &self,
        requests: Vec<Indexed>,
        behalf: Behalf<'_>,
        outcomes: &mut [Option<ChangeOutcome>],
    ) -> Result<Vec<Indexed>, StoreError> {
        let requests = self.load_missing(requests, outcomes).await?;
        let now = self.clock.now();
        let mut budgets = self.budgets(&requests, now).await?;
        let mut again = Vec::new();
        let mut plans: Vec<Plan> = Vec::with_capacity(requests.len());
        let mut shared: BTreeMap<ExecutionId, Vec<Indexed>> = BTreeMap::new();
        for (index, request) in requests {
            if let Some(execution) = request.stored().and_then(|stored| stored.task.execution) {
                shared.entry(execution).or_default().push((index, request));
                continue;
            }
            match self.plan_lone(&request, &mut budgets, now) {
                Ok((commit, changed)) => {
                    plans.push(Plan { commit, spawn: None, items: vec![(index, request, changed)] });
                }
                Err(ChangeOutcome::Rejected(_)) if request.is_cached() => {
                    again.push((index, request.without_snapshot()));
                }
                Err(outcome) => outcomes[index] = Some(outcome),
            }
        }
        for (execution, requests) in shared {
            let indexes: Vec<usize> = requests.iter().map(|(index, _)| *index).collect();
            match self.plan_execution(execution, requests, &mut budgets, now, outcomes).await {
                Ok(plan) => plans.push(plan),
                // One corrupt execution must not hold up the others.
                Err(StoreError::Corrupt(detail)) => {
                    tracing::error!(%execution, detail, "execution is inconsistent (corrupt graph); run `comeback db check`");
                    for index in indexes {
                        outcomes[index] = Some(ChangeOutcome::Corrupt(detail.clone()));
                    }
                }
                Err(error) => return Err(error),
            }
        }
        plans.retain(|plan| !plan.items.is_empty());
        if plans.is_empty() {
            return Ok(again);
        }
        if self.reserve(&budgets.guarded, now).await? {
            again.extend(self.commit_plans(plans, behalf, now, outcomes).await?);
        } else {
            again.extend(plans.into_iter().flat_map(Plan::into_requests));
        }
        Ok(again)
    }

    /// Loads the tasks of requests without a snapshot. A task that cannot be read is answered here.
    async fn load_missing(
        &self,
        requests: Vec<Indexed>,
        outcomes: &mut [Option<ChangeOutcome>],
    ) -> Result<Vec<Indexed>, StoreError> {
        let missing: Vec<TaskId> =
            requests.iter().filter(|(_, it)| it.stored().is_none()).map(|(_, it)| it.task).collect();
        if missing.is_empty() {
            return Ok(requests);
        }
        let loaded = self.tallies.asked(Query::Load, self.store.load(&missing)).await;
        let mut loaded = self.or_one_by_one(loaded, &missing).await?.into_iter();
        let mut left = Vec::with_capacity(requests.len());
        for (index, request) in requests {
            if request.stored().is_some() {
                left.push((index, request));
                continue;
            }
            match loaded.next() {
                Some(Err(detail)) => outcomes[index] = Some(ChangeOutcome::Corrupt(detail)),
                stored => left.push((index, request.loaded(stored.and_then(Result::ok).flatten()))),
            }
        }
        Ok(left)
    }

    /// The loaded tasks, or each by itself if one of them cannot be read: that one is `Err`, the others are there.
    pub(crate) async fn or_one_by_one(
        &self,
        loaded: Result<Vec<Option<Stored>>, StoreError>,
        ids: &[TaskId],
    ) -> Result<Vec<Result<Option<Stored>, String>>, StoreError> {
        match loaded {
            Ok(loaded) => return Ok(loaded.into_iter().map(Ok).collect()),
            Err(StoreError::Corrupt(_)) => {}
            Err(error) => return Err(error),
        }
        let mut found = Vec::with_capacity(ids.len());
        for id in ids {
            found.push(match self.store.load(&[*id]).await {
                Ok(stored) => Ok(stored.into_iter().next().flatten()),
                Err(StoreError::Corrupt(detail)) => Err(detail),
                Err(error) => return Err(error),
            });
        }
        Ok(found)
    }
}
