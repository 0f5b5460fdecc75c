//! Lease: give a worker the best tasks there are, or let it wait until there are some.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use comeback_core::{Executor, Invalid, Millis, NamePatterns, TaskId, Timestamp};
use comeback_store::{ClaimRequest, Claimed, Loop, StoreError};
use tokio::time::Instant;

use super::BULK;
use crate::{CommandError, Core, Engine, Query};

/// Poll interval of a waiting request.
const ASK_AGAIN: Duration = Duration::from_millis(500);

/// The right to run a task once: its number only grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaseRef {
    /// The task.
    pub task: TaskId,
    /// Number of the lease.
    pub number: u32,
}

/// A request of a worker for tasks.
#[derive(Clone, Debug)]
pub struct LeaseRequest {
    /// The namespace.
    pub namespace: String,
    /// Name of the worker.
    pub worker: String,
    /// Queues that it serves.
    pub queues: Vec<String>,
    /// From all queues of the namespace, whatever `queues` says: for executors of the server itself.
    pub any_queue: bool,
    /// Calls of hooks and deliveries are left out: for executors of the server itself.
    pub without_calls: bool,
    /// None means any.
    pub kinds: Vec<String>,
    /// Beside `kinds`: patterns of kinds that an API key is limited to.
    pub only_kinds: Option<Arc<NamePatterns>>,
    /// Executor of the tasks.
    pub executor: Executor,
    /// Most tasks.
    pub limit: u32,
    /// Length of the leases.
    pub lease: Millis,
    /// How long to wait, in real time, when there is nothing.
    pub wait: Duration,
}

impl LeaseRequest {
    /// A request for ten tasks of any kind from the default queue.
    pub fn new(namespace: impl Into<String>, worker: impl Into<String>) -> LeaseRequest {
        LeaseRequest {
            namespace: namespace.into(),
            worker: worker.into(),
            queues: vec!["default".into()],
            any_queue: false,
            without_calls: false,
            kinds: Vec::new(),
            only_kinds: None,
            executor: Executor::Worker,
            limit: 10,
            lease: Millis::from_secs(60),
            wait: Duration::ZERO,
        }
    }
}

/// A task that was leased.
#[derive(Clone, Debug)]
pub struct Leased {
    /// The lease.
    pub lease: LeaseRef,
    /// The namespace.
    pub namespace: String,
    /// End of the lease.
    pub expires_at: Option<Timestamp>,
    /// Kind of the task.
    pub kind: String,
    /// Queue of the task.
    pub queue: String,
    /// Key of the task in its execution.
    pub key: Option<String>,
    /// Name of the task.
    pub name: Option<String>,
    /// JSON text.
    pub payload: Option<Arc<str>>,
    /// Labels of the task.
    pub labels: BTreeMap<String, String>,
    /// Settings of the executor.
    pub executor: Option<String>,
    /// Trace context of the submission.
    pub traceparent: Option<String>,
    /// Retries scheduled in this cycle.
    pub attempt: u32,
    /// Number of this attempt, from 1.
    pub attempt_number: u32,
    /// The run.
    pub run: u32,
    /// The cycle.
    pub cycle: u32,
    /// Whether an attempt failed before.
    pub is_retry: bool,
    /// How long the run may be silent.
    pub timeout: Option<Millis>,
    /// When the run is over however much it says.
    pub ends_by: Option<Timestamp>,
}

impl Leased {
    pub(crate) fn of(claimed: Claimed) -> Leased {
        let task = &claimed.stored.task;
        Leased {
            lease: LeaseRef { task: task.id, number: task.lease_number },
            expires_at: task.lease.as_ref().and_then(|lease| lease.expires_at),
            namespace: task.lane.namespace.clone(),
            kind: task.lane.kind.clone(),
            queue: task.lane.queue.clone(),
            attempt: task.counters.attempt,
            attempt_number: task.attempt_number(),
            run: task.run,
            cycle: task.cycle,
            is_retry: task.run > 1,
            timeout: task.timeout,
            ends_by: task.attempt_deadline.zip(task.started_at).map(|(span, start)| start + span),
            key: claimed.key,
            name: claimed.name,
            payload: claimed.payload,
            labels: claimed.labels,
            executor: claimed.executor,
            traceparent: claimed.traceparent,
        }
    }
}

impl Engine {
    /// Leases tasks, and waits for them as long as the request says.
    pub async fn lease(&self, request: LeaseRequest) -> Result<Vec<Leased>, CommandError> {
        let wanted = self.core.check_lease(&request)?;
        self.lease_for(request.wait, wanted, None::<fn() -> bool>).await
    }

    /// The same for a caller that may go: asks twice a second whether to keep waiting, and looks for itself now and then.
    pub async fn lease_while(
        &self,
        request: LeaseRequest,
        keep_waiting: impl Fn() -> bool,
    ) -> Result<Vec<Leased>, CommandError> {
        let wanted = self.core.check_lease(&request)?;
        let wait = request.wait;
        drop(request);
        self.lease_for(wait, wanted, Some(keep_waiting)).await
    }

