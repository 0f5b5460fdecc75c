//! Namespaces, pauses, idempotency keys and small facts.

use super::sql;

sql! {
    NAMESPACES = "select id, name from namespace";
    ADD_NAMESPACE = "insert into namespace (name) values ($1) on conflict do nothing";
    PAUSES = "select name, until, note, actor, at from loop_pause order by name";
    IS_PAUSED = "select exists (select 1 from loop_pause where name = $1 and until > $2)";
    PAUSE = "select until, note, actor from loop_pause where name = $1";
    DELETE_PAUSE = "delete from loop_pause where name = $1";
    META = "select value from meta where key = $1";
    ADD_META = "insert into meta (key, value) values ($1, $2) on conflict do nothing";
    CHANGE_META = "update meta set value = $2 where key = $1 and value = $3";
    PUT_META = "insert into meta (key, value) values ($1, $2) on conflict (key) do update set value = excluded.value";
    KEY_ANSWER = "select digest, answer from idempotency where namespace = $1 and scope = $2 and key = $3";
    KEY_DIGEST = "select digest from idempotency
           where namespace = (select id from namespace where name = $1) and scope = $2 and key = $3";
    DELETE_OLD_KEYS = "delete from idempotency where (namespace, scope, key) in
           (select namespace, scope, key from idempotency where at < $1 order by at limit $2)";
}
