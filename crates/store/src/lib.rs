//! Remembers: one trait, two databases, one meaning.
//!
//! All SQL of the product is in this crate, and no opinion: what should happen is decided in `comeback-core` and comes here
//! as a `Commit`, which is stored whole or not at all. There is no clock; every command is told what time it is.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used))]

mod accounts;
mod audit;
pub mod background;
mod check;
mod dependencies;
mod dictionary;
mod epoch;
mod events;
mod forget;
mod interactive;
mod operations;
mod page;
pub mod panic_points;
mod place;
mod policies;
mod query;
mod ready;
mod row;
mod rules;
mod schema;
mod shared;
mod stats;
mod types;

pub mod postgres;
pub mod sqlite;

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;

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
use uuid::Uuid;

pub use accounts::{Account, AccountChange, Closed, Unfunded};
pub use audit::AuditQuery;
pub use background::{Background, Finished, Heartbeat, Registered, Running, Stalled};
pub use check::{CheckProgress, CheckReport, Finding, Part};
pub use dependencies::Dependency;
pub use epoch::begin_epoch;
pub use interactive::{Interactive, interactive};
pub use operations::{Marked, Operation, Started};
pub use page::{FeedCursor, ListCursor};
pub use place::Place;
pub use postgres::{PostgresOptions, PostgresStore};
pub use schema::{SCHEMA_VERSION, SchemaState};
pub use shared::*;
pub use sqlite::{BackupProgress, SqliteOptions, SqliteStore};
pub use stats::{GroupQuery, Stretch, SumLine, SumsQuery};
pub use types::*;

/// A database that remembers tasks.
///
/// Every method takes and answers many at once; one bad item never fails its neighbours. What a method means is written down
/// case by case in `conformance`, which both implementations run. An `audit` that comes with a write is stored with it, in one
/// transaction, and only if something was written.
#[async_trait]
pub trait Store: SharedStore {
    /// Gives numbers to the lanes and policies that a submission is the first to name, as [`Store::submit`] does: whoever brings new ones
    /// waits for that alone, and nobody in the same batch with them.
    async fn learn(&self, submission: &Submission) -> Result<(), StoreError>;

    /// Creates tasks. Each submission is all or nothing; its idempotency key and its dedupe keys are honoured.
    async fn submit(&self, submissions: &[Submission], now: Timestamp) -> Result<Vec<Submitted>, StoreError>;

    /// Leases pending tasks (T6): highest priority first, then the oldest, then by id, over all lanes a request names.
    /// A task is given to one request only. The lease, the start of the run and its event are one transaction.
    async fn claim(&self, requests: &[ClaimRequest], now: Timestamp) -> Result<Vec<Vec<Claimed>>, StoreError>;

    /// Stores verdicts. Each commit is guarded by the versions it names: if one of them has moved on, nothing of that
    /// commit is written and it is reported as stale. Work of a loop that is paused is refused in the same transaction.
    async fn apply(
        &self,
        commits: &[Commit],
        on_behalf_of: Option<Loop>,
        now: Timestamp,
    ) -> Result<Vec<Applied>, StoreError>;

    /// Like `apply` for one commit (or for nothing but the key), under a key that is good for one use. The key is written in
    /// the same transaction, and only if the commit was.
    async fn apply_once(
        &self,
        namespace: &str,
        key: &Idempotency,
        commit: Option<&Commit>,
        now: Timestamp,
    ) -> Result<Applied, StoreError>;

    /// Like `apply` for one commit that also makes tasks: in the execution it is about, or lone ones. Their rows are written in
    /// the same transaction; the creation of those that join the execution is told by the commit's own records.
    async fn apply_spawning(
        &self,
        commit: &Commit,
        spawn: &Submission,
        behalf: Behalf<'_>,
        now: Timestamp,
    ) -> Result<Applied, StoreError>;

    /// Whether a key was used, and what for.
    async fn used(&self, namespace: &str, key: &Idempotency) -> Result<Option<Used>, StoreError>;

    /// The answer that was stored with a key by [`Audit::answered`]; none where the key is unknown or has no such answer.
    async fn kept_answer(&self, namespace: &str, key: &Idempotency) -> Result<Option<serde_json::Value>, StoreError>;

