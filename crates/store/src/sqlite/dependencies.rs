//! Dependencies. There is one writer, so what a claim reads of them is so until its commit.

use async_trait::async_trait;
use comeback_core::{Audit, Millis, Timestamp};
use rusqlite::{Connection, OptionalExtension, Row};

use super::submit::namespace_id;
use super::writer::Tx;
use super::{SqliteStore, audit, claim};
use crate::dependencies::{Dependency, DependencyRow};
use crate::{DependencyStore, StoreError, sql};

const WHAT: &str = sql::resources::DEPENDENCIES.sqlite;

fn read(row: &Row<'_>) -> rusqlite::Result<DependencyRow> {
    Ok(DependencyRow {
        namespace: row.get(0)?,
        name: row.get(1)?,
        version: row.get(2)?,
        settings: row.get(3)?,
        standing: row.get(4)?,
        created_at: row.get(5)?,
        updated_at: row.get(6)?,
    })
}

pub fn one(connection: &Connection, namespace: &str, name: &str) -> Result<Option<Dependency>, StoreError> {
    let sql = format!("{WHAT} where n.name = ?1 and d.name = ?2");
    let row = connection.prepare_cached(&sql)?.query_row((namespace, name), read).optional()?;
    row.map(DependencyRow::read).transpose()
}

pub fn some(connection: &Connection, namespace: &str, names: &[String]) -> Result<Vec<Dependency>, StoreError> {
    names.iter().filter_map(|name| one(connection, namespace, name).transpose()).collect()
}

pub fn page(connection: &Connection, namespace: &str, after: &str, limit: u32) -> Result<Vec<Dependency>, StoreError> {
    let sql = format!("{WHAT} where n.name = ?1 and d.name > ?2 order by d.name limit ?3");
    let mut statement = connection.prepare_cached(&sql)?;
    statement.query_map((namespace, after, limit), read)?.map(|row| row?.read()).collect()
}

pub fn due(connection: &Connection, now: Timestamp, limit: u32) -> Result<Vec<Dependency>, StoreError> {
    let sql = format!("{WHAT} where d.due <= ?1 order by d.due, d.namespace, d.name limit ?2");
    let mut statement = connection.prepare_cached(&sql)?;
    statement.query_map((now.0, limit), read)?.map(|row| row?.read()).collect()
}

/// Whether the version that it names is still the one there is.
pub fn put(
    connection: &Connection,
    it: &Dependency,
    audit: Option<&Audit>,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let namespace = namespace_id(connection, &it.namespace)?;
    let old = if audit.is_some() { one(connection, &it.namespace, &it.name)? } else { None };
    let sql = match it.version {
        0 => {
            "insert into dependency (namespace, name, version, settings, standing, due, created_at, updated_at)
             values (?1, ?2, ?3 + 1, ?4, ?5, ?6, ?7, ?7) on conflict do nothing"
        }
        _ => {
            "update dependency set version = version + 1, settings = ?4, standing = ?5, due = ?6, updated_at = ?7
             where namespace = ?1 and name = ?2 and version = ?3"
        }
    };
    let (settings, standing) = (it.settings_text(), it.standing_text());
    let written = connection.prepare_cached(sql)?.execute((
        namespace,
        &it.name,
        it.version,
        settings,
        standing,
        it.due(now),
        now.0,
    ))?;
    audit::note(connection, audit.filter(|_| written > 0), old.as_ref().map(Dependency::facts))?;
    Ok(written > 0)
}

pub fn delete(connection: &Connection, namespace: &str, name: &str, audit: Option<&Audit>) -> Result<bool, StoreError> {
    let Some(old) = one(connection, namespace, name)? else { return Ok(false) };
    let id = namespace_id(connection, namespace)?;
    connection.execute("delete from dependency where namespace = ?1 and name = ?2", (id, name))?;
    audit::note(connection, audit, Some(old.facts()))?;
    Ok(true)
}

pub fn extend_deadlines(connection: &Connection, lanes: &[i32], from: Timestamp, by: Millis) -> Result<(), StoreError> {
    let lanes = serde_json::json!(lanes).to_string();
    let sql = "update task_open set expires_at = expires_at + ?3, version = version + 1
               where expires_at > ?2 and lane in (select value from json_each(?1))";
    connection.execute(sql, (lanes, from.0, by.0.cast_signed()))?;
    Ok(())
}

#[async_trait]
impl DependencyStore for SqliteStore {
    async fn dependency(&self, namespace: &str, name: &str) -> Result<Option<Dependency>, StoreError> {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        self.read(move |connection, _| one(connection, &namespace, &name)).await
    }

    async fn dependencies(&self, namespace: &str, after: &str, limit: u32) -> Result<Vec<Dependency>, StoreError> {
        let (namespace, after) = (namespace.to_owned(), after.to_owned());
        self.read(move |connection, _| page(connection, &namespace, &after, limit)).await
    }

    async fn due_dependencies(&self, now: Timestamp, limit: u32) -> Result<Vec<Dependency>, StoreError> {
        self.read(move |connection, _| due(connection, now, limit)).await
    }

    async fn put_dependency(&self, it: &Dependency, audit: Option<&Audit>, now: Timestamp) -> Result<bool, StoreError> {
        let (it, audit) = (it.clone(), audit.cloned());
        self.writer.run(move |tx| put(tx.connection, &it, audit.as_ref(), now)).await
    }

    async fn delete_dependency(&self, namespace: &str, name: &str, audit: Option<&Audit>) -> Result<bool, StoreError> {
        let (namespace, name, audit) = (namespace.to_owned(), name.to_owned(), audit.cloned());
        self.writer.run(move |tx| delete(tx.connection, &namespace, &name, audit.as_ref())).await
    }

    async fn announce(
        &self,
        it: &Dependency,
        stopped: Option<(Timestamp, Millis)>,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        let lanes = self.dictionary.under(&it.namespace, &it.name);
        let (it, audit) = (it.clone(), audit.cloned());
        let announce = move |tx: &mut Tx<'_>| {
            let written = put(tx.connection, &it, audit.as_ref(), now)?;
            if let (true, Some((from, by))) = (written, stopped) {
                extend_deadlines(tx.connection, &lanes, from, by)?;
            }
            Ok(written)
        };
        self.writer.run(announce).await
    }

    async fn is_waited_for(&self, namespace: &str, dependency: &str) -> Result<bool, StoreError> {
        let lanes = self.dictionary.under(namespace, dependency);
        self.read(move |connection, _| claim::is_any_ready(connection, &lanes)).await
    }

    fn is_guarded(&self, namespace: &str, dependency: &str) -> bool {
        self.dictionary.is_guarded(namespace, dependency)
    }

    fn held_by_dependencies(&self) -> u64 {
        self.dictionary.held_back.load(std::sync::atomic::Ordering::Relaxed)
    }
}
