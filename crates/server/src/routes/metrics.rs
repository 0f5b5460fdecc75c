//! Metrics, as Prometheus reads them. Counters are of this process; gauges are of the whole database, or of the one namespace
//! that a key is for.

use std::collections::BTreeSet;
use std::fmt::{Display, Write};
use std::sync::Arc;

use axum::extract::{Extension, State};
use axum::http::{Method, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use comeback_core::admission::Bound;
use comeback_core::{EventKind, State as TaskState};
use comeback_engine::Tally;
use comeback_engine::store::Loop;

use super::{Line, line, stats};
use crate::App;
use crate::auth::{Caller, Need};
use crate::gate::Class;
use crate::openapi::Doc;
use crate::problem::Problem;

pub fn lines() -> Vec<Line> {
    let doc = Doc::new("getMetrics").answers_text("text/plain");
    vec![line(Method::GET, "/metrics", Need::Read, "Numbers for Prometheus", get(metrics)).doc(doc)]
}

/// The text that is written down.
#[derive(Default)]
struct Page(String);

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP comeback_{name} {help}\n# TYPE comeback_{name} {kind}");
    }

    fn value(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        let escaped = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let labels: Vec<String> = labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _ = writeln!(self.0, "comeback_{name}{labels} {value}");
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.head(name, "counter", help);
        self.value(name, &[], value);
    }
}

async fn metrics(State(app): State<Arc<App>>, Extension(caller): Extension<Caller>) -> Result<Response, Problem> {
    let mut page = Page::default();
    page.head("build_info", "gauge", "The version that runs.");
    page.value("build_info", &[("version", env!("CARGO_PKG_VERSION")), ("instance", &app.instance)], 1);
    counters(&mut page, &app.engine.tally());
    door(&mut page, &app);
    gauges(&mut page, &app, &caller).await?;
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], page.0).into_response())
}

fn counters(page: &mut Page, tally: &Tally) {
    let of = |kind: EventKind| tally.events.get(&kind).copied().unwrap_or(0);
    page.counter("tasks_created_total", "Tasks that were submitted.", of(EventKind::TaskCreated));
    page.head("tasks_completed_total", "counter", "Tasks that came to an end, by how.");
    // Whoever runs out of retries fails too, and is told apart here.
    let refused = of(EventKind::TaskFailed).saturating_sub(of(EventKind::TaskRetryExhausted));
    let ends = [
        ("succeeded", of(EventKind::TaskSucceeded)),
        ("failed", refused),
        ("dead", of(EventKind::TaskRetryExhausted)),
        ("canceled", of(EventKind::TaskCanceled)),
        ("skipped", of(EventKind::TaskSkipped)),
    ];
    for (outcome, count) in ends {
        page.value("tasks_completed_total", &[("outcome", outcome)], count);
    }
    page.counter("tasks_cancelled_total", "Tasks that were canceled.", of(EventKind::TaskCanceled));
    page.counter("tasks_timed_out_total", "Runs that exceeded their own limits.", tally.timed_out);
    page.counter("attempts_started_total", "Runs that were leased.", of(EventKind::AttemptStarted));
    page.counter("attempts_failed_total", "Runs that failed.", of(EventKind::AttemptFailed));
    page.head("tasks_retried_total", "counter", "Retries, by who asked for them.");
    page.value("tasks_retried_total", &[("kind", "automatic")], of(EventKind::TaskRetryScheduled));
    page.value("tasks_retried_total", &[("kind", "manual")], of(EventKind::TaskManualRetry));
    page.counter("retries_due_total", "Retries whose time has come.", of(EventKind::TaskRetryDue));
    page.counter("retries_exhausted_total", "Tasks that gave up.", of(EventKind::TaskRetryExhausted));
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
    page.head("attempts_total", "counter", "Runs that ended, by the number of the attempt.");
    for (outcome, numbers) in [("succeeded", &tally.succeeded_at), ("failed", &tally.failed_at)] {
        for (i, count) in numbers.iter().enumerate().filter(|(_, count)| **count > 0) {
            let last = if i + 1 == numbers.len() { "+" } else { "" };
            page.value("attempts_total", &[("outcome", outcome), ("attempt", &format!("{}{last}", i + 1))], count);
        }
    }
    page.head("events_total", "counter", "Everything that was written to a log, by type.");
    for (kind, count) in &tally.events {
        page.value("events_total", &[("type", kind.word())], count);
    }
}

