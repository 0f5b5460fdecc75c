//! The catalog of workflows.

use std::io::Read;
use std::path::Path;

use comeback_core::workflow;
use serde_json::{Value, json};

use super::Context;
use crate::args::{SwitchArgs, WorkflowCommand};
use crate::failure::{Failure, code};
use crate::output::{self, Cell, Output, Paint, Table, View, say};

pub async fn run(
    context: impl FnOnce() -> Result<Context, Failure>,
    out: &Output,
    command: WorkflowCommand,
) -> Result<u8, Failure> {
    match command {
        WorkflowCommand::Check { file } => check(&file),
        WorkflowCommand::Schema => {
            out.json(&workflow::schema());
            Ok(0)
        }
        other => online(&context()?, other).await,
    }
}

async fn online(context: &Context, command: WorkflowCommand) -> Result<u8, Failure> {
    let at = |path: &str| format!("/api/v1/workflows/{}", path.replace('/', "%2F"));
    match command {
        WorkflowCommand::Put { path, file, import } => {
            let text = read(&file)?;
            // The same reader as the server's: what is wrong is told before anybody is asked.
            let checked = if import { workflow::import(&text).map(drop) } else { workflow::read(&text).map(drop) };
            checked.map_err(|problems| wrong(&file, &problems))?;
            let address = if import { format!("{}?import=true", at(&path)) } else { at(&path) };
            let put = context.client.put_yaml(&address, &text).await.map_err(|error| refused(&file, error))?;
            let version = put["version"].as_u64().unwrap_or(0);
            let words = if put["created"] == true { "" } else { "; nothing has changed" };
            let words = format!("{path} is at version {version}{words}");
            let mut view = View::new(put.clone());
            for it in put["warnings"].as_array().into_iter().flatten() {
                let place = format!("{}:{}:{}", file.display(), it["line"], it["column"]);
                view.line(format!("{place}: {}: {}", output::text(it, "path"), output::text(it, "message")));
            }
            view.line(words);
            view.print(&context.out)
        }
        WorkflowCommand::List => {
            let found = context.client.get_with("/api/v1/workflows", &[("limit", "500".into())]).await?;
            lines(context, found, "comeback workflow put PATH FILE").await
        }
        WorkflowCommand::Versions { path } => {
            let found = context.client.get(&format!("{}/versions", at(&path))).await?;
            lines(context, found, "").await
        }
        WorkflowCommand::Show { path, version } => {
            let address = version.map_or_else(|| at(&path), |version| format!("{}/versions/{version}", at(&path)));
            let found = context.client.get(&address).await?;
            if context.out.is_json() {
                context.out.json(&found);
            } else {
                say!("{}", output::text(&found, "source").trim_end());
            }
            Ok(0)
        }
        WorkflowCommand::Steps { path } => steps(context, context.client.get(&at(&path)).await?),
        WorkflowCommand::Activate(one) => switch(context, &at(&one.path), one, "activate").await,
        WorkflowCommand::Deactivate(one) => switch(context, &at(&one.path), one, "deactivate").await,
        WorkflowCommand::Pause(one) => switch(context, &at(&one.path), one, "pause").await,
        WorkflowCommand::Resume(one) => switch(context, &at(&one.path), one, "resume").await,
        WorkflowCommand::Rollback { one, to } => {
            let body = json!({"version": to, "note": one.note});
            let put = context.client.post(&format!("{}/rollback", at(&one.path)), &body).await?;
            let words = match put["created"] == true {
                true => format!("{} is at version {}, which says what {to} said", one.path, put["version"]),
                false => format!("{} is at version {}; nothing has changed", one.path, put["version"]),
            };
            View::said(put, words).print(&context.out)
        }
        WorkflowCommand::Diff { path, from, to } => {
            let asked: Vec<(&str, String)> = [("from", from), ("to", to)]
                .into_iter()
                .filter_map(|(name, version)| version.map(|version| (name, version.to_string())))
                .collect();
            let found = context.client.get_with(&format!("{}/diff", at(&path)), &asked).await?;
            let mut table = Table::new(&["WHERE", "BEFORE", "AFTER"]);
            let shown = |value: &Value| if value.is_null() { "–".to_owned() } else { value.to_string() };
            for it in found["differences"].as_array().into_iter().flatten() {
                let row =
                    vec![output::text(it, "path").into(), shown(&it["before"]).into(), shown(&it["after"]).into()];
                table.rows.push(row);
            }
            let hint = match table.rows.len() as u64 {
                0 => format!("versions {} and {} say the same", found["from"], found["to"]),
                count => {
                    format!("{} from version {} to {}", output::plural(count, "difference"), found["from"], found["to"])
                }
            };
            View::table(found, table).with_hint(hint).print(&context.out)
        }
        WorkflowCommand::Check { .. } | WorkflowCommand::Schema => Ok(0),
    }
}

