//! The workloads. Each starts its clock when everything is ready and stops it when the store shows that all is done.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use comeback_core::{Dialect, Failure, Millis, Policy, PolicyLimits, State, TaskId, Trigger, dialect};
use comeback_engine::{Engine, Json, LeaseRequest, Moment, Report, ReportEnd, Submit, TaskSpec};
use serde_json::{Value, json};

use crate::Bench;
use crate::measure::{percentiles, round, sizes};

/// About 200 bytes, as the rivals' and the storage measurements have.
fn payload(n: usize) -> Json {
    Json::from(json!({"n": n, "customer": "c-1029384756", "amount": 129900, "currency": "EUR",
        "description": "a payload of about two hundred bytes, as real ones are", "tags": ["one", "two", "three"]}))
}

fn policy(value: Value) -> Arc<Policy> {
    let read = dialect::parse(&value, Dialect::Native, &PolicyLimits::default());
    Arc::new(read.ok().flatten().unwrap_or_else(|| Policy::preset(Dialect::Native)))
}

fn task(n: usize, retry: &Arc<Policy>) -> TaskSpec {
    TaskSpec { payload: Some(payload(n)), retry: Some(retry.clone()), ..TaskSpec::new("t") }
}

fn storm_policy() -> Arc<Policy> {
    policy(json!({"strategy": "fixed", "delay": "100ms", "max_retries": 5}))
}

async fn fill(engine: &Engine, n: usize, make: impl Fn(usize) -> TaskSpec) -> Result<f64> {
    let started = Instant::now();
    let mut sent = 0;
    while sent < n {
        let tasks: Vec<TaskSpec> = (sent..n.min(sent + 1_000)).map(&make).collect();
        sent += tasks.len();
        engine.submit(Submit { namespace: "default".into(), tasks, ..Submit::default() }).await?;
    }
    Ok(n as f64 / started.elapsed().as_secs_f64())
}

fn request(bench: &Bench, worker: usize, wait: Duration) -> LeaseRequest {
    LeaseRequest { limit: bench.batch, wait, ..LeaseRequest::new("default", format!("worker-{worker}")) }
}

pub async fn submit(bench: &Bench, n: usize) -> Result<Value> {
    let retry = storm_policy();
    fill(&bench.engine, 100, |n| task(n, &retry)).await?;
    let next = Arc::new(AtomicUsize::new(0));
    let started = Instant::now();
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..32 {
        let (engine, next, retry) = (bench.engine.clone(), next.clone(), retry.clone());
        callers.spawn(async move {
            let mut waits = Vec::new();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= n {
                    return anyhow::Ok(waits);
                }
                let asked = Instant::now();
                engine.submit(Submit::one("default", task(number, &retry))).await?;
                waits.push(asked.elapsed().as_secs_f64() * 1e3);
            }
        });
    }
    let mut waits = Vec::new();
    while let Some(joined) = callers.join_next().await {
        waits.extend(joined??);
    }
    let wall = started.elapsed().as_secs_f64();
    Ok(json!({"n": n, "callers": 32, "submits_per_s": round(n as f64 / wall), "wait_ms": percentiles(waits)}))
}

pub async fn bulk(bench: &Bench, n: usize) -> Result<Value> {
    let retry = storm_policy();
    let rate = fill(&bench.engine, n, |n| task(n, &retry)).await?;
    Ok(json!({"n": n, "submits_per_s": round(rate)}))
}

