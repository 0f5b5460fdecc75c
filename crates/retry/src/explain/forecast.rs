//! The attempts that are still to come, when a task gives up, and how it ends then.
//!
//! The future is played through `decide` itself, so it cannot drift from what will happen. Every delay is exact (model
//! A4, A18); a time assumes that runs take no time, and widens by how long the task's runs took so far.

use std::sync::Arc;

use crate::decide::{End, Outcome, Reporter, Snapshot, decide};
use crate::event::Record;
use crate::failure::Failure;
use crate::guard::GuardView;
use crate::id::TaskId;
use crate::policy::{Policy, PolicyLimits};
use crate::reason::Reason;
use crate::task::{Lane, State, Task};
use crate::time::{Millis, Timestamp};
use crate::transition::{self, Rejection};

/// One attempt that may come.
#[derive(Clone, Debug, PartialEq)]
pub struct Coming {
    /// The run it will be (model A12).
    pub number: u32,
    /// When it starts if no run takes any time.
    pub at: Timestamp,
    /// When it starts if every run before it is as short as the shortest so far.
    pub earliest: Timestamp,
    /// When it starts if every run before it is as long as the longest so far.
    pub latest: Timestamp,
    /// The decision if it fails as assumed, as its record.
    pub verdict: Option<Record>,
}

/// How an attempt is assumed to fail, and how long it runs before.
#[derive(Clone, Debug, PartialEq)]
pub struct Assumed {
    /// How long it runs.
    pub after: Millis,
    /// How it fails.
    pub failure: Failure,
}

impl From<Failure> for Assumed {
    fn from(failure: Failure) -> Assumed {
        Assumed { after: Millis(0), failure }
    }
}

/// The attempts to come, and the end.
#[derive(Clone, Debug, PartialEq)]
pub struct Forecast {
    /// The attempts, in order.
    pub attempts: Vec<Coming>,
    /// When the last of them, or the deadline, ends it; nothing when more attempts follow than were asked for.
    pub gives_up_at: Option<Timestamp>,
    /// The final state and its reason.
    pub then: Option<(State, Reason)>,
}

/// How long runs took: the shortest and the longest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunTimes {
    /// The shortest run.
    pub shortest: Millis,
    /// The longest run.
    pub longest: Millis,
}

/// Plays a policy for a task that is submitted now and fails like this, attempt by attempt; the last failure repeats.
/// The id only draws the jitter.
pub fn of_policy(
    policy: Option<Arc<Policy>>,
    limits: PolicyLimits,
    failures: &[Assumed],
    id: TaskId,
    now: Timestamp,
    at_most: usize,
) -> Forecast {
    of_policy_while(policy, limits, failures, id, now, at_most, &|| true)
}

/// The same, for as long as `goes_on` says so: a policy may be slow to evaluate.
pub fn of_policy_while(
    policy: Option<Arc<Policy>>,
    limits: PolicyLimits,
    failures: &[Assumed],
    id: TaskId,
    now: Timestamp,
    at_most: usize,
    goes_on: &dyn Fn() -> bool,
) -> Forecast {
    let task = Task::new(id, Arc::new(Lane::default()), now);
    let snapshot = Snapshot { task, policy, policy_id: None, limits, guard: GuardView::default() };
    play(&snapshot, one_by_one(failures, goes_on), RunTimes::default(), now, at_most)
}

/// Assumes that every attempt from here on fails in the same way as `failure`.
pub fn forecast(snapshot: &Snapshot, failure: &Failure, runs: RunTimes, now: Timestamp, at_most: usize) -> Forecast {
    forecast_while(snapshot, failure, runs, now, at_most, &|| true)
}

/// The same, for as long as `goes_on` says so.
pub fn forecast_while(
    snapshot: &Snapshot,
    failure: &Failure,
    runs: RunTimes,
    now: Timestamp,
    at_most: usize,
    goes_on: &dyn Fn() -> bool,
) -> Forecast {
    play(snapshot, one_by_one(&[failure.clone().into()], goes_on), runs, now, at_most)
}

