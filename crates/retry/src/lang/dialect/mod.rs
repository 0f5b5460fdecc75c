//! The native policy and five other dialects, read into one `Policy`.
//!
//! Every alias of model §2.3 is understood in snake and camel case; a field nobody knows, and two that disagree, are faults
//! that name the field. What a shorthand means is the dialect's to say; the dialect is chosen by the caller, never guessed.

pub(crate) mod fields;
pub(crate) mod parts;
#[cfg(test)]
mod tests;
mod text;

use std::str::FromStr;

use serde_json::Value;

use crate::invalid::Invalid;
use crate::policy::{
    Backoff, DeadlineKind, Dialect, Jitter, OnExhausted, OnExpressionError, OnLost, Policy, PolicyLimits,
    ScheduleEntry, Strategy,
};
use crate::time::Millis;
use fields::Fields;

pub use parts::UNKNOWN_STRATEGY;

/// Reads a policy: an object, `true`, `false`, `null`, a number of executions or, natively, the short form. Nothing means no retry.
pub fn parse(value: &Value, dialect: Dialect, limits: &PolicyLimits) -> Result<Option<Policy>, Invalid> {
    let preset = |dialect| Policy::preset(if dialect == Dialect::Native { Dialect::Step } else { dialect });
    let policy = match value {
        Value::Null | Value::Bool(false) => return Ok(None),
        Value::Bool(true) => preset(dialect),
        Value::Number(number) => match number.as_u64() {
            Some(0) => return Ok(None),
            Some(executions) => {
                let max_retries = u32::try_from(executions - 1).unwrap_or(u32::MAX);
                Policy { max_retries, ..preset(dialect) }
            }
            None => return Err(Invalid::one("", "a number must be a whole count of executions")),
        },
        Value::Object(_) => return parse_object(Fields::new(value)?, dialect, Some(limits)),
        Value::String(short) if dialect == Dialect::Native => return parse(&text::long_form(short)?, dialect, limits),
        _ => return Err(Invalid::one("", "must be an object, true, false or a number of executions")),
    };
    if dialect == Dialect::Task {
        check_task_bounds(&policy)?;
    }
    policy.check(limits)?;
    Ok(Some(policy))
}

/// Reads a stored policy: the normalised form is native, and was checked when it was stored.
pub fn parse_stored(text: &str) -> Result<Policy, Invalid> {
    let value: Value = serde_json::from_str(text).map_err(|error| Invalid::one("", error))?;
    parse_object(Fields::stored(&value)?, Dialect::Native, None)?
        .ok_or_else(|| Invalid::one("", "a stored policy is never disabled"))
}

/// Reads the short form (`exp(5s, x2, 8 retries)`), or a JSON object in the native dialect, within the default limits.
impl FromStr for Policy {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Policy, Invalid> {
        let value = match text.trim_start().starts_with('{') {
            true => serde_json::from_str(text).map_err(|error| Invalid::one("", error))?,
            false => Value::from(text),
        };
        parse(&value, Dialect::Native, &PolicyLimits::default())?
            .ok_or_else(|| Invalid::one("", "says that nothing is retried; use no policy for that"))
    }
}

/// A span as every document may write it: a number of seconds, or a text such as `90s`, `1h30m` or `PT5M`.
pub fn duration(value: &Value) -> Result<Millis, String> {
    fields::duration(value, 1e3)
}

/// Reports faults of single fields and of the whole together. A stored policy was within the limits.
fn parse_object(
    mut fields: Fields<'_>,
    outer: Dialect,
    limits: Option<&PolicyLimits>,
) -> Result<Option<Policy>, Invalid> {
    let dialect = match fields.word("dialect", Dialect::from_word, Dialect::list) {
        Some(inner) if outer == Dialect::Native || inner == outer => inner,
        Some(_) => {
            fields.fault("dialect", format!("this place speaks the dialect `{outer}`"));
            outer
        }
        None => outer,
    };
    let enabled = fields.boolean(&["enabled"]).unwrap_or(true);
    let preset = fields.word("preset", Dialect::from_word, Dialect::list).unwrap_or(dialect);
    let mut policy = Policy::preset(preset);

    read_strategy(&mut fields, dialect, &mut policy);
    read_maximum(&mut fields, dialect, &mut policy);
    read_filters(&mut fields, &mut policy);
    read_limits(&mut fields, &mut policy);
    // The dialect `job` lists policies by the type of job they are for; binding them to a kind is not the policy's own matter.
    if dialect == Dialect::Job {
        fields.ignore("job_type");
    }
    if dialect == Dialect::Task {
        cap_task_delays(&mut policy.backoff);
        policy.rules.iter_mut().filter_map(|rule| rule.backoff.as_mut()).for_each(cap_task_delays);
        if let Err(faults) = check_task_bounds(&policy) {
            fields.absorb("", faults);
        }
    }
    if let Some(Err(faults)) = limits.filter(|_| enabled).map(|limits| policy.check(limits)) {
        fields.absorb_whole(faults.renamed(|path| parts::as_written(&fields, path)));
    }
    fields.finish()?;
    Ok(enabled.then_some(policy))
}

