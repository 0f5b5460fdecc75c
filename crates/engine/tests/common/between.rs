//! A real store with a hand before it: the hand may lose a question or an answer, count, end it all, or change what is said.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use async_trait::async_trait;
use comeback_core::admission::{Key, Rule, Used as InUse};
use comeback_core::budget::Booked;
use comeback_core::error_group::{Deed, Group};
use comeback_core::filter::Filter;
use comeback_core::payload::OldPayload;
use comeback_core::stats::Fold;
use comeback_core::{Audit, Class, Commit, ExecutionId, Millis, Record, TaskId, Timestamp};
use comeback_engine::store::*;
use uuid::Uuid;

/// What stands before a store. Whatever it does not say otherwise, happens.
#[async_trait]
pub trait Hand: Send + Sync {
    /// Before a call reaches the store; an error keeps it from doing so. The answer is given back to `after`.
    async fn before(&self, writes: bool) -> Result<u64, StoreError>;

    /// After the store has answered. `changed`: something is different in it now.
    async fn after(&self, ticket: u64, changed: bool) -> Result<(), StoreError>;

    async fn submit(
        &self,
        truth: &dyn Store,
        submissions: &[Submission],
        now: Timestamp,
    ) -> Result<Vec<Submitted>, StoreError> {
        truth.submit(submissions, now).await
    }

    async fn claim(
        &self,
        truth: &dyn Store,
        requests: &[ClaimRequest],
        now: Timestamp,
    ) -> Result<Vec<Vec<Claimed>>, StoreError> {
        truth.claim(requests, now).await
    }

    /// What is stored in place of these.
    async fn commits(&self, _truth: &dyn Store, commits: &[Commit]) -> Result<Vec<Commit>, StoreError> {
        Ok(commits.to_vec())
    }

    /// So many tasks of an execution were looked at.
    fn looked_at(&self, _tasks: usize) {}

    /// What is made beside a commit in place of this.
    fn spawned(&self, _commit: &Commit, _spawn: &mut Submission) {}

    async fn heartbeat(
        &self,
        truth: &dyn Store,
        beats: &[Beat],
        now: Timestamp,
    ) -> Result<Vec<BeatAnswer>, StoreError> {
        truth.heartbeat(beats, now).await
    }

    async fn promote(
        &self,
        truth: &dyn Store,
        what: Promote,
        now: Timestamp,
        limit: u32,
    ) -> Result<Promoted, StoreError> {
        truth.promote(what, now, limit).await
    }

    async fn put_follower(
        &self,
        truth: &dyn Store,
        follower: &Follower,
        start: Option<&Submission>,
        on_behalf_of: Option<Loop>,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<Applied, StoreError> {
        truth.put_follower(follower, start, on_behalf_of, audit, now).await
    }

    async fn set_pause(
        &self,
        truth: &dyn Store,
        name: Loop,
        pause: Option<Pause>,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        truth.set_pause(name, pause, audit, now).await
    }
}

pub struct Between<H> {
    pub truth: Arc<dyn Store>,
    pub hand: Arc<H>,
}

impl<H: Hand> Between<H> {
    async fn reads<T>(&self, call: impl Future<Output = Result<T, StoreError>> + Send) -> Result<T, StoreError> {
        self.through(false, call, |_| false).await
    }

    async fn writes<T>(
        &self,
        call: impl Future<Output = Result<T, StoreError>> + Send,
        changed: impl Fn(&T) -> bool,
    ) -> Result<T, StoreError> {
        self.through(true, call, changed).await
    }

    async fn through<T>(
        &self,
        writes: bool,
        call: impl Future<Output = Result<T, StoreError>> + Send,
        changed: impl Fn(&T) -> bool,
    ) -> Result<T, StoreError> {
        let ticket = self.hand.before(writes).await?;
        let answer = call.await;
        self.hand.after(ticket, answer.as_ref().is_ok_and(changed)).await?;
        answer
    }
}

fn any_done(applied: &[Applied]) -> bool {
    applied.contains(&Applied::Done)
}

#[async_trait]
impl<H: Hand> Store for Between<H> {
    async fn learn(&self, submission: &Submission) -> Result<(), StoreError> {
        self.truth.learn(submission).await
    }

    async fn submit(&self, submissions: &[Submission], now: Timestamp) -> Result<Vec<Submitted>, StoreError> {
        let created = |answers: &Vec<Submitted>| answers.iter().any(|it| matches!(it, Submitted::Created(_)));
        self.writes(self.hand.submit(&*self.truth, submissions, now), created).await
    }

