//! How a task, its end and its history look as rows. Both databases have these columns; each binds and reads them its own
//! way, and what they mean is here once.
//!
//! Over 500 lines: the columns of every table of tasks, once for both databases.

use std::sync::Arc;

use comeback_core::reason::{Decision, Reason};
use comeback_core::{
    AttemptOutcome, Class, Counters, EventKind, ExecutionId, Failure, Hold, Lane, Lease, Millis, Record, State, Tally,
    Task, TaskId, Timestamp, Unwritten,
};
use uuid::Uuid;

use crate::StoreError;
use crate::column::row;

pub const READY: i16 = 1;
pub const RETRY_DUE: i16 = 2;
pub const STARTED: i16 = 4;

/// In the column `hooked`: what is looked up for few tasks, and for no other.
const HOOKED: i16 = 1;
const METERED: i16 = 2;

fn marks(task: &Task) -> i16 {
    (if task.hooked { HOOKED } else { 0 }) | (if task.metered { METERED } else { 0 })
}

row! {
    /// One row of `task_open`.
    /// `progress` is written by heartbeats alone.
    OpenRow arrays OpenColumns {
        id: Uuid,
        lane: i32,
        execution_id: Option<Uuid>,
        policy: Option<i32>,
        state: i16,
        prio: i16,
        hold: i16,
        submitted_at: i64,
        version: i32,
        seq: i32,
        unwritten: i16,
        ready_at: Option<i64>,
        attempt: i32,
        lost: i32,
        throttled: i32,
        snoozed: i32,
        rule_counts: Option<Vec<u8>>,
        cycle: i32,
        run: i32,
        lease_no: i32,
        worker: Option<Arc<str>>,
        lease_at: Option<i64>,
        lease_expires: Option<i64>,
        due: Option<i64>,
        start_at: Option<i64>,
        next_retry_at: Option<i64>,
        held_until: Option<i64>,
        held_by: Option<String>,
        timeout_ms: Option<i64>,
        attempt_deadline_ms: Option<i64>,
        timeout_at: Option<i64>,
        expires_at: Option<i64>,
        hard_deadline: i16,
        first_failed_at: Option<i64>,
        started_at: Option<i64>,
        updated_at: i64,
        paused_from: Option<i16>,
        parked: i16,
        reason: Option<i16>,
        class: Option<i16>,
        fingerprint: Option<i64>,
        expected: Option<i32>,
        success: i32,
        failures: i32,
        needs_left: i32,
        children_left: i32,
        dead_end_barrier: i16,
        gated: i16,
        hooked: i16,
    }
    apart {
        /// Whether a row of `dedupe` must go with it.
        dedupe: i16,
    }
}

/// Columns of an open row that the core does not know.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fixed {
    pub hard_deadline: bool,
    pub dedupe: bool,
}

row! {
    /// One row of `task_done`, with the columns of the body that complete the task.
    DoneRow arrays DoneColumns {
        id: Uuid,
        lane: i32,
        execution_id: Option<Uuid>,
        state: i16,
        version: i32,
        seq: i32,
        attempt: i32,
        lost: i32,
        throttled: i32,
        snoozed: i32,
        cycle: i32,
        run: i32,
        lease_no: i32,
        started_at: Option<i64>,
        ended_at: i64,
        updated_at: i64,
        first_failed_at: Option<i64>,
        expires_at: Option<i64>,
        reason: Option<i16>,
        class: Option<i16>,
        fingerprint: Option<i64>,
        expected: Option<i32>,
        success: i32,
        failures: i32,
    }
    apart {
        /// Only the store knows its number: the open row had it.
        policy: Option<i32>,
    }
}

row! {
    /// Columns of the body that complete a finished task.
    FixedRow {
        priority: i16,
        submitted_at: i64,
        timeout_ms: Option<i64>,
        attempt_deadline_ms: Option<i64>,
        start_at: Option<i64>,
        expires_at: Option<i64>,
        hard_deadline: i16,
        dead_end_barrier: i16,
        gated: i16,
        hooked: i16,
    }
}

row! {
    /// One row of `history`.
    HistoryRow arrays HistoryColumns {
        subject: Uuid,
        seq: i32,
        execution_id: Option<Uuid>,
        events: Vec<u8>,
        at: i64,
        ready_at: Option<i64>,
        started_at: Option<i64>,
        cycle: i32,
        run: i32,
        attempt: i32,
        lease_no: i32,
        outcome: Option<i16>,
        worker: Option<Arc<str>>,
        actor: Option<String>,
        result: Option<Arc<str>>,
        error: Option<String>,
        decision: Option<String>,
        data: Option<String>,
    }
}

