//! Policies: parse, describe, simulate and back-test.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{Extension, Path, State};
use axum::http::{Method, StatusCode};
use axum::response::Json;
use axum::routing::{delete, get, post, put};
use bytes::Bytes;
use comeback_core::forecast::Assumed;
use comeback_core::{
    AuditAction, Failure, Invalid, Millis, Policy, Quota, TaskId, Trigger, dialect, explain, forecast,
};
use comeback_engine::store::{KindPolicy, StoreError};
use comeback_engine::{Cohort, MOST_LIVES, USUAL_LIVES};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use utoipa::ToSchema;
use uuid::Uuid;

use super::tasks::filter_from;
use super::{Line, line};
use crate::App;
use crate::auth::{Caller, Need};
use crate::openapi::{Doc, schema, schema_types};
use crate::problem::Problem;
use crate::wire::lease::{ErrorIn, WholeError};
use crate::wire::{self, DurationIn, task};

/// Routes of this module.
pub fn lines() -> Vec<Line> {
    let summary = "Simulate a policy";
    let played = "Back-test a policy on recorded failures";
    let one = "/api/v1/policies/{kind}";
    let example = json!({"policy": "exp(60s, x2, max 1h, 5 retries)", "error": {"status": 503}, "seed": 1});
    let bound = || schema::named("BoundPolicy");
    vec![
        line(Method::POST, "/api/v1/policies/simulate", Need::Read, summary, post(simulate)).doc(
            Doc::new("simulatePolicy")
                .needs::<SimulateIn>()
                .example(example)
                .example(json!({"policy": {"maxAttempts": 3, "waitDuration": 5000}, "dialect": "workflow"}))
                .answers(schema::named("Simulation")),
        ),
        line(Method::POST, "/api/v1/policies/backtest", Need::Read, played, post(backtest)).doc(
            Doc::new("backtestPolicy")
                .about(
                    "Replays tasks that failed at least once under this policy, with the real engine, at the times \
                     that the policy chooses. An attempt succeeds after the recorded success, and before it fails as \
                     recorded; without recorded data the result counts as `unknown`. Nothing is changed.",
                )
                .needs::<PolicyBacktestIn>()
                .example(json!({
                    "policy": "exp(60s, x2, max 1h, 3 retries)", "filter": "kind:payments.charge", "within": "7d",
                }))
                .example(json!({"policy": false, "limit": 100}))
                .answers(schema::named("PolicyBacktest")),
        ),
        line(Method::GET, "/api/v1/policies", Need::Read, "List policies bound to kinds", get(list))
            .doc(Doc::new("listPolicies").answers(schema::page(bound()))),
        line(Method::GET, one, Need::Read, "Get the policy of a kind", get(show))
            .doc(Doc::new("getPolicy").answers(bound()).problems(&["not-found"])),
        line(Method::PUT, one, Need::Operate, "Bind a policy to a kind", put(bind)).doc(
            Doc::new("bindPolicy")
                .about("Applies to new tasks of this kind without `retry`.")
                .needs::<BindIn>()
                .example(json!({"policy": {"strategy": "fixed", "delay": "5m", "max_retries": 3}}))
                .answers(bound())
                .problems(&["quota-exceeded"]),
        ),
        line(Method::DELETE, one, Need::Operate, "Unbind the policy of a kind", delete(unbind))
            .doc(Doc::new("unbindPolicy").answers_nothing().problems(&["not-found"])),
    ]
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = SimulationRequest)]
struct SimulateIn {
    #[schema(value_type = schema_types::RetryPolicySchema)]
    policy: Value,
    #[serde(default)]
    #[schema(value_type = Option<schema_types::DialectSchema>)]
    dialect: Option<String>,
    /// Failures of the attempts in order; the last one repeats. Default: an error without a class.
    #[serde(default)]
    #[schema(value_type = Vec<schema_types::AssumedFailureSchema>, max_items = 1000)]
    failures: Vec<serde_json::Map<String, Value>>,
    /// Failure of every attempt.
    #[serde(default)]
    error: Option<ErrorIn>,
    /// Seed of the jitter, for repeatable results.
    #[serde(default)]
    seed: Option<u64>,
    /// Maximum number of attempts; default: 50.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
}

/// A failure as in a worker's report, and in `after` the duration of the attempt.
fn read_assumed(at: &str, mut given: serde_json::Map<String, Value>, faults: &mut Invalid) -> Option<Assumed> {
    let after = given.remove("after").map(wire::read_part).transpose();
    let after = after.map_err(|part| faults.absorb(&format!("{at}.after"), part)).ok()?;
    let error = wire::read_part::<WholeError>(Value::Object(given));
    let error = error.map_err(|part| faults.absorb(at, part)).ok()?;
    Some(Assumed { after: after.map_or(Millis(0), |DurationIn(span)| span), failure: error.failure(at, faults) })
}

