//! Measures the engine in process: one workload a call, one JSON line at the end.
//!
//! Everything is on as in production: full history, durable commits, fences. `bench/compare` runs these beside the rivals.

mod http;
mod measure;
mod workloads;

use std::sync::Arc;

use anyhow::Result;
use clap::{Parser, ValueEnum};
use comeback_engine::{Engine, EngineConfig, SystemClock};
use comeback_store::{PostgresOptions, PostgresStore, SqliteOptions, SqliteStore, Store};
use serde_json::{Value, json};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

#[derive(Parser)]
struct Arguments {
    #[arg(value_enum)]
    workload: Workload,
    /// A PostgreSQL URL. Without one a SQLite file in a temporary folder is measured.
    #[arg(long)]
    postgres: Option<String>,
    /// Tasks, where the workload has a number of them.
    #[arg(long)]
    n: Option<usize>,
    /// Workers in process.
    #[arg(long, default_value_t = 4)]
    workers: usize,
    /// Tasks per lease.
    #[arg(long, default_value_t = 1_000)]
    batch: u32,
    /// Seconds, where the workload has a duration.
    #[arg(long)]
    seconds: Option<u64>,
    /// Tasks due in 14 days that are there before.
    #[arg(long, default_value_t = 0)]
    backlog: usize,
    /// Full lives per second for the sustained mix; without it as many as there can be.
    #[arg(long)]
    rate: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Workload {
    /// Single submits by 32 callers.
    Submit,
    /// Submits of a thousand.
    Bulk,
    /// Lease and succeed everything.
    Drain,
    /// Fail, fail, succeed, with a durable delay of 100 ms.
    Storm,
    /// From submit to start at 100 a second.
    Latency,
    /// How late a retry starts after its due time.
    Lateness,
    /// Submit, claim and settle for minutes, one in ten failing once.
    Sustained,
    /// Drain over HTTP, in batches.
    HttpDrain,
    /// Single submits over HTTP, by 32 callers.
    HttpSubmit,
}

/// The database of a workload.
pub struct Bench {
    pub engine: Engine,
    pub workers: usize,
    pub batch: u32,
    pub postgres: Option<String>,
    pub folder: tempfile::TempDir,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let line = runtime.block_on(run(&arguments))?;
    println!("{line}");
    Ok(())
}

async fn run(arguments: &Arguments) -> Result<Value> {
    let folder = tempfile::Builder::new().prefix("comeback-bench").tempdir()?;
    let store: Arc<dyn Store> = match &arguments.postgres {
        None => Arc::new(SqliteStore::open(&SqliteOptions::file(folder.path().join("bench.db")))?),
        Some(url) => {
            measure::empty_schema(url).await?;
            Arc::new(PostgresStore::open(&PostgresOptions::new(url)).await?)
        }
    };
    let engine = Engine::start(store, SystemClock::new(), EngineConfig::default()).await?;
    let bench = Bench {
        engine,
        workers: arguments.workers,
        batch: arguments.batch,
        postgres: arguments.postgres.clone(),
        folder,
    };
    let n = |default: usize| arguments.n.unwrap_or(default);
    let mut line = match arguments.workload {
        Workload::Submit => workloads::submit(&bench, n(60_000)).await?,
        Workload::Bulk => workloads::bulk(&bench, n(100_000)).await?,
        Workload::Drain => workloads::drain(&bench, n(50_000), arguments.backlog).await?,
        Workload::Storm => workloads::storm(&bench, n(20_000)).await?,
        Workload::Latency => workloads::latency(&bench, arguments.seconds.unwrap_or(20)).await?,
        Workload::Lateness => workloads::lateness(&bench, n(2_000)).await?,
        Workload::HttpDrain => http::drain(&bench, n(50_000)).await?,
        Workload::HttpSubmit => http::submit(&bench, n(30_000)).await?,
        Workload::Sustained => workloads::sustained(&bench, arguments.rate, arguments.seconds.unwrap_or(300)).await?,
    };
    line["peer"] = json!(if arguments.postgres.is_some() { "comeback-postgres" } else { "comeback-sqlite" });
    line["workload"] = json!(format!("{:?}", arguments.workload).to_lowercase());
    Ok(line)
}
