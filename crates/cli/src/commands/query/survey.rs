//! Many runs at once: the queue of open ones, and counts.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::status::{self, StatusExt};
use super::{QUEUE, table};
use crate::args::Status;
use crate::commands::Context;
use crate::error::CliError;
use crate::output::{self, Cell, Table, View, grouped, plural};

/// Maximum size of a page.
const PAGE: usize = 500;
/// Runs that are counted at most.
const MOST_COUNTED: usize = 50_000;

/// Matching runs, and whether these are all.
struct RunList {
    runs: Vec<Value>,
    complete: bool,
}

async fn all(context: &Context, terms: &str) -> Result<RunList, CliError> {
    let mut runs: Vec<Value> = Vec::new();
    let mut cursor: Option<String> = None;
    loop {
        let mut query = vec![("q", terms.trim().to_owned()), ("limit", PAGE.to_string()), ("sort", "submitted".into())];
        query.extend(cursor.map(|cursor| ("cursor", cursor)));
        let mut listed = context.client.get_with("/api/v1/tasks", &query).await?;
        cursor = listed["next_cursor"].as_str().map(str::to_owned);
        if let Value::Array(items) = listed["items"].take() {
            runs.extend(items);
        }
        if cursor.is_none() || runs.len() >= MOST_COUNTED {
            runs.iter_mut().for_each(status::add);
            return Ok(RunList { runs, complete: cursor.is_none() });
        }
    }
}

fn at_least(complete: bool) -> &'static str {
    if complete { "" } else { "at least " }
}

/// Open runs: processing, then next by submission, then waiting for a start or retry time.
pub async fn queue(context: &Context, terms: &str, limit: usize) -> Result<View, CliError> {
    let RunList { mut runs, complete } = all(context, terms).await?;
    let now = context.now().await?;
    let place = |run: &Value| match Status::of(run) {
        Status::Processing => 0,
        Status::Discovered if run["start_at"].is_null() => 1,
        Status::Discovered => 2,
        Status::Error => 3,
        _ => 4,
    };
    // The sort is stable and the runs come by submission; retries are ordered by their time.
    runs.sort_by_cached_key(|run| (place(run), output::text(run, "next_retry_at").to_owned()));
    let mut by_category: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
    let mut by_status: BTreeMap<Status, u64> = BTreeMap::new();
    for run in &runs {
        let category = output::text(&run["labels"], "category").to_owned();
        let status = Status::of(run);
        *by_status.entry(status).or_default() += 1;
        *by_category.entry(category).or_default().entry(status.word()).or_default() += 1;
    }
    let words = |counts: &mut dyn Iterator<Item = (String, u64)>| {
        counts.map(|(word, count)| format!("{} {word}", grouped(count))).collect::<Vec<_>>().join(", ")
    };
    let mut view = View::table(Value::Null, table(&QUEUE, runs.iter().take(limit), now, &context.out));
    if context.out.terminal && by_category.keys().any(|category| !category.is_empty()) {
        view.line("");
        for (category, counts) in &by_category {
            let name = if category.is_empty() { "(no category)" } else { category };
            let counts = words(&mut counts.iter().map(|(word, count)| (word.clone(), *count)));
            view.line(format!("{name}: {counts}"));
        }
    }
    let hint = match runs.len() {
        0 => "no open runs".to_owned(),
        _ => {
            let shown = if runs.len() > limit { format!(" · {limit} shown, more: --limit") } else { String::new() };
            let counts = words(&mut by_status.iter().map(|(status, count)| (status.word(), *count)));
            format!("{}{counts}{shown}", at_least(complete))
        }
    };
    runs.truncate(limit);
    view.data = json!({"items": runs, "by_category": by_category, "complete": complete});
    Ok(view.with_hint(hint))
}

#[derive(Default)]
struct RunCounts {
    runs: u64,
    attempts: u64,
    retried: u64,
    throttled: u64,
}

impl RunCounts {
    fn add(&mut self, run: &Value) {
        let count = |name: &str| run[name].as_u64().unwrap_or(0);
        self.runs += 1;
        self.attempts += count("total_attempts");
        self.retried += u64::from(count("total_attempts") > 1);
        self.throttled += count("throttle_count");
    }

    /// Attempts per run, to two places.
    fn average(&self) -> f64 {
        if self.runs == 0 { 0.0 } else { (100.0 * self.attempts as f64 / self.runs as f64).round() / 100.0 }
    }

    fn json(&self) -> Value {
        json!({"runs": self.runs, "retried": self.retried, "average_attempts": self.average(), "throttled": self.throttled})
    }

    fn row(&self, first: Cell) -> Vec<Cell> {
        vec![
            first,
            self.runs.to_string().into(),
            self.retried.to_string().into(),
            format!("{:.2}", self.average()).into(),
            self.throttled.to_string().into(),
        ]
    }
}

/// Runs and attempts by status and error class.
pub async fn stats(context: &Context, terms: &str) -> Result<View, CliError> {
    let RunList { runs, complete } = all(context, terms).await?;
    let (mut by_status, mut by_class): (BTreeMap<Status, RunCounts>, BTreeMap<String, u64>) = Default::default();
    let mut total = RunCounts::default();
    for run in &runs {
        total.add(run);
        by_status.entry(Status::of(run)).or_default().add(run);
        if let (Status::Error, Some(class)) = (Status::of(run), run["error_class"].as_str()) {
            *by_class.entry(class.to_owned()).or_default() += 1;
        }
    }
    let mut table = Table::new(&["STATUS", "RUNS", "RETRIED", "AVERAGE ATTEMPTS", "THROTTLED"]);
    for (status, sums) in &by_status {
        table.rows.push(sums.row(status.word().into()));
    }
    let mut view = View::table(Value::Null, table);
    let classes: Vec<String> = by_class.iter().map(|(class, count)| format!("{} {class}", grouped(*count))).collect();
    if context.out.terminal && !classes.is_empty() {
        view.line("");
        view.line(format!("errors by class: {}", classes.join(", ")));
    }
    let by_status: BTreeMap<String, Value> =
        by_status.iter().map(|(status, sums)| (status.word(), sums.json())).collect();
    view.data =
        json!({"total": total.json(), "by_status": by_status, "errors_by_class": by_class, "complete": complete});
    let hint = match total.runs {
        0 => "no matching runs".to_owned(),
        runs => format!("{}{}, {:.2} attempts each", at_least(complete), plural(runs, "run"), total.average()),
    };
    Ok(view.with_hint(hint))
}
