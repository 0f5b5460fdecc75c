//! Events: pages, and a resumable stream.
//!
//! Over 500 lines: pages and the stream share their filter, their cursors and their limits.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Extension, RawQuery, State};
use axum::http::{HeaderMap, HeaderValue, Method};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post};
use bytes::Bytes;
use comeback_core::dependency::Change;
use comeback_core::{EventKind, Invalid, Timestamp};
use comeback_engine::schedules::{Came, OutsideEvent, Run};
use comeback_engine::store::{FeedCursor, FeedEvent, Interactive, interactive, panic_point};
use comeback_engine::{Cursors, DependencyChange, Share};
use futures_util::stream;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use utoipa::ToSchema;
use uuid::Uuid;

use super::{LIMIT, Line, Query, header_text, line};
use crate::auth::{Caller, Need};
use crate::idempotency::IdempotencyKey;
use crate::openapi::{Doc, Param, schema, schema_types};
use crate::problem::Problem;
use crate::streams::{StreamSubscription, Wakeup};
use crate::wire::{self, Page, event};
use crate::{App, heavy};

/// Routes of this module.
pub fn lines() -> Vec<Line> {
    let last = Param::new(
        "Last-Event-ID",
        "Id of the last event received, to resume; takes precedence over `after`.",
        schema::text,
    );
    vec![
        line(Method::GET, "/api/v1/events", Need::Read, "List events", get(page))
            .doc(Doc::new("listEvents").query(PARAMETERS).answers(schema::page(schema::named("Event")))),
        line(Method::POST, "/api/v1/events", Need::Submit, "Send an external event", post(tell)).doc(
            Doc::new("tellEvent")
                .about(
                    "Triggers every schedule for events of this type. The same `id` starts nothing twice; default: \
                     the idempotency key.",
                )
                .needs::<EventIn>()
                .example(json!({"type": "order.paid", "id": "order-42", "data": {"order": 42, "total": 99.5}}))
                .once()
                .answers(schema::named("ToldEvent"))
                .problems(&["conflict"]),
        ),
        line(Method::GET, "/api/v1/events/stream", Need::Read, "Stream events (SSE)", get(follow)).doc(
            Doc::new("followEvents")
                .about(
                    "The data of each message is an `Event`, its id a cursor. A client that reconnects with the last \
                     id misses nothing. Dependency changes are sent in between as `dependency.opened` etc., without a \
                     cursor.",
                )
                .query(STREAM_PARAMETERS)
                .header(last)
                .answers_text("text/event-stream"),
        ),
    ]
}

/// Filters events, and chooses the names they are shown by.
#[derive(Clone)]
pub struct EventFilter {
    namespace: String,
    types: Vec<EventKind>,
    changes: Vec<Change>,
    /// Whether the request names types; otherwise all match.
    is_named: bool,
    execution: Option<Uuid>,
    task: Option<Uuid>,
    /// Only events that a playbook engine has a name for, by that name (`names=seed`).
    playbook_names: bool,
}

impl EventFilter {
    /// Reads the filter from the parameters of a request.
    pub fn read(query: &Query, namespace: String) -> Result<EventFilter, Problem> {
        let (mut types, mut changes) = (Vec::new(), Vec::new());
        for word in query.text("types").unwrap_or_default().split(',').filter(|word| !word.is_empty()) {
            let kinds = event::kinds(word);
            let change = Change::ALL.into_iter().find(|it| it.event() == word);
            if kinds.is_empty() && change.is_none() {
                return Err(Invalid::one("types", format!("unknown event type `{word}`")).into());
            }
            types.extend(kinds);
            changes.extend(change);
        }
        let is_named = !types.is_empty() || !changes.is_empty();
        let playbook_names = match query.text("names") {
            None | Some("native") => false,
            Some("seed") => true,
            Some(_) => return Err(Invalid::one("names", "must be one of native, seed").into()),
        };
        let (execution, task) = (query.parse("execution_id")?, query.parse("task_id")?);
        Ok(EventFilter { namespace, types, changes, is_named, execution, task, playbook_names })
    }

    /// The same filter with the names of a playbook engine.
    pub fn playbook_names(self) -> EventFilter {
        EventFilter { playbook_names: true, ..self }
    }

    /// Narrows the filter to these kinds.
    pub fn only(mut self, kinds: &[EventKind]) -> EventFilter {
        match self.is_named {
            true => self.types.retain(|kind| kinds.contains(kind)),
            false => self.types = kinds.to_vec(),
        }
        self.changes.clear();
        self.is_named = true;
        self
    }

