//! The workflow catalog: immutable versions.

use axum::extract::{Extension, Path, RawQuery, State};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, put};
use bytes::Bytes;
use comeback_core::workflow::WorkflowState;
use comeback_core::{Audit, AuditAction, Invalid, workflow};
use comeback_engine::flow::{WORKFLOWS, WorkflowStanding};
use comeback_engine::store::{Collection, Document};
use serde_json::{Value, json};

use super::{AppState, CURSOR, LIMIT, Line, Query, line};
use crate::auth::{Caller, Need};
use crate::openapi::{Doc, Param, schema, schema_types};
use crate::problem::Problem;
use crate::wire::{self, Page};
use crate::{App, mask};

/// Routes of this module.
pub fn lines() -> Vec<Line> {
    let one = "/api/v1/workflows/{path}";
    let whole = || schema::named("Workflow");
    let example = json!({"name": "nightly", "input": {"file": "a.csv"}, "steps": {
        "extract": {"kind": "etl.extract", "payload": {"file": "{{ input.file }}"}, "retry": 5},
        "load": {"needs": ["extract"], "foreach": "{{ steps.extract.result.parts }}", "payload": "{{ item }}"},
    }});
    let about_one = |id| Doc::new(id).problems(&["not-found"]);
    vec![
        line(Method::GET, "/api/v1/workflows", Need::Read, "List workflows", get(list)).doc(
            Doc::new("listWorkflows").query(&[LIMIT, CURSOR]).answers(schema::page(schema::named("WorkflowLine"))),
        ),
        line(Method::PUT, one, Need::Operate, "Create or update a workflow", put(store)).doc(
            Doc::new("putWorkflow")
                .about(
                    "YAML (`content-type: application/yaml`) or JSON. An unchanged text creates no new version. \
                     Faults are reported with line and column. A slash in the path is written `%2F`.",
                )
                .query(&[IMPORT])
                .needs::<schema_types::WorkflowDocumentSchema>()
                .example(example)
                .answers(schema::named("WorkflowVersion"))
                .also(201)
                .problems(&["conflict"]),
        ),
        line(Method::GET, one, Need::Read, "Get the newest version of a workflow", get(newest))
            .doc(about_one("getWorkflow").answers(whole())),
        line(
            Method::GET,
            "/api/v1/workflows/{path}/versions",
            Need::Read,
            "List the versions of a workflow",
            get(versions),
        )
        .doc(about_one("listWorkflowVersions").query(&[LIMIT]).answers(schema::page(schema::named("WorkflowLine")))),
        line(
            Method::GET,
            "/api/v1/workflows/{path}/versions/{version}",
            Need::Read,
            "Get a version of a workflow",
            get(version),
        )
        .doc(about_one("getWorkflowVersion").answers(whole())),
        line(Method::GET, "/api/v1/workflows/{path}/diff", Need::Read, "Compare two versions of a workflow", get(diff))
            .doc(about_one("diffWorkflow").query(DIFF).answers(schema::named("WorkflowDiff"))),
        line(Method::GET, "/workflow.schema.json", Need::Nothing, "JSON schema of workflows", get(schema_of))
            .doc(Doc::new("getWorkflowSchema").answers(schema::anything())),
    ]
}

const IMPORT: Param = Param::new(
    "import",
    "`true` for an old document: an unknown strategy becomes `immediate`, with a warning.",
    schema::flag,
);

const DIFF: &[Param] = &[
    Param::new("from", "A version; default: the one before `to`.", || schema::between(1, 2_147_483_647)),
    Param::new("to", "A version; default: the newest.", || schema::between(1, 2_147_483_647)),
];

fn shelf(caller: &Caller) -> Collection<'_> {
    Collection { namespace: &caller.namespace, shelf: WORKFLOWS }
}

/// Refuses an invalid workflow path.
pub fn is_path(path: &str) -> Result<(), Problem> {
    is_path_at("path", path)
}

