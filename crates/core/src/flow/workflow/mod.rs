//! Workflow documents: what they say, what is wrong with them and where, what changed from one version to the next.
//!
//! A document is YAML or JSON, native or a playbook (`kind: Playbook`), and becomes one `Workflow` either way. Reading is pure:
//! nothing is looked up, no template is rendered. Every problem is told, each with its line and column.

mod diff;
mod document;
mod executor;
mod fields;
mod import;
mod masked;
mod native;
mod node;
mod nodes;
mod order;
mod playbook;
mod problem;
mod schema;
mod state;
mod step;
mod task;
mod template;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use serde_json::{Map, Value};

pub use diff::{Difference, between, diff};
pub use import::import;
pub use masked::masked_source;
pub use playbook::{known_before_rounds, names as playbook_names};
pub use problem::{Position, Problem, Problems};
pub use schema::schema;
pub use state::{WorkflowAct, WorkflowState};
pub use template::names_a_round;

use crate::expression;
use crate::graph::{OnUnmet, When};
use crate::invalid::Invalid;
use crate::policy::Dialect;
use crate::words::words;
use node::Node;
use problem::{Findings, Lines};

/// Steps of a workflow.
pub const MAX_STEPS: usize = 10_000;

/// A workflow document, read and checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Workflow {
    /// Its name.
    pub name: Option<String>,
    /// Its description.
    pub description: Option<String>,
    /// Where a playbook says that it belongs in the catalog.
    pub path: Option<String>,
    /// Defaults, under what an execution is given.
    pub input: Map<String, Value>,
    /// Of the execution, as it is written; checked.
    pub retry: Option<Value>,
    /// Of `retry`.
    pub dialect: Dialect,
    /// In the order in which they are written.
    pub steps: Vec<Step>,
    /// A template over `input`, `steps` and `execution`.
    pub output: Option<Value>,
    /// Labels of its executions.
    pub labels: BTreeMap<String, String>,
    /// Whether the first unhandled failure ends an execution.
    pub fail_fast: bool,
    /// Whether tasks that can no longer lead anywhere are canceled.
    pub dead_end_cancel: bool,
    /// Whether it was written as a playbook.
    pub is_playbook: bool,
}

/// One step of a workflow.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Its name.
    pub name: String,
    /// The fields of a task: shorthands have become `executor`, the workflow's `defaults` are in.
    pub task: Map<String, Value>,
    /// Of `task["retry"]`.
    pub dialect: Dialect,
    /// The steps it waits for.
    pub needs: Vec<Need>,
    /// An expression without braces, asked once, before a loop begins.
    pub condition: Option<String>,
    /// Its loop, if it has one.
    pub foreach: Option<Foreach>,
    /// A template over `result` and what every template sees. In a loop one that names the item is for each round, any other for
    /// the list of them.
    pub output: Option<Value>,
    /// Another workflow in place of a task.
    pub call: Option<Call>,
    /// Only in playbooks: what the step's own templates know by its bare name (`args`).
    pub locals: Map<String, Value>,
    /// Only in playbooks: templates over `result`, which later steps know as `vars`.
    pub vars: Map<String, Value>,
    /// Where each field of `task` comes from; labels one by one as `labels.NAME`.
    pub origins: BTreeMap<String, Origin>,
}

/// An edge from another step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Need {
    /// The other step.
    pub step: String,
    /// Which end of it is waited for.
    pub when: When,
    /// The effect when it cannot be met.
    pub on_unmet: OnUnmet,
}

/// A loop over items.
#[derive(Clone, Debug, PartialEq)]
pub struct Foreach {
    /// The items.
    pub items: Items,
    /// The name of an item in templates.
    pub name: String,
    /// Whether the rounds run at once or in turn.
    pub mode: Mode,
}

/// The items of a loop.
#[derive(Clone, Debug, PartialEq)]
pub enum Items {
    /// Without braces.
    Expression(String),
    /// A list.
    List(Vec<Value>),
}

impl Items {
    fn expression(&self) -> Option<&str> {
        match self {
            Items::Expression(text) => Some(text),
            Items::List(_) => None,
        }
    }
}

/// How the rounds of a loop run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// At once.
    Parallel {
        /// How many at once; `None` for all.
        limit: Option<u32>,
    },
    /// One after the other.
    Sequential,
}

