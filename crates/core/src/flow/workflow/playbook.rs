//! `kind: Playbook`, read into the same workflow. What has no counterpart is refused by name.
//!
//! `docs/playbooks.md` tells how each part is read.

mod flow;
mod http;
mod next;
mod scope;
mod step;

use std::collections::{BTreeMap, BTreeSet};

use super::fields::{Fields, join};
use super::node::Node;
use super::order::{Order, Place, Way};
use super::problem::{Findings, Position};
use super::template::Scope;
use super::{MAX_STEPS, Routes, Workflow, native};
use crate::policy::Dialect;

pub use scope::{known_before_rounds, names};

/// Names for templates of a playbook, beside those of every template.
const NAMES: [&str; 3] = ["workload", "execution_id", "args"];

const MAX_EDGES: usize = 2 * MAX_STEPS;

/// A document that says what kind it is: ours do not.
pub fn is_one(root: &Node) -> bool {
    root.get("kind").is_some()
}

pub fn read(root: &Node, routes: &mut Routes, findings: &mut Findings) -> Option<Workflow> {
    let mut fields = Fields::of(root, "", findings)?;
    if let Some(kind) = fields.take("kind")
        && kind.node.text() != Some("Playbook")
    {
        findings.push(kind.at, kind.path, "must be `Playbook`; a native workflow has no kind");
        return None;
    }
    fields.text("apiVersion", findings);
    let about = about(&mut fields, routes, findings);
    routes.insert("input".into(), "workload".into());
    let input = fields.some("workload").map(|field| {
        if field.node.map().is_none() {
            findings.push(field.at, &field.path, "must be a map of defaults");
        }
        field.node.to_map()
    });
    let workbook = fields.some("workbook").map(|field| workbook(field.node, findings)).unwrap_or_default();
    let written = match fields.some("workflow") {
        Some(field) => steps(field.node, &workbook, findings),
        None => {
            findings.push(root.at, "workflow", "a playbook needs a workflow: the list of its steps");
            Vec::new()
        }
    };
    fields.finish(
        &["apiVersion", "kind", "metadata", "name", "path", "description", "workload", "workbook", "workflow"],
        findings,
    );
    let steps = map(&written, routes, findings)?;
    Some(Workflow {
        name: about.name,
        description: about.description,
        path: about.path,
        input: input.unwrap_or_default(),
        retry: None,
        dialect: Dialect::Step,
        steps,
        output: None,
        labels: about.labels,
        fail_fast: false,
        dead_end_cancel: false,
        is_playbook: true,
    })
}

#[derive(Default)]
struct About {
    name: Option<String>,
    path: Option<String>,
    description: Option<String>,
    labels: BTreeMap<String, String>,
}

/// `metadata`, or the same beside it as older documents have it.
fn about(fields: &mut Fields<'_>, routes: &mut Routes, findings: &mut Findings) -> About {
    let mut about = About {
        name: fields.text("name", findings),
        path: fields.text("path", findings),
        description: fields.text("description", findings),
        labels: BTreeMap::new(),
    };
    let Some(metadata) = fields.some("metadata") else { return about };
    let Some(mut inner) = Fields::of(metadata.node, &metadata.path, findings) else { return about };
    for (name, place) in [("name", &mut about.name), ("path", &mut about.path), ("description", &mut about.description)]
    {
        if let Some(text) = inner.text(name, findings) {
            routes.insert(name.into(), join("metadata", name));
            *place = Some(text);
        }
    }
    // The catalog counts versions itself.
    inner.take("version");
    about.labels = native::labels(&mut inner, findings);
    inner.finish(&["name", "path", "version", "description", "labels"], findings);
    about
}

/// One step as it is written, a task of the workbook filled in where it names one.
struct Written {
    name: String,
    at: Position,
    path: String,
    kind: Kind,
    node: Node,
}

enum Kind {
    /// Does nothing itself: where steps part, begin or end.
    Marker,
    /// By the word that is its type.
    Tool(String),
}

/// Named tasks, by a list with names or by a map.
fn workbook(node: &Node, findings: &mut Findings) -> BTreeMap<String, Node> {
    let mut tasks = BTreeMap::new();
    if let Some(entries) = node.map() {
        tasks.extend(entries.iter().map(|entry| (entry.key.clone(), entry.value.clone())));
    } else if let Some(items) = node.list() {
        for (n, item) in items.iter().enumerate() {
            let path = format!("workbook[{n}]");
            let Some(name) = item.get("name").or(item.get("task")).and_then(Node::text) else {
                findings.push(item.at, path, "needs a `name`");
                continue;
            };
            if tasks.insert(name.to_owned(), item.clone()).is_some() {
                findings.push(item.at, path, format!("a task `{name}` is there already"));
            }
        }
    } else {
        findings.push(node.at, "workbook", "must be a list of tasks with a `name`, or a map of tasks by name");
    }
    for (name, task) in tasks.iter().filter(|(_, task)| task.map().is_none()) {
        findings.push(task.at, join("workbook", name), "must be a map");
    }
    tasks
}

