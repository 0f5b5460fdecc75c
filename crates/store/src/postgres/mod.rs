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
mod dependencies;
mod describe;
mod documents;
mod epoch;
mod feed;
mod flow;
mod followers;
mod forget;
mod health;
mod learn;
mod list;
mod names;
mod operations;
mod payloads;
#[cfg(test)]
mod plans;
mod read;
mod read_client;
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
mod tend;
mod tls;
mod wake;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use async_trait::async_trait;
use comeback_core::admission::{Key, Rule, Used as InUse};
use comeback_core::budget::Booked;
use comeback_core::error_group::{Deed, Group};
use comeback_core::filter::{Filter, Sort};
use comeback_core::payload::OldPayload;
use comeback_core::stats::Fold;
use comeback_core::{Audit, Class, Commit, ExecutionId, Executor, Lane, Millis, Quotas, Record, TaskId, Timestamp};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use crate::accounts::{Account, AccountChange, Closed};
use crate::audit::AuditQuery;
use crate::dependencies::Dependency;
use crate::dictionary::Dictionary;
use crate::forget::Suspects;
use crate::interactive::{Scope, Searches};
use crate::operations::{Marked, Operation, Started};
use crate::page::FeedCursor;
use crate::query::held_now;
use crate::rules::{make_way, rule_to_json, settle};
use crate::schema::SchemaState;
use crate::stats::{GroupQuery, Stretch, SumLine, SumsQuery};
use crate::types::*;
use crate::{Background, ListQuery, Store, StoreError};

use read_client::ReadClient;

pub use check::check;
pub use health::{Health, Holder, HolderKind, health};
pub use setup::PostgresOptions;

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
    suspects: Suspects,
    #[cfg(any(test, feature = "conformance"))]
    count_without_locks: bool,
}

