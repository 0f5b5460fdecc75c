//! Dependencies: external systems that tasks call, the guards that hold tasks while one fails, and manual overrides.

use axum::extract::{Extension, Path, RawQuery, State};
use axum::http::{Method, StatusCode};
use axum::response::Json;
use axum::routing::{delete, get, post, put};
use bytes::Bytes;
use comeback_core::Timestamp;
use comeback_core::dependency::{Phase, Settings};
use comeback_engine::{DependencyCommand, DependencyView};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::{AppState, CURSOR, LIMIT, Line, Query, known_name, line};
use crate::App;
use crate::auth::{Caller, Need};
use crate::openapi::{Doc, schema, schema_types};
use crate::problem::Problem;
use crate::wire::{self, DurationIn, Instant, NoteIn, Page, instant};

/// Routes of this module.
pub fn lines() -> Vec<Line> {
    let one = "/api/v1/dependencies/{name}";
    let shape = || schema::named("Dependency");
    let turn = |id| Doc::new(id).answers(shape()).problems(&["not-found", "conflict"]);
    vec![
        line(Method::GET, "/api/v1/dependencies", Need::Read, "List dependencies", get(list))
            .doc(Doc::new("listDependencies").query(&[LIMIT, CURSOR]).answers(schema::page(shape()))),
        line(Method::GET, one, Need::Read, "Get a dependency", get(show))
            .doc(Doc::new("getDependency").answers(shape()).problems(&["not-found"])),
        line(Method::PUT, one, Need::Operate, "Create or update a dependency", put(make)).doc(
            Doc::new("putDependency")
                .about(
                    "Tasks name their dependency in `dependency`; an HTTP call depends on its host. A guard that is \
                     not named is off; `{}` enables it with defaults. Held tasks use no attempts. The current state \
                     is kept.",
                )
                .needs::<schema_types::DependencySettingsSchema>()
                .example(json!({"gate": {}, "breaker": {}, "concurrency": {"max": 20}}))
                .example(
                    json!({"breaker": {"failures": 20, "ratio": 0.5, "window": "30s", "open": "5s", "max_open": "1m",
                    "canaries": 1, "first_wave": 2, "wave": "1s"}, "budget": {"percent": 20, "floor": 1}}),
                )
                .example(json!({"calendar": {"windows": [{"from": "22:00", "to": "06:00", "tz": "Europe/Berlin"}],
                    "holidays": ["2026-12-25"], "time_zone": "Europe/Berlin"}}))
                .answers(shape())
                .problems(&["conflict"]),
        ),
        line(Method::DELETE, one, Need::Operate, "Delete a dependency", delete(remove)).doc(
            Doc::new("deleteDependency")
                .about("Tasks that it held may start.")
                .answers_nothing()
                .problems(&["not-found"]),
        ),
        line(
            Method::POST,
            "/api/v1/dependencies/{name}/open",
            Need::Operate,
            "Open a dependency: hold its tasks",
            post(open),
        )
        .doc(
            turn("openDependency")
                .about("For the given time, or until it is closed.")
                .takes::<DependencyCommandIn>()
                .example(json!({"for": "30m"})),
        ),
        line(
            Method::POST,
            "/api/v1/dependencies/{name}/close",
            Need::Operate,
            "Close a dependency: release its tasks",
            post(close),
        )
        .doc(
            turn("closeDependency")
                .about(
                    "With `for`, it does not open by itself for that time. Held tasks may start immediately; \
                     `healthy` releases them gradually.",
                )
                .takes::<DependencyCommandIn>()
                .example(json!({"for": "10m", "note": "checked by hand"})),
        ),
        line(
            Method::POST,
            "/api/v1/dependencies/{name}/healthy",
            Need::Operate,
            "Mark a dependency as healthy",
            post(healthy),
        )
        .doc(
            turn("dependencyIsHealthy")
                .about(
                    "For health checks and deployments: held tasks are released in waves, oldest first, without a \
                     canary.",
                )
                .takes::<NoteIn>(),
        ),
        line(
            Method::POST,
            "/api/v1/dependencies/{name}/maintenance",
            Need::Operate,
            "Announce a maintenance window",
            post(maintenance),
        )
        .doc(
            turn("announceMaintenance")
                .about(
                    "No task of the dependency starts within the window; deadlines after its beginning are extended \
                     by its length.",
                )
                .needs::<MaintenanceIn>()
                .example(json!({"from": "2036-05-01T22:00:00Z", "to": "2036-05-02T02:00:00Z", "note": "new version"})),
        ),
    ]
}

#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = DependencyTurn)]
struct DependencyCommandIn {
    #[serde(default, rename = "for")]
    lasts: Option<DurationIn>,
    #[serde(default)]
    #[schema(value_type = Option<schema_types::NoteSchema>)]
    note: Option<String>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Maintenance)]
struct MaintenanceIn {
    /// Start; default: now.
    #[serde(default)]
    from: Option<Instant>,
    to: Instant,
    #[serde(default)]
    #[schema(value_type = Option<schema_types::NoteSchema>)]
    note: Option<String>,
}

