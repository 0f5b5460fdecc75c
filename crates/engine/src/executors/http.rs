//! HTTP: the server makes the call itself. A status, a Retry-After and a broken connection become a proper failure.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use comeback_core::{Class, Failure, Invalid, Millis, RetryAfter, Trigger, mask, payload};
use comeback_store::StoreError;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::{Client, Method, Url};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;

use super::guard::{EgressPolicy, PolicyResolver};
use crate::secrets::{SENT_BACK, SecretText, Values, scrubbed, scrubbed_failure};
use crate::{Core, Json, Leased, ReportEnd};

/// A call as a task describes it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpCall {
    #[serde(rename = "type")]
    _type: String,
    #[serde(default = "get")]
    method: String,
    url: String,
    #[serde(default)]
    headers: BTreeMap<String, SecretText>,
    #[serde(default)]
    body: Option<Value>,
    #[serde(default)]
    expect: Option<Expect>,
}

/// Which statuses are a success: `"2xx"`, `"204"`, or a list of them.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum Expect {
    One(String),
    Many(Vec<String>),
}

fn get() -> String {
    "GET".into()
}

/// Headers of the connection and of the call itself: callers cannot set them.
const CONNECTION: [&str; 12] = [
    "host",
    "content-length",
    "transfer-encoding",
    "connection",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "upgrade",
    "expect",
    "comeback-task",
    "comeback-attempt",
];
/// Headers of this name are ours.
const OURS: &str = "comeback-";

/// Whether callers may not set a header of this name.
fn is_reserved(name: &str) -> bool {
    CONNECTION.iter().any(|it| name.eq_ignore_ascii_case(it))
}

const METHODS: [&str; 6] = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"];

impl HttpCall {
    /// Checks a call that a caller asks for, including reserved headers.
    pub fn checked(settings: &str) -> Result<HttpCall, Invalid> {
        let call = HttpCall::read(settings)?;
        let mut faults = Invalid::default();
        for name in call.headers.keys().filter(|name| name.to_ascii_lowercase().starts_with(OURS)) {
            faults.push(format!("headers.{name}"), "is set by the server itself");
        }
        if mask::url_has_mask(&call.url) {
            faults.push("url", SENT_BACK);
        }
        faults.or(call)
    }

    /// Everything that can be known to be wrong before the call is made.
    pub fn read(settings: &str) -> Result<HttpCall, Invalid> {
        let call: HttpCall = serde_json::from_str(settings).map_err(|error| {
            let message = error.to_string();
            Invalid::one("", message.split(" at line ").next().unwrap_or_default())
        })?;
        let mut faults = Invalid::default();
        if !METHODS.contains(&call.method.to_ascii_uppercase().as_str()) {
            faults.push("method", format!("must be one of {}", METHODS.join(", ")));
        }
        match Url::parse(&call.url) {
            Err(error) => faults.push("url", error),
            Ok(url) if !matches!(url.scheme(), "http" | "https") => {
                faults.push("url", "must begin with http:// or https://")
            }
            Ok(url) if !url.username().is_empty() || url.password().is_some() => {
                faults.push("url", "may not hold a password; send a header");
            }
            Ok(_) => {}
        }
        for (name, value) in &call.headers {
            let is_header = match value {
                SecretText::Plain(text) => HeaderValue::from_str(text).is_ok(),
                SecretText::Named(_) => true,
            };
            if HeaderName::from_bytes(name.as_bytes()).is_err() || !is_header {
                faults.push(format!("headers.{name}"), "is no header");
            } else if is_reserved(name) {
                faults.push(format!("headers.{name}"), "is set by the server itself and cannot be given");
            } else if let Some(fault) = value.fault(name) {
                faults.push(format!("headers.{name}"), fault);
            }
        }
        for pattern in call.expected() {
            if parse_pattern(pattern).is_none() {
                faults.push("expect", format!("`{pattern}` is no status; write 2xx or 204"));
            }
        }
        faults.or(call)
    }

