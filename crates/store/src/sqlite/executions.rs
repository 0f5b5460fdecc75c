//! Executions and their steps, as workflows look at them.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use async_trait::async_trait;
use comeback_core::{Edge, Execution, ExecutionId, ExecutionState, Executor, OnUnmet, State, TaskId, Timestamp, When};
use rusqlite::{Connection, OptionalExtension, ToSql};
use uuid::Uuid;

use super::SqliteStore;
use super::statements::{Reader, load_one, stored_open};
use crate::dictionary::{Dictionary, by_namespace};
use crate::row::{OpenRow, columns, corrupt, labels_from_json};
use crate::{
    CallEnd, ExecutionPart, ExecutionQueries, ExecutionQuery, ExecutionView, Firing, Graph, GraphTask, Origin,
    OwnedSteps, StepView, StepsOf, StoreError, Stored, TaskEdges, Tree, sql,
};

pub fn steps(
    connection: &Connection,
    execution: ExecutionId,
    which: &OwnedSteps,
    most_bytes: u64,
) -> Result<Vec<StepView>, StoreError> {
    let condition = match which {
        OwnedSteps::Keys(_) => "t.execution_id = ?1 and t.key = ?2",
        OwnedSteps::Tasks(_) => "t.execution_id = ?1 and t.id = ?2",
    };
    let sql = |result: &str| {
        format!(
            "select t.id, t.key, coalesce(o.state, d.state), t.step, case when d.state = 6 then
               (select {result} from history h where h.subject = t.id and h.outcome = 0 order by h.seq desc limit 1) end
             from task t left join task_open o on o.id = t.id left join task_done d on d.id = t.id where {condition}"
        )
    };
    // The size of a text is known without reading it.
    let mut with_results = connection.prepare_cached(&sql("h.result"))?;
    let mut with_sizes = connection.prepare_cached(&sql("octet_length(h.result)"))?;
    let mut found: Vec<StepView> = Vec::new();
    let mut bytes: u64 = 0;
    let mut look = |wanted: &dyn ToSql| -> Result<(), StoreError> {
        let is_full = bytes >= most_bytes;
        let read = |row: &rusqlite::Row<'_>| {
            let mut from = Reader { row, next: 0 };
            let (id, key, state, step) = (from.uuid()?, from.get()?, from.get::<i16>()?, from.get()?);
            let (result, size) = match is_full {
                true => (None, from.get::<Option<i64>>()?.unwrap_or(0).cast_unsigned()),
                false => from.text()?.map_or((None, 0), |text| {
                    let size = text.len() as u64;
                    (Some(text), size)
                }),
            };
            Ok((id, key, state, step, result, size))
        };
        let statement = if is_full { &mut with_sizes } else { &mut with_results };
        let row = statement.query_row((execution.0.as_bytes().as_slice(), wanted), read).optional()?;
        let Some((id, key, state, step, result, result_bytes)) = row else { return Ok(()) };
        bytes += result_bytes;
        if bytes > most_bytes {
            found.iter_mut().for_each(|step| step.result = None);
        }
        let result = result.filter(|_| bytes <= most_bytes);
        let state = State::from_code(state).ok_or_else(|| corrupt(format!("state {state}")))?;
        found.push(StepView { task: TaskId(id), key, state, step, result, result_bytes });
        Ok(())
    };
    match which {
        OwnedSteps::Keys(keys) => keys.iter().try_for_each(|key| look(key))?,
        OwnedSteps::Tasks(ids) => ids.iter().try_for_each(|id| look(&id.0.as_bytes().as_slice()))?,
    }
    Ok(found)
}

pub fn tree(connection: &Connection, execution: ExecutionId) -> Result<Option<Tree>, StoreError> {
    let row = connection
        .prepare_cached(sql::executions::TREE.sqlite)?
        .query_row([execution.0.as_bytes().as_slice()], |row| {
            let mut from = Reader { row, next: 0 };
            let (root, depth) = (ExecutionId(from.uuid()?), from.get()?);
            Ok(Tree { root, depth, tasks: from.get::<i64>()?.cast_unsigned(), is_open: from.get()? })
        })
        .optional()?;
    Ok(row)
}

/// The condition of the index `open_gate_lane`.
const GATED: &str = "gated = 1 and state = 0 and needs_left = 0 and hold = 0";

