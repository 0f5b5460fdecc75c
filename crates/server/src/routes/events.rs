//! Events: pages, and a stream that goes on where its reader stopped.

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
use crate::once::Once;
use crate::openapi::{Doc, Param, schema, stands_for};
use crate::problem::Problem;
use crate::streams::{News, Subscription};
use crate::wire::{self, Page, event};
use crate::{App, heavy};

pub fn lines() -> Vec<Line> {
    let last = Param::new("Last-Event-ID", "Where a reader stopped that comes back; it beats `after`.", schema::text);
    vec![
        line(Method::GET, "/api/v1/events", Need::Read, "A page of what happened", get(page)).doc(
            Doc::new("listEvents").query(PARAMETERS).answers(schema::page(schema::named("Event"))),
        ),
        line(Method::POST, "/api/v1/events", Need::Submit, "Tell of an event from outside", post(tell)).doc(
            Doc::new("tellEvent")
                .about(
                    "Every schedule that waits for events of this type fires. The same `id` starts nothing twice; where there is \
                     none, the idempotency key is it.",
                )
                .needs::<EventIn>()
                .example(json!({"type": "order.paid", "id": "order-42", "data": {"order": 42, "total": 99.5}}))
                .once()
                .answers(schema::named("ToldEvent"))
                .problems(&["conflict"]),
        ),
        line(Method::GET, "/api/v1/events/stream", Need::Read, "What happens, as server-sent events", get(follow)).doc(
            Doc::new("followEvents")
                .about(
                    "The data of each is an `Event`, its id a cursor. Whoever comes back with the last one misses nothing. What becomes of \
                     dependencies is told in between as it happens, as `dependency.opened` and the like, without a cursor.",
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
    /// Whether anything was named; otherwise all is wanted.
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
                return Err(Invalid::one("types", format!("`{word}` is no type of event")).into());
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

    /// An event by the name that was asked for.
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
        "Where to go on: the `id` of an event, `next_cursor` of a page, or `latest` for what is still to come.",
        schema::text,
    ),
    Param::new(
        "types",
        "Only these, with commas between them, as in `task.failed,task.retry_exhausted`.",
        schema::text,
    ),
    Param::new("execution_id", "Only of this execution.", schema::id),
    Param::new("task_id", "Only of this task.", schema::id),
    Param::new("names", "`seed` for the names of a playbook engine; what it has none for is left out.", names),
    LIMIT,
];
fn names() -> Value {
    schema::word(&["native", "seed"])
}

/// A stream has no pages, so the limit is left out.
const STREAM_PARAMETERS: &[Param] = PARAMETERS.split_last().expect("there are some").1;
/// Stretches of the feed that one page may look through.
const STRETCHES: usize = 20;

/// Where a reader begins: `after` a cursor, or after the latest event there is.
async fn place(app: &App, query: &Query, namespace: &str) -> Result<Option<FeedCursor>, Problem> {
    match query.text("after") {
        None => query.parse("after"),
        Some("latest") => Ok(Some(app.engine.store().feed_end().await?)),
        Some(text) => match app.engine.cursors().read(namespace, text) {
            Some(cursor) => Ok(Some(cursor)),
            None => Err(Invalid::one("after", format!("`{text}` cannot be read")).into()),
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
    for _ in 0..STRETCHES {
        let feed = app.engine.store().feed(cursor, limit).await?;
        let is_end = feed.next == cursor;
        for it in feed.events.into_iter().filter(|it| wanted.wants(it)) {
            let is_full = items.len() >= limit as usize || !bytes.fits(&it.event.data);
            // What no longer fits comes with the next page, which begins after the last one that did.
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

/// How often a stream that waits asks whether its key is still good and the server still serves.
const STILL_GOOD: Duration = Duration::from_millis(250);

/// An open stream. It reads the feed only when its reader has taken what was read before, on a thread for heavy requests.
struct Following {
    subscription: Subscription,
    app: Arc<App>,
    caller: Caller,
    wanted: EventFilter,
    cursor: Option<FeedCursor>,
    ready: VecDeque<Told>,
    /// The bytes of what is ready, as the quota counts them.
    held: Option<Share>,
    /// Older changes of dependencies are not told.
    since: Timestamp,
    /// Events to read next: few where they are large.
    stretch: u32,
}

/// One event as it is sent.
struct Told {
    name: String,
    data: String,
    /// A change of a dependency has none: it has no place in the feed.
    id: Option<String>,
}

impl Told {
    fn new(shown: &Value, id: Option<String>) -> Told {
        Told { name: shown["type"].as_str().unwrap_or_default().to_owned(), data: shown.to_string(), id }
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

impl Following {
    fn hear(&mut self, change: &DependencyChange) {
        if self.wanted.wants_change(change.what.what) && change.what.at >= self.since {
            self.ready.push_back(Told::new(&change.told(&self.wanted.namespace), None));
        }
    }

    /// Reads what comes next, as much as one stream may hold. Whether that was the end of the feed; nothing when the store is away.
    async fn read(&mut self) -> Option<bool> {
        let most = self.subscription.per_stream();
        let Some(mut held) = self.subscription.take_bytes(most) else {
            // Other streams of the namespace hold all there is: theirs must be read first.
            tokio::time::sleep(STILL_GOOD).await;
            return Some(false);
        };
        let turn = self.subscription.turn().await;
        let feed = self.app.engine.store().feed(self.cursor, self.stretch).await.ok()?;
        let is_end = feed.next == self.cursor;
        let (mut bytes, mut kept, mut next) = (0, None, feed.next);
        self.stretch = (self.stretch * 2).min(LONGEST_STRETCH);
        for event in feed.events.iter().filter(|event| self.wanted.wants(event)) {
            let cursors = self.app.engine.cursors();
            let place = cursors.show(&self.wanted.namespace, event.cursor);
            let told = Told::new(&self.wanted.told(event, cursors), Some(place));
            if bytes > 0 && bytes + told.bytes() > most {
                next = kept;
                self.stretch = u32::try_from(self.ready.len() * 2).unwrap_or(1).clamp(8, LONGEST_STRETCH);
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

/// Events that a stream reads at a time: first, and at most.
const FIRST_STRETCH: u32 = 64;
const LONGEST_STRETCH: u32 = 500;

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
            Some(cursor.ok_or_else(|| Invalid::one("last-event-id", format!("`{text}` is no cursor of ours")))?)
        }
        None => place(&app, &query, &wanted.namespace).await?,
    };
    let subscription = app.streams.open(&caller.namespace)?;
    let since = app.engine.now();
    let (batches, received) = mpsc::channel(1);
    let reader = Reader { app: app.clone(), caller: caller.clone(), received, batch: Batch::default() };
    let ready = VecDeque::new();
    let start =
        Following { subscription, app, caller, wanted, cursor, ready, held: None, since, stretch: FIRST_STRETCH };
    // Reads like any other of its namespace, for as long as somebody is there.
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

/// Events that were read together, with the bytes that the quota counts for them.
#[derive(Default)]
struct Batch {
    ready: VecDeque<Told>,
    held: Option<Share>,
}

/// The end of a stream that the connection reads from.
struct Reader {
    app: Arc<App>,
    caller: Caller,
    received: mpsc::Receiver<Batch>,
    batch: Batch,
}

impl Reader {
    /// The next event; nothing when the stream has ended, or once its key is good no more.
    async fn next(&mut self) -> Option<Told> {
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
            self.batch = Batch::default();
            self.batch = self.received.recv().await?;
        }
    }
}

/// Reads what is wanted and hands it over. Ends when the server stops, when the store is away (the reader comes back by its cursor), and
/// once its key is good no more.
async fn produce(mut it: Following, batches: mpsc::Sender<Batch>) {
    while let Ok(permit) = batches.reserve().await {
        match next(&mut it).await {
            Some(batch) => permit.send(batch),
            None => return,
        }
    }
}

/// What is to be told next.
async fn next(it: &mut Following) -> Option<Batch> {
    loop {
        if !it.caller.still_may(&it.app) {
            return None;
        }
        while let Some(change) = it.subscription.change() {
            it.hear(&change);
        }
        if !it.ready.is_empty() {
            return Some(Batch { ready: std::mem::take(&mut it.ready), held: it.held.take() });
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
        // Everything was read: until there is news of this namespace there is nothing to look for.
        loop {
            match it.subscription.wait(caught_up, STILL_GOOD).await {
                News::Events => {
                    let skip = it.subscription.skip_to(caught_up);
                    it.cursor = it.cursor.max(skip);
                    break;
                }
                News::Change(change) => {
                    it.hear(&change);
                    break;
                }
                News::Nothing if it.app.is_draining() || !it.caller.still_may(&it.app) => return None,
                News::Nothing => {}
            }
        }
    }
}

/// Something that happened elsewhere. The body of a delivery as Standard Webhooks has it is one, too.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = OutsideEvent)]
struct EventIn {
    #[serde(rename = "type")]
    #[schema(min_length = 1, max_length = 200, pattern = "^[A-Za-z0-9._:/-]+$")]
    kind: String,
    #[serde(default)]
    #[schema(value_type = Option<stands_for::Name>)]
    id: Option<String>,
    /// An object is the input of a workflow whose schedule gives none.
    #[serde(default)]
    #[schema(value_type = stands_for::Json, required = false)]
    data: Value,
    /// When it happened; when it was told where nothing is said.
    #[serde(default)]
    timestamp: Option<wire::Instant>,
}

async fn tell(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    once: Once,
    body: Bytes,
) -> Result<Json<Value>, Problem> {
    let EventIn { kind, id, data, timestamp } = wire::read(&body)?;
    let id = id.or_else(|| once.key().map(str::to_owned));
    let told = OutsideEvent { id, kind, data, happened_at: timestamp.map(|wire::Instant(at)| at) };
    let act = heard(app.clone(), caller.namespace.clone(), told.clone());
    // Told again under the same key, it is the same event: what it starts has keys that follow from its id, and it is answered by that.
    let again = heard(app.clone(), caller.namespace.clone(), told);
    once.guard(&app, &caller.namespace, &body, caller.act(None, None), |_| act, |_| again).await
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
