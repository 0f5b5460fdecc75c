//! Leases: workers lease tasks, extend leases and report results.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Extension, State};
use axum::http::{Method, header};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::post;
use bytes::Bytes;
use comeback_core::{Invalid, NamePatterns};
use comeback_engine::store::{BeatAnswer, Running, panic_point};
use comeback_engine::{
    Changed, CommandError, Heartbeat, Json as JsonText, LeaseRef, LeaseRequest, Leased, Report, ReportEnd,
};
use serde::Serialize;
use serde_json::{Value, json};

use super::{AppState, Line, large, line};
use crate::App;
use crate::auth::{Caller, Need};
use crate::limiter;
use crate::openapi::{Doc, schema};
use crate::problem::Problem;
use crate::wire::lease::{
    DEFAULT_LEASE, HeartbeatIn, LONGEST_WAIT, LeaseIn, LeaseOut, LeasesOut, ReportOut, ReportsIn, ReportsOut,
};
use crate::wire::{self, DurationIn, Object};

/// Routes of this module.
pub fn lines() -> Vec<Line> {
    let token = "AaHfbwKHcACABMPbmHkLygAAAAEz0xBw3mX3VJq1n2sWvQkD";
    let asking = json!({"worker": "me", "queues": ["default"], "limit": 10, "lease": "60s", "wait": "1s"});
    let failed = json!({"reports": [
        {"lease": token, "outcome": "failed", "error": {"status": 503, "message": "Service Unavailable"}},
        {"lease": token, "outcome": "succeeded", "result": {"sent": true}},
    ]});
    vec![
        line(Method::POST, "/api/v1/leases", Need::Work, "Lease tasks, with long polling", post(lease)).leases().doc(
            Doc::new("leaseTasks")
                .about(
                    "By priority, then by age. The list is empty after the wait time, and for a drained worker, with \
                     `draining`.",
                )
                .needs::<LeaseIn>()
                .example(asking)
                .answers(schema::named("Leases")),
        ),
        line(Method::POST, "/api/v1/leases/heartbeat", Need::Work, "Extend leases", post(heartbeat)).doc(
            Doc::new("keepLeases")
                .about("Each lease has its own result: its new expiry, or a problem.")
                .needs::<HeartbeatIn>()
                .example(json!({"leases": [token], "extend": "60s", "progress": {"done": 12}}))
                .answers(schema::named("Heartbeats")),
        ),
        large(line(Method::POST, "/api/v1/leases/report", Need::Work, "Report the results of runs", post(report))).doc(
            Doc::new("reportRuns")
                .about("Each report has its own result, in order. A repeated report gets the same result.")
                .needs::<ReportsIn>()
                .example(failed)
                .answers(schema::named("Reports")),
        ),
    ]
}

/// Maximum wait of a drained worker per request.
const PIECE: Duration = Duration::from_millis(500);

/// Memory per name of a waiting lease request besides its characters: in the request and in the wait index.
const BYTES_OF_A_NAME: usize = 200;

async fn lease(State(app): AppState, Extension(caller): Extension<Caller>, body: Bytes) -> Result<Response, Problem> {
    let given: LeaseIn = wire::read(&body)?;
    // The body is dropped before waiting; the memory of the parsed request stays counted.
    drop(body);
    let names = given.queues.iter().flatten().chain(&given.kinds);
    let kept: usize = names.map(|name| name.len() * 2 + BYTES_OF_A_NAME).sum();
    if let Some(admitted) = limiter::admitted() {
        admitted.keep_memory(kept)?;
    }
    let wait = given.wait.map_or(comeback_core::Millis::ZERO, |DurationIn(span)| span.min(LONGEST_WAIT));
    let (namespace, worker) = (caller.namespace.clone(), given.worker.clone());
    let (queues, kinds, only_kinds) = within_scope(&caller, given.queues, given.kinds)?;
    let request = LeaseRequest {
        queues,
        kinds,
        only_kinds,
        limit: given.limit,
        lease: given.lease.map_or(DEFAULT_LEASE, |DurationIn(span)| span),
        ..LeaseRequest::new(namespace.clone(), given.worker)
    };
    app.engine.check_lease(&request)?;
    saw_worker(&app, &request).await?;
    let give_up = tokio::time::Instant::now() + Duration::from_millis(wait.0);
    let left = || give_up.saturating_duration_since(tokio::time::Instant::now());
    let leased = loop {
        // A key may expire during the wait.
        if !caller.still_may(&app) {
            return Err(Problem::unauthorized("the key has expired or was revoked"));
        }
        let wait = if app.is_draining() { Duration::ZERO } else { left() };
        app.workers.leased(&namespace, &worker, 0, app.engine.now());
        let leased = lease_or_give_back(&app, &caller, LeaseRequest { wait, ..request.clone() }).await?;
        if !leased.is_empty() || wait.is_zero() || left().is_zero() {
            break leased;
        }
    };
    app.workers.leased(&namespace, &worker, leased.len(), app.engine.now());
    let leases = leased.iter().map(|it| LeaseOut::of(it, &app.tokens, &namespace)).collect();
    written(&LeasesOut { leases, draining: is_drained(&app, &request) })
}

