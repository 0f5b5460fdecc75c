//! Workflows and executions.

use comeback_core::workflow::WorkflowState;
use comeback_core::{ExecutionState, OnUnmet, When};
use serde_json::{Value, json};

use super::words;
use crate::openapi::schema::*;
use crate::wire::execution::STATUSES;

/// Schemas of this module, by name.
pub fn all() -> Vec<(&'static str, Value)> {
    let version = || between(1, 2_147_483_647);
    let line =
        || vec![("path", text()), ("version", version()), ("state", named("WorkflowState")), ("created_at", instant())];
    let more = [("standing", named("WorkflowStanding")), ("source", text()), ("workflow", anything())];
    let standing = object([
        ("state", named("WorkflowState")),
        ("since", about(nullable(instant()), "Null if it was never changed.")),
        ("note", nullable(text())),
        ("by", nullable(text())),
    ]);
    let error = [("task_id", id()), ("key", nullable(text())), ("failure", nullable(named("Failure")))];
    let mut context = object([
        ("execution", json!({"type": "object"})),
        ("input", anything()),
        (
            "steps",
            about(json!({"type": "object"}), "By name, each with its `state` and, once it succeeded, its `result`."),
        ),
        ("path", about(list(text()), "The steps that have ended, in the order in which they did.")),
        ("more", about(flag(), "Whether there are more steps than are shown.")),
    ]);
    // Playbooks have names of their own.
    context["additionalProperties"] = true.into();
    let edge = object([("from", id()), ("to", id()), ("when", words!(When)), ("on_unmet", words!(OnUnmet))]);
    let whole = [
        ("input", anything()),
        ("output", about(anything(), "Output, if its workflow defines one.")),
        ("error", about(nullable(object(error)), "The first unhandled failure, if the execution failed.")),
        ("tasks", list(task())),
        ("edges", list(edge)),
    ];
    let warning = object([
        ("path", text()),
        ("message", text()),
        ("line", nullable(count())),
        ("column", nullable(count())),
        ("snippet", nullable(text())),
    ]);
    let difference = object([("path", text()), ("before", anything()), ("after", anything())]);
    vec![
        (
            "WorkflowDocument",
            about(
                json!({"type": "object"}),
                "A workflow or a playbook. Its JSON schema is at `/workflow.schema.json`.",
            ),
        ),
        ("RetryFrom", word(&["failed", "start"])),
        ("ExecutionState", words!(ExecutionState)),
        ("WorkflowState", words!(WorkflowState)),
        ("WorkflowStanding", standing),
        ("ExecutionContext", context),
        ("WorkflowLine", object(line())),
        ("Workflow", object(line().into_iter().chain(more))),
        (
            "WorkflowVersion",
            object([
                ("path", text()),
                ("version", version()),
                ("created", flag()),
                ("warnings", about(list(warning), "Changes made to an old document.")),
            ]),
        ),
        (
            "WorkflowDiff",
            object([("path", text()), ("from", version()), ("to", version()), ("differences", list(difference))]),
        ),
        (
            "Started",
            object([
                ("execution_id", id()),
                ("workflow", text()),
                ("version", version()),
                ("state", named("ExecutionState")),
                ("task_id", about(nullable(id()), "The parent task, if the execution is retried as a whole.")),
            ]),
        ),
        ("ExecutionLine", object(execution())),
        ("Execution", object(execution().into_iter().chain(whole))),
    ]
}

fn execution() -> Vec<(&'static str, Value)> {
    let maybe = || nullable(instant());
    vec![
        ("id", id()),
        ("name", nullable(text())),
        ("state", named("ExecutionState")),
        ("status", about(word(&STATUSES), "The state in the terms of a workflow engine.")),
        ("retrying", about(flag(), "Whether all its open tasks wait for a retry.")),
        ("workflow", nullable(text())),
        ("version", nullable(count())),
        ("labels", map(text())),
        ("external_id", nullable(text())),
        ("task_id", about(nullable(id()), "Its parent task.")),
        ("run", about(nullable(count()), "The run of the parent task.")),
        ("retry_of", about(nullable(id()), "The execution that this one retries, manually or by its policy.")),
        ("root_id", about(nullable(id()), "The first execution of the chain of retries.")),
        ("retry_number", about(count(), "Number of the retry; 0 if it is none.")),
        (
            "trigger",
            about(
                word(&["api", "call", "cron", "manual", "event", "retry"]),
                "Trigger: the API, a parent task, a schedule (by time, manually or by an event), or a manual retry. A \
                 retry by policy keeps the trigger of the first execution.",
            ),
        ),
        ("schedule", nullable(text())),
        ("scheduled_at", about(maybe(), "The scheduled time.")),
        ("total", count()),
        ("open", count()),
        ("counts", map(count())),
        ("created_at", instant()),
        ("started_at", maybe()),
        ("ended_at", maybe()),
        ("duration_ms", about(nullable(count()), "From its start to its end.")),
        ("updated_at", instant()),
    ]
}

fn task() -> Value {
    object([
        ("id", id()),
        ("key", nullable(text())),
        ("kind", text()),
        ("state", named("State")),
        ("attempt", count()),
        ("next_retry_at", nullable(instant())),
        ("reason", nullable(named("Reason"))),
        ("started_at", nullable(instant())),
        ("ended_at", nullable(instant())),
    ])
}
