//! Payloads that are edited: the old one is kept beside the body, which holds the one in use.

use comeback_core::payload::{NewPayload, OldPayload};
use comeback_core::{TaskId, Timestamp};
use rusqlite::Connection;

use crate::{StoreError, sql};

/// Whether somebody else has edited one of them since.
pub fn moved_on(connection: &Connection, edits: &[NewPayload]) -> Result<bool, StoreError> {
    for edit in edits {
        let newest: u32 = connection
            .prepare_cached("select 1 + count(*) from task_payload where task_id = ?1")?
            .query_row([edit.task.0.as_bytes().as_slice()], |row| row.get(0))?;
        if newest != edit.edited {
            return Ok(true);
        }
    }
    Ok(false)
}

pub fn write(connection: &Connection, edit: &NewPayload) -> Result<(), StoreError> {
    let id = edit.task.0.as_bytes().as_slice();
    connection.prepare_cached(sql::tasks::KEEP_PAYLOAD.sqlite)?.execute((
        id,
        edit.edited,
        edit.last_run,
        edit.at.0,
        &edit.by,
    ))?;
    connection.prepare_cached(sql::tasks::SET_PAYLOAD.sqlite)?.execute((id, &*edit.payload))?;
    Ok(())
}

pub fn old(connection: &Connection, task: TaskId) -> Result<Vec<OldPayload>, StoreError> {
    let sql = sql::tasks::OLD_PAYLOADS.sqlite;
    let mut statement = connection.prepare_cached(sql)?;
    let rows = statement.query_map([task.0.as_bytes().as_slice()], |row| {
        Ok(OldPayload {
            version: row.get(0)?,
            payload: row.get::<_, Option<String>>(1)?.map(Into::into),
            last_run: row.get(2)?,
            replaced_at: Timestamp(row.get(3)?),
            replaced_by: row.get(4)?,
        })
    })?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}
