//! The transition table: what is not in it cannot be made.

use comeback_core::transition::{self, Actor};
use comeback_core::*;
use serde_json::json;

use crate::common::*;

/// A task in each state, with what that state implies.
fn in_state(state: State) -> Task {
    let snapshot = pending(Some(native(json!({}))));
    let act = Actor::default();
    let change = |task: &Task| -> Task {
        match state {
            State::RetryPending => end(&running(Some(native(json!({})))), End::Failed(error("x")), T0).after().clone(),
            State::Paused => transition::pause(task, &act, T0).unwrap().after().clone(),
            State::Canceled => transition::cancel(task, Reason::Canceled, &act, T0).unwrap().after().clone(),
            State::Succeeded => end(&running(None), End::Succeeded { result: None }, T0).after().clone(),
            State::Failed => end(&running(None), End::Failed(error("x")), T0).after().clone(),
            State::Dead => {
                end(&running(Some(native(json!({"max_retries": 0})))), End::Failed(error("x")), T0).after().clone()
            }
            _ => task.clone(),
        }
    };
    match state {
        State::Pending => snapshot.task,
        State::Running => lease(&snapshot, T0).task,
        State::Claimed => {
            let mut hook = snapshot;
            hook.task.lane = std::sync::Arc::new(Lane { executor: Executor::Hook, ..Lane::default() });
            lease(&hook, T0).task
        }
        State::Waiting => Task { state: State::Waiting, needs_left: 1, ..snapshot.task },
        State::Skipped => {
            let waiting = Task { state: State::Waiting, needs_left: 1, ..snapshot.task };
            transition::skip(&waiting, T0).unwrap().after().clone()
        }
        _ => change(&snapshot.task),
    }
}

#[test]
fn each_verb_is_possible_from_its_own_states_only() {
    use State::*;
    let act = Actor::default();
    let late = T0 + Millis::from_secs(3_600);
    type Verb = Box<dyn Fn(&Task) -> Result<State, Rejection>>;
    let state = |change: Result<Transition, Rejection>| change.map(|it| it.after().state);
    let verbs: Vec<(&str, Vec<State>, Verb)> = vec![
        ("T4", vec![Waiting], Box::new(move |task| state(transition::skip(task, T0)))),
        ("T5", vec![Waiting], Box::new(move |task| state(transition::fail_upstream(task, error("x"), T0)))),
        ("T6", vec![Pending], Box::new(|task| transition::lease(task, "w", Millis(1), T0).map(|it| it.after.state))),
        ("T7", vec![Claimed], Box::new(move |task| state(transition::hook_started(task, Millis(1), T0)))),
        ("T14", vec![RetryPending], Box::new(move |task| transition::promote(task, late).map(|it| it.after.state))),
        ("T16", vec![Waiting, Pending, RetryPending, Claimed, Running], {
            let act = act.clone();
            Box::new(move |task| state(transition::pause(task, &act, T0)))
        }),
        ("T17", vec![Paused], {
            let act = act.clone();
            Box::new(move |task| state(transition::resume(task, &act, T0)))
        }),
        ("T18", vec![Waiting, Pending, RetryPending, Claimed, Running, Paused], {
            let act = act.clone();
            Box::new(move |task| state(transition::cancel(task, Reason::Canceled, &act, T0)))
        }),
        ("T19", vec![Failed, Dead, RetryPending], {
            let act = act.clone();
            Box::new(move |task| state(transition::manual_retry(task, false, &act, T0)))
        }),
        ("T19 stuck", vec![Failed, Dead, RetryPending, Claimed, Running], {
            let act = act.clone();
            Box::new(move |task| state(transition::manual_retry(task, false, &act, late)))
        }),
        ("T24", vec![Pending, RetryPending], {
            let act = act.clone();
            Box::new(move |task| state(transition::reschedule(task, late, &act, T0)))
        }),
        (
            "T28",
            vec![Canceled],
            Box::new(move |task| state(transition::late_result(task, 1, AttemptOutcome::Succeeded, T0))),
        ),
    ];
    for (name, allowed, verb) in &verbs {
        for state in State::ALL {
            let task = in_state(*state);
            assert_eq!(task.state, *state, "the test's own set-up");
            assert_eq!(verb(&task).is_ok(), allowed.contains(state), "{name} from {state}");
        }
    }
}

