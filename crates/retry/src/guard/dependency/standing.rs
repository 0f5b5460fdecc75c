//! The state of a dependency between one look and the next.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::gate::Gate;
use super::{Allowance, Breaker, Ended, Holder, How, Maintenance, Phase, Settings, Slots, calendar, concurrency};
use crate::time::{Millis, Timestamp};

/// Changes that are remembered.
const MOST_TOLD: usize = 50;
/// Parts of the window that is counted.
const PARTS: i64 = 10;
/// It shrinks often while it is in trouble, and that is told so often.
const RARELY: Millis = Millis::from_secs(60);
/// Where no breaker says how long the window is.
const USUAL_WINDOW: Millis = Millis::from_secs(10);

pub(super) fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// The state of a dependency.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Standing {
    /// The state of the circuit breaker.
    pub phase: Phase,
    /// The `Retry-After` that holds everybody.
    pub gate: Gate,
    /// Ends in the sliding window.
    pub window: Window,
    /// Runs that began by then say nothing any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub anew: Option<Timestamp>,
    /// Retries booked by the retry budget.
    #[serde(skip_serializing_if = "Slots::is_empty")]
    pub slots: Slots,
    /// How many may run at once, where that is found out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<f64>,
    /// When the concurrency limit last shrank.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shrunk_at: Option<Timestamp>,
    /// Announced maintenance.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub maintenance: Vec<Maintenance>,
    /// The last changes, oldest first.
    pub told: Vec<Told>,
    /// How many there ever were, as far as somebody counted.
    told_ever: u64,
}

/// Recent ends, in parts of the sliding window.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Window {
    /// How long one part lasts.
    pub part: Millis,
    /// The parts, oldest first.
    pub parts: Vec<Part>,
    /// How many of the last failed, one after the other.
    #[serde(skip_serializing_if = "is_zero")]
    pub failed_in_a_row: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    pub at: i64,
    pub good: u32,
    pub bad: u32,
    pub firsts: u32,
    /// The time of all of them together.
    pub took: Millis,
}

impl Window {
    fn of(settings: &Settings) -> Millis {
        settings.breaker.map_or(USUAL_WINDOW, |breaker| breaker.window)
    }

    fn add(&mut self, length: Millis, ended: &[Ended], now: Timestamp) {
        let part = Millis((length.0 / PARTS.cast_unsigned()).max(1));
        if self.part != part {
            *self = Window { part, ..Window::default() };
        }
        self.forget(now);
        let at = now.0.div_euclid(part.0.cast_signed());
        if self.parts.last().is_none_or(|last| last.at < at) {
            self.parts.push(Part { at, ..Part::default() });
        }
        let Some(last) = self.parts.last_mut() else { return };
        for it in ended {
            match it.how {
                How::Answered => (last.good, self.failed_in_a_row) = (last.good + 1, 0),
                How::Failed => {
                    (last.bad, self.failed_in_a_row) = (last.bad + 1, self.failed_in_a_row.saturating_add(1))
                }
                How::Throttled => {}
            }
            last.firsts += u32::from(!it.is_retry);
            last.took = last.took + it.took();
        }
    }

    fn forget(&mut self, now: Timestamp) {
        if self.part > Millis::ZERO {
            let oldest = now.0.div_euclid(self.part.0.cast_signed()) - PARTS;
            self.parts.retain(|part| part.at > oldest);
        }
    }

    /// Good ends in the window.
    pub fn good(&self) -> u32 {
        self.parts.iter().map(|part| part.good).sum()
    }

    /// Bad ends in the window.
    pub fn bad(&self) -> u32 {
        self.parts.iter().map(|part| part.bad).sum()
    }

    /// Whether so much of what ended lately failed that nothing more should be tried, and why.
    fn is_bad(&self, breaker: &Breaker) -> Option<String> {
        let (good, bad) = (self.good(), self.bad());
        let in_a_row = self.failed_in_a_row;
        let ratio = f64::from(bad) / f64::from((good + bad).max(1));
        if bad >= breaker.failures && ratio >= breaker.ratio {
            return Some(format!("{bad} of {} failed within {}", good + bad, breaker.window));
        }
        // What was good before would hide for long that nothing is good now.
        (bad.min(in_a_row) >= breaker.failures).then(|| format!("the last {in_a_row} failed"))
    }

