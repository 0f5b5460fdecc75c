//! Admission rules: concurrency limits.

use serde_json::{Value, json};

use super::Context;
use super::resource::{Resource, labels, object};
use crate::args::{RuleArgs, RuleCommand};
use crate::error::{CliError, code};
use crate::output::{self, Table, View, outln};

const RULES: Resource = Resource { noun: "rule", collection: "/api/v1/rules" };

pub async fn run(context: &Context, command: RuleCommand) -> Result<u8, CliError> {
    match command {
        RuleCommand::Put(args) => {
            let name = args.name.clone();
            detail(RULES.put(context, &name, &body(args)?).await?).print(&context.out)
        }
        RuleCommand::List => list(context).await,
        RuleCommand::Get { name } => detail(RULES.get(context, &name).await?).print(&context.out),
        RuleCommand::Delete { name } => {
            RULES.delete(context, &name).await?;
            outln!("rule {name} deleted; it no longer limits anything");
            Ok(code::OK)
        }
    }
}

fn body(args: RuleArgs) -> Result<Value, CliError> {
    let matched = object([
        ("queue", args.queue.map(Value::from)),
        ("kind", args.kind.map(Value::from)),
        ("labels", labels(&args.labels)?),
    ]);
    Ok(object([
        ("match", Some(matched)),
        ("per", Some(json!(args.per))),
        ("max_running", args.max_running.map(Value::from)),
        ("capacity", args.capacity.map(Value::from)),
        ("fair", args.fair.then_some(json!(true))),
    ]))
}

fn detail(rule: Value) -> View {
    let mut lines = vec![format!("rule {}: {} {}", output::text(&rule, "name"), limit(&rule), scope(&rule))];
    for it in rule["used"].as_array().into_iter().flatten() {
        let values: Vec<&str> = it["per"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let of = if values.is_empty() { String::new() } else { format!("{}: ", values.join(", ")) };
        lines.push(format!("  {of}{}", usage(&rule, it)));
    }
    if lines.len() == 1 {
        lines.push("  no task runs under it".to_owned());
    }
    View::lines_of(rule, lines)
}

fn usage(rule: &Value, used: &Value) -> String {
    match (&rule["max_running"], &rule["capacity"]) {
        (Value::Null, Value::Null) => format!("{} running", used["running"]),
        (Value::Null, capacity) => format!("{} of {capacity} used by {} running", used["weight"], used["running"]),
        (most, _) => format!("{} of {most} running", used["running"]),
    }
}

/// The limit of a rule, in words.
fn limit(rule: &Value) -> String {
    match (&rule["max_running"], &rule["capacity"]) {
        (Value::Null, Value::Null) => "fair".to_owned(),
        (Value::Null, capacity) => format!("capacity {capacity}"),
        (most, _) => format!("max {most}"),
    }
}

/// The tasks a rule applies to, in words.
fn scope(rule: &Value) -> String {
    let matched = &rule["match"];
    let mut parts: Vec<String> = Vec::new();
    for field in ["queue", "kind"] {
        if let Some(value) = matched[field].as_str() {
            parts.push(format!("{field} {value}"));
        }
    }
    for (name, value) in matched["labels"].as_object().into_iter().flatten() {
        parts.push(format!("{name}={}", value.as_str().unwrap_or_default()));
    }
    let what = if parts.is_empty() { "of all tasks".to_owned() } else { format!("of {}", parts.join(", ")) };
    let per: Vec<&str> = rule["per"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if per.is_empty() { what } else { format!("{what}, per {}", per.join(" and ")) }
}

async fn list(context: &Context) -> Result<u8, CliError> {
    let rules = context.client.get(RULES.collection).await?;
    let mut table = Table::new(&["NAME", "ALLOWS", "OF", "RUNNING"]);
    for it in output::items(&rules) {
        let running: u64 = it["used"].as_array().into_iter().flatten().filter_map(|it| it["running"].as_u64()).sum();
        table.rows.push(vec![
            output::text(it, "name").into(),
            limit(it).into(),
            scope(it).trim_start_matches("of ").to_owned().into(),
            running.to_string().into(),
        ]);
    }
    let hint = "no rules, so concurrency is not limited; create one: comeback rule put NAME --max-running 5";
    View::table(rules, table).hint_if_empty(hint).print(&context.out)
}
