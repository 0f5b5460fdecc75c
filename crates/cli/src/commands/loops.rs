//! The background loops.

use serde_json::json;

use super::Context;
use crate::args::LoopCommand;
use crate::failure::Failure;
use crate::output::{self, Cell, Paint, Table, View, instant};

pub async fn run(context: &Context, command: LoopCommand) -> Result<u8, Failure> {
    let loops = match command {
        LoopCommand::List => context.client.get("/api/v1/admin/loops").await?,
        LoopCommand::Pause { name, duration, note } => {
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
        LoopCommand::Resume { name } => {
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

fn unknown(name: &str, error: comeback_client::Error) -> Failure {
    let there = error.problem().and_then(|problem| problem.more.get("loops")).and_then(|loops| loops.as_str());
    match there.map(str::to_owned) {
        Some(names) => Failure::new(crate::failure::code::NOT_FOUND, format!("there is no loop `{name}`"))
            .remedy(format!("one of {names}")),
        None => error.into(),
    }
}
