//! Schedules, subscriptions and alerts: named rows that are due again and again.

use async_trait::async_trait;
use comeback_core::{Audit, Timestamp};

use crate::{Applied, Loop, StoreError, Submission};

/// Named resources with a cursor: schedules, subscriptions and alerts.
#[async_trait]
pub trait ResourceStore: Send + Sync {
    /// A follower by its name.
    async fn follower(&self, sort: ResourceKind, namespace: &str, name: &str) -> Result<Option<Resource>, StoreError>;

    /// Followers behind `after`, in the order of their names.
    async fn followers(
        &self,
        sort: ResourceKind,
        namespace: &str,
        after: &str,
        limit: u32,
    ) -> Result<Vec<Resource>, StoreError>;

    /// Followers of all namespaces whose time has come, the longest overdue first.
    async fn due_followers(&self, sort: ResourceKind, now: Timestamp, limit: u32) -> Result<Vec<Resource>, StoreError>;

    /// Followers of all namespaces that have a time at all, by namespace and name, behind the one that is named.
    async fn active_followers(
        &self,
        sort: ResourceKind,
        after: Option<(&str, &str)>,
        limit: u32,
    ) -> Result<Vec<Resource>, StoreError>;

    /// Stores a follower, if the version that it names is still the one there is (0 where there is none yet), together with
    /// what it starts: both are written or neither. Nothing happens on behalf of a loop that is paused.
    async fn put_follower(
        &self,
        follower: &Resource,
        start: Option<&Submission>,
        on_behalf_of: Option<Loop>,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<Applied, StoreError>;

    /// Deletes a resource; whether it was there.
    async fn delete_follower(
        &self,
        sort: ResourceKind,
        namespace: &str,
        name: &str,
        audit: Option<&Audit>,
    ) -> Result<bool, StoreError>;
}

/// Kinds of resources. Each has a table of its own, so names of different kinds do not meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ResourceKind {
    /// Instants that come.
    Schedules,
    /// The feed, for somebody outside.
    Subscriptions,
    /// The feed, until there is too much of something.
    Alerts,
}

impl ResourceKind {
    /// All of them.
    pub const ALL: [ResourceKind; 3] = [ResourceKind::Schedules, ResourceKind::Subscriptions, ResourceKind::Alerts];

    pub(crate) const fn table(self) -> &'static str {
        match self {
            ResourceKind::Schedules => "schedule",
            ResourceKind::Subscriptions => "subscription",
            ResourceKind::Alerts => "alert",
        }
    }
}

/// A named resource with a cursor: its settings and its runtime state, both as JSON text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    /// The kind of resource.
    pub sort: ResourceKind,
    /// The namespace it belongs to.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Counts the changes of the row.
    pub version: u32,
    /// When it is to be looked at; nothing while it is paused, or when it is over.
    pub due: Option<Timestamp>,
    /// Its body, as JSON text.
    pub body: String,
    /// Its runtime state, as JSON text.
    pub standing: String,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
}
