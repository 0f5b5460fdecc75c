//! A workflow in our own shape.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::fields::Fields;
use super::node::{Entry, Node};
use super::order::{Order, Place, Way};
use super::problem::Findings;
use super::step::{Defaults, Reader, Written};
use super::task::{self, Shape};
use super::template::{Reference, Scope};
use super::{MAX_STEPS, Routes, Step, Workflow, nodes};
use crate::policy::Dialect;

pub const FIELDS: [&str; 12] = [
    "$schema",
    "name",
    "description",
    "input",
    "labels",
    "retry",
    "dialect",
    "fail_fast",
    "dead_end_cancel",
    "defaults",
    "steps",
    "output",
];

pub fn read(root: &Node, routes: &mut Routes, findings: &mut Findings) -> Option<Workflow> {
    let root = &nodes::as_workflow(root);
    let mut fields = Fields::of(root, "", findings)?;
    fields.text("$schema", findings);
    let name = fields.text("name", findings);
    let description = fields.text("description", findings);
    let input = fields.some("input").map(|field| {
        if field.node.map().is_none() {
            findings.push(field.at, &field.path, "must be a map of defaults");
        }
        field.node.to_map()
    });
    let labels = labels(&mut fields, findings);
    let dialect = task::read_dialect(&mut fields, findings).unwrap_or(Dialect::Native);
    let retry = fields
        .some("retry")
        .and_then(|field| task::value(&field, Shape::Retry, dialect, &Scope::common(), &mut Vec::new(), findings));
    let fail_fast = fields.boolean("fail_fast", findings).unwrap_or(false);
    let dead_end_cancel = fields.boolean("dead_end_cancel", findings).unwrap_or(false);
    let defaults = fields.some("defaults").map(|field| defaults(field.node, &field.path, findings)).unwrap_or_default();
    let (steps, places) = match fields.some("steps") {
        Some(field) => steps(field.node, &mut Reader { defaults: &defaults, routes, findings }),
        None => {
            findings.push(root.at, "steps", "a workflow needs steps");
            (Vec::new(), Vec::new())
        }
    };
    let mut references = Vec::new();
    let output = fields.some("output").map(|field| {
        Scope::common().without(&["attempt"]).check_node(field.node, &field.path, &mut references, findings);
        field.node.to_value()
    });
    fields.finish(&FIELDS, findings);
    check_order(&places, &references, findings);
    Some(Workflow {
        name,
        description,
        path: None,
        input: input.unwrap_or_default(),
        retry,
        dialect,
        steps,
        output,
        labels,
        fail_fast,
        dead_end_cancel,
        is_playbook: false,
    })
}

pub fn check_order(places: &[Place], output: &[Reference], findings: &mut Findings) {
    let order = Order::of(places, Way::Needs, findings);
    order.check_references(findings);
    order.check_known(output, findings);
}

pub fn labels(fields: &mut Fields<'_>, findings: &mut Findings) -> BTreeMap<String, String> {
    let Some(field) = fields.some("labels") else { return BTreeMap::new() };
    let read = task::texts(field.node, &field.path, findings).unwrap_or_default();
    read.into_iter().map(|(key, value)| (key, value.as_str().unwrap_or_default().to_owned())).collect()
}

/// The defaults of every step.
fn defaults(node: &Node, path: &str, findings: &mut Findings) -> Defaults {
    let Some(mut fields) = Fields::of(node, path, findings) else { return Defaults::default() };
    let dialect = task::read_dialect(&mut fields, findings);
    let (mut task, mut references) = (Map::<String, Value>::new(), Vec::new());
    for (name, shape) in task::FIELDS.into_iter().filter(|(name, _)| !task::NOT_FOR_ALL.contains(name)) {
        let Some(field) = fields.some(name) else { continue };
        let spoken = dialect.unwrap_or(Dialect::Native);
        let value = task::value(&field, shape, spoken, &Scope::common(), &mut references, findings);
        task.extend(value.map(|value| (name.to_owned(), value)));
    }
    for reference in references {
        let message = format!("defaults are for every step, so `{}` cannot come before all of them", reference.step);
        findings.push(reference.at, reference.path, message);
    }
    let known: Vec<&str> = task::FIELDS.iter().map(|(name, _)| *name).chain(["dialect"]).collect();
    let known: Vec<&str> = known.into_iter().filter(|name| !task::NOT_FOR_ALL.contains(name)).collect();
    fields.finish(&known, findings);
    Defaults { task, dialect }
}

/// A map of steps by name, or a list of steps that have one.
fn steps(node: &Node, reader: &mut Reader<'_>) -> (Vec<Step>, Vec<Place>) {
    let mut written: Vec<Written<'_>> = Vec::new();
    let as_steps: Vec<Node> = match (node.map(), node.list()) {
        (Some(entries), _) => {
            let path = |entry: &Entry| format!("steps.{}", entry.key);
            entries.iter().map(|entry| nodes::as_step(&entry.value, &path(entry), reader.findings)).collect()
        }
        (_, items) => {
            let items = items.unwrap_or_default().iter().enumerate();
            items.map(|(n, item)| nodes::as_step(item, &format!("steps[{n}]"), reader.findings)).collect()
        }
    };
    if let Some(entries) = node.map() {
        written.extend(entries.iter().zip(&as_steps).map(|(entry, node)| Written {
            name: &entry.key,
            name_at: entry.key_at,
            path: format!("steps.{}", entry.key),
            node,
            is_node: nodes::is_one(&entry.value),
            in_list: false,
        }));
    } else if let Some(items) = node.list() {
        let mut seen = BTreeMap::new();
        for (n, (item, node)) in items.iter().zip(&as_steps).enumerate() {
            let path = format!("steps[{n}]");
            let is_node = nodes::is_one(item);
            let name = if is_node { nodes::name(item) } else { item.entry("name") };
            let Some(name) = name.filter(|entry| entry.value.text().is_some()) else {
                let message = match item.map() {
                    Some(_) if is_node => "needs a `nodeId`, its name",
                    Some(_) => "needs a `name`",
                    None => "must be a map with a `name`",
                };
                reader.findings.push(item.at, path, message);
                continue;
            };
            let (text, name_at) = (name.value.text().unwrap_or_default(), name.value.at);
            if let Some(first) = seen.insert(text, n) {
                let message = format!("a step `{text}` is there already, as steps[{first}]");
                reader.findings.push(name_at, format!("{path}.name"), message);
                continue;
            }
            written.push(Written { name: text, name_at, path, node, is_node, in_list: !is_node });
        }
    } else {
        reader.findings.push(node.at, "steps", "must be a map of steps by name, or a list of steps with a `name`");
        return (Vec::new(), Vec::new());
    }
    if written.is_empty() && reader.findings.is_empty() {
        reader.findings.push(node.at, "steps", "a workflow needs steps");
    }
    if written.len() > MAX_STEPS {
        let message = format!("has {} steps; a workflow may have {MAX_STEPS} at most", written.len());
        reader.findings.push(node.at, "steps", message);
        written.truncate(MAX_STEPS);
    }
    written.iter().filter_map(|written| reader.step(written)).unzip()
}
