//! Where a step leads: `next` and `case`, in all the ways they are written.

use std::rc::Rc;

use super::super::fields::{Field, Fields, join};
use super::super::node::{Content, Entry, Node};
use super::super::problem::{Findings, Position};
use super::super::step::condition;
use super::super::template::{Reference, Scope};
use super::Written;
use super::flow::{any, both};

pub struct Edge {
    pub to: String,
    pub at: Position,
    pub path: String,
    pub guard: Rc<Guard>,
    /// The arguments, and where they are written.
    pub args: Option<(Node, String, Position)>,
}

/// A condition and the steps it names.
#[derive(Default)]
pub struct Guard {
    pub condition: Option<String>,
    pub references: Vec<Reference>,
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
            reader.targets(&entry.value, &join(&step.path, name), &Rc::default());
        }
    }
    reader.edges
}

impl Reader<'_> {
    /// A name, a step with a condition, a branch, or a list of those.
    fn targets(&mut self, node: &Node, path: &str, guard: &Rc<Guard>) {
        match &node.content {
            Content::Text(name) => self.edge(name, node.at, path, guard, None),
            Content::List(items) => {
                let mut asked = Vec::new();
                for (n, item) in items.iter().enumerate() {
                    let path = format!("{path}[{n}]");
                    match item.map() {
                        Some([only]) if only.key == "else" => {
                            self.lone_else(only, &join(&path, "else"), guard, &asked, n + 1 == items.len());
                        }
                        Some(_) => asked.extend(self.item(item, &path, guard)),
                        None => self.targets(item, &path, guard),
                    }
                }
            }
            Content::Map(_) => drop(self.item(node, path, guard)),
            _ => self.findings.push(node.at, path, "must be the name of a step, or a list of steps"),
        }
    }

    /// The other side of every `when` before it.
    fn lone_else(&mut self, entry: &Entry, path: &str, outer: &Rc<Guard>, asked: &[Guard], is_last: bool) {
        if asked.is_empty() || !is_last {
            self.findings.push(
                entry.key_at,
                path,
                "an `else` alone stands last in a list, behind what it is the other side of",
            );
            return;
        }
        let condition = any(asked.iter().map(|guard| guard.condition.as_deref()));
        let references = asked.iter().flat_map(|guard| guard.references.iter().cloned()).collect();
        let other = Rc::new(outer.and(&Guard { condition, references }.negated()));
        self.targets(&entry.value, path, &other);
    }

    /// One step or one branch; what its `when` asks comes back.
    fn item(&mut self, node: &Node, path: &str, outer: &Rc<Guard>) -> Option<Guard> {
        let mut fields = Fields::of(node, path, self.findings)?;
        let when = fields.some("when");
        let asked = when.as_ref().and_then(|field| self.guard(field));
        let inner = asked.as_ref().map_or_else(|| outer.clone(), |asked| Rc::new(outer.and(asked)));
        let args = fields.one_of(&["args", "with", "data"], self.findings);
        let (step, next) = (fields.some("step"), fields.some("next"));
        let (then, or_else) = (fields.some("then"), fields.some("else"));
        if step.is_none() && then.is_none() && or_else.is_none() && next.is_none() {
            self.findings.push(node.at, path, "needs a `step`, or `when` with `then`");
        }
        for branch in [&then, &or_else].into_iter().flatten().filter(|_| when.is_none()) {
            self.findings.push(branch.key_at, &branch.path, "needs a `when` beside it");
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
        for on in [next, then].into_iter().flatten() {
            self.targets(on.node, &on.path, &inner);
        }
        if let (Some(or_else), Some(asked)) = (or_else, &asked) {
            self.targets(or_else.node, &or_else.path, &Rc::new(outer.and(&asked.negated())));
        }
        fields.finish(&["step", "when", "then", "else", "args", "with", "data", "next"], self.findings);
        asked
    }

    fn guard(&mut self, field: &Field<'_>) -> Option<Guard> {
        let mut references = Vec::new();
        let condition = condition(field, self.scope, &mut references, self.findings)?;
        Some(Guard { condition: Some(condition), references })
    }

    fn edge(&mut self, to: &str, at: Position, path: &str, guard: &Rc<Guard>, args: Option<(Node, String, Position)>) {
        self.edges.push(Edge { to: to.to_owned(), at, path: path.to_owned(), guard: guard.clone(), args });
    }
}

impl Guard {
    fn and(&self, other: &Guard) -> Guard {
        let condition = both(self.condition.as_deref(), other.condition.as_deref());
        Guard { condition, references: [&self.references[..], &other.references[..]].concat() }
    }

    fn negated(&self) -> Guard {
        let condition = self.condition.as_ref().map(|condition| format!("not ({condition})"));
        Guard { condition, references: self.references.clone() }
    }
}
