//! Cleanup by hand.

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
use crate::once::Once;
use crate::openapi::{Doc, schema, stands_for};
use crate::problem::Problem;
use crate::wire::{self, Span};

pub fn lines() -> Vec<Line> {
    let answer = schema::object([
        ("before", schema::about(schema::instant(), "What ended before this.")),
        ("tasks", schema::about(schema::count(), "How many were forgotten, or would be.")),
        ("more", schema::about(schema::flag(), "Whether there is more: ask again.")),
        ("dry_run", schema::flag()),
    ]);
    vec![
        line(Method::POST, "/api/v1/admin/cleanup", Need::AdministerAll, "Forget what ended long ago", post(cleanup)).doc(
            Doc::new("cleanUp")
                .about(
                    "Tasks and executions that ended so long ago, in all namespaces, with their history; what is open is never \
                     touched. A dry run only counts them.",
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
    /// A day or more.
    older_than: Span,
    #[serde(default)]
    dry_run: bool,
    #[serde(default)]
    #[schema(value_type = Option<stands_for::Note>)]
    note: Option<String>,
}

async fn cleanup(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    once: Once,
    body: Bytes,
) -> Result<Json<Value>, Problem> {
    let CleanupIn { older_than: Span(age), dry_run, note } = wire::read(&body)?;
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
    once.guard(&app, &caller.namespace, &body, by, act, done).await
}
