//! Executions and their steps, as workflows look at them.

use std::collections::{BTreeSet, HashMap};
use std::sync::LazyLock;

use async_trait::async_trait;
use comeback_core::{Edge, Execution, ExecutionId, ExecutionState, Executor, OnUnmet, State, TaskId, When};
use deadpool_postgres::Transaction;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::apply::read_execution;
use super::queries::{load_in, snapshot};
use super::rows::Reader;
use super::{PostgresStore, learn};
use crate::dictionary::by_namespace;
use crate::row::{OpenRow, columns, corrupt, labels_from_json};
use crate::{
    CallEnd, ExecutionPart, ExecutionQueries, ExecutionQuery, ExecutionView, Firing, Graph, GraphTask, Origin,
    StepView, StepsOf, StoreError, Stored, TaskEdges, Tree, sql,
};

/// The condition of the index `open_gate_lane`.
const GATED: &str = "gated = 1 and state = 0 and needs_left = 0 and hold = 0";

static CALL_ENDS: LazyLock<String> = LazyLock::new(|| {
    format!(
        "select {}, s.execution, s.execution_state from unnest($2::text[]) w (lanes) cross join lateral (
           select o.*, e.id execution, e.state execution_state from task_open o
             join execution e on e.parent_task = o.id and e.parent_run = o.run
           where o.state in (3, 5) and o.lease_at is not null and o.lease_expires is null
             and o.lane = any(w.lanes::int4[]) and e.state in (3, 4, 5) limit $1) s",
        columns("s", OpenRow::COLUMNS)
    )
});

