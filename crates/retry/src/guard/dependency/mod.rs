//! Dependencies: the outside things that tasks need (model A5), and what holds tasks back while one of them is in trouble.
//!
//! A *gate* is set by whoever hears a `Retry-After` and holds everybody. A *breaker* opens when most of what is tried fails, lets a
//! few canaries through on its own schedule, and lets the others follow in waves that double, oldest first. A *budget* spreads
//! retries out when they become too many beside first attempts. *Concurrency* shrinks on errors and slow answers and grows back. A
//! *calendar* closes at times that are known beforehand. None of them costs an attempt, and none of them refuses.
//!
//! All of it is a function of the settings, of what was seen, and of the time: `Standing` is what is remembered in between.

mod breaker;
mod budget;
mod calendar;
mod concurrency;
mod gate;
mod settings;
mod standing;
#[cfg(test)]
mod storm;
#[cfg(test)]
mod tests;

use std::fmt;

use crate::event::{AttemptOutcome, Record};
use crate::failure::Class;
use crate::task::{Hold, Task};
use crate::time::{Millis, Timestamp};

pub use breaker::Phase;
pub use budget::Slots;
pub use calendar::{Maintenance, extended, stopped};
pub use settings::{Breaker, Calendar, Concurrency, GateSettings, RetryBudget, Settings};
pub use standing::{Change, Seen, Standing, Told, Window};

/// How one run ended, as far as its dependency is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// When the run started.
    pub started_at: Timestamp,
    /// When it ended.
    pub at: Timestamp,
    /// How it ended.
    pub how: How,
    /// Whether it was a retry.
    pub is_retry: bool,
    /// When the other side wants us back.
    pub not_before: Option<Timestamp>,
    /// How long it might have taken.
    pub allowed: Option<Millis>,
}

/// The end of a run, from the dependency's side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// It answered, be it with an error that is the caller's own fault.
    Answered,
    /// It did not answer, or said that it cannot.
    Failed,
    /// It asked for patience.
    Throttled,
}

impl Ended {
    /// How a run ended, as far as what it needed is concerned; nothing where that says nothing of it.
    pub fn of(task: &Task, record: &Record) -> Option<Ended> {
        let started_at = record.started_at.or(task.started_at)?;
        let failure = record.failure.as_ref();
        let how = match record.outcome? {
            AttemptOutcome::Succeeded => How::Answered,
            AttemptOutcome::Throttled => How::Throttled,
            AttemptOutcome::Failed => How::of_failure(failure?.status, task.class),
            AttemptOutcome::Lost | AttemptOutcome::Snoozed | AttemptOutcome::Released | AttemptOutcome::Canceled => {
                return None;
            }
        };
        let not_before = failure.and_then(|it| it.retry_after).map(|asked| record.at + asked.from_now(record.at));
        let allowed = [task.timeout, task.attempt_deadline].into_iter().flatten().min();
        Some(Ended { started_at, at: record.at, how, is_retry: record.run > 1, not_before, allowed })
    }

    /// How long the run took.
    pub fn took(&self) -> Millis {
        self.at.since(self.started_at)
    }
}

impl How {
    /// By what the other side answered; where it said nothing, a failure that is final is the caller's own fault.
    fn of_failure(status: Option<u16>, class: Option<Class>) -> How {
        match status {
            Some(429) => How::Throttled,
            Some(408 | 500..) => How::Failed,
            Some(_) => How::Answered,
            None if class == Some(Class::Final) => How::Answered,
            None => How::Failed,
        }
    }
}

/// Which part of a dependency holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// A `Retry-After` that holds everybody.
    Gate,
    /// An open circuit breaker.
    Breaker,
    /// The retry budget.
    Budget,
    /// The concurrency limit.
    Concurrency,
    /// A closed time of the calendar.
    Calendar,
    /// Announced maintenance.
    Maintenance,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Holder::Gate => "gate",
            Holder::Breaker => "breaker",
            Holder::Budget => "budget",
            Holder::Concurrency => "concurrency",
            Holder::Calendar => "calendar",
            Holder::Maintenance => "maintenance",
        })
    }
}

