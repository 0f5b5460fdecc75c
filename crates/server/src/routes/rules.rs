//! Admission rules: limits on running tasks, or on their total weight.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{Extension, Path, State};
use axum::http::{Method, StatusCode};
use axum::response::Json;
use axum::routing::{delete, get, put};
use bytes::Bytes;
use comeback_core::Invalid;
use comeback_core::admission::{Bound, MOST, Matcher, Rule};
use comeback_engine::RuleView;
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::{Line, line};
use crate::App;
use crate::auth::{Caller, Need};
use crate::openapi::{Doc, schema, schema_types};
use crate::problem::Problem;
use crate::wire::{self, Object};

/// Routes of this module.
pub fn lines() -> Vec<Line> {
    let one = "/api/v1/rules/{name}";
    let shape = || schema::named("Rule");
    vec![
        line(Method::GET, "/api/v1/rules", Need::Read, "List admission rules", get(list))
            .doc(Doc::new("listRules").answers(schema::page(shape()))),
        line(Method::GET, one, Need::Read, "Get a rule and its usage", get(show))
            .doc(Doc::new("getRule").answers(shape()).problems(&["not-found"])),
        line(Method::PUT, one, Need::Operate, "Create or update a rule", put(make)).doc(
            Doc::new("putRule")
                .about(
                    "Limits running tasks on all instances together; tasks that already run continue. After the \
                     response the rule applies to every open task. Tasks that wait for a retry are not counted.",
                )
                .needs::<RuleIn>()
                .example(json!({"match": {"queue": "payments"}, "max_running": 5}))
                .example(json!({"match": {"kind": "etl"}, "per": ["tenant"], "max_running": 1}))
                .example(json!({"match": {"labels": {"db": "main"}}, "capacity": 1000}))
                .answers(shape()),
        ),
        line(Method::DELETE, one, Need::Operate, "Delete a rule", delete(remove))
            .doc(Doc::new("deleteRule").answers_nothing().problems(&["not-found"])),
    ]
}

/// A rule: the tasks it matches, and the limit for those that run. Give one of `max_running` and `capacity`.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewRule)]
struct RuleIn {
    #[serde(default, rename = "match")]
    #[schema(value_type = Option<MatchIn>)]
    matcher: Option<Object<MatchIn>>,
    /// Labels: each combination of their values has its own limit. A task without one of them is not limited.
    #[serde(default)]
    #[schema(value_type = Vec<schema_types::NameSchema>, max_items = 16)]
    per: Vec<String>,
    /// Maximum number of running tasks.
    #[serde(default)]
    #[schema(maximum = 1_000_000_000)]
    max_running: Option<u32>,
    /// Maximum total weight of the running tasks: `expected` minus the progress of each, or 1 without `expected`.
    #[serde(default)]
    #[schema(maximum = 1_000_000_000)]
    capacity: Option<u32>,
    /// Fair share: within a priority, the value of `per` with the fewest running tasks goes first.
    #[serde(default)]
    fair: bool,
}

/// Conditions of a rule; fields left out match everything.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = RuleMatch)]
struct MatchIn {
    #[serde(default)]
    #[schema(value_type = Option<schema_types::NameSchema>)]
    queue: Option<String>,
    #[serde(default)]
    #[schema(value_type = Option<schema_types::NameSchema>)]
    kind: Option<String>,
    #[serde(default)]
    #[schema(value_type = schema_types::LabelsSchema)]
    labels: BTreeMap<String, String>,
}

impl RuleIn {
    fn rule(self, name: String) -> Result<Rule, Invalid> {
        let bound = match (self.max_running, self.capacity) {
            (Some(most), None) => Bound::Running(most),
            (None, Some(most)) => Bound::Capacity(most),
            (None, None) if self.fair => Bound::Running(MOST),
            (None, None) => return Err(Invalid::one("max_running", "give either `max_running` or `capacity`")),
            (Some(_), Some(_)) => return Err(Invalid::one("capacity", "give either `max_running` or `capacity`")),
        };
        let MatchIn { queue, kind, labels } = self.matcher.map(|Object(matcher)| matcher).unwrap_or_default();
        Ok(Rule {
            name,
            matcher: Matcher { queue, kind, labels, dependency: None },
            per: self.per,
            bound,
            fair: self.fair,
            carried: false,
        })
    }
}

fn shown(view: &RuleView) -> Value {
    let RuleView { rule, used } = view;
    let (most, capacity) = match rule.bound {
        Bound::Running(MOST) if rule.fair => (None, None),
        Bound::Running(most) => (Some(most), None),
        Bound::Capacity(capacity) => (None, Some(capacity)),
    };
    let used: Vec<Value> = used
        .iter()
        .map(|(key, used)| json!({"per": key.per, "running": used.running, "weight": used.weight}))
        .collect();
    json!({
        "name": rule.name,
        "match": {"queue": rule.matcher.queue, "kind": rule.matcher.kind, "labels": rule.matcher.labels},
        "per": rule.per,
        "max_running": most,
        "capacity": capacity,
        "fair": rule.fair,
        "used": used,
    })
}

async fn list(State(app): State<Arc<App>>, Extension(caller): Extension<Caller>) -> Result<Json<Value>, Problem> {
    let items: Vec<Value> = app.engine.rules(&caller.namespace).await?.iter().map(shown).collect();
    Ok(Json(json!({"items": items, "next_cursor": null})))
}

async fn show(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Result<Json<Value>, Problem> {
    Ok(Json(shown(&app.engine.rule(&caller.namespace, &name).await?)))
}

async fn make(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    body: Bytes,
) -> Result<Json<Value>, Problem> {
    let given: RuleIn = wire::read(&body)?;
    app.engine.put_rule(&caller.namespace, given.rule(name.clone())?, &caller.act(None, None)).await?;
    show(State(app), Extension(caller), Path(name)).await
}

async fn remove(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Result<StatusCode, Problem> {
    app.engine.delete_rule(&caller.namespace, &name, &caller.act(None, None)).await?;
    Ok(StatusCode::NO_CONTENT)
}
