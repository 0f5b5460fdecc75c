//! Count: somebody at work on a hook's task tells how far they have come. It is a sign of life too.

use comeback_core::{Executor, Invalid, Speaker};
use comeback_store::Count;

use crate::{CommandError, Engine, Query};

impl Engine {
    /// Added to what was counted before; refused once the run is over that the caller speaks of.
    pub async fn count(&self, namespace: &str, count: Count, fence: Speaker) -> Result<(), CommandError> {
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
        let core = &self.core;
        let counted = core.tallies.asked(Query::Count, core.store.count(&[count], self.now())).await?;
        if counted.first() == Some(&true) {
            self.core.freed(&seen.task.lane);
            return Ok(());
        }
        let state = self.find(namespace, count.task).await?.task.state;
        Err(CommandError::WrongState { state, verb: "counted" })
    }
}
