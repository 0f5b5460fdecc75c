//! Helpers to talk to a server and wait for it.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use comeback_client::Client;
use serde_json::{Value, json};

pub use crate::server::Server;

impl Server {
    pub fn start(db: &str, more: &[&str]) -> Server {
        let mut command = Server::command(db, "127.0.0.1:0");
        command.args(more);
        Server::from(command).expect("the binary serves")
    }

    /// A daemon, told by a file.
    pub fn daemon(config: &Path, more: &[&str]) -> Server {
        let mut command = Command::new(env!("CARGO_BIN_EXE_comeback"));
        command.args(["daemon", "--config"]).arg(config).args(more).env("RUST_LOG", "warn").stdout(Stdio::piped());
        Server::from(command).expect("the binary serves")
    }

    pub fn client(&self) -> Client {
        Client::new(self.url.clone()).expect("an address")
    }

    /// For what the client would never send.
    pub fn http(&self) -> reqwest::Client {
        self.client();
        reqwest::Client::new()
    }

    pub fn cli(&self, args: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_comeback"))
            .args(args)
            .env("COMEBACK_SERVER", &self.url)
            .output()
            .expect("the binary runs")
    }
}

pub fn file(folder: &Path) -> String {
    folder.join("comeback.db").to_string_lossy().into_owned()
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub async fn lease_one(client: &Client) -> Value {
    let leased = client.lease(&json!({"worker": "w", "limit": 1, "wait": 10})).await.expect("leased");
    leased["leases"][0].clone()
}

pub async fn report(client: &Client, lease: &Value, mut report: Value) -> Value {
    report["lease"] = lease["lease"].clone();
    client.report(&[report]).await.expect("reported")["reports"][0].clone()
}

pub async fn until_over(client: &Client, id: &str) -> Value {
    until(client, id, |task| !task["ended_at"].is_null()).await
}

/// Waits until a task is as it should be.
pub async fn until(client: &Client, id: &str, holds: impl Fn(&Value) -> bool) -> Value {
    let begun = Instant::now();
    loop {
        let task = client.task(id).await.expect("shown");
        if holds(&task) {
            return task;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "{task}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

pub async fn submit_one(client: &Client, task: Value) -> String {
    let answer = client.submit(&task).await.expect("submitted");
    answer["tasks"][0]["id"].as_str().expect("an id").to_owned()
}
