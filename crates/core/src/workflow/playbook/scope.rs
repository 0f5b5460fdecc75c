//! The names that the templates of a playbook know beside our own.

use serde_json::{Map, Value, json};

use super::super::{Step, Workflow};
use super::is_reserved;
use crate::expression::render;
use crate::invalid::Invalid;

/// `workload` is `input`, the bare name of a step its result, `vars` what steps have taken from theirs, and the step's own
/// arguments stand under their bare names.
pub fn scope(workflow: &Workflow, step: Option<&Step>, context: &Value) -> Result<Value, Invalid> {
    let mut names = context.as_object().cloned().unwrap_or_default();
    names.insert("workload".into(), context.get("input").cloned().unwrap_or_else(|| json!({})));
    if let Some(id) = context.pointer("/execution/id") {
        names.insert("execution_id".into(), id.clone());
    }
    let result_of = |step: &Step| context.get("steps").and_then(|steps| steps.get(&step.name)?.get("result"));
    for (step, result) in workflow.steps.iter().filter_map(|step| Some((step, result_of(step)?))) {
        if !is_reserved(&step.name) && !names.contains_key(&step.name) {
            names.insert(step.name.clone(), result.clone());
        }
    }
    let mut names = Value::Object(names);
    let mut vars = Map::new();
    for (step, result) in workflow.steps.iter().filter_map(|step| Some((step, result_of(step)?))) {
        if !step.vars.is_empty() {
            names["result"] = result.clone();
            let taken = render(&Value::Object(step.vars.clone()), &names).map_err(|faults| faults.under("vars"))?;
            vars.extend(taken.as_object().cloned().unwrap_or_default());
        }
    }
    if let Some(names) = names.as_object_mut() {
        names.shift_remove("result");
        names.insert("vars".into(), Value::Object(vars));
        names.extend(context.get("result").map(|result| ("result".to_owned(), result.clone())));
    }
    if let Some(step) = step.filter(|step| !step.locals.is_empty()) {
        let given = render(&Value::Object(step.locals.clone()), &names).map_err(|faults| faults.under("args"))?;
        for (name, value) in given.as_object().into_iter().flatten().filter(|(name, _)| !is_reserved(name)) {
            names[name.as_str()] = value.clone();
        }
        names["args"] = given;
    }
    Ok(names)
}
