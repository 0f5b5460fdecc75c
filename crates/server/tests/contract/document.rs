//! The document by itself, and beside the table of routes.

use std::collections::{BTreeMap, BTreeSet};

use axum::body::Body;
use axum::http::StatusCode;
use comeback_server::auth::Need;
use comeback_server::openapi::{schemas, tag};
use serde_json::{Value, json};

use super::judge::{Judge, operation};
use crate::place::{Place, document, request, routes, send};

const CHECKED_IN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");

#[test]
fn openapi_document_is_the_one_that_is_checked_in() {
    let made = &format!("{:#}\n", document());
    if std::env::var("COMEBACK_UPDATE").is_ok() {
        std::fs::write(CHECKED_IN, made).expect("it can be written");
    }
    let kept = std::fs::read_to_string(CHECKED_IN).unwrap_or_default();
    let differs = kept.lines().zip(made.lines()).position(|(kept, made)| kept != made);
    assert!(
        kept == *made,
        "docs/openapi.json is not what the code says (first at line {}): look at the difference after\n  \
         COMEBACK_UPDATE=1 cargo test -p comeback-server openapi",
        differs.unwrap_or_else(|| kept.lines().count().min(made.lines().count())) + 1
    );
}

#[test]
fn every_route_is_described() {
    let document = document();
    let mut ids = BTreeSet::new();
    for route in routes() {
        let name = format!("{} {}", route.method, route.path);
        let doc = route.doc.as_ref().unwrap_or_else(|| {
            panic!(
                "{name} has no description: write `.doc(Doc::new(\"anId\").answers(…))` beside its line in the table"
            )
        });
        assert!(ids.insert(doc.id), "{name}: another operation is called {} too", doc.id);
        assert!(tag(route).is_some(), "{name}: no tag in openapi::TAGS is for this path");
        let said = operation(document, route);
        let parameters = said["parameters"].as_array().expect("parameters");
        for parameter in parameters.iter().filter(|it| it["in"] == "path") {
            assert_ne!(parameter["description"], "", "{name}: say what {} is in path_parameter", parameter["name"]);
        }
        let takes_body = matches!(route.method.as_str(), "POST" | "PUT" | "PATCH");
        assert_eq!(takes_body, !doc.body.is_empty(), "{name}: bodies are read where they can be sent");
        assert!(doc.status == 204 || doc.answer.is_some(), "{name}: say what it answers");
        for link in &doc.links {
            let leads = routes().iter().any(|route| route.doc.as_ref().is_some_and(|doc| doc.id == link.operation));
            assert!(leads, "{name}: leads to {}, which is nowhere", link.operation);
        }
    }
    let told =
        document["paths"].as_object().expect("paths").values().flat_map(|path| path.as_object().expect("one").keys());
    assert_eq!(told.count(), routes().len());
}

#[test]
fn every_name_leads_somewhere_and_is_used() {
    let document = document();
    let mut used = BTreeSet::new();
    visit(document, &mut |object| {
        if let Some(path) = object.get("$ref").and_then(Value::as_str) {
            let found = document.pointer(path.trim_start_matches('#'));
            assert!(found.is_some_and(|it| *it != serde_json::json!({"default": ""})), "{path} leads nowhere");
            used.insert(path.to_owned());
        }
    });
    // What a method is answered with that is in no line of the table.
    used.insert("#/components/schemas/MethodNotAllowed".into());
    for group in ["schemas", "responses", "parameters", "headers"] {
        for name in document["components"][group].as_object().expect("components").keys() {
            assert!(used.contains(&format!("#/components/{group}/{name}")), "nobody uses {group}/{name}");
        }
    }
}

#[test]
fn no_two_schemas_share_a_name() {
    let mut known: BTreeMap<String, Value> = BTreeMap::new();
    for (name, schema) in schemas(&[comeback_compat::routes()]) {
        // A schema that is derived from a marker type has no fields of its own: the one of that name that is written by hand has them.
        let other = known.insert(name.clone(), schema.clone());
        if let Some(other) = other.filter(|other| *other != json!({"type": "object"})) {
            assert_eq!(other, schema, "{name}");
        }
    }
}

