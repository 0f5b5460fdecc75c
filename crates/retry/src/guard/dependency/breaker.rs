//! The breaker: closed, open, half open, and then waves.

use serde::{Deserialize, Serialize};

use super::Breaker;
use crate::time::{Millis, Timestamp};

/// A wave of which nothing more is heard is given up after so many times its length.
const PATIENCE: u64 = 10;
/// Each wait for canaries beside the one before.
const LONGER: f64 = 1.25;

/// The state of a circuit breaker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum Phase {
    /// Everything may start.
    #[default]
    Closed,
    /// A person keeps it closed, whatever happens.
    KeptClosed {
        /// Until then.
        until: Timestamp,
    },
    /// No task may start.
    Open {
        /// When it opened.
        since: Timestamp,
        /// When the next canaries go.
        until: Timestamp,
        /// How often it opened without closing in between.
        trips: u32,
        /// A person keeps it open: canaries go only when that is over.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        kept: bool,
    },
    /// Canaries are on their way.
    HalfOpen {
        /// When the canaries were let through.
        since: Timestamp,
        /// When the next canaries go if these are not heard of.
        again_at: Timestamp,
        /// Canaries that started.
        started: u32,
        /// How often it opened without closing in between.
        trips: u32,
    },
    /// They came back: the others follow.
    Recovering {
        /// When the canaries came back.
        since: Timestamp,
        /// From when its starts are spread out: who asks seldom is owed what the time before allowed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from: Option<Timestamp>,
        /// The number of the wave, from 0.
        wave: u32,
        /// Starts in this wave.
        started: u32,
        /// Good ends in this wave.
        good: u32,
        /// Bad ends in this wave.
        bad: u32,
        /// How often it opened without closing in between.
        trips: u32,
    },
}

