//! Bulk operations: begun with a filter, followed, stopped and taken back.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::Context;
use super::db::progress::Progress;
use crate::args::{Many, OperationCommand};
use crate::confirm;
use crate::failure::{Failure, code};
use crate::output::{self, Table, View, say};
use crate::watch;

const LOOK: Duration = Duration::from_millis(250);

pub async fn run(context: &Context, command: OperationCommand) -> Result<u8, Failure> {
    match command {
        OperationCommand::List { limit, watch } => watch::show(&context.out, &watch, || list(context, limit)).await,
        OperationCommand::Get { id, watch } => {
            let id = find(context, &id).await?;
            watch::show(&context.out, &watch, || async { Ok(detail(&get(context, &id).await?)) }).await
        }
        OperationCommand::Abort { id, note } => turn(context, &id, "abort", note.note).await,
        OperationCommand::Undo { id, note } => turn(context, &id, "undo", note.note).await,
    }
}

async fn get(context: &Context, id: &str) -> Result<Value, Failure> {
    Ok(context.client.get(&format!("/api/v1/operations/{id}")).await?)
}

async fn turn(context: &Context, id: &str, verb: &str, note: Option<String>) -> Result<u8, Failure> {
    let id = find(context, id).await?;
    let body: Map<String, Value> = note.map(|note| ("note".to_owned(), note.into())).into_iter().collect();
    let turned = context.client.post(&format!("/api/v1/operations/{id}/{verb}"), &json!(body)).await?;
    detail(&turned).print(&context.out)
}

/// A whole id, or either end of one of the newest.
async fn find(context: &Context, text: &str) -> Result<String, Failure> {
    if uuid::Uuid::try_parse(text).is_ok() {
        return Ok(text.to_owned());
    }
    let listed = context.client.get_with("/api/v1/operations", &[("limit", "500".to_owned())]).await?;
    let bare = |text: &str| text.to_ascii_lowercase().replace('-', "");
    let is_end = |it: &&Value| {
        let id = bare(output::text(it, "id"));
        id.ends_with(&bare(text)) || id.starts_with(&bare(text))
    };
    let found: Vec<&Value> = output::items(&listed).filter(is_end).collect();
    match found.as_slice() {
        [one] => Ok(output::text(one, "id").to_owned()),
        [] => {
            Err(Failure::new(code::NOT_FOUND, format!("there is no operation `{text}`"))
                .remedy("comeback operation list"))
        }
        many => Err(Failure::new(code::USAGE, format!("`{text}` stands for {} operations", many.len()))
            .why("both ends of an id can be said, and this is of more than one")
            .remedy("say more of the id")),
    }
}

async fn list(context: &Context, limit: u32) -> Result<View, Failure> {
    let listed = context.client.get_with("/api/v1/operations", &[("limit", limit.to_string())]).await?;
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
    let empty = table.rows.is_empty();
    let view = View::table(listed, table);
    Ok(if empty {
        view.with_hint("no operations yet; comeback task retry --filter state:dead --dry-run")
    } else {
        view
    })
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
        view.line(format!("  left out  {}", group(part)));
    }
    if let Some(wave) = it["wave"]["number"].as_u64() {
        view.line(format!("  wave {wave} of {} tasks is under way", it["wave"]["tasks"]));
    }
    for wave in it["waves_done"].as_array().into_iter().flatten() {
        view.line(format!(
            "  wave {}: {} succeeded, {} failed, {} of them alike",
            wave["number"], wave["succeeded"], wave["failed"], wave["alike"]
        ));
    }
    if matches!(state, "undoing" | "undone") {
        view.line(format!("  taken back  {}", number("undone")));
    }
    for part in it["kept"].as_array().into_iter().flatten() {
        view.line(format!("  kept  {}", group(part)));
    }
    view
}

