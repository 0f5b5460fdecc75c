//! The larger parts of a policy: its backoff, its rules, its windows.

use jiff::civil::Time;
use jiff::tz::TimeZone;
use serde_json::Value;

use super::fields::{self, Fields};
use crate::failure::{Class, Trigger};
use crate::invalid::Invalid;
use crate::policy::{
    self, Backoff, Dialect, MAX_PATTERNS, MAX_RULES, MAX_WINDOWS, MessagePattern, Rule, RuleMatch, ScheduleEntry,
    Strategy, Then,
};
use crate::time::{Millis, Timestamp};
use crate::window::{DAYS, Weekly, Window};

#[derive(Clone, Copy, PartialEq)]
enum Shape {
    Immediate,
    Fixed,
    Linear,
    Exponential,
    Schedule,
}

/// The fault of an unknown strategy.
pub const UNKNOWN_STRATEGY: &str = "must be one of immediate, fixed, linear, exponential, schedule";

const STRATEGIES: [&str; 4] = ["strategy", "retry_strategy", "backoff_strategy", "backoff"];
const MULTIPLIERS: [&str; 2] = ["multiplier", "backoff_multiplier"];
const INITIAL_DELAYS: [&str; 2] = ["initial_delay", "initial_backoff"];
const MAX_DELAYS: [&str; 2] = ["max_delay", "max_backoff"];

/// A path of the policy by the name that the document has for it.
pub fn as_written(fields: &Fields<'_>, path: &str) -> String {
    let end = path.find(['.', '[']).unwrap_or(path.len());
    let (name, rest) = path.split_at(end);
    let written = match name {
        "multiplier" => fields.written(&MULTIPLIERS),
        "initial_delay" => fields.written_duration(&INITIAL_DELAYS).or(fields.written(&["wait_duration"])),
        "delay" => fields.written_duration(&["delay"]),
        "max_delay" => fields.written_duration(&MAX_DELAYS),
        _ => None,
    };
    format!("{}{rest}", written.unwrap_or(name))
}

/// Fields that say something else than the strategy does. Only natively: rows and documents of other dialects carry what they do not use.
fn refuse_contradictions(fields: &mut Fields<'_>, chosen: Option<Shape>, delay: Millis) {
    let Some(shape) = chosen else { return };
    let (word, waits) = match shape {
        Shape::Immediate => ("immediate", "waits for nothing"),
        Shape::Fixed => ("fixed", "always waits for `delay`"),
        Shape::Linear => ("linear", "grows by `delay`"),
        Shape::Exponential => ("exponential", "grows by `multiplier`"),
        Shape::Schedule => ("schedule", "waits as its list says"),
    };
    let list = fields.written(&["schedule", "custom_schedule"]).filter(|_| shape != Shape::Schedule);
    let factor = fields.written(&MULTIPLIERS).filter(|_| shape != Shape::Exponential);
    let of_list = shape == Shape::Schedule;
    let first = fields.written_duration(&INITIAL_DELAYS).or(fields.written(&["wait_duration"])).filter(|_| of_list);
    let is_delayed = of_list || (shape == Shape::Immediate && delay > Millis::ZERO);
    let delay = fields.written_duration(&["delay"]).filter(|_| is_delayed);
    for name in [list, factor, first, delay].into_iter().flatten() {
        fields.fault(name, format!("contradicts the strategy `{word}`, which {waits}; give one of the two"));
    }
}

