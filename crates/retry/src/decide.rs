//! The only file that decides about a failure.
//!
//! Over 500 lines: the whole decision is read in one place, step by step.
//!
//! [`decide`] takes a task as it is and how its run ended, and returns the whole change: the state, the counters, the next
//! time, the events and the reason. It reads no clock and draws no random number. The numbers in the comments are the steps
//! of this table; the first step that refuses names the reason.
//!
//! | step | question | if so |
//! |--:|---|---|
//! | 1 | Is the reporter's lease gone, or the task canceled? | rejected, nothing changes |
//! | 2 | Was the run lost? | `on_lost`: fail, park, count (go on at 11), or retry with a counter of its own |
//! | – | Is it a loop of which rounds failed? | `failed`, `rounds`: each round had its own retries |
//! | 3 | Has the task no policy? | `failed`, `no_policy` |
//! | – | Did a person reclassify this group of errors? | that class: `failed`, `reclassified`, or go on at 10 |
//! | 4 | Does a rule match? | what the rule says, in place of 5 to 9 |
//! | 5 | Is the error final, and not listed more closely than by its class? | `failed`, `final` |
//! | 6 | Does `stop_when` hold? | `failed`, `stop_when` |
//! | 7 | Does `ignore` match at least as closely as `retry_on`? | `failed`, `ignored` |
//! | 8 | Is there a `retry_on` that does not match? | `failed`, `not_listed` |
//! | 9 | Is there a `retry_when` that does not hold? | `failed`, `retry_when` |
//! | 10 | Is it rate limited, with a `Retry-After`? | wait that long, uncounted, up to `max_throttles` |
//! | 11 | Are the retries used up? | `dead`, or parked by `on_exhausted` |
//! | 12 | | the delay, by the backoff and its jitter |
//! | 13 | Is that in a closed window? | when the window opens |
//! | 14 | Is that past the deadline? | `dead`, `expired`; or one last try before it |
//! | 15 | | count the retry |
//! | 16 | Is there a hold by a dependency, a budget or a person? | held until then, uncounted |

use std::sync::Arc;

use crate::backoff::{self, Draw, Stream};
use crate::event::{AttemptOutcome, EventKind};
use crate::expression::{Allowance, Expression, Scope};
use crate::failure::{Class, Failure, Fit, Trigger, closest};
use crate::fingerprint::{fingerprint, fingerprint_to_hex};
use crate::guard::GuardView;
use crate::policy::{Backoff, Dialect, OnExhausted, OnExpressionError, OnLost, Policy, PolicyLimits, Rule, Then};
use crate::reason::{Decision, DelayParts, Reason, Verdict};
use crate::task::{Counters, State, Tally, Task};
use crate::time::{Millis, Timestamp};
use crate::transition::{Change, Rejection, Transition, TransitionKind};
use crate::window;

/// Everything a verdict depends on, but the end itself and the time.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// The task as it is.
    pub task: Task,
    /// Its policy; `None` if a failure is final.
    pub policy: Option<Arc<Policy>>,
    /// The number under which the policy is stored.
    pub policy_id: Option<i32>,
    /// The server's limits for policies.
    pub limits: PolicyLimits,
    /// Everything that may hold the task back.
    pub guard: GuardView,
}

impl Snapshot {
    /// A task and its policy, with the default limits and without holds.
    pub fn new(task: Task, policy: Policy) -> Snapshot {
        let (policy, limits) = (Some(Arc::new(policy)), PolicyLimits::default());
        Snapshot { task, policy, policy_id: None, limits, guard: GuardView::default() }
    }
}

/// How a run ended, and who says so.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The reporter.
    pub reporter: Reporter,
    /// The reported end.
    pub end: End,
}

