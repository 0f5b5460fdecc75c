//! Other servers' routes for the same tasks: their bodies and answers, in their own words. Every one of them ends in a command of the
//! engine that a native route has too; no rule is here.

mod batch;
mod jobs;
mod queue;
mod schedules;
mod shape;

use serde_json::Value;

use crate::routes::Line;
pub(crate) use queue::LeasedBy;
pub use shape::Shape;

pub fn lines() -> Vec<Line> {
    [batch::lines(), queue::lines(), schedules::lines(), jobs::lines()].into_iter().flatten().collect()
}

/// What is answered, for the document.
pub fn shapes() -> Vec<(&'static str, Value)> {
    [shape::shapes(), batch::shapes(), queue::shapes(), schedules::shapes()].into_iter().flatten().collect()
}