    /// JSON of an event, with its type in the requested naming.
    fn told(&self, it: &FeedEvent, cursors: &Cursors) -> Value {
        let mut shown = event::of_feed(it, cursors);
        if let (true, Some(name)) = (self.playbook_names, event::playbook_event_name(it.event.kind)) {
            shown["type"] = name.into();
        }
        shown
    }

    fn wants(&self, it: &FeedEvent) -> bool {
        it.namespace == self.namespace
            && (!self.is_named || self.types.contains(&it.event.kind))
            && (!self.playbook_names || event::playbook_event_name(it.event.kind).is_some())
            && self.execution.is_none_or(|id| it.event.execution.0 == id)
            && self.task.is_none_or(|id| it.event.task.is_some_and(|task| task.0 == id))
    }

    fn wants_change(&self, what: Change) -> bool {
        let is_about_all = self.execution.is_none() && self.task.is_none();
        is_about_all && !self.playbook_names && (!self.is_named || self.changes.contains(&what))
    }
}

const PARAMETERS: &[Param] = &[
    Param::new(
        "after",
        "Start position: the `id` of an event, `next_cursor` of a page, or `latest` for new events only.",
        schema::text,
    ),
    Param::new("types", "Comma-separated event types, such as `task.failed,task.retry_exhausted`.", schema::text),
    Param::new("execution_id", "Only events of this execution.", schema::id),
    Param::new("task_id", "Only events of this task.", schema::id),
    Param::new(
        "names",
        "`seed` for the event names of a playbook engine; events without such a name are left out.",
        names,
    ),
    LIMIT,
];
fn names() -> Value {
    schema::word(&["native", "seed"])
}

/// A stream has no pages, so the limit is left out.
const STREAM_PARAMETERS: &[Param] = PARAMETERS.split_last().expect("there are some").1;
/// Maximum number of feed reads for one page.
const BATCHES_PER_PAGE: usize = 20;

/// Start position: after the given cursor, or after the latest event.
async fn place(app: &App, query: &Query, namespace: &str) -> Result<Option<FeedCursor>, Problem> {
    match query.text("after") {
        None => query.parse("after"),
        Some("latest") => Ok(Some(app.engine.store().feed_end().await?)),
        Some(text) => match app.engine.cursors().read(namespace, text) {
            Some(cursor) => Ok(Some(cursor)),
            None => Err(Invalid::one("after", format!("cannot parse `{text}`")).into()),
        },
    }
}

async fn page(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    RawQuery(query): RawQuery,
) -> Result<Json<Page<Value>>, Problem> {
    let query = Query::read(query.as_deref(), PARAMETERS)?;
    let wanted = EventFilter::read(&query, caller.namespace)?;
    let (found, next_cursor) = read_events(&app, &query, &wanted).await?;
    let cursors = app.engine.cursors();
    Ok(Json(Page { items: found.iter().map(|it| wanted.told(it, cursors)).collect(), next_cursor }))
}

/// A page of events that pass the filter, at most as many bytes as a page may have, and the cursor of the next page.
pub async fn read_events(
    app: &App,
    query: &Query,
    wanted: &EventFilter,
) -> Result<(Vec<FeedEvent>, Option<String>), Problem> {
    let limit = query.limit()?;
    let shown = |cursor: FeedCursor| app.engine.cursors().show(&wanted.namespace, cursor);
    let mut cursor = place(app, query, &wanted.namespace).await?;
    let mut items: Vec<FeedEvent> = Vec::new();
    let mut bytes = wire::PageBytes::default();
    for _ in 0..BATCHES_PER_PAGE {
        let feed = app.engine.store().feed(cursor, limit).await?;
        let is_end = feed.next == cursor;
        for it in feed.events.into_iter().filter(|it| wanted.wants(it)) {
            let is_full = items.len() >= limit as usize || !bytes.fits(&it.event.data);
            // Events that do not fit come with the next page, which begins after the last one that did.
            if let (true, Some(last)) = (is_full, items.last()) {
                let after = shown(last.cursor);
                return Ok((items, Some(after)));
            }
            items.push(it);
        }
        cursor = feed.next;
        if is_end || items.len() >= limit as usize {
            break;
        }
    }
    Ok((items, cursor.map(shown)))
}

/// Period at which a waiting stream checks its key and the state of the server.
const RECHECK_EVERY: Duration = Duration::from_millis(250);

/// An open stream. It reads the feed on a heavy thread, only after the client has taken the previous batch.
struct EventStream {
    subscription: StreamSubscription,
    app: Arc<App>,
    caller: Caller,
    wanted: EventFilter,
    cursor: Option<FeedCursor>,
    ready: VecDeque<StreamEvent>,
    /// Quota share for the bytes of `ready`.
    held: Option<Share>,
    /// Older dependency changes are not sent.
    since: Timestamp,
    /// Size of the next batch: small if events are large.
    batch_size: u32,
}

