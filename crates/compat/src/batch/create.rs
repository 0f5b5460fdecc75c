//! Creating batches.

use std::collections::BTreeSet;

use axum::extract::{Extension, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Json, Response};
use bytes::Bytes;
use comeback_core::Invalid;
use comeback_core::admission::Rule;
use comeback_core::filter::Filter;
use comeback_engine::store::{Idempotency, Used};
use comeback_engine::{CommandError, ExecutionSpec, Submit};
use comeback_server::route::{Caller, Doc, IdempotencyKey, Param, header_text, schema};
use comeback_server::{App, Problem};
use serde_json::{Value, json};

use super::input::{self, Batch, Planned, TaskIn};
use super::routes::{Shared, all_of};
use super::{dedupe, output};

/// Description of the route.
pub fn doc() -> Doc {
    let call = |url: &str| json!({"kind": "Webhook", "params": {"url": url, "verb": "Post"}});
    let retry = json!({"max_retries": 3, "initial_delay_secs": 10, "backoff_multiplier": 2.0, "max_delay_secs": 120});
    let import = json!({"id": "import", "name": "Import Data", "kind": "etl", "timeout": 120, "retry": retry,
        "on_start": call("https://etl.example.com/import")});
    let report = json!({"id": "report", "name": "Report", "kind": "etl",
        "dependencies": [{"id": "import", "requires_success": true}]});
    let batch = json!([import, report]);
    Doc::new("createBatch")
        .about(
            "A list of tasks, or one: all of them are taken or none, and they make one execution, whose id is in the header \
             `X-Batch-ID`. Where all of them were there already (`dedupe_strategy`), the answer is 204.",
        )
        .needs::<TaskIn>()
        .needs::<Batch>()
        .example(import)
        .example(batch)
        .once()
        .header(Param::new("traceparent", "Kept with the tasks and passed on (W3C Trace Context).", || {
            schema::named("Name")
        }))
        .creates(schema::list(schema::named("BasicBatchTask")))
        .or_nothing("Every task was there already.")
}

/// Creates a batch.
pub async fn create(
    State(app): Shared,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    once: IdempotencyKey,
    body: Bytes,
) -> Result<Response, Problem> {
    let config = app.engine.config();
    let limits = (&config.limits, &config.policy_limits);
    let traceparent = header_text(&headers, "traceparent")?;
    let mut faults = Invalid::default();
    let mut earlier = BTreeSet::new();
    let mut planned: Vec<Planned> = Vec::new();
    for (i, task) in input::read(&body)?.into_iter().enumerate() {
        let (at, id) = (format!("tasks[{i}]"), task.id.clone());
        let mut part = Invalid::default();
        planned.push(task.plan(&earlier, limits, &mut part));
        if !earlier.insert(id.clone()) {
            part.push("id", format!("`{id}` is the id of an earlier task"));
        }
        faults.absorb(&at, part);
    }
    faults.or(())?;
    let idempotency = once.with_body(&app, &body)?;
    let request = BatchRequest { planned, idempotency, traceparent };
    for _ in 0..ROUNDS {
        if let Some(answer) = make(&app, &caller, &request).await? {
            return Ok(answer);
        }
    }
    Err(Problem::unavailable("others make tasks like these all the time"))
}

/// Attempts to create a batch while other callers create tasks that its `dedupe_strategy` matches.
const ROUNDS: usize = 8;

/// A batch as requested.
struct BatchRequest {
    planned: Vec<Planned>,
    idempotency: Option<Idempotency>,
    traceparent: Option<String>,
}

