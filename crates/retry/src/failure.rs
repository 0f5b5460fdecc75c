//! Failures of attempts: their class, and whether a policy's matchers fit them.
//!
//! Classification looks at structure first (a stated class, a status, a trigger) and never at the message.

use serde::{Deserialize, Serialize};

use crate::time::{Millis, Timestamp};
use crate::words::words;

words! {
    /// The class of an error: whether trying again can help.
    pub enum Class {
        Final = 0 "final",
        Retryable = 1 "retryable",
        RateLimited = 2 "rate_limited",
    }
}

words! {
    /// The cause that ended the attempt.
    #[derive(Default)]
    pub enum Trigger {
        #[default]
        Error = 0 "error",
        Timeout = 1 "timeout",
        StartFailed = 2 "start_failed",
        Explicit = 3 "explicit",
        LeaseExpired = 4 "lease_expired",
        Stuck = 5 "stuck",
        Canceled = 6 "canceled",
        Upstream = 7 "upstream",
    }
}

impl Trigger {
    /// The run was lost to infrastructure rather than failed by its own work (model A2).
    pub const fn is_loss(self) -> bool {
        matches!(self, Trigger::LeaseExpired | Trigger::Stuck)
    }

    /// Also reads the name that the dialect `task` has for a failed start call.
    pub fn parse(word: &str) -> Option<Trigger> {
        match word.trim().to_ascii_lowercase().as_str() {
            "webhook_failure" | "webhookfailure" => Some(Trigger::StartFailed),
            other => Trigger::from_word(other),
        }
    }
}

/// How long the other side asked us to stay away: a span, or the date form of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RetryAfter {
    /// So long from now.
    Span(Millis),
    /// Not before this instant.
    At(Timestamp),
}

impl RetryAfter {
    /// The value of a `Retry-After` header: seconds, or an HTTP date.
    pub fn parse(header: &str) -> Option<RetryAfter> {
        let header = header.trim();
        if let Ok(secs) = header.parse::<f64>() {
            return Millis::parse_secs(secs).ok().map(RetryAfter::Span);
        }
        Timestamp::parse_http_date(header).ok().map(RetryAfter::At)
    }

    /// How long to wait, counted from `now`.
    pub fn from_now(self, now: Timestamp) -> Millis {
        match self {
            RetryAfter::Span(span) => span,
            RetryAfter::At(at) => at.since(now),
        }
    }
}

/// One failure, as reported. Everything but the trigger may be unknown.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    /// The cause that ended the attempt.
    #[serde(default)]
    pub trigger: Trigger,
    /// The class that the reporter stated, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<Class>,
    /// The type or name of the error.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub error_type: Option<String>,
    /// The error code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// The HTTP status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// The message for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The stack trace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stack: Option<String>,
    /// How long the other side asked to wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after: Option<RetryAfter>,
    /// A given `retry_after` that could not be read: it is ignored, and the decision notes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ignored: Option<String>,
    /// The result that the attempt returned beside the error, for expressions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<serde_json::Value>,
}

/// The type of the failure of a loop.
const ROUNDS: &str = "foreach";

impl Failure {
    /// A failure with a trigger and a message, and nothing else known.
    pub fn new(trigger: Trigger, message: impl Into<String>) -> Failure {
        Failure { trigger, message: message.into(), ..Failure::default() }
    }

    /// Of a loop, because rounds of it failed.
    pub fn of_rounds(message: impl Into<String>) -> Failure {
        let error_type = Some(ROUNDS.into());
        Failure { class: Some(Class::Final), error_type, ..Failure::new(Trigger::Upstream, message) }
    }

    /// Whether a loop failed because rounds of it did.
    pub fn is_of_rounds(&self) -> bool {
        self.trigger == Trigger::Upstream && self.error_type.as_deref() == Some(ROUNDS)
    }

    /// The class, and whether it was stated by the reporter rather than inferred here.
    pub fn classify(&self, default: Class) -> (Class, bool) {
        match (self.class, self.status) {
            (Some(class), _) => (class, true),
            (None, Some(status)) => (class_of_status(status, self.retry_after.is_some(), default), false),
            (None, None) if self.trigger == Trigger::Error => (default, false),
            (None, None) => (Class::Retryable, false),
        }
    }
}

