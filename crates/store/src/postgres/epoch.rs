//! Detects that the database was restored. It remembers where it was when its epoch began: in which cluster, under which number of
//! the database and of its own table, and on which timeline. A dump that was restored, a copy of the database and a recovery to a
//! point in time each change one of these; a restart, an upgrade of comeback and another instance change none.

use std::sync::atomic::{AtomicBool, Ordering};

use deadpool_postgres::GenericClient;
use tokio_postgres::error::SqlState;

use super::PostgresStore;
use crate::epoch::{EPOCH, HOME, fresh};
use crate::{StoreError, sql};

/// Cluster, database, table and timeline.
const HERE: &str = "select (select system_identifier from pg_control_system())::text || ' ' ||
       (select oid from pg_database where datname = current_database())::text || ' ' || to_regclass('meta')::oid::text || ' ' ||
       (case when pg_is_in_recovery() then '-' else substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) end)";
/// Where the user may not ask for the cluster and the timeline.
const HERE_IN_SHORT: &str =
    "select '- ' || (select oid from pg_database where datname = current_database())::text || ' ' ||
       to_regclass('meta')::oid::text || ' -'";

/// Whether this process was refused the long form: it is not asked for again, or the log of PostgreSQL would fill with refusals.
static IN_SHORT: AtomicBool = AtomicBool::new(false);

/// Where the database is now.
async fn here(client: &impl GenericClient) -> Result<String, StoreError> {
    if IN_SHORT.load(Ordering::Relaxed) {
        return Ok(client.query_one(HERE_IN_SHORT, &[]).await?.get(0));
    }
    let asked = async {
        let statement = client.prepare_cached(HERE).await?;
        client.query_one(&statement, &[]).await
    };
    match asked.await {
        Ok(row) => Ok(row.get(0)),
        Err(error)
            if matches!(
                error.code(),
                Some(
                    &SqlState::INSUFFICIENT_PRIVILEGE
                        | &SqlState::UNDEFINED_FUNCTION
                        | &SqlState::FEATURE_NOT_SUPPORTED
                )
            ) =>
        {
            IN_SHORT.store(true, Ordering::Relaxed);
            Ok(client.query_one(HERE_IN_SHORT, &[]).await?.get(0))
        }
        Err(error) => Err(error.into()),
    }
}

/// Whether both are one place, as far as is known of it.
fn is_same(known: &str, here: &str) -> bool {
    let is_same = |(a, b): (&str, &str)| a == b || a == "-" || b == "-";
    known.split(' ').count() == here.split(' ').count() && known.split(' ').zip(here.split(' ')).all(is_same)
}

const LOOK: &str = "select (select value from meta where key = $1), (select value from meta where key = $2)";

/// The epoch that holds now. Where the database finds itself somewhere else than when that began, a new one begins.
pub async fn epoch(store: &PostgresStore) -> Result<String, StoreError> {
    let reader = store.reader().await?;
    let statement = reader.prepare_cached(LOOK).await?;
    let row = reader.query_one(&statement, &[&EPOCH, &HOME]).await?;
    let (epoch, home): (Option<String>, Option<String>) = (row.get(0), row.get(1));
    let here = here(&*reader).await?;
    if home.is_some_and(|home| is_same(&home, &here)) {
        return Ok(epoch.unwrap_or_default());
    }
    drop(reader);
    let mut client = store.writer().await?;
    let tx = client.transaction().await?;
    let settled = settle(&tx, &here).await?;
    tx.commit().await?;
    Ok(settled)
}

/// The first who comes begins the new epoch; others wait for it and find it.
async fn settle(tx: &impl GenericClient, here: &str) -> Result<String, StoreError> {
    tx.execute("lock table meta in share row exclusive mode", &[]).await?;
    let row = tx.query_one(LOOK, &[&EPOCH, &HOME]).await?;
    let (epoch, home): (Option<String>, Option<String>) = (row.get(0), row.get(1));
    if home.as_deref().is_some_and(|home| is_same(home, here)) {
        return Ok(epoch.unwrap_or_default());
    }
    let put = sql::control::PUT_META.postgres;
    tx.execute(put, &[&HOME, &here]).await?;
    // Where none is known, no version that knows of this has opened it yet: nothing can be said.
    if home.is_none() {
        return Ok(epoch.unwrap_or_default());
    }
    let new = fresh();
    tx.execute(put, &[&EPOCH, &new]).await?;
    tracing::warn!("the database was restored or copied: lease tokens from before are refused");
    Ok(new)
}

#[cfg(test)]
mod tests {
    use super::is_same;

    #[test]
    fn what_is_not_known_of_a_place_does_not_tell_it_from_another() {
        assert!(is_same("7 16384 16400 00000001", "7 16384 16400 00000001"));
        assert!(is_same("7 16384 16400 00000001", "- 16384 16400 -"));
        for other in
            ["8 16384 16400 00000001", "7 1 16400 00000001", "7 16384 1 00000001", "7 16384 16400 00000002", ""]
        {
            assert!(!is_same("7 16384 16400 00000001", other), "{other}");
        }
    }
}
