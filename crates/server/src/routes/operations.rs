//! Bulk operations: one act on many tasks.

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

use super::{AppState, CURSOR, LIMIT, Line, Query, line};
use crate::App;
use crate::auth::{Caller, Need};
use crate::idempotency::IdempotencyKey;
use crate::openapi::{Doc, schema, schema_types};
use crate::problem::Problem;
use crate::wire::{self, DurationIn, Instant, Object, Page, operation as shape};

/// Routes of this module.
pub fn lines() -> Vec<Line> {
    let whole = || schema::named("Operation");
    let one = "/api/v1/operations/{id}";
    let turn = |id| {
        Doc::new(id).takes::<OperationActIn>().once().answers(whole()).problems(&[
            "not-found",
            "wrong-state",
            "conflict",
        ])
    };
    vec![
        line(Method::POST, "/api/v1/tasks/bulk", Need::Operate, "Start a bulk operation", post(begin)).doc(
            Doc::new("bulkTasks")
                .about(
                    "The filter is evaluated once, now; later tasks are not affected. `dry_run` reports what would be \
                     done, what not, and why. Otherwise an operation is started, which processes each task once in \
                     the background.",
                )
                .needs::<BulkIn>()
                .example(json!({"action": "retry", "filter": "state:dead kind:payments.*", "dry_run": true}))
                .example(
                    json!({"action": "retry", "filter": "state:dead", "spread": "10m", "note": "the bank is back"}),
                )
                .example(json!({"action": "retry", "filter": "state:dead", "waves": {"canary": 10, "pause": "30s",
                    "stop_if": {"failed_over": 0.2, "same_fingerprint": true}}}))
                .once()
                .answers(whole())
                .also(201),
        ),
        line(Method::GET, "/api/v1/operations", Need::Read, "List bulk operations, newest first", get(list))
            .doc(Doc::new("listOperations").query(&[LIMIT, CURSOR]).answers(schema::page(whole()))),
        line(Method::GET, one, Need::Read, "Get a bulk operation and its progress", get(show))
            .doc(Doc::new("getOperation").answers(whole()).problems(&["not-found"])),
        line(Method::POST, "/api/v1/operations/{id}/abort", Need::Operate, "Stop a bulk operation", post(abort))
            .doc(turn("abortOperation").about("After the response no further task is changed.")),
        line(Method::POST, "/api/v1/operations/{id}/undo", Need::Operate, "Revert a bulk operation", post(undo)).doc(
            turn("undoOperation").about(
                "Retries that have not started are undone, and pauses are resumed. Cancellations cannot be reverted.",
            ),
        ),
    ]
}

/// Give either `filter` or `ids`.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Bulk)]
struct BulkIn {
    #[schema(value_type = schema_types::BulkActionSchema)]
    action: Action,
    /// Filter in the language of `?q=`, such as `state:dead kind:payments.*`.
    #[serde(default)]
    filter: Option<String>,
    #[serde(default)]
    #[schema(value_type = Option<Vec<schema_types::IdSchema>>, max_items = 10_000)]
    ids: Option<Vec<Uuid>>,
    /// Change nothing, only report.
    #[serde(default)]
    dry_run: bool,
    /// Spreads retries, or new due times, evenly over this duration.
    #[serde(default)]
    spread: Option<DurationIn>,
    #[serde(default)]
    #[schema(value_type = Option<WavesIn>)]
    waves: Option<Object<WavesIn>>,
    /// Keep the retry counters instead of starting a new cycle.
    #[serde(default)]
    keep_counters: bool,
    /// New due time of `reschedule`; alternatively `delay`.
    #[serde(default)]
    at: Option<Instant>,
    #[serde(default)]
    delay: Option<DurationIn>,
    #[serde(default)]
    #[schema(value_type = Option<schema_types::NoteSchema>)]
    note: Option<String>,
    #[serde(default)]
    #[schema(value_type = Option<schema_types::NameSchema>)]
    requested_by: Option<String>,
}

/// Process in waves: the next wave starts when the results of the previous one are known.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = WavesOf)]
struct WavesIn {
    /// Size of the first wave.
    #[schema(minimum = 1, maximum = 1_000_000)]
    canary: u32,
    /// Size of every later wave; default: twice the previous one.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 1_000_000)]
    size: Option<u32>,
    /// Double the size of each wave (the default).
    #[serde(default)]
    double: Option<bool>,
    /// Minimum time between waves.
    #[serde(default)]
    pause: Option<DurationIn>,
    #[serde(default)]
    #[schema(value_type = Option<StopIfIn>)]
    stop_if: Option<Object<StopIfIn>>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = StopIf)]
