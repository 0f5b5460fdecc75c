//! Timeout: a run that was idle too long, or ran too long, has failed.

use comeback_core::{End, Failure, Outcome, Speaker, Trigger};
use comeback_store::{Due, Loop, StoreError};

use super::reap::end_all;
use super::{BATCH, Progress};
use crate::Core;
use crate::road::Verb;

pub async fn tick(core: &Core) -> Result<Progress, StoreError> {
    let due = core.store.due(Due::Timeouts, core.clock.now(), BATCH).await?;
    end_all(core, due, Loop::Timeout, |stored| {
        let task = &stored.task;
        let absolute = task.attempt_deadline.zip(task.started_at).map(|(span, start)| start + span);
        let message = match (task.timeout, absolute) {
            (_, Some(limit)) if task.timeout_at == Some(limit) => {
                format!("the run took longer than {}", task.attempt_deadline.unwrap_or_default())
            }
            (Some(timeout), _) => format!("no sign of life for {timeout}"),
            (None, _) => "the run took too long".to_owned(),
        };
        let failure = Failure::new(Trigger::Timeout, message);
        Verb::End(Outcome { speaker: Speaker::Server, end: End::Failed(failure) })
    })
    .await
}
