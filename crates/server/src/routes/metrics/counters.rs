//! Counters of this process since it started.

use comeback_core::EventKind;
use comeback_engine::store::Loop;
use comeback_engine::{LoopTally, Query, Tally};

use super::page::MetricsPage;

/// Writes all counters of a tally.
pub fn all(page: &mut MetricsPage, tally: &Tally) {
    of_tasks(page, tally);
    loops(page, tally);
    queries(page, tally);
}

/// Counters about tasks; none about the process.
pub fn of_tasks(page: &mut MetricsPage, tally: &Tally) {
    tasks(page, tally);
    retries(page, tally);
    neighbours(page, tally);
    calls(page, tally);
    page.head("events_total", "counter", "Everything that was written to a log, by type.");
    for (kind, count) in &tally.events {
        page.value("events_total", &[("type", kind.word())], count);
    }
}

fn of(tally: &Tally, kind: EventKind) -> u64 {
    tally.events.get(&kind).copied().unwrap_or(0)
}

fn tasks(page: &mut MetricsPage, tally: &Tally) {
    let of = |kind| of(tally, kind);
    page.counter("tasks_created_total", "Tasks that were submitted.", of(EventKind::TaskCreated));
    let ends =
        || tally.kinds.iter().flat_map(|it| it.ended.iter().map(|(state, took)| (it.kind.as_str(), *state, took)));
    page.counters(
        "tasks_completed_total",
        "Tasks that came to an end, by how.",
        ends().map(|(kind, state, took)| (vec![("outcome", state.word()), ("kind", kind)], took.count())),
    );
    page.times(
        "task_duration_seconds",
        "From the last start of a task to its end.",
        ends().map(|(kind, state, took)| (vec![("kind", kind), ("outcome", state.word())], took)),
    );
    page.times(
        "task_wait_seconds",
        "From the moment that a task could start until it did.",
        tally.kinds.iter().map(|it| (vec![("kind", it.kind.as_str())], &it.waited)),
    );
    page.counters(
        "task_status_transitions_total",
        "Changes of state.",
        tally
            .moves
            .iter()
            .map(|((from, to), count)| (vec![("from_status", from.word()), ("to_status", to.word())], *count)),
    );
    page.counter("tasks_cancelled_total", "Tasks that were canceled.", of(EventKind::TaskCanceled));
    page.counter("tasks_timed_out_total", "Runs that exceeded their own limits.", tally.timed_out);
    page.counter("attempts_started_total", "Runs that were leased.", of(EventKind::AttemptStarted));
    page.counter("attempts_failed_total", "Runs that failed.", of(EventKind::AttemptFailed));
    page.head("attempts_total", "counter", "Runs that ended, by the number of the attempt.");
    for (outcome, numbers) in [("succeeded", &tally.succeeded_at), ("failed", &tally.failed_at)] {
        for (attempt, count) in by_attempt(numbers) {
            page.value("attempts_total", &[("outcome", outcome), ("attempt", &attempt)], count);
        }
    }
}

/// Attempt number from 1; the last label covers all higher numbers.
fn by_attempt(numbers: &[u64]) -> impl Iterator<Item = (String, u64)> {
    let name = |i: usize| format!("{}{}", i + 1, if i + 1 == numbers.len() { "+" } else { "" });
    numbers.iter().enumerate().filter(|(_, count)| **count > 0).map(move |(i, count)| (name(i), *count))
}

fn retries(page: &mut MetricsPage, tally: &Tally) {
    let of = |kind| of(tally, kind);
    let exhausted = of(EventKind::TaskRetryExhausted);
    page.head("task_retry_total", "counter", "Retries that were scheduled, by the attempt that failed.");
    for (attempt, count) in by_attempt(&tally.retried_at) {
        page.value("task_retry_total", &[("attempt", &attempt)], count);
    }
    page.counter("task_retry_exhausted_total", "Tasks that gave up.", exhausted);
    page.head("tasks_retried_total", "counter", "Retries, by who asked for them.");
    page.value("tasks_retried_total", &[("kind", "automatic")], of(EventKind::TaskRetryScheduled));
    page.value("tasks_retried_total", &[("kind", "manual")], of(EventKind::TaskManualRetry));
    page.counter("retries_due_total", "Retries whose time has come.", of(EventKind::TaskRetryDue));
    page.counter("retries_exhausted_total", "Tasks that gave up.", exhausted);
    // Tasks out of retries fail too; they are a label of their own here.
    let refused = of(EventKind::TaskFailed).saturating_sub(exhausted);
    page.counter("tasks_non_retryable_total", "Tasks that failed and were not to be retried.", refused);
    page.counter("tasks_throttled_total", "Waits that the other side asked for.", of(EventKind::TaskThrottled));
    page.counter("tasks_snoozed_total", "Runs that were postponed.", of(EventKind::TaskSnoozed));
    page.counter("tasks_stuck_recovered_total", "Runs that were lost and found.", of(EventKind::TaskStuckRecovered));
    page.head("retries_by_strategy_total", "counter", "Retries that were scheduled, by strategy.");
    for (strategy, count) in &tally.retries_by_strategy {
        page.value("retries_by_strategy_total", &[("strategy", strategy)], count);
    }
    page.head("retry_delay_seconds", "summary", "How long retries were put off.");
    page.value("retry_delay_seconds_sum", &[], tally.delay_ms as f64 / 1e3);
    page.value("retry_delay_seconds_count", &[], tally.delays);
}

