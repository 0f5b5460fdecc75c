//! The present, from the past: folding a task's events gives the state it is in (model A9, I-12).

use serde_json::Value;

use crate::event::{Event, EventKind};
use crate::task::{Counters, State, Task};
use crate::time::Timestamp;

/// The state of a task according to its log.
#[derive(Clone, Debug, PartialEq)]
pub struct Replayed {
    /// The state.
    pub state: State,
    /// The counters.
    pub counters: Counters,
    /// The cycle.
    pub cycle: u32,
    /// The run.
    pub run: u32,
    /// When its retry is due.
    pub next_retry_at: Option<Timestamp>,
    /// The state it was paused in.
    pub paused_from: Option<State>,
    /// The number of the last event.
    pub last_seq: u32,
}

/// Where a log contradicts itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    /// The first event is missing.
    #[error("the log does not begin with task.created")]
    NoBeginning,
    /// Events are missing.
    #[error("event {seq} follows event {after}")]
    Gap {
        /// The number of the event before the gap.
        after: u32,
        /// The number of the event behind the gap.
        seq: u32,
    },
    /// An event is not possible in that state.
    #[error("event {seq} ({kind}) cannot happen to a task that is {state}")]
    Impossible {
        /// The number of the event.
        seq: u32,
        /// The event.
        kind: EventKind,
        /// The state before it.
        state: State,
    },
}

impl Replayed {
    /// The state of a stored task, to compare.
    pub fn of(task: &Task) -> Replayed {
        Replayed {
            state: task.state,
            counters: task.counters,
            cycle: task.cycle,
            run: task.run,
            next_retry_at: task.next_retry_at,
            paused_from: task.paused_from,
            last_seq: task.seq,
        }
    }
}

/// Folds the events of one lone task; `dense` demands that they are numbered without a gap.
pub fn replay<'a>(events: impl IntoIterator<Item = &'a Event>, dense: bool) -> Result<Replayed, ReplayError> {
    let mut events = events.into_iter();
    let first = events.next().filter(|event| event.kind == EventKind::TaskCreated).ok_or(ReplayError::NoBeginning)?;
    let mut now = Replayed {
        state: State::Waiting,
        counters: Counters::default(),
        cycle: 0,
        run: 0,
        next_retry_at: None,
        paused_from: None,
        last_seq: first.seq,
    };
    for event in events {
        if dense && event.seq != now.last_seq + 1 {
            return Err(ReplayError::Gap { after: now.last_seq, seq: event.seq });
        }
        now.last_seq = event.seq;
        now.fold(event)?;
    }
    Ok(now)
}