/// T21, I-10: no line leads out of a terminal state but a manual retry of a failure, and a note about a canceled one.
#[test]
fn terminal_is_final() {
    use TransitionKind::*;
    #[rustfmt::skip]
    let lines = [T1, T2, T3, T4, T5, T6, T7, T8, T9, T10, T11, T12, T13, T14, T15, T16, T17, T18, T19, T20, T22, T23, T24, T25, T26, T27, T28, T29];
    for line in lines {
        for from in State::ALL.iter().filter(|state| state.is_terminal()) {
            for to in State::ALL {
                let allowed = line.allows(*from, *to);
                let excused = (line == T19
                    && matches!(from, State::Failed | State::Dead)
                    && matches!(to, State::Pending | State::RetryPending))
                    || (line == T28 && *from == State::Canceled && *to == State::Canceled);
                assert_eq!(allowed, excused, "{line:?} {from} to {to}");
            }
        }
    }
}

/// X2-11: a manual retry starts a cycle; the life goes on.
#[test]
fn a_manual_retry_starts_a_new_cycle() {
    let (_, dead) = delays(Some(native(json!({"max_retries": 2}))), &error("x"));
    let act = Actor { by: Some("ana".into()), note: Some("fixed upstream".into()), ..Actor::default() };
    let change = transition::manual_retry(&dead.task, false, &act, T0 + Millis::from_days(1)).unwrap();
    let task = change.after();
    assert_eq!((task.state, task.cycle, task.run, task.counters), (State::Pending, 1, 3, Counters::default()));
    assert_eq!((task.ended_at, task.reason), (None, None));
    assert!(dead.task.class.is_some() && dead.task.fingerprint.is_some());
    assert_eq!((task.class, task.fingerprint), (None, None), "F2-8: the error is cleared");
    let events = change.record().expand();
    assert_eq!(events[0].kind, EventKind::TaskManualRetry);
    assert_eq!((events[0].data["by"].as_str(), events[0].data["note"].as_str()), (Some("ana"), Some("fixed upstream")));
    let kept = transition::manual_retry(&dead.task, true, &act, T0).unwrap();
    assert_eq!(kept.after().counters.attempt, 2);
}

/// The past is not moved: a stuck run that is given up was due when it was due.
#[test]
fn a_manual_retry_of_a_stuck_run_keeps_the_times_of_that_run() {
    let first = running(Some(native(json!({}))));
    let (again, due) = come_back(&after(&first, &end(&first, End::Failed(error("x")), T0)));
    let late = due + Millis::from_days(1);
    let change = transition::manual_retry(&again.task, false, &Actor::default(), late).unwrap();
    let told: Vec<_> = change.record().expand().iter().map(|event| (event.kind, event.at)).collect();
    use EventKind::*;
    assert_eq!(told, [(TaskRetryDue, due), (AttemptStarted, due), (TaskManualRetry, late), (TaskReady, late)]);
}

/// A deadline that has passed would end the new cycle at once.
#[test]
fn a_manual_retry_after_the_deadline_gets_the_span_again() {
    let mut task = in_state(State::Dead);
    task.expires_at = Some(T0 + Millis::from_secs(60));
    let now = T0 + Millis::from_days(2);
    let change = transition::manual_retry(&task, false, &Actor::default(), now).unwrap();
    assert_eq!(change.after().expires_at, Some(now + Millis::from_secs(60)));
    let later = now + Millis::from_days(2);
    let died = transition::expire(change.after(), false, later).unwrap();
    let again = transition::manual_retry(died.after(), false, &Actor::default(), later).unwrap();
    assert_eq!(again.after().expires_at, Some(later + Millis::from_secs(60)), "and the same span each time");
}

