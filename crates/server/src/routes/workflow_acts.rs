//! Activate, deactivate, pause, resume and roll back workflows.

use axum::extract::{Extension, Path, State};
use axum::http::Method;
use axum::response::Json;
use axum::routing::post;
use bytes::Bytes;
use comeback_core::transition::Actor;
use comeback_core::workflow::WorkflowAct;
use comeback_core::{AuditAction, Invalid};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::workflows::{find, is_path, put_shown, put_text, standing_shown};
use super::{AppState, Line, line};
use crate::auth::{Caller, Need};
use crate::idempotency::IdempotencyKey;
use crate::openapi::{Doc, schema, schema_types};
use crate::problem::Problem;
use crate::wire::{self, NoteIn};

/// Routes of this module.
pub fn lines() -> Vec<Line> {
    let act = |id, about| {
        let doc = Doc::new(id).takes::<NoteIn>().about(about).example(json!({"note": "the warehouse moves"})).once();
        doc.answers(schema::named("WorkflowStanding")).problems(&["not-found", "conflict"])
    };
    let (on, off) =
        ("Schedules and callers can start it again.", "Its schedules are `stopped`, and it cannot be started.");
    let hold = "Its schedules are `paused`, and it cannot be started; running executions continue.";
    let again = "Runs missed during the pause are not caught up.";
    vec![
        line(Method::POST, "/api/v1/workflows/{path}/activate", Need::Operate, "Activate a workflow", post(activate))
            .doc(act("activateWorkflow", on)),
        line(
            Method::POST,
            "/api/v1/workflows/{path}/deactivate",
            Need::Operate,
            "Deactivate a workflow",
            post(deactivate),
        )
        .doc(act("deactivateWorkflow", off)),
        line(Method::POST, "/api/v1/workflows/{path}/pause", Need::Operate, "Pause a workflow", post(pause))
            .doc(act("pauseWorkflow", hold).problems(&["wrong-state"])),
        line(Method::POST, "/api/v1/workflows/{path}/resume", Need::Operate, "Resume a workflow", post(resume))
            .doc(act("resumeWorkflow", again).problems(&["wrong-state"])),
        line(
            Method::POST,
            "/api/v1/workflows/{path}/rollback",
            Need::Operate,
            "Roll back to an older version",
            post(rollback),
        )
        .doc(
            Doc::new("rollbackWorkflow")
                .about("Its text becomes the newest version; versions in between are kept.")
                .needs::<RollbackIn>()
                .example(json!({"version": 1, "note": "2 loses a step"}))
                .once()
                .answers(schema::named("WorkflowVersion"))
                .problems(&["not-found", "conflict"]),
        ),
    ]
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Rollback)]
struct RollbackIn {
    #[schema(minimum = 1, maximum = 2147483647)]
    version: u32,
    #[serde(default)]
    #[schema(value_type = Option<schema_types::NoteSchema>)]
    note: Option<String>,
}

macro_rules! acts {
    ($($verb:ident $what:ident),+) => {
        $(async fn $verb(
            State(app): AppState,
            Extension(caller): Extension<Caller>,
            Path(path): Path<String>,
            idempotency: IdempotencyKey,
            body: Bytes,
        ) -> Result<Json<Value>, Problem> {
            let given: NoteIn = wire::read(&body)?;
            is_path(&path).map_err(|_| Problem::not_found("workflow"))?;
            let by = caller.act(None, given.note);
            let (here, again) = (app.clone(), app.clone());
            let (namespace, other, called) = (caller.namespace.clone(), caller.namespace.clone(), path.clone());
            let act = move |by: Actor| async move {
                let standing = here.engine.change_workflow(&namespace, &path, WorkflowAct::$what, &by).await?;
                Ok(Json(standing_shown(&standing)))
            };
            let as_it_is = move |_| async move {
                Ok(Json(standing_shown(&again.engine.workflow_standing(&other, &called).await?)))
            };
            idempotency.run_once(&app, &caller.namespace, &body, by, act, as_it_is).await
        })+
    };
}

acts!(activate Activate, deactivate Deactivate, pause Pause, resume Resume);

async fn rollback(
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    Path(path): Path<String>,
    idempotency: IdempotencyKey,
    body: Bytes,
) -> Result<Json<Value>, Problem> {
    let given: RollbackIn = wire::read(&body)?;
    if given.version == 0 || i32::try_from(given.version).is_err() {
        return Err(Invalid::one("version", "must be a version: 1 or more").into());
    }
    let by = caller.act(None, given.note);
    app.engine.config().limits.check_act(&by)?;
    let old = find(&app, &caller, &path, Some(given.version)).await?;
    app.catalog.read(&app.engine, &caller.namespace, &old.body).await?;
    let (here, again, whose) = (app.clone(), app.clone(), caller.clone());
    let (namespace, called) = (caller.namespace.clone(), path.clone());
    let act = move |by: Actor| async move {
        let entry = here.engine.entry(AuditAction::WorkflowRollback, &path, &by).within(&namespace);
        let (version, created) = put_text(&here, &old.body, entry).await?;
        Ok(Json(put_shown(&path, version, created, &[])))
    };
    let made = move |kept: Option<Value>| async move {
        let version = kept.and_then(|kept| u32::try_from(kept["version"].as_u64()?).ok());
        Ok(Json(match version {
            Some(version) => put_shown(&called, version, true, &[]),
            None => put_shown(&called, find(&again, &whose, &called, None).await?.version, false, &[]),
        }))
    };
    idempotency.run_once(&app, &caller.namespace, &body, by, act, made).await
}
