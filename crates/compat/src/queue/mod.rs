//! Queue and events of a playbook engine (dialect `step`): workers lease one job at a time and report how it ended.

mod events;
mod holder;
mod leased_by;
mod output;
mod routes;
mod status;

use comeback_server::route::Line;
use serde_json::Value;

/// Lines of the route table.
pub fn lines() -> Vec<Line> {
    [routes::lines(), events::lines()].into_iter().flatten().collect()
}

/// Schemas that the lines refer to.
pub fn schemas() -> Vec<(&'static str, Value)> {
    output::schemas()
}
