//! Executors: what the server does itself. Each leases its tasks like any worker, keeps them alive, and reports how they ended;
//! what comes of that is decided where everything is decided.

mod bound;
pub mod command;
mod guard;
mod http;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use comeback_core::{Class, Executor, Failure, Millis, Trigger};
use comeback_store::{BeatAnswer, ClaimRequest};
use tokio::sync::Semaphore;

pub use guard::Reach;
pub use http::HttpCall;

use crate::{CommandError, Engine, Heartbeat, LeaseRef, LeaseRequest, Leased, Report, ReportEnd, ReportError};

/// What this process may do by itself.
#[derive(Clone, Debug)]
pub struct ExecutorOptions {
    /// Where calls may go.
    pub reach: Reach,
    /// Tasks may start processes here.
    pub commands: bool,
    /// Calls and processes side by side, of each sort.
    pub concurrency: usize,
}

impl Default for ExecutorOptions {
    fn default() -> Self {
        ExecutorOptions { reach: Reach::default(), commands: false, concurrency: 64 }
    }
}

const LEASE: Millis = Millis::from_secs(60);
/// In the engine's own time, as leases are.
const SIGN_OF_LIFE: Millis = Millis::from_secs(15);
/// When a report that could not be stored is tried again; all of it is shorter than a lease.
const REPORT_AGAIN: [u64; 6] = [100, 500, 2_000, 5_000, 10_000, 20_000];
/// How often one looks even when nobody told of work.
const LOOK: Duration = Duration::from_millis(500);

/// Executors in the background. They end with this.
pub struct Executors {
    tasks: Vec<tokio::task::JoinHandle<()>>,
    busy: Arc<AtomicUsize>,
}

impl Drop for Executors {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl Executors {
    /// How many runs are under way.
    pub fn busy(&self) -> usize {
        self.busy.load(Ordering::SeqCst)
    }
}

#[derive(Clone)]
struct Runner {
    engine: Engine,
    calls: http::Calls,
    runs: Arc<bound::Runs>,
    busy: Arc<AtomicUsize>,
}

impl Engine {
    pub fn start_executors(&self, options: ExecutorOptions) -> Result<Executors, String> {
        let busy = Arc::new(AtomicUsize::new(0));
        let calls = http::Calls::new(options.reach)?;
        let runs: Arc<bound::Runs> = Arc::default();
        let runner = Runner { engine: self.clone(), calls, runs: runs.clone(), busy: busy.clone() };
        let mut sorts = vec![Executor::Http, Executor::Timer];
        if options.commands {
            sorts.push(Executor::Command);
        }
        let drive = |sort| tokio::spawn(dispatch(runner.clone(), sort, options.concurrency.max(1)));
        let mut tasks: Vec<_> = sorts.into_iter().map(drive).collect();
        tasks.push(tokio::spawn(runs.watch(self.store().clone())));
        Ok(Executors { tasks, busy })
    }
}

/// One sort of executor, for ever: lease what there is room for, in every namespace, and run it.
async fn dispatch(runner: Runner, sort: Executor, concurrency: usize) {
    let room = Arc::new(Semaphore::new(concurrency));
    let core = runner.engine.core.clone();
    let mut served = String::new();
    loop {
        // In the queue first, then look: what comes in between is not missed.
        let place = core.wake.wait_for(&anywhere(sort, concurrency));
        match lease_everywhere(&runner, sort, &room, &mut served).await {
            Ok(0) => {
                let _ = tokio::time::timeout(LOOK, place.told()).await;
            }
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(%sort, %error, "an executor cannot lease; it tries again");
                tokio::time::sleep(LOOK).await;
            }
        }
    }
}

fn anywhere(executor: Executor, limit: usize) -> ClaimRequest {
    ClaimRequest {
        namespace: ClaimRequest::ANY_NAMESPACE.into(),
        queues: Vec::new(),
        kinds: Vec::new(),
        executor,
        worker: "executor".into(),
        limit: u32::try_from(limit).unwrap_or(u32::MAX),
        lease: LEASE,
        due: false,
    }
}

