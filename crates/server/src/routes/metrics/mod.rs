//! Prometheus metrics. Counters are of this process; gauges are of the whole database. A key for one namespace sees the
//! numbers of that namespace, and no process-wide ones.

mod counters;
mod page;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use axum::extract::{Extension, State};
use axum::http::{Method, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use comeback_core::State as TaskState;
use comeback_core::admission::Bound;
use comeback_engine::store::Loop;

use page::MetricsPage;

use super::{Line, line, stats};
use crate::App;
use crate::auth::{Caller, Need};
use crate::limiter::RequestClass;
use crate::openapi::Doc;
use crate::problem::Problem;

/// Maximum number of dependencies of one namespace.
const MOST_DEPENDENCIES: u32 = 1_000;
/// Maximum number of series per metric with labels chosen by callers.
const MOST_SERIES: usize = 1_000;

/// Routes of this module.
pub fn lines() -> Vec<Line> {
    let doc = Doc::new("getMetrics").answers_text("text/plain");
    vec![line(Method::GET, "/metrics", Need::Read, "Prometheus metrics", get(metrics)).doc(doc)]
}

async fn metrics(State(app): State<Arc<App>>, Extension(caller): Extension<Caller>) -> Result<Response, Problem> {
    let mut page = MetricsPage::default();
    page.head("build_info", "gauge", "The version that runs.");
    let version = ("version", env!("CARGO_PKG_VERSION"));
    if caller.everywhere {
        page.value("build_info", &[version, ("instance", &app.instance)], 1);
        counters::all(&mut page, &app.engine.tally());
        door(&mut page, &app);
    } else {
        page.value("build_info", &[version], 1);
        counters::of_tasks(&mut page, &app.engine.tally_of(&caller.namespace));
    }
    gauges(&mut page, &app, &caller).await?;
    keys(&mut page, &app, &caller);
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], page.into_text()).into_response())
}

/// Metrics of API keys: expiring keys, and requests refused by address.
fn keys(page: &mut MetricsPage, app: &App, caller: &Caller) {
    let namespace = (!caller.everywhere).then_some(caller.namespace.as_str());
    let ending = app.keys.ending(namespace, app.engine.now()).len();
    page.head("keys_expiring", "gauge", "Active API keys that expire within 14 days and were not rotated.");
    page.value("keys_expiring", &[], ending);
    page.counter(
        "key_address_refusals_total",
        "Requests that were refused because their API key may not be used from their address.",
        app.keys.refused_addresses.load(std::sync::atomic::Ordering::Relaxed),
    );
}

/// Metrics of HTTP requests and connections.
fn door(page: &mut MetricsPage, app: &App) {
    page.head("http_requests_in_progress", "gauge", "Requests that are worked on, by class.");
    for class in RequestClass::ALL {
        page.value("http_requests_in_progress", &[("class", class.word())], app.limiter.busy(class));
    }
    page.head("http_requests_refused_total", "counter", "Requests that were turned away, by class.");
    for class in RequestClass::ALL {
        page.value("http_requests_refused_total", &[("class", class.word())], app.limiter.refused(class));
    }
    page.counters(
        "quota_refusals_total",
        "Requests that were refused because a namespace's quota was used up, by quota.",
        app.quota_refusals.all().map(|(quota, count)| (vec![("quota", quota.word())], count)),
    );
    page.counters(
        "auth_failures_total",
        "Requests that were refused with 401 or 403, by reason.",
        app.auth_failures.all().map(|(reason, count)| (vec![("reason", reason)], count)),
    );
    page.head("http_connections", "gauge", "Open connections, by whether they came with a good key.");
    let (keyed, keyless) = app.connections.open_counts();
    page.value("http_connections", &[("key", "good")], keyed);
    page.value("http_connections", &[("key", "none")], keyless);
    page.counter(
        "http_connections_closed_total",
        "Connections that were closed to make room.",
        app.connections.closed(),
    );
}