    /// Extends leases that are still held, and with them the inactivity limit of the run.
    async fn heartbeat(&self, beats: &[Beat], now: Timestamp) -> Result<Vec<BeatAnswer>, StoreError>;

    /// The clock was set ahead: leases that ran out in between are held after it for as long as they had left before it, and the runs
    /// under them may go on as long. Done twice it does no more than once. Answers how many those were.
    async fn outlast(&self, from: Timestamp, to: Timestamp) -> Result<u64, StoreError>;

    /// Adds to what active tasks have counted, all or nothing; a sign of life too. Each task is named once. Answers which of them were
    /// active.
    async fn count(&self, counts: &[Count], now: Timestamp) -> Result<Vec<bool>, StoreError>;

    /// Makes due tasks pending (T14, T26), the longest overdue first; nothing while that loop is paused.
    async fn promote(&self, what: Promote, now: Timestamp, limit: u32) -> Result<Promoted, StoreError>;

    /// Tasks for which a time has come, the longest overdue first: expired leases, run limits, deadlines.
    async fn due(&self, what: Due, now: Timestamp, limit: u32) -> Result<Vec<Stored>, StoreError>;

    /// When the next time of each sort comes.
    async fn next_due(&self) -> Result<NextDue, StoreError>;

    /// How much is due before an instant.
    async fn due_before(&self, until: Timestamp) -> Result<DueBefore, StoreError>;

    /// When the next retry after this instant is due.
    async fn retry_after(&self, after: Timestamp) -> Result<Option<Timestamp>, StoreError>;

    /// Tasks by id, open or over, in the order asked for.
    async fn load(&self, ids: &[TaskId]) -> Result<Vec<Option<Stored>>, StoreError>;

    /// An execution with some of its tasks and their direct neighbours, or with all of them.
    async fn graph(&self, id: ExecutionId, around: Option<&[TaskId]>) -> Result<Option<Graph>, StoreError>;

    /// One task with everything that is known of it.
    async fn task(&self, namespace: &str, id: TaskId) -> Result<Option<TaskView>, StoreError>;

