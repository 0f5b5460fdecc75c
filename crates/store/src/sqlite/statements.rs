//! The statements that write rows and the way rows are bound and read. Column lists come from `row`, once for both databases.

use std::sync::{Arc, LazyLock};

use rusqlite::{CachedStatement, Connection, OptionalExtension, Row, Statement, ToSql};
use uuid::Uuid;

use crate::column::{Column, ColumnReader};
use crate::dictionary::Dictionary;
use crate::row::{DoneRow, FixedRow, HistoryRow, OpenRow, columns, corrupt};
use crate::{StoreError, Stored};

pub const INSERT_FEED: &str = "insert into feed (at, namespace, items) values (?1, ?2, ?3)";

pub static INSERT_OPEN: LazyLock<String> = LazyLock::new(|| insert("task_open", OpenRow::COLUMNS));
pub static INSERT_DONE: LazyLock<String> = LazyLock::new(|| insert("task_done", DoneRow::COLUMNS));
pub static INSERT_HISTORY: LazyLock<String> = LazyLock::new(|| insert("history", HistoryRow::COLUMNS));

/// Every column that a verdict knows of, guarded by the version in the last parameter. What identifies the row and what only
/// the store knows stays as it is.
pub static UPDATE_OPEN: LazyLock<String> = LazyLock::new(|| {
    let kept = ["id", "lane", "execution_id", "policy", "submitted_at", "hard_deadline", "dedupe"];
    let moved = OpenRow::COLUMNS.iter().enumerate().filter(|(_, name)| !kept.contains(name));
    let sets: Vec<String> = moved.map(|(i, name)| format!("{name} = ?{}", i + 1)).collect();
    format!("update task_open set {} where id = ?1 and version = ?{}", sets.join(", "), OpenRow::COLUMNS.len())
});

pub static SELECT_OPEN: LazyLock<String> =
    LazyLock::new(|| format!("select {} from task_open o where o.id = ?1", columns("o", OpenRow::COLUMNS)));

pub static SELECT_DONE: LazyLock<String> = LazyLock::new(|| {
    format!(
        "select {}, {} from task_done d join task t on t.id = d.id where d.id = ?1",
        columns("d", DoneRow::COLUMNS),
        columns("t", FixedRow::COLUMNS)
    )
});

fn insert(table: &str, names: &[&str]) -> String {
    let marks: Vec<String> = (1..=names.len()).map(|i| format!("?{i}")).collect();
    format!("insert into {table} ({}) values ({})", names.join(", "), marks.join(", "))
}

/// How many rows one statement is about at most: opening the table and its indexes for each would cost as much as the change.
const ALIKE: usize = 32;

/// A statement about many rows: its text ends with `id in`, and the ids are its last parameters.
pub struct BatchStatement {
    one: String,
    many: String,
}

impl BatchStatement {
    pub fn new(text: &str, parameters: usize) -> BatchStatement {
        let ids = |count: usize| (1..=count).map(|i| format!("?{}", parameters + i)).collect::<Vec<_>>().join(", ");
        BatchStatement { one: format!("{text} ({})", ids(1)), many: format!("{text} ({})", ids(ALIKE)) }
    }

    pub fn execute(&self, connection: &Connection, values: &[&dyn ToSql], ids: &[Uuid]) -> rusqlite::Result<()> {
        ids.chunks(ALIKE).try_for_each(|chunk| self.bound(connection, values, chunk)?.raw_execute().map(|_| ()))
    }

    pub fn query(
        &self,
        connection: &Connection,
        ids: &[Uuid],
        mut each: impl FnMut(&Row<'_>) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        for chunk in ids.chunks(ALIKE) {
            let mut statement = self.bound(connection, &[], chunk)?;
            let mut rows = statement.raw_query();
            while let Some(row) = rows.next()? {
                each(row)?;
            }
        }
        Ok(())
    }

    fn bound<'a>(
        &self,
        connection: &'a Connection,
        values: &[&dyn ToSql],
        ids: &[Uuid],
    ) -> rusqlite::Result<CachedStatement<'a>> {
        let (text, places) = if ids.len() == 1 { (&self.one, 1) } else { (&self.many, ALIKE) };
        let mut statement = connection.prepare_cached(text)?;
        for (value, place) in values.iter().zip(1..) {
            statement.raw_bind_parameter(place, value)?;
        }
        // An id that is named again changes nothing.
        let last = ids.last().copied().unwrap_or_default();
        let ids = ids.iter().copied().chain(std::iter::repeat(last)).take(places);
        ids.zip(values.len() + 1..).try_for_each(|(id, place)| id.bind_sqlite(&mut statement, place))?;
        Ok(statement)
    }
}

pub fn insert_open(connection: &Connection, row: &OpenRow) -> rusqlite::Result<()> {
    insert_open_with(&mut *connection.prepare_cached(&INSERT_OPEN)?, row)
}

/// With a statement that is used again and again.
pub fn insert_open_with(statement: &mut Statement<'_>, row: &OpenRow) -> rusqlite::Result<()> {
    let bound = row.bind_sqlite(statement)?;
    statement.raw_bind_parameter(bound + 1, row.dedupe)?;
    statement.raw_execute().map(|_| ())
}

/// Whether the row was there in the expected version.
pub fn update_open(connection: &Connection, row: &OpenRow, expected_version: u32) -> rusqlite::Result<bool> {
    update_open_with(&mut *connection.prepare_cached(&UPDATE_OPEN)?, row, expected_version)
}

