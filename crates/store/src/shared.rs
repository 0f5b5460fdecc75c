//! Rows that all instances share: API keys, policies of kinds, drained workers, workers and instances.
//!
//! The first three are followed by every instance: each list has a number that grows with every change, and a row carries the number
//! of its last change. Nothing is read again while the number stays the same.

use async_trait::async_trait;
use comeback_core::{Audit, Quota, QuotaExceeded, Timestamp};

use crate::StoreError;
use crate::audit::as_json;

/// A list that instances follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedList {
    Keys,
    Policies,
    DrainedWorkers,
}

impl SharedList {
    /// The name of its row in `shared_change`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            SharedList::Keys => "keys",
            SharedList::Policies => "policies",
            SharedList::DrainedWorkers => "drained",
        }
    }
}

/// How far one list has changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChangeNumber {
    /// The number of its last change.
    pub last: i64,
    /// The number of the last change that removed a row. An instance that knows an older number reads the whole list again.
    pub removed: i64,
}

/// How far all lists have changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChangeNumbers {
    /// API keys.
    pub keys: ChangeNumber,
    /// Policies of kinds.
    pub policies: ChangeNumber,
    /// Drained workers.
    pub drained: ChangeNumber,
}

impl ChangeNumbers {
    pub(crate) fn set(&mut self, name: &str, number: ChangeNumber) {
        match name {
            "keys" => self.keys = number,
            "policies" => self.policies = number,
            "drained" => self.drained = number,
            _ => {}
        }
    }
}

/// An API key as it is stored. The secret is not; its hash is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiKey {
    /// Its id.
    pub id: String,
    /// `*` stands for all namespaces.
    pub namespace: String,
    /// Its name.
    pub name: Option<String>,
    /// Its role.
    pub role: String,
    /// The hash of its secret.
    pub hash: String,
    /// JSON: what the key is good for below its role.
    pub terms: String,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it expires.
    pub expires_at: Option<Timestamp>,
    /// When it was revoked.
    pub revoked_at: Option<Timestamp>,
    /// The id of the key that a rotation made in its place.
    pub replaced_by: Option<String>,
}

/// The answer to a new API key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyPut {
    Done,
    /// A key of this id is stored already. It was not changed.
    Exists,
    /// Another active key of the namespace has this name, or a key for all namespaces has it.
    NameTaken,
    /// The key to be rotated is expired, revoked, replaced or not there.
    NotActive,
}

/// Namespace of keys that are good for all of them.
pub(crate) const ALL_NAMESPACES: &str = "*";

/// The policy of a kind, as it was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KindPolicy {
    /// The namespace it belongs to.
    pub namespace: String,
    /// The kind of task.
    pub kind: String,
    /// Its body, as JSON text.
    pub body: String,
    /// The dialect it was written in.
    pub dialect: String,
}

/// A policy of a kind without its body, which may be large.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KindPolicyName {
    /// The namespace it belongs to.
    pub namespace: String,
    /// The kind of task.
    pub kind: String,
    /// The number of its last change.
    pub change: i64,
}

/// A worker that is given nothing more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrainedWorker {
    /// The namespace it belongs to.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The instant.
    pub at: Timestamp,
    /// The trigger.
    pub by: Option<String>,
    /// A note for the audit log.
    pub note: Option<String>,
}

/// The answer to draining a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Drained {
    Done,
    /// It was drained before, like this.
    Already(DrainedWorker),
    /// The namespace has as many drained workers as it may have.
    TooMany,
}

/// A worker that has asked for work, to be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerSeen {
    /// The namespace it belongs to.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// When it was last seen.
    pub seen_at: Timestamp,
    /// How many tasks it has leased since it was stored last.
    pub leased: u64,
    /// JSON: what it asks for. None leaves what is stored.
    pub asks: Option<String>,
}

/// A worker as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerRow {
    /// Its name.
    pub name: String,
    /// The instance that it asked last.
    pub instance: String,
    /// When it was last seen.
    pub seen_at: Timestamp,
    /// How many tasks it has leased.
    pub leased: u64,
    /// The work it asks for, as JSON text.
    pub asks: String,
}

/// A server process on this database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceRow {
    /// Its id.
    pub id: String,
    /// Its version, from 1.
    pub version: String,
    /// When it started.
    pub started_at: Timestamp,
    /// When it was last seen.
    pub seen_at: Timestamp,
}

