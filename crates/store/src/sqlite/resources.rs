//! Followers: rows that are moved together with what they start.

use async_trait::async_trait;
use comeback_core::{Audit, Timestamp};
use rusqlite::{Connection, OptionalExtension, Row};

use super::control::is_paused;
use super::submit::{self, namespace_id, submit};
use super::writer::Tx;
use super::{SqliteStore, audit};
use crate::audit::as_json;
use crate::{Applied, Loop, Resource, ResourceKind, ResourceStore, StoreError, Submission};

fn of(sort: ResourceKind) -> String {
    let table = sort.table();
    format!(
        "select n.name, s.name, s.version, s.due, s.body, s.standing, s.created_at, s.updated_at
         from {table} s join namespace n on n.id = s.namespace"
    )
}

fn read(sort: ResourceKind, row: &Row<'_>) -> rusqlite::Result<Resource> {
    Ok(Resource {
        sort,
        namespace: row.get(0)?,
        name: row.get(1)?,
        version: row.get(2)?,
        due: row.get::<_, Option<i64>>(3)?.map(Timestamp),
        body: row.get(4)?,
        standing: row.get(5)?,
        created_at: Timestamp(row.get(6)?),
        updated_at: Timestamp(row.get(7)?),
    })
}

pub fn one(
    connection: &Connection,
    sort: ResourceKind,
    namespace: &str,
    name: &str,
) -> Result<Option<Resource>, StoreError> {
    let what = of(sort);
    let sql = format!("{what} where n.name = ?1 and s.name = ?2");
    Ok(connection.prepare_cached(&sql)?.query_row((namespace, name), |row| read(sort, row)).optional()?)
}

pub fn page(
    connection: &Connection,
    sort: ResourceKind,
    namespace: &str,
    after: &str,
    limit: u32,
) -> Result<Vec<Resource>, StoreError> {
    let what = of(sort);
    let sql = format!("{what} where n.name = ?1 and s.name > ?2 order by s.name limit ?3");
    let mut statement = connection.prepare_cached(&sql)?;
    let found =
        statement.query_map((namespace, after, limit), |row| read(sort, row))?.collect::<rusqlite::Result<_>>()?;
    Ok(found)
}

pub fn due(
    connection: &Connection,
    sort: ResourceKind,
    now: Timestamp,
    limit: u32,
) -> Result<Vec<Resource>, StoreError> {
    let what = of(sort);
    let sql = format!("{what} where s.due <= ?1 order by s.due, s.namespace, s.name limit ?2");
    let mut statement = connection.prepare_cached(&sql)?;
    let found = statement.query_map((now.0, limit), |row| read(sort, row))?.collect::<rusqlite::Result<_>>()?;
    Ok(found)
}

pub fn active(
    connection: &Connection,
    sort: ResourceKind,
    after: (&str, &str),
    limit: u32,
) -> Result<Vec<Resource>, StoreError> {
    let what = of(sort);
    let sql =
        format!("{what} where s.due is not null and (n.name, s.name) > (?1, ?2) order by n.name, s.name limit ?3");
    let mut statement = connection.prepare_cached(&sql)?;
    let found =
        statement.query_map((after.0, after.1, limit), |row| read(sort, row))?.collect::<rusqlite::Result<_>>()?;
    Ok(found)
}

