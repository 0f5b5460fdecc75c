//! What the loops and the workers' heartbeats write, and small facts about the store.

use std::collections::{BTreeSet, HashMap};
use std::sync::LazyLock;

use comeback_core::{Audit, Record, State, Timestamp, transition};
use deadpool_postgres::{Client, GenericClient, Transaction};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::apply::{append, lock_executions, take_turns, update_open, write_executions, write_feed};
use super::learn;
use super::rows::{Reader, read_open};
use super::{PostgresStore, audit, operations, sequence};
use crate::StoreError;
use crate::audit::pause_facts;
use crate::check::PRUNED_BEFORE;
use crate::row::{Fixed, OPEN_COLUMNS, OpenRow, READY, RETRY_DUE, columns, corrupt, oldest_id, whole_ones};
use crate::types::*;

/// Extends what is still held by the number it names. The expiry is compared in a way that no index offers itself for:
/// the rows must be found by their ids.
pub const BEAT: &str = "update task_open o set lease_expires = i.expires, version = o.version + 1, updated_at = greatest($6, o.updated_at),
               timeout_at = case when o.timeout_at is null then null
                 when o.state = 5 then o.started_at + o.attempt_deadline_ms
                 else least($6 + o.timeout_ms, o.started_at + o.attempt_deadline_ms) end,
               progress = coalesce(i.progress, o.progress), started_at = coalesce(o.started_at, greatest($6, o.updated_at))
             from unnest($1::int4[], $2::uuid[], $3::int4[], $4::int8[], $5::text[])
               as i(index, id, number, expires, progress)
             where o.id = i.id and o.lease_no = i.number and coalesce(o.lease_expires, 0) > $6
             returning i.index, o.lease_expires";

pub async fn heartbeat(store: &PostgresStore, beats: &[Beat], now: Timestamp) -> Result<Vec<BeatAnswer>, StoreError> {
    if beats.is_empty() {
        return Ok(Vec::new());
    }
    let mut order: Vec<usize> = (0..beats.len()).collect();
    order.sort_unstable_by_key(|index| beats[*index].task);
    let index: Vec<i32> = order.iter().map(|index| i32::try_from(*index).unwrap_or(i32::MAX)).collect();
    let ids: Vec<Uuid> = order.iter().map(|index| beats[*index].task.0).collect();
    let numbers: Vec<i32> = order.iter().map(|index| beats[*index].lease_number.cast_signed()).collect();
    let expires: Vec<i64> = order.iter().map(|index| (now + beats[*index].extend).0).collect();
    let progress: Vec<Option<&str>> = order.iter().map(|index| beats[*index].progress.as_deref()).collect();
    let client = store.writer().await?;
    let statement = client.prepare_cached(BEAT).await?;
    let mut answers = vec![BeatAnswer::Lost; beats.len()];
    for row in client.query(&statement, &[&index, &ids, &numbers, &expires, &progress, &now.0]).await? {
        answers[row.get::<_, i32>(0).cast_unsigned() as usize] = BeatAnswer::Extended(Timestamp(row.get(1)));
    }
    let lost: Vec<Uuid> =
        beats.iter().zip(&answers).filter(|(_, it)| **it == BeatAnswer::Lost).map(|(beat, _)| beat.task.0).collect();
    if !lost.is_empty() {
        let statement =
            client.prepare_cached("select id, lease_no from task_done where id = any($1) and state = $2").await?;
        let canceled: HashMap<Uuid, i32> = client
            .query(&statement, &[&lost, &State::Canceled.code()])
            .await?
            .iter()
            .map(|row| (row.get(0), row.get(1)))
            .collect();
        for (beat, answer) in beats.iter().zip(&mut answers) {
            let last = canceled.get(&beat.task.0);
            if *answer == BeatAnswer::Lost && last.is_some_and(|last| beat.lease_number.cast_signed() <= *last) {
                *answer = BeatAnswer::Canceled;
            }
        }
    }
    Ok(answers)
}

/// Locked in one order, as everybody does.
const OUTLAST: &str =
    "with l as (select id from task_open where lease_expires > $1 and lease_expires <= $2 order by id for update)
     update task_open o set lease_expires = o.lease_expires + ($2 - $1), version = o.version + 1,
       timeout_at = case when o.timeout_at > $1 then o.timeout_at + ($2 - $1) else o.timeout_at end
     from l where o.id = l.id and o.lease_expires > $1 and o.lease_expires <= $2";

