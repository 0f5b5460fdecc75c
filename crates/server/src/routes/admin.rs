//! Administration: background loops and stuck tasks.
//!
//! Over 500 lines: all administrative handlers, each a few lines.

use std::sync::Arc;

use axum::extract::{Extension, Path, RawQuery, State};
use axum::http::Method;
use axum::response::Json;
use axum::routing::{get, post};
use bytes::Bytes;
use comeback_core::transition::Actor;
use comeback_core::{AuditAction, Invalid, Millis};
use comeback_engine::store::{Due, Loop, StoreError, Stored, Used};
use comeback_engine::{CommandError, RepairAction, RepairResult, lost_by};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::{Line, Query, line};
use crate::App;
use crate::auth::{Caller, Need};
use crate::idempotency::IdempotencyKey;
use crate::openapi::{Doc, Param, schema, schema_types};
use crate::problem::Problem;
use crate::wire::{self, DurationIn};

/// Routes of this module.
pub fn lines() -> Vec<Line> {
    use schema::{count, flag, id, instant, list, named, nullable, object, page, text};
    let loop_page = || page(named("Loop"));
    let stuck_task = object([
        ("id", id()),
        ("kind", text()),
        ("state", named("State")),
        ("worker", nullable(text())),
        ("expired_at", nullable(instant())),
        ("reason", schema::about(schema::word(&["lease_expired", "stuck"]), "Why it is stuck.")),
    ]);
    let outcome = || {
        object([
            ("task_id", id()),
            ("kind", text()),
            ("action", schema::word(&RepairAction::ALL.map(RepairAction::word))),
            ("reason", text()),
        ])
    };
    let counts = || [("processed", count()), ("retried", count()), ("failed", count()), ("skipped", count())];
    let reaped = object(counts().into_iter().chain([("more", flag()), ("tasks", list(outcome()))]));
    let repaired = object(counts().into_iter().chain([
        ("non_retryable", schema::about(count(), "Tasks that would fail again today.")),
        ("dry_run", flag()),
        ("tasks", list(outcome())),
    ]));
    let preview = object([
        ("until", schema::about(nullable(instant()), "Null if it lasts until resumed.")),
        (
            "loops",
            list(object([
                ("name", text()),
                ("delayed", schema::about(count(), "Tasks due before the end of the pause.")),
                ("past_deadline", schema::about(count(), "Those of them that miss their deadline by then.")),
            ])),
        ),
    ]);
    let stuck_at = |path, id| {
        let doc = Doc::new(id).answers(page(stuck_task.clone()));
        line(Method::GET, path, Need::Read, "List runs whose lease has expired", get(stuck)).doc(doc)
    };
    let stuck_by_post_at = |path, id| {
        let doc = Doc::new(id).about("For clients of job servers that use POST. It changes nothing.");
        let doc = doc.takes::<NothingIn>().answers(page(stuck_task.clone()));
        line(Method::POST, path, Need::Read, "List runs whose lease has expired (POST)", post(stuck_by_post)).doc(doc)
    };
    let reap_at = |path, id| {
        let doc = Doc::new(id).about("Works also while the loop `reap` is paused.");
        let doc = doc.takes::<NothingIn>().once().answers(reaped.clone());
        line(Method::POST, path, Need::AdministerAll, "Reap runs whose lease has expired", post(process_stuck)).doc(doc)
    };
    vec![
        line(Method::GET, "/api/v1/admin/loops", Need::Read, "List loops", get(loops))
            .doc(Doc::new("listLoops").answers(loop_page())),
        line(Method::POST, "/api/v1/admin/loops/{name}/pause", Need::AdministerAll, "Pause a loop", post(pause)).doc(
            Doc::new("pauseLoop")
                .about("On every instance and through restarts, until the duration is over or the loop is resumed.")
                .takes::<PauseIn>()
                .once()
                .example(json!({"duration": "30m", "note": "the database is moved"}))
                .answers(loop_page())
                .problems(&["not-found"]),
        ),
        line(
            Method::GET,
            "/api/v1/admin/loops/{name}/preview",
            Need::AdministerAll,
            "Preview the effect of a pause",
            get(preview_pause),
        )
        .doc(Doc::new("previewPause").query(PREVIEW).answers(preview).problems(&["not-found"])),
        line(Method::POST, "/api/v1/admin/loops/{name}/resume", Need::AdministerAll, "Resume a loop", post(resume))
            .doc(Doc::new("resumeLoop").takes::<NothingIn>().once().answers(loop_page()).problems(&["not-found"])),
        line(
            Method::POST,
            "/api/v1/admin/retry-scheduler/pause",
            Need::AdministerAll,
            "Pause loops by work type",
            post(pause_types),
        )
        .doc(
            Doc::new("pauseWork")
                .about("Same as pausing the loops, by the work types of job schedulers.")
                .takes::<TypesIn>()
                .example(json!({"duration": "30m", "types": ["STUCK_JOBS"], "note": "the database is moved"}))
                .once()
                .answers(loop_page()),
        ),
        line(
            Method::POST,
            "/api/v1/admin/retry-scheduler/resume",
            Need::AdministerAll,
            "Resume loops by work type",
            post(resume_types),
        )
        .doc(
            Doc::new("resumeWork")
                .takes::<SomeTypesIn>()
                .example(json!({"types": ["STUCK_JOBS"]}))
                .once()
                .answers(loop_page()),
        ),
        stuck_at("/api/v1/admin/tasks/stuck", "listStuckTasks"),
        stuck_by_post_at("/api/v1/admin/tasks/stuck", "listStuckTasksByPost"),
        stuck_at("/api/v1/admin/jobs/stuck", "listStuckJobs"),
        stuck_by_post_at("/api/v1/admin/jobs/stuck", "listStuckJobsByPost"),
        reap_at("/api/v1/admin/tasks/process-stuck", "reapStuckTasks"),
        reap_at("/api/v1/admin/jobs/process-stuck", "reapStuckJobs"),
        line(
            Method::POST,
            "/api/v1/admin/tasks/process-failed",
            Need::Administer,
            "Retry failed tasks that are retryable today",
            post(process_failed),
        )
        .doc(
            Doc::new("repairFailedTasks")
                .about(
                    "Decides the newest failed tasks again with the current classification of their errors, and \
                     retries those that are retryable now, also while the loop `repair` is paused.",
                )
                .takes::<RepairIn>()
                .example(json!({"limit": 100, "dry_run": true}))
                .once()
                .answers(repaired),
        ),
    ]
}

