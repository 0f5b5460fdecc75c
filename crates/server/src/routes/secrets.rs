//! Named secrets: put, list without values, delete.

use axum::extract::{Extension, Path, RawQuery, State};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{delete, get, post, put};
use bytes::Bytes;
use comeback_engine::secrets::SecretView;
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::admin::NothingIn;
use super::{AppState, CURSOR, LIMIT, Line, Query, line};
use crate::auth::{Caller, Need};
use crate::openapi::{Doc, schema};
use crate::problem::Problem;
use crate::wire::{self, Page};

/// Routes of this module.
pub fn lines() -> Vec<Line> {
    let (all, one) = ("/api/v1/secrets", "/api/v1/secrets/{name}");
    let whole = || schema::named("Secret");
    let reencrypted = schema::object([
        ("key_id", schema::about(schema::text(), "Id of the current encryption key.")),
        ("reencrypted", schema::count()),
        ("unchanged", schema::count()),
        (
            "unreadable",
            schema::about(
                schema::list(schema::object([("namespace", schema::text()), ("name", schema::text())])),
                "Secrets that no key of this server can decrypt.",
            ),
        ),
    ]);
    vec![
        line(Method::GET, all, Need::Read, "List named secrets, without values", get(list))
            .doc(Doc::new("listSecrets").query(&[LIMIT, CURSOR]).answers(schema::page(whole()))),
        line(Method::GET, one, Need::Read, "Get a named secret, without its value", get(show))
            .doc(Doc::new("getSecret").answers(whole()).problems(&["not-found"])),
        line(Method::PUT, one, Need::Operate, "Create or update a named secret", put(replace)).doc(
            Doc::new("putSecret")
                .about(
                    "Calls, commands and subscriptions of this namespace refer to it as `{\"secret\": NAME}`. The \
                     value is stored encrypted, used when a call is made, and never shown.",
                )
                .needs::<SecretIn>()
                .example(json!({"value": "sk_test_51H8"}))
                .answers(whole())
                .also(201)
                .problems(&["quota-exceeded"]),
        ),
        line(Method::DELETE, one, Need::Operate, "Delete a named secret", delete(remove))
            .doc(Doc::new("deleteSecret").answers_nothing().problems(&["not-found"])),
        line(
            Method::POST,
            "/api/v1/secrets/reencrypt",
            Need::AdministerAll,
            "Re-encrypt all secrets with the newest key",
            post(reencrypt),
        )
        .doc(
            Doc::new("reencryptSecrets")
                .about(
                    "The first key that the server was started with encrypts, all of them decrypt. Afterwards the \
                     other keys are no longer needed.",
                )
                .takes::<NothingIn>()
                .answers(reencrypted),
        ),
    ]
}

/// The value of a named secret.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewSecret)]
struct SecretIn {
    /// The secret value; at most 16 KiB.
    #[schema(min_length = 1, max_length = 16384)]
    value: String,
}

fn shown(it: &SecretView) -> Value {
    json!({
        "name": it.name,
        "created_at": it.created_at.to_rfc3339(),
        "updated_at": it.updated_at.to_rfc3339(),
        "updated_by": it.updated_by,
        "key_id": it.key_id,
    })
}

async fn list(
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, Problem> {
    let query = Query::read(query.as_deref(), &[LIMIT, CURSOR])?;
    let limit = query.limit()?;
    let found = app.engine.secrets(&caller.namespace, query.text("cursor").unwrap_or_default(), limit).await?;
    Ok(Json(json!(Page::of(&found, limit, |it| it.name.clone(), shown))))
}

async fn show(
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Result<Json<Value>, Problem> {
    Ok(Json(shown(&app.engine.secret(&caller.namespace, &name).await?)))
}

async fn replace(
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    body: Bytes,
) -> Result<Response, Problem> {
    let SecretIn { value } = wire::read(&body)?;
    let (view, new) = app.engine.put_secret(&caller.namespace, &name, &value, &caller.act(None, None)).await?;
    let status = if new { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(shown(&view))).into_response())
}

async fn remove(
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Result<StatusCode, Problem> {
    app.engine.delete_secret(&caller.namespace, &name, &caller.act(None, None)).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn reencrypt(
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    body: Bytes,
) -> Result<Json<Value>, Problem> {
    let NothingIn {} = wire::read(&body)?;
    let done = app.engine.reencrypt_secrets(&caller.act(None, None)).await?;
    let unreadable: Vec<Value> =
        done.unreadable.iter().map(|(namespace, name)| json!({"namespace": namespace, "name": name})).collect();
    Ok(Json(json!({
        "key_id": done.key_id,
        "reencrypted": done.reencrypted,
        "unchanged": done.unchanged,
        "unreadable": unreadable,
    })))
}
