//! A store that loses questions and answers, is slow, and, where a mutant is asked for, breaks a promise.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use comeback_core::{Audit, Commit, Millis, Timestamp};
use comeback_engine::store::*;
use parking_lot::Mutex;

use crate::between::Hand;
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
    /// An instant of a schedule is fired whoever has fired it before.
    FireTwice,
    /// Some instants are dealt with, and what they start is not stored.
    LoseFirings,
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
        Mutant::FireTwice,
        Mutant::LoseFirings,
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

/// A store that loses questions and answers, is slow, and, where a mutant is asked for, breaks a promise.
pub struct Faulty {
    pub faults: Arc<Faults>,
    pub mutant: Option<Mutant>,
}

const ANSWER_IS_LOST: u64 = 1 << 32;

impl Faulty {
    fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }
}

/// Gives every write the version the store has now, so that nothing is ever stale.
async fn freshen(truth: &dyn Store, commits: &mut [Commit]) -> Result<(), StoreError> {
    for write in commits.iter_mut().flat_map(|commit| &mut commit.writes) {
        if let Some(stored) = truth.load(&[write.after.id]).await?.remove(0) {
            write.expected_version = stored.task.version;
            write.after.version = stored.task.version + 1;
            write.from = stored.task.state;
        }
    }
    Ok(())
}

async fn let_others_go_first(times: u64) {
    for _ in 0..times {
        tokio::task::yield_now().await;
    }
}

#[async_trait]
impl Hand for Faulty {
    async fn before(&self, _: bool) -> Result<u64, StoreError> {
        let (fate, before, after) = self.faults.draw();
        let_others_go_first(before).await;
        match fate {
            Fate::QuestionLost => Err(StoreError::Unavailable("simulated: the question was lost".into())),
            Fate::AnswerLost => Ok(after | ANSWER_IS_LOST),
            Fate::Well => Ok(after),
        }
    }

    async fn after(&self, ticket: u64, _: bool) -> Result<(), StoreError> {
        let_others_go_first(ticket & !ANSWER_IS_LOST).await;
        if ticket & ANSWER_IS_LOST == 0 {
            return Ok(());
        }
        Err(StoreError::Unavailable("simulated: the answer was lost".into()))
    }

    async fn submit(
        &self,
        truth: &dyn Store,
        submissions: &[Submission],
        now: Timestamp,
    ) -> Result<Vec<Submitted>, StoreError> {
        let mut submissions = submissions.to_vec();
        if self.is(Mutant::ForgetKeys) {
            submissions.iter_mut().for_each(|submission| submission.idempotency = None);
        }
        if self.is(Mutant::LoseSubmissions) && self.faults.chance(30) {
            let told = |new: &NewTask| SubmittedTask { id: new.task.id, state: new.task.state, duplicate: false };
            let created = |it: &Submission| Submitted::Created(it.tasks.iter().map(told).collect());
            return Ok(submissions.iter().map(created).collect());
        }
        truth.submit(&submissions, now).await
    }

    async fn claim(
        &self,
        truth: &dyn Store,
        requests: &[ClaimRequest],
        now: Timestamp,
    ) -> Result<Vec<Vec<Claimed>>, StoreError> {
        let mut answers = truth.claim(requests, now).await?;
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
            for item in truth.list("default", &running).await?.items {
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

    async fn commits(&self, truth: &dyn Store, commits: &[Commit]) -> Result<Vec<Commit>, StoreError> {
        let mut commits = commits.to_vec();
        if self.is(Mutant::DropRecords) && self.faults.chance(20) {
            commits.iter_mut().for_each(|commit| commit.records.clear());
        }
        if self.is(Mutant::IgnoreVersion) {
            freshen(truth, &mut commits).await?;
        }
        if self.is(Mutant::IgnoreExecutionVersion) {
            for commit in &mut commits {
                let Some(write) = commit.executions.first_mut() else { continue };
                if let Some(graph) = truth.graph(write.after.id, Some(&[])).await? {
                    write.expected_version = graph.execution.version;
                    write.after.version = graph.execution.version + 1;
                }
            }
            freshen(truth, &mut commits).await?;
        }
        Ok(commits)
    }

    async fn heartbeat(
        &self,
        truth: &dyn Store,
        beats: &[Beat],
        now: Timestamp,
    ) -> Result<Vec<BeatAnswer>, StoreError> {
        let mut beats = beats.to_vec();
        if self.is(Mutant::ExtendAnyLease) {
            for beat in &mut beats {
                if let Some(stored) = truth.load(&[beat.task]).await?.remove(0) {
                    beat.lease_number = stored.task.lease_number;
                }
            }
        }
        truth.heartbeat(&beats, now).await
    }

    async fn promote(
        &self,
        truth: &dyn Store,
        what: Promote,
        now: Timestamp,
        limit: u32,
    ) -> Result<Promoted, StoreError> {
        let now = if self.is(Mutant::PromoteEarly) { now + Millis(5_000) } else { now };
        truth.promote(what, now, limit).await
    }

    async fn put_follower(
        &self,
        truth: &dyn Store,
        schedule: &Resource,
        start: Option<&Submission>,
        on_behalf_of: Option<Loop>,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<Applied, StoreError> {
        let mut schedule = schedule.clone();
        if self.is(Mutant::FireTwice)
            && let Some(there) = truth.follower(schedule.sort, &schedule.namespace, &schedule.name).await?
        {
            schedule.version = there.version;
        }
        let lost = self.is(Mutant::LoseFirings) && self.faults.chance(30);
        let start = start.filter(|_| !lost);
        truth.put_follower(&schedule, start, on_behalf_of, audit, now).await
    }

    async fn set_pause(
        &self,
        truth: &dyn Store,
        name: Loop,
        pause: Option<Pause>,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        if self.is(Mutant::ForgetPauses) && pause.is_some() {
            return Ok(());
        }
        truth.set_pause(name, pause, audit, now).await
    }
}
