//! `serve`: opens the store, prints the addresses, and runs until a signal stops it.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use comeback_core::{Millis, PolicyLimits, Quotas, Timestamp};
use comeback_engine::executors::{EgressPolicy, ExecutorOptions, Executors, Kinds, ShutdownHandle};
use comeback_engine::secrets::Keyring;
use comeback_engine::store::{Background, Loop, OpenWork, Overdue, Place, Store};
use comeback_engine::{Available, Clock, Engine, EngineConfig, Limits, ScaledClock, SystemClock, VirtualClock};
use comeback_server::{App, AppOptions, LimiterOptions, RouteSet, ServeOptions};
use tokio::net::TcpListener;

use super::broken;
use crate::args::ServeArgs;
use crate::crash;
use crate::environment;
use crate::error::{CliError, code};
use crate::output::{grouped, span, try_outln};
use crate::telemetry::{Telemetry, log};
use crate::watch::Interrupted;

/// Additions of a daemon to a plain server.
pub struct ServeExtras {
    /// Kinds that the server runs itself.
    pub kinds: Kinds,
    /// Time for running work to finish after the signal to stop.
    pub grace: Duration,
    /// Lines for the banner.
    pub lines: Vec<String>,
}

impl Default for ServeExtras {
    fn default() -> Self {
        ServeExtras { kinds: Kinds::default(), grace: Duration::from_secs(10), lines: Vec::new() }
    }
}

/// Runs a server until it is stopped.
pub async fn run(args: ServeArgs, mut extras: ServeExtras) -> Result<u8, CliError> {
    crash::abort_on_panic(&args.log_format);
    let instance = args.instance.clone().unwrap_or_else(default_instance);
    let background = Background::default();
    let telemetry = Telemetry::start(&args.log_format, &instance, &background)?;
    environment::warn_of_unknown();
    let AllLimits { limits, policies, gate, serving } = limits(&args.limit)?;
    let policies = environment::tightened(policies)?;
    let quotas = quotas(&args.quota)?;
    let secret_keys = secret_keys(args.secret_key_file.as_deref())?;
    let retention = args.retention.as_deref().map(retention).transpose()?;
    // The last one wins: an option overrides its `RETRY_` variable.
    let look_every: Vec<String> = environment::look_every()?.into_iter().chain(args.look_every.clone()).collect();
    let (stuck_after, periods) = (stuck_after(&args.stuck_after)?, periods(&look_every)?);
    let place = Place::named(&args.db);
    let wrong = |error| broken(&place, &error);
    let store = place.open().await.map_err(wrong)?;
    let (clock, virtual_clock) = clock(&args.clock, &place, &*store).await?;
    let executors = Available { http: true, command: args.allow_commands, timer: true };
    let config = EngineConfig {
        instance: instance.clone(),
        executors,
        kinds: std::mem::take(&mut extras.kinds),
        limits,
        quotas,
        secret_keys,
        policy_limits: policies,
        retention,
        stuck_after,
        periods,
        watching: telemetry.attempts(),
        background,
        ..EngineConfig::default()
    };
    // Counted before the loops start to change it.
    let now = clock.now();
    let found = store.open_work(now).await.map_err(wrong)?;
    let listener = listen(&args.listen).await?;
    let engine = Engine::start(store.clone(), clock, config).await.map_err(wrong)?;
    let endpoint = Endpoint {
        place: &place,
        listener,
        resumed: resumed(&found, now),
        gate,
        serving,
        clock: virtual_clock,
        instance,
    };
    let served = serve(&args, extras, &engine, endpoint, &telemetry).await;
    // Also after an error: loops must not outlive the store.
    engine.stop_loops().await;
    engine.close().await;
    // Open connections are not waited for: everything acknowledged is written, and the file is complete.
    store.close().await;
    telemetry.finish().await;
    served.map(|()| code::OK)
}

/// Everything between the engine and its clients.
struct Endpoint<'a> {
    place: &'a Place,
    listener: TcpListener,
    resumed: String,
    gate: LimiterOptions,
    serving: ServeOptions,
    clock: Option<Arc<VirtualClock>>,
    instance: String,
}

