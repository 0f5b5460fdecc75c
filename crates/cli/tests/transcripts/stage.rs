//! Events beside the typed commands: servers, workers, time, files and damage.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use comeback_client::Client;
use comeback_core::Timestamp;
use serde_json::{Value, json};

pub struct Stage {
    folder: tempfile::TempDir,
    variables: BTreeMap<String, String>,
    server: Option<Server>,
    lease: Option<String>,
    runtime: tokio::runtime::Runtime,
    /// The time at which the first server's clock stands still.
    pub begun: Option<String>,
}

struct Server {
    child: Child,
    url: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Stage {
    pub fn new() -> Stage {
        let folder = tempfile::tempdir().expect("a folder");
        let home = folder.path().to_string_lossy().into_owned();
        let path = std::env::var("PATH").unwrap_or_default();
        let variables = BTreeMap::from([("HOME".to_owned(), home), ("PATH".to_owned(), path)]);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        Stage { folder, variables, server: None, lease: None, runtime, begun: None }
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn variables(&self) -> &BTreeMap<String, String> {
        &self.variables
    }

    /// One direction. The answer is what everybody sees of it.
    pub fn act(&mut self, direction: &str, text: &[&str]) -> Result<String, String> {
        let (verb, rest) = direction.split_once(' ').unwrap_or((direction, ""));
        match verb {
            // A server whose clock only moves when it is told to; what it says when it starts.
            "serve" => self.start("serve --listen 127.0.0.1:0", rest),
            // The same with kinds of its own, from a file.
            "daemon" => self.start("daemon --config", rest),
            // So many runs are there, and all but those of one name have come to an end or to a wait.
            "runs" => self.runs(rest),
            "stop" => {
                self.server = None;
                Ok(String::new())
            }
            "advance" => self.post("/api/v1/clock/advance", json!({"by": rest})).map(|_| String::new()),
            // A worker takes the next task, and says how it ended.
            "lease" => {
                let answer = self.post("/api/v1/leases", json!({"worker": rest, "limit": 1, "wait": 5}))?;
                let token = answer["leases"][0]["lease"].as_str().ok_or("there was nothing to lease")?;
                self.lease = Some(token.to_owned());
                Ok(String::new())
            }
            "fail" => {
                let (status, message) = rest.split_once(' ').ok_or("% fail STATUS MESSAGE")?;
                let status: u16 = status.parse().map_err(|_| "% fail STATUS MESSAGE")?;
                self.report(json!({"outcome": "failed", "error": {"status": status, "message": message}}))
            }
            "succeed" => self.report(json!({"outcome": "succeeded", "result": {"ok": true}})),
            "env" => {
                let (name, value) = rest.split_once('=').ok_or("% env NAME=VALUE")?;
                let value = value.replace("<folder>", &self.folder.path().to_string_lossy());
                match value.as_str() {
                    "" => self.variables.remove(name),
                    _ => self.variables.insert(name.to_owned(), value),
                };
                Ok(String::new())
            }
            "write" => {
                let path = self.folder.path().join(rest);
                let folder = path.parent().ok_or("no folder")?;
                std::fs::create_dir_all(folder).map_err(|error| error.to_string())?;
                std::fs::write(&path, text.join("\n") + "\n").map_err(|error| error.to_string())?;
                chmod(&path, 0o600)
            }
            "chmod" => {
                let (mode, name) = rest.split_once(' ').ok_or("% chmod MODE FILE")?;
                let mode = u32::from_str_radix(mode, 8).map_err(|error| error.to_string())?;
                chmod(&self.folder.path().join(name), mode)
            }
            "sql" => {
                let (name, sql) = rest.split_once(' ').ok_or("% sql FILE STATEMENT")?;
                let connection = rusqlite::Connection::open(self.folder.path().join(name));
                let done = connection.and_then(|connection| connection.execute_batch(sql));
                done.map(|()| String::new()).map_err(|error| error.to_string())
            }
            _ => Err(format!("nobody knows how to {verb}")),
        }
    }

    fn runs(&self, said: &str) -> Result<String, String> {
        let (count, left) = said.split_once(' ').ok_or("% runs COUNT NAME")?;
        let count: usize = count.parse().map_err(|_| "% runs COUNT NAME")?;
        for _ in 0..1_000 {
            let listed = self.get("/api/v1/tasks?limit=500")?;
            let runs = listed["items"].as_array().cloned().unwrap_or_default();
            let busy =
                |run: &Value| ["pending", "running"].iter().any(|it| run["state"] == *it) && run["external_id"] != left;
            if runs.len() == count && !runs.iter().any(busy) {
                return Ok(String::new());
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        Err("something still runs after ten seconds".into())
    }

    fn start(&mut self, what: &str, more: &str) -> Result<String, String> {
        self.server = None;
        let clock = format!("virtual@{}", full_minute());
        let mut child = Command::new(env!("CARGO_BIN_EXE_comeback"))
            .args(what.split_whitespace())
            .args(more.split_whitespace())
            .args(["--clock", &clock, "--instance", "test"])
            .current_dir(self.folder.path())
            .env("RUST_LOG", "off")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| error.to_string())?;
        let mut said = String::new();
        let mut reader = BufReader::new(child.stdout.take().ok_or("no output")?);
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).map_err(|error| error.to_string())? == 0 {
                return Err(format!("the server ended: {said}"));
            }
            said.push_str(&line);
            if ["resumed", "ready"].iter().any(|word| line.trim_start().starts_with(word)) {
                break;
            }
        }
        let url = said.lines().find_map(|line| line.trim().strip_prefix("API")).ok_or("no address")?;
        let url = url.trim().trim_end_matches("/api/v1").to_owned();
        std::thread::spawn(move || std::io::copy(&mut reader, &mut std::io::sink()));
        self.variables.insert("COMEBACK_SERVER".into(), url.clone());
        self.server = Some(Server { child, url });
        if self.begun.is_none() {
            let clock = self.get("/api/v1/clock")?;
            self.begun = clock["now"].as_str().map(str::to_owned);
        }
        Ok(said)
    }

    fn client(&self) -> Result<Client, String> {
        let server = self.server.as_ref().ok_or("there is no server; begin with % serve")?;
        let key = self.variables.get("COMEBACK_KEY").cloned();
        Ok(Client::new(server.url.clone()).map_err(|error| error.to_string())?.with_key(key))
    }

    fn get(&self, path: &str) -> Result<Value, String> {
        self.runtime.block_on(self.client()?.get(path)).map_err(|error| error.to_string())
    }

    fn post(&self, path: &str, body: Value) -> Result<Value, String> {
        self.runtime.block_on(self.client()?.post(path, &body)).map_err(|error| error.to_string())
    }

    fn report(&mut self, mut report: Value) -> Result<String, String> {
        report["lease"] = self.lease.take().ok_or("nothing is leased")?.into();
        let answer = self.post("/api/v1/leases/report", json!({"reports": [report]}))?;
        match answer["reports"][0].get("problem") {
            Some(problem) => Err(problem.to_string()),
            None => Ok(String::new()),
        }
    }
}

/// The next one. What is counted by the minute must not depend on the second at which the test was started.
fn full_minute() -> String {
    const MINUTE: i64 = 60_000;
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let now = i64::try_from(since.as_millis()).unwrap_or_default();
    Timestamp((now / MINUTE + 1) * MINUTE).to_rfc3339()
}

fn chmod(path: &Path, mode: u32) -> Result<String, String> {
    let done = std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode));
    done.map(|()| String::new()).map_err(|error| format!("{}: {error}", path.display()))
}
