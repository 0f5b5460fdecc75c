//! The feed while others hold transactions open, commit in any order, stop in the midst of something, or come from an older version.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio_postgres::Client;
use uuid::Uuid;

use super::feed::{rows_from, up_to_date};
use super::queries::snapshot;
use super::{PostgresOptions, PostgresStore};
use crate::conformance::World;
use crate::conformance::postgres::Database;
use crate::page::FeedCursor;
use crate::{EventLog, Feed, FeedEvent, Place, Retention, StatsStore, Store};

fn options(database: &Database) -> PostgresOptions {
    PostgresOptions { require_durability: false, warm_up: false, ..PostgresOptions::new(database.url()) }
}

async fn open(database: &Database) -> Arc<PostgresStore> {
    Arc::new(PostgresStore::open(&options(database)).await.expect("the store opens"))
}

/// A session that has a transaction open and has written in it.
async fn writes_and_waits(database: &Database) -> Client {
    let client = database.connect().await;
    client.batch_execute("create table if not exists public.foreign_work (n int)").await.expect("a table");
    client.batch_execute("begin; insert into public.foreign_work values (1)").await.expect("it writes");
    client
}

async fn everything(store: &dyn Store, mut cursor: Option<FeedCursor>) -> Vec<FeedEvent> {
    let mut events = Vec::new();
    loop {
        let feed = store.feed(cursor, 100).await.expect("the feed");
        if feed.next == cursor {
            return events;
        }
        cursor = feed.next;
        events.extend(feed.events);
    }
}

/// Issue: one long write transaction anywhere in the cluster stopped streams, subscriptions, alerts and statistics for everybody.
#[tokio::test]
async fn a_foreign_transaction_delays_nothing() {
    let (database, elsewhere) = (Database::create().await, Database::create().await);
    let store = open(&database).await;
    let (here, there) = (writes_and_waits(&database).await, writes_and_waits(&elsewhere).await);
    let w = World::new(store.clone());
    let begun = Instant::now();
    for round in 1..=20 {
        let from = store.feed_end().await.expect("the end");
        w.submit_many("a", 1).await;
        let claimed = w.claim(1).await.remove(0);
        w.succeed(&claimed.stored).await;
        assert_eq!(everything(&*store, Some(from)).await.len(), 5, "round {round}");
        let stretch = store.pending_stats(1_000).await.expect("the statistics");
        assert_eq!(stretch.facts.len(), 1, "round {round}");
        assert!(store.fold(&stretch, &comeback_core::stats::Fold::of(&stretch.facts), w.now()).await.expect("folded"));
    }
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    assert!(Place::Server(options(&database)).check(&mut |_| ()).await.expect("checked").is_clean());
    drop((here, there));
    assert_eq!(everything(&*store, None).await.len(), 100);
    database.drop().await;
    elsewhere.drop().await;
}

/// A late commit comes late, and no event comes twice.
#[tokio::test]
async fn a_late_commit_gets_a_later_position() {
    let database = Database::create().await;
    let store = open(&database).await;
    let w = World::new(store.clone());
    let late = database.connect().await;
    let row = "insert into comeback.feed (at, namespace, ids, firsts, lasts) values (0, 1, '{}', '{}', '{}')";
    w.submit_many("a", 1).await;
    late.batch_execute(&format!("begin; {row}")).await.expect("it writes");
    w.submit_many("b", 1).await;
    let first = store.feed(None, 100).await.expect("the feed");
    assert_eq!(first.events.len(), 4);
    let end = store.feed_end().await.expect("the end");
    late.batch_execute("commit").await.expect("it commits");
    let look = database.connect().await;
    let rows = rows_after(&store, first.next.expect("a cursor")).await;
    assert_eq!(rows.len(), 1, "the late one alone");
    assert!(FeedCursor::at(rows[0].0) > end);
    let positions = "select count(*), count(distinct feed_id) from comeback.feed_position where feed_id > 0";
    let count = look.query_one(positions, &[]).await.expect("counted");
    assert_eq!((count.get::<_, i64>(0), count.get::<_, i64>(1)), (3, 3));
    database.drop().await;
}