pub async fn outlast(store: &PostgresStore, from: Timestamp, to: Timestamp) -> Result<u64, StoreError> {
    let client = store.writer().await?;
    let statement = client.prepare_cached(OUTLAST).await?;
    Ok(client.execute(&statement, &[&from.0, &to.0]).await?)
}

/// All of them or none; in one order, as everybody locks.
const COUNT: &str = "with l as (select id from task_open where id = any($1) and state in (2, 3) order by id for update)
     update task_open o set success = least(o.success + i.success, 2147483647)::int4,
       failures = least(o.failures + i.failures, 2147483647)::int4, expected = coalesce(i.expected, o.expected),
       version = o.version + 1, updated_at = greatest($5, o.updated_at),
       timeout_at = case when o.timeout_at is null then null
         else least($5 + o.timeout_ms, o.started_at + o.attempt_deadline_ms) end
     from l join unnest($1::uuid[], $2::int8[], $3::int8[], $4::int4[]) as i(id, success, failures, expected) on i.id = l.id
     where o.id = l.id returning o.id";

pub async fn count(store: &PostgresStore, counts: &[Count], now: Timestamp) -> Result<Vec<bool>, StoreError> {
    let ids: Vec<Uuid> = counts.iter().map(|it| it.task.0).collect();
    let success: Vec<i64> = counts.iter().map(|it| it.success.into()).collect();
    let failures: Vec<i64> = counts.iter().map(|it| it.failures.into()).collect();
    let expected = |it: &Count| it.expected.map(|expected| i32::try_from(expected).unwrap_or(i32::MAX));
    let expected: Vec<Option<i32>> = counts.iter().map(expected).collect();
    let client = store.writer().await?;
    let statement = client.prepare_cached(COUNT).await?;
    let rows = client.query(&statement, &[&ids, &success, &failures, &expected, &now.0]).await?;
    let counted: BTreeSet<Uuid> = rows.iter().map(|row| row.get(0)).collect();
    Ok(ids.iter().map(|id| counted.contains(id)).collect())
}

/// Lone tasks whose small events are carried: one statement moves them all.
fn promotion(index_condition: &str, event: i16) -> String {
    format!(
        "with u as (
           update task_open o set state = 1, version = o.version + 1, seq = o.seq + 1,
             unwritten = (o.unwritten | {event})::int2, ready_at = greatest($1, o.updated_at),
             updated_at = greatest($1, o.updated_at), due = null, next_retry_at = null,
             start_at = null, started_at = null, held_until = null, held_by = null
           where o.id = any(array(select id from task_open where {index_condition} and hold = 0 and due <= $1
             and (expires_at is null or expires_at > $1) and execution_id is null and lane <> all($3::int4[])
             and not exists (select 1 from loop_pause where name = $4 and until > $1)
             order by due, id limit $2 for update skip locked))
           returning o.id, o.seq, o.lane),
         f as (insert into feed (at, namespace, ids, firsts, lasts)
           select $1, l.namespace, array_agg(u.id), array_agg(u.seq), array_agg(u.seq)
           from u left join ruled_lane r on r.id = u.lane join lane l on l.id = coalesce(r.lane, u.lane)
           group by l.namespace)
         select lane, count(*) from u group by lane"
    )
}

pub static RETRIES: LazyLock<String> = LazyLock::new(|| promotion("state = 4", RETRY_DUE));
pub static STARTS: LazyLock<String> = LazyLock::new(|| promotion("state = 0 and due is not null", READY));

pub async fn promote(store: &PostgresStore, what: Promote, now: Timestamp, limit: u32) -> Result<Promoted, StoreError> {
    let (name, sql) = match what {
        Promote::Retries => (Loop::Retries, &RETRIES),
        Promote::Starts => (Loop::Starts, &STARTS),
    };
    let slow = store.dictionary.slow_lanes();
    let mut promoted = Promoted::default();
    let mut client = store.writer().await?;
    let (most, word) = (i64::from(limit), name.word());
    let mut left = store.dictionary.strange_lanes();
    left.extend(&slow);
    let rows = unless_paused(&client, name, sql, &[&now.0, &most, &left, &word]).await?;
    for row in &rows {
        promoted.count += u32::try_from(row.get::<_, i64>(1)).unwrap_or(0);
        promoted.lanes.extend(store.dictionary.lane(row.get(0)));
    }
    if !slow.is_empty() {
        let tx = client.transaction().await?;
        if !pause_lock(&tx, name, now).await? {
            promote_step_by_step(store, &tx, what, &slow, now, limit, &mut promoted).await?;
            tx.commit().await?;
        }
    }
    drop(client);
    if rows.iter().any(|row| store.dictionary.lane(row.get(0)).is_none()) {
        learn::know(store, rows.iter().map(|row| (row.get(0), None))).await?;
        promoted.lanes.extend(rows.iter().filter_map(|row| store.dictionary.lane(row.get(0))));
    }
    Ok(promoted)
}

