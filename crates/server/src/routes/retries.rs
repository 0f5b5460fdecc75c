//! Retry statistics: sums of attempts, grouped by one dimension.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{Extension, RawQuery, State};
use axum::http::Method;
use axum::response::Json;
use axum::routing::get;
use comeback_core::filter::fingerprint_from_hex;
use comeback_core::stats::{Dimension, MOST_ATTEMPTS, Measure, Origin, QUARTER, Rate, Sums};
use comeback_core::{Class, Invalid, Millis, Timestamp};
use comeback_engine::store::{SumLine, SumsQuery};
use serde_json::{Map, Value, json};

use super::{Line, Query, line};
use crate::App;
use crate::auth::{Caller, Need};
use crate::openapi::{Doc, Param, schema};
use crate::problem::Problem;

/// Routes of this module.
pub fn lines() -> Vec<Line> {
    let summary = "Retry statistics";
    let doc = Doc::new("getRetryStats")
        .about(
            "Sums of completed attempts, grouped by one dimension. Kept for 400 days: by quarter of an hour, after 3 \
             days by hour, after 35 days by day; recent attempts are included. A retry that succeeded is useful, one \
             that failed or was lost is wasted; a rate-limited one is neither. A success is counted with the error \
             that it overcame.",
        )
        .query(PARAMETERS)
        .answers(schema::named("RetryStats"));
    vec![line(Method::GET, "/api/v1/stats/retries", Need::Read, summary, get(retries)).doc(doc)]
}

const PARAMETERS: &[Param] = &[
    Param::new("by", "Dimension to group by; default: the number of the attempt.", || schema::named("StatsBy")),
    Param::new("within", "How far to look back; default: 7 days. Not with `since`.", || schema::named("Duration")),
    Param::new("since", "Start of the range, rounded down to a bucket.", schema::instant),
    Param::new("until", "End of the range; default: now.", schema::instant),
    Param::new("bucket", "Adds a series with buckets of this length, in multiples of 15 minutes.", || {
        schema::named("Duration")
    }),
    Param::new("kind", "Only tasks of this kind.", schema::text),
    Param::new("queue", "Only tasks of this queue.", schema::text),
    Param::new("dependency", "Only tasks with this dependency.", schema::text),
    Param::new("strategy", "Only policies with this strategy; `none` for no policy.", schema::text),
    Param::new("class", "Only errors of this class, and the successes after them.", || schema::named("Class")),
    Param::new("fingerprint", "Only errors of this group, and the successes after them.", super::tasks::fingerprint),
    Param::new("attempt", "Only attempts of this number.", || schema::between(1, 100)),
    Param::new("origin", "Only `first` attempts, `automatic` retries or `manual` ones.", || {
        schema::named("StatsOrigin")
    }),
];

/// Maximum number of buckets in one response.
const MOST_PARTS: u64 = 2_000;
const WEEK: Millis = Millis::from_days(7);

/// A time range and its bucket size.
pub struct TimeRange {
    pub since: Timestamp,
    pub until: Timestamp,
    pub bucket: Option<Millis>,
}

impl TimeRange {
    /// Reads the range from the query.
    pub fn read(query: &Query, now: Timestamp) -> Result<TimeRange, Problem> {
        let mut faults = Invalid::default();
        let mut instant = |name: &str| {
            let text = query.text(name)?;
            Timestamp::parse_rfc3339(text).map_err(|error| faults.push(name, error.to_string())).ok()
        };
        let (since, until) = (instant("since"), instant("until").unwrap_or(Timestamp(now.0.saturating_add(1))));
        let mut span =
            |name: &str| Millis::parse(query.text(name)?).map_err(|error| faults.push(name, error.to_string())).ok();
        let (within, bucket) = (span("within"), span("bucket"));
        if within.is_some() && since.is_some() {
            faults.push("within", "cannot be combined with `since`");
        }
        let since = since.unwrap_or_else(|| until - within.unwrap_or(WEEK));
        let since = comeback_core::stats::bucket(since, bucket.unwrap_or(QUARTER));
        if let Some(bucket) = bucket {
            if bucket.0 == 0 || !bucket.0.is_multiple_of(QUARTER.0) {
                faults.push("bucket", "must be a multiple of 15 minutes");
            } else if until.since(since).0 / bucket.0 > MOST_PARTS {
                faults.push("bucket", format!("is too short: at most {MOST_PARTS} buckets"));
            }
        }
        faults.or(TimeRange { since, until, bucket }).map_err(Problem::from)
    }
}

