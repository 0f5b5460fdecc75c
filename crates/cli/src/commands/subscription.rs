//! Subscriptions: who is told of what happens.

use serde_json::{Value, json};

use super::Context;
use crate::args::{SubscribeArgs, SubscriptionCommand};
use crate::failure::{Failure, code};
use crate::output::{self, Cell, Paint, Table, View, instant};
use crate::watch;

const ALL: &str = "/api/v1/subscriptions";

fn at(id: &str) -> String {
    format!("{ALL}/{}", id.replace('/', "%2F"))
}

pub async fn run(context: &Context, command: SubscriptionCommand) -> Result<u8, Failure> {
    let client = &context.client;
    match command {
        SubscriptionCommand::Create(args) => {
            let made = client.post(ALL, &body(&args)?).await?;
            let id = output::text(&made, "id").to_owned();
            let mut view = View::new(made.clone());
            view.line(format!("{id} is told by {}", output::text(&made, "url")));
            view.line(format!("  secret   {}   (shown only now)", output::text(&made, "secret")));
            view.line(format!("  try it   comeback subscription test {id}"));
            view.print(&context.out)
        }
        SubscriptionCommand::List { watch } => watch::show(&context.out, &watch, || list(context)).await,
        SubscriptionCommand::Get { id } => {
            show(context, client.get(&at(&id)).await.map_err(|error| unknown(&id, error))?).await
        }
        SubscriptionCommand::Deliveries { id, limit, watch } => {
            watch::show(&context.out, &watch, || deliveries(context, &id, limit)).await
        }
        SubscriptionCommand::Test { id } => {
            let made =
                client.post(&format!("{}/test", at(&id)), &json!({})).await.map_err(|error| unknown(&id, error))?;
            let words =
                format!("{} is on its way: comeback subscription deliveries {id}", output::short(&made["task_id"]));
            View::said(made, words).print(&context.out)
        }
        SubscriptionCommand::Redeliver { id, event, since } => {
            let asked = match (event, since) {
                (Some(event), _) => json!({"event": event}),
                (None, since) => {
                    let since = since.unwrap_or_default();
                    let field = if since.contains('T') { "since" } else { "within" };
                    json!({field: since})
                }
            };
            let again =
                client.post(&format!("{}/redeliver", at(&id)), &asked).await.map_err(|error| unknown(&id, error))?;
            let count = again["tasks"].as_array().map_or(0, Vec::len);
            let more = if again["more"] == json!(true) { "; there is more, ask again" } else { "" };
            let words = match count {
                0 => "nothing was given up".to_owned(),
                1 => format!("1 delivery is made again{more}"),
                count => format!("{count} deliveries are made again{more}"),
            };
            View::said(again, words).print(&context.out)
        }
        SubscriptionCommand::Rotate { id } => {
            let made =
                client.post(&format!("{}/rotate", at(&id)), &json!({})).await.map_err(|error| unknown(&id, error))?;
            let words = format!(
                "{id} is signed with {} too from now on, and only with it in a day",
                output::text(&made, "secret")
            );
            View::said(made, words).print(&context.out)
        }
        SubscriptionCommand::Delete { id } => {
            let gone = client.delete(&at(&id)).await.map_err(|error| unknown(&id, error))?;
            View::said(gone, format!("{id} is deleted")).print(&context.out)
        }
    }
}

fn unknown(id: &str, error: comeback_client::Error) -> Failure {
    let is_none =
        |problem: &comeback_client::Problem| problem.kind == "not-found" && problem.detail.contains("subscription");
    match error.problem().is_some_and(is_none) {
        true => Failure::new(code::NOT_FOUND, format!("there is no subscription `{id}`"))
            .remedy("comeback subscription list"),
        false => error.into(),
    }
}

fn body(args: &SubscribeArgs) -> Result<Value, Failure> {
    let mut body = json!({"url": args.url, "types": args.types, "format": args.format});
    let retry = args.retry.as_deref().map(|text| {
        serde_json::from_str::<Value>(text).map_err(|error| {
            Failure::new(code::USAGE, "--retry is no JSON").why(error.to_string()).remedy("comeback help policies")
        })
    });
    let fields = [
        ("id", args.id.clone().map(Value::from)),
        ("filter", args.filter.clone().map(Value::from)),
        ("note", args.note.clone().map(Value::from)),
        ("retry", retry.transpose()?),
    ];
    for (name, value) in fields {
        if let Some(value) = value {
            body[name] = value;
        }
    }
    Ok(body)
}

fn state(subscription: &Value) -> Cell {
    match output::text(subscription, "state") {
        "paused" => Cell::painted("⏸ paused", Paint::Magenta),
        "disabled" => Cell::painted("✕ disabled", Paint::Red),
        _ => Cell::painted("▶ active", Paint::Blue),
    }
}

fn types(subscription: &Value) -> String {
    let words: Vec<&str> = subscription["types"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if words.is_empty() { "all".to_owned() } else { words.join(", ") }
}

async fn list(context: &Context) -> Result<View, Failure> {
    let found = context.client.get_with(ALL, &[("limit", "500".into())]).await?;
    let mut table = Table::new(&["ID", "STATE", "URL", "TYPES", "DELIVERIES"]);
    for it in output::items(&found) {
        table.rows.push(vec![
            output::text(it, "id").into(),
            state(it),
            output::text(it, "url").into(),
            types(it).into(),
            output::grouped(it["deliveries"].as_u64().unwrap_or(0)).into(),
        ]);
    }
    let empty = table.rows.is_empty();
    let view = View::table(found, table);
    Ok(if empty { view.with_hint("there are no subscriptions: comeback subscription create URL") } else { view })
}

async fn show(context: &Context, it: Value) -> Result<u8, Failure> {
    let now = context.now().await?;
    let mut lines = vec![
        format!("{}  {}", state(&it).show(&context.out), output::text(&it, "id")),
        format!("  url      {}", output::text(&it, "url")),
        format!("  types    {}", types(&it)),
    ];
    for (word, field) in [("filter", "filter"), ("note", "note")] {
        if let Some(text) = it[field].as_str() {
            lines.push(format!("  {word:<8} {text}"));
        }
    }
    lines.push(format!("  format   {}", output::text(&it, "format")));
    if let (Some(at), Some(reason)) = (instant(&it["disabled_at"]), it["disabled_reason"].as_str()) {
        lines.push(format!("  why      {reason}, {}", context.out.at(at, now)));
    }
    lines.push(format!("  so far   {} deliveries", output::grouped(it["deliveries"].as_u64().unwrap_or(0))));
    let mut view = View::new(it);
    lines.into_iter().for_each(|line| view.line(line));
    view.print(&context.out)
}

async fn deliveries(context: &Context, id: &str, limit: u16) -> Result<View, Failure> {
    let address = format!("{}/deliveries", at(id));
    let found =
        context.client.get_with(&address, &[("limit", limit.to_string())]).await.map_err(|error| unknown(id, error))?;
    let now = context.now().await?;
    let mut table = Table::new(&["TASK", "EVENT", "TYPE", "STATE", "TRIES", "NEXT", "ERROR"]);
    for it in output::items(&found) {
        table.rows.push(vec![
            output::short(&it["task_id"]).into(),
            output::text(it, "event").into(),
            output::text(it, "type").into(),
            output::text(it, "state").into(),
            it["tries"].to_string().into(),
            context.out.time_cell(&it["next_retry_at"], now),
            output::text(it, "last_error").into(),
        ]);
    }
    let empty = table.rows.is_empty();
    let view = View::table(found, table);
    Ok(if empty { view.with_hint("nothing was delivered yet") } else { view })
}
