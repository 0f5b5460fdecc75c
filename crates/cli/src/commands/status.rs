//! `status`: whether anything needs attention, in a few lines and by the exit code.

use comeback_core::{Millis, Timestamp};
use serde_json::{Value, json};

use super::Context;
use crate::args::WatchArgs;
use crate::error::{CliError, code};
use crate::output::{self, Cell, Output, Paint, View, instant, plural, span};
use crate::watch;

/// Work overdue by less is not reported.
pub const TOLERANCE: Millis = Millis::from_secs(10);

pub async fn run(context: &Context, watch: &WatchArgs) -> Result<u8, CliError> {
    watch::show(&context.out, watch, || view(context)).await
}

async fn view(context: &Context) -> Result<View, CliError> {
    let client = &context.client;
    let stats = client.get("/api/v1/stats").await?;
    let loops = client.get("/api/v1/admin/loops").await?;
    let stuck = client.get("/api/v1/admin/tasks/stuck").await?;
    let instances = client.get("/api/v1/admin/instances").await?;
    let now = instant(&stats["now"]).unwrap_or(Timestamp(0));
    let concerns = concerns(&stats, &loops, &stuck, now, &context.out);
    let paused: Vec<&str> =
        output::items(&loops).filter(|it| it["paused"] == true).map(|it| output::text(it, "name")).collect();
    let stuck = output::items(&stuck).count();
    let mut view = View::new(json!({
        "healthy": concerns.is_empty(), "stats": stats, "paused_loops": paused, "stuck": stuck,
        "concerns": concerns.iter().map(|it| json!({"what": it.what, "do": it.remedy})).collect::<Vec<_>>(),
    }));
    let held = |state: &str| stats["held"][state].as_u64().unwrap_or(0);
    // Held tasks are counted once, as in the dashboard.
    let count = |state: &str| match state {
        "held" => output::grouped(all_held(&stats)),
        _ => output::grouped(stats["by_state"][state].as_u64().unwrap_or(0).saturating_sub(held(state))),
    };
    let servers = plural(output::items(&instances).count() as u64, "instance");
    let health = match concerns.is_empty() {
        true => Cell::painted("✓ healthy", Paint::Green),
        false => Cell::painted("! attention", Paint::Yellow),
    };
    view.line(format!("{}   {}   {servers}", health.show(&context.out), client.server()));
    let line = |names: &[(&str, &str)]| {
        let parts: Vec<String> = names.iter().map(|(word, state)| format!("{word} {}", count(state))).collect();
        format!("  {}", parts.join("   "))
    };
    view.line(line(&[
        ("running", "running"),
        ("pending", "pending"),
        ("retrying", "retry_pending"),
        ("waiting", "waiting"),
        ("held", "held"),
    ]));
    view.line(line(&[("succeeded", "succeeded"), ("failed", "failed"), ("dead", "dead"), ("canceled", "canceled")]));
    if let Some(next) = next_due(&stats).filter(|next| *next >= now) {
        view.line(format!("  next due {}", context.out.at(next, now)));
    }
    for concern in &concerns {
        view.line(format!("  ! {}   {}", concern.what, concern.remedy));
    }
    view.code = if concerns.is_empty() { code::OK } else { code::ATTENTION };
    Ok(view)
}

/// Number of held tasks, in all states.
pub fn all_held(stats: &Value) -> u64 {
    stats["held"].as_object().into_iter().flatten().filter_map(|(_, count)| count.as_u64()).sum()
}

/// The earliest due time.
pub fn next_due(stats: &Value) -> Option<Timestamp> {
    ["retry", "start"].iter().filter_map(|name| instant(&stats["next"][*name])).min()
}

/// A finding with its remedy.
pub struct Concern {
    pub what: String,
    pub remedy: String,
}

fn concerns(stats: &Value, loops: &Value, stuck: &Value, now: Timestamp, out: &Output) -> Vec<Concern> {
    let mut found = Vec::new();
    let mut add = |what: String, remedy: String| found.push(Concern { what, remedy });
    if let Some(dead) = stats["by_state"]["dead"].as_u64().filter(|dead| *dead > 0) {
        let are = if dead == 1 { "is" } else { "are" };
        add(format!("{} {are} dead", plural(dead, "task")), "comeback task list state:dead".into());
    }
    for it in output::items(loops).filter(|it| it["paused"] == true) {
        let (name, note) = (output::text(it, "name"), output::text(it, "note"));
        let until = instant(&it["resumes_at"]).map(|at| format!(", resumes {}", out.at(at, now))).unwrap_or_default();
        let note = if note.is_empty() { String::new() } else { format!(" ({note})") };
        add(format!("the loop {name} is paused{until}{note}"), format!("comeback loop resume {name}"));
    }
    let stuck = output::items(stuck).count() as u64;
    if stuck > 0 {
        add(format!("{} lost their lease and are not reaped yet", plural(stuck, "run")), "comeback doctor".into());
    }
    if let Some(late) = next_due(stats).map(|next| now.since(next)).filter(|late| *late > TOLERANCE) {
        add(format!("work is overdue by up to {}", span(late)), "comeback doctor".into());
    }
    found
}