/// Maximum number of failures in a request.
const MOST_FAILURES: usize = 1_000;
/// Maximum number of simulated attempts.
const MOST_SIMULATED: usize = 1_000;

/// Time limit of a simulation; returns the attempts computed by then.
const LONGEST_SIMULATION: Duration = Duration::from_secs(1);
/// Maximum number of concurrent simulations: each takes a core.
static SIMULATIONS: Semaphore = Semaphore::const_new(2);

/// Runs a simulation on a blocking thread: parsing and simulating a policy may take a while.
async fn simulate(State(app): State<Arc<App>>, body: Bytes) -> Result<Json<Value>, Problem> {
    let _place = SIMULATIONS.acquire().await;
    let played = tokio::task::spawn_blocking(move || simulated(&app, &body)).await;
    played.map_err(|error| StoreError::Unavailable(error.to_string()))?.map(Json)
}

fn simulated(app: &App, body: &Bytes) -> Result<Value, Problem> {
    let given: SimulateIn = wire::read(body)?;
    let limits = app.engine.config().policy_limits;
    let policy = read_policy(app, "policy", &given.policy, given.dialect.as_deref())?;
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
    let at_most = given.limit.unwrap_or(50);
    if !(1..=MOST_SIMULATED).contains(&at_most) {
        return Err(Invalid::one("limit", format!("must be between 1 and {MOST_SIMULATED}")).into());
    }
    let now = app.engine.now();
    let id = TaskId(given.seed.map_or_else(Uuid::now_v7, |seed| Uuid::from_u128(u128::from(seed))));
    let began = Instant::now();
    let goes_on = || began.elapsed() < LONGEST_SIMULATION;
    let coming = forecast::of_policy_while(policy.clone(), limits, &failures, id, now, at_most, &goes_on);
    let mut shown = task::forecast(&coming);
    for (attempt, coming) in shown["attempts"].as_array_mut().into_iter().flatten().zip(&coming.attempts) {
        let Some(record) = &coming.verdict else { continue };
        attempt["decision"] = json!(record.decision.as_ref().map(wire::decision));
        attempt["verdict"] = json!(record.decision.as_ref().map(|decision| decision.verdict));
        attempt["text"] = explain::verdict(record).into();
    }
    shown["policy"] = policy.as_ref().map_or(Value::Bool(false), |policy| policy.to_json());
    shown["words"] = json!(explain::policy(policy.as_deref()));
    shown["now"] = now.to_rfc3339().into();
    Ok(shown)
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = PolicyBacktestRequest)]
struct PolicyBacktestIn {
    #[schema(value_type = schema_types::RetryPolicySchema)]
    policy: Value,
    #[serde(default)]
    #[schema(value_type = Option<schema_types::DialectSchema>)]
    dialect: Option<String>,
    /// Filter of the tasks; default: all.
    #[serde(default)]
    filter: Option<String>,
    /// Only tasks changed within this time; default: 7 days.
    #[serde(default)]
    within: Option<DurationIn>,
    /// Maximum number of tasks, most recently changed first; default: 1000.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 5000)]
    limit: Option<u32>,
}

async fn backtest(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    body: Bytes,
) -> Result<Json<Value>, Problem> {
    let given: PolicyBacktestIn = wire::read(&body)?;
    let policy = read_policy(&app, "policy", &given.policy, given.dialect.as_deref())?;
    let most = given.limit.unwrap_or(USUAL_LIVES);
    if !(1..=MOST_LIVES).contains(&most) {
        return Err(Invalid::one("limit", format!("must be between 1 and {MOST_LIVES}")).into());
    }
    let filter = filter_from("filter", given.filter.as_deref().unwrap_or_default(), app.engine.now())?;
    let within = given.within.map_or(Millis::from_days(7), |DurationIn(span)| span);
    let tested = app.engine.backtest(&caller.namespace, &Cohort { filter, within, most }, policy.clone()).await?;
    let mut shown = wire::backtest::shown(&tested);
    shown["policy"] = policy.as_ref().map_or(Value::Bool(false), |policy| policy.to_json());
    shown["words"] = json!(explain::policy(policy.as_deref()));
    Ok(Json(shown))
}

