//! Leasing: the best tasks over all lanes a request names, in one order, each given once.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Arc, LazyLock};

use comeback_core::{EventKind, ExecutionState, Record, Timestamp, transition};
use rusqlite::Connection;
use uuid::Uuid;

use super::apply::{append, load_execution, write_execution};
use super::statements::{Reader, read_open, stored_open, update_open};
use super::writer::Tx;
use crate::StoreError;
use crate::row::{Fixed, OPEN_COLUMNS, OpenRow, STARTED, columns, corrupt, labels_from_json};
use crate::types::{ClaimRequest, Claimed};

/// Highest priority, then the oldest, then by id (model I-17).
type Place = (i16, i64, Uuid);

pub fn claim(tx: &mut Tx<'_>, requests: &[ClaimRequest], now: Timestamp) -> Result<Vec<Vec<Claimed>>, StoreError> {
    tx.feed.at = now.0;
    let mut answers = Vec::with_capacity(requests.len());
    for request in requests {
        let lanes: Vec<i32> = tx.dictionary.lanes_for(request).into_iter().map(|(id, _)| id).collect();
        let chosen = choose(tx.connection, &lanes, request.limit, now)?;
        let mut claimed = Vec::with_capacity(chosen.len());
        for id in chosen {
            claimed.push(lease(tx, id, request, now)?);
        }
        answers.push(claimed);
    }
    Ok(answers)
}

/// Merges the lanes: each is read in order, a few rows at a time. What is past its deadline is not offered any more.
fn choose(connection: &Connection, lanes: &[i32], limit: u32, now: Timestamp) -> Result<Vec<Uuid>, StoreError> {
    if let [only] = lanes {
        return Ok(next_in_lane(connection, *only, None, limit, now)?.into_iter().map(|place| place.2).collect());
    }
    let step = (limit / u32::try_from(lanes.len().max(1)).unwrap_or(1)).max(4);
    let mut buffers: Vec<std::vec::IntoIter<Place>> = Vec::with_capacity(lanes.len());
    let mut heads = BinaryHeap::new();
    for (index, lane) in lanes.iter().enumerate() {
        let mut places = next_in_lane(connection, *lane, None, step, now)?.into_iter();
        heads.extend(places.next().map(|place| Reverse((place, index))));
        buffers.push(places);
    }
    let mut chosen = Vec::new();
    while chosen.len() < limit as usize
        && let Some(Reverse((place, index))) = heads.pop()
    {
        chosen.push(place.2);
        if buffers[index].len() == 0 {
            buffers[index] = next_in_lane(connection, lanes[index], Some(place), step, now)?.into_iter();
        }
        heads.extend(buffers[index].next().map(|place| Reverse((place, index))));
    }
    Ok(chosen)
}

fn next_in_lane(
    connection: &Connection,
    lane: i32,
    after: Option<Place>,
    limit: u32,
    now: Timestamp,
) -> rusqlite::Result<Vec<Place>> {
    let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, Uuid::from_bytes(row.get(2)?)));
    match after {
        None => connection
            .prepare_cached(
                "select prio, submitted_at, id from task_open indexed by open_ready
                 where lane = ?1 and state = 1 and hold = 0 and (expires_at is null or expires_at > ?3)
                 order by prio, submitted_at, id limit ?2",
            )?
            .query_map((lane, limit, now.0), read)?
            .collect(),
        Some((prio, submitted_at, id)) => connection
            .prepare_cached(
                "select prio, submitted_at, id from task_open indexed by open_ready
                 where lane = ?1 and state = 1 and hold = 0 and (expires_at is null or expires_at > ?3)
                   and (prio, submitted_at, id) > (?4, ?5, ?6)
                 order by prio, submitted_at, id limit ?2",
            )?
            .query_map((lane, limit, now.0, prio, submitted_at, id.as_bytes().as_slice()), read)?
            .collect(),
    }
}

