//! Workers and server instances.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::extract::{Extension, Path, State};
use axum::http::Method;
use axum::response::Json;
use axum::routing::{get, post};
use bytes::Bytes;
use comeback_core::transition::Actor;
use comeback_core::{AuditAction, Invalid};
use comeback_engine::store::{Drained, DrainedWorker, InstanceRow, Loop};
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use utoipa::ToSchema;

use super::{Line, line};
use crate::App;
use crate::auth::{Caller, Need};
use crate::drained::{KEPT, MOST};
use crate::idempotency::IdempotencyKey;
use crate::openapi::{Doc, schema, schema_types};
use crate::problem::Problem;
use crate::wire;
use crate::workers::{LISTED, REMEMBERED, WorkerListing};

/// Routes of this module.
pub fn lines() -> Vec<Line> {
    use schema::{about, count, flag, instant, list, nullable, object, page, text};
    let drain = || {
        [
            ("draining", about(flag(), "Whether it is drained.")),
            ("draining_since", nullable(instant())),
            ("drained_by", nullable(text())),
            ("note", nullable(text())),
        ]
    };
    let worker = object(
        [
            ("name", text()),
            ("instance", about(nullable(text()), "Null for a drained worker that was not seen for an hour.")),
            ("queues", about(list(text()), "At most 20 names.")),
            ("more_queues", about(count(), "Number of names left out.")),
            ("kinds", about(list(text()), "At most 20 names.")),
            ("more_kinds", about(count(), "Number of names left out.")),
            ("leased_total", count()),
            ("last_seen_at", nullable(instant())),
        ]
        .into_iter()
        .chain(drain()),
    );
    let scheduler = object([
        ("running", about(flag(), "Whether the loop `retries` is not paused.")),
        ("loops", list(schema::named("Loop"))),
    ]);
    let drained = || object([("name", text())].into_iter().chain(drain()));
    let instance = object([
        ("id", about(text(), "Its name; a pseudonym for callers who may not administer all namespaces.")),
        ("self", about(flag(), "Whether it is the responding instance.")),
        ("version", text()),
        ("started_at", instant()),
        ("last_seen_at", instant()),
    ]);
    vec![
        line(Method::GET, "/api/v1/admin/workers", Need::Read, "List workers", get(workers)).doc(
            Doc::new("listWorkers")
                .about("Workers seen within an hour: the latest 1,000, and all drained ones.")
                .answers(page(worker.clone())),
        ),
        line(
            Method::GET,
            "/api/v1/admin/workers/status",
            Need::Read,
            "List workers and the state of the retry scheduler",
            get(status),
        )
        .doc(
            Doc::new("getWorkerStatus")
                .about("For clients of job servers, which check here whether retries are scheduled.")
                .answers(object([
                    ("items", list(worker)),
                    ("next_cursor", nullable(text())),
                    ("scheduler", scheduler),
                ])),
        ),
        line(Method::POST, "/api/v1/admin/workers/{name}/drain", Need::Operate, "Drain a worker", post(drain_one)).doc(
            Doc::new("drainWorker")
                .about(
                    "No new leases, running ones finish; on every instance and through restarts, until undone. Lease \
                     responses say `draining`, so the worker can shut down.",
                )
                .takes::<DrainIn>()
                .example(json!({"note": "the machine is replaced"}))
                .once()
                .answers(drained())
                .problems(&["not-found"]),
        ),
        line(
            Method::POST,
            "/api/v1/admin/workers/{name}/undrain",
            Need::Operate,
            "Undo the drain of a worker",
            post(undrain),
        )
        .doc(Doc::new("undrainWorker").takes::<DrainIn>().once().answers(drained()).problems(&["not-found"])),
        line(Method::GET, "/api/v1/admin/instances", Need::Read, "List server instances", get(instances))
            .doc(Doc::new("listInstances").answers(page(instance))),
    ]
}

