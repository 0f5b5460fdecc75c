//! Tail: what happens, one line each.

use comeback_core::Millis;
use futures_util::StreamExt;
use serde_json::Value;

use super::Context;
use crate::args::Global;
use crate::failure::{Failure, code};
use crate::output::{self, say};

pub async fn run(context: &Context, global: &Global, task: Option<String>, from_start: bool) -> Result<u8, Failure> {
    let mut query: Vec<(&str, String)> = Vec::new();
    if let Some(task) = task {
        query.push(("task_id", context.resolve(&task).await?));
    }
    if !from_start {
        query.push(("after", latest(context).await?));
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
                if global.json { say!("{event}") } else { print(&event) }
            }
        }
    }
    Ok(code::OK)
}

/// Where the feed ends now.
async fn latest(context: &Context) -> Result<String, Failure> {
    let mut cursor = String::new();
    loop {
        let mut query = vec![("limit", "500".to_owned())];
        if !cursor.is_empty() {
            query.push(("after", cursor.clone()));
        }
        let page = context.client.get_with("/api/v1/events", &query).await?;
        let next = page["next_cursor"].as_str().unwrap_or_default().to_owned();
        if next == cursor || next.is_empty() {
            return Ok(cursor);
        }
        cursor = next;
    }
}

fn print(event: &Value) {
    let data = &event["data"];
    let glyph = match output::text(event, "type") {
        "task.succeeded" | "attempt.succeeded" => "✓",
        "task.retry_scheduled" | "task.throttled" | "task.snoozed" => "↻",
        "task.failed" | "task.retry_exhausted" | "attempt.failed" => "✕",
        "attempt.started" => "▶",
        _ => "·",
    };
    let mut words = Vec::new();
    if let Some(error) = data["error"].as_str().or(data["last_error"].as_str()) {
        words.push(error.to_owned());
    }
    if let Some(ms) = data["delay_ms"].as_u64() {
        words.push(format!("→ retry in {}", output::span(Millis(ms))));
    }
    if let Some(reason) = data["reason"].as_str() {
        words.push(format!("({reason})"));
    }
    let at = output::text(event, "at").get(11..23).unwrap_or_default();
    say!("{at}  {glyph} {:<22} {}  {}", output::text(event, "type"), output::short(&event["task_id"]), words.join(" "));
}
