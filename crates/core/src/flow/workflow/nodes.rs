//! Nodes as documents of another engine have them: `{nodeId, type, subType, config}` with `retry` in its `config`. Each is
//! a step: one that has a `url` is a call that the server makes, any other is for workers, who get its `config`.

use std::collections::HashSet;

use super::Routes;
use super::fields::join;
use super::node::{Content, Entry, Node};
use super::problem::Findings;

const OWN: [&str; 4] = ["nodeId", "type", "subType", "config"];
/// Fields of `config` that are no part of the work.
const BESIDE: [&str; 2] = ["retry", "timeout"];
const CALL: [&str; 5] = ["method", "url", "headers", "body", "expect"];

pub fn is_one(node: &Node) -> bool {
    node.get("nodeId").is_some() || node.get("config").is_some()
}

/// The name of a step in a list.
pub fn name(node: &Node) -> Option<&Entry> {
    node.entry("nodeId").filter(|entry| entry.value.text().is_some())
}

/// A document that is one node, or that calls its steps nodes, as a workflow.
pub fn as_workflow(root: &Node) -> Node {
    if is_one(root) {
        let steps = Node { at: root.at, content: Content::List([root.clone()].into()) };
        return map(root, vec![entry("steps", root, steps)]);
    }
    let Some(entries) = root.map().filter(|_| root.get("steps").is_none()) else { return root.clone() };
    let named = |it: &Entry| match it.key.as_str() {
        "nodes" => Entry { key: "steps".into(), ..it.clone() },
        _ => it.clone(),
    };
    map(root, entries.iter().map(named).collect())
}

/// The same as a step of ours; what is no node stays as it is.
pub fn as_step(node: &Node, path: &str, findings: &mut Findings) -> Node {
    if !is_one(node) {
        return node.clone();
    }
    let mut entries: Vec<Entry> =
        node.map().unwrap_or_default().iter().filter(|it| !OWN.contains(&it.key.as_str())).cloned().collect();
    if let Some(kind) = node.entry("subType").or(node.entry("type")) {
        entries.push(Entry { key: "kind".into(), ..kind.clone() });
    }
    let Some(config) = node.entry("config").filter(|entry| !entry.value.is_null()) else { return map(node, entries) };
    let Some(written) = config.value.map() else {
        findings.push(config.at(), join(path, "config"), "must be a map");
        return map(node, entries);
    };
    let is_call = config.value.get("url").is_some();
    let mut done = Vec::new();
    for it in written {
        match it.key.as_str() {
            name if BESIDE.contains(&name) => entries.push(it.clone()),
            name if is_call && !CALL.contains(&name) => {
                let message = format!("`{name}` is nothing that a call could use; it has {}", CALL.join(", "));
                findings.push(it.key_at, format!("{path}.config.{name}"), message);
            }
            _ => done.push(it.clone()),
        }
    }
    if config.value.get("retry").is_some_and(|retry| !retry.is_null()) {
        let word = Node { at: config.value.at, content: Content::Text("workflow".into()) };
        entries.push(entry("dialect", &config.value, word));
    }
    if !done.is_empty() {
        let of = map(&config.value, done);
        entries.push(entry(if is_call { "http" } else { "payload" }, &config.value, of));
    }
    // What a step says twice, once as a node and once as ours, is told once.
    let mut seen = HashSet::new();
    for it in &entries {
        if !seen.insert(it.key.as_str()) {
            findings.push(
                it.key_at,
                join(path, &it.key),
                format!("`{}` is in `config` too; give one of the two", it.key),
            );
        }
    }
    map(node, entries)
}

/// Where the parts of such a step are written.
pub fn routes(name: &str, path: &str, routes: &mut Routes) {
    let step = join("steps", name);
    for (ours, theirs) in [
        ("retry", "config.retry"),
        ("timeout", "config.timeout"),
        ("executor", "config"),
        ("payload", "config"),
        ("kind", "subType"),
    ] {
        routes.insert(join(&step, ours), join(path, theirs));
    }
}

fn map(of: &Node, entries: Vec<Entry>) -> Node {
    Node { at: of.at, content: Content::Map(entries.into()) }
}

fn entry(key: &str, of: &Node, value: Node) -> Entry {
    Entry { key: key.into(), key_at: of.at, value }
}
