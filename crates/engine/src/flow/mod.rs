//! Workflows: steps that wait at a gate, go over lists, stand for executions of their own, and see what others left.
//!
//! A step is a task with a `Step` beside its body. Nothing about it is remembered here: what stands at a gate, which loops are
//! through and which executions have ended is asked of the store, so another instance can go on at any point.

pub(crate) mod above;
pub(crate) mod calls;
mod context;
pub(crate) mod gates;
mod render;
mod standing;
mod start;
mod turns;

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use comeback_core::{ExecutionId, Policy, expression, workflow};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{CommandError, ExecutionSpec, TaskSpec};

pub use standing::WorkflowStanding;
pub use start::{Start, Started};
pub(crate) use turns::Pace;

/// A step of a workflow, stored with its task.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Step {
    /// It is skipped where this does not hold once its needs are met.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub condition: Option<String>,
    /// The loop, if it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub foreach: Option<Foreach>,
    /// Its result as other steps see it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    /// It stands for an execution of this workflow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call: Option<Call>,
    /// Named outputs.
    #[serde(skip_serializing_if = "serde_json::Map::is_empty")]
    pub vars: serde_json::Map<String, Value>,
    /// Names that its own texts know beside all others.
    #[serde(skip_serializing_if = "serde_json::Map::is_empty")]
    pub locals: serde_json::Map<String, Value>,
    /// Which round of a loop it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub round: Option<Round>,
    /// Steps that its templates use, by name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sees: Vec<String>,
    /// Texts may name steps and the input without saying so, as playbooks do.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub bare_names: bool,
}

/// A loop over items.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Foreach {
    /// A list, or an expression that gives one.
    pub items: Value,
    /// Name of the item in the templates of a round.
    pub name: String,
    /// One after the other: the first failure ends it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sequential: bool,
    /// Rounds at the same time; `None` means all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// Task of each round.
    pub each: Each,
}

/// How each round is run. Everything else it has from the step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Each {
    /// Its executor.
    pub executor: String,
    /// Its timeout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// Its limit per attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt_deadline_ms: Option<u64>,
    /// The call, if each round calls a workflow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<Call>,
}

/// A call of another workflow.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Call {
    /// The workflow.
    pub workflow: String,
    /// Its version; `None` means the active one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
    /// Input of the execution.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Value>,
    /// Its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Labels of the execution.
    #[serde(default, skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    pub labels: std::collections::BTreeMap<String, String>,
    /// External id of the execution.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_id: Option<String>,
    /// The execution of its first run, if the caller knows its id already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<ExecutionId>,
    /// The instant of a schedule, which every one of its executions knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub firing: Option<comeback_store::Firing>,
}

/// A round of a loop.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Round {
    /// The step that goes over the list.
    pub of: String,
    /// Index of the item.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// The item.
    pub item: Value,
}

impl Step {
    /// Whether something must be worked out before it may start.
    pub fn has_gate(&self) -> bool {
        self.condition.is_some() || self.foreach.is_some()
    }

    /// Whether it stands for others and has no run of its own.
    pub fn stands_for_others(&self) -> bool {
        self.foreach.is_some() || self.call.is_some()
    }

    /// Whether others see something else than what it reported.
    pub(crate) fn shapes_its_result(&self) -> bool {
        self.output.is_some() || !self.vars.is_empty()
    }

    /// Its result as other steps see it, unless it is defined per round.
    pub(crate) fn output_of_all(&self) -> Option<&Value> {
        self.output.as_ref().filter(|_| self.output_of_each().is_none())
    }

    /// Output of each round of a loop in place of its result.
    pub(crate) fn output_of_each(&self) -> Option<&Value> {
        let foreach = self.foreach.as_ref()?;
        self.output.as_ref().filter(|output| workflow::names_a_round(output, &foreach.name))
    }

    /// As it is while there is no round yet.
    pub(crate) fn before_rounds(&self) -> Step {
        match &self.foreach {
            Some(foreach) => {
                Step { locals: workflow::known_before_rounds(&self.locals, &foreach.name), ..self.clone() }
            }
            None => self.clone(),
        }
    }

    pub(crate) fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    pub(crate) fn read(text: &str) -> Option<Step> {
        serde_json::from_str(text).ok()
    }
}

/// The steps that the texts of a value speak of. Where they may be named without saying so, every name may be a step.
pub fn steps_named(value: &Value, bare_names: bool) -> Vec<String> {
    let mut names = BTreeSet::new();
    collect_names(value, &mut names);
    let step = |name: &String| match name.strip_prefix("steps.") {
        Some(rest) => rest.split('.').next().map(str::to_owned),
        None if bare_names => name.split('.').next().map(str::to_owned),
        None => None,
    };
    let named: BTreeSet<String> = names.iter().filter_map(step).collect();
    named.into_iter().collect()
}

/// Every name that the texts of a value ask for, dotted as far as it is written so.
pub fn collect_names(value: &Value, into: &mut BTreeSet<String>) {
    match value {
        Value::String(text) => into.extend(expression::check_template(text).unwrap_or_default()),
        Value::Array(items) => items.iter().for_each(|item| collect_names(item, into)),
        Value::Object(fields) => fields.values().for_each(|field| collect_names(field, into)),
        _ => {}
    }
}

/// A workflow, ready to be executed.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Its steps, each with its `Step`.
    pub tasks: Vec<TaskSpec>,
    /// Settings of the execution.
    pub execution: ExecutionSpec,
    /// Default input.
    pub input: serde_json::Map<String, Value>,
    /// Of the execution as a whole.
    pub retry: Option<Arc<Policy>>,
    /// Template of the output.
    pub output: Option<Value>,
    /// Whether templates may name steps and the input without a prefix.
    pub bare_names: bool,
}

/// Reads what stands in the catalog. The engine keeps the texts, and knows nothing of how they are written.
#[async_trait]
pub trait Workflows: Send + Sync {
    async fn plan(&self, namespace: &str, text: &str) -> Result<Plan, CommandError>;

    /// One task, as a request describes it.
    async fn task(&self, namespace: &str, body: &Value) -> Result<TaskSpec, CommandError>;
}

/// The shelf on which workflows stand.
pub const WORKFLOWS: &str = "workflows";
