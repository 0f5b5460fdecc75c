//! Alerts: too much of something within a while.

use comeback_core::Millis;
use serde_json::{Value, json};

use super::{Context, unknown};
use crate::args::{AlertArgs, AlertCommand};
use crate::failure::Failure;
use crate::output::{self, Cell, Paint, Table, View, instant};
use crate::watch;

const ALL: &str = "/api/v1/alerts";

fn at(name: &str) -> String {
    format!("{ALL}/{}", name.replace('/', "%2F"))
}

pub async fn run(context: &Context, command: AlertCommand) -> Result<u8, Failure> {
    let client = &context.client;
    match command {
        AlertCommand::Put(args) => {
            let mut asked = body(&args.what);
            asked["tell"] = args.tell.into();
            if let Some(note) = args.note {
                asked["note"] = note.into();
            }
            let put = client.put(&at(&args.name), &asked).await?;
            let words = format!("{} fires at {}", args.name, rule(&put));
            View::said(put, words).print(&context.out)
        }
        AlertCommand::List { watch } => watch::show(&context.out, &watch, || list(context)).await,
        AlertCommand::Get { name } => {
            show(context, client.get(&at(&name)).await.map_err(|error| unknown("alert", &name, error))?).await
        }
        AlertCommand::Backtest { name, what, within } => {
            let asked = match &name {
                Some(name) => json!({"name": name, "within": within}),
                None => json!({"alert": body(&what), "within": within}),
            };
            let found = client
                .post(&format!("{ALL}/backtest"), &asked)
                .await
                .map_err(|error| unknown("alert", name.as_deref().unwrap_or_default(), error))?;
            backtest(context, found).await
        }
        AlertCommand::Delete { name } => {
            let gone = client.delete(&at(&name)).await.map_err(|error| unknown("alert", &name, error))?;
            View::said(gone, format!("{name} is deleted")).print(&context.out)
        }
    }
}

fn body(args: &AlertArgs) -> Value {
    let mut body = json!({"types": args.types, "threshold": args.threshold, "window": args.window});
    if let Some(filter) = &args.filter {
        body["filter"] = filter.as_str().into();
    }
    if let Some(share) = args.share {
        body["share"] = share.into();
        body["of"] = args.of.clone().into();
    }
    body
}

fn state(alert: &Value) -> Cell {
    match output::text(alert, "state") {
        "firing" => Cell::painted("✕ firing", Paint::Red),
        "paused" => Cell::painted("⏸ paused", Paint::Magenta),
        _ => Cell::painted("◎ quiet", Paint::Dim),
    }
}

fn words(of: &Value) -> String {
    of.as_array().into_iter().flatten().filter_map(Value::as_str).collect::<Vec<_>>().join(", ")
}

fn rule(alert: &Value) -> String {
    let share = alert["share"].as_f64().map(|share| format!(", at least {:.0} %", share * 100.0)).unwrap_or_default();
    let window = Millis(alert["window_ms"].as_u64().unwrap_or(0));
    format!("{} × {} in {window}{share}", alert["threshold"], words(&alert["types"]))
}

async fn list(context: &Context) -> Result<View, Failure> {
    let found = context.client.get_with(ALL, &[("limit", "500".into())]).await?;
    let now = context.now().await?;
    let mut table = Table::new(&["NAME", "STATE", "RULE", "FILTER", "FIRED", "SINCE"]);
    for it in output::items(&found) {
        table.rows.push(vec![
            output::text(it, "name").into(),
            state(it),
            rule(it).into(),
            output::text(it, "filter").into(),
            output::grouped(it["fired"].as_u64().unwrap_or(0)).into(),
            context.out.time_cell(&it["firing_since"], now),
        ]);
    }
    let empty = table.rows.is_empty();
    let view = View::table(found, table);
    Ok(if empty {
        view.with_hint("there are no alerts: comeback alert put NAME --types task.failed …")
    } else {
        view
    })
}

async fn show(context: &Context, it: Value) -> Result<u8, Failure> {
    let now = context.now().await?;
    let mut lines = vec![
        format!("{}  {}", state(&it).show(&context.out), output::text(&it, "name")),
        format!("  fires at {}", rule(&it)),
    ];
    for field in ["filter", "note"] {
        if let Some(text) = it[field].as_str() {
            lines.push(format!("  {field:<8} {text}"));
        }
    }
    let told = words(&it["tell"]);
    lines.push(format!("  tells    {}", if told.is_empty() { "whoever subscribes to alerts" } else { &told }));
    if let Some(since) = instant(&it["firing_since"]) {
        lines.push(format!("  since    {}", context.out.at(since, now)));
    }
    lines.push(format!("  so far   {} now, fired {}", it["count"], it["fired"]));
    let mut view = View::new(it);
    lines.into_iter().for_each(|line| view.line(line));
    view.print(&context.out)
}

async fn backtest(context: &Context, found: Value) -> Result<u8, Failure> {
    let now = context.now().await?;
    let mut lines = vec![match found["fired"].as_u64().unwrap_or(0) {
        0 => "it would not have fired".to_owned(),
        1 => "it would have fired once".to_owned(),
        times => format!("it would have fired {times} times"),
    }];
    for change in found["changes"].as_array().into_iter().flatten() {
        let word = if output::text(change, "type") == "alert.fired" { "✕ fires" } else { "◎ is over" };
        let at = instant(&change["at"]).map(|at| context.out.at(at, now)).unwrap_or_default();
        lines.push(format!("  {word}  {at}  {} of {}", change["count"], change["of"]));
    }
    if found["complete"] == json!(false) {
        lines.push(format!("  there was more to look at: this is as of {}", output::text(&found, "to")));
    }
    let mut view = View::new(found);
    lines.into_iter().for_each(|line| view.line(line));
    view.print(&context.out)
}