/// The built-in map (ruling D-11): what a status alone says.
fn class_of_status(status: u16, has_retry_after: bool, default: Class) -> Class {
    match status {
        429 | 503 if has_retry_after => Class::RateLimited,
        408 | 425 | 429 | 500..=599 => Class::Retryable,
        400..=499 => Class::Final,
        _ => default,
    }
}

impl Class {
    /// The class of a process's exit code, as sysexits has it: usage, data and the like never get better by themselves; 75 says
    /// that it may. `None` where the policy's default counts.
    pub fn of_exit(code: i32) -> Option<Class> {
        match code {
            75 => Some(Class::Retryable),
            64..=78 => Some(Class::Final),
            _ => None,
        }
    }
}

/// One item of `retry_on` or `ignore`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Matcher {
    /// One HTTP status.
    Status(u16),
    /// `5xx`: the hundreds digit.
    StatusClass(u16),
    /// A trigger.
    Trigger(Trigger),
    /// A class.
    Class(Class),
    /// A code or an error type, by its exact text.
    Name(String),
}

/// How closely a matcher fits; the closer one wins (rulings X0-11, D-11).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fit {
    /// It says no more than the class that was found for the failure anyway.
    Class,
    /// It names the trigger.
    Trigger,
    /// It names the error type.
    Name,
    /// It names the class of HTTP statuses.
    StatusClass,
    /// It names the status or the code.
    Exact,
}

impl Matcher {
    /// Reads one item of a list; the error says why it is not one.
    pub fn parse(text: &str) -> Result<Matcher, String> {
        let word = text.trim();
        if word.is_empty() {
            return Err("a matcher may not be empty".into());
        }
        if word.len() > 200 {
            return Err("a matcher may have 200 characters at most".into());
        }
        let bytes = word.as_bytes();
        if bytes.len() == 3 && bytes[0].is_ascii_digit() && word[1..].eq_ignore_ascii_case("xx") {
            let hundreds = u16::from(bytes[0] - b'0');
            return if (1..=5).contains(&hundreds) {
                Ok(Matcher::StatusClass(hundreds))
            } else {
                Err(format!("`{word}` is no class of HTTP statuses; 1xx to 5xx are"))
            };
        }
        if bytes.len() == 3 && bytes.iter().all(u8::is_ascii_digit) {
            return match word.parse() {
                Ok(status @ 100..=599) => Ok(Matcher::Status(status)),
                _ => Err(format!("`{word}` is no HTTP status")),
            };
        }
        if let Some(trigger) = Trigger::parse(word) {
            return Ok(Matcher::Trigger(trigger));
        }
        if let Some(class) = Class::from_word(word) {
            return Ok(Matcher::Class(class));
        }
        Ok(Matcher::Name(word.to_owned()))
    }

    /// How closely it fits a failure of this class; `None` if it does not match.
    pub fn fit(&self, failure: &Failure, class: Class) -> Option<Fit> {
        match self {
            Matcher::Status(status) => (failure.status == Some(*status)
                || failure.code.as_deref().and_then(|code| code.parse().ok()) == Some(*status))
            .then_some(Fit::Exact),
            Matcher::StatusClass(hundreds) => {
                (failure.status.map(|status| status / 100) == Some(*hundreds)).then_some(Fit::StatusClass)
            }
            Matcher::Trigger(trigger) => (failure.trigger == *trigger).then_some(Fit::Trigger),
            Matcher::Class(wanted) => (class == *wanted).then_some(Fit::Class),
            Matcher::Name(name) => {
                if failure.code.as_deref() == Some(name) {
                    Some(Fit::Exact)
                } else if failure.error_type.as_deref() == Some(name) {
                    Some(Fit::Name)
                } else {
                    None
                }
            }
        }
    }
}

impl std::fmt::Display for Matcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Matcher::Status(status) => write!(f, "{status}"),
            Matcher::StatusClass(hundreds) => write!(f, "{hundreds}xx"),
            Matcher::Trigger(trigger) => trigger.fmt(f),
            Matcher::Class(class) => class.fmt(f),
            Matcher::Name(name) => f.write_str(name),
        }
    }
}

