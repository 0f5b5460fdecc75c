//! The gate: not before the time that somebody was told to come back. Then those who waited come back spread out.

use serde::{Deserialize, Serialize};

use super::GateSettings;
use crate::time::{Millis, Timestamp};

/// Twice as many with every part of the spread: 1, 2, 4 … 512.
const STEPS: f64 = 10.0;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gate {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// Tasks that started since it opened.
    #[serde(default, skip_serializing_if = "super::standing::is_zero")]
    pub started: u32,
}

impl Gate {
    /// Holds everybody until then, but not for longer than is believed. Whether that is news.
    pub fn close(&mut self, settings: GateSettings, until: Timestamp, now: Timestamp) -> bool {
        let until = until.min(now + settings.max);
        if until <= now || self.until.is_some_and(|known| known >= until) {
            return false;
        }
        *self = Gate { until: Some(until), started: 0 };
        true
    }

    /// Until when a retry waits that is due at that time; each has its own place in the spread.
    pub fn holds(&self, settings: GateSettings, at: Timestamp, place: f64) -> Option<Timestamp> {
        let until = self.until.filter(|until| at < *until)?;
        Some(until + Millis::from_f64(settings.spread.as_f64() * place))
    }

    /// How many more may start while those come back who waited; nothing where any number may.
    pub fn starts(&self, settings: GateSettings, now: Timestamp) -> Option<u32> {
        let until = self.until?;
        if now >= until + settings.spread {
            return None;
        }
        if now < until {
            return Some(0);
        }
        let part = now.since(until).as_f64() / settings.spread.as_f64().max(1.0);
        Some(((STEPS * part).exp2() as u32).saturating_sub(self.started))
    }

    /// When one more may start.
    pub fn next(&self, settings: GateSettings) -> Option<Timestamp> {
        let until = self.until?;
        let part = f64::from(self.started + 1).log2() / STEPS;
        Some(until + Millis::from_f64((settings.spread.as_f64() * part.min(1.0)).ceil()))
    }

    pub fn is_over(&self, settings: GateSettings, now: Timestamp) -> bool {
        self.until.is_some_and(|until| now >= until + settings.spread)
    }
}