fn read_strategy(fields: &mut Fields<'_>, dialect: Dialect, policy: &mut Policy) {
    let before = policy.backoff.clone();
    let had_schedule = fields.has("schedule") || fields.has("custom_schedule");
    policy.backoff = parts::backoff(fields, &before, dialect);
    // A native list says how often by its length; in the other dialects the maximum is a field of its own.
    if let Strategy::Schedule(entries) = &policy.backoff.strategy
        && had_schedule
        && dialect == Dialect::Native
    {
        policy.max_retries = u32::try_from(entries.len()).unwrap_or(u32::MAX);
    }
}

/// `max_retries` leaves out the first run; what `max_attempts` counts depends on the dialect (ruling D-1).
fn read_maximum(fields: &mut Fields<'_>, dialect: Dialect, policy: &mut Policy) {
    let retries = fields.count(&["max_retries"]);
    let attempts = fields.count(&["max_attempts"]).and_then(|attempts| match dialect {
        Dialect::Workflow => Some(attempts),
        _ if attempts == 0 => {
            fields.fault("max_attempts", "counts every execution, so it is 1 or more; use max_retries: 0 for none");
            None
        }
        _ => Some(attempts - 1),
    });
    match (retries, attempts) {
        (Some(a), Some(b)) if a != b => {
            fields.fault("max_retries", "disagrees with max_attempts; give one of the two");
        }
        (Some(max), _) | (None, Some(max)) => policy.max_retries = max,
        (None, None) => {}
    }
}

fn read_filters(fields: &mut Fields<'_>, policy: &mut Policy) {
    if let Some(list) = fields.matchers(&["retry_on"]) {
        policy.retry_on = Some(list);
    }
    if let Some(list) = fields.matchers(&["ignore", "ignore_exceptions", "non_retryable"]) {
        policy.ignore = list;
    }
    policy.retry_when = fields.expression(&["retry_when", "when"]).or(policy.retry_when.take());
    policy.stop_when = fields.expression(&["stop_when"]).or(policy.stop_when.take());
    if let Some(mode) = fields.word("on_expression_error", OnExpressionError::from_word, OnExpressionError::list) {
        policy.on_expression_error = mode;
    }
    if let Some(rules) = parts::rules(fields) {
        policy.rules = rules;
    }
}

fn read_limits(fields: &mut Fields<'_>, policy: &mut Policy) {
    if let Some(windows) = parts::windows(fields) {
        policy.windows = windows;
    }
    policy.max_elapsed = fields.duration(&["max_elapsed"]).or(policy.max_elapsed);
    policy.expires_at = fields.instant(&["expires_at"]).or(policy.expires_at);
    policy.timeout = fields.duration(&["timeout"]).or(policy.timeout);
    policy.respect_retry_after = fields.boolean(&["respect_retry_after"]).unwrap_or(policy.respect_retry_after);
    policy.max_retry_after = fields.duration(&["max_retry_after"]).unwrap_or(policy.max_retry_after);
    policy.max_throttles = fields.count(&["max_throttles"]).unwrap_or(policy.max_throttles);
    policy.on_lost = fields.word("on_lost", OnLost::from_word, OnLost::list).unwrap_or(policy.on_lost);
    policy.max_lost = fields.count(&["max_lost"]).unwrap_or(policy.max_lost);
    policy.max_snoozes = fields.count(&["max_snoozes"]).unwrap_or(policy.max_snoozes);
    if let Some(class) = fields.word("default_class", crate::Class::from_word, crate::Class::list) {
        policy.default_class = class;
    }
    policy.override_final = fields.boolean(&["override_final"]).unwrap_or(policy.override_final);
    policy.on_exhausted =
        fields.word("on_exhausted", OnExhausted::from_word, OnExhausted::list).unwrap_or(policy.on_exhausted);
    policy.last_try = fields.boolean(&["last_try"]).unwrap_or(policy.last_try);
    policy.deadline = fields.word("deadline", DeadlineKind::from_word, DeadlineKind::list).unwrap_or(policy.deadline);
    policy.reset_counters_on_retry =
        fields.boolean(&["reset_counters_on_retry"]).unwrap_or(policy.reset_counters_on_retry);
}

