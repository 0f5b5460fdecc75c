//! Blackout windows: times in which no retry is run. They move a due time to the window's end and cost no attempt (X2-16).

use jiff::civil::{Time, Weekday};
use jiff::tz::TimeZone;
use jiff::{ToSpan, Zoned};

use crate::time::{Millis, Timestamp};

/// One closed time: every week between two times of day on some days, or once between two instants.
#[derive(Clone, Debug, PartialEq)]
pub enum Window {
    /// Every week.
    Weekly(Weekly),
    /// Once.
    Once {
        /// When it closes.
        from: Timestamp,
        /// When it opens again.
        to: Timestamp,
    },
}

/// Closed between two times of day on some days of each week.
#[derive(Clone, Debug, PartialEq)]
pub struct Weekly {
    /// Monday first; the days on which the window opens.
    pub days: [bool; 7],
    /// When it closes.
    pub from: Time,
    /// At or before `from` means the next day.
    pub to: Time,
    /// The time zone of the times.
    pub zone: TimeZone,
}

/// The days of the week, Monday first.
pub const DAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];

/// How often a due time may be pushed from one window into the next before the windows count as never open.
const MAX_PUSHES: u32 = 750;

/// The longest time that one-off windows may stay closed: the longest delay there is (model A11).
pub const LONGEST: Millis = Millis::from_days(366);

/// The first of the windows that close once from which on it stays closed for too long, be it together with those that follow.
pub fn too_long(windows: &[Window]) -> Option<usize> {
    windows.iter().position(|window| match window {
        Window::Once { from, .. } => open_at(windows, *from).is_none_or(|open| open.since(*from) > LONGEST),
        Window::Weekly(_) => false,
    })
}

/// The fault of a window that stays closed for longer than [`LONGEST`].
pub fn words_of_too_long() -> String {
    format!("it stays closed for {LONGEST} at most, with the windows that follow")
}

/// The first instant at or after `due` that no window closes; nothing when there is none within reach.
pub fn open_at(windows: &[Window], due: Timestamp) -> Option<Timestamp> {
    let mut at = due;
    for _ in 0..MAX_PUSHES {
        match windows.iter().filter_map(|window| window.closed_around(at)).map(|(_, end)| end).max() {
            None => return Some(at),
            Some(end) => at = end,
        }
    }
    None
}

/// The last instant at or before `at` that no window closes; nothing when there is none within reach.
pub fn last_open(windows: &[Window], at: Timestamp) -> Option<Timestamp> {
    let mut at = at;
    for _ in 0..MAX_PUSHES {
        match windows.iter().filter_map(|window| window.closed_around(at)).map(|(start, _)| start).min() {
            None => return Some(at),
            Some(start) => at = start - Millis(1),
        }
    }
    None
}

impl Window {
    /// How long it stays closed at a stretch, by the clock on the wall.
    pub fn length(&self) -> Millis {
        match self {
            Window::Once { from, to } => to.since(*from),
            Window::Weekly(weekly) => {
                let span = weekly.to.duration_since(weekly.from).as_millis();
                let day = 86_400_000;
                Millis(u64::try_from(if span <= 0 { span + day } else { span }).unwrap_or(0))
            }
        }
    }

    /// Where this window begins and ends when `at` is inside it.
    fn closed_around(&self, at: Timestamp) -> Option<(Timestamp, Timestamp)> {
        match self {
            Window::Once { from, to } => (*from <= at && at < *to).then_some((*from, *to)),
            Window::Weekly(weekly) => weekly.closed_around(at),
        }
    }
}

impl Weekly {
    fn closed_around(&self, at: Timestamp) -> Option<(Timestamp, Timestamp)> {
        let local = at.to_jiff().to_zoned(self.zone.clone());
        let overnight = self.to <= self.from;
        [0_i64, -1].into_iter().filter(|days_back| overnight || *days_back == 0).find_map(|days_back| {
            let day = local.date().checked_add(days_back.days()).ok()?;
            if !self.days[weekday_index(day.weekday())] {
                return None;
            }
            let last_day = if overnight { day.checked_add(1.days()).ok()? } else { day };
            let opens = self.instant(day.to_datetime(self.from))?;
            let closes = self.instant(last_day.to_datetime(self.to))?;
            (opens <= at && at < closes).then_some((opens, closes))
        })
    }

    fn instant(&self, civil: jiff::civil::DateTime) -> Option<Timestamp> {
        let zoned: Zoned = civil.to_zoned(self.zone.clone()).ok()?;
        Some(Timestamp(zoned.timestamp().as_millisecond()))
    }
}

