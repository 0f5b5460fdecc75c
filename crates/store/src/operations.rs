//! Bulk operations as they are stored: one row that says how far it is, rows with the ids it is about, and a row for each task it
//! has changed. What is the same for both databases.

use std::collections::HashMap;

use async_trait::async_trait;
use comeback_core::operation::{Mark, OperationState};
use comeback_core::{Audit, TaskId, Timestamp};
use uuid::Uuid;

use crate::row::corrupt;
use crate::{Applied, Idempotency, Loop, StoreError};

/// Bulk operations over many tasks.
#[async_trait]
pub trait OperationStore: Send + Sync {
    /// Stores a bulk operation with the tasks it is about, once under its key.
    async fn start_operation(
        &self,
        operation: &Operation,
        ids: &[TaskId],
        key: Option<&Idempotency>,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<Started, StoreError>;

    /// A bulk operation by its id.
    async fn operation(&self, namespace: &str, id: Uuid) -> Result<Option<Operation>, StoreError>;

    /// Newest first, from before one of them.
    async fn operations(&self, namespace: &str, before: Option<Uuid>, limit: u32)
    -> Result<Vec<Operation>, StoreError>;

    /// Operations of all namespaces that are due, the longest overdue first.
    async fn due_operations(&self, now: Timestamp, limit: u32) -> Result<Vec<Operation>, StoreError>;

    /// Stores how far an operation has come, if the version that it names is still the one there is. Nothing happens on behalf of
    /// a loop that is paused.
    async fn put_operation(
        &self,
        operation: &Operation,
        on_behalf_of: Option<Loop>,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<Applied, StoreError>;

    /// The tasks of an operation from one place to before another.
    async fn operation_ids(&self, id: Uuid, from: u32, to: u32) -> Result<Vec<TaskId>, StoreError>;

    /// Which of these tasks an operation has changed, and how they were before.
    async fn marks(&self, id: Uuid, tasks: &[TaskId]) -> Result<HashMap<TaskId, OperationStep>, StoreError>;
}

/// A bulk operation: what was asked for and how far it has come, both as JSON text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Its id.
    pub id: Uuid,
    /// The namespace it belongs to.
    pub namespace: String,
    /// Counts the changes of the row.
    pub version: u32,
    /// Its state.
    pub state: OperationState,
    /// How many tasks it is about.
    pub total: u32,
    /// How many it has changed, and of how many that was taken back. The rows of its tasks say the same when it is over.
    pub done: u32,
    /// How many were taken back.
    pub undone: u32,
    /// When somebody is to go on with it; nothing when it is over.
    pub due: Option<Timestamp>,
    /// Its body, as JSON text.
    pub body: String,
    /// Its runtime state, as JSON text.
    pub standing: String,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
}

/// The answer to a new bulk operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Started {
    New,
    /// This was asked before; that is the one it made.
    Repeated(Uuid),
    /// The key was used for another request.
    Mismatch,
}

/// A step that was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationStep {
    /// How the task was before, as JSON text.
    pub was: String,
    /// Whether it was taken back.
    pub undone: bool,
}

/// Marks count, once nobody changes tasks any more: a stretch that was done may not have been noted down.
pub(crate) const RECOUNT_DONE: &str = "update operation set done = (select count(*) from operation_task m where m.operation = operation.id) where id = $1";

pub(crate) const RECOUNT_UNDONE: &str = "update operation set undone =
       (select count(*) from operation_task m where m.operation = operation.id and m.undone = 1) where id = $1";

/// The counts to renew with a change of an operation.
pub(crate) fn recounts(operation: &Operation) -> Vec<&'static str> {
    let over = !operation.state.is_open();
    let begins_to_undo = operation.state == OperationState::Undoing && operation.undone == 0;
    let done = (over || begins_to_undo).then_some(RECOUNT_DONE);
    done.into_iter().chain(over.then_some(RECOUNT_UNDONE)).collect()
}

/// Ids in one row of an operation.
const PART: usize = 1_000;

/// The rows that hold these ids, in order.
pub(crate) fn parts(ids: &[TaskId]) -> Vec<Vec<u8>> {
    ids.chunks(PART).map(|part| part.iter().flat_map(|id| *id.0.as_bytes()).collect()).collect()
}

/// The first and the last row in which these places are.
pub(crate) fn parts_of(from: u32, to: u32) -> (i32, i32) {
    let part = |place: u32| i32::try_from(place as usize / PART).unwrap_or(i32::MAX);
    (part(from), part(to.saturating_sub(1)))
}

/// The ids at these places, out of the rows from the one of the first place on.
pub(crate) fn ids_of(rows: &[Vec<u8>], from: u32, to: u32) -> Result<Vec<TaskId>, StoreError> {
    let skip = from as usize % PART;
    let bytes = rows.concat();
    let read = |id: &[u8]| Uuid::from_slice(id).map(TaskId).map_err(|_| corrupt("the ids of an operation"));
    bytes.chunks(16).skip(skip).take(to.saturating_sub(from) as usize).map(read).collect()
}

pub(crate) fn state_of(code: i16) -> Result<OperationState, StoreError> {
    OperationState::from_code(code).ok_or_else(|| corrupt(format!("operation state {code}")))
}

/// In which state an operation must be for this step.
pub(crate) fn wanted(mark: &Mark) -> OperationState {
    if mark.was.is_some() { OperationState::Running } else { OperationState::Undoing }
}

pub(crate) fn was_text(mark: &Mark) -> Result<String, StoreError> {
    serde_json::to_string(&mark.was).map_err(|error| corrupt(error.to_string()))
}
