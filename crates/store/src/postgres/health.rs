//! Health of a PostgreSQL database, for `comeback doctor`.

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
    /// Sessions and slots that keep VACUUM from removing dead rows, anywhere in the cluster, the longest first.
    pub holders: Vec<Holder>,
    /// Rows that are dead in the table of open tasks, and those that are not.
    pub dead_rows: i64,
    pub live_rows: i64,
    /// Bytes of the whole database.
    pub size: i64,
    pub is_standby: bool,
}

/// Something that has held back VACUUM for longer than [`LONG_SECS`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    pub kind: HolderKind,
    /// The database it is in; empty where it belongs to the whole cluster.
    pub database: String,
    /// The process, where there is one.
    pub pid: Option<i32>,
    /// The `application_name` of a session, the id of a prepared transaction, the name of a replication slot.
    pub name: String,
    /// For how long; nothing where this user may not know, or nobody does.
    pub secs: Option<i64>,
}

/// Sorts of what holds back VACUUM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HolderKind {
    Transaction,
    Prepared,
    Slot,
}

/// A transaction that is open for longer is worth telling.
pub const LONG_SECS: i64 = 300;
/// Where the time is unknown: a transaction is old when so many others have begun since.
const LONG_AGE: i32 = 1_000_000;

const HOLDERS: &str = "select kind, database, pid, name, secs from (
         select 0 as kind, coalesce(datname, '')::text as database, pid, coalesce(application_name, '') as name,
           extract(epoch from clock_timestamp() - xact_start)::int8 as secs, greatest(age(backend_xmin), age(backend_xid)) as age
         from pg_stat_activity where pid <> pg_backend_pid() and (xact_start is not null or backend_xmin is not null)
           and backend_type in ('client backend', 'background worker', 'walsender')
         union all
         select 1, database::text, null, gid, extract(epoch from clock_timestamp() - prepared)::int8, age(transaction)
         from pg_prepared_xacts
         union all
         select 2, coalesce(database, '')::text, active_pid, slot_name::text, null, greatest(age(xmin), age(catalog_xmin))
         from pg_replication_slots where xmin is not null or catalog_xmin is not null
       ) held where secs > $1 or (secs is null and age > $2) order by secs desc nulls last, age desc limit 20";

impl Health {
    /// The feed is ordered by numbers that older ones do not have.
    pub const OLDEST: i32 = 130_000;
}

const QUESTION: &str = "select current_setting('server_version'), current_setting('server_version_num')::int4,
       current_setting('fsync') = 'on', current_setting('full_page_writes') = 'on', current_setting('synchronous_commit'),
       current_setting('autovacuum') = 'on', current_setting('max_connections')::int8,
       (select count(*) from pg_stat_activity where backend_type = 'client backend'),
       coalesce((select n_dead_tup from pg_stat_user_tables where relid = to_regclass('task_open')), 0),
       coalesce((select n_live_tup from pg_stat_user_tables where relid = to_regclass('task_open')), 0),
       pg_database_size(current_database()), pg_is_in_recovery()";

pub async fn health(options: &PostgresOptions) -> Result<Health, StoreError> {
    let (client, connection) = setup::connect(options).await?;
    let driver = tokio::spawn(connection);
    let answered = client.query_one(QUESTION, &[]).await;
    let held = client.query(HOLDERS, &[&LONG_SECS, &LONG_AGE]).await;
    drop(client);
    let _ = driver.await;
    let row = answered.map_err(|error| StoreError::from(error).of_a_read())?;
    let holders = held.map_err(|error| StoreError::from(error).of_a_read())?;
    Ok(Health {
        version: row.get(0),
        version_number: row.get(1),
        fsync: row.get(2),
        full_page_writes: row.get(3),
        synchronous_commit: row.get(4),
        autovacuum: row.get(5),
        max_connections: row.get(6),
        connections: row.get(7),
        holders: holders.iter().map(holder).collect(),
        dead_rows: row.get(8),
        live_rows: row.get(9),
        size: row.get(10),
        is_standby: row.get(11),
    })
}

fn holder(row: &tokio_postgres::Row) -> Holder {
    let kind = match row.get(0) {
        0 => HolderKind::Transaction,
        1 => HolderKind::Prepared,
        _ => HolderKind::Slot,
    };
    Holder { kind, database: row.get(1), pid: row.get(2), name: row.get(3), secs: row.get(4) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::postgres::Database;

    /// A session that holds back VACUUM is named, in whichever database of the cluster it is.
    #[tokio::test]
    async fn transactions_of_the_whole_cluster_are_seen() {
        let (database, elsewhere) = (Database::create().await, Database::create().await);
        let (look, holds) = (database.connect().await, elsewhere.connect().await);
        holds.batch_execute("set application_name = 'etl'; begin; create table t (n int)").await.expect("it writes");
        let pid: i32 = holds.query_one("select pg_backend_pid()", &[]).await.expect("a process").get(0);
        let found: Vec<Holder> =
            look.query(HOLDERS, &[&-1_i64, &LONG_AGE]).await.expect("holders").iter().map(holder).collect();
        let it = found.iter().find(|it| it.pid == Some(pid)).unwrap_or_else(|| panic!("{found:?}"));
        assert_eq!((it.kind, it.name.as_str()), (HolderKind::Transaction, "etl"));
        assert!(elsewhere.url().ends_with(&it.database) && !it.database.is_empty(), "{it:?}");
        assert!(it.secs.is_some_and(|secs| (0..60).contains(&secs)), "{it:?}");
        holds.batch_execute("rollback").await.expect("over");
        database.drop().await;
        elsewhere.drop().await;
    }
}
