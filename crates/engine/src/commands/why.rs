//! Why: the last verdict about a task, as data and in words; and its log.

use comeback_core::{Event, Record, TaskId, explain};
use comeback_store::{Subject, TaskView};

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
        let text = explain::standing(&view.stored.task, view.last_decision.as_ref());
        Ok(Why { view, text })
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