/// Position and the items of each row behind a cursor.
async fn rows_after(store: &PostgresStore, after: FeedCursor) -> Vec<(u64, Vec<(Uuid, i32)>)> {
    let mut client = store.reader().await.expect("a reader");
    let start = up_to_date(store, &client, after).await.expect("a place");
    let tx = snapshot(&mut client).await.expect("a snapshot");
    let rows = rows_from(&tx, start, None).await.expect("rows");
    let behind = rows.into_iter().filter(|row| FeedCursor::end_of_position(row.position) > start);
    behind.map(|row| (row.position, row.ids.into_iter().zip(row.firsts).collect())).collect()
}

/// A small generator, so that a failure can be repeated by its seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

const LOGS: u64 = 8;
const WRITERS: u64 = 6;
const ROUNDS: u64 = 40;

/// Writers that get their transaction's number before they wait for a lock, commit in any order, and take some of it back. Readers at
/// two instances follow meanwhile: each hears every committed event once, each log in its order, and never from behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_hear_each_event_once_and_each_log_in_order() {
    let seed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a time").as_nanos() as u64;
    println!("seed {seed}");
    let database = Arc::new(Database::create().await);
    let stores = [open(&database).await, open(&database).await];
    let look = database.connect().await;
    look.batch_execute(
        "create table public.log (id int8 primary key, seq int4 not null);
         insert into public.log select n, 0 from generate_series(0, 7) n; create table public.number (n int8)",
    )
    .await
    .expect("logs");
    let foreign = writes_and_waits(&database).await;
    let (over, committed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut writers = tokio::task::JoinSet::new();
    for n in 0..WRITERS {
        let (client, committed) = (database.connect().await, committed.clone());
        writers.spawn(async move { write(client, Dice(seed ^ (n << 40)), &committed).await });
    }
    let mut readers = tokio::task::JoinSet::new();
    for n in 0..4_u64 {
        let (store, over) = (stores[(n % 2) as usize].clone(), over.clone());
        readers.spawn(async move { read(&store, Dice(seed ^ (n << 50) ^ 7), &over).await });
    }
    // Whoever asks for the end hears everything that commits later, and nothing of what was committed before.
    let (mut dice, mut ends) = (Dice(seed ^ 99), Vec::new());
    while writers.try_join_next().is_some() || !writers.is_empty() {
        let store = &stores[dice.roll(2) as usize];
        let before = committed.load(Ordering::SeqCst);
        let end = store.feed_end().await.expect("the end");
        ends.push((before, end));
        tokio::time::sleep(Duration::from_millis(dice.roll(30))).await;
    }
    over.store(true, Ordering::SeqCst);
    let total = committed.load(Ordering::SeqCst);
    let mut first: Option<Vec<(u64, u64, i32)>> = None;
    for told in readers.join_all().await {
        let mut logs: BTreeMap<u64, i32> = BTreeMap::new();
        for (_, log, seq) in &told {
            let last = logs.entry(*log).or_default();
            assert_eq!(*seq, *last + 1, "seed {seed}: log {log}");
            *last = *seq;
        }
        for row in look.query("select id, seq from public.log", &[]).await.expect("the logs") {
            let (id, seq): (i64, i32) = (row.get(0), row.get(1));
            assert_eq!(logs.get(&id.cast_unsigned()).copied().unwrap_or_default(), seq, "seed {seed}: log {id}");
        }
        assert!(told.windows(2).all(|two| two[0].0 <= two[1].0), "seed {seed}: nothing comes from behind");
        assert_eq!(*first.get_or_insert_with(|| told.clone()), told, "seed {seed}: all hear the same");
    }
    let told = first.expect("a reader");
    for (before, end) in ends {
        let rows: std::collections::BTreeSet<u64> =
            told.iter().map(|it| it.0).filter(|position| FeedCursor::at(*position) > end).collect();
        assert!(total - before >= rows.len() as u64, "seed {seed}: {} of {} after the end", rows.len(), total - before);
    }
    drop((foreign, stores));
    Arc::into_inner(database).expect("nobody else has it").drop().await;
}

