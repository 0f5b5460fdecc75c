//! Workflows and their versions.

use std::io::Read;
use std::path::Path;

use comeback_core::workflow;
use serde_json::{Value, json};

use super::Context;
use super::resource::Resource;
use crate::args::{WorkflowArgs, WorkflowCommand};
use crate::error::{CliError, code};
use crate::output::{self, Cell, Output, Paint, Table, View, outln};

const WORKFLOWS: Resource = Resource { noun: "workflow", collection: "/api/v1/workflows" };

pub async fn run(
    context: impl FnOnce() -> Result<Context, CliError>,
    out: &Output,
    command: WorkflowCommand,
) -> Result<u8, CliError> {
    match command {
        WorkflowCommand::Check { file } => check(&file),
        WorkflowCommand::Schema => {
            out.json(&workflow::schema());
            Ok(0)
        }
        other => online(&context()?, other).await,
    }
}

async fn online(context: &Context, command: WorkflowCommand) -> Result<u8, CliError> {
    match command {
        WorkflowCommand::Put { path, file, import } => {
            let text = read(&file)?;
            // Parsed with the code of the server first, so that syntax errors need no request.
            let checked = if import { workflow::import(&text).map(drop) } else { workflow::read(&text).map(drop) };
            checked.map_err(|problems| invalid(&file, &problems))?;
            let query = if import { "?import=true" } else { "" };
            let address = format!("{}{query}", WORKFLOWS.path(&path));
            let put = context.client.put_yaml(&address, &text).await.map_err(|error| rejected(&file, error))?;
            let version = put["version"].as_u64().unwrap_or(0);
            let words = if put["created"] == true { "" } else { "; nothing changed" };
            let words = format!("{path} is at version {version}{words}");
            let warning = |it: &Value| {
                let place = format!("{}:{}:{}", file.display(), it["line"], it["column"]);
                format!("{place}: {}: {}", output::text(it, "path"), output::text(it, "message"))
            };
            let mut lines: Vec<String> = put["warnings"].as_array().into_iter().flatten().map(warning).collect();
            lines.push(words);
            View::lines_of(put, lines).print(&context.out)
        }
        WorkflowCommand::List => list(context, WORKFLOWS.list(context).await?).await,
        WorkflowCommand::Versions { path } => {
            let found = context.client.get(&format!("{}/versions", WORKFLOWS.path(&path))).await;
            list(context, found.map_err(|error| WORKFLOWS.failure(&path, error))?).await
        }
        WorkflowCommand::Get { path, version } => {
            let found = match version {
                None => WORKFLOWS.get(context, &path).await?,
                Some(version) => {
                    let address = format!("{}/versions/{version}", WORKFLOWS.path(&path));
                    let found = context.client.get(&address).await;
                    found.map_err(|error| WORKFLOWS.failure(&format!("{path}@{version}"), error))?
                }
            };
            if context.out.is_json() {
                context.out.json(&found);
            } else {
                outln!("{}", output::text(&found, "source").trim_end());
            }
            Ok(0)
        }
        WorkflowCommand::Steps { path } => steps(context, WORKFLOWS.get(context, &path).await?),
        WorkflowCommand::Activate(one) => set_state(context, one, "activate").await,
        WorkflowCommand::Deactivate(one) => set_state(context, one, "deactivate").await,
        WorkflowCommand::Pause(one) => set_state(context, one, "pause").await,
        WorkflowCommand::Resume(one) => set_state(context, one, "resume").await,
        WorkflowCommand::Rollback { one, to } => {
            let body = json!({"version": to, "note": one.note});
            let put = context.client.post(&format!("{}/rollback", WORKFLOWS.path(&one.path)), &body).await;
            let put = put.map_err(|error| WORKFLOWS.failure(&format!("{}@{to}", one.path), error))?;
            let words = match put["created"] == true {
                true => format!("{} is at version {}, the same as version {to}", one.path, put["version"]),
                false => format!("{} is at version {}; nothing changed", one.path, put["version"]),
            };
            View::message(put, words).print(&context.out)
        }
        WorkflowCommand::Diff { path, from, to } => {
            let query: Vec<(&str, String)> = [("from", from), ("to", to)]
                .into_iter()
                .filter_map(|(name, version)| version.map(|version| (name, version.to_string())))
                .collect();
            let found = context.client.get_with(&format!("{}/diff", WORKFLOWS.path(&path)), &query).await;
            let found = found.map_err(|error| WORKFLOWS.failure(&path, error))?;
            let mut table = Table::new(&["WHERE", "BEFORE", "AFTER"]);
            let shown = |value: &Value| if value.is_null() { "–".to_owned() } else { value.to_string() };
            for it in found["differences"].as_array().into_iter().flatten() {
                let row =
                    vec![output::text(it, "path").into(), shown(&it["before"]).into(), shown(&it["after"]).into()];
                table.rows.push(row);
            }
            let hint = match table.rows.len() as u64 {
                0 => format!("versions {} and {} are equal", found["from"], found["to"]),
                count => {
                    format!("{} from version {} to {}", output::plural(count, "difference"), found["from"], found["to"])
                }
            };
            View::table(found, table).with_hint(hint).print(&context.out)
        }
        WorkflowCommand::Check { .. } | WorkflowCommand::Schema => Ok(0),
    }
}

