//! Schedules: work started by cron, interval or event.

use std::path::PathBuf;

use comeback_core::schedule::Times;
use comeback_core::{Millis, Timestamp};
use comeback_engine::{Clock, SystemClock};
use serde_json::{Value, json};

use super::Context;
use super::resource::{Resource, object, read_json};
use super::workflow::read;
use crate::args::{PutScheduleArgs, ScheduleCommand, TimesArgs};
use crate::error::{CliError, code};
use crate::output::{self, Cell, Output, Paint, Table, View, instant};
use crate::watch;

pub async fn run(
    context: impl FnOnce() -> Result<Context, CliError>,
    out: &Output,
    command: ScheduleCommand,
) -> Result<u8, CliError> {
    match command {
        ScheduleCommand::Next { times, count, after } => next(out, &times, count, after.as_deref()),
        other => online(&context()?, other).await,
    }
}

const SCHEDULES: Resource = Resource { noun: "schedule", collection: "/api/v1/schedules" };

async fn online(context: &Context, command: ScheduleCommand) -> Result<u8, CliError> {
    match command {
        ScheduleCommand::Put(args) => {
            let put = SCHEDULES.put(context, &args.name, &body(&args)?).await?;
            let words = match (instant(&put["next"][0]), put["event"].as_str()) {
                (Some(next), _) => format!("fires {}", context.out.at(next, context.now().await?)),
                (None, Some(event)) => format!("waits for {event}"),
                (None, None) => output::text(&put, "state").to_owned(),
            };
            let paused = if put["state"] == "paused" { "; it is paused" } else { "" };
            View::message(put, format!("schedule {} saved: {words}{paused}", args.name)).print(&context.out)
        }
        ScheduleCommand::List { watch } => watch::show(&context.out, &watch, || list(context)).await,
        ScheduleCommand::Get { name } => show(context, SCHEDULES.get(context, &name).await?).await,
        ScheduleCommand::Pause { name, note } => {
            let paused = SCHEDULES.act(context, &name, "pause", &json!({"note": note})).await?;
            let words = format!("schedule {name} paused; resume it: comeback schedule resume {name}");
            View::message(paused, words).print(&context.out)
        }
        ScheduleCommand::Resume { name } => {
            let resumed = SCHEDULES.act(context, &name, "resume", &json!({})).await?;
            let words = match instant(&resumed["next"][0]) {
                Some(next) => format!("; fires {}", context.out.at(next, context.now().await?)),
                None if resumed["event"].is_string() => String::new(),
                None => "; it has no more times to fire".to_owned(),
            };
            View::message(resumed, format!("schedule {name} resumed{words}")).print(&context.out)
        }
        ScheduleCommand::Trigger { name } => {
            let run = SCHEDULES.act(context, &name, "trigger", &json!({})).await?;
            let words = format!("schedule {name} fired: {}", started(&run));
            View::message(run, words).print(&context.out)
        }
        ScheduleCommand::Tell { event, data, id } => {
            let remedy = "--data '{\"order\": 42}'";
            let data = data.as_deref().map(|text| read_json("--data", text, remedy)).transpose()?;
            let body = json!({"type": event, "id": id, "data": data});
            show_event(context, context.client.post("/api/v1/events", &body).await?)
        }
        ScheduleCommand::Delete { name } => {
            let deleted = SCHEDULES.delete(context, &name).await?;
            View::message(deleted, format!("schedule {name} deleted")).print(&context.out)
        }
        ScheduleCommand::Next { .. } => Ok(0),
    }
}

fn body(args: &PutScheduleArgs) -> Result<Value, CliError> {
    let times = &args.times;
    let input = args.input.as_deref().map(|text| read_json("--input", text, "--input '{\"day\": 1}'")).transpose()?;
    let task = |file: &PathBuf| read_json("the task", &read(file)?, "a file such as {\"kind\": \"report\"}");
    Ok(object([
        ("catch_up", Some(json!(args.catch_up))),
        ("overlap", Some(json!(args.overlap))),
        ("paused", Some(json!(args.paused))),
        ("cron", times.cron.clone().map(Value::from)),
        ("every", times.every.clone().map(Value::from)),
        ("event", times.event.clone().map(Value::from)),
        ("time_zone", times.time_zone.clone().map(Value::from)),
        ("start_at", times.start_at.clone().map(Value::from)),
        ("end_at", times.end_at.clone().map(Value::from)),
        ("workflow", args.workflow.clone().map(Value::from)),
        ("version", args.version.map(Value::from)),
        ("input", input),
        ("task", args.task.as_ref().map(task).transpose()?),
        ("catch_up_limit", args.catch_up_limit.map(Value::from)),
        ("note", args.note.clone().map(Value::from)),
    ]))
}

fn state(schedule: &Value) -> Cell {
    match output::text(schedule, "state") {
        "paused" => Cell::painted("⏸ paused", Paint::Magenta),
        "error" => Cell::painted("✕ error", Paint::Red),
        "stopped" => Cell::painted("■ ended", Paint::Dim),
        "active" => Cell::painted("▶ active", Paint::Blue),
        _ => "▶ not run yet".into(),
    }
}

