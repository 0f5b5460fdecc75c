//! The transition table T1–T29, and the only way to make a change: a value that says from what, to what, and what happened.
//!
//! A `Transition` has no public constructor. What the table does not allow cannot be built, so it cannot be stored.
//!
//! Over 500 lines: the table of all transitions; nothing else can change a task.

use std::sync::Arc;

use serde_json::{Value, json};
use uuid::Uuid;

use crate::event::{AttemptOutcome, EventKind, Record};
use crate::failure::{Class, Failure, Trigger};
use crate::id::ExecutionId;
use crate::reason::{Decision, Reason, Verdict};
use crate::task::idempotency::ActKey;
use crate::task::undo::UndoSnapshot;
use crate::task::{Counters, Executor, Lease, State, Tally, Task, Unwritten};
use crate::time::{Millis, Timestamp};

/// The lines of the table (model §3.1 and A13).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TransitionKind {
    /// A task is created, waiting for its needs.
    T1,
    /// A task is created, ready.
    T2,
    /// Its needs and its time are met: ready.
    T3,
    /// Skipped: an edge or its condition is not met.
    T4,
    /// Failed before it began.
    T5,
    /// Leased.
    T6,
    /// The start call of a hook was answered.
    T7,
    /// A claim ended before anything was sent: ready again.
    T8,
    /// Succeeded.
    T9,
    /// Failed; a retry is scheduled.
    T10,
    /// Rate limited; it waits, uncounted.
    T11,
    /// Failed; not retried.
    T12,
    /// Failed; the retries are used up.
    T13,
    /// A retry is due.
    T14,
    /// The deadline passed while it waited for a retry.
    T15,
    /// Paused.
    T16,
    /// Resumed.
    T17,
    /// Canceled.
    T18,
    /// Retried by hand.
    T19,
    /// The run was lost.
    T20,
    /// Postponed by its worker.
    T22,
    /// Given back by its worker.
    T23,
    /// Rescheduled, or its hold was cleared.
    T24,
    /// Parked for a person.
    T25,
    /// A task is created, waiting for its time.
    T26,
    /// The deadline passed.
    T27,
    /// A late report for a canceled task.
    T28,
    /// A manual retry was undone.
    T29,
    /// The execution it stands for goes on.
    T30,
}

impl TransitionKind {
    /// From which states this line leads to which. T1, T2 and T26 create, T21 says that there is no way, T28 changes nothing.
    /// T29 undoes a T19 that has not started (docs/decisions/0004). T30: the task that stands for an execution takes it up again
    /// after a manual repair (`standing.rs`).
    ///
    /// `paused` stands beside the active states where a run that was under way when its task was paused may still end
    /// (model §3.1, notes); the task then stays paused unless it is over.
    pub fn allows(self, from: State, to: State) -> bool {
        use State::*;
        let (froms, tos): (&[State], &[State]) = match self {
            TransitionKind::T1 | TransitionKind::T2 | TransitionKind::T26 => (&[], &[]),
            TransitionKind::T3 => (&[Waiting], &[Pending]),
            TransitionKind::T4 => (&[Waiting, Paused], &[Skipped]),
            TransitionKind::T5 => (&[Waiting, Paused], &[Failed]),
            TransitionKind::T6 => (&[Pending], &[Claimed, Running]),
            TransitionKind::T7 => (&[Claimed], &[Running]),
            TransitionKind::T8 => (&[Claimed, Paused], &[Pending, Paused]),
            TransitionKind::T9 => (&[Claimed, Running, Paused], &[Succeeded]),
            TransitionKind::T10 | TransitionKind::T11 => (&[Claimed, Running, Paused], &[RetryPending, Paused]),
            TransitionKind::T12 => (&[Claimed, Running, Paused], &[Failed]),
            TransitionKind::T13 => (&[Claimed, Running, Paused], &[Dead]),
            TransitionKind::T14 => (&[RetryPending], &[Pending]),
            TransitionKind::T15 => (&[RetryPending], &[Dead]),
            TransitionKind::T16 => (&[Waiting, Pending, RetryPending, Claimed, Running], &[Paused]),
            TransitionKind::T17 => (&[Paused], &[Waiting, Pending, RetryPending, Claimed, Running]),
            TransitionKind::T18 => (&[Waiting, Pending, RetryPending, Claimed, Running, Paused], &[Canceled]),
            TransitionKind::T19 => (&[Failed, Dead, RetryPending, Claimed, Running], &[Pending, RetryPending]),
            TransitionKind::T20 => (&[Claimed, Running, Paused], &[RetryPending, Dead, Failed, Paused]),
            TransitionKind::T22 => (&[Running, Paused], &[RetryPending, Paused, Dead]),
            TransitionKind::T23 => (&[Running, Paused], &[Pending, Paused]),
            TransitionKind::T24 => (&[Waiting, Pending, RetryPending], &[Waiting, RetryPending]),
            TransitionKind::T25 => (&[Claimed, Running, Paused], &[Paused]),
            TransitionKind::T27 => (&[Waiting, Pending, RetryPending, Claimed, Running, Paused], &[Dead]),
            TransitionKind::T28 => (&[Canceled], &[Canceled]),
            TransitionKind::T29 => (&[Pending, RetryPending], &[Failed, Dead, RetryPending]),
            TransitionKind::T30 => (&[Pending, RetryPending, Failed, Dead, Paused], &[Claimed, Running, Paused]),
        };
        froms.contains(&from) && tos.contains(&to)
    }
}