struct StopIfIn {
    /// Share of a wave that may fail.
    #[schema(minimum = 0.0, maximum = 1.0)]
    failed_over: f64,
    /// Count only failures of the most frequent error group.
    #[serde(default)]
    same_fingerprint: bool,
}

impl WavesIn {
    fn waves(self) -> Result<Waves, Invalid> {
        let WavesIn { canary, size, double, pause, stop_if } = self;
        if double.is_some_and(|double| double == size.is_some()) {
            return Err(Invalid::one("waves.double", "give either `double` or `size`"));
        }
        let stop_if =
            stop_if.map(|Object(StopIfIn { failed_over, same_fingerprint })| StopIf { failed_over, same_fingerprint });
        Ok(Waves { canary, size, pause: pause.map(|DurationIn(span)| span).unwrap_or_default(), stop_if })
    }
}

/// Maximum number of ids in one request.
const MOST_IDS: usize = 10_000;

impl BulkIn {
    fn bulk(self, app: &App, act: Actor) -> Result<Bulk, Invalid> {
        let to = match (self.at, self.delay) {
            (Some(_), Some(_)) => return Err(Invalid::one("delay", "give either `delay` or `at`")),
            (Some(Instant(at)), None) => Some(at),
            (None, Some(DurationIn(span))) => Some(app.engine.now() + span),
            (None, None) => None,
        };
        let which = match (self.filter, self.ids) {
            (Some(filter), None) => Selection::Filter(filter),
            (None, Some(ids)) if ids.len() > MOST_IDS => {
                return Err(Invalid::one("ids", format!("must be at most {MOST_IDS}; use a filter for more")));
            }
            (None, Some(ids)) => Selection::Ids(ids.into_iter().map(TaskId).collect()),
            _ => return Err(Invalid::one("filter", "give either `filter` or `ids`")),
        };
        let plan = Plan {
            keep_counters: self.keep_counters,
            spread: self.spread.map(|DurationIn(span)| span),
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
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    idempotency: IdempotencyKey,
    body: Bytes,
) -> Result<Response, Problem> {
    let mut given: BulkIn = wire::read(&body)?;
    let act = caller.act(given.requested_by.take(), given.note.take());
    let dry = given.dry_run;
    let bulk = Bulk { once: idempotency.with_body(&app, &body)?, ..given.bulk(&app, act)? };
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
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    RawQuery(query): RawQuery,
) -> Result<Json<Page<Value>>, Problem> {
    let query = Query::read(query.as_deref(), &[LIMIT, CURSOR])?;
    let limit = query.limit()?;
    let found = app.engine.operations(&caller.namespace, query.parse("cursor")?, limit).await?;
    Ok(Json(Page::of(&found, limit, |it| it.row.id.to_string(), shape::whole)))
}

async fn show(
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Json<Value>, Problem> {
    Ok(Json(shape::whole(&app.engine.operation(&caller.namespace, known(&id)?).await?)))
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = OperationAct)]
struct OperationActIn {
    #[serde(default)]
    #[schema(value_type = Option<schema_types::NoteSchema>)]
    note: Option<String>,
    #[serde(default)]
    #[schema(value_type = Option<schema_types::NameSchema>)]
    requested_by: Option<String>,
}

macro_rules! turns {
    ($($verb:ident $command:ident),+) => {
        $(async fn $verb(
            State(app): AppState,
            Extension(caller): Extension<Caller>,
            Path(id): Path<String>,
            idempotency: IdempotencyKey,
            body: Bytes,
        ) -> Result<Json<Value>, Problem> {
            let given: OperationActIn = wire::read(&body)?;
            let id = known(&id)?;
            let by = caller.act(given.requested_by, given.note);
            let (here, again) = (app.clone(), app.clone());
            let (namespace, other) = (caller.namespace.clone(), caller.namespace.clone());
            let act =
                move |by: Actor| async move { Ok(Json(shape::whole(&here.engine.$command(&namespace, id, &by).await?))) };
            let as_it_is = move |_| async move { Ok(Json(shape::whole(&again.engine.operation(&other, id).await?))) };
            idempotency.run_once(&app, &caller.namespace, &body, by, act, as_it_is).await
        })+
    };
}

turns!(abort abort_operation, undo undo_operation);
