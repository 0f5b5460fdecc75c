//! Tasks.

use super::sql;

sql! {
    /// The times that the first record of a lone task is made of.
    FIRST_TIMES = "select submitted_at, start_at from task where id = $1 and execution_id is null";
    OPEN_WITH_KEY = "select d.task_id, o.state from dedupe d join task_open o on o.id = d.task_id
           where d.namespace = $1 and d.key = $2";
    SET_PRIORITY = "update task set priority = $2 where id = $1";
    SET_PAYLOAD = "update task set payload = $2 where id = $1";
    /// Keeps the payload that an edit replaces.
    KEEP_PAYLOAD = "insert into task_payload (task_id, version, payload, last_run, at, actor)
           select id, $2, payload, $3, $4, $5 from task where id = $1";
    OLD_PAYLOADS = "select version, payload, last_run, at, actor from task_payload where task_id = $1 order by version";
    LANES_OF_EXECUTION = "select distinct lane from task_open where execution_id = $1";
}
