//! Shared state of event streams: quotas per namespace on streams and buffered bytes, and one reader of the feed that
//! wakes the streams of a namespace when it has new events.
//!
//! Without it every stream would poll the feed of all namespaces several times a second.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use comeback_core::{Quota, QuotaExceeded, Quotas};
use comeback_engine::store::{FeedCursor, StoreError};
use comeback_engine::{DependencyChange, DependencyCursor, Engine, Share, Shares};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, broadcast, watch};

/// Poll period of the feed.
const POLL_EVERY: Duration = Duration::from_millis(150);
/// Poll period of dependencies.
const DEPENDENCY_POLL_EVERY: Duration = Duration::from_millis(500);
/// Events per read of the feed.
const BATCH: u32 = 500;
/// Maximum number of streams reading the feed at the same time.
const READERS: usize = 4;
/// Number of batches remembered per namespace.
const REMEMBERED: usize = 64;
/// Capacity of the channel of dependency changes.
const CHANGES: usize = 256;

/// All open streams.
pub struct Streams {
    engine: Engine,
    open: Arc<Shares>,
    bytes: Arc<Shares>,
    /// Maximum number of bytes buffered per stream.
    per_stream: u64,
    readers: Arc<Semaphore>,
    hub: Mutex<StreamHub>,
}

/// Open streams by namespace, and the state of the shared reader.
#[derive(Default)]
struct StreamHub {
    namespaces: HashMap<Arc<str>, Topic>,
    /// Number of batches that the shared reader has read.
    batch: u64,
    /// Whether the shared reader runs, and whether it has a position.
    is_read: bool,
    has_begun: bool,
}

struct Topic {
    streams: usize,
    /// Number of batches with an event of the namespace.
    news: watch::Sender<u64>,
    /// The last of those batches: number and start cursor.
    batches: VecDeque<(u64, Option<FeedCursor>)>,
    changes: broadcast::Sender<DependencyChange>,
}

/// One open stream, counted until dropped.
pub struct StreamSubscription {
    all: Arc<Streams>,
    namespace: Arc<str>,
    news: watch::Receiver<u64>,
    changes: broadcast::Receiver<DependencyChange>,
    _open: Share,
}

impl Streams {
    /// No open streams.
    pub fn new(engine: Engine, quotas: &Quotas) -> Arc<Streams> {
        // Half for the batch being sent, half for the next one.
        let each = quotas.get(Quota::StreamBytes) / quotas.get(Quota::Streams).max(1) / 2;
        Arc::new(Streams {
            engine,
            open: Shares::of(Quota::Streams, quotas),
            bytes: Shares::of(Quota::StreamBytes, quotas),
            per_stream: each.clamp(4 << 10, 256 << 10),
            readers: Arc::new(Semaphore::new(READERS)),
            hub: Mutex::default(),
        })
    }

    /// Opens a stream of a namespace. Refused with the name of the exceeded quota.
    pub fn open(self: &Arc<Streams>, namespace: &str) -> Result<StreamSubscription, QuotaExceeded> {
        let share = self.open.take(namespace, 1)?;
        let mut hub = self.hub.lock();
        let name: Arc<str> = match hub.namespaces.get_key_value(namespace) {
            Some((name, _)) => name.clone(),
            None => Arc::from(namespace),
        };
        let topic = hub.namespaces.entry(name.clone()).or_insert_with(|| Topic {
            streams: 0,
            news: watch::Sender::new(0),
            batches: VecDeque::new(),
            changes: broadcast::Sender::new(CHANGES),
        });
        topic.streams += 1;
        let (news, changes) = (topic.news.subscribe(), topic.changes.subscribe());
        if !hub.is_read {
            hub.is_read = true;
            tokio::spawn(read_loop(Arc::downgrade(self)));
        }
        Ok(StreamSubscription { all: self.clone(), namespace: name, news, changes, _open: share })
    }

    /// Maximum number of bytes buffered per stream.
    pub fn per_stream(&self) -> u64 {
        self.per_stream
    }

    /// Number of the last batch of the shared reader; `None` before it has started.
    fn batch(&self) -> Option<u64> {
        let hub = self.hub.lock();
        hub.has_begun.then_some(hub.batch)
    }

    /// Wakes the streams of the namespaces with events in a batch that began at a cursor.
    fn notify(&self, namespaces: &HashSet<String>, began: Option<FeedCursor>) {
        let mut hub = self.hub.lock();
        hub.batch += 1;
        let batch = hub.batch;
        for namespace in namespaces {
            if let Some(topic) = hub.namespaces.get_mut(namespace.as_str()) {
                if topic.batches.len() >= REMEMBERED {
                    topic.batches.pop_front();
                }
                topic.batches.push_back((batch, began));
                topic.news.send_modify(|news| *news += 1);
            }
        }
    }

    fn namespaces(&self) -> Vec<Arc<str>> {
        self.hub.lock().namespaces.keys().cloned().collect()
    }

