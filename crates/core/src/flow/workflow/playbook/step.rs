//! One step of a playbook: what runs it, in a loop or not, with which arguments.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::super::fields::{Field, Fields, join};
use super::super::node::{Content, Entry, Node};
use super::super::problem::Findings;
use super::super::step::{condition, items, loop_name, whole};
use super::super::task::{self, Shape};
use super::super::template::{Reference, Scope, names_a_round};
use super::super::{Call, Foreach, Mode, Origin, Routes, Step};
use super::flow::Arrival;
use super::{Kind, Written, http, is_reserved};
use crate::expression::{check_expression, is_template};
use crate::policy::Dialect;

/// Three names for what a step is given.
const ARGS: [&str; 3] = ["args", "with", "data"];

/// The definition of a step, with the tasks it stands for filled in: `type: workbook`, `type: iterator`, and a `tool` in full.
pub fn resolve(
    node: &Node,
    name: &str,
    path: &str,
    workbook: &BTreeMap<String, Node>,
    findings: &mut Findings,
) -> Option<(Kind, Node)> {
    let (tool, node) = tool(node, path, findings)?;
    let Some(tool) = tool else { return Some((Kind::Marker, node)) };
    match tool.as_str() {
        "start" | "end" => Some((Kind::Marker, node)),
        "workbook" => {
            let entry = node.entry("task").or(node.entry("name"));
            let Some(wanted) = entry.and_then(|entry| entry.value.text()) else {
                findings.push(node.at, path, "needs a `name`: that of a task in the workbook");
                return None;
            };
            let Some(task) = workbook.get(wanted) else {
                let at = entry.map_or(node.at, Entry::at);
                findings.push(at, join(path, "name"), format!("there is no task `{wanted}` in the workbook"));
                return None;
            };
            filled(&without(&node, &["name", "task"]), &without(task, &["name", "task"]), name, path, findings)
        }
        "iterator" => {
            let Some(task) = node.get("task").filter(|task| task.map().is_some()) else {
                findings.push(node.at, path, "an iterator needs a `task`: what is done for each");
                return None;
            };
            let own = ["collection", "element", "mode", "concurrency"];
            let entries: Vec<Entry> = node
                .map()
                .unwrap_or_default()
                .iter()
                .filter(|entry| own.contains(&entry.key.as_str()))
                .map(|entry| {
                    let key = match entry.key.as_str() {
                        "collection" => "in",
                        "element" => "iterator",
                        "concurrency" => "limit",
                        same => same,
                    };
                    Entry { key: key.to_owned(), ..entry.clone() }
                })
                .collect();
            let mut outer = without(&node, &["collection", "element", "mode", "concurrency", "task"]);
            if let Content::Map(kept) = &outer.content {
                let value = Node { at: node.at, content: Content::Map(entries.into()) };
                let looped = Entry { key: "loop".into(), key_at: node.at, value };
                outer.content = Content::Map(kept.iter().cloned().chain([looped]).collect());
            }
            filled(&outer, &without(task, &["name", "task"]), name, path, findings)
        }
        _ => Some((Kind::Tool(tool), node)),
    }
}

/// A step over the task it stands for.
fn filled(step: &Node, task: &Node, name: &str, path: &str, findings: &mut Findings) -> Option<(Kind, Node)> {
    let (tool, task) = tool(task, path, findings)?;
    match tool.as_deref() {
        Some(tool) if !["workbook", "iterator", "start", "end"].contains(&tool) => {
            Some((Kind::Tool(tool.to_owned()), over(step, &task)))
        }
        _ => {
            findings.push(task.at, path, format!("the task that `{name}` stands for needs a type that can be run"));
            None
        }
    }
}

/// `type: http`, `tool: http` or `tool: {kind: http, …}`: the word, and the step without it.
fn tool(node: &Node, path: &str, findings: &mut Findings) -> Option<(Option<String>, Node)> {
    let mut fields = Fields::of(node, path, findings)?;
    let rest = without(node, &["type", "tool"]);
    let Some(field) = fields.one_of(&["type", "tool"], findings) else { return Some((None, rest)) };
    if let Some(word) = field.node.text().filter(|word| !word.is_empty()) {
        return Some((Some(word.to_owned()), rest));
    }
    let word = field.node.get("kind").or(field.node.get("type")).and_then(Node::text);
    let Some(word) = word else {
        findings.push(field.at, field.path, "must be the name of a tool, or a map with its `kind`");
        return None;
    };
    Some((Some(word.to_owned()), over(&rest, &without(field.node, &["kind", "type"]))))
}

