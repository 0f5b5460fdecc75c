//! One step of a native document.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::fields::{Field, Fields, join};
use super::node::{Content, Node};
use super::order::Place;
use super::problem::{Findings, Position};
use super::task::{self, Shape};
use super::template::{COMMON, LOOP, Reference, Scope};
use super::{Call, Foreach, Items, Mode, Need, Origin, Routes, Step, executor, nodes};
use crate::expression::is_template;
use crate::graph::{OnUnmet, When};
use crate::policy::Dialect;

pub const MAX_NAME: usize = 100;

/// The fields of a step beside those of a task.
pub const OWN_FIELDS: [&str; 9] = ["dialect", "run", "http", "hook", "workflow", "needs", "if", "foreach", "output"];
/// The ways to say how a step is run; one of them at most.
const WAYS: [&str; 5] = ["executor", "run", "http", "hook", "workflow"];

/// The fields that the workflow sets for all of its steps.
#[derive(Default)]
pub struct Defaults {
    pub task: Map<String, Value>,
    pub dialect: Option<Dialect>,
}

pub struct Reader<'a> {
    pub defaults: &'a Defaults,
    pub routes: &'a mut Routes,
    pub findings: &'a mut Findings,
}

/// A step's name, where it stands and what it says.
pub struct Written<'a> {
    pub name: &'a str,
    pub name_at: Position,
    pub path: String,
    pub node: &'a Node,
    /// It was written as a node of another engine.
    pub is_node: bool,
    /// In a list `name` is the name of the step, in a map it is the title of its task.
    pub in_list: bool,
}