/// The policy's own deadline was taken over by the task, and is renewed with it.
#[test]
fn a_renewed_deadline_is_not_undone_by_the_policy() {
    let deadline = T0 + Millis::from_secs(60);
    let mut snapshot = pending(Some(native(json!({"delay": "1s", "expires_at": deadline.to_rfc3339()}))));
    snapshot.task.expires_at = Some(deadline);
    let died = transition::expire(&snapshot.task, false, deadline).unwrap();
    let now = T0 + Millis::from_days(1);
    let retried = transition::manual_retry(died.after(), false, &Actor::default(), now).unwrap();
    let running = lease(&after(&snapshot, &retried), now);
    let change = end(&running, End::Failed(error("x")), now);
    assert_eq!(change.after().state, State::RetryPending);
}

/// T27: when the deadline passes, by state.
#[test]
fn the_deadline_spares_what_runs_and_what_is_paused() {
    let now = T0 + Millis::from_secs(60);
    for state in State::ALL.iter().filter(|state| state.is_open()) {
        let mut task = in_state(*state);
        assert!(transition::expire(&task, true, now).is_err(), "{state}: no deadline, no expiry");
        task.expires_at = Some(now);
        let soft = transition::expire(&task, false, now);
        let hard = transition::expire(&task, true, now);
        let active = state.is_active();
        assert_eq!(soft.is_ok(), !active && *state != State::Paused, "{state}");
        assert_eq!(hard.is_ok(), *state != State::Paused, "{state}");
        if let Ok(change) = hard {
            assert_eq!((change.after().state, change.after().reason), (State::Dead, Some(Reason::Expired)));
            let expected =
                if *state == State::RetryPending { EventKind::TaskRetryExhausted } else { EventKind::TaskExpired };
            assert!(change.record().events.contains(&expected), "{state}");
        }
        if *state == State::Paused {
            let resumed = transition::resume(&task, &Actor::default(), now).unwrap();
            assert_eq!(resumed.after().state, State::Dead, "told at resume");
        }
    }
}

#[test]
fn pause_keeps_the_due_time_and_stops_only_the_timeout() {
    let retrying = in_state(State::RetryPending);
    let paused = transition::pause(&retrying, &Actor::default(), T0).unwrap().into_parts().0;
    assert_eq!(paused.next_retry_at, retrying.next_retry_at);
    assert_eq!(paused.due(), None, "nothing is due while paused");
    let late = T0 + Millis::from_days(3);
    let resumed = transition::resume(&paused, &Actor::default(), late).unwrap().into_parts().0;
    assert_eq!((resumed.state, resumed.next_retry_at), (State::RetryPending, retrying.next_retry_at));
    assert!(transition::promote(&resumed, late).is_ok(), "overdue means due at once");

    let mut timed = pending(None);
    timed.task.timeout = Some(Millis::from_secs(30));
    timed.task.attempt_deadline = Some(Millis::from_secs(20));
    let run = lease(&timed, T0).task;
    assert_eq!(run.timeout_at, Some(T0 + Millis::from_secs(20)), "the earlier limit wins");
    let paused = transition::pause(&run, &Actor::default(), T0).unwrap().into_parts().0;
    let absolute = Some(T0 + Millis::from_secs(20));
    assert_eq!(paused.timeout_at, absolute, "A14: an attempt's deadline goes on");
    let resumed = transition::resume(&paused, &Actor::default(), T0 + Millis::from_secs(5)).unwrap().into_parts().0;
    assert_eq!(resumed.timeout_at, absolute);
    let idle = Outcome { reporter: Reporter::Server, end: End::Failed(Failure::new(Trigger::Timeout, "too long")) };
    let late = Snapshot { task: paused, ..pending(Some(native(json!({})))) };
    let change = decide::decide(&late, &idle, T0 + Millis::from_secs(20)).unwrap();
    assert_eq!((change.after().state, change.after().paused_from), (State::Paused, Some(State::RetryPending)));

    timed.task.attempt_deadline = None;
    let run = lease(&timed, T0).task;
    let paused = transition::pause(&run, &Actor::default(), T0).unwrap().into_parts().0;
    assert_eq!(paused.timeout_at, None, "inactivity is not measured while paused");
    assert_eq!(transition::run_limit(&paused, T0), None, "nor does a heartbeat begin to");
    let resumed = transition::resume(&paused, &Actor::default(), T0 + Millis::from_secs(5)).unwrap().into_parts().0;
    assert_eq!(resumed.timeout_at, Some(T0 + Millis::from_secs(35)));
}