/// Whether the worker of a request is drained.
fn is_drained(app: &App, request: &LeaseRequest) -> bool {
    has_drained(app, &request.namespace, &request.worker)
}

/// Notes that a worker asks for work. A new name beyond the quota of its namespace is refused.
async fn saw_worker(app: &App, request: &LeaseRequest) -> Result<(), Problem> {
    let (namespace, worker) = (&request.namespace, &request.worker);
    let (quotas, now) = (&app.engine.config().quotas, app.engine.now());
    let asked = (&request.queues[..], &request.kinds[..]);
    let Err(refused) = app.workers.saw(namespace, worker, asked, quotas, false, now) else { return Ok(()) };
    // Another instance may know it, or this one before a restart.
    if !app.engine.store().has_worker(namespace, worker, now - crate::workers::REMEMBERED).await? {
        return Err(refused.into());
    }
    app.workers.saw(namespace, worker, asked, quotas, true, now)?;
    Ok(())
}

/// Queues, kinds, and patterns that kinds must match as well.
type Scoped = (Vec<String>, Vec<String>, Option<Arc<NamePatterns>>);

/// Queues and kinds of a lease request: those it names, if the key allows them, else those of the key.
fn within_scope(caller: &Caller, queues: Option<Vec<String>>, kinds: Vec<String>) -> Result<Scoped, Problem> {
    let usual = || vec!["default".to_owned()];
    let Some(scope) = caller.scope() else { return Ok((queues.unwrap_or_else(usual), kinds, None)) };
    let refused = |what: &str, name: &str| Problem::forbidden(format!("this key does not allow the {what} `{name}`"));
    if let Some(name) = queues.iter().flatten().find(|name| !scope.queues.allows(name)) {
        return Err(refused("queue", name));
    }
    if let Some(name) = kinds.iter().find(|name| !scope.kinds.allows(name)) {
        return Err(refused("kind", name));
    }
    let queues = match queues {
        Some(queues) => queues,
        None if scope.queues.allows("default") && scope.queues.exact_names().next().is_none() => usual(),
        None => scope.queues.exact_names().cloned().collect(),
    };
    if queues.is_empty() {
        let patterns = scope.queues.as_slice().join(", ");
        return Err(Problem::forbidden(format!("name the queues: this key allows {patterns}")));
    }
    match (kinds.is_empty(), scope.kinds.exact()) {
        (true, Some(names)) => Ok((queues, names.to_vec(), None)),
        (true, None) => Ok((queues, kinds, Some(Arc::new(scope.kinds.clone())))),
        (false, _) => Ok((queues, kinds, None)),
    }
}

fn has_drained(app: &App, namespace: &str, worker: &str) -> bool {
    app.drained.contains(namespace, worker)
}

/// Leases for a worker without waiting for work.
pub async fn lease_now(app: &Arc<App>, caller: &Caller, request: LeaseRequest) -> Result<Vec<Leased>, Problem> {
    app.engine.check_lease(&request)?;
    saw_worker(app, &request).await?;
    let (namespace, worker) = (request.namespace.clone(), request.worker.clone());
    let leased = lease_or_give_back(app, caller, request).await?;
    app.workers.leased(&namespace, &worker, leased.len(), app.engine.now());
    Ok(leased)
}

/// Leases tasks. If the caller disconnects, the claim completes in the background and its leases are released; it holds its
/// permit until then. Returns early when the key expires, the worker is drained or the server drains.
async fn lease_or_give_back(app: &Arc<App>, caller: &Caller, request: LeaseRequest) -> Result<Vec<Leased>, Problem> {
    if is_drained(app, &request) {
        app.engine.check_lease(&request)?;
        // Delayed: a worker that asks again immediately would spin.
        tokio::time::sleep(request.wait.min(PIECE)).await;
        return Ok(Vec::new());
    }
    let (tell, told) = tokio::sync::oneshot::channel();
    let (here, caller, admitted) = (app.clone(), caller.clone(), limiter::admitted());
    Running::spawn(async move {
        let _admitted = admitted;
        let (namespace, worker) = (request.namespace.clone(), request.worker.clone());
        let keep_waiting = || {
            !tell.is_closed()
                && !here.is_draining()
                && caller.still_may(&here)
                && !has_drained(&here, &namespace, &worker)
        };
        panic_point!("server-lease");
        let leased = here.engine.lease_while(request, keep_waiting).await;
        panic_point!("server-leased");
        if let Err(Ok(unheard)) = tell.send(leased)
            && !unheard.is_empty()
        {
            let back = unheard.iter().map(|it| Report { lease: it.lease, end: ReportEnd::Released }).collect();
            if let Err(error) = here.engine.report(back).await {
                tracing::warn!(%error, "cannot release leases of a disconnected caller; they will expire");
            }
        }
    });
    Ok(told.await.map_err(|_| Problem::unavailable("request aborted: the claim did not complete"))??)
}

