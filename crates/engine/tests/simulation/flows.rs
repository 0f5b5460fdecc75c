//! Nothing advances on a retry (model I-3, S1-46): workflows by chance, worked off by chance, and looked at after every step.
//!
//! Two looks: what a step that goes to `retry_pending` left behind is held against what was there before, and after every act the whole
//! is held against its edges, so that a retry that comes about in some other way is seen too.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use async_trait::async_trait;
use comeback_core::filter::{Filter, Sort};
use comeback_core::graph::Write;
use comeback_core::{
    Class, Commit, Edge, ExecutionId, ExecutionState, Failure, Millis, Reason, State, Task, TaskId, Trigger,
};
use comeback_engine::store::{
    ExecutionQuery, ListQuery, Loop, SqliteOptions, SqliteStore, Store, StoreError, Submission,
};
use comeback_engine::{Clock, Engine, EngineConfig, LeaseRequest, Leased, Report, ReportEnd, VirtualClock};
use serde_json::{Map, Value, json};

use crate::START;
use crate::between::{Between, Hand};
use crate::plain::{self, Plain};
use crate::rng::Rng;

/// Deliberate breaks of the one promise, each in another way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Break {
    /// A task that waits for its retry counts as over for a child.
    StartsAChild,
    /// A child is given up because its parent failed once.
    SkipsAChild,
    /// The hooks of the end are called for a retry.
    CallsTheEnd,
    /// The execution fails with the first failure.
    FailsTheWhole,
}

const BREAKS: [Break; 4] = [Break::StartsAChild, Break::SkipsAChild, Break::CallsTheEnd, Break::FailsTheWhole];

struct Breaking(Option<Break>);

impl Breaking {
    async fn neighbour(&self, truth: &dyn Store, parent: &Task) -> Result<Option<Task>, StoreError> {
        let Some(execution) = parent.execution else { return Ok(None) };
        let Some(graph) = truth.graph(execution, None).await? else { return Ok(None) };
        let edges = graph.tasks.iter().filter_map(|it| it.edges.as_ref()).flat_map(|it| &it.out);
        let children: BTreeSet<TaskId> = edges.filter(|edge| edge.from == parent.id).map(|edge| edge.to).collect();
        let waits = |task: &Task| children.contains(&task.id) && task.state == State::Waiting;
        Ok(graph.tasks.into_iter().map(|it| it.stored.task).find(waits))
    }
}

#[async_trait]
impl Hand for Breaking {
    async fn before(&self, _: bool) -> Result<u64, StoreError> {
        Ok(0)
    }

    async fn after(&self, _: u64, _: bool) -> Result<(), StoreError> {
        Ok(())
    }

    async fn commits(&self, truth: &dyn Store, commits: &[Commit]) -> Result<Vec<Commit>, StoreError> {
        let mut commits = commits.to_vec();
        for commit in &mut commits {
            let retried = commit.writes.iter().find(|it| it.after.state == State::RetryPending && it.from.is_active());
            let Some(parent) = retried.map(|it| it.after.clone()) else { continue };
            match self.0 {
                Some(Break::StartsAChild | Break::SkipsAChild) => {
                    let Some(mut child) = self.neighbour(truth, &parent).await? else { continue };
                    let (expected_version, from) = (child.version, child.state);
                    child.version += 1;
                    if self.0 == Some(Break::StartsAChild) {
                        (child.state, child.needs_left, child.gated) = (State::Pending, 0, false);
                    } else {
                        (child.state, child.ended_at) = (State::Skipped, Some(parent.updated_at));
                        child.reason = Some(Reason::UpstreamFailed);
                    }
                    commit.writes.push(Write { expected_version, from, after: child });
                }
                Some(Break::FailsTheWhole) => {
                    let Some(write) = commit.executions.first_mut() else { continue };
                    (write.after.state, write.after.ended_at) = (ExecutionState::Failed, Some(parent.updated_at));
                }
                _ => {}
            }
        }
        Ok(commits)
    }