/// Leases and settles until `left` is nothing. `end` says how a run ends, by its attempt.
async fn work_off(bench: &Bench, left: usize, fails: u32) -> Result<(f64, u64)> {
    let left = Arc::new(AtomicUsize::new(left));
    let attempts = Arc::new(AtomicU64::new(0));
    let started = Instant::now();
    let mut workers = tokio::task::JoinSet::new();
    for worker in 0..bench.workers {
        let engine = bench.engine.clone();
        let (left, attempts) = (left.clone(), attempts.clone());
        let ask = request(bench, worker, Duration::from_millis(20));
        workers.spawn(async move {
            while left.load(Ordering::Acquire) > 0 {
                let leased = engine.lease(ask.clone()).await?;
                attempts.fetch_add(leased.len() as u64, Ordering::Relaxed);
                let reports: Vec<Report> =
                    leased.iter().map(|it| Report { lease: it.lease, end: end_of(it.attempt_number, fails) }).collect();
                if reports.is_empty() {
                    continue;
                }
                for answer in engine.report(reports).await? {
                    if answer?.state == State::Succeeded {
                        left.fetch_sub(1, Ordering::AcqRel);
                    }
                }
            }
            anyhow::Ok(())
        });
    }
    while let Some(joined) = workers.join_next().await {
        joined??;
    }
    Ok((started.elapsed().as_secs_f64(), attempts.load(Ordering::Relaxed)))
}

fn end_of(attempt_number: u32, fails: u32) -> ReportEnd {
    if attempt_number <= fails {
        let message = "connection refused by upstream payment provider after 3 attempts to connect (os error 111)";
        ReportEnd::Failed(Failure { status: Some(503), ..Failure::new(Trigger::Error, message) })
    } else {
        ReportEnd::Succeeded { result: Some(Json::from(json!({"ok": true, "id": "res-1234567890", "ms": 12}))) }
    }
}

/// With a backlog the same drain is measured before and after the backlog is there, as medians of five.
pub async fn drain(bench: &Bench, n: usize, backlog: usize) -> Result<Value> {
    let retry = storm_policy();
    if backlog == 0 {
        let (enqueue, rate) = drain_once(bench, n, &retry).await?;
        return Ok(json!({"n": n, "submits_per_s": round(enqueue), "tasks_per_s": round(rate)}));
    }
    let without = median_drain(bench, n, &retry).await?;
    let far = Moment::After(Millis::from_days(14));
    let enqueue = fill(&bench.engine, backlog, |n| TaskSpec { start: Some(far), ..task(n, &retry) }).await?;
    grow_old(bench).await?;
    let with = median_drain(bench, n, &retry).await?;
    Ok(json!({
        "n": n, "backlog": backlog, "backlog_submits_per_s": round(enqueue),
        "tasks_per_s_without": round(without), "tasks_per_s": round(with), "kept": round(with / without),
    }))
}

async fn median_drain(bench: &Bench, n: usize, retry: &Arc<Policy>) -> Result<f64> {
    let mut rates = [0.0; 5];
    for rate in &mut rates {
        *rate = drain_once(bench, n, retry).await?.1;
    }
    rates.sort_by(f64::total_cmp);
    Ok(rates[2])
}

async fn drain_once(bench: &Bench, n: usize, retry: &Arc<Policy>) -> Result<(f64, f64)> {
    let done = |counts: &comeback_store::Counts| counts.by_state.get(&State::Succeeded).copied().unwrap_or(0);
    let before = done(&bench.engine.store().counts("default", bench.engine.now()).await?);
    let enqueue = fill(&bench.engine, n, |n| task(n, retry)).await?;
    settle_down(bench).await?;
    let (wall, _) = work_off(bench, n, 0).await?;
    let after = done(&bench.engine.store().counts("default", bench.engine.now()).await?);
    ensure!(after - before == n as u64, "{} of {n} are done", after - before);
    Ok((enqueue, n as f64 / wall))
}

/// Statistics after filling, as the rivals' harness makes them, so that no plan is a guess.
pub async fn settle_down(bench: &Bench) -> Result<()> {
    on_postgres(bench, &["analyze comeback.task, comeback.task_open"]).await
}

/// A backlog for a fortnight hence was not written a second ago: what its writing left to do is not part of the drain.
async fn grow_old(bench: &Bench) -> Result<()> {
    if bench.postgres.is_none() {
        // Its own thread moves what is in the log into the file; then the disk has it too.
        tokio::time::sleep(Duration::from_secs(2)).await;
        ensure!(tokio::process::Command::new("sync").status().await?.success(), "sync failed");
    }
    on_postgres(bench, &["vacuum (analyze)", "checkpoint"]).await
}