/// Why something asked for does not happen. An answer, not an accident.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// The reporter's lease is not the live one, or it has run out.
    #[error("the lease is no longer held")]
    LeaseLost,
    /// A canceled task does not change any more.
    #[error("the task was canceled")]
    TaskCanceled,
    /// The time that this would follow from has not come.
    #[error("it is not time for that")]
    NotDue,
    /// Not possible from where the task is.
    #[error("a task that is {state} cannot be {verb}")]
    WrongState {
        /// Where the task is.
        state: State,
        /// The participle of what was asked for.
        verb: &'static str,
    },
}

/// A change, complete: the task after it, and the record that goes into the log with it.
#[derive(Clone, Debug, PartialEq)]
pub struct Transition {
    line: TransitionKind,
    from: State,
    expected_version: u32,
    after: Task,
    record: Record,
}

impl Transition {
    /// The line of the table.
    pub fn line(&self) -> TransitionKind {
        self.line
    }

    /// The state before.
    pub fn from(&self) -> State {
        self.from
    }

    /// The version the task must still have when this is stored.
    pub fn expected_version(&self) -> u32 {
        self.expected_version
    }

    /// The task afterwards.
    pub fn after(&self) -> &Task {
        &self.after
    }

    /// The record for the log.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// The task afterwards and the record.
    pub fn into_parts(self) -> (Task, Record) {
        (self.after, self.record)
    }

    /// Whether this is the end of the task.
    pub fn is_end(&self) -> bool {
        self.after.state.is_terminal()
    }
}

/// A change in the making.
pub(crate) struct Change<'a> {
    pub before: &'a Task,
    pub after: Task,
    pub record: Record,
    pub now: Timestamp,
}

