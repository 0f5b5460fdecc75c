//! Tail: what happens, one line each.

use std::collections::HashMap;

use comeback_client::{Error, Problem};
use comeback_core::Millis;
use futures_util::StreamExt;
use serde_json::Value;

use super::Context;
use super::task::attempt;
use crate::args::TailArgs;
use crate::failure::{Failure, code};
use crate::output::{self, Cell, Output, Paint, say, soon};

/// Verdicts and ends: what a person wants to see go by.
const NOTABLE: &str = "task.retry_scheduled,task.throttled,task.snoozed,task.parked,task.failed,task.retry_exhausted,\
    task.succeeded,task.canceled,task.skipped,task.expired,task.manual_retry,task.paused,task.resumed";

pub async fn run(context: &Context, args: TailArgs) -> Result<u8, Failure> {
    follow(context, args, |line| say!("{line}")).await
}

/// Hands over line by line, until the server ends it or there are enough.
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
    let mut pieces = open(context, &query).await?.bytes_stream();
    let mut rest = Vec::new();
    let mut told = 0;
    while args.count.is_none_or(|count| told < count)
        && let Some(piece) = pieces.next().await
    {
        rest.extend_from_slice(&piece.map_err(|error| broken_off(&error))?);
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
                event.to_string()
            } else {
                worded(&event, &tasks.of(context, &event).await, &context.out)
            });
        }
    }
    Ok(code::OK)
}

fn broken_off(error: &reqwest::Error) -> Failure {
    Failure::new(code::UNREACHABLE, "the stream broke off")
        .why(error.to_string())
        .remedy("comeback tail, once the server is back")
}

async fn open(context: &Context, query: &[(&str, String)]) -> Result<reqwest::Response, Failure> {
    let mut request =
        reqwest::Client::new().get(format!("{}/api/v1/events/stream", context.client.server())).query(query);
    if let Some(key) = &context.key {
        request = request.bearer_auth(key);
    }
    if let Some(namespace) = &context.namespace {
        request = request.header("comeback-namespace", namespace);
    }
    let response = request.send().await.map_err(|error| broken_off(&error))?;
    if response.status().is_success() {
        return Ok(response);
    }
    let status = response.status();
    Err(match response.json::<Problem>().await {
        Ok(problem) => Error::Refused(Box::new(problem)).into(),
        Err(_) => Failure::new(code::FAILED, format!("the server answered {status}")),
    })
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

fn worded(event: &Value, task: &Value, out: &Output) -> String {
    let data = &event["data"];
    let word = output::text(event, "type");
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
