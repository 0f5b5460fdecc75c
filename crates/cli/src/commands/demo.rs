//! Demo: a server on temporary data whose clock runs sixty times as fast, and tasks that fail on purpose and come back.

use std::sync::Arc;
use std::time::Duration;

use comeback_client::{Client, Outcome, Worker};
use comeback_core::Millis;
use comeback_engine::store::{SqliteOptions, SqliteStore};
use comeback_engine::{Available, Clock, Engine, EngineConfig, ScaledClock, SystemClock};
use comeback_server::{App, AppOptions, ServeOptions};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::Context;
use super::tail;
use crate::args::{DemoArgs, Global};
use crate::failure::{Failure, code};
use crate::output::say;

pub async fn run(global: &Global, args: DemoArgs) -> Result<u8, Failure> {
    let broken = |what: &str, why: String| Failure::new(code::FAILED, what.to_owned()).why(why);
    let folder = std::env::temp_dir().join(format!("comeback-demo-{}", std::process::id()));
    let path = match &args.keep {
        Some(path) => path.clone(),
        None => {
            std::fs::create_dir_all(&folder)
                .map_err(|error| broken("no place for temporary data", error.to_string()))?;
            folder.join("demo.db")
        }
    };
    let store = SqliteStore::open(&SqliteOptions::file(&path))
        .map_err(|error| broken("the data cannot be opened", error.to_string()))?;
    let clock = ScaledClock::new(SystemClock::new().now(), args.speed);
    let executors = Available { http: false, command: false, timer: false };
    let config = EngineConfig { instance: "demo".into(), executors, ..EngineConfig::default() };
    let engine = Engine::start(Arc::new(store), clock, config)
        .await
        .map_err(|error| broken("the demo cannot start", error.to_string()))?;
    let app = App::new(engine.clone(), AppOptions { instance: "demo".into(), ..AppOptions::default() })
        .await
        .map_err(|error| broken("the demo cannot start", error.to_string()))?;
    let listener = listen(&args.listen).await?;
    let address = listener.local_addr().map_err(|error| broken("the demo cannot listen", error.to_string()))?;
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let until = |mut stopped: tokio::sync::watch::Receiver<bool>| async move {
        let _ = stopped.wait_for(|stopped| *stopped).await;
    };
    let serving =
        tokio::spawn(comeback_server::serve(app.clone(), listener, until(stopped.clone()), ServeOptions::default()));
    let client = Client::new(format!("http://{address}"))?;
    let data = if args.keep.is_some() {
        path.display().to_string()
    } else {
        "temporary, removed on exit         keep it: comeback demo --keep demo.db".into()
    };
    say!("comeback {}  demo", env!("CARGO_PKG_VERSION"));
    say!("");
    say!("  API         http://{address}/api/v1");
    say!("  Data        {data}");
    say!(
        "  Clock       x{}: one second stands for {}",
        args.speed,
        crate::output::span(Millis((args.speed * 1_000.0) as u64))
    );
    say!("");
    say!("  Six sorts of tasks fail on purpose. Watch them come back (Ctrl-C ends it):");
    say!("");
    let context = Context { client: client.clone(), json: global.json };
    let global = Global { server: client.server().to_owned(), key: None, namespace: None, ..global.clone() };
    let working = tokio::spawn(worker(client.clone()).run(until(stopped.clone())));
    let feeding = tokio::spawn(feed(client.clone(), args.seconds.is_some()));
    let follow = tail::run(&context, &global, tail::What { task: None, from_start: true, all: false });
    let ended = async {
        match args.seconds {
            Some(seconds) => tokio::time::sleep(Duration::from_secs(seconds)).await,
            None => {
                let _ = tokio::signal::ctrl_c().await;
            }
        }
    };
    tokio::select! {
        outcome = follow => { outcome?; }
        () = ended => {}
    }
    feeding.abort();
    summary(&client).await;
    let _ = stop.send(true);
    let _ = tokio::time::timeout(Duration::from_secs(3), working).await;
    let _ = tokio::time::timeout(Duration::from_secs(3), serving).await;
    drop(app);
    engine.close().await;
    if args.keep.is_none() {
        let _ = std::fs::remove_dir_all(&folder);
    }
    Ok(code::OK)
}