static SELECT_CLAIMED: LazyLock<String> = LazyLock::new(|| {
    format!(
        "select {}, t.key, t.name, t.payload, t.labels, t.executor, t.traceparent
         from task_open o join task t on t.id = o.id where o.id = ?1",
        columns("o", &OPEN_COLUMNS)
    )
});

fn lease(tx: &mut Tx<'_>, id: Uuid, request: &ClaimRequest, now: Timestamp) -> Result<Claimed, StoreError> {
    let (row, mut claimed) = {
        let mut statement = tx.connection.prepare_cached(&SELECT_CLAIMED)?;
        let mut rows = statement.query([id.as_bytes().as_slice()])?;
        let row = rows.next()?.ok_or_else(|| corrupt("a ready task without a body"))?;
        let mut from = Reader { row, next: 0 };
        let open = read_open(&mut from)?;
        let stored = stored_open(open.clone(), tx.dictionary)?;
        let claimed = Claimed {
            stored,
            key: from.get()?,
            name: from.get()?,
            payload: from.text()?,
            labels: labels_from_json(from.text()?.as_deref()),
            executor: from.get()?,
            traceparent: from.get()?,
        };
        (open, claimed)
    };
    let before = &claimed.stored.task;
    let step = transition::lease(before, &request.worker, request.lease, now)
        .map_err(|rejection| corrupt(format!("a ready task that cannot be leased: {rejection}")))?;
    let namespace = tx.dictionary.lane_namespace(row.lane).ok_or_else(|| corrupt(format!("lane {}", row.lane)))?;
    match step.record {
        None => {
            write_lease(tx.connection, &step.after, &request.worker)?;
            tx.feed.push(namespace, id, step.after.seq, step.after.seq);
        }
        Some(record) => {
            let fixed = Fixed { hard_deadline: row.hard_deadline != 0, dedupe: row.dedupe != 0 };
            let after = OpenRow::new(&step.after, row.lane, row.policy, fixed);
            update_open(tx.connection, &after, before.version)?;
            log_start(tx, namespace, record, now)?;
        }
    }
    claimed.stored.task = step.after;
    Ok(claimed)
}

/// The few columns that a lease changes in a lone task's row.
fn write_lease(connection: &Connection, after: &comeback_core::Task, worker: &Arc<str>) -> rusqlite::Result<()> {
    let lease = after.lease.as_ref();
    connection
        .prepare_cached(
            "update task_open set state = 3, version = ?2, seq = ?3, run = ?4, lease_no = ?5, worker = ?6,
               lease_at = ?7, lease_expires = ?8, started_at = ?7, timeout_at = ?9, updated_at = ?7,
               unwritten = unwritten | ?10
             where id = ?1",
        )?
        .execute((
            after.id.0.as_bytes().as_slice(),
            after.version,
            after.seq,
            after.run,
            after.lease_number,
            &**worker,
            after.updated_at.0,
            lease.and_then(|lease| lease.expires_at).map(|at| at.0),
            after.timeout_at.map(|at| at.0),
            STARTED,
        ))
        .map(|_| ())
}

/// A start that is written at once; the first of an execution starts the execution too (E2).
fn log_start(tx: &mut Tx<'_>, namespace: i32, record: Record, now: Timestamp) -> Result<(), StoreError> {
    let Some(id) = record.execution else {
        let first = record.seq;
        return append(tx, namespace, &[(record, first)]);
    };
    let (mut execution, mut log) = load_execution(tx, id)?.ok_or_else(|| corrupt("a task without its execution"))?;
    if execution.state == ExecutionState::Pending {
        log.add(Record::about_execution(id, EventKind::ExecutionStarted, now));
        execution.state = ExecutionState::Running;
        execution.started_at = Some(now);
        execution.updated_at = now;
        execution.version += 1;
    }
    log.add(record);
    write_execution(tx.connection, &execution, log.last)?;
    append(tx, namespace, &log.records)
}