/// Workers of a namespace by name, on the running instances.
async fn all_seen(app: &App, namespace: &str) -> Result<Vec<WorkerListing>, Problem> {
    let (store, now) = (app.engine.store(), app.engine.now());
    let running: BTreeSet<String> = running(app).await?.into_iter().map(|it| it.id).collect();
    let rows = store.workers(namespace, now - REMEMBERED, u32::try_from(LISTED).unwrap_or(u32::MAX)).await?;
    Ok(app.workers.listed(namespace, &app.instance, rows, |id| running.contains(id), now)?)
}

/// Instances with a heartbeat within a minute, and this one.
async fn running(app: &App) -> Result<Vec<InstanceRow>, Problem> {
    let oldest = app.engine.now() - crate::INSTANCE_TIMEOUT;
    let mut all = app.engine.store().instances().await?;
    all.retain(|it| it.id == app.instance || it.seen_at > oldest);
    if !all.iter().any(|it| it.id == app.instance) {
        // An instance with a clock far ahead may have removed this row, until the next heartbeat.
        all.push(app.own_row(app.engine.now()));
        all.sort_by(|a, b| a.id.cmp(&b.id));
    }
    Ok(all)
}

/// Name of an instance. It contains the host name, so only admins of all namespaces see it; others get a pseudonym.
fn instance_name(caller: &Caller, id: &str) -> String {
    if caller.may_administer_all() {
        return id.to_owned();
    }
    let digest = Sha256::digest(format!("instance\0{id}"));
    let digits: String = digest[..4].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("instance-{digits}")
}

async fn workers(State(app): State<Arc<App>>, Extension(caller): Extension<Caller>) -> Result<Json<Value>, Problem> {
    let seen = all_seen(&app, &caller.namespace).await?;
    app.drained.refresh(&**app.engine.store()).await?;
    let drained = app.drained.of(&caller.namespace);
    let names: BTreeSet<&str> = seen.iter().map(|it| it.name.as_str()).collect();
    let mut items = Vec::with_capacity(seen.len());
    for (name, drain) in drained.iter().filter(|(name, _)| !names.contains(name.as_str())) {
        let unseen = json!({
            "instance": null, "queues": [], "more_queues": 0, "kinds": [], "more_kinds": 0, "leased_total": 0,
            "last_seen_at": null,
        });
        items.push(shown(name, Some(drain), unseen));
    }
    items.extend(seen.iter().map(|it| {
        let asks = json!({
            "instance": instance_name(&caller, &it.instance),
            "queues": it.asks.queues,
            "more_queues": it.asks.more_queues,
            "kinds": it.asks.kinds,
            "more_kinds": it.asks.more_kinds,
            "leased_total": it.leased,
            "last_seen_at": it.at.to_rfc3339(),
        });
        shown(&it.name, drained.get(&it.name), asks)
    }));
    items.sort_by(|a, b| a["name"].as_str().cmp(&b["name"].as_str()));
    Ok(Json(json!({"items": items, "next_cursor": null})))
}

async fn status(app: State<Arc<App>>, caller: Extension<Caller>) -> Result<Json<Value>, Problem> {
    let Json(mut page) = workers(app.clone(), caller.clone()).await?;
    let Json(mut loops) = super::admin::loops(app, caller).await?;
    let loops = loops["items"].take();
    let paused = loops.as_array().is_some_and(|all| {
        all.iter().any(|it| it["name"] == Loop::Retries.word() && it["paused"] == Value::Bool(true))
    });
    page["scheduler"] = json!({"running": !paused, "loops": loops});
    Ok(Json(page))
}

fn shown(name: &str, drain: Option<&DrainedWorker>, mut with: Value) -> Value {
    with["name"] = name.into();
    with["draining"] = drain.is_some().into();
    with["draining_since"] = drain.map(|drain| drain.at.to_rfc3339()).into();
    with["drained_by"] = drain.and_then(|drain| drain.by.as_deref()).into();
    with["note"] = drain.and_then(|drain| drain.note.as_deref()).into();
    with
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = DrainWorker)]
struct DrainIn {
    #[serde(default)]
    #[schema(value_type = Option<schema_types::NoteSchema>)]
    note: Option<String>,
}

