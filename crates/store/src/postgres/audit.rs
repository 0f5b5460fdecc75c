//! The audit log: rows that are added and read.

use async_trait::async_trait;
use comeback_core::Audit;
use deadpool_postgres::GenericClient;
use tokio_postgres::types::ToSql;

use super::PostgresStore;
use super::apply::{find_key, take_key};
use crate::audit::{AuditQuery, AuditRow, COLUMNS, Given, answer_text, found, text};
use crate::{AuditStore, StoreError};

/// Adds a line, and uses up the key of its act: an error where that is used already. Both are one transaction of the caller.
pub async fn write(client: &impl GenericClient, audit: &Audit) -> Result<(), StoreError> {
    if let Some(once) = &audit.once
        && !take_key(client, &once.namespace, &once.key, &answer_text(audit), audit.at).await?
    {
        let used = find_key(client, &once.namespace, &once.key).await?;
        let forgotten = || StoreError::Unavailable("the idempotency key was forgotten just now".into());
        return Err(StoreError::KeyUsed(used.ok_or_else(forgotten)?));
    }
    let sql = format!("insert into audit ({COLUMNS}) values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)");
    let statement = client.prepare_cached(&sql).await?;
    let (did, before, after) = (audit.did.code(), text(audit.before.as_ref()), text(audit.after.as_ref()));
    let values: [&(dyn ToSql + Sync); 12] = [
        &audit.id,
        &audit.at.0,
        &audit.namespace,
        &did,
        &audit.subject,
        &audit.actor,
        &audit.key,
        &audit.note,
        &audit.request,
        &before,
        &after,
        &audit.key_id,
    ];
    client.execute(&statement, &values).await?;
    Ok(())
}

/// Of an act that changed something; `before` is what stood there.
pub async fn note(
    client: &impl GenericClient,
    audit: Option<&Audit>,
    before: Option<serde_json::Value>,
) -> Result<(), StoreError> {
    match audit {
        None => Ok(()),
        Some(audit) => write(client, &found(audit, before)).await,
    }
}

#[async_trait]
impl AuditStore for PostgresStore {
    async fn put_audit(&self, audit: &Audit) -> Result<(), StoreError> {
        let mut client = self.writer().await?;
        let tx = client.transaction().await?;
        write(&tx, audit).await?;
        Ok(tx.commit().await?)
    }

    async fn audit(&self, query: &AuditQuery) -> Result<Vec<Audit>, StoreError> {
        self.search(async {
            let (sql, given) = query.statement('$');
            let values: Vec<&(dyn ToSql + Sync)> = given
                .iter()
                .map(|given| -> &(dyn ToSql + Sync) {
                    match given {
                        Given::Text(text) => text,
                        Given::Number(number) => number,
                        Given::Id(id) => id,
                    }
                })
                .collect();
            let rows = self.rows(&sql, &values).await?;
            let read = |row: &tokio_postgres::Row| {
                AuditRow {
                    id: row.get(0),
                    at: row.get(1),
                    namespace: row.get(2),
                    did: row.get(3),
                    subject: row.get(4),
                    actor: row.get(5),
                    key: row.get(6),
                    note: row.get(7),
                    request: row.get(8),
                    before: row.get(9),
                    after: row.get(10),
                    key_id: row.get(11),
                }
                .read()
            };
            rows.iter().map(read).collect()
        })
        .await
    }
}
