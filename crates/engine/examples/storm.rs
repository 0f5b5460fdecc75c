//! The storm: a service that does 100 calls a second and works on calls whose callers have left, 70 tasks a second that call
//! it, and trouble. What retries do to it then: `make storm`.
//!
//! The outage is the unkind sort: calls are accepted and not answered, so each takes its whole timeout, and what was asked meanwhile
//! is worked off afterwards although nobody waits for it any more. Retries that come at their own pace can keep such a service busy
//! with calls that are over, for ever.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use comeback_core::dependency::Settings;
use comeback_core::transition::Actor;
use comeback_core::{Dialect, Failure as Failed, Millis, State, Trigger, dialect};
use comeback_engine::executors::{EgressPolicy, ExecutorOptions};
use comeback_engine::store::{SqliteOptions, SqliteStore};
use comeback_engine::{
    Available, Engine, EngineConfig, ExecutorSpec, LeaseRequest, Report, ReportEnd, Submit, SystemClock, TaskSpec,
};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

type Failure = Box<dyn Error + Send + Sync>;

const CAPACITY: u64 = 100;
const OFFERED: u64 = 70;
const TIMEOUT: Millis = Millis(1_000);
/// What it does while it is slow.
const SLOW: u64 = 40;

#[derive(Clone, Copy, PartialEq)]
enum Trouble {
    Outage,
    Errors,
    Slow,
}

/// What happens and for how long, in seconds.
#[derive(Clone, Copy)]
struct Case {
    trouble: Trouble,
    calm: u64,
    lasts: u64,
    /// It is watched for so long afterwards, and on until the backlog is gone where that can be hoped for.
    watch: u64,
}

impl Case {
    fn all(full: bool) -> [Case; 3] {
        let case = |trouble, quick, long| match full {
            true => Case { trouble, calm: 20, lasts: long, watch: 300 },
            false => Case { trouble, calm: 10, lasts: quick, watch: 60 },
        };
        [case(Trouble::Outage, 20, 60), case(Trouble::Errors, 30, 300), case(Trouble::Slow, 30, 120)]
    }

    fn over(&self) -> u64 {
        self.calm + self.lasts
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.trouble {
            Trouble::Outage => write!(f, "no answers for {}s", self.lasts),
            Trouble::Errors => write!(f, "half of the answers are errors for {}s", self.lasts),
            Trouble::Slow => write!(f, "{SLOW} calls a second for {}s", self.lasts),
        }
    }
}

#[derive(Clone)]
struct Arm {
    name: &'static str,
    retry: Value,
    settings: Option<Value>,
    /// Who makes the calls: the server itself, which waits to be told, or workers that ask now and then.
    polled: bool,
}

impl Arm {
    fn naive() -> [Arm; 3] {
        let fixed = json!({"strategy": "fixed", "delay": "1s", "max_retries": 1000});
        [
            Arm { name: "fixed 1s", retry: fixed, settings: None, polled: false },
            Arm { name: "exponential", retry: Arm::exponential("none"), settings: None, polled: false },
            Arm { name: "exponential + full jitter", retry: Arm::exponential("full"), settings: None, polled: false },
        ]
    }

    /// As people write it.
    fn guarded() -> Arm {
        let settings = json!({"gate": {}, "breaker": {}, "concurrency": {}});
        let retry = Arm::exponential("full");
        Arm { name: "the same + a dependency", retry, settings: Some(settings), polled: false }
    }

    /// The same for workers that ask each second.
    fn polled() -> Arm {
        Arm { name: "the same, asked for each 1s", polled: true, ..Arm::guarded() }
    }

    fn exponential(jitter: &str) -> Value {
        json!({"strategy": "exponential", "initial_delay": "1s", "multiplier": 2, "max_delay": "1m", "jitter": jitter, "max_retries": 1000})
    }
}

/// Workers that ask each second, each at a moment of its own.
const WORKERS: u32 = 10;
/// What each of them takes at once.
const TAKES: u32 = 20;

/// One of them: asks, calls with all that it was given, tells what came of it, and asks again when the second is over.
async fn work(engine: Engine, address: String, number: u32) {
    let mut next = Instant::now() + Duration::from_secs(1) * number / WORKERS;
    loop {
        sleep_until(next).await;
        next += Duration::from_secs(1);
        let request = LeaseRequest { limit: TAKES, ..LeaseRequest::new("default", format!("worker-{number}")) };
        for task in engine.lease(request).await.unwrap_or_default() {
            let (engine, address) = (engine.clone(), address.clone());
            tokio::spawn(async move {
                let called = tokio::time::timeout(Duration::from_millis(TIMEOUT.0), call(&address)).await;
                let failed = |status, trigger| {
                    ReportEnd::Failed(Failed { status, ..Failed::new(trigger, "the call went wrong") })
                };
                let end = match called {
                    Ok(Ok(200)) => ReportEnd::Succeeded { result: None },
                    Ok(Ok(status)) => failed(Some(status), Trigger::Error),
                    Ok(Err(_)) => failed(None, Trigger::Error),
                    Err(_) => failed(None, Trigger::Timeout),
                };
                if let Err(error) = engine.report(vec![Report { lease: task.lease, end }]).await {
                    eprintln!("storm: a report was not taken: {error}");
                }
            });
        }
    }
}

