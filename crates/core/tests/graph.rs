//! Neighbours: what one task's end does to the others, and what it must never do.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::common::*;

use comeback_core::graph::{Halt, Working};
use comeback_core::transition::{self, Actor};
use comeback_core::*;
use serde_json::json;
use uuid::Uuid;

/// A small execution written as edges: `a>b` on success, `a!b` on failure, `a*b` always; a trailing `f` fails when unmet.
struct World {
    work: Working,
    names: HashMap<String, TaskId>,
}

impl World {
    fn new(names: &[&str], edges: &[&str]) -> World {
        World::with(names, edges, |execution| execution)
    }

    fn with(names: &[&str], edges: &[&str], adjust: impl Fn(Execution) -> Execution) -> World {
        let execution_id = ExecutionId(Uuid::from_u128(1));
        let ids: HashMap<String, TaskId> =
            names.iter().zip(100..).map(|(name, n)| ((*name).to_owned(), id(n))).collect();
        let edges: Vec<Edge> = edges.iter().map(|text| edge(text, &ids)).collect();
        let execution = Execution::new(execution_id, "default".into(), names.len() as u32, T0);
        let mut work = Working::new(adjust(execution));
        for name in names {
            let lane = Lane { kind: "step".into(), shared: true, ..Lane::default() };
            let mut task = Task::new(ids[*name], Arc::new(lane), T0);
            task.execution = Some(execution_id);
            let into: Vec<Edge> = edges.iter().filter(|edge| edge.to == task.id).copied().collect();
            let out: Vec<Edge> = edges.iter().filter(|edge| edge.from == task.id).copied().collect();
            task.needs_left = into.len() as u32;
            task.children_left = out.len() as u32;
            task.dead_end_barrier = name.starts_with("barrier");
            task.state = if into.is_empty() { State::Pending } else { State::Waiting };
            work.add(task, out, into);
        }
        World { work, names: ids }
    }

    fn task(&self, name: &str) -> Task {
        self.work.task(self.names[name]).expect(name).clone()
    }

    fn state(&self, name: &str) -> State {
        self.task(name).state
    }

    fn states(&self) -> HashMap<TaskId, (State, u32, u32)> {
        self.work.tasks().map(|task| (task.id, (task.state, task.needs_left, task.children_left))).collect()
    }

    fn run(&mut self, name: &str) {
        let step = transition::lease(&self.task(name), "w", Millis::from_secs(60), T0).expect("pending");
        let (out, into) = self.edges(name);
        let mut work = Working::new(self.work.execution().clone());
        for task in self.work.tasks() {
            let name = self.name_of(task.id);
            let (out, into) = self.edges(&name);
            work.add(if task.id == step.after.id { step.after.clone() } else { task.clone() }, out, into);
        }
        work.add(step.after, out, into);
        self.work = work;
    }

    fn name_of(&self, id: TaskId) -> String {
        self.names.iter().find(|(_, it)| **it == id).map(|(name, _)| name.clone()).expect("known")
    }

    fn edges(&self, name: &str) -> (Vec<Edge>, Vec<Edge>) {
        (self.work.out_edges(self.names[name]).to_vec(), self.work.in_edges(self.names[name]).to_vec())
    }

    fn settle(&mut self, name: &str, finish: End, policy: Option<Policy>) {
        self.run(name);
        let snapshot = Snapshot { task: self.task(name), ..pending(policy) };
        let change = end(&snapshot, finish, T0);
        self.work.apply(change, T0).expect("everything is loaded");
    }

    fn succeed(&mut self, name: &str) {
        self.settle(name, End::Succeeded { result: None }, None);
    }

    fn fail(&mut self, name: &str) {
        self.settle(name, End::Failed(error("x")), None);
    }

    fn cancel(&mut self, name: &str) {
        let change = transition::cancel(&self.task(name), Reason::Canceled, &Actor::default(), T0).expect("open");
        self.work.apply(change, T0).expect("loaded");
    }

    fn execution(&self) -> ExecutionState {
        self.work.execution().state
    }
}

