//! Lanes and policies: names that tasks share and that rows hold as numbers.

use async_trait::async_trait;
use comeback_core::{Executor, Quotas, Timestamp};

use crate::{StoreError, Submission};

/// Numbers for the lanes and policies that tasks share.
#[async_trait]
pub trait LaneStore: Send + Sync {
    /// Gives numbers to the lanes and policies that a submission is the first to name, as [`Store::submit`] does: whoever brings new ones
    /// waits for that alone, and nobody in the same batch with them.
    async fn learn(&self, submission: &Submission) -> Result<(), StoreError>;

    /// The namespaces that have tasks of an executor, or of any; by name.
    async fn lane_namespaces(&self, executor: Option<Executor>) -> Result<Vec<String>, StoreError>;

    /// Sets the quotas of lanes, policies and values that rules count by.
    fn set_quotas(&self, quotas: &Quotas);

    /// Deletes lanes that no task is in, a part of them at a time: those that were found empty by an earlier call, long enough ago,
    /// and still are.
    async fn forget_unused(&self, now: Timestamp) -> Result<Forgotten, StoreError>;

    /// Deletes policies that no task uses, where there are more than so many policies; answers how many. It reads all tasks.
    async fn forget_policies(&self, beyond: u64, now: Timestamp) -> Result<u64, StoreError>;
}

/// Lanes that were deleted in one go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forgotten {
    /// How many lanes.
    pub lanes: u64,
    /// There are lanes that were not looked at.
    pub more: bool,
}
