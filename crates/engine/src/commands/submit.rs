//! Submit: create tasks, all of a request or none of it.

use comeback_core::{ExecutionId, State};
use comeback_store::{StoreError, Submission, Submitted, SubmittedTask};

use super::BULK;
use crate::{CommandError, Core, Engine, Query, Submit};

/// Answer to a submission.
#[derive(Clone, Debug, PartialEq)]
pub struct SubmitAnswer {
    /// The execution, if it is one.
    pub execution: Option<ExecutionId>,
    /// In the order of the request.
    pub tasks: Vec<SubmittedTask>,
    /// The same request was answered before; nothing was created now.
    pub repeated: bool,
}

impl Engine {
    /// Stores tasks, or an execution.
    pub async fn submit(&self, submit: Submit) -> Result<SubmitAnswer, CommandError> {
        let core = &self.core;
        let now = core.clock.now();
        let mut submission = match submit.tasks.iter().any(|spec| spec.account.is_some() || spec.cost.is_some()) {
            false => submit.plan(&core.config, &core.ids, now)?,
            true => core.priced(submit).await?.plan_metered(&core.config, &core.ids, now)?,
        };
        core.wait_for_maintenance(&mut submission).await?;
        let execution = submission.execution.as_ref().map(|new| new.execution.id);
        let answer = if submission.tasks.len() >= BULK {
            core.submit_batch(std::slice::from_ref(&submission)).await.pop().ok_or(CommandError::ShuttingDown)?
        } else {
            core.store.learn(&submission).await?;
            self.combiners.submits.ask(submission).await?
        };
        match answer? {
            Submitted::Created(tasks) => Ok(SubmitAnswer { execution, tasks, repeated: false }),
            Submitted::Repeated { execution, tasks } => Ok(SubmitAnswer { execution, tasks, repeated: true }),
            Submitted::Mismatch => Err(CommandError::IdempotencyMismatch),
            Submitted::Overtaken => Err(CommandError::Conflict),
            Submitted::Unfunded(short) => Err(short.into()),
            // Only executions that a step begins are below others.
            Submitted::RootEnded | Submitted::RootFull => Err(CommandError::Conflict),
        }
    }
}

/// How many tasks an answer has made.
fn created(answer: &Submitted) -> u64 {
    match answer {
        Submitted::Created(tasks) => tasks.iter().filter(|task| !task.duplicate).count() as u64,
        _ => 0,
    }
}

impl Core {
    pub(crate) async fn submit_batch(&self, batch: &[Submission]) -> Vec<Result<Submitted, StoreError>> {
        match self.tallies.asked(Query::Submit, self.store.submit(batch, self.clock.now())).await {
            // Nothing of them was stored, and only one of them has too much.
            Err(StoreError::QuotaExceeded(_)) if batch.len() > 1 => {
                let mut answers = Vec::with_capacity(batch.len());
                for submission in batch {
                    answers.extend(Box::pin(self.submit_batch(std::slice::from_ref(submission))).await);
                }
                answers
            }
            Err(error) => batch.iter().map(|_| Err(error.clone())).collect(),
            Ok(answers) => {
                comeback_store::panic_point!("submit-after-store");
                self.notify_submitted(batch);
                self.tallies.submitted(batch.iter().zip(answers.iter().map(created)));
                answers.into_iter().map(Ok).collect()
            }
        }
    }

    /// Everything that follows a stored submission: alarms, waiting workers, readers of the feed.
    pub(crate) fn notify_submitted(&self, batch: &[Submission]) {
        self.wake_feed_readers();
        let tasks = batch.iter().flat_map(|submission| &submission.tasks).map(|new| &new.task);
        self.wake_workers(tasks.inspect(|task| self.set_alarms(task)).filter(|task| task.state == State::Pending));
    }
}