    /// Looks once for what became of the dependencies of every namespace that has a stream.
    async fn poll_dependencies(&self, heard: &mut BTreeMap<Arc<str>, (DependencyCursor, comeback_core::Timestamp)>) {
        let namespaces = self.namespaces();
        heard.retain(|namespace, _| namespaces.contains(namespace));
        for namespace in namespaces {
            let now = self.engine.now();
            let (heard, since) = heard.entry(namespace.clone()).or_insert_with(|| (DependencyCursor::new(), now));
            let Ok(changes) = self.engine.changes_of_dependencies(&namespace, heard, *since).await else { continue };
            let hub = self.hub.lock();
            let Some(topic) = hub.namespaces.get(&namespace) else { continue };
            for change in changes {
                let _ = topic.changes.send(change);
            }
        }
    }
}

/// The shared reader: reads the feed for all streams, as long as there are any.
async fn read_loop(streams: Weak<Streams>) {
    let mut cursor: Option<Option<FeedCursor>> = None;
    let mut heard = BTreeMap::new();
    let mut looked: Option<Instant> = None;
    loop {
        let Some(all) = streams.upgrade() else { return };
        {
            let mut hub = all.hub.lock();
            if hub.namespaces.is_empty() {
                (hub.is_read, hub.has_begun) = (false, false);
                return;
            }
        }
        if looked.is_none_or(|looked| looked.elapsed() >= DEPENDENCY_POLL_EVERY) {
            looked = Some(Instant::now());
            all.poll_dependencies(&mut heard).await;
        }
        let more = match all.read_batch(&mut cursor).await {
            Ok(more) => more,
            Err(error) => {
                tracing::debug!(%error, "cannot read the event feed");
                false
            }
        };
        drop(all);
        if !more {
            tokio::time::sleep(POLL_EVERY).await;
        }
    }
}

impl Streams {
    /// Reads the next batch. False at the end of the feed.
    async fn read_batch(&self, cursor: &mut Option<Option<FeedCursor>>) -> Result<bool, StoreError> {
        let Some(began) = *cursor else {
            *cursor = Some(Some(self.engine.store().feed_end().await?));
            self.hub.lock().has_begun = true;
            return Ok(true);
        };
        let feed = self.engine.store().feed(began, BATCH).await?;
        if feed.next == began {
            return Ok(false);
        }
        *cursor = Some(feed.next);
        let namespaces: HashSet<String> = feed.events.into_iter().map(|it| it.namespace).collect();
        self.notify(&namespaces, began);
        Ok(true)
    }
}

/// Batch number of the shared reader when a stream began to read; `None` before it has started.
#[derive(Clone, Copy)]
pub struct CaughtUp(Option<u64>);

impl StreamSubscription {
    /// Call before reading: later commits wake the stream.
    pub fn begin_to_read(&mut self) -> CaughtUp {
        self.news.borrow_and_update();
        CaughtUp(self.all.batch())
    }

    /// Waits for new events of the namespace since `caught_up` or a dependency change, at most for `most`.
    pub async fn wait(&mut self, caught_up: CaughtUp, most: Duration) -> Wakeup {
        if caught_up.0.is_none() {
            // The shared reader has not started, so wake-ups may be missed: poll.
            tokio::time::sleep(POLL_EVERY).await;
            return Wakeup::Events;
        }
        tokio::select! {
            changed = self.news.changed() => if changed.is_ok() { Wakeup::Events } else { Wakeup::Nothing },
            change = self.changes.recv() => match change {
                Ok(change) => Wakeup::Change(Box::new(change)),
                // The receiver lagged; the current state is in the dependency itself.
                Err(_) => Wakeup::Nothing,
            },
            () = tokio::time::sleep(most) => Wakeup::Nothing,
        }
    }

    /// A pending dependency change.
    pub fn change(&mut self) -> Option<DependencyChange> {
        self.changes.try_recv().ok()
    }

    /// Start cursor of the first batch after `caught_up` with an event of the namespace.
    pub fn skip_to(&self, caught_up: CaughtUp) -> Option<FeedCursor> {
        let caught_up = caught_up.0?;
        let hub = self.all.hub.lock();
        let batches = &hub.namespaces.get(&self.namespace)?.batches;
        let first = batches.iter().position(|(batch, _)| *batch > caught_up)?;
        // If older batches were dropped, it may not be the first.
        if first == 0 && batches.len() >= REMEMBERED { None } else { batches[first].1 }
    }

    /// Quota share for buffered bytes; `None` if the quota of the namespace is exhausted.
    pub fn take_bytes(&self, bytes: u64) -> Option<Share> {
        self.all.bytes.take(&self.namespace, bytes).ok()
    }

    /// Waits for a permit to read the feed.
    pub async fn turn(&self) -> Option<tokio::sync::OwnedSemaphorePermit> {
        self.all.readers.clone().acquire_owned().await.ok()
    }

    /// Maximum number of bytes buffered per stream.
    pub fn per_stream(&self) -> u64 {
        self.all.per_stream()
    }
}

/// Reason that a waiting stream wakes up.
pub enum Wakeup {
    /// Events of its namespace were committed.
    Events,
    /// A dependency has changed.
    Change(Box<DependencyChange>),
    /// The wait timed out.
    Nothing,
}

impl Drop for StreamSubscription {
    fn drop(&mut self) {
        let mut hub = self.all.hub.lock();
        if let Some(topic) = hub.namespaces.get_mut(&self.namespace) {
            topic.streams -= 1;
            if topic.streams == 0 {
                hub.namespaces.remove(&self.namespace);
            }
        }
    }
}