async fn heartbeat(
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    body: Bytes,
) -> Result<Json<Value>, Problem> {
    let given: HeartbeatIn = wire::read(&body)?;
    if given.leases.len() > app.engine.config().limits.leases_per_request as usize {
        return Err(Invalid::one("leases", "has too many items").into());
    }
    let extend = given.extend.map_or(DEFAULT_LEASE, |DurationIn(span)| span);
    let progress: Option<JsonText> = given.progress.map(Into::into);
    app.engine.config().limits.check_beat(extend, progress.as_ref())?;
    let opened: Vec<Option<LeaseRef>> =
        given.leases.iter().map(|token| app.tokens.open(token, &caller.namespace)).collect();
    let beats: Vec<Heartbeat> =
        opened.iter().flatten().map(|lease| Heartbeat { lease: *lease, extend, progress: progress.clone() }).collect();
    panic_point!("server-heartbeat");
    let mut answers = app.engine.heartbeat(&beats).await?.into_iter();
    let shown: Vec<Value> = given
        .leases
        .iter()
        .zip(opened)
        .map(|(token, opened)| match opened.and_then(|_| answers.next()) {
            Some(BeatAnswer::Extended(until)) => {
                json!({"lease": token, "expires_at": until.to_rfc3339(), "cancel_requested": false})
            }
            Some(BeatAnswer::Canceled) => json!({"lease": token, "expires_at": null, "cancel_requested": true}),
            Some(BeatAnswer::Lost) | None => json!({"lease": token, "problem": lost()}),
        })
        .collect();
    Ok(Json(json!({"leases": shown})))
}

fn lost() -> Value {
    Problem::from(comeback_engine::CommandError::LeaseLost).to_json("")
}

async fn report(State(app): AppState, Extension(caller): Extension<Caller>, body: Bytes) -> Result<Response, Problem> {
    let given: ReportsIn = wire::read(&body)?;
    if given.reports.len() > app.engine.config().limits.tasks_per_submit {
        return Err(Invalid::one("reports", "has too many items").into());
    }
    let mut tokens: Vec<String> = Vec::with_capacity(given.reports.len());
    let mut problems: Vec<Option<Problem>> = Vec::with_capacity(given.reports.len());
    let mut reports = Vec::with_capacity(given.reports.len());
    for (i, Object(mut report)) in given.reports.into_iter().enumerate() {
        let lease = app.tokens.open(&report.lease, &caller.namespace);
        tokens.push(std::mem::take(&mut report.lease));
        match (lease, report.end()) {
            (_, Err(invalid)) => problems.push(Some(invalid.under(&format!("reports[{i}]")).into())),
            (None, Ok(_)) => problems.push(Some(comeback_engine::CommandError::LeaseLost.into())),
            (Some(lease), Ok(end)) => {
                problems.push(None);
                reports.push(Report { lease, end });
            }
        }
    }
    let mut answers = report_all(&app, reports).await?.into_iter();
    let reports = tokens
        .iter()
        .zip(problems)
        .map(|(token, problem)| {
            let answer = match problem {
                Some(problem) => Err(problem),
                None => match answers.next() {
                    Some(answer) => answer.map_err(Problem::from),
                    None => Err(Problem::unavailable("the report was not answered")),
                },
            };
            match answer {
                Ok(reported) => ReportOut::of(token, &reported),
                Err(problem) => ReportOut::Refused { lease: token, problem: problem.to_json("") },
            }
        })
        .collect();
    written(&ReportsOut { reports })
}

fn written(out: &impl Serialize) -> Result<Response, Problem> {
    let text = serde_json::to_vec(out).map_err(|error| Problem::unavailable(error.to_string()))?;
    Ok(([(header::CONTENT_TYPE, "application/json")], text).into_response())
}

/// Applies reports. They complete even if the caller disconnects, and hold its permit until then.
pub async fn report_all(app: &App, reports: Vec<Report>) -> Result<Vec<Result<Changed, CommandError>>, Problem> {
    let (engine, admitted) = (app.engine.clone(), limiter::admitted());
    let answers = Running::spawn(async move {
        let _admitted = admitted;
        panic_point!("server-report");
        let answers = engine.report(reports).await;
        panic_point!("server-reported");
        answers
    });
    Ok(answers.await.map_err(|_| Problem::unavailable("request aborted: the report did not complete"))??)
}
