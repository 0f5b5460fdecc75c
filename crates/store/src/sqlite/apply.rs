//! Storing verdicts: every commit whole or not at all, each row guarded by its version.

use comeback_core::{Commit, Execution, ExecutionId, Record, TaskId, Timestamp, Write};
use rusqlite::{Connection, OptionalExtension};

use super::statements::{insert_done, insert_history, insert_open, update_open};
use super::submit::take_key;
use super::tend::is_paused;
use super::writer::Tx;
use crate::StoreError;
use crate::events::SharedLog;
use crate::row::{DoneRow, Fixed, HistoryRow, OpenRow, corrupt};
use crate::types::{Applied, Loop};

pub fn apply(
    tx: &mut Tx<'_>,
    commits: &[Commit],
    on_behalf_of: Option<Loop>,
    now: Timestamp,
) -> Result<Vec<Applied>, StoreError> {
    tx.feed.at = now.0;
    if let Some(name) = on_behalf_of
        && is_paused(tx.connection, name, now)?
    {
        return Ok(vec![Applied::Paused; commits.len()]);
    }
    commits.iter().map(|commit| apply_one(tx, commit)).collect()
}

fn apply_one(tx: &mut Tx<'_>, commit: &Commit) -> Result<Applied, StoreError> {
    // A lone task touches one guarded row first, so there is nothing to take back when that row has moved on.
    if commit.execution.is_none() && commit.writes.len() <= 1 {
        return match write_all(tx, commit)? {
            Ok(()) => log_lone(tx, commit).map(|()| Applied::Done),
            Err(refused) => Ok(refused),
        };
    }
    tx.connection.prepare_cached("savepoint whole")?.execute(())?;
    let outcome = write_all(tx, commit)?;
    if let Err(refused) = outcome {
        tx.connection.prepare_cached("rollback to whole")?.execute(())?;
        tx.connection.prepare_cached("release whole")?.execute(())?;
        return Ok(refused);
    }
    tx.connection.prepare_cached("release whole")?.execute(())?;
    if commit.execution.is_none() {
        log_lone(tx, commit)?;
    }
    Ok(Applied::Done)
}

fn write_all(tx: &mut Tx<'_>, commit: &Commit) -> Result<Result<(), Applied>, StoreError> {
    if let Some(write) = &commit.execution {
        let Some((found, mut log)) = load_execution(tx, write.after.id)? else { return Ok(Err(Applied::Stale)) };
        if found.version != write.expected_version {
            return Ok(Err(Applied::Stale));
        }
        for record in &commit.records {
            log.add(record.clone());
        }
        write_execution(tx.connection, &write.after, log.last)?;
        for write in &commit.writes {
            if let Err(refused) = write_task(tx, write)? {
                return Ok(Err(refused));
            }
        }
        let namespace = tx.dictionary.namespace(&found.namespace).ok_or_else(|| corrupt("an execution's namespace"))?;
        append(tx, namespace, &log.records)?;
        return Ok(Ok(()));
    }
    for write in &commit.writes {
        if let Err(refused) = write_task(tx, write)? {
            return Ok(Err(refused));
        }
    }
    Ok(Ok(()))
}

fn log_lone(tx: &mut Tx<'_>, commit: &Commit) -> Result<(), StoreError> {
    let Some(write) = commit.writes.first() else { return Ok(()) };
    let lane = tx.dictionary.lane_id(&write.after.lane).ok_or_else(|| corrupt("a task's lane"))?;
    let namespace = tx.dictionary.lane_namespace(lane).ok_or_else(|| corrupt("a lane's namespace"))?;
    for record in &commit.records {
        insert_history(tx.connection, &HistoryRow::new(record, record.seq))?;
        tx.feed.push_record(namespace, record, record.seq);
    }
    Ok(())
}

pub fn append(tx: &mut Tx<'_>, namespace: i32, records: &[(Record, u32)]) -> Result<(), StoreError> {
    for (record, first) in records {
        insert_history(tx.connection, &HistoryRow::new(record, *first))?;
        tx.feed.push_record(namespace, record, *first);
    }
    Ok(())
}

