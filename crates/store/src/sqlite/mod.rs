//! SQLite: one file, one writer, and readers that never wait for it.
//!
//! Every write of a moment goes into one transaction of one thread, so nobody pays for a flush alone. An answer is given
//! after the commit and never before. There is one process per file.

mod accounts;
mod apply;
mod audit;
mod backup;
mod check;
mod claim;
mod dependencies;
mod describe;
mod documents;
mod fence;
mod flow;
mod followers;
mod forget;
mod list;
mod operations;
mod payloads;
mod read;
mod rules;
mod secrets;
mod setup;
mod shared;
mod statements;
mod stats;
mod submit;
mod tend;
mod writer;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use comeback_core::admission::{Key, Rule, Used as InUse};
use comeback_core::budget::Booked;
use comeback_core::error_group::{Deed, Group};
use comeback_core::filter::{Filter, Sort};
use comeback_core::payload::OldPayload;
use comeback_core::stats::Fold;
use comeback_core::{Audit, Class, Commit, ExecutionId, Executor, Lane, Millis, Quotas, Record, TaskId, Timestamp};
use rusqlite::Connection;
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
use writer::Writer;

pub use backup::{BackupProgress, backup};
pub use check::check;

#[derive(Clone, Debug)]
pub struct SqliteOptions {
    pub path: Option<PathBuf>,
    /// Connections that the engine reads with.
    pub readers: usize,
    /// Connections that interactive reads have for themselves. All but one of them may search.
    pub interactive_readers: usize,
    /// Runs every command on the caller's own thread, for simulations that must be repeatable.
    pub inline: bool,
}

impl SqliteOptions {
    pub fn file(path: impl AsRef<Path>) -> SqliteOptions {
        SqliteOptions { path: Some(path.as_ref().to_owned()), readers: 3, interactive_readers: 3, inline: false }
    }

    /// A store that lives in memory and works on the caller's thread.
    pub fn in_memory() -> SqliteOptions {
        SqliteOptions { path: None, readers: 0, interactive_readers: 0, inline: true }
    }
}

pub struct SqliteStore {
    // The readers first: the last connection that is closed folds the log back, and a reader cannot.
    readers: Option<setup::Readers>,
    interactive_readers: Option<setup::Readers>,
    writer: Writer,
    background: Background,
    searches: Arc<Searches>,
    dictionary: Arc<Dictionary>,
    /// Held while new lanes and policies are counted and given their numbers.
    learning: tokio::sync::Mutex<()>,
    suspects: Suspects,
    wakes: tokio::sync::watch::Sender<u64>,
    /// Present where there is a file.
    fence: Option<fence::Fence>,
    /// Locked while somebody looks what earlier processes have left; and how many names are held.
    naming: tokio::sync::Mutex<()>,
    named: Arc<std::sync::atomic::AtomicUsize>,
}

/// One name that is held.
struct Named(Arc<std::sync::atomic::AtomicUsize>);

impl Drop for Named {
    fn drop(&mut self) {
        self.0.fetch_sub(1, std::sync::atomic::Ordering::AcqRel);
    }
}

impl SqliteStore {
    pub fn open(options: &SqliteOptions) -> Result<SqliteStore, StoreError> {
        let lock = options.path.as_deref().map(setup::lock).transpose()?;
        let mut connection = setup::connect(options.path.as_deref())?;
        setup::migrate(&mut connection)?;
        let fence = lock.as_ref().map(|lock| fence::Fence::open(&lock.beside, &mut connection)).transpose()?;
        let dictionary = Arc::new(Dictionary::default());
        setup::load_dictionary(&connection, &dictionary)?;
        let readers = |count: usize| match &options.path {
            Some(path) if !options.inline => setup::Readers::open(path, count).map(Some),
            _ => Ok(None),
        };
        let (readers, interactive_readers) = (readers(options.readers)?, readers(options.interactive_readers)?);
        let searches = Searches::new(options.interactive_readers.saturating_sub(1));
        let background = Background::default();
        let writer = if options.inline {
            Writer::inline(connection, dictionary.clone(), lock)
        } else {
            Writer::spawn(connection, dictionary.clone(), options.path.clone(), lock, &background)?
        };
        let (wakes, _) = tokio::sync::watch::channel(0);
        let (learning, suspects) = (tokio::sync::Mutex::new(()), Suspects::default());
        Ok(SqliteStore {
            readers,
            interactive_readers,
            writer,
            background,
            searches,
            dictionary,
            learning,
            suspects,
            wakes,
            fence,
            naming: tokio::sync::Mutex::new(()),
            named: Arc::default(),
        })
    }

