//! Executions and edges.

use super::sql;

sql! {
    TREE = "select r.id, e.depth, r.total + r.tasks_below, r.state in (0, 1, 2) from execution e
           join execution r on r.id = coalesce(e.root, e.id) where e.id = $1";
    TASKS = "select id from task where execution_id = $1";
    /// Edges into a task.
    NEEDS = "select from_id, to_id, met_when, on_unmet from edge where to_id = $1 order by from_id";
    COUNT_BELOW = "update execution set tasks_below = tasks_below + $2
           where id = (select root from execution where id = $1)";
    SET_PARENT = "update execution set parent_task = $2, parent_run = $3 where id = $1";
}
