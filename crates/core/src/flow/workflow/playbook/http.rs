//! `type: http`: the server makes the call itself.

use serde_json::{Map, Value, json};

use super::super::Routes;
use super::super::fields::{Field, Fields};
use super::super::node::Node;
use super::super::problem::Findings;
use super::super::task::{text_of, texts_or_secrets};
use super::super::template::{Reference, Scope};
use crate::expression::{Piece, is_template, pieces};

pub fn executor(
    mut fields: Fields<'_>,
    route: &str,
    scope: &Scope,
    references: &mut Vec<Reference>,
    routes: &mut Routes,
    findings: &mut Findings,
) -> Option<(String, Value)> {
    let mut read = Map::from_iter([("type".to_owned(), json!("http"))]);
    if let Some(method) = fields.text("method", findings) {
        routes.insert(format!("{route}.executor.method"), format!("{}.method", fields.path));
        read.insert("method".into(), method.into());
    }
    let mut check = |field: &Field<'_>, name: &str, findings: &mut Findings| {
        scope.check_node(field.node, &field.path, references, findings);
        routes.insert(format!("{route}.executor.{name}"), field.path.clone());
    };
    let url = fields.one_of(&["endpoint", "url"], findings);
    if url.is_none() {
        findings.push(fields.at, &fields.path, "needs an `endpoint`");
    }
    if let Some(url) = &url {
        check(url, "url", findings);
        if url.node.text().is_none() {
            findings.push(url.at, &url.path, "must be a text");
        }
    }
    if let Some(headers) = fields.some("headers") {
        check(&headers, "headers", findings);
        read.extend(
            texts_or_secrets(headers.node, &headers.path, findings).map(|it| ("headers".to_owned(), Value::Object(it))),
        );
    }
    let mut query = fields.some("params");
    let mut body = fields.one_of(&["payload", "body"], findings);
    if let Some(data) = fields.some("data")
        && let Some(mut inner) = Fields::of(data.node, &data.path, findings)
    {
        for (place, name, twin) in [(&mut query, "query", "params"), (&mut body, "body", "payload")] {
            match (place.is_some(), inner.some(name)) {
                (true, Some(again)) => findings.push(again.key_at, again.path, format!("says the same as `{twin}`")),
                (false, Some(field)) => *place = Some(field),
                (_, None) => {}
            }
        }
        inner.finish(&["query", "body"], findings);
    }
    if let Some(body) = body {
        check(&body, "body", findings);
        read.insert("body".into(), body.node.to_value());
    }
    let mut address = url.and_then(|url| url.node.text().map(str::to_owned));
    if let Some(query) = query {
        check(&query, "query", findings);
        let asked = query_of(&query, findings);
        address = address.map(|address| with_query(address, &asked));
    }
    fields.finish(&["endpoint", "url", "method", "headers", "params", "payload", "body", "data", "args"], findings);
    read.insert("url".into(), address?.into());
    Some(("executor".to_owned(), Value::Object(read)))
}

fn with_query(address: String, asked: &[String]) -> String {
    if asked.is_empty() {
        return address;
    }
    let sign = if address.contains('?') { '&' } else { '?' };
    format!("{address}{sign}{}", asked.join("&"))
}

/// `name=value`, encoded; the value of a template is encoded when it is known.
fn query_of(field: &Field<'_>, findings: &mut Findings) -> Vec<String> {
    let Some(entries) = field.node.map() else {
        findings.push(field.at, &field.path, "must be a map");
        return Vec::new();
    };
    let mut asked = Vec::new();
    for entry in entries {
        let values = entry.value.list().unwrap_or(std::slice::from_ref(&entry.value));
        for value in values {
            match encoded(value) {
                Some(value) => asked.push(format!("{}={value}", percent(&entry.key))),
                None => {
                    let path = format!("{}.{}", field.path, entry.key);
                    findings.push(entry.at(), path, "must be a text, perhaps with `{{ … }}` in it, or a list of those");
                }
            }
        }
    }
    asked
}

fn encoded(node: &Node) -> Option<String> {
    let text = text_of(node)?;
    if !is_template(&text) {
        return Some(percent(&text));
    }
    let pieces = pieces(&text)?;
    Some(
        pieces
            .into_iter()
            .map(|piece| match piece {
                Piece::Text(text) => percent(text),
                Piece::Hole(code) => format!("{{{{ ({code}) | urlencode }}}}"),
            })
            .collect(),
    )
}

fn percent(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => char::from(byte).to_string(),
            other => format!("%{other:02X}"),
        })
        .collect()
}