/// The lanes of tasks that stand for others, by namespace.
fn flow_lanes(store: &PostgresStore) -> Vec<Vec<i32>> {
    let lanes = store.dictionary.lanes_of(Executor::Flow);
    by_namespace(&store.dictionary, &lanes, u32::MAX)
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
               fired_by, schedule, scheduled_at, retry_root, retry_number
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
        retry_root: row.get::<_, Option<Uuid>>(12).map(ExecutionId),
        retry_number: number(13).unwrap_or(0),
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

pub async fn execution_in(
    store: &PostgresStore,
    tx: &Transaction<'_>,
    id: ExecutionId,
) -> Result<Option<Execution>, StoreError> {
    let statement = tx
        .prepare_cached(
            "select id, namespace, state, version, seq, total, open, unhandled, fail_fast, dead_end_cancel, created_at,
               started_at, ended_at, updated_at, parent_task, parent_run from execution where id = $1",
        )
        .await?;
    match tx.query_opt(&statement, &[&id.0]).await? {
        None => Ok(None),
        Some(row) => {
            if store.dictionary.namespace_name(row.get(1)).is_none() {
                learn::refresh(&store.pools.learn, &store.dictionary).await?;
            }
            read_execution(store, &row).map(|(execution, _)| Some(execution))
        }
    }
}

/// Every edge that touches one of these tasks, once.
async fn edges(tx: &Transaction<'_>, ids: &[Uuid]) -> Result<Vec<Edge>, StoreError> {
    let statement = tx
        .prepare_cached(
            "select from_id, to_id, met_when, on_unmet from edge where from_id = any($1)
             union select from_id, to_id, met_when, on_unmet from edge where to_id = any($1) order by 1, 2",
        )
        .await?;
    tx.query(&statement, &[&ids]).await?.iter().map(read_edge).collect()
}

pub fn read_edge(row: &tokio_postgres::Row) -> Result<Edge, StoreError> {
    Ok(Edge {
        from: TaskId(row.get(0)),
        to: TaskId(row.get(1)),
        when: When::from_code(row.get(2)).ok_or_else(|| corrupt("an edge's condition"))?,
        on_unmet: OnUnmet::from_code(row.get(3)).ok_or_else(|| corrupt("an edge's alternative"))?,
    })
}

#[async_trait]
impl ExecutionQueries for PostgresStore {
    async fn graph(&self, id: ExecutionId, around: Option<&[TaskId]>) -> Result<Option<Graph>, StoreError> {
        self.read(async {
            let mut client = self.reader().await?;
            let tx = snapshot(&mut client).await?;
            let Some(execution) = execution_in(self, &tx, id).await? else { return Ok(None) };
            let mut ids: BTreeSet<Uuid> = BTreeSet::new();
            let mut touching: Option<Vec<Edge>> = None;
            match around {
                None => {
                    let rows = tx.query(sql::executions::TASKS.postgres, &[&id.0]).await?;
                    ids.extend(rows.iter().map(|row| row.get::<_, Uuid>(0)));
                }
                Some(around) => {
                    let seeds: Vec<Uuid> = around.iter().map(|id| id.0).collect();
                    let found = edges(&tx, &seeds).await?;
                    ids.extend(found.iter().flat_map(|edge| [edge.from.0, edge.to.0]));
                    touching = Some(found);
                    ids.extend(seeds);
                }
            }
            let ids: Vec<Uuid> = ids.into_iter().collect();
            let mut found = load_in(self, &tx, &ids).await?;
            found.retain(|_, stored| stored.task.execution == Some(id));
            let mut out: HashMap<Uuid, Vec<Edge>> = HashMap::new();
            let mut into: HashMap<Uuid, Vec<Edge>> = HashMap::new();
            let touching = match touching {
                Some(found) => found,
                None => edges(&tx, &ids).await?,
            };
            for edge in touching {
                out.entry(edge.from.0).or_default().push(edge);
                into.entry(edge.to.0).or_default().push(edge);
            }
            let mut tasks: Vec<GraphTask> = found
                .into_iter()
                .map(|(id, stored)| {
                    let asked = around.is_none_or(|around| around.contains(&TaskId(id)));
                    let edges = asked.then(|| TaskEdges {
                        out: out.remove(&id).unwrap_or_default(),
                        into: into.remove(&id).unwrap_or_default(),
                    });
                    GraphTask { stored, edges }
                })
                .collect();
            tasks.sort_unstable_by_key(|task| task.stored.task.id);
            Ok(Some(Graph { execution, tasks }))
        })
        .await
    }

    async fn execution(&self, namespace: &str, id: ExecutionId) -> Result<Option<ExecutionView>, StoreError> {
        self.read(execution_view(self, namespace, id)).await
    }

    async fn executions(&self, namespace: &str, query: &ExecutionQuery) -> Result<Vec<ExecutionView>, StoreError> {
        self.search(async {
            let states: Vec<i16> = query.states.iter().map(|state| state.code()).collect();
            let sql = "select e.id from execution e join namespace n on n.id = e.namespace
                   where n.name = $1 and (cardinality($2::int2[]) = 0 or e.state = any($2))
                     and ($3::text is null or e.workflow = $3) and ($4::uuid is null or e.parent_task = $4)
                     and ($5::uuid is null or e.id < $5)
                     and ($8::text is null or e.schedule = $8) order by e.id desc limit $6 offset $7";
            let ids: Vec<Uuid> = {
                let (parent, after) = (query.parent.map(|id| id.0), query.after.map(|id| id.0));
                let rows = self
                    .rows(
                        sql,
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
                views.extend(execution_view(self, namespace, ExecutionId(id)).await?);
            }
            Ok(views)
        })
        .await
    }

    async fn steps(
        &self,
        execution: ExecutionId,
        which: StepsOf<'_>,
        most_bytes: u64,
    ) -> Result<Vec<StepView>, StoreError> {
        let ids: Vec<Uuid>;
        let (condition, wanted): (&str, &(dyn ToSql + Sync)) = match which {
            StepsOf::Keys(ref keys) => ("t.key = any($2)", keys),
            StepsOf::Tasks(tasks) => {
                ids = tasks.iter().map(|task| task.0).collect();
                ("t.id = any($2)", &ids)
            }
        };
        // The size of a text is known without reading it.
        let sql = format!(
            "select id, key, state, step, case when sum(bytes) over () <= $3::int8 then result end, bytes from (
               select t.id, t.key, coalesce(o.state, d.state) state, t.step, r.result,
                 coalesce(octet_length(r.result), 0)::int8 bytes
               from task t left join task_open o on o.id = t.id left join task_done d on d.id = t.id
                 left join lateral (select h.result from history h where d.state = 6 and h.subject = t.id and h.outcome = 0
                   order by h.seq desc limit 1) r on true
               where t.execution_id = $1 and {condition}) s"
        );
        let most_bytes = i64::try_from(most_bytes).unwrap_or(i64::MAX);
        let mut found = Vec::new();
        for row in self.rows(&sql, &[&execution.0, wanted, &most_bytes]).await? {
            let mut from = Reader::new(&row);
            let (id, key, state) = (from.get()?, from.get()?, from.get::<i16>()?);
            let state = State::from_code(state).ok_or_else(|| corrupt(format!("state {state}")))?;
            let (step, result) = (from.get()?, from.text()?);
            let result_bytes = from.get::<i64>()?.cast_unsigned();
            found.push(StepView { task: TaskId(id), key, state, step, result, result_bytes });
        }
        Ok(found)
    }

    async fn tree(&self, execution: ExecutionId) -> Result<Option<Tree>, StoreError> {
        let client = self.reader().await?;
        let statement = client.prepare_cached(sql::executions::TREE.postgres).await?;
        let row = client.query_opt(&statement, &[&execution.0]).await?;
        Ok(row.map(|row| Tree {
            root: ExecutionId(row.get(0)),
            depth: row.get::<_, i32>(1).cast_unsigned(),
            tasks: row.get::<_, i64>(2).cast_unsigned(),
            is_open: row.get(3),
        }))
    }

    async fn gates(&self, per_namespace: u32) -> Result<Vec<Stored>, StoreError> {
        self.read(async {
            let client = self.reader().await?;
            // From one lane to the next through the index: lanes without gates cost nothing.
            let sql = format!(
                "with recursive found (lane) as (
               (select lane from task_open where {GATED} order by lane limit 1)
               union all
               select (select o.lane from task_open o where {GATED} and o.lane > found.lane order by o.lane limit 1)
               from found where found.lane is not null)
             select lane from found where lane is not null"
            );
            let lanes: Vec<i32> =
                client.query(&client.prepare_cached(&sql).await?, &[]).await?.iter().map(|row| row.get(0)).collect();
            if lanes.is_empty() {
                return Ok(Vec::new());
            }
            if lanes.iter().any(|lane| !self.dictionary.has_seen_lane(*lane)) {
                learn::refresh(&self.pools.learn, &self.dictionary).await?;
            }
            let mut wanted: Vec<i32> = Vec::new();
            let mut limits: Vec<i64> = Vec::new();
            for turn in by_namespace(&self.dictionary, &lanes, per_namespace) {
                let each = (i64::from(per_namespace) / i64::try_from(turn.len()).unwrap_or(1)).max(1);
                limits.extend(turn.iter().map(|_| each));
                wanted.extend(turn);
            }
            let sql = format!(
                "select {} from unnest($1::int4[], $2::int8[]) w (lane, most) cross join lateral (
               select * from task_open o where {GATED} and o.lane = w.lane order by o.id limit w.most) o",
                columns("o", OpenRow::COLUMNS)
            );
            let statement = client.prepare_cached(&sql).await?;
            let rows = client.query(&statement, &[&wanted, &limits]).await?;
            let open = rows.iter().map(|row| OpenRow::read(&mut Reader::new(row))).collect::<Result<Vec<_>, _>>()?;
            drop(client);
            Ok(learn::readable_open(self, open).await?.into_iter().flatten().collect())
        })
        .await
    }

    async fn call_ends(&self, limit: u32) -> Result<Vec<CallEnd>, StoreError> {
        self.read(async {
            let client = self.reader().await?;
            let statement = client.prepare_cached(&CALL_ENDS).await?;
            // An array of arrays has rows of one length only, so each namespace's lanes come as text.
            let as_text = |lanes: Vec<i32>| {
                let lanes: Vec<String> = lanes.iter().map(ToString::to_string).collect();
                format!("{{{}}}", lanes.join(","))
            };
            let lanes: Vec<String> = flow_lanes(self).into_iter().map(as_text).collect();
            let rows = client.query(&statement, &[&i64::from(limit), &lanes]).await?;
            let (mut open, mut executions) = (Vec::new(), Vec::new());
            for row in &rows {
                let mut from = Reader::new(row);
                open.push(OpenRow::read(&mut from)?);
                let (id, state) = (from.get()?, from.get::<i16>()?);
                let state =
                    ExecutionState::from_code(state).ok_or_else(|| corrupt(format!("execution state {state}")))?;
                executions.push((ExecutionId(id), state));
            }
            drop(client);
            let tasks = learn::stored_open(self, open).await?;
            let ends = tasks.into_iter().zip(executions);
            Ok(ends.map(|(task, (execution, state))| CallEnd { task, execution, state }).collect())
        })
        .await
    }

    async fn orphans(&self, limit: u32) -> Result<Vec<(String, ExecutionId)>, StoreError> {
        self.read(async {
            let client = self.reader().await?;
            let statement = client
                .prepare_cached(
                    "select n.name, s.id from namespace n cross join lateral (select e.id from execution e
                   where e.namespace = n.id and e.state in (0, 1, 2) and e.parent_task is not null and (not exists (
                     select 1 from task_open o where o.id = e.parent_task
                       and (o.run = e.parent_run - 1 and o.state in (0, 1, 2, 5)
                         or o.run = e.parent_run and o.state in (3, 5) and o.lease_at is not null))
                     or exists (select 1 from execution r where r.id = e.root and r.state in (3, 4, 5))) limit $1) s",
                )
                .await?;
            let rows = client.query(&statement, &[&i64::from(limit)]).await?;
            Ok(rows.iter().map(|row| (row.get(0), ExecutionId(row.get(1)))).collect())
        })
        .await
    }
}
