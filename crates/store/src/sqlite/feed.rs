//! The feed: every event of the database in one order.

use async_trait::async_trait;
use rusqlite::Connection;
use uuid::Uuid;

use super::queries::{HISTORY, first_record};
use super::statements::{Reader, load_one};
use super::{SqliteStore, fence};
use crate::dictionary::Dictionary;
use crate::events::{MOST_EVENTS, Sources};
use crate::page::FeedCursor;
use crate::row::{HistoryRow, corrupt};
use crate::{EventLog, Feed, FeedEvent, StoreError};

pub fn feed_end(connection: &Connection) -> Result<FeedCursor, StoreError> {
    let last: Option<i64> = connection.query_row("select max(id) from feed", (), |row| row.get(0))?;
    Ok(FeedCursor::end_of(0, last.unwrap_or_default().cast_unsigned()))
}

pub fn feed(
    connection: &Connection,
    dictionary: &Dictionary,
    after: Option<FeedCursor>,
    limit: u32,
) -> Result<Feed, StoreError> {
    let start = after.unwrap_or_default();
    let rows: Vec<(u64, i32, Vec<u8>)> = connection
        .prepare_cached("select id, namespace, items from feed where id >= ?1 order by id limit 256")?
        .query_map([start.row.cast_signed()], |row| {
            Ok((row.get::<_, i64>(0)?.cast_unsigned(), row.get(1)?, row.get(2)?))
        })?
        .collect::<rusqlite::Result<_>>()?;
    let mut feed = Feed { events: Vec::new(), next: after };
    for (id, namespace, items) in rows {
        let name = dictionary.namespace_name(namespace).ok_or_else(|| corrupt("a namespace in the feed"))?;
        for (item, bytes) in (0_u32..).zip(items.chunks_exact(24)) {
            let place = FeedCursor { transaction: 0, row: id, item, seq: 0 };
            if (FeedCursor { seq: u32::MAX, ..place }) <= start {
                continue;
            }
            let (subject, first, last) = unpack(bytes);
            for event in sources(connection, dictionary, subject, first, last)?.events(subject, first, last) {
                let cursor = FeedCursor { seq: event.seq, ..place };
                if cursor <= start {
                    continue;
                }
                if feed.events.len() >= limit as usize {
                    return Ok(feed);
                }
                feed.next = Some(cursor);
                feed.events.push(FeedEvent { cursor, namespace: name.to_string(), event });
            }
        }
        feed.next = Some(FeedCursor::end_of(0, id));
    }
    Ok(feed)
}

pub fn unpack(bytes: &[u8]) -> (Uuid, u32, u32) {
    let word = |at: usize| bytes[at..at + 4].iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte));
    (Uuid::from_slice(&bytes[..16]).unwrap_or_default(), word(16), word(20))
}

fn sources(
    connection: &Connection,
    dictionary: &Dictionary,
    subject: Uuid,
    first: u32,
    last: u32,
) -> Result<Sources, StoreError> {
    let mut sources = Sources::default();
    if first == 1
        && let Some(record) = first_record(connection, subject)?
    {
        sources.add_record(record);
    }
    let sql = format!("select {} from history h where h.subject = ?1 and h.seq > ?2 and h.seq <= ?3", HISTORY.as_str());
    let low = i64::from(first) - i64::from(MOST_EVENTS);
    let rows: Vec<_> = connection
        .prepare_cached(&sql)?
        .query_map((subject.as_bytes().as_slice(), low, last), |row| HistoryRow::read(&mut Reader { row, next: 0 }))?
        .collect::<rusqlite::Result<_>>()?;
    for row in rows {
        sources.add_record(row.into_record()?);
    }
    if let Some(stored) = load_one(connection, dictionary, subject)? {
        sources.open.insert(subject, stored.task);
    }
    Ok(sources)
}

#[async_trait]
impl EventLog for SqliteStore {
    async fn feed(&self, after: Option<FeedCursor>, limit: u32) -> Result<Feed, StoreError> {
        self.read(move |connection, dictionary| feed(connection, dictionary, after, limit)).await
    }

    async fn feed_end(&self) -> Result<FeedCursor, StoreError> {
        self.read(|connection, _| feed_end(connection)).await
    }

    async fn feed_cursor(&self, cursor: FeedCursor) -> Result<FeedCursor, StoreError> {
        Ok(cursor)
    }

    async fn epoch(&self) -> Result<String, StoreError> {
        let (epoch, fed) = self.read(|connection, _| fence::epoch(connection)).await?;
        if let Some(fence) = &self.fence {
            fence.note(fed);
        }
        Ok(epoch)
    }
}