/// Reads whatever of a backoff is there; what is not keeps the value of `base`.
pub fn backoff(fields: &mut Fields<'_>, base: &Backoff, dialect: Dialect) -> Backoff {
    let explicit = shape(fields);
    let schedule = schedule(fields);
    let initial = initial_delay(fields);
    let delay = fields.duration(&["delay"]);
    let multiplier = fields.number(&MULTIPLIERS);
    let max_delay = fields.duration(&MAX_DELAYS);
    let jitter = fields.take("jitter").and_then(|(name, value)| {
        let jitter = super::jitter_of(value);
        if jitter.is_none() {
            fields.fault(name, format!("must be true, false or one of {}", crate::Jitter::list()));
        }
        jitter
    });

    let chosen = explicit.or(schedule.as_ref().map(|_| Shape::Schedule));
    if dialect == Dialect::Native && !fields.is_stored() {
        refuse_contradictions(fields, chosen, delay.unwrap_or_default());
    }
    let wrong = multiplier.filter(|multiplier| !(multiplier.is_finite() && *multiplier >= 1.0));
    if wrong.is_some() {
        let name = fields.written(&MULTIPLIERS).unwrap_or("multiplier");
        fields.fault(name, "must be a number of 1 or more");
    }
    let multiplier = multiplier.filter(|_| wrong.is_none());
    let strategy = match chosen {
        None if initial.is_none() && delay.is_none() && multiplier.is_none() => base.strategy.clone(),
        Some(Shape::Immediate) => Strategy::Immediate { first: initial.or(delay).filter(|first| first.0 > 0) },
        Some(Shape::Fixed) => {
            // In rows of the dialect `workflow` 0 is the column's default and says nothing; its fixed delay is constant (S0-15, S0-34).
            let initial = initial.filter(|first| dialect != Dialect::Workflow || *first > Millis::ZERO);
            let own = delay.or(initial).unwrap_or_else(|| super::default_fixed(dialect, super::initial_of(base)));
            Strategy::Fixed { delay: own, first: initial.filter(|first| delay.is_some() && *first != own) }
        }
        Some(Shape::Linear) => {
            let first = initial.or(delay).unwrap_or_else(|| super::initial_of(base));
            Strategy::Linear { initial: first, step: delay.unwrap_or(first) }
        }
        Some(Shape::Schedule) => {
            let entries = schedule.filter(|entries| !entries.is_empty());
            Strategy::Schedule(entries.unwrap_or_else(|| super::default_schedule(dialect)))
        }
        Some(Shape::Exponential) | None => {
            if let (Some(a), Some(b)) = (initial, delay)
                && a != b
            {
                fields.fault("delay", "disagrees with the initial delay; give one of the two");
            }
            let (base_initial, base_multiplier) = match base.strategy {
                Strategy::Exponential { initial, multiplier } => (initial, multiplier),
                _ => (super::initial_of(base), 2.0),
            };
            Strategy::Exponential {
                initial: initial.or(delay).unwrap_or(base_initial),
                multiplier: multiplier.unwrap_or(base_multiplier),
            }
        }
    };
    // A preset's cap belongs to the preset's own curve; a list or a fixed delay says its lengths itself.
    let keeps_cap = matches!(strategy, Strategy::Exponential { .. } | Strategy::Linear { .. });
    Backoff {
        max_delay: max_delay.or(base.max_delay.filter(|_| keeps_cap)),
        jitter: jitter.unwrap_or(base.jitter),
        strategy,
    }
}

fn shape(fields: &mut Fields<'_>) -> Option<Shape> {
    let mut found: Option<Shape> = None;
    let mut agree = |fields: &mut Fields<'_>, name: &str, shape: Shape| match found {
        Some(other) if other != shape => {
            fields.fault(name, "names another strategy than a field beside it; give one");
        }
        _ => found = Some(shape),
    };
    for name in STRATEGIES {
        let Some((written, value)) = fields.take(name) else { continue };
        match value.as_str().and_then(shape_word) {
            Some(shape) => agree(fields, written, shape),
            None => fields.fault(written, UNKNOWN_STRATEGY),
        }
    }
    match fields.boolean(&["exponential_backoff"]) {
        Some(true) => agree(fields, "exponentialBackoff", Shape::Exponential),
        Some(false) => agree(fields, "exponentialBackoff", Shape::Fixed),
        None => {}
    }
    found
}

fn shape_word(word: &str) -> Option<Shape> {
    Some(match fields::snake(&word.trim().to_ascii_lowercase()).as_str() {
        "immediate" => Shape::Immediate,
        "fixed" | "fixed_delay" => Shape::Fixed,
        "linear" | "linear_backoff" => Shape::Linear,
        "exponential" | "exponential_backoff" | "backoff" => Shape::Exponential,
        "schedule" | "custom" => Shape::Schedule,
        _ => return None,
    })
}

fn initial_delay(fields: &mut Fields<'_>) -> Option<Millis> {
    let named = fields.duration(&INITIAL_DELAYS);
    let wait = fields.millis("wait_duration");
    if let (Some(a), Some(b)) = (named, wait)
        && a != b
    {
        fields.fault("waitDuration", "disagrees with the initial delay; give one of the two");
    }
    named.or(wait)
}

