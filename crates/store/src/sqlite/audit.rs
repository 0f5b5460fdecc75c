//! The audit log: rows that are added and read.

use async_trait::async_trait;
use comeback_core::Audit;
use rusqlite::types::{ToSql, Value};
use rusqlite::{Connection, params_from_iter};
use uuid::Uuid;

use super::submit::{keep_key, namespace_id};
use super::{SqliteStore, apply};
use crate::audit::{AuditQuery, AuditRow, COLUMNS, Given, answer_text, found, text};
use crate::{AuditStore, StoreError};

/// Adds a line, and uses up the key of its act: an error where that is used already.
pub fn write(connection: &Connection, audit: &Audit) -> Result<(), StoreError> {
    if let Some(once) = &audit.once {
        if let Some(used) = apply::used(connection, &once.namespace, &once.key)? {
            return Err(StoreError::KeyUsed(used));
        }
        let namespace = namespace_id(connection, &once.namespace)?;
        keep_key(connection, namespace, &once.key, &answer_text(audit), audit.at)?;
    }
    let sql = format!("insert into audit ({COLUMNS}) values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)");
    let (before, after) = (text(audit.before.as_ref()), text(audit.after.as_ref()));
    let values: [&dyn ToSql; 12] = [
        &audit.id.as_bytes().as_slice(),
        &audit.at.0,
        &audit.namespace,
        &audit.did.code(),
        &audit.subject,
        &audit.actor,
        &audit.key,
        &audit.note,
        &audit.request,
        &before,
        &after,
        &audit.key_id,
    ];
    connection.prepare_cached(&sql)?.execute(values)?;
    Ok(())
}

/// Of an act that changed something; `before` is what stood there.
pub fn note(
    connection: &Connection,
    audit: Option<&Audit>,
    before: Option<serde_json::Value>,
) -> Result<(), StoreError> {
    audit.map_or(Ok(()), |audit| write(connection, &found(audit, before)))
}

pub fn page(connection: &Connection, query: &AuditQuery) -> Result<Vec<Audit>, StoreError> {
    let (sql, given) = query.statement('?');
    let values = given.into_iter().map(|given| match given {
        Given::Text(text) => Value::Text(text),
        Given::Number(number) => Value::Integer(number),
        Given::Id(id) => Value::Blob(id.as_bytes().to_vec()),
    });
    let mut statement = connection.prepare_cached(&sql)?;
    let rows = statement.query_map(params_from_iter(values), |row| {
        Ok(AuditRow {
            id: Uuid::from_bytes(row.get(0)?),
            at: row.get(1)?,
            namespace: row.get(2)?,
            did: row.get(3)?,
            subject: row.get(4)?,
            actor: row.get(5)?,
            key: row.get(6)?,
            note: row.get(7)?,
            request: row.get(8)?,
            before: row.get(9)?,
            after: row.get(10)?,
            key_id: row.get(11)?,
        })
    })?;
    rows.map(|row| row?.read()).collect()
}

#[async_trait]
impl AuditStore for SqliteStore {
    async fn put_audit(&self, audit: &Audit) -> Result<(), StoreError> {
        let audit = audit.clone();
        self.writer.run(move |tx| write(tx.connection, &audit)).await
    }

    async fn audit(&self, query: &AuditQuery) -> Result<Vec<Audit>, StoreError> {
        let query = query.clone();
        self.search(move |connection, _| page(connection, &query)).await
    }
}
