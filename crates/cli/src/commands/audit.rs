//! The audit log.

use std::io::Write;

use comeback_core::{Millis, Timestamp};
use serde_json::Value;

use super::Context;
use crate::args::{AuditArgs, ExportFormat};
use crate::error::{CliError, code};
use crate::output::{self, Table, View};

pub async fn run(context: &Context, args: AuditArgs) -> Result<u8, CliError> {
    let mut query: Vec<(&str, String)> = Vec::new();
    let fields = [("actor", args.actor), ("act", args.act), ("subject", args.subject)];
    query.extend(fields.into_iter().filter_map(|(name, value)| Some((name, value?))));
    for (name, value) in [("since", args.since), ("until", args.until)] {
        if let Some(value) = value {
            query.push((name, parse_time(context, name, &value).await?.to_rfc3339()));
        }
    }
    if args.all {
        query.push(("all", "true".into()));
    }
    if let Some(format) = args.export {
        return export(context, format, &query).await;
    }
    query.push(("limit", args.limit.to_string()));
    let acts = context.client.get_with("/api/v1/admin/audit", &query).await?;
    let now = context.now().await?;
    let mut table = Table::new(&["WHEN", "WHO", "ACT", "SUBJECT", "CHANGED", "NOTE"]);
    for it in output::items(&acts) {
        table.rows.push(vec![
            context.out.time_cell(&it["at"], now),
            actor(it).into(),
            output::text(it, "act").into(),
            subject(context, it).into(),
            changed(it).into(),
            output::text(it, "note").into(),
        ]);
    }
    let more = acts["next_cursor"].is_string();
    let view = View::table(acts, table);
    let view = if more { view.with_hint("there are more: --limit 500, or --export ndjson for all") } else { view };
    view.print(&context.out)
}

/// A time, or a duration before now.
async fn parse_time(context: &Context, name: &str, text: &str) -> Result<Timestamp, CliError> {
    if let Ok(at) = Timestamp::parse_rfc3339(text) {
        return Ok(at);
    }
    let span = Millis::parse(text).map_err(|error| {
        CliError::new(code::USAGE, format!("invalid --{name} `{text}`"))
            .why(error.to_string())
            .remedy(format!("--{name} 2030-01-31T09:00:00Z, or --{name} 24h for a day ago"))
    })?;
    Ok(Timestamp(context.now().await?.0.saturating_sub_unsigned(span.0)))
}

/// The actor, with the name of the key if it differs.
fn actor(it: &Value) -> String {
    match (it["actor"].as_str(), it["key"].as_str()) {
        (Some(actor), Some(key)) if actor != key => format!("{actor} (key {key})"),
        (actor, key) => actor.or(key).unwrap_or("–").to_owned(),
    }
}

fn subject(context: &Context, it: &Value) -> String {
    let text = output::text(it, "subject");
    let is_id = uuid::Uuid::try_parse(text).is_ok();
    if is_id && context.out.terminal { output::short(&it["subject"]) } else { text.to_owned() }
}

/// The fields that changed.
fn changed(it: &Value) -> String {
    let (before, after) = (&it["before"], &it["after"]);
    let Some(fields) = after.as_object() else { return String::new() };
    let word = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let differs = |(name, value): &(&String, &Value)| before.is_object() && before[name.as_str()] != **value;
    let change = |(name, value): (&String, &Value)| match &before[name.as_str()] {
        Value::Null => format!("{name} {}", word(value)),
        old => format!("{name} {} → {}", word(old), word(value)),
    };
    fields.iter().filter(differs).map(change).collect::<Vec<_>>().join(", ")
}

async fn export(context: &Context, format: ExportFormat, query: &[(&str, String)]) -> Result<u8, CliError> {
    let path = match format {
        ExportFormat::Ndjson => "/api/v1/admin/audit/export.ndjson",
        ExportFormat::Csv => "/api/v1/admin/audit/export.csv",
    };
    let mut answer = context.client.open(path, query).await?;
    let aborted = |what: String| CliError::new(code::FAILED, "export aborted").why(what).remedy("run it again");
    while let Some(part) = answer.chunk().await.map_err(|error| aborted(error.to_string()))? {
        let shown;
        let part: &[u8] = match context.out.terminal {
            true => {
                shown = output::safe::lines(&String::from_utf8_lossy(&part), false).into_owned();
                shown.as_bytes()
            }
            false => &part,
        };
        match std::io::stdout().write_all(part) {
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => return Ok(code::OK),
            written => written.map_err(|error| aborted(error.to_string()))?,
        }
    }
    Ok(code::OK)
}
