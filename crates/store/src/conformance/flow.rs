//! Steps: gates, tasks that are made on the way, and executions that a task stands for.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeMap;
use std::sync::Arc;

use super::cases;
use super::world::World;
use crate::*;
use comeback_core::*;
use serde_json::json;

/// An execution whose task `b` comes after `a` and has a gate.
async fn gated(w: &World) -> (ExecutionId, BTreeMap<String, TaskId>) {
    let (mut submission, id, tasks) = w.new_execution(&["a", "b"], &["a>b"]);
    for new in submission.tasks.iter_mut().filter(|new| new.task.id == tasks["b"]) {
        new.task.gated = true;
        new.body.step = Some(r#"{"condition":"true"}"#.into());
        new.body.key = Some("b".into());
    }
    assert!(matches!(w.submit_one(submission).await, Submitted::Created(_)));
    (id, tasks)
}

async fn gates(w: &World) -> Vec<TaskId> {
    w.store.due(Due::Gates, w.now(), 10).await.unwrap().into_iter().map(|stored| stored.task.id).collect()
}

async fn pass_a(w: &World, id: ExecutionId, tasks: &BTreeMap<String, TaskId>) {
    w.claim(10).await;
    assert_eq!(w.settle_in(id, tasks["a"], End::Succeeded { result: None }).await, Applied::Done);
}

/// Two rounds, of which the second comes after the first, and both before `b`.
fn rounds(w: &World, id: ExecutionId, parent: TaskId) -> (Vec<NewTask>, Vec<Edge>) {
    let new = |n: usize| {
        let mut new = w.new_task("round");
        let lane = Lane { shared: true, ..(*new.task.lane).clone() };
        new.task.lane = Arc::new(lane);
        new.task.execution = Some(id);
        new.task.seq = 0;
        new.body.key = Some(format!("b[{n}]"));
        new
    };
    let tasks = vec![new(0), new(1)];
    let edge = |from: TaskId, to: TaskId, when| Edge { from, to, when, on_unmet: OnUnmet::Skip };
    let (one, two) = (tasks[0].task.id, tasks[1].task.id);
    let edges = vec![edge(one, parent, When::Always), edge(two, parent, When::Always), edge(one, two, When::Success)];
    (tasks, edges)
}

async fn spawn(w: &World, id: ExecutionId, parent: TaskId, behalf: Behalf<'_>) -> (Applied, Vec<TaskId>) {
    let (tasks, edges) = rounds(w, id, parent);
    let mut working = w.working(id).await;
    let began = working.spawn(parent, tasks.iter().map(|new| new.task.clone()).collect(), &edges, w.now()).unwrap();
    let tasks = tasks.into_iter().zip(began).map(|(new, task)| NewTask { task, ..new }).collect::<Vec<_>>();
    let ids = tasks.iter().map(|new| new.task.id).collect();
    let spawn = Submission { tasks, edges, ..Submission::in_namespace("default") };
    (w.store.apply_spawning(&working.into_commit(), &spawn, behalf, w.now()).await.unwrap(), ids)
}

cases! { "flow";
    fn a_gate_is_looked_at_when_the_needs_are_met(w) {
        let (id, tasks) = gated(&w).await;
        assert_eq!(gates(&w).await, []);
        assert_eq!(w.store.next_due().await.unwrap().gate, None);
        pass_a(&w, id, &tasks).await;
        assert_eq!(w.state(tasks["b"]).await, State::Waiting);
        assert_eq!(gates(&w).await, [tasks["b"]]);
        assert!(w.store.next_due().await.unwrap().gate.is_some());
        assert!(w.claim(10).await.is_empty());
        let mut working = w.working(id).await;
        working.open_gate(tasks["b"], w.now()).unwrap();
        assert_eq!(w.apply(working.into_commit()).await, Applied::Done);
        assert_eq!((w.state(tasks["b"]).await, gates(&w).await), (State::Pending, vec![]));
        assert_eq!(w.claim(10).await[0].step.as_deref(), Some(r#"{"condition":"true"}"#));
        w.check_log(tasks["b"]).await;
    }

    fn tasks_made_on_the_way_belong_to_the_execution(w) {
        let (id, tasks) = gated(&w).await;
        pass_a(&w, id, &tasks).await;
        let (applied, made) = spawn(&w, id, tasks["b"], Behalf::Caller).await;
        assert_eq!(applied, Applied::Done);
        let view = w.store.execution("default", id).await.unwrap().unwrap();
        assert_eq!((view.execution.total, view.execution.open), (4, 3));
        assert_eq!((w.state(made[0]).await, w.state(made[1]).await), (State::Pending, State::Waiting));
        assert_eq!(w.load(tasks["b"]).await.task.needs_left, 2);
        for (round, result) in made.iter().zip(["1", "2"]) {
            assert_eq!(w.claim(10).await[0].stored.task.id, *round);
            w.settle_in(id, *round, End::Succeeded { result: Some(result.into()) }).await;
        }
        assert_eq!(w.state(tasks["b"]).await, State::Pending);
        let mut steps = w.store.steps(id, StepsOf::Tasks(&made), u64::MAX).await.unwrap();
        steps.sort_unstable_by_key(|step| step.task);
        let shown: Vec<_> = steps.iter().map(|it| (it.key.as_deref(), it.state, it.result.as_deref())).collect();
        let done = State::Succeeded;
        assert_eq!(shown, [(Some("b[0]"), done, Some("1")), (Some("b[1]"), done, Some("2"))]);
        let by_key = w.store.steps(id, StepsOf::Keys(&["b[1]".into(), "none".into()]), u64::MAX).await.unwrap();
        assert_eq!(by_key.iter().map(|it| it.task).collect::<Vec<_>>(), [made[1]]);
        w.check_log(made[1]).await;
    }

    /// R-I2: they are made with the verdict or not at all.
    fn what_is_stale_makes_no_tasks(w) {
        let (id, tasks) = gated(&w).await;
        pass_a(&w, id, &tasks).await;
        let (made, edges) = rounds(&w, id, tasks["b"]);
        let mut working = w.working(id).await;
        let began = working.spawn(tasks["b"], made.iter().map(|new| new.task.clone()).collect(), &edges, w.now()).unwrap();
        let made: Vec<NewTask> = made.into_iter().zip(began).map(|(new, task)| NewTask { task, ..new }).collect();
        let ids: Vec<TaskId> = made.iter().map(|new| new.task.id).collect();
        w.cancel_in(id, tasks["b"]).await;
        let spawn = Submission { tasks: made, edges, ..Submission::in_namespace("default") };
        let applied = w.store.apply_spawning(&working.into_commit(), &spawn, Behalf::Caller, w.now()).await.unwrap();
        assert_eq!(applied, Applied::Stale);
        assert!(w.store.load(&ids).await.unwrap().iter().all(Option::is_none));
    }

    fn a_paused_loop_and_a_used_key_make_no_tasks(w) {
        let (id, tasks) = gated(&w).await;
        pass_a(&w, id, &tasks).await;
        let pause = Pause { until: Timestamp::MAX, note: None, by: None, at: w.now() };
        w.store.set_pause(Loop::Flow, Some(pause), None, w.now()).await.unwrap();
        assert_eq!(spawn(&w, id, tasks["b"], Behalf::Loop(Loop::Flow)).await.0, Applied::Paused);
        let key = Idempotency { scope: "s".into(), key: "k".into(), digest: [1; 32] };
        w.store.apply_once("default", &key, None, w.now()).await.unwrap();
        assert_eq!(spawn(&w, id, tasks["b"], Behalf::Key("default", &key)).await.0, Applied::Used(Used::ForThis));
        assert_eq!(w.store.execution("default", id).await.unwrap().unwrap().execution.total, 2);
        w.store.set_pause(Loop::Flow, None, None, w.now()).await.unwrap();
        assert_eq!(spawn(&w, id, tasks["b"], Behalf::Loop(Loop::Flow)).await.0, Applied::Done);
    }

    fn lone_tasks_are_made_with_a_verdict_about_another(w) {
        let running = w.running(w.new_task("a")).await;
        let follower = w.new_task("hook");
        let id = follower.task.id;
        let spawn = Submission { tasks: vec![follower], ..Submission::in_namespace("default") };
        let commit: Commit = w.decide(&running.stored, End::Succeeded { result: None }).into();
        let applied = |commit: Commit, spawn: Submission| {
            let (store, now) = (w.store.clone(), w.now());
            async move { store.apply_spawning(&commit, &spawn, Behalf::Caller, now).await.unwrap() }
        };
        assert_eq!(applied(commit.clone(), spawn.clone()).await, Applied::Done);
        assert_eq!(w.kinds(id).await, ["task.created", "task.ready"]);
        assert_eq!(applied(commit, spawn).await, Applied::Stale);
        w.check_log(id).await;
    }

    fn an_execution_knows_where_it_came_from(w) {
        let (mut submission, id, _) = w.new_execution(&["a"], &[]);
        let origin = Origin {
            workflow: Some(("nightly".into(), 3)),
            input: Some(json!({"day": 1}).to_string().into()),
            parent: Some((w.id(), 2)),
            retry_of: Some(ExecutionId(w.id().0)),
            retry_root: Some(ExecutionId(w.id().0)),
            retry_number: 3,
            firing: None,
        };
        submission.execution.as_mut().unwrap().origin = origin.clone();
        w.submit_one(submission).await;
        assert_eq!(w.store.execution("default", id).await.unwrap().unwrap().origin, origin);
        let (other, _) = w.execution(&["x"], &[]).await;
        let ids = |found: Vec<ExecutionView>| found.into_iter().map(|it| it.execution.id).collect::<Vec<_>>();
        let list = |query: ExecutionQuery| {
            let store = w.store.clone();
            async move { store.executions("default", &query).await.unwrap() }
        };
        let all = ExecutionQuery { limit: 10, ..ExecutionQuery::default() };
        assert_eq!(ids(list(all.clone()).await), [other, id]);
        assert_eq!(ids(list(ExecutionQuery { after: Some(other), ..all.clone() }).await), [id]);
        assert_eq!(ids(list(ExecutionQuery { workflow: Some("nightly".into()), ..all.clone() }).await), [id]);
        assert_eq!(ids(list(ExecutionQuery { states: vec![ExecutionState::Failed], ..all.clone() }).await), []);
        assert_eq!(ids(list(ExecutionQuery { parent: origin.parent.map(|it| it.0), ..all }).await), [id]);
        assert!(w.store.executions("other", &ExecutionQuery { limit: 10, ..Default::default() }).await.unwrap().is_empty());
    }

    fn the_end_of_an_execution_is_heard_by_the_run_that_stands_for_it(w) {
        let mut caller = w.new_task("call");
        caller.task.lane = Arc::new(Lane { executor: Executor::Flow, ..(*caller.task.lane).clone() });
        let parent = caller.task.id;
        w.submit(vec![caller]).await;
        let flow = ClaimRequest { executor: Executor::Flow, ..w.request(1) };
        assert_eq!(w.claim_with(flow).await[0].stored.task.state, State::Claimed);
        let (mut submission, id, tasks) = w.new_execution(&["a"], &[]);
        submission.execution.as_mut().unwrap().origin.parent = Some((parent, 1));
        w.submit_one(submission).await;
        assert!(w.store.orphans(10).await.unwrap().is_empty());
        let started = transition::hook_started(&w.load(parent).await.task, Millis(1), w.now()).unwrap();
        w.apply(started).await;
        assert_eq!(w.load(parent).await.task.lease.unwrap().expires_at, None);
        assert!(w.store.call_ends(10).await.unwrap().is_empty());
        w.claim(10).await;
        w.settle_in(id, tasks["a"], End::Succeeded { result: None }).await;
        let ends = w.store.call_ends(10).await.unwrap();
        let heard: Vec<_> = ends.iter().map(|it| (it.task.task.id, it.execution, it.state)).collect();
        assert_eq!(heard, [(parent, id, ExecutionState::Succeeded)]);
        w.succeed(&ends[0].task).await;
        assert!(w.store.call_ends(10).await.unwrap().is_empty());
    }

    fn an_execution_whose_run_is_over_is_an_orphan(w) {
        let caller = w.running(w.new_task("call")).await;
        let (mut submission, id, _) = w.new_execution(&["a"], &[]);
        submission.execution.as_mut().unwrap().origin.parent = Some((caller.stored.task.id, 1));
        w.submit_one(submission).await;
        assert!(w.store.orphans(10).await.unwrap().is_empty());
        w.cancel(caller.stored.task.id).await;
        assert_eq!(w.store.orphans(10).await.unwrap(), [("default".to_owned(), id)]);
    }

    /// Advance is as wide as what changed: who waits for thousands is not loaded with all of them.
    fn a_neighbour_comes_without_its_own_neighbours(w) {
        let (id, tasks) = w.execution(&["a", "b", "c"], &["a>c", "b>c"]).await;
        let graph = w.store.graph(id, Some(&[tasks["a"]])).await.unwrap().unwrap();
        let found: BTreeMap<TaskId, bool> =
            graph.tasks.iter().map(|it| (it.stored.task.id, it.edges.is_some())).collect();
        assert_eq!(found, [(tasks["a"], true), (tasks["c"], false)].into());
    }
}