    /// How many answers came within the last so much time, as far as it is remembered.
    pub fn answered_within(&self, span: Millis, now: Timestamp) -> f64 {
        let part = self.part.as_f64().max(1.0);
        let whole = span.as_f64() / part;
        let newest = now.0.div_euclid(self.part.0.max(1).cast_signed());
        let begun = now.0.rem_euclid(self.part.0.max(1).cast_signed()) as f64 / part;
        let answered = |it: &Part| {
            // How much of the part lies within the span.
            let age = (newest - it.at) as f64;
            let share = if age < 1.0 {
                (whole / begun.max(f64::EPSILON)).min(1.0)
            } else {
                (whole - begun - age + 1.0).clamp(0.0, 1.0)
            };
            f64::from(it.good) * share
        };
        let known = whole.min(PARTS as f64);
        self.parts.iter().map(answered).sum::<f64>() * (whole / known.max(f64::EPSILON))
    }

    /// The mean time of a run.
    pub fn took(&self) -> Option<Millis> {
        let all = u64::from(self.good() + self.bad());
        let took: u64 = self.parts.iter().map(|part| part.took.0).sum();
        took.checked_div(all).map(Millis)
    }

    /// First attempts per second in the window.
    pub fn firsts_per_second(&self) -> f64 {
        let firsts: u32 = self.parts.iter().map(|part| part.firsts).sum();
        let length = self.part.as_f64() * PARTS as f64 / 1_000.0;
        if length > 0.0 { f64::from(firsts) / length } else { 0.0 }
    }
}

/// A change of a dependency's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// The breaker opened.
    Opened,
    /// Canaries may start.
    HalfOpen,
    /// The canaries came back; waves follow.
    Recovering,
    /// The breaker closed.
    Closed,
    /// A `Retry-After` holds everybody.
    Gated,
    /// A person declared the dependency healthy.
    Healthy,
    /// Maintenance was announced.
    Maintenance,
    /// The concurrency limit shrank.
    Shrunk,
}

impl Change {
    /// All of them.
    pub const ALL: [Change; 8] = [
        Change::Opened,
        Change::HalfOpen,
        Change::Recovering,
        Change::Closed,
        Change::Gated,
        Change::Healthy,
        Change::Maintenance,
        Change::Shrunk,
    ];

    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Change::Opened => "opened",
            Change::HalfOpen => "half_open",
            Change::Recovering => "recovering",
            Change::Closed => "closed",
            Change::Gated => "gated",
            Change::Healthy => "healthy",
            Change::Maintenance => "maintenance",
            Change::Shrunk => "shrunk",
        }
    }

    /// The name of the event that tells of it.
    pub fn event(self) -> &'static str {
        match self {
            Change::Opened => "dependency.opened",
            Change::HalfOpen => "dependency.half_open",
            Change::Recovering => "dependency.recovering",
            Change::Closed => "dependency.closed",
            Change::Gated => "dependency.gated",
            Change::Healthy => "dependency.healthy",
            Change::Maintenance => "dependency.maintenance",
            Change::Shrunk => "dependency.shrunk",
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// One change of state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    /// When it happened.
    pub at: Timestamp,
    /// Which change it was.
    pub what: Change,
    /// Why, in words.
    pub why: String,
}

/// Ends since the last look.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seen {
    /// The runs that ended.
    pub ended: Vec<Ended>,
}

impl Standing {
    fn tell(&mut self, what: Change, why: impl Into<String>, now: Timestamp) {
        self.told_ever = self.changes_ever() + 1;
        self.told.push(Told { at: now, what, why: why.into() });
        let extra = self.told.len().saturating_sub(MOST_TOLD);
        self.told.drain(..extra);
    }

    /// How many changes there ever were.
    pub fn changes_ever(&self) -> u64 {
        self.told_ever.max(self.told.len() as u64)
    }

    /// The last changes, each with its number among all there ever were.
    pub fn numbered(&self) -> impl Iterator<Item = (u64, &Told)> {
        let before = self.changes_ever() - self.told.len() as u64;
        self.told.iter().zip(before + 1..).map(|(told, number)| (number, told))
    }

    fn begin_anew(&mut self, now: Timestamp) {
        self.window = Window { part: self.window.part, ..Window::default() };
        self.anew = Some(now);
    }

