//! Rows that all instances share.

use super::sql;

sql! {
    NEXT_REMOVAL = "update shared_change set number = number + 1, removed = number + 1 where name = $1 returning number";
    NEXT_CHANGE = "update shared_change set number = number + 1 where name = $1 returning number";
    CHANGES = "select name, number, removed from shared_change";
    KEYS = "select id, namespace, name, role, hash, terms, created_at, expires_at, revoked_at, replaced_by from api_key";
    COUNT_KEYS = "select count(*), count(*) filter (where revoked_at is null and (expires_at is null or expires_at > $2))
           from api_key where namespace = $1";
    DELETE_OLD_KEYS = "delete from api_key where id in (select id from api_key where namespace = $1
           and (revoked_at is not null or expires_at <= $2) order by created_at, id limit $3)";
    ADD_KEY = "insert into api_key (id, namespace, name, role, hash, terms, created_at, expires_at, revoked_at, replaced_by, place, change)
           values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $11)";
    HAS_KEY = "select exists (select 1 from api_key where id = $1)";
    IS_NAME_TAKEN = "select exists (select 1 from api_key where name = $1 and (namespace = $2 and revoked_at is null
           and (expires_at is null or expires_at > $3) and replaced_by is null or namespace = $4 and $2 <> $4))";
    REVOKE_KEY = "update api_key set revoked_at = $2, change = $3 where id = $1 and revoked_at is null";
    POLICY_NAMES = "select namespace, kind, change from kind_policy where change > $1";
    COUNT_POLICIES = "select count(*) from kind_policy where namespace = $1";
    DELETE_POLICY = "delete from kind_policy where namespace = $1 and kind = $2";
    DRAINED = "select namespace, name, at, actor, note from drained_worker";
    COUNT_DRAINED = "select count(*) from drained_worker where namespace = $1";
    ADD_DRAINED = "insert into drained_worker (namespace, name, at, actor, note, change) values ($1, $2, $3, $4, $5, $6)";
    DELETE_DRAINED = "delete from drained_worker where namespace = $1 and name = $2";
    COUNT_WORKERS = "select namespace, count(*) from worker where seen_at > $1 group by namespace";
    DELETE_GONE_INSTANCES = "delete from instance where seen_at < $1";
}
