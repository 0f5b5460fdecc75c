//! How fast executions of different sizes are worked off: `cargo run --release -p comeback-engine --example sizes`.
//!
//! Each shape comes small and large, on a SQLite file with durable commits. As long as the end of a task costs what its own edges
//! cost, the microseconds per task are about the same in both.

use std::time::Instant;

use comeback_engine::{Engine, ExecutionSpec, LeaseRequest, Report, ReportEnd, Submit, TaskSpec};

#[path = "../tests/common/shapes.rs"]
mod shapes;
use shapes::{chain, fan, rows};

type Failure = Box<dyn std::error::Error>;

async fn measure(engine: &Engine, name: &str, tasks: Vec<TaskSpec>, at_a_time: u32) -> Result<(), Failure> {
    let count = tasks.len();
    let began = Instant::now();
    let execution = Some(ExecutionSpec::default());
    engine.submit(Submit { namespace: "default".into(), tasks, execution, ..Submit::default() }).await?;
    let submitted = began.elapsed();
    let began = Instant::now();
    let mut ran = 0;
    while ran < count {
        let ask = LeaseRequest { limit: at_a_time, ..LeaseRequest::new("default", "me") };
        let leased = engine.lease(ask).await?;
        ran += leased.len();
        let end = ReportEnd::Succeeded { result: None };
        let reports = leased.iter().map(|it| Report { lease: it.lease, end: end.clone() }).collect();
        for answer in engine.report(reports).await? {
            answer?;
        }
    }
    let each = began.elapsed().as_secs_f64() / count as f64;
    let submitted = submitted.as_millis();
    println!(
        "{name:8} {count:6} tasks  {:9.0} tasks/s  {:7.0} µs per task  (submitted in {submitted} ms)",
        1.0 / each,
        each * 1e6
    );
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let engine = Engine::open_sqlite(folder.path().join("sizes.db")).await?;
    for count in [100, 1_000] {
        measure(&engine, "chain", chain(count), 10).await?;
    }
    for count in [500, 5_000] {
        measure(&engine, "fan-out", fan(count), 100).await?;
    }
    for count in [1_000, 10_000] {
        measure(&engine, "rows", rows(count), 100).await?;
    }
    engine.close().await;
    Ok(())
}
