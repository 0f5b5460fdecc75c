//! Follow: what has happened since a subscription last looked becomes its deliveries.
//!
//! Over 500 lines: one pass over all subscriptions, with its caches.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use comeback_core::dependency::Change;
use comeback_core::filter::{Filter, Subject};
use comeback_core::subscription::{Message, waiting_limit};
use comeback_core::{Millis, Quota, TaskId, Timestamp};
use comeback_store::{
    Applied, Dependency, Feed, FeedCursor, FeedEvent, Loop, Resource, ResourceKind, StoreError, Stored, Submission,
    TaskView,
};
use futures_util::future::join_all;
use parking_lot::Mutex;

use super::turns::{self, Turns};
use super::{DELIVERY, SubscriptionSpec, SubscriptionState, read, share_of};
use crate::Core;
use crate::changes::{DependencyCursor, changes_since};
use crate::loops::Progress;
use crate::schedules::text;

/// Events that are looked at in one go.
const PAGE: u32 = 500;
/// Commits that are under way at once.
const AT_ONCE: usize = 8;
/// Subscriptions whose deliveries are in memory at once.
const TOGETHER: usize = 64;
/// Deliveries before the turns start again, so that a namespace with many does not hold up the others.
const MOST_MADE: usize = 5_000;
/// Where nothing is wanted, the place is written down this often: a restart looks again at no more than that.
const WRITTEN_EVERY: Millis = Millis::from_secs(60);
/// Positions that one tick stores without deliveries; the next ticks store the others.
const MOST_STORED_POSITIONS: usize = 32;

/// Stretches of the feed, and tasks that they are about, that are in memory at once.
const MOST_PAGES: usize = 8;
const MOST_TASKS: usize = 10_000;

/// Kind, namespace and name of a reader of the feed.
type Key = (ResourceKind, String, String);

/// How far each has looked without finding anything, by the version of its row. It may be lost at any moment.
#[derive(Default)]
pub(crate) struct FeedPositions {
    /// Whether anybody follows at all, as far as was seen.
    subscriptions: AtomicBool,
    alerts: AtomicBool,
    places: Mutex<HashMap<Key, (u32, FeedCursor)>>,
    waiting: Mutex<HashMap<Key, Waiting>>,
    /// Rows that are skipped, with the version they had.
    skipped: Mutex<HashMap<Key, (u32, SkipReason)>>,
    /// Order of namespaces.
    turns: Turns,
}

/// Why a subscription's row need not be read.
#[derive(Clone, Copy)]
enum SkipReason {
    /// Its namespace had no new events, and it wants nothing else.
    NoEvents,
    /// It has its limit of waiting deliveries; they are counted again at this time.
    Full(Timestamp),
}

impl FeedPositions {
    pub fn place(&self, row: &Resource, stored: Option<FeedCursor>) -> Option<FeedCursor> {
        let places = self.places.lock();
        let found = places.get(&key(row)).filter(|(version, _)| *version == row.version);
        found.map(|(_, place)| *place).max(stored)
    }

    pub fn note(&self, row: &Resource, place: Option<FeedCursor>) {
        if let Some(place) = place {
            self.places.lock().insert(key(row), (row.version, place));
        }
    }

    pub fn forget(&self, row: &Resource) {
        self.places.lock().remove(&key(row));
    }

    fn set_skip_reason(&self, row: &Resource, reason: SkipReason) {
        self.skipped.lock().insert(key(row), (row.version, reason));
    }

    fn skip_reason(&self, row: &Resource) -> Option<SkipReason> {
        let skipped = self.skipped.lock();
        skipped.get(&key(row)).filter(|(version, _)| *version == row.version).map(|(_, reason)| *reason)
    }

    pub fn anybody(&self, sort: ResourceKind) -> bool {
        self.of(sort).is_some_and(|anybody| anybody.load(Ordering::Relaxed))
    }

    fn of(&self, sort: ResourceKind) -> Option<&AtomicBool> {
        match sort {
            ResourceKind::Schedules => None,
            ResourceKind::Subscriptions => Some(&self.subscriptions),
            ResourceKind::Alerts => Some(&self.alerts),
        }
    }

