//! Wire formats: parsing with faults by path, and JSON output. No rules about tasks.

pub mod alert;
pub mod backtest;
pub mod event;
pub mod execution;
pub mod lease;
pub mod operation;
pub mod schedule;
pub mod subscription;
pub mod task;

use std::fmt;
use std::marker::PhantomData;

use bytes::Bytes;
use comeback_core::{Decision, Failure, Invalid, Millis, RetryAfter, Timestamp};
use comeback_engine::Moment;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, DeserializeOwned, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::openapi::schema_types;
use crate::problem::Problem;

/// Parses a body. An empty body is an empty object; faults carry their path.
pub fn read<T: DeserializeOwned>(body: &Bytes) -> Result<T, Problem> {
    read_whole(body, "").map(|Object(value)| value)
}

/// Body of an act that takes only a note.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Noted)]
pub struct NoteIn {
    #[serde(default)]
    #[schema(value_type = Option<schema_types::NoteSchema>)]
    pub note: Option<String>,
}

/// A field that distinguishes null from absent.
pub fn given<'de, D: Deserializer<'de>, T: Deserialize<'de>>(value: D) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(value).map(Some)
}

/// Parses a body that need not be an object; faults are reported under `at`.
pub fn read_whole<T: DeserializeOwned>(body: &Bytes, at: &str) -> Result<T, Problem> {
    let bytes: &[u8] = if body.is_empty() { b"{}" } else { body };
    // Tracking paths is slower than parsing: only done after a failure.
    if let Ok(value) = serde_json::from_slice(bytes) {
        return Ok(value);
    }
    let mut from = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut from).map_err(|error| match error.inner().is_data() {
        true => fault(error).under(at).into(),
        false => Problem::bad_request(format!("the body is not JSON: {}", error.inner())),
    })?;
    from.end().map_err(|error| Problem::bad_request(format!("the body is not JSON: {error}")))?;
    Ok(value)
}

/// Parses a part kept as raw JSON.
pub fn read_part<T: DeserializeOwned>(part: Value) -> Result<T, Invalid> {
    serde_path_to_error::deserialize(part).map_err(fault)
}

fn fault(error: serde_path_to_error::Error<serde_json::Error>) -> Invalid {
    let path = error.path().to_string();
    let message = error.into_inner().to_string();
    let message = message.split(" at line ").next().unwrap_or_default();
    Invalid::one(field_in(message), message).under(if path == "." { "" } else { path.as_str() })
}

/// Name of a missing or duplicate field, which only the message holds.
fn field_in(message: &str) -> &str {
    let named = ["missing field `", "duplicate field `"].iter().find_map(|start| message.strip_prefix(start));
    named.and_then(|rest| rest.split('`').next()).unwrap_or_default()
}

/// A duration: seconds as a number, or text such as `90s`, `1h30m`, `PT5M`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DurationIn(pub Millis);

impl<'de> Deserialize<'de> for DurationIn {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct DurationVisitor;

        impl Visitor<'_> for DurationVisitor {
            type Value = DurationIn;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of seconds, or a duration such as \"90s\", \"1h30m\" or \"PT5M\"")
            }

            fn visit_u64<E: de::Error>(self, secs: u64) -> Result<DurationIn, E> {
                Ok(DurationIn(Millis::from_secs(secs)))
            }

            fn visit_i64<E: de::Error>(self, secs: i64) -> Result<DurationIn, E> {
                u64::try_from(secs)
                    .map_err(|_| E::custom("a duration cannot be negative"))
                    .and_then(|secs| self.visit_u64(secs))
            }

            fn visit_f64<E: de::Error>(self, secs: f64) -> Result<DurationIn, E> {
                Millis::parse_secs(secs).map(DurationIn).map_err(E::custom)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<DurationIn, E> {
                Millis::parse(text).map(DurationIn).map_err(E::custom)
            }
        }

        from.deserialize_any(DurationVisitor)
    }
}

/// An instant, as RFC 3339.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instant(pub Timestamp);

impl<'de> Deserialize<'de> for Instant {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        Timestamp::parse_rfc3339(&text).map(Instant).map_err(de::Error::custom)
    }
}

/// A duration from now, or an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MomentIn(pub Moment);

impl<'de> Deserialize<'de> for MomentIn {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(from)?;
        if let Value::String(text) = &value
            && let Ok(at) = Timestamp::parse_rfc3339(text)
        {
            return Ok(MomentIn(Moment::At(at)));
        }
        DurationIn::deserialize(value).map(|span| MomentIn(Moment::After(span.0))).map_err(de::Error::custom)
    }
}

