//! Masks secrets in what is shown.
//!
//! Values of headers and environment variables whose names speak of secrets become [`MASK`], wherever a `headers` or `env` member
//! stands, and so do passwords and parameters of that sort in URLs. What is stored stays as it is: a call uses the true value.
//! References to named secrets (`{"secret": "stripe"}`) are shown, because a name is no secret.

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::{Captures, Regex};
use serde_json::{Map, Value};

/// Shown in place of a secret. A request that sends it back is refused by name.
pub const MASK: &str = "***";

/// A name that contains one of these is the name of a secret.
const SECRET: [&str; 12] = [
    "auth",
    "token",
    "secret",
    "key",
    "cookie",
    "password",
    "passwd",
    "signature",
    "credential",
    "session",
    "bearer",
    "passphrase",
];
/// Names that contain one of those and are no secrets.
const PUBLIC: [&str; 10] = [
    "idempotency-key",
    "x-idempotency-key",
    "idempotency_key",
    "author",
    "authority",
    ":authority",
    "x-task-key",
    "comeback_task_key",
    "surrogate-key",
    "sec-websocket-key",
];
/// Names that are secrets only as a whole.
const EXACTLY: [&str; 4] = ["sig", "pwd", "pass", "pin"];

/// Whether the value of a header, variable or parameter of this name is a secret.
pub fn is_secret_name(name: &str) -> bool {
    let name = name.trim().to_ascii_lowercase();
    !PUBLIC.contains(&name.as_str())
        && (SECRET.iter().any(|part| name.contains(part)) || EXACTLY.contains(&name.as_str()))
}

/// Whether a member of this name holds headers or variables.
pub fn holds_headers(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name.ends_with("headers") || name == "header" || name == "env" || name == "environment"
}

/// A reference to a named secret: the name is shown, the value is not there.
pub fn is_reference(value: &Value) -> bool {
    value.as_object().is_some_and(|fields| {
        fields.get("secret").is_some_and(Value::is_string)
            && fields.keys().all(|key| matches!(key.as_str(), "secret" | "prefix"))
    })
}

/// The values that were masked, for callers that must find them elsewhere.
type Found<'a> = Option<&'a mut Vec<String>>;

fn found(into: &mut Found<'_>, value: &str) {
    if let Some(into) = into {
        into.push(value.to_owned());
    }
}

/// Masks every secret in a value.
pub fn mask(value: &mut Value) {
    walk(value, &mut None);
}

/// The secrets in a value, as they are written there.
pub fn secrets_in(value: &Value) -> Vec<String> {
    let mut all = Vec::new();
    walk(&mut value.clone(), &mut Some(&mut all));
    all
}

fn walk(value: &mut Value, into: &mut Found<'_>) {
    match value {
        Value::String(text) => {
            if let Some(masked) = mask_text(text, into) {
                *text = masked;
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| walk(item, into)),
        Value::Object(fields) => {
            mask_difference(fields, into);
            for (name, value) in fields.iter_mut() {
                if holds_headers(name) {
                    mask_headers(value, into);
                } else {
                    walk(value, into);
                }
            }
        }
        _ => {}
    }
}

/// Headers as an object, as a list of objects, pairs or lines, or as one text.
fn mask_headers(value: &mut Value, into: &mut Found<'_>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields.iter_mut() {
                match is_secret_name(name) {
                    true => hide(value, into),
                    false => walk(value, into),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| mask_entry(item, into)),
        Value::String(text) => {
            if let Some(masked) = mask_pairs(text, into) {
                *text = masked;
            }
            walk(value, into);
        }
        _ => {}
    }
}

/// One entry of a list of headers.
fn mask_entry(item: &mut Value, into: &mut Found<'_>) {
    match item {
        Value::Object(fields) => {
            let named = ["name", "key", "header"].iter().find_map(|it| fields.get(*it)).and_then(Value::as_str);
            let is_secret = named.map(is_secret_name);
            match (is_secret, fields.get_mut("value")) {
                (Some(true), Some(value)) => hide(value, into),
                (Some(_), Some(value)) => walk(value, into),
                _ => mask_headers(item, into),
            }
        }
        Value::Array(pair) => match pair.as_mut_slice() {
            [Value::String(name), value] if is_secret_name(name) => hide(value, into),
            _ => pair.iter_mut().for_each(|it| walk(it, into)),
        },
        Value::String(_) => mask_headers(item, into),
        _ => {}
    }
}

