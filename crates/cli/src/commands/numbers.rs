//! `stats` and `upcoming`: tasks by state, retry statistics, and due times.

use comeback_core::Millis;
use serde_json::{Value, json};

use super::Context;
use super::status::all_held;
use crate::args::{StatsArgs, WatchArgs};
use crate::error::{CliError, code};
use crate::output::{self, Table, View, instant};
use crate::watch;

/// `stats`: tasks by state, or retry statistics.
pub async fn stats(context: &Context, args: StatsArgs) -> Result<u8, CliError> {
    match &args.by {
        None => states(context, &args.watch).await,
        Some(by) => retries(context, by, &args).await,
    }
}

/// A rate with its sample size, such as `80% of 746`.
pub fn percent(rate: &Value) -> String {
    let n = rate["n"].as_u64().unwrap_or(0);
    rate["rate"]
        .as_f64()
        .map_or_else(|| "-".to_owned(), |rate| format!("{:.0}% of {}", rate * 100.0, output::grouped(n)))
}

/// Retry statistics by a dimension.
async fn retries(context: &Context, by: &str, args: &StatsArgs) -> Result<u8, CliError> {
    let mut query = vec![("by", by.replace("error", "fingerprint")), ("within", args.within.clone())];
    let only = [("kind", &args.kind), ("queue", &args.queue), ("dependency", &args.dependency)];
    query.extend(only.into_iter().filter_map(|(name, value)| Some((name, value.clone()?))));
    watch::show(&context.out, &args.watch, || async {
        let stats = context.client.get_with("/api/v1/stats/retries", &query).await?;
        let mut table =
            Table::new(&["VALUE", "ATTEMPTS", "SUCCESS", "RECOVERED", "WASTED", "GAVE UP", "COST", "P50", "P95"]);
        for it in output::items(&stats) {
            let number = |name: &str| output::grouped(it[name].as_u64().unwrap_or(0)).into();
            let given_up = it["gave_up"].as_u64().unwrap_or(0) + it["refused"].as_u64().unwrap_or(0);
            let took = |name: &str| {
                let span = it["time_to_recover"][name].as_u64();
                span.map_or("-".to_owned(), |span| output::span(Millis(span)))
            };
            table.rows.push(vec![
                it["value"].as_str().unwrap_or("-").into(),
                number("attempts"),
                percent(&it["success"]).into(),
                number("recovered"),
                number("wasted"),
                output::grouped(given_up).into(),
                number("cost"),
                took("p50_ms").into(),
                took("p95_ms").into(),
            ]);
        }
        let total = &stats["total"];
        let count = |name: &str| output::grouped(total[name].as_u64().unwrap_or(0));
        let hint = format!(
            "{} first failures; {} retries: {} recovered, {} wasted ({} useful) within {}",
            count("first_failures"),
            count("retries"),
            count("recovered"),
            count("wasted"),
            percent(&total["useful"]),
            args.within
        );
        Ok(View::table(stats, table).with_hint(hint))
    })
    .await
}

async fn states(context: &Context, watch: &WatchArgs) -> Result<u8, CliError> {
    watch::show(&context.out, watch, || async {
        let stats = context.client.get("/api/v1/stats").await?;
        let mut table = Table::new(&["STATE", "TASKS"]);
        for (state, count) in stats["by_state"].as_object().into_iter().flatten() {
            table.rows.push(vec![output::state(&json!({"state": state})), count.to_string().into()]);
        }
        let count = |name: &str| output::grouped(stats[name].as_u64().unwrap_or(0));
        let held = all_held(&stats);
        let held = if held > 0 { format!(", {} of them held", output::grouped(held)) } else { String::new() };
        let hint = format!("{} open{held}, {} in all", count("open"), count("total"));
        Ok(View::table(stats, table).with_hint(hint))
    })
    .await
}

/// Length of the longest bar.
const BAR: u64 = 40;

/// `upcoming`: due tasks per time bucket.
pub async fn upcoming(context: &Context, within: String, bucket: String, watch: &WatchArgs) -> Result<u8, CliError> {
    let (out, query) = (&context.out, [("within", within), ("bucket", bucket)]);
    watch::show(out, watch, || async {
        let coming = context.client.get_with("/api/v1/upcoming", &query).await?;
        let now =
            instant(&coming["now"]).ok_or_else(|| CliError::new(code::FAILED, "the server did not return its time"))?;
        let buckets = || coming["buckets"].as_array().into_iter().flatten();
        let most = buckets().filter_map(|it| it["count"].as_u64()).max().unwrap_or(1).max(1);
        let mut table = Table::new(if out.terminal { &["FROM", "DUE", ""] } else { &["FROM", "DUE"] });
        for it in buckets() {
            let count = it["count"].as_u64().unwrap_or(0);
            let mut row = vec![out.time_cell(&it["at"], now), count.to_string().into()];
            if out.terminal {
                row.push("█".repeat(usize::try_from((count * BAR).div_ceil(most)).unwrap_or(0)).into());
            }
            table.rows.push(row);
        }
        let count = |name: &str| output::grouped(coming[name].as_u64().unwrap_or(0));
        let at_least = if coming["complete"] == false { "at least " } else { "" };
        let hint =
            format!("{at_least}{} due within {}, {} of them overdue", count("total"), query[0].1, count("overdue"));
        Ok(View::table(coming, table).with_hint(hint))
    })
    .await
}
