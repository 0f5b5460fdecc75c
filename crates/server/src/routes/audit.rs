//! What was done from outside, by whom: in pages, and whole for other programs.

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

use super::{CURSOR, LIMIT, Line, Query, line};
use crate::App;
use crate::auth::{Caller, Need};
use crate::openapi::{Doc, Param, schema};
use crate::problem::Problem;
use crate::wire::Page;

pub fn lines() -> Vec<Line> {
    let at = |path, summary, answer| line(Method::GET, path, Need::Administer, summary, answer);
    vec![
        at("/api/v1/admin/audit", "What was done from outside, newest first", get(page)).doc(
            Doc::new("listActs")
                .about(
                    "Every act of a person or a program: who, on what, when, why, as it was before and after, and the request \
                     that asked for it. What is written stays. Submits, leases and reports are no acts.",
                )
                .query(PARAMETERS)
                .answers(schema::page(schema::named("ActLine"))),
        ),
        at("/api/v1/admin/audit/export.ndjson", "All of it, one line of JSON each", get(as_lines)).doc(
            Doc::new("exportActs").query(FILTERS).answers_text(NDJSON),
        ),
        at("/api/v1/admin/audit/export.csv", "All of it, for a spreadsheet", get(as_csv))
            .doc(Doc::new("exportActsAsCsv").query(FILTERS).answers_text(CSV)),
    ]
}

const NDJSON: &str = "application/x-ndjson";
const CSV: &str = "text/csv";

const PARAMETERS: &[Param] = &[
    Param::new("actor", "Who it was, by the name they said, or by the name or id of their key.", schema::text),
    Param::new(
        "act",
        "Only these, with commas between them: `task.retry`, or `task` for everything done to tasks.",
        schema::text,
    ),
    Param::new("subject", "What it was done to: an id, or a name.", schema::text),
    Param::new("since", "Not before this instant.", schema::instant),
    Param::new("until", "Before this instant.", schema::instant),
    Param::new("all", "In all namespaces; for keys that are good for all of them.", schema::flag),
    LIMIT,
    CURSOR,
];
const FILTERS: &[Param] = PARAMETERS.split_last().expect("a cursor").1.split_last().expect("a limit").1;

type Shared = State<Arc<App>>;

/// What concerns all namespaces is for those to whom all are open.
fn wanted(query: &Query, caller: &Caller) -> Result<AuditQuery, Problem> {
    let mut faults = Invalid::default();
    let mut did = Vec::new();
    for word in query.text("act").unwrap_or_default().split(',').filter(|word| !word.is_empty()) {
        let named = AuditAction::named(word);
        if named.is_empty() {
            faults.push("act", format!("`{word}` is none; there are {}", AuditAction::list()));
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
        return Err(Problem::forbidden(format!("this key sees the namespace `{}` only", caller.namespace)));
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
    // Exports are streams, which nobody masks after this.
    comeback_core::mask::mask(&mut shown);
    shown
}

async fn page(
    State(app): Shared,
    Extension(caller): Extension<Caller>,
    RawQuery(query): RawQuery,
) -> Result<Json<Page<Value>>, Problem> {
    let query = Query::read(query.as_deref(), PARAMETERS)?;
    let (limit, after) = (query.limit()?, query.parse("cursor")?);
    let found = app.engine.audit(&AuditQuery { limit, after, ..wanted(&query, &caller)? }).await?;
    Ok(Json(Page::of(&found, limit, |it| it.id.to_string(), shown)))
}

async fn as_lines(
    State(app): Shared,
    Extension(caller): Extension<Caller>,
    RawQuery(query): RawQuery,
) -> Result<Response, Problem> {
    let query = wanted(&Query::read(query.as_deref(), FILTERS)?, &caller)?;
    Ok(export(app, query, NDJSON, None, |it| format!("{}\n", shown(it))))
}

async fn as_csv(
    State(app): Shared,
    Extension(caller): Extension<Caller>,
    RawQuery(query): RawQuery,
) -> Result<Response, Problem> {
    let query = wanted(&Query::read(query.as_deref(), FILTERS)?, &caller)?;
    let head = format!("{}\r\n", COLUMNS.join(","));
    Ok(export(app, query, CSV, Some(head), csv_line))
}

const COLUMNS: [&str; 12] =
    ["id", "at", "namespace", "act", "subject", "actor", "key", "note", "request_id", "before", "after", "key_id"];

/// As RFC 4180 has it.
fn csv_line(it: &Audit) -> String {
    let shown = shown(it);
    let field = |name: &&str| match &shown[*name] {
        Value::Null => String::new(),
        Value::String(text) => quoted(text),
        other => quoted(&other.to_string()),
    };
    format!("{}\r\n", COLUMNS.iter().map(field).collect::<Vec<_>>().join(","))
}

/// A cell that no spreadsheet takes for a formula.
fn quoted(text: &str) -> String {
    let text = comeback_core::spreadsheet::cell(text);
    let plain = !text.contains(['"', ',', '\r', '\n']);
    if plain { text.into_owned() } else { format!("\"{}\"", text.replace('"', "\"\"")) }
}

/// Acts read from the database at a time.
const STRETCH: u32 = 500;

struct Exporting {
    app: Arc<App>,
    query: AuditQuery,
    /// The answer is read after the request has left its own scope.
    reads: Interactive,
    ready: VecDeque<String>,
    is_over: bool,
}

/// Page after page as the reader takes them; one that breaks off ends the answer early, which its reader notices.
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
