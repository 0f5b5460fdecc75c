//! Commits that touch several rows: the executions are locked first, then their tasks, then everything is written or nothing.

use std::collections::{BTreeMap, HashMap};
use std::sync::LazyLock;

use comeback_core::{Commit, Execution, ExecutionId, ExecutionState, Record, TaskId, Timestamp, Write};
use deadpool_postgres::Transaction;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::lone::MOVED;
use crate::events::SharedLog;
use crate::postgres::PostgresStore;
use crate::postgres::rules::lanes_of_reopened;
use crate::row::{DoneColumns, DoneRow, Fixed, HistoryColumns, HistoryRow, OpenColumns, OpenRow, corrupt};
use crate::{Applied, StoreError, sql};

/// Commits that touch several rows, or rows of tasks that were over.
pub async fn apply(
    store: &PostgresStore,
    tx: &Transaction<'_>,
    commits: &[Commit],
    indexes: &[usize],
    now: Timestamp,
    answers: &mut [Applied],
) -> Result<(), StoreError> {
    let mut executions: Vec<Uuid> =
        indexes.iter().flat_map(|index| &commits[*index].executions).map(|it| it.after.id.0).collect();
    executions.sort_unstable();
    let mut locked = lock_executions(store, tx, &executions).await?;
    let versions = lock_tasks(tx, indexes.iter().flat_map(|index| &commits[*index].writes)).await?;

    let mut told: Vec<(i32, Record, u32)> = Vec::new();
    let mut moved: Vec<(OpenRow, u32)> = Vec::new();
    let mut ended: Vec<(DoneRow, u32)> = Vec::new();
    let mut written: Vec<(Execution, u32)> = Vec::new();
    for index in indexes {
        let commit = &commits[*index];
        let fresh = commit.writes.iter().all(|write| {
            versions.get(&(write.after.id.0, write.from.is_open())) == Some(&write.expected_version.cast_signed())
        });
        let current = commit
            .executions
            .iter()
            .all(|write| locked.get(&write.after.id.0).is_some_and(|(it, _)| it.version == write.expected_version));
        if !fresh || !current {
            continue;
        }
        if let Some(taken) = reopen_all(store, tx, commit).await? {
            answers[*index] = taken;
            continue;
        }
        let mut ended_again = Vec::new();
        for write in &commit.writes {
            let lane = store.dictionary.base_id(&write.after.lane).ok_or_else(|| corrupt("a task's lane"))?;
            match (write.from.is_open(), write.after.state.is_open()) {
                (true, true) => {
                    let row = OpenRow::new(&write.after, lane, None, Fixed::default());
                    moved.push((row, write.expected_version));
                }
                (true, false) => ended.push((DoneRow::new(&write.after, lane, None), write.expected_version)),
                (false, true) => {}
                (false, false) => ended_again.push(DoneRow::new(&write.after, lane, None)),
            }
        }
        end_again(tx, &ended_again).await?;
        // What happened to an execution goes into its log, what happened to a lone task into its own.
        for record in &commit.records {
            let log = record.execution.and_then(|execution| locked.get_mut(&execution.0));
            let (namespace, seq) = match log {
                Some((execution, log)) => {
                    log.add(record.clone());
                    let namespace = store.dictionary.namespace(&execution.namespace);
                    let seq = log.records.last().map_or(0, |(_, seq)| *seq);
                    (namespace.ok_or_else(|| corrupt("an execution's namespace"))?, seq)
                }
                None => {
                    let Some(write) = commit.writes.iter().find(|write| write.after.id.0 == record.subject) else {
                        continue;
                    };
                    let lane = store.dictionary.base_id(&write.after.lane).ok_or_else(|| corrupt("a task's lane"))?;
                    let namespace = store.dictionary.lane_namespace(lane).ok_or_else(|| corrupt("a lane"))?;
                    (namespace, record.seq)
                }
            };
            told.push((namespace, record.clone(), seq));
        }
        for write in &commit.executions {
            let (before, log) = locked.get(&write.after.id.0).ok_or_else(|| corrupt("a locked execution"))?;
            if before.parent != write.after.parent {
                write_parent(tx, &write.after).await?;
            }
            written.push((write.after.clone(), log.last));
        }
        answers[*index] = Applied::Done;
    }
    update_open(tx, &moved).await?;
    end_open(tx, &ended).await?;
    write_executions(tx, written.iter().map(|(execution, seq)| (execution, *seq))).await?;
    append(tx, &told).await?;
    write_feed(tx, &told, now).await
}

