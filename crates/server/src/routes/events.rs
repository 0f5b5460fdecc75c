//! Events: pages, and a stream that goes on where its reader stopped.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{Extension, RawQuery, State};
use axum::http::{HeaderMap, HeaderValue, Method};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post};
use bytes::Bytes;
use comeback_core::dependency::Change;
use comeback_core::{EventKind, Invalid, Timestamp};
use comeback_engine::schedules::{Came, OutsideEvent, Run};
use comeback_engine::store::{FeedCursor, FeedEvent, Running, panic_point};
use comeback_engine::{Cursors, DependencyChange, Heard};
use futures_util::stream;
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;
use uuid::Uuid;

use super::{LIMIT, Line, Query, header_text, line};
use crate::App;
use crate::auth::{Caller, Need};
use crate::once::Once;
use crate::openapi::{Doc, Param, schema, stands_for};
use crate::problem::Problem;
use crate::wire::{self, Page, event};

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

/// Which events somebody wants to hear of, and by which names.
#[derive(Clone)]
pub struct Wanted {
    namespace: String,
    types: Vec<EventKind>,
    changes: Vec<Change>,
    /// Whether anything was named; otherwise all is wanted.
    is_named: bool,
    execution: Option<Uuid>,
    task: Option<Uuid>,
    /// Only what a playbook engine has a name for, by that name.
    seed: bool,
}

impl Wanted {
    pub fn read(query: &Query, namespace: String) -> Result<Wanted, Problem> {
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
        let seed = match query.text("names") {
            None | Some("native") => false,
            Some("seed") => true,
            Some(_) => return Err(Invalid::one("names", "must be one of native, seed").into()),
        };
        let (execution, task) = (query.parse("execution_id")?, query.parse("task_id")?);
        Ok(Wanted { namespace, types, changes, is_named, execution, task, seed })
    }

    /// The same in the words of a playbook engine.
    pub fn seed(self) -> Wanted {
        Wanted { seed: true, ..self }
    }

    /// Of those only these; where both leave nothing, nothing is wanted.
    pub fn only(mut self, kinds: &[EventKind]) -> Wanted {
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
        if let (true, Some(name)) = (self.seed, event::seed_name(it.event.kind)) {
            shown["type"] = name.into();
        }
        shown
    }

    fn wants(&self, it: &FeedEvent) -> bool {
        it.namespace == self.namespace
            && (!self.is_named || self.types.contains(&it.event.kind))
            && (!self.seed || event::seed_name(it.event.kind).is_some())
            && self.execution.is_none_or(|id| it.event.execution.0 == id)
            && self.task.is_none_or(|id| it.event.task.is_some_and(|task| task.0 == id))
    }

    fn wants_change(&self, what: Change) -> bool {
        let is_about_all = self.execution.is_none() && self.task.is_none();
        is_about_all && !self.seed && (!self.is_named || self.changes.contains(&what))
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
    let wanted = Wanted::read(&query, caller.namespace)?;
    let (found, next_cursor) = look(&app, &query, &wanted).await?;
    let cursors = app.engine.cursors();
    Ok(Json(Page { items: found.iter().map(|it| wanted.told(it, cursors)).collect(), next_cursor }))
}

/// A page of what is wanted, and where to go on.
pub async fn look(app: &App, query: &Query, wanted: &Wanted) -> Result<(Vec<FeedEvent>, Option<String>), Problem> {
    let limit = query.limit()?;
    let shown = |cursor: FeedCursor| app.engine.cursors().show(&wanted.namespace, cursor);
    let mut cursor = place(app, query, &wanted.namespace).await?;
    let mut items: Vec<FeedEvent> = Vec::new();
    for _ in 0..STRETCHES {
        let feed = app.engine.store().feed(cursor, limit).await?;
        let is_end = feed.next == cursor;
        let room = limit as usize - items.len();
        let mut found = feed.events.into_iter().filter(|it| wanted.wants(it));
        items.extend(found.by_ref().take(room));
        // What no longer fits comes with the next page, which begins after the last one that did.
        if let (Some(_), Some(last)) = (found.next(), items.last()) {
            let after = shown(last.cursor);
            return Ok((items, Some(after)));
        }
        cursor = feed.next;
        if is_end || items.len() >= limit as usize {
            break;
        }
    }
    Ok((items, cursor.map(shown)))
}

/// How often the feed is looked at when nothing was there.
const LOOK: Duration = Duration::from_millis(150);

/// How often dependencies are looked at.
const LOOK_AT_DEPENDENCIES: Duration = Duration::from_millis(500);

struct Following {
    /// One of the streams that may be open at once.
    _place: tokio::sync::OwnedSemaphorePermit,
    app: Arc<App>,
    caller: Caller,
    wanted: Wanted,
    cursor: Option<FeedCursor>,
    ready: VecDeque<Told>,
    /// What was heard of dependencies, and since when it is.
    heard: Heard,
    since: Timestamp,
    looked: Instant,
    /// The request that opened it, for a panic to name.
    running: Option<Running>,
}

enum Told {
    Event(Box<FeedEvent>),
    /// It has no place in the feed: whoever comes back later finds the last ones with the dependency itself.
    Change(DependencyChange),
}

impl Following {
    fn shown(&self, told: &Told) -> Event {
        let (shown, id) = match told {
            Told::Event(event) => {
                let cursors = self.app.engine.cursors();
                (self.wanted.told(event, cursors), Some(cursors.show(&self.wanted.namespace, event.cursor)))
            }
            Told::Change(change) => (change.told(&self.wanted.namespace), None),
        };
        let name = shown["type"].as_str().unwrap_or_default();
        let event = Event::default().event(name).data(shown.to_string());
        match id {
            Some(id) => event.id(id),
            None => event,
        }
    }

