//! Error groups: similar errors, their statistics, and triage.

use std::collections::HashMap;

use axum::extract::{Extension, Path, RawQuery, State};
use axum::http::Method;
use axum::response::Json;
use axum::routing::{get, post};
use bytes::Bytes;
use comeback_core::error_group::{Group, GroupStatus, TriageAction};
use comeback_core::filter::{fingerprint_from_hex, fingerprint_to_hex};
use comeback_core::stats::{Dimension, Measure, Rate, bucket};
use comeback_core::{Class, Invalid, Millis, Timestamp};
use comeback_engine::store::{GroupQuery, SumsQuery};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::retries::{SumTable, TimeRange, rate};
use super::{AppState, CURSOR, LIMIT, Line, Query, line};
use crate::App;
use crate::auth::{Caller, Need};
use crate::openapi::{Doc, Param, schema, schema_types};
use crate::problem::Problem;
use crate::wire::{self, DurationIn, Page, PageBytes};

/// Routes of this module.
pub fn lines() -> Vec<Line> {
    let one = "/api/v1/errors/{fingerprint}";
    let shape = || schema::named("ErrorGroup");
    vec![
        line(Method::GET, "/api/v1/errors", Need::Read, "List error groups", get(list)).doc(
            Doc::new("listErrors")
                .about(
                    "Most recently seen first. `series` counts errors by hour over the last day, oldest first. \
                     `filter` finds the tasks of a group.",
                )
                .query(PARAMETERS)
                .answers(schema::page(shape())),
        ),
        line(Method::GET, one, Need::Read, "Get an error group", get(show))
            .doc(Doc::new("getError").query(RANGE).answers(schema::named("ErrorGroupDetail")).problems(&["not-found"])),
        line(Method::POST, one, Need::Operate, "Triage an error group", post(act)).doc(
            Doc::new("changeError")
                .about(
                    "`resolve`: fixed; marked `regressed` when the error recurs. `ignore`: for a while or forever. \
                     `open`: reopen. `classify`: sets the class of such errors from now on, whatever policies say; \
                     `policy` removes it. `note`: only the note.",
                )
                .needs::<TriageIn>()
                .example(json!({"action": "resolve", "note": "deployed"}))
                .example(json!({"action": "ignore", "for": "24h"}))
                .example(json!({"action": "open"}))
                .example(json!({"action": "classify", "class": "final", "note": "0 of 61 retries helped"}))
                .example(json!({"action": "classify", "class": "policy"}))
                .example(json!({"action": "note", "note": "asked the bank"}))
                .answers(shape())
                .problems(&["not-found"]),
        ),
    ]
}

const PARAMETERS: &[Param] = &[
    Param::new("state", "Comma-separated states.", schema::text),
    Param::new("kind", "Only tasks of this kind.", schema::text),
    Param::new("class", "Only groups whose last error has this class.", || schema::named("Class")),
    LIMIT,
    CURSOR,
];
const RANGE: &[Param] = &[
    Param::new("within", "How far to look back; default: 7 days.", || schema::named("Duration")),
    Param::new("bucket", "Bucket size of the series, in multiples of 15 minutes; default: an hour.", || {
        schema::named("Duration")
    }),
];

const HOUR: Millis = Millis::from_secs(3_600);
/// Hours of a series: the current hour and the 23 before.
const HOURS_BEFORE: Millis = Millis::from_secs(23 * 3_600);

/// Maximum number of groups scanned for one page.
const MOST_LOOKED_AT: usize = 10_000;

fn number(text: &str) -> Result<i64, Problem> {
    fingerprint_from_hex(text).ok_or_else(|| Problem::not_found("error group"))
}

fn cursor(text: &str) -> Result<(Timestamp, i64), Problem> {
    let parts = text.split_once('-').and_then(|(at, number)| Some((at.parse().ok()?, fingerprint_from_hex(number)?)));
    let (at, number) = parts.ok_or_else(|| Problem::from(Invalid::one("cursor", "is not a valid cursor")))?;
    Ok((Timestamp(at), number))
}

