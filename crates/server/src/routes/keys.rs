//! Keys: made, listed and revoked. The secret is shown once, in the answer that makes it.

use std::sync::Arc;

use axum::extract::{Extension, Path, State};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{delete, get, post};
use bytes::Bytes;
use comeback_core::Invalid;
use comeback_core::transition::Act;
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
    let caller = schema::object([
        ("role", schema::named("Role")),
        ("namespace", schema::text()),
        ("key", schema::nullable(schema::text())),
        ("everywhere", schema::flag()),
        ("open", schema::flag()),
    ]);
    vec![
        line(Method::GET, "/api/v1/me", Need::Read, "Who asks, and what they may", get(me)).doc(
            Doc::new("getMe")
                .about("`everywhere`: the key is good for all namespaces. `open`: there are no keys, and everybody on this machine is an admin.")
                .answers(caller),
        ),
        line(Method::GET, "/api/v1/keys", Need::Administer, "The keys, without their secrets", get(list))
            .doc(Doc::new("listKeys").answers(schema::page(schema::named("Key")))),
        line(Method::POST, "/api/v1/keys", Need::Administer, "Make a key", post(create)).doc(
            Doc::new("createKey")
                .about(
                    "Once there is one, every request needs one; so the first must be an admin's, for `*`. An admin of one \
                     namespace makes keys for that one only.",
                )
                .needs::<KeyIn>()
                .once()
                .example(json!({"role": "admin", "namespace": "*", "name": "ops", "expires_in": "90d"}))
                .creates(schema::named("NewKey")),
        ),
        line(Method::DELETE, "/api/v1/keys/{id}", Need::Administer, "Revoke a key", delete(revoke))
            .doc(Doc::new("revokeKey").answers_nothing().problems(&["not-found"])),
    ]
}

async fn me(Extension(caller): Extension<Caller>) -> Json<Value> {
    Json(json!({
        "role": caller.role.word(),
        "namespace": caller.namespace,
        "key": caller.key,
        "everywhere": caller.everywhere,
        "open": caller.key.is_none(),
    }))
}

async fn list(State(app): State<Arc<App>>, Extension(caller): Extension<Caller>) -> Json<Value> {
    let items: Vec<Value> = app.keys.all().iter().filter(|key| caller.governs(key)).map(|key| key.shown()).collect();
    Json(json!({"items": items, "next_cursor": null}))
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = KeyRequest)]
struct KeyIn {
    #[schema(value_type = stands_for::Role)]
    role: String,
    /// `*` for all of them. Where nothing is said: that of the key that asks, if it is bound to one; else `*` for an admin,
    /// `default` for the others.
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
    let role = Role::from_word(&given.role)
        .ok_or_else(|| Invalid::one("role", "must be one of viewer, worker, submitter, operator, admin"))?;
    let namespace = given.namespace.clone().unwrap_or_else(|| match caller.everywhere {
        true => auth::default_namespace(role).to_owned(),
        false => caller.namespace.clone(),
    });
    if !caller.everywhere && namespace != caller.namespace {
        let detail = format!("this key makes keys for the namespace `{}` only", caller.namespace);
        return Err(Problem::forbidden(detail));
    }
    let id = auth::key_id(once.key().map(|key| (caller.namespace.as_str(), namespace.as_str(), key)))?;
    let (all, made) = (app.clone(), id.clone());
    let again = async move {
        let all = all.keys.all();
        let made = all.iter().find(|key| key.id == made).ok_or_else(|| Problem::not_found("key"))?;
        Ok((StatusCode::CREATED, Json(made.shown())).into_response())
    };
    once.guard(
        &app,
        &caller.namespace,
        &body,
        make(app.clone(), given, role, namespace, id, caller.act(None, None)),
        again,
    )
    .await
}

async fn make(
    app: Arc<App>,
    given: KeyIn,
    role: Role,
    namespace: String,
    id: String,
    act: Act,
) -> Result<Response, Problem> {
    let (limits, mut faults) = (&app.engine.config().limits, Invalid::default());
    limits.check_name("namespace", &namespace, &mut faults);
    if let Some(name) = &given.name {
        limits.check_name("name", name, &mut faults);
    }
    faults.or(())?;
    if app.keys.is_empty() && role != Role::Admin {
        return Err(Invalid::one("role", "the first key must be an admin's, or nobody could make another").into());
    }
    if app.keys.is_empty() && namespace != auth::EVERYWHERE {
        let why = "the first key must be for `*`, or nobody could make one for another namespace";
        return Err(Invalid::one("namespace", why).into());
    }
    let new = NewKey { name: given.name, role, namespace, valid_for: given.expires_in.map(|Span(span)| span) };
    let (key, secret) = app.keys.create_as(&**app.engine.store(), id, new, &act, app.engine.now()).await?;
    let mut shown = key.shown();
    shown["key"] = secret.into();
    Ok((StatusCode::CREATED, Json(shown)).into_response())
}

async fn revoke(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let may = |key: &auth::Key| caller.governs(key);
    let found = app.keys.revoke(&**app.engine.store(), &id, may, &caller.act(None, None), app.engine.now()).await?;
    if found { Ok(StatusCode::NO_CONTENT.into_response()) } else { Err(Problem::not_found("key")) }
}
