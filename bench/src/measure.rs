//! Percentiles, sizes, and a clean start.

use anyhow::Result;
use serde_json::{Value, json};
use tokio_postgres::NoTls;

/// A clean schema, so that every run starts alike.
pub async fn empty_schema(url: &str) -> Result<()> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    client.batch_execute("drop schema if exists comeback cascade; checkpoint").await?;
    Ok(())
}

pub fn percentiles(mut values: Vec<f64>) -> Value {
    values.sort_by(f64::total_cmp);
    let at = |p: f64| values.get(((values.len() as f64 * p) as usize).min(values.len().saturating_sub(1))).copied();
    json!({"n": values.len(), "p50": at(0.5).map(round), "p99": at(0.99).map(round), "max": values.last().copied().map(round)})
}

pub fn round(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

/// Bytes per table with its indexes on PostgreSQL, or of the file and its log on SQLite.
pub async fn sizes(bench: &crate::Bench) -> Result<Value> {
    if let Some(url) = &bench.postgres {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
        tokio::spawn(connection);
        let mut sizes = json!({});
        for table in ["task", "task_open", "task_done", "history", "feed"] {
            let row = client
                .query_one(
                    "select pg_table_size($1::text::regclass), pg_indexes_size($1::text::regclass)",
                    &[&format!("comeback.{table}")],
                )
                .await?;
            let mib = |bytes: i64| round(bytes as f64 / 1_048_576.0);
            sizes[table] = json!({"table_mib": mib(row.get(0)), "indexes_mib": mib(row.get(1))});
        }
        return Ok(sizes);
    }
    let size = |name: &str| {
        let path = bench.folder.path().join(name);
        std::fs::metadata(path).map(|it| round(it.len() as f64 / 1_048_576.0)).unwrap_or(0.0)
    };
    Ok(json!({"file_mib": size("bench.db"), "log_mib": size("bench.db-wal")}))
}
