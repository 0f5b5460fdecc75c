//! Leases, heartbeats and reports: the shapes that workers speak.

use std::collections::BTreeMap;

use comeback_core::{Class, Failure, Invalid, Millis, RetryAfter, Timestamp, Trigger};
use comeback_engine::{Changed, Json, Leased, ReportEnd};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::{Object, Raw, Span, TextOr};
use crate::openapi::stands_for;
use crate::token::Tokens;

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = LeaseRequest)]
pub struct LeaseIn {
    /// Who asks; for people.
    #[schema(value_type = stands_for::Name)]
    pub worker: String,
    /// `["default"]` where nothing is said.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Vec<stands_for::Name>, min_items = 1, max_items = 100, required = false)]
    pub queues: Option<Vec<String>>,
    /// None means any.
    #[serde(default)]
    #[schema(value_type = Vec<stands_for::Name>, max_items = 1000)]
    pub kinds: Vec<String>,
    /// 10 where nothing is said.
    #[serde(default = "default_limit")]
    #[schema(minimum = 1, maximum = 5000)]
    pub limit: u32,
    /// How long the lease is good without a heartbeat: 60 s where nothing is said, an hour at most.
    #[serde(default)]
    pub lease: Option<Span>,
    /// How long to wait when there is nothing: 60 s at most.
    #[serde(default)]
    pub wait: Option<Span>,
}

/// What is there, which is never nothing.
fn given<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Vec<String>>, D::Error> {
    Vec::deserialize(from).map(Some)
}

fn default_limit() -> u32 {
    10
}

pub const DEFAULT_LEASE: Millis = Millis::from_secs(60);
pub const LONGEST_WAIT: Millis = Millis::from_secs(60);

#[derive(Serialize)]
pub struct LeasesOut<'a> {
    pub leases: Vec<LeaseOut<'a>>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub draining: bool,
}

#[derive(Serialize)]
pub struct LeaseOut<'a> {
    lease: String,
    expires_at: Option<String>,
    task: LeasedTask<'a>,
}

#[derive(Serialize)]
struct LeasedTask<'a> {
    id: String,
    key: Option<&'a str>,
    name: Option<&'a str>,
    kind: &'a str,
    queue: &'a str,
    payload: Option<&'a RawValue>,
    labels: &'a BTreeMap<String, String>,
    attempt: u32,
    attempt_number: u32,
    run: u32,
    is_retry: bool,
    traceparent: Option<&'a str>,
}

impl<'a> LeaseOut<'a> {
    pub fn of(leased: &'a Leased, tokens: &Tokens, namespace: &str) -> LeaseOut<'a> {
        LeaseOut {
            lease: tokens.seal(leased.lease, namespace),
            expires_at: leased.expires_at.map(Timestamp::to_rfc3339),
            task: LeasedTask {
                id: leased.lease.task.to_string(),
                key: leased.key.as_deref(),
                name: leased.name.as_deref(),
                kind: &leased.kind,
                queue: &leased.queue,
                payload: leased.payload.as_deref().and_then(|text| serde_json::from_str(text).ok()),
                labels: &leased.labels,
                attempt: leased.attempt,
                attempt_number: leased.attempt_number,
                run: leased.run,
                is_retry: leased.is_retry,
                traceparent: leased.traceparent.as_deref(),
            },
        }
    }
}

#[derive(Serialize)]
pub struct ReportsOut<'a> {
    pub reports: Vec<ReportOut<'a>>,
}

/// What came of a report.
#[derive(Serialize)]
#[serde(untagged)]
pub enum ReportOut<'a> {
    Heard {
        lease: &'a str,
        task_id: String,
        state: &'static str,
        attempt: u32,
        next_retry_at: Option<String>,
        reason: Option<&'static str>,
    },
    Refused {
        lease: &'a str,
        problem: Value,
    },
}

impl<'a> ReportOut<'a> {
    pub fn of(lease: &'a str, reported: &Changed) -> ReportOut<'a> {
        ReportOut::Heard {
            lease,
            task_id: reported.task.to_string(),
            state: reported.state.word(),
            attempt: reported.attempt,
            next_retry_at: reported.next_retry_at.map(Timestamp::to_rfc3339),
            reason: reported.reason.map(comeback_core::Reason::word),
        }
    }
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = HeartbeatRequest)]
pub struct HeartbeatIn {
    #[schema(max_items = 5000)]
    pub leases: Vec<String>,
    /// The leases then end this long from now: 60 s where nothing is said, an hour at most.
    #[serde(default)]
    pub extend: Option<Span>,
    /// Shown with the tasks as it is.
    #[serde(default)]
    #[schema(value_type = stands_for::Json, required = false)]
    pub progress: Option<Value>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ReportRequest)]
pub struct ReportsIn {
    #[schema(value_type = Vec<ReportIn>, max_items = 10_000)]
    pub reports: Vec<Object<ReportIn>>,
}