/// When it fires: the cron expression, interval or event type.
fn trigger(schedule: &Value) -> String {
    match (schedule["cron"].as_str(), schedule["every_ms"].as_u64()) {
        (Some(cron), _) => format!("{cron} ({})", output::text(schedule, "time_zone")),
        (None, Some(span)) => format!("every {}", Millis(span)),
        (None, None) => schedule["event"].as_str().map(|event| format!("on {event}")).unwrap_or_default(),
    }
}

/// Prints the outcome of an event per schedule.
fn show_event(context: &Context, published: Value) -> Result<u8, CliError> {
    let mut table = Table::new(&["SCHEDULE", "OUTCOME", "WHAT"]);
    for it in published["schedules"].as_array().into_iter().flatten() {
        let what = match it["message"].as_str() {
            Some(why) => why.to_owned(),
            None if output::text(it, "outcome") == "skipped" => "the previous run is still open".to_owned(),
            None => started(it),
        };
        table.rows.push(vec![output::text(it, "schedule").into(), output::text(it, "outcome").into(), what.into()]);
    }
    let event = output::text(&published, "type").to_owned();
    let hint = format!("no schedule waits for {event}; create one: comeback schedule put NAME --event {event} …");
    View::table(published, table).hint_if_empty(hint).print(&context.out)
}

/// The workflow or task that a schedule starts.
fn target(schedule: &Value) -> String {
    match schedule["workflow"].as_str() {
        Some(path) => format!("workflow {path}"),
        None => format!("task {}", output::text(&schedule["task"], "kind")),
    }
}

/// The execution or task that a firing started.
fn started(run: &Value) -> String {
    match run["execution_id"].is_string() {
        true => format!("execution {}", output::short(&run["execution_id"])),
        false => format!("task {}", output::short(&run["task_id"])),
    }
}

async fn list(context: &Context) -> Result<View, CliError> {
    let found = SCHEDULES.list(context).await?;
    let now = context.now().await?;
    let mut table = Table::new(&["NAME", "STATE", "WHEN", "STARTS", "NEXT", "LAST"]);
    for it in output::items(&found) {
        let last = &it["last_run"]["scheduled_at"];
        table.rows.push(vec![
            output::text(it, "name").into(),
            state(it),
            trigger(it).into(),
            target(it).into(),
            context.out.time_cell(&it["next"][0], now),
            context.out.time_cell(last, now),
        ]);
    }
    Ok(View::table(found, table).hint_if_empty("no schedules; create one: comeback schedule put NAME --cron …"))
}

async fn show(context: &Context, schedule: Value) -> Result<u8, CliError> {
    let now = context.now().await?;
    let shown = |at: &Value| instant(at).map_or_else(|| "–".to_owned(), |at| context.out.at(at, now));
    let mut lines = vec![
        format!("{}  {}", state(&schedule).show(&context.out), output::text(&schedule, "name")),
        format!("  when     {}", trigger(&schedule)),
        format!("  starts   {}", target(&schedule)),
    ];
    if let Some(note) = schedule["note"].as_str() {
        lines.push(format!("  note     {note}"));
    }
    let next: Vec<String> = schedule["next"].as_array().into_iter().flatten().map(shown).collect();
    lines.push(format!("  next     {}", if next.is_empty() { "never".to_owned() } else { next.join(", ") }));
    let run = &schedule["last_run"];
    if run.is_object() {
        lines.push(format!("  last     {}: {}", shown(&run["scheduled_at"]), started(run)));
    }
    let error = &schedule["last_error"];
    if error.is_object() {
        lines.push(format!("  error    {}: {}", shown(&error["scheduled_at"]), output::text(error, "message")));
    }
    let count = |name: &str| format!("{} {name}", output::grouped(schedule[name].as_u64().unwrap_or(0)));
    let counts = ["fired", "missed", "skipped", "failed"].map(count).join(", ");
    lines.push(format!("  runs     {counts}"));
    View::lines_of(schedule, lines).print(&context.out)
}

/// Computes the next times with the code of the server, without a server.
fn next(out: &Output, args: &TimesArgs, count: u16, after: Option<&str>) -> Result<u8, CliError> {
    let wrong = |what: String| CliError::new(code::USAGE, "cannot compute the next times").why(what);
    let at = |text: &Option<String>| {
        let read = text.as_deref().map(Timestamp::parse_rfc3339).transpose();
        read.map_err(|error| wrong(error.to_string()).remedy("write it as 2030-01-31T09:00:00Z"))
    };
    let after = match after {
        Some(text) => at(&Some(text.to_owned()))?.unwrap_or_default(),
        None => SystemClock::new().now(),
    };
    let every = args.every.as_deref().map(Millis::parse).transpose();
    let times = Times {
        cron: args.cron.clone(),
        every: every.map_err(|error| wrong(error.to_string()).remedy("write it as 90s, 5m or 1h30m"))?,
        time_zone: args.time_zone.clone(),
        start_at: at(&args.start_at)?,
        end_at: at(&args.end_at)?,
        anchor: after,
        event: args.event.clone(),
    };
    let calendar = times.read().map_err(|faults| wrong(faults.to_string()).remedy("comeback help schedule next"))?;
    let instants: Vec<String> = calendar.coming(after).take(usize::from(count)).map(|at| at.to_rfc3339()).collect();
    let mut view = View::new(json!({"after": after.to_rfc3339(), "next": instants}));
    if instants.is_empty() {
        view.line("never");
    }
    instants.into_iter().for_each(|at| view.line(at));
    view.print(out)
}