impl Phase {
    /// The state as a word: `closed`, `open`, `half_open` or `recovering`.
    pub fn word(&self) -> &'static str {
        match self {
            Phase::Closed | Phase::KeptClosed { .. } => "closed",
            Phase::Open { .. } => "open",
            Phase::HalfOpen { .. } => "half_open",
            Phase::Recovering { .. } => "recovering",
        }
    }

    /// Whether it is closed.
    pub fn is_closed(&self) -> bool {
        matches!(self, Phase::Closed | Phase::KeptClosed { .. })
    }

    /// Until when a start at that time waits.
    pub fn holds(&self, at: Timestamp) -> Option<Timestamp> {
        match self {
            // What a person keeps open a person closes: nothing is held to a time of its own.
            Phase::Open { until, kept, .. } => (at < *until && !kept).then_some(*until),
            Phase::HalfOpen { again_at, .. } => (at < *again_at).then_some(*again_at),
            _ => None,
        }
    }

    /// Opened now; each trip waits longer for its canaries.
    pub fn opened(settings: &Breaker, trips: u32, now: Timestamp) -> Phase {
        Phase::Open { since: now, until: now + wait(settings, trips), trips, kept: false }
    }

    /// Recovering from now on, with the first wave.
    pub fn recovering(trips: u32, now: Timestamp) -> Phase {
        Phase::Recovering { since: now, from: None, wave: 0, started: 0, good: 0, bad: 0, trips }
    }

    /// Time-driven transitions. A wave ends when all of it has started and was heard of: a caller that asks seldom finds it as it was.
    pub fn advanced(&self, settings: &Breaker, now: Timestamp) -> Option<Phase> {
        match *self {
            Phase::KeptClosed { until } if now >= until => Some(Phase::Closed),
            Phase::Recovering { since, from, wave, started, trips, .. } => {
                let is_over = started >= wave_size(settings, wave) && self.is_heard(settings, now);
                // At most one wave at once is made up for.
                let from = (from.unwrap_or(since) + settings.wave).max(now - settings.wave);
                let next = Phase::Recovering {
                    since: now,
                    from: Some(from),
                    wave: wave + 1,
                    started: 0,
                    good: 0,
                    bad: 0,
                    trips,
                };
                is_over.then_some(next)
            }
            _ => None,
        }
    }

    /// Nobody waits: it closes where a wave has lasted for its time and was heard of.
    pub fn left(&self, settings: &Breaker, now: Timestamp) -> Option<Phase> {
        (matches!(self, Phase::Recovering { .. }) && self.is_heard(settings, now)).then_some(Phase::Closed)
    }

    /// Whether the wave has lasted for its time, and all who started in it came back: one who has not may still show that it was
    /// too early.
    fn is_heard(&self, settings: &Breaker, now: Timestamp) -> bool {
        let Phase::Recovering { since, from, started, good, bad, .. } = *self else { return false };
        let lasted = now.since(from.unwrap_or(since));
        let is_given_up = lasted.0 >= settings.wave.0.saturating_mul(PATIENCE);
        lasted >= settings.wave && (good.saturating_add(bad) >= started || is_given_up)
    }

    /// How many more may start; nothing where any number may.
    pub fn starts(&self, settings: &Breaker, now: Timestamp) -> Option<u32> {
        match *self {
            Phase::Closed | Phase::KeptClosed { .. } => None,
            Phase::Open { until, .. } => Some(if now < until { 0 } else { settings.canaries }),
            Phase::HalfOpen { again_at, started, .. } => {
                Some(if now >= again_at { settings.canaries } else { settings.canaries.saturating_sub(started) })
            }
            Phase::Recovering { since, from, wave, started, .. } => {
                let size = f64::from(wave_size(settings, wave));
                let part = (now.since(from.unwrap_or(since)).as_f64() / settings.wave.as_f64()).min(1.0);
                // The first wave begins with somebody, the others when theirs begins.
                let least = if wave == 0 { 1.0 } else { 0.0 };
                Some(((size * part).ceil().max(least) as u32).saturating_sub(started))
            }
        }
    }

    /// When one more may start, where none may now.
    pub fn next(&self, settings: &Breaker) -> Option<Timestamp> {
        match *self {
            Phase::Closed | Phase::KeptClosed { .. } => None,
            Phase::Open { until, .. } => Some(until),
            Phase::HalfOpen { again_at, .. } => Some(again_at),
            Phase::Recovering { since, from, wave, started, .. } => {
                let size = f64::from(wave_size(settings, wave));
                let part = (f64::from(started) / size).min(1.0);
                Some(from.unwrap_or(since) + Millis((settings.wave.as_f64() * part).ceil() as u64 + 1))
            }
        }
    }

    /// Counts starts.
    pub fn take(&mut self, settings: &Breaker, n: u32, now: Timestamp) {
        match self {
            Phase::Closed | Phase::KeptClosed { .. } => {}
            Phase::Open { trips, .. } => {
                let again_at = now + wait(settings, *trips);
                *self = Phase::HalfOpen { since: now, again_at, started: n, trips: *trips };
            }
            Phase::HalfOpen { again_at, started, trips, .. } if now >= *again_at => {
                // Nothing was heard of the last ones. Others go.
                (*again_at, *started) = (now + wait(settings, *trips), n);
            }
            Phase::HalfOpen { started, .. } | Phase::Recovering { started, .. } => *started = started.saturating_add(n),
        }
    }
}

/// How long until canaries go when it has opened so often: about a quarter of the time that it has been away by then. What is away
/// for a moment is not missed for a minute, and what is away for hours is not asked every other second.
fn wait(settings: &Breaker, trips: u32) -> Millis {
    let longer = LONGER.powf(f64::from(trips.saturating_sub(1)));
    Millis::from_f64(settings.open.as_f64() * longer).min(settings.max_open)
}

pub fn wave_size(settings: &Breaker, wave: u32) -> u32 {
    settings.first_wave.saturating_mul(1_u32.checked_shl(wave).unwrap_or(u32::MAX))
}
