//! One shape for the nouns of the API: list, get, put, delete, actions, and finding one by a part of its id.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Map, Value, json};

use super::Context;
use crate::error::{CliError, code};
use crate::output;

/// Characters that RFC 3986 leaves unescaped in a path segment.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// A collection of the API, with the noun that commands and errors use for its members.
pub struct Resource {
    pub noun: &'static str,
    pub collection: &'static str,
}

impl Resource {
    /// Path of one member.
    pub fn path(&self, name: &str) -> String {
        format!("{}/{}", self.collection, utf8_percent_encode(name, SEGMENT))
    }

    /// The first page of the collection, which holds 500.
    pub async fn list(&self, context: &Context) -> Result<Value, CliError> {
        Ok(context.client.get_with(self.collection, &[("limit", "500".to_owned())]).await?)
    }

    pub async fn get(&self, context: &Context, name: &str) -> Result<Value, CliError> {
        context.client.get(&self.path(name)).await.map_err(|error| self.failure(name, error))
    }

    pub async fn put(&self, context: &Context, name: &str, body: &Value) -> Result<Value, CliError> {
        Ok(context.client.put(&self.path(name), body).await?)
    }

    pub async fn delete(&self, context: &Context, name: &str) -> Result<Value, CliError> {
        context.client.delete(&self.path(name)).await.map_err(|error| self.failure(name, error))
    }

    /// Posts to `collection/name/action`.
    pub async fn act(&self, context: &Context, name: &str, action: &str, body: &Value) -> Result<Value, CliError> {
        let answer = context.client.post(&format!("{}/{action}", self.path(name)), body).await;
        answer.map_err(|error| self.failure(name, error))
    }

    /// Names the member that does not exist and the command that lists those that do.
    pub fn failure(&self, name: &str, error: comeback_client::Error) -> CliError {
        let is_missing =
            |problem: &comeback_client::Problem| problem.kind == "not-found" && problem.detail.contains(self.noun);
        match error.problem().is_some_and(is_missing) {
            true => missing(self.noun, name).remedy("or use another namespace: --namespace NAME"),
            false => error.into(),
        }
    }

    /// The id that `text` is, or abbreviates among the newest 500.
    pub async fn resolve(&self, context: &Context, text: &str) -> Result<String, CliError> {
        if uuid::Uuid::try_parse(text).is_ok() {
            return Ok(text.to_owned());
        }
        let listed = self.list(context).await?;
        let found = output::items(&listed).map(|it| output::text(it, "id")).filter(|id| abbreviates(text, id));
        pick(self.noun, text, found.collect()).map_err(|failure| match failure.code {
            code::NOT_FOUND => failure.why("none of the newest 500 has an id that starts or ends like this"),
            _ => failure,
        })
    }
}

/// Error for a member that does not exist.
pub fn missing(noun: &str, name: &str) -> CliError {
    CliError::new(code::NOT_FOUND, format!("there is no {noun} `{name}`")).remedy(format!("comeback {noun} list"))
}

/// The digits of an id or of a part of one: lower case, without prefix and dashes.
pub fn digits(id: &str) -> String {
    id.trim_start_matches("tsk_").to_ascii_lowercase().replace('-', "")
}

/// Whether `text` is the start or the end of an id.
pub fn abbreviates(text: &str, id: &str) -> bool {
    let (text, id) = (digits(text), digits(id));
    !text.is_empty() && (id.starts_with(&text) || id.ends_with(&text))
}

/// The only one of the candidates that `text` can mean.
pub fn pick(noun: &str, text: &str, found: Vec<&str>) -> Result<String, CliError> {
    match found.as_slice() {
        [one] => Ok((*one).to_owned()),
        [] => Err(missing(noun, text)),
        many if many.contains(&text) => Ok(text.to_owned()),
        many => {
            let is_uuid = |id: &str| uuid::Uuid::try_parse(id).is_ok();
            let shown = |id: &&str| if is_uuid(id) { output::short(&json!(id)) } else { (*id).to_owned() };
            let few: Vec<String> = many.iter().take(3).map(shown).collect();
            let what = format!("`{text}` is ambiguous ({})", output::plural(many.len() as u64, noun));
            Err(CliError::new(code::USAGE, what)
                .why(format!("it matches {}", few.join(", ")))
                .remedy("give more digits"))
        }
    }
}

/// A JSON object of the fields that have a value.
pub fn object<const N: usize>(fields: [(&str, Option<Value>); N]) -> Value {
    fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect::<Map<_, _>>().into()
}

/// Labels given as `name=value`; `None` if there are none.
pub fn labels(given: &[String]) -> Result<Option<Value>, CliError> {
    let read = |text: &String| {
        let (name, value) = text.split_once('=').ok_or_else(|| {
            CliError::new(code::USAGE, format!("invalid label `{text}`"))
                .why("a label is a name, `=` and a value")
                .remedy("--label name=value")
        })?;
        Ok((name.to_owned(), value.into()))
    };
    let labels: Map<String, Value> = given.iter().map(read).collect::<Result<_, CliError>>()?;
    Ok(Some(labels).filter(|labels| !labels.is_empty()).map(Value::Object))
}

/// Parses JSON that was typed or read from a file.
pub fn read_json(what: &str, text: &str, remedy: &str) -> Result<Value, CliError> {
    serde_json::from_str(text).map_err(|error| {
        CliError::new(code::USAGE, format!("{what} is not JSON")).why(error.to_string()).remedy(remedy)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_segment_of_a_path() {
        let schedules = Resource { noun: "schedule", collection: "/api/v1/schedules" };
        assert_eq!(schedules.path("reports/nightly v2~x"), "/api/v1/schedules/reports%2Fnightly%20v2~x");
        assert_eq!(schedules.path("ü?#%"), "/api/v1/schedules/%C3%BC%3F%23%25");
    }

    #[test]
    fn an_id_is_found_by_either_end() {
        let ids = ["018f0000-0000-7000-8000-0000000000ab", "018f0000-0000-7000-8000-0000000001cd"];
        let find = |text: &str| {
            let found = ids.iter().copied().filter(|id| abbreviates(text, id)).collect();
            pick("execution", text, found).map_err(|failure| (failure.code, failure.in_a_line()))
        };
        assert_eq!(find("AB"), Ok(ids[0].to_owned()));
        assert_eq!(find("tsk_0001cd"), Ok(ids[1].to_owned()));
        let ambiguous = "`018f` is ambiguous (2 executions): it matches 000000ab, 000001cd";
        assert_eq!(find("018f"), Err((code::USAGE, ambiguous.to_owned())));
        for missing in ["", "-", "ef"] {
            let words = format!("there is no execution `{missing}`");
            assert_eq!(find(missing), Err((code::NOT_FOUND, words)));
        }
        assert_eq!(pick("key", "cbk_1", vec!["cbk_1", "cbk_12"]).ok().as_deref(), Some("cbk_1"));
    }
}
