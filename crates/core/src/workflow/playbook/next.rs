//! Where a step leads: `next` and `case`, in all the ways they are written.

use super::super::fields::{Field, Fields, join};
use super::super::node::{Content, Node};
use super::super::problem::{Findings, Position};
use super::super::step::condition;
use super::super::template::{Reference, Scope};
use super::Written;
use super::flow::both;

pub struct Edge {
    pub to: String,
    pub at: Position,
    pub path: String,
    pub condition: Option<String>,
    pub references: Vec<Reference>,
    /// What is handed over, and where that is written.
    pub args: Option<(Node, String, Position)>,
}

/// A condition and the steps it names.
#[derive(Clone, Default)]
struct Guard {
    condition: Option<String>,
    references: Vec<Reference>,
}

struct Reader<'a> {
    scope: &'a Scope,
    edges: Vec<Edge>,
    findings: &'a mut Findings,
}

pub fn edges(step: &Written, scope: &Scope, findings: &mut Findings) -> Vec<Edge> {
    let mut reader = Reader { scope, edges: Vec::new(), findings };
    for name in ["next", "case"] {
        if let Some(entry) = step.node.entry(name).filter(|entry| !entry.value.is_null()) {
            reader.targets(&entry.value, &join(&step.path, name), &Guard::default());
        }
    }
    reader.edges
}

impl Reader<'_> {
    /// A name, a step with a condition, a branch, or a list of those.
    fn targets(&mut self, node: &Node, path: &str, guard: &Guard) {
        match &node.content {
            Content::Text(name) => self.edge(name, node.at, path, guard, None),
            Content::List(items) => {
                // What an `else` alone is the other side of.
                let mut refused = Guard::default();
                for (n, item) in items.iter().enumerate() {
                    self.item(item, &format!("{path}[{n}]"), guard, &mut refused);
                }
            }
            Content::Map(_) => self.item(node, path, guard, &mut Guard::default()),
            _ => self.findings.push(node.at, path, "must be the name of a step, or a list of steps"),
        }
    }

    fn item(&mut self, node: &Node, path: &str, outer: &Guard, refused: &mut Guard) {
        if node.map().is_none() {
            return self.targets(node, path, outer);
        }
        let Some(mut fields) = Fields::of(node, path, self.findings) else { return };
        let when = fields.some("when").and_then(|field| self.guard(&field));
        let inner = when.as_ref().map_or_else(|| outer.clone(), |when| outer.and(when));
        let args = fields.one_of(&["args", "with", "data"], self.findings);
        let (step, then, or_else, next) =
            (fields.some("step"), fields.some("then"), fields.some("else"), fields.some("next"));
        if step.is_none() && then.is_none() && or_else.is_none() && next.is_none() {
            self.findings.push(node.at, path, "needs a `step`, or `when` with `then`");
        }
        if let Some(args) = args.as_ref().filter(|_| step.is_none()) {
            self.findings.push(args.key_at, &args.path, "stands beside the `step` it is for");
        }
        if let Some(step) = step {
            let args = args.map(|args| (args.node.clone(), args.path, args.key_at));
            match step.node.text() {
                Some(name) => self.edge(name, step.at, &step.path, &inner, args),
                None => self.findings.push(step.at, step.path, "must be the name of a step"),
            }
        }
        if let Some(next) = next {
            self.targets(next.node, &next.path, &inner);
        }
        if let Some(then) = then {
            if when.is_none() && !node.get("when").is_some_and(|when| !when.is_null()) {
                self.findings.push(then.key_at, &then.path, "needs a `when` beside it");
            }
            self.targets(then.node, &then.path, &inner);
        }
        if let Some(or_else) = or_else {
            let other = match &when {
                Some(when) => outer.and(&when.negated()),
                None => outer.and(&refused.negated()),
            };
            if other.condition == outer.condition {
                self.findings.push(
                    or_else.key_at,
                    &or_else.path,
                    "there is no `when` that this could be the other side of",
                );
            }
            self.targets(or_else.node, &or_else.path, &other);
        }
        fields.finish(&["step", "when", "then", "else", "args", "with", "data", "next"], self.findings);
        if let Some(when) = when {
            *refused = refused.or(&when);
        }
    }

    fn guard(&mut self, field: &Field<'_>) -> Option<Guard> {
        let mut references = Vec::new();
        let condition = condition(field, self.scope, &mut references, self.findings)?;
        Some(Guard { condition: Some(condition), references })
    }

    fn edge(&mut self, to: &str, at: Position, path: &str, guard: &Guard, args: Option<(Node, String, Position)>) {
        self.edges.push(Edge {
            to: to.to_owned(),
            at,
            path: path.to_owned(),
            condition: guard.condition.clone(),
            references: guard.references.clone(),
            args,
        });
    }
}

impl Guard {
    fn and(&self, other: &Guard) -> Guard {
        let condition = both(self.condition.as_deref(), other.condition.as_deref());
        Guard { condition, references: [&self.references[..], &other.references[..]].concat() }
    }

    fn or(&self, other: &Guard) -> Guard {
        let condition = match (&self.condition, &other.condition) {
            (Some(one), Some(other)) => Some(format!("({one}) or ({other})")),
            (one, other) => one.clone().or_else(|| other.clone()),
        };
        Guard { condition, references: [&self.references[..], &other.references[..]].concat() }
    }

    fn negated(&self) -> Guard {
        let condition = self.condition.as_ref().map(|condition| format!("not ({condition})"));
        Guard { condition, references: self.references.clone() }
    }
}
