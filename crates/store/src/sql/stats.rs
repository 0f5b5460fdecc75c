//! Statistics.

use super::sql;

sql! {
    /// How far statistics are.
    PLACE = "select place from stat_fold";
    MOVE_ON = "update stat_fold set place = $2, at = $3 where place = $1";
    DELETE_OLD = "delete from stat where (at, cell, measure) in
           (select at, cell, measure from stat where at < $1 order by at limit $2)";
    DELETE_OLD_CELLS = "delete from stat_cell where id in (select id from stat_cell where last_at < $1 order by id limit $2)";
    DELETE_OLD_GROUPS = "delete from error_group where last_seen < $1 and reclassified is null";
}
