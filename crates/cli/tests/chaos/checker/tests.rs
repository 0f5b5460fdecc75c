//! The checker, on stories written by hand: one in which all is well, and the same with one thing wrong.

use comeback_core::{AttemptOutcome, EventKind, ExecutionState, State};
use serde_json::{Value, json};
use uuid::Uuid;

use super::check;
use crate::dump::{Body, Dump, EdgeRow, ExecutionRow, HistoryRow, Present};
use crate::history::{Answer, Call, Entry, Grant, Made, Run, What};
use crate::plan::{Jitter, Need, Planned, Retry, Step};

/// A history and the rows to go with it, to be spoilt.
#[derive(Default)]
struct World {
    entries: Vec<Entry>,
    dump: Dump,
    ops: u64,
}

const T0: i64 = 1_800_000_000_000;
const SPAN: i64 = 2_500;

fn id(n: u128) -> Uuid {
    Uuid::from_u128(n)
}

fn planned(external: &str) -> Planned {
    Planned {
        external: external.into(),
        retry: Some(Retry {
            max_retries: 1,
            max_lost: 2,
            initial_ms: 200,
            multiplier: 2,
            cap_ms: 1_000,
            jitter: Jitter::None,
        }),
        delay_ms: None,
        dedupe: None,
        needs: Vec::new(),
        steps: vec![Step::Fail { ms: 10 }],
    }
}

impl World {
    fn at(&mut self, ms: i64, client: &str, op: u64, what: What) {
        let (ns, wall) = (ms.cast_unsigned() * 1_000_000, T0 + ms);
        self.entries.push(Entry { ns, wall, client: client.into(), op, what });
    }

    /// Asked at one moment and answered at another, in milliseconds of the story.
    fn op(&mut self, from: i64, to: i64, client: &str, call: Call, end: What) -> u64 {
        self.ops += 1;
        let op = self.ops;
        self.at(from, client, op, What::Invoke(call));
        self.at(to, client, op, end);
        op
    }

    fn submit(&mut self, from: i64, key: Option<&str>, tasks: &[Planned], made: &[Uuid]) {
        let made = made.iter().map(|id| Made { id: *id, duplicate: false }).collect();
        let execution = tasks.iter().any(|task| !task.needs.is_empty()).then(|| id(99));
        let call = Call::Submit { key: key.map(str::to_owned), tasks: tasks.to_vec() };
        self.op(from, from + 5, "c0", call, What::Ok(Answer::Submitted { tasks: made, execution }));
    }

    /// A lease that is granted two milliseconds after it was asked for.
    fn lease(&mut self, from: i64, worker: &str, task: Uuid, run: u32) {
        let grant = Grant { run: Run { task, run }, expires_at: T0 + from + 2 + SPAN };
        let answer = What::Ok(Answer::Leased(vec![grant]));
        self.op(from, from + 4, worker, Call::Lease { span_ms: SPAN }, answer);
    }

    fn report(&mut self, from: i64, worker: &str, task: Uuid, run: u32, outcome: &str, end: What) {
        let call = Call::Report { run: Run { task, run }, outcome: outcome.into() };
        self.op(from, from + 4, worker, call, end);
    }

    fn act(&mut self, from: i64, verb: &str, task: Uuid, end: What) -> String {
        let note = format!("o0-{}", self.ops);
        let call = Call::Act { verb: verb.into(), task, note: note.clone() };
        self.op(from, from + 5, "o0", call, end);
        note
    }

    fn body(&mut self, task: Uuid, external: &str) -> &mut Body {
        let body = Body { id: task, external_id: Some(external.into()), submitted_at: T0, ..Body::default() };
        self.dump.bodies.push(body);
        self.dump.bodies.last_mut().expect("it")
    }

    fn present(&mut self, task: Uuid, state: State, seq: u32, attempt: u32, run: u32) {
        let present = Present { id: task, state: state.code(), seq, attempt, run, ..Present::default() };
        self.dump.presents.push(present);
    }

