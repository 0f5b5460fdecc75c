//! Reading tasks and their histories.

use std::sync::LazyLock;

use async_trait::async_trait;
use comeback_core::filter::{Filter, Sort};
use comeback_core::payload::OldPayload;
use comeback_core::{ExecutionId, Record, State, TaskId, Timestamp};
use rusqlite::{Connection, OptionalExtension};
use uuid::Uuid;

use super::executions::{edges, execution};
use super::statements::{Reader, load_one};
use super::{SqliteStore, list, payloads};
use crate::dictionary::Dictionary;
use crate::events::MOST_EVENTS;
use crate::row::{HistoryRow, columns, created_record, labels_from_json};
use crate::rules::names_from_json;
use crate::{Body, ListQuery, Listing, StoreError, Stored, Subject, TaskQueries, TaskView, sql};

pub fn load(
    connection: &Connection,
    dictionary: &Dictionary,
    ids: &[TaskId],
) -> Result<Vec<Option<Stored>>, StoreError> {
    ids.iter().map(|id| load_one(connection, dictionary, id.0)).collect()
}

pub fn task(
    connection: &Connection,
    dictionary: &Dictionary,
    namespace: &str,
    id: TaskId,
) -> Result<Option<TaskView>, StoreError> {
    let Some(stored) = load_one(connection, dictionary, id.0)?.filter(|stored| stored.task.lane.namespace == namespace)
    else {
        return Ok(None);
    };
    let (body, payload_version) = connection
        .prepare_cached(
            "select key, name, payload, labels, executor, hooks, account, cost, dedupe_key, external_id, traceparent,
               hard_deadline, step, rules, (select 1 + count(*) from task_payload p where p.task_id = task.id)
             from task where id = ?1",
        )?
        .query_row([id.0.as_bytes().as_slice()], |row| {
            let mut from = Reader { row, next: 0 };
            let body = Body {
                key: from.get()?,
                name: from.get()?,
                payload: from.text()?,
                labels: labels_from_json(from.text()?.as_deref()),
                executor: from.get()?,
                hooks: from.get()?,
                account: from.get()?,
                cost: from.get()?,
                dedupe_key: from.get()?,
                external_id: from.get()?,
                traceparent: from.get()?,
                hard_deadline: from.get::<i16>()? != 0,
                step: from.get()?,
                rules: names_from_json(from.get::<Option<String>>()?.as_deref()),
            };
            Ok((body, from.get()?))
        })?;
    let result = last_record(connection, id.0, "outcome = 0")?.and_then(|record| record.result);
    let progress = connection
        .prepare_cached("select progress from task_open where id = ?1")?
        .query_row([id.0.as_bytes().as_slice()], |row| row.get(0))
        .optional()?
        .flatten();
    Ok(Some(TaskView {
        result: result.filter(|_| stored.task.state == State::Succeeded),
        last_failure: last_record(connection, id.0, "error is not null")?,
        last_decision: last_record(connection, id.0, "decision is not null")?,
        needs: edges(connection, id.0, false)?,
        stored,
        body,
        progress,
        payload_version,
    }))
}

pub static HISTORY: LazyLock<String> = LazyLock::new(|| columns("h", HistoryRow::COLUMNS));

fn last_record(connection: &Connection, subject: Uuid, condition: &str) -> Result<Option<Record>, StoreError> {
    let sql = format!(
        "select {} from history h where subject = ?1 and {condition} order by seq desc limit 1",
        HISTORY.as_str()
    );
    let row = connection
        .prepare_cached(&sql)?
        .query_row([subject.as_bytes().as_slice()], |row| HistoryRow::read(&mut Reader { row, next: 0 }))
        .optional()?;
    row.map(|row| row.into_record()).transpose()
}

