//! Policies and verdicts in words. The same words in the API, the CLI and the dashboard, because they are made here.

pub mod forecast;
pub mod lint;

use crate::backoff;
use crate::event::{EventKind, Record};
use crate::policy::{Backoff, DeadlineKind, Jitter, OnExhausted, OnLost, Policy, PolicyLimits, Strategy};
use crate::reason::{Decision, Reason, Verdict};
use crate::task::{State, Task};
use crate::time::Millis;

/// How a policy was read, sentence by sentence; the first is the count.
pub fn policy(policy: Option<&Policy>) -> Vec<String> {
    let Some(policy) = policy else {
        return vec!["1 execution: 1 first try, no retries".into(), "no policy: a failure is final".into()];
    };
    let mut words = vec![count(policy.max_retries)];
    if policy.max_retries > 0 {
        words.push(series(&policy.backoff, policy.max_retries));
    }
    if let Some(cap) = policy.backoff.max_delay {
        words.push(format!("no delay is longer than {cap}"));
    }
    words.extend(jitter(policy.backoff.jitter));
    let list = |items: &[crate::failure::Matcher]| items.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    if let Some(on) = &policy.retry_on {
        words.push(format!("retries only on {}", list(on)));
    }
    if !policy.ignore.is_empty() {
        words.push(format!("never retries on {}, unless a closer match says so", list(&policy.ignore)));
    }
    if let Some(expression) = &policy.retry_when {
        words.push(format!("retries only when {}", expression.source()));
    }
    if let Some(expression) = &policy.stop_when {
        words.push(format!("gives up when {}", expression.source()));
    }
    if !policy.rules.is_empty() {
        words.push(format!("{} asked first, the first match wins", plural(policy.rules.len(), "rule")));
    }
    if !policy.windows.is_empty() {
        words.push(format!("no retry runs in {}", plural(policy.windows.len(), "closed window")));
    }
    if let Some(span) = policy.max_elapsed {
        words.push(format!("gives up {span} after the first failure"));
    }
    if let Some(at) = policy.expires_at {
        words.push(format!("gives up at {}", at.to_rfc3339()));
    }
    if policy.last_try {
        words.push("tries once more just before the deadline".into());
    }
    if policy.deadline == DeadlineKind::Hard {
        words.push("a run under way is ended at the deadline".into());
    }
    words.push(match policy.on_lost {
        OnLost::Retry => format!("a lost run is repeated, uncounted, up to {}", times(policy.max_lost)),
        OnLost::Count => "a lost run counts as a failure".into(),
        OnLost::Park => "a lost run waits for a person".into(),
        OnLost::Fail => "a lost run fails the task".into(),
    });
    if policy.on_exhausted == OnExhausted::Park {
        words.push("when the retries are used up it waits for a person".into());
    }
    words
}

/// "6 executions: 1 first try + 5 retries".
fn count(max_retries: u32) -> String {
    match max_retries {
        0 => "1 execution: 1 first try, no retries".into(),
        1 => "2 executions: 1 first try + 1 retry".into(),
        n => format!("{} executions: 1 first try + {n} retries", u64::from(n) + 1),
    }
}

fn series(backoff: &Backoff, retries: u32) -> String {
    let plain = Backoff { jitter: Jitter::None, ..backoff.clone() };
    let delay = |n| backoff::band(&plain, n, &PolicyLimits::default()).0;
    let total = (0..retries).map(delay).fold(Millis::ZERO, |sum, next| sum + next);
    let shown = retries.min(8);
    let mut list: Vec<String> = (0..shown).map(|n| delay(n).to_string()).collect();
    if retries > shown {
        list.push(format!("… {}", delay(retries - 1)));
    }
    let name = match &backoff.strategy {
        Strategy::Immediate { .. } => "immediate".to_owned(),
        Strategy::Fixed { .. } => "fixed".to_owned(),
        Strategy::Linear { .. } => "linear".to_owned(),
        Strategy::Exponential { multiplier, .. } => format!("exponential x{multiplier}"),
        Strategy::Schedule(_) => "by schedule".to_owned(),
    };
    format!("{name}: waits {}; {total} in all", list.join(", "))
}

fn jitter(jitter: Jitter) -> Option<String> {
    let words = match jitter {
        Jitter::None => return None,
        Jitter::Proportional => "each delay is drawn between a half and one and a half of it",
        Jitter::Full => "each delay is drawn between nothing and all of it",
        Jitter::Equal => "each delay is drawn between a half and all of it",
        Jitter::Decorrelated => "each delay is drawn between the first one and three times the one before",
    };
    Some(words.into())
}

