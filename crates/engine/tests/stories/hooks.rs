//! Tasks that are started by a call and settled by another.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use async_trait::async_trait;

use crate::between::{Between, Hand};
use crate::stories;
use crate::world::*;
use comeback_core::filter::{Filter, Sort};
use comeback_core::{EventKind, Failure, Millis, OnUnmet, Reporter, State, TaskId, Trigger, When};
use comeback_engine::store::{Collection, Count, ListQuery, StoreError};
use comeback_engine::{
    CommandError, CompleteCallback, Engine, EngineConfig, ExecutionSpec, ExecutorSpec, Heartbeat, LeaseRef,
    LeaseRequest, Need, ReportEnd, Submit, TaskSpec,
};
use serde_json::json;

pub async fn hook(engine: &Engine, retry: serde_json::Value, timeout: Option<u64>) -> TaskId {
    let task = TaskSpec {
        executor: ExecutorSpec::Hook(json!({"start": {"url": "http://example.test"}}).into()),
        timeout: timeout.map(Millis),
        ..spec("etl", retry)
    };
    submit(engine, task).await
}

pub async fn claim(engine: &Engine) -> LeaseRef {
    let claimed = engine.claim_hooks(LeaseRequest::new("default", "hooks")).await.unwrap();
    assert_eq!(claimed.len(), 1);
    claimed[0].lease
}

pub async fn settle(engine: &Engine, task: TaskId, fence: Reporter, end: ReportEnd) -> Result<State, CommandError> {
    engine
        .complete_callback(CompleteCallback { namespace: "default".into(), task, fence, end })
        .await
        .map(|changed| changed.state)
}

/// The calls that were made to cancel something: the runs they are about, and their keys.
async fn cancels(engine: &Engine, of: TaskId) -> Vec<(u64, String)> {
    let filter = Filter::parse(&format!("kind:hook.cancel label.hook_of:{of}"), engine.now()).unwrap();
    let query = ListQuery { filter, sort: Sort::Submitted, limit: 100, after: None, now: engine.now() };
    let mut found = Vec::new();
    for made in engine.store().list("default", &query).await.unwrap().items {
        let body = engine.task("default", made.stored.task.id).await.unwrap().body;
        let told: serde_json::Value = serde_json::from_str(&body.payload.unwrap()).unwrap();
        found.push((told["run"].as_u64().unwrap(), body.name.unwrap()));
    }
    found
}

/// Lets writes fail as long as it is told to, and counts those of them that it lets pass.
#[derive(Default)]
struct Weak {
    fails: AtomicBool,
    slow: AtomicBool,
    writes: AtomicUsize,
}