/// A call of another workflow.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// Its name.
    pub workflow: String,
    /// The newest where nothing is said.
    pub version: Option<u32>,
    /// The input.
    pub input: Option<Value>,
}

words! {
    /// The document that says it; the nearer one wins.
    pub enum Origin {
        Step = 0 "step",
        Workflow = 1 "workflow",
        Kind = 2 "kind",
        Server = 3 "server",
    }
}

/// A workflow with the text it was read from.
#[derive(Clone, Debug)]
pub struct Source {
    /// The workflow.
    pub workflow: Workflow,
    root: Node,
    lines: Lines,
    /// Where a path of the workflow is written, if not under its own name.
    routes: Routes,
}

/// `steps.load.executor` → `steps[3].http`.
type Routes = HashMap<String, String>;

/// Reads YAML or JSON. All problems are told, in the order of the text.
pub fn read(text: &str) -> Result<Source, Problems> {
    let mut findings = Findings::new(text);
    let Some(root) = document::parse(text, &mut findings) else { return Err(findings.into_problems()) };
    let mut routes = Routes::new();
    let workflow = if playbook::is_one(&root) {
        playbook::read(&root, &mut routes, &mut findings)
    } else {
        native::read(&root, &mut routes, &mut findings)
    };
    match workflow {
        Some(workflow) if findings.is_empty() => Ok(Source { workflow, root, lines: findings.into_lines(), routes }),
        _ => Err(findings.into_problems()),
    }
}

impl Source {
    /// The document as it is written, as a value.
    pub fn written_value(&self) -> Value {
        self.root.to_value()
    }

    /// Where a path stands: `steps.load.retry.max_retries`, whatever shape the document has. A path that leads further than
    /// the text does is where the text ends on the way to it.
    pub fn locate(&self, path: &str) -> Option<Position> {
        if path.is_empty() {
            return Some(self.root.at);
        }
        let written = self.written(path);
        let (at, rest) = self.root.follow(&written);
        (rest.len() < written.len()).then_some(at)
    }

    /// A problem at a path of the document, with its place.
    pub fn problem(&self, path: &str, message: &str) -> Problem {
        self.lines.problem(self.locate(path), path, message)
    }

    /// The longest beginning of the path that is written elsewhere decides.
    fn written(&self, path: &str) -> String {
        let ends = path.char_indices().filter(|(_, letter)| matches!(letter, '.' | '[')).map(|(at, _)| at);
        let mut ends: Vec<usize> = ends.chain([path.len()]).collect();
        ends.reverse();
        let routed = ends.into_iter().find_map(|end| Some((self.routes.get(&path[..end])?, &path[end..])));
        routed.map_or_else(|| path.to_owned(), |(route, rest)| format!("{route}{rest}"))
    }
}

impl Step {
    /// The fields of the task with their templates filled in. `retry` and `hooks` stay as they are: what they ask is asked when
    /// something has happened.
    pub fn fill(&self, scope: &Value) -> Result<Map<String, Value>, Invalid> {
        let (mut filled, mut faults) = (Map::new(), Invalid::default());
        for (name, value) in &self.task {
            let value = match name.as_str() {
                "retry" | "hooks" => Ok(value.clone()),
                _ => expression::render(value, scope),
            };
            match value {
                Ok(value) => drop(filled.insert(name.clone(), value)),
                Err(part) => faults.absorb(name, part),
            }
        }
        faults.or(filled)
    }
}

impl Workflow {
    /// The context of the templates of a step, or of the workflow itself. `context` holds `input`, `execution`, for each
    /// step that is over `steps.NAME.result` and `steps.NAME.state`, and the item of a loop. A playbook knows more names for it.
    pub fn scope<'c>(&self, step: Option<&Step>, context: &'c Value) -> Result<Cow<'c, Value>, Invalid> {
        if !self.is_playbook {
            return Ok(Cow::Borrowed(context));
        }
        let steps = self.steps.iter().map(|step| (step.name.as_str(), &step.vars));
        playbook_names(context, steps, step.map(|step| &step.locals)).map(Cow::Owned)
    }

    /// The step of this name.
    pub fn step(&self, name: &str) -> Option<&Step> {
        self.steps.iter().find(|step| step.name == name)
    }
}