impl Replayed {
    fn fold(&mut self, event: &Event) -> Result<(), ReplayError> {
        use EventKind::*;
        let wrong = ReplayError::Impossible { seq: event.seq, kind: event.kind, state: self.state };
        let active = |it: &Replayed| it.paused_from.unwrap_or(it.state).is_active();
        match event.kind {
            TaskReady => self.enter(State::Pending),
            TaskRetryDue if self.state == State::RetryPending => self.enter(State::Pending),
            TaskClaimed if self.state == State::Pending => self.enter(State::Claimed),
            AttemptStarted => match self.state {
                State::Pending | State::Claimed => {
                    self.run = event.run;
                    self.enter(State::Running);
                }
                State::Paused if self.paused_from == Some(State::Claimed) => {
                    self.run = event.run;
                    self.paused_from = Some(State::Running);
                }
                _ => return Err(wrong),
            },
            AttemptSucceeded | AttemptFailed | TaskStuckRecovered if active(self) => {}
            TaskRetryScheduled | TaskThrottled | TaskSnoozed if active(self) => {
                self.count(&event.data);
                self.next_retry_at = instant(&event.data, "next_retry_at");
                self.enter_unless_paused(State::RetryPending);
            }
            TaskReleased | TaskLeaseExpired if active(self) => self.enter_unless_paused(State::Pending),
            TaskParked if active(self) => {
                self.count(&event.data);
                self.enter(State::Paused);
                self.paused_from = Some(State::Pending);
            }
            TaskRetryExhausted | TaskExpired if self.state.is_open() => {
                self.count(&event.data);
                self.enter(State::Dead);
            }
            // What it means for the executions that it stands for.
            ExecutionRetryScheduled | ExecutionRetryExhausted => {}
            TaskFailed if self.state == State::Dead => {}
            TaskFailed if self.state.is_open() => {
                self.count(&event.data);
                self.enter(State::Failed);
            }
            TaskSucceeded if active(self) => self.enter(State::Succeeded),
            TaskCanceled if self.state.is_open() => self.enter(State::Canceled),
            TaskSkipped if self.state.is_open() => self.enter(State::Skipped),
            TaskPaused if self.state.is_open() => {
                self.paused_from = Some(self.state);
                self.state = State::Paused;
            }
            TaskResumed if self.state == State::Paused => {
                let to = word(&event.data, "to").and_then(State::from_word).unwrap_or(State::Pending);
                self.paused_from = None;
                self.state = to;
                self.next_retry_at = instant(&event.data, "next_retry_at");
                self.start_cycle(&event.data, false);
            }
            TaskManualRetry => {
                let keep = event.data.get("keep_counters").and_then(Value::as_bool).unwrap_or(false);
                self.start_cycle(&event.data, keep);
                let later = instant(&event.data, "next_retry_at");
                self.enter(if later.is_some() { State::RetryPending } else { State::Pending });
                self.next_retry_at = later;
            }
            TaskRetryUndone if matches!(self.state, State::Pending | State::RetryPending) => {
                self.start_cycle(&event.data, true);
                self.count(&event.data);
                self.enter(word(&event.data, "to").and_then(State::from_word).ok_or(wrong)?);
                self.next_retry_at = instant(&event.data, "next_retry_at");
            }
            TaskRescheduled if self.state.is_open() => {
                let to = word(&event.data, "to").and_then(State::from_word).unwrap_or(State::RetryPending);
                self.enter(to);
                self.next_retry_at = instant(&event.data, "next_retry_at").filter(|_| to == State::RetryPending);
            }
            TaskReopened if self.state.is_terminal() => {
                self.start_cycle(&event.data, false);
                self.enter(State::Waiting);
            }
            TaskLateResult if self.state == State::Canceled => {}
            _ => return Err(wrong),
        }
        Ok(())
    }

    fn enter(&mut self, state: State) {
        self.state = state;
        self.paused_from = None;
        if state != State::RetryPending {
            self.next_retry_at = None;
        }
    }

    fn enter_unless_paused(&mut self, state: State) {
        if self.state == State::Paused {
            self.paused_from = Some(state);
        } else {
            self.enter(state);
        }
    }

    fn start_cycle(&mut self, data: &Value, keep_counters: bool) {
        let cycle = number(data, "cycle").unwrap_or(self.cycle);
        if cycle != self.cycle && !keep_counters {
            self.counters = Counters::default();
        }
        self.cycle = cycle;
    }

    fn count(&mut self, data: &Value) {
        let take = |name: &str, counter: &mut u32| {
            if let Some(value) = number(data, name) {
                *counter = value;
            }
        };
        take("attempt", &mut self.counters.attempt);
        take("lost", &mut self.counters.lost);
        take("throttled", &mut self.counters.throttled);
        take("snoozed", &mut self.counters.snoozed);
    }
}

fn number(data: &Value, name: &str) -> Option<u32> {
    data.get(name)?.as_u64().and_then(|value| u32::try_from(value).ok())
}

fn word<'a>(data: &'a Value, name: &str) -> Option<&'a str> {
    data.get(name)?.as_str()
}

fn instant(data: &Value, name: &str) -> Option<Timestamp> {
    Timestamp::parse_rfc3339(word(data, name)?).ok()
}