/// One server-sent event.
struct StreamEvent {
    name: String,
    data: String,
    /// `None` for dependency changes: they have no position in the feed.
    id: Option<String>,
}

impl StreamEvent {
    fn new(shown: &Value, id: Option<String>) -> StreamEvent {
        StreamEvent { name: shown["type"].as_str().unwrap_or_default().to_owned(), data: shown.to_string(), id }
    }

    fn bytes(&self) -> u64 {
        (self.data.len() + self.name.len() + self.id.as_ref().map_or(0, String::len)) as u64
    }

    fn into_event(self) -> Event {
        let event = Event::default().event(self.name).data(self.data);
        match self.id {
            Some(id) => event.id(id),
            None => event,
        }
    }
}

impl EventStream {
    fn push_change(&mut self, change: &DependencyChange) {
        if self.wanted.wants_change(change.what.what) && change.what.at >= self.since {
            self.ready.push_back(StreamEvent::new(&change.told(&self.wanted.namespace), None));
        }
    }

    /// Reads the next batch, as much as one stream may hold. Returns whether that was the end of the feed, or `None` if
    /// the store is unavailable.
    async fn read(&mut self) -> Option<bool> {
        let most = self.subscription.per_stream();
        let Some(mut held) = self.subscription.take_bytes(most) else {
            // Other streams of the namespace use up the quota: wait for them.
            tokio::time::sleep(RECHECK_EVERY).await;
            return Some(false);
        };
        let turn = self.subscription.turn().await;
        let feed = self.app.engine.store().feed(self.cursor, self.batch_size).await.ok()?;
        let is_end = feed.next == self.cursor;
        let (mut bytes, mut kept, mut next) = (0, None, feed.next);
        self.batch_size = (self.batch_size * 2).min(LARGEST_BATCH);
        for event in feed.events.iter().filter(|event| self.wanted.wants(event)) {
            let cursors = self.app.engine.cursors();
            let place = cursors.show(&self.wanted.namespace, event.cursor);
            let told = StreamEvent::new(&self.wanted.told(event, cursors), Some(place));
            if bytes > 0 && bytes + told.bytes() > most {
                next = kept;
                self.batch_size = u32::try_from(self.ready.len() * 2).unwrap_or(1).clamp(8, LARGEST_BATCH);
                break;
            }
            (bytes, kept) = (bytes + told.bytes(), Some(event.cursor));
            self.ready.push_back(told);
        }
        drop((feed, turn));
        self.cursor = next;
        held.shrink(most.saturating_sub(bytes));
        self.held = Some(held);
        Some(is_end)
    }
}

/// Batch size of a stream: initial and maximum.
const FIRST_BATCH: u32 = 64;
const LARGEST_BATCH: u32 = 500;

async fn follow(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    RawQuery(query): RawQuery,
) -> Result<Response, Problem> {
    let query = Query::read(query.as_deref(), STREAM_PARAMETERS)?;
    let wanted = EventFilter::read(&query, caller.namespace.clone())?;
    let cursor = match header_text(&headers, "last-event-id")? {
        Some(text) => {
            let cursor = app.engine.cursors().read(&wanted.namespace, &text);
            Some(cursor.ok_or_else(|| Invalid::one("last-event-id", format!("`{text}` is not a valid cursor")))?)
        }
        None => place(&app, &query, &wanted.namespace).await?,
    };
    let subscription = app.streams.open(&caller.namespace)?;
    let since = app.engine.now();
    let (batches, received) = mpsc::channel(1);
    let reader = BatchReader { app: app.clone(), caller: caller.clone(), received, batch: EventBatch::default() };
    let ready = VecDeque::new();
    let start =
        EventStream { subscription, app, caller, wanted, cursor, ready, held: None, since, batch_size: FIRST_BATCH };
    // Runs as an interactive read of its namespace, until the client disconnects.
    let read = async move {
        let is_read = batches.clone();
        tokio::select! {
            () = is_read.closed() => {}
            () = produce(start, batches) => {}
        }
    };
    match Interactive::current() {
        Some(reads) => heavy::spawn(interactive(reads, read)),
        None => heavy::spawn(read),
    }
    let events = stream::unfold(reader, |mut it| async move {
        let told = it.next().await?;
        Some((Ok::<_, Infallible>(told.into_event()), it))
    });
    let alive = KeepAlive::new().interval(Duration::from_secs(15));
    let mut response = Sse::new(events).keep_alive(alive).into_response();
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}

/// A batch of events and the quota share of its bytes.
#[derive(Default)]
struct EventBatch {
    ready: VecDeque<StreamEvent>,
    held: Option<Share>,
}

