//! Nothing is done twice because somebody mended it: trees of executions, calls and loops by chance, worked off by chance, with repairs,
//! pauses, cancels and deaths in between, and looked at after every act.
//!
//! No step that succeeded runs again, unless the execution that it succeeded in was replaced after it had failed: by its policy, or by a
//! person who began it anew. A repair by hand replaces nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use comeback_core::filter::{Filter, Sort};
use comeback_core::replay::{Replayed, replay};
use comeback_core::transition::Actor;
use comeback_core::{
    Class, Commit, Edge, Event, EventKind, ExecutionId, ExecutionState, Executor, Failure, Millis, Reason, Record,
    State, Task, TaskId, Trigger,
};
use comeback_engine::store::{ExecutionQuery, ListQuery, SqliteOptions, SqliteStore, Store, StoreError, Subject};
use comeback_engine::{
    Clock, CommandError, Engine, EngineConfig, LeaseRequest, Leased, ManualRetry, Report, ReportEnd, VirtualClock,
};
use serde_json::{Map, Value, json};

use crate::START;
use crate::between::{Between, Hand};
use crate::faults::{Faults, Faulty};
use crate::plain::{self, Plain};
use crate::rng::Rng;

/// Deliberate breaks, each as a repair that does not reach far enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Break {
    /// What stands for an execution goes on waiting for its retry.
    KeepsTheRetry,
    /// The same where it has given up already.
    StaysGivenUp,
    /// A loop stays as it ended when a round of it is tried again.
    LeavesTheLoop,
}

const BREAKS: [Break; 3] = [Break::KeepsTheRetry, Break::StaysGivenUp, Break::LeavesTheLoop];

/// A store that loses questions and answers, and forgets what a repair reaches where it is to be broken.
struct Forgetful {
    faulty: Faulty,
    broken: Option<Break>,
}

impl Forgetful {
    fn forgets(&self, commit: &Commit, task: &Task, from: State) -> bool {
        let is_taken_up = || {
            let record = commit.records.iter().find(|record| record.subject == task.id.0);
            record.is_some_and(|it| {
                it.events.contains(&EventKind::TaskManualRetry)
                    && it.data.as_ref().is_some_and(|it| it.get("mended").is_some())
            })
        };
        let is_flow = task.lane.executor == Executor::Flow;
        match self.broken {
            None => false,
            Some(Break::KeepsTheRetry) => is_flow && from == State::RetryPending && is_taken_up(),
            Some(Break::StaysGivenUp) => is_flow && from.is_terminal() && is_taken_up(),
            Some(Break::LeavesTheLoop) => is_flow && from == State::Failed && task.state == State::Waiting,
        }
    }
}

#[async_trait]
impl Hand for Forgetful {
    async fn before(&self, writes: bool) -> Result<u64, StoreError> {
        self.faulty.before(writes).await
    }

    async fn after(&self, ticket: u64, changed: bool) -> Result<(), StoreError> {
        self.faulty.after(ticket, changed).await
    }

    async fn commits(&self, _: &dyn Store, commits: &[Commit]) -> Result<Vec<Commit>, StoreError> {
        let mut commits = commits.to_vec();
        for commit in &mut commits {
            let forgotten: Vec<TaskId> = commit
                .writes
                .iter()
                .filter(|write| self.forgets(commit, &write.after, write.from))
                .map(|write| write.after.id)
                .collect();
            commit.writes.retain(|write| !forgotten.contains(&write.after.id));
            commit.records.retain(|record| !forgotten.contains(&TaskId(record.subject)));
        }
        Ok(commits)
    }
}

/// Everything there is, at one moment.
#[derive(Default)]
struct Look {
    tasks: BTreeMap<TaskId, (Task, String)>,
    edges: Vec<Edge>,
    executions: BTreeMap<ExecutionId, (ExecutionState, Option<(TaskId, u32)>)>,
}

