//! Webhook subscriptions: events delivered by signed calls.

use axum::extract::{Extension, Path, RawQuery, State};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{delete, get, post, put};
use bytes::Bytes;
use comeback_core::Invalid;
use comeback_core::transition::Actor;
use comeback_engine::secrets::SecretText;
use comeback_engine::store::ListCursor;
use comeback_engine::{Redeliver, Redelivered};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::admin::NothingIn;
use super::{AppState, CURSOR, LIMIT, Line, Query, line};
use crate::App;
use crate::auth::{self, Caller, Need};
use crate::idempotency::IdempotencyKey;
use crate::openapi::{Doc, schema, schema_types};
use crate::page::ListPage;
use crate::problem::Problem;
use crate::wire::subscription::{self as shape, RedeliverIn, SubscriptionIn};
use crate::wire::{self, DurationIn, Instant, Page};

/// Routes of this module.
pub fn lines() -> Vec<Line> {
    let (all, one) = ("/api/v1/subscriptions", "/api/v1/subscriptions/{id}");
    let whole = || schema::named("Subscription");
    let with_secret = || schema::named("NewSubscriptionSecret");
    let example =
        json!({"id": "ops", "url": "https://example.com/hooks", "types": ["task.failed", "task.retry_exhausted"]});
    let other = json!({"url": "https://example.com/events", "types": ["RetryScheduled", "execution.*"], "format": "cloudevents",
        "filter": "kind:payments.*"});
    vec![
        line(Method::GET, all, Need::Read, "List webhook subscriptions", get(list))
            .doc(Doc::new("listSubscriptions").query(&[LIMIT, CURSOR]).answers(schema::page(whole()))),
        line(Method::POST, all, Need::Operate, "Create a webhook subscription", post(create)).doc(
            Doc::new("createSubscription")
                .about(
                    "Delivers new events of these types by a POST signed as in Standard Webhooks (`webhook-id`, \
                     `webhook-timestamp`, `webhook-signature`), retried until it succeeds. A 410 response disables \
                     the subscription. The secret is shown in this response only.",
                )
                .needs::<SubscriptionIn>()
                .example(example)
                .example(other.clone())
                .once()
                .creates(with_secret())
                .problems(&["name-taken"]),
        ),
        line(Method::GET, one, Need::Read, "Get a webhook subscription, without its secret", get(show))
            .doc(Doc::new("getSubscription").answers(whole()).problems(&["not-found"])),
        line(Method::PUT, one, Need::Operate, "Create or replace a webhook subscription", put(replace)).doc(
            Doc::new("putSubscription")
                .about(
                    "It continues at the position of the old one; a disabled one is enabled again. The response of a \
                     new one contains its secret.",
                )
                .needs::<SubscriptionIn>()
                .example(other)
                .answers(with_secret())
                .also(201)
                .problems(&["conflict"]),
        ),
        line(Method::DELETE, one, Need::Operate, "Delete a webhook subscription", delete(remove))
            .doc(Doc::new("deleteSubscription").answers_nothing().problems(&["not-found"])),
        line(
            Method::POST,
            "/api/v1/subscriptions/{id}/rotate",
            Need::Operate,
            "Rotate the signing secret",
            post(rotate),
        )
        .doc(
            Doc::new("rotateSubscription")
                .about("Both secrets sign for a day. The new one is shown in this response only.")
                .takes::<RotateSecretIn>()
                .once()
                .answers(with_secret())
                .problems(&["not-found", "conflict"]),
        ),
        line(Method::POST, "/api/v1/subscriptions/{id}/test", Need::Operate, "Send a test delivery", post(test)).doc(
            Doc::new("testSubscription")
                .about("Creates a delivery of the type `subscription.test`; its result is in the list of deliveries.")
                .takes::<NothingIn>()
                .once()
                .creates(schema::object([("task_id", schema::id())]))
                .problems(&["not-found", "conflict"]),
        ),
        line(
            Method::POST,
            "/api/v1/subscriptions/{id}/redeliver",
            Need::Operate,
            "Redeliver one event, or failed deliveries",
            post(redeliver),
        )
        .doc(
            Doc::new("redeliver")
                .needs::<RedeliverIn>()
                .example(json!({"within": "3d"}))
                .once()
                .answers(schema::object([
                    ("tasks", schema::list(schema::id())),
                    ("more", schema::about(schema::flag(), "Whether there are more: repeat the request.")),
                ]))
                .problems(&["not-found", "conflict"]),
        ),
        line(
            Method::GET,
            "/api/v1/subscriptions/{id}/deliveries",
            Need::Read,
            "List deliveries, newest first",
            get(deliveries),
        )
        .doc(
            Doc::new("listDeliveries")
                .about("Each delivery is a task: its attempts are at `/tasks/{id}/attempts`.")
                .query(&[LIMIT, CURSOR])
                .answers(schema::page(schema::named("Delivery")))
                .problems(&["not-found"]),
        ),
    ]
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = SecretRotation)]
struct RotateSecretIn {
    /// The new secret; default: generated.
    #[serde(default)]
    #[schema(value_type = Option<schema_types::SigningSecretSchema>)]
    secret: Option<SecretText>,
}