    /// How far a file is behind this build; one that is not there has nothing yet.
    pub fn schema(path: &Path) -> Result<SchemaState, StoreError> {
        if !path.exists() {
            return setup::schema(&Connection::open_in_memory()?);
        }
        setup::schema(&setup::connect_to_read(path)?)
    }

    /// Runs a read on a reader connection, or on the writer's where there is none. Interactive reads have their own.
    async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection, &Dictionary) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let dictionary = self.dictionary.clone();
        let scope = Scope::current();
        let readers = if scope.is_some() { &self.interactive_readers } else { &self.readers };
        match readers {
            Some(readers) => readers.run(scope, move |connection| work(connection, &dictionary)).await,
            None => {
                let mut work = Some(work);
                let again = || StoreError::Unavailable("a read runs once".into());
                self.writer
                    .run(move |tx| work.take().ok_or_else(again).and_then(|work| work(tx.connection, &dictionary)))
                    .await
            }
        }
    }
}

impl SqliteStore {
    /// A read that may have to look at many rows.
    async fn search<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection, &Dictionary) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.searches.run(self.read(work)).await
    }
}

#[async_trait]
impl Store for SqliteStore {
    async fn learn(&self, submission: &Submission) -> Result<(), StoreError> {
        let news = self.dictionary.news(&self.dictionary.rules().place(std::slice::from_ref(submission)));
        submit::learn(self, news).await
    }

    async fn submit(&self, submissions: &[Submission], now: Timestamp) -> Result<Vec<Submitted>, StoreError> {
        loop {
            let book = self.dictionary.rules();
            let placed = book.place(submissions).into_owned();
            submit::learn(self, self.dictionary.news(&placed)).await?;
            let submitted = self.writer.run(move |tx| match tx.dictionary.rules().generation == book.generation {
                true => {
                    crate::panic_point!("sqlite-submit");
                    submit::submit(tx, &placed, now).map(Some)
                }
                // A rule has changed since we looked where they belong.
                false => Ok(None),
            });
            if let Some(answers) = submitted.await? {
                return Ok(answers);
            }
        }
    }

