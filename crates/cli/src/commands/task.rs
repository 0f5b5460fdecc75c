//! Tasks: list, inspect, wait for, and act on them.

use std::time::Duration;

use comeback_core::{Millis, Timestamp};
use serde_json::{Value, json};

use super::resource::{object, read_json};
use super::{Context, operations, typed_policy};
use crate::args::{TaskCommand, TaskSelection, WatchArgs};
use crate::error::{CliError, code};
use crate::output::{self, Cell, Output, Table, View, instant, outln, soon, span};
use crate::watch;

pub async fn run(context: &Context, command: TaskCommand) -> Result<u8, CliError> {
    match command {
        TaskCommand::List { filter, limit, sort, cursor, watch } => {
            let query = query(filter, limit, sort, cursor);
            watch::show(&context.out, &watch, || list(context, &query)).await
        }
        TaskCommand::Get { id, wait: true, timeout, .. } => wait(context, &id.id, timeout).await,
        TaskCommand::Get { id, watch, .. } => get(context, &id.id, &watch).await,
        TaskCommand::Why(id) => why(context, &id.id).await,
        TaskCommand::Attempts(id) => attempts(context, &id.id).await,
        TaskCommand::Retry { which, spread, waves, keep_counters, patch, note } => {
            let mut body = json!({"keep_counters": keep_counters, "note": note.note});
            if which.bulk.filter.is_some() {
                (body["spread"], body["waves"]) =
                    (json!(spread), waves.map(|text| operations::waves(&text)).transpose()?.into());
            }
            if let Some(text) = patch {
                body["payload_patch"] = read_json("--patch", &text, "--patch '{\"card\": {\"number\": \"4242\"}}'")?;
            }
            act_on(context, which, "retry", body).await
        }
        TaskCommand::Cancel { which, note, .. } => act_on(context, which, "cancel", json!({"note": note.note})).await,
        TaskCommand::Pause { which, note } => act_on(context, which, "pause", json!({"note": note.note})).await,
        TaskCommand::Resume { which, note } => act_on(context, which, "resume", json!({"note": note.note})).await,
        TaskCommand::Edit { id, retry, priority, labels } => edit(context, &id.id, retry, priority, &labels).await,
        TaskCommand::Snooze { id, delay } => act(context, &id.id, "snooze", json!({"delay": delay})).await,
        TaskCommand::Reschedule { id, at } => act(context, &id.id, "reschedule", json!({"at": at})).await,
    }
}

async fn edit(
    context: &Context,
    id: &str,
    retry: Option<String>,
    priority: Option<i16>,
    labels: &[String],
) -> Result<u8, CliError> {
    let id = context.resolve(id).await?;
    let mut body = object([("retry", retry.as_deref().map(typed_policy)), ("priority", priority.map(Value::from))]);
    for label in labels {
        let (name, value) = label.split_once('=').map_or((label.as_str(), None), |(name, value)| (name, Some(value)));
        body["labels"][name] = value.into();
    }
    let changed = context.client.patch(&format!("/api/v1/tasks/{id}"), &body).await?;
    detail(&changed["task"], context.now().await?, &context.out).print(&context.out)
}

