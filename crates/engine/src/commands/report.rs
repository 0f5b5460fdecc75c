//! Report: a worker says how its runs ended. The report is the input of the decision; the worker decides nothing.

use comeback_core::transition;
use comeback_core::{
    AttemptOutcome, Failure, Invalid, Millis, Outcome, Reason, Record, Rejection, Speaker, State, TaskId, Timestamp,
};

use super::BULK;
use super::lease::LeaseRef;
use crate::limits::is_cut;
use crate::road::{Behind, Changed, Met, Verb, Wish};
use crate::{CommandError, Engine, Json};

#[derive(Clone, Debug)]
pub struct Report {
    pub lease: LeaseRef,
    pub end: ReportEnd,
}

#[derive(Clone, Debug)]
pub enum ReportEnd {
    Succeeded { result: Option<Json> },
    Failed(Failure),
    Snoozed { delay: Millis },
    Released,
}

/// What became of a run that was reported.
#[derive(Clone, Debug, PartialEq)]
pub struct Reported {
    pub task: TaskId,
    pub state: State,
    pub attempt: u32,
    pub next_retry_at: Option<Timestamp>,
    pub reason: Option<Reason>,
    /// The same report was taken before; this is its answer again.
    pub repeated: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    #[error("the lease is no longer held")]
    LeaseLost,
    #[error("the task was canceled")]
    TaskCanceled,
    #[error("{0}")]
    Invalid(Invalid),
    /// It was changed again and again while we looked; nothing was written.
    #[error("the task was changed by somebody else at the same moment")]
    Conflict,
    /// What the database holds about it contradicts itself; nothing was written.
    #[error("the database holds what it should not: {0}")]
    Damaged(String),
}

impl Engine {
    /// Each report is answered for itself, in order.
    pub async fn report(&self, reports: Vec<Report>) -> Result<Vec<Result<Reported, ReportError>>, CommandError> {
        let core = &self.core;
        let mut answers: Vec<Option<Result<Reported, ReportError>>> = Vec::with_capacity(reports.len());
        let mut wishes = Vec::with_capacity(reports.len());
        for report in &reports {
            match core.config.limits.check_end(&report.end) {
                Err(fault) => answers.push(Some(Err(ReportError::Invalid(fault)))),
                Ok(end) => {
                    answers.push(None);
                    let seen = core.cache.take(report.lease.task, report.lease.number);
                    wishes.push(Wish {
                        task: report.lease.task,
                        verb: Verb::End(Outcome { speaker: Speaker::Lease(report.lease.number), end }),
                        remembered: seen.is_some(),
                        seen,
                    });
                }
            }
        }
        let met = if wishes.len() >= BULK {
            core.fulfil(wishes, Behind::Caller).await?
        } else {
            self.combiners.wishes.ask(wishes).await??
        };
        let mut met = met.into_iter();
        let mut lost: Vec<usize> = Vec::new();
        for (index, answer) in answers.iter_mut().enumerate().filter(|(_, answer)| answer.is_none()) {
            match met.next().unwrap_or(Met::Stale) {
                Met::Changed(changed) => *answer = Some(Ok(changed.into())),
                Met::Rejected(Rejection::TaskCanceled) => {
                    self.note_late_result(&reports[index]).await;
                    *answer = Some(Err(ReportError::TaskCanceled));
                }
                Met::Rejected(_) | Met::NotFound => lost.push(index),
                Met::Damaged(what) => *answer = Some(Err(ReportError::Damaged(what))),
                Met::Stale | Met::KeyTaken | Met::Paused | Met::Used(_) | Met::Unfunded(_) => {
                    *answer = Some(Err(ReportError::Conflict));
                }
            }
        }
        self.answer_again(&reports, &lost, &mut answers).await?;
        Ok(answers.into_iter().map(|answer| answer.unwrap_or(Err(ReportError::LeaseLost))).collect())
    }

    /// R-I5: the same report again gets the same answer, as long as the task is remembered; another one is lost.
    async fn answer_again(
        &self,
        reports: &[Report],
        lost: &[usize],
        answers: &mut [Option<Result<Reported, ReportError>>],
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
                None => Err(ReportError::LeaseLost),
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

impl From<Changed> for Reported {
    fn from(changed: Changed) -> Self {
        Reported {
            task: changed.task,
            state: changed.state,
            attempt: changed.attempt,
            next_retry_at: changed.next_retry_at,
            reason: changed.reason,
            repeated: false,
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

fn reported_before(record: &Record) -> Reported {
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
    Reported {
        task: TaskId(record.subject),
        state,
        attempt: record.attempt,
        next_retry_at: decision.and_then(|decision| decision.next_retry_at),
        reason: decision.map(|decision| decision.reason),
        repeated: true,
    }
}