    async fn lease_for(
        &self,
        wait: Duration,
        claim: ClaimRequest,
        keep_waiting: Option<impl Fn() -> bool>,
    ) -> Result<Vec<Leased>, CommandError> {
        let core = &self.core;
        let wanted = core.wake.prepare(&claim);
        let give_up = Instant::now() + wait;
        loop {
            // In the queue first, then look: what comes in between is not missed.
            let place = core.wake.wait_for(&wanted);
            let claimed = self.claim(&claim).await?;
            if claim.limit as usize == claimed.len() && core.alarms.of(Loop::Retries).may_be_due(core.clock.now()) {
                // There may be more than one could take.
                core.wake.look_in(&claim.namespace);
            }
            if !claimed.is_empty() || wait.is_zero() {
                return self.render_steps(claimed).await;
            }
            let look_again = Instant::now() + place.look_again();
            let told = place.told();
            tokio::pin!(told);
            loop {
                let Some(keep_waiting) = &keep_waiting else {
                    match tokio::time::timeout_at(give_up, &mut told).await {
                        Ok(()) => break,
                        Err(_) => return Ok(Vec::new()),
                    }
                };
                let until = give_up.min(look_again).min(Instant::now() + ASK_AGAIN);
                if tokio::time::timeout_at(until, &mut told).await.is_ok() {
                    break;
                }
                let now = Instant::now();
                if now >= give_up || !keep_waiting() {
                    return Ok(Vec::new());
                }
                if now >= look_again {
                    break;
                }
            }
        }
    }

    /// Checks a request as `lease` does, for callers that answer it themselves.
    pub fn check_lease(&self, request: &LeaseRequest) -> Result<(), CommandError> {
        self.core.check_lease(request)?;
        Ok(())
    }

    async fn claim(&self, claim: &ClaimRequest) -> Result<Vec<Claimed>, CommandError> {
        let now = self.core.clock.now();
        self.core.asked_at.store(now.0, Ordering::Relaxed);
        let claim = ClaimRequest { due: self.core.alarms.of(Loop::Retries).may_be_due(now), ..claim.clone() };
        let answer = if claim.limit as usize >= BULK {
            self.core.claim_batch(std::slice::from_ref(&claim)).await.pop().ok_or(CommandError::ShuttingDown)?
        } else {
            self.combiners.claims.ask(claim).await?
        };
        Ok(answer?)
    }
}

impl Core {
    fn check_lease(&self, request: &LeaseRequest) -> Result<ClaimRequest, Invalid> {
        let limits = &self.config.limits;
        let mut faults = Invalid::default();
        limits.check_namespace(&request.namespace, &mut faults);
        limits.check_name("worker", &request.worker, &mut faults);
        if !request.any_queue && (request.queues.is_empty() || request.queues.len() > 100) {
            faults.push("queues", "needs 1 to 100 names");
        }
        if request.kinds.len() > 1_000 {
            faults.push("kinds", "may hold 1000 names at most");
        }
        for (field, names) in [("queues", &request.queues), ("kinds", &request.kinds)] {
            for (i, name) in names.iter().enumerate() {
                limits.check_name(&format!("{field}[{i}]"), name, &mut faults);
            }
        }
        if request.limit == 0 || request.limit > limits.leases_per_request {
            faults.push("limit", format!("must be between 1 and {}", limits.leases_per_request));
        }
        if request.lease < Millis(1) || request.lease > limits.longest_lease {
            faults.push("lease", format!("must be more than nothing and {} at most", limits.longest_lease));
        }
        faults.or(ClaimRequest {
            namespace: request.namespace.clone(),
            queues: request.queues.clone(),
            any_queue: request.any_queue,
            kinds: request.kinds.clone(),
            executor: request.executor,
            worker: request.worker.as_str().into(),
            limit: request.limit,
            lease: request.lease,
            due: false,
            without_calls: request.without_calls,
            only_kinds: request.only_kinds.clone(),
        })
    }

    pub(crate) async fn claim_batch(&self, batch: &[ClaimRequest]) -> Vec<Result<Vec<Claimed>, StoreError>> {
        match self.tallies.asked(Query::Claim, self.store.claim(batch, self.clock.now())).await {
            Err(error) => batch.iter().map(|_| Err(error.clone())).collect(),
            Ok(answers) => {
                self.tallies.claimed(answers.iter().flatten());
                self.config.watching.started(answers.iter().flatten());
                for claimed in answers.iter().flatten() {
                    self.set_alarms(&claimed.stored.task);
                }
                self.cache.put(answers.iter().flatten().map(|claimed| claimed.stored.clone()), self.clock.now());
                answers.into_iter().map(Ok).collect()
            }
        }
    }
}
