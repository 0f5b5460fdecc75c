//! Problems (RFC 9457): the only place that knows status codes.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use comeback_core::workflow::Problems;
use comeback_core::{Fault, Invalid, Quota, QuotaExceeded};
use comeback_engine::CommandError;
use comeback_engine::store::StoreError;
use serde_json::{Map, Value, json};

/// An error response. It is rendered last, when the id of the request is known.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    pub status: StatusCode,
    /// Code in upper case, for programs.
    pub code: &'static str,
    pub title: &'static str,
    pub detail: String,
    more: Option<Box<Map<String, Value>>>,
    /// Cause for the log; not sent to the caller.
    cause: Option<String>,
    /// Value of `Retry-After`, in seconds.
    pub retry_after: Option<u32>,
    /// The exceeded quota, if any.
    pub quota: Option<Quota>,
}

impl Problem {
    /// A problem with a status, code, title and detail.
    pub fn new(status: StatusCode, code: &'static str, title: &'static str, detail: impl Into<String>) -> Problem {
        Problem { status, code, title, detail: detail.into(), more: None, cause: None, retry_after: None, quota: None }
    }

    /// 400: the request is malformed.
    pub fn bad_request(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::BAD_REQUEST, "BAD_REQUEST", "Malformed request", detail)
    }

    /// 404: no such object.
    pub fn not_found(what: &str) -> Problem {
        Problem::new(StatusCode::NOT_FOUND, "NOT_FOUND", "Not found", format!("there is no such {what}"))
    }

    /// A job is addressed by the name of its worker, but with a key that did not lease it.
    pub fn lease_needed() -> Problem {
        let detail = "another key leased this job, or it was leased elsewhere: send its `lease`";
        Problem::conflict("LEASE_LOST", "The lease is no longer held", detail)
    }

    /// 503: the database or the server is unavailable.
    pub fn unavailable(detail: impl Into<String>) -> Problem {
        let title = "Temporarily unavailable";
        let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "UNAVAILABLE", title, detail);
        Problem { retry_after: Some(1), ..problem }
    }

    /// 503: the server is overloaded.
    pub fn overloaded(detail: impl Into<String>) -> Problem {
        let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "OVERLOADED", "Server overloaded", detail);
        Problem { retry_after: Some(1), ..problem }
    }

    /// 429: too many failed authentications.
    pub fn too_many_requests(detail: impl Into<String>) -> Problem {
        let problem = Problem::new(
            StatusCode::TOO_MANY_REQUESTS,
            "TOO_MANY_REQUESTS",
            "Too many requests from this namespace",
            detail,
        );
        Problem { retry_after: Some(1), ..problem }
    }

    /// 413: the body is over the limit.
    pub fn too_large(most: usize) -> Problem {
        let detail = format!("the body may have at most {most} bytes");
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "TOO_LARGE", "The body is too large", detail)
    }

    /// 408: the body did not arrive in time.
    pub fn too_slow(patience: std::time::Duration) -> Problem {
        let detail = format!("the body did not arrive within {} s", patience.as_secs());
        Problem::new(StatusCode::REQUEST_TIMEOUT, "TOO_SLOW", "The request took too long to arrive", detail)
    }

    /// 401: no valid key.
    pub fn unauthorized(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::UNAUTHORIZED, "UNAUTHORIZED", "Authentication required", detail)
    }

    /// 403: not allowed.
    pub fn forbidden(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::FORBIDDEN, "FORBIDDEN", "Not allowed", detail)
    }

    /// 415: the body is not JSON.
    pub fn not_json() -> Problem {
        let detail = "send the header `content-type: application/json`";
        let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        Problem::new(status, "UNSUPPORTED_MEDIA_TYPE", "The body is not JSON", detail)
    }

    /// Problem of a status that the framework set.
    pub fn of_status(status: StatusCode) -> Problem {
        match status {
            StatusCode::METHOD_NOT_ALLOWED => {
                Problem::new(status, "METHOD_NOT_ALLOWED", "Method not allowed", "the header `allow` lists the methods")
            }
            StatusCode::NOT_FOUND => Problem::not_found("route"),
            StatusCode::BAD_REQUEST => Problem::bad_request("the request cannot be parsed"),
            _ => Problem::internal(),
        }
    }

    fn internal() -> Problem {
        let (status, title) = (StatusCode::INTERNAL_SERVER_ERROR, "Internal server error");
        Problem::new(status, "INTERNAL", title, "see the server log for this request id")
    }

    fn conflict(code: &'static str, title: &'static str, detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::CONFLICT, code, title, detail)
    }

    /// A repeated request created this key before, and its secret is no longer available.
    pub fn key_exists(id: &str) -> Problem {
        let detail = format!(
            "this request created the key {id} before, and its secret was shown then; rotate or revoke that key, or \
             send another Idempotency-Key"
        );
        Problem::conflict("KEY_EXISTS", "The key exists", detail).with("id", id)
    }

    /// The name is in use.
    pub fn name_taken(detail: impl Into<String>) -> Problem {
        Problem::conflict("NAME_TAKEN", "The name is taken", detail)
    }

    /// Adds an extra member.
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Problem {
        self.more.get_or_insert_default().insert(name.into(), value.into());
        self
    }

    /// Sets the cause for the log, in place of the detail.
    pub fn because(mut self, cause: impl Into<String>) -> Problem {
        self.cause = Some(cause.into());
        self
    }

    /// Logs server errors with the id of the request. Overload is only counted.
    pub fn log(&self, request_id: &str) {
        let cause = self.cause.as_deref().unwrap_or(&self.detail);
        match self.status {
            StatusCode::INTERNAL_SERVER_ERROR => {
                tracing::error!(request = request_id, cause, "request failed with an internal error");
            }
            status if status.is_server_error() && self.code != "OVERLOADED" => {
                tracing::warn!(request = request_id, cause, "request failed: service unavailable");
            }
            _ => {}
        }
    }

    /// The stable slug of this problem, for `type`.
    pub fn slug(&self) -> String {
        self.code.to_ascii_lowercase().replace('_', "-")
    }

    /// The code in `error`. Some problem types share a code: `type` tells them apart.
    pub fn error_code(code: &str) -> &str {
        match code {
            "VALIDATION_FAILED" | "WRONG_STATE" => "VALIDATION_ERROR",
            "CONFLICT" => "CONCURRENT_MODIFICATION",
            other => other,
        }
    }

    /// The problem as JSON.
    pub fn to_json(&self, request_id: &str) -> Value {
        let mut body = json!({
            "type": self.slug(),
            "title": self.title,
            "status": self.status.as_u16(),
            "detail": self.detail,
            "instance": request_id,
            "error": Problem::error_code(self.code),
        });
        if let (Value::Object(into), Some(more)) = (&mut body, &self.more) {
            into.extend((**more).clone());
        }
        body
    }

    /// An extra member of the problem.
    pub fn member(&self, name: &str) -> Option<&Value> {
        self.more.as_ref().and_then(|more| more.get(name))
    }

    /// Renders the problem as `application/problem+json`.
    pub fn render(&self, request_id: &str) -> Response {
        self.render_as(self.to_json(request_id), "application/problem+json")
    }

    /// Renders the problem with another body and media type.
    pub fn render_as(&self, body: Value, media: &'static str) -> Response {
        let mut response = (self.status, body.to_string()).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media));
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"comeback\""));
        }
        response
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        response.extensions_mut().insert(self);
        response
    }
}

