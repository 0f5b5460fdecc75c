//! Callers that report about a job, by its lease or by the name of its worker.

use comeback_core::{Executor, Invalid, TaskId};
use comeback_engine::{CommandError, LeaseRef, Report, ReportEnd};
use comeback_server::route::{Caller, report_all};
use comeback_server::{App, Problem};
use serde_json::Value;

use super::leased_by::LeasedBy;
use super::output;

/// The caller that reports about a job.
pub struct Holder<'a> {
    /// Id of its API key.
    key: Option<&'a str>,
    worker: Option<&'a str>,
    lease: Option<&'a str>,
}

impl<'a> Holder<'a> {
    /// Reads the caller from its key and the fields of its request.
    pub fn new(
        app: &App,
        caller: &'a Caller,
        worker: &'a Option<String>,
        lease: &'a Option<String>,
    ) -> Result<Holder<'a>, Problem> {
        let mut faults = Invalid::default();
        if let Some(worker) = worker {
            app.engine.config().limits.check_name("worker_id", worker, &mut faults);
        }
        faults.or(())?;
        Ok(Holder { key: caller.id.as_deref(), worker: worker.as_deref(), lease: lease.as_deref() })
    }

    /// The lease that the caller holds: the one it names, or the live one if its worker has that. On a server with keys the name of a worker
    /// is enough only for the key that leased the job, at this instance and since it was started, because names are no secret.
    pub async fn held(&self, app: &App, namespace: &str, id: TaskId) -> Result<LeaseRef, Problem> {
        let lost = || Problem::from(CommandError::LeaseLost);
        let task = app.engine.task(namespace, id).await?.stored.task;
        match (self.lease, self.worker) {
            (Some(token), _) => app.lease_of(token, namespace).filter(|lease| lease.task == id).ok_or_else(lost),
            (None, Some(worker)) => {
                let is_workers = task.lane.executor == Executor::Worker;
                let lease = task.lease.filter(|lease| is_workers && &*lease.worker == worker).ok_or_else(lost)?;
                let lease = LeaseRef { task: id, number: lease.number };
                if self.key.is_some_and(|key| !app.route_state::<LeasedBy>().is(lease, key)) {
                    return Err(Problem::lease_needed());
                }
                Ok(lease)
            }
            (None, None) => Err(Invalid::one("worker_id", "say who has the job, or send its lease").into()),
        }
    }

    /// Reports the end of a run to the engine, which decides about retries.
    pub async fn end(&self, app: &App, namespace: &str, id: TaskId, end: ReportEnd) -> Result<Value, Problem> {
        let lease = self.held(app, namespace, id).await?;
        match report_all(app, vec![Report { lease, end }]).await?.pop() {
            Some(Ok(_)) => Ok(output::ack(&app.engine.task(namespace, id).await?.stored.task)),
            Some(Err(error)) => Err(error.into()),
            None => Err(Problem::unavailable("the report was not answered")),
        }
    }
}
