//! The sequencer: gives each row of the feed its position, after the row has committed.
//!
//! A pass takes every row that is visible now and was not when the last pass ran. Which those are follows from the snapshot that the
//! last pass left behind: rows of transactions that were in progress then, and of those that began later. An open transaction of
//! another program is one number in that list and costs one look into an index. Passes exclude each other by a lock; every reader
//! may run one, and callers that wait at the same time share it.
//!
//! Positions keep the order of each log. Whoever writes into a log holds a lock on it until the commit, and draws the number of its
//! feed row (`feed.id`) under that lock. So the earlier of two transactions has committed before the later one writes: a pass that
//! sees the later one sees the earlier one too, and the earlier one has the smaller number.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use deadpool_postgres::{GenericClient, Object, Pool};
use tokio::sync::Mutex;
use tokio_postgres::types::ToSql;

use super::feed;
use crate::page::FeedCursor;
use crate::{StoreError, sql};

/// At the earliest so long after the last pass the next one begins: what commits meanwhile shares it.
const GATHER: Duration = Duration::from_millis(10);

/// The newest snapshot, as a table of one row.
const SEEN: &str =
    "(select snapshot from feed_position where snapshot is not null order by position desc limit 1) seen";

/// Passes run one after the other, whichever instance they belong to.
const LOCK: &str = "select pg_advisory_xact_lock(25446, hashtext(current_schema()))";

/// One pass. It must be a statement of its own after the lock, so that its snapshot is younger than the pass before it.
pub const PASS: &str = "with seen as materialized (
           select snapshot from feed_position where snapshot is not null order by position desc limit 1),
         fresh as (
           select f.id from feed f where f.xid >= (select pg_snapshot_xmax(snapshot) from seen)
           union all
           select f.id from seen cross join lateral pg_snapshot_xip(seen.snapshot) as open(xid)
             join feed f on f.xid = open.xid),
         numbered as (select id, row_number() over (order by id) as place, count(*) over () as places from fresh)
         insert into feed_position (position, feed_id, snapshot)
         select (select position from feed_position order by position desc limit 1) + place, id,
           case when place = places then pg_current_snapshot() end
         from numbered order by place
         on conflict (feed_id) where feed_id > 0 do nothing";

/// Rows of the feed that have no position yet, as this snapshot sees them.
pub fn pending_rows() -> String {
    format!(
        "select f.* from {SEEN} join feed f on f.xid >= pg_snapshot_xmax(seen.snapshot)
         union all
         select f.* from {SEEN} cross join lateral pg_snapshot_xip(seen.snapshot) as open(xid) join feed f on f.xid = open.xid"
    )
}

/// Whether a reader that stands at a position needs a pass: fewer rows than a page follow, and some have no position yet.
pub const IS_NEEDED: &str =
    "select (select count(*) from (select 1 from feed_position where position > $1 limit $2) ahead) < $2
       and (exists (select 1 from feed f where f.xid >= (select pg_snapshot_xmax(snapshot) from
              (select snapshot from feed_position where snapshot is not null order by position desc limit 1) seen))
         or exists (select 1 from
              (select snapshot from feed_position where snapshot is not null order by position desc limit 1) seen
              cross join lateral pg_snapshot_xip(seen.snapshot) as open(xid) join feed f on f.xid = open.xid))";

/// Runs passes for one instance.
pub struct Sequencer {
    pool: Pool,
    /// When the last pass of this instance began.
    turn: Mutex<Option<Instant>>,
    begun: AtomicU64,
    done: AtomicU64,
}

impl Sequencer {
    pub fn new(pool: Pool) -> Sequencer {
        Sequencer { pool, turn: Mutex::default(), begun: AtomicU64::new(0), done: AtomicU64::new(0) }
    }

    /// Returns after a pass that began later than this call: everything that had committed by then has its position.
    pub async fn run(&self) -> Result<(), StoreError> {
        let before = self.begun.load(Ordering::SeqCst);
        let mut turn = self.turn.lock().await;
        if self.done.load(Ordering::SeqCst) > before {
            return Ok(());
        }
        if let Some(left) = turn.and_then(|began| GATHER.checked_sub(began.elapsed())) {
            tokio::time::sleep(left).await;
        }
        *turn = Some(Instant::now());
        let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        pass(&self.pool.get().await?).await?;
        self.done.store(number, Ordering::SeqCst);
        Ok(())
    }

    /// The same for a reader that stands at a position, where it is needed. A reader is not refused because of a pass that failed:
    /// it gets what has a position already, and the next one tries again.
    pub async fn run_for(&self, reader: &Object, position: i64, page: i64) -> Result<(), StoreError> {
        let statement = reader.prepare_cached(IS_NEEDED).await?;
        if !reader.query_one(&statement, &[&position, &page]).await?.get::<_, bool>(0) {
            return Ok(());
        }
        if let Err(error) = self.run().await {
            let sql = "select exists (select 1 from feed_position where position > $1)";
            let statement = reader.prepare_cached(sql).await?;
            if !reader.query_one(&statement, &[&position]).await?.get::<_, bool>(0) {
                return Err(error);
            }
            tracing::warn!(%error, "feed rows could not be given positions");
        }
        Ok(())
    }
}

