//! The queue and the events of a playbook engine (dialect `step`): workers lease one job at a time and say how it ended.

mod events;
mod leased_by;
mod output;
mod routes;
mod status;

use serde_json::Value;

use crate::routes::Line;
pub use leased_by::LeasedBy;

pub fn lines() -> Vec<Line> {
    [routes::lines(), events::lines()].into_iter().flatten().collect()
}

pub fn shapes() -> Vec<(&'static str, Value)> {
    output::shapes()
}
