//! Class of the failure of a process. The most specific source counts: its own JSON, then
//! patterns on its standard error, then its exit code, then the usual meaning of exit codes.

use std::collections::BTreeMap;
use std::fmt;

use comeback_core::policy::MessagePattern;
use comeback_core::{Class, Failure, Invalid, Millis, RetryAfter, Trigger};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// The settings as they are written, in JSON or in TOML.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClassifyIn {
    /// By a code, a range of codes, or `signal`.
    #[serde(default)]
    exit_codes: BTreeMap<String, Meaning>,
    #[serde(default)]
    stderr: Vec<ComplaintIn>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ComplaintIn {
    pattern: String,
    class: Class,
    #[serde(default)]
    retry_after: Option<Span>,
    #[serde(default)]
    code: Option<String>,
}

/// A class by its word alone, or with more to say.
#[derive(Clone, Debug, PartialEq)]
pub struct Meaning {
    class: Class,
    retry_after: Option<Millis>,
    code: Option<String>,
}

/// A span in a document: a number of seconds, or a text such as `90s`.
#[derive(Clone, Copy, Debug)]
pub struct Span(pub Millis);

/// More patterns than anybody reads.
const MOST_PATTERNS: usize = 100;

/// The same, checked.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Classify {
    /// Narrow ranges first.
    exit_codes: Vec<(Codes, Meaning)>,
    stderr: Vec<(MessagePattern, Meaning)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Codes {
    Range(i32, i32),
    Signal,
}

impl Codes {
    fn read(text: &str) -> Option<Codes> {
        if text == "signal" {
            return Some(Codes::Signal);
        }
        let code = |text: &str| text.trim().parse().ok().filter(|code| (1..=255).contains(code));
        let (from, to) = text.split_once('-').unwrap_or((text, text));
        let (from, to) = (code(from)?, code(to)?);
        (from <= to).then_some(Codes::Range(from, to))
    }

    fn width(self) -> i32 {
        match self {
            Codes::Range(from, to) => to - from,
            Codes::Signal => 0,
        }
    }

    fn holds(self, code: Option<i32>) -> bool {
        match self {
            Codes::Range(from, to) => code.is_some_and(|code| (from..=to).contains(&code)),
            Codes::Signal => code.is_none(),
        }
    }
}

impl ClassifyIn {
    /// Checks the settings.
    pub fn check(self) -> Result<Classify, Invalid> {
        let mut faults = Invalid::default();
        let mut exit_codes = Vec::new();
        for (text, meaning) in self.exit_codes {
            let at = format!("exit_codes.{text}");
            meaning.check(&at, &mut faults);
            match Codes::read(&text) {
                Some(codes) => exit_codes.push((codes, meaning)),
                None => faults.push(at, "is no code from 1 to 255, no range such as 64-78, and not `signal`"),
            }
        }
        exit_codes.sort_by_key(|(codes, _)| codes.width());
        if self.stderr.len() > MOST_PATTERNS {
            faults.push("stderr", format!("may hold {MOST_PATTERNS} patterns at most"));
        }
        let mut stderr = Vec::new();
        for (i, complaint) in self.stderr.into_iter().take(MOST_PATTERNS).enumerate() {
            let ComplaintIn { pattern, class, retry_after, code } = complaint;
            let meaning = Meaning { class, retry_after: retry_after.map(|Span(span)| span), code };
            meaning.check(&format!("stderr[{i}]"), &mut faults);
            match MessagePattern::parse(&pattern) {
                Ok(pattern) => stderr.push((pattern, meaning)),
                Err(why) => faults.push(format!("stderr[{i}].pattern"), why),
            }
        }
        faults.or(Classify { exit_codes, stderr })
    }
}

impl Meaning {
    fn check(&self, at: &str, faults: &mut Invalid) {
        if self.class == Class::Final && self.retry_after.is_some() {
            faults.push(format!("{at}.retry_after"), "has no meaning where the class is final");
        }
        if self.code.as_ref().is_some_and(|code| code.is_empty() || code.len() > 255) {
            faults.push(format!("{at}.code"), "may have 1 to 255 bytes");
        }
    }
}

/// A process that ended badly.
#[derive(Clone, Debug, Default)]
pub struct BadEnd {
    /// None when a signal ended it.
    pub code: Option<i32>,
    /// How it ended, for people.
    pub words: String,
    /// The last object or list on its standard output.
    pub result: Option<Value>,
    /// Its standard error.
    pub complaint: String,
}