/// Raw JSON passed on unchanged after validation: bounded depth, valid Unicode, numbers in range.
#[derive(Debug)]
pub struct Raw(pub Box<RawValue>);

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(from)?;
        serde_json::from_str::<ValidJson>(raw.get()).map_err(de::Error::custom)?;
        Ok(Raw(raw))
    }
}

/// Validates JSON without keeping it.
struct ValidJson;

impl<'de> Deserialize<'de> for ValidJson {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(ValidJson)
    }
}

impl<'de> Visitor<'de> for ValidJson {
    type Value = ValidJson;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<ValidJson, E> {
        Ok(ValidJson)
    }

    fn visit_bool<E>(self, _: bool) -> Result<ValidJson, E> {
        Ok(ValidJson)
    }

    fn visit_i64<E>(self, _: i64) -> Result<ValidJson, E> {
        Ok(ValidJson)
    }

    fn visit_u64<E>(self, _: u64) -> Result<ValidJson, E> {
        Ok(ValidJson)
    }

    fn visit_f64<E>(self, _: f64) -> Result<ValidJson, E> {
        Ok(ValidJson)
    }

    fn visit_str<E>(self, _: &str) -> Result<ValidJson, E> {
        Ok(ValidJson)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<ValidJson, A::Error> {
        while items.next_element::<ValidJson>()?.is_some() {}
        Ok(ValidJson)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<ValidJson, A::Error> {
        while entries.next_entry::<ValidJson, ValidJson>()?.is_some() {}
        Ok(ValidJson)
    }
}

/// A struct parsed from an object only; serde would accept a list of its values too.
#[derive(Debug)]
pub struct Object<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct ObjectVisitor<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
            type Value = Object<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, entries: A) -> Result<Object<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(entries)).map(Object)
            }
        }

        from.deserialize_map(ObjectVisitor(PhantomData))
    }
}

/// A string, or an object with more fields. Faults inside the object carry their own path.
#[derive(Debug)]
pub enum TextOr<T> {
    Text(String),
    Whole(Box<T>),
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for TextOr<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct TextOrVisitor<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for TextOrVisitor<T> {
            type Value = TextOr<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text or an object")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<TextOr<T>, E> {
                Ok(TextOr::Text(text.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, entries: A) -> Result<TextOr<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(entries)).map(|whole| TextOr::Whole(Box::new(whole)))
            }
        }

        from.deserialize_any(TextOrVisitor(PhantomData))
    }
}

/// A page of a list.
#[derive(Serialize)]
pub struct Page<T> {
    pub items: Vec<T>,
    pub next_cursor: Option<String>,
}

impl<T> Page<T> {
    /// A page of the items found with a limit, bounded in bytes. A full page has a cursor from its last item.
    pub fn of<F>(found: &[F], limit: u32, place: impl Fn(&F) -> String, shown: impl Fn(&F) -> T) -> Page<T>
    where
        T: Serialize,
    {
        let mut bytes = PageBytes::default();
        let mut items = Vec::with_capacity(found.len());
        for it in found {
            let item = shown(it);
            if !bytes.fits(&item) {
                break;
            }
            items.push(item);
        }
        let is_full = found.len() >= limit as usize || items.len() < found.len();
        let last = items.len().checked_sub(1).and_then(|last| found.get(last));
        Page { items, next_cursor: last.filter(|_| is_full).map(place) }
    }
}

/// Maximum size of a page in bytes; it has at least one item.
pub const MOST_PAGE_BYTES: usize = 2 << 20;

/// Byte counter of a page.
#[derive(Default)]
pub struct PageBytes(usize);

impl PageBytes {
    /// Counts an item if it fits into the page. The first always fits.
    pub fn fits(&mut self, item: &impl Serialize) -> bool {
        let size = size_of(item);
        let fits = self.0 == 0 || self.0 + size <= MOST_PAGE_BYTES;
        if fits {
            self.0 += size.max(1);
        }
        fits
    }
}

