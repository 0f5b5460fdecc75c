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
pub const ROWS: i64 = 32;

pub struct FeedRow {
    pub transaction: u64,
    pub row: u64,
    pub namespace: i32,
    pub ids: Vec<Uuid>,
    pub firsts: Vec<i32>,
    pub lasts: Vec<i32>,
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
    let mut rows = rows_from(&tx, start).await?;
    rows.truncate(enough(&rows, start, limit));
    let sources = sources(store, &tx, &rows).await?;
    for row in rows {
        if store.dictionary.namespace_name(row.namespace).is_none() {
            learn::refresh(&store.pools.learn, &store.dictionary).await?;
        }
        let namespace =
            store.dictionary.namespace_name(row.namespace).ok_or_else(|| corrupt("a namespace in the feed"))?;
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

/// How many rows fill a page: every item is an event at least.
fn enough(rows: &[FeedRow], start: FeedCursor, limit: u32) -> usize {
    let mut items = 0;
    let is_full = |row: &FeedRow| {
        let told = if (row.transaction, row.row) == (start.transaction, start.row) { start.item as usize } else { 0 };
        items += row.ids.len().saturating_sub(told);
        items >= limit as usize
    };
    rows.iter().position(is_full).map_or(rows.len(), |last| last + 1)
}

/// From a place on, up to the oldest transaction that is still under way.
pub const ROWS_FROM: &str = "select xid::text::int8, id, namespace, ids, firsts, lasts from feed
             where (xid, id) >= ($1::text::xid8, $2) and xid < pg_snapshot_xmin(pg_current_snapshot())
             order by xid, id limit $3";

pub async fn rows_from(tx: &Transaction<'_>, start: FeedCursor) -> Result<Vec<FeedRow>, StoreError> {
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

/// Everything the events of these rows are read from, in as many questions as one row would need.
async fn sources(store: &PostgresStore, tx: &Transaction<'_>, rows: &[FeedRow]) -> Result<Sources, StoreError> {
    let mut sources = Sources::default();
    let mut ids: Vec<Uuid> = rows.iter().flat_map(|row| row.ids.iter().copied()).collect();
    let lows: Vec<i32> =
        rows.iter().flat_map(|row| &row.firsts).map(|first| first - MOST_EVENTS.cast_signed()).collect();
    let lasts: Vec<i32> = rows.iter().flat_map(|row| row.lasts.iter().copied()).collect();
    if ids.is_empty() {
        return Ok(sources);
    }
    let sql = format!(
        "select {} from unnest($1::uuid[], $2::int4[], $3::int4[]) as i(id, low, last)
         cross join lateral (select * from history x where x.subject = i.id and x.seq > i.low and x.seq <= i.last) h",
        HISTORY.as_str()
    );
    let statement = tx.prepare_cached(&sql).await?;
    for found in tx.query(&statement, &[&ids, &lows, &lasts]).await? {
        sources.add_record(read_history(&mut Reader::new(&found))?.into_record()?);
    }
    let items = rows.iter().flat_map(|row| row.ids.iter().zip(&row.firsts));
    let new: Vec<Uuid> = items.filter(|(_, first)| **first == 1).map(|(id, _)| *id).collect();
    if !new.is_empty() {
        let statement = tx
            .prepare_cached("select id, submitted_at, start_at from task where id = any($1) and execution_id is null")
            .await?;
        for found in tx.query(&statement, &[&new]).await? {
            sources.add_record(created_record(found.get(0), found.get(1), found.get(2)));
        }
    }
    ids.sort_unstable();
    ids.dedup();
    let tasks: HashMap<Uuid, Task> =
        load_in(store, tx, &ids).await?.into_iter().map(|(id, stored)| (id, stored.task)).collect();
    sources.open = tasks;
    Ok(sources)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use comeback_core::{Commit, End, ExecutionId};
    use tokio_postgres::Client;

    use super::super::{PostgresOptions, PostgresStore, setup};
    use crate::conformance::World;
    use crate::conformance::postgres::Database;
    use crate::types::ClaimRequest;

    /// R-I20. A transaction that has its number may have to wait; what others write into the same log meanwhile has higher numbers
    /// and comes first.
    #[tokio::test]
    async fn a_log_is_told_in_its_order_whoever_had_to_wait() {
        let place = Place::new().await;
        let world = &place.world;
        let mut settled: Vec<Commit> = Vec::new();
        let mut ids = Vec::new();
        for names in [&["a"][..], &["a"], &["a", "b"]] {
            let (id, tasks) = world.execution(names, &[]).await;
            let claimed = world.claim(1).await.remove(0);
            assert_eq!(claimed.stored.task.id, tasks["a"]);
            let mut working = world.working(id).await;
            let end = world.decide(&claimed.stored, End::Succeeded { result: None });
            working.apply(end, world.now()).expect("it may end");
            settled.push(working.into_commit());
            ids.push(id);
        }
        let (mut outside, slow_world, quick_world) = (place.connect().await, world.clone(), world.clone());
        let held = hold(&mut outside, ids[1]).await;
        let slow = tokio::spawn(async move { slow_world.store.apply(&settled, None, slow_world.now()).await });
        place.until_waiting(1, || slow.is_finished()).await;
        let quick = tokio::spawn(async move { quick_world.claim(1).await });
        place.until_waiting(2, || quick.is_finished()).await;
        held.commit().await.expect("let go");
        slow.await.expect("no panic").expect("applied");
        assert_eq!(quick.await.expect("no panic").len(), 1);
        place.check_order().await;
        place.database.drop().await;
    }

    /// The same where a lone task is leased together with tasks of executions.
    #[tokio::test]
    async fn a_task_is_told_in_its_order_whoever_had_to_wait() {
        let place = Place::new().await;
        let world = &place.world;
        let (_, _) = world.execution(&["a"], &[]).await;
        let (second, _) = world.execution(&["a"], &[]).await;
        world.submit_many("lone", 1).await;
        let (mut outside, slow_world) = (place.connect().await, world.clone());
        let held = hold(&mut outside, second).await;
        let slow = tokio::spawn(async move { slow_world.claim(3).await });
        place.until_waiting(1, || slow.is_finished()).await;
        let lone = ClaimRequest { kinds: vec!["lone".into()], ..world.request(1) };
        let claimed = world.claim_with(lone).await.remove(0);
        world.end(&claimed.stored, End::Released).await;
        held.commit().await.expect("let go");
        slow.await.expect("no panic");
        place.check_order().await;
        place.database.drop().await;
    }

    struct Place {
        database: Database,
        options: PostgresOptions,
        world: World,
        look: Client,
    }

    async fn hold(client: &mut Client, execution: ExecutionId) -> tokio_postgres::Transaction<'_> {
        let held = client.transaction().await.expect("begun");
        held.execute("select 1 from execution where id = $1 for update", &[&execution.0]).await.expect("locked");
        held
    }

    impl Place {
        async fn new() -> Place {
            let database = Database::create().await;
            let options =
                PostgresOptions { require_durability: false, warm_up: false, ..PostgresOptions::new(database.url()) };
            let world = World::new(Arc::new(PostgresStore::open(&options).await.expect("the store opens")));
            let look = connect(&options).await;
            Place { database, options, world, look }
        }

        async fn connect(&self) -> Client {
            connect(&self.options).await
        }

        /// Until so many sessions wait for a lock, or what should wait is done.
        async fn until_waiting(&self, sessions: i64, done: impl Fn() -> bool) {
            let sql = "select count(*) from pg_stat_activity
                       where wait_event_type = 'Lock' and datname = current_database()";
            while !done() && self.look.query_one(sql, &[]).await.expect("the sessions").get::<_, i64>(0) < sessions {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }

        /// Other databases of the cluster may hold up what the feed tells: it is asked until it has told everything.
        async fn check_order(&self) {
            let mut told: BTreeMap<ExecutionId, Vec<u32>> = BTreeMap::new();
            let mut cursor = None;
            let patience = Instant::now() + Duration::from_secs(20);
            loop {
                let feed = self.world.store.feed(cursor, 1_000).await.expect("the feed");
                cursor = feed.next;
                for it in &feed.events {
                    told.entry(it.event.execution).or_default().push(it.event.seq);
                }
                let mut whole = !told.is_empty() && feed.events.is_empty();
                for (execution, told) in &told {
                    let log: Vec<u32> = self.world.execution_log(*execution).await.iter().map(|it| it.seq).collect();
                    assert!(log.starts_with(told), "{execution}: {log:?} was told as {told:?}");
                    whole &= log.len() == told.len();
                }
                if whole {
                    return;
                }
                assert!(Instant::now() < patience, "told was only {told:?}");
            }
        }
    }

    async fn connect(options: &PostgresOptions) -> Client {
        let (client, connection) = setup::connect(options).await.expect("the cluster answers");
        tokio::spawn(connection);
        client
    }
}