impl Reader<'_> {
    pub fn step(&mut self, written: &Written<'_>) -> Option<(Step, Place)> {
        check_name(written.name, written.name_at, &written.path, self.findings);
        let route = join("steps", written.name);
        if route != written.path {
            self.routes.insert(route.clone(), written.path.clone());
        }
        let nothing = Node { at: written.node.at, content: Content::Map(Default::default()) };
        let node = if written.node.is_null() { &nothing } else { written.node };
        let mut fields = Fields::of(node, &written.path, self.findings)?;
        let names_the_step = if written.in_list { "name" } else { "" };
        fields.take(names_the_step);
        let mut references = Vec::new();
        let foreach = fields.some("foreach").and_then(|field| foreach(&field, &mut references, self.findings));
        let inner = match &foreach {
            Some(foreach) => Scope::common().in_loop(&foreach.name),
            None => Scope::common(),
        };
        let condition =
            fields.some("if").and_then(|field| condition(&field, &Scope::common(), &mut references, self.findings));
        let output = fields.some("output").map(|field| {
            // Which attempt it was is forgotten by the time that others look.
            inner.without(&["attempt"]).with(["result"]).check_node(
                field.node,
                &field.path,
                &mut references,
                self.findings,
            );
            field.node.to_value()
        });
        let (needs, written_needs) = fields.some("needs").map(|field| needs(&field, self.findings)).unwrap_or_default();
        let call = self.call(&mut fields, &inner, &mut references);
        let dialect = task::read_dialect(&mut fields, self.findings);
        let own = self.own_fields(&mut fields, names_the_step, &route, dialect, &inner, &mut references);
        let known: Vec<&str> = task::FIELDS.iter().map(|(name, _)| *name).chain(OWN_FIELDS).collect();
        fields.finish(&known, self.findings);

        if written.is_node {
            nodes::routes(written.name, &written.path, self.routes);
        }
        let dialect = if own.contains_key("retry") { dialect.or(self.defaults.dialect) } else { self.defaults.dialect };
        let (task, origins) = self.merge(written.name, &route, own, call.is_some());
        let step = Step {
            name: written.name.to_owned(),
            task,
            dialect: dialect.unwrap_or(Dialect::Native),
            needs,
            condition,
            foreach,
            output,
            call,
            locals: Map::new(),
            vars: Map::new(),
            origins,
        };
        Some((step, Place { name: written.name.to_owned(), needs: written_needs, references }))
    }

    /// The fields of the task as the step itself says them.
    fn own_fields(
        &mut self,
        fields: &mut Fields<'_>,
        except: &str,
        route: &str,
        dialect: Option<Dialect>,
        scope: &Scope,
        references: &mut Vec<Reference>,
    ) -> Map<String, Value> {
        let ways: Vec<&str> = WAYS.into_iter().filter(|way| fields.has(way)).collect();
        if let [first, second, ..] = ways[..]
            && let Some(field) = fields.take(second)
        {
            let message = format!("`{first}` and `{second}` both say how the step is run; give one of the two");
            self.findings.push(field.key_at, field.path, message);
        }
        let mut own = Map::new();
        for (name, read) in [
            ("run", executor::run as fn(&Field<'_>, &mut Findings) -> Option<Value>),
            ("http", executor::http),
            ("hook", executor::hook),
        ] {
            let Some(field) = fields.some(name) else { continue };
            scope.check_node(field.node, &field.path, references, self.findings);
            self.routes.insert(format!("{route}.executor"), field.path.clone());
            own.extend(read(&field, self.findings).map(|value| ("executor".to_owned(), value)));
        }
        let dialect = dialect.or(self.defaults.dialect).unwrap_or(Dialect::Native);
        for (name, shape) in task::FIELDS.into_iter().filter(|(name, _)| *name != except) {
            // `null` is a word about retries: none, whatever the defaults say.
            let field = if shape == Shape::Retry { fields.take(name) } else { fields.some(name) };
            let Some(field) = field.filter(|_| !own.contains_key(name)) else { continue };
            // The rest is the same for all rounds of a loop.
            let scope = if task::OF_A_ROUND.contains(&name) { scope } else { &Scope::common() };
            let value = task::value(&field, shape, dialect, scope, references, self.findings);
            own.extend(value.map(|value| (name.to_owned(), value)));
        }
        own
    }

    /// Step over workflow, field by field; labels one by one.
    fn merge(
        &mut self,
        step: &str,
        route: &str,
        mut own: Map<String, Value>,
        calls: bool,
    ) -> (Map<String, Value>, BTreeMap<String, Origin>) {
        let (mut task, mut origins) = (Map::new(), BTreeMap::new());
        for (name, shape) in task::FIELDS {
            let (mine, inherited) = (own.remove(name), self.defaults.task.get(name));
            if let (true, Some(mine @ Value::Object(_)), Some(inherited)) = (shape == Shape::Texts, &mine, inherited) {
                let mut all = inherited.as_object().cloned().unwrap_or_default();
                origins.extend(all.keys().map(|key| (join(name, key), Origin::Workflow)));
                for (key, value) in mine.as_object().into_iter().flatten() {
                    origins.insert(join(name, key), Origin::Step);
                    all.insert(key.clone(), value.clone());
                }
                origins.insert(name.to_owned(), Origin::Step);
                task.insert(name.to_owned(), Value::Object(all));
                continue;
            }
            // A call has no task of its own to run.
            let inherited = inherited.filter(|_| !calls || !matches!(name, "executor" | "payload"));
            let (value, origin) = match (mine, inherited) {
                (Some(mine), _) => (mine, Origin::Step),
                (None, Some(inherited)) => {
                    self.routes.insert(join(route, name), join("defaults", name));
                    (inherited.clone(), Origin::Workflow)
                }
                (None, None) if name == "kind" => (Value::String(step.to_owned()), Origin::Step),
                (None, None) => continue,
            };
            if shape == Shape::Texts {
                let keys = value.as_object().into_iter().flat_map(Map::keys);
                origins.extend(keys.map(|key| (join(name, key), origin)));
            }
            origins.insert(name.to_owned(), origin);
            task.insert(name.to_owned(), value);
        }
        (task, origins)
    }

    /// `workflow: path` or `workflow: {path, version, input}`.
    fn call(&mut self, fields: &mut Fields<'_>, scope: &Scope, references: &mut Vec<Reference>) -> Option<Call> {
        let field = fields.some("workflow")?;
        if let Some(payload) = fields.some("payload") {
            self.findings.push(payload.key_at, payload.path, "another workflow takes `input`, under `workflow`");
        }
        scope.check_node(field.node, &field.path, references, self.findings);
        if let Some(path) = field.node.text().filter(|path| !path.is_empty()) {
            return Some(Call { workflow: path.to_owned(), version: None, input: None });
        }
        let mut inner = Fields::of(field.node, &field.path, self.findings)?;
        let path = inner.text("path", self.findings).filter(|path| !path.is_empty());
        if path.is_none() {
            self.findings.push(field.at, &field.path, "needs a `path`: the name of the workflow in the catalog");
        }
        let version =
            inner.some("version").and_then(|version| whole(&version, "must be the number of a version", self.findings));
        let input = inner.some("input").map(|input| {
            if input.node.map().is_none() && !input.node.text().is_some_and(is_template) {
                self.findings.push(input.at, &input.path, "must be a map, or a template that becomes one");
            }
            input.node.to_value()
        });
        inner.finish(&["path", "version", "input"], self.findings);
        Some(Call { workflow: path?, version, input })
    }
}

/// A whole number of 1 or more.
pub fn whole(field: &Field<'_>, message: &str, findings: &mut Findings) -> Option<u32> {
    let number =
        field.node.to_value().as_u64().and_then(|number| u32::try_from(number).ok()).filter(|number| *number > 0);
    if number.is_none() {
        findings.push(field.at, &field.path, message);
    }
    number
}

pub fn check_name(name: &str, at: Position, path: &str, findings: &mut Findings) {
    let fits = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-' | '.');
    if name.is_empty() || !name.chars().all(fits) {
        findings.push(at, path, "the name of a step is made of letters, digits, `_`, `-` and `.`");
    } else if name.len() > MAX_NAME {
        findings.push(at, path, format!("the name of a step may have {MAX_NAME} letters at most"));
    }
}

pub fn condition(
    field: &Field<'_>,
    scope: &Scope,
    references: &mut Vec<Reference>,
    findings: &mut Findings,
) -> Option<String> {
    let source = match &field.node.content {
        Content::Text(source) => source.to_string(),
        Content::Bool(constant) => constant.to_string(),
        _ => {
            findings.push(field.at, &field.path, "must be an expression");
            return None;
        }
    };
    scope.check_expression(&source, field.at, &field.path, references, findings)
}

/// Each need as it is meant, and as it is written.
type Needs = (Vec<Need>, Vec<(String, Position, String)>);

/// A name, a list of names, or a list with conditions.
fn needs(field: &Field<'_>, findings: &mut Findings) -> Needs {
    let single = std::slice::from_ref(field.node);
    let (items, in_list) = match field.node.list() {
        Some(items) => (items, true),
        None => (single, false),
    };
    let (mut read, mut written, mut seen) = (Vec::new(), Vec::new(), BTreeSet::new());
    for (n, item) in items.iter().enumerate() {
        let path = if in_list { format!("{}[{n}]", field.path) } else { field.path.clone() };
        let Some((need, at, path)) = need(item, path, findings) else { continue };
        if !seen.insert(need.step.clone()) {
            findings.push(at, path, format!("`{}` is named twice", need.step));
            continue;
        }
        written.push((need.step.clone(), at, path));
        read.push(need);
    }
    (read, written)
}

fn need(node: &Node, path: String, findings: &mut Findings) -> Option<(Need, Position, String)> {
    if let Some(step) = node.text() {
        let need = Need { step: step.to_owned(), when: When::Success, on_unmet: OnUnmet::Skip };
        return Some((need, node.at, path));
    }
    if node.map().is_none() {
        findings.push(node.at, path, "must be the name of a step, or a map with `step`");
        return None;
    }
    let mut fields = Fields::of(node, &path, findings)?;
    let step = fields.one_of(&["step", "task"], findings);
    if step.is_none() {
        findings.push(node.at, &path, "needs a `step`");
    }
    let when = word(&mut fields, "when", When::from_word, When::list, findings);
    let on_unmet = word(&mut fields, "on_unmet", OnUnmet::from_word, OnUnmet::list, findings);
    fields.finish(&["step", "task", "when", "on_unmet"], findings);
    let step = step?;
    let Some(name) = step.node.text() else {
        findings.push(step.at, step.path, "must be the name of a step");
        return None;
    };
    let need = Need {
        step: name.to_owned(),
        when: when.unwrap_or(When::Success),
        on_unmet: on_unmet.unwrap_or(OnUnmet::Skip),
    };
    Some((need, step.at, step.path))
}

pub fn word<T>(
    fields: &mut Fields<'_>,
    name: &str,
    read: impl Fn(&str) -> Option<T>,
    list: impl Fn() -> String,
    findings: &mut Findings,
) -> Option<T> {
    let field = fields.some(name)?;
    let word = field.node.text().and_then(read);
    if word.is_none() {
        findings.push(field.at, field.path, format!("must be one of {}", list()));
    }
    word
}

/// A list, an expression, or `{in, as, mode, limit}`.
fn foreach(field: &Field<'_>, references: &mut Vec<Reference>, findings: &mut Findings) -> Option<Foreach> {
    let default = |items| Foreach { items, name: "item".into(), mode: Mode::Parallel { limit: None } };
    if field.node.map().is_none() {
        return items(field, &Scope::common(), references, findings).map(default);
    }
    let mut fields = Fields::of(field.node, &field.path, findings)?;
    let items = match fields.some("in") {
        Some(field) => items(&field, &Scope::common(), references, findings),
        None => {
            findings.push(field.at, &field.path, "needs `in`: a list, or an expression that becomes one");
            None
        }
    };
    let name = fields.some("as").and_then(|field| loop_name(&field, &COMMON, findings));
    let limit = fields.some("limit");
    let sequential = match fields.some("mode") {
        None => false,
        Some(field) => match field.node.text() {
            Some("parallel") => false,
            Some("sequential") => true,
            _ => {
                findings.push(field.at, field.path, "must be one of parallel, sequential");
                false
            }
        },
    };
    let mode = match limit {
        Some(limit) if sequential => {
            findings.push(limit.key_at, limit.path, "one after another needs no limit");
            Mode::Sequential
        }
        None if sequential => Mode::Sequential,
        limit => {
            let message = "must be how many may run at once, 1 or more";
            Mode::Parallel { limit: limit.and_then(|limit| whole(&limit, message, findings)) }
        }
    };
    fields.finish(&["in", "as", "mode", "limit"], findings);
    Some(Foreach { items: items?, name: name.unwrap_or_else(|| "item".into()), mode })
}

pub fn items(
    field: &Field<'_>,
    scope: &Scope,
    references: &mut Vec<Reference>,
    findings: &mut Findings,
) -> Option<Items> {
    if let Some(items) = field.node.list() {
        scope.check_node(field.node, &field.path, references, findings);
        return Some(Items::List(items.iter().map(Node::to_value).collect()));
    }
    let Some(source) = field.node.text() else {
        findings.push(field.at, &field.path, "must be a list, or an expression that becomes one");
        return None;
    };
    scope.check_expression(source, field.at, &field.path, references, findings).map(Items::Expression)
}

/// A name that templates can use and that hides no other.
pub fn loop_name(field: &Field<'_>, taken: &[&str], findings: &mut Findings) -> Option<String> {
    let name = field.node.text().unwrap_or_default();
    let mut letters = name.chars();
    let fits = letters.next().is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
        && letters.all(|letter| letter.is_ascii_alphanumeric() || letter == '_');
    if !fits {
        findings.push(field.at, &field.path, "must be a name made of letters, digits and `_`");
        return None;
    }
    if taken.contains(&name)
        || [LOOP, "result", "true", "false", "none", "not", "and", "or", "in", "is", "if"].contains(&name)
    {
        findings.push(field.at, &field.path, format!("`{name}` has a meaning of its own in templates"));
        return None;
    }
    Some(name.to_owned())
}