/// Size of a value as JSON, without allocating it.
fn size_of(item: &impl Serialize) -> usize {
    struct ByteCounter(usize);

    impl std::io::Write for ByteCounter {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    let mut count = ByteCounter(0);
    // Only a writer that fails could fail here.
    let _ = serde_json::to_writer(&mut count, item);
    count.0
}

/// JSON of a failure: durations in milliseconds, instants as text.
pub fn failure(it: &Failure) -> Value {
    let mut shown = json!(it);
    if let Some(fields) = shown.as_object_mut() {
        match it.retry_after {
            Some(RetryAfter::Span(span)) => fields.insert("retry_after_ms".into(), span.0.into()),
            Some(RetryAfter::At(at)) => fields.insert("retry_after_at".into(), at.to_rfc3339().into()),
            None => None,
        };
        fields.shift_remove("retry_after");
    }
    shown
}

/// JSON of a decision, with instants as text.
pub fn decision(it: &Decision) -> Value {
    let mut shown = json!(it);
    for (name, at) in [("at", Some(it.at)), ("next_retry_at", it.next_retry_at), ("held_until", it.held_until)] {
        if let Some(at) = at {
            shown[name] = at.to_rfc3339().into();
        }
    }
    shown
}

/// An instant as RFC 3339.
pub fn instant(at: Option<Timestamp>) -> Option<String> {
    at.map(Timestamp::to_rfc3339)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Shape {
        #[serde(default)]
        wait: Option<DurationIn>,
        #[serde(default)]
        inside: Vec<Shape>,
    }

    fn faults(text: &str) -> String {
        let problem = read::<Shape>(&Bytes::copy_from_slice(text.as_bytes())).expect_err("it is wrong");
        format!("{} {}", problem.code, problem.detail)
    }

    #[test]
    fn a_fault_is_named_by_its_path() {
        assert_eq!(
            faults(r#"{"inside": [{}, {"wait": "soon"}]}"#).split(':').next(),
            Some("VALIDATION_FAILED inside[1].wait")
        );
        assert!(faults(r#"{"inside": [{"wiat": 1}]}"#).contains("unknown field `wiat`"));
        assert!(faults(r#"{"wait": -1}"#).contains("negative"));
        for text in ["{", "[1", "{} {}", "\u{0}", &"[".repeat(200)] {
            assert!(faults(text).starts_with("BAD_REQUEST") || faults(text).starts_with("VALIDATION"), "{text}");
        }
    }

    #[test]
    fn what_only_a_message_names_is_a_path_too() {
        #[derive(Debug, Deserialize)]
        struct Needy {
            #[serde(rename = "must")]
            _must: u8,
        }
        let fault = |text: &str| read::<Needy>(&Bytes::copy_from_slice(text.as_bytes())).expect_err("wrong").detail;
        assert_eq!(fault("{}"), "must: missing field `must`");
        assert_eq!(fault(r#"{"must": 1, "must": 2}"#), "must: duplicate field `must`");
        assert_eq!(fault("[1]"), "invalid type: sequence, expected an object");
    }

    #[test]
    fn what_is_passed_on_can_be_read_by_everybody() {
        #[derive(Deserialize)]
        struct Holder {
            payload: Raw,
        }
        let read = |text: &str| read::<Holder>(&Bytes::from(format!("{{\"payload\": {text}}}")));
        let good = |text: &str| read(text).is_ok_and(|it| it.payload.0.get() == text);
        assert!(good(r#"{"a": [1, -2.5e3, "\u00fc\ud83d\ude00", null, true]}"#));
        assert!(good(&format!("{}{}", "[".repeat(120), "]".repeat(120))));
        let deep = format!("{}{}", "[".repeat(130), "]".repeat(130));
        for text in [r#""\ud800""#, r#"{"\udc00": 1}"#, "1e999", &deep] {
            let problem = read(text).err().map(|problem| problem.detail).unwrap_or_default();
            assert!(problem.starts_with("payload: "), "{text}: {problem}");
        }
    }

    #[test]
    fn spans_are_seconds_or_words() {
        let wait = |text: &str| read::<Shape>(&Bytes::copy_from_slice(text.as_bytes())).unwrap().wait.unwrap().0;
        assert_eq!(wait(r#"{"wait": 2}"#), Millis(2_000));
        assert_eq!(wait(r#"{"wait": 0.25}"#), Millis(250));
        assert_eq!(wait(r#"{"wait": "1h30m"}"#), Millis(5_400_000));
        assert_eq!(wait(r#"{"wait": "PT5M"}"#), Millis(300_000));
        let empty = read::<Shape>(&Bytes::new()).unwrap();
        assert!(empty.wait.is_none() && empty.inside.is_empty());
    }
}
