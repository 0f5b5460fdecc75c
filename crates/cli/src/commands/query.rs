//! `query` and `admin`: tasks shown as the runs of a daemon, with its status words.

mod status;
mod survey;

use comeback_core::{Millis, Timestamp};
use serde_json::{Value, json};

use super::{Context, task};
use crate::args::{AdminCommand, QueryCommand, RunFilter, Status};
use crate::confirm;
use crate::error::{CliError, code};
use crate::output::{self, Block, Cell, Output, Table, View, outln};
use crate::watch;
use status::StatusExt;

pub async fn run(context: &Context, command: QueryCommand) -> Result<u8, CliError> {
    let out = &context.out;
    match command {
        QueryCommand::List { filter, limit, cursor, watch } => {
            let page = RunPage { terms: terms(&filter, None)?, limit, cursor };
            watch::show(out, &watch, || list(context, &page, &LIST)).await
        }
        QueryCommand::Errors { filter, limit, cursor, watch } => {
            let page = RunPage { terms: terms(&filter, Some(Status::Error))?, limit, cursor };
            watch::show(out, &watch, || list(context, &page, &ERRORS)).await
        }
        QueryCommand::Get(id) => show(context, &id.id).await,
        QueryCommand::Queue { filter, limit, watch } => {
            let terms = format!("{} state:open", terms(&filter, None)?);
            watch::show(out, &watch, || survey::queue(context, &terms, limit)).await
        }
        QueryCommand::Stats { filter, watch } => {
            let terms = terms(&filter, None)?;
            watch::show(out, &watch, || survey::stats(context, &terms)).await
        }
    }
}

/// `admin`: resets a run, deletes old tasks.
pub async fn admin(context: &Context, command: AdminCommand) -> Result<u8, CliError> {
    match command {
        AdminCommand::Reset { id, clear_error, yes, note } => {
            if !yes && confirm::can_ask(&context.out) && !confirm::is_confirmed(&format!("reset {}", id.id))? {
                outln!("nothing was changed");
                return Ok(code::OK);
            }
            task::act(context, &id.id, "retry", json!({"keep_counters": !clear_error, "note": note.note})).await
        }
        AdminCommand::Cleanup { older_than, dry_run, yes, note } => {
            cleanup(context, &older_than, dry_run, yes, note.note).await
        }
    }
}

/// Shows the count, asks for confirmation, and deletes in batches until none is left.
async fn cleanup(
    context: &Context,
    older_than: &str,
    dry_run: bool,
    yes: bool,
    note: Option<String>,
) -> Result<u8, CliError> {
    let request = async |dry_run: bool| {
        let body = json!({"older_than": older_than, "dry_run": dry_run, "note": note});
        context.client.post("/api/v1/admin/cleanup", &body).await
    };
    let count = |answer: &Value| output::plural(answer["tasks"].as_u64().unwrap_or(0), "task");
    let tried = request(true).await?;
    let nothing = tried["tasks"] == 0;
    if dry_run || nothing {
        let words = match nothing {
            true => format!("no task ended more than {older_than} ago"),
            false => format!("{} ended more than {older_than} ago and would be deleted", count(&tried)),
        };
        return View::message(tried, words).print(&context.out);
    }
    let question = format!("delete {} that ended more than {older_than} ago", count(&tried));
    if !yes && !confirm::can_ask(&context.out) {
        return Err(CliError::new(code::USAGE, "nothing was deleted")
            .why(format!("no terminal to confirm: {question}?"))
            .remedy("--yes to confirm, or --dry-run to look only"));
    }
    if !yes && !confirm::is_confirmed(&question)? {
        outln!("nothing was deleted");
        return Ok(code::OK);
    }
    let mut done = request(false).await?;
    while done["more"] == true {
        let next = request(false).await?;
        let sum = done["tasks"].as_u64().unwrap_or(0) + next["tasks"].as_u64().unwrap_or(0);
        done = next;
        done["tasks"] = sum.into();
    }
    let words = format!("{} deleted", count(&done));
    View::message(done, words).print(&context.out)
}

