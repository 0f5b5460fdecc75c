//! Webhook subscriptions.

use serde_json::{Value, json};

use super::Context;
use super::resource::{Resource, object, read_json};
use crate::args::{SubscribeArgs, SubscriptionCommand};
use crate::error::CliError;
use crate::output::{self, Cell, Paint, Table, View, instant};
use crate::watch;

const SUBSCRIPTIONS: Resource = Resource { noun: "subscription", collection: "/api/v1/subscriptions" };

pub async fn run(context: &Context, command: SubscriptionCommand) -> Result<u8, CliError> {
    match command {
        SubscriptionCommand::Create(args) => {
            let made = context.client.post(SUBSCRIPTIONS.collection, &body(args)?).await?;
            let id = output::text(&made, "id").to_owned();
            let lines = vec![
                format!("subscription {id} delivers to {}", output::text(&made, "url")),
                format!("  secret   {}   (shown once)", output::text(&made, "secret")),
                format!("  test it  comeback subscription test {id}"),
            ];
            View::lines_of(made, lines).print(&context.out)
        }
        SubscriptionCommand::List { watch } => watch::show(&context.out, &watch, || list(context)).await,
        SubscriptionCommand::Get { id } => show(context, SUBSCRIPTIONS.get(context, &id).await?).await,
        SubscriptionCommand::Deliveries { id, limit, watch } => {
            watch::show(&context.out, &watch, || deliveries(context, &id, limit)).await
        }
        SubscriptionCommand::Test { id } => {
            let made = SUBSCRIPTIONS.act(context, &id, "test", &json!({})).await?;
            let task = output::short(&made["task_id"]);
            let words = format!("test delivery {task} queued: comeback subscription deliveries {id}");
            View::message(made, words).print(&context.out)
        }
        SubscriptionCommand::Redeliver { id, event, since } => {
            let body = match (event, since.unwrap_or_default()) {
                (Some(event), _) => json!({"event": event}),
                (None, since) if since.contains('T') => json!({"since": since}),
                (None, since) => json!({"within": since}),
            };
            let again = SUBSCRIPTIONS.act(context, &id, "redeliver", &body).await?;
            let more = if again["more"] == json!(true) { "; there are more, run it again" } else { "" };
            let words = match again["tasks"].as_array().map_or(0, Vec::len) {
                0 => "no delivery was given up".to_owned(),
                1 => format!("1 delivery queued again{more}"),
                count => format!("{count} deliveries queued again{more}"),
            };
            View::message(again, words).print(&context.out)
        }
        SubscriptionCommand::Rotate { id } => {
            let made = SUBSCRIPTIONS.act(context, &id, "rotate", &json!({})).await?;
            let secret = output::text(&made, "secret");
            let words = format!("new secret of {id}: {secret} (the old one signs too for a day)");
            View::message(made, words).print(&context.out)
        }
        SubscriptionCommand::Delete { id } => {
            let deleted = SUBSCRIPTIONS.delete(context, &id).await?;
            View::message(deleted, format!("subscription {id} deleted")).print(&context.out)
        }
    }
}

fn body(args: SubscribeArgs) -> Result<Value, CliError> {
    let retry = args.retry.as_deref().map(|text| read_json("--retry", text, "comeback help policies")).transpose()?;
    Ok(object([
        ("url", Some(args.url.into())),
        ("types", Some(args.types.into())),
        ("format", Some(args.format.into())),
        ("id", args.id.map(Value::from)),
        ("filter", args.filter.map(Value::from)),
        ("note", args.note.map(Value::from)),
        ("retry", retry),
    ]))
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

async fn list(context: &Context) -> Result<View, CliError> {
    let found = SUBSCRIPTIONS.list(context).await?;
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
    Ok(View::table(found, table).hint_if_empty("no subscriptions; create one: comeback subscription create URL"))
}

async fn show(context: &Context, it: Value) -> Result<u8, CliError> {
    let now = context.now().await?;
    let mut lines = vec![
        format!("{}  {}", state(&it).show(&context.out), output::text(&it, "id")),
        format!("  url      {}", output::text(&it, "url")),
        format!("  types    {}", types(&it)),
    ];
    for field in ["filter", "note"] {
        if let Some(text) = it[field].as_str() {
            lines.push(format!("  {field:<8} {text}"));
        }
    }
    lines.push(format!("  format   {}", output::text(&it, "format")));
    if let (Some(at), Some(reason)) = (instant(&it["disabled_at"]), it["disabled_reason"].as_str()) {
        lines.push(format!("  disabled {}: {reason}", context.out.at(at, now)));
    }
    lines.push(format!("  total    {} deliveries", output::grouped(it["deliveries"].as_u64().unwrap_or(0))));
    View::lines_of(it, lines).print(&context.out)
}

async fn deliveries(context: &Context, id: &str, limit: u16) -> Result<View, CliError> {
    let path = format!("{}/deliveries", SUBSCRIPTIONS.path(id));
    let found = context.client.get_with(&path, &[("limit", limit.to_string())]).await;
    let found = found.map_err(|error| SUBSCRIPTIONS.failure(id, error))?;
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
    Ok(View::table(found, table).hint_if_empty("no deliveries yet"))
}