impl Look {
    async fn at(truth: &dyn Store, clock: &VirtualClock) -> Look {
        let mut look = Look::default();
        let query = ExecutionQuery { limit: 1_000, ..ExecutionQuery::default() };
        for view in truth.executions("default", &query).await.unwrap() {
            look.executions.insert(view.execution.id, (view.execution.state, view.execution.parent));
            for task in truth.graph(view.execution.id, None).await.unwrap().unwrap().tasks {
                look.edges.extend(task.edges.unwrap_or_default().into);
            }
        }
        let now = clock.now();
        let all = Filter::parse("", now).unwrap();
        let query = ListQuery { filter: all, sort: Sort::Submitted, limit: 10_000, after: None, now };
        for it in truth.list("default", &query).await.unwrap().items {
            look.tasks.insert(it.stored.task.id, (it.stored.task, it.key.unwrap_or_default()));
        }
        look
    }

    fn holds(&self) -> Result<(), String> {
        let mut open: BTreeMap<TaskId, u32> = BTreeMap::new();
        for (id, (state, parent)) in &self.executions {
            let Some((task, run)) = parent else { continue };
            let Some((stands, _)) = self.tasks.get(task) else { continue };
            let later = self.executions.values().filter_map(|(_, it)| *it).any(|(it, n)| it == *task && n > *run);
            if *state == ExecutionState::Succeeded && later {
                return Err(format!("execution {id} succeeded, and another one was begun in its place"));
            }
            if state.is_terminal() {
                continue;
            }
            *open.entry(*task).or_default() += 1;
            if matches!(stands.state, State::RetryPending | State::Failed | State::Dead | State::Succeeded) {
                return Err(format!("execution {id} is {state}, and what stands for it is {}", stands.state));
            }
        }
        if let Some((task, count)) = open.iter().find(|(_, count)| **count > 1) {
            let of = self.executions.iter().filter(|(_, (_, parent))| parent.is_some_and(|(it, _)| it == *task));
            let shown: Vec<String> =
                of.map(|(id, (state, parent))| format!("{id} is {state} as run {:?}", parent.map(|it| it.1))).collect();
            let it = &self.tasks[task].0;
            return Err(format!(
                "a task stands for {count} executions at once: it is {} in run {}, {shown:?}",
                it.state, it.run
            ));
        }
        for (id, (task, key)) in self.tasks.iter().filter(|(_, (task, _))| task.lane.executor == Executor::Flow) {
            let rounds = self.edges.iter().filter(|edge| edge.to == *id).map(|edge| &self.tasks[&edge.from]);
            let mut rounds = rounds.filter(|(_, name)| name.starts_with(&format!("{key}[")));
            let is_good = |(round, _): &(Task, String)| round.state == State::Succeeded;
            match task.state {
                State::Failed if task.reason == Some(Reason::Rounds) && rounds.all(is_good) => {
                    return Err(format!("{key} failed, and none of its rounds did"));
                }
                State::Succeeded if !rounds.all(is_good) => {
                    return Err(format!("{key} succeeded, and not all of its rounds did"));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The names of a task and of all that it is below, from the outside in, each with the execution it is in.
    fn path(&self, id: TaskId) -> Vec<(String, Option<ExecutionId>)> {
        let Some((task, key)) = self.tasks.get(&id) else { return Vec::new() };
        let parent = task.execution.and_then(|it| self.executions.get(&it)).and_then(|(_, parent)| *parent);
        let mut path = parent.map(|(above, _)| self.path(above)).unwrap_or_default();
        // A lone one is one of a kind, and what nothing stands for is as well.
        let root = task.execution.map_or(id.to_string(), |it| it.to_string());
        let name = if path.is_empty() && (task.execution.is_none() || parent.is_none()) {
            format!("{root}/{key}")
        } else {
            key.clone()
        };
        path.push((name, task.execution));
        path
    }
}

/// What was done: for each step by its names, where.
#[derive(Default)]
struct Done(BTreeMap<Vec<String>, Vec<Option<ExecutionId>>>);

impl Done {
    fn names(path: Vec<(String, Option<ExecutionId>)>) -> (Vec<String>, Vec<Option<ExecutionId>>) {
        path.into_iter().unzip()
    }

    /// Whether a step may run, by what the executions came to in which it was done before.
    fn may_run(&self, look: &Look, task: TaskId) -> Result<(), String> {
        let (names, now) = Done::names(look.path(task));
        let Some(before) = self.0.get(&names) else { return Ok(()) };
        let Some((was, _)) = before.iter().zip(&now).find(|(was, is)| was != is) else {
            return Err(format!("{names:?} was done, and runs again in the same execution"));
        };
        let state = was.and_then(|id| look.executions.get(&id)).map(|(state, _)| *state);
        match state {
            Some(ExecutionState::Failed | ExecutionState::Canceled) => Ok(()),
            _ => Err(format!("{names:?} was done in an execution that is {state:?}, and runs again in another one")),
        }
    }
}

fn policy(rng: &mut Rng) -> Value {
    json!({"strategy": "fixed", "delay": format!("{}s", 1 + rng.below(90)), "max_retries": rng.below(3)})
}

/// Steps one after the other or side by side; some are loops, some stand for what is below.
fn document(rng: &mut Rng, below: Option<&str>) -> Value {
    let mut steps = Map::new();
    for n in 0..2 + rng.below(2) {
        let mut step = json!({});
        if n > 0 && rng.percent(70) {
            step["needs"] = json!([format!("s{}", n - 1)]);
        }
        if rng.percent(30) {
            step["foreach"] = json!([1, 2]);
            step["sequential"] = rng.percent(40).into();
        }
        if let Some(below) = below.filter(|_| rng.percent(60)) {
            step["call"] = below.into();
        }
        if rng.percent(50) {
            step["retry"] = policy(rng);
        }
        steps.insert(format!("s{n}"), step);
    }
    let mut document = json!({"steps": steps, "fail_fast": rng.percent(10)});
    if rng.percent(40) {
        document["retry"] = policy(rng);
    }
    document
}

fn end(rng: &mut Rng) -> ReportEnd {
    match rng.below(10) {
        0..6 => ReportEnd::Succeeded { result: Some(json!(1).into()) },
        6..9 => ReportEnd::Failed(Failure::new(Trigger::Error, "no")),
        _ => ReportEnd::Failed(Failure { class: Some(Class::Final), ..Failure::new(Trigger::Error, "never") }),
    }
}

/// How much a run was worth.
#[derive(Clone, Copy, Debug, Default)]
struct Worth {
    repairs: u32,
    reached: u32,
    refused: u32,
    from_start: u32,
    deaths: u32,
}

struct World {
    truth: Arc<dyn Store>,
    clock: Arc<VirtualClock>,
    faults: Arc<Faults>,
    broken: Option<Break>,
    engine: Engine,
    done: Done,
    worth: Worth,
}

impl World {
    async fn new(seed: u64, broken: Option<Break>) -> World {
        let truth: Arc<dyn Store> = Arc::new(SqliteStore::open(&SqliteOptions::in_memory()).expect("a store"));
        let clock = VirtualClock::new(START);
        let faults = Arc::new(Faults::new(seed));
        let engine = instance(&truth, &clock, &faults, broken, seed).await;
        World { truth, clock, faults, broken, engine, done: Done::default(), worth: Worth::default() }
    }

    async fn look(&self) -> Result<Look, String> {
        let look = Look::at(&*self.truth, &self.clock).await;
        look.holds()?;
        Ok(look)
    }

    /// What the logs say is what the rows say.
    async fn replayed(&self) -> Result<(), String> {
        for (task, key) in self.look().await?.tasks.values() {
            let records =
                self.truth.history(Subject::Task(task.id), 0, 10_000).await.map_err(|error| error.to_string())?;
            let events: Vec<Event> = records.iter().flat_map(Record::expand).collect();
            let told =
                replay(&events, task.execution.is_none()).map_err(|fault| format!("{key}: {fault}\n{events:#?}"))?;
            let row = Replayed { last_seq: told.last_seq, ..Replayed::of(task) };
            if told != row || task.broken_invariant().is_some() {
                let broken = task.broken_invariant();
                return Err(format!("{key}: the log says {told:?}, the row says {row:?}, {broken:?}\n{events:#?}"));
            }
        }
        Ok(())
    }

    async fn die(&mut self, seed: u64) {
        self.engine = instance(&self.truth, &self.clock, &self.faults, self.broken, seed).await;
        self.worth.deaths += 1;
    }

    async fn run(&mut self, leased: &Leased, end: ReportEnd) -> Result<(), String> {
        let look = self.look().await?;
        let task = leased.lease.task;
        self.done.may_run(&look, task)?;
        let (names, place) = Done::names(look.path(task));
        let lease = leased.lease;
        // What is lost, or was canceled meanwhile, comes back or not: the store knows what it came to.
        let _ = self.engine.report(vec![Report { lease, end }]).await;
        let after = self.look().await?;
        if after.tasks[&task].0.state == State::Succeeded {
            self.done.0.insert(names, place);
        }
        Ok(())
    }

    /// Somebody lends a hand, or gets in the way.
    async fn act(&mut self, rng: &mut Rng) -> Result<(), String> {
        let look = self.look().await?;
        let by = Actor { by: Some("ana".into()), ..Actor::default() };
        let failed = |state: State| matches!(state, State::Failed | State::Dead);
        // Whoever retries what stands for an execution has it begun anew; that is asked for with `from: start` here.
        let bad: Vec<TaskId> = look
            .tasks
            .values()
            .filter(|(task, _)| failed(task.state))
            .filter(|(task, _)| task.lane.executor != Executor::Flow || task.reason == Some(Reason::Rounds))
            .map(|(task, _)| task.id)
            .collect();
        let over: Vec<ExecutionId> = look
            .executions
            .iter()
            .filter(|(_, (state, _))| *state == ExecutionState::Failed)
            .map(|(id, _)| *id)
            .collect();
        let any: Vec<ExecutionId> = look.executions.keys().copied().collect();
        let tasks: Vec<TaskId> = look.tasks.keys().copied().collect();
        let engine = &self.engine;
        let answer = match rng.below(20) {
            0..6 => match rng.pick(&bad) {
                Some(id) => {
                    self.worth.repairs += 1;
                    engine
                        .retry("default", *id, ManualRetry { request: by.into(), ..ManualRetry::default() })
                        .await
                        .map(drop)
                }
                None => Ok(()),
            },
            6..12 => match rng.pick(&over) {
                Some(id) => {
                    self.worth.repairs += 1;
                    engine.retry_execution("default", *id, by).await.map(drop)
                }
                None => Ok(()),
            },
            12 => match rng.pick(&over) {
                Some(id) => {
                    self.worth.from_start += 1;
                    engine.restart_execution("default", *id, by).await.map(drop)
                }
                None => Ok(()),
            },
            13 => engine.pause("default", *rng.pick(&tasks).unwrap(), by).await.map(drop),
            14..16 => engine.resume("default", *rng.pick(&tasks).unwrap(), by).await.map(drop),
            16 => engine.pause_execution("default", *rng.pick(&any).unwrap(), by).await.map(drop),
            17..19 => engine.resume_execution("default", *rng.pick(&any).unwrap(), by).await.map(drop),
            _ if rng.percent(30) => engine.cancel_execution("default", *rng.pick(&any).unwrap(), by).await.map(drop),
            _ => Ok(()),
        };
        match answer {
            Err(CommandError::Invalid(fault)) => return Err(format!("a good command was refused: {fault}")),
            Err(CommandError::Store(StoreError::Corrupt(what))) => return Err(what),
            Err(_) => self.worth.refused += 1,
            Ok(()) => {}
        }
        let after = self.look().await?;
        let reached = |(id, (task, _)): (&TaskId, &(Task, String))| {
            task.lane.executor == Executor::Flow && task.run > look.tasks.get(id).map_or(0, |(task, _)| task.run)
        };
        self.worth.reached += u32::from(after.tasks.iter().any(reached));
        Ok(())
    }

    /// A step of the world: the loops turn, somebody works, or time passes. Says whether there is anything left to do.
    async fn go_on(&mut self, mut how: impl FnMut() -> ReportEnd) -> Result<bool, String> {
        let _ = self.engine.tick().await;
        self.look().await?;
        let request = LeaseRequest { limit: 1, ..LeaseRequest::new("default", "w") };
        match self.engine.lease(request).await {
            Ok(leased) => match leased.first() {
                Some(leased) => {
                    self.run(leased, how()).await?;
                    return Ok(true);
                }
                None => match self.engine.next_instant().await {
                    Ok(Some(next)) => self.clock.set(next.max(self.clock.now())),
                    Ok(None) => return Ok(false),
                    Err(_) => {}
                },
            },
            Err(_) => self.clock.advance(Millis::from_secs(1)),
        }
        Ok(true)
    }
}

async fn instance(
    truth: &Arc<dyn Store>,
    clock: &Arc<VirtualClock>,
    faults: &Arc<Faults>,
    broken: Option<Break>,
    seed: u64,
) -> Engine {
    let faulty = Faulty { faults: faults.clone(), mutant: None };
    let store: Arc<dyn Store> =
        Arc::new(Between { truth: truth.clone(), hand: Arc::new(Forgetful { faulty, broken }) });
    let config = EngineConfig { id_seed: Some(seed), report_lanes: 1, ..EngineConfig::default() };
    loop {
        if let Ok(engine) = Engine::without_loops(store.clone(), clock.clone(), config.clone()).await {
            engine.read_workflows_with(Arc::new(Plain));
            return engine;
        }
    }
}

fn run(seed: u64, broken: Option<Break>) -> Result<Worth, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        let mut rng = Rng::new(seed);
        let mut world = World::new(seed, broken).await;
        let plain = instance(&world.truth, &world.clock, &healthy(), None, seed ^ 1).await;
        plain::put(&plain, "inner", document(&mut rng, None)).await;
        plain::put(&plain, "middle", document(&mut rng, Some("inner"))).await;
        plain::put(&plain, "outer", document(&mut rng, Some("middle"))).await;
        plain::start(&plain, "outer", json!({})).await.map_err(|error| error.to_string())?;
        for n in 0..120 {
            if rng.percent(30) {
                world.act(&mut rng).await?;
            }
            if rng.percent(4) {
                world.die(seed.wrapping_mul(1_000) + n + 2).await;
            }
            world.go_on(|| end(&mut rng)).await?;
        }
        world.faults.heal();
        let look = world.look().await?;
        for (id, _) in look.executions.iter().filter(|(_, (state, _))| *state == ExecutionState::Paused) {
            world.engine.resume_execution("default", *id, Actor::default()).await.map_err(|error| error.to_string())?;
        }
        for (task, _) in look.tasks.values().filter(|(task, _)| task.state == State::Paused) {
            world.engine.resume("default", task.id, Actor::default()).await.map_err(|error| error.to_string())?;
        }
        for _ in 0..400 {
            if !world.go_on(|| ReportEnd::Succeeded { result: None }).await? {
                break;
            }
        }
        world.replayed().await?;
        let look = world.look().await?;
        let open: Vec<String> = look
            .tasks
            .values()
            .filter(|(task, _)| task.state.is_open())
            .map(|(task, key)| format!("{key} ({}) is {}", task.lane.kind, task.state))
            .collect();
        if open.is_empty() { Ok(world.worth) } else { Err(format!("{open:?} never came to an end")) }
    })
}

fn healthy() -> Arc<Faults> {
    let faults = Faults::new(0);
    faults.heal();
    Arc::new(faults)
}

#[test]
fn nothing_is_done_twice_after_a_repair() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds = match number("COMEBACK_REPAIR_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("COMEBACK_REPAIR_SEEDS").unwrap_or(60),
    };
    let mut total = Worth::default();
    for seed in seeds.clone() {
        let worth = run(seed, None)
            .unwrap_or_else(|fault| panic!("seed {seed}: {fault}\nrun it again with COMEBACK_REPAIR_SEED={seed}"));
        total.repairs += worth.repairs;
        total.reached += worth.reached;
        total.refused += worth.refused;
        total.from_start += worth.from_start;
        total.deaths += worth.deaths;
    }
    println!("{total:?}");
    if seeds.end - seeds.start >= 60 {
        assert!(total.repairs > 100 && total.reached > 40 && total.from_start > 8 && total.deaths > 60, "{total:?}");
    }
}

#[test]
fn a_repair_that_does_not_reach_far_enough_is_found() {
    for broken in BREAKS {
        let found = (0..100).find_map(|seed| run(seed, Some(broken)).err().map(|fault| (seed, fault)));
        let Some((seed, fault)) = found else { panic!("{broken:?} was not found in 100 seeds") };
        println!("{broken:?}: seed {seed}: {fault}");
    }
}
