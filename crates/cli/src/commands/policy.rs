//! Policies: read here, without a server, by the same core.

use std::sync::Arc;

use comeback_core::{
    Dialect, Failure as TaskFailure, Policy, PolicyLimits, TaskId, Timestamp, Trigger, dialect, explain, forecast,
};
use serde_json::json;

use super::typed_policy;
use crate::args::PolicyCommand;
use crate::failure::{Failure, code};
use crate::output::{self, say};

pub fn run(as_json: bool, command: PolicyCommand) -> Result<u8, Failure> {
    match command {
        PolicyCommand::Explain { policy, dialect } => {
            let policy = read(&policy, &dialect)?;
            if as_json {
                output::json(&policy.as_ref().map_or(json!(false), |policy| policy.to_json()));
                return Ok(code::OK);
            }
            for line in explain::policy(policy.as_ref()) {
                say!("{line}");
            }
        }
        PolicyCommand::Simulate { policy, dialect, seed } => simulate(as_json, read(&policy, &dialect)?, seed),
    }
    Ok(code::OK)
}

fn read(text: &str, dialect_word: &str) -> Result<Option<Policy>, Failure> {
    let dialect = Dialect::from_word(dialect_word).ok_or_else(|| {
        Failure::new(code::USAGE, format!("`{dialect_word}` is no dialect"))
            .remedy("--dialect native, workflow, task, job, run or step")
    })?;
    dialect::parse(&typed_policy(text), dialect, &PolicyLimits::default()).map_err(|invalid| {
        let faults: Vec<String> = invalid
            .faults
            .iter()
            .map(|fault| {
                if fault.path.is_empty() { fault.message.clone() } else { format!("{}: {}", fault.path, fault.message) }
            })
            .collect();
        Failure::new(code::USAGE, format!("`{text}` is no policy")).why(faults.join("; "))
    })
}

fn simulate(as_json: bool, policy: Option<Policy>, seed: Option<u64>) {
    let now = Timestamp(0);
    let id = TaskId(seed.map_or_else(uuid::Uuid::now_v7, |seed| uuid::Uuid::from_u128(u128::from(seed))));
    let words = explain::policy(policy.as_ref());
    let failure = TaskFailure::new(Trigger::Error, "as assumed");
    let coming = forecast::of_policy(policy.map(Arc::new), PolicyLimits::default(), &[failure.into()], id, now, 1_000);
    if as_json {
        let attempts: Vec<_> =
            coming.attempts.iter().map(|it| json!({"number": it.number, "after_ms": it.at.since(now).0})).collect();
        output::json(&json!({"words": words, "attempts": attempts}));
        return;
    }
    for line in words {
        say!("{line}");
    }
    say!("");
    let mut before = now;
    for it in &coming.attempts {
        say!(
            "  attempt {:>3}   after {:<10}  +{}",
            it.number,
            output::span(it.at.since(now)),
            output::span(it.at.since(before))
        );
        before = it.at;
    }
    match coming.then {
        Some((state, reason)) => {
            say!("  then {} ({}), {} after the first try", state, reason.word(), output::span(before.since(now)))
        }
        None => say!("  and so on"),
    }
}
