//! One method per question; answers are JSON as the server gives it.

use std::time::Duration;

use bytes::Bytes;
use reqwest::header::RETRY_AFTER;
use reqwest::{Method, RequestBuilder, Response};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::worker::{Lease, Leases};

/// A refusal of the server (RFC 9457).
#[derive(Clone, Debug, Deserialize)]
pub struct Problem {
    /// The short title of the problem.
    #[serde(default)]
    pub title: String,
    /// The HTTP status.
    #[serde(default)]
    pub status: u16,
    /// The detail, in one sentence.
    #[serde(default)]
    pub detail: String,
    /// Which sort of problem it is, such as `wrong-state`.
    #[serde(default, rename = "type")]
    pub kind: String,
    /// Upper case, for programs; several sorts may share one.
    #[serde(default)]
    pub error: String,
    /// The request that it happened to.
    #[serde(default)]
    pub instance: String,
    /// The time to wait before the next request (`Retry-After`).
    #[serde(skip)]
    pub retry_after: Option<Duration>,
    /// Further members of the answer.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// A request that failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The server did not answer, or the connection broke.
    #[error("cannot reach {url}: {why}")]
    Unreachable {
        /// The address that was called.
        url: String,
        /// The cause.
        why: String,
    },
    /// The server refused the request.
    #[error("{}", .0.detail)]
    Refused(Box<Problem>),
    /// The answer could not be decoded.
    #[error("cannot decode the answer: {0}")]
    Decode(String),
    /// The client was used wrongly.
    #[error("{0}")]
    Usage(String),
}

impl Error {
    /// The problem, if the server answered with one.
    pub fn problem(&self) -> Option<&Problem> {
        match self {
            Error::Refused(problem) => Some(problem),
            _ => None,
        }
    }

    /// Whether the same request may succeed later: the server was unreachable or overloaded.
    pub fn is_retryable(&self) -> bool {
        match self {
            Error::Unreachable { .. } => true,
            Error::Refused(problem) => matches!(problem.status, 408 | 429 | 500..),
            Error::Decode(_) | Error::Usage(_) => false,
        }
    }

    /// The time to wait before the next request, if the server said one (`Retry-After`).
    pub fn retry_after(&self) -> Option<Duration> {
        self.problem().and_then(|problem| problem.retry_after)
    }
}

/// Cheap to clone.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    server: String,
    key: Option<String>,
    namespace: Option<String>,
}

