//! Alerts on event counts.

use comeback_core::Millis;
use serde_json::{Value, json};

use super::Context;
use super::resource::{Resource, object};
use crate::args::{AlertArgs, AlertCommand};
use crate::error::CliError;
use crate::output::{self, Cell, Paint, Table, View, instant};
use crate::watch;

const ALERTS: Resource = Resource { noun: "alert", collection: "/api/v1/alerts" };

pub async fn run(context: &Context, command: AlertCommand) -> Result<u8, CliError> {
    match command {
        AlertCommand::Put(args) => {
            let mut body = body(&args.what);
            body["tell"] = args.tell.into();
            if let Some(note) = args.note {
                body["note"] = note.into();
            }
            let put = ALERTS.put(context, &args.name, &body).await?;
            let words = format!("alert {} saved: fires at {}", args.name, condition(&put));
            View::message(put, words).print(&context.out)
        }
        AlertCommand::List { watch } => watch::show(&context.out, &watch, || list(context)).await,
        AlertCommand::Get { name } => show(context, ALERTS.get(context, &name).await?).await,
        AlertCommand::Backtest { name, what, within } => {
            let body = match &name {
                Some(name) => json!({"name": name, "within": within}),
                None => json!({"alert": body(&what), "within": within}),
            };
            let found = context.client.post(&format!("{}/backtest", ALERTS.collection), &body).await;
            let found = found.map_err(|error| ALERTS.failure(name.as_deref().unwrap_or_default(), error))?;
            backtest(context, found).await
        }
        AlertCommand::Delete { name } => {
            let deleted = ALERTS.delete(context, &name).await?;
            View::message(deleted, format!("alert {name} deleted")).print(&context.out)
        }
    }
}

fn body(args: &AlertArgs) -> Value {
    object([
        ("types", Some(json!(args.types))),
        ("threshold", Some(json!(args.threshold))),
        ("window", Some(json!(args.window))),
        ("filter", args.filter.clone().map(Value::from)),
        ("share", args.share.map(Value::from)),
        ("of", args.share.map(|_| json!(args.of))),
    ])
}

fn state(alert: &Value) -> Cell {
    match output::text(alert, "state") {
        "firing" => Cell::painted("✕ firing", Paint::Red),
        "paused" => Cell::painted("⏸ paused", Paint::Magenta),
        _ => Cell::painted("◎ ok", Paint::Dim),
    }
}

fn joined(of: &Value) -> String {
    of.as_array().into_iter().flatten().filter_map(Value::as_str).collect::<Vec<_>>().join(", ")
}

/// The condition under which an alert fires.
fn condition(alert: &Value) -> String {
    let share = alert["share"].as_f64().map(|share| format!(", at least {:.0} %", share * 100.0)).unwrap_or_default();
    let window = Millis(alert["window_ms"].as_u64().unwrap_or(0));
    format!("{} × {} in {window}{share}", alert["threshold"], joined(&alert["types"]))
}

async fn list(context: &Context) -> Result<View, CliError> {
    let found = ALERTS.list(context).await?;
    let now = context.now().await?;
    let mut table = Table::new(&["NAME", "STATE", "RULE", "FILTER", "FIRED", "SINCE"]);
    for it in output::items(&found) {
        table.rows.push(vec![
            output::text(it, "name").into(),
            state(it),
            condition(it).into(),
            output::text(it, "filter").into(),
            output::grouped(it["fired"].as_u64().unwrap_or(0)).into(),
            context.out.time_cell(&it["firing_since"], now),
        ]);
    }
    Ok(View::table(found, table).hint_if_empty("no alerts; create one: comeback alert put NAME --types task.failed …"))
}

async fn show(context: &Context, it: Value) -> Result<u8, CliError> {
    let now = context.now().await?;
    let mut lines = vec![
        format!("{}  {}", state(&it).show(&context.out), output::text(&it, "name")),
        format!("  fires at {}", condition(&it)),
    ];
    for field in ["filter", "note"] {
        if let Some(text) = it[field].as_str() {
            lines.push(format!("  {field:<8} {text}"));
        }
    }
    let notified = joined(&it["tell"]);
    lines.push(format!("  notifies {}", if notified.is_empty() { "all subscriptions to alerts" } else { &notified }));
    if let Some(since) = instant(&it["firing_since"]) {
        lines.push(format!("  since    {}", context.out.at(since, now)));
    }
    let fired = output::plural(it["fired"].as_u64().unwrap_or(0), "time");
    lines.push(format!("  count    {} in the window now, fired {fired}", it["count"]));
    View::lines_of(it, lines).print(&context.out)
}

async fn backtest(context: &Context, found: Value) -> Result<u8, CliError> {
    let now = context.now().await?;
    let mut lines = vec![match found["fired"].as_u64().unwrap_or(0) {
        0 => "it would not have fired".to_owned(),
        1 => "it would have fired once".to_owned(),
        times => format!("it would have fired {times} times"),
    }];
    for change in found["changes"].as_array().into_iter().flatten() {
        let word = if output::text(change, "type") == "alert.fired" { "✕ fired" } else { "◎ resolved" };
        let at = instant(&change["at"]).map(|at| context.out.at(at, now)).unwrap_or_default();
        lines.push(format!("  {word}  {at}  {} of {}", change["count"], change["of"]));
    }
    if found["complete"] == json!(false) {
        lines.push(format!("  incomplete: events after {} were not read", output::text(&found, "to")));
    }
    View::lines_of(found, lines).print(&context.out)
}