    fn expected(&self) -> Vec<&str> {
        match &self.expect {
            None => vec!["2xx"],
            Some(Expect::One(pattern)) => pattern.split(',').map(str::trim).collect(),
            Some(Expect::Many(patterns)) => patterns.iter().map(String::as_str).collect(),
        }
    }

    fn is_expected(&self, status: u16) -> bool {
        self.expected()
            .iter()
            .filter_map(|pattern| parse_pattern(pattern))
            .any(|(from, to)| (from..=to).contains(&status))
    }
}

fn parse_pattern(pattern: &str) -> Option<(u16, u16)> {
    if let Some(digit) = pattern.strip_suffix("xx") {
        let hundred = digit.parse::<u16>().ok().filter(|digit| (1..=5).contains(digit))? * 100;
        return Some((hundred, hundred + 99));
    }
    pattern.parse().ok().filter(|status| (100..=599).contains(status)).map(|status| (status, status))
}

/// Bytes of an answer that are kept.
const MOST_KEPT: usize = 64 * 1024;
/// A call that has no limit of its own ends after this.
const LONGEST_CALL: Duration = Duration::from_secs(300);
/// One that has ends by its own limit in the engine's time, and after `Limits::longest_call` at the latest.
const UNTIL_ITS_LIMIT: Duration = Duration::from_secs(30 * 86_400);

/// The failure of a call that was cut at the limit of this server.
pub fn took_too_long(longest: Millis) -> Failure {
    let message = format!(
        "the call took longer than {longest}, the most that this server waits for one (--limit longest_call); \
         longer work belongs into a hook, which calls back when it is done"
    );
    Failure { error_type: Some("timeout".into()), ..Failure::new(Trigger::Timeout, message) }
}

/// Client for the HTTP calls of tasks.
#[derive(Clone)]
pub struct Calls {
    client: Client,
    reach: Arc<EgressPolicy>,
}

impl Calls {
    /// A client with this egress policy.
    pub fn new(reach: EgressPolicy) -> Result<Calls, String> {
        let reach = Arc::new(reach);
        // Another part of the process may have chosen one already; then that one is used.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = Client::builder()
            .user_agent(concat!("comeback/", env!("CARGO_PKG_VERSION")))
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .connect_timeout(Duration::from_secs(10))
            .timeout(LONGEST_CALL)
            .dns_resolver(Arc::new(PolicyResolver(reach.clone())))
            .build()
            .map_err(|error| error.to_string())?;
        Ok(Calls { client, reach })
    }

    /// One call. What comes of it holds none of the secrets that were sent.
    pub(crate) async fn run(&self, core: &Core, task: &Leased) -> ReportEnd {
        comeback_store::panic_point!("executor-http");
        let (end, sent) = self.run_open(core, task).await;
        scrubbed(end, &sent.hidden)
    }

    /// One call, its answer as it came, and what must not be kept of it. A failure is clean already.
    pub(crate) async fn run_open(&self, core: &Core, task: &Leased) -> (ReportEnd, Sent) {
        let settings = task.executor.as_deref().unwrap_or("{}");
        let call = match HttpCall::read(settings) {
            Ok(call) => call,
            Err(invalid) => return (ReportEnd::Failed(finally("settings", invalid.to_string())), Sent::default()),
        };
        let named = call.headers.values().filter_map(SecretText::name);
        let values = match core.secret_values(&task.namespace, named).await {
            Ok(values) => values,
            Err(failure) => return (ReportEnd::Failed(*failure), Sent::default()),
        };
        let hidden = values.to_hide(&call.headers);
        let key = match core.idempotency_key(task).await {
            Ok(key) => key,
            Err(error) => {
                let failure = Failure::new(Trigger::Error, error.to_string());
                let failure = Failure { class: Some(Class::Retryable), ..failure };
                return (ReportEnd::Failed(failure), Sent::default());
            }
        };
        let end = match self.run_call(&call, &values, &hidden, &key, task).await {
            ReportEnd::Failed(failure) => ReportEnd::Failed(scrubbed_failure(failure, &hidden)),
            end => end,
        };
        let named = call.headers.values().filter(|value| value.name().is_some());
        let named = named.filter_map(|value| Some((values.text(value)?, json!(value)))).collect();
        (end, Sent { hidden, named })
    }