fn edge(text: &str, ids: &HashMap<String, TaskId>) -> Edge {
    let (body, on_unmet) = match text.strip_suffix(" f") {
        Some(body) => (body, OnUnmet::Fail),
        None => (text, OnUnmet::Skip),
    };
    let sign = body.find(['>', '!', '*']).expect("a sign");
    let when = match &body[sign..=sign] {
        ">" => When::Success,
        "!" => When::Failure,
        _ => When::Always,
    };
    Edge { from: ids[&body[..sign]], to: ids[&body[sign + 1..]], when, on_unmet }
}

#[test]
fn a_child_is_ready_when_its_last_need_is_met() {
    let mut world = World::new(&["a", "b", "c"], &["a>c", "b>c"]);
    world.succeed("a");
    assert_eq!(world.state("c"), State::Waiting);
    world.succeed("b");
    assert_eq!(world.state("c"), State::Pending);
    world.succeed("c");
    assert_eq!(world.execution(), ExecutionState::Succeeded); // E3
}

#[test]
fn each_condition_is_met_by_its_own_ends() {
    use State::*;
    for (sign, end, child) in [
        (">", Succeeded, Pending),
        (">", Failed, Skipped),
        (">", Canceled, Skipped),
        ("!", Succeeded, Skipped),
        ("!", Failed, Pending),
        ("!", Canceled, Pending),
        ("*", Succeeded, Pending),
        ("*", Failed, Pending),
        ("*", Canceled, Pending),
    ] {
        let mut world = World::new(&["a", "b"], &[&format!("a{sign}b")]);
        match end {
            Succeeded => world.succeed("a"),
            Failed => world.fail("a"),
            _ => world.cancel("a"),
        }
        assert_eq!(world.state("b"), child, "a{sign}b after {end}");
    }
}

/// F1-11, F1-22: skipping goes on down, `always` is met by a skipped parent, legacy edges fail.
#[test]
fn unmet_edges_skip_or_fail_and_so_on_down() {
    let mut world = World::new(&["a", "b", "c", "d", "e"], &["a>b", "b>c", "c*d", "c!e"]);
    world.fail("a");
    assert_eq!((world.state("b"), world.state("c")), (State::Skipped, State::Skipped));
    assert_eq!((world.state("d"), world.state("e")), (State::Pending, State::Skipped));
    let mut legacy = World::new(&["a", "b", "c"], &["a>b f", "b>c f"]);
    legacy.fail("a");
    assert_eq!((legacy.state("b"), legacy.state("c")), (State::Failed, State::Failed));
    assert_eq!(legacy.task("c").reason, Some(Reason::UpstreamFailed));
    assert_eq!(legacy.execution(), ExecutionState::Failed);
}

#[test]
fn a_handled_failure_does_not_fail_the_execution() {
    let mut world = World::new(&["a", "cleanup"], &["a!cleanup"]);
    world.fail("a");
    assert_eq!(world.execution(), ExecutionState::Pending, "cleanup is still open");
    world.succeed("cleanup");
    assert_eq!(world.execution(), ExecutionState::Succeeded); // E3
    let mut world = World::new(&["a", "b"], &["a>b"]);
    world.fail("a");
    assert_eq!(world.execution(), ExecutionState::Failed); // E4
}

/// I-3, S1-46, S1-50, S1-85: a retry is not an end.
#[test]
fn entering_retry_pending_moves_no_neighbour() {
    let mut world = World::with(&["root", "a", "b", "c"], &["root>a", "a>b", "a!c", "a*c"], |execution| Execution {
        dead_end_cancel: true,
        fail_fast: true,
        ..execution
    });
    world.succeed("root");
    let before = world.states();
    let execution = world.work.execution().clone();
    world.settle("a", End::Failed(error("x")), Some(native(json!({}))));
    assert_eq!(world.state("a"), State::RetryPending);
    let mut after = world.states();
    after.insert(world.names["a"], before[&world.names["a"]]);
    assert_eq!(after, before);
    assert_eq!(world.work.execution().open, execution.open);
    let commit = world.work.clone().into_commit();
    assert_eq!(commit.writes.iter().filter(|write| write.after.state == State::RetryPending).count(), 1);
}