/// The first attempt fails like the first of them, and so on; the last one repeats.
fn one_by_one(failures: &[Assumed], goes_on: &dyn Fn() -> bool) -> impl Fn(usize, Timestamp) -> Option<(Millis, End)> {
    move |nth, _| {
        if !goes_on() {
            return None;
        }
        let assumed = failures.get(nth).or_else(|| failures.last())?;
        Some((assumed.after, End::Failed(assumed.failure.clone())))
    }
}

/// Leased and under way, also where somebody has to be called first.
fn begun(task: &Task, now: Timestamp) -> Result<Task, Rejection> {
    const LEASE: Millis = Millis::from_secs(60);
    let leased = transition::lease(task, "forecast", LEASE, now)?.after;
    match leased.state {
        State::Claimed => {
            let sent = transition::hook_sending(&leased, now)?;
            Ok(transition::hook_started(&sent, LEASE, now)?.into_parts().0)
        }
        _ => Ok(leased),
    }
}

/// Goes on until the task is over or the world has no answer. `world`: how long the nth attempt from here runs, which begins at an
/// instant, and how it ends.
pub fn play(
    snapshot: &Snapshot,
    world: impl Fn(usize, Timestamp) -> Option<(Millis, End)>,
    runs: RunTimes,
    now: Timestamp,
    at_most: usize,
) -> Forecast {
    let mut forecast = Forecast { attempts: Vec::new(), gives_up_at: None, then: None };
    let mut future = snapshot.clone();
    let mut clock = now;
    let mut ahead = 0_u64;
    let mut ended = 0;
    let task = &mut future.task;
    if task.state.is_terminal() {
        forecast.then = task.reason.map(|reason| (task.state, reason));
        forecast.gives_up_at = task.ended_at;
        return forecast;
    }
    if task.state == State::Paused {
        return forecast;
    }
    task.execution_paused = false;
    // A run under way counts as failing now; what waits for its parents counts as free now.
    let mut running = task.lease.is_some();
    task.needs_left = 0;
    if task.state == State::Waiting && task.start_at.is_none() {
        task.start_at = Some(now);
    }
    loop {
        if !running {
            let due = future.task.due();
            clock = future.guard.starts_at(clock.max(due.unwrap_or(clock)));
            if let Some(deadline) = future.task.expires_at.filter(|deadline| *deadline <= clock) {
                forecast.gives_up_at = Some(deadline);
                forecast.then = Some((State::Dead, Reason::Expired));
                return forecast;
            }
            if clock == Timestamp::MAX {
                // Somebody keeps its dependency open: it comes when they say so.
                return forecast;
            }
            if due.is_some() {
                match transition::promote(&future.task, clock) {
                    Ok(step) => future.task = step.after,
                    Err(_) => return forecast,
                }
            }
            if forecast.attempts.len() >= at_most {
                return forecast;
            }
            forecast.attempts.push(Coming {
                number: future.task.run + 1,
                at: clock,
                earliest: clock + Millis(runs.shortest.0.saturating_mul(ahead)),
                latest: clock + Millis(runs.longest.0.saturating_mul(ahead)),
                verdict: None,
            });
            ahead += 1;
            match begun(&future.task, clock) {
                Ok(task) => future.task = task,
                Err(_) => return forecast,
            }
        }
        running = false;
        let Some((after, end)) = world(ended, clock) else { return forecast };
        ended += 1;
        clock = clock + after;
        match decide(&future, &Outcome { reporter: Reporter::Anyone, end }, clock) {
            Err(_) => return forecast,
            Ok(change) => {
                let (after, record) = change.into_parts();
                if let Some(last) = forecast.attempts.last_mut() {
                    last.verdict = Some(record);
                }
                if after.state.is_terminal() || after.state == State::Paused {
                    forecast.gives_up_at = Some(clock);
                    forecast.then = Some((after.state, after.reason.unwrap_or(Reason::Parked)));
                    return forecast;
                }
                future.task = after;
            }
        }
    }
}
