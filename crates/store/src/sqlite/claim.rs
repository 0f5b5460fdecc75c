//! Leasing: the best tasks over all lanes a request names, in one order, each given once.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};
use std::sync::{Arc, LazyLock};

use comeback_core::{EventKind, ExecutionState, Lane, Record, State, Task, Timestamp, transition};
use rusqlite::{Connection, OptionalExtension, ToSql};
use uuid::Uuid;

use super::apply::{append, load_execution, write_execution};
use super::control::is_paused;
use super::statements::{BatchStatement, Reader, stored_open, update_open};
use super::writer::Tx;
use crate::dictionary::Walk;
use crate::ready::{MANY, ReadyWalk};
use crate::row::{Fixed, OpenRow, columns, corrupt, labels_from_json, unwritten_bits};
use crate::{ClaimRequest, Claimed, Loop, StoreError, Stored};

/// Highest priority, then the oldest, then by id (model I-17).
pub type Place = (i16, i64, Uuid);

pub fn claim(tx: &mut Tx<'_>, requests: &[ClaimRequest], now: Timestamp) -> Result<Vec<Vec<Claimed>>, StoreError> {
    tx.feed.at = now.0;
    requests.iter().map(|request| claim_one(tx, request, now)).collect()
}

fn claim_one(tx: &mut Tx<'_>, request: &ClaimRequest, now: Timestamp) -> Result<Vec<Claimed>, StoreError> {
    if is_paused(tx.connection, Loop::Dispatch, now)? {
        return Ok(Vec::new());
    }
    if request.may_call() && !request.without_calls && is_paused(tx.connection, Loop::Hooks, now)? {
        return claim_one(tx, &ClaimRequest { without_calls: true, ..request.clone() }, now);
    }
    let mut lanes = tx.dictionary.lanes_for(request);
    let is_ruled = tx.dictionary.is_ruled(&request.namespace);
    let limited = if is_ruled { tx.dictionary.limited_below(&lanes) } else { Vec::new() };
    let are_many = lanes.len() > MANY;
    if are_many {
        lanes = only_ready(tx, request, lanes)?;
    }
    let numbers: Vec<i32> = lanes.iter().map(|(id, _)| *id).collect();
    let ruled = if is_ruled { super::rules::choose(tx, request, &lanes, &limited, now)? } else { None };
    let mut given = if let Some(chosen) = ruled {
        lease_chosen(tx, &chosen, request, now)?
    } else if let ([lane], false) = (numbers.as_slice(), lanes.iter().any(|(_, lane)| lane.writes_each_step())) {
        lease_plain(tx, &READY, lane, request.limit, request, now)?
    } else {
        let chosen = choose(tx.connection, &numbers, request.limit, now)?;
        lease_chosen(tx, &chosen, request, now)?
    };
    let room = request.limit.saturating_sub(u32::try_from(given.len()).unwrap_or(u32::MAX));
    // Of many lanes, retries that are due wait for their promotion.
    if request.due && room > 0 && !are_many && !is_paused(tx.connection, Loop::Retries, now)? {
        let plain = lanes.iter().filter(|(_, lane)| !lane.writes_each_step()).map(|(id, _)| *id);
        let plain = serde_json::json!(plain.collect::<Vec<i32>>()).to_string();
        given.extend(lease_plain(tx, &DUE, &plain, room, request, now)?);
    }
    Ok(given)
}

/// Lanes that have something ready, the first few behind where the last such claim ended.
fn only_ready(
    tx: &Tx<'_>,
    request: &ClaimRequest,
    mut lanes: Vec<(i32, Arc<Lane>)>,
) -> Result<Vec<(i32, Arc<Lane>)>, StoreError> {
    let numbers: Vec<i32> = lanes.iter().map(|(id, _)| *id).collect();
    let mut walk = ReadyWalk::new(&numbers, tx.dictionary.turn(&request.namespace, Walk::Plain));
    let ready = next_ready(tx.connection, &mut walk, MANY)?;
    if !walk.is_over() {
        tx.dictionary.set_turn(&request.namespace, Walk::Plain, walk.last());
    }
    lanes.retain(|(id, _)| ready.contains(id));
    Ok(lanes)
}

/// The next so many lanes of a walk that have something ready. Each look is one step in the index; lanes of others that lie in
/// between cost looks too, so these have a limit of their own.
pub fn next_ready(connection: &Connection, walk: &mut ReadyWalk<'_>, most: usize) -> Result<BTreeSet<i32>, StoreError> {
    let mut first = connection.prepare_cached(
        "select lane from task_open indexed by open_ready
         where state = 1 and hold = 0 and lane between ?1 and ?2 order by lane limit 1",
    )?;
    let mut ready = BTreeSet::new();
    for _ in 0..most * 4 {
        if walk.is_over() || ready.len() >= most {
            break;
        }
        let segment = walk.segment();
        let (from, to) = (segment.first().copied(), segment.last().copied());
        let lane: Option<i32> = first.query_row((from, to), |row| row.get(0)).optional()?;
        if walk.pass(lane) {
            ready.extend(lane);
        }
    }
    Ok(ready)
}

