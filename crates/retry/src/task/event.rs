//! The past of a task: records as they are stored, and the events they stand for.
//!
//! A record is written in the same transaction as the change it tells of. It may stand for several events in a row,
//! because most of what happens to a task happens together; a reader never sees the packing.

use std::cmp::Ordering;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::failure::Failure;
use crate::id::{ExecutionId, TaskId};
use crate::reason::Decision;
use crate::task::{State, Task};
use crate::time::Timestamp;
use crate::words::words;

words! {
    /// The kinds of events, by their native names (model §2.5).
    pub enum EventKind {
        ExecutionCreated = 1 "execution.created",
        ExecutionStarted = 2 "execution.started",
        ExecutionSucceeded = 3 "execution.succeeded",
        ExecutionFailed = 4 "execution.failed",
        ExecutionCanceled = 5 "execution.canceled",
        ExecutionPaused = 6 "execution.paused",
        ExecutionResumed = 7 "execution.resumed",
        ExecutionRetryScheduled = 8 "execution.retry_scheduled",
        ExecutionRetryExhausted = 9 "execution.retry_exhausted",
        TaskCreated = 20 "task.created",
        TaskReady = 21 "task.ready",
        TaskClaimed = 22 "task.claimed",
        TaskLeaseExpired = 23 "task.lease_expired",
        AttemptStarted = 24 "attempt.started",
        AttemptSucceeded = 25 "attempt.succeeded",
        AttemptFailed = 26 "attempt.failed",
        TaskRetryScheduled = 27 "task.retry_scheduled",
        TaskThrottled = 28 "task.throttled",
        TaskRetryDue = 29 "task.retry_due",
        TaskRetryExhausted = 30 "task.retry_exhausted",
        TaskFailed = 31 "task.failed",
        TaskSucceeded = 32 "task.succeeded",
        TaskCanceled = 33 "task.canceled",
        TaskPaused = 34 "task.paused",
        TaskResumed = 35 "task.resumed",
        TaskSkipped = 36 "task.skipped",
        TaskStuckRecovered = 37 "task.stuck_recovered",
        TaskManualRetry = 38 "task.manual_retry",
        TaskSnoozed = 39 "task.snoozed",
        TaskReleased = 40 "task.released",
        TaskRescheduled = 41 "task.rescheduled",
        TaskParked = 42 "task.parked",
        TaskExpired = 43 "task.expired",
        TaskLateResult = 44 "task.late_result",
        TaskReopened = 45 "task.reopened",
        TaskRetryUndone = 46 "task.retry_undone",
    }
}

impl EventKind {
    /// One byte per event in a stored row.
    pub fn pack(kinds: &[EventKind]) -> Vec<u8> {
        kinds.iter().map(|kind| u8::try_from(kind.code()).unwrap_or(u8::MAX)).collect()
    }

    /// The kinds of a stored row; `None` if one is unknown.
    pub fn unpack(bytes: &[u8]) -> Option<Vec<EventKind>> {
        bytes.iter().map(|byte| EventKind::from_code(i16::from(*byte))).collect()
    }
}

words! {
    /// How one attempt ended (model I-7).
    pub enum AttemptOutcome {
        Succeeded = 0 "succeeded",
        Failed = 1 "failed",
        Lost = 2 "lost",
        Throttled = 3 "throttled",
        Snoozed = 4 "snoozed",
        Released = 5 "released",
        Canceled = 6 "canceled",
    }
}

/// One row of history.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// The task, or the execution itself for what happens to the whole.
    pub subject: uuid::Uuid,
    /// The execution; `None` for a lone task.
    pub execution: Option<ExecutionId>,
    /// The number of the first event, counted per execution from 1. In a shared log the store gives it at the commit.
    pub seq: u32,
    /// The events, in order.
    pub events: Vec<EventKind>,
    /// How many of them, from the first, were already told when they happened and are only written down here.
    pub carried: u32,
    /// When it happened.
    pub at: Timestamp,
    /// When an event that was carried over happened: ready or retry due, and the start of the attempt.
    pub ready_at: Option<Timestamp>,
    /// When the attempt started.
    pub started_at: Option<Timestamp>,
    /// The cycle.
    pub cycle: u32,
    /// The run.
    pub run: u32,
    /// Retries scheduled in this cycle.
    pub attempt: u32,
    /// The number of the lease.
    pub lease_number: u32,
    /// How the attempt ended.
    pub outcome: Option<AttemptOutcome>,
    /// The worker.
    pub worker: Option<Arc<str>>,
    /// The actor, where a person or a program acted.
    pub actor: Option<String>,
    /// JSON text, passed through as it came.
    pub result: Option<Arc<str>>,
    /// The failure.
    pub failure: Option<Failure>,
    /// The decision.
    pub decision: Option<Decision>,
    /// Further data of the event.
    pub data: Option<Value>,
}

