//! Two tenants share workers: one has a million tasks waiting, the other ten now and then. How much longer do the ten take
//! than they would alone? `make fairness`; `ONLY=postgres` leaves SQLite out, `BACKLOG` says how many others wait.
//!
//! Nobody is interrupted, so ten workers must come free for ten tasks to start; what is measured is that it takes no more than that.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use comeback_core::transition::Actor;
use comeback_engine::store::{PostgresOptions, PostgresStore, SqliteOptions, SqliteStore, Store};
use comeback_engine::{Engine, EngineConfig, LeaseRequest, Report, ReportEnd, Submit, SystemClock, TaskSpec};
use serde_json::json;
use tokio::sync::mpsc;

type Failure = Box<dyn Error + Send + Sync>;

const WORKERS: usize = 100;
const ROUNDS: u64 = 30;
const EACH: usize = 10;
/// What is to be reached.
const MOST: f64 = 1.25;

/// When a task of the second tenant began or ended.
enum Word {
    Began(Instant),
    Ended(Instant),
}

fn of(tenant: &str) -> TaskSpec {
    TaskSpec { labels: BTreeMap::from([("tenant".into(), tenant.into())]), ..TaskSpec::new("work") }
}

async fn submit(engine: &Engine, tenant: &str, count: usize) -> Result<(), Failure> {
    for part in (0..count).collect::<Vec<_>>().chunks(5_000) {
        let tasks = part.iter().map(|_| of(tenant)).collect();
        engine.submit(Submit { namespace: "default".into(), tasks, ..Submit::default() }).await?;
    }
    Ok(())
}

/// Takes one task after the other; each takes 200 to 600 ms.
async fn work(engine: Engine, number: usize, told: mpsc::UnboundedSender<Word>) {
    let mut done = number as u64;
    loop {
        let lease = LeaseRequest::new("default", format!("w{number}"));
        let request = LeaseRequest { limit: 1, wait: Duration::from_secs(20), ..lease };
        for leased in engine.lease(request).await.unwrap_or_default() {
            let is_told = leased.labels.get("tenant").is_some_and(|tenant| tenant == "b");
            let tell = |word: Word| is_told.then(|| told.send(word));
            tell(Word::Began(Instant::now()));
            done += 1;
            let part = done.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
            tokio::time::sleep(Duration::from_millis(200 + part % 401)).await;
            let report = Report { lease: leased.lease, end: ReportEnd::Succeeded { result: None } };
            if let Err(error) = engine.report(vec![report]).await {
                eprintln!("fairness: a report was not taken: {error}");
            }
            tell(Word::Ended(Instant::now()));
        }
    }
}

/// From the submission, sorted.
#[derive(Default)]
struct Times {
    began: Vec<Duration>,
    ended: Vec<Duration>,
}

impl Times {
    fn line(&self) -> String {
        let at = |times: &[Duration], part: usize| times[(times.len() * part / 100).min(times.len() - 1)].as_millis();
        let (began, ended) = (&self.began, &self.ended);
        format!("{:>10}ms {:>10}ms {:>10}ms", at(began, 99), at(ended, 50), at(ended, 99))
    }

    fn p99(&self) -> f64 {
        self.ended[self.ended.len() * 99 / 100].as_secs_f64()
    }
}

async fn rounds(engine: &Engine, words: &mut mpsc::UnboundedReceiver<Word>) -> Result<Times, Failure> {
    let mut times = Times::default();
    for round in 0..ROUNDS {
        tokio::time::sleep(Duration::from_millis(37 * (round % 11))).await;
        let submitted = Instant::now();
        submit(engine, "b", EACH).await?;
        let mut left = EACH;
        while left > 0 {
            match words.recv().await.ok_or("nobody works")? {
                Word::Began(at) => times.began.push(at - submitted),
                Word::Ended(at) => {
                    times.ended.push(at - submitted);
                    left -= 1;
                }
            }
        }
    }
    times.began.sort_unstable();
    times.ended.sort_unstable();
    Ok(times)
}

/// Whether it is fair.
async fn play(name: &str, store: Arc<dyn Store>, backlog: usize) -> Result<bool, Failure> {
    let engine = Engine::start(store, SystemClock::new(), EngineConfig::default()).await?;
    let rule = json!({"name": "tenants", "per": ["tenant"], "max_running": 1_000_000_000, "fair": true});
    engine.put_rule("default", serde_json::from_value(rule)?, &Actor::default()).await?;
    let (tell, mut words) = mpsc::unbounded_channel();
    let mut crew = tokio::task::JoinSet::new();
    (0..WORKERS).for_each(|number| drop(crew.spawn(work(engine.clone(), number, tell.clone()))));
    let alone = rounds(&engine, &mut words).await?;
    println!("{name:<12} alone  {}", alone.line());
    submit(&engine, "a", backlog).await?;
    let beside = rounds(&engine, &mut words).await?;
    let ratio = beside.p99() / alone.p99();
    let mark = if ratio <= MOST { "✓" } else { "✕" };
    println!("{:<12} beside {}   {ratio:.2}x {mark}", "", beside.line());
    crew.shutdown().await;
    Ok(ratio <= MOST)
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let backlog = std::env::var("BACKLOG").ok().and_then(|it| it.parse().ok()).unwrap_or(1_000_000);
    println!(
        "{EACH} tasks of 200 to 600ms at a time on {WORKERS} workers, alone and beside {backlog} of another tenant"
    );
    println!("{:<19} {:>12} {:>12} {:>12}", "", "started p99", "done p50", "done p99");
    let mut fair = true;
    if std::env::var("ONLY").is_ok_and(|it| it == "postgres") {
        println!("SQLite       not measured: ONLY=postgres");
    } else {
        let folder = tempfile::tempdir()?;
        let sqlite = SqliteStore::open(&SqliteOptions::file(folder.path().join("fairness.db")))?;
        fair &= play("SQLite", Arc::new(sqlite), backlog).await?;
    }
    match std::env::var("COMEBACK_TEST_POSTGRES") {
        Ok(url) => {
            let postgres = PostgresStore::open(&PostgresOptions::new(url)).await?;
            fair &= play("PostgreSQL", Arc::new(postgres), backlog).await?;
        }
        Err(_) => println!("PostgreSQL   not measured: COMEBACK_TEST_POSTGRES is not set"),
    }
    if fair { Ok(()) } else { Err(format!("p99 may be {MOST} times as long at most").into()) }
}