#[async_trait]
impl Hand for Weak {
    async fn before(&self, writes: bool) -> Result<u64, StoreError> {
        if writes && self.fails.load(Ordering::SeqCst) {
            return Err(StoreError::Unavailable("it is tired".into()));
        }
        if writes && self.slow.load(Ordering::SeqCst) {
            // Long enough for others to come meanwhile, however busy the machine is.
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
        self.writes.fetch_add(usize::from(writes), Ordering::SeqCst);
        Ok(0)
    }

    async fn after(&self, _: u64, _: bool) -> Result<(), StoreError> {
        Ok(())
    }
}

/// Runs whose registered calls are kept.
async fn kept(engine: &Engine) -> usize {
    let at = Collection { namespace: "default", shelf: "cancel-hooks" };
    engine.store().documents(at, "", 100).await.unwrap().len()
}

fn stop() -> serde_json::Value {
    json!({"url": "http://example.test/stop", "method": "POST"})
}

stories! {
    /// S1-76 and S1-79: timeouts twice, then a callback.
    fn a_hook_times_out_twice_and_then_succeeds(place) {
        let engine = place.engine().await;
        let id = hook(&engine, json!({"max_retries": 3, "initial_delay": "10s"}), Some(30_000)).await;
        for delay in [10_000, 20_000] {
            let call = claim(&engine).await;
            assert_eq!(state(&engine, id).await, State::Claimed);
            engine.hook_started("default", call).await.unwrap();
            place.pass(30_000);
            engine.tick().await.unwrap();
            assert_eq!(state(&engine, id).await, State::RetryPending);
            place.pass(delay);
            engine.tick().await.unwrap();
        }
        let call = claim(&engine).await;
        engine.hook_started("default", call).await.unwrap();
        assert_eq!(settle(&engine, id, Reporter::Run(3), succeeded()).await.unwrap(), State::Succeeded);
        let task = engine.task("default", id).await.unwrap().stored.task;
        assert_eq!((task.counters.attempt, task.run), (2, 3));
    }

    /// X1-7, F1-5: what a callee has registered for its run is called once: when the run is repeated, or when it is canceled.
    fn what_a_run_has_registered_is_called_when_it_is_repeated_or_canceled(place) {
        let engine = place.engine().await;
        let id = hook(&engine, json!({"max_retries": 3, "initial_delay": "10s"}), Some(30_000)).await;
        let call = claim(&engine).await;
        engine.register_cancel("default", id, Reporter::Run(1), stop()).await.unwrap();
        engine.register_cancel("default", id, Reporter::Run(1), stop()).await.unwrap();
        engine.hook_started("default", call).await.unwrap();
        assert_eq!(cancels(&engine, id).await, []);
        place.pass(30_000);
        engine.tick().await.unwrap();
        assert_eq!(state(&engine, id).await, State::RetryPending);
        let first = format!("{id}:cancel:success:0:registered");
        assert_eq!(cancels(&engine, id).await, [(1, first.clone())], "before it runs again, and once");
        place.pass(10_000);
        engine.tick().await.unwrap();
        let call = claim(&engine).await;
        engine.hook_started("default", call).await.unwrap();
        assert_eq!(cancels(&engine, id).await.len(), 1, "those of the last run are nobody's any more");
        engine.register_cancel("default", id, Reporter::Run(2), stop()).await.unwrap();
        engine.cancel("default", id, nobody()).await.unwrap();
        assert_eq!(cancels(&engine, id).await, [(1, first), (2, format!("{id}:cancel:success:1:registered"))]);
    }

    fn a_run_that_ends_well_cancels_nothing(place) {
        let engine = place.engine().await;
        let id = hook(&engine, json!({"max_retries": 3}), None).await;
        let call = claim(&engine).await;
        engine.hook_started("default", call).await.unwrap();
        engine.register_cancel("default", id, Reporter::Run(1), stop()).await.unwrap();
        settle(&engine, id, Reporter::Run(1), succeeded()).await.unwrap();
        engine.register_cancel("default", id, Reporter::Run(1), stop()).await.unwrap();
        assert_eq!(cancels(&engine, id).await, []);
        assert_eq!(kept(&engine).await, 0, "nobody needs them any more");
    }

    /// A callee may be slower than whoever cancels: its call is made all the same, and once.
    fn what_is_registered_too_late_is_called_at_once(place) {
        let (one, two) = (place.engine().await, place.engine().await);
        let id = hook(&one, json!({"max_retries": 3}), None).await;
        let call = claim(&one).await;
        one.hook_started("default", call).await.unwrap();
        one.cancel("default", id, nobody()).await.unwrap();
        for _ in 0..2 {
            one.register_cancel("default", id, Reporter::Run(1), stop()).await.unwrap();
            assert_eq!(cancels(&one, id).await.len(), 1);
        }
        for _ in 0..20 {
            let id = hook(&one, json!({"max_retries": 3}), None).await;
            let call = claim(&one).await;
            one.hook_started("default", call).await.unwrap();
            let (canceled, registered) =
                tokio::join!(one.cancel("default", id, nobody()), two.register_cancel("default", id, Reporter::Run(1), stop()));
            canceled.unwrap();
            registered.unwrap();
            assert_eq!(cancels(&one, id).await.len(), 1, "whoever came first");
        }
        assert_eq!(kept(&one).await, 0);
    }

    /// F1-18: what is told at the same moment is written together; what could not be written is told, and may be said again.
    fn counts_add_up_and_none_is_lost_or_taken_twice(place) {
        let weak = Arc::new(Weak::default());
        let store = Arc::new(Between { truth: place.store().await, hand: weak.clone() });
        let engine = Engine::without_loops(store, place.clock.clone(), EngineConfig::default()).await.unwrap();
        let id = hook(&engine, json!({"max_retries": 3}), None).await;
        let call = claim(&engine).await;
        engine.hook_started("default", call).await.unwrap();
        let tell = async |engine: Engine| {
            let count = Count { task: id, success: 1, failures: 2, expected: None };
            engine.count("default", count, Reporter::Run(1)).await
        };
        let before = weak.writes.load(Ordering::SeqCst);
        weak.slow.store(true, Ordering::SeqCst);
        futures_util::future::join_all((0..40).map(|_| tell(engine.clone()))).await.into_iter().for_each(|it| it.unwrap());
        weak.slow.store(false, Ordering::SeqCst);
        let counted = async || engine.task("default", id).await.unwrap().stored.task.tally;
        assert_eq!((counted().await.success, counted().await.failures), (40, 80));
        assert!(weak.writes.load(Ordering::SeqCst) - before < 40, "they were gathered");
        weak.fails.store(true, Ordering::SeqCst);
        let refused = futures_util::future::join_all((0..3).map(|_| tell(engine.clone()))).await;
        assert!(refused.iter().all(Result::is_err), "{refused:?}");
        weak.fails.store(false, Ordering::SeqCst);
        tell(engine.clone()).await.unwrap();
        assert_eq!((counted().await.success, counted().await.failures), (41, 82));
    }

    /// X1-6: a callback of an earlier run changes nothing.
    fn a_late_callback_of_an_earlier_run_is_refused(place) {
        let engine = place.engine().await;
        let id = hook(&engine, json!({"strategy": "immediate"}), Some(5_000)).await;
        let call = claim(&engine).await;
        engine.hook_started("default", call).await.unwrap();
        place.pass(5_000);
        engine.tick().await.unwrap();
        let call = claim(&engine).await;
        engine.hook_started("default", call).await.unwrap();
        for fence in [Reporter::Run(1), Reporter::Run(3), Reporter::Attempt(0)] {
            let refused = settle(&engine, id, fence, succeeded()).await;
            assert!(matches!(refused, Err(CommandError::LeaseLost)), "{fence:?}");
        }
        assert_eq!(settle(&engine, id, Reporter::Attempt(1), succeeded()).await.unwrap(), State::Succeeded);
        assert!(settle(&engine, id, Reporter::Run(2), succeeded()).await.is_err(), "a duplicate settle");
    }

    /// S1-27, F1-10: an explicit failure is decided like any other; the callee may be quicker than the answer to its start.
    fn an_explicit_failure_is_retried_even_before_the_start_was_answered(place) {
        let engine = place.engine().await;
        let id = hook(&engine, json!({"retry_on": ["explicit"], "initial_delay": "1s"}), None).await;
        let call = claim(&engine).await;
        let failure = ReportEnd::Failed(Failure::new(Trigger::Error, "no rows"));
        assert_eq!(settle(&engine, id, Reporter::Anyone, failure).await.unwrap(), State::RetryPending);
        let events = engine.events("default", id, 0, 100).await.unwrap();
        let kinds: Vec<EventKind> = events.iter().map(|event| event.kind).collect();
        assert!(kinds.contains(&EventKind::TaskClaimed) && kinds.contains(&EventKind::AttemptStarted));
        assert!(engine.hook_started("default", call).await.is_err(), "that run is over");
    }

    /// S1-26, S1-80: the start call fails, the policy decides.
    fn a_failed_start_call_is_retried(place) {
        let engine = place.engine().await;
        hook(&engine, json!({"retry_on": ["webhook_failure"], "max_retries": 1, "strategy": "immediate"}), None).await;
        for expected in [State::RetryPending, State::Dead] {
            let call = claim(&engine).await;
            let failure = Failure { status: Some(502), ..Failure::new(Trigger::Error, "bad gateway") };
            assert_eq!(engine.hook_failed("default", call, failure).await.unwrap().state, expected);
            engine.tick().await.unwrap();
        }
    }

    /// X1-10: before anything was sent a lost claim costs nothing.
    fn a_claim_that_was_never_sent_is_given_back(place) {
        let engine = place.engine().await;
        let id = hook(&engine, json!({"max_lost": 0}), None).await;
        claim(&engine).await;
        place.pass(60_000);
        engine.tick().await.unwrap();
        let task = engine.task("default", id).await.unwrap().stored.task;
        assert_eq!((task.state, task.counters.lost, task.run), (State::Pending, 0, 0));
    }

    /// X1-10: once the call went out its loss may have had effects, and counts.
    fn a_claim_whose_call_was_sent_counts_as_lost(place) {
        let engine = place.engine().await;
        let id = hook(&engine, json!({"strategy": "fixed", "delay": "1s"}), None).await;
        let call = claim(&engine).await;
        engine.heartbeat(&[Heartbeat { lease: call, extend: Millis(30_000), progress: None }]).await.unwrap();
        place.pass(60_000);
        engine.tick().await.unwrap();
        let task = engine.task("default", id).await.unwrap().stored.task;
        assert_eq!((task.state, task.counters.lost, task.counters.attempt), (State::RetryPending, 1, 0));
    }

    /// F0-9: whoever waits for word from outside waits in the store, and any instance hears it.
    fn a_wait_for_word_from_outside_outlives_the_instance(place) {
        let first = place.engine().await;
        let wait = TaskSpec { executor: ExecutorSpec::Hook(json!({"type": "hook"}).into()), timeout: Some(Millis::from_days(3)), key: Some("wait".into()), ..spec("approval", json!({"max_retries": 0})) };
        let need = Need { task: "wait".into(), when: When::Success, on_unmet: OnUnmet::Skip };
        let after = TaskSpec { key: Some("after".into()), needs: vec![need], ..spec("ship", json!({})) };
        let submit = Submit { namespace: "default".into(), tasks: vec![wait.clone(), after], execution: Some(ExecutionSpec::default()), ..Submit::default() };
        let ids: Vec<TaskId> = first.submit(submit).await.unwrap().tasks.iter().map(|it| it.id).collect();
        let too_long = crate::world::submit(&first, wait).await;
        for call in first.claim_hooks(LeaseRequest { limit: 5, ..LeaseRequest::new("default", "hooks") }).await.unwrap() {
            first.hook_started("default", call.lease).await.unwrap();
        }
        first.close().await;
        place.forget();
        place.pass(2 * 86_400_000);
        let second = place.engine().await;
        second.tick().await.unwrap();
        assert_eq!((state(&second, ids[0]).await, state(&second, ids[1]).await), (State::Running, State::Waiting));
        settle(&second, ids[0], Reporter::Run(1), succeeded()).await.unwrap();
        assert_eq!(lease_one(&second).await.lease.task, ids[1]);
        place.pass(86_400_000);
        second.tick().await.unwrap();
        assert_eq!(state(&second, too_long).await, State::Dead, "nobody said a word in time");
    }

    /// A14: leaseless work without a limit of its own is stuck after half an hour.
    fn a_silent_hook_without_a_timeout_is_stuck_in_the_end(place) {
        let engine = place.engine().await;
        let id = hook(&engine, json!({"initial_delay": "1s"}), None).await;
        let call = claim(&engine).await;
        engine.hook_started("default", call).await.unwrap();
        place.pass(1_799_999);
        engine.tick().await.unwrap();
        assert_eq!(state(&engine, id).await, State::Running);
        place.pass(1);
        engine.tick().await.unwrap();
        let view = engine.task("default", id).await.unwrap();
        assert_eq!((view.stored.task.state, view.stored.task.counters.lost), (State::RetryPending, 1));
        assert_eq!(view.last_failure.unwrap().failure.unwrap().trigger, Trigger::Stuck);
    }

    /// X1-6: what answers a start call that was given up changes nothing of the next one.
    fn a_late_answer_to_an_earlier_start_call_is_refused(place) {
        let engine = place.engine().await;
        let id = hook(&engine, json!({"initial_delay": "1s"}), None).await;
        let first = claim(&engine).await;
        place.pass(60_000);
        engine.tick().await.unwrap();
        claim(&engine).await;
        assert!(matches!(engine.hook_started("default", first).await, Err(CommandError::LeaseLost)));
        let failure = Failure::new(Trigger::Error, "too late");
        assert!(matches!(engine.hook_failed("default", first, failure).await, Err(CommandError::LeaseLost)));
        assert_eq!(state(&engine, id).await, State::Claimed);
    }

    /// A worker's run is the worker's: no callback ends it.
    fn a_callback_cannot_end_a_workers_run(place) {
        let engine = place.engine().await;
        let id = submit(&engine, spec("k", json!({}))).await;
        assert_eq!(lease(&engine, 1).await.len(), 1);
        for fence in [Reporter::Anyone, Reporter::Run(1), Reporter::Attempt(0)] {
            let refused = settle(&engine, id, fence, succeeded()).await;
            assert!(matches!(refused, Err(CommandError::Invalid(_))), "{fence:?}");
        }
        assert_eq!(state(&engine, id).await, State::Running);
    }

    fn a_worker_never_gets_a_hook(place) {
        let engine = place.engine().await;
        hook(&engine, json!({}), None).await;
        assert!(lease(&engine, 10).await.is_empty());
    }
}
