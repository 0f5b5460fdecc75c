//! What event streams share: a quota per namespace on streams and on the bytes they hold, and one reader of the feed that tells
//! streams when something of their namespace was committed.
//!
//! Without it every stream would read everybody's feed several times a second to find nothing.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use comeback_core::{Quota, QuotaExceeded, Quotas};
use comeback_engine::store::{FeedCursor, StoreError};
use comeback_engine::{DependencyChange, DependencyCursor, Engine, Share, Shares};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, broadcast, watch};

/// How often the feed is looked at.
const LOOK: Duration = Duration::from_millis(150);
/// How often dependencies are looked at.
const LOOK_AT_DEPENDENCIES: Duration = Duration::from_millis(500);
/// Events that are read at a time.
const STRETCH: u32 = 500;
/// Streams that may read the feed at the same moment.
const READERS: usize = 4;
/// Stretches of one namespace that are remembered.
const REMEMBERED: usize = 64;
/// Changes of dependencies that a slow stream may have missed without losing any.
const CHANGES: usize = 256;

/// All open streams.
pub struct Streams {
    engine: Engine,
    open: Arc<Shares>,
    bytes: Arc<Shares>,
    /// Bytes that one stream may hold.
    per_stream: u64,
    readers: Arc<Semaphore>,
    hub: Mutex<Hub>,
}

/// The streams by namespace.
#[derive(Default)]
struct Hub {
    namespaces: HashMap<Arc<str>, Topic>,
    /// Stretches that the common reader has looked through.
    stretch: u64,
    /// Whether the common reader runs, and whether it has found its place.
    is_read: bool,
    has_begun: bool,
}

struct Topic {
    streams: usize,
    /// Counts stretches in which the namespace had an event.
    news: watch::Sender<u64>,
    /// The last of those stretches: their numbers, and where each began.
    stretches: VecDeque<(u64, Option<FeedCursor>)>,
    changes: broadcast::Sender<DependencyChange>,
}

/// One open stream, counted until this is dropped.
pub struct Subscription {
    all: Arc<Streams>,
    namespace: Arc<str>,
    news: watch::Receiver<u64>,
    changes: broadcast::Receiver<DependencyChange>,
    _open: Share,
}

