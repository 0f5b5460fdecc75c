//! Documents: texts under names, with versions.

use async_trait::async_trait;
use comeback_core::{Audit, Timestamp};
use rusqlite::{Connection, OptionalExtension, Row};

use super::submit::namespace_id;
use super::writer::Tx;
use super::{SqliteStore, audit};
use crate::{Collection, Document, DocumentStore, StoreError, sql};

/// A shelf, to be taken along.
pub struct Place {
    namespace: String,
    shelf: String,
}

impl Place {
    pub fn of(at: Collection<'_>) -> Place {
        Place { namespace: at.namespace.to_owned(), shelf: at.shelf.to_owned() }
    }
}

const WHAT: &str = sql::resources::DOCUMENTS.sqlite;

fn read(row: &Row<'_>) -> rusqlite::Result<Document> {
    let (name, version, body, at, namespace) = (row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?);
    Ok(Document { namespace, name, version, body, at: Timestamp(at) })
}

pub fn one(
    connection: &Connection,
    at: &Place,
    name: &str,
    version: Option<u32>,
) -> Result<Option<Document>, StoreError> {
    let sql = format!("{WHAT} and d.name = ?3 and (?4 is null or d.version = ?4) order by d.version desc limit 1");
    Ok(connection.prepare_cached(&sql)?.query_row((&at.namespace, &at.shelf, name, version), read).optional()?)
}

pub fn newest(connection: &Connection, at: &Place, after: &str, limit: u32) -> Result<Vec<Document>, StoreError> {
    let sql = format!(
        "{WHAT} and d.name > ?3 and d.version = (select max(version) from document l
           where (l.namespace, l.shelf, l.name) = (d.namespace, d.shelf, d.name)) order by d.name limit ?4"
    );
    let mut statement = connection.prepare_cached(&sql)?;
    Ok(statement.query_map((&at.namespace, &at.shelf, after, limit), read)?.collect::<rusqlite::Result<_>>()?)
}

pub fn versions(connection: &Connection, at: &Place, name: &str, limit: u32) -> Result<Vec<Document>, StoreError> {
    let sql = format!("{WHAT} and d.name = ?3 order by d.version desc limit ?4");
    let mut statement = connection.prepare_cached(&sql)?;
    Ok(statement.query_map((&at.namespace, &at.shelf, name, limit), read)?.collect::<rusqlite::Result<_>>()?)
}

pub fn put(
    connection: &Connection,
    at: &Place,
    name: &str,
    known: u32,
    body: &str,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let namespace = namespace_id(connection, &at.namespace)?;
    let newest: u32 = connection
        .prepare_cached(
            "select coalesce(max(version), 0) from document where namespace = ?1 and shelf = ?2 and name = ?3",
        )?
        .query_row((namespace, &at.shelf, name), |row| row.get(0))?;
    if newest != known {
        return Ok(false);
    }
    connection
        .prepare_cached(
            "insert into document (namespace, shelf, name, version, body, at) values (?1, ?2, ?3, ?4, ?5, ?6)",
        )?
        .execute((namespace, &at.shelf, name, known + 1, body, now.0))?;
    Ok(true)
}

pub fn delete(connection: &Connection, at: &Place, name: &str) -> Result<bool, StoreError> {
    let namespace = namespace_id(connection, &at.namespace)?;
    let gone = connection
        .prepare_cached("delete from document where namespace = ?1 and shelf = ?2 and name = ?3")?
        .execute((namespace, &at.shelf, name))?;
    Ok(gone > 0)
}

#[async_trait]
impl DocumentStore for SqliteStore {
    async fn document(
        &self,
        at: Collection<'_>,
        name: &str,
        version: Option<u32>,
    ) -> Result<Option<Document>, StoreError> {
        let (place, name) = (Place::of(at), name.to_owned());
        self.read(move |connection, _| one(connection, &place, &name, version)).await
    }

    async fn documents(&self, at: Collection<'_>, after: &str, limit: u32) -> Result<Vec<Document>, StoreError> {
        let (place, after) = (Place::of(at), after.to_owned());
        self.read(move |connection, _| newest(connection, &place, &after, limit)).await
    }

    async fn versions(&self, at: Collection<'_>, name: &str, limit: u32) -> Result<Vec<Document>, StoreError> {
        let (place, name) = (Place::of(at), name.to_owned());
        self.read(move |connection, _| versions(connection, &place, &name, limit)).await
    }

    async fn put_document(
        &self,
        at: Collection<'_>,
        name: &str,
        known: u32,
        body: &str,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        let (place, name, body) = (Place::of(at), name.to_owned(), body.to_owned());
        let audit = audit.cloned();
        let put = move |tx: &mut Tx<'_>| {
            let put = put(tx.connection, &place, &name, known, &body, now)?;
            audit::note(tx.connection, audit.as_ref().filter(|_| put), None)?;
            Ok(put)
        };
        self.writer.run(put).await
    }

    async fn delete_document(&self, at: Collection<'_>, name: &str) -> Result<bool, StoreError> {
        let (place, name) = (Place::of(at), name.to_owned());
        self.writer.run(move |tx| delete(tx.connection, &place, &name)).await
    }
}