pub fn update_open_with(statement: &mut Statement<'_>, row: &OpenRow, expected_version: u32) -> rusqlite::Result<bool> {
    let bound = row.bind_sqlite(statement)?;
    statement.raw_bind_parameter(bound + 1, expected_version)?;
    Ok(statement.raw_execute()? == 1)
}

pub fn insert_done(connection: &Connection, row: &DoneRow, policy: Option<i32>) -> rusqlite::Result<()> {
    insert_done_with(&mut *connection.prepare_cached(&INSERT_DONE)?, row, policy)
}

/// The policy is what the open row had: only the store knows its number.
pub fn insert_done_with(statement: &mut Statement<'_>, row: &DoneRow, policy: Option<i32>) -> rusqlite::Result<()> {
    let bound = row.bind_sqlite(statement)?;
    statement.raw_bind_parameter(bound + 1, policy)?;
    statement.raw_execute().map(|_| ())
}

pub fn insert_history(connection: &Connection, row: &HistoryRow) -> rusqlite::Result<()> {
    insert_history_with(&mut *connection.prepare_cached(&INSERT_HISTORY)?, row)
}

pub fn insert_history_with(statement: &mut Statement<'_>, row: &HistoryRow) -> rusqlite::Result<()> {
    row.bind_sqlite(statement)?;
    statement.raw_execute().map(|_| ())
}

/// Reads one value after the other.
pub struct Reader<'a, 'b> {
    pub row: &'a Row<'b>,
    pub next: usize,
}

impl Reader<'_, '_> {
    pub fn get<T: rusqlite::types::FromSql>(&mut self) -> rusqlite::Result<T> {
        let value = self.row.get(self.next);
        self.next += 1;
        value
    }

    pub fn uuid(&mut self) -> rusqlite::Result<Uuid> {
        self.get::<[u8; 16]>().map(Uuid::from_bytes)
    }

    pub fn maybe_uuid(&mut self) -> rusqlite::Result<Option<Uuid>> {
        self.get::<Option<[u8; 16]>>().map(|bytes| bytes.map(Uuid::from_bytes))
    }

    pub fn text(&mut self) -> rusqlite::Result<Option<Arc<str>>> {
        let value = self.row.get_ref(self.next)?.as_str_or_null()?.map(Arc::from);
        self.next += 1;
        Ok(value)
    }
}

impl ColumnReader for Reader<'_, '_> {
    type Error = rusqlite::Error;

    fn column<C: Column>(&mut self) -> rusqlite::Result<C> {
        let value = C::read_sqlite(self.row, self.next);
        self.next += 1;
        value
    }
}

/// An open row as a task with its lane and policy.
pub fn stored_open(connection: &Connection, row: OpenRow, dictionary: &Dictionary) -> Result<Stored, StoreError> {
    let lane = dictionary.lane(row.lane).ok_or_else(|| corrupt(format!("lane {}", row.lane)))?;
    let (policy_id, hard_deadline) = (row.policy, row.hard_deadline != 0);
    let policy = policy_of(connection, policy_id, dictionary)?;
    Ok(Stored { task: row.into_task(lane)?, policy_id, policy, hard_deadline })
}

pub fn stored_done(
    connection: &Connection,
    row: DoneRow,
    fixed: &FixedRow,
    dictionary: &Dictionary,
) -> Result<Stored, StoreError> {
    let lane = dictionary.lane(row.lane).ok_or_else(|| corrupt(format!("lane {}", row.lane)))?;
    let policy_id = row.policy;
    let policy = policy_of(connection, policy_id, dictionary)?;
    Ok(Stored { task: row.into_task(lane, fixed)?, policy_id, policy, hard_deadline: fixed.hard_deadline != 0 })
}

fn policy_of(
    connection: &Connection,
    id: Option<i32>,
    dictionary: &Dictionary,
) -> Result<Option<Arc<comeback_core::Policy>>, StoreError> {
    id.map(|id| policy(connection, id, dictionary)).transpose()
}

/// A stored policy: from the cache, or parsed now.
pub fn policy(
    connection: &Connection,
    id: i32,
    dictionary: &Dictionary,
) -> Result<Arc<comeback_core::Policy>, StoreError> {
    if let Some(known) = dictionary.policies.get(id) {
        return Ok(known);
    }
    let body: Option<String> = connection
        .prepare_cached("select body from policy where id = ?1")?
        .query_row([id], |row| row.get(0))
        .optional()?;
    dictionary.policies.parse(id, &body.ok_or_else(|| corrupt(format!("policy {id}")))?)
}

/// One task by id, open or over.
pub fn load_one(connection: &Connection, dictionary: &Dictionary, id: Uuid) -> Result<Option<Stored>, StoreError> {
    let mut statement = connection.prepare_cached(&SELECT_OPEN)?;
    let mut rows = statement.query([id.as_bytes().as_slice()])?;
    if let Some(row) = rows.next()? {
        let open = OpenRow::read(&mut Reader { row, next: 0 })?;
        return stored_open(connection, open, dictionary).map(Some);
    }
    let mut statement = connection.prepare_cached(&SELECT_DONE)?;
    let mut rows = statement.query([id.as_bytes().as_slice()])?;
    match rows.next()? {
        None => Ok(None),
        Some(row) => {
            let mut from = Reader { row, next: 0 };
            let done = DoneRow::read(&mut from)?;
            let fixed = FixedRow::read(&mut from)?;
            stored_done(connection, done, &fixed, dictionary).map(Some)
        }
    }
}
