//! Talking to the servers, with an honest answer to "was it done?".

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::Value;

use crate::history::now_ns;
use crate::rng::Rng;

#[derive(Clone)]
pub struct Api {
    http: reqwest::Client,
    urls: Vec<String>,
    /// When each of them failed to answer last.
    failed: Arc<Vec<AtomicU64>>,
}

#[derive(Debug)]
pub enum Reply {
    Done(Value),
    /// The server said no: nothing was done.
    Refused(String),
    /// No answer, or one that leaves it open.
    Unknown(String),
}

const PATIENCE: Duration = Duration::from_secs(8);
/// A server that did not answer is left alone for so long, if there is another.
const LEFT_ALONE: u64 = 500_000_000;

impl Api {
    pub fn new(urls: Vec<String>) -> Api {
        // The first client of the process chooses how to speak TLS, which nobody does here.
        comeback_client::Client::new(urls[0].clone()).expect("an address");
        let http = reqwest::Client::builder().no_proxy().timeout(PATIENCE).build().expect("a client");
        let failed = Arc::new(urls.iter().map(|_| AtomicU64::new(0)).collect());
        Api { http, urls, failed }
    }

    /// Any server that has not failed just now.
    pub fn any_server(&self, rng: &mut Rng) -> usize {
        let now = now_ns();
        let good = |server: &usize| now.saturating_sub(self.failed[*server].load(Ordering::Relaxed)) > LEFT_ALONE;
        let good: Vec<usize> = (0..self.urls.len()).filter(good).collect();
        rng.pick(&good).copied().unwrap_or_else(|| rng.below(self.urls.len() as u64) as usize)
    }

    fn note(&self, server: usize, reply: Reply) -> Reply {
        if matches!(reply, Reply::Unknown(_)) {
            self.failed[server].store(now_ns(), Ordering::Relaxed);
        }
        reply
    }

    pub async fn post(&self, server: usize, path: &str, body: &Value, key: Option<&str>) -> Reply {
        let mut request = self.http.post(format!("{}/api/v1{path}", self.urls[server])).json(body);
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        self.note(server, send(request).await)
    }

    pub async fn get(&self, server: usize, path: &str, query: &[(&str, &str)]) -> Reply {
        let request = self.http.get(format!("{}/api/v1{path}", self.urls[server])).query(query);
        self.note(server, send(request).await)
    }
}

async fn send(request: reqwest::RequestBuilder) -> Reply {
    let response = match request.send().await {
        Ok(response) => response,
        Err(error) => return Reply::Unknown(root(&error)),
    };
    let status = response.status();
    let body: Value = match response.json().await {
        Ok(body) => body,
        Err(error) => return Reply::Unknown(root(&error)),
    };
    match status.as_u16() {
        200..300 => Reply::Done(body),
        400..500 => Reply::Refused(format!("{status} {}", body["error"].as_str().unwrap_or_default())),
        _ => Reply::Unknown(format!("{status} {}", body["detail"].as_str().unwrap_or_default())),
    }
}

fn root(error: &reqwest::Error) -> String {
    let mut why: &dyn std::error::Error = error;
    while let Some(deeper) = why.source() {
        why = deeper;
    }
    why.to_string()
}
