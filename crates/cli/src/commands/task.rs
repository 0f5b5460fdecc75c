//! Tasks, as a person looks at them and acts on them.

use comeback_core::{Millis, Timestamp};
use serde_json::{Value, json};

use super::Context;
use crate::args::TaskCommand;
use crate::failure::{Failure, code};
use crate::output::{self, say};

pub async fn run(context: &Context, command: TaskCommand) -> Result<u8, Failure> {
    match command {
        TaskCommand::List { filter, limit, sort, cursor } => list(context, filter, limit, sort, cursor).await,
        TaskCommand::Get { id } => get(context, &id).await,
        TaskCommand::Why { id } => why(context, &id).await,
        TaskCommand::Attempts { id } => attempts(context, &id).await,
        TaskCommand::Retry { id, keep_counters, note } => {
            act(context, &id, "retry", json!({"keep_counters": keep_counters, "note": note})).await
        }
        TaskCommand::Cancel { id, note } => act(context, &id, "cancel", json!({"note": note})).await,
        TaskCommand::Pause { id, note } => act(context, &id, "pause", json!({"note": note})).await,
        TaskCommand::Resume { id, note } => act(context, &id, "resume", json!({"note": note})).await,
        TaskCommand::Snooze { id, span } => act(context, &id, "snooze", json!({"delay": span})).await,
        TaskCommand::Reschedule { id, at } => act(context, &id, "reschedule", json!({"at": at})).await,
    }
}

async fn list(
    context: &Context,
    filter: Vec<String>,
    limit: u32,
    sort: Option<String>,
    cursor: Option<String>,
) -> Result<u8, Failure> {
    let mut query = vec![("q", filter.join(" ")), ("limit", limit.to_string())];
    query.extend(sort.map(|sort| ("sort", sort)));
    query.extend(cursor.map(|cursor| ("cursor", cursor)));
    let listed = context.client.get_with("/api/v1/tasks", &query).await?;
    if context.json {
        output::json(&listed);
        return Ok(code::OK);
    }
    let now = context.now().await?;
    let items: Vec<&Value> = listed["items"].as_array().into_iter().flatten().collect();
    let rows: Vec<Vec<String>> = items.iter().map(|task| row(task, now)).collect();
    output::table(&["ID", "STATE", "KIND", "QUEUE", "ATTEMPT", "NEXT", "AGE", "LAST ERROR"], &rows);
    let more = listed["next_cursor"].as_str().map(|cursor| format!(" · more: --cursor {cursor}")).unwrap_or_default();
    let count = rows.len();
    eprintln!("{count} task{}{more}", if count == 1 { "" } else { "s" });
    Ok(code::OK)
}

fn row(task: &Value, now: Timestamp) -> Vec<String> {
    let due = if task["next_retry_at"].is_null() { &task["start_at"] } else { &task["next_retry_at"] };
    let age = task["submitted_at"].as_str().and_then(|text| Timestamp::parse_rfc3339(text).ok());
    vec![
        output::short(&task["id"]),
        output::state(task),
        output::text(task, "kind").to_owned(),
        output::text(task, "queue").to_owned(),
        attempt(task),
        if due.is_null() { "–".into() } else { output::relative(due, now) },
        age.map_or_else(|| "–".into(), |at| output::span(now.since(at))),
        task["last_error"]["message"].as_str().unwrap_or("").chars().take(60).collect(),
    ]
}

/// Which try of how many.
fn attempt(task: &Value) -> String {
    let number = task["attempt_number"].as_u64().unwrap_or(1);
    match task["max_retries"].as_u64() {
        Some(retries) => format!("{number}/{}", retries + 1),
        None => format!("{number}"),
    }
}

async fn get(context: &Context, id: &str) -> Result<u8, Failure> {
    let task = context.client.task(&context.resolve(id).await?).await?;
    output::json(&task);
    Ok(code::OK)
}