    async fn claim(&self, requests: &[ClaimRequest], now: Timestamp) -> Result<Vec<Vec<Claimed>>, StoreError> {
        let given = |answers: &Vec<Vec<Claimed>>| answers.iter().any(|claimed| !claimed.is_empty());
        self.writes(self.hand.claim(&*self.truth, requests, now), given).await
    }

    async fn apply(
        &self,
        commits: &[Commit],
        on_behalf_of: Option<Loop>,
        now: Timestamp,
    ) -> Result<Vec<Applied>, StoreError> {
        let commits = self.hand.commits(&*self.truth, commits).await?;
        self.writes(self.truth.apply(&commits, on_behalf_of, now), |applied| any_done(applied)).await
    }

    async fn apply_once(
        &self,
        namespace: &str,
        key: &Idempotency,
        commit: Option<&Commit>,
        now: Timestamp,
    ) -> Result<Applied, StoreError> {
        self.writes(self.truth.apply_once(namespace, key, commit, now), |applied| *applied == Applied::Done).await
    }

    async fn used(&self, namespace: &str, key: &Idempotency) -> Result<Option<Used>, StoreError> {
        self.reads(self.truth.used(namespace, key)).await
    }

    async fn kept_answer(&self, namespace: &str, key: &Idempotency) -> Result<Option<serde_json::Value>, StoreError> {
        self.reads(self.truth.kept_answer(namespace, key)).await
    }

    async fn heartbeat(&self, beats: &[Beat], now: Timestamp) -> Result<Vec<BeatAnswer>, StoreError> {
        self.writes(self.hand.heartbeat(&*self.truth, beats, now), |answers| !answers.is_empty()).await
    }

    async fn outlast(&self, from: Timestamp, to: Timestamp) -> Result<u64, StoreError> {
        self.writes(self.truth.outlast(from, to), |held| *held > 0).await
    }

    async fn count(&self, counts: &[Count], now: Timestamp) -> Result<Vec<bool>, StoreError> {
        self.writes(self.truth.count(counts, now), |answers| answers.contains(&true)).await
    }

    async fn promote(&self, what: Promote, now: Timestamp, limit: u32) -> Result<Promoted, StoreError> {
        self.writes(self.hand.promote(&*self.truth, what, now, limit), |promoted| promoted.count > 0).await
    }

    async fn due(&self, what: Due, now: Timestamp, limit: u32) -> Result<Vec<Stored>, StoreError> {
        self.reads(self.truth.due(what, now, limit)).await
    }

    async fn next_due(&self) -> Result<NextDue, StoreError> {
        self.reads(self.truth.next_due()).await
    }

    async fn due_before(&self, until: Timestamp) -> Result<DueBefore, StoreError> {
        self.reads(self.truth.due_before(until)).await
    }

    async fn retry_after(&self, after: Timestamp) -> Result<Option<Timestamp>, StoreError> {
        self.reads(self.truth.retry_after(after)).await
    }

    async fn load(&self, ids: &[TaskId]) -> Result<Vec<Option<Stored>>, StoreError> {
        self.reads(self.truth.load(ids)).await
    }

    async fn graph(&self, id: ExecutionId, around: Option<&[TaskId]>) -> Result<Option<Graph>, StoreError> {
        let graph = self.reads(self.truth.graph(id, around)).await?;
        self.hand.looked_at(graph.as_ref().map_or(0, |graph| graph.tasks.len()));
        Ok(graph)
    }

    async fn task(&self, namespace: &str, id: TaskId) -> Result<Option<TaskView>, StoreError> {
        self.reads(self.truth.task(namespace, id)).await
    }

    async fn describe(
        &self,
        id: TaskId,
        change: &Description,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        self.writes(self.truth.describe(id, change, audit, now), |described| *described).await
    }

    async fn old_payloads(&self, id: TaskId) -> Result<Vec<OldPayload>, StoreError> {
        self.reads(self.truth.old_payloads(id)).await
    }

    async fn list(&self, namespace: &str, query: &ListQuery) -> Result<Listing, StoreError> {
        self.reads(self.truth.list(namespace, query)).await
    }

    async fn history(&self, subject: Subject, after: u32, limit: u32) -> Result<Vec<Record>, StoreError> {
        self.reads(self.truth.history(subject, after, limit)).await
    }

