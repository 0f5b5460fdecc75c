//! The server under attack, as a process of its own, with keys for both tenants.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::process::{Child, Command};

/// Where the server is, and what both tenants come with.
#[derive(Clone, Serialize, Deserialize)]
pub struct Keys {
    pub address: String,
    pub red_viewer: String,
    pub red_worker: String,
    pub red_submitter: String,
    pub red_operator: String,
    pub red_admin: String,
    pub blue_worker: String,
    pub blue_submitter: String,
}

pub struct Server {
    binary: PathBuf,
    database: String,
    child: Child,
    pub keys: Keys,
    folder: tempfile::TempDir,
}

impl Server {
    pub async fn start(binary: &Path, postgres: Option<&str>) -> Result<Server> {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("tenants.db").display().to_string();
        let database = postgres.map_or(file, str::to_owned);
        let made = Command::new(binary)
            .args(["key", "create", "--role", "admin", "--name", "house", "--db", &database])
            .output()
            .await
            .context("the server's binary cannot be run")?;
        let words = String::from_utf8_lossy(&made.stdout).into_owned();
        let Some(house) = words.split_whitespace().find(|word| word.starts_with("cbk_")).map(str::to_owned) else {
            bail!("no key was made: {words}{}", String::from_utf8_lossy(&made.stderr));
        };
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let address = format!("127.0.0.1:{port}");
        let child = spawn(binary, &database, &address, folder.path())?;
        let key = |role: &'static str, namespace: &'static str| {
            let (house, url) = (house.clone(), format!("http://{address}/api/v1/keys"));
            async move {
                let body = json!({"role": role, "namespace": namespace, "name": format!("{namespace}-{role}")});
                let answer = reqwest::Client::new().post(url).bearer_auth(house).json(&body).send().await?;
                let answer: Value = answer.json().await?;
                anyhow::Ok(answer["key"].as_str().with_context(|| format!("no key: {answer}"))?.to_owned())
            }
        };
        ready(&address).await?;
        let keys = Keys {
            red_viewer: key("viewer", "red").await?,
            red_worker: key("worker", "red").await?,
            red_submitter: key("submitter", "red").await?,
            red_operator: key("operator", "red").await?,
            red_admin: key("admin", "red").await?,
            blue_worker: key("worker", "blue").await?,
            blue_submitter: key("submitter", "blue").await?,
            address: address.clone(),
        };
        Ok(Server { binary: binary.to_owned(), database, child, keys, folder })
    }

    pub async fn restart(&mut self) -> Result<()> {
        self.child = spawn(&self.binary, &self.database, &self.keys.address, self.folder.path())?;
        ready(&self.keys.address).await
    }

    pub fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Resident memory of the process.
    pub fn resident_mb(&self) -> f64 {
        let status = self.child.id().and_then(|id| std::fs::read_to_string(format!("/proc/{id}/status")).ok());
        let kib = status.as_deref().unwrap_or_default().lines().find_map(|line| {
            line.strip_prefix("VmRSS:").and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok())
        });
        kib.unwrap_or(0.0) / 1024.0
    }

    pub async fn stop(mut self) {
        let _ = self.child.kill().await;
    }
}

fn spawn(binary: &Path, database: &str, address: &str, folder: &Path) -> Result<Child> {
    let log = std::fs::File::options().create(true).append(true).open(folder.join("log"))?;
    Ok(Command::new(binary)
        .args(["serve", "--listen", address, "--db", database, "--allow-network", "127.0.0.1/32"])
        .stdout(Stdio::null())
        .stderr(log)
        .kill_on_drop(true)
        .spawn()?)
}

async fn ready(address: &str) -> Result<()> {
    let until = Instant::now() + Duration::from_secs(60);
    while Instant::now() < until {
        if let Ok(answer) = reqwest::get(format!("http://{address}/readyz")).await
            && answer.status().is_success()
        {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    bail!("the server was not ready within a minute")
}
