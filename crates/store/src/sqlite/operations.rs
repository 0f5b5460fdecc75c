//! Bulk operations: rows that say how far each is, and marks that are written with the changes they stand for.

use std::collections::HashMap;

use async_trait::async_trait;
use comeback_core::operation::Mark;
use comeback_core::{Audit, TaskId, Timestamp};
use rusqlite::{Connection, OptionalExtension, Row};
use uuid::Uuid;

use super::control::is_paused;
use super::submit::{keep_key, namespace_id};
use super::writer::Tx;
use super::{SqliteStore, audit};
use crate::operations::{
    Operation, OperationStep, Started, ids_of, parts, parts_of, recounts, state_of, wanted, was_text,
};
use crate::row::corrupt;
use crate::{Applied, Idempotency, Loop, OperationStore, StoreError, Used, sql};

const WHAT: &str = sql::operations::SELECT.sqlite;

fn read(row: &Row<'_>) -> rusqlite::Result<(Operation, i16)> {
    let code: i16 = row.get(3)?;
    let at = |column: usize| -> rusqlite::Result<Option<Timestamp>> {
        Ok(row.get::<_, Option<i64>>(column)?.map(Timestamp))
    };
    let operation = Operation {
        id: Uuid::from_bytes(row.get(0)?),
        namespace: row.get(1)?,
        version: row.get(2)?,
        state: state_of(code).unwrap_or(comeback_core::operation::OperationState::Done),
        total: row.get(4)?,
        due: at(5)?,
        body: row.get(6)?,
        standing: row.get(7)?,
        created_at: Timestamp(row.get(8)?),
        updated_at: Timestamp(row.get(9)?),
        ended_at: at(10)?,
        done: row.get(11)?,
        undone: row.get(12)?,
    };
    Ok((operation, code))
}

fn all(connection: &Connection, condition: &str, values: impl rusqlite::Params) -> Result<Vec<Operation>, StoreError> {
    let mut statement = connection.prepare_cached(&format!("{WHAT} where {condition}"))?;
    let rows = statement.query_map(values, read)?.collect::<rusqlite::Result<Vec<_>>>()?;
    rows.into_iter().map(|(operation, code)| state_of(code).map(|_| operation)).collect()
}

pub fn one(connection: &Connection, namespace: &str, id: Uuid) -> Result<Option<Operation>, StoreError> {
    Ok(all(connection, "o.id = ?1 and n.name = ?2", (id.as_bytes().as_slice(), namespace))?.pop())
}

/// Newest first.
pub fn page(
    connection: &Connection,
    namespace: &str,
    before: Option<Uuid>,
    limit: u32,
) -> Result<Vec<Operation>, StoreError> {
    let before = before.unwrap_or(Uuid::max());
    let condition = "n.name = ?1 and o.id < ?2 order by o.id desc limit ?3";
    all(connection, condition, (namespace, before.as_bytes().as_slice(), limit))
}

pub fn due(connection: &Connection, now: Timestamp, limit: u32) -> Result<Vec<Operation>, StoreError> {
    all(connection, "o.due <= ?1 order by o.due, o.id limit ?2", (now.0, limit))
}