#[test]
fn fail_fast_ends_everything_at_the_first_unhandled_failure() {
    let fast = |execution| Execution { fail_fast: true, ..execution };
    let mut world = World::with(&["a", "b", "c"], &["b>c"], fast);
    world.fail("a");
    for name in ["b", "c"] {
        assert_eq!((world.state(name), world.task(name).reason), (State::Canceled, Some(Reason::FailFast)), "{name}");
    }
    assert_eq!(world.execution(), ExecutionState::Failed);
    let mut handled = World::with(&["a", "b", "cleanup"], &["a!cleanup"], fast);
    handled.fail("a");
    assert_eq!((handled.state("b"), handled.state("cleanup")), (State::Pending, State::Pending));
}

/// F1-12, X1-9: what can no longer lead anywhere is canceled, up to a barrier.
#[test]
fn dead_ends_are_canceled_up_to_a_barrier() {
    let on = |execution| Execution { dead_end_cancel: true, ..execution };
    let mut world = World::with(&["top", "mid", "leaf1", "leaf2"], &["top>mid", "mid>leaf1", "mid>leaf2"], on);
    world.cancel("leaf1");
    assert_eq!(world.state("mid"), State::Waiting, "one child is left");
    world.cancel("leaf2");
    assert_eq!((world.state("mid"), world.state("top")), (State::Canceled, State::Canceled));
    assert_eq!(world.task("mid").reason, Some(Reason::DeadEnd));
    let mut world = World::with(&["top", "barrier", "leaf"], &["top>barrier", "barrier>leaf"], on);
    world.cancel("leaf");
    assert_eq!((world.state("barrier"), world.state("top")), (State::Canceled, State::Pending));
    let edges = ["top>barrier", "top>other", "barrier>leaf"];
    let mut world = World::with(&["top", "barrier", "other", "leaf"], &edges, on);
    world.cancel("leaf");
    assert_eq!((world.state("barrier"), world.state("top")), (State::Canceled, State::Pending));
    world.cancel("other");
    assert_eq!(world.state("top"), State::Canceled, "the canceled barrier is one child less");
    let mut off = World::new(&["top", "leaf"], &["top>leaf"]);
    off.cancel("leaf");
    assert_eq!(off.state("top"), State::Pending);
}

/// X1-9: a task that waits for its retry keeps its ancestors alive, and may itself be a dead end.
#[test]
fn a_retrying_child_is_not_terminal_for_dead_ends() {
    let on = |execution| Execution { dead_end_cancel: true, ..execution };
    let mut world = World::with(&["a", "b", "c"], &["a*b", "a*c"], on);
    world.settle("a", End::Failed(error("x")), Some(native(json!({}))));
    world.cancel("b");
    assert_eq!(world.state("a"), State::RetryPending);
    world.cancel("c");
    assert_eq!(world.state("a"), State::Canceled);
}

/// X1-9, the other side: as a child it is not over, so who stands above it still works for somebody.
#[test]
fn a_retrying_child_keeps_its_ancestors() {
    let on = |execution| Execution { dead_end_cancel: true, ..execution };
    let mut world = World::with(&["a", "b", "c"], &["a*b", "a*c"], on);
    world.fail("a");
    world.settle("b", End::Failed(error("x")), Some(native(json!({}))));
    let again = transition::manual_retry(&world.task("a"), false, &Actor::default(), T0).expect("it failed");
    world.work.reopen(again, T0).expect("loaded");
    world.cancel("c");
    assert_eq!((world.state("a"), world.state("b")), (State::Pending, State::RetryPending));
    world.cancel("b");
    assert_eq!(world.state("a"), State::Canceled);
}

#[test]
fn canceling_an_execution_cancels_all_that_is_open() {
    let mut world = World::new(&["a", "b", "c", "d"], &["a>b", "b>c"]);
    world.settle("d", End::Failed(error("x")), Some(native(json!({}))));
    world.succeed("a");
    world.run("b");
    world.work.cancel(Reason::ExecutionCanceled, &Actor::default(), T0).expect("loaded");
    for name in ["b", "c", "d"] {
        assert_eq!(world.state(name), State::Canceled, "{name}"); // S1-53, F1-16
    }
    assert_eq!((world.state("a"), world.execution()), (State::Succeeded, ExecutionState::Canceled)); // E6
}

