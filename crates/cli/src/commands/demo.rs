//! `demo`: a server on temporary data at 60x speed, with tasks that fail on purpose and recover.

mod screen;
mod workload;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use comeback_client::Client;
use comeback_core::Millis;
use comeback_engine::store::{SqliteOptions, SqliteStore};
use comeback_engine::{Available, Clock, Engine, EngineConfig, ScaledClock, SystemClock};
use comeback_server::{App, AppOptions, ServeOptions};
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::Context;
use super::serve::require_keys;
use super::tail;
use crate::args::{DemoArgs, Global, TailArgs};
use crate::crash;
use crate::error::{CliError, code};
use crate::output::{Output, outln, span};
use crate::watch::Interrupted;
use screen::{DemoScreen, KeyPress};
use workload::{BankOutage, CrmOutage, DemoWorkload};

pub async fn run(global: &Global, args: DemoArgs) -> Result<u8, CliError> {
    if !args.speed.is_finite() || args.speed <= 0.0 {
        return Err(CliError::new(code::USAGE, format!("invalid --speed `{}`", args.speed)).remedy("--speed 60"));
    }
    crash::abort_on_panic("human");
    let mut interrupted = Interrupted::listen()?;
    let data = Data::prepare(args.keep.clone())?;
    let demo = Demo::start(&args, &data).await?;
    banner(&args, &demo, &data);
    let context = Context { client: demo.client.clone(), out: Output::new(global) };
    let (fault, outage) = (BankOutage::default(), CrmOutage::default());
    let (jitter, once) = (args.seed.is_none(), args.seconds.is_some());
    let workload = DemoWorkload { client: demo.client.clone(), jitter, once, outage: outage.clone() };
    let working = tokio::spawn(workload::worker(&demo.client, &fault, &outage).run(demo.stopped()));
    let feeding = tokio::spawn(workload.feed());
    let mut screen = DemoScreen::open();
    let lines = screen.lines();
    if screen.is_interactive() && screen::has_display() && !args.no_open {
        lines.print(screen::open_in_browser(demo.client.server()));
    }
    let from_start = TailArgs { task: None, from_start: true, all: false, count: None };
    let following = tail::follow(&context, from_start, |line| lines.print(line));
    let time_is_up = async {
        match args.seconds {
            Some(seconds) => tokio::time::sleep(Duration::from_secs(seconds)).await,
            None => std::future::pending().await,
        }
    };
    tokio::pin!(following, time_is_up);
    let mut refresh = tokio::time::interval(Duration::from_secs(1));
    let outcome = loop {
        tokio::select! {
            ended = &mut following => break ended,
            () = &mut time_is_up => break Ok(code::OK),
            () = interrupted.wait() => break Ok(code::OK),
            key = screen.key() => match key {
                KeyPress::Quit => break Ok(code::OK),
                KeyPress::Open => lines.print(screen::open_in_browser(demo.client.server())),
                KeyPress::InjectFault => lines.print(fault.flip().to_owned()),
            },
            _ = refresh.tick(), if screen.is_interactive() => screen.set_status(&counts(&demo.client).await),
        }
    };
    feeding.abort();
    screen.close();
    crate::output::errln!("\n{}", counts(&demo.client).await);
    demo.stop(working).await;
    outcome
}

/// The database of the demo; a temporary one is deleted when dropped.
struct Data {
    path: PathBuf,
    temporary: Option<PathBuf>,
}

impl Data {
    fn prepare(keep: Option<PathBuf>) -> Result<Data, CliError> {
        if let Some(path) = keep {
            return Ok(Data { path, temporary: None });
        }
        let folder = std::env::temp_dir().join(format!("comeback-demo-{}", std::process::id()));
        std::fs::create_dir_all(&folder).map_err(|error| {
            CliError::new(code::FAILED, "cannot create a temporary folder")
                .why(format!("{}: {error}", folder.display()))
                .remedy("comeback demo --keep FILE")
        })?;
        Ok(Data { path: folder.join("demo.db"), temporary: Some(folder) })
    }
}