/// The closest fit in a list, with its position.
pub fn closest(list: &[Matcher], failure: &Failure, class: Class) -> Option<(usize, Fit)> {
    let mut best: Option<(usize, Fit)> = None;
    for (i, matcher) in list.iter().enumerate() {
        if let Some(fit) = matcher.fit(failure, class)
            && best.is_none_or(|(_, so_far)| fit > so_far)
        {
            best = Some((i, fit));
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(status: u16) -> Failure {
        Failure { status: Some(status), ..Failure::default() }
    }

    #[test]
    fn the_built_in_class_map_follows_d_11() {
        let check = |failure: Failure, class: Class| {
            assert_eq!(failure.classify(Class::Retryable).0, class, "{failure:?}");
        };
        for code in [408, 425, 429, 500, 502, 503, 504, 599] {
            check(status(code), Class::Retryable);
        }
        for code in [400, 401, 403, 404, 409, 410, 422, 451] {
            check(status(code), Class::Final);
        }
        let after = Some(RetryAfter::Span(Millis(1_000)));
        check(Failure { retry_after: after, ..status(429) }, Class::RateLimited);
        check(Failure { retry_after: after, ..status(503) }, Class::RateLimited);
        check(Failure { retry_after: after, ..status(500) }, Class::Retryable);
        check(Failure { class: Some(Class::Final), ..status(503) }, Class::Final);
        check(Failure::new(Trigger::Timeout, "30 s without a sign"), Class::Retryable);
        assert_eq!(Failure::new(Trigger::Error, "?").classify(Class::Final), (Class::Final, false));
        assert_eq!(Failure::new(Trigger::Timeout, "?").classify(Class::Final), (Class::Retryable, false));
    }

    #[test]
    fn matchers_are_read_from_their_words() {
        let check = |text: &str, matcher: Matcher| assert_eq!(Matcher::parse(text), Ok(matcher), "{text}");
        check("5xx", Matcher::StatusClass(5));
        check("4XX", Matcher::StatusClass(4));
        check("429", Matcher::Status(429));
        check("timeout", Matcher::Trigger(Trigger::Timeout));
        check("webhook_failure", Matcher::Trigger(Trigger::StartFailed));
        check("Explicit", Matcher::Trigger(Trigger::Explicit));
        check("rate_limited", Matcher::Class(Class::RateLimited));
        check("java.net.SocketTimeoutException", Matcher::Name("java.net.SocketTimeoutException".into()));
        for bad in ["", " ", "9xx", "0xx", "999", "042"] {
            assert!(Matcher::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_closest_matcher_wins() {
        let list: Vec<Matcher> =
            ["retryable", "5xx", "503", "IoError"].iter().flat_map(|text| Matcher::parse(text)).collect();
        assert_eq!(closest(&list, &status(503), Class::Retryable), Some((2, Fit::Exact)));
        assert_eq!(closest(&list, &status(502), Class::Retryable), Some((1, Fit::StatusClass)));
        let named = Failure { error_type: Some("IoError".into()), ..Failure::default() };
        assert_eq!(closest(&list, &named, Class::Retryable), Some((3, Fit::Name)));
        assert_eq!(closest(&list, &status(404), Class::Final), None);
    }

    #[test]
    fn retry_after_is_read_in_both_forms() {
        assert_eq!(RetryAfter::parse("120"), Some(RetryAfter::Span(Millis(120_000))));
        assert_eq!(RetryAfter::parse(" 0.5 "), Some(RetryAfter::Span(Millis(500))));
        let date = RetryAfter::parse("Wed, 21 Oct 2015 07:28:00 GMT").expect("a date");
        assert_eq!(date.from_now(Timestamp(1_445_412_470_000)), Millis(10_000));
        assert_eq!(date.from_now(Timestamp(1_545_412_470_000)), Millis::ZERO);
        for bad in ["", "-1", "soon", "NaN", "1e400"] {
            assert_eq!(RetryAfter::parse(bad), None, "{bad}");
        }
    }
}
