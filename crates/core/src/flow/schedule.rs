//! Schedules: at which instants something starts by itself, and which of them are made up for when nobody was there.
//!
//! Like everything here it has no clock. How far a schedule has been dealt with is an instant that its keeper remembers; all
//! that is due follows from that instant and from now.

#[cfg(test)]
mod tests;

use croner::Cron;
use croner::parser::CronParser;
use jiff::tz::TimeZone;
use jiff::{ToSpan, Zoned};
use serde::{Deserialize, Serialize};

use crate::invalid::Invalid;
use crate::time::{Millis, Timestamp};
use crate::words::words;

/// When, as people say it: a cron expression or a span, in a time zone, or whenever an event is told; within bounds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Times {
    /// A cron expression.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cron: Option<String>,
    /// From one instant to the next, counted from `start_at` or else from `anchor`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<Millis>,
    /// In place of instants: the type of an event from outside, which may end in `*`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<String>,
    /// A name of the IANA database; UTC where nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<String>,
    /// No instant is before this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_at: Option<Timestamp>,
    /// No instant is after this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_at: Option<Timestamp>,
    /// When it was made.
    #[serde(default)]
    pub anchor: Timestamp,
}

/// `Times`, read and found good.
#[derive(Clone, Debug)]
pub struct Calendar {
    rhythm: ScheduleTrigger,
    from: Option<Timestamp>,
    to: Option<Timestamp>,
}

#[derive(Clone, Debug)]
enum ScheduleTrigger {
    Cron(Box<Cron>, TimeZone),
    Every {
        span: i64,
        anchor: i64,
    },
    /// It has no instants: somebody tells of an event.
    Event(String),
}

words! {
    /// The treatment of instants that were missed.
    pub enum CatchUp {
        None = 0 "none",
        /// The newest of them is fired, late.
        Last = 1 "last",
        /// Each of them is fired, up to a limit; the newest count.
        All = 2 "all",
    }
}

words! {
    /// The treatment of an instant while the run before it is still open.
    pub enum Overlap {
        Allow = 0 "allow",
        Skip = 1 "skip",
    }
}

/// The next action.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Due {
    /// Oldest first.
    pub fire: Vec<Timestamp>,
    /// How many passed that are not fired; counted as far as `MOST_COUNTED`.
    pub missed: u64,
    /// The newest instant that has come: after `fire` everything up to here is dealt with.
    pub newest: Option<Timestamp>,
}

/// An instant that is fired within this span is on time.
pub const ON_TIME: Millis = Millis::from_secs(60);

/// Shorter spans than this between two instants are no schedule.
pub const SHORTEST: Millis = Millis::from_secs(1);
const LONGEST: Millis = Millis::from_days(3_660);

/// How many instants can be caught up at most, and how many are where nothing is said.
pub const MOST_CAUGHT_UP: u32 = 1_000;
/// Missed instants that are fired late, unless the schedule says otherwise.
pub const CAUGHT_UP: u32 = 100;

/// Nobody reads more than that.
pub const MOST_COUNTED: usize = 10_000;

const MOST_CHARACTERS: usize = 200;

impl Times {
    /// Everything that is wrong with it, each by the name of its field.
    pub fn read(&self) -> Result<Calendar, Invalid> {
        let mut faults = Invalid::default();
        let zone = read_zone(self.time_zone.as_deref()).map_err(|message| faults.push("time_zone", message)).ok();
        if let (Some(from), Some(to)) = (self.start_at, self.end_at)
            && to < from
        {
            faults.push("end_at", "must not come before start_at");
        }
        let rhythm = match (&self.cron, self.every, &self.event) {
            (None, None, None) => Err(("cron", "give `cron`, `every` or `event`".to_owned())),
            (Some(text), None, None) => read_cron(text)
                .map(|cron| ScheduleTrigger::Cron(Box::new(cron), zone.unwrap_or(TimeZone::UTC)))
                .map_err(|message| ("cron", message)),
            (None, Some(span), None) => read_span(span)
                .map(|span| ScheduleTrigger::Every { span, anchor: self.start_at.unwrap_or(self.anchor).0 })
                .map_err(|message| ("every", message)),
            (None, None, Some(event)) => check_events(event)
                .map(|()| ScheduleTrigger::Event(event.clone()))
                .map_err(|message| ("event", message)),
            (cron, every, _) => {
                if let Some(Err(message)) = cron.as_deref().map(read_cron) {
                    faults.push("cron", message);
                }
                let second = if cron.is_some() && every.is_some() { "every" } else { "event" };
                Err((second, "give only one of `cron`, `every` and `event`".to_owned()))
            }
        };
        let rhythm = rhythm.map_err(|(field, message)| faults.push(field, message)).ok();
        let calendar = rhythm.map(|rhythm| Calendar { rhythm, from: self.start_at, to: self.end_at });
        match calendar {
            Some(calendar) if faults.is_empty() => {
                let begin = self.start_at.unwrap_or(self.anchor);
                if self.event.is_none() && calendar.rhythm.after(begin - Millis(1)).is_none() {
                    return Err(Invalid::one("cron", "never comes"));
                }
                Ok(calendar)
            }
            _ => Err(faults),
        }
    }