/// By what right somebody speaks about a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reporter {
    /// A worker, with the number of its lease.
    Lease(u32),
    /// A callback that names the run it was started for.
    Run(u32),
    /// A callback that names the attempt it was started for. It speaks only while attempts and runs go together: after a
    /// loss, a throttle, a snooze or a manual retry an attempt's number no longer names one run (model A12, X1-6).
    Attempt(u32),
    /// A callback of an old kind that names nothing (X1-6).
    Anyone,
    /// One of the server's own loops; what it says must be so by the task's own times, and the version guards it.
    Server,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq)]
pub enum End {
    /// It succeeded.
    Succeeded {
        /// Its result: JSON text, passed through as it came.
        result: Option<Arc<str>>,
    },
    /// It failed.
    Failed(Failure),
    /// The run was lost: `lease_expired` or `stuck`.
    Lost(Trigger),
    /// The worker postponed it; no attempt is counted.
    Snoozed {
        /// How long to wait.
        delay: Millis,
    },
    /// The worker gave it back; no attempt is counted.
    Released,
}

impl End {
    /// How the attempt is remembered if the end is accepted as it was told.
    pub fn outcome(&self) -> AttemptOutcome {
        match self {
            End::Succeeded { .. } => AttemptOutcome::Succeeded,
            End::Failed(_) => AttemptOutcome::Failed,
            End::Lost(_) => AttemptOutcome::Lost,
            End::Snoozed { .. } => AttemptOutcome::Snoozed,
            End::Released => AttemptOutcome::Released,
        }
    }
}

/// How much time a last try gets before the deadline.
const LAST_TRY_MARGIN: Millis = Millis::from_secs(1);

/// Decides what the end of a run means: the task afterwards and the record for its log, or why nothing changes.
pub fn decide(snapshot: &Snapshot, outcome: &Outcome, now: Timestamp) -> Result<Transition, Rejection> {
    let task = &snapshot.task;
    let now = task.time(now);
    authorize(task, outcome.reporter, now)?; // 1
    if outcome.reporter == Reporter::Server {
        check_still_due(task, &outcome.end, now)?;
    }
    match &outcome.end {
        End::Succeeded { result } => succeed(task, result.clone(), now),
        End::Failed(failure) => FailureDecision::new(snapshot, failure.clone(), now).failed(),
        End::Lost(_) if before_anything_was_sent(task) => requeue(task, now),
        End::Lost(trigger) => {
            let failure = Failure::new(*trigger, lost_message(task, *trigger, now));
            FailureDecision::new(snapshot, failure, now).lost()
        }
        End::Snoozed { delay } => FailureDecision::new(snapshot, Failure::default(), now).snoozed(*delay),
        End::Released => release(task, now),
    }
}

/// 1: the lease number says who may speak; an expired lease says nothing any more (R-I5).
fn authorize(task: &Task, reporter: Reporter, now: Timestamp) -> Result<(), Rejection> {
    if task.state == State::Canceled {
        return Err(Rejection::TaskCanceled);
    }
    let Some(lease) = &task.lease else {
        return Err(match reporter {
            Reporter::Server => Rejection::WrongState { state: task.state, verb: "settled" },
            _ => Rejection::LeaseLost,
        });
    };
    let live = lease.expires_at.is_none_or(|at| at > now);
    let holds = live || !matches!(reporter, Reporter::Lease(_));
    if holds && task.is_meant_by(reporter) { Ok(()) } else { Err(Rejection::LeaseLost) }
}

/// A loop may have looked before a heartbeat came: what it says is measured against the task as it is now.
fn check_still_due(task: &Task, end: &End, now: Timestamp) -> Result<(), Rejection> {
    let has_passed = |at: Option<Timestamp>| at.is_some_and(|at| at <= now);
    let so = match end {
        End::Lost(_) => has_passed(task.lease.as_ref().and_then(|lease| lease.expires_at)),
        End::Failed(failure) if failure.trigger == Trigger::Timeout => has_passed(task.timeout_at),
        _ => true,
    };
    if so { Ok(()) } else { Err(Rejection::NotDue) }
}