    async fn look_at_dependencies(&mut self) -> Option<()> {
        if self.looked.elapsed() < LOOK_AT_DEPENDENCIES || !Change::ALL.iter().any(|it| self.wanted.wants_change(*it)) {
            return Some(());
        }
        self.looked = Instant::now();
        let (engine, namespace) = (&self.app.engine, &self.wanted.namespace);
        let changes = engine.changes_of_dependencies(namespace, &mut self.heard, self.since).await.ok()?;
        let wanted = changes.into_iter().filter(|it| self.wanted.wants_change(it.what.what));
        self.ready.extend(wanted.map(Told::Change));
        Some(())
    }
}

async fn follow(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    RawQuery(query): RawQuery,
) -> Result<Response, Problem> {
    let query = Query::read(query.as_deref(), STREAM_PARAMETERS)?;
    let wanted = Wanted::read(&query, caller.namespace.clone())?;
    let cursor = match header_text(&headers, "last-event-id")? {
        Some(text) => {
            let cursor = app.engine.cursors().read(&wanted.namespace, &text);
            Some(cursor.ok_or_else(|| Invalid::one("last-event-id", format!("`{text}` is no cursor of ours")))?)
        }
        None => place(&app, &query, &wanted.namespace).await?,
    };
    let Ok(place) = app.streams.clone().try_acquire_owned() else {
        return Err(Problem::overloaded("as many streams as this server allows are open"));
    };
    let (since, looked) = (app.engine.now(), Instant::now());
    let (ready, heard) = (VecDeque::new(), Heard::new());
    let start =
        Following { _place: place, app, caller, wanted, cursor, ready, heard, since, looked, running: Running::here() };
    let events = stream::unfold(start, |mut it| async move {
        let told = match it.running.clone() {
            Some(running) => running.scope(next(&mut it)).await?,
            None => next(&mut it).await?,
        };
        Some((Ok::<_, Infallible>(it.shown(&told)), it))
    });
    let alive = KeepAlive::new().interval(Duration::from_secs(15));
    let mut response = Sse::new(events).keep_alive(alive).into_response();
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}

/// The next one that is wanted; nothing when the server stops or the store is away, and the reader comes back by its cursor.
/// Nothing either once its key is good no more.
async fn next(it: &mut Following) -> Option<Told> {
    loop {
        if !it.caller.still_may(&it.app) {
            return None;
        }
        if let Some(told) = it.ready.pop_front() {
            return Some(told);
        }
        if it.app.is_draining() {
            return None;
        }
        panic_point!("server-stream");
        let feed = it.app.engine.store().feed(it.cursor, 500).await.ok()?;
        if feed.next == it.cursor {
            tokio::time::sleep(LOOK).await;
        }
        it.cursor = feed.next;
        let events = feed.events.into_iter().filter(|event| it.wanted.wants(event));
        it.ready.extend(events.map(|event| Told::Event(Box::new(event))));
        it.look_at_dependencies().await?;
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
    // Told again under the same key, it is the same event: it is answered by what it started.
    let again = heard(app.clone(), caller.namespace.clone(), told);
    once.guard(&app, &caller.namespace, &body, act, again).await
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