fn shown(view: &DependencyView, now: Timestamp) -> Value {
    let it = &view.dependency;
    let standing = &it.standing;
    let allowance = standing.allowance(&it.settings, now);
    let (since, trips, by_hand) = match standing.phase {
        Phase::Closed => (None, 0, false),
        Phase::KeptClosed { .. } => (None, 0, true),
        Phase::Open { since, trips, kept, .. } => (Some(since), trips, kept),
        Phase::HalfOpen { since, trips, .. } | Phase::Recovering { since, trips, .. } => (Some(since), trips, false),
    };
    let holds = allowance.holder.filter(|_| allowance.is_closed());
    let until = holds.and_then(|(_, until)| until).filter(|until| *until < Timestamp::MAX);
    let changes: Vec<Value> = standing
        .told
        .iter()
        .rev()
        .map(|told| json!({"at": told.at.to_rfc3339(), "what": told.what.word(), "why": told.why}))
        .collect();
    let maintenance: Vec<Value> = standing
        .maintenance
        .iter()
        .map(|it| json!({"from": it.from.to_rfc3339(), "to": it.to.to_rfc3339(), "note": it.note}))
        .collect();
    json!({
        "name": it.name,
        "settings": it.settings.to_json(),
        "breaker": {
            "state": standing.phase.word(),
            "since": instant(since),
            "trips": trips,
            "by_hand": by_hand,
        },
        "gate_until": instant(standing.gate.until.filter(|until| *until > now)),
        "blocked": holds.and_then(|_| allowance.words(&it.name)),
        "held_until": instant(until),
        "running": view.running,
        "max_running": allowance.running,
        "succeeded": standing.window.good(),
        "failed": standing.window.bad(),
        "latency_ms": standing.window.took().map(|took| took.0),
        "maintenance": maintenance,
        "changes": changes,
        "created_at": it.created_at.to_rfc3339(),
        "updated_at": it.updated_at.to_rfc3339(),
    })
}

async fn list(
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    RawQuery(query): RawQuery,
) -> Result<Json<Page<Value>>, Problem> {
    let query = Query::read(query.as_deref(), &[LIMIT, CURSOR])?;
    let limit = query.limit()?;
    let found = app.engine.dependencies(&caller.namespace, query.text("cursor").unwrap_or_default(), limit).await?;
    let now = app.engine.now();
    Ok(Json(Page::of(&found, limit, |it| it.dependency.name.clone(), |it| shown(it, now))))
}

async fn show(
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Result<Json<Value>, Problem> {
    known_name(&app, "dependency", &name)?;
    Ok(Json(shown(&app.engine.dependency(&caller.namespace, &name).await?, app.engine.now())))
}

async fn make(
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    body: Bytes,
) -> Result<Json<Value>, Problem> {
    let given: Value = wire::read(&body)?;
    let settings = Settings::parse(&given)?;
    let made = app.engine.put_dependency(&caller.namespace, &name, settings, &caller.act(None, None)).await?;
    Ok(Json(shown(&made, app.engine.now())))
}

async fn remove(
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Result<StatusCode, Problem> {
    known_name(&app, "dependency", &name)?;
    app.engine.delete_dependency(&caller.namespace, &name, &caller.act(None, None)).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn turned(
    app: &App,
    caller: &Caller,
    name: &str,
    turn: DependencyCommand,
    note: Option<String>,
) -> Result<Json<Value>, Problem> {
    known_name(app, "dependency", name)?;
    let turned = app.engine.override_dependency(&caller.namespace, name, &turn, &caller.act(None, note)).await?;
    Ok(Json(shown(&turned, app.engine.now())))
}

async fn open(
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    body: Bytes,
) -> Result<Json<Value>, Problem> {
    let DependencyCommandIn { lasts, note } = wire::read(&body)?;
    turned(&app, &caller, &name, DependencyCommand::Open { lasts: lasts.map(|DurationIn(span)| span) }, note).await
}

async fn close(
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    body: Bytes,
) -> Result<Json<Value>, Problem> {
    let DependencyCommandIn { lasts, note } = wire::read(&body)?;
    turned(&app, &caller, &name, DependencyCommand::Close { lasts: lasts.map(|DurationIn(span)| span) }, note).await
}

async fn healthy(
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    body: Bytes,
) -> Result<Json<Value>, Problem> {
    let NoteIn { note } = wire::read(&body)?;
    turned(&app, &caller, &name, DependencyCommand::Healthy, note).await
}

async fn maintenance(
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    body: Bytes,
) -> Result<Json<Value>, Problem> {
    known_name(&app, "dependency", &name)?;
    // An empty body of an unknown dependency is not found rather than invalid.
    if body.is_empty() {
        app.engine.dependency(&caller.namespace, &name).await?;
    }
    let MaintenanceIn { from, to: Instant(to), note } = wire::read(&body)?;
    let from = from.map_or_else(|| app.engine.now(), |Instant(from)| from);
    turned(&app, &caller, &name, DependencyCommand::Maintenance { from, to }, note).await
}
