//! Deleting what ended long ago.

use async_trait::async_trait;
use comeback_core::Timestamp;
use rusqlite::Connection;

use super::writer::Tx;
use super::{SqliteStore, operations};
use crate::check::PRUNED_BEFORE;
use crate::row::{oldest_id, whole_ones};
use crate::{Pruned, Retention, StoreError, sql};

/// Whole executions, and lone tasks, that ended long enough ago; with each go its body, its history and its edges.
pub fn prunable(connection: &Connection, before: Timestamp) -> Result<u64, StoreError> {
    let oldest = oldest_id(before);
    let count: i64 = connection
        .prepare_cached(sql::retention::COUNT_OLD.sqlite)?
        .query_row((before.0, oldest.as_bytes().as_slice()), |row| row.get(0))?;
    Ok(count.cast_unsigned())
}

pub fn prune(tx: &mut Tx<'_>, before: Timestamp, limit: u32) -> Result<Pruned, StoreError> {
    let lone: Vec<[u8; 16]> = tx
        .connection
        .prepare_cached(
            "select id from task_done where id < ?3 and execution_id is null and ended_at < ?1 order by id limit ?2",
        )?
        .query_map((before.0, limit, oldest_id(before).as_bytes().as_slice()), |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    let at_limit = |count: usize| count >= limit as usize;
    let (mut pruned, mut more) = (0, at_limit(lone.len()));
    for id in &lone {
        forget_task(tx.connection, id)?;
        pruned += 1;
    }
    let found: Vec<([u8; 16], i32)> = tx
        .connection
        .prepare_cached(
            "select id, total from execution
             where id < ?3 and state in (3, 4, 5) and ended_at < ?1 and open = 0 order by id limit ?2",
        )?
        .query_map((before.0, limit, oldest_id(before).as_bytes().as_slice()), |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<_>>()?;
    let (executions, more_of_them) = whole_ones(found, limit);
    more |= more_of_them;
    for execution in &executions {
        let tasks: Vec<[u8; 16]> = tx
            .connection
            .prepare_cached(sql::executions::TASKS.sqlite)?
            .query_map([execution.as_slice()], |row| row.get(0))?
            .collect::<rusqlite::Result<_>>()?;
        for id in &tasks {
            forget_task(tx.connection, id)?;
            tx.connection.prepare_cached("delete from edge where from_id = ?1")?.execute([id.as_slice()])?;
            pruned += 1;
        }
        tx.connection.prepare_cached("delete from history where subject = ?1")?.execute([execution.as_slice()])?;
        tx.connection.prepare_cached("delete from execution where id = ?1")?.execute([execution.as_slice()])?;
    }
    let told = tx
        .connection
        .prepare_cached(
            "delete from feed where id in
               (select id from (select id, at from feed order by id limit ?2) where at < ?1)",
        )?
        .execute((before.0, limit))?;
    let keys = tx.connection.prepare_cached(sql::control::DELETE_OLD_KEYS.sqlite)?.execute((before.0, limit))?;
    more |= !operations::prune(tx.connection, before, limit)?;
    if pruned > 0 || told > 0 {
        tx.connection.execute(
            "insert into meta (key, value) values (?1, ?2) on conflict (key) do update set value = excluded.value
             where cast(excluded.value as integer) > cast(meta.value as integer)",
            (PRUNED_BEFORE, before.0.to_string()),
        )?;
    }
    Ok(Pruned { tasks: pruned, more: more || at_limit(told) || at_limit(keys) })
}

fn forget_task(connection: &Connection, id: &[u8; 16]) -> rusqlite::Result<()> {
    connection.prepare_cached("delete from task_done where id = ?1")?.execute([id.as_slice()])?;
    connection.prepare_cached("delete from history where subject = ?1")?.execute([id.as_slice()])?;
    connection.prepare_cached("delete from task where id = ?1")?.execute([id.as_slice()])?;
    connection.prepare_cached("delete from task_payload where task_id = ?1")?.execute([id.as_slice()])?;
    Ok(())
}

#[async_trait]
impl Retention for SqliteStore {
    async fn prune(&self, before: Timestamp, limit: u32) -> Result<Pruned, StoreError> {
        let prune = move |tx: &mut Tx<'_>| {
            let pruned = prune(tx, before, limit);
            crate::panic_point!("sqlite-prune");
            pruned
        };
        self.writer.run(prune).await
    }

    async fn prunable(&self, before: Timestamp) -> Result<u64, StoreError> {
        self.search(move |connection, _| prunable(connection, before)).await
    }
}