pub fn put(
    tx: &mut Tx<'_>,
    follower: &Resource,
    start: Option<&Submission>,
    on_behalf_of: Option<Loop>,
    audit: Option<&Audit>,
    now: Timestamp,
) -> Result<Applied, StoreError> {
    if let Some(name) = on_behalf_of
        && is_paused(tx.connection, name, now)?
    {
        return Ok(Applied::Paused);
    }
    let namespace = namespace_id(tx.connection, &follower.namespace)?;
    let table = follower.sort.table();
    let sql = match follower.version {
        0 => format!(
            "insert into {table} (namespace, name, version, due, body, standing, created_at, updated_at)
             values (?1, ?2, ?3 + 1, ?4, ?5, ?6, ?7, ?7) on conflict do nothing"
        ),
        _ => format!(
            "update {table} set version = version + 1, due = ?4, body = ?5, standing = ?6, updated_at = ?7
             where namespace = ?1 and name = ?2 and version = ?3"
        ),
    };
    let (due, body, standing) = (follower.due.map(|at| at.0), &follower.body, &follower.standing);
    let written = tx.connection.prepare_cached(&sql)?.execute((
        namespace,
        &follower.name,
        follower.version,
        due,
        body,
        standing,
        now.0,
    ))?;
    if written == 0 {
        return Ok(Applied::Stale);
    }
    if let Some(start) = start {
        submit(tx, std::slice::from_ref(start), now)?;
    }
    audit::note(tx.connection, audit, None)?;
    Ok(Applied::Done)
}

pub fn delete(
    connection: &Connection,
    sort: ResourceKind,
    namespace: &str,
    name: &str,
    audit: Option<&Audit>,
) -> Result<bool, StoreError> {
    let table = sort.table();
    let sql = format!(
        "delete from {table} where namespace = (select id from namespace where name = ?1) and name = ?2 returning body"
    );
    let body: Option<String> =
        connection.prepare_cached(&sql)?.query_row((namespace, name), |row| row.get(0)).optional()?;
    audit::note(connection, audit.filter(|_| body.is_some()), body.as_deref().map(as_json))?;
    Ok(body.is_some())
}

#[async_trait]
impl ResourceStore for SqliteStore {
    async fn follower(&self, sort: ResourceKind, namespace: &str, name: &str) -> Result<Option<Resource>, StoreError> {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        self.read(move |connection, _| one(connection, sort, &namespace, &name)).await
    }

    async fn followers(
        &self,
        sort: ResourceKind,
        namespace: &str,
        after: &str,
        limit: u32,
    ) -> Result<Vec<Resource>, StoreError> {
        let (namespace, after) = (namespace.to_owned(), after.to_owned());
        self.read(move |connection, _| page(connection, sort, &namespace, &after, limit)).await
    }

    async fn due_followers(&self, sort: ResourceKind, now: Timestamp, limit: u32) -> Result<Vec<Resource>, StoreError> {
        self.read(move |connection, _| due(connection, sort, now, limit)).await
    }

    async fn active_followers(
        &self,
        sort: ResourceKind,
        after: Option<(&str, &str)>,
        limit: u32,
    ) -> Result<Vec<Resource>, StoreError> {
        let (namespace, name) =
            after.map(|(namespace, name)| (namespace.to_owned(), name.to_owned())).unwrap_or_default();
        self.read(move |connection, _| active(connection, sort, (&namespace, &name), limit)).await
    }

    async fn put_follower(
        &self,
        follower: &Resource,
        start: Option<&Submission>,
        on_behalf_of: Option<Loop>,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<Applied, StoreError> {
        loop {
            let book = self.dictionary.rules();
            let placed = book.place(start.map(std::slice::from_ref).unwrap_or_default()).into_owned();
            submit::learn_anyway(self, self.dictionary.news(&placed)).await?;
            crate::panic_point!("sqlite-follower");
            let (follower, audit) = (follower.clone(), audit.cloned());
            let put = self.writer.run(move |tx| match tx.dictionary.rules().generation == book.generation {
                true => put(tx, &follower, placed.first(), on_behalf_of, audit.as_ref(), now).map(Some),
                // A rule has changed since we looked where its tasks belong.
                false => Ok(None),
            });
            if let Some(applied) = put.await? {
                return Ok(applied);
            }
        }
    }

    async fn delete_follower(
        &self,
        sort: ResourceKind,
        namespace: &str,
        name: &str,
        audit: Option<&Audit>,
    ) -> Result<bool, StoreError> {
        let (namespace, name, audit) = (namespace.to_owned(), name.to_owned(), audit.cloned());
        self.writer.run(move |tx| delete(tx.connection, sort, &namespace, &name, audit.as_ref())).await
    }
}
