//! A policy, once every dialect is read: one shape, complete, checked. `dialect` reads it.
//!
//! Over 500 lines: a policy with all its fields, its limits and its validation.

use serde_json::{Map, Value, json};

use crate::expression::Expression;
use crate::failure::{Class, Failure, Matcher, Trigger};
use crate::invalid::Invalid;
pub use crate::pattern::MessagePattern;
use crate::task::Task;
use crate::time::{Millis, Timestamp};
use crate::window::{self, DAYS, Window};
use crate::words::words;

/// Rules of one policy.
pub(crate) const MAX_RULES: usize = 100;
/// Patterns of one policy: rules that match by `message`.
pub(crate) const MAX_PATTERNS: usize = 16;
pub(crate) const MAX_WINDOWS: usize = 50;

pub(crate) fn too_many_rules() -> String {
    format!("at most {MAX_RULES} rules are allowed")
}

pub(crate) fn too_many_patterns() -> String {
    format!("at most {MAX_PATTERNS} patterns are allowed: rules that match by `message`")
}

pub(crate) fn too_many_windows() -> String {
    format!("at most {MAX_WINDOWS} windows are allowed")
}

/// When and how often a task is tried again. Taken as a snapshot when the task is created (model I-13).
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// Retries beyond the first run.
    pub max_retries: u32,
    /// How long to wait before each retry.
    pub backoff: Backoff,
    /// Only these failures are retried; `None` means all.
    pub retry_on: Option<Vec<Matcher>>,
    /// These failures are not retried.
    pub ignore: Vec<Matcher>,
    /// A retry needs this condition.
    pub retry_when: Option<Expression>,
    /// This condition ends the retries.
    pub stop_when: Option<Expression>,
    /// The answer of an expression that cannot be evaluated.
    pub on_expression_error: OnExpressionError,
    /// Ordered, first match wins (model A7).
    pub rules: Vec<Rule>,
    /// Closed times, in which no retry starts.
    pub windows: Vec<Window>,
    /// From the first failure to the last retry.
    pub max_elapsed: Option<Millis>,
    /// No attempt starts after this instant.
    pub expires_at: Option<Timestamp>,
    /// How long a run may go without a sign of life.
    pub timeout: Option<Millis>,
    /// Whether a `Retry-After` is followed.
    pub respect_retry_after: bool,
    /// The longest `Retry-After` that is followed.
    pub max_retry_after: Millis,
    /// Limit on uncounted waits after `Retry-After`.
    pub max_throttles: u32,
    /// The meaning of a lost run.
    pub on_lost: OnLost,
    /// Limit on lost runs.
    pub max_lost: u32,
    /// Limit on voluntary postponements.
    pub max_snoozes: u32,
    /// The class of errors that say nothing about themselves.
    pub default_class: Class,
    /// A stated class of `final` is decisive unless this is set (ruling D-10).
    pub override_final: bool,
    /// The end of a task whose retries are used up.
    pub on_exhausted: OnExhausted,
    /// One run just before the deadline in place of giving up.
    pub last_try: bool,
    /// Whether a run may go on past the deadline.
    pub deadline: DeadlineKind,
    /// Whether a retry resets the progress of the run.
    pub reset_counters_on_retry: bool,
}

/// How long to wait before a retry.
#[derive(Clone, Debug, PartialEq)]
pub struct Backoff {
    /// How delays grow.
    pub strategy: Strategy,
    /// The longest delay.
    pub max_delay: Option<Millis>,
    /// How delays are spread.
    pub jitter: Jitter,
}

/// How delays grow from one retry to the next.
#[derive(Clone, Debug, PartialEq)]
pub enum Strategy {
    /// At once; an explicit first delay applies to the first retry only (X0-19).
    Immediate {
        /// The delay of the first retry.
        first: Option<Millis>,
    },
    /// The same delay every time.
    Fixed {
        /// The delay.
        delay: Millis,
        /// Another delay for the first retry.
        first: Option<Millis>,
    },
    /// Grows by the same step.
    Linear {
        /// The first delay.
        initial: Millis,
        /// The step.
        step: Millis,
    },
    /// Grows by the same factor.
    Exponential {
        /// The first delay.
        initial: Millis,
        /// The factor.
        multiplier: f64,
    },
    /// Delays by the ordinal of the retry, ascending; the last one repeats (X0-10).
    Schedule(Vec<ScheduleEntry>),
}

