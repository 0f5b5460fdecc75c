//! Batches of tasks that are called and answer by themselves (dialect `task`): a batch is an execution, a task is a hook's.

mod actions;
mod create;
mod dedupe;
mod input;
mod output;
mod routes;
mod rules;

pub use output::schemas;
pub use routes::lines;
