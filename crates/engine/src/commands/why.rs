//! Why: the last verdict about a task, as data and in words; and its log.

use comeback_core::{Event, Executor, Reason, Record, State, TaskId, explain};
use comeback_store::{StepView, StepsOf, Subject, TaskView};

use crate::{CommandError, Engine};

/// After a verdict there are few records without one.
const RECORDS_SINCE: u32 = 32;

/// A task with the explanation of its state.
#[derive(Clone, Debug)]
pub struct Why {
    /// The task.
    pub view: TaskView,
    /// One sentence for people.
    pub text: String,
}

impl Engine {
    /// One task.
    pub async fn task(&self, namespace: &str, id: TaskId) -> Result<TaskView, CommandError> {
        self.core.store.task(namespace, id).await?.ok_or(CommandError::NotFound("task"))
    }

    /// Explains the state of a task.
    pub async fn why(&self, namespace: &str, id: TaskId) -> Result<Why, CommandError> {
        let view = self.task(namespace, id).await?;
        let last = view.last_decision.as_ref();
        let mut text = match self.mended_since(&view).await? {
            Some(mended) => explain::mended(&view.stored.task, &mended, last),
            None => explain::standing(&view.stored.task, last),
        };
        if let Some(unmet) = explain::unmet(&self.unmet_needs(&view).await?) {
            text = format!("{text}; {unmet}");
        }
        Ok(Why { view, text })
    }

    /// Needs that were not met, by name and end, of a task that was skipped for it.
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

    /// The repair by hand, where one came between the last verdict about a task and the execution that it stands for.
    async fn mended_since(&self, view: &TaskView) -> Result<Option<Record>, CommandError> {
        let task = &view.stored.task;
        let Some(last) = view.last_decision.as_ref().filter(|last| last.cycle < task.cycle) else { return Ok(None) };
        if task.lane.executor != Executor::Flow {
            return Ok(None);
        }
        let since = self.core.store.history(Subject::Task(task.id), last.last_seq(), RECORDS_SINCE).await?;
        Ok(since.into_iter().rfind(|record| record.data.as_ref().is_some_and(|data| data.get("mended").is_some())))
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