/// Waits for the turn of this transaction to write into these logs. It must come before anything is written or locked.
///
/// The order of the feed does not need this: rows get their positions after they have committed (see `sequence`). But an instance of
/// an older version may still run during an upgrade. It reads in the order of transactions' numbers, and a transaction gets its
/// number with the first row that it locks. If it then had to wait for a second execution, others could write into that log under
/// higher numbers, and its own events, which come later, would be told first (R-I20). Turns give no number.
pub async fn lock_log_order(tx: &Transaction<'_>, executions: &[Uuid]) -> Result<(), StoreError> {
    let mut turns: Vec<i32> = executions.iter().map(turn).collect();
    turns.sort_unstable();
    turns.dedup();
    match turns.len() {
        0 => {}
        1..=MOST_TURNS => {
            let shared = tx.prepare_cached("select pg_advisory_xact_lock_shared($1, 0)").await?;
            let each = tx.prepare_cached("select pg_advisory_xact_lock($1, turn) from unnest($2::int4[]) turn").await?;
            let all: [&(dyn ToSql + Sync); 1] = [&ALL_TURNS];
            let own: [&(dyn ToSql + Sync); 2] = [&ONE_TURN, &turns];
            let (all, own) = tokio::join!(tx.execute(&shared, &all), tx.execute(&each, &own));
            all?;
            own?;
        }
        // The database has room for so many locks only: who needs more waits for all others.
        _ => {
            let alone = tx.prepare_cached("select pg_advisory_xact_lock($1, 0)").await?;
            tx.execute(&alone, &[&ALL_TURNS]).await?;
        }
    }
    Ok(())
}

const MOST_TURNS: usize = 64;
/// Names of locks that are numbered with two numbers, of which this is the first.
const ALL_TURNS: i32 = 0x6361;
const ONE_TURN: i32 = 0x6362;

/// Executions that share a turn wait for each other, which is no harm.
fn turn(execution: &Uuid) -> i32 {
    let (_, low) = execution.as_u64_pair();
    u32::try_from(low & u64::from(u32::MAX)).unwrap_or(0).cast_signed()
}

/// The executions, locked in order, each with the end of its log. Their turns were taken before.
pub async fn lock_executions(
    store: &PostgresStore,
    tx: &Transaction<'_>,
    ids: &[Uuid],
) -> Result<BTreeMap<Uuid, (Execution, SharedLog)>, StoreError> {
    let mut locked = BTreeMap::new();
    if ids.is_empty() {
        return Ok(locked);
    }
    let statement = tx
        .prepare_cached(
            "select id, namespace, state, version, seq, total, open, unhandled, fail_fast, dead_end_cancel, created_at,
               started_at, ended_at, updated_at, parent_task, parent_run
             from execution where id = any($1) order by id for update",
        )
        .await?;
    for row in tx.query(&statement, &[&ids]).await? {
        let (execution, seq) = read_execution(store, &row)?;
        locked.insert(execution.id.0, (execution, SharedLog::after(seq)));
    }
    Ok(locked)
}

pub fn read_execution(store: &PostgresStore, row: &tokio_postgres::Row) -> Result<(Execution, u32), StoreError> {
    let state: i16 = row.get(2);
    let count = |column: usize| row.get::<_, i32>(column).cast_unsigned();
    let at = |column: usize| row.get::<_, Option<i64>>(column).map(Timestamp);
    let execution = Execution {
        id: ExecutionId(row.get(0)),
        namespace: store.dictionary.namespace_name(row.get(1)).ok_or_else(|| corrupt("an execution's namespace"))?,
        parent: row.get::<_, Option<Uuid>>(14).map(TaskId).zip(row.get::<_, Option<i32>>(15).map(i32::cast_unsigned)),
        state: ExecutionState::from_code(state).ok_or_else(|| corrupt(format!("execution state {state}")))?,
        version: count(3),
        total: count(5),
        open: count(6),
        unhandled: count(7),
        fail_fast: row.get::<_, i16>(8) != 0,
        dead_end_cancel: row.get::<_, i16>(9) != 0,
        created_at: Timestamp(row.get(10)),
        started_at: at(11),
        ended_at: at(12),
        updated_at: Timestamp(row.get(13)),
    };
    Ok((execution, count(4)))
}

