//! Background tasks: every one is registered by name, has a heartbeat and is supervised. A task that panics is logged and started
//! again; a task whose heartbeat is silent for ten of its periods is stalled, and `/readyz` names it.
//!
//! It also keeps what is running on this thread (a request or a background task), so that a panic hook can name it.

use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::task::Poll;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use uuid::Uuid;

/// A task is stalled when its heartbeat is silent for so many of its periods,
const MISSED_PERIODS: u32 = 10;
/// and for at least this long: a short period says nothing about a busy machine.
const SHORTEST_LIMIT: Duration = Duration::from_secs(10);

/// How long a task that panicked rests before it is started again; longer each time, until it has worked again.
const FIRST_REST: Duration = Duration::from_millis(100);
const LONGEST_REST: Duration = Duration::from_secs(5);

static EPOCH: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Milliseconds since this process first asked; never 0, which stands for an idle task.
fn now_millis() -> u64 {
    u64::try_from(EPOCH.elapsed().as_millis()).unwrap_or(u64::MAX).saturating_add(1)
}

/// The heartbeat of one background task.
#[derive(Debug)]
pub struct Heartbeat {
    name: String,
    limit: Duration,
    /// When it last turned; 0 while it waits for work.
    turned: AtomicU64,
    dead: AtomicBool,
    restarts: AtomicU32,
}

impl Heartbeat {
    fn new(name: String, period: Duration) -> Heartbeat {
        Heartbeat {
            name,
            limit: (period * MISSED_PERIODS).max(SHORTEST_LIMIT),
            turned: AtomicU64::new(now_millis()),
            dead: AtomicBool::new(false),
            restarts: AtomicU32::new(0),
        }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// It makes progress.
    pub fn turn(&self) {
        self.turned.store(now_millis(), Ordering::Relaxed);
    }

    /// It waits for work, for as long as that takes.
    pub fn idle(&self) {
        self.turned.store(0, Ordering::Relaxed);
    }

    /// How long it has been silent, where that is too long.
    fn stalled_for(&self, now: u64) -> Option<Duration> {
        let turned = self.turned.load(Ordering::Relaxed);
        let silent = Duration::from_millis(now.saturating_sub(turned));
        let is_dead = self.dead.load(Ordering::Relaxed);
        (is_dead || turned != 0 && silent > self.limit).then_some(silent)
    }
}

/// A background task that does not turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stalled {
    /// A stable name, such as `loop/retries`.
    pub name: String,
    pub silent: Duration,
    /// It has ended and is not started again.
    pub dead: bool,
    pub restarts: u32,
}

/// The result of a background future that ends in order. Any other end is a panic, and it is started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finished;

/// The background tasks of one owner. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Background {
    tasks: Arc<Mutex<Vec<Arc<Heartbeat>>>>,
}

impl Background {
    /// Registers a task that somebody else runs: a thread, or a part of a future. It is forgotten when the answer is dropped, and
    /// reported dead when it is dropped by a panic.
    pub fn register(&self, name: impl Into<String>, period: Duration) -> Registered {
        let beat = Arc::new(Heartbeat::new(name.into(), period));
        self.tasks.lock().push(beat.clone());
        Registered { beat, tasks: self.tasks.clone() }
    }

    /// Runs a future until it says that it is finished. When it panics it is logged and started again.
    pub fn spawn<F, Fut>(&self, name: impl Into<String>, period: Duration, start: F) -> tokio::task::JoinHandle<()>
    where
        F: Fn(Arc<Heartbeat>) -> Fut + Send + 'static,
        Fut: Future<Output = Finished> + Send,
    {
        let registered = self.register(name, period);
        tokio::spawn(async move {
            let beat = registered.beat.clone();
            let mut rest = FIRST_REST;
            loop {
                beat.turn();
                let began = Instant::now();
                let run = RUNNING.scope(Running::Background(beat.clone()), start(beat.clone()));
                let message = match caught(run).await {
                    Ok(Finished) => return,
                    Err(message) => message,
                };
                // An idle task that panicked is not idle.
                let _ = beat.turned.compare_exchange(0, now_millis(), Ordering::Relaxed, Ordering::Relaxed);
                beat.restarts.fetch_add(1, Ordering::Relaxed);
                tracing::error!(task = beat.name(), panic = message, "a background task panicked; it is started again");
                rest = if began.elapsed() > LONGEST_REST { FIRST_REST } else { (rest * 2).min(LONGEST_REST) };
                tokio::time::sleep(rest).await;
            }
        })
    }