impl Record {
    /// An empty record about a task as it is; the caller adds what happened.
    pub fn about(task: &Task, now: Timestamp) -> Record {
        Record {
            subject: task.id.0,
            execution: task.execution,
            seq: task.seq + 1,
            events: Vec::with_capacity(4),
            carried: 0,
            at: now,
            ready_at: None,
            started_at: None,
            cycle: task.cycle,
            run: task.run,
            attempt: task.counters.attempt,
            lease_number: task.lease_number,
            outcome: None,
            worker: None,
            actor: None,
            result: None,
            failure: None,
            decision: None,
            data: None,
        }
    }

    /// A task is there, and ready if nothing keeps it from being.
    pub fn of_creation(task: &Task, now: Timestamp) -> Record {
        let mut record = Record::about(task, now);
        record.events.push(EventKind::TaskCreated);
        if task.state == State::Pending {
            record.events.push(EventKind::TaskReady);
        }
        record
    }

    /// Something that happened to an execution as a whole.
    pub fn about_execution(execution: ExecutionId, kind: EventKind, now: Timestamp) -> Record {
        Record {
            subject: execution.0,
            execution: Some(execution),
            seq: 0,
            events: vec![kind],
            carried: 0,
            at: now,
            ready_at: None,
            started_at: None,
            cycle: 0,
            run: 0,
            attempt: 0,
            lease_number: 0,
            outcome: None,
            worker: None,
            actor: None,
            result: None,
            failure: None,
            decision: None,
            data: None,
        }
    }

    /// The number of the last event.
    pub fn last_seq(&self) -> u32 {
        self.seq + u32::try_from(self.events.len()).unwrap_or(0).saturating_sub(1)
    }

    /// The events this record stands for, in order.
    pub fn expand(&self) -> Vec<Event> {
        let start = self.events.iter().position(|kind| *kind == EventKind::AttemptStarted);
        let numbered = self.events.iter().zip(self.seq..).enumerate();
        numbered.map(|(i, (kind, seq))| self.event(*kind, seq, start.map(|start| i.cmp(&start)))).collect()
    }

    /// `place`: on which side of the start of the attempt it stands, where this record tells of one.
    fn event(&self, kind: EventKind, seq: u32, place: Option<Ordering>) -> Event {
        let before_start = place == Some(Ordering::Less);
        let of_execution = self.execution.is_some_and(|execution| execution.0 == self.subject);
        let at = match kind {
            // Ready again, after the run that this record ends.
            EventKind::TaskReady if place == Some(Ordering::Greater) => self.at,
            EventKind::TaskReady | EventKind::TaskRetryDue => self.ready_at.unwrap_or(self.at),
            EventKind::AttemptStarted => self.started_at.unwrap_or(self.at),
            _ => self.at,
        };
        // Until its end is told, an attempt has the number it ran under, not the one that the verdict gave.
        let before = self.decision.as_ref().map_or(self.attempt, |decision| decision.before.attempt);
        let attempt = match kind {
            EventKind::TaskReady
            | EventKind::TaskRetryDue
            | EventKind::TaskClaimed
            | EventKind::AttemptStarted
            | EventKind::AttemptFailed => before,
            _ => self.attempt,
        };
        Event {
            kind,
            at,
            execution: self.execution.unwrap_or(ExecutionId(self.subject)),
            task: (!of_execution).then_some(TaskId(self.subject)),
            seq,
            run: if before_start { self.run.saturating_sub(1) } else { self.run },
            attempt,
            data: self.event_data(kind, before),
        }
    }

