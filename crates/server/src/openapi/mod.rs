//! The interface as a document (OpenAPI 3.1), made of the table of routes. Nothing is said here about a single route: that
//! stands beside it.

pub mod doc;
mod example;
pub mod page;
mod problems;
pub mod schema;
mod shapes;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};
use utoipa::openapi::{RefOr, Schema};

use crate::auth::{Need, Role};
use crate::gate::Class;
use crate::route_set::{ErrorFormat, RouteSet};
use crate::routes::{Route, table};
pub use doc::{Doc, Param};
pub use shapes::stands_for;

/// Parts of the interface, by the first word behind `/api/v1`.
const TAGS: &[(&str, &str, &str)] = &[
    ("tasks", "Tasks", "Submit tasks, look at them, and act on them."),
    ("operations", "Tasks", ""),
    ("leases", "Leases", "How workers get work, keep it, and say how it ended."),
    ("events", "Events", "What happened, and what happens."),
    ("workflows", "Workflows", "The catalog: workflows in versions that never change."),
    ("executions", "Executions", "Execute workflows, look at executions, and act on them as a whole."),
    ("schedules", "Schedules", "What starts by itself, by cron or by spans."),
    ("subscriptions", "Subscriptions", "Who is told of what happens, by signed calls."),
    ("alerts", "Alerts", "Too much of something within a while, and who is told."),
    ("secrets", "Secrets", "Values under a name, for calls, commands and subscriptions; shown to nobody."),
    ("policies", "Policies", "How a retry policy is read, what it would do, and which kinds have one."),
    ("rules", "Rules", "How many tasks of one sort may run at once."),
    ("dependencies", "Dependencies", "What tasks need outside, and what holds them back while it is in trouble."),
    ("accounts", "Accounts", "The credits that tasks cost, and how many retries they pay for."),
    ("stats", "Statistics", "Numbers about now and about what is to come."),
    ("upcoming", "Statistics", ""),
    ("errors", "Errors", "Errors that look the same, in groups, and what people say of them."),
    ("clock", "Clock", "What time it is; on a server whose time is moved by hand, moving it."),
    ("admin", "Administration", "Loops, workers, instances, and what is stuck."),
    ("keys", "Keys", "Who may do what."),
    ("me", "Keys", ""),
];

/// Tag of the paths outside of `/api/v1`, and its description.
const SERVER: (&str, &str) = ("Server", "Health, metrics and this document.");

/// The tag of a route. `None` if there is none for its path.
pub fn tag(route: &Route) -> Option<&'static str> {
    let of_path = || match route.path.strip_prefix("/api/v1/") {
        None => Some(SERVER.0),
        Some(rest) => {
            let first = rest.split('/').next().unwrap_or_default();
            TAGS.iter().find(|(word, ..)| *word == first).map(|(_, tag, _)| *tag)
        }
    };
    route.tag.or_else(of_path)
}

/// Every shape with its name. No two different ones may share a name: the later would stand for both.
fn components(added: &[RouteSet], parts: doc::Parts, answers: &Answers) -> Vec<(String, Value)> {
    let derived: BTreeMap<String, Value> = parts.into_iter().map(|(name, schema)| (name, derived(schema))).collect();
    let of_added = added.iter().flat_map(|set| (set.schemas)());
    let made = shapes::made_of(&derived).into_iter().chain(shapes::all()).chain(of_added);
    let made: Vec<(String, Value)> = made.map(|(name, schema)| (name.to_owned(), schema)).collect();
    let sorts = answers.sorts.iter().map(|sort| (sort.name(), sort.schema()));
    derived.into_iter().chain(made).chain(sorts).collect()
}

/// The paths, what they answer, and all shapes.
fn described(added: &[RouteSet]) -> (Map<String, Value>, Answers, Vec<(String, Value)>) {
    let mut paths: Map<String, Value> = Map::new();
    let mut parts = doc::Parts::new();
    let mut answers = Answers::default();
    for route in table(added) {
        let Some(doc) = &route.doc else { continue };
        doc.body.iter().for_each(|body| (body.collect)(&mut parts));
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        path[route.method.as_str().to_ascii_lowercase()] = operation(&route, doc, &mut answers);
    }
    let schemas = components(added, parts, &answers);
    (paths, answers, schemas)
}

/// Every schema with its name, as the document of a server with these added routes is made of them.
pub fn schemas(added: &[RouteSet]) -> Vec<(String, Value)> {
    described(added).2
}