pub fn start(
    connection: &Connection,
    operation: &Operation,
    ids: &[TaskId],
    key: Option<&Idempotency>,
    audit: Option<&Audit>,
    now: Timestamp,
) -> Result<Started, StoreError> {
    let namespace = namespace_id(connection, &operation.namespace)?;
    if let Some(key) = key {
        let sql = sql::control::KEY_ANSWER.sqlite;
        let found: Option<(Vec<u8>, String)> = connection
            .prepare_cached(sql)?
            .query_row((namespace, &key.scope, &key.key), |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()?;
        if let Some((digest, answer)) = found {
            let first = answer.parse().map_err(|_| corrupt("the answer of a key"));
            return if digest == key.digest { first.map(Started::Repeated) } else { Ok(Started::Mismatch) };
        }
        keep_key(connection, namespace, key, &operation.id.to_string(), now)?;
    }
    connection
        .prepare_cached(
            "insert into operation (id, namespace, version, state, total, due, body, standing, created_at, updated_at)
             values (?1, ?2, 1, ?3, ?4, ?5, ?6, ?7, ?8, ?8)",
        )?
        .execute((
            operation.id.as_bytes().as_slice(),
            namespace,
            operation.state.code(),
            operation.total,
            operation.due.map(|at| at.0),
            &operation.body,
            &operation.standing,
            now.0,
        ))?;
    let mut insert =
        connection.prepare_cached("insert into operation_part (operation, part, ids) values (?1, ?2, ?3)")?;
    for (part, ids) in parts(ids).iter().enumerate() {
        insert.execute((operation.id.as_bytes().as_slice(), i64::try_from(part).unwrap_or(i64::MAX), ids))?;
    }
    audit::note(connection, audit, None)?;
    Ok(Started::New)
}

pub fn put(
    connection: &Connection,
    operation: &Operation,
    on_behalf_of: Option<Loop>,
    audit: Option<&Audit>,
    now: Timestamp,
) -> Result<Applied, StoreError> {
    if let Some(name) = on_behalf_of
        && is_paused(connection, name, now)?
    {
        return Ok(Applied::Paused);
    }
    let written = connection.prepare_cached(sql::operations::UPDATE.sqlite)?.execute((
        operation.id.as_bytes().as_slice(),
        operation.version,
        operation.state.code(),
        operation.due.map(|at| at.0),
        &operation.standing,
        now.0,
        operation.ended_at.map(|at| at.0),
        operation.done,
        operation.undone,
    ))?;
    if written == 0 {
        return Ok(Applied::Stale);
    }
    for sql in recounts(operation) {
        connection.prepare_cached(sql)?.execute([operation.id.as_bytes().as_slice()])?;
    }
    audit::note(connection, audit, None)?;
    Ok(Applied::Done)
}

pub fn ids(connection: &Connection, id: Uuid, from: u32, to: u32) -> Result<Vec<TaskId>, StoreError> {
    let (first, last) = parts_of(from, to);
    let sql = sql::operations::IDS.sqlite;
    let mut statement = connection.prepare_cached(sql)?;
    let rows: Vec<Vec<u8>> = statement
        .query_map((id.as_bytes().as_slice(), first, last), |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    ids_of(&rows, from, to)
}

pub fn marks(
    connection: &Connection,
    id: Uuid,
    tasks: &[TaskId],
) -> Result<HashMap<TaskId, OperationStep>, StoreError> {
    let mut statement =
        connection.prepare_cached("select was, undone from operation_task where operation = ?1 and task_id = ?2")?;
    let mut found = HashMap::new();
    for task in tasks {
        let key = (id.as_bytes().as_slice(), task.0.as_bytes().as_slice());
        let mark = statement
            .query_row(key, |row| Ok(OperationStep { was: row.get(0)?, undone: row.get::<_, i16>(1)? != 0 }))
            .optional()?;
        found.extend(mark.map(|mark| (*task, mark)));
    }
    Ok(found)
}

/// The reason why these steps cannot be taken: the operation is not at them any more, or one of them was taken before.
pub fn refused(connection: &Connection, marks: &[Mark]) -> Result<Option<Applied>, StoreError> {
    for mark in marks {
        let id = mark.operation.as_bytes().as_slice();
        let state: Option<i16> = connection
            .prepare_cached("select state from operation where id = ?1")?
            .query_row([id], |row| row.get(0))
            .optional()?;
        if state != Some(wanted(mark).code()) {
            return Ok(Some(Applied::Paused));
        }
        let taken: Option<i16> = connection
            .prepare_cached("select undone from operation_task where operation = ?1 and task_id = ?2")?
            .query_row((id, mark.task.0.as_bytes().as_slice()), |row| row.get(0))
            .optional()?;
        let is_free = if mark.was.is_some() { taken.is_none() } else { taken == Some(0) };
        if !is_free {
            return Ok(Some(Applied::Used(Used::ForThis)));
        }
    }
    Ok(None)
}

pub fn write(connection: &Connection, mark: &Mark) -> Result<(), StoreError> {
    let key = (mark.operation.as_bytes().as_slice(), mark.task.0.as_bytes().as_slice());
    match mark.was {
        Some(_) => connection
            .prepare_cached("insert into operation_task (operation, task_id, was) values (?1, ?2, ?3)")?
            .execute((key.0, key.1, was_text(mark)?))?,
        None => connection
            .prepare_cached("update operation_task set undone = 1 where operation = ?1 and task_id = ?2")?
            .execute(key)?,
    };
    Ok(())
}

/// Deletes operations that ended before an instant, a few at a time; answers whether that was all.
pub fn prune(connection: &Connection, before: Timestamp, limit: u32) -> Result<bool, StoreError> {
    let ended: Vec<[u8; 16]> = connection
        .prepare_cached("select id from operation where ended_at < ?1 order by id limit ?2")?
        .query_map((before.0, limit), |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    let mut left = limit as usize;
    for id in &ended {
        let sql = "delete from operation_task where operation = ?1 and task_id in
                     (select task_id from operation_task where operation = ?1 limit ?2)";
        let gone = connection.prepare_cached(sql)?.execute((id.as_slice(), i64::try_from(left).unwrap_or(i64::MAX)))?;
        left -= gone.min(left);
        if left == 0 {
            return Ok(false);
        }
        connection.prepare_cached(sql::operations::DELETE_IDS.sqlite)?.execute([id.as_slice()])?;
        connection.prepare_cached(sql::operations::DELETE.sqlite)?.execute([id.as_slice()])?;
    }
    Ok(ended.len() < limit as usize)
}

#[async_trait]
impl OperationStore for SqliteStore {
    async fn start_operation(
        &self,
        operation: &Operation,
        ids: &[TaskId],
        key: Option<&Idempotency>,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<Started, StoreError> {
        let (operation, ids, key, audit) = (operation.clone(), ids.to_vec(), key.cloned(), audit.cloned());
        let start = move |tx: &mut Tx<'_>| start(tx.connection, &operation, &ids, key.as_ref(), audit.as_ref(), now);
        self.writer.run(start).await
    }

    async fn operation(&self, namespace: &str, id: Uuid) -> Result<Option<Operation>, StoreError> {
        let namespace = namespace.to_owned();
        self.read(move |connection, _| one(connection, &namespace, id)).await
    }

    async fn operations(
        &self,
        namespace: &str,
        before: Option<Uuid>,
        limit: u32,
    ) -> Result<Vec<Operation>, StoreError> {
        let namespace = namespace.to_owned();
        self.read(move |connection, _| page(connection, &namespace, before, limit)).await
    }

    async fn due_operations(&self, now: Timestamp, limit: u32) -> Result<Vec<Operation>, StoreError> {
        self.read(move |connection, _| due(connection, now, limit)).await
    }

    async fn put_operation(
        &self,
        operation: &Operation,
        on_behalf_of: Option<Loop>,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<Applied, StoreError> {
        let (operation, audit) = (operation.clone(), audit.cloned());
        let put = move |tx: &mut Tx<'_>| put(tx.connection, &operation, on_behalf_of, audit.as_ref(), now);
        self.writer.run(put).await
    }

    async fn operation_ids(&self, id: Uuid, from: u32, to: u32) -> Result<Vec<TaskId>, StoreError> {
        self.read(move |connection, _| ids(connection, id, from, to)).await
    }

    async fn marks(&self, id: Uuid, tasks: &[TaskId]) -> Result<HashMap<TaskId, OperationStep>, StoreError> {
        let tasks = tasks.to_vec();
        self.read(move |connection, _| marks(connection, id, &tasks)).await
    }
}
