//! What was done from outside: written with each act, and read here.

use comeback_core::transition::Act;
use comeback_core::{Audit, Did};
use comeback_store::AuditQuery;

use crate::{CommandError, Engine};

impl Engine {
    /// An act as it will be written down: now, and by whom.
    pub fn entry(&self, did: Did, subject: impl Into<String>, act: &Act) -> Audit {
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