    fn row(&mut self, task: Uuid, seq: u32, events: &[EventKind], at: i64, run: u32) -> &mut HistoryRow {
        let events = EventKind::pack(events).iter().map(|byte| format!("{byte:02x}")).collect();
        let row = HistoryRow { subject: task, seq, events, at: T0 + at, run, lease_no: run, ..HistoryRow::default() };
        self.dump.history.push(row);
        self.dump.history.last_mut().expect("it")
    }

    fn follow(&mut self, from: i64, events: &[(Uuid, u32, EventKind)]) {
        let events = events.iter().map(|(id, seq, kind)| (*id, *seq, kind.word().to_owned())).collect();
        let answer = What::Ok(Answer::Followed { next: None, events });
        self.op(from, from + 5, "f0", Call::Follow { after: None }, answer);
    }

    fn found(&self) -> Vec<&'static str> {
        let mut entries = self.entries.clone();
        entries.sort_by_key(|entry| entry.ns);
        let mut promises: Vec<&str> =
            check(&entries, &self.dump).into_iter().map(|violation| violation.promise).collect();
        promises.dedup();
        promises
    }

    #[track_caller]
    fn must_find(&self, promise: &str) {
        let found = self.found();
        assert!(found.contains(&promise), "{promise} is not in {found:?}");
    }
}

fn state(state: State) -> What {
    What::Ok(Answer::State(state.word().into()))
}

fn retry_decision(at: i64, delay: u64) -> Value {
    json!({
        "verdict": "retry", "reason": "retry", "at": T0 + at, "before": {}, "after": {"attempt": 1}, "max_retries": 1,
        "delay": {"strategy": "exponential", "n": 0, "base_ms": delay, "total_ms": delay},
        "next_retry_at": T0 + at + delay.cast_signed(),
    })
}

const TASK: u128 = 7;

/// One task: fails once, waits, succeeds. Everything is as it should be.
fn well() -> World {
    use EventKind::*;
    let mut world = World::default();
    let task = id(TASK);
    world.submit(0, Some("k"), &[planned("x")], &[task]);
    world.body(task, "x");
    world.lease(10, "w1.1", task, 1);
    world.report(30, "w1.1", task, 1, "failed", state(State::RetryPending));
    let first = world.row(task, 3, &[AttemptStarted, AttemptFailed, TaskRetryScheduled], 32, 1);
    first.started_at = Some(T0 + 12);
    first.outcome = Some(AttemptOutcome::Failed.code());
    first.worker = Some("w1.1".into());
    first.attempt = 1;
    first.decision = Some(retry_decision(32, 200).to_string());
    world.lease(240, "w2.1", task, 2);
    world.report(260, "w2.1", task, 2, "succeeded", state(State::Succeeded));
    let second = world.row(task, 6, &[TaskRetryDue, AttemptStarted, AttemptSucceeded, TaskSucceeded], 262, 2);
    second.ready_at = Some(T0 + 233);
    second.started_at = Some(T0 + 242);
    second.outcome = Some(AttemptOutcome::Succeeded.code());
    second.worker = Some("w2.1".into());
    second.attempt = 1;
    world.present(task, State::Succeeded, 9, 1, 2);
    let told = [
        TaskCreated,
        TaskReady,
        AttemptStarted,
        AttemptFailed,
        TaskRetryScheduled,
        TaskRetryDue,
        AttemptStarted,
        AttemptSucceeded,
        TaskSucceeded,
    ];
    let told: Vec<_> = (1..).zip(told).map(|(seq, kind)| (task, seq, kind)).collect();
    world.follow(300, &told);
    world
}

