//! Payloads that are edited: the old one is kept beside the body, which holds the one in use.

use comeback_core::payload::{NewPayload, OldPayload};
use comeback_core::{TaskId, Timestamp};
use deadpool_postgres::Transaction;

use super::PostgresStore;
use crate::{StoreError, sql};

/// Whether somebody else has edited one of them since. Every edit comes with a new version of its task, so whoever names the
/// newest of those sees all edits that were before.
pub async fn moved_on(tx: &Transaction<'_>, edits: &[NewPayload]) -> Result<bool, StoreError> {
    for edit in edits {
        let sql = "select 1 + count(*)::int4 from task_payload where task_id = $1";
        let newest: i32 = tx.query_one(sql, &[&edit.task.0]).await?.get(0);
        if newest.cast_unsigned() != edit.edited {
            return Ok(true);
        }
    }
    Ok(false)
}

pub async fn write(tx: &Transaction<'_>, edit: &NewPayload) -> Result<(), StoreError> {
    let (version, last_run) = (edit.edited.cast_signed(), edit.last_run.cast_signed());
    tx.execute(sql::tasks::KEEP_PAYLOAD.postgres, &[&edit.task.0, &version, &last_run, &edit.at.0, &edit.by]).await?;
    tx.execute(sql::tasks::SET_PAYLOAD.postgres, &[&edit.task.0, &&*edit.payload]).await?;
    Ok(())
}

pub async fn old(store: &PostgresStore, task: TaskId) -> Result<Vec<OldPayload>, StoreError> {
    let sql = sql::tasks::OLD_PAYLOADS.postgres;
    let client = store.reader().await?;
    let rows = client.query(sql, &[&task.0]).await?;
    let read = |row: &tokio_postgres::Row| OldPayload {
        version: row.get::<_, i32>(0).cast_unsigned(),
        payload: row.get::<_, Option<String>>(1).map(Into::into),
        last_run: row.get::<_, i32>(2).cast_unsigned(),
        replaced_at: Timestamp(row.get(3)),
        replaced_by: row.get(4),
    };
    Ok(rows.iter().map(read).collect())
}
