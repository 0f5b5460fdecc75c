//! Reading tasks and their histories.

use std::collections::HashMap;
use std::sync::LazyLock;

use async_trait::async_trait;
use comeback_core::filter::{Filter, Sort};
use comeback_core::payload::OldPayload;
use comeback_core::{ExecutionId, Record, State, TaskId, Timestamp};
use deadpool_postgres::{Object, Transaction};
use tokio_postgres::IsolationLevel;
use uuid::Uuid;

use super::executions::{execution_in, read_edge};
use super::rows::Reader;
use super::{PostgresStore, learn, list, payloads};
use crate::events::MOST_EVENTS;
use crate::row::{DoneRow, FixedRow, HistoryRow, OpenRow, columns, created_record, labels_from_json};
use crate::rules::names_from_json;
use crate::{Body, ListQuery, Listing, StoreError, Stored, Subject, TaskQueries, TaskView, sql};

/// All statements inside see the same moment.
pub async fn snapshot(client: &mut Object) -> Result<Transaction<'_>, StoreError> {
    Ok(client.build_transaction().isolation_level(IsolationLevel::RepeatableRead).read_only(true).start().await?)
}

pub static OPEN: LazyLock<String> =
    LazyLock::new(|| format!("select {} from task_open o where o.id = any($1)", columns("o", OpenRow::COLUMNS)));

static DONE: LazyLock<String> = LazyLock::new(|| {
    format!(
        "select {}, {} from task_done d join task t on t.id = d.id where d.id = any($1)",
        columns("d", DoneRow::COLUMNS),
        columns("t", FixedRow::COLUMNS)
    )
});

pub async fn load_in(
    store: &PostgresStore,
    tx: &Transaction<'_>,
    ids: &[Uuid],
) -> Result<HashMap<Uuid, Stored>, StoreError> {
    let statement = tx.prepare_cached(&OPEN).await?;
    let rows = tx.query(&statement, &[&ids]).await?;
    let open = rows.iter().map(|row| OpenRow::read(&mut Reader::new(row))).collect::<Result<Vec<_>, _>>()?;
    let mut found: HashMap<Uuid, Stored> =
        learn::stored_open(store, open).await?.into_iter().map(|stored| (stored.task.id.0, stored)).collect();
    if found.len() < ids.len() {
        let statement = tx.prepare_cached(&DONE).await?;
        let mut done = Vec::new();
        for row in tx.query(&statement, &[&ids]).await? {
            let mut from = Reader::new(&row);
            done.push((DoneRow::read(&mut from)?, FixedRow::read(&mut from)?));
        }
        let done = learn::stored_done(store, done).await?;
        found.extend(done.into_iter().map(|stored| (stored.task.id.0, stored)));
    }
    Ok(found)
}

pub static HISTORY: LazyLock<String> = LazyLock::new(|| columns("h", HistoryRow::COLUMNS));

async fn last_record(tx: &Transaction<'_>, subject: Uuid, condition: &str) -> Result<Option<Record>, StoreError> {
    let sql = format!(
        "select {} from history h where subject = $1 and {condition} order by seq desc limit 1",
        HISTORY.as_str()
    );
    let statement = tx.prepare_cached(&sql).await?;
    let row = tx.query_opt(&statement, &[&subject]).await?;
    row.map(|row| HistoryRow::read(&mut Reader::new(&row))?.into_record()).transpose()
}

#[async_trait]
impl TaskQueries for PostgresStore {
    async fn load(&self, ids: &[TaskId]) -> Result<Vec<Option<Stored>>, StoreError> {
        self.read(async {
            if ids.is_empty() {
                return Ok(Vec::new());
            }
            let mut client = self.reader().await?;
            let tx = snapshot(&mut client).await?;
            let found = load_in(self, &tx, &ids.iter().map(|id| id.0).collect::<Vec<_>>()).await?;
            Ok(ids.iter().map(|id| found.get(&id.0).cloned()).collect())
        })
        .await
    }

    async fn task(&self, namespace: &str, id: TaskId) -> Result<Option<TaskView>, StoreError> {
        self.read(async {
            let mut client = self.reader().await?;
            let tx = snapshot(&mut client).await?;
            let found = load_in(self, &tx, &[id.0]).await?.remove(&id.0);
            let Some(stored) = found.filter(|stored| stored.task.lane.namespace == namespace) else { return Ok(None) };
            let row = tx
                .query_one(
                    "select key, name, payload, labels::text, executor, hooks, account, cost, dedupe_key, external_id,
                   traceparent, hard_deadline, step, rules, (select progress from task_open o where o.id = t.id),
                   (select 1 + count(*)::int4 from task_payload p where p.task_id = t.id)
                 from task t where id = $1",
                    &[&id.0],
                )
                .await?;
            let mut from = Reader::new(&row);
            let body = Body {
                key: from.get()?,
                name: from.get()?,
                payload: from.text()?,
                labels: labels_from_json(from.get::<Option<&str>>()?),
                executor: from.get()?,
                hooks: from.get()?,
                account: from.get()?,
                cost: from.get::<Option<i32>>()?.map(i32::cast_unsigned),
                dedupe_key: from.get()?,
                external_id: from.get()?,
                traceparent: from.get()?,
                hard_deadline: from.get::<i16>()? != 0,
                step: from.get()?,
                rules: names_from_json(from.get::<Option<&str>>()?),
            };
            let progress = from.get()?;
            let payload_version = from.get::<i32>()?.cast_unsigned();
            let result = last_record(&tx, id.0, "outcome = 0").await?.and_then(|record| record.result);
            let needs = tx.query(sql::executions::NEEDS.postgres, &[&id.0]).await?;
            Ok(Some(TaskView {
                result: result.filter(|_| stored.task.state == State::Succeeded),
                last_failure: last_record(&tx, id.0, "error is not null").await?,
                last_decision: last_record(&tx, id.0, "decision is not null").await?,
                needs: needs.iter().map(read_edge).collect::<Result<_, _>>()?,
                stored,
                body,
                progress,
                payload_version,
            }))
        })
        .await
    }