    async fn claim(&self, requests: &[ClaimRequest], now: Timestamp) -> Result<Vec<Vec<Claimed>>, StoreError> {
        let requests = requests.to_vec();
        let claim = move |tx: &mut writer::Tx<'_>| {
            let claimed = claim::claim(tx, &requests, now);
            crate::panic_point!("sqlite-claim");
            claimed
        };
        self.writer.run(claim).await
    }

    async fn apply(
        &self,
        commits: &[Commit],
        on_behalf_of: Option<Loop>,
        now: Timestamp,
    ) -> Result<Vec<Applied>, StoreError> {
        make_way(self, commits).await?;
        let prepared = apply::prepare(&self.dictionary, commits)?;
        let apply = move |tx: &mut writer::Tx<'_>| {
            let applied = apply::apply(tx, &prepared, on_behalf_of, now);
            crate::panic_point!("sqlite-apply");
            applied
        };
        self.writer.run(apply).await
    }

    async fn apply_once(
        &self,
        namespace: &str,
        key: &Idempotency,
        commit: Option<&Commit>,
        now: Timestamp,
    ) -> Result<Applied, StoreError> {
        let commit = commit.map(std::slice::from_ref).unwrap_or_default();
        make_way(self, commit).await?;
        let prepared = apply::prepare(&self.dictionary, commit)?;
        let (namespace, key) = (namespace.to_owned(), key.clone());
        self.writer.run(move |tx| apply::apply_once(tx, &namespace, &key, &prepared, now)).await
    }

    async fn apply_spawning(
        &self,
        commit: &Commit,
        spawn: &Submission,
        behalf: Behalf<'_>,
        now: Timestamp,
    ) -> Result<Applied, StoreError> {
        let book = self.dictionary.rules();
        let spawn = book.place(std::slice::from_ref(spawn)).into_owned();
        submit::learn_anyway(self, self.dictionary.news(&spawn)).await?;
        make_way(self, std::slice::from_ref(commit)).await?;
        let prepared = apply::prepare(&self.dictionary, std::slice::from_ref(commit))?;
        let moved_on = move |tx: &writer::Tx<'_>| tx.dictionary.rules().generation != book.generation;
        match behalf {
            Behalf::Key(namespace, key) => {
                let (namespace, key) = (namespace.to_owned(), key.clone());
                let applied = move |tx: &mut writer::Tx<'_>| {
                    if moved_on(tx) {
                        return Ok(Applied::Stale);
                    }
                    let applied = apply::apply_once(tx, &namespace, &key, &prepared, now)?;
                    apply::spawn_if_done(tx, applied, &spawn[0])
                };
                self.writer.run(applied).await
            }
            Behalf::Caller | Behalf::Loop(_) => {
                let on_behalf_of = if let Behalf::Loop(name) = behalf { Some(name) } else { None };
                let applied = move |tx: &mut writer::Tx<'_>| {
                    if moved_on(tx) {
                        return Ok(Applied::Stale);
                    }
                    let applied = apply::apply(tx, &prepared, on_behalf_of, now)?.pop().unwrap_or(Applied::Done);
                    crate::panic_point!("sqlite-apply-spawning");
                    apply::spawn_if_done(tx, applied, &spawn[0])
                };
                self.writer.run(applied).await
            }
        }
    }

    async fn used(&self, namespace: &str, key: &Idempotency) -> Result<Option<Used>, StoreError> {
        let (namespace, key) = (namespace.to_owned(), key.clone());
        self.read(move |connection, _| apply::used(connection, &namespace, &key)).await
    }

    async fn kept_answer(&self, namespace: &str, key: &Idempotency) -> Result<Option<serde_json::Value>, StoreError> {
        let (namespace, key) = (namespace.to_owned(), key.clone());
        self.read(move |connection, _| apply::kept_answer(connection, &namespace, &key)).await
    }

    async fn heartbeat(&self, beats: &[Beat], now: Timestamp) -> Result<Vec<BeatAnswer>, StoreError> {
        let beats = beats.to_vec();
        crate::panic_point!("sqlite-heartbeat");
        self.writer.run(move |tx| tend::heartbeat(tx, &beats, now)).await
    }

    async fn outlast(&self, from: Timestamp, to: Timestamp) -> Result<u64, StoreError> {
        self.writer.run(move |tx| tend::outlast(tx, from, to)).await
    }

    async fn count(&self, counts: &[Count], now: Timestamp) -> Result<Vec<bool>, StoreError> {
        let counts = counts.to_vec();
        self.writer.run(move |tx| tend::count(tx, &counts, now)).await
    }

    async fn promote(&self, what: Promote, now: Timestamp, limit: u32) -> Result<Promoted, StoreError> {
        self.writer.run(move |tx| tend::promote(tx, what, now, limit)).await
    }

    async fn due(&self, what: Due, now: Timestamp, limit: u32) -> Result<Vec<Stored>, StoreError> {
        self.read(move |connection, dictionary| read::due(connection, dictionary, what, now, limit)).await
    }

    async fn next_due(&self) -> Result<NextDue, StoreError> {
        self.read(|connection, _| read::next_due(connection)).await
    }

    async fn due_before(&self, until: Timestamp) -> Result<DueBefore, StoreError> {
        self.search(move |connection, _| read::due_before(connection, until)).await
    }

    async fn retry_after(&self, after: Timestamp) -> Result<Option<Timestamp>, StoreError> {
        self.read(move |connection, _| read::retry_after(connection, after)).await
    }

    async fn load(&self, ids: &[TaskId]) -> Result<Vec<Option<Stored>>, StoreError> {
        let ids = ids.to_vec();
        self.read(move |connection, dictionary| read::load(connection, dictionary, &ids)).await
    }

    async fn graph(&self, id: ExecutionId, around: Option<&[TaskId]>) -> Result<Option<Graph>, StoreError> {
        let around = around.map(<[TaskId]>::to_vec);
        self.read(move |connection, dictionary| read::graph(connection, dictionary, id, around.as_deref())).await
    }

    async fn task(&self, namespace: &str, id: TaskId) -> Result<Option<TaskView>, StoreError> {
        let namespace = namespace.to_owned();
        self.read(move |connection, dictionary| read::task(connection, dictionary, &namespace, id)).await
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
        self.read(move |connection, _| payloads::old(connection, id)).await
    }

    async fn list(&self, namespace: &str, query: &ListQuery) -> Result<Listing, StoreError> {
        let (namespace, query) = (namespace.to_owned(), query.clone());
        self.search(move |connection, dictionary| list::list(connection, dictionary, &namespace, &query)).await
    }

    async fn history(&self, subject: Subject, after: u32, limit: u32) -> Result<Vec<Record>, StoreError> {
        self.read(move |connection, dictionary| read::history(connection, dictionary, subject, after, limit)).await
    }

    async fn runs_before(&self, id: TaskId, before: u32, limit: u32) -> Result<Vec<Record>, StoreError> {
        self.read(move |connection, _| read::runs_before(connection, id, before, limit)).await
    }

    async fn ended(&self, leases: &[(TaskId, u32)]) -> Result<Vec<Option<Record>>, StoreError> {
        let leases = leases.to_vec();
        self.read(move |connection, _| read::ended(connection, &leases)).await
    }

    async fn feed(&self, after: Option<FeedCursor>, limit: u32) -> Result<Feed, StoreError> {
        self.read(move |connection, dictionary| read::feed(connection, dictionary, after, limit)).await
    }

    async fn feed_end(&self) -> Result<FeedCursor, StoreError> {
        self.read(|connection, _| read::feed_end(connection)).await
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

    async fn execution(&self, namespace: &str, id: ExecutionId) -> Result<Option<ExecutionView>, StoreError> {
        let namespace = namespace.to_owned();
        self.read(move |connection, dictionary| flow::execution_view(connection, dictionary, &namespace, id)).await
    }

    async fn executions(&self, namespace: &str, query: &ExecutionQuery) -> Result<Vec<ExecutionView>, StoreError> {
        let (namespace, query) = (namespace.to_owned(), query.clone());
        self.search(move |connection, dictionary| flow::executions(connection, dictionary, &namespace, &query)).await
    }

    async fn steps(
        &self,
        execution: ExecutionId,
        which: StepsOf<'_>,
        most_bytes: u64,
    ) -> Result<Vec<StepView>, StoreError> {
        let which = which.owned();
        self.read(move |connection, _| flow::steps(connection, execution, &which, most_bytes)).await
    }

    async fn tree(&self, execution: ExecutionId) -> Result<Option<Tree>, StoreError> {
        self.read(move |connection, _| flow::tree(connection, execution)).await
    }

    async fn gates(&self, per_namespace: u32) -> Result<Vec<Stored>, StoreError> {
        self.read(move |connection, dictionary| flow::gates(connection, dictionary, per_namespace)).await
    }

    async fn call_ends(&self, limit: u32) -> Result<Vec<CallEnd>, StoreError> {
        self.read(move |connection, dictionary| flow::call_ends(connection, dictionary, limit)).await
    }

    async fn orphans(&self, limit: u32) -> Result<Vec<(String, ExecutionId)>, StoreError> {
        self.read(move |connection, _| flow::orphans(connection, limit)).await
    }

    async fn document(&self, at: Shelf<'_>, name: &str, version: Option<u32>) -> Result<Option<Document>, StoreError> {
        let (place, name) = (documents::Place::of(at), name.to_owned());
        self.read(move |connection, _| documents::one(connection, &place, &name, version)).await
    }

    async fn documents(&self, at: Shelf<'_>, after: &str, limit: u32) -> Result<Vec<Document>, StoreError> {
        let (place, after) = (documents::Place::of(at), after.to_owned());
        self.read(move |connection, _| documents::newest(connection, &place, &after, limit)).await
    }

    async fn versions(&self, at: Shelf<'_>, name: &str, limit: u32) -> Result<Vec<Document>, StoreError> {
        let (place, name) = (documents::Place::of(at), name.to_owned());
        self.read(move |connection, _| documents::versions(connection, &place, &name, limit)).await
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
        let (place, name, body) = (documents::Place::of(at), name.to_owned(), body.to_owned());
        let audit = audit.cloned();
        let put = move |tx: &mut writer::Tx<'_>| {
            let put = documents::put(tx.connection, &place, &name, known, &body, now)?;
            audit::note(tx.connection, audit.as_ref().filter(|_| put), None)?;
            Ok(put)
        };
        self.writer.run(put).await
    }

    async fn delete_document(&self, at: Shelf<'_>, name: &str) -> Result<bool, StoreError> {
        let (place, name) = (documents::Place::of(at), name.to_owned());
        self.writer.run(move |tx| documents::delete(tx.connection, &place, &name)).await
    }

    async fn follower(&self, sort: Following, namespace: &str, name: &str) -> Result<Option<Follower>, StoreError> {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        self.read(move |connection, _| followers::one(connection, sort, &namespace, &name)).await
    }

    async fn followers(
        &self,
        sort: Following,
        namespace: &str,
        after: &str,
        limit: u32,
    ) -> Result<Vec<Follower>, StoreError> {
        let (namespace, after) = (namespace.to_owned(), after.to_owned());
        self.read(move |connection, _| followers::page(connection, sort, &namespace, &after, limit)).await
    }

    async fn due_followers(&self, sort: Following, now: Timestamp, limit: u32) -> Result<Vec<Follower>, StoreError> {
        self.read(move |connection, _| followers::due(connection, sort, now, limit)).await
    }

    async fn active_followers(
        &self,
        sort: Following,
        after: Option<(&str, &str)>,
        limit: u32,
    ) -> Result<Vec<Follower>, StoreError> {
        let (namespace, name) =
            after.map(|(namespace, name)| (namespace.to_owned(), name.to_owned())).unwrap_or_default();
        self.read(move |connection, _| followers::active(connection, sort, (&namespace, &name), limit)).await
    }

    async fn put_follower(
        &self,
        follower: &Follower,
        start: Option<&Submission>,
        on_behalf_of: Option<Loop>,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<Applied, StoreError> {
        loop {
            let book = self.dictionary.rules();
            let placed = book.place(start.map(std::slice::from_ref).unwrap_or_default()).into_owned();
            submit::learn_anyway(self, self.dictionary.news(&placed)).await?;
            crate::panic_point!("sqlite-follower");
            let (follower, audit) = (follower.clone(), audit.cloned());
            let put = self.writer.run(move |tx| match tx.dictionary.rules().generation == book.generation {
                true => followers::put(tx, &follower, placed.first(), on_behalf_of, audit.as_ref(), now).map(Some),
                // A rule has changed since we looked where its tasks belong.
                false => Ok(None),
            });
            if let Some(applied) = put.await? {
                return Ok(applied);
            }
        }
    }

    async fn delete_follower(
        &self,
        sort: Following,
        namespace: &str,
        name: &str,
        audit: Option<&Audit>,
    ) -> Result<bool, StoreError> {
        let (namespace, name, audit) = (namespace.to_owned(), name.to_owned(), audit.cloned());
        self.writer.run(move |tx| followers::delete(tx.connection, sort, &namespace, &name, audit.as_ref())).await
    }

    async fn counts(&self, namespace: &str, now: Timestamp) -> Result<Counts, StoreError> {
        let namespace = namespace.to_owned();
        let count = move |connection: &Connection, dictionary: &Dictionary| {
            let closed = list::closed(connection, &namespace, now)?;
            let held = held_now(dictionary, &namespace, &closed, now);
            read::counts(connection, dictionary, &namespace, Counts::ALL, &held)
        };
        self.search(count).await
    }

    async fn retried(&self, namespace: &str) -> Result<Counts, StoreError> {
        let namespace = namespace.to_owned();
        self.search(move |connection, dictionary| {
            read::counts(connection, dictionary, &namespace, Counts::RETRIED, "false")
        })
        .await
    }

    async fn open_work(&self, now: Timestamp) -> Result<OpenWork, StoreError> {
        self.read(move |connection, _| read::open_work(connection, now)).await
    }

    async fn prune(&self, before: Timestamp, limit: u32) -> Result<Pruned, StoreError> {
        let prune = move |tx: &mut writer::Tx<'_>| {
            let pruned = tend::prune(tx, before, limit);
            crate::panic_point!("sqlite-prune");
            pruned
        };
        self.writer.run(prune).await
    }

    async fn prunable(&self, before: Timestamp) -> Result<u64, StoreError> {
        self.search(move |connection, _| tend::prunable(connection, before)).await
    }

    async fn set_pause(
        &self,
        name: Loop,
        pause: Option<Pause>,
        audit: Option<&Audit>,
        _now: Timestamp,
    ) -> Result<(), StoreError> {
        let audit = audit.cloned();
        self.writer.run(move |tx| tend::set_pause(tx, name, pause.as_ref(), audit.as_ref())).await
    }

    async fn pauses(&self) -> Result<Vec<(Loop, Pause)>, StoreError> {
        self.read(|connection, _| read::pauses(connection)).await
    }

    async fn lane_namespaces(&self, executor: Option<Executor>) -> Result<Vec<String>, StoreError> {
        Ok(self.dictionary.lane_namespaces(executor))
    }

    fn set_quotas(&self, quotas: &Quotas) {
        self.dictionary.set_quotas(quotas);
    }

    async fn forget_unused(&self, now: Timestamp) -> Result<Forgotten, StoreError> {
        forget::lanes(self, now).await
    }

    async fn forget_policies(&self, beyond: u64, _now: Timestamp) -> Result<u64, StoreError> {
        forget::policies(self, beyond).await
    }

    async fn rules(&self, namespace: &str) -> Result<Vec<Rule>, StoreError> {
        self.named_rules(namespace).await
    }

    async fn put_rule(
        &self,
        namespace: &str,
        rule: &Rule,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<Option<i64>, StoreError> {
        let (namespace, name, body) = (namespace.to_owned(), rule.name.clone(), rule_to_json(rule)?);
        let audit = audit.cloned();
        self.change_rules(move |tx| rules::put(tx, &namespace, &name, &body, audit.as_ref(), now)).await
    }

    async fn delete_rule(&self, namespace: &str, name: &str, audit: Option<&Audit>) -> Result<Option<i64>, StoreError> {
        let (namespace, name, audit) = (namespace.to_owned(), name.to_owned(), audit.cloned());
        self.change_rules(move |tx| rules::delete(tx, &namespace, &name, audit.as_ref())).await
    }

    async fn delete_unused_rules(&self, namespace: &str, names: &[String]) -> Result<Option<i64>, StoreError> {
        let (namespace, names) = (namespace.to_owned(), names.to_vec());
        self.change_rules(move |tx| rules::delete_unused(tx, &namespace, &names)).await
    }

    async fn settle_rules(&self) -> Result<Settled, StoreError> {
        settle(self).await
    }

    async fn carry_rules(&self, id: ExecutionId, kind: &str, names: &[String]) -> Result<u64, StoreError> {
        rules::carry(self, id.0, kind, names).await
    }

    async fn in_use(&self, namespace: &str) -> Result<Vec<(Key, InUse)>, StoreError> {
        let namespace = namespace.to_owned();
        self.read(move |connection, dictionary| rules::used(connection, dictionary, &namespace)).await
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
        let key = key.to_owned();
        self.read(move |connection, _| read::meta(connection, &key)).await
    }

    async fn put_meta(
        &self,
        key: &str,
        value: &str,
        when: PutIf<'_>,
        audit: Option<&Audit>,
    ) -> Result<String, StoreError> {
        let (key, value, audit) = (key.to_owned(), value.to_owned(), audit.cloned());
        let only_if = match when {
            PutIf::Always => None,
            PutIf::Absent => Some(None),
            PutIf::Is(known) => Some(Some(known.to_owned())),
        };
        let put = move |tx: &mut writer::Tx<'_>| {
            let when =
                only_if.as_ref().map_or(PutIf::Always, |known| known.as_deref().map_or(PutIf::Absent, PutIf::Is));
            tend::put_meta(tx, &key, &value, when, audit.as_ref())
        };
        self.writer.run(put).await
    }

    async fn account(&self, namespace: &str, name: &str) -> Result<Option<Account>, StoreError> {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        self.read(move |connection, _| accounts::one(connection, &namespace, &name)).await
    }

    async fn accounts(&self, namespace: &str, after: &str, limit: u32) -> Result<Vec<Account>, StoreError> {
        let (namespace, after) = (namespace.to_owned(), after.to_owned());
        self.read(move |connection, _| accounts::page(connection, &namespace, &after, limit)).await
    }

    async fn put_account(
        &self,
        namespace: &str,
        name: &str,
        change: &AccountChange,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<Account, StoreError> {
        let (namespace, name, change) = (namespace.to_owned(), name.to_owned(), change.clone());
        let audit = audit.cloned();
        let put = move |tx: &mut writer::Tx<'_>| {
            accounts::put(tx.connection, &namespace, &name, &change, audit.as_ref(), now)
        };
        self.writer.run(put).await
    }

    async fn booked(
        &self,
        namespace: &str,
        account: &str,
        since: &str,
    ) -> Result<BTreeMap<String, Booked>, StoreError> {
        let (namespace, account, since) = (namespace.to_owned(), account.to_owned(), since.to_owned());
        self.read(move |connection, _| accounts::booked(connection, &namespace, &account, &since)).await
    }

    async fn delete_account(&self, namespace: &str, name: &str, audit: Option<&Audit>) -> Result<Closed, StoreError> {
        let (namespace, name, audit) = (namespace.to_owned(), name.to_owned(), audit.cloned());
        self.writer.run(move |tx| accounts::delete(tx.connection, &namespace, &name, audit.as_ref())).await
    }

    async fn secret(&self, namespace: &str, name: &str) -> Result<Option<SealedSecret>, StoreError> {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        self.read(move |connection, _| secrets::one(connection, &namespace, &name)).await
    }

    async fn secrets(&self, namespace: &str, after: &str, limit: u32) -> Result<Vec<SealedSecret>, StoreError> {
        let (namespace, after) = (namespace.to_owned(), after.to_owned());
        self.read(move |connection, _| secrets::page(connection, &namespace, &after, limit)).await
    }

    async fn all_secrets(&self, after: (&str, &str), limit: u32) -> Result<Vec<SealedSecret>, StoreError> {
        let (namespace, name) = (after.0.to_owned(), after.1.to_owned());
        self.read(move |connection, _| secrets::all(connection, (&namespace, &name), limit)).await
    }

    async fn put_secret(
        &self,
        secret: &SealedSecret,
        most: u64,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<(SealedSecret, bool), StoreError> {
        let (secret, audit) = (secret.clone(), audit.cloned());
        self.writer.run(move |tx| secrets::put(tx.connection, &secret, most, audit.as_ref(), now)).await
    }

    async fn reseal_secret(&self, secret: &SealedSecret) -> Result<bool, StoreError> {
        let secret = secret.clone();
        self.writer.run(move |tx| secrets::reseal(tx.connection, &secret)).await
    }

    async fn delete_secret(&self, namespace: &str, name: &str, audit: Option<&Audit>) -> Result<bool, StoreError> {
        let (namespace, name, audit) = (namespace.to_owned(), name.to_owned(), audit.cloned());
        self.writer.run(move |tx| secrets::delete(tx.connection, &namespace, &name, audit.as_ref())).await
    }

    async fn dependency(&self, namespace: &str, name: &str) -> Result<Option<Dependency>, StoreError> {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        self.read(move |connection, _| dependencies::one(connection, &namespace, &name)).await
    }

    async fn dependencies(&self, namespace: &str, after: &str, limit: u32) -> Result<Vec<Dependency>, StoreError> {
        let (namespace, after) = (namespace.to_owned(), after.to_owned());
        self.read(move |connection, _| dependencies::page(connection, &namespace, &after, limit)).await
    }

    async fn due_dependencies(&self, now: Timestamp, limit: u32) -> Result<Vec<Dependency>, StoreError> {
        self.read(move |connection, _| dependencies::due(connection, now, limit)).await
    }

    async fn next_dependency(&self, after: Timestamp) -> Result<Option<Timestamp>, StoreError> {
        self.read(move |connection, _| dependencies::next(connection, after)).await
    }

    async fn hold_name(&self, _name: &str) -> Result<HeldName, StoreError> {
        let _looking = self.naming.lock().await;
        // The file is locked: whoever is not in this process is not there at all, whatever its name was.
        let is_alone = self.named.fetch_add(1, std::sync::atomic::Ordering::AcqRel) == 0;
        let kept = Box::new(Named(self.named.clone()));
        let left = match is_alone {
            true => self.read(|connection, _| read::leased_by_processes(connection, HeldName::MOST_LEFT)).await?,
            false => Vec::new(),
        };
        Ok(HeldName { left, _kept: kept })
    }

    async fn is_waited_for(&self, namespace: &str, dependency: &str) -> Result<bool, StoreError> {
        let lanes = self.dictionary.under(namespace, dependency);
        self.read(move |connection, _| claim::is_any_ready(connection, &lanes)).await
    }

    async fn put_dependency(&self, it: &Dependency, audit: Option<&Audit>, now: Timestamp) -> Result<bool, StoreError> {
        let (it, audit) = (it.clone(), audit.cloned());
        self.writer.run(move |tx| dependencies::put(tx.connection, &it, audit.as_ref(), now)).await
    }

    async fn delete_dependency(&self, namespace: &str, name: &str, audit: Option<&Audit>) -> Result<bool, StoreError> {
        let (namespace, name, audit) = (namespace.to_owned(), name.to_owned(), audit.cloned());
        self.writer.run(move |tx| dependencies::delete(tx.connection, &namespace, &name, audit.as_ref())).await
    }

    async fn announce(
        &self,
        it: &Dependency,
        stopped: Option<(Timestamp, Millis)>,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        let lanes = self.dictionary.under(&it.namespace, &it.name);
        let (it, audit) = (it.clone(), audit.cloned());
        let announce = move |tx: &mut writer::Tx<'_>| {
            let written = dependencies::put(tx.connection, &it, audit.as_ref(), now)?;
            if let (true, Some((from, by))) = (written, stopped) {
                dependencies::extend_deadlines(tx.connection, &lanes, from, by)?;
            }
            Ok(written)
        };
        self.writer.run(announce).await
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
        let namespace = namespace.to_owned();
        let query = ListQuery { filter: filter.clone(), sort: Sort::Submitted, limit: most, after: None, now };
        self.search(move |connection, dictionary| list::matching(connection, dictionary, &namespace, &query)).await
    }

    async fn start_operation(
        &self,
        operation: &Operation,
        ids: &[TaskId],
        key: Option<&Idempotency>,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<Started, StoreError> {
        let (operation, ids, key, audit) = (operation.clone(), ids.to_vec(), key.cloned(), audit.cloned());
        let start = move |tx: &mut writer::Tx<'_>| {
            operations::start(tx.connection, &operation, &ids, key.as_ref(), audit.as_ref(), now)
        };
        self.writer.run(start).await
    }

    async fn operation(&self, namespace: &str, id: Uuid) -> Result<Option<Operation>, StoreError> {
        let namespace = namespace.to_owned();
        self.read(move |connection, _| operations::one(connection, &namespace, id)).await
    }

    async fn operations(
        &self,
        namespace: &str,
        before: Option<Uuid>,
        limit: u32,
    ) -> Result<Vec<Operation>, StoreError> {
        let namespace = namespace.to_owned();
        self.read(move |connection, _| operations::page(connection, &namespace, before, limit)).await
    }

    async fn due_operations(&self, now: Timestamp, limit: u32) -> Result<Vec<Operation>, StoreError> {
        self.read(move |connection, _| operations::due(connection, now, limit)).await
    }

    async fn put_operation(
        &self,
        operation: &Operation,
        on_behalf_of: Option<Loop>,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<Applied, StoreError> {
        let (operation, audit) = (operation.clone(), audit.cloned());
        let put = move |tx: &mut writer::Tx<'_>| {
            operations::put(tx.connection, &operation, on_behalf_of, audit.as_ref(), now)
        };
        self.writer.run(put).await
    }

    async fn operation_ids(&self, id: Uuid, from: u32, to: u32) -> Result<Vec<TaskId>, StoreError> {
        self.read(move |connection, _| operations::ids(connection, id, from, to)).await
    }

    async fn marks(&self, id: Uuid, tasks: &[TaskId]) -> Result<HashMap<TaskId, Marked>, StoreError> {
        let tasks = tasks.to_vec();
        self.read(move |connection, _| operations::marks(connection, id, &tasks)).await
    }

    async fn put_audit(&self, audit: &Audit) -> Result<(), StoreError> {
        let audit = audit.clone();
        self.writer.run(move |tx| audit::write(tx.connection, &audit)).await
    }

    async fn audit(&self, query: &AuditQuery) -> Result<Vec<Audit>, StoreError> {
        let query = query.clone();
        self.search(move |connection, _| audit::page(connection, &query)).await
    }

    async fn unfolded(&self, limit: u32) -> Result<Stretch, StoreError> {
        self.read(move |connection, dictionary| stats::unfolded(connection, dictionary, limit)).await
    }

    async fn fold(&self, stretch: &Stretch, fold: &Fold, now: Timestamp) -> Result<bool, StoreError> {
        let (from, to, fold) = (stretch.from.clone(), stretch.to.clone(), fold.clone());
        self.writer.run(move |tx| stats::fold(tx.connection, tx.dictionary, (&from, &to), &fold, now)).await
    }

    async fn sums(&self, namespace: &str, query: &SumsQuery) -> Result<Vec<SumLine>, StoreError> {
        let (namespace, query) = (namespace.to_owned(), query.clone());
        self.search(move |connection, _| stats::sums(connection, &namespace, &query)).await
    }

    async fn tidy_sums(&self, now: Timestamp, limit: u32, most_groups: u32) -> Result<bool, StoreError> {
        self.writer.run(move |tx| stats::tidy_sums(tx.connection, now, limit, most_groups)).await
    }

    async fn groups(&self, namespace: &str, query: &GroupQuery) -> Result<Vec<Group>, StoreError> {
        let Some(namespace) = self.dictionary.namespace(namespace) else { return Ok(Vec::new()) };
        let query = query.clone();
        self.search(move |connection, _| stats::groups(connection, namespace, &query)).await
    }

    async fn group(&self, namespace: &str, fingerprint: i64) -> Result<Option<Group>, StoreError> {
        let Some(namespace) = self.dictionary.namespace(namespace) else { return Ok(None) };
        self.read(move |connection, _| stats::group(connection, namespace, fingerprint)).await
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
        let (deed, audit) = (deed.clone(), audit.clone());
        self.writer.run(move |tx| stats::put_group(tx.connection, namespace, fingerprint, &deed, &audit, now)).await
    }

    async fn reclassified(&self) -> Result<HashMap<String, HashMap<i64, Class>>, StoreError> {
        self.read(|connection, _| stats::reclassified(connection)).await
    }

    async fn open_with(&self, namespace: &str, fingerprints: &[i64]) -> Result<HashMap<i64, u64>, StoreError> {
        let lanes = self.dictionary.lanes_in(namespace, |_| true);
        let fingerprints = fingerprints.to_vec();
        self.search(move |connection, _| stats::open_with(connection, &lanes, &fingerprints)).await
    }

    async fn clock_offset(&self) -> Result<Option<i64>, StoreError> {
        Ok(None)
    }

    /// One process per file: there is nobody else to tell.
    fn notify(&self) {}

    fn wakes(&self) -> tokio::sync::watch::Receiver<u64> {
        self.wakes.subscribe()
    }

    fn background(&self) -> Option<&Background> {
        Some(&self.background)
    }

    async fn close(&self) {
        for readers in [&self.readers, &self.interactive_readers].into_iter().flatten() {
            readers.close().await;
        }
        if let Some(thread) = self.writer.close() {
            let _ = tokio::task::spawn_blocking(move || thread.join()).await;
        }
    }
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        use rusqlite::ffi::ErrorCode;
        match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull | ErrorCode::DatabaseBusy | ErrorCode::CannotOpen | ErrorCode::ReadOnly) => {
                StoreError::Unavailable(error.to_string())
            }
            Some(ErrorCode::SystemIoFailure) => StoreError::Unknown(error.to_string()),
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => StoreError::Corrupt(error.to_string()),
            _ => StoreError::Refused(error.to_string()),
        }
    }
}
