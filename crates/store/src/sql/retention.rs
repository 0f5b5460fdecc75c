//! Retention.

use super::sql;

sql! {
    COUNT_OLD = "select (select count(*) from task_done where id < $2 and execution_id is null and ended_at < $1) +
           (select coalesce(sum(total), 0) from execution
           where id < $2 and state in (3, 4, 5) and ended_at < $1 and open = 0)";
}
