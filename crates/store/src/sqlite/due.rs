//! Times that come: retries, first starts, leases, limits and deadlines.

use async_trait::async_trait;
use comeback_core::Timestamp;
use rusqlite::{Connection, OptionalExtension};

use super::SqliteStore;
use super::statements::{Reader, stored_open};
use crate::dictionary::Dictionary;
use crate::row::{OpenRow, columns};
use crate::{Due, DueBefore, DueQueries, NextDue, StoreError, Stored, sql};

pub fn due(
    connection: &Connection,
    dictionary: &Dictionary,
    what: Due,
    now: Timestamp,
    limit: u32,
) -> Result<Vec<Stored>, StoreError> {
    let condition = what.condition().sqlite;
    let sql = format!("select {} from task_open o where {condition} limit ?2", columns("o", OpenRow::COLUMNS));
    let rows: Vec<_> = connection
        .prepare_cached(&sql)?
        .query_map((now.0, limit), |row| OpenRow::read(&mut Reader { row, next: 0 }))?
        .collect::<rusqlite::Result<_>>()?;
    rows.into_iter().map(|row| stored_open(connection, row, dictionary)).collect()
}

/// The next time of each sort, in the order of `NextDue`.
const NEXT: [&str; 9] = [
    "select due from task_open where state = 4 and hold = 0 order by due limit 1",
    "select due from task_open where state = 0 and hold = 0 and due is not null order by due limit 1",
    "select lease_expires from task_open where lease_expires is not null order by lease_expires limit 1",
    "select timeout_at from task_open where timeout_at is not null order by timeout_at limit 1",
    "select expires_at from task_open where expires_at is not null
       and (state in (0, 1, 4) or (hard_deadline = 1 and state in (2, 3))) order by expires_at limit 1",
    "select updated_at from task_open where gated = 1 and state = 0 and needs_left = 0 and hold = 0 limit 1",
    "select due from schedule where due is not null order by due limit 1",
    "select due from operation where due is not null order by due limit 1",
    "select due from alert where due > 0 order by due limit 1",
];

pub fn next_due(connection: &Connection) -> Result<NextDue, StoreError> {
    let mut found = [None; NEXT.len()];
    for (at, sql) in found.iter_mut().zip(NEXT) {
        let due: Option<i64> = connection.prepare_cached(sql)?.query_row((), |row| row.get(0)).optional()?;
        *at = due.map(Timestamp);
    }
    let [retry, start, lease, timeout, deadline, gate, schedule, operation, alert] = found;
    Ok(NextDue { retry, start, lease, timeout, deadline, gate, schedule, operation, alert })
}

pub fn retry_after(connection: &Connection, after: Timestamp) -> Result<Option<Timestamp>, StoreError> {
    let sql = "select due from task_open where state = 4 and hold = 0 and due > ?1 order by due limit 1";
    let at: Option<i64> = connection.prepare_cached(sql)?.query_row((after.0,), |row| row.get(0)).optional()?;
    Ok(at.map(Timestamp))
}

pub fn due_before(connection: &Connection, until: Timestamp) -> Result<DueBefore, StoreError> {
    let counts = connection.prepare_cached(DueBefore::QUERY)?.query_row([until.0], |row| {
        let mut counts = [0; 9];
        for (place, count) in counts.iter_mut().enumerate() {
            *count = row.get(place)?;
        }
        Ok(counts)
    })?;
    Ok(DueBefore::read(counts))
}

fn next_dependency(connection: &Connection, after: Timestamp) -> Result<Option<Timestamp>, StoreError> {
    let sql = sql::resources::NEXT_DEPENDENCY.sqlite;
    let due: Option<i64> = connection.prepare_cached(sql)?.query_row([after.0], |row| row.get(0))?;
    Ok(due.map(Timestamp))
}

#[async_trait]
impl DueQueries for SqliteStore {
    async fn due(&self, what: Due, now: Timestamp, limit: u32) -> Result<Vec<Stored>, StoreError> {
        self.read(move |connection, dictionary| due(connection, dictionary, what, now, limit)).await
    }

    async fn next_due(&self) -> Result<NextDue, StoreError> {
        self.read(|connection, _| next_due(connection)).await
    }

    async fn due_before(&self, until: Timestamp) -> Result<DueBefore, StoreError> {
        self.search(move |connection, _| due_before(connection, until)).await
    }

    async fn retry_after(&self, after: Timestamp) -> Result<Option<Timestamp>, StoreError> {
        self.read(move |connection, _| retry_after(connection, after)).await
    }

    async fn next_dependency(&self, after: Timestamp) -> Result<Option<Timestamp>, StoreError> {
        self.read(move |connection, _| next_dependency(connection, after)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{SqliteOptions, SqliteStore};

    /// S0-30: what is due, leased, expiring, or of one execution is found through an index of just those rows.
    #[test]
    fn every_time_that_comes_has_its_partial_index() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("plans.db");
        drop(SqliteStore::open(&SqliteOptions::file(&path)).expect("the store opens"));
        let connection = Connection::open(&path).expect("opens");
        let plan = |sql: &str| -> String {
            let mut statement = connection.prepare(&format!("explain query plan {sql}")).expect(sql);
            let mut rows = statement.raw_query();
            let mut lines = Vec::new();
            while let Some(row) = rows.next().expect("a plan") {
                lines.push(row.get::<_, String>(3).expect("a line"));
            }
            lines.join("; ")
        };
        let due = |what: Due| {
            format!("select id from task_open o where {} limit 9", what.condition().sqlite.replace("?1", "7"))
        };
        let of = |sql: &str| sql.to_owned();
        let table = [
            (of(NEXT[0]), "open_retry"),
            (of(NEXT[1]), "open_start"),
            (of(NEXT[2]), "open_lease"),
            (of(NEXT[3]), "open_timeout"),
            (of(NEXT[4]), "open_deadline"),
            (of(NEXT[6]), "schedule_due"),
            (of(NEXT[7]), "operation_due"),
            (of(NEXT[8]), "alert_due"),
            (due(Due::Leases), "open_lease"),
            (due(Due::Timeouts), "open_timeout"),
            (due(Due::Deadlines), "open_deadline"),
            (of("select id from task_open where execution_id = x'00'"), "open_execution"),
            (of("select id from task where execution_id = x'00'"), "task_execution"),
            (of("select id from task where namespace = 1 and external_id = 'x'"), "task_external"),
        ];
        for (sql, index) in table {
            let plan = plan(&sql);
            assert!(plan.contains(&format!("INDEX {index}")) && !plan.contains("TEMP B-TREE"), "{sql}: {plan}");
        }
        let partial: i64 = connection
            .query_row("select count(*) from sqlite_master where type = 'index' and sql like '%where%'", (), |row| {
                row.get(0)
            })
            .expect("a count");
        assert!(partial >= 12, "{partial} indexes hold only what is looked for");
    }
}