/// Two tasks in an execution; the second needs the first.
fn graph() -> World {
    use EventKind::*;
    let mut world = World::default();
    let (first, second, execution) = (id(1), id(2), id(99));
    let mut tasks = [planned("x-0"), planned("x-1")];
    tasks[1].needs.push(Need { place: 0, when: "success".into() });
    world.submit(0, None, &tasks, &[first, second]);
    for (task, name) in [(first, "x-0"), (second, "x-1")] {
        world.body(task, name).execution_id = Some(execution);
    }
    let mut seq = 1;
    let mut row = |world: &mut World, subject: Uuid, events: &[EventKind], at: i64, run: u32| {
        let row = world.row(subject, seq, events, at, run);
        row.execution_id = Some(execution);
        row.worker = Some("w1.1".into());
        row.started_at = events.contains(&AttemptStarted).then_some(T0 + at);
        row.outcome = events.contains(&TaskSucceeded).then_some(AttemptOutcome::Succeeded.code());
        seq += events.len() as u32;
    };
    row(&mut world, execution, &[ExecutionCreated], 0, 0);
    row(&mut world, first, &[TaskCreated, TaskReady], 0, 0);
    row(&mut world, second, &[TaskCreated], 0, 0);
    row(&mut world, execution, &[ExecutionStarted], 12, 0);
    row(&mut world, first, &[AttemptStarted], 12, 1);
    row(&mut world, first, &[AttemptSucceeded, TaskSucceeded], 32, 1);
    row(&mut world, second, &[TaskReady], 32, 0);
    row(&mut world, second, &[AttemptStarted], 42, 1);
    row(&mut world, second, &[AttemptSucceeded, TaskSucceeded], 62, 1);
    row(&mut world, execution, &[ExecutionSucceeded], 62, 0);
    for (task, from) in [(first, 10), (second, 40)] {
        world.lease(from, "w1.1", task, 1);
        world.report(from + 20, "w1.1", task, 1, "succeeded", state(State::Succeeded));
        world.present(task, State::Succeeded, 0, 0, 1);
    }
    world.dump.edges.push(EdgeRow { from_id: first, met_when: 0 });
    let stored = ExecutionState::Succeeded.code();
    world.dump.executions.push(ExecutionRow { id: execution, state: stored, seq: seq - 1, total: 2, open: 0 });
    world
}

macro_rules! cases {
    ($(fn $name:ident() $body:block)+) => {
        $(fn $name() $body)+

        pub fn all() -> Vec<(&'static str, fn())> {
            vec![$((stringify!($name), $name)),+]
        }
    };
}

