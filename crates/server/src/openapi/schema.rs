//! Helpers for hand-written schemas.

use serde_json::{Value, json};

/// A string.
pub fn text() -> Value {
    json!({"type": "string"})
}

/// A boolean.
pub fn flag() -> Value {
    json!({"type": "boolean"})
}

/// A non-negative integer.
pub fn count() -> Value {
    json!({"type": "integer", "minimum": 0})
}

/// An integer in a range.
pub fn between(least: i64, most: i64) -> Value {
    json!({"type": "integer", "minimum": least, "maximum": most})
}

/// Any JSON value.
pub fn anything() -> Value {
    json!({})
}

/// An enum of words.
pub fn word(of: &[&str]) -> Value {
    json!({"type": "string", "enum": of})
}

/// A constant.
pub fn constant(value: impl Into<Value>) -> Value {
    json!({"const": value.into()})
}

/// A reference to a named schema.
pub fn named(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

/// A reference to `Instant`.
pub fn instant() -> Value {
    named("Instant")
}

/// A reference to `Id`.
pub fn id() -> Value {
    named("Id")
}

/// An array.
pub fn list(of: Value) -> Value {
    json!({"type": "array", "items": of})
}

/// An object with values of one schema.
pub fn map(of: Value) -> Value {
    json!({"type": "object", "additionalProperties": of})
}

/// One of several schemas.
pub fn any_of(forms: impl IntoIterator<Item = Value>) -> Value {
    json!({"anyOf": forms.into_iter().collect::<Vec<_>>()})
}

/// A schema or null.
pub fn nullable(mut schema: Value) -> Value {
    match schema.get("type") {
        Some(Value::String(word)) if schema.get("enum").is_none() => {
            schema["type"] = json!([word, "null"]);
            schema
        }
        _ => any_of([schema, json!({"type": "null"})]),
    }
}

/// An object with exactly these fields, all required.
pub fn object<'a>(fields: impl IntoIterator<Item = (&'a str, Value)>) -> Value {
    let fields: serde_json::Map<String, Value> =
        fields.into_iter().map(|(name, schema)| (name.to_owned(), schema)).collect();
    let required: Vec<&String> = fields.keys().collect();
    json!({"type": "object", "required": required, "properties": fields, "additionalProperties": false})
}

/// An object with exactly these fields, of which only `required` are required.
pub fn partial<'a>(required: &[&str], fields: impl IntoIterator<Item = (&'a str, Value)>) -> Value {
    let mut schema = object(fields);
    schema["required"] = json!(required);
    schema
}

/// A page of a list.
pub fn page(of: Value) -> Value {
    object([("items", list(of)), ("next_cursor", nullable(text()))])
}

/// Adds a description.
pub fn about(mut schema: Value, description: &str) -> Value {
    schema["description"] = description.into();
    schema
}

/// Adds examples.
pub fn like(mut schema: Value, examples: Value) -> Value {
    schema["examples"] = examples;
    schema
}