/// How many, why, and one of them.
fn group(part: &Value) -> String {
    let why = match (output::text(part, "reason"), part["state"].as_str()) {
        ("wrong_state", Some(state)) => format!("are {state}"),
        ("no_credits", _) => "have an account with too few credits".to_owned(),
        ("deadline_passed", _) => "would be past their deadline".to_owned(),
        ("not_found", _) => "are not there".to_owned(),
        ("key_taken", _) => "have a dedupe key that another open task holds".to_owned(),
        ("conflict", _) => "were changed by somebody else all the time".to_owned(),
        ("started", _) => "have started since".to_owned(),
        ("changed", _) => "were changed since".to_owned(),
        (other, _) => other.replace('_', " "),
    };
    let first = part["sample"].get(0).map(|id| format!(", such as {}", output::short(id))).unwrap_or_default();
    format!("{} {why}{first}", output::grouped(part["count"].as_u64().unwrap_or(0)))
}

/// Tries it out, asks where somebody can answer, begins it and follows it.
pub async fn begin(context: &Context, many: Many, action: &str, body: Value) -> Result<u8, Failure> {
    let mut body = body;
    (body["action"], body["filter"]) = (action.into(), json!(many.filter));
    let asks = !many.yes && confirm::can_ask(&context.out);
    if many.dry_run || asks {
        let mut dry = body.clone();
        dry["dry_run"] = true.into();
        let tried = context.client.post("/api/v1/tasks/bulk", &dry).await?;
        if many.dry_run {
            return detail(&tried).print(&context.out);
        }
        detail(&tried).print(&context.out)?;
        let eligible = output::plural(tried["eligible"].as_u64().unwrap_or(0), "task");
        if !confirm::is_confirmed(&format!("{action} {eligible}"))? {
            say!("nothing was changed");
            return Ok(code::OK);
        }
    }
    let begun = context.client.post("/api/v1/tasks/bulk", &body).await?;
    if many.no_wait {
        return detail(&begun).print(&context.out);
    }
    follow(context, output::text(&begun, "id")).await
}

/// Until it is over. Whoever stops looking stops nothing.
async fn follow(context: &Context, id: &str) -> Result<u8, Failure> {
    let mut progress = Progress::begin();
    loop {
        let it = get(context, id).await?;
        let number = |name: &str| it[name].as_u64().unwrap_or(0);
        let skipped = number("matched") - number("eligible");
        if matches!(output::text(&it, "state"), "running" | "undoing") {
            let what = format!("{}  done {}  skipped {skipped} ", output::text(&it, "action"), number("done"));
            progress.tell(&what, number("done") + skipped, Some(number("matched")));
            tokio::time::sleep(LOOK).await;
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

/// `canary 10, size 50, pause 30s, stop over 20% alike`, in any order.
pub fn waves(text: &str) -> Result<Value, Failure> {
    let unread = |part: &str| {
        Failure::new(code::USAGE, format!("`{part}` says nothing of waves"))
            .why("they are made of `canary N`, `size N`, `pause SPAN` and `stop over N%`, with `alike` behind it")
            .remedy("--waves 'canary 10, pause 30s, stop over 20% alike'")
    };
    let mut waves = json!({"canary": 10});
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let words: Vec<&str> = part.split_whitespace().collect();
        let number = |text: &str| text.parse::<u32>().map_err(|_| unread(part));
        match words.as_slice() {
            ["canary", count] => waves["canary"] = number(count)?.into(),
            ["size", count] => waves["size"] = number(count)?.into(),
            ["double"] => waves["double"] = true.into(),
            ["pause", span] => waves["pause"] = (*span).into(),
            ["stop", "over", share, rest @ ..] if matches!(rest, [] | ["alike"]) => {
                let share: f64 = share.trim_end_matches('%').parse().map_err(|_| unread(part))?;
                waves["stop_if"] = json!({"failed_over": share / 100.0, "same_fingerprint": !rest.is_empty()});
            }
            _ => return Err(unread(part)),
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
            assert_eq!(read(bad), Err(format!("`{bad}` says nothing of waves")));
        }
    }
}