/// The refusal of one more of something.
pub(crate) fn exceeded(quota: Quota, namespace: &str, most: u64) -> StoreError {
    QuotaExceeded { quota, namespace: namespace.to_owned(), most }.into()
}

/// A policy as it was given, for the audit.
pub(crate) fn policy_facts(policy: &KindPolicy) -> serde_json::Value {
    serde_json::json!({"policy": as_json(&policy.body), "dialect": policy.dialect})
}

/// The rows that all instances share.
#[async_trait]
pub trait SharedStore: Send + Sync {
    /// How far the lists have changed.
    async fn change_numbers(&self) -> Result<ChangeNumbers, StoreError>;

    /// Keys that have changed after a number; all of them after 0.
    async fn api_keys(&self, after: i64) -> Result<Vec<ApiKey>, StoreError>;

    /// The keys of a namespace, or of all of them, oldest first.
    async fn list_keys(&self, namespace: Option<&str>) -> Result<Vec<ApiKey>, StoreError>;

    /// Stores a new key; never in place of another. A namespace has at most `most` active ones; of those that are no longer active
    /// the oldest are removed to make room.
    async fn create_key(
        &self,
        key: &ApiKey,
        most: u64,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<KeyPut, StoreError>;

    /// Stores a new key in place of one that is active until `ends_at`.
    async fn rotate_key(
        &self,
        old: &str,
        ends_at: Timestamp,
        key: &ApiKey,
        most: u64,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<KeyPut, StoreError>;

    /// Revokes a key. False where it was revoked before or is not there.
    async fn revoke_key(&self, id: &str, audit: Option<&Audit>, now: Timestamp) -> Result<bool, StoreError>;

    /// Names of policies that have changed after a number; all of them after 0.
    async fn kind_policy_names(&self, after: i64) -> Result<Vec<KindPolicyName>, StoreError>;

    /// The policies of some kinds of a namespace.
    async fn kind_policies(&self, namespace: &str, kinds: &[String]) -> Result<Vec<KindPolicy>, StoreError>;

    /// Stores the policy of a kind in place of the one before. A namespace has at most `most`. The audit is told what was before.
    async fn put_kind_policy(&self, policy: &KindPolicy, most: u64, audit: Option<&Audit>) -> Result<(), StoreError>;

    /// Removes the policy of a kind. False where there is none.
    async fn delete_kind_policy(&self, namespace: &str, kind: &str, audit: Option<&Audit>) -> Result<bool, StoreError>;

    /// All drained workers.
    async fn drained_workers(&self) -> Result<Vec<DrainedWorker>, StoreError>;

    /// Drains a worker. Where a namespace has `most` of them, those that were drained before `old` and are not seen any more are removed.
    async fn drain_worker(
        &self,
        worker: &DrainedWorker,
        most: u64,
        old: Timestamp,
        audit: Option<&Audit>,
    ) -> Result<Drained, StoreError>;

    /// Gives a worker work again. False where it was not drained.
    async fn undrain_worker(&self, namespace: &str, name: &str, audit: Option<&Audit>) -> Result<bool, StoreError>;

    /// Stores workers that an instance has seen.
    async fn put_workers(&self, instance: &str, workers: &[WorkerSeen]) -> Result<(), StoreError>;

    /// Workers of a namespace that were seen after an instant, those that were seen last first.
    async fn workers(&self, namespace: &str, after: Timestamp, limit: u32) -> Result<Vec<WorkerRow>, StoreError>;

    /// Whether a worker was seen after an instant.
    async fn has_worker(&self, namespace: &str, name: &str, after: Timestamp) -> Result<bool, StoreError>;

    /// How many workers of each namespace were seen after an instant.
    async fn worker_counts(&self, after: Timestamp) -> Result<Vec<(String, u64)>, StoreError>;

    /// Removes workers that were seen last before an instant. Answers how many.
    async fn forget_workers(&self, before: Timestamp) -> Result<u64, StoreError>;

    /// Says that an instance runs, and removes those that were seen last before an instant.
    async fn put_instance(&self, instance: &InstanceRow, gone: Timestamp) -> Result<(), StoreError>;

    /// Instances, by id.
    async fn instances(&self) -> Result<Vec<InstanceRow>, StoreError>;
}
