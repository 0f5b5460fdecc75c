//! Schedules: what starts by itself, at which instants or by which events, and how far each has come.
//!
//! A schedule is one row. What it starts and the instant up to which it is dealt with are written in one commit, so that no
//! instant fires twice, whoever looks and whoever is killed.

mod events;
mod fire;

use std::collections::BTreeMap;

use comeback_core::schedule::{CAUGHT_UP, CatchUp, MOST_CAUGHT_UP, Overlap, Times};
use comeback_core::workflow::WorkflowState;
use comeback_core::{ExecutionId, Invalid, TaskId, Timestamp};
use comeback_store::{FiredBy, Resource};
pub use events::{Came, OutsideEvent};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A schedule as a caller asks for it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScheduleSpec {
    /// Trigger.
    pub times: Times,
    /// Target.
    pub starts: Starts,
    /// Treatment of missed instants.
    pub catch_up: CatchUp,
    /// For `all`.
    pub catch_up_limit: u32,
    /// Treatment of runs that overlap.
    pub overlap: Overlap,
    /// Whether it is paused.
    #[serde(default)]
    pub paused: bool,
    /// Note of its author.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// Target of a schedule. Templates in an input or a task may use the instant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Starts {
    /// A workflow.
    Workflow {
        path: String,
        /// The newest at each instant where nothing is said.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        version: Option<u32>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        input: Option<Value>,
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        labels: BTreeMap<String, String>,
    },
    /// One task, as a request describes it.
    Task(Value),
}

impl Starts {
    /// The workflow whose state it follows.
    pub fn workflow(&self) -> Option<&str> {
        match self {
            Starts::Workflow { path, .. } => Some(path),
            Starts::Task(_) => None,
        }
    }
}

impl ScheduleSpec {
    /// A schedule with default settings.
    pub fn new(times: Times, starts: Starts) -> ScheduleSpec {
        ScheduleSpec {
            times,
            starts,
            catch_up: CatchUp::Last,
            catch_up_limit: CAUGHT_UP,
            overlap: Overlap::Allow,
            paused: false,
            note: None,
        }
    }

    pub(crate) fn check(&self) -> Result<comeback_core::schedule::Calendar, Invalid> {
        let mut faults = Invalid::default();
        if self.catch_up_limit == 0 || self.catch_up_limit > MOST_CAUGHT_UP {
            faults.push("catch_up_limit", format!("must be between 1 and {MOST_CAUGHT_UP}"));
        }
        match self.times.read() {
            Ok(calendar) => faults.or(calendar),
            Err(part) => {
                faults.absorb("", part);
                Err(faults)
            }
        }
    }
}

/// How far a schedule has come.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ScheduleState {
    /// Every instant up to here is dealt with, this one too.
    pub settled: Timestamp,
    /// The last run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_run: Option<Run>,
    /// The last run that a caller triggered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_manual_run: Option<Run>,
    /// The last instant that could not be started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<Miss>,
    /// Runs so far.
    pub fired: u64,
    /// Instants that passed unseen and were not made up for.
    pub missed: u64,
    /// Instants at which the run before was still open.
    pub skipped: u64,
    /// Instants at which nothing could be started.
    pub failed: u64,
}

/// Run of one instant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// The instant.
    pub scheduled_at: Timestamp,
    /// Time of the start.
    pub started_at: Timestamp,
    /// Trigger of the run.
    pub trigger: FiredBy,
    /// The execution, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution: Option<ExecutionId>,
    /// A lone task, or the one that stands for the execution.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<TaskId>,
}

/// An instant at which nothing could be started, and why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Miss {
    /// The instant.
    pub scheduled_at: Timestamp,
    /// Time of the error.
    pub at: Timestamp,
    /// The error.
    pub message: String,
}

/// A schedule as it is shown.
#[derive(Clone, Debug, PartialEq)]
pub struct ScheduleView {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its specification.
    pub spec: ScheduleSpec,
    /// Its state.
    pub standing: ScheduleState,
    /// Of the workflow that it starts.
    pub workflow: WorkflowState,
    /// The instants that come next.
    pub next: Vec<Timestamp>,
    /// Whether nothing can let it fire any more.
    pub is_over: bool,
    /// Time of its creation.
    pub created_at: Timestamp,
    /// Time of its last change.
    pub updated_at: Timestamp,
}

/// How many instants are shown beforehand.
const SHOWN: usize = 5;

impl ScheduleView {
    /// Where it stands, in the words of F0-8.
    pub fn state(&self) -> &'static str {
        let standing = &self.standing;
        let failing = standing
            .last_error
            .as_ref()
            .is_some_and(|error| standing.last_run.as_ref().is_none_or(|run| run.scheduled_at < error.scheduled_at));
        if self.spec.paused {
            "paused"
        } else if self.is_over || self.workflow == WorkflowState::Inactive {
            "stopped"
        } else if self.workflow == WorkflowState::Paused {
            "paused"
        } else if failing {
            "error"
        } else if standing.last_run.is_none() {
            "initialized"
        } else {
            "active"
        }
    }

    /// Without the state of its workflow, which is looked up beside it.
    pub(crate) fn of(row: &Resource, now: Timestamp) -> Result<ScheduleView, String> {
        let (spec, standing) = read(row)?;
        let calendar = spec.times.read().map_err(|faults| faults.to_string())?;
        let after = standing.settled.max(now);
        let next = if spec.paused { Vec::new() } else { calendar.coming(after).take(SHOWN).collect() };
        Ok(ScheduleView {
            workflow: WorkflowState::Active,
            is_over: calendar.is_over(after),
            namespace: row.namespace.clone(),
            name: row.name.clone(),
            spec,
            standing,
            next,
            created_at: row.created_at,
            updated_at: row.updated_at,
        })
    }

    /// It follows its workflow.
    pub(crate) fn following(mut self, workflow: WorkflowState) -> ScheduleView {
        self.workflow = workflow;
        if workflow != WorkflowState::Active {
            self.next.clear();
        }
        self
    }
}

pub(crate) fn read(row: &Resource) -> Result<(ScheduleSpec, ScheduleState), String> {
    let spec = serde_json::from_str(&row.body).map_err(|error| error.to_string())?;
    let standing = serde_json::from_str(&row.standing).map_err(|error| error.to_string())?;
    Ok((spec, standing))
}

pub(crate) fn text(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}