    async fn runs_before(&self, id: TaskId, before: u32, limit: u32) -> Result<Vec<Record>, StoreError> {
        self.reads(self.truth.runs_before(id, before, limit)).await
    }

    async fn ended(&self, leases: &[(TaskId, u32)]) -> Result<Vec<Option<Record>>, StoreError> {
        self.reads(self.truth.ended(leases)).await
    }

    async fn feed(&self, after: Option<FeedCursor>, limit: u32) -> Result<Feed, StoreError> {
        self.reads(self.truth.feed(after, limit)).await
    }

    async fn feed_end(&self) -> Result<FeedCursor, StoreError> {
        self.reads(self.truth.feed_end()).await
    }

    async fn feed_cursor(&self, cursor: FeedCursor) -> Result<FeedCursor, StoreError> {
        self.reads(self.truth.feed_cursor(cursor)).await
    }

    async fn epoch(&self) -> Result<String, StoreError> {
        self.reads(self.truth.epoch()).await
    }

    async fn active_followers(
        &self,
        sort: Following,
        after: Option<(&str, &str)>,
        limit: u32,
    ) -> Result<Vec<Follower>, StoreError> {
        self.reads(self.truth.active_followers(sort, after, limit)).await
    }

    async fn apply_spawning(
        &self,
        commit: &Commit,
        spawn: &Submission,
        behalf: Behalf<'_>,
        now: Timestamp,
    ) -> Result<Applied, StoreError> {
        let commits = self.hand.commits(&*self.truth, std::slice::from_ref(commit)).await?;
        let mut spawn = spawn.clone();
        self.hand.spawned(commit, &mut spawn);
        let commit = commits.first().unwrap_or(commit);
        self.writes(self.truth.apply_spawning(commit, &spawn, behalf, now), |applied| *applied == Applied::Done).await
    }

    async fn executions(&self, namespace: &str, query: &ExecutionQuery) -> Result<Vec<ExecutionView>, StoreError> {
        self.reads(self.truth.executions(namespace, query)).await
    }

    async fn steps(
        &self,
        execution: ExecutionId,
        which: StepsOf<'_>,
        most_bytes: u64,
    ) -> Result<Vec<StepView>, StoreError> {
        let steps = self.reads(self.truth.steps(execution, which, most_bytes)).await?;
        self.hand.looked_at(steps.len());
        Ok(steps)
    }

    async fn tree(&self, execution: ExecutionId) -> Result<Option<Tree>, StoreError> {
        self.reads(self.truth.tree(execution)).await
    }

    async fn gates(&self, per_namespace: u32) -> Result<Vec<Stored>, StoreError> {
        self.reads(self.truth.gates(per_namespace)).await
    }

    async fn call_ends(&self, limit: u32) -> Result<Vec<CallEnd>, StoreError> {
        self.reads(self.truth.call_ends(limit)).await
    }

    async fn orphans(&self, limit: u32) -> Result<Vec<(String, ExecutionId)>, StoreError> {
        self.reads(self.truth.orphans(limit)).await
    }

    async fn document(&self, at: Shelf<'_>, name: &str, version: Option<u32>) -> Result<Option<Document>, StoreError> {
        self.reads(self.truth.document(at, name, version)).await
    }

    async fn documents(&self, at: Shelf<'_>, after: &str, limit: u32) -> Result<Vec<Document>, StoreError> {
        self.reads(self.truth.documents(at, after, limit)).await
    }

    async fn versions(&self, at: Shelf<'_>, name: &str, limit: u32) -> Result<Vec<Document>, StoreError> {
        self.reads(self.truth.versions(at, name, limit)).await
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
        self.writes(self.truth.put_document(at, name, known, body, audit, now), |put| *put).await
    }

    async fn delete_document(&self, at: Shelf<'_>, name: &str) -> Result<bool, StoreError> {
        self.writes(self.truth.delete_document(at, name), |deleted| *deleted).await
    }

    async fn follower(&self, sort: Following, namespace: &str, name: &str) -> Result<Option<Follower>, StoreError> {
        self.reads(self.truth.follower(sort, namespace, name)).await
    }

    async fn followers(
        &self,
        sort: Following,
        namespace: &str,
        after: &str,
        limit: u32,
    ) -> Result<Vec<Follower>, StoreError> {
        self.reads(self.truth.followers(sort, namespace, after, limit)).await
    }

