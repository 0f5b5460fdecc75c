//! Administration: the loops, and what is stuck.

use std::sync::Arc;

use axum::extract::{Extension, Path, State};
use axum::http::Method;
use axum::response::Json;
use axum::routing::{get, post};
use bytes::Bytes;
use comeback_core::Invalid;
use comeback_engine::store::{Due, Loop};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Line, line};
use crate::App;
use crate::auth::{Caller, Need};
use crate::once::Once;
use crate::problem::Problem;
use crate::shared::Seen;
use crate::wire::{self, Span};

pub fn lines() -> Vec<Line> {
    vec![
        line(Method::GET, "/api/v1/admin/loops", Need::Read, "The loops, and which are paused", get(loops)),
        line(Method::POST, "/api/v1/admin/loops/{name}/pause", Need::Administer, "Pause a loop", post(pause)),
        line(Method::POST, "/api/v1/admin/loops/{name}/resume", Need::Administer, "Resume a loop", post(resume)),
        line(
            Method::POST,
            "/api/v1/admin/retry-scheduler/pause",
            Need::Administer,
            "Pause sorts of work",
            post(pause_types),
        ),
        line(Method::POST, "/api/v1/admin/retry-scheduler/resume", Need::Administer, "Resume them", post(resume_types)),
        line(Method::GET, "/api/v1/admin/workers", Need::Read, "Workers that ask for work, by instance", get(workers)),
        line(Method::GET, "/api/v1/admin/instances", Need::Read, "Servers on this database", get(instances)),
        line(Method::GET, "/api/v1/admin/tasks/stuck", Need::Read, "Runs whose lease has run out", get(stuck)),
        line(Method::POST, "/api/v1/admin/tasks/process-stuck", Need::Administer, "Reap them now", post(process_stuck)),
    ]
}

/// A loop by its name; `promote` stands for both of its halves.
fn named(name: &str) -> Result<Vec<Loop>, Problem> {
    if name == "promote" {
        return Ok(vec![Loop::Retries, Loop::Starts]);
    }
    let names = || Loop::ALL.iter().map(|it| it.word()).collect::<Vec<_>>().join(", ");
    Loop::from_word(name)
        .map(|it| vec![it])
        .ok_or_else(|| Problem::not_found("loop").with("loops", format!("promote, {}", names())))
}

async fn loops(State(app): State<Arc<App>>) -> Result<Json<Value>, Problem> {
    shown_loops(&app).await
}

