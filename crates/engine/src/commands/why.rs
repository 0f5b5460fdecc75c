//! Why: the last verdict about a task, as data and in words; and its log.

use comeback_core::{Event, Reason, Record, State, TaskId, explain};
use comeback_store::{StepView, StepsOf, Subject, TaskView};

use crate::{CommandError, Engine};

#[derive(Clone, Debug)]
pub struct Why {
    pub view: TaskView,
    /// One sentence for people.
    pub text: String,
}

impl Engine {
    pub async fn task(&self, namespace: &str, id: TaskId) -> Result<TaskView, CommandError> {
        self.core.store.task(namespace, id).await?.ok_or(CommandError::NotFound("task"))
    }

    pub async fn why(&self, namespace: &str, id: TaskId) -> Result<Why, CommandError> {
        let view = self.task(namespace, id).await?;
        let mut text = explain::standing(&view.stored.task, view.last_decision.as_ref());
        if let Some(unmet) = explain::unmet(&self.unmet_needs(&view).await?) {
            text = format!("{text}; {unmet}");
        }
        Ok(Why { view, text })
    }

    /// What a task that was given up needed, by name and end, where that is why.
    async fn unmet_needs(&self, view: &TaskView) -> Result<Vec<(String, State)>, CommandError> {
        let task = &view.stored.task;
        let for_others = matches!(task.reason, Some(Reason::UpstreamFailed | Reason::UpstreamUnmet));
        let Some(execution) = task.execution.filter(|_| for_others && task.state.is_terminal()) else {
            return Ok(Vec::new());
        };
        let ids: Vec<TaskId> = view.needs.iter().map(|edge| edge.from).collect();
        let steps = self.core.store.steps(execution, StepsOf::Tasks(&ids), 0).await?;
        let is_met = |step: &StepView| {
            let edge = view.needs.iter().find(|edge| edge.from == step.task);
            !step.state.is_terminal() || edge.is_some_and(|edge| edge.is_met_by(step.state))
        };
        let unmet = steps.into_iter().filter(|step| !is_met(step));
        Ok(unmet.map(|step| (step.key.unwrap_or_else(|| step.task.to_string()), step.state)).collect())
    }

    /// The log of a task, from an event on.
    pub async fn events(
        &self,
        namespace: &str,
        id: TaskId,
        after: u32,
        limit: u32,
    ) -> Result<Vec<Event>, CommandError> {
        self.task(namespace, id).await?;
        let records = self.core.store.history(Subject::Task(id), after, limit).await?;
        Ok(records.iter().flat_map(Record::expand).filter(|event| event.seq > after).collect())
    }
}
