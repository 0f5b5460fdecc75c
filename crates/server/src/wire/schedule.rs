//! Schedules on the wire: input and JSON.

use std::collections::BTreeMap;

use comeback_core::Invalid;
use comeback_core::schedule::{CAUGHT_UP, CatchUp, Overlap, Times};
use comeback_engine::schedules::{Run, ScheduleSpec, ScheduleView, Starts};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::task::TaskIn;
use super::{DurationIn, Instant};
use crate::mask;
use crate::openapi::schema_types;

/// A schedule: when to start a workflow or a task.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewSchedule)]
pub struct ScheduleIn {
    /// Name; required if the path does not contain it.
    #[serde(default)]
    #[schema(value_type = Option<schema_types::NameSchema>)]
    pub name: Option<String>,
    /// Cron expression: minute, hour, day, month and weekday, optionally preceded by seconds. Give this, `every` or
    /// `event`.
    #[serde(default)]
    #[schema(max_length = 200)]
    cron: Option<String>,
    /// Interval between runs, counted from `start_at` or from the creation.
    #[serde(default)]
    every: Option<DurationIn>,
    /// Event type that triggers the schedule (`POST /events`), in place of times; it may end in `*`.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 200, pattern = "^[A-Za-z0-9._:/-]*\\*?$")]
    event: Option<String>,
    /// Time zone such as `Europe/Berlin`; default: UTC.
    #[serde(default)]
    #[schema(max_length = 60)]
    time_zone: Option<String>,
    /// No runs before this time.
    #[serde(default)]
    start_at: Option<Instant>,
    /// No runs after this time.
    #[serde(default)]
    end_at: Option<Instant>,
    /// Path of a workflow. Give either this or `task`.
    #[serde(default)]
    #[schema(value_type = Option<schema_types::NameSchema>)]
    workflow: Option<String>,
    /// Version of the workflow; default: the newest at each run.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 2147483647)]
    version: Option<u32>,
    /// Input of the workflow. Templates may use `scheduled_at`, `schedule`, `trigger` and, for events, `event`; default
    /// for events: the data of the event.
    #[serde(default)]
    #[schema(value_type = schema_types::JsonSchema, required = false)]
    input: Option<Value>,
    /// Labels of the executions.
    #[serde(default)]
    #[schema(value_type = schema_types::LabelsSchema)]
    labels: BTreeMap<String, String>,
    /// A single task; its templates may use the same variables.
    #[serde(default)]
    #[schema(value_type = Option<TaskIn>)]
    task: Option<serde_json::Map<String, Value>>,
    /// Handling of runs missed while no server was up; default: `last`.
    #[serde(default)]
    #[schema(value_type = Option<schema_types::CatchUpSchema>)]
    catch_up: Option<String>,
    /// Maximum number of missed runs to catch up with `all`; default: 100.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 1000)]
    catch_up_limit: Option<u32>,
    /// `skip` skips a run while the previous one is still open; default: `allow`.
    #[serde(default)]
    #[schema(value_type = Option<schema_types::OverlapSchema>)]
    overlap: Option<String>,
    #[serde(default)]
    paused: bool,
    #[serde(default)]
    #[schema(value_type = Option<schema_types::NoteSchema>)]
    note: Option<String>,
}

impl ScheduleIn {
    /// The spec of the schedule.
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
            every: self.every.map(|DurationIn(span)| span),
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
                    faults.push(*field, "is only allowed with `workflow`; a task has its own fields");
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
                // Other faults are reported in the same response.
                if let Err(part) = times.read() {
                    faults.absorb("", part);
                }
                Err(faults)
            }
        }
    }
}

/// JSON of a run.
pub fn run(run: &Run) -> Value {
    json!({
        "scheduled_at": run.scheduled_at.to_rfc3339(),
        "started_at": run.started_at.to_rfc3339(),
        "trigger": run.trigger.word(),
        "execution_id": run.execution.map(|id| id.to_string()),
        "task_id": run.task.map(|id| id.to_string()),
    })
}

/// JSON of a schedule.
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
