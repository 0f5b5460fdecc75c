//! Leasing: the best tasks over all lanes a request names, in one order, each given once.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Arc, LazyLock};

use comeback_core::{EventKind, ExecutionState, Record, State, Timestamp, transition};
use rusqlite::{Connection, ToSql};
use uuid::Uuid;

use super::apply::{append, load_execution, write_execution};
use super::statements::{Reader, read_open, stored_open, update_open};
use super::tend::is_paused;
use super::writer::Tx;
use crate::StoreError;
use crate::dictionary::Dictionary;
use crate::row::{Fixed, OPEN_COLUMNS, OpenRow, RETRY_DUE, STARTED, columns, corrupt, labels_from_json};
use crate::types::{ClaimRequest, Claimed, Loop};

/// Highest priority, then the oldest, then by id (model I-17).
pub type Place = (i16, i64, Uuid);

/// What the writer found for one request; `finish` makes tasks of the rows on another thread.
#[derive(Default)]
pub struct Given {
    tasks: Vec<Claimed>,
    rows: Vec<LeasedRow>,
}

pub fn claim(tx: &mut Tx<'_>, requests: &[ClaimRequest], now: Timestamp) -> Result<Vec<Given>, StoreError> {
    tx.feed.at = now.0;
    requests.iter().map(|request| claim_one(tx, request, now)).collect()
}

fn claim_one(tx: &mut Tx<'_>, request: &ClaimRequest, now: Timestamp) -> Result<Given, StoreError> {
    if is_paused(tx.connection, Loop::Dispatch, now)? {
        return Ok(Given::default());
    }
    if request.may_call() && !request.without_calls && is_paused(tx.connection, Loop::Hooks, now)? {
        return claim_one(tx, &ClaimRequest { without_calls: true, ..request.clone() }, now);
    }
    let lanes = tx.dictionary.lanes_for(request);
    let numbers: Vec<i32> = lanes.iter().map(|(id, _)| *id).collect();
    let mut given = Given::default();
    let ruled =
        if tx.dictionary.is_ruled(&request.namespace) { super::rules::choose(tx, request, &lanes, now)? } else { None };
    if let Some(chosen) = ruled {
        for id in chosen {
            given.tasks.extend(lease(tx, id, request, now)?);
        }
    } else if let ([lane], false) = (numbers.as_slice(), lanes.iter().any(|(_, lane)| lane.writes_each_step())) {
        given.rows = lease_rows(tx, &LEASE_READY, lane, request.limit, request, now)?;
    } else {
        for id in choose(tx.connection, &numbers, request.limit, now)? {
            given.tasks.extend(lease(tx, id, request, now)?);
        }
    }
    let room = request.limit.saturating_sub(u32::try_from(given.tasks.len() + given.rows.len()).unwrap_or(u32::MAX));
    if request.due && room > 0 && !is_paused(tx.connection, Loop::Retries, now)? {
        let plain = lanes.iter().filter(|(_, lane)| !lane.writes_each_step()).map(|(id, _)| *id);
        let plain = serde_json::json!(plain.collect::<Vec<i32>>()).to_string();
        given.rows.extend(lease_rows(tx, &LEASE_DUE, &plain, room, request, now)?);
    }
    Ok(given)
}

/// What of a row is not known before it is leased: the rest is the same for every lone task that is ready.
pub struct LeasedRow {
    open: OpenRow,
    key: Option<String>,
    name: Option<String>,
    payload: Option<Arc<str>>,
    labels: Option<Arc<str>>,
    executor: Option<String>,
    step: Option<String>,
    traceparent: Option<String>,
    promoted: bool,
}

/// Leases rows in one statement. A task's own time never goes back.
struct LeaseRows {
    sql: String,
    /// Events that the lease adds, as bits and as a number.
    events: i16,
    count: u32,
}

/// The best of one lane.
static LEASE_READY: LazyLock<LeaseRows> = LazyLock::new(|| LeaseRows {
    sql: lease_statement(
        1,
        "",
        "indexed by open_ready where lane = ?1 and state = 1 and hold = 0 and (expires_at is null or expires_at > ?4)
         order by prio, submitted_at, id",
    ),
    events: STARTED,
    count: 1,
});

/// Retries that are due: promoted and leased in one step.
static LEASE_DUE: LazyLock<LeaseRows> = LazyLock::new(|| LeaseRows {
    sql: lease_statement(
        2,
        ", ready_at = max(?4, updated_at), due = null, next_retry_at = null, start_at = null, held_until = null,
           held_by = null",
        "indexed by open_retry where state = 4 and hold = 0 and due <= ?4 and (expires_at is null or expires_at > ?4)
           and lane in (select value from json_each(?1)) order by due, id",
    ),
    events: RETRY_DUE | STARTED,
    count: 2,
});

