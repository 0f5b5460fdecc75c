//! PostgreSQL: many instances, one truth.
//!
//! Everything hot is one statement over arrays, so that a thousand tasks cost one round trip and one flush. Rows are locked in a
//! fixed order: executions first, then open tasks by id; claims skip what is locked and never wait while they hold a task.

mod accounts;
mod apply;
mod audit;
mod check;
mod claim;
mod columns;
mod control;
mod counts;
mod dependencies;
mod describe;
mod documents;
mod due;
mod epoch;
mod error_groups;
mod errors;
mod executions;
mod feed;
mod health;
mod heartbeat;
mod instances;
mod lanes;
mod learn;
mod list;
mod operations;
mod payloads;
#[cfg(test)]
mod plans;
mod promote;
mod queries;
mod read_client;
mod resources;
mod retention;
mod rows;
mod rules;
mod secrets;
mod sequence;
#[cfg(test)]
mod sequence_tests;
pub(crate) mod setup;
mod shared;
mod stats;
mod submit;
mod tasks;
mod tls;
mod wake;

use std::sync::Arc;

use read_client::ReadClient;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use crate::dictionary::Dictionary;
use crate::forget::UnusedCandidates;
use crate::interactive::{Scope, Searches};
use crate::schema::SchemaState;
use crate::{Background, StoreError};

pub use check::check;
pub use health::{Health, Holder, HolderKind, health};
pub use setup::PostgresOptions;

/// A store in a schema of a PostgreSQL database.
pub struct PostgresStore {
    options: PostgresOptions,
    pools: setup::Pools,
    searches: Arc<Searches>,
    dictionary: Arc<Dictionary>,
    wake: wake::Wake,
    sequencer: sequence::Sequencer,
    background: Background,
    /// Held while new lanes and policies are counted and given their numbers.
    learning: tokio::sync::Mutex<()>,
    suspects: UnusedCandidates,
    #[cfg(any(test, feature = "conformance"))]
    count_without_locks: bool,
}

impl PostgresStore {
    /// Migrates the schema and connects.
    pub async fn open(options: &PostgresOptions) -> Result<PostgresStore, StoreError> {
        setup::migrate(options).await?;
        let pools = setup::pools(options).await?;
        let dictionary = Arc::new(Dictionary::default());
        learn::load(&pools.learn.get().await?, &dictionary).await?;
        rules::refresh(&pools.learn, &dictionary).await?;
        if options.warm_up {
            tokio::spawn(setup::warm(pools.write.clone(), hot_statements()));
            tokio::spawn(setup::warm(pools.read.clone(), vec![&queries::OPEN, due::NEXT_DUE]));
        }
        let background = Background::default();
        let wake = wake::Wake::start(options.clone(), pools.learn.clone(), dictionary.clone(), &background);
        let sequencer = sequence::Sequencer::new(pools.sequence.clone());
        Ok(PostgresStore {
            options: options.clone(),
            pools,
            searches: Searches::new(options.interactive_readers.saturating_sub(1)),
            dictionary,
            wake,
            sequencer,
            background,
            learning: tokio::sync::Mutex::new(()),
            suspects: UnusedCandidates::default(),
            #[cfg(any(test, feature = "conformance"))]
            count_without_locks: options.count_without_locks,
        })
    }

    /// How far a database is behind this build.
    pub async fn schema(options: &PostgresOptions) -> Result<SchemaState, StoreError> {
        let (client, connection) = setup::connect(options).await?;
        let driver = tokio::spawn(connection);
        let outcome = setup::schema(&client).await.map_err(StoreError::of_a_read);
        drop(client);
        let _ = driver.await;
        outcome
    }

    async fn writer(&self) -> Result<deadpool_postgres::Object, StoreError> {
        Ok(self.pools.write.get().await?)
    }

    /// A connection to read with. Interactive reads have their own.
    async fn reader(&self) -> Result<ReadClient, StoreError> {
        match Scope::current() {
            None => Ok(ReadClient { client: Some(self.pools.read.get().await?), interactive: None }),
            Some(scope) => {
                let client = Some(self.pools.interactive.get().await?);
                Ok(ReadClient { client, interactive: Some((scope, self.pools.tls.clone())) })
            }
        }
    }

    /// A read of more than one statement. A connection that breaks leaves nothing behind, so trying again may help.
    async fn read<T>(&self, work: impl Future<Output = Result<T, StoreError>> + Send) -> Result<T, StoreError> {
        work.await.map_err(StoreError::of_a_read)
    }

    /// A read that may have to look at many rows.
    async fn search<T>(&self, work: impl Future<Output = Result<T, StoreError>> + Send) -> Result<T, StoreError> {
        self.searches.run(self.read(work)).await
    }

    /// The rows that one statement reads.
    async fn rows(&self, sql: &str, parameters: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, StoreError> {
        let client = self.reader().await?;
        let statement = client.prepare_cached(sql).await?;
        client.query(&statement, parameters).await
    }

    /// The row that one statement finds.
    async fn row(&self, sql: &str, parameters: &[&(dyn ToSql + Sync)]) -> Result<Option<Row>, StoreError> {
        Ok(self.rows(sql, parameters).await?.pop())
    }

    /// Reads a table from end to end.
    async fn counted(&self, sql: &str, parameters: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, StoreError> {
        let mut client = self.reader().await?;
        let tx = client.transaction().await?;
        tx.batch_execute(setup::WHOLE).await?;
        let rows = tx.query(sql, parameters).await?;
        tx.commit().await?;
        Ok(rows)
    }
}

/// Statements to prepare before the first request.
fn hot_statements() -> Vec<&'static str> {
    vec![
        &submit::CREATE_PLAIN,
        &claim::ONE_LANE,
        &claim::DUE,
        &apply::SUCCESS,
        &apply::RETRY,
        control::PAUSE_LOCK,
        &promote::RETRIES,
        &promote::STARTS,
        heartbeat::BEAT,
    ]
}
