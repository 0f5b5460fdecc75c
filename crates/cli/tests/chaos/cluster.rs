//! A PostgreSQL cluster of our own: durable, killed as hard as a process can be, and started again.

use std::fs::File;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tokio_postgres::{Client, NoTls};

use crate::ports::free_port;
use crate::processes::{MARK, signal};

pub struct Cluster {
    binaries: PathBuf,
    /// PostgreSQL refuses to be root; then it is somebody else.
    owner: Option<(u32, u32)>,
    folder: PathBuf,
    port: u16,
    mark: String,
    log: PathBuf,
    postmaster: Option<Child>,
}

const START: Duration = Duration::from_secs(60);

impl Cluster {
    pub fn create(mark: &str, logs: &Path) -> Cluster {
        let owner = rustix::process::geteuid().is_root().then(unprivileged);
        let folder = folder_of(mark);
        std::fs::create_dir(&folder).expect("a folder");
        std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o755)).expect("permissions");
        if let Some((user, group)) = owner {
            chown(&folder, Some(user), Some(group)).expect("an owner");
        }
        let (binaries, log) = (binaries(), logs.join("postgres.log"));
        let cluster = Cluster { binaries, owner, folder, port: free_port(), mark: mark.into(), log, postmaster: None };
        let made = cluster
            .command("initdb")
            .args(["-U", "comeback", "--auth=trust", "-E", "UTF8", "--locale=C", "--data-checksums", "--no-sync"])
            .output()
            .expect("initdb runs");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        cluster
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.binaries.join(program));
        command.arg("-D").arg(self.folder.join("data")).current_dir(&self.folder).env(MARK, &self.mark);
        if let Some((user, group)) = self.owner {
            command.uid(user).gid(group);
        }
        command
    }

    pub fn url(&self) -> String {
        format!("postgres://comeback@127.0.0.1:{}/postgres", self.port)
    }

    /// Returns when it answers, with the time that took. A start that fails on what its dead predecessor left behind is tried
    /// again.
    pub async fn start(&mut self) -> Duration {
        let begun = Instant::now();
        loop {
            let alive = self.postmaster.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)));
            if !alive {
                self.postmaster = Some(self.launch());
            }
            if self.connect().await.is_some() {
                return begun.elapsed();
            }
            assert!(begun.elapsed() < START, "PostgreSQL does not start: see {}", self.log.display());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn launch(&self) -> Child {
        let log = || File::options().create(true).append(true).open(&self.log).expect("a log");
        let settings = [
            "listen_addresses=127.0.0.1".to_owned(),
            format!("port={}", self.port),
            format!("unix_socket_directories={}", self.folder.display()),
            "max_connections=100".into(),
            "shared_buffers=128MB".into(),
            "fsync=on".into(),
            "full_page_writes=on".into(),
            "synchronous_commit=on".into(),
            // So that a crash sometimes finds much to redo, sometimes little.
            "checkpoint_timeout=30s".into(),
        ];
        let mut command = self.command("postgres");
        command.args(settings.iter().flat_map(|setting| ["-c", setting]));
        command.stdin(Stdio::null()).stdout(log()).stderr(log()).spawn().expect("PostgreSQL runs")
    }

    /// A session, as long as it lasts.
    pub async fn connect(&self) -> Option<Client> {
        let (client, connection) = tokio_postgres::connect(&self.url(), NoTls).await.ok()?;
        tokio::spawn(connection);
        client.batch_execute("select 1").await.ok()?;
        Some(client)
    }

    /// The postmaster and all of its children, as if the power had gone, but for what is still in the machine's memory.
    pub fn kill(&mut self) {
        let Some(mut postmaster) = self.postmaster.take() else { return };
        // It must not make more of them while they are looked for.
        signal(postmaster.id(), Signal::STOP);
        let children = children(postmaster.id());
        for child in &children {
            signal(*child, Signal::KILL);
        }
        postmaster.kill().expect("killed");
        postmaster.wait().expect("gone");
    }

    /// One of its sessions crashes; PostgreSQL then ends all others and recovers by itself.
    pub fn crash_one_session(&mut self) -> bool {
        let Some(postmaster) = &self.postmaster else { return false };
        let session = children(postmaster.id()).into_iter().find(|pid| {
            let title = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&title).contains("comeback postgres 127.0.0.1")
        });
        if let Some(session) = session {
            signal(session, Signal::KILL);
        }
        session.is_some()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.kill();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Where the cluster of a run is. It is not with the rest of the run, which another user may not be able to enter.
pub fn folder_of(mark: &str) -> PathBuf {
    std::env::temp_dir().join(format!("comeback-chaos-{mark}"))
}

fn children(parent: u32) -> Vec<u32> {
    let is_child = |pid: &u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status.lines().any(|line| line.strip_prefix("PPid:").is_some_and(|of| of.trim() == parent.to_string()))
    };
    let all = std::fs::read_dir("/proc").expect("processes").flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(is_child).collect()
}

fn binaries() -> PathBuf {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/find-postgres");
    let found = Command::new(script).output().expect("the script runs");
    assert!(found.status.success(), "{}", String::from_utf8_lossy(&found.stderr));
    String::from_utf8_lossy(&found.stdout).trim().into()
}

fn unprivileged() -> (u32, u32) {
    let number = |flag: &str, name: &str| -> Option<u32> {
        let said = Command::new("id").args([flag, name]).output().ok()?;
        String::from_utf8_lossy(&said.stdout).trim().parse().ok()
    };
    let found = ["postgres", "nobody"].iter().find_map(|name| Some((number("-u", name)?, number("-g", name)?)));
    found.expect("a user that is not root")
}
