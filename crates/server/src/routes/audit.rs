//! The audit log: pages, and exports as JSON lines and CSV.

use std::collections::VecDeque;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Extension, RawQuery, State};
use axum::http::{Method, header};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;
use comeback_core::{Audit, AuditAction, Invalid, Timestamp};
use comeback_engine::store::{AuditQuery, Interactive, StoreError, interactive};
use futures_util::stream;
use serde_json::{Value, json};

use super::{AppState, CURSOR, LIMIT, Line, Query, line};
use crate::App;
use crate::auth::{Caller, Need};
use crate::openapi::{Doc, Param, schema};
use crate::problem::Problem;
use crate::wire::Page;

/// Routes of this module.
pub fn lines() -> Vec<Line> {
    let at = |path, summary, answer| line(Method::GET, path, Need::Administer, summary, answer);
    vec![
        at("/api/v1/admin/audit", "List the audit log", get(page)).doc(
            Doc::new("listActs")
                .about(
                    "Every act of a person or a program: actor, object, time, note, state before and after, and \
                     request id. Entries are never changed. Submits, leases and reports are not acts. Newest first.",
                )
                .query(PARAMETERS)
                .answers(schema::page(schema::named("ActLine"))),
        ),
        at("/api/v1/admin/audit/export.ndjson", "Export the audit log as JSON lines", get(as_lines))
            .doc(Doc::new("exportActs").query(FILTERS).answers_text(NDJSON)),
        at("/api/v1/admin/audit/export.csv", "Export the audit log as CSV", get(as_csv))
            .doc(Doc::new("exportActsAsCsv").query(FILTERS).answers_text(CSV)),
    ]
}

const NDJSON: &str = "application/x-ndjson";
const CSV: &str = "text/csv";

const PARAMETERS: &[Param] = &[
    Param::new("actor", "Actor: the name in the request, or the name or id of the key.", schema::text),
    Param::new("act", "Comma-separated acts: `task.retry`, or `task` for all acts on tasks.", schema::text),
    Param::new("subject", "Id or name of the object.", schema::text),
    Param::new("since", "Not before this instant.", schema::instant),
    Param::new("until", "Before this instant.", schema::instant),
    Param::new("all", "All namespaces; requires a key for all namespaces.", schema::flag),
    LIMIT,
    CURSOR,
];
const FILTERS: &[Param] = PARAMETERS.split_last().expect("a cursor").1.split_last().expect("a limit").1;

/// Entries about all namespaces are shown only to callers who may use all namespaces.
fn wanted(query: &Query, caller: &Caller) -> Result<AuditQuery, Problem> {
    let mut faults = Invalid::default();
    let mut did = Vec::new();
    for word in query.text("act").unwrap_or_default().split(',').filter(|word| !word.is_empty()) {
        let named = AuditAction::named(word);
        if named.is_empty() {
            faults.push("act", format!("unknown value `{word}`; must be one of {}", AuditAction::list()));
        }
        did.extend(named);
    }
    let mut instant = |name: &str| -> Option<Timestamp> {
        let text = query.text(name)?;
        Timestamp::parse_rfc3339(text).map_err(|error| faults.push(name, error.to_string())).ok()
    };
    let (since, until) = (instant("since"), instant("until"));
    faults.or(())?;
    let all = query.parse::<bool>("all")?.unwrap_or(false);
    if all && !caller.everywhere {
        return Err(Problem::forbidden(format!("this key is limited to the namespace `{}`", caller.namespace)));
    }
    let text = |name: &str| query.text(name).map(str::to_owned);
    Ok(AuditQuery {
        namespace: (!all).then(|| caller.namespace.clone()),
        house: caller.everywhere,
        did,
        actor: text("actor"),
        subject: text("subject"),
        since,
        until,
        after: None,
        limit: 0,
    })
}

/// JSON of an audit entry.
pub fn shown(it: &Audit) -> Value {
    let mut shown = json!({
        "id": it.id.to_string(),
        "at": it.at.to_rfc3339(),
        "namespace": it.namespace,
        "act": it.did.word(),
        "subject": it.subject,
        "actor": it.actor,
        "key": it.key,
        "key_id": it.key_id,
        "note": it.note,
        "request_id": it.request,
        "before": it.before,
        "after": it.after,
    });
    // Exports are streams, which the middleware does not mask.
    comeback_core::mask::mask(&mut shown);
    shown
}

