//! Executors: what the server does itself. Each leases its tasks like any worker, keeps them alive, and reports how they ended;
//! what comes of that is decided where everything is decided.
//!
//! Over 500 lines: one dispatcher and its lifecycle.

mod bound;
pub mod classify;
pub mod command;
mod discover;
mod guard;
mod hook;
mod http;
mod kinds;
mod left;
mod listen;
mod slots;

use std::sync::Arc;
use std::time::Duration;

use comeback_core::{Class, Executor, Failure, HOOK_QUEUE, Millis, Quota, Quotas, Timestamp, Trigger};
use comeback_store::{
    BeatAnswer, ClaimRequest, Finished, Heartbeat as Pulse, HeldName, Running, StoreError, panic_point,
};
use tokio::sync::{Notify, OnceCell, watch};

pub use discover::Discover;
pub use guard::EgressPolicy;
pub use http::HttpCall;
pub use kinds::{CATEGORY, Kind, Kinds, NO_CATEGORY};
use slots::Slots;

use crate::subscriptions::deliver;
use crate::{CommandError, Engine, Heartbeat, LeaseRef, LeaseRequest, Leased, Report, ReportEnd};

/// Options of the executors of this process. The kinds it knows are in the engine's configuration.
#[derive(Clone, Debug)]
pub struct ExecutorOptions {
    /// Where calls may go.
    pub reach: EgressPolicy,
    /// Tasks may start processes here.
    pub commands: bool,
    /// Variables of this process that theirs get too.
    pub pass_env: Vec<String>,
    /// Where those who are called say how it ended: the address of this server as they know it.
    pub handles: String,
    /// Calls and processes side by side, of each sort; as many deliveries of subscriptions and hooks beside the calls.
    pub concurrency: usize,
}

impl Default for ExecutorOptions {
    fn default() -> Self {
        ExecutorOptions {
            reach: EgressPolicy::default(),
            commands: false,
            pass_env: Vec::new(),
            handles: "http://127.0.0.1:7330".into(),
            concurrency: 64,
        }
    }
}

const LEASE: Millis = Millis::from_secs(60);
/// In the engine's own time, as leases are.
const SIGN_OF_LIFE: Millis = Millis::from_secs(15);
/// When a report that could not be stored is tried again; all of it is shorter than a lease.
const REPORT_AGAIN: [u64; 6] = [100, 500, 2_000, 5_000, 10_000, 20_000];
/// Poll interval without notifications.
const LOOK: Duration = Duration::from_millis(500);
/// How long giving back may take.
const GIVE_BACK: Duration = Duration::from_secs(5);

/// Executors in the background. They end with this.
pub struct Executors {
    tasks: Vec<tokio::task::JoinHandle<()>>,
    lifecycle: Arc<Lifecycle>,
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
        *self.lifecycle.busy.borrow()
    }

    /// A handle that shuts the executors down.
    pub fn ending(&self) -> ShutdownHandle {
        ShutdownHandle(self.lifecycle.clone())
    }
}

/// How executors come to their end in good order.
#[derive(Clone)]
pub struct ShutdownHandle(Arc<Lifecycle>);

impl ShutdownHandle {
    /// From now on nothing new is begun.
    pub fn close(&self) {
        self.0.phase.send_replace(Phase::Closing);
    }

    /// Running work has this long to finish; the rest is stopped and released without costing an attempt.
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

struct Lifecycle {
    busy: watch::Sender<usize>,
    phase: watch::Sender<Phase>,
}

impl Lifecycle {
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
    handles: Arc<str>,
    environment: command::Environment,
    runs: Arc<bound::Runs>,
    lifecycle: Arc<Lifecycle>,
    /// The name of this process, held before anything is leased in it.
    name: Arc<OnceCell<Option<HeldName>>>,
}

/// Role of one dispatcher.
#[derive(Clone)]
enum DispatcherRole {
    Sort(Executor),
    Kind(Arc<Kind>),
}

impl DispatcherRole {
    fn executor(&self) -> Executor {
        match self {
            DispatcherRole::Sort(sort) => *sort,
            DispatcherRole::Kind(_) => Executor::Worker,
        }
    }