    /// What a task is labelled with, how urgent it is and how it is retried, in place of what was said before. Nothing where its labels
    /// are no longer those that the change names, or where it has ended and cannot be more urgent. Another policy begins to count its
    /// rules anew.
    async fn describe(
        &self,
        id: TaskId,
        change: &Description,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<bool, StoreError>;

    /// The payloads of a task before they were edited, oldest first; none where nobody did.
    async fn old_payloads(&self, id: TaskId) -> Result<Vec<OldPayload>, StoreError>;

    /// A page of tasks that match. Payloads and results are left out.
    async fn list(&self, namespace: &str, query: &ListQuery) -> Result<Listing, StoreError>;

    /// The records of a task or an execution, oldest first, from an event number on.
    async fn history(&self, subject: Subject, after: u32, limit: u32) -> Result<Vec<Record>, StoreError>;

    /// The runs of a task that have ended, newest first, before an event number.
    async fn runs_before(&self, id: TaskId, before: u32, limit: u32) -> Result<Vec<Record>, StoreError>;

    /// How these leases ended: the record of each that did, as long as its task is remembered.
    async fn ended(&self, leases: &[(TaskId, u32)]) -> Result<Vec<Option<Record>>, StoreError>;

    /// What happened after a cursor, in an order in which nothing is ever inserted behind a reader.
    async fn feed(&self, after: Option<FeedCursor>, limit: u32) -> Result<Feed, StoreError>;

    /// The cursor behind everything that can be read now: what happens later comes after it.
    async fn feed_end(&self) -> Result<FeedCursor, StoreError>;

    /// A cursor as this version writes it: one that an older version gave out may name the same place in other words.
    async fn feed_cursor(&self, cursor: FeedCursor) -> Result<FeedCursor, StoreError>;

    /// The epoch of the database, which is another one after every restore; empty in the first.
    async fn epoch(&self) -> Result<String, StoreError>;

    /// Steps of an execution with their results, as far as they have one. Where all results together have more than `most_bytes`, they
    /// are left out, and only their sizes are told.
    async fn steps(
        &self,
        execution: ExecutionId,
        which: StepsOf<'_>,
        most_bytes: u64,
    ) -> Result<Vec<StepView>, StoreError>;

    /// The place of an execution below its root.
    async fn tree(&self, execution: ExecutionId) -> Result<Option<Tree>, StoreError>;

    /// Tasks that wait at a gate whose needs are met: so many of each namespace at most.
    async fn gates(&self, per_namespace: u32) -> Result<Vec<Stored>, StoreError>;

    /// Tasks that stand for executions which are over, while the tasks still run: so many of each namespace at most.
    async fn call_ends(&self, per_namespace: u32) -> Result<Vec<CallEnd>, StoreError>;

    /// Open executions whose task is over or has gone on to another run, or whose root is over: so many of each
    /// namespace at most.
    async fn orphans(&self, per_namespace: u32) -> Result<Vec<(String, ExecutionId)>, StoreError>;

    /// Executions, newest first.
    async fn executions(&self, namespace: &str, query: &ExecutionQuery) -> Result<Vec<ExecutionView>, StoreError>;

    /// A version of a document, or its newest.
    async fn document(&self, at: Shelf<'_>, name: &str, version: Option<u32>) -> Result<Option<Document>, StoreError>;

    /// The newest of each name behind `after`, in the order of their names.
    async fn documents(&self, at: Shelf<'_>, after: &str, limit: u32) -> Result<Vec<Document>, StoreError>;

    /// All versions of a name, newest first.
    async fn versions(&self, at: Shelf<'_>, name: &str, limit: u32) -> Result<Vec<Document>, StoreError>;

    /// The next version, if `known` is the newest (0 where there is none yet).
    async fn put_document(
        &self,
        at: Shelf<'_>,
        name: &str,
        known: u32,
        body: &str,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<bool, StoreError>;

    async fn delete_document(&self, at: Shelf<'_>, name: &str) -> Result<bool, StoreError>;

    /// A follower by its name.
    async fn follower(&self, sort: Following, namespace: &str, name: &str) -> Result<Option<Follower>, StoreError>;

    /// Followers behind `after`, in the order of their names.
    async fn followers(
        &self,
        sort: Following,
        namespace: &str,
        after: &str,
        limit: u32,
    ) -> Result<Vec<Follower>, StoreError>;

    /// Followers of all namespaces whose time has come, the longest overdue first.
    async fn due_followers(&self, sort: Following, now: Timestamp, limit: u32) -> Result<Vec<Follower>, StoreError>;

    /// Followers of all namespaces that have a time at all, by namespace and name, behind the one that is named.
    async fn active_followers(
        &self,
        sort: Following,
        after: Option<(&str, &str)>,
        limit: u32,
    ) -> Result<Vec<Follower>, StoreError>;

    /// Stores a follower, if the version that it names is still the one there is (0 where there is none yet), together with
    /// what it starts: both are written or neither. Nothing happens on behalf of a loop that is paused.
    async fn put_follower(
        &self,
        follower: &Follower,
        start: Option<&Submission>,
        on_behalf_of: Option<Loop>,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<Applied, StoreError>;

    async fn delete_follower(
        &self,
        sort: Following,
        namespace: &str,
        name: &str,
        audit: Option<&Audit>,
    ) -> Result<bool, StoreError>;

    async fn execution(&self, namespace: &str, id: ExecutionId) -> Result<Option<ExecutionView>, StoreError>;

    /// How many tasks are in each state, and how many of those are held.
    async fn counts(&self, namespace: &str, now: Timestamp) -> Result<Counts, StoreError>;

    /// How many tasks that were retried, wait for a retry or ran out of them are in each state.
    async fn retried(&self, namespace: &str) -> Result<Counts, StoreError>;

    /// What is open in all namespaces, as somebody finds it who starts.
    async fn open_work(&self, now: Timestamp) -> Result<OpenWork, StoreError>;

    /// Deletes what ended before `before`, at most `limit` tasks, of an execution all; open work is never touched.
    async fn prune(&self, before: Timestamp, limit: u32) -> Result<Pruned, StoreError>;

    /// How many tasks `prune` would delete, were it asked until there are no more.
    async fn prunable(&self, before: Timestamp) -> Result<u64, StoreError>;

    /// Pauses a loop until an instant, or resumes it. Holds on every instance as soon as it is acknowledged.
    async fn set_pause(
        &self,
        name: Loop,
        pause: Option<Pause>,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<(), StoreError>;

    async fn pauses(&self) -> Result<Vec<(Loop, Pause)>, StoreError>;

    /// The namespaces that have tasks of an executor, or of any; by name.
    async fn lane_namespaces(&self, executor: Option<Executor>) -> Result<Vec<String>, StoreError>;

    /// What namespaces may have of lanes, policies and values that rules count by, from now on.
    fn set_quotas(&self, quotas: &Quotas);

    /// Deletes lanes that no task is in, a part of them at a time: those that were found empty by an earlier call, long enough ago,
    /// and still are.
    async fn forget_unused(&self, now: Timestamp) -> Result<Forgotten, StoreError>;

    /// Deletes policies that no task uses, where there are more than so many policies; answers how many. It reads all tasks.
    async fn forget_policies(&self, beyond: u64, now: Timestamp) -> Result<u64, StoreError>;

    /// The admission rules of a namespace, by name.
    async fn rules(&self, namespace: &str) -> Result<Vec<Rule>, StoreError>;

    /// Makes or changes a rule. From now on tasks are put under it, and claims heed its limit; those that are there already are
    /// moved by `settle_rules`. Answers the generation that is settled then; nothing where the rule stood there as it is.
    async fn put_rule(
        &self,
        namespace: &str,
        rule: &Rule,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<Option<i64>, StoreError>;

    /// Nothing where there is none.
    async fn delete_rule(&self, namespace: &str, name: &str, audit: Option<&Audit>) -> Result<Option<i64>, StoreError>;

    /// Removes those of these rules that no open task is under; nothing while tasks are still on their way to where they belong.
    async fn delete_unused_rules(&self, namespace: &str, names: &[String]) -> Result<Option<i64>, StoreError>;

    /// Moves some of the tasks that were there before the rules last changed to where they belong now.
    async fn settle_rules(&self) -> Result<Settled, StoreError>;

    /// The rules that the open tasks of a kind in an execution carry from now on; answers how many those are.
    async fn carry_rules(&self, id: ExecutionId, kind: &str, rules: &[String]) -> Result<u64, StoreError>;

    /// What runs under the rules of a namespace.
    async fn in_use(&self, namespace: &str) -> Result<Vec<(Key, InUse)>, StoreError>;

    /// How often claims of this process left a lane alone because a rule had no room.
    fn held_by_rules(&self) -> u64;

    /// The same because of a dependency.
    fn held_by_dependencies(&self) -> u64;

    /// The lanes in which somebody may start when one of this lane no longer runs; none where no rule is.
    fn freed_by(&self, lane: &Lane) -> Vec<Arc<Lane>>;

    /// Small facts about the store itself. `put_meta` answers the value that then stands.
    async fn meta(&self, key: &str) -> Result<Option<String>, StoreError>;

    async fn put_meta(
        &self,
        key: &str,
        value: &str,
        when: PutIf<'_>,
        audit: Option<&Audit>,
    ) -> Result<String, StoreError>;

    /// An account by its name.
    async fn account(&self, namespace: &str, name: &str) -> Result<Option<Account>, StoreError>;

    /// Accounts behind `after`, in the order of their names.
    async fn accounts(&self, namespace: &str, after: &str, limit: u32) -> Result<Vec<Account>, StoreError>;

    /// Makes or changes an account; what its tasks have reserved stays so. The audit is told how it was and how it is.
    async fn put_account(
        &self,
        namespace: &str,
        name: &str,
        change: &AccountChange,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<Account, StoreError>;

    /// What was booked in the budget of an account, from a period on.
    async fn booked(&self, namespace: &str, account: &str, since: &str)
    -> Result<BTreeMap<String, Booked>, StoreError>;

    /// Only where no open task has reserved any of it.
    async fn delete_account(&self, namespace: &str, name: &str, audit: Option<&Audit>) -> Result<Closed, StoreError>;

    /// A named secret as it is kept: encrypted.
    async fn secret(&self, namespace: &str, name: &str) -> Result<Option<SealedSecret>, StoreError>;

    /// Named secrets behind `after`, in the order of their names.
    async fn secrets(&self, namespace: &str, after: &str, limit: u32) -> Result<Vec<SealedSecret>, StoreError>;

    /// Those of all namespaces behind a namespace and a name, for a change of the key that encrypts them.
    async fn all_secrets(&self, after: (&str, &str), limit: u32) -> Result<Vec<SealedSecret>, StoreError>;

    /// Makes or replaces a secret; a namespace has `most` at most. Answers it as it then stands, and whether it is new.
    async fn put_secret(
        &self,
        secret: &SealedSecret,
        most: u64,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<(SealedSecret, bool), StoreError>;

    /// The same value under another key, if the version that it names is still the one there is.
    async fn reseal_secret(&self, secret: &SealedSecret) -> Result<bool, StoreError>;

    async fn delete_secret(&self, namespace: &str, name: &str, audit: Option<&Audit>) -> Result<bool, StoreError>;

    /// A dependency by its name, as it stands.
    async fn dependency(&self, namespace: &str, name: &str) -> Result<Option<Dependency>, StoreError>;

    /// Dependencies behind `after`, in the order of their names.
    async fn dependencies(&self, namespace: &str, after: &str, limit: u32) -> Result<Vec<Dependency>, StoreError>;

    /// Dependencies of all namespaces about which time has changed something, the longest ago first.
    async fn due_dependencies(&self, now: Timestamp, limit: u32) -> Result<Vec<Dependency>, StoreError>;

    /// When time next changes something about one of them.
    async fn next_dependency(&self, after: Timestamp) -> Result<Option<Timestamp>, StoreError>;

    /// Holds the name of a process until what is answered is dropped or the process is no longer there, however it ended. Whoever is
    /// the only one of its name hears what earlier ones have left behind: tasks that are leased to `<name>/<anything>`, or to
    /// `<any name>/<anything>` where no other process can have the database open.
    async fn hold_name(&self, name: &str) -> Result<HeldName, StoreError>;

    /// Whether anything is ready to start that is under a dependency, whoever may ask for it.
    async fn is_waited_for(&self, namespace: &str, dependency: &str) -> Result<bool, StoreError>;

    /// Stores a dependency, if the version that it names is still the one there is (0 where there is none yet). Claims heed it for
    /// the tasks that its rule puts under it, and count in it what they take.
    async fn put_dependency(&self, it: &Dependency, audit: Option<&Audit>, now: Timestamp) -> Result<bool, StoreError>;

    async fn delete_dependency(&self, namespace: &str, name: &str, audit: Option<&Audit>) -> Result<bool, StoreError>;

    /// Stores a dependency as `put_dependency` does and, in the same commit, moves the deadlines of open tasks that are under it
    /// (model A14): those behind the instant, by the span.
    async fn announce(
        &self,
        it: &Dependency,
        stopped: Option<(Timestamp, Millis)>,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<bool, StoreError>;

    /// Whether tasks that name this are under a dependency, as far as this process knows.
    fn is_guarded(&self, namespace: &str, dependency: &str) -> bool;
    /// The tasks that a filter finds at one moment, oldest first, so many at most.
    async fn matching(
        &self,
        namespace: &str,
        filter: &Filter,
        now: Timestamp,
        most: u32,
    ) -> Result<Vec<TaskId>, StoreError>;

    /// Stores a bulk operation with the tasks it is about, once under its key.
    async fn start_operation(
        &self,
        operation: &Operation,
        ids: &[TaskId],
        key: Option<&Idempotency>,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<Started, StoreError>;

    async fn operation(&self, namespace: &str, id: Uuid) -> Result<Option<Operation>, StoreError>;

    /// Newest first, from before one of them.
    async fn operations(&self, namespace: &str, before: Option<Uuid>, limit: u32)
    -> Result<Vec<Operation>, StoreError>;

    /// Those of all namespaces that somebody is to go on with, the longest overdue first.
    async fn due_operations(&self, now: Timestamp, limit: u32) -> Result<Vec<Operation>, StoreError>;

    /// Stores how far an operation has come, if the version that it names is still the one there is. Nothing happens on behalf of
    /// a loop that is paused.
    async fn put_operation(
        &self,
        operation: &Operation,
        on_behalf_of: Option<Loop>,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<Applied, StoreError>;

    /// The tasks of an operation from one place to before another.
    async fn operation_ids(&self, id: Uuid, from: u32, to: u32) -> Result<Vec<TaskId>, StoreError>;

    /// Which of these tasks an operation has changed, and how they were before.
    async fn marks(&self, id: Uuid, tasks: &[TaskId]) -> Result<HashMap<TaskId, Marked>, StoreError>;

    /// Writes down an act that is no write of this store, or more than one.
    async fn put_audit(&self, audit: &Audit) -> Result<(), StoreError>;

    /// What was done from outside, newest first.
    async fn audit(&self, query: &AuditQuery) -> Result<Vec<Audit>, StoreError>;

    /// What happened since the statistics were last added to, a stretch at a time.
    async fn unfolded(&self, limit: u32) -> Result<Stretch, StoreError>;

    /// Adds what a stretch came to and moves on behind it, both or neither. Whether it did: somebody else may have been quicker.
    async fn fold(&self, stretch: &Stretch, fold: &Fold, now: Timestamp) -> Result<bool, StoreError>;

    /// Sums of what attempts came to.
    async fn sums(&self, namespace: &str, query: &SumsQuery) -> Result<Vec<SumLine>, StoreError>;

    /// Keeps old sums less fine, and forgets the oldest, what was booked in months that are over, and of each namespace the error
    /// groups beyond so many. Whether there is more to do of it.
    async fn tidy_sums(&self, now: Timestamp, limit: u32, most_groups: u32) -> Result<bool, StoreError>;

    /// Error groups, those that were seen last first.
    async fn groups(&self, namespace: &str, query: &GroupQuery) -> Result<Vec<Group>, StoreError>;

    async fn group(&self, namespace: &str, fingerprint: i64) -> Result<Option<Group>, StoreError>;

    /// What somebody does to a group; nothing where there is none. The audit says who, and is told how it was and how it is.
    async fn put_group(
        &self,
        namespace: &str,
        fingerprint: i64,
        deed: &Deed,
        audit: &Audit,
        now: Timestamp,
    ) -> Result<Option<Group>, StoreError>;

    /// What people said that errors are, by namespace and fingerprint.
    async fn reclassified(&self) -> Result<HashMap<String, HashMap<i64, Class>>, StoreError>;

    /// How many open tasks failed last with each of these errors.
    async fn open_with(&self, namespace: &str, fingerprints: &[i64]) -> Result<HashMap<i64, u64>, StoreError>;

    /// How far this database's clock is ahead of the process's, in milliseconds; nothing when the process's clock counts.
    async fn clock_offset(&self) -> Result<Option<i64>, StoreError>;

    /// Tells other instances that there is work; a hint that may be lost.
    fn notify(&self);

    /// Wakes when another instance has given such a hint.
    fn wakes(&self) -> tokio::sync::watch::Receiver<u64>;

    /// What the store does in the background, for those who watch whether it lives.
    fn background(&self) -> Option<&Background> {
        None
    }

    /// The last call: everything is written, every connection is closed, and a SQLite file is whole without its log. Calls that
    /// come later are refused as unavailable.
    async fn close(&self) {}
}

/// What to list, how, and from where.
#[derive(Clone, Debug)]
pub struct ListQuery {
    pub filter: Filter,
    pub sort: Sort,
    pub limit: u32,
    pub after: Option<ListCursor>,
    pub now: Timestamp,
}

/// Why a store could not do what it was asked.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// Nothing was done; trying again may help.
    #[error("the database is not available: {0}")]
    Unavailable(String),
    /// A commit may or may not have happened. PostgreSQL is asked again on a new connection; a SQLite file accepts nothing more
    /// until a restart has looked.
    #[error("the outcome of a commit is unknown: {0}")]
    Unknown(String),
    #[error("another process has this database open: {0}")]
    Locked(String),
    #[error("{0}")]
    Schema(String),
    /// What the database holds contradicts itself.
    #[error("the database holds what it should not: {0}")]
    Corrupt(String),
    #[error("the statement was refused: {0}")]
    Refused(String),
    /// An interactive read took longer than it may and was interrupted.
    #[error("the search took longer than {} and was stopped; narrow the filter", comeback_core::Millis(u64::try_from(.0.as_millis()).unwrap_or(u64::MAX)))]
    SearchTimeout(std::time::Duration),
    /// Nothing was done: the namespace has all it may have of something.
    #[error(transparent)]
    QuotaExceeded(#[from] comeback_core::QuotaExceeded),
    /// Nothing was done: the idempotency key of the act was used before.
    #[error("the idempotency key was used before")]
    KeyUsed(Used),
}
