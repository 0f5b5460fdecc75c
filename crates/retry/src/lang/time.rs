//! Instants and spans in whole milliseconds, and the ways people write them.
//!
//! There is no clock here: `now` is always an argument.

use std::fmt;
use std::ops::{Add, Sub};

use jiff::fmt::rfc2822;
use serde::{Deserialize, Serialize};

/// An instant: milliseconds since the Unix epoch, UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(pub i64);

/// A span of time that is never negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Millis(pub u64);

impl Timestamp {
    /// The end of time.
    pub const MAX: Timestamp = Timestamp(i64::MAX);

    /// How long after `earlier` this is; zero when it is not after it.
    pub fn since(self, earlier: Timestamp) -> Millis {
        Millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// RFC 3339 in UTC with milliseconds. Instants outside what a calendar can name are clamped.
    pub fn to_rfc3339(self) -> String {
        format!("{:.3}", self.to_jiff())
    }

    /// Reads an RFC 3339 instant.
    pub fn parse_rfc3339(text: &str) -> Result<Timestamp, TimeError> {
        text.trim()
            .parse::<jiff::Timestamp>()
            .map(|t| Timestamp(t.as_millisecond()))
            .map_err(|_| TimeError::Instant(clip(text)))
    }

    /// The date form of `Retry-After`, such as `Wed, 21 Oct 2015 07:28:00 GMT`.
    pub fn parse_http_date(text: &str) -> Result<Timestamp, TimeError> {
        rfc2822::DateTimeParser::new()
            .parse_timestamp(text.trim())
            .map(|t| Timestamp(t.as_millisecond()))
            .map_err(|_| TimeError::Instant(clip(text)))
    }

    /// The same instant in `jiff`, clamped to its range.
    pub fn to_jiff(self) -> jiff::Timestamp {
        let (min, max) = (jiff::Timestamp::MIN, jiff::Timestamp::MAX);
        let clamped = self.0.clamp(min.as_millisecond() + 1, max.as_millisecond());
        jiff::Timestamp::from_millisecond(clamped).unwrap_or(max)
    }
}

impl Add<Millis> for Timestamp {
    type Output = Timestamp;
    fn add(self, span: Millis) -> Timestamp {
        Timestamp(self.0.saturating_add(i64::try_from(span.0).unwrap_or(i64::MAX)))
    }
}

impl Sub<Millis> for Timestamp {
    type Output = Timestamp;
    fn sub(self, span: Millis) -> Timestamp {
        Timestamp(self.0.saturating_sub(i64::try_from(span.0).unwrap_or(i64::MAX)))
    }
}

impl Millis {
    /// No time at all.
    pub const ZERO: Millis = Millis(0);
    /// The longest span.
    pub const MAX: Millis = Millis(u64::MAX);

    /// A span of seconds.
    pub const fn from_secs(secs: u64) -> Millis {
        Millis(secs.saturating_mul(1_000))
    }

    /// A span of days of 24 hours.
    pub const fn from_days(days: u64) -> Millis {
        Millis::from_secs(days.saturating_mul(86_400))
    }

    /// From a count of milliseconds that may be fractional, huge or not a number: it saturates and never wraps.
    pub fn from_f64(ms: f64) -> Millis {
        if ms.is_nan() || ms <= 0.0 {
            Millis::ZERO
        } else if ms >= u64::MAX as f64 {
            Millis::MAX
        } else {
            Millis(ms.round() as u64)
        }
    }

    /// The milliseconds as a floating-point number.
    pub fn as_f64(self) -> f64 {
        self.0 as f64
    }

    /// Reads `250ms`, `90s`, `5m`, `1h30m`, `14d`, `2w`, `PT5M`, or a bare number of seconds.
    pub fn parse(text: &str) -> Result<Millis, TimeError> {
        let trimmed = text.trim();
        let bad = || TimeError::Duration(clip(text));
        if trimmed.is_empty() {
            return Err(bad());
        }
        if let Some(iso) = trimmed.strip_prefix(['P', 'p']) {
            return parse_iso(iso).ok_or_else(bad);
        }
        if trimmed.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
            return trimmed.parse::<f64>().map_err(|_| bad()).and_then(Millis::parse_secs);
        }
        parse_units(trimmed, |unit| match unit {
            "ms" => Some(1.0),
            "s" | "sec" | "secs" => Some(1e3),
            "m" | "min" | "mins" => Some(60e3),
            "h" | "hr" | "hrs" => Some(3_600e3),
            "d" | "day" | "days" => Some(86_400e3),
            "w" | "week" | "weeks" => Some(604_800e3),
            _ => None,
        })
        .ok_or_else(bad)
    }

    /// A number in a document is a number of seconds.
    pub fn parse_secs(secs: f64) -> Result<Millis, TimeError> {
        if !secs.is_finite() || secs < 0.0 {
            return Err(TimeError::Duration(secs.to_string()));
        }
        Ok(Millis::from_f64(secs * 1_000.0))
    }
}

impl Add for Millis {
    type Output = Millis;
    fn add(self, other: Millis) -> Millis {
        Millis(self.0.saturating_add(other.0))
    }
}