const PREVIEW: &[Param] =
    &[Param::new("duration", "Length of the pause; default: until resumed.", || schema::named("Duration"))];

async fn preview_pause(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, Problem> {
    let query = Query::read(query.as_deref(), PREVIEW)?;
    let read = |text: &str| Millis::parse(text).map_err(|error| Problem::from(Invalid::one("duration", error)));
    let span = query.text("duration").map(read).transpose()?;
    let mut loops = Vec::new();
    let mut until = None;
    for name in named(&name)? {
        let preview = app.engine.preview_pause(name, span).await?;
        until = preview.until;
        loops.push(json!({
            "name": name.word(),
            "delayed": preview.delayed,
            "past_deadline": preview.past_deadline,
        }));
    }
    Ok(Json(json!({"until": crate::wire::instant(until), "loops": loops})))
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Repair)]
struct RepairIn {
    /// Maximum number of failed tasks to check, newest first; default: 100.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 1_000)]
    limit: Option<u32>,
    /// Change nothing, only report what would be done.
    #[serde(default)]
    dry_run: bool,
    #[serde(default)]
    #[schema(value_type = Option<schema_types::NoteSchema>)]
    note: Option<String>,
}

/// Tasks that were put right, and how many of each sort; one that was skipped was not processed.
fn repair_result(done: &[RepairResult]) -> Value {
    let count = |action: RepairAction| done.iter().filter(|it| it.action == action).count();
    let tasks: Vec<Value> = done
        .iter()
        .map(|it| {
            json!({
                "task_id": it.task.to_string(),
                "kind": it.kind,
                "action": it.action.word(),
                "reason": it.reason,
            })
        })
        .collect();
    json!({
        "processed": count(RepairAction::Retried) + count(RepairAction::MarkedFailed),
        "retried": count(RepairAction::Retried),
        "failed": count(RepairAction::MarkedFailed),
        "skipped": count(RepairAction::Skipped),
        "tasks": tasks,
    })
}

