//! Workers.

use serde_json::{Value, json};

use super::Context;
use super::doctor::SILENCE;
use super::resource::{Resource, object};
use crate::args::WorkerCommand;
use crate::error::CliError;
use crate::output::{self, Cell, Paint, Table, View, instant};
use crate::watch;

const WORKERS: Resource = Resource { noun: "worker", collection: "/api/v1/admin/workers" };

pub async fn run(context: &Context, command: WorkerCommand) -> Result<u8, CliError> {
    match command {
        WorkerCommand::List { watch } => watch::show(&context.out, &watch, || list(context)).await,
        WorkerCommand::Drain { name, note } => {
            let body = object([("note", note.map(Value::from))]);
            let drained = WORKERS.act(context, &name, "drain", &body).await?;
            let hint = format!("running leases finish: comeback task list worker:{name} state:running");
            View::message(drained, format!("worker {name} is draining")).with_hint(hint).print(&context.out)
        }
        WorkerCommand::Undrain { name } => {
            let undrained = WORKERS.act(context, &name, "undrain", &json!({})).await?;
            View::message(undrained, format!("worker {name} gets leases again")).print(&context.out)
        }
    }
}

async fn list(context: &Context) -> Result<View, CliError> {
    let workers = context.client.get(WORKERS.collection).await?;
    let now = context.now().await?;
    let mut table = Table::new(&["WORKER", "STATE", "LAST SEEN", "LEASED", "QUEUES", "KINDS", "INSTANCE", "NOTE"]);
    for it in output::items(&workers) {
        let list = |name: &str, none: &str| {
            let words: Vec<&str> = it[name].as_array().into_iter().flatten().filter_map(|word| word.as_str()).collect();
            let more = it[format!("more_{name}")].as_u64().filter(|more| *more > 0);
            let more = more.map(|more| format!(" and {more} more")).unwrap_or_default();
            if words.is_empty() { none.to_owned() } else { format!("{}{more}", words.join(",")) }
        };
        let is_active = instant(&it["last_seen_at"]).is_some_and(|at| now.since(at) <= SILENCE);
        let state = match (it["draining"] == true, is_active) {
            (true, _) => Cell::painted("⏸ draining", Paint::Magenta),
            (false, true) => Cell::painted("▶ active", Paint::Blue),
            (false, false) => "– idle".into(),
        };
        table.rows.push(vec![
            output::text(it, "name").into(),
            state,
            context.out.time_cell(&it["last_seen_at"], now),
            it["leased_total"].to_string().into(),
            list("queues", "default").into(),
            list("kinds", "any").into(),
            output::text(it, "instance").into(),
            output::text(it, "note").into(),
        ]);
    }
    let hint = match table.rows.len() as u64 {
        0 => "no workers in the last hour".to_owned(),
        count => format!("{} in the last hour", output::plural(count, "worker")),
    };
    Ok(View::table(workers, table).with_hint(hint))
}