    /// Time-driven transitions.
    pub fn advance(&mut self, settings: &Settings, now: Timestamp) {
        if let Some(breaker) = &settings.breaker
            && let Some(next) = self.phase.advanced(breaker, now)
        {
            self.phase = next;
        }
        if settings.breaker.is_none() && !matches!(self.phase, Phase::Closed | Phase::Open { kept: true, .. }) {
            self.phase = Phase::Closed;
        }
        if settings.gate.is_none_or(|gate| self.gate.is_over(gate, now)) {
            self.gate = Gate::default();
        }
        self.maintenance.retain(|it| it.to + Millis::from_days(1) > now);
        self.window.forget(now);
        self.slots.forget(now);
    }

    /// Nobody is ready to start: the waves are over, once the last of them was heard of.
    pub fn nobody_waits(&mut self, settings: &Settings, now: Timestamp) {
        if let Some(closed) = settings.breaker.and_then(|breaker| self.phase.left(&breaker, now)) {
            self.phase = closed;
            self.begin_anew(now);
            self.tell(Change::Closed, "nobody waits any more", now);
        }
    }

    /// Runs have ended.
    pub fn observe(&mut self, settings: &Settings, seen: &Seen, now: Timestamp) {
        self.advance(settings, now);
        let ended = &seen.ended;
        let fresh: Vec<Ended> =
            ended.iter().filter(|it| self.anew.is_none_or(|anew| it.started_at > anew)).copied().collect();
        self.window.add(Window::of(settings), &fresh, now);
        if let (Some(gate), Some(until)) = (settings.gate, ended.iter().filter_map(|it| it.not_before).max())
            && self.gate.close(gate, until, now)
        {
            let until = self.gate.until.unwrap_or(until);
            self.tell(Change::Gated, format!("asked to come back at {}", until.to_rfc3339()), now);
        }
        if let Some(breaker) = settings.breaker {
            self.judge(&breaker, ended, now);
        }
        if let Some(concurrency) = settings.concurrency {
            let before = self.limit.unwrap_or(f64::from(concurrency.max));
            let (limit, shrunk_at) = concurrency::next(concurrency, before, self.shrunk_at, ended, &self.window, now);
            let lately = |told: &Told| told.what == Change::Shrunk && told.at + RARELY > now;
            if limit < before && !self.told.iter().any(lately) {
                self.tell(Change::Shrunk, format!("{} at once, after {}", limit as u32, before as u32), now);
            }
            (self.limit, self.shrunk_at) = (Some(limit), shrunk_at);
        }
    }

    fn judge(&mut self, breaker: &Breaker, ended: &[Ended], now: Timestamp) {
        let count = |since: Timestamp, bad: bool| {
            let later = ended.iter().filter(|it| it.started_at >= since && it.how != How::Throttled);
            u32::try_from(later.filter(|it| (it.how == How::Failed) == bad).count()).unwrap_or(u32::MAX)
        };
        match self.phase.clone() {
            Phase::Closed => {
                if let Some(why) = self.window.is_bad(breaker) {
                    self.open(breaker, 1, why, now);
                }
            }
            Phase::KeptClosed { .. } | Phase::Open { .. } => {}
            Phase::HalfOpen { since, trips, .. } => {
                if count(since, true) > 0 {
                    self.open(breaker, trips + 1, "a canary failed".to_owned(), now);
                } else if count(since, false) > 0 {
                    self.phase = Phase::recovering(trips, now);
                    self.tell(Change::Recovering, "a canary came back", now);
                }
            }
            Phase::Recovering { since, from, wave, started, good, bad, trips } => {
                let good = good.saturating_add(count(since, false));
                let bad = bad.saturating_add(count(since, true));
                let heard = good.saturating_add(bad);
                let is_bad = f64::from(bad) >= breaker.ratio * f64::from(heard.max(1));
                let enough = bad >= breaker.failures.min(super::breaker::wave_size(breaker, wave).div_ceil(2));
                if is_bad && enough {
                    self.open(breaker, trips + 1, format!("{bad} of {heard} failed in wave {}", wave + 1), now);
                } else if let Some(why) = self.window.is_bad(breaker) {
                    // A large wave lasts for as long as somebody waits: what was good in it long ago hides nothing.
                    self.open(breaker, trips + 1, why, now);
                } else {
                    self.phase = Phase::Recovering { since, from, wave, started, good, bad, trips };
                }
            }
        }
    }

    fn open(&mut self, breaker: &Breaker, trips: u32, why: String, now: Timestamp) {
        self.phase = Phase::opened(breaker, trips, now);
        self.begin_anew(now);
        self.tell(Change::Opened, why, now);
    }