impl<'a> Change<'a> {
    /// Starts from the task as it is. Events that were not written yet come first.
    pub fn of(before: &'a Task, now: Timestamp) -> Change<'a> {
        let now = before.time(now);
        let mut record = Record::about(before, now);
        let carried = before.unwritten;
        record.seq -= carried.count();
        record.carried = carried.count();
        if let Some(at) = carried.ready {
            record.events.push(EventKind::TaskReady);
            record.ready_at = Some(at);
        }
        if let Some(at) = carried.retry_due {
            record.events.push(EventKind::TaskRetryDue);
            record.ready_at = Some(at);
        }
        if carried.started {
            record.events.push(EventKind::AttemptStarted);
        }
        if let Some(lease) = &before.lease {
            record.worker = Some(lease.worker.clone());
            record.started_at = before.started_at.or(Some(lease.acquired_at));
        }
        let mut after = before.clone();
        after.unwritten = Default::default();
        Change { before, after, record, now }
    }

    pub fn event(&mut self, kind: EventKind) {
        self.record.events.push(kind);
    }

    /// Adds the event of the executions that the task stands for (E9), beside that of the task.
    pub fn event_of_executions(&mut self, kind: EventKind) {
        if self.before.stands_for_executions() {
            self.event(kind);
        }
    }

    pub fn data(&mut self, data: Value) {
        match (&mut self.record.data, data) {
            (Some(Value::Object(known)), Value::Object(more)) => known.extend(more),
            (known, data) => *known = Some(data),
        }
    }

    /// The present attempt is over. One that was claimed and never seen running counts as started when it was claimed.
    pub fn end_attempt(&mut self, outcome: AttemptOutcome) {
        if self.is_claimed() {
            self.after.run += 1;
            self.record.run = self.after.run;
            self.event(EventKind::AttemptStarted);
        }
        self.record.outcome = Some(outcome);
        // What was counted so far is told with each attempt, whether the next one goes on from there or not (X1-5).
        if self.before.tally != Tally::default() {
            self.data(json!({"counted": self.before.tally}));
        }
        self.release_lease();
    }

    /// A verdict without a run of its own is kept as one with a run is (model A6): with its reason, and with what was wrong.
    fn decide(&mut self, verdict: Verdict, reason: Reason, failure: Option<Failure>) {
        let decision = Decision::without_policy(verdict, reason, self.before.counters, self.now);
        let class = failure.as_ref().and_then(|failure| failure.class);
        let trigger = failure.as_ref().map(|failure| failure.trigger);
        self.record.decision = Some(Decision { class, trigger, ..decision });
        self.record.failure = failure;
    }

    pub fn release_lease(&mut self) {
        self.after.lease = None;
        self.after.timeout_at = None;
        self.after.started_at = None;
    }

    fn is_claimed(&self) -> bool {
        let state = self.before.paused_from.unwrap_or(self.before.state);
        state == State::Claimed
    }

    /// Moves to `to`, or stays paused where the task was paused while its run was under way.
    pub fn finish_unless_paused(mut self, line: TransitionKind, to: State) -> Result<Transition, Rejection> {
        // Who waits for a retry has been started, until the retry is due (T14).
        if to == State::RetryPending {
            self.after.started_at = self.record.started_at;
        }
        if self.before.state == State::Paused {
            self.after.paused_from = Some(to);
            return self.finish(line, State::Paused, "moved");
        }
        self.finish(line, to, "moved")
    }

    pub fn end(mut self, line: TransitionKind, to: State, reason: Reason) -> Result<Transition, Rejection> {
        self.release_lease();
        self.after.next_retry_at = None;
        self.after.hold = None;
        self.after.paused_from = None;
        self.after.parked = false;
        self.after.reason = Some(reason);
        self.after.started_at = self.record.started_at.or(self.before.started_at);
        self.after.ended_at = Some(self.now);
        self.finish(line, to, "ended")
    }

    pub fn finish(mut self, line: TransitionKind, to: State, verb: &'static str) -> Result<Transition, Rejection> {
        if !line.allows(self.before.state, to) {
            return Err(Rejection::WrongState { state: self.before.state, verb });
        }
        self.after.state = to;
        self.after.version = self.before.version + 1;
        self.after.seq = self.record.last_seq().max(self.before.seq);
        self.after.updated_at = self.now;
        debug_assert_eq!(self.after.broken_invariant(), None, "{line:?} from {:?}", self.before);
        Ok(Transition {
            line,
            from: self.before.state,
            expected_version: self.before.version,
            after: self.after,
            record: self.record,
        })
    }

    pub fn new_cycle(&mut self, keep_counters: bool) {
        self.after.cycle += 1;
        self.after.first_failed_at = None;
        self.after.rule_counts.clear();
        if !keep_counters {
            self.after.counters = Counters::default();
        }
        self.renew_deadline();
        self.record.cycle = self.after.cycle;
        self.record.attempt = self.after.counters.attempt;
    }

    /// A deadline that has passed would end the new beginning at once: it gets the span it had at first.
    fn renew_deadline(&mut self) {
        if let Some(expires_at) = self.after.expires_at
            && expires_at <= self.now
        {
            let span = self.before.lifetime.unwrap_or_else(|| expires_at.since(self.before.submitted_at));
            self.after.expires_at = Some(self.now + span);
            self.after.lifetime = Some(span);
        }
    }
}

/// The actor of a manual change, and a note.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Actor {
    /// The actor.
    pub by: Option<String>,
    /// A note for the log.
    pub note: Option<String>,
    /// The name of the API key they came with, or its id where it has no name.
    pub key: Option<String>,
    /// The id of that key.
    pub key_id: Option<String>,
    /// The name of the request that asked for it.
    pub request: Option<String>,
    /// The bulk operation that it is a part of.
    pub operation: Option<Uuid>,
    /// The idempotency key of the request.
    pub once: Option<Arc<ActKey>>,
}

impl Actor {
    /// The note, as the data of an event that has none of its own.
    pub fn said(&self) -> Option<Value> {
        self.note.as_ref().map(|note| json!({"note": note}))
    }

