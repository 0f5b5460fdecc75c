//! Report: a worker says how its runs ended. The report is the input of the decision; the worker decides nothing.

use std::sync::Arc;

use comeback_core::transition;
use comeback_core::{
    AttemptOutcome, End, Failure, Invalid, Millis, Outcome, Reason, Record, Rejection, Speaker, State, TaskId,
    Timestamp,
};

use super::BULK;
use super::lease::LeaseRef;
use crate::road::{Changed, Met, Verb, Wish};
use crate::{CommandError, Engine, Json, Limits};

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
            core.fulfil(wishes, None).await?
        } else {
            self.combiners.wishes.ask(wishes).await.ok_or(CommandError::ShuttingDown)??
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
                Met::Stale | Met::KeyTaken | Met::Paused => *answer = Some(Err(ReportError::Conflict)),
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

const CUT_MARK: &str = " … [cut]";

fn is_cut(text: &str) -> bool {
    text.ends_with(CUT_MARK)
}

impl Limits {
    /// How a run ended, in the size that is kept. A result that is too large is refused, an error is cut.
    pub(crate) fn check_end(&self, end: &ReportEnd) -> Result<End, Invalid> {
        Ok(match end {
            ReportEnd::Succeeded { result } => {
                let result: Option<Arc<str>> = result.as_ref().map(|json| json.text().clone());
                if result.as_ref().is_some_and(|text| text.len() > self.result_bytes) {
                    return Err(Invalid::one("result", format!("may have {} bytes at most", self.result_bytes)));
                }
                End::Succeeded { result }
            }
            ReportEnd::Failed(failure) => End::Failed(self.checked(failure)),
            ReportEnd::Snoozed { delay } => End::Snoozed { delay: *delay },
            ReportEnd::Released => End::Released,
        })
    }

    /// A failure that is no larger than it may be and that any database can keep; what was cut is marked.
    pub(crate) fn checked(&self, failure: &Failure) -> Failure {
        let most = self.error_bytes;
        let size = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let whole = failure.message.len() + size(&failure.stack) + size(&failure.error_type) + size(&failure.code);
        let (short, printed) = (whole <= most, failure.result.as_ref().map(serde_json::Value::to_string));
        let result_fits = printed.as_ref().is_none_or(|text| text.len() <= most);
        let clean =
            [Some(&failure.message), failure.stack.as_ref(), failure.error_type.as_ref(), failure.code.as_ref()]
                .into_iter()
                .flatten()
                .all(|text| !text.contains('\0'))
                && printed.as_ref().is_none_or(|text| !text.contains("\\u0000"));
        if short && result_fits && clean {
            return failure.clone();
        }
        let cut = |text: &str, part: usize| {
            let text = text.replace('\0', "\u{fffd}");
            if short || text.len() <= part {
                return text;
            }
            format!("{}{CUT_MARK}", &text[..text.floor_char_boundary(part.saturating_sub(CUT_MARK.len()))])
        };
        let result = failure.result.clone().filter(|_| result_fits);
        Failure {
            message: cut(&failure.message, most / 2),
            stack: failure.stack.as_deref().map(|text| cut(text, most / 4)),
            error_type: failure.error_type.as_deref().map(|text| cut(text, 255)),
            code: failure.code.as_deref().map(|text| cut(text, 255)),
            result: if clean { result } else { result.map(without_zeros) },
            ..failure.clone()
        }
    }
}

/// PostgreSQL reads no JSON with a zero character in it.
fn without_zeros(value: serde_json::Value) -> serde_json::Value {
    use serde_json::Value;
    let plain = |text: String| text.replace('\0', "\u{fffd}");
    match value {
        Value::String(text) => Value::String(plain(text)),
        Value::Array(items) => items.into_iter().map(without_zeros).collect(),
        Value::Object(fields) => fields.into_iter().map(|(name, it)| (plain(name), without_zeros(it))).collect(),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use comeback_core::Trigger;

    #[test]
    fn a_long_error_is_cut_with_a_mark() {
        let long = Failure { stack: Some("é".repeat(90_000)), ..Failure::new(Trigger::Error, "ü".repeat(90_000)) };
        let short = Limits::default().checked(&long);
        assert!(short.message.len() <= 32 * 1024 && is_cut(&short.message));
        assert!(short.stack.is_some_and(|stack| stack.len() <= 16 * 1024 && is_cut(&stack)));
        let small = Failure::new(Trigger::Error, "x");
        assert_eq!(Limits::default().checked(&small), small);
    }

    #[test]
    fn zero_characters_are_replaced() {
        let result = Some(serde_json::json!({"a\0": ["b\0"]}));
        let failure = Failure { result, code: Some("c\0".into()), ..Failure::new(Trigger::Error, "x\0y") };
        let kept = Limits::default().checked(&failure);
        assert_eq!((kept.message.as_str(), kept.code.as_deref()), ("x\u{fffd}y", Some("c\u{fffd}")));
        assert_eq!(kept.result, Some(serde_json::json!({"a\u{fffd}": ["b\u{fffd}"]})));
    }
}