    /// How many may start now.
    pub fn allowance(&self, settings: &Settings, now: Timestamp) -> Allowance {
        let mut now_so = self.clone();
        now_so.advance(settings, now);
        now_so.allows(settings, now)
    }

    fn allows(&self, settings: &Settings, now: Timestamp) -> Allowance {
        if let Some((holder, until)) = calendar::closed(settings.calendar.as_ref(), &self.maintenance, now) {
            return Allowance::none(holder, Some(until));
        }
        let mut allowance = Allowance::ANY;
        let mut least = |starts: Option<u32>, holder: Holder, until: Option<Timestamp>| {
            let Some(starts) = starts else { return };
            allowance.counts = true;
            if allowance.starts.is_none_or(|known| starts < known) {
                (allowance.starts, allowance.holder) = (Some(starts), Some((holder, until)));
            }
        };
        if let Some(gate) = settings.gate {
            least(self.gate.starts(gate, now), Holder::Gate, self.gate.next(gate));
        }
        if let Some(breaker) = &settings.breaker {
            least(self.phase.starts(breaker, now), Holder::Breaker, self.phase.next(breaker));
        } else if let Phase::Open { until, kept: true, .. } = self.phase {
            least((now < until).then_some(0), Holder::Breaker, Some(until));
        }
        if let Some(concurrency) = settings.concurrency {
            let limit = self.limit.unwrap_or(f64::from(concurrency.max));
            allowance.running = Some(limit.clamp(concurrency.min.into(), concurrency.max.into()) as u32);
        }
        allowance
    }

    /// Counts starts; whether that changes anything.
    pub fn take(&mut self, settings: &Settings, n: u32, now: Timestamp) -> bool {
        self.advance(settings, now);
        if n == 0 || !self.allows(settings, now).counts {
            return false;
        }
        if let Some(breaker) = &settings.breaker {
            let was_open = matches!(self.phase, Phase::Open { .. });
            self.phase.take(breaker, n, now);
            if was_open {
                self.tell(Change::HalfOpen, format!("{n} canaries on their way"), now);
            }
        }
        if self.gate.until.is_some() {
            self.gate.started = self.gate.started.saturating_add(n);
        }
        true
    }

    /// When to look again, because time changes something by then.
    pub fn next(&self, settings: &Settings, now: Timestamp) -> Option<Timestamp> {
        let opens = calendar::closed(settings.calendar.as_ref(), &self.maintenance, now).map(|(_, until)| until);
        let gate = settings.gate.and_then(|gate| self.gate.next(gate));
        let breaker = match &settings.breaker {
            Some(breaker) => self.phase.next(breaker),
            None => match self.phase {
                Phase::Open { until, .. } => Some(until),
                _ => None,
            },
        };
        [opens, gate, breaker].into_iter().flatten().filter(|at| *at != Timestamp::MAX).max()
    }

    /// A person opens the breaker, until then or until it is closed.
    pub fn open_by_hand(&mut self, until: Option<Timestamp>, why: &str, now: Timestamp) {
        self.phase = Phase::Open { since: now, until: until.unwrap_or(Timestamp::MAX), trips: 1, kept: true };
        self.tell(Change::Opened, why, now);
    }

    /// A person closes it: everybody may go at once. Until a given time it does not open again by itself.
    pub fn close_by_hand(&mut self, until: Option<Timestamp>, why: &str, now: Timestamp) {
        self.phase = until.map_or(Phase::Closed, |until| Phase::KeptClosed { until });
        self.gate = Gate::default();
        self.begin_anew(now);
        self.tell(Change::Closed, why, now);
    }

    /// Somebody knows that it is well again: the waves begin.
    pub fn healthy(&mut self, settings: &Settings, why: &str, now: Timestamp) {
        if settings.breaker.is_some() && !self.phase.is_closed() {
            self.phase = Phase::recovering(1, now);
        } else {
            self.phase = Phase::Closed;
        }
        self.gate = Gate::default();
        self.begin_anew(now);
        self.tell(Change::Healthy, why, now);
    }

    /// Work on it is announced.
    pub fn announce(&mut self, maintenance: Maintenance, now: Timestamp) {
        let why = format!("from {} to {}", maintenance.from.to_rfc3339(), maintenance.to.to_rfc3339());
        self.maintenance.retain(|it| it.from != maintenance.from);
        self.maintenance.push(maintenance);
        self.maintenance.sort_by_key(|it| it.from);
        self.tell(Change::Maintenance, why, now);
    }
}
