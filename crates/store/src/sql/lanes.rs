//! Lanes and policies.

use super::sql;

sql! {
    COUNT_LIVE_POLICIES = "select count(*) from policy where namespace = (select id from namespace where name = $1)
           and retired is null";
    COUNT_POLICIES = "select count(*) from policy";
    KEEP_POLICIES = "update policy set retired = null where retired is not null";
    USED_POLICIES = "select distinct policy from task where policy is not null";
    /// All but the newest.
    POLICIES = "select id from policy where id < (select max(id) from policy)";
}
