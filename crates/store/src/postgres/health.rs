//! What a doctor asks PostgreSQL.

use super::setup::{self, PostgresOptions};
use crate::StoreError;

/// How a server is set up and how it is doing.
#[derive(Clone, Debug)]
pub struct Health {
    pub version: String,
    /// Such as 170004.
    pub version_number: i32,
    pub fsync: bool,
    pub full_page_writes: bool,
    pub synchronous_commit: String,
    pub autovacuum: bool,
    pub max_connections: i64,
    pub connections: i64,
    /// Of any session of this database that has a transaction open, this one apart.
    pub longest_transaction_secs: i64,
    pub prepared_transactions: i64,
    /// Rows that are dead in the table of open tasks, and those that are not.
    pub dead_rows: i64,
    pub live_rows: i64,
    /// Bytes of the whole database.
    pub size: i64,
    pub is_standby: bool,
}

impl Health {
    /// The feed is ordered by numbers that older ones do not have.
    pub const OLDEST: i32 = 130_000;
}

const QUESTION: &str = "select current_setting('server_version'), current_setting('server_version_num')::int4,
       current_setting('fsync') = 'on', current_setting('full_page_writes') = 'on', current_setting('synchronous_commit'),
       current_setting('autovacuum') = 'on', current_setting('max_connections')::int8,
       (select count(*) from pg_stat_activity where backend_type = 'client backend'),
       (select coalesce(max(extract(epoch from clock_timestamp() - xact_start)), 0)::int8 from pg_stat_activity
         where datname = current_database() and pid <> pg_backend_pid() and state <> 'idle'),
       (select count(*) from pg_prepared_xacts where database = current_database()),
       coalesce((select n_dead_tup from pg_stat_user_tables where relid = to_regclass('task_open')), 0),
       coalesce((select n_live_tup from pg_stat_user_tables where relid = to_regclass('task_open')), 0),
       pg_database_size(current_database()), pg_is_in_recovery()";

pub async fn health(options: &PostgresOptions) -> Result<Health, StoreError> {
    let (client, connection) = setup::connect(options).await?;
    let driver = tokio::spawn(connection);
    let answered = client.query_one(QUESTION, &[]).await;
    drop(client);
    let _ = driver.await;
    let row = answered.map_err(|error| StoreError::from(error).of_a_read())?;
    Ok(Health {
        version: row.get(0),
        version_number: row.get(1),
        fsync: row.get(2),
        full_page_writes: row.get(3),
        synchronous_commit: row.get(4),
        autovacuum: row.get(5),
        max_connections: row.get(6),
        connections: row.get(7),
        longest_transaction_secs: row.get(8),
        prepared_transactions: row.get(9),
        dead_rows: row.get(10),
        live_rows: row.get(11),
        size: row.get(12),
        is_standby: row.get(13),
    })
}
