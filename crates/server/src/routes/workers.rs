//! Who is there: workers that ask for work, and the servers that they ask.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{Extension, Path, State};
use axum::http::Method;
use axum::response::Json;
use axum::routing::{get, post};
use bytes::Bytes;
use comeback_core::transition::Act;
use comeback_core::{Did, Invalid, Timestamp};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::{Line, line};
use crate::App;
use crate::auth::{Caller, Need};
use crate::once::Once;
use crate::openapi::{Doc, schema, stands_for};
use crate::problem::Problem;
use crate::shared::{Drain, Drained, Seen};
use crate::wire;

pub fn lines() -> Vec<Line> {
    use schema::{about, count, flag, instant, list, nullable, object, page, text};
    let drain = || {
        [
            ("draining", about(flag(), "Whether it is given nothing more.")),
            ("draining_since", nullable(instant())),
            ("drained_by", nullable(text())),
            ("note", nullable(text())),
        ]
    };
    let worker = object(
        [
            ("name", text()),
            ("instance", about(nullable(text()), "Nothing where one that is drained has not asked for an hour.")),
            ("queues", list(text())),
            ("kinds", list(text())),
            ("leased_total", count()),
            ("last_seen_at", nullable(instant())),
        ]
        .into_iter()
        .chain(drain()),
    );
    let drained = || object([("name", text())].into_iter().chain(drain()));
    let instance = object([
        ("id", text()),
        ("self", about(flag(), "Whether it is the one that answers.")),
        ("version", text()),
        ("started_at", instant()),
        ("last_seen_at", instant()),
    ]);
    vec![
        line(Method::GET, "/api/v1/admin/workers", Need::Read, "Workers that ask for work, by instance", get(workers))
            .doc(Doc::new("listWorkers").answers(page(worker))),
        line(Method::POST, "/api/v1/admin/workers/{name}/drain", Need::Operate, "Drain a worker", post(drain_one)).doc(
            Doc::new("drainWorker")
                .about(
                    "It keeps what it has and is given nothing more, on every instance and through restarts, until somebody takes that back. \
                     Its leases say `draining`, so it can end by itself.",
                )
                .takes::<DrainIn>()
                .example(json!({"note": "the machine is replaced"}))
                .once()
                .answers(drained())
                .problems(&["not-found"]),
        ),
        line(Method::POST, "/api/v1/admin/workers/{name}/undrain", Need::Operate, "Give it work again", post(undrain))
            .doc(Doc::new("undrainWorker").takes::<DrainIn>().once().answers(drained()).problems(&["not-found"])),
        line(Method::GET, "/api/v1/admin/instances", Need::Read, "Servers on this database", get(instances))
            .doc(Doc::new("listInstances").answers(page(instance))),
    ]
}

/// All of a namespace, by name: those who ask this instance, and those whom others told of.
async fn all_seen(app: &App, namespace: &str) -> Result<Vec<(String, Seen)>, Problem> {
    app.instances.refresh(&**app.engine.store()).await?;
    let now = app.engine.now();
    let own = app.workers.latest(now.0);
    let mut seen: Vec<(String, Seen)> = own.into_iter().map(|seen| (app.instance.clone(), seen)).collect();
    for (instance, it) in app.instances.get() {
        if instance == app.instance || it.is_gone(now) {
            continue;
        }
        seen.extend(it.workers.into_iter().map(|seen| (instance.clone(), seen)));
    }
    seen.retain(|(_, seen)| seen.namespace == namespace);
    seen.sort_by(|(a, x), (b, y)| (&x.name, a).cmp(&(&y.name, b)));
    Ok(seen)
}

async fn workers(State(app): State<Arc<App>>, Extension(caller): Extension<Caller>) -> Result<Json<Value>, Problem> {
    let seen = all_seen(&app, &caller.namespace).await?;
    app.drained.refresh(&**app.engine.store()).await?;
    let drained: BTreeMap<String, Drain> =
        app.drained.look(|all| all.of(&caller.namespace).map(|(name, drain)| (name.clone(), drain.clone())).collect());
    let mut items = Vec::with_capacity(seen.len());
    for (name, drain) in &drained {
        if !seen.iter().any(|(_, seen)| seen.name == *name) {
            let unseen = json!({
                "instance": null, "queues": [], "kinds": [], "leased_total": 0, "last_seen_at": null,
            });
            items.push(shown(name, Some(drain), unseen));
        }
    }
    items.extend(seen.into_iter().map(|(instance, seen)| {
        let asks = json!({
            "instance": instance,
            "queues": seen.queues,
            "kinds": seen.kinds,
            "leased_total": seen.leased,
            "last_seen_at": Timestamp(seen.at).to_rfc3339(),
        });
        shown(&seen.name, drained.get(&seen.name), asks)
    }));
    items.sort_by(|a, b| a["name"].as_str().cmp(&b["name"].as_str()));
    Ok(Json(json!({"items": items, "next_cursor": null})))
}

