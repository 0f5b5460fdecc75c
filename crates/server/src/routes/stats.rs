//! Statistics: task counts by state, and upcoming work.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use axum::extract::{Extension, RawQuery, State};
use axum::http::Method;
use axum::response::Json;
use axum::routing::get;
use comeback_core::filter::{Filter, Sort};
use comeback_core::{Invalid, Millis};
use comeback_engine::store::{ListQuery, NextDue, StoreError};
use serde_json::{Value, json};

use super::{Line, Query, line};
use crate::App;
use crate::auth::{Caller, Need};
use crate::openapi::{Doc, Param, schema};
use crate::problem::Problem;
use crate::wire::instant;

/// Routes of this module.
pub fn lines() -> Vec<Line> {
    use schema::{count, flag, instant, list, nullable, object, text};
    let by_state =
        || json!({"type": "object", "propertyNames": schema::named("State"), "additionalProperties": count()});
    let counts = object([
        ("now", instant()),
        ("namespace", text()),
        ("total", count()),
        ("open", count()),
        ("by_state", by_state()),
        ("held", schema::about(by_state(), "Tasks that are paused or held by a guard.")),
        ("next", object([("retry", nullable(instant())), ("start", nullable(instant()))])),
    ]);
    let coming = object([
        ("now", instant()),
        ("within_ms", count()),
        ("bucket_ms", count()),
        ("total", count()),
        ("overdue", count()),
        ("complete", schema::about(flag(), "Whether everything was counted.")),
        (
            "buckets",
            list(object([
                ("at", instant()),
                ("count", schema::about(count(), "Tasks that are due.")),
                ("schedules", schema::about(count(), "Runs of schedules.")),
            ])),
        ),
    ]);
    vec![
        line(Method::GET, "/api/v1/stats", Need::Read, "Count tasks by state", get(stats))
            .doc(Doc::new("getStats").answers(counts)),
        line(Method::GET, "/api/v1/upcoming", Need::Read, "Upcoming work", get(upcoming))
            .doc(Doc::new("getUpcoming").query(UPCOMING_PARAMETERS).answers(coming)),
    ]
}

const UPCOMING_PARAMETERS: &[Param] = &[
    Param::new("within", "How far to look ahead; default: a day.", || schema::named("Duration")),
    Param::new("bucket", "Bucket size; default: 15 minutes.", || schema::named("Duration")),
];

async fn stats(State(app): State<Arc<App>>, Extension(caller): Extension<Caller>) -> Result<Json<Value>, Problem> {
    let counts = app.count_cache.of(app.engine.store(), &caller.namespace, app.engine.now()).await?;
    let next = next_of(&app, &caller.namespace).await?;
    let words = |counts: &BTreeMap<comeback_core::State, u64>| -> BTreeMap<&str, u64> {
        counts.iter().map(|(state, count)| (state.word(), *count)).collect()
    };
    let open: u64 = counts.by_state.iter().filter(|(state, _)| state.is_open()).map(|(_, count)| count).sum();
    let total: u64 = counts.by_state.values().sum();
    Ok(Json(json!({
        "now": app.engine.now().to_rfc3339(),
        "namespace": caller.namespace,
        "total": total,
        "open": open,
        "by_state": words(&counts.by_state),
        "held": words(&counts.held),
        "next": {"retry": instant(next.retry), "start": instant(next.start)},
    })))
}

/// Counts of every namespace that has tasks.
pub async fn namespaces(app: &App) -> Result<BTreeSet<String>, StoreError> {
    Ok(app.engine.store().lane_namespaces(None).await?.into_iter().collect())
}

/// The next retry and the next start of a namespace. With a single namespace the store knows them without a scan.
pub async fn next_of(app: &App, namespace: &str) -> Result<NextDue, Problem> {
    if namespaces(app).await?.iter().all(|name| name == namespace) {
        return Ok(app.engine.store().next_due().await?);
    }
    let first = async |state: &str| {
        let now = app.engine.now();
        let filter =
            Filter::parse(&format!("state:{state}"), now).map_err(|error| Problem::bad_request(error.message))?;
        let request = ListQuery { filter, sort: Sort::Due, limit: 1, after: None, now };
        let found = app.engine.store().list(namespace, &request).await?;
        Ok::<_, Problem>(found.items.first().and_then(|it| it.stored.task.due()))
    };
    Ok(NextDue { retry: first("retry_pending").await?, start: first("waiting").await?, ..NextDue::default() })
}

/// Maximum number of tasks counted for upcoming work.
const MOST_COUNTED: usize = 20_000;

async fn upcoming(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, Problem> {
    let query = Query::read(query.as_deref(), UPCOMING_PARAMETERS)?;
    let span = |name: &str, default: Millis| match query.text(name) {
        None => Ok(default),
        Some(text) => Millis::parse(text).map_err(|error| Problem::from(Invalid::one(name, error))),
    };
    let within = span("within", Millis::from_secs(86_400))?;
    let bucket = span("bucket", Millis::from_secs(900))?;
    if bucket.0 == 0 || within.0 / bucket.0 > 10_000 {
        return Err(Invalid::one("bucket", "is too short: at most 10000 buckets").into());
    }
    let now = app.engine.now();
    let filter = Filter::parse(&format!("state:open due:<{}", (now + within).to_rfc3339()), now)
        .map_err(|error| Problem::bad_request(error.message))?;
    let mut request = ListQuery { filter, sort: Sort::Due, limit: 500, after: None, now };
    let mut buckets: BTreeMap<u64, u64> = BTreeMap::new();
    let (mut total, mut overdue) = (0_usize, 0_u64);
    loop {
        let listing = app.engine.store().list(&caller.namespace, &request).await?;
        for item in &listing.items {
            let Some(due) = item.stored.task.due() else { continue };
            total += 1;
            overdue += u64::from(due < now);
            *buckets.entry(due.since(now).0 / bucket.0).or_default() += 1;
        }
        request.after = listing.next;
        if request.after.is_none() || total >= MOST_COUNTED {
            break;
        }
    }
    let (firings, told_all) = app.engine.firings_until(&caller.namespace, now + within, MOST_COUNTED).await?;
    let mut schedules: BTreeMap<u64, u64> = BTreeMap::new();
    for (_, at) in firings {
        *schedules.entry(at.since(now).0 / bucket.0).or_default() += 1;
    }
    let places: BTreeSet<u64> = buckets.keys().chain(schedules.keys()).copied().collect();
    let count_of = |of: &BTreeMap<u64, u64>, place: u64| of.get(&place).copied().unwrap_or(0);
    let shown: Vec<Value> = places
        .into_iter()
        .map(|place| {
            json!({
                "at": (now + Millis(place * bucket.0)).to_rfc3339(),
                "count": count_of(&buckets, place),
                "schedules": count_of(&schedules, place),
            })
        })
        .collect();
    Ok(Json(json!({
        "now": now.to_rfc3339(), "within_ms": within.0, "bucket_ms": bucket.0,
        "total": total, "overdue": overdue, "complete": request.after.is_none() && told_all, "buckets": shown,
    })))
}