    async fn run_call(
        &self,
        call: &HttpCall,
        values: &Values,
        hidden: &[String],
        key: &str,
        task: &Leased,
    ) -> ReportEnd {
        let failed = |failure| ReportEnd::Failed(failure);
        let url = match Url::parse(&call.url) {
            Ok(url) => url,
            Err(error) => return failed(finally("settings", error.to_string())),
        };
        // A literal address is never looked up, so the resolver does not see it.
        let literal = url.host_str().and_then(|host| host.trim_matches(['[', ']']).parse::<IpAddr>().ok());
        if literal.is_some_and(|address| !self.reach.allows(address)) {
            let why =
                format!("{} may not be called from here; see --allow-private-networks", url.host_str().unwrap_or(""));
            return failed(finally("blocked", why));
        }
        match self.call(call, values, hidden, (url, key), task).await {
            Ok(result) => ReportEnd::Succeeded { result: Some(Json::from(result)) },
            Err(failure) => failed(*failure),
        }
    }

    async fn call(
        &self,
        call: &HttpCall,
        values: &Values,
        hidden: &[String],
        (url, key): (Url, &str),
        task: &Leased,
    ) -> Result<Value, Box<Failure>> {
        let method = Method::from_bytes(call.method.to_ascii_uppercase().as_bytes()).unwrap_or(Method::GET);
        let mut headers = HeaderMap::new();
        let known = |name: &'static str, value: String, headers: &mut HeaderMap| {
            if let Ok(value) = HeaderValue::from_str(&value) {
                headers.insert(HeaderName::from_static(name), value);
            }
        };
        known("comeback-task", task.lease.task.to_string(), &mut headers);
        known("comeback-attempt", task.attempt_number.to_string(), &mut headers);
        // The same for every try of a cycle, so that the other side can tell a repetition.
        known("idempotency-key", key.to_owned(), &mut headers);
        if let Some(parent) = &task.traceparent {
            known("traceparent", parent.clone(), &mut headers);
        }
        for (name, value) in &call.headers {
            let text = values.text(value).unwrap_or_default();
            let Ok(mut sent) = HeaderValue::from_str(&text) else {
                let secret = value.name().unwrap_or_default();
                let message =
                    format!("the secret `{secret}` cannot be sent in a header: it holds more than visible ASCII");
                return Err(Box::new(finally("secret", message)));
            };
            sent.set_sensitive(value.name().is_some() || mask::is_secret_name(name));
            if let Ok(name) = HeaderName::from_bytes(name.as_bytes()) {
                headers.insert(name, sent);
            }
        }
        let mut request = self.client.request(method, url);
        match (&call.body, &task.payload) {
            (Some(Value::String(text)), _) => request = request.body(text.clone()),
            (Some(body), _) => request = request.json(body),
            (None, Some(payload)) if !matches!(call.method.as_str(), "GET" | "HEAD" | "get" | "head") => {
                request = request.header("content-type", "application/json").body(payload.to_string());
            }
            _ => {}
        }
        if task.timeout.is_some() || task.ends_by.is_some() {
            // It ends by its own limit, in the engine's time.
            request = request.timeout(UNTIL_ITS_LIMIT);
        }
        // What was asked belongs to what went wrong.
        let asked = |mut failure: Failure, answer: Value| {
            let mut told = json!({"method": call.method.to_ascii_uppercase(), "url": call.url});
            if let (Value::Object(told), Value::Object(answer)) = (&mut told, answer) {
                told.extend(answer);
            }
            failure.result = Some(told);
            Box::new(failure)
        };
        let response = request.headers(headers).send().await.map_err(|error| asked(broken(&error), Value::Null))?;
        let status = response.status().as_u16();
        let retry_after =
            response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()).and_then(RetryAfter::parse);
        let (mut body, cut_short) = read_some(response).await;
        if body.len() >= MOST_KEPT {
            cut_beginnings(&mut body, hidden);
        }
        // A status that is no success says more than the end of its body.
        if let Some(error) = cut_short.filter(|_| call.is_expected(status)) {
            return Err(asked(broken(&error), json!({"status": status})));
        }
        let shown = serde_json::from_str::<Value>(&body).unwrap_or(Value::String(body));
        if call.is_expected(status) {
            return Ok(json!({"status": status, "body": shown}));
        }
        let failure = Failure {
            status: Some(status),
            retry_after,
            error_type: Some("http".into()),
            ..Failure::new(Trigger::Error, format!("the call was answered with {status}"))
        };
        Err(asked(failure, json!({"status": status, "body": shown})))
    }
}

