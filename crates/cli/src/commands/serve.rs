//! Serve: opens the store, says where everything is, and runs until it is told to stop.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use comeback_core::{Millis, PolicyLimits, Quotas, Timestamp};
use comeback_engine::executors::{Ending, ExecutorOptions, Executors, Kinds, Reach};
use comeback_engine::secrets::Keyring;
use comeback_engine::store::{Background, Loop, OpenWork, Overdue, Place, Store};
use comeback_engine::{Available, Clock, Engine, EngineConfig, Limits, ScaledClock, SystemClock, VirtualClock};
use comeback_server::{App, AppOptions, LimiterOptions, ServeOptions};
use tokio::net::TcpListener;

use super::broken;
use crate::args::ServeArgs;
use crate::crash;
use crate::environment;
use crate::failure::{Failure, code};
use crate::output::{grouped, span, tell};
use crate::telemetry::{Telemetry, log};
use crate::watch::Interrupted;

/// What a server has beside what every server has.
pub struct Beside {
    /// Kinds that it runs itself.
    pub kinds: Kinds,
    /// How long what was begun may go on after the word to stop.
    pub grace: Duration,
    /// Said when it starts.
    pub lines: Vec<String>,
}

impl Default for Beside {
    fn default() -> Self {
        Beside { kinds: Kinds::default(), grace: Duration::from_secs(10), lines: Vec::new() }
    }
}

pub async fn run(args: ServeArgs, mut beside: Beside) -> Result<u8, Failure> {
    crash::abort_on_panic(&args.log_format);
    let instance = args.instance.clone().unwrap_or_else(own_name);
    let background = Background::default();
    let telemetry = Telemetry::start(&args.log_format, &instance, &background)?;
    environment::warn_of_unknown();
    let Limited { limits, policies, gate, serving } = limits(&args.limit)?;
    let policies = environment::tightened(policies)?;
    let quotas = quotas(&args.quota)?;
    let secret_keys = secret_keys(args.secret_key_file.as_deref())?;
    let retention = args.retention.as_deref().map(retention).transpose()?;
    // The last one wins: an option over its `RETRY_` variable.
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
        kinds: std::mem::take(&mut beside.kinds),
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
    // Before the loops begin to change it.
    let now = clock.now();
    let found = store.open_work(now).await.map_err(wrong)?;
    let listener = listen(&args.listen).await?;
    let engine = Engine::start(store.clone(), clock, config).await.map_err(wrong)?;
    let door =
        Door { place: &place, listener, resumed: resumed(&found, now), gate, serving, clock: virtual_clock, instance };
    let served = open(&args, beside, &engine, door, &telemetry).await;
    // However it ended: loops that are torn out of their work would complain of the store.
    engine.stop_loops().await;
    engine.close().await;
    // Whoever still holds a connection is not waited for: everything that was acknowledged is written, and the file is whole.
    store.close().await;
    telemetry.finish().await;
    served.map(|()| code::OK)
}

/// What the engine is reached by.
struct Door<'a> {
    place: &'a Place,
    listener: TcpListener,
    resumed: String,
    gate: LimiterOptions,
    serving: ServeOptions,
    clock: Option<Arc<VirtualClock>>,
    instance: String,
}

async fn open(
    args: &ServeArgs,
    beside: Beside,
    engine: &Engine,
    door: Door<'_>,
    telemetry: &Telemetry,
) -> Result<(), Failure> {
    let Door { place, listener, resumed, gate, serving, clock, instance } = door;
    let mut interrupted = Interrupted::listen()?;
    let executors = start_executors(args, engine, &listener)?;
    let ending = executors.as_ref().map(Executors::ending);
    let trusted_proxies = networks(&args.trusted_proxy, "--trusted-proxy 10.1.0.0/16")?;
    let options =
        AppOptions { instance, clock, executors, limiter: gate, requests: telemetry.requests(), trusted_proxies };
    let app = App::new(engine.clone(), options).await.map_err(|error| broken(place, &error))?;
    refuse_strangers(&listener, &args.listen, &app).inspect_err(|_| app.drain())?;
    banner(args, place, &app, &listener);
    beside.lines.iter().for_each(|line| tell!("  {line}"));
    tell!("  {resumed}");
    let (closing, grace) = (ending.clone(), beside.grace);
    let stopped = async move {
        interrupted.wait().await;
        log::line(&format!("stopping: finishing what was begun (at most {} s)", grace.as_secs()));
        closing.inspect(Ending::close);
    };
    let served = comeback_server::serve(app, listener, stopped, serving).await;
    if let Some(ending) = ending {
        ending.finish(grace).await;
    }
    served.map_err(|error| Failure::new(code::FAILED, format!("serving ended: {error}")))
}