    /// Only those that are still there are remembered.
    pub fn keep(&self, sort: ResourceKind, rows: &[Resource]) {
        if let Some(anybody) = self.of(sort) {
            anybody.store(!rows.is_empty(), Ordering::Relaxed);
        }
        let there: BTreeSet<_> = rows.iter().map(|row| (&row.namespace, &row.name)).collect();
        let stays = |(of, namespace, name): &Key| *of != sort || there.contains(&(namespace, name));
        self.places.lock().retain(|key, _| stays(key));
        self.waiting.lock().retain(|key, _| stays(key));
        self.skipped.lock().retain(|key, _| stays(key));
    }
}

fn key(row: &Resource) -> Key {
    (row.sort, row.namespace.clone(), row.name.clone())
}

/// Stretches of the feed that were read in this round: most followers stand at the same place. The same for dependencies.
#[derive(Default)]
pub(crate) struct Pages {
    feeds: BTreeMap<Option<FeedCursor>, Arc<Feed>>,
    dependencies: HashMap<String, Arc<Vec<Dependency>>>,
}

impl Pages {
    pub async fn after(&mut self, core: &Core, place: Option<FeedCursor>) -> Result<FeedBatch, StoreError> {
        if let Some(known) = self.known(place) {
            return Ok(known);
        }
        let feed = Arc::new(core.store.feed(place, PAGE).await?);
        if self.feeds.len() >= MOST_PAGES {
            self.feeds.clear();
        }
        self.feeds.insert(place, feed.clone());
        Ok(FeedBatch { feed, from: 0 })
    }

    /// A batch that was read from this position or shortly before it, so that readers at nearby positions share it.
    fn known(&self, place: Option<FeedCursor>) -> Option<FeedBatch> {
        let (start, feed) = self.feeds.range(..=place).next_back()?;
        if *start == place {
            return Some(FeedBatch { feed: feed.clone(), from: 0 });
        }
        let (start, place, next) = ((*start)?, place?, feed.next?);
        // Cursors of older versions are in another order.
        let is_comparable = start.transaction == place.transaction && place.transaction == next.transaction;
        let from = feed.events.partition_point(|it| it.cursor <= place);
        (is_comparable && place < next).then(|| FeedBatch { feed: feed.clone(), from })
    }

    /// Changes of dependencies after its cursor. Filters are about tasks and do not apply.
    async fn changes(
        &mut self,
        core: &Core,
        row: &Resource,
        spec: &SubscriptionSpec,
        heard: &DependencyCursor,
    ) -> Result<(Vec<Message>, DependencyCursor), StoreError> {
        if !wants_changes(spec) {
            return Ok((Vec::new(), heard.clone()));
        }
        let wants = |it: &Change| spec.types.want(it.event());
        if !self.dependencies.contains_key(&row.namespace) {
            let all = core.all_dependencies(&row.namespace).await?;
            self.dependencies.insert(row.namespace.clone(), Arc::new(all));
        }
        let (changes, now_heard) = changes_since(&self.dependencies[&row.namespace], heard, row.created_at);
        let wanted = changes.iter().filter(|it| wants(&it.what.what));
        Ok((wanted.map(|it| it.message(&row.namespace)).collect(), now_heard))
    }
}

/// Whether a subscription wants to know what becomes of dependencies.
fn wants_changes(spec: &SubscriptionSpec) -> bool {
    spec.filter.is_none() && Change::ALL.iter().any(|it| spec.types.want(it.event()))
}

/// Events after a place, and where to go on.
pub(crate) struct FeedBatch {
    feed: Arc<Feed>,
    from: usize,
}

impl FeedBatch {
    pub fn events(&self) -> &[FeedEvent] {
        self.feed.events.get(self.from..).unwrap_or_default()
    }

    pub fn next(&self) -> Option<FeedCursor> {
        self.feed.next
    }
}

/// Tasks that events are about, each looked up once in a round: all of a batch together, and whole only where a filter asks.
#[derive(Default)]
pub(crate) struct Tasks {
    known: HashMap<TaskId, Option<Stored>>,
    whole: HashMap<TaskId, Option<Arc<TaskView>>>,
}

impl Tasks {
    /// Looks up what is not known yet.
    pub async fn learn(&mut self, core: &Core, ids: impl Iterator<Item = TaskId>) -> Result<(), StoreError> {
        if self.known.len() > MOST_TASKS {
            *self = Tasks::default();
        }
        let new: BTreeSet<TaskId> = ids.filter(|id| !self.known.contains_key(id)).collect();
        let new: Vec<TaskId> = new.into_iter().collect();
        if !new.is_empty() {
            let found = core.store.load(&new).await?;
            self.known.extend(new.into_iter().zip(found));
        }
        Ok(())
    }

