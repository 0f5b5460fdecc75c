//! R-I10, R-I12: nothing starts early, and every delay is one that was asked for.

use std::collections::HashMap;

use comeback_core::{EventKind, Reason, Record, Timestamp};

use super::{Case, Found, Story};
use crate::history::{Answer, Call, Run};
use crate::plan::Step;

/// What the workers' clock and the servers' may differ by: they are one machine's, asked at different moments.
const CLOCKS: i64 = 250;

pub fn check(case: &Case<'_>, found: &mut Found) {
    let mut due: HashMap<Run, i64> = HashMap::new();
    for story in case.stories.values() {
        not_early(story, &mut due, found);
        for record in &story.records {
            as_stated(story, record, found);
        }
    }
    for op in case.ops {
        let (Call::Lease { .. }, Some(Answer::Leased(grants))) = (&op.call, op.answer()) else { continue };
        for grant in grants {
            if let Some(due) = due.get(&grant.run) {
                found.unless(op.heard_at + CLOCKS >= *due, "R-I10", || {
                    format!("{:?} was due at {due}, and {} had it at {}", grant.run, op.client, op.heard_at)
                });
            }
        }
    }
}

fn not_early(story: &Story<'_>, due: &mut HashMap<Run, i64>, found: &mut Found) {
    let id = story.body.id;
    let asked = story.planned.and_then(|planned| planned.delay_ms).map(|ms| story.body.submitted_at + ms);
    let mut not_before = asked.map(Timestamp);
    for event in &story.events {
        let told = event.data.get("next_retry_at").and_then(|at| at.as_str());
        let told = told.and_then(|at| Timestamp::parse_rfc3339(at).ok());
        match event.kind {
            EventKind::TaskRetryScheduled
            | EventKind::TaskThrottled
            | EventKind::TaskSnoozed
            | EventKind::TaskRescheduled => not_before = told,
            EventKind::TaskManualRetry => not_before = None,
            EventKind::TaskRetryDue | EventKind::AttemptStarted => {
                found.unless(not_before.is_none_or(|at| event.at >= at), "R-I10", || {
                    format!("{id}: {} at {} and not before {not_before:?}", event.kind, event.at.0)
                });
                if let (EventKind::AttemptStarted, Some(at)) = (event.kind, not_before) {
                    due.insert(Run { task: id, run: event.run }, at.0);
                }
            }
            _ => {}
        }
    }
}

fn as_stated(story: &Story<'_>, record: &Record, found: &mut Found) {
    let id = story.body.id;
    let (Some(planned), Some(decision)) = (story.planned, &record.decision) else { return };
    let (Some(delay), Some(next)) = (&decision.delay, decision.next_retry_at) else { return };
    let step = planned.steps.get(record.run.saturating_sub(1) as usize);
    let stated = match (decision.reason, step, planned.retry) {
        (Reason::Retry, _, Some(retry)) => retry.band(decision.before.attempt),
        (Reason::LostRetry, _, Some(retry)) => retry.band(decision.before.lost),
        (Reason::RateLimited, Some(Step::Throttle { after_ms }), _) => (*after_ms, *after_ms),
        (Reason::Snoozed, Some(Step::Snooze { ms }), _) => (*ms, *ms),
        _ => return found.unless(false, "R-I12", || format!("{id}: nothing asked for {decision:?}")),
    };
    let waits = u64::try_from(next.0 - record.at.0).unwrap_or(0);
    // Halves of odd numbers are rounded somewhere.
    let fits = waits + 1 >= stated.0 && waits <= stated.1 + 1 && waits == delay.total_ms;
    found.unless(fits, "R-I12", || format!("{id}: waits {waits} ms, stated {stated:?}: {delay:?}"));
}