fn hide(value: &mut Value, into: &mut Found<'_>) {
    match &*value {
        Value::Null => return,
        Value::String(text) if text == MASK => return,
        Value::String(text) => found(into, text),
        it if is_reference(it) => return,
        Value::Array(items) => items.iter().filter_map(Value::as_str).for_each(|text| found(into, text)),
        other => found(into, &other.to_string()),
    }
    *value = MASK.into();
}

/// A difference is told as a path with the values before and after: the path says what they are.
fn mask_difference(fields: &mut Map<String, Value>, into: &mut Found<'_>) {
    if !fields.contains_key("before") && !fields.contains_key("after") {
        return;
    }
    let Some(path) = fields.get("path").and_then(Value::as_str) else { return };
    let parts: Vec<&str> = path.split(['.', '/', '[', ']', '"', '\'']).filter(|part| !part.is_empty()).collect();
    let Some(at) = parts.iter().position(|part| holds_headers(part)) else { return };
    let rest = parts[at + 1..].join(".");
    let numbered = parts.get(at + 1).is_some_and(|part| part.parse::<u32>().is_ok());
    for name in ["before", "after"] {
        match fields.get_mut(name) {
            Some(value) if rest.is_empty() => mask_headers(value, into),
            Some(value) if is_secret_name(&rest) => hide(value, into),
            Some(value) if numbered && value.is_string() => hide(value, into),
            Some(value) if numbered => mask_entry(value, into),
            _ => {}
        }
    }
}

/// A text: the URLs in it, and where it is JSON itself, that.
fn mask_text(text: &str, into: &mut Found<'_>) -> Option<String> {
    let begins = text.trim_start();
    if begins.starts_with(['{', '[']) && HEADERS_IN_TEXT.iter().any(|word| text.contains(word)) {
        return match serde_json::from_str::<Value>(text) {
            Ok(mut inner) => {
                let before = inner.clone();
                walk(&mut inner, into);
                (inner != before).then(|| inner.to_string())
            }
            // It may be the beginning of a longer one.
            Err(_) => mask_pairs(text, into).or_else(|| mask_urls(text, into)),
        };
    }
    mask_urls(text, into)
}

const HEADERS_IN_TEXT: [&str; 5] = ["eaders\"", "EADERS\"", "\"env\"", "\"environment\"", "://"];

/// Whether a JSON text may hold anything to mask. Cheap, so that most answers are not looked at twice.
pub fn may_hold_secrets(json: &str) -> bool {
    ["eader", "EADER", "\"env", ".env", "nvironment", "://"].iter().any(|word| json.contains(word))
}

/// `name: value` and `"name": "value"` and `name=value` in a text that is known to hold headers.
fn mask_pairs(text: &str, into: &mut Found<'_>) -> Option<String> {
    static PAIRS: LazyLock<Option<Regex>> = LazyLock::new(|| {
        let name =
            r"[A-Za-z0-9_-]*(?i:auth|token|secret|key|cookie|passw|signature|credential|session|bearer)[A-Za-z0-9_-]*";
        let value = r#""(?:[^"\\\n]|\\.)*"?|'[^'\n]*'?|[^\s"'][^\n,}\]]*"#;
        Regex::new(&format!(r#"({name})(\\?["']?\s*[:=]\s*\\?)({value})"#)).ok()
    });
    let pairs = PAIRS.as_ref()?;
    let masked = pairs.replace_all(text, |it: &Captures<'_>| {
        let (name, between, value) = (&it[1], &it[2], &it[3]);
        if !is_secret_name(name) || value.starts_with('{') {
            return it[0].to_owned();
        }
        let quote = value.chars().next().filter(|it| matches!(it, '"' | '\''));
        let bare = value.trim_matches(['"', '\'', '\\']).trim_end();
        if bare == MASK {
            return it[0].to_owned();
        }
        found(into, bare);
        let quote = quote.map(String::from).unwrap_or_default();
        format!("{name}{between}{quote}{MASK}{quote}")
    });
    match masked {
        Cow::Owned(masked) if masked != text => Some(masked),
        _ => None,
    }
}

/// Masks `name: value` pairs in lines of which nothing but their text is known, such as comments.
pub fn mask_line(line: &str) -> String {
    let masked = mask_pairs(line, &mut None).unwrap_or_else(|| line.to_owned());
    mask_urls(&masked, &mut None).unwrap_or(masked)
}

/// Passwords (`user:password@`) and parameters with the names of secrets, in every URL of a text.
fn mask_urls(text: &str, into: &mut Found<'_>) -> Option<String> {
    let mut masked = String::new();
    let mut rest = text;
    let mut changed = false;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        masked.push_str(before);
        let end = after.find(|c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '<' | '>' | '`' | '\\'));
        let (url, beyond) = after.split_at(end.unwrap_or(after.len()));
        let shown = masked_url(url, into);
        changed |= shown != url;
        masked.push_str(&shown);
        rest = beyond;
    }
    if !changed {
        return None;
    }
    masked.push_str(rest);
    Some(masked)
}