/// `a.x, a.y, …`
pub fn columns(alias: &str, names: &[&str]) -> String {
    names.iter().map(|name| format!("{alias}.{name}")).collect::<Vec<_>>().join(", ")
}

/// A task with a smaller id was created before this instant: ids begin with their time. Only that can have ended before it, so
/// nothing else need be looked at.
pub fn oldest_id(before: Timestamp) -> Uuid {
    let millis = before.0.clamp(0, (1 << 48) - 1).cast_unsigned();
    Uuid::from_u128(u128::from(millis) << 80)
}

/// As many executions, given with their sizes, as have no more than `limit` tasks together, but one at least; and whether there
/// may be more.
pub fn whole_ones<T>(found: Vec<(T, i32)>, limit: u32) -> (Vec<T>, bool) {
    let (all, mut room) = (found.len(), i64::from(limit));
    let fits = |(_, total): &(T, i32)| {
        let first = room == i64::from(limit);
        room -= i64::from((*total).max(1));
        first || room >= 0
    };
    let chosen: Vec<T> = found.into_iter().take_while(fits).map(|(id, _)| id).collect();
    let more = chosen.len() < all || all >= limit as usize;
    (chosen, more)
}

pub fn corrupt(what: impl Into<String>) -> StoreError {
    StoreError::Corrupt(what.into())
}

fn time(value: Option<i64>) -> Option<Timestamp> {
    value.map(Timestamp)
}

fn span(value: Option<i64>) -> Option<Millis> {
    value.map(|ms| Millis(ms.max(0).cast_unsigned()))
}

fn raw_span(value: Option<Millis>) -> Option<i64> {
    value.map(|span| i64::try_from(span.0).unwrap_or(i64::MAX))
}

fn int(value: u32) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}

fn uint(value: i32) -> u32 {
    u32::try_from(value).unwrap_or(0)
}

fn state(code: i16) -> Result<State, StoreError> {
    State::from_code(code).ok_or_else(|| corrupt(format!("state {code}")))
}

fn counts_to_bytes(counts: &[u32]) -> Option<Vec<u8>> {
    (!counts.is_empty()).then(|| counts.iter().flat_map(|count| count.to_le_bytes()).collect())
}

fn counts_from_bytes(bytes: Option<&[u8]>) -> Vec<u32> {
    let chunks = bytes.unwrap_or_default().chunks_exact(4);
    chunks.map(|chunk| chunk.iter().rev().fold(0, |sum, byte| sum << 8 | u32::from(*byte))).collect()
}

pub fn unwritten_bits(unwritten: Unwritten) -> i16 {
    let flag = |set: bool, bit: i16| if set { bit } else { 0 };
    flag(unwritten.ready.is_some(), READY)
        | flag(unwritten.retry_due.is_some(), RETRY_DUE)
        | flag(unwritten.started, STARTED)
}

impl OpenRow {
    pub fn new(task: &Task, lane: i32, policy: Option<i32>, fixed: Fixed) -> OpenRow {
        let unwritten = task.unwritten;
        OpenRow {
            id: task.id.0,
            lane,
            execution_id: task.execution.map(|id| id.0),
            policy,
            state: task.state.code(),
            prio: -task.priority,
            hold: i16::from(task.execution_paused),
            submitted_at: task.submitted_at.0,
            version: int(task.version),
            seq: int(task.seq),
            unwritten: unwritten_bits(unwritten),
            ready_at: unwritten.ready.or(unwritten.retry_due).map(|at| at.0),
            attempt: int(task.counters.attempt),
            lost: int(task.counters.lost),
            throttled: int(task.counters.throttled),
            snoozed: int(task.counters.snoozed),
            rule_counts: counts_to_bytes(&task.rule_counts),
            cycle: int(task.cycle),
            run: int(task.run),
            lease_no: int(task.lease_number),
            worker: task.lease.as_ref().map(|lease| lease.worker.clone()),
            lease_at: task.lease.as_ref().map(|lease| lease.acquired_at.0),
            lease_expires: task.lease.as_ref().and_then(|lease| lease.expires_at).map(|at| at.0),
            due: task.due().map(|at| at.0),
            start_at: task.start_at.map(|at| at.0),
            next_retry_at: task.next_retry_at.map(|at| at.0),
            held_until: task.hold.as_ref().map(|hold| hold.until.0),
            held_by: task.hold.as_ref().map(|hold| hold.reason.clone()),
            timeout_ms: raw_span(task.timeout),
            attempt_deadline_ms: raw_span(task.attempt_deadline),
            timeout_at: task.timeout_at.map(|at| at.0),
            expires_at: task.expires_at.map(|at| at.0),
            hard_deadline: i16::from(fixed.hard_deadline),
            first_failed_at: task.first_failed_at.map(|at| at.0),
            started_at: task.started_at.map(|at| at.0),
            updated_at: task.updated_at.0,
            paused_from: task.paused_from.map(State::code),
            parked: i16::from(task.parked),
            reason: task.reason.map(Reason::code),
            class: task.class.map(Class::code),
            fingerprint: task.fingerprint,
            expected: task.tally.expected.map(int),
            success: int(task.tally.success),
            failures: int(task.tally.failures),
            needs_left: int(task.needs_left),
            children_left: int(task.children_left),
            dead_end_barrier: i16::from(task.dead_end_barrier),
            gated: i16::from(task.gated),
            hooked: marks(task),
            dedupe: i16::from(fixed.dedupe),
        }
    }