/// The whole transaction goes out in one write, so no client that stops in the midst of it keeps the lock.
async fn pass(client: &Object) -> Result<(), StoreError> {
    let lock = client.prepare_cached(LOCK).await?;
    let statement = client.prepare_cached(PASS).await?;
    let nothing: [&(dyn ToSql + Sync); 0] = [];
    let (begun, locked, passed, committed) = tokio::join!(
        client.batch_execute("begin isolation level read committed"),
        client.execute(&lock, &nothing),
        client.execute(&statement, &nothing),
        client.batch_execute("commit"),
    );
    begun?;
    locked?;
    passed?;
    Ok(committed?)
}

/// A dump that was restored into another cluster brings numbers of transactions that mean nothing there. Everything in it is past:
/// it gets its positions, and a snapshot of this cluster comes behind it. Whoever opens the database does this before it writes.
pub async fn take_over(client: &mut tokio_postgres::Client) -> Result<(), StoreError> {
    if !client.query_one(IS_FOREIGN, &[]).await?.get::<_, bool>(0) {
        return Ok(());
    }
    let tx = client.transaction().await?;
    tx.execute(LOCK, &[]).await?;
    tx.execute(PASS, &[]).await?;
    translate_stored(&tx).await?;
    tx.execute("update feed set xid = '3' where xid >= pg_snapshot_xmin(pg_current_snapshot())", &[]).await?;
    tx.execute(
        "insert into feed_position (position, feed_id, snapshot)
         select coalesce(max(position), 0) + 1, 0, pg_current_snapshot() from feed_position",
        &[],
    )
    .await?;
    tx.commit().await?;
    Ok(())
}

/// Cursors that are kept in the database, while the numbers that they name are still there.
async fn translate_stored(tx: &tokio_postgres::Transaction<'_>) -> Result<(), StoreError> {
    let translated = async |text: &str| -> Result<Option<String>, StoreError> {
        let Some(cursor) = text.parse().ok().filter(|it: &FeedCursor| !it.is_position()) else { return Ok(None) };
        let given: [&(dyn ToSql + Sync); 2] = [&cursor.transaction.to_string(), &cursor.row.cast_signed()];
        let found = tx.query_opt(feed::TRANSLATE, &given).await?;
        Ok(Some(feed::translation(cursor, found.as_ref()).to_string()))
    };
    let place: String = tx.query_one(sql::stats::PLACE.postgres, &[]).await?.get(0);
    if let Some(place) = translated(&place).await? {
        tx.execute("update stat_fold set place = $1", &[&place]).await?;
    }
    for table in ["subscription", "alert"] {
        for row in tx.query(&format!("select namespace, name, standing from {table}"), &[]).await? {
            let (namespace, name, text): (i32, String, String) = (row.get(0), row.get(1), row.get(2));
            let Ok(mut standing) = serde_json::from_str::<serde_json::Value>(&text) else { continue };
            let Some(cursor) = translated(standing["cursor"].as_str().unwrap_or_default()).await? else { continue };
            standing["cursor"] = cursor.into();
            let sql = format!("update {table} set standing = $3 where namespace = $1 and name = $2");
            tx.execute(&sql, &[&namespace, &name, &standing.to_string()]).await?;
        }
    }
    Ok(())
}

/// Whether the feed, or the newest snapshot, names transactions that have not happened in this cluster.
pub const IS_FOREIGN: &str = "select
       exists (select 1 from feed where xid >= pg_snapshot_xmax(pg_current_snapshot()))
       or exists (select 1 from
         (select snapshot from feed_position where snapshot is not null order by position desc limit 1) seen
         where pg_snapshot_xmax(seen.snapshot) > pg_snapshot_xmax(pg_current_snapshot()))";

/// Deletes what the feed told before an instant, the first positions first, and answers how many went. The newest snapshot stays.
pub async fn prune(client: &impl GenericClient, before: i64, limit: i64) -> Result<u64, StoreError> {
    let sql = "with newest as materialized (
             select position from feed_position where snapshot is not null order by position desc limit 1),
           oldest as materialized (
             select p.position, p.feed_id, p.position < (select position from newest) as goes, f.id is not null as is_told
             from (select position, feed_id from feed_position where feed_id > 0 order by position limit $2) p
             left join feed f on f.id = p.feed_id
             where f.id is null or f.at < $1),
           gone as (delete from feed_position where position = any(array(select position from oldest where goes))),
           bare as (
             delete from feed_position where feed_id = 0 and position < (select position from newest)
               and position < (select max(position) from oldest)),
           untold as (delete from feed where id = any(array(select feed_id from oldest where is_told)))
           select count(*) from oldest where goes or is_told";
    Ok(client.query_one(sql, &[&before, &limit]).await?.get::<_, i64>(0).cast_unsigned())
}