/// The form people read: `1m 12s`, `7d`, `250ms`. At most three units, smaller ones are dropped once days are involved.
impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < 1_000 {
            return if self.0 == 0 { f.write_str("0s") } else { write!(f, "{}ms", self.0) };
        }
        if self.0 < 10_000 && !self.0.is_multiple_of(1_000) {
            return write!(f, "{}s", trim_zeros(self.0 as f64 / 1_000.0));
        }
        let secs = self.0 / 1_000;
        let parts = [
            (secs / 86_400, "d"),
            (secs / 3_600 % 24, "h"),
            (secs / 60 % 60, "m"),
            (if secs >= 86_400 { 0 } else { secs % 60 }, "s"),
        ];
        let words: Vec<String> = parts.iter().filter(|(n, _)| *n > 0).map(|(n, unit)| format!("{n}{unit}")).collect();
        f.write_str(&words.join(" "))
    }
}

/// A text that is no time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimeError {
    /// No span of time.
    #[error("`{0}` is not a duration; write seconds as a number, or 250ms, 90s, 5m, 1h30m, 14d, PT5M")]
    Duration(String),
    /// No instant.
    #[error("`{0}` is not an instant; write RFC 3339, such as 2026-01-31T09:00:00Z")]
    Instant(String),
}

fn trim_zeros(value: f64) -> String {
    format!("{value:.3}").trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn clip(text: &str) -> String {
    let mut short: String = text.chars().take(40).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

/// `PnDTnHnMnS` and `PnW`; months and years have no fixed length and are refused.
fn parse_iso(rest: &str) -> Option<Millis> {
    let (date, time) = match rest.split_once(['T', 't']) {
        Some((date, time)) if !time.is_empty() => (date, Some(time)),
        Some(_) => return None,
        None => (rest, None),
    };
    let lower = |text: &str| text.to_ascii_lowercase();
    let days = parse_units_or_empty(&lower(date), |unit| match unit {
        "d" => Some(86_400e3),
        "w" => Some(604_800e3),
        _ => None,
    })?;
    let clock = parse_units_or_empty(&lower(time.unwrap_or("")), |unit| match unit {
        "h" => Some(3_600e3),
        "m" => Some(60e3),
        "s" => Some(1e3),
        _ => None,
    })?;
    (!date.is_empty() || time.is_some()).then_some(days + clock)
}

fn parse_units_or_empty(text: &str, scale: impl Fn(&str) -> Option<f64>) -> Option<Millis> {
    if text.is_empty() { Some(Millis::ZERO) } else { parse_units(text, scale) }
}

fn parse_units(text: &str, scale: impl Fn(&str) -> Option<f64>) -> Option<Millis> {
    let mut total = 0.0;
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let value: f64 = rest[..digits].parse().ok()?;
        rest = rest[digits..].trim_start();
        let unit_end = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
        total += value * scale(&rest[..unit_end])?;
        rest = rest[unit_end..].trim_start();
    }
    total.is_finite().then(|| Millis::from_f64(total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_in_every_documented_form() {
        let check = |text: &str, ms: u64| assert_eq!(Millis::parse(text), Ok(Millis(ms)), "{text}");
        check("250ms", 250);
        check("90s", 90_000);
        check("5m", 300_000);
        check("1h30m", 5_400_000);
        check("1h 30m", 5_400_000);
        check("14d", 1_209_600_000);
        check("2w", 1_209_600_000);
        check("1.5h", 5_400_000);
        check("10", 10_000);
        check("0.05", 50);
        check("PT5M", 300_000);
        check("P1DT2H", 93_600_000);
        check("P2W", 1_209_600_000);
        check("pt0.5s", 500);
    }

    #[test]
    fn what_is_not_a_duration_is_refused_without_panic() {
        for text in ["", " ", "-5s", "5", "5 parsecs", "s", "1h30", "P", "PT", "P1Y", "1e9s", "∞", "5m-", "\0"] {
            if text == "5" {
                continue;
            }
            assert!(Millis::parse(text).is_err(), "{text:?}");
        }
        assert!(Millis::parse_secs(f64::NAN).is_err());
        assert!(Millis::parse_secs(-1.0).is_err());
        assert!(Millis::parse(&"9".repeat(400)).is_err());
    }

    #[test]
    fn spans_are_shown_as_people_say_them() {
        let check = |ms: u64, words: &str| assert_eq!(Millis(ms).to_string(), words);
        check(0, "0s");
        check(250, "250ms");
        check(2_100, "2.1s");
        check(72_000, "1m 12s");
        check(604_800_000, "7d");
        check(93_784_000, "1d 2h 3m");
    }

    #[test]
    fn instants_travel_through_their_text() {
        let at = Timestamp(1_445_412_480_123);
        assert_eq!(at.to_rfc3339(), "2015-10-21T07:28:00.123Z");
        assert_eq!(Timestamp::parse_rfc3339(&at.to_rfc3339()), Ok(at));
        assert_eq!(Timestamp::parse_http_date("Wed, 21 Oct 2015 07:28:00 GMT"), Ok(Timestamp(1_445_412_480_000)));
        assert!(Timestamp::parse_rfc3339("yesterday").is_err());
        assert!(!Timestamp::MAX.to_rfc3339().is_empty());
    }

    #[test]
    fn arithmetic_saturates() {
        assert_eq!(Timestamp::MAX + Millis::MAX, Timestamp::MAX);
        assert_eq!(Timestamp(5).since(Timestamp(9)), Millis::ZERO);
        assert_eq!(Millis::from_f64(f64::INFINITY), Millis::MAX);
    }
}
