//! Serve: opens the store, says where everything is, and runs until it is told to stop.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use comeback_core::{Millis, State, Timestamp};
use comeback_engine::executors::{ExecutorOptions, Executors, Reach};
use comeback_engine::store::{PostgresOptions, PostgresStore, SqliteOptions, SqliteStore, Store, StoreError};
use comeback_engine::{Available, Clock, Engine, EngineConfig, Limits, ScaledClock, SystemClock, VirtualClock};
use comeback_server::{App, AppOptions, GateOptions, ServeOptions};
use tokio::net::TcpListener;

use crate::args::ServeArgs;
use crate::failure::{Failure, code};
use crate::output::{self, say};
use crate::telemetry::Telemetry;

pub async fn run(args: ServeArgs) -> Result<u8, Failure> {
    let instance = args.instance.clone().unwrap_or_else(own_name);
    let telemetry = Telemetry::start(&args.log_format, &instance)?;
    let store = open(&args.db).await?;
    let (clock, virtual_clock) = clock(&args.clock, &*store).await?;
    let executors = Available { http: true, command: args.allow_commands, timer: true };
    let (limits, gate, serving) = limits(&args.limit)?;
    let retention = args.retention.as_deref().map(retention).transpose()?;
    let config = EngineConfig {
        instance: instance.clone(),
        executors,
        limits,
        retention,
        watching: telemetry.attempts(),
        ..EngineConfig::default()
    };
    let engine = Engine::start(store, clock, config).await.map_err(|error| broken(&args.db, &error))?;
    let executors = start_executors(&args, &engine)?;
    let options = AppOptions { instance, clock: virtual_clock, executors, gate, requests: telemetry.requests() };
    let app = App::new(engine.clone(), options).await.map_err(|error| broken(&args.db, &error))?;
    let listener = listen(&args.listen, &app).await?;
    banner(&args, &app, &listener);
    say!("  {}", resumed(&engine).await.map_err(|error| broken(&args.db, &error))?);
    let served = comeback_server::serve(app.clone(), listener, stop(), serving).await;
    served.map_err(|error| Failure::new(code::FAILED, format!("serving ended: {error}")))?;
    drop(app);
    engine.close().await;
    telemetry.finish().await;
    Ok(code::OK)
}

/// Machine and process: containers all have a process number 1.
fn own_name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = if host.trim().is_empty() { "comeback" } else { host.trim() };
    format!("{host}-{}", std::process::id())
}

fn start_executors(args: &ServeArgs, engine: &Engine) -> Result<Option<Executors>, Failure> {
    if args.no_executors {
        return Ok(None);
    }
    let networks = args.allow_network.iter().map(|text| text.parse().map_err(|_| text)).collect::<Result<_, _>>();
    let networks = networks.map_err(|text| {
        Failure::new(code::USAGE, format!("`{text}` is no network")).remedy("--allow-network 10.1.0.0/16")
    })?;
    let options = ExecutorOptions {
        reach: Reach { everywhere: args.allow_private_networks, networks },
        commands: args.allow_commands,
        ..ExecutorOptions::default()
    };
    let wrong = |why| Failure::new(code::FAILED, "the executors cannot be started").why(why);
    engine.start_executors(options).map(Some).map_err(wrong)
}

/// What may be kept for how long. Idempotency keys live for a day at least, so tasks do too.
fn retention(text: &str) -> Result<Millis, Failure> {
    let wrong = |why: String| {
        Failure::new(code::USAGE, format!("`{text}` is no time to keep tasks for")).why(why).remedy("--retention 90d")
    };
    match Millis::parse(text).map_err(|error| wrong(error.to_string()))? {
        span if span < Millis::from_days(1) => Err(wrong("a day is the least".into())),
        span => Ok(span),
    }
}

/// Limits of the engine, of the door, and of the connections.
fn limits(given: &[String]) -> Result<(Limits, GateOptions, ServeOptions), Failure> {
    let (mut limits, mut gate, mut serving) = (Limits::default(), GateOptions::default(), ServeOptions::default());
    for text in given {
        let wrong = |why: String| {
            Failure::new(code::USAGE, format!("`{text}` is no limit")).why(why).remedy("--limit payload_bytes=1048576")
        };
        let (name, value) = text.split_once('=').ok_or_else(|| wrong("a limit is a name, `=` and a value".into()))?;
        let set = match name {
            "connections" => value.parse().map(|count| serving.connections = count).map_err(|_| "no number".to_owned()),
            _ if GateOptions::NAMES.contains(&name) => gate.set(name, value),
            _ if Limits::NAMES.contains(&name) => limits.set(name, value),
            _ => Err(format!("there are connections, {}, {}", GateOptions::NAMES.join(", "), Limits::NAMES.join(", "))),
        };
        set.map_err(wrong)?;
    }
    Ok((limits, gate, serving))
}

fn is_postgres(db: &str) -> bool {
    db.starts_with("postgres://") || db.starts_with("postgresql://")
}

async fn open(db: &str) -> Result<Arc<dyn Store>, Failure> {
    if is_postgres(db) {
        let store = PostgresStore::open(&PostgresOptions::new(db)).await.map_err(|error| broken(db, &error))?;
        return Ok(Arc::new(store));
    }
    let store = SqliteStore::open(&SqliteOptions::file(db)).map_err(|error| broken(db, &error))?;
    Ok(Arc::new(store))
}

