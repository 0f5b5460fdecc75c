//! Schedules: rows that are moved together with what they start.

use comeback_core::{Audit, Timestamp};
use rusqlite::{Connection, OptionalExtension, Row};

use super::audit;
use super::submit::{namespace_id, submit};
use super::tend::is_paused;
use super::writer::Tx;
use crate::StoreError;
use crate::audit::as_json;
use crate::types::{Applied, Loop, Schedule, Submission};

const WHAT: &str = "select n.name, s.name, s.version, s.due, s.body, s.standing, s.created_at, s.updated_at
     from schedule s join namespace n on n.id = s.namespace";

fn read(row: &Row<'_>) -> rusqlite::Result<Schedule> {
    Ok(Schedule {
        namespace: row.get(0)?,
        name: row.get(1)?,
        version: row.get(2)?,
        due: row.get::<_, Option<i64>>(3)?.map(Timestamp),
        body: row.get(4)?,
        standing: row.get(5)?,
        created_at: Timestamp(row.get(6)?),
        updated_at: Timestamp(row.get(7)?),
    })
}

pub fn one(connection: &Connection, namespace: &str, name: &str) -> Result<Option<Schedule>, StoreError> {
    let sql = format!("{WHAT} where n.name = ?1 and s.name = ?2");
    Ok(connection.prepare_cached(&sql)?.query_row((namespace, name), read).optional()?)
}

pub fn page(connection: &Connection, namespace: &str, after: &str, limit: u32) -> Result<Vec<Schedule>, StoreError> {
    let sql = format!("{WHAT} where n.name = ?1 and s.name > ?2 order by s.name limit ?3");
    let mut statement = connection.prepare_cached(&sql)?;
    let found = statement.query_map((namespace, after, limit), read)?.collect::<rusqlite::Result<_>>()?;
    Ok(found)
}

pub fn due(connection: &Connection, now: Timestamp, limit: u32) -> Result<Vec<Schedule>, StoreError> {
    let sql = format!("{WHAT} where s.due <= ?1 order by s.due, s.namespace, s.name limit ?2");
    let mut statement = connection.prepare_cached(&sql)?;
    let found = statement.query_map((now.0, limit), read)?.collect::<rusqlite::Result<_>>()?;
    Ok(found)
}

pub fn put(
    tx: &mut Tx<'_>,
    schedule: &Schedule,
    start: Option<&Submission>,
    on_behalf_of: Option<Loop>,
    audit: Option<&Audit>,
    now: Timestamp,
) -> Result<Applied, StoreError> {
    if let Some(name) = on_behalf_of
        && is_paused(tx.connection, name, now)?
    {
        return Ok(Applied::Paused);
    }
    let namespace = namespace_id(tx.connection, &schedule.namespace)?;
    let sql = match schedule.version {
        0 => {
            "insert into schedule (namespace, name, version, due, body, standing, created_at, updated_at)
             values (?1, ?2, ?3 + 1, ?4, ?5, ?6, ?7, ?7) on conflict do nothing"
        }
        _ => {
            "update schedule set version = version + 1, due = ?4, body = ?5, standing = ?6, updated_at = ?7
             where namespace = ?1 and name = ?2 and version = ?3"
        }
    };
    let (due, body, standing) = (schedule.due.map(|at| at.0), &schedule.body, &schedule.standing);
    let written = tx.connection.prepare_cached(sql)?.execute((
        namespace,
        &schedule.name,
        schedule.version,
        due,
        body,
        standing,
        now.0,
    ))?;
    if written == 0 {
        return Ok(Applied::Stale);
    }
    if let Some(start) = start {
        submit(tx, std::slice::from_ref(start), now)?;
    }
    audit::note(tx.connection, audit, None)?;
    Ok(Applied::Done)
}

pub fn delete(connection: &Connection, namespace: &str, name: &str, audit: Option<&Audit>) -> Result<bool, StoreError> {
    let sql = "delete from schedule where namespace = (select id from namespace where name = ?1) and name = ?2
               returning body";
    let body: Option<String> =
        connection.prepare_cached(sql)?.query_row((namespace, name), |row| row.get(0)).optional()?;
    audit::note(connection, audit.filter(|_| body.is_some()), body.as_deref().map(as_json))?;
    Ok(body.is_some())
}
