//! How a check reads a SQLite file: on a connection of its own that only reads, in one snapshot, beside a server or without.

use std::collections::BTreeSet;
use std::path::Path;

use async_trait::async_trait;
use rusqlite::{Connection, Row, ToSql};
use uuid::Uuid;

use super::feed::unpack;
use super::setup;
use super::statements::Reader;
use crate::check::{
    AnswerPlace, Born, CheckProgress, CheckReport, EdgeRow, ExecutionRow, FeedPage, LaneRow, Look, MOST_TOLD,
    MemberRow, PolicyRow, sql,
};
use crate::row::{DoneRow, FixedRow, HistoryRow, OpenRow, columns};
use crate::{StoreError, check};

/// Reads the whole file on the caller's thread.
pub async fn check(path: &Path, progress: &mut (dyn FnMut(CheckProgress) + Send)) -> Result<CheckReport, StoreError> {
    let connection = setup::connect_to_read(path)?;
    setup::schema(&connection)?.must_be_newest()?;
    connection.execute_batch("begin")?;
    check::run(&mut Snapshot { connection }, &setup::created_names(), progress).await
}

struct Snapshot {
    connection: Connection,
}

impl Snapshot {
    fn rows<T>(
        &self,
        sql: &str,
        parameters: &[&dyn ToSql],
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>, StoreError> {
        let mut statement = self.connection.prepare_cached(sql)?;
        Ok(statement.query_map(parameters, read)?.collect::<rusqlite::Result<_>>()?)
    }
}

fn id(row: &Row<'_>, column: usize) -> rusqlite::Result<Uuid> {
    row.get::<_, [u8; 16]>(column).map(Uuid::from_bytes)
}

/// Of which nobody knows whether it is one.
fn maybe_id(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<Uuid>> {
    Ok(row.get::<_, Option<Vec<u8>>>(column)?.and_then(|bytes| Uuid::from_slice(&bytes).ok()))
}

#[async_trait]
impl Look for Snapshot {
    async fn own_check(&mut self) -> Result<Vec<String>, StoreError> {
        let mut found: Vec<String> =
            self.rows(&format!("pragma integrity_check({MOST_TOLD})"), &[], |row| row.get(0))?;
        found.retain(|words| words != "ok");
        let broken = self.rows("pragma foreign_key_check", &[], |row| {
            Ok(format!("a row of {} refers to nothing in {}", row.get::<_, String>(0)?, row.get::<_, String>(2)?))
        })?;
        found.extend(broken);
        Ok(found)
    }

    async fn names(&mut self) -> Result<BTreeSet<String>, StoreError> {
        Ok(self.rows("select name from sqlite_master", &[], |row| row.get(0))?.into_iter().collect())
    }

    async fn count(&mut self, table: &'static str) -> Result<u64, StoreError> {
        let counted = self.rows(&format!("select count(*) from {table}"), &[], |row| row.get::<_, i64>(0))?;
        Ok(counted.first().map_or(0, |count| count.cast_unsigned()))
    }

    async fn offenders(&mut self, sql: &'static str) -> Result<Vec<(Option<Uuid>, String)>, StoreError> {
        self.rows(sql, &[], |row| Ok((maybe_id(row, 0)?, row.get(1)?)))
    }

    async fn namespaces(&mut self) -> Result<Vec<(i32, String)>, StoreError> {
        self.rows(sql::NAMESPACES, &[], |row| Ok((row.get(0)?, row.get(1)?)))
    }

    async fn lanes(&mut self) -> Result<Vec<LaneRow>, StoreError> {
        self.rows(sql::LANES, &[], |row| {
            let mut from = Reader { row, next: 0 };
            Ok(LaneRow {
                id: from.get()?,
                namespace: from.get()?,
                namespace_name: from.get()?,
                queue: from.get()?,
                kind: from.get()?,
                executor: from.get()?,
                dependency: from.get()?,
                shared: from.get()?,
            })
        })
    }

    async fn ruled_lanes(&mut self) -> Result<Vec<(i32, i32, String)>, StoreError> {
        self.rows(sql::RULED_LANES, &[], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
    }

    async fn policies(&mut self) -> Result<Vec<PolicyRow>, StoreError> {
        self.rows(sql::POLICIES, &[], |row| Ok(PolicyRow { id: row.get(0)?, digest: row.get(1)?, body: row.get(2)? }))
    }

    async fn meta(&mut self, key: &str) -> Result<Option<String>, StoreError> {
        Ok(self.rows(crate::sql::control::META.sqlite, &[&key], |row| row.get(0))?.pop())
    }

    async fn open_tasks(&mut self, after: Uuid, limit: u32) -> Result<Vec<(OpenRow, Born)>, StoreError> {
        let sql = format!(
            "select {}, t.submitted_at, t.start_at from task_open o join task t on t.id = o.id
             where o.id > $1 order by o.id limit $2",
            columns("o", OpenRow::COLUMNS)
        );
        self.rows(&sql, &[&after.as_bytes().as_slice(), &limit], |row| {
            let mut from = Reader { row, next: 0 };
            Ok((OpenRow::read(&mut from)?, Born { submitted_at: from.get()?, start_at: from.get()? }))
        })
    }

    async fn done_tasks(&mut self, after: Uuid, limit: u32) -> Result<Vec<(DoneRow, FixedRow, Born)>, StoreError> {
        let sql = format!(
            "select {}, {}, t.submitted_at, t.start_at from task_done d join task t on t.id = d.id
             where d.id > $1 order by d.id limit $2",
            columns("d", DoneRow::COLUMNS),
            columns("t", FixedRow::COLUMNS)
        );
        self.rows(&sql, &[&after.as_bytes().as_slice(), &limit], |row| {
            let mut from = Reader { row, next: 0 };
            let (done, fixed) = (DoneRow::read(&mut from)?, FixedRow::read(&mut from)?);
            Ok((done, fixed, Born { submitted_at: from.get()?, start_at: from.get()? }))
        })
    }

    async fn histories(&mut self, subjects: &[Uuid]) -> Result<Vec<HistoryRow>, StoreError> {
        let sql =
            format!("select {} from history h where h.subject = $1 order by h.seq", columns("h", HistoryRow::COLUMNS));
        let mut found = Vec::new();
        for subject in subjects {
            let read = |row: &Row<'_>| HistoryRow::read(&mut Reader { row, next: 0 });
            found.extend(self.rows(&sql, &[&subject.as_bytes().as_slice()], read)?);
        }
        Ok(found)
    }

    async fn executions(&mut self, after: Uuid, limit: u32) -> Result<Vec<ExecutionRow>, StoreError> {
        self.rows(sql::EXECUTIONS, &[&after.as_bytes().as_slice(), &limit], |row| {
            Ok(ExecutionRow {
                id: id(row, 0)?,
                state: row.get(1)?,
                seq: row.get(2)?,
                total: row.get(3)?,
                open: row.get(4)?,
                unhandled: row.get(5)?,
                dead_end_cancel: row.get(6)?,
            })
        })
    }

    async fn members(&mut self, execution: Uuid) -> Result<Vec<MemberRow>, StoreError> {
        self.rows(sql::MEMBERS, &[&execution.as_bytes().as_slice()], |row| {
            Ok(MemberRow {
                id: id(row, 0)?,
                state: row.get(1)?,
                paused_from: row.get(2)?,
                start_at: row.get(3)?,
                needs_left: row.get(4)?,
                children_left: row.get(5)?,
                gated: row.get(6)?,
                hold: row.get(7)?,
            })
        })
    }

    async fn edges(&mut self, execution: Uuid) -> Result<Vec<EdgeRow>, StoreError> {
        self.rows(sql::EDGES, &[&execution.as_bytes().as_slice()], |row| {
            Ok(EdgeRow { from: id(row, 0)?, to: id(row, 1)?, met_when: row.get(2)?, on_unmet: row.get(3)? })
        })
    }

    async fn log(&mut self, execution: Uuid) -> Result<Vec<(i32, i64)>, StoreError> {
        self.rows(sql::LOG, &[&execution.as_bytes().as_slice()], |row| Ok((row.get(0)?, row.get(1)?)))
    }

    async fn feed(&mut self, (_, after): (i64, i64)) -> Result<FeedPage, StoreError> {
        let rows: Vec<(i64, Vec<u8>)> =
            self.rows("select id, items from feed where id > $1 order by id limit 256", &[&after], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })?;
        let items = rows.iter().flat_map(|(_, items)| items.chunks_exact(24).map(unpack)).collect();
        Ok(FeedPage { items, rows: rows.len() as u64, next: rows.last().map(|(id, _)| (0, *id)) })
    }

    async fn lone_events(&mut self, after: Uuid, limit: u32) -> Result<Vec<(Uuid, i64)>, StoreError> {
        self.rows(sql::LONE_EVENTS, &[&after.as_bytes().as_slice(), &limit], |row| Ok((id(row, 0)?, row.get(1)?)))
    }

    async fn shared_events(&mut self, after: Uuid, limit: u32) -> Result<Vec<(Uuid, i64)>, StoreError> {
        self.rows(sql::SHARED_EVENTS, &[&after.as_bytes().as_slice(), &limit], |row| Ok((id(row, 0)?, row.get(1)?)))
    }

    async fn shared_tasks(&mut self, after: Uuid, limit: u32) -> Result<Vec<(Uuid, Uuid)>, StoreError> {
        self.rows(sql::SHARED_TASKS, &[&after.as_bytes().as_slice(), &limit], |row| Ok((id(row, 0)?, id(row, 1)?)))
    }

    async fn answers(&mut self, after: &AnswerPlace, limit: u32) -> Result<Vec<(AnswerPlace, String)>, StoreError> {
        self.rows(sql::ANSWERS, &[&after.0, &after.1, &after.2, &limit], |row| {
            Ok(((row.get(0)?, row.get(1)?, row.get(2)?), row.get(3)?))
        })
    }

    async fn existing(&mut self, ids: &[Uuid]) -> Result<BTreeSet<Uuid>, StoreError> {
        let sql = "select id from task where id = $1 union all select id from execution where id = $1";
        let mut there = BTreeSet::new();
        for wanted in ids {
            there.extend(self.rows(sql, &[&wanted.as_bytes().as_slice()], |row| id(row, 0))?);
        }
        Ok(there)
    }
}