/// The address of a database without its password.
fn shown(db: &str) -> String {
    match db.split_once("://").and_then(|(scheme, rest)| rest.rsplit_once('@').map(|(_, place)| (scheme, place))) {
        Some((scheme, place)) => format!("{scheme}://…@{place}"),
        None => db.to_owned(),
    }
}

fn broken(db: &str, error: &StoreError) -> Failure {
    let failure = Failure::new(code::FAILED, format!("{} cannot be used", shown(db))).why(error.to_string());
    match error {
        StoreError::Locked(_) => failure.remedy("stop the other process, or use PostgreSQL: --db postgres://…"),
        StoreError::Schema(_) => failure.remedy("use the version that made it, or a newer one"),
        StoreError::Unavailable(_) if is_postgres(db) => {
            failure.remedy("check that PostgreSQL runs there and lets you in")
        }
        _ => failure,
    }
}

type Clocks = (Arc<dyn Clock>, Option<Arc<VirtualClock>>);

async fn clock(word: &str, store: &dyn Store) -> Result<Clocks, Failure> {
    if word == "system" {
        return Ok((SystemClock::new(), None));
    }
    let now = SystemClock::new().now();
    if word == "virtual" {
        let kept = store.meta(comeback_server::VIRTUAL_CLOCK).await.map_err(|error| broken("the database", &error))?;
        let kept = kept.and_then(|text| text.parse().ok()).map_or(now, Timestamp);
        let clock = VirtualClock::new(now.max(kept));
        return Ok((clock.clone(), Some(clock)));
    }
    match word.strip_prefix('x').and_then(|factor| factor.parse::<f64>().ok()).filter(|factor| *factor > 0.0) {
        Some(factor) => Ok((ScaledClock::new(now, factor), None)),
        None => {
            Err(Failure::new(code::USAGE, format!("`{word}` is no clock")).remedy("--clock system, virtual or x60"))
        }
    }
}

async fn listen(address: &str, app: &App) -> Result<TcpListener, Failure> {
    let wrong = |error: std::io::Error| {
        Failure::new(code::FAILED, format!("cannot listen on {address}: {error}"))
            .remedy("choose another: --listen 127.0.0.1:7331")
    };
    let listener = TcpListener::bind(address).await.map_err(wrong)?;
    let is_local = listener.local_addr().map_err(wrong)?.ip().is_loopback();
    if !is_local && app.keys.is_empty() {
        return Err(Failure::new(code::AUTH, format!("{address} can be reached from outside, and there is no key"))
            .why("without keys everybody who can reach the server could do everything")
            .remedy("start on loopback, make a key with `comeback key create --role admin`, then listen")
            .remedy("or stay on loopback: --listen 127.0.0.1:7330"));
    }
    Ok(listener)
}

fn banner(args: &ServeArgs, app: &App, listener: &TcpListener) {
    let address = listener.local_addr().unwrap_or_else(|_| SocketAddr::from(([127, 0, 0, 1], 0)));
    let data = if is_postgres(&args.db) {
        format!("{}   durable: yes, shared by all instances", shown(&args.db))
    } else {
        format!("{} (SQLite, WAL)   durable: yes, survives restart", args.db)
    };
    let auth = if app.keys.is_empty() {
        "none, loopback only         make a key: comeback key create --role admin"
    } else {
        "keys"
    };
    say!("comeback {}  serving", env!("CARGO_PKG_VERSION"));
    say!("  API         http://{address}/api/v1");
    say!("  Data        {data}");
    say!("  Auth        {auth}");
    if args.clock != "system" {
        say!("  Clock       {}", args.clock);
    }
}

/// What a start finds: the product in one sentence.
async fn resumed(engine: &Engine) -> Result<String, StoreError> {
    let (counts, next) = (engine.store().counts("default").await?.by_state, engine.store().next_due().await?);
    let of = |state: State| counts.get(&state).copied().unwrap_or(0);
    let running = of(State::Running) + of(State::Claimed);
    let (retries, waiting, pending) = (of(State::RetryPending), of(State::Waiting), of(State::Pending));
    if running + retries + waiting + pending == 0 {
        return Ok("ready: nothing is open".into());
    }
    let now = engine.now();
    let mut parts = vec![format!("{running} running"), format!("{pending} pending")];
    let overdue = next.retry.filter(|at| *at < now).map(|at| output::span(now.since(at)));
    parts.push(match overdue {
        Some(late) => format!("{retries} retries, overdue by up to {late}"),
        None => format!("{retries} retries"),
    });
    let first = [next.retry, next.start].into_iter().flatten().filter(|at| *at >= now).min();
    parts.push(match first {
        Some(at) => format!("{waiting} scheduled (next in {})", output::span(at.since(now))),
        None => format!("{waiting} scheduled"),
    });
    Ok(format!("resumed {}", parts.join(", ")))
}

/// SIGTERM, or Ctrl-C.
async fn stop() {
    let interrupt = async {
        let _ = tokio::signal::ctrl_c().await;
    };
    let terminate = async {
        match tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
            Ok(mut signal) => {
                signal.recv().await;
            }
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        () = interrupt => {}
        () = terminate => {}
    }
    eprintln!("stopping: finishing what was begun (at most {} s)", Duration::from_secs(10).as_secs());
}
