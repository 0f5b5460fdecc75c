//! The settings of a dependency, and how they are read. Each part is off unless it is named; `{}` switches it on with its
//! defaults.

use serde_json::{Map, Value, json};

use crate::dialect::fields::Fields;
use crate::dialect::parts;
use crate::invalid::Invalid;
use crate::policy::window_to_json;
use crate::time::{Millis, Timestamp};
use crate::window::{self, Window};

/// The longest automatic hold.
const LONGEST: Millis = Millis::from_days(30);
const MOST_STARTS: u32 = 1_000_000;

/// The settings of a dependency; each part is off unless it is given.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// Whether a `Retry-After` holds everybody.
    pub gate: Option<GateSettings>,
    /// The circuit breaker.
    pub breaker: Option<Breaker>,
    /// The retry budget.
    pub budget: Option<RetryBudget>,
    /// The adaptive concurrency limit.
    pub concurrency: Option<Concurrency>,
    /// Closed times.
    pub calendar: Option<Calendar>,
}

/// One `Retry-After` holds everybody.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GateSettings {
    /// The longest wait that is believed.
    pub max: Millis,
    /// The time over which the waiting tasks come back.
    pub spread: Millis,
}

/// Settings of the circuit breaker.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Breaker {
    /// It opens at so many failures within the window, if they are this part of all that ended.
    pub failures: u32,
    /// Part of the ended runs that must have failed, between 0 and 1.
    pub ratio: f64,
    /// The sliding window in which failures are counted.
    pub window: Millis,
    /// How long until the first canaries, and how long at most, since it becomes longer while they fail.
    pub open: Millis,
    /// The longest wait for canaries.
    pub max_open: Millis,
    /// How many are let through to see.
    pub canaries: u32,
    /// The first wave after they came back, and how long a wave lasts. Each is twice the one before.
    pub first_wave: u32,
    /// How long a wave lasts.
    pub wave: Millis,
}

/// Retries at most so many percent of first attempts, and so many a second in any case.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RetryBudget {
    /// Retries in percent of first attempts.
    pub percent: f64,
    /// Retries a second that are always allowed.
    pub floor: f64,
}

/// Settings of the adaptive concurrency limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Concurrency {
    /// The lowest limit.
    pub min: u32,
    /// The highest limit.
    pub max: u32,
    /// Answers slower than this are a sign of too much. Where nothing is said: than half of the time they may take.
    pub target: Option<Millis>,
}

/// Closed times of a dependency.
#[derive(Clone, Debug, PartialEq)]
pub struct Calendar {
    /// Times at which nothing starts.
    pub windows: Vec<Window>,
    /// Days, as they were written.
    pub holidays: Vec<String>,
    /// The time zone of the holidays.
    pub time_zone: Option<String>,
    /// The same as windows.
    pub days_off: Vec<Window>,
}

impl Settings {
    /// Whether every part is off.
    pub fn is_empty(&self) -> bool {
        *self == Settings::default()
    }

    /// Reads what was asked for; every fault is named by its path.
    pub fn parse(value: &Value) -> Result<Settings, Invalid> {
        let mut fields = Fields::new(value)?;
        let settings = Settings {
            gate: part(&mut fields, "gate", gate),
            breaker: part(&mut fields, "breaker", breaker),
            budget: part(&mut fields, "budget", budget),
            concurrency: part(&mut fields, "concurrency", concurrency),
            calendar: part(&mut fields, "calendar", calendar),
        };
        fields.finish()?;
        Ok(settings)
    }

    /// Faults of new settings. Settings that were stored before a limit came are still read.
    pub fn check(&self) -> Invalid {
        let mut faults = Invalid::default();
        if let Some(i) = self.calendar.as_ref().and_then(|it| window::too_long(&it.windows)) {
            faults.push(format!("calendar.windows[{i}].to"), window::words_of_too_long());
        }
        faults
    }

    /// As it is read again.
    pub fn to_json(&self) -> Value {
        let mut all = Map::new();
        if let Some(it) = &self.gate {
            all.insert("gate".into(), json!({"max": span(it.max), "spread": span(it.spread)}));
        }
        if let Some(it) = &self.breaker {
            let shown = json!({
                "failures": it.failures, "ratio": it.ratio, "window": span(it.window), "open": span(it.open),
                "max_open": span(it.max_open), "canaries": it.canaries, "first_wave": it.first_wave, "wave": span(it.wave),
            });
            all.insert("breaker".into(), shown);
        }
        if let Some(it) = &self.budget {
            all.insert("budget".into(), json!({"percent": it.percent, "floor": it.floor}));
        }
        if let Some(it) = &self.concurrency {
            let mut shown = json!({"min": it.min, "max": it.max});
            if let Some(target) = it.target {
                shown["target"] = span(target).into();
            }
            all.insert("concurrency".into(), shown);
        }
        if let Some(it) = &self.calendar {
            let windows: Vec<Value> = it.windows.iter().map(window_to_json).collect();
            let mut shown = json!({"windows": windows, "holidays": it.holidays});
            if let Some(zone) = &it.time_zone {
                shown["time_zone"] = zone.as_str().into();
            }
            all.insert("calendar".into(), shown);
        }
        all.into()
    }
}

/// To the millisecond: what people read drops the small parts of long spans.
fn span(it: Millis) -> String {
    if it.0.is_multiple_of(1_000) { format!("{}s", it.0 / 1_000) } else { format!("{}ms", it.0) }
}

