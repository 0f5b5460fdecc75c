//! Error groups: failures with the same fingerprint.

use std::collections::HashMap;

use async_trait::async_trait;
use comeback_core::error_group::{Group, TriageAction};
use comeback_core::{Audit, Class, Timestamp};
use rusqlite::{Connection, OptionalExtension, Row};

use super::{SqliteStore, audit};
use crate::stats::{GroupQuery, GroupRow};
use crate::{ErrorGroupStore, StoreError, sql};

/// Deletes the groups beyond a number, by when they were last seen. Reclassified ones stay.
pub fn forget_groups(connection: &Connection, most: u32) -> Result<(), StoreError> {
    let mut statement = connection.prepare_cached(sql::error_groups::NAMESPACES.sqlite)?;
    let namespaces: Vec<i32> = statement.query_map((), |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    for namespace in namespaces {
        let sql = sql::error_groups::NTH_NEWEST.sqlite;
        let cut: Option<(i64, i64)> = connection
            .prepare_cached(sql)?
            .query_row((namespace, most), |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()?;
        if let Some((last_seen, fingerprint)) = cut {
            let sql = sql::error_groups::DELETE_UP_TO.sqlite;
            connection.prepare_cached(sql)?.execute((namespace, last_seen, fingerprint))?;
        }
    }
    Ok(())
}

fn read_group(row: &Row<'_>) -> rusqlite::Result<GroupRow> {
    Ok(GroupRow {
        fingerprint: row.get(0)?,
        face: row.get(1)?,
        count: row.get(2)?,
        recovered: row.get(3)?,
        first_seen: row.get(4)?,
        last_seen: row.get(5)?,
        class: row.get(6)?,
        sample: row.get(7)?,
        word: row.get(8)?,
        reclassified: row.get(9)?,
    })
}

pub fn find_group(connection: &Connection, namespace: i32, fingerprint: i64) -> Result<Option<Group>, StoreError> {
    let sql = format!("select {} from error_group where namespace = ?1 and fingerprint = ?2", GroupRow::COLUMNS);
    let row = connection.prepare_cached(&sql)?.query_row((namespace, fingerprint), read_group).optional()?;
    row.map(GroupRow::into_group).transpose()
}

pub fn write_group(connection: &Connection, namespace: i32, group: &Group) -> Result<(), StoreError> {
    let sql = format!(
        "insert or replace into error_group (namespace, {}) values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
        GroupRow::COLUMNS
    );
    let row = GroupRow::new(group);
    connection.prepare_cached(&sql)?.execute((
        namespace,
        row.fingerprint,
        row.face,
        row.count,
        row.recovered,
        row.first_seen,
        row.last_seen,
        row.class,
        row.sample,
        row.word,
        row.reclassified,
    ))?;
    Ok(())
}

pub fn groups(connection: &Connection, namespace: i32, query: &GroupQuery) -> Result<Vec<Group>, StoreError> {
    let sql = format!(
        "select {} from error_group where namespace = ?1 and (last_seen, fingerprint) < (?2, ?3)
         order by last_seen desc, fingerprint desc limit ?4",
        GroupRow::COLUMNS
    );
    let (at, fingerprint) = query.after.unwrap_or((Timestamp::MAX, i64::MAX));
    let mut statement = connection.prepare_cached(&sql)?;
    let rows = statement.query_map((namespace, at.0, fingerprint, query.limit), read_group)?;
    rows.map(|row| row?.into_group()).collect()
}

pub fn group(connection: &Connection, namespace: i32, fingerprint: i64) -> Result<Option<Group>, StoreError> {
    find_group(connection, namespace, fingerprint)
}

pub fn put_group(
    connection: &Connection,
    namespace: i32,
    fingerprint: i64,
    deed: &TriageAction,
    audit: &Audit,
    now: Timestamp,
) -> Result<Option<Group>, StoreError> {
    let Some(mut group) = find_group(connection, namespace, fingerprint)? else { return Ok(None) };
    let before = group.facts();
    group.word = group.word.after(deed, audit.note.as_deref(), audit.actor.as_deref(), now);
    write_group(connection, namespace, &group)?;
    let audit = audit.clone().changed(None, Some(group.facts()));
    audit::note(connection, Some(&audit), Some(before))?;
    Ok(Some(group))
}

pub fn reclassified(connection: &Connection) -> Result<HashMap<String, HashMap<i64, Class>>, StoreError> {
    let sql = sql::error_groups::RECLASSIFIED.sqlite;
    let mut found: HashMap<String, HashMap<i64, Class>> = HashMap::new();
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query(())?;
    while let Some(row) = rows.next()? {
        if let Some(class) = Class::from_code(row.get(2)?) {
            found.entry(row.get(0)?).or_default().insert(row.get(1)?, class);
        }
    }
    Ok(found)
}

pub fn open_with(
    connection: &Connection,
    lanes: &[i32],
    fingerprints: &[i64],
) -> Result<HashMap<i64, u64>, StoreError> {
    let lanes: Vec<String> = lanes.iter().map(ToString::to_string).collect();
    let sql = format!("select count(*) from task_open where fingerprint = ?1 and lane in ({})", lanes.join(", "));
    let mut statement = connection.prepare(&sql)?;
    let count = |number: &i64| {
        let open: i64 = statement.query_row([number], |row| row.get(0))?;
        Ok((*number, open.cast_unsigned()))
    };
    fingerprints.iter().map(count).collect()
}

#[async_trait]
impl ErrorGroupStore for SqliteStore {
    async fn groups(&self, namespace: &str, query: &GroupQuery) -> Result<Vec<Group>, StoreError> {
        let Some(namespace) = self.dictionary.namespace(namespace) else { return Ok(Vec::new()) };
        let query = query.clone();
        self.search(move |connection, _| groups(connection, namespace, &query)).await
    }

    async fn group(&self, namespace: &str, fingerprint: i64) -> Result<Option<Group>, StoreError> {
        let Some(namespace) = self.dictionary.namespace(namespace) else { return Ok(None) };
        self.read(move |connection, _| group(connection, namespace, fingerprint)).await
    }

    async fn put_group(
        &self,
        namespace: &str,
        fingerprint: i64,
        deed: &TriageAction,
        audit: &Audit,
        now: Timestamp,
    ) -> Result<Option<Group>, StoreError> {
        let Some(namespace) = self.dictionary.namespace(namespace) else { return Ok(None) };
        let (deed, audit) = (deed.clone(), audit.clone());
        self.writer.run(move |tx| put_group(tx.connection, namespace, fingerprint, &deed, &audit, now)).await
    }

    async fn reclassified(&self) -> Result<HashMap<String, HashMap<i64, Class>>, StoreError> {
        self.read(|connection, _| reclassified(connection)).await
    }

    async fn open_with(&self, namespace: &str, fingerprints: &[i64]) -> Result<HashMap<i64, u64>, StoreError> {
        let lanes = self.dictionary.lanes_in(namespace, |_| true);
        let fingerprints = fingerprints.to_vec();
        self.search(move |connection, _| open_with(connection, &lanes, &fingerprints)).await
    }
}