    async fn due_followers(&self, sort: Following, now: Timestamp, limit: u32) -> Result<Vec<Follower>, StoreError> {
        self.reads(self.truth.due_followers(sort, now, limit)).await
    }

    async fn put_follower(
        &self,
        follower: &Follower,
        start: Option<&Submission>,
        on_behalf_of: Option<Loop>,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<Applied, StoreError> {
        let put = self.hand.put_follower(&*self.truth, follower, start, on_behalf_of, audit, now);
        self.writes(put, |applied| *applied == Applied::Done).await
    }

    async fn delete_follower(
        &self,
        sort: Following,
        namespace: &str,
        name: &str,
        audit: Option<&Audit>,
    ) -> Result<bool, StoreError> {
        self.writes(self.truth.delete_follower(sort, namespace, name, audit), |deleted| *deleted).await
    }

    async fn secret(&self, namespace: &str, name: &str) -> Result<Option<SealedSecret>, StoreError> {
        self.reads(self.truth.secret(namespace, name)).await
    }

    async fn secrets(&self, namespace: &str, after: &str, limit: u32) -> Result<Vec<SealedSecret>, StoreError> {
        self.reads(self.truth.secrets(namespace, after, limit)).await
    }

    async fn all_secrets(&self, after: (&str, &str), limit: u32) -> Result<Vec<SealedSecret>, StoreError> {
        self.reads(self.truth.all_secrets(after, limit)).await
    }

    async fn put_secret(
        &self,
        secret: &SealedSecret,
        most: u64,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<(SealedSecret, bool), StoreError> {
        self.writes(self.truth.put_secret(secret, most, audit, now), |_| true).await
    }

    async fn reseal_secret(&self, secret: &SealedSecret) -> Result<bool, StoreError> {
        self.writes(self.truth.reseal_secret(secret), |done| *done).await
    }

    async fn delete_secret(&self, namespace: &str, name: &str, audit: Option<&Audit>) -> Result<bool, StoreError> {
        self.writes(self.truth.delete_secret(namespace, name, audit), |deleted| *deleted).await
    }

    async fn execution(&self, namespace: &str, id: ExecutionId) -> Result<Option<ExecutionView>, StoreError> {
        self.reads(self.truth.execution(namespace, id)).await
    }

    async fn open_work(&self, now: Timestamp) -> Result<OpenWork, StoreError> {
        self.reads(self.truth.open_work(now)).await
    }

    async fn counts(&self, namespace: &str, now: Timestamp) -> Result<Counts, StoreError> {
        self.reads(self.truth.counts(namespace, now)).await
    }

    async fn retried(&self, namespace: &str) -> Result<Counts, StoreError> {
        self.reads(self.truth.retried(namespace)).await
    }

    async fn prune(&self, before: Timestamp, limit: u32) -> Result<Pruned, StoreError> {
        self.writes(self.truth.prune(before, limit), |pruned| pruned.tasks > 0).await
    }

    async fn prunable(&self, before: Timestamp) -> Result<u64, StoreError> {
        self.reads(self.truth.prunable(before)).await
    }

    async fn set_pause(
        &self,
        name: Loop,
        pause: Option<Pause>,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        self.writes(self.hand.set_pause(&*self.truth, name, pause, audit, now), |_| true).await
    }

    async fn pauses(&self) -> Result<Vec<(Loop, Pause)>, StoreError> {
        self.reads(self.truth.pauses()).await
    }

    async fn lane_namespaces(&self, executor: Option<comeback_core::Executor>) -> Result<Vec<String>, StoreError> {
        self.reads(self.truth.lane_namespaces(executor)).await
    }

    fn set_quotas(&self, quotas: &comeback_core::Quotas) {
        self.truth.set_quotas(quotas);
    }

    async fn forget_unused(&self, now: Timestamp) -> Result<Forgotten, StoreError> {
        self.writes(self.truth.forget_unused(now), |it| it.lanes > 0).await
    }

    async fn forget_policies(&self, beyond: u64, now: Timestamp) -> Result<u64, StoreError> {
        self.writes(self.truth.forget_policies(beyond, now), |count| *count > 0).await
    }

    async fn rules(&self, namespace: &str) -> Result<Vec<Rule>, StoreError> {
        self.reads(self.truth.rules(namespace)).await
    }

    async fn put_rule(
        &self,
        namespace: &str,
        rule: &Rule,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<Option<i64>, StoreError> {
        self.writes(self.truth.put_rule(namespace, rule, audit, now), |_| true).await
    }

    async fn delete_rule(&self, namespace: &str, name: &str, audit: Option<&Audit>) -> Result<Option<i64>, StoreError> {
        self.writes(self.truth.delete_rule(namespace, name, audit), |_| true).await
    }

    async fn delete_unused_rules(&self, namespace: &str, names: &[String]) -> Result<Option<i64>, StoreError> {
        self.writes(self.truth.delete_unused_rules(namespace, names), |_| true).await
    }

    async fn settle_rules(&self) -> Result<Settled, StoreError> {
        self.writes(self.truth.settle_rules(), |_| true).await
    }

    async fn carry_rules(&self, id: ExecutionId, kind: &str, rules: &[String]) -> Result<u64, StoreError> {
        self.writes(self.truth.carry_rules(id, kind, rules), |_| true).await
    }

    async fn in_use(&self, namespace: &str) -> Result<Vec<(Key, InUse)>, StoreError> {
        self.reads(self.truth.in_use(namespace)).await
    }

    fn held_by_rules(&self) -> u64 {
        self.truth.held_by_rules()
    }

    fn held_by_dependencies(&self) -> u64 {
        self.truth.held_by_dependencies()
    }

    fn freed_by(&self, lane: &comeback_core::Lane) -> Vec<Arc<comeback_core::Lane>> {
        self.truth.freed_by(lane)
    }

    async fn meta(&self, key: &str) -> Result<Option<String>, StoreError> {
        self.reads(self.truth.meta(key)).await
    }

    async fn put_meta(
        &self,
        key: &str,
        value: &str,
        when: PutIf<'_>,
        audit: Option<&Audit>,
    ) -> Result<String, StoreError> {
        self.writes(self.truth.put_meta(key, value, when, audit), |_| true).await
    }

    async fn account(&self, namespace: &str, name: &str) -> Result<Option<Account>, StoreError> {
        self.reads(self.truth.account(namespace, name)).await
    }

    async fn accounts(&self, namespace: &str, after: &str, limit: u32) -> Result<Vec<Account>, StoreError> {
        self.reads(self.truth.accounts(namespace, after, limit)).await
    }

    async fn put_account(
        &self,
        namespace: &str,
        name: &str,
        change: &AccountChange,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<Account, StoreError> {
        self.writes(self.truth.put_account(namespace, name, change, audit, now), |_| true).await
    }

    async fn booked(
        &self,
        namespace: &str,
        account: &str,
        since: &str,
    ) -> Result<BTreeMap<String, Booked>, StoreError> {
        self.reads(self.truth.booked(namespace, account, since)).await
    }

    async fn delete_account(&self, namespace: &str, name: &str, audit: Option<&Audit>) -> Result<Closed, StoreError> {
        self.writes(self.truth.delete_account(namespace, name, audit), |closed| *closed == Closed::Gone).await
    }

    async fn dependency(&self, namespace: &str, name: &str) -> Result<Option<Dependency>, StoreError> {
        self.reads(self.truth.dependency(namespace, name)).await
    }

    async fn dependencies(&self, namespace: &str, after: &str, limit: u32) -> Result<Vec<Dependency>, StoreError> {
        self.reads(self.truth.dependencies(namespace, after, limit)).await
    }

    async fn due_dependencies(&self, now: Timestamp, limit: u32) -> Result<Vec<Dependency>, StoreError> {
        self.reads(self.truth.due_dependencies(now, limit)).await
    }

    async fn hold_name(&self, name: &str) -> Result<HeldName, StoreError> {
        self.truth.hold_name(name).await
    }

    async fn is_waited_for(&self, namespace: &str, dependency: &str) -> Result<bool, StoreError> {
        self.reads(self.truth.is_waited_for(namespace, dependency)).await
    }

    async fn next_dependency(&self, after: Timestamp) -> Result<Option<Timestamp>, StoreError> {
        self.reads(self.truth.next_dependency(after)).await
    }

    async fn put_dependency(&self, it: &Dependency, audit: Option<&Audit>, now: Timestamp) -> Result<bool, StoreError> {
        self.writes(self.truth.put_dependency(it, audit, now), |written| *written).await
    }

    async fn delete_dependency(&self, namespace: &str, name: &str, audit: Option<&Audit>) -> Result<bool, StoreError> {
        self.writes(self.truth.delete_dependency(namespace, name, audit), |gone| *gone).await
    }

    async fn announce(
        &self,
        it: &Dependency,
        stopped: Option<(Timestamp, Millis)>,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        self.writes(self.truth.announce(it, stopped, audit, now), |written| *written).await
    }

    fn is_guarded(&self, namespace: &str, dependency: &str) -> bool {
        self.truth.is_guarded(namespace, dependency)
    }

    async fn matching(
        &self,
        namespace: &str,
        filter: &Filter,
        now: Timestamp,
        most: u32,
    ) -> Result<Vec<TaskId>, StoreError> {
        self.reads(self.truth.matching(namespace, filter, now, most)).await
    }

    async fn start_operation(
        &self,
        operation: &Operation,
        ids: &[TaskId],
        key: Option<&Idempotency>,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<Started, StoreError> {
        let start = self.truth.start_operation(operation, ids, key, audit, now);
        self.writes(start, |started| *started == Started::New).await
    }

    async fn operation(&self, namespace: &str, id: Uuid) -> Result<Option<Operation>, StoreError> {
        self.reads(self.truth.operation(namespace, id)).await
    }

    async fn operations(
        &self,
        namespace: &str,
        before: Option<Uuid>,
        limit: u32,
    ) -> Result<Vec<Operation>, StoreError> {
        self.reads(self.truth.operations(namespace, before, limit)).await
    }

    async fn due_operations(&self, now: Timestamp, limit: u32) -> Result<Vec<Operation>, StoreError> {
        self.reads(self.truth.due_operations(now, limit)).await
    }

    async fn put_operation(
        &self,
        operation: &Operation,
        on_behalf_of: Option<Loop>,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<Applied, StoreError> {
        let put = self.truth.put_operation(operation, on_behalf_of, audit, now);
        self.writes(put, |applied| *applied == Applied::Done).await
    }

    async fn operation_ids(&self, id: Uuid, from: u32, to: u32) -> Result<Vec<TaskId>, StoreError> {
        self.reads(self.truth.operation_ids(id, from, to)).await
    }

    async fn marks(&self, id: Uuid, tasks: &[TaskId]) -> Result<HashMap<TaskId, Marked>, StoreError> {
        self.reads(self.truth.marks(id, tasks)).await
    }

    async fn put_audit(&self, audit: &Audit) -> Result<(), StoreError> {
        self.writes(self.truth.put_audit(audit), |_| true).await
    }

    async fn audit(&self, query: &AuditQuery) -> Result<Vec<Audit>, StoreError> {
        self.reads(self.truth.audit(query)).await
    }

    async fn unfolded(&self, limit: u32) -> Result<Stretch, StoreError> {
        self.reads(self.truth.unfolded(limit)).await
    }

    async fn fold(&self, stretch: &Stretch, fold: &Fold, now: Timestamp) -> Result<bool, StoreError> {
        self.writes(self.truth.fold(stretch, fold, now), |done| *done).await
    }

    async fn sums(&self, namespace: &str, query: &SumsQuery) -> Result<Vec<SumLine>, StoreError> {
        self.reads(self.truth.sums(namespace, query)).await
    }

    async fn tidy_sums(&self, now: Timestamp, limit: u32, most_groups: u32) -> Result<bool, StoreError> {
        self.writes(self.truth.tidy_sums(now, limit, most_groups), |more| *more).await
    }

    async fn groups(&self, namespace: &str, query: &GroupQuery) -> Result<Vec<Group>, StoreError> {
        self.reads(self.truth.groups(namespace, query)).await
    }

    async fn group(&self, namespace: &str, fingerprint: i64) -> Result<Option<Group>, StoreError> {
        self.reads(self.truth.group(namespace, fingerprint)).await
    }

    async fn put_group(
        &self,
        namespace: &str,
        fingerprint: i64,
        deed: &Deed,
        audit: &Audit,
        now: Timestamp,
    ) -> Result<Option<Group>, StoreError> {
        self.writes(self.truth.put_group(namespace, fingerprint, deed, audit, now), Option::is_some).await
    }

    async fn reclassified(&self) -> Result<HashMap<String, HashMap<i64, Class>>, StoreError> {
        self.reads(self.truth.reclassified()).await
    }

    async fn open_with(&self, namespace: &str, fingerprints: &[i64]) -> Result<HashMap<i64, u64>, StoreError> {
        self.reads(self.truth.open_with(namespace, fingerprints)).await
    }

    async fn clock_offset(&self) -> Result<Option<i64>, StoreError> {
        self.reads(self.truth.clock_offset()).await
    }

    fn notify(&self) {}

    fn wakes(&self) -> tokio::sync::watch::Receiver<u64> {
        self.truth.wakes()
    }
}

#[async_trait]
impl<H: Hand> SharedStore for Between<H> {
    async fn change_numbers(&self) -> Result<ChangeNumbers, StoreError> {
        self.reads(self.truth.change_numbers()).await
    }

    async fn api_keys(&self, after: i64) -> Result<Vec<ApiKey>, StoreError> {
        self.reads(self.truth.api_keys(after)).await
    }

    async fn list_keys(&self, namespace: Option<&str>) -> Result<Vec<ApiKey>, StoreError> {
        self.reads(self.truth.list_keys(namespace)).await
    }

    async fn create_key(
        &self,
        key: &ApiKey,
        most: u64,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<KeyPut, StoreError> {
        self.writes(self.truth.create_key(key, most, audit, now), |_| true).await
    }

    async fn rotate_key(
        &self,
        old: &str,
        ends_at: Timestamp,
        key: &ApiKey,
        most: u64,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<KeyPut, StoreError> {
        self.writes(self.truth.rotate_key(old, ends_at, key, most, audit, now), |_| true).await
    }

    async fn revoke_key(&self, id: &str, audit: Option<&Audit>, now: Timestamp) -> Result<bool, StoreError> {
        self.writes(self.truth.revoke_key(id, audit, now), |_| true).await
    }

    async fn kind_policy_names(&self, after: i64) -> Result<Vec<KindPolicyName>, StoreError> {
        self.reads(self.truth.kind_policy_names(after)).await
    }

    async fn kind_policies(&self, namespace: &str, kinds: &[String]) -> Result<Vec<KindPolicy>, StoreError> {
        self.reads(self.truth.kind_policies(namespace, kinds)).await
    }

    async fn put_kind_policy(&self, policy: &KindPolicy, most: u64, audit: Option<&Audit>) -> Result<(), StoreError> {
        self.writes(self.truth.put_kind_policy(policy, most, audit), |_| true).await
    }

    async fn delete_kind_policy(&self, namespace: &str, kind: &str, audit: Option<&Audit>) -> Result<bool, StoreError> {
        self.writes(self.truth.delete_kind_policy(namespace, kind, audit), |_| true).await
    }

    async fn drained_workers(&self) -> Result<Vec<DrainedWorker>, StoreError> {
        self.reads(self.truth.drained_workers()).await
    }

    async fn drain_worker(
        &self,
        worker: &DrainedWorker,
        most: u64,
        old: Timestamp,
        audit: Option<&Audit>,
    ) -> Result<Drained, StoreError> {
        self.writes(self.truth.drain_worker(worker, most, old, audit), |_| true).await
    }

    async fn undrain_worker(&self, namespace: &str, name: &str, audit: Option<&Audit>) -> Result<bool, StoreError> {
        self.writes(self.truth.undrain_worker(namespace, name, audit), |_| true).await
    }

    async fn put_workers(&self, instance: &str, workers: &[WorkerSeen]) -> Result<(), StoreError> {
        self.writes(self.truth.put_workers(instance, workers), |_| true).await
    }

    async fn workers(&self, namespace: &str, after: Timestamp, limit: u32) -> Result<Vec<WorkerRow>, StoreError> {
        self.reads(self.truth.workers(namespace, after, limit)).await
    }

    async fn has_worker(&self, namespace: &str, name: &str, after: Timestamp) -> Result<bool, StoreError> {
        self.reads(self.truth.has_worker(namespace, name, after)).await
    }

    async fn worker_counts(&self, after: Timestamp) -> Result<Vec<(String, u64)>, StoreError> {
        self.reads(self.truth.worker_counts(after)).await
    }

    async fn forget_workers(&self, before: Timestamp) -> Result<u64, StoreError> {
        self.writes(self.truth.forget_workers(before), |_| true).await
    }

    async fn put_instance(&self, instance: &InstanceRow, gone: Timestamp) -> Result<(), StoreError> {
        self.writes(self.truth.put_instance(instance, gone), |_| true).await
    }

    async fn instances(&self) -> Result<Vec<InstanceRow>, StoreError> {
        self.reads(self.truth.instances()).await
    }
}
