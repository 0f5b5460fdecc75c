//! A real store with a hand before it: the hand may lose a question or an answer, count, end it all, or change what is said.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use async_trait::async_trait;
use comeback_core::admission::{Key, Rule, Used as InUse};
use comeback_core::budget::Booked;
use comeback_core::error_group::{Group, TriageAction};
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
        follower: &Resource,
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

/// Implements the traits of the store: calls that read, calls that write (and how to tell that one changed something), and calls
/// that are written out.
macro_rules! forward {
    ($($trait:ident {
        $(reads { $($read:ident($($a:ident: $at:ty),*) -> $got:ty;)* })?
        $(writes { $($write:ident($($b:ident: $bt:ty),*) -> $done:ty, $changed:expr;)* })?
        $(own { $($own:tt)* })?
    })*) => {$(
        #[async_trait]
        impl<H: Hand> $trait for Between<H> {
            $($(async fn $read(&self, $($a: $at),*) -> Result<$got, StoreError> {
                self.reads(self.truth.$read($($a),*)).await
            })*)?
            $($(async fn $write(&self, $($b: $bt),*) -> Result<$done, StoreError> {
                self.writes(self.truth.$write($($b),*), $changed).await
            })*)?
            $($($own)*)?
        }
    )*};
}

forward! {
    TaskStore {
        writes {
            apply_once(namespace: &str, key: &Idempotency, commit: Option<&Commit>, now: Timestamp) -> Applied, |applied| *applied == Applied::Done;
            extend_leases(from: Timestamp, to: Timestamp) -> u64, |held| *held > 0;
            count(counts: &[Count], now: Timestamp) -> Vec<bool>, |answers| answers.contains(&true);
            describe(id: TaskId, change: &Description, audit: Option<&Audit>, now: Timestamp) -> bool, |described| *described;
        }
        own {
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

            async fn heartbeat(&self, beats: &[Beat], now: Timestamp) -> Result<Vec<BeatAnswer>, StoreError> {
                self.writes(self.hand.heartbeat(&*self.truth, beats, now), |answers| !answers.is_empty()).await
            }

            async fn promote(&self, what: Promote, now: Timestamp, limit: u32) -> Result<Promoted, StoreError> {
                self.writes(self.hand.promote(&*self.truth, what, now, limit), |promoted| promoted.count > 0).await
            }
        }
    }

    DueQueries {
        reads {
            due(what: Due, now: Timestamp, limit: u32) -> Vec<Stored>;
            next_due() -> NextDue;
            due_before(until: Timestamp) -> DueBefore;
            retry_after(after: Timestamp) -> Option<Timestamp>;
            next_dependency(after: Timestamp) -> Option<Timestamp>;
        }
    }

    TaskQueries {
        reads {
            load(ids: &[TaskId]) -> Vec<Option<Stored>>;
            task(namespace: &str, id: TaskId) -> Option<TaskView>;
            old_payloads(id: TaskId) -> Vec<OldPayload>;
            list(namespace: &str, query: &ListQuery) -> Listing;
            matching(namespace: &str, filter: &Filter, now: Timestamp, most: u32) -> Vec<TaskId>;
            history(subject: Subject, after: u32, limit: u32) -> Vec<Record>;
            runs_before(id: TaskId, before: u32, limit: u32) -> Vec<Record>;
            ended(leases: &[(TaskId, u32)]) -> Vec<Option<Record>>;
        }
    }

    ExecutionQueries {
        reads {
            execution(namespace: &str, id: ExecutionId) -> Option<ExecutionView>;
            executions(namespace: &str, query: &ExecutionQuery) -> Vec<ExecutionView>;
            tree(execution: ExecutionId) -> Option<Tree>;
            gates(per_namespace: u32) -> Vec<Stored>;
            call_ends(limit: u32) -> Vec<CallEnd>;
            orphans(limit: u32) -> Vec<(String, ExecutionId)>;
        }
        own {
            async fn graph(&self, id: ExecutionId, around: Option<&[TaskId]>) -> Result<Option<Graph>, StoreError> {
                let graph = self.reads(self.truth.graph(id, around)).await?;
                self.hand.looked_at(graph.as_ref().map_or(0, |graph| graph.tasks.len()));
                Ok(graph)
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
        }
    }

    EventLog {
        reads {
            feed(after: Option<FeedCursor>, limit: u32) -> Feed;
            feed_end() -> FeedCursor;
            feed_cursor(cursor: FeedCursor) -> FeedCursor;
            epoch() -> String;
        }
    }

    ResourceStore {
        reads {
            follower(sort: ResourceKind, namespace: &str, name: &str) -> Option<Resource>;
            followers(sort: ResourceKind, namespace: &str, after: &str, limit: u32) -> Vec<Resource>;
            due_followers(sort: ResourceKind, now: Timestamp, limit: u32) -> Vec<Resource>;
            active_followers(sort: ResourceKind, after: Option<(&str, &str)>, limit: u32) -> Vec<Resource>;
        }
        writes {
            delete_follower(sort: ResourceKind, namespace: &str, name: &str, audit: Option<&Audit>) -> bool, |deleted| *deleted;
        }
        own {
            async fn put_follower(
                &self,
                follower: &Resource,
                start: Option<&Submission>,
                on_behalf_of: Option<Loop>,
                audit: Option<&Audit>,
                now: Timestamp,
            ) -> Result<Applied, StoreError> {
                let put = self.hand.put_follower(&*self.truth, follower, start, on_behalf_of, audit, now);
                self.writes(put, |applied| *applied == Applied::Done).await
            }
        }
    }

    DependencyStore {
        reads {
            dependency(namespace: &str, name: &str) -> Option<Dependency>;
            dependencies(namespace: &str, after: &str, limit: u32) -> Vec<Dependency>;
            due_dependencies(now: Timestamp, limit: u32) -> Vec<Dependency>;
            is_waited_for(namespace: &str, dependency: &str) -> bool;
        }
        writes {
            put_dependency(it: &Dependency, audit: Option<&Audit>, now: Timestamp) -> bool, |written| *written;
            delete_dependency(namespace: &str, name: &str, audit: Option<&Audit>) -> bool, |gone| *gone;
            announce(it: &Dependency, stopped: Option<(Timestamp, Millis)>, audit: Option<&Audit>, now: Timestamp) -> bool, |written| *written;
        }
        own {
            fn is_guarded(&self, namespace: &str, dependency: &str) -> bool {
                self.truth.is_guarded(namespace, dependency)
            }

            fn held_by_dependencies(&self) -> u64 {
                self.truth.held_by_dependencies()
            }
        }
    }

    DocumentStore {
        reads {
            document(at: Collection<'_>, name: &str, version: Option<u32>) -> Option<Document>;
            documents(at: Collection<'_>, after: &str, limit: u32) -> Vec<Document>;
            versions(at: Collection<'_>, name: &str, limit: u32) -> Vec<Document>;
        }
        writes {
            put_document(at: Collection<'_>, name: &str, known: u32, body: &str, audit: Option<&Audit>, now: Timestamp) -> bool, |put| *put;
            delete_document(at: Collection<'_>, name: &str) -> bool, |deleted| *deleted;
        }
    }

    SecretStore {
        reads {
            secret(namespace: &str, name: &str) -> Option<SealedSecret>;
            secrets(namespace: &str, after: &str, limit: u32) -> Vec<SealedSecret>;
            all_secrets(after: (&str, &str), limit: u32) -> Vec<SealedSecret>;
        }
        writes {
            put_secret(secret: &SealedSecret, most: u64, audit: Option<&Audit>, now: Timestamp) -> (SealedSecret, bool), |_| true;
            reseal_secret(secret: &SealedSecret) -> bool, |done| *done;
            delete_secret(namespace: &str, name: &str, audit: Option<&Audit>) -> bool, |deleted| *deleted;
        }
    }

    RuleStore {
        reads {
            rules(namespace: &str) -> Vec<Rule>;
            in_use(namespace: &str) -> Vec<(Key, InUse)>;
            open_under(namespace: &str, key: &Key, limit: u32) -> u64;
        }
        writes {
            put_rule(namespace: &str, rule: &Rule, audit: Option<&Audit>, now: Timestamp) -> Option<i64>, |_| true;
            delete_rule(namespace: &str, name: &str, audit: Option<&Audit>) -> Option<i64>, |_| true;
            delete_unused_rules(namespace: &str, names: &[String]) -> Option<i64>, |_| true;
            settle_rules() -> Settled, |_| true;
            attach_rules(id: ExecutionId, kind: &str, rules: &[String]) -> u64, |_| true;
        }
        own {
            fn held_by_rules(&self) -> u64 {
                self.truth.held_by_rules()
            }

            fn freed_by(&self, lane: &comeback_core::Lane) -> Vec<Arc<comeback_core::Lane>> {
                self.truth.freed_by(lane)
            }
        }
    }

    AccountStore {
        reads {
            account(namespace: &str, name: &str) -> Option<Account>;
            accounts(namespace: &str, after: &str, limit: u32) -> Vec<Account>;
            booked(namespace: &str, account: &str, since: &str) -> BTreeMap<String, Booked>;
        }
        writes {
            put_account(namespace: &str, name: &str, change: &AccountChange, audit: Option<&Audit>, now: Timestamp) -> Account, |_| true;
            delete_account(namespace: &str, name: &str, audit: Option<&Audit>) -> Closed, |closed| *closed == Closed::Gone;
        }
    }

    OperationStore {
        reads {
            operation(namespace: &str, id: Uuid) -> Option<Operation>;
            operations(namespace: &str, before: Option<Uuid>, limit: u32) -> Vec<Operation>;
            due_operations(now: Timestamp, limit: u32) -> Vec<Operation>;
            operation_ids(id: Uuid, from: u32, to: u32) -> Vec<TaskId>;
            marks(id: Uuid, tasks: &[TaskId]) -> HashMap<TaskId, OperationStep>;
        }
        writes {
            start_operation(operation: &Operation, ids: &[TaskId], key: Option<&Idempotency>, audit: Option<&Audit>, now: Timestamp) -> Started, |started| *started == Started::New;
            put_operation(operation: &Operation, on_behalf_of: Option<Loop>, audit: Option<&Audit>, now: Timestamp) -> Applied, |applied| *applied == Applied::Done;
        }
    }

    CountQueries {
        reads {
            counts(namespace: &str, now: Timestamp) -> Counts;
            retried(namespace: &str) -> Counts;
            open_work(now: Timestamp) -> OpenWork;
        }
    }

    StatsStore {
        reads {
            pending_stats(limit: u32) -> StatsBatch;
            sums(namespace: &str, query: &SumsQuery) -> Vec<SumLine>;
        }
        writes {
            fold(stretch: &StatsBatch, fold: &Fold, now: Timestamp) -> bool, |done| *done;
            compact_stats(now: Timestamp, limit: u32, most_groups: u32) -> bool, |more| *more;
        }
    }

    ErrorGroupStore {
        reads {
            groups(namespace: &str, query: &GroupQuery) -> Vec<Group>;
            group(namespace: &str, fingerprint: i64) -> Option<Group>;
            reclassified() -> HashMap<String, HashMap<i64, Class>>;
            open_with(namespace: &str, fingerprints: &[i64]) -> HashMap<i64, u64>;
        }
        writes {
            put_group(namespace: &str, fingerprint: i64, deed: &TriageAction, audit: &Audit, now: Timestamp) -> Option<Group>, Option::is_some;
        }
    }

    AuditStore {
        reads {
            audit(query: &AuditQuery) -> Vec<Audit>;
        }
        writes {
            put_audit(audit: &Audit) -> (), |_| true;
        }
    }

    Retention {
        reads {
            prunable(before: Timestamp) -> u64;
        }
        writes {
            prune(before: Timestamp, limit: u32) -> Pruned, |pruned| pruned.tasks > 0;
        }
    }

    LaneStore {
        reads {
            lane_namespaces(executor: Option<comeback_core::Executor>) -> Vec<String>;
        }
        writes {
            forget_unused(now: Timestamp) -> Forgotten, |it| it.lanes > 0;
            forget_policies(beyond: u64, now: Timestamp) -> u64, |count| *count > 0;
        }
        own {
            async fn learn(&self, submission: &Submission) -> Result<(), StoreError> {
                self.truth.learn(submission).await
            }

            fn set_quotas(&self, quotas: &comeback_core::Quotas) {
                self.truth.set_quotas(quotas);
            }
        }
    }

    ControlStore {
        reads {
            pauses() -> Vec<(Loop, Pause)>;
            meta(key: &str) -> Option<String>;
            used(namespace: &str, key: &Idempotency) -> Option<Used>;
            kept_answer(namespace: &str, key: &Idempotency) -> Option<serde_json::Value>;
        }
        writes {
            put_meta(key: &str, value: &str, when: PutIf<'_>, audit: Option<&Audit>) -> String, |_| true;
        }
        own {
            async fn set_pause(
                &self,
                name: Loop,
                pause: Option<Pause>,
                audit: Option<&Audit>,
                now: Timestamp,
            ) -> Result<(), StoreError> {
                self.writes(self.hand.set_pause(&*self.truth, name, pause, audit, now), |_| true).await
            }
        }
    }

    InstanceStore {
        reads {
            clock_offset() -> Option<i64>;
        }
        own {
            async fn hold_name(&self, name: &str) -> Result<HeldName, StoreError> {
                self.truth.hold_name(name).await
            }

            fn notify(&self) {}

            fn wakes(&self) -> tokio::sync::watch::Receiver<u64> {
                self.truth.wakes()
            }
        }
    }

    SharedStore {
        reads {
            change_numbers() -> ChangeNumbers;
            api_keys(after: i64) -> Vec<ApiKey>;
            list_keys(namespace: Option<&str>) -> Vec<ApiKey>;
            kind_policy_names(after: i64) -> Vec<KindPolicyName>;
            kind_policies(namespace: &str, kinds: &[String]) -> Vec<KindPolicy>;
            drained_workers() -> Vec<DrainedWorker>;
            workers(namespace: &str, after: Timestamp, limit: u32) -> Vec<WorkerRow>;
            has_worker(namespace: &str, name: &str, after: Timestamp) -> bool;
            worker_counts(after: Timestamp) -> Vec<(String, u64)>;
            instances() -> Vec<InstanceRow>;
        }
        writes {
            create_key(key: &ApiKey, most: u64, audit: Option<&Audit>, now: Timestamp) -> KeyPut, |_| true;
            rotate_key(old: &str, ends_at: Timestamp, key: &ApiKey, most: u64, audit: Option<&Audit>, now: Timestamp) -> KeyPut, |_| true;
            revoke_key(id: &str, audit: Option<&Audit>, now: Timestamp) -> bool, |_| true;
            put_kind_policy(policy: &KindPolicy, most: u64, audit: Option<&Audit>) -> (), |_| true;
            delete_kind_policy(namespace: &str, kind: &str, audit: Option<&Audit>) -> bool, |_| true;
            drain_worker(worker: &DrainedWorker, most: u64, old: Timestamp, audit: Option<&Audit>) -> Drained, |_| true;
            undrain_worker(namespace: &str, name: &str, audit: Option<&Audit>) -> bool, |_| true;
            put_workers(instance: &str, workers: &[WorkerSeen]) -> (), |_| true;
            forget_workers(before: Timestamp) -> u64, |_| true;
            put_instance(instance: &InstanceRow, gone: Timestamp) -> (), |_| true;
        }
    }
}