/// The versions of these tasks as they are now, locked in order; by id and whether they are open.
async fn lock_tasks(
    tx: &Transaction<'_>,
    writes: impl Iterator<Item = &Write>,
) -> Result<HashMap<(Uuid, bool), i32>, StoreError> {
    let (open, done): (Vec<&Write>, Vec<&Write>) = writes.partition(|write| write.from.is_open());
    let mut versions = HashMap::new();
    for (table, list, is_open) in [("task_open", open, true), ("task_done", done, false)] {
        if list.is_empty() {
            continue;
        }
        let mut ids: Vec<Uuid> = list.iter().map(|write| write.after.id.0).collect();
        ids.sort_unstable();
        let sql = format!("select id, version from {table} where id = any($1) order by id for update");
        let statement = tx.prepare_cached(&sql).await?;
        for row in tx.query(&statement, &[&ids]).await? {
            versions.insert((row.get(0), is_open), row.get(1));
        }
    }
    Ok(versions)
}

/// Open rows that a transaction has already locked and looked at.
pub async fn update_open(tx: &Transaction<'_>, rows: &[(OpenRow, u32)]) -> Result<(), StoreError> {
    static UPDATE: LazyLock<String> = LazyLock::new(|| {
        format!(
            "update task_open o set {} from unnest({}) as i({}) where o.id = i.id",
            *MOVED,
            OpenColumns::arrays(1),
            OpenColumns::names("")
        )
    });
    if rows.is_empty() {
        return Ok(());
    }
    let mut columns = OpenColumns::default();
    for (row, _) in rows {
        columns.push(row);
    }
    let statement = tx.prepare_cached(&UPDATE).await?;
    tx.execute(&statement, &columns.params()).await?;
    Ok(())
}

async fn end_open(tx: &Transaction<'_>, rows: &[(DoneRow, u32)]) -> Result<(), StoreError> {
    static END_LOCKED: LazyLock<String> = LazyLock::new(|| {
        let done: Vec<&str> = DoneRow::COLUMNS.iter().copied().filter(|name| *name != "policy").collect();
        format!(
            "with i as materialized (select * from unnest({}) as i({})),
             d as (delete from task_open o using i where o.id = i.id
               returning i.*, o.policy as o_policy, o.dedupe as o_dedupe),
             k as (delete from dedupe k using d, task t
               where d.o_dedupe = 1 and t.id = d.id and k.namespace = t.namespace and k.key = t.dedupe_key)
             insert into task_done ({done}, policy) select {done}, o_policy from d",
            DoneColumns::arrays(1),
            DoneColumns::names(""),
            done = done.join(", "),
        )
    });
    if rows.is_empty() {
        return Ok(());
    }
    let mut columns = DoneColumns::default();
    for (row, _) in rows {
        columns.push(row);
    }
    let statement = tx.prepare_cached(&END_LOCKED).await?;
    tx.execute(&statement, &columns.params()).await?;
    Ok(())
}

