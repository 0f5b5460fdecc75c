//! A store that loses questions and answers, is slow, and, where a mutant is asked for, breaks a promise.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use comeback_core::admission::{Key, Rule, Used as InUse};
use comeback_core::{Commit, ExecutionId, Millis, Record, TaskId, Timestamp};
use comeback_engine::store::*;
use parking_lot::Mutex;

use crate::rng::Rng;

/// Deliberate breaks, one promise each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// Verdicts are stored whatever version the task has.
    IgnoreVersion,
    /// Some acknowledged submissions are not stored.
    LoseSubmissions,
    /// Some verdicts are acknowledged without their history.
    DropRecords,
    /// Retries are promoted five seconds early.
    PromoteEarly,
    /// A pause is acknowledged and forgotten.
    ForgetPauses,
    /// A claim gives a task that another claim has already given.
    ClaimTwice,
    /// A heartbeat extends a lease that is not the live one.
    ExtendAnyLease,
    /// The same idempotency key creates again.
    ForgetKeys,
    /// Two commits of one execution are both taken although the second is out of date.
    IgnoreExecutionVersion,
}

impl Mutant {
    pub const ALL: &[Mutant] = &[
        Mutant::IgnoreVersion,
        Mutant::LoseSubmissions,
        Mutant::DropRecords,
        Mutant::PromoteEarly,
        Mutant::ForgetPauses,
        Mutant::ClaimTwice,
        Mutant::ExtendAnyLease,
        Mutant::ForgetKeys,
        Mutant::IgnoreExecutionVersion,
    ];
}

pub struct Faults {
    rng: Mutex<Rng>,
    healed: AtomicBool,
}

/// What happens to one call.
#[derive(Clone, Copy, PartialEq)]
enum Fate {
    Well,
    /// It never reaches the store.
    QuestionLost,
    /// It is done, and nobody hears of it.
    AnswerLost,
}

impl Faults {
    pub fn new(seed: u64) -> Faults {
        Faults { rng: Mutex::new(Rng::new(seed ^ 0xfa17)), healed: AtomicBool::new(false) }
    }

    /// From now on everything works.
    pub fn heal(&self) {
        self.healed.store(true, Ordering::SeqCst);
    }

    fn draw(&self) -> (Fate, u64, u64) {
        if self.healed.load(Ordering::SeqCst) {
            return (Fate::Well, 0, 0);
        }
        let mut rng = self.rng.lock();
        let fate = match rng.below(100) {
            0..3 => Fate::QuestionLost,
            3..6 => Fate::AnswerLost,
            _ => Fate::Well,
        };
        (fate, rng.below(3), rng.below(3))
    }

    pub fn chance(&self, percent: u64) -> bool {
        self.rng.lock().percent(percent)
    }
}

pub struct FaultyStore {
    pub truth: Arc<SqliteStore>,
    pub faults: Arc<Faults>,
    pub mutant: Option<Mutant>,
}

impl FaultyStore {
    /// Lets others go first, does it or not, lets others go again, and tells or not.
    async fn through<T>(&self, call: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        let (fate, before, after) = self.faults.draw();
        for _ in 0..before {
            tokio::task::yield_now().await;
        }
        if fate == Fate::QuestionLost {
            return Err(StoreError::Unavailable("simulated: the question was lost".into()));
        }
        let answer = call.await;
        for _ in 0..after {
            tokio::task::yield_now().await;
        }
        if fate == Fate::AnswerLost {
            return Err(StoreError::Unavailable("simulated: the answer was lost".into()));
        }
        answer
    }

    fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    /// Gives every write the version the store has now, so that nothing is ever stale.
    async fn freshened(&self, commits: &[Commit]) -> Result<Vec<Commit>, StoreError> {
        let mut fresh = commits.to_vec();
        for commit in &mut fresh {
            for write in &mut commit.writes {
                if let Some(stored) = self.truth.load(&[write.after.id]).await?.remove(0) {
                    write.expected_version = stored.task.version;
                    write.after.version = stored.task.version + 1;
                    write.from = stored.task.state;
                }
            }
        }
        Ok(fresh)
    }
}

#[async_trait]
impl Store for FaultyStore {
    async fn submit(&self, submissions: &[Submission], now: Timestamp) -> Result<Vec<Submitted>, StoreError> {
        let mut submissions = submissions.to_vec();
        if self.is(Mutant::ForgetKeys) {
            submissions.iter_mut().for_each(|submission| submission.idempotency = None);
        }
        if self.is(Mutant::LoseSubmissions) && self.faults.chance(30) {
            let told = |new: &NewTask| SubmittedTask { id: new.task.id, state: new.task.state, duplicate: false };
            let created = |it: &Submission| Submitted::Created(it.tasks.iter().map(told).collect());
            return Ok(submissions.iter().map(created).collect());
        }
        self.through(self.truth.submit(&submissions, now)).await
    }

