//! The fields that a step shares with a task, and the shapes they must have.

use serde_json::{Map, Value};

use super::executor;
use super::fields::{Field, Fields};
use super::node::{Content, Node};
use super::problem::Findings;
use super::template::{Reference, Scope};
use crate::dialect;
use crate::expression::is_template;
use crate::policy::{Dialect, PolicyLimits};
use crate::time::{Millis, Timestamp};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    Text,
    Whole,
    Bool,
    Duration,
    Instant,
    /// A duration or an instant.
    Moment,
    Json,
    Texts,
    Executor,
    Retry,
    Hooks,
}

/// In the order in which a step shows them. `dialect` is not among them: it belongs to `retry`.
pub const FIELDS: [(&str, Shape); 20] = [
    ("kind", Shape::Text),
    ("name", Shape::Text),
    ("queue", Shape::Text),
    ("priority", Shape::Whole),
    ("payload", Shape::Json),
    ("executor", Shape::Executor),
    ("retry", Shape::Retry),
    ("timeout", Shape::Duration),
    ("attempt_deadline", Shape::Duration),
    ("deadline", Shape::Moment),
    ("delay", Shape::Duration),
    ("at", Shape::Instant),
    ("dependency", Shape::Text),
    ("account", Shape::Text),
    ("cost", Shape::Whole),
    ("labels", Shape::Texts),
    ("dedupe_key", Shape::Text),
    ("external_id", Shape::Text),
    ("hooks", Shape::Hooks),
    ("dead_end_barrier", Shape::Bool),
];

/// The fields that each round of a loop has for itself.
pub const OF_A_ROUND: [&str; 4] = ["name", "payload", "executor", "labels"];

/// The fields that only one step can have.
pub const NOT_FOR_ALL: [&str; 2] = ["name", "dedupe_key"];

/// A field as it goes into the task, where its shape is right.
pub fn value(
    field: &Field<'_>,
    shape: Shape,
    dialect: Dialect,
    scope: &Scope,
    references: &mut Vec<Reference>,
    findings: &mut Findings,
) -> Option<Value> {
    match shape {
        Shape::Retry => return retry(field, dialect, findings),
        // What they may name is known when they are called.
        Shape::Hooks => return Some(field.node.to_value()),
        _ => scope.check_node(field.node, &field.path, references, findings),
    }
    if shape == Shape::Executor {
        return executor::whole(field, findings);
    }
    if shape == Shape::Texts {
        return texts(field.node, &field.path, findings).map(Value::Object);
    }
    match wrong(field.node, shape) {
        None => Some(field.node.to_value()),
        Some(message) => {
            findings.push(field.at, &field.path, message);
            None
        }
    }
}

/// The value of a template is not known yet, so it may stand for anything.
fn wrong(node: &Node, shape: Shape) -> Option<String> {
    if node.text().is_some_and(is_template) {
        return None;
    }
    let value = node.to_value();
    let span = |value: &Value| match value {
        Value::Number(seconds) => {
            Millis::parse_secs(seconds.as_f64().unwrap_or(f64::NAN)).map_err(|error| error.to_string())
        }
        Value::String(text) => Millis::parse(text).map_err(|error| error.to_string()),
        _ => Err("must be a duration: a number of seconds, or `90s`, `5m`, `1h30m`".into()),
    };
    let instant = |value: &Value| match value {
        Value::String(text) => Timestamp::parse_rfc3339(text).map(|_| ()).map_err(|error| error.to_string()),
        _ => Err("must be an instant in RFC 3339".into()),
    };
    match shape {
        Shape::Text if !value.is_string() => Some("must be a text".into()),
        Shape::Text if value.as_str().is_some_and(|text| text.trim().is_empty()) => Some("may not be empty".into()),
        Shape::Whole if !value.is_i64() => Some("must be a whole number".into()),
        Shape::Bool if !value.is_boolean() => Some("must be true or false".into()),
        Shape::Duration => span(&value).err(),
        Shape::Instant => instant(&value).err(),
        Shape::Moment => span(&value).err().filter(|_| instant(&value).is_err()),
        _ => None,
    }
}

/// Read as the server will read it, within the widest limits: a server's own may be narrower.
fn retry(field: &Field<'_>, dialect: Dialect, findings: &mut Findings) -> Option<Value> {
    let value = field.node.to_value();
    match dialect::parse(&value, dialect, &PolicyLimits::default()) {
        Ok(_) => Some(value),
        Err(faults) => {
            for fault in faults.faults {
                let at = if fault.path.is_empty() { field.at } else { field.node.follow(&fault.path).0 };
                let path = faults_path(&field.path, &fault.path);
                findings.push(at, path, fault.message);
            }
            None
        }
    }
}

fn faults_path(field: &str, fault: &str) -> String {
    match fault {
        "" => field.to_owned(),
        fault if fault.starts_with('[') => format!("{field}{fault}"),
        fault => format!("{field}.{fault}"),
    }
}

/// The dialect that a `retry` beside it speaks.
pub fn read_dialect(fields: &mut Fields<'_>, findings: &mut Findings) -> Option<Dialect> {
    let field = fields.some("dialect")?;
    let dialect = field.node.text().and_then(Dialect::from_word);
    if dialect.is_none() {
        findings.push(field.at, &field.path, format!("must be one of {}", Dialect::list()));
    }
    if !fields.has("retry") {
        findings.push(field.key_at, field.path, "there is no `retry` here that could speak it");
    }
    dialect
}

/// A map of texts. Numbers and yes or no are taken for what is written there.
pub fn texts(node: &Node, path: &str, findings: &mut Findings) -> Option<Map<String, Value>> {
    let Some(entries) = node.map() else {
        findings.push(node.at, path, "must be a map of texts");
        return None;
    };
    let mut read = Map::new();
    for entry in entries {
        match text_of(&entry.value) {
            Some(text) => drop(read.insert(entry.key.clone(), text.into())),
            None => findings.push(entry.at(), format!("{path}.{}", entry.key), "must be a text"),
        }
    }
    Some(read)
}

/// A map of texts, or of references to named secrets (`{secret: NAME, prefix: TEXT}`).
pub fn texts_or_secrets(node: &Node, path: &str, findings: &mut Findings) -> Option<Map<String, Value>> {
    let Some(entries) = node.map() else {
        findings.push(node.at, path, "must be a map of texts");
        return None;
    };
    let mut read = Map::new();
    for entry in entries {
        let whole = entry.value.to_value();
        match text_of(&entry.value) {
            Some(text) => drop(read.insert(entry.key.clone(), text.into())),
            None if crate::mask::is_reference(&whole) => drop(read.insert(entry.key.clone(), whole)),
            None => {
                let message = "must be a text, or name a secret: {secret: NAME}";
                findings.push(entry.at(), format!("{path}.{}", entry.key), message);
            }
        }
    }
    Some(read)
}

pub fn text_of(node: &Node) -> Option<String> {
    match &node.content {
        Content::Text(text) => Some(text.to_string()),
        Content::Number(number) => Some(number.to_string()),
        Content::Bool(yes) => Some(yes.to_string()),
        _ => None,
    }
}