async fn write(client: Client, mut dice: Dice, committed: &AtomicU64) {
    for _ in 0..ROUNDS {
        client.batch_execute("begin").await.expect("begun");
        if dice.roll(2) == 0 {
            // Its number comes before it waits for anything.
            client.execute("insert into public.number values (1)", &[]).await.expect("a number");
        }
        let mut logs: Vec<u64> = (0..=dice.roll(3)).map(|_| dice.roll(LOGS)).collect();
        logs.sort_unstable();
        logs.dedup();
        let (mut ids, mut firsts) = (Vec::new(), Vec::new());
        for log in &logs {
            let sql = "update public.log set seq = seq + 1 where id = $1 returning seq";
            let seq: i32 = client.query_one(sql, &[&log.cast_signed()]).await.expect("a lock").get(0);
            ids.push(Uuid::from_u128(u128::from(*log)));
            firsts.push(seq);
            tokio::time::sleep(Duration::from_micros(dice.roll(1_500))).await;
        }
        let sql = "insert into comeback.feed (at, namespace, ids, firsts, lasts) values (0, 1, $1, $2, $2)";
        client.execute(sql, &[&ids, &firsts]).await.expect("told");
        tokio::time::sleep(Duration::from_micros(dice.roll(6_000))).await;
        if dice.roll(7) == 0 {
            client.batch_execute("rollback").await.expect("taken back");
        } else {
            client.batch_execute("commit").await.expect("committed");
            committed.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// Position, log and number of everything that is told.
async fn read(store: &PostgresStore, mut dice: Dice, over: &AtomicBool) -> Vec<(u64, u64, i32)> {
    let (mut told, mut place) = (Vec::new(), FeedCursor::default());
    loop {
        let is_over = over.load(Ordering::SeqCst);
        let rows = rows_after(store, place).await;
        if is_over && rows.is_empty() {
            return told;
        }
        for (position, items) in rows {
            place = FeedCursor::end_of_position(position);
            told.extend(items.into_iter().map(|(id, seq)| (position, id.as_u128() as u64, seq)));
        }
        tokio::time::sleep(Duration::from_millis(dice.roll(12))).await;
    }
}

/// An instance that stops in the midst of a pass keeps the lock until PostgreSQL ends its session. Readers get what has a position.
#[tokio::test]
async fn a_pass_that_hangs_stalls_nobody_for_long() {
    let database = Database::create().await;
    let store = open(&database).await;
    let w = World::new(store.clone());
    w.submit_many("a", 1).await;
    assert_eq!(everything(&*store, None).await.len(), 2);
    let held = database.connect().await;
    held.batch_execute("begin; select pg_advisory_xact_lock(25446, hashtext('comeback'))").await.expect("held");
    w.submit_many("b", 1).await;
    let begun = Instant::now();
    let feed: Feed = store.feed(None, 100).await.expect("the feed");
    assert_eq!(feed.events.len(), 2);
    assert!(store.feed(feed.next, 100).await.is_err(), "it does not pretend that there is nothing");
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    held.batch_execute("rollback").await.expect("let go");
    assert_eq!(store.feed(feed.next, 100).await.expect("the feed").events.len(), 2);
    let client = store.pools.sequence.get().await.expect("the sequencer's session");
    for (setting, most) in [("lock_timeout", "3s"), ("idle_in_transaction_session_timeout", "3s")] {
        let row = client.query_one(&format!("show {setting}"), &[]).await.expect("a setting");
        assert_eq!(row.get::<_, String>(0), most);
    }
    database.drop().await;
}

/// Cursors that the version before gave out go on where they were, event by event, also after some of the feed was pruned.
#[tokio::test]
async fn cursors_from_before_go_on_where_they_were() {
    let database = Database::create().await;
    let store = open(&database).await;
    let w = World::new(store.clone());
    for n in 0..4 {
        w.submit_many("a", 1 + n).await;
        for claimed in w.claim(2).await {
            w.succeed(&claimed.stored).await;
        }
    }
    drop((w, store));
    let look = database.connect().await;
    // As the version before left it: rows in the order of transactions, and a place of the statistics in its words.
    look.batch_execute(
        "set search_path = comeback; drop table feed_position; delete from meta where key = 'feed_legacy_end'",
    )
    .await
    .expect("as before");
    let rows = look.query("select xid::text::int8, id, firsts from feed order by xid, id", &[]).await.expect("rows");
    let numbers: Vec<(u64, u64)> =
        rows.iter().map(|row| (row.get::<_, i64>(0).cast_unsigned(), row.get::<_, i64>(1).cast_unsigned())).collect();
    let half = FeedCursor::end_of(numbers[numbers.len() / 2].0, numbers[numbers.len() / 2].1);
    look.execute("update stat_fold set place = $1", &[&half.to_string()]).await.expect("a place");
    look.batch_execute(&crate::conformance::migration::sql("postgres", 14)).await.expect("the migration");
    let store = open(&database).await;
    let all = everything(&*store, None).await;
    assert!(all.len() > 20, "{}", all.len());
    let rows_told: std::collections::BTreeSet<u64> = all.iter().map(|it| it.cursor.row).collect();
    assert_eq!(rows_told.len(), numbers.len(), "every row told something");
    let by_position: Vec<u64> = rows_told.into_iter().collect();
    for (i, told) in all.iter().enumerate() {
        let (transaction, row) = numbers[by_position.iter().position(|it| *it == told.cursor.row).expect("a row")];
        let old = FeedCursor { transaction, row, ..told.cursor };
        assert!(old < told.cursor, "an older instance leaves what follows the feed to newer ones");
        assert_eq!(store.feed_cursor(old).await.expect("translated"), told.cursor);
        assert_eq!(everything(&*store, Some(old)).await, all[i + 1..], "after event {i}");
        let end = FeedCursor::end_of(transaction, i64::MAX.cast_unsigned());
        let rest = all.iter().filter(|it| it.cursor.row > told.cursor.row).count();
        assert_eq!(everything(&*store, Some(end)).await.len(), rest, "after the transaction of event {i}");
    }
    let stretch = store.pending_stats(10_000).await.expect("the statistics");
    assert_eq!(stretch.from, half.to_string());
    let behind = all.iter().filter(|it| it.cursor.row > by_position[by_position.len() / 2]);
    assert_eq!(
        stretch.facts.len(),
        behind.filter(|it| it.event.kind == comeback_core::EventKind::TaskSucceeded).count()
    );
    let w = World::new(store.clone());
    w.pass(36_000_000);
    let last = FeedCursor {
        transaction: numbers[numbers.len() - 1].0,
        row: numbers[numbers.len() - 1].1,
        ..all[all.len() - 1].cursor
    };
    w.submit_many("new", 1).await;
    assert_eq!(everything(&*store, Some(last)).await.len(), 2, "and what is new comes after all of them");
    let first = FeedCursor { transaction: numbers[0].0, row: numbers[0].1, item: 0, seq: 1 };
    look.execute("delete from feed where id <= $1", &[&numbers[1].1.cast_signed()]).await.expect("pruned");
    assert_eq!(everything(&*store, Some(first)).await, everything(&*store, None).await);
    database.drop().await;
}

/// Pruned rows leave no position behind but the newest, and the feed goes on.
#[tokio::test]
async fn positions_are_pruned_with_their_rows() {
    let database = Database::create().await;
    let store = open(&database).await;
    let w = World::new(store.clone());
    for _ in 0..5 {
        let claimed = w.running(w.new_task("a")).await;
        w.succeed(&claimed.stored).await;
    }
    let end = store.feed_end().await.expect("the end");
    w.pass(86_400_000);
    while store.prune(w.now(), 4).await.expect("pruned").more {}
    let look = database.connect().await;
    let left = "select (select count(*) from comeback.feed), (select count(*) from comeback.feed_position)";
    let row = look.query_one(left, &[]).await.expect("counted");
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (0, 1));
    assert_eq!(store.feed_end().await.expect("the end"), end);
    w.submit_many("b", 1).await;
    assert_eq!(everything(&*store, Some(end)).await.len(), 2);
    database.drop().await;
}