async fn process_failed(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    idempotency: IdempotencyKey,
    body: Bytes,
) -> Result<Json<Value>, Problem> {
    let given: RepairIn = wire::read(&body)?;
    let limit = given.limit.unwrap_or(100);
    if !(1..=1_000).contains(&limit) {
        return Err(Invalid::one("limit", "must be between 1 and 1000").into());
    }
    let (here, namespace, by) = (app.clone(), caller.namespace.clone(), caller.act(None, given.note));
    let dry_run = given.dry_run;
    let answer = move |done: &[RepairResult]| {
        let mut answer = repair_result(done);
        answer["non_retryable"] = answer["failed"].clone();
        answer["dry_run"] = dry_run.into();
        answer
    };
    let act = move |by: Actor| async move {
        let done = here.engine.process_failed(&namespace, limit, dry_run, &by).await?;
        let answer = answer(&done);
        if !dry_run {
            let mut told = answer.clone();
            told["tasks"] = Value::Null;
            let entry = here.engine.entry(AuditAction::FailedProcess, Loop::Repair.word(), &by).within(&namespace);
            here.engine.note(&entry.changed(None, Some(told)).answered(answer.clone())).await?;
        }
        Ok(Json(answer))
    };
    let done = move |kept: Option<Value>| async move { Ok(Json(kept.unwrap_or_else(|| answer(&[])))) };
    idempotency.run_once(&app, &caller.namespace, &body, by, act, done).await
}

/// An empty object.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Nothing)]
pub struct NothingIn {}

/// Maximum number of runs to reap in one request.
const MOST_STUCK: u32 = 1_000;

/// The loops of a name; `promote` means `retries` and `starts`.
fn named(name: &str) -> Result<Vec<Loop>, Problem> {
    if name == "promote" {
        return Ok(vec![Loop::Retries, Loop::Starts]);
    }
    let names = || Loop::ALL.iter().map(|it| it.word()).collect::<Vec<_>>().join(", ");
    Loop::from_word(name)
        .map(|it| vec![it])
        .ok_or_else(|| Problem::not_found("loop").with("loops", format!("promote, {}", names())))
}

/// Lists the loops. Actor, note and counters of a pause concern all namespaces: only admins of all namespaces see them.
pub async fn loops(State(app): State<Arc<App>>, Extension(caller): Extension<Caller>) -> Result<Json<Value>, Problem> {
    let mut page = shown_loops(&app).await?;
    if !caller.may_administer_all() {
        for it in page.0["items"].as_array_mut().into_iter().flatten() {
            (it["note"], it["by"]) = (Value::Null, Value::Null);
            (it["moved_total"], it["failed_total"]) = (Value::Null, Value::Null);
        }
    }
    Ok(page)
}