    async fn old_payloads(&self, id: TaskId) -> Result<Vec<OldPayload>, StoreError> {
        self.read(payloads::old(self, id)).await
    }

    async fn list(&self, namespace: &str, query: &ListQuery) -> Result<Listing, StoreError> {
        self.search(list::list(self, namespace, query)).await
    }

    async fn matching(
        &self,
        namespace: &str,
        filter: &Filter,
        now: Timestamp,
        most: u32,
    ) -> Result<Vec<TaskId>, StoreError> {
        let query = ListQuery { filter: filter.clone(), sort: Sort::Submitted, limit: most, after: None, now };
        self.search(list::matching(self, namespace, &query)).await
    }

    async fn history(&self, subject: Subject, after: u32, limit: u32) -> Result<Vec<Record>, StoreError> {
        self.read(async {
            let mut client = self.reader().await?;
            let tx = snapshot(&mut client).await?;
            let id = match subject {
                Subject::Task(id) => id.0,
                Subject::Execution(id) => id.0,
            };
            let shared =
                matches!(subject, Subject::Execution(_)) && execution_in(self, &tx, ExecutionId(id)).await?.is_some();
            let condition = if shared { "h.execution_id = $1" } else { "h.subject = $1" };
            let sql = format!(
                "select {} from history h where {condition} and h.seq > $2 and h.seq + length(h.events) - 1 > $3
             order by h.seq limit $4",
                HISTORY.as_str()
            );
            let statement = tx.prepare_cached(&sql).await?;
            let low = after.saturating_sub(MOST_EVENTS).cast_signed();
            let rows = tx.query(&statement, &[&id, &low, &after.cast_signed(), &i64::from(limit)]).await?;
            let mut records = Vec::with_capacity(rows.len() + 2);
            if !shared {
                let first = tx.query_opt(sql::tasks::FIRST_TIMES.postgres, &[&id]).await?;
                let first = first.map(|row| created_record(id, row.get(0), row.get(1)));
                records.extend(first.filter(|record| record.last_seq() > after));
            }
            for row in rows {
                records.push(HistoryRow::read(&mut Reader::new(&row))?.into_record()?);
            }
            if !shared && records.len() < limit as usize {
                let task = load_in(self, &tx, &[id]).await?.remove(&id).map(|stored| stored.task);
                let carried = task.and_then(|task| task.unwritten_record(task.updated_at));
                records.extend(carried.filter(|record| record.last_seq() > after));
            }
            records.truncate(limit as usize);
            Ok(records)
        })
        .await
    }

    async fn runs_before(&self, id: TaskId, before: u32, limit: u32) -> Result<Vec<Record>, StoreError> {
        let sql = format!(
            "select {} from history h where h.subject = $1 and h.seq < $2 and h.outcome is not null
             order by h.seq desc limit $3",
            HISTORY.as_str()
        );
        let before = i32::try_from(before).unwrap_or(i32::MAX);
        let rows = self.rows(&sql, &[&id.0, &before, &i64::from(limit)]).await?;
        rows.iter().map(|row| HistoryRow::read(&mut Reader::new(row))?.into_record()).collect()
    }

    async fn ended(&self, leases: &[(TaskId, u32)]) -> Result<Vec<Option<Record>>, StoreError> {
        let ids: Vec<Uuid> = leases.iter().map(|(id, _)| id.0).collect();
        let numbers: Vec<i32> = leases.iter().map(|(_, number)| number.cast_signed()).collect();
        let sql = format!(
            "select i.n::int4, h.* from unnest($1::uuid[], $2::int4[]) with ordinality as i(id, number, n)
             cross join lateral (select {} from history h where h.subject = i.id and h.lease_no = i.number
               and h.outcome is not null order by h.seq desc limit 1) h",
            HISTORY.as_str()
        );
        let mut found = vec![None; leases.len()];
        for row in self.rows(&sql, &[&ids, &numbers]).await? {
            let mut from = Reader::new(&row);
            let place = from.get::<i32>()?.cast_unsigned() as usize;
            found[place - 1] = Some(HistoryRow::read(&mut from)?.into_record()?);
        }
        Ok(found)
    }
}
