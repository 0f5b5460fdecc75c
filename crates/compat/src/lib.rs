//! Routes of other systems for the same tasks: batches of hooks (dialect `task`), the queue and the events of a playbook engine (dialect
//! `step`), retry schedules (dialect `workflow`) and manual retries of jobs (dialect `job`). Bodies, answers and errors are in the words
//! of those systems. Every route ends in a command of the engine that a native route has too; no rule about tasks is here.
//!
//! A server has these routes if [`routes`] is among its [added routes](comeback_server::AppOptions::added_routes).

#![deny(missing_docs)]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used))]

mod batch;
mod dialect_schemas;
mod errors;
mod jobs;
mod queue;
mod schedules;

use comeback_server::RouteSet;
use comeback_server::route::Line;
use serde_json::Value;

/// The routes of all dialects.
pub fn routes() -> RouteSet {
    RouteSet {
        tag: "Other dialects",
        about: "For clients of other servers: their routes, their bodies and their answers; the tasks are the same.",
        lines,
        schemas,
    }
}

fn lines() -> Vec<Line> {
    [batch::lines(), queue::lines(), schedules::lines(), jobs::lines()].into_iter().flatten().collect()
}

fn schemas() -> Vec<(&'static str, Value)> {
    [errors::schemas(), batch::schemas(), queue::schemas(), schedules::schemas()].into_iter().flatten().collect()
}
