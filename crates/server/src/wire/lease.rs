//! Leases, heartbeats and reports: the shapes that workers speak.

use std::collections::BTreeMap;

use comeback_core::{Class, Failure, Invalid, Millis, RetryAfter, Timestamp, Trigger};
use comeback_engine::{Json, Leased, ReportEnd};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::Span;
use crate::token::Tokens;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeaseIn {
    pub worker: String,
    #[serde(default = "default_queues")]
    pub queues: Vec<String>,
    #[serde(default)]
    pub kinds: Vec<String>,
    #[serde(default = "default_limit")]
    pub limit: u32,
    #[serde(default)]
    pub lease: Option<Span>,
    #[serde(default)]
    pub wait: Option<Span>,
}

fn default_queues() -> Vec<String> {
    vec!["default".into()]
}

fn default_limit() -> u32 {
    1
}

pub const DEFAULT_LEASE: Millis = Millis::from_secs(60);
pub const LONGEST_WAIT: Millis = Millis::from_secs(60);

#[derive(Serialize)]
pub struct LeasesOut<'a> {
    pub leases: Vec<LeaseOut<'a>>,
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

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeartbeatIn {
    pub leases: Vec<String>,
    #[serde(default)]
    pub extend: Option<Span>,
    #[serde(default)]
    pub progress: Option<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReportsIn {
    pub reports: Vec<ReportIn>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReportIn {
    pub lease: String,
    outcome: String,
    #[serde(default)]
    result: Option<Box<RawValue>>,
    #[serde(default)]
    error: Option<ErrorIn>,
    #[serde(default)]
    delay: Option<Span>,
}

/// An error as a worker has it: an object, or only its message.
#[derive(Deserialize)]
#[serde(untagged)]
pub enum ErrorIn {
    Message(String),
    Whole(Box<WholeError>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WholeError {
    #[serde(default)]
    class: Option<String>,
    #[serde(default, rename = "type")]
    error_type: Option<String>,
    #[serde(default)]
    code: Option<CodeIn>,
    #[serde(default)]
    status: Option<u16>,
    #[serde(default)]
    message: String,
    #[serde(default)]
    stack: Option<String>,
    #[serde(default)]
    retry_after: Option<Value>,
    #[serde(default)]
    result: Option<Value>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum CodeIn {
    Text(String),
    Number(i64),
}

impl ErrorIn {
    pub fn failure(self, faults: &mut Invalid) -> Failure {
        match self {
            ErrorIn::Message(message) => Failure::new(Trigger::Error, message),
            ErrorIn::Whole(whole) => whole.failure("error", faults),
        }
    }
}

impl WholeError {
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
            let text = match &value {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            let span = || Millis::parse(&text).ok().map(RetryAfter::Span);
            let read = RetryAfter::parse(&text).or_else(span);
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
            result: whole.result,
        }
    }
}

impl ReportIn {
    pub fn end(self) -> Result<ReportEnd, Invalid> {
        let mut faults = Invalid::default();
        let end = match self.outcome.as_str() {
            "succeeded" => ReportEnd::Succeeded { result: self.result.map(Json::from) },
            "failed" => {
                let error = self.error.unwrap_or(ErrorIn::Message(String::new()));
                ReportEnd::Failed(error.failure(&mut faults))
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
