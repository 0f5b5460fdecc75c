//! Manual retries of jobs, as the API of a metered service has them (dialect `job`).

use std::sync::Arc;

use axum::extract::{Extension, Path, State};
use axum::http::Method;
use axum::response::Json;
use axum::routing::post;
use bytes::Bytes;
use comeback_core::filter::{Filter, Pattern, Sort, Test, TextField};
use comeback_core::{State as TaskState, TaskId};
use comeback_engine::store::ListQuery;
use comeback_engine::{ActorRequest, CommandError, ManualRetry};
use comeback_server::route::{Caller, Doc, IdempotencyKey, Line, Need, line, read_body, schema, schema_types};
use comeback_server::{App, Problem};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::errors;

/// Lines of the route table.
pub fn lines() -> Vec<Line> {
    let at = |path, id| {
        let answer = schema::object([
            ("jobId", schema::text()),
            ("message", schema::text()),
            ("queuePosition", schema::nullable(schema::count())),
        ]);
        let doc = Doc::new(id)
            .about("A job that failed, waits for its retry or is stuck begins anew, with all its retries.")
            .takes::<RetryIn>()
            .example(json!({"requestedBy": "user123"}))
            .once()
            .answers(answer)
            .problems(&["not-found", "wrong-state", "conflict", "dedupe-key-taken", "insufficient-credits"]);
        line(Method::POST, path, Need::Operate, "Retry a job by hand", post(retry)).errors(&errors::JOB).doc(doc)
    };
    vec![at("/api/v1/jobs/{id}/retry", "retryJob"), at("/api/v1/screenshots/{id}/retry", "retryScreenshot")]
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[schema(as = JobRetry)]
struct RetryIn {
    /// Kept as a note; who acts is who holds the key.
    #[serde(default)]
    #[schema(value_type = Option<schema_types::NameSchema>)]
    requested_by: Option<String>,
}

async fn retry(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    once: IdempotencyKey,
    body: Bytes,
) -> Result<Json<Value>, Problem> {
    let given: RetryIn = read_body(&body)?;
    let mut faults = comeback_core::Invalid::default();
    if let Some(by) = &given.requested_by {
        app.engine.config().limits.check_name("requestedBy", by, &mut faults);
    }
    faults.or(())?;
    let note = given.requested_by.as_ref().map(|by| format!("requested by {by}"));
    let act = caller.act(caller.key.clone().or(given.requested_by), note);
    let id = find(&app, &caller.namespace, &name).await?;
    let deed = ActorRequest { act, once: once.with_body(&app, &body)? };
    let retried =
        match app.engine.retry(&caller.namespace, id, ManualRetry { request: deed, ..ManualRetry::default() }).await {
            Ok(retried) => retried,
            Err(error) => return Err(refusal(error)),
        };
    Ok(Json(json!({
        "jobId": name,
        "message": "Job queued for manual retry",
        "queuePosition": retried.queue_position,
    })))
}

/// The error in the words of this dialect.
fn refusal(error: CommandError) -> Problem {
    let (error, words) = match error {
        // A worker has it.
        CommandError::WrongState { state, .. } if state.is_active() => (CommandError::Conflict, BUSY),
        CommandError::Conflict => (error, BUSY),
        // A failed job is refused for another reason, which the error has.
        CommandError::WrongState { state, .. } if !matches!(state, TaskState::Failed | TaskState::Dead) => {
            (error, NOT_FAILED)
        }
        error => return error.into(),
    };
    let mut problem = Problem::from(error);
    problem.detail = words.into();
    problem
}

const BUSY: &str = "Job is currently being processed by another worker";
const NOT_FAILED: &str = "Job must be in FAILED status or stuck (>30 min processing)";

/// The task with this id or external id.
async fn find(app: &App, namespace: &str, name: &str) -> Result<TaskId, Problem> {
    if let Ok(id) = Uuid::try_parse(name) {
        return Ok(TaskId(id));
    }
    if name.contains('\0') || name.len() > app.engine.config().limits.name_bytes {
        return Err(Problem::not_found("job"));
    }
    let any = vec![Pattern { text: name.to_owned(), prefix: false }];
    let filter = Filter::default().and(Test::Text { field: TextField::ExternalId, any });
    let query = ListQuery { filter, sort: Sort::SubmittedDesc, limit: 1, after: None, now: app.engine.now() };
    let found = app.engine.store().list(namespace, &query).await?;
    found.items.first().map(|it| it.stored.task.id).ok_or_else(|| Problem::not_found("job"))
}
