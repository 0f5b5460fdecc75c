//! Retry by hand (T19): a new cycle for a task that failed, died, waits for its retry or is stuck.

use comeback_core::payload::{self, OldPayload};
use comeback_core::workflow::{Difference, between};
use comeback_core::{Invalid, State, TaskId};
use comeback_store::ListQuery;
use serde_json::Value;

use super::change::ActorRequest;
use crate::pipeline::{Changed, Edit, TaskChange};
use crate::{CommandError, Engine, Json};

/// A manual retry as a caller asks for it.
#[derive(Clone, Debug, Default)]
pub struct ManualRetry {
    /// Goes on counting where the last cycle stopped.
    pub keep_counters: bool,
    /// Merge patch for the payload (RFC 7396). The old version is kept.
    pub payload_patch: Option<Json>,
    /// Actor, note and idempotency key.
    pub request: ActorRequest,
}

/// Result of a manual retry.
#[derive(Clone, Debug)]
pub struct Retried {
    /// The task after the retry.
    pub changed: Changed,
    /// How many tasks of its queue are offered before it, itself included; nothing when that is too many to count.
    pub queue_position: Option<u64>,
    /// The edited payload, if it was edited.
    pub edited: Option<Edited>,
}

/// A new version of a payload.
#[derive(Clone, Debug)]
pub struct Edited {
    /// Version of the new payload.
    pub version: u32,
    /// Differences to the old payload.
    pub differences: Vec<Difference>,
}

/// Positions beyond this are not worth counting.
const LAST_POSITION: u32 = 500;

impl Engine {
    /// Supersedes an automatic retry that is scheduled, by compare-and-set: of two at the same moment one wins.
    pub async fn retry(&self, namespace: &str, task: TaskId, retry: ManualRetry) -> Result<Retried, CommandError> {
        let ActorRequest { act, once } = retry.request;
        let (edit, edited) = match &retry.payload_patch {
            None => (None, None),
            Some(patch) => self.edit(namespace, task, patch).await?.unzip(),
        };
        let change = TaskChange::Retry { keep_counters: retry.keep_counters, at: None, edit, act };
        let changed = self.change_by_hand(namespace, task, change, once).await?;
        // The retry is stored: an answer without a place in the queue is better than none.
        let queue_position = self.queue_position(namespace, &changed).await.unwrap_or_default();
        Ok(Retried { changed, queue_position, edited })
    }

    /// The payload as a patch makes it; nothing where that changes nothing.
    async fn edit(&self, namespace: &str, task: TaskId, patch: &Json) -> Result<Option<(Edit, Edited)>, CommandError> {
        let view = self.task(namespace, task).await?;
        let as_is = view.body.payload.as_deref();
        let unread = |error: serde_json::Error| Invalid::one("payload_patch", error.to_string());
        let to_be = payload::patched(as_is, patch.text()).map_err(unread)?;
        if to_be == payload::patched(as_is, "{}").map_err(unread)? {
            return Ok(None);
        }
        let most = self.core.config.limits.payload_bytes;
        if to_be.len() > most {
            return Err(Invalid::one("payload_patch", format!("the payload may have {most} bytes at most")).into());
        }
        let read = |text: &str| serde_json::from_str::<Value>(text).map_err(unread);
        let differences = between(&as_is.map(read).transpose()?.unwrap_or(Value::Null), &read(&to_be)?);
        let edited = Edited { version: view.payload_version + 1, differences };
        Ok(Some((Edit { edited: view.payload_version, payload: to_be.into() }, edited)))
    }

    /// Every version of a payload that there was: the old ones, and the one in use.
    pub async fn payloads(
        &self,
        namespace: &str,
        task: TaskId,
    ) -> Result<(Vec<OldPayload>, Option<std::sync::Arc<str>>), CommandError> {
        loop {
            let view = self.task(namespace, task).await?;
            let old = self.core.store.old_payloads(task).await?;
            // It may be edited between the two queries.
            if old.len() as u64 + 1 == u64::from(view.payload_version) {
                return Ok((old, view.body.payload));
            }
        }
    }

    async fn queue_position(&self, namespace: &str, changed: &Changed) -> Result<Option<u64>, CommandError> {
        if changed.state != State::Pending {
            return Ok(None);
        }
        let queue = self.find(namespace, changed.task).await?.task.lane.queue.clone();
        let filter = comeback_core::filter::Filter::default()
            .and(comeback_core::filter::Test::State(vec![comeback_core::filter::StateTest::Is(State::Pending)]))
            .and(comeback_core::filter::Test::Text {
                field: comeback_core::filter::TextField::Queue,
                any: vec![comeback_core::filter::Pattern { text: queue, prefix: false }],
            });
        let query = ListQuery {
            filter,
            sort: comeback_core::filter::Sort::Priority,
            limit: LAST_POSITION,
            after: None,
            now: self.now(),
        };
        let listing = self.core.store.list(namespace, &query).await?;
        let mut places: Vec<_> = listing
            .items
            .iter()
            .map(|item| (-item.stored.task.priority, item.stored.task.submitted_at, item.stored.task.id))
            .collect();
        places.sort_unstable();
        let place = places.iter().position(|(_, _, id)| *id == changed.task);
        Ok(place.map(|place| place as u64 + 1))
    }
}
