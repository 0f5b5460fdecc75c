//! Report: a worker says how its runs ended. The report is the input of the decision; the worker decides nothing.

use comeback_core::transition;
use comeback_core::{AttemptOutcome, Failure, Millis, Outcome, Record, Rejection, Reporter, State, TaskId};
use comeback_store::Behalf;

use super::BULK;
use super::lease::LeaseRef;
use crate::limits::is_cut;
use crate::pipeline::{ChangeOutcome, ChangeRequest, Changed, TaskChange};
use crate::{CommandError, Engine, Json};

/// The end of a run, reported under its lease.
#[derive(Clone, Debug)]
pub struct Report {
    /// The lease of the run.
    pub lease: LeaseRef,
    /// How the run ended.
    pub end: ReportEnd,
}

/// How a reported run ended.
#[derive(Clone, Debug)]
pub enum ReportEnd {
    /// It succeeded, perhaps with a result.
    Succeeded { result: Option<Json> },
    /// It failed; the policy decides about a retry.
    Failed(Failure),
    /// It wants to run again after a delay, without costing an attempt.
    Snoozed { delay: Millis },
    /// The worker returns it unfinished.
    Released,
}

impl Engine {
    /// Each report is answered for itself, in order.
    pub async fn report(&self, reports: Vec<Report>) -> Result<Vec<Result<Changed, CommandError>>, CommandError> {
        let core = &self.core;
        let mut answers: Vec<Option<Result<Changed, CommandError>>> = Vec::with_capacity(reports.len());
        let mut requests = Vec::with_capacity(reports.len());
        for report in &reports {
            match core.config.limits.check_end(&report.end) {
                Err(fault) => answers.push(Some(Err(fault.into()))),
                Ok(end) => {
                    answers.push(None);
                    let LeaseRef { task, number } = report.lease;
                    let change = TaskChange::End(Outcome { reporter: Reporter::Lease(number), end });
                    requests.push(match core.cache.take(task, number) {
                        Some(stored) => ChangeRequest::cached(stored, change),
                        None => ChangeRequest::of(task, change),
                    });
                }
            }
        }
        let outcomes = if requests.len() >= BULK {
            core.apply_changes(requests, Behalf::Caller).await?
        } else {
            self.combiners.changes.ask(requests).await??
        };
        let mut outcomes = outcomes.into_iter();
        let mut lost: Vec<usize> = Vec::new();
        for (index, answer) in answers.iter_mut().enumerate().filter(|(_, answer)| answer.is_none()) {
            *answer = match outcomes.next().unwrap_or(ChangeOutcome::Stale) {
                ChangeOutcome::Rejected(Rejection::TaskCanceled) => {
                    self.note_late_result(&reports[index]).await;
                    Some(Err(CommandError::TaskCanceled))
                }
                ChangeOutcome::Rejected(_) | ChangeOutcome::NotFound => {
                    lost.push(index);
                    None
                }
                ChangeOutcome::KeyTaken | ChangeOutcome::Used(_) | ChangeOutcome::Unfunded(_) => {
                    Some(Err(CommandError::Conflict))
                }
                outcome => Some(outcome.into()),
            };
        }
        self.answer_again(&reports, &lost, &mut answers).await?;
        Ok(answers.into_iter().map(|answer| answer.unwrap_or(Err(CommandError::LeaseLost))).collect())
    }

    /// R-I5: the same report again gets the same answer, as long as the task is remembered; another one is lost.
    async fn answer_again(
        &self,
        reports: &[Report],
        lost: &[usize],
        answers: &mut [Option<Result<Changed, CommandError>>],
    ) -> Result<(), CommandError> {
        if lost.is_empty() {
            return Ok(());
        }
        let leases: Vec<(TaskId, u32)> =
            lost.iter().map(|index| (reports[*index].lease.task, reports[*index].lease.number)).collect();
        let ended = self.core.store.ended(&leases).await?;
        for (index, record) in lost.iter().zip(ended) {
            let same = record.filter(|record| is_same_end(&reports[*index].end, record));
            answers[*index] = Some(match same {
                Some(record) => Ok(reported_before(&record)),
                None => Err(CommandError::LeaseLost),
            });
        }
        Ok(())
    }

    /// T28: nothing changes, and it is remembered. Best effort: the answer does not depend on it.
    async fn note_late_result(&self, report: &Report) {
        let core = &self.core;
        let Ok(end) = core.config.limits.check_end(&report.end) else { return };
        let Ok(found) = core.store.load(&[report.lease.task]).await else { return };
        let Some(stored) = found.into_iter().next().flatten() else { return };
        // A task of an execution has a shared log, which a late word must not hold up.
        if stored.task.execution.is_some() {
            return;
        }
        let now = core.clock.now();
        if let Ok(change) = transition::late_result(&stored.task, report.lease.number, end.outcome(), now) {
            let _ = core.store.apply(&[change.into()], None, now).await;
        }
    }
}

fn is_same_end(end: &ReportEnd, record: &Record) -> bool {
    use AttemptOutcome::*;
    match (end, record.outcome) {
        (ReportEnd::Succeeded { .. }, Some(Succeeded)) => true,
        (ReportEnd::Failed(failure), Some(Failed | Throttled)) => {
            record.failure.as_ref().is_some_and(|stored| stored.message == failure.message || is_cut(&stored.message))
        }
        (ReportEnd::Snoozed { .. }, Some(Snoozed)) => true,
        (ReportEnd::Released, Some(Released)) => true,
        _ => false,
    }
}

/// The answer that the first report of this end got.
fn reported_before(record: &Record) -> Changed {
    let decision = record.decision.as_ref();
    let state = match record.outcome {
        Some(AttemptOutcome::Succeeded) => State::Succeeded,
        Some(AttemptOutcome::Released) => State::Pending,
        _ => match decision.map(|decision| decision.verdict) {
            Some(comeback_core::Verdict::Refuse) => State::Failed,
            Some(comeback_core::Verdict::Exhaust) => State::Dead,
            Some(comeback_core::Verdict::Park) => State::Paused,
            _ => State::RetryPending,
        },
    };
    Changed {
        task: TaskId(record.subject),
        state,
        attempt: record.attempt,
        run: record.run,
        next_retry_at: decision.and_then(|decision| decision.next_retry_at),
        reason: decision.map(|decision| decision.reason),
        repeated: true,
    }
}