/// The document of a server with these added routes.
pub fn document(added: &[RouteSet]) -> Value {
    let (paths, answers, schemas) = described(added);
    let schemas: BTreeMap<String, Value> = schemas.into_iter().collect();
    let mut document = json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Comeback",
            "version": env!("CARGO_PKG_VERSION"),
            "description": INTRODUCTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/", "description": "This server."}],
        "tags": tags(added),
        "security": [{"key": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"key": {
                "type": "http",
                "scheme": "bearer",
                "bearerFormat": "cbk_<id>_<secret>",
                "description": "A key of the server. As long as there is none, everybody on this machine may do everything.",
            }},
            "parameters": {"Namespace": parameter("header", &NAMESPACE)},
            "headers": {
                "RequestId": {"description": "The id of the request, as in `instance` of a problem.", "schema": schema::text()},
                "Problem": {"description": "The word that a problem has elsewhere in `type`.", "schema": schema::text()},
                "RetryAfter": {"description": "Seconds after which to ask again.", "schema": schema::count()},
            },
            "responses": answers.shared,
            "schemas": schemas,
        },
    });
    example::fill(&mut document);
    document
}

const INTRODUCTION: &str = "A durable job server whose speciality is retries. JSON in and out. Instants are RFC 3339 in UTC; \
    spans are seconds or words such as `90s`, `1h30m`, `PT5M` where they are given, and numbers named `…_ms` where they are \
    told. What is not known is refused by name. Every answer that is not a success is a problem (RFC 9457): `error` is its \
    code, `detail` says what it is about, `errors` lists every fault by its path. Limits are those of a server that was told of no \
    others.";

const NAMESPACE: Param = Param::new(
    "Comeback-Namespace",
    "The namespace that the request is about. A key is bound to one; a key for all of them names one here. `default` \
     where nothing is said.",
    || schema::named("Name"),
);

fn tags(added: &[RouteSet]) -> Vec<Value> {
    let own = TAGS.iter().filter(|(_, _, about)| !about.is_empty()).map(|(_, name, about)| (*name, *about));
    let all = own.chain(added.iter().map(|set| (set.tag, set.about))).chain([SERVER]);
    all.map(|(name, about)| json!({"name": name, "description": about})).collect()
}

fn operation(route: &Route, doc: &Doc, answers: &mut Answers) -> Value {
    let mut operation = json!({
        "tags": [tag(route)],
        "operationId": doc.id,
        "summary": route.summary,
        "parameters": parameters(route, doc),
        "responses": responses(route, doc, answers),
    });
    if !doc.about.is_empty() {
        operation["description"] = doc.about.into();
    }
    if !doc.body.is_empty() {
        operation["requestBody"] = request_body(doc);
    }
    if route.need == Need::Nothing {
        operation["security"] = json!([]);
    } else {
        let roles: Vec<&str> = Role::ALL.iter().filter(|role| role.may(route.need)).map(|role| role.word()).collect();
        operation["x-roles"] = json!(roles);
    }
    operation
}

fn request_body(doc: &Doc) -> Value {
    let forms: Vec<Value> = doc.body.iter().map(|body| schema::named(&(body.name)())).collect();
    let schema = if let [only] = forms.as_slice() { only.clone() } else { json!({"oneOf": forms}) };
    let mut media = json!({"schema": schema});
    if !doc.examples.is_empty() {
        let examples: Map<String, Value> =
            doc.examples.iter().zip(1..).map(|(it, n)| (n.to_string(), json!({"value": it}))).collect();
        media["examples"] = examples.into();
    }
    json!({"required": doc.body_needed, "content": {"application/json": media}})
}

fn parameters(route: &Route, doc: &Doc) -> Vec<Value> {
    let in_path = route.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let mut all: Vec<Value> = in_path
        .map(|name| {
            let own = doc.path.iter().find(|param| param.name == name).map(|param| (param.about, (param.schema)()));
            let (about, schema) = own.unwrap_or_else(|| shapes::path_parameter(route.path, name));
            json!({"name": name, "in": "path", "required": true, "description": about, "schema": schema})
        })
        .collect();
    all.extend(doc.query.iter().map(|param| parameter("query", param)));
    all.extend(doc.headers.iter().map(|param| parameter("header", param)));
    if route.need != Need::Nothing {
        all.push(json!({"$ref": "#/components/parameters/Namespace"}));
    }
    all
}

fn parameter(place: &str, param: &Param) -> Value {
    let (name, schema) = (param.name, (param.schema)());
    let mut shown = json!({"name": name, "in": place, "description": param.about, "schema": schema});
    // One parameter that stands for many is an object whose fields are the parameters.
    if schema["type"] == "object" {
        shown["style"] = "form".into();
        shown["explode"] = true.into();
    }
    shown
}

