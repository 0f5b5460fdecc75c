//! Named secrets: put, listed without their values, deleted.

use std::sync::Arc;

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
use super::{CURSOR, LIMIT, Line, Query, line};
use crate::App;
use crate::auth::{Caller, Need};
use crate::openapi::{Doc, schema};
use crate::problem::Problem;
use crate::wire::{self, Page};

pub fn lines() -> Vec<Line> {
    let (all, one) = ("/api/v1/secrets", "/api/v1/secrets/{name}");
    let whole = || schema::named("Secret");
    let reencrypted = schema::object([
        ("key_id", schema::about(schema::text(), "The key that everything is encrypted with now.")),
        ("reencrypted", schema::count()),
        ("unchanged", schema::count()),
        (
            "unreadable",
            schema::about(
                schema::list(schema::object([("namespace", schema::text()), ("name", schema::text())])),
                "Secrets that no key of this server can read.",
            ),
        ),
    ]);
    vec![
        line(Method::GET, all, Need::Read, "Named secrets, without their values", get(list))
            .doc(Doc::new("listSecrets").query(&[LIMIT, CURSOR]).answers(schema::page(whole()))),
        line(Method::GET, one, Need::Read, "A named secret, without its value", get(show))
            .doc(Doc::new("getSecret").answers(whole()).problems(&["not-found"])),
        line(Method::PUT, one, Need::Operate, "Put a secret under a name", put(replace)).doc(
            Doc::new("putSecret")
                .about(
                    "Calls, commands and subscriptions of this namespace name it as `{\"secret\": NAME}`. The value is encrypted, \
                     used when a call is made, and shown to nobody.",
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
            "Encrypt all secrets with the newest key",
            post(reencrypt),
        )
        .doc(
            Doc::new("reencryptSecrets")
                .about(
                    "Of the keys that the server was started with the first encrypts and all of them decrypt. After this the others \
                     are needed no more.",
                )
                .takes::<NothingIn>()
                .answers(reencrypted),
        ),
    ]
}

type Shared = State<Arc<App>>;

/// A value for a name.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewSecret)]
struct SecretIn {
    /// 16 KiB at most.
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
    State(app): Shared,
    Extension(caller): Extension<Caller>,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, Problem> {
    let query = Query::read(query.as_deref(), &[LIMIT, CURSOR])?;
    let limit = query.limit()?;
    let found = app.engine.secrets(&caller.namespace, query.text("cursor").unwrap_or_default(), limit).await?;
    Ok(Json(json!(Page::of(&found, limit, |it| it.name.clone(), shown))))
}

async fn show(
    State(app): Shared,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Result<Json<Value>, Problem> {
    Ok(Json(shown(&app.engine.secret(&caller.namespace, &name).await?)))
}

async fn replace(
    State(app): Shared,
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
    State(app): Shared,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Result<StatusCode, Problem> {
    app.engine.delete_secret(&caller.namespace, &name, &caller.act(None, None)).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn reencrypt(
    State(app): Shared,
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
