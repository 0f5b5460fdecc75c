//! Keys: made, listed and revoked. The secret is shown once, in the answer that makes it.

use std::sync::Arc;

use axum::extract::{Extension, Path, State};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{delete, get, post};
use bytes::Bytes;
use comeback_core::Invalid;
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::{Line, line};
use crate::App;
use crate::auth::{self, Caller, Need, NewKey, Role};
use crate::once::Once;
use crate::openapi::{Doc, schema, stands_for};
use crate::problem::Problem;
use crate::wire::{self, Span};

pub fn lines() -> Vec<Line> {
    vec![
        line(Method::GET, "/api/v1/keys", Need::Administer, "The keys, without their secrets", get(list))
            .doc(Doc::new("listKeys").answers(schema::page(schema::named("Key")))),
        line(Method::POST, "/api/v1/keys", Need::Administer, "Make a key", post(create)).doc(
            Doc::new("createKey")
                .about("Once there is one, every request needs one; so the first must be an admin's.")
                .needs::<KeyIn>()
                .once()
                .example(json!({"role": "admin", "namespace": "*", "name": "ops", "expires_in": "90d"}))
                .creates(schema::named("NewKey")),
        ),
        line(Method::DELETE, "/api/v1/keys/{id}", Need::Administer, "Revoke a key", delete(revoke))
            .doc(Doc::new("revokeKey").answers_nothing().problems(&["not-found"])),
    ]
}

async fn list(State(app): State<Arc<App>>) -> Json<Value> {
    let items: Vec<Value> = app.keys.all().iter().map(|key| key.shown()).collect();
    Json(json!({"items": items, "next_cursor": null}))
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = KeyRequest)]
struct KeyIn {
    #[schema(value_type = stands_for::Role)]
    role: String,
    /// `default` where nothing is said; `*` for all of them.
    #[serde(default)]
    #[schema(value_type = Option<stands_for::Name>)]
    namespace: Option<String>,
    #[serde(default)]
    #[schema(value_type = Option<stands_for::Name>)]
    name: Option<String>,
    #[serde(default)]
    expires_in: Option<Span>,
}

/// The secret is in the first answer only: who comes again under the same key is told which key was made.
async fn create(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    once: Once,
    body: Bytes,
) -> Result<Response, Problem> {
    let given: KeyIn = wire::read(&body)?;
    let id = auth::key_id(once.key().map(|key| (caller.namespace.as_str(), key)))?;
    let again = async {
        let all = app.keys.all();
        let made = all.iter().find(|key| key.id == id).ok_or_else(|| Problem::not_found("key"))?;
        Ok((StatusCode::CREATED, Json(made.shown())).into_response())
    };
    once.guard(&app, &caller.namespace, &body, make(&app, given, id.clone()), again).await
}

async fn make(app: &App, given: KeyIn, id: String) -> Result<Response, Problem> {
    let role = Role::from_word(&given.role)
        .ok_or_else(|| Invalid::one("role", "must be one of viewer, worker, submitter, operator, admin"))?;
    let namespace = given.namespace.unwrap_or_else(|| "default".into());
    let (limits, mut faults) = (&app.engine.config().limits, Invalid::default());
    limits.check_name("namespace", &namespace, &mut faults);
    if let Some(name) = &given.name {
        limits.check_name("name", name, &mut faults);
    }
    faults.or(())?;
    if app.keys.is_empty() && role != Role::Admin {
        return Err(Invalid::one("role", "the first key must be an admin's, or nobody could make another").into());
    }
    let new = NewKey { name: given.name, role, namespace, valid_for: given.expires_in.map(|Span(span)| span) };
    let (key, secret) = app.keys.create_as(&**app.engine.store(), id, new, app.engine.now()).await?;
    let mut shown = key.shown();
    shown["key"] = secret.into();
    Ok((StatusCode::CREATED, Json(shown)).into_response())
}

async fn revoke(State(app): State<Arc<App>>, Path(id): Path<String>) -> Result<Response, Problem> {
    let found = app.keys.revoke(&**app.engine.store(), &id, app.engine.now()).await?;
    if found { Ok(StatusCode::NO_CONTENT.into_response()) } else { Err(Problem::not_found("key")) }
}