/// T9.
fn succeed(task: &Task, result: Option<Arc<str>>, now: Timestamp) -> Result<Transition, Rejection> {
    let mut change = Change::of(task, now);
    change.end_attempt(AttemptOutcome::Succeeded);
    change.after.class = None;
    change.record.result = result;
    change.event(EventKind::AttemptSucceeded);
    change.event(EventKind::TaskSucceeded);
    change.end(TransitionKind::T9, State::Succeeded, Reason::Succeeded)
}

/// T23: given back, uncounted.
fn release(task: &Task, now: Timestamp) -> Result<Transition, Rejection> {
    let mut change = Change::of(task, now);
    change.end_attempt(AttemptOutcome::Released);
    change.event(EventKind::TaskReleased);
    change.finish_unless_paused(TransitionKind::T23, State::Pending)
}

fn before_anything_was_sent(task: &Task) -> bool {
    task.paused_from.unwrap_or(task.state) == State::Claimed && task.started_at.is_none()
}

/// T8: claimed, and nothing was sent: as if it had not been claimed.
fn requeue(task: &Task, now: Timestamp) -> Result<Transition, Rejection> {
    let mut change = Change::of(task, now);
    change.release_lease();
    change.event(EventKind::TaskLeaseExpired);
    change.finish_unless_paused(TransitionKind::T8, State::Pending)
}

fn lost_message(task: &Task, trigger: Trigger, now: Timestamp) -> String {
    let worker = task.lease.as_ref().map_or("its worker", |lease| &lease.worker);
    let is_live = task.lease.as_ref().and_then(|lease| lease.expires_at).is_some_and(|end| end > now);
    match trigger {
        // It said so itself: the process of that name began anew.
        Trigger::LeaseExpired if is_live => format!("{worker} was started again and does not know of it"),
        Trigger::Stuck => format!("no sign of life from {worker}"),
        _ => format!("the lease of {worker} ran out"),
    }
}

/// A bad end on its way through the steps.
struct FailureDecision<'a> {
    snapshot: &'a Snapshot,
    failure: Failure,
    class: Class,
    now: Timestamp,
    matched: Option<String>,
    /// The maximum of the rule that matched, where it is used up.
    rule_max: Option<u32>,
    notes: Vec<String>,
    delay: Option<DelayParts>,
    allowance: Allowance,
}

/// Which counter a repeat moves.
#[derive(Clone, Copy, PartialEq)]
enum Counted {
    Attempt,
    Lost,
    Throttled,
    Snoozed,
}

impl<'a> FailureDecision<'a> {
    fn new(snapshot: &'a Snapshot, failure: Failure, now: Timestamp) -> FailureDecision<'a> {
        let default = snapshot.policy.as_ref().map_or(Class::Retryable, |policy| policy.default_class);
        let (class, _) = failure.classify(default);
        let ignored = failure.retry_after_ignored.as_deref();
        let notes =
            ignored.map(|text| format!("retry_after `{text}` cannot be read and was ignored")).into_iter().collect();
        FailureDecision {
            snapshot,
            failure,
            class,
            now,
            matched: None,
            rule_max: None,
            notes,
            delay: None,
            allowance: Allowance::default(),
        }
    }

    fn task(&self) -> &'a Task {
        &self.snapshot.task
    }

    /// 2: what a loss means is the policy's to say; without a policy it is the end (model A2).
    fn lost(mut self) -> Result<Transition, Rejection> {
        let Some(policy) = self.snapshot.policy.as_deref() else { return self.refuse(Reason::OnLostFail) };
        match policy.on_lost {
            OnLost::Fail => self.refuse(Reason::OnLostFail),
            OnLost::Park => self.park(),
            OnLost::Count => self.counted(policy, None, None),
            OnLost::Retry if self.task().counters.lost >= policy.max_lost => self.exhaust(policy, Reason::Lost),
            OnLost::Retry => {
                let n = self.task().counters.lost;
                self.delay = Some(self.backoff(&policy.backoff, n, Stream::Loss));
                self.repeat(policy, Counted::Lost, Reason::LostRetry)
            }
        }
    }