impl Drop for Data {
    fn drop(&mut self) {
        if let Some(folder) = &self.temporary {
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

/// A complete server in this process.
struct Demo {
    engine: Engine,
    client: Client,
    address: std::net::SocketAddr,
    stop: watch::Sender<bool>,
    serving: tokio::task::JoinHandle<std::io::Result<()>>,
}

impl Demo {
    async fn start(args: &DemoArgs, data: &Data) -> Result<Demo, CliError> {
        let failed = |error: comeback_engine::store::StoreError| {
            CliError::new(code::FAILED, "cannot start the demo")
                .why(error.to_string())
                .remedy("comeback demo --keep FILE")
        };
        let store = SqliteStore::open(&SqliteOptions::file(&data.path)).map_err(failed)?;
        let clock = ScaledClock::new(SystemClock::new().now(), args.speed);
        let executors = Available { http: false, command: false, timer: false };
        let config = EngineConfig { instance: "demo".into(), executors, id_seed: args.seed, ..EngineConfig::default() };
        let listener = listen(&args.listen).await?;
        let engine = Engine::start(Arc::new(store), clock, config).await.map_err(failed)?;
        let options =
            AppOptions { instance: "demo".into(), added_routes: super::serve::added_routes(), ..AppOptions::default() };
        let app = App::new(engine.clone(), options).await.map_err(failed)?;
        if let Err(refused) = require_keys(&listener, &args.listen, &app) {
            engine.close().await;
            return Err(refused);
        }
        let not_listening = |error: std::io::Error| CliError::new(code::FAILED, "cannot listen").why(error.to_string());
        let address = listener.local_addr().map_err(not_listening)?;
        let (stop, stopped) = watch::channel(false);
        let serving = tokio::spawn(comeback_server::serve(app, listener, until(stopped), ServeOptions::default()));
        let client = Client::new(format!("http://{address}"))?;
        Ok(Demo { engine, client, address, stop, serving })
    }

    fn stopped(&self) -> impl Future<Output = ()> + use<> {
        until(self.stop.subscribe())
    }

    async fn stop<T>(self, working: tokio::task::JoinHandle<T>) {
        let _ = self.stop.send(true);
        let _ = tokio::time::timeout(Duration::from_secs(3), working).await;
        let _ = tokio::time::timeout(Duration::from_secs(3), self.serving).await;
        self.engine.close().await;
    }
}

async fn until(mut stopped: watch::Receiver<bool>) {
    let _ = stopped.wait_for(|stopped| *stopped).await;
}

/// Listens on the address, or on the next free port.
async fn listen(address: &str) -> Result<TcpListener, CliError> {
    let first = match TcpListener::bind(address).await {
        Ok(listener) => return Ok(listener),
        Err(error) => error,
    };
    let taken = first.kind() == std::io::ErrorKind::AddrInUse;
    if let (true, Some((host, Ok(port)))) =
        (taken, address.rsplit_once(':').map(|(host, port)| (host, port.parse::<u16>())))
    {
        for next in (port..=u16::MAX).skip(1).take(100) {
            if let Ok(listener) = TcpListener::bind(format!("{host}:{next}")).await {
                crate::output::errln!("{address} is taken; using {host}:{next}");
                return Ok(listener);
            }
        }
    }
    Err(CliError::new(code::FAILED, format!("cannot listen on {address}"))
        .why(first.to_string())
        .remedy("use another address: --listen 127.0.0.1:7331"))
}

fn banner(args: &DemoArgs, demo: &Demo, data: &Data) {
    let place = match &data.temporary {
        None => shown(&data.path),
        Some(_) => "temporary, removed on exit         keep it: comeback demo --keep demo.db".into(),
    };
    outln!("comeback {}  demo", env!("CARGO_PKG_VERSION"));
    outln!("");
    outln!("  Dashboard   http://{}/", demo.address);
    outln!("  API         http://{}/api/v1      docs: /docs", demo.address);
    outln!("  Data        {place}");
    let second = span(Millis((args.speed * 1_000.0) as u64));
    outln!("  Clock       {}x speed: 1s here is {second} in the demo", args.speed);
    outln!("");
    outln!("  Eight workloads fail on purpose. Watch them recover (Ctrl-C to stop):");
    outln!("");
}

fn shown(path: &Path) -> String {
    format!("{}   keep using it: comeback serve --db {0}", path.display())
}

async fn counts(client: &Client) -> String {
    let stats = client.get("/api/v1/stats").await.unwrap_or_default();
    let recovered = client.get("/api/v1/tasks?q=state:recovered&limit=500").await.unwrap_or_default();
    let recovered = match recovered["items"].as_array().map_or(0, Vec::len) {
        500 => "500+".to_owned(),
        count => count.to_string(),
    };
    let count = |state: &str| stats["by_state"][state].as_u64().unwrap_or(0);
    format!(
        "recovered {recovered}   retrying {}   failed {}   dead {}",
        count("retry_pending"),
        count("failed"),
        count("dead")
    )
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    async fn over(client: &Client, task: Value) -> Value {
        let answer = client.submit(&task).await.expect("submitted");
        let id = answer["tasks"][0]["id"].as_str().expect("an id").to_owned();
        for _ in 0..1_000 {
            let task = client.task(&id).await.expect("shown");
            if !task["ended_at"].is_null() {
                return task;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("{task} does not end");
    }

    /// The button of the dashboard submits such a task; the worker of the demo runs it.
    #[tokio::test]
    async fn a_task_takes_the_bank_down_and_brings_it_back() {
        let folder = tempfile::tempdir().expect("a folder");
        let data = Data { path: folder.path().join("demo.db"), temporary: None };
        let args = DemoArgs {
            listen: "127.0.0.1:0".into(),
            keep: None,
            seed: Some(7),
            speed: 60.0,
            seconds: None,
            no_open: true,
        };
        let demo = Demo::start(&args, &data).await.expect("it starts");
        let (client, fault, outage) = (demo.client.clone(), BankOutage::default(), CrmOutage::default());
        let working = tokio::spawn(workload::worker(&client, &fault, &outage).run(demo.stopped()));
        let bank = |payload: Value| over(&client, json!({"kind": "demo.bank", "payload": payload}));
        // The third attempt is the first one that succeeds, and the last one allowed.
        let charge = || over(&client, json!({"kind": "payments.charge", "retry": "fixed(1s, 2 retries)"}));

        let answer = bank(json!({"down": true})).await;
        assert_eq!(answer["result"]["down"], true, "{answer}");
        let charged = charge().await;
        assert_eq!((&charged["state"], &charged["total_attempts"]), (&json!("dead"), &json!(3)), "{charged}");

        let answer = bank(json!({"down": false})).await;
        assert_eq!(answer["result"]["down"], false, "{answer}");
        let charged = charge().await;
        assert_eq!((&charged["state"], &charged["total_attempts"]), (&json!("succeeded"), &json!(3)), "{charged}");

        assert_eq!(bank(json!({"up": true})).await["state"], "failed");
        demo.stop(working).await;
    }
}
