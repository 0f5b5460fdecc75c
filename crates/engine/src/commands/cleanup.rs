//! Manual cleanup: deletes old tasks on request, whatever the retention of the server is.

use std::time::{Duration, Instant};

use comeback_core::transition::Actor;
use comeback_core::{AuditAction, Invalid, Millis, Timestamp};
use serde_json::json;

use crate::loops::BATCH;
use crate::{CommandError, Engine, Query};

/// Younger tasks are kept, since a request may come again under its key (`Idempotency-Key` is kept for as long).
pub const YOUNGEST: Millis = Millis::from_days(1);

/// Longest time of one request; the next one goes on.
const PATIENCE: Duration = Duration::from_secs(10);

/// Result of a cleanup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cleanup {
    /// Everything that ended before this.
    pub before: Timestamp,
    /// Deleted tasks.
    pub tasks: u64,
    /// Whether there is more to forget.
    pub more: bool,
}

impl Engine {
    /// How much a cleanup would forget, in all namespaces.
    pub async fn preview_cleanup(&self, older_than: Millis) -> Result<Cleanup, CommandError> {
        let before = self.cleaned_before(older_than)?;
        Ok(Cleanup { before, tasks: self.core.store.prunable(before).await?, more: false })
    }

    /// Forgets what ended so long ago; what is open is never touched.
    pub async fn cleanup(&self, older_than: Millis, act: &Actor) -> Result<Cleanup, CommandError> {
        let core = &self.core;
        core.config.limits.check_act(act)?;
        let before = self.cleaned_before(older_than)?;
        // What is forgotten was counted before.
        core.fold_all().await?;
        let (mut done, begun) = (Cleanup { before, tasks: 0, more: true }, Instant::now());
        while done.more && begun.elapsed() < PATIENCE {
            let pruned = core.tallies.asked(Query::Prune, core.store.prune(before, BATCH)).await?;
            core.tallies.pruned(pruned.tasks);
            done.tasks += pruned.tasks;
            done.more = pruned.more;
        }
        let facts = json!({"before": before.to_rfc3339(), "tasks": done.tasks, "more": done.more});
        self.note(&self.entry(AuditAction::Cleanup, "tasks", act).changed(None, Some(facts.clone())).answered(facts))
            .await?;
        Ok(done)
    }

    fn cleaned_before(&self, older_than: Millis) -> Result<Timestamp, Invalid> {
        if older_than < YOUNGEST {
            return Err(Invalid::one("older_than", "must be 1d or more"));
        }
        Ok(self.now() - older_than)
    }
}