fn without(node: &Node, names: &[&str]) -> Node {
    let kept = node.map().unwrap_or_default().iter().filter(|entry| !names.contains(&entry.key.as_str()));
    Node { at: node.at, content: Content::Map(kept.cloned().collect()) }
}

/// The upper fields over the lower ones; arguments are merged one by one.
fn over(upper: &Node, lower: &Node) -> Node {
    let mut entries: Vec<Entry> = upper.map().unwrap_or_default().to_vec();
    for below in lower.map().unwrap_or_default() {
        match entries.iter_mut().find(|entry| entry.key == below.key) {
            None => entries.push(below.clone()),
            Some(above) if ARGS.contains(&below.key.as_str()) && above.value.map().is_some() => {
                above.value = over(&above.value, &below.value);
            }
            Some(_) => {}
        }
    }
    Node { at: upper.at, content: Content::Map(entries.into()) }
}

/// A marker says where it leads and nothing else.
pub fn marker(written: &Written, findings: &mut Findings) {
    let Some(mut fields) = Fields::of(&written.node, &written.path, findings) else { return };
    for name in ["step", "desc", "description", "case"] {
        fields.take(name);
    }
    if let Some(next) = fields.some("next").filter(|_| written.name == "end") {
        findings.push(next.key_at, next.path, "`end` leads nowhere");
    }
    for (name, field) in fields.rest() {
        let message = format!("`{name}` is nothing that a step without a tool could use; give it a `type`");
        findings.push(field.key_at, field.path, message);
    }
}

/// The names that the templates of this step may use: `args` only where it has some.
pub fn scope_of(written: &Written, tool: &str, is_given: bool, scope: &Scope) -> Scope {
    let own = match tool {
        "playbook" => &[],
        "http" => &ARGS[..2],
        _ => &ARGS[..],
    };
    let has = |name: &&str| written.node.get(name).and_then(Node::map).is_some_and(|entries| !entries.is_empty());
    let has_some = own.iter().any(has) || (is_given && tool != "playbook");
    if has_some { scope.clone() } else { scope.without(&["args"]) }
}

