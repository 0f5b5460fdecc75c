//! Other servers' routes for the same tasks: their bodies and answers, in their own words. Every one of them ends in a command of the
//! engine that a native route has too; no rule is here.

mod batch;
mod shape;

use serde_json::Value;

use crate::routes::Line;
pub use shape::Shape;

pub fn lines() -> Vec<Line> {
    [batch::lines()].into_iter().flatten().collect()
}

/// What is answered, for the document.
pub fn shapes() -> Vec<(&'static str, Value)> {
    [shape::shapes(), batch::shapes()].into_iter().flatten().collect()
}
