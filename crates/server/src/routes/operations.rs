//! Bulk operations: one act on many tasks.

use std::sync::Arc;

use axum::extract::{Extension, Path, RawQuery, State};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post};
use bytes::Bytes;
use comeback_core::operation::{Action, Plan, StopIf, Waves};
use comeback_core::transition::Actor;
use comeback_core::{Invalid, TaskId};
use comeback_engine::{Bulk, Selection};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;
use uuid::Uuid;

use super::{CURSOR, LIMIT, Line, Query, line};
use crate::App;
use crate::auth::{Caller, Need};
use crate::once::Once;
use crate::openapi::{Doc, schema, stands_for};
use crate::problem::Problem;
use crate::wire::{self, Instant, Object, Page, Span, operation as shape};

pub fn lines() -> Vec<Line> {
    let whole = || schema::named("Operation");
    let one = "/api/v1/operations/{id}";
    let turn =
        |id| Doc::new(id).takes::<NoteIn>().once().answers(whole()).problems(&["not-found", "wrong-state", "conflict"]);
    vec![
        line(Method::POST, "/api/v1/tasks/bulk", Need::Operate, "Do one thing to many tasks", post(begin)).doc(
            Doc::new("bulkTasks")
                .about(
                    "A filter is asked once, now; what comes later is not touched. `dry_run` says what would be done and what not, and \
                     why. Otherwise an operation is begun, which is worked off in the background, each task once.",
                )
                .needs::<BulkIn>()
                .example(json!({"action": "retry", "filter": "state:dead kind:payments.*", "dry_run": true}))
                .example(json!({"action": "retry", "filter": "state:dead", "spread": "10m", "note": "the bank is back"}))
                .example(json!({"action": "retry", "filter": "state:dead", "waves": {"canary": 10, "pause": "30s",
                    "stop_if": {"failed_over": 0.2, "same_fingerprint": true}}}))
                .once()
                .answers(whole())
                .also(201),
        ),
        line(Method::GET, "/api/v1/operations", Need::Read, "Bulk operations, newest first", get(list))
            .doc(Doc::new("listOperations").query(&[LIMIT, CURSOR]).answers(schema::page(whole()))),
        line(Method::GET, one, Need::Read, "A bulk operation and how far it has come", get(show))
            .doc(Doc::new("getOperation").answers(whole()).problems(&["not-found"])),
        line(Method::POST, "/api/v1/operations/{id}/abort", Need::Operate, "Leave the rest as it is", post(abort))
            .doc(turn("abortOperation").about("Once this is answered, nothing of the operation happens any more.")),
        line(Method::POST, "/api/v1/operations/{id}/undo", Need::Operate, "Take back what has not started", post(undo))
            .doc(turn("undoOperation").about(
                "A retry that still waits goes back to what the task was; a pause is resumed. A cancel is for good.",
            )),
    ]
}

type Shared = State<Arc<App>>;

/// Give either `filter` or `ids`.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Bulk)]
struct BulkIn {
    #[schema(value_type = stands_for::BulkAction)]
    action: Action,
    /// As in lists, such as `state:dead kind:payments.*`.
    #[serde(default)]
    filter: Option<String>,
    #[serde(default)]
    #[schema(value_type = Option<Vec<stands_for::Id>>, max_items = 10_000)]
    ids: Option<Vec<Uuid>>,
    /// Changes nothing.
    #[serde(default)]
    dry_run: bool,
    /// Smears retries, or new due times, evenly over this span.
    #[serde(default)]
    spread: Option<Span>,
    #[serde(default)]
    #[schema(value_type = Option<WavesIn>)]
    waves: Option<Object<WavesIn>>,
    /// Retries go on counting where the last cycle stopped.
    #[serde(default)]
    keep_counters: bool,
    /// Where `reschedule` moves due times to: this, or `delay`.
    #[serde(default)]
    at: Option<Instant>,
    #[serde(default)]
    delay: Option<Span>,
    #[serde(default)]
    #[schema(value_type = Option<stands_for::Note>)]
    note: Option<String>,
    #[serde(default)]
    #[schema(value_type = Option<stands_for::Name>)]
    requested_by: Option<String>,
}

/// A few first, and the next ones only when it is known what came of those.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = WavesOf)]
struct WavesIn {
    /// How many are in the first wave.
    #[schema(minimum = 1, maximum = 1_000_000)]
    canary: u32,
    /// How many are in every later one; without it each is twice the one before.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 1_000_000)]
    size: Option<u32>,
    /// Each is twice the one before, which is usual.
    #[serde(default)]
    double: Option<bool>,
    /// At least so long between a wave and the next.
    #[serde(default)]
    pause: Option<Span>,
    #[serde(default)]
    #[schema(value_type = Option<StopIfIn>)]
    stop_if: Option<Object<StopIfIn>>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = StopIf)]
struct StopIfIn {
    /// The part of a wave that may fail.
    #[schema(minimum = 0.0, maximum = 1.0)]
    failed_over: f64,
    /// Only those count that fail in the same way as most do.
    #[serde(default)]
    same_fingerprint: bool,
}

