//! Results of a policy backtest.

use std::collections::BTreeSet;

use comeback_core::TaskId;
use comeback_core::backtest::{OfError, PolicyResult};
use comeback_core::filter::fingerprint_to_hex;
use comeback_engine::BacktestResult;
use serde_json::{Value, json};

/// Maximum number of tasks and error groups listed.
const NAMED: usize = 20;
const MOST_ERRORS: usize = 50;
/// Maximum attempt number in the table of attempts.
const MOST_NUMBERS: usize = 100;

pub fn shown(tested: &BacktestResult) -> Value {
    let test = &tested.test;
    let arms = [&test.recorded, &test.candidate];
    let numbers: BTreeSet<u32> = arms.iter().flat_map(|arm| arm.attempts.keys().copied()).collect();
    let of_number = |arm: &PolicyResult, number| {
        let (tried, succeeded) = arm.attempts.get(&number).copied().unwrap_or_default();
        json!({"tried": tried, "succeeded": succeeded})
    };
    let instants: BTreeSet<_> = arms.iter().flat_map(|arm| arm.load.keys().copied()).collect();
    let at_instant = |arm: &PolicyResult, at| arm.load.get(&at).copied().unwrap_or(0);
    let mut errors: Vec<(&i64, &OfError)> = test.errors.iter().collect();
    errors.sort_by_key(|(_, it)| std::cmp::Reverse(it.tasks));
    json!({
        "since": tested.range.since.to_rfc3339(),
        "until": tested.range.until.to_rfc3339(),
        "complete": tested.complete,
        "tasks": test.tasks,
        "recorded": arm(&test.recorded),
        "candidate": arm(&test.candidate),
        "by_hand": test.by_hand,
        "unknown": test.unknown,
        "lost": some_of(&test.lost),
        "won": some_of(&test.won),
        "attempts": numbers.into_iter().take(MOST_NUMBERS).map(|number| json!({
            "number": number,
            "recorded": of_number(&test.recorded, number),
            "candidate": of_number(&test.candidate, number),
        })).collect::<Vec<_>>(),
        "bucket_ms": tested.range.fine.0,
        "load": instants.into_iter().map(|at| json!({
            "at": at.to_rfc3339(),
            "recorded": at_instant(&test.recorded, at),
            "candidate": at_instant(&test.candidate, at),
        })).collect::<Vec<_>>(),
        "errors": errors.into_iter().take(MOST_ERRORS).map(|(number, it)| json!({
            "fingerprint": fingerprint_to_hex(*number),
            "kind": it.face.kind,
            "title": it.face.title,
            "type": it.face.error_type,
            "code": it.face.code,
            "status": it.face.status,
            "tasks": it.tasks,
            "unknown": it.unknown,
            "recorded": arm(&it.recorded),
            "candidate": arm(&it.candidate),
        })).collect::<Vec<_>>(),
    })
}

fn arm(arm: &PolicyResult) -> Value {
    json!({
        "recovered": arm.recovered,
        "given_up": arm.gave_up,
        "open": arm.open,
        "retries": arm.retries,
        "wasted": arm.wasted,
        "cost": arm.cost,
        "recovery_p50_ms": arm.recovery_p50.map(|span| span.0),
        "recovery_p95_ms": arm.recovery_p95.map(|span| span.0),
        "peak_per_minute": arm.peak_per_minute,
    })
}

fn some_of(ids: &[TaskId]) -> Value {
    let first: Vec<String> = ids.iter().take(NAMED).map(ToString::to_string).collect();
    json!({"count": ids.len(), "first": first})
}