impl Core {
    /// A payload is edited with a retry by hand only, which begins a cycle.
    async fn idempotency_key(&self, task: &Leased) -> Result<String, StoreError> {
        let id = task.lease.task;
        let old = if task.cycle > 0 { self.store.old_payloads(id).await? } else { Vec::new() };
        Ok(payload::idempotency_key(id, task.cycle, payload::version_of_run(&old, task.run)))
    }
}

/// As much of the answer as is kept, and why there is no more of it when it broke off before that.
async fn read_some(mut response: reqwest::Response) -> (String, Option<reqwest::Error>) {
    let mut body = Vec::new();
    let mut cut_short = None;
    loop {
        let piece = match response.chunk().await {
            Ok(Some(piece)) => piece,
            Ok(None) => break,
            Err(error) => {
                cut_short = Some(error);
                break;
            }
        };
        let room = MOST_KEPT - body.len();
        body.extend_from_slice(&piece[..piece.len().min(room)]);
        if body.len() >= MOST_KEPT {
            break;
        }
    }
    (String::from_utf8_lossy(&body).into_owned(), cut_short)
}

/// Secrets that a call was made with.
#[derive(Default)]
pub(crate) struct Sent {
    /// Secrets that must not be kept of its answer.
    hidden: Vec<String>,
    /// The headers with named secrets: the text that was sent, and the reference it stood for.
    named: Vec<(String, Value)>,
}

