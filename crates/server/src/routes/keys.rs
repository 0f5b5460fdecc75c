//! API keys: create, list, rotate, revoke. The secret is shown once, in the response that creates it.

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
use crate::auth::{self, Caller, KeyLimits, KeyResult, Need, NewKey, Role};
use crate::idempotency::IdempotencyKey;
use crate::keys::looks_like_id;
use crate::openapi::{Doc, schema, schema_types};
use crate::problem::Problem;
use crate::wire::{self, DurationIn};

/// Routes of this module.
pub fn lines() -> Vec<Line> {
    let caller = schema::object([
        ("role", schema::named("Role")),
        ("namespace", schema::text()),
        ("key", schema::nullable(schema::text())),
        ("everywhere", schema::flag()),
        ("open", schema::flag()),
    ]);
    vec![
        line(Method::GET, "/api/v1/me", Need::Read, "Get the caller and its permissions", get(me)).doc(
            Doc::new("getMe")
                .about(
                    "`everywhere`: the key is for all namespaces. `open`: the server has no keys, and every local \
                     caller is an admin.",
                )
                .answers(caller),
        ),
        line(Method::GET, "/api/v1/keys", Need::Administer, "List keys, without secrets", get(list))
            .doc(Doc::new("listKeys").answers(schema::page(schema::named("Key")))),
        line(Method::POST, "/api/v1/keys", Need::Administer, "Create a key", post(create)).doc(
            Doc::new("createKey")
                .about(
                    "With the first key, every request needs a key; so the first must be an admin key for `*`. An \
                     admin of one namespace creates keys for that namespace only. Names of active keys are unique \
                     within a namespace and among keys for `*`. A worker or submitter key can be limited to queues \
                     and kinds; it then may lease, submit and read nothing else.",
                )
                .needs::<KeyIn>()
                .once()
                .example(json!({"role": "admin", "namespace": "*", "name": "ops", "expires_in": "90d"}))
                .creates(schema::named("NewKey"))
                .problems(&["name-taken", "key-exists"]),
        ),
        line(Method::POST, "/api/v1/keys/{id}/rotate", Need::Administer, "Rotate a key", post(rotate)).doc(
            Doc::new("rotateKey")
                .about(
                    "The new key has the same name, role and limits. The old one stays valid during the overlap; both \
                     are listed.",
                )
                .takes::<RotateKeyIn>()
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
    #[schema(value_type = schema_types::RoleSchema)]
    role: String,
    /// Namespace, or `*` for all. Default: the namespace of the caller's key; with a key for `*`, `*` for an admin and
    /// `default` for other roles.
    #[serde(default)]
    #[schema(value_type = Option<schema_types::NameSchema>)]
    namespace: Option<String>,
    #[serde(default)]
    #[schema(value_type = Option<schema_types::NameSchema>)]
    name: Option<String>,
    #[serde(default)]
    expires_in: Option<DurationIn>,
    /// Limits the key of a worker or a submitter to these queues: exact names, or prefixes followed by `*`.
    #[serde(default)]
    #[schema(value_type = Vec<schema_types::NameSchema>, max_items = 100)]
    queues: Vec<String>,
    /// Limits the key to these kinds, in the same way.
    #[serde(default)]
    #[schema(value_type = Vec<schema_types::NameSchema>, max_items = 100)]
    kinds: Vec<String>,
    /// Limits the key to these addresses, or networks such as `10.0.0.0/8`.
    #[serde(default)]
    #[schema(value_type = Vec<schema_types::NameSchema>, max_items = 100)]
    allowed_addresses: Vec<String>,
}

#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = KeyRotation)]
struct RotateKeyIn {
    /// How long the old key stays valid: at most 90 days, `0s` ends it immediately; default: 24 hours.
    #[serde(default)]
    overlap: Option<DurationIn>,
    /// Lifetime of the new key; default: the lifetime of the old one.
    #[serde(default)]
    expires_in: Option<DurationIn>,
}

/// Default and maximum overlap of a rotation.
const OVERLAP: Millis = Millis::from_secs(86_400);
const LONGEST_OVERLAP: Millis = Millis::from_days(90);

/// Maximum number of names in one list of a key's limits.
const MOST_NAMES: usize = 100;

/// Reads the limits of a key below its role.
fn read_terms(app: &App, role: Role, given: &mut KeyIn) -> Result<KeyLimits, Invalid> {
    let (limits, mut faults) = (&app.engine.config().limits, Invalid::default());
    for (field, names) in [("queues", &given.queues), ("kinds", &given.kinds)] {
        if !names.is_empty() && !matches!(role, Role::Worker | Role::Submitter) {
            faults.push(field, "only worker and submitter keys can be limited to queues or kinds");
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
    faults.or(KeyLimits { queues, kinds, allowed_addresses, replaces: None })
}

/// Responds with a new key. A repetition under the same idempotency key gets the id, not the secret.
async fn create(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    idempotency: IdempotencyKey,
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
        let detail = format!("this key may create keys for the namespace `{}` only", caller.namespace);
        return Err(Problem::forbidden(detail));
    }
    let id = auth::key_id(idempotency.text().map(|key| (caller.namespace.as_str(), namespace.as_str(), key)))?;
    let terms = read_terms(&app, role, &mut given)?;
    let again = shown_again(app.clone(), id.clone(), namespace.clone());
    let here = app.clone();
    let act = move |by: Actor| make(here, given, role, namespace, terms, id, by);
    idempotency.run_once(&app, &caller.namespace, &body, caller.act(None, None), act, |_| again).await
}

/// The key that the same request created before, without its secret.
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
    terms: KeyLimits,
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
        return Err(
            Invalid::one("role", "the first key must have the role admin, or no other key could be created").into()
        );
    }
    if app.keys.is_empty() && namespace != auth::EVERYWHERE {
        let why = "the first key must be for `*`, or no key for another namespace could be created";
        return Err(Invalid::one("namespace", why).into());
    }
    let new = NewKey { name: given.name, role, namespace, valid_for: given.expires_in.map(|DurationIn(span)| span) };
    let most = app.engine.config().quotas.get(Quota::Keys);
    let made = app.keys.create_as(store, id, new, terms, most, &act, now).await?;
    answered(made, now)
}

fn answered(made: KeyResult, now: Timestamp) -> Result<Response, Problem> {
    match made {
        KeyResult::Key(key, secret) => {
            let mut shown = key.shown_at(now);
            shown["key"] = secret.into();
            Ok((StatusCode::CREATED, Json(shown)).into_response())
        }
        KeyResult::Exists(id) => Err(Problem::key_exists(&id)),
        KeyResult::NameTaken => Err(Problem::name_taken("an active key of this namespace or for `*` has this name")),
        KeyResult::NotActive => Err(Invalid::one("id", "the key is expired, revoked or already rotated").into()),
    }
}

async fn rotate(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(old): Path<String>,
    idempotency: IdempotencyKey,
    body: Bytes,
) -> Result<Response, Problem> {
    let given: RotateKeyIn = wire::read(&body)?;
    let overlap = given.overlap.map_or(OVERLAP, |DurationIn(span)| span);
    if overlap > LONGEST_OVERLAP {
        return Err(Invalid::one("overlap", "must be at most 90 days").into());
    }
    let valid_for = given.expires_in.map(|DurationIn(span)| span);
    app.keys.refresh(&**app.engine.store()).await?;
    let namespace = app.keys.namespace_of(&old).unwrap_or_default();
    let id = auth::key_id(idempotency.text().map(|key| (caller.namespace.as_str(), old.as_str(), key)))?;
    let again = shown_again(app.clone(), id.clone(), namespace);
    let (here, whose) = (app.clone(), caller.clone());
    let act = move |by: Actor| async move {
        let (store, now) = (&**here.engine.store(), here.engine.now());
        let most = here.engine.config().quotas.get(Quota::Keys);
        let may = |key: &auth::Key| whose.governs(key);
        let made = here.keys.rotate(store, id, &old, overlap, valid_for, may, most, &by, now).await?;
        answered(made.ok_or_else(|| Problem::not_found("key"))?, now)
    };
    idempotency.run_once(&app, &caller.namespace, &body, caller.act(None, None), act, |_| again).await
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