    async fn claim(&self, requests: &[ClaimRequest], now: Timestamp) -> Result<Vec<Vec<Claimed>>, StoreError> {
        let mut answers = self.through(self.truth.claim(requests, now)).await?;
        if self.is(Mutant::ClaimTwice)
            && let Some(first) = answers.first_mut()
        {
            let running = ListQuery {
                filter: comeback_core::filter::Filter::parse("state:running", now).expect("a filter"),
                sort: comeback_core::filter::Sort::Submitted,
                limit: 1,
                after: None,
                now,
            };
            for item in self.truth.list("default", &running).await?.items {
                first.push(Claimed {
                    stored: item.stored,
                    key: None,
                    name: None,
                    payload: None,
                    labels: Default::default(),
                    executor: None,
                    step: None,
                    traceparent: None,
                    promoted: false,
                });
            }
        }
        Ok(answers)
    }

    async fn apply(
        &self,
        commits: &[Commit],
        on_behalf_of: Option<Loop>,
        now: Timestamp,
    ) -> Result<Vec<Applied>, StoreError> {
        let mut commits = commits.to_vec();
        if self.is(Mutant::DropRecords) && self.faults.chance(20) {
            commits.iter_mut().for_each(|commit| commit.records.clear());
        }
        if self.is(Mutant::IgnoreVersion) {
            commits = self.freshened(&commits).await?;
        }
        if self.is(Mutant::IgnoreExecutionVersion) {
            for commit in &mut commits {
                let Some(write) = &mut commit.execution else { continue };
                if let Some(graph) = self.truth.graph(write.after.id, Some(&[])).await? {
                    write.expected_version = graph.execution.version;
                    write.after.version = graph.execution.version + 1;
                }
            }
            commits = self.freshened(&commits).await?;
        }
        self.through(self.truth.apply(&commits, on_behalf_of, now)).await
    }

    async fn apply_once(
        &self,
        namespace: &str,
        key: &Idempotency,
        commit: Option<&Commit>,
        now: Timestamp,
    ) -> Result<Applied, StoreError> {
        self.through(self.truth.apply_once(namespace, key, commit, now)).await
    }

    async fn used(&self, namespace: &str, key: &Idempotency) -> Result<Option<Used>, StoreError> {
        self.through(self.truth.used(namespace, key)).await
    }

    async fn heartbeat(&self, beats: &[Beat], now: Timestamp) -> Result<Vec<BeatAnswer>, StoreError> {
        let mut beats = beats.to_vec();
        if self.is(Mutant::ExtendAnyLease) {
            for beat in &mut beats {
                if let Some(stored) = self.truth.load(&[beat.task]).await?.remove(0) {
                    beat.lease_number = stored.task.lease_number;
                }
            }
        }
        self.through(self.truth.heartbeat(&beats, now)).await
    }

    async fn count(&self, counts: &[Count], now: Timestamp) -> Result<Vec<bool>, StoreError> {
        self.through(self.truth.count(counts, now)).await
    }

    async fn promote(&self, what: Promote, now: Timestamp, limit: u32) -> Result<Promoted, StoreError> {
        let now = if self.is(Mutant::PromoteEarly) { now + Millis(5_000) } else { now };
        self.through(self.truth.promote(what, now, limit)).await
    }

    async fn due(&self, what: Due, now: Timestamp, limit: u32) -> Result<Vec<Stored>, StoreError> {
        self.through(self.truth.due(what, now, limit)).await
    }

    async fn next_due(&self) -> Result<NextDue, StoreError> {
        self.through(self.truth.next_due()).await
    }

    async fn load(&self, ids: &[TaskId]) -> Result<Vec<Option<Stored>>, StoreError> {
        self.through(self.truth.load(ids)).await
    }

    async fn graph(&self, id: ExecutionId, around: Option<&[TaskId]>) -> Result<Option<Graph>, StoreError> {
        self.through(self.truth.graph(id, around)).await
    }

    async fn task(&self, namespace: &str, id: TaskId) -> Result<Option<TaskView>, StoreError> {
        self.through(self.truth.task(namespace, id)).await
    }

    async fn list(&self, namespace: &str, query: &ListQuery) -> Result<Listing, StoreError> {
        self.through(self.truth.list(namespace, query)).await
    }

    async fn history(&self, subject: Subject, after: u32, limit: u32) -> Result<Vec<Record>, StoreError> {
        self.through(self.truth.history(subject, after, limit)).await
    }

    async fn ended(&self, leases: &[(TaskId, u32)]) -> Result<Vec<Option<Record>>, StoreError> {
        self.through(self.truth.ended(leases)).await
    }

    async fn feed(&self, after: Option<FeedCursor>, limit: u32) -> Result<Feed, StoreError> {
        self.through(self.truth.feed(after, limit)).await
    }

    async fn feed_end(&self) -> Result<FeedCursor, StoreError> {
        self.through(self.truth.feed_end()).await
    }

    async fn apply_spawning(
        &self,
        commit: &Commit,
        spawn: &Submission,
        behalf: Behalf<'_>,
        now: Timestamp,
    ) -> Result<Applied, StoreError> {
        self.through(self.truth.apply_spawning(commit, spawn, behalf, now)).await
    }

