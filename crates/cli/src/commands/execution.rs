//! Executions of workflows.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::{Context, typed_policy};
use crate::args::{ExecutionCommand, OneArgs, StartArgs};
use crate::failure::{Failure, code};
use crate::output::{self, Cell, Paint, Table, View};
use crate::watch;

pub async fn run(context: &Context, command: ExecutionCommand) -> Result<u8, Failure> {
    match command {
        ExecutionCommand::Start(args) => start(context, args).await,
        ExecutionCommand::List { state, workflow, limit, watch } => {
            watch::show(&context.out, &watch, || list(context, &state, &workflow, limit)).await
        }
        ExecutionCommand::Get { id, watch } => {
            let id = resolve(context, &id).await?;
            watch::show(&context.out, &watch, || one(context, &id)).await
        }
        ExecutionCommand::Cancel(args) => act(context, "cancel", args, json!({})).await,
        ExecutionCommand::Pause(args) => act(context, "pause", args, json!({})).await,
        ExecutionCommand::Resume(args) => act(context, "resume", args, json!({})).await,
        ExecutionCommand::Retry { one, from_start } => {
            let from = if from_start { "start" } else { "failed" };
            act(context, "retry", one, json!({"from": from})).await
        }
    }
}

async fn start(context: &Context, args: StartArgs) -> Result<u8, Failure> {
    let mut body = json!({"workflow": args.workflow});
    if let Some(text) = &args.input {
        body["input"] = serde_json::from_str(text).map_err(|error| {
            Failure::new(code::USAGE, "the input is not JSON")
                .why(error.to_string())
                .remedy("--input '{\"file\": \"a.csv\"}'")
        })?;
    }
    let mut labels = Map::new();
    for text in &args.labels {
        let (name, value) = text
            .split_once('=')
            .ok_or_else(|| Failure::new(code::USAGE, format!("`{text}` is no label")).remedy("--label tenant=acme"))?;
        labels.insert(name.into(), value.into());
    }
    body["labels"] = labels.into();
    for (name, value) in [
        ("version", args.version.map(Value::from)),
        ("name", args.name.map(Value::from)),
        ("retry", args.retry.as_deref().map(typed_policy)),
    ] {
        if let Some(value) = value {
            body[name] = value;
        }
    }
    let started = context.client.post("/api/v1/executions", &body).await?;
    let id = output::text(&started, "execution_id").to_owned();
    if !args.wait {
        let words =
            format!("{} of {} version {}", output::short(&started["execution_id"]), args.workflow, started["version"]);
        return View::said(started, format!("started {words}")).print(&context.out);
    }
    loop {
        let found = context.client.get(&format!("/api/v1/executions/{id}")).await?;
        if !found["ended_at"].is_null() {
            one(context, &id).await?.print(&context.out)?;
            return Ok(match output::text(&found, "state") {
                "succeeded" => code::OK,
                "canceled" => code::CANCELED,
                _ => code::DEAD,
            });
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}

/// An execution's state as people see it.
fn state(it: &Value) -> Cell {
    let word = if it["retrying"] == true { "retrying" } else { output::text(it, "state") };
    let (glyph, paint) = match word {
        "pending" => ("○", Paint::Dim),
        "running" => ("▶", Paint::Blue),
        "retrying" => ("↻", Paint::Yellow),
        "paused" => ("⏸", Paint::Magenta),
        "succeeded" => ("✓", Paint::Green),
        "failed" => ("✕", Paint::Red),
        _ => ("–", Paint::Dim),
    };
    Cell::painted(format!("{glyph} {word}"), paint)
}

async fn list(
    context: &Context,
    states: &Option<String>,
    workflow: &Option<String>,
    limit: u32,
) -> Result<View, Failure> {
    let mut asked = vec![("limit", limit.to_string())];
    asked.extend(states.clone().map(|states| ("state", states)));
    asked.extend(workflow.clone().map(|path| ("workflow", path)));
    let found = context.client.get_with("/api/v1/executions", &asked).await?;
    let now = context.now().await?;
    let mut table = Table::new(&["ID", "STATE", "WORKFLOW", "NAME", "DONE", "STARTED"]);
    for it in output::items(&found) {
        let (total, open) = (it["total"].as_u64().unwrap_or(0), it["open"].as_u64().unwrap_or(0));
        let workflow = match it["workflow"].as_str() {
            Some(path) => format!("{path}@{}", it["version"]),
            None => "–".into(),
        };
        table.rows.push(vec![
            output::short(&it["id"]).into(),
            state(it),
            workflow.into(),
            output::text(it, "name").into(),
            format!("{} of {total}", total.saturating_sub(open)).into(),
            context.out.time_cell(&it["created_at"], now),
        ]);
    }
    let empty = table.rows.is_empty();
    let view = View::table(found, table);
    Ok(if empty { view.with_hint("no execution: comeback execution start WORKFLOW") } else { view })
}

async fn one(context: &Context, id: &str) -> Result<View, Failure> {
    let found = context.client.get(&format!("/api/v1/executions/{id}")).await?;
    let now = context.now().await?;
    let mut table = Table::new(&["STEP", "STATE", "RETRIES", "NEXT", "WHY", "ID"]);
    for it in found["tasks"].as_array().into_iter().flatten() {
        let name = it["key"].as_str().unwrap_or_else(|| output::text(it, "kind"));
        table.rows.push(vec![
            name.into(),
            output::state(it),
            it["attempt"].to_string().into(),
            context.out.time_cell(&it["next_retry_at"], now),
            output::text(it, "reason").replace('_', " ").into(),
            output::short(&it["id"]).into(),
        ]);
    }
    let workflow =
        found["workflow"].as_str().map(|path| format!(" of {path}@{}", found["version"])).unwrap_or_default();
    let hint = format!("{}{workflow} {}", output::short(&found["id"]), state(&found).text);
    Ok(View::table(found, table).with_hint(hint))
}

async fn act(context: &Context, verb: &str, args: OneArgs, mut body: Value) -> Result<u8, Failure> {
    let id = resolve(context, &args.id).await?;
    if let Some(note) = args.note {
        body["note"] = note.into();
    }
    let done = context.client.post(&format!("/api/v1/executions/{id}/{verb}"), &body).await?;
    let it = &done["execution"];
    let words = format!("{} is {}", output::short(&it["id"]), output::text(it, "state"));
    View::said(done.clone(), words).print(&context.out)
}

/// A whole id, or either end of one among the newest five hundred.
async fn resolve(context: &Context, text: &str) -> Result<String, Failure> {
    if uuid::Uuid::try_parse(text).is_ok() {
        return Ok(text.to_owned());
    }
    let bare = text.to_ascii_lowercase();
    let listed = context.client.get_with("/api/v1/executions", &[("limit", "500".into())]).await?;
    let is_end = |it: &&Value| output::text(it, "id").ends_with(&bare) || output::text(it, "id").starts_with(&bare);
    let found: Vec<&Value> = output::items(&listed).filter(is_end).collect();
    match found.as_slice() {
        [one] => Ok(output::text(one, "id").to_owned()),
        [] => {
            let failure = Failure::new(code::NOT_FOUND, format!("there is no execution `{text}`"));
            Err(failure
                .why("none of the newest 500 has an id that begins or ends so")
                .remedy("comeback execution list"))
        }
        many => Err(Failure::new(code::USAGE, format!("`{text}` stands for {} executions", many.len()))
            .why("ids begin with their time, so their ends tell them apart better")
            .remedy("say more of the id")),
    }
}