/// Activates, deactivates, pauses or resumes a workflow.
async fn set_state(context: &Context, one: WorkflowArgs, action: &str) -> Result<u8, CliError> {
    let answer = WORKFLOWS.act(context, &one.path, action, &json!({"note": one.note})).await?;
    let words = match output::text(&answer, "state") {
        "paused" => format!("{} is paused; resume it: comeback workflow resume {}", one.path, one.path),
        "inactive" => format!("{} is inactive; activate it: comeback workflow activate {}", one.path, one.path),
        _ => format!("{} is active", one.path),
    };
    View::message(answer, words).print(&context.out)
}

/// The steps, with the source of each retry policy: step, workflow, kind or server default.
fn steps(context: &Context, found: Value) -> Result<u8, CliError> {
    let mut table = Table::new(&["STEP", "KIND", "QUEUE", "RETRY", "SOURCE"]);
    for step in found["workflow"]["steps"].as_array().into_iter().flatten() {
        let value = |field: &str| if step[field].is_null() { &step["given"][field] } else { &step[field] };
        let shown = |field: &str| match value(field) {
            Value::String(text) => text.clone(),
            Value::Bool(false) | Value::Null => "never".to_owned(),
            other => other.to_string(),
        };
        let source = match output::text(&step["origins"], "retry") {
            "workflow" => "workflow",
            "kind" => "kind",
            "server" => "default",
            _ => "step",
        };
        let name = output::text(step, "name");
        let row = [name.to_owned(), shown("kind"), shown("queue"), shown("retry"), source.to_owned()];
        table.rows.push(row.into_iter().map(Into::into).collect());
    }
    View::table(found, table).print(&context.out)
}

async fn list(context: &Context, found: Value) -> Result<u8, CliError> {
    let now = context.now().await?;
    let mut table = Table::new(&["PATH", "VERSION", "STATE", "SINCE"]);
    for it in output::items(&found) {
        let (path, version) = (output::text(it, "path"), it["version"].to_string());
        let state = match output::text(it, "state") {
            "paused" => Cell::painted("⏸ paused", Paint::Magenta),
            "inactive" => Cell::painted("■ inactive", Paint::Dim),
            _ => "▶ active".into(),
        };
        table.rows.push(vec![path.into(), version.into(), state, context.out.time_cell(&it["created_at"], now)]);
    }
    let hint = "no workflows; add one: comeback workflow put PATH FILE";
    View::table(found, table).hint_if_empty(hint).print(&context.out)
}

/// Reads a file, or standard input for `-`.
pub fn read(file: &Path) -> Result<String, CliError> {
    let mut text = String::new();
    let read = match file.to_str() {
        Some("-") => std::io::stdin().read_to_string(&mut text).map(|_| text),
        _ => std::fs::read_to_string(file),
    };
    read.map_err(|error| {
        CliError::new(code::USAGE, format!("cannot read {}", file.display()))
            .why(crate::error::without_number(&error.to_string()))
            .remedy("name an existing file, or - for standard input")
    })
}

fn check(file: &Path) -> Result<u8, CliError> {
    let text = read(file)?;
    let source = workflow::read(&text).map_err(|problems| invalid(file, &problems))?;
    let steps = source.workflow.steps.len() as u64;
    outln!("{} is valid: {}", file.display(), output::plural(steps, "step"));
    Ok(0)
}

/// Lists every problem with its place and its line, as compilers do.
fn invalid(file: &Path, problems: &workflow::Problems) -> CliError {
    let listed = problems.0.iter().map(|it| (it.to_string(), it.snippet.clone())).collect();
    problem_list(file, listed).remedy("validate in your editor: comeback workflow schema > workflow.schema.json")
}

/// Lists the problems that only the server can find, with the same places.
fn rejected(file: &Path, error: comeback_client::Error) -> CliError {
    let problems = error.problem().and_then(|problem| problem.more.get("errors")).and_then(Value::as_array).cloned();
    let Some(problems) = problems.filter(|problems| problems.iter().any(|it| it["line"].is_u64())) else {
        return error.into();
    };
    let place = |it: &Value| {
        format!("{}:{}: {}: {}", it["line"], it["column"], output::text(it, "path"), output::text(it, "message"))
    };
    let listed = problems.iter().map(|it| (place(it), it["snippet"].as_str().map(str::to_owned))).collect();
    problem_list(file, listed).remedy("correct it, or start the server with the options it needs")
}

fn problem_list(file: &Path, problems: Vec<(String, Option<String>)>) -> CliError {
    let count = problems.len() as u64;
    let mut lines: Vec<String> = Vec::new();
    for (words, snippet) in problems.into_iter().take(MOST_LISTED) {
        lines.push(words);
        lines.extend(snippet.iter().flat_map(|text| text.lines()).map(|line| format!("  {line}")));
    }
    let failure = CliError::new(code::USAGE, format!("{}: {}", file.display(), output::plural(count, "problem")));
    failure.why(lines.join("\n       "))
}

/// Problems that are listed at most.
const MOST_LISTED: usize = 20;
