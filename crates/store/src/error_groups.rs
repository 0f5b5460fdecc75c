//! Error groups: failures with the same fingerprint.

use std::collections::HashMap;

use async_trait::async_trait;
use comeback_core::error_group::{Group, TriageAction};
use comeback_core::{Audit, Class, Timestamp};

use crate::{GroupQuery, StoreError};

/// Error groups and their triage.
#[async_trait]
pub trait ErrorGroupStore: Send + Sync {
    /// Error groups, those that were seen last first.
    async fn groups(&self, namespace: &str, query: &GroupQuery) -> Result<Vec<Group>, StoreError>;

    /// An error group by its fingerprint.
    async fn group(&self, namespace: &str, fingerprint: i64) -> Result<Option<Group>, StoreError>;

    /// Triages a group; None if it does not exist. The audit says who, and is told how it was and how it is.
    async fn put_group(
        &self,
        namespace: &str,
        fingerprint: i64,
        deed: &TriageAction,
        audit: &Audit,
        now: Timestamp,
    ) -> Result<Option<Group>, StoreError>;

    /// Classes that people gave to errors, by namespace and fingerprint.
    async fn reclassified(&self) -> Result<HashMap<String, HashMap<i64, Class>>, StoreError>;

    /// How many open tasks failed last with each of these errors.
    async fn open_with(&self, namespace: &str, fingerprints: &[i64]) -> Result<HashMap<i64, u64>, StoreError>;
}