/// One delay of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScheduleEntry {
    /// Which retry this is for, from 1.
    pub retry: u32,
    /// The delay before that retry.
    pub delay: Millis,
}

words! {
    /// How a delay is spread so that many do not return at once (model A4, A18).
    pub enum Jitter {
        None = 0 "none",
        Proportional = 1 "proportional",
        Full = 2 "full",
        Equal = 3 "equal",
        Decorrelated = 4 "decorrelated",
    }
}

words! {
    /// The meaning of a lost run (model A2).
    pub enum OnLost {
        Retry = 0 "retry",
        Count = 1 "count",
        Park = 2 "park",
        Fail = 3 "fail",
    }
}

words! {
    /// The end of a task whose retries are used up.
    pub enum OnExhausted {
        Fail = 0 "fail",
        Park = 1 "park",
    }
}

words! {
    /// Whether an expression that fails means no retry (closed) or as if it had allowed one (open).
    pub enum OnExpressionError {
        Closed = 0 "closed",
        Open = 1 "open",
    }
}

words! {
    /// Whether a run that is under way may end when the deadline passes (model T27).
    pub enum DeadlineKind {
        Soft = 0 "soft",
        Hard = 1 "hard",
    }
}

/// One line of `rules`.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// The failures it is about.
    pub matches: RuleMatch,
    /// Its answer.
    pub then: Then,
    /// How often this rule may be applied in one cycle.
    pub max: Option<u32>,
    /// In place of the policy's own, counted by this rule's own counter.
    pub backoff: Option<Backoff>,
    /// For `then: snooze`.
    pub delay: Option<Millis>,
}

words! {
    /// The answer of a rule.
    pub enum Then {
        Retry = 0 "retry",
        Final = 1 "final",
        Snooze = 2 "snooze",
        Park = 3 "park",
    }
}

/// All that is given must match; nothing given matches everything.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RuleMatch {
    /// Any of these.
    pub on: Vec<Matcher>,
    /// The class.
    pub class: Option<Class>,
    /// The trigger.
    pub trigger: Option<Trigger>,
    /// The error type, by its exact text.
    pub error_type: Option<String>,
    /// The error code, by its exact text.
    pub code: Option<String>,
    /// A regular expression over the message.
    pub message: Option<MessagePattern>,
    /// A condition.
    pub when: Option<Expression>,
}

impl RuleMatch {
    /// Whether a failure of this class matches, its `when` aside.
    pub fn matches(&self, failure: &Failure, class: Class) -> bool {
        (self.on.is_empty() || self.on.iter().any(|matcher| matcher.fit(failure, class).is_some()))
            && self.class.is_none_or(|wanted| wanted == class)
            && self.trigger.is_none_or(|wanted| wanted == failure.trigger)
            && self.error_type.is_none_or_equal(&failure.error_type)
            && self.code.is_none_or_equal(&failure.code)
            && self.message.as_ref().is_none_or(|pattern| pattern.matches(&failure.message))
    }
}

trait NoneOrEqual {
    fn is_none_or_equal(&self, other: &Self) -> bool;
}

impl NoneOrEqual for Option<String> {
    fn is_none_or_equal(&self, other: &Self) -> bool {
        self.is_none() || self == other
    }
}

/// The server's limits for any policy (model A11). Tightened by configuration, never widened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyLimits {
    /// Retries beyond the first run.
    pub max_retries: u32,
    /// Of computed delays.
    pub max_delay: Millis,
    /// Of fixed delays and schedules.
    pub max_schedule: Millis,
}