fn neighbours(page: &mut MetricsPage, tally: &Tally) {
    page.counter("tasks_with_dependencies_total", "Tasks that were submitted with needs.", tally.with_needs);
    page.counters(
        "dependency_propagations_total",
        "Tasks that were moved by the end of another one.",
        tally.propagated.iter().map(|(end, count)| (vec![("parent_outcome", end.word())], *count)),
    );
    page.counter("tasks_unblocked_total", "Tasks whose needs were met.", tally.unblocked);
    page.counter("tasks_failed_by_dependency_total", "Tasks that failed because of another.", tally.failed_by_need);
    page.counter("tasks_canceled_dead_end_total", "Tasks that could lead nowhere any more.", tally.dead_ends);
}

fn calls(page: &mut MetricsPage, tally: &Tally) {
    let calls = || tally.calls.iter().map(|it| (it.trigger.as_str(), it));
    page.counters(
        "webhook_executions_total",
        "Calls that were answered, by what they tell of.",
        calls().flat_map(|(trigger, it)| {
            let of = |outcome, count| (vec![("trigger", trigger), ("outcome", outcome)], count);
            [of("success", it.succeeded), of("failure", it.failed)]
        }),
    );
    let made = tally.calls.iter().map(|it| it.succeeded + it.failed).sum();
    page.counter("webhook_attempts_total", "Calls that were made.", made);
    page.times(
        "webhook_duration_seconds",
        "How long the other side took to answer.",
        calls().map(|(trigger, it)| (vec![("trigger", trigger)], &it.took)),
    );
    page.counters(
        "webhook_idempotent_skips_total",
        "Calls that were not made again, because they were made.",
        calls().map(|(trigger, it)| (vec![("trigger", trigger)], it.spared)),
    );
    page.head("webhooks_in_flight", "gauge", "Calls that wait for their answer: to start a task, or to tell of one.");
    page.value("webhooks_in_flight", &[("phase", "start")], tally.starting);
    page.value("webhooks_in_flight", &[("phase", "end")], tally.telling);
    page.counter(
        "webhook_idempotent_conflicts_total",
        "Calls that two were about to make at the same moment.",
        tally.calls_made_already,
    );
}

fn loops(page: &mut MetricsPage, tally: &Tally) {
    let loops = || tally.loops.iter().map(|it| (vec![("loop", it.name.word())], it));
    page.counters(
        "worker_loop_iterations_total",
        "How often a loop has worked.",
        loops().map(|(labels, it)| (labels, it.took.count())),
    );
    page.times("worker_loop_duration_seconds", "How long that took.", loops().map(|(labels, it)| (labels, &it.took)));
    page.head("tasks_processed_per_loop", "summary", "Tasks that a loop has moved.");
    for (labels, it) in loops() {
        page.value("tasks_processed_per_loop_sum", &labels, it.moved);
        page.value("tasks_processed_per_loop_count", &labels, it.took.count());
    }
    page.counter("retention_tasks_cleaned_total", "Tasks that were forgotten after their time.", tally.pruned);
    let prune = tally.loops.iter().find(|it| it.name == Loop::Prune);
    let runs = |it: &LoopTally| [("success", it.took.count() - it.failed), ("failure", it.failed)];
    page.counters(
        "retention_cleanup_runs_total",
        "How often old tasks were looked for.",
        prune.map(runs).into_iter().flatten().map(|(outcome, count)| (vec![("outcome", outcome)], count)),
    );
    page.times("retention_cleanup_duration_seconds", "How long that took.", prune.map(|it| (Vec::new(), &it.took)));
}

fn queries(page: &mut MetricsPage, tally: &Tally) {
    let queries = || tally.queries.iter().map(|it| (vec![("query", it.query.word())], it));
    page.times(
        "db_query_duration_seconds",
        "How long the database took, the wait for its turn included.",
        queries().map(|(labels, it)| (labels, &it.took)),
    );
    page.counters(
        "slow_queries_total",
        "Of those the ones that took more than half a second.",
        queries().map(|(labels, it)| (labels, it.slow)),
    );
    let failed = |queries: &[Query]| -> u64 {
        tally.queries.iter().filter(|it| queries.contains(&it.query)).map(|it| it.failed).sum()
    };
    page.counter(
        "tasks_db_save_failures_total",
        "Changes that could not be stored when they were first tried.",
        failed(&[Query::Submit, Query::Apply]),
    );
    page.counter("batch_update_failures_total", "Counts that could not be stored.", failed(&[Query::Count]));
}