async fn list(
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    RawQuery(query): RawQuery,
) -> Result<Json<Page<Value>>, Problem> {
    let query = Query::read(query.as_deref(), PARAMETERS)?;
    let (limit, now) = (query.limit()? as usize, app.engine.now());
    let mut faults = Invalid::default();
    let mut standings = Vec::new();
    for word in query.text("state").unwrap_or_default().split(',').filter(|word| !word.is_empty()) {
        match GroupStatus::from_word(word) {
            Some(standing) => standings.push(standing),
            None => faults.push("state", format!("unknown value `{word}`; must be one of {}", GroupStatus::list())),
        }
    }
    let class = query.text("class").map(|word| Class::from_word(word).ok_or(word));
    if let Some(Err(word)) = class {
        faults.push("class", format!("unknown value `{word}`; must be one of {}", Class::list()));
    }
    faults.or(())?;
    let class = class.and_then(Result::ok);
    let wanted = |group: &Group| {
        (standings.is_empty() || standings.contains(&group.standing(now)))
            && query.text("kind").is_none_or(|kind| kind == group.face.kind)
            && (class.is_none() || group.class == class)
    };
    let mut after = query.text("cursor").map(cursor).transpose()?;
    let (mut found, mut looked_at): (Vec<Group>, usize) = (Vec::new(), 0);
    let next_cursor = loop {
        let page = app.engine.error_groups(&caller.namespace, &GroupQuery { after, limit: 500 }).await?;
        looked_at += page.len();
        let was_all = page.len() < 500 || looked_at >= MOST_LOOKED_AT;
        after = page.last().map(|last| (last.last_seen, last.fingerprint));
        found.extend(page.into_iter().filter(wanted));
        if found.len() > limit {
            found.truncate(limit);
            break found.last().map(cursor_of);
        }
        if was_all {
            break None;
        }
    };
    let view = GroupView::of(&app, &caller, &found, now).await?;
    let mut bytes = PageBytes::default();
    let items: Vec<Value> = found.iter().map(|group| view.shown(group)).take_while(|shown| bytes.fits(shown)).collect();
    // Items that do not fit come with the next page.
    let cut = items.len().checked_sub(1).filter(|_| items.len() < found.len()).and_then(|last| found.get(last));
    Ok(Json(Page { items, next_cursor: cut.map(cursor_of).or(next_cursor) }))
}

fn cursor_of(group: &Group) -> String {
    format!("{}-{}", group.last_seen.0, fingerprint_to_hex(group.fingerprint))
}

/// Statistics shown with a group.
struct GroupView {
    now: Timestamp,
    open: HashMap<i64, u64>,
    day: SumTable,
    since: Timestamp,
}

impl GroupView {
    async fn of(app: &App, caller: &Caller, groups: &[Group], now: Timestamp) -> Result<GroupView, Problem> {
        let numbers: Vec<i64> = groups.iter().map(|group| group.fingerprint).collect();
        let open = app.engine.open_with(&caller.namespace, &numbers).await?;
        let since = bucket(now, HOUR) - HOURS_BEFORE;
        let mut query = SumsQuery {
            by: Dimension::Fingerprint,
            since,
            until: Timestamp(now.0.saturating_add(1)),
            bucket: Some(HOUR),
            only: Vec::new(),
        };
        if let [group] = groups {
            query.only.push((Dimension::Fingerprint, fingerprint_to_hex(group.fingerprint)));
        }
        let day = SumTable::of(app.engine.sums(&caller.namespace, &query).await?);
        Ok(GroupView { now, open, day, since })
    }

    fn shown(&self, group: &Group) -> Value {
        let name = fingerprint_to_hex(group.fingerprint);
        let (word, sample, face) = (&group.word, &group.sample, &group.face);
        let day = self.day.value(&name);
        let (helped, wasted) = (day.get(Measure::Recovered), day.get(Measure::Wasted));
        let at = |at: Option<Timestamp>| at.map(Timestamp::to_rfc3339);
        json!({
            "fingerprint": name,
            "state": group.standing(self.now),
            "state_since": at(word.since),
            "ignored_until": at(word.ignored_until.filter(|_| group.standing(self.now) == GroupStatus::Ignored)),
            "reclassified": word.reclassified,
            "note": word.note,
            "by": word.by,
            "kind": face.kind,
            "title": face.title,
            "trigger": face.trigger,
            "type": face.error_type,
            "code": face.code,
            "status": face.status,
            "class": group.class,
            "count": group.count,
            "recovered": group.recovered,
            "open": self.open.get(&group.fingerprint).copied().unwrap_or(0),
            "helped": rate(Rate { hits: helped, of: helped + wasted }),
            "first_seen": group.first_seen.to_rfc3339(),
            "last_seen": group.last_seen.to_rfc3339(),
            "sample": {
                "at": sample.at.to_rfc3339(),
                "task_id": sample.task.to_string(),
                "run": sample.run,
                "message": sample.message,
                "stack": sample.stack,
            },
            "filter": format!("fingerprint:{name}"),
            "series": self.day.failures(&name, self.since, self.now, HOUR),
        })
    }
}

