//! Executors: what the server does itself. Each leases its tasks like any worker, keeps them alive, and reports how they ended;
//! what comes of that is decided where everything is decided.

pub mod command;
mod guard;
mod http;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use comeback_core::{Executor, Millis};
use comeback_store::{BeatAnswer, ClaimRequest};
use tokio::sync::Semaphore;

pub use guard::Reach;
pub use http::HttpCall;

use crate::{Engine, Heartbeat, LeaseRequest, Leased, Report, ReportEnd};

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
    busy: Arc<AtomicUsize>,
}

impl Engine {
    pub fn start_executors(&self, options: ExecutorOptions) -> Result<Executors, String> {
        let busy = Arc::new(AtomicUsize::new(0));
        let calls = http::Calls::new(options.reach)?;
        let runner = Runner { engine: self.clone(), calls, busy: busy.clone() };
        let mut sorts = vec![Executor::Http, Executor::Timer];
        if options.commands {
            sorts.push(Executor::Command);
        }
        let drive = |sort| tokio::spawn(dispatch(runner.clone(), sort, options.concurrency.max(1)));
        Ok(Executors { tasks: sorts.into_iter().map(drive).collect(), busy })
    }
}

/// One sort of executor, for ever: lease what there is room for, in every namespace, and run it.
async fn dispatch(runner: Runner, sort: Executor, concurrency: usize) {
    let room = Arc::new(Semaphore::new(concurrency));
    let core = runner.engine.core.clone();
    loop {
        // In the queue first, then look: what comes in between is not missed.
        let place = core.wake.wait_for(&anywhere(sort, concurrency));
        match lease_everywhere(&runner, sort, &room).await {
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

async fn lease_everywhere(
    runner: &Runner,
    sort: Executor,
    room: &Arc<Semaphore>,
) -> Result<usize, crate::CommandError> {
    let mut queues: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for lane in runner.engine.store().lanes(sort).await? {
        let known = queues.entry(lane.namespace.clone()).or_default();
        if !known.contains(&lane.queue) {
            known.push(lane.queue.clone());
        }
    }
    let mut leased = 0;
    for (namespace, queues) in &queues {
        for queues in queues.chunks(100) {
            let free = room.available_permits();
            if free == 0 {
                // Somebody has to end first; waiting for that is as good as looking again.
                let _ = tokio::time::timeout(LOOK, room.acquire()).await;
                continue;
            }
            let request = LeaseRequest {
                queues: queues.to_vec(),
                executor: sort,
                limit: u32::try_from(free).unwrap_or(u32::MAX),
                lease: LEASE,
                ..LeaseRequest::new(namespace.clone(), format!("{}/{sort}", runner.engine.config().instance))
            };
            for task in runner.engine.lease(request).await? {
                leased += 1;
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
        let end = tokio::select! {
            end = run => end,
            // Canceled, or given up: whoever has it now says how it ends.
            () = self.until_lost(&task) => return,
        };
        let report = vec![Report { lease: task.lease, end }];
        for wait in [100, 500, 2_000, 5_000] {
            match self.engine.report(report.clone()).await {
                Ok(_) => return,
                Err(error) => tracing::warn!(task = %task.lease.task, %error, "a report was not stored; trying again"),
            }
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
