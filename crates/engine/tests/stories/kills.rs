//! The engine dies before and after every commit of a flow, and another one goes on: nothing is lost, and nothing is done twice.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use async_trait::async_trait;
use comeback_core::filter::{Filter, Sort};
use comeback_core::{ExecutionId, TaskId};
use comeback_engine::flow::Start;
use comeback_engine::store::{
    ExecutionQuery, ExecutionView, Idempotency, ListQuery, Listed, Origin, Store, StoreError,
};
use comeback_engine::{Clock, CommandError, Engine, EngineConfig, LeaseRequest, Leased, Report, ReportEnd};
use parking_lot::Mutex;
use serde_json::json;

use crate::between::{Between, Hand};
use crate::plain::{Plain, put_in};
use crate::stories;
use crate::world::{Backend, Place, failed};

/// When an engine dies: before its n-th write reaches the store, or after it was done and before anybody hears of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    Before(usize),
    After(usize),
}

/// The thread from which an engine's life hangs. Once it is cut nothing reaches the store any more.
#[derive(Default)]
pub struct Life {
    pub ends: Option<Death>,
    pub over: AtomicBool,
    pub writes: AtomicUsize,
    /// The writes that changed something: the commits.
    pub commits: Mutex<Vec<usize>>,
}

const NO_WRITE: u64 = u64::MAX;

impl Life {
    pub fn ending(death: Death) -> Life {
        Life { ends: Some(death), ..Life::default() }
    }

    fn end(&self) -> StoreError {
        self.over.store(true, Ordering::SeqCst);
        StoreError::Unavailable("killed".into())
    }

    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }
}

#[async_trait]
impl Hand for Life {
    async fn before(&self, writes: bool) -> Result<u64, StoreError> {
        if self.is_over() {
            return Err(self.end());
        }
        if !writes {
            return Ok(NO_WRITE);
        }
        let number = self.writes.fetch_add(1, Ordering::SeqCst);
        if self.ends == Some(Death::Before(number)) { Err(self.end()) } else { Ok(number as u64) }
    }

    async fn after(&self, ticket: u64, changed: bool) -> Result<(), StoreError> {
        let number = ticket as usize;
        if self.is_over() || (ticket != NO_WRITE && self.ends == Some(Death::After(number))) {
            return Err(self.end());
        }
        if changed {
            self.commits.lock().push(number);
        }
        Ok(())
    }
}

/// One run of the flow in a namespace of its own: engines come and go, the worker and the client stay.
struct Run {
    place: Place,
    truth: Arc<dyn Store>,
    namespace: String,
    life: Arc<Life>,
    engine: Engine,
    deaths: usize,
    /// What the worker did: which step, in which attempt.
    effects: Vec<(TaskId, String, u32)>,
}

pub async fn live(place: &Place, truth: &Arc<dyn Store>, life: &Arc<Life>) -> Engine {
    let store = Arc::new(Between { truth: truth.clone(), hand: life.clone() });
    let config = EngineConfig { instance: "mortal".into(), ..EngineConfig::default() };
    let engine = Engine::without_loops(store, place.clock.clone(), config).await.expect("an engine");
    engine.read_workflows_with(Arc::new(Plain));
    engine
}

impl Run {
    async fn begin(place: &Place, truth: &Arc<dyn Store>, namespace: String, ends: Option<Death>) -> Run {
        let unharmed = Arc::new(Life::default());
        let engine = live(place, truth, &unharmed).await;
        put_in(&engine, &namespace, "inner", inner()).await;
        put_in(&engine, &namespace, "outer", outer()).await;
        let life = Arc::new(Life { ends, ..Life::default() });
        let engine = live(place, truth, &life).await;
        Run { place: place.clone(), truth: truth.clone(), namespace, life, engine, deaths: 0, effects: Vec::new() }
    }

    /// What an engine said, or another engine if it has died over it.
    async fn or_die<T>(&mut self, said: Result<T, CommandError>) -> Option<T> {
        match said {
            Ok(it) => Some(it),
            Err(_) if self.life.is_over() => {
                self.deaths += 1;
                self.life = Arc::default();
                self.engine = live(&self.place, &self.truth, &self.life).await;
                None
            }
            Err(error) => panic!("nobody died, and yet: {error}"),
        }
    }