    fn failed(mut self) -> Result<Transition, Rejection> {
        // Before 3: each round had its own retries, and the loop has none beside them.
        if self.failure.is_of_rounds() {
            return self.refuse(Reason::Rounds);
        }
        let Some(policy) = self.snapshot.policy.as_deref() else { return self.refuse(Reason::NoPolicy) }; // 3
        if let Some(class) = self.reclassified() {
            self.class = class; // before 4: what a person said of such errors stands above the policy
            return match class {
                Class::Final => self.refuse(Reason::Reclassified),
                Class::Retryable | Class::RateLimited => self.limited_or_counted(policy, None),
            };
        }
        if let Some((index, rule)) = self.first_rule(policy) {
            self.matched = Some(format!("rules[{index}]")); // 4
            return self.by_rule(policy, index, rule);
        }
        let on_list = |class| policy.retry_on.as_deref().and_then(|list| closest(list, &self.failure, class));
        let mut listed = on_list(self.class);
        if self.class == Class::Final {
            let stated = self.failure.class.is_some();
            // The built-in map is the most general opinion there is: what the policy lists by itself is closer (X0-11).
            let asked_for = listed.is_some_and(|(_, fit)| fit > Fit::Class);
            if !policy.override_final && (stated || !asked_for) {
                return self.refuse(Reason::Final); // 5
            }
            // Whoever lists the class means what is retried as such, by whichever of its two names.
            listed = listed.into_iter().chain(on_list(Class::Retryable)).max_by_key(|(_, fit)| *fit);
            self.class = Class::Retryable;
        }
        if let Some(stop) = &policy.stop_when
            && self.holds(stop, "stop_when", policy.on_expression_error == OnExpressionError::Closed)
        {
            return self.refuse(Reason::StopWhen); // 6
        }
        let ignored = closest(&policy.ignore, &self.failure, self.class);
        if let Some((index, fit)) = ignored
            && listed.is_none_or(|(_, listed_fit)| fit >= listed_fit)
        {
            self.matched = Some(format!("ignore[{index}] \"{}\"", policy.ignore[index]));
            return self.refuse(Reason::Ignored); // 7
        }
        if let Some(list) = &policy.retry_on {
            let Some((index, _)) = listed else { return self.refuse(Reason::NotListed) }; // 8
            self.matched = list.get(index).map(|matcher| format!("retry_on[{index}] \"{matcher}\""));
        }
        if let Some(retry) = &policy.retry_when
            && !self.holds(retry, "retry_when", policy.on_expression_error == OnExpressionError::Open)
        {
            return self.refuse(Reason::RetryWhen); // 9
        }
        self.limited_or_counted(policy, None)
    }

    fn reclassified(&mut self) -> Option<Class> {
        let said = self.snapshot.guard.reclassified.as_ref()?;
        let group = fingerprint(&self.task().lane.kind, &self.failure);
        let class = said.get(&group).copied()?;
        self.matched = Some(format!("errors[{}]", fingerprint_to_hex(group)));
        Some(class)
    }

    fn first_rule(&mut self, policy: &'a Policy) -> Option<(usize, &'a Rule)> {
        for (index, rule) in policy.rules.iter().enumerate() {
            let matches = rule.matches.matches(&self.failure, self.class)
                && rule
                    .matches
                    .when
                    .as_ref()
                    .is_none_or(|when| self.holds(when, &format!("rules[{index}].when"), false));
            if matches {
                return Some((index, rule));
            }
        }
        None
    }