    /// Heartbeats that have been silent for too long.
    pub fn stalled(&self) -> Vec<Stalled> {
        self.stalled_at(now_millis())
    }

    fn stalled_at(&self, now: u64) -> Vec<Stalled> {
        let tasks = self.tasks.lock();
        let stalled = tasks.iter().filter_map(|beat| {
            beat.stalled_for(now).map(|silent| Stalled {
                name: beat.name.clone(),
                silent,
                dead: beat.dead.load(Ordering::Relaxed),
                restarts: beat.restarts.load(Ordering::Relaxed),
            })
        });
        stalled.collect()
    }

    /// The names of all that are registered.
    pub fn names(&self) -> Vec<String> {
        self.tasks.lock().iter().map(|beat| beat.name.clone()).collect()
    }
}

/// A registered task, for as long as it runs.
#[derive(Debug)]
pub struct Registered {
    beat: Arc<Heartbeat>,
    tasks: Arc<Mutex<Vec<Arc<Heartbeat>>>>,
}

impl Registered {
    pub fn heartbeat(&self) -> &Arc<Heartbeat> {
        &self.beat
    }

    /// It has ended although it should not have: it is reported dead for as long as the process lives.
    pub fn dead(self) {
        self.beat.dead.store(true, Ordering::Relaxed);
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.beat.dead.store(true, Ordering::Relaxed);
        }
        if !self.beat.dead.load(Ordering::Relaxed) {
            self.tasks.lock().retain(|beat| !Arc::ptr_eq(beat, &self.beat));
        }
    }
}

/// The work that a thread does at this moment.
#[derive(Clone)]
pub enum Running {
    Background(Arc<Heartbeat>),
    /// Says of itself what it is: a request by its method, route and id.
    Request(Arc<dyn fmt::Display + Send + Sync>),
}

impl fmt::Display for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Running::Background(beat) => f.write_str(&beat.name),
            Running::Request(request) => write!(f, "request {request}"),
        }
    }
}

tokio::task_local! {
    static RUNNING: Running;
}

thread_local! {
    static SUBJECT: Cell<Option<Uuid>> = const { Cell::new(None) };
}

impl Running {
    /// The work on this thread, if it said so.
    pub fn here() -> Option<Running> {
        RUNNING.try_with(Running::clone).ok()
    }

    /// A future whose panics name this.
    pub fn scope<F: Future>(self, future: F) -> impl Future<Output = F::Output> {
        RUNNING.scope(self, future)
    }

    /// Like `tokio::spawn`; a panic of the new task names what runs here.
    pub fn spawn<F>(future: F) -> tokio::task::JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        match Running::here() {
            Some(running) => tokio::spawn(RUNNING.scope(running, future)),
            None => tokio::spawn(future),
        }
    }

    /// Runs a closure on another thread in the name of `running`.
    pub fn on_thread<T>(running: Option<Running>, work: impl FnOnce() -> T) -> T {
        match running {
            Some(running) => RUNNING.sync_scope(running, work),
            None => work(),
        }
    }

    /// The background task that runs here makes progress.
    pub fn turn() {
        let _ = RUNNING.try_with(|running| {
            if let Running::Background(beat) = running {
                beat.turn();
            }
        });
    }

    /// The background task that runs here waits for something that others must bring.
    pub fn idle() {
        let _ = RUNNING.try_with(|running| {
            if let Running::Background(beat) = running {
                beat.idle();
            }
        });
    }

    /// The task (of the database) that this thread works on, for a panic to name.
    pub fn subject() -> Option<Uuid> {
        SUBJECT.get()
    }

    /// Decides something about one task. A panic is caught, logged and answered with its message.
    pub fn about<T>(subject: Uuid, work: impl FnOnce() -> T) -> Result<T, String> {
        let before = SUBJECT.replace(Some(subject));
        let outcome = catch_unwind(AssertUnwindSafe(work));
        SUBJECT.set(before);
        outcome.map_err(|payload| {
            let message = panic_message(&*payload).to_owned();
            tracing::error!(task = %subject, panic = message, "a verdict panicked; the task stays as it was");
            message
        })
    }
}