    fn mark(&self, change: &mut Change<'_>, data: Value) {
        change.record.actor.clone_from(&self.by);
        let mut data = data;
        if let (Value::Object(fields), Some(note)) = (&mut data, &self.note) {
            fields.insert("note".into(), note.as_str().into());
        }
        if let (Value::Object(fields), Some(operation)) = (&mut data, self.operation) {
            fields.insert("operation".into(), operation.to_string().into());
        }
        change.data(data);
    }
}

/// A task after a step that needs no verdict, with the record that must be written at once, if any.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The task afterwards.
    pub after: Task,
    /// The record to write at once.
    pub record: Option<Record>,
}

/// T6: a lease is granted. A hook is claimed until its start call is answered; everything else starts with the lease (A1).
pub fn lease(task: &Task, worker: impl Into<Arc<str>>, span: Millis, now: Timestamp) -> Result<Step, Rejection> {
    let now = task.time(now);
    let to = if task.lane.executor.is_claimed_first() { State::Claimed } else { State::Running };
    let over = task.expires_at.is_some_and(|at| at <= now);
    if !TransitionKind::T6.allows(task.state, to) || task.execution_paused || over {
        return Err(Rejection::WrongState { state: task.state, verb: "leased" });
    }
    let mut step = Step::of(task, to, now);
    step.after.lease_number += 1;
    step.after.lease = Some(Lease {
        number: step.after.lease_number,
        worker: worker.into(),
        acquired_at: now,
        expires_at: Some(now + span),
    });
    if to == State::Running {
        step.after.run += 1;
        step.after.started_at = Some(now);
        step.after.timeout_at = run_limit(&step.after, now);
        step.tell(EventKind::AttemptStarted, |unwritten| unwritten.started = true);
    } else {
        step.tell(EventKind::TaskClaimed, |_| ());
    }
    Ok(step)
}

impl Step {
    /// Lone tasks that workers lease carry small events to their next record; everything else writes them at once.
    fn of(task: &Task, to: State, now: Timestamp) -> Step {
        let mut after = task.clone();
        after.state = to;
        after.version += 1;
        after.updated_at = now;
        let record = task.lane.writes_each_step().then(|| Change::of(task, now).record);
        if record.is_some() {
            after.unwritten = Unwritten::default();
        }
        Step { after, record }
    }

    fn tell(&mut self, kind: EventKind, carry: impl FnOnce(&mut Unwritten)) {
        self.after.seq += 1;
        match &mut self.record {
            None => carry(&mut self.after.unwritten),
            Some(record) => {
                record.events.push(kind);
                record.run = self.after.run;
                record.lease_number = self.after.lease_number;
                record.worker = self.after.lease.as_ref().map(|lease| lease.worker.clone());
                record.started_at = self.after.started_at;
            }
        }
    }
}

/// When the present run is over: after its inactivity limit or its absolute one, whichever is first. A pause stops the
/// first and not the second (model A14).
pub fn run_limit(task: &Task, now: Timestamp) -> Option<Timestamp> {
    let idle = task.timeout.filter(|_| task.state != State::Paused).map(|span| now + span);
    idle.into_iter().chain(attempt_limit(task)).min()
}

fn attempt_limit(task: &Task) -> Option<Timestamp> {
    task.attempt_deadline.zip(task.started_at).map(|(span, start)| start + span)
}

/// T3 and T26: needs and time are met, it may be leased.
pub fn ready(task: &Task, now: Timestamp) -> Result<Transition, Rejection> {
    let now = task.time(now);
    let mut change = Change::of(task, now);
    change.after.start_at = None;
    change.after.gated = false;
    change.record.ready_at = Some(now);
    change.event(EventKind::TaskReady);
    change.finish(TransitionKind::T3, State::Pending, "made ready")
}

/// T4: an edge can no longer be met, and the task is not worth a failure.
pub fn skip(task: &Task, now: Timestamp) -> Result<Transition, Rejection> {
    unmet(task, now, Reason::UpstreamUnmet)
}

/// T4: its own condition says no.
pub fn skip_by_condition(task: &Task, now: Timestamp) -> Result<Transition, Rejection> {
    unmet(task, now, Reason::Condition)
}

/// How much is kept of what could not be worked out, in letters.
const MOST_TOLD: usize = 4_096;

