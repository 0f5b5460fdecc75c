//! Durations and times, for terminals and for pipes.

use clap::ValueEnum;
use comeback_core::{Millis, Timestamp};
use serde_json::Value;

use super::{Cell, Output};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TimeFormat {
    Relative,
    Local,
    #[value(alias = "iso")]
    Utc,
}

/// The time in a JSON value.
pub fn instant(value: &Value) -> Option<Timestamp> {
    value.as_str().and_then(|text| Timestamp::parse_rfc3339(text).ok())
}

impl Output {
    /// A time in the chosen format; relative to the time of the server.
    pub fn at(&self, at: Timestamp, now: Timestamp) -> String {
        match self.time {
            TimeFormat::Relative if at == now => "now".into(),
            TimeFormat::Relative if at >= now => soon(at.since(now)),
            TimeFormat::Relative => format!("{} ago", span(now.since(at))),
            TimeFormat::Utc => at.to_rfc3339(),
            TimeFormat::Local => local(at),
        }
    }

    /// A time in a table.
    pub fn time_cell(&self, at: &Value, now: Timestamp) -> Cell {
        match instant(at) {
            None => Cell::from("–"),
            Some(at) => Cell { moves: self.time == TimeFormat::Relative, ..Cell::from(self.at(at, now)) },
        }
    }

    /// An age: a duration on a terminal, a time on a pipe.
    pub fn age(&self, at: &Value, now: Timestamp) -> Cell {
        match (instant(at), self.time) {
            (Some(at), TimeFormat::Relative) => Cell { moves: true, ..Cell::from(span(now.since(at))) },
            _ => self.time_cell(at, now),
        }
    }
}

fn local(at: Timestamp) -> String {
    let zoned = jiff::Timestamp::from_millisecond(at.0).map(|at| at.to_zoned(jiff::tz::TimeZone::system()));
    zoned.map_or_else(|_| at.to_rfc3339(), |at| at.strftime("%Y-%m-%d %H:%M:%S %Z").to_string())
}

/// A duration in at most two units.
pub fn span(span: Millis) -> String {
    let Millis(ms) = span;
    let (secs, mins, hours, days) = (ms / 1_000, ms / 60_000, ms / 3_600_000, ms / 86_400_000);
    match ms {
        0..1_000 => format!("{ms}ms"),
        1_000..10_000 if ms % 1_000 >= 100 => format!("{secs}.{}s", ms % 1_000 / 100),
        1_000..60_000 => format!("{secs}s"),
        60_000..3_600_000 => two(mins, "m", secs % 60, "s"),
        3_600_000..86_400_000 => two(hours, "h", mins % 60, "m"),
        _ => two(days, "d", hours % 24, "h"),
    }
}

/// `in 5s`, or `at once`.
pub fn soon(delay: Millis) -> String {
    if delay == Millis::ZERO { "at once".into() } else { format!("in {}", span(rounded_up(delay))) }
}

/// Rounds up: a remaining hour, received a moment later, must not print as 59m 59s.
fn rounded_up(Millis(ms): Millis) -> Millis {
    let unit = match ms {
        0..1_000 => 10,
        1_000..10_000 => 100,
        10_000..3_600_000 => 1_000,
        3_600_000..86_400_000 => 60_000,
        _ => 3_600_000,
    };
    Millis(ms.div_ceil(unit) * unit)
}

fn two(large: u64, unit: &str, small: u64, small_unit: &str) -> String {
    if small == 0 { format!("{large}{unit}") } else { format!("{large}{unit} {small}{small_unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_to_come_is_not_shortened_by_the_way() {
        for (ms, words) in [
            (0, "at once"),
            (7, "in 10ms"),
            (996, "in 1s"),
            (1_901, "in 2s"),
            (59_990, "in 1m"),
            (3_599_991, "in 1h"),
            (7 * 86_400_000 - 5, "in 7d"),
            (4_200, "in 4.2s"),
        ] {
            assert_eq!(soon(Millis(ms)), words);
        }
    }

    #[test]
    fn spans_are_short() {
        for (ms, words) in [
            (0, "0ms"),
            (250, "250ms"),
            (2_100, "2.1s"),
            (8_000, "8s"),
            (8_099, "8s"),
            (42_000, "42s"),
            (72_000, "1m 12s"),
            (3_600_000, "1h"),
            (5_400_000, "1h 30m"),
            (14 * 86_400_000, "14d"),
        ] {
            assert_eq!(span(Millis(ms)), words);
        }
    }
}