/// X0-8: what is past its deadline is not offered any more, whoever asks.
#[test]
fn a_retry_that_is_due_after_the_deadline_is_not_promoted() {
    let mut task = in_state(State::RetryPending);
    let due = task.due().unwrap();
    task.expires_at = Some(due + Millis(1));
    assert!(transition::promote(&task, due).is_ok());
    assert!(transition::promote(&task, due + Millis(1)).is_err());
    assert_eq!(transition::expire(&task, false, due + Millis(1)).unwrap().line(), TransitionKind::T15);
}

#[test]
fn an_operator_moves_the_due_time_without_touching_counters() {
    let act = Actor::default();
    let retrying = in_state(State::RetryPending);
    let at = T0 + Millis::from_days(2);
    let moved = transition::reschedule(&retrying, at, &act, T0).unwrap();
    assert_eq!((moved.after().next_retry_at, moved.after().counters), (Some(at), retrying.counters));
    let past = transition::reschedule(&retrying, Timestamp(0), &act, T0).unwrap();
    assert_eq!(past.after().next_retry_at, Some(T0), "never into the past");
    let delayed = Task { state: State::Waiting, start_at: Some(T0 + Millis(5)), ..pending(None).task };
    let moved = transition::reschedule(&delayed, at, &act, T0).unwrap();
    assert_eq!((moved.after().state, moved.after().start_at), (State::Waiting, Some(at)));
}

/// S4-31 to S4-44: three attempts, to success and to exhaustion, event by event.
#[test]
fn the_log_tells_the_whole_story_in_order() {
    let story = |last: End| -> Vec<&'static str> {
        let mut snapshot = running(Some(native(json!({"max_attempts": 3, "initial_delay": 1}))));
        let mut now = T0;
        let mut events = Vec::new();
        for _ in 0..2 {
            let change = end(&snapshot, End::Failed(status(503)), now);
            events.extend(change.record().expand());
            (snapshot, now) = come_back(&after(&snapshot, &change));
        }
        events.extend(end(&snapshot, last, now).record().expand());
        let numbers: Vec<u32> = events.iter().map(|event| event.seq).collect();
        assert!(numbers.iter().zip(3..).all(|(seq, expected)| *seq == expected), "gap-free from 3: {numbers:?}");
        events.iter().map(|event| event.kind.word()).collect()
    };
    let mut expected = vec!["attempt.started", "attempt.failed", "task.retry_scheduled"];
    expected.extend(["task.retry_due", "attempt.started", "attempt.failed", "task.retry_scheduled"]);
    expected.extend(["task.retry_due", "attempt.started"]);
    let mut good = expected.clone();
    good.extend(["attempt.succeeded", "task.succeeded"]);
    assert_eq!(story(End::Succeeded { result: None }), good);
    expected.extend(["attempt.failed", "task.retry_exhausted", "task.failed"]);
    assert_eq!(story(End::Failed(status(503))), expected);
}

/// S1-80: a start call that failed is tried again, and the second try may go well.
#[test]
fn a_hook_whose_start_failed_is_started_again() {
    let mut snapshot = pending(policy(Dialect::Task, &json!({"max_retries": 3})));
    snapshot.task.lane = std::sync::Arc::new(Lane { executor: Executor::Hook, ..Lane::default() });
    let claimed = lease(&snapshot, T0);
    let refused = Failure::new(Trigger::StartFailed, "connection refused");
    let outcome = Outcome { reporter: Reporter::Server, end: End::Failed(refused) };
    let change = decide::decide(&claimed, &outcome, T0).unwrap();
    assert_eq!((change.after().state, change.after().counters.attempt), (State::RetryPending, 1));
    let (again, now) = come_back(&after(&claimed, &change));
    let started = transition::hook_started(&again.task, Millis::from_secs(1_800), now).unwrap();
    let answer = Outcome { reporter: Reporter::Attempt(1), end: End::Succeeded { result: None } };
    let change = decide::decide(&after(&again, &started), &answer, now).unwrap();
    assert_eq!((change.after().state, change.after().counters.attempt), (State::Succeeded, 1));
}

