//! One change of one task: through the group commit, or once under an idempotency key.

use comeback_core::TaskId;
use comeback_core::transition::Actor;
use comeback_store::{Behalf, Idempotency, Stored, Used};
use serde_json::Value;

use crate::pipeline::{ChangeOutcome, ChangeRequest, Changed, TaskChange};
use crate::{CommandError, Engine};

/// Actor and note of a command, and its idempotency key.
#[derive(Clone, Debug, Default)]
pub struct ActorRequest {
    /// Actor and note.
    pub act: Actor,
    /// Idempotency key, if the command must happen once.
    pub once: Option<Idempotency>,
}

impl From<Actor> for ActorRequest {
    fn from(act: Actor) -> ActorRequest {
        ActorRequest { act, once: None }
    }
}

/// An act that was done before.
#[derive(Clone, Debug, PartialEq)]
pub struct DoneBefore {
    /// Its answer, where one was stored with its key; otherwise things as they are now answer for it.
    pub answer: Option<Value>,
}

impl Engine {
    /// One change of one task of a namespace, through the group commit.
    pub(crate) async fn change_one(
        &self,
        namespace: &str,
        task: TaskId,
        change: TaskChange,
    ) -> Result<Changed, CommandError> {
        let seen = self.find(namespace, task).await?;
        self.change_seen(seen, change).await
    }

    /// As `change_one` for a command from outside, once if it has a key.
    pub(crate) async fn change_by_hand(
        &self,
        namespace: &str,
        task: TaskId,
        change: TaskChange,
        once: Option<Idempotency>,
    ) -> Result<Changed, CommandError> {
        if let Some(act) = change.act() {
            self.core.config.limits.check_act(act)?;
        }
        match once {
            None => self.change_one(namespace, task, change).await,
            Some(key) => self.change_once(namespace, task, change, &key).await,
        }
    }

    /// A repeated request under the same key changes nothing and gets the task as it is.
    async fn change_once(
        &self,
        namespace: &str,
        task: TaskId,
        change: TaskChange,
        key: &Idempotency,
    ) -> Result<Changed, CommandError> {
        self.check_key(key)?;
        if self.is_done(namespace, key).await? {
            return self.as_it_is(namespace, task).await;
        }
        let seen = self.find(namespace, task).await?;
        let requests = vec![ChangeRequest::cached(seen, change)];
        let outcomes = self.core.apply_changes(requests, Behalf::Key(namespace, key)).await?;
        match outcomes.into_iter().next().unwrap_or(ChangeOutcome::Stale) {
            ChangeOutcome::Used(Used::ForThis) => self.as_it_is(namespace, task).await,
            // The first one may have come between our look at the key and our look at the task.
            ChangeOutcome::Rejected(_) | ChangeOutcome::Stale if self.is_done(namespace, key).await? => {
                self.as_it_is(namespace, task).await
            }
            outcome => outcome.into(),
        }
    }

    async fn as_it_is(&self, namespace: &str, task: TaskId) -> Result<Changed, CommandError> {
        Ok(Changed::of(&self.find(namespace, task).await?.task, None))
    }

    /// Whether a request with this key was done before.
    pub async fn is_done(&self, namespace: &str, key: &Idempotency) -> Result<bool, CommandError> {
        match self.core.store.used(namespace, key).await? {
            None => Ok(false),
            Some(Used::ForThis) => Ok(true),
            Some(Used::ForAnother) => Err(CommandError::IdempotencyMismatch),
        }
    }

    /// The answer of an act that was done before under this key, if it was.
    pub async fn done_before(&self, namespace: &str, key: &Idempotency) -> Result<Option<DoneBefore>, CommandError> {
        if !self.is_done(namespace, key).await? {
            return Ok(None);
        }
        Ok(Some(DoneBefore { answer: self.core.store.kept_answer(namespace, key).await? }))
    }

    /// Stores the key of an act outside of tasks.
    pub async fn remember_done(&self, namespace: &str, key: &Idempotency) -> Result<(), CommandError> {
        self.core.store.apply_once(namespace, key, None, self.now()).await?;
        Ok(())
    }

    /// Checks the length of an idempotency key.
    pub fn check_key(&self, key: &Idempotency) -> Result<(), CommandError> {
        let mut faults = comeback_core::Invalid::default();
        self.core.config.limits.check_name("idempotency_key", &key.key, &mut faults);
        Ok(faults.or(())?)
    }

    pub(crate) async fn find(&self, namespace: &str, task: TaskId) -> Result<Stored, CommandError> {
        let seen = self.core.store.load(&[task]).await?.into_iter().next().flatten();
        seen.filter(|stored| stored.task.lane.namespace == namespace).ok_or(CommandError::NotFound("task"))
    }

    pub(crate) async fn change_seen(&self, seen: Stored, change: TaskChange) -> Result<Changed, CommandError> {
        let outcomes = self.combiners.changes.ask(vec![ChangeRequest::cached(seen, change)]).await??;
        outcomes.into_iter().next().unwrap_or(ChangeOutcome::Stale).into()
    }
}
