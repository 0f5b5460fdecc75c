//! The statements that write rows and the way rows are bound and read. Column lists come from `row`, once for both databases.

use std::sync::{Arc, LazyLock};

use rusqlite::{CachedStatement, Connection, OptionalExtension, Row, Statement, ToSql};
use uuid::Uuid;

use crate::StoreError;
use crate::Stored;
use crate::dictionary::Dictionary;
use crate::row::{
    DONE_COLUMNS, DoneRow, FIXED_COLUMNS, FixedRow, HISTORY_COLUMNS, HistoryRow, OPEN_COLUMNS, OpenRow, columns,
    corrupt,
};

pub const INSERT_FEED: &str = "insert into feed (at, namespace, items) values (?1, ?2, ?3)";

pub static INSERT_OPEN: LazyLock<String> = LazyLock::new(|| insert("task_open", &OPEN_COLUMNS));
pub static INSERT_DONE: LazyLock<String> = LazyLock::new(|| insert("task_done", &DONE_COLUMNS));
pub static INSERT_HISTORY: LazyLock<String> = LazyLock::new(|| insert("history", &HISTORY_COLUMNS));

/// Every column that a verdict knows of, guarded by the version in the last parameter. What identifies the row and what only
/// the store knows stays as it is.
pub static UPDATE_OPEN: LazyLock<String> = LazyLock::new(|| {
    let kept = ["id", "lane", "execution_id", "policy", "submitted_at", "hard_deadline", "dedupe"];
    let moved = OPEN_COLUMNS.iter().enumerate().filter(|(_, name)| !kept.contains(name));
    let sets: Vec<String> = moved.map(|(i, name)| format!("{name} = ?{}", i + 1)).collect();
    format!("update task_open set {} where id = ?1 and version = ?{}", sets.join(", "), OPEN_COLUMNS.len())
});

pub static SELECT_OPEN: LazyLock<String> =
    LazyLock::new(|| format!("select {} from task_open o where o.id = ?1", columns("o", &OPEN_COLUMNS)));

pub static SELECT_DONE: LazyLock<String> = LazyLock::new(|| {
    format!(
        "select {}, {} from task_done d join task t on t.id = d.id where d.id = ?1",
        columns("d", &DONE_COLUMNS),
        columns("t", &FIXED_COLUMNS)
    )
});

fn insert(table: &str, names: &[&str]) -> String {
    let marks: Vec<String> = (1..=names.len()).map(|i| format!("?{i}")).collect();
    format!("insert into {table} ({}) values ({})", names.join(", "), marks.join(", "))
}

/// How many rows one statement is about at most: opening the table and its indexes for each would cost as much as the change.
const ALIKE: usize = 32;

/// A statement about many rows: its text ends with `id in`, and the ids are its last parameters.
pub struct Alike {
    one: String,
    many: String,
}

impl Alike {
    pub fn new(text: &str, parameters: usize) -> Alike {
        let ids = |count: usize| (1..=count).map(|i| format!("?{}", parameters + i)).collect::<Vec<_>>().join(", ");
        Alike { one: format!("{text} ({})", ids(1)), many: format!("{text} ({})", ids(ALIKE)) }
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
        let mut to = Binder { statement: &mut statement, next: 0 };
        values.iter().try_for_each(|value| to.bind(value))?;
        // An id that is named again changes nothing.
        let last = ids.last().copied().unwrap_or_default();
        ids.iter().copied().chain(std::iter::repeat(last)).take(places).try_for_each(|id| to.uuid(id))?;
        Ok(statement)
    }
}

/// Binds one value after the other.
struct Binder<'a, 'b> {
    statement: &'a mut Statement<'b>,
    next: usize,
}

impl Binder<'_, '_> {
    fn bind(&mut self, value: impl ToSql) -> rusqlite::Result<()> {
        self.next += 1;
        self.statement.raw_bind_parameter(self.next, value)
    }

    fn uuid(&mut self, value: Uuid) -> rusqlite::Result<()> {
        self.bind(value.as_bytes().as_slice())
    }

    fn maybe_uuid(&mut self, value: Option<Uuid>) -> rusqlite::Result<()> {
        self.bind(value.as_ref().map(|id| id.as_bytes().as_slice()))
    }
}