impl Classify {
    /// The failure of a process that ended like this.
    pub fn failure(&self, end: BadEnd) -> Failure {
        let own = end.own_words().unwrap_or_default();
        let by_complaint = self.stderr.iter().find(|(pattern, _)| pattern.matches(&end.complaint));
        let by_code = || self.exit_codes.iter().find(|(codes, _)| codes.holds(end.code)).map(|(_, meaning)| meaning);
        let meaning = by_complaint.map(|(_, meaning)| meaning).or_else(by_code);
        // A status of its own says what class it is, where the process does not say so itself.
        let own_class = own.class.is_some() || own.status.is_some();
        let usual = || end.code.and_then(Class::of_exit);
        let class = if own_class { own.class } else { meaning.map_or_else(usual, |meaning| Some(meaning.class)) };
        let asked_for = meaning.filter(|_| !own_class).and_then(|meaning| meaning.retry_after).map(RetryAfter::Span);
        let message = own.message.unwrap_or_else(|| match end.complaint.as_str() {
            "" => end.words.clone(),
            complaint => format!("{}: {complaint}", end.words),
        });
        Failure {
            class,
            error_type: Some(own.error_type.unwrap_or_else(|| "exit".into())),
            code: own.code.or_else(|| meaning?.code.clone()).or(end.code.map(|code| code.to_string())),
            status: own.status,
            retry_after: own.retry_after.or(asked_for),
            result: end.result,
            ..Failure::new(Trigger::Error, message)
        }
    }
}

/// Failure as the process itself describes it in JSON.
#[derive(Debug, Default)]
struct OwnWords {
    class: Option<Class>,
    error_type: Option<String>,
    code: Option<String>,
    status: Option<u16>,
    message: Option<String>,
    retry_after: Option<RetryAfter>,
}

impl BadEnd {
    fn own_words(&self) -> Option<OwnWords> {
        let on_stderr = || {
            let last = self.complaint.lines().rev().find(|line| !line.trim().is_empty())?;
            OwnWords::read(&serde_json::from_str(last).ok()?)
        };
        self.result.as_ref().and_then(OwnWords::read).or_else(on_stderr)
    }
}

impl OwnWords {
    /// Unusable fields are left out: a process that fails may also fail to say so properly.
    fn read(said: &Value) -> Option<OwnWords> {
        let error = said.get("error")?.as_object()?;
        let text = |name: &str| match error.get(name)? {
            Value::String(text) if !text.is_empty() => Some(text.clone()),
            Value::Number(number) => Some(number.to_string()),
            _ => None,
        };
        let status = error.get("status").and_then(Value::as_u64).and_then(|status| u16::try_from(status).ok());
        Some(OwnWords {
            class: error.get("class").and_then(Value::as_str).and_then(Class::from_word),
            error_type: text("type"),
            code: text("code"),
            status: status.filter(|status| (100..=599).contains(status)),
            message: text("message"),
            retry_after: text("retry_after").and_then(|text| match Millis::parse(&text) {
                Ok(span) => Some(RetryAfter::Span(span)),
                Err(_) => RetryAfter::parse(&text),
            }),
        })
    }
}

