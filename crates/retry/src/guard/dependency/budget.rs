//! The budget of retries beside first attempts. Time is cut into stretches; each has room for so many retries, and who finds one full
//! comes in the next. Nobody is dropped.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{RetryBudget, Window};
use crate::time::{Millis, Timestamp};

const STRETCH: i64 = 10_000;
/// So far ahead places are given: what is due later finds its place when it is asked for again.
const FURTHEST: i64 = 360;

/// The places that are taken, by stretch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Slots(BTreeMap<i64, u32>);

impl Slots {
    /// Whether nothing is booked.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many retries a stretch has room for.
    fn room(budget: RetryBudget, window: &Window) -> u32 {
        let firsts = window.firsts_per_second();
        let each = budget.floor + firsts * budget.percent / 100.0;
        ((each * STRETCH as f64 / 1_000.0) as u32).max(1)
    }

    /// The stretch in which there is room from that time on, and the place in it.
    fn place(&self, budget: RetryBudget, window: &Window, due: Timestamp) -> (i64, Timestamp) {
        let room = Slots::room(budget, window);
        let first = due.0.div_euclid(STRETCH);
        let taken = |stretch: &i64| self.0.get(stretch).copied().unwrap_or(0);
        let stretch = (first..first + FURTHEST).find(|stretch| taken(stretch) < room).unwrap_or(first + FURTHEST);
        let within = STRETCH.saturating_mul(i64::from(taken(&stretch))) / i64::from(room);
        (stretch, Timestamp(stretch.saturating_mul(STRETCH).saturating_add(within)))
    }

    /// When a retry that is due then may come; nothing where that is its own time.
    pub fn free_at(&self, budget: RetryBudget, window: &Window, due: Timestamp) -> Option<Timestamp> {
        let (_, at) = self.place(budget, window, due);
        (at > due).then_some(at)
    }

    /// One will come then.
    pub fn take(&mut self, at: Timestamp) {
        *self.0.entry(at.0.div_euclid(STRETCH)).or_default() += 1;
    }

    /// Drops slots that have passed.
    pub fn forget(&mut self, now: Timestamp) {
        let first = (now - Millis(STRETCH.cast_unsigned())).0.div_euclid(STRETCH);
        self.0 = self.0.split_off(&first);
    }
}