/// Metrics of rules: limits and usage.
async fn rules(
    page: &mut MetricsPage,
    app: &App,
    caller: &Caller,
    namespaces: &BTreeSet<String>,
) -> Result<(), Problem> {
    if caller.everywhere {
        let help = "Lanes that claims left alone because a rule had no room.";
        page.counter("tasks_blocked_by_concurrency_total", help, app.engine.store().held_by_rules());
    }
    let mut all = Vec::new();
    for namespace in namespaces {
        if all.len() >= MOST_SERIES {
            break;
        }
        all.extend(app.engine.rules(namespace).await?.into_iter().map(|view| (namespace, view)));
    }
    all.truncate(MOST_SERIES);
    page.head("rule_limit", "gauge", "What a rule allows.");
    for (namespace, view) in &all {
        let (by, most) = match view.rule.bound {
            Bound::Running(most) => ("max_running", most),
            Bound::Capacity(most) => ("capacity", most),
        };
        page.value("rule_limit", &[("namespace", namespace), ("rule", &view.rule.name), ("by", by)], most);
    }
    // Rules with `per` may have a thousand values: only the sum is exported.
    page.head("rule_running", "gauge", "Tasks that run under a rule.");
    for (namespace, view) in &all {
        let running: u64 = view.used.iter().map(|(_, used)| used.running).sum();
        page.value("rule_running", &[("namespace", namespace), ("rule", &view.rule.name)], running);
    }
    Ok(())
}

/// Metrics of dependencies: breaker states, and changes made by this process.
async fn dependencies(
    page: &mut MetricsPage,
    app: &App,
    caller: &Caller,
    namespaces: &BTreeSet<String>,
) -> Result<(), Problem> {
    if caller.everywhere {
        page.head(
            "circuit_breaker_state_transitions_total",
            "counter",
            "Changes of dependencies that this process brought about.",
        );
        for (change, count) in app.engine.dependency_changes() {
            page.value("circuit_breaker_state_transitions_total", &[("to_state", change.word())], count);
        }
        let held = app.engine.store().held_by_dependencies();
        let help = "Lanes that claims left alone because of a dependency.";
        page.counter("circuit_breaker_rejections_total", help, held);
    }
    let mut all = Vec::new();
    for namespace in namespaces {
        if all.len() >= MOST_SERIES {
            break;
        }
        all.extend(
            app.engine.dependencies(namespace, "", MOST_DEPENDENCIES).await?.into_iter().map(|it| (namespace, it)),
        );
    }
    all.truncate(MOST_SERIES);
    page.head(
        "circuit_breaker_open",
        "gauge",
        "Whether a breaker keeps tasks back: 1 open, 0.5 half open or recovering.",
    );
    for (namespace, view) in &all {
        let open = match view.dependency.standing.phase.word() {
            "open" => 1.0,
            "closed" => 0.0,
            _ => 0.5,
        };
        page.value("circuit_breaker_open", &[("namespace", namespace), ("dependency", &view.dependency.name)], open);
    }
    page.head("dependency_running", "gauge", "Tasks that run and need a dependency.");
    for (namespace, view) in &all {
        page.value(
            "dependency_running",
            &[("namespace", namespace), ("dependency", &view.dependency.name)],
            view.running,
        );
    }
    Ok(())
}

/// Running tasks by kind: the most frequent kinds, the rest as `other`.
fn at_most(running: BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    if running.len() <= MOST_SERIES {
        return running;
    }
    let mut all: Vec<(String, u64)> = running.into_iter().collect();
    all.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let rest: u64 = all.split_off(MOST_SERIES - 1).into_iter().map(|(_, count)| count).sum();
    let mut few: BTreeMap<String, u64> = all.into_iter().collect();
    *few.entry("other".into()).or_default() += rest;
    few
}

/// Namespaces that the caller may see.
async fn gauges(page: &mut MetricsPage, app: &App, caller: &Caller) -> Result<(), Problem> {
    let store = app.engine.store();
    let mut namespaces = stats::namespaces(app).await?;
    namespaces.retain(|name| caller.everywhere || *name == caller.namespace);
    page.head("tasks_by_status", "gauge", "Tasks in each state.");
    let (mut pending, mut delayed, mut retries) = (0, 0, 0);
    let mut running: BTreeMap<String, u64> = BTreeMap::new();
    for namespace in &namespaces {
        let counts = app.count_cache.of(store, namespace, app.engine.now()).await?;
        for (kind, count) in &counts.running {
            *running.entry(kind.clone()).or_default() += count;
        }
        for (state, count) in &counts.by_state {
            page.value("tasks_by_status", &[("namespace", namespace), ("status", state.word())], count);
            match state {
                TaskState::Pending => pending += count,
                TaskState::RetryPending => retries += count,
                TaskState::Waiting => delayed += count,
                _ => {}
            }
        }
    }
    page.head("running_tasks_by_kind", "gauge", "Tasks that run.");
    for (kind, count) in &at_most(running) {
        page.value("running_tasks_by_kind", &[("kind", kind)], count);
    }
    rules(page, app, caller, &namespaces).await?;
    dependencies(page, app, caller, &namespaces).await?;
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