    fn kinds(&self) -> Vec<String> {
        match self {
            DispatcherRole::Sort(_) => Vec::new(),
            DispatcherRole::Kind(kind) => vec![kind.name.clone()],
        }
    }

    fn serves(&self, namespace: &str) -> bool {
        match self {
            DispatcherRole::Sort(_) => true,
            DispatcherRole::Kind(kind) => kind.namespace == namespace,
        }
    }

    /// Claims per namespace. Deliveries have slots of their own.
    fn sources(&self) -> Vec<Source> {
        let of = |quota, queues| Source { quota, queues, without_calls: false };
        match self {
            // The operator gave a kind its own concurrency.
            DispatcherRole::Kind(kind) => kind.queues().into_iter().map(|queues| of(None, queues)).collect(),
            DispatcherRole::Sort(Executor::Http) => vec![
                of(Some(Quota::Deliveries), vec![HOOK_QUEUE.to_owned()]),
                Source { without_calls: true, ..of(Some(Quota::Calls), Vec::new()) },
            ],
            DispatcherRole::Sort(_) => vec![of(Some(Quota::Calls), Vec::new())],
        }
    }
}

/// A part of what a role leases.
struct Source {
    /// Which quota its runs count against.
    quota: Option<Quota>,
    /// As many as one request may name; none means all of them.
    queues: Vec<String>,
    without_calls: bool,
}

impl std::fmt::Display for DispatcherRole {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            DispatcherRole::Sort(sort) => sort.fmt(f),
            DispatcherRole::Kind(kind) => f.write_str(&kind.name),
        }
    }
}

impl Engine {
    /// Starts the executors that the options ask for.
    pub fn start_executors(&self, options: ExecutorOptions) -> Result<Executors, String> {
        let lifecycle = Arc::new(Lifecycle { busy: watch::Sender::new(0), phase: watch::Sender::new(Phase::Open) });
        let calls = http::Calls::new(options.reach)?;
        let runs: Arc<bound::Runs> = Arc::default();
        let handles = options.handles.into();
        let environment = command::Environment::Clean(options.pass_env.into());
        let (engine, own) = (self.clone(), environment.clone());
        let runner = Runner {
            engine,
            calls,
            handles,
            environment: own,
            runs: runs.clone(),
            lifecycle: lifecycle.clone(),
            name: Arc::default(),
        };
        let mut sorts = vec![Executor::Http, Executor::Timer, Executor::Hook];
        if options.commands {
            sorts.push(Executor::Command);
        }
        let background = &self.config().background;
        let drive = |role: DispatcherRole, concurrency: usize| {
            let concurrency = concurrency.max(1);
            // Kept across a restart of the dispatcher: what runs still holds its slot.
            let slots = Arc::new(RoleSlots::new(&role, &self.config().quotas, concurrency));
            let runner = runner.clone();
            background.spawn(format!("executor/{role}"), LOOK, move |beat| {
                dispatch(runner.clone(), role.clone(), concurrency, slots.clone(), beat)
            })
        };
        let mut tasks: Vec<_> =
            sorts.into_iter().map(|sort| drive(DispatcherRole::Sort(sort), options.concurrency)).collect();
        for kind in self.config().kinds.iter() {
            tasks.push(drive(DispatcherRole::Kind(kind.clone()), kind.concurrency));
            let (engine, kind, lifecycle) = (self.clone(), kind.clone(), lifecycle.clone());
            let environment = environment.clone();
            tasks.push(background.spawn(format!("discover/{}", kind.name), LOOK, move |beat| {
                let (engine, kind, lifecycle) = (engine.clone(), kind.clone(), lifecycle.clone());
                let environment = environment.clone();
                async move {
                    // The command and the pause after it take as long as configured.
                    beat.idle();
                    tokio::select! {
                        () = engine.discover_loop(kind, environment) => {}
                        () = lifecycle.until(Phase::Closing) => {}
                    }
                    Finished
                }
            }));
        }
        let store = self.store().clone();
        tasks.push(background.spawn("executor/runs", LOOK, move |beat| runs.clone().watch(store.clone(), beat)));
        Ok(Executors { tasks, lifecycle })
    }
}