pub fn gates(connection: &Connection, dictionary: &Dictionary, per_namespace: u32) -> Result<Vec<Stored>, StoreError> {
    // From one lane to the next through the index: lanes without gates cost nothing.
    let sql = format!(
        "with recursive found (lane) as (
           select min(lane) from task_open indexed by open_gate_lane where {GATED}
           union all
           select (select min(lane) from task_open indexed by open_gate_lane where {GATED} and lane > found.lane)
           from found where found.lane is not null)
         select lane from found where lane is not null"
    );
    let lanes: Vec<i32> =
        connection.prepare_cached(&sql)?.query_map((), |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    let sql = format!(
        "select {} from task_open o indexed by open_gate_lane where {GATED} and lane = ?1 order by id limit ?2",
        columns("o", OpenRow::COLUMNS)
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let mut gates = Vec::new();
    for turn in by_namespace(dictionary, &lanes, per_namespace) {
        let mut left = per_namespace;
        for lane in turn {
            let read = |row: &rusqlite::Row<'_>| OpenRow::read(&mut Reader { row, next: 0 });
            let rows: Vec<_> = statement.query_map((lane, left), read)?.collect::<rusqlite::Result<_>>()?;
            left -= u32::try_from(rows.len()).unwrap_or(left).min(left);
            for row in rows {
                gates.push(stored_open(connection, row, dictionary)?);
            }
            if left == 0 {
                break;
            }
        }
    }
    Ok(gates)
}

static CALL_ENDS: LazyLock<String> = LazyLock::new(|| {
    format!(
        "select {}, e.id, e.state from task_open o indexed by open_leaseless
         join execution e on e.parent_task = o.id and e.parent_run = o.run
         where o.state in (3, 5) and o.lease_at is not null and o.lease_expires is null
           and o.lane in (select value from json_each(?2)) and e.state in (3, 4, 5) limit ?1",
        columns("o", OpenRow::COLUMNS)
    )
});

pub fn call_ends(
    connection: &Connection,
    dictionary: &Dictionary,
    per_namespace: u32,
) -> Result<Vec<CallEnd>, StoreError> {
    let mut statement = connection.prepare_cached(&CALL_ENDS)?;
    let mut ends = Vec::new();
    for lanes in flow_lanes(dictionary) {
        let mut rows = statement.query((per_namespace, serde_json::to_string(&lanes).unwrap_or_default()))?;
        while let Some(row) = rows.next()? {
            let mut from = Reader { row, next: 0 };
            let task = stored_open(connection, OpenRow::read(&mut from)?, dictionary)?;
            let (execution, state) = (ExecutionId(from.uuid()?), from.get::<i16>()?);
            let state = ExecutionState::from_code(state).ok_or_else(|| corrupt(format!("execution state {state}")))?;
            ends.push(CallEnd { task, execution, state });
        }
    }
    Ok(ends)
}

/// The lanes of tasks that stand for others, by namespace.
fn flow_lanes(dictionary: &Dictionary) -> Vec<Vec<i32>> {
    let lanes = dictionary.lanes_of(Executor::Flow);
    by_namespace(dictionary, &lanes, u32::MAX)
}

pub fn orphans(connection: &Connection, per_namespace: u32) -> Result<Vec<(String, ExecutionId)>, StoreError> {
    let mut statement = connection.prepare_cached(
        "select e.id from execution e indexed by execution_state
         where e.namespace = ?2 and e.state in (0, 1, 2) and e.parent_task is not null and (not exists (
           select 1 from task_open o where o.id = e.parent_task
             and (o.run = e.parent_run - 1 and o.state in (0, 1, 2, 5)
               or o.run = e.parent_run and o.state in (3, 5) and o.lease_at is not null))
           or exists (select 1 from execution r where r.id = e.root and r.state in (3, 4, 5))) limit ?1",
    )?;
    let namespaces: Vec<(i32, String)> = connection
        .prepare_cached(sql::control::NAMESPACES.sqlite)?
        .query_map((), |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<_>>()?;
    let mut orphans = Vec::new();
    for (namespace, name) in namespaces {
        let rows = statement.query_map((per_namespace, namespace), |row| row.get::<_, [u8; 16]>(0))?;
        for id in rows {
            orphans.push((name.clone(), ExecutionId(Uuid::from_bytes(id?))));
        }
    }
    Ok(orphans)
}

pub fn execution_view(
    connection: &Connection,
    dictionary: &Dictionary,
    namespace: &str,
    id: ExecutionId,
) -> Result<Option<ExecutionView>, StoreError> {
    let Some((execution, _)) =
        execution(connection, dictionary, id)?.filter(|(execution, _)| &*execution.namespace == namespace)
    else {
        return Ok(None);
    };
    let mut view = connection
        .prepare_cached(
            "select name, labels, external_id, workflow, workflow_version, input, parent_task, parent_run, retry_of,
               fired_by, schedule, scheduled_at, retry_root, retry_number
             from execution where id = ?1",
        )?
        .query_row([id.0.as_bytes().as_slice()], |row| {
            let mut from = Reader { row, next: 0 };
            let (name, labels, external_id) = (from.get()?, from.text()?, from.get()?);
            let workflow = from.get::<Option<String>>()?.zip(from.get()?);
            let input = from.text()?;
            let parent = from.maybe_uuid()?.map(TaskId).zip(from.get()?);
            let retry_of = from.maybe_uuid()?.map(ExecutionId);
            let firing = Firing::from_row(from.get()?, from.get()?, from.get()?);
            let (retry_root, retry_number) = (from.maybe_uuid()?.map(ExecutionId), from.get()?);
            let origin = Origin { workflow, input, parent, retry_of, retry_root, retry_number, firing };
            let labels = labels_from_json(labels.as_deref());
            Ok(ExecutionView::new(execution, name, labels, external_id, origin))
        })?;
    let mut statement = connection.prepare_cached(&ExecutionPart::query("?1"))?;
    let mut rows = statement.query([id.0.as_bytes().as_slice()])?;
    while let Some(row) = rows.next()? {
        let mut from = Reader { row, next: 0 };
        let part = ExecutionPart {
            state: from.get()?,
            lane: from.get()?,
            tasks: from.get()?,
            changed_at: from.get()?,
            success: from.get()?,
            failures: from.get()?,
            expected: from.get()?,
            expecting: from.get()?,
        };
        view.add(&part, dictionary.lane(part.lane).as_deref());
    }
    Ok(Some(view))
}

pub fn executions(
    connection: &Connection,
    dictionary: &Dictionary,
    namespace: &str,
    query: &ExecutionQuery,
) -> Result<Vec<ExecutionView>, StoreError> {
    let Some(number) = dictionary.namespace(namespace) else { return Ok(Vec::new()) };
    let states: Vec<String> = query.states.iter().map(|state| state.code().to_string()).collect();
    let state = if states.is_empty() { String::new() } else { format!("and state in ({})", states.join(", ")) };
    let sql = format!(
        "select id from execution where namespace = ?1 {state} and (?2 is null or workflow = ?2)
           and (?3 is null or parent_task = ?3) and (?4 is null or id < ?4)
           and (?7 is null or schedule = ?7) order by id desc limit ?5 offset ?6"
    );
    let parent = query.parent.as_ref().map(|id| id.0.as_bytes().as_slice());
    let after = query.after.as_ref().map(|id| id.0.as_bytes().as_slice());
    let ids: Vec<[u8; 16]> = connection
        .prepare_cached(&sql)?
        .query_map((number, &query.workflow, parent, after, query.limit, query.skip, &query.schedule), |row| {
            row.get(0)
        })?
        .collect::<rusqlite::Result<_>>()?;
    let view = |id| execution_view(connection, dictionary, namespace, ExecutionId(Uuid::from_bytes(id)));
    ids.into_iter().filter_map(|id| view(id).transpose()).collect()
}

pub fn execution(
    connection: &Connection,
    dictionary: &Dictionary,
    id: ExecutionId,
) -> Result<Option<(Execution, u32)>, StoreError> {
    let mut statement = connection.prepare_cached(
        "select namespace, state, version, seq, total, open, unhandled, fail_fast, dead_end_cancel, created_at,
           started_at, ended_at, updated_at, parent_task, parent_run from execution where id = ?1",
    )?;
    let mut rows = statement.query([id.0.as_bytes().as_slice()])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    let state: i16 = row.get(1)?;
    let namespace = dictionary.namespace_name(row.get(0)?).ok_or_else(|| corrupt("an execution's namespace"))?;
    let parent = row.get::<_, Option<[u8; 16]>>(13)?.map(|task| TaskId(Uuid::from_bytes(task)));
    let execution = Execution {
        id,
        namespace,
        parent: parent.zip(row.get(14)?),
        state: ExecutionState::from_code(state).ok_or_else(|| corrupt(format!("execution state {state}")))?,
        version: row.get(2)?,
        total: row.get(4)?,
        open: row.get(5)?,
        unhandled: row.get(6)?,
        fail_fast: row.get(7)?,
        dead_end_cancel: row.get(8)?,
        created_at: Timestamp(row.get(9)?),
        started_at: row.get::<_, Option<i64>>(10)?.map(Timestamp),
        ended_at: row.get::<_, Option<i64>>(11)?.map(Timestamp),
        updated_at: Timestamp(row.get(12)?),
    };
    Ok(Some((execution, row.get(3)?)))
}

pub fn graph(
    connection: &Connection,
    dictionary: &Dictionary,
    id: ExecutionId,
    around: Option<&[TaskId]>,
) -> Result<Option<Graph>, StoreError> {
    let Some((execution, _)) = execution(connection, dictionary, id)? else { return Ok(None) };
    let mut ids: BTreeSet<Uuid> = BTreeSet::new();
    let asked: Option<BTreeSet<Uuid>> = around.map(|around| around.iter().map(|task| task.0).collect());
    match around {
        None => {
            let mut statement = connection.prepare_cached(sql::executions::TASKS.sqlite)?;
            let mut rows = statement.query([id.0.as_bytes().as_slice()])?;
            while let Some(row) = rows.next()? {
                ids.insert(Uuid::from_bytes(row.get(0)?));
            }
        }
        Some(around) => {
            for task in around {
                ids.insert(task.0);
                let neighbours = edges(connection, task.0, true)?.into_iter().map(|edge| edge.to.0);
                ids.extend(neighbours);
                ids.extend(edges(connection, task.0, false)?.into_iter().map(|edge| edge.from.0));
            }
        }
    }
    let mut tasks = Vec::with_capacity(ids.len());
    for task in ids {
        if let Some(stored) = load_one(connection, dictionary, task)?.filter(|it| it.task.execution == Some(id)) {
            let edges = match asked.as_ref().is_none_or(|asked| asked.contains(&task)) {
                true => Some(TaskEdges { out: edges(connection, task, true)?, into: edges(connection, task, false)? }),
                false => None,
            };
            tasks.push(GraphTask { stored, edges });
        }
    }
    Ok(Some(Graph { execution, tasks }))
}

pub fn edges(connection: &Connection, task: Uuid, outgoing: bool) -> Result<Vec<Edge>, StoreError> {
    let sql = if outgoing {
        "select from_id, to_id, met_when, on_unmet from edge where from_id = ?1 order by to_id"
    } else {
        sql::executions::NEEDS.sqlite
    };
    let rows: Vec<([u8; 16], [u8; 16], i16, i16)> = connection
        .prepare_cached(sql)?
        .query_map([task.as_bytes().as_slice()], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))?
        .collect::<rusqlite::Result<_>>()?;
    rows.into_iter()
        .map(|(from, to, when, on_unmet)| {
            Ok(Edge {
                from: TaskId(Uuid::from_bytes(from)),
                to: TaskId(Uuid::from_bytes(to)),
                when: When::from_code(when).ok_or_else(|| corrupt("an edge's condition"))?,
                on_unmet: OnUnmet::from_code(on_unmet).ok_or_else(|| corrupt("an edge's alternative"))?,
            })
        })
        .collect()
}

#[async_trait]
impl ExecutionQueries for SqliteStore {
    async fn graph(&self, id: ExecutionId, around: Option<&[TaskId]>) -> Result<Option<Graph>, StoreError> {
        let around = around.map(<[TaskId]>::to_vec);
        self.read(move |connection, dictionary| graph(connection, dictionary, id, around.as_deref())).await
    }

    async fn execution(&self, namespace: &str, id: ExecutionId) -> Result<Option<ExecutionView>, StoreError> {
        let namespace = namespace.to_owned();
        self.read(move |connection, dictionary| execution_view(connection, dictionary, &namespace, id)).await
    }

    async fn executions(&self, namespace: &str, query: &ExecutionQuery) -> Result<Vec<ExecutionView>, StoreError> {
        let (namespace, query) = (namespace.to_owned(), query.clone());
        self.search(move |connection, dictionary| executions(connection, dictionary, &namespace, &query)).await
    }

    async fn steps(
        &self,
        execution: ExecutionId,
        which: StepsOf<'_>,
        most_bytes: u64,
    ) -> Result<Vec<StepView>, StoreError> {
        let which = which.owned();
        self.read(move |connection, _| steps(connection, execution, &which, most_bytes)).await
    }

    async fn tree(&self, execution: ExecutionId) -> Result<Option<Tree>, StoreError> {
        self.read(move |connection, _| tree(connection, execution)).await
    }

    async fn gates(&self, per_namespace: u32) -> Result<Vec<Stored>, StoreError> {
        self.read(move |connection, dictionary| gates(connection, dictionary, per_namespace)).await
    }

    async fn call_ends(&self, limit: u32) -> Result<Vec<CallEnd>, StoreError> {
        self.read(move |connection, dictionary| call_ends(connection, dictionary, limit)).await
    }

    async fn orphans(&self, limit: u32) -> Result<Vec<(String, ExecutionId)>, StoreError> {
        self.read(move |connection, _| orphans(connection, limit)).await
    }
}