/// The filter of the request, in the grammar that all lists share.
fn terms(filter: &RunFilter, only: Option<Status>) -> Result<String, CliError> {
    let mut terms: Vec<String> = Vec::new();
    if let (Some(asked), Some(only)) = (filter.status, only)
        && asked != only
    {
        let what = format!("this lists only runs with status {}, not {}", only.word(), asked.word());
        return Err(CliError::new(code::USAGE, what).remedy(format!("comeback query list --status {}", asked.word())));
    }
    terms.extend(filter.status.or(only).map(|status| status.terms().to_owned()));
    let exactly = |name: &str, value: &String| format!("{name}:{}", quoted(value));
    terms.extend(filter.kind.as_ref().map(|kind| exactly("kind", kind)));
    terms.extend(filter.category.as_ref().map(|category| exactly("label.category", category)));
    terms.extend(filter.class.as_ref().map(|class| exactly("class", class)));
    if let Some(since) = &filter.since {
        terms.push(submitted_term("--since", since, ">=", "<=")?);
    }
    if let Some(before) = &filter.before {
        terms.push(submitted_term("--before", before, "<", ">")?);
    }
    Ok(terms.join(" "))
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// A filter term for a time, the start of a day, or a duration ago; a duration compares the other way round.
fn submitted_term(option: &str, text: &str, at: &str, ago: &str) -> Result<String, CliError> {
    let midnight = format!("{text}T00:00:00Z");
    if let Ok(instant) = Timestamp::parse_rfc3339(text).or_else(|_| Timestamp::parse_rfc3339(&midnight)) {
        return Ok(format!("submitted:{at}{}", instant.to_rfc3339()));
    }
    match Millis::parse(text) {
        Ok(_) => Ok(format!("submitted:{ago}{text}")),
        Err(_) => Err(CliError::new(code::USAGE, format!("`{text}` cannot be used for {option}"))
            .why("it is not a time, a day or a duration")
            .remedy(format!("{option} 2026-01-31T09:00:00Z, {option} 2026-01-31 or {option} 7d"))),
    }
}

/// Parameters of one page of runs.
struct RunPage {
    terms: String,
    limit: u32,
    cursor: Option<String>,
}

impl RunPage {
    fn query(&self) -> Vec<(&'static str, String)> {
        let mut query = vec![("q", self.terms.clone()), ("limit", self.limit.to_string())];
        query.extend(self.cursor.clone().map(|cursor| ("cursor", cursor)));
        query
    }
}

type ShowCell = fn(&Value, Timestamp, &Output) -> Cell;
type TableColumn = (&'static str, ShowCell);

const ID: TableColumn = ("ID", |run, _, out| task::id(run, out));
const RUN: TableColumn = ("RUN", |run, _, _| output::text(run, "external_id").into());
const KIND: TableColumn = ("KIND", |run, _, _| output::text(run, "kind").into());
const CATEGORY: TableColumn = ("CATEGORY", |run, _, _| output::text(&run["labels"], "category").into());
const STATUS: TableColumn = ("STATUS", |run, _, out| status::cell(run, out));
const CLASS: TableColumn = ("CLASS", |run, _, _| output::text(run, "error_class").into());
const ATTEMPT: TableColumn = ("ATTEMPT", |run, _, _| task::attempt(run).into());
const NEXT: TableColumn = ("NEXT", |run, now, out| out.time_cell(task::due(run), now));
const SUBMITTED: TableColumn = ("SUBMITTED", |run, now, out| out.time_cell(&run["submitted_at"], now));
const ERROR: TableColumn = ("ERROR", |run, _, _| run["last_error"]["message"].as_str().unwrap_or("").into());

const LIST: [TableColumn; 9] = [ID, RUN, KIND, CATEGORY, STATUS, ATTEMPT, NEXT, SUBMITTED, ERROR];
const ERRORS: [TableColumn; 8] = [ID, RUN, KIND, CATEGORY, CLASS, ATTEMPT, NEXT, ERROR];
const QUEUE: [TableColumn; 8] = [ID, RUN, KIND, CATEGORY, STATUS, ATTEMPT, NEXT, SUBMITTED];

fn table<'a>(columns: &[TableColumn], runs: impl Iterator<Item = &'a Value>, now: Timestamp, out: &Output) -> Table {
    let mut table = Table::new(&columns.iter().map(|(name, _)| *name).collect::<Vec<_>>());
    table.rows = runs.map(|run| columns.iter().map(|(_, cell)| cell(run, now, out)).collect()).collect();
    table
}

async fn list(context: &Context, page: &RunPage, columns: &[TableColumn]) -> Result<View, CliError> {
    let mut listed = context.client.get_with("/api/v1/tasks", &page.query()).await?;
    let now = context.now().await?;
    listed["items"].as_array_mut().into_iter().flatten().for_each(status::add);
    let table = table(columns, output::items(&listed), now, &context.out);
    let more = listed["next_cursor"].as_str().map(|cursor| format!(" · more: --cursor {cursor}")).unwrap_or_default();
    let hint = match table.rows.len() as u64 {
        0 => "no matching runs".to_owned(),
        count => format!("{}{more}", output::plural(count, "run")),
    };
    Ok(View::table(listed, table).with_hint(hint))
}

async fn show(context: &Context, id: &str) -> Result<u8, CliError> {
    let id = context.resolve(id).await?;
    let mut run = context.client.task(&id).await?;
    let attempts = task::attempts_of(context, &id).await?;
    let (now, out) = (context.now().await?, &context.out);
    status::add(&mut run);
    let mut view = task::detail(&run, now, out);
    view.blocks.insert(1, Block::Line(format!("  {:<10} {}", "status", output::text(&run, "status"))));
    let table = task::attempts_table(&attempts, now, out);
    if !table.rows.is_empty() {
        view.line("");
        view.blocks.push(Block::Table(table));
    }
    run["attempts"] = attempts["items"].clone();
    view.data = run;
    view.print(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_said_in_the_words_of_all_lists() {
        let said = |filter: RunFilter| terms(&filter, None).expect("a filter");
        let filter = RunFilter {
            status: Some(Status::NeedsReview),
            category: Some("any\"%".into()),
            since: Some("7d".into()),
            before: Some("2026-01-31".into()),
            ..RunFilter::default()
        };
        let expected = "state:succeeded verdict:needs_review label.category:\"any\\\"%\" submitted:<=7d \
            submitted:<2026-01-31T00:00:00.000Z";
        assert_eq!(said(filter), expected);
        assert!(comeback_core::filter::Filter::parse(expected, Timestamp(0)).is_ok());
        let filter = RunFilter { class: Some("final".into()), kind: Some("replay".into()), ..RunFilter::default() };
        assert_eq!(said(filter), "kind:\"replay\" class:\"final\"");
        assert!(terms(&RunFilter { since: Some("soon".into()), ..RunFilter::default() }, None).is_err());
        let odd = RunFilter { status: Some(Status::Passed), ..RunFilter::default() };
        assert!(terms(&odd, Some(Status::Error)).is_err());
    }
}
