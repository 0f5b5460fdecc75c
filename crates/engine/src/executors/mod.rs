//! Executors: what the server does itself. Each leases its tasks like any worker, keeps them alive, and reports how they ended;
//! what comes of that is decided where everything is decided.

pub mod classify;
pub mod command;
mod discover;
mod guard;
mod http;
mod kinds;
mod listen;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use comeback_core::{Class, Executor, Failure, Lane, Millis, Trigger};
use comeback_store::{BeatAnswer, ClaimRequest};
use tokio::sync::{Semaphore, watch};

pub use discover::Discover;
pub use guard::Reach;
pub use http::HttpCall;
pub use kinds::{CATEGORY, Kind, Kinds, NO_CATEGORY};

use crate::{Engine, Heartbeat, LeaseRequest, Leased, Report, ReportEnd, ReportError};

/// What this process may do by itself. The kinds it knows are in the engine's configuration.
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
/// How long giving back may take.
const GIVE_BACK: Duration = Duration::from_secs(5);

/// Executors in the background. They end with this.
pub struct Executors {
    tasks: Vec<tokio::task::JoinHandle<()>>,
    shift: Arc<Shift>,
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
        *self.shift.busy.borrow()
    }

    pub fn ending(&self) -> Ending {
        Ending(self.shift.clone())
    }
}

/// How executors come to their end in good order.
#[derive(Clone)]
pub struct Ending(Arc<Shift>);

impl Ending {
    /// From now on nothing new is begun.
    pub fn close(&self) {
        self.0.phase.send_replace(Phase::Closing);
    }

    /// What runs has so much time to come to its end; what then still runs is stopped and given back, uncounted.
    pub async fn finish(&self, grace: Duration) {
        self.close();
        let mut busy = self.0.busy.subscribe();
        if tokio::time::timeout(grace, busy.wait_for(|busy| *busy == 0)).await.is_err() {
            self.0.phase.send_replace(Phase::Leaving);
            let _ = tokio::time::timeout(GIVE_BACK, busy.wait_for(|busy| *busy == 0)).await;
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Open,
    Closing,
    Leaving,
}

struct Shift {
    busy: watch::Sender<usize>,
    phase: watch::Sender<Phase>,
}

impl Shift {
    async fn until(&self, phase: Phase) {
        let _ = self.phase.subscribe().wait_for(|now| *now >= phase).await;
    }

    fn is_open(&self) -> bool {
        *self.phase.borrow() == Phase::Open
    }
}

#[derive(Clone)]
struct Runner {
    engine: Engine,
    calls: http::Calls,
    shift: Arc<Shift>,
}

/// What one dispatcher is there for.
#[derive(Clone)]
enum Duty {
    Sort(Executor),
    Kind(Arc<Kind>),
}

impl Duty {
    fn executor(&self) -> Executor {
        match self {
            Duty::Sort(sort) => *sort,
            Duty::Kind(_) => Executor::Worker,
        }
    }

    fn kinds(&self) -> Vec<String> {
        match self {
            Duty::Sort(_) => Vec::new(),
            Duty::Kind(kind) => vec![kind.name.clone()],
        }
    }

    fn serves(&self, lane: &Lane) -> bool {
        match self {
            Duty::Sort(sort) => lane.executor == *sort,
            Duty::Kind(kind) => kind.serves(lane),
        }
    }
}

impl std::fmt::Display for Duty {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Duty::Sort(sort) => sort.fmt(f),
            Duty::Kind(kind) => f.write_str(&kind.name),
        }
    }
}

impl Engine {
    pub fn start_executors(&self, options: ExecutorOptions) -> Result<Executors, String> {
        let shift = Arc::new(Shift { busy: watch::Sender::new(0), phase: watch::Sender::new(Phase::Open) });
        let calls = http::Calls::new(options.reach)?;
        let runner = Runner { engine: self.clone(), calls, shift: shift.clone() };
        let mut sorts = vec![Executor::Http, Executor::Timer];
        if options.commands {
            sorts.push(Executor::Command);
        }
        let drive = |duty, concurrency: usize| tokio::spawn(dispatch(runner.clone(), duty, concurrency.max(1)));
        let mut tasks: Vec<_> = sorts.into_iter().map(|sort| drive(Duty::Sort(sort), options.concurrency)).collect();
        for kind in self.config().kinds.iter() {
            tasks.push(drive(Duty::Kind(kind.clone()), kind.concurrency));
            let (engine, kind, shift) = (self.clone(), kind.clone(), shift.clone());
            tasks.push(tokio::spawn(async move {
                tokio::select! {
                    () = engine.keep_discovering(kind) => {}
                    () = shift.until(Phase::Closing) => {}
                }
            }));
        }
        Ok(Executors { tasks, shift })
    }
}