    /// Starts it under a key, again and again until that is heard, and works it off. The answer is the task that stands for it.
    async fn work_off(&mut self) -> TaskId {
        let key = Idempotency { scope: "executions".into(), key: "once".into(), digest: [7; 32] };
        let start = Start {
            namespace: self.namespace.clone(),
            workflow: "outer".into(),
            idempotency: Some(key),
            ..Start::default()
        };
        let started = loop {
            let said = self.engine.start_workflow(start.clone()).await;
            if let Some(started) = self.or_die(said).await {
                break started;
            }
        };
        loop {
            let said = self.engine.tick().await.map_err(CommandError::from);
            if self.or_die(said).await.is_none() {
                continue;
            }
            let request = LeaseRequest { limit: 10, ..LeaseRequest::new(self.namespace.clone(), "worker") };
            let said = self.engine.lease(request).await;
            let Some(leased) = self.or_die(said).await else { continue };
            for it in &leased {
                self.work(it).await;
            }
            if !leased.is_empty() {
                continue;
            }
            let said = self.engine.next_instant().await.map_err(CommandError::from);
            match self.or_die(said).await {
                Some(Some(next)) => self.place.clock.set(next),
                // Nothing is due, and nothing stands at a gate.
                Some(None) if self.engine.tick().await.is_ok_and(|moved| moved == 0) => break,
                _ => {}
            }
        }
        started.task.expect("a task stands for it")
    }

    /// The worker does what it was given once, and says so until it is heard.
    async fn work(&mut self, leased: &Leased) {
        let key = leased.key.clone().unwrap_or_default();
        self.effects.push((leased.lease.task, key.clone(), leased.attempt));
        let end = end_of(&key, leased.attempt, self.effects.iter().filter(|(_, other, _)| *other == key).count());
        loop {
            let report = Report { lease: leased.lease, end: end.clone() };
            let said = self.engine.report(vec![report]).await;
            if let Some(mut answers) = self.or_die(said).await {
                answers.remove(0).expect("the lease is the worker's");
                return;
            }
        }
    }
}

/// A gate that opens and one that does not, a loop with a limit one of whose rounds fails once, an execution inside that fails once, a
/// handler that is not needed, hooks, and a whole that fails the first time.
fn outer() -> serde_json::Value {
    let call = |path: &str| json!([{"url": format!("http://example.test/{path}")}]);
    let hooks = json!({"success": call("success"), "failure": call("failure"), "retry": call("retry")});
    let again = json!({"strategy": "fixed", "delay": "1s", "max_retries": 1});
    let once = once();
    json!({
        "retry": {"strategy": "fixed", "delay": "10s", "max_retries": 1},
        "steps": {
            "list": {"retry": once},
            "gate": {"needs": ["list"], "if": "steps.list.result | length > 1", "retry": once, "hooks": hooks},
            "never": {"needs": ["list"], "if": "steps.list.result | length > 9"},
            "each": {"needs": ["gate"], "foreach": "steps.list.result", "limit": 2, "payload": "{{ item }}", "retry": again},
            "call": {"needs": ["gate"], "call": "inner", "with": {"n": "{{ steps.list.result[2] }}"}, "retry": again, "hooks": hooks},
            "sorry": {"needs": [{"step": "each", "when": "failure"}]},
            "end": {"needs": ["each", "call"], "retry": again, "hooks": hooks},
        },
    })
}

/// No retry of a failure; a lease of which nobody heard costs nothing, which it would without a policy.
fn once() -> serde_json::Value {
    json!({"strategy": "fixed", "delay": "1s", "max_retries": 0})
}

fn inner() -> serde_json::Value {
    json!({"output": "{{ steps.double.result }}", "steps": {
        "double": {"payload": "{{ input.n * 2 }}", "retry": once()},
        "after": {"needs": ["double"], "retry": once()},
    }})
}

/// How a step ends; `time` counts all that the worker ever did under this name.
fn end_of(key: &str, attempt: u32, time: usize) -> ReportEnd {
    let fails = match key {
        "each[1]" => attempt == 0,
        "double" => time == 1,
        // Both attempts in the first execution, and the first in the second.
        "end" => time <= 3,
        _ => false,
    };
    let result = if key == "list" { json!([1, 2, 3]) } else { json!({"of": key}) };
    if fails { failed("not this time") } else { ReportEnd::Succeeded { result: Some(result.into()) } }
}

type Tasks<'a> = BTreeMap<TaskId, &'a Listed>;
type Origins<'a> = BTreeMap<ExecutionId, &'a Origin>;

/// An execution is called by its workflow and the run that it is, behind the name of the task that stands for it.
fn path_of(id: ExecutionId, tasks: &Tasks<'_>, origins: &Origins<'_>) -> String {
    let (parent, run) = origins[&id].parent.expect("each has a task that stands for it");
    let workflow = &origins[&id].workflow.as_ref().expect("a workflow").0;
    let above = tasks[&parent].stored.task.execution.map(|_| format!("{}/", name_of(parent, tasks, origins)));
    format!("{}{workflow}#{run}", above.unwrap_or_default())
}

