//! The feed: what happened, in the order of positions. A row has none before it has committed (see `sequence`), so nothing ever
//! appears behind a reader.

use std::collections::HashMap;

use async_trait::async_trait;
use comeback_core::Task;
use deadpool_postgres::{GenericClient, Object, Transaction};
use uuid::Uuid;

use super::queries::{HISTORY, load_in, snapshot};
use super::rows::Reader;
use super::{PostgresStore, epoch, learn};
use crate::events::{MOST_EVENTS, Sources};
use crate::page::FeedCursor;
use crate::row::{HistoryRow, corrupt, created_record};
use crate::{EventLog, Feed, FeedEvent, StoreError};

/// Rows read at a time; each may stand for a thousand tasks.
pub const ROWS: i64 = 32;

pub struct FeedRow {
    pub position: u64,
    pub namespace: i32,
    /// Items before those that were read, and whether there are some behind them.
    skipped: u32,
    is_cut: bool,
    pub ids: Vec<Uuid>,
    pub firsts: Vec<i32>,
    pub lasts: Vec<i32>,
}

/// Where a reader begins, as a position, after everything that has committed by now got one.
pub async fn up_to_date(store: &PostgresStore, client: &Object, after: FeedCursor) -> Result<FeedCursor, StoreError> {
    let start = translated(client, after).await?;
    store.sequencer.run_for(client, start.row.cast_signed(), ROWS).await?;
    Ok(start)
}

/// Cursors given out before there were positions name a transaction and a row. The rows of that time got their positions in that
/// order. Where the row is pruned, everything before it is, too: what is left comes after it.
pub async fn translated(client: &impl GenericClient, cursor: FeedCursor) -> Result<FeedCursor, StoreError> {
    if cursor.is_position() {
        return Ok(cursor);
    }
    if cursor.transaction == 0 {
        return Ok(FeedCursor::at(0));
    }
    let statement = client.prepare_cached(TRANSLATE).await?;
    let found = client.query_opt(&statement, &[&cursor.transaction.to_string(), &cursor.row.cast_signed()]).await?;
    Ok(translation(cursor, found.as_ref()))
}

/// The last row that a cursor from before has passed, and whether it stands in that row.
pub const TRANSLATE: &str = "select p.position, f.xid = $1::text::xid8 and f.id = $2
       from feed f join feed_position p on p.feed_id = f.id
       where (f.xid, f.id) <= ($1::text::xid8, $2)
         and p.position <= (select value::int8 from meta where key = 'feed_legacy_end')
       order by f.xid desc, f.id desc limit 1";

/// The answer of `TRANSLATE`, as a cursor.
pub fn translation(cursor: FeedCursor, found: Option<&tokio_postgres::Row>) -> FeedCursor {
    let Some(found) = found else { return FeedCursor::at(0) };
    let position = found.get::<_, i64>(0).cast_unsigned();
    match found.get(1) {
        true => FeedCursor { item: cursor.item, seq: cursor.seq, ..FeedCursor::at(position) },
        false => FeedCursor::end_of_position(position),
    }
}

/// How many rows fill a page: every item is an event at least, but for the one that a page before began with.
fn enough(rows: &[FeedRow], limit: u32) -> usize {
    let mut items = 0;
    let is_full = |row: &FeedRow| {
        items += row.ids.len();
        items > limit as usize
    };
    rows.iter().position(is_full).map_or(rows.len(), |last| last + 1)
}

/// From a position on: of each row so many items, of the first those from one of them on. A row may have ten thousand, and whoever reads
/// them by fifty must not read all of them each time.
pub const ROWS_FROM: &str = "select p.position, f.namespace, w.skip, cardinality(f.ids) > w.skip + $4,
               f.ids[w.skip + 1 : w.skip + $4], f.firsts[w.skip + 1 : w.skip + $4], f.lasts[w.skip + 1 : w.skip + $4]
             from feed_position p join feed f on f.id = p.feed_id
             cross join lateral (select case when p.position = $1 then $3::int4 else 0 end as skip) w
             where p.position >= $1 order by p.position limit $2";

/// More items than a row has.
const ALL_ITEMS: i32 = 1 << 30;

