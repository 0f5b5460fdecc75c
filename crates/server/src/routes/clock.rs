//! The clock: on a server whose time is moved by hand, time is moved here, and nothing that was due on the way is missed.

use std::sync::Arc;

use axum::extract::{Extension, State};
use axum::http::Method;
use axum::response::Json;
use axum::routing::{get, post};
use bytes::Bytes;
use comeback_core::transition::Actor;
use comeback_core::{AuditAction, Invalid, Millis, Timestamp};
use comeback_engine::store::{PutIf, Store, StoreError};
use comeback_engine::{Clock, VirtualClock};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::{Line, line};
use crate::App;
use crate::auth::{Caller, Need};
use crate::once::Once;
use crate::openapi::{Doc, schema};
use crate::problem::Problem;
use crate::wire::{self, Span};

pub fn lines() -> Vec<Line> {
    let time = schema::object([("now", schema::instant()), ("clock", schema::word(&["real", "virtual"]))]);
    let moved = schema::object([("now", schema::instant()), ("steps", schema::count())]);
    let advance = line(
        Method::POST,
        "/api/v1/clock/advance",
        Need::AdministerAll,
        "Move time that is moved by hand",
        post(advance),
    );
    vec![
        line(Method::GET, "/api/v1/clock", Need::Read, "What time it is here", get(show))
            .doc(Doc::new("getClock").answers(time)),
        advance.doc(
            Doc::new("advanceClock")
                .about(
                    "Only on a server that was started with `--clock virtual`. Stops at every instant on the way at which \
                     something is due.",
                )
                .needs::<AdvanceIn>()
                .once()
                .example(json!({"by": "14d"}))
                .example(json!({"to": "next"}))
                .answers(moved),
        ),
    ]
}

/// Where a clock that is moved by hand stands, for all instances and through restarts.
const META: &str = "virtual_clock";

/// Where it stands when a server starts. The first one says so for all that come; only a `start` that lies ahead of it moves it.
pub async fn start(store: &dyn Store, start: Option<Timestamp>, now: Timestamp) -> Result<Timestamp, StoreError> {
    let first = start.unwrap_or(now);
    store.put_meta(META, &first.0.to_string(), PutIf::Absent, None).await?;
    if let Some(start) = start {
        write_down(store, start).await?;
    }
    Ok(parsed(store.meta(META).await?.as_deref()).unwrap_or(first))
}

async fn show(State(app): State<Arc<App>>) -> Result<Json<Value>, Problem> {
    follow(&app).await?;
    let sort = if app.clock.is_some() { "virtual" } else { "real" };
    Ok(Json(json!({"now": app.engine.now().to_rfc3339(), "clock": sort})))
}

/// Give either `by` or `to`.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Advance)]
struct AdvanceIn {
    #[serde(default)]
    by: Option<Span>,
    /// An instant, or `next`: whatever is due first.
    #[serde(default)]
    to: Option<String>,
}

/// The furthest that time is moved at once.
const FURTHEST: Millis = Millis::from_days(3_660);

async fn advance(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    once: Once,
    body: Bytes,
) -> Result<Json<Value>, Problem> {
    let given: AdvanceIn = wire::read(&body)?;
    let (here, again) = (app.clone(), app.clone());
    let act = move |by: Actor| async move {
        let target = set_target(&here, given, &by).await?;
        move_to(&here, target).await
    };
    // An advance that broke off goes on to where it was going; one that has arrived makes no more steps.
    let go_on = move |kept: Option<Value>| async move {
        let target = kept.and_then(|kept| Timestamp::parse_rfc3339(kept["target"].as_str()?).ok());
        move_to(&again, target.unwrap_or_else(|| again.engine.now())).await
    };
    once.guard(&app, &caller.namespace, &body, caller.act(None, None), act, go_on).await
}

fn clock_of(app: &App) -> Result<&VirtualClock, Problem> {
    let detail = "this server runs on real time; start it with `--clock virtual` to move time by hand";
    app.clock.as_deref().ok_or_else(|| Invalid::one("clock", detail).into())
}

/// Decides where time is moved to, and writes that down with the key of the request before anything moves.
async fn set_target(app: &App, given: AdvanceIn, act: &Actor) -> Result<Timestamp, Problem> {
    let clock = clock_of(app)?;
    follow(app).await?;
    let now = clock.now();
    let target = match (given.by, given.to.as_deref()) {
        (Some(Span(by)), None) if by <= FURTHEST => now + by,
        (Some(_), None) => return Err(Invalid::one("by", format!("may be {FURTHEST} at most")).into()),
        (None, Some("next")) => app.engine.next_instant().await?.unwrap_or(now),
        (None, Some(text)) => {
            let to = Timestamp::parse_rfc3339(text).map_err(|error| Invalid::one("to", error))?;
            if to.since(now) > FURTHEST {
                return Err(Invalid::one("to", format!("may be {FURTHEST} away at most")).into());
            }
            to
        }
        _ => return Err(Invalid::one("by", "give either `by` or `to`").into()),
    };
    let entry = app.engine.entry(AuditAction::ClockAdvance, "clock", act);
    let entry = entry.changed(Some(json!({"now": now.to_rfc3339()})), Some(json!({"now": target.to_rfc3339()})));
    app.engine.note(&entry.answered(json!({"target": target.to_rfc3339()}))).await?;
    Ok(target)
}

/// Moves time there, and stops at every instant on the way at which something is due. Time that is there already stays.
async fn move_to(app: &App, target: Timestamp) -> Result<Json<Value>, Problem> {
    let clock = clock_of(app)?;
    follow(app).await?;
    let mut steps = 0_u64;
    app.engine.tick().await?;
    app.executors_settled().await;
    while let Some(next) = app.engine.next_instant().await?.filter(|next| *next <= target) {
        write_down(&**app.engine.store(), next).await?;
        clock.set(next);
        app.engine.tick().await?;
        app.executors_settled().await;
        steps += 1;
    }
    write_down(&**app.engine.store(), target).await?;
    clock.set(target);
    app.engine.tick().await?;
    app.executors_settled().await;
    Ok(Json(json!({"now": clock.now().to_rfc3339(), "steps": steps})))
}

/// Before anything is done at an instant: whoever is killed on the way begins there and not before it. It never goes back,
/// whoever else moves it.
async fn write_down(store: &dyn Store, at: Timestamp) -> Result<(), StoreError> {
    let text = at.0.to_string();
    loop {
        let kept = store.meta(META).await?;
        if parsed(kept.as_deref()).is_some_and(|kept| kept >= at) {
            return Ok(());
        }
        let when = kept.as_deref().map_or(PutIf::Absent, PutIf::Is);
        if store.put_meta(META, &text, when, None).await? == text {
            return Ok(());
        }
    }
}

/// Goes where another instance has moved the time to.
pub async fn follow(app: &App) -> Result<(), StoreError> {
    if let Some(clock) = &app.clock
        && let Some(kept) = parsed(app.engine.store().meta(META).await?.as_deref())
    {
        clock.set(kept);
    }
    Ok(())
}

fn parsed(text: Option<&str>) -> Option<Timestamp> {
    text.and_then(|text| text.parse().ok()).map(Timestamp)
}