impl From<Invalid> for Problem {
    fn from(invalid: Invalid) -> Self {
        let detail = match invalid.faults.as_slice() {
            [] => "the request is not valid".to_owned(),
            [only] => told(only),
            [first, rest @ ..] => format!("{} (and {} more)", told(first), rest.len()),
        };
        Problem::new(StatusCode::BAD_REQUEST, "VALIDATION_FAILED", "The request is not valid", detail)
            .with("errors", json!(invalid.faults))
    }
}

/// Faults of a document, each with its line.
impl From<Problems> for Problem {
    fn from(problems: Problems) -> Self {
        let detail = problems.0.first().map_or_else(String::new, ToString::to_string);
        let more = problems.0.len().saturating_sub(1);
        let detail = if more > 0 { format!("{detail} (and {more} more)") } else { detail };
        Problem::new(StatusCode::BAD_REQUEST, "VALIDATION_FAILED", "The request is not valid", detail)
            .with("errors", json!(problems))
    }
}

/// A fault as text: path and message.
pub fn told(Fault { path, message }: &Fault) -> String {
    if path.is_empty() { message.clone() } else { format!("{path}: {message}") }
}

impl From<CommandError> for Problem {
    fn from(error: CommandError) -> Self {
        let text = error.to_string();
        match error {
            CommandError::Invalid(invalid) => invalid.into(),
            CommandError::NotFound(what) => Problem::not_found(what),
            CommandError::WrongState { state, .. } => {
                Problem::new(StatusCode::BAD_REQUEST, "WRONG_STATE", "Not possible in this state", text)
                    .with("state", state.word())
            }
            CommandError::WrongExecutionState(rejection) => {
                Problem::new(StatusCode::BAD_REQUEST, "WRONG_STATE", "Not possible in this state", text)
                    .with("state", rejection.state.word())
            }
            CommandError::WrongWorkflowState { state, .. } => {
                Problem::new(StatusCode::BAD_REQUEST, "WRONG_STATE", "Not possible in this state", text)
                    .with("state", state.word())
            }
            CommandError::WrongOperationState { state, .. } => {
                Problem::new(StatusCode::BAD_REQUEST, "WRONG_STATE", "Not possible in this state", text)
                    .with("state", state.word())
            }
            CommandError::RootEnded(_) => Problem::conflict("CONFLICT", "Concurrent modification", text),
            CommandError::LeaseLost => Problem::conflict("LEASE_LOST", "The lease is no longer held", text),
            CommandError::TaskCanceled => Problem::conflict("TASK_CANCELED", "The task was canceled", text),
            CommandError::Conflict => Problem::conflict("CONFLICT", "Concurrent modification", text),
            CommandError::IdempotencyMismatch => {
                Problem::conflict("IDEMPOTENCY_MISMATCH", "The idempotency key was used for another request", text)
            }
            CommandError::NameTaken(_) => Problem::conflict("NAME_TAKEN", "The name is taken", text),
            CommandError::InsufficientCredits { required, available } => {
                Problem::new(StatusCode::PAYMENT_REQUIRED, "INSUFFICIENT_CREDITS", "Insufficient credits", text)
                    .with("required_credits", required)
                    .with("available_credits", available)
            }
            CommandError::AccountInUse(reserved) => {
                Problem::conflict("ACCOUNT_IN_USE", "The account is in use", text).with("reserved_credits", reserved)
            }
            CommandError::KeyTaken => Problem::conflict("DEDUPE_KEY_TAKEN", "The dedupe key is taken", text),
            CommandError::QuotaExceeded(exceeded) => exceeded.into(),
            CommandError::Store(error) => error.into(),
            CommandError::ShuttingDown => Problem::unavailable("the server is shutting down"),
        }
    }
}

