//! Numbers: how many tasks there are in each state, and what is due when.

use serde_json::json;

use super::Context;
use crate::args::Watch;
use crate::failure::{Failure, code};
use crate::output::{self, Table, View, instant};
use crate::watch;

pub async fn stats(context: &Context, watch: &Watch) -> Result<u8, Failure> {
    watch::show(&context.out, watch, || async {
        let stats = context.client.get("/api/v1/stats").await?;
        let mut table = Table::new(&["STATE", "TASKS"]);
        for (state, count) in stats["by_state"].as_object().into_iter().flatten() {
            table.rows.push(vec![output::state(&json!({"state": state})), count.to_string().into()]);
        }
        let count = |name: &str| output::grouped(stats[name].as_u64().unwrap_or(0));
        let hint = format!("{} open, {} in all", count("open"), count("total"));
        Ok(View::table(stats, table).with_hint(hint))
    })
    .await
}

/// As long as the longest bar is.
const BAR: u64 = 40;

pub async fn upcoming(context: &Context, within: String, bucket: String, watch: &Watch) -> Result<u8, Failure> {
    let (out, query) = (&context.out, [("within", within), ("bucket", bucket)]);
    watch::show(out, watch, || async {
        let coming = context.client.get_with("/api/v1/upcoming", &query).await?;
        let now = instant(&coming["now"]).ok_or_else(|| Failure::new(code::FAILED, "the server does not say when"))?;
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
