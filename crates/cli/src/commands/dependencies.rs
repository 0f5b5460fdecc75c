//! Dependencies: what holds tasks back that need something outside, and turning it by hand.

use serde_json::{Map, Value, json};

use super::Context;
use crate::args::{DependencyCommand, SetArgs, TurnArgs};
use crate::failure::{Failure, code};
use crate::output::{self, Cell, Paint, Table, View, instant, say};

pub async fn run(context: &Context, command: DependencyCommand) -> Result<u8, Failure> {
    match command {
        DependencyCommand::List => list(context).await,
        DependencyCommand::Get { name } => shown(context, context.client.get(&address(&name)).await?).await,
        DependencyCommand::Set(args) => {
            let settings = settings(&args)?;
            shown(context, context.client.put(&address(&args.name), &settings).await?).await
        }
        DependencyCommand::Open(args) => turn(context, "open", args).await,
        DependencyCommand::Close(args) => turn(context, "close", args).await,
        DependencyCommand::Healthy { name, note } => {
            turn(context, "healthy", TurnArgs { name, lasts: None, note }).await
        }
        DependencyCommand::Maintenance { name, from, to, note } => {
            let mut body = json!({"to": to});
            for (field, value) in [("from", from), ("note", note)] {
                if let Some(value) = value {
                    body[field] = value.into();
                }
            }
            shown(context, context.client.post(&format!("{}/maintenance", address(&name)), &body).await?).await
        }
        DependencyCommand::Delete { name } => {
            context.client.delete(&address(&name)).await?;
            say!("dependency {name} is gone; it holds nothing any more");
            Ok(code::OK)
        }
    }
}

fn address(name: &str) -> String {
    format!("/api/v1/dependencies/{}", super::escaped(name))
}

async fn turn(context: &Context, verb: &str, args: TurnArgs) -> Result<u8, Failure> {
    let mut body = json!({});
    for (field, value) in [("for", args.lasts), ("note", args.note)] {
        if let Some(value) = value {
            body[field] = value.into();
        }
    }
    shown(context, context.client.post(&format!("{}/{verb}", address(&args.name)), &body).await?).await
}

fn settings(args: &SetArgs) -> Result<Value, Failure> {
    if let Some(text) = &args.settings {
        return serde_json::from_str(text).map_err(|error| {
            Failure::new(code::USAGE, "the settings are no JSON")
                .why(error.to_string())
                .remedy(r#"--settings '{"gate": {}}'"#)
        });
    }
    let mut settings = Map::new();
    if args.gate {
        settings.insert("gate".into(), json!({}));
    }
    if args.breaker {
        let given = [
            ("failures", args.failures.map(Value::from)),
            ("ratio", args.ratio.map(Value::from)),
            ("window", args.window.clone().map(Value::from)),
            ("open", args.open.clone().map(Value::from)),
            ("max_open", args.max_open.clone().map(Value::from)),
        ];
        settings.insert("breaker".into(), part(given));
    }
    if let Some(percent) = args.budget {
        settings
            .insert("budget".into(), part([("percent", Some(percent.into())), ("floor", args.floor.map(Value::from))]));
    }
    if let Some(max) = args.concurrency {
        let target = args.target.clone().map(Value::from);
        settings.insert("concurrency".into(), part([("max", Some(max.into())), ("target", target)]));
    }
    Ok(settings.into())
}

fn part<const N: usize>(given: [(&str, Option<Value>); N]) -> Value {
    given.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect::<Map<_, _>>().into()
}

fn state(it: &Value) -> Cell {
    match output::text(&it["breaker"], "state") {
        "closed" if it["blocked"].is_null() => Cell::painted("● closed", Paint::Green),
        "closed" => Cell::painted("⊘ held", Paint::Magenta),
        "open" => Cell::painted("⊘ open", Paint::Magenta),
        word => Cell::painted(format!("◐ {}", word.replace('_', " ")), Paint::Yellow),
    }
}

fn parts(it: &Value) -> String {
    let parts: Vec<&str> = it["settings"].as_object().into_iter().flatten().map(|(name, _)| name.as_str()).collect();
    if parts.is_empty() { "nothing".to_owned() } else { parts.join(", ") }
}

fn running(it: &Value) -> String {
    match it["max_running"].as_u64() {
        Some(most) => format!("{} of {most}", it["running"]),
        None => it["running"].to_string(),
    }
}

async fn shown(context: &Context, it: Value) -> Result<u8, Failure> {
    let now = context.now().await?;
    let mut view = View::new(it.clone());
    view.line(format!("{}  {}   {}", state(&it).show(&context.out), output::text(&it, "name"), parts(&it)));
    if let Some(words) = it["blocked"].as_str() {
        view.line(format!("  blocked  {words}"));
    }
    view.line(format!("  running  {}", running(&it)));
    view.line(format!("  lately   {} succeeded, {} failed", it["succeeded"], it["failed"]));
    for it in it["maintenance"].as_array().into_iter().flatten() {
        view.line(format!("  work     from {} to {}", output::text(it, "from"), output::text(it, "to")));
    }
    for change in it["changes"].as_array().into_iter().flatten().take(8) {
        let at = instant(&change["at"]).map(|at| context.out.at(at, now)).unwrap_or_default();
        let what = output::text(change, "what").replace('_', " ");
        view.line(format!("  {at}  {what}: {}", output::text(change, "why")));
    }
    view.print(&context.out)
}

async fn list(context: &Context) -> Result<u8, Failure> {
    let all = context.client.get_with("/api/v1/dependencies", &[("limit", "500".to_owned())]).await?;
    let mut table = Table::new(&["NAME", "STATE", "RUNNING", "FAILED", "BLOCKED", "GUARDS"]);
    for it in output::items(&all) {
        table.rows.push(vec![
            output::text(it, "name").into(),
            state(it),
            running(it).into(),
            it["failed"].to_string().into(),
            output::text(it, "blocked").into(),
            parts(it).into(),
        ]);
    }
    let empty = table.rows.is_empty();
    let view = View::table(all, table);
    let hint = "no dependencies: nothing outside holds tasks back; comeback dependency set HOST --gate --breaker";
    if empty { view.with_hint(hint).print(&context.out) } else { view.print(&context.out) }
}