fn steps(node: &Node, workbook: &BTreeMap<String, Node>, findings: &mut Findings) -> Vec<Written> {
    let Some(items) = node.list() else {
        findings.push(node.at, "workflow", "must be a list of steps");
        return Vec::new();
    };
    if items.len() > MAX_STEPS {
        let message = format!("has {} steps; a workflow may have {MAX_STEPS} at most", items.len());
        findings.push(node.at, "workflow", message);
    }
    let (mut written, mut seen) = (Vec::new(), BTreeSet::new());
    for (n, item) in items.iter().enumerate().take(MAX_STEPS) {
        let path = format!("workflow[{n}]");
        let Some(name) = item.entry("step").filter(|entry| entry.value.text().is_some()) else {
            let message = if item.map().is_some() { "needs a `step`, its name" } else { "must be a map with a `step`" };
            findings.push(item.at, path, message);
            continue;
        };
        let (text, at) = (name.value.text().unwrap_or_default().to_owned(), name.value.at);
        super::step::check_name(&text, at, &join(&path, "step"), findings);
        if !seen.insert(text.clone()) {
            findings.push(at, join(&path, "step"), format!("a step `{text}` is there already"));
            continue;
        }
        if let Some((kind, node)) = step::resolve(item, &text, &path, workbook, findings) {
            written.push(Written { name: text, at, path, kind, node });
        }
    }
    written
}

/// Steps and their edges into steps and their needs.
fn map(written: &[Written], routes: &mut Routes, findings: &mut Findings) -> Option<Vec<super::Step>> {
    let scope = scope_of(written);
    let edges: Vec<Vec<next::Edge>> = written.iter().map(|step| next::edges(step, &scope, findings)).collect();
    if edges.iter().map(Vec::len).sum::<usize>() > MAX_EDGES {
        findings.push(None, "workflow", format!("the steps lead on in more than {MAX_EDGES} ways"));
        return None;
    }
    let led: Vec<Place> = written
        .iter()
        .zip(&edges)
        .map(|(step, edges)| Place {
            name: step.name.clone(),
            needs: edges.iter().map(|edge| (edge.to.clone(), edge.at, edge.path.clone())).collect(),
            references: Vec::new(),
        })
        .collect();
    let order = Order::of(&led, Way::Next, findings);
    // A circle of steps has no beginning to read from.
    let sorted = order.sorted()?;
    let arrivals = flow::arrivals(written, &edges, sorted, findings);
    let (mut steps, mut places) = (Vec::new(), Vec::new());
    for (n, step) in written.iter().enumerate() {
        let mut references = Vec::new();
        match &step.kind {
            Kind::Marker => step::marker(step, findings),
            Kind::Tool(tool) => {
                let arrival = &arrivals[n];
                let is_given = arrival.edges.iter().any(|edge| edge.args.is_some());
                let scope = step::scope_of(step, tool, is_given, &scope);
                let read = step::read(step, tool, &scope, &mut references, routes, findings);
                let Some(mut read) = read else { continue };
                step::hand_over(&mut read, arrival, &mut references, &scope, findings);
                read.needs.clone_from(&arrival.needs);
                read.condition = flow::both(arrival.condition.as_deref(), read.condition.as_deref());
                references.extend(arrival.references.iter().cloned());
                let needs =
                    read.needs.iter().map(|need| (need.step.clone(), step.at, join(&step.path, "step"))).collect();
                places.push(Place { name: step.name.clone(), needs, references });
                steps.push(read);
            }
        }
    }
    if steps.is_empty() && findings.is_empty() {
        findings.push(None, "workflow", "no step does anything");
    }
    native::check_order(&places, &[], findings);
    Some(steps)
}

fn scope_of(written: &[Written]) -> Scope {
    let tools = written.iter().filter(|step| matches!(step.kind, Kind::Tool(_)));
    let steps = tools.map(|step| step.name.clone()).filter(|name| !is_reserved(name)).collect();
    let vars = written.iter().any(|step| step.node.get("vars").is_some());
    Scope::common().with(NAMES).with(vars.then_some("vars")).with_bare_steps(steps)
}

/// Names that stay what they are, even where a step or an argument is called so.
const RESERVED: [&str; 8] = ["input", "steps", "execution", "attempt", "workload", "execution_id", "args", "vars"];

fn is_reserved(name: &str) -> bool {
    RESERVED.contains(&name)
}