/// Machine and process: containers all have a process number 1.
fn own_name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = if host.trim().is_empty() { "comeback" } else { host.trim() };
    format!("{host}-{}", std::process::id())
}

fn networks<T: std::str::FromStr>(given: &[String], remedy: &str) -> Result<Vec<T>, Failure> {
    let read = |text: &String| {
        text.parse().map_err(|_| Failure::new(code::USAGE, format!("`{text}` is no network")).remedy(remedy))
    };
    given.iter().map(read).collect()
}

fn start_executors(args: &ServeArgs, engine: &Engine, listener: &TcpListener) -> Result<Option<Executors>, Failure> {
    if args.no_executors {
        return Ok(None);
    }
    let networks = networks(&args.allow_network, "--allow-network 10.1.0.0/16")?;
    // Where it really listens: whoever asked for any port could not say which.
    let address = listener.local_addr().map_or_else(|_| args.listen.clone(), |address| address.to_string());
    let handles = args.public_url.clone().unwrap_or_else(|| format!("http://{address}"));
    let options = ExecutorOptions {
        handles,
        reach: Reach { everywhere: args.allow_private_networks, networks },
        commands: args.allow_commands,
        pass_env: args.pass_env.clone(),
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

fn stuck_after(text: &str) -> Result<Millis, Failure> {
    let wrong = |why: String| {
        Failure::new(code::USAGE, format!("`{text}` is no time after which work is stuck"))
            .why(why)
            .remedy("--stuck-after 30m")
    };
    match Millis::parse(text).map_err(|error| wrong(error.to_string()))? {
        span if span < Millis::from_secs(1) => Err(wrong("a second is the least".into())),
        span => Ok(span),
    }
}

/// How often loops look, each as its name, `=` and a span.
fn periods(given: &[String]) -> Result<Vec<(Loop, Millis)>, Failure> {
    let read = |text: &String| {
        let wrong = |why: String| {
            Failure::new(code::USAGE, format!("`{text}` says of no loop how often it looks"))
                .why(why)
                .remedy("--look-every retries=10s")
        };
        let (name, span) = text.split_once('=').ok_or_else(|| wrong("it is a name, `=` and a span".into()))?;
        let loops = Loop::ALL.iter().filter(|it| !matches!(it, Loop::Dispatch | Loop::Hooks));
        let name = loops.clone().find(|it| it.word() == name).ok_or_else(|| {
            wrong(format!("there are {}", loops.clone().map(|it| it.word()).collect::<Vec<_>>().join(", ")))
        })?;
        match Millis::parse(span).map_err(|error| wrong(error.to_string()))? {
            span if span < Millis(100) || span > Millis::from_days(1) => Err(wrong("100ms to a day".into())),
            span => Ok((*name, span)),
        }
    };
    given.iter().map(read).collect()
}

/// Limits of the engine, of policies, of the door, and of the connections.
#[derive(Default)]
pub(super) struct Limited {
    limits: Limits,
    policies: PolicyLimits,
    gate: LimiterOptions,
    serving: ServeOptions,
}

pub(super) fn limits(given: &[String]) -> Result<Limited, Failure> {
    let mut limited = Limited::default();
    for text in given {
        let wrong = |why: String| {
            Failure::new(code::USAGE, format!("`{text}` is no limit")).why(why).remedy("--limit payload_bytes=1048576")
        };
        let (name, value) = text.split_once('=').ok_or_else(|| wrong("a limit is a name, `=` and a value".into()))?;
        let set = match name {
            _ if ServeOptions::NAMES.contains(&name) => limited.serving.set(name, value),
            _ if LimiterOptions::NAMES.contains(&name) => limited.gate.set(name, value),
            _ if PolicyLimits::NAMES.contains(&name) => limited.policies.set(name, value),
            _ if Limits::NAMES.contains(&name) => limited.limits.set(name, value),
            _ => {
                let names = [ServeOptions::NAMES, LimiterOptions::NAMES, &PolicyLimits::NAMES, Limits::NAMES].concat();
                Err(format!("there are {}", names.join(", ")))
            }
        };
        set.map_err(wrong)?;
    }
    Ok(limited)
}

/// What one namespace may have, each quota as its name, `=` and a number.
fn quotas(given: &[String]) -> Result<Quotas, Failure> {
    let mut quotas = Quotas::default();
    for text in given {
        let wrong = |why: String| {
            Failure::new(code::USAGE, format!("`{text}` is no quota")).why(why).remedy("--quota lanes=20000")
        };
        let (name, value) = text.split_once('=').ok_or_else(|| wrong("a quota is a name, `=` and a number".into()))?;
        quotas.set(name, value).map_err(wrong)?;
    }
    Ok(quotas)
}

/// The keys that named secrets are encrypted with: of the environment, or of a file. None where nobody gave any.
fn secret_keys(file: Option<&Path>) -> Result<Keyring, Failure> {
    let text = match (std::env::var("COMEBACK_SECRET_KEY").ok().filter(|text| !text.trim().is_empty()), file) {
        (Some(_), Some(_)) => {
            return Err(Failure::new(code::USAGE, "keys for secrets are given twice")
                .why("COMEBACK_SECRET_KEY and --secret-key-file say the same")
                .remedy("give one of them"));
        }
        (Some(text), None) => text,
        (None, Some(path)) => std::fs::read_to_string(path).map_err(|error| {
            Failure::new(code::USAGE, format!("{} cannot be read", path.display())).why(error.to_string())
        })?,
        (None, None) => return Ok(Keyring::default()),
    };
    Keyring::read(&text).map_err(|why| {
        Failure::new(code::USAGE, "the key for secrets cannot be used")
            .why(why)
            .remedy("make one: openssl rand -hex 32")
    })
}

type Clocks = (Arc<dyn Clock>, Option<Arc<VirtualClock>>);

async fn clock(word: &str, place: &Place, store: &dyn Store) -> Result<Clocks, Failure> {
    if word == "system" {
        return Ok((SystemClock::new(), None));
    }
    let now = SystemClock::new().now();
    let start = word.strip_prefix("virtual@").map(Timestamp::parse_rfc3339);
    if word == "virtual" || start.is_some() {
        let start = start.transpose().map_err(|error| {
            Failure::new(code::USAGE, format!("`{word}` is no clock"))
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
            Err(Failure::new(code::USAGE, format!("`{word}` is no clock")).remedy("--clock system, virtual or x60"))
        }
    }
}

async fn listen(address: &str) -> Result<TcpListener, Failure> {
    let wrong = |error: std::io::Error| {
        Failure::new(code::FAILED, format!("cannot listen on {address}"))
            .why(error.to_string())
            .remedy("choose another: --listen 127.0.0.1:7331")
    };
    TcpListener::bind(address).await.map_err(wrong)
}

/// Without keys only this machine is listened to.
pub fn refuse_strangers(listener: &TcpListener, address: &str, app: &App) -> Result<(), Failure> {
    let is_local = listener.local_addr().is_ok_and(|address| address.ip().is_loopback());
    if !is_local && app.keys.is_empty() {
        return Err(Failure::new(code::AUTH, format!("{address} can be reached from outside, and there is no key"))
            .why("without keys everybody who can reach the server could do everything")
            .remedy("start on loopback, make a key with `comeback key create --role admin`, then listen")
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
        "none, loopback only         make a key: comeback key create --role admin"
    } else {
        "keys"
    };
    tell!("comeback {}  serving", env!("CARGO_PKG_VERSION"));
    tell!("  Dashboard   http://{address}/");
    tell!("  API         http://{address}/api/v1");
    tell!("  Data        {data}");
    tell!("  Auth        {auth}");
    if args.clock != "system" {
        tell!("  Clock       {}", args.clock.split('@').next().unwrap_or_default());
    }
}

/// What a start finds: the product in one sentence.
fn resumed(found: &OpenWork, now: Timestamp) -> String {
    if *found == OpenWork::default() {
        return "ready: nothing is open".into();
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
        (found.waiting, "waiting for others".to_owned()),
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
        let said = "resumed 1 running, 3 retries overdue by up to 8s, 11 scheduled (next in 42s)";
        assert_eq!(resumed(&found, now), said);
        let starts = Overdue { count: 1, late: Millis(500) };
        let all = OpenWork { pending: 1_204, starts, waiting: 2, paused: 4, ..OpenWork::default() };
        assert_eq!(
            resumed(&all, now),
            "resumed 1,204 pending, 1 start overdue by up to 500ms, 2 waiting for others, 4 paused"
        );
        assert_eq!(resumed(&OpenWork::default(), now), "ready: nothing is open");
    }
}