/// T5: what stands at its gate could not be worked out.
pub fn fail_at_gate(task: &Task, message: &str, now: Timestamp) -> Result<Transition, Rejection> {
    let mut change = given_up(task, now, EventKind::TaskFailed)?;
    change.data(json!({"reason": Reason::Expression.word(), "message": message}));
    let short: String = message.chars().take(MOST_TOLD).collect();
    let failure = Failure { error_type: Some("template".into()), ..Failure::new(Trigger::Error, short) };
    change.after.class = Some(Class::Final);
    change.decide(Verdict::Refuse, Reason::Expression, Some(Failure { class: Some(Class::Final), ..failure }));
    change.end(TransitionKind::T5, State::Failed, Reason::Expression)
}

/// T5: an edge can no longer be met, and the task fails with it, because of this.
pub fn fail_upstream(task: &Task, because: Failure, now: Timestamp) -> Result<Transition, Rejection> {
    let mut change = given_up(task, now, EventKind::TaskFailed)?;
    change.data(json!({"reason": Reason::UpstreamFailed.word()}));
    change.decide(Verdict::Refuse, Reason::UpstreamFailed, Some(because));
    change.end(TransitionKind::T5, State::Failed, Reason::UpstreamFailed)
}

fn unmet(task: &Task, now: Timestamp, reason: Reason) -> Result<Transition, Rejection> {
    let mut change = given_up(task, now, EventKind::TaskSkipped)?;
    change.data(json!({"reason": reason.word()}));
    change.end(TransitionKind::T4, State::Skipped, reason)
}

fn given_up(task: &Task, now: Timestamp, event: EventKind) -> Result<Change<'_>, Rejection> {
    if task.paused_from.unwrap_or(task.state) != State::Waiting {
        return Err(Rejection::WrongState { state: task.state, verb: "given up before it began" });
    }
    let mut change = Change::of(task, now);
    change.event(event);
    Ok(change)
}

/// The start call is about to be made: from here on a loss may have had effects (X1-10).
pub fn hook_sending(task: &Task, now: Timestamp) -> Result<Task, Rejection> {
    let now = task.time(now);
    if task.state != State::Claimed {
        return Err(Rejection::WrongState { state: task.state, verb: "started" });
    }
    let mut after = task.clone();
    after.version += 1;
    after.started_at = Some(now);
    after.updated_at = now;
    Ok(after)
}

/// T7: the start call was answered. Without a timeout of its own the run is bounded by `stuck_after`; what waits for an
/// execution is bounded by that.
pub fn hook_started(task: &Task, stuck_after: Millis, now: Timestamp) -> Result<Transition, Rejection> {
    let now = task.time(now);
    let mut change = Change::of(task, now);
    change.after.run += 1;
    change.after.started_at = Some(now);
    change.after.timeout_at = run_limit(&change.after, now);
    let bounded = change.after.timeout_at.is_some() || task.lane.executor == Executor::Flow;
    if let Some(lease) = &mut change.after.lease {
        lease.expires_at = (!bounded).then_some(now + stuck_after);
    }
    change.record.run = change.after.run;
    change.record.started_at = Some(now);
    change.event(EventKind::AttemptStarted);
    change.finish(TransitionKind::T7, State::Running, "started")
}

/// T14: a retry has become due. Also what a waiting start does when its time has come (T26). What is past its deadline is
/// over, not due (X0-8).
pub fn promote(task: &Task, now: Timestamp) -> Result<Step, Rejection> {
    let now = task.time(now);
    let to_pending =
        TransitionKind::T14.allows(task.state, State::Pending) || TransitionKind::T3.allows(task.state, State::Pending);
    let over = task.expires_at.is_some_and(|at| at <= now);
    if !to_pending || task.execution_paused || over || task.due().is_none_or(|due| due > now) {
        return Err(Rejection::WrongState { state: task.state, verb: "promoted" });
    }
    let mut step = Step::of(task, State::Pending, now);
    step.after.next_retry_at = None;
    step.after.start_at = None;
    step.after.started_at = None;
    step.after.hold = None;
    if task.state == State::RetryPending {
        step.tell(EventKind::TaskRetryDue, |unwritten| unwritten.retry_due = Some(now));
    } else {
        step.tell(EventKind::TaskReady, |unwritten| unwritten.ready = Some(now));
    }
    Ok(step)
}

/// T15 and T27: the deadline has passed. A run that is under way may end unless its policy is hard about it;
/// a paused task is told when it is resumed.
pub fn expire(task: &Task, hard: bool, now: Timestamp) -> Result<Transition, Rejection> {
    let now = task.time(now);
    if task.expires_at.is_none_or(|at| at > now) {
        return Err(Rejection::NotDue);
    }
    if task.state == State::Paused || (task.state.is_active() && !hard) {
        return Err(Rejection::WrongState { state: task.state, verb: "expired" });
    }
    expire_now(task, now)
}

