//! Reading tasks and their histories.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use comeback_core::filter::{Filter, Sort};
use comeback_core::payload::OldPayload;
use comeback_core::{Edge, ExecutionId, Record, TaskId, Timestamp};

use crate::page::ListCursor;
use crate::{Body, StoreError, Stored};

/// Reads of tasks. Every method sees one moment.
#[async_trait]
pub trait TaskQueries: Send + Sync {
    /// Tasks by id, open or over, in the order asked for.
    async fn load(&self, ids: &[TaskId]) -> Result<Vec<Option<Stored>>, StoreError>;

    /// One task with everything that is known of it.
    async fn task(&self, namespace: &str, id: TaskId) -> Result<Option<TaskView>, StoreError>;

    /// The payloads of a task before they were edited, oldest first; none where nobody did.
    async fn old_payloads(&self, id: TaskId) -> Result<Vec<OldPayload>, StoreError>;

    /// A page of tasks that match. Payloads and results are left out.
    async fn list(&self, namespace: &str, query: &ListQuery) -> Result<Listing, StoreError>;

    /// The tasks that a filter finds at one moment, oldest first, so many at most.
    async fn matching(
        &self,
        namespace: &str,
        filter: &Filter,
        now: Timestamp,
        most: u32,
    ) -> Result<Vec<TaskId>, StoreError>;

    /// The records of a task or an execution, oldest first, from an event number on.
    async fn history(&self, subject: Subject, after: u32, limit: u32) -> Result<Vec<Record>, StoreError>;

    /// The runs of a task that have ended, newest first, before an event number.
    async fn runs_before(&self, id: TaskId, before: u32, limit: u32) -> Result<Vec<Record>, StoreError>;

    /// How these leases ended: the record of each that did, as long as its task is remembered.
    async fn ended(&self, leases: &[(TaskId, u32)]) -> Result<Vec<Option<Record>>, StoreError>;
}

/// Everything about one task.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskView {
    /// The task as it is stored.
    pub stored: Stored,
    /// The part that never changes.
    pub body: Body,
    /// Its result, as JSON text.
    pub result: Option<Arc<str>>,
    /// The last record that told of a bad end.
    pub last_failure: Option<Record>,
    /// The last record that holds a verdict.
    pub last_decision: Option<Record>,
    /// The progress it reports, as JSON text.
    pub progress: Option<String>,
    /// Edges into it.
    pub needs: Vec<Edge>,
    /// Which version of its payload is in use, from 1.
    pub payload_version: u32,
}

/// One line of a list.
#[derive(Clone, Debug, PartialEq)]
pub struct Listed {
    /// The task as it is stored.
    pub stored: Stored,
    /// Its key within the execution.
    pub key: Option<String>,
    /// Its name.
    pub name: Option<String>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// An id that its owner gave it.
    pub external_id: Option<String>,
    /// Its last error.
    pub last_error: Option<String>,
    /// Its verdict, where it succeeded and gave one.
    pub verdict: Option<String>,
}

/// One page of a list.
#[derive(Clone, Debug, PartialEq)]
pub struct Listing {
    /// The lines.
    pub items: Vec<Listed>,
    /// The cursor of the next page.
    pub next: Option<ListCursor>,
}

/// The owner of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    Task(TaskId),
    /// Everything that happened inside.
    Execution(ExecutionId),
}

/// A page of a list to read.
#[derive(Clone, Debug)]
pub struct ListQuery {
    /// The filter.
    pub filter: Filter,
    /// The order.
    pub sort: Sort,
    /// At most this many.
    pub limit: u32,
    /// The last line of the page before.
    pub after: Option<ListCursor>,
    /// The time that the filter compares with.
    pub now: Timestamp,
}