/// A URL from behind its scheme.
fn masked_url(url: &str, into: &mut Found<'_>) -> String {
    let authority = url.find(['/', '?', '#']).unwrap_or(url.len());
    let (authority, rest) = url.split_at(authority);
    let mut masked = match authority.rsplit_once('@') {
        Some((user, host)) => {
            if user != MASK {
                found(into, user);
            }
            format!("{MASK}@{host}")
        }
        None => authority.to_owned(),
    };
    let Some(query) = rest.find(['?', '#']) else {
        masked.push_str(rest);
        return masked;
    };
    let (path, query) = rest.split_at(query);
    masked.push_str(path);
    let mut from = 0;
    for (at, sign) in
        query.char_indices().filter(|(_, c)| matches!(c, '?' | '#' | '&' | ';')).chain([(query.len(), ' ')])
    {
        masked.push_str(&masked_parameter(&query[from..at], into));
        if at < query.len() {
            masked.push(sign);
        }
        from = (at + sign.len_utf8()).min(query.len());
    }
    masked
}

fn masked_parameter(pair: &str, into: &mut Found<'_>) -> String {
    match pair.split_once('=') {
        Some((name, value)) if !value.is_empty() && value != MASK && is_secret_name(&decoded(name)) => {
            found(into, value);
            format!("{name}={MASK}")
        }
        _ => pair.to_owned(),
    }
}

/// A name with its percent signs read.
fn decoded(name: &str) -> String {
    if !name.contains('%') {
        return name.to_owned();
    }
    let bytes = name.as_bytes();
    let mut read = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let digits = name.get(at + 1..at + 3).filter(|_| bytes[at] == b'%');
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                read.push(byte);
                at += 3;
            }
            None => {
                read.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&read).into_owned()
}

/// The path of a mask that somebody sends back as if it were the secret.
pub fn mask_sent_back(value: &Value) -> Option<String> {
    sent_back(value, "", false)
}

fn sent_back(value: &Value, path: &str, in_headers: bool) -> Option<String> {
    let join = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    match value {
        Value::String(text) => url_has_mask(text).then(|| path.to_owned()),
        Value::Array(items) => items.iter().enumerate().find_map(|(n, item)| {
            let is_masked = in_headers && item.get("value").is_some_and(|value| value == MASK);
            if is_masked { Some(format!("{path}[{n}].value")) } else { sent_back(item, &format!("{path}[{n}]"), false) }
        }),
        Value::Object(fields) => fields.iter().find_map(|(name, value)| {
            let is_masked = in_headers && is_secret_name(name) && value == MASK;
            if is_masked { Some(join(name)) } else { sent_back(value, &join(name), holds_headers(name)) }
        }),
        _ => None,
    }
}

/// Whether a URL in this text has a mask where a password or the value of a secret parameter belongs.
pub fn url_has_mask(text: &str) -> bool {
    let Some((_, url)) = text.split_once("://") else { return false };
    let is_masked =
        |pair: &str| pair.split_once('=').is_some_and(|(name, value)| value == MASK && is_secret_name(&decoded(name)));
    url.starts_with("***@") || url.split(['?', '#', '&', ';']).skip(1).any(is_masked)
}