/// How busy this process is with answering.
fn door(page: &mut Page, app: &App) {
    page.head("http_requests_in_progress", "gauge", "Requests that are worked on, by class.");
    for class in Class::ALL {
        page.value("http_requests_in_progress", &[("class", class.word())], app.gate.busy(class));
    }
    page.head("http_requests_refused_total", "counter", "Requests that were turned away, by class.");
    for class in Class::ALL {
        page.value("http_requests_refused_total", &[("class", class.word())], app.gate.refused(class));
    }
}

/// What rules allow, and what runs under them.
async fn rules(page: &mut Page, app: &App, namespaces: &BTreeSet<String>) -> Result<(), Problem> {
    let held = app.engine.store().held_by_rules();
    page.counter(
        "tasks_blocked_by_concurrency_total",
        "Lanes that claims left alone because a rule had no room.",
        held,
    );
    let mut all = Vec::new();
    for namespace in namespaces {
        all.extend(app.engine.rules(namespace).await?.into_iter().map(|view| (namespace, view)));
    }
    page.head("rule_limit", "gauge", "What a rule allows.");
    for (namespace, view) in &all {
        let (by, most) = match view.rule.bound {
            Bound::Running(most) => ("max_running", most),
            Bound::Capacity(most) => ("capacity", most),
        };
        page.value("rule_limit", &[("namespace", namespace), ("rule", &view.rule.name), ("by", by)], most);
    }
    // Rules may be kept per a thousand values: their sum is told, and the list of rules tells the rest.
    page.head("rule_running", "gauge", "Tasks that run under a rule.");
    for (namespace, view) in &all {
        let running: u64 = view.used.iter().map(|(_, used)| used.running).sum();
        page.value("rule_running", &[("namespace", namespace), ("rule", &view.rule.name)], running);
    }
    Ok(())
}

/// Of the namespaces that are open to the caller.
async fn gauges(page: &mut Page, app: &App, caller: &Caller) -> Result<(), Problem> {
    let store = app.engine.store();
    let mut namespaces = stats::namespaces(app).await?;
    namespaces.retain(|name| caller.everywhere || *name == caller.namespace);
    page.head("tasks_by_status", "gauge", "Tasks in each state.");
    let (mut pending, mut delayed, mut retries) = (0, 0, 0);
    for namespace in &namespaces {
        for (state, count) in store.counts(namespace).await?.by_state {
            page.value("tasks_by_status", &[("namespace", namespace), ("status", state.word())], count);
            match state {
                TaskState::Pending => pending += count,
                TaskState::RetryPending => retries += count,
                TaskState::Waiting => delayed += count,
                _ => {}
            }
        }
    }
    rules(page, app, &namespaces).await?;
    page.head("retries_pending", "gauge", "Tasks that wait for their retry.");
    page.value("retries_pending", &[], retries);
    page.head("queue_size", "gauge", "Tasks that wait, by what for.");
    page.value("queue_size", &[("queue", "main")], pending);
    page.value("queue_size", &[("queue", "delayed")], delayed + retries);
    let now = app.engine.now();
    let next = if caller.everywhere { store.next_due().await? } else { stats::next_of(app, &caller.namespace).await? };
    let late = [next.retry, next.start].into_iter().flatten().filter(|at| *at < now).map(|at| now.since(at).0).max();
    page.head("oldest_due_seconds", "gauge", "How long the longest overdue start or retry has waited.");
    page.value("oldest_due_seconds", &[], late.unwrap_or(0) as f64 / 1e3);
    let paused = app.engine.paused_loops().await?;
    page.head("loop_paused", "gauge", "Whether a loop is paused.");
    for name in Loop::ALL {
        let is_paused = paused.iter().any(|(it, _)| it == name);
        page.value("loop_paused", &[("loop", name.word())], u8::from(is_paused));
    }
    Ok(())
}