impl Default for PolicyLimits {
    fn default() -> Self {
        PolicyLimits { max_retries: 1_000, max_delay: Millis::from_days(366), max_schedule: Millis::from_days(366) }
    }
}

impl PolicyLimits {
    /// The names of the limits.
    pub const NAMES: [&str; 3] = ["max_retries", "max_delay", "max_schedule"];

    /// Tightens one by its name.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        fn tighten<T: PartialOrd + std::fmt::Display>(limit: &mut T, wanted: T) -> Result<(), String> {
            if wanted > *limit {
                return Err(format!("may be {limit} at most"));
            }
            *limit = wanted;
            Ok(())
        }
        let span = || Millis::parse(value).map_err(|error| error.to_string());
        match name {
            "max_retries" => {
                let wanted = value.parse().map_err(|_| format!("`{value}` is no number"))?;
                tighten(&mut self.max_retries, wanted)
            }
            "max_delay" => tighten(&mut self.max_delay, span()?),
            "max_schedule" => tighten(&mut self.max_schedule, span()?),
            _ => Err(format!("there are {}", Self::NAMES.join(", "))),
        }
    }

    /// Of each limit the tighter.
    pub fn tighter(self, other: PolicyLimits) -> PolicyLimits {
        PolicyLimits {
            max_retries: self.max_retries.min(other.max_retries),
            max_delay: self.max_delay.min(other.max_delay),
            max_schedule: self.max_schedule.min(other.max_schedule),
        }
    }
}

words! {
    /// Where a policy comes from decides what its shorthands and gaps mean (rulings D-1, D-5).
    pub enum Dialect {
        Native = 0 "native",
        Workflow = 1 "workflow",
        Task = 2 "task",
        Job = 3 "job",
        Run = 4 "run",
        Step = 5 "step",
    }
}

