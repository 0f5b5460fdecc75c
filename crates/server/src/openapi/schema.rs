//! Schemas by hand, for what no struct describes: short names for the few forms there are.

use serde_json::{Value, json};

pub fn text() -> Value {
    json!({"type": "string"})
}

pub fn flag() -> Value {
    json!({"type": "boolean"})
}

/// A whole number from 0 on.
pub fn count() -> Value {
    json!({"type": "integer", "minimum": 0})
}

pub fn between(least: i64, most: i64) -> Value {
    json!({"type": "integer", "minimum": least, "maximum": most})
}

/// Whatever JSON can say.
pub fn anything() -> Value {
    json!({})
}

pub fn word(of: &[&str]) -> Value {
    json!({"type": "string", "enum": of})
}

pub fn constant(value: impl Into<Value>) -> Value {
    json!({"const": value.into()})
}

/// A schema that is told once, by its name.
pub fn named(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

pub fn instant() -> Value {
    named("Instant")
}

pub fn id() -> Value {
    named("Id")
}

pub fn list(of: Value) -> Value {
    json!({"type": "array", "items": of})
}

pub fn map(of: Value) -> Value {
    json!({"type": "object", "additionalProperties": of})
}

pub fn any_of(forms: impl IntoIterator<Item = Value>) -> Value {
    json!({"anyOf": forms.into_iter().collect::<Vec<_>>()})
}

pub fn nullable(mut schema: Value) -> Value {
    match schema.get("type") {
        Some(Value::String(word)) if schema.get("enum").is_none() => {
            schema["type"] = json!([word, "null"]);
            schema
        }
        _ => any_of([schema, json!({"type": "null"})]),
    }
}

/// An object with exactly these fields, all of which are always there.
pub fn object<'a>(fields: impl IntoIterator<Item = (&'a str, Value)>) -> Value {
    let fields: serde_json::Map<String, Value> =
        fields.into_iter().map(|(name, schema)| (name.to_owned(), schema)).collect();
    let required: Vec<&String> = fields.keys().collect();
    json!({"type": "object", "required": required, "properties": fields, "additionalProperties": false})
}

/// An object with no other fields than these, of which only the first ones are always there.
pub fn partial<'a>(required: &[&str], fields: impl IntoIterator<Item = (&'a str, Value)>) -> Value {
    let mut schema = object(fields);
    schema["required"] = json!(required);
    schema
}

/// A page of a list.
pub fn page(of: Value) -> Value {
    object([("items", list(of)), ("next_cursor", nullable(text()))])
}

pub fn about(mut schema: Value, description: &str) -> Value {
    schema["description"] = description.into();
    schema
}

pub fn like(mut schema: Value, examples: Value) -> Value {
    schema["examples"] = examples;
    schema
}