fn part<T>(fields: &mut Fields<'_>, name: &str, read: impl Fn(&Value) -> Result<T, Invalid>) -> Option<T> {
    let (written, value) = fields.take(name)?;
    match read(value) {
        Ok(part) => Some(part),
        Err(faults) => {
            fields.absorb(written, faults);
            None
        }
    }
}

fn duration(fields: &mut Fields<'_>, name: &str, usual: Millis, least: Millis) -> Millis {
    given_duration(fields, name, least).unwrap_or(usual)
}

fn given_duration(fields: &mut Fields<'_>, name: &str, least: Millis) -> Option<Millis> {
    let given = fields.duration(&[name])?;
    if given < least || given > LONGEST {
        fields.fault(name, format!("must be between {least} and {LONGEST}"));
        return None;
    }
    Some(given)
}

fn count(fields: &mut Fields<'_>, name: &str, usual: u32) -> u32 {
    let given = fields.count(&[name]).unwrap_or(usual);
    if given == 0 || given > MOST_STARTS {
        fields.fault(name, format!("must be between 1 and {MOST_STARTS}"));
        return usual;
    }
    given
}

fn number(fields: &mut Fields<'_>, name: &str, usual: f64, least: f64, most: f64) -> f64 {
    let given = fields.number(&[name]).unwrap_or(usual);
    if !(least..=most).contains(&given) {
        fields.fault(name, format!("must be between {least} and {most}"));
        return usual;
    }
    given
}

fn gate(value: &Value) -> Result<GateSettings, Invalid> {
    let mut fields = Fields::new(value)?;
    let max = duration(&mut fields, "max", Millis::from_secs(3_600), Millis(1));
    let spread = duration(&mut fields, "spread", Millis::from_secs(10), Millis::ZERO);
    fields.finish()?;
    Ok(GateSettings { max, spread })
}

fn breaker(value: &Value) -> Result<Breaker, Invalid> {
    let mut fields = Fields::new(value)?;
    let mut it = Breaker {
        failures: count(&mut fields, "failures", 10),
        ratio: number(&mut fields, "ratio", 0.5, 0.01, 1.0),
        window: duration(&mut fields, "window", Millis::from_secs(10), Millis(100)),
        open: duration(&mut fields, "open", Millis::from_secs(2), Millis(100)),
        max_open: Millis::ZERO,
        canaries: count(&mut fields, "canaries", 1),
        first_wave: count(&mut fields, "first_wave", 5),
        wave: duration(&mut fields, "wave", Millis::from_secs(1), Millis(100)),
    };
    it.max_open = duration(&mut fields, "max_open", it.open.max(Millis::from_secs(15)), Millis(100));
    if it.max_open < it.open {
        fields.fault("max_open", "may not be shorter than open");
    }
    fields.finish()?;
    Ok(it)
}

fn budget(value: &Value) -> Result<RetryBudget, Invalid> {
    let mut fields = Fields::new(value)?;
    let percent = number(&mut fields, "percent", 20.0, 0.0, 1_000.0);
    let floor = number(&mut fields, "floor", 1.0, 0.1, 1_000_000.0);
    fields.finish()?;
    Ok(RetryBudget { percent, floor })
}

fn concurrency(value: &Value) -> Result<Concurrency, Invalid> {
    let mut fields = Fields::new(value)?;
    let it = Concurrency {
        min: count(&mut fields, "min", 1),
        max: count(&mut fields, "max", 100),
        target: given_duration(&mut fields, "target", Millis(1)),
    };
    if it.max < it.min {
        fields.fault("max", "may not be less than min");
    }
    fields.finish()?;
    Ok(it)
}

fn calendar(value: &Value) -> Result<Calendar, Invalid> {
    let mut fields = Fields::new(value)?;
    let windows = parts::windows(&mut fields).unwrap_or_default();
    let time_zone = fields.text("time_zone");
    let zone = match time_zone.as_deref().map(jiff::tz::TimeZone::get) {
        None => jiff::tz::TimeZone::UTC,
        Some(Ok(zone)) => zone,
        Some(Err(_)) => {
            fields.fault("time_zone", "is no time zone, such as Europe/Berlin");
            jiff::tz::TimeZone::UTC
        }
    };
    let (mut holidays, mut days_off) = (Vec::new(), Vec::new());
    match fields.take("holidays").map(|(_, value)| value) {
        None => {}
        Some(Value::Array(list)) if list.len() <= 1_000 => {
            for (i, item) in list.iter().enumerate() {
                match item.as_str().and_then(|text| Some((text, day(text, &zone)?))) {
                    Some((text, window)) => {
                        holidays.push(text.to_owned());
                        days_off.push(window);
                    }
                    None => fields.fault(format!("holidays[{i}]"), "must be a day, such as 2026-12-25"),
                }
            }
        }
        Some(_) => fields.fault("holidays", "must be a list of at most 1000 days"),
    }
    if windows.len() > 50 {
        fields.fault("windows", "at most 50 windows are allowed");
    } else if window::open_at(&windows, Timestamp(1_767_225_600_000)).is_none() {
        fields.fault("windows", "together they never open: nothing could ever start");
    }
    fields.finish()?;
    Ok(Calendar { windows, holidays, time_zone, days_off })
}

fn day(text: &str, zone: &jiff::tz::TimeZone) -> Option<Window> {
    let date: jiff::civil::Date = text.parse().ok()?;
    let instant =
        |date: jiff::civil::Date| Some(Timestamp(date.to_zoned(zone.clone()).ok()?.timestamp().as_millisecond()));
    Some(Window::Once { from: instant(date)?, to: instant(date.tomorrow().ok()?)? })
}
