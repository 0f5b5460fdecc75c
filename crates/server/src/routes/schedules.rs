//! Schedules: start workflows or tasks by cron, interval or event.

use axum::extract::{Extension, Path, RawQuery, State};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{delete, get, post, put};
use bytes::Bytes;
use comeback_core::Invalid;
use comeback_core::transition::Actor;
use comeback_engine::schedules::Run;
use serde_json::{Value, json};

use super::admin::NothingIn;
use super::workflows::is_path_at;
use super::{AppState, CURSOR, LIMIT, Line, Query, line};
use crate::App;
use crate::auth::{Caller, Need};
use crate::idempotency::IdempotencyKey;
use crate::openapi::{Doc, schema};
use crate::problem::Problem;
use crate::wire::schedule::{self as shape, ScheduleIn};
use crate::wire::{self, NoteIn, Page};

/// Routes of this module.
pub fn lines() -> Vec<Line> {
    let (all, one) = ("/api/v1/schedules", "/api/v1/schedules/{name}");
    let whole = || schema::named("Schedule");
    let fields = json!({"cron": "30 2 * * 1-5", "time_zone": "Europe/Berlin", "catch_up": "last", "overlap": "skip",
        "task": {"kind": "report.export", "payload": {"day": "{{ scheduled_at[:10] }}"}}});
    let with_name = json!({"name": "heartbeat", "every": "8h", "task": {"kind": "check"}});
    let act = |id| Doc::new(id).once().answers(whole()).problems(&["not-found", "conflict"]);
    vec![
        line(Method::GET, all, Need::Read, "List schedules", get(list))
            .doc(Doc::new("listCronSchedules").query(&[LIMIT, CURSOR]).answers(schema::page(whole()))),
        line(Method::POST, all, Need::Operate, "Create a schedule", post(create)).doc(
            Doc::new("createSchedule")
                .about(
                    "Starts a workflow or a task by cron or interval in a time zone, or on an event. Each run starts \
                     once per cluster. The workflow or task is validated beforehand.",
                )
                .needs::<ScheduleIn>()
                .example(with_name)
                .once()
                .creates(whole())
                .problems(&["name-taken"]),
        ),
        line(Method::GET, one, Need::Read, "Get a schedule with its next and last runs", get(show))
            .doc(Doc::new("getSchedule").answers(whole()).problems(&["not-found"])),
        line(Method::PUT, one, Need::Operate, "Replace a schedule", put(replace)).doc(
            Doc::new("putSchedule")
                .about("If the times do not change, past runs are kept. A new trigger begins now.")
                .needs::<ScheduleIn>()
                .example(fields)
                .answers(whole())
                .also(201)
                .problems(&["conflict"]),
        ),
        line(Method::DELETE, one, Need::Operate, "Delete a schedule", delete(remove))
            .doc(Doc::new("deleteSchedule").answers_nothing().problems(&["not-found"])),
        line(Method::POST, "/api/v1/schedules/{name}/pause", Need::Operate, "Pause a schedule", post(pause))
            .doc(act("pauseSchedule").takes::<NoteIn>()),
        line(Method::POST, "/api/v1/schedules/{name}/resume", Need::Operate, "Resume a schedule", post(resume))
            .doc(act("resumeSchedule").takes::<NoteIn>().about("Runs missed during the pause are not caught up.")),
        line(Method::POST, "/api/v1/schedules/{name}/trigger", Need::Operate, "Trigger a schedule now", post(trigger))
            .doc(
                Doc::new("triggerSchedule")
                    .about("Works also while it is paused; its regular times stay the same.")
                    .takes::<NothingIn>()
                    .once()
                    .creates(schema::named("ScheduleRun"))
                    .problems(&["not-found", "wrong-state", "conflict"]),
            ),
    ]
}

/// Refuses an invalid schedule name as not found.
fn known(name: &str) -> Result<(), Problem> {
    is_path_at("name", name).map_err(|_| Problem::not_found("schedule"))
}

