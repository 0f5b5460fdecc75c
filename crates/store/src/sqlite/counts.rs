//! How many tasks there are, by state.

use async_trait::async_trait;
use comeback_core::Timestamp;
use rusqlite::Connection;

use super::statements::Reader;
use super::{SqliteStore, list};
use crate::dictionary::Dictionary;
use crate::query::held_now;
use crate::{CountQueries, Counts, OpenWork, OpenWorkRow, StoreError};

pub fn open_work(connection: &Connection, now: Timestamp) -> Result<OpenWork, StoreError> {
    let mut work = OpenWork::default();
    let mut statement = connection.prepare_cached(OpenWork::QUERY)?;
    let mut rows = statement.query([now.0])?;
    while let Some(row) = rows.next()? {
        let mut from = Reader { row, next: 0 };
        let row = OpenWorkRow {
            state: from.get()?,
            hold: from.get()?,
            all: from.get()?,
            to_come: from.get()?,
            come: from.get()?,
            next: from.get()?,
            first: from.get()?,
        };
        work.add(row, now);
    }
    Ok(work)
}

pub fn counts(
    connection: &Connection,
    dictionary: &Dictionary,
    namespace: &str,
    of: &str,
    held: &str,
) -> Result<Counts, StoreError> {
    let mut counts = Counts::default();
    let lanes: Vec<String> = dictionary.lanes_in(namespace, |_| true).iter().map(ToString::to_string).collect();
    for (table, held) in [("task_open", held), ("task_done", "false")] {
        let sql = format!(
            "select lane, state, count(*), count(*) filter (where {held}) from {table} o where lane in ({}) and {of} group by 1, 2",
            lanes.join(", ")
        );
        let mut statement = connection.prepare(&sql)?;
        let mut rows = statement.query(())?;
        while let Some(row) = rows.next()? {
            counts.add(dictionary.lane(row.get(0)?).as_deref(), row.get(1)?, row.get(2)?, row.get(3)?)?;
        }
    }
    Ok(counts)
}

#[async_trait]
impl CountQueries for SqliteStore {
    async fn counts(&self, namespace: &str, now: Timestamp) -> Result<Counts, StoreError> {
        let namespace = namespace.to_owned();
        let count = move |connection: &Connection, dictionary: &Dictionary| {
            let closed = list::closed(connection, &namespace, now)?;
            let held = held_now(dictionary, &namespace, &closed, now);
            counts(connection, dictionary, &namespace, Counts::ALL, &held)
        };
        self.search(count).await
    }

    async fn retried(&self, namespace: &str) -> Result<Counts, StoreError> {
        let namespace = namespace.to_owned();
        self.search(move |connection, dictionary| counts(connection, dictionary, &namespace, Counts::RETRIED, "false"))
            .await
    }

    async fn open_work(&self, now: Timestamp) -> Result<OpenWork, StoreError> {
        self.read(move |connection, _| open_work(connection, now)).await
    }
}