impl Policy {
    /// A field that a task copies when it is created and whose value differs from the task's: a task with such a difference
    /// cannot take this policy later.
    pub fn unlike(&self, task: &Task, is_hard: bool) -> Option<&'static str> {
        let differs = [
            ("timeout", self.timeout.is_some() && self.timeout != task.timeout),
            ("expires_at", self.expires_at.is_some() && self.expires_at != task.expires_at),
            ("deadline", self.deadline == DeadlineKind::Hard && !is_hard),
        ];
        differs.into_iter().find(|(_, differs)| *differs).map(|(name, _)| name)
    }

    /// The named starting points (model A15); `Native` is the one a bare native object builds on.
    pub fn preset(of: Dialect) -> Policy {
        let (max_retries, initial, multiplier, cap, jitter) = match of {
            Dialect::Native => (3, 5, 2.0, None, Jitter::None),
            Dialect::Workflow => (3, 60, 2.0, None, Jitter::None),
            Dialect::Task => (3, 5, 2.0, Some(300), Jitter::None),
            Dialect::Job => (3, 5, 5.0, None, Jitter::None),
            Dialect::Run => (7, 60, 2.0, Some(3_600), Jitter::None),
            Dialect::Step => (2, 1, 2.0, Some(60), Jitter::Proportional),
        };
        Policy {
            max_retries,
            backoff: Backoff {
                strategy: Strategy::Exponential { initial: Millis::from_secs(initial), multiplier },
                max_delay: cap.map(Millis::from_secs),
                jitter,
            },
            retry_on: None,
            ignore: if of == Dialect::Job { job_refusals() } else { Vec::new() },
            retry_when: None,
            stop_when: None,
            on_expression_error: OnExpressionError::Closed,
            rules: Vec::new(),
            windows: Vec::new(),
            max_elapsed: None,
            expires_at: None,
            timeout: None,
            respect_retry_after: true,
            max_retry_after: Millis::from_days(1),
            max_throttles: 100,
            on_lost: OnLost::Retry,
            max_lost: 3,
            max_snoozes: 1_000,
            default_class: Class::Retryable,
            override_final: false,
            on_exhausted: OnExhausted::Fail,
            last_try: false,
            deadline: DeadlineKind::Soft,
            reset_counters_on_retry: false,
        }
    }

    /// A native policy with delays that double: `initial`, twice that, four times that and so on.
    pub fn exponential(initial: Millis, max_retries: u32) -> Policy {
        Policy::with_strategy(Strategy::Exponential { initial, multiplier: 2.0 }, max_retries)
    }

    /// A native policy with the same delay before every retry.
    pub fn fixed(delay: Millis, max_retries: u32) -> Policy {
        Policy::with_strategy(Strategy::Fixed { delay, first: None }, max_retries)
    }

    fn with_strategy(strategy: Strategy, max_retries: u32) -> Policy {
        let native = Policy::preset(Dialect::Native);
        Policy { max_retries, backoff: Backoff { strategy, ..native.backoff }, ..native }
    }

    /// Whether the policy is one that can be carried out, and within the server's limits.
    pub fn check(&self, limits: &PolicyLimits) -> Result<(), Invalid> {
        let mut faults = Invalid::default();
        if self.max_retries > limits.max_retries {
            faults.push("max_retries", format!("at most {} retries are allowed here", limits.max_retries));
        }
        self.backoff.check("", limits, &mut faults);
        if self.retry_on.as_ref().is_some_and(Vec::is_empty) {
            faults.push("retry_on", "an empty list would never retry; leave it out, or set max_retries to 0");
        }
        for (i, rule) in self.rules.iter().enumerate() {
            let path = format!("rules[{i}]");
            if let Some(backoff) = &rule.backoff {
                backoff.check(&path, limits, &mut faults);
            }
            if rule.then == Then::Snooze && rule.delay.is_none() {
                faults.push(format!("{path}.delay"), "a rule that snoozes needs a delay");
            }
            if rule.delay.is_some_and(|delay| delay > limits.max_schedule) {
                faults.push(format!("{path}.delay"), format!("at most {} is allowed here", limits.max_schedule));
            }
        }
        if self.timeout == Some(Millis::ZERO) {
            faults.push("timeout", "must be more than nothing: every run would be over as it starts");
        }
        if self.rules.len() > MAX_RULES {
            faults.push("rules", too_many_rules());
        }
        if self.rules.iter().filter(|rule| rule.matches.message.is_some()).count() > MAX_PATTERNS {
            faults.push("rules", too_many_patterns());
        }
        if self.windows.len() > MAX_WINDOWS {
            faults.push("windows", too_many_windows());
        } else if window::open_at(&self.windows, Timestamp(1_767_225_600_000)).is_none() {
            faults.push("windows", "together they never open: no retry could ever run");
        } else if let Some(i) = window::too_long(&self.windows) {
            faults.push(format!("windows[{i}].to"), window::words_of_too_long());
        }
        faults.or(())
    }
}

impl Backoff {
    fn check(&self, path: &str, limits: &PolicyLimits, faults: &mut Invalid) {
        let at = |field: &str| if path.is_empty() { field.to_owned() } else { format!("{path}.{field}") };
        let mut over = |field: &str, delay: Millis, limit: Millis| {
            if delay > limit {
                faults.push(at(field), format!("at most {limit} is allowed here"));
            }
        };
        match &self.strategy {
            Strategy::Immediate { first } => over("initial_delay", first.unwrap_or_default(), limits.max_schedule),
            Strategy::Fixed { delay, first } => {
                over("delay", *delay, limits.max_schedule);
                over("initial_delay", first.unwrap_or_default(), limits.max_schedule);
            }
            Strategy::Linear { initial, step } => {
                over("initial_delay", *initial, limits.max_delay);
                over("delay", *step, limits.max_delay);
            }
            Strategy::Exponential { initial, .. } => over("initial_delay", *initial, limits.max_delay),
            Strategy::Schedule(entries) => {
                for (i, entry) in entries.iter().enumerate() {
                    over(&format!("schedule[{i}]"), entry.delay, limits.max_schedule);
                }
            }
        }
        if let Some(cap) = self.max_delay {
            over("max_delay", cap, limits.max_delay);
        }
        if let Strategy::Exponential { multiplier, .. } = self.strategy
            && !(multiplier.is_finite() && multiplier >= 1.0)
        {
            faults.push(at("multiplier"), "must be a number of 1 or more");
        }
        if matches!(&self.strategy, Strategy::Schedule(entries) if entries.is_empty()) {
            faults.push(at("schedule"), "needs at least one delay");
        }
    }