/// One role, for as long as the lifecycle is open: lease what there is room for, wherever it is, and run it.
async fn dispatch(
    runner: Runner,
    role: DispatcherRole,
    concurrency: usize,
    slots: Arc<RoleSlots>,
    beat: Arc<Pulse>,
) -> Finished {
    let (core, lifecycle) = (runner.engine.core.clone(), runner.lifecycle.clone());
    runner.name.get_or_init(|| runner.engine.begin()).await;
    let mut served = String::new();
    let wanted = core.wake.prepare(&anywhere(&role, concurrency));
    let closed = lifecycle.until(Phase::Closing);
    tokio::pin!(closed);
    while lifecycle.is_open() {
        panic_point!("executor-dispatch");
        // Before looking: a run that ends in between is not missed.
        let freed = slots.freed();
        // In the queue first, then look: what comes in between is not missed.
        let place = core.wake.wait_for(&wanted);
        let looked = lease_everywhere(&runner, &role, &slots, &mut served).await;
        if looked.is_ok() {
            beat.turn();
        }
        let rest = match looked {
            Ok(Round { leased: 0, waits }) => (place.told(), waits),
            Ok(_) => continue,
            Err(error) => {
                tracing::warn!(%role, %error, "executor cannot lease; retrying");
                tokio::time::sleep(LOOK).await;
                continue;
            }
        };
        let (told, waits) = rest;
        tokio::select! {
            _ = tokio::time::timeout(LOOK, told) => {}
            // Only where a namespace may have more to do than it had slots.
            () = freed, if waits => {}
            () = &mut closed => return Finished,
        }
    }
    Finished
}

/// The slots of one role: deliveries have their own, so that calls never keep them waiting.
struct RoleSlots {
    calls: Arc<Slots>,
    deliveries: Arc<Slots>,
}

impl RoleSlots {
    fn new(role: &DispatcherRole, quotas: &Quotas, concurrency: usize) -> RoleSlots {
        let share = |quota| match role {
            DispatcherRole::Kind(_) => concurrency,
            DispatcherRole::Sort(_) => usize::try_from(quotas.get(quota)).unwrap_or(usize::MAX),
        };
        let freed = Arc::new(Notify::new());
        RoleSlots {
            calls: Slots::new(concurrency, share(Quota::Calls), freed.clone()),
            deliveries: Slots::new(concurrency, share(Quota::Deliveries), freed),
        }
    }

    fn of(&self, quota: Option<Quota>) -> &Arc<Slots> {
        match quota {
            Some(Quota::Deliveries) => &self.deliveries,
            _ => &self.calls,
        }
    }

    /// Waits until a slot is free again, from now on.
    fn freed(&self) -> impl Future<Output = ()> + use<> {
        let freed = self.calls.freed.clone();
        let mut freed = Box::pin(async move { freed.notified().await });
        // Registers.
        let _ = futures_util::FutureExt::now_or_never(&mut freed);
        freed
    }
}

/// Result of one pass over all namespaces.
struct Round {
    leased: usize,
    /// A namespace was passed over, or cut short, because it has no slot left.
    waits: bool,
}

/// The claim that a role waits for.
fn anywhere(role: &DispatcherRole, limit: usize) -> ClaimRequest {
    let (namespace, queues) = match role {
        // Word of other categories is for others.
        DispatcherRole::Kind(kind) if kind.categories.is_some() => (kind.namespace.as_str(), kind.categories.clone()),
        _ => (ClaimRequest::ANY_NAMESPACE, None),
    };
    ClaimRequest {
        namespace: namespace.into(),
        queues: queues.unwrap_or_default(),
        any_queue: false,
        kinds: role.kinds(),
        executor: role.executor(),
        worker: "executor".into(),
        limit: u32::try_from(limit).unwrap_or(u32::MAX),
        lease: LEASE,
        due: false,
        without_calls: false,
        only_kinds: None,
    }
}