/// How many may start now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// How many more may start; `None` for any number.
    pub starts: Option<u32>,
    /// How many may run at once; `None` for any number.
    pub running: Option<u32>,
    /// The holder that allows no more, and until when as far as it is known.
    pub holder: Option<(Holder, Option<Timestamp>)>,
    /// Whether what is started must be counted in the standing.
    pub counts: bool,
}

impl Allowance {
    /// No limit at all.
    pub const ANY: Allowance = Allowance { starts: None, running: None, holder: None, counts: false };

    fn none(holder: Holder, until: Option<Timestamp>) -> Allowance {
        Allowance { starts: Some(0), holder: Some((holder, until)), ..Allowance::ANY }
    }

    /// Whether nothing may start.
    pub fn is_closed(&self) -> bool {
        self.starts == Some(0)
    }

    /// The holder, in words.
    pub fn words(&self, dependency: &str) -> Option<String> {
        self.holder.map(|(holder, until)| held_words(holder, dependency, until))
    }
}

/// The holder in words, and until when as far as it is known.
pub fn held_words(holder: Holder, dependency: &str, until: Option<Timestamp>) -> String {
    match until.filter(|until| *until != Timestamp::MAX) {
        Some(until) => format!("held by {holder} {dependency} until {}", until.to_rfc3339()),
        None => format!("held by {holder} {dependency}"),
    }
}

/// A dependency as a verdict sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct View {
    /// The name of the dependency.
    pub name: String,
    /// Its settings.
    pub settings: Settings,
    /// Its state.
    pub standing: Standing,
    /// Between 0 and 1, the task's own: where in a stretch of releases it comes.
    pub place: f64,
}

impl View {
    /// The hold of a retry that is due then. The latest of all parts counts, and the budget is asked last, for the time that the
    /// others leave.
    pub fn hold(&self, due: Timestamp) -> Option<Hold> {
        let (mut until, mut holder) = match self.pushed(due, |at| self.later_than(at)) {
            Some((who, until)) => (until, Some(who)),
            None => (due, None),
        };
        if let Some(later) =
            self.settings.budget.and_then(|budget| self.standing.slots.free_at(budget, &self.standing.window, until))
        {
            (until, holder) = (later, Some(Holder::Budget));
        }
        holder.map(|who| Hold { until, reason: format!("{who} {}", self.name) })
    }

    /// The holder that delays a start at that time, and until when; until the end of time where a person keeps it open.
    /// A task that waits is held by nothing of its own: this is for those who ask when it comes.
    pub fn keeps(&self, at: Timestamp) -> Option<(Holder, Timestamp)> {
        self.pushed(at, |at| match self.standing.phase {
            Phase::Open { until, kept: true, .. } if at < until => Some((Holder::Breaker, until)),
            _ => self.later_than(at),
        })
    }

    /// From one end to the next, while the one falls into another.
    fn pushed(
        &self,
        at: Timestamp,
        later: impl Fn(Timestamp) -> Option<(Holder, Timestamp)>,
    ) -> Option<(Holder, Timestamp)> {
        let mut held = None;
        for _ in 0..8 {
            let Some(by) = later(held.map_or(at, |(_, until)| until)) else { break };
            held = Some(by);
        }
        held
    }

    /// The holder that delays a start at that time, and until when.
    fn later_than(&self, at: Timestamp) -> Option<(Holder, Timestamp)> {
        let (settings, standing) = (&self.settings, &self.standing);
        let gate =
            settings.gate.and_then(|gate| standing.gate.holds(gate, at, self.place)).map(|it| (Holder::Gate, it));
        let breaker = settings.breaker.and_then(|_| standing.phase.holds(at)).map(|it| (Holder::Breaker, it));
        let closed = calendar::closed(settings.calendar.as_ref(), &standing.maintenance, at);
        [gate, breaker, closed].into_iter().flatten().max_by_key(|(_, until)| *until).filter(|(_, until)| *until > at)
    }
}
