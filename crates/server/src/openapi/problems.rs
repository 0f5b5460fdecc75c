//! Problem types, parsed from `docs/problems.md`; a test compares that page with the code.

use serde_json::{Value, json};

use super::schema::{count, list, nullable, object, partial, text, word};

/// A problem type: slug, status and description.
pub struct ProblemType {
    /// The slug in `type`.
    pub slug: String,
    pub status: u16,
    pub about: String,
}

impl ProblemType {
    /// Name of the schema: `validation-failed` becomes `ValidationFailed`.
    pub fn name(&self) -> String {
        let capital = |part: &str| part[..1].to_ascii_uppercase() + &part[1..];
        self.slug.split('-').map(capital).collect()
    }

    /// Schema of the problem.
    pub fn schema(&self) -> Value {
        let code = self.slug.to_ascii_uppercase().replace('-', "_");
        let mut schema = object([
            ("type", json!({"const": self.slug})),
            ("title", text()),
            ("status", json!({"const": self.status})),
            ("detail", text()),
            ("instance", json!({"type": "string", "description": "The id of the request."})),
            ("error", json!({"const": crate::problem::Problem::error_code(&code)})),
        ]);
        schema["description"] = self.about.as_str().into();
        for (name, own, always) in own_members(&self.slug) {
            schema["properties"][name] = own;
            if let (true, Some(required)) = (always, schema["required"].as_array_mut()) {
                required.push(name.into());
            }
        }
        schema
    }
}

/// Schema of a fault: its path and message, and its position in a document.
fn fault() -> Value {
    let place = [("line", nullable(count())), ("column", nullable(count())), ("snippet", nullable(text()))];
    partial(&["path", "message"], [("path", text()), ("message", text())].into_iter().chain(place))
}

/// Schema of an integer that may be negative.
fn integer() -> Value {
    json!({"type": "integer"})
}

/// Reasons of `/readyz`.
const NOT_READY: &[&str] =
    &["shutting_down", "stalled", "database_not_writable", "database_unreachable", "database_slow"];

/// Extra members of a problem: name, schema, and whether it is always present.
fn own_members(slug: &str) -> Vec<(&'static str, Value, bool)> {
    match slug {
        "validation-failed" => vec![
            ("errors", list(fault()), true),
            ("position", super::schema::about(count(), "Position in the filter, in bytes from 0."), false),
        ],
        "insufficient-credits" => vec![("required_credits", integer(), true), ("available_credits", integer(), true)],
        "account-in-use" => vec![("reserved_credits", integer(), true)],
        "key-exists" => vec![("id", super::schema::about(text(), "The id of that key."), true)],
        "quota-exceeded" => vec![("quota", text(), true), ("limit", count(), true)],
        "wrong-state" => vec![("state", text(), true)],
        "unavailable" => vec![
            ("outcome", word(&["unknown"]), false),
            ("reason", super::schema::about(word(NOT_READY), "Reason why the server is not ready."), false),
            ("stalled", super::schema::about(list(text()), "Stalled background loops."), false),
        ],
        "not-found" => vec![("loops", super::schema::about(text(), "Names of the loops."), false)],
        _ => Vec::new(),
    }
}

/// All problem types.
pub fn all() -> Vec<ProblemType> {
    let page = include_str!("../../../../docs/problems.md");
    page.split("\n## ").skip(1).filter_map(read).collect()
}

/// Parses a section: the slug, then a paragraph that begins with the status.
fn read(section: &str) -> Option<ProblemType> {
    let (slug, rest) = section.split_once('\n')?;
    let rest = rest.trim().split("\n\n").next()?.replace('\n', " ");
    let digits = rest.find(|c: char| !c.is_ascii_digit())?;
    let about = rest[digits..].trim_start_matches([',', '.']).trim();
    Some(ProblemType { slug: slug.trim().to_owned(), status: rest[..digits].parse().ok()?, about: about.to_owned() })
}