async fn serve(
    args: &ServeArgs,
    extras: ServeExtras,
    engine: &Engine,
    endpoint: Endpoint<'_>,
    telemetry: &Telemetry,
) -> Result<(), CliError> {
    let Endpoint { place, listener, resumed, gate, serving, clock, instance } = endpoint;
    let mut interrupted = Interrupted::listen()?;
    let executors = start_executors(args, engine, &listener)?;
    let ending = executors.as_ref().map(Executors::ending);
    let trusted_proxies = networks(&args.trusted_proxy, "--trusted-proxy 10.1.0.0/16")?;
    let (requests, added_routes) = (telemetry.requests(), added_routes());
    let options = AppOptions { instance, clock, executors, limiter: gate, requests, trusted_proxies, added_routes };
    let app = App::new(engine.clone(), options).await.map_err(|error| broken(place, &error))?;
    require_keys(&listener, &args.listen, &app).inspect_err(|_| app.drain())?;
    banner(args, place, &app, &listener);
    extras.lines.iter().for_each(|line| try_outln!("  {line}"));
    try_outln!("  {resumed}");
    let (closing, grace) = (ending.clone(), extras.grace);
    let stopped = async move {
        interrupted.wait().await;
        log::line(&format!("stopping: waiting for running work (at most {} s)", grace.as_secs()));
        closing.inspect(ShutdownHandle::close);
    };
    let served = comeback_server::serve(app, listener, stopped, serving).await;
    if let Some(ending) = ending {
        ending.finish(grace).await;
    }
    served.map_err(|error| CliError::new(code::FAILED, format!("server failed: {error}")))
}

/// The routes of other systems, if this binary was built with them.
pub fn added_routes() -> Vec<RouteSet> {
    #[cfg(feature = "compat")]
    return vec![comeback_compat::routes()];
    #[cfg(not(feature = "compat"))]
    Vec::new()
}

/// Host and process id, because every container has a process 1.
fn default_instance() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = if host.trim().is_empty() { "comeback" } else { host.trim() };
    format!("{host}-{}", std::process::id())
}

fn networks<T: std::str::FromStr>(given: &[String], remedy: &str) -> Result<Vec<T>, CliError> {
    let read = |text: &String| {
        text.parse().map_err(|_| CliError::new(code::USAGE, format!("invalid network `{text}`")).remedy(remedy))
    };
    given.iter().map(read).collect()
}

fn start_executors(args: &ServeArgs, engine: &Engine, listener: &TcpListener) -> Result<Option<Executors>, CliError> {
    if args.no_executors {
        return Ok(None);
    }
    let networks = networks(&args.allow_network, "--allow-network 10.1.0.0/16")?;
    // The address it listens on: with port 0 only the listener knows the port.
    let address = listener.local_addr().map_or_else(|_| args.listen.clone(), |address| address.to_string());
    let handles = args.public_url.clone().unwrap_or_else(|| format!("http://{address}"));
    let options = ExecutorOptions {
        handles,
        reach: EgressPolicy { everywhere: args.allow_private_networks, networks },
        commands: args.allow_commands,
        pass_env: args.pass_env.clone(),
        ..ExecutorOptions::default()
    };
    let wrong = |why| CliError::new(code::FAILED, "cannot start the executors").why(why);
    engine.start_executors(options).map(Some).map_err(wrong)
}

/// Parses `--retention`. Idempotency keys live for at least a day, so tasks do too.
fn retention(text: &str) -> Result<Millis, CliError> {
    let invalid = |why: String| {
        CliError::new(code::USAGE, format!("invalid --retention `{text}`")).why(why).remedy("--retention 90d")
    };
    match Millis::parse(text).map_err(|error| invalid(error.to_string()))? {
        span if span < Millis::from_days(1) => Err(invalid("the minimum is 1d".into())),
        span => Ok(span),
    }
}

/// Parses `--stuck-after`.
fn stuck_after(text: &str) -> Result<Millis, CliError> {
    let invalid = |why: String| {
        CliError::new(code::USAGE, format!("invalid --stuck-after `{text}`")).why(why).remedy("--stuck-after 30m")
    };
    match Millis::parse(text).map_err(|error| invalid(error.to_string()))? {
        span if span < Millis::from_secs(1) => Err(invalid("the minimum is 1s".into())),
        span => Ok(span),
    }
}