async fn call(address: &str) -> Result<u16, Failure> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(b"POST / HTTP/1.1\r\nhost: service\r\ncontent-length: 0\r\n\r\n").await?;
    let mut head = [0; 12];
    stream.read_exact(&mut head).await?;
    Ok(std::str::from_utf8(&head[9..])?.parse()?)
}

/// One that answers in order, so many a second, whether anybody still waits for it or not.
struct Service {
    case: Case,
    began: Instant,
    asked: AtomicU64,
    queued: AtomicU64,
    answered: AtomicU64,
}

/// Who has asked when, told whether it went well.
type Waiting = (Instant, oneshot::Sender<bool>);

impl Service {
    async fn start(case: Case, began: Instant) -> Result<(Arc<Service>, String), Failure> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?.to_string();
        let [asked, queued, answered] = std::array::from_fn(|_| AtomicU64::new(0));
        let service = Arc::new(Service { case, began, asked, queued, answered });
        let (queue, waiting) = mpsc::unbounded_channel();
        tokio::spawn(service.clone().work(waiting));
        let answering = service.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answering.clone().answer(stream, queue.clone()));
            }
        });
        Ok((service, address))
    }

    fn instant(&self, second: u64) -> Instant {
        self.began + Duration::from_secs(second)
    }

    fn trouble(&self, at: Instant) -> Option<Trouble> {
        let during = at >= self.instant(self.case.calm) && at < self.instant(self.case.over());
        during.then_some(self.case.trouble)
    }

    async fn work(self: Arc<Service>, mut waiting: mpsc::UnboundedReceiver<Waiting>) {
        let each = |capacity: u64| Duration::from_micros(1_000_000 / capacity);
        let mut free = Instant::now();
        while let Some((asked, asker)) = waiting.recv().await {
            // A timer that rings late makes nobody slower who has work waiting.
            free = free.max(asked);
            free += each(if self.trouble(free) == Some(Trouble::Slow) { SLOW } else { CAPACITY });
            if self.trouble(free) == Some(Trouble::Outage) {
                free = self.instant(self.case.over()) + each(CAPACITY);
            }
            sleep_until(free).await;
            self.queued.fetch_sub(1, Ordering::Relaxed);
            let number = self.answered.fetch_add(1, Ordering::Relaxed);
            let is_odd = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 63 == 1;
            // Whoever has left does not hear it.
            let _ = asker.send(!(is_odd && self.trouble(free) == Some(Trouble::Errors)));
        }
    }

    async fn answer(self: Arc<Service>, mut stream: TcpStream, queue: mpsc::UnboundedSender<Waiting>) {
        let mut seen = Vec::new();
        let mut part = [0; 4_096];
        loop {
            let head = loop {
                if let Some(end) = seen.windows(4).position(|it| it == b"\r\n\r\n") {
                    break end + 4;
                }
                match stream.read(&mut part).await {
                    Ok(0) | Err(_) => return,
                    Ok(n) => seen.extend_from_slice(&part[..n]),
                }
            };
            let text = String::from_utf8_lossy(&seen[..head]).to_ascii_lowercase();
            let length = text.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
            let whole = head + length.unwrap_or(0);
            while seen.len() < whole {
                match stream.read(&mut part).await {
                    Ok(0) | Err(_) => return,
                    Ok(n) => seen.extend_from_slice(&part[..n]),
                }
            }
            seen.drain(..whole);
            self.asked.fetch_add(1, Ordering::Relaxed);
            self.queued.fetch_add(1, Ordering::Relaxed);
            let (asker, answer) = oneshot::channel();
            if queue.send((Instant::now(), asker)).is_err() {
                return;
            }
            let went_well = tokio::select! {
                answered = answer => answered.unwrap_or(false),
                // The caller has left. The call stays where it is, only the line is free.
                _ = stream.read(&mut part) => return,
            };
            let status = if went_well { "200 OK" } else { "503 Service Unavailable" };
            let text = format!("HTTP/1.1 {status}\r\ncontent-length: 2\r\n\r\nok");
            if stream.write_all(text.as_bytes()).await.is_err() {
                return;
            }
        }
    }
}

