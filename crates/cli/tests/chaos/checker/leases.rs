//! R-I4, R-I5, R-I7: one live lease, and nobody is heard about a run that is not theirs.

use std::collections::{BTreeMap, HashMap};

use comeback_core::{AttemptOutcome, EventKind};
use uuid::Uuid;

use super::{Case, Found, Story};
use crate::history::{Answer, Call, End, Op, Run};

/// A lease as its worker knows it.
struct Held<'a> {
    worker: &'a str,
    /// By the servers' clock.
    from: i64,
    /// Later with every sign of life that was answered.
    until: i64,
    /// When its worker had heard of it, by ours.
    heard: u64,
}

pub fn check(case: &Case<'_>, found: &mut Found) {
    let held = held(case, found);
    let mut reports: HashMap<Run, Vec<(&Op, &str)>> = HashMap::new();
    for op in case.ops {
        if let Call::Report { run, outcome } = &op.call {
            reports.entry(*run).or_default().push((op, outcome));
        }
    }
    overlaps(case, &held, found);
    for (run, lease) in &held {
        let Some(story) = case.stories.get(&run.task).filter(|story| story.is_over()) else { continue };
        started(story, *run, lease, found);
        taken_away(story, *run, lease, found);
    }
    for story in case.stories.values() {
        ended_by_its_holder(story, &reports, found);
    }
    for (run, said) in &reports {
        if let Some(story) = case.stories.get(&run.task) {
            heard(story, *run, said, found);
        }
    }
    stale_heartbeats(case, &held, found);
}

fn held<'a>(case: &Case<'a>, found: &mut Found) -> BTreeMap<Run, Held<'a>> {
    let mut held: BTreeMap<Run, Held<'_>> = BTreeMap::new();
    for op in case.ops {
        let (Call::Lease { span_ms }, Some(Answer::Leased(grants))) = (&op.call, op.answer()) else { continue };
        for grant in grants {
            let from = grant.expires_at - span_ms;
            let lease = Held { worker: &op.client, from, until: grant.expires_at, heard: op.ended };
            if let Some(other) = held.insert(grant.run, lease) {
                found.unless(false, "R-I4", || {
                    format!("{:?} was given to {} and to {}", grant.run, other.worker, op.client)
                });
            }
        }
    }
    for op in case.ops {
        if let (Call::Heartbeat { run }, Some(Answer::Extended(until))) = (&op.call, op.answer())
            && let Some(lease) = held.get_mut(run)
        {
            lease.until = lease.until.max(*until);
        }
    }
    held
}

