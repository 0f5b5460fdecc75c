//! Error groups.

use super::sql;

sql! {
    NAMESPACES = "select distinct namespace from error_group";
    NTH_NEWEST = "select last_seen, fingerprint from error_group where namespace = $1
           order by last_seen desc, fingerprint desc limit 1 offset $2";
    DELETE_UP_TO = "delete from error_group where namespace = $1 and (last_seen, fingerprint) <= ($2, $3)
           and reclassified is null";
    RECLASSIFIED = "select n.name, g.fingerprint, g.reclassified from error_group g join namespace n on n.id = g.namespace
           where g.reclassified is not null";
}
