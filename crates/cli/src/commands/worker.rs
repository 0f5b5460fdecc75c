//! Those who ask for work.

use serde_json::{Value, json};

use super::Context;
use super::doctor::SILENCE;
use crate::args::WorkerCommand;
use crate::failure::Failure;
use crate::output::{self, Cell, Paint, Table, View, instant};
use crate::watch;

pub async fn run(context: &Context, command: WorkerCommand) -> Result<u8, Failure> {
    match command {
        WorkerCommand::List { watch } => watch::show(&context.out, &watch, || list(context)).await,
        WorkerCommand::Drain { name, note } => {
            let body = note.map_or_else(|| json!({}), |note| json!({"note": note}));
            let drained = act(context, &name, "drain", &body).await?;
            let hint = format!("what it has it keeps: comeback task list worker:{name} state:running");
            View::said(drained, format!("{name} is given nothing more")).with_hint(hint).print(&context.out)
        }
        WorkerCommand::Undrain { name } => {
            let undrained = act(context, &name, "undrain", &json!({})).await?;
            View::said(undrained, format!("{name} is given work again")).print(&context.out)
        }
    }
}

async fn act(context: &Context, name: &str, act: &str, body: &Value) -> Result<Value, Failure> {
    let done = context.client.post(&format!("/api/v1/admin/workers/{}/{act}", super::escaped(name)), body).await;
    done.map_err(|error| super::unknown("worker", name, error))
}

async fn list(context: &Context) -> Result<View, Failure> {
    let workers = context.client.get("/api/v1/admin/workers").await?;
    let now = context.now().await?;
    let mut table = Table::new(&["WORKER", "STATE", "LAST SEEN", "LEASED", "QUEUES", "KINDS", "INSTANCE", "NOTE"]);
    for it in output::items(&workers) {
        let list = |name: &str, none: &str| {
            let words: Vec<&str> = it[name].as_array().into_iter().flatten().filter_map(|word| word.as_str()).collect();
            let more = it[format!("more_{name}")].as_u64().filter(|more| *more > 0);
            let more = more.map(|more| format!(" and {more} more")).unwrap_or_default();
            if words.is_empty() { none.to_owned() } else { format!("{}{more}", words.join(",")) }
        };
        let asks_still = instant(&it["last_seen_at"]).is_some_and(|at| now.since(at) <= SILENCE);
        let state = match (it["draining"] == true, asks_still) {
            (true, _) => Cell::painted("⏸ draining", Paint::Magenta),
            (false, true) => Cell::painted("▶ takes work", Paint::Blue),
            (false, false) => "– silent".into(),
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
        0 => "no worker has asked for work in the last hour".to_owned(),
        count => format!("{} in the last hour", output::plural(count, "worker")),
    };
    Ok(View::table(workers, table).with_hint(hint))
}