    fn spawned(&self, _: &Commit, spawn: &mut Submission) {
        if self.0 == Some(Break::CallsTheEnd) {
            for new in spawn.tasks.iter_mut().filter(|new| new.task.lane.kind == "hook.retry") {
                let mut lane = (*new.task.lane).clone();
                lane.kind = "hook.end".into();
                new.task.lane = Arc::new(lane);
            }
        }
    }
}

/// What a task shows to its neighbours.
#[derive(Clone, Debug, PartialEq)]
struct Shown {
    state: State,
    version: u32,
    needs_left: u32,
    children_left: u32,
}

/// Everything there is, at one moment.
#[derive(Default)]
struct Look {
    tasks: BTreeMap<TaskId, Task>,
    edges: Vec<Edge>,
    executions: BTreeMap<ExecutionId, (ExecutionState, u32, u32)>,
    /// Calls to whom it may concern: of which task, and of which sort.
    calls: BTreeMap<(TaskId, String), u32>,
}

impl Look {
    async fn at(truth: &dyn Store, clock: &VirtualClock) -> Look {
        let mut look = Look::default();
        let query = ExecutionQuery { limit: 1_000, ..ExecutionQuery::default() };
        for view in truth.executions("default", &query).await.unwrap() {
            let it = view.execution;
            look.executions.insert(it.id, (it.state, it.open, it.unhandled));
            for task in truth.graph(it.id, None).await.unwrap().unwrap().tasks {
                look.edges.extend(task.edges.unwrap_or_default().into);
                look.tasks.insert(task.stored.task.id, task.stored.task);
            }
        }
        let now = clock.now();
        let lone = Filter::parse("", now).unwrap();
        let query = ListQuery { filter: lone, sort: Sort::Submitted, limit: 10_000, after: None, now };
        for it in truth.list("default", &query).await.unwrap().items {
            if let Some(of) = it.labels.get("hook_of") {
                let kind = it.stored.task.lane.kind.clone();
                *look.calls.entry((of.parse().unwrap(), kind)).or_default() += 1;
            } else {
                look.tasks.insert(it.stored.task.id, it.stored.task);
            }
        }
        look
    }

    fn shown(&self) -> BTreeMap<TaskId, Shown> {
        let show = |task: &Task| Shown {
            state: task.state,
            version: task.version,
            needs_left: task.needs_left,
            children_left: task.children_left,
        };
        self.tasks.iter().map(|(id, task)| (*id, show(task))).collect()
    }

    /// What is true of every graph in which nothing was retried by hand.
    fn holds(&self) -> Result<(), String> {
        for edge in &self.edges {
            let (Some(parent), Some(child)) = (self.tasks.get(&edge.from), self.tasks.get(&edge.to)) else { continue };
            let begun = child.run > 0 || matches!(child.state, State::Pending | State::Claimed | State::Running);
            if begun && !(parent.state.is_terminal() && edge.is_met_by(parent.state)) {
                return Err(format!("{} has begun although {} is {}", child.lane.kind, parent.lane.kind, parent.state));
            }
        }
        for task in self.tasks.values().filter(|task| task.reason == Some(Reason::UpstreamFailed)) {
            let mut into = self.edges.iter().filter(|edge| edge.to == task.id);
            let for_cause = into.any(|edge| {
                let parent = &self.tasks[&edge.from];
                parent.state.is_terminal() && !edge.is_met_by(parent.state)
            });
            if !for_cause {
                return Err(format!("{} is {} and no parent is over that says so", task.lane.kind, task.state));
            }
        }
        for (id, (state, open, _)) in &self.executions {
            let left = self.tasks.values().filter(|task| task.execution == Some(*id) && task.state.is_open()).count();
            if *open as usize != left || (state.is_terminal() && left > 0) {
                return Err(format!("an execution is {state} with {open} open tasks, and {left} are"));
            }
        }
        for ((id, kind), count) in &self.calls {
            let task = &self.tasks[id];
            if kind == "hook.end" && (task.state.is_open() || *count > 1) {
                return Err(format!("{} is {}, and its end was told {count} times", task.lane.kind, task.state));
            }
        }
        Ok(())
    }
}

