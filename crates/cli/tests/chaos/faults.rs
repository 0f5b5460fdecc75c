//! What goes wrong, and when: a schedule from the seed, and the hand that carries it out.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::Signal;
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::Instant;

use crate::cluster::Cluster;
use crate::history::Log;
use crate::plan::LEASE_MS;
use crate::processes::{Place, WorkerPlace, signal};
use crate::rng::Rng;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    KillServer,
    StopServer,
    KillWorker,
    StopWorker,
    /// The postmaster and all its children.
    KillPostgres,
    CrashSession,
    CutSessions,
}

impl Kind {
    pub fn word(self) -> &'static str {
        match self {
            Kind::KillServer => "kill server",
            Kind::StopServer => "stop server",
            Kind::KillWorker => "kill worker",
            Kind::StopWorker => "stop worker",
            Kind::KillPostgres => "kill postgres",
            Kind::CrashSession => "crash session",
            Kind::CutSessions => "cut sessions",
        }
    }

    /// Whether those who ask the servers feel it. A worker is missed by nobody but its tasks.
    pub fn is_felt(word: &str) -> bool {
        !word.ends_with("worker")
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Planned {
    pub at: Duration,
    pub kind: Kind,
    pub target: usize,
    /// How long it stays down or stopped.
    pub lasts: Duration,
}

/// Three lanes that do not wait for each other: servers, workers and the database fail at the same time, too.
pub type Schedule = [Vec<Planned>; 3];

/// The same for the same seed.
pub fn schedule(seed: u64, length: Duration, servers: usize, workers: usize) -> Schedule {
    let mut rng = Rng::new(seed);
    let mut lane = |mean_ms: u64, least_ms: u64, kinds: &[(Kind, u64, u64)], targets: usize| {
        let mut planned = Vec::new();
        let mut at = Duration::from_millis(least_ms + rng.below(mean_ms));
        while at < length {
            // The first is the one that counts: no run, however short, is without it.
            let first = planned.is_empty().then(|| kinds[0]);
            let (kind, least, most) = first.unwrap_or_else(|| *rng.pick(kinds).expect("one of them"));
            planned.push(Planned {
                at,
                kind,
                target: rng.below(targets as u64) as usize,
                lasts: Duration::from_millis(least + rng.below(most - least)),
            });
            // Exponential around the mean, so that some come close together.
            let drawn = (rng.below(1_000_000) + 1) as f64 / 1_000_001.0;
            at += Duration::from_millis(least_ms) + Duration::from_millis(mean_ms).mul_f64(-drawn.ln());
        }
        planned
    };
    let past_lease = LEASE_MS + 200;
    [
        lane(
            4_000,
            1_000,
            &[
                (Kind::KillServer, 50, 1_500),
                (Kind::KillServer, 50, 1_500),
                (Kind::KillServer, 0, 50),
                (Kind::StopServer, 300, 4_000),
            ],
            servers,
        ),
        lane(
            1_800,
            400,
            &[
                (Kind::KillWorker, 0, 500),
                (Kind::KillWorker, 0, 1_500),
                (Kind::StopWorker, past_lease, past_lease + 2_000),
            ],
            workers,
        ),
        lane(
            8_000,
            5_000,
            &[
                (Kind::KillPostgres, 0, 100),
                (Kind::KillPostgres, 100, 2_000),
                (Kind::KillPostgres, 0, 100),
                (Kind::CrashSession, 0, 1),
                (Kind::CutSessions, 0, 1),
            ],
            1,
        ),
    ]
}

/// What is there to be broken.
#[derive(Clone)]
pub struct Targets {
    pub cluster: Arc<AsyncMutex<Cluster>>,
    pub servers: Arc<Vec<AsyncMutex<Place>>>,
    pub workers: Arc<Vec<AsyncMutex<WorkerPlace>>>,
    pub log: Arc<Log>,
    pub done: Arc<Mutex<Done>>,
}

/// What was broken, and how long it took to come back.
#[derive(Default)]
pub struct Done {
    pub fired: BTreeMap<Kind, u64>,
    pub server_starts: Vec<Duration>,
    pub postgres_starts: Vec<Duration>,
}

pub fn said(fired: &BTreeMap<Kind, u64>) -> String {
    let all: Vec<String> = fired.iter().map(|(kind, count)| format!("{count} x {}", kind.word())).collect();
    all.join(", ")
}

/// How long a server may be kept from starting by a database that is away.
const SERVER_BACK: Duration = Duration::from_secs(60);

impl Targets {
    /// Everything that was planned, or why something did not come back.
    pub async fn strike(&self, schedule: Schedule) -> Result<(), String> {
        let begun = Instant::now();
        let [servers, workers, postgres] = schedule;
        tokio::try_join!(self.lane(servers, begun), self.lane(workers, begun), self.lane(postgres, begun)).map(|_| ())
    }

    async fn lane(&self, planned: Vec<Planned>, begun: Instant) -> Result<(), String> {
        for fault in planned {
            tokio::time::sleep_until(begun + fault.at).await;
            self.one(fault).await?;
            *self.done.lock().expect("the count").fired.entry(fault.kind).or_default() += 1;
        }
        Ok(())
    }

    async fn one(&self, fault: Planned) -> Result<(), String> {
        let (kind, lasts) = (fault.kind, fault.lasts);
        match kind {
            Kind::KillServer | Kind::StopServer => {
                let mut server = self.servers[fault.target].lock().await;
                let name = server.name.clone();
                self.log.fault(kind.word(), &name, false);
                if kind == Kind::KillServer {
                    server.kill();
                    tokio::time::sleep(lasts).await;
                    let (took, _) = server.start(SERVER_BACK).await?;
                    self.done.lock().expect("the count").server_starts.push(took);
                } else {
                    stop_for(server.pid(), lasts).await;
                }
                self.log.fault(kind.word(), &name, true);
            }
            Kind::KillWorker | Kind::StopWorker => {
                let mut worker = self.workers[fault.target].lock().await;
                self.log.fault(kind.word(), &worker.name(), false);
                if kind == Kind::KillWorker {
                    worker.kill();
                    tokio::time::sleep(lasts).await;
                    worker.restart();
                } else {
                    stop_for(worker.pid(), lasts).await;
                }
                self.log.fault(kind.word(), &worker.name(), true);
            }
            Kind::KillPostgres | Kind::CrashSession | Kind::CutSessions => {
                let mut cluster = self.cluster.lock().await;
                self.log.fault(kind.word(), "postgres", false);
                match kind {
                    Kind::KillPostgres => cluster.kill(),
                    Kind::CrashSession if cluster.crash_one_session() => {}
                    Kind::CrashSession => return Err("there was no session to crash".into()),
                    _ => cut_sessions(&cluster).await?,
                }
                tokio::time::sleep(lasts).await;
                let took = cluster.start().await;
                if kind == Kind::KillPostgres {
                    self.done.lock().expect("the count").postgres_starts.push(took);
                }
                self.log.fault(kind.word(), "postgres", true);
            }
        }
        Ok(())
    }
}

async fn stop_for(pid: Option<u32>, lasts: Duration) {
    let Some(pid) = pid else { return };
    signal(pid, Signal::STOP);
    tokio::time::sleep(lasts).await;
    signal(pid, Signal::CONT);
}

async fn cut_sessions(cluster: &Cluster) -> Result<(), String> {
    let client = cluster.connect().await.ok_or("PostgreSQL is away")?;
    let cut = "select pg_terminate_backend(pid) from pg_stat_activity
               where application_name = 'comeback' and random() < 0.5";
    client.batch_execute(cut).await.map_err(|error| error.to_string())
}
