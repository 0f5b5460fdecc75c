//! Leases, heartbeats and reports on the wire.

use std::collections::BTreeMap;

use comeback_core::{Class, Failure, Invalid, Millis, RetryAfter, Timestamp, Trigger};
use comeback_engine::{Changed, Json, Leased, ReportEnd};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::{DurationIn, Object, Raw, TextOr};
use crate::openapi::schema_types;
use crate::token::Tokens;

/// A lease request.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = LeaseRequest)]
pub struct LeaseIn {
    /// Name of the worker.
    #[schema(value_type = schema_types::NameSchema)]
    pub worker: String,
    /// Queues; default: `["default"]`.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Vec<schema_types::NameSchema>, min_items = 1, max_items = 100, required = false)]
    pub queues: Option<Vec<String>>,
    /// Kinds; default: any.
    #[serde(default)]
    #[schema(value_type = Vec<schema_types::NameSchema>, max_items = 1000)]
    pub kinds: Vec<String>,
    /// Maximum number of tasks; default: 10.
    #[serde(default = "default_limit")]
    #[schema(minimum = 1, maximum = 5000)]
    pub limit: u32,
    /// Duration of the lease without a heartbeat: at most an hour; default: 60 s.
    #[serde(default)]
    pub lease: Option<DurationIn>,
    /// How long to wait for tasks: at most 60 s.
    #[serde(default)]
    pub wait: Option<DurationIn>,
}

/// A list that must not be null.
fn given<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Vec<String>>, D::Error> {
    Vec::deserialize(from).map(Some)
}

fn default_limit() -> u32 {
    10
}

/// Default duration of a lease.
pub const DEFAULT_LEASE: Millis = Millis::from_secs(60);
/// Maximum wait of a lease request.
pub const LONGEST_WAIT: Millis = Millis::from_secs(60);

/// Response of a lease request.
#[derive(Serialize)]
pub struct LeasesOut<'a> {
    pub leases: Vec<LeaseOut<'a>>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub draining: bool,
}

/// A granted lease.
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
    /// A granted lease with its token.
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

/// Response of a report request.
#[derive(Serialize)]
pub struct ReportsOut<'a> {
    pub reports: Vec<ReportOut<'a>>,
}

/// Result of a report.
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

/// A heartbeat request.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = HeartbeatRequest)]
pub struct HeartbeatIn {
    #[schema(max_items = 5000)]
    pub leases: Vec<String>,
    /// New duration of the leases, from now: at most an hour; default: 60 s.
    #[serde(default)]
    pub extend: Option<DurationIn>,
    /// Progress, shown with the tasks.
    #[serde(default)]
    #[schema(value_type = schema_types::JsonSchema, required = false)]
    pub progress: Option<Value>,
}

/// A batch of reports.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ReportRequest)]
pub struct ReportsIn {
    #[schema(value_type = Vec<ReportIn>, max_items = 10_000)]
    pub reports: Vec<Object<ReportIn>>,
}

/// Report of one run.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Report)]
pub struct ReportIn {
    pub lease: String,
    #[schema(value_type = schema_types::OutcomeSchema)]
    outcome: String,
    /// Result of a successful run: at most 256 KiB.
    #[serde(default)]
    #[schema(value_type = schema_types::JsonSchema, required = false)]
    result: Option<Raw>,
    #[serde(default)]
    error: Option<ErrorIn>,
    /// Delay of a snoozed run.
    #[serde(default)]
    delay: Option<DurationIn>,
}

/// An error: an object, or only its message.
pub type ErrorIn = TextOr<WholeError>;

/// An error with details.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ErrorFields)]
pub struct WholeError {
    #[serde(default)]
    #[schema(value_type = Option<schema_types::ClassSchema>)]
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
    #[schema(value_type = Option<schema_types::RetryAfterSchema>)]
    retry_after: Option<Value>,
    /// Result returned with the error, for expressions.
    #[serde(default)]
    #[schema(value_type = schema_types::JsonSchema, required = false)]
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
    /// An error without details.
    pub fn unsaid() -> ErrorIn {
        TextOr::Text(String::new())
    }

    /// Converts to a failure.
    pub fn failure(self, faults: &mut Invalid) -> Failure {
        match self {
            TextOr::Text(message) => Failure::new(Trigger::Error, message),
            TextOr::Whole(whole) => whole.failure("error", faults),
        }
    }

    /// Converts a worker's error. An unreadable `retry_after` is noted, not refused, so that no report is lost.
    pub fn reported(mut self, faults: &mut Invalid) -> Failure {
        let unread = match &mut self {
            TextOr::Whole(whole) => whole.take_unread(),
            TextOr::Text(_) => None,
        };
        Failure { retry_after_ignored: unread, ..self.failure(faults) }
    }
}

/// Maximum number of characters quoted of an unreadable value.
const MOST_TOLD: usize = 100;

impl WholeError {
    /// A `retry_after` that cannot be parsed: a string or number that is not a time.
    fn take_unread(&mut self) -> Option<String> {
        let is_unread = |value: &Value| (value.is_string() || value.is_number()) && read_retry_after(value).is_none();
        let unread = self.retry_after.take_if(|value| is_unread(value))?;
        Some(words_of(&unread).chars().filter(|it| !it.is_control()).take(MOST_TOLD).collect())
    }

    /// Converts to a failure; faults are reported under `at`.
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
    /// The end of the run that is reported.
    pub fn end(self) -> Result<ReportEnd, Invalid> {
        let mut faults = Invalid::default();
        let end = match self.outcome.as_str() {
            "succeeded" => ReportEnd::Succeeded { result: self.result.map(|raw| Json::from(raw.0)) },
            "failed" => {
                let error = self.error.unwrap_or_else(ErrorIn::unsaid);
                ReportEnd::Failed(error.reported(&mut faults))
            }
            "snoozed" => match self.delay {
                Some(DurationIn(delay)) => ReportEnd::Snoozed { delay },
                None => return Err(Invalid::one("delay", "a snooze needs a delay")),
            },
            "released" => ReportEnd::Released,
            _ => return Err(Invalid::one("outcome", "must be one of succeeded, failed, snoozed, released")),
        };
        faults.or(end)
    }
}