/// The address that was asked for, or the next one that is free.
async fn listen(address: &str) -> Result<TcpListener, Failure> {
    if let Ok(listener) = TcpListener::bind(address).await {
        return Ok(listener);
    }
    let listener = TcpListener::bind("127.0.0.1:0").await;
    let listener = listener.map_err(|error| Failure::new(code::FAILED, format!("cannot listen: {error}")))?;
    eprintln!("{address} is taken; another port is used");
    Ok(listener)
}

/// Tasks that fail in the ways that real ones do.
async fn feed(client: Client, once: bool) {
    let exp = json!({"strategy": "exponential", "initial_delay": "60s", "multiplier": 2, "max_delay": "1h", "max_retries": 5,
        "jitter": "proportional"});
    for round in 0_u64.. {
        let tasks = json!({"tasks": [
            {"kind": "payments.charge", "payload": {"round": round}, "retry": exp},
            {"kind": "email.send", "retry": {"strategy": "fixed", "delay": "2m", "max_retries": 7}},
            {"kind": "invoice.render", "retry": exp},
            {"kind": "report.export", "retry": {"strategy": "fixed", "delay": "1m", "max_retries": 3}},
        ]});
        let _ = client.submit(&tasks).await;
        if round == 0 {
            let _ = client.submit(&json!({"kind": "kyc.recheck", "retry": {"schedule": ["7d", "14d"]}})).await;
        }
        let order = json!({"execution": {"name": "order-fulfilment"}, "tasks": [
            {"key": "reserve", "kind": "order.reserve"},
            {"key": "charge", "kind": "payments.charge", "needs": ["reserve"], "retry": exp},
            {"key": "ship", "kind": "order.ship", "needs": ["charge"]},
            {"key": "refund", "kind": "order.refund", "needs": [{"task": "charge", "when": "failure"}]},
        ]});
        let _ = client.submit(&order).await;
        tokio::time::sleep(Duration::from_secs(if once { 60 } else { 8 })).await;
    }
}

fn worker(client: Client) -> Worker {
    let unavailable = |needed: u32| {
        move |task: comeback_client::Task| async move {
            if task.attempt_number < needed {
                return Outcome::failed_with(json!({"status": 503, "message": "503 Service Unavailable"}));
            }
            Outcome::succeeded(json!({"charged": true}))
        }
    };
    let fine = |_: comeback_client::Task| async { Outcome::succeeded(Value::Null) };
    Worker::new(client, "demo")
        .concurrency(32)
        // In the time of the demo; it passes in two seconds of ours.
        .lease(Duration::from_secs(120))
        .handle("payments.charge", unavailable(3))
        .handle("email.send", |task: comeback_client::Task| async move {
            if task.run < 2 {
                let error = json!({"status": 429, "message": "429 Too Many Requests", "retry_after": "120"});
                return Outcome::failed_with(error);
            }
            Outcome::succeeded(json!({"sent": true}))
        })
        .handle("invoice.render", |_| async {
            Outcome::failed_with(json!({"class": "final", "type": "ValidationError", "message": "vat_id is missing"}))
        })
        .handle("report.export", |task: comeback_client::Task| async move {
            if task.run < 2 {
                // Hangs without a sign of life until its lease has run out.
                std::future::pending::<()>().await;
            }
            Outcome::succeeded(json!({"rows": 1_204}))
        })
        .handle("kyc.recheck", unavailable(3))
        .handle("order.reserve", fine)
        .handle("order.ship", fine)
        .handle("order.refund", fine)
        .without_signs_of_life()
}

async fn summary(client: &Client) {
    let Ok(stats) = client.get("/api/v1/stats").await else { return };
    let recovered = client.get("/api/v1/tasks?q=state:recovered&limit=500").await.unwrap_or_default();
    let recovered = recovered["items"].as_array().map_or(0, Vec::len);
    let count = |state: &str| stats["by_state"][state].as_u64().unwrap_or(0);
    eprintln!();
    eprintln!(
        "recovered {recovered}   retrying {}   failed {}   dead {}",
        count("retry_pending"),
        count("failed"),
        count("dead")
    );
}
