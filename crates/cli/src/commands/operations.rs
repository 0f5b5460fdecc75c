//! Bulk operations: started with a filter, followed, aborted and undone.

use std::time::Duration;

use serde_json::{Value, json};

use super::Context;
use super::db::progress::ProgressLine;
use super::resource::{Resource, object};
use crate::args::{BulkArgs, OperationCommand};
use crate::confirm;
use crate::error::{CliError, code};
use crate::output::{self, Table, View, outln};
use crate::watch;

const OPERATIONS: Resource = Resource { noun: "operation", collection: "/api/v1/operations" };
/// Polling interval while following one.
const POLL: Duration = Duration::from_millis(250);

pub async fn run(context: &Context, command: OperationCommand) -> Result<u8, CliError> {
    match command {
        OperationCommand::List { limit, watch } => watch::show(&context.out, &watch, || list(context, limit)).await,
        OperationCommand::Get { id, watch } => {
            let id = OPERATIONS.resolve(context, &id).await?;
            watch::show(&context.out, &watch, || async { Ok(detail(&OPERATIONS.get(context, &id).await?)) }).await
        }
        OperationCommand::Abort { id, note } => act(context, &id, "abort", note.note).await,
        OperationCommand::Undo { id, note } => act(context, &id, "undo", note.note).await,
    }
}

async fn act(context: &Context, id: &str, verb: &str, note: Option<String>) -> Result<u8, CliError> {
    let id = OPERATIONS.resolve(context, id).await?;
    let changed = OPERATIONS.act(context, &id, verb, &object([("note", note.map(Value::from))])).await?;
    detail(&changed).print(&context.out)
}

async fn list(context: &Context, limit: u32) -> Result<View, CliError> {
    let listed = context.client.get_with(OPERATIONS.collection, &[("limit", limit.to_string())]).await?;
    let now = context.now().await?;
    let mut table = Table::new(&["ID", "ACTION", "STATE", "DONE", "OF", "AGE", "FILTER", "NOTE"]);
    for it in output::items(&listed) {
        table.rows.push(vec![
            super::task::id(it, &context.out),
            output::text(it, "action").into(),
            output::text(it, "state").into(),
            it["done"].to_string().into(),
            it["matched"].to_string().into(),
            context.out.age(&it["created_at"], now),
            output::text(it, "filter").into(),
            output::text(it, "note").into(),
        ]);
    }
    let hint = "no operations yet; try one: comeback task retry --filter state:dead --dry-run";
    Ok(View::table(listed, table).hint_if_empty(hint))
}

fn detail(it: &Value) -> View {
    let mut view = View::new(it.clone());
    let (action, state) = (output::text(it, "action"), output::text(it, "state"));
    let number = |name: &str| output::grouped(it[name].as_u64().unwrap_or(0));
    if state == "dry_run" {
        view.line(format!("dry run: {action} {} of {} tasks", number("eligible"), number("matched")));
        if it["cost"].as_u64().is_some_and(|cost| cost > 0) {
            view.line(format!("  costs {} credits", number("cost")));
        }
    } else {
        let id = output::short(&it["id"]);
        view.line(format!("{id}  {action}  {state}   {} of {} done", number("done"), number("matched")));
    }
    for part in it["excluded"].as_array().into_iter().flatten() {
        view.line(format!("  skipped   {}", skipped(part)));
    }
    if let Some(wave) = it["wave"]["number"].as_u64() {
        view.line(format!("  wave {wave} of {} tasks is running", it["wave"]["tasks"]));
    }
    for wave in it["waves_done"].as_array().into_iter().flatten() {
        view.line(format!(
            "  wave {}: {} succeeded, {} failed, {} of them with the same error",
            wave["number"], wave["succeeded"], wave["failed"], wave["alike"]
        ));
    }
    if matches!(state, "undoing" | "undone") {
        view.line(format!("  undone    {}", number("undone")));
    }
    for part in it["kept"].as_array().into_iter().flatten() {
        view.line(format!("  kept      {}", skipped(part)));
    }
    view
}

/// Count and reason of a group of skipped tasks, with an example.
fn skipped(part: &Value) -> String {
    let why = match (output::text(part, "reason"), part["state"].as_str()) {
        ("wrong_state", Some(state)) => format!("are {state}"),
        ("no_credits", _) => "have an account with too few credits".to_owned(),
        ("deadline_passed", _) => "would miss their deadline".to_owned(),
        ("not_found", _) => "do not exist".to_owned(),
        ("key_taken", _) => "have a dedupe key that another open task holds".to_owned(),
        ("conflict", _) => "kept changing concurrently".to_owned(),
        ("started", _) => "have started meanwhile".to_owned(),
        ("changed", _) => "were changed meanwhile".to_owned(),
        (other, _) => other.replace('_', " "),
    };
    let first = part["sample"].get(0).map(|id| format!(", e.g. {}", output::short(id))).unwrap_or_default();
    format!("{} {why}{first}", output::grouped(part["count"].as_u64().unwrap_or(0)))
}

