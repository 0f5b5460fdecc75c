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
    pub stored: Stored,
    pub body: Body,
    pub result: Option<Arc<str>>,
    /// The last record that told of a bad end.
    pub last_failure: Option<Record>,
    /// The last record that holds a verdict.
    pub last_decision: Option<Record>,
    pub progress: Option<String>,
    pub needs: Vec<Edge>,
    /// Which version of its payload is in use, from 1.
    pub payload_version: u32,
}

/// One line of a list.
#[derive(Clone, Debug, PartialEq)]
pub struct Listed {
    pub stored: Stored,
    pub key: Option<String>,
    pub name: Option<String>,
    pub labels: BTreeMap<String, String>,
    pub external_id: Option<String>,
    pub last_error: Option<String>,
    /// What it judged, where it succeeded and judged.
    pub verdict: Option<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Listing {
    pub items: Vec<Listed>,
    pub next: Option<ListCursor>,
}

/// Whose history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    Task(TaskId),
    /// Everything that happened inside.
    Execution(ExecutionId),
}

/// What to list, how, and from where.
#[derive(Clone, Debug)]
pub struct ListQuery {
    pub filter: Filter,
    pub sort: Sort,
    pub limit: u32,
    pub after: Option<ListCursor>,
    pub now: Timestamp,
}