/// What a route can answer beside success: what follows from its line, and what it says itself.
pub fn problems_of(route: &Route, doc: &Doc) -> BTreeSet<&'static str> {
    let mut all: BTreeSet<&'static str> = doc.problems.iter().copied().collect();
    if route.need != Need::Nothing {
        // The namespace, or a parameter that nobody knows.
        all.extend(["unauthorized", "forbidden", "bad-request", "validation-failed", "internal", "unavailable"]);
    }
    if !doc.body.is_empty() {
        all.extend(["bad-request", "validation-failed", "unsupported-media-type"]);
    }
    if route.class() == Class::Look {
        all.insert("search-timeout");
    }
    // What the door says to everybody, whatever they want.
    all.extend(["too-large", "too-slow", "too-many-requests", "quota-exceeded", "overloaded"]);
    all
}

fn responses(route: &Route, doc: &Doc, answers: &mut Answers) -> Value {
    let mut success = json!({
        "description": route.summary,
        "headers": {"x-request-id": {"$ref": "#/components/headers/RequestId"}},
    });
    if let Some(answer) = &doc.answer {
        success["content"] = json!({doc.media: {"schema": answer}});
    }
    if !doc.links.is_empty() {
        let link = |link: &doc::Link| {
            let told = json!({"operationId": link.operation, "parameters": {link.parameter: link.from}});
            (link.operation.to_owned(), told)
        };
        success["links"] = doc.links.iter().map(link).collect::<Map<_, _>>().into();
    }
    let mut all: BTreeMap<String, Value> = BTreeMap::from([(doc.status.to_string(), success.clone())]);
    all.extend(doc.also.map(|status| (status.to_string(), success)));
    if let Some(why) = doc.or_nothing {
        let headers = json!({"x-request-id": {"$ref": "#/components/headers/RequestId"}});
        all.insert("204".into(), json!({"description": why, "headers": headers}));
    }
    let mut by_status: BTreeMap<u16, Vec<&problems::Sort>> = BTreeMap::new();
    let slugs = problems_of(route, doc);
    for sort in answers.sorts.iter().filter(|sort| slugs.contains(sort.slug.as_str())) {
        by_status.entry(sort.status).or_default().push(sort);
    }
    for (status, sorts) in by_status {
        let (name, response) = shared_response(&sorts, route.error_format);
        answers.shared.entry(name.clone()).or_insert(response);
        all.insert(status.to_string(), json!({"$ref": format!("#/components/responses/{name}")}));
    }
    json!(all)
}

/// A derived schema. What is said of a field that may be `null` stands with the field, not with one of its forms.
fn derived(schema: RefOr<Schema>) -> Value {
    let mut schema = serde_json::to_value(schema).unwrap_or_default();
    let fields = schema.get_mut("properties").and_then(Value::as_object_mut);
    for field in fields.into_iter().flat_map(|fields| fields.values_mut()) {
        let told = field.pointer_mut("/oneOf/0").and_then(|form| form.as_object_mut()?.shift_remove("description"));
        if let Some(told) = told {
            field["description"] = told;
        }
    }
    schema
}

/// Problems, and answers that many routes share.
struct Answers {
    sorts: Vec<problems::Sort>,
    shared: BTreeMap<String, Value>,
}

impl Default for Answers {
    fn default() -> Self {
        Answers { sorts: problems::all(), shared: BTreeMap::new() }
    }
}

fn shared_response(sorts: &[&problems::Sort], format: Option<&ErrorFormat>) -> (String, Value) {
    let names: Vec<String> = sorts.iter().map(|sort| sort.name()).collect();
    let forms: Vec<Value> = names.iter().map(|name| schema::named(name)).collect();
    let told: Vec<String> = sorts.iter().map(|sort| format!("`{}`: {}", sort.slug, sort.about)).collect();
    let (media, schema, prefix) = match format {
        Some(format) => ("application/json", schema::named(format.schema), format.schema),
        None if forms.len() == 1 => ("application/problem+json", forms[0].clone(), ""),
        None => ("application/problem+json", json!({"oneOf": forms}), ""),
    };
    let mut headers = json!({"x-request-id": {"$ref": "#/components/headers/RequestId"}});
    if format.is_some() {
        headers["comeback-problem"] = json!({"$ref": "#/components/headers/Problem"});
    }
    if sorts.iter().any(|sort| matches!(sort.status, 429 | 503)) {
        headers["retry-after"] = json!({"$ref": "#/components/headers/RetryAfter"});
    }
    let response = json!({
        "description": told.join("\n\n"),
        "headers": headers,
        "content": {media: {"schema": schema}},
    });
    (format!("{prefix}{}", names.join("Or")), response)
}