    /// Whether both name the same instants, so that what was dealt with stays so.
    pub fn same_instants(&self, other: &Times) -> bool {
        let bare = |times: &Times| Times {
            anchor: if times.every.is_some() && times.start_at.is_none() { times.anchor } else { Timestamp(0) },
            time_zone: Some(times.time_zone.clone().unwrap_or_else(|| "UTC".into())),
            ..times.clone()
        };
        bare(self) == bare(other)
    }
}

fn read_zone(name: Option<&str>) -> Result<TimeZone, String> {
    match name {
        None => Ok(TimeZone::UTC),
        Some(name) => TimeZone::get(name)
            .map_err(|_| format!("`{}` is no time zone; write one such as Europe/Berlin", clip(name))),
    }
}

fn read_cron(text: &str) -> Result<Cron, String> {
    if text.len() > MOST_CHARACTERS {
        return Err(format!("may have {MOST_CHARACTERS} characters at most"));
    }
    CronParser::new().parse(text).map_err(|error| {
        let what = error.to_string();
        let what = what.split_once(": ").map_or(what.as_str(), |(_, rest)| rest).trim_end_matches('.');
        format!(
            "`{text}` is no cron expression: {what}; write minute, hour, day, month and weekday, such as `30 2 * * 1-5`"
        )
    })
}

fn read_span(span: Millis) -> Result<i64, String> {
    if span < SHORTEST || span > LONGEST {
        return Err("must be between 1s and 3660d".into());
    }
    i64::try_from(span.0).map_err(|_| "is too long".into())
}

/// Checks the name of an event from outside; the error says what is wrong with it.
pub fn check_event(name: &str) -> Result<(), String> {
    let known = |it: char| it.is_ascii_alphanumeric() || matches!(it, '.' | '_' | '-' | ':' | '/');
    if name.is_empty() || name.len() > MOST_CHARACTERS || !name.chars().all(known) {
        return Err(format!("must be letters, digits, `.`, `_`, `-`, `:` and `/`, {MOST_CHARACTERS} at most"));
    }
    Ok(())
}

/// One name, or with a `*` at its end all that begin so; `*` alone is all of them.
fn check_events(pattern: &str) -> Result<(), String> {
    match pattern.strip_suffix('*') {
        Some("") => Ok(()),
        bare => check_event(bare.unwrap_or(pattern)).map_err(|message| format!("{message}, and may end in `*`")),
    }
}

fn clip(text: &str) -> String {
    text.chars().take(60).collect()
}

impl ScheduleTrigger {
    /// The first instant after `at`.
    fn after(&self, at: Timestamp) -> Option<Timestamp> {
        match self {
            ScheduleTrigger::Every { span, anchor } => {
                let rounds = at.0.saturating_sub(*anchor).div_euclid(*span).saturating_add(1).max(0);
                rounds.checked_mul(*span).and_then(|past| past.checked_add(*anchor)).map(Timestamp)
            }
            ScheduleTrigger::Event(_) => None,
            ScheduleTrigger::Cron(cron, zone) => {
                let mut found = cron.find_next_occurrence(&whole_second(at, zone), false).ok()?;
                while !is_meant(cron, &found) {
                    found = cron.find_next_occurrence(&found, false).ok()?;
                }
                Some(instant(&found))
            }
        }
    }