fn expire_now(task: &Task, now: Timestamp) -> Result<Transition, Rejection> {
    let mut change = Change::of(task, now);
    if task.state.is_active() {
        change.end_attempt(AttemptOutcome::Canceled);
    }
    change.data(json!({"reason": Reason::Expired.word()}));
    // The last error stays what it was, where there was one.
    let failure = task.class.is_none().then(|| {
        let how = if task.run == 0 { "passed before it was started" } else { "has passed" };
        let at = task.expires_at.unwrap_or(now).to_rfc3339();
        let failure = Failure::new(Trigger::Timeout, format!("its deadline {at} {how}"));
        Failure { error_type: Some("deadline".into()), ..failure }
    });
    change.decide(Verdict::Exhaust, Reason::Expired, failure);
    let line = if task.state == State::RetryPending { TransitionKind::T15 } else { TransitionKind::T27 };
    change.event(if line == TransitionKind::T15 { EventKind::TaskRetryExhausted } else { EventKind::TaskExpired });
    change.event(EventKind::TaskFailed);
    if line == TransitionKind::T15 {
        change.event_of_executions(EventKind::ExecutionRetryExhausted);
    }
    change.end(line, State::Dead, Reason::Expired)
}

/// T16: it stays where it is until somebody resumes it. A run under way keeps its lease and may still end.
pub fn pause(task: &Task, act: &Actor, now: Timestamp) -> Result<Transition, Rejection> {
    let mut change = Change::of(task, now);
    change.after.paused_from = Some(task.state);
    change.after.timeout_at = task.timeout_at.and_then(|_| attempt_limit(task));
    change.event(EventKind::TaskPaused);
    act.mark(&mut change, json!({"from": task.state.word()}));
    change.finish(TransitionKind::T16, State::Paused, "paused")
}

/// T17: back to where it was. A parked task starts a new cycle; one whose deadline has passed meanwhile is over.
pub fn resume(task: &Task, act: &Actor, now: Timestamp) -> Result<Transition, Rejection> {
    let now = task.time(now);
    let Some(from) = task.paused_from else {
        return Err(Rejection::WrongState { state: task.state, verb: "resumed" });
    };
    if task.expires_at.is_some_and(|at| at <= now) && !from.is_active() && !task.parked {
        return expire_now(task, now);
    }
    let mut change = Change::of(task, now);
    let waits = |task: &Task| task.needs_left > 0 || task.gated || task.start_at.is_some_and(|at| at > now);
    let to = match from {
        State::Waiting if !waits(task) => State::Pending,
        State::Claimed | State::Running if task.lease.is_none() => State::Pending,
        other => other,
    };
    change.after.paused_from = None;
    if task.parked {
        change.after.parked = false;
        change.after.reason = None;
        change.new_cycle(false);
    }
    if to == State::Running {
        change.after.state = to;
        change.after.timeout_at = run_limit(&change.after, now);
    }
    change.event(EventKind::TaskResumed);
    let cycle = change.after.cycle;
    let mut data = json!({"to": to.word(), "cycle": cycle});
    if let (Some(at), Value::Object(fields)) = (change.after.next_retry_at, &mut data) {
        fields.insert("next_retry_at".into(), at.to_rfc3339().into());
    }
    act.mark(&mut change, data);
    if to == State::Pending {
        change.after.start_at = None;
        change.record.ready_at = Some(now);
        change.event(EventKind::TaskReady);
    }
    change.finish(TransitionKind::T17, to, "resumed")
}

/// T18: definitive. A pending retry is dropped, a run under way loses its lease.
pub fn cancel(task: &Task, reason: Reason, act: &Actor, now: Timestamp) -> Result<Transition, Rejection> {
    let mut change = Change::of(task, now);
    if task.paused_from.unwrap_or(task.state).is_active() && task.lease.is_some() {
        change.end_attempt(AttemptOutcome::Canceled);
    }
    change.event(EventKind::TaskCanceled);
    act.mark(&mut change, json!({"reason": reason.word(), "from": task.state.word()}));
    change.end(TransitionKind::T18, State::Canceled, reason)
}

/// How a task is to be tried again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetryOptions {
    /// Goes on counting where the last cycle stopped.
    pub keep_counters: bool,
    /// Of the payload that was edited for it.
    pub payload_version: Option<u32>,
    /// Not before then.
    pub at: Option<Timestamp>,
}