/// Shows a dry run, asks for confirmation on a terminal, starts the operation and follows it.
pub async fn start(context: &Context, bulk: BulkArgs, action: &str, mut body: Value) -> Result<u8, CliError> {
    (body["action"], body["filter"]) = (action.into(), json!(bulk.filter));
    let confirms = !bulk.yes && confirm::can_ask(&context.out);
    if bulk.dry_run || confirms {
        let mut dry = body.clone();
        dry["dry_run"] = true.into();
        let tried = context.client.post("/api/v1/tasks/bulk", &dry).await?;
        if bulk.dry_run {
            return detail(&tried).print(&context.out);
        }
        detail(&tried).print(&context.out)?;
        let eligible = output::plural(tried["eligible"].as_u64().unwrap_or(0), "task");
        if !confirm::is_confirmed(&format!("{action} {eligible}"))? {
            outln!("nothing was changed");
            return Ok(code::OK);
        }
    }
    let started = context.client.post("/api/v1/tasks/bulk", &body).await?;
    if bulk.no_wait {
        return detail(&started).print(&context.out);
    }
    follow(context, output::text(&started, "id")).await
}

/// Prints progress until the end. Ctrl-C ends the output, not the operation.
async fn follow(context: &Context, id: &str) -> Result<u8, CliError> {
    let mut progress = ProgressLine::new();
    loop {
        let it = OPERATIONS.get(context, id).await?;
        let number = |name: &str| it[name].as_u64().unwrap_or(0);
        let skipped = number("matched") - number("eligible");
        if matches!(output::text(&it, "state"), "running" | "undoing") {
            let what = format!("{}  done {}  skipped {skipped} ", output::text(&it, "action"), number("done"));
            progress.update(&what, number("done") + skipped, Some(number("matched")));
            tokio::time::sleep(POLL).await;
            continue;
        }
        drop(progress);
        let mut view = detail(&it);
        if it["state"] != "done" || skipped > 0 {
            view.code = code::PARTIAL;
        }
        return view.print(&context.out);
    }
}

/// Parses `canary 10, size 50, pause 30s, stop over 20% alike`, in any order.
pub fn waves(text: &str) -> Result<Value, CliError> {
    let invalid = |part: &str| {
        CliError::new(code::USAGE, format!("invalid --waves `{part}`"))
            .why(
                "waves are made of `canary N`, `size N`, `double`, `pause DURATION` and `stop over N%` (or `N% alike`)",
            )
            .remedy("--waves 'canary 10, pause 30s, stop over 20% alike'")
    };
    let mut waves = json!({"canary": 10});
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let words: Vec<&str> = part.split_whitespace().collect();
        let number = |text: &str| text.parse::<u32>().map_err(|_| invalid(part));
        match words.as_slice() {
            ["canary", count] => waves["canary"] = number(count)?.into(),
            ["size", count] => waves["size"] = number(count)?.into(),
            ["double"] => waves["double"] = true.into(),
            ["pause", span] => waves["pause"] = (*span).into(),
            ["stop", "over", share, rest @ ..] if matches!(rest, [] | ["alike"]) => {
                let share: f64 = share.trim_end_matches('%').parse().map_err(|_| invalid(part))?;
                waves["stop_if"] = json!({"failed_over": share / 100.0, "same_fingerprint": !rest.is_empty()});
            }
            _ => return Err(invalid(part)),
        }
    }
    Ok(waves)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waves_are_read_in_words() {
        let read = |text: &str| waves(text).map_err(|failure| failure.what().to_owned());
        assert_eq!(read(""), Ok(json!({"canary": 10})));
        let stop = json!({"failed_over": 0.2, "same_fingerprint": true});
        assert_eq!(
            read("canary 5, pause 30s, stop over 20% alike"),
            Ok(json!({"canary": 5, "pause": "30s", "stop_if": stop}))
        );
        assert_eq!(read("size 50"), Ok(json!({"canary": 10, "size": 50})));
        for bad in ["canary", "canary many", "stop 20%", "stop over much", "faster"] {
            assert_eq!(read(bad), Err(format!("invalid --waves `{bad}`")));
        }
    }
}