    async fn executions(&self, namespace: &str, query: &ExecutionQuery) -> Result<Vec<ExecutionView>, StoreError> {
        self.through(self.truth.executions(namespace, query)).await
    }

    async fn steps(&self, execution: ExecutionId, which: StepsOf<'_>) -> Result<Vec<StepView>, StoreError> {
        self.through(self.truth.steps(execution, which)).await
    }

    async fn call_ends(&self, limit: u32) -> Result<Vec<CallEnd>, StoreError> {
        self.through(self.truth.call_ends(limit)).await
    }

    async fn orphans(&self, limit: u32) -> Result<Vec<(String, ExecutionId)>, StoreError> {
        self.through(self.truth.orphans(limit)).await
    }

    async fn document(&self, at: Shelf<'_>, name: &str, version: Option<u32>) -> Result<Option<Document>, StoreError> {
        self.through(self.truth.document(at, name, version)).await
    }

    async fn documents(&self, at: Shelf<'_>, after: &str, limit: u32) -> Result<Vec<Document>, StoreError> {
        self.through(self.truth.documents(at, after, limit)).await
    }

    async fn versions(&self, at: Shelf<'_>, name: &str, limit: u32) -> Result<Vec<Document>, StoreError> {
        self.through(self.truth.versions(at, name, limit)).await
    }

    async fn put_document(
        &self,
        at: Shelf<'_>,
        name: &str,
        known: u32,
        body: &str,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        self.through(self.truth.put_document(at, name, known, body, now)).await
    }

    async fn delete_document(&self, at: Shelf<'_>, name: &str) -> Result<bool, StoreError> {
        self.through(self.truth.delete_document(at, name)).await
    }

    async fn execution(&self, namespace: &str, id: ExecutionId) -> Result<Option<ExecutionView>, StoreError> {
        self.through(self.truth.execution(namespace, id)).await
    }

    async fn open_work(&self, now: Timestamp) -> Result<OpenWork, StoreError> {
        self.through(self.truth.open_work(now)).await
    }

    async fn counts(&self, namespace: &str) -> Result<Counts, StoreError> {
        self.through(self.truth.counts(namespace)).await
    }

    async fn retried(&self, namespace: &str) -> Result<Counts, StoreError> {
        self.through(self.truth.retried(namespace)).await
    }

    async fn prune(&self, before: Timestamp, limit: u32) -> Result<Pruned, StoreError> {
        self.through(self.truth.prune(before, limit)).await
    }

    async fn set_pause(&self, name: Loop, pause: Option<Pause>, now: Timestamp) -> Result<(), StoreError> {
        if self.is(Mutant::ForgetPauses) && pause.is_some() {
            return Ok(());
        }
        self.through(self.truth.set_pause(name, pause, now)).await
    }

    async fn pauses(&self) -> Result<Vec<(Loop, Pause)>, StoreError> {
        self.through(self.truth.pauses()).await
    }

    async fn lanes(&self, executor: comeback_core::Executor) -> Result<Vec<Arc<comeback_core::Lane>>, StoreError> {
        self.through(self.truth.lanes(executor)).await
    }

    async fn rules(&self, namespace: &str) -> Result<Vec<Rule>, StoreError> {
        self.through(self.truth.rules(namespace)).await
    }

    async fn put_rule(&self, namespace: &str, rule: &Rule, now: Timestamp) -> Result<Option<i64>, StoreError> {
        self.through(self.truth.put_rule(namespace, rule, now)).await
    }

    async fn delete_rule(&self, namespace: &str, name: &str) -> Result<Option<i64>, StoreError> {
        self.through(self.truth.delete_rule(namespace, name)).await
    }

    async fn settle_rules(&self) -> Result<Settled, StoreError> {
        self.through(self.truth.settle_rules()).await
    }

    async fn carry_rules(&self, id: ExecutionId, kind: &str, rules: &[String]) -> Result<u64, StoreError> {
        self.through(self.truth.carry_rules(id, kind, rules)).await
    }

    async fn in_use(&self, namespace: &str) -> Result<Vec<(Key, InUse)>, StoreError> {
        self.through(self.truth.in_use(namespace)).await
    }

    fn held_by_rules(&self) -> u64 {
        self.truth.held_by_rules()
    }

    fn freed_by(&self, lane: &comeback_core::Lane) -> Vec<Arc<comeback_core::Lane>> {
        self.truth.freed_by(lane)
    }

    async fn meta(&self, key: &str) -> Result<Option<String>, StoreError> {
        self.through(self.truth.meta(key)).await
    }

    async fn put_meta(&self, key: &str, value: &str, when: PutIf<'_>) -> Result<String, StoreError> {
        self.through(self.truth.put_meta(key, value, when)).await
    }

    async fn clock_offset(&self) -> Result<Option<i64>, StoreError> {
        self.through(self.truth.clock_offset()).await
    }

    fn notify(&self) {}

    fn wakes(&self) -> tokio::sync::watch::Receiver<u64> {
        self.truth.wakes()
    }
}