    pub fn into_task(self, lane: Arc<Lane>) -> Result<Task, StoreError> {
        let has = |bit: i16| self.unwritten & bit != 0;
        let lease = match (self.worker, self.lease_at) {
            (Some(worker), Some(at)) => Some(Lease {
                number: uint(self.lease_no),
                worker,
                acquired_at: Timestamp(at),
                expires_at: time(self.lease_expires),
            }),
            _ => None,
        };
        Ok(Task {
            id: TaskId(self.id),
            execution: self.execution_id.map(ExecutionId),
            lane,
            priority: -self.prio,
            submitted_at: Timestamp(self.submitted_at),
            state: state(self.state)?,
            version: uint(self.version),
            seq: uint(self.seq),
            unwritten: Unwritten {
                ready: time(self.ready_at).filter(|_| has(READY)),
                retry_due: time(self.ready_at).filter(|_| has(RETRY_DUE)),
                started: has(STARTED),
            },
            counters: Counters {
                attempt: uint(self.attempt),
                lost: uint(self.lost),
                throttled: uint(self.throttled),
                snoozed: uint(self.snoozed),
            },
            rule_counts: counts_from_bytes(self.rule_counts.as_deref()),
            cycle: uint(self.cycle),
            run: uint(self.run),
            lease_number: uint(self.lease_no),
            lease,
            start_at: time(self.start_at),
            next_retry_at: time(self.next_retry_at),
            hold: self
                .held_until
                .map(|until| Hold { until: Timestamp(until), reason: self.held_by.unwrap_or_default() }),
            timeout: span(self.timeout_ms),
            attempt_deadline: span(self.attempt_deadline_ms),
            timeout_at: time(self.timeout_at),
            expires_at: time(self.expires_at),
            lifetime: None,
            first_failed_at: time(self.first_failed_at),
            started_at: time(self.started_at),
            ended_at: None,
            updated_at: Timestamp(self.updated_at),
            paused_from: self.paused_from.map(state).transpose()?,
            parked: self.parked != 0,
            execution_paused: self.hold != 0,
            reason: self.reason.and_then(Reason::from_code),
            class: self.class.and_then(Class::from_code),
            fingerprint: self.fingerprint,
            tally: Tally {
                expected: self.expected.map(uint),
                success: uint(self.success),
                failures: uint(self.failures),
            },
            needs_left: uint(self.needs_left),
            children_left: uint(self.children_left),
            dead_end_barrier: self.dead_end_barrier != 0,
            gated: self.gated != 0,
            hooked: self.hooked & HOOKED != 0,
            metered: self.hooked & METERED != 0,
        })
    }
}

impl DoneRow {
    pub fn new(task: &Task, lane: i32, policy: Option<i32>) -> DoneRow {
        DoneRow {
            id: task.id.0,
            lane,
            execution_id: task.execution.map(|id| id.0),
            policy,
            state: task.state.code(),
            version: int(task.version),
            seq: int(task.seq),
            attempt: int(task.counters.attempt),
            lost: int(task.counters.lost),
            throttled: int(task.counters.throttled),
            snoozed: int(task.counters.snoozed),
            cycle: int(task.cycle),
            run: int(task.run),
            lease_no: int(task.lease_number),
            started_at: task.started_at.map(|at| at.0),
            ended_at: task.ended_at.unwrap_or(task.updated_at).0,
            updated_at: task.updated_at.0,
            first_failed_at: task.first_failed_at.map(|at| at.0),
            expires_at: task.expires_at.map(|at| at.0),
            reason: task.reason.map(Reason::code),
            class: task.class.map(Class::code),
            fingerprint: task.fingerprint,
            expected: task.tally.expected.map(int),
            success: int(task.tally.success),
            failures: int(task.tally.failures),
        }
    }

