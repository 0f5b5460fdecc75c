//! How a step is run: `executor` in full, and the shorthands that stand for one.

use serde_json::{Map, Value, json};

use super::fields::{Field, Fields, join};
use super::node::Node;
use super::problem::Findings;
use super::task::{text_of, texts_or_secrets};

const CALL_FIELDS: [&str; 5] = ["method", "url", "headers", "body", "expect"];
const START_FIELDS: [&str; 4] = ["method", "url", "headers", "body"];

/// `executor:` in full.
pub fn whole(field: &Field<'_>, findings: &mut Findings) -> Option<Value> {
    let mut fields = Fields::of(field.node, &field.path, findings)?;
    let Some(kind) = fields.some("type") else {
        findings.push(field.at, &field.path, "needs a `type`: worker, http, hook, command or timer");
        return None;
    };
    match kind.node.text() {
        Some(word @ ("worker" | "timer")) => {
            fields.finish(&["type"], findings);
            Some(json!({ "type": word }))
        }
        Some("http") => http_call(fields, &["type"], findings),
        Some("hook") => {
            let start = fields.some("start");
            if start.is_none() {
                findings.push(field.at, &field.path, "a hook needs `start`, the call that begins it");
            }
            fields.finish(&["type", "start"], findings);
            start.and_then(|start| hook_start(start.node, &start.path, findings))
        }
        Some("command") => {
            let run = fields.some("run");
            let env = fields.some("env").and_then(|env| texts_or_secrets(env.node, &env.path, findings));
            let cwd = fields.text("cwd", findings);
            if run.is_none() {
                findings.push(field.at, &field.path, "a command needs `run`, the program and its arguments");
            }
            fields.finish(&["type", "run", "env", "cwd"], findings);
            let mut command = run_words(&run?, findings)?;
            command.extend(env.map(|env| ("env".to_owned(), Value::Object(env))));
            command.extend(cwd.map(|cwd| ("cwd".to_owned(), Value::String(cwd))));
            Some(Value::Object(command))
        }
        _ => {
            findings.push(kind.at, kind.path, "must be one of worker, http, hook, command, timer");
            None
        }
    }
}

/// `run: "make all"` or `run: [make, all]`: a text is for the shell, a list is the program and its arguments.
pub fn run(field: &Field<'_>, findings: &mut Findings) -> Option<Value> {
    run_words(field, findings).map(Value::Object)
}

fn run_words(field: &Field<'_>, findings: &mut Findings) -> Option<Map<String, Value>> {
    let words: Option<Vec<String>> = match (field.node.text(), field.node.list()) {
        (Some(line), _) if !line.trim().is_empty() => Some(vec!["sh".into(), "-c".into(), line.to_owned()]),
        (_, Some(words)) if !words.is_empty() => words.iter().map(text_of).collect(),
        _ => None,
    };
    let Some(words) = words else {
        findings.push(field.at, &field.path, "must be a line for the shell, or a list of a program and its arguments");
        return None;
    };
    Some(Map::from_iter([("type".to_owned(), json!("command")), ("run".to_owned(), json!(words))]))
}

/// `http: URL` or `http: {url, …}`.
pub fn http(field: &Field<'_>, findings: &mut Findings) -> Option<Value> {
    match field.node.text() {
        Some(url) if !url.is_empty() => Some(json!({"type": "http", "url": url})),
        _ => http_call(Fields::of(field.node, &field.path, findings)?, &[], findings),
    }
}

/// `hook: URL`, `hook: {url, …}` or `hook: {start: {url, …}}`.
pub fn hook(field: &Field<'_>, findings: &mut Findings) -> Option<Value> {
    match field.node.entry("start") {
        Some(start) if field.node.map().is_some_and(|entries| entries.len() == 1) => {
            hook_start(&start.value, &join(&field.path, "start"), findings)
        }
        _ => hook_start(field.node, &field.path, findings),
    }
}

fn hook_start(node: &Node, path: &str, findings: &mut Findings) -> Option<Value> {
    let start = match node.text() {
        Some(url) if !url.is_empty() => Map::from_iter([("url".to_owned(), json!(url))]),
        _ => call(Fields::of(node, path, findings)?, &START_FIELDS, findings)?,
    };
    Some(json!({"type": "hook", "start": start}))
}

fn http_call(fields: Fields<'_>, also: &[&str], findings: &mut Findings) -> Option<Value> {
    let known: Vec<&str> = also.iter().chain(&CALL_FIELDS).copied().collect();
    let mut whole = Map::from_iter([("type".to_owned(), json!("http"))]);
    whole.extend(call(fields, &known, findings)?);
    Some(Value::Object(whole))
}

fn call(mut fields: Fields<'_>, known: &[&str], findings: &mut Findings) -> Option<Map<String, Value>> {
    let mut read = Map::new();
    let text = |fields: &mut Fields<'_>, name: &str, findings: &mut Findings| {
        fields.text(name, findings).map(|text| (name.to_owned(), Value::String(text)))
    };
    read.extend(text(&mut fields, "method", findings));
    if !fields.has("url") {
        findings.push(fields.at, &fields.path, "needs a `url`");
    }
    read.extend(text(&mut fields, "url", findings));
    if let Some(headers) = fields.some("headers") {
        read.extend(
            texts_or_secrets(headers.node, &headers.path, findings).map(|it| ("headers".to_owned(), Value::Object(it))),
        );
    }
    for name in ["body", "expect"].into_iter().filter(|name| known.contains(name)) {
        read.extend(fields.take(name).map(|field| (name.to_owned(), expected(name, field.node))));
    }
    fields.finish(known, findings);
    Some(read)
}

/// A status may be written as a number: `expect: 204`.
fn expected(name: &str, node: &Node) -> Value {
    let as_text = |node: &Node| text_of(node).map_or_else(|| node.to_value(), Value::String);
    match (name, node.list()) {
        ("expect", Some(items)) => items.iter().map(as_text).collect(),
        ("expect", None) => as_text(node),
        _ => node.to_value(),
    }
}