    /// The last instant at or before `at`.
    fn until(&self, at: Timestamp) -> Option<Timestamp> {
        match self {
            ScheduleTrigger::Every { span, anchor } => {
                let rounds = at.0.saturating_sub(*anchor).div_euclid(*span);
                (rounds >= 0).then(|| Timestamp(anchor.saturating_add(rounds.saturating_mul(*span))))
            }
            ScheduleTrigger::Event(_) => None,
            ScheduleTrigger::Cron(cron, zone) => {
                let mut found = cron.find_previous_occurrence(&whole_second(at, zone), true).ok()?;
                while !is_meant(cron, &found) {
                    found = cron.find_previous_occurrence(&found, false).ok()?;
                }
                Some(instant(&found))
            }
        }
    }
}

/// Whether an expression means this instant: its time on the wall, or one that the clock has just leapt over. The search alone
/// takes whatever comes first after a leap for a time that was in it.
fn is_meant(cron: &Cron, found: &Zoned) -> bool {
    if cron.is_time_matching(found).unwrap_or(true) {
        return true;
    }
    let on_a_wall_that_never_leaps = |it: &Zoned| it.datetime().to_zoned(TimeZone::UTC).ok();
    let second_before = found.checked_sub(1.second()).ok();
    let (Some(leapt_from), Some(leapt_to)) =
        (second_before.as_ref().and_then(on_a_wall_that_never_leaps), on_a_wall_that_never_leaps(found))
    else {
        return false;
    };
    cron.find_next_occurrence(&leapt_from, false).is_ok_and(|meant| meant < leapt_to)
}

/// Instants of cron are whole seconds: what is after a part of one is after the whole.
fn whole_second(at: Timestamp, zone: &TimeZone) -> Zoned {
    Timestamp(at.0.div_euclid(1_000).saturating_mul(1_000)).to_jiff().to_zoned(zone.clone())
}

fn instant(at: &Zoned) -> Timestamp {
    Timestamp(at.timestamp().as_millisecond())
}

impl Calendar {
    /// The first instant after `at`; nothing when it is over.
    pub fn after(&self, at: Timestamp) -> Option<Timestamp> {
        let begin = self.from.map_or(at, |from| at.max(from - Millis(1)));
        self.rhythm.after(begin).filter(|next| self.to.is_none_or(|to| *next <= to))
    }

    /// The last instant at or before `at`; nothing when it has not begun.
    pub fn until(&self, at: Timestamp) -> Option<Timestamp> {
        let end = self.to.map_or(at, |to| at.min(to));
        self.rhythm.until(end).filter(|last| self.from.is_none_or(|from| *last >= from))
    }

    /// Whether an event of that type, told at that instant, lets it fire.
    pub fn listens_to(&self, event: &str, at: Timestamp) -> bool {
        let ScheduleTrigger::Event(wanted) = &self.rhythm else { return false };
        let is_wanted = wanted.strip_suffix('*').map_or(event == wanted, |start| event.starts_with(start));
        is_wanted && self.from.is_none_or(|from| at >= from) && !self.is_over(at)
    }

    /// Whether nothing can come after `at`.
    pub fn is_over(&self, at: Timestamp) -> bool {
        match self.rhythm {
            ScheduleTrigger::Event(_) => self.to.is_some_and(|to| at > to),
            _ => self.after(at).is_none(),
        }
    }

    /// The next few instants after `at`.
    pub fn coming(&self, at: Timestamp) -> impl Iterator<Item = Timestamp> + '_ {
        std::iter::successors(self.after(at), |last| self.after(*last))
    }

    /// The instants since `settled`, up to which everything is dealt with. An instant that comes on time is always fired; when something
    /// did not, `catch_up` says what is fired late. A clock that was set back finds nothing: no instant comes twice.
    pub fn due(&self, settled: Timestamp, now: Timestamp, catch_up: CatchUp, limit: u32) -> Due {
        let back = std::iter::successors(self.until(now), |last| self.until(*last - Millis(1)));
        let come: Vec<Timestamp> = back.take_while(|at| *at > settled).take(MOST_COUNTED).collect();
        let on_time = come.iter().take_while(|at| now.since(**at) <= ON_TIME).count();
        let fired = match catch_up {
            _ if on_time == come.len() => on_time,
            CatchUp::None => on_time,
            CatchUp::Last => 1,
            CatchUp::All => come.len().min(limit.max(1) as usize),
        };
        let fire: Vec<Timestamp> = come.iter().take(fired).rev().copied().collect();
        Due { fire, missed: (come.len() - fired) as u64, newest: come.first().copied() }
    }
}
