//! Names of processes. Each is held by a lock of a session, which ends with the process, however that ends.

use std::time::Duration;

use async_trait::async_trait;
use comeback_core::TaskId;
use tokio_postgres::Client;

use super::setup::PostgresOptions;
use super::{PostgresStore, setup};
use crate::{Background, HeldName, InstanceStore, StoreError};

/// The first of the two numbers of such a lock; the second is made of the name.
const LOCK: i32 = 0x636e;

/// How often it is tried to have it alone.
const TRIES: u32 = 5;

const AGAIN: Duration = Duration::from_millis(200);

/// How often it is looked whether the session is still there.
const LOOK: Duration = Duration::from_secs(1);

/// The session of a name. Dropped, it ends.
struct Session(tokio::task::JoinHandle<()>);

impl Drop for Session {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// All processes of one name share its lock; who has it alone for a moment is the only one.
pub async fn hold(options: &PostgresOptions, name: &str) -> Result<HeldName, StoreError> {
    let client = session(options).await?;
    let locked = format!("{}/{name}", options.schema);
    let mut alone = false;
    for tried in 0..TRIES {
        if tried > 0 {
            // The session of one that was just killed takes a moment to end.
            tokio::time::sleep(AGAIN).await;
        }
        let row = client.query_one("select pg_try_advisory_lock($1, hashtext($2))", &[&LOCK, &locked]).await?;
        alone = row.get(0);
        if alone {
            break;
        }
    }
    let mut left = Vec::new();
    if alone {
        // Before the lock is shared: another that begins now has nothing leased yet.
        let sql = "select id from task_open where lease_expires is not null and starts_with(worker, $1) limit $2";
        let rows = client.query(sql, &[&format!("{name}/"), &i64::from(HeldName::MOST_LEFT)]).await?;
        left = rows.iter().map(|row| TaskId(row.get(0))).collect();
    }
    share(&client, &locked).await?;
    if alone {
        client.execute("select pg_advisory_unlock($1, hashtext($2))", &[&LOCK, &locked]).await?;
    }
    let options = options.clone();
    let keeper = tokio::spawn(async move {
        let mut client = client;
        loop {
            tokio::time::sleep(LOOK).await;
            if client.is_closed()
                && let Ok(other) = session(&options).await
                && share(&other, &locked).await.is_ok()
            {
                client = other;
            }
        }
    });
    Ok(HeldName { left, _kept: Box::new(Session(keeper)) })
}

async fn session(options: &PostgresOptions) -> Result<Client, StoreError> {
    let (client, connection) = setup::connect(options).await?;
    tokio::spawn(connection);
    Ok(client)
}

async fn share(client: &Client, locked: &str) -> Result<(), StoreError> {
    client.execute("select pg_advisory_lock_shared($1, hashtext($2))", &[&LOCK, &locked]).await?;
    Ok(())
}

fn wall_millis() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

#[async_trait]
impl InstanceStore for PostgresStore {
    async fn hold_name(&self, name: &str) -> Result<HeldName, StoreError> {
        hold(&self.options, name).await
    }

    /// The database's clock against ours, with half of the round trip taken off.
    async fn clock_offset(&self) -> Result<Option<i64>, StoreError> {
        self.read(async {
            let client = self.reader().await?;
            let statement =
                client.prepare_cached("select (extract(epoch from clock_timestamp()) * 1000)::int8").await?;
            let mut best: Option<(u128, i64)> = None;
            for _ in 0..3 {
                let started = std::time::Instant::now();
                let before = wall_millis();
                let theirs: i64 = client.query_one(&statement, &[]).await?.get(0);
                let trip = started.elapsed();
                let ours = before + i64::try_from(trip.as_millis() / 2).unwrap_or(0);
                if best.is_none_or(|(shortest, _)| trip.as_micros() < shortest) {
                    best = Some((trip.as_micros(), theirs - ours));
                }
            }
            Ok(Some(best.map_or(0, |(_, offset)| offset)))
        })
        .await
    }

    fn notify(&self) {
        self.wake.notify();
    }

    fn wakes(&self) -> tokio::sync::watch::Receiver<u64> {
        self.wake.wakes()
    }

    fn background(&self) -> Option<&Background> {
        Some(&self.background)
    }

    async fn close(&self) {
        self.pools.write.close();
        self.pools.read.close();
        self.pools.learn.close();
    }
}
