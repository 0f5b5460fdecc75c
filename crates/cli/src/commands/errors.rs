//! Error groups: similar errors and their triage.

use serde_json::{Value, json};

use super::Context;
use super::numbers::percent;
use super::resource::{Resource, object, pick};
use crate::args::ErrorCommand;
use crate::error::{CliError, code};
use crate::output::{self, Cell, Paint, Table, View, outln};

const ERRORS: Resource = Resource { noun: "error", collection: "/api/v1/errors" };

pub async fn run(context: &Context, command: ErrorCommand) -> Result<u8, CliError> {
    match command {
        ErrorCommand::List { state, kind, limit } => list(context, state, kind, limit).await,
        ErrorCommand::Get { fingerprint, within } => {
            let name = resolve(context, &fingerprint).await?;
            let group = context.client.get_with(&ERRORS.path(&name), &[("within", within)]).await;
            show(context, group.map_err(|error| ERRORS.failure(&name, error))?).await
        }
        ErrorCommand::Resolve { fingerprint, note } => {
            act(
                context,
                &fingerprint,
                json!({"action": "resolve"}),
                note,
                "resolved; it becomes regressed if it occurs again",
            )
            .await
        }
        ErrorCommand::Ignore { fingerprint, span, note } => {
            let words = span.as_ref().map_or("ignored".to_owned(), |span| format!("ignored for {span}"));
            let body = object([("action", Some(json!("ignore"))), ("for", span.map(Value::from))]);
            act(context, &fingerprint, body, note, &words).await
        }
        ErrorCommand::Open { fingerprint, note } => {
            act(context, &fingerprint, json!({"action": "open"}), note, "reopened").await
        }
        ErrorCommand::Classify { fingerprint, class, note } => {
            let words = match class.as_str() {
                "policy" => "override removed; policies classify it again".to_owned(),
                class => format!("classified as {class} from now on, whatever the policy says"),
            };
            act(context, &fingerprint, json!({"action": "classify", "class": class}), note, &words).await
        }
        ErrorCommand::Note { fingerprint, note } => {
            act(context, &fingerprint, json!({"action": "note"}), Some(note), "note saved").await
        }
    }
}

/// The fingerprint that `text` is, or starts.
async fn resolve(context: &Context, text: &str) -> Result<String, CliError> {
    if text.len() >= 16 {
        return Ok(text.to_owned());
    }
    let listed = ERRORS.list(context).await?;
    let found = output::items(&listed).map(|it| output::text(it, "fingerprint")).filter(|it| it.starts_with(text));
    pick(ERRORS.noun, text, found.collect())
}

async fn act(
    context: &Context,
    fingerprint: &str,
    mut body: Value,
    note: Option<String>,
    words: &str,
) -> Result<u8, CliError> {
    let name = resolve(context, fingerprint).await?;
    if let Some(note) = note {
        body["note"] = note.into();
    }
    let group = context.client.post(&ERRORS.path(&name), &body).await;
    let group = group.map_err(|error| ERRORS.failure(&name, error))?;
    if context.out.is_json() {
        context.out.json(&group);
    } else {
        outln!("{} {}: {words}", output::text(&group, "kind"), output::text(&group, "title"));
    }
    Ok(code::OK)
}

fn triage(group: &Value) -> Cell {
    match output::text(group, "state") {
        "regressed" => Cell::painted("↺ regressed", Paint::Red),
        "resolved" => Cell::painted("✓ resolved", Paint::Green),
        "ignored" => Cell::painted("– ignored", Paint::Dim),
        _ => Cell::painted("● open", Paint::Yellow),
    }
}

const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

fn sparkline(series: &Value) -> String {
    let counts: Vec<u64> = series.as_array().into_iter().flatten().filter_map(Value::as_u64).collect();
    let most = counts.iter().copied().max().unwrap_or(0).max(1);
    let bar = |count: &u64| BARS[usize::try_from(count * 7 / most).unwrap_or(0)];
    counts.iter().map(bar).collect()
}

async fn list(context: &Context, state: Option<String>, kind: Option<String>, limit: u32) -> Result<u8, CliError> {
    let mut query = vec![("limit", limit.to_string())];
    query.extend(state.map(|state| ("state", state)));
    query.extend(kind.map(|kind| ("kind", kind)));
    let groups = context.client.get_with(ERRORS.collection, &query).await?;
    let now = context.now().await?;
    let mut head = vec!["FINGERPRINT", "STATE", "KIND", "ERROR", "CLASS", "OPEN", "SEEN", "HELPED", "LAST"];
    if context.out.terminal {
        head.push("24H");
    }
    let mut table = Table::new(&head);
    for it in output::items(&groups) {
        let class = it["reclassified"]
            .as_str()
            .map_or_else(|| output::text(it, "class").to_owned(), |class| format!("{class} (override)"));
        let mut row = vec![
            output::text(it, "fingerprint").into(),
            triage(it),
            output::text(it, "kind").into(),
            title(it).into(),
            class.into(),
            it["open"].to_string().into(),
            it["count"].to_string().into(),
            percent(&it["helped"]).into(),
            context.out.age(&it["last_seen"], now),
        ];
        if context.out.terminal {
            row.push(sparkline(&it["series"]).into());
        }
        table.rows.push(row);
    }
    View::table(groups, table).hint_if_empty("no errors; a failed attempt creates a group").print(&context.out)
}

/// The title with the HTTP status or the error type in front.
fn title(group: &Value) -> String {
    let title = output::text(group, "title");
    match (group["status"].as_u64(), group["type"].as_str()) {
        (Some(status), _) => format!("{status} {title}"),
        (None, Some(kind)) => format!("{kind}: {title}"),
        (None, None) => title.to_owned(),
    }
}

async fn show(context: &Context, group: Value) -> Result<u8, CliError> {
    let now = context.now().await?;
    let mut view = View::new(group.clone());
    let out = &context.out;
    let text = |name: &str| output::text(&group, name);
    view.line(format!("{}  {}  {}", triage(&group).show(out), text("kind"), title(&group)));
    let at = |name: &str| output::instant(&group[name]).map(|at| out.at(at, now)).unwrap_or_default();
    view.line(format!(
        "  seen     {}, first {}, last {}",
        output::plural(group["count"].as_u64().unwrap_or(0), "time"),
        at("first_seen"),
        at("last_seen")
    ));
    let class = match group["reclassified"].as_str() {
        Some(class) => format!("{class}, set by {}", group["by"].as_str().unwrap_or("an operator")),
        None => text("class").to_owned(),
    };
    view.line(format!("  class    {class}"));
    view.line(format!(
        "  tasks    {} open now, {} recovered   comeback task list {}",
        group["open"],
        group["recovered"],
        text("filter")
    ));
    view.line(format!("  sample   {}", output::text(&group["sample"], "message")));
    if let Some(note) = group["note"].as_str() {
        view.line(format!("  note     {note}"));
    }
    for it in group["by_attempt"].as_array().into_iter().flatten() {
        view.line(format!(
            "  try {:<4} {} succeeded of {}  {}",
            output::text(it, "value"),
            it["succeeded"],
            it["success"]["n"],
            percent(&it["success"])
        ));
    }
    let name = text("fingerprint");
    view.line(format!("  do       comeback error resolve {name}      comeback error classify {name} final"));
    view.print(out)
}
