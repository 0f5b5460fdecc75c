//! Executions and their steps, as workflows look at them.

use std::sync::LazyLock;

use comeback_core::{ExecutionId, ExecutionState, Executor, State, TaskId};
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::PostgresStore;
use super::learn;
use super::read::{execution_in, snapshot};
use super::rows::{Reader, read_open};
use crate::StoreError;
use crate::row::{OPEN_COLUMNS, columns, corrupt, labels_from_json};
use crate::types::*;

pub async fn steps(
    store: &PostgresStore,
    execution: ExecutionId,
    which: StepsOf<'_>,
) -> Result<Vec<StepView>, StoreError> {
    let ids: Vec<Uuid>;
    let (condition, wanted): (&str, &(dyn ToSql + Sync)) = match which {
        StepsOf::Keys(ref keys) => ("t.key = any($2)", keys),
        StepsOf::Tasks(tasks) => {
            ids = tasks.iter().map(|task| task.0).collect();
            ("t.id = any($2)", &ids)
        }
    };
    let sql = format!(
        "select t.id, t.key, coalesce(o.state, d.state), t.step, case when d.state = 6 then
           (select h.result from history h where h.subject = t.id and h.outcome = 0 order by h.seq desc limit 1) end
         from task t left join task_open o on o.id = t.id left join task_done d on d.id = t.id
         where t.execution_id = $1 and {condition}"
    );
    let client = store.reader().await?;
    let statement = client.prepare_cached(&sql).await?;
    let mut found = Vec::new();
    for row in client.query(&statement, &[&execution.0, wanted]).await? {
        let mut from = Reader::new(&row);
        let (id, key, state) = (from.get()?, from.get()?, from.get::<i16>()?);
        let state = State::from_code(state).ok_or_else(|| corrupt(format!("state {state}")))?;
        found.push(StepView { task: TaskId(id), key, state, step: from.get()?, result: from.text()? });
    }
    Ok(found)
}

static CALL_ENDS: LazyLock<String> = LazyLock::new(|| {
    format!(
        "select {}, e.id, e.state from task_open o join execution e on e.parent_task = o.id and e.parent_run = o.run
         where o.state in (3, 5) and o.lease_at is not null and o.lease_expires is null and o.lane = any($2)
           and e.state in (3, 4, 5) limit $1",
        columns("o", &OPEN_COLUMNS)
    )
});

pub async fn call_ends(store: &PostgresStore, limit: u32) -> Result<Vec<CallEnd>, StoreError> {
    let client = store.reader().await?;
    let statement = client.prepare_cached(&CALL_ENDS).await?;
    let lanes = store.dictionary.lanes_of(Executor::Flow);
    let rows = client.query(&statement, &[&i64::from(limit), &lanes]).await?;
    let (mut open, mut executions) = (Vec::new(), Vec::new());
    for row in &rows {
        let mut from = Reader::new(row);
        open.push(read_open(&mut from)?);
        let (id, state) = (from.get()?, from.get::<i16>()?);
        let state = ExecutionState::from_code(state).ok_or_else(|| corrupt(format!("execution state {state}")))?;
        executions.push((ExecutionId(id), state));
    }
    drop(client);
    let tasks = learn::stored_open(store, open).await?;
    let ends = tasks.into_iter().zip(executions);
    Ok(ends.map(|(task, (execution, state))| CallEnd { task, execution, state }).collect())
}

pub async fn orphans(store: &PostgresStore, limit: u32) -> Result<Vec<(String, ExecutionId)>, StoreError> {
    let client = store.reader().await?;
    let statement = client
        .prepare_cached(
            "select n.name, e.id from execution e join namespace n on n.id = e.namespace
             where e.parent_task is not null and e.state in (0, 1, 2) and not exists (
               select 1 from task_open o where o.id = e.parent_task
                 and (o.run = e.parent_run - 1 and o.state in (0, 1, 2, 5)
                   or o.run = e.parent_run and o.state in (3, 5) and o.lease_at is not null)) limit $1",
        )
        .await?;
    let rows = client.query(&statement, &[&i64::from(limit)]).await?;
    Ok(rows.iter().map(|row| (row.get(0), ExecutionId(row.get(1)))).collect())
}