async fn on_postgres(bench: &Bench, statements: &[&str]) -> Result<()> {
    let Some(url) = &bench.postgres else { return Ok(()) };
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await?;
    tokio::spawn(connection);
    for statement in statements {
        client.batch_execute(statement).await?;
    }
    Ok(())
}

pub async fn storm(bench: &Bench, n: usize) -> Result<Value> {
    let retry = storm_policy();
    fill(&bench.engine, n, |n| task(n, &retry)).await?;
    settle_down(bench).await?;
    let (wall, attempts) = work_off(bench, n, 2).await?;
    ensure!(attempts == 3 * n as u64, "{attempts} attempts");
    Ok(
        json!({"n": n, "delay_ms": 100, "attempts": attempts, "attempts_per_s": round(attempts as f64 / wall), "wall_s": round(wall)}),
    )
}

pub async fn latency(bench: &Bench, seconds: u64) -> Result<Value> {
    let retry = storm_policy();
    let total = seconds as usize * 100;
    let begun: Arc<std::sync::Mutex<std::collections::HashMap<usize, Instant>>> = Arc::default();
    let worker = {
        let (engine, begun) = (bench.engine.clone(), begun.clone());
        let ask = LeaseRequest { wait: Duration::from_secs(5), limit: 10, ..LeaseRequest::new("default", "w") };
        tokio::spawn(async move {
            let mut waits = Vec::new();
            while waits.len() < total {
                let leased = engine.lease(ask.clone()).await?;
                let now = Instant::now();
                for it in &leased {
                    let value: Value = serde_json::from_str(it.payload.as_deref().unwrap_or("{}"))?;
                    let number = value["n"].as_u64().unwrap_or(0) as usize;
                    if let Ok(begun) = begun.lock()
                        && let Some(begun) = begun.get(&number)
                    {
                        waits.push(now.duration_since(*begun).as_secs_f64() * 1e3);
                    }
                }
                let reports = leased.iter().map(|it| Report { lease: it.lease, end: end_of(1, 0) }).collect();
                let engine = engine.clone();
                tokio::spawn(async move { engine.report(reports).await });
            }
            anyhow::Ok(waits)
        })
    };
    let started = tokio::time::Instant::now() + Duration::from_millis(500);
    for number in 0..total {
        tokio::time::sleep_until(started + Duration::from_millis(10 * number as u64)).await;
        if let Ok(mut begun) = begun.lock() {
            begun.insert(number, Instant::now());
        }
        let (engine, retry) = (bench.engine.clone(), retry.clone());
        tokio::spawn(async move { engine.submit(Submit::one("default", task(number, &retry))).await });
    }
    let waits = worker.await??;
    Ok(json!({"rate": 100, "latency_ms": percentiles(waits)}))
}

/// Every task fails once and is retried two seconds later; late is what is left between its due time and its start.
pub async fn lateness(bench: &Bench, n: usize) -> Result<Value> {
    let retry = policy(json!({"strategy": "fixed", "delay": "2s", "max_retries": 3}));
    fill(&bench.engine, n, |n| task(n, &retry)).await?;
    let due: Arc<std::sync::Mutex<std::collections::HashMap<TaskId, i64>>> = Arc::default();
    let mut late = Vec::new();
    let ask = LeaseRequest { wait: Duration::from_secs(5), limit: 100, ..LeaseRequest::new("default", "w") };
    while late.len() < n {
        let leased = bench.engine.lease(ask.clone()).await?;
        let now = bench.engine.now().0;
        let mut reports = Vec::with_capacity(leased.len());
        for it in &leased {
            if it.attempt_number > 1
                && let Ok(due) = due.lock()
                && let Some(due) = due.get(&it.lease.task)
            {
                late.push((now - due) as f64);
            }
            reports.push(Report { lease: it.lease, end: end_of(it.attempt_number, 1) });
        }
        let (engine, due) = (bench.engine.clone(), due.clone());
        let report = async move {
            for answer in engine.report(reports).await? {
                let answer = answer?;
                if let (Some(at), Ok(mut due)) = (answer.next_retry_at, due.lock()) {
                    due.insert(answer.task, at.0);
                }
            }
            anyhow::Ok(())
        };
        if late.is_empty() {
            report.await?;
        } else {
            tokio::spawn(report);
        }
    }
    Ok(json!({"n": n, "delay_s": 2, "lateness_ms": percentiles(late)}))
}

