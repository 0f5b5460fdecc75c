//! Example responses, generated from the schemas.

use serde_json::{Map, Value, json};

/// Adds an example to every response body that has none.
pub fn fill(document: &mut Value) {
    let whole = document.clone();
    for path in document["paths"].as_object_mut().into_iter().flat_map(|paths| paths.values_mut()) {
        for operation in path.as_object_mut().into_iter().flat_map(|methods| methods.values_mut()) {
            for response in operation["responses"].as_object_mut().into_iter().flat_map(|all| all.values_mut()) {
                fill_content(response, &whole);
            }
        }
    }
    for response in document["components"]["responses"].as_object_mut().into_iter().flat_map(|all| all.values_mut()) {
        fill_content(response, &whole);
    }
}

fn fill_content(response: &mut Value, whole: &Value) {
    let Some(bodies) = response.get_mut("content").and_then(Value::as_object_mut) else { return };
    for (_, content) in bodies.iter_mut().filter(|(media, _)| media.ends_with("json")) {
        content["example"] = of(&content["schema"], whole, "", 0);
    }
}

/// A value that is valid for the schema of a field.
fn of(schema: &Value, whole: &Value, field: &str, depth: usize) -> Value {
    if let Some(path) = schema["$ref"].as_str().and_then(|path| path.strip_prefix('#')) {
        return whole.pointer(path).map_or(Value::Null, |schema| of(schema, whole, field, depth));
    }
    if let Some(first) = schema["examples"].get(0) {
        return first.clone();
    }
    if let Some(value) = schema.get("const") {
        return value.clone();
    }
    for several in ["oneOf", "anyOf", "enum"] {
        if let Some(first) = schema[several].get(0) {
            return if several == "enum" { first.clone() } else { of(first, whole, field, depth) };
        }
    }
    let sort = schema["type"].as_str().or_else(|| schema["type"][0].as_str());
    match sort {
        Some("object") => object(schema, whole, depth),
        // Lists inside of lists would make an example long and no clearer.
        Some("array") if depth < 4 => json!([of(&schema["items"], whole, field, depth + 1)]),
        Some("array") => json!([]),
        Some("string") => text(field).into(),
        Some("integer" | "number") => number(schema, field),
        Some("boolean") => false.into(),
        _ => Value::Null,
    }
}

fn object(schema: &Value, whole: &Value, depth: usize) -> Value {
    let Some(fields) = schema["properties"].as_object() else { return json!({}) };
    let required = schema["required"].as_array().cloned().unwrap_or_default();
    let told = fields.iter().filter(|(name, _)| required.iter().any(|it| it == name.as_str()));
    told.map(|(name, schema)| (name.clone(), of(schema, whole, name, depth + 1))).collect::<Map<_, _>>().into()
}

/// A plausible text for a field of this name.
fn text(field: &str) -> &'static str {
    match field {
        "kind" | "kinds" => "email.send",
        "queue" | "queues" | "namespace" => "default",
        "worker" => "worker-1",
        "instance" => "server-1",
        "lease" => "AaHfbwKHcACABMPbmHkLygAAAAEz0xBw3mX3VJq1n2sWvQkD",
        "key" => "cbk_5f0c1d2e3a4b_secret",
        "message" => "Service Unavailable",
        "path" => "retry.max_retries",
        "detail" => "what it is about this time",
        "title" => "What sort of problem it is",
        "strategy" => "exponential",
        "version" => env!("CARGO_PKG_VERSION"),
        _ => "text",
    }
}

fn number(schema: &Value, field: &str) -> Value {
    match (field, schema["minimum"].as_i64()) {
        ("attempt_number" | "number" | "cycle" | "run" | "total_attempts", _) => 1.into(),
        (_, Some(least)) => least.max(0).into(),
        _ => 0.into(),
    }
}