/// Why a task is as it is: the last verdict about it, unless something else has happened since.
pub fn standing(task: &Task, last: Option<&Record>) -> String {
    let is_the_end = |record: &Record| record.decision.as_ref().is_some_and(|it| it.verdict == Verdict::Succeed);
    let since = match task.state {
        State::Succeeded if last.is_none_or(|last| !is_the_end(last)) => Some(format!("run {} succeeded", task.run)),
        State::Canceled | State::Skipped => Some(task.reason.map_or("it was given up", cancellation).to_owned()),
        State::Failed | State::Dead if !last.is_some_and(|last| is_its_end(task, last)) => {
            Some(format!("it ended as {}: {}", task.state, task.reason.map_or("it was given up", gave_up)))
        }
        _ if last.is_some_and(|last| last.cycle < task.cycle) => Some("somebody asked for another try".to_owned()),
        _ => None,
    };
    match (since, last) {
        (Some(since), Some(last)) => format!("{since}; before that, {}", verdict(last)),
        (Some(since), None) => since,
        (None, Some(last)) => verdict(last),
        (None, None) => format!("it is {} and nothing was decided about it yet", task.state),
    }
}

/// The same for what stands for an execution that somebody mended since, which `mended` tells.
pub fn mended(task: &Task, mended: &Record, last: Option<&Record>) -> String {
    let who = mended.actor.as_deref().unwrap_or("somebody");
    let id = mended.data.as_ref().and_then(|data| data["mended"].as_str()).unwrap_or_default();
    let anew = if mended.events.contains(&EventKind::AttemptStarted) { "mended" } else { "began anew" };
    let retry = last.and_then(|last| last.decision.as_ref()).and_then(|decision| decision.next_retry_at);
    let superseded = retry.map(|at| format!(", in place of the retry at {}", at.to_rfc3339())).unwrap_or_default();
    let ended = match task.state {
        State::Succeeded => format!("run {} succeeded; before that, ", task.run),
        _ => String::new(),
    };
    let before = last.map(|last| format!("; before that, {}", verdict(last))).unwrap_or_default();
    format!("{ended}{who} {anew} execution {id}, which it stands for{superseded}{before}")
}

/// Whether a verdict is the one that ended a task that failed.
fn is_its_end(task: &Task, last: &Record) -> bool {
    last.cycle == task.cycle && last.decision.as_ref().is_some_and(|decision| Some(decision.reason) == task.reason)
}

/// Of tasks whose log does not have the verdict.
fn gave_up(reason: Reason) -> &'static str {
    match reason {
        Reason::Expired => PASSED,
        Reason::Expression => cancellation(reason),
        Reason::Attempts => "the retries are used up",
        Reason::Lost => "too many runs were lost",
        Reason::ThrottledOut => "it was throttled too often",
        Reason::SnoozedOut => "it was postponed too often",
        other => refusal(other),
    }
}

const PASSED: &str = "its deadline has passed";

/// The unmet needs of a task, by name and end.
pub fn unmet(needs: &[(String, State)]) -> Option<String> {
    let named: Vec<String> = needs.iter().take(5).map(|(name, end)| format!("`{name}` is {end}")).collect();
    let more = if needs.len() > named.len() { " and more" } else { "" };
    (!named.is_empty()).then(|| format!("of what it needs, {}{more}", named.join(", ")))
}

fn cancellation(reason: Reason) -> &'static str {
    match reason {
        Reason::Canceled => "somebody canceled it",
        Reason::ExecutionCanceled => "its execution was canceled",
        Reason::FailFast => "another task of its execution failed, and the first failure ends them all",
        Reason::DeadEnd => "nothing was left that needs it",
        Reason::UpstreamUnmet => "what it waited for did not come about",
        Reason::Condition => "its condition said no",
        Reason::Expression => "something in it could not be worked out",
        _ => "it was given up",
    }
}

/// The last verdict about a task, as one sentence for people: what happened, what it means, what is next.
pub fn verdict(record: &Record) -> String {
    let what = what_happened(record);
    let Some(decision) = &record.decision else { return what };
    format!("{what}; {}", consequence(decision))
}