pub fn read(
    written: &Written,
    tool: &str,
    scope: &Scope,
    references: &mut Vec<Reference>,
    routes: &mut Routes,
    findings: &mut Findings,
) -> Option<Step> {
    let route = join("steps", &written.name);
    for (ours, theirs) in
        [("", ""), (".executor", ""), (".payload", ""), (".kind", ".type"), (".foreach", ".loop"), (".name", ".desc")]
    {
        routes.insert(format!("{route}{ours}"), format!("{}{theirs}", written.path));
    }
    let mut fields = Fields::of(&written.node, &written.path, findings)?;
    fields.take("step");
    fields.take("next");
    fields.take("case");
    let mut task = Map::from_iter([("kind".to_owned(), json!(tool))]);
    let title = fields.one_of(&["desc", "description"], findings);
    if let Some(title) = title.and_then(|field| field.node.text().map(str::to_owned)) {
        task.insert("name".into(), title.into());
    }
    // Asked once, before a loop begins.
    let when = fields.some("when");
    let condition = when.as_ref().and_then(|field| condition(field, scope, references, findings));
    let looped = fields.some("loop");
    let foreach = looped.as_ref().and_then(|field| foreach(field, scope, references, findings));
    // Taken when a later step looks, from the results of all rounds.
    let vars = fields.some("vars").map(|field| {
        let mut named = Vec::new();
        scope.without(&["args", "attempt", "vars"]).with(["result"]).check_node(
            field.node,
            &field.path,
            &mut named,
            findings,
        );
        references.extend(named.into_iter().filter(|reference| reference.step != written.name));
        if field.node.map().is_none() {
            findings.push(field.at, &field.path, "must be a map");
        }
        field.node.to_map()
    });
    let scope = match &foreach {
        Some(foreach) => scope.in_loop(&foreach.name),
        None => scope.clone(),
    };
    for (name, shape) in [("retry", Shape::Retry), ("timeout", Shape::Duration)] {
        let Some(field) = fields.some(name) else { continue };
        let value = task::value(&field, shape, Dialect::Step, &scope, references, findings);
        task.extend(value.map(|value| (name.to_owned(), value)));
    }
    let mut step = Step {
        name: written.name.clone(),
        task,
        dialect: Dialect::Step,
        needs: Vec::new(),
        condition,
        foreach,
        output: None,
        call: None,
        locals: Map::new(),
        vars: vars.unwrap_or_default(),
        origins: BTreeMap::new(),
    };
    match tool {
        "http" => {
            let locals = arguments(&mut fields, &["args", "with"], &scope, references, findings);
            let scope = scope.with(names_of(&locals));
            step.task.extend(http::executor(fields, &route, &scope, references, routes, findings));
            step.locals = locals;
        }
        "playbook" => step.call = Some(call(fields, &scope, references, findings)?),
        _ => {
            step.locals = arguments(&mut fields, &ARGS, &scope, references, findings);
            step.task.extend(payload(&written.node, fields, &scope.with(names_of(&step.locals)), references, findings));
        }
    }
    if let Some(foreach) = &step.foreach {
        let asked = [(when, step.condition.as_deref()), (looped, foreach.items.expression())];
        for (field, source) in asked.into_iter().filter_map(|(field, source)| field.zip(source)) {
            refuse_items(&field, source, &step.locals, &foreach.name, findings);
        }
    }
    step.origins = step.task.keys().map(|name| (name.clone(), Origin::Step)).collect();
    Some(step)
}

/// The collection of a loop may name no argument that holds its item.
fn refuse_items(field: &Field<'_>, source: &str, locals: &Map<String, Value>, item: &str, findings: &mut Findings) {
    let Ok((_, names)) = check_expression(source) else { return };
    let holds_it = |name: &String| match name.strip_prefix("args.").and_then(|rest| rest.split('.').next()) {
        Some(argument) => locals.get(argument).is_some_and(|value| names_a_round(value, item)),
        None => name == "args" && locals.values().any(|value| names_a_round(value, item)),
    };
    for name in names.iter().filter(|name| holds_it(name)) {
        let message = format!("`{name}` holds `{item}`, which is not known before the loop begins");
        findings.push(field.at, &field.path, message);
    }
}

fn names_of(locals: &Map<String, Value>) -> Vec<String> {
    locals.keys().filter(|name| !is_reserved(name)).cloned().collect()
}

/// The step's own arguments: its other templates know them by their bare names.
fn arguments(
    fields: &mut Fields<'_>,
    names: &[&str],
    scope: &Scope,
    references: &mut Vec<Reference>,
    findings: &mut Findings,
) -> Map<String, Value> {
    let Some(field) = fields.one_of(names, findings) else { return Map::new() };
    scope.without(&["args"]).check_node(field.node, &field.path, references, findings);
    if field.node.map().is_none() && !field.node.text().is_some_and(is_template) {
        findings.push(field.at, &field.path, "must be a map");
    }
    field.node.to_map()
}

/// A worker gets the step's own fields, as they are.
fn payload(
    node: &Node,
    mut fields: Fields<'_>,
    scope: &Scope,
    references: &mut Vec<Reference>,
    findings: &mut Findings,
) -> Option<(String, Value)> {
    let mut payload = Map::new();
    for name in ARGS {
        payload.extend(node.get(name).filter(|args| !args.is_null()).map(|args| (name.to_owned(), args.to_value())));
    }
    for (name, field) in fields.rest() {
        scope.check_node(field.node, &field.path, references, findings);
        payload.insert(name.to_owned(), field.node.to_value());
    }
    (!payload.is_empty()).then(|| ("payload".to_owned(), Value::Object(payload)))
}

