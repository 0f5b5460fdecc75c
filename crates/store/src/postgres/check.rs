//! How a check reads PostgreSQL: on a connection of its own, in one snapshot that only reads.

use std::collections::BTreeSet;

use async_trait::async_trait;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, IsolationLevel, Row, Transaction};
use uuid::Uuid;

use super::rows::Reader;
use super::setup::PostgresOptions;
use super::{sequence, setup};
use crate::check::{
    AnswerPlace, Born, CheckProgress, CheckReport, EdgeRow, ExecutionRow, FeedPage, LaneRow, Look, MemberRow,
    PolicyRow, sql,
};
use crate::row::{DoneRow, FixedRow, HistoryRow, OpenRow, columns};
use crate::{StoreError, check};

pub async fn check(
    options: &PostgresOptions,
    progress: &mut (dyn FnMut(CheckProgress) + Send),
) -> Result<CheckReport, StoreError> {
    let (mut client, connection) = setup::connect(options).await?;
    let driver = tokio::spawn(connection);
    let outcome = check_on(&mut client, progress).await.map_err(StoreError::of_a_read);
    drop(client);
    let _ = driver.await;
    outcome
}

async fn check_on(
    client: &mut Client,
    progress: &mut (dyn FnMut(CheckProgress) + Send),
) -> Result<CheckReport, StoreError> {
    setup::schema(client).await?.must_be_newest()?;
    let isolation = IsolationLevel::RepeatableRead;
    let tx = client.build_transaction().isolation_level(isolation).read_only(true).start().await?;
    // Nobody waits for a check; its plans are for whole tables.
    tx.batch_execute("set local statement_timeout = 0; set local jit = off").await?;
    check::run(&mut Snapshot { tx }, &setup::created_names(), progress).await
}

struct Snapshot<'a> {
    tx: Transaction<'a>,
}

impl Snapshot<'_> {
    async fn rows(&self, sql: &str, parameters: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, StoreError> {
        Ok(self.tx.query(sql, parameters).await?)
    }

    /// How many rows a condition finds when it is only looked for in one way.
    async fn counted(&self, condition: &str, by_index: bool) -> Result<i64, StoreError> {
        let (table, index) = if by_index { ("off", "on") } else { ("on", "off") };
        self.tx
            .batch_execute(&format!(
                "set local enable_seqscan = {table}; set local enable_indexscan = {index};
                 set local enable_indexonlyscan = {index}; set local enable_bitmapscan = off"
            ))
            .await?;
        let row = self.tx.query_one(&format!("select count(*) from task_open where {condition}"), &[]).await?;
        self.tx
            .batch_execute(
                "set local enable_seqscan = on; set local enable_indexscan = on;
                 set local enable_indexonlyscan = on; set local enable_bitmapscan = on",
            )
            .await?;
        Ok(row.get(0))
    }
}

