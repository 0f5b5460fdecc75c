//! The feed. Transactions get their numbers when they begin to write and commit in any order; a reader stops before the oldest one
//! that is still open, so that nothing ever appears behind it.

use std::collections::HashMap;

use comeback_core::Task;
use deadpool_postgres::Transaction;
use uuid::Uuid;

use super::PostgresStore;
use super::learn;
use super::read::{HISTORY, load_in, snapshot};
use super::rows::{Reader, read_history};
use crate::StoreError;
use crate::events::{MOST_EVENTS, Sources};
use crate::page::FeedCursor;
use crate::row::{corrupt, created_record};
use crate::types::{Feed, FeedEvent};

/// Rows read at a time; each may stand for a thousand tasks.
const ROWS: i64 = 32;

struct FeedRow {
    transaction: u64,
    row: u64,
    namespace: i32,
    ids: Vec<Uuid>,
    firsts: Vec<i32>,
    lasts: Vec<i32>,
}

/// Whatever is under way now comes after this, because its transaction has a later number.
pub async fn feed_end(store: &PostgresStore) -> Result<FeedCursor, StoreError> {
    let client = store.reader().await?;
    let statement = client.prepare_cached("select pg_snapshot_xmin(pg_current_snapshot())::text::int8 - 1").await?;
    let last: i64 = client.query_one(&statement, &[]).await?.get(0);
    Ok(FeedCursor::end_of(last.cast_unsigned(), i64::MAX.cast_unsigned()))
}

pub async fn feed(store: &PostgresStore, after: Option<FeedCursor>, limit: u32) -> Result<Feed, StoreError> {
    let start = after.unwrap_or_default();
    let mut client = store.reader().await?;
    let tx = snapshot(&mut client).await?;
    let mut feed = Feed { events: Vec::new(), next: after };
    for row in rows_from(&tx, start).await? {
        if store.dictionary.namespace_name(row.namespace).is_none() {
            learn::refresh(&store.pools.learn, &store.dictionary).await?;
        }
        let namespace =
            store.dictionary.namespace_name(row.namespace).ok_or_else(|| corrupt("a namespace in the feed"))?;
        let sources = sources(store, &tx, &row).await?;
        for item in 0..row.ids.len() {
            let place = FeedCursor {
                transaction: row.transaction,
                row: row.row,
                item: u32::try_from(item).unwrap_or(u32::MAX),
                seq: 0,
            };
            if (FeedCursor { seq: u32::MAX, ..place }) <= start {
                continue;
            }
            let (first, last) = (row.firsts[item].cast_unsigned(), row.lasts[item].cast_unsigned());
            for event in sources.events(row.ids[item], first, last) {
                let cursor = FeedCursor { seq: event.seq, ..place };
                if cursor <= start {
                    continue;
                }
                if feed.events.len() >= limit as usize {
                    return Ok(feed);
                }
                feed.next = Some(cursor);
                feed.events.push(FeedEvent { cursor, namespace: namespace.to_string(), event });
            }
        }
        feed.next = Some(FeedCursor::end_of(row.transaction, row.row));
    }
    Ok(feed)
}

/// From a place on, up to the oldest transaction that is still under way.
pub const ROWS_FROM: &str = "select xid::text::int8, id, namespace, ids, firsts, lasts from feed
             where (xid, id) >= ($1::text::xid8, $2) and xid < pg_snapshot_xmin(pg_current_snapshot())
             order by xid, id limit $3";

async fn rows_from(tx: &Transaction<'_>, start: FeedCursor) -> Result<Vec<FeedRow>, StoreError> {
    let statement = tx.prepare_cached(ROWS_FROM).await?;
    let rows = tx.query(&statement, &[&start.transaction.to_string(), &start.row.cast_signed(), &ROWS]).await?;
    Ok(rows
        .iter()
        .map(|row| FeedRow {
            transaction: row.get::<_, i64>(0).cast_unsigned(),
            row: row.get::<_, i64>(1).cast_unsigned(),
            namespace: row.get(2),
            ids: row.get(3),
            firsts: row.get(4),
            lasts: row.get(5),
        })
        .collect())
}

/// Everything the events of one row are read from.
async fn sources(store: &PostgresStore, tx: &Transaction<'_>, row: &FeedRow) -> Result<Sources, StoreError> {
    let mut sources = Sources::default();
    let lows: Vec<i32> = row.firsts.iter().map(|first| first - MOST_EVENTS.cast_signed()).collect();
    let sql = format!(
        "select {} from unnest($1::uuid[], $2::int4[], $3::int4[]) as i(id, low, last)
         cross join lateral (select * from history x where x.subject = i.id and x.seq > i.low and x.seq <= i.last) h",
        HISTORY.as_str()
    );
    let statement = tx.prepare_cached(&sql).await?;
    for found in tx.query(&statement, &[&row.ids, &lows, &row.lasts]).await? {
        sources.add_record(read_history(&mut Reader::new(&found))?.into_record()?);
    }
    let new: Vec<Uuid> = row.ids.iter().zip(&row.firsts).filter(|(_, first)| **first == 1).map(|(id, _)| *id).collect();
    if !new.is_empty() {
        let statement = tx
            .prepare_cached("select id, submitted_at, start_at from task where id = any($1) and execution_id is null")
            .await?;
        for found in tx.query(&statement, &[&new]).await? {
            sources.add_record(created_record(found.get(0), found.get(1), found.get(2)));
        }
    }
    let tasks: HashMap<Uuid, Task> =
        load_in(store, tx, &row.ids).await?.into_iter().map(|(id, stored)| (id, stored.task)).collect();
    sources.open = tasks;
    Ok(sources)
}
