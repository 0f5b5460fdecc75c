//! Whether the templates and expressions of a document can be read, and what they ask for.

use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock};

use regex::Regex;
use serde_json::Value;

use super::fields::join;
use super::node::{Content, Node};
use super::problem::{Findings, Position};
use crate::expression;

/// The names that the templates of one place may use.
#[derive(Clone, Debug)]
pub struct Scope {
    names: BTreeSet<String>,
    /// In a playbook the bare name of a step stands for its result.
    steps: Option<Arc<BTreeSet<String>>>,
}

/// The names that every template of a workflow may use.
pub const COMMON: [&str; 4] = ["input", "steps", "execution", "attempt"];
/// Beside the item itself in a loop.
pub const LOOP: &str = "loop";
const INDEX: &str = "index";

/// A step that a template names, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    pub step: String,
    pub at: Position,
    pub path: String,
}

impl Scope {
    pub fn common() -> Scope {
        Scope { names: COMMON.iter().map(ToString::to_string).collect(), steps: None }
    }

    pub fn with(&self, names: impl IntoIterator<Item = impl Into<String>>) -> Scope {
        let mut wider = self.clone();
        wider.names.extend(names.into_iter().map(Into::into));
        wider
    }

    /// The names that the templates of a round may use.
    pub fn in_loop(&self, item: &str) -> Scope {
        self.with([item, LOOP, INDEX])
    }

    pub fn without(&self, names: &[&str]) -> Scope {
        let mut narrower = self.clone();
        narrower.names.retain(|name| !names.contains(&name.as_str()));
        narrower
    }

    pub fn with_bare_steps(mut self, steps: BTreeSet<String>) -> Scope {
        self.steps = Some(Arc::new(steps));
        self
    }

    /// Every string in a node.
    pub fn check_node(&self, node: &Node, path: &str, found: &mut Vec<Reference>, findings: &mut Findings) {
        match &node.content {
            Content::Text(text) => self.check_text(text, node.at, path, found, findings),
            Content::List(items) => {
                for (n, item) in items.iter().enumerate() {
                    self.check_node(item, &format!("{path}[{n}]"), found, findings);
                }
            }
            Content::Map(entries) => {
                for entry in entries.iter() {
                    self.check_node(&entry.value, &join(path, &entry.key), found, findings);
                }
            }
            _ => {}
        }
    }

    pub fn check_text(
        &self,
        text: &str,
        at: Position,
        path: &str,
        found: &mut Vec<Reference>,
        findings: &mut Findings,
    ) {
        if !expression::is_template(text) {
            return;
        }
        match expression::check_template(text) {
            Ok(names) => self.check_names(text, &names, at, path, found, findings),
            Err(message) => findings.push(at, path, message),
        }
    }

    /// The bare form of an expression, where it is one.
    pub fn check_expression(
        &self,
        source: &str,
        at: Position,
        path: &str,
        found: &mut Vec<Reference>,
        findings: &mut Findings,
    ) -> Option<String> {
        match expression::check_expression(source) {
            Ok((bare, names)) => {
                self.check_names(&bare, &names, at, path, found, findings);
                Some(bare)
            }
            Err(message) => {
                findings.push(at, path, message);
                None
            }
        }
    }

    fn check_names(
        &self,
        source: &str,
        names: &BTreeSet<String>,
        at: Position,
        path: &str,
        found: &mut Vec<Reference>,
        findings: &mut Findings,
    ) {
        let mut unknown: BTreeSet<&str> = BTreeSet::new();
        let mut named: BTreeSet<String> = BTreeSet::new();
        for name in names {
            let mut parts = name.split('.');
            let root = parts.next().unwrap_or_default();
            match parts.next() {
                Some(step) if root == "steps" => named.extend([step.to_owned()]),
                _ if root == "steps" => named.extend(subscripts(source)),
                _ if self.names.contains(root) => {}
                _ if self.steps.as_ref().is_some_and(|steps| steps.contains(root)) => named.extend([root.to_owned()]),
                _ => unknown.extend([root]),
            }
        }
        found.extend(named.into_iter().map(|step| Reference { step, at, path: path.to_owned() }));
        for name in unknown {
            let known = self.names.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
            findings.push(at, path, format!("`{name}` is not known here; these are: {known}"));
        }
    }
}

/// Whether a value names what only a round of a loop knows: its item, or which one it is.
pub fn names_a_round(value: &Value, item: &str) -> bool {
    match value {
        Value::String(text) => {
            let names = expression::check_template(text).unwrap_or_default();
            names.iter().filter_map(|name| name.split('.').next()).any(|root| [item, LOOP, INDEX].contains(&root))
        }
        Value::Array(items) => items.iter().any(|value| names_a_round(value, item)),
        Value::Object(fields) => fields.values().any(|value| names_a_round(value, item)),
        _ => false,
    }
}

/// `steps['my-step']` and `steps["my-step"]`: names that cannot stand behind a dot.
fn subscripts(source: &str) -> Vec<String> {
    static SUBSCRIPT: LazyLock<Option<Regex>> =
        LazyLock::new(|| Regex::new(r#"\bsteps\s*\[\s*(?:'([^'\\]*)'|"([^"\\]*)")\s*\]"#).ok());
    let Some(pattern) = SUBSCRIPT.as_ref() else { return Vec::new() };
    let name = |found: regex::Captures<'_>| found.get(1).or(found.get(2)).map(|name| name.as_str().to_owned());
    pattern.captures_iter(source).filter_map(name).collect()
}