/// Shortest and longest delay in the dialect `task`.
const TASK_SHORTEST_DELAY: Millis = Millis::from_secs(1);
const TASK_LONGEST_DELAY: Millis = Millis::from_secs(3_600);

/// Caps a growing curve that has no cap of its own at the longest delay of the dialect `task`.
fn cap_task_delays(backoff: &mut Backoff) {
    if matches!(backoff.strategy, Strategy::Exponential { .. } | Strategy::Linear { .. }) {
        backoff.max_delay.get_or_insert(TASK_LONGEST_DELAY);
    }
}

/// The bounds that the dialect `task` puts on its own policies, whatever the server allows (S1-69 to S1-72, model A11).
fn check_task_bounds(policy: &Policy) -> Result<(), Invalid> {
    let mut faults = Invalid::default();
    if !(1..=10).contains(&policy.max_retries) {
        faults.push("max_retries", "must be between 1 and 10");
    }
    check_task_delays(&policy.backoff, &mut faults);
    for (i, own) in policy.rules.iter().enumerate().filter_map(|(i, rule)| Some((i, rule.backoff.as_ref()?))) {
        let mut part = Invalid::default();
        check_task_delays(own, &mut part);
        faults.absorb(&format!("rules[{i}]"), part);
    }
    faults.or(())
}

fn check_task_delays(backoff: &Backoff, faults: &mut Invalid) {
    let cap = backoff.max_delay.unwrap_or(TASK_LONGEST_DELAY);
    if cap > TASK_LONGEST_DELAY {
        faults.push("max_delay_secs", "may be one hour at most");
    }
    let mut check = |path: String, delay: Millis| {
        if delay < TASK_SHORTEST_DELAY {
            faults.push(path, "must be one second or more");
        } else if delay > TASK_LONGEST_DELAY {
            faults.push(path, "may be one hour at most");
        } else if delay > cap {
            faults.push(path, "must not be longer than max_delay_secs");
        }
    };
    match &backoff.strategy {
        Strategy::Exponential { initial, .. } | Strategy::Linear { initial, .. } => {
            check("initial_delay_secs".into(), *initial);
        }
        Strategy::Fixed { delay, first } => {
            check("delay_secs".into(), *delay);
            if let Some(first) = first {
                check("initial_delay_secs".into(), *first);
            }
        }
        // Every retry but the first would come at once.
        Strategy::Immediate { .. } => check("strategy".into(), Millis::ZERO),
        Strategy::Schedule(entries) => {
            for (i, entry) in entries.iter().enumerate() {
                check(format!("schedule[{i}]"), entry.delay);
            }
        }
    }
}

/// The delay a strategy has when a document names it and says no more (ruling D-5, F0-16).
fn default_fixed(dialect: Dialect, initial: Millis) -> Millis {
    if dialect == Dialect::Workflow { Millis::from_secs(300) } else { initial }
}

fn default_schedule(dialect: Dialect) -> Vec<ScheduleEntry> {
    match dialect {
        Dialect::Workflow => vec![ScheduleEntry { retry: 1, delay: Millis::from_days(1) }],
        _ => Vec::new(),
    }
}

fn jitter_of(value: &Value) -> Option<Jitter> {
    match value {
        Value::Bool(true) => Some(Jitter::Proportional),
        Value::Bool(false) => Some(Jitter::None),
        Value::String(word) => Jitter::from_word(word),
        _ => None,
    }
}

fn initial_of(backoff: &Backoff) -> Millis {
    match backoff.strategy {
        Strategy::Exponential { initial, .. } | Strategy::Linear { initial, .. } => initial,
        Strategy::Fixed { delay, .. } => delay,
        Strategy::Immediate { .. } | Strategy::Schedule(_) => Millis::from_secs(5),
    }
}