    pub fn into_task(self, lane: Arc<Lane>, fixed: &FixedRow) -> Result<Task, StoreError> {
        let mut task = Task::new(TaskId(self.id), lane, Timestamp(fixed.submitted_at));
        task.execution = self.execution_id.map(ExecutionId);
        task.priority = fixed.priority;
        task.state = state(self.state)?;
        task.version = uint(self.version);
        task.seq = uint(self.seq);
        task.counters = Counters {
            attempt: uint(self.attempt),
            lost: uint(self.lost),
            throttled: uint(self.throttled),
            snoozed: uint(self.snoozed),
        };
        task.cycle = uint(self.cycle);
        task.run = uint(self.run);
        task.lease_number = uint(self.lease_no);
        task.timeout = span(fixed.timeout_ms);
        task.attempt_deadline = span(fixed.attempt_deadline_ms);
        // What never ran may come back, and then it still has its own time.
        task.start_at = time(fixed.start_at).filter(|_| task.run == 0);
        task.expires_at = time(self.expires_at);
        task.lifetime = time(fixed.expires_at).map(|at| at.since(task.submitted_at)).filter(|_| task.cycle > 0);
        task.first_failed_at = time(self.first_failed_at);
        task.started_at = time(self.started_at);
        task.ended_at = Some(Timestamp(self.ended_at));
        task.updated_at = Timestamp(self.updated_at);
        task.reason = self.reason.and_then(Reason::from_code);
        task.class = self.class.and_then(Class::from_code);
        task.fingerprint = self.fingerprint;
        task.tally =
            Tally { expected: self.expected.map(uint), success: uint(self.success), failures: uint(self.failures) };
        task.dead_end_barrier = fixed.dead_end_barrier != 0;
        task.gated = fixed.gated != 0;
        task.hooked = fixed.hooked & HOOKED != 0;
        task.metered = fixed.hooked & METERED != 0;
        Ok(task)
    }
}

impl HistoryRow {
    /// `seq` is the number of the first event; in a shared log it is given by the store at the commit.
    pub fn new(record: &Record, seq: u32) -> HistoryRow {
        HistoryRow {
            subject: record.subject,
            seq: int(seq),
            execution_id: record.execution.map(|id| id.0),
            events: EventKind::pack(&record.events),
            at: record.at.0,
            ready_at: record.ready_at.map(|at| at.0),
            started_at: record.started_at.map(|at| at.0),
            cycle: int(record.cycle),
            run: int(record.run),
            attempt: int(record.attempt),
            lease_no: int(record.lease_number),
            outcome: record.outcome.map(AttemptOutcome::code),
            worker: record.worker.clone(),
            actor: record.actor.clone(),
            result: record.result.clone(),
            error: record.failure.as_ref().and_then(|failure| serde_json::to_string(failure).ok()),
            decision: record.decision.as_ref().and_then(|decision| serde_json::to_string(decision).ok()),
            data: record.data.as_ref().map(ToString::to_string),
        }
    }

    pub fn into_record(self) -> Result<Record, StoreError> {
        fn read<T: serde::de::DeserializeOwned>(text: Option<String>, what: &str) -> Result<Option<T>, StoreError> {
            let parsed = text.map(|text| serde_json::from_str(&text)).transpose();
            parsed.map_err(|error| corrupt(format!("a {what} in history: {error}")))
        }
        Ok(Record {
            subject: self.subject,
            execution: self.execution_id.map(ExecutionId),
            seq: uint(self.seq),
            events: EventKind::unpack(&self.events).ok_or_else(|| corrupt("an event in history"))?,
            carried: 0,
            at: Timestamp(self.at),
            ready_at: time(self.ready_at),
            started_at: time(self.started_at),
            cycle: uint(self.cycle),
            run: uint(self.run),
            attempt: uint(self.attempt),
            lease_number: uint(self.lease_no),
            outcome: self.outcome.and_then(AttemptOutcome::from_code),
            worker: self.worker,
            actor: self.actor,
            result: self.result,
            failure: read::<Failure>(self.error, "failure")?,
            decision: read::<Decision>(self.decision, "decision")?,
            data: read(self.data, "note")?,
        })
    }
}

/// The first record of a lone task is not stored: its body says it all.
pub fn created_record(id: Uuid, submitted_at: i64, start_at: Option<i64>) -> Record {
    let mut task = Task::new(TaskId(id), Arc::new(Lane::default()), Timestamp(submitted_at));
    task.seq = 0;
    let mut record = Record::about(&task, Timestamp(submitted_at));
    record.events.push(EventKind::TaskCreated);
    if start_at.is_none() {
        record.events.push(EventKind::TaskReady);
    }
    record
}

pub fn labels_to_json(body: &std::collections::BTreeMap<String, String>) -> Option<String> {
    (!body.is_empty()).then(|| serde_json::to_string(body).unwrap_or_default())
}

pub fn labels_from_json(text: Option<&str>) -> std::collections::BTreeMap<String, String> {
    text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}
