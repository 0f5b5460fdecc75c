//! Policies: how one is read, in words, and what it would do.

use std::sync::Arc;

use axum::extract::State;
use axum::http::Method;
use axum::response::Json;
use axum::routing::post;
use bytes::Bytes;
use comeback_core::forecast::{RunTimes, forecast};
use comeback_core::guard::GuardView;
use comeback_core::{Failure, Invalid, Lane, Snapshot, State as TaskState, Task, TaskId, Trigger, dialect, explain};
use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{Line, line};
use crate::App;
use crate::auth::Need;
use crate::problem::Problem;
use crate::wire::lease::ErrorIn;
use crate::wire::{self, task};

pub fn lines() -> Vec<Line> {
    let summary = "How a policy is read, and when it would retry";
    vec![line(Method::POST, "/api/v1/policies/simulate", Need::Read, summary, post(simulate))]
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SimulateIn {
    policy: Value,
    #[serde(default)]
    dialect: Option<String>,
    /// How every attempt fails; an error without a class where nothing is said.
    #[serde(default)]
    error: Option<ErrorIn>,
    /// Makes the jitter repeatable.
    #[serde(default)]
    seed: Option<u64>,
    #[serde(default)]
    limit: Option<usize>,
}

async fn simulate(State(app): State<Arc<App>>, body: Bytes) -> Result<Json<Value>, Problem> {
    let given: SimulateIn = wire::read(&body)?;
    let limits = app.engine.config().policy_limits;
    let read = dialect::parse(&given.policy, task::read_dialect(given.dialect.as_deref())?, &limits);
    let policy = read.map_err(|faults| faults.under("policy"))?.map(Arc::new);
    let mut faults = Invalid::default();
    let failure = given.error.map(|error| error.failure(&mut faults));
    faults.or(())?;
    let failure = failure.unwrap_or_else(|| Failure::new(Trigger::Error, "as assumed"));
    let now = app.engine.now();
    let id = TaskId(given.seed.map_or_else(Uuid::now_v7, |seed| Uuid::from_u128(u128::from(seed))));
    let mut first = Task::new(id, Arc::new(Lane::default()), now);
    first.state = TaskState::Pending;
    let snapshot =
        Snapshot { task: first, policy: policy.clone(), policy_id: None, limits, guard: GuardView::default() };
    let coming = forecast(&snapshot, &failure, RunTimes::default(), now, given.limit.unwrap_or(50).clamp(1, 1_000));
    let mut shown = task::forecast(&coming);
    shown["policy"] = policy.as_ref().map_or(Value::Bool(false), |policy| policy.to_json());
    shown["words"] = json!(explain::policy(policy.as_deref()));
    shown["now"] = now.to_rfc3339().into();
    Ok(Json(shown))
}