impl WavesIn {
    fn waves(self) -> Result<Waves, Invalid> {
        let WavesIn { canary, size, double, pause, stop_if } = self;
        if double.is_some_and(|double| double == size.is_some()) {
            return Err(Invalid::one("waves.double", "waves double, or they have a `size`"));
        }
        let stop_if =
            stop_if.map(|Object(StopIfIn { failed_over, same_fingerprint })| StopIf { failed_over, same_fingerprint });
        Ok(Waves { canary, size, pause: pause.map(|Span(span)| span).unwrap_or_default(), stop_if })
    }
}

/// As many ids as one request may name.
const MOST_IDS: usize = 10_000;

impl BulkIn {
    fn bulk(self, app: &App, act: Actor) -> Result<Bulk, Invalid> {
        let to = match (self.at, self.delay) {
            (Some(_), Some(_)) => return Err(Invalid::one("delay", "give either `delay` or `at`")),
            (Some(Instant(at)), None) => Some(at),
            (None, Some(Span(span))) => Some(app.engine.now() + span),
            (None, None) => None,
        };
        let which = match (self.filter, self.ids) {
            (Some(filter), None) => Selection::Filter(filter),
            (None, Some(ids)) if ids.len() > MOST_IDS => {
                return Err(Invalid::one("ids", format!("may be {MOST_IDS} at most; a filter finds more")));
            }
            (None, Some(ids)) => Selection::Ids(ids.into_iter().map(TaskId).collect()),
            _ => return Err(Invalid::one("filter", "give either `filter` or `ids`")),
        };
        let plan = Plan {
            keep_counters: self.keep_counters,
            spread: self.spread.map(|Span(span)| span),
            waves: self.waves.map(|Object(waves)| waves.waves()).transpose()?,
            to,
            by: act.by,
            note: act.note,
            key: act.key,
            key_id: act.key_id,
            request: act.request,
            ..Plan::new(self.action)
        };
        Ok(Bulk { plan, which, once: None })
    }
}

async fn begin(
    State(app): Shared,
    Extension(caller): Extension<Caller>,
    once: Once,
    body: Bytes,
) -> Result<Response, Problem> {
    let mut given: BulkIn = wire::read(&body)?;
    let act = caller.act(given.requested_by.take(), given.note.take());
    let dry = given.dry_run;
    let bulk = Bulk { once: once.of(&app, &body)?, ..given.bulk(&app, act)? };
    if dry {
        let preview = app.engine.preview(&caller.namespace, &bulk).await?;
        return Ok(Json(shape::preview(&preview)).into_response());
    }
    let begun = app.engine.start_bulk(&caller.namespace, bulk).await?;
    Ok((StatusCode::CREATED, Json(shape::whole(&begun))).into_response())
}

fn known(id: &str) -> Result<Uuid, Problem> {
    Uuid::try_parse(id).map_err(|_| Problem::not_found("operation"))
}

async fn list(
    State(app): Shared,
    Extension(caller): Extension<Caller>,
    RawQuery(query): RawQuery,
) -> Result<Json<Page<Value>>, Problem> {
    let query = Query::read(query.as_deref(), &[LIMIT, CURSOR])?;
    let limit = query.limit()?;
    let found = app.engine.operations(&caller.namespace, query.parse("cursor")?, limit).await?;
    Ok(Json(Page::of(&found, limit, |it| it.row.id.to_string(), shape::whole)))
}

async fn show(
    State(app): Shared,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Json<Value>, Problem> {
    Ok(Json(shape::whole(&app.engine.operation(&caller.namespace, known(&id)?).await?)))
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = OperationAct)]
struct NoteIn {
    #[serde(default)]
    #[schema(value_type = Option<stands_for::Note>)]
    note: Option<String>,
    #[serde(default)]
    #[schema(value_type = Option<stands_for::Name>)]
    requested_by: Option<String>,
}

macro_rules! turns {
    ($($verb:ident $command:ident),+) => {
        $(async fn $verb(
            State(app): Shared,
            Extension(caller): Extension<Caller>,
            Path(id): Path<String>,
            once: Once,
            body: Bytes,
        ) -> Result<Json<Value>, Problem> {
            let given: NoteIn = wire::read(&body)?;
            let id = known(&id)?;
            let by = caller.act(given.requested_by, given.note);
            let (here, again) = (app.clone(), app.clone());
            let (namespace, other) = (caller.namespace.clone(), caller.namespace.clone());
            let act =
                move |by: Actor| async move { Ok(Json(shape::whole(&here.engine.$command(&namespace, id, &by).await?))) };
            let as_it_is = move |_| async move { Ok(Json(shape::whole(&again.engine.operation(&other, id).await?))) };
            once.guard(&app, &caller.namespace, &body, by, act, as_it_is).await
        })+
    };
}

turns!(abort abort_operation, undo undo_operation);