/// The whole transaction goes out in one write: retries that are due should not wait for round trips. The lock comes first and the
/// pause is looked at by a statement of its own, so a pause that was acknowledged is seen.
pub async fn unless_paused(
    client: &Client,
    name: Loop,
    sql: &str,
    params: &[&(dyn ToSql + Sync)],
) -> Result<Vec<Row>, StoreError> {
    let lock = client.prepare_cached(PAUSE_LOCK).await?;
    let statement = client.prepare_cached(sql).await?;
    let number = lock_number(name);
    let lock_params: [&(dyn ToSql + Sync); 1] = [&number];
    let (begun, locked, rows, committed) = tokio::join!(
        client.batch_execute("begin"),
        client.execute(&lock, &lock_params),
        client.query(&statement, params),
        client.batch_execute("commit"),
    );
    begun?;
    locked?;
    let rows = rows?;
    committed?;
    Ok(rows)
}

/// Where each step is a row of history: executions first and in order, then the tasks that are due and have not moved meanwhile.
async fn promote_step_by_step(
    store: &PostgresStore,
    tx: &Transaction<'_>,
    what: Promote,
    slow: &[i32],
    now: Timestamp,
    limit: u32,
    promoted: &mut Promoted,
) -> Result<(), StoreError> {
    let condition = match what {
        Promote::Retries => "o.state = 4",
        Promote::Starts => "o.state = 0 and o.due is not null",
    };
    let due = format!(
        "{condition} and o.hold = 0 and o.due <= $1 and (o.expires_at is null or o.expires_at > $1)
         and o.lane = any($3::int4[])"
    );
    let sql =
        format!("select o.id, o.execution_id, o.version from task_open o where {due} order by o.due, o.id limit $2");
    let statement = tx.prepare_cached(&sql).await?;
    let candidates = tx.query(&statement, &[&now.0, &i64::from(limit), &slow]).await?;
    if candidates.is_empty() {
        return Ok(());
    }
    let ids: Vec<Uuid> = candidates.iter().map(|row| row.get(0)).collect();
    let versions: Vec<i32> = candidates.iter().map(|row| row.get(2)).collect();
    let executions: BTreeSet<Uuid> = candidates.iter().filter_map(|row| row.get(1)).collect();
    let executions: Vec<Uuid> = executions.into_iter().collect();
    take_turns(tx, &executions).await?;
    let mut locked = lock_executions(store, tx, &executions).await?;
    // What has its version is as due as it was; no condition of an index is said again, or the planner might read all of that for
    // each.
    let sql = format!(
        "select {} from unnest($2::uuid[], $4::int4[]) as i(id, version)
         join task_open o on o.id = i.id and o.version = i.version
         where o.hold + 0 = 0 and (o.expires_at is null or o.expires_at > $1) and o.lane = any($3::int4[])
         order by o.due, o.id for update of o skip locked",
        columns("o", &OPEN_COLUMNS)
    );
    let statement = tx.prepare_cached(&sql).await?;
    let rows = tx.query(&statement, &[&now.0, &ids, &slow, &versions]).await?;
    let open: Vec<OpenRow> = rows.iter().map(|row| read_open(&mut Reader::new(row))).collect::<Result<_, _>>()?;
    let dedupe: Vec<i16> = open.iter().map(|row| row.dedupe).collect();
    let mut writes = Vec::new();
    let mut told: Vec<(i32, Record, u32)> = Vec::new();
    for (stored, dedupe) in learn::readable_open(store, open).await?.into_iter().zip(dedupe) {
        let Some(stored) = stored else { continue };
        let task = stored.task;
        let Ok(step) = transition::promote(&task, now) else { continue };
        let lane = store.dictionary.lane_id(&task.lane).ok_or_else(|| corrupt("a task's lane"))?;
        let namespace = store.dictionary.lane_namespace(lane).ok_or_else(|| corrupt("a lane"))?;
        promoted.count += 1;
        promoted.lanes.push(task.lane.clone());
        let fixed = Fixed { hard_deadline: stored.hard_deadline, dedupe: dedupe != 0 };
        writes.push((OpenRow::new(&step.after, lane, stored.policy_id, fixed), task.version));
        let Some(record) = step.record else { continue };
        match record.execution {
            None => {
                let first = record.seq;
                told.push((namespace, record, first));
            }
            Some(id) => {
                let (_, log) = locked.get_mut(&id.0).ok_or_else(|| corrupt("a task without its execution"))?;
                log.add(record);
            }
        }
    }
    update_open(tx, &writes).await?;
    write_executions(tx, locked.values().map(|(execution, log)| (execution, log.last))).await?;
    for (execution, log) in locked.into_values() {
        let namespace =
            store.dictionary.namespace(&execution.namespace).ok_or_else(|| corrupt("an execution's namespace"))?;
        told.extend(log.records.into_iter().map(|(record, seq)| (namespace, record, seq)));
    }
    append(tx, &told).await?;
    write_feed(tx, &told, now).await
}

