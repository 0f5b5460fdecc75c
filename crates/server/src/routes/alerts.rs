//! Alerts: too many events of a type within a time window.

use axum::extract::{Extension, Path, RawQuery, State};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{delete, get, post, put};
use bytes::Bytes;
use comeback_core::{Invalid, Millis};
use serde_json::{Value, json};

use super::{AppState, CURSOR, LIMIT, Line, Query, line};
use crate::auth::{Caller, Need};
use crate::openapi::{Doc, schema};
use crate::problem::Problem;
use crate::wire::alert::{self as shape, AlertBacktestIn, AlertIn};
use crate::wire::{self, DurationIn, Object, Page};

/// Routes of this module.
pub fn lines() -> Vec<Line> {
    let (all, one) = ("/api/v1/alerts", "/api/v1/alerts/{name}");
    let whole = || schema::named("Alert");
    let example = json!({"types": ["task.failed", "task.retry_exhausted"], "filter": "kind:payments.*", "threshold": 10,
        "window": "5m"});
    let share = json!({"types": ["attempt.failed"], "of": ["attempt.succeeded"], "share": 0.2, "threshold": 20, "window": "10m"});
    vec![
        line(Method::GET, all, Need::Read, "List alerts", get(list))
            .doc(Doc::new("listAlerts").query(&[LIMIT, CURSOR]).answers(schema::page(whole()))),
        line(Method::GET, one, Need::Read, "Get an alert", get(show))
            .doc(Doc::new("getAlert").answers(whole()).problems(&["not-found"])),
        line(Method::PUT, one, Need::Operate, "Create or update an alert", put(replace)).doc(
            Doc::new("putAlert")
                .about(
                    "It fires when there are at least `threshold` events of these types within `window`, and resolves \
                     when there are fewer. Both are logged and delivered to subscriptions as `alert.fired` and \
                     `alert.resolved`, once per cluster.",
                )
                .needs::<AlertIn>()
                .example(example.clone())
                .example(share)
                .answers(whole())
                .also(201)
                .problems(&["conflict"]),
        ),
        line(Method::DELETE, one, Need::Operate, "Delete an alert", delete(remove))
            .doc(Doc::new("deleteAlert").answers_nothing().problems(&["not-found"])),
        line(Method::POST, "/api/v1/alerts/backtest", Need::Read, "Back-test an alert", post(backtest)).doc(
            Doc::new("backtestAlert")
                .about(
                    "Evaluates an alert over the last 7 days. The filter is applied to tasks as they are now. If \
                     `complete` is false, there were too many events, and `to` is how far it came.",
                )
                .needs::<AlertBacktestIn>()
                .example(json!({"alert": example, "within": "7d"}))
                .answers(schema::named("AlertBacktestAnswer"))
                .problems(&["not-found"]),
        ),
    ]
}

async fn list(
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, Problem> {
    let query = Query::read(query.as_deref(), &[LIMIT, CURSOR])?;
    let limit = query.limit()?;
    let found = app.engine.alerts(&caller.namespace, query.text("cursor").unwrap_or_default(), limit).await?;
    Ok(Json(json!(Page::of(&found, limit, |it| it.name.clone(), shape::shown))))
}

async fn show(
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Result<Json<Value>, Problem> {
    Ok(Json(shape::shown(&app.engine.alert(&caller.namespace, &name).await?)))
}

async fn replace(
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    body: Bytes,
) -> Result<Response, Problem> {
    let given: AlertIn = wire::read(&body)?;
    let (view, new) = app.engine.put_alert(&caller.namespace, &name, given.spec()?, &caller.act(None, None)).await?;
    let status = if new { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(shape::shown(&view))).into_response())
}

async fn remove(
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Result<StatusCode, Problem> {
    app.engine.delete_alert(&caller.namespace, &name, &caller.act(None, None)).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn backtest(
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    body: Bytes,
) -> Result<Json<Value>, Problem> {
    let given: AlertBacktestIn = wire::read(&body)?;
    if let Some(name) = &given.name {
        let mut faults = Invalid::default();
        app.engine.config().limits.check_name("name", name, &mut faults);
        faults.or(())?;
    }
    let spec = match (given.name, given.alert) {
        (Some(name), None) => app.engine.alert(&caller.namespace, &name).await?.spec,
        (None, Some(Object(alert))) => alert.spec().map_err(|part| {
            let mut faults = Invalid::default();
            faults.absorb("alert", part);
            faults
        })?,
        _ => return Err(Invalid::one("name", "give either `name` or `alert`").into()),
    };
    let within = given.within.map_or(Millis::from_days(7), |DurationIn(span)| span);
    Ok(Json(shape::backtest(&app.engine.backtest_alert(&caller.namespace, &spec, within).await?)))
}