fn bind_open(statement: &mut Statement<'_>, row: &OpenRow) -> rusqlite::Result<usize> {
    let mut to = Binder { statement, next: 0 };
    to.uuid(row.id)?;
    to.bind(row.lane)?;
    to.maybe_uuid(row.execution_id)?;
    to.bind(row.policy)?;
    to.bind(row.state)?;
    to.bind(row.prio)?;
    to.bind(row.hold)?;
    to.bind(row.submitted_at)?;
    to.bind(row.version)?;
    to.bind(row.seq)?;
    to.bind(row.unwritten)?;
    to.bind(row.ready_at)?;
    to.bind(row.attempt)?;
    to.bind(row.lost)?;
    to.bind(row.throttled)?;
    to.bind(row.snoozed)?;
    to.bind(row.rule_counts.as_deref())?;
    to.bind(row.cycle)?;
    to.bind(row.run)?;
    to.bind(row.lease_no)?;
    to.bind(row.worker.as_deref())?;
    to.bind(row.lease_at)?;
    to.bind(row.lease_expires)?;
    to.bind(row.due)?;
    to.bind(row.start_at)?;
    to.bind(row.next_retry_at)?;
    to.bind(row.held_until)?;
    to.bind(row.held_by.as_deref())?;
    to.bind(row.timeout_ms)?;
    to.bind(row.attempt_deadline_ms)?;
    to.bind(row.timeout_at)?;
    to.bind(row.expires_at)?;
    to.bind(row.hard_deadline)?;
    to.bind(row.first_failed_at)?;
    to.bind(row.started_at)?;
    to.bind(row.updated_at)?;
    to.bind(row.paused_from)?;
    to.bind(row.parked)?;
    to.bind(row.reason)?;
    to.bind(row.class)?;
    to.bind(row.fingerprint)?;
    to.bind(row.expected)?;
    to.bind(row.success)?;
    to.bind(row.failures)?;
    to.bind(row.needs_left)?;
    to.bind(row.children_left)?;
    to.bind(row.dead_end_barrier)?;
    to.bind(row.gated)?;
    to.bind(row.hooked)?;
    Ok(to.next)
}

pub fn insert_open(connection: &Connection, row: &OpenRow) -> rusqlite::Result<()> {
    insert_open_with(&mut *connection.prepare_cached(&INSERT_OPEN)?, row)
}

/// With a statement that is used again and again.
pub fn insert_open_with(statement: &mut Statement<'_>, row: &OpenRow) -> rusqlite::Result<()> {
    let bound = bind_open(statement, row)?;
    statement.raw_bind_parameter(bound + 1, row.dedupe)?;
    statement.raw_execute().map(|_| ())
}

/// Whether the row was there in the expected version.
pub fn update_open(connection: &Connection, row: &OpenRow, expected_version: u32) -> rusqlite::Result<bool> {
    update_open_with(&mut *connection.prepare_cached(&UPDATE_OPEN)?, row, expected_version)
}

pub fn update_open_with(statement: &mut Statement<'_>, row: &OpenRow, expected_version: u32) -> rusqlite::Result<bool> {
    let bound = bind_open(statement, row)?;
    statement.raw_bind_parameter(bound + 1, expected_version)?;
    Ok(statement.raw_execute()? == 1)
}

pub fn insert_done(connection: &Connection, row: &DoneRow, policy: Option<i32>) -> rusqlite::Result<()> {
    insert_done_with(&mut *connection.prepare_cached(&INSERT_DONE)?, row, policy)
}

/// The policy is what the open row had: only the store knows its number.
pub fn insert_done_with(statement: &mut Statement<'_>, row: &DoneRow, policy: Option<i32>) -> rusqlite::Result<()> {
    let mut to = Binder { statement, next: 0 };
    to.uuid(row.id)?;
    to.bind(row.lane)?;
    to.maybe_uuid(row.execution_id)?;
    to.bind(policy)?;
    to.bind(row.state)?;
    to.bind(row.version)?;
    to.bind(row.seq)?;
    to.bind(row.attempt)?;
    to.bind(row.lost)?;
    to.bind(row.throttled)?;
    to.bind(row.snoozed)?;
    to.bind(row.cycle)?;
    to.bind(row.run)?;
    to.bind(row.lease_no)?;
    to.bind(row.started_at)?;
    to.bind(row.ended_at)?;
    to.bind(row.updated_at)?;
    to.bind(row.first_failed_at)?;
    to.bind(row.expires_at)?;
    to.bind(row.reason)?;
    to.bind(row.class)?;
    to.bind(row.fingerprint)?;
    to.bind(row.expected)?;
    to.bind(row.success)?;
    to.bind(row.failures)?;
    to.statement.raw_execute().map(|_| ())
}

pub fn insert_history(connection: &Connection, row: &HistoryRow) -> rusqlite::Result<()> {
    insert_history_with(&mut *connection.prepare_cached(&INSERT_HISTORY)?, row)
}