async fn shown_loops(app: &App) -> Result<Json<Value>, Problem> {
    let paused = app.engine.paused_loops().await?;
    let (tally, config) = (app.engine.tally(), app.engine.config());
    let shown: Vec<Value> = Loop::ALL
        .iter()
        .map(|name| {
            let pause = paused.iter().find(|(it, _)| it == name).map(|(_, pause)| pause);
            let counts = tally.loops.iter().find(|it| it.name == *name);
            json!({
                "name": name.word(),
                "period_ms": config.period(*name).map(|period| period.0),
                "looked_at": wire::instant(counts.and_then(|it| it.looked_at)),
                "moved_total": counts.map_or(0, |it| it.moved),
                "failed_total": counts.map_or(0, |it| it.failed),
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

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Pause)]
struct PauseIn {
    /// Length of the pause; default: until resumed.
    #[serde(default)]
    duration: Option<DurationIn>,
    #[serde(default)]
    #[schema(value_type = Option<schema_types::NoteSchema>)]
    note: Option<String>,
}

async fn pause(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    idempotency: IdempotencyKey,
    body: Bytes,
) -> Result<Json<Value>, Problem> {
    let given: PauseIn = wire::read(&body)?;
    let names = named(&name)?;
    pause_all(&app, &caller, names, given.duration, given.note, idempotency, &body).await
}

async fn resume(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    idempotency: IdempotencyKey,
    body: Bytes,
) -> Result<Json<Value>, Problem> {
    let NothingIn {} = wire::read(&body)?;
    resume_all(&app, &caller, named(&name)?, None, idempotency, &body).await
}

async fn pause_all(
    app: &Arc<App>,
    caller: &Caller,
    names: Vec<Loop>,
    duration: Option<DurationIn>,
    note: Option<String>,
    idempotency: IdempotencyKey,
    body: &Bytes,
) -> Result<Json<Value>, Problem> {
    let (here, by, again) = (app.clone(), caller.act(None, note), app.clone());
    let act = move |by: Actor| async move {
        for name in names {
            let span = duration.map(|DurationIn(span)| span);
            unless_done(here.engine.pause_loop(name, span, by.part(name.word())).await.map(drop))?;
        }
        shown_loops(&here).await
    };
    idempotency.run_once(app, &caller.namespace, body, by, act, move |_| async move { shown_loops(&again).await }).await
}

async fn resume_all(
    app: &Arc<App>,
    caller: &Caller,
    names: Vec<Loop>,
    note: Option<String>,
    idempotency: IdempotencyKey,
    body: &Bytes,
) -> Result<Json<Value>, Problem> {
    let (here, by, again) = (app.clone(), caller.act(None, note), app.clone());
    let act = move |by: Actor| async move {
        for name in names {
            unless_done(here.engine.resume_loop(name, by.part(name.word())).await)?;
        }
        shown_loops(&here).await
    };
    idempotency.run_once(app, &caller.namespace, body, by, act, move |_| async move { shown_loops(&again).await }).await
}

/// Ignores a part of the act that an earlier, aborted request has done.
fn unless_done(done: Result<(), CommandError>) -> Result<(), CommandError> {
    match done {
        Err(CommandError::Store(StoreError::KeyUsed(Used::ForThis))) => Ok(()),
        done => done,
    }
}

/// The loop of a work type of the dialect `job`.
fn of_type(word: &str) -> Option<Loop> {
    Some(match word {
        "RETRIES" => Loop::Retries,
        "DELAYED_JOBS" => Loop::Starts,
        "STUCK_JOBS" => Loop::Reap,
        "FAILED_JOBS" => Loop::Repair,
        "TIMEOUTS" => Loop::Timeout,
        "HOOKS" => Loop::Hooks,
        "SCHEDULES" => Loop::Schedule,
        _ => return None,
    })
}

/// Work types of the dialect `job`.
pub const TYPES: [&str; 7] = ["RETRIES", "DELAYED_JOBS", "STUCK_JOBS", "FAILED_JOBS", "TIMEOUTS", "HOOKS", "SCHEDULES"];

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = PauseTypes)]
struct TypesIn {
    /// Work types; default: all.
    #[serde(default)]
    #[schema(value_type = Vec<schema_types::WorkTypeSchema>)]
    types: Vec<String>,
    /// Length of the pause; default: until resumed.
    #[serde(default)]
    duration: Option<DurationIn>,
    #[serde(default)]
    #[schema(value_type = Option<schema_types::NoteSchema>)]
    note: Option<String>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ResumeTypes)]
struct SomeTypesIn {
    /// Work types; default: all.
    #[serde(default)]
    #[schema(value_type = Vec<schema_types::WorkTypeSchema>)]
    types: Vec<String>,
    #[serde(default)]
    #[schema(value_type = Option<schema_types::NoteSchema>)]
    note: Option<String>,
}

