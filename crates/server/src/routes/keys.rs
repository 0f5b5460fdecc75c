//! Keys: made, listed, rotated and revoked. The secret is shown once, in the answer that makes it.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Extension, Path, State};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{delete, get, post};
use bytes::Bytes;
use comeback_core::transition::Actor;
use comeback_core::{Invalid, Millis, NamePatterns, Quota, Timestamp};
use ipnet::IpNet;
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::{Line, line};
use crate::App;
use crate::auth::{self, Caller, Made, Need, NewKey, Role, Terms};
use crate::keys::looks_like_id;
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
                     namespace makes keys for that one only. Active keys of a namespace have names of their own, and none is \
                     named like a key for `*`. A key of a worker or a submitter can be limited to queues and kinds; it then \
                     leases, submits and reads by id nothing else.",
                )
                .needs::<KeyIn>()
                .once()
                .example(json!({"role": "admin", "namespace": "*", "name": "ops", "expires_in": "90d"}))
                .creates(schema::named("NewKey"))
                .problems(&["name-taken", "key-exists"]),
        ),
        line(Method::POST, "/api/v1/keys/{id}/rotate", Need::Administer, "Make a new key in place of one", post(rotate))
            .doc(
                Doc::new("rotateKey")
                    .about(
                        "The new one has the same name, role and limits. The old one stays good until the overlap has passed; \
                         both are listed.",
                    )
                    .takes::<RotateIn>()
                    .once()
                    .example(json!({"overlap": "24h"}))
                    .creates(schema::named("NewKey"))
                    .problems(&["not-found", "key-exists"]),
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

async fn list(State(app): State<Arc<App>>, Extension(caller): Extension<Caller>) -> Result<Json<Value>, Problem> {
    let namespace = (!caller.everywhere).then_some(caller.namespace.as_str());
    let keys = app.keys.stored(&**app.engine.store(), namespace).await?;
    let now = app.engine.now();
    let items: Vec<Value> = keys.iter().filter(|key| caller.governs(key)).map(|key| key.shown_at(now)).collect();
    Ok(Json(json!({"items": items, "next_cursor": null})))
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
    /// Only these queues, for the key of a worker or a submitter: exact names, or the beginning of names followed by `*`.
    #[serde(default)]
    #[schema(value_type = Vec<stands_for::Name>, max_items = 100)]
    queues: Vec<String>,
    /// Only these kinds, in the same way.
    #[serde(default)]
    #[schema(value_type = Vec<stands_for::Name>, max_items = 100)]
    kinds: Vec<String>,
    /// Only from these networks: addresses, or networks such as `10.0.0.0/8`.
    #[serde(default)]
    #[schema(value_type = Vec<stands_for::Name>, max_items = 100)]
    allowed_addresses: Vec<String>,
}

#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = KeyRotation)]
struct RotateIn {
    /// How long the old key stays good: 24 hours where nothing is said, 90 days at most; `0s` ends it at once.
    #[serde(default)]
    overlap: Option<Span>,
    /// How long the new key is valid; as long as the old one was where nothing is said.
    #[serde(default)]
    expires_in: Option<Span>,
}

/// How long a key stays good after it was rotated, where nothing is said, and at most.
const OVERLAP: Millis = Millis::from_secs(86_400);
const LONGEST_OVERLAP: Millis = Millis::from_days(90);

/// Names in one list of a key's limits at most.
const MOST_NAMES: usize = 100;

/// What a key is limited to below its role.
fn read_terms(app: &App, role: Role, given: &mut KeyIn) -> Result<Terms, Invalid> {
    let (limits, mut faults) = (&app.engine.config().limits, Invalid::default());
    for (field, names) in [("queues", &given.queues), ("kinds", &given.kinds)] {
        if !names.is_empty() && !matches!(role, Role::Worker | Role::Submitter) {
            faults.push(field, "only the keys of workers and submitters can be limited to queues or kinds");
        }
        for (n, name) in names.iter().enumerate() {
            limits.check_name(&format!("{field}[{n}]"), name, &mut faults);
        }
    }
    let mut allowed_addresses = Vec::new();
    for (n, text) in given.allowed_addresses.iter().enumerate() {
        let network = text.parse::<IpNet>().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from));
        match network {
            Some(network) => allowed_addresses.push(network.trunc()),
            None => {
                faults.push(format!("allowed_addresses[{n}]"), "must be an address or a network, such as 10.0.0.0/8")
            }
        }
    }
    let lists = [
        ("queues", given.queues.len()),
        ("kinds", given.kinds.len()),
        ("allowed_addresses", given.allowed_addresses.len()),
    ];
    for (field, _) in lists.into_iter().filter(|(_, count)| *count > MOST_NAMES) {
        faults.push(field, format!("at most {MOST_NAMES} are allowed"));
    }
    let queues = NamePatterns::new(std::mem::take(&mut given.queues));
    let kinds = NamePatterns::new(std::mem::take(&mut given.kinds));
    faults.or(Terms { queues, kinds, allowed_addresses, replaces: None })
}