async fn retries(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, Problem> {
    let query = Query::read(query.as_deref(), PARAMETERS)?;
    let now = app.engine.now();
    let TimeRange { since, until, bucket } = TimeRange::read(&query, now)?;
    let by = match query.text("by") {
        None => Dimension::Attempt,
        Some(word) => Dimension::from_word(word)
            .ok_or_else(|| Invalid::one("by", format!("must be one of {}", Dimension::list())))?,
    };
    let asked = SumsQuery { by, since, until, bucket, only: only(&query)? };
    let told = SumTable::of(app.engine.sums(&caller.namespace, &asked).await?);
    Ok(Json(json!({
        "now": now.to_rfc3339(),
        "namespace": caller.namespace,
        "since": since.to_rfc3339(),
        "until": until.to_rfc3339(),
        "by": by,
        "bucket_ms": bucket.map(|span| span.0),
        "total": shown(&told.total()),
        "series": bucket.map(|_| told.series_of_all()),
        "items": told.items(by, bucket.is_some()),
    })))
}

/// Reads the filters by dimension, refusing impossible values.
fn only(query: &Query) -> Result<Vec<(Dimension, String)>, Invalid> {
    let mut faults = Invalid::default();
    let mut only = Vec::new();
    for dimension in Dimension::ALL {
        let Some(value) = query.text(dimension.word()) else { continue };
        let problem = match dimension {
            Dimension::Attempt if !value.parse().is_ok_and(|number| (1..=MOST_ATTEMPTS).contains(&number)) => {
                Some(format!("must be between 1 and {MOST_ATTEMPTS}"))
            }
            Dimension::Class if Class::from_word(value).is_none() => Some(format!("must be one of {}", Class::list())),
            Dimension::Origin if Origin::from_word(value).is_none() => {
                Some(format!("must be one of {}", Origin::list()))
            }
            Dimension::Fingerprint if fingerprint_from_hex(value).is_none() => {
                Some("is not a fingerprint of 16 hex digits".to_owned())
            }
            _ => None,
        };
        match problem {
            Some(problem) => faults.push(dimension.word(), problem),
            None => only.push((*dimension, value.to_owned())),
        }
    }
    faults.or(only)
}

/// Sums by value and bucket.
#[derive(Default)]
pub struct SumTable(BTreeMap<String, BTreeMap<Timestamp, Sums>>);

impl SumTable {
    /// Groups sums by value and bucket.
    pub fn of(lines: Vec<SumLine>) -> SumTable {
        let mut told = SumTable::default();
        for line in lines {
            told.0.entry(line.value).or_default().entry(line.at).or_default().add_code(line.code, line.sum);
        }
        told
    }

    /// Sum over all values and buckets.
    pub fn total(&self) -> Sums {
        sum(self.0.values().flat_map(BTreeMap::values))
    }

    /// Sum of one value.
    pub fn value(&self, value: &str) -> Sums {
        sum(self.0.get(value).into_iter().flat_map(BTreeMap::values))
    }

    /// Items: attempts by number, all others by frequency.
    pub fn items(&self, by: Dimension, with_series: bool) -> Vec<Value> {
        let mut items: Vec<(&String, Sums, Vec<Value>)> = self
            .0
            .iter()
            .map(|(value, parts)| (value, sum(parts.values()), parts.iter().map(point).collect()))
            .collect();
        match by {
            Dimension::Attempt => items.sort_by_key(|(value, ..)| value.parse::<u32>().unwrap_or(u32::MAX)),
            _ => items.sort_by_key(|(_, sums, _)| std::cmp::Reverse(sums.attempts())),
        }
        let item = |(value, sums, series): (&String, Sums, Vec<Value>)| {
            let mut item = Map::new();
            item.insert("value".into(), if value.is_empty() { Value::Null } else { value.as_str().into() });
            if let Value::Object(fields) = shown(&sums) {
                item.extend(fields);
            }
            item.insert("series".into(), if with_series { series.into() } else { Value::Null });
            Value::Object(item)
        };
        items.into_iter().map(item).collect()
    }

    /// Series over all values.
    pub fn series_of_all(&self) -> Vec<Value> {
        let mut parts: BTreeMap<Timestamp, Sums> = BTreeMap::new();
        for (at, sums) in self.0.values().flatten() {
            parts.entry(*at).or_default().merge(sums);
        }
        parts.iter().map(point).collect()
    }

    /// Failures of a value by bucket.
    pub fn failures(&self, value: &str, since: Timestamp, until: Timestamp, span: Millis) -> Vec<u64> {
        let parts = self.0.get(value);
        let mut at = since;
        let mut counts = Vec::new();
        while at < until {
            let sums = parts.and_then(|parts| parts.get(&at));
            let bad = |sums: &Sums| bad_ends(sums) + sums.get(Measure::Throttled);
            counts.push(sums.map_or(0, bad));
            at = at + span;
        }
        counts
    }
}

fn sum<'a>(all: impl Iterator<Item = &'a Sums>) -> Sums {
    all.fold(Sums::default(), |mut sum, part| {
        sum.merge(part);
        sum
    })
}

