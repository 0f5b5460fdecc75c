//! Holds answers against the document.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use comeback_server::Route;
use jsonschema::Validator;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::place::{Answer, document, routes};

pub fn operation<'a>(document: &'a Value, route: &Route) -> &'a Value {
    &document["paths"][route.path][route.method.as_str().to_ascii_lowercase()]
}

/// An operation, a status, and the word of the problem where it was one.
pub type Sight = (&'static str, u16, String);

#[derive(Default)]
pub struct Judge {
    pub seen: Mutex<BTreeSet<Sight>>,
    /// Schemas by their text: to prepare one takes longer than to use it.
    prepared: Mutex<HashMap<String, Arc<Validator>>>,
}

impl Judge {
    pub fn new() -> Judge {
        Judge::default()
    }

    pub fn resolved<'a>(&self, value: &'a Value) -> &'a Value {
        match value["$ref"].as_str() {
            Some(path) => document().pointer(path.trim_start_matches('#')).expect("a reference leads somewhere"),
            None => value,
        }
    }

    /// The schema knows its neighbours by their names.
    pub fn fits(&self, schema: &Value, value: &Value, place: &str) {
        let prepare = || {
            let whole = json!({"allOf": [schema], "components": document()["components"]});
            Arc::new(jsonschema::options().should_validate_formats(true).build(&whole).expect("a schema"))
        };
        let validator = self.prepared.lock().entry(schema.to_string()).or_insert_with(prepare).clone();
        let faults: Vec<String> =
            validator.iter_errors(value).map(|error| format!("{} at {}", error, error.instance_path())).collect();
        assert!(faults.is_empty(), "{place}: {}\n{value:#}", faults.join("\n"));
    }

    /// Whether the answer is one that the document tells of.
    pub fn check(&self, route: &Route, answer: &Answer) {
        let doc = route.doc.as_ref().expect("a description");
        let place = format!("{} {} {}", route.method, route.path, answer.status);
        let said = &operation(document(), route)["responses"][answer.status.as_u16().to_string()];
        assert!(!said.is_null(), "{place} is not told: {:?}", answer.bytes);
        assert!(answer.headers.contains_key("x-request-id"), "{place}");
        let said = self.resolved(said);
        let mut problem = String::new();
        match said["content"].as_object() {
            None => assert!(answer.bytes.is_empty(), "{place}: {:?}", answer.bytes),
            Some(bodies) => {
                let kind = answer.headers["content-type"].to_str().expect("a type").split(';').next().expect("one");
                let content = bodies.get(kind).unwrap_or_else(|| panic!("{place}: {kind} is not told"));
                if kind.ends_with("/json") || kind.ends_with("+json") {
                    let body = answer.json();
                    problem = answer.problem().filter(|_| !answer.status.is_success()).unwrap_or_default();
                    self.fits(&content["schema"], &body, &place);
                }
            }
        }
        self.seen.lock().insert((doc.id, answer.status.as_u16(), problem));
    }

    /// What is told and was not seen.
    pub fn unseen(&self) -> BTreeSet<(String, String)> {
        let seen = self.seen.lock();
        let mut unseen = BTreeSet::new();
        for route in routes() {
            let doc = route.doc.as_ref().expect("a description");
            if !seen.iter().any(|(id, status, _)| *id == doc.id && *status == doc.status) {
                unseen.insert((doc.id.to_owned(), doc.status.to_string()));
            }
            for slug in comeback_server::openapi::problems_of(route, doc) {
                if !seen.iter().any(|(id, _, problem)| *id == doc.id && problem == slug) {
                    unseen.insert((doc.id.to_owned(), slug.to_owned()));
                }
            }
        }
        unseen
    }
}
