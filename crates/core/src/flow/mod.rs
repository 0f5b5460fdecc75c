//! Executions (graphs of tasks), workflow documents and schedules.

pub mod execution;
pub mod graph;
pub mod schedule;
pub mod standing;
pub mod workflow;
