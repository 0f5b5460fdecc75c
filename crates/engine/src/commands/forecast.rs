//! Forecast: when a task will be tried again, and when it gives up, if every attempt fails as the last one did.

use std::time::{Duration, Instant};

use comeback_core::forecast::{Forecast, RunTimes, forecast_while};
use comeback_core::{Failure, Millis, Record, TaskId, Trigger};
use comeback_store::{StoreError, Subject};

use crate::{CommandError, Engine};

/// Runs looked at for how long a run takes.
const RUNS: u32 = 200;
/// How long one forecast goes on; the attempts by then are told.
const PATIENCE: Duration = Duration::from_secs(1);

impl Engine {
    /// The future attempts of a task.
    pub async fn forecast(&self, namespace: &str, id: TaskId, at_most: usize) -> Result<Forecast, CommandError> {
        let view = self.task(namespace, id).await?;
        let records = self.core.store.history(Subject::Task(id), 0, RUNS).await?;
        let failure = view.last_failure.and_then(|record| record.failure);
        let failure = failure.unwrap_or_else(|| Failure::new(Trigger::Error, "as assumed"));
        let mut snapshot = self.core.snapshot(&view.stored);
        snapshot.guard.dependency = self.core.guard_of(&view.stored.task).await?;
        let (runs, now) = (run_times(&records), self.now());
        // Beside the threads that serve: a policy may be slow to evaluate.
        let play = move || {
            let began = Instant::now();
            forecast_while(&snapshot, &failure, runs, now, at_most, &|| began.elapsed() < PATIENCE)
        };
        let played = tokio::task::spawn_blocking(play).await;
        Ok(played.map_err(|error| StoreError::Unavailable(error.to_string()))?)
    }
}

fn run_times(records: &[Record]) -> RunTimes {
    let times: Vec<Millis> = records
        .iter()
        .filter(|record| record.outcome.is_some())
        .filter_map(|record| record.started_at.map(|start| record.at.since(start)))
        .collect();
    RunTimes {
        shortest: times.iter().copied().min().unwrap_or_default(),
        longest: times.iter().copied().max().unwrap_or_default(),
    }
}
