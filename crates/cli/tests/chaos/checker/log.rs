//! R-I7, R-I8, R-I9, R-I18, R-I19: the log is whole, tells only what can happen, and gives the state that is stored.

use std::collections::HashMap;

use comeback_core::replay::{Replayed, replay};
use comeback_core::{Counters, Event, EventKind, Reason, State};
use uuid::Uuid;

use super::{Case, Found, Story};

pub fn check(case: &Case<'_>, found: &mut Found) {
    let mut shared: HashMap<Uuid, Vec<u32>> = HashMap::new();
    for story in case.stories.values() {
        if let Some(execution) = story.body.execution_id {
            shared.entry(execution).or_default().extend(story.events.iter().map(|event| event.seq));
        } else if story.is_over() {
            let numbers = story.events.iter().map(|event| event.seq).collect();
            dense(story.body.id, numbers, story.present.map(|present| present.seq), found);
        }
        if story.is_over() {
            told(story, found);
            counted(story, found);
        }
    }
    for (execution, events) in &case.of_executions {
        shared.entry(*execution).or_default().extend(events.iter().map(|event| event.seq));
    }
    let last: HashMap<Uuid, u32> = case.dump.executions.iter().map(|row| (row.id, row.seq)).collect();
    for (execution, numbers) in shared {
        dense(execution, numbers, last.get(&execution).copied(), found);
    }
}

/// R-I18.
fn dense(execution: Uuid, mut numbers: Vec<u32>, last: Option<u32>, found: &mut Found) {
    numbers.sort_unstable();
    let whole = numbers.iter().copied().eq(1..=last.unwrap_or(0));
    found.unless(whole, "R-I18", || format!("{execution} has {last:?} events, and these are told: {numbers:?}"));
}

fn told(story: &Story<'_>, found: &mut Found) {
    let id = story.body.id;
    if let Err((promise, what)) = walk(&story.events) {
        found.unless(false, promise, || format!("{id}: {what}"));
    }
    let Some(present) = story.present else { return };
    match replay(&story.events, false) {
        Err(fault) => found.unless(false, "R-I19", || format!("{id}: {fault}")),
        Ok(told) => {
            let stored = Replayed {
                state: story.state().unwrap_or(State::Waiting),
                counters: Counters {
                    attempt: present.attempt,
                    lost: present.lost,
                    throttled: present.throttled,
                    snoozed: present.snoozed,
                },
                cycle: present.cycle,
                run: present.run,
                next_retry_at: None,
                paused_from: None,
                last_seq: told.last_seq,
            };
            found.unless(told == stored, "R-I19", || format!("{id}: the log says {told:?}, the row {stored:?}"));
        }
    }
}

/// The states a task went through, with the number of the event that led there; or the first step that is not in the table.
/// Written down once more than in the core, on purpose.
pub fn walk(events: &[Event]) -> Result<Vec<(u32, State)>, (&'static str, String)> {
    use EventKind::*;
    use State::*;
    let mut state = Waiting;
    let mut under: Option<State> = None;
    let mut path = Vec::with_capacity(events.len());
    for (place, event) in events.iter().enumerate() {
        let is_active = state == Running || (state == Paused && under == Some(Running));
        let wrong =
            |promise| Err((promise, format!("{} ({}) happened to a task that was {state}", event.seq, event.kind)));
        if state.is_terminal() {
            let may = match event.kind {
                TaskFailed => state == Dead,
                TaskManualRetry => matches!(state, Failed | Dead),
                TaskLateResult => state == Canceled,
                _ => false,
            };
            if !may {
                return wrong("R-I8");
            }
        }
        // A run that was under way when its task was paused may end; the task stays paused unless it is over.
        let settle = |to: State| if state == Paused { (Paused, Some(to)) } else { (to, None) };
        let said_to = event.data.get("to").and_then(|to| to.as_str()).and_then(State::from_word);
        (state, under) = match event.kind {
            TaskCreated if place == 0 => (Waiting, None),
            TaskReady if matches!(state, Waiting | Pending) => (Pending, None),
            TaskRetryDue if state == RetryPending => (Pending, None),
            AttemptStarted if state == Pending => (Running, None),
            AttemptSucceeded | AttemptFailed | TaskStuckRecovered if is_active => (state, under),
            TaskRetryScheduled | TaskThrottled | TaskSnoozed if is_active => settle(RetryPending),
            TaskReleased if is_active => settle(Pending),
            TaskSucceeded if is_active => (Succeeded, None),
            TaskRetryExhausted if is_active => (Dead, None),
            TaskFailed if state == Dead => (Dead, None),
            TaskFailed if is_active || state == Waiting || under == Some(Waiting) => (Failed, None),
            TaskSkipped if state == Waiting || under == Some(Waiting) => (Skipped, None),
            TaskCanceled => (Canceled, None),
            TaskPaused if state != Paused => (Paused, Some(state)),
            TaskResumed if state == Paused && said_to.is_some() => (said_to.unwrap_or(Pending), None),
            TaskManualRetry if matches!(state, Failed | Dead | RetryPending | Running) => (Pending, None),
            TaskRescheduled if matches!(state, Waiting | Pending | RetryPending) => {
                (said_to.unwrap_or(RetryPending), None)
            }
            TaskLateResult => (state, under),
            _ => return wrong("R-I9"),
        };
        path.push((event.seq, state));
    }
    Ok(path)
}

/// R-I7: as many runs as starts, and no more retries than the policy that was asked for allows.
fn counted(story: &Story<'_>, found: &mut Found) {
    let id = story.body.id;
    let (Some(present), Some(planned)) = (story.present, story.planned) else { return };
    let starts = story.events.iter().filter(|event| event.kind == EventKind::AttemptStarted).count();
    found.unless(present.run as usize == starts, "R-I7", || format!("{id}: {starts} starts, {} runs", present.run));
    let most = planned.retry.map_or(0, |retry| retry.max_retries);
    let most_lost = planned.retry.map_or(0, |retry| retry.max_lost);
    let mut retries: HashMap<u32, u32> = HashMap::new();
    for record in &story.records {
        let Some(decision) = &record.decision else { continue };
        if decision.reason == Reason::Retry {
            let count = retries.entry(record.cycle).or_default();
            *count += 1;
            found.unless(decision.after.attempt == *count, "R-I7", || {
                format!("{id}: retry {count} of cycle {} was counted as {}", record.cycle, decision.after.attempt)
            });
        }
        found.unless(decision.after.lost <= most_lost + 1, "R-I7", || {
            format!("{id}: {} runs were lost of {most_lost} that may be", decision.after.lost)
        });
    }
    for (cycle, count) in retries {
        found.unless(count <= most, "R-I7", || format!("{id}: {count} retries in cycle {cycle}, {most} are allowed"));
    }
}