/// Checks a path given under another field name.
pub fn is_path_at(field: &str, path: &str) -> Result<(), Problem> {
    let known = |part: &str| {
        !part.is_empty() && part.chars().all(|it| it.is_ascii_alphanumeric() || matches!(it, '_' | '-' | '.'))
    };
    if path.len() <= 200 && path.split('/').all(known) {
        return Ok(());
    }
    let message =
        "must be names of letters, digits, `_`, `-` and `.` with slashes between them, 200 characters at most";
    Err(Invalid::one(field, message).into())
}

async fn store(
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    Path(path): Path<String>,
    RawQuery(query): RawQuery,
    body: Bytes,
) -> Result<Response, Problem> {
    let query = Query::read(query.as_deref(), &[IMPORT])?;
    is_path(&path)?;
    let text = std::str::from_utf8(&body).map_err(|_| Problem::bad_request("the body is not UTF-8"))?;
    let (text, warnings) = match query.parse("import")? {
        Some(true) => workflow::import(text)?,
        _ => (text.to_owned(), Vec::new()),
    };
    let (source, _) = app.catalog.read(&app.engine, &caller.namespace, &text).await?;
    mask::refuse_sent_back("", &source.written_value())?;
    let mut entry =
        app.engine.entry(AuditAction::WorkflowPut, &path, &caller.act(None, None)).within(&caller.namespace);
    if !warnings.is_empty() {
        entry.after = Some(json!({"warnings": warnings}));
    }
    let (version, created) = put_text(&app, &text, entry).await?;
    let status = if created { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(put_shown(&path, version, created, &warnings))).into_response())
}

/// Response of a put.
pub fn put_shown(path: &str, version: u32, created: bool, warnings: &[workflow::Problem]) -> Value {
    json!({"path": path, "version": version, "created": created, "warnings": warnings})
}

/// Stores a text as the newest version, unless it equals the newest one: then nothing is created.
pub async fn put_text(app: &App, text: &str, entry: Audit) -> Result<(u32, bool), Problem> {
    let namespace = entry.namespace.clone().unwrap_or_default();
    let path = entry.subject.clone();
    let (store, shelf, path) =
        (app.engine.store(), Collection { namespace: &namespace, shelf: WORKFLOWS }, path.as_str());
    // Another request may put the next version at the same time; then ours comes after it.
    for _ in 0..10 {
        let newest = store.document(shelf, path, None).await?;
        if let Some(newest) = newest.as_ref().filter(|newest| newest.body == text) {
            return Ok((newest.version, false));
        }
        let known = newest.map_or(0, |newest| newest.version);
        let version = |version: u32| (version > 0).then(|| json!({"version": version}));
        let mut after = version(known + 1).unwrap_or_default();
        if let Some(Value::Object(more)) = &entry.after {
            after.as_object_mut().into_iter().for_each(|it| it.extend(more.clone()));
        }
        let entry = entry.clone().changed(version(known), Some(after)).answered(json!({"version": known + 1}));
        if store.put_document(shelf, path, known, text, Some(&entry), app.engine.now()).await? {
            return Ok((known + 1, true));
        }
    }
    Err(comeback_engine::CommandError::Conflict.into())
}

/// JSON of a version, with the state of the workflow.
fn head(document: &Document, state: WorkflowState) -> Value {
    json!({
        "path": document.name,
        "version": document.version,
        "state": state.word(),
        "created_at": document.at.to_rfc3339(),
    })
}

/// Source of a version: unmasked for callers who may replace it, masked for all others.
async fn whole(app: &App, caller: &Caller, document: &Document) -> Result<Response, Problem> {
    let standing = app.engine.workflow_standing(&document.namespace, &document.name).await?;
    let mut shown = head(document, standing.state);
    shown["standing"] = standing_shown(&standing);
    shown["workflow"] = match workflow::read(&document.body) {
        Ok(source) => app.catalog.shown(&document.namespace, &source.workflow).await?,
        Err(_) => Value::Null,
    };
    comeback_core::mask::mask(&mut shown);
    shown["source"] = match caller.role.may(Need::Operate) {
        true => document.body.clone().into(),
        false => workflow::masked_source(&document.body).into(),
    };
    let mut response = Json(shown).into_response();
    response.extensions_mut().insert(mask::Masked);
    Ok(response)
}

