//! Attempts as log lines and spans. Failures are logged, successes only with `RUST_LOG=debug`; above a rate only the number of
//! suppressed lines is logged.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use comeback_core::{AttemptOutcome, Record, Task, TaskId, Verdict};
use comeback_engine::Watcher;
use comeback_engine::store::Claimed;
use parking_lot::Mutex;

use super::otlp::Spans;

/// Log lines about attempts per second.
const LINES_PER_SECOND: u32 = 100;
/// Traces of running tasks that are remembered.
const REMEMBERED: usize = 100_000;

/// Logs and traces attempts.
pub struct Attempts {
    spans: Option<Arc<Spans>>,
    /// The trace under which each running task was submitted.
    traces: Mutex<HashMap<TaskId, String>>,
    lines: Mutex<LineBudget>,
}

impl Attempts {
    pub fn new(spans: Option<Arc<Spans>>) -> Attempts {
        let lines = LineBudget { since: Instant::now(), written: 0, suppressed: 0 };
        Attempts { spans, traces: Mutex::default(), lines: Mutex::new(lines) }
    }
}

/// Rate limit of log lines: counts within the current second.
struct LineBudget {
    since: Instant,
    written: u32,
    suppressed: u64,
}

impl LineBudget {
    /// Whether another line may be written, and how many were suppressed before it.
    fn take(&mut self, now: Instant) -> (bool, u64) {
        let mut suppressed = 0;
        if now.duration_since(self.since) >= Duration::from_secs(1) {
            suppressed = std::mem::take(&mut self.suppressed);
            (self.since, self.written) = (now, 0);
        }
        if self.written >= LINES_PER_SECOND {
            self.suppressed += 1;
            return (false, suppressed);
        }
        self.written += 1;
        (true, suppressed)
    }
}

/// `initial attempt`, or `retry N`.
fn which(attempt_number: u32) -> String {
    match attempt_number {
        0 | 1 => "initial attempt".to_owned(),
        number => format!("retry {}", number - 1),
    }
}

/// Number of the attempt that a record is about.
fn number(record: &Record) -> u32 {
    record.decision.as_ref().map_or(record.attempt, |decision| decision.before.attempt) + 1
}

impl Watcher for Attempts {
    fn started(&self, claimed: &Claimed) {
        let task = &claimed.stored.task;
        if self.spans.is_some()
            && let Some(trace) = &claimed.traceparent
        {
            let mut traces = self.traces.lock();
            if traces.len() < REMEMBERED {
                traces.insert(task.id, trace.clone());
            }
        }
        tracing::debug!(
            target: "comeback::attempt",
            task = %task.id,
            kind = %task.lane.kind,
            queue = %task.lane.queue,
            attempt = task.attempt_number(),
            run = task.run,
            retry = task.attempt_number() > 1,
            worker = task.lease.as_ref().map(|lease| &*lease.worker),
            "{} started", which(task.attempt_number()),
        );
    }

    fn ended(&self, task: &Task, record: &Record) {
        let trace = self.spans.as_ref().and_then(|_| self.traces.lock().remove(&task.id));
        if let Some(spans) = &self.spans {
            spans.attempt(task, record, trace.as_deref());
        }
        self.log(task, record);
    }
}

impl Attempts {
    fn log(&self, task: &Task, record: &Record) {
        let is_good = matches!(
            record.outcome,
            Some(
                AttemptOutcome::Succeeded
                    | AttemptOutcome::Snoozed
                    | AttemptOutcome::Released
                    | AttemptOutcome::Canceled
            )
        );
        if is_good && !tracing::enabled!(target: "comeback::attempt", tracing::Level::DEBUG) {
            return;
        }
        let (allowed, suppressed) = self.lines.lock().take(Instant::now());
        if suppressed > 0 {
            tracing::info!(target: "comeback::attempt", suppressed, "suppressed log lines about attempts (rate limit)");
        }
        if !allowed {
            return;
        }
        let number = number(record);
        let decision = record.decision.as_ref();
        let verdict = decision.map(|decision| decision.verdict);
        let outcome = record.outcome.map_or("ended", AttemptOutcome::word);
        let error: Option<String> = record.failure.as_ref().map(|it| it.message.chars().take(200).collect());
        macro_rules! line {
            ($level:ident, $($text:tt)+) => {
                tracing::$level!(
                    target: "comeback::attempt",
                    task = %task.id,
                    kind = %task.lane.kind,
                    queue = %task.lane.queue,
                    attempt = number,
                    run = record.run,
                    retry = number > 1,
                    outcome,
                    state = task.state.word(),
                    reason = decision.map(|decision| decision.reason.word()),
                    class = decision.and_then(|decision| decision.class).map(|class| class.word()),
                    next_retry_at = task.next_retry_at.map(|at| at.to_rfc3339()),
                    delay_ms = task.next_retry_at.map(|at| at.since(record.at).0),
                    error,
                    worker = record.worker.as_deref(),
                    $($text)+
                )
            };
        }
        let which = which(number);
        match verdict {
            _ if is_good => line!(debug, "{which} {outcome}"),
            Some(Verdict::Refuse) => line!(warn, "{which} {outcome}: no retry"),
            Some(Verdict::Exhaust) => line!(warn, "{which} {outcome}: gave up"),
            Some(Verdict::Park) => line!(warn, "{which} {outcome}: parked"),
            _ => line!(info, "{which} {outcome}: retry scheduled"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_storm_is_told_in_numbers() {
        let begin = Instant::now();
        let mut lines = LineBudget { since: begin, written: 0, suppressed: 0 };
        let written = (0..5_000).filter(|_| lines.take(begin).0).count();
        assert_eq!(written, LINES_PER_SECOND as usize);
        let later = begin + Duration::from_secs(1);
        assert_eq!(lines.take(later), (true, 5_000 - u64::from(LINES_PER_SECOND)));
        assert_eq!(lines.take(later), (true, 0));
    }

    #[test]
    fn the_first_try_is_no_retry() {
        assert_eq!(which(1), "initial attempt");
        assert_eq!(which(2), "retry 1");
    }
}
