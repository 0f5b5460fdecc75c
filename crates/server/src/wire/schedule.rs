//! Schedules, as they are asked for and as they are shown.

use std::collections::BTreeMap;

use comeback_core::Invalid;
use comeback_core::schedule::{CAUGHT_UP, CatchUp, Overlap, Times};
use comeback_engine::schedules::{Run, ScheduleSpec, ScheduleView, Starts};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::task::TaskIn;
use super::{Instant, Span};
use crate::mask;
use crate::openapi::stands_for;

/// When, and what is started then: a workflow or a task.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewSchedule)]
pub struct ScheduleIn {
    /// Needed where the address does not say it.
    #[serde(default)]
    #[schema(value_type = Option<stands_for::Name>)]
    pub name: Option<String>,
    /// Minute, hour, day, month and weekday; seconds may stand before them. Give this, `every` or `event`.
    #[serde(default)]
    #[schema(max_length = 200)]
    cron: Option<String>,
    /// The span from one instant to the next, counted from `start_at`, or from when it was made.
    #[serde(default)]
    every: Option<Span>,
    /// In place of instants: the type of an event that somebody tells (`POST /events`); it may end in `*`.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 200, pattern = "^[A-Za-z0-9._:/-]*\\*?$")]
    event: Option<String>,
    /// A name such as `Europe/Berlin`; UTC where nothing is said.
    #[serde(default)]
    #[schema(max_length = 60)]
    time_zone: Option<String>,
    /// Nothing is started before this.
    #[serde(default)]
    start_at: Option<Instant>,
    /// Nothing is started after this.
    #[serde(default)]
    end_at: Option<Instant>,
    /// The path of a workflow. Give either this or `task`.
    #[serde(default)]
    #[schema(value_type = Option<stands_for::Name>)]
    workflow: Option<String>,
    /// Of the workflow; the newest at each instant where nothing is said.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 2147483647)]
    version: Option<u32>,
    /// For the workflow. Its texts may speak of `scheduled_at`, `schedule`, `trigger` and, by an event, `event`; there its data are
    /// the input where nothing is said.
    #[serde(default)]
    #[schema(value_type = stands_for::Json, required = false)]
    input: Option<Value>,
    /// Of the executions.
    #[serde(default)]
    #[schema(value_type = stands_for::Labels)]
    labels: BTreeMap<String, String>,
    /// A single task, whose texts may speak of the same.
    #[serde(default)]
    #[schema(value_type = Option<TaskIn>)]
    task: Option<serde_json::Map<String, Value>>,
    /// What becomes of instants that passed while no server could fire them; `last` where nothing is said.
    #[serde(default)]
    #[schema(value_type = Option<stands_for::CatchUp>)]
    catch_up: Option<String>,
    /// How many of them at most, for `all`; 100 where nothing is said.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 1000)]
    catch_up_limit: Option<u32>,
    /// `skip` leaves out an instant while what the one before it started is still open; `allow` where nothing is said.
    #[serde(default)]
    #[schema(value_type = Option<stands_for::Overlap>)]
    overlap: Option<String>,
    #[serde(default)]
    paused: bool,
    #[serde(default)]
    #[schema(value_type = Option<stands_for::Note>)]
    note: Option<String>,
}