async fn why(context: &Context, id: &str) -> Result<u8, Failure> {
    let id = context.resolve(id).await?;
    let why = context.client.get(&format!("/api/v1/tasks/{id}/why")).await?;
    if context.json {
        output::json(&why);
        return Ok(code::OK);
    }
    let task = context.client.task(&id).await?;
    let forecast = context.client.get(&format!("/api/v1/tasks/{id}/forecast?limit=5")).await?;
    let now = context.now().await?;
    say!(
        "{}  {}  {}   attempt {}",
        output::state(&task),
        output::text(&task, "kind"),
        output::short(&task["id"]),
        attempt(&task)
    );
    say!("  why      {}", output::text(&why, "text"));
    let coming: Vec<String> =
        forecast["attempts"].as_array().into_iter().flatten().map(|it| output::relative(&it["at"], now)).collect();
    if !coming.is_empty() {
        say!("  when     {}", coming.join(", then "));
    }
    if let (Some(at), Some(then)) = (forecast["gives_up_at"].as_str(), forecast["then"]["state"].as_str())
        && task["ended_at"].is_null()
    {
        let at = output::relative(&Value::from(at), now);
        say!("  at worst {then} {at} ({})", output::text(&forecast["then"], "reason"));
    }
    say!("  blocked  {}", task["blocked"].as_str().unwrap_or("no"));
    let name = output::short(&task["id"]);
    let open = task["ended_at"].is_null();
    match output::text(&task, "state") {
        "paused" => say!("  do       comeback task resume {name}      comeback task cancel {name}"),
        "succeeded" | "canceled" | "skipped" => {}
        _ if open => say!("  do       comeback task retry {name}      comeback task cancel {name}"),
        _ => say!("  do       comeback task retry {name}"),
    }
    Ok(code::OK)
}

async fn attempts(context: &Context, id: &str) -> Result<u8, Failure> {
    let id = context.resolve(id).await?;
    let listed = context.client.get(&format!("/api/v1/tasks/{id}/attempts?limit=500")).await?;
    if context.json {
        output::json(&listed);
        return Ok(code::OK);
    }
    let rows: Vec<Vec<String>> = listed["items"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|it| {
            let took = it["duration_ms"].as_u64().map_or_else(|| "–".into(), |ms| output::span(Millis(ms)));
            let delay =
                it["decision"]["delay"]["total_ms"].as_u64().map(|ms| format!("retry in {}", output::span(Millis(ms))));
            vec![
                it["number"].to_string(),
                output::text(it, "outcome").to_owned(),
                output::text(it, "started_at").to_owned(),
                took,
                output::text(it, "worker").to_owned(),
                delay.unwrap_or_else(|| output::text(&it["decision"], "reason").to_owned()),
                it["error"]["message"].as_str().unwrap_or("").chars().take(80).collect(),
            ]
        })
        .collect();
    output::table(&["#", "OUTCOME", "STARTED", "TOOK", "WORKER", "THEN", "ERROR"], &rows);
    Ok(code::OK)
}

async fn act(context: &Context, id: &str, verb: &str, body: Value) -> Result<u8, Failure> {
    let id = context.resolve(id).await?;
    let body = match body {
        Value::Object(fields) => {
            let said = |value: &Value| !value.is_null() && *value != Value::Bool(false);
            Value::Object(fields.into_iter().filter(|(_, value)| said(value)).collect())
        }
        other => other,
    };
    let answer = context.client.act(&id, verb, &body).await?;
    if context.json {
        output::json(&answer);
        return Ok(code::OK);
    }
    let task = &answer["task"];
    let now = context.now().await?;
    let due = if task["next_retry_at"].is_null() { &task["start_at"] } else { &task["next_retry_at"] };
    let when = if due.is_null() { String::new() } else { format!("   due {}", output::relative(due, now)) };
    let place = answer["queue_position"].as_u64().map(|n| format!("   number {n} in its queue")).unwrap_or_default();
    say!("{}  {}{when}{place}", output::short(&task["id"]), output::state(task));
    Ok(code::OK)
}
