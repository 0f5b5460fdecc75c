//! Background loops.

use serde_json::{Value, json};

use super::Context;
use super::resource::object;
use crate::args::LoopCommand;
use crate::error::CliError;
use crate::output::{self, Cell, Paint, Table, View, instant};

pub async fn run(context: &Context, command: LoopCommand) -> Result<u8, CliError> {
    let loops = match command {
        LoopCommand::List => context.client.get("/api/v1/admin/loops").await?,
        LoopCommand::Pause { name, duration, dry_run: true, .. } => return preview(context, &name, duration).await,
        LoopCommand::Pause { name, duration, note, dry_run: false, .. } => {
            let body = object([("duration", duration.map(Value::from)), ("note", note.map(Value::from))]);
            let paused = context.client.post(&format!("/api/v1/admin/loops/{name}/pause"), &body).await;
            paused.map_err(|error| unknown(&name, error))?
        }
        LoopCommand::Resume { name, .. } => {
            let resumed = context.client.post(&format!("/api/v1/admin/loops/{name}/resume"), &json!({})).await;
            resumed.map_err(|error| unknown(&name, error))?
        }
    };
    let now = context.now().await?;
    let mut table = Table::new(&["LOOP", "STATE", "NOTE"]);
    for it in output::items(&loops) {
        let state = match (it["paused"] == true, instant(&it["resumes_at"])) {
            (false, _) => Cell::painted("▶ running", Paint::Blue),
            (true, None) => Cell::painted("⏸ paused until resumed", Paint::Magenta),
            (true, Some(at)) => Cell::painted(format!("⏸ paused, resumes {}", context.out.at(at, now)), Paint::Magenta),
        };
        table.rows.push(vec![output::text(it, "name").into(), state, output::text(it, "note").into()]);
    }
    View::table(loops, table).print(&context.out)
}

/// The work that a loop moves, counted.
fn work_of(name: &str, count: u64) -> String {
    let noun = match name {
        "retries" if count == 1 => return "1 retry".to_owned(),
        "retries" => return format!("{} retries", output::grouped(count)),
        "starts" => "first start",
        "reap" => "lost run",
        "timeout" => "timeout",
        "expire" => "deadline",
        "schedule" => "schedule",
        _ => "task",
    };
    output::plural(count, noun)
}

async fn preview(context: &Context, name: &str, duration: Option<String>) -> Result<u8, CliError> {
    let query: Vec<(&str, String)> = duration.iter().map(|span| ("duration", span.clone())).collect();
    let address = format!("/api/v1/admin/loops/{name}/preview");
    let preview = context.client.get_with(&address, &query).await.map_err(|error| unknown(name, error))?;
    let mut view = View::new(preview.clone());
    for it in preview["loops"].as_array().into_iter().flatten() {
        let (name, number) = (output::text(it, "name"), |field: &str| it[field].as_u64().unwrap_or(0));
        let how_long = duration.as_ref().map_or("until resumed".to_owned(), |span| format!("for {span}"));
        let delayed = work_of(name, number("delayed"));
        let late = match number("past_deadline") {
            0 => String::new(),
            late => format!(", {late} of them past their deadline"),
        };
        view.line(format!("pausing {name} {how_long} delays {delayed}{late}"));
    }
    view.line("dry run: nothing was paused".to_owned());
    view.print(&context.out)
}

fn unknown(name: &str, error: comeback_client::Error) -> CliError {
    let names = error.problem().and_then(|problem| problem.more.get("loops")).and_then(|loops| loops.as_str());
    match names.map(str::to_owned) {
        Some(names) => CliError::new(crate::error::code::NOT_FOUND, format!("there is no loop `{name}`"))
            .remedy(format!("one of {names}")),
        None => error.into(),
    }
}
