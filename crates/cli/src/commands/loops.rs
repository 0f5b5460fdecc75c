//! The background loops.

use serde_json::json;

use super::Context;
use crate::args::LoopCommand;
use crate::failure::Failure;
use crate::output::{self, Cell, Paint, Table, View, instant};

pub async fn run(context: &Context, command: LoopCommand) -> Result<u8, Failure> {
    let loops = match command {
        LoopCommand::List => context.client.get("/api/v1/admin/loops").await?,
        LoopCommand::Pause { name, duration, dry_run: true, .. } => return preview(context, &name, duration).await,
        LoopCommand::Pause { name, duration, note, dry_run: false, .. } => {
            let mut body = json!({});
            if let Some(duration) = duration {
                body["duration"] = duration.into();
            }
            if let Some(note) = note {
                body["note"] = note.into();
            }
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

/// What it is that a loop brings on.
fn brought_on(name: &str, count: u64) -> String {
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

async fn preview(context: &Context, name: &str, duration: Option<String>) -> Result<u8, Failure> {
    let query: Vec<(&str, String)> = duration.iter().map(|span| ("duration", span.clone())).collect();
    let address = format!("/api/v1/admin/loops/{name}/preview");
    let told = context.client.get_with(&address, &query).await.map_err(|error| unknown(name, error))?;
    let mut view = View::new(told.clone());
    for it in told["loops"].as_array().into_iter().flatten() {
        let (name, number) = (output::text(it, "name"), |field: &str| it[field].as_u64().unwrap_or(0));
        let how_long = duration.as_ref().map_or("until it is resumed".to_owned(), |span| format!("for {span}"));
        let delayed = brought_on(name, number("delayed"));
        let late = match number("past_deadline") {
            0 => String::new(),
            late => format!(", {late} of them past their deadline"),
        };
        view.line(format!("pausing {name} {how_long} delays {delayed}{late}"));
    }
    view.line("nothing was paused".to_owned());
    view.print(&context.out)
}

fn unknown(name: &str, error: comeback_client::Error) -> Failure {
    let there = error.problem().and_then(|problem| problem.more.get("loops")).and_then(|loops| loops.as_str());
    match there.map(str::to_owned) {
        Some(names) => Failure::new(crate::failure::code::NOT_FOUND, format!("there is no loop `{name}`"))
            .remedy(format!("one of {names}")),
        None => error.into(),
    }
}