/// `["7d", "14d"]`, `[{attempt, delay}]`, or `{attempts: [{attempt, delay_days, …}]}`.
fn schedule(fields: &mut Fields<'_>) -> Option<Vec<ScheduleEntry>> {
    let (name, value) = fields.take("schedule").or_else(|| fields.take("custom_schedule"))?;
    if fields.has("custom_schedule") {
        fields.fault("custom_schedule", "stands beside `schedule`; give one of the two");
        fields.ignore("custom_schedule");
    }
    let list = match value {
        Value::Array(list) => list,
        Value::Object(_) => {
            let mut inner = Fields::new(value).ok()?;
            let list = match inner.take("attempts") {
                Some((_, Value::Array(list))) => Some(list),
                _ => {
                    inner.fault("attempts", "must be a list of delays");
                    None
                }
            };
            if let Err(faults) = inner.finish() {
                fields.absorb(name, faults);
            }
            list?
        }
        _ => {
            fields.fault(name, "must be a list of delays");
            return None;
        }
    };
    if list.len() > 1_000 {
        fields.fault(name, "may hold 1000 delays at most");
        return None;
    }
    let mut entries: Vec<ScheduleEntry> = Vec::with_capacity(list.len());
    for (i, item) in list.iter().enumerate() {
        match schedule_entry(item, i) {
            Ok(entry) if entries.last().is_some_and(|last| last.retry >= entry.retry) => {
                fields.fault(format!("{name}[{i}].attempt"), "attempts must be numbered upwards, each once");
            }
            Ok(entry) => entries.push(entry),
            Err(faults) => fields.absorb(&format!("{name}[{i}]"), faults),
        }
    }
    Some(entries)
}

fn schedule_entry(item: &Value, position: usize) -> Result<ScheduleEntry, Invalid> {
    let ordinal = u32::try_from(position + 1).unwrap_or(u32::MAX);
    let Value::Object(_) = item else {
        let delay = fields::duration(item, 1e3).map_err(|message| Invalid::one("", message))?;
        return Ok(ScheduleEntry { retry: ordinal, delay });
    };
    let mut entry = Fields::new(item)?;
    let retry = entry.count(&["attempt"]).unwrap_or(ordinal);
    let delay = entry.duration(&["delay"]);
    let parts = [("delay_days", 86_400.0), ("delay_hours", 3_600.0), ("delay_minutes", 60.0)].map(|(name, scale)| {
        let count = entry.number(&[name])?;
        if count < 0.0 {
            entry.fault(name, "cannot be negative");
        }
        Some(Millis::from_f64(count * scale * 1e3))
    });
    if retry == 0 {
        entry.fault("attempt", "counts from 1");
    }
    if delay.is_none() && parts.iter().all(Option::is_none) {
        entry.fault("delay", "is missing");
    }
    entry.finish()?;
    let total = parts.into_iter().flatten().fold(delay.unwrap_or_default(), |sum, part| sum + part);
    Ok(ScheduleEntry { retry, delay: total })
}

pub fn rules(fields: &mut Fields<'_>) -> Option<Vec<Rule>> {
    let (name, value) = fields.take("rules")?;
    let Value::Array(list) = value else {
        fields.fault(name, "must be a list of rules");
        return None;
    };
    // Counted before any of them is read: reading a pattern or an expression takes a while.
    if !fields.is_stored() {
        if list.len() > MAX_RULES {
            fields.fault(name, policy::too_many_rules());
            return None;
        }
        if list.iter().filter(|item| has_pattern(item)).count() > MAX_PATTERNS {
            fields.fault(name, policy::too_many_patterns());
            return None;
        }
    }
    let mut rules = Vec::with_capacity(list.len());
    for (i, item) in list.iter().enumerate() {
        match rule(fields, item) {
            Ok(rule) => rules.push(rule),
            Err(faults) => fields.absorb(&format!("{name}[{i}]"), faults),
        }
    }
    Some(rules)
}

fn has_pattern(rule: &Value) -> bool {
    let Value::Object(fields) = rule else { return false };
    let matches = fields.iter().find(|(name, _)| fields::snake(name) == "match");
    let of_match = matches.and_then(|(_, matches)| matches.as_object());
    of_match.is_some_and(|matches| matches.keys().any(|name| fields::snake(name) == "message"))
}

fn rule(policy: &Fields<'_>, item: &Value) -> Result<Rule, Invalid> {
    let mut fields = policy.part(item)?;
    let matches = match fields.take("match") {
        None => RuleMatch::default(),
        Some((name, value)) => rule_match(&fields, value).unwrap_or_else(|faults| {
            fields.absorb(name, faults);
            RuleMatch::default()
        }),
    };
    let then = match fields.word("then", Then::from_word, Then::list) {
        Some(then) => then,
        None => {
            fields.fault("then", format!("is needed: one of {}", Then::list()));
            Then::Retry
        }
    };
    let max = fields.count(&["max"]);
    let delay = if then == Then::Snooze { fields.duration(&["delay"]) } else { None };
    let names_curve = STRATEGIES.iter().chain(&MULTIPLIERS).any(|name| fields.has(name));
    let names_start = fields.has("wait_duration") || fields.has_duration(&INITIAL_DELAYS);
    let has_delay = fields.has_duration(&["delay"]);
    let others = ["exponential_backoff", "schedule", "custom_schedule", "jitter"].iter().any(|name| fields.has(name));
    let overrides = names_curve || names_start || has_delay || others || fields.has_duration(&MAX_DELAYS);
    let base = crate::Policy::preset(Dialect::Native).backoff;
    let backoff = (then == Then::Retry && overrides).then(|| {
        let only_delay = has_delay && !names_curve && !names_start && !fields.has("exponential_backoff");
        let read = backoff(&mut fields, &base, Dialect::Native);
        match read.strategy {
            // `then: retry, delay: 30s` means that delay every time.
            Strategy::Exponential { initial, .. } if only_delay => {
                Backoff { strategy: Strategy::Fixed { delay: initial, first: None }, ..read }
            }
            _ => read,
        }
    });
    fields.finish()?;
    Ok(Rule { matches, then, max, backoff, delay })
}