/// The next lease of a task begins when the one before is over: because it ran out, or because the log says so.
fn overlaps(case: &Case<'_>, held: &BTreeMap<Run, Held<'_>>, found: &mut Found) {
    let mut before: Option<(&Run, &Held<'_>)> = None;
    for (run, lease) in held {
        if let Some((earlier, its_lease)) = before.filter(|(earlier, _)| earlier.task == run.task)
            && lease.from < its_lease.until
        {
            let end = case.stories.get(&run.task).and_then(|story| story.end_of(earlier.run));
            found.unless(end.is_some_and(|end| end.at.0 <= lease.from), "R-I4", || {
                format!(
                    "{} had run {} of {} until {}, and {} got run {} at {}: {:?}",
                    its_lease.worker,
                    earlier.run,
                    run.task,
                    its_lease.until,
                    lease.worker,
                    run.run,
                    lease.from,
                    end.map(|end| (end.outcome, end.at))
                )
            });
        }
        before = Some((run, lease));
    }
}

/// Every lease that was given is a start in the log, of the same worker.
fn started(story: &Story<'_>, run: Run, lease: &Held<'_>, found: &mut Found) {
    let start = story.events.iter().find(|event| event.kind == EventKind::AttemptStarted && event.run == run.run);
    found.unless(start.is_some(), "R-I7", || format!("{run:?} was given to {} and is not in the log", lease.worker));
    if let Some(start) = start {
        let same = start.data["worker"] == lease.worker && start.at.0 == lease.from;
        found.unless(same, "R-I7", || format!("{run:?} was given to {} at {}: {start:?}", lease.worker, lease.from));
    }
}

/// A run is given up when its lease has run out and not before.
fn taken_away(story: &Story<'_>, run: Run, lease: &Held<'_>, found: &mut Found) {
    match story.end_of(run.run) {
        Some(end) if end.outcome == Some(AttemptOutcome::Lost) => {
            found.unless(end.at.0 >= lease.until, "R-I4", || {
                format!("{run:?} of {} was lost at {}, and held until {}", lease.worker, end.at.0, lease.until)
            });
        }
        Some(_) => {}
        None => found.unless(false, "R-I4", || format!("{run:?} of {} has no end in the log", lease.worker)),
    }
}

fn is_told(outcome: AttemptOutcome, said: &str) -> bool {
    match outcome {
        AttemptOutcome::Succeeded => said == "succeeded",
        AttemptOutcome::Failed | AttemptOutcome::Throttled => said == "failed",
        AttemptOutcome::Snoozed => said == "snoozed",
        AttemptOutcome::Released => said == "released",
        AttemptOutcome::Lost | AttemptOutcome::Canceled => false,
    }
}

/// What a worker's word ended was said by the worker that held it, and was not refused. A run that nobody heard of is given back
/// by the server itself.
fn ended_by_its_holder(story: &Story<'_>, reports: &HashMap<Run, Vec<(&Op, &str)>>, found: &mut Found) {
    for record in &story.records {
        let Some(outcome) = record.outcome else { continue };
        if matches!(outcome, AttemptOutcome::Lost | AttemptOutcome::Canceled) {
            continue;
        }
        let run = Run { task: story.body.id, run: record.run };
        let said = reports.get(&run).map(Vec::as_slice).unwrap_or_default();
        let may_be = said.iter().any(|(op, word)| is_told(outcome, word) && !matches!(op.end, End::Refused(_)));
        let given_back = said.is_empty() && outcome == AttemptOutcome::Released;
        found.unless(may_be || given_back, "R-I5", || {
            let said: Vec<_> = said.iter().map(|(op, word)| (word, &op.client, &op.end)).collect();
            format!("{run:?} ended as {outcome} by {:?}, and what was said is {said:?}", record.worker)
        });
    }
}

/// A report that was accepted is in the log, and no other of the same run was accepted.
fn heard(story: &Story<'_>, run: Run, said: &[(&Op, &str)], found: &mut Found) {
    let accepted: Vec<&str> =
        said.iter().filter(|(op, _)| op.answer().is_some()).map(|(_, outcome)| *outcome).collect();
    let Some(first) = accepted.first() else { return };
    found.unless(accepted.iter().all(|word| word == first), "R-I5", || format!("{run:?} was accepted as {accepted:?}"));
    if !story.is_over() {
        return;
    }
    match story.end_of(run.run).and_then(|end| end.outcome) {
        None | Some(AttemptOutcome::Lost | AttemptOutcome::Canceled) => {
            found.unless(false, "R-I1", || format!("{run:?} was accepted as {first} and is not in the log"));
        }
        Some(outcome) => found.unless(is_told(outcome, first), "R-I5", || {
            format!("{run:?} was accepted as {first} and is in the log as {outcome}")
        }),
    }
}

/// No sign of life is taken from a worker when another has been heard to have the task.
fn stale_heartbeats(case: &Case<'_>, held: &BTreeMap<Run, Held<'_>>, found: &mut Found) {
    let later = |task: Uuid, run: u32| held.range(Run { task, run: run + 1 }..=Run { task, run: u32::MAX });
    for op in case.ops {
        if let (Call::Heartbeat { run }, Some(Answer::Extended(_))) = (&op.call, op.answer()) {
            let stale = later(run.task, run.run).any(|(_, lease)| lease.heard < op.begun);
            found.unless(!stale, "R-I5", || format!("{run:?} was extended for {} after another had it", op.client));
        }
    }
}
