//! Alerts: too much of something within a while. What is counted, when it is too much, and when it is over again.
//!
//! One fold over events, in the order in which they are told: the same for what happens now and for what would have happened in
//! the last week. Time passes in steps, each of which ends where something leaves the window, so that an alert is over at the same
//! instant whoever looks and whenever they do.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::invalid::Invalid;
use crate::subscription::AlertEvent;
use crate::time::{Millis, Timestamp};

/// A window is made of so many steps.
const STEPS: u64 = 60;
/// The shortest window.
pub const SHORTEST: Millis = Millis::from_secs(10);
/// The longest window.
pub const LONGEST: Millis = Millis::from_days(7);

/// When it is too much.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Watch {
    /// The length of the window.
    pub window: Millis,
    /// At least so many within the window.
    pub threshold: u64,
    /// And at least this share of all that are counted beside them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<f64>,
}

impl Watch {
    /// Faults of the settings, by field.
    pub fn check(&self) -> Invalid {
        let mut faults = Invalid::default();
        if !(SHORTEST..=LONGEST).contains(&self.window) {
            faults.push("window", format!("must be between {SHORTEST} and {LONGEST}"));
        }
        if self.threshold == 0 {
            faults.push("threshold", "must be 1 or more");
        }
        if self.share.is_some_and(|share| !(0.0..=1.0).contains(&share)) {
            faults.push("share", "must be between 0 and 1");
        }
        faults
    }

    fn step(&self) -> i64 {
        i64::try_from(self.window.0.div_ceil(STEPS)).unwrap_or(i64::MAX).max(1)
    }
}

/// The meaning of an event for an alert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counts {
    /// It is one of those that there may be too many of.
    Hit,
    /// It is only one of those that the share is of.
    Beside,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Step {
    /// When it began.
    at: i64,
    hits: u64,
    all: u64,
}

/// The counts in the window, and whether they are above the threshold.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Count {
    steps: VecDeque<Step>,
    /// Up to where time has passed.
    now: Timestamp,
    /// Since when it fires.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub firing_since: Option<Timestamp>,
    /// How often it has fired.
    pub fired: u64,
}

/// An alert began or ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The change.
    pub what: AlertEvent,
    /// When.
    pub at: Timestamp,
    /// Events that count in the window.
    pub hits: u64,
    /// All events in the window.
    pub all: u64,
}

impl Count {
    /// Starts counting anew.
    pub fn from(now: Timestamp) -> Count {
        Count { now, ..Count::default() }
    }

    /// Events that count in the window.
    pub fn hits(&self) -> u64 {
        self.steps.iter().map(|step| step.hits).sum()
    }

    /// All events in the window.
    pub fn all(&self) -> u64 {
        self.steps.iter().map(|step| step.all).sum()
    }

    /// One more event. What was told late counts as of now.
    pub fn add(&mut self, watch: &Watch, counts: Counts, at: Timestamp) -> Vec<Change> {
        let at = at.max(self.now);
        let mut changes = self.pass(watch, at);
        let began = at.0 - at.0.rem_euclid(watch.step());
        let hits = u64::from(counts == Counts::Hit);
        match self.steps.back_mut().filter(|last| last.at == began) {
            Some(last) => {
                last.hits += hits;
                last.all += 1;
            }
            None => self.steps.push_back(Step { at: began, hits, all: 1 }),
        }
        changes.extend(self.judge(watch, at));
        changes
    }

    /// Time passes: what leaves the window is counted no more.
    pub fn pass(&mut self, watch: &Watch, to: Timestamp) -> Vec<Change> {
        let mut changes = Vec::new();
        while let Some(leaves) = self.leaves(watch).filter(|leaves| *leaves <= to) {
            self.steps.pop_front();
            changes.extend(self.judge(watch, leaves.max(self.now)));
        }
        self.now = self.now.max(to);
        changes
    }

    /// When something leaves the window next: the one instant at which time alone can change anything.
    pub fn leaves(&self, watch: &Watch) -> Option<Timestamp> {
        let window = i64::try_from(watch.window.0).unwrap_or(i64::MAX);
        self.steps.front().map(|step| Timestamp(step.at.saturating_add(watch.step()).saturating_add(window)))
    }

    fn judge(&mut self, watch: &Watch, at: Timestamp) -> Option<Change> {
        let (hits, all) = (self.hits(), self.all());
        #[allow(clippy::cast_precision_loss)]
        let is_share = watch.share.is_none_or(|share| all > 0 && hits as f64 >= share * all as f64);
        let is_much = hits >= watch.threshold && is_share;
        let what = match (self.firing_since, is_much) {
            (None, true) => {
                self.firing_since = Some(at);
                self.fired += 1;
                AlertEvent::Fired
            }
            (Some(_), false) => {
                self.firing_since = None;
                AlertEvent::Resolved
            }
            _ => return None,
        };
        Some(Change { what, at, hits, all })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60_000;

    fn watch(threshold: u64, share: Option<f64>) -> Watch {
        Watch { window: Millis(5 * MINUTE), threshold, share }
    }

    /// The steps, and the state after each.
    type Case<'a> = (&'a str, &'a [(u64, char)], &'a [(u64, AlertEvent)]);