fn rule_match(rule: &Fields<'_>, value: &Value) -> Result<RuleMatch, Invalid> {
    let mut fields = rule.part(value)?;
    let mut on = Vec::new();
    for name in ["on", "status", "any"] {
        on.extend(fields.matchers(&[name]).unwrap_or_default());
    }
    let class = fields.word("class", Class::from_word, Class::list);
    let trigger = fields.word("trigger", Trigger::parse, Trigger::list);
    let error_type = fields.text("type").or_else(|| fields.text("error_type"));
    let code = match fields.take("code") {
        None => None,
        Some((_, Value::String(code))) => Some(code.clone()),
        Some((_, Value::Number(code))) => Some(code.to_string()),
        Some((name, _)) => {
            fields.fault(name, "must be a text or a number");
            None
        }
    };
    let message = match fields.text("message") {
        Some(source) if fields.is_stored() => Some(MessagePattern::stored(&source)),
        Some(source) => MessagePattern::parse(&source).map_err(|fault| fields.fault("message", fault)).ok(),
        None => None,
    };
    let when = fields.expression(&["when"]);
    fields.finish()?;
    Ok(RuleMatch { on, class, trigger, error_type, code, message, when })
}

pub fn windows(fields: &mut Fields<'_>) -> Option<Vec<Window>> {
    let (name, value) = fields.take("windows")?;
    let Value::Array(list) = value else {
        fields.fault(name, "must be a list of windows");
        return None;
    };
    if list.len() > MAX_WINDOWS && !fields.is_stored() {
        fields.fault(name, policy::too_many_windows());
        return None;
    }
    let mut windows = Vec::with_capacity(list.len());
    for (i, item) in list.iter().enumerate() {
        match window(item) {
            Ok(window) => windows.push(window),
            Err(faults) => fields.absorb(&format!("{name}[{i}]"), faults),
        }
    }
    Some(windows)
}

fn window(item: &Value) -> Result<Window, Invalid> {
    let mut fields = Fields::new(item)?;
    let from = fields.text("from").or_else(|| fields.text("start")).unwrap_or_default();
    let to = fields.text("to").or_else(|| fields.text("end")).unwrap_or_default();
    let days = fields.take("days").map(|(name, value)| {
        days(value).unwrap_or_else(|message| {
            fields.fault(name, message);
            [true; 7]
        })
    });
    let zone = fields.text("tz").or_else(|| fields.text("timezone"));
    if let (Ok(from), Ok(to)) = (Timestamp::parse_rfc3339(&from), Timestamp::parse_rfc3339(&to)) {
        if to <= from {
            fields.fault("to", "must be after from");
        }
        if days.is_some() || zone.is_some() {
            fields.fault("from", "an instant takes no days and no time zone");
        }
        fields.finish()?;
        return Ok(Window::Once { from, to });
    }
    let mut time = |name: &str, text: &str| {
        text.parse::<Time>().unwrap_or_else(|_| {
            fields.fault(name, "must be a time of day such as 09:00, or an instant in RFC 3339");
            Time::midnight()
        })
    };
    let (from, to) = (time("from", &from), time("to", &to));
    let name = zone.unwrap_or_else(|| "UTC".into());
    let zone = TimeZone::get(&name).unwrap_or_else(|_| {
        fields.fault("tz", format!("`{name}` is not a time zone; write an IANA name such as Europe/Berlin"));
        TimeZone::UTC
    });
    fields.finish()?;
    Ok(Window::Weekly(Weekly { days: days.unwrap_or([true; 7]), from, to, zone }))
}

fn days(value: &Value) -> Result<[bool; 7], String> {
    let bad = || "must be a list of days: mon, tue, wed, thu, fri, sat, sun".to_owned();
    let list = value.as_array().ok_or_else(bad)?;
    let mut days = [false; 7];
    for item in list {
        let word = item.as_str().ok_or_else(bad)?.to_ascii_lowercase();
        let index = DAYS.iter().position(|day| word.len() >= 3 && word.starts_with(day)).ok_or_else(bad)?;
        days[index] = true;
    }
    if days.contains(&true) { Ok(days) } else { Err(bad()) }
}
