//! The same over HTTP: a real server on a port, spoken to by the Rust client.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Result, ensure};
use comeback_client::Client;
use comeback_server::{App, AppOptions, ServeOptions};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::Bench;
use crate::measure::{percentiles, round};
use crate::workloads::settle_down;

async fn serve(bench: &Bench) -> Result<Client> {
    let app = App::new(bench.engine.clone(), AppOptions::default()).await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    tokio::spawn(comeback_server::serve(app, listener, std::future::pending(), ServeOptions::default()));
    Ok(Client::new(url)?)
}

fn task(n: usize) -> Value {
    json!({"kind": "t", "retry": {"strategy": "fixed", "delay": "100ms", "max_retries": 5},
        "payload": {"n": n, "customer": "c-1029384756", "amount": 129900, "currency": "EUR",
            "description": "a payload of about two hundred bytes, as real ones are", "tags": ["one", "two", "three"]}})
}

#[derive(Clone, Copy, Serialize)]
struct Made {
    ok: bool,
    id: &'static str,
    ms: u32,
}

#[derive(Serialize)]
struct Report<'a> {
    lease: &'a str,
    outcome: &'static str,
    result: Made,
}

#[derive(Serialize)]
struct Reports<'a> {
    reports: Vec<Report<'a>>,
}

#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    state: String,
}

#[derive(Deserialize)]
struct Answers {
    reports: Vec<Answer>,
}

/// Leases and reports of a thousand.
pub async fn drain(bench: &Bench, n: usize) -> Result<Value> {
    let client = serve(bench).await?;
    let started = Instant::now();
    for from in (0..n).step_by(1_000) {
        let tasks: Vec<Value> = (from..n.min(from + 1_000)).map(task).collect();
        client.submit(&json!({"tasks": tasks})).await?;
    }
    let enqueue = n as f64 / started.elapsed().as_secs_f64();
    settle_down(bench).await?;
    let left = Arc::new(AtomicUsize::new(n));
    let started = Instant::now();
    let mut workers = tokio::task::JoinSet::new();
    for worker in 0..bench.workers {
        let (client, left) = (client.clone(), left.clone());
        let ask = json!({"worker": format!("w{worker}"), "limit": bench.batch, "wait": 0.02});
        workers.spawn(async move {
            while left.load(Ordering::Acquire) > 0 {
                let leases = client.leases(&ask).await?;
                if leases.is_empty() {
                    continue;
                }
                let result = Made { ok: true, id: "res-1234567890", ms: 12 };
                let reports = leases.iter().map(|it| Report { lease: &it.token, outcome: "succeeded", result });
                let reports = Reports { reports: reports.collect() };
                let answers: Answers = client.post_for("/api/v1/leases/report", &reports).await?;
                ensure!(answers.reports.iter().all(|it| it.state == "succeeded"), "a report was refused");
                left.fetch_sub(answers.reports.len(), Ordering::AcqRel);
            }
            anyhow::Ok(())
        });
    }
    while let Some(joined) = workers.join_next().await {
        joined??;
    }
    let rate = n as f64 / started.elapsed().as_secs_f64();
    Ok(json!({"n": n, "submits_per_s": round(enqueue), "tasks_per_s": round(rate)}))
}

/// Single submits over 32 connections.
pub async fn submit(bench: &Bench, n: usize) -> Result<Value> {
    let client = serve(bench).await?;
    let next = Arc::new(AtomicUsize::new(0));
    let started = Instant::now();
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..32 {
        let (client, next) = (client.clone(), next.clone());
        callers.spawn(async move {
            let mut waits = Vec::new();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= n {
                    return anyhow::Ok(waits);
                }
                let asked = Instant::now();
                client.submit(&task(number)).await?;
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