pub(crate) fn weekday_index(day: Weekday) -> usize {
    usize::try_from(day.to_monday_zero_offset()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        Timestamp::parse_rfc3339(text).expect("an instant")
    }

    fn weekly(days: &[&str], from: &str, to: &str, zone: &str) -> Window {
        Window::Weekly(Weekly {
            days: DAYS.map(|day| days.contains(&day)),
            from: from.parse().expect("a time"),
            to: to.parse().expect("a time"),
            zone: TimeZone::get(zone).expect("a zone"),
        })
    }

    #[test]
    fn a_due_time_inside_a_window_moves_to_its_end() {
        let business = [weekly(&["mon", "tue", "wed", "thu", "fri"], "09:00", "17:00", "Europe/Berlin")];
        let check = |due: &str, open: &str| assert_eq!(open_at(&business, at(due)), Some(at(open)), "{due}");
        check("2026-11-16T07:59:59Z", "2026-11-16T07:59:59Z");
        check("2026-11-16T08:00:00Z", "2026-11-16T16:00:00Z");
        check("2026-11-16T16:00:00Z", "2026-11-16T16:00:00Z");
        check("2026-11-15T10:00:00Z", "2026-11-15T10:00:00Z");
        check("2026-07-15T07:00:00Z", "2026-07-15T15:00:00Z");
    }

    #[test]
    fn windows_over_midnight_and_neighbouring_windows_are_passed() {
        let nights = [weekly(&["fri"], "22:00", "06:00", "UTC"), weekly(&["sat"], "06:00", "08:00", "UTC")];
        assert_eq!(open_at(&nights, at("2026-11-13T23:00:00Z")), Some(at("2026-11-14T08:00:00Z")));
        assert_eq!(open_at(&nights, at("2026-11-14T05:00:00Z")), Some(at("2026-11-14T08:00:00Z")));
        assert_eq!(open_at(&nights, at("2026-11-14T23:00:00Z")), Some(at("2026-11-14T23:00:00Z")));
        assert_eq!(last_open(&nights, at("2026-11-14T07:00:00Z")), Some(at("2026-11-13T21:59:59.999Z")));
        assert_eq!(last_open(&nights, at("2026-11-14T08:00:00Z")), Some(at("2026-11-14T08:00:00Z")));
    }

    #[test]
    fn a_clock_change_does_not_strand_a_window() {
        // Berlin leaps from 02:00 to 03:00 on 2026-03-29: the end of the window does not exist that night.
        let gap = [weekly(&["sun"], "01:00", "02:30", "Europe/Berlin")];
        let open = open_at(&gap, at("2026-03-29T00:30:00Z")).expect("opens");
        assert!(open > at("2026-03-29T00:30:00Z") && open <= at("2026-03-29T02:00:00Z"), "{}", open.to_rfc3339());
    }

    /// Alone, or one leading into the next; days of the week are no longer than a day.
    #[test]
    fn what_stays_closed_for_too_long_is_told_by_its_place() {
        let once = |from: &str, to: &str| Window::Once { from: at(from), to: at(to) };
        let all: Vec<&str> = DAYS.to_vec();
        let table = [
            (vec![once("2026-01-01T00:00:00Z", "2027-01-02T00:00:00Z")], None),
            (vec![once("2026-01-01T00:00:00Z", "2027-01-02T00:00:01Z")], Some(0)),
            (
                vec![weekly(&all, "00:00", "23:00", "UTC"), once("2026-01-01T00:00:00Z", "2999-01-01T00:00:00Z")],
                Some(1),
            ),
            (
                vec![
                    once("2026-07-01T00:00:00Z", "2027-04-01T00:00:00Z"),
                    once("2026-01-01T00:00:00Z", "2026-07-01T00:00:00Z"),
                ],
                Some(1),
            ),
            (
                vec![
                    once("2026-01-01T00:00:00Z", "2026-07-01T00:00:00Z"),
                    once("2026-07-02T00:00:00Z", "2027-04-01T00:00:00Z"),
                ],
                None,
            ),
        ];
        for (windows, expected) in table {
            assert_eq!(too_long(&windows), expected, "{windows:?}");
        }
    }

    #[test]
    fn windows_that_never_open_are_told_apart() {
        let all: Vec<&str> = DAYS.to_vec();
        let closed = [weekly(&all, "00:00", "12:00", "UTC"), weekly(&all, "12:00", "00:00", "UTC")];
        assert_eq!(open_at(&closed, at("2026-11-16T08:00:00Z")), None);
        assert_eq!(last_open(&closed, at("2026-11-16T08:00:00Z")), None);
        let once = [Window::Once { from: at("2026-11-16T08:00:00Z"), to: at("2026-12-01T00:00:00Z") }];
        assert_eq!(open_at(&once, at("2026-11-20T00:00:00Z")), Some(at("2026-12-01T00:00:00Z")));
    }
}
