//! Migrations of PostgreSQL are made by one process at a time. The others wait, but not for ever, and say whom for.

use std::time::{Duration, Instant};

use comeback_store::conformance::postgres::Database;
use comeback_store::{PostgresOptions, PostgresStore, StoreError};

/// The number of the lock.
const LOCK: i64 = 0x636f_6d65_6261_636b;

#[tokio::test]
async fn who_waits_for_a_migration_gives_up_and_names_who_holds_the_lock() {
    let database = Database::create().await;
    let holder = database.connect().await;
    holder.batch_execute("set application_name = 'somebody else'").await.expect("named");
    holder.execute("select pg_advisory_lock($1)", &[&LOCK]).await.expect("locked");
    let pid: i32 = holder.query_one("select pg_backend_pid()", &[]).await.expect("a number").get(0);
    let options = PostgresOptions {
        require_durability: false,
        warm_up: false,
        migration_wait: Duration::from_millis(300),
        ..PostgresOptions::new(database.url())
    };
    let begun = Instant::now();
    let refused = PostgresStore::open(&options).await.err().expect("the lock is held");
    assert!(begun.elapsed() < Duration::from_secs(20), "it does not wait for ever");
    assert!(matches!(refused, StoreError::Unavailable(_)), "{refused}");
    let said = refused.to_string();
    for word in ["migration lock", "0.3 s", &format!("pid {pid}"), "somebody else"] {
        assert!(said.contains(word), "{said}");
    }
    holder.execute("select pg_advisory_unlock($1)", &[&LOCK]).await.expect("unlocked");
    PostgresStore::open(&options).await.expect("it is free");
    drop(holder);
    database.drop().await;
}