/// One round, beginning behind the namespace that was `served` last: none of them is always the first. A namespace is asked for as
/// many tasks as it has slots, so no task is leased that cannot run.
async fn lease_everywhere(
    runner: &Runner,
    role: &DispatcherRole,
    slots: &RoleSlots,
    served: &mut String,
) -> Result<Round, CommandError> {
    // One claim for each namespace and quota, over all its queues: the store finds those that have something ready.
    let mut namespaces = runner.engine.store().lane_namespaces(Some(role.executor())).await?;
    namespaces.retain(|namespace| role.serves(namespace));
    let first = namespaces.partition_point(|namespace| *namespace <= *served);
    namespaces.rotate_left(first);
    let mut round = Round { leased: 0, waits: false };
    for namespace in &namespaces {
        for Source { quota, queues, without_calls } in role.sources() {
            let slots = slots.of(quota);
            let room = slots.room(namespace);
            if room == 0 {
                round.waits = true;
                continue;
            }
            Running::turn();
            let request = LeaseRequest {
                any_queue: queues.is_empty(),
                queues,
                without_calls,
                kinds: role.kinds(),
                executor: role.executor(),
                limit: u32::try_from(room).unwrap_or(u32::MAX),
                lease: LEASE,
                ..LeaseRequest::new(namespace.clone(), format!("{}/{role}", runner.engine.config().instance))
            };
            let leased = runner.engine.lease(request).await?;
            round.waits |= leased.len() >= room;
            for task in leased {
                round.leased += 1;
                namespace.clone_into(served);
                panic_point!("executor-leased");
                let slot = slots.take(namespace);
                let (runner, role) = (runner.clone(), role.clone());
                let busy = Busy::begin(runner.lifecycle.clone());
                let named = CurrentRun { role: role.clone(), lease: task.lease };
                tokio::spawn(Running::Request(Arc::new(named)).scope(async move {
                    runner.run(role, task).await;
                    drop((busy, slot));
                }));
            }
        }
    }
    Ok(round)
}

/// One run, counted for as long as it lives, however it ends.
struct Busy(Arc<Lifecycle>);

impl Busy {
    fn begin(lifecycle: Arc<Lifecycle>) -> Busy {
        lifecycle.busy.send_modify(|busy| *busy += 1);
        Busy(lifecycle)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.busy.send_modify(|busy| *busy -= 1);
    }
}

/// How a panic names a run.
struct CurrentRun {
    role: DispatcherRole,
    lease: LeaseRef,
}

impl std::fmt::Display for CurrentRun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "of executor {}: task {}", self.role, self.lease.task)
    }
}

impl Runner {
    async fn run(&self, role: DispatcherRole, task: Leased) {
        panic_point!("executor-run");
        if matches!(role, DispatcherRole::Sort(Executor::Hook)) {
            return self.start_hook(&task).await;
        }
        let run = async {
            match &role {
                DispatcherRole::Sort(Executor::Http) => {
                    self.engine.core.tallies.telling(&task.namespace, &task.kind, self.call(&task)).await
                }
                DispatcherRole::Sort(Executor::Command) => {
                    command::run_own(&self.engine.core, &task, self.environment.clone()).await
                }
                DispatcherRole::Sort(_) => ReportEnd::Succeeded { result: None },
                DispatcherRole::Kind(kind) => {
                    let environment = self.environment.clone();
                    command::run_task(command::Process { environment, ..kind.process.clone() }, &task).await
                }
            }
        };
        let held = self.runs.hold(task.lease);
        let end = tokio::select! {
            end = run => end,
            failure = held.too_long(&task, &*self.engine.core.clock) => ReportEnd::Failed(failure),
            // Canceled or lost: its current owner reports the end.
            () = held.gone() => return,
            () = self.until_lost(&task) => return,
            () = self.lifecycle.until(Phase::Leaving) => ReportEnd::Released,
        };
        self.report(task.lease, end).await;
    }

