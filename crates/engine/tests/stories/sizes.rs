//! Large executions. What one end costs does not depend on how large its execution is: each looks at its own edges only.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use comeback_core::{Commit, ExecutionState};
use comeback_engine::store::{Store, StoreError};
use comeback_engine::{Engine, EngineConfig, ExecutionSpec, Report, Submit, TaskSpec};

use crate::between::{Between, Hand};
use crate::shapes::{chain, fan, rows};
use crate::stories;
use crate::world::{Place, lease, succeeded};

/// Counts the tasks that are loaded and written, which is what time is spent on.
#[derive(Default)]
struct Counting {
    looked_at: AtomicUsize,
    written: AtomicUsize,
}

#[async_trait]
impl Hand for Counting {
    async fn before(&self, _: bool) -> Result<u64, StoreError> {
        Ok(0)
    }

    async fn after(&self, _: u64, _: bool) -> Result<(), StoreError> {
        Ok(())
    }

    async fn commits(&self, _: &dyn Store, commits: &[Commit]) -> Result<Vec<Commit>, StoreError> {
        self.written.fetch_add(commits.iter().map(|commit| commit.writes.len()).sum(), Ordering::SeqCst);
        Ok(commits.to_vec())
    }

    fn looked_at(&self, tasks: usize) {
        self.looked_at.fetch_add(tasks, Ordering::SeqCst);
    }
}

struct Cost {
    looked_at: f64,
    written: f64,
}

/// Works an execution off, so many at a time, and says what each of its tasks has cost.
async fn cost(place: &Place, tasks: Vec<TaskSpec>, at_a_time: u32) -> Cost {
    let count = tasks.len();
    let hand = Arc::new(Counting::default());
    let store = Arc::new(Between { truth: place.store().await, hand: hand.clone() });
    let engine = Engine::without_loops(store, place.clock.clone(), EngineConfig::default()).await.expect("an engine");
    let submit =
        Submit { namespace: "default".into(), tasks, execution: Some(ExecutionSpec::default()), ..Submit::default() };
    let execution = engine.submit(submit).await.expect("it is taken").execution.expect("an execution");
    let mut ran = 0;
    while ran < count {
        let leased = lease(&engine, at_a_time).await;
        assert!(!leased.is_empty(), "{ran} of {count} ran");
        ran += leased.len();
        let reports = leased.iter().map(|it| Report { lease: it.lease, end: succeeded() }).collect();
        for answer in engine.report(reports).await.expect("reports") {
            answer.expect("taken");
        }
    }
    let view = engine.store().execution("default", execution).await.unwrap().unwrap().execution;
    assert_eq!((view.state, view.total as usize, view.open), (ExecutionState::Succeeded, count, 0));
    let each = |counter: &AtomicUsize| counter.load(Ordering::SeqCst) as f64 / count as f64;
    Cost { looked_at: each(&hand.looked_at), written: each(&hand.written) }
}

async fn costs_the_same(place: &Place, shape: fn(usize) -> Vec<TaskSpec>, small: usize, large: usize, at_a_time: u32) {
    let (small, large) = (cost(place, shape(small), at_a_time).await, cost(place, shape(large), at_a_time).await);
    assert!(large.looked_at <= small.looked_at * 1.1, "{} tasks looked at, then {}", small.looked_at, large.looked_at);
    assert!(large.written <= small.written * 1.1, "{} tasks written, then {}", small.written, large.written);
}

stories! {
    fn a_chain_of_a_thousand_costs_each_task_what_a_chain_of_a_hundred_does(place) {
        costs_the_same(&place, chain, 100, 1_000, 10).await;
    }

    fn a_fan_out_of_thousands_costs_each_task_what_a_small_one_does(place) {
        costs_the_same(&place, fan, 500, 5_000, 50).await;
    }

    fn ten_thousand_tasks_in_one_execution_cost_each_what_a_thousand_do(place) {
        costs_the_same(&place, rows, 1_000, 10_000, 50).await;
    }
}
