//! Retry by hand (T19): a new cycle for a task that failed, died, waits for its retry or is stuck.

use comeback_core::{State, TaskId};
use comeback_store::ListQuery;

use super::change::Deed;
use crate::road::{Changed, Verb};
use crate::{CommandError, Engine};

#[derive(Clone, Debug, Default)]
pub struct ManualRetry {
    /// Goes on counting where the last cycle stopped.
    pub keep_counters: bool,
    pub deed: Deed,
}

#[derive(Clone, Debug)]
pub struct Retried {
    pub changed: Changed,
    /// How many tasks of its queue are offered before it, itself included; nothing when that is too many to count.
    pub queue_position: Option<u64>,
}

/// Positions beyond this are not worth counting.
const LAST_POSITION: u32 = 500;

impl Engine {
    /// Supersedes an automatic retry that is scheduled, by compare-and-set: of two at the same moment one wins.
    pub async fn retry(&self, namespace: &str, task: TaskId, retry: ManualRetry) -> Result<Retried, CommandError> {
        let Deed { act, once } = retry.deed;
        let verb = Verb::Retry { keep_counters: retry.keep_counters, act };
        let changed = self.change_by_hand(namespace, task, verb, once).await?;
        // The retry is stored: an answer without a place in the queue is better than none.
        let queue_position = self.queue_position(namespace, &changed).await.unwrap_or_default();
        Ok(Retried { changed, queue_position })
    }

    async fn queue_position(&self, namespace: &str, changed: &Changed) -> Result<Option<u64>, CommandError> {
        if changed.state != State::Pending {
            return Ok(None);
        }
        let filter = comeback_core::filter::Filter::default()
            .and(comeback_core::filter::Test::State(vec![comeback_core::filter::StateTest::Is(State::Pending)]))
            .and(comeback_core::filter::Test::Text {
                field: comeback_core::filter::TextField::Queue,
                any: vec![comeback_core::filter::Pattern { text: changed.lane.queue.clone(), prefix: false }],
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
