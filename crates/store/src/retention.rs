//! Deleting what ended long ago.

use async_trait::async_trait;
use comeback_core::Timestamp;

use crate::StoreError;

/// Deletes tasks that ended long ago.
#[async_trait]
pub trait Retention: Send + Sync {
    /// Deletes what ended before `before`, at most `limit` tasks, of an execution all; open work is never touched.
    async fn prune(&self, before: Timestamp, limit: u32) -> Result<Pruned, StoreError>;

    /// How many tasks `prune` would delete, were it asked until there are no more.
    async fn prunable(&self, before: Timestamp) -> Result<u64, StoreError>;
}

/// Tasks that were deleted in one go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// How many tasks were deleted.
    pub tasks: u64,
    /// The limit was reached somewhere: tasks, the feed or keys.
    pub more: bool,
}