/// Parses `--look-every`: polling intervals of loops.
fn periods(given: &[String]) -> Result<Vec<(Loop, Millis)>, CliError> {
    let read = |text: &String| {
        let invalid = |why: String| {
            CliError::new(code::USAGE, format!("invalid --look-every `{text}`"))
                .why(why)
                .remedy("--look-every retries=10s")
        };
        let (name, span) = text.split_once('=').ok_or_else(|| invalid("expected LOOP=DURATION".into()))?;
        let loops = Loop::ALL.iter().filter(|it| !matches!(it, Loop::Dispatch | Loop::Hooks));
        let name = loops.clone().find(|it| it.word() == name).ok_or_else(|| {
            invalid(format!(
                "unknown loop; one of {}",
                loops.clone().map(|it| it.word()).collect::<Vec<_>>().join(", ")
            ))
        })?;
        match Millis::parse(span).map_err(|error| invalid(error.to_string()))? {
            span if span < Millis(100) || span > Millis::from_days(1) => {
                Err(invalid("the interval must be between 100ms and 1d".into()))
            }
            span => Ok((*name, span)),
        }
    };
    given.iter().map(read).collect()
}

/// Limits of the engine, of policies, of request admission, and of connections.
#[derive(Default)]
pub(super) struct AllLimits {
    limits: Limits,
    policies: PolicyLimits,
    gate: LimiterOptions,
    serving: ServeOptions,
}

/// Parses `--limit`.
pub(super) fn limits(given: &[String]) -> Result<AllLimits, CliError> {
    let mut limited = AllLimits::default();
    for text in given {
        let invalid = |why: String| {
            CliError::new(code::USAGE, format!("invalid --limit `{text}`"))
                .why(why)
                .remedy("--limit payload_bytes=1048576")
        };
        let (name, value) = text.split_once('=').ok_or_else(|| invalid("expected NAME=VALUE".into()))?;
        let set = match name {
            _ if ServeOptions::NAMES.contains(&name) => limited.serving.set(name, value),
            _ if LimiterOptions::NAMES.contains(&name) => limited.gate.set(name, value),
            _ if PolicyLimits::NAMES.contains(&name) => limited.policies.set(name, value),
            _ if Limits::NAMES.contains(&name) => limited.limits.set(name, value),
            _ => {
                let names = [ServeOptions::NAMES, LimiterOptions::NAMES, &PolicyLimits::NAMES, Limits::NAMES].concat();
                Err(format!("unknown limit; one of {}", names.join(", ")))
            }
        };
        set.map_err(invalid)?;
    }
    Ok(limited)
}

/// Parses `--quota`: quotas per namespace.
fn quotas(given: &[String]) -> Result<Quotas, CliError> {
    let mut quotas = Quotas::default();
    for text in given {
        let invalid = |why: String| {
            CliError::new(code::USAGE, format!("invalid --quota `{text}`")).why(why).remedy("--quota lanes=20000")
        };
        let (name, value) = text.split_once('=').ok_or_else(|| invalid("expected NAME=NUMBER".into()))?;
        quotas.set(name, value).map_err(invalid)?;
    }
    Ok(quotas)
}

/// The encryption keys for secrets, from the environment or from a file; none if neither is set.
fn secret_keys(file: Option<&Path>) -> Result<Keyring, CliError> {
    let text = match (std::env::var("COMEBACK_SECRET_KEY").ok().filter(|text| !text.trim().is_empty()), file) {
        (Some(_), Some(_)) => {
            return Err(CliError::new(code::USAGE, "encryption keys for secrets are given twice")
                .why("COMEBACK_SECRET_KEY and --secret-key-file are both set")
                .remedy("set only one of them"));
        }
        (Some(text), None) => text,
        (None, Some(path)) => std::fs::read_to_string(path).map_err(|error| {
            CliError::new(code::USAGE, format!("cannot read {}", path.display())).why(error.to_string())
        })?,
        (None, None) => return Ok(Keyring::default()),
    };
    Keyring::read(&text).map_err(|why| {
        CliError::new(code::USAGE, "invalid encryption key for secrets")
            .why(why)
            .remedy("create one: openssl rand -hex 32")
    })
}

type Clocks = (Arc<dyn Clock>, Option<Arc<VirtualClock>>);

async fn clock(word: &str, place: &Place, store: &dyn Store) -> Result<Clocks, CliError> {
    if word == "system" {
        return Ok((SystemClock::new(), None));
    }
    let now = SystemClock::new().now();
    let start = word.strip_prefix("virtual@").map(Timestamp::parse_rfc3339);
    if word == "virtual" || start.is_some() {
        let start = start.transpose().map_err(|error| {
            CliError::new(code::USAGE, format!("invalid --clock `{word}`"))
                .why(error.to_string())
                .remedy("--clock virtual@2026-01-31T12:00:00Z")
        })?;
        let started = comeback_server::start_virtual_clock(store, start, now).await;
        let clock = VirtualClock::new(started.map_err(|error| broken(place, &error))?);
        return Ok((clock.clone(), Some(clock)));
    }
    match word.strip_prefix('x').and_then(|factor| factor.parse::<f64>().ok()).filter(|factor| *factor > 0.0) {
        Some(factor) => Ok((ScaledClock::new(now, factor), None)),
        None => {
            Err(CliError::new(code::USAGE, format!("invalid --clock `{word}`"))
                .remedy("--clock system, virtual or x60"))
        }
    }
}