/// The secret is in the first answer only: who comes again under the same key is told which key was made.
async fn create(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    once: Once,
    body: Bytes,
) -> Result<Response, Problem> {
    let mut given: KeyIn = wire::read(&body)?;
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
    let terms = read_terms(&app, role, &mut given)?;
    let again = shown_again(app.clone(), id.clone(), namespace.clone());
    let here = app.clone();
    let act = move |by: Actor| make(here, given, role, namespace, terms, id, by);
    once.guard(&app, &caller.namespace, &body, caller.act(None, None), act, |_| again).await
}

/// The key that the same request made, without its secret.
async fn shown_again(app: Arc<App>, id: String, namespace: String) -> Result<Response, Problem> {
    app.keys.refresh(&**app.engine.store()).await?;
    let made = app.keys.made_before(&id, &namespace).ok_or_else(|| Problem::not_found("key"))?;
    Ok((StatusCode::CREATED, Json(made.shown_at(app.engine.now()))).into_response())
}

async fn make(
    app: Arc<App>,
    given: KeyIn,
    role: Role,
    namespace: String,
    terms: Terms,
    id: String,
    act: Actor,
) -> Result<Response, Problem> {
    let (limits, mut faults) = (&app.engine.config().limits, Invalid::default());
    limits.check_name("namespace", &namespace, &mut faults);
    if let Some(name) = &given.name {
        limits.check_name("name", name, &mut faults);
        if looks_like_id(name) {
            faults.push("name", "may not look like the id of a key");
        }
    }
    faults.or(())?;
    let (store, now) = (&**app.engine.store(), app.engine.now());
    app.keys.refresh(store).await?;
    if app.keys.is_empty() && role != Role::Admin {
        return Err(Invalid::one("role", "the first key must be an admin's, or nobody could make another").into());
    }
    if app.keys.is_empty() && namespace != auth::EVERYWHERE {
        let why = "the first key must be for `*`, or nobody could make one for another namespace";
        return Err(Invalid::one("namespace", why).into());
    }
    let new = NewKey { name: given.name, role, namespace, valid_for: given.expires_in.map(|Span(span)| span) };
    let most = app.engine.config().quotas.get(Quota::Keys);
    let made = app.keys.create_as(store, id, new, terms, most, &act, now).await?;
    answered(made, now)
}

fn answered(made: Made, now: Timestamp) -> Result<Response, Problem> {
    match made {
        Made::Key(key, secret) => {
            let mut shown = key.shown_at(now);
            shown["key"] = secret.into();
            Ok((StatusCode::CREATED, Json(shown)).into_response())
        }
        Made::Exists(id) => Err(Problem::key_exists(&id)),
        Made::NameTaken => {
            Err(Problem::name_taken("an active key of this namespace has this name, or a key for `*` has it"))
        }
        Made::NotActive => Err(Invalid::one("id", "the key is expired or revoked, or was rotated before").into()),
    }
}

async fn rotate(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(old): Path<String>,
    once: Once,
    body: Bytes,
) -> Result<Response, Problem> {
    let given: RotateIn = wire::read(&body)?;
    let overlap = given.overlap.map_or(OVERLAP, |Span(span)| span);
    if overlap > LONGEST_OVERLAP {
        return Err(Invalid::one("overlap", "90 days at most").into());
    }
    let valid_for = given.expires_in.map(|Span(span)| span);
    app.keys.refresh(&**app.engine.store()).await?;
    let namespace = app.keys.namespace_of(&old).unwrap_or_default();
    let id = auth::key_id(once.key().map(|key| (caller.namespace.as_str(), old.as_str(), key)))?;
    let again = shown_again(app.clone(), id.clone(), namespace);
    let (here, whose) = (app.clone(), caller.clone());
    let act = move |by: Actor| async move {
        let (store, now) = (&**here.engine.store(), here.engine.now());
        let most = here.engine.config().quotas.get(Quota::Keys);
        let may = |key: &auth::Key| whose.governs(key);
        let made = here.keys.rotate(store, id, &old, overlap, valid_for, may, most, &by, now).await?;
        answered(made.ok_or_else(|| Problem::not_found("key"))?, now)
    };
    once.guard(&app, &caller.namespace, &body, caller.act(None, None), act, |_| again).await
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
