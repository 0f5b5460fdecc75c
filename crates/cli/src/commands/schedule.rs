//! Schedules: what starts by itself.

use comeback_core::schedule::Times;
use comeback_core::{Millis, Timestamp};
use comeback_engine::{Clock, SystemClock};
use serde_json::{Value, json};

use super::workflow::read;
use super::{Context, unknown};
use crate::args::{PutScheduleArgs, ScheduleCommand, TimesArgs};
use crate::failure::{Failure, code};
use crate::output::{self, Cell, Output, Paint, Table, View, instant};
use crate::watch;

pub async fn run(
    context: impl FnOnce() -> Result<Context, Failure>,
    out: &Output,
    command: ScheduleCommand,
) -> Result<u8, Failure> {
    match command {
        ScheduleCommand::Next { times, count, after } => next(out, &times, count, after.as_deref()),
        other => online(&context()?, other).await,
    }
}

fn at(name: &str) -> String {
    format!("/api/v1/schedules/{}", name.replace('/', "%2F"))
}

async fn online(context: &Context, command: ScheduleCommand) -> Result<u8, Failure> {
    let client = &context.client;
    match command {
        ScheduleCommand::Put(args) => {
            let put = client.put(&at(&args.name), &body(&args)?).await?;
            let words = match instant(&put["next"][0]) {
                Some(next) => format!("{} fires {}", args.name, context.out.at(next, context.now().await?)),
                None => format!("{} is {}", args.name, output::text(&put, "state")),
            };
            View::said(put, words).print(&context.out)
        }
        ScheduleCommand::List { watch } => watch::show(&context.out, &watch, || list(context)).await,
        ScheduleCommand::Show { name } => {
            show(context, client.get(&at(&name)).await.map_err(|error| unknown("schedule", &name, error))?).await
        }
        ScheduleCommand::Pause { name, note } => {
            let paused = client
                .post(&format!("{}/pause", at(&name)), &json!({"note": note}))
                .await
                .map_err(|error| unknown("schedule", &name, error))?;
            View::said(paused, format!("{name} is paused: comeback schedule resume {name}")).print(&context.out)
        }
        ScheduleCommand::Resume { name } => {
            let resumed = client
                .post(&format!("{}/resume", at(&name)), &json!({}))
                .await
                .map_err(|error| unknown("schedule", &name, error))?;
            let words = match instant(&resumed["next"][0]) {
                Some(next) => format!("{name} fires {}", context.out.at(next, context.now().await?)),
                None => format!("{name} is over"),
            };
            View::said(resumed, words).print(&context.out)
        }
        ScheduleCommand::Trigger { name } => {
            let run = client
                .post(&format!("{}/trigger", at(&name)), &json!({}))
                .await
                .map_err(|error| unknown("schedule", &name, error))?;
            let words = format!("{name} was fired by hand: {}", started(&run));
            View::said(run, words).print(&context.out)
        }
        ScheduleCommand::Tell { event, data, id } => {
            let data = data.as_deref().map(|text| json_of(text, "--data")).transpose()?;
            let told = client.post("/api/v1/events", &json!({"type": event, "id": id, "data": data})).await?;
            heard(context, told)
        }
        ScheduleCommand::Delete { name } => {
            let gone = client.delete(&at(&name)).await.map_err(|error| unknown("schedule", &name, error))?;
            View::said(gone, format!("{name} is deleted")).print(&context.out)
        }
        ScheduleCommand::Next { .. } => Ok(0),
    }
}

fn json_of(text: &str, what: &str) -> Result<Value, Failure> {
    serde_json::from_str(text).map_err(|error| {
        Failure::new(code::USAGE, format!("{what} is no JSON")).why(error.to_string()).remedy("write JSON")
    })
}

fn body(args: &PutScheduleArgs) -> Result<Value, Failure> {
    let times = &args.times;
    let mut body = json!({"catch_up": args.catch_up, "overlap": args.overlap, "paused": args.paused});
    let fields = [
        ("cron", times.cron.clone().map(Value::from)),
        ("every", times.every.clone().map(Value::from)),
        ("event", times.event.clone().map(Value::from)),
        ("time_zone", times.time_zone.clone().map(Value::from)),
        ("start_at", times.start_at.clone().map(Value::from)),
        ("end_at", times.end_at.clone().map(Value::from)),
        ("workflow", args.workflow.clone().map(Value::from)),
        ("version", args.version.map(Value::from)),
        ("input", args.input.as_deref().map(|text| json_of(text, "--input")).transpose()?),
        ("task", args.task.as_deref().map(|file| json_of(&read(file)?, "the task")).transpose()?),
        ("catch_up_limit", args.catch_up_limit.map(Value::from)),
        ("note", args.note.clone().map(Value::from)),
    ];
    for (name, value) in fields {
        if let Some(value) = value {
            body[name] = value;
        }
    }
    Ok(body)
}

