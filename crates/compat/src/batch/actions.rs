//! Webhooks, as a batch writes them and as a task keeps them.

use std::collections::BTreeMap;

use comeback_core::{Invalid, mask};
use comeback_engine::executors::HttpCall;
use comeback_engine::secrets::SecretText;
use comeback_engine::store::Body;
use comeback_server::route::schema_types;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use crate::dialect_schemas;

const VERBS: [(&str, &str); 5] =
    [("Get", "GET"), ("Post", "POST"), ("Put", "PUT"), ("Patch", "PATCH"), ("Delete", "DELETE")];

/// A call that the server makes.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = BatchAction)]
pub struct ActionIn {
    #[schema(value_type = dialect_schemas::BatchActionKind)]
    kind: String,
    params: ParamsIn,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = BatchActionParams)]
pub struct ParamsIn {
    url: String,
    #[schema(value_type = dialect_schemas::BatchVerb)]
    verb: String,
    #[serde(default)]
    #[schema(value_type = schema_types::JsonSchema, required = false)]
    body: Option<Value>,
    #[serde(default)]
    #[schema(value_type = schema_types::HeadersSchema, required = false)]
    headers: BTreeMap<String, SecretText>,
}

impl ActionIn {
    /// As a task keeps it: method, url, headers and body.
    pub fn call(self, at: &str, faults: &mut Invalid) -> Value {
        if self.kind != "Webhook" {
            faults.push(format!("{at}.kind"), "must be Webhook");
        }
        let ParamsIn { url, verb, body, headers } = self.params;
        let method = VERBS.iter().find(|(name, _)| name.eq_ignore_ascii_case(&verb)).map(|(_, method)| *method);
        if method.is_none() {
            faults.push(format!("{at}.params.verb"), "must be one of Get, Post, Put, Patch, Delete");
        }
        let mut call = json!({"method": method.unwrap_or("POST"), "url": url, "headers": headers});
        if let Some(body) = body {
            call["body"] = body;
        }
        let mut checked = call.clone();
        checked["type"] = "http".into();
        if let Err(part) = HttpCall::checked(&checked.to_string()) {
            faults.absorb(&format!("{at}.params"), part);
        }
        call
    }
}

/// All calls of a task in the form in which they were given.
pub fn shown(body: &Body) -> Vec<Value> {
    let read = |text: &Option<String>| {
        let mut value = text.as_deref().and_then(|text| serde_json::from_str::<Value>(text).ok());
        value.as_mut().map(mask::mask);
        value
    };
    let start = read(&body.executor).and_then(|it| it.get("start").cloned());
    let mut all: Vec<Value> = start.iter().map(|call| action("Start", None, call)).collect();
    let hooks = read(&body.hooks).unwrap_or_default();
    for (name, trigger, condition) in
        [("success", "End", Some("Success")), ("failure", "End", Some("Failure")), ("cancel", "Cancel", None)]
    {
        let calls = hooks.get(name).and_then(Value::as_array);
        all.extend(calls.into_iter().flatten().map(|call| action(trigger, condition, call)));
    }
    all
}

fn action(trigger: &str, condition: Option<&str>, call: &Value) -> Value {
    let mut params = Map::new();
    params.insert("url".into(), call["url"].clone());
    let verb = VERBS.iter().find(|(_, method)| call["method"] == *method).map_or("Post", |(verb, _)| verb);
    params.insert("verb".into(), verb.into());
    for name in ["body", "headers"] {
        if let Some(value) = call.get(name).filter(|value| !value.is_null()) {
            params.insert(name.into(), value.clone());
        }
    }
    json!({"kind": "Webhook", "trigger": trigger, "condition": condition, "params": params})
}
