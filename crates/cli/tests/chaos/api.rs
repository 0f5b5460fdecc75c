//! Talking to the servers, with an honest answer to "was it done?".

use std::time::Duration;

use serde_json::Value;

#[derive(Clone)]
pub struct Api {
    http: reqwest::Client,
    urls: Vec<String>,
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

impl Api {
    pub fn new(urls: Vec<String>) -> Api {
        // The first client of the process chooses how to speak TLS, which nobody does here.
        comeback_client::Client::new(urls[0].clone()).expect("an address");
        let http = reqwest::Client::builder().no_proxy().timeout(PATIENCE).build().expect("a client");
        Api { http, urls }
    }

    pub fn servers(&self) -> usize {
        self.urls.len()
    }

    pub async fn post(&self, server: usize, path: &str, body: &Value, key: Option<&str>) -> Reply {
        let mut request = self.http.post(format!("{}/api/v1{path}", self.urls[server])).json(body);
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        send(request).await
    }

    pub async fn get(&self, server: usize, path: &str, query: &[(&str, &str)]) -> Reply {
        send(self.http.get(format!("{}/api/v1{path}", self.urls[server])).query(query)).await
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
