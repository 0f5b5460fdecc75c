//! The problems, as `docs/problems.md` explains them: a test holds that page equal to the code.

use serde_json::{Value, json};

use super::schema::{count, list, nullable, object, partial, text, word};

pub struct Sort {
    /// The word in `type`.
    pub slug: String,
    pub status: u16,
    pub about: String,
}

impl Sort {
    /// `validation-failed` is `ValidationFailed` among the schemas.
    pub fn name(&self) -> String {
        let capital = |part: &str| part[..1].to_ascii_uppercase() + &part[1..];
        self.slug.split('-').map(capital).collect()
    }

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

/// What is wrong, and where: by its path, and in a document by its line too.
fn fault() -> Value {
    let place = [("line", nullable(count())), ("column", nullable(count())), ("snippet", nullable(text()))];
    partial(&["path", "message"], [("path", text()), ("message", text())].into_iter().chain(place))
}

/// One that may be less than nothing.
fn integer() -> Value {
    json!({"type": "integer"})
}

/// What a problem tells beside what all of them do, and whether it always does.
fn own_members(slug: &str) -> Vec<(&'static str, Value, bool)> {
    match slug {
        "validation-failed" => vec![
            ("errors", list(fault()), true),
            ("position", super::schema::about(count(), "Where in the filter, in bytes from 0."), false),
        ],
        "insufficient-credits" => vec![("required_credits", integer(), true), ("available_credits", integer(), true)],
        "account-in-use" => vec![("reserved_credits", integer(), true)],
        "quota-exceeded" => vec![("quota", text(), true), ("limit", count(), true)],
        "wrong-state" => vec![("state", text(), true)],
        "unavailable" => vec![("outcome", word(&["unknown"]), false)],
        "not-found" => vec![("loops", super::schema::about(text(), "The loops there are."), false)],
        _ => Vec::new(),
    }
}

pub fn all() -> Vec<Sort> {
    let page = include_str!("../../../../docs/problems.md");
    page.split("\n## ").skip(1).filter_map(read).collect()
}

/// A section: its word, then a paragraph that begins with the status. What follows is for people.
fn read(section: &str) -> Option<Sort> {
    let (slug, rest) = section.split_once('\n')?;
    let rest = rest.trim().split("\n\n").next()?.replace('\n', " ");
    let digits = rest.find(|c: char| !c.is_ascii_digit())?;
    let about = rest[digits..].trim_start_matches([',', '.']).trim();
    Some(Sort { slug: slug.trim().to_owned(), status: rest[..digits].parse().ok()?, about: about.to_owned() })
}