    /// 4: a rule stands in place of the simple fields, which are sugar for rules behind it (model A7).
    fn by_rule(mut self, policy: &'a Policy, index: usize, rule: &'a Rule) -> Result<Transition, Rejection> {
        let used = self.task().rule_counts.get(index).copied().unwrap_or(0);
        let spent = rule.max.filter(|max| used >= *max);
        match rule.then {
            Then::Final => {
                self.class = Class::Final;
                self.refuse(Reason::Rule)
            }
            _ if spent.is_some() => {
                self.rule_max = spent;
                self.exhaust(policy, Reason::Attempts)
            }
            Then::Park => self.park(),
            Then::Snooze => self.postpone(policy, rule.delay.unwrap_or_default(), Some(index)),
            Then::Retry => {
                if self.class == Class::Final {
                    self.class = Class::Retryable;
                }
                self.limited_or_counted(policy, Some((index, rule)))
            }
        }
    }

    /// 10: asked to stay away for a while, which costs no attempt but is bounded (X3-1, X3-2).
    fn limited_or_counted(
        mut self,
        policy: &'a Policy,
        rule: Option<(usize, &'a Rule)>,
    ) -> Result<Transition, Rejection> {
        let asked = self.retry_after(policy);
        match asked {
            Some(asked) if self.class == Class::RateLimited => {
                if self.task().counters.throttled >= policy.max_throttles {
                    return self.exhaust(policy, Reason::ThrottledOut);
                }
                self.delay = Some(DelayParts {
                    strategy: "retry_after".into(),
                    n: self.task().counters.throttled,
                    base_ms: asked.0,
                    retry_after_ms: Some(asked.0),
                    total_ms: asked.0,
                    ..DelayParts::default()
                });
                let index = rule.map(|(index, _)| index);
                self.repeat_with(policy, Counted::Throttled, Reason::RateLimited, index)
            }
            _ => self.counted(policy, rule, asked),
        }
    }

    /// The `Retry-After` of the other side, clamped by the policy.
    fn retry_after(&mut self, policy: &Policy) -> Option<Millis> {
        let asked = self.failure.retry_after.filter(|_| policy.respect_retry_after)?.from_now(self.now);
        if asked > policy.max_retry_after {
            self.notes.push(format!("Retry-After of {asked} was clamped to {}", policy.max_retry_after));
        }
        Some(asked.min(policy.max_retry_after))
    }

    /// 11 and 12: a retry that counts.
    fn counted(
        mut self,
        policy: &'a Policy,
        rule: Option<(usize, &'a Rule)>,
        asked: Option<Millis>,
    ) -> Result<Transition, Rejection> {
        let attempt = self.task().counters.attempt;
        let most = self.most_retries(policy);
        if attempt >= most {
            if most < policy.max_retries {
                let own = policy.max_retries;
                self.notes.push(format!("the server's limit of {most} stands over the policy's {own} retries"));
            }
            return self.exhaust(policy, Reason::Attempts); // 11
        }
        let mut parts = match rule.and_then(|(index, rule)| rule.backoff.as_ref().map(|own| (index, own))) {
            None => self.backoff(&policy.backoff, attempt, Stream::Retry), // 12
            Some((index, own)) => {
                let used = self.task().rule_counts.get(index).copied().unwrap_or(0);
                self.backoff(own, used, Stream::Rule(u32::try_from(index).unwrap_or(u32::MAX)))
            }
        };
        if let Some(asked) = asked {
            parts.retry_after_ms = Some(asked.0);
            parts.total_ms = parts.total_ms.max(asked.0);
        }
        self.delay = Some(parts);
        if let Some((index, _)) = rule {
            return self.repeat_by_rule(policy, index);
        }
        self.repeat(policy, Counted::Attempt, Reason::Retry)
    }

    /// A limit that was tightened after the policy was made stands over it (model A11, I-13).
    fn most_retries(&self, policy: &Policy) -> u32 {
        policy.max_retries.min(self.snapshot.limits.max_retries)
    }

    fn backoff(&mut self, backoff: &Backoff, n: u32, stream: Stream) -> DelayParts {
        let draw = Draw { task: self.task().id, cycle: self.task().cycle, stream };
        let limits = &self.snapshot.limits;
        let parts = backoff::delay(backoff, n, draw, limits);
        if let Some(limit) = backoff::clamped_by_server(backoff, &parts, limits) {
            self.notes.push(format!("the server allows delays of {limit} at most"));
        }
        parts
    }

    /// T22: the worker asked for a pause of its own choosing.
    fn snoozed(self, delay: Millis) -> Result<Transition, Rejection> {
        let fallback;
        let policy = match self.snapshot.policy.as_deref() {
            Some(policy) => policy,
            None => {
                fallback = Policy::preset(Dialect::Native);
                &fallback
            }
        };
        let (task, now) = (self.task(), self.now);
        let max_retries = Some(self.most_retries(policy));
        if task.counters.snoozed >= policy.max_snoozes {
            let mut decision = self.decision(Verdict::Exhaust, Reason::SnoozedOut, task.counters);
            (decision.class, decision.trigger, decision.max_retries) = (None, None, max_retries);
            let mut change = Change::of(task, now);
            change.end_attempt(AttemptOutcome::Snoozed);
            change.record.decision = Some(decision);
            if task.class.is_none() {
                let message = format!("it was postponed {} times, and no more are allowed", task.counters.snoozed);
                change.record.failure = Some(Failure::new(Trigger::Explicit, message));
            }
            change.event(EventKind::TaskRetryExhausted);
            change.event(EventKind::TaskFailed);
            change.event_of_executions(EventKind::ExecutionRetryExhausted);
            return change.end(TransitionKind::T22, State::Dead, Reason::SnoozedOut);
        }
        let delay = delay.min(self.snapshot.limits.max_schedule);
        let mut after = task.counters;
        after.snoozed += 1;
        let mut decision = self.decision(Verdict::Snooze, Reason::Snoozed, after);
        (decision.class, decision.trigger, decision.max_retries) = (None, None, max_retries);
        let next = now + delay;
        decision.delay = Some(DelayParts {
            strategy: "snooze".into(),
            n: task.counters.snoozed,
            base_ms: delay.0,
            total_ms: delay.0,
            ..DelayParts::default()
        });
        decision.next_retry_at = Some(next);
        let mut change = Change::of(task, now);
        change.end_attempt(AttemptOutcome::Snoozed);
        change.after.counters = after;
        change.after.next_retry_at = Some(next);
        change.record.decision = Some(decision);
        change.event(EventKind::TaskSnoozed);
        change.finish_unless_paused(TransitionKind::T22, State::RetryPending)
    }

    /// A rule postpones a failed run: it waits, uncounted but for the snoozes.
    fn postpone(mut self, policy: &'a Policy, delay: Millis, rule: Option<usize>) -> Result<Transition, Rejection> {
        if self.task().counters.snoozed >= policy.max_snoozes {
            return self.exhaust(policy, Reason::SnoozedOut);
        }
        self.delay = Some(DelayParts {
            strategy: "snooze".into(),
            n: self.task().counters.snoozed,
            base_ms: delay.0,
            total_ms: delay.0,
            ..DelayParts::default()
        });
        self.repeat_with(policy, Counted::Snoozed, Reason::Rule, rule)
    }

    fn repeat(self, policy: &'a Policy, counted: Counted, reason: Reason) -> Result<Transition, Rejection> {
        self.repeat_with(policy, counted, reason, None)
    }

    fn repeat_by_rule(self, policy: &'a Policy, index: usize) -> Result<Transition, Rejection> {
        self.repeat_with(policy, Counted::Attempt, Reason::Retry, Some(index))
    }

    /// 13 to 16: when exactly, and whether that is still in time.
    fn repeat_with(
        mut self,
        policy: &'a Policy,
        counted: Counted,
        reason: Reason,
        rule: Option<usize>,
    ) -> Result<Transition, Rejection> {
        let now = self.now;
        let mut parts = self.delay.take().unwrap_or_default();
        let asked = now + parts.total();
        let mut due = window::open_at(&policy.windows, asked).unwrap_or(asked); // 13
        let deadline = self.deadline(policy);
        if let Some(deadline) = deadline
            && due >= deadline
        {
            let Some(last) = self.last_try(policy, &parts, deadline) else {
                self.delay = Some(parts);
                return self.exhaust(policy, Reason::Expired); // 14
            };
            due = last;
            self.notes.push("moved to just before the deadline, as the last try".into());
        }
        parts.window_ms = due.since(asked).0;
        parts.total_ms = due.since(now).0;
        self.delay = Some(parts);

        let task = self.task();
        let mut counters = task.counters;
        let counter = match counted {
            Counted::Attempt => &mut counters.attempt,
            Counted::Lost => &mut counters.lost,
            Counted::Throttled => &mut counters.throttled,
            Counted::Snoozed => &mut counters.snoozed,
        };
        *counter += 1; // 15
        if counted == Counted::Attempt && self.failure.trigger.is_loss() {
            counters.lost += 1;
        }
        let hold = self.snapshot.guard.hold(due, deadline); // 16

        let verdict = match counted {
            Counted::Throttled => Verdict::Throttle,
            Counted::Snoozed => Verdict::Snooze,
            _ => Verdict::Retry,
        };
        let mut decision = self.decision(verdict, reason, counters);
        decision.next_retry_at = Some(due);
        decision.held_until = hold.as_ref().map(|hold| hold.until);
        decision.held_by = hold.as_ref().map(|hold| hold.reason.clone());

        let mut change = self.record_failed_attempt(match counted {
            Counted::Throttled => AttemptOutcome::Throttled,
            _ => AttemptOutcome::Failed,
        });
        change.after.counters = counters;
        change.after.next_retry_at = Some(due);
        change.after.hold = hold;
        if policy.reset_counters_on_retry {
            // What was expected still is: only what this run has counted goes with it (X1-5).
            change.after.tally = Tally { expected: task.tally.expected, ..Tally::default() };
        }
        if let Some(index) = rule {
            let counts = &mut change.after.rule_counts;
            counts.resize(counts.len().max(index + 1), 0);
            counts[index] += 1;
        }
        change.record.attempt = counters.attempt;
        change.record.decision = Some(decision);
        let (line, event) = match counted {
            Counted::Throttled => (TransitionKind::T11, EventKind::TaskThrottled),
            Counted::Snoozed => (TransitionKind::T10, EventKind::TaskSnoozed),
            _ if self.failure.trigger.is_loss() => (TransitionKind::T20, EventKind::TaskRetryScheduled),
            _ => (TransitionKind::T10, EventKind::TaskRetryScheduled),
        };
        change.event(event);
        change.event_of_executions(EventKind::ExecutionRetryScheduled);
        change.finish_unless_paused(line, State::RetryPending)
    }

    /// One run just before the deadline, but neither before the other side wants us back (model A4) nor in a closed window.
    fn last_try(&self, policy: &Policy, parts: &DelayParts, deadline: Timestamp) -> Option<Timestamp> {
        let last = window::last_open(&policy.windows, deadline - LAST_TRY_MARGIN).filter(|_| policy.last_try)?;
        let wanted_back = self.now + Millis(parts.retry_after_ms.unwrap_or(0));
        (last > self.now && last >= wanted_back).then_some(last)
    }

    /// The instant after which nothing may start: the task's own, and its patience since the first failure. The task's own is
    /// the policy's too, and may have been renewed since.
    fn deadline(&self, policy: &Policy) -> Option<Timestamp> {
        let first = self.task().first_failed_at.unwrap_or(self.now);
        let patience = policy.max_elapsed.map(|span| first + span);
        [self.task().expires_at.or(policy.expires_at), patience].into_iter().flatten().min()
    }

    /// The task ends as `failed`: the policy does not retry this failure (T12).
    fn refuse(self, reason: Reason) -> Result<Transition, Rejection> {
        self.finish(Verdict::Refuse, State::Failed, TransitionKind::T12, reason)
    }

    /// A limit is used up: the task ends as `dead` (T13), or is parked where the policy says so.
    fn exhaust(self, policy: &'a Policy, reason: Reason) -> Result<Transition, Rejection> {
        if reason == Reason::Attempts && policy.on_exhausted == OnExhausted::Park {
            return self.park();
        }
        self.finish(Verdict::Exhaust, State::Dead, TransitionKind::T13, reason)
    }

    /// Paused, for a person to look at (T25). Resuming starts a new cycle.
    fn park(self) -> Result<Transition, Rejection> {
        self.finish(Verdict::Park, State::Paused, TransitionKind::T25, Reason::Parked)
    }

    /// Records the attempt and its error, and ends or parks the task: no retry follows. A lost run ends it by T20.
    fn finish(
        self,
        verdict: Verdict,
        state: State,
        line: TransitionKind,
        reason: Reason,
    ) -> Result<Transition, Rejection> {
        let lost = self.failure.trigger.is_loss();
        let mut counters = self.task().counters;
        counters.lost += u32::from(lost);
        let mut change = self.record_failed_attempt(AttemptOutcome::Failed);
        change.after.counters = counters;
        change.record.decision = Some(self.decision(verdict, reason, counters));
        if verdict == Verdict::Park {
            change.after.parked = true;
            change.after.paused_from = Some(State::Pending);
            change.after.reason = Some(reason);
            change.event(EventKind::TaskParked);
            return change.finish(line, state, "parked");
        }
        let exhausted = verdict == Verdict::Exhaust;
        if exhausted {
            change.event(EventKind::TaskRetryExhausted);
        }
        change.event(EventKind::TaskFailed);
        if exhausted {
            change.event_of_executions(EventKind::ExecutionRetryExhausted);
        }
        change.end(if lost { TransitionKind::T20 } else { line }, state, reason)
    }

    /// The part that every bad end shares: the attempt is over, its error is kept (I-20).
    fn record_failed_attempt(&self, outcome: AttemptOutcome) -> Change<'a> {
        let task = self.task();
        let lost = self.failure.trigger.is_loss();
        let mut change = Change::of(task, self.now);
        change.end_attempt(if lost { AttemptOutcome::Lost } else { outcome });
        change.after.first_failed_at = task.first_failed_at.or(Some(self.now));
        change.after.class = Some(self.class);
        change.after.fingerprint = Some(fingerprint(&task.lane.kind, &self.failure));
        change.record.failure = Some(self.failure.clone());
        if lost {
            change.event(EventKind::TaskStuckRecovered);
        }
        change.event(EventKind::AttemptFailed);
        change
    }

    /// The verdict with its facts, as it is stored.
    fn decision(&self, verdict: Verdict, reason: Reason, after: Counters) -> Decision {
        Decision {
            class: Some(self.class),
            trigger: Some(self.failure.trigger),
            matched: self.matched.clone(),
            policy: self.snapshot.policy_id,
            max_retries: self.snapshot.policy.as_deref().map(|policy| self.most_retries(policy)),
            rule_max: self.rule_max,
            delay: self.delay.clone(),
            after,
            notes: self.notes.clone(),
            ..Decision::without_policy(verdict, reason, self.task().counters, self.now)
        }
    }

    /// Whether an expression holds; one that fails is noted and counts as `on_error`.
    fn holds(&mut self, expression: &Expression, name: &str, on_error: bool) -> bool {
        let task = self.task();
        let scope = Scope {
            failure: &self.failure,
            class: self.class,
            attempt_number: task.attempt_number(),
            execution_id: task.execution.unwrap_or(task.id.implicit_execution()).to_string(),
            task_id: task.id.to_string(),
        };
        match expression.holds_within(&scope, &mut self.allowance) {
            Ok(answer) => {
                if answer {
                    self.matched.get_or_insert_with(|| name.to_owned());
                }
                answer
            }
            Err(error) => {
                self.notes.push(format!("{name} could not be evaluated: {error}"));
                on_error
            }
        }
    }
}