/// One round, beginning behind the namespace that was `served` last: none of them is always the first.
async fn lease_everywhere(
    runner: &Runner,
    sort: Executor,
    room: &Arc<Semaphore>,
    served: &mut String,
) -> Result<usize, CommandError> {
    let mut queues: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for lane in runner.engine.store().lanes(sort).await? {
        let known = queues.entry(lane.namespace.clone()).or_default();
        if !known.contains(&lane.queue) {
            known.push(lane.queue.clone());
        }
    }
    let mut leased = 0;
    let after = (Bound::Excluded(served.clone()), Bound::Unbounded);
    let until = (Bound::Unbounded, Bound::Included(served.clone()));
    for (namespace, queues) in queues.range(after).chain(queues.range(until)) {
        for queues in queues.chunks(100) {
            // Where there is no room somebody has to end first.
            let Ok(place) = room.acquire().await else { return Ok(leased) };
            drop(place);
            let free = room.available_permits();
            let request = LeaseRequest {
                queues: queues.to_vec(),
                executor: sort,
                limit: u32::try_from(free).unwrap_or(u32::MAX),
                lease: LEASE,
                ..LeaseRequest::new(namespace.clone(), format!("{}/{sort}", runner.engine.config().instance))
            };
            for task in runner.engine.lease(request).await? {
                leased += 1;
                namespace.clone_into(served);
                let Ok(permit) = room.clone().acquire_owned().await else { return Ok(leased) };
                let runner = runner.clone();
                runner.busy.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(async move {
                    runner.run(sort, task).await;
                    runner.busy.fetch_sub(1, Ordering::SeqCst);
                    drop(permit);
                });
            }
        }
    }
    Ok(leased)
}

impl Runner {
    async fn run(&self, sort: Executor, task: Leased) {
        let run = async {
            match sort {
                Executor::Http => self.calls.run(&task).await,
                Executor::Command => command::run_task(&task).await,
                _ => ReportEnd::Succeeded { result: None },
            }
        };
        let held = self.runs.hold(task.lease);
        let end = tokio::select! {
            end = run => end,
            failure = held.too_long(&task, &*self.engine.core.clock) => ReportEnd::Failed(failure),
            // Canceled, or given up: whoever has it now says how it ends.
            () = held.gone() => return,
            () = self.until_lost(&task) => return,
        };
        self.report(task.lease, end).await;
    }

    async fn report(&self, lease: LeaseRef, mut end: ReportEnd) {
        let task = lease.task;
        let mut waits = REPORT_AGAIN.into_iter();
        loop {
            let answer = self.engine.report(vec![Report { lease, end: end.clone() }]).await;
            match answer.map(|mut answers| answers.pop()) {
                Ok(Some(Ok(_)) | None) => return,
                Ok(Some(Err(ReportError::Invalid(invalid)))) => {
                    match without_what_is_refused(end, &invalid.to_string()) {
                        Some(less) => {
                            tracing::warn!(%task, error = %invalid, "what a run left behind cannot be kept");
                            end = less;
                            continue;
                        }
                        None => return tracing::error!(%task, error = %invalid, "a report was refused"),
                    }
                }
                Ok(Some(Err(error @ (ReportError::LeaseLost | ReportError::TaskCanceled)))) => {
                    return tracing::debug!(%task, %error, "a run ended after it was given up");
                }
                Ok(Some(Err(error @ ReportError::Conflict))) => {
                    tracing::debug!(%task, %error, "a report was not stored; trying again");
                }
                Err(error) => tracing::warn!(%task, %error, "a report was not stored; trying again"),
            }
            let Some(wait) = waits.next() else {
                return tracing::error!(%task, "a report was given up; its lease runs out and the run is repeated");
            };
            tokio::time::sleep(Duration::from_millis(wait)).await;
        }
    }

    async fn until_lost(&self, task: &Leased) {
        loop {
            let clock = &self.engine.core.clock;
            clock.sleep_until(clock.now() + SIGN_OF_LIFE).await;
            let beat = Heartbeat { lease: task.lease, extend: LEASE, progress: None };
            let answer = self.engine.heartbeat(&[beat]).await;
            if let Ok([BeatAnswer::Canceled | BeatAnswer::Lost]) = answer.as_deref() {
                return;
            }
        }
    }
}

/// A failure is told without what it came with; a success whose result cannot be kept is none, now and the next time.
fn without_what_is_refused(end: ReportEnd, why: &str) -> Option<ReportEnd> {
    match end {
        ReportEnd::Failed(failure) if failure.result.is_some() => {
            Some(ReportEnd::Failed(Failure { result: None, ..failure }))
        }
        ReportEnd::Succeeded { result: Some(_) } => Some(ReportEnd::Failed(Failure {
            class: Some(Class::Final),
            error_type: Some("result".into()),
            ..Failure::new(Trigger::Error, format!("it ended well, and what it left behind cannot be kept: {why}"))
        })),
        _ => None,
    }
}