fn what_happened(record: &Record) -> String {
    match &record.failure {
        None => match record.outcome {
            Some(outcome) => format!("run {} {outcome}", record.run),
            None if record.decision.is_some() => "it waited".into(),
            None => record.events.last().map(ToString::to_string).unwrap_or_default(),
        },
        Some(failure) => {
            let status = failure.status.map(|status| format!("HTTP {status} ")).unwrap_or_default();
            let name = failure.error_type.as_deref().map(|name| format!("{name} ")).unwrap_or_default();
            let message = if failure.message.is_empty() { failure.trigger.word() } else { &failure.message };
            let message = message.lines().next().unwrap_or("");
            // Many say the status once more.
            let again = failure.status.map(|status| format!("{status} "));
            let bare = again.and_then(|again| message.strip_prefix("HTTP ").unwrap_or(message).strip_prefix(&*again));
            let short: String = bare.unwrap_or(message).chars().take(200).collect();
            match record.outcome {
                Some(_) => format!("run {}: {status}{name}{short}", record.run),
                None => format!("without a run: {short}"),
            }
        }
    }
}

fn consequence(decision: &Decision) -> String {
    let class = decision.class.map(|class| format!(" (class {class})")).unwrap_or_default();
    let matched = decision.matched.as_deref().map(|rule| format!(", {rule} matched")).unwrap_or_default();
    let mut words = match decision.verdict {
        Verdict::Succeed => "succeeded".into(),
        Verdict::Retry if decision.reason == Reason::LostRetry => {
            format!("the run was lost, it is repeated{}", when(decision))
        }
        Verdict::Retry => {
            let of = decision.max_retries.map(|max| format!(" of {max}")).unwrap_or_default();
            format!("retry {}{of}{class}{matched}{}", decision.after.attempt, when(decision))
        }
        Verdict::Throttle => format!("rate limited, not counted as an attempt{}", when(decision)),
        Verdict::Snooze => format!("postponed, not counted as an attempt{}", when(decision)),
        Verdict::Release => "given back, not counted".into(),
        Verdict::Park => "parked for a person".into(),
        Verdict::Refuse => format!("not retried because {}{class}{matched}", refusal(decision.reason)),
        Verdict::Exhaust => format!(
            "given up because {}{class}{}",
            exhaustion(decision),
            if decision.rule_max.is_some() { "" } else { &matched }
        ),
    };
    if let (Some(until), Some(by)) = (decision.held_until, &decision.held_by) {
        words.push_str(&format!("; held by {by} until {}", until.to_rfc3339()));
    }
    for note in &decision.notes {
        words.push_str(&format!("; {note}"));
    }
    words
}

fn when(decision: &Decision) -> String {
    match (&decision.delay, decision.next_retry_at) {
        (Some(delay), Some(at)) => format!(", in {} at {}", delay.total(), at.to_rfc3339()),
        _ => String::new(),
    }
}

fn refusal(reason: Reason) -> &'static str {
    match reason {
        Reason::NoPolicy => "the task has no retry policy",
        Reason::Final => "the error is final",
        Reason::StopWhen => "stop_when holds",
        Reason::Ignored => "the policy ignores this error",
        Reason::NotListed => "retry_on does not list this error",
        Reason::RetryWhen => "retry_when does not hold",
        Reason::Rule => "a rule says so",
        Reason::Reclassified => "somebody said that such errors are final",
        Reason::OnLostFail => "a lost run fails this task",
        Reason::UpstreamFailed => "a task it needs failed",
        Reason::Rounds => "a round of it failed",
        Reason::Expression => "what could not be worked out would not be the next time",
        _ => "it was not to be",
    }
}

fn exhaustion(decision: &Decision) -> String {
    if let (Some(max), Some(rule)) = (decision.rule_max, &decision.matched) {
        return format!("{rule} allows {} and no more", plural(max as usize, "retry"));
    }
    match decision.reason {
        Reason::Attempts => match decision.max_retries {
            Some(max) => format!("all {} are used up", plural(max as usize, "retry")),
            None => "the retries are used up".into(),
        },
        Reason::Expired if decision.delay.is_none() => PASSED.into(),
        Reason::Expired => "the next try would come after the deadline".into(),
        Reason::Lost => format!("{} were lost", plural(decision.after.lost as usize, "run")),
        Reason::ThrottledOut => "it was throttled too often".into(),
        Reason::SnoozedOut => "it was postponed too often".into(),
        other => other.to_string(),
    }
}

fn plural(count: usize, noun: &str) -> String {
    match (count, noun) {
        (1, noun) => format!("1 {noun}"),
        (n, "retry") => format!("{n} retries"),
        (n, noun) => format!("{n} {noun}s"),
    }
}

fn times(count: u32) -> String {
    if count == 1 { "once".into() } else { format!("{count} times") }
}
