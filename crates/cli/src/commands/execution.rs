//! Executions of workflows.

use std::time::Duration;

use serde_json::{Value, json};

use super::resource::{Resource, labels, object, read_json};
use super::{Context, typed_policy};
use crate::args::{ExecutionArgs, ExecutionCommand, StartArgs};
use crate::error::{CliError, code};
use crate::output::{self, Cell, Paint, Table, View};
use crate::watch;

const EXECUTIONS: Resource = Resource { noun: "execution", collection: "/api/v1/executions" };

pub async fn run(context: &Context, command: ExecutionCommand) -> Result<u8, CliError> {
    match command {
        ExecutionCommand::Start(args) => start(context, args).await,
        ExecutionCommand::List { state, workflow, limit, watch } => {
            watch::show(&context.out, &watch, || list(context, &state, &workflow, limit)).await
        }
        ExecutionCommand::Get { id, watch } => {
            let id = EXECUTIONS.resolve(context, &id).await?;
            watch::show(&context.out, &watch, || detail(context, &id)).await
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

async fn start(context: &Context, args: StartArgs) -> Result<u8, CliError> {
    let input = args.input.as_deref().map(|text| read_json("--input", text, "--input '{\"file\": \"a.csv\"}'"));
    let body = object([
        ("workflow", Some(json!(args.workflow))),
        ("input", input.transpose()?),
        ("labels", labels(&args.labels)?),
        ("version", args.version.map(Value::from)),
        ("name", args.name.map(Value::from)),
        ("retry", args.retry.as_deref().map(typed_policy)),
    ]);
    let started = context.client.post(EXECUTIONS.collection, &body).await?;
    let id = output::text(&started, "execution_id").to_owned();
    if !args.wait {
        let words =
            format!("{} of {} version {}", output::short(&started["execution_id"]), args.workflow, started["version"]);
        return View::message(started, format!("started {words}")).print(&context.out);
    }
    loop {
        let found = EXECUTIONS.get(context, &id).await?;
        if !found["ended_at"].is_null() {
            detail(context, &id).await?.print(&context.out)?;
            return Ok(match output::text(&found, "state") {
                "succeeded" => code::OK,
                "canceled" => code::CANCELED,
                _ => code::DEAD,
            });
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}

/// The state of an execution with its glyph.
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
) -> Result<View, CliError> {
    let mut query = vec![("limit", limit.to_string())];
    query.extend(states.clone().map(|states| ("state", states)));
    query.extend(workflow.clone().map(|path| ("workflow", path)));
    let found = context.client.get_with(EXECUTIONS.collection, &query).await?;
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
    Ok(View::table(found, table).hint_if_empty("no executions; start one: comeback execution start WORKFLOW"))
}

async fn detail(context: &Context, id: &str) -> Result<View, CliError> {
    let found = EXECUTIONS.get(context, id).await?;
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

async fn act(context: &Context, verb: &str, args: ExecutionArgs, mut body: Value) -> Result<u8, CliError> {
    let id = EXECUTIONS.resolve(context, &args.id).await?;
    if let Some(note) = args.note {
        body["note"] = note.into();
    }
    let done = EXECUTIONS.act(context, &id, verb, &body).await?;
    let it = &done["execution"];
    let words = format!("execution {} is {}", output::short(&it["id"]), output::text(it, "state"));
    View::message(done, words).print(&context.out)
}