fn state(schedule: &Value) -> Cell {
    match output::text(schedule, "state") {
        "paused" => Cell::painted("⏸ paused", Paint::Magenta),
        "error" => Cell::painted("✕ error", Paint::Red),
        "stopped" => Cell::painted("■ over", Paint::Dim),
        "active" => Cell::painted("▶ active", Paint::Blue),
        _ => "▶ new".into(),
    }
}

/// When, in the words in which it was given.
fn rhythm(schedule: &Value) -> String {
    match (schedule["cron"].as_str(), schedule["every_ms"].as_u64()) {
        (Some(cron), _) => format!("{cron} ({})", output::text(schedule, "time_zone")),
        (None, Some(span)) => format!("every {}", Millis(span)),
        (None, None) => schedule["event"].as_str().map(|event| format!("on {event}")).unwrap_or_default(),
    }
}

/// What an event came to, schedule by schedule.
fn heard(context: &Context, told: Value) -> Result<u8, Failure> {
    let mut table = Table::new(&["SCHEDULE", "OUTCOME", "WHAT"]);
    for it in told["schedules"].as_array().into_iter().flatten() {
        let what = match it["message"].as_str() {
            Some(why) => why.to_owned(),
            None if output::text(it, "outcome") == "skipped" => "the run before is still open".to_owned(),
            None => started(it),
        };
        table.rows.push(vec![output::text(it, "schedule").into(), output::text(it, "outcome").into(), what.into()]);
    }
    let nobody = table.rows.is_empty();
    let hint = format!("no schedule waits for {}: comeback schedule put NAME --event …", output::text(&told, "type"));
    let view = View::table(told, table);
    (if nobody { view.with_hint(hint) } else { view }).print(&context.out)
}

fn starts(schedule: &Value) -> String {
    match schedule["workflow"].as_str() {
        Some(path) => format!("workflow {path}"),
        None => format!("task {}", output::text(&schedule["task"], "kind")),
    }
}

fn started(run: &Value) -> String {
    match run["execution_id"].is_string() {
        true => format!("execution {}", output::short(&run["execution_id"])),
        false => format!("task {}", output::short(&run["task_id"])),
    }
}

async fn list(context: &Context) -> Result<View, Failure> {
    let found = context.client.get_with("/api/v1/schedules", &[("limit", "500".into())]).await?;
    let now = context.now().await?;
    let mut table = Table::new(&["NAME", "STATE", "WHEN", "STARTS", "NEXT", "LAST"]);
    for it in output::items(&found) {
        let last = &it["last_run"]["scheduled_at"];
        table.rows.push(vec![
            output::text(it, "name").into(),
            state(it),
            rhythm(it).into(),
            starts(it).into(),
            context.out.time_cell(&it["next"][0], now),
            context.out.time_cell(last, now),
        ]);
    }
    let empty = table.rows.is_empty();
    let view = View::table(found, table);
    Ok(if empty { view.with_hint("there are no schedules: comeback schedule put NAME --cron …") } else { view })
}

async fn show(context: &Context, schedule: Value) -> Result<u8, Failure> {
    let now = context.now().await?;
    let told = |at: &Value| instant(at).map_or_else(|| "–".to_owned(), |at| context.out.at(at, now));
    let mut lines = vec![
        format!("{}  {}", state(&schedule).show(&context.out), output::text(&schedule, "name")),
        format!("  when     {}", rhythm(&schedule)),
        format!("  starts   {}", starts(&schedule)),
    ];
    if let Some(note) = schedule["note"].as_str() {
        lines.push(format!("  note     {note}"));
    }
    let next: Vec<String> = schedule["next"].as_array().into_iter().flatten().map(told).collect();
    lines.push(format!("  next     {}", if next.is_empty() { "never".to_owned() } else { next.join(", ") }));
    let run = &schedule["last_run"];
    if run.is_object() {
        lines.push(format!("  last     {}: {}", told(&run["scheduled_at"]), started(run)));
    }
    let error = &schedule["last_error"];
    if error.is_object() {
        lines.push(format!("  error    {}: {}", told(&error["scheduled_at"]), output::text(error, "message")));
    }
    let count = |name: &str| format!("{} {name}", output::grouped(schedule[name].as_u64().unwrap_or(0)));
    let counts = ["fired", "missed", "skipped", "failed"].map(count).join(", ");
    lines.push(format!("  so far   {counts}"));
    let mut view = View::new(schedule);
    lines.into_iter().for_each(|line| view.line(line));
    view.print(&context.out)
}

/// Pure: the same arithmetic as the server's, and no server.
fn next(out: &Output, args: &TimesArgs, count: u16, after: Option<&str>) -> Result<u8, Failure> {
    let wrong = |what: String| Failure::new(code::USAGE, "these instants cannot be told").why(what);
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