pub fn ended(connection: &Connection, leases: &[(TaskId, u32)]) -> Result<Vec<Option<Record>>, StoreError> {
    let sql = format!(
        "select {} from history h where h.subject = ?1 and h.lease_no = ?2 and h.outcome is not null
         order by h.seq desc limit 1",
        HISTORY.as_str()
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let mut found = Vec::with_capacity(leases.len());
    for (id, number) in leases {
        let row = statement
            .query_row((id.0.as_bytes().as_slice(), number), |row| HistoryRow::read(&mut Reader { row, next: 0 }))
            .optional()?;
        found.push(row.map(|row| row.into_record()).transpose()?);
    }
    Ok(found)
}

pub fn history(
    connection: &Connection,
    dictionary: &Dictionary,
    subject: Subject,
    after: u32,
    limit: u32,
) -> Result<Vec<Record>, StoreError> {
    let id = match subject {
        Subject::Task(id) => id.0,
        Subject::Execution(id) => id.0,
    };
    let shared =
        matches!(subject, Subject::Execution(_)) && execution(connection, dictionary, ExecutionId(id))?.is_some();
    let (condition, index) = if shared { ("h.execution_id = ?1", "history_execution") } else { ("h.subject = ?1", "") };
    let hint = if index.is_empty() { String::new() } else { format!("indexed by {index}") };
    let sql = format!(
        "select {} from history h {hint} where {condition} and h.seq > ?2 and h.seq + length(h.events) - 1 > ?3
         order by h.seq limit ?4",
        HISTORY.as_str()
    );
    let mut records = Vec::new();
    if !shared {
        records.extend(first_record(connection, id)?.filter(|record| record.last_seq() > after));
    }
    let low = i64::from(after) - i64::from(MOST_EVENTS);
    let rows: Vec<_> = connection
        .prepare_cached(&sql)?
        .query_map((id.as_bytes().as_slice(), low, after, limit), |row| HistoryRow::read(&mut Reader { row, next: 0 }))?
        .collect::<rusqlite::Result<_>>()?;
    for row in rows {
        records.push(row.into_record()?);
    }
    if !shared && records.len() < limit as usize {
        let task = load_one(connection, dictionary, id)?.map(|stored| stored.task);
        let carried = task.and_then(|task| task.unwritten_record(task.updated_at));
        records.extend(carried.filter(|record| record.last_seq() > after));
    }
    records.truncate(limit as usize);
    Ok(records)
}

pub fn runs_before(connection: &Connection, id: TaskId, before: u32, limit: u32) -> Result<Vec<Record>, StoreError> {
    let sql = format!(
        "select {} from history h where h.subject = ?1 and h.seq < ?2 and h.outcome is not null
         order by h.seq desc limit ?3",
        HISTORY.as_str()
    );
    let rows: Vec<_> = connection
        .prepare_cached(&sql)?
        .query_map((id.0.as_bytes().as_slice(), before, limit), |row| HistoryRow::read(&mut Reader { row, next: 0 }))?
        .collect::<rusqlite::Result<_>>()?;
    rows.into_iter().map(|row| row.into_record()).collect()
}

/// The creation of a lone task, which its body tells; a task of an execution has it in the shared log.
pub fn first_record(connection: &Connection, id: Uuid) -> Result<Option<Record>, StoreError> {
    let found: Option<(i64, Option<i64>)> = connection
        .prepare_cached(sql::tasks::FIRST_TIMES.sqlite)?
        .query_row([id.as_bytes().as_slice()], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    Ok(found.map(|(submitted_at, start_at)| created_record(id, submitted_at, start_at)))
}

#[async_trait]
impl TaskQueries for SqliteStore {
    async fn load(&self, ids: &[TaskId]) -> Result<Vec<Option<Stored>>, StoreError> {
        let ids = ids.to_vec();
        self.read(move |connection, dictionary| load(connection, dictionary, &ids)).await
    }

    async fn task(&self, namespace: &str, id: TaskId) -> Result<Option<TaskView>, StoreError> {
        let namespace = namespace.to_owned();
        self.read(move |connection, dictionary| task(connection, dictionary, &namespace, id)).await
    }

    async fn old_payloads(&self, id: TaskId) -> Result<Vec<OldPayload>, StoreError> {
        self.read(move |connection, _| payloads::old(connection, id)).await
    }

    async fn list(&self, namespace: &str, query: &ListQuery) -> Result<Listing, StoreError> {
        let (namespace, query) = (namespace.to_owned(), query.clone());
        self.search(move |connection, dictionary| list::list(connection, dictionary, &namespace, &query)).await
    }

    async fn matching(
        &self,
        namespace: &str,
        filter: &Filter,
        now: Timestamp,
        most: u32,
    ) -> Result<Vec<TaskId>, StoreError> {
        let namespace = namespace.to_owned();
        let query = ListQuery { filter: filter.clone(), sort: Sort::Submitted, limit: most, after: None, now };
        self.search(move |connection, dictionary| list::matching(connection, dictionary, &namespace, &query)).await
    }

    async fn history(&self, subject: Subject, after: u32, limit: u32) -> Result<Vec<Record>, StoreError> {
        self.read(move |connection, dictionary| history(connection, dictionary, subject, after, limit)).await
    }

    async fn runs_before(&self, id: TaskId, before: u32, limit: u32) -> Result<Vec<Record>, StoreError> {
        self.read(move |connection, _| runs_before(connection, id, before, limit)).await
    }

    async fn ended(&self, leases: &[(TaskId, u32)]) -> Result<Vec<Option<Record>>, StoreError> {
        let leases = leases.to_vec();
        self.read(move |connection, _| ended(connection, &leases)).await
    }
}