impl<'de> Deserialize<'de> for Meaning {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Meaning, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Fields {
            class: Class,
            #[serde(default)]
            retry_after: Option<Span>,
            #[serde(default)]
            code: Option<String>,
        }
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Meaning;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a class ({}), or an object with `class`", Class::list())
            }

            fn visit_str<E: Error>(self, word: &str) -> Result<Meaning, E> {
                let class = Class::from_word(word)
                    .ok_or_else(|| E::custom(format!("`{word}` is not one of {}", Class::list())))?;
                Ok(Meaning { class, retry_after: None, code: None })
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Meaning, A::Error> {
                let fields = Fields::deserialize(MapAccessDeserializer::new(map))?;
                let retry_after = fields.retry_after.map(|Span(span)| span);
                Ok(Meaning { class: fields.class, retry_after, code: fields.code })
            }
        }
        from.deserialize_any(Either)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Span, D::Error> {
        let said = Value::deserialize(from)?;
        comeback_core::dialect::duration(&said).map(Span).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(settings: Value) -> Result<Classify, Invalid> {
        serde_json::from_value::<ClassifyIn>(settings).map_err(|error| Invalid::one("", error))?.check()
    }

    fn exit(code: i32, complaint: &str) -> BadEnd {
        let (words, complaint) = (format!("exit {code}"), complaint.to_owned());
        BadEnd { code: Some(code), words, complaint, result: None }
    }

    fn summary(failure: &Failure) -> (Option<Class>, Option<&str>, Option<RetryAfter>) {
        (failure.class, failure.code.as_deref(), failure.retry_after)
    }

    const MINUTE: Option<RetryAfter> = Some(RetryAfter::Span(Millis::from_secs(60)));

    fn classify() -> Classify {
        read(json!({
            "exit_codes": {"2": "final", "10-20": "retryable", "13": "final",
                "75": {"class": "rate_limited", "retry_after": "60s"}, "signal": "final"},
            "stderr": [
                {"pattern": "(?i)too many requests", "class": "rate_limited", "retry_after": 60, "code": "throttled"},
                {"pattern": "too", "class": "final"},
            ],
        }))
        .expect("good settings")
    }

    #[test]
    fn the_most_specific_word_counts() {
        let classify = classify();
        let of = |end: BadEnd| classify.failure(end);
        assert_eq!(summary(&of(exit(1, ""))), (None, Some("1"), None), "the policy's default");
        assert_eq!(
            summary(&of(exit(64, ""))),
            (Some(Class::Final), Some("64"), None),
            "as exit codes are usually meant"
        );
        assert_eq!(summary(&of(exit(2, ""))), (Some(Class::Final), Some("2"), None));
        assert_eq!(summary(&of(exit(12, ""))), (Some(Class::Retryable), Some("12"), None));
        assert_eq!(summary(&of(exit(13, ""))), (Some(Class::Final), Some("13"), None), "one code beats a range");
        assert_eq!(summary(&of(exit(75, ""))), (Some(Class::RateLimited), Some("75"), MINUTE));
        let throttled = (Some(Class::RateLimited), Some("throttled"), MINUTE);
        assert_eq!(
            summary(&of(exit(2, "oh\nToo Many Requests"))),
            throttled,
            "a pattern beats a code, the first one wins"
        );
        let signal = BadEnd { words: "signal: 9 (SIGKILL)".into(), ..BadEnd::default() };
        assert_eq!(summary(&of(signal)), (Some(Class::Final), None, None));
        let said = json!({"error": {"class": "retryable", "code": 7, "message": "no disk", "type": "Disk"}});
        let own = of(BadEnd { result: Some(said.clone()), ..exit(2, "too many requests") });
        assert_eq!(summary(&own), (Some(Class::Retryable), Some("7"), None), "what it says itself beats all");
        assert_eq!((own.message.as_str(), own.error_type.as_deref()), ("no disk", Some("Disk")));
        let own = of(exit(2, &format!("too bad\n{said}\n\n")));
        assert_eq!(own.class, Some(Class::Retryable), "it may say so on standard error");
    }

    #[test]
    fn what_a_process_leaves_out_is_filled_in_from_the_next() {
        let said = |error: Value| BadEnd { result: Some(json!({"error": error})), ..exit(2, "") };
        let of = |error: Value| classify().failure(said(error));
        let bare = of(json!({"message": "odd"}));
        assert_eq!((summary(&bare), bare.message.as_str()), ((Some(Class::Final), Some("2"), None), "odd"));
        let status = of(json!({"status": 503, "retry_after": "60"}));
        assert_eq!((summary(&status), status.status), ((None, Some("2"), MINUTE), Some(503)));
        assert_eq!(status.classify(Class::Retryable).0, Class::RateLimited, "a status of its own is its class");
        let silly = of(json!({"class": "sometimes", "status": 9_000, "retry_after": "soon", "message": {}}));
        assert_eq!((silly.class, silly.status, silly.message.as_str()), (Some(Class::Final), None, "exit 2"));
        let date = of(json!({"class": "rate_limited", "retry_after": "Wed, 21 Oct 2015 07:28:00 GMT"}));
        assert!(matches!(date.retry_after, Some(RetryAfter::At(_))));
        assert_eq!(
            classify().failure(BadEnd { result: Some(json!({"error": "no"})), ..exit(2, "") }).message,
            "exit 2"
        );
    }

    #[test]
    fn bad_settings_are_named() {
        let fault = |settings: Value| read(settings).expect_err("a fault").to_string();
        for (codes, path) in
            [("0", "exit_codes.0"), ("300", "exit_codes.300"), ("9-2", "exit_codes.9-2"), ("x", "exit_codes.x")]
        {
            assert!(fault(json!({"exit_codes": {codes: "final"}})).starts_with(path), "{codes}");
        }
        assert!(fault(json!({"exit_codes": {"2": "sometimes"}})).contains("final, retryable, rate_limited"));
        assert!(fault(json!({"exit_codes": {"2": {"class": "final", "retry_after": 1}}})).contains("2.retry_after"));
        assert!(fault(json!({"exit_codes": {"2": {"class": "final", "colour": 1}}})).contains("colour"));
        assert!(fault(json!({"stderr": [{"pattern": "(", "class": "final"}]})).starts_with("stderr[0].pattern"));
        let large = json!({"stderr": [{"pattern": r"(\w{1000}){1000}", "class": "final"}]});
        assert!(fault(large).contains("too large"));
        assert!(
            fault(json!({"stderr": [{"pattern": "x", "class": "retryable", "retry_after": "soon"}]})).contains("soon")
        );
        assert!(fault(json!({"stdout": []})).contains("stdout"));
    }
}