/// What is done to the whole is told with who did it and what they said.
#[test]
fn an_execution_tells_who_acted_and_why() {
    let act = Actor { by: Some("ana".into()), note: Some("maintenance".into()), ..Actor::default() };
    let mut world = World::new(&["a"], &[]);
    let paused = world.work.execution().pause(T0).expect("open");
    world.work.set_paused(paused, &act, T0);
    let resumed = world.work.execution().resume(T0).expect("paused");
    world.work.set_paused(resumed, &act, T0);
    world.work.cancel(Reason::ExecutionCanceled, &Actor { note: None, ..act.clone() }, T0).expect("loaded");
    let mut failed = World::new(&["a"], &[]);
    failed.fail("a");
    failed.work.retry_failed(BTreeMap::new(), &act, T0).expect("reopens");
    let commits = [world.work.into_commit(), failed.work.into_commit()];
    let events = commits.iter().flat_map(|commit| &commit.records).flat_map(Record::expand);
    let told: Vec<_> = events
        .filter(|event| event.task.is_none() && event.kind != EventKind::ExecutionFailed)
        .map(|event| (event.kind, event.data))
        .collect();
    use EventKind::*;
    let both = json!({"by": "ana", "note": "maintenance"});
    let reopened = json!({"by": "ana", "note": "maintenance", "reopened": true});
    let expected = [
        (ExecutionPaused, both.clone()),
        (ExecutionResumed, both),
        (ExecutionCanceled, json!({"by": "ana"})),
        (ExecutionResumed, reopened),
    ];
    assert_eq!(told, expected);
}

/// S1-25, S1-81: a timeout that is not retried is a failure like any other for those who wait for it.
#[test]
fn a_terminal_timeout_propagates() {
    let policy = Some(native(json!({"retry_on": ["explicit"]})));
    let timeout = || End::Failed(Failure::new(Trigger::Timeout, "idle"));
    let mut world = World::new(&["a", "b", "cleanup"], &["a>b f", "a!cleanup"]);
    world.settle("a", timeout(), policy);
    let states = ["a", "b", "cleanup"].map(|name| world.state(name));
    assert_eq!(states, [State::Failed, State::Failed, State::Pending]);
    let mut retried = World::new(&["a", "b"], &["a>b f"]);
    retried.settle("a", timeout(), Some(native(json!({"retry_on": ["timeout"]}))));
    assert_eq!((retried.state("a"), retried.state("b")), (State::RetryPending, State::Waiting));
}

/// E7: a failed execution goes on, and what was given up for its parent waits again.
#[test]
fn a_manual_retry_reopens_what_failed_because_of_it() {
    let mut world = World::new(&["a", "b", "c", "other"], &["a>b", "b>c f"]);
    world.succeed("other");
    world.fail("a");
    assert_eq!(world.execution(), ExecutionState::Failed);
    let retried = transition::manual_retry(&world.task("a"), false, &Actor::default(), T0).expect("failed");
    world.work.reopen(retried, T0).expect("reopens");
    assert_eq!(world.execution(), ExecutionState::Running);
    assert_eq!(
        (world.state("a"), world.state("b"), world.state("c")),
        (State::Pending, State::Waiting, State::Waiting)
    );
    assert_eq!(world.state("other"), State::Succeeded);
    assert_eq!((world.work.execution().open, world.work.execution().unhandled), (3, 0));
    for name in ["a", "b", "c"] {
        world.succeed(name);
    }
    assert_eq!(world.execution(), ExecutionState::Succeeded);
}

/// E4, E7: what failing fast took along goes on as it was: what had begun is ready, the rest waits.
#[test]
fn a_reopening_brings_back_what_failing_fast_took_along() {
    let fast = |execution| Execution { fail_fast: true, ..execution };
    let whole = |world: &mut World| world.work.retry_failed(BTreeMap::new(), &Actor::default(), T0).expect("reopens");
    let one = |world: &mut World| {
        let retried = transition::manual_retry(&world.task("a"), false, &Actor::default(), T0).expect("failed");
        world.work.reopen(retried, T0).expect("reopens");
    };
    let ways: [&dyn Fn(&mut World); 2] = [&whole, &one];
    for retry in ways {
        let mut world = World::with(&["a", "b", "c", "done", "d"], &["b>c", "a>d", "done>d"], fast);
        world.succeed("done");
        world.settle("b", End::Failed(error("x")), Some(native(json!({}))));
        world.fail("a");
        assert_eq!(world.execution(), ExecutionState::Failed);
        retry(&mut world);
        let states = ["a", "b", "c", "d"].map(|name| world.state(name));
        assert_eq!(states, [State::Pending, State::Pending, State::Waiting, State::Waiting]);
        assert_eq!(world.task("b").counters.attempt, 1, "its budget is what it was");
        assert_eq!((world.work.execution().open, world.work.execution().unhandled), (4, 0));
        for name in ["a", "b", "c", "d"] {
            world.succeed(name);
        }
        assert_eq!(world.execution(), ExecutionState::Succeeded);
    }
}

