//! The difference between two versions of a workflow, by path.

use serde_json::{Map, Value, json};

use super::{Call, Foreach, Items, Mode, Need, Step, Workflow};

/// One difference between two documents.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Difference {
    /// `steps.load.retry.max_retries`; a step that came or went is one difference.
    pub path: String,
    /// The old value; `None` if it was added.
    pub before: Option<Value>,
    /// The new value; `None` if it was removed.
    pub after: Option<Value>,
}

/// Every difference in meaning: how it is written, and which shorthand was used, makes none.
pub fn diff(before: &Workflow, after: &Workflow) -> Vec<Difference> {
    let mut found = Vec::new();
    compare("", Some(&about(before)), Some(&about(after)), &mut found);
    let order = |workflow: &Workflow| workflow.steps.iter().map(|step| step.name.clone()).collect::<Vec<_>>();
    for name in names(&order(before), &order(after)) {
        let (old, new) = (before.step(&name).map(of_step), after.step(&name).map(of_step));
        compare(&format!("steps.{name}"), old.as_ref(), new.as_ref(), &mut found);
    }
    found
}

/// The same of two values of any sort.
pub fn between(before: &Value, after: &Value) -> Vec<Difference> {
    let mut found = Vec::new();
    compare("", Some(before), Some(after), &mut found);
    found
}

fn compare(path: &str, before: Option<&Value>, after: Option<&Value>, found: &mut Vec<Difference>) {
    if before == after {
        return;
    }
    let (Some(Value::Object(old)), Some(Value::Object(new))) = (before, after) else {
        found.push(Difference { path: path.to_owned(), before: before.cloned(), after: after.cloned() });
        return;
    };
    let keys = |map: &Map<String, Value>| map.keys().cloned().collect::<Vec<_>>();
    for key in names(&keys(old), &keys(new)) {
        compare(&super::fields::join(path, &key), old.get(&key), new.get(&key), found);
    }
}

/// The old keys in their order, then the new ones.
fn names(before: &[String], after: &[String]) -> Vec<String> {
    let known: std::collections::HashSet<&String> = before.iter().collect();
    before.iter().chain(after.iter().filter(|name| !known.contains(name))).cloned().collect()
}

fn about(workflow: &Workflow) -> Value {
    let mut about = Map::new();
    let mut put = |name: &str, value: Option<Value>| about.extend(value.map(|value| (name.to_owned(), value)));
    put("name", workflow.name.clone().map(Value::String));
    put("description", workflow.description.clone().map(Value::String));
    put("path", workflow.path.clone().map(Value::String));
    put("input", Some(Value::Object(workflow.input.clone())));
    put("labels", Some(json!(workflow.labels)));
    put("retry", workflow.retry.clone());
    put("dialect", workflow.retry.as_ref().map(|_| json!(workflow.dialect)));
    put("fail_fast", Some(json!(workflow.fail_fast)));
    put("dead_end_cancel", Some(json!(workflow.dead_end_cancel)));
    put("output", workflow.output.clone());
    Value::Object(about)
}

fn of_step(step: &Step) -> Value {
    let mut shown = step.task.clone();
    let mut put = |name: &str, value: Option<Value>| shown.extend(value.map(|value| (name.to_owned(), value)));
    put("dialect", step.task.get("retry").map(|_| json!(step.dialect)));
    let needs: Map<String, Value> = step.needs.iter().map(|need| (need.step.clone(), of_need(need))).collect();
    put("needs", (!needs.is_empty()).then_some(Value::Object(needs)));
    put("if", step.condition.clone().map(Value::String));
    put("foreach", step.foreach.as_ref().map(of_foreach));
    put("output", step.output.clone());
    put("workflow", step.call.as_ref().map(of_call));
    put("args", (!step.locals.is_empty()).then(|| Value::Object(step.locals.clone())));
    put("vars", (!step.vars.is_empty()).then(|| Value::Object(step.vars.clone())));
    Value::Object(shown)
}

fn of_need(need: &Need) -> Value {
    json!({"when": need.when, "on_unmet": need.on_unmet})
}

fn of_foreach(foreach: &Foreach) -> Value {
    let items = match &foreach.items {
        Items::Expression(source) => json!(source),
        Items::List(items) => json!(items),
    };
    let (mode, limit) = match foreach.mode {
        Mode::Parallel { limit } => ("parallel", limit),
        Mode::Sequential => ("sequential", None),
    };
    json!({"in": items, "as": foreach.name, "mode": mode, "limit": limit})
}

fn of_call(call: &Call) -> Value {
    json!({"path": call.workflow, "version": call.version, "input": call.input})
}
