//! Policies: how one is read, in words, and what it would do.

use std::sync::Arc;

use axum::extract::{Extension, Path, State};
use axum::http::{Method, StatusCode};
use axum::response::Json;
use axum::routing::{delete, get, post, put};
use bytes::Bytes;
use comeback_core::forecast::Assumed;
use comeback_core::{Failure, Invalid, Millis, TaskId, Trigger, dialect, explain, forecast};
use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{Line, line};
use crate::App;
use crate::auth::{Caller, Need};
use crate::problem::Problem;
use crate::wire::lease::{ErrorIn, WholeError};
use crate::wire::{self, Span, task};

pub fn lines() -> Vec<Line> {
    let summary = "How a policy is read, and when it would retry";
    let one = "/api/v1/policies/{kind}";
    vec![
        line(Method::POST, "/api/v1/policies/simulate", Need::Read, summary, post(simulate)),
        line(Method::GET, "/api/v1/policies", Need::Read, "Policies that are bound to kinds", get(list)),
        line(Method::GET, one, Need::Read, "The policy of a kind", get(show)),
        line(Method::PUT, one, Need::Operate, "Bind a policy to a kind", put(bind)),
        line(Method::DELETE, one, Need::Operate, "Leave a kind without a policy", delete(unbind)),
    ]
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SimulateIn {
    policy: Value,
    #[serde(default)]
    dialect: Option<String>,
    /// How the attempts fail, one after the other; the last one repeats. Errors without a class where nothing is said.
    #[serde(default)]
    failures: Vec<serde_json::Map<String, Value>>,
    /// How every attempt fails.
    #[serde(default)]
    error: Option<ErrorIn>,
    /// Makes the jitter repeatable.
    #[serde(default)]
    seed: Option<u64>,
    #[serde(default)]
    limit: Option<usize>,
}

/// A failure as a worker would report it, and in `after` how long the attempt runs before.
fn read_assumed(at: &str, mut given: serde_json::Map<String, Value>, faults: &mut Invalid) -> Option<Assumed> {
    let mut fault = |at: String, error: serde_json::Error| faults.push(at, error.to_string());
    let after = given.remove("after").map(serde_json::from_value).transpose();
    let after = after.map_err(|error| fault(format!("{at}.after"), error)).ok()?;
    let error = serde_json::from_value::<WholeError>(Value::Object(given));
    let error = error.map_err(|error| fault(at.to_owned(), error)).ok()?;
    Some(Assumed { after: after.map_or(Millis(0), |Span(span)| span), failure: error.failure(at, faults) })
}

/// As many failures as anybody would write down.
const MOST_FAILURES: usize = 1_000;

async fn simulate(State(app): State<Arc<App>>, body: Bytes) -> Result<Json<Value>, Problem> {
    let given: SimulateIn = wire::read(&body)?;
    let limits = app.engine.config().policy_limits;
    let read = dialect::parse(&given.policy, task::read_dialect(given.dialect.as_deref())?, &limits);
    let policy = read.map_err(|faults| faults.under("policy"))?.map(Arc::new);
    let mut faults = Invalid::default();
    if given.failures.len() > MOST_FAILURES {
        faults.push("failures", format!("at most {MOST_FAILURES} are allowed"));
    }
    if given.error.is_some() && !given.failures.is_empty() {
        faults.push("error", "give either `error` or `failures`");
    }
    let mut failures: Vec<Assumed> = Vec::new();
    for (i, assumed) in given.failures.into_iter().enumerate() {
        failures.extend(read_assumed(&format!("failures[{i}]"), assumed, &mut faults));
    }
    failures.extend(given.error.map(|error| error.failure(&mut faults).into()));
    faults.or(())?;
    if failures.is_empty() {
        failures.push(Failure::new(Trigger::Error, "as assumed").into());
    }
    let now = app.engine.now();
    let id = TaskId(given.seed.map_or_else(Uuid::now_v7, |seed| Uuid::from_u128(u128::from(seed))));
    let at_most = given.limit.unwrap_or(50).clamp(1, 1_000);
    let coming = forecast::of_policy(policy.clone(), limits, &failures, id, now, at_most);
    let mut shown = task::forecast(&coming);
    for (attempt, coming) in shown["attempts"].as_array_mut().into_iter().flatten().zip(&coming.attempts) {
        let Some(record) = &coming.verdict else { continue };
        attempt["decision"] = json!(record.decision);
        attempt["verdict"] = json!(record.decision.as_ref().map(|decision| decision.verdict));
        attempt["text"] = explain::verdict(record).into();
    }
    shown["policy"] = policy.as_ref().map_or(Value::Bool(false), |policy| policy.to_json());
    shown["words"] = json!(explain::policy(policy.as_deref()));
    shown["now"] = now.to_rfc3339().into();
    Ok(Json(shown))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BindIn {
    policy: Value,
    #[serde(default)]
    dialect: Option<String>,
}

async fn bind(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(kind): Path<String>,
    body: Bytes,
) -> Result<Json<Value>, Problem> {
    let given: BindIn = wire::read(&body)?;
    let dialect = task::read_dialect(given.dialect.as_deref())?;
    let text = given.policy.to_string();
    let limits = app.engine.config().policy_limits;
    app.policies.read(&text, dialect, &limits).map_err(|faults| faults.under("policy"))?;
    let (store, namespace) = (&**app.engine.store(), caller.namespace.clone());
    let value = (text, dialect.word().to_owned());
    app.bound
        .change(store, |bound| bound.entry(namespace.clone()).or_default().insert(kind.clone(), value.clone()))
        .await?;
    show(State(app), Extension(caller), Path(kind)).await
}

async fn show(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(kind): Path<String>,
) -> Result<Json<Value>, Problem> {
    let found = app.bound.look(|bound| bound.get(&caller.namespace).and_then(|kinds| kinds.get(&kind)).cloned());
    let (text, dialect) = found.ok_or_else(|| Problem::not_found("policy"))?;
    shown(&app, &kind, &text, &dialect).map(Json)
}

fn shown(app: &App, kind: &str, text: &str, dialect: &str) -> Result<Value, Problem> {
    let policy = app.policies.read(text, task::read_dialect(Some(dialect))?, &app.engine.config().policy_limits)?;
    Ok(json!({
        "kind": kind,
        "dialect": dialect,
        "policy": policy.as_ref().map_or(Value::Bool(false), |policy| policy.to_json()),
        "words": explain::policy(policy.as_deref()),
    }))
}

async fn list(State(app): State<Arc<App>>, Extension(caller): Extension<Caller>) -> Result<Json<Value>, Problem> {
    let kinds = app.bound.look(|bound| bound.get(&caller.namespace).cloned()).unwrap_or_default();
    let items: Result<Vec<Value>, Problem> =
        kinds.iter().map(|(kind, (text, dialect))| shown(&app, kind, text, dialect)).collect();
    Ok(Json(json!({"items": items?, "next_cursor": null})))
}

async fn unbind(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(kind): Path<String>,
) -> Result<StatusCode, Problem> {
    let namespace = caller.namespace;
    let change = |bound: &mut crate::shared::Bound| bound.get_mut(&namespace).and_then(|kinds| kinds.remove(&kind));
    let removed = app.bound.change(&**app.engine.store(), change).await?;
    removed.map(|_| StatusCode::NO_CONTENT).ok_or_else(|| Problem::not_found("policy"))
}