/// JSON of the state of a workflow: since when and why.
pub fn standing_shown(standing: &WorkflowStanding) -> Value {
    json!({
        "state": standing.state.word(),
        "since": wire::instant(standing.since),
        "note": standing.note,
        "by": standing.by,
    })
}

async fn list(
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, Problem> {
    let query = Query::read(query.as_deref(), &[LIMIT, CURSOR])?;
    let limit = query.limit()?;
    let after = query.text("cursor").unwrap_or_default();
    let found = app.engine.store().documents(shelf(&caller), after, limit).await?;
    let standings = app.engine.workflow_standings(&caller.namespace, after, limit).await?;
    let state = |it: &Document| standings.get(&it.name).map_or(WorkflowState::Active, |standing| standing.state);
    Ok(Json(json!(Page::of(&found, limit, |it| it.name.clone(), |it| head(it, state(it))))))
}

/// A version of a workflow, or the newest one.
pub async fn find(app: &App, caller: &Caller, path: &str, version: Option<u32>) -> Result<Document, Problem> {
    if is_path(path).is_err() {
        return Err(Problem::not_found("workflow"));
    }
    let found = app.engine.store().document(shelf(caller), path, version).await?;
    found.ok_or_else(|| Problem::not_found("workflow"))
}

async fn newest(
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    Path(path): Path<String>,
) -> Result<Response, Problem> {
    whole(&app, &caller, &find(&app, &caller, &path, None).await?).await
}

async fn version(
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    Path((path, version)): Path<(String, String)>,
) -> Result<Response, Problem> {
    let version: u32 = version.parse().map_err(|_| Problem::not_found("workflow"))?;
    let version = i32::try_from(version).map_err(|_| Problem::not_found("workflow"))?;
    whole(&app, &caller, &find(&app, &caller, &path, Some(version.cast_unsigned())).await?).await
}

async fn versions(
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    Path(path): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, Problem> {
    let query = Query::read(query.as_deref(), &[LIMIT])?;
    let newest = find(&app, &caller, &path, None).await?;
    let found = app.engine.store().versions(shelf(&caller), &newest.name, query.limit()?).await?;
    if found.is_empty() {
        return Err(Problem::not_found("workflow"));
    }
    let state = app.engine.workflow_standing(&caller.namespace, &newest.name).await?.state;
    let items = found.iter().map(|it| head(it, state)).collect::<Vec<_>>();
    Ok(Json(json!(Page { items, next_cursor: None })))
}

async fn diff(
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    Path(path): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, Problem> {
    let query = Query::read(query.as_deref(), DIFF)?;
    let number = |name: &str| -> Result<Option<u32>, Problem> {
        match query.parse::<i32>(name)? {
            Some(number) if number < 1 => Err(Invalid::one(name, "must be 1 or more").into()),
            number => Ok(number.map(i32::cast_unsigned)),
        }
    };
    let (from, to) = (number("from")?, number("to")?);
    let after = find(&app, &caller, &path, to).await?;
    let from = from.unwrap_or_else(|| after.version.saturating_sub(1).max(1));
    let before = find(&app, &caller, &path, Some(from)).await?;
    let read = |document: &Document| workflow::read(&document.body).map_err(Problem::from);
    let differences = workflow::diff(&read(&before)?.workflow, &read(&after)?.workflow);
    let differences: Vec<Value> =
        differences.iter().map(|it| json!({"path": it.path, "before": it.before, "after": it.after})).collect();
    Ok(Json(json!({"path": path, "from": before.version, "to": after.version, "differences": differences})))
}

async fn schema_of() -> Json<Value> {
    Json(workflow::schema())
}
