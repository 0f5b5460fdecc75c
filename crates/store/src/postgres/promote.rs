//! Making due tasks pending.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use comeback_core::{Record, Timestamp, transition};
use deadpool_postgres::Transaction;
use uuid::Uuid;

use super::apply::{append, lock_executions, lock_log_order, update_open, write_executions, write_feed};
use super::control::{pause_lock, unless_paused};
use super::rows::Reader;
use super::{PostgresStore, learn};
use crate::row::{Fixed, OpenRow, READY, RETRY_DUE, columns, corrupt};
use crate::{Loop, Promote, Promoted, StoreError};

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
    lock_log_order(tx, &executions).await?;
    let mut locked = lock_executions(store, tx, &executions).await?;
    // What has its version is as due as it was; no condition of an index is said again, or the planner might read all of that for
    // each.
    let sql = format!(
        "select {} from unnest($2::uuid[], $4::int4[]) as i(id, version)
         join task_open o on o.id = i.id and o.version = i.version
         where o.hold + 0 = 0 and (o.expires_at is null or o.expires_at > $1) and o.lane = any($3::int4[])
         order by o.due, o.id for update of o skip locked",
        columns("o", OpenRow::COLUMNS)
    );
    let statement = tx.prepare_cached(&sql).await?;
    let rows = tx.query(&statement, &[&now.0, &ids, &slow, &versions]).await?;
    let open: Vec<OpenRow> = rows.iter().map(|row| OpenRow::read(&mut Reader::new(row))).collect::<Result<_, _>>()?;
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
