//! Enqueue: one task from the command line.

use std::io::Read;

use serde_json::{Map, Value, json};

use super::{Context, typed_policy};
use crate::args::EnqueueArgs;
use crate::failure::{Failure, code};
use crate::output::{self, say};

pub async fn run(context: &Context, args: EnqueueArgs) -> Result<u8, Failure> {
    let mut task = Map::new();
    task.insert("kind".into(), args.kind.into());
    let fields: [(&str, Option<Value>); 10] = [
        ("name", args.name.map(Value::from)),
        ("queue", args.queue.map(Value::from)),
        ("priority", args.priority.as_deref().map(super::typed_policy)),
        ("delay", args.delay.map(Value::from)),
        ("at", args.at.map(Value::from)),
        ("deadline", args.deadline.map(Value::from)),
        ("dedupe_key", args.dedupe_key.map(Value::from)),
        ("account", args.account.map(Value::from)),
        ("dependency", args.dependency.map(Value::from)),
        ("retry", args.retry.as_deref().map(typed_policy)),
    ];
    task.extend(fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
    let data = args.data.as_deref().map(read_data).transpose()?;
    if let Some(url) = args.url {
        task.insert("executor".into(), call(&url, data.as_ref()));
    }
    task.extend(data.map(|data| ("payload".to_owned(), data)));
    let mut labels = Map::new();
    for label in &args.labels {
        let (name, value) = label
            .split_once('=')
            .ok_or_else(|| Failure::new(code::USAGE, format!("`{label}` is no label")).remedy("--label name=value"))?;
        labels.insert(name.into(), value.into());
    }
    if !labels.is_empty() {
        task.insert("labels".into(), labels.into());
    }
    let answer = context.client.submit(&Value::Object(task)).await?;
    if context.out.is_json() {
        context.out.json(&answer);
        return Ok(code::OK);
    }
    let task = &answer["tasks"][0];
    let again = if task["duplicate"] == true { "   it was there already, by its dedupe key" } else { "" };
    say!("{}  {}{again}", output::text(task, "id"), output::state(task).show(&context.out));
    Ok(code::OK)
}

/// What the server is to call: with a payload it is sent, without one it is asked for.
fn call(url: &str, data: Option<&Value>) -> Value {
    match data {
        Some(data) => json!({"type": "http", "method": "POST", "url": url, "body": data}),
        None => json!({"type": "http", "method": "GET", "url": url}),
    }
}

fn read_data(text: &str) -> Result<Value, Failure> {
    let wrong =
        |what: String| Failure::new(code::USAGE, what).remedy("--data '{\"a\": 1}', --data @file.json or --data -");
    let content = if text == "-" {
        let mut content = String::new();
        std::io::stdin().read_to_string(&mut content).map_err(|error| wrong(format!("standard input: {error}")))?;
        content
    } else if let Some(path) = text.strip_prefix('@') {
        std::fs::read_to_string(path).map_err(|error| wrong(format!("{path}: {error}")))?
    } else {
        text.to_owned()
    };
    serde_json::from_str(&content).map_err(|error| wrong(format!("the payload is not JSON: {error}")))
}

/// The task that `run` makes for itself.
pub fn own_task(name: Option<String>, command: &[String], queue: &str, retry: &str) -> Value {
    json!({
        "kind": "command", "name": name.unwrap_or_else(|| command.join(" ").chars().take(80).collect()), "queue": queue,
        "payload": {"run": command}, "retry": typed_policy(retry),
    })
}