    /// The word for the strategy.
    pub fn strategy_word(&self) -> &'static str {
        match self.strategy {
            Strategy::Immediate { .. } => "immediate",
            Strategy::Fixed { .. } => "fixed",
            Strategy::Linear { .. } => "linear",
            Strategy::Exponential { .. } => "exponential",
            Strategy::Schedule(_) => "schedule",
        }
    }

    fn render(&self, into: &mut Map<String, Value>) {
        into.insert("strategy".into(), self.strategy_word().into());
        let mut put = |name: &str, value: Value| into.insert(name.into(), value);
        match &self.strategy {
            Strategy::Immediate { first } => {
                if let Some(first) = first {
                    put("initial_delay_ms", first.0.into());
                }
            }
            Strategy::Fixed { delay, first } => {
                put("delay_ms", delay.0.into());
                if let Some(first) = first {
                    put("initial_delay_ms", first.0.into());
                }
            }
            Strategy::Linear { initial, step } => {
                put("initial_delay_ms", initial.0.into());
                put("delay_ms", step.0.into());
            }
            Strategy::Exponential { initial, multiplier } => {
                put("initial_delay_ms", initial.0.into());
                put("multiplier", json!(multiplier));
            }
            Strategy::Schedule(entries) => {
                let list: Vec<Value> =
                    entries.iter().map(|e| json!({"attempt": e.retry, "delay_ms": e.delay.0})).collect();
                put("schedule", list.into());
            }
        }
        if let Some(cap) = self.max_delay {
            put("max_delay_ms", cap.0.into());
        }
        put("jitter", self.jitter.word().into());
    }
}

/// The dialect `job` decides by the kind of the exception: what the caller did wrong is not tried again (S2-18, S2-65 to S2-67).
fn job_refusals() -> Vec<Matcher> {
    const KINDS: [&str; 7] = [
        "IllegalArgumentException",
        "java.lang.IllegalArgumentException",
        "SecurityException",
        "java.lang.SecurityException",
        "IllegalStateException",
        "java.lang.IllegalStateException",
        "InsufficientCreditsException",
    ];
    const CODES: [&str; 4] = ["ILLEGAL_ARGUMENT", "SECURITY", "ILLEGAL_STATE", "INSUFFICIENT_CREDITS"];
    KINDS.into_iter().chain(CODES).map(|name| Matcher::Name(name.to_owned())).collect()
}