    /// The state after hits (`h`), others (`o`) and a look (`.`), each at a minute.
    fn play(watch: &Watch, events: &[(u64, char)]) -> Vec<(u64, AlertEvent)> {
        let mut count = Count::from(Timestamp(0));
        let mut changes = Vec::new();
        for (minute, what) in events {
            let at = Timestamp(i64::try_from(minute * MINUTE).unwrap());
            changes.extend(match what {
                'h' => count.add(watch, Counts::Hit, at),
                'o' => count.add(watch, Counts::Beside, at),
                _ => count.pass(watch, at),
            });
        }
        changes.into_iter().map(|it| (it.at.0.cast_unsigned() / MINUTE, it.what)).collect()
    }

    #[test]
    fn an_alert_fires_and_resolves_once() {
        use AlertEvent::{Fired, Resolved};
        let three = watch(3, None);
        let table: [Case<'_>; 7] = [
            ("too few", &[(1, 'h'), (2, 'h'), (60, '.')], &[]),
            (
                "enough, and over when the first leaves",
                &[(1, 'h'), (2, 'h'), (3, 'h'), (60, '.')],
                &[(3, Fired), (6, Resolved)],
            ),
            ("too far apart", &[(1, 'h'), (4, 'h'), (9, 'h'), (60, '.')], &[]),
            (
                "goes on",
                &[(1, 'h'), (1, 'h'), (1, 'h'), (4, 'h'), (5, 'h'), (5, 'h'), (60, '.')],
                &[(1, Fired), (9, Resolved)],
            ),
            (
                "again",
                &[(1, 'h'), (1, 'h'), (1, 'h'), (20, 'h'), (20, 'h'), (20, 'h')],
                &[(1, Fired), (6, Resolved), (20, Fired)],
            ),
            ("others do not count", &[(1, 'h'), (1, 'o'), (1, 'o'), (1, 'h'), (60, '.')], &[]),
            ("told late", &[(9, '.'), (1, 'h'), (1, 'h'), (1, 'h'), (60, '.')], &[(9, Fired), (14, Resolved)]),
        ];
        for (name, events, expected) in table {
            assert_eq!(play(&three, events), expected, "{name}");
        }
    }

    #[test]
    fn a_share_is_of_what_is_counted_beside() {
        use AlertEvent::{Fired, Resolved};
        let half = watch(2, Some(0.5));
        let all = [(1, 'o'), (1, 'o'), (1, 'o'), (1, 'h'), (1, 'h'), (2, 'h'), (3, 'o'), (60, '.')];
        assert_eq!(play(&half, &all), [(2, Fired), (3, Resolved)], "3 of 6, then 3 of 7");
        assert_eq!(
            play(&half, &[(1, 'o'), (1, 'o'), (1, 'o'), (3, 'h'), (3, 'h'), (7, '.')]),
            [(6, Fired)],
            "2 of 5, then 2 of 2"
        );
    }

    #[test]
    fn whoever_looks_in_between_changes_nothing() {
        let three = watch(3, None);
        let events: Vec<(u64, char)> =
            [1, 2, 2, 3, 9, 9, 10, 14, 30, 31, 31, 31, 33].map(|minute| (minute, 'h')).into();
        let mut looked: Vec<(u64, char)> =
            events.iter().flat_map(|(minute, what)| [(*minute, '.'), (*minute, *what)]).collect();
        looked.extend((34..60).map(|minute| (minute, '.')));
        let mut once = events.clone();
        once.push((59, '.'));
        let expected = play(&three, &once);
        assert_eq!(play(&three, &looked), expected);
        assert!(expected.len() >= 4);
        // And a restart in between: what is counted is stored as it is.
        let mut count = Count::from(Timestamp(0));
        let mut changes = Vec::new();
        for (minute, _) in &events {
            changes.extend(count.add(&three, Counts::Hit, Timestamp(i64::try_from(minute * MINUTE).unwrap())));
            count = serde_json::from_str(&serde_json::to_string(&count).unwrap()).unwrap();
        }
        changes.extend(count.pass(&three, Timestamp(i64::try_from(59 * MINUTE).unwrap())));
        assert_eq!(changes.len(), expected.len());
    }

    #[test]
    fn a_bad_watch_is_refused() {
        let paths = |watch: Watch| watch.check().faults.iter().map(|it| it.path.clone()).collect::<Vec<_>>();
        assert!(watch(1, Some(1.0)).check().is_empty());
        assert_eq!(paths(watch(0, Some(1.5))), ["threshold", "share"]);
        assert_eq!(paths(Watch { window: Millis(1), ..watch(1, None) }), ["window"]);
        assert_eq!(paths(Watch { window: Millis::from_days(8), ..watch(1, Some(f64::NAN)) }), ["window", "share"]);
    }
}