/// How one run ended.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Report)]
pub struct ReportIn {
    pub lease: String,
    #[schema(value_type = stands_for::Outcome)]
    outcome: String,
    /// What a run that succeeded has made: 256 KiB at most.
    #[serde(default)]
    #[schema(value_type = stands_for::Json, required = false)]
    result: Option<Raw>,
    #[serde(default)]
    error: Option<ErrorIn>,
    /// How long a run is snoozed.
    #[serde(default)]
    delay: Option<Span>,
}

/// An error as a worker has it: an object, or only its message.
pub type ErrorIn = TextOr<WholeError>;

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ErrorFields)]
pub struct WholeError {
    #[serde(default)]
    #[schema(value_type = Option<stands_for::Class>)]
    class: Option<String>,
    #[serde(default, rename = "type")]
    error_type: Option<String>,
    #[serde(default)]
    code: Option<CodeIn>,
    #[serde(default)]
    #[schema(minimum = 100, maximum = 599)]
    status: Option<u16>,
    #[serde(default)]
    message: String,
    #[serde(default)]
    stack: Option<String>,
    #[serde(default)]
    #[schema(value_type = Option<stands_for::RetryAfter>)]
    retry_after: Option<Value>,
    /// What the run returned beside the error, for expressions to look at.
    #[serde(default)]
    #[schema(value_type = stands_for::Json, required = false)]
    result: Option<Value>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "a text or a whole number")]
#[schema(as = ErrorCode)]
enum CodeIn {
    Text(String),
    Number(i64),
}

impl ErrorIn {
    /// A failure of which nothing is known.
    pub fn unsaid() -> ErrorIn {
        TextOr::Text(String::new())
    }

    pub fn failure(self, faults: &mut Invalid) -> Failure {
        match self {
            TextOr::Text(message) => Failure::new(Trigger::Error, message),
            TextOr::Whole(whole) => whole.failure("error", faults),
        }
    }

    /// As a worker reports it: a header that it hands on and that nobody can read loses no run.
    pub fn reported(mut self, faults: &mut Invalid) -> Failure {
        let unread = match &mut self {
            TextOr::Whole(whole) => whole.take_unread(),
            TextOr::Text(_) => None,
        };
        Failure { retry_after_ignored: unread, ..self.failure(faults) }
    }
}

/// Of what could not be read, so many characters are told.
const MOST_TOLD: usize = 100;

impl WholeError {
    /// What stands for a time and is none. What is neither a text nor a number is a fault like any other.
    fn take_unread(&mut self) -> Option<String> {
        let is_unread = |value: &Value| (value.is_string() || value.is_number()) && read_retry_after(value).is_none();
        let unread = self.retry_after.take_if(|value| is_unread(value))?;
        Some(words_of(&unread).chars().filter(|it| !it.is_control()).take(MOST_TOLD).collect())
    }

    pub fn failure(self, at: &str, faults: &mut Invalid) -> Failure {
        let whole = self;
        let class = whole.class.as_deref().and_then(|word| {
            let class = Class::from_word(word);
            if class.is_none() {
                faults.push(format!("{at}.class"), "must be one of final, retryable, rate_limited");
            }
            class
        });
        let retry_after = whole.retry_after.and_then(|value| {
            let read = read_retry_after(&value);
            if read.is_none() {
                faults.push(format!("{at}.retry_after"), "must be seconds, a span or an HTTP date");
            }
            read
        });
        if whole.status.is_some_and(|status| !(100..=599).contains(&status)) {
            faults.push(format!("{at}.status"), "must be between 100 and 599");
        }
        Failure {
            trigger: Trigger::Error,
            class,
            error_type: whole.error_type,
            code: whole.code.map(|code| match code {
                CodeIn::Text(text) => text,
                CodeIn::Number(number) => number.to_string(),
            }),
            status: whole.status,
            message: whole.message,
            stack: whole.stack,
            retry_after,
            retry_after_ignored: None,
            result: whole.result,
        }
    }
}

fn words_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn read_retry_after(value: &Value) -> Option<RetryAfter> {
    let text = words_of(value);
    RetryAfter::parse(&text).or_else(|| Millis::parse(&text).ok().map(RetryAfter::Span))
}

impl ReportIn {
    pub fn end(self) -> Result<ReportEnd, Invalid> {
        let mut faults = Invalid::default();
        let end = match self.outcome.as_str() {
            "succeeded" => ReportEnd::Succeeded { result: self.result.map(|raw| Json::from(raw.0)) },
            "failed" => {
                let error = self.error.unwrap_or_else(ErrorIn::unsaid);
                ReportEnd::Failed(error.reported(&mut faults))
            }
            "snoozed" => match self.delay {
                Some(Span(delay)) => ReportEnd::Snoozed { delay },
                None => return Err(Invalid::one("delay", "a snooze needs a delay")),
            },
            "released" => ReportEnd::Released,
            _ => return Err(Invalid::one("outcome", "must be one of succeeded, failed, snoozed, released")),
        };
        faults.or(end)
    }
}