    /// `None` if it was pruned already.
    pub fn kind(&self, id: Option<TaskId>) -> Option<&str> {
        self.known.get(&id?)?.as_ref().map(|stored| stored.task.lane.kind.as_str())
    }

    /// Whether a filter holds for the task of an event, as it is now. One about tasks says nothing of a whole execution.
    pub async fn pass(
        &mut self,
        core: &Core,
        namespace: &str,
        id: Option<TaskId>,
        filter: Option<&Filter>,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        let (Some(filter), Some(id)) = (filter, id) else { return Ok(filter.is_none()) };
        if let Entry::Vacant(place) = self.whole.entry(id) {
            place.insert(core.store.task(namespace, id).await?.map(Arc::new));
        }
        Ok(self.whole.get(&id).and_then(Option::as_deref).is_some_and(|view| holds(filter, view, now)))
    }
}

fn holds(filter: &Filter, view: &TaskView, now: Timestamp) -> bool {
    let task = &view.stored.task;
    let failure = view.last_failure.as_ref().and_then(|record| record.failure.as_ref());
    let result = view.result.as_deref().and_then(|text| serde_json::from_str::<serde_json::Value>(text).ok());
    let subject = Subject {
        task,
        key: view.body.key.as_deref(),
        name: view.body.name.as_deref(),
        labels: &view.body.labels,
        account: view.body.account.as_deref(),
        external_id: view.body.external_id.as_deref(),
        last_error: failure.map(|failure| failure.message.as_str()),
        verdict: result.as_ref().and_then(|result| result["verdict"].as_str()),
        worker: task.lease.as_ref().map(|lease| &*lease.worker),
    };
    filter.holds(&subject, now)
}

pub async fn tick(core: &Core) -> Result<Progress, StoreError> {
    let now = core.clock.now();
    let rows = turns::active(core, ResourceKind::Subscriptions).await?;
    core.feed_positions.keep(ResourceKind::Subscriptions, &rows);
    // The store holds what a pause forbids; this spares the work.
    if rows.is_empty() || core.is_paused(Loop::Tell).await? {
        return Ok(Progress::default());
    }
    let mut round = FollowTick::of(core, &rows);
    let (rows, mut made) = (core.feed_positions.turns.in_turn(rows), 0);
    for some in rows.chunks(TOGETHER) {
        let mut steps = Vec::new();
        for row in some {
            comeback_store::Running::turn();
            comeback_store::panic_point!("subscription-follow");
            match follow(core, row, &mut round, now).await {
                Ok(step) => steps.extend(step),
                Err(error) => set_aside(row, error)?,
            }
        }
        // Side by side: none of them waits for the commit of another.
        for few in steps.chunks(AT_ONCE) {
            comeback_store::Running::turn();
            let stored = join_all(few.iter().map(|step| step.store(core, now))).await;
            for (step, stored) in few.iter().zip(stored) {
                match stored {
                    Ok(true) => {
                        round.progress.moved += 1;
                        made += step.start.tasks.len();
                    }
                    Ok(false) => {}
                    Err(error) => set_aside(&step.moved, error)?,
                }
            }
        }
        core.feed_positions.turns.took(some);
        if made >= MOST_MADE {
            round.progress.more = true;
            break;
        }
    }
    Ok(round.progress)
}

/// One tick over all subscriptions.
struct FollowTick {
    pages: Pages,
    tasks: Tasks,
    progress: Progress,
    /// Positions that were stored without deliveries.
    stored_positions: usize,
    /// Limit of waiting deliveries of one subscription, by namespace.
    most_waiting: HashMap<String, u64>,
}

impl FollowTick {
    /// The subscriptions of a namespace share its quota equally.
    fn of(core: &Core, rows: &[Resource]) -> FollowTick {
        let mut most_waiting: HashMap<String, u64> = HashMap::new();
        for row in rows {
            *most_waiting.entry(row.namespace.clone()).or_default() += 1;
        }
        let quota = core.config.quotas.get(Quota::WaitingDeliveries);
        let limit = core.config.limits.waiting_deliveries as u64;
        most_waiting.values_mut().for_each(|it| *it = waiting_limit(quota, *it, limit));
        let (pages, tasks, progress) = Default::default();
        FollowTick { pages, tasks, progress, stored_positions: 0, most_waiting }
    }