pub fn insert_history_with(statement: &mut Statement<'_>, row: &HistoryRow) -> rusqlite::Result<()> {
    let mut to = Binder { statement, next: 0 };
    to.uuid(row.subject)?;
    to.bind(row.seq)?;
    to.maybe_uuid(row.execution_id)?;
    to.bind(row.events.as_slice())?;
    to.bind(row.at)?;
    to.bind(row.ready_at)?;
    to.bind(row.started_at)?;
    to.bind(row.cycle)?;
    to.bind(row.run)?;
    to.bind(row.attempt)?;
    to.bind(row.lease_no)?;
    to.bind(row.outcome)?;
    to.bind(row.worker.as_deref())?;
    to.bind(row.actor.as_deref())?;
    to.bind(row.result.as_deref())?;
    to.bind(row.error.as_deref())?;
    to.bind(row.decision.as_deref())?;
    to.bind(row.data.as_deref())?;
    to.statement.raw_execute().map(|_| ())
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

pub fn read_open(from: &mut Reader<'_, '_>) -> rusqlite::Result<OpenRow> {
    Ok(OpenRow {
        id: from.uuid()?,
        lane: from.get()?,
        execution_id: from.maybe_uuid()?,
        policy: from.get()?,
        state: from.get()?,
        prio: from.get()?,
        hold: from.get()?,
        submitted_at: from.get()?,
        version: from.get()?,
        seq: from.get()?,
        unwritten: from.get()?,
        ready_at: from.get()?,
        attempt: from.get()?,
        lost: from.get()?,
        throttled: from.get()?,
        snoozed: from.get()?,
        rule_counts: from.get()?,
        cycle: from.get()?,
        run: from.get()?,
        lease_no: from.get()?,
        worker: from.text()?,
        lease_at: from.get()?,
        lease_expires: from.get()?,
        due: from.get()?,
        start_at: from.get()?,
        next_retry_at: from.get()?,
        held_until: from.get()?,
        held_by: from.get()?,
        timeout_ms: from.get()?,
        attempt_deadline_ms: from.get()?,
        timeout_at: from.get()?,
        expires_at: from.get()?,
        hard_deadline: from.get()?,
        first_failed_at: from.get()?,
        started_at: from.get()?,
        updated_at: from.get()?,
        paused_from: from.get()?,
        parked: from.get()?,
        reason: from.get()?,
        class: from.get()?,
        fingerprint: from.get()?,
        expected: from.get()?,
        success: from.get()?,
        failures: from.get()?,
        needs_left: from.get()?,
        children_left: from.get()?,
        dead_end_barrier: from.get()?,
        gated: from.get()?,
        hooked: from.get()?,
        dedupe: from.get()?,
    })
}

pub fn read_done(from: &mut Reader<'_, '_>) -> rusqlite::Result<DoneRow> {
    Ok(DoneRow {
        id: from.uuid()?,
        lane: from.get()?,
        execution_id: from.maybe_uuid()?,
        policy: from.get()?,
        state: from.get()?,
        version: from.get()?,
        seq: from.get()?,
        attempt: from.get()?,
        lost: from.get()?,
        throttled: from.get()?,
        snoozed: from.get()?,
        cycle: from.get()?,
        run: from.get()?,
        lease_no: from.get()?,
        started_at: from.get()?,
        ended_at: from.get()?,
        updated_at: from.get()?,
        first_failed_at: from.get()?,
        expires_at: from.get()?,
        reason: from.get()?,
        class: from.get()?,
        fingerprint: from.get()?,
        expected: from.get()?,
        success: from.get()?,
        failures: from.get()?,
    })
}

pub fn read_fixed(from: &mut Reader<'_, '_>) -> rusqlite::Result<FixedRow> {
    Ok(FixedRow {
        priority: from.get()?,
        submitted_at: from.get()?,
        timeout_ms: from.get()?,
        attempt_deadline_ms: from.get()?,
        start_at: from.get()?,
        expires_at: from.get()?,
        hard_deadline: from.get()?,
        dead_end_barrier: from.get()?,
        gated: from.get()?,
        hooked: from.get()?,
    })
}

pub fn read_history(from: &mut Reader<'_, '_>) -> rusqlite::Result<HistoryRow> {
    Ok(HistoryRow {
        subject: from.uuid()?,
        seq: from.get()?,
        execution_id: from.maybe_uuid()?,
        events: from.get()?,
        at: from.get()?,
        ready_at: from.get()?,
        started_at: from.get()?,
        cycle: from.get()?,
        run: from.get()?,
        attempt: from.get()?,
        lease_no: from.get()?,
        outcome: from.get()?,
        worker: from.text()?,
        actor: from.get()?,
        result: from.text()?,
        error: from.get()?,
        decision: from.get()?,
        data: from.get()?,
    })
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
        let open = read_open(&mut Reader { row, next: 0 })?;
        return stored_open(connection, open, dictionary).map(Some);
    }
    let mut statement = connection.prepare_cached(&SELECT_DONE)?;
    let mut rows = statement.query([id.as_bytes().as_slice()])?;
    match rows.next()? {
        None => Ok(None),
        Some(row) => {
            let mut from = Reader { row, next: 0 };
            let done = read_done(&mut from)?;
            let fixed = read_fixed(&mut from)?;
            stored_done(connection, done, &fixed, dictionary).map(Some)
        }
    }
}
