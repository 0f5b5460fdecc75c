//! `tail`: events, one per line.

use std::collections::HashMap;
use std::time::Duration;

use comeback_core::Millis;
use futures_util::StreamExt;
use serde_json::Value;

use super::Context;
use super::task::attempt;
use crate::args::TailArgs;
use crate::error::{CliError, code};
use crate::output::{self, Cell, Output, Paint, outln, soon};
use crate::watch::Interrupted;

/// Event types shown without `--all`: retry decisions, ends and dependency changes.
const NOTABLE: &str = "task.retry_scheduled,task.throttled,task.snoozed,task.parked,task.failed,task.retry_exhausted,\
    task.succeeded,task.canceled,task.skipped,task.expired,task.manual_retry,task.paused,task.resumed,dependency.opened,\
    dependency.half_open,dependency.recovering,dependency.closed,dependency.gated,dependency.healthy,dependency.maintenance";

pub async fn run(context: &Context, args: TailArgs) -> Result<u8, CliError> {
    let mut interrupted = Interrupted::listen()?;
    tokio::select! {
        ended = follow(context, args, |line| outln!("{line}")) => ended,
        () = interrupted.wait() => Ok(code::OK),
    }
}

/// Longest silence on the stream; the server sends a keep-alive every 15 seconds.
const SILENCE: Duration = Duration::from_secs(60);

/// Passes on lines until `--count` is reached. A stream that ends before is a failure.
pub async fn follow(context: &Context, args: TailArgs, mut print: impl FnMut(String)) -> Result<u8, CliError> {
    let mut tasks = TaskCache::default();
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
    let mut printed = 0;
    while args.count.is_none_or(|count| printed < count) {
        let piece = match tokio::time::timeout(SILENCE, pieces.next()).await {
            Ok(Some(Ok(piece))) => piece,
            Ok(Some(Err(error))) => return Err(aborted(error.to_string())),
            Ok(None) => return Err(aborted("the server stopped, or the key is no longer valid")),
            Err(_) => return Err(aborted("no keep-alive for a minute")),
        };
        rest.extend_from_slice(&piece);
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = rest.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            let Some(event) = line.strip_prefix("data:").and_then(|text| serde_json::from_str::<Value>(text).ok())
            else {
                continue;
            };
            if args.count.is_some_and(|count| printed >= count) {
                return Ok(code::OK);
            }
            printed += 1;
            print(if context.out.is_json() {
                output::json_line(&event)
            } else {
                event_line(&event, &tasks.of(context, &event).await, &context.out)
            });
        }
    }
    Ok(code::OK)
}

fn aborted(why: impl Into<String>) -> CliError {
    CliError::new(code::UNREACHABLE, "event stream aborted")
        .why(why)
        .remedy("run comeback tail again once the server is back")
}

/// Kind and retry limit of the tasks seen so far.
#[derive(Default)]
struct TaskCache {
    known: HashMap<String, Value>,
}

impl TaskCache {
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

/// The line of a dependency event.
fn dependency_line(event: &Value, what: &str, out: &Output) -> String {
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

/// The line of a task event.
fn event_line(event: &Value, task: &Value, out: &Output) -> String {
    let data = &event["data"];
    let word = output::text(event, "type");
    if let Some(what) = word.strip_prefix("dependency.") {
        return dependency_line(event, what, out);
    }
    let again = event["run"].as_u64().unwrap_or(0) > 1;
    let (glyph, paint, end) = match word {
        "task.succeeded" if again => ("◎", Paint::Green, "recovered"),
        "task.succeeded" => ("✓", Paint::Green, "ok"),
        "task.retry_scheduled" | "task.throttled" | "task.snoozed" => ("↻", Paint::Yellow, ""),
        "task.failed" => ("✕", Paint::Red, "failed, no retry"),
        "task.retry_exhausted" => ("✕", Paint::Red, "dead, no retries left"),
        "task.expired" => ("✕", Paint::Red, "dead, deadline passed"),
        "attempt.failed" => ("✕", Paint::Red, ""),
        "attempt.started" => ("▶", Paint::Blue, "started"),
        "task.canceled" => ("–", Paint::Dim, "canceled"),
        "task.skipped" => ("–", Paint::Dim, "skipped"),
        "task.paused" => ("⏸", Paint::Magenta, "paused"),
        "task.parked" => ("⏸", Paint::Magenta, "parked"),
        "task.resumed" => ("○", Paint::Dim, "resumed"),
        "task.manual_retry" => ("↻", Paint::Yellow, "manual retry"),
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
    // A counted retry has advanced the counter already; the line is about the attempt that failed.
    let counted = word == "task.retry_scheduled" && data["reason"] != "lost_retry";
    let number = event["attempt"].as_u64().unwrap_or(0) + u64::from(!counted);
    let mut about = task.clone();
    about["attempt_number"] = number.max(1).into();
    let tries =
        if task.is_null() || event["run"] == 0 { String::new() } else { format!("attempt {}", attempt(&about)) };
    format!("{at}  {mark} {name:<16} {}  {tries:<12} {}", output::short(&event["task_id"]), words.join(" "))
}