/// T19: a person asks for another try. A scheduled retry is superseded, a stuck run is given up.
pub fn manual_retry(task: &Task, keep_counters: bool, act: &Actor, now: Timestamp) -> Result<Transition, Rejection> {
    manual_retry_with(task, RetryOptions { keep_counters, ..RetryOptions::default() }, act, now)
}

/// The same in detail. One whose time is still to come waits for it as any retry does.
pub fn manual_retry_with(
    task: &Task,
    again: RetryOptions,
    act: &Actor,
    now: Timestamp,
) -> Result<Transition, Rejection> {
    let now = task.time(now);
    if task.state.is_active() && !is_stuck(task, now) {
        return Err(Rejection::WrongState { state: task.state, verb: "retried" });
    }
    let mut change = Change::of(task, now);
    if task.state.is_active() {
        change.end_attempt(AttemptOutcome::Lost);
    }
    let later = again.at.filter(|at| *at > now);
    change.new_cycle(again.keep_counters);
    change.after.start_at = None;
    change.after.next_retry_at = later;
    change.after.hold = None;
    change.after.reason = None;
    // The error is in the history; the new cycle has none yet (F2-8).
    change.after.class = None;
    change.after.fingerprint = None;
    change.after.ended_at = None;
    change.after.started_at = None;
    change.event(EventKind::TaskManualRetry);
    if later.is_none() {
        // When the run that is given up was ready stays told as it was.
        change.record.ready_at = change.record.ready_at.or(Some(now));
        change.event(EventKind::TaskReady);
    }
    let cycle = change.after.cycle;
    let mut data = json!({"cycle": cycle, "from": task.state.word(), "keep_counters": again.keep_counters});
    if let Value::Object(fields) = &mut data {
        fields.extend(again.payload_version.map(|version| ("payload_version".to_owned(), version.into())));
        fields.extend(later.map(|at| ("next_retry_at".to_owned(), at.to_rfc3339().into())));
    }
    act.mark(&mut change, data);
    change.finish(TransitionKind::T19, if later.is_some() { State::RetryPending } else { State::Pending }, "retried")
}

/// T30: a person mends the execution that the last run of this task failed with, or has it begun anew. The retry that was
/// to come is superseded: the task begins a new cycle and waits for `execution` again, in its next run. Where that one is still
/// `to_begin` the task is claimed for it, as any that begins an execution.
///
/// `stands` in `standing.rs` says when.
pub fn take_up(
    task: &Task,
    execution: ExecutionId,
    to_begin: Option<Millis>,
    worker: &Arc<str>,
    act: &Actor,
    now: Timestamp,
) -> Result<Transition, Rejection> {
    let now = task.time(now);
    let mut change = Change::of(task, now);
    change.new_cycle(false);
    // Who paused it said when it may begin; what is mended has begun already.
    let stays_paused = task.state == State::Paused && !task.parked && to_begin.is_none();
    let after = &mut change.after;
    (after.start_at, after.next_retry_at, after.hold) = (None, None, None);
    (after.reason, after.class, after.fingerprint) = (None, None, None);
    (after.started_at, after.ended_at, after.paused_from, after.parked) = (None, None, None, false);
    after.lease_number += 1;
    let expires_at = to_begin.map(|span| now + span);
    after.lease = Some(Lease { number: after.lease_number, worker: worker.clone(), acquired_at: now, expires_at });
    after.state = if to_begin.is_some() { State::Claimed } else { State::Running };
    if to_begin.is_none() {
        after.run += 1;
        after.started_at = Some(now);
        after.timeout_at = run_limit(after, now);
    }
    change.record.run = change.after.run;
    change.record.lease_number = change.after.lease_number;
    change.record.worker = Some(worker.clone());
    change.record.started_at = change.after.started_at;
    change.record.ready_at = change.record.ready_at.or(Some(now));
    change.event(EventKind::TaskManualRetry);
    change.event(EventKind::TaskReady);
    change.event(EventKind::TaskClaimed);
    if to_begin.is_none() {
        change.event(EventKind::AttemptStarted);
    }
    let (cycle, from) = (change.after.cycle, task.state.word());
    act.mark(&mut change, json!({"cycle": cycle, "from": from, "mended": execution.to_string()}));
    if stays_paused {
        change.event(EventKind::TaskPaused);
        change.after.paused_from = Some(change.after.state);
        change.after.timeout_at = attempt_limit(&change.after);
        return change.finish(TransitionKind::T30, State::Paused, "taken up");
    }
    let to = change.after.state;
    change.finish(TransitionKind::T30, to, "taken up")
}

