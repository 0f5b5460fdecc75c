//! The names that the templates of a playbook know beside our own.

use serde_json::{Map, Value, json};

use super::super::template::names_a_round;
use super::is_reserved;
use crate::expression::render;
use crate::invalid::Invalid;

/// The arguments that are known before a loop begins: those that do not speak of its item.
pub fn known_before_rounds(locals: &Map<String, Value>, item: &str) -> Map<String, Value> {
    let known = locals.iter().filter(|(_, value)| !names_a_round(value, item));
    known.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// `workload` is `input`, the bare name of a step its result, `vars` what steps have taken from theirs, and the step's own
/// arguments stand under their bare names.
///
/// `steps` are names with what is taken from their results, `locals` the arguments.
pub fn names<'a>(
    context: &Value,
    steps: impl Iterator<Item = (&'a str, &'a Map<String, Value>)> + Clone,
    locals: Option<&Map<String, Value>>,
) -> Result<Value, Invalid> {
    let mut names = context.as_object().cloned().unwrap_or_default();
    names.insert("workload".into(), context.get("input").cloned().unwrap_or_else(|| json!({})));
    if let Some(id) = context.pointer("/execution/id") {
        names.insert("execution_id".into(), id.clone());
    }
    let result_of = |name: &str| context.get("steps").and_then(|steps| steps.get(name)?.get("result"));
    let over = steps.filter_map(|(name, vars)| Some((name, vars, result_of(name)?)));
    for (name, _, result) in over.clone() {
        if !is_reserved(name) && !names.contains_key(name) {
            names.insert(name.to_owned(), result.clone());
        }
    }
    let mut names = Value::Object(names);
    let mut vars = Map::new();
    for (_, taken_from, result) in over {
        if !taken_from.is_empty() {
            names["result"] = result.clone();
            let taken = render(&Value::Object(taken_from.clone()), &names).map_err(|faults| faults.under("vars"))?;
            vars.extend(taken.as_object().cloned().unwrap_or_default());
        }
    }
    if let Some(names) = names.as_object_mut() {
        names.shift_remove("result");
        names.insert("vars".into(), Value::Object(vars));
        names.extend(context.get("result").map(|result| ("result".to_owned(), result.clone())));
    }
    if let Some(locals) = locals.filter(|locals| !locals.is_empty()) {
        let given = render(&Value::Object(locals.clone()), &names).map_err(|faults| faults.under("args"))?;
        for (name, value) in given.as_object().into_iter().flatten().filter(|(name, _)| !is_reserved(name)) {
            names[name.as_str()] = value.clone();
        }
        names["args"] = given;
    }
    Ok(names)
}
