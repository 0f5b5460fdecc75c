//! Dependencies as they are stored: what was asked of them, and what is remembered in between. What that means is said in
//! `comeback_core::dependency`.

use std::collections::BTreeMap;

use async_trait::async_trait;
use comeback_core::admission::Admission;
use comeback_core::dependency::{Settings, Standing};
use comeback_core::{Audit, Lane, Millis, Timestamp};
use serde_json::{Value, json};

use crate::StoreError;
use crate::row::corrupt;

/// Dependencies: their circuit breakers, and the tasks they hold.
#[async_trait]
pub trait DependencyStore: Send + Sync {
    /// A dependency by its name, as it stands.
    async fn dependency(&self, namespace: &str, name: &str) -> Result<Option<Dependency>, StoreError>;

    /// Dependencies behind `after`, in the order of their names.
    async fn dependencies(&self, namespace: &str, after: &str, limit: u32) -> Result<Vec<Dependency>, StoreError>;

    /// Dependencies of all namespaces about which time has changed something, the longest ago first.
    async fn due_dependencies(&self, now: Timestamp, limit: u32) -> Result<Vec<Dependency>, StoreError>;

    /// Stores a dependency, if the version that it names is still the one there is (0 where there is none yet). Claims heed it for
    /// the tasks that its rule puts under it, and count in it what they take.
    async fn put_dependency(&self, it: &Dependency, audit: Option<&Audit>, now: Timestamp) -> Result<bool, StoreError>;

    /// Deletes a dependency; whether it was there.
    async fn delete_dependency(&self, namespace: &str, name: &str, audit: Option<&Audit>) -> Result<bool, StoreError>;

    /// Stores a dependency as `put_dependency` does and, in the same commit, moves the deadlines of open tasks that are under it
    /// (model A14): those behind the instant, by the span.
    async fn announce(
        &self,
        it: &Dependency,
        stopped: Option<(Timestamp, Millis)>,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<bool, StoreError>;

    /// Whether anything is ready to start that is under a dependency, whoever may ask for it.
    async fn is_waited_for(&self, namespace: &str, dependency: &str) -> Result<bool, StoreError>;

    /// Whether tasks that name this are under a dependency, as far as this process knows.
    fn is_guarded(&self, namespace: &str, dependency: &str) -> bool;

    /// How often claims of this process left a lane alone because of a dependency.
    fn held_by_dependencies(&self) -> u64;
}

/// A dependency: its settings and its runtime state.
#[derive(Clone, Debug, PartialEq)]
pub struct Dependency {
    /// The namespace it belongs to.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Counts the changes of the row.
    pub version: u32,
    /// Its settings.
    pub settings: Settings,
    /// Its runtime state: circuit breaker and rate.
    pub standing: Standing,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
}

impl Dependency {
    /// A dependency that was just created.
    pub fn new(namespace: &str, name: &str, settings: Settings, now: Timestamp) -> Dependency {
        Dependency {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            version: 0,
            settings,
            standing: Standing::default(),
            created_at: now,
            updated_at: now,
        }
    }

    /// Its facts for the audit log.
    pub fn facts(&self) -> Value {
        json!({"settings": self.settings.to_json(), "breaker": self.standing.phase.word()})
    }

    /// When time changes something about it.
    pub(crate) fn due(&self, now: Timestamp) -> Option<i64> {
        self.standing.next(&self.settings, now).map(|at| at.0)
    }

    pub(crate) fn settings_text(&self) -> String {
        self.settings.to_json().to_string()
    }

    pub(crate) fn standing_text(&self) -> String {
        serde_json::to_string(&self.standing).unwrap_or_default()
    }
}

/// The columns of a row.
pub(crate) struct DependencyRow {
    pub namespace: String,
    pub name: String,
    pub version: u32,
    pub settings: String,
    pub standing: String,
    pub created_at: i64,
    pub updated_at: i64,
}

impl DependencyRow {
    pub fn read(self) -> Result<Dependency, StoreError> {
        let unread = |what: &str| corrupt(format!("the {what} of dependency {}", self.name));
        let settings = serde_json::from_str(&self.settings).map_err(|_| unread("settings"))?;
        Ok(Dependency {
            settings: Settings::parse(&settings).map_err(|_| unread("settings"))?,
            standing: serde_json::from_str(&self.standing).map_err(|_| unread("standing"))?,
            namespace: self.namespace,
            name: self.name,
            version: self.version,
            created_at: Timestamp(self.created_at),
            updated_at: Timestamp(self.updated_at),
        })
    }
}

/// The names of what the tasks of these lanes depend on, in one order.
pub(crate) fn named<'a>(lanes: impl Iterator<Item = &'a Lane>) -> Vec<String> {
    let mut names: Vec<String> =
        lanes.flat_map(|lane| &lane.limits).filter_map(|limit| limit.key.dependency().map(str::to_owned)).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Tells who chooses what these allow.
pub(crate) fn guard(admission: &mut Admission, dependencies: &[Dependency], now: Timestamp) {
    for it in dependencies {
        admission.guard(&it.name, it.standing.allowance(&it.settings, now));
    }
}

/// Counts what was chosen; answers those that are to be written.
pub(crate) fn take(admission: &Admission, dependencies: Vec<Dependency>, now: Timestamp) -> Vec<Dependency> {
    let taken: BTreeMap<&str, u32> = admission.taken().collect();
    let mut changed = dependencies;
    changed.retain_mut(|it| {
        let n = taken.get(it.name.as_str()).copied().unwrap_or(0);
        it.standing.take(&it.settings, n, now)
    });
    changed
}

/// Of one namespace, that a list looks at.
pub(crate) const MOST_CLOSED: u32 = 1_000;

/// Dependencies that let nothing start now.
pub(crate) fn closed_names(dependencies: &[Dependency], now: Timestamp) -> Vec<String> {
    let closed = dependencies.iter().filter(|it| it.standing.allowance(&it.settings, now).is_closed());
    closed.map(|it| it.name.clone()).collect()
}