impl Streams {
    pub fn new(engine: Engine, quotas: &Quotas) -> Arc<Streams> {
        // What is sent and what was read for after that.
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

    /// Opens a stream of a namespace, or refuses by the quota's name.
    pub fn open(self: &Arc<Streams>, namespace: &str) -> Result<Subscription, QuotaExceeded> {
        let share = self.open.take(namespace, 1)?;
        let mut hub = self.hub.lock();
        let name: Arc<str> = match hub.namespaces.get_key_value(namespace) {
            Some((name, _)) => name.clone(),
            None => Arc::from(namespace),
        };
        let topic = hub.namespaces.entry(name.clone()).or_insert_with(|| Topic {
            streams: 0,
            news: watch::Sender::new(0),
            stretches: VecDeque::new(),
            changes: broadcast::Sender::new(CHANGES),
        });
        topic.streams += 1;
        let (news, changes) = (topic.news.subscribe(), topic.changes.subscribe());
        if !hub.is_read {
            hub.is_read = true;
            tokio::spawn(read(Arc::downgrade(self)));
        }
        Ok(Subscription { all: self.clone(), namespace: name, news, changes, _open: share })
    }

    /// Bytes that one stream may hold ready.
    pub fn per_stream(&self) -> u64 {
        self.per_stream
    }

    /// The number of the last stretch that the common reader has looked through; nothing while it has not begun.
    fn stretch(&self) -> Option<u64> {
        let hub = self.hub.lock();
        hub.has_begun.then_some(hub.stretch)
    }

    /// Tells the streams of the namespaces that had events in a stretch, which began at a cursor.
    fn tell(&self, namespaces: &HashSet<String>, began: Option<FeedCursor>) {
        let mut hub = self.hub.lock();
        hub.stretch += 1;
        let stretch = hub.stretch;
        for namespace in namespaces {
            if let Some(topic) = hub.namespaces.get_mut(namespace.as_str()) {
                if topic.stretches.len() >= REMEMBERED {
                    topic.stretches.pop_front();
                }
                topic.stretches.push_back((stretch, began));
                topic.news.send_modify(|news| *news += 1);
            }
        }
    }

    fn namespaces(&self) -> Vec<Arc<str>> {
        self.hub.lock().namespaces.keys().cloned().collect()
    }

    /// Looks once for what became of the dependencies of every namespace that has a stream.
    async fn look_at_dependencies(&self, heard: &mut BTreeMap<Arc<str>, (DependencyCursor, comeback_core::Timestamp)>) {
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

/// The common reader: goes through the feed once for all streams, as long as there are any.
async fn read(streams: Weak<Streams>) {
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
        if looked.is_none_or(|looked| looked.elapsed() >= LOOK_AT_DEPENDENCIES) {
            looked = Some(Instant::now());
            all.look_at_dependencies(&mut heard).await;
        }
        let more = match all.go_on(&mut cursor).await {
            Ok(more) => more,
            Err(error) => {
                tracing::debug!(%error, "the feed could not be read");
                false
            }
        };
        drop(all);
        if !more {
            tokio::time::sleep(LOOK).await;
        }
    }
}

impl Streams {
    /// Reads the next stretch; whether there was one.
    async fn go_on(&self, cursor: &mut Option<Option<FeedCursor>>) -> Result<bool, StoreError> {
        let Some(began) = *cursor else {
            *cursor = Some(Some(self.engine.store().feed_end().await?));
            self.hub.lock().has_begun = true;
            return Ok(true);
        };
        let feed = self.engine.store().feed(began, STRETCH).await?;
        if feed.next == began {
            return Ok(false);
        }
        *cursor = Some(feed.next);
        let namespaces: HashSet<String> = feed.events.into_iter().map(|it| it.namespace).collect();
        self.tell(&namespaces, began);
        Ok(true)
    }
}

/// Where the common reader stood when a stream began to read; nothing while it had not begun.
#[derive(Clone, Copy)]
pub struct CaughtUp(Option<u64>);

impl Subscription {
    /// To be asked before reading: what is committed later is told as news.
    pub fn begin_to_read(&mut self) -> CaughtUp {
        self.news.borrow_and_update();
        CaughtUp(self.all.stretch())
    }

    /// Waits for news of the namespace since a stream had read everything, or for a change of a dependency, but for so long at most.
    pub async fn wait(&mut self, caught_up: CaughtUp, most: Duration) -> News {
        if caught_up.0.is_none() {
            // Nobody would tell of what came between: look again.
            tokio::time::sleep(LOOK).await;
            return News::Events;
        }
        tokio::select! {
            changed = self.news.changed() => if changed.is_ok() { News::Events } else { News::Nothing },
            change = self.changes.recv() => match change {
                Ok(change) => News::Change(Box::new(change)),
                // It was too slow, and finds the last ones with the dependency itself.
                Err(_) => News::Nothing,
            },
            () = tokio::time::sleep(most) => News::Nothing,
        }
    }

    /// A change of a dependency that came meanwhile.
    pub fn change(&mut self) -> Option<DependencyChange> {
        self.changes.try_recv().ok()
    }

    /// Where the first news after `caught_up` began: everything before it is of other namespaces.
    pub fn skip_to(&self, caught_up: CaughtUp) -> Option<FeedCursor> {
        let caught_up = caught_up.0?;
        let hub = self.all.hub.lock();
        let stretches = &hub.namespaces.get(&self.namespace)?.stretches;
        let first = stretches.iter().position(|(stretch, _)| *stretch > caught_up)?;
        // Where older ones were forgotten it may not be the first.
        if first == 0 && stretches.len() >= REMEMBERED { None } else { stretches[first].1 }
    }

    /// Room for bytes that wait to be sent; nothing when the namespace's streams hold all they may.
    pub fn take_bytes(&self, bytes: u64) -> Option<Share> {
        self.all.bytes.take(&self.namespace, bytes).ok()
    }

    /// A turn to read the feed.
    pub async fn turn(&self) -> Option<tokio::sync::OwnedSemaphorePermit> {
        self.all.readers.clone().acquire_owned().await.ok()
    }

    pub fn per_stream(&self) -> u64 {
        self.all.per_stream()
    }
}

/// What a stream waited for.
pub enum News {
    /// Events of its namespace were committed.
    Events,
    /// A dependency has changed.
    Change(Box<DependencyChange>),
    /// The time is over.
    Nothing,
}

impl Drop for Subscription {
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