fn loops_of(types: &[String]) -> Result<Vec<Loop>, Problem> {
    let mut faults = Invalid::default();
    let mut loops = Vec::new();
    for (i, word) in types.iter().enumerate() {
        match of_type(word) {
            Some(name) => loops.push(name),
            None => faults.push(format!("types[{i}]"), format!("must be one of {}", TYPES.join(", "))),
        }
    }
    if types.is_empty() {
        loops = TYPES.into_iter().filter_map(of_type).collect();
    }
    faults.or(loops).map_err(Problem::from)
}

async fn pause_types(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    idempotency: IdempotencyKey,
    body: Bytes,
) -> Result<Json<Value>, Problem> {
    let given: TypesIn = wire::read(&body)?;
    let names = loops_of(&given.types)?;
    pause_all(&app, &caller, names, given.duration, given.note, idempotency, &body).await
}

async fn resume_types(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    idempotency: IdempotencyKey,
    body: Bytes,
) -> Result<Json<Value>, Problem> {
    let given: SomeTypesIn = wire::read(&body)?;
    resume_all(&app, &caller, loops_of(&given.types)?, given.note, idempotency, &body).await
}

/// Maximum number of runs shown, and of runs of all namespaces scanned for them.
const STUCK_SHOWN: usize = 500;
const STUCK_LOOKED_AT: usize = 100_000;

/// Stuck tasks of one namespace.
async fn stuck_in(app: &App, namespace: &str) -> Result<Vec<Stored>, Problem> {
    let mut look = STUCK_SHOWN;
    loop {
        let mut due =
            app.engine.store().due(Due::Leases, app.engine.now(), u32::try_from(look).unwrap_or(u32::MAX)).await?;
        let is_all = due.len() < look || look >= STUCK_LOOKED_AT;
        due.retain(|stored| stored.task.lane.namespace == namespace);
        if is_all || due.len() >= STUCK_SHOWN {
            return Ok(due);
        }
        look *= 4;
    }
}

async fn stuck(State(app): State<Arc<App>>, Extension(caller): Extension<Caller>) -> Result<Json<Value>, Problem> {
    let own = stuck_in(&app, &caller.namespace).await?;
    let items: Vec<Value> = own
        .iter()
        .take(STUCK_SHOWN)
        .map(|stored| {
            let lease = stored.task.lease.as_ref();
            json!({
                "id": stored.task.id.to_string(),
                "kind": stored.task.lane.kind,
                "state": stored.task.state.word(),
                "worker": lease.map(|lease| lease.worker.clone()),
                "expired_at": lease.and_then(|lease| lease.expires_at).map(|at| at.to_rfc3339()),
                "reason": lost_by(&stored.task),
            })
        })
        .collect();
    Ok(Json(json!({"items": items, "next_cursor": null})))
}

async fn stuck_by_post(app: State<Arc<App>>, caller: Extension<Caller>, body: Bytes) -> Result<Json<Value>, Problem> {
    let NothingIn {} = wire::read(&body)?;
    stuck(app, caller).await
}

async fn process_stuck(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    idempotency: IdempotencyKey,
    body: Bytes,
) -> Result<Json<Value>, Problem> {
    let NothingIn {} = wire::read(&body)?;
    let (here, by, namespace) = (app.clone(), caller.act(None, None), caller.namespace.clone());
    let act = move |by: Actor| async move {
        let (mut done, more) = here.engine.process_stuck(MOST_STUCK).await?;
        let mut told = repair_result(&done);
        told["more"] = more.into();
        told["tasks"] = Value::Null;
        let entry =
            here.engine.entry(AuditAction::StuckProcess, Loop::Reap.word(), &by).changed(None, Some(told.clone()));
        // Runs of all namespaces are processed; only those of the caller's are listed.
        done.retain(|it| it.namespace == namespace);
        told["tasks"] = repair_result(&done)["tasks"].take();
        here.engine.note(&entry.answered(told.clone())).await?;
        Ok(Json(told))
    };
    let done = |kept: Option<Value>| async {
        Ok(Json(kept.unwrap_or_else(|| {
            let mut told = repair_result(&[]);
            told["more"] = false.into();
            told
        })))
    };
    idempotency.run_once(&app, &caller.namespace, &body, by, act, done).await
}