fn bad_ends(sums: &Sums) -> u64 {
    sums.get(Measure::Failed) + sums.get(Measure::Lost)
}

fn point((at, sums): (&Timestamp, &Sums)) -> Value {
    json!({
        "at": at.to_rfc3339(),
        "attempts": sums.attempts(),
        "succeeded": sums.get(Measure::Succeeded),
        "failed": bad_ends(sums),
        "first_failures": sums.get(Measure::FirstFailed),
        "recovered": sums.get(Measure::Recovered),
        "wasted": sums.get(Measure::Wasted),
        "given_up": sums.get(Measure::GaveUp) + sums.get(Measure::Refused),
        "cost": sums.get(Measure::Cost),
    })
}

/// Rounds to three digits.
fn rounded(share: f64) -> f64 {
    (share * 1e4).round() / 1e4
}

/// JSON of a rate.
pub fn rate(rate: Rate) -> Value {
    let interval = rate.interval();
    json!({
        "rate": rate.share().map(rounded),
        "n": rate.of,
        "low": interval.map(|(low, _)| rounded(low)),
        "high": interval.map(|(_, high)| rounded(high)),
    })
}

/// JSON of sums.
pub fn shown(sums: &Sums) -> Value {
    let get = |what: Measure| sums.get(what);
    let span = |share: f64| sums.recovery(share).map(|span| span.0);
    let (recovered, wasted) = (get(Measure::Recovered), get(Measure::Wasted));
    json!({
        "attempts": sums.attempts(),
        "succeeded": get(Measure::Succeeded),
        "failed": get(Measure::Failed),
        "lost": get(Measure::Lost),
        "throttled": get(Measure::Throttled),
        "snoozed": get(Measure::Snoozed),
        "released": get(Measure::Released),
        "canceled": get(Measure::Canceled),
        "success": rate(sums.success()),
        "first_failures": get(Measure::FirstFailed),
        "recovered": recovered,
        "retries": recovered + wasted,
        "wasted": wasted,
        "useful": rate(Rate { hits: recovered, of: recovered + wasted }),
        "retried": get(Measure::Retried),
        "gave_up": get(Measure::GaveUp),
        "refused": get(Measure::Refused),
        "parked": get(Measure::Parked),
        "mean_delay_ms": sums.mean_delay().map(|span| span.0),
        "run_ms": get(Measure::RunMs),
        "wasted_ms": get(Measure::WastedMs),
        "cost": get(Measure::Cost),
        "wasted_cost": get(Measure::WastedCost),
        "time_to_recover": {
            "n": sums.recoveries(),
            "mean_ms": sums.mean_recovery().map(|span| span.0),
            "p50_ms": span(0.5),
            "p90_ms": span(0.9),
            "p95_ms": span(0.95),
            "p99_ms": span(0.99),
            "buckets": sums.recovery_spans().into_iter()
                .map(|(span, count)| json!({"up_to_ms": span.0, "count": count})).collect::<Vec<_>>(),
        },
    })
}