/// Tasks that were over and are open again. Their dedupe keys must be free; if one is not, nothing is written.
async fn reopen_all(
    store: &PostgresStore,
    tx: &Transaction<'_>,
    commit: &Commit,
) -> Result<Option<Applied>, StoreError> {
    let reopened: Vec<&Write> =
        commit.writes.iter().filter(|write| !write.from.is_open() && write.after.state.is_open()).collect();
    if reopened.is_empty() {
        return Ok(None);
    }
    let ids: Vec<Uuid> = reopened.iter().map(|write| write.after.id.0).collect();
    // Rules may have come and gone while they were over.
    let belongs = lanes_of_reopened(store, tx, &reopened[0].after.lane.namespace, &ids).await?.unwrap_or_default();
    let mut lanes = Vec::with_capacity(reopened.len());
    for write in &reopened {
        let lane = belongs.get(&write.after.id.0).unwrap_or(&write.after.lane);
        let Some(lane) = store.dictionary.lane_id(lane) else { return Ok(Some(Applied::Stale)) };
        lanes.push(lane);
    }
    let statement = tx
        .prepare_cached(
            "select id, namespace, dedupe_key, hard_deadline, policy from task where id = any($1) order by id",
        )
        .await?;
    let bodies = tx.query(&statement, &[&ids]).await?;
    let keyed: Vec<_> = bodies.iter().filter(|row| row.get::<_, Option<&str>>(2).is_some()).collect();
    if !keyed.is_empty() {
        let namespaces: Vec<i32> = keyed.iter().map(|row| row.get(1)).collect();
        let keys: Vec<&str> = keyed.iter().filter_map(|row| row.get(2)).collect();
        let holders: Vec<Uuid> = keyed.iter().map(|row| row.get(0)).collect();
        let taken = tx
            .execute(
                "insert into dedupe (namespace, key, task_id) select * from unnest($1::int4[], $2::text[], $3::uuid[])
                 on conflict do nothing",
                &[&namespaces, &keys, &holders],
            )
            .await?;
        if taken < keyed.len() as u64 {
            tx.execute("delete from dedupe where task_id = any($1)", &[&holders]).await?;
            return Ok(Some(Applied::KeyTaken));
        }
    }
    let statement = tx.prepare_cached("delete from task_done where id = any($1)").await?;
    tx.execute(&statement, &[&ids]).await?;
    let insert = format!(
        "insert into task_open ({open}, dedupe) select i.*, ${dedupe} from unnest({arrays}) as i({open})",
        dedupe = 1 + OpenColumns::WIDTH,
        open = OpenColumns::names(""),
        arrays = OpenColumns::arrays(1)
    );
    let statement = tx.prepare_cached(&insert).await?;
    for (write, lane) in reopened.into_iter().zip(lanes) {
        let body = bodies
            .iter()
            .find(|row| row.get::<_, Uuid>(0) == write.after.id.0)
            .ok_or_else(|| corrupt("a finished task without a body"))?;
        let dedupe = i16::from(body.get::<_, Option<&str>>(2).is_some());
        let fixed = Fixed { hard_deadline: body.get::<_, i16>(3) != 0, dedupe: dedupe != 0 };
        let row = OpenRow::new(&write.after, lane, body.get(4), fixed);
        let mut columns = OpenColumns::default();
        columns.push(&row);
        let mut params = columns.params();
        params.push(&dedupe);
        tx.execute(&statement, &params).await?;
    }
    Ok(None)
}

/// T28: finished tasks whose log grew; or which were opened again and came to another end at once.
async fn end_again(tx: &Transaction<'_>, rows: &[DoneRow]) -> Result<(), StoreError> {
    static END_AGAIN: LazyLock<String> = LazyLock::new(|| {
        let changed = DoneRow::COLUMNS.iter().filter(|name| !["id", "policy"].contains(name));
        let changed: Vec<String> = changed.map(|name| format!("{name} = i.{name}")).collect();
        format!(
            "update task_done o set {} from unnest({}) as i({}) where o.id = i.id",
            changed.join(", "),
            DoneColumns::arrays(1),
            DoneColumns::names(""),
        )
    });
    if rows.is_empty() {
        return Ok(());
    }
    let mut columns = DoneColumns::default();
    rows.iter().for_each(|row| columns.push(row));
    let statement = tx.prepare_cached(&END_AGAIN).await?;
    tx.execute(&statement, &columns.params()).await?;
    Ok(())
}

/// The parent of an execution changes seldom and has an index, so it is written apart.
async fn write_parent(tx: &Transaction<'_>, after: &Execution) -> Result<(), StoreError> {
    let statement = tx.prepare_cached(sql::executions::SET_PARENT.postgres).await?;
    let (task, run) = after.parent.map(|(task, run)| (task.0, run.cast_signed())).unzip();
    tx.execute(&statement, &[&after.id.0, &task, &run]).await?;
    Ok(())
}