/// Parameters of a request.
type Parameters = Vec<(&'static str, String)>;

fn query(filter: Vec<String>, limit: u32, sort: Option<String>, cursor: Option<String>) -> Parameters {
    let mut query = vec![("q", filter.join(" ")), ("limit", limit.to_string())];
    query.extend(sort.map(|sort| ("sort", sort)));
    query.extend(cursor.map(|cursor| ("cursor", cursor)));
    query
}

async fn list(context: &Context, query: &Parameters) -> Result<View, CliError> {
    let listed = context.client.get_with("/api/v1/tasks", query).await?;
    let now = context.now().await?;
    let mut table = Table::new(&["ID", "STATE", "KIND", "QUEUE", "ATTEMPT", "NEXT", "AGE", "LAST ERROR"]);
    table.rows = output::items(&listed).map(|task| row(task, now, &context.out)).collect();
    let more = listed["next_cursor"].as_str().map(|cursor| format!(" · more: --cursor {cursor}")).unwrap_or_default();
    let hint = match table.rows.len() as u64 {
        0 if query[0].1.is_empty() => "no tasks yet; create one: comeback enqueue hello".to_owned(),
        0 => "no matching tasks".to_owned(),
        count => format!("{}{more}", output::plural(count, "task")),
    };
    Ok(View::table(listed, table).with_hint(hint))
}

fn row(task: &Value, now: Timestamp, out: &Output) -> Vec<Cell> {
    vec![
        id(task, out),
        output::state(task),
        output::text(task, "kind").into(),
        output::text(task, "queue").into(),
        attempt(task).into(),
        out.time_cell(due(task), now),
        out.age(&task["submitted_at"], now),
        task["last_error"]["message"].as_str().unwrap_or("").into(),
    ]
}

/// The id: short on a terminal, whole on a pipe, where it must stay unique.
pub fn id(task: &Value, out: &Output) -> Cell {
    if out.terminal { output::short(&task["id"]).into() } else { output::text(task, "id").into() }
}

/// The time of the next run, unless that is now.
pub fn due(task: &Value) -> &Value {
    if task["next_retry_at"].is_null() { &task["start_at"] } else { &task["next_retry_at"] }
}

/// Attempt number and maximum, such as `2/6`.
pub fn attempt(task: &Value) -> String {
    let number = task["attempt_number"].as_u64().unwrap_or(1);
    match task["max_retries"].as_u64() {
        Some(retries) => format!("{number}/{}", retries + 1),
        None => format!("{number}/1"),
    }
}

async fn get(context: &Context, id: &str, watch: &WatchArgs) -> Result<u8, CliError> {
    let id = context.resolve(id).await?;
    watch::show(&context.out, watch, || async {
        let task = context.client.task(&id).await?;
        Ok(detail(&task, context.now().await?, &context.out))
    })
    .await
}

/// The most important fields of a task; the JSON output has all of them.
pub fn detail(task: &Value, now: Timestamp, out: &Output) -> View {
    let mut view = View::new(task.clone());
    view.line(headline(task, out));
    let mut field = |name: &str, words: String| {
        if !words.is_empty() {
            view.line(format!("  {name:<10} {words}"));
        }
    };
    let at = |value: &Value| instant(value).map(|at| out.at(at, now)).unwrap_or_default();
    let text = |name: &str| output::text(task, name).to_owned();
    field("id", text("id"));
    field("name", text("name"));
    let priority = task["priority"].as_i64().filter(|it| *it != 0).map(|it| format!("   priority {it}"));
    field("queue", text("queue") + &priority.unwrap_or_default());
    if task["execution_id"] != task["id"] {
        field("execution", text("execution_id"));
    }
    field("key", text("key"));
    let ended = instant(&task["ended_at"]).map(|_| format!("   ended {}", at(&task["ended_at"]))).unwrap_or_default();
    field("submitted", at(&task["submitted_at"]) + &ended);
    field("due", at(due(task)));
    field("deadline", at(&task["deadline_at"]));
    if let Some(worker) = task["lease"]["worker"].as_str() {
        field("running", format!("by {worker}, lease expires {}", at(&task["lease"]["expires_at"])));
    }
    field("blocked", text("blocked"));
    let counts = [("lost_count", "lost"), ("throttle_count", "throttled"), ("snooze_count", "snoozed")];
    let counts: Vec<String> = counts
        .iter()
        .filter_map(|(name, word)| task[*name].as_u64().filter(|n| *n > 0).map(|n| format!("{n} {word}")))
        .collect();
    let runs = task["total_attempts"].as_u64().unwrap_or(0);
    field("runs", if counts.is_empty() { runs.to_string() } else { format!("{runs} ({})", counts.join(", ")) });
    field("last error", last_error(task));
    field("verdict", text("verdict"));
    let labels = task["labels"].as_object().into_iter().flatten();
    let labels: Vec<String> = labels.map(|(name, value)| format!("{name}={}", value.as_str().unwrap_or(""))).collect();
    field("labels", labels.join(" "));
    for name in ["payload", "progress", "result"] {
        if !task[name].is_null() {
            field(name, short_json(&task[name]));
        }
    }
    view
}

fn headline(task: &Value, out: &Output) -> String {
    let (state, kind) = (output::state(task).show(out), output::text(task, "kind"));
    format!("{state}  {kind}  {}   attempt {}", output::short(&task["id"]), attempt(task))
}

fn last_error(task: &Value) -> String {
    let error = &task["last_error"];
    let status = error["status"].as_u64().map(|status| format!("HTTP {status} ")).unwrap_or_default();
    let class = task["error_class"].as_str().map(|class| format!(" ({class})")).unwrap_or_default();
    match error["message"].as_str() {
        None => String::new(),
        Some(message) => format!("{status}{}{class}", message.lines().next().unwrap_or_default()),
    }
}

/// JSON in one line, shortened to 200 characters.
fn short_json(value: &Value) -> String {
    let text = value.to_string();
    let short: String = text.chars().take(200).collect();
    if short.len() < text.len() { format!("{short}… (--json prints all)") } else { short }
}

/// Exit code for a final state.
pub fn end_code(state: &str) -> Option<u8> {
    match state {
        "succeeded" => Some(code::OK),
        "failed" | "dead" => Some(code::DEAD),
        "canceled" | "skipped" => Some(code::CANCELED),
        _ => None,
    }
}

async fn wait(context: &Context, id: &str, timeout: Option<String>) -> Result<u8, CliError> {
    let id = context.resolve(id).await?;
    let limit = match timeout {
        None => Duration::MAX,
        Some(text) => match Millis::parse(&text) {
            Ok(Millis(ms)) => Duration::from_millis(ms),
            Err(error) => return Err(CliError::new(code::USAGE, error.to_string())),
        },
    };
    let ended = async {
        loop {
            let task = context.client.task(&id).await?;
            if let Some(code) = end_code(output::text(&task, "state")) {
                let mut view = detail(&task, context.now().await?, &context.out);
                view.code = code;
                return view.print(&context.out);
            }
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
    };
    match tokio::time::timeout(limit, ended).await {
        Ok(outcome) => outcome,
        Err(_) => {
            let task = context.client.task(&id).await?;
            let name = output::short(&task["id"]);
            Err(CliError::new(code::TIMEOUT, format!("{name} is still {}", output::text(&task, "state")))
                .why("--timeout elapsed")
                .remedy(format!("comeback task why {name}")))
        }
    }
}

async fn why(context: &Context, id: &str) -> Result<u8, CliError> {
    let (id, out) = (context.resolve(id).await?, &context.out);
    let why = context.client.get(&format!("/api/v1/tasks/{id}/why")).await?;
    let task = context.client.task(&id).await?;
    let forecast = context.client.get(&format!("/api/v1/tasks/{id}/forecast?limit=5")).await?;
    let now = context.now().await?;
    let mut view = View::new(why.clone());
    view.line(headline(&task, out));
    view.line(format!("  why      {}", output::text(&why, "text")));
    let open = task["ended_at"].is_null();
    let attempts = forecast["attempts"].as_array().into_iter().flatten();
    let coming: Vec<String> = attempts.filter_map(|it| instant(&it["at"])).map(|at| out.at(at, now)).collect();
    if !coming.is_empty() {
        view.line(format!("  when     {}", coming.join(", then ")));
    }
    if let (Some(at), Some(then), true) = (instant(&forecast["gives_up_at"]), forecast["then"]["state"].as_str(), open)
    {
        let reason = match output::text(&forecast["then"], "reason") {
            "attempts" => "no retries left",
            "expired" => "deadline",
            "no_policy" => "no retry policy",
            "final" => "final error",
            other => other,
        };
        view.line(format!("  at worst {then} {} ({reason})", out.at(at, now)));
    }
    if open {
        view.line(format!("  blocked  {}", blocked(context, &task).await?));
    }
    let name = output::short(&task["id"]);
    match output::text(&task, "state") {
        "paused" => view.line(format!("  do       comeback task resume {name}      comeback task cancel {name}")),
        "succeeded" | "canceled" | "skipped" => {}
        // It runs already: a retry would change nothing.
        "running" | "claimed" => view.line(format!("  do       comeback task cancel {name}")),
        _ if open => view.line(format!("  do       comeback task retry {name}      comeback task cancel {name}")),
        _ => view.line(format!("  do       comeback task retry {name}")),
    }
    view.print(out)
}

/// The reason a task cannot run: its own, or a paused loop.
async fn blocked(context: &Context, task: &Value) -> Result<String, CliError> {
    if let Some(reason) = task["blocked"].as_str() {
        return Ok(reason.to_owned());
    }
    let needed = match output::text(task, "state") {
        "retry_pending" => "retries",
        "waiting" => "starts",
        _ => return Ok("no".into()),
    };
    let loops = context.client.get("/api/v1/admin/loops").await?;
    let paused = output::items(&loops).any(|it| it["name"] == needed && it["paused"] == true);
    Ok(if paused { format!("loop {needed} is paused (comeback loop resume {needed})") } else { "no".into() })
}

async fn attempts(context: &Context, id: &str) -> Result<u8, CliError> {
    let listed = attempts_of(context, &context.resolve(id).await?).await?;
    let table = attempts_table(&listed, context.now().await?, &context.out);
    View::table(listed, table).hint_if_empty("no attempts yet").print(&context.out)
}

pub async fn attempts_of(context: &Context, id: &str) -> Result<Value, CliError> {
    Ok(context.client.get(&format!("/api/v1/tasks/{id}/attempts?limit=500")).await?)
}

pub fn attempts_table(listed: &Value, now: Timestamp, out: &Output) -> Table {
    let mut table = Table::new(&["RUN", "ATTEMPT", "OUTCOME", "STARTED", "TOOK", "WORKER", "THEN", "ERROR"]);
    for it in output::items(listed) {
        let took = it["duration_ms"].as_u64().map_or_else(|| "–".into(), |ms| span(Millis(ms)));
        let delay = it["decision"]["delay"]["total_ms"].as_u64().map(|ms| format!("retry {}", soon(Millis(ms))));
        table.rows.push(vec![
            it["run"].to_string().into(),
            it["number"].to_string().into(),
            output::text(it, "outcome").into(),
            out.time_cell(&it["started_at"], now),
            took.into(),
            output::text(it, "worker").into(),
            delay.unwrap_or_else(|| output::text(&it["decision"], "reason").to_owned()).into(),
            it["error"]["message"].as_str().unwrap_or("").into(),
        ]);
    }
    table
}

async fn act_on(context: &Context, which: TaskSelection, verb: &str, body: Value) -> Result<u8, CliError> {
    match which {
        TaskSelection { id: Some(id), .. } => act(context, &id, verb, body).await,
        TaskSelection { bulk, .. } => operations::start(context, bulk, verb, without_defaults(body)).await,
    }
}

/// The body without fields that are null or false.
fn without_defaults(body: Value) -> Value {
    match body {
        Value::Object(fields) => {
            let given = |value: &Value| !value.is_null() && *value != Value::Bool(false);
            Value::Object(fields.into_iter().filter(|(_, value)| given(value)).collect())
        }
        other => other,
    }
}

/// Posts an action on one task and prints its new state.
pub async fn act(context: &Context, id: &str, verb: &str, body: Value) -> Result<u8, CliError> {
    let id = context.resolve(id).await?;
    let body = without_defaults(body);
    let answer = context.client.act(&id, verb, &body).await.map_err(|error| wrong_state(&id, verb, error))?;
    if context.out.is_json() {
        context.out.json(&answer);
        return Ok(code::OK);
    }
    let task = &answer["task"];
    let now = context.now().await?;
    let when = instant(due(task)).map(|at| format!("   due {}", context.out.at(at, now))).unwrap_or_default();
    let place = answer["queue_position"].as_u64().map(|n| format!("   position {n} in its queue")).unwrap_or_default();
    outln!("{}  {}{when}{place}", output::short(&task["id"]), output::state(task).show(&context.out));
    if let Some(version) = answer["payload"]["version"].as_u64() {
        outln!("  payload  version {version}: {}", differences(&answer["payload"]["diff"]));
    }
    Ok(code::OK)
}

fn differences(diff: &Value) -> String {
    let word = |value: &Value| if value.is_null() { "none".to_owned() } else { value.to_string() };
    let change = |it: &Value| format!("{} {} → {}", output::text(it, "path"), word(&it["before"]), word(&it["after"]));
    diff.as_array().into_iter().flatten().map(change).collect::<Vec<_>>().join(", ")
}

/// Error for an action that the state of the task does not allow.
fn wrong_state(id: &str, verb: &str, error: comeback_client::Error) -> CliError {
    let state = error.problem().filter(|problem| problem.kind == "wrong-state").and_then(|it| it.more.get("state"));
    let Some(state) = state.and_then(Value::as_str) else { return error.into() };
    let name = output::short(&id.into());
    let done = match verb {
        "cancel" => "canceled",
        "retry" => "retried",
        "pause" => "paused",
        "resume" => "resumed",
        "snooze" => "snoozed",
        _ => "rescheduled",
    };
    CliError::new(code::USAGE, format!("{name} was not {done}"))
        .why(match state {
            "succeeded" | "failed" => format!("it has {state}"),
            "retry_pending" => "it is waiting for a retry".to_owned(),
            other => format!("it is {other}"),
        })
        .remedy(format!("comeback task why {name}"))
}