fn call(
    mut fields: Fields<'_>,
    scope: &Scope,
    references: &mut Vec<Reference>,
    findings: &mut Findings,
) -> Option<Call> {
    let path = fields.text("path", findings);
    if path.is_none() {
        findings.push(fields.at, &fields.path, "needs a `path`: the name of the playbook in the catalog");
    }
    let version = fields.some("version").and_then(|version| {
        let number = version.node.text().and_then(|text| text.parse().ok());
        number.or_else(|| whole(&version, "must be the number of a version", findings))
    });
    let input = fields.one_of(&["args", "with", "data", "payload", "workload", "input"], findings).map(|field| {
        scope.check_node(field.node, &field.path, references, findings);
        if field.node.map().is_none() && !field.node.text().is_some_and(is_template) {
            findings.push(field.at, &field.path, "must be a map, or a template that becomes one");
        }
        field.node.to_value()
    });
    fields.finish(&["path", "version", "args"], findings);
    Some(Call { workflow: path?, version, input })
}

/// `loop: {in, iterator, mode}`; one after another where nothing is said.
fn foreach(
    field: &Field<'_>,
    scope: &Scope,
    references: &mut Vec<Reference>,
    findings: &mut Findings,
) -> Option<Foreach> {
    let mut fields = Fields::of(field.node, &field.path, findings)?;
    let items = match fields.some("in") {
        Some(field) => items(&field, scope, references, findings),
        None => {
            findings.push(field.at, &field.path, "needs `in`: a list, or an expression that becomes one");
            None
        }
    };
    let name = match fields.one_of(&["iterator", "element", "as"], findings) {
        Some(field) => loop_name(&field, &super::RESERVED, findings),
        None => Some("item".to_owned()),
    };
    let limit = fields.one_of(&["limit", "concurrency"], findings);
    let parallel = match fields.some("mode") {
        None => limit.is_some(),
        Some(field) => match field.node.text() {
            Some("sequential") => false,
            Some("parallel" | "async") => true,
            _ => {
                findings.push(field.at, field.path, "must be one of sequential, parallel, async");
                false
            }
        },
    };
    let mode = match limit {
        Some(limit) if !parallel => {
            findings.push(limit.key_at, limit.path, "one after another needs no limit");
            Mode::Sequential
        }
        None if !parallel => Mode::Sequential,
        limit => Mode::Parallel {
            limit: limit.and_then(|limit| whole(&limit, "must be how many may run at once, 1 or more", findings)),
        },
    };
    fields.finish(&["in", "iterator", "mode", "limit"], findings);
    Some(Foreach { items: items?, name: name?, mode })
}

/// The arguments of the edge go over those of the step. Only one edge can have some: which one came is not known.
pub fn hand_over(
    step: &mut Step,
    arrival: &Arrival<'_>,
    references: &mut Vec<Reference>,
    scope: &Scope,
    findings: &mut Findings,
) {
    for edge in &arrival.edges {
        let Some((node, path, at)) = &edge.args else { continue };
        if arrival.edges.len() > 1 {
            findings.push(
                *at,
                path,
                format!("several steps lead to `{}`, so what one of them hands over is not certain", step.name),
            );
            continue;
        }
        scope.without(&["args"]).check_node(node, path, references, findings);
        if node.map().is_none() {
            findings.push(node.at, path, "must be a map");
            continue;
        }
        let given = node.to_map();
        if let Some(call) = &mut step.call {
            match call.input.get_or_insert_with(|| json!({})) {
                Value::Object(input) => input.extend(given),
                _ => findings.push(*at, path, "the playbook is given a template already; one of the two"),
            }
            continue;
        }
        step.locals.extend(given.clone());
        if step.task.contains_key("executor") {
            continue;
        }
        let payload = step.task.entry("payload").or_insert_with(|| json!({}));
        if let Value::Object(payload) = payload {
            let name = ARGS.into_iter().find(|name| payload.contains_key(*name)).unwrap_or("args");
            match payload.entry(name).or_insert_with(|| json!({})) {
                Value::Object(args) => args.extend(given),
                _ => findings.push(*at, path, format!("the step has `{name}` from a template already; one of the two")),
            }
        }
        step.origins.insert("payload".into(), Origin::Step);
    }
}