fn write_task(tx: &mut Tx<'_>, write: &Write) -> Result<Result<(), Applied>, StoreError> {
    let task = &write.after;
    let lane = tx.dictionary.lane_id(&task.lane).ok_or_else(|| corrupt("a task's lane"))?;
    match (write.from.is_open(), task.state.is_open()) {
        (true, false) => finish(tx, write, lane),
        (true, true) => {
            let Some(kept) = kept_columns(tx.connection, task.id, write.expected_version)? else {
                return Ok(Err(Applied::Stale));
            };
            let row = OpenRow::new(task, lane, kept.policy, kept.fixed);
            Ok(if update_open(tx.connection, &row, write.expected_version)? { Ok(()) } else { Err(Applied::Stale) })
        }
        (false, true) => reopen(tx, write, lane),
        (false, false) => {
            let changed = tx
                .connection
                .prepare_cached(
                    "update task_done set version = ?3, seq = ?4, updated_at = ?5 where id = ?1 and version = ?2",
                )?
                .execute((
                    task.id.0.as_bytes().as_slice(),
                    write.expected_version,
                    task.version,
                    task.seq,
                    task.updated_at.0,
                ))?;
            Ok(if changed == 1 { Ok(()) } else { Err(Applied::Stale) })
        }
    }
}

/// Columns of an open row that a verdict does not know of.
struct Kept {
    policy: Option<i32>,
    fixed: Fixed,
}

fn kept_columns(connection: &Connection, id: TaskId, version: u32) -> rusqlite::Result<Option<Kept>> {
    connection
        .prepare_cached("select policy, hard_deadline, dedupe from task_open where id = ?1 and version = ?2")?
        .query_row((id.0.as_bytes().as_slice(), version), |row| {
            let fixed = Fixed { hard_deadline: row.get::<_, i16>(1)? != 0, dedupe: row.get::<_, i16>(2)? != 0 };
            Ok(Kept { policy: row.get(0)?, fixed })
        })
        .optional()
}

/// The open row goes, the end is written, and with it goes the dedupe key.
fn finish(tx: &mut Tx<'_>, write: &Write, lane: i32) -> Result<Result<(), Applied>, StoreError> {
    let id = write.after.id.0;
    let deleted: Option<(Option<i32>, i16)> = tx
        .connection
        .prepare_cached("delete from task_open where id = ?1 and version = ?2 returning policy, dedupe")?
        .query_row((id.as_bytes().as_slice(), write.expected_version), |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let Some((policy, dedupe)) = deleted else { return Ok(Err(Applied::Stale)) };
    insert_done(tx.connection, &DoneRow::new(&write.after, lane, policy))?;
    if dedupe != 0 {
        tx.connection.execute(
            "delete from dedupe where (namespace, key) = (select namespace, dedupe_key from task where id = ?1)",
            [id.as_bytes().as_slice()],
        )?;
    }
    Ok(Ok(()))
}

/// A task that was over is open again; its dedupe key must still be free.
fn reopen(tx: &mut Tx<'_>, write: &Write, lane: i32) -> Result<Result<(), Applied>, StoreError> {
    let id = write.after.id;
    let (namespace, key, hard): (i32, Option<String>, i16) = tx
        .connection
        .prepare_cached("select namespace, dedupe_key, hard_deadline from task where id = ?1")?
        .query_row([id.0.as_bytes().as_slice()], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    if let Some(key) = &key {
        let taken: bool = tx.connection.query_row(
            "select exists (select 1 from dedupe where namespace = ?1 and key = ?2)",
            (namespace, key),
            |row| row.get(0),
        )?;
        if taken {
            return Ok(Err(Applied::KeyTaken));
        }
    }
    let deleted: Option<Option<i32>> = tx
        .connection
        .prepare_cached("delete from task_done where id = ?1 and version = ?2 returning policy")?
        .query_row((id.0.as_bytes().as_slice(), write.expected_version), |row| row.get(0))
        .optional()?;
    let Some(policy) = deleted else { return Ok(Err(Applied::Stale)) };
    if let Some(key) = &key {
        take_key(tx.connection, namespace, key, id)?;
    }
    let fixed = Fixed { hard_deadline: hard != 0, dedupe: key.is_some() };
    insert_open(tx.connection, &OpenRow::new(&write.after, lane, policy, fixed))?;
    Ok(Ok(()))
}

pub fn load_execution(tx: &Tx<'_>, id: ExecutionId) -> Result<Option<(Execution, SharedLog)>, StoreError> {
    super::read::execution(tx.connection, tx.dictionary, id)
        .map(|found| found.map(|(execution, seq)| (execution, SharedLog::after(seq))))
}

pub fn write_execution(connection: &Connection, after: &Execution, seq: u32) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "update execution set state = ?2, version = ?3, seq = ?4, open = ?5, unhandled = ?6, started_at = ?7,
               ended_at = ?8, updated_at = ?9
             where id = ?1",
        )?
        .execute((
            after.id.0.as_bytes().as_slice(),
            after.state.code(),
            after.version,
            seq,
            after.open,
            after.unhandled,
            after.started_at.map(|at| at.0),
            after.ended_at.map(|at| at.0),
            after.updated_at.0,
        ))
        .map(|_| ())
}