impl Sent {
    /// Puts references in place of the named secrets that an answer repeats as a whole, and masks the rest of them.
    pub fn name_secrets(&self, answer: &mut Value) {
        if self.named.is_empty() {
            return;
        }
        match answer {
            Value::String(text) => {
                if let Some((_, reference)) = self.named.iter().find(|(sent, _)| sent == text) {
                    *answer = reference.clone();
                } else {
                    mask::scrub(answer, &self.hidden);
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.name_secrets(item)),
            Value::Object(fields) => fields.values_mut().for_each(|value| self.name_secrets(value)),
            _ => {}
        }
    }
}

/// Where an answer is cut off within a secret, its beginning is not kept either.
fn cut_beginnings(body: &mut String, hidden: &[String]) {
    for value in hidden {
        let ends = value.char_indices().map(|(at, _)| at).filter(|at| *at > 0).rev();
        if let Some(end) = ends.into_iter().find(|end| body.ends_with(&value[..*end])) {
            body.truncate(body.len() - end);
        }
    }
}

fn finally(error_type: &str, message: String) -> Failure {
    Failure { class: Some(Class::Final), error_type: Some(error_type.into()), ..Failure::new(Trigger::Error, message) }
}

fn broken(error: &reqwest::Error) -> Failure {
    let mut why: &dyn std::error::Error = error;
    while let Some(deeper) = why.source() {
        why = deeper;
    }
    let message = why.to_string();
    if error.is_timeout() {
        return Failure { error_type: Some("timeout".into()), ..Failure::new(Trigger::Timeout, message) };
    }
    if message.contains("no address that may be called") {
        return finally("blocked", message);
    }
    let error_type = if error.is_connect() { "connect" } else { "network" };
    Failure { error_type: Some(error_type.into()), ..Failure::new(Trigger::Error, message) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_checked_before_it_is_made() {
        let fault = |text: &str| HttpCall::read(text).expect_err(text).to_string();
        assert!(HttpCall::read(r#"{"type": "http", "url": "https://example.test/x"}"#).is_ok());
        assert!(fault(r#"{"type": "http"}"#).contains("url"));
        assert!(fault(r#"{"type": "http", "url": "ftp://x"}"#).contains("http://"));
        assert!(fault(r#"{"type": "http", "url": "http://u:p@x"}"#).contains("password"));
        assert!(fault(r#"{"type": "http", "url": "http://x", "method": "BREW"}"#).contains("method"));
        assert!(fault(r#"{"type": "http", "url": "http://x", "expect": "ok"}"#).contains("expect"));
        assert!(fault(r#"{"type": "http", "url": "http://x", "colour": 1}"#).contains("colour"));
        assert!(fault(r#"{"type": "http", "url": "http://x", "headers": {"a b": "c"}}"#).contains("headers"));
        for name in ["Host", "content-length", "Transfer-Encoding", "connection", "te", "upgrade", "comeback-task"] {
            let headers = format!(r#"{{"type": "http", "url": "http://x", "headers": {{"{name}": "c"}}}}"#);
            assert!(fault(&headers).contains(&format!("headers.{name}")), "{name}");
        }
        let asked = |headers: &str| {
            let text = format!(r#"{{"type": "http", "url": "http://x/?token=1", "headers": {headers}}}"#);
            HttpCall::checked(&text).err().map(|error| error.to_string()).unwrap_or_default()
        };
        assert!(asked(r#"{"Comeback-Handle": "x"}"#).starts_with("headers.Comeback-Handle"));
        assert!(asked(r#"{"authorization": "***"}"#).starts_with("headers.authorization"));
        assert!(asked(r#"{"authorization": {"secret": "a b"}}"#).starts_with("headers.authorization"));
        assert!(asked(r#"{"authorization": {"secret": "a", "colour": 1}}"#).contains("colour"));
        let broken = r#"{"authorization": {"secret": "a", "prefix": "a\nb"}}"#;
        assert!(asked(broken).starts_with("headers.authorization"), "{}", asked(broken));
        for good in [
            r#"{"idempotency-key": "x", "x-colour": "***"}"#,
            r#"{"authorization": {"secret": "a", "prefix": "Bearer "}}"#,
        ] {
            assert_eq!(asked(good), "");
        }
        let masked = HttpCall::checked(r#"{"type": "http", "url": "http://x/?token=***"}"#).expect_err("a mask");
        assert!(masked.to_string().starts_with("url: "));
    }

    #[test]
    fn a_secret_that_is_cut_off_leaves_no_beginning() {
        let mut body = "xxxx sk_live_12".to_owned();
        cut_beginnings(&mut body, &["sk_live_1234".into()]);
        assert_eq!(body, "xxxx ");
    }

    #[test]
    fn expected_statuses_are_patterns() {
        let call = |expect: &str| {
            HttpCall::read(&format!(r#"{{"type": "http", "url": "http://x", "expect": {expect}}}"#)).unwrap()
        };
        assert!(call("\"2xx\"").is_expected(204) && !call("\"2xx\"").is_expected(301));
        assert!(call("\"200, 404\"").is_expected(404));
        assert!(call("[\"3xx\", \"200\"]").is_expected(302));
    }
}
