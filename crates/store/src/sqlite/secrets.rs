//! Named secrets, as they are kept: encrypted.

use async_trait::async_trait;
use comeback_core::{Audit, Quota, QuotaExceeded, Timestamp};
use rusqlite::{Connection, OptionalExtension, Row};

use super::submit::namespace_id;
use super::{SqliteStore, audit};
use crate::{SealedSecret, SecretStore, StoreError, sql};

const SELECT: &str = sql::resources::SECRETS.sqlite;

fn read(row: &Row<'_>) -> rusqlite::Result<SealedSecret> {
    Ok(SealedSecret {
        namespace: row.get(0)?,
        name: row.get(1)?,
        version: row.get(2)?,
        key_id: row.get(3)?,
        sealed: row.get(4)?,
        created_at: Timestamp(row.get(5)?),
        updated_at: Timestamp(row.get(6)?),
        updated_by: row.get(7)?,
    })
}

pub fn one(connection: &Connection, namespace: &str, name: &str) -> Result<Option<SealedSecret>, StoreError> {
    let sql = format!("{SELECT} where n.name = ?1 and s.name = ?2");
    Ok(connection.prepare_cached(&sql)?.query_row((namespace, name), read).optional()?)
}

pub fn page(
    connection: &Connection,
    namespace: &str,
    after: &str,
    limit: u32,
) -> Result<Vec<SealedSecret>, StoreError> {
    let sql = format!("{SELECT} where n.name = ?1 and s.name > ?2 order by s.name limit ?3");
    let mut statement = connection.prepare_cached(&sql)?;
    Ok(statement.query_map((namespace, after, limit), read)?.collect::<rusqlite::Result<_>>()?)
}

pub fn all(connection: &Connection, after: (&str, &str), limit: u32) -> Result<Vec<SealedSecret>, StoreError> {
    let sql = format!("{SELECT} where (n.name, s.name) > (?1, ?2) order by n.name, s.name limit ?3");
    let mut statement = connection.prepare_cached(&sql)?;
    Ok(statement.query_map((after.0, after.1, limit), read)?.collect::<rusqlite::Result<_>>()?)
}

pub fn put(
    connection: &Connection,
    secret: &SealedSecret,
    most: u64,
    audit: Option<&Audit>,
    now: Timestamp,
) -> Result<(SealedSecret, bool), StoreError> {
    let namespace = namespace_id(connection, &secret.namespace)?;
    let known: Option<i64> = connection
        .prepare_cached("select created_at from secret where namespace = ?1 and name = ?2")?
        .query_row((namespace, &secret.name), |row| row.get(0))
        .optional()?;
    if known.is_none() {
        let count: i64 = connection
            .prepare_cached(sql::resources::COUNT_SECRETS.sqlite)?
            .query_row([namespace], |row| row.get(0))?;
        if count.cast_unsigned() >= most {
            return Err(QuotaExceeded { quota: Quota::Secrets, namespace: secret.namespace.clone(), most }.into());
        }
    }
    connection
        .prepare_cached(
            "insert into secret (namespace, name, version, key_id, sealed, created_at, updated_at, updated_by)
             values (?1, ?2, 1, ?3, ?4, ?5, ?5, ?6)
             on conflict (namespace, name) do update set version = version + 1, key_id = excluded.key_id,
             sealed = excluded.sealed, updated_at = excluded.updated_at, updated_by = excluded.updated_by",
        )?
        .execute((namespace, &secret.name, &secret.key_id, &secret.sealed, now.0, &secret.updated_by))?;
    audit::note(connection, audit, None)?;
    let stored = one(connection, &secret.namespace, &secret.name)?;
    let stored = stored.ok_or_else(|| StoreError::Corrupt(format!("the secret {} is not there", secret.name)))?;
    Ok((stored, known.is_none()))
}

pub fn reseal(connection: &Connection, secret: &SealedSecret) -> Result<bool, StoreError> {
    let written = connection.prepare_cached(sql::resources::RESEAL_SECRET.sqlite)?.execute((
        &secret.namespace,
        &secret.name,
        secret.version,
        &secret.key_id,
        &secret.sealed,
    ))?;
    Ok(written == 1)
}

pub fn delete(connection: &Connection, namespace: &str, name: &str, audit: Option<&Audit>) -> Result<bool, StoreError> {
    let sql = "delete from secret where namespace = (select id from namespace where name = ?1) and name = ?2";
    let gone = connection.prepare_cached(sql)?.execute((namespace, name))? == 1;
    audit::note(connection, audit.filter(|_| gone), None)?;
    Ok(gone)
}

#[async_trait]
impl SecretStore for SqliteStore {
    async fn secret(&self, namespace: &str, name: &str) -> Result<Option<SealedSecret>, StoreError> {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        self.read(move |connection, _| one(connection, &namespace, &name)).await
    }

    async fn secrets(&self, namespace: &str, after: &str, limit: u32) -> Result<Vec<SealedSecret>, StoreError> {
        let (namespace, after) = (namespace.to_owned(), after.to_owned());
        self.read(move |connection, _| page(connection, &namespace, &after, limit)).await
    }

    async fn all_secrets(&self, after: (&str, &str), limit: u32) -> Result<Vec<SealedSecret>, StoreError> {
        let (namespace, name) = (after.0.to_owned(), after.1.to_owned());
        self.read(move |connection, _| all(connection, (&namespace, &name), limit)).await
    }

    async fn put_secret(
        &self,
        secret: &SealedSecret,
        most: u64,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<(SealedSecret, bool), StoreError> {
        let (secret, audit) = (secret.clone(), audit.cloned());
        self.writer.run(move |tx| put(tx.connection, &secret, most, audit.as_ref(), now)).await
    }

    async fn reseal_secret(&self, secret: &SealedSecret) -> Result<bool, StoreError> {
        let secret = secret.clone();
        self.writer.run(move |tx| reseal(tx.connection, &secret)).await
    }

    async fn delete_secret(&self, namespace: &str, name: &str, audit: Option<&Audit>) -> Result<bool, StoreError> {
        let (namespace, name, audit) = (namespace.to_owned(), name.to_owned(), audit.cloned());
        self.writer.run(move |tx| delete(tx.connection, &namespace, &name, audit.as_ref())).await
    }
}