cases! {
    fn what_is_well_is_left_alone() {
        assert_eq!(well().found(), Vec::<&str>::new());
        assert_eq!(graph().found(), Vec::<&str>::new());
    }

    fn an_acknowledged_task_that_is_gone() {
        let mut world = well();
        world.submit(50, None, &[planned("y")], &[id(8)]);
        world.must_find("R-I1");
    }

    fn an_accepted_report_that_is_not_in_the_log() {
        let mut world = well();
        world.dump.history[0].outcome = Some(AttemptOutcome::Lost.code());
        world.must_find("R-I1");
    }

    fn an_acknowledged_act_that_is_not_in_the_log() {
        let mut world = well();
        world.act(40, "snooze", id(TASK), state(State::RetryPending));
        assert_eq!(world.found(), ["R-I1"]);
    }

    fn an_unknown_outcome_may_be_either() {
        let mut world = well();
        let unknown = || What::Info("reset".into());
        let call = Call::Submit { key: None, tasks: vec![planned("y")] };
        world.op(50, 60, "c0", call, unknown());
        world.act(40, "snooze", id(TASK), unknown());
        world.report(262, "w2.1", id(TASK), 2, "succeeded", unknown());
        assert_eq!(world.found(), Vec::<&str>::new());
    }

    fn half_a_batch() {
        let mut world = well();
        let call = Call::Submit { key: None, tasks: vec![planned("y"), planned("z")] };
        world.op(1, 2, "c0", call, What::Info("reset".into()));
        assert_eq!(world.found(), Vec::<&str>::new());
        world.body(id(8), "y");
        world.must_find("R-I2");
    }

    fn a_body_without_a_state() {
        let mut world = well();
        world.dump.presents.clear();
        world.must_find("R-I2");
    }

    fn one_key_and_two_tasks() {
        let mut world = well();
        world.submit(50, Some("k"), &[planned("x")], &[id(8)]);
        world.body(id(8), "x");
        world.present(id(8), State::Canceled, 2, 0, 0);
        world.must_find("R-I3");
    }

    fn one_key_for_two_requests() {
        let mut world = well();
        world.submit(50, Some("k"), &[planned("other")], &[id(TASK)]);
        world.must_find("R-I3");
    }

    fn two_open_tasks_with_one_dedupe_key() {
        let mut world = well();
        let mut tasks = [planned("x"), planned("y")];
        for task in &mut tasks {
            task.dedupe = Some("d".into());
        }
        for body in &mut world.dump.bodies {
            body.dedupe_key = Some("d".into());
        }
        world.entries.retain(|entry| !matches!(&entry.what, What::Invoke(Call::Submit { .. })));
        world.submit(0, None, &tasks[..1], &[id(TASK)]);
        assert_eq!(world.found(), Vec::<&str>::new());
        world.submit(50, None, &tasks[1..], &[id(8)]);
        world.must_find("R-I3");
    }

    fn two_workers_with_one_run() {
        let mut world = well();
        world.lease(11, "w3.1", id(TASK), 1);
        world.must_find("R-I4");
    }

    fn a_lease_that_was_taken_away() {
        let mut world = well();
        world.dump.history[0].outcome = Some(AttemptOutcome::Lost.code());
        world.must_find("R-I4");
    }

    fn a_second_lease_before_the_first_is_over() {
        let mut world = well();
        world.dump.history[0].at = T0 + 250;
        world.must_find("R-I4");
    }

    fn a_run_that_ended_by_a_word_nobody_gave() {
        let mut world = well();
        world.dump.history[1].outcome = Some(AttemptOutcome::Snoozed.code());
        world.must_find("R-I5");
    }

    fn a_refused_report_that_ended_the_run() {
        let mut world = well();
        world.entries.retain(|entry| entry.what != state(State::Succeeded));
        world.report(261, "w2.1", id(TASK), 2, "succeeded", What::Fail("LEASE_LOST".into()));
        world.entries.retain(|entry| !(entry.client == "w2.1" && entry.ns == 260_000_000));
        assert_eq!(world.found(), ["R-I5"]);
    }

    fn two_words_about_one_run() {
        let mut world = well();
        world.report(40, "w1.1", id(TASK), 1, "succeeded", state(State::Succeeded));
        world.must_find("R-I5");
    }

    fn a_sign_of_life_after_another_has_the_task() {
        let mut world = well();
        let run = Run { task: id(TASK), run: 1 };
        world.op(250, 255, "w1.1", Call::Heartbeat { run }, What::Ok(Answer::Extended(T0 + 30)));
        assert_eq!(world.found(), ["R-I5"]);
    }

    fn a_refused_act_that_was_done() {
        let mut world = well();
        let note = world.act(263, "resume", id(TASK), What::Fail("400".into()));
        world.dump.history[1].data = Some(json!({"note": note}).to_string());
        assert_eq!(world.found(), ["R-I5"]);
    }

    fn a_lease_that_the_log_does_not_know() {
        let mut world = well();
        world.lease(270, "w3.1", id(TASK), 3);
        world.must_find("R-I7");
    }

    fn more_retries_than_were_asked_for() {
        let mut world = well();
        for entry in &mut world.entries {
            if let What::Invoke(Call::Submit { tasks, .. }) = &mut entry.what {
                tasks[0].retry.as_mut().expect("a policy").max_retries = 0;
            }
        }
        assert_eq!(world.found(), ["R-I7"]);
    }

    fn a_task_that_was_over_and_goes_on() {
        use EventKind::*;
        let mut world = well();
        world.row(id(TASK), 10, &[TaskReady], 300, 2);
        world.dump.presents[0] = Present { state: State::Canceled.code(), seq: 11, ..world.dump.presents[0].clone() };
        world.row(id(TASK), 11, &[TaskCanceled], 300, 2);
        world.must_find("R-I8");
    }

    fn an_end_that_does_not_stand() {
        let mut world = well();
        world.dump.presents[0].state = State::Dead.code();
        world.must_find("R-I8");
    }

    fn an_end_that_is_told_again_after_somebody_asked_for_another_try() {
        let mut world = well();
        world.entries.retain(|entry| entry.client != "w1.1" || entry.ns < 20_000_000);
        world.report(200, "w1.1", id(TASK), 1, "failed", state(State::Failed));
        world.entries.retain(|entry| entry.client != "f0");
        let note = world.act(100, "retry", id(TASK), state(State::Pending));
        world.dump.history[1].data = Some(json!({"note": note}).to_string());
        world.must_find("R-I8");
        world.report(30, "w1.1", id(TASK), 1, "failed", What::Info("the server was killed".into()));
        assert!(!world.found().contains(&"R-I8"), "{:?}", world.found());
    }

    fn a_step_that_is_in_no_table() {
        use EventKind::*;
        let mut world = well();
        let events = EventKind::pack(&[AttemptStarted, TaskRetryDue, TaskRetryScheduled]);
        world.dump.history[0].events = events.iter().map(|byte| format!("{byte:02x}")).collect();
        world.must_find("R-I9");
    }

    fn a_start_before_its_time() {
        let mut world = well();
        world.dump.history[0].decision = Some(retry_decision(32, 300).to_string());
        world.must_find("R-I10");
    }

    fn a_worker_that_has_a_task_before_its_time() {
        let mut world = well();
        for entry in &mut world.entries {
            if entry.client == "w2.1" {
                entry.wall -= 1_000;
            }
        }
        assert_eq!(world.found(), ["R-I10"]);
    }

    fn a_first_start_before_its_time() {
        let mut world = well();
        for entry in &mut world.entries {
            if let What::Invoke(Call::Submit { tasks, .. }) = &mut entry.what {
                tasks[0].delay_ms = Some(100);
            }
        }
        assert_eq!(world.found(), ["R-I10"]);
    }

    fn a_delay_that_nobody_asked_for() {
        let mut world = well();
        world.dump.history[0].decision = Some(retry_decision(32, 190).to_string());
        assert_eq!(world.found(), ["R-I12"]);
    }

    fn a_child_that_does_not_wait() {
        let mut world = graph();
        for entry in &mut world.entries {
            if let What::Invoke(Call::Submit { tasks, .. }) = &mut entry.what {
                tasks[1].needs[0].when = "failure".into();
            }
        }
        assert_eq!(world.found(), ["R-I13"]);
    }

    fn a_lease_of_a_paused_task() {
        let mut world = well();
        let note = world.act(100, "pause", id(TASK), state(State::Paused));
        world.dump.history[0].data = Some(json!({"note": note}).to_string());
        assert_eq!(world.found(), ["R-I16"]);
        let note = world.act(150, "resume", id(TASK), state(State::RetryPending));
        world.dump.history[1].data = Some(json!({"note": note}).to_string());
        assert_eq!(world.found(), Vec::<&str>::new());
    }

    fn a_cancel_that_does_not_stand() {
        let mut world = well();
        let note = world.act(100, "cancel", id(TASK), state(State::Canceled));
        world.dump.history[0].data = Some(json!({"note": note}).to_string());
        assert_eq!(world.found(), ["R-I17"]);
    }

    fn an_event_that_is_missing() {
        let mut world = well();
        world.dump.history.remove(0);
        world.must_find("R-I18");
        let mut world = graph();
        world.dump.history.remove(4);
        world.must_find("R-I18");
    }

    fn a_state_that_the_log_does_not_give() {
        let mut world = well();
        world.dump.presents[0].throttled = 1;
        assert_eq!(world.found(), ["R-I19"]);
        let mut world = graph();
        world.dump.executions[0].state = ExecutionState::Failed.code();
        assert_eq!(world.found(), ["R-I19"]);
    }

    fn an_event_that_the_feed_skips() {
        let mut world = well();
        for entry in &mut world.entries {
            if let What::Ok(Answer::Followed { events, .. }) = &mut entry.what {
                events.remove(4);
            }
        }
        assert_eq!(world.found(), ["R-I20"]);
    }

    fn events_in_the_wrong_order() {
        let mut world = well();
        for entry in &mut world.entries {
            if let What::Ok(Answer::Followed { events, .. }) = &mut entry.what {
                events.swap(3, 4);
            }
        }
        assert_eq!(world.found(), ["R-I20"]);
    }

    fn a_task_that_is_not_found_after_its_acknowledgement() {
        let mut world = well();
        world.op(50, 55, "c0", Call::Read { task: id(TASK) }, What::Fail("404 NOT_FOUND".into()));
        assert_eq!(world.found(), ["R-I24"]);
    }

    fn a_task_that_never_ends() {
        let mut world = well();
        world.dump.presents[0].state = State::Pending.code();
        world.must_find("liveness");
    }
}
