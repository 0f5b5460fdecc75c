//! Tail: what happens, one line each.

use std::collections::HashMap;
use std::time::Duration;

use comeback_core::Millis;
use futures_util::StreamExt;
use serde_json::Value;

use super::Context;
use super::task::attempt;
use crate::args::TailArgs;
use crate::failure::{Failure, code};
use crate::output::{self, Cell, Output, Paint, say, soon};
use crate::watch::Interrupted;

/// Verdicts and ends: what a person wants to see go by.
const NOTABLE: &str = "task.retry_scheduled,task.throttled,task.snoozed,task.parked,task.failed,task.retry_exhausted,\
    task.succeeded,task.canceled,task.skipped,task.expired,task.manual_retry,task.paused,task.resumed,dependency.opened,\
    dependency.half_open,dependency.recovering,dependency.closed,dependency.gated,dependency.healthy,dependency.maintenance";

pub async fn run(context: &Context, args: TailArgs) -> Result<u8, Failure> {
    let mut interrupted = Interrupted::listen()?;
    tokio::select! {
        ended = follow(context, args, |line| say!("{line}")) => ended,
        () = interrupted.wait() => Ok(code::OK),
    }
}

/// The server says that it is there every quarter of a minute.
const SILENCE: Duration = Duration::from_secs(60);

/// Hands over line by line until there are enough. A stream that ends before is a failure: more would have come.
pub async fn follow(context: &Context, args: TailArgs, mut tell: impl FnMut(String)) -> Result<u8, Failure> {
    let mut tasks = Tasks::default();
    let mut query: Vec<(&str, String)> = Vec::new();
    if let Some(task) = args.task {
        query.push(("task_id", context.resolve(&task).await?));
    }
    if !args.all {
        query.push(("types", NOTABLE.to_owned()));
    }
    if !args.from_start {
        query.push(("after", "latest".to_owned()));
    }
    query.retain(|(_, value)| !value.is_empty());
    let mut pieces = context.client.open("/api/v1/events/stream", &query).await?.bytes_stream();
    let mut rest = Vec::new();
    let mut told = 0;
    while args.count.is_none_or(|count| told < count) {
        let piece = match tokio::time::timeout(SILENCE, pieces.next()).await {
            Ok(Some(Ok(piece))) => piece,
            Ok(Some(Err(error))) => return Err(broken_off(error.to_string())),
            Ok(None) => return Err(broken_off("the server stopped, or this key is good no more")),
            Err(_) => return Err(broken_off("the server has been silent for a minute")),
        };
        rest.extend_from_slice(&piece);
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = rest.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            let Some(event) = line.strip_prefix("data:").and_then(|text| serde_json::from_str::<Value>(text).ok())
            else {
                continue;
            };
            if args.count.is_some_and(|count| told >= count) {
                return Ok(code::OK);
            }
            told += 1;
            tell(if context.out.is_json() {
                output::json_line(&event)
            } else {
                worded(&event, &tasks.of(context, &event).await, &context.out)
            });
        }
    }
    Ok(code::OK)
}

fn broken_off(why: impl Into<String>) -> Failure {
    Failure::new(code::UNREACHABLE, "the stream broke off").why(why).remedy("comeback tail, once the server is back")
}

/// What sort of task each one is, and how often it may be tried; asked once.
#[derive(Default)]
struct Tasks {
    known: HashMap<String, Value>,
}

impl Tasks {
    async fn of(&mut self, context: &Context, event: &Value) -> Value {
        let Some(id) = event["task_id"].as_str() else { return Value::Null };
        if let Some(task) = self.known.get(id) {
            return task.clone();
        }
        let task = context.client.task(id).await.unwrap_or_default();
        let kept = serde_json::json!({"kind": task["kind"], "max_retries": task["max_retries"]});
        self.known.insert(id.to_owned(), kept.clone());
        kept
    }
}

/// What became of a dependency, in words.
fn turned(event: &Value, what: &str, out: &Output) -> String {
    let at = output::text(event, "at").get(11..19).unwrap_or_default();
    let (glyph, paint) = match what {
        "closed" => ("●", Paint::Green),
        "opened" | "gated" | "maintenance" => ("⊘", Paint::Red),
        _ => ("⊘", Paint::Yellow),
    };
    let mark = Cell::painted(glyph, paint).show(out);
    let (name, why) = (output::text(event, "dependency"), output::text(event, "why"));
    format!("{at}  {mark} {name:<16} {}: {why}", what.replace('_', " "))
}

fn worded(event: &Value, task: &Value, out: &Output) -> String {
    let data = &event["data"];
    let word = output::text(event, "type");
    if let Some(what) = word.strip_prefix("dependency.") {
        return turned(event, what, out);
    }
    let again = event["run"].as_u64().unwrap_or(0) > 1;
    let (glyph, paint, end) = match word {
        "task.succeeded" if again => ("◎", Paint::Green, "recovered"),
        "task.succeeded" => ("✓", Paint::Green, "ok"),
        "task.retry_scheduled" | "task.throttled" | "task.snoozed" => ("↻", Paint::Yellow, ""),
        "task.failed" => ("✕", Paint::Red, "failed, no retry"),
        "task.retry_exhausted" => ("✕", Paint::Red, "dead, no retry is left"),
        "task.expired" => ("✕", Paint::Red, "dead, its deadline has passed"),
        "attempt.failed" => ("✕", Paint::Red, ""),
        "attempt.started" => ("▶", Paint::Blue, "started"),
        "task.canceled" => ("–", Paint::Dim, "canceled"),
        "task.skipped" => ("–", Paint::Dim, "skipped"),
        "task.paused" => ("⏸", Paint::Magenta, "paused"),
        "task.parked" => ("⏸", Paint::Magenta, "paused for a person"),
        "task.resumed" => ("○", Paint::Dim, "resumed"),
        "task.manual_retry" => ("↻", Paint::Yellow, "retried by hand"),
        other => ("·", Paint::Dim, other),
    };
    let mut words: Vec<String> = Vec::new();
    if let Some(error) = data["error"].as_str().or(data["last_error"].as_str()) {
        words.push(error.lines().next().unwrap_or_default().to_owned());
    }
    if let Some(ms) = data["delay_ms"].as_u64() {
        let counts = word == "task.retry_scheduled" && data["reason"] != "lost_retry";
        let uncounted = if counts { "" } else { " (not counted)" };
        words.push(format!("→ retry {}{uncounted}", soon(Millis(ms))));
    }
    if let (Some(until), Some(by)) = (data["held_until"].as_str(), data["held_by"].as_str()) {
        words.push(format!("· held until {}: {by}", until.get(..16).unwrap_or(until).replace('T', " ")));
    }
    if !end.is_empty() {
        words.push(if words.is_empty() { end.to_owned() } else { format!("→ {end}") });
    }
    let at = output::text(event, "at").get(11..19).unwrap_or_default();
    let mark = Cell::painted(glyph, paint).show(out);
    let name = task["kind"].as_str().unwrap_or("execution");
    // A retry that costs something has counted on; what is told here is the try that failed.
    let counted = word == "task.retry_scheduled" && data["reason"] != "lost_retry";
    let number = event["attempt"].as_u64().unwrap_or(0) + u64::from(!counted);
    let mut about = task.clone();
    about["attempt_number"] = number.max(1).into();
    let tries =
        if task.is_null() || event["run"] == 0 { String::new() } else { format!("attempt {}", attempt(&about)) };
    format!("{at}  {mark} {name:<16} {}  {tries:<12} {}", output::short(&event["task_id"]), words.join(" "))
}