    async fn call(&self, task: &Leased) -> ReportEnd {
        let core = &self.engine.core;
        let Some(subscription) = deliver::subscription_of(task) else {
            let longest = core.config.limits.longest_call;
            return match tokio::time::timeout(Duration::from_millis(longest.0), self.calls.run(core, task)).await {
                Ok(end) => end,
                Err(_) => ReportEnd::Failed(http::took_too_long(longest)),
            };
        };
        match core.until_its_turn(task).await {
            Ok(None) => {}
            Ok(Some(delay)) => return ReportEnd::Snoozed { delay },
            Err(error) => {
                let class = Some(Class::Retryable);
                return ReportEnd::Failed(Failure { class, ..Failure::new(Trigger::Error, error.to_string()) });
            }
        }
        let end = match core.signed(&subscription, task).await {
            Err(failure) => return ReportEnd::Failed(*failure),
            Ok(call) => match tokio::time::timeout(deliver::LONGEST, self.calls.run(core, &call)).await {
                Ok(end) => end,
                Err(_) => {
                    let message = format!("no answer within {} s", deliver::LONGEST.as_secs());
                    ReportEnd::Failed(Failure {
                        error_type: Some("timeout".into()),
                        ..Failure::new(Trigger::Timeout, message)
                    })
                }
            },
        };
        core.heard(&subscription, task, end).await
    }

    async fn report(&self, lease: LeaseRef, mut end: ReportEnd) {
        panic_point!("executor-report");
        let task = lease.task;
        let mut waits = REPORT_AGAIN.into_iter();
        loop {
            let answer = self.engine.report(vec![Report { lease, end: end.clone() }]).await;
            match answer.map(|mut answers| answers.pop()) {
                Ok(Some(Ok(_)) | None) => return,
                Ok(Some(Err(CommandError::Invalid(invalid)))) => {
                    match without_what_is_refused(end, &invalid.to_string()) {
                        Some(less) => {
                            tracing::warn!(%task, error = %invalid, "result rejected (too large)");
                            end = less;
                            continue;
                        }
                        None => return tracing::error!(%task, error = %invalid, "report rejected"),
                    }
                }
                Ok(Some(Err(error @ (CommandError::LeaseLost | CommandError::TaskCanceled)))) => {
                    return tracing::debug!(%task, %error, "lease lost before report");
                }
                Ok(Some(Err(error @ CommandError::Store(StoreError::Corrupt(_))))) => {
                    return tracing::error!(%task, %error, "report failed: task is corrupt");
                }
                Ok(Some(Err(error))) => {
                    tracing::debug!(%task, %error, "report failed; retrying");
                }
                Err(error) => tracing::warn!(%task, %error, "report failed; retrying"),
            }
            let Some(wait) = waits.next() else {
                return tracing::error!(%task, "report failed for good; the lease expires and the run is repeated");
            };
            tokio::time::sleep(Duration::from_millis(wait)).await;
        }
    }

    async fn until_lost(&self, task: &Leased) {
        let clock = &self.engine.core.clock;
        let mut next = began(task, &**clock) + SIGN_OF_LIFE;
        loop {
            clock.sleep_until(next).await;
            next = clock.now() + SIGN_OF_LIFE;
            let beat = Heartbeat { lease: task.lease, extend: LEASE, progress: None };
            let answer = self.engine.heartbeat(&[beat]).await;
            if let Ok([BeatAnswer::Canceled | BeatAnswer::Lost]) = answer.as_deref() {
                return;
            }
        }
    }
}

/// Start of a run by its lease, not by the time of the poll, which may be much later.
fn began(task: &Leased, clock: &dyn crate::Clock) -> Timestamp {
    task.expires_at.map_or_else(|| clock.now(), |end| end - LEASE)
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