    fn event_data(&self, kind: EventKind, attempt_before: u32) -> Value {
        let mut data = match kind {
            EventKind::AttemptStarted => json!({
                "attempt_number": attempt_before + 1,
                "is_retry": self.run > 1,
                "worker": self.worker,
            }),
            EventKind::AttemptSucceeded => json!({
                "worker": self.worker,
                "duration_ms": self.started_at.map(|start| self.at.since(start).0),
            }),
            EventKind::AttemptFailed => json!({
                "class": self.decision.as_ref().and_then(|decision| decision.class),
                "trigger": self.failure.as_ref().map(|failure| failure.trigger),
                "error": self.failure.as_ref().map(|failure| failure.message.as_str()),
                "status": self.failure.as_ref().and_then(|failure| failure.status),
                "worker": self.worker,
            }),
            EventKind::TaskRetryScheduled
            | EventKind::ExecutionRetryScheduled
            | EventKind::ExecutionRetryExhausted
            | EventKind::TaskThrottled
            | EventKind::TaskSnoozed
            | EventKind::TaskReleased
            | EventKind::TaskParked
            | EventKind::TaskRetryExhausted
            | EventKind::TaskFailed
            | EventKind::TaskStuckRecovered => self.verdict_data(),
            EventKind::TaskReady | EventKind::TaskRetryDue => return json!({}),
            _ => json!({}),
        };
        // What the actor said belongs to the act, not to the events it merely carried along.
        let carried = matches!(
            kind,
            EventKind::TaskClaimed | EventKind::AttemptStarted | EventKind::AttemptSucceeded | EventKind::AttemptFailed
        );
        if let (Value::Object(into), false) = (&mut data, carried) {
            if let Some(Value::Object(extra)) = &self.data {
                into.extend(extra.iter().map(|(name, value)| (name.clone(), value.clone())));
            }
            if let Some(actor) = &self.actor {
                into.insert("by".into(), actor.as_str().into());
            }
        }
        data
    }

    /// The data of a decision for followers of the log: the numbers after it, and the reason.
    fn verdict_data(&self) -> Value {
        let mut data = Map::new();
        let Some(decision) = &self.decision else { return data.into() };
        data.insert("reason".into(), decision.reason.word().into());
        data.insert("attempt".into(), decision.after.attempt.into());
        data.insert("lost".into(), decision.after.lost.into());
        data.insert("throttled".into(), decision.after.throttled.into());
        data.insert("snoozed".into(), decision.after.snoozed.into());
        if let Some(max) = decision.max_retries {
            data.insert("max".into(), max.into());
        }
        if let Some(delay) = &decision.delay {
            data.insert("delay_ms".into(), delay.total_ms.into());
        }
        if let Some(at) = decision.next_retry_at {
            data.insert("next_retry_at".into(), at.to_rfc3339().into());
        }
        if let (Some(until), Some(by)) = (decision.held_until, &decision.held_by) {
            data.insert("held_until".into(), until.to_rfc3339().into());
            data.insert("held_by".into(), by.as_str().into());
        }
        if let Some(failure) = &self.failure {
            data.insert("last_error".into(), failure.message.as_str().into());
        }
        data.into()
    }
}

impl Task {
    /// Events of this task that are not in its log yet, as the record that would carry them (see `Unwritten`).
    pub fn unwritten_record(&self, now: Timestamp) -> Option<Record> {
        let record = crate::transition::Change::of(self, now).record;
        (!record.events.is_empty()).then_some(record)
    }
}

impl Event {
    /// As it is told to those who follow, without the secrets of calls.
    pub fn told(&self) -> Value {
        let mut data = self.data.clone();
        crate::mask::mask(&mut data);
        json!({
            "type": self.kind.word(),
            "at": self.at.to_rfc3339(),
            "execution_id": self.execution.to_string(),
            "task_id": self.task.map(|id| id.to_string()),
            "seq": self.seq,
            "run": self.run,
            "attempt": self.attempt,
            "data": data,
        })
    }
}

/// One immutable fact.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// The kind.
    pub kind: EventKind,
    /// When it happened.
    pub at: Timestamp,
    /// The execution; of a lone task its implicit one.
    pub execution: ExecutionId,
    /// The task; `None` for events of the whole execution.
    pub task: Option<TaskId>,
    /// Gap-free per execution, from 1.
    pub seq: u32,
    /// The run.
    pub run: u32,
    /// Retries scheduled in this cycle.
    pub attempt: u32,
    /// Data by kind.
    pub data: Value,
}