/// The receiving end of a stream.
struct BatchReader {
    app: Arc<App>,
    caller: Caller,
    received: mpsc::Receiver<EventBatch>,
    batch: EventBatch,
}

impl BatchReader {
    /// The next event. `None` when the stream has ended or the key is no longer valid.
    async fn next(&mut self) -> Option<StreamEvent> {
        loop {
            if !self.caller.still_may(&self.app) {
                return None;
            }
            if let Some(told) = self.batch.ready.pop_front() {
                if let Some(held) = &mut self.batch.held {
                    held.shrink(told.bytes());
                }
                return Some(told);
            }
            self.batch = EventBatch::default();
            self.batch = self.received.recv().await?;
        }
    }
}

/// Reads batches and sends them. Ends when the server drains, the store is unavailable (the client reconnects with its
/// cursor), or the key is no longer valid.
async fn produce(mut it: EventStream, batches: mpsc::Sender<EventBatch>) {
    while let Ok(permit) = batches.reserve().await {
        match next(&mut it).await {
            Some(batch) => permit.send(batch),
            None => return,
        }
    }
}

/// The next batch of a stream.
async fn next(it: &mut EventStream) -> Option<EventBatch> {
    loop {
        if !it.caller.still_may(&it.app) {
            return None;
        }
        while let Some(change) = it.subscription.change() {
            it.push_change(&change);
        }
        if !it.ready.is_empty() {
            return Some(EventBatch { ready: std::mem::take(&mut it.ready), held: it.held.take() });
        }
        it.held = None;
        if it.app.is_draining() {
            return None;
        }
        panic_point!("server-stream");
        let caught_up = it.subscription.begin_to_read();
        if !it.read().await? || !it.ready.is_empty() {
            continue;
        }
        it.held = None;
        // At the end of the feed: wait for new events of this namespace.
        loop {
            match it.subscription.wait(caught_up, RECHECK_EVERY).await {
                Wakeup::Events => {
                    let skip = it.subscription.skip_to(caught_up);
                    it.cursor = it.cursor.max(skip);
                    break;
                }
                Wakeup::Change(change) => {
                    it.push_change(&change);
                    break;
                }
                Wakeup::Nothing if it.app.is_draining() || !it.caller.still_may(&it.app) => return None,
                Wakeup::Nothing => {}
            }
        }
    }
}

/// An external event. The body of a Standard Webhooks delivery is a valid one, too.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = OutsideEvent)]
struct EventIn {
    #[serde(rename = "type")]
    #[schema(min_length = 1, max_length = 200, pattern = "^[A-Za-z0-9._:/-]+$")]
    kind: String,
    #[serde(default)]
    #[schema(value_type = Option<schema_types::NameSchema>)]
    id: Option<String>,
    /// Data of the event. An object becomes the input of a workflow whose schedule has none.
    #[serde(default)]
    #[schema(value_type = schema_types::JsonSchema, required = false)]
    data: Value,
    /// Time of the event; default: now.
    #[serde(default)]
    timestamp: Option<wire::Instant>,
}

async fn tell(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    idempotency: IdempotencyKey,
    body: Bytes,
) -> Result<Json<Value>, Problem> {
    let EventIn { kind, id, data, timestamp } = wire::read(&body)?;
    let id = id.or_else(|| idempotency.text().map(str::to_owned));
    let told = OutsideEvent { id, kind, data, happened_at: timestamp.map(|wire::Instant(at)| at) };
    let act = heard(app.clone(), caller.namespace.clone(), told.clone());
    // A repetition under the same key is the same event: the ids of the runs it starts follow from its id, so it is simply repeated.
    let again = heard(app.clone(), caller.namespace.clone(), told);
    idempotency.run_once(&app, &caller.namespace, &body, caller.act(None, None), |_| act, |_| again).await
}

async fn heard(app: Arc<App>, namespace: String, told: OutsideEvent) -> Result<Json<Value>, Problem> {
    let came = app.engine.tell_event(&namespace, &told).await?;
    let schedules: Vec<Value> = came.iter().map(|(name, came)| came_shown(name, came)).collect();
    Ok(Json(json!({"type": told.kind, "id": told.id, "schedules": schedules})))
}

fn came_shown(schedule: &str, came: &Came) -> Value {
    let run = |run: &Run| (run.execution.map(|id| id.to_string()), run.task.map(|id| id.to_string()));
    let (outcome, (execution, task), message) = match came {
        Came::Started(of) => ("started", run(of), None),
        Came::Repeated(of) => ("repeated", run(of), None),
        Came::Skipped => ("skipped", (None, None), None),
        Came::Failed(why) => ("failed", (None, None), Some(why)),
    };
    json!({
        "schedule": schedule,
        "outcome": outcome,
        "execution_id": execution,
        "task_id": task,
        "message": message,
    })
}