async fn switch(context: &Context, address: &str, one: SwitchArgs, verb: &str) -> Result<u8, Failure> {
    let standing = context.client.post(&format!("{address}/{verb}"), &json!({"note": one.note})).await?;
    let words = match output::text(&standing, "state") {
        "paused" => format!("{} is paused: comeback workflow resume {}", one.path, one.path),
        "inactive" => format!("{} is out of use: comeback workflow activate {}", one.path, one.path),
        _ => format!("{} is active", one.path),
    };
    View::said(standing, words).print(&context.out)
}

/// Its steps, with whose word each policy is: the nearer one wins.
fn steps(context: &Context, found: Value) -> Result<u8, Failure> {
    let mut table = Table::new(&["STEP", "KIND", "QUEUE", "RETRY", "SAYS"]);
    for step in found["workflow"]["steps"].as_array().into_iter().flatten() {
        let value = |field: &str| if step[field].is_null() { &step["given"][field] } else { &step[field] };
        let shown = |field: &str| match value(field) {
            Value::String(text) => text.clone(),
            Value::Bool(false) | Value::Null => "never".to_owned(),
            other => other.to_string(),
        };
        let whose = match output::text(&step["origins"], "retry") {
            "workflow" => "the workflow",
            "kind" => "its kind",
            "server" => "nobody",
            _ => "the step",
        };
        let name = output::text(step, "name");
        let row = [name.to_owned(), shown("kind"), shown("queue"), shown("retry"), whose.to_owned()];
        table.rows.push(row.into_iter().map(Into::into).collect());
    }
    View::table(found, table).print(&context.out)
}

async fn lines(context: &Context, found: Value, remedy: &str) -> Result<u8, Failure> {
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
    let empty = table.rows.is_empty();
    let view = View::table(found, table);
    let view = if empty { view.with_hint(format!("the catalog is empty: {remedy}")) } else { view };
    view.print(&context.out)
}

pub fn read(file: &Path) -> Result<String, Failure> {
    let mut text = String::new();
    let read = match file.to_str() {
        Some("-") => std::io::stdin().read_to_string(&mut text).map(|_| text),
        _ => std::fs::read_to_string(file),
    };
    read.map_err(|error| {
        Failure::new(code::USAGE, format!("cannot read {}", file.display()))
            .why(crate::failure::without_number(&error.to_string()))
            .remedy("name a file that is there, or - for standard input")
    })
}

fn check(file: &Path) -> Result<u8, Failure> {
    let text = read(file)?;
    let source = workflow::read(&text).map_err(|problems| wrong(file, &problems))?;
    let steps = source.workflow.steps.len() as u64;
    say!("{} is well: {}", file.display(), output::plural(steps, "step"));
    Ok(0)
}

/// Every problem with its place and its line, as compilers do.
fn wrong(file: &Path, problems: &workflow::Problems) -> Failure {
    let told = problems.0.iter().map(|it| (it.to_string(), it.snippet.clone())).collect();
    listed(file, told).remedy("comeback workflow schema > workflow.schema.json, and name it in your editor")
}

/// What only the server can know to be wrong, with the same places.
fn refused(file: &Path, error: comeback_client::Error) -> Failure {
    let problems = error.problem().and_then(|problem| problem.more.get("errors")).and_then(Value::as_array).cloned();
    let Some(problems) = problems.filter(|problems| problems.iter().any(|it| it["line"].is_u64())) else {
        return error.into();
    };
    let place = |it: &Value| {
        format!("{}:{}: {}: {}", it["line"], it["column"], output::text(it, "path"), output::text(it, "message"))
    };
    let told = problems.iter().map(|it| (place(it), it["snippet"].as_str().map(str::to_owned))).collect();
    listed(file, told).remedy("correct it, or start the server with what it needs")
}

fn listed(file: &Path, problems: Vec<(String, Option<String>)>) -> Failure {
    let count = problems.len() as u64;
    let mut lines: Vec<String> = Vec::new();
    for (words, snippet) in problems.into_iter().take(MOST_TOLD) {
        lines.push(words);
        lines.extend(snippet.iter().flat_map(|text| text.lines()).map(|line| format!("  {line}")));
    }
    let failure = Failure::new(code::USAGE, format!("{}: {}", file.display(), output::plural(count, "problem")));
    failure.why(lines.join("\n       "))
}

/// More than anybody reads at once.
const MOST_TOLD: usize = 20;
