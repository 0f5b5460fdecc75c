//! Tail: what happens, one line each.

use std::collections::HashMap;

use comeback_core::Millis;
use futures_util::StreamExt;
use serde_json::Value;

use super::Context;
use crate::args::Global;
use crate::failure::{Failure, code};
use crate::output::{self, say};

/// Verdicts and ends: what a person wants to see go by.
const NOTABLE: &str = "task.retry_scheduled,task.throttled,task.snoozed,task.parked,task.failed,task.retry_exhausted,\
    task.succeeded,task.canceled,task.skipped,task.expired,task.manual_retry,task.paused,task.resumed";

pub struct What {
    pub task: Option<String>,
    pub from_start: bool,
    pub all: bool,
}

pub async fn run(context: &Context, global: &Global, what: What) -> Result<u8, Failure> {
    let What { task, from_start, all } = what;
    let mut kinds = Kinds::default();
    let mut query: Vec<(&str, String)> = Vec::new();
    if let Some(task) = task {
        query.push(("task_id", context.resolve(&task).await?));
    }
    if !all {
        query.push(("types", NOTABLE.to_owned()));
    }
    if !from_start {
        query.push(("after", "latest".to_owned()));
    }
    query.retain(|(_, value)| !value.is_empty());
    let mut request =
        reqwest::Client::new().get(format!("{}/api/v1/events/stream", context.client.server())).query(&query);
    if let Some(key) = &global.key {
        request = request.bearer_auth(key);
    }
    if let Some(namespace) = &global.namespace {
        request = request.header("comeback-namespace", namespace);
    }
    let broken = |error: reqwest::Error| Failure::new(code::UNREACHABLE, format!("the stream broke off: {error}"));
    let response = request.send().await.map_err(broken)?;
    if !response.status().is_success() {
        return Err(Failure::new(code::FAILED, format!("the server answered {}", response.status())));
    }
    let mut pieces = response.bytes_stream();
    let mut rest = Vec::new();
    while let Some(piece) = pieces.next().await {
        rest.extend_from_slice(&piece.map_err(broken)?);
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = rest.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            if let Some(event) = line.strip_prefix("data:").and_then(|text| serde_json::from_str::<Value>(text).ok()) {
                if global.json { say!("{event}") } else { print(&event, &kinds.of(context, &event).await) }
            }
        }
    }
    Ok(code::OK)
}

/// What sort of task each one is; asked once.
#[derive(Default)]
struct Kinds {
    known: HashMap<String, String>,
}

impl Kinds {
    async fn of(&mut self, context: &Context, event: &Value) -> String {
        let Some(id) = event["task_id"].as_str() else { return "execution".into() };
        if let Some(kind) = self.known.get(id) {
            return kind.clone();
        }
        let kind = context.client.task(id).await.map(|task| output::text(&task, "kind").to_owned()).unwrap_or_default();
        self.known.insert(id.to_owned(), kind.clone());
        kind
    }
}

fn print(event: &Value, kind: &str) {
    let data = &event["data"];
    let word = output::text(event, "type");
    let again = event["run"].as_u64().unwrap_or(0) > 1;
    let (glyph, end) = match word {
        "task.succeeded" if again => ("◎", "recovered"),
        "task.succeeded" => ("✓", "ok"),
        "task.retry_scheduled" | "task.throttled" | "task.snoozed" => ("↻", ""),
        "task.failed" => ("✕", "failed, no retry"),
        "task.retry_exhausted" => ("✕", "dead"),
        "attempt.failed" => ("✕", ""),
        "attempt.started" => ("▶", "started"),
        "task.canceled" => ("–", "canceled"),
        "task.paused" | "task.parked" => ("⏸", "paused"),
        other => ("·", other),
    };
    let mut words: Vec<String> = Vec::new();
    if let Some(error) = data["error"].as_str().or(data["last_error"].as_str()) {
        words.push(error.to_owned());
    }
    if let Some(ms) = data["delay_ms"].as_u64() {
        let uncounted = if word == "task.throttled" { " (not counted)" } else { "" };
        words.push(format!("→ retry in {}{uncounted}", output::span(Millis(ms))));
    }
    if !end.is_empty() {
        words.push(if words.is_empty() { end.to_owned() } else { format!("→ {end}") });
    }
    let at = output::text(event, "at").get(11..19).unwrap_or_default();
    let run = event["run"].as_u64().filter(|run| *run > 0).map(|run| format!("run {run}")).unwrap_or_default();
    say!("{at}  {glyph} {kind:<16} {}  {run:<6} {}", output::short(&event["task_id"]), words.join(" "));
}
