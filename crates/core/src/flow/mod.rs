//! Workflow documents and schedules.

pub mod schedule;
pub mod workflow;
