//! Those who ask for work.

use super::Context;
use crate::args::WorkerCommand;
use crate::failure::Failure;
use crate::output::{self, Table, View};
use crate::watch;

pub async fn run(context: &Context, command: WorkerCommand) -> Result<u8, Failure> {
    let WorkerCommand::List { watch } = command;
    watch::show(&context.out, &watch, || list(context)).await
}

async fn list(context: &Context) -> Result<View, Failure> {
    let workers = context.client.get("/api/v1/admin/workers").await?;
    let now = context.now().await?;
    let mut table = Table::new(&["WORKER", "LAST SEEN", "LEASED", "QUEUES", "KINDS", "INSTANCE"]);
    for it in output::items(&workers) {
        let list = |name: &str, none: &str| {
            let words: Vec<&str> = it[name].as_array().into_iter().flatten().filter_map(|word| word.as_str()).collect();
            if words.is_empty() { none.to_owned() } else { words.join(",") }
        };
        table.rows.push(vec![
            output::text(it, "name").into(),
            context.out.time_cell(&it["last_seen_at"], now),
            it["leased_total"].to_string().into(),
            list("queues", "default").into(),
            list("kinds", "any").into(),
            output::text(it, "instance").into(),
        ]);
    }
    let hint = match table.rows.len() as u64 {
        0 => "no worker has asked for work in the last hour".to_owned(),
        count => format!("{} in the last hour", output::plural(count, "worker")),
    };
    Ok(View::table(workers, table).with_hint(hint))
}