/// What changed between two looks when one task went to `retry_pending` and nothing else was done.
fn only_this_moved(before: &Look, after: &Look, retried: TaskId) -> Result<(), String> {
    let (was, is) = (before.shown(), after.shown());
    let kind = &after.tasks[&retried].lane.kind;
    for (id, now) in &is {
        if *id != retried && was.get(id) != Some(now) {
            let other = &after.tasks[id].lane.kind;
            return Err(format!("{kind} waits for its retry, and {other} went from {:?} to {now:?}", was.get(id)));
        }
    }
    if before.executions != after.executions {
        let (was, is) = (&before.executions, &after.executions);
        return Err(format!("{kind} waits for its retry, and executions went from {was:?} to {is:?}"));
    }
    let told: Vec<_> = after.calls.iter().filter(|(key, count)| before.calls.get(key) != Some(count)).collect();
    match told.as_slice() {
        [] => Ok(()),
        [((of, sort), _)] if *of == retried && sort == "hook.retry" => Ok(()),
        other => Err(format!("{kind} waits for its retry, and was told: {other:?}")),
    }
}

fn policy(rng: &mut Rng) -> Value {
    json!({"strategy": "fixed", "delay": format!("{}s", 1 + rng.below(20)), "max_retries": rng.below(3)})
}

/// Steps with needs on earlier ones under every condition, and every other thing a step can be.
fn document(rng: &mut Rng, inner: bool) -> Value {
    let count = 2 + rng.below(if inner { 2 } else { 6 });
    let mut steps = Map::new();
    for n in 0..count {
        let mut step = json!({"retry": policy(rng)});
        let mut needs = Vec::new();
        for earlier in 0..n {
            if rng.percent(if earlier + 1 == n { 60 } else { 25 }) {
                let when = *rng.pick(&["success", "success", "failure", "always"]).unwrap();
                let on_unmet = *rng.pick(&["skip", "fail"]).unwrap();
                needs.push(json!({"step": format!("s{earlier}"), "when": when, "on_unmet": on_unmet}));
            }
        }
        step["needs"] = needs.into();
        if rng.percent(20) {
            step["if"] = (*rng.pick(&["input.yes", "input.no", "steps.s0.result.n > 1"]).unwrap()).into();
        }
        if rng.percent(25) {
            step["foreach"] = json!((0..rng.below(4)).collect::<Vec<_>>());
            step["sequential"] = rng.percent(30).into();
            if rng.percent(30) {
                step["limit"] = 2.into();
            }
        }
        if !inner && rng.percent(20) {
            step["call"] = "inner".into();
        }
        if rng.percent(50) {
            let call = json!([{"url": "http://example.test/"}]);
            step["hooks"] = json!({"success": call, "failure": call, "retry": call});
        }
        steps.insert(format!("s{n}"), step);
    }
    let mut document = json!({
        "input": {"yes": true, "no": false}, "steps": steps,
        "fail_fast": rng.percent(15), "dead_end_cancel": rng.percent(20),
    });
    if !inner && rng.percent(25) {
        document["retry"] = policy(rng);
    }
    document
}

fn end(rng: &mut Rng) -> ReportEnd {
    match rng.below(10) {
        0..5 => ReportEnd::Succeeded { result: Some(json!({"n": rng.below(4)}).into()) },
        5..9 => ReportEnd::Failed(Failure::new(Trigger::Error, "no")),
        _ => ReportEnd::Failed(Failure { class: Some(Class::Final), ..Failure::new(Trigger::Error, "never") }),
    }
}

/// How much a run was worth.
#[derive(Clone, Copy, Debug, Default)]
struct Worth {
    retries: u32,
    with_neighbours: u32,
    lost: u32,
    told: u32,
}

struct World {
    truth: Arc<dyn Store>,
    clock: Arc<VirtualClock>,
    engine: Engine,
    worth: Worth,
}

impl World {
    async fn new(seed: u64, broken: Option<Break>) -> World {
        let truth: Arc<dyn Store> = Arc::new(SqliteStore::open(&SqliteOptions::in_memory()).expect("a store"));
        let clock = VirtualClock::new(START);
        let store = Arc::new(Between { truth: truth.clone(), hand: Arc::new(Breaking(broken)) });
        let config = EngineConfig { id_seed: Some(seed), report_lanes: 1, ..EngineConfig::default() };
        let engine = Engine::without_loops(store, clock.clone(), config).await.expect("an engine");
        engine.read_workflows_with(Arc::new(Plain));
        World { truth, clock, engine, worth: Worth::default() }
    }