async fn drain_one(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    idempotency: IdempotencyKey,
    body: Bytes,
) -> Result<Json<Value>, Problem> {
    let by = act_of(&app, &caller, &body)?;
    let (here, namespace, worker) = (app.clone(), caller.namespace.clone(), name.clone());
    let act = move |by: Actor| async move {
        known(&here, &namespace, &worker).await?;
        let (store, now) = (&**here.engine.store(), here.engine.now());
        let entry = here.engine.entry(AuditAction::WorkerDrain, &worker, &by).within(&namespace);
        let drain = DrainedWorker { namespace, name: worker.clone(), at: now, by: by.by, note: by.note };
        let drain = match store.drain_worker(&drain, MOST, now - KEPT, Some(&entry)).await? {
            Drained::Done => drain,
            Drained::Already(drain) => drain,
            Drained::TooMany => {
                return Err(Invalid::one("name", format!("at most {MOST} workers can be drained")).into());
            }
        };
        here.drained.refresh(store).await?;
        Ok(Json(shown(&worker, Some(&drain), json!({}))))
    };
    let (there, namespace) = (app.clone(), caller.namespace.clone());
    let as_it_is = move |_| async move {
        there.drained.refresh(&**there.engine.store()).await?;
        Ok(now_of(&there, &namespace, &name))
    };
    idempotency.run_once(&app, &caller.namespace, &body, by, act, as_it_is).await
}

async fn undrain(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    idempotency: IdempotencyKey,
    body: Bytes,
) -> Result<Json<Value>, Problem> {
    let by = act_of(&app, &caller, &body)?;
    let (here, namespace, worker) = (app.clone(), caller.namespace.clone(), name.clone());
    let act = move |by: Actor| async move {
        known(&here, &namespace, &worker).await?;
        let entry = here.engine.entry(AuditAction::WorkerUndrain, &worker, &by).within(&namespace);
        let store = &**here.engine.store();
        store.undrain_worker(&namespace, &worker, Some(&entry)).await?;
        here.drained.refresh(store).await?;
        Ok(Json(shown(&worker, None, json!({}))))
    };
    let (there, namespace) = (app.clone(), caller.namespace.clone());
    let as_it_is = move |_| async move {
        there.drained.refresh(&**there.engine.store()).await?;
        Ok(now_of(&there, &namespace, &name))
    };
    idempotency.run_once(&app, &caller.namespace, &body, by, act, as_it_is).await
}

/// Actor and note of a drain; refused if the note is too long.
fn act_of(app: &App, caller: &Caller, body: &Bytes) -> Result<Actor, Problem> {
    let act = caller.act(None, wire::read::<DrainIn>(body)?.note);
    app.engine.config().limits.check_act(&act)?;
    Ok(act)
}

/// Refuses a worker name that was never seen and is not drained.
async fn known(app: &App, namespace: &str, name: &str) -> Result<(), Problem> {
    // No worker can have this name, and PostgreSQL rejects it as text.
    if name.contains('\0') {
        return Err(Problem::not_found("worker"));
    }
    app.drained.refresh(&**app.engine.store()).await?;
    if app.drained.contains(namespace, name) || all_seen(app, namespace).await?.iter().any(|it| it.name == name) {
        return Ok(());
    }
    // Not among those that a list shows.
    let since = app.engine.now() - REMEMBERED;
    match app.engine.store().has_worker(namespace, name, since).await? {
        true => Ok(()),
        false => Err(Problem::not_found("worker")),
    }
}

fn now_of(app: &App, namespace: &str, name: &str) -> Json<Value> {
    Json(shown(name, app.drained.get(namespace, name).as_ref(), json!({})))
}

async fn instances(State(app): State<Arc<App>>, Extension(caller): Extension<Caller>) -> Result<Json<Value>, Problem> {
    let shown = |it: InstanceRow| {
        json!({
            "id": instance_name(&caller, &it.id),
            "self": it.id == app.instance,
            "version": it.version,
            "started_at": it.started_at.to_rfc3339(),
            "last_seen_at": it.seen_at.to_rfc3339(),
        })
    };
    let items: Vec<Value> = running(&app).await?.into_iter().map(shown).collect();
    Ok(Json(json!({"items": items, "next_cursor": null})))
}