/// What was counted by the end of each second.
#[derive(Clone, Copy, Default)]
struct Second {
    asked: u64,
    succeeded: u64,
    open: u64,
    queued: u64,
}

async fn play(arm: Arm, case: Case) -> Result<Outcome, Failure> {
    let began = Instant::now() + Duration::from_secs(1);
    let (service, address) = Service::start(case, began).await?;
    let folder = tempfile::tempdir()?;
    let store = Arc::new(SqliteStore::open(&SqliteOptions::file(folder.path().join("storm.db")))?);
    let config =
        EngineConfig { executors: Available { http: true, ..Available::default() }, ..EngineConfig::default() };
    let engine = Engine::start(store, SystemClock::new(), config).await?;
    let reach = EgressPolicy { everywhere: true, ..EgressPolicy::default() };
    // So many that it is never the executor that is gentle.
    let _executors =
        engine.start_executors(ExecutorOptions { reach, concurrency: 2_048, ..ExecutorOptions::default() })?;
    if let Some(settings) = &arm.settings {
        engine.put_dependency("default", &address, Settings::parse(settings)?, &Actor::default()).await?;
    }
    let policy = dialect::parse(&arm.retry, Dialect::Native, &Default::default())?.ok_or("a policy")?;
    let call =
        ExecutorSpec::Http(json!({"type": "http", "url": format!("http://{address}/"), "method": "POST"}).into());
    let spec = TaskSpec { timeout: Some(TIMEOUT), ..TaskSpec::new("call").retry(policy) };
    let spec = match arm.polled {
        true => TaskSpec { dependency: Some(address.clone()), ..spec },
        false => TaskSpec { executor: call, ..spec },
    };
    let mut working = tokio::task::JoinSet::new();
    for number in (0..WORKERS).filter(|_| arm.polled) {
        working.spawn(work(engine.clone(), address.clone(), number));
    }
    let offering = {
        let engine = engine.clone();
        tokio::spawn(async move {
            let mut next = began;
            loop {
                sleep_until(next).await;
                next += Duration::from_micros(1_000_000 / OFFERED);
                if let Err(error) = engine.submit(Submit::one("default", spec.clone())).await {
                    eprintln!("storm: a task was not taken: {error}");
                }
            }
        })
    };
    let mut seconds: Vec<Second> = Vec::new();
    while goes_on(&arm, case, &seconds) {
        sleep_until(service.instant(seconds.len() as u64)).await;
        let counts = engine.store().counts("default", engine.now()).await?;
        let of = |wanted: fn(&State) -> bool| -> u64 {
            counts.by_state.iter().filter(|(state, _)| wanted(state)).map(|(_, n)| *n).sum()
        };
        let (asked, queued) = (service.asked.load(Ordering::Relaxed), service.queued.load(Ordering::Relaxed));
        seconds.push(Second {
            asked,
            succeeded: of(|it| *it == State::Succeeded),
            open: of(|it| it.is_open()),
            queued,
        });
    }
    offering.abort();
    if std::env::var("STORM_SECONDS").is_ok() {
        for (second, pair) in seconds.windows(2).enumerate() {
            let (asked, done) = (pair[1].asked - pair[0].asked, pair[1].succeeded - pair[0].succeeded);
            eprintln!("{}\t{case}\t{second}\t{asked}\t{done}\t{}\t{}", arm.name, pair[1].open, pair[1].queued);
        }
    }
    Ok(judge(case, &seconds))
}

/// What there is in calm times too, and more.
fn is_drained(second: &Second) -> bool {
    second.open <= OFFERED
}

/// The least time in which the backlog at the end of the trouble can be gone.
fn least(case: Case, seconds: &[Second]) -> f64 {
    (seconds[case.over() as usize].open as f64 / (CAPACITY - OFFERED) as f64).max(1.0)
}

fn goes_on(arm: &Arm, case: Case, seconds: &[Second]) -> bool {
    let Some(after) = (seconds.len() as u64).checked_sub(case.over() + case.watch + 1) else { return true };
    let is_over = seconds[case.over() as usize..].iter().any(is_drained);
    // Those who drown are not waited for.
    arm.settings.is_some() && !is_over && ((after + case.watch) as f64) < 2.0 * least(case, seconds)
}

/// What came of an arm.
struct Outcome {
    /// Calls during the trouble, beside what is offered; and how many of those that were offered were done.
    calls: f64,
    done: f64,
    /// Seconds after the trouble from which on it does what is offered.
    back_after: Option<u64>,
    calls_per_done: f64,
    /// Seconds until the backlog was gone, and the least that it could have taken.
    drained: Option<u64>,
    least: f64,
    longest_queue: u64,
}