/// A policy's schedule is a list of delays, not a row of `/retry-schedules`.
#[test]
fn a_policy_may_have_a_schedule() {
    let schemas = &document()["components"]["schemas"];
    let fields = &schemas["RetryPolicyFields"]["properties"];
    assert!(fields["schedule"].to_string().contains("/RetryDelays\""), "{fields}");
    let delays = schemas["RetryDelays"].to_string();
    assert!(delays.contains("array") && !delays.contains("retry_type"), "{delays}");
}

fn visit(value: &Value, look: &mut impl FnMut(&serde_json::Map<String, Value>)) {
    match value {
        Value::Object(object) => {
            look(object);
            object.values().for_each(|value| visit(value, look));
        }
        Value::Array(items) => items.iter().for_each(|value| visit(value, look)),
        _ => {}
    }
}

#[test]
fn every_problem_that_is_told_exists() {
    let document = document();
    let page = include_str!("../../../../docs/problems.md");
    let slugs: BTreeSet<&str> = page.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    for route in routes() {
        let doc = route.doc.as_ref().expect("a description");
        for slug in comeback_server::openapi::problems_of(route, doc) {
            assert!(slugs.contains(slug), "{} {}: there is no problem `{slug}`", route.method, route.path);
        }
    }
    // Of a whole request or of one item of an answer: every schema of a problem is told somewhere.
    assert!(document["components"]["schemas"]["LeaseLost"].is_object());
}

#[test]
fn every_schema_is_one_and_every_example_fits() {
    let document = document();
    let judge = Judge::new();
    for (name, schema) in document["components"]["schemas"].as_object().expect("schemas") {
        assert!(jsonschema::meta::is_valid(schema), "{name}");
        for example in schema["examples"].as_array().into_iter().flatten() {
            judge.fits(schema, example, name);
        }
    }
    for route in routes() {
        let said = operation(document, route);
        let media = &said["requestBody"]["content"]["application/json"];
        for example in media["examples"].as_object().into_iter().flat_map(|all| all.values()) {
            judge.fits(&media["schema"], &example["value"], route.path);
        }
        for (status, response) in said["responses"].as_object().expect("responses") {
            let response = judge.resolved(response);
            for (kind, content) in response["content"].as_object().into_iter().flatten() {
                if kind.ends_with("json") {
                    judge.fits(&content["schema"], &content["example"], &format!("{} {status}", route.path));
                }
            }
        }
    }
}

/// The list that refuses parameters is the one that is told.
#[tokio::test]
async fn no_parameter_is_read_that_is_not_told() {
    let router = Place::sqlite().await.app.router();
    for route in routes().iter().filter(|route| route.need != Need::Nothing) {
        let doc = route.doc.as_ref().expect("a description");
        let path = route.path.replace("{id}", "00000000-0000-7000-8000-000000000000").replace("{name}", "reap");
        let address = format!("{}?nonsense=1", path.replace("{kind}", "k"));
        let json = request(&route.method, &address).header("content-type", "application/json");
        let answer = send(&router, json.body(Body::from("{}")).expect("a request")).await;
        let body = answer.json();
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{} {}: {body}", route.method, route.path);
        let fault = answer.faults().into_iter().find(|(path, _)| path == "nonsense");
        let (_, message) = fault.unwrap_or_else(|| panic!("{body}"));
        let (_, known) = message.split_once("parameters are: ").expect("a list");
        let told: Vec<&str> = doc.query.iter().map(|param| param.name).collect();
        let told = if told.is_empty() { "none".to_owned() } else { told.join(", ") };
        assert_eq!(known, told, "{} {}", route.method, route.path);
    }
}

#[tokio::test]
async fn the_page_asks_nobody_else_for_anything() {
    let router = Place::sqlite().await.app.router();
    let page = send(&router, request(&axum::http::Method::GET, "/docs").body(Body::empty()).expect("a request")).await;
    let text = String::from_utf8(page.bytes.to_vec()).expect("text");
    assert!(text.len() < 40_000, "{} bytes", text.len());
    let policy = page.headers["content-security-policy"].to_str().expect("a policy");
    assert!(policy.starts_with("default-src 'none'; script-src 'sha256-") && !policy.contains("unsafe"), "{policy}");
    for word in ["http://", "https://", "src=", "@import", "url("] {
        let found = text.matches(word).count() - text.matches("http://www.w3.org/").count();
        assert_eq!(found, 0, "{word}");
    }
}