/// Lock numbers of the loops: work holds one shared, a pause takes it alone.
fn lock_number(name: Loop) -> i64 {
    let place = Loop::ALL.iter().position(|it| *it == name).unwrap_or(0);
    0x636f_6d65_0000_0000 + i64::try_from(place).unwrap_or(0)
}

pub const PAUSE_LOCK: &str = "select pg_advisory_xact_lock_shared($1)";
const IS_PAUSED: &str = "select exists (select 1 from loop_pause where name = $1 and until > $2)";

/// Whether the loop is paused at this moment.
pub async fn is_paused(client: &impl GenericClient, name: Loop, now: Timestamp) -> Result<bool, StoreError> {
    let statement = client.prepare_cached(IS_PAUSED).await?;
    Ok(client.query_one(&statement, &[&name.word(), &now.0]).await?.get(0))
}

/// Whether the loop is paused. If it is not, no pause can begin before this transaction ends: an acknowledged pause means that
/// nothing of the loop is still under way anywhere (R-I16).
pub async fn pause_lock(tx: &Transaction<'_>, name: Loop, now: Timestamp) -> Result<bool, StoreError> {
    let lock = tx.prepare_cached(PAUSE_LOCK).await?;
    let look = tx.prepare_cached(IS_PAUSED).await?;
    let number = lock_number(name);
    let word = name.word();
    let lock_params: [&(dyn ToSql + Sync); 1] = [&number];
    let look_params: [&(dyn ToSql + Sync); 2] = [&word, &now.0];
    let (locked, row) = tokio::join!(tx.execute(&lock, &lock_params), tx.query_one(&look, &look_params));
    locked?;
    Ok(row?.get(0))
}

pub async fn set_pause(
    store: &PostgresStore,
    name: Loop,
    pause: Option<&Pause>,
    audit: Option<&Audit>,
) -> Result<(), StoreError> {
    let mut client = store.writer().await?;
    let tx = client.transaction().await?;
    tx.execute("select pg_advisory_xact_lock($1)", &[&lock_number(name)]).await?;
    if audit.is_some() {
        let old = tx.query_opt("select until, note, actor from loop_pause where name = $1", &[&name.word()]).await?;
        let old = old.map(|row| pause_facts(row.get(0), row.get(1), row.get(2)));
        audit::note(&tx, audit, old).await?;
    }
    match pause {
        None => tx.execute("delete from loop_pause where name = $1", &[&name.word()]).await?,
        Some(pause) => {
            tx.execute(
                "insert into loop_pause (name, until, note, actor, at) values ($1, $2, $3, $4, $5)
                 on conflict (name) do update set until = excluded.until, note = excluded.note, actor = excluded.actor,
                   at = excluded.at",
                &[&name.word(), &pause.until.0, &pause.note, &pause.by, &pause.at.0],
            )
            .await?
        }
    };
    tx.commit().await?;
    Ok(())
}

/// Whole executions, and lone tasks, that ended long enough ago; with each go its body, its history and its edges.
pub async fn prunable(store: &PostgresStore, before: Timestamp) -> Result<u64, StoreError> {
    let row = store
        .reader()
        .await?
        .query_one(
            "select (select count(*) from task_done where id < $2 and execution_id is null and ended_at < $1) +
               (select coalesce(sum(total), 0) from execution
                where id < $2 and state in (3, 4, 5) and ended_at < $1 and open = 0)",
            &[&before.0, &oldest_id(before)],
        )
        .await?;
    Ok(row.get::<_, i64>(0).cast_unsigned())
}