fn judge(case: Case, seconds: &[Second]) -> Outcome {
    let between =
        |from: u64, to: u64, of: fn(&Second) -> u64| (of(&seconds[to as usize]) - of(&seconds[from as usize])) as f64;
    let (calm, over, last) = (case.calm, case.over(), seconds.len() as u64 - 1);
    let offered = OFFERED as f64;
    let good = |from: u64, to: u64| between(from, to, |it| it.succeeded) / (to - from) as f64;
    let is_back = |at: &u64| good(*at, at + 5) >= 0.95 * offered && good(*at, last) >= 0.95 * offered;
    let watched = over + case.watch;
    Outcome {
        calls: between(calm, over, |it| it.asked) / (offered * case.lasts as f64),
        done: between(calm, over, |it| it.succeeded) / (offered * case.lasts as f64),
        back_after: (over..=last - 5).find(is_back).map(|at| at - over),
        calls_per_done: between(over, watched, |it| it.asked) / between(over, watched, |it| it.succeeded).max(1.0),
        drained: (over..=last).find(|at| is_drained(&seconds[*at as usize])).map(|at| at - over),
        least: least(case, seconds),
        longest_queue: seconds.iter().map(|it| it.queued).max().unwrap_or(0),
    }
}

impl Outcome {
    fn head() -> String {
        format!(
            "  {:<26} {:>9} {:>9} {:>11} {:>11} {:>17} {:>8}",
            "retries", "calls", "done", "back after", "calls/done", "drained (least)", "queue"
        )
    }

    fn line(&self, name: &str) -> String {
        let span = |it: Option<u64>| it.map_or("never".to_owned(), |after| format!("{after}s"));
        let drained = format!("{} ({:.0}s)", span(self.drained), self.least);
        format!(
            "  {name:<26} {:>8.2}x {:>8.2}x {:>11} {:>11.2} {drained:>17} {:>8}",
            self.calls,
            self.done,
            span(self.back_after),
            self.calls_per_done,
            self.longest_queue
        )
    }

    /// What is to be reached, and whether it was.
    fn targets(&self, case: Case) -> Vec<(bool, String)> {
        let back = self.back_after.is_some_and(|after| after <= 30);
        let drained = self.drained.is_some_and(|after| after as f64 <= 1.5 * self.least);
        let mut targets = vec![
            (back, "does 95 % of what is offered within 30s".to_owned()),
            (
                self.calls_per_done <= 1.2,
                format!("at most 1.2 calls for each that is done in the {}s after it", case.watch),
            ),
            (drained, "the backlog is gone in at most 1.5 times the least time".to_owned()),
        ];
        if case.trouble == Trouble::Outage {
            targets.insert(0, (self.calls <= 0.10, "calls meanwhile are at most 0.10 of what is offered".to_owned()));
        }
        targets
    }
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let cases = Case::all(std::env::var("STORM").is_ok_and(|it| it == "full"));
    println!(
        "a service that does {CAPACITY} calls a second, {OFFERED} tasks a second that call it, a timeout of {TIMEOUT}"
    );
    println!("calls and done: during the trouble, beside what is offered\n");
    println!("{}", Outcome::head());
    println!("{}", cases[0]);
    // By itself, so that those who drown do not pull it under.
    let mut missed = told(Arm::polled(), &cases[..1]).await?;
    if std::env::var("STORM").is_ok_and(|it| it == "polled") {
        return reached(missed);
    }
    let drowning: Vec<_> = Arm::naive().into_iter().map(|arm| (arm.name, tokio::spawn(play(arm, cases[0])))).collect();
    for (name, playing) in drowning {
        println!("{}", playing.await??.line(name));
    }
    missed += told(Arm::guarded(), &cases).await?;
    reached(missed)
}

/// Plays an arm in all of these cases side by side, and tells what came of it. How many targets were missed.
async fn told(arm: Arm, cases: &[Case]) -> Result<u32, Failure> {
    let playing: Vec<_> = cases.iter().map(|case| (*case, tokio::spawn(play(arm.clone(), *case)))).collect();
    let mut missed = 0;
    for (case, playing) in playing {
        let outcome = playing.await??;
        if case.trouble != Trouble::Outage {
            println!("{case}");
        }
        println!("{}", outcome.line(arm.name));
        for (met, target) in outcome.targets(case) {
            println!("    {} {target}", if met { "✓" } else { "✕" });
            missed += u32::from(!met);
        }
    }
    Ok(missed)
}

fn reached(missed: u32) -> Result<(), Failure> {
    match missed {
        0 => Ok(()),
        _ => Err(format!("{missed} not reached").into()),
    }
}
