//! Warnings about policies: allowed, and yet seldom meant. Whether a policy is valid at all is `Policy::check`'s question.

use std::sync::Arc;

use serde::Serialize;
use uuid::Uuid;

use crate::backoff;
use crate::failure::{Class, Failure, Trigger};
use crate::forecast;
use crate::id::TaskId;
use crate::policy::{
    Backoff, DeadlineKind, Jitter, Policy, PolicyLimits, Rule, RuleMatch, ScheduleEntry, Strategy, Then,
};
use crate::time::{Millis, Timestamp};
use crate::window::Window;

/// One thing that is worth a second look.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Advice {
    /// Stable, for programs.
    pub code: &'static str,
    /// The warning, as a sentence.
    pub what: String,
    /// The suggested replacement.
    pub instead: String,
}

/// From this number on, retries without jitter make a herd.
const HERD: u32 = 5;
/// Outages that last less than this are hardly worth the name.
const SHORT_OUTAGE: Millis = Millis::from_secs(10);
/// A longer delay is likely a mistake of units.
const LONG: Millis = Millis::from_days(90);

/// Everything worth a second look. `now` tells which instants have passed.
pub fn lint(policy: Option<&Policy>, limits: &PolicyLimits, now: Timestamp) -> Vec<Advice> {
    let mut found = Findings::default();
    match policy {
        None => {
            found.add("no-retries", "there is no policy: the first failure is final", "a policy, unless this is meant")
        }
        Some(policy) if policy.max_retries == 0 => {
            found.add(
                "no-retries",
                "there are 0 retries: the first failure is final",
                "3 retries, unless this is meant",
            );
        }
        Some(policy) => {
            found.deadline(policy, limits, now);
            found.length(&policy.backoff, policy.max_retries, limits);
            found.shape(&policy.backoff, policy.max_retries, limits);
            found.windows(policy, now);
            found.rules(&policy.rules);
            found.switches(policy);
        }
    }
    found.0
}

#[derive(Default)]
struct Findings(Vec<Advice>);

impl Findings {
    fn add(&mut self, code: &'static str, what: impl Into<String>, instead: impl Into<String>) {
        self.0.push(Advice { code, what: what.into(), instead: instead.into() });
    }

    fn deadline(&mut self, policy: &Policy, limits: &PolicyLimits, now: Timestamp) {
        let has_deadline = policy.max_elapsed.is_some() || policy.expires_at.is_some();
        if let Some(at) = policy.expires_at.filter(|at| *at <= now) {
            self.add(
                "deadline-passed",
                format!("{} has passed: nothing is retried", at.to_rfc3339()),
                "a later expires_at",
            );
        } else if has_deadline {
            let retries = retries_in_time(policy, limits, now);
            if retries < policy.max_retries {
                let lost = policy.max_retries - retries;
                let name = policy.max_elapsed.map_or("expires_at".into(), |span| format!("max_elapsed {span}"));
                let what = format!("{lost} of {} retries come after {name} and never run", policy.max_retries);
                self.add("beyond-deadline", what, format!("{retries} retries, shorter delays or a later deadline"));
            }
        }
        if let (Some(timeout), Some(span)) = (policy.timeout, policy.max_elapsed)
            && timeout >= span
        {
            let what = format!("one run may take {timeout}, and {span} after the first failure it is over");
            self.add("timeout-outlasts-deadline", what, "a shorter timeout or a longer max_elapsed");
        }
        let instead = "a max_elapsed, unless every task brings a deadline";
        if policy.last_try && !has_deadline {
            self.add("last-try-without-deadline", "last_try comes before a deadline, and there is none here", instead);
        }
        if policy.deadline == DeadlineKind::Hard && !has_deadline {
            self.add("hard-without-deadline", "the deadline is hard, and there is none here", instead);
        }
    }

    /// How long it goes on in all.
    fn length(&mut self, backoff: &Backoff, retries: u32, limits: &PolicyLimits) {
        let delay = without_jitter(backoff, limits);
        let total = (0..retries).map(delay).fold(Millis::ZERO, |sum, next| sum + next);
        if total < SHORT_OUTAGE {
            let what = match retries {
                1 => format!("the one retry comes {total} after the failure: a longer outage uses it up"),
                n => format!("all {n} retries are over within {total}: a longer outage uses them up"),
            };
            self.add("over-at-once", what, "longer delays, such as exp(5s, x2, 5 retries)");
        }
        if total > LONG {
            let what = format!("the last retry comes {total} after the first failure");
            self.add("goes-on-for-long", what, "fewer retries, a smaller max_delay or a max_elapsed");
        }
        if backoff.jitter == Jitter::None && retries >= HERD && total > Millis::ZERO {
            let what = format!("{retries} retries without jitter: what fails together comes back together");
            self.add("no-jitter", what, "jitter full");
        }
    }

    /// Parts of the backoff that have no effect, or not the one they seem to have.
    fn shape(&mut self, backoff: &Backoff, retries: u32, limits: &PolicyLimits) {
        match &backoff.strategy {
            Strategy::Exponential { multiplier, .. } if *multiplier <= 1.0 && retries > 1 => {
                self.add("multiplier-one", "exponential x1 waits equally long every time", "fixed, or x2");
            }
            Strategy::Schedule(entries) => self.schedule(entries, backoff, retries, limits),
            _ => {}
        }
        let Some(cap) = backoff.max_delay else { return };
        let uncapped = Backoff { max_delay: None, ..backoff.clone() };
        let delay = without_jitter(&uncapped, limits);
        let longest = (0..retries).map(&delay).max().unwrap_or_default();
        let shortest = (0..retries).map(&delay).min().unwrap_or_default();
        if longest < cap {
            let what = format!("max_delay {cap} is never reached: the longest delay is {longest}");
            self.add("cap-never-reached", what, "more retries, or no max_delay");
        } else if shortest >= cap && longest > cap {
            let what = format!("every delay is cut to max_delay {cap}: the shortest would be {shortest}");
            self.add("cap-always-reached", what, format!("fixed({cap}, …), or a larger max_delay"));
        }
    }