/// Creates the batch. `None` if a task that `dedupe_strategy` matches was created since it was looked for.
async fn make(app: &App, caller: &Caller, request: &BatchRequest) -> Result<Option<Response>, Problem> {
    let BatchRequest { planned, idempotency, traceparent } = request;
    // A repeated request under a key is about its own tasks, which `dedupe_strategy` would match.
    let again = match idempotency {
        Some(key) => app.engine.store().used(&caller.namespace, key).await? == Some(Used::ForThis),
        None => false,
    };
    let questions: Vec<Vec<Filter>> =
        planned.iter().map(|it| if again { Vec::new() } else { it.dedupe.clone() }).collect();
    let skipped = dedupe::skipped(app, &caller.namespace, &questions).await?;
    let gone: BTreeSet<String> = skipped.iter().filter_map(|place| planned[*place].spec.key.clone()).collect();
    let kept: Vec<(usize, &Planned)> =
        planned.iter().enumerate().filter(|(place, _)| !skipped.contains(place)).collect();
    if kept.is_empty() {
        return Ok(Some(StatusCode::NO_CONTENT.into_response()));
    }
    let mut carried: Vec<Rule> = Vec::new();
    for rule in kept.iter().flat_map(|(_, it)| &it.rules) {
        if !carried.contains(rule) {
            carried.push(rule.clone());
        }
    }
    if !carried.is_empty() {
        app.engine.carried_rules(&caller.namespace, carried.clone()).await?;
    }
    let unless = kept.iter().flat_map(|(place, _)| questions[*place].clone()).collect();
    let places: Vec<usize> = kept.iter().map(|(place, _)| *place).collect();
    let task = |it: &Planned| {
        let mut spec = it.spec.clone();
        // A task that was skipped is no dependency.
        spec.needs.retain(|need| !gone.contains(&need.task));
        spec.traceparent = traceparent.clone();
        spec.rules = it.rules.iter().map(|rule| rule.name.clone()).collect();
        spec
    };
    let submit = Submit {
        namespace: caller.namespace.clone(),
        tasks: kept.into_iter().map(|(_, it)| task(it)).collect(),
        execution: Some(ExecutionSpec { dead_end_cancel: true, ..ExecutionSpec::default() }),
        idempotency: idempotency.clone(),
        unless,
    };
    let answer = match app.engine.submit(submit).await {
        Err(CommandError::Conflict) => return Ok(None),
        answer => answer.map_err(|error| in_this_dialect(error, &places))?,
    };
    // Rules without tasks may have been removed before these tasks were there.
    if !carried.is_empty()
        && let Err(error) = app.engine.carried_rules(&caller.namespace, carried).await
    {
        tracing::warn!(%error, "cannot store the rules of a batch again");
    }
    let batch = answer.execution.ok_or_else(|| Problem::unavailable("the batch was not answered"))?;
    let made: Vec<Value> = all_of(app, &caller.namespace, batch).await?.iter().map(output::basic).collect();
    let mut response = (StatusCode::CREATED, Json(made)).into_response();
    if let Ok(id) = HeaderValue::from_str(&batch.to_string()) {
        response.headers_mut().insert("x-batch-id", id);
    }
    Ok(Some(response))
}

/// The engine's error with the field names of this dialect, and the positions that tasks had in the request.
fn in_this_dialect(error: CommandError, places: &[usize]) -> Problem {
    const FIELDS: [(&str, &str); 4] =
        [("key", "id"), ("expected", "expected_count"), ("needs", "dependencies"), ("hooks", "on_success")];
    let CommandError::Invalid(mut invalid) = error else { return error.into() };
    for fault in &mut invalid.faults {
        // A task that is alone is named by its fields only.
        let numbered = fault.path.strip_prefix("tasks[").and_then(|rest| rest.split_once("]."));
        let (place, field) = match numbered {
            Some((place, field)) => (place.parse().unwrap_or(0), field),
            None if places.len() == 1 => (0, fault.path.as_str()),
            None => continue,
        };
        let end = field.find(['[', '.']).unwrap_or(field.len());
        let (name, rest) = field.split_at(end);
        let name = FIELDS.iter().find(|(native, _)| *native == name).map_or(name, |(_, here)| here);
        fault.path = format!("tasks[{}].{name}{rest}", places.get(place).unwrap_or(&place));
    }
    invalid.into()
}