/// Rows from a position on, whole or with as many items as a page of `limit` events can need.
pub async fn rows_from(
    tx: &Transaction<'_>,
    start: FeedCursor,
    limit: Option<u32>,
) -> Result<Vec<FeedRow>, StoreError> {
    let number = |items: u32| i32::try_from(items).unwrap_or(ALL_ITEMS).min(ALL_ITEMS - 1);
    let (skip, most) = match limit {
        Some(limit) => (number(start.item), number(limit.saturating_add(1))),
        None => (0, ALL_ITEMS),
    };
    let statement = tx.prepare_cached(ROWS_FROM).await?;
    let rows = tx.query(&statement, &[&start.row.cast_signed(), &ROWS, &skip, &most]).await?;
    Ok(rows
        .iter()
        .map(|row| FeedRow {
            position: row.get::<_, i64>(0).cast_unsigned(),
            namespace: row.get(1),
            skipped: row.get::<_, i32>(2).cast_unsigned(),
            is_cut: row.get(3),
            ids: row.get(4),
            firsts: row.get(5),
            lasts: row.get(6),
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
        sources.add_record(HistoryRow::read(&mut Reader::new(&found))?.into_record()?);
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

#[async_trait]
impl EventLog for PostgresStore {
    async fn feed(&self, after: Option<FeedCursor>, limit: u32) -> Result<Feed, StoreError> {
        self.read(async {
            let mut client = self.reader().await?;
            let start = up_to_date(self, &client, after.unwrap_or_default()).await?;
            let tx = snapshot(&mut client).await?;
            let mut feed = Feed { events: Vec::new(), next: after };
            let mut rows = rows_from(&tx, start, Some(limit)).await?;
            rows.truncate(enough(&rows, limit));
            let sources = sources(self, &tx, &rows).await?;
            for row in rows {
                if self.dictionary.namespace_name(row.namespace).is_none() {
                    learn::refresh(&self.pools.learn, &self.dictionary).await?;
                }
                let namespace =
                    self.dictionary.namespace_name(row.namespace).ok_or_else(|| corrupt("a namespace in the feed"))?;
                for item in 0..row.ids.len() {
                    let number = row.skipped.saturating_add(u32::try_from(item).unwrap_or(u32::MAX));
                    let place = FeedCursor { item: number, ..FeedCursor::at(row.position) };
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
                if row.is_cut {
                    let last =
                        row.skipped.saturating_add(u32::try_from(row.ids.len()).unwrap_or(u32::MAX)).saturating_sub(1);
                    let end = FeedCursor { item: last, seq: u32::MAX, ..FeedCursor::at(row.position) };
                    feed.next = feed.next.max(Some(end));
                    return Ok(feed);
                }
                // A cursor at the end of this row that was given out before it had a position is as good.
                if FeedCursor::end_of_position(row.position) > start {
                    feed.next = Some(FeedCursor::end_of_position(row.position));
                }
            }
            Ok(feed)
        })
        .await
    }

    /// Commits before this call are behind the cursor, later ones come after it.
    async fn feed_end(&self) -> Result<FeedCursor, StoreError> {
        self.read(async {
            self.sequencer.run().await?;
            let client = self.reader().await?;
            let statement =
                client.prepare_cached("select position from feed_position order by position desc limit 1").await?;
            let last: i64 = client.query_one(&statement, &[]).await?.get(0);
            Ok(FeedCursor::end_of_position(last.cast_unsigned()))
        })
        .await
    }

    async fn feed_cursor(&self, cursor: FeedCursor) -> Result<FeedCursor, StoreError> {
        let client = self.reader().await?;
        self.read(translated(&*client, cursor)).await
    }

    async fn epoch(&self) -> Result<String, StoreError> {
        epoch::epoch(self).await
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use std::time::Duration;

    use comeback_core::{Commit, End, ExecutionId};
    use tokio_postgres::Client;

    use super::super::{PostgresOptions, PostgresStore, setup};
    use crate::ClaimRequest;
    use crate::conformance::World;
    use crate::conformance::postgres::Database;

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

        async fn check_order(&self) {
            let mut told: BTreeMap<ExecutionId, Vec<u32>> = BTreeMap::new();
            let mut cursor = None;
            loop {
                let feed = self.world.store.feed(cursor, 1_000).await.expect("the feed");
                if feed.next == cursor {
                    break;
                }
                cursor = feed.next;
                for it in &feed.events {
                    told.entry(it.event.execution).or_default().push(it.event.seq);
                }
            }
            assert!(!told.is_empty());
            for (execution, told) in &told {
                let log: Vec<u32> = self.world.execution_log(*execution).await.iter().map(|it| it.seq).collect();
                assert_eq!(log, *told, "{execution}");
            }
        }
    }

    async fn connect(options: &PostgresOptions) -> Client {
        let (client, connection) = setup::connect(options).await.expect("the cluster answers");
        tokio::spawn(connection);
        client
    }
}