/// T29: a retry by hand that has not started is taken back, and the task is what it was before.
pub fn undo_retry(task: &Task, was: &UndoSnapshot, act: &Actor, now: Timestamp) -> Result<Transition, Rejection> {
    if !was.may_come_back(task) {
        return Err(Rejection::WrongState { state: task.state, verb: "put back" });
    }
    let mut change = Change::of(task, now);
    was.restore(&mut change.after);
    change.record.cycle = was.cycle;
    change.record.attempt = was.counters.attempt;
    change.event(EventKind::TaskRetryUndone);
    let counters = was.counters;
    let mut data = json!({
        "to": was.state.word(), "cycle": was.cycle, "attempt": counters.attempt, "lost": counters.lost,
        "throttled": counters.throttled, "snoozed": counters.snoozed,
    });
    if let Value::Object(fields) = &mut data {
        fields.extend(was.reason.map(|reason| ("reason".to_owned(), reason.word().into())));
        fields.extend(was.next_retry_at.map(|at| ("next_retry_at".to_owned(), at.to_rfc3339().into())));
    }
    act.mark(&mut change, data);
    change.finish(TransitionKind::T29, was.state, "put back")
}

/// E7: a task of an execution that goes on waits for its needs again, with a new cycle where its own was used up.
pub fn reopen(task: &Task, new_cycle: bool, act: &Actor, now: Timestamp) -> Step {
    let mut change = Change::of(task, now);
    if new_cycle {
        change.new_cycle(false);
        change.after.class = None;
        change.after.fingerprint = None;
    }
    change.renew_deadline();
    let after = &mut change.after;
    after.state = State::Waiting;
    after.reason = None;
    after.ended_at = None;
    after.started_at = None;
    after.updated_at = change.now;
    change.event(EventKind::TaskReopened);
    let cycle = change.after.cycle;
    act.mark(&mut change, json!({"cycle": cycle}));
    Step { after: change.after, record: Some(change.record) }
}

/// Active, but nobody can be behind it any more.
pub fn is_stuck(task: &Task, now: Timestamp) -> bool {
    task.state.is_active() && task.lease.as_ref().is_some_and(|lease| lease.expires_at.is_some_and(|at| at <= now))
}

/// T24: an operator moves the due time. No counter changes.
pub fn reschedule(task: &Task, to: Timestamp, act: &Actor, now: Timestamp) -> Result<Transition, Rejection> {
    let now = task.time(now);
    let mut change = Change::of(task, now);
    let at = to.max(now);
    let state = if task.state == State::Waiting && task.needs_left == 0 {
        change.after.start_at = Some(at);
        State::Waiting
    } else {
        change.after.next_retry_at = Some(at);
        State::RetryPending
    };
    if task.state == State::Waiting && (task.needs_left > 0 || task.gated) {
        return Err(Rejection::WrongState { state: task.state, verb: "rescheduled" });
    }
    change.event(EventKind::TaskRescheduled);
    act.mark(&mut change, json!({"to": state.word(), "next_retry_at": at.to_rfc3339()}));
    change.finish(TransitionKind::T24, state, "rescheduled")
}

/// T24: nothing holds a retry any more; its own time stands.
pub fn let_go(task: &Task, act: &Actor, now: Timestamp) -> Result<Transition, Rejection> {
    let Some(at) = task.next_retry_at.filter(|_| task.state == State::RetryPending && task.hold.is_some()) else {
        return Err(Rejection::NotDue);
    };
    let mut change = Change::of(task, task.time(now));
    change.after.hold = None;
    change.event(EventKind::TaskRescheduled);
    act.mark(&mut change, json!({"to": State::RetryPending.word(), "next_retry_at": at.to_rfc3339()}));
    change.finish(TransitionKind::T24, State::RetryPending, "let go")
}

/// T28: a report for a canceled task changes nothing, and is remembered.
pub fn late_result(
    task: &Task,
    lease_number: u32,
    what: AttemptOutcome,
    now: Timestamp,
) -> Result<Transition, Rejection> {
    let mut change = Change::of(task, now);
    change.event(EventKind::TaskLateResult);
    change.data(json!({"outcome": what.word(), "lease": lease_number}));
    change.finish(TransitionKind::T28, State::Canceled, "reported")
}