/// While another failure stays, failing fast would end what comes back at once.
#[test]
fn a_reopening_beside_a_failure_that_stays_brings_back_no_siblings() {
    let fast = |execution| Execution { fail_fast: true, ..execution };
    let mut world = World::with(&["a", "cleanup", "b", "c"], &["a!cleanup"], fast);
    world.fail("a");
    world.succeed("cleanup");
    world.fail("b");
    assert_eq!((world.state("c"), world.execution()), (State::Canceled, ExecutionState::Failed));
    let retried = transition::manual_retry(&world.task("a"), false, &Actor::default(), T0).expect("failed");
    world.work.reopen(retried, T0).expect("reopens");
    assert_eq!(world.state("c"), State::Canceled, "b still stands");
    world.work.retry_failed(BTreeMap::new(), &Actor::default(), T0).expect("loaded");
    assert_eq!((world.state("b"), world.state("c")), (State::Pending, State::Pending));
}

/// F1-12, E7: a parent that was canceled for having nothing left to work for has it again.
#[test]
fn a_reopening_brings_back_dead_ends_above() {
    let on = |execution| Execution { dead_end_cancel: true, ..execution };
    let mut world = World::with(&["top", "mid", "leaf", "other"], &["top>mid", "mid>leaf", "other>leaf f"], on);
    world.fail("other");
    assert_eq!(["top", "mid"].map(|name| world.task(name).reason), [Some(Reason::DeadEnd); 2]);
    let retried = transition::manual_retry(&world.task("other"), false, &Actor::default(), T0).expect("failed");
    world.work.reopen(retried, T0).expect("reopens");
    let states = ["top", "mid", "leaf", "other"].map(|name| world.state(name));
    assert_eq!(states, [State::Pending, State::Waiting, State::Waiting, State::Pending]);
    for name in ["top", "mid", "other", "leaf"] {
        world.succeed(name);
    }
    assert_eq!(world.execution(), ExecutionState::Succeeded);
}

/// T21: an execution that failed only because somebody canceled has nothing to try again.
#[test]
fn a_reopening_without_a_failure_changes_nothing() {
    let mut world = World::new(&["a"], &[]);
    world.cancel("a");
    assert_eq!(world.execution(), ExecutionState::Failed);
    let before = world.work.execution().clone();
    world.work.retry_failed(BTreeMap::new(), &Actor::default(), T0).expect("loaded");
    assert_eq!((world.work.execution(), world.state("a")), (&before, State::Canceled));
}

/// E7: what comes after a task that is tried again waits for it, with a budget of its own.
#[test]
fn a_failed_handler_waits_for_the_task_it_handles() {
    let failed = |policy: Option<Policy>| {
        let mut world = World::new(&["a", "handler", "late"], &["a!handler", "handler!late"]);
        world.fail("a");
        world.settle("handler", End::Failed(error("x")), policy);
        world.fail("late");
        assert_eq!(world.execution(), ExecutionState::Failed);
        world
            .work
            .retry_failed(BTreeMap::new(), &Actor { by: Some("ana".into()), ..Actor::default() }, T0)
            .expect("reopens");
        world
    };
    let mut world = failed(Some(native(json!({"max_retries": 0}))));
    let states = ["a", "handler", "late"].map(|name| (world.state(name), world.task(name).cycle));
    assert_eq!(states, [(State::Pending, 1), (State::Waiting, 1), (State::Waiting, 1)]);
    world.succeed("a");
    assert_eq!((world.state("handler"), world.state("late")), (State::Skipped, State::Skipped));
    assert_eq!(world.execution(), ExecutionState::Succeeded);
    let mut again = failed(None);
    again.fail("a");
    assert_eq!(again.state("handler"), State::Pending);
}