async fn listen(address: &str) -> Result<TcpListener, CliError> {
    let wrong = |error: std::io::Error| {
        CliError::new(code::FAILED, format!("cannot listen on {address}"))
            .why(error.to_string())
            .remedy("use another address: --listen 127.0.0.1:7331")
    };
    TcpListener::bind(address).await.map_err(wrong)
}

/// Refuses to listen on a public address without keys.
pub fn require_keys(listener: &TcpListener, address: &str, app: &App) -> Result<(), CliError> {
    let is_local = listener.local_addr().is_ok_and(|address| address.ip().is_loopback());
    if !is_local && app.keys.is_empty() {
        return Err(CliError::new(code::AUTH, format!("{address} can be reached from outside, and there are no keys"))
            .why("without keys anyone who can reach the server is admin")
            .remedy("create a key first: comeback key create --role admin --db FILE")
            .remedy("or stay on loopback: --listen 127.0.0.1:7330"));
    }
    Ok(())
}

fn banner(args: &ServeArgs, place: &Place, app: &App, listener: &TcpListener) {
    let address = listener.local_addr().unwrap_or_else(|_| SocketAddr::from(([127, 0, 0, 1], 0)));
    let data = match place {
        Place::Server(_) => format!("{place}   durable: yes, shared by all instances"),
        Place::File(_) => format!("{place} (SQLite, WAL)   durable: yes, survives restart"),
    };
    let auth = if app.keys.is_empty() {
        "none, loopback only         create a key: comeback key create --role admin"
    } else {
        "keys"
    };
    try_outln!("comeback {}  serving", env!("CARGO_PKG_VERSION"));
    try_outln!("  Dashboard   http://{address}/");
    try_outln!("  API         http://{address}/api/v1");
    try_outln!("  Data        {data}");
    try_outln!("  Auth        {auth}");
    if args.clock != "system" {
        try_outln!("  Clock       {}", args.clock.split('@').next().unwrap_or_default());
    }
}

/// The open work that a start finds, in one line.
fn resumed(found: &OpenWork, now: Timestamp) -> String {
    if *found == OpenWork::default() {
        return "ready: no open tasks".into();
    }
    let overdue = |it: Overdue, one: &str, many: &str| {
        let late = if it.late == Millis::ZERO { String::new() } else { format!(" by up to {}", span(it.late)) };
        (it.count, format!("{} overdue{late}", if it.count == 1 { one } else { many }))
    };
    let next = found.next.map(|at| format!(" (next in {})", span(at.since(now)))).unwrap_or_default();
    let parts = [
        (found.running, "running".to_owned()),
        (found.pending, "pending".to_owned()),
        overdue(found.retries, "retry", "retries"),
        overdue(found.starts, "start", "starts"),
        (found.scheduled, format!("scheduled{next}")),
        (found.waiting, "waiting for other tasks".to_owned()),
        (found.paused, "paused".to_owned()),
    ];
    let there = parts.into_iter().filter(|(count, _)| *count > 0);
    let words: Vec<String> = there.map(|(count, words)| format!("{} {words}", grouped(count))).collect();
    format!("resumed {}", words.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_says_what_it_found() {
        let now = Timestamp(1_000_000);
        let found = OpenWork {
            running: 1,
            retries: Overdue { count: 3, late: Millis(8_000) },
            scheduled: 11,
            next: Some(now + Millis(42_000)),
            ..OpenWork::default()
        };
        let expected = "resumed 1 running, 3 retries overdue by up to 8s, 11 scheduled (next in 42s)";
        assert_eq!(resumed(&found, now), expected);
        let starts = Overdue { count: 1, late: Millis(500) };
        let all = OpenWork { pending: 1_204, starts, waiting: 2, paused: 4, ..OpenWork::default() };
        assert_eq!(
            resumed(&all, now),
            "resumed 1,204 pending, 1 start overdue by up to 500ms, 2 waiting for other tasks, 4 paused"
        );
        assert_eq!(resumed(&OpenWork::default(), now), "ready: no open tasks");
    }
}
