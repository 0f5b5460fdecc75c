//! Dependencies: guards that block tasks while an external service is in trouble, and manual overrides.

use serde_json::{Value, json};

use super::Context;
use super::resource::{Resource, object, read_json};
use crate::args::{BreakerArgs, DependencyCommand, PutDependencyArgs};
use crate::error::{CliError, code};
use crate::output::{self, Cell, Paint, Table, View, instant, outln};

const DEPENDENCIES: Resource = Resource { noun: "dependency", collection: "/api/v1/dependencies" };

pub async fn run(context: &Context, command: DependencyCommand) -> Result<u8, CliError> {
    match command {
        DependencyCommand::List => list(context).await,
        DependencyCommand::Get { name } => show(context, DEPENDENCIES.get(context, &name).await?).await,
        DependencyCommand::Put(args) => {
            show(context, DEPENDENCIES.put(context, &args.name, &settings(&args)?).await?).await
        }
        DependencyCommand::Open(args) => set_breaker(context, "open", args).await,
        DependencyCommand::Close(args) => set_breaker(context, "close", args).await,
        DependencyCommand::Healthy { name, note } => {
            set_breaker(context, "healthy", BreakerArgs { name, duration: None, note }).await
        }
        DependencyCommand::Maintenance { name, from, to, note } => {
            let body =
                object([("to", Some(to.into())), ("from", from.map(Value::from)), ("note", note.map(Value::from))]);
            show(context, DEPENDENCIES.act(context, &name, "maintenance", &body).await?).await
        }
        DependencyCommand::Delete { name } => {
            DEPENDENCIES.delete(context, &name).await?;
            outln!("dependency {name} deleted; it no longer blocks anything");
            Ok(code::OK)
        }
    }
}

async fn set_breaker(context: &Context, action: &str, args: BreakerArgs) -> Result<u8, CliError> {
    let body = object([("for", args.duration.map(Value::from)), ("note", args.note.map(Value::from))]);
    show(context, DEPENDENCIES.act(context, &args.name, action, &body).await?).await
}

fn settings(args: &PutDependencyArgs) -> Result<Value, CliError> {
    if let Some(text) = &args.settings {
        return read_json("--settings", text, r#"--settings '{"gate": {}}'"#);
    }
    let breaker = object([
        ("failures", args.failures.map(Value::from)),
        ("ratio", args.ratio.map(Value::from)),
        ("window", args.window.clone().map(Value::from)),
        ("open", args.open.clone().map(Value::from)),
        ("max_open", args.max_open.clone().map(Value::from)),
    ]);
    let floor = args.floor.map(Value::from);
    let target = args.target.clone().map(Value::from);
    Ok(object([
        ("gate", args.gate.then(|| json!({}))),
        ("breaker", args.breaker.then_some(breaker)),
        ("budget", args.budget.map(|percent| object([("percent", Some(percent.into())), ("floor", floor)]))),
        ("concurrency", args.concurrency.map(|max| object([("max", Some(max.into())), ("target", target)]))),
    ]))
}

fn state(it: &Value) -> Cell {
    match output::text(&it["breaker"], "state") {
        "closed" if it["blocked"].is_null() => Cell::painted("● closed", Paint::Green),
        "closed" => Cell::painted("⊘ held", Paint::Magenta),
        "open" => Cell::painted("⊘ open", Paint::Magenta),
        word => Cell::painted(format!("◐ {}", word.replace('_', " ")), Paint::Yellow),
    }
}

fn guards(it: &Value) -> String {
    let guards: Vec<&str> = it["settings"].as_object().into_iter().flatten().map(|(name, _)| name.as_str()).collect();
    if guards.is_empty() { "no guards".to_owned() } else { guards.join(", ") }
}

fn running(it: &Value) -> String {
    match it["max_running"].as_u64() {
        Some(most) => format!("{} of {most}", it["running"]),
        None => it["running"].to_string(),
    }
}

async fn show(context: &Context, it: Value) -> Result<u8, CliError> {
    let now = context.now().await?;
    let mut lines = vec![format!("{}  {}   {}", state(&it).show(&context.out), output::text(&it, "name"), guards(&it))];
    if let Some(reason) = it["blocked"].as_str() {
        lines.push(format!("  blocked  {reason}"));
    }
    lines.push(format!("  running  {}", running(&it)));
    lines.push(format!("  recent   {} succeeded, {} failed", it["succeeded"], it["failed"]));
    for it in it["maintenance"].as_array().into_iter().flatten() {
        lines.push(format!("  maintenance  from {} to {}", output::text(it, "from"), output::text(it, "to")));
    }
    for change in it["changes"].as_array().into_iter().flatten().take(8) {
        let at = instant(&change["at"]).map(|at| context.out.at(at, now)).unwrap_or_default();
        let what = output::text(change, "what").replace('_', " ");
        lines.push(format!("  {at}  {what}: {}", output::text(change, "why")));
    }
    View::lines_of(it, lines).print(&context.out)
}

async fn list(context: &Context) -> Result<u8, CliError> {
    let all = DEPENDENCIES.list(context).await?;
    let mut table = Table::new(&["NAME", "STATE", "RUNNING", "FAILED", "BLOCKED", "GUARDS"]);
    for it in output::items(&all) {
        table.rows.push(vec![
            output::text(it, "name").into(),
            state(it),
            running(it).into(),
            it["failed"].to_string().into(),
            output::text(it, "blocked").into(),
            guards(it).into(),
        ]);
    }
    let hint = "no dependencies; create one: comeback dependency put HOST --gate --breaker";
    View::table(all, table).hint_if_empty(hint).print(&context.out)
}
