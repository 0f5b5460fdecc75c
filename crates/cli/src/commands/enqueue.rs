//! `enqueue`: creates one task.

use std::io::Read;

use serde_json::{Value, json};

use super::resource::{labels, object};
use super::{Context, typed_policy};
use crate::args::EnqueueArgs;
use crate::error::{CliError, code};
use crate::output::{self, outln};

pub async fn run(context: &Context, args: EnqueueArgs) -> Result<u8, CliError> {
    let data = args.data.as_deref().map(read_data).transpose()?;
    let task = object([
        ("kind", Some(args.kind.into())),
        ("name", args.name.map(Value::from)),
        ("queue", args.queue.map(Value::from)),
        ("priority", args.priority.as_deref().map(typed_policy)),
        ("delay", args.delay.map(Value::from)),
        ("at", args.at.map(Value::from)),
        ("deadline", args.deadline.map(Value::from)),
        ("dedupe_key", args.dedupe_key.map(Value::from)),
        ("account", args.account.map(Value::from)),
        ("dependency", args.dependency.map(Value::from)),
        ("retry", args.retry.as_deref().map(typed_policy)),
        ("executor", args.url.map(|url| http_call(&url, data.as_ref()))),
        ("payload", data),
        ("labels", labels(&args.labels)?),
    ]);
    let answer = context.client.submit(&task).await?;
    if context.out.is_json() {
        context.out.json(&answer);
        return Ok(code::OK);
    }
    let task = &answer["tasks"][0];
    let existing = if task["duplicate"] == true { "   already exists (same dedupe key)" } else { "" };
    outln!("{}  {}{existing}", output::text(task, "id"), output::state(task).show(&context.out));
    Ok(code::OK)
}

/// The HTTP call of the server: POST with a payload, GET without one.
fn http_call(url: &str, data: Option<&Value>) -> Value {
    match data {
        Some(data) => json!({"type": "http", "method": "POST", "url": url, "body": data}),
        None => json!({"type": "http", "method": "GET", "url": url}),
    }
}

fn read_data(text: &str) -> Result<Value, CliError> {
    let invalid =
        |what: String| CliError::new(code::USAGE, what).remedy("--data '{\"a\": 1}', --data @file.json or --data -");
    let content = if text == "-" {
        let mut content = String::new();
        std::io::stdin().read_to_string(&mut content).map_err(|error| invalid(format!("standard input: {error}")))?;
        content
    } else if let Some(path) = text.strip_prefix('@') {
        std::fs::read_to_string(path).map_err(|error| invalid(format!("{path}: {error}")))?
    } else {
        text.to_owned()
    };
    serde_json::from_str(&content).map_err(|error| invalid(format!("the payload is not JSON: {error}")))
}

/// The task that `run` creates for its command.
pub fn own_task(name: Option<String>, command: &[String], queue: &str, retry: &str) -> Value {
    json!({
        "kind": "command", "name": name.unwrap_or_else(|| command.join(" ").chars().take(80).collect()), "queue": queue,
        "payload": {"run": command}, "retry": typed_policy(retry),
    })
}
