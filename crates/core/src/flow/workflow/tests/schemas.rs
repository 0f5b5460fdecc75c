use serde_json::json;

use super::*;
use crate::workflow::{native, step, task};

fn valid(value: &Value) -> bool {
    let schema = schema();
    jsonschema::validator_for(&schema).expect("the schema is one").is_valid(value)
}

fn as_value(text: &str) -> Value {
    let mut findings = Findings::new(text);
    document::parse(text, &mut findings).unwrap().to_value()
}

#[test]
fn what_is_read_is_valid() {
    for text in [
        documents::WHOLE,
        playbooks::WHOLE,
        "steps: {a: }",
        "steps: [{name: a, run: x}, {name: b, needs: a, http: 'https://example.org'}]",
        "defaults: {retry: {maxAttempts: 2}, dialect: workflow}\nsteps: {a: {retry: false}, b: {retry: 'exp(60s, x2, 5 retries)', dialect: native}}",
        "steps: [{nodeId: a, type: action, subType: call, config: {url: 'https://example.com', retry: {maxAttempts: 2}}}]",
        "nodeId: a\nconfig: {x: 1}",
        "steps: {a: {foreach: '{{ input.rows }}', priority: '{{ input.p }}', executor: {type: timer}, delay: 5m}}",
        "steps: {a: {hook: {start: {url: u}}}, b: {workflow: p, needs: [{step: a, when: failure, on_unmet: fail}]}}",
    ] {
        good(text);
        let value = as_value(text);
        let schema = schema();
        let validator = jsonschema::validator_for(&schema).unwrap();
        let errors: Vec<String> = validator.iter_errors(&value).map(|error| error.to_string()).collect();
        assert!(errors.is_empty(), "{text}\n{}", errors.join("\n"));
    }
}

#[test]
fn what_is_refused_is_invalid() {
    for text in [
        "name: x",
        "steps: {}",
        "steps: 3",
        "stesp: {a: }",
        "steps: {a: {rtery: 3}}",
        "steps: {'a b': }",
        "steps: [{run: x}]",
        "steps: {a: {needs: [{when: success}]}}",
        "steps: {a: {needs: [{step: b, when: sometimes}]}}",
        "steps: {a: {http: {method: GET}}}",
        "steps: {a: {run: []}}",
        "steps: {a: {foreach: {as: item}}}",
        "steps: {a: {foreach: {in: [1], mode: both}}}",
        "steps: {a: {executor: {type: rocket}}}",
        "steps: {a: {run: x, http: u}}",
        "steps: {a: {workflow: {version: 0}}}",
        "steps: {a: {priority: high}}",
        "defaults: {name: x}\nsteps: {a: }",
        "kind: Deployment\nsteps: {a: }",
        "kind: Playbook\nworkflow: [{type: x}]",
        "kind: Playbook\nkeychain: []\nworkflow: [{step: a, type: x}]",
    ] {
        bad(text);
        assert!(!valid(&as_value(text)), "{text}");
    }
}

/// A field that the reader knows and the schema does not, or the other way round, is found here.
#[test]
fn the_schema_knows_the_fields_of_the_reader() {
    let schema = schema();
    let fields = |pointer: &str| {
        let found = schema.pointer(pointer).and_then(Value::as_object).unwrap_or_else(|| panic!("{pointer}"));
        let mut names: Vec<String> = found.keys().cloned().collect();
        names.sort();
        names
    };
    let sorted = |names: Vec<&str>| {
        let mut names: Vec<String> = names.into_iter().map(str::to_owned).collect();
        names.sort();
        names
    };
    let of_task = || task::FIELDS.iter().map(|(name, _)| *name);
    assert_eq!(fields("/$defs/native/properties"), sorted(native::FIELDS.to_vec()));
    assert_eq!(fields("/$defs/step/properties"), sorted(of_task().chain(step::OWN_FIELDS).collect()));
    let defaults = of_task().filter(|name| !task::NOT_FOR_ALL.contains(name)).chain(["dialect"]).collect();
    assert_eq!(fields("/$defs/defaults/properties"), sorted(defaults));
    assert_eq!(schema["$schema"], json!("https://json-schema.org/draft/2020-12/schema"));
}