/// Replaces every occurrence of these values in all texts of a value.
pub fn scrub(value: &mut Value, values: &[String]) {
    match value {
        Value::String(text) => {
            if let Some(scrubbed) = scrub_text(text, values) {
                *text = scrubbed;
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| scrub(item, values)),
        Value::Object(fields) => {
            if fields.keys().any(|key| scrub_text(key, values).is_some()) {
                let old = std::mem::take(fields);
                *fields = old.into_iter().map(|(key, it)| (scrub_text(&key, values).unwrap_or(key), it)).collect();
            }
            fields.values_mut().for_each(|it| scrub(it, values));
        }
        _ => {}
    }
}

/// The text without these values; nothing where none of them is in it.
pub fn scrub_text(text: &str, values: &[String]) -> Option<String> {
    let mut scrubbed: Option<String> = None;
    for value in values.iter().filter(|value| !value.is_empty()) {
        let at = scrubbed.as_deref().unwrap_or(text);
        if at.contains(value.as_str()) {
            scrubbed = Some(at.replace(value.as_str(), MASK));
        }
    }
    scrubbed
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn masked(mut value: Value) -> Value {
        mask(&mut value);
        value
    }

    #[test]
    fn headers_are_masked_wherever_they_stand_and_however_they_are_written() {
        let secret = "CANARY-1";
        for shown in [
            json!({"headers": {"Authorization": secret}}),
            json!({"executor": {"start": [{"headers": {"x-auth-token": secret}}]}}),
            json!({"hooks": {"success": [{"headers": {"X-API-KEY": secret, "x-colour": "blue"}}]}}),
            json!({"headers": [{"name": "Cookie", "value": secret}]}),
            json!({"headers": [["set-cookie", secret], ["a", "b"]]}),
            json!({"headers": [format!("authorization: Bearer {secret}")]}),
            json!({"headers": format!("accept: */*\nauthorization: Bearer {secret}\n")}),
            json!({"requestHeaders": {"x-session-id": secret}}),
            json!({"env": {"STRIPE_SECRET": secret}}),
            json!({"headers": {"x-password": [secret, "b"]}}),
            json!({"url": format!("https://ana:{secret}@example.com/x?a=b")}),
            json!({"url": format!("https://example.com/x?a=b&api_key={secret}&c=d#access_token={secret}")}),
            json!({"url": format!("https://example.com/x?%61pi%5Fkey={secret}")}),
            json!({"message": format!("cannot call https://x.test/?token={secret} (timeout)")}),
            json!({"body": format!("{{\"headers\":{{\"Authorization\":\"Bearer {secret}\"}}}}")}),
            json!({"body": format!("{{\"headers\":{{\"Authorization\":\"Bearer {secret}\",\"cut")}),
            json!({"path": "steps.a.executor.headers.authorization", "before": null, "after": secret}),
            json!({"path": "steps.a.executor.headers", "before": {"x-token": secret}, "after": null}),
            json!({"path": "headers[0].value", "before": "x", "after": secret}),
        ] {
            let after = masked(shown.clone());
            assert!(may_hold_secrets(&shown.to_string()), "{shown}");
            assert!(!after.to_string().contains("CANARY"), "{shown} became {after}");
            assert!(after.to_string().contains(MASK), "{shown} became {after}");
            assert!(secrets_in(&shown).iter().any(|it| it.contains(secret)), "{shown}");
            assert_eq!(masked(after.clone()), after, "twice is once");
        }
    }

    #[test]
    fn what_is_no_secret_stays() {
        for shown in [
            json!({"headers": {"idempotency-key": "k", "content-type": "application/json", "accept": "x"}}),
            json!({"headers": {"authorization": {"secret": "stripe", "prefix": "Bearer "}}}),
            json!({"key": "extract", "dedupe_key": "a", "token": "t", "url": "https://example.com/?a=b#c"}),
            json!({"env": {"COLOUR": "blue", "API_KEY": {"secret": "stripe"}}}),
            json!({"note": "tokens: are words", "path": "payload.key", "before": 1, "after": 2}),
            json!({"headers": null, "env": {}}),
        ] {
            assert_eq!(masked(shown.clone()), shown);
            assert_eq!(secrets_in(&shown), Vec::<String>::new());
        }
    }

    #[test]
    fn a_mask_that_comes_back_is_told_by_its_path() {
        let path = |value: Value| mask_sent_back(&value);
        assert_eq!(
            path(json!({"task": {"headers": {"authorization": "***"}}})).as_deref(),
            Some("task.headers.authorization")
        );
        assert_eq!(
            path(json!({"start": [{"headers": [{"name": "x", "value": "***"}]}]})).as_deref(),
            Some("start[0].headers[0].value")
        );
        assert_eq!(path(json!({"url": "https://***@x.test/"})).as_deref(), Some("url"));
        assert_eq!(path(json!({"url": "https://x.test/?a=b&token=***"})).as_deref(), Some("url"));
        assert_eq!(path(json!({"note": "***", "headers": {"x-colour": "***"}})), None);
    }

    #[test]
    fn a_value_is_scrubbed_from_texts_and_names() {
        let mut value = json!({"a CANARY b": ["x CANARY", {"y": 1}]});
        scrub(&mut value, &["CANARY".into()]);
        assert_eq!(value, json!({"a *** b": ["x ***", {"y": 1}]}));
    }
}