/// A quota of the namespace is exceeded: the response names the quota, and a metric counts it.
impl From<QuotaExceeded> for Problem {
    fn from(exceeded: QuotaExceeded) -> Self {
        let QuotaExceeded { quota, most, .. } = exceeded;
        let title = "The namespace's quota is used up";
        let problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, "QUOTA_EXCEEDED", title, exceeded.to_string())
            .with("quota", quota.word())
            .with("limit", most);
        Problem { retry_after: Some(1), quota: Some(quota), ..problem }
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::QuotaExceeded(exceeded) => exceeded.into(),
            StoreError::SearchTimeout(_) => {
                let title = "The search takes too long";
                Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "SEARCH_TIMEOUT", title, error.to_string())
            }
            // Database errors go to the log only: they name hosts, users and files.
            StoreError::Unavailable(_) => {
                Problem::unavailable("the database is unavailable; nothing was changed").because(error.to_string())
            }
            StoreError::Unknown(_) => {
                Problem::unavailable("the connection to the database was lost; the change may have been applied")
                    .because(error.to_string())
                    .with("outcome", "unknown")
            }
            other => {
                let cause = Some(format!("the store refused: {other}"));
                Problem { cause, ..Problem::internal() }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Database errors name hosts, users and files; they go to the log only.
    #[test]
    fn nobody_is_told_what_the_database_says() {
        let secret = "error connecting to 10.1.2.3 as user `jobs`";
        for error in [StoreError::Unavailable(secret.into()), StoreError::Unknown(secret.into())] {
            let problem = Problem::from(error);
            let told = problem.to_json("r").to_string();
            assert!(!told.contains("10.1.2.3") && !told.contains("connecting"), "{told}");
            assert!(problem.cause.as_deref().is_some_and(|cause| cause.contains(secret)), "{problem:?}");
        }
    }

    /// Every code that is made here has its section, and no section is left over.
    #[test]
    fn every_problem_is_explained() {
        let source = include_str!("problem.rs").split("#[cfg(test)]").next().expect("the code");
        let is_code =
            |text: &&str| text.len() > 3 && text.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_');
        let mut made: Vec<String> =
            source.split('"').filter(is_code).map(|code| code.to_ascii_lowercase().replace('_', "-")).collect();
        // Not sorts of their own: `error_code` has several sorts share them.
        made.retain(|slug| !["validation-error", "concurrent-modification"].contains(&slug.as_str()));
        made.sort();
        made.dedup();
        let page = include_str!("../../../docs/problems.md");
        let mut told: Vec<String> =
            page.lines().filter_map(|line| line.strip_prefix("## ")).map(str::to_owned).collect();
        told.sort();
        assert_eq!(made, told);
    }
}
