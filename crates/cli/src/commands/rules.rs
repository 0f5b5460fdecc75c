//! Admission rules: how many tasks of one sort may run at once.

use serde_json::{Map, Value, json};

use super::Context;
use crate::args::{RuleArgs, RuleCommand};
use crate::failure::{Failure, code};
use crate::output::{self, Table, View, say};

pub async fn run(context: &Context, command: RuleCommand) -> Result<u8, Failure> {
    match command {
        RuleCommand::Put(args) => put(context, args).await,
        RuleCommand::List => list(context).await,
        RuleCommand::Show { name } => show(context, &name).await,
        RuleCommand::Delete { name } => {
            context.client.delete(&address(&name)).await?;
            say!("rule {name} is gone; it holds nothing any more");
            Ok(code::OK)
        }
    }
}

fn address(name: &str) -> String {
    format!("/api/v1/rules/{}", super::escaped(name))
}

async fn put(context: &Context, args: RuleArgs) -> Result<u8, Failure> {
    let mut matched = Map::new();
    for (field, value) in [("queue", args.queue), ("kind", args.kind)] {
        if let Some(value) = value {
            matched.insert(field.into(), value.into());
        }
    }
    let mut labels = Map::new();
    for label in &args.labels {
        let (name, value) = label.split_once('=').ok_or_else(|| {
            Failure::new(code::USAGE, format!("`{label}` is no label"))
                .why("it has no equals sign between a name and a value")
                .remedy("--label name=value")
        })?;
        labels.insert(name.into(), value.into());
    }
    if !labels.is_empty() {
        matched.insert("labels".into(), labels.into());
    }
    let mut body = json!({"match": matched, "per": args.per});
    for (field, value) in [("max_running", args.max_running), ("capacity", args.capacity)] {
        if let Some(value) = value {
            body[field] = value.into();
        }
    }
    if args.fair {
        body["fair"] = true.into();
    }
    let rule = context.client.put(&address(&args.name), &body).await?;
    shown(context, rule)
}

async fn show(context: &Context, name: &str) -> Result<u8, Failure> {
    let rule = context.client.get(&address(name)).await?;
    shown(context, rule)
}

fn shown(context: &Context, rule: Value) -> Result<u8, Failure> {
    let mut view = View::new(rule.clone());
    view.line(format!("rule {}: {} {}", output::text(&rule, "name"), limit(&rule), about(&rule)));
    let used = rule["used"].as_array().cloned().unwrap_or_default();
    for it in &used {
        let values: Vec<&str> = it["per"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let of = if values.is_empty() { String::new() } else { format!("{}: ", values.join(", ")) };
        view.line(format!("  {of}{}", in_use(&rule, it)));
    }
    if used.is_empty() {
        view.line("  nothing runs under it");
    }
    view.print(&context.out)
}

fn in_use(rule: &Value, used: &Value) -> String {
    match (&rule["max_running"], &rule["capacity"]) {
        (Value::Null, Value::Null) => format!("{} running", used["running"]),
        (Value::Null, capacity) => format!("{} of {capacity} used by {} running", used["weight"], used["running"]),
        (most, _) => format!("{} of {most} running", used["running"]),
    }
}

/// What it allows.
fn limit(rule: &Value) -> String {
    match (&rule["max_running"], &rule["capacity"]) {
        (Value::Null, Value::Null) => "fair".to_owned(),
        (Value::Null, capacity) => format!("capacity {capacity}"),
        (most, _) => format!("{most} at once"),
    }
}

/// Which tasks it is about.
fn about(rule: &Value) -> String {
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
    if per.is_empty() { what } else { format!("{what}, for each {}", per.join(" and ")) }
}

async fn list(context: &Context) -> Result<u8, Failure> {
    let rules = context.client.get("/api/v1/rules").await?;
    let mut table = Table::new(&["NAME", "ALLOWS", "OF", "RUNNING"]);
    for it in output::items(&rules) {
        let running: u64 = it["used"].as_array().into_iter().flatten().filter_map(|it| it["running"].as_u64()).sum();
        table.rows.push(vec![
            output::text(it, "name").into(),
            limit(it).into(),
            about(it).trim_start_matches("of ").to_owned().into(),
            running.to_string().into(),
        ]);
    }
    let empty = table.rows.is_empty();
    let view = View::table(rules, table);
    let hint = "no rules: whoever asks for work gets it; comeback rule put NAME --max-running 5";
    if empty { view.with_hint(hint).print(&context.out) } else { view.print(&context.out) }
}