fn shown(name: &str, drain: Option<&Drain>, mut with: Value) -> Value {
    with["name"] = name.into();
    with["draining"] = drain.is_some().into();
    with["draining_since"] = drain.map(|drain| Timestamp(drain.at).to_rfc3339()).into();
    with["drained_by"] = drain.and_then(|drain| drain.by.as_deref()).into();
    with["note"] = drain.and_then(|drain| drain.note.as_deref()).into();
    with
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = DrainWorker)]
struct DrainIn {
    #[serde(default)]
    #[schema(value_type = Option<stands_for::Note>)]
    note: Option<String>,
}

async fn drain_one(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    once: Once,
    body: Bytes,
) -> Result<Json<Value>, Problem> {
    let by = act_of(&app, &caller, &body)?;
    let seen = known(&app, &caller.namespace, &name).await?;
    let (here, namespace, worker) = (app.clone(), caller.namespace.clone(), name.clone());
    let act = async move {
        let is_here = |name: &str| seen.iter().any(|(_, seen)| seen.name == name);
        let entry = here.engine.entry(Did::WorkerDrain, &worker, &by).within(&namespace);
        let drain = Drain { at: here.engine.now().0, by: by.by, note: by.note };
        let change = |all: &mut Drained| all.add(&namespace, &worker, &drain, is_here);
        let noted = |added: &Option<_>| matches!(added, Some((_, true))).then(|| entry.clone());
        match here.drained.change_noted(&**here.engine.store(), change, noted).await? {
            Some((drain, _)) => Ok(Json(shown(&worker, Some(&drain), json!({})))),
            None => Err(Invalid::one("name", format!("{} are drained, which is the most", Drained::MOST)).into()),
        }
    };
    let (there, namespace) = (app.clone(), caller.namespace.clone());
    once.guard(&app, &caller.namespace, &body, act, async move { Ok(now_of(&there, &namespace, &name)) }).await
}

async fn undrain(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    once: Once,
    body: Bytes,
) -> Result<Json<Value>, Problem> {
    let by = act_of(&app, &caller, &body)?;
    known(&app, &caller.namespace, &name).await?;
    let (here, namespace, worker) = (app.clone(), caller.namespace.clone(), name.clone());
    let act = async move {
        let entry = here.engine.entry(Did::WorkerUndrain, &worker, &by).within(&namespace);
        let change = |all: &mut Drained| all.remove(&namespace, &worker);
        let noted = |removed: &Option<Drain>| removed.as_ref().map(|_| entry.clone());
        here.drained.change_noted(&**here.engine.store(), change, noted).await?;
        Ok(Json(shown(&worker, None, json!({}))))
    };
    let (there, namespace) = (app.clone(), caller.namespace.clone());
    once.guard(&app, &caller.namespace, &body, act, async move { Ok(now_of(&there, &namespace, &name)) }).await
}

/// Who does it and why; refused where that cannot be kept.
fn act_of(app: &App, caller: &Caller, body: &Bytes) -> Result<Act, Problem> {
    let act = caller.act(None, wire::read::<DrainIn>(body)?.note);
    app.engine.config().limits.check_act(&act)?;
    Ok(act)
}

/// Everybody who is there. A name that nobody has is a slip of the pen: it would be drained and nothing would come of it.
async fn known(app: &App, namespace: &str, name: &str) -> Result<Vec<(String, Seen)>, Problem> {
    let seen = all_seen(app, namespace).await?;
    app.drained.refresh(&**app.engine.store()).await?;
    let is_drained = app.drained.look(|all| all.get(namespace, name).is_some());
    if is_drained || seen.iter().any(|(_, seen)| seen.name == name) {
        return Ok(seen);
    }
    Err(Problem::not_found("worker"))
}

fn now_of(app: &App, namespace: &str, name: &str) -> Json<Value> {
    app.drained.look(|all| Json(shown(name, all.get(namespace, name), json!({}))))
}

async fn instances(State(app): State<Arc<App>>) -> Result<Json<Value>, Problem> {
    app.instances.refresh(&**app.engine.store()).await?;
    let at = |ms: i64| Timestamp(ms).to_rfc3339();
    let now = app.engine.now();
    let items: Vec<Value> = app
        .instances
        .get()
        .into_iter()
        .filter(|(id, it)| *id == app.instance || !it.is_gone(now))
        .map(|(id, it)| {
            json!({
                "id": id,
                "self": id == app.instance,
                "version": it.version,
                "started_at": at(it.started_at),
                "last_seen_at": at(it.seen_at),
            })
        })
        .collect();
    Ok(Json(json!({"items": items, "next_cursor": null})))
}