fn pairs<A, B>(rows: &[Row]) -> Vec<(A, B)>
where
    A: for<'a> tokio_postgres::types::FromSql<'a>,
    B: for<'a> tokio_postgres::types::FromSql<'a>,
{
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

#[async_trait]
impl Look for Snapshot<'_> {
    async fn mark(&mut self) -> Result<(), StoreError> {
        Ok(self.tx.batch_execute("savepoint part").await?)
    }

    async fn back_to_mark(&mut self) -> Result<(), StoreError> {
        Ok(self.tx.batch_execute("rollback to savepoint part").await?)
    }

    /// The queues are indexes: each must find exactly what its condition finds in the table. And the feed must be of this
    /// cluster, whose transactions order it.
    async fn own_check(&mut self) -> Result<Vec<String>, StoreError> {
        let mut found = Vec::new();
        let indexes = self
            .rows(
                "select c.relname::text, i.indisvalid and i.indisready and i.indislive, pg_get_expr(i.indpred, i.indrelid)
                 from pg_index i join pg_class c on c.oid = i.indexrelid
                 where c.relnamespace = to_regnamespace(current_schema()) order by 1",
                &[],
            )
            .await?;
        for row in &indexes {
            let (name, is_valid, condition): (String, bool, Option<String>) = (row.get(0), row.get(1), row.get(2));
            if !is_valid {
                found.push(format!("the index {name} is not valid"));
            }
            let Some(condition) = condition.filter(|_| is_valid && name.starts_with("open_")) else { continue };
            let (by_index, by_table) = (self.counted(&condition, true).await?, self.counted(&condition, false).await?);
            if by_index != by_table {
                found.push(format!("the index {name} finds {by_index} rows, and there are {by_table}"));
            }
        }
        if self.tx.query_one(sequence::IS_FOREIGN, &[]).await?.get(0) {
            found.push("rows of the feed are from another cluster; `comeback db migrate` puts them right".into());
        }
        Ok(found)
    }

    async fn names(&mut self) -> Result<BTreeSet<String>, StoreError> {
        let sql = "select relname::text from pg_class where relnamespace = to_regnamespace(current_schema())";
        Ok(self.rows(sql, &[]).await?.iter().map(|row| row.get(0)).collect())
    }

    async fn count(&mut self, table: &'static str) -> Result<u64, StoreError> {
        let row = self.tx.query_one(&format!("select count(*) from {table}"), &[]).await?;
        Ok(row.get::<_, i64>(0).cast_unsigned())
    }

    async fn offenders(&mut self, sql: &'static str) -> Result<Vec<(Option<Uuid>, String)>, StoreError> {
        Ok(pairs(&self.rows(sql, &[]).await?))
    }

    async fn namespaces(&mut self) -> Result<Vec<(i32, String)>, StoreError> {
        Ok(pairs(&self.rows(sql::NAMESPACES, &[]).await?))
    }

    async fn lanes(&mut self) -> Result<Vec<LaneRow>, StoreError> {
        let rows = self.rows(sql::LANES, &[]).await?;
        let lane = |row: &Row| LaneRow {
            id: row.get(0),
            namespace: row.get(1),
            namespace_name: row.get(2),
            queue: row.get(3),
            kind: row.get(4),
            executor: row.get(5),
            dependency: row.get(6),
            shared: row.get(7),
        };
        Ok(rows.iter().map(lane).collect())
    }

    async fn ruled_lanes(&mut self) -> Result<Vec<(i32, i32, String)>, StoreError> {
        let rows = self.rows(sql::RULED_LANES, &[]).await?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect())
    }

    async fn policies(&mut self) -> Result<Vec<PolicyRow>, StoreError> {
        let rows = self.rows(sql::POLICIES, &[]).await?;
        Ok(rows.iter().map(|row| PolicyRow { id: row.get(0), digest: row.get(1), body: row.get(2) }).collect())
    }

    async fn meta(&mut self, key: &str) -> Result<Option<String>, StoreError> {
        let rows = self.rows(crate::sql::control::META.postgres, &[&key]).await?;
        Ok(rows.first().map(|row| row.get(0)))
    }

    async fn open_tasks(&mut self, after: Uuid, limit: u32) -> Result<Vec<(OpenRow, Born)>, StoreError> {
        let sql = format!(
            "select {}, t.submitted_at, t.start_at from task_open o join task t on t.id = o.id
             where o.id > $1 order by o.id limit $2",
            columns("o", OpenRow::COLUMNS)
        );
        let mut found = Vec::new();
        for row in self.rows(&sql, &[&after, &i64::from(limit)]).await? {
            let mut from = Reader::new(&row);
            found.push((OpenRow::read(&mut from)?, Born { submitted_at: from.get()?, start_at: from.get()? }));
        }
        Ok(found)
    }

    async fn done_tasks(&mut self, after: Uuid, limit: u32) -> Result<Vec<(DoneRow, FixedRow, Born)>, StoreError> {
        let sql = format!(
            "select {}, {}, t.submitted_at, t.start_at from task_done d join task t on t.id = d.id
             where d.id > $1 order by d.id limit $2",
            columns("d", DoneRow::COLUMNS),
            columns("t", FixedRow::COLUMNS)
        );
        let mut found = Vec::new();
        for row in self.rows(&sql, &[&after, &i64::from(limit)]).await? {
            let mut from = Reader::new(&row);
            let (done, fixed) = (DoneRow::read(&mut from)?, FixedRow::read(&mut from)?);
            found.push((done, fixed, Born { submitted_at: from.get()?, start_at: from.get()? }));
        }
        Ok(found)
    }

    async fn histories(&mut self, subjects: &[Uuid]) -> Result<Vec<HistoryRow>, StoreError> {
        let sql = format!(
            "select {} from history h where h.subject = any($1) order by h.subject, h.seq",
            columns("h", HistoryRow::COLUMNS)
        );
        let rows = self.rows(&sql, &[&subjects]).await?;
        Ok(rows.iter().map(|row| HistoryRow::read(&mut Reader::new(row))).collect::<Result<_, _>>()?)
    }

    async fn executions(&mut self, after: Uuid, limit: u32) -> Result<Vec<ExecutionRow>, StoreError> {
        let rows = self.rows(sql::EXECUTIONS, &[&after, &i64::from(limit)]).await?;
        let execution = |row: &Row| ExecutionRow {
            id: row.get(0),
            state: row.get(1),
            seq: row.get(2),
            total: row.get(3),
            open: row.get(4),
            unhandled: row.get(5),
            dead_end_cancel: row.get(6),
        };
        Ok(rows.iter().map(execution).collect())
    }

    async fn members(&mut self, execution: Uuid) -> Result<Vec<MemberRow>, StoreError> {
        let rows = self.rows(sql::MEMBERS, &[&execution]).await?;
        let member = |row: &Row| MemberRow {
            id: row.get(0),
            state: row.get(1),
            paused_from: row.get(2),
            start_at: row.get(3),
            needs_left: row.get(4),
            children_left: row.get(5),
            gated: row.get(6),
            hold: row.get(7),
        };
        Ok(rows.iter().map(member).collect())
    }

    async fn edges(&mut self, execution: Uuid) -> Result<Vec<EdgeRow>, StoreError> {
        let rows = self.rows(sql::EDGES, &[&execution]).await?;
        let edge = |row: &Row| EdgeRow { from: row.get(0), to: row.get(1), met_when: row.get(2), on_unmet: row.get(3) };
        Ok(rows.iter().map(edge).collect())
    }

    async fn log(&mut self, execution: Uuid) -> Result<Vec<(i32, i64)>, StoreError> {
        Ok(pairs(&self.rows(sql::LOG, &[&execution]).await?))
    }

    /// By position, and behind that what has none yet.
    async fn feed(&mut self, (position, after): (i64, i64)) -> Result<FeedPage, StoreError> {
        let by_position =
            "select p.position, 0::int8, f.ids, f.firsts, f.lasts from feed_position p join feed f on f.id = p.feed_id
                           where p.position > $1 order by p.position limit 64";
        let mut rows = match position {
            i64::MAX => Vec::new(),
            position => self.rows(by_position, &[&position]).await?,
        };
        if rows.is_empty() {
            let sql = format!(
                "select {}::int8, id, ids, firsts, lasts from ({}) pending where id > $1 order by id limit 64",
                i64::MAX,
                sequence::pending_rows()
            );
            rows = self.rows(&sql, &[&after]).await?;
        }
        let mut page = FeedPage { rows: rows.len() as u64, ..FeedPage::default() };
        for row in &rows {
            let (ids, firsts, lasts): (Vec<Uuid>, Vec<i32>, Vec<i32>) = (row.get(2), row.get(3), row.get(4));
            let numbers =
                firsts.into_iter().zip(lasts).map(|(first, last)| (first.cast_unsigned(), last.cast_unsigned()));
            page.items.extend(ids.into_iter().zip(numbers).map(|(id, (first, last))| (id, first, last)));
            page.next = Some((row.get(0), row.get(1)));
        }
        Ok(page)
    }

    async fn lone_events(&mut self, after: Uuid, limit: u32) -> Result<Vec<(Uuid, i64)>, StoreError> {
        Ok(pairs(&self.rows(sql::LONE_EVENTS, &[&after, &i64::from(limit)]).await?))
    }

    async fn shared_events(&mut self, after: Uuid, limit: u32) -> Result<Vec<(Uuid, i64)>, StoreError> {
        Ok(pairs(&self.rows(sql::SHARED_EVENTS, &[&after, &i64::from(limit)]).await?))
    }

    async fn shared_tasks(&mut self, after: Uuid, limit: u32) -> Result<Vec<(Uuid, Uuid)>, StoreError> {
        Ok(pairs(&self.rows(sql::SHARED_TASKS, &[&after, &i64::from(limit)]).await?))
    }

    async fn answers(&mut self, after: &AnswerPlace, limit: u32) -> Result<Vec<(AnswerPlace, String)>, StoreError> {
        let rows = self.rows(sql::ANSWERS, &[&after.0, &after.1, &after.2, &i64::from(limit)]).await?;
        Ok(rows.iter().map(|row| ((row.get(0), row.get(1), row.get(2)), row.get(3))).collect())
    }

    async fn existing(&mut self, ids: &[Uuid]) -> Result<BTreeSet<Uuid>, StoreError> {
        let sql = "select id from task where id = any($1) union all select id from execution where id = any($1)";
        Ok(self.rows(sql, &[&ids]).await?.iter().map(|row| row.get(0)).collect())
    }
}
