//! Manual cleanup.

use std::sync::Arc;

use axum::extract::{Extension, State};
use axum::http::Method;
use axum::response::Json;
use axum::routing::post;
use bytes::Bytes;
use comeback_core::transition::Actor;
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::{Line, line};
use crate::App;
use crate::auth::{Caller, Need};
use crate::idempotency::IdempotencyKey;
use crate::openapi::{Doc, schema, schema_types};
use crate::problem::Problem;
use crate::wire::{self, DurationIn};

/// Routes of this module.
pub fn lines() -> Vec<Line> {
    let answer = schema::object([
        ("before", schema::about(schema::instant(), "Cutoff: only what ended before it.")),
        ("tasks", schema::about(schema::count(), "Number deleted, or to be deleted.")),
        ("more", schema::about(schema::flag(), "Whether there are more: repeat the request.")),
        ("dry_run", schema::flag()),
    ]);
    vec![
        line(
            Method::POST,
            "/api/v1/admin/cleanup",
            Need::AdministerAll,
            "Delete old tasks and executions",
            post(cleanup),
        )
        .doc(
            Doc::new("cleanUp")
                .about(
                    "Deletes tasks and executions that ended before the cutoff, in all namespaces, with their \
                     history. Open ones are never touched. A dry run only counts.",
                )
                .needs::<CleanupIn>()
                .example(json!({"older_than": "90d", "dry_run": true}))
                .once()
                .answers(answer),
        ),
    ]
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Cleanup)]
struct CleanupIn {
    /// Minimum age: at least one day.
    older_than: DurationIn,
    #[serde(default)]
    dry_run: bool,
    #[serde(default)]
    #[schema(value_type = Option<schema_types::NoteSchema>)]
    note: Option<String>,
}

async fn cleanup(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    idempotency: IdempotencyKey,
    body: Bytes,
) -> Result<Json<Value>, Problem> {
    let CleanupIn { older_than: DurationIn(age), dry_run, note } = wire::read(&body)?;
    let by = caller.act(None, note);
    app.engine.config().limits.check_act(&by)?;
    let shown = move |it: comeback_engine::Cleanup| json!({"before": it.before.to_rfc3339(), "tasks": it.tasks, "more": it.more});
    let told = move |mut answer: Value| {
        answer["dry_run"] = dry_run.into();
        Json(answer)
    };
    let (here, again) = (app.clone(), app.clone());
    let act = move |by: Actor| async move {
        let done = match dry_run {
            true => here.engine.preview_cleanup(age).await?,
            false => here.engine.cleanup(age, &by).await?,
        };
        Ok(told(shown(done)))
    };
    // A dry run has left nothing but what there is now.
    let done = move |kept: Option<Value>| async move {
        Ok(told(match kept {
            Some(kept) => kept,
            None => shown(again.engine.preview_cleanup(age).await?),
        }))
    };
    idempotency.run_once(&app, &caller.namespace, &body, by, act, done).await
}
