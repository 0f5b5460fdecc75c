//! Alerts: too much of something within a while, told to those who subscribe and to the log.
//!
//! An alert is one row that follows the feed. What it has counted, whether it fires, and the deliveries that say so are written in
//! one commit, so it fires once and resolves once, whoever looks and whoever is killed.

mod backtest;
pub(crate) mod look;

use comeback_core::alert::{Change, Count, Counts, Watch};
use comeback_core::filter::Filter;
use comeback_core::subscription::{AlertEvent, Types};
use comeback_core::{Event, Invalid, Timestamp};
use comeback_store::{FeedCursor, Resource, StoreError};
use serde::{Deserialize, Serialize};

pub use backtest::Backtest;

/// Subscriptions that one alert may name.
const MOST_TOLD: usize = 20;

/// An alert as a caller asks for it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AlertSpec {
    /// The events that there may be too many of.
    pub types: Types,
    /// Of the tasks whose events are counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
    /// Threshold and window.
    #[serde(flatten)]
    pub watch: Watch,
    /// Further events that a share is computed of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<Types>,
    /// Subscriptions by id; none stands for all that want to hear of alerts.
    #[serde(default)]
    pub tell: Vec<String>,
    /// Whether it is switched off.
    #[serde(default)]
    pub paused: bool,
    /// Note of its author.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// How far it has come.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AlertState {
    /// Position in the feed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// Counts of the current window.
    pub count: Count,
    /// The last time that it fired or was resolved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<Last>,
}

/// The last that became of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Last {
    /// Fired or resolved.
    pub what: AlertEvent,
    /// Time of the change.
    pub at: Timestamp,
    /// Events that counted.
    pub hits: u64,
    /// Events that the share is computed of.
    pub all: u64,
}

impl From<&Change> for Last {
    fn from(change: &Change) -> Last {
        Last { what: change.what, at: change.at, hits: change.hits, all: change.all }
    }
}

/// An alert with its state.
#[derive(Clone, Debug, PartialEq)]
pub struct AlertView {
    /// Its name.
    pub name: String,
    /// Its specification.
    pub spec: AlertSpec,
    /// Its state.
    pub standing: AlertState,
    /// Time of its creation.
    pub created_at: Timestamp,
    /// Time of its last change.
    pub updated_at: Timestamp,
}

impl AlertView {
    /// Its state in one word.
    pub fn state(&self) -> &'static str {
        match (self.spec.paused, self.standing.count.firing_since) {
            (true, _) => "paused",
            (false, Some(_)) => "firing",
            (false, None) => "quiet",
        }
    }

    pub(crate) fn of(row: &Resource) -> Result<AlertView, StoreError> {
        let (spec, standing) = read(row)?;
        let (created_at, updated_at) = (row.created_at, row.updated_at);
        Ok(AlertView { name: row.name.clone(), spec, standing, created_at, updated_at })
    }
}

impl AlertSpec {
    pub(crate) fn check(&self, now: Timestamp) -> Invalid {
        let mut faults = self.watch.check();
        if self.types.words().is_empty() {
            faults.push("types", "name what there may be too many of");
        }
        if self.of.as_ref().is_some_and(|of| of.words().is_empty()) {
            faults.push("of", "name what the share is of");
        }
        for (field, types) in [("types", Some(&self.types)), ("of", self.of.as_ref())] {
            if let Some((n, word)) = types.and_then(Types::uncounted) {
                let words = "is told to subscriptions and cannot be counted; name what happens to tasks and executions";
                faults.push(format!("{field}[{n}]"), format!("`{word}` {words}"));
            }
        }
        if self.of.is_some() != self.watch.share.is_some() {
            faults.push("share", "belongs with `of`: give both or none");
        }
        if self.tell.len() > MOST_TOLD {
            faults.push("tell", format!("at most {MOST_TOLD} are allowed"));
        }
        if let Err(error) = self.filter(now) {
            faults.push("filter", error);
        }
        faults
    }

    fn filter(&self, now: Timestamp) -> Result<Option<Filter>, comeback_core::filter::FilterError> {
        self.filter.as_deref().map(|text| Filter::parse(text, now)).transpose()
    }

    /// How an event counts, before its task is loaded.
    fn counts(&self, event: &Event) -> Option<Counts> {
        if !self.types.names(event).is_empty() {
            return Some(Counts::Hit);
        }
        self.of.as_ref().filter(|of| !of.names(event).is_empty()).map(|_| Counts::Beside)
    }

    /// Whether what was counted by one may be gone on with by the other.
    pub(crate) fn counts_the_same(&self, other: &AlertSpec) -> bool {
        let of = |spec: &AlertSpec| AlertSpec { tell: Vec::new(), note: None, paused: false, ..spec.clone() };
        of(self) == of(other)
    }

    /// When time alone may change something; otherwise it is looked at whenever something happens.
    pub(crate) fn due(&self, count: &Count) -> Option<Timestamp> {
        let timed = count.firing_since.is_some() || self.watch.share.is_some();
        let leaves = count.leaves(&self.watch).filter(|_| timed);
        (!self.paused).then(|| leaves.unwrap_or(Timestamp(0)))
    }
}

impl AlertState {
    fn place(&self) -> Option<FeedCursor> {
        self.cursor.as_deref().and_then(|text| text.parse().ok())
    }
}

pub(crate) fn read(row: &Resource) -> Result<(AlertSpec, AlertState), StoreError> {
    let what = |error: serde_json::Error| StoreError::Corrupt(format!("the alert {}: {error}", row.name));
    Ok((serde_json::from_str(&row.body).map_err(what)?, serde_json::from_str(&row.standing).map_err(what)?))
}
