//! Query parameters and headers of requests.

use std::borrow::Cow;
use std::collections::BTreeMap;

use axum::http::HeaderMap;
use comeback_core::Invalid;
use percent_encoding::percent_decode_str;

use crate::openapi::{Param, schema};
use crate::problem::Problem;

/// Placeholder in a parameter list for one parameter per label.
pub const LABELS: &str = "label.<name>";
/// The parameter `limit`.
pub const LIMIT: Param = Param::new("limit", "Maximum number of items; default: 50.", || schema::between(1, 500));
/// The parameter `cursor`.
pub const CURSOR: Param = Param::new("cursor", "`next_cursor` of the previous page.", schema::text);

/// A query parameter by its name.
pub trait ParamName {
    fn name(&self) -> &str;

    /// Whether an empty value counts as absent.
    fn may_be_empty(&self) -> bool {
        true
    }
}

impl ParamName for &str {
    fn name(&self) -> &str {
        self
    }
}

impl ParamName for Param {
    fn name(&self) -> &str {
        self.name
    }

    fn may_be_empty(&self) -> bool {
        (self.schema)() == schema::text()
    }
}

/// Query parameters. Unknown and repeated ones are refused by name.
pub struct Query(BTreeMap<String, String>);

impl Query {
    /// Parses a query with these known parameters.
    pub fn read(request: Option<&str>, known: &[impl ParamName]) -> Result<Query, Problem> {
        let mut found = BTreeMap::new();
        let mut faults = Invalid::default();
        for part in request.unwrap_or_default().split('&').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let (name, value) = (decode(name)?, decode(value)?);
            let general = if name.starts_with("label.") { LABELS } else { name.as_str() };
            match known.iter().find(|it| it.name() == general) {
                None => {
                    let names: Vec<&str> = known.iter().map(ParamName::name).collect();
                    let there_are = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
                    faults.push(name.clone(), format!("unknown parameter; the parameters are: {there_are}"));
                }
                Some(it) if value.is_empty() && !it.may_be_empty() => faults.push(name.clone(), "may not be empty"),
                Some(_) => {}
            }
            if value.contains('\0') {
                faults.push(name.clone(), "may not contain a zero character");
            }
            if found.insert(name.clone(), value).is_some() {
                faults.push(name, "is given twice");
            }
        }
        faults.or(Query(found)).map_err(Problem::from)
    }

    /// The value of a parameter, if it is not empty.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// The parameters `label.NAME` and their values.
    pub fn labels(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0
            .iter()
            .filter(|(name, _)| name.starts_with("label."))
            .map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Parses a parameter. A value that cannot be parsed is refused, also an empty one.
    pub fn parse<T: std::str::FromStr>(&self, name: &str) -> Result<Option<T>, Problem> {
        match self.0.get(name) {
            None => Ok(None),
            Some(text) => match text.parse() {
                Ok(value) => Ok(Some(value)),
                Err(_) => Err(Invalid::one(name, format!("cannot parse `{text}`")).into()),
            },
        }
    }

    /// The limit; default: 50.
    pub fn limit(&self) -> Result<u32, Problem> {
        match self.parse::<u32>("limit")? {
            None => Ok(50),
            Some(limit) if (1..=500).contains(&limit) => Ok(limit),
            Some(_) => Err(Invalid::one("limit", "must be between 1 and 500").into()),
        }
    }
}

/// Text of a header. A value that is not visible ASCII is refused rather than ignored.
pub fn header_text(headers: &HeaderMap, name: &str) -> Result<Option<String>, Problem> {
    let Some(value) = headers.get(name) else { return Ok(None) };
    match value.to_str() {
        Ok(text) => Ok(Some(text.to_owned())),
        Err(_) => Err(Invalid::one(name, "may hold visible ASCII characters only").into()),
    }
}

/// Decodes a form-encoded name or value. Broken escapes and invalid UTF-8 are refused rather than replaced.
fn decode(text: &str) -> Result<String, Problem> {
    let is_escape = |rest: &str| rest.len() >= 2 && rest.bytes().take(2).all(|digit| digit.is_ascii_hexdigit());
    if !text.split('%').skip(1).all(is_escape) {
        return Err(Problem::bad_request("a `%` in the query is not followed by two hex digits"));
    }
    let spaced = text.replace('+', " ");
    let decoded = percent_decode_str(&spaced).decode_utf8();
    decoded.map(Cow::into_owned).map_err(|_| Problem::bad_request("the query is not UTF-8"))
}
