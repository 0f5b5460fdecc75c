//! Executions and their steps, as workflows look at them.

use std::sync::LazyLock;

use comeback_core::{ExecutionId, ExecutionState, Executor, State, TaskId};
use rusqlite::{Connection, OptionalExtension, ToSql};
use uuid::Uuid;

use super::read;
use super::statements::{Reader, read_open, stored_open};
use crate::StoreError;
use crate::dictionary::Dictionary;
use crate::row::{OPEN_COLUMNS, columns, corrupt, labels_from_json};
use crate::types::*;

pub fn steps(connection: &Connection, execution: ExecutionId, which: &OwnedSteps) -> Result<Vec<StepView>, StoreError> {
    let condition = match which {
        OwnedSteps::Keys(_) => "t.execution_id = ?1 and t.key = ?2",
        OwnedSteps::Tasks(_) => "t.execution_id = ?1 and t.id = ?2",
    };
    let sql = format!(
        "select t.id, t.key, coalesce(o.state, d.state), t.step, case when d.state = 6 then
           (select h.result from history h where h.subject = t.id and h.outcome = 0 order by h.seq desc limit 1) end
         from task t left join task_open o on o.id = t.id left join task_done d on d.id = t.id where {condition}"
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let mut found = Vec::new();
    let mut look = |wanted: &dyn ToSql| -> Result<(), StoreError> {
        let read = |row: &rusqlite::Row<'_>| {
            let mut from = Reader { row, next: 0 };
            Ok((from.uuid()?, from.get()?, from.get::<i16>()?, from.get()?, from.text()?))
        };
        let row = statement.query_row((execution.0.as_bytes().as_slice(), wanted), read).optional()?;
        let Some((id, key, state, step, result)) = row else { return Ok(()) };
        let state = State::from_code(state).ok_or_else(|| corrupt(format!("state {state}")))?;
        found.push(StepView { task: TaskId(id), key, state, step, result });
        Ok(())
    };
    match which {
        OwnedSteps::Keys(keys) => keys.iter().try_for_each(|key| look(key))?,
        OwnedSteps::Tasks(ids) => ids.iter().try_for_each(|id| look(&id.0.as_bytes().as_slice()))?,
    }
    Ok(found)
}

static CALL_ENDS: LazyLock<String> = LazyLock::new(|| {
    format!(
        "select {}, e.id, e.state from task_open o indexed by open_leaseless
         join execution e on e.parent_task = o.id and e.parent_run = o.run
         where o.state in (3, 5) and o.lease_at is not null and o.lease_expires is null
           and o.lane in (select value from json_each(?2)) and e.state in (3, 4, 5) limit ?1",
        columns("o", &OPEN_COLUMNS)
    )
});

pub fn call_ends(connection: &Connection, dictionary: &Dictionary, limit: u32) -> Result<Vec<CallEnd>, StoreError> {
    let mut statement = connection.prepare_cached(&CALL_ENDS)?;
    let lanes = dictionary.lanes_of(Executor::Flow);
    let mut rows = statement.query((limit, serde_json::to_string(&lanes).unwrap_or_default()))?;
    let mut ends = Vec::new();
    while let Some(row) = rows.next()? {
        let mut from = Reader { row, next: 0 };
        let task = stored_open(connection, read_open(&mut from)?, dictionary)?;
        let (execution, state) = (ExecutionId(from.uuid()?), from.get::<i16>()?);
        let state = ExecutionState::from_code(state).ok_or_else(|| corrupt(format!("execution state {state}")))?;
        ends.push(CallEnd { task, execution, state });
    }
    Ok(ends)
}

pub fn orphans(
    connection: &Connection,
    dictionary: &Dictionary,
    limit: u32,
) -> Result<Vec<(String, ExecutionId)>, StoreError> {
    let rows: Vec<(i32, [u8; 16])> = connection
        .prepare_cached(
            "select e.namespace, e.id from execution e indexed by execution_called
             where e.parent_task is not null and e.state in (0, 1, 2) and not exists (
               select 1 from task_open o where o.id = e.parent_task
                 and (o.run = e.parent_run - 1 and o.state in (0, 1, 2, 5)
                   or o.run = e.parent_run and o.state in (3, 5) and o.lease_at is not null)) limit ?1",
        )?
        .query_map([limit], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<_>>()?;
    rows.into_iter()
        .map(|(namespace, id)| {
            let name = dictionary.namespace_name(namespace).ok_or_else(|| corrupt("an execution's namespace"))?;
            Ok((name.to_string(), ExecutionId(Uuid::from_bytes(id))))
        })
        .collect()
}

pub fn execution_view(
    connection: &Connection,
    dictionary: &Dictionary,
    namespace: &str,
    id: ExecutionId,
) -> Result<Option<ExecutionView>, StoreError> {
    let Some((execution, _)) =
        read::execution(connection, dictionary, id)?.filter(|(execution, _)| &*execution.namespace == namespace)
    else {
        return Ok(None);
    };
    let mut view = connection
        .prepare_cached(
            "select name, labels, external_id, workflow, workflow_version, input, parent_task, parent_run, retry_of,
               fired_by, schedule, scheduled_at
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
            let origin = Origin { workflow, input, parent, retry_of, firing };
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