pub async fn execution_view(
    store: &PostgresStore,
    namespace: &str,
    id: ExecutionId,
) -> Result<Option<ExecutionView>, StoreError> {
    let mut client = store.reader().await?;
    let tx = snapshot(&mut client).await?;
    let found = execution_in(store, &tx, id).await?;
    let Some(execution) = found.filter(|execution| &*execution.namespace == namespace) else { return Ok(None) };
    let statement = tx
        .prepare_cached(
            "select name, labels::text, external_id, workflow, workflow_version, input, parent_task, parent_run, retry_of,
               fired_by, schedule, scheduled_at
             from execution where id = $1",
        )
        .await?;
    let row = tx.query_one(&statement, &[&id.0]).await?;
    let number = |column: usize| row.get::<_, Option<i32>>(column).map(i32::cast_unsigned);
    let mut from = Reader::new(&row);
    let (name, labels, external_id) = (from.get()?, labels_from_json(from.get::<Option<&str>>()?), from.get()?);
    let origin = Origin {
        workflow: row.get::<_, Option<String>>(3).zip(number(4)),
        input: row.get::<_, Option<&str>>(5).map(Into::into),
        parent: row.get::<_, Option<Uuid>>(6).map(TaskId).zip(number(7)),
        retry_of: row.get::<_, Option<Uuid>>(8).map(ExecutionId),
        firing: Firing::from_row(row.get(9), row.get(10), row.get(11)),
    };
    let mut view = ExecutionView::new(execution, name, labels, external_id, origin);
    let statement = tx.prepare_cached(&ExecutionPart::query("$1")).await?;
    for row in tx.query(&statement, &[&id.0]).await? {
        let part = ExecutionPart {
            state: row.get(0),
            lane: row.get(1),
            tasks: row.get(2),
            changed_at: row.get(3),
            success: row.get(4),
            failures: row.get(5),
            expected: row.get(6),
            expecting: row.get(7),
        };
        if store.dictionary.lane(part.lane).is_none() {
            learn::refresh(&store.pools.learn, &store.dictionary).await?;
        }
        view.add(&part, store.dictionary.lane(part.lane).as_deref());
    }
    Ok(Some(view))
}

pub async fn executions(
    store: &PostgresStore,
    namespace: &str,
    query: &ExecutionQuery,
) -> Result<Vec<ExecutionView>, StoreError> {
    let states: Vec<i16> = query.states.iter().map(|state| state.code()).collect();
    let sql = "select e.id from execution e join namespace n on n.id = e.namespace
               where n.name = $1 and (cardinality($2::int2[]) = 0 or e.state = any($2))
                 and ($3::text is null or e.workflow = $3) and ($4::uuid is null or e.parent_task = $4)
                 and ($5::uuid is null or e.id < $5)
                 and ($8::text is null or e.schedule = $8) order by e.id desc limit $6 offset $7";
    let ids: Vec<Uuid> = {
        let client = store.reader().await?;
        let statement = client.prepare_cached(sql).await?;
        let (parent, after) = (query.parent.map(|id| id.0), query.after.map(|id| id.0));
        let rows = client
            .query(
                &statement,
                &[
                    &namespace,
                    &states,
                    &query.workflow,
                    &parent,
                    &after,
                    &i64::from(query.limit),
                    &i64::from(query.skip),
                    &query.schedule,
                ],
            )
            .await?;
        rows.iter().map(|row| row.get(0)).collect()
    };
    let mut views = Vec::with_capacity(ids.len());
    for id in ids {
        views.extend(execution_view(store, namespace, ExecutionId(id)).await?);
    }
    Ok(views)
}