async fn page(
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    RawQuery(query): RawQuery,
) -> Result<Json<Page<Value>>, Problem> {
    let query = Query::read(query.as_deref(), PARAMETERS)?;
    let (limit, after) = (query.limit()?, query.parse("cursor")?);
    let found = app.engine.audit(&AuditQuery { limit, after, ..wanted(&query, &caller)? }).await?;
    Ok(Json(Page::of(&found, limit, |it| it.id.to_string(), shown)))
}

async fn as_lines(
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    RawQuery(query): RawQuery,
) -> Result<Response, Problem> {
    let query = wanted(&Query::read(query.as_deref(), FILTERS)?, &caller)?;
    Ok(export(app, query, NDJSON, None, |it| format!("{}\n", shown(it))))
}

async fn as_csv(
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    RawQuery(query): RawQuery,
) -> Result<Response, Problem> {
    let query = wanted(&Query::read(query.as_deref(), FILTERS)?, &caller)?;
    let head = format!("{}\r\n", COLUMNS.join(","));
    Ok(export(app, query, CSV, Some(head), csv_line))
}

const COLUMNS: [&str; 12] =
    ["id", "at", "namespace", "act", "subject", "actor", "key", "note", "request_id", "before", "after", "key_id"];

/// A CSV cell (RFC 4180).
fn csv_line(it: &Audit) -> String {
    let shown = shown(it);
    let field = |name: &&str| match &shown[*name] {
        Value::Null => String::new(),
        Value::String(text) => quoted(text),
        other => quoted(&other.to_string()),
    };
    format!("{}\r\n", COLUMNS.iter().map(field).collect::<Vec<_>>().join(","))
}

/// Escapes a cell that a spreadsheet would take for a formula.
fn quoted(text: &str) -> String {
    let text = comeback_core::spreadsheet::cell(text);
    let plain = !text.contains(['"', ',', '\r', '\n']);
    if plain { text.into_owned() } else { format!("\"{}\"", text.replace('"', "\"\"")) }
}

/// Entries per read of an export.
const STRETCH: u32 = 500;

struct Exporting {
    app: Arc<App>,
    query: AuditQuery,
    /// State of an export: it is read after the request has left its own scope.
    reads: Interactive,
    ready: VecDeque<String>,
    is_over: bool,
}

/// Streams page after page. A failed read ends the response early, which the client notices.
fn export(
    app: Arc<App>,
    query: AuditQuery,
    media: &'static str,
    head: Option<String>,
    told: fn(&Audit) -> String,
) -> Response {
    let query = AuditQuery { limit: STRETCH, ..query };
    let reads = Interactive::current().unwrap_or_else(|| app.engine.interactive("*"));
    let start = Exporting { app, query, reads, ready: head.into_iter().collect(), is_over: false };
    let lines = stream::try_unfold(start, move |mut it| async move {
        if it.ready.is_empty() && !it.is_over {
            let found = interactive(it.reads.clone(), it.app.engine.store().audit(&it.query)).await?;
            it.is_over = found.len() < STRETCH as usize;
            it.query.after = found.last().map(|last| last.id);
            it.ready.extend(found.iter().map(told));
        }
        let part: String = it.ready.drain(..).collect();
        Ok::<_, StoreError>((!part.is_empty()).then_some((part, it)))
    });
    ([(header::CONTENT_TYPE, media)], Body::from_stream(lines)).into_response()
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn what_would_break_a_line_is_quoted() {
        assert_eq!(quoted("ana"), "ana");
        assert_eq!(quoted("=HYPERLINK(\"http://evil\",\"x\")"), "\"'=HYPERLINK(\"\"http://evil\"\",\"\"x\"\")\"");
        assert_eq!(quoted("-5"), "-5");
        assert_eq!(quoted("a, \"b\"\nc"), "\"a, \"\"b\"\"\nc\"");
    }
}