    fn schedule(&mut self, entries: &[ScheduleEntry], backoff: &Backoff, retries: u32, limits: &PolicyLimits) {
        let unused = entries.iter().filter(|entry| entry.retry > retries).count();
        if unused > 0 {
            let what = format!("{unused} of {} entries of the schedule come after the last retry", entries.len());
            self.add("schedule-unused", what, format!("max_retries {}, or a shorter schedule", last_retry(entries)));
        }
        let pairs = entries.iter().zip(entries.iter().skip(1)).filter(|(_, after)| after.retry <= retries);
        let bands = |entry: &ScheduleEntry| backoff::band(backoff, entry.retry.saturating_sub(1), limits);
        for (before, after) in pairs {
            if after.delay < before.delay {
                let what = format!("the schedule waits {} and after that only {}", before.delay, after.delay);
                self.add("schedule-falls", what, "delays that grow, unless this is meant");
                return;
            }
            let (longest, shortest) = (bands(before).1, bands(after).0);
            if shortest < longest {
                let what = format!(
                    "with jitter {} the wait of {} may be {longest} long and the next one {shortest}",
                    backoff.jitter, before.delay
                );
                self.add("schedule-blurred", what, "jitter none or equal");
                return;
            }
        }
    }

    fn windows(&mut self, policy: &Policy, now: Timestamp) {
        for window in &policy.windows {
            if let Window::Once { to, .. } = window
                && *to <= now
            {
                self.add("window-passed", format!("a window ended at {}", to.to_rfc3339()), "leave it out");
            }
            let length = window.length();
            if let Some(span) = policy.max_elapsed.filter(|span| length >= *span) {
                let what =
                    format!("a window is closed for {length}: what fails when it closes is over by max_elapsed {span}");
                self.add("window-outlasts-deadline", what, "a shorter window or a longer max_elapsed");
            }
        }
    }

    fn rules(&mut self, rules: &[Rule]) {
        for (i, rule) in rules.iter().enumerate() {
            let hides = |earlier: &Rule| earlier.matches == rule.matches || earlier.matches == RuleMatch::default();
            if let Some(n) = rules[..i].iter().position(hides) {
                let what = format!("rules[{i}] is never asked: rules[{n}] takes everything it would match");
                self.add("rule-never-asked", what, format!("rules[{i}] before rules[{n}]"));
            }
            if rule.max == Some(0) && rule.then != Then::Final {
                let what = format!("rules[{i}] may be applied 0 times: what it matches is given up at once");
                self.add("rule-spent", what, "then final, or a larger max");
            }
            if rule.then == Then::Final && (rule.backoff.is_some() || rule.delay.is_some()) {
                let what = format!("rules[{i}] is final and has a delay that nobody waits for");
                self.add("rule-delay-unused", what, "then retry, or no delay");
            }
        }
    }

    fn switches(&mut self, policy: &Policy) {
        if !policy.respect_retry_after {
            let what = "Retry-After is not heeded: who asked to be left alone is called again";
            self.add("retry-after-ignored", what, "leave respect_retry_after out");
        }
        if policy.override_final {
            let what = "errors that their reporter calls final are retried";
            self.add("final-overridden", what, "rules for the errors that are meant");
        }
        if policy.default_class == Class::Final {
            let what = "an error that says nothing about itself is final";
            self.add("unknown-is-final", what, "leave default_class out, or make sure that workers state the class");
        }
        if let Some(both) = policy.retry_on.iter().flatten().find(|matcher| policy.ignore.contains(matcher)) {
            let what = format!("{both} is both in retry_on and in ignore, and is not retried");
            self.add("listed-and-ignored", what, "one of the two");
        }
    }
}

fn without_jitter(backoff: &Backoff, limits: &PolicyLimits) -> impl Fn(u32) -> Millis + use<> {
    let (plain, limits) = (Backoff { jitter: Jitter::None, ..backoff.clone() }, *limits);
    move |n| backoff::band(&plain, n, &limits).0
}

fn last_retry(entries: &[ScheduleEntry]) -> u32 {
    entries.iter().map(|entry| entry.retry).max().unwrap_or(0)
}

/// How many retries a task that always fails gets before its deadline, played by the forecast on delays without jitter.
fn retries_in_time(policy: &Policy, limits: &PolicyLimits, now: Timestamp) -> u32 {
    let plain = Policy {
        backoff: Backoff { jitter: Jitter::None, ..policy.backoff.clone() },
        retry_on: None,
        ignore: Vec::new(),
        retry_when: None,
        stop_when: None,
        rules: Vec::new(),
        windows: Vec::new(),
        default_class: Class::Retryable,
        last_try: false,
        ..policy.clone()
    };
    let failure = Failure::new(Trigger::Error, "as assumed");
    let at_most = policy.max_retries as usize + 1;
    let coming =
        forecast::of_policy(Some(Arc::new(plain)), *limits, &[failure.into()], TaskId(Uuid::nil()), now, at_most);
    u32::try_from(coming.attempts.len()).unwrap_or(u32::MAX).saturating_sub(1)
}