    /// Skips a subscription without reading its row, if it is known to have nothing to deliver. Returns whether it was skipped.
    async fn skip(&mut self, core: &Core, row: &Resource, now: Timestamp) -> Result<bool, StoreError> {
        match core.feed_positions.skip_reason(row) {
            Some(SkipReason::Full(until)) => Ok(now < until),
            Some(SkipReason::NoEvents) => {
                let Some(place) = core.feed_positions.place(row, None) else { return Ok(false) };
                let feed = self.pages.after(core, Some(place)).await?;
                if feed.next() == Some(place) {
                    return Ok(true);
                }
                let is_unwanted = feed.events().iter().all(|it| it.namespace != row.namespace);
                let passes = is_unwanted && !self.must_store_position(row, now);
                if passes {
                    self.advance(core, row, &feed);
                }
                Ok(passes)
            }
            None => Ok(false),
        }
    }

    /// Whether the position is stored although there is nothing to deliver.
    fn must_store_position(&self, row: &Resource, now: Timestamp) -> bool {
        now.since(row.updated_at) >= WRITTEN_EVERY && self.stored_positions < MOST_STORED_POSITIONS
    }

    /// Moves the position in memory behind a batch without deliveries.
    fn advance(&mut self, core: &Core, row: &Resource, feed: &FeedBatch) {
        core.feed_positions.note(row, feed.next());
        self.progress.more = true;
        self.progress.moved += 1;
    }
}

/// One that cannot be read or stored keeps no other waiting.
fn set_aside(row: &Resource, error: StoreError) -> Result<(), StoreError> {
    match error {
        StoreError::Corrupt(_) | StoreError::Refused(_) => {
            tracing::error!(subscription = row.name, %error, "cannot process subscription");
            Ok(())
        }
        error => Err(error),
    }
}

/// A subscription as it will be, and the deliveries that it makes.
struct Step {
    moved: Resource,
    start: Submission,
}

impl Step {
    /// Of several who read the same batch, one has its deliveries stored.
    async fn store(&self, core: &Core, now: Timestamp) -> Result<bool, StoreError> {
        let start = Some(&self.start).filter(|start| !start.tasks.is_empty());
        if start.is_some() {
            core.ensure_share(&self.moved.namespace).await?;
        }
        if core.store.put_follower(&self.moved, start, Some(Loop::Tell), None, now).await? != Applied::Done {
            return Ok(false);
        }
        comeback_store::panic_point!("subscription-stored");
        core.feed_positions.forget(&self.moved);
        if let Some(start) = start {
            core.tell_fired(start);
        }
        Ok(true)
    }
}

/// The next step of a subscription; `None` if there is nothing to store.
async fn follow(
    core: &Core,
    row: &Resource,
    round: &mut FollowTick,
    now: Timestamp,
) -> Result<Option<Step>, StoreError> {
    if round.skip(core, row, now).await? {
        return Ok(None);
    }
    let (spec, standing) = read(row)?;
    let most = round.most_waiting.get(&row.namespace).copied().unwrap_or_default();
    let full_since = core.full_since(row, &standing, most, now).await?;
    let step = |standing: SubscriptionState, start| {
        Some(Step { moved: Resource { standing: text(&standing), ..row.clone() }, start })
    };
    if full_since.is_some() {
        // It goes on where it stopped, once there is room.
        if standing.full_since == full_since {
            core.feed_positions.set_skip_reason(row, SkipReason::Full(now + COUNTED_EVERY));
            return Ok(None);
        }
        return Ok(step(SubscriptionState { full_since, ..standing }, Submission::in_namespace(&row.namespace)));
    }
    let place = core.feed_positions.place(row, standing.place());
    let feed = round.pages.after(core, place).await?;
    let (changes, heard) = round.pages.changes(core, row, &spec, &standing.heard).await?;
    if feed.next() == place && changes.is_empty() && standing.full_since.is_none() {
        return Ok(None);
    }
    round.progress.more |= feed.next() != place;
    let mut messages = wanted(core, row, &spec, feed.events(), &mut round.tasks, now).await?;
    messages.extend(changes);
    if messages.is_empty() && standing.full_since.is_none() {
        if !round.must_store_position(row, now) {
            round.advance(core, row, &feed);
            if !wants_changes(&spec) {
                core.feed_positions.set_skip_reason(row, SkipReason::NoEvents);
            }
            return Ok(None);
        }
        round.stored_positions += 1;
    }
    let mut start = Submission::in_namespace(&row.namespace);
    let mut last = core.still_open(&standing.last).await?;
    for message in &messages {
        let about = message.subject.as_deref().unwrap_or_default();
        let behind = last.iter().position(|(of, _)| of == about).map(|place| last.remove(place).1);
        let delivery = core.message_to(&row.namespace, &row.name, &spec, (message, behind), now);
        last.push((about.to_owned(), delivery.task.id));
        start.tasks.push(delivery);
    }
    last.drain(..last.len().saturating_sub(MOST_LAST));
    let (cursor, made) = (feed.next().map(|cursor| cursor.to_string()), standing.made + start.tasks.len() as u64);
    Ok(step(SubscriptionState { cursor, made, heard, full_since, last, ..standing }, start))
}

