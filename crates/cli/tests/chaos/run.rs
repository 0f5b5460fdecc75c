//! One run: a cluster, servers, workers and clients; what goes wrong meanwhile; and what is left when all is quiet.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Mutex as AsyncMutex;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::api::Api;
use crate::clients::{Desk, follower, operator, resume_all, submitter};
use crate::cluster::Cluster;
use crate::controls::Sabotage;
use crate::dump::Dump;
use crate::faults::{Done, Schedule, Targets, said};
use crate::history::{Entry, Log, read_all};
use crate::plan::Mix;
use crate::processes::{Guard, Place, WorkerPlace};
use crate::rng::Rng;

pub struct Setup {
    pub seed: u64,
    pub length: Duration,
    pub servers: usize,
    pub workers: usize,
    pub submitters: usize,
    pub operators: usize,
    pub mix: Mix,
    pub schedule: Schedule,
    pub sabotage: Sabotage,
    /// How long everything may take to come to its end when nothing goes wrong any more.
    pub drain: Duration,
}

pub struct Outcome {
    pub entries: Vec<Entry>,
    pub dump: Dump,
    pub done: Done,
    /// Nothing when there was still something open.
    pub drained_in: Option<Duration>,
}

pub async fn run(setup: Setup, folder: &Path) -> Result<Outcome, String> {
    let mark = uuid::Uuid::now_v7().to_string();
    let _guard = Guard::start(&mark);
    let mut rng = Rng::new(setup.seed);
    let log = Arc::new(Log::create(&folder.join("clients.history.jsonl")));
    let done: Arc<Mutex<Done>> = Arc::default();
    let mut cluster = Cluster::create(&mark, folder);
    cluster.start().await;

    let mut places: Vec<Place> = (0..setup.servers).map(|n| Place::new(n, &cluster.url(), &mark, folder)).collect();
    futures_util::future::try_join_all(places.iter_mut().map(|place| place.start(Duration::from_secs(10)))).await?;
    let mut urls: Vec<String> = places.iter().map(|place| place.url.clone()).collect();
    setup.sabotage.begin(&cluster, &mut urls).await;
    let workers = (0..setup.workers).map(|n| AsyncMutex::new(WorkerPlace::start(n, &urls, &mark, folder, rng.next())));
    let targets = Targets {
        workers: Arc::new(workers.collect()),
        cluster: Arc::new(AsyncMutex::new(cluster)),
        servers: Arc::new(places.into_iter().map(AsyncMutex::new).collect()),
        log: log.clone(),
        done: done.clone(),
    };

    let desk = Desk { api: Api::new(urls), log, known: Arc::default(), over: Arc::default() };
    let mut clients = JoinSet::new();
    for n in 0..setup.submitters {
        clients.spawn(submitter(desk.clone(), n, setup.mix, rng.fork()));
    }
    for n in 0..setup.operators {
        clients.spawn(operator(desk.clone(), n, rng.fork()));
    }
    let enough: Arc<AtomicBool> = Arc::default();
    let following = tokio::spawn(follower(desk.clone(), enough.clone(), rng.fork()));
    let sabotage = tokio::spawn(setup.sabotage.clone().go_on(targets.cluster.clone()));
    let progress = tokio::spawn(progress(desk.clone(), done.clone(), setup.length));

    let begun = Instant::now();
    targets.strike(setup.schedule).await?;
    tokio::time::sleep_until(begun + setup.length).await;
    desk.over.store(true, Ordering::Relaxed);
    sabotage.abort();
    progress.abort();
    while let Some(joined) = clients.join_next().await {
        joined.map_err(|error| format!("a client broke: {error}"))?;
    }
    let drained_in = drain(&targets, &desk, setup.drain, rng.fork()).await;
    enough.store(true, Ordering::Relaxed);
    let followed = tokio::time::timeout(Duration::from_secs(30), following).await;
    followed.map_err(|_| "the feed has no end")?.map_err(|error| format!("the follower broke: {error}"))?;
    for worker in targets.workers.iter() {
        worker.lock().await.kill();
    }
    let client = targets.cluster.lock().await.connect().await.ok_or("PostgreSQL is away at the end")?;
    let dump = Dump::take(&client).await;
    let done = std::mem::take(&mut *done.lock().expect("the count"));
    Ok(Outcome { entries: read_all(folder), dump, done, drained_in })
}

/// Waits until nothing is open. A pause whose outcome nobody knew may still have come; it is taken back.
async fn drain(targets: &Targets, desk: &Desk, patience: Duration, mut rng: Rng) -> Option<Duration> {
    let begun = Instant::now();
    let client = targets.cluster.lock().await.connect().await?;
    let mut told = begun;
    while begun.elapsed() < patience {
        let row = client.query_one("select count(*), count(*) filter (where state = 5) from comeback.task_open", &[]);
        let row = row.await.ok()?;
        if row.get::<_, i64>(0) == 0 {
            return Some(begun.elapsed());
        }
        if row.get::<_, i64>(1) > 0 {
            resume_all(desk, "end", &mut rng).await;
        }
        if told.elapsed() > Duration::from_secs(5) {
            told = Instant::now();
            let open = open_by_state(&client).await?;
            eprintln!(
                "chaos: {} s of at most {} to come to an end, {open}",
                begun.elapsed().as_secs(),
                patience.as_secs()
            );
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    None
}

async fn open_by_state(client: &tokio_postgres::Client) -> Option<String> {
    let rows = client
        .query("select state::int, count(*) from comeback.task_open group by state order by state", &[])
        .await
        .ok()?;
    let each = rows.iter().map(|row| format!("{} in state {}", row.get::<_, i64>(1), row.get::<_, i32>(0)));
    Some(each.collect::<Vec<_>>().join(", "))
}

/// A line now and then for whoever watches.
async fn progress(desk: Desk, done: Arc<Mutex<Done>>, length: Duration) {
    let begun = Instant::now();
    loop {
        tokio::time::sleep(Duration::from_secs(10)).await;
        let fired = said(&done.lock().expect("the count").fired);
        let (now, whole) = (begun.elapsed().as_secs(), length.as_secs());
        eprintln!("chaos: {now} s of {whole}, {} calls of the clients, {fired}", desk.log.calls());
    }
}
