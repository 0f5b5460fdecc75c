//! Statistics and error groups: added to from the feed, asked for, and what people say of errors.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use comeback_core::error_group::{Group, TriageAction};
use comeback_core::filter::fingerprint_to_hex;
use comeback_core::stats::Fold;
use comeback_core::transition::Actor;
use comeback_core::{AuditAction, Invalid};
use comeback_store::{GroupQuery, StoreError, SumLine, SumsQuery};

use crate::{CommandError, Core, Engine};

/// Items of the feed that are added in one go.
const STRETCH: u32 = 1_000;
/// How long a query waits for statistics that are not aggregated yet.
const PATIENCE: Duration = Duration::from_millis(300);

impl Core {
    /// Adds the next stretch of what happened to the statistics. Whether there was one.
    pub(crate) async fn fold_next(&self) -> Result<bool, StoreError> {
        let now = self.clock.now();
        let stretch = self.store.pending_stats(STRETCH).await?;
        if stretch.is_empty() {
            return Ok(false);
        }
        self.store.fold(&stretch, &Fold::of(&stretch.facts), now).await?;
        Ok(true)
    }

    /// Adds all that can be read now.
    pub(crate) async fn fold_all(&self) -> Result<(), StoreError> {
        while self.fold_next().await? {}
        Ok(())
    }
}

impl Engine {
    /// Adds what happened, as far as that takes no long time: under load the statistics may be a little behind.
    async fn fold_a_while(&self) -> Result<(), StoreError> {
        let began = Instant::now();
        while self.core.fold_next().await? && began.elapsed() < PATIENCE {}
        Ok(())
    }

    /// Sums of what attempts came to.
    pub async fn sums(&self, namespace: &str, query: &SumsQuery) -> Result<Vec<SumLine>, CommandError> {
        self.fold_a_while().await?;
        Ok(self.core.store.sums(namespace, query).await?)
    }

    /// Error groups, those that were seen last first.
    pub async fn error_groups(&self, namespace: &str, query: &GroupQuery) -> Result<Vec<Group>, CommandError> {
        self.fold_a_while().await?;
        Ok(self.core.store.groups(namespace, query).await?)
    }

    /// One error group.
    pub async fn error_group(&self, namespace: &str, fingerprint: i64) -> Result<Group, CommandError> {
        self.fold_a_while().await?;
        self.core.store.group(namespace, fingerprint).await?.ok_or(CommandError::NotFound("error group"))
    }

    /// How many open tasks failed last with each of these errors.
    pub async fn open_with(&self, namespace: &str, fingerprints: &[i64]) -> Result<HashMap<i64, u64>, CommandError> {
        Ok(self.core.store.open_with(namespace, fingerprints).await?)
    }

    /// Applies a triage action to an error group.
    pub async fn change_error_group(
        &self,
        namespace: &str,
        fingerprint: i64,
        deed: &TriageAction,
        act: &Actor,
    ) -> Result<Group, CommandError> {
        self.core.config.limits.check_act(act)?;
        let now = self.now();
        let did = match deed {
            TriageAction::Reopen => AuditAction::ErrorOpen,
            TriageAction::Ignore(Some(until)) if *until <= now => {
                return Err(Invalid::one("until", "must be in the future").into());
            }
            TriageAction::Ignore(_) => AuditAction::ErrorIgnore,
            TriageAction::Resolve => AuditAction::ErrorResolve,
            TriageAction::Reclassify(_) => AuditAction::ErrorClassify,
            TriageAction::Note if act.note.is_none() => return Err(Invalid::one("note", "must say something").into()),
            TriageAction::Note => AuditAction::ErrorNote,
        };
        self.fold_a_while().await?;
        let entry = self.entry(did, fingerprint_to_hex(fingerprint), act).within(namespace);
        let changed = self.core.store.put_group(namespace, fingerprint, deed, &entry, now).await?;
        let group = changed.ok_or(CommandError::NotFound("error group"))?;
        if matches!(deed, TriageAction::Reclassify(_)) {
            self.core.learn_classes().await?;
        }
        Ok(group)
    }
}