impl PostgresStore {
    pub async fn open(options: &PostgresOptions) -> Result<PostgresStore, StoreError> {
        setup::migrate(options).await?;
        let pools = setup::pools(options).await?;
        let dictionary = Arc::new(Dictionary::default());
        learn::load(&pools.learn.get().await?, &dictionary).await?;
        rules::refresh(&pools.learn, &dictionary).await?;
        if options.warm_up {
            tokio::spawn(setup::warm(pools.write.clone(), hot_statements()));
            tokio::spawn(setup::warm(pools.read.clone(), vec![&read::OPEN, read::NEXT_DUE]));
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
            suspects: Suspects::default(),
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

    /// A read that may have to look at many rows.
    async fn search<T>(&self, work: impl Future<Output = Result<T, StoreError>> + Send) -> Result<T, StoreError> {
        self.searches.run(work).await
    }

    /// What can only be said by reading a table from end to end.
    async fn counted(&self, sql: &str, parameters: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, StoreError> {
        let mut client = self.reader().await?;
        let tx = client.transaction().await?;
        tx.batch_execute(setup::WHOLE).await?;
        let rows = tx.query(sql, parameters).await?;
        tx.commit().await?;
        Ok(rows)
    }
}

/// What carries the load.
fn hot_statements() -> Vec<&'static str> {
    vec![
        &submit::CREATE_PLAIN,
        &claim::ONE_LANE,
        &claim::DUE,
        &apply::SUCCESS,
        &apply::RETRY,
        tend::PAUSE_LOCK,
        &tend::RETRIES,
        &tend::STARTS,
        tend::BEAT,
    ]
}

#[async_trait]
impl Store for PostgresStore {
    async fn learn(&self, submission: &Submission) -> Result<(), StoreError> {
        let placed = self.dictionary.rules().place(std::slice::from_ref(submission));
        learn::learn(self, self.dictionary.news(&placed)).await
    }

    async fn submit(&self, submissions: &[Submission], now: Timestamp) -> Result<Vec<Submitted>, StoreError> {
        submit::submit(self, submissions, now).await
    }

    async fn claim(&self, requests: &[ClaimRequest], now: Timestamp) -> Result<Vec<Vec<Claimed>>, StoreError> {
        claim::claim(self, requests, now).await
    }

    async fn apply(
        &self,
        commits: &[Commit],
        on_behalf_of: Option<Loop>,
        now: Timestamp,
    ) -> Result<Vec<Applied>, StoreError> {
        make_way(self, commits).await?;
        apply::apply(self, commits, on_behalf_of, now).await
    }

    async fn apply_once(
        &self,
        namespace: &str,
        key: &Idempotency,
        commit: Option<&Commit>,
        now: Timestamp,
    ) -> Result<Applied, StoreError> {
        make_way(self, commit.map(std::slice::from_ref).unwrap_or_default()).await?;
        apply::apply_once(self, namespace, key, commit, now).await
    }

    async fn apply_spawning(
        &self,
        commit: &Commit,
        spawn: &Submission,
        behalf: Behalf<'_>,
        now: Timestamp,
    ) -> Result<Applied, StoreError> {
        make_way(self, std::slice::from_ref(commit)).await?;
        apply::apply_spawning(self, commit, spawn, behalf, now).await
    }

    async fn used(&self, namespace: &str, key: &Idempotency) -> Result<Option<Used>, StoreError> {
        read::used(self, namespace, key).await.map_err(StoreError::of_a_read)
    }

    async fn kept_answer(&self, namespace: &str, key: &Idempotency) -> Result<Option<serde_json::Value>, StoreError> {
        read::kept_answer(self, namespace, key).await.map_err(StoreError::of_a_read)
    }

    async fn heartbeat(&self, beats: &[Beat], now: Timestamp) -> Result<Vec<BeatAnswer>, StoreError> {
        tend::heartbeat(self, beats, now).await
    }

    async fn outlast(&self, from: Timestamp, to: Timestamp) -> Result<u64, StoreError> {
        tend::outlast(self, from, to).await
    }

    async fn count(&self, counts: &[Count], now: Timestamp) -> Result<Vec<bool>, StoreError> {
        tend::count(self, counts, now).await
    }

    async fn promote(&self, what: Promote, now: Timestamp, limit: u32) -> Result<Promoted, StoreError> {
        tend::promote(self, what, now, limit).await
    }

    async fn due(&self, what: Due, now: Timestamp, limit: u32) -> Result<Vec<Stored>, StoreError> {
        read::due(self, what, now, limit).await.map_err(StoreError::of_a_read)
    }

    async fn next_due(&self) -> Result<NextDue, StoreError> {
        read::next_due(self).await.map_err(StoreError::of_a_read)
    }

    async fn due_before(&self, until: Timestamp) -> Result<DueBefore, StoreError> {
        self.search(read::due_before(self, until)).await.map_err(StoreError::of_a_read)
    }

    async fn retry_after(&self, after: Timestamp) -> Result<Option<Timestamp>, StoreError> {
        read::retry_after(self, after).await.map_err(StoreError::of_a_read)
    }

    async fn load(&self, ids: &[TaskId]) -> Result<Vec<Option<Stored>>, StoreError> {
        read::load(self, ids).await.map_err(StoreError::of_a_read)
    }

    async fn graph(&self, id: ExecutionId, around: Option<&[TaskId]>) -> Result<Option<Graph>, StoreError> {
        read::graph(self, id, around).await.map_err(StoreError::of_a_read)
    }

    async fn task(&self, namespace: &str, id: TaskId) -> Result<Option<TaskView>, StoreError> {
        read::task(self, namespace, id).await.map_err(StoreError::of_a_read)
    }

    async fn describe(
        &self,
        id: TaskId,
        change: &Description,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        describe::describe(self, id, change, audit, now).await
    }

    async fn old_payloads(&self, id: TaskId) -> Result<Vec<OldPayload>, StoreError> {
        payloads::old(self, id).await.map_err(StoreError::of_a_read)
    }

    async fn list(&self, namespace: &str, query: &ListQuery) -> Result<Listing, StoreError> {
        self.search(list::list(self, namespace, query)).await.map_err(StoreError::of_a_read)
    }

    async fn history(&self, subject: Subject, after: u32, limit: u32) -> Result<Vec<Record>, StoreError> {
        read::history(self, subject, after, limit).await.map_err(StoreError::of_a_read)
    }

    async fn runs_before(&self, id: TaskId, before: u32, limit: u32) -> Result<Vec<Record>, StoreError> {
        read::runs_before(self, id, before, limit).await.map_err(StoreError::of_a_read)
    }

    async fn ended(&self, leases: &[(TaskId, u32)]) -> Result<Vec<Option<Record>>, StoreError> {
        read::ended(self, leases).await.map_err(StoreError::of_a_read)
    }

    async fn feed(&self, after: Option<FeedCursor>, limit: u32) -> Result<Feed, StoreError> {
        feed::feed(self, after, limit).await.map_err(StoreError::of_a_read)
    }

    async fn feed_end(&self) -> Result<FeedCursor, StoreError> {
        feed::feed_end(self).await.map_err(StoreError::of_a_read)
    }

    async fn feed_cursor(&self, cursor: FeedCursor) -> Result<FeedCursor, StoreError> {
        feed::translated(&*self.reader().await?, cursor).await.map_err(StoreError::of_a_read)
    }

    async fn epoch(&self) -> Result<String, StoreError> {
        epoch::epoch(self).await
    }

    async fn execution(&self, namespace: &str, id: ExecutionId) -> Result<Option<ExecutionView>, StoreError> {
        flow::execution_view(self, namespace, id).await.map_err(StoreError::of_a_read)
    }

    async fn executions(&self, namespace: &str, query: &ExecutionQuery) -> Result<Vec<ExecutionView>, StoreError> {
        self.search(flow::executions(self, namespace, query)).await.map_err(StoreError::of_a_read)
    }

    async fn steps(
        &self,
        execution: ExecutionId,
        which: StepsOf<'_>,
        most_bytes: u64,
    ) -> Result<Vec<StepView>, StoreError> {
        flow::steps(self, execution, which, most_bytes).await.map_err(StoreError::of_a_read)
    }

    async fn tree(&self, execution: ExecutionId) -> Result<Option<Tree>, StoreError> {
        flow::tree(self, execution).await.map_err(StoreError::of_a_read)
    }

    async fn gates(&self, per_namespace: u32) -> Result<Vec<Stored>, StoreError> {
        flow::gates(self, per_namespace).await.map_err(StoreError::of_a_read)
    }

    async fn call_ends(&self, limit: u32) -> Result<Vec<CallEnd>, StoreError> {
        flow::call_ends(self, limit).await.map_err(StoreError::of_a_read)
    }

    async fn orphans(&self, limit: u32) -> Result<Vec<(String, ExecutionId)>, StoreError> {
        flow::orphans(self, limit).await.map_err(StoreError::of_a_read)
    }

    async fn document(&self, at: Shelf<'_>, name: &str, version: Option<u32>) -> Result<Option<Document>, StoreError> {
        documents::one(self, at, name, version).await.map_err(StoreError::of_a_read)
    }

    async fn documents(&self, at: Shelf<'_>, after: &str, limit: u32) -> Result<Vec<Document>, StoreError> {
        documents::newest(self, at, after, limit).await.map_err(StoreError::of_a_read)
    }

    async fn versions(&self, at: Shelf<'_>, name: &str, limit: u32) -> Result<Vec<Document>, StoreError> {
        documents::versions(self, at, name, limit).await.map_err(StoreError::of_a_read)
    }

    async fn put_document(
        &self,
        at: Shelf<'_>,
        name: &str,
        known: u32,
        body: &str,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        documents::put(self, at, name, known, body, audit, now).await
    }

    async fn delete_document(&self, at: Shelf<'_>, name: &str) -> Result<bool, StoreError> {
        documents::delete(self, at, name).await
    }

    async fn follower(&self, sort: Following, namespace: &str, name: &str) -> Result<Option<Follower>, StoreError> {
        followers::one(self, sort, namespace, name).await.map_err(StoreError::of_a_read)
    }

    async fn followers(
        &self,
        sort: Following,
        namespace: &str,
        after: &str,
        limit: u32,
    ) -> Result<Vec<Follower>, StoreError> {
        followers::page(self, sort, namespace, after, limit).await.map_err(StoreError::of_a_read)
    }

    async fn due_followers(&self, sort: Following, now: Timestamp, limit: u32) -> Result<Vec<Follower>, StoreError> {
        followers::due(self, sort, now, limit).await.map_err(StoreError::of_a_read)
    }

    async fn active_followers(
        &self,
        sort: Following,
        after: Option<(&str, &str)>,
        limit: u32,
    ) -> Result<Vec<Follower>, StoreError> {
        followers::active(self, sort, after, limit).await.map_err(StoreError::of_a_read)
    }

    async fn put_follower(
        &self,
        follower: &Follower,
        start: Option<&Submission>,
        on_behalf_of: Option<Loop>,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<Applied, StoreError> {
        followers::put(self, follower, start, on_behalf_of, audit, now).await
    }

    async fn delete_follower(
        &self,
        sort: Following,
        namespace: &str,
        name: &str,
        audit: Option<&Audit>,
    ) -> Result<bool, StoreError> {
        followers::delete(self, sort, namespace, name, audit).await
    }

    async fn counts(&self, namespace: &str, now: Timestamp) -> Result<Counts, StoreError> {
        let count = async {
            let closed = list::closed(self, namespace, now).await.map_err(StoreError::of_a_read)?;
            let held = held_now(&self.dictionary, namespace, &closed, now);
            read::counts(self, namespace, Counts::ALL, &held).await.map_err(StoreError::of_a_read)
        };
        self.search(count).await
    }

    async fn retried(&self, namespace: &str) -> Result<Counts, StoreError> {
        self.search(read::counts(self, namespace, Counts::RETRIED, "false")).await.map_err(StoreError::of_a_read)
    }

    async fn open_work(&self, now: Timestamp) -> Result<OpenWork, StoreError> {
        read::open_work(self, now).await.map_err(StoreError::of_a_read)
    }

    async fn prune(&self, before: Timestamp, limit: u32) -> Result<Pruned, StoreError> {
        tend::prune(self, before, limit).await
    }

    async fn prunable(&self, before: Timestamp) -> Result<u64, StoreError> {
        self.search(tend::prunable(self, before)).await
    }

    async fn set_pause(
        &self,
        name: Loop,
        pause: Option<Pause>,
        audit: Option<&Audit>,
        _now: Timestamp,
    ) -> Result<(), StoreError> {
        tend::set_pause(self, name, pause.as_ref(), audit).await
    }

    async fn pauses(&self) -> Result<Vec<(Loop, Pause)>, StoreError> {
        read::pauses(self).await.map_err(StoreError::of_a_read)
    }

    /// What another instance has just added is looked up first.
    async fn lane_namespaces(&self, executor: Option<Executor>) -> Result<Vec<String>, StoreError> {
        learn::has_grown(self).await.map_err(StoreError::of_a_read)?;
        Ok(self.dictionary.lane_namespaces(executor))
    }

    fn set_quotas(&self, quotas: &Quotas) {
        self.dictionary.set_quotas(quotas);
    }

    async fn forget_unused(&self, now: Timestamp) -> Result<Forgotten, StoreError> {
        forget::lanes(self, now).await
    }

    async fn forget_policies(&self, beyond: u64, now: Timestamp) -> Result<u64, StoreError> {
        forget::policies(self, beyond, now).await
    }

    async fn rules(&self, namespace: &str) -> Result<Vec<Rule>, StoreError> {
        let book = rules::refresh(&self.pools.read, &self.dictionary).await.map_err(StoreError::of_a_read)?;
        Ok(book.of(namespace).to_vec())
    }

    async fn put_rule(
        &self,
        namespace: &str,
        rule: &Rule,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<Option<i64>, StoreError> {
        rules::put(self, namespace, &rule.name, &rule_to_json(rule)?, audit, now).await
    }

    async fn delete_rule(&self, namespace: &str, name: &str, audit: Option<&Audit>) -> Result<Option<i64>, StoreError> {
        rules::delete(self, namespace, name, audit).await
    }

    async fn delete_unused_rules(&self, namespace: &str, names: &[String]) -> Result<Option<i64>, StoreError> {
        rules::delete_unused(self, namespace, names).await
    }

    async fn settle_rules(&self) -> Result<Settled, StoreError> {
        settle(self).await
    }

    async fn carry_rules(&self, id: ExecutionId, kind: &str, names: &[String]) -> Result<u64, StoreError> {
        rules::carry(self, id.0, kind, names).await
    }

    async fn in_use(&self, namespace: &str) -> Result<Vec<(Key, InUse)>, StoreError> {
        rules::used(self, namespace).await.map_err(StoreError::of_a_read)
    }

    fn held_by_rules(&self) -> u64 {
        self.dictionary.held.load(std::sync::atomic::Ordering::Relaxed)
    }

    fn held_by_dependencies(&self) -> u64 {
        self.dictionary.held_back.load(std::sync::atomic::Ordering::Relaxed)
    }

    fn freed_by(&self, lane: &Lane) -> Vec<Arc<Lane>> {
        self.dictionary.freed_by(lane)
    }

    async fn meta(&self, key: &str) -> Result<Option<String>, StoreError> {
        read::meta(self, key).await.map_err(StoreError::of_a_read)
    }

    async fn put_meta(
        &self,
        key: &str,
        value: &str,
        when: PutIf<'_>,
        audit: Option<&Audit>,
    ) -> Result<String, StoreError> {
        tend::put_meta(self, key, value, when, audit).await
    }

    async fn account(&self, namespace: &str, name: &str) -> Result<Option<Account>, StoreError> {
        accounts::one(self, namespace, name).await.map_err(StoreError::of_a_read)
    }

    async fn accounts(&self, namespace: &str, after: &str, limit: u32) -> Result<Vec<Account>, StoreError> {
        accounts::page(self, namespace, after, limit).await.map_err(StoreError::of_a_read)
    }

    async fn put_account(
        &self,
        namespace: &str,
        name: &str,
        change: &AccountChange,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<Account, StoreError> {
        accounts::put(self, namespace, name, change, audit, now).await
    }

    async fn booked(
        &self,
        namespace: &str,
        account: &str,
        since: &str,
    ) -> Result<BTreeMap<String, Booked>, StoreError> {
        accounts::booked(self, namespace, account, since).await.map_err(StoreError::of_a_read)
    }

    async fn delete_account(&self, namespace: &str, name: &str, audit: Option<&Audit>) -> Result<Closed, StoreError> {
        accounts::delete(self, namespace, name, audit).await
    }

    async fn secret(&self, namespace: &str, name: &str) -> Result<Option<SealedSecret>, StoreError> {
        secrets::one(self, namespace, name).await.map_err(StoreError::of_a_read)
    }

    async fn secrets(&self, namespace: &str, after: &str, limit: u32) -> Result<Vec<SealedSecret>, StoreError> {
        secrets::page(self, namespace, after, limit).await.map_err(StoreError::of_a_read)
    }

    async fn all_secrets(&self, after: (&str, &str), limit: u32) -> Result<Vec<SealedSecret>, StoreError> {
        secrets::all(self, after, limit).await.map_err(StoreError::of_a_read)
    }

    async fn put_secret(
        &self,
        secret: &SealedSecret,
        most: u64,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<(SealedSecret, bool), StoreError> {
        secrets::put(self, secret, most, audit, now).await
    }

    async fn reseal_secret(&self, secret: &SealedSecret) -> Result<bool, StoreError> {
        secrets::reseal(self, secret).await
    }

    async fn delete_secret(&self, namespace: &str, name: &str, audit: Option<&Audit>) -> Result<bool, StoreError> {
        secrets::delete(self, namespace, name, audit).await
    }

    async fn dependency(&self, namespace: &str, name: &str) -> Result<Option<Dependency>, StoreError> {
        dependencies::one(self, namespace, name).await.map_err(StoreError::of_a_read)
    }

    async fn dependencies(&self, namespace: &str, after: &str, limit: u32) -> Result<Vec<Dependency>, StoreError> {
        dependencies::page(self, namespace, after, limit).await.map_err(StoreError::of_a_read)
    }

    async fn due_dependencies(&self, now: Timestamp, limit: u32) -> Result<Vec<Dependency>, StoreError> {
        dependencies::due(self, now, limit).await.map_err(StoreError::of_a_read)
    }

    async fn next_dependency(&self, after: Timestamp) -> Result<Option<Timestamp>, StoreError> {
        dependencies::next(self, after).await.map_err(StoreError::of_a_read)
    }

    async fn hold_name(&self, name: &str) -> Result<HeldName, StoreError> {
        names::hold(&self.options, name).await
    }

    async fn is_waited_for(&self, namespace: &str, dependency: &str) -> Result<bool, StoreError> {
        dependencies::is_waited_for(self, namespace, dependency).await.map_err(StoreError::of_a_read)
    }

    async fn put_dependency(&self, it: &Dependency, audit: Option<&Audit>, now: Timestamp) -> Result<bool, StoreError> {
        dependencies::put(self, it, None, audit, now).await
    }

    async fn delete_dependency(&self, namespace: &str, name: &str, audit: Option<&Audit>) -> Result<bool, StoreError> {
        dependencies::delete(self, namespace, name, audit).await
    }

    async fn announce(
        &self,
        it: &Dependency,
        stopped: Option<(Timestamp, Millis)>,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        dependencies::put(self, it, stopped, audit, now).await
    }

    fn is_guarded(&self, namespace: &str, dependency: &str) -> bool {
        self.dictionary.is_guarded(namespace, dependency)
    }

    async fn matching(
        &self,
        namespace: &str,
        filter: &Filter,
        now: Timestamp,
        most: u32,
    ) -> Result<Vec<TaskId>, StoreError> {
        let query = ListQuery { filter: filter.clone(), sort: Sort::Submitted, limit: most, after: None, now };
        self.search(list::matching(self, namespace, &query)).await.map_err(StoreError::of_a_read)
    }

    async fn start_operation(
        &self,
        operation: &Operation,
        ids: &[TaskId],
        key: Option<&Idempotency>,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<Started, StoreError> {
        operations::start(self, operation, ids, key, audit, now).await
    }

    async fn operation(&self, namespace: &str, id: Uuid) -> Result<Option<Operation>, StoreError> {
        operations::one(self, namespace, id).await.map_err(StoreError::of_a_read)
    }

    async fn operations(
        &self,
        namespace: &str,
        before: Option<Uuid>,
        limit: u32,
    ) -> Result<Vec<Operation>, StoreError> {
        operations::page(self, namespace, before, limit).await.map_err(StoreError::of_a_read)
    }

    async fn due_operations(&self, now: Timestamp, limit: u32) -> Result<Vec<Operation>, StoreError> {
        operations::due(self, now, limit).await.map_err(StoreError::of_a_read)
    }

    async fn put_operation(
        &self,
        operation: &Operation,
        on_behalf_of: Option<Loop>,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<Applied, StoreError> {
        operations::put(self, operation, on_behalf_of, audit, now).await
    }

    async fn operation_ids(&self, id: Uuid, from: u32, to: u32) -> Result<Vec<TaskId>, StoreError> {
        operations::ids(self, id, from, to).await.map_err(StoreError::of_a_read)
    }

    async fn marks(&self, id: Uuid, tasks: &[TaskId]) -> Result<HashMap<TaskId, Marked>, StoreError> {
        operations::marks(self, id, tasks).await.map_err(StoreError::of_a_read)
    }

    async fn put_audit(&self, audit: &Audit) -> Result<(), StoreError> {
        let mut client = self.writer().await?;
        let tx = client.transaction().await?;
        audit::write(&tx, audit).await?;
        Ok(tx.commit().await?)
    }

    async fn audit(&self, query: &AuditQuery) -> Result<Vec<Audit>, StoreError> {
        self.search(audit::page(self, query)).await.map_err(StoreError::of_a_read)
    }

    async fn unfolded(&self, limit: u32) -> Result<Stretch, StoreError> {
        stats::unfolded(self, limit).await.map_err(StoreError::of_a_read)
    }

    async fn fold(&self, stretch: &Stretch, fold: &Fold, now: Timestamp) -> Result<bool, StoreError> {
        stats::fold(self, (&stretch.from, &stretch.to), fold, now).await
    }

    async fn sums(&self, namespace: &str, query: &SumsQuery) -> Result<Vec<SumLine>, StoreError> {
        self.search(stats::sums(self, namespace, query)).await.map_err(StoreError::of_a_read)
    }

    async fn tidy_sums(&self, now: Timestamp, limit: u32, most_groups: u32) -> Result<bool, StoreError> {
        stats::tidy_sums(self, now, limit, most_groups).await
    }

    async fn groups(&self, namespace: &str, query: &GroupQuery) -> Result<Vec<Group>, StoreError> {
        let Some(namespace) = self.dictionary.namespace(namespace) else { return Ok(Vec::new()) };
        self.search(stats::groups(self, namespace, query)).await.map_err(StoreError::of_a_read)
    }

    async fn group(&self, namespace: &str, fingerprint: i64) -> Result<Option<Group>, StoreError> {
        let Some(namespace) = self.dictionary.namespace(namespace) else { return Ok(None) };
        stats::group(self, namespace, fingerprint).await.map_err(StoreError::of_a_read)
    }

    async fn put_group(
        &self,
        namespace: &str,
        fingerprint: i64,
        deed: &Deed,
        audit: &Audit,
        now: Timestamp,
    ) -> Result<Option<Group>, StoreError> {
        let Some(namespace) = self.dictionary.namespace(namespace) else { return Ok(None) };
        stats::put_group(self, namespace, fingerprint, deed, audit, now).await
    }

    async fn reclassified(&self) -> Result<HashMap<String, HashMap<i64, Class>>, StoreError> {
        stats::reclassified(self).await.map_err(StoreError::of_a_read)
    }

    async fn open_with(&self, namespace: &str, fingerprints: &[i64]) -> Result<HashMap<i64, u64>, StoreError> {
        let lanes = self.dictionary.lanes_in(namespace, |_| true);
        self.search(stats::open_with(self, &lanes, fingerprints)).await.map_err(StoreError::of_a_read)
    }

    async fn clock_offset(&self) -> Result<Option<i64>, StoreError> {
        read::clock_offset(self).await.map_err(StoreError::of_a_read).map(Some)
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

impl StoreError {
    /// A read that broke off has done nothing.
    fn of_a_read(self) -> StoreError {
        match self {
            StoreError::Unknown(what) => StoreError::Unavailable(what),
            other => other,
        }
    }
}

impl From<tokio_postgres::Error> for StoreError {
    fn from(error: tokio_postgres::Error) -> Self {
        use tokio_postgres::error::SqlState;
        match error.as_db_error() {
            // The connection went away in the middle: what was asked may have been done or not.
            None => StoreError::Unknown(error.to_string()),
            Some(db) => {
                let message = format!("{} ({})", db.message(), db.code().code());
                let passing = [
                    SqlState::T_R_SERIALIZATION_FAILURE,
                    SqlState::T_R_DEADLOCK_DETECTED,
                    SqlState::LOCK_NOT_AVAILABLE,
                    SqlState::QUERY_CANCELED,
                    SqlState::TOO_MANY_CONNECTIONS,
                    SqlState::ADMIN_SHUTDOWN,
                    SqlState::CRASH_SHUTDOWN,
                    SqlState::CANNOT_CONNECT_NOW,
                    SqlState::DISK_FULL,
                    SqlState::READ_ONLY_SQL_TRANSACTION,
                    SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT,
                ];
                match passing.contains(db.code()) {
                    true => StoreError::Unavailable(message),
                    false => StoreError::Refused(message),
                }
            }
        }
    }
}

impl From<deadpool_postgres::PoolError> for StoreError {
    fn from(error: deadpool_postgres::PoolError) -> Self {
        StoreError::Unavailable(error.to_string())
    }
}
