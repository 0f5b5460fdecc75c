//! Tasks, runs and verdicts in few words, shared by the tables.
#![allow(dead_code)]

use std::sync::Arc;

use comeback_core::*;
use comeback_core::{decide, dialect, guard, transition};
use serde_json::{Value, json};
use uuid::Uuid;

pub const T0: Timestamp = Timestamp(1_800_000_000_000);

pub fn id(n: u128) -> TaskId {
    TaskId(Uuid::from_u128(n))
}

pub fn policy(dialect: Dialect, value: &Value) -> Option<Policy> {
    dialect::parse(value, dialect, &PolicyLimits::default()).unwrap_or_else(|faults| panic!("{value}: {faults}"))
}

pub fn native(value: Value) -> Policy {
    policy(Dialect::Native, &value).expect("a policy")
}

/// A task that waits to be leased, with this policy.
pub fn pending(policy: Option<Policy>) -> Snapshot {
    let lane = Lane { kind: "test".into(), ..Lane::default() };
    let mut task = Task::new(id(0x0123_4567_89ab_7def_8123_4567_89ab_cdef), Arc::new(lane), T0);
    task.seq = 2;
    Snapshot {
        task,
        policy: policy.map(Arc::new),
        policy_id: Some(7),
        limits: PolicyLimits::default(),
        guard: guard::GuardView::default(),
    }
}

pub fn lease(snapshot: &Snapshot, now: Timestamp) -> Snapshot {
    let step = transition::lease(&snapshot.task, "w1", Millis::from_secs(60), now).expect("can be leased");
    assert_eq!(step.after.broken_invariant(), None);
    Snapshot { task: step.after, ..snapshot.clone() }
}

pub fn running(policy: Option<Policy>) -> Snapshot {
    lease(&pending(policy), T0)
}

pub fn end(snapshot: &Snapshot, end: End, now: Timestamp) -> Transition {
    let reporter = Reporter::Lease(snapshot.task.lease_number);
    let outcome = Outcome { reporter, end };
    let change = decide::decide(snapshot, &outcome, now).expect("may speak");
    assert_eq!(change.after().broken_invariant(), None);
    change
}

pub fn after(snapshot: &Snapshot, change: &Transition) -> Snapshot {
    Snapshot { task: change.after().clone(), ..snapshot.clone() }
}

/// Everything a retry needs: its time passes, it is promoted and leased again.
pub fn come_back(snapshot: &Snapshot) -> (Snapshot, Timestamp) {
    let due = snapshot.task.due().expect("has a due time");
    let step = transition::promote(&snapshot.task, due).expect("is due");
    assert_eq!(step.after.broken_invariant(), None);
    (lease(&Snapshot { task: step.after, ..snapshot.clone() }, due), due)
}

pub fn error(message: &str) -> Failure {
    Failure::new(Trigger::Error, message)
}

pub fn status(status: u16) -> Failure {
    Failure { status: Some(status), ..error("") }
}

pub fn class(class: Class) -> Failure {
    Failure { class: Some(class), ..error("") }
}

/// Fails a task with this policy until it ends; the delays on the way.
pub fn delays(policy: Option<Policy>, failure: &Failure) -> (Vec<Millis>, Snapshot) {
    let mut snapshot = running(policy);
    let mut now = T0;
    let mut delays = Vec::new();
    loop {
        let change = end(&snapshot, End::Failed(failure.clone()), now);
        snapshot = after(&snapshot, &change);
        if change.is_end() {
            return (delays, snapshot);
        }
        delays.push(snapshot.task.next_retry_at.expect("a retry is due").since(now));
        (snapshot, now) = come_back(&snapshot);
    }
}

pub fn json_of(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| json!(text))
}