/// The normalised form: what is stored, what `retry` shows, and what the native dialect reads back to the same policy.
/// Fields that hold their default are left out, but for the ones that make the schedule.
impl Policy {
    /// The normalised form, which [`crate::dialect::parse_stored`] reads back.
    pub fn to_json(&self) -> Value {
        let base = Policy::preset(Dialect::Native);
        let mut out = Map::new();
        out.insert("max_retries".into(), self.max_retries.into());
        self.backoff.render(&mut out);
        let mut put = |name: &str, value: Value| out.insert(name.into(), value);
        let texts = |list: &[Matcher]| Value::from(list.iter().map(Matcher::to_string).collect::<Vec<_>>());
        if let Some(list) = &self.retry_on {
            put("retry_on", texts(list));
        }
        if !self.ignore.is_empty() {
            put("ignore", texts(&self.ignore));
        }
        if let Some(expression) = &self.retry_when {
            put("retry_when", expression.source().into());
        }
        if let Some(expression) = &self.stop_when {
            put("stop_when", expression.source().into());
        }
        if self.on_expression_error != base.on_expression_error {
            put("on_expression_error", self.on_expression_error.word().into());
        }
        if !self.rules.is_empty() {
            put("rules", self.rules.iter().map(Rule::to_json).collect());
        }
        if !self.windows.is_empty() {
            put("windows", self.windows.iter().map(window_to_json).collect());
        }
        if let Some(span) = self.max_elapsed {
            put("max_elapsed_ms", span.0.into());
        }
        if let Some(at) = self.expires_at {
            put("expires_at", at.to_rfc3339().into());
        }
        if let Some(span) = self.timeout {
            put("timeout_ms", span.0.into());
        }
        if self.respect_retry_after != base.respect_retry_after {
            put("respect_retry_after", self.respect_retry_after.into());
        }
        if self.max_retry_after != base.max_retry_after {
            put("max_retry_after_ms", self.max_retry_after.0.into());
        }
        if self.max_throttles != base.max_throttles {
            put("max_throttles", self.max_throttles.into());
        }
        if self.on_lost != base.on_lost {
            put("on_lost", self.on_lost.word().into());
        }
        if self.max_lost != base.max_lost {
            put("max_lost", self.max_lost.into());
        }
        if self.max_snoozes != base.max_snoozes {
            put("max_snoozes", self.max_snoozes.into());
        }
        if self.default_class != base.default_class {
            put("default_class", self.default_class.word().into());
        }
        if self.override_final {
            put("override_final", true.into());
        }
        if self.on_exhausted != base.on_exhausted {
            put("on_exhausted", self.on_exhausted.word().into());
        }
        if self.last_try {
            put("last_try", true.into());
        }
        if self.deadline != base.deadline {
            put("deadline", self.deadline.word().into());
        }
        if self.reset_counters_on_retry {
            put("reset_counters_on_retry", true.into());
        }
        Value::Object(out)
    }
}

impl Rule {
    fn to_json(&self) -> Value {
        let m = &self.matches;
        let mut matches = Map::new();
        if !m.on.is_empty() {
            matches.insert("on".into(), m.on.iter().map(Matcher::to_string).collect::<Vec<_>>().into());
        }
        let parts = [
            ("class", m.class.map(|class| class.word().to_owned())),
            ("trigger", m.trigger.map(|trigger| trigger.word().to_owned())),
            ("type", m.error_type.clone()),
            ("code", m.code.clone()),
            ("message", m.message.as_ref().map(|pattern| pattern.source().to_owned())),
            ("when", m.when.as_ref().map(|expression| expression.source().to_owned())),
        ];
        for (name, value) in parts {
            if let Some(value) = value {
                matches.insert(name.into(), value.into());
            }
        }
        let mut out = Map::new();
        out.insert("match".into(), matches.into());
        out.insert("then".into(), self.then.word().into());
        if let Some(max) = self.max {
            out.insert("max".into(), max.into());
        }
        if let Some(backoff) = &self.backoff {
            backoff.render(&mut out);
        }
        if let Some(delay) = self.delay {
            out.insert("delay_ms".into(), delay.0.into());
        }
        out.into()
    }
}

pub(crate) fn window_to_json(window: &Window) -> Value {
    match window {
        Window::Once { from, to } => json!({"from": from.to_rfc3339(), "to": to.to_rfc3339()}),
        Window::Weekly(weekly) => {
            let days: Vec<&str> = DAYS.iter().zip(weekly.days).filter(|(_, on)| *on).map(|(day, _)| *day).collect();
            json!({
                "days": days,
                "from": weekly.from.strftime("%H:%M:%S").to_string(),
                "to": weekly.to.strftime("%H:%M:%S").to_string(),
                "tz": weekly.zone.iana_name().unwrap_or("UTC"),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_limits_the_tighter_holds_each_for_itself() {
        let limits = |max_retries, max_delay, max_schedule| PolicyLimits {
            max_retries,
            max_delay: Millis(max_delay),
            max_schedule: Millis(max_schedule),
        };
        assert_eq!(limits(2, 900, 70).tighter(limits(3, 800, 70)), limits(2, 800, 70));
        assert_eq!(PolicyLimits::default().tighter(limits(1, 2, 3)), limits(1, 2, 3));
    }
}
