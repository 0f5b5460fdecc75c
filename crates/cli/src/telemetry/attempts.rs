//! Attempts as log lines and spans. Failures are logged as they come, successes only for those who ask (`RUST_LOG=debug`); a storm
//! is told in numbers, because a line for each would only be a second storm.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use comeback_core::{AttemptOutcome, Record, Task, TaskId, Verdict};
use comeback_engine::Watcher;
use comeback_engine::store::Claimed;
use parking_lot::Mutex;

use super::otlp::Spans;

/// Lines about attempts in one second.
const LINES: u32 = 100;
/// Traces of runs under way that are remembered.
const REMEMBERED: usize = 100_000;

pub struct Attempts {
    spans: Option<Arc<Spans>>,
    /// Under which trace a task was submitted, while it runs here.
    traces: Mutex<HashMap<TaskId, String>>,
    lines: Mutex<Lines>,
}

impl Attempts {
    pub fn new(spans: Option<Arc<Spans>>) -> Attempts {
        let lines = Lines { since: Instant::now(), written: 0, left_out: 0 };
        Attempts { spans, traces: Mutex::default(), lines: Mutex::new(lines) }
    }
}

/// How many lines were written in this second.
struct Lines {
    since: Instant,
    written: u32,
    left_out: u64,
}

impl Lines {
    /// Whether one more may be written, and how many were left out before it.
    fn one_more(&mut self, now: Instant) -> (bool, u64) {
        let mut told = 0;
        if now.duration_since(self.since) >= Duration::from_secs(1) {
            told = std::mem::take(&mut self.left_out);
            (self.since, self.written) = (now, 0);
        }
        if self.written >= LINES {
            self.left_out += 1;
            return (false, told);
        }
        self.written += 1;
        (true, told)
    }
}

/// The first try of a cycle, or which retry it is.
fn which(attempt_number: u32) -> String {
    match attempt_number {
        0 | 1 => "initial attempt".to_owned(),
        number => format!("retry {}", number - 1),
    }
}

/// Attempts that counted before the one that a record is about.
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
        let (may, left_out) = self.lines.lock().one_more(Instant::now());
        if left_out > 0 {
            tracing::info!(target: "comeback::attempt", left_out, "more attempts ended than are logged one by one");
        }
        if !may {
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
            Some(Verdict::Park) => line!(warn, "{which} {outcome}: parked for a person"),
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
        let mut lines = Lines { since: begin, written: 0, left_out: 0 };
        let written = (0..5_000).filter(|_| lines.one_more(begin).0).count();
        assert_eq!(written, LINES as usize);
        let later = begin + Duration::from_secs(1);
        assert_eq!(lines.one_more(later), (true, 5_000 - u64::from(LINES)));
        assert_eq!(lines.one_more(later), (true, 0));
    }

    #[test]
    fn the_first_try_is_no_retry() {
        assert_eq!(which(1), "initial attempt");
        assert_eq!(which(2), "retry 1");
    }
}