impl ScheduleIn {
    pub fn spec(self) -> Result<ScheduleSpec, Invalid> {
        let mut faults = Invalid::default();
        if let Some(Err(part)) = self.input.as_ref().map(|input| mask::refuse_sent_back("input", &json!(input))) {
            faults.absorb("", part);
        }
        if let Some(Err(part)) = self.task.as_ref().map(|task| mask::refuse_sent_back("task", &json!(task))) {
            faults.absorb("", part);
        }
        let catch_up = self.catch_up.as_deref().map_or(Some(CatchUp::Last), CatchUp::from_word);
        if catch_up.is_none() {
            faults.push("catch_up", format!("must be one of {}", CatchUp::list()));
        }
        let overlap = self.overlap.as_deref().map_or(Some(Overlap::Allow), Overlap::from_word);
        if overlap.is_none() {
            faults.push("overlap", format!("must be one of {}", Overlap::list()));
        }
        if self.version.is_some_and(|version| version == 0 || i32::try_from(version).is_err()) {
            faults.push("version", "must be a version: 1 or more");
        }
        let times = Times {
            cron: self.cron,
            every: self.every.map(|Span(span)| span),
            event: self.event,
            time_zone: self.time_zone,
            start_at: self.start_at.map(|Instant(at)| at),
            end_at: self.end_at.map(|Instant(at)| at),
            ..Times::default()
        };
        let starts = match (self.workflow, self.task) {
            (Some(path), None) => {
                Some(Starts::Workflow { path, version: self.version, input: self.input, labels: self.labels })
            }
            (None, Some(task)) => {
                let of_workflows = [
                    ("version", self.version.is_some()),
                    ("input", self.input.is_some()),
                    ("labels", !self.labels.is_empty()),
                ];
                for (field, _) in of_workflows.iter().filter(|(_, given)| *given) {
                    faults.push(*field, "is for a workflow; a task has its own fields");
                }
                Some(Starts::Task(Value::Object(task)))
            }
            (Some(_), Some(_)) => {
                for field in ["workflow", "task"] {
                    faults.push(field, "give either `workflow` or `task`");
                }
                None
            }
            (None, None) => {
                faults.push("workflow", "give `workflow` or `task`");
                None
            }
        };
        match (starts, catch_up, overlap) {
            (Some(starts), Some(catch_up), Some(overlap)) => faults.or(ScheduleSpec {
                catch_up,
                catch_up_limit: self.catch_up_limit.unwrap_or(CAUGHT_UP),
                overlap,
                paused: self.paused,
                note: self.note,
                ..ScheduleSpec::new(times, starts)
            }),
            _ => {
                // What else is wrong is told at once.
                if let Err(part) = times.read() {
                    faults.absorb("", part);
                }
                Err(faults)
            }
        }
    }
}

pub fn run(run: &Run) -> Value {
    json!({
        "scheduled_at": run.scheduled_at.to_rfc3339(),
        "started_at": run.started_at.to_rfc3339(),
        "trigger": run.trigger.word(),
        "execution_id": run.execution.map(|id| id.to_string()),
        "task_id": run.task.map(|id| id.to_string()),
    })
}

pub fn shown(view: &ScheduleView) -> Value {
    let ScheduleView { spec, standing, .. } = view;
    let times = &spec.times;
    let (mut workflow, mut version, mut input, mut labels, mut task) =
        (Value::Null, Value::Null, Value::Null, json!({}), Value::Null);
    match &spec.starts {
        Starts::Workflow { path, version: of, input: with, labels: and } => {
            (workflow, version, input, labels) = (json!(path), json!(of), json!(with), json!(and));
        }
        Starts::Task(body) => task = body.clone(),
    }
    json!({
        "name": view.name,
        "state": view.state(),
        "cron": times.cron,
        "every_ms": times.every.map(|span| span.0),
        "event": times.event,
        "time_zone": times.time_zone.as_deref().unwrap_or("UTC"),
        "start_at": super::instant(times.start_at),
        "end_at": super::instant(times.end_at),
        "workflow": workflow,
        "version": version,
        "input": input,
        "labels": labels,
        "task": task,
        "catch_up": spec.catch_up.word(),
        "catch_up_limit": spec.catch_up_limit,
        "overlap": spec.overlap.word(),
        "paused": spec.paused,
        "note": spec.note,
        "next": view.next.iter().map(|at| at.to_rfc3339()).collect::<Vec<_>>(),
        "last_run": standing.last_run.as_ref().map(run),
        "last_manual_run": standing.last_manual_run.as_ref().map(run),
        "last_error": standing.last_error.as_ref().map(|error| json!({
            "scheduled_at": error.scheduled_at.to_rfc3339(),
            "at": error.at.to_rfc3339(),
            "message": error.message,
        })),
        "fired": standing.fired,
        "missed": standing.missed,
        "skipped": standing.skipped,
        "failed": standing.failed,
        "created_at": view.created_at.to_rfc3339(),
        "updated_at": view.updated_at.to_rfc3339(),
    })
}
