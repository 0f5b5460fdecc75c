//! The audit: written with each act, and read here.

use comeback_core::transition::Actor;
use comeback_core::{Audit, AuditAction};
use comeback_store::AuditQuery;

use crate::{CommandError, Engine};

/// Logs manual retries: the actor, and that a scheduled retry is superseded. The operation logs those of a bulk operation.
pub(crate) fn log_retries(entries: &[Audit]) {
    let by_itself = |it: &&Audit| it.after.as_ref().is_none_or(|after| after["operation"].is_null());
    for it in entries.iter().filter(|it| it.did == AuditAction::TaskRetry).filter(by_itself) {
        let (task, by, note) = (&it.subject, it.actor.as_deref(), it.note.as_deref());
        tracing::info!(task, by, note, "manual retry requested");
        let due = it.before.as_ref().and_then(|before| before["next_retry_at"].as_str());
        if let Some(due) = due {
            tracing::info!(task, due, "scheduled retry superseded by manual retry");
        }
    }
}

impl Engine {
    /// An act as it will be written down: now, and by whom.
    pub fn entry(&self, did: AuditAction, subject: impl Into<String>, act: &Actor) -> Audit {
        let now = self.now();
        Audit::new(self.core.ids.act(now), now, did, subject, act)
    }

    /// Writes down an act that is no single write of the store.
    pub async fn note(&self, entry: &Audit) -> Result<(), CommandError> {
        Ok(self.core.store.put_audit(entry).await?)
    }

    /// Newest first.
    pub async fn audit(&self, query: &AuditQuery) -> Result<Vec<Audit>, CommandError> {
        Ok(self.core.store.audit(query).await?)
    }
}
