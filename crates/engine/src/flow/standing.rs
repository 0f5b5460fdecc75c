//! Whether a workflow may be started from outside: by a call, by a schedule, by an event. What stands for an execution already, or
//! was begun before, goes on.

use std::collections::BTreeMap;

use comeback_core::transition::Actor;
use comeback_core::workflow::{WorkflowAct, WorkflowState};
use comeback_core::{AuditAction, Timestamp};
use comeback_store::{Collection, Document, StoreError};
use serde::{Deserialize, Serialize};

use super::WORKFLOWS;
use crate::schedules::text;
use crate::{CommandError, Core, Engine};

/// The shelf beside that of the workflows: each change is a version, so that what was before can be read.
const STANDINGS: &str = "workflow_states";

/// Attempts if others change the same workflow at the same time.
const ROUNDS: u32 = 20;

/// How a workflow stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkflowStanding {
    /// Its state.
    pub state: WorkflowState,
    /// Time of the last change; `None` if it never changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// Note of the last change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Actor of the last change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

impl Default for WorkflowStanding {
    fn default() -> Self {
        WorkflowStanding { state: WorkflowState::Active, since: None, note: None, by: None }
    }
}

impl WorkflowStanding {
    /// A row that cannot be read is an error: a workflow that was switched off must not run because of it.
    fn read(path: &str, body: &str) -> Result<WorkflowStanding, StoreError> {
        serde_json::from_str(body)
            .map_err(|error| StoreError::Corrupt(format!("how the workflow {path} stands: {error}")))
    }

    fn of(path: &str, found: Option<&Document>) -> Result<WorkflowStanding, StoreError> {
        found.map_or_else(|| Ok(WorkflowStanding::default()), |it| WorkflowStanding::read(path, &it.body))
    }

    /// Whether it may start.
    pub fn is_active(&self) -> bool {
        self.state == WorkflowState::Active
    }
}

impl Engine {
    /// The state of a workflow.
    pub async fn workflow_standing(&self, namespace: &str, path: &str) -> Result<WorkflowStanding, CommandError> {
        Ok(self.core.standing_of(namespace, path).await?)
    }

    /// Of those behind `after` whom anybody ever changed, by their paths: those of as many workflows as are listed behind it.
    pub async fn workflow_standings(
        &self,
        namespace: &str,
        after: &str,
        limit: u32,
    ) -> Result<BTreeMap<String, WorkflowStanding>, CommandError> {
        let shelf = Collection { namespace, shelf: STANDINGS };
        let found = self.core.store.documents(shelf, after, limit).await?;
        let standings =
            found.into_iter().map(|it| WorkflowStanding::read(&it.name, &it.body).map(|read| (it.name, read)));
        Ok(standings.collect::<Result<_, StoreError>>()?)
    }

    /// From now on; its schedules follow by themselves.
    pub async fn change_workflow(
        &self,
        namespace: &str,
        path: &str,
        what: WorkflowAct,
        act: &Actor,
    ) -> Result<WorkflowStanding, CommandError> {
        let store = &self.core.store;
        self.core.config.limits.check_act(act)?;
        let workflow = store.document(Collection { namespace, shelf: WORKFLOWS }, path, None).await?;
        workflow.ok_or(CommandError::NotFound("workflow"))?;
        let shelf = Collection { namespace, shelf: STANDINGS };
        for _ in 0..ROUNDS {
            let known = store.document(shelf, path, None).await?;
            let before = WorkflowStanding::of(path, known.as_ref())?;
            let state = before.state.after(what);
            let state = state.ok_or(CommandError::WrongWorkflowState { state: before.state, verb: what.done() })?;
            if state == before.state {
                return Ok(before);
            }
            let now = self.now();
            let after = WorkflowStanding { state, since: Some(now), note: act.note.clone(), by: act.by.clone() };
            let did = match what {
                WorkflowAct::Activate => AuditAction::WorkflowActivate,
                WorkflowAct::Deactivate => AuditAction::WorkflowDeactivate,
                WorkflowAct::Pause => AuditAction::WorkflowPause,
                WorkflowAct::Resume => AuditAction::WorkflowResume,
            };
            let entry = self.entry(did, path, act).within(namespace);
            let entry = entry.changed(serde_json::to_value(&before).ok(), serde_json::to_value(&after).ok());
            let version = known.map_or(0, |it| it.version);
            if store.put_document(shelf, path, version, &text(&after), Some(&entry), now).await? {
                return Ok(after);
            }
        }
        Err(CommandError::Conflict)
    }
}

impl Core {
    pub(crate) async fn standing_of(&self, namespace: &str, path: &str) -> Result<WorkflowStanding, StoreError> {
        let found = self.store.document(Collection { namespace, shelf: STANDINGS }, path, None).await?;
        WorkflowStanding::of(path, found.as_ref())
    }

    /// A start from outside is rejected while the workflow is switched off.
    pub(crate) async fn must_be_active(&self, namespace: &str, path: &str) -> Result<(), CommandError> {
        let standing = self.standing_of(namespace, path).await?;
        if standing.is_active() {
            return Ok(());
        }
        Err(CommandError::WrongWorkflowState { state: standing.state, verb: "started" })
    }
}