/// A future whose panic is an error with its message.
pub async fn caught<F: Future>(future: F) -> Result<F::Output, String> {
    let mut future = pin!(future);
    std::future::poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
        Ok(Poll::Pending) => Poll::Pending,
        Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
        Err(payload) => Poll::Ready(Err(panic_message(&*payload).to_owned())),
    })
    .await
}

/// The text of a panic, where it has one.
pub fn panic_message(payload: &(dyn Any + Send)) -> &str {
    match (payload.downcast_ref::<&'static str>(), payload.downcast_ref::<String>()) {
        (Some(text), _) => text,
        (None, Some(text)) => text,
        (None, None) => "a panic without a message",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_task_that_panics_is_started_again() {
        let background = Background::default();
        let turns = Arc::new(AtomicU32::new(0));
        let counted = turns.clone();
        let task = background.spawn("test/loop", Duration::from_secs(1), move |_| {
            let counted = counted.clone();
            async move {
                if counted.fetch_add(1, Ordering::SeqCst) < 2 {
                    panic!("on purpose");
                }
                Finished
            }
        });
        assert_eq!(background.names(), ["test/loop"]);
        task.await.unwrap();
        assert_eq!(turns.load(Ordering::SeqCst), 3);
        assert!(background.names().is_empty(), "what has finished is forgotten");
    }

    #[test]
    fn a_task_that_is_silent_for_too_long_is_named() {
        let background = Background::default();
        let quick = background.register("quick", Duration::from_millis(100));
        let slow = background.register("slow", Duration::from_secs(30));
        let later = |seconds: u64| now_millis() + seconds * 1_000;
        assert_eq!(background.stalled_at(later(9)), [], "a short period says nothing about a busy machine");
        let stalled = background.stalled_at(later(11));
        assert_eq!((stalled.len(), stalled[0].name.as_str(), stalled[0].dead), (1, "quick", false));
        assert_eq!(background.stalled_at(later(301)).len(), 2, "ten periods");
        quick.beat.idle();
        assert_eq!(background.stalled_at(later(11)), [], "who waits for work is not stalled");
        slow.dead();
        let stalled = background.stalled();
        assert_eq!((stalled.len(), stalled[0].name.as_str(), stalled[0].dead), (1, "slow", true));
    }

    #[test]
    fn a_thread_that_panics_is_reported_dead() {
        let background = Background::default();
        let registered = background.register("thread", Duration::from_secs(1));
        let thread = std::thread::spawn(move || {
            let _registered = registered;
            panic!("on purpose");
        });
        assert!(thread.join().is_err());
        assert!(background.stalled()[0].dead);
    }

    #[tokio::test]
    async fn what_runs_can_be_named_and_a_spawned_task_inherits_it() {
        assert!(Running::here().is_none());
        let named = Running::Request(Arc::new("GET /x 7"))
            .scope(async { Running::spawn(async { Running::here().map(|it| it.to_string()) }).await.unwrap() });
        assert_eq!(named.await.as_deref(), Some("request GET /x 7"));
        assert_eq!(Running::about(Uuid::nil(), Running::subject), Ok(Some(Uuid::nil())));
        assert_eq!(Running::about(Uuid::nil(), || -> u32 { panic!("bang") }), Err("bang".to_owned()));
        assert_eq!(Running::subject(), None);
    }
}