/// What another failure keeps from ever starting stays given up.
#[test]
fn a_reopening_does_not_wake_what_has_no_hope() {
    let mut world = World::new(&["a", "b", "c", "d"], &["a>c", "b>c", "c>d"]);
    world.fail("a");
    world.fail("b");
    assert_eq!((world.state("c"), world.state("d")), (State::Skipped, State::Skipped));
    let retried = transition::manual_retry(&world.task("a"), false, &Actor::default(), T0).expect("failed");
    world.work.reopen(retried, T0).expect("reopens");
    assert_eq!((world.state("c"), world.state("d")), (State::Skipped, State::Skipped), "b stays failed");
    world.succeed("a");
    assert_eq!(world.execution(), ExecutionState::Failed, "and so does the whole");
}

/// A child that had counted its parent's failure as met waits for that parent again.
#[test]
fn a_reopened_parent_is_waited_for_again() {
    let mut world = World::new(&["a", "b", "c"], &["a!c", "b>c"]);
    world.fail("a");
    assert_eq!(world.task("c").needs_left, 1);
    let retried = transition::manual_retry(&world.task("a"), false, &Actor::default(), T0).expect("failed");
    world.work.reopen(retried, T0).expect("reopens");
    assert_eq!(world.task("c").needs_left, 2);
    world.succeed("a");
    assert_eq!(world.state("c"), State::Skipped);
}

/// T26: a waiting task may wait for needs and time, both.
#[test]
fn a_need_that_is_met_early_still_waits_for_its_time() {
    let mut world = World::new(&["a", "b"], &["a>b"]);
    let late = T0 + Millis::from_secs(60);
    let (out, into) = world.edges("b");
    let mut work = Working::new(world.work.execution().clone());
    work.add(Task { start_at: Some(late), ..world.task("b") }, out, into);
    let (out, into) = world.edges("a");
    work.add(world.task("a"), out, into);
    world.work = work;
    assert_eq!(world.task("b").due(), None, "needs first");
    world.succeed("a");
    assert_eq!((world.state("b"), world.task("b").due()), (State::Waiting, Some(late)));
}

#[test]
fn the_graph_asks_for_what_it_has_not_seen() {
    let mut world = World::new(&["a", "b"], &["a>b"]);
    world.run("a");
    let (out, into) = world.edges("a");
    let mut partial = Working::new(world.work.execution().clone());
    partial.add(world.task("a"), out, into);
    let snapshot = Snapshot { task: world.task("a"), ..pending(None) };
    let halt = partial.apply(end(&snapshot, End::Succeeded { result: None }, T0), T0);
    let Err(Halt::Missing(missing)) = halt else { panic!("{halt:?}") };
    assert_eq!(missing.0.into_iter().collect::<Vec<_>>(), [world.names["b"]]);
}

/// One commit, in the order in which it happened: the parent's end comes before the child's beginning.
#[test]
fn a_commit_tells_its_events_in_order() {
    let mut world = World::new(&["a", "b"], &["a>b"]);
    world.succeed("a");
    let commit = world.work.into_commit();
    let kinds: Vec<&str> = commit.records.iter().flat_map(|record| &record.events).map(|kind| kind.word()).collect();
    assert_eq!(kinds, ["attempt.succeeded", "task.succeeded", "task.ready"]);
    assert_eq!(commit.writes.len(), 2);
    assert!(commit.executions.first().is_some_and(|write| write.after.open == 1));
}

/// E7: a task whose needs are open again waits for them, whoever asks for its retry.
#[test]
fn a_retry_waits_for_a_need_that_is_open_again() {
    let mut world = World::new(&["a", "handler"], &["a!handler"]);
    world.fail("a");
    world.fail("handler");
    for name in ["a", "handler"] {
        let retried = transition::manual_retry(&world.task(name), false, &Actor::default(), T0).expect("failed");
        world.work.reopen(retried, T0).expect("reopens");
    }
    let handler = world.task("handler");
    assert_eq!((world.state("a"), handler.state), (State::Pending, State::Waiting));
    assert_eq!((handler.needs_left, handler.cycle, handler.class), (1, 1, None));
    world.fail("a");
    assert_eq!(world.state("handler"), State::Pending);
}