fn name_of(id: TaskId, tasks: &Tasks<'_>, origins: &Origins<'_>) -> String {
    let key = tasks[&id].key.clone().unwrap_or_else(|| "whole".into());
    let inside = tasks[&id].stored.task.execution.map(|execution| path_of(execution, tasks, origins));
    inside.map_or(key.clone(), |path| format!("{path}/{key}"))
}

/// Everything that came of it, in words that do not depend on ids, times or how often somebody died.
async fn outcome(run: &Run, root: TaskId) -> Vec<String> {
    let store = &run.truth;
    let query = ExecutionQuery { limit: 100, ..ExecutionQuery::default() };
    let executions: Vec<ExecutionView> = store.executions(&run.namespace, &query).await.unwrap();
    let filter = Filter::parse("", run.place.clock.now()).unwrap();
    let query = ListQuery { filter, sort: Sort::Submitted, limit: 500, after: None, now: run.place.clock.now() };
    let tasks = store.list(&run.namespace, &query).await.unwrap().items;
    let by_id: Tasks<'_> = tasks.iter().map(|it| (it.stored.task.id, it)).collect();
    let origins: Origins<'_> = executions.iter().map(|it| (it.execution.id, &it.origin)).collect();
    let runs: BTreeSet<(TaskId, u32)> = executions.iter().filter_map(|it| it.origin.parent).collect();
    assert_eq!(runs.len(), executions.len(), "one execution for each run of the task that stands for it");
    let name_of = |id: TaskId| name_of(id, &by_id, &origins);
    let mut told = Vec::new();
    for it in &executions {
        let counts = (it.execution.total, it.execution.open, it.execution.unhandled);
        told.push(format!("{} is {} {counts:?}", path_of(it.execution.id, &by_id, &origins), it.execution.state));
    }
    let mut calls = BTreeSet::new();
    for it in &tasks {
        let task = &it.stored.task;
        let name = it.name.as_deref().unwrap_or_default();
        if let Some(of) = it.labels.get("hook_of") {
            assert!(calls.insert(name.to_owned()), "{name} was made twice");
            // `<task>:<trigger>:<condition>:<attempt>`, and the run where that says more. A lease that was lost is told as a retry too,
            // of the same attempt, and is no part of the outcome.
            let words: Vec<&str> = name.split(':').skip(1).take(3).collect();
            let call = format!("{} is told {} in state {}", name_of(of.parse().unwrap()), words.join(":"), task.state);
            let for_a_loss = words[0] == "retry" && (words[2] == "0" || told.contains(&call));
            if !for_a_loss {
                told.push(call);
            }
        } else {
            told.push(format!("{} is {} in attempt {}", name_of(task.id), task.state, task.counters.attempt));
        }
    }
    for (id, _, attempt) in &run.effects {
        told.push(format!("{} was done in attempt {attempt}", name_of(*id)));
    }
    assert_eq!(name_of(root), "whole");
    told.sort();
    told
}

stories! {
    /// I-14, S0-1: kill -9 at every commit boundary of a flow. On PostgreSQL that takes minutes, so that only some are tried unless
    /// `COMEBACK_EVERY_COMMIT` is set.
    fn whoever_dies_at_whichever_commit_of_a_flow_another_goes_on(place) {
        let truth = place.store().await;
        let mut unharmed = Run::begin(&place, &truth, "unharmed".into(), None).await;
        let root = unharmed.work_off().await;
        let expected = outcome(&unharmed, root).await;
        let is = |sentence: &str| assert!(expected.iter().any(|it| it == sentence), "{sentence}: {expected:#?}");
        is("whole is succeeded in attempt 1");
        is("outer#1/end is dead in attempt 1");
        is("outer#2/end is succeeded in attempt 1");
        is("outer#1/call/inner#2 is succeeded (2, 0, 0)");
        is("outer#1/each[1] was done in attempt 1");
        is("outer#1/gate is told end:success:0 in state pending");
        is("outer#2/never is skipped in attempt 0");
        let commits = unharmed.life.commits.lock().clone();
        assert!(commits.len() > 60, "{}", commits.len());
        let all = std::env::var_os("COMEBACK_EVERY_COMMIT").is_some() || place.backend == Backend::Sqlite;
        for number in commits.into_iter().step_by(if all { 1 } else { 6 }) {
            for death in [Death::Before(number), Death::After(number)] {
                let namespace = format!("{death:?}").to_lowercase().replace(['(', ')'], "-");
                let mut run = Run::begin(&place, &truth, namespace, Some(death)).await;
                let root = run.work_off().await;
                assert_eq!(run.deaths, 1, "{death:?}");
                let told = outcome(&run, root).await;
                assert_eq!(told, expected, "{death:?}");
            }
        }
    }
}