/// Whether one of these lanes (in order) has something ready.
pub fn is_any_ready(connection: &Connection, lanes: &[i32]) -> Result<bool, StoreError> {
    let mut walk = ReadyWalk::new(lanes, 0);
    while !walk.is_over() {
        if !next_ready(connection, &mut walk, 1)?.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Lone tasks that are alike in all but a few columns: those are read, and all of them in one statement.
struct Plain {
    state: State,
    read: String,
    write: BatchStatement,
}

/// The best of one lane.
static READY: LazyLock<Plain> = LazyLock::new(|| Plain {
    state: State::Pending,
    read: read_plain(
        "indexed by open_ready cross join task t on t.id = o.id
         where o.lane = ?1 and o.state = 1 and o.hold = 0 and (o.expires_at is null or o.expires_at > ?3)
         order by o.prio, o.submitted_at, o.id limit ?2",
    ),
    write: write_lease(""),
});

/// Retries that are due: promoted and leased in one step.
static DUE: LazyLock<Plain> = LazyLock::new(|| Plain {
    state: State::RetryPending,
    read: read_plain(
        "indexed by open_retry cross join task t on t.id = o.id
         where o.state = 4 and o.hold = 0 and o.due <= ?3 and (o.expires_at is null or o.expires_at > ?3)
           and o.lane in (select value from json_each(?1))
         order by o.due, o.id limit ?2",
    ),
    write: write_lease(
        ", ready_at = ?6, due = null, next_retry_at = null, start_at = null, held_until = null, held_by = null",
    ),
});

/// The columns of a task's body that a worker gets.
const BODY: &str = "t.key, t.name, t.payload, t.labels, t.executor, t.step, t.traceparent";

fn read_plain(picked: &str) -> String {
    format!(
        "select o.id, o.lane, o.policy, o.prio, o.submitted_at, o.version, o.seq, o.unwritten, o.ready_at, o.attempt, o.lost,
           o.throttled, o.snoozed, o.rule_counts, o.cycle, o.run, o.lease_no, o.next_retry_at, o.timeout_ms,
           o.attempt_deadline_ms, o.expires_at, o.hard_deadline, o.first_failed_at, o.updated_at, o.class, o.fingerprint,
           o.expected, o.success, o.failures, o.dead_end_barrier, o.hooked, {BODY}
         from task_open o {picked}"
    )
}

impl Plain {
    fn row(&self, from: &mut Reader<'_, '_>) -> rusqlite::Result<OpenRow> {
        Ok(OpenRow {
            state: self.state.code(),
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
            next_retry_at: from.get()?,
            timeout_ms: from.get()?,
            attempt_deadline_ms: from.get()?,
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
            ..OpenRow::default()
        })
    }

    fn find(
        &self,
        tx: &Tx<'_>,
        lanes: &dyn ToSql,
        limit: u32,
        now: Timestamp,
    ) -> Result<Vec<(i32, Claimed)>, StoreError> {
        let mut statement = tx.connection.prepare_cached(&self.read)?;
        let mut rows = statement.query((lanes, limit, now.0))?;
        let mut found = Vec::new();
        while let Some(row) = rows.next()? {
            let mut from = Reader { row, next: 0 };
            let open = self.row(&mut from)?;
            let lane = open.lane;
            let claimed = read_claimed(&mut from, stored_open(tx.connection, open, tx.dictionary)?)?;
            found.push((lane, Claimed { promoted: self.state == State::RetryPending, ..claimed }));
        }
        found.sort_by_key(|(_, it)| it.place());
        Ok(found)
    }
}

fn read_claimed(from: &mut Reader<'_, '_>, stored: Stored) -> rusqlite::Result<Claimed> {
    Ok(Claimed {
        stored,
        key: from.get()?,
        name: from.get()?,
        payload: from.text()?,
        labels: labels_from_json(from.text()?.as_deref()),
        executor: from.get()?,
        step: from.get()?,
        traceparent: from.get()?,
        promoted: false,
    })
}

fn lease_plain(
    tx: &mut Tx<'_>,
    how: &Plain,
    lanes: &dyn ToSql,
    limit: u32,
    request: &ClaimRequest,
    now: Timestamp,
) -> Result<Vec<Claimed>, StoreError> {
    let found = how.find(tx, lanes, limit, now)?;
    let mut leased = Vec::with_capacity(found.len());
    let mut writes = LeaseBatch::new(&how.write);
    for (lane, mut it) in found {
        let before = &it.stored.task;
        let ready = it.promoted.then(|| transition::promote(before, now).map(|step| step.after)).transpose();
        let Ok(ready) = ready else { continue };
        let ready = ready.as_ref().unwrap_or(before);
        let Ok(step) = transition::lease(ready, request.worker.clone(), request.lease, now) else { continue };
        writes.add(tx, namespace_of(tx, lane)?, before, &step.after);
        it.stored.task = step.after;
        leased.push(it);
    }
    writes.finish(tx.connection, &request.worker)?;
    Ok(leased)
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

static SELECT_CLAIMED: LazyLock<BatchStatement> = LazyLock::new(|| {
    let open = columns("o", OpenRow::COLUMNS);
    BatchStatement::new(&format!("select {open}, {BODY} from task_open o join task t on t.id = o.id where o.id in"), 0)
});

/// In the order in which they were chosen.
fn find_chosen(tx: &Tx<'_>, chosen: &[Uuid]) -> Result<Vec<(OpenRow, Claimed)>, StoreError> {
    let mut found = HashMap::with_capacity(chosen.len());
    SELECT_CLAIMED.query(tx.connection, chosen, |row| {
        let mut from = Reader { row, next: 0 };
        let open = OpenRow::read(&mut from)?;
        let stored = stored_open(tx.connection, open.clone(), tx.dictionary)?;
        found.insert(open.id, (open, read_claimed(&mut from, stored)?));
        Ok(())
    })?;
    let body = |id| found.remove(id).ok_or_else(|| corrupt("a ready task without a body"));
    chosen.iter().map(body).collect()
}

/// Without those that the core refuses: by a task's own time, which may be ahead of the caller's, its deadline has passed.
fn lease_chosen(
    tx: &mut Tx<'_>,
    chosen: &[Uuid],
    request: &ClaimRequest,
    now: Timestamp,
) -> Result<Vec<Claimed>, StoreError> {
    let mut leased = Vec::with_capacity(chosen.len());
    let mut writes = LeaseBatch::new(&READY.write);
    for (row, mut it) in find_chosen(tx, chosen)? {
        let before = &it.stored.task;
        let Ok(step) = transition::lease(before, request.worker.clone(), request.lease, now) else { continue };
        let namespace = namespace_of(tx, row.lane)?;
        match step.record {
            None => writes.add(tx, namespace, before, &step.after),
            Some(record) => {
                let fixed = Fixed { hard_deadline: row.hard_deadline != 0, dedupe: row.dedupe != 0 };
                let after = OpenRow::new(&step.after, row.lane, row.policy, fixed);
                update_open(tx.connection, &after, before.version)?;
                log_start(tx, namespace, record, now)?;
            }
        }
        it.stored.task = step.after;
        leased.push(it);
    }
    writes.finish(tx.connection, &request.worker)?;
    Ok(leased)
}

fn namespace_of(tx: &Tx<'_>, lane: i32) -> Result<i32, StoreError> {
    tx.dictionary.lane_namespace(lane).ok_or_else(|| corrupt(format!("lane {lane}")))
}

/// The few columns that a lease changes in a lone task's row.
fn write_lease(more: &str) -> BatchStatement {
    let text = format!(
        "update task_open set state = 3, version = version + ?1, seq = seq + ?2, run = run + ?3, lease_no = lease_no + ?4,
           worker = ?5, lease_at = ?6, lease_expires = ?7, started_at = ?6, timeout_at = ?8, updated_at = ?6,
           unwritten = ?9{more}
         where id in"
    );
    BatchStatement::new(&text, 9)
}

/// How a lease changes a row; most tasks that are leased together change alike.
#[derive(PartialEq)]
struct LeaseUpdate {
    versions: u32,
    events: u32,
    runs: u32,
    leases: u32,
    at: i64,
    expires: Option<i64>,
    timeout: Option<i64>,
    unwritten: i16,
}

impl LeaseUpdate {
    fn of(before: &Task, after: &Task) -> LeaseUpdate {
        LeaseUpdate {
            versions: after.version - before.version,
            events: after.seq - before.seq,
            runs: after.run - before.run,
            leases: after.lease_number - before.lease_number,
            at: after.updated_at.0,
            expires: after.lease.as_ref().and_then(|lease| lease.expires_at).map(|at| at.0),
            timeout: after.timeout_at.map(|at| at.0),
            unwritten: unwritten_bits(after.unwritten),
        }
    }
}

/// Leases that were granted and are not written yet: those that change their rows alike go together.
struct LeaseBatch<'a> {
    how: &'a BatchStatement,
    changes: Vec<(LeaseUpdate, Vec<Uuid>)>,
}

impl LeaseBatch<'_> {
    fn new(how: &BatchStatement) -> LeaseBatch<'_> {
        LeaseBatch { how, changes: Vec::new() }
    }

    fn add(&mut self, tx: &mut Tx<'_>, namespace: i32, before: &Task, after: &Task) {
        let (id, change) = (after.id.0, LeaseUpdate::of(before, after));
        match self.changes.last_mut() {
            Some((last, ids)) if *last == change => ids.push(id),
            _ => self.changes.push((change, vec![id])),
        }
        tx.feed.push(namespace, id, before.seq + 1, after.seq);
    }

    fn finish(self, connection: &Connection, worker: &str) -> rusqlite::Result<()> {
        self.changes.iter().try_for_each(|(change, ids)| {
            let LeaseUpdate { versions, events, runs, leases, at, expires, timeout, unwritten } = change;
            let values: [&dyn ToSql; 9] = [versions, events, runs, leases, &worker, at, expires, timeout, unwritten];
            self.how.execute(connection, &values, ids)
        })
    }
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