/// A task that could only run against its needs is not retried; the others are.
#[test]
fn a_retry_is_refused_where_a_need_can_never_be_met() {
    let mut world = World::new(&["a", "b", "c"], &["a>b f"]);
    world.cancel("a");
    assert_eq!(world.task("b").reason, Some(Reason::UpstreamFailed));
    let retried = transition::manual_retry(&world.task("b"), false, &Actor::default(), T0).expect("failed");
    let halt = world.work.reopen(retried, T0);
    assert!(matches!(halt, Err(Halt::Rejected(Rejection::WrongState { state: State::Failed, .. }))), "{halt:?}");

    let expire = |world: &mut World, name: &str| {
        let task = Task { expires_at: Some(T0), ..world.task(name) };
        world.work.apply(transition::expire(&task, false, T0).expect("due"), T0).expect("loaded");
    };
    let mut world = World::new(&["a", "b", "c"], &["a>b"]);
    expire(&mut world, "b");
    world.cancel("a");
    world.fail("c");
    world.work.retry_failed(BTreeMap::new(), &Actor::default(), T0).expect("loaded");
    let states = ["a", "b", "c"].map(|name| world.state(name));
    assert_eq!(states, [State::Canceled, State::Dead, State::Pending]);

    let mut world = World::new(&["a", "b"], &["a>b"]);
    expire(&mut world, "b");
    world.cancel("a");
    world.work.retry_failed(BTreeMap::new(), &Actor::default(), T0).expect("loaded");
    assert_eq!((world.state("b"), world.execution()), (State::Dead, ExecutionState::Failed));
}

/// A loop that had failed for its rounds, and a step behind it that was skipped.
fn failed_loop(failed: &[&str]) -> World {
    let mut world =
        World::new(&["list", "r0", "r1", "loop", "after"], &["list>loop", "r0*loop", "r1*loop", "loop>after"]);
    world.succeed("list");
    for round in ["r0", "r1"] {
        if failed.contains(&round) { world.fail(round) } else { world.succeed(round) }
    }
    world.settle("loop", End::Failed(Failure::of_rounds("a round failed")), Some(native(json!({"max_retries": 5}))));
    assert_eq!((world.state("loop"), world.task("loop").reason), (State::Failed, Some(Reason::Rounds)));
    assert_eq!((world.state("after"), world.execution()), (State::Skipped, ExecutionState::Failed));
    world
}

#[test]
fn a_loop_is_mended_by_its_round_by_itself_or_by_the_whole() {
    let retried = |world: &World, name: &str| {
        transition::manual_retry(&world.task(name), false, &Actor::default(), T0).expect("it failed")
    };
    for way in ["r1", "loop", "whole"] {
        let mut world = failed_loop(&["r1"]);
        match way {
            "whole" => world.work.retry_failed(BTreeMap::new(), &Actor::default(), T0).expect("loaded"),
            name => world.work.reopen(retried(&world, name), T0).expect("reopens"),
        }
        assert_eq!((world.state("r0"), world.state("r1")), (State::Succeeded, State::Pending), "{way}");
        assert_eq!((world.state("loop"), world.state("after")), (State::Waiting, State::Waiting), "{way}");
        world.succeed("r1");
        assert_eq!(world.state("loop"), State::Pending, "{way}");
        world.succeed("loop");
        assert_eq!(world.state("after"), State::Pending, "{way}");
    }
    let mut both = failed_loop(&["r0", "r1"]);
    both.work.reopen(retried(&both, "r0"), T0).expect("reopens");
    assert_eq!(
        (both.state("r0"), both.state("r1"), both.state("loop")),
        (State::Pending, State::Failed, State::Waiting)
    );
}

#[test]
fn what_stands_for_an_execution_is_taken_up_with_all_that_was_given_up_for_it() {
    let mut world = World::new(&["call", "after"], &["call>after"]);
    world.fail("call");
    let mended = ExecutionId(Uuid::from_u128(7));
    let change = transition::take_up(&world.task("call"), mended, None, &"one".into(), &Actor::default(), T0)
        .expect("it failed");
    world.work.take_up(change, &Actor::default(), T0).expect("loaded");
    assert_eq!((world.state("call"), world.state("after")), (State::Running, State::Waiting));
    assert_eq!((world.task("call").run, world.task("call").cycle), (2, 1));
    assert_eq!((world.execution(), world.work.execution().open), (ExecutionState::Running, 2));
}
