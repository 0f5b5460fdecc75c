//! A server that is started, spoken to and killed.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use comeback_client::Client;
use serde_json::{Value, json};

pub struct Server {
    pub child: Child,
    pub url: String,
    /// What it said when it started.
    pub lines: Vec<String>,
}

impl Server {
    pub fn start(db: &str, more: &[&str]) -> Server {
        Server::spawn(Server::command(db, more).env("RUST_LOG", "warn"))
    }

    pub fn command(db: &str, more: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_comeback"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--db", db]).args(more).stdout(Stdio::piped());
        command
    }

    pub fn spawn(command: &mut Command) -> Server {
        let mut child = command.spawn().expect("the binary starts");
        let mut lines = Vec::new();
        let mut reader = BufReader::new(child.stdout.take().expect("its output"));
        loop {
            let mut line = String::new();
            assert!(reader.read_line(&mut line).expect("a line") > 0, "it ended before it served: {lines:?}");
            let last = line.trim_start().starts_with("resumed") || line.trim_start().starts_with("ready");
            lines.push(line);
            if last {
                break;
            }
        }
        let api = lines.iter().find_map(|line| line.trim().strip_prefix("API")).expect("an address").trim().to_owned();
        std::thread::spawn(move || std::io::copy(&mut reader, &mut std::io::sink()));
        Server { child, url: api.trim_end_matches("/api/v1").to_owned(), lines }
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

    pub fn kill(mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("gone");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn file(folder: &Path) -> String {
    folder.join("comeback.db").to_string_lossy().into_owned()
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub async fn lease_one(client: &Client) -> Value {
    let leased = client.lease(&json!({"worker": "w", "wait": 10})).await.expect("leased");
    leased["leases"][0].clone()
}

pub async fn report(client: &Client, lease: &Value, mut report: Value) -> Value {
    report["lease"] = lease["lease"].clone();
    client.report(&[report]).await.expect("reported")["reports"][0].clone()
}

pub async fn until_over(client: &Client, id: &str) -> Value {
    let begun = Instant::now();
    loop {
        let task = client.task(id).await.expect("shown");
        if !task["ended_at"].is_null() {
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