async fn list(
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, Problem> {
    let query = Query::read(query.as_deref(), &[LIMIT, CURSOR])?;
    let limit = query.limit()?;
    let found = app.engine.schedules(&caller.namespace, query.text("cursor").unwrap_or_default(), limit).await?;
    Ok(Json(json!(Page::of(&found, limit, |it| it.name.clone(), shape::shown))))
}

async fn view(app: &App, namespace: &str, name: &str) -> Result<Json<Value>, Problem> {
    Ok(Json(shape::shown(&app.engine.schedule(namespace, name).await?)))
}

async fn show(
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Result<Json<Value>, Problem> {
    known(&name)?;
    view(&app, &caller.namespace, &name).await
}

async fn create(
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    idempotency: IdempotencyKey,
    body: Bytes,
) -> Result<Response, Problem> {
    let mut given: ScheduleIn = wire::read(&body)?;
    let name = given.name.take().ok_or_else(|| Invalid::one("name", "is missing"))?;
    is_path_at("name", &name)?;
    let spec = given.spec()?;
    let (here, again) = (app.clone(), app.clone());
    let (namespace, other, called) = (caller.namespace.clone(), caller.namespace.clone(), name.clone());
    let by = caller.act(None, None);
    let act = move |by: Actor| async move {
        let view = here.engine.create_schedule(&namespace, &name, spec, &by).await?;
        Ok(Json(shape::shown(&view)))
    };
    let as_it_is = move |_| async move { view(&again, &other, &called).await };
    let answer = idempotency.run_once(&app, &caller.namespace, &body, by, act, as_it_is).await?;
    Ok((StatusCode::CREATED, answer).into_response())
}

async fn replace(
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    body: Bytes,
) -> Result<Response, Problem> {
    is_path_at("name", &name)?;
    let given: ScheduleIn = wire::read(&body)?;
    if given.name.as_ref().is_some_and(|given| *given != name) {
        return Err(Invalid::one("name", format!("must be `{name}`, as in the path, or be left out")).into());
    }
    let (view, new) =
        app.engine.replace_schedule(&caller.namespace, &name, given.spec()?, &caller.act(None, None)).await?;
    let status = if new { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(shape::shown(&view))).into_response())
}

async fn remove(
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Result<StatusCode, Problem> {
    known(&name)?;
    app.engine.delete_schedule(&caller.namespace, &name, &caller.act(None, None)).await?;
    Ok(StatusCode::NO_CONTENT)
}

macro_rules! acts {
    ($($verb:ident $command:ident),+) => {
        $(async fn $verb(
            State(app): AppState,
            Extension(caller): Extension<Caller>,
            Path(name): Path<String>,
            idempotency: IdempotencyKey,
            body: Bytes,
        ) -> Result<Json<Value>, Problem> {
            let given: NoteIn = wire::read(&body)?;
            known(&name)?;
            let by = caller.act(None, given.note);
            let (here, again) = (app.clone(), app.clone());
            let (namespace, other, called) = (caller.namespace.clone(), caller.namespace.clone(), name.clone());
            let act =
                move |by: Actor| async move { Ok(Json(shape::shown(&here.engine.$command(&namespace, &name, by).await?))) };
            let as_it_is = move |_| async move { view(&again, &other, &called).await };
            idempotency.run_once(&app, &caller.namespace, &body, by, act, as_it_is).await
        })+
    };
}

acts!(pause pause_schedule, resume resume_schedule);

async fn trigger(
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    idempotency: IdempotencyKey,
    body: Bytes,
) -> Result<Response, Problem> {
    let NothingIn {} = wire::read(&body)?;
    known(&name)?;
    let (here, again) = (app.clone(), app.clone());
    let (namespace, other, called) = (caller.namespace.clone(), caller.namespace.clone(), name.clone());
    let by = caller.act(None, None);
    let act = move |by: Actor| async move {
        Ok(Json(shape::run(&here.engine.trigger_schedule(&namespace, &name, &by).await?)))
    };
    let made = move |kept: Option<Value>| async move {
        let kept = kept.and_then(|kept| serde_json::from_value::<Run>(kept).ok());
        // Idempotency keys of older versions have no stored response.
        let run = match kept {
            Some(run) => Some(run),
            None => again.engine.schedule(&other, &called).await?.standing.last_manual_run,
        };
        run.as_ref().map(shape::run).map(Json).ok_or_else(|| Problem::not_found("run of this schedule"))
    };
    let answer = idempotency.run_once(&app, &caller.namespace, &body, by, act, made).await?;
    Ok((StatusCode::CREATED, answer).into_response())
}
