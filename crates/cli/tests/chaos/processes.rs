//! Processes that are killed, stopped and started again: the servers and the workers. And one that outlives this program for a
//! moment, to take the others with it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::cluster::folder_of;
use crate::ports::free_port;
use crate::server::Server;
use crate::worker::Orders;

/// By this the processes of a run are known, whoever started them.
pub const MARK: &str = "COMEBACK_CHAOS_RUN";
/// What a process of this program is when it is not the test itself.
pub const ROLE: &str = "COMEBACK_CHAOS_ROLE";

pub fn signal(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a process");
    // It may be gone already.
    let _ = kill_process(pid, signal);
}

/// One of the servers. It keeps its address.
pub struct Place {
    pub name: String,
    pub url: String,
    port: u16,
    db: String,
    mark: String,
    log: PathBuf,
    server: Option<Server>,
}

/// How long a server may need until it serves while its database does.
const START: Duration = Duration::from_secs(30);

impl Place {
    pub fn new(n: usize, db: &str, mark: &str, folder: &Path) -> Place {
        let (name, port) = (format!("server {n}"), free_port());
        Place {
            url: format!("http://127.0.0.1:{port}"),
            log: folder.join(format!("server-{n}.log")),
            db: db.to_owned(),
            mark: mark.to_owned(),
            server: None,
            name,
            port,
        }
    }

    pub fn pid(&self) -> Option<u32> {
        self.server.as_ref().map(|server| server.child.id())
    }

    pub fn kill(&mut self) {
        if let Some(server) = self.server.take() {
            server.kill();
        }
    }

    /// Tries until it serves: a server that finds no database gives up, and whoever watches over it starts it again. Answers how
    /// long the start took that succeeded, and what it said.
    pub async fn start(&mut self, give_up: Duration) -> Result<(Duration, String), String> {
        let begun = Instant::now();
        loop {
            let log = File::options().create(true).append(true).open(&self.log).expect("a log");
            let mut command = Server::command(&self.db, &format!("127.0.0.1:{}", self.port));
            command.env(MARK, &self.mark).env("INSTANCE_ID", &self.name).stderr(log);
            let try_begun = Instant::now();
            let started = tokio::task::spawn_blocking(move || Server::from(command));
            let started = tokio::time::timeout(START, started).await;
            match started.map(|joined| joined.expect("no panic")) {
                Ok(Ok(server)) => {
                    let said = server.lines.last().map(|line| line.trim().to_owned()).unwrap_or_default();
                    self.server = Some(server);
                    return Ok((try_begun.elapsed(), said));
                }
                Ok(Err(why)) if begun.elapsed() > give_up => return Err(format!("{}: {why}", self.name)),
                Ok(Err(_)) => tokio::time::sleep(Duration::from_millis(100)).await,
                Err(_) => return Err(format!("{} did not serve in {START:?}", self.name)),
            }
        }
    }
}

/// One of the workers. Every start is another incarnation with a name and a history of its own.
pub struct WorkerPlace {
    n: usize,
    incarnation: u32,
    urls: Vec<String>,
    mark: String,
    folder: PathBuf,
    seed: u64,
    child: Option<Child>,
}

impl WorkerPlace {
    pub fn start(n: usize, urls: &[String], mark: &str, folder: &Path, seed: u64) -> WorkerPlace {
        let (urls, mark, folder) = (urls.to_vec(), mark.to_owned(), folder.to_owned());
        let mut place = WorkerPlace { n, incarnation: 0, urls, mark, folder, seed, child: None };
        place.restart();
        place
    }

    pub fn restart(&mut self) {
        self.kill();
        self.incarnation += 1;
        let name = format!("w{}.{}", self.n, self.incarnation);
        let orders = Orders {
            history: self.folder.join(format!("{name}.history.jsonl")),
            urls: self.urls.clone(),
            seed: self.seed ^ (self.n as u64) << 32 ^ u64::from(self.incarnation),
            name,
        };
        self.child = Some(
            this_program("worker", &serde_json::to_string(&orders).expect("JSON"))
                .env(MARK, &self.mark)
                .stderr(File::options().create(true).append(true).open(self.folder.join("workers.log")).expect("a log"))
                .spawn()
                .expect("a worker"),
        );
    }

    pub fn name(&self) -> String {
        format!("worker {}", self.n)
    }

    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("killed");
            child.wait().expect("gone");
        }
    }
}

impl Drop for WorkerPlace {
    fn drop(&mut self) {
        self.kill();
    }
}

/// This program again, in another role. It notices our end by the end of its input.
fn this_program(role: &str, orders: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.arg(orders).env(ROLE, role).stdin(Stdio::piped()).stdout(Stdio::null());
    command
}

/// Waits for our end, however it comes, and ends what is left of a run.
pub struct Guard(Child);

impl Guard {
    pub fn start(mark: &str) -> Guard {
        Guard(this_program("guard", mark).spawn().expect("a guard"))
    }

    pub fn main(mark: &str) {
        let _ = std::io::Read::read_to_end(&mut std::io::stdin(), &mut Vec::new());
        let wanted = format!("{MARK}={mark}");
        let processes = std::fs::read_dir("/proc").expect("processes").flatten();
        for pid in processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()) {
            let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            if environment.split(|byte| *byte == 0).any(|line| line == wanted.as_bytes()) {
                signal(pid, Signal::KILL);
            }
        }
        let _ = std::fs::remove_dir_all(folder_of(mark));
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}
