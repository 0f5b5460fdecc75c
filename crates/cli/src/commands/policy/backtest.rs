//! Back-test: a policy replayed on the failures that the server recorded.

use comeback_core::Millis;
use serde_json::{Value, json};

use crate::args::BacktestArgs;
use crate::commands::resource::object;
use crate::commands::{Context, typed_policy};
use crate::error::CliError;
use crate::output::{self, Cell, Paint, Table, View, grouped, plural, span};

pub async fn run(context: &Context, args: BacktestArgs) -> Result<u8, CliError> {
    let body = object([
        ("policy", Some(typed_policy(&args.policy.policy))),
        ("dialect", Some(args.policy.dialect.into())),
        ("within", Some(json!(args.within))),
        ("filter", Some(args.filter.join(" ").into())),
        ("limit", args.limit.map(Value::from)),
    ]);
    let found = context.client.post("/api/v1/policies/backtest", &body).await?;
    comparison(found, &args.within).print(&context.out)
}

fn number(of: &Value, name: &str) -> u64 {
    of[name].as_u64().unwrap_or(0)
}

/// Recorded and simulated outcome side by side.
fn comparison(found: Value, within: &str) -> View {
    if number(&found, "tasks") == 0 {
        return View::message(found, format!("no task failed within {within}"));
    }
    let (was, is) = (found["recorded"].clone(), found["candidate"].clone());
    let (tasks, unknown) = (number(&found, "tasks"), number(&found, "unknown"));
    let mut table = Table::new(&["", "ACTUAL", "SIMULATED"]);
    let mut row = |title: &str, was: Cell, is: Cell| table.rows.push(vec![title.into(), was, is]);
    let share = |count: u64| format!("{} ({} %)", grouped(count), (count as f64 * 100.0 / tasks as f64).round());
    let known = number(&is, "recovered");
    let by_hand = number(&found, "by_hand");
    row(
        "recovered",
        match by_hand {
            0 => share(number(&was, "recovered")).into(),
            some => format!("{}, {} manually", share(number(&was, "recovered")), grouped(some)).into(),
        },
        match unknown {
            0 => share(known).into(),
            more => format!("at least {}, {} unknown", share(known), grouped(more)).into(),
        },
    );
    for (title, name) in [("given up", "given_up"), ("open", "open")] {
        row(title, grouped(number(&was, name)).into(), grouped(number(&is, name)).into());
    }
    let less = ["retries", "wasted", "cost", "peak_per_minute"];
    for (title, name) in ["retries", "failed retries", "credits", "peak per minute"].into_iter().zip(less) {
        let (before, after) = (number(&was, name), number(&is, name));
        if name != "cost" || before + after > 0 {
            row(title, grouped(before).into(), compared(before, after));
        }
    }
    let took = |of: &Value, name: &str| of[name].as_u64().map_or("–".to_owned(), |ms| span(Millis(ms)));
    for (title, name) in [("median recovery", "recovery_p50_ms"), ("p95 recovery", "recovery_p95_ms")] {
        row(title, took(&was, name).into(), took(&is, name).into());
    }
    let sample = if found["complete"] == false { " (the most recently changed)" } else { "" };
    let mut hint = format!("{} failed within {within}{sample}", plural(tasks, "task"));
    for (name, words) in
        [("lost", "recovered but would have been given up"), ("won", "would have recovered without manual retries")]
    {
        let count = number(&found[name], "count");
        if count > 0 {
            let ids: Vec<String> =
                found[name]["first"].as_array().into_iter().flatten().take(3).map(output::short).collect();
            let more = if count > ids.len() as u64 { ", …" } else { "" };
            hint.push_str(&format!("; {} {words}: {}{more}", grouped(count), ids.join(", ")));
        }
    }
    View::table(found, table).with_hint(hint)
}

/// The simulated number with its change in percent; less is better, and green.
fn compared(before: u64, after: u64) -> Cell {
    if before == 0 || before == after {
        return grouped(after).into();
    }
    let change = (after as f64 - before as f64) * 100.0 / before as f64;
    let text = format!("{} ({change:+.0} %)", grouped(after));
    if after < before { Cell::painted(text, Paint::Green) } else { text.into() }
}