fn lease_statement(steps: u32, more: &str, picked: &str) -> String {
    format!(
        "update task_open as o set state = 3, version = version + {steps}, seq = seq + {steps}, run = run + 1,
           lease_no = lease_no + 1, worker = ?3, lease_at = max(?4, updated_at), lease_expires = max(?4, updated_at) + ?5,
           started_at = max(?4, updated_at), updated_at = max(?4, updated_at), unwritten = unwritten | ?6,
           timeout_at = min(max(?4, updated_at) + coalesce(timeout_ms, attempt_deadline_ms),
             max(?4, updated_at) + coalesce(attempt_deadline_ms, timeout_ms)){more}
         where id in (select id from task_open {picked} limit ?2)
         returning id, lane, policy, prio, submitted_at, version, seq, unwritten, ready_at, attempt, lost, throttled,
           snoozed, rule_counts, cycle, run, lease_no, timeout_ms, attempt_deadline_ms, timeout_at, expires_at,
           hard_deadline, first_failed_at, updated_at, class, fingerprint, expected, success, failures, dead_end_barrier,
           hooked"
    )
}

fn lease_rows(
    tx: &mut Tx<'_>,
    how: &LeaseRows,
    lanes: &dyn ToSql,
    limit: u32,
    request: &ClaimRequest,
    now: Timestamp,
) -> Result<Vec<LeasedRow>, StoreError> {
    let mut statement = tx.connection.prepare_cached(&how.sql)?;
    let mut body = tx
        .connection
        .prepare_cached("select key, name, payload, labels, executor, step, traceparent from task where id = ?1")?;
    let mut leased = Vec::new();
    let mut rows =
        statement.query((lanes, limit, &*request.worker, now.0, request.lease.0.cast_signed(), how.events))?;
    while let Some(row) = rows.next()? {
        leased.push(read_leased(&mut Reader { row, next: 0 }, request)?);
    }
    drop(rows);
    leased.sort_unstable_by_key(|row| (row.open.prio, row.open.submitted_at, row.open.id));
    for row in &mut leased {
        let lane = row.open.lane;
        let namespace = tx.dictionary.lane_namespace(lane).ok_or_else(|| corrupt(format!("lane {lane}")))?;
        body.query_row([row.open.id.as_bytes().as_slice()], |found| {
            let mut from = Reader { row: found, next: 0 };
            row.key = from.get()?;
            row.name = from.get()?;
            row.payload = from.text()?;
            row.labels = from.text()?;
            row.executor = from.get()?;
            row.step = from.get()?;
            row.traceparent = from.get()?;
            row.promoted = how.count > 1;
            Ok(())
        })?;
        let seq = row.open.seq.cast_unsigned();
        tx.feed.push(namespace, row.open.id, seq + 1 - how.count, seq);
    }
    Ok(leased)
}

fn read_leased(from: &mut Reader<'_, '_>, request: &ClaimRequest) -> rusqlite::Result<LeasedRow> {
    let mut open = OpenRow {
        id: from.uuid()?,
        lane: from.get()?,
        policy: from.get()?,
        prio: from.get()?,
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
        timeout_ms: from.get()?,
        attempt_deadline_ms: from.get()?,
        timeout_at: from.get()?,
        expires_at: from.get()?,
        hard_deadline: from.get()?,
        first_failed_at: from.get()?,
        updated_at: from.get()?,
        class: from.get()?,
        fingerprint: from.get()?,
        expected: from.get()?,
        success: from.get()?,
        failures: from.get()?,
        dead_end_barrier: from.get()?,
        hooked: from.get()?,
        state: State::Running.code(),
        worker: Some(request.worker.clone()),
        ..OpenRow::default()
    };
    open.lease_at = Some(open.updated_at);
    open.started_at = Some(open.updated_at);
    open.lease_expires = Some(open.updated_at + request.lease.0.cast_signed());
    Ok(LeasedRow {
        open,
        key: None,
        name: None,
        payload: None,
        labels: None,
        executor: None,
        step: None,
        traceparent: None,
        promoted: false,
    })
}

/// Makes tasks of what the writer found.
pub fn finish(dictionary: &Dictionary, given: Given) -> Result<Vec<Claimed>, StoreError> {
    let Given { mut tasks, rows } = given;
    for row in rows {
        tasks.push(Claimed {
            stored: stored_open(row.open, dictionary)?,
            key: row.key,
            name: row.name,
            payload: row.payload,
            labels: labels_from_json(row.labels.as_deref()),
            executor: row.executor,
            step: row.step,
            traceparent: row.traceparent,
            promoted: row.promoted,
        });
    }
    Ok(tasks)
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

pub fn next_in_lane(
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
        "select {}, t.key, t.name, t.payload, t.labels, t.executor, t.step, t.traceparent
         from task_open o join task t on t.id = o.id where o.id = ?1",
        columns("o", &OPEN_COLUMNS)
    )
});

/// Nothing where the core refuses: by the task's own time, which may be ahead of the caller's, its deadline has passed.
fn lease(tx: &mut Tx<'_>, id: Uuid, request: &ClaimRequest, now: Timestamp) -> Result<Option<Claimed>, StoreError> {
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
            step: from.get()?,
            traceparent: from.get()?,
            promoted: false,
        };
        (open, claimed)
    };
    let before = &claimed.stored.task;
    let Ok(step) = transition::lease(before, &request.worker, request.lease, now) else { return Ok(None) };
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
    Ok(Some(claimed))
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