/// `None` if the policy means no retry.
pub fn read_policy(app: &App, at: &str, given: &Value, dialect: Option<&str>) -> Result<Option<Arc<Policy>>, Problem> {
    let read = dialect::parse(given, task::read_dialect(dialect)?, &app.engine.config().policy_limits);
    Ok(read.map_err(|faults| faults.under(at))?.map(Arc::new))
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = PolicyBinding)]
struct BindIn {
    #[schema(value_type = schema_types::RetryPolicySchema)]
    policy: Value,
    #[serde(default)]
    #[schema(value_type = Option<schema_types::DialectSchema>)]
    dialect: Option<String>,
}

async fn bind(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(kind): Path<String>,
    body: Bytes,
) -> Result<Json<Value>, Problem> {
    let given: BindIn = wire::read(&body)?;
    let mut faults = Invalid::default();
    app.engine.config().limits.check_name("kind", &kind, &mut faults);
    faults.or(())?;
    let dialect = task::read_dialect(given.dialect.as_deref())?;
    let text = given.policy.to_string();
    let limits = app.engine.config().policy_limits;
    app.policies.read(&text, dialect, &limits).map_err(|faults| faults.under("policy"))?;
    let (store, namespace) = (&**app.engine.store(), caller.namespace.clone());
    let given = json!({"policy": given.policy, "dialect": dialect.word()});
    let entry = app.engine.entry(AuditAction::PolicyBind, &kind, &caller.act(None, None)).within(&namespace);
    let policy = KindPolicy { namespace, kind: kind.clone(), body: text, dialect: dialect.word().to_owned() };
    let most = app.engine.config().quotas.get(Quota::NamedPolicies);
    store.put_kind_policy(&policy, most, Some(&entry.changed(None, Some(given)))).await?;
    app.kind_policies.refresh(store).await?;
    show(State(app), Extension(caller), Path(kind)).await
}

async fn show(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(kind): Path<String>,
) -> Result<Json<Value>, Problem> {
    let store = &**app.engine.store();
    let found = app.kind_policies.of_kinds(store, &caller.namespace, [kind.as_str()]).await?.remove(&kind);
    match (found, app.engine.config().kinds.retry(&caller.namespace, &kind)) {
        (Some(given), _) => shown(&app, &kind, &given.body, &given.dialect).map(Json),
        (None, Some(policy)) => Ok(Json(in_words(&kind, "native", Some(policy)))),
        (None, None) => Err(Problem::not_found("policy")),
    }
}

fn shown(app: &App, kind: &str, text: &str, dialect: &str) -> Result<Value, Problem> {
    let policy = app.policies.read(text, task::read_dialect(Some(dialect))?, &app.engine.config().policy_limits)?;
    Ok(in_words(kind, dialect, policy.as_deref()))
}

fn in_words(kind: &str, dialect: &str, policy: Option<&Policy>) -> Value {
    json!({
        "kind": kind,
        "dialect": dialect,
        "policy": policy.map_or(Value::Bool(false), Policy::to_json),
        "words": explain::policy(policy),
    })
}

async fn list(State(app): State<Arc<App>>, Extension(caller): Extension<Caller>) -> Result<Json<Value>, Problem> {
    let (store, kinds) = (&**app.engine.store(), app.kind_policies.kinds(&caller.namespace));
    let mut items = BTreeMap::new();
    for kind in app.engine.config().kinds.iter().filter(|kind| kind.namespace == caller.namespace) {
        if let Some(policy) = &kind.retry {
            items.insert(kind.name.clone(), in_words(&kind.name, "native", Some(policy)));
        }
    }
    // A few at a time: their texts may be large.
    for some in kinds.chunks(16) {
        let names = some.iter().map(String::as_str);
        for (kind, given) in app.kind_policies.of_kinds(store, &caller.namespace, names).await? {
            let item = shown(&app, &kind, &given.body, &given.dialect)?;
            items.insert(kind, item);
        }
    }
    let items: Vec<Value> = items.into_values().collect();
    Ok(Json(json!({"items": items, "next_cursor": null})))
}

async fn unbind(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(kind): Path<String>,
) -> Result<StatusCode, Problem> {
    let namespace = &caller.namespace;
    let entry = app.engine.entry(AuditAction::PolicyUnbind, &kind, &caller.act(None, None)).within(namespace);
    let store = &**app.engine.store();
    // An invalid name cannot exist.
    if kind.contains('\0') {
        return Err(Problem::not_found("policy"));
    }
    if !store.delete_kind_policy(namespace, &kind, Some(&entry)).await? {
        return Err(Problem::not_found("policy"));
    }
    app.kind_policies.refresh(store).await?;
    Ok(StatusCode::NO_CONTENT)
}
