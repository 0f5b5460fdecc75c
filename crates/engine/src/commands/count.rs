//! Count: progress of a hook's task. It is a sign of life too.

use std::collections::{BTreeMap, BTreeSet};

use comeback_core::{Executor, Invalid, Reporter, TaskId};
use comeback_store::{Count, StoreError};

use crate::{CommandError, Core, Engine, Query};

impl Engine {
    /// Added to what was counted before; refused once the run is over that the caller speaks of.
    pub async fn count(&self, namespace: &str, count: Count, fence: Reporter) -> Result<(), CommandError> {
        let most = i32::MAX.cast_unsigned();
        let given =
            [("success", Some(count.success)), ("failures", Some(count.failures)), ("expected", count.expected)];
        let mut faults = Invalid::default();
        for (field, _) in given.iter().filter(|(_, number)| number.is_some_and(|number| number > most)) {
            faults.push(*field, format!("may be {most} at most"));
        }
        faults.or(())?;
        let seen = self.find(namespace, count.task).await?;
        if seen.task.lane.executor != Executor::Hook {
            return Err(Invalid::one("", "a worker tells its progress with its lease, not by a callback").into());
        }
        if !seen.task.is_meant_by(fence) {
            return Err(CommandError::LeaseLost);
        }
        if self.combiners.counts.ask(count).await?? {
            self.core.freed(&seen.task.lane);
            return Ok(());
        }
        let state = self.find(namespace, count.task).await?.task.state;
        Err(CommandError::WrongState { state, verb: "counted" })
    }
}

impl Core {
    /// Stores the progress of one batch together: all of it or nothing.
    pub(crate) async fn count_batch(&self, batch: &[Count]) -> Vec<Result<bool, StoreError>> {
        let mut by_task: BTreeMap<TaskId, Count> = BTreeMap::new();
        for count in batch {
            let sum = by_task.entry(count.task).or_insert(Count { success: 0, failures: 0, ..*count });
            sum.success = sum.success.saturating_add(count.success);
            sum.failures = sum.failures.saturating_add(count.failures);
            sum.expected = count.expected.or(sum.expected);
        }
        let counts: Vec<Count> = by_task.into_values().collect();
        match self.tallies.asked(Query::Count, self.store.count(&counts, self.clock.now())).await {
            Err(error) => batch.iter().map(|_| Err(error.clone())).collect(),
            Ok(answers) => {
                let counted: BTreeSet<TaskId> =
                    counts.iter().zip(answers).filter(|(_, counted)| *counted).map(|(count, _)| count.task).collect();
                batch.iter().map(|count| Ok(counted.contains(&count.task))).collect()
            }
        }
    }
}
