//! Alerts on the wire: input and JSON.

use comeback_core::alert::Watch;
use comeback_core::subscription::Types;
use comeback_core::{Invalid, Timestamp};
use comeback_engine::alerts::{AlertSpec, AlertView, Backtest};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::{DurationIn, Object};
use crate::openapi::schema_types;

/// An alert: too many events of some types, of tasks that match a filter, within a time window.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewAlert)]
pub struct AlertIn {
    /// Event types to count; a `*` at the end matches a prefix.
    #[schema(min_items = 1, max_items = 100)]
    types: Vec<String>,
    /// Only events of tasks that match this filter (language of `?q=`).
    #[serde(default)]
    #[schema(max_length = 4096)]
    filter: Option<String>,
    /// Threshold: number of events that fires the alert.
    #[schema(minimum = 1)]
    threshold: u64,
    /// Time window: between 10 s and 7 days.
    window: DurationIn,
    /// Minimum share of the counted events among themselves and the events of `of`.
    #[serde(default)]
    #[schema(minimum = 0, maximum = 1)]
    share: Option<f64>,
    /// Event types that the share is measured against, besides `types`.
    #[serde(default)]
    #[schema(max_items = 100)]
    of: Option<Vec<String>>,
    /// Subscriptions to notify, by id; default: all that want `alert.fired` and `alert.resolved`.
    #[serde(default)]
    #[schema(value_type = Vec<schema_types::NameSchema>, max_items = 20)]
    tell: Vec<String>,
    #[serde(default)]
    paused: bool,
    #[serde(default)]
    #[schema(value_type = Option<schema_types::NoteSchema>)]
    note: Option<String>,
}

impl AlertIn {
    /// The spec of the alert.
    pub fn spec(self) -> Result<AlertSpec, Invalid> {
        let mut faults = Invalid::default();
        let types = Types::read(self.types).map_err(|part| faults.absorb("", part)).unwrap_or_default();
        let of = self.of.map(Types::read).transpose().map_err(|part| {
            for fault in part.faults {
                faults.push(fault.path.replacen("types", "of", 1), fault.message);
            }
        });
        let DurationIn(window) = self.window;
        let spec = AlertSpec {
            types,
            filter: self.filter.filter(|text| !text.trim().is_empty()),
            watch: Watch { window, threshold: self.threshold, share: self.share },
            of: of.unwrap_or_default(),
            tell: self.tell,
            paused: self.paused,
            note: self.note,
        };
        faults.or(spec)
    }
}

/// An existing alert by `name`, or a draft.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = AlertBacktest)]
pub struct AlertBacktestIn {
    #[serde(default)]
    #[schema(value_type = Option<schema_types::NameSchema>)]
    pub name: Option<String>,
    #[serde(default)]
    #[schema(value_type = Option<AlertIn>)]
    pub alert: Option<Object<AlertIn>>,
    /// How far to look back; default and maximum: 7 days.
    #[serde(default)]
    pub within: Option<DurationIn>,
}

/// JSON of an alert.
pub fn shown(view: &AlertView) -> Value {
    let AlertView { spec, standing, .. } = view;
    let at = |at: Option<Timestamp>| at.map(Timestamp::to_rfc3339);
    json!({
        "name": view.name,
        "state": view.state(),
        "types": spec.types.words(),
        "filter": spec.filter,
        "threshold": spec.watch.threshold,
        "window_ms": spec.watch.window.0,
        "share": spec.watch.share,
        "of": spec.of.as_ref().map(|of| of.words().to_vec()),
        "tell": spec.tell,
        "paused": spec.paused,
        "note": spec.note,
        "firing_since": at(standing.count.firing_since),
        "count": standing.count.hits(),
        "fired": standing.count.fired,
        "last": standing.last.as_ref().map(|last| json!({
            "type": last.what.word(), "at": last.at.to_rfc3339(), "count": last.hits, "of": last.all,
        })),
        "created_at": view.created_at.to_rfc3339(),
        "updated_at": view.updated_at.to_rfc3339(),
    })
}

/// JSON of a backtest.
pub fn backtest(test: &Backtest) -> Value {
    let changes: Vec<Value> = test
        .changes
        .iter()
        .map(|it| json!({"type": it.what.word(), "at": it.at.to_rfc3339(), "count": it.hits, "of": it.all}))
        .collect();
    let fired = test.changes.iter().filter(|it| it.what == comeback_core::subscription::AlertEvent::Fired).count();
    json!({
        "from": test.from.to_rfc3339(),
        "to": test.to.to_rfc3339(),
        "fired": fired,
        "changes": changes,
        "events": test.events,
        "complete": test.complete,
    })
}