async fn show(
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, Problem> {
    let query = Query::read(query.as_deref(), RANGE)?;
    let now = app.engine.now();
    let range = TimeRange::read(&query, now)?;
    let group = app.engine.error_group(&caller.namespace, number(&name)?).await?;
    let view = GroupView::of(&app, &caller, std::slice::from_ref(&group), now).await?;
    let mut shown = view.shown(&group);
    let asked = SumsQuery {
        by: Dimension::Attempt,
        since: range.since,
        until: range.until,
        bucket: Some(range.bucket.unwrap_or(HOUR)),
        only: vec![(Dimension::Fingerprint, fingerprint_to_hex(group.fingerprint))],
    };
    let told = SumTable::of(app.engine.sums(&caller.namespace, &asked).await?);
    shown["since"] = range.since.to_rfc3339().into();
    shown["until"] = range.until.to_rfc3339().into();
    shown["total"] = super::retries::shown(&told.total());
    shown["by_attempt"] = told.items(Dimension::Attempt, false).into();
    shown["history"] = told.series_of_all().into();
    Ok(Json(shown))
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ErrorDeed)]
struct TriageIn {
    #[schema(value_type = schema_types::ErrorActionSchema)]
    action: String,
    /// Duration of `ignore`; default: forever.
    #[serde(default, rename = "for")]
    span: Option<DurationIn>,
    /// Class of such errors from now on.
    #[serde(default)]
    #[schema(value_type = Option<schema_types::ErrorClassSchema>)]
    class: Option<String>,
    #[serde(default)]
    #[schema(value_type = Option<schema_types::NoteSchema>)]
    note: Option<String>,
    #[serde(default)]
    #[schema(value_type = Option<schema_types::NameSchema>)]
    requested_by: Option<String>,
}

/// Triage actions.
pub const ACTIONS: [&str; 5] = ["open", "ignore", "resolve", "classify", "note"];
/// Classes that triage can set.
pub const CLASSES: [&str; 4] = ["final", "retryable", "rate_limited", "policy"];

impl TriageIn {
    fn deed(&self, now: Timestamp) -> Result<TriageAction, Invalid> {
        let mut faults = Invalid::default();
        if self.span.is_some() && self.action != "ignore" {
            faults.push("for", "is only allowed with the action `ignore`");
        }
        if self.class.is_some() != (self.action == "classify") {
            faults.push("class", "is required with the action `classify`, and only allowed there");
        }
        let class = self.class.as_deref().and_then(Class::from_word);
        if self.class.as_deref().is_some_and(|word| !CLASSES.contains(&word)) {
            faults.push("class", format!("must be one of {}", CLASSES.join(", ")));
        }
        let deed = match self.action.as_str() {
            "open" => TriageAction::Reopen,
            "ignore" => TriageAction::Ignore(self.span.map(|DurationIn(span)| now + span)),
            "resolve" => TriageAction::Resolve,
            "classify" => TriageAction::Reclassify(class),
            "note" => TriageAction::Note,
            _ => {
                faults.push("action", format!("must be one of {}", ACTIONS.join(", ")));
                TriageAction::Note
            }
        };
        faults.or(deed)
    }
}

async fn act(
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    body: Bytes,
) -> Result<Json<Value>, Problem> {
    let given: TriageIn = wire::read(&body)?;
    let (now, number) = (app.engine.now(), number(&name)?);
    let deed = given.deed(now)?;
    let act = caller.act(given.requested_by, given.note);
    let group = app.engine.change_error_group(&caller.namespace, number, &deed, &act).await?;
    let view = GroupView::of(&app, &caller, std::slice::from_ref(&group), now).await?;
    Ok(Json(view.shown(&group)))
}