impl Client {
    /// Creates one.
    pub fn new(server: impl Into<String>) -> Result<Client, Error> {
        let server = server.into().trim_end_matches('/').to_owned();
        if !server.starts_with("http://") && !server.starts_with("https://") {
            return Err(Error::Usage(format!("`{server}` is no address of a server; it begins with http://")));
        }
        // Another part of the process may have chosen one already; then that one is used.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder()
            .user_agent(concat!("comeback-client/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(Duration::from_secs(5))
            .no_proxy()
            .build()
            .map_err(|error| Error::Usage(error.to_string()))?;
        Ok(Client { http, server, key: None, namespace: None })
    }

    /// Authenticates with this API key.
    pub fn with_key(mut self, key: Option<String>) -> Client {
        self.key = key;
        self
    }

    /// Works in this namespace.
    pub fn in_namespace(mut self, namespace: Option<String>) -> Client {
        self.namespace = namespace;
        self
    }

    /// The address of the server.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// One task, or many under `tasks`.
    pub async fn submit(&self, tasks: &Value) -> Result<Value, Error> {
        self.post("/api/v1/tasks", tasks).await
    }

    /// Reads one task.
    pub async fn task(&self, id: &str) -> Result<Value, Error> {
        self.get(&format!("/api/v1/tasks/{id}")).await
    }

    /// Cancel, pause, resume, retry, snooze or reschedule.
    pub async fn act(&self, id: &str, verb: &str, body: &Value) -> Result<Value, Error> {
        self.post(&format!("/api/v1/tasks/{id}/{verb}"), body).await
    }

    /// Requests leases, as the server answers.
    pub async fn lease(&self, request: &Value) -> Result<Value, Error> {
        self.post("/api/v1/leases", request).await
    }

    /// The same, as a worker reads it.
    pub async fn leases<T: Serialize + ?Sized>(&self, request: &T) -> Result<Vec<Lease>, Error> {
        Ok(self.ask_for_leases(request).await?.leases)
    }

    pub(crate) async fn ask_for_leases<T: Serialize + ?Sized>(&self, request: &T) -> Result<Leases, Error> {
        self.post_for("/api/v1/leases", request).await
    }

    /// Extends leases.
    pub async fn heartbeat(&self, leases: &[String], extend_secs: u64) -> Result<Value, Error> {
        self.post("/api/v1/leases/heartbeat", &json!({"leases": leases, "extend": extend_secs})).await
    }

    /// Reports the ends of runs.
    pub async fn report(&self, reports: &[Value]) -> Result<Value, Error> {
        self.post("/api/v1/leases/report", &json!({"reports": reports})).await
    }

    /// Sends a GET request.
    pub async fn get(&self, path: &str) -> Result<Value, Error> {
        self.send(self.request(Method::GET, path)).await
    }

    /// With parameters, which are escaped here.
    pub async fn get_with(&self, path: &str, query: &[(&str, String)]) -> Result<Value, Error> {
        self.send(self.request(Method::GET, path).query(query)).await
    }

    /// Sends a POST request.
    pub async fn post<T: Serialize + ?Sized>(&self, path: &str, body: &T) -> Result<Value, Error> {
        self.send(self.request(Method::POST, path).json(body)).await
    }

    /// A post whose answer is read as what it is.
    pub async fn post_for<A: DeserializeOwned, T: Serialize + ?Sized>(&self, path: &str, body: &T) -> Result<A, Error> {
        let answer = self.answer(self.request(Method::POST, path).json(body)).await?;
        serde_json::from_slice(&answer).map_err(|error| Error::Decode(error.to_string()))
    }

    /// Sends a PUT request.
    pub async fn put<T: Serialize + ?Sized>(&self, path: &str, body: &T) -> Result<Value, Error> {
        self.send(self.request(Method::PUT, path).json(body)).await
    }

    /// Sends a PATCH request.
    pub async fn patch<T: Serialize + ?Sized>(&self, path: &str, body: &T) -> Result<Value, Error> {
        self.send(self.request(Method::PATCH, path).json(body)).await
    }

    /// A document that is not JSON, or not always.
    pub async fn put_yaml(&self, path: &str, text: &str) -> Result<Value, Error> {
        let request = self.request(Method::PUT, path).header("content-type", "application/yaml");
        self.send(request.body(text.to_owned())).await
    }

    /// Sends a DELETE request.
    pub async fn delete(&self, path: &str) -> Result<Value, Error> {
        self.send(self.request(Method::DELETE, path)).await
    }

    /// An answer that goes on: its head was a success, and its body is read as it comes.
    pub async fn open(&self, path: &str, query: &[(&str, String)]) -> Result<Response, Error> {
        let request = self.endless(Method::GET, path).query(query);
        self.judge(request.send().await.map_err(|error| self.unreachable(&error))?).await
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.endless(method, path).timeout(Duration::from_secs(90))
    }

    fn endless(&self, method: Method, path: &str) -> RequestBuilder {
        let mut request = self.http.request(method, format!("{}{path}", self.server));
        if let Some(key) = &self.key {
            request = request.bearer_auth(key);
        }
        if let Some(namespace) = &self.namespace {
            request = request.header("comeback-namespace", namespace);
        }
        request
    }

    async fn send(&self, request: RequestBuilder) -> Result<Value, Error> {
        let body = self.answer(request).await?;
        if body.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&body).map_err(|error| Error::Decode(error.to_string()))
    }

    async fn answer(&self, request: RequestBuilder) -> Result<Bytes, Error> {
        let response = request.send().await.map_err(|error| self.unreachable(&error))?;
        let response = self.judge(response).await?;
        response.bytes().await.map_err(|error| self.unreachable(&error))
    }

    async fn judge(&self, response: Response) -> Result<Response, Error> {
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        let body = response.bytes().await.map_err(|error| self.unreachable(&error))?;
        match serde_json::from_slice::<Problem>(&body) {
            Ok(problem) => {
                let retry_after = after.map(Duration::from_secs);
                Err(Error::Refused(Box::new(Problem { retry_after, ..problem })))
            }
            // Somebody in between, such as a proxy whose server is away.
            Err(_) if status.is_server_error() => Err(self.away(status.to_string())),
            Err(_) => Err(Error::Decode(format!("status {status} without a problem"))),
        }
    }

    fn unreachable(&self, error: &reqwest::Error) -> Error {
        let mut why: &dyn std::error::Error = error;
        while let Some(deeper) = why.source() {
            why = deeper;
        }
        self.away(why.to_string())
    }

    fn away(&self, why: String) -> Error {
        Error::Unreachable { url: self.server.clone(), why }
    }
}
