//! The OpenAPI 3.1 document, generated from the table of routes. The documentation of a route stands beside the route.

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
use crate::limiter::RequestClass;
use crate::route_set::{ErrorFormat, RouteSet};
use crate::routes::{Route, table};
pub use doc::{Doc, Param};
pub use shapes::schema_types;

/// Tags by the first segment behind `/api/v1`: segment, tag, description.
const TAGS: &[(&str, &str, &str)] = &[
    ("tasks", "Tasks", "Submit, list and inspect tasks, and act on them."),
    ("operations", "Tasks", ""),
    ("leases", "Leases", "Workers lease tasks, extend leases and report results."),
    ("events", "Events", "The event log, as pages and as a stream."),
    ("workflows", "Workflows", "The workflow catalog: immutable versions."),
    ("executions", "Executions", "Start and inspect executions, and act on them as a whole."),
    ("schedules", "Schedules", "Start workflows or tasks by cron, interval or event."),
    ("subscriptions", "Subscriptions", "Webhook subscriptions: events delivered by signed calls."),
    ("alerts", "Alerts", "Alerts on too many events within a time window."),
    ("secrets", "Secrets", "Named secrets for calls, commands and subscriptions; values are never shown."),
    ("policies", "Policies", "Parse, simulate and back-test retry policies, and bind them to kinds."),
    ("rules", "Rules", "Admission rules: limits on running tasks."),
    (
        "dependencies",
        "Dependencies",
        "External systems that tasks call, and the guards that hold tasks while one fails.",
    ),
    ("accounts", "Accounts", "Credits that tasks cost, and retry budgets."),
    ("stats", "Statistics", "Task counts, retry statistics and upcoming work."),
    ("upcoming", "Statistics", ""),
    ("errors", "Errors", "Groups of similar errors, and their triage."),
    ("clock", "Clock", "Server time; on a server with a virtual clock, advancing it."),
    ("admin", "Administration", "Loops, workers, instances and stuck tasks."),
    ("keys", "Keys", "API keys and roles."),
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

/// Every schema with its name. Names must be unique: the later one would replace the earlier.
fn components(added: &[RouteSet], parts: doc::Parts, answers: &Responses) -> Vec<(String, Value)> {
    let derived: BTreeMap<String, Value> = parts.into_iter().map(|(name, schema)| (name, derived(schema))).collect();
    let of_added = added.iter().flat_map(|set| (set.schemas)());
    let made = shapes::made_of(&derived).into_iter().chain(shapes::all()).chain(of_added);
    let made: Vec<(String, Value)> = made.map(|(name, schema)| (name.to_owned(), schema)).collect();
    let sorts = answers.sorts.iter().map(|sort| (sort.name(), sort.schema()));
    derived.into_iter().chain(made).chain(sorts).collect()
}

/// All paths, shared responses and schemas.
fn described(added: &[RouteSet]) -> (Map<String, Value>, Responses, Vec<(String, Value)>) {
    let mut paths: Map<String, Value> = Map::new();
    let mut parts = doc::Parts::new();
    let mut answers = Responses::default();
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
                "description": "An API key. On a server without keys, every local caller is an admin.",
            }},
            "parameters": {"Namespace": parameter("header", &NAMESPACE)},
            "headers": {
                "RequestId": {"description": "The id of the request, as in `instance` of a problem.", "schema": schema::text()},
                "Problem": {"description": "The problem slug, which other routes return in `type`.", "schema": schema::text()},
                "RetryAfter": {"description": "Seconds after which to retry.", "schema": schema::count()},
            },
            "responses": answers.shared,
            "schemas": schemas,
        },
    });
    example::fill(&mut document);
    document
}

const INTRODUCTION: &str = "A durable job server whose speciality is retries. JSON in and out. Instants are RFC \
     3339 in UTC. Durations are seconds or text such as `90s`, `1h30m`, `PT5M` in requests, and numbers named `…_ms` \
     in responses. Unknown fields and parameters are refused by name. Every error response is a problem (RFC 9457): \
     `error` is its code, `detail` describes it, `errors` lists every fault by its path. Limits are the defaults of \
     the server.";

const NAMESPACE: Param = Param::new(
    "Comeback-Namespace",
    "Namespace of the request. A key for one namespace implies it; with a key for all namespaces, name it here. \
     Default: `default`.",
    || schema::named("Name"),
);

fn tags(added: &[RouteSet]) -> Vec<Value> {
    let own = TAGS.iter().filter(|(_, _, about)| !about.is_empty()).map(|(_, name, about)| (*name, *about));
    let all = own.chain(added.iter().map(|set| (set.tag, set.about))).chain([SERVER]);
    all.map(|(name, about)| json!({"name": name, "description": about})).collect()
}

fn operation(route: &Route, doc: &Doc, answers: &mut Responses) -> Value {
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

/// Slugs of the problems of a route: those that follow from its permission and class, and those it names itself.
pub fn problems_of(route: &Route, doc: &Doc) -> BTreeSet<&'static str> {
    let mut all: BTreeSet<&'static str> = doc.problems.iter().copied().collect();
    if route.need != Need::Nothing {
        // The namespace, or a parameter that nobody knows.
        all.extend(["unauthorized", "forbidden", "bad-request", "validation-failed", "internal", "unavailable"]);
    }
    if !doc.body.is_empty() {
        all.extend(["bad-request", "validation-failed", "unsupported-media-type"]);
    }
    if route.class() == RequestClass::Look {
        all.insert("search-timeout");
    }
    // Problems of admission control, on every route.
    all.extend(["too-large", "too-slow", "too-many-requests", "quota-exceeded", "overloaded"]);
    all
}

fn responses(route: &Route, doc: &Doc, answers: &mut Responses) -> Value {
    let mut success = json!({
        "description": route.summary,
        "headers": {"x-request-id": {"$ref": "#/components/headers/RequestId"}},
    });
    if let Some(answer) = &doc.answer {
        success["content"] = json!({doc.media: {"schema": answer}});
    }
    if !doc.links.is_empty() {
        let link = |link: &doc::DocLink| {
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
    let mut by_status: BTreeMap<u16, Vec<&problems::ProblemType>> = BTreeMap::new();
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

/// A derived schema. Moves the description of a nullable field from its first form to the field.
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

/// Problem types, and responses shared by many routes.
struct Responses {
    sorts: Vec<problems::ProblemType>,
    shared: BTreeMap<String, Value>,
}

impl Default for Responses {
    fn default() -> Self {
        Responses { sorts: problems::all(), shared: BTreeMap::new() }
    }
}

fn shared_response(sorts: &[&problems::ProblemType], format: Option<&ErrorFormat>) -> (String, Value) {
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
