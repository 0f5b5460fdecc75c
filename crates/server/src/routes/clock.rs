//! The clock. On a server with a virtual clock, time is advanced here without skipping anything that becomes due.

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
use crate::idempotency::IdempotencyKey;
use crate::openapi::{Doc, schema};
use crate::problem::Problem;
use crate::wire::{self, DurationIn};

/// Routes of this module.
pub fn lines() -> Vec<Line> {
    let time = schema::object([("now", schema::instant()), ("clock", schema::word(&["real", "virtual"]))]);
    let moved = schema::object([("now", schema::instant()), ("steps", schema::count())]);
    let advance =
        line(Method::POST, "/api/v1/clock/advance", Need::AdministerAll, "Advance the virtual clock", post(advance));
    vec![
        line(Method::GET, "/api/v1/clock", Need::Read, "Get the server time", get(show))
            .doc(Doc::new("getClock").answers(time)),
        advance.doc(
            Doc::new("advanceClock")
                .about("Only on a server started with `--clock virtual`. Stops at every due time on the way.")
                .needs::<AdvanceIn>()
                .once()
                .example(json!({"by": "14d"}))
                .example(json!({"to": "next"}))
                .answers(moved),
        ),
    ]
}

/// Meta key of the virtual time, shared by all instances and kept through restarts.
const META: &str = "virtual_clock";

/// Virtual time at the start of a server. The first server sets it; later only a `start` in its future moves it.
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
    by: Option<DurationIn>,
    /// An instant, or `next` for the next due time.
    #[serde(default)]
    to: Option<String>,
}

/// Maximum advance in one request.
const FURTHEST: Millis = Millis::from_days(3_660);

async fn advance(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    idempotency: IdempotencyKey,
    body: Bytes,
) -> Result<Json<Value>, Problem> {
    let given: AdvanceIn = wire::read(&body)?;
    let (here, again) = (app.clone(), app.clone());
    let act = move |by: Actor| async move {
        let target = set_target(&here, given, &by).await?;
        move_to(&here, target).await
    };
    // An aborted advance continues to its target; a complete one makes no more steps.
    let go_on = move |kept: Option<Value>| async move {
        let target = kept.and_then(|kept| Timestamp::parse_rfc3339(kept["target"].as_str()?).ok());
        move_to(&again, target.unwrap_or_else(|| again.engine.now())).await
    };
    idempotency.run_once(&app, &caller.namespace, &body, caller.act(None, None), act, go_on).await
}

fn clock_of(app: &App) -> Result<&VirtualClock, Problem> {
    let detail = "this server runs on real time; start it with `--clock virtual` to advance time";
    app.clock.as_deref().ok_or_else(|| Invalid::one("clock", detail).into())
}

/// Computes the target time and records it with the key of the request before time moves.
async fn set_target(app: &App, given: AdvanceIn, act: &Actor) -> Result<Timestamp, Problem> {
    let clock = clock_of(app)?;
    follow(app).await?;
    let now = clock.now();
    let target = match (given.by, given.to.as_deref()) {
        (Some(DurationIn(by)), None) if by <= FURTHEST => now + by,
        (Some(_), None) => return Err(Invalid::one("by", format!("must be at most {FURTHEST}")).into()),
        (None, Some("next")) => app.engine.next_instant().await?.unwrap_or(now),
        (None, Some(text)) => {
            let to = Timestamp::parse_rfc3339(text).map_err(|error| Invalid::one("to", error))?;
            if to.since(now) > FURTHEST {
                return Err(Invalid::one("to", format!("must be at most {FURTHEST} ahead")).into());
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

/// Advances time to the target, stopping at every due time on the way. Never moves back.
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

/// Stores the virtual time before anything happens at it, so that a killed server resumes there. It never goes back,
/// also with several writers.
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

/// Adopts the virtual time set by another instance.
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