/// One duty, for as long as the shift is open: lease what there is room for, wherever it is, and run it.
async fn dispatch(runner: Runner, duty: Duty, concurrency: usize) {
    let room = Arc::new(Semaphore::new(concurrency));
    let (core, shift) = (runner.engine.core.clone(), runner.shift.clone());
    let closed = shift.until(Phase::Closing);
    tokio::pin!(closed);
    while shift.is_open() {
        // Where all hands are full, somebody has to end first.
        tokio::select! {
            _ = room.acquire() => {}
            () = &mut closed => return,
        }
        // In the queue first, then look: what comes in between is not missed.
        let place = core.wake.wait_for(&anywhere(&duty, concurrency));
        let rest = match lease_everywhere(&runner, &duty, &room).await {
            Ok(0) => place.told(),
            Ok(_) => continue,
            Err(error) => {
                tracing::warn!(%duty, %error, "an executor cannot lease; it tries again");
                tokio::time::sleep(LOOK).await;
                continue;
            }
        };
        tokio::select! {
            _ = tokio::time::timeout(LOOK, rest) => {}
            () = &mut closed => return,
        }
    }
}

/// What a duty waits to be told of.
fn anywhere(duty: &Duty, limit: usize) -> ClaimRequest {
    let (namespace, queues) = match duty {
        // Word of other categories is for others.
        Duty::Kind(kind) if kind.categories.is_some() => (kind.namespace.as_str(), kind.categories.clone()),
        _ => (ClaimRequest::ANY_NAMESPACE, None),
    };
    ClaimRequest {
        namespace: namespace.into(),
        queues: queues.unwrap_or_default(),
        kinds: duty.kinds(),
        executor: duty.executor(),
        worker: "executor".into(),
        limit: u32::try_from(limit).unwrap_or(u32::MAX),
        lease: LEASE,
        due: false,
    }
}

async fn lease_everywhere(runner: &Runner, duty: &Duty, room: &Arc<Semaphore>) -> Result<usize, crate::CommandError> {
    let mut queues: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for lane in runner.engine.store().lanes(duty.executor()).await? {
        if !duty.serves(&lane) {
            continue;
        }
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
                return Ok(leased);
            }
            let request = LeaseRequest {
                queues: queues.to_vec(),
                kinds: duty.kinds(),
                executor: duty.executor(),
                limit: u32::try_from(free).unwrap_or(u32::MAX),
                lease: LEASE,
                ..LeaseRequest::new(namespace.clone(), format!("{}/{duty}", runner.engine.config().instance))
            };
            for task in runner.engine.lease(request).await? {
                leased += 1;
                let Ok(permit) = room.clone().acquire_owned().await else { return Ok(leased) };
                let (runner, duty) = (runner.clone(), duty.clone());
                runner.shift.busy.send_modify(|busy| *busy += 1);
                tokio::spawn(async move {
                    runner.run(duty, task).await;
                    runner.shift.busy.send_modify(|busy| *busy -= 1);
                    drop(permit);
                });
            }
        }
    }
    Ok(leased)
}

impl Runner {
    async fn run(&self, duty: Duty, task: Leased) {
        let run = async {
            match &duty {
                Duty::Sort(Executor::Http) => self.calls.run(&task).await,
                Duty::Sort(Executor::Command) => command::run_own(&task).await,
                Duty::Sort(_) => ReportEnd::Succeeded { result: None },
                Duty::Kind(kind) => command::run_task(kind.process.clone(), &task).await,
            }
        };
        let end = tokio::select! {
            end = run => end,
            // Canceled, or given up: whoever has it now says how it ends.
            () = self.until_lost(&task) => return,
            // The loop that watches over runs says so too; here only the process has to stop.
            () = self.too_long(&duty) => return,
            () = self.shift.until(Phase::Leaving) => ReportEnd::Released,
        };
        self.report(&task, end).await;
    }

    async fn report(&self, task: &Leased, end: ReportEnd) {
        let mut report = Report { lease: task.lease, end };
        for wait in [100, 500, 2_000, 5_000] {
            match self.engine.report(vec![report.clone()]).await {
                Ok(answers) => match answers.into_iter().next() {
                    // What cannot be stored would be lost, and run again to the same end.
                    Some(Err(ReportError::Invalid(fault))) => {
                        report.end = ReportEnd::Failed(unstorable(&fault.to_string()))
                    }
                    _ => return,
                },
                Err(error) => tracing::warn!(task = %task.lease.task, %error, "a report was not stored; trying again"),
            }
            tokio::time::sleep(Duration::from_millis(wait)).await;
        }
    }

    async fn too_long(&self, duty: &Duty) {
        let clock = &self.engine.core.clock;
        match duty {
            Duty::Kind(kind) if kind.timeout.is_some() => {
                clock.sleep_until(clock.now() + kind.timeout.unwrap_or_default()).await;
            }
            _ => std::future::pending().await,
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

fn unstorable(why: &str) -> Failure {
    Failure {
        class: Some(Class::Final),
        error_type: Some("result".into()),
        ..Failure::new(Trigger::Error, format!("it succeeded, but its result cannot be kept: {why}"))
    }
}