/// Limit of tasks in progress when no rate is given.
const MOST_OPEN: u64 = 20_000;

/// A steady stream of lives, one in ten failing once, with its rate per ten seconds. Without a rate it goes as fast as it can.
pub async fn sustained(bench: &Bench, rate: Option<f64>, seconds: u64) -> Result<Value> {
    let retry = policy(json!({"strategy": "fixed", "delay": "1s", "max_retries": 3}));
    let done = Arc::new(AtomicU64::new(0));
    let sent = Arc::new(AtomicU64::new(0));
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let mut tasks = tokio::task::JoinSet::new();
    for worker in 0..bench.workers {
        let engine = bench.engine.clone();
        let (done, stop) = (done.clone(), stop.clone());
        let ask = LeaseRequest { limit: bench.batch.min(500), ..request(bench, worker, Duration::from_millis(50)) };
        tasks.spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                let leased = engine.lease(ask.clone()).await?;
                let reports: Vec<Report> = leased
                    .iter()
                    .map(|it| {
                        let fails = u32::from(it.lease.task.0.as_bytes()[15] % 10 == 0);
                        Report { lease: it.lease, end: end_of(it.attempt_number, fails) }
                    })
                    .collect();
                if reports.is_empty() {
                    continue;
                }
                for answer in engine.report(reports).await? {
                    if answer?.state == State::Succeeded {
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
            anyhow::Ok(())
        });
    }
    {
        let (engine, done, sent, stop) = (bench.engine.clone(), done.clone(), sent.clone(), stop.clone());
        tasks.spawn(async move {
            let started = Instant::now();
            while !stop.load(Ordering::Relaxed) {
                let due = match rate {
                    Some(rate) => (started.elapsed().as_secs_f64() * rate) as u64,
                    None => done.load(Ordering::Relaxed) + MOST_OPEN,
                };
                let missing = due.saturating_sub(sent.load(Ordering::Relaxed)).min(1_000) as usize;
                if missing < 100 {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    continue;
                }
                let tasks = (0..missing).map(|n| task(n, &retry)).collect();
                engine.submit(Submit { namespace: "default".into(), tasks, ..Submit::default() }).await?;
                sent.fetch_add(missing as u64, Ordering::Relaxed);
            }
            anyhow::Ok(())
        });
    }
    let mut rates = Vec::new();
    let mut last = 0;
    for _ in 0..seconds / 10 {
        tokio::time::sleep(Duration::from_secs(10)).await;
        let now = done.load(Ordering::Relaxed);
        rates.push(round((now - last) as f64 / 10.0));
        eprintln!(
            "{} s: {} lives/s, {} behind",
            rates.len() * 10,
            rates[rates.len() - 1],
            sent.load(Ordering::Relaxed) - now
        );
        last = now;
    }
    stop.store(true, Ordering::Relaxed);
    while let Some(joined) = tasks.join_next().await {
        joined??;
    }
    let first_minute: f64 = rates.iter().take(6).sum::<f64>() / rates.len().clamp(1, 6) as f64;
    let worst = rates.iter().copied().fold(f64::INFINITY, f64::min);
    Ok(json!({
        "rate": rate, "seconds": seconds, "lives_per_s_by_ten_seconds": rates,
        "worst_against_first_minute": round(worst / first_minute.max(1.0)), "sizes": sizes(bench).await?,
    }))
}