pub async fn prune(store: &PostgresStore, before: Timestamp, limit: u32) -> Result<Pruned, StoreError> {
    // What has no position yet would stay.
    store.sequencer.run().await?;
    let mut client = store.writer().await?;
    let tx = client.transaction().await?;
    let lone = tx
        .query(
            "delete from task_done where id = any(array(select id from task_done
               where id < $3 and execution_id is null and ended_at < $1 order by id limit $2
               for update skip locked)) returning id",
            &[&before.0, &i64::from(limit), &oldest_id(before)],
        )
        .await?;
    let mut ids: Vec<Uuid> = lone.iter().map(|row| row.get(0)).collect();
    let at_limit = |count: u64| count >= u64::from(limit);
    let mut more = at_limit(lone.len() as u64);
    let found = tx
        .query(
            "select id, total from execution
             where id < $3 and state in (3, 4, 5) and ended_at < $1 and open = 0 order by id limit $2
             for update skip locked",
            &[&before.0, &i64::from(limit), &oldest_id(before)],
        )
        .await?;
    let (executions, more_of_them): (Vec<Uuid>, bool) =
        whole_ones(found.iter().map(|row| (row.get(0), row.get(1))).collect(), limit);
    more |= more_of_them;
    if !executions.is_empty() {
        tx.execute("delete from execution where id = any($1)", &[&executions]).await?;
        let inside = tx.query("select id from task where execution_id = any($1)", &[&executions]).await?;
        let inside: Vec<Uuid> = inside.iter().map(|row| row.get(0)).collect();
        tx.execute("delete from task_done where id = any($1)", &[&inside]).await?;
        tx.execute("delete from edge where from_id = any($1)", &[&inside]).await?;
        tx.execute("delete from history where subject = any($1)", &[&executions]).await?;
        ids.extend(inside);
    }
    tx.execute("delete from history where subject = any($1)", &[&ids]).await?;
    tx.execute("delete from task where id = any($1)", &[&ids]).await?;
    tx.execute("delete from task_payload where task_id = any($1)", &[&ids]).await?;
    let told = sequence::prune(&tx, before.0, i64::from(limit)).await?;
    let keys = tx
        .execute(
            "delete from idempotency where (namespace, scope, key) in
               (select namespace, scope, key from idempotency where at < $1 order by at limit $2)",
            &[&before.0, &i64::from(limit)],
        )
        .await?;
    more |= !operations::prune(&tx, before, limit).await?;
    if !ids.is_empty() || told > 0 {
        tx.execute(
            "insert into meta (key, value) values ($1, $2) on conflict (key) do update set value = excluded.value
             where excluded.value::int8 > meta.value::int8",
            &[&PRUNED_BEFORE, &before.0.to_string()],
        )
        .await?;
    }
    tx.commit().await?;
    Ok(Pruned { tasks: ids.len() as u64, more: more || at_limit(told) || at_limit(keys) })
}

pub async fn put_meta(
    store: &PostgresStore,
    key: &str,
    value: &str,
    when: PutIf<'_>,
    audit: Option<&Audit>,
) -> Result<String, StoreError> {
    let mut client = store.writer().await?;
    let client = client.transaction().await?;
    let written = match when {
        PutIf::Always => {
            let sql =
                "insert into meta (key, value) values ($1, $2) on conflict (key) do update set value = excluded.value";
            client.execute(sql, &[&key, &value]).await?
        }
        PutIf::Absent => {
            let sql = "insert into meta (key, value) values ($1, $2) on conflict do nothing";
            client.execute(sql, &[&key, &value]).await?
        }
        PutIf::Is(known) => {
            let sql = "update meta set value = $2 where key = $1 and value = $3";
            client.execute(sql, &[&key, &value, &known]).await?
        }
    };
    // By the count, not by looking again: somebody may have changed it since.
    if written > 0 {
        audit::note(&client, audit, None).await?;
        client.commit().await?;
        return Ok(value.to_owned());
    }
    let stands = client.query_opt("select value from meta where key = $1", &[&key]).await?;
    stands.map(|row| row.get(0)).ok_or_else(|| corrupt("a fact that was just written"))
}