/// How many of a subscription wait to be delivered, when that was counted, and how many it had made by then.
#[derive(Clone, Copy)]
struct Waiting {
    count: u64,
    made: u64,
    at: Timestamp,
}

/// For so many tasks it is remembered which delivery was the last: those whose deliveries have not come to an end.
const MOST_LAST: usize = 100;

/// How often one that is full is counted again.
const COUNTED_EVERY: Millis = Millis::from_secs(10);

impl Core {
    /// Last deliveries that the next ones have to wait for.
    async fn still_open(&self, last: &[(String, TaskId)]) -> Result<Vec<(String, TaskId)>, StoreError> {
        if last.is_empty() {
            return Ok(Vec::new());
        }
        let ids: Vec<TaskId> = last.iter().map(|(_, id)| *id).collect();
        let found = self.store.load(&ids).await?;
        let open = last.iter().zip(found).filter(|(_, it)| it.as_ref().is_some_and(|it| it.task.state.is_open()));
        Ok(open.map(|(it, _)| it.clone()).collect())
    }

    /// Since when so many deliveries wait that no more are made; nothing where there is room. They are counted only where so many were
    /// made since the last time that there might be too many.
    async fn full_since(
        &self,
        row: &Resource,
        standing: &SubscriptionState,
        most: u64,
        now: Timestamp,
    ) -> Result<Option<Timestamp>, StoreError> {
        let known = self.feed_positions.waiting.lock().get(&key(row)).copied();
        let known = known.unwrap_or(Waiting { count: 0, made: 0, at: Timestamp(i64::MIN) });
        let at_most = known.count + standing.made.saturating_sub(known.made);
        if at_most < most {
            return Ok(None);
        }
        let mut count = known.count;
        if at_most > count || now.since(known.at) >= COUNTED_EVERY {
            let limit = u32::try_from(most).unwrap_or(u32::MAX);
            count = self.store.open_under(&row.namespace, &share_of(&row.name), limit).await?;
            self.feed_positions.waiting.lock().insert(key(row), Waiting { count, made: standing.made, at: now });
        }
        Ok((count >= most).then(|| standing.full_since.unwrap_or(now)))
    }
}

/// Messages of a batch for one subscription.
async fn wanted(
    core: &Core,
    row: &Resource,
    spec: &SubscriptionSpec,
    events: &[FeedEvent],
    tasks: &mut Tasks,
    now: Timestamp,
) -> Result<Vec<Message>, StoreError> {
    let filter = spec.filter.as_deref().map(|text| Filter::parse(text, now)).transpose();
    let filter = filter.map_err(|error| StoreError::Corrupt(error.to_string()))?;
    let told = events.iter().filter(|it| it.namespace == row.namespace);
    let named = told.map(|it| (it, spec.types.names(&it.event))).filter(|(_, names)| !names.is_empty());
    let named: Vec<_> = named.collect();
    tasks.learn(core, named.iter().filter_map(|(it, _)| it.event.task)).await?;
    let mut messages = Vec::new();
    for (it, names) in named {
        // A delivery that told of deliveries would never come to an end.
        let is_delivery = tasks.kind(it.event.task) == Some(DELIVERY);
        if is_delivery || !tasks.pass(core, &row.namespace, it.event.task, filter.as_ref(), now).await? {
            continue;
        }
        let (id, kind) = (core.cursors.show(&row.namespace, it.cursor), tasks.kind(it.event.task));
        let told = names.into_iter().map(|name| Message::of_event(&id, name, &row.namespace, &it.event, kind));
        messages.extend(told);
    }
    Ok(messages)
}
