//! Policies: explained, simulated and linted here by the core; back-tested by the server.

mod backtest;

use std::sync::Arc;

use comeback_core::lint::lint;
use comeback_core::{
    Dialect, Failure as TaskFailure, Policy, PolicyLimits, TaskId, Timestamp, Trigger, dialect, explain, forecast,
};
use comeback_engine::{Clock, SystemClock};
use serde_json::json;

use super::{Context, typed_policy};
use crate::args::PolicyCommand;
use crate::error::{CliError, code};
use crate::output::{Cell, Output, Paint, View, span};

pub async fn run(
    context: impl Fn() -> Result<Context, CliError>,
    out: &Output,
    command: PolicyCommand,
) -> Result<u8, CliError> {
    let view = match command {
        PolicyCommand::Explain(args) => explained(read(&args.policy, &args.dialect)?.as_ref()),
        PolicyCommand::Simulate { policy, seed } => simulated(read(&policy.policy, &policy.dialect)?, seed),
        PolicyCommand::Lint(args) => linted(read(&args.policy, &args.dialect)?.as_ref(), out),
        PolicyCommand::Backtest(args) => return backtest::run(&context()?, args).await,
    };
    view.print(out)
}

fn read(text: &str, dialect_word: &str) -> Result<Option<Policy>, CliError> {
    let dialect = Dialect::from_word(dialect_word).ok_or_else(|| {
        CliError::new(code::USAGE, format!("unknown dialect `{dialect_word}`"))
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
        CliError::new(code::USAGE, format!("invalid policy `{text}`"))
            .why(faults.join("; "))
            .remedy("comeback help policies")
    })
}

fn explained(policy: Option<&Policy>) -> View {
    let words = explain::policy(policy);
    let mut view = View::new(json!({
        "policy": policy.map_or(json!(false), |policy| policy.to_json()), "words": words,
    }));
    words.into_iter().for_each(|line| view.line(line));
    view
}

fn simulated(policy: Option<Policy>, seed: Option<u64>) -> View {
    let now = Timestamp(0);
    let id = TaskId(seed.map_or_else(uuid::Uuid::now_v7, |seed| uuid::Uuid::from_u128(u128::from(seed))));
    let words = explain::policy(policy.as_ref());
    let failure = TaskFailure::new(Trigger::Error, "simulated");
    let coming = forecast::of_policy(policy.map(Arc::new), PolicyLimits::default(), &[failure.into()], id, now, 1_000);
    let attempts: Vec<_> =
        coming.attempts.iter().map(|it| json!({"number": it.number, "after_ms": it.at.since(now).0})).collect();
    let then = coming.then.map(|(state, reason)| json!({"state": state.word(), "reason": reason.word()}));
    let mut view = View::new(json!({"words": words, "attempts": attempts, "then": then}));
    words.into_iter().for_each(|line| view.line(line));
    view.line("");
    let mut before = now;
    for it in &coming.attempts {
        let (after, since) = (span(it.at.since(now)), span(it.at.since(before)));
        view.line(match it.number {
            1 => "  attempt   1   at once".to_owned(),
            number => format!("  attempt {number:>3}   after {after:<10}  +{since}"),
        });
        before = it.at;
    }
    view.line(match coming.then {
        Some((state, reason)) => {
            let reason = reason.word();
            format!("  then {state} ({reason}), {} after the first attempt", span(before.since(now)))
        }
        None => "  … and so on".to_owned(),
    });
    view
}

fn linted(policy: Option<&Policy>, out: &Output) -> View {
    let found = lint(policy, &PolicyLimits::default(), SystemClock::new().now());
    let mut view = View::new(json!({"items": found}));
    for advice in &found {
        view.line(format!("{} {}: {}", Cell::painted("!", Paint::Yellow).show(out), advice.code, advice.what));
        view.line(format!("  do: {}", advice.instead));
    }
    if found.is_empty() {
        view.line(format!("{} no findings", Cell::painted("✓", Paint::Green).show(out)));
    } else {
        view.code = code::ATTENTION;
    }
    view
}