async fn list(
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, Problem> {
    let query = Query::read(query.as_deref(), &[LIMIT, CURSOR])?;
    let limit = query.limit()?;
    let found = app.engine.subscriptions(&caller.namespace, query.text("cursor").unwrap_or_default(), limit).await?;
    Ok(Json(json!(Page::of(&found, limit, |it| it.id.clone(), |it| shape::shown(it, None)))))
}

async fn view(app: &App, namespace: &str, id: &str) -> Result<Json<Value>, Problem> {
    Ok(Json(shape::shown(&app.engine.subscription(namespace, id).await?, None)))
}

async fn show(
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Json<Value>, Problem> {
    view(&app, &caller.namespace, &id).await
}

async fn create(
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    idempotency: IdempotencyKey,
    body: Bytes,
) -> Result<Response, Problem> {
    let mut given: SubscriptionIn = wire::read(&body)?;
    let id = match given.id.take() {
        Some(id) => id,
        // The same id for a repeated request.
        None => auth::key_id(idempotency.text().map(|key| (caller.namespace.as_str(), "subscription", key)))?,
    };
    let (spec, secret) = given.read()?;
    let (here, again) = (app.clone(), app.clone());
    let (namespace, other, called) = (caller.namespace.clone(), caller.namespace.clone(), id.clone());
    let by = caller.act(None, None);
    let act = move |by: Actor| async move {
        let (view, secret) = here.engine.create_subscription(&namespace, &id, spec, secret, &by).await?;
        Ok(Json(shape::shown(&view, Some(&secret))))
    };
    let as_it_is = move |_| async move { view(&again, &other, &called).await };
    let answer = idempotency.run_once(&app, &caller.namespace, &body, by, act, as_it_is).await?;
    Ok((StatusCode::CREATED, answer).into_response())
}

async fn replace(
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    body: Bytes,
) -> Result<Response, Problem> {
    let given: SubscriptionIn = wire::read(&body)?;
    if given.id.as_ref().is_some_and(|given| *given != id) {
        return Err(Invalid::one("id", format!("must be `{id}`, as in the path, or be left out")).into());
    }
    let keeps_headers = !given.has_headers();
    let (mut spec, secret) = given.read()?;
    if keeps_headers && let Ok(before) = app.engine.subscription(&caller.namespace, &id).await {
        spec.headers = before.spec.headers;
    }
    let act = caller.act(None, None);
    let (view, secret, new) = app.engine.put_subscription(&caller.namespace, &id, spec, secret, &act).await?;
    let status = if new { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(shape::shown(&view, secret.as_ref()))).into_response())
}

async fn remove(
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<StatusCode, Problem> {
    app.engine.delete_subscription(&caller.namespace, &id, &caller.act(None, None)).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn rotate(
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    idempotency: IdempotencyKey,
    body: Bytes,
) -> Result<Json<Value>, Problem> {
    let given: RotateSecretIn = wire::read(&body)?;
    let secret = shape::secret(given.secret)?;
    let (here, again) = (app.clone(), app.clone());
    let (namespace, other, called) = (caller.namespace.clone(), caller.namespace.clone(), id.clone());
    let by = caller.act(None, None);
    let act = move |by: Actor| async move {
        let (view, secret) = here.engine.rotate_subscription(&namespace, &id, secret, &by).await?;
        Ok(Json(shape::shown(&view, Some(&secret))))
    };
    let as_it_is = move |_| async move { view(&again, &other, &called).await };
    idempotency.run_once(&app, &caller.namespace, &body, by, act, as_it_is).await
}

async fn test(
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    idempotency: IdempotencyKey,
    body: Bytes,
) -> Result<Response, Problem> {
    let NothingIn {} = wire::read(&body)?;
    let (here, again) = (app.clone(), app.clone());
    let (namespace, other, called) = (caller.namespace.clone(), caller.namespace.clone(), id.clone());
    let by = caller.act(None, None);
    let act = move |by: Actor| async move {
        let task = here.engine.test_subscription(&namespace, &id, &by).await?;
        Ok(Json(json!({"task_id": task.to_string()})))
    };
    let made = move |kept: Option<Value>| async move {
        if let Some(task) = kept.as_ref().and_then(|kept| kept["tasks"][0].as_str()) {
            return Ok(Json(json!({"task_id": task})));
        }
        let found = again.engine.deliveries_of(&other, &called, 1, None).await?;
        let task = found.items.first().map(|it| it.stored.task.id.to_string());
        task.map(|task| Json(json!({"task_id": task}))).ok_or_else(|| Problem::not_found("delivery"))
    };
    let answer = idempotency.run_once(&app, &caller.namespace, &body, by, act, made).await?;
    Ok((StatusCode::CREATED, answer).into_response())
}

async fn redeliver(
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    idempotency: IdempotencyKey,
    body: Bytes,
) -> Result<Json<Value>, Problem> {
    let given: RedeliverIn = wire::read(&body)?;
    if given.event.as_ref().is_some_and(|event| event.len() > 200) {
        return Err(Invalid::one("event", "must be at most 200 bytes").into());
    }
    let what = match (given.event, given.since, given.within) {
        (Some(event), None, None) => Redeliver::Event(event),
        (None, Some(Instant(since)), None) => Redeliver::Since(since),
        (None, None, Some(DurationIn(span))) => Redeliver::Since(app.engine.now() - span),
        _ => return Err(Invalid::one("event", "give one of `event`, `since` and `within`").into()),
    };
    let here = app.clone();
    let namespace = caller.namespace.clone();
    let by = caller.act(None, None);
    let act =
        move |by: Actor| async move { Ok(Json(here.engine.redeliver(&namespace, &id, what, &by).await?.to_json())) };
    let made = |kept: Option<Value>| async { Ok(Json(kept.unwrap_or_else(|| Redelivered::default().to_json()))) };
    idempotency.run_once(&app, &caller.namespace, &body, by, act, made).await
}

async fn deliveries(
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, Problem> {
    let query = Query::read(query.as_deref(), &[LIMIT, CURSOR])?;
    let after: Option<ListCursor> = match query.text("cursor") {
        Some(_) => query.parse("cursor")?,
        None => None,
    };
    let mut page = ListPage::new(query.limit()?, after);
    while let Some((limit, after)) = page.wants() {
        page.add(app.engine.deliveries_of(&caller.namespace, &id, limit, after).await?);
    }
    let found = page.into_listing();
    let items: Vec<Value> = found.items.iter().map(shape::delivery).collect();
    Ok(Json(json!(Page { items, next_cursor: found.next.map(|next| next.to_string()) })))
}