pub async fn write_executions<'a>(
    tx: &Transaction<'_>,
    executions: impl Iterator<Item = (&'a Execution, u32)>,
) -> Result<(), StoreError> {
    let list: Vec<(&Execution, u32)> = executions.collect();
    if list.is_empty() {
        return Ok(());
    }
    let ids: Vec<Uuid> = list.iter().map(|(it, _)| it.id.0).collect();
    let states: Vec<i16> = list.iter().map(|(it, _)| it.state.code()).collect();
    let number = |of: fn(&Execution) -> u32| -> Vec<i32> { list.iter().map(|(it, _)| of(it).cast_signed()).collect() };
    let versions = number(|it| it.version);
    let seqs: Vec<i32> = list.iter().map(|(_, seq)| seq.cast_signed()).collect();
    let totals = number(|it| it.total);
    let open = number(|it| it.open);
    let unhandled = number(|it| it.unhandled);
    let started: Vec<Option<i64>> = list.iter().map(|(it, _)| it.started_at.map(|at| at.0)).collect();
    let ended: Vec<Option<i64>> = list.iter().map(|(it, _)| it.ended_at.map(|at| at.0)).collect();
    let updated: Vec<i64> = list.iter().map(|(it, _)| it.updated_at.0).collect();
    let statement = tx
        .prepare_cached(
            "update execution e set state = i.state, version = i.version, seq = i.seq, open = i.open,
               unhandled = i.unhandled, started_at = i.started_at, ended_at = i.ended_at, updated_at = i.updated_at,
               total = i.total
             from unnest($1::uuid[], $2::int2[], $3::int4[], $4::int4[], $5::int4[], $6::int4[], $7::int8[], $8::int8[],
               $9::int8[], $10::int4[]) as i(id, state, version, seq, open, unhandled, started_at, ended_at, updated_at,
               total)
             where e.id = i.id",
        )
        .await?;
    let params: [&(dyn ToSql + Sync); 10] =
        [&ids, &states, &versions, &seqs, &open, &unhandled, &started, &ended, &updated, &totals];
    tx.execute(&statement, &params).await?;
    Ok(())
}

/// Writes history. Each record comes with its namespace and the number of its first event.
pub async fn append(tx: &Transaction<'_>, told: &[(i32, Record, u32)]) -> Result<(), StoreError> {
    static APPEND: LazyLock<String> = LazyLock::new(|| {
        format!(
            "insert into history ({}) select * from unnest({})",
            HistoryColumns::names(""),
            HistoryColumns::arrays(1)
        )
    });
    if told.is_empty() {
        return Ok(());
    }
    let rows: Vec<HistoryRow> = told.iter().map(|(_, record, seq)| HistoryRow::new(record, *seq)).collect();
    let mut columns = HistoryColumns::default();
    for row in &rows {
        columns.push(row);
    }
    let statement = tx.prepare_cached(&APPEND).await?;
    tx.execute(&statement, &columns.params()).await?;
    Ok(())
}

/// Tells the feed what these records say that was not told before.
pub async fn write_feed(tx: &Transaction<'_>, told: &[(i32, Record, u32)], now: Timestamp) -> Result<(), StoreError> {
    let news = told.iter().filter_map(|(namespace, record, seq)| {
        let count = u32::try_from(record.events.len()).unwrap_or(0);
        (count > record.carried).then(|| (*namespace, record.subject, seq + record.carried, seq + count - 1))
    });
    tell(tx, news.collect(), now).await
}

/// Tells the feed of single events that are not written yet: task, namespace, number.
pub async fn write_plain_feed(
    tx: &Transaction<'_>,
    items: &BTreeMap<Uuid, (i32, u32)>,
    now: Timestamp,
) -> Result<(), StoreError> {
    tell(tx, items.iter().map(|(id, (namespace, seq))| (*namespace, *id, *seq, *seq)).collect(), now).await
}

async fn tell(tx: &Transaction<'_>, mut items: Vec<(i32, Uuid, u32, u32)>, now: Timestamp) -> Result<(), StoreError> {
    // Stable: what happened to one subject stays in its order.
    items.sort_by_key(|(namespace, ..)| *namespace);
    let statement =
        tx.prepare_cached("insert into feed (at, namespace, ids, firsts, lasts) values ($1, $2, $3, $4, $5)").await?;
    for group in items.chunk_by(|a, b| a.0 == b.0) {
        let ids: Vec<Uuid> = group.iter().map(|item| item.1).collect();
        let firsts: Vec<i32> = group.iter().map(|item| item.2.cast_signed()).collect();
        let lasts: Vec<i32> = group.iter().map(|item| item.3.cast_signed()).collect();
        tx.execute(&statement, &[&now.0, &group[0].0, &ids, &firsts, &lasts]).await?;
    }
    Ok(())
}