/// S1-76: pending, claimed, running, retry_pending(1), … succeeded, for a hook.
#[test]
fn a_hook_goes_through_claimed() {
    let mut snapshot = pending(Some(native(json!({"max_retries": 3, "initial_delay": 10}))));
    snapshot.task.lane = std::sync::Arc::new(Lane { executor: Executor::Hook, ..Lane::default() });
    snapshot.task.timeout = Some(Millis::from_secs(30));
    let mut seen = vec![(snapshot.task.state, 0)];
    let mut now = T0;
    for round in 0..3 {
        let claimed = lease(&snapshot, now);
        seen.push((claimed.task.state, claimed.task.counters.attempt));
        let started = transition::hook_started(&claimed.task, Millis::from_secs(1_800), now).unwrap();
        let started = after(&claimed, &started);
        assert_eq!(started.task.lease.as_ref().and_then(|lease| lease.expires_at), None, "its timeout bounds it");
        seen.push((started.task.state, started.task.counters.attempt));
        now = started.task.timeout_at.expect("a timeout");
        let reporter = Reporter::Server;
        let finish = if round < 2 {
            End::Failed(Failure::new(Trigger::Timeout, "idle"))
        } else {
            End::Succeeded { result: None }
        };
        let change = decide::decide(&started, &Outcome { reporter, end: finish }, now).unwrap();
        seen.push((change.after().state, change.after().counters.attempt));
        if round < 2 {
            now = change.after().due().expect("due");
            let step = transition::promote(change.after(), now).unwrap();
            snapshot = Snapshot { task: step.after, ..snapshot };
            seen.push((snapshot.task.state, snapshot.task.counters.attempt));
        }
    }
    use State::*;
    #[rustfmt::skip]
    let expected = [
        (Pending, 0), (Claimed, 0), (Running, 0), (RetryPending, 1),
        (Pending, 1), (Claimed, 1), (Running, 1), (RetryPending, 2),
        (Pending, 2), (Claimed, 2), (Running, 2), (Succeeded, 2),
    ];
    assert_eq!(seen, expected);
}

/// X1-6: which run somebody means who names it by its number, by its attempt, or not at all.
#[test]
fn who_speaks_of_a_run_means_the_one_that_lasts_or_one_before_it() {
    use Reporter::{Anyone, Attempt, Run};
    let check = |state: State, run: u32, reporter: Reporter, lasts: bool, meant: Option<u32>| {
        let mut task = in_state(state);
        (task.run, task.counters.attempt) = (run, 1);
        let found = (task.is_meant_by(reporter), task.run_meant_by(reporter));
        assert_eq!(found, (lasts, meant), "{state} in run {run}: {reporter:?}");
    };
    check(State::Running, 2, Run(2), true, Some(2));
    check(State::Running, 2, Run(1), false, Some(1));
    check(State::Running, 2, Run(3), false, None);
    check(State::Running, 2, Attempt(1), true, Some(2));
    check(State::Running, 2, Attempt(0), false, None);
    check(State::Running, 3, Attempt(1), false, None);
    check(State::Running, 2, Anyone, true, Some(2));
    check(State::Claimed, 1, Run(2), true, Some(2));
    check(State::Claimed, 1, Attempt(1), true, Some(2));
    check(State::RetryPending, 1, Run(1), true, Some(1));
    check(State::RetryPending, 1, Anyone, true, None);
    check(State::Canceled, 1, Run(2), false, None);
}