async fn shown_loops(app: &App) -> Result<Json<Value>, Problem> {
    let paused = app.engine.paused_loops().await?;
    let shown: Vec<Value> = Loop::ALL
        .iter()
        .map(|name| {
            let pause = paused.iter().find(|(it, _)| it == name).map(|(_, pause)| pause);
            json!({
                "name": name.word(),
                "paused": pause.is_some(),
                "resumes_at": pause.filter(|pause| pause.until != comeback_core::Timestamp::MAX)
                    .map(|pause| pause.until.to_rfc3339()),
                "note": pause.and_then(|pause| pause.note.as_deref()),
                "by": pause.and_then(|pause| pause.by.as_deref()),
            })
        })
        .collect();
    Ok(Json(json!({"items": shown, "next_cursor": null})))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PauseIn {
    #[serde(default)]
    duration: Option<Span>,
    #[serde(default)]
    note: Option<String>,
}

async fn pause(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    once: Once,
    body: Bytes,
) -> Result<Json<Value>, Problem> {
    let given: PauseIn = wire::read(&body)?;
    let names = named(&name)?;
    pause_all(&app, &caller, names, given.duration, given.note, once, &body).await
}

async fn resume(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    once: Once,
    body: Bytes,
) -> Result<Json<Value>, Problem> {
    refuse_fields(&body)?;
    resume_all(&app, &caller, named(&name)?, once, &body).await
}

async fn pause_all(
    app: &App,
    caller: &Caller,
    names: Vec<Loop>,
    duration: Option<Span>,
    note: Option<String>,
    once: Once,
    body: &Bytes,
) -> Result<Json<Value>, Problem> {
    let act = async {
        for name in names {
            let span = duration.map(|Span(span)| span);
            app.engine.pause_loop(name, span, note.clone(), caller.key.clone()).await?;
        }
        shown_loops(app).await
    };
    once.guard(app, &caller.namespace, body, act, shown_loops(app)).await
}

async fn resume_all(
    app: &App,
    caller: &Caller,
    names: Vec<Loop>,
    once: Once,
    body: &Bytes,
) -> Result<Json<Value>, Problem> {
    let act = async {
        for name in names {
            app.engine.resume_loop(name).await?;
        }
        shown_loops(app).await
    };
    once.guard(app, &caller.namespace, body, act, shown_loops(app)).await
}

/// The sorts of work that seed 002 names, and the loops that do them.
fn of_type(word: &str) -> Option<Loop> {
    Some(match word {
        "RETRIES" => Loop::Retries,
        "DELAYED_JOBS" => Loop::Starts,
        "STUCK_JOBS" => Loop::Reap,
        "TIMEOUTS" => Loop::Timeout,
        _ => return None,
    })
}

const TYPES: &str = "RETRIES, DELAYED_JOBS, STUCK_JOBS, TIMEOUTS";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TypesIn {
    /// None means all of them.
    #[serde(default)]
    types: Vec<String>,
    #[serde(default)]
    duration: Option<Span>,
    #[serde(default)]
    note: Option<String>,
}

impl TypesIn {
    fn loops(&self) -> Result<Vec<Loop>, Problem> {
        let mut faults = Invalid::default();
        let mut loops = Vec::new();
        for (i, word) in self.types.iter().enumerate() {
            match of_type(word) {
                Some(name) => loops.push(name),
                None => faults.push(format!("types[{i}]"), format!("must be one of {TYPES}")),
            }
        }
        if self.types.is_empty() {
            loops = TYPES.split(", ").filter_map(of_type).collect();
        }
        faults.or(loops).map_err(Problem::from)
    }
}

async fn pause_types(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    once: Once,
    body: Bytes,
) -> Result<Json<Value>, Problem> {
    let given: TypesIn = wire::read(&body)?;
    let names = given.loops()?;
    pause_all(&app, &caller, names, given.duration, given.note, once, &body).await
}

async fn resume_types(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    once: Once,
    body: Bytes,
) -> Result<Json<Value>, Problem> {
    let given: TypesIn = wire::read(&body)?;
    if given.duration.is_some() {
        return Err(Invalid::one("duration", "is no field here").into());
    }
    resume_all(&app, &caller, given.loops()?, once, &body).await
}

/// Those who ask this instance, and those whom others told of.
async fn workers(State(app): State<Arc<App>>, Extension(caller): Extension<Caller>) -> Result<Json<Value>, Problem> {
    app.instances.refresh(&**app.engine.store()).await?;
    let own = app.workers.latest(app.engine.now().0);
    let mut seen: Vec<(String, Seen)> = own.into_iter().map(|seen| (app.instance.clone(), seen)).collect();
    for (instance, it) in app.instances.get().into_iter().filter(|(instance, _)| *instance != app.instance) {
        seen.extend(it.workers.into_iter().map(|seen| (instance.clone(), seen)));
    }
    seen.retain(|(_, seen)| seen.namespace == caller.namespace);
    seen.sort_by(|(a, x), (b, y)| (&x.name, a).cmp(&(&y.name, b)));
    let items: Vec<Value> = seen
        .into_iter()
        .map(|(instance, seen)| {
            json!({
                "name": seen.name,
                "instance": instance,
                "queues": seen.queues,
                "kinds": seen.kinds,
                "leased_total": seen.leased,
                "last_seen_at": comeback_core::Timestamp(seen.at).to_rfc3339(),
            })
        })
        .collect();
    Ok(Json(json!({"items": items, "next_cursor": null})))
}

async fn instances(State(app): State<Arc<App>>) -> Result<Json<Value>, Problem> {
    app.instances.refresh(&**app.engine.store()).await?;
    let at = |ms: i64| comeback_core::Timestamp(ms).to_rfc3339();
    let items: Vec<Value> = app
        .instances
        .get()
        .into_iter()
        .map(|(id, it)| {
            json!({
                "id": id,
                "self": id == app.instance,
                "version": it.version,
                "started_at": at(it.started_at),
                "last_seen_at": at(it.seen_at),
            })
        })
        .collect();
    Ok(Json(json!({"items": items, "next_cursor": null})))
}

async fn stuck(State(app): State<Arc<App>>, Extension(caller): Extension<Caller>) -> Result<Json<Value>, Problem> {
    let due = app.engine.store().due(Due::Leases, app.engine.now(), 500).await?;
    let items: Vec<Value> = due
        .iter()
        .filter(|stored| stored.task.lane.namespace == caller.namespace)
        .map(|stored| {
            let lease = stored.task.lease.as_ref();
            json!({
                "id": stored.task.id.to_string(),
                "kind": stored.task.lane.kind,
                "state": stored.task.state.word(),
                "worker": lease.map(|lease| lease.worker.clone()),
                "expired_at": lease.and_then(|lease| lease.expires_at).map(|at| at.to_rfc3339()),
            })
        })
        .collect();
    Ok(Json(json!({"items": items, "next_cursor": null})))
}

async fn process_stuck(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    once: Once,
    body: Bytes,
) -> Result<Json<Value>, Problem> {
    refuse_fields(&body)?;
    let act = async {
        let progress = app.engine.tick_loop(Loop::Reap).await.map_err(Problem::from)?;
        Ok(Json(json!({"processed": progress.moved, "more": progress.more})))
    };
    let again = async { Ok(Json(json!({"processed": 0, "more": false}))) };
    once.guard(&app, &caller.namespace, &body, act, again).await
}

/// An empty object, or nothing at all.
fn refuse_fields(body: &Bytes) -> Result<(), Problem> {
    let given: serde_json::Map<String, Value> = wire::read(body)?;
    match given.keys().next() {
        Some(name) => Err(Invalid::one(name.as_str(), "is no field here").into()),
        None => Ok(()),
    }
}