    async fn look(&self) -> Look {
        Look::at(&*self.truth, &self.clock).await
    }

    /// Looks, lets one task be decided, and looks again.
    async fn decided(&mut self, task: TaskId, act: impl AsyncFnOnce(&Engine)) -> Result<(), String> {
        let before = self.look().await;
        act(&self.engine).await;
        let after = self.look().await;
        after.holds()?;
        let entered = after.tasks[&task].state == State::RetryPending;
        if entered && before.tasks[&task].state != State::RetryPending {
            only_this_moved(&before, &after, task)?;
            self.worth.retries += 1;
            let has_neighbours = after.edges.iter().any(|edge| edge.from == task || edge.to == task);
            self.worth.with_neighbours += u32::from(has_neighbours);
            self.worth.told += u32::from(before.calls != after.calls);
        }
        Ok(())
    }

    async fn report(&mut self, leased: &Leased, end: ReportEnd) -> Result<(), String> {
        let lease = leased.lease;
        self.decided(lease.task, async |engine: &Engine| {
            // What was canceled meanwhile has nothing more to say.
            let _ = engine.report(vec![Report { lease, end }]).await.expect("the store is well");
        })
        .await
    }

    /// Nobody says a word about it until its lease is over.
    async fn lose(&mut self, leased: &Leased) -> Result<(), String> {
        self.clock.advance(Millis::from_secs(60));
        self.worth.lost += 1;
        self.decided(leased.lease.task, async |engine: &Engine| {
            engine.tick_loop(Loop::Reap).await.expect("the store is well");
        })
        .await
    }

    async fn tick(&self) -> Result<(), String> {
        self.engine.tick().await.map_err(|error| error.to_string())?;
        self.look().await.holds()
    }
}

fn run(seed: u64, broken: Option<Break>) -> Result<Worth, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        let mut rng = Rng::new(seed);
        let mut world = World::new(seed, broken).await;
        plain::put(&world.engine, "inner", document(&mut rng, true)).await;
        plain::put(&world.engine, "outer", document(&mut rng, false)).await;
        plain::start(&world.engine, "outer", json!({})).await.map_err(|error| error.to_string())?;
        for _ in 0..400 {
            world.tick().await?;
            let request = LeaseRequest { limit: 1, ..LeaseRequest::new("default", "w") };
            match world.engine.lease(request).await.map_err(|error| error.to_string())?.pop() {
                Some(leased) if rng.percent(10) => world.lose(&leased).await?,
                Some(leased) => world.report(&leased, end(&mut rng)).await?,
                None => match world.engine.next_instant().await.map_err(|error| error.to_string())? {
                    Some(next) => world.clock.set(next),
                    None => break,
                },
            }
        }
        let open: Vec<String> =
            world.look().await.tasks.values().filter(|it| it.state.is_open()).map(|it| it.lane.kind.clone()).collect();
        if open.is_empty() { Ok(world.worth) } else { Err(format!("{open:?} never came to an end")) }
    })
}

#[test]
fn nothing_advances_on_a_retry() {
    let seeds = std::env::var("COMEBACK_FLOW_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(300);
    let mut total = Worth::default();
    for seed in 0..seeds {
        let worth = run(seed, None).unwrap_or_else(|fault| panic!("seed {seed}: {fault}"));
        total.retries += worth.retries;
        total.with_neighbours += worth.with_neighbours;
        total.lost += worth.lost;
        total.told += worth.told;
    }
    println!("{total:?}");
    assert!(
        total.retries as u64 > seeds && total.with_neighbours > 100 && total.lost > 50 && total.told > 50,
        "{total:?}"
    );
}

#[test]
fn an_advance_on_a_retry_is_found() {
    for broken in BREAKS {
        let found = (0..100).find_map(|seed| run(seed, Some(broken)).err().map(|fault| (seed, fault)));
        let Some((seed, fault)) = found else { panic!("{broken:?} was not found in 100 seeds") };
        println!("{broken:?}: seed {seed}: {fault}");
    }
}
