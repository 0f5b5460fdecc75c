//! Bulk operations.

use super::sql;

sql! {
    SELECT = "select o.id, n.name, o.version, o.state, o.total, o.due, o.body, o.standing, o.created_at, o.updated_at,
           o.ended_at, o.done, o.undone from operation o join namespace n on n.id = o.namespace";
    UPDATE = "update operation set version = version + 1, state = $3, due = $4, standing = $5, updated_at = $6, ended_at = $7,
           done = $8, undone = $9
           where id = $1 and version = $2";
    IDS = "select ids from operation_part where operation = $1 and part between $2 and $3 order by part";
    DELETE_IDS = "delete from operation_part where operation = $1";
    DELETE = "delete from operation where id = $1";
}
